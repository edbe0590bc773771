"""JSON text of case files, with lines that suit diffs."""

from __future__ import annotations

import json
from typing import Any


def to_json(value: Any, level: int = 0) -> str:
    """Return JSON: objects and arrays of objects or texts have one entry per line down to the third level."""
    nested = isinstance(value, dict) or (
        isinstance(value, (list, tuple)) and value and isinstance(value[0], (dict, str))
    )
    if not nested or not value or level > 2 or (level and _is_short(value)):
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    indent = "\n" + " " * (level + 1)
    if isinstance(value, dict):
        rows = [f"{json.dumps(key, ensure_ascii=False)}: {to_json(item, level + 1)}" for key, item in value.items()]
    else:
        rows = [to_json(item, level + 1) for item in value]
    left, right = "{}" if isinstance(value, dict) else "[]"
    end = "\n" + " " * level + right
    return left + indent + ("," + indent).join(rows) + end + ("\n" if not level else "")


def _is_short(value: Any) -> bool:
    return len(json.dumps(value, ensure_ascii=False)) < 200
