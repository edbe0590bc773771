"""Where files of an ONNX model's data may be: in the model's folder or below it, wherever the program runs."""

from __future__ import annotations

from pathlib import Path

from ...errors import FormatError
from ..companion_files import located

_LONGEST = 1024


def find(model: Path, location: str) -> Path:
    """The file of a location; FormatError unless it names a regular file beside the model, or in a folder below."""
    what = f"external data {location[:80]!a}"
    parts = location.split("/")
    if len(location) > _LONGEST or any(part in ("", ".", "..") for part in parts):
        raise FormatError(f"{what}: no path below the model's folder")
    if any(character in location for character in "\\:\0") or not location.isprintable():
        raise FormatError(f"{what}: no path that means the same on all systems")
    return located(model, location, what)
