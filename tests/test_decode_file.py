"""Tests of decode_file(): it writes the file that save() writes for the result of decode(), or nothing."""

from __future__ import annotations

import gc
import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.source import open_source
from nnr_codec.formats import FormatWarning
from nnr_codec.limits import Limits
from nnr_codec.model import Model, Topology

from .formats.support import graph_text, tree

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits.nnef"
TARGETS = ["m.nnef", "m.tar", "m.tgz", "m.npz", "m.safetensors"]

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")]


def content(path: Path) -> dict[str, bytes] | bytes:
    """Return the bytes of a file, or of the files of a folder."""
    return tree(path) if path.is_dir() else path.read_bytes()


@pytest.fixture
def bitstream(tmp_path: Path) -> Path:
    path = tmp_path / "m.nnr"
    nnr.encode_file(DIGITS, path)
    return path


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("options", [{}, {"jobs": 3}, {"dtype": "float16"}, {"dtype": "float16", "jobs": 2}])
def test_the_same_file(name: str, options: dict[str, Any], bitstream: Path, tmp_path: Path) -> None:
    nnr.decode_file(bitstream, tmp_path / name, **options)
    nnr.save(nnr.decode(bitstream, **options), tmp_path / f"saved.{name}")
    assert content(tmp_path / name) == content(tmp_path / f"saved.{name}")
    with pytest.raises(FileExistsError):
        nnr.decode_file(bitstream, tmp_path / name)
    nnr.decode_file(bitstream, tmp_path / name, overwrite=True, **options)
    assert content(tmp_path / name) == content(tmp_path / f"saved.{name}")


@pytest.mark.parametrize("kind", ["path", "bytes", "file", "open"])
def test_sources(kind: str, bitstream: Path, tmp_path: Path) -> None:
    data = bitstream.read_bytes()
    with nnr.open(bitstream) as file:
        source: Any = {"path": str(bitstream), "bytes": data, "file": io.BytesIO(data), "open": file}[kind]
        nnr.decode_file(source, tmp_path / "m.tar")
        if kind == "open":
            with pytest.raises(TypeError, match="the bitstream is already open, so dtype cannot be set"):
                nnr.decode_file(source, tmp_path / "n.tar", dtype="float16")
            assert file["conv1/filter" if "conv1/filter" in file else next(iter(file))].size  # it is still open
    nnr.save(nnr.decode(data), tmp_path / "saved.tar")
    assert content(tmp_path / "m.tar") == content(tmp_path / "saved.tar")


def test_streams(bitstream: Path) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    for format in ("nnef", "safetensors"):
        target, saved = Pipe(), io.BytesIO()
        nnr.decode_file(bitstream, target, format=format)
        nnr.save(nnr.decode(bitstream), saved, format=format)
        assert target.getvalue() == saved.getvalue()
    target = Pipe()
    nnr.decode_file(nnr.encode({"w": np.ones(3, "f4")}), target)
    assert nnr.load(target.getvalue())["w"].tobytes() == np.ones(3, "f4").tobytes()


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("name", [*TARGETS, "-"])
def test_a_damaged_tensor_leaves_nothing(name: str, jobs: int, bitstream: Path, tmp_path: Path) -> None:
    data = bytearray(bitstream.read_bytes())
    last = list(nnr.units(bytes(data)))[-1]
    data[last.offset + last.size.nnr_unit_size - 1] ^= 0xFF
    stream = io.BytesIO()
    with pytest.raises(nnr.PayloadError, match=f"unit {last.index} "):
        nnr.decode_file(bytes(data), stream if name == "-" else tmp_path / name, jobs=jobs)
    assert stream.getvalue() == b""
    assert os.listdir(tmp_path) == [bitstream.name]


def test_tensors_that_no_variable_needs_are_checked(tmp_path: Path) -> None:
    """Decoding would find their errors as well."""
    tensors = {"a": np.ones((4, 5), "f4"), "z": np.arange(2000, dtype="i4").reshape(40, 50) % 97}
    graph = graph_text({"a": tensors["a"]})
    data = bytearray(nnr.encode(Model(tensors, Topology("nnef", graph)), exact=True))
    with pytest.warns(FormatWarning, match="left out: 'z'"):
        nnr.decode_file(bytes(data), tmp_path / "fine.nnef")
    assert sorted(tree(tmp_path / "fine.nnef")) == ["a.dat", "graph.nnef"]
    data[-1] ^= 0xFF
    with pytest.raises(nnr.PayloadError, match="'z#levels'"):
        nnr.decode_file(bytes(data), tmp_path / "m.nnef")
    assert os.listdir(tmp_path) == ["fine.nnef"]


def test_spellings_share_a_tensor(tmp_path: Path) -> None:
    weight = np.ones((2, 2), "f4")
    graph = graph_text({"w": weight, "W": weight, "v": weight})
    told: list[str] = []
    data = nnr.encode(Model({"w": weight, "v": 2 * weight}, Topology("nnef", graph)))
    nnr.decode_file(data, tmp_path / "m.tar", progress=lambda name, *_: told.append(name), jobs=2)
    nnr.save(nnr.decode(data), tmp_path / "saved.tar")
    assert content(tmp_path / "m.tar") == content(tmp_path / "saved.tar")
    assert sorted(told) == ["v", "w"]


def test_names_and_progress(bitstream: Path, tmp_path: Path) -> None:
    told: list[object] = []
    names = list(nnr.open(bitstream))[1:3]
    nnr.decode_file(bitstream, tmp_path / "m.npz", names=names, progress=lambda *args: told.append(args))
    assert list(nnr.load(tmp_path / "m.npz")) == names
    assert told == [(names[0], 1, 2), (names[1], 2, 2)]


def test_missing_tensors(tmp_path: Path) -> None:
    weight = np.ones((2, 2), "f4")
    graph = graph_text({"w": weight, "v": weight})
    data = nnr.encode(Model({"w": weight}, Topology("nnef", graph)))
    with pytest.raises(nnr.IncompleteError, match="'v'"):
        nnr.decode_file(data, tmp_path / "m.npz")
    nnr.decode_file(data, tmp_path / "m.npz", allow_missing=True)
    assert list(nnr.load(tmp_path / "m.npz")) == ["w"]
    with pytest.raises(nnr.FormatError, match="has no tensor 'v'"):
        nnr.decode_file(data, tmp_path / "m.nnef", allow_missing=True)
    assert os.listdir(tmp_path) == ["m.npz"]


def test_a_file_is_closed_quietly_when_it_is_forgotten_in_a_cycle(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x")
    source: Any = open_source(path, Limits())
    source.itself = source
    gc.collect()  # files of others
    del source
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert not told
