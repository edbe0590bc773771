"""Tests for each threat to a decoder, T1 to T34 and T44 to T50, and for the check that prevents it."""
