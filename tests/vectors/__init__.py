"""Generators of the project's own conformance vectors; ``python -m tests.vectors.make`` writes them."""
