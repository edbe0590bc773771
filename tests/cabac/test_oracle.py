"""The plain implementation of clause 10 against numbers and binarizations derived by hand, and against itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.errors import EncodeError, PayloadError
from nnr_codec.syntax.deepcabac import (
    CTX_PARAMETER_LIST,
    RLPS_TABLE,
    STATE_TRANS_TAB,
    TRANSITION_TABLE,
    ArithmeticDecoder,
    ArithmeticEncoder,
    Bin,
    Context,
    QuantTensor,
    QuantTensorSyntax,
    _QuantTensor,
    index_to_xy,
    quant_tensor,
    terminate,
)

from ..shared import examples

pytestmark = pytest.mark.medium


def encode(*tensors: tuple[QuantTensorSyntax, QuantTensor]) -> tuple[bytes, list[QuantTensor], list[Bin]]:
    """Return one payload with these tensors, the coded tensors, and its bins."""
    bins: list[Bin] = []
    c = ArithmeticEncoder(bins.append)
    coded = [quant_tensor(c, s, t) for s, t in tensors]
    terminate(c)
    return c.finish(), coded, bins


def decode(payload: bytes, *syntaxes: QuantTensorSyntax) -> tuple[list[QuantTensor], list[Bin]]:
    """Return the tensors of one payload, and its bins."""
    bins: list[Bin] = []
    c = ArithmeticDecoder(payload, bins.append)
    decoded = [quant_tensor(c, s) for s in syntaxes]
    terminate(c)
    return decoded, bins


def bins_of(s: QuantTensorSyntax, t: QuantTensor, *elements: str) -> list[tuple[str, int, int]]:
    """Return (element, ctxInc, bin) of the bins of these elements, by default of the level elements."""
    wanted = elements or ("sig_flag", "sign_flag", "abs_level_greater_x", "abs_level_greater_x2", "abs_remainder")
    return [b[:3] for b in encode((s, t))[2] if b.element in wanted]


def text(bins: list[tuple[str, int, int]]) -> str:
    """Return bins in short form: G, E and r for abs_level_greater_x, abs_level_greater_x2, abs_remainder; sg and sn."""
    short = {"sig_flag": "sg", "sign_flag": "sn", "abs_level_greater_x": "G", "abs_level_greater_x2": "E"}
    return " ".join(f"{short.get(name, 'r')}{ctx if ctx >= 0 else ''}={value}" for name, ctx, value in bins)


# --------------------------------------------------------------------------- tables and the engine, 10.3


def test_tables() -> None:
    assert (len(RLPS_TABLE), sum(RLPS_TABLE)) == (256, 11348)
    assert (len(TRANSITION_TABLE), sum(TRANSITION_TABLE)) == (32, 17600)
    assert TRANSITION_TABLE[15:] == (80, *[64] * 15, 0)
    assert (len(CTX_PARAMETER_LIST), *(sum(c) for c in zip(*CTX_PARAMETER_LIST, strict=True))) == (9, 15, 45, 188, 3011)
    for row in range(8):
        values = RLPS_TABLE[32 * row : 32 * row + 32]
        assert all(a >= b for a, b in pairwise(values))
        # A range of at least 256 + 32 * row leaves at least 128 for the more probable symbol: one shift at most.
        assert values[0] <= 128 + 32 * row // 2


def test_states_stay_inside_the_tables() -> None:
    reached0, reached1 = 0, 0
    for shift0, shift1, p0, p1 in CTX_PARAMETER_LIST:
        for start, which, shift in ((p0, "p_state_idx0", shift0), (p1, "p_state_idx1", shift1)):
            todo, seen = [start], {start}
            while todo:
                state = todo.pop()
                for bin_val in (0, 1):
                    context = Context("", 0)
                    context.shift0, context.shift1 = (shift, 4) if which == "p_state_idx0" else (1, shift)
                    context.p_state_idx0 = context.p_state_idx1 = 0
                    setattr(context, which, state)
                    context.transition(bin_val)
                    new = getattr(context, which)
                    if new not in seen:
                        seen.add(new)
                        todo.append(new)
            largest = max(map(abs, seen))
            if which == "p_state_idx0":
                reached0 = max(reached0, largest)
            else:
                reached1 = max(reached1, largest)
    assert (reached0, reached1) == (123, 1923)
    assert (16 * reached0 + reached1) >> 7 <= 31


def test_lps_range_shifts_before_the_absolute_value() -> None:
    context = Context("", 0)
    assert (context.val_mps, context.ivl_lps_range(510)) == (1, 228)
    context.p_state_idx1 = -1
    assert (context.val_mps, context.ivl_lps_range(510)) == (0, 200)
    context.p_state_idx1 = 127
    assert (context.val_mps, context.ivl_lps_range(256)) == (1, 128)
    context.p_state_idx1 = 128
    assert (context.val_mps, context.ivl_lps_range(256)) == (1, 112)


def test_first_transitions() -> None:
    context = Context("", 0)  # shift0 = 1, shift1 = 4
    context.transition(1)  # index 16: 64
    assert (context.p_state_idx0, context.p_state_idx1) == (64 >> 5, 64 >> 4) == (2, 4)
    context.transition(0)  # sign * pStateIdx is negative, index 15: 80
    assert (context.p_state_idx0, context.p_state_idx1) == (2 - (80 >> 5), 4 - (80 >> 4)) == (0, -1)


def test_check_strings() -> None:
    c = ArithmeticEncoder()
    terminate(c)
    assert c.finish() == bytes.fromhex("FE 80")
    c = ArithmeticEncoder()
    assert c.iae(8, -38) == -38
    terminate(c)
    assert c.finish() == bytes.fromhex("DA 24 80")
    d = ArithmeticDecoder(bytes.fromhex("DA 24 80"))
    assert d.iae(8, 0) == -38
    terminate(d)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2**31 - 1)), max_size=60), st.integers(0, 8))
def test_engine_round_trip(symbols: list[tuple[int, int]], set_id: int) -> None:
    def run(c: ArithmeticDecoder | ArithmeticEncoder) -> list[int]:
        contexts = [Context("", 0), Context("", 1)]
        contexts[1].init(set_id)
        out = []
        for kind, value in symbols:
            if kind < 2:
                out.append(c.ae(contexts[kind], value & 1))
            elif kind == 2:
                out.append(c.uae(value % 32, value & ((1 << value % 32) - 1)))
            elif kind == 3:
                out.append(c.iae(13, value % 8192 - 4096))
            else:
                out.append(c.at(0))
                c.set_ivl_curr_range_256()
        terminate(c)
        return out

    encoder = ArithmeticEncoder()
    coded = run(encoder)
    assert run(ArithmeticDecoder(encoder.finish())) == coded


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("", "ends after 0 bytes"),
        ("FE", "ends after 1 bytes"),
        ("FF 00", "IvlOffset is 510"),
        ("FF 80", "IvlOffset is 511"),
        ("FE 00", "the last bit in IvlOffset"),
        ("FE C0", "nesting_zero_bit is 1"),
        ("FE 80 00", "1 bytes follow"),
        ("00 00 00", "terminating_one_bit is 0"),
    ],
)
def test_engine_violations(payload: str, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        terminate(ArithmeticDecoder(bytes.fromhex(payload)))


def test_offset_beyond_the_range_of_an_entry_point() -> None:
    d = ArithmeticDecoder(bytes.fromhex("FE 80"))
    with pytest.raises(PayloadError, match="not less than 256"):
        d.set_ivl_curr_range_256()


def test_every_truncation_is_noticed() -> None:
    s = QuantTensorSyntax((4, 5), cabac_unary_length_minus1=0)
    payload, _, _ = encode((s, QuantTensor([k * k - 50 for k in range(20)])))
    for size in range(len(payload)):
        with pytest.raises(PayloadError):
            decode(payload[:size], s)


def test_what_cannot_be_encoded() -> None:
    c = ArithmeticEncoder()
    for call in (
        lambda: c.uae(3, 8),
        lambda: c.uae(3, -1),
        lambda: c.iae(8, 128),
        lambda: c.ae(Context("", 0), 2),
        c.finish,
    ):
        with pytest.raises(EncodeError):
            call()


# --------------------------------------------------------------------------- binarization, 10.2.1.5


@pytest.mark.parametrize(
    ("n", "levels", "expected"),
    [
        (1, [0], "sg0=0"),
        (1, [1], "sg0=1 sn0=0 G0=0"),
        (1, [-1], "sg0=1 sn0=1 G1=0"),
        (1, [2], "sg0=1 sn0=0 G0=1 E0=0"),
        (1, [-5], "sg0=1 sn0=1 G1=1 E0=1 E1=1 E2=0 r=0 r=0"),
        (1, [8], "sg0=1 sn0=0 G0=1 E0=1 E1=1 E2=0 r=1 r=1"),
        (2, [3], "sg0=1 sn0=0 G0=1 G2=1 E0=0"),
        (2, [4], "sg0=1 sn0=0 G0=1 G2=1 E0=1 E1=0 r=0"),
        (2, [-5], "sg0=1 sn0=1 G1=1 G3=1 E0=1 E1=0 r=1"),
        (4, [3], "sg0=1 sn0=0 G0=1 G2=1 G4=0"),
        # Contexts after a negative, a positive and a zero level.
        (1, [-1, 1, 0, 1], "sg0=1 sn0=1 G1=0 sg1=1 sn1=0 G0=0 sg2=0 sg0=1 sn0=0 G0=0"),
    ],
)
def test_binarization(n: int, levels: list[int], expected: str) -> None:
    s = QuantTensorSyntax((len(levels),), cabac_unary_length_minus1=n - 1)
    assert text(bins_of(s, QuantTensor(levels))) == expected


@pytest.mark.parametrize("n", [1, 2, 4, 11, 256])
def test_exp_golomb_part(n: int) -> None:
    magnitudes = [*range(1, 40), 255, 256, 257, 258, 300, 2**20, 2**31 - 2, 2**31 - 1]
    levels = [*magnitudes, *(-m for m in magnitudes), -(2**31)]
    s = QuantTensorSyntax((len(levels),), cabac_unary_length_minus1=n - 1)
    payload, coded, bins = encode((s, QuantTensor(levels)))
    assert coded[0].quant_param == levels
    assert decode(payload, s)[0][0].levels == levels
    it = iter([b for b in bins if b.element in ("sig_flag", "sign_flag") or b.element.startswith("abs_")])
    for level in levels:
        got = [next(it).bin, next(it).bin]
        expected = [1, int(level < 0)]
        expected += [1] * min(abs(level) - 1, n) + [0] * (abs(level) <= n)
        r = abs(level) - (n + 1)
        if r >= 0:
            k = (r + 1).bit_length() - 1  # 2^k - 1 <= r < 2^(k+1) - 1
            expected += [1] * k + [0] + [int(b) for b in f"{r - (2**k - 1):0{k}b}"[: k or 0]]
        got += [next(it).bin for _ in expected[2:]]
        assert got == expected, level
    assert next(it, None) is None


@pytest.mark.parametrize(
    ("codebook", "n", "levels", "expected"),
    [
        ((3, 1), 2, [1, -1, 0], "sg0=1 sn0=0 sg2=1 sn2=1 sg1=0"),
        ((4, 0), 2, [3, 2, 1], "sg0=1 G0=1 G2=1 sg2=1 G0=1 G2=0 sg2=1 G0=0"),
        ((4, 3), 2, [-3, -1], "sg0=1 G1=1 G3=1 sg1=1 G1=0"),
        ((2, 0), 2, [1, 0], "sg0=1 sg2=0"),
        ((21, 10), 2, [10], "sg0=1 sn0=0 G0=1 G2=1 E0=1 E1=1 E2=1 r=0 r=0 r=0"),
        ((9, 4), 2, [4], "sg0=1 sn0=0 G0=1 G2=1 E0=1 r=0"),  # 4 + 2 is unreachable, so E1 is not coded
        ((9, 5), 2, [-5, 3], "sg0=1 sn0=1 G1=1 G3=1 E0=1 r=1 sg1=1 sn1=0 G0=1 G2=1"),  # 5 below zero, 3 above
    ],
)
def test_codebook_limits_levels(codebook: tuple[int, int], n: int, levels: list[int], expected: str) -> None:
    s = QuantTensorSyntax((len(levels),), cabac_unary_length_minus1=n - 1, codebook=codebook)
    assert text(bins_of(s, QuantTensor(levels))) == expected
    payload, _, _ = encode((s, QuantTensor(levels)))
    assert decode(payload, s)[0][0].levels == levels
    with pytest.raises(EncodeError):
        encode((s, QuantTensor([codebook[0] - codebook[1], *levels[1:]])))
    # Profile 0 codes levels as without a codebook.
    s0 = replace(s, general_profile_idc=0)
    assert bins_of(s0, QuantTensor(levels)) == bins_of(replace(s0, codebook=None), QuantTensor(levels))


def test_codebook_of_one_value_has_no_bins_but_qp() -> None:
    s = QuantTensorSyntax((3, 4), codebook=(1, 0), qp_bits=8, parent_node_id_present_flag=1)
    payload, coded, _ = encode((s, QuantTensor([0] * 12, qp_value=-38)))
    assert payload == bytes.fromhex("DA 24 80")
    assert decode(payload, s)[0] == coded


def test_level_beyond_32_bits() -> None:
    n = 1
    c = ArithmeticEncoder()
    flags = Context("shift_idx_minus_1_present_flag", 0)
    for _ in range(3 + 3 + 2 * n + 31):
        c.ae(flags, 0)
    for bin_val in (1, 0, 1, *[1] * 31):  # each the first bin of its context
        c.ae(Context("", 0), bin_val)
    c.uae(31, 0)
    terminate(c)
    with pytest.raises(PayloadError, match=r"QuantParam\[0\] = 2147483649 "):
        decode(c.finish(), QuantTensorSyntax((1,), cabac_unary_length_minus1=0))
    with pytest.raises(EncodeError):
        encode((QuantTensorSyntax((1,), dq_flag=1), QuantTensor([2**30])))
    assert encode((QuantTensorSyntax((1,), dq_flag=1), QuantTensor([-(2**30)])))[1][0].quant_param == [-(2**31)]


# --------------------------------------------------------------------------- quant_tensor( ), 10.2.1.4


def test_dependent_quantization() -> None:
    levels = [1, 1, -1, 2, 0, 3, 0]  # in states 0, 2, 3, 4, 2, 1, 5
    s = QuantTensorSyntax((7,), dq_flag=1)
    payload, coded, _ = encode((s, QuantTensor(levels)))
    assert coded[0].quant_param == [2, 2, -1, 4, 0, 5, 0]
    assert [ctx for _, ctx, _ in bins_of(s, QuantTensor(levels), "sig_flag")] == [0, 8, 11, 13, 8, 3, 17]
    assert decode(payload, s)[0] == coded
    assert [sorted(t) for t in zip(*STATE_TRANS_TAB, strict=True)] == [list(range(8))] * 2


def test_skipped_rows_advance_the_state() -> None:
    s = QuantTensorSyntax((3, 2), dq_flag=1)
    t = QuantTensor([1, 0, 0, 0, 1, 0], row_skip_enabled_flag=1, row_skip_list=[0, 1, 0])
    payload, coded, _ = encode((s, t))
    assert coded[0].quant_param == [2, 0, 0, 0, 2, 0]  # state 4; without the skipped two it is 1
    assert len(bins_of(s, t, "sig_flag")) == 4
    assert decode(payload, s)[0] == coded
    with pytest.raises(EncodeError, match="levels"):
        encode((s, replace(t, row_skip_list=[1, 0, 0])))
    with pytest.raises(EncodeError, match="2 entries for 3 rows"):
        encode((s, replace(t, row_skip_list=[0, 1])))


def test_neighbour_is_the_level_coded_before() -> None:
    # Across row ends and skipped rows, not the one to the left.
    s = QuantTensorSyntax((3, 2))
    t = QuantTensor([0, -1, 0, 0, 0, 0], row_skip_enabled_flag=1, row_skip_list=[0, 1, 0])
    assert [ctx for _, ctx, _ in bins_of(s, t, "sig_flag")] == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ["row_skip_enabled_flag"]),
        ({"parent_node_id_present_flag": 1}, ["hist_dep_sig_prob_enabled_flag", "row_skip_enabled_flag"]),
        ({"general_profile_idc": 0}, []),
        ({"dims": (6,)}, []),
        ({"dims": (6, 1, 1)}, []),
        ({"dims": (1, 6)}, []),
        ({"codebook": (1, 0)}, []),
        ({"codebook": (2, 0)}, ["row_skip_enabled_flag"]),
    ],
)
def test_presence_of_the_flags(change: dict[str, object], expected: list[str]) -> None:
    s = replace(QuantTensorSyntax((2, 3)), **change)  # type: ignore[arg-type]
    t = QuantTensor([0] * 6)
    flags = ("hist_dep_sig_prob_enabled_flag", "row_skip_enabled_flag", "row_skip_list")
    assert [name for name, _, _ in bins_of(s, t, *flags)] == expected
    if flags[0] not in expected:
        with pytest.raises(EncodeError, match=flags[0]):
            encode((s, replace(t, hist_dep_sig_prob_enabled_flag=1)))
    if flags[1] not in expected:
        with pytest.raises(EncodeError, match=flags[1]):
            encode((s, replace(t, row_skip_enabled_flag=1, row_skip_list=[0] * s.dims[0])))


def test_order_of_the_elements() -> None:
    s = QuantTensorSyntax((2, 2), parent_node_id_present_flag=1, qp_bits=8)
    t = QuantTensor([0, 0, 1, 0], -3, 1, 1, [1, 0], {"sig_flag": [4] + [0] * 47})
    payload, coded, bins = encode((s, t))
    order = [name for k, name in enumerate(b.element for b in bins) if k == 0 or bins[k - 1].element != name]
    assert order[:7] == [
        "qp_value",
        "hist_dep_sig_prob_enabled_flag",
        "row_skip_enabled_flag",
        "row_skip_list",
        "shift_idx_minus_1_present_flag",
        "shift_idx_minus_1",
        "shift_idx_minus_1_present_flag",
    ]
    assert order[7:] == ["sig_flag", "sign_flag", "abs_level_greater_x", "sig_flag", "terminating_one_bit"]
    assert decode(payload, s)[0] == coded


# --------------------------------------------------------------------------- contexts, 10.2.1.6 and 10.3.4.2


@pytest.mark.parametrize("n", [1, 4, 11])
@pytest.mark.parametrize(
    ("change", "fixed", "per_length"),
    [
        ({}, 37, 2),
        ({"dq_flag": 1}, 58, 2),
        ({"temporal_context_modeling_flag": 1}, 37 + 2 + 2, 4),
        ({"temporal_context_modeling_flag": 1, "dq_flag": 1}, 58 + 16 + 2, 4),
        ({"general_profile_idc": 0, "first_edition": True}, 38, 2),
        ({"general_profile_idc": 0, "codebook": (1, 0)}, 37, 2),
        ({"codebook": (1, 0)}, 0, 0),
    ],
)
def test_number_of_shift_indices(n: int, change: dict[str, object], fixed: int, per_length: int) -> None:
    s = replace(QuantTensorSyntax((4,), cabac_unary_length_minus1=n - 1), **change)  # type: ignore[arg-type]
    assert len(bins_of(s, QuantTensor([0] * 4), "shift_idx_minus_1_present_flag")) == fixed + n * per_length


@pytest.mark.parametrize(
    ("codebook", "expected"),
    [
        ((2, 0), 3 + 0 + 2 + 0),  # maxAbsVal 1: one pair of abs_level_greater_x, though none is coded
        ((3, 1), 3 + 3 + 2 + 0),
        ((4, 0), 3 + 0 + 6 + 0),
        ((9, 4), 3 + 3 + 6 + 1),  # maxAbsVal 4 is more than N = 3 = currX2Level for i = 0
        ((11, 5), 3 + 3 + 6 + 1),
        ((13, 6), 3 + 3 + 6 + 2),  # currX2Level 2 + 1 + 2 = 5
    ],
)
def test_shift_indices_with_a_codebook(codebook: tuple[int, int], expected: int) -> None:
    s = QuantTensorSyntax((4,), cabac_unary_length_minus1=2, codebook=codebook)
    assert len(bins_of(s, QuantTensor([0] * 4), "shift_idx_minus_1_present_flag")) == expected


@pytest.mark.parametrize("dq_flag", [0, 1])
def test_order_of_the_shift_indices(dq_flag: int) -> None:
    s = QuantTensorSyntax(
        (2, 2),
        dq_flag=dq_flag,
        cabac_unary_length_minus1=1,
        parent_node_id_present_flag=1,
        temporal_context_modeling_flag=1,
    )
    sig = [*range(40), *range(40, 48)] if dq_flag else [0, 1, 2, 24, 25, 40]
    order = [("sig_flag", i) for i in sig] + [("sign_flag", i) for i in range(5)]
    order += [("abs_level_greater_x", i) for i in range(8)] + [("abs_level_greater_x2", i) for i in range(31)]
    lengths = {"sig_flag": 48, "sign_flag": 5, "abs_level_greater_x": 8, "abs_level_greater_x2": 31}
    for position, (element, index) in enumerate(order):
        ids = {element: [position % 8 + 1 if i == index else 0 for i in range(lengths[element])]}
        t = QuantTensor([0] * 4, hist_dep_sig_prob_enabled_flag=1, shift_parameter_ids=ids)
        payload, coded, _ = encode((s, t))
        flags = [b for _, _, b in bins_of(s, t, "shift_idx_minus_1_present_flag")]
        assert flags == [int(k == position) for k in range(len(order))]
        assert coded[0].shift_parameter_ids == {k: ids.get(k, [0] * v) for k, v in lengths.items()}
        assert decode(payload, s)[0] == coded
    with pytest.raises(EncodeError, match="shift_idx_minus_1"):
        encode((s, replace(t, shift_parameter_ids={"sig_flag": [9] + [0] * 47})))


@pytest.mark.parametrize("set_id", range(9))
def test_shift_index_sets_the_context(set_id: int) -> None:
    t = QuantTensor([1], shift_parameter_ids={"sig_flag": [set_id] + [0] * 47})
    _, _, bins = encode((QuantTensorSyntax((1,)), t))
    context = Context("", 0)
    context.init(set_id)
    context.transition(1)
    first = next(b for b in bins if b.element == "sig_flag")
    assert (first.p0, first.p1) == (context.p_state_idx0, context.p_state_idx1)


def test_temporal_contexts() -> None:
    s = QuantTensorSyntax(
        (6,),
        cabac_unary_length_minus1=3,
        parent_node_id_present_flag=1,
        temporal_context_modeling_flag=1,
        co_loc=[1, -1, 2, -3, 0, 0],
    )
    levels = [5, -1, 0, -5, 1, 0]
    expected = (
        "sg24=1 sn4=0 G8=1 G10=1 G13=1 G15=1 E0=0 "  # |coLoc| = 1 >= j for j = 0, 1
        "sg24=1 sn3=1 G8=0 "
        "sg25=0 "
        "sg25=1 sn3=1 G8=1 G10=1 G12=1 G14=1 E0=0 "
        "sg1=1 sn1=0 G0=0 "
        "sg2=0"
    )
    assert text(bins_of(s, QuantTensor(levels))) == expected
    dq = replace(s, dq_flag=1)
    assert [c for _, c, _ in bins_of(dq, QuantTensor(levels), "sig_flag")] == [
        24,
        28,
        31,
        37,
        4,
        17,
    ]  # 0, 2, 3, 6, 1, 5
    unused = replace(s, temporal_context_modeling_flag=0)
    assert bins_of(unused, QuantTensor(levels)) == bins_of(replace(unused, co_loc=None), QuantTensor(levels))


def test_history_contexts_come_first() -> None:
    s = QuantTensorSyntax(
        (2, 3),
        dq_flag=1,
        parent_node_id_present_flag=1,
        temporal_context_modeling_flag=1,
        co_loc=[1, 1, 0, 0, 0, 0],
        any_sig_before=[1, 0, 1, 0, 1, 1],
    )
    t = QuantTensor([1, 1, 1, 0, 0, 0], hist_dep_sig_prob_enabled_flag=1)  # in states 0, 2, 3, 4, 2, 1
    assert [c for _, c, _ in bins_of(s, t, "sig_flag")] == [40, 28, 43, 14, 42, 41]
    assert [c for _, c, _ in bins_of(s, t, "sign_flag")] == [4, 4, 2]
    off = replace(t, hist_dep_sig_prob_enabled_flag=0)
    assert bins_of(s, off) == bins_of(replace(s, any_sig_before=None), off)


# --------------------------------------------------------------------------- scan order and entry points, 4.12


@pytest.mark.parametrize("bs", [8, 16])
def test_index_to_xy(bs: int) -> None:
    for w in (1, 7, 8, 9, 16, 33):
        for h in (1, 5, 8, 17, 32):
            blocks = [(by, bx) for by in range(0, h, bs) for bx in range(0, w, bs)]
            expected = [
                (x, y) for by, bx in blocks for y in range(by, min(by + bs, h)) for x in range(bx, min(bx + bs, w))
            ]
            assert [index_to_xy(w, h, i, bs) for i in range(w * h)] == expected


def range_at_first_level(s: QuantTensorSyntax) -> int:
    # A fresh context halves 256 exactly, and renormalization gives 256 again.
    t = QuantTensor([1] * prod(s.dims))
    return next(b.ivl_curr_range for b in encode((s, t))[2] if b.element == "sig_flag")


@pytest.mark.parametrize(
    ("dims", "scan_order", "first_edition", "restricted"),
    [
        ((9, 3), 0, False, False),
        ((9, 3), 1, False, True),
        ((8, 3), 1, False, False),
        ((8, 3), 1, True, True),
        ((9, 3), 2, False, False),
        ((9, 1), 1, False, False),
        ((1, 9), 1, True, False),
    ],
)
def test_range_at_the_first_level(
    dims: tuple[int, ...], scan_order: int, first_edition: bool, restricted: bool
) -> None:
    s = QuantTensorSyntax(dims, general_profile_idc=0, scan_order=scan_order, first_edition=first_edition)
    assert (range_at_first_level(s) == 256) == restricted


@pytest.mark.parametrize("dq_flag", [0, 1])
def test_random_access_at_the_entry_points(dq_flag: int) -> None:
    s = QuantTensorSyntax((21, 3, 4), dq_flag=dq_flag, scan_order=1, cabac_unary_length_minus1=1)
    levels = [(k * k * 7 + k // 5) % 11 - 5 for k in range(21 * 12)]
    payload, coded, _ = encode((s, QuantTensor(levels)))
    pointers: list[int] = []
    c = ArithmeticDecoder(payload, lambda b: pointers.append(c.bit_pointer) if b.element.startswith("shift") else None)
    t = quant_tensor(c, s)
    terminate(c)
    assert (t.levels, t.quant_param) == (levels, coded[0].quant_param)
    assert (len(t.cabac_offset_list), len(t.bit_offset_list), len(t.dq_state_list)) == (2, 2, 2 * dq_flag)
    for j in range(2):
        d = ArithmeticDecoder(payload)
        d.bit_pointer = pointers[-1] + sum(t.bit_offset_list[: j + 1])
        d.ivl_curr_range, d.ivl_offset = 256, t.cabac_offset_list[j]
        start = 8 * (j + 1)
        rest = _QuantTensor(d, replace(s, dims=(21 - start, 12)), QuantTensor())
        rest.t.shift_parameter_ids = t.shift_parameter_ids
        rest.state_id = t.dq_state_list[j] if dq_flag else 0
        rest.quant_tensor()
        terminate(d)
        assert rest.t.quant_param == t.quant_param[start * 12 :]


def test_syntax_options_are_checked() -> None:
    for options in (
        {"dims": ()},
        {"dims": (3, 0)},
        {"codebook": (3, 3)},
        {"codebook": (0, 0)},
        {"first_edition": True},
        {"co_loc": [0] * 5},
        {"any_sig_before": [0] * 7},
    ):
        with pytest.raises(ValueError, match=r"."):
            replace(QuantTensorSyntax((2, 3)), **options)
    with pytest.raises(EncodeError, match="0 levels"):
        quant_tensor(ArithmeticEncoder(), QuantTensorSyntax((2, 3)))


# --------------------------------------------------------------------------- everything together


@st.composite
def tensors(draw: st.DrawFn) -> tuple[QuantTensorSyntax, QuantTensor]:
    """Draw a tensor with its syntax options; flags are present only where the syntax has them."""
    dims = tuple(
        draw(
            st.lists(st.sampled_from([1, 2, 3, 5, 8, 9, 17, 20]), min_size=1, max_size=3).filter(
                lambda d: prod(d) <= 400
            )
        )
    )
    size = prod(dims)
    profile = draw(st.integers(0, 1))
    bit = st.integers(0, 1)
    codebook = None
    if draw(st.integers(0, 3)) == 0:
        entries = draw(st.integers(1, 40))
        codebook = (entries, draw(st.sampled_from([0, entries - 1, entries // 2])))
    parent = draw(bit) if profile else 0
    tcm = parent and draw(bit)
    low, high = (-codebook[1], codebook[0] - 1 - codebook[1]) if codebook else (-(2**30), 2**30 - 1)
    width = draw(st.sampled_from([0, 1, 2, 9, 30, high]))
    level = st.integers(max(low, -width), min(high, width))
    any_level = st.one_of(st.just(0), level)
    s = QuantTensorSyntax(
        dims,
        dq_flag=draw(bit),
        general_profile_idc=profile,
        cabac_unary_length_minus1=draw(st.sampled_from([0, 1, 3, 9, 10])),
        scan_order=draw(st.integers(0, 4)),
        codebook=codebook,
        parent_node_id_present_flag=parent,
        temporal_context_modeling_flag=tcm,
        co_loc=draw(st.none() | st.lists(st.integers(-4, 4), min_size=size, max_size=size)),
        any_sig_before=draw(st.none() | st.lists(bit, min_size=size, max_size=size)),
        qp_bits=draw(st.sampled_from([0, 6, 8, 13])),
        first_edition=profile == 0 and draw(st.booleans()),
    )
    levels = draw(st.lists(any_level, min_size=size, max_size=size))
    t = QuantTensor(levels)
    if s.qp_bits:
        t.qp_value = draw(st.integers(-(1 << (s.qp_bits - 1)), (1 << (s.qp_bits - 1)) - 1))
    if s.row_flags_present:
        t.hist_dep_sig_prob_enabled_flag = parent and draw(bit)
        t.row_skip_enabled_flag = draw(bit)
        if t.row_skip_enabled_flag:
            t.row_skip_list = draw(st.lists(bit, min_size=dims[0], max_size=dims[0]))
            w = s.tensor_2d_width
            t.levels = [0 if t.row_skip_list[k // w] else v for k, v in enumerate(levels)]
    n = s.cabac_unary_length_minus1 + 1
    for element, count in (
        ("sig_flag", 48),
        ("sign_flag", 5),
        ("abs_level_greater_x", 4 * n),
        ("abs_level_greater_x2", 32),
    ):
        if draw(bit):
            t.shift_parameter_ids[element] = draw(st.lists(st.integers(0, 8), min_size=count, max_size=count))
    return s, t


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(tensors(), min_size=1, max_size=3))
def test_round_trip(block: list[tuple[QuantTensorSyntax, QuantTensor]]) -> None:
    payload, coded, bins = encode(*block)
    decoded, bins_read = decode(payload, *(s for s, _ in block))
    for (_, wanted), c, d in zip(block, coded, decoded, strict=True):
        assert c.levels == wanted.levels
        assert replace(d, cabac_offset_list=[], dq_state_list=[], bit_offset_list=[]) == c
        assert all(value < 256 for value in d.cabac_offset_list)
    assert [b._replace(ivl_offset=0) for b in bins_read] == bins
    assert all(256 <= b.ivl_curr_range <= 510 for b in bins[:-1])
    again, _, _ = encode(*((s, d) for (s, _), d in zip(block, decoded, strict=True)))
    assert again == payload


@settings(max_examples=examples(200), deadline=None)
@given(tensors(), st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(tensor: tuple[QuantTensorSyntax, QuantTensor], data: bytes) -> None:
    s, _ = tensor
    try:
        decoded, _ = decode(data, s)
    except PayloadError:
        return
    assert len(decoded[0].quant_param) == prod(s.dims)
