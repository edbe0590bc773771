"""Compiled base classes of BitReader and BitWriter in `bitio`."""

from typing_extensions import Buffer

from ..limits import Limits

class BitSource:
    """A place in a byte string. What a method cannot take it leaves, and raises a ValueError that explains nothing.

    Parameters
    ----------
    data : bytes-like
    pos : int
        The first bit to take.
    limits : Limits
        Bounds for those who read more than is done here.
    """

    data: memoryview
    limits: Limits
    pos: int
    end: int
    """Number of bits of the data, or of those at its beginning that may be read."""

    def __init__(self, data: Buffer, pos: int = 0, limits: Limits | None = None) -> None: ...
    def take_u(self, n: int) -> int:
        """Take u(n) of at most 56 bits."""

    def take_i(self, n: int) -> int:
        """Take i(n) of at most 56 bits."""

    def take_ue(self, k: int, most: int) -> int:
        """Take ue(k) of at most ``most`` bits after its prefix."""

    def take_ie(self, k: int, most: int) -> int:
        """Take ie(k), likewise."""

    def take_st(self, longest: int) -> str:
        """Take st(v) of at most so many bytes."""

class BitSink:
    """Collects bits; a value outside its descriptor's range raises ValueError."""

    @property
    def pos(self) -> int:
        """Bits written so far."""

    def state(self) -> tuple[int, int, int]:
        """For :meth:`restore`."""

    def restore(self, state: tuple[int, int, int]) -> None:
        """Forget what was written since."""

    def u(self, n: int, value: int) -> None:
        """Write u(n), and f(n)."""

    def i(self, n: int, value: int) -> None:
        """Write i(n)."""

    def ue(self, k: int, value: int) -> None:
        """Write ue(k)."""

    def extend(self, data: Buffer) -> None:
        """Write bytes; ValueError unless they begin at a byte boundary."""

    def getvalue(self) -> bytes:
        """All whole bytes; the last one padded with zeros."""
