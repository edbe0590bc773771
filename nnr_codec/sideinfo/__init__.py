"""The record of docs/reference/side-information.md: what it holds, and how it changes tensors."""
