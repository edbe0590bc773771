"""Malicious payloads, wrong arguments and foreign arrays: the kernel raises errors, without crashes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.cabac_ext.kernel import (
    PayloadDecoder,
    PayloadEncoder,
    PayloadEstimator,
    PayloadTracer,
    TensorSide,
    TensorSyntax,
    choose_shift_parameter_ids,
)
from nnr_codec.errors import EncodeError, PayloadError
from nnr_codec.syntax.deepcabac import (
    ArithmeticDecoder,
    ArithmeticEncoder,
    Context,
    QuantTensor,
    QuantTensorSyntax,
    quant_tensor,
    terminate,
)
from tests.cabac.pairs import (
    Decoded,
    Pair,
    kernel_decode,
    kernel_encode,
    kernel_syntax,
    kernel_trace,
    oracle_decode,
    relaxed,
    tensors,
)
from tests.soon import soon

from ..shared import examples


def case(s: QuantTensorSyntax, seed: int = 1, width: int = 5) -> Pair:
    """Return a tensor of small levels."""
    random = Random(seed)
    size = s.tensor_2d_height * s.tensor_2d_width
    return s, QuantTensor([random.choice((0, random.randint(-width, width))) for _ in range(size)])


CASES = {
    "plain": case(QuantTensorSyntax((6, 5))),
    "dependent, blocks, qp": case(QuantTensorSyntax((17, 4), dq_flag=1, scan_order=1, qp_bits=8)),
    "large levels": case(QuantTensorSyntax((9,), cabac_unary_length_minus1=0), width=2**31 - 1),
    "codebook": case(QuantTensorSyntax((12, 2), codebook=(12, 5))),
    "first edition": case(QuantTensorSyntax((20, 2), general_profile_idc=0, scan_order=1, first_edition=True)),
}
each_case = pytest.mark.parametrize("name", CASES)


def checked(payload: bytes, s: QuantTensorSyntax) -> Decoded | None:
    """Decode; return None for a PayloadError, whose position must be inside the payload."""
    try:
        return kernel_decode(payload, [s])
    except PayloadError as caught:
        error = caught
    assert 0 <= error.bit <= 8 * len(payload), str(error)
    return None


def agreed(payload: bytes, s: QuantTensorSyntax) -> list[int] | None:
    """Decode with kernel and plain implementation, which must agree on errors."""
    got = checked(payload, s)
    try:
        expected = oracle_decode(payload, [s], trace=False).params[0]
    except PayloadError:
        assert got is None
        return None
    assert got is not None
    assert got.params == [expected]
    return expected


# ------------------------------------------------------------------------------------------------ payloads
@each_case
def test_every_truncation_is_an_error(name: str) -> None:
    s, t = CASES[name]
    payload = kernel_encode((s, t))
    assert agreed(payload, s) is not None
    for size in range(len(payload)):
        assert agreed(payload[:size], s) is None


@each_case
def test_overrun_to_the_bit(name: str) -> None:
    """quant_tensor detects one missing bit, without terminate, and never reports an overrun too early."""
    s, t = CASES[name]
    payload = kernel_encode((s, t))
    for size in range(2, len(payload)):
        oracle, kernel = ArithmeticDecoder(payload[:size]), PayloadDecoder(payload[:size])
        try:
            expected = quant_tensor(oracle, s).quant_param
        except PayloadError:
            with pytest.raises(PayloadError):
                _quant(kernel, s)
        else:
            assert _quant(kernel, s) == expected


def _quant(d: PayloadDecoder, s: QuantTensorSyntax) -> list[int]:
    if s.qp_bits:
        d.quant_param(s.qp_bits)
    params: list[int] = d.quant_tensor(kernel_syntax(s))[0].reshape(-1).tolist()
    return params


@each_case
def test_any_byte_changed(name: str) -> None:
    s, t = CASES[name]
    payload, random = kernel_encode((s, t)), Random(7)
    for position in range(len(payload)):
        for _ in range(4):
            changed = bytearray(payload)
            changed[position] ^= random.randint(1, 255)
            agreed(bytes(changed), s)


@each_case
def test_bytes_inserted_and_removed(name: str) -> None:
    s, t = CASES[name]
    payload, random = kernel_encode((s, t)), Random(8)
    for position in range(0, len(payload), 3):
        agreed(payload[:position] + random.randbytes(random.randint(1, 3)) + payload[position:], s)
        agreed(payload[:position] + payload[position + 1 :], s)


@settings(relaxed, max_examples=examples(200))
@given(tensors((1, 2, 10)), st.binary(max_size=80))
def test_any_bytes(tensor: Pair, payload: bytes) -> None:
    agreed(payload, tensor[0])


@pytest.mark.slow
@settings(relaxed, max_examples=examples(2000))
@given(tensors((1, 2, 10)), st.integers(0, 2**32))
def test_any_flip(tensor: Pair, seed: int) -> None:
    payload, random = bytearray(kernel_encode(tensor)), Random(seed)
    for _ in range(random.randint(1, 3)):
        payload[random.randrange(len(payload))] ^= 1 << random.randrange(8)
    agreed(bytes(payload), tensor[0])


@pytest.mark.parametrize("byte", [0x00, 0x55, 0x80, 0xFE])
def test_a_short_payload_for_a_large_tensor_ends_soon(byte: int) -> None:
    """The work is bounded by the existing bytes, not by the size in the header."""
    for s in (TensorSyntax([10**7]), TensorSyntax([3000, 3000], scan_order=4), TensorSyntax([1, 10**7], dq_flag=1)):
        decoder, _ = soon(lambda: refused(byte, s), 1)  # noqa: B023
        assert decoder.bit < 8 * 200 + 4096 * 100


def refused(byte: int, syntax: TensorSyntax) -> PayloadDecoder:
    """Return the decoder of 200 bytes that are too few for a tensor, at the position where it stopped."""
    decoder = PayloadDecoder(bytes([byte]) * 200)
    with pytest.raises(PayloadError):
        decoder.quant_tensor(syntax)
    return decoder


def decode_only(payload: bytes) -> None:
    PayloadDecoder(payload).terminate()


@pytest.mark.parametrize(
    ("payload", "message", "bit"),
    [
        ("", "ends before its last parameter", 0),
        ("FE", "ends before its last parameter", 8),
        ("FF 00", "IvlOffset has a value that no encoder produces", 9),
        ("FF FF FF", "IvlOffset has a value that no encoder produces", 9),
        ("FE 00", "the last bit read into IvlOffset is 0", 8),
        ("FE C0", "nesting_zero_bit is 1", 9),
        ("FE 81", "nesting_zero_bit is 1", 9),
        ("FE 80 00", "1 bytes follow the end", 9),
        ("FE 80 FF FF FF", "3 bytes follow the end", 9),
        ("00 00 00", "terminating_one_bit is 0", 9),
        ("FD 80 00", "terminating_one_bit is 0", 9),
    ],
)
def test_the_end_of_a_payload(payload: str, message: str, bit: int) -> None:
    with pytest.raises(PayloadError, match=message) as caught:
        decode_only(bytes.fromhex(payload))
    assert abs(caught.value.bit - bit) <= 1


@pytest.mark.parametrize("payload", ["00", "7F", "FE", "F0"])
def test_the_place_of_an_error_is_inside_the_payload(payload: str) -> None:
    data = bytes.fromhex(payload)
    with pytest.raises(PayloadError) as caught:
        decode_only(data)
    assert 0 <= caught.value.bit <= 8 * len(data)
    d = PayloadDecoder(data)
    with pytest.raises(PayloadError, match="ends before") as caught:
        d.quant_param(13)
    assert 0 <= caught.value.bit <= 8 * len(data)


def test_overrun_inside_a_tensor() -> None:
    s, t = CASES["plain"]
    payload = kernel_encode((s, t))[:-3]
    with pytest.raises(PayloadError, match=r"ends before its last parameter .*10\.2") as caught:
        PayloadDecoder(payload).quant_tensor(kernel_syntax(s))
    assert caught.value.bit == 8 * len(payload)


def test_overrun_in_the_list_of_rows() -> None:
    random = Random(1)
    for _ in range(50):
        data = bytes([random.randrange(128, 255)]) + random.randbytes(3)
        with pytest.raises(PayloadError):
            PayloadDecoder(data).quant_tensor(TensorSyntax([10**6, 2]))


class WithoutRange(ArithmeticEncoder):
    """Encoder that omits setting the range to 256 from entry point `skip` on."""

    def __init__(self, skip: int) -> None:
        super().__init__()
        self.skip, self.calls = skip, 0

    def set_ivl_curr_range_256(self) -> None:
        self.calls += 1
        if self.calls <= self.skip:
            super().set_ivl_curr_range_256()


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_invalid_offset_at_an_entry_point(skip: int) -> None:
    """The offset is invalid before the first level, or at the first or second entry point."""
    s, found = QuantTensorSyntax((24, 4), scan_order=1), 0
    for seed in range(60):
        e = WithoutRange(skip)
        quant_tensor(e, s, case(s, seed)[1])
        terminate(e)
        payload = e.finish()
        agreed(payload, s)
        try:
            kernel_decode(payload, [s])
        except PayloadError as error:
            if "IvlOffset has a value that no encoder produces" in str(error):
                found += 1
                with pytest.raises(PayloadError, match=r"IvlOffset has a value|ends before|exceeds 32 bits"):
                    kernel_trace(payload, [s])
    assert found > 10


@pytest.mark.parametrize("kind", ["skipped rows", "codebook of one entry"])
def test_invalid_offset_where_no_level_follows(kind: str) -> None:
    """An entry point is checked although no level follows it."""
    found = 0
    for seed in range(60):
        if kind == "skipped rows":
            s, t = case(QuantTensorSyntax((24, 4), scan_order=1), seed)
            t.row_skip_enabled_flag, t.row_skip_list = 1, [int(k >= 8) for k in range(24)]
            t.levels[8 * 4 :] = [0] * (16 * 4)
        else:
            s = QuantTensorSyntax((24, 4), scan_order=1, codebook=(1, 0), qp_bits=13)
            t = QuantTensor([0] * 96, qp_value=100 * seed - 3000)
        e = WithoutRange(1 if kind == "skipped rows" else 0)
        quant_tensor(e, s, t)
        terminate(e)
        found += agreed(e.finish(), s) is None
    assert found > 10


def oversized(prefix: list[int], remainder: int, n: int = 1, dq_flag: int = 0) -> bytes:
    """Return a payload of one level of the given abs_level_greater_x2 bins and remainder."""
    c = ArithmeticEncoder()
    flags = Context("shift_idx_minus_1_present_flag", 0)
    for _ in range((24 if dq_flag else 3) + 3 + 2 * n + 31):
        c.ae(flags, 0)
    for bin_val in (1, 0, *[1] * n, *prefix):  # each the first bin of its context
        c.ae(Context("", 0), bin_val)
    c.uae(len(prefix) if all(prefix) else len(prefix) - 1, remainder)
    terminate(c)
    return c.finish()


@pytest.mark.parametrize("tool", [PayloadDecoder, PayloadTracer])
def test_level_range(tool: Callable[[bytes], PayloadDecoder | PayloadTracer]) -> None:
    s = TensorSyntax([1], cabac_unary_length_minus1=0)
    largest = oversized([1] * 30 + [0], 2**30 - 1)  # 2 + (2^30 - 1) + (2^30 - 1)
    d = tool(oversized([1] * 30 + [0], 2**30 - 2))
    assert d.quant_tensor(s)[0].tolist() == [2 + 2**30 - 1 + 2**30 - 2]
    for payload in (largest, oversized([1] * 31, 0), oversized([1] * 31, 2**31 - 1)):
        with pytest.raises(PayloadError, match=r"a level exceeds 32 bits \(7\.3\.2\)"):
            tool(payload).quant_tensor(s)
    with pytest.raises(PayloadError, match="a level exceeds 32 bits"):
        tool(oversized([1] * 29 + [0], 2**29 - 1, dq_flag=1)).quant_tensor(
            TensorSyntax([1], cabac_unary_length_minus1=0, dq_flag=1)
        )


def test_errors_of_the_tracer() -> None:
    with pytest.raises(PayloadError, match="ends before"):
        PayloadTracer(b"")
    with pytest.raises(PayloadError, match="terminating_one_bit is 0"):
        PayloadTracer(bytes(3)).terminate()
    s, t = CASES["plain"]
    with pytest.raises(PayloadError, match="ends before") as caught:
        PayloadTracer(kernel_encode((s, t))[:3]).quant_tensor(kernel_syntax(s))
    assert caught.value.bit == 24
    assert PayloadTracer(b"\xfe\x80").bins().shape == (0, 6)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, np.uint8])
def test_kinds_of_buffers(kind: type) -> None:
    s, t = CASES["plain"]
    payload = kernel_encode((s, t))
    data = np.frombuffer(payload, np.uint8) if kind is np.uint8 else kind(payload)
    d = PayloadDecoder(data)
    assert d.quant_tensor(kernel_syntax(s))[0].reshape(-1).tolist() == t.levels
    d.terminate()
    assert bytes(data) == payload
    with pytest.raises((TypeError, ValueError)):
        PayloadDecoder(np.frombuffer(payload, np.uint8)[::2])


# ------------------------------------------------------------------------------------------------ headers
@pytest.mark.parametrize(
    "options",
    [
        {"dims": ()},
        {"dims": (0,)},
        {"dims": (3, 0, 2)},
        {"dims": (-1, -3)},
        {"dims": (2**28, 2**28)},
        {"dims": (2**30, 2**29)},
        {"dims": (2**40, 2**40)},
        {"cabac_unary_length_minus1": -1},
        {"cabac_unary_length_minus1": 256},
        {"scan_order": -1},
        {"scan_order": 5},
        {"codebook": (3, 3)},
        {"codebook": (0, 0)},
        {"codebook": (3, -1)},
        {"co_loc": np.zeros(5, np.int32)},
        {"co_loc": np.zeros((2, 4), np.int32)},
        {"any_sig": np.zeros(7, bool)},
    ],
)
def test_impossible_headers(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        TensorSyntax(**({"dims": (2, 3)} | options))


def test_dimensions_of_numpy() -> None:
    assert TensorSyntax((np.int64(3), np.int32(4))).size == 12
    with pytest.raises(ValueError, match="dimensions"):
        TensorSyntax((np.int64(2**32), np.int64(2**32)))


# ------------------------------------------------------------------------------------------------ wishes
USERS: list[Callable[[TensorSyntax, npt.NDArray[np.int32], TensorSide | None], object]] = [
    lambda s, v, side: PayloadEncoder().quant_tensor(s, v, side),
    lambda s, v, side: PayloadEstimator().quant_tensor(s, v, side),
    choose_shift_parameter_ids,
]
each_user = pytest.mark.parametrize("use", USERS, ids=["encode", "estimate", "choose"])
Use = Callable[[TensorSyntax, npt.NDArray[np.int32], TensorSide | None], object]


@each_user
@pytest.mark.parametrize(
    ("options", "level"),
    [
        ({"codebook": (5, 2)}, 3),
        ({"codebook": (5, 2)}, -3),
        ({"codebook": (5, 0)}, -1),
        ({"codebook": (5, 0)}, 5),
        ({"codebook": (5, 4)}, 1),
        ({"codebook": (1, 0)}, 1),
        ({"codebook": (1, 0), "dq_flag": 1}, -1),
        ({"dq_flag": 1}, 2**30 + 1),
        ({"dq_flag": 1}, -(2**30) - 1),
        ({"dq_flag": 1, "codebook": (2**32, 2**31)}, 2**30 + 1),
        ({"dq_flag": 1, "codebook": (2**32, 2**31)}, -(2**30) - 1),
    ],
)
def test_levels_out_of_range(use: Use, options: dict[str, Any], level: int) -> None:
    with pytest.raises(EncodeError, match="levels from"):
        use(TensorSyntax((1, 3), **options), np.array([0, level, 0], np.int32), None)
    use(TensorSyntax((1, 3)), np.array([0, level, 0], np.int32), None)


@each_user
def test_wrong_number_of_levels(use: Use) -> None:
    for size in (0, 1, 5, 7, 12):
        with pytest.raises(EncodeError, match=f"{size} levels are given"):
            use(TensorSyntax((2, 3)), np.zeros(size, np.int32), None)


@each_user
@pytest.mark.parametrize(
    "options",
    [{"dims": (6,)}, {"dims": (1, 6)}, {"dims": (6, 1)}, {"general_profile_idc": 0}, {"codebook": (1, 0)}],
)
def test_rows_that_cannot_be_skipped(use: Use, options: dict[str, Any]) -> None:
    s = TensorSyntax(**({"dims": (2, 3)} | options))
    assert not s.can_skip_rows
    with pytest.raises(EncodeError, match="cannot be skipped"):
        use(s, np.zeros(6, np.int32), TensorSide(row_skip_enabled_flag=1))


@each_user
@pytest.mark.parametrize(
    "options",
    [
        {},  # parent_node_id_present_flag is 0
        {"parent_node_id_present_flag": 1, "dims": (6,)},
        {"parent_node_id_present_flag": 1, "dims": (1, 6)},
        {"parent_node_id_present_flag": 1, "general_profile_idc": 0},
        {"parent_node_id_present_flag": 1, "codebook": (1, 0)},
    ],
)
def test_history_where_its_flag_has_no_place(use: Use, options: dict[str, Any]) -> None:
    s = TensorSyntax(**({"dims": (2, 3), "any_sig": np.ones(6, bool)} | options))
    with pytest.raises(EncodeError):
        use(s, np.zeros(6, np.int32), TensorSide(hist_dep_sig_prob_enabled_flag=1))


@pytest.mark.parametrize("first", [9, 200, 255, 256, -1])
def test_ids_out_of_range(first: int) -> None:
    s = TensorSyntax((6,))
    array = np.zeros(87 + 40, np.int16)
    array[0] = first
    for use in USERS[:2]:
        with pytest.raises(EncodeError):
            use(s, np.zeros(6, np.int32), TensorSide(shift_parameter_ids=array))


@pytest.mark.parametrize("size", [1, 86, 126, 128])
def test_wrong_number_of_ids(size: int) -> None:
    for use in USERS[:2]:
        with pytest.raises((EncodeError, ValueError)):
            use(TensorSyntax((6,)), np.zeros(6, np.int32), TensorSide(shift_parameter_ids=np.zeros(size, np.uint8)))
        with pytest.raises(EncodeError):
            use(TensorSyntax((6,)), np.zeros(6, np.int32), TensorSide(shift_parameter_ids=np.zeros((1, 127), np.uint8)))


@pytest.mark.parametrize(
    ("bits", "value"), [(6, 32), (6, -33), (8, 128), (8, -129), (13, 4096), (13, -4097), (8, 2**31 - 1)]
)
def test_qp_value_out_of_range(bits: int, value: int) -> None:
    c = PayloadEncoder()
    with pytest.raises(EncodeError, match=f"qp_value {value} does not fit"):
        c.quant_param(bits, value)
    c.terminate()
    assert c.getvalue() == b"\xfe\x80"


# ------------------------------------------------------------------------------------------------ arrays
Levels = npt.NDArray[np.int32]


def forms(levels: Levels) -> dict[str, npt.NDArray[Any]]:
    """Return the same levels in other arrays."""
    padded = np.full((levels.shape[0], 2 * levels.shape[1]), 77, np.int32)
    padded[:, ::2] = levels
    out: dict[str, npt.NDArray[Any]] = {
        "strided": padded[:, ::2],
        "fortran": np.asfortranarray(levels),
        "reversed": np.ascontiguousarray(levels[::-1])[::-1],
        "big endian": levels.astype(">i4"),
        "flat": levels.reshape(-1),
    }
    for dtype in (np.int8, np.int16, np.int64):
        out[np.dtype(dtype).name] = levels.astype(dtype)
    read_only = levels.copy()
    read_only.flags.writeable = False
    return out | {"read-only": read_only, "contiguous": levels}


@each_user
def test_inputs_are_never_modified(use: Use) -> None:
    levels = np.arange(-20, 22, dtype=np.int32).reshape(7, 6) % 11 - 5
    levels[2] = 0
    for dq_flag in (0, 1):
        s = TensorSyntax((7, 6), dq_flag=dq_flag, scan_order=dq_flag)
        for name, array in forms(levels).items():
            before = array.copy()
            use(s, array, TensorSide(row_skip_enabled_flag=1))
            assert np.array_equal(array, before), name
            assert array.dtype == before.dtype


def test_forms_of_the_levels_make_the_same_payload() -> None:
    levels = np.arange(42, dtype=np.int32).reshape(7, 6) % 11 - 5
    payloads = set()
    for array in forms(levels).values():
        c = PayloadEncoder()
        c.quant_tensor(TensorSyntax((7, 6)), array)
        c.terminate()
        payloads.add(c.getvalue())
    assert len(payloads) == 1


def test_references_are_never_modified() -> None:
    co_loc, any_sig = np.arange(-6, 6, dtype=np.int32), np.arange(12) % 2 == 0
    ids = np.arange(87 + 40, dtype=np.uint8) % 9
    kept = [a.copy() for a in (co_loc, any_sig, ids)]
    for a in (co_loc, any_sig, ids):
        a.flags.writeable = False
    s = TensorSyntax(
        (3, 4), parent_node_id_present_flag=1, temporal_context_modeling_flag=1, co_loc=co_loc, any_sig=any_sig
    )
    side = TensorSide(hist_dep_sig_prob_enabled_flag=1, shift_parameter_ids=ids)
    c = PayloadEncoder()
    c.quant_tensor(s, np.zeros((3, 4), np.int32), side)
    c.terminate()
    PayloadDecoder(c.getvalue()).quant_tensor(s)
    for a, b in zip((co_loc, any_sig, ids), kept, strict=True):
        assert np.array_equal(a, b)


@each_user
@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**32, 2**32 + 1, 2**62])
def test_wide_integers_are_refused_and_not_wrapped(use: Use, value: int) -> None:
    with pytest.raises((EncodeError, OverflowError)):
        use(TensorSyntax((3,)), np.array([0, value, 0], np.int64), None)
    with pytest.raises(EncodeError):
        use(TensorSyntax((3,), codebook=(2**62, 2**61)), np.array([0, value, 0], np.int64), None)


@each_user
@pytest.mark.parametrize("values", [[0.5, 1.0, 2.0], [np.nan, 0, 0], [1e20, 0, 0]])
def test_real_levels_are_refused_and_not_cut(use: Use, values: list[float]) -> None:
    with pytest.raises((EncodeError, TypeError)):
        use(TensorSyntax((3,)), np.array(values), None)


def test_wide_references_are_not_wrapped() -> None:
    with pytest.raises((ValueError, OverflowError)):
        TensorSyntax((2,), co_loc=np.array([2**32, 0]), temporal_context_modeling_flag=1)
    wide = TensorSyntax((4, 2), parent_node_id_present_flag=1, any_sig=np.full(8, 256))
    true = TensorSyntax((4, 2), parent_node_id_present_flag=1, any_sig=np.ones(8, bool))
    payloads = []
    for s in (wide, true):
        c = PayloadEncoder()
        ids = np.zeros(87 + 40, np.uint8)
        ids[40] = 5
        c.quant_tensor(
            s, np.ones((4, 2), np.int32), TensorSide(hist_dep_sig_prob_enabled_flag=1, shift_parameter_ids=ids)
        )
        c.terminate()
        payloads.append(c.getvalue())
    assert payloads[0] == payloads[1]


# ------------------------------------------------------------------------------------------------ threads and signals
@pytest.fixture(scope="module")
def long_payload() -> tuple[TensorSyntax, Levels, bytes]:
    """Return a tensor whose coding takes some tenths of a second."""
    levels = np.random.default_rng(0).integers(-40, 41, (1500, 1000)).astype(np.int32)
    s = TensorSyntax(levels.shape)
    c = PayloadEncoder()
    c.quant_tensor(s, levels)
    c.terminate()
    return s, levels, c.getvalue()


@pytest.fixture
def no_switching() -> object:
    """Prevent the interpreter from switching threads unless a thread releases the GIL itself."""
    old = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(old)


@pytest.mark.usefixtures("no_switching")
@pytest.mark.parametrize("verb", ["decode", "encode", "estimate", "choose"])
def test_the_gil_is_released(verb: str, long_payload: tuple[TensorSyntax, Levels, bytes]) -> None:
    s, levels, payload = long_payload
    gate, ran = threading.Lock(), []
    gate.acquire()

    def other() -> None:
        with gate:
            ran.append(1)

    thread = threading.Thread(target=other)
    thread.start()
    gate.release()  # from here on `other` runs as soon as the kernel releases the GIL
    if verb == "decode":
        PayloadDecoder(payload).quant_tensor(s)
    elif verb == "choose":
        choose_shift_parameter_ids(s, levels, sample=levels.size)
    else:
        (PayloadEncoder() if verb == "encode" else PayloadEstimator()).quant_tensor(s, levels)
    progress = len(ran)
    thread.join()
    assert progress == 1


@pytest.mark.usefixtures("no_switching")
def test_two_decoders_at_once(long_payload: tuple[TensorSyntax, Levels, bytes]) -> None:
    s, levels, payload = long_payload
    log, results = [], {}

    def work(k: int) -> None:
        d = PayloadDecoder(payload)
        log.append("start")
        results[k] = d.quant_tensor(s)[0]
        log.append("end")
        d.terminate()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log == ["start", "start", "end", "end"]
    assert all(np.array_equal(r, levels) for r in results.values())


INTERRUPTED = """
import _thread, signal, sys, threading, time
import numpy as np
from nnr_codec.cabac_ext.kernel import *

signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where a shell runs this in the background
levels = np.random.default_rng(0).integers(-40, 41, {dims}).astype(np.int32)
levels = np.tile(levels, ({repeat}, 1))
s = TensorSyntax(levels.shape)
e = PayloadEncoder()
e.quant_tensor(s, levels)
e.terminate()
payload = e.getvalue()
d = PayloadDecoder(payload)
begun = threading.Event()


def interrupt():
    begun.wait()
    time.sleep(0.03)
    _thread.interrupt_main()


thread = threading.Thread(target=interrupt)
thread.start()
try:
    begun.set()
    if sys.argv[1] == "decode":
        d.quant_tensor(s)
    elif sys.argv[1] == "encode":
        PayloadEncoder().quant_tensor(s, levels)
    elif sys.argv[1] == "estimate":
        PayloadEstimator().quant_tensor(s, levels)
    else:
        choose_shift_parameter_ids(s, levels, sample=levels.size)
except KeyboardInterrupt:
    print("interrupted", d.bit < 0.9 * 8 * len(payload))  # of a decoder: long before the end
else:
    print("completed")
"""


@pytest.mark.parametrize("verb", ["decode", pytest.param("encode", marks=pytest.mark.slow)])
def test_ctrl_c_is_answered(verb: str) -> None:
    code = INTERRUPTED.format(dims=(1000, 1000), repeat=5)
    out = subprocess.run([sys.executable, "-c", code, verb], capture_output=True, text=True, timeout=120, check=False)
    assert out.stdout.strip() == "interrupted True", out.stderr


@pytest.mark.slow
def test_ctrl_c_is_answered_in_one_long_row() -> None:
    code = INTERRUPTED.format(dims=(1, 5_000_000), repeat=1)
    out = subprocess.run(
        [sys.executable, "-c", code, "decode"], capture_output=True, text=True, timeout=120, check=False
    )
    assert out.stdout.strip() == "interrupted True", out.stderr
