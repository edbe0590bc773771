"""Tensor operations of the standard: pure functions on ndarrays (4.12, 7.2, 7.3.6, 8)."""
