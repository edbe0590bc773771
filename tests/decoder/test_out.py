"""Decoding to arrays of the caller, and to narrower floats: the same values, and no second copy."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.cabac_ext.kernel import lane_engines
from nnr_codec.dtypes import STORED_TYPES
from nnr_codec.model import Array

from ..lanes import all_in_lanes, no_lanes
from ..shared import mostly_slow
from ..vectors.few import some
from .test_lanes import model

LANES = [
    no_lanes,
    pytest.param(all_in_lanes, marks=pytest.mark.skipif(not lane_engines(), reason="the processor has no AVX2")),
]
RNG = np.random.default_rng(5)
DATA = nnr.encode({"w": RNG.normal(0, 1, (40, 30)), "b": RNG.normal(0, 1, 40).astype("f4")})


def filled(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return arrays of the same types and shapes with other bits."""
    return {name: np.full(a.nbytes, 0xA5, np.uint8).view(a.dtype).reshape(a.shape) for name, a in tensors.items()}


def check(data: bytes, **options: Any) -> None:
    """Decode to all arrays or to every other one; compare with decoding to new memory, or with its error."""
    try:
        expected = nnr.decode(data, **options | {"jobs": 1, "executor": None}).tensors
    except nnr.NnrError as error:
        with pytest.raises(type(error)) as caught:
            nnr.decode(data, out={}, **options)
        assert str(caught.value) == str(error)
        return
    every = filled(expected)
    for out in (every, dict(list(filled(expected).items())[::2])):
        found = nnr.decode(data, out=out, **options).tensors
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            assert found[name].tobytes() == tensor.tobytes()
        assert all(found[name] is out[name] for name in out)


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lanes", LANES)
def test_vectors_are_decoded_to_arrays_alike(lanes: Any) -> None:
    with lanes():
        for case in some("valid", "acceptable").values():
            data = case.streams[0].path.read_bytes()
            for dtype, jobs in (("source", 1), ("float16", 2)):
                check(data, dtype=dtype, jobs=jobs)


@pytest.mark.medium
@pytest.mark.parametrize(
    "options",
    mostly_slow(2, [{}, {"exact": True}, {"scan_order": 1}, {"codebook": 16}, {"dependent_quantization": False}]),
    ids=str,
)
@pytest.mark.parametrize("lanes", LANES)
def test_narrow_floats_equal_astype(lanes: Any, options: dict[str, Any]) -> None:
    source = model() | {"number": np.float32(0.3), "none": np.empty((0, 3), "f4"), "tied": RNG.normal(0, 1, 50)}
    source["tie"] = source["tied"]
    data = nnr.encode(source, **options)
    plain = nnr.decode(data).tensors
    for dtype in ("float16", "bfloat16"):
        with lanes():
            found = nnr.decode(data, dtype=dtype, jobs=2).tensors
            check(data, dtype=dtype, jobs=2)
        for name, tensor in plain.items():
            assert found[name].tobytes() == tensor.astype(STORED_TYPES[dtype].dtype).tobytes()


@pytest.mark.medium
def test_processes_copy_to_the_arrays() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        check(DATA, executor=executor, dtype="bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("options", [{}, {"fast_decode": True}, {"codebook": 16}], ids=str)
def test_there_is_no_second_copy(lanes: Any, options: dict[str, Any]) -> None:
    for of_type, dtype in (("float32", "source"), ("float32", "float16"), ("bfloat16", "source")):
        source = RNG.normal(0, 0.05, (1000, 1500)).astype(STORED_TYPES[of_type].dtype)
        data, out = nnr.encode({"w": source}, **options), source.copy() if dtype == "source" else source.astype(dtype)
        with lanes(), nnr.open(data, dtype=dtype) as file:
            tracemalloc.start()
            file.decode(out={"w": out})
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 2e6 < out.nbytes  # the levels of a segment, and their float32 values
        with no_lanes():
            assert out.tobytes() == nnr.open(data, dtype=dtype)["w"].tobytes()  # cast as a whole


@pytest.mark.parametrize("lanes", LANES)
def test_overflow_is_an_error(lanes: Any) -> None:
    data = nnr.encode({"a": np.ones((40, 30), "f4"), "w": np.linspace(-65519, 65521, 1200).reshape(40, 30)}, qp=0)
    with lanes():
        assert np.abs(nnr.decode(data)["w"]).max() > 65520
        with pytest.raises(nnr.ElementError, match=r"'w'.*exceeds the range of float16"):
            nnr.decode(data, dtype="float16")


def test_objects_with_a_buffer_are_filled() -> None:
    words = array("f", bytes(160))
    found = nnr.decode(DATA, out={"b": words})["b"]
    assert found.tolist() == words.tolist() == nnr.decode(DATA)["b"].tolist()


def test_single_tensors_are_decoded_to_arrays() -> None:
    with nnr.open(DATA) as file:
        out = filled({"b": file["b"]})
        assert file.decode(names=["b"], out=out)["b"] is out["b"]
        assert out["b"].tolist() == file["b"].tolist()
        with pytest.raises(ValueError, match=r"out\['b'\] is not among the decoded tensors"):
            file.decode(names=["w"], out=out)


def read_only() -> Array:
    w = np.zeros((40, 30))
    w.flags.writeable = False
    return w


WHOLE = np.zeros(1240)


@pytest.mark.parametrize(
    ("out", "error", "match"),
    [
        ({"v": np.zeros(3)}, ValueError, r"out\['v'\] is not among"),
        ({"w": np.zeros((30, 40))}, ValueError, r"out\['w'\] is float64 \(30, 40\); the tensor is float64 \(40, 30\)$"),
        (
            {"w": np.zeros((40, 30), "f4")},
            ValueError,
            r"float32 \(40, 30\); the tensor is float64 .*; dtype= casts floats",
        ),
        ({"w": np.zeros((40, 30), ">f8")}, ValueError, r"is >f8 \(40, 30\)"),
        ({"w": np.zeros((30, 40)).T}, ValueError, "must be writable, C-contiguous and aligned"),
        ({"w": np.frombuffer(bytearray(9601), "f8", offset=1).reshape(40, 30)}, ValueError, "aligned"),
        ({"w": read_only()}, ValueError, "writable"),
        ({"w": [[0.0] * 30] * 40}, TypeError, r"out\['w'\] is a list; pass a numpy array"),
        ({"w": WHOLE[40:].reshape(40, 30), "b": WHOLE[30:50].view("f4")}, ValueError, "share memory"),
    ],
)
def test_unsuitable_arrays_are_refused_before_anything_is_written(out: Any, error: type[Exception], match: str) -> None:
    good = filled({"b": nnr.decode(DATA)["b"]})
    before = good["b"].tobytes()
    with pytest.raises(error, match=match):
        nnr.decode(DATA, out=good | out)
    assert good["b"].tobytes() == before
    with pytest.raises(ValueError, match="raw and out"):
        nnr.decode(DATA, raw=True, out=good)
    with pytest.raises(TypeError, match="out must map names to arrays, got ndarray"):
        nnr.decode(DATA, out=good["b"])  # type: ignore[call-overload]
