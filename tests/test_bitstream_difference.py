"""The first difference between two bitstreams."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.bitstream_difference import BitstreamDifference
from nnr_codec.constants import NNR_PT_INT, NNR_PT_RAW_FLOAT

from .builder import aggregate, ndu, update_ndu
from .interop import ALL
from .interop import Stream as Interop
from .vectors.stream import Stream

HEADER = "nnr_compressed_data_unit_header"


def integers(levels: list[int], name: str = "w", **header: int) -> bytes:
    """Return a bitstream of one tensor of integers."""
    s = Stream().start()
    s.ndu(ndu(name, [len(levels)], kind=NNR_PT_INT, **header), levels)
    return b"".join(s.units)


def different(a: bytes, b: bytes) -> BitstreamDifference:
    """Return the difference of two bitstreams, and check that it is the same with both exchanged."""
    found, back = nnr.diff(a, b), nnr.diff(b, a)
    assert found
    assert back
    assert back.places == found.places[::-1]
    return found


@pytest.mark.parametrize("stream", ALL[::9], ids=lambda stream: stream.id)
def test_the_same(stream: Interop) -> None:
    assert nnr.diff(stream.data, stream.path) is None


def test_a_syntax_element() -> None:
    found = different(integers([1, 2, 3]), integers([1, 2, 3], cabac_unary_length_minus1=4))
    a, b = found.places
    assert a.element == b.element == f"{HEADER}.cabac_unary_length_minus1"
    assert (a.value, b.value, a.unit, a.offset, a.bit) == (9, 4, "unit 2 (NNR_NDU)", b.offset, b.bit)
    assert found.tensor == ""
    assert found.values is None


def test_the_bit_is_where_the_trace_has_it() -> None:
    data = integers([1, 2, 3])
    bits: dict[str, int] = {}

    def trace(path: str, descriptor: object, bit: int, size: int, value: object) -> None:
        bits[path] = bit

    list(UnitReader(data, trace=trace))
    place = different(data, integers([1, 2, 3], cabac_unary_length_minus1=4)).places[0]
    assert place.bit == bits[place.element]


def test_a_name_of_another_length_is_reported_not_the_unit_size() -> None:
    a, b = different(integers([1], "layer"), integers([1], "lay")).places
    assert a.element == b.element == f"{HEADER}.topology_elem_id"
    assert (a.value, b.value) == ("layer", "lay")


def test_a_payload() -> None:
    found = different(integers([5, -3, 7, 0]), integers([5, -3, 6, 0]))
    assert [place.element for place in found.places] == ["payload", "payload"]
    assert found.tensor == "w"
    assert found.values
    assert (found.values.first, found.values.expected, found.values.got, found.values.count) == ((2,), 7, 6, 1)
    a, b = integers([5, -3, 7, 0]), integers([5, -3, 6, 0])
    bit = 8 * found.places[0].offset + found.places[0].bit
    as_bits = ["".join(f"{byte:08b}" for byte in data) for data in (a, b)]
    start = 8 * (found.places[0].offset + 2)
    assert as_bits[0][start:bit] == as_bits[1][start:bit]
    assert as_bits[0][bit] != as_bits[1][bit]


def test_a_quantization_parameter_changes_values() -> None:
    streams = []
    for qp in (-20, -24):
        s = Stream().start(parameter=qp)
        s.ndu(ndu("w", [2]), [3, -4])
        streams.append(b"".join(s.units))
    found = different(*streams)
    assert found.places[0].element.endswith("mps_quantization_parameter")
    assert (found.places[0].value, found.places[1].value) == (-20, -24)
    assert (found.tensor, found.values and found.values.count) == ("w", 2)


def test_a_unit_more() -> None:
    s = Stream().start()
    s.ndu(ndu("w", [1], kind=NNR_PT_INT), [1])
    short = b"".join(s.units)
    s.ndu(ndu("v", [1], kind=NNR_PT_INT), [1])
    places = different(short, b"".join(s.units)).places
    assert places[0].unit == ""
    assert (places[1].unit, places[1].offset) == ("unit 3 (NNR_NDU)", len(short))


def test_the_form_of_the_size_alone() -> None:
    data = integers([1, 2, 3])
    offset = nnr.inspect(data)[-1].offset
    size = len(data) - offset + 2
    long = data[:offset] + (size | 1 << 31).to_bytes(4, "big") + data[offset + 2 :]
    a, b = different(data, long).places
    assert (a.element, a.value, b.value, a.bit) == ("nnr_unit_size_flag", 0, 1, 0)


def test_inside_an_aggregate() -> None:
    streams = []
    for value in (1, 2):
        s = Stream().start()
        t = Stream().start()
        for name, number in (("a", 1), ("b", value)):
            t.raw(ndu(name, [1], kind=NNR_PT_RAW_FLOAT), [number])
        s.add(aggregate(t.units[2:]))
        streams.append(b"".join(s.units))
    found = different(*streams)
    assert (found.places[0].unit, found.places[0].element, found.tensor) == ("unit 4 (NNR_NDU)", "payload", "b")


def test_values_that_cannot_be_decoded_are_noted() -> None:
    streams = []
    for level in (3, 4):
        s = Stream().start(parent=1)
        s.ndu(update_ndu("w", [2], 2, temporal_context_modeling_flag=1), [0, level])
        streams.append(b"".join(s.units))
    found = different(*streams)
    assert found.places[0].element == "payload"
    assert found.values is None
    assert found.note.startswith("the first: unit 2 (NNR_NDU 'w')")


def test_which_of_the_two_is_malformed() -> None:
    data = integers([1, 2, 3])
    for pair, which in (((data[:-4], data), "the first"), ((data, data[:-4]), "the second")):
        with pytest.raises(nnr.TruncatedError) as caught:
            nnr.diff(*pair)
        assert caught.value.__notes__ == [which]


def test_a_difference_before_damage_is_found() -> None:
    a, b = Stream().start(density=2), Stream().start(density=3)
    for s in (a, b):
        s.ndu(ndu("w", [2]), [1, 2])
    found = nnr.diff(b"".join(a.units), b"".join(b.units)[:-2])
    assert found
    assert found.places[0].element.endswith("qp_density")
    assert found.note.startswith("the second: unit 2 (NNR_NDU)")


def test_sources(tmp_path: Path) -> None:
    a, b = integers([1, 2]), integers([1, 3])
    (tmp_path / "a.nnr").write_bytes(a)

    class Pipe(io.RawIOBase):
        """Source that cannot be read twice."""

        def __init__(self, data: bytes) -> None:
            self.data = io.BytesIO(data)

        def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
            return self.data.readinto(buffer)

        def readable(self) -> bool:
            return True

    expected = nnr.diff(a, b)
    assert expected
    assert nnr.diff(tmp_path / "a.nnr", memoryview(b)) == expected
    assert nnr.diff(io.BytesIO(a), Pipe(b)) == expected


def test_limits() -> None:
    data = integers([1, 2, 3])
    with pytest.raises(nnr.LimitError):
        nnr.diff(data, data, limits=nnr.Limits(max_units=1))
