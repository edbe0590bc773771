"""Exact formulas for expected values, and arithmetic coding with integers.

The module shares no code with the codec, except the tables of 10.3 that `interval` takes from the plain implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from nnr_codec.syntax.deepcabac import RLPS_TABLE, TRANSITION_TABLE

from ..builder import TRANSITIONS

Ints = npt.NDArray[np.int32]


def step(qp: int, density: int = 2) -> Fraction:
    """Return stepSize (7.3.6); ``qp`` is qp_value + QuantizationParameter."""
    mul = 2**density + qp % 2**density
    return Fraction(mul) * Fraction(2) ** (qp // 2**density - density)


def exact(values: Sequence[Fraction], dtype: str, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Return an array of these values; raise ValueError unless all are exact."""
    array = np.array([float(value) for value in values], dtype)
    if [Fraction(float(value)) for value in array] != list(values):
        raise ValueError(f"{values} are not numbers of {dtype}")
    return array.reshape(tuple(shape))


def floats(levels: Any, qp: int = 0, density: int = 2, dtype: str = "<f4") -> npt.NDArray[Any]:
    """Return levels times stepSize."""
    levels = np.asarray(levels)
    return exact([int(level) * step(qp, density) for level in levels.flat], dtype, levels.shape)


def chosen(shape: Sequence[int], spread: int, seed: int = 1, zeros: int = 1) -> Ints:
    """Return integers from -spread to spread; the ratio of zeros to other numbers is ``zeros``."""
    out, x = [], seed
    for _ in range(prod(shape)):
        x = (1103515245 * x + 12345) % 2**31
        y = (x >> 12) % ((1 + zeros) * 2 * spread)
        out.append(0 if y >= 2 * spread else y - spread + (y >= spread))
    return np.array(out, np.int32).reshape(tuple(shape))


def coding_order(height: int, width: int, scan: int) -> list[tuple[int, int]]:
    """Yield row and column in coding order: block by block, row by row in a block (4.12)."""
    if scan == 0 or width == 1 or height == 1:
        return [(y, x) for y in range(height) for x in range(width)]
    size = 4 << scan
    return [
        (y, x)
        for top in range(0, height, size)
        for left in range(0, width, size)
        for y in range(top, min(top + size, height))
        for x in range(left, min(left + size, width))
    ]


def dependent(levels: Any, scan: int = 0) -> npt.NDArray[np.int64]:
    """Return QuantParam with dq_flag 1 (10.2.1.4); the state continues across zeros, rows and blocks."""
    levels = np.asarray(levels, np.int64)
    matrix = levels.reshape(levels.shape[0], -1)
    out, state = np.zeros_like(matrix), 0
    for y, x in coding_order(*matrix.shape, scan):
        level = int(matrix[y, x])
        out[y, x] = 2 * level - ((level > 0) - (level < 0)) * (state & 1)
        state = TRANSITIONS[state][level & 1]
    return out.reshape(levels.shape)


def look_up(levels: Any, entries: Sequence[int], zero: int) -> npt.NDArray[np.int64]:
    """Return Codebook[QuantParam + CbZeroOffset] (7.3.6)."""
    levels = np.asarray(levels)
    indices = [int(level) + zero for level in levels.flat]
    if min(indices) < 0:
        raise ValueError("an index is negative")
    return np.array([entries[index] for index in indices], np.int64).reshape(levels.shape)


# ------------------------------------------------------------------------------------------------ annotated bits
def assemble(*lines: str) -> bytes:
    """Return the bytes of annotated bits: the first word of each line is binary, or hexadecimal after 0x."""
    bits = ""
    for line in lines:
        word = line.split()[0]
        bits += f"{int(word, 16):0{4 * (len(word) - 2)}b}" if word.startswith("0x") else word
    if len(bits) % 8 or set(bits) - {"0", "1"}:
        raise ValueError(f"{len(bits)} bits")
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def interval(*bins: str) -> bytes:
    """Return the DeepCABAC payload of bins, computed with unbounded integers instead of registers and carries.

    Each argument is ``NAME:BITS``: bins of the context NAME, which starts in the state of set 0 (10.3.2.3), or bypass
    bins if NAME is empty. The terminating bin is added. The payload is the odd number in the last interval: its last
    bit is the 1 that 10.3.4.3.5 requires.
    """
    low, width, count = 0, 510, 9
    states: dict[str, list[int]] = {}
    for run in bins:
        name, _, values = run.partition(":")
        for value in map(int, values):
            if name:
                state = states.setdefault(name, [0, 0])
                total = 16 * state[0] + state[1]
                lps = RLPS_TABLE[abs(total >> 7) + (width & 0xE0)]
                width -= lps
                if value != (total >= 0):
                    low, width = low + width, lps
                sign = 2 * value - 1
                state[0] += sign * (TRANSITION_TABLE[16 + (sign * state[0] >> 3)] >> 5)
                state[1] += sign * (TRANSITION_TABLE[16 + (sign * state[1] >> 7)] >> 4)
                while width < 256:
                    low, width, count = 2 * low, 2 * width, count + 1
            else:
                low, count = 2 * low + value * width, count + 1
    return padded(low + width - 2 | 1, count)


def bypass(value: int, count: int) -> int:
    """Return the number of count + 9 bits for ``count`` bypass bins and the terminating bin: value * 510 + 509."""
    return 510 * (value & (1 << count) - 1) + 509


def padded(number: int, count: int) -> bytes:
    """Return a number of ``count`` bits, padded with nesting_zero_bit to whole bytes (10.2.1.2)."""
    size = (count + 7) // 8
    return (number << 8 * size - count).to_bytes(size, "big")
