"""The order of units, their sizes, aggregates, layer parameter sets, tensors in several parts (6.2, 6.3.1, 6.4.3)."""

from __future__ import annotations

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_INT, NNR_QCB
from nnr_codec.limits import Limits
from nnr_codec.syntax.structures import NnrUnitHeader

from ..builder import Bitstream, aggregate, ndu, step_size
from .support import refused


def start(profile: int = 1) -> Bitstream:
    return Bitstream().str_(profile).mps()


def one() -> Bitstream:
    return start().ndu(ndu("w", [2], kind=NNR_PT_INT), [3, -4])


# ------------------------------------------------------------------------------------------------ order
def test_nothing_is_no_bitstream() -> None:
    refused(b"", nnr.ElementError, "has no unit")


def test_a_bitstream_may_hold_no_tensor() -> None:
    assert len(nnr.decode(start().data)) == 0
    refused(Bitstream().str_().data, nnr.ElementError, "has no NNR_MPS")


def test_it_starts_with_nnr_str() -> None:
    stream = one()
    refused(b"".join(stream.units[1:]), nnr.ElementError, "does not begin with a start unit", unit="unit 0 (NNR_MPS)")
    refused(
        stream.units[1] + stream.units[0], nnr.ElementError, "does not begin with a start unit", unit="unit 0 (NNR_MPS)"
    )


def test_a_second_nnr_str_is_refused() -> None:
    stream = one()
    refused(stream.data + stream.data, nnr.ElementError, "second NNR_STR", unit="unit 3 (NNR_STR)")


def test_the_nnr_mps_precedes_the_first_tensor() -> None:
    stream = one()
    data = stream.units[0] + stream.units[2] + stream.units[1]
    refused(data, nnr.ElementError, "before the NNR_MPS", unit="unit 1 (NNR_NDU")
    refused(stream.units[0] + stream.units[2], nnr.ElementError, "before the NNR_MPS", unit="unit 1 (NNR_NDU")


@pytest.mark.parametrize("at", [2, 3])
def test_there_is_a_single_nnr_mps(at: int) -> None:
    """6.2.3: a second one would change the meaning of decoded units."""
    stream = one()
    units = [*stream.units[:at], stream.units[1], *stream.units[at:]]
    refused(b"".join(units), nnr.ElementError, "NNR_MPS", unit=f"unit {at} (NNR_MPS)")


def test_names_are_unique() -> None:
    stream = one().ndu(ndu("w", [1], kind=NNR_PT_INT), [1])
    refused(stream.data, nnr.ElementError, "'w' occurs twice", unit="unit 3 (NNR_NDU")


@pytest.mark.parametrize("profile", [2, 3, 255])
def test_undefined_profiles_are_unsupported(profile: int) -> None:
    data = bytearray(one().data)
    data[3] = profile
    refused(bytes(data), nnr.UnsupportedError, f"general_profile_idc {profile}")


@pytest.mark.parametrize("kind", [7, 31, 32, 63])
@pytest.mark.parametrize("payload", [b"", b"\0", b"anything at all" * 9])
def test_reserved_and_unspecified_units_are_skipped(kind: int, payload: bytes) -> None:
    stream = one()
    other = Bitstream().unit(NnrUnitHeader(nnr_unit_type=kind), payload).data
    for at in range(1, 4):
        assert nnr.decode(b"".join([*stream.units[:at], other, *stream.units[at:]]))["w"].tolist() == [3, -4]
    refused(other + stream.data, nnr.ElementError, "does not begin with a start unit", unit="unit 0 (NNR_")


# ------------------------------------------------------------------------------------------------ sizes
@pytest.mark.parametrize("tail", [b"\0", b"\0\1", b"\0\2", b"\x80", b"\0\0\0", b"\0\0\0\0\0\0", b"\xff" * 5, b"\0\3"])
def test_garbage_after_the_last_unit_is_refused(tail: bytes) -> None:
    with pytest.raises((nnr.TruncatedError, nnr.ElementError), match="unit 3"):
        nnr.decode(one().data + tail)


@pytest.mark.parametrize("size", [0, 1, 2])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_size_less_than_its_own_header_is_refused(size: int, at: int) -> None:
    units = one().units
    units[at] = size.to_bytes(2, "big") + units[at][2:]
    error = refused(b"".join(units), nnr.ElementError, f"nnr_unit_size is {size}", unit=f"unit {at}")
    assert (error.path, error.bit) == ("nnr_unit_size", 0)


@pytest.mark.parametrize("size", [0, 1, 4])
def test_a_long_size_less_than_its_own_header_is_refused(size: int) -> None:
    units = one().units
    units[2] = (size | 1 << 31).to_bytes(4, "big") + units[2][2:]
    refused(b"".join(units), nnr.ElementError, f"nnr_unit_size is {size}", unit="unit 2", path="nnr_unit_size")


def test_a_long_size_of_a_short_unit_is_read() -> None:
    units = one().units
    units[2] = (len(units[2]) + 2 | 1 << 31).to_bytes(4, "big") + units[2][2:]
    assert nnr.decode(b"".join(units))["w"].tolist() == [3, -4]


@pytest.mark.parametrize("surplus", [1, 100, 0x7000])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_size_beyond_the_end_is_refused(surplus: int, at: int) -> None:
    units = one().units[: at + 1]
    units[at] = (len(units[at]) + surplus).to_bytes(2, "big") + units[at][2:]
    refused(b"".join(units), nnr.TruncatedError, "remain", unit=f"unit {at}", path="nnr_unit_size")


def test_a_size_that_swallows_the_next_unit_is_refused() -> None:
    units = one().units
    units[1] = (len(units[1]) + len(units[2])).to_bytes(2, "big") + units[1][2:]
    refused(b"".join(units), nnr.ElementError, "follow the end of the payload", unit="unit 1 (NNR_MPS)")


def test_sizes_and_numbers_of_units_are_limited() -> None:
    data = one().data
    with pytest.raises(nnr.LimitError, match="max_units=2"):
        nnr.decode(data, limits=Limits(max_units=2))
    with pytest.raises(nnr.LimitError, match="max_unit_bytes=9"):
        nnr.decode(data, limits=Limits(max_unit_bytes=9))


def test_an_error_has_unit_bit_and_path() -> None:
    """The error has the form that errors.py documents; the bit is relative to the unit."""
    units = one().units
    units[2] = (8).to_bytes(2, "big") + units[2][2:8]
    error = refused(b"".join(units), nnr.TruncatedError, None, unit="unit 2 (NNR_NDU)")
    assert error.path.startswith("nnr_compressed_data_unit_header.")
    assert 24 <= error.bit <= 64
    assert f"unit 2 (NNR_NDU), bit {error.bit}, {error.path}: " in str(error)


@pytest.mark.parametrize("source", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_any_buffer_is_read(source: object) -> None:
    assert callable(source)
    assert nnr.decode(source(one().data))["w"].tolist() == [3, -4]


def test_a_buffer_of_wider_items_is_read_as_bytes() -> None:
    data = one().data
    data += Bitstream().unit(NnrUnitHeader(nnr_unit_type=40), bytes(-(len(data) + 3) % 4)).data
    words = np.frombuffer(data, np.uint32)
    assert nnr.decode(words)["w"].tolist() == [3, -4]
    assert nnr.decode(memoryview(words))["w"].tolist() == [3, -4]


# ------------------------------------------------------------------------------------------------ layer parameter sets
def test_an_lps_replaces_density_and_parameter() -> None:
    """Both apply to all tensors after it, until the next NNR_LPS (6.2.3, errata F5)."""
    stream = start().ndu(ndu("a", [1]), [1], qp=-3)
    stream.lps(0, 5).ndu(ndu("b", [1]), [1], qp=-3)
    stream.lps(7, -700, methods=NNR_QCB).ndu(ndu("c", [1]), [1], qp=-3)
    got = nnr.decode(stream.data)
    assert [got[name][0] for name in "abc"] == [step_size(-3), step_size(2, 0), step_size(-703, 7)]


def test_an_lps_without_density_leaves_the_one_of_the_mps() -> None:
    stream = Bitstream().str_().mps(3, 8).lps(1, 40).ndu(ndu("a", [1]), [1], qp=1)
    stream.lps(methods=0).ndu(ndu("b", [1]), [1], qp=1)
    got = nnr.decode(stream.data)
    assert [got[name][0] for name in "ab"] == [step_size(41, 1), step_size(9, 3)]


def test_an_lps_gives_a_density_where_the_mps_has_none() -> None:
    stream = Bitstream().str_().mps(methods=0).lps(1, 4).ndu(ndu("a", [1]), [3], qp=1)
    assert nnr.decode(stream.data)["a"][0] == 3 * step_size(5, 1)


def test_an_lps_ends_with_its_aggregate() -> None:
    stream = start().ndu(ndu("a", [1]), [1], qp=-3).lps(0, 5).ndu(ndu("b", [1]), [1], qp=-3)
    stream.aggregate(2).ndu(ndu("c", [1]), [1], qp=-3)
    got = nnr.decode(stream.data)
    assert [got[name][0] for name in "abc"] == [step_size(-3), step_size(2, 0), step_size(-3)]


def test_an_lps_of_an_inner_aggregate_ends_there() -> None:
    stream = start().ndu(ndu("a", [1]), [1]).lps(0, 5).ndu(ndu("b", [1]), [1]).aggregate(3)
    stream.ndu(ndu("c", [1]), [1]).aggregate(2).ndu(ndu("d", [1]), [1])
    got = nnr.decode(stream.data)
    assert [got[name][0] for name in "abcd"] == [1, 2.0**5, 1, 1]


# ------------------------------------------------------------------------------------------------ aggregates
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_nested_aggregates(depth: int) -> None:
    stream = start()
    for k in range(depth + 1):
        stream.ndu(ndu(f"t{k}", [1], kind=NNR_PT_INT), [k])
    for k in range(depth):
        stream.aggregate(depth + 1 - k)
    got = nnr.decode(stream.data)
    assert {name: values.tolist() for name, values in got.tensors.items()} == {f"t{k}": [k] for k in range(depth + 1)}
    assert [unit.depth for unit in nnr.units(stream.data)][-1] == depth


def test_the_depth_of_aggregates_is_limited() -> None:
    stream = start().ndu(ndu("a", [1], kind=NNR_PT_INT), [1])
    for k in range(6):
        stream.ndu(ndu(f"t{k}", [1], kind=NNR_PT_INT), [k]).aggregate(2)
    with pytest.raises(nnr.LimitError, match="max_agg_depth=4"):
        nnr.decode(stream.data)
    assert len(nnr.decode(stream.data, limits=Limits(max_agg_depth=6))) == 7


@pytest.mark.parametrize("count", [3, 4, 65537])
def test_an_aggregate_of_too_few_units_is_refused(count: int) -> None:
    stream = start().ndu(ndu("a", [1], kind=NNR_PT_INT), [1]).ndu(ndu("b", [1], kind=NNR_PT_INT), [2])
    stream.aggregate(2, count=count).ndu(ndu("c", [1], kind=NNR_PT_INT), [3])
    with pytest.raises(nnr.ElementError, match="num_of_nnr_units_minus2"):
        nnr.decode(stream.data)


def test_an_aggregate_of_too_many_units_is_refused() -> None:
    stream = start()
    for k in range(4):
        stream.ndu(ndu(f"t{k}", [1], kind=NNR_PT_INT), [k])
    with pytest.raises(nnr.ElementError, match="num_of_nnr_units_minus2"):
        nnr.decode(stream.aggregate(2, count=3).data)


def test_an_empty_aggregate_is_refused() -> None:
    with pytest.raises(nnr.ElementError, match="num_of_nnr_units_minus2"):
        nnr.decode(start().add(aggregate([], count=2)).data)


def test_a_unit_that_leaves_its_aggregate_is_refused() -> None:
    stream = start().ndu(ndu("a", [1], kind=NNR_PT_INT), [1]).ndu(ndu("b", [1], kind=NNR_PT_INT), [2])
    stream.aggregate(2).ndu(ndu("c", [1], kind=NNR_PT_INT), [3])
    outer = bytearray(stream.units[2])
    outer[:2] = (len(outer) - 1).to_bytes(2, "big")
    data = b"".join([*stream.units[:2], bytes(outer), *stream.units[3:]])
    refused(data, nnr.TruncatedError, "remain", unit="unit 4", path="nnr_unit_size")


def test_an_aggregate_may_hold_the_parameter_set() -> None:
    """NNR_MPS and tensors may share an aggregate: only the order in the bitstream counts."""
    stream = one().aggregate(1)
    assert nnr.decode(stream.data)["w"].tolist() == [3, -4]


# ------------------------------------------------------------------------------------------------ partial data
LEVELS = np.arange(60).reshape(6, 10) % 11 - 5


@pytest.mark.parametrize("pieces", [2, 3, 9, 255])
@pytest.mark.parametrize("dq", [0, 1])
def test_parts_are_joined(pieces: int, dq: int) -> None:
    """partial_data_counter counts down to 1 (errata N4); a part may have no bytes."""
    header = ndu("w", [6, 10], dq_flag=dq)
    whole = nnr.decode(start().ndu(header, LEVELS, qp=-8).data)["w"]
    stream = start().ndu(header, LEVELS, qp=-8, pieces=pieces).ndu(ndu("x", [1], kind=NNR_PT_INT), [7])
    got = nnr.decode(stream.data)
    np.testing.assert_array_equal(got["w"], whole)
    assert got["x"].tolist() == [7]


def test_one_part_is_a_whole() -> None:
    header = ndu("w", [6, 10])
    stream = start()
    data = stream.part(header, 1, stream.payload(header, [LEVELS])).data
    np.testing.assert_array_equal(nnr.decode(data)["w"], LEVELS)


def test_other_units_may_come_between_parts() -> None:
    """Units that are not compressed data are permitted there (6.4.3.1)."""
    header = ndu("w", [6, 10])
    stream = start()
    payload = stream.payload(header, [LEVELS])
    stream.part(header, 2, payload[:5]).unit(NnrUnitHeader(nnr_unit_type=40), b"?").part(header, 1, payload[5:])
    np.testing.assert_array_equal(nnr.decode(stream.data)["w"], LEVELS)


def parts(counters: list[int]) -> bytes:
    header = ndu("w", [6, 10])
    stream = start()
    payload = stream.payload(header, [LEVELS])
    for k, counter in enumerate(counters):
        stream.part(
            header, counter, payload[k * len(payload) // len(counters) : (k + 1) * len(payload) // len(counters)]
        )
    return stream.data


@pytest.mark.parametrize("counters", [[3, 1], [3, 1, 2], [2, 2], [2, 3], [2, 0], [3, 2, 2, 1], [2, 1, 1], [1, 2]])
def test_parts_out_of_order_are_refused(counters: list[int]) -> None:
    with pytest.raises((nnr.ElementError, nnr.PayloadError), match=r"unit \d|parts"):
        nnr.decode(parts(counters))


@pytest.mark.parametrize("counters", [[3, 2], [2], [255]])
def test_missing_parts_are_refused(counters: list[int]) -> None:
    message = f"parts of a tensor are missing at the end of the bitstream: {counters[-1] - 1}"
    refused(parts(counters), nnr.ElementError, message)


@pytest.mark.parametrize("change", [{"dims": [10, 6]}, {"names": "v"}, {"unary": 8}, {"dq_flag": 1}])
def test_a_part_with_another_header_is_refused(change: dict[str, object]) -> None:
    stream = start()
    header = ndu("w", [6, 10])
    payload = stream.payload(header, [LEVELS])
    options = {"names": "w", "dims": [6, 10]} | change
    other = ndu(options.pop("names"), options.pop("dims"), **options)  # type: ignore[arg-type]
    data = stream.part(header, 2, payload[:9]).part(other, 1, payload[9:]).data
    refused(data, nnr.ElementError, "expected part 1 of 'w'", unit="unit 3 (NNR_NDU")


def test_a_tensor_between_parts_is_refused() -> None:
    stream = start()
    header = ndu("w", [6, 10])
    payload = stream.payload(header, [LEVELS])
    stream.part(header, 2, payload[:9]).ndu(ndu("x", [1], kind=NNR_PT_INT), [7]).part(header, 1, payload[9:])
    refused(stream.data, nnr.ElementError, "expected part 1 of 'w'", unit="unit 3 (NNR_NDU")


def test_waiting_parts_are_limited() -> None:
    data = parts([3, 2, 1])
    size = len(start().payload(ndu("w", [6, 10]), [LEVELS]))
    assert len(nnr.decode(data, limits=Limits(max_pending_bytes=size))) == 1
    with pytest.raises(nnr.LimitError, match="max_pending_bytes"):
        nnr.decode(data, limits=Limits(max_pending_bytes=size - 1))


def test_parts_of_g_and_h() -> None:
    """A decomposed tensor has two units, each in two parts."""
    ids = {"compressed_parameter_types": 1, "decomposition_rank": 2, "g_number_of_rows": 3}
    g, h = np.arange(6).reshape(3, 2), np.arange(10).reshape(2, 5)
    stream = start().ndu(ndu("w", [3, 5], **ids), g, pieces=2).ndu(ndu("w_H", [3, 5], **ids), h, pieces=3)
    np.testing.assert_array_equal(nnr.decode(stream.data)["w"], g @ h)


def test_ignored_units_are_reported() -> None:
    stream = start().topology(b"?", storage=7).quantization(b"?", storage=9)
    for kind in (7, 31, 32, 63):
        stream.unit(NnrUnitHeader(nnr_unit_type=kind), b"anything")
    stream.ndu(ndu("w", [1], kind=NNR_PT_INT), [5])
    with nnr.open(stream.data) as file:
        assert file.ignored == [
            "unit 2 (topology_storage_format 7)",
            "unit 3 (quantization_storage_format 9)",
            "unit 4 (nnr_unit_type 7)",
            "unit 5 (nnr_unit_type 31)",
            "unit 6 (nnr_unit_type 32)",
            "unit 7 (nnr_unit_type 63)",
        ]
        assert file["w"].tolist() == [5]
    assert nnr.write_units(nnr.units(stream.data)) == stream.data


def test_an_aggregate_does_not_start_another_bitstream() -> None:
    data = one().str_().mps().aggregate(3).data
    for limits in (Limits(), Limits(allow_trailing=True)):
        refused(data, nnr.ElementError, "a second NNR_STR", unit="unit 4 (NNR_STR)", limits=limits)
    with pytest.raises(nnr.ElementError, match="a second NNR_STR"):
        nnr.StreamDecoder().feed(data)
