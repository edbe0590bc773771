"""Tests of weight synchronization."""
