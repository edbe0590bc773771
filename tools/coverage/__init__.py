"""Which vectors reach which line, value, step, requirement and "shall" of the standard."""

from __future__ import annotations

from .matrix import Entry, Matrix
from .page import page

__all__ = ["Entry", "Matrix", "page"]
