"""Bit input and output: the data types of ISO/IEC 15938-17:2024, 6.1.3, most significant bit first (6.1.2).

:class:`BitReader`, :class:`BitWriter` and :class:`BitCounter` have one method for each descriptor:
``u i ue ie flt st bs`` with the descriptor's n (or k), and ``bits`` for a sequence of flags.
"""

from __future__ import annotations

import struct
from operator import index

from bitarray import bitarray

from ..errors import ElementError, LimitError, TruncatedError
from ..rules import Requirement
from .bit_buffers import BitSink, BitSource

_FLT = {32: "<f", 64: "<d"}


class NotANumber(float):
    """NaN that keeps its bits: conversion to float64 would make a signalling NaN quiet."""

    __slots__ = ("bits",)
    bits: int

    def __new__(cls, bits: int) -> NotANumber:
        value = super().__new__(cls, "nan")
        value.bits = bits
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NotANumber) and other.bits == self.bits

    def __hash__(self) -> int:
        return hash(self.bits)


class BitReader(BitSource):
    """Bit reader for a byte string.

    Parameters
    ----------
    data : bytes-like
        The bytes of one unit, or of a part of it.
    pos : int
        Position of the first bit to read.
    limits : Limits
        Limits on Exp-Golomb codes and strings.
    """

    __slots__ = ()

    def need(self, n: int) -> None:
        """Raise TruncatedError unless ``n`` more bits are available."""
        if n > self.end - self.pos:
            raise TruncatedError(
                f"{n} more bits are required, but {self.end - self.pos} remain",
                bit=self.pos,
                rule=Requirement.UNIT_SIZE,
            )

    def peek(self, n: int) -> int:
        """Return the next ``n`` bits, which must be available, without advancing."""
        end = self.pos + n
        word = int.from_bytes(self.data[self.pos >> 3 : (end + 7) >> 3], "big")
        return (word >> (-end & 7)) & ((1 << n) - 1)

    def u(self, n: int) -> int:
        """Read u(n), and f(n)."""
        start = self.pos
        end = start + n
        if end > self.end:
            self.need(n)
        self.pos = end
        return (int.from_bytes(self.data[start >> 3 : (end + 7) >> 3], "big") >> (-end & 7)) & ((1 << n) - 1)

    def i(self, n: int) -> int:
        """Read i(n), two's complement."""
        value = self.u(n)
        return value - (1 << n) if value >> (n - 1) else value

    def ue(self, k: int) -> int:
        """Read ue(k), Exp-Golomb of order k."""
        window = min(self.limits.max_eg_bits + 1, self.end - self.pos)
        word = self.peek(window)
        zeros = window - word.bit_length()
        if zeros + k > self.limits.max_eg_bits:
            raise LimitError(
                f"the Exp-Golomb code is longer than max_eg_bits={self.limits.max_eg_bits}",
                option="max_eg_bits",
                bit=self.pos,
            )
        rest = window - (2 * zeros + 1 + k)
        if rest < 0:
            self.need(window - rest)
            word, rest = self.peek(window - rest), 0
        self.pos += 2 * zeros + 1 + k
        return (word >> rest) - (1 << k)  # includes the one after the zeros

    def ie(self, k: int) -> int:
        """Read ie(k): 0, 1, -1, 2, -2, ... as ue(k)."""
        value = self.ue(k)
        return (value + 1) >> 1 if value & 1 else -(value >> 1)

    def flt(self, n: int) -> float:
        """Read flt(n): IEEE 754 in little-endian byte order, at any bit position (errata I4)."""
        bits = self.u(n)
        value: float = struct.unpack(_FLT[n], bits.to_bytes(n >> 3, "big"))[0]
        return value if value == value else NotANumber(bits)

    def st(self, n: int = 0) -> str:
        """Read st(v), a null-terminated UTF-8 string at a byte boundary."""
        if self.pos & 7:
            raise ElementError("st(v) begins inside a byte", bit=self.pos, rule=Requirement.STRING)
        start, longest = self.pos >> 3, self.limits.max_name_bytes
        text, length = b"", -1
        while length < 0:
            stop = min(start + min(2 * len(text) + 64, longest + 1), self.end >> 3)
            more = bytes(self.data[start + len(text) : stop])
            if not more and len(text) > longest:
                raise LimitError(
                    f"the string is longer than max_name_bytes={longest}", option="max_name_bytes", bit=self.pos
                )
            if not more:
                raise TruncatedError("the string has no terminating zero", bit=self.pos, rule=Requirement.STRING)
            text += more
            length = text.find(0)
        try:
            value = text[:length].decode()
        except UnicodeDecodeError as error:
            raise ElementError(
                f"the string is not UTF-8 ({error.reason})", bit=self.pos, rule=Requirement.STRING
            ) from None
        self.pos += 8 * (length + 1)
        return value

    def bs(self, n: int = 0) -> bytes:
        """Read bs(v): all bytes up to the end of the unit."""
        if self.pos & 7:
            raise ElementError("bs(v) begins inside a byte", bit=self.pos, rule=Requirement.STRING)
        start, self.pos = self.pos >> 3, self.end
        return bytes(self.data[start : self.end >> 3])

    def bits(self, count: int) -> bitarray:
        """Read ``count`` flags u(1)."""
        self.need(count)
        start, end = self.pos, self.pos + count
        run = bitarray(endian="big")
        run.frombytes(bytes(self.data[start >> 3 : (end + 7) >> 3]))
        self.pos = end
        return run[start & 7 : (start & 7) + count]


class BitWriter(BitSink):
    """Bit writer; a value outside the range of its descriptor raises ValueError."""

    __slots__ = ()

    def ie(self, k: int, value: int) -> None:
        """Write ie(k)."""
        self.ue(k, signed_code(value))

    def flt(self, n: int, value: float) -> None:
        """Write flt(n)."""
        try:
            if isinstance(value, NotANumber):
                self.u(n, value.bits)
                return
            self.u(n, int.from_bytes(struct.pack(_FLT[n], value), "big"))
        except (struct.error, OverflowError):
            raise ValueError(f"{value!r} does not fit in flt({n})") from None

    def st(self, n: int, value: str) -> None:
        """Write st(v)."""
        text = value.encode()
        if 0 in text:
            raise ValueError(f"{value!r} contains a zero character, which would end the string")
        self.extend(text + b"\0")

    def bs(self, n: int, value: bytes) -> None:
        """Write bs(v)."""
        self.extend(value)

    def bits(self, count: int, run: bitarray) -> None:
        """Write ``count`` flags u(1)."""
        if len(run) != count:
            raise ValueError(f"expected {count} bits, got {len(run)}")
        if count:
            self.u(count, int(run.to01(), 2))


class BitCounter:
    """Counter of the bits that a BitWriter would write."""

    __slots__ = ("pos",)

    def __init__(self, pos: int = 0) -> None:
        self.pos = pos

    def state(self) -> int:
        """Return the state for :meth:`restore`."""
        return self.pos

    def restore(self, state: int) -> None:
        """Return to an earlier state."""
        self.pos = state

    def u(self, n: int, value: int) -> None:
        """Count u(n)."""
        self.pos += n

    i = u

    def ue(self, k: int, value: int) -> None:
        """Count ue(k)."""
        self.pos += 2 * (index(value) + (1 << k)).bit_length() - 1 - k

    def ie(self, k: int, value: int) -> None:
        """Count ie(k)."""
        self.ue(k, signed_code(value))

    def flt(self, n: int, value: float) -> None:
        """Count flt(n)."""
        self.pos += n

    def st(self, n: int, value: str) -> None:
        """Count st(v)."""
        self.pos += 8 * (len(value.encode()) + 1)

    def bs(self, n: int, value: bytes) -> None:
        """Count bs(v)."""
        self.pos += 8 * len(value)

    def bits(self, count: int, run: bitarray) -> None:
        """Count a sequence of u(1)."""
        self.pos += count


def signed_code(value: int) -> int:
    """Return the ue(k) value of ``value`` in ie(k)."""
    return 2 * index(value) - 1 if value > 0 else -2 * index(value)
