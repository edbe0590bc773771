"""Tests of units and parameter sets as objects."""
