"""Bitstreams of another encoder decode to the values that it decodes itself, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.decoder.decode import BitstreamParser
from nnr_codec.limits import Budget, Limits
from nnr_codec.model import Array

from .interop import ALL, BY_ID, LEVELS, ROUNDS, Stream


def one_by_one(streams: list[Stream]) -> list[object]:
    return [pytest.param(stream, id=stream.id) for stream in streams]


def assert_equal(got: Mapping[str, Array], want: Mapping[str, Array]) -> None:
    """Check that values and shapes are equal; a missing tensor consists of zeros (errata H4)."""
    assert set(got) <= set(want)
    for name, values in want.items():
        if name in got:
            assert got[name].shape == values.shape, name
            np.testing.assert_array_equal(got[name], values, err_msg=name)
        else:
            assert not values.any(), f"{name} is missing"


def test_every_stream_is_here() -> None:
    assert len([stream for stream in ROUNDS if stream.id.startswith("v1/")]) == 32
    assert len([stream for stream in ROUNDS if stream.id.startswith("v2/")]) == 65
    assert len(LEVELS) == 35
    assert len(BY_ID) == len(ALL)


@pytest.mark.parametrize("stream", one_by_one(ALL))
def test_values(stream: Stream) -> None:
    decoder = nnr.UpdateDecoder(limits=Limits.strict())
    for path in stream.before:
        decoder.decode(path.read_bytes(), raw=True)
    assert_equal(decoder.decode(stream.data, raw=True), stream.values)


@pytest.mark.parametrize("stream", one_by_one([stream for stream in ROUNDS if not stream.before]))
def test_values_without_state(stream: Stream) -> None:
    """Bitstreams of one round, and the first of several, need no state; a file path gives the same result as its bytes.

    NnrFile returns the same tensors, the last one first and each twice; shapes and types are known before decoding.
    """
    assert_equal(nnr.decode(stream.data, raw=True).tensors, stream.values)
    assert_equal(nnr.decode(stream.path, raw=True).tensors, stream.values)
    model = nnr.decode(stream.data)
    with nnr.open(stream.data) as file:
        assert list(file) == list(model)
        for name in [*reversed(list(file)), *file]:
            values = file[name]
            np.testing.assert_array_equal(values, model[name], err_msg=name)
            assert (file.info[name].shape, file.info[name].dtype) == (values.shape, values.dtype)


@pytest.mark.parametrize("stream", one_by_one(LEVELS))
def test_levels(stream: Stream) -> None:
    """QuantParam of every tensor is equal; in sequences, the references are in the streams before."""
    decoder = nnr.UpdateDecoder()
    for path in stream.before:
        decoder.decode(path.read_bytes(), raw=True)
    first_edition = "/nncodec1_" in stream.id
    state = decoder.state.fork()
    got = {}
    for group in BitstreamParser(UnitReader(stream.data)).groups():
        for rec in group.recs(state=state, budget=Budget(Limits()), first_edition=first_edition, raw=True):
            assert rec.levels is not None
            assert rec.levels.dtype == np.int32
            got[rec.name] = rec.levels
    assert_equal(got, stream.levels)


@pytest.mark.parametrize("stream", one_by_one([stream for stream in ROUNDS if "/incr_" in stream.id and stream.before]))
def test_temporal_rounds_need_the_round_before(stream: Stream) -> None:
    """Tensors without known state are rejected, never decoded to wrong values."""
    with pytest.raises(nnr.MissingReferenceError):
        nnr.decode(stream.data, raw=True)


@pytest.mark.parametrize("stream", one_by_one([stream for stream in ROUNDS if "/incr_pre/" in stream.id]))
def test_pre_rounds_add_up(stream: Stream) -> None:
    """Without raw, an update with nnr_pre_flag is the residual plus the update before it (7.3.3, errata N10)."""
    decoder = nnr.UpdateDecoder()
    got: Mapping[str, Array] = {}
    want: dict[str, Array] = {}
    for k, path in enumerate((*stream.before, stream.path)):
        got = decoder.decode(path.read_bytes())
        residuals = BY_ID[f"v2/incr_pre/{k:02}"].values
        want = {name: values + want[name] if k else values for name, values in residuals.items()}
    assert_equal(got, want)


def test_raw_leaves_scaling_apart() -> None:
    """With raw, RecLS is separate from the weight; otherwise the weight is multiplied by it (8.3.9)."""
    stream = BY_ID["v2/block_ls/00"]
    raw, model = nnr.decode(stream.data, raw=True), nnr.decode(stream.data)
    scaled = set(raw) - set(model)
    assert scaled
    for name in scaled:
        weight = name.removesuffix("_scaling")
        factors = raw[name].astype("f8").reshape(-1, *[1] * (raw[weight].ndim - 1))
        np.testing.assert_array_equal(model[weight], (raw[weight].astype("f8") * factors).astype("f4"))
