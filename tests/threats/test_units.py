"""T1 to T8: sizes, numbers, types, nesting, order and parts of units."""

from __future__ import annotations

import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.constants import NNR_PT_INT
from nnr_codec.limits import Limits
from nnr_codec.syntax.structures import NnrAggregateUnitHeader, NnrUnitHeader

from ..builder import Bitstream, aggregate, ndu
from .support import AGG, STRICT, good, refused, start, unit


@pytest.mark.parametrize("size", [b"\0\0", b"\0\1", b"\0\2", b"\x80\0\0\0", b"\x80\0\0\4"])
def test_t01_a_unit_smaller_than_its_header(size: bytes) -> None:
    """A size of 0 would be read for ever."""
    refused(start().data + size + b"\x14\0\0", nnr.ElementError, "less than the header")


def test_t01_a_unit_larger_than_its_parent() -> None:
    refused(good()[:-1], nnr.TruncatedError, "remain")
    held, last = unit(b""), unit(b"?")
    data = start().data + aggregate([held, last]) + held
    assert data[-7:] == last + held
    refused(data[:-7] + b"\0\5" + data[-5:], nnr.TruncatedError, "remain")


def test_t01_max_unit_bytes() -> None:
    data = start().add(unit(bytes(1000))).data
    assert len(nnr.decode(data, limits=Limits(max_unit_bytes=1003))) == 0
    refused(data, nnr.LimitError, "max_unit_bytes", limits=Limits(max_unit_bytes=1002))


def test_t02_number_of_units() -> None:
    data = start().data + 8 * unit(b"")
    assert len(list(nnr.units(data, limits=Limits(max_units=10)))) == 10
    refused(data, nnr.LimitError, "max_units", limits=Limits(max_units=9))


def test_t03_unknown_types_are_skipped_counted_and_reported() -> None:
    kinds = range(7, 64)
    data = good() + b"".join(unit(b"?", kind << 2 | 2) for kind in kinds)
    assert nnr.decode(data)["w"].tolist() == [3, -4]
    assert [info.type for info in nnr.inspect(data)][3:] == 25 * ["NNR_RSVD"] + 32 * ["NNR_UNSP"]
    assert [bytes(seen.payload) for seen in list(nnr.units(data))[3:]] == 57 * [b"?"]  # type: ignore[arg-type]
    refused(data, nnr.LimitError, "max_units", limits=Limits(max_units=59))


def nested(depth: int) -> bytes:
    """Return aggregates in aggregates."""
    inner = unit(b"")
    for _ in range(depth):
        inner = aggregate([unit(b""), inner])
    return start().data + inner


def test_t04_depth_of_aggregates() -> None:
    assert len(list(nnr.units(nested(4)))) == 2 + 4 + 5
    refused(nested(5), nnr.LimitError, "max_agg_depth")
    assert len(nnr.decode(nested(1500), limits=Limits(max_agg_depth=1500))) == 0  # without recursion


def test_t05_an_aggregate_of_another_number_of_units() -> None:
    for count in (2, 4):
        data = start().data + aggregate(3 * [unit(b"")], count=count)
        refused(data, nnr.ElementError, "num_of_nnr_units_minus2")


SHORT = start().data + unit(bytes.fromhex("00 80 FFFF 14 0000000000"), AGG)  # lists 65,537 units in 6 bytes


def test_t05_a_number_of_units_beyond_the_limit() -> None:
    refused(SHORT, nnr.LimitError, "max_units", limits=STRICT)


def test_t05_a_list_of_units_ends_with_its_unit() -> None:
    """All lists do: an entry takes at least one bit."""
    paths: list[str] = []
    reader = UnitReader(SHORT, trace=lambda path, *_: paths.append(path))
    with pytest.raises(nnr.TruncatedError):
        list(reader)
    assert sum("nnr_unit_entry_point" in path for path in paths) == 1


def listed(entry_points: list[int], kinds: list[int]) -> bytes:
    """Return an aggregate of two units of 3 bytes, at bytes 19 and 22, with a list of its units."""
    detail = NnrAggregateUnitHeader(
        nnr_aggregate_unit_type=0,
        entry_points_present_flag=1,
        num_of_nnr_units_minus2=0,
        nnr_unit_type=kinds,
        nnr_unit_entry_point=entry_points,
        quant_bitdepth=[0, 0],
        nnr_reserved_zero_3bits=[0, 0],
    )
    return start().unit(NnrUnitHeader(nnr_unit_type=6, detail=detail), 2 * unit(b"")).data


@pytest.mark.parametrize(
    ("entry_points", "kinds"),
    [
        ([20, 24], [7, 7]),
        ([19, 23], [7, 7]),
        ([0, 3], [7, 7]),
        ([23, 20], [7, 7]),
        ([20, 20], [7, 7]),
        ([20, (1 << 34) - 1], [7, 7]),
        ([20, 23], [7, 5]),
    ],
)
def test_t06_entry_points_that_lead_elsewhere(entry_points: list[int], kinds: list[int]) -> None:
    assert len(list(nnr.units(listed([19, 22], [7, 7])))) == 5
    refused(listed(entry_points, kinds), nnr.ElementError, "the aggregate lists")


def test_t07_a_tensor_before_the_parameter_set() -> None:
    refused(
        Bitstream().str_().ndu(ndu("w", [1], kind=NNR_PT_INT), [1]).mps().data, nnr.ElementError, "before the NNR_MPS"
    )


def test_t07_two_parameter_sets() -> None:
    refused(start().mps().data, nnr.ElementError, "second NNR_MPS")


def test_t07_no_start_unit() -> None:
    refused(start().data[4:], nnr.ElementError, "NNR_STR")


@pytest.mark.parametrize("profile", [2, 255])
def test_t07_an_unknown_profile(profile: int) -> None:
    refused(start(profile).data, nnr.UnsupportedError, "general_profile_idc")


def parts(*counters: int) -> bytes:
    """Return the same part of 10 bytes repeatedly."""
    stream, header = start(), ndu("w", [6], kind=NNR_PT_INT)
    for counter in counters:
        stream.part(header, counter, bytes(10))
    return stream.data


@pytest.mark.parametrize("counters", [(3, 1), (2, 2), (2, 3)])
def test_t08_parts_in_wrong_order(counters: tuple[int, ...]) -> None:
    refused(parts(*counters), nnr.ElementError, "expected part")


def test_t08_parts_that_wait() -> None:
    data = parts(*range(255, 155, -1))
    refused(data, nnr.ElementError, "parts of a tensor are missing", limits=Limits(max_pending_bytes=1000))
    refused(data, nnr.LimitError, "max_pending_bytes", limits=Limits(max_pending_bytes=999))


def test_t08_parts_that_never_come() -> None:
    refused(parts(3, 2), nnr.ElementError, "parts of a tensor are missing")
