"""Locations of an ONNX model's data files: in the model's folder or below it, on every system."""

from __future__ import annotations

from pathlib import Path

from ...errors import FormatError
from ..companion_files import located

_LONGEST = 1024


def find(model: Path, location: str) -> Path:
    """Return the file of a location.

    Raises FormatError unless it is a regular file in the model's folder or below it.
    """
    what = f"external data {location[:80]!a}"
    parts = location.split("/")
    if len(location) > _LONGEST or any(part in ("", ".", "..") for part in parts):
        raise FormatError(f"{what}: not a path below the model's folder")
    if any(character in location for character in "\\:\0") or not location.isprintable():
        raise FormatError(f"{what}: not a portable path")
    return located(model, location, what)
