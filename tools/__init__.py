"""Generators of pages of docs; they are part of the repository, not of the package."""
