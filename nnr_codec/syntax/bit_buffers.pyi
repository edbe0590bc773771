"""Compiled base classes of BitReader and BitWriter in `bitio`."""

from typing import Any

from typing_extensions import Buffer

from ..limits import Limits

class StringPattern:
    """Bytes of a structure that contains one string st(v), before and after the string and its final zero byte.

    ``value`` is any object of the caller.
    """

    before: bytes
    after: bytes
    value: Any
    def __init__(self, before: bytes, after: bytes, value: Any) -> None: ...

class BitSource:
    """Bit position in a byte string, with methods that read common descriptors (6.1.3) and advance the position.

    A method that cannot read a value raises ValueError without a message, and leaves the position unchanged. The caller
    then reads the value again with the methods of `BitReader`, which report the reason.

    Parameters
    ----------
    data : bytes-like
    pos : int, default 0
        First bit to read.
    limits : Limits, optional
        Limits for the subclass; this class only stores them.
    """

    data: memoryview
    limits: Limits
    pos: int
    end: int
    """Number of bits that may be read: at first all bits of `data`. Setting more than these raises ValueError."""

    def __init__(self, data: Buffer, pos: int = 0, limits: Limits | None = None) -> None: ...
    def take_u(self, n: int) -> int:
        """Read u(n), n at most 56."""

    def take_i(self, n: int) -> int:
        """Read i(n), n from 1 to 56."""

    def take_ue(self, k: int, most: int) -> int:
        """Read ue(k) with at most ``most`` bits after the prefix."""

    def take_ie(self, k: int, most: int) -> int:
        """Read ie(k) with at most ``most`` bits after the prefix."""

    def take_st(self, longest: int) -> str:
        """Read st(v) of at most ``longest`` bytes, the final zero byte not counted."""

    def take_pattern(self, patterns: list[StringPattern], longest: int) -> tuple[StringPattern, str] | None:
        """Read the first of these patterns that follows, with a UTF-8 string of at most ``longest`` bytes.

        Return the pattern and the string, or None if no pattern follows.
        """

class BitSink:
    """Writer of bits. Methods raise ValueError for a value outside the range of its descriptor (6.1.3)."""

    @property
    def pos(self) -> int:
        """Number of bits written so far."""

    def state(self) -> tuple[int, int, int]:
        """Return the current state, for :meth:`restore`."""

    def restore(self, state: tuple[int, int, int]) -> None:
        """Remove all bits written since :meth:`state` returned ``state``."""

    def u(self, n: int, value: int) -> None:
        """Write u(n), and f(n)."""

    def i(self, n: int, value: int) -> None:
        """Write i(n)."""

    def ue(self, k: int, value: int) -> None:
        """Write ue(k)."""

    def extend(self, data: Buffer) -> None:
        """Append bytes; raises ValueError if the position is not at a byte boundary."""

    def getvalue(self) -> bytes:
        """Return all bits as bytes; zero bits complete the last byte."""
