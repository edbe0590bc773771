"""Tests of NumPy files of one array."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError, NnrError
from nnr_codec.formats.safetensors import LazyTensors
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Model, Topology

from ..cli.support import call
from ..shared import examples
from .support import Pipe, assert_same
from .test_npz import _DTYPES, npy


def native(array: Array) -> Array:
    return np.asarray(array, array.dtype.newbyteorder("="))


def load(data: bytes, limits: Limits | None = None) -> Array:
    return formats.load(io.BytesIO(data), format="npy", limits=limits)["array"]


@settings(deadline=None)
@given(_DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))), st.booleans())
def test_any_array_survives(array: Array, transpose: bool) -> None:
    array = array.T if transpose else array
    file = io.BytesIO()
    formats.save(Model({"array": array}), file, format="npy")
    assert_same({"": load(file.getvalue())}, {"": native(array)})
    assert_same({"": np.load(io.BytesIO(file.getvalue()))}, {"": array})
    assert_same({"": load(npy(array))}, {"": native(array)})


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)),
        np.array(True),
        np.zeros((0, 4), np.uint64),
        np.array([1 + 2j], np.complex64),
    ],
)
def test_files_are_read_on_access(array: Array, tmp_path: Path) -> None:
    np.save(tmp_path / "some.weight.npy", array)
    model = formats.load(tmp_path / "some.weight.npy")
    assert isinstance(model.tensors, LazyTensors)
    assert_same(model.tensors, {"some.weight": native(array)})
    assert formats.described(model, "some.weight") == (native(array).dtype, array.shape)
    assert (model.format, model.metadata) == ("npy", {})
    data = pickle.dumps(model.tensors.only(["some.weight"]))
    assert len(data) < 600
    assert_same(pickle.loads(data), {"some.weight": native(array)})
    os.utime(tmp_path / "some.weight.npy", ns=(1, 1))
    with pytest.raises(FormatError, match="has changed since"):
        model["some.weight"]


def test_nothing_is_read_before(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.zeros((1 << 10, 1 << 10)))
    formats.recognise(tmp_path / "w.npy")
    tracemalloc.start()
    try:
        formats.load(tmp_path / "w.npy")
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [os.fsdecode(b"\xff.npy"), ".npy", "x", "é.NPY"])
def test_names_of_files(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(2))
    (tmp_path / "x.npy").rename(tmp_path / name)
    (found,) = formats.load(tmp_path / name)
    assert found == {"\udcff.npy": "\ufffd", ".npy": ".npy", "x": "x", "é.NPY": "é"}[name]


def test_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "w.npy", np.linspace(-1, 1, 3000, dtype=np.float32).reshape(60, 50))
    assert call(capsys, "encode", tmp_path / "w.npy", "-o", tmp_path / "w.nnr", "--lossless").code == 0
    (tmp_path / "out").mkdir()
    assert call(capsys, "decode", tmp_path / "w.nnr", "-o", tmp_path / "out" / "w.npy").code == 0
    assert (tmp_path / "out" / "w.npy").read_bytes() == (tmp_path / "w.npy").read_bytes()


def test_streams() -> None:
    data = npy(np.arange(3))
    assert_same(formats.load(Pipe(data)).tensors, {"array": np.arange(3)})  # type: ignore[arg-type]
    assert formats.recognise(io.BytesIO(data)) is formats.get("npy")


# ------------------------------------------------------------------------------------------------ rejected input
def headed(header: str, items: bytes = bytes(8)) -> bytes:
    data = header.encode("latin-1")
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(data)) + data + items


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            headed("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"),
            "is not supported; only numbers and booleans are",
        ),
        (headed("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,)}"), "does not describe a plain array"),
        (headed("{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}"), "header and items require"),
        (headed("{'descr': '<f8', 'fortran_order': False, 'shape': ()}", bytes(9)), "header and items require"),
        (
            headed(f"{{'descr': '<f8', 'fortran_order': False, 'shape': (0, {1 << 61})}}", b""),
            "exceeds the largest possible array",
        ),
        (headed("{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}", b"\1\2"), "neither 0 nor 1"),
        (b"\x93NUMPY\4\0", r"not a \.npy file"),
        (b"\x93NUMPY\1\0\1", "ends inside its header"),
    ],
)
def test_malformed_files(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=message):
        load(data)
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(FormatError, match=message):
        dict(formats.load(tmp_path / "x.npy").tensors)


def test_objects_are_never_unpickled() -> None:
    file = io.BytesIO()
    np.save(file, np.array([object], dtype=object))
    with pytest.raises(FormatError, match="is not supported; only numbers and booleans are"):
        load(file.getvalue())


def test_every_truncation_is_refused() -> None:
    data = npy(np.arange(3, dtype=np.float32))
    for size in range(len(data)):
        with pytest.raises(FormatError):
            load(data[:size])


@settings(deadline=None, max_examples=examples(300))
@given(st.data())
def test_any_mutation_gives_a_model_or_an_error(draw: st.DataObject) -> None:
    data = bytearray(npy(np.arange(6, dtype=np.float32).reshape(2, 3)))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(NnrError):
        load(bytes(data), Limits.strict())


@pytest.mark.parametrize(
    "limit", [{"max_archive_bytes": 100}, {"max_tensor_bytes": 7}, {"max_dims": 0}, {"max_name_bytes": 4}]
)
def test_limits(limit: dict[str, int]) -> None:
    (name, value), *_ = limit.items()
    with pytest.raises(LimitError, match=f"{name}={value}"):
        load(npy(np.zeros(1)), Limits(**limit))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ unsupported output
@pytest.mark.parametrize("count", [0, 2])
def test_models_of_other_sizes(count: int, tmp_path: Path) -> None:
    model = Model({f"w{k}": np.zeros(1) for k in range(count)})
    with pytest.raises(
        FormatError, match=f"one array, but the model has {count} tensors; save it as .npz or .safetensors"
    ):
        formats.save(model, tmp_path / "w.npy")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.int4, np.dtype(object), np.dtype("U1")])
def test_types_that_numpy_does_not_have(dtype: Any, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="tensor 'w': npy does not support dtype "):
        formats.save(Model({"w": np.zeros(1, dtype)}), tmp_path / "w.npy")
    assert not list(tmp_path.iterdir())


def test_losses_are_reported(tmp_path: Path) -> None:
    model = Model({"w": np.zeros(1)}, Topology("", b"x"), metadata={"a": "b"})
    with pytest.warns(formats.FormatWarning, match="cannot store the topology and the metadata") as caught:
        formats.save(model, tmp_path / "w.npy")
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(formats.FormatWarning, match="cannot store the name of tensor 'w'") as caught:
        formats.save(Model({"w": np.zeros(1)}), tmp_path / "v.npy")
    assert caught[0].filename == __file__
    with pytest.warns(formats.FormatWarning, match="cannot store the name"):
        formats.save(Model({"w": np.zeros(1)}), io.BytesIO(), format="npy")


def test_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "w.npy").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        formats.save(Model({"w": np.zeros(1)}), tmp_path / "w.npy")
    assert (tmp_path / "w.npy").read_bytes() == b"precious"
    nnr.save({"w": np.zeros(1)}, tmp_path / "w.npy", overwrite=True)
    assert_same(formats.load(tmp_path / "w.npy").tensors, {"w": np.zeros(1)})
