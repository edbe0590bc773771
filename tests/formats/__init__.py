"""Tests of the model formats and of the files they write."""
