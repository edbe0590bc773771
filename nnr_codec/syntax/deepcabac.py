"""Plain implementation of DeepCABAC: ISO/IEC 15938-17:2024, 10.2 and 10.3, one bin at a time.

It documents the printed text and is the reference for the fast implementation; it is slow. One description of the
syntax serves both directions: a :class:`BinCoder` takes the value of each syntax element and returns it. When decoding,
the value that is passed in is ignored.

Names follow the standard. If the printed text contradicts itself or existing bitstreams, a comment quotes it
after "text:", with its entry in docs/reference/errata.md. Reconstruction (codebooks, step sizes, 7.3.6) is not
part of clause 10; callers check levels against codebooks and tensor sizes against limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple, Protocol

from ..constants import STATE_TRANS_TAB
from ..errors import EncodeError, PayloadError

# 10.3.2.2: shift0, shift1, pStateIdx0, pStateIdx1; entry 0 is also the initial state of 10.3.2.3
CTX_PARAMETER_LIST = (
    (1, 4, 0, 0),
    (1, 4, -41, -654),
    (1, 4, 95, 1519),
    (0, 5, 0, 0),
    (2, 6, 30, 482),
    (2, 6, 95, 1519),
    (2, 6, -21, -337),
    (3, 5, 0, 0),
    (3, 5, 30, 482),
)

# 10.3.4.3.2.2, indices 0..31; text: two of the fifteen 64s are missing (errata B1)
TRANSITION_TABLE = (2512, 2288, 2064, 1840, 1616, 1392, 1168, 944, 720, 560, 464, 368, 272, 208, 144, 80, *[64] * 15, 0)

# 10.3.4.3.2.1: a row of 32 for each value of qRangeIdx
# fmt: off
RLPS_TABLE = (
    128, 112, 97, 84, 74, 65, 57, 50, 45, 39, 34, 30, 27, 23, 20, 18,
    15, 14, 12, 11, 10, 9, 7, 7, 5, 5, 4, 4, 3, 3, 2, 2,
    142, 125, 108, 93, 82, 72, 63, 56, 50, 43, 38, 33, 30, 26, 22, 20,
    17, 16, 13, 12, 11, 10, 8, 8, 6, 6, 5, 5, 3, 3, 2, 2,
    156, 137, 119, 103, 90, 79, 70, 61, 55, 48, 42, 37, 33, 28, 24, 22,
    19, 17, 15, 13, 12, 11, 9, 9, 6, 6, 5, 5, 4, 4, 2, 2,
    171, 150, 130, 112, 99, 87, 76, 67, 60, 52, 46, 40, 36, 31, 27, 24,
    21, 19, 16, 15, 13, 12, 10, 10, 7, 7, 6, 6, 4, 4, 3, 3,
    185, 162, 141, 121, 107, 94, 82, 73, 65, 56, 50, 43, 39, 34, 29, 26,
    22, 21, 17, 16, 14, 13, 11, 11, 8, 8, 6, 6, 4, 4, 3, 3,
    199, 175, 152, 131, 115, 101, 89, 78, 70, 61, 54, 47, 42, 36, 31, 28,
    24, 22, 19, 17, 15, 14, 12, 12, 8, 8, 7, 7, 5, 5, 3, 3,
    213, 187, 163, 140, 123, 108, 95, 84, 75, 65, 58, 50, 45, 39, 33, 30,
    26, 24, 20, 18, 16, 15, 13, 13, 9, 9, 7, 7, 5, 5, 3, 3,
    228, 200, 174, 150, 132, 116, 102, 90, 80, 70, 62, 54, 48, 42, 36, 32,
    28, 26, 22, 20, 18, 16, 14, 14, 10, 10, 8, 8, 6, 6, 4, 4,
)
# fmt: on


class Bin(NamedTuple):
    """Coded bin for a trace; all other fields are the state after the bin and its renormalization."""

    element: str
    ctx_inc: int  # -1: bypass or terminate
    bin: int
    ivl_curr_range: int
    ivl_offset: int  # IvlOffset of the decoder; 0 in an encoder
    p0: int  # pStateIdx0 and pStateIdx1 of the context; 0 without a context
    p1: int


Trace = Callable[[Bin], None]


class Context:
    """Context variable: the two probability estimators of 10.3.4.3.2.2 and their adaptation rates."""

    __slots__ = ("ctx_inc", "element", "p_state_idx0", "p_state_idx1", "shift0", "shift1")

    def __init__(self, element: str, ctx_inc: int) -> None:
        self.element, self.ctx_inc = element, ctx_inc
        self.init(0)

    def init(self, set_id: int) -> None:
        """Initialize as in ISO/IEC 15938-17:2024, 10.3.2.2; set 0 also as in 10.3.2.3."""
        self.shift0, self.shift1, self.p_state_idx0, self.p_state_idx1 = CTX_PARAMETER_LIST[set_id]

    @property
    def val_mps(self) -> int:
        """ValMps, 10.3.4.3.2.1."""
        return int(16 * self.p_state_idx0 + self.p_state_idx1 >= 0)

    def ivl_lps_range(self, ivl_curr_range: int) -> int:
        """Return IvlLpsRange, 10.3.4.3.2.1; the shift precedes the absolute value, so that -1 >> 7 counts as 1."""
        q_range_idx = ivl_curr_range & 0xE0
        return RLPS_TABLE[abs((16 * self.p_state_idx0 + self.p_state_idx1) >> 7) + q_range_idx]

    def transition(self, bin_val: int) -> None:
        """Update the state as in ISO/IEC 15938-17:2024, 10.3.4.3.2.2."""
        sign = 2 * bin_val - 1
        self.p_state_idx0 += sign * (TRANSITION_TABLE[16 + (sign * self.p_state_idx0 >> 3)] >> (4 + self.shift0))
        self.p_state_idx1 += sign * (TRANSITION_TABLE[16 + (sign * self.p_state_idx1 >> 7)] >> self.shift1)


class BinCoder(Protocol):
    """Descriptors of 6.1.3 that use the arithmetic engine, for either direction."""

    decoding: bool
    trace: Trace | None
    ivl_curr_range: int
    ivl_offset: int

    def ae(self, context: Context, bin_val: int) -> int:
        """Code a context-coded bin."""

    def bypass(self, bin_val: int, element: str) -> int:
        """Code a bin with two equally likely values."""

    def at(self, bin_val: int) -> int:
        """Code the bin before termination."""

    def set_ivl_curr_range_256(self) -> None:
        """Set IvlCurrRange = 256, 10.2.1.4."""

    def nesting_zero_bits(self) -> None:
        """Code the bits after the terminating bin up to the byte boundary, 10.2.1.2."""

    def uae(self, n: int, value: int, element: str = "uae") -> int:
        """Code an unsigned integer in n bypass bins, most significant first (10.3.3.2)."""
        if not self.decoding and not 0 <= value < 1 << n:
            raise EncodeError(f"{element}={value} does not fit in uae({n})")
        coded = 0
        for k in reversed(range(n)):
            coded = 2 * coded + self.bypass((value >> k) & 1, element)
        return coded

    def iae(self, n: int, value: int, element: str = "iae") -> int:
        """Code a two's complement integer in n bypass bins, most significant first."""
        half = 1 << (n - 1)
        if not self.decoding and not -half <= value < half:
            raise EncodeError(f"{element}={value} does not fit in iae({n})")
        coded = self.uae(n, value & (2 * half - 1), element)
        return coded - 2 * half if coded >= half else coded

    def _report(self, element: str, bin_val: int, context: Context | None = None) -> None:
        if self.trace is not None:
            state = (context.p_state_idx0, context.p_state_idx1) if context is not None else (0, 0)
            ctx_inc = context.ctx_inc if context is not None else -1
            self.trace(Bin(element, ctx_inc, bin_val, self.ivl_curr_range, self.ivl_offset, *state))


class ArithmeticDecoder(BinCoder):
    """Arithmetic decoding engine, ISO/IEC 15938-17:2024, 10.3.2.4 and 10.3.4.3."""

    decoding = True

    def __init__(self, data: bytes, trace: Trace | None = None) -> None:
        self.data, self.trace = data, trace
        self.bit_pointer = 0
        self.ivl_curr_range = 510
        self.ivl_offset = 0
        for _ in range(9):
            self.ivl_offset = 2 * self.ivl_offset + self.read_bit()
        self._check()

    def read_bit(self) -> int:
        """Execute read_bits( 1 )."""
        byte, bit = self.bit_pointer >> 3, self.bit_pointer & 7
        if byte >= len(self.data):
            raise PayloadError(f"the DeepCABAC payload ends after {len(self.data)} bytes, before it is terminated")
        self.bit_pointer += 1
        return (self.data[byte] >> (7 - bit)) & 1

    def _check(self) -> None:
        # Other places where the text forbids this cannot be reached from a valid state.
        if self.ivl_offset >= self.ivl_curr_range:
            raise PayloadError(f"IvlOffset is {self.ivl_offset}, not less than {self.ivl_curr_range} (10.3.4.3)")

    def ae(self, context: Context, bin_val: int = 0) -> int:
        """Execute DecodeDecision, 10.3.4.3.2."""
        bin_val = context.val_mps
        ivl_lps_range = context.ivl_lps_range(self.ivl_curr_range)
        self.ivl_curr_range -= ivl_lps_range
        if self.ivl_offset >= self.ivl_curr_range:
            bin_val = 1 - bin_val
            self.ivl_offset -= self.ivl_curr_range
            self.ivl_curr_range = ivl_lps_range
        context.transition(bin_val)
        self._renorm()
        self._report(context.element, bin_val, context)
        return bin_val

    def _renorm(self) -> None:
        """Renormalize as in ISO/IEC 15938-17:2024, 10.3.4.3.3."""
        while self.ivl_curr_range < 256:
            self.ivl_curr_range <<= 1
            self.ivl_offset = 2 * self.ivl_offset + self.read_bit()

    def bypass(self, bin_val: int = 0, element: str = "bypass") -> int:
        """Execute DecodeBypass, 10.3.4.3.4."""
        self.ivl_offset = 2 * self.ivl_offset + self.read_bit()
        bin_val = int(self.ivl_offset >= self.ivl_curr_range)
        if bin_val:
            self.ivl_offset -= self.ivl_curr_range
        self._report(element, bin_val)
        return bin_val

    def at(self, bin_val: int = 0) -> int:
        """Execute DecodeTerminate, 10.3.4.3.5."""
        self.ivl_curr_range -= 2
        bin_val = int(self.ivl_offset >= self.ivl_curr_range)
        if not bin_val:
            self._renorm()
        self._report("terminating_one_bit", bin_val)
        last = self.bit_pointer - 1
        if bin_val and not (self.data[last >> 3] >> (7 - (last & 7))) & 1:
            raise PayloadError("the last bit in IvlOffset at termination is not 1 (10.3.4.3.5)")
        return bin_val

    def set_ivl_curr_range_256(self) -> None:
        """Set IvlCurrRange = 256; a valid encoder stayed within that part of the interval."""
        self.ivl_curr_range = 256
        self._check()

    def nesting_zero_bits(self) -> None:
        """Read nesting_zero_bit up to the byte boundary, where the payload must end."""
        while self.bit_pointer & 7:
            if self.read_bit():
                raise PayloadError("nesting_zero_bit is 1 (10.2.1.2)")
        if left := len(self.data) - self.bit_pointer // 8:
            raise PayloadError(f"{left} bytes follow the terminated DeepCABAC payload")


class ArithmeticEncoder(BinCoder):
    """Arithmetic encoding engine: the lower end of the interval in 10 bits, with outstanding carries."""

    decoding = False

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace
        self.ivl_curr_range, self.ivl_offset = 510, 0  # only the decoder has an offset
        self.low = 0
        self._bits = bytearray()  # one entry per bit
        self._first = True  # low has 10 bits, IvlOffset 9: the first bit is always 0 and not sent
        self._outstanding = 0
        self._terminated = False

    def _put(self, bit: int) -> None:
        if self._first:
            self._first = False
        else:
            self._bits.append(bit)
        self._bits += bytes([1 - bit]) * self._outstanding
        self._outstanding = 0

    def _shift(self) -> None:
        """Output the top bit of low, or count it as outstanding while a carry can still change it; double low."""
        if self.low >= 512:
            self._put(1)
            self.low -= 512
        elif self.low < 256:
            self._put(0)
        else:
            self._outstanding += 1
            self.low -= 256
        self.low <<= 1

    def _renorm(self) -> None:
        while self.ivl_curr_range < 256:
            self.ivl_curr_range <<= 1
            self._shift()

    def ae(self, context: Context, bin_val: int) -> int:
        """Invert DecodeDecision, 10.3.4.3.2."""
        if bin_val not in (0, 1):
            raise EncodeError(f"{context.element}={bin_val} is not a bin")
        ivl_lps_range = context.ivl_lps_range(self.ivl_curr_range)
        self.ivl_curr_range -= ivl_lps_range
        if bin_val != context.val_mps:
            self.low += self.ivl_curr_range
            self.ivl_curr_range = ivl_lps_range
        context.transition(bin_val)
        self._renorm()
        self._report(context.element, bin_val, context)
        return bin_val

    def bypass(self, bin_val: int, element: str = "bypass") -> int:
        """Invert DecodeBypass, 10.3.4.3.4: halve the interval, then double it."""
        self.low = 2 * self.low + bin_val * self.ivl_curr_range
        if self.low >= 1024:
            self._put(1)
            self.low -= 1024
        elif self.low < 512:
            self._put(0)
        else:
            self._outstanding += 1
            self.low -= 512
        self._report(element, bin_val)
        return bin_val

    def at(self, bin_val: int) -> int:
        """Invert DecodeTerminate, 10.3.4.3.5; a 1 flushes the engine."""
        self.ivl_curr_range -= 2
        if bin_val:
            self._report("terminating_one_bit", bin_val)  # the decoder does not renormalize either
            self.low += self.ivl_curr_range
            self.ivl_curr_range = 2
            self._renorm()
            self._put(self.low >> 9 & 1)
            # After seven shifts the bits below bit 7 of low are 0 and free: bit 7 becomes the stop bit.
            self._bits += bytes([self.low >> 8 & 1, 1])
            self._terminated = True
        else:
            self._renorm()
            self._report("terminating_one_bit", bin_val)
        return bin_val

    def set_ivl_curr_range_256(self) -> None:
        """Set IvlCurrRange = 256, which discards the upper part of the interval."""
        self.ivl_curr_range = 256

    def nesting_zero_bits(self) -> None:
        """Write nesting_zero_bit up to the byte boundary."""
        self._bits += bytes(-len(self._bits) % 8)

    def finish(self) -> bytes:
        """Return the payload; :func:`terminate` must be called first."""
        if not self._terminated:
            raise EncodeError("the DeepCABAC payload is not terminated")
        self.nesting_zero_bits()
        bits = self._bits
        return bytes(
            sum(bit << (7 - k) for k, bit in enumerate(bits[start : start + 8])) for start in range(0, len(bits), 8)
        )


@dataclass(frozen=True)
class QuantTensorSyntax:
    """Coding parameters of one tensor that are not in its payload, with the names of the standard.

    ``codebook`` is (codebookSize, cbZeroOffset). ``co_loc`` and ``any_sig_before`` are coLocParam and AnySigBeforeFlag
    of each element, row-major (10.3.4.2.2); None without a reference or history. ``qp_bits`` is 6 + QpDensity, or 0 if
    the payload has no qp_value (NNR_PT_INT). ``first_edition`` selects the profile-0 syntax of first-edition encoders:
    a 32nd shift index for abs_level_greater_x2, and IvlCurrRange = 256 before the first level of a block-scanned tensor
    of one block row.
    """

    dims: tuple[int, ...]
    dq_flag: int = 0
    general_profile_idc: int = 1
    cabac_unary_length_minus1: int = 9
    scan_order: int = 0
    codebook: tuple[int, int] | None = None
    parent_node_id_present_flag: int = 0
    temporal_context_modeling_flag: int = 0
    co_loc: Sequence[int] | None = None
    any_sig_before: Sequence[int] | None = None
    qp_bits: int = 0
    first_edition: bool = False

    def __post_init__(self) -> None:
        if not self.dims or min(self.dims) < 1:
            raise ValueError(f"dimensions {self.dims}: clause 10 requires at least one, all positive")
        if self.codebook is not None and not 0 <= self.codebook[1] < self.codebook[0]:
            raise ValueError(f"codebook (size, cbZeroOffset) = {self.codebook}: the zero is outside")
        if self.first_edition and self.general_profile_idc:
            raise ValueError("first_edition requires profile 0")
        for name, per_element in (("co_loc", self.co_loc), ("any_sig_before", self.any_sig_before)):
            if per_element is not None and len(per_element) != prod(self.dims):
                raise ValueError(f"{name} has {len(per_element)} entries for dimensions {self.dims}")

    @property
    def tensor_2d_height(self) -> int:
        """Tensor2DHeight, 10.2.1.4."""
        return self.dims[0]

    @property
    def tensor_2d_width(self) -> int:
        """Tensor2DWidth, 10.2.1.4."""
        return prod(self.dims[1:])

    @property
    def row_flags_present(self) -> bool:
        """True if elements precede the levels (10.2.1.4); the text ignores the height (errata A6)."""
        return (
            self.general_profile_idc == 1
            and self.tensor_2d_width > 1
            and self.tensor_2d_height > 1
            and not (self.codebook is not None and self.codebook[0] == 1)
        )


@dataclass
class QuantTensor:
    """Values of one coded tensor.

    ``levels`` are the integers as coded; ``quant_param`` are the integers after dependent quantization is resolved
    (QuantParam). Both are row-major, and an encoder starts from ``levels``. ``shift_parameter_ids`` is indexed by
    syntax element and context index; indices that are not coded are 0. The last three lists describe the entry points
    that a decoder passed; a bit offset is relative to the previous entry point, or to the first level (6.3.3.7).
    """

    levels: list[int] = field(default_factory=list)
    qp_value: int = 0
    hist_dep_sig_prob_enabled_flag: int = 0
    row_skip_enabled_flag: int = 0
    row_skip_list: list[int] = field(default_factory=list)
    shift_parameter_ids: dict[str, list[int]] = field(default_factory=dict)
    quant_param: list[int] = field(default_factory=list)
    cabac_offset_list: list[int] = field(default_factory=list)
    dq_state_list: list[int] = field(default_factory=list)
    bit_offset_list: list[int] = field(default_factory=list)


#: Elements that 10.2.1.4 places before the levels.
FLAGS = ("hist_dep_sig_prob_enabled_flag", "row_skip_enabled_flag", "row_skip_list")


def index_to_xy(w: int, h: int, i: int, bs: int) -> tuple[int, int]:
    """Return IndexToXY, ISO/IEC 15938-17:2024, 4.12."""
    full_row_of_blocks = w * bs
    block_y, i_off = divmod(i, full_row_of_blocks)
    curr_block_h = min(bs, h - block_y * bs)
    block_x, block_off = divmod(i_off, bs * curr_block_h)
    curr_block_w = min(bs, w - block_x * bs)
    pos_y, pos_x = divmod(block_off, curr_block_w)
    return block_x * bs + pos_x, block_y * bs + pos_y


class _QuantTensor:
    """Syntax structures of one tensor with their shared variables; ``given`` is the input of an encoder."""

    def __init__(self, c: BinCoder, s: QuantTensorSyntax, given: QuantTensor) -> None:
        self.c, self.s, self.given, self.t = c, s, given, QuantTensor()
        self.max_num_no_rem_minus1 = s.cabac_unary_length_minus1
        limiting = s.codebook if s.general_profile_idc == 1 else None
        self.codebook_size, self.cb_zero_offset = limiting if limiting is not None else (0, 0)
        self.abs_level_greater_x2_ids = 32 if s.first_edition else 31
        # 10.3.2.3, for each tensor and with the contexts of the flags; text: once in a unit (errata A2). The
        # counts follow Table 29, except for abs_level_greater_x (errata A5).
        counts = {
            "row_skip_list": 1,
            "shift_idx_minus_1_present_flag": 1,
            "sig_flag": 48,
            "sign_flag": 5,
            "abs_level_greater_x": 4 * (self.max_num_no_rem_minus1 + 1),
            "abs_level_greater_x2": self.abs_level_greater_x2_ids,
        }
        self.contexts = {name: [Context(name, i) for i in range(count)] for name, count in counts.items()}
        self.state_id = 0
        self.previous = 0  # level coded before this one, in coding order; only its sign is used

    def code(self) -> QuantTensor:
        """Code the whole tensor in the order of errata A1: flags, shift_parameter_ids(), levels."""
        if self.s.qp_bits:
            self.t.qp_value = self.c.iae(self.s.qp_bits, self.given.qp_value, "qp_value")
        self.row_flags()
        self.shift_parameter_ids()
        self.init_prob_est_param()
        self.quant_tensor()
        if not self.c.decoding:
            for name in ("qp_value", *FLAGS, "levels"):
                if getattr(self.t, name) != getattr(self.given, name):
                    raise EncodeError(f"{name} has a value that the syntax cannot represent here (10.2.1)")
        return self.t

    def row_flags(self) -> None:
        """Code the elements before the levels, ISO/IEC 15938-17:2024, 10.2.1.4."""
        c, t, given = self.c, self.t, self.given
        if not self.s.row_flags_present:
            return
        if self.s.parent_node_id_present_flag:
            name = "hist_dep_sig_prob_enabled_flag"
            t.hist_dep_sig_prob_enabled_flag = c.uae(1, given.hist_dep_sig_prob_enabled_flag, name)
        t.row_skip_enabled_flag = c.uae(1, given.row_skip_enabled_flag, "row_skip_enabled_flag")
        if t.row_skip_enabled_flag:
            context = self.contexts["row_skip_list"][0]
            for i in range(self.s.tensor_2d_height):
                t.row_skip_list.append(c.ae(context, 0 if c.decoding else given.row_skip_list[i]))

    def shift_parameter_ids(self) -> None:
        """Code shift_parameter_ids(), ISO/IEC 15938-17:2024, 10.2.1.6."""
        dq, tcm = self.s.dq_flag, self.s.temporal_context_modeling_flag
        size, zero = self.codebook_size, self.cb_zero_offset
        self.t.shift_parameter_ids = {
            name: [0] * len(self.contexts[name])
            for name in ("sig_flag", "sign_flag", "abs_level_greater_x", "abs_level_greater_x2")
        }
        if size != 1:
            for i in range(24 if dq else 3):
                self.shift_idx(i, "sig_flag")
            if tcm:
                for i in range(24, 40 if dq else 26):
                    self.shift_idx(i, "sig_flag")
            if self.t.hist_dep_sig_prob_enabled_flag:
                for i in range(40, 48 if dq else 41):
                    self.shift_idx(i, "sig_flag")
        if not (size > 0 and zero in (0, size - 1)):  # otherwise the sign is known; also for size 1
            for i in range(5 if tcm else 3):
                self.shift_idx(i, "sign_flag")
        max_abs_val = max(zero, size - 1 - zero) if size > 0 else -1
        n = self.max_num_no_rem_minus1 + 1
        for i in range(2 * n):
            # Text: i < (maxAbsVal - 1) * 2, which is sufficient; encoders send one more pair (errata C4).
            if max_abs_val == -1 or i < 2 * max_abs_val:
                self.shift_idx(i, "abs_level_greater_x")
        if tcm:
            for i in range(2 * n, 4 * n):
                if max_abs_val == -1 or i < 2 * (max_abs_val - 1) + 2 * n:
                    self.shift_idx(i, "abs_level_greater_x")
        curr_x2_level = self.max_num_no_rem_minus1
        for i in range(self.abs_level_greater_x2_ids):
            curr_x2_level += 1 << i
            if max_abs_val == -1 or curr_x2_level < max_abs_val:
                self.shift_idx(i, "abs_level_greater_x2")

    def shift_idx(self, ctx_id: int, element: str) -> None:
        """Code shift_idx(), ISO/IEC 15938-17:2024, 10.2.1.7."""
        wanted = self.given.shift_parameter_ids.get(element)
        value = wanted[ctx_id] if wanted is not None else 0
        context = self.contexts["shift_idx_minus_1_present_flag"][0]
        if self.c.ae(context, int(value != 0)):
            self.t.shift_parameter_ids[element][ctx_id] = self.c.uae(3, value - 1, "shift_idx_minus_1") + 1

    def init_prob_est_param(self) -> None:
        """Initialize the contexts, ISO/IEC 15938-17:2024, 10.3.2.2; unused contexts, without a coded index, get set
        0."""
        for element, ids in self.t.shift_parameter_ids.items():
            for context, set_id in zip(self.contexts[element], ids, strict=True):
                context.init(set_id)
        self.previous = 0

    def quant_tensor(self) -> None:
        """Code the levels, ISO/IEC 15938-17:2024, 10.2.1.4."""
        c, s, t = self.c, self.s, self.t
        w, h = s.tensor_2d_width, s.tensor_2d_height
        # Block order equals row-major order for a tensor of one row or column, without entry points (errata G2).
        scan_order = s.scan_order if w > 1 and h > 1 else 0
        bs = 4 << scan_order
        if scan_order > 0 and (h > bs or s.first_edition):  # text: only at entry points (errata A7, K4)
            c.set_ivl_curr_range_256()
        bit_pointer = c.bit_pointer if isinstance(c, ArithmeticDecoder) else 0
        t.levels, t.quant_param = [0] * (w * h), [0] * (w * h)
        for i in range(w * h):
            x, y = index_to_xy(w, h, i, bs) if scan_order > 0 else (i % w, i // w)
            idx = y * w + x
            if scan_order > 0 and i > 0 and i % (w * bs) == 0:  # GetEntryPointIdx( ) != -1, 4.12
                # Sequential decoding needs no list: nothing is flushed, and stateId continues.
                c.set_ivl_curr_range_256()
                if isinstance(c, ArithmeticDecoder):
                    t.cabac_offset_list.append(c.ivl_offset)
                    t.bit_offset_list.append(c.bit_pointer - bit_pointer)
                    bit_pointer = c.bit_pointer
                    if s.dq_flag:
                        t.dq_state_list.append(self.state_id)
                self.init_prob_est_param()
            level = 0
            if not (t.row_skip_enabled_flag and t.row_skip_list[y]):  # stateId advances below in any case
                level = self.int_param(idx, 0 if c.decoding else self.given.levels[idx])
            t.levels[idx] = quant_param = level
            if s.dq_flag:
                next_st = STATE_TRANS_TAB[self.state_id][level & 1]
                if level != 0:
                    odd = self.state_id & 1
                    quant_param = 2 * level + (odd if level < 0 else -odd)
                self.state_id = next_st
            if not -(1 << 31) <= quant_param < 1 << 31:  # 7.3.2
                error = PayloadError if c.decoding else EncodeError
                raise error(f"QuantParam[{idx}] = {quant_param} does not fit in 32 bits (7.3.2)")
            t.quant_param[idx] = quant_param

    def int_param(self, idx: int, value: int) -> int:
        """Code int_param(), ISO/IEC 15938-17:2024, 10.2.1.5."""
        c, size, zero, wanted = self.c, self.codebook_size, self.cb_zero_offset, abs(value)
        if size == 1:
            return 0
        if not c.ae(self.contexts["sig_flag"][self.ctx_inc_sig_flag(idx)], int(value != 0)):
            self.previous = 0
            return 0
        quant_param = 1
        if size > 0 and zero in (0, size - 1):
            sign_val = int(zero != 0)
        else:
            sign_val = c.ae(self.contexts["sign_flag"][self.ctx_inc_sign_flag(idx)], int(value < 0))
        max_abs_val = (zero if sign_val else size - zero - 1) if size > 0 else -1
        unlimited = max_abs_val == -1
        if not (c.decoding or unlimited or wanted <= max_abs_val):  # abs_remainder might be wide enough
            raise EncodeError(f"level {value} is outside a codebook of {size} entries with its zero at {zero}")
        if unlimited or max_abs_val > 1:
            j = -1
            while True:
                j += 1
                context = self.contexts["abs_level_greater_x"][self.ctx_inc_abs_level_greater_x(idx, j, sign_val)]
                abs_level_greater_x = c.ae(context, int(wanted > quant_param))
                quant_param += abs_level_greater_x
                more = abs_level_greater_x and (unlimited or max_abs_val > quant_param)
                if not (more and j < self.max_num_no_rem_minus1):
                    break
            if more:
                rem_bits = 0
                j = -1
                while True:
                    j += 1
                    context = self.contexts["abs_level_greater_x2"][j]
                    abs_level_greater_x2 = c.ae(context, int(wanted >= quant_param + (1 << rem_bits)))
                    if abs_level_greater_x2:
                        quant_param += 1 << rem_bits
                        rem_bits += 1
                    fits = unlimited or max_abs_val >= quant_param + (1 << rem_bits)
                    if not (abs_level_greater_x2 and j < 30 and fits):
                        break
                quant_param += c.uae(rem_bits, wanted - quant_param, "abs_remainder")
        self.previous = -quant_param if sign_val else quant_param
        return self.previous

    def co_loc_param(self, idx: int) -> int:
        """Return CoLocParam, 10.3.4.2.2."""
        if not self.s.temporal_context_modeling_flag or self.s.co_loc is None:
            return 0
        return int(self.s.co_loc[idx])

    def neighbour(self) -> int:
        """Return 0, 1 or 2 after a zero, negative or positive level; text: 1 and 2 swapped (errata A3)."""
        return 1 if self.previous < 0 else 2 if self.previous > 0 else 0

    def ctx_inc_sig_flag(self, idx: int) -> int:
        """Return ctxInc, ISO/IEC 15938-17:2024, 10.3.4.2.2; stateId stays 0 without dependent quantization."""
        history = self.s.any_sig_before
        if self.t.hist_dep_sig_prob_enabled_flag and history is not None and history[idx]:
            return self.state_id + 40
        co_loc_param = self.co_loc_param(idx)
        if co_loc_param == 0:
            return self.state_id * 3 + self.neighbour()
        return self.state_id * 2 + 24 + (abs(co_loc_param) > 1)  # text: swapped (errata A4)

    def ctx_inc_sign_flag(self, idx: int) -> int:
        """Return ctxInc, ISO/IEC 15938-17:2024, 10.3.4.2.3."""
        co_loc_param = self.co_loc_param(idx)
        if co_loc_param == 0:
            return self.neighbour()
        return 3 if co_loc_param < 0 else 4

    def ctx_inc_abs_level_greater_x(self, idx: int, j: int, sign_val: int) -> int:
        """Return ctxInc, ISO/IEC 15938-17:2024, 10.3.4.2.4."""
        co_loc_param = self.co_loc_param(idx)
        if co_loc_param == 0:
            return 2 * j + sign_val
        # Text: an offset of 2 * maxNumNoRemMinus1, which belongs to the last pair of the others (errata A5).
        return 2 * j + 2 * (self.max_num_no_rem_minus1 + 1) + (abs(co_loc_param) < j)


def quant_tensor(c: BinCoder, s: QuantTensorSyntax, t: QuantTensor | None = None) -> QuantTensor:
    """Code one tensor: qp_value, flags, shift indices and levels.

    Parameters
    ----------
    c : BinCoder
        Coder of the payload. It may code several tensors in sequence (NNR_PT_BLOCK); :func:`terminate` ends the
        payload.
    s : QuantTensorSyntax
        Parameters of the syntax.
    t : QuantTensor, optional
        Values to encode, with all levels; ignored when decoding.

    Returns
    -------
    QuantTensor
        The coded values, including ``quant_param``.
    """
    given = QuantTensor() if c.decoding or t is None else t
    if not c.decoding:
        if len(given.levels) != prod(s.dims):
            raise EncodeError(f"{len(given.levels)} levels given for dimensions {s.dims}")
        if given.row_skip_enabled_flag and len(given.row_skip_list) != s.tensor_2d_height:
            raise EncodeError(f"row_skip_list has {len(given.row_skip_list)} entries for {s.tensor_2d_height} rows")
    return _QuantTensor(c, s, given).code()


def terminate(c: BinCoder) -> None:
    """Code terminate_cabac( ), ISO/IEC 15938-17:2024, 10.2.1.2."""
    if not c.at(1):
        raise PayloadError("terminating_one_bit is 0 (10.2.1.2)")
    c.nesting_zero_bits()
