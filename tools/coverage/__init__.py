"""Coverage of the standard by the vectors: lines, values, steps, requirements and every "shall"."""

from __future__ import annotations

from .matrix import Entry, Matrix
from .page import page

__all__ = ["Entry", "Matrix", "page"]
