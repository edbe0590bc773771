"""Why NNCodec and the vectors disagree, in groups: disagreements.toml."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path


@dataclass(frozen=True)
class Group:
    """Cases that come out otherwise for one reason.

    Parameters
    ----------
    title, why : str
        What it is, and the argument.
    clauses, errata : str
        Separated by commas; there may be no errata.
    ids : tuple of str
        Patterns of the cases.
    detail : str
        A regular expression that is found in what became of them.
    """

    title: str
    why: str
    clauses: str
    errata: str = ""
    ids: tuple[str, ...] = ("*",)
    detail: str = ""

    def has(self, id_: str, detail: str) -> bool:
        """Whether a case belongs here, unless an earlier group has it."""
        return any(fnmatchcase(id_, pattern) for pattern in self.ids) and bool(re.search(self.detail, detail))


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
#: Of what is valid and refused, or comes out otherwise; and of what is invalid and not refused.
VALID, INVALID = (tuple(Group(**table) for table in _TABLES[kind]) for kind in ("valid", "invalid"))


def group_of(id_: str, detail: str, *, is_valid: bool) -> Group | None:
    """The group of a case that did not come out as expected."""
    return next((group for group in (VALID if is_valid else INVALID) if group.has(id_, detail)), None)
