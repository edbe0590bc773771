"""The compiled kernel against the plain implementation of clause 10, and both against bitstreams of other encoders.

Bytes, parameters and the state after every bin must be equal.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.cabac_ext.kernel import PayloadDecoder, PayloadEncoder, TensorSide, scale
from nnr_codec.errors import EncodeError, PayloadError
from nnr_codec.syntax.deepcabac import ArithmeticEncoder, QuantTensor, QuantTensorSyntax, terminate
from tests.cabac import streams
from tests.cabac.pairs import (
    EDGES,
    INT32,
    Pair,
    assert_same,
    clear_rows,
    kernel_decode,
    kernel_encode,
    kernel_ids,
    kernel_levels,
    kernel_syntax,
    kernel_trace,
    level_range,
    oracle_decode,
    oracle_encode,
    random_ids,
    random_levels,
    relaxed,
    tensors,
)

from ..shared import examples

pytestmark = pytest.mark.medium


def compare(*block: Pair) -> bytes:
    """Compare all results for one payload."""
    syntaxes = [s for s, _ in block]
    payload = oracle_encode(*block)
    assert kernel_encode(*block).hex() == payload.hex()
    expected = oracle_decode(payload, syntaxes)
    assert_same(kernel_decode(payload, syntaxes), expected)
    assert_same(kernel_trace(payload, syntaxes), expected)
    return payload


# ------------------------------------------------------------------------------------------------ everything
@settings(relaxed, max_examples=examples(300))
@given(tensors())
def test_one_tensor(tensor: Pair) -> None:
    compare(tensor)


@settings(relaxed, max_examples=examples(80))
@given(st.lists(tensors((1, 2, 10)), min_size=2, max_size=4))
def test_several_tensors_in_a_payload(block: list[Pair]) -> None:
    compare(*block)


@pytest.mark.slow
@settings(relaxed, max_examples=examples(400))
@given(st.lists(tensors(), min_size=1, max_size=3))
def test_everything_at_length(block: list[Pair]) -> None:
    compare(*block)


@settings(relaxed, max_examples=examples(200))
@given(tensors(), st.floats(2.0**-40, 2.0**20), st.integers(0, 9))
def test_levels_times_a_step(tensor: Pair, step: float, missing: int) -> None:
    """One call gives the result of several; payloads may be truncated."""
    s, payload = tensor[0], oracle_encode(tensor)
    syntax, results = kernel_syntax(s), []
    for at_once in (True, False):
        out = np.empty(syntax.dims, np.float32)
        try:
            decoder = PayloadDecoder(payload[: len(payload) - missing], first_edition=s.first_edition)
            if s.qp_bits:
                decoder.quant_param(s.qp_bits)
            if at_once:
                decoder.scaled(syntax, step, out)
            else:
                scale(decoder.quant_tensor(syntax)[0].reshape(-1), step, out.reshape(-1))
            results.append((decoder.bit, out.tobytes()))
        except PayloadError as error:
            results.append((error.bit, str(error)))
    assert results[0] == results[1]


def test_a_place_for_levels_that_is_too_small() -> None:
    s, t = make(1, QuantTensorSyntax((4, 5)))
    decoder = PayloadDecoder(oracle_encode((s, t)))
    for out in (np.empty((4, 4), np.float32), np.empty((4, 5), np.float16), np.empty((4, 10), np.float32)[:, ::2]):
        with pytest.raises(ValueError, match=r"bytes of|contiguous"):
            decoder.scaled(kernel_syntax(s), 1.0, out)
    decoder.scaled(kernel_syntax(s), 1.0, np.empty((4, 5), np.float32))


# ------------------------------------------------------------------------------------------------ each thing for sure
def make(seed: int, s: QuantTensorSyntax, width: int = 6, zeros: float = 0.4, row_skip: bool = False) -> Pair:
    """Return a tensor of random levels and ids."""
    random = Random(seed)
    t = QuantTensor(random_levels(random, prod(s.dims), level_range(s), width, zeros))
    t.shift_parameter_ids = random_ids(random, s)
    if row_skip:
        t.row_skip_enabled_flag = 1
        clear_rows(s, t, [random.random() < 0.4 for _ in range(s.dims[0])])
    return s, t


@pytest.mark.parametrize("scan_order", range(5))
@pytest.mark.parametrize("dq_flag", [0, 1])
def test_block_edges(scan_order: int, dq_flag: int) -> None:
    edge = 4 << scan_order
    for height in (1, edge - 1, edge, edge + 1, 2 * edge, 2 * edge + 1):
        for width in (1, 2, 9) if scan_order > 2 else (1, edge - 1, edge, edge + 1, 2 * edge + 3):
            if height * width <= 600:
                s = QuantTensorSyntax((height, width), dq_flag=dq_flag, scan_order=scan_order)
                compare(make(height * 1000 + width, s, row_skip=bool(height & 1) and s.row_flags_present))


@pytest.mark.parametrize("first_edition", [False, True])
def test_profile_0(first_edition: bool) -> None:
    for scan_order in range(3):
        for dims in ((5,), (8, 3), (9, 3), (17, 2, 2), (1, 9), (9, 1)):
            s = QuantTensorSyntax(dims, general_profile_idc=0, scan_order=scan_order, first_edition=first_edition)
            compare(make(scan_order, s))
            compare(make(scan_order, replace(s, codebook=(5, 2), dq_flag=1), 1000))


@pytest.mark.parametrize("n", [1, 2, 10, 11, 256])
def test_codebook_limits(n: int) -> None:
    sizes = [*range(1, 13), n + 1, n + 2, n + 3, 2 * n + 2, 2 * n + 5]
    for size in sizes:
        for zero in sorted({0, 1, size // 2, size - 2, size - 1} & set(range(size))):
            s = QuantTensorSyntax((24,), cabac_unary_length_minus1=n - 1, codebook=(size, zero), dq_flag=size & 1)
            if n < 256 or size in (1, 2, 3, 4, 258, 514):
                compare(make(size, s, 2**31, 0.2))


def test_codebook_of_one_entry() -> None:
    """Only qp_value and the end are coded; the entry points still set IvlCurrRange (10.2.1.4).

    NNCodec 2.1.3 writes and reads these two payloads for a tensor of 20 x 6 equal values at qp_value -12.
    """
    t = QuantTensor([0] * 120, qp_value=-12)
    s = QuantTensorSyntax((20, 6), codebook=(1, 0), qp_bits=8)
    assert compare((s, t)) == bytes.fromhex("F4 0A 80")
    assert compare((replace(s, scan_order=1), t)) == bytes.fromhex("F3 8B 80")
    other = make(1, QuantTensorSyntax((20, 6), scan_order=1))
    for scan_order in range(5):
        for dq_flag in (0, 1):
            compare(other, (replace(s, scan_order=scan_order, dq_flag=dq_flag), t), other)


@pytest.mark.parametrize("n", [1, 2, 10, 11, 256])
def test_full_range(n: int) -> None:
    magnitudes = [1, 2, n - 1, n, n + 1, n + 2, n + 3, *(2**k + d for k in (8, 16, 30) for d in (-1, 0, 1)), 2**31 - 1]
    levels = [*magnitudes, *(-m for m in magnitudes), -(2**31), 0, -(2**31), 2**31 - 1]
    s = QuantTensorSyntax((len(levels),), cabac_unary_length_minus1=n - 1)
    compare((s, QuantTensor(levels)))
    half = [v for v in levels if abs(v) < 2**30] + [-(2**30), 2**30 - 1, -(2**30), -(2**30) + 1]
    compare((replace(s, dims=(len(half),), dq_flag=1), QuantTensor(half)))


def test_largest_level_of_dependent_quantization() -> None:
    """2^30 is valid if stateId is odd: QuantParam is 2^31 - 1 there, and 2^31 elsewhere."""
    s = QuantTensorSyntax((3,), dq_flag=1)
    levels = [1, 0, 2**30]  # in states 0, 2, 1
    payload = compare((s, QuantTensor(levels)))
    assert kernel_decode(payload, [s]).params == [[2, 0, 2**31 - 1]]


@pytest.mark.parametrize("levels", [[2**30], [0, 0, 2**30], [1, 2**30], [0, 2**30, 0]])
def test_dependent_level_that_no_decoder_accepts(levels: list[int]) -> None:
    s = QuantTensorSyntax((len(levels),), dq_flag=1)
    with pytest.raises(EncodeError):
        oracle_encode((s, QuantTensor(levels)))
    with pytest.raises(EncodeError):
        kernel_encode((s, QuantTensor(levels)))


@pytest.mark.parametrize("dq_flag", [0, 1])
@pytest.mark.parametrize("n", [1, 2, 11])
@pytest.mark.parametrize("profile", [0, 1])
def test_temporal_contexts(dq_flag: int, n: int, profile: int) -> None:
    random = Random(n)
    for width in (1, 3, 14, 2**31 - 1):
        s = QuantTensorSyntax(
            (13, 7),
            dq_flag=dq_flag,
            general_profile_idc=profile,
            cabac_unary_length_minus1=n - 1,
            parent_node_id_present_flag=1,
            temporal_context_modeling_flag=1,
            co_loc=random_levels(random, 91, INT32, width, 0.3),
        )
        compare(make(width, s, 16))
        compare(make(width, replace(s, codebook=(13, 4)), 16))
        compare(make(width, replace(s, codebook=(7, 6), scan_order=1), 16))
        compare(make(width, replace(s, co_loc=None), 16))
        compare(make(width, replace(s, any_sig_before=[random.getrandbits(1) for _ in range(91)]), 16))


@pytest.mark.parametrize("dq_flag", [0, 1])
def test_history_contexts(dq_flag: int) -> None:
    random = Random(3)
    for dims in ((13, 7), (4, 3, 5), (40, 2)):
        size = prod(dims)
        s = QuantTensorSyntax(
            dims,
            dq_flag=dq_flag,
            parent_node_id_present_flag=1,
            temporal_context_modeling_flag=size & 1,
            co_loc=random_levels(random, size, INT32, 3, 0.3) if size & 1 else None,
            any_sig_before=[random.getrandbits(1) for _ in range(size)],
        )
        for scan_order in (0, 1):
            for row_skip in (False, True):
                pair = make(size, replace(s, scan_order=scan_order), row_skip=row_skip)
                for flag in (0, 1):
                    pair[1].hist_dep_sig_prob_enabled_flag = flag
                    compare(pair)
                compare((replace(pair[0], any_sig_before=None), pair[1]))


def test_references_without_their_flag_are_not_used() -> None:
    """co_loc counts only with temporal_context_modeling_flag (10.3.4.2.2)."""
    random = Random(5)
    s = QuantTensorSyntax((6, 5), parent_node_id_present_flag=1, co_loc=[random.randint(-3, 3) for _ in range(30)])
    compare(make(5, s))


def test_skipped_rows() -> None:
    for dq_flag in (0, 1):
        for scan_order in (0, 1, 2):
            for dims in ((9, 2), (17, 3), (30, 5), (8, 9), (2, 61), (33, 2, 7)):
                s = QuantTensorSyntax(dims, dq_flag=dq_flag, scan_order=scan_order)
                compare(make(prod(dims), s, row_skip=True))
    all_zero = QuantTensor([0] * 20, row_skip_enabled_flag=1, row_skip_list=[1] * 10)
    compare((QuantTensorSyntax((10, 2)), all_zero))


def test_rows_of_zeros_that_are_not_skipped() -> None:
    """Another encoder may code them; the kernel's encoder does not."""
    s = QuantTensorSyntax((6, 4), dq_flag=1, scan_order=1)
    t = QuantTensor([k % 5 - 2 for k in range(24)], row_skip_enabled_flag=1)
    clear_rows(s, t, [True, False, True, True, False, True])
    assert t.row_skip_list == [1, 0, 1, 1, 0, 1]
    t.row_skip_list = [0, 0, 1, 0, 0, 1]
    payload = oracle_encode((s, t))
    expected = oracle_decode(payload, [s])
    assert_same(kernel_decode(payload, [s]), expected)
    assert_same(kernel_trace(payload, [s]), expected)


@pytest.mark.parametrize("size", [4095, 4096, 4097, 8193])
def test_lengths_about_a_piece(size: int) -> None:
    """The kernel processes pieces of 4096 parameters."""
    for dims in ((size,), (1, size), (3, size // 3)):
        compare(make(size, QuantTensorSyntax(dims, dq_flag=size & 1), 2, 0.8))


@pytest.mark.parametrize("odd", [1, 3, 5, 171])
def test_carries(odd: int) -> None:
    """A carry propagates through many written bytes.

    Bypass bins keep IvlCurrRange at 510, so the code string of the bins of a number is 510 times the number. The
    smallest number whose string reaches odd * 2^n has prefixes whose strings all end in ones, until its last bin
    carries.
    """
    for n in range(60, 400, 7):
        number = -(-odd * 2**n // 510)
        bits = (number.bit_length() + 7) // 8 * 8
        values = [byte - 256 * (byte > 127) for byte in number.to_bytes(bits // 8, "big")]
        kernel, plain = PayloadEncoder(), ArithmeticEncoder()
        for value in values:
            kernel.quant_param(8, value)
            plain.iae(8, value)
        kernel.terminate()
        terminate(plain)
        payload = kernel.getvalue()
        assert payload == plain.finish()
        d = PayloadDecoder(payload)
        assert [d.quant_param(8) for _ in values] == values
        d.terminate()


def test_large_remainders() -> None:
    """Many bypass bins begin at all positions of the register."""
    for value in (2**31 - 1, 2**30, 2**30 + 1, 3 << 29):
        for n in (1, 100):
            compare((QuantTensorSyntax((n,), cabac_unary_length_minus1=0), QuantTensor([value] * n)))
    s = QuantTensorSyntax((16,), cabac_unary_length_minus1=0, qp_bits=13)
    for seed in range(10):
        random, block = Random(seed), []
        for _ in range(4):
            levels = [random.choice((2**31 - 1, 2**30 + 1, -(2**31))) for _ in range(16)]
            block.append((s, QuantTensor(levels, qp_value=random.choice((-1, 0, 4095, -4096)))))
        compare(*block)


@pytest.mark.parametrize(("value", "bits"), [(-38, 8), (-32, 6), (31, 6), (-4096, 13), (4095, 13), (0, 7)])
def test_qp_value_alone(value: int, bits: int) -> None:
    c = PayloadEncoder()
    assert c.quant_param(bits, value) == value
    c.terminate()
    d = PayloadDecoder(c.getvalue())
    assert d.quant_param(bits) == value
    d.terminate()
    if (value, bits) == (-38, 8):
        assert c.getvalue() == bytes.fromhex("DA 24 80")


def test_nothing_but_the_end() -> None:
    c = PayloadEncoder()
    c.terminate()
    assert c.getvalue() == bytes.fromhex("FE 80")
    PayloadDecoder(c.getvalue()).terminate()


def test_defaults_of_the_encoder() -> None:
    s = QuantTensorSyntax((5, 6), parent_node_id_present_flag=1)
    levels = [k % 7 - 3 for k in range(30)]
    c = PayloadEncoder()
    returned, side = c.quant_tensor(kernel_syntax(s), np.array(levels, np.int32).reshape(5, 6))
    c.terminate()
    assert returned.reshape(-1).tolist() == levels
    assert (side.hist_dep_sig_prob_enabled_flag, side.row_skip_enabled_flag, side.row_skip_list) == (0, 0, None)
    assert c.getvalue() == oracle_encode((s, QuantTensor(levels)))


def test_properties_of_the_syntax() -> None:
    for height in EDGES:
        for width in (1, 2, 9):
            for scan_order in range(5):
                s = QuantTensorSyntax((height, width), scan_order=scan_order)
                k = kernel_syntax(s)
                blocks = -(-height // (4 << scan_order)) - 1
                assert k.entry_points == (blocks if scan_order and height > 1 and width > 1 else 0)
                assert (k.dims, k.size) == (s.dims, height * width)
                assert k.can_skip_rows == s.row_flags_present
    one = kernel_syntax(QuantTensorSyntax((4, 4), codebook=(1, 0)))
    assert not one.can_skip_rows


def test_the_side_of_a_decoder_encodes_again() -> None:
    s, t = make(8, QuantTensorSyntax((19, 6), dq_flag=1, scan_order=1), row_skip=True)
    payload = kernel_encode((s, t))
    _, side = PayloadDecoder(payload).quant_tensor(kernel_syntax(s))
    c = PayloadEncoder()
    c.quant_tensor(kernel_syntax(s), kernel_levels(s, t), side)
    c.terminate()
    assert c.getvalue() == payload


def test_ids_that_are_not_sent_have_no_effect() -> None:
    s, t = make(9, QuantTensorSyntax((40,), cabac_unary_length_minus1=2, codebook=(6, 0)))
    sent = oracle_decode(oracle_encode((s, t)), [s]).ids[0]
    assert sent != kernel_ids(s, t.shift_parameter_ids).tolist()
    c = PayloadEncoder()
    c.quant_tensor(kernel_syntax(s), kernel_levels(s, t), TensorSide(shift_parameter_ids=np.array(sent, np.uint8)))
    c.terminate()
    assert c.getvalue() == kernel_encode((s, t))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dims", "scan_order"), [((1_300_000,), 0), ((1100, 1001), 0), ((1300, 900), 1), ((3, 500_000), 4)]
)
@pytest.mark.parametrize("dq_flag", [0, 1])
def test_large_tensors_round_trip(dims: tuple[int, ...], scan_order: int, dq_flag: int) -> None:
    """The tensors have more than 2^20 parameters, so coding pauses to check for signals."""
    rng = np.random.default_rng(1)
    levels = rng.geometric(0.6, dims).astype(np.int32) - 1
    levels *= rng.choice(np.array([-1, 1], np.int32), dims)
    s = QuantTensorSyntax(dims, dq_flag=dq_flag, scan_order=scan_order)
    side = TensorSide(row_skip_enabled_flag=0)
    if s.row_flags_present:
        levels[rng.random(dims[0]) < 0.3] = 0
        side = TensorSide(row_skip_enabled_flag=1)
    c = PayloadEncoder()
    c.quant_tensor(kernel_syntax(s), levels, side)
    c.terminate()
    d = PayloadDecoder(c.getvalue())
    params, got = d.quant_tensor(kernel_syntax(s))
    d.terminate()
    if not dq_flag:
        assert np.array_equal(params, levels)
    assert np.array_equal((np.abs(params) + 1) // 2 * np.sign(params) if dq_flag else params, levels)
    assert len(got.entry_points) == kernel_syntax(s).entry_points


# ------------------------------------------------------------------------------------------------ foreign bitstreams
@pytest.mark.parametrize("name", streams.names())
def test_foreign_levels(name: str) -> None:
    stored, seen, with_lists = streams.levels(name), set(), 0
    for payload in streams.payloads(name):
        expected = oracle_decode(payload.data, payload.syntaxes)
        decoded = kernel_decode(payload.data, payload.syntaxes)
        assert_same(decoded, expected)
        assert_same(kernel_trace(payload.data, payload.syntaxes), expected)
        for key, params in zip(payload.names, decoded.params, strict=True):
            assert params == stored[key].reshape(-1).tolist(), key
            seen.add(key)
        if any(decoded.entry_points):  # lists of a tensor of one column are there but not used (errata G2)
            assert [p for points in decoded.entry_points for p in points] == payload.entry_points
            with_lists += 1
        reencode(payload, decoded.params, expected.ids, expected.flags, expected.qp_values)
    assert seen == set(stored)
    assert (with_lists > 0) == ("scan" in name and name != "scan4_dq")  # no tensor in these has 64 rows


def reencode(
    payload: streams.Payload,
    params: list[list[int]],
    ids: list[list[int]],
    flags: list[tuple[int, int, list[int]]],
    qp_values: list[int],
) -> None:
    """Check that the levels after the parameters give the same payload."""
    c = PayloadEncoder()
    for s, values, ids_, (hist, row_skip, _), qp in zip(payload.syntaxes, params, ids, flags, qp_values, strict=True):
        if s.qp_bits:
            c.quant_param(s.qp_bits, qp)
        array = np.array(values, np.int64)
        if s.dq_flag:
            array = np.sign(array) * ((np.abs(array) + 1) // 2)
        c.quant_tensor(
            kernel_syntax(s),
            array.astype(np.int32).reshape(s.dims),
            TensorSide(
                hist_dep_sig_prob_enabled_flag=hist,
                row_skip_enabled_flag=row_skip,
                shift_parameter_ids=np.array(ids_, np.uint8),
            ),
        )
    c.terminate()
    assert c.getvalue() == payload.data
