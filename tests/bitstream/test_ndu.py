"""The level writer: levels under any legal header are restored, in units of any size."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.bitstream.ndu import coded_levels, coding_order, ndu_header, write_payload
from nnr_codec.bitstream.payload import parts, tensor_syntax
from nnr_codec.bitstream.units import UnitReader, write_unit
from nnr_codec.cabac_ext.kernel import TensorSide, TensorSyntax
from nnr_codec.constants import (
    NNR_CPT_BI,
    NNR_CPT_BN,
    NNR_CPT_DC,
    NNR_CPT_LS,
    NNR_PT_BLOCK,
    NNR_PT_FLOAT,
    NNR_PT_INT,
    NNR_PT_RAW_FLOAT,
)
from nnr_codec.decoder.decode import BitstreamParser
from nnr_codec.decoder.reconstruct import Rec
from nnr_codec.decoder.state import UpdateState
from nnr_codec.limits import Budget, Limits
from nnr_codec.syntax import Session
from nnr_codec.syntax.deepcabac import index_to_xy
from nnr_codec.syntax.structures import IntegerCodebook, NnrCompressedDataUnitHeader

from ..builder import TRANSITIONS, Bitstream, codebook, ndu, update_ndu

Ints = npt.NDArray[np.int64]
BLOCK_TYPES = (NNR_CPT_DC, NNR_CPT_LS, NNR_CPT_BN, NNR_CPT_BI)


def recs_of(data: bytes) -> list[Rec]:
    """Return names, values and QuantParam of the first group of units."""
    group = next(iter(BitstreamParser(UnitReader(data)).groups()))
    return group.recs(state=UpdateState(), budget=Budget(Limits()))


def resolved(levels: Ints, order: Ints) -> Ints:
    """Return the QuantParam of coded levels with dq_flag 1 (10.2.1.4)."""
    state, out = 0, np.zeros(levels.size, np.int64)
    for k in order.tolist():
        level = int(levels.reshape(-1)[k])
        out[k] = 2 * level - ((level > 0) - (level < 0)) * (state & 1)
        state = TRANSITIONS[state][level & 1]
    return out.reshape(levels.shape)


# ------------------------------------------------------------------------------------------------ any header
@st.composite
def codebooks(draw: st.DrawFn) -> IntegerCodebook:
    values = sorted(draw(st.sets(st.integers(-300, 300), min_size=1, max_size=9)))
    return codebook(values, draw(st.integers(0, len(values) - 1)), draw(st.integers(0, 3)))


@st.composite
def headers(draw: st.DrawFn) -> NnrCompressedDataUnitHeader:
    """Draw legal headers of units with coded levels, profile 1."""
    kind = draw(st.sampled_from([NNR_PT_INT, NNR_PT_FLOAT, NNR_PT_BLOCK]))
    dims = draw(st.lists(st.integers(1, 20), min_size=1, max_size=3))
    elements: dict[str, Any] = {"dq_flag": draw(st.integers(0, 1))}
    if kind == NNR_PT_INT:
        elements["data_format"] = draw(st.sampled_from([None, 0, 7]))
    else:
        elements["data_format"] = draw(st.sampled_from([None, 1, 9]))
        if draw(st.booleans()):
            elements |= {"codebook_present_flag": 1, "codebook": draw(codebooks())}
    if len(dims) > 1:
        elements["scan_order"] = draw(st.integers(0, 4))
        elements["first_tensor_dimension_shift"] = draw(st.integers(0, len(dims) - 1))
    names: str | list[str] = "w"
    if kind == NNR_PT_BLOCK:
        types = sum(draw(st.sets(st.sampled_from(BLOCK_TYPES), min_size=1)))
        elements["compressed_parameter_types"] = types
        if types & NNR_CPT_DC:
            rows = draw(st.sampled_from([d for d in range(1, prod(dims) + 1) if prod(dims) % d == 0]))
            elements |= {"decomposition_rank": draw(st.integers(1, 12)), "g_number_of_rows": rows}
            if "codebook" in elements:
                elements["codebook_dc"] = draw(codebooks())
        count = 1 + bool(types & NNR_CPT_DC) + bool(types & NNR_CPT_LS) + bool(types & NNR_CPT_BI)
        names = [f"n{k}" for k in range(count + 4 * bool(types & NNR_CPT_BN))]
    return ndu(names, dims, kind=kind, unary=draw(st.sampled_from([None, 0, 3, 40])), **elements)


@given(header=headers(), seed=st.integers(0, 2**32), max_unit_size=st.none() | st.integers(40, 4000))
def test_any_levels_under_any_header_come_back(
    header: NnrCompressedDataUnitHeader, seed: int, max_unit_size: int | None
) -> None:
    rng, stream = np.random.default_rng(seed), Bitstream().str_().mps()
    wanted, qps, sides, levels = {}, [], [], []
    for part in parts(header, stream.session):
        syntax = tensor_syntax(header, stream.session, part)
        bound = int(2 ** rng.uniform(0, 12))
        low, high = -bound, bound
        if part.codebook:
            low, high = -part.codebook.cb_zero_offset, part.codebook.codebook_size - 1 - part.codebook.cb_zero_offset
        values = rng.integers(low, high, part.dims, endpoint=True) * rng.integers(0, 2, part.dims)
        if part.codebook and header.dq_flag:
            values[:] = 0  # most indices would exceed the codebook if they were doubled
        ids = rng.integers(0, 9, 87 + 4 * (header.cabac_unary_length_minus1 + 1)).astype(np.uint8)
        skip = int(syntax.can_skip_rows and rng.random() < 0.5)
        sides.append(TensorSide(row_skip_enabled_flag=skip, shift_parameter_ids=ids))
        levels.append(values)
        qps.append(int(rng.integers(-128, 100)))
        wanted[part.role] = resolved(values, coding_order(syntax)) if header.dq_flag else values
    before = header.present()
    try:
        units = nnr.write_ndu(header, levels, stream.session, qp=qps, sides=sides, max_unit_size=max_unit_size)
    except nnr.EncodeError as refusal:
        assert "max_unit_size" in str(refusal)
        return
    assert header.present() == before
    assert max_unit_size is None or max(map(len, units)) <= max_unit_size
    for unit in units:
        stream.add(unit)
    try:
        recs = recs_of(stream.data)
    except nnr.BitstreamError as error:  # the product of step size and level is out of range of the type
        assert header.nnr_compressed_data_unit_payload_type != NNR_PT_INT
        assert any(reason in str(error) for reason in ("not a normal number", "exceeds")), error
        return
    assert [rec.role for rec in recs] == list(wanted)
    for rec in recs:
        assert rec.levels is not None
        np.testing.assert_array_equal(rec.levels.reshape(wanted[rec.role].shape), wanted[rec.role], err_msg=rec.role)


# ------------------------------------------------------------------------------------------------ accepted arguments
def test_defaults() -> None:
    """The defaults are one array, profile 1, QpDensity 2; no session is required."""
    (unit,) = nnr.write_ndu(ndu("w", [2, 3]), np.arange(6), qp=-4)
    data = Bitstream().str_().mps().add(unit).data
    np.testing.assert_array_equal(nnr.decode(data)["w"], np.arange(6).reshape(2, 3) / 2)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(), (1,), (5, 7)])
def test_raw_parameters(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).normal(0, 1, shape).astype("f4").astype(dtype)
    header = ndu("w", shape, kind=NNR_PT_RAW_FLOAT)
    units = nnr.write_ndu(header, np.asarray(values), max_unit_size=60)
    got = nnr.decode(b"".join([Bitstream().str_().mps().data, *units]))["w"]
    np.testing.assert_array_equal(got, values.astype("f4"))


def test_g_and_h_in_two_units() -> None:
    stream = Bitstream().str_().mps()
    ids = {"compressed_parameter_types": NNR_CPT_DC, "decomposition_rank": 2, "g_number_of_rows": 20, "scan_order": 1}
    rng = np.random.default_rng(2)
    g, h = rng.integers(-9, 9, (20, 2)), rng.integers(-9, 9, (2, 15))
    for name, levels in (("w", g), ("w_H", h)):
        for unit in nnr.write_ndu(ndu(name, [20, 3, 5], **ids), levels, stream.session, max_unit_size=50):
            stream.add(unit)
    np.testing.assert_array_equal(nnr.decode(stream.data)["w"], (g @ h).reshape(20, 3, 5))


def test_references_of_updates() -> None:
    """coLocParam and AnySigBeforeFlag are the values that a decoder has at the unit."""
    rng = np.random.default_rng(3)
    first, second = rng.integers(-3, 4, (2, 9, 8))
    decoder = nnr.UpdateDecoder()
    opening = Bitstream().str_().mps(parent=1)
    updates = [(first, {}), (second, {"co_loc": [first.astype(np.int32)], "any_sig": [first != 0]})]
    for depth, (levels, references) in enumerate(updates, 1):
        header = update_ndu("w", [9, 8], depth, temporal_context_modeling_flag=1)
        side = TensorSide(hist_dep_sig_prob_enabled_flag=1)
        units = nnr.write_ndu(header, levels, opening.session, sides=[side], **references)  # type: ignore[arg-type]
        np.testing.assert_array_equal(decoder.decode(b"".join([opening.data, *units]))["w"], levels)


def test_indexed_references() -> None:
    stream = Bitstream().str_().mps(indexed=1).reference_list("a", "b")
    (unit,) = nnr.write_ndu(ndu(1, [2], kind=NNR_PT_INT), np.array([3, -4]), stream.session)
    assert nnr.decode(stream.add(unit).data, allow_missing=True)["b"].tolist() == [3, -4]


# ------------------------------------------------------------------------------------------------ QuantParam
@pytest.mark.parametrize("scan_order", [0, 1])
def test_decoded_levels_can_be_written_again(scan_order: int) -> None:
    """The levels are levels of decoders, after dependent quantization is resolved."""
    rng = np.random.default_rng(4)
    header = ndu("w", [19, 11], dq_flag=1, scan_order=scan_order)
    (unit,) = nnr.write_ndu(header, rng.integers(-20, 20, (19, 11)))
    (rec,) = recs_of(Bitstream().str_().mps().add(unit).data)
    assert rec.levels is not None
    assert nnr.write_ndu(header, rec.levels, resolved=True) == [unit]


@given(st.lists(st.tuples(*[st.integers(-(2**30), 2**30)] * 3), min_size=1, max_size=20), st.integers(0, 2))
def test_coded_levels(levels: list[tuple[int, int, int]], scan_order: int) -> None:
    coded = np.array(levels)
    stream = Bitstream().str_().mps()
    header = ndu("w", coded.shape, dq_flag=1, scan_order=scan_order)
    syntax = tensor_syntax(header, stream.session, parts(header, stream.session)[0])
    np.testing.assert_array_equal(coded_levels(resolved(coded, coding_order(syntax)), syntax), coded)


@pytest.mark.parametrize("scan_order", range(5))
def test_coding_order(scan_order: int) -> None:
    edge = 4 << scan_order
    for h in (1, 2, 7, 8, 9, 17, 33, 65):
        for rest in ((), (1,), (2,), (5, 2), (9,), (17,), (4, 2, 5), (65,)):
            w, expected = prod(rest), list(range(prod(rest) * h))
            if scan_order:
                expected = [y * w + x for x, y in (index_to_xy(w, h, i, edge) for i in expected)]
            assert coding_order(TensorSyntax((h, *rest), scan_order=scan_order)).tolist() == expected


def test_what_no_state_reaches_is_refused() -> None:
    with pytest.raises(nnr.EncodeError, match="QuantParam 1 of parameter 0 cannot be reached in state 0"):
        nnr.write_ndu(ndu("w", [3], dq_flag=1), np.array([1, 0, 0]), resolved=True)
    with pytest.raises(nnr.EncodeError, match="allowed here are"):
        nnr.write_ndu(ndu("w", [1], dq_flag=1), np.array([1 << 33]), resolved=True)
    with pytest.raises(nnr.EncodeError, match="float64 is not an integer"):
        nnr.write_ndu(ndu("w", [1], dq_flag=1), np.array([2.0]), resolved=True)


# ------------------------------------------------------------------------------------------------ sizes
@pytest.mark.parametrize("max_unit_size", [40, 1000, 32_766, 32_767, 32_768, 32_769, 32_770, 32_771, 70_000])
def test_units_are_as_large_as_allowed(max_unit_size: int) -> None:
    for size in (1, 100, 32_700, 32_767 - 20, 40_000, 200_000):
        assert_units_are_as_large_as_allowed(size, max_unit_size)


def assert_units_are_as_large_as_allowed(size: int, max_unit_size: int) -> None:
    """Check that no unit is smaller than necessary, also near the sizes with four bytes of nnr_unit_size."""
    header, payload = ndu("w", [size], kind=NNR_PT_RAW_FLOAT), bytes(size)
    session = Session(general_profile_idc=1)
    overhead = len(write_payload(header, b"", session)[0]) - 2
    try:
        units = write_payload(header, payload, session, max_unit_size=max_unit_size)
    except nnr.EncodeError as refusal:
        assert "255 units" in str(refusal)
        assert 255 * (max_unit_size - 2 - overhead - 1) < size
        return
    assert max(map(len, units)) <= max_unit_size
    if len(units) > 1:
        one_less = [size * k // (len(units) - 1) for k in range(len(units))]
        largest = max(b - a for a, b in pairwise(one_less)) + overhead + (1 if len(units) > 2 else 0)
        assert largest + (2 if largest + 2 < 1 << 15 else 4) > max_unit_size
    joined = list(UnitReader(Bitstream().str_().mps().data + b"".join(units)))[2:]
    assert b"".join(bytes(cast(memoryview, unit.payload)) for unit in joined) == payload
    counters = [unit.header.partial_data_counter for unit in joined]
    assert counters == (list(range(len(units), 0, -1)) if len(units) > 1 else [0])
    assert {unit.header.independently_decodable_flag for unit in joined} == {int(len(units) == 1)}


@pytest.mark.parametrize("max_unit_size", [1, 5, 20, 35])
def test_no_room_for_a_header(max_unit_size: int) -> None:
    with pytest.raises(nnr.EncodeError, match=rf"'w' has .* max_unit_size={max_unit_size} can hold \(6.4.3.1\)"):
        nnr.write_ndu(ndu("w", [40, 40], kind=NNR_PT_RAW_FLOAT), np.ones((40, 40)), max_unit_size=max_unit_size)


# ------------------------------------------------------------------------------------------------ rejected input
@pytest.mark.parametrize(
    ("header", "levels", "options", "message"),
    [
        (ndu("w", [2]), [[1, 2], [3]], {}, "levels are given for 2 of the 1 tensors"),
        (ndu("w", [2]), [[1, 2]], {"qp": [1, 2]}, "qp are given for 2 of the 1"),
        (ndu("w", [2]), [[1, 2]], {"qp": []}, "qp are given for 0 of the 1"),
        (ndu("w", [2]), [[1, 2]], {"sides": [None, None]}, "sides are given for 2"),
        (ndu("w", [2]), [[1, 2, 3]], {}, r"levels of shape \(3,\) are given for weight of shape \(2,\)"),
        (ndu("w", [2, 3]), [np.zeros((3, 2), int)], {}, r"levels of shape \(3, 2\)"),
        (ndu("w", [2]), [[1.5, 2]], {}, "not integers"),
        (ndu("w", [2]), [[2**31, 0]], {}, "allowed here are"),
        (ndu("w", [2], dq_flag=1), [[2**30 + 1, 0]], {}, "allowed here are"),
        (ndu("w", [2]), [[1, 2]], {"qp": 128}, "qp_value 128"),
        (ndu("w", [0]), [np.zeros(0, int)], {}, r"\(0,\)"),
        (ndu("w", [2, 2], scan_order=5), [np.ones((2, 2), int)], {}, "scan_order"),
        (ndu("w", [2], scan_order=1), [[1, 2]], {}, "scan_order"),
        (ndu("w", [2], codebook_present_flag=1), [[1, 2]], {}, "codebook"),
        (ndu(0, [2]), [[1, 2]], {}, "reference list"),
        (ndu("w", None), [[1, 2]], {}, "dimensions of 'w'"),
        (ndu("w", [2], kind=NNR_PT_RAW_FLOAT), [[1, 2]], {}, "raw parameters must be floats"),
        (ndu(["w", "b"], [2], kind=NNR_PT_BLOCK), [[1, 2]], {}, "2 topology elements are listed for the 1"),
        (ndu("w", [2], node_id_present_flag=1), [[1, 2]], {}, "device_id"),
        (ndu("w", [2], kind=NNR_PT_RAW_FLOAT), [[1e39, 2]], {}, "exceed the range of float32"),
        (ndu("w", [2]), [[1, 2]], {"pieces": 256}, "partial_data_counter"),
        (ndu("w", [2]), [[1, 2]], {"pieces": 0}, "pieces must be at least 1, got 0"),
        (ndu("w", [2]), [[1, 2]], {"pieces": -1}, "pieces must be at least 1, got -1"),
        (ndu("w", [2]), [[1, 2]], {"co_loc": [np.zeros(3, np.int32)]}, "another number"),
    ],
)
def test_refusals(header: NnrCompressedDataUnitHeader, levels: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.write_ndu(header, [np.asarray(level) for level in levels], **options)


def test_rows_of_blocks_are_coded_by_what_the_caller_gives() -> None:
    levels = np.random.default_rng(1).integers(-9, 10, (300, 1000)).astype(np.int32)
    header, calls = ndu("w", levels.shape, kind=NNR_PT_INT, scan_order=1, dq_flag=1), list[int]()

    def run(function: Any, groups: Any) -> Any:
        calls.extend(groups)
        return [function(k) for k in calls[::-1]][::-1]

    assert nnr.write_ndu(header, levels, run=run) == nnr.write_ndu(header, levels)
    assert calls == [0, 1, 2]


def test_headers_that_differ_in_the_id_alone_are_written_as_any_other() -> None:
    names, payload = ("a", "weight.0", "größe", "x" * 300), b"\x12\x34"
    for profile, parent, dims, dq_flag in [(0, 0, [3], 0), (1, 0, [3], 0), (1, 0, [4, 5], 1), (1, 1, [1, 2, 3], 0)]:
        for name in names:
            elements: dict[str, Any] = {"parent_node_id_present_flag": 0} if parent else {}
            header = NnrCompressedDataUnitHeader(
                nnr_compressed_data_unit_payload_type=NNR_PT_FLOAT,
                topology_elem_id=name,
                input_parameters_present_flag=1,
                tensor_dimensions_flag=1,
                tensor_dimensions=dims,
                dq_flag=dq_flag,
                **elements,
            )
            session = Session(general_profile_idc=profile, mps_parent_signalling_enabled_flag=parent)
            assert write_payload(header, payload, session) == [write_unit(ndu_header(header), payload, session)]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", 7])
def test_an_id_that_is_no_text_is_refused(name: Any) -> None:
    header = NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=NNR_PT_FLOAT,
        topology_elem_id=name,
        input_parameters_present_flag=1,
        tensor_dimensions_flag=1,
        tensor_dimensions=[3],
    )
    with pytest.raises(nnr.EncodeError):
        write_payload(header, b"", Session(general_profile_idc=1))
