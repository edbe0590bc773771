"""Tests of the model formats and of their files."""
