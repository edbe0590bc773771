"""The rule by which labels become paths."""

from __future__ import annotations

import ntpath
import os
import posixpath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.errors import FormatError
from nnr_codec.formats.nnef.labels import label_path, label_paths

_ATTACKS = [
    "",
    "/",
    "//",
    "//a",
    "a//b",
    "a/",
    ".",
    "..",
    "../x",
    "../../x",
    "a/../b",
    "a/..",
    "./a",
    "a/./b",
    "/..",
    "/../x",
    "/./x",
    "\\",
    "\\x",
    "\\\\srv\\share",
    "..\\x",
    "a\\..\\b",
    "a\\.",
    "/\\x",
    "C:\\x",
    "C:x",
    "a:b",
    "a\0b",
    "a\nb",
    "a\x1b[31m",
    "a b",
    "a ",
    " a",
    "a.",
    "a./b",
    "a...",
    "con",
    "CON",
    "Nul",
    "aux/w",
    "w/PRN",
    "com1",
    "LPT9.x",
    "nul.dat",
    "a\\nul",
    "~/x",
    "$HOME",
    "a*b",
    "a?b",
    "a|b",
    "<a>",
    'a"b',
    "a'b",
    "%2e%2e/x",
    "\N{FULLWIDTH FULL STOP}" * 2,
    "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
    "e\N{COMBINING ACUTE ACCENT}",
    "\N{RIGHT-TO-LEFT OVERRIDE}a",
    "\udcff",
    "a" * 252,
    "b" * 256 + "/a",
    "CONIN$",
]


@pytest.mark.parametrize("label", _ATTACKS, ids=ascii)
def test_attacks_are_refused(label: str) -> None:
    with pytest.raises(FormatError):
        label_path(label)


@pytest.mark.parametrize(
    "label", ["w", "conv1/filter", "a.b-c_D/0", "layer.0.weight", "...a", ".hidden/w", "a" * 251, "console/comm", "com"]
)
def test_legal_labels_are_their_own_path(label: str) -> None:
    assert label_path(label) == label + ".dat"


def test_one_leading_slash_is_dropped() -> None:
    assert label_path("/net/w") == "net/w.dat"


def test_backslash_stays() -> None:
    assert label_path("a\\b") == "a\\b.dat"


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=40) | st.from_regex(r"[\w./\\ -]{1,40}", fullmatch=True))
def test_no_label_escapes(label: str) -> None:
    try:
        path = label_path(label)
    except FormatError:
        return
    for module in (posixpath, ntpath):
        assert not module.isabs(path)
        assert module.splitdrive(path)[0] == ""
        components = module.normpath(path).replace(os.sep, "/").replace("\\", "/").split("/")
        assert ".." not in components
        assert len(components) == len(path.replace("\\", "/").split("/"))
    assert path == label.removeprefix("/") + ".dat"


@pytest.mark.parametrize(
    "labels",
    [
        ("/a", "a"),
        ("a\\b", "a/b"),
        ("a", "a.dat/b"),
        ("A", "a.DAT/b"),
        ("graph.nnef/w",),
        ("Graph.Quant/w",),
    ],
)
def test_labels_that_meet_are_refused(labels: tuple[str, ...]) -> None:
    with pytest.raises(FormatError, match="label"):
        label_paths(labels)


def test_labels_that_share_data_may_meet() -> None:
    assert label_paths(["w/a", "W/A", "w/b"]) == {"w/a": "w/a.dat", "W/A": "W/A.dat", "w/b": "w/b.dat"}
