"""Reading, changing and writing units: unchanged parts are restored bit by bit."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.source import FileSource
from nnr_codec.bitstream.units import MAX_PATTERNS
from nnr_codec.constants import NNR_PT_INT
from nnr_codec.errors import WriteError
from nnr_codec.limits import Limits
from nnr_codec.syntax.structures import NnrAggregateUnitHeader

from ..builder import Bitstream, ndu
from ..interop import BY_ID
from ..vectors.few import Case, cases, for_each


@for_each(cases("valid", "acceptable"), "slow")
def test_vectors_come_back(case: Case) -> None:
    options: dict[str, Any] = {"topology_dimensions": case.topology_dimensions, "topology": case.topology}
    for stream in case.streams:
        data = stream.path.read_bytes()
        units = list(nnr.units(data, **options))
        assert nnr.write_units(units, **options) == data
        for unit in units:
            assert bytes(unit.data) == data[unit.offset : unit.offset + unit.size.nnr_unit_size]


def test_foreign_streams_come_back() -> None:
    for stream in BY_ID.values():
        assert nnr.write_units(nnr.units(stream.data)) == stream.data


def nested() -> bytes:
    """Return STR MPS AGG(a AGG(b c)) with entry points in both aggregates."""
    stream = Bitstream().str_().mps()
    for name in "abc":
        stream.ndu(ndu(name, [300], kind=NNR_PT_INT), np.arange(300))
    data = stream.aggregate(3).aggregate(2).data
    units = list(nnr.units(data))
    for unit in units:
        if isinstance(unit.header.detail, NnrAggregateUnitHeader):
            unit.header.detail.entry_points_present_flag = 1
    return nnr.write_units(units)


def test_sizes_and_entry_points_follow() -> None:
    data = nested()
    units = list(nnr.units(data))  # which checks the entry points
    assert [(unit.type_name, unit.depth) for unit in units][2:] == [
        ("NNR_AGG", 0),
        ("NNR_NDU", 1),
        ("NNR_AGG", 1),
        ("NNR_NDU", 2),
        ("NNR_NDU", 2),
    ]
    units[5].ndu.topology_elem_id = "a longer name"
    longer = nnr.write_units(units)
    assert len(longer) == len(data) + len("a longer name") - 1
    again = list(nnr.units(longer))
    header = again[4].header.detail
    assert isinstance(header, NnrAggregateUnitHeader)
    starts = [unit.offset - again[4].offset for unit in again[5:]]
    assert header.nnr_unit_entry_point == starts
    assert [bytes(unit.data) for unit in again[:2] + again[3:4] + again[6:]] == [
        bytes(unit.data) for unit in units[:2] + units[3:4] + units[6:]
    ]
    assert list(nnr.decode(longer)) == ["a", "a longer name", "c"]


def test_units_can_be_taken_out_of_an_aggregate() -> None:
    units = list(nnr.units(nested()))
    inner = units[4].header.detail
    assert isinstance(inner, NnrAggregateUnitHeader)
    with pytest.raises(WriteError, match="at least two units, got 1"):
        nnr.write_units(units[:-1])
    outside = [*units[:4], *units[5:]]
    for unit in outside[4:]:
        unit.depth = 1
    outer = outside[2].header.detail
    assert isinstance(outer, NnrAggregateUnitHeader)
    outer.quant_bitdepth, outer.nnr_reserved_zero_3bits = [0] * 3, [0] * 3
    flat = nnr.write_units(outside)
    assert [unit.depth for unit in nnr.units(flat)] == [0, 0, 0, 1, 1, 1]
    assert list(nnr.decode(flat)) == ["a", "b", "c"]


def test_depths_have_to_make_a_tree() -> None:
    units = list(nnr.units(nested()))
    units[0].depth = 1
    with pytest.raises(WriteError, match="depth 1, but no aggregates"):
        nnr.write_units(units)


def test_a_size_that_was_long_stays_long() -> None:
    stream = Bitstream().str_().mps().ndu(ndu("w", [3], kind=NNR_PT_INT), [1, 2, 3])
    units = list(nnr.units(stream.data))
    units[2].size.nnr_unit_size_flag = 1
    longer = nnr.write_units(units)
    assert len(longer) == len(stream.data) + 2
    assert nnr.write_units(nnr.units(longer)) == longer


def test_a_payload_may_be_replaced() -> None:
    one = Bitstream().str_().mps().ndu(ndu("w", [3], kind=NNR_PT_INT), [1, 2, 3]).data
    two = Bitstream().str_().mps().ndu(ndu("w", [3], kind=NNR_PT_INT), [7, 8, 900]).data
    units, others = list(nnr.units(one)), list(nnr.units(two))
    units[2].payload = bytes(others[2].payload)  # type: ignore[arg-type]  # bytes of an NDU
    assert nnr.write_units(units) == two


def test_an_element_without_a_place_is_refused() -> None:
    units = list(nnr.units(nnr.encode({"w": np.ones((3, 3), "f4")})))
    units[2].ndu.device_id = 3
    with pytest.raises(WriteError, match="device_id=3 is set"):
        nnr.write_units(units)


class Counting(io.BytesIO):
    """File that counts the bytes that are read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        part = super().read(size)
        self.count += len(part)
        return part


def test_of_a_file_little_more_is_read_than_is_asked_for() -> None:
    rng = np.random.default_rng(1)
    data = nnr.encode({f"t{k}": rng.normal(size=(100, 200)).astype("f4") for k in range(20)}, exact=True)
    file = Counting(data)
    opened = nnr.open(file)
    sizes = {info.name: info.nbytes for info in opened.info.values()}
    units = nnr.inspect(data)
    headers = len(units) * FileSource.window + sum(unit.size for unit in units if unit.type == "NNR_TPL")
    assert file.count <= headers
    file.count = 0
    np.testing.assert_array_equal(opened["t7"], nnr.decode(data)["t7"])
    assert file.count <= sizes["t7"]
    file.count = 0
    file.seek(0)
    assert len(nnr.inspect(file)) == len(units)
    assert file.count <= headers


def test_a_file_is_read_from_where_it_stands() -> None:
    data = nnr.encode({"w": np.ones((5, 5), "f4")})
    file = io.BytesIO(b"before" + data)
    file.seek(6)
    assert nnr.decode(file)["w"].shape == (5, 5)


def test_headers_longer_than_the_window() -> None:
    name = "a" * 3000
    data = nnr.encode({name: np.ones((5, 5), "f4"), "b": np.ones((3, 3), "f4")})
    assert list(nnr.open(io.BytesIO(data))) == [name, "b"]
    assert [bytes(unit.data) for unit in nnr.units(io.BytesIO(data))] == [bytes(unit.data) for unit in nnr.units(data)]


def test_a_file_that_becomes_shorter() -> None:
    data = nnr.encode({"w": np.random.default_rng(1).normal(size=(50, 50)).astype("f4")})
    file = io.BytesIO(data)
    opened = nnr.open(file)
    file.truncate(100)
    with pytest.raises(nnr.TruncatedError, match="became shorter"):
        opened["w"]


# ------------------------------------------------------------------------------------------------ repeated headers
def repeating(kind: int = NNR_PT_INT) -> Bitstream:
    """Return STR, MPS, and tensors with equal or different headers; two ids also occur in other header bytes."""
    stream = Bitstream().str_().mps()
    for name, dims in (("a", [2, 3]), ("b", [2, 3]), ("", [2, 3]), ("c", [6]), ("d\u00e9", [2, 3]), ("e", [6])):
        stream.ndu(ndu(name, dims, kind=kind), range(6))
    return stream


def test_a_repeated_header_is_read_as_if_alone() -> None:
    stream = repeating()
    units = list(nnr.units(stream.data))
    repeated = [unit.index for unit in units if unit.repeated_id is not None]
    assert repeated == [3, 4, 6, 7]
    for k, unit in enumerate(units[2:], 2):
        alone = list(nnr.units(b"".join([*stream.units[:2], stream.units[k]])))[2]
        assert alone.repeated_id is None
        assert (unit.header, unit.size, unit.payload_offset) == (alone.header, alone.size, alone.payload_offset)
        assert list(unit.ndu.present()) == list(alone.ndu.present())
        assert bytes(unit.payload) == bytes(alone.payload)  # type: ignore[arg-type]  # bytes, not a structure
        assert bytes(unit.data) == stream.units[k]
    assert nnr.write_units(units) == stream.data


def test_a_changed_header_does_not_change_later_units() -> None:
    for unit in nnr.units(repeating().data):
        if unit.index >= 2:
            assert unit.ndu.tensor_dimensions in ([2, 3], [6])
            assert unit.ndu.cabac_unary_length_minus1 == 9
            assert unit.size.nnr_unit_size < 100
            unit.ndu.tensor_dimensions.append(7)
            unit.ndu.cabac_unary_length_minus1 = 200
            unit.size.nnr_unit_size = 100


def test_a_header_is_read_again_in_another_state() -> None:
    """The layer parameter set changes the step size of tensors with the same headers."""
    stream = Bitstream().str_().mps()
    for name, density in (("a", None), ("b", None), ("c", 1), ("d", None)):
        if density is not None:
            stream.lps(density)
        stream.ndu(ndu(name, [3]), [1, 2, 3], qp=5)
    tensors = nnr.decode(stream.data)
    assert np.array_equal(tensors["a"], tensors["b"])
    assert np.array_equal(tensors["c"], tensors["d"])
    assert not np.array_equal(tensors["b"], tensors["c"])


def test_repeated_headers_count_towards_the_limits() -> None:
    data, units = repeating().data, len(repeating().units)
    entries = 2 + 2 + 2 + 1 + 2 + 1  # tensor_dimensions
    assert len(list(nnr.units(data, limits=Limits(max_names=entries, max_units=units)))) == units
    with pytest.raises(nnr.LimitError, match="max_names") as refused:
        list(nnr.units(data, limits=Limits(max_names=entries - 1)))
    assert refused.value.unit == "unit 7 (NNR_NDU)"
    with pytest.raises(nnr.LimitError, match="max_units"):
        list(nnr.units(data, limits=Limits(max_units=units - 1)))
    long = Bitstream().str_().mps()
    for name in ("a", "b" * 9, "c" * 10):
        long.ndu(ndu(name, [1], kind=NNR_PT_INT), [1])
    with pytest.raises(nnr.LimitError, match="max_name_bytes"):
        list(nnr.units(long.data, limits=Limits(max_name_bytes=9)))


def test_more_patterns_than_are_kept() -> None:
    stream = Bitstream().str_().mps()
    shapes = [[k + 1] for k in range(2 * MAX_PATTERNS)] * 2
    for k, dims in enumerate(shapes):
        stream.ndu(ndu(f"t{k}", dims, kind=NNR_PT_INT), [k] * dims[0])
    with nnr.open(stream.data) as file:
        assert [list(info.shape) for info in file.info.values()] == shapes
        assert all((file[f"t{k}"] == k).all() for k in range(len(shapes)))


def test_damage_after_a_repeated_header_is_reported_as_if_alone() -> None:
    stream = repeating()
    found: list[object]
    for k in range(3, len(stream.units)):
        for at in range(2, len(stream.units[k])):
            damaged = bytearray(stream.units[k])
            damaged[at] ^= 0xFF
            found = []
            for before in (stream.units[2:k], []):
                try:
                    unit = list(nnr.units(b"".join([*stream.units[:2], *before, damaged])))[-1]
                    found.append((unit.header, bytes(unit.data)))
                except nnr.NnrError as error:
                    found.append((type(error), str(error).partition(":")[2], getattr(error, "bit", None)))
            assert found[0] == found[1]
