"""Tests of nnr_codec.sync."""
