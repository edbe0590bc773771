"""Writing of aggregates, and extraction of self-contained parts (6.2.2, 6.2.3, 6.3.3.8, 6.4.3.4, 6.4.3.8)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.bitstream.aggregate import extract, write_aggregate
from nnr_codec.bitstream.performance import PerformanceMaps, UnificationMap
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.constants import NNR_AGG, NNR_AGG_GEN, NNR_AGG_SLF, NNR_MPS, NNR_NDU, NNR_PT_INT
from nnr_codec.errors import WriteError
from nnr_codec.syntax.structures import (
    NnrAggregateUnitHeader,
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrUnitHeader,
)

from ..builder import Bitstream, ndu, step_size


def start(**options: Any) -> Bitstream:
    return Bitstream().str_().mps(**options)


def other(payload: bytes) -> bytes:
    """Return a unit of an unspecified type."""
    return Bitstream().unit(NnrUnitHeader(nnr_unit_type=32), payload).data


def headers(data: bytes) -> list[tuple[int, NnrAggregateUnitHeader]]:
    """Return the aggregates of a bitstream, with their offsets."""
    aggregates = (unit for unit in UnitReader(data) if unit.header.nnr_unit_type == NNR_AGG)
    return [(unit.offset, cast(NnrAggregateUnitHeader, unit.header.detail)) for unit in aggregates]


# ------------------------------------------------------------------------------------------------ writing
def test_round_trip() -> None:
    units = [other(b"a"), other(b"bc"), other(b"")]
    data = write_aggregate(units, nnr_aggregate_unit_type=NNR_AGG_SLF, quant_bitdepth=[0, 31, 8])
    assert data.endswith(b"".join(units))
    ((_, header),) = headers(start().data + data)
    assert header.present() == {
        "nnr_aggregate_unit_type": 1,
        "entry_points_present_flag": 0,
        "nnr_reserved_zero_7bits": 0,
        "num_of_nnr_units_minus2": 1,
        "quant_bitdepth": [0, 31, 8],
        "nnr_reserved_zero_3bits": [0, 0, 0],
    }


@given(
    st.lists(st.binary(max_size=40), min_size=2, max_size=6),
    st.sampled_from([0, 32700, 32730, 32740, 32750, 40000]),
    st.booleans(),
)
def test_entry_points_are_where_the_units_are(payloads: list[bytes], longer: int, nested: bool) -> None:
    """The sizes vary, including the aggregate's own size field of two or four bytes."""
    units = [other(payload) for payload in payloads]
    units[0] = other(payloads[0] + bytes(longer))
    data = write_aggregate(units, entry_points=True)
    if nested:
        data = write_aggregate([units[0], data], entry_points=True)
    data = start().data + data
    found = headers(data)
    assert len(found) == 1 + nested
    for offset, header in found:
        for k, (kind, entry) in enumerate(zip(header.nnr_unit_type, header.nnr_unit_entry_point, strict=True)):
            assert kind == (NNR_AGG if nested and offset == found[0][0] and k else 32)
            at = offset + entry
            if kind == 32:
                assert any(data[at:].startswith(unit) for unit in units)
            else:
                assert at == found[1][0]
        assert len(header.nnr_unit_entry_point) == (2 if nested and offset == found[0][0] else len(units))


@pytest.mark.parametrize("prefix", ["mps", "lps"])
@pytest.mark.parametrize("orders", [[0, 1], [1, 1], []])
def test_ctu_scan_order_is_there_with_unified_weights(prefix: str, orders: list[int]) -> None:
    maps = PerformanceMaps(unification=UnificationMap())
    s = Bitstream().str_()
    payload = NnrModelParameterSetUnitPayload(**(maps.elements("mps") if prefix == "mps" else {}))
    s.unit(NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader()), payload)
    if prefix == "lps":
        s.lps(methods=0, **maps.elements("lps"))
    units = [other(b"a"), other(b"b")]
    s.add(write_aggregate(units, ctu_scan_order=orders, quant_bitdepth=[3, 4], session=s.session))
    ((_, header),) = headers(s.data)
    assert header.ctu_scan_order == (orders or [0, 0])
    assert header.quant_bitdepth == [3, 4]


def test_ctu_scan_order_is_not_there_without() -> None:
    with pytest.raises(WriteError, match="unified weights"):
        write_aggregate([other(b"a"), other(b"b")], ctu_scan_order=[0, 1])


def test_the_session_is_not_changed() -> None:
    session = start().lps(3, 4).session
    before = vars(session).copy()
    write_aggregate([other(b"a"), other(b"b")], session=session)
    assert vars(session) == before


@pytest.mark.parametrize(
    ("units", "options", "match"),
    [
        ([], {}, "at least two"),
        ([other(b"a")], {}, "at least two"),
        ([other(b"a"), b""], {}, "member 1 .* is not a unit"),
        ([other(b"a") + other(b"b"), other(b"c")], {}, "member 0 .* nnr_unit_size is 4"),
        ([other(b"a"), other(b"b")[:-1]], {}, "member 1 .* has 3 bytes"),
        ([other(b"a"), other(b"b")], {"quant_bitdepth": [1]}, "quant_bitdepth"),
        ([other(b"a"), other(b"b")], {"quant_bitdepth": [1, 2, 3]}, "quant_bitdepth"),
        ([other(b"a"), other(b"b")], {"quant_bitdepth": [1, 32]}, "quant_bitdepth"),
        ([other(b"a"), other(b"b")], {"nnr_aggregate_unit_type": 256}, "nnr_aggregate_unit_type"),
        ([other(b"")] * 65538, {}, "num_of_nnr_units_minus2"),
    ],
)
def test_what_cannot_be_written(units: list[bytes], options: dict[str, Any], match: str) -> None:
    with pytest.raises(WriteError, match=match):
        write_aggregate(units, **options)


# ------------------------------------------------------------------------------------------------ extracting
def model(kind: int = NNR_AGG_SLF) -> Bitstream:
    """Return tensor a; an aggregate, unit 3, of b and an aggregate, unit 5, of c and d; tensor e."""
    s = start(density=2, parameter=4).ndu(ndu("a", [2]), [1, 2])
    s.ndu(ndu("b", [2]), [3, 4]).ndu(ndu("c", [2]), [5, 6]).ndu(ndu("d", [2]), [7, 8])
    s.aggregate(4, kind=kind).aggregate(3, kind=kind, entry_points=True)
    return s.ndu(ndu("e", [2]), [9, 10])


def assert_part(part: bytes, whole: bytes, *names: str) -> None:
    """Check that the part alone decodes to these tensors of the whole."""
    got, want = nnr.decode(part), nnr.decode(whole)
    assert list(got) == list(names)
    for name in names:
        np.testing.assert_array_equal(got[name], want[name])


def test_an_aggregate() -> None:
    s = model()
    assert_part(extract(s.data, 3), s.data, "b", "c", "d")
    assert extract(s.data, 3) == b"".join([s.units[0], s.units[1], s.units[3]])


def test_an_aggregate_in_an_aggregate() -> None:
    data = model().data
    part = extract(data, 5)
    assert_part(part, data, "c", "d")
    assert extract(part, 2) == part


@pytest.mark.parametrize("source", ["path", "file", "buffer"])
def test_from_anywhere(source: str, tmp_path: Path) -> None:
    data = model().data
    (tmp_path / "m.nnr").write_bytes(data)
    given: Any = {"path": tmp_path / "m.nnr", "file": io.BytesIO(data), "buffer": bytearray(data)}[source]
    assert nnr.extract(given, 3) == extract(data, 3)


@pytest.mark.parametrize("index", [3, 5])
def test_a_generic_aggregate_only_on_request(index: int) -> None:
    data = model(NNR_AGG_GEN).data
    with pytest.raises(nnr.UnsupportedError, match=rf"unit {index} \(NNR_AGG\) is not marked as self-contained"):
        extract(data, index)
    names = "bcd" if index == 3 else "cd"
    assert_part(extract(data, index, generic=True), data, *names)


@pytest.mark.parametrize("index", [0, 1, 2, 4, 6, 8])
@pytest.mark.parametrize("generic", [False, True])
def test_other_units_are_refused(index: int, generic: bool) -> None:
    with pytest.raises(nnr.UnsupportedError, match=rf"unit {index} .* cannot be extracted"):
        extract(model().data, index, generic=generic)


@pytest.mark.parametrize("index", [9, 10**9, -1])
def test_there_is_no_such_unit(index: int) -> None:
    with pytest.raises(nnr.MissingReferenceError, match="no unit"):
        extract(model().data, index)


def test_a_unit_of_a_reserved_type_is_refused() -> None:
    with pytest.raises(nnr.UnsupportedError, match="NNR_UNSP"):
        extract(start().add(other(b"")).data, 2)


# ------------------------------------------------------------------------------------------------ parameter sets
def test_the_layer_parameter_set_around_an_aggregate_comes_with_it() -> None:
    s = start(density=2).lps(3, -8).ndu(ndu("a", [2]), [1, 2]).ndu(ndu("b", [2]), [3, 4])
    s.aggregate(3, kind=NNR_AGG_SLF)
    part = extract(s.data, 3)
    assert_part(part, s.data, "a", "b")
    assert nnr.decode(part)["b"].tolist() == [3 * step_size(-8, 3), 4 * step_size(-8, 3)]
    assert [unit.type_name for unit in nnr.units(part)][:4] == ["NNR_STR", "NNR_MPS", "NNR_LPS", "NNR_AGG"]


def test_one_whose_scope_has_ended_does_not() -> None:
    s = start(density=2).lps(3, -8).ndu(ndu("a", [1]), [1]).aggregate(2)
    s.ndu(ndu("b", [1]), [1]).ndu(ndu("c", [1]), [1]).aggregate(3, kind=NNR_AGG_SLF)
    part = extract(s.data, 5)
    assert_part(part, s.data, "b", "c")
    assert [unit.type_name for unit in nnr.units(part)] == ["NNR_STR", "NNR_MPS", "NNR_AGG", "NNR_NDU", "NNR_NDU"]


def layers() -> Bitstream:
    """Return unit 3, a layer parameter set of b, c and d, with c and d in aggregates; unit 9 is another one."""
    s = start(density=2).ndu(ndu("a", [1]), [1]).lps(1, 8, alone=1).ndu(ndu("b", [1]), [2])
    s.ndu(ndu("c", [1]), [3]).ndu(ndu("d", [1]), [4])
    s.add(write_aggregate([s.units.pop(-2), write_aggregate([s.units.pop(), other(b"x")])]))
    return s.lps(0, -4, alone=1).ndu(ndu("e", [1]), [5])


def test_a_layer_parameter_set_with_the_units_in_its_scope() -> None:
    s = layers()
    assert [unit.type_name for unit in nnr.units(s.data)].index("NNR_LPS", 4) == 10
    part = extract(s.data, 3)
    assert_part(part, s.data, "b", "c", "d")
    assert [unit.type_name for unit in nnr.units(part)] == [
        *("NNR_STR", "NNR_MPS", "NNR_LPS", "NNR_NDU", "NNR_NDU", "NNR_NDU", "NNR_UNSP")
    ]
    assert_part(extract(s.data, 10), s.data, "e")


def test_a_layer_parameter_set_in_an_aggregate_ends_with_it() -> None:
    s = start().lps(1, 8, alone=1).ndu(ndu("a", [1]), [1]).aggregate(2).ndu(ndu("b", [1]), [1])
    assert_part(extract(s.data, 3), s.data, "a")


def test_a_layer_parameter_set_that_needs_others_only_on_request() -> None:
    s = start().lps(1, 8).ndu(ndu("a", [1]), [1])
    with pytest.raises(nnr.UnsupportedError, match=r"unit 2 \(NNR_LPS\) is not marked"):
        extract(s.data, 2)
    assert_part(extract(s.data, 2, generic=True), s.data, "a")


def test_the_start_unit_before_it_counts() -> None:
    first, second = model(), start(density=5).ndu(ndu("x", [1]), [3]).ndu(ndu("y", [1]), [4])
    second.aggregate(2, kind=NNR_AGG_SLF)
    data = first.data + second.data
    assert extract(data, len(list(nnr.units(first.data))) + 2) == second.data


# ------------------------------------------------------------------------------------------------ references
def test_a_reference_list_inside() -> None:
    s = start(indexed=1).reference_list("a", "b")
    s.ndu(ndu(1, [1], kind=NNR_PT_INT), [1]).ndu(ndu(0, [1], kind=NNR_PT_INT), [2]).aggregate(2, kind=NNR_AGG_SLF)
    assert_part(extract(s.data, 2), s.data, "b", "a")


def test_a_reference_list_outside() -> None:
    s = start(indexed=1).reference_list("a", "b")
    s.ndu(ndu(1, [1], kind=NNR_PT_INT), [1]).ndu(ndu(0, [1], kind=NNR_PT_INT), [2]).aggregate(3, kind=NNR_AGG_SLF)
    for generic in (False, True):
        with pytest.raises(
            nnr.MissingReferenceError, match=r"unit 3 \(NNR_AGG\) is not self-contained: .* 1 is not in"
        ):
            extract(s.data, 3, generic=generic)


def test_dimensions_outside() -> None:
    s = Bitstream({"a": [2], "b": [2]}).str_().mps()
    s.ndu(ndu("a", None), [1, 2]).ndu(ndu("b", None), [1, 2]).aggregate(2, kind=NNR_AGG_SLF)
    with pytest.raises(nnr.MissingReferenceError, match="dimensions of 'a'"):
        extract(s.data, 2)
    known = {"a": [2], "b": [2]}
    assert extract(s.data, 2, topology_dimensions=known) == s.data


def test_parts_of_a_tensor_outside() -> None:
    s = start().ndu(ndu("a", [9]), list(range(9)), pieces=4).ndu(ndu("b", [1]), [1])
    units = s.units
    for first, last, match in ((3, 6, "in the middle"), (2, 5, "is not self-contained: it ends in the middle")):
        inside = write_aggregate(units[first:last], nnr_aggregate_unit_type=NNR_AGG_SLF)
        data = b"".join([*units[:first], inside, *units[last:]])
        assert nnr.decode(data)["a"].shape == (9,)
        with pytest.raises(nnr.UnsupportedError, match=match):
            extract(data, first)
    inside = write_aggregate(units[2:6], nnr_aggregate_unit_type=NNR_AGG_SLF)
    data = b"".join([*units[:2], inside, units[6]])
    assert_part(extract(data, 2), data, "a")


def test_g_without_h() -> None:
    pair = {"compressed_parameter_types": 1, "decomposition_rank": 1, "g_number_of_rows": 2}
    s = start().ndu(ndu("b", [1]), [1]).ndu(ndu("a", [2, 3], **pair), [[1], [2]])
    s.ndu(ndu("a", [2, 3], **pair), [[1, 2, 3]]).ndu(ndu("c", [1]), [1])
    units = s.units
    for first, last, match in ((2, 4, "ends in the middle"), (4, 6, "is in the middle")):
        inside = write_aggregate(units[first:last], nnr_aggregate_unit_type=NNR_AGG_SLF)
        data = b"".join([*units[:first], inside, *units[last:]])
        with pytest.raises(nnr.UnsupportedError, match=match):
            extract(data, first)
    data = b"".join([*units[:3], write_aggregate(units[3:5], nnr_aggregate_unit_type=NNR_AGG_SLF), units[5]])
    assert_part(extract(data, 3), data, "a")


def test_a_malformed_bitstream() -> None:
    with pytest.raises(nnr.TruncatedError):
        extract(model().data[:-3] + b"\0", 100)
    with pytest.raises(nnr.ElementError, match="not an NNR bitstream"):
        extract(b"not a bitstream", 0)


@pytest.mark.medium
@given(st.data())
def test_every_self_contained_part_decodes_to_what_the_whole_decodes_to(data: st.DataObject) -> None:
    """The bitstreams are random trees of aggregates, parameter sets and tensors."""
    s = start(density=data.draw(st.integers(0, 3)))
    count = 0

    def fill(depth: int) -> None:
        nonlocal count
        first = len(s.units)
        for kind in data.draw(st.lists(st.sampled_from("tttla"), min_size=2, max_size=4)):
            if kind == "a" and depth < 3:
                fill(depth + 1)
            elif kind == "l":
                s.lps(data.draw(st.integers(0, 3)), data.draw(st.integers(-9, 9)), alone=1)
            else:
                s.ndu(ndu(f"t{count}", [2]), [count + 1, -3], qp=data.draw(st.integers(-5, 5)))
                count += 1
        if depth:
            s.aggregate(first, kind=NNR_AGG_SLF, entry_points=data.draw(st.booleans()))

    fill(0)
    whole = nnr.decode(s.data)
    for unit in list(nnr.units(s.data)):
        if unit.type_name not in ("NNR_AGG", "NNR_LPS"):
            continue
        part = extract(s.data, unit.index)
        decoded = nnr.decode(part)
        for name in decoded:
            np.testing.assert_array_equal(decoded[name], whole[name])
        if unit.type_name == "NNR_AGG":
            end = unit.offset + unit.size.nnr_unit_size
            inside = [
                u for u in nnr.units(s.data) if unit.offset <= u.offset < end and u.header.nnr_unit_type == NNR_NDU
            ]
            assert list(decoded) == [u.ndu.topology_elem_id for u in inside]
