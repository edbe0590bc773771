"""Helpers for other packages, which are extras: each is imported where it is used."""
