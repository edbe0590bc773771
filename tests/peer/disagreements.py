"""Causes of disagreement between NNCodec and the vectors, from disagreements.toml."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path


@dataclass(frozen=True)
class Group:
    """Cases with unexpected results for one reason.

    Parameters
    ----------
    title, why : str
        Summary and explanation.
    clauses, errata : str
        Separated by commas; errata may be empty.
    ids : tuple of str
        Patterns of the cases.
    detail : str
        A regular expression that matches the detail of their results.
    """

    title: str
    why: str
    clauses: str
    errata: str = ""
    ids: tuple[str, ...] = ("*",)
    detail: str = ""

    def has(self, id_: str, detail: str) -> bool:
        """Return whether the group has this case, unless an earlier group has it."""
        return any(fnmatchcase(id_, pattern) for pattern in self.ids) and bool(re.search(self.detail, detail))


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
#: Groups of valid cases that are rejected or decoded differently, and of invalid cases that are not rejected.
VALID, INVALID = (tuple(Group(**table) for table in _TABLES[kind]) for kind in ("valid", "invalid"))


def group_of(id_: str, detail: str, *, is_valid: bool) -> Group | None:
    """Return the group of a case with an unexpected result."""
    return next((group for group in (VALID if is_valid else INVALID) if group.has(id_, detail)), None)
