"""Topology and quantization units: carried verbatim, deflated or not, never more than the limits allow (A.4)."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_INT
from nnr_codec.limits import Limits

from ..builder import Bitstream, ndu
from .support import refused

TEXT = "version 1.0;\n\ngraph G( x ) -> ( y ) { … }\n".encode()
QUANT = b'"w": linear_quantize(min = 0.0, max = 1.0, bits = 8);\n'


def start() -> Bitstream:
    return Bitstream().str_().mps()


@pytest.mark.parametrize("deflated", [0, 1])
def test_text_comes_out_byte_for_byte(deflated: int) -> None:
    pack = zlib.compress if deflated else bytes
    stream = start().topology(pack(TEXT + b"\0"), compression=deflated)
    topology = nnr.decode(stream.data).topology
    assert topology == nnr.Topology("nnef", TEXT)
    stream.quantization(pack(QUANT + b"\0"), compression=deflated)
    assert nnr.decode(stream.data).topology == nnr.Topology("nnef", TEXT, QUANT)
    assert nnr.open(stream.data).topology == nnr.Topology("nnef", TEXT, QUANT)


def test_quantization_may_come_first_and_last() -> None:
    expected = nnr.Topology("nnef", TEXT, QUANT)
    assert nnr.decode(start().quantization(QUANT + b"\0").topology(TEXT + b"\0").data).topology == expected
    stream = start().topology(TEXT + b"\0").ndu(ndu("w", [1], kind=NNR_PT_INT), [1]).quantization(QUANT + b"\0")
    assert nnr.decode(stream.data).topology == expected


def test_quantization_without_topology_is_no_topology() -> None:
    assert nnr.decode(start().quantization(QUANT + b"\0").data).topology is None


@pytest.mark.parametrize("storage", [7, 127, 128, 255])
@pytest.mark.parametrize("data", [b"\0", b"", TEXT, b"\xff\0\xfe"])
def test_reserved_and_unspecified_formats_are_passed_over(storage: int, data: bytes) -> None:
    assert nnr.decode(start().topology(data, storage=storage).data).topology is None


@pytest.mark.parametrize(("storage", "name"), [(0, ""), (2, "onnx"), (3, "pytorch"), (4, "tensorflow")])
@pytest.mark.parametrize("compression", [0, 1])
@pytest.mark.parametrize("data", [TEXT, TEXT + b"\0", b"\xff\0\xfe"])
def test_other_formats_are_handed_on_byte_by_byte(storage: int, name: str, compression: int, data: bytes) -> None:
    stored = zlib.compress(data) if compression else data
    stream = start().topology(stored, storage=storage, compression=compression).quantization(QUANT, storage=storage)
    assert nnr.decode(stream.data).topology == nnr.Topology(name, data, QUANT)


def test_a_recognized_format_stands_over_an_unrecognized_one() -> None:
    both = start().topology(TEXT + b"\0").topology(b"anything", storage=0)
    assert nnr.decode(both.data).topology == nnr.Topology("nnef", TEXT)


def test_what_cannot_be_read_of_an_unrecognized_format_is_passed_over() -> None:
    assert nnr.decode(start().topology(b"\xff", storage=0, compression=1).data).topology is None
    refused(start().topology(b"\xff", storage=2, compression=1).data, nnr.ElementError, "deflated data")


@pytest.mark.parametrize("data", [b"\0", b"", b"\0\0"])
def test_a_topology_kept_apart(data: bytes) -> None:
    """A single 00 byte: the topology is elsewhere (errata N9)."""
    assert nnr.decode(start().topology(data).data).topology is None


@pytest.mark.parametrize("deflated", [0, 1])
@pytest.mark.parametrize("data", [TEXT, TEXT + b"\0\0", TEXT[:5] + b"\0" + TEXT + b"\0", b"\0" + TEXT])
def test_what_is_not_one_null_terminated_string_is_refused(data: bytes, deflated: int) -> None:
    packed = zlib.compress(data) if deflated else data
    for stream in (start().topology(packed, compression=deflated), start().quantization(packed, compression=deflated)):
        refused(stream.data, nnr.ElementError, "null-terminated", unit="unit 2 (NNR_")


@pytest.mark.parametrize("compression", [2, 3, 255])
def test_reserved_compression_formats_are_refused(compression: int) -> None:
    data = start().topology(TEXT + b"\0", compression=compression).data
    refused(data, nnr.ElementError, f"compression format {compression} is reserved", unit="unit 2 (NNR_TPL)")


def test_damaged_deflated_data_is_refused() -> None:
    good = zlib.compress(TEXT + b"\0", 9)
    for length in range(1, len(good)):
        refused(start().topology(good[:length], compression=1).data, nnr.ElementError, "deflated data", unit="unit 2")
    outcomes = set()
    for bit in range(8 * len(good)):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            nnr.decode(start().topology(bytes(damaged), compression=1).data)
            outcomes.add("valid")
        except nnr.ElementError:
            outcomes.add("refused")
    assert "refused" in outcomes
    refused(start().topology(good + b"!", compression=1).data, nnr.ElementError, "does not end with its unit")
    refused(start().topology(zlib.compress(TEXT)[2:], compression=1).data, nnr.ElementError, "deflated data")
    refused(start().topology(good * 2, compression=1).data, nnr.ElementError, "does not end with its unit")


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    bomb = zlib.compress(bytes(100_000_000), 9)
    limits = Limits(max_topology_bytes=10_000)
    tracemalloc.start()
    try:
        with pytest.raises(nnr.LimitError, match="max_topology_bytes=10,000"):
            nnr.decode(start().topology(bomb, compression=1).data, limits=limits)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_topology_and_quantization_are_limited_together() -> None:
    data = start().topology(zlib.compress(TEXT + b"\0"), compression=1).quantization(QUANT + b"\0").data
    enough = len(TEXT) + len(QUANT) + 2
    assert nnr.decode(data, limits=Limits(max_topology_bytes=enough)).topology
    for limit in (enough - 1, len(TEXT) + 1, len(TEXT), 0):
        with pytest.raises(nnr.LimitError, match="max_topology_bytes"):
            nnr.decode(data, limits=Limits(max_topology_bytes=limit))


def test_many_topologies_are_limited_together() -> None:
    stream = start()
    for _ in range(40):
        stream.topology(zlib.compress(b"x" * 999 + b"\0"), compression=1)
    assert nnr.decode(stream.data, limits=Limits(max_topology_bytes=40_000)).topology
    with pytest.raises(nnr.LimitError, match="max_topology_bytes"):
        nnr.decode(stream.data, limits=Limits(max_topology_bytes=39_999))


def test_unlimited_inflates() -> None:
    data = start().topology(zlib.compress(TEXT * 1000 + b"\0"), compression=1).data
    topology = nnr.decode(data, limits=Limits.unlimited()).topology
    assert topology
    assert topology.data == TEXT * 1000
