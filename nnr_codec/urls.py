"""URLs as names of files: ``scheme://...``."""

from __future__ import annotations

import re
from typing import TypeGuard

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_IN_TEXT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/\s]*@)?([^\s?#]*)(?:[?#]\S*)?")


def is_url(name: object) -> TypeGuard[str]:
    """Return whether a name is a URL; a path that begins like one is written ``./scheme://...``."""
    return isinstance(name, str) and _URL.match(name) is not None


def public(text: str) -> str:
    """Return a text whose URLs have no user, password, query or fragment: these may be credentials."""
    return _IN_TEXT.sub(r"\1\2", text) if "://" in text else text


def base_name(url: str) -> str:
    """Return the last component of the path of a URL; empty if there is none."""
    from urllib.parse import unquote  # only for URLs

    return unquote(public(url).partition("://")[2].partition("/")[2]).rpartition("/")[2]
