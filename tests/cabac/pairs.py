"""The compiled kernel and the plain implementation, with one description of a tensor for both.

A tensor is a pair (QuantTensorSyntax, QuantTensor) of the plain implementation; the functions here pass it to either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random

import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from nnr_codec.cabac_ext.kernel import (
    PayloadDecoder,
    PayloadEncoder,
    PayloadEstimator,
    PayloadTracer,
    TensorSide,
    TensorSyntax,
)
from nnr_codec.syntax.deepcabac import (
    ArithmeticDecoder,
    ArithmeticEncoder,
    Bin,
    QuantTensor,
    QuantTensorSyntax,
    quant_tensor,
    terminate,
)

Pair = tuple[QuantTensorSyntax, QuantTensor]
Ints = npt.NDArray[np.int64]

#: Settings that do not depend on the load of the machine.
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

#: The number of the first context of each element in TensorSide and in PayloadTracer.bins.
BASE = {
    "sig_flag": 0,
    "sign_flag": 48,
    "abs_level_greater_x2": 53,
    "row_skip_list": 85,
    "shift_idx_minus_1_present_flag": 86,
    "abs_level_greater_x": 87,
}
BYPASS, TERMINATE = -1, -2


# ------------------------------------------------------------------------------------------------ translation
def kernel_syntax(s: QuantTensorSyntax) -> TensorSyntax:
    """Return the same headers for the kernel."""
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
        co_loc=None if s.co_loc is None else np.array(s.co_loc, np.int32).reshape(s.dims),
        any_sig=None if s.any_sig_before is None else np.array(s.any_sig_before, np.uint8).reshape(s.dims),
    )


def context_count(s: QuantTensorSyntax) -> int:
    """Return the number of entries of TensorSide.shift_parameter_ids."""
    return BASE["abs_level_greater_x"] + 4 * (s.cabac_unary_length_minus1 + 1)


def kernel_ids(s: QuantTensorSyntax, ids: dict[str, list[int]]) -> npt.NDArray[np.uint8]:
    """Return shift parameter ids in the kernel's layout."""
    flat = np.zeros(context_count(s), np.uint8)
    for element, values in ids.items():
        flat[BASE[element] : BASE[element] + len(values)] = values
    return flat


def kernel_side(s: QuantTensorSyntax, t: QuantTensor) -> TensorSide:
    """Return the inputs of an encoder besides the levels."""
    return TensorSide(
        hist_dep_sig_prob_enabled_flag=t.hist_dep_sig_prob_enabled_flag,
        row_skip_enabled_flag=t.row_skip_enabled_flag,
        shift_parameter_ids=kernel_ids(s, t.shift_parameter_ids),
    )


def kernel_levels(s: QuantTensorSyntax, t: QuantTensor) -> npt.NDArray[np.int32]:
    """Return the levels as an array."""
    return np.array(t.levels, np.int32).reshape(s.dims)


# ------------------------------------------------------------------------------------------------ coding
@dataclass
class Decoded:
    """Decoded payload: each tensor, the number of bits read after it, and the bins if they were traced."""

    qp_values: list[int] = field(default_factory=list)
    params: list[list[int]] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)
    flags: list[tuple[int, int, list[int]]] = field(default_factory=list)
    entry_points: list[list[tuple[int, int, int]]] = field(default_factory=list)
    bits: list[int] = field(default_factory=list)
    bins: Ints | None = None


def oracle_encode(*tensors: Pair) -> bytes:
    """Encode one payload with the plain implementation."""
    c = ArithmeticEncoder()
    for s, t in tensors:
        quant_tensor(c, s, t)
    terminate(c)
    return c.finish()


def oracle_decode(payload: bytes, syntaxes: Sequence[QuantTensorSyntax], trace: bool = True) -> Decoded:
    """Decode a payload completely with the plain implementation."""
    bins: list[Bin] = []
    c, out = ArithmeticDecoder(payload, bins.append if trace else None), Decoded()
    for s in syntaxes:
        t = quant_tensor(c, s)
        out.qp_values.append(t.qp_value)
        out.params.append(t.quant_param)
        out.ids.append(kernel_ids(s, t.shift_parameter_ids).tolist())
        out.flags.append((t.hist_dep_sig_prob_enabled_flag, t.row_skip_enabled_flag, t.row_skip_list))
        states = t.dq_state_list or [0] * len(t.cabac_offset_list)
        out.entry_points.append(list(zip(t.cabac_offset_list, states, t.bit_offset_list, strict=True)))
        out.bits.append(c.bit_pointer)
    terminate(c)
    out.bins = np.array([(context_number(b), *b[2:]) for b in bins], np.int64).reshape(-1, 6)
    return out


def context_number(b: Bin) -> int:
    """Return the kernel's number for the context of a bin."""
    if b.ctx_inc >= 0:
        return BASE[b.element] + b.ctx_inc
    return TERMINATE if b.element == "terminating_one_bit" else BYPASS


def kernel_encode(*tensors: Pair) -> bytes:
    """Encode one payload with the kernel."""
    c = PayloadEncoder()
    feed(c, *tensors)
    return c.getvalue()


def kernel_estimate(*tensors: Pair) -> float:
    """Return the size in bits by the kernel's estimator."""
    c = PayloadEstimator()
    feed(c, *tensors)
    return c.bits


def feed(c: PayloadEncoder | PayloadEstimator, *tensors: Pair) -> None:
    """Code tensors and the end."""
    for s, t in tensors:
        if s.qp_bits:
            c.quant_param(s.qp_bits, t.qp_value)
        c.quant_tensor(kernel_syntax(s), kernel_levels(s, t), kernel_side(s, t))
    c.terminate()


def kernel_decode(payload: bytes, syntaxes: Sequence[QuantTensorSyntax]) -> Decoded:
    """Decode a payload completely with the kernel's decoder."""
    c, out = PayloadDecoder(payload), Decoded()
    for s in syntaxes:
        _take(c, s, out)
        out.bits.append(c.bit)
    c.terminate()
    return out


def kernel_trace(payload: bytes, syntaxes: Sequence[QuantTensorSyntax]) -> Decoded:
    """Return the bins of a payload, and its parameters, from the kernel's tracer."""
    c, out = PayloadTracer(payload), Decoded()
    for s in syntaxes:
        _take(c, s, out)
    c.terminate()
    out.bins = c.bins().astype(np.int64)
    return out


def _take(c: PayloadDecoder | PayloadTracer, s: QuantTensorSyntax, out: Decoded) -> None:
    out.qp_values.append(c.quant_param(s.qp_bits) if s.qp_bits else 0)
    params, side = c.quant_tensor(kernel_syntax(s))
    assert params.shape == s.dims
    assert params.dtype == np.int32
    out.params.append(params.reshape(-1).tolist())
    assert side.shift_parameter_ids is not None
    out.ids.append(side.shift_parameter_ids.tolist())
    rows = [] if side.row_skip_list is None else side.row_skip_list.tolist()
    out.flags.append((int(side.hist_dep_sig_prob_enabled_flag), int(side.row_skip_enabled_flag), rows))
    out.entry_points.append(list(side.entry_points))


def assert_same(got: Decoded, expected: Decoded) -> None:
    """Compare all items of `got`."""
    assert got.qp_values == expected.qp_values
    assert got.params == expected.params
    assert got.ids == expected.ids
    assert got.flags == expected.flags
    if got.bits:
        assert got.bits == expected.bits
        assert got.entry_points == expected.entry_points
    if got.bins is not None and expected.bins is not None:
        n = min(len(got.bins), len(expected.bins))
        differing = np.flatnonzero((got.bins[:n] != expected.bins[:n]).any(axis=1))
        assert not len(differing), (
            f"bin {differing[0]} of {n}: (context, bin, IvlCurrRange, IvlOffset, pStateIdx0, pStateIdx1) = "
            f"{got.bins[differing[0]]}, expected {expected.bins[differing[0]]}"
        )
        assert len(got.bins) == len(expected.bins)


# ------------------------------------------------------------------------------------------------ random tensors
EDGES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65)  # near the edges of blocks
MAX_SIZE = 300
INT32 = (-(2**31), 2**31 - 1)


@st.composite
def dimensions(draw: st.DrawFn) -> tuple[int, ...]:
    """Draw dimensions from 1-D to 4-D, including [1, n] and [n, 1]."""
    shape = draw(st.sampled_from(["any", "any", "any", "row", "column", "rank 2"]))
    extent = st.sampled_from(EDGES)
    if shape == "row":
        return (*[1] * draw(st.integers(1, 3)), draw(st.integers(1, MAX_SIZE)))
    if shape == "column":
        return (draw(st.integers(1, MAX_SIZE)), *[1] * draw(st.integers(0, 3)))
    height = draw(extent)
    if shape == "rank 2":
        return height, draw(st.sampled_from([e for e in EDGES if height * e <= MAX_SIZE * 4]))
    dims = [height]
    for _ in range(draw(st.integers(0, 3))):
        dims.append(draw(st.sampled_from([e for e in EDGES if prod(dims) * e <= MAX_SIZE] or [1])))
    return tuple(dims)


@st.composite
def codebooks(draw: st.DrawFn) -> tuple[int, int]:
    """Draw CbSize and CbZeroOffset; one-sided codebooks are frequent."""
    size = draw(st.one_of(st.integers(1, 12), st.sampled_from([20, 33, 300, 2**31 + 5])))
    return size, draw(st.one_of(st.sampled_from([0, size - 1, size // 2]), st.integers(0, size - 1)))


def level_range(s: QuantTensorSyntax) -> tuple[int, int]:
    """Return the smallest and the largest level that are valid everywhere in the tensor."""
    low, high = (-(2**30), 2**30 - 1) if s.dq_flag else (-(2**31), 2**31 - 1)
    if s.codebook is not None and s.general_profile_idc == 1:
        low, high = max(low, -s.codebook[1]), min(high, s.codebook[0] - 1 - s.codebook[1])
    return low, high


def random_levels(random: Random, size: int, bounds: tuple[int, int], width: int, zeros: float) -> list[int]:
    """Return levels within bounds and width, some of them extreme, with a share of zeros."""
    low_w, high_w = max(bounds[0], -width), min(bounds[1], width)
    out = []
    for _ in range(size):
        r = random.random()
        if r < zeros:
            out.append(0)
        elif r > 0.97:
            out.append(random.choice((low_w, high_w)))
        elif width > 1000 and random.random() < 0.7:  # magnitudes spread over the orders, not only large ones
            value = random.getrandbits(random.randint(1, width.bit_length())) * random.choice((-1, 1))
            out.append(min(max(value, low_w), high_w))
        else:
            out.append(random.randint(low_w, high_w))
    return out


@st.composite
def tensors(draw: st.DrawFn, unary_lengths: tuple[int, ...] = (1, 2, 10, 11, 256)) -> Pair:
    """Draw a tensor with its syntax; exactly the rows of zeros are marked as skipped."""
    dims = draw(dimensions())
    size, bit = prod(dims), st.integers(0, 1)
    random = Random(draw(st.integers(0, 2**32 - 1)))
    profile = draw(st.sampled_from([0, 1, 1]))
    parent = draw(bit)
    temporal = parent and draw(bit)
    co_loc = any_sig = None
    if temporal and draw(st.integers(0, 3)):
        width = draw(st.sampled_from([1, 2, 5, 12, 2**31 - 1]))
        co_loc = random_levels(random, size, INT32, width, 0.4)
    if parent and draw(st.integers(0, 3)):
        any_sig = [random.getrandbits(1) for _ in range(size)]
    s = QuantTensorSyntax(
        dims,
        dq_flag=draw(bit),
        general_profile_idc=profile,
        cabac_unary_length_minus1=draw(st.sampled_from(unary_lengths)) - 1,
        scan_order=draw(st.integers(0, 4)),
        codebook=draw(st.none() | codebooks()),
        parent_node_id_present_flag=parent,
        temporal_context_modeling_flag=temporal,
        co_loc=co_loc,
        any_sig_before=any_sig,
        qp_bits=draw(st.sampled_from([0, 6, 8, 13])),
        first_edition=profile == 0 and draw(st.booleans()),
    )
    width = draw(st.sampled_from([0, 1, 2, 5, 12, 40, 1000, 2**20, 2**31]))
    t = QuantTensor(random_levels(random, size, level_range(s), width, draw(st.sampled_from([0.0, 0.5, 0.95]))))
    if s.qp_bits:
        t.qp_value = draw(st.integers(-(1 << (s.qp_bits - 1)), (1 << (s.qp_bits - 1)) - 1))
    if s.row_flags_present:
        t.hist_dep_sig_prob_enabled_flag = parent and draw(bit)
        t.row_skip_enabled_flag = draw(bit)
        if t.row_skip_enabled_flag:
            clear_rows(s, t, [random.random() < 0.4 for _ in range(dims[0])])
    if draw(bit):
        t.shift_parameter_ids = random_ids(random, s)
    return s, t


def clear_rows(s: QuantTensorSyntax, t: QuantTensor, rows: Sequence[bool]) -> None:
    """Set these rows to zero, and mark the rows of zeros as skipped."""
    levels = np.array(t.levels, np.int64).reshape(s.tensor_2d_height, s.tensor_2d_width)
    levels[np.array(rows)] = 0
    t.levels = levels.reshape(-1).tolist()
    t.row_skip_list = (~levels.any(axis=1)).astype(int).tolist()


def random_ids(random: Random, s: QuantTensorSyntax) -> dict[str, list[int]]:
    """Draw shift parameter ids, also for contexts whose id is not sent."""
    n = s.cabac_unary_length_minus1 + 1
    counts = {"sig_flag": 48, "sign_flag": 5, "abs_level_greater_x": 4 * n, "abs_level_greater_x2": 32}
    share = random.choice((0.1, 0.5, 1.0))
    return {
        name: [random.randint(0, 8) if random.random() < share else 0 for _ in range(k)] for name, k in counts.items()
    }
