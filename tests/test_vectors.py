"""The project's own vectors in bitstream_vectors, one by one, and that they are what their generators make."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import errors
from nnr_codec.model import Array

from .vectors.case import GROUPS, digest
from .vectors.cases import CASES
from .vectors.make import ROOT, files

FOLDERS = {folder.name: folder for group in GROUPS.values() for folder in sorted((ROOT / group).iterdir())}


def facts(folder: Path) -> dict[str, Any]:
    """case.json."""
    parsed: dict[str, Any] = json.loads((folder / "case.json").read_text("utf-8"))
    return parsed


def each(*results: str) -> list[object]:
    """The cases on disk with one of these results, for parametrize."""
    return [pytest.param(folder, id=name) for name, folder in FOLDERS.items() if facts(folder)["result"] in results]


def limits(case: Mapping[str, Any]) -> nnr.Limits:
    """The limits that a case is for."""
    given = dict(case.get("limits", {}))
    base = nnr.Limits.strict() if given.pop("preset", "") == "strict" else nnr.Limits()
    return replace(base, **given)


def streams(case: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The bitstreams of a case in order, the case's own last."""
    yield from case.get("inputs", [])
    yield case


def written(tensor: Mapping[str, Any], folder: Path) -> Array:
    """The expected values."""
    if "values" in tensor:
        return np.array(tensor["values"], tensor["dtype"]).reshape(tensor["shape"])
    with np.load(folder / "expected.npz") as arrays:
        array: Array = arrays[tensor["npz"]]
    return array


def assert_tensors(got: Mapping[str, Array], want: list[dict[str, Any]], folder: Path) -> None:
    """Names, types, shapes, digests and, bit by bit, values."""
    assert sorted(got) == sorted(tensor["name"] for tensor in want)
    for tensor in want:
        values = got[tensor["name"]]
        assert (values.dtype.name, list(values.shape)) == (tensor["dtype"], tensor["shape"]), tensor["name"]
        if "values" in tensor or "npz" in tensor:
            expected = written(tensor, folder)
            assert digest(expected) == tensor["sha256"], "the digest is not that of the expected values"
            np.testing.assert_array_equal(values, expected, err_msg=tensor["name"])
        assert digest(values) == tensor["sha256"], tensor["name"]


def assert_topology(model: nnr.Model, expected: Mapping[str, Any]) -> None:
    """The texts are the expected ones, or absent alike."""
    assert (model.topology is not None) == ("topology" in expected)
    if model.topology:
        assert model.topology.format == expected["topology"].get("format", "nnef")
        texts = {"topology": model.topology.data, "quantization": model.topology.quantization}
        for key, text in texts.items():
            assert (text is not None) == (key in expected)
            if text is not None:
                assert hashlib.sha256(text).hexdigest() == expected[key]["sha256"]


@pytest.mark.parametrize("folder", each("valid", "acceptable"))
def test_decodes(folder: Path) -> None:
    """Also each alone where nothing comes before it, and the Rec* variables of 7.3."""
    case = facts(folder)
    options: dict[str, Any] = {"limits": limits(case), "topology_dimensions": case.get("topology_dimensions")}
    decoder = nnr.UpdateDecoder(**options)
    for stream in streams(case):
        data, expected = (folder / stream["stream"]["file"]).read_bytes(), stream["expected"]
        assert_tensors(decoder.decode(data), expected["tensors"], folder)
    if "inputs" not in case:
        model = nnr.decode(data, **options)
        assert_tensors(model.tensors, expected["tensors"], folder)
        assert_topology(model, expected)
        assert list(model) == list(nnr.open(data, **options))
        raw = nnr.decode(data, raw=True, **options)
        if "raw" in expected:
            assert_tensors(raw.tensors, expected["raw"], folder)


@pytest.mark.parametrize("folder", each("invalid"))
def test_is_refused(folder: Path) -> None:
    case = facts(folder)
    options: dict[str, Any] = {"limits": limits(case), "topology_dimensions": case.get("topology_dimensions")}
    decoder = nnr.UpdateDecoder(**options)
    for stream in case.get("inputs", []):
        got = decoder.decode((folder / stream["stream"]["file"]).read_bytes())
        assert_tensors(got, stream["expected"]["tensors"], folder)
    data, error = (folder / "stream.nnr").read_bytes(), getattr(errors, case["error"]["class"])
    with pytest.raises(error) as caught:
        decoder.decode(data)
    named = re.search(r"\bunit (\d+)\b", str(caught.value))
    assert (int(named[1]) if named else None) == case["error"]["unit"], str(caught.value)
    if "inputs" not in case:
        with pytest.raises(error):
            nnr.decode(data, **options)
        with pytest.raises(error):
            dict(nnr.open(data, **options))


@pytest.mark.parametrize("folder", each("valid", "acceptable"))
def test_units(folder: Path) -> None:
    """The units listed are those that the library finds."""
    case = facts(folder)
    for stream in streams(case):
        data = (folder / stream["stream"]["file"]).read_bytes()
        found = nnr.inspect(data, topology_dimensions=case.get("topology_dimensions"))
        listed = [tuple(unit[1:]) for unit in stream["units"]]
        assert [(unit.offset, unit.size) for unit in found] == listed


def test_ids_are_folders() -> None:
    """Each id once, in the folder of its group, and nothing else there."""
    on_disk = [path for group in GROUPS.values() for path in (ROOT / group).iterdir()]
    assert sorted(path.name for path in on_disk) == sorted(CASES)
    assert all(ROOT / CASES[path.name].folder == path for path in on_disk)


@pytest.mark.parametrize("folder", each("valid", "acceptable", "invalid"))
def test_is_consistent(folder: Path) -> None:
    """case.json tells the truth about the files beside it."""
    case = facts(folder)
    assert case["id"] == folder.name
    assert (case["origin"], case["license"], case["spec"]) == ("nnr_codec", "CC0-1.0", "ISO/IEC 15938-17:2024")
    assert case["clauses"]
    assert (case["result"] == "invalid") == ("error" in case) == ("expected" not in case)
    present = {"case.json", *(["expected.npz"] if '"npz":' in (folder / "case.json").read_text("utf-8") else [])}
    for stream in streams(case):
        name = stream["stream"]["file"]
        present.add(name)
        data = (folder / name).read_bytes()
        assert len(data) == stream["stream"]["bytes"] < 8192
        assert hashlib.sha256(data).hexdigest() == stream["stream"]["sha256"]
        assert all(offset + size <= len(data) for _, offset, size in stream.get("units", []))
    assert {path.name for path in folder.iterdir()} == present


@pytest.mark.parametrize("name", sorted(CASES))
def test_is_reproduced(name: str) -> None:
    """`python -m tests.vectors.make` writes what is there, byte by byte."""
    case = CASES[name]
    made = files(case)
    assert {path.name: path.read_bytes() for path in (ROOT / case.folder).iterdir()} == made
