"""Tests of the conversion of labels to paths."""

from __future__ import annotations

import ntpath
import posixpath
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.errors import FormatError
from nnr_codec.formats import nnef
from nnr_codec.formats.nnef.labels import label_path, label_paths, path_label, portable_path, present_paths
from nnr_codec.limits import Limits

from .support import assert_same, dat, graph_text, nnef_model, tree, write_folder

ATTACKS = [
    "",
    "/",
    "//",
    "//a",
    "a//b",
    "a/",
    ".",
    "..",
    "...",
    "../x",
    "../../x",
    "a/../b",
    "a/..",
    "./a",
    "a/./b",
    "a/.../b",
    "/..",
    "/../x",
    "/./x",
    "//srv/share",
    "//?/C/x",
    "\\",
    "\\x",
    "\\\\srv\\share",
    "\\\\.\\x",
    "..\\x",
    "a\\..\\b",
    "a\\..",
    "a\\.",
    "a/..\\b",
    "a\\\\b",
    "a\\",
    "/\\x",
    "C:\\x",
    "C:/x",
    "C:x",
    "a:b",
    "a::$DATA",
    "a\0b",
    "a\nb",
    "a\rb",
    "a\tb",
    "a\x7f",
    "a\x1b[31m",
    "a b",
    "a ",
    " a",
    "a /b",
    "~/x",
    "$HOME",
    "%TEMP%/x",
    "a*b",
    "a?b",
    "a|b",
    "<a>",
    'a"b',
    "a'b",
    "a`b`",
    "a;b",
    "a&b",
    "%2e%2e/x",
    "%61ux",
    "\N{FULLWIDTH FULL STOP}" * 2,
    "a\N{DIVISION SLASH}b",
    "com\N{SUPERSCRIPT ONE}",
    "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
    "e\N{COMBINING ACUTE ACCENT}",
    "\N{RIGHT-TO-LEFT OVERRIDE}a",
    "\N{ZERO WIDTH SPACE}",
    "\udcff",
    "CONIN$",
    "a" * 252,
    "aux." + "a" * 247,
    "\\".join("a" * 84),
    "b" * 256 + "/a",
]

#: Legal labels that some system does not support, and their portable paths.
_PORTABLE = {
    "con": "%63on.dat",
    "CON": "%43ON.dat",
    "aux/w": "%61ux/w.dat",
    "w/PRN": "w/%50RN.dat",
    "com1": "%63om1.dat",
    "LPT9.x": "%4CPT9.x.dat",
    "nul.dat": "%6Eul.dat.dat",
    "aux./w": "%61ux%2E/w.dat",
    "a./b": "a%2E/b.dat",
    "a.../b": "a..%2E/b.dat",
    "a\\b": "a%5Cb.dat",
    "a\\nul": "a%5Cnul.dat",
    "nul\\a": "nul%5Ca.dat",
    "/con": "%63on.dat",
}
_HARMLESS = ["w", "conv1/filter", "a.b-c_D/0", "layer.0.weight", "...a", ".hidden/w", "a.", "a...", "a" * 251]
_HARMLESS += ["console/comm", "com", "com10", "lpt", "auxiliary/x", "x.aux", "x-con"]


def test_attacks_are_refused() -> None:
    for label in ATTACKS:
        for function in (label_path, portable_path):
            with pytest.raises(FormatError):
                pytest.fail(f"{label!a} gives the path {function(label)!a}")


def test_harmless_labels_are_their_own_path() -> None:
    for label in _HARMLESS:
        assert label_path(label) == portable_path(label) == label + ".dat"
        assert path_label(label + ".dat") == label


def test_what_some_system_cannot_hold_is_encoded() -> None:
    for label, path in _PORTABLE.items():
        assert label_path(label) == label.removeprefix("/") + ".dat"
        assert portable_path(label) == path
        assert path_label(path) == path_label(label_path(label)) == label.removeprefix("/")


def test_one_leading_slash_is_dropped() -> None:
    assert label_path("/net/w") == "net/w.dat"


def escapes(path: str) -> str:
    """Return the rule of a system that a path breaks, according to the manuals of the systems; empty if none."""
    for module, separators in ((posixpath, "/"), (ntpath, r"[/\\]")):
        components = re.split(separators, path)
        if module.isabs(path) or module.splitdrive(path)[0] or not all(components):
            return f"{module.__name__}: not below the folder"
        if module.normpath(module.join("model", path)).split(module.sep) != ["model", *components]:
            return f"{module.__name__}: is another path"
    for component in path.split("/"):
        if not component.isprintable() or set(component) & set('<>:"|?*\\'):
            return "Windows: characters"
        if component[-1] in ". ":
            return "Windows: dropped at the end"
        if component.partition(".")[0].rstrip(" ").upper() in {
            *("CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"),
            *(f"{port}{digit}" for port in ("COM", "LPT") for digit in "0123456789\xb9\xb2\xb3"),
        }:
            return "Windows: a device"
        if len(component.encode()) > 255:
            return "POSIX: NAME_MAX"
    if unicodedata.normalize("NFD", path) != path:
        return "macOS: is another path"
    return ""


@pytest.mark.parametrize(
    ("path", "system"),
    [
        ("../x", "posixpath"),
        ("a\\..\\x", "ntpath"),
        ("C:x", "ntpath"),
        ("aux/x.dat", "Windows"),
        ("a./x", "Windows"),
        ("ab:c", "Windows"),
        ("caf\xe9", "macOS"),
        ("a" * 256, "POSIX"),
    ],
)
def test_the_rules_of_the_systems_find_what_they_forbid(path: str, system: str) -> None:
    assert escapes(path).startswith(system)


def test_no_portable_path_breaks_a_rule_of_a_system() -> None:
    for label in [*_PORTABLE, *_HARMLESS]:
        assert not escapes(portable_path(label)), ascii(label)


_LABELS = st.text(st.characters(codec="utf-8"), max_size=40) | st.from_regex(
    r"(?:(?:con|aux|nul|com1|[a-zA-Z.\-_])[./\\]?){1,8}", fullmatch=True
)


@pytest.mark.medium
@settings(deadline=None)
@given(_LABELS)
def test_no_label_escapes(label: str) -> None:
    try:
        plain, portable = label_path(label), portable_path(label)
    except FormatError:
        return
    assert plain == label.removeprefix("/") + ".dat"
    assert path_label(plain) == path_label(portable) == label.removeprefix("/")
    assert not escapes(portable)
    # The unchanged path may be invalid on Windows, but never leaves its folder.
    for module in (posixpath, ntpath):
        assert not module.isabs(plain)
        assert ".." not in re.split(r"[/\\]", module.normpath(plain))


@pytest.mark.parametrize(
    "path", ["w", "w.txt", "%41.dat", "../w.dat", "%2E%2E/w.dat", "a%5cb.dat", "a%2E.dat", ".dat", "a%.dat"]
)
def test_paths_of_no_label(path: str) -> None:
    with pytest.raises(FormatError):
        path_label(path)


@pytest.mark.parametrize(
    "labels",
    [
        ("/a", "a"),
        ("a\\b", "a/b"),
        ("a./b", "a/b"),
        ("a.../b", "A./b"),
        ("a", "a.dat/b"),
        ("A", "a.DAT/b"),
        ("a", "a.dat./b"),
        ("graph.nnef/w",),
        ("Graph.Quant/w",),
        ("graph.quant./w",),
    ],
)
def test_labels_that_meet_are_refused(labels: tuple[str, ...]) -> None:
    for portable in (False, True):
        with pytest.raises(FormatError, match="label"):
            label_paths(labels, portable=portable)


def test_labels_that_share_data_may_meet() -> None:
    assert label_paths(["w/a", "W/A", "w/b"]) == {"w/a": "w/a.dat", "W/A": "W/A.dat", "w/b": "w/b.dat"}


def test_the_plain_path_is_taken_where_both_are_there() -> None:
    files = ["aux/a.dat", "%61ux/a.dat", "%61ux/b.dat"]
    labels = ["aux/a", "aux/b", "aux/c"]
    assert present_paths(labels, files) == {"aux/a": "aux/a.dat", "aux/b": "%61ux/b.dat", "aux/c": "aux/c.dat"}


def test_a_model_with_labels_for_which_windows_has_other_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.array([1.5, 2.0], np.float32)
    tensors = {"aux/w": weight, "a./b": weight + 1}
    plain = write_folder(
        tmp_path / "plain",
        {"graph.nnef": graph_text(tensors), "aux/w.dat": dat(weight), "a./b.dat": dat(weight + 1)},
    )
    model = nnef.load(plain, Limits())
    assert_same(model.tensors, tensors)
    nnef.save(model, tmp_path / "here", overwrite=False)
    assert tree(tmp_path / "here") == tree(plain)
    monkeypatch.setattr("nnr_codec.formats.nnef.SYSTEM", "nt")
    nnef.save(model, tmp_path / "there", overwrite=False)
    assert set(tree(tmp_path / "there")) == {"graph.nnef", "%61ux/w.dat", "a%2E/b.dat"}
    assert_same(nnef.load(tmp_path / "there", Limits()).tensors, tensors)
    nnef.save(nnef_model(tensors), tmp_path / "there.tar", overwrite=False)
    assert b"aux/w.dat" in (tmp_path / "there.tar").read_bytes()


@pytest.mark.medium
def test_labels_as_long_as_a_text() -> None:
    """Checking every folder of such a path separately would take minutes."""
    deep = "/".join(["a"] * 500_000)
    assert len(label_paths([deep, f"{deep}/b"])) == 2
    with pytest.raises(FormatError, match="requires a folder where 'a/a' has its file"):
        label_paths([deep, "a/a", f"a/a.dat/{deep}"])
