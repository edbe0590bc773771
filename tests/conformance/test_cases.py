"""Tests of case files, including malicious ones."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.conformance.cases import load_cases
from nnr_codec.model import Topology

from .support import described, write_case

W = np.array([1.5, -2], np.float32)
DATA = nnr.encode({"w": W})


def change(path: Path, *keys: str | int, value: Any) -> None:
    """Set one field of a JSON file; None removes it."""
    facts = json.loads(path.read_text("utf-8"))
    inner = facts
    for key in keys[:-1]:
        inner = inner[key]
    if value is None:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    path.write_text(json.dumps(facts), "utf-8")


def refused(root: Path) -> str:
    """Return the message with which cases are rejected: one line that names the file."""
    with pytest.raises(nnr.FormatError) as caught:
        load_cases(root)
    assert str(caught.value).startswith(str(root))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_all_fields(tmp_path: Path) -> None:
    write_case(
        tmp_path,
        "A",
        DATA,
        {"w": W},
        result="acceptable",
        profile_idc=1,
        features=["dq_flag"],
        clauses=["7.3.3"],
        requirements=["start-unit"],
        limits={"preset": "strict", "max_dims": 7},
        topology_dimensions={"w": [2]},
        rev=1,
    )
    write_case(tmp_path, "B", b"\0", error={"class": "TruncatedError", "unit": 0})
    a, b = load_cases(tmp_path)
    assert (a.id, a.group, a.kind, a.profile_idc, a.features) == ("A", "g", "acceptable", 1, ("dq_flag",))
    assert (a.rev, a.clauses, a.requirements) == (1, ("7.3.3",), ("start-unit",))
    assert (a.limits.max_dims, a.limits.max_units) == (7, nnr.Limits.strict().max_units)
    assert a.topology_dimensions == {"w": (2,)}
    (stream,) = a.streams
    assert stream.tensors
    assert np.array_equal(stream.values(stream.tensors[0]), W)
    assert stream.is_intact()
    assert (b.kind, b.error, b.streams[0].tensors) == ("invalid", (nnr.TruncatedError, 0), None)


def test_a_topology_that_is_kept_apart(tmp_path: Path) -> None:
    graph = b"version 1.0;"
    path = write_case(tmp_path, "A", DATA, {"w": W})
    assert load_cases(tmp_path)[0].topology is None
    path.with_name("topology.nnef").write_bytes(graph)
    change(path, "topology", value={"file": "topology.nnef", "sha256": hashlib.sha256(graph).hexdigest()})
    assert load_cases(tmp_path)[0].topology == Topology("nnef", graph)
    path.with_name("topology.nnef").write_bytes(graph + b"#")
    assert "the SHA-256 of topology.nnef differs" in refused(tmp_path)
    change(path, "topology", "file", value="../topology.nnef")
    assert "is not a file in the folder of the case" in refused(tmp_path)
    change(path, "topology", value="topology.nnef")
    assert "topology must be dict, got str" in refused(tmp_path)


def test_several_in_one_folder_and_values_in_an_archive(tmp_path: Path) -> None:
    first = write_case(tmp_path, "A", DATA, {"w": W}, origin="somebody")
    change(first, "expected", "tensors", 0, "values", value=None)
    change(first, "expected", "tensors", 0, "npz", value="k")
    change(first, "expected", "arrays", value="a.npz")
    np.savez(first.with_name("a.npz"), k=W.astype("f8"))
    first.rename(first.with_name("one.case.json"))
    first.with_name("notcase.json").write_text("rubbish")
    second = first.with_name("two.case.json")
    second.write_text(first.with_name("one.case.json").read_text("utf-8").replace('"id": "A"', '"id": "B"'), "utf-8")
    a, b = load_cases(tmp_path)
    assert (a.id, b.id, a.kind) == ("A", "B", "interop")
    assert a.streams[0].tensors
    values = a.streams[0].values(a.streams[0].tensors[0])
    assert values is not None
    assert values.dtype == W.dtype
    assert np.array_equal(values, W)


def test_a_case_is_a_root_too(tmp_path: Path) -> None:
    path = write_case(tmp_path, "A", DATA, {"w": W})
    assert [case.group for case in load_cases(path.parent)] == [""]


def test_no_case(tmp_path: Path) -> None:
    assert "no case.json" in refused(tmp_path)
    with pytest.raises(FileNotFoundError):
        load_cases(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        load_cases(tmp_path / "file")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b'{"id":' + b"9" * 5000 + b"}", b"{}"],
    ids=range(9),
)
def test_no_json_of_a_case(tmp_path: Path, content: bytes) -> None:
    write_case(tmp_path, "A", DATA, {"w": W}).write_bytes(content)
    refused(tmp_path)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("id",), 3),
        (("id",), None),
        (("result",), "perhaps"),
        (("result",), None),
        (("result",), "invalid"),
        (("profile_idc",), "1"),
        (("rev",), "1"),
        (("clauses",), "7.3"),
        (("requirements",), "start-unit"),
        (("expected", "levels"), {}),
        (("expected", "levels"), [3]),
        (("expected", "levels"), [{"unit": "2", "shape": [1], "sha256": "0"}]),
        (("expected", "levels"), [{"unit": 2, "shape": [-1], "sha256": "0"}]),
        (("expected", "levels"), [{"unit": 2, "shape": [1]}]),
        (("features",), "dq_flag"),
        (("limits",), {"max_dims": "7"}),
        (("limits",), {"max_dims": 99}),
        (("limits",), {"max_everything": 1}),
        (("limits",), {"preset": "unlimited"}),
        (("limits",), {"expected": 1}),
        (("topology_dimensions",), {"w": 3}),
        (("topology_dimensions",), {"w": [-1]}),
        (("topology_dimensions",), {"w": [1.5]}),
        (("inputs",), [3]),
        (("inputs",), [{}]),
        (("inputs",), {"stream": {}}),
        (("stream",), "stream.nnr"),
        (("stream", "file"), None),
        (("stream", "sha256"), None),
        (("expected",), None),
        (("expected",), []),
        (("expected", "tensors"), None),
        (("expected", "tensors"), [3]),
        (("expected", "tensors", 0, "shape"), [-3]),
        (("expected", "tensors", 0, "sha256"), "12"),
        (("expected", "raw"), [{}]),
        (("expected",), {"raw": []}),
        (("expected", "tensors", 0, "dtype"), "complex64"),
        (("extension",), 3),
        (("expected", "topology"), "x"),
        (("expected", "topology"), {"bytes": 3}),
    ],
    ids=str,
)
def test_malformed_fields(tmp_path: Path, keys: tuple[str | int, ...], value: Any) -> None:
    path = write_case(tmp_path, "A", DATA, {"w": W})
    change(path, *keys, value=value)
    refused(tmp_path)


@pytest.mark.parametrize("name", ["Limits", "annotations", "NnrErro", "__name__", "Any", "", "_restore"])
def test_classes_that_are_no_errors(tmp_path: Path, name: str) -> None:
    write_case(tmp_path, "A", b"\0", error={"class": name, "unit": 0})
    assert "not a class of nnr_codec.errors" in refused(tmp_path)


def test_ids_are_unique(tmp_path: Path) -> None:
    write_case(tmp_path, "A", DATA, {"w": W})
    write_case(tmp_path / "h", "A", DATA, {"w": W})
    assert "'A'" in refused(tmp_path)


OUTSIDE = [
    "../B/stream.nnr",
    "/etc/passwd",
    "..",
    ".",
    "",
    "sub/x.nnr",
    "sub\\x.nnr",
    "C:x.nnr",
    ".hidden",
    "a\0b",
    "-rf",
    "none.nnr",
    "x" * 300,
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_only_files_of_the_folder(tmp_path: Path, name: str) -> None:
    write_case(tmp_path, "B", DATA, {"w": W})
    path = write_case(tmp_path, "A", DATA, {"w": W})
    (path.parent / "sub").mkdir()
    (path.parent / "sub" / "x.nnr").write_bytes(DATA)
    (path.parent / ".hidden").write_bytes(DATA)
    change(path, "stream", "file", value=name)
    assert "not a file in the folder of the case" in refused(tmp_path)
    change(path, "stream", "file", value="stream.nnr")
    change(path, "expected", "tensors", 0, "npz", value="w")
    change(path, "expected", "arrays", value=name)
    assert "not a file in the folder of the case" in refused(tmp_path)
    change(path, "expected", "arrays", value="stream.nnr")
    change(path, "inputs", value=[described(DATA, {"w": W}, name)])
    assert "not a file in the folder of the case" in refused(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="makes links and pipes")
def test_links_and_pipes(tmp_path: Path) -> None:
    path = write_case(tmp_path / "cases", "A", DATA, {"w": W})
    stream = path.with_name("stream.nnr")
    (tmp_path / "secret").write_bytes(DATA)
    stream.unlink()
    stream.symlink_to(tmp_path / "secret")
    refused(tmp_path / "cases")
    stream.unlink()
    os.mkfifo(stream)
    refused(tmp_path / "cases")
    stream.unlink()
    stream.write_bytes(DATA)
    assert load_cases(tmp_path / "cases")
    path.rename(tmp_path / "case")
    path.symlink_to(tmp_path / "case")
    refused(tmp_path / "cases")
    path.unlink()
    (path.parent / "round").symlink_to(tmp_path / "cases")
    refused(tmp_path / "cases")


def test_large_files_are_not_read(tmp_path: Path) -> None:
    path = write_case(tmp_path, "A", DATA, {"w": W})
    with path.with_name("stream.nnr").open("r+b") as file:
        file.truncate((64 << 20) + 1)
    assert "larger than" in refused(tmp_path)
