"""Entry points of block scans: the lists are checked, and a range of rows can be decoded alone (6.4.3.7, 10.2.1.4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.cabac_ext.kernel import LevelReader, TensorSide
from nnr_codec.constants import NNR_CPT_BI, NNR_CPT_DC, NNR_PT_BLOCK, NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.decoder import lanes, schedule
from nnr_codec.decoder import unit as unit_module
from nnr_codec.decoder.decode import BitstreamParser
from nnr_codec.decoder.group import Group
from nnr_codec.limits import Budget, Limits
from nnr_codec.syntax.structures import NnrCompressedDataUnitHeader

from ..builder import Bitstream, codebook, ndu, update_ndu
from ..cabac.pairs import relaxed
from ..shared import examples

HEADER = "nnr_compressed_data_unit_header."


@pytest.fixture(params=[8, 1 << 18], ids=["many segments", "one segment"], autouse=True)
def _segments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set segments of a few parameters, so that the small tensors of these tests are divided like large ones."""
    monkeypatch.setattr(unit_module, "SEGMENT", request.param)


def groups(data: bytes) -> list[Group]:
    return list(BitstreamParser(UnitReader(data)).groups())


def rows(data: bytes, name: str, start: int, stop: int) -> np.ndarray:
    (group,) = (group for group in groups(data) for task in group.tasks if name in task.names)
    return group.rows(name, start, stop, budget=Budget(Limits()))


def refusals(data: bytes) -> nnr.BitstreamError:
    """Return the error of decoding with one thread, and check that several threads raise the same."""
    found = []
    for jobs in (1, 2, 4):
        with pytest.raises(nnr.BitstreamError) as caught:
            nnr.decode(data, jobs=jobs)
        found.append(caught.value)
    one, *others = found
    for other in others:
        assert type(other) is type(one)
        assert str(other) == str(one)
    return one


# ------------------------------------------------------------------------------------------------ wrong lists
def tensor(kind: int = NNR_PT_FLOAT, dq: int = 1) -> tuple[Bitstream, NnrCompressedDataUnitHeader, bytes]:
    """Return a bitstream prefix, and header and payload of a tensor of six rows of blocks."""
    header = ndu("w", [44, 7], kind=kind, scan_order=1, dq_flag=dq)
    stream = Bitstream().str_().mps()
    levels = np.random.default_rng(3).integers(-9, 10, (44, 7))
    return stream, header, stream.payload(header, [levels])


def flip(name: str, j: int) -> Callable[[NnrCompressedDataUnitHeader], None]:
    """Change one bit of an element of a list."""

    def change(header: NnrCompressedDataUnitHeader) -> None:
        values = list(getattr(header, name))
        values[j] ^= 1
        setattr(header, name, values)

    return change


def first_delta(header: NnrCompressedDataUnitHeader) -> None:
    header.bit_offset_delta1 += 1


CHANGES = {
    **{f"cabac_offset_list[{j}]": flip("cabac_offset_list", j) for j in range(5)},
    **{f"dq_state_list[{j}]": flip("dq_state_list", j) for j in range(5)},
    "bit_offset_delta1": first_delta,
    **{f"bit_offset_delta2[{j}]": flip("bit_offset_delta2", j) for j in range(4)},
}


@pytest.mark.parametrize("kind", [NNR_PT_FLOAT, NNR_PT_INT])
@pytest.mark.parametrize("path", CHANGES)
def test_each_element_is_checked(path: str, kind: int) -> None:
    stream, header, payload = tensor(kind)
    CHANGES[path](header)
    error = refusals(stream.ndu(header, payload=payload).data)
    assert type(error) is nnr.ElementError
    assert error.path == HEADER + path
    assert error.unit == "unit 2 (NNR_NDU 'w')"


def test_the_first_contradiction_is_reported() -> None:
    stream, header, payload = tensor()
    for path in ("dq_state_list[1]", "cabac_offset_list[3]", "bit_offset_delta2[2]"):
        CHANGES[path](header)
    assert refusals(stream.ndu(header, payload=payload).data).path == HEADER + "dq_state_list[1]"


def test_damage_before_a_contradiction_comes_first() -> None:
    """The payload is truncated in its third row of blocks; the list is wrong from the fourth on."""
    stream, header, payload = tensor()
    CHANGES["cabac_offset_list[3]"](header)
    end = header.bit_offset_delta1 * 2 // 8
    error = refusals(stream.ndu(header, payload=payload[:end]).data)
    assert type(error) is nnr.PayloadError
    assert "ends before" in error.message


def test_a_contradiction_comes_before_the_end() -> None:
    stream, header, payload = tensor()
    CHANGES["cabac_offset_list[3]"](header)
    assert refusals(stream.ndu(header, payload=payload + b"\0").data).path == HEADER + "cabac_offset_list[3]"


@pytest.mark.parametrize("first", [0, 1, 2**20, 2**31 - 1])
@pytest.mark.parametrize("later", [-(2**30), -1, 2**30])
def test_hostile_places_are_refused(first: int, later: int) -> None:
    """The entry points lie far outside the payload or before it; nothing is read there or looped over."""
    stream, header, payload = tensor()
    header.bit_offset_delta1, header.bit_offset_delta2 = first, [later, -later, later, 0]
    assert refusals(stream.ndu(header, payload=payload).data).path == HEADER + "bit_offset_delta1"


def test_damage_is_reported_before_levels_out_of_range() -> None:
    """The codebook ends at the fifth entry. If the payload is valid, the first level outside is reported."""
    header = ndu("w", [44, 7], scan_order=1, dq_flag=1, codebook_present_flag=1, codebook=codebook([-1, 0, 1, 2], 1))
    header.dq_flag = 1
    stream = Bitstream().str_().mps()
    levels = np.zeros((44, 7), int)
    levels[9::7, 3] = 2  # resolved: 3 or 4
    payload = stream.payload(header, [levels])
    error = refusals(stream.ndu(header, payload=payload).data)
    assert "outside the codebook of 4 entries" in error.message
    damaged = Bitstream().str_().mps().ndu(header, payload=payload + b"\0").data
    assert "follow the end" in refusals(damaged).message


def test_lists_of_raw_floats_mean_nothing() -> None:
    header = ndu("w", [20, 3], kind=NNR_PT_RAW_FLOAT, scan_order=1)
    header.cabac_offset_list, header.bit_offset_delta1, header.bit_offset_delta2 = [255, 0], 2**31 - 1, [-5]
    values = np.arange(60, dtype="f4").reshape(20, 3)
    data = Bitstream().str_().mps().ndu(header, payload=values.tobytes()).data
    np.testing.assert_array_equal(nnr.decode(data, jobs=2)["w"], values)
    np.testing.assert_array_equal(rows(data, "w", 7, 12), values[7:12])


# ------------------------------------------------------------------------------------------------ G and H
def block(rank: int, profile: int = 1) -> tuple[Bitstream, NnrCompressedDataUnitHeader, bytes]:
    """Return a block of bias, G of [80, rank] and H of [rank, 40]."""
    rng = np.random.default_rng(2)
    header = ndu(["g", "h", "bias"], [80, 8, 5], kind=NNR_PT_BLOCK, compressed_parameter_types=NNR_CPT_DC | NNR_CPT_BI)
    header.decomposition_rank, header.g_number_of_rows, header.scan_order, header.dq_flag = rank, 80, 1, 1
    stream = Bitstream().str_().mps()
    levels = [np.arange(80) - 40, rng.integers(-5, 6, (80, rank)), rng.integers(-5, 6, (rank, 40))]
    return stream, header, stream.payload(header, levels, -8)


@pytest.mark.parametrize("j", [0, 8, 9, 10])
@pytest.mark.parametrize("name", ["cabac_offset_list", "dq_state_list", "bit_offset_delta2"])
def test_lists_of_h_follow_those_of_g(j: int, name: str) -> None:
    """Of 11 entry points, 9 belong to G and 2 to H (errata G5)."""
    stream, header, payload = block(24)
    assert len(header.cabac_offset_list) == 11
    index = min(j, 9)
    flip(name, index)(header)
    assert refusals(stream.ndu(header, payload=payload).data).path == f"{HEADER}{name}[{index}]"


@pytest.mark.skipif(not unit_module.LANES, reason="the processor has no AVX2")
def test_first_of_several_errors_is_raised_whichever_piece_fails_first() -> None:
    stream, header, payload = block(24)
    for index in (1, 6):
        flip("cabac_offset_list", index)(header)
    data, found = stream.ndu(header, payload=payload).data, []
    for order in (1, -1):
        decoder = lanes.BatchDecoder(schedule._tasks(groups(data), None, first_edition=False))
        for piece in decoder.pieces()[::order]:
            piece()
        with pytest.raises(nnr.BitstreamError) as caught:
            deque(decoder.finish())
        found.append(str(caught.value))
    assert found[0] == found[1]


def test_lists_of_a_g_of_one_column_are_passed_over() -> None:
    """Rank 1: G is a column and H a row, so no list is used (errata G2), although G's entry points are present."""
    stream, header, payload = block(1)
    assert len(header.cabac_offset_list) == 9
    header.cabac_offset_list, header.bit_offset_delta1 = [200] * 9, 77
    assert set(nnr.decode(stream.ndu(header, payload=payload).data, jobs=2)) == {"g", "bias"}


def test_h_has_entry_points_where_g_has_none_that_count() -> None:
    """In separate units, each has its own list."""
    rng = np.random.default_rng(1)
    ids = {"compressed_parameter_types": NNR_CPT_DC, "decomposition_rank": 20, "g_number_of_rows": 4, "scan_order": 1}
    g, h = ndu("w", [4, 40], **ids), ndu("w", [4, 40], **ids)
    stream = Bitstream().str_().mps().ndu(g, rng.integers(-3, 4, (4, 20)))
    payload = stream.payload(h, [rng.integers(-3, 4, (20, 40))])
    assert (len(g.cabac_offset_list), len(h.cabac_offset_list)) == (0, 2)
    good = Bitstream().str_().mps().ndu(g, rng.integers(-3, 4, (4, 20))).ndu(h, payload=payload).data
    assert nnr.decode(good, jobs=2)["w"].shape == (4, 40)
    flip("cabac_offset_list", 1)(h)
    error = refusals(stream.ndu(h, payload=payload).data)
    assert (error.path, error.unit) == (f"{HEADER}cabac_offset_list[1]", "unit 3 (NNR_NDU 'w')")


# ------------------------------------------------------------------------------------------------ rows
@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Record the number of levels that each call requests from the kernel."""
    counts: list[int] = []
    target = unit_module._Target
    original = target.segment

    def segment(self: Any, row: int, reader: LevelReader, *more: Any) -> None:
        counts.append(min(row + self.segments.step, self._stop) - row)
        original(self, row, reader, *more)

    def small(self: Any, k: int) -> Any:
        counts.append(self._task.parts[k].dims[0])
        return of_one_segment(self, k)

    of_one_segment = unit_module.UnitDecoder._small
    monkeypatch.setattr(target, "segment", segment)
    monkeypatch.setattr(unit_module.UnitDecoder, "_small", small)
    return counts


@pytest.mark.medium
@settings(relaxed, max_examples=examples(100))
@given(st.data())
def test_rows_of_any_tensor(data: st.DataObject) -> None:
    """The rows equal the rows of the whole tensor."""
    dims = data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 9, 17, 40]), min_size=2, max_size=4))
    dims = dims if prod(dims) < 2000 else dims[:2]
    shift = data.draw(st.integers(0, len(dims) - 1))
    kind = data.draw(st.sampled_from([NNR_PT_FLOAT, NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_RAW_FLOAT]))
    header = ndu("w", dims, kind=kind, scan_order=data.draw(st.integers(0, 3)), first_tensor_dimension_shift=shift)
    stream = Bitstream().str_().mps()
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    levels = rng.integers(-3, 4, dims)
    levels[rng.random(dims[0]) < 0.3] = 0
    if kind == NNR_PT_RAW_FLOAT:
        header.scan_order = 0
        stream.raw(header, levels)
    else:
        header.dq_flag = data.draw(st.integers(0, 1))
        if kind == NNR_PT_FLOAT and not header.dq_flag and data.draw(st.booleans()):
            header.codebook_present_flag, header.codebook = 1, codebook([-9, -5, -1, 0, 2, 3, 7], 3)
        skip = dims[0] > 1 and prod(dims) > dims[0] and data.draw(st.booleans())
        stream.ndu(header, levels, qp=-3, sides=[TensorSide(row_skip_enabled_flag=int(skip))])
    whole = nnr.decode(stream.data, jobs=data.draw(st.sampled_from([1, 3])))["w"]
    start = data.draw(st.integers(0, dims[0]))
    stop = data.draw(st.integers(start, dims[0]))
    got = rows(stream.data, "w", start, stop)
    np.testing.assert_array_equal(got, np.take(whole, range(start, stop), axis=shift))
    assert got.dtype == whole.dtype


def test_rows_of_a_column() -> None:
    """Its lists are not used (errata G2), so it is decoded from its beginning."""
    data = Bitstream().str_().mps().ndu(ndu("w", [40, 1], scan_order=1, dq_flag=1), np.arange(40) - 20).data
    np.testing.assert_array_equal(rows(data, "w", 9, 12), nnr.decode(data)["w"][9:12])


@pytest.mark.parametrize(
    ("start", "stop", "decoded"),
    [(0, 1, 8), (7, 8, 8), (7, 9, 16), (16, 24, 8), (43, 44, 4), (40, 44, 4), (9, 10, 8), (0, 44, 44), (5, 5, 0)],
)
def test_only_the_rows_of_blocks_that_hold_them_are_decoded(
    start: int, stop: int, decoded: int, read: list[int]
) -> None:
    stream, header, payload = tensor()
    data = stream.ndu(header, payload=payload).data
    got = rows(data, "w", start, stop)
    assert sum(read) == decoded
    np.testing.assert_array_equal(got, nnr.decode(data)["w"][start:stop])


def test_rows_look_at_the_entry_points_around_them_only() -> None:
    stream, header, payload = tensor()
    good = Bitstream().str_().mps().ndu(header, payload=payload).data
    flip("dq_state_list", 2)(header)
    data = stream.ndu(header, payload=payload).data
    np.testing.assert_array_equal(rows(data, "w", 0, 16), rows(good, "w", 0, 16))
    np.testing.assert_array_equal(rows(data, "w", 32, 44), rows(good, "w", 32, 44))
    with pytest.raises(nnr.ElementError, match=r"dq_state_list\[2\]"):
        rows(data, "w", 20, 21)


def test_rows_outside_the_payload_are_refused() -> None:
    stream, header, payload = tensor()
    header.bit_offset_delta1 = 8 * len(payload)
    data = stream.ndu(header, payload=payload).data
    with pytest.raises(nnr.ElementError, match="bit_offset_delta1: the entry point lies outside the payload") as caught:
        rows(data, "w", 8, 16)
    assert caught.value.unit == "unit 2 (NNR_NDU 'w')"


def test_the_last_rows_see_the_end_of_the_payload() -> None:
    stream, header, payload = tensor()
    data = stream.ndu(header, payload=payload + b"\0").data
    assert rows(data, "w", 0, 8).shape == (8, 7)
    with pytest.raises(nnr.PayloadError, match="1 bytes follow"):
        rows(data, "w", 40, 41)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 45), (45, 45)])
def test_rows_that_are_not_there(start: int, stop: int) -> None:
    stream, header, payload = tensor()
    with pytest.raises(IndexError, match=rf"'w' of shape .* has no rows {start} to {stop}"):
        rows(stream.ndu(header, payload=payload).data, "w", start, stop)


def test_rows_of_scalars() -> None:
    data = Bitstream().str_().mps().raw(ndu("w", [], kind=NNR_PT_RAW_FLOAT), [1.5]).data
    with pytest.raises(IndexError, match=r"'w' of shape .* has no rows"):
        rows(data, "w", 0, 0)


def test_rows_of_tensors_that_are_decoded_whole() -> None:
    """Blocks, decomposed and split tensors, and updates have the same rows, along the same axis."""
    stream, header, payload = block(24)
    data = stream.ndu(header, payload=payload).data
    whole = nnr.decode(data)
    np.testing.assert_array_equal(rows(data, "g", 5, 20), whole["g"][5:20])
    np.testing.assert_array_equal(rows(data, "bias", 5, 20), whole["bias"][5:20])

    mapping = {"concatentation_axis_index": 1, "split_index": [3], "number_of_shifts": [0, 0]}
    split = ndu(["a", "b"], [20, 7], kind=NNR_PT_INT, scan_order=1, **mapping)
    data = Bitstream().str_().mps().ndu(split, np.arange(140)).data
    np.testing.assert_array_equal(rows(data, "b", 5, 20), nnr.decode(data)["b"][5:20])

    update = update_ndu("w", [20, 7], 1, scan_order=1)
    data = Bitstream().str_().mps(parent=1).ndu(update, np.arange(140)).data
    np.testing.assert_array_equal(rows(data, "w", 5, 20), nnr.decode(data)["w"][5:20])
