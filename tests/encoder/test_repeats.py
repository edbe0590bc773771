"""Tensors with repeated rows: lossless, smaller, and never larger."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.dtypes import STORED_TYPES, StoredType
from nnr_codec.encoder.repeats import find_repeats
from nnr_codec.model import Array
from nnr_codec.sideinfo.record import GridCode, Repeats

from ..arrays import made


def repeats_of(data: bytes) -> Repeats | None:
    """Return the runs of the tensor w."""
    record = nnr.open(data).side.tensors.get("w")
    return record.repeats if record else None


def exact(array: Array) -> bytes:
    """Return a lossless bitstream of one tensor, and check that it restores the tensor."""
    data = nnr.encode({"w": array}, exact=True)
    for options in ({}, {"jobs": 2}):
        found = nnr.decode(data, **options)["w"]
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
    return data


@pytest.mark.parametrize("stored", STORED_TYPES.values(), ids=lambda stored: stored.name)
def test_rows_of_each_type(stored: StoredType) -> None:
    """One quarter of the rows is new; the others are copies, reversed, negated or both."""
    rows = made("patterns", (10, 1024), stored.name)
    others = [rows[:, ::-1], rows[::-1], rows[:, ::-1]]
    if stored.kind == "f" or (stored.kind == "i" and stored.bits >= 8):
        others[1:] = [-rows[::-1], -rows[:, ::-1]]
    alone, data = exact(rows), exact(np.concatenate([rows, *others]))
    assert repeats_of(data)
    assert len(data) < 1.1 * len(alone) + 400


def fourier(size: int, windowed: bool) -> Array:
    """Return weights of a convolution: rows of cosines and sines, from 0 to half of the sampling rate."""
    basis = np.fft.fft(np.eye(size))[: size // 2 + 1]
    rows = np.concatenate([basis.real, basis.imag])
    return (rows * np.hanning(size + 1)[:-1] if windowed else rows).astype("f4")[:, None]


@pytest.mark.parametrize("size", [256, 400])
@pytest.mark.parametrize("windowed", [False, True])
def test_fourier_bases(size: int, windowed: bool) -> None:
    array = fourier(size, windowed)
    assert len(exact(array)) < len(zlib.compress(array.tobytes(), 9)) / 2


def test_equal_columns() -> None:
    columns = made("normal", (60, 50), "bfloat16")
    data = exact(np.concatenate([columns, columns[::-1]], axis=1))
    found = repeats_of(data)
    assert found
    assert found.columns


def test_rows_keep_their_scales() -> None:
    """Values are levels times a scale of their row."""
    rows = made("grid_by_channel", (30, 200), "float32", 2)
    data = exact(np.concatenate([rows, rows[::-1]]))
    assert repeats_of(data)
    assert isinstance(nnr.open(data).side.tensors["w"].code, GridCode)
    assert len(data) < 1.1 * len(exact(rows))


@pytest.mark.parametrize(
    ("kind", "type_", "bits"),
    [
        ("normal", "float32", 27),
        ("pruned", "float32", 14),
        ("ternary", "float32", 1.6),
        ("patterns", "int8", 8),
        ("normal", "bfloat16", 11),
    ],
)
def test_tensors_without_copies_have_no_runs(kind: str, type_: str, bits: float) -> None:
    array = made(kind, (300, 400), type_)
    few = len(np.unique(array.astype("f4"))) < 65536
    assert not list(find_repeats(array, STORED_TYPES[type_], bits, few=few))


@pytest.mark.parametrize(
    "array", [np.zeros((40, 50), "f4"), np.ones(3000, "i1"), np.tile(np.arange(5, dtype="i2"), 900)]
)
def test_constant_and_periodic_tensors(array: Array) -> None:
    exact(array)


def test_listing_and_parts() -> None:
    """Other decoders get the items that are not copies, under another name; rows are rows of the tensor."""
    rows = made("normal", (20, 64), "float32")
    array = np.concatenate([rows, -rows])
    data = exact(array)
    with nnr.open(data) as file:
        assert (file.info["w"].shape, file.info["w"].type) == ((40, 64), "float32")
        assert file.rows("w", 19, 22).tobytes() == array[19:22].tobytes()
    raw: Any = nnr.decode(data, raw=True).tensors
    assert "w" not in raw
    assert raw["w#levels"].shape == (20, 64)
    halves = nnr.decode(data, dtype="float16")["w"]
    assert halves.tobytes() == array.astype("f2").tobytes()


@pytest.mark.parametrize("scan_order", [0, 1])
def test_block_scans(scan_order: int) -> None:
    """A vector of items is coded without blocks."""
    rows = np.rint(made("normal", (40, 64), "float32") * 100).astype("i2")
    for array in (np.concatenate([rows, -rows]), np.concatenate([rows, rows], axis=1)):
        data = nnr.encode({"w": array}, exact=True, scan_order=scan_order)
        assert repeats_of(data)
        assert np.array_equal(nnr.decode(data)["w"], array)


def test_without_side_information() -> None:
    rows = made("normal", (20, 64), "float32")
    data = nnr.encode({"w": np.concatenate([rows, rows])}, exact=True, side_info=False)
    assert not nnr.open(data).side


def test_reports_count_all_parameters() -> None:
    rows = made("normal", (40, 64), "float32")
    model = {"w": np.concatenate([rows, -rows]), "raw": made("patterns", (9,), "uint8")}
    report = nnr.estimate(model, exact=True)
    assert [tensor.parameters for tensor in report.tensors.values()] == [5120, 9]
