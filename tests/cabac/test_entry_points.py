"""Levels of the kernel in steps: pieces of a tensor, entry points in any order, contradictory lists."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.cabac_ext.kernel import LevelReader, PayloadDecoder, TensorSyntax
from nnr_codec.cancellation import cancelled_by
from nnr_codec.errors import BitstreamError, ElementError, PayloadError
from nnr_codec.syntax.deepcabac import QuantTensorSyntax
from tests.cabac.pairs import Decoded, Pair, kernel_syntax, oracle_decode, oracle_encode, relaxed, tensors
from tests.cabac.test_kernel_equals_oracle import make

from ..shared import examples

pytestmark = pytest.mark.medium

Lists = npt.NDArray[np.int64]
PATH = "nnr_compressed_data_unit_header."


@dataclass
class Case:
    """Payload of one tensor, and its result in the plain implementation."""

    s: QuantTensorSyntax
    payload: bytes
    expected: Decoded

    @property
    def lists(self) -> Lists:
        """The true entry points."""
        return np.array(self.expected.entry_points[0], np.int64).reshape(-1, 3)

    def syntax(self, lists: Lists | None = None, offset: int = 0) -> TensorSyntax:
        """Return the headers for the kernel, with these lists (default: the true ones) after `offset` others."""
        s, lists = self.s, self.lists if lists is None else lists
        return TensorSyntax(
            s.dims,
            general_profile_idc=s.general_profile_idc,
            dq_flag=s.dq_flag,
            cabac_unary_length_minus1=s.cabac_unary_length_minus1,
            scan_order=s.scan_order,
            codebook=s.codebook,
            parent_node_id_present_flag=s.parent_node_id_present_flag,
            temporal_context_modeling_flag=s.temporal_context_modeling_flag,
            first_edition=s.first_edition,
            co_loc=None if s.co_loc is None else np.array(s.co_loc, np.int32),
            any_sig=None if s.any_sig_before is None else np.array(s.any_sig_before, np.uint8),
            entry_point_list=np.concatenate([np.full((offset, 3), 7), lists, [[9, 0, 0]]]),
            entry_point_offset=offset,
        )

    def head(self, lists: Lists | None = None, offset: int = 0) -> LevelReader:
        """Return a reader before the first level."""
        decoder = PayloadDecoder(self.payload, first_edition=self.s.first_edition)
        if self.s.qp_bits:
            assert decoder.quant_param(self.s.qp_bits) == self.expected.qp_values[0]
        return decoder.head(self.syntax(lists, offset))

    def rows(self, start: int, stop: int) -> list[int]:
        """Return the QuantParam of some rows."""
        return self.expected.params[0][start * self.s.tensor_2d_width : stop * self.s.tensor_2d_width]


def case(pair: Pair) -> Case:
    payload = oracle_encode(pair)
    return Case(pair[0], payload, oracle_decode(payload, [pair[0]], trace=False))


def take(reader: LevelReader, n: int) -> list[int]:
    """Return the next n levels; the previous content of the array does not matter."""
    levels = np.full(n, 77, np.int32)
    reader.read(levels)
    return levels.tolist()


# ------------------------------------------------------------------------------------------------ in pieces, in order
@settings(relaxed, max_examples=examples(200))
@given(tensors((1, 2, 10)), st.randoms(use_true_random=False))
def test_pieces_in_order(pair: Pair, random: Random) -> None:
    """Pieces have any number of levels without a block scan, and any number of rows of blocks with one."""
    one = case(pair)
    reader, total, got = one.head(), prod(one.s.dims), list[int]()
    step = one.syntax().rows_together * one.s.tensor_2d_width if one.syntax().rows_together > 1 else 1
    while len(got) < total:
        got += take(reader, min(step * random.choice((1, 1, 2, 5, 100)), total - len(got)))
    assert got == one.expected.params[0]
    assert reader.decoder.bit == one.expected.bits[0]
    reader.decoder.terminate()
    side = reader.side()
    assert (side.row_skip_enabled_flag, side.hist_dep_sig_prob_enabled_flag) == one.expected.flags[0][1::-1]
    assert list(side.entry_points) == one.expected.entry_points[0]


# ------------------------------------------------------------------------------------------------ from entry points
def check_every_entry_point(one: Case, random: Random, offset: int = 0) -> None:
    """Decode each row of blocks separately, in any order; the last one reaches the end of the payload."""
    head, edge, height = one.head(offset=offset), one.syntax().rows_together, one.s.tensor_2d_height
    starts = list(range(0, height, edge))
    assert len(one.lists) == len(starts) - 1
    random.shuffle(starts)
    for start in starts:
        stop = min(start + edge * random.choice((1, 1, 2, 3)), height)
        reader = head.fork(start) if start else one.head()
        assert take(reader, (stop - start) * one.s.tensor_2d_width) == one.rows(start, stop)
        if stop == height:
            assert reader.decoder.bit == one.expected.bits[0]
            reader.decoder.terminate()
    assert take(head, height * one.s.tensor_2d_width) == one.expected.params[0]  # forks do not move it


@settings(relaxed, max_examples=examples(200))
@given(tensors((1, 2, 10)).filter(lambda pair: kernel_syntax(pair[0]).entry_points), st.randoms(use_true_random=False))
def test_any_tensor(pair: Pair, random: Random) -> None:
    check_every_entry_point(case(pair), random, offset=random.randint(0, 3))


@pytest.mark.parametrize("scan_order", [1, 2, 3, 4])
@pytest.mark.parametrize("dq_flag", [0, 1])
@pytest.mark.parametrize("tool", ["plain", "row skip", "codebook", "one entry", "temporal", "history", "profile 0"])
def test_each_tool(scan_order: int, dq_flag: int, tool: str) -> None:
    edge = 4 << scan_order
    random = Random(scan_order)
    s = QuantTensorSyntax((3 * edge + 1, 2, 3), dq_flag=dq_flag, scan_order=scan_order, qp_bits=8)
    size = prod(s.dims)
    if tool == "codebook":
        s = replace(s, codebook=(9, 3))
    elif tool == "one entry":
        s = replace(s, codebook=(1, 0))
    elif tool in ("temporal", "history"):
        s = replace(s, parent_node_id_present_flag=1, any_sig_before=[random.getrandbits(1) for _ in range(size)])
        if tool == "temporal":
            co_loc = [random.randint(-2, 2) for _ in range(size)]
            s = replace(s, temporal_context_modeling_flag=1, co_loc=co_loc)
    elif tool == "profile 0":
        s = replace(s, general_profile_idc=0, first_edition=True)
    pair = make(scan_order, s, width=0 if tool == "one entry" else 6, row_skip=tool == "row skip")
    if tool == "history":
        pair[1].hist_dep_sig_prob_enabled_flag = 1
    check_every_entry_point(case(pair), random)


def test_the_side_of_a_fork_is_that_of_its_head() -> None:
    one = case(make(5, QuantTensorSyntax((65, 20), dq_flag=1, scan_order=1)))
    head = one.head()
    fork = head.fork(8)
    take(fork, len(one.rows(8, 24)))
    side, of_head = fork.side(), head.side()
    assert side.entry_points == []
    assert np.array_equal(side.shift_parameter_ids, of_head.shift_parameter_ids)  # type: ignore[arg-type]
    assert side.row_skip_enabled_flag == of_head.row_skip_enabled_flag


def test_threads_share_a_head() -> None:
    one = case(make(5, QuantTensorSyntax((65, 20), dq_flag=1, scan_order=1)))
    head, got = one.head(), dict[int, list[int]]()
    gate = threading.Barrier(9)

    def row(start: int) -> None:
        gate.wait()
        got[start] = take(head.fork(start) if start else head, len(one.rows(start, start + 8)))

    threads = [threading.Thread(target=row, args=(start,)) for start in range(0, 65, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [level for _, levels in sorted(got.items()) for level in levels] == one.expected.params[0]


# ------------------------------------------------------------------------------------------------ contradictions
ELEMENTS = [(0, "cabac_offset_list[{j}]"), (1, "dq_state_list[{j}]"), (2, "bit_offset_delta2[{i}]")]


def refusal(call: Callable[[], object]) -> tuple[type[BitstreamError], str, str]:
    with pytest.raises(BitstreamError) as caught:
        call()
    return type(caught.value), caught.value.path.removeprefix(PATH), caught.value.message


@pytest.mark.parametrize(("column", "name"), ELEMENTS)
@pytest.mark.parametrize("offset", [0, 4])
def test_each_element_is_checked(column: int, name: str, offset: int) -> None:
    """The check does not depend on how the previous row was decoded; `offset`: entry points of G before H."""
    one = case(make(3, QuantTensorSyntax((45, 7), dq_flag=1, scan_order=1)))
    for j in range(5):
        wrong = one.lists
        wrong[j, column] ^= 1
        n = offset + j
        path = "bit_offset_delta1" if column == 2 and n == 0 else name.format(j=n, i=n - 1)
        whole = refusal(lambda: take(one.head(wrong, offset), 45 * 7))  # noqa: B023
        alone = refusal(lambda: take(one.head(wrong, offset).fork(8 * j) if j else one.head(wrong, offset), 56))  # noqa: B023
        assert whole == alone
        assert whole[:2] == (ElementError, path)
        assert f" {one.lists[j, column]} at the entry point" in whole[2]
        assert f" is {wrong[j, column]} here" in whole[2]


def test_states_do_not_matter_without_dependent_quantization() -> None:
    one = case(make(3, QuantTensorSyntax((45, 7), scan_order=1)))
    lists = one.lists
    lists[:, 1] = 7
    assert take(one.head(lists), 45 * 7) == one.expected.params[0]
    assert take(one.head(lists).fork(16), 8 * 7) == one.rows(16, 24)


@pytest.mark.parametrize("dims", [(45, 1), (1, 45)])
def test_lists_of_one_row_or_column_are_not_looked_at(dims: tuple[int, ...]) -> None:
    """Such tensors are coded without blocks (errata G2)."""
    one = case(make(3, QuantTensorSyntax(dims, scan_order=1)))
    assert one.syntax().entry_points == 0
    assert take(one.head(np.full((5, 3), 3)), 45) == one.expected.params[0]
    with pytest.raises(ValueError, match="row 8 has no entry point"):
        one.head(np.full((5, 3), 3)).fork(8)


# ------------------------------------------------------------------------------------------------ hostile lists
FAR = [-1, -(2**31), -(2**60), -(2**63), 2**31, 2**40, 2**60, 2**63 - 1]


@pytest.mark.parametrize("bits", FAR)
def test_places_outside_the_payload_are_not_gone_to(bits: int) -> None:
    one = case(make(3, QuantTensorSyntax((45, 7), scan_order=1)))
    for j in range(5):
        lists = one.lists
        lists[j, 2] = bits
        for later in range(j, 5):  # positions are sums, so later ones are outside as well
            found = refusal(lambda: one.head(lists).fork(8 * later + 8))  # noqa: B023
            path = f"bit_offset_delta2[{later - 1}]" if later else "bit_offset_delta1"
            assert found == (ElementError, path, "the entry point lies outside the payload")


def test_sums_that_come_back_into_the_payload_are_no_places() -> None:
    one = case(make(3, QuantTensorSyntax((45, 7), scan_order=1)))
    for first, second in ((2**62, -(2**62)), (-8, 16), (2**63 - 1, 2**63 - 1)):
        lists = one.lists
        lists[:2, 2] = first, second
        assert refusal(lambda: one.head(lists).fork(16))[0] is ElementError  # noqa: B023


def test_the_end_of_the_payload_is_a_place() -> None:
    """Zeros are read there and counted as an overrun; one bit further is an invalid position."""
    one = case(make(3, QuantTensorSyntax((45, 7), scan_order=1), zeros=0))
    base = one.expected.bits[0] - int(one.lists[:, 2].sum())  # at least at the start of the first level
    lists = one.lists
    lists[0, 2] = 8 * len(one.payload) - one.head().decoder.bit
    assert base >= one.head().decoder.bit
    with pytest.raises(PayloadError, match="ends before"):
        take(one.head(lists).fork(8), 56)
    lists[0, 2] += 1
    assert refusal(lambda: one.head(lists).fork(8))[0] is ElementError


@settings(relaxed, max_examples=examples(100))
@given(st.data())
def test_random_lists_give_levels_or_errors(data: st.DataObject) -> None:
    one = case(make(data.draw(st.integers(0, 9)), QuantTensorSyntax((33, 5), dq_flag=1, scan_order=1)))
    bits = st.one_of(st.integers(-3, 8 * len(one.payload) + 20), st.sampled_from(FAR))
    entry = st.tuples(st.integers(0, 255), st.integers(0, 7), bits)
    lists = np.array(data.draw(st.lists(entry, min_size=4, max_size=4)), np.int64)
    head = one.head(lists)
    for row in (8, 16, 24, 32):
        try:
            levels = take(head.fork(row), 5 * min(8, 33 - row))
            assert 77 not in levels
        except BitstreamError as error:
            assert not isinstance(error, PayloadError) or 0 <= error.bit <= 8 * len(one.payload)


@pytest.mark.parametrize("lists", [[[256, 0, 0]] * 5, [[-1, 0, 0]] * 5, [[0, 8, 0]] * 5, [[0, 0, 0]] * 4, [[0, 0]] * 5])
def test_lists_that_no_header_has_are_refused(lists: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=r"."):
        TensorSyntax((45, 7), scan_order=1, entry_point_list=np.array(lists))
    with pytest.raises(ValueError, match="from 1 on"):
        TensorSyntax((45, 7), scan_order=1, entry_point_list=np.zeros((5, 3), int), entry_point_offset=1)


# ------------------------------------------------------------------------------------------------ misuse
def test_what_cannot_be_read() -> None:
    one = case(make(3, QuantTensorSyntax((45, 7), scan_order=1)))
    for n in (0, 1, 55, 57, 8 * 7 * 5 + 1, 45 * 7 + 1):
        with pytest.raises(ValueError, match=r"cannot be read|do not end"):
            take(one.head(), n)
    reader = one.head()
    take(reader, 45 * 7)
    with pytest.raises(ValueError, match="1 levels cannot be read"):
        take(reader, 1)
    for row in (-8, 0, 4, 45, 48, 2**40):
        with pytest.raises(ValueError, match=f"row {row} has no entry point"):
            one.head().fork(row)
    with pytest.raises(ValueError, match="in a list"):
        PayloadDecoder(one.payload).head(kernel_syntax(one.s)).fork(8)
    with pytest.raises(TypeError):
        one.head().read(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Buffer dtype mismatch"):
        one.head().read(np.zeros(56, np.int64))  # type: ignore[arg-type]


def test_a_reader_that_has_failed_goes_no_further() -> None:
    one = case(make(3, QuantTensorSyntax((45, 7), scan_order=1)))
    lists = one.lists
    lists[1, 0] ^= 1
    reader = one.head(lists)
    assert refusal(lambda: take(reader, 112))[0] is ElementError
    with pytest.raises(ValueError, match="cannot be read"):
        take(reader, 56)


def test_check_is_called_and_may_end_it() -> None:
    levels = np.zeros((1, 5 << 20), np.int32)
    pair = TensorSyntax((1, 5 << 20), codebook=(1, 0))  # nothing is coded, so it takes no time
    decoder = PayloadDecoder(b"\x00\x00\x00")
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), cancelled_by(check):
        decoder.head(pair).read(levels.reshape(-1))
    assert len(calls) == 3
