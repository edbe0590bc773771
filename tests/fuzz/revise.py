"""Revision of structures: the table is executed again with other values, so that dependent elements follow.

A revision keeps the values of the original structure, changes one or a few, and invents required values that are
missing, so that all elements that a changed flag or count requires are present.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from bitarray import bitarray

from nnr_codec.errors import LimitError
from nnr_codec.limits import Limits
from nnr_codec.syntax import Descriptor, SampleReader, Session, Structure
from nnr_codec.syntax.bitio import NotANumber

S = TypeVar("S", bound=Structure)

#: Values of elements by name, from the seeds.
Pool = Mapping[str, Sequence[Any]]

#: Maximum number of values of one structure.
MOST = 400

#: Maximum length of a run in bits.
MOST_BITS = 16_000

LIMITS = Limits(max_names=MOST, max_units=MOST, max_codebook=MOST)

STRINGS = (
    *("", "w", "W", " ", "../x", "/x", "a/b", "a\\b", "CON", "a:b", "\x1b[2J", "\x7f", "\ufeff", "\u202e", "e\u0301"),
    *("\U0010ffff", "x" * 255, "x" * 4096, "x" * 4097, "%s%n", "{0}", "w.weight", "nnr_codec.update", "__class__"),
)


def name_of(path: str) -> str:
    """Return the element at the end of a path, without indices."""
    return path.rpartition(".")[2].partition("[")[0]


def values_of(structure: Structure) -> dict[str, Iterator[Any]]:
    """Return the values of each element in the order of their coding; nested structures are values."""
    return {name: iter(_flat(value)) for name, value in structure.present().items()}


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    return [item for each in value for item in _flat(each)] if value and isinstance(value[0], list) else value


def leaves(structure: Structure) -> int:
    """Return the number of values of a structure, including nested ones."""
    total = 0
    for value in structure.present().values():
        for item in _flat(value):
            total += leaves(item) if isinstance(item, Structure) else 1
    return total


# ------------------------------------------------------------------------------------------------ values
def whole(rnd: random.Random, bits: int, old: int) -> int:
    """Return a number of at most this many bits: an end of the range, a neighbour, one bit less or more, or any."""
    most = (1 << bits) - 1
    kind = rnd.randrange(10)
    if kind < 5:
        return (0, 1, most, most - 1, most >> 1)[kind]
    if kind < 7:
        return (old + rnd.choice((-1, 1))) & most
    if kind < 8:
        return (old ^ 1 << rnd.randrange(bits)) & most
    return rnd.getrandbits(rnd.randint(1, bits))


def unsigned(rnd: random.Random, k: int, old: int) -> int:
    """Return a value for ue(k): small ones, neighbours, powers of two; rarely one that only limits reject."""
    kind = rnd.randrange(12)
    if kind < 4:
        return kind
    if kind < 7:
        return max(0, old + (1, -1, rnd.randint(-9, 9))[kind - 4])
    if kind < 9:
        return rnd.getrandbits(rnd.randint(1, 9))
    if kind < 10:
        return rnd.choice(((1 << k) - 1, 1 << k, 255, 256, 4095, 4096, 65535, 65536))
    if kind < 11:
        return max(0, (1 << rnd.randint(20, 32)) - rnd.randint(0, 2))
    return min(old * rnd.randint(2, 9), (1 << 32) - 1)


def floating(rnd: random.Random, old: float) -> float:
    """Return a value for flt(32): a special one, the old value or its negation."""
    nan = NotANumber(0x7F800001 | rnd.getrandbits(31))
    return rnd.choice((0.0, -0.0, 1.0, 1e-45, 3e38, float("inf"), float("-inf"), nan, old, -old))


def text(rnd: random.Random, old: str) -> str:
    """Return a value for st(v)."""
    kind = rnd.randrange(4)
    if kind == 0 and old:
        at = rnd.randrange(len(old))
        return old[:at] + old[at + 1 :]
    if kind == 1:
        return old + rnd.choice("0._/ ")
    return rnd.choice(STRINGS)


def blob(rnd: random.Random, old: bytes) -> bytes:
    """Return a value for bs(v): changed bytes."""
    data = bytearray(old or b"\0")
    for _ in range(rnd.choice((1, 1, 2, 4))):
        at = rnd.randrange(len(data) + 1)
        kind = rnd.randrange(4)
        if kind == 0:
            data[at : at + rnd.randint(1, 8)] = b""
        elif kind == 1:
            data[at:at] = rnd.randbytes(rnd.randint(1, 8))
        elif kind == 2:
            data[at:at] = data[: rnd.randint(1, 40)]
        elif at < len(data):
            data[at] = whole(rnd, 8, data[at])
        data = data or bytearray(1)
    return bytes(data)


def flags(rnd: random.Random, count: int, old: bitarray | None) -> bitarray:
    """Return a run of bits."""
    if old is not None and len(old) == count and count:
        run = bitarray(old)
        run.invert(rnd.randrange(count))
        return run
    return bitarray(map(int, f"{rnd.getrandbits(count):0{count}b}") if count else [], endian="big")


def another(rnd: random.Random, kind: str, n: int, old: Any) -> Any:
    """Return a value of a descriptor that replaces an old one (None: there is none)."""
    if kind in ("u", "f"):
        return whole(rnd, n, int(old or 0))
    if kind == "i":
        value = whole(rnd, n, int(old or 0) & ((1 << n) - 1))
        return value - ((value >> (n - 1)) << n)
    if kind == "ue":
        return unsigned(rnd, n, int(old or 0))
    if kind == "ie":
        return unsigned(rnd, n, abs(int(old or 0))) * rnd.choice((1, -1)) // rnd.choice((1, 1, 2))
    if kind == "flt":
        return floating(rnd, float(old or 0))
    if kind == "st":
        return text(rnd, old or "")
    return blob(rnd, old or b"")


def invented(rnd: random.Random, kind: str, n: int) -> Any:
    """Return a value that keeps the structure parseable: counts are small, flags and reserved bits mostly 0."""
    if kind in ("u", "f"):
        return int(rnd.random() < 0.4) if n == 1 else rnd.randrange(min(1 << n, rnd.choice((1, 2, 4, 12))))
    if kind in ("i", "ie"):
        return rnd.randint(-3, 3)
    if kind == "ue":
        return rnd.randint(0, rnd.choice((2, 5, 12)))
    if kind == "flt":
        return rnd.randint(-8, 8) / 8
    if kind == "st":
        return rnd.choice(("w", "b", "a.b", "conv.weight", ""))
    return rnd.randbytes(rnd.randint(0, 9))


# ------------------------------------------------------------------------------------------------ the reader
class Source:
    """Replacement of the bit reader: returns old values, changed ones at the chosen places, and invented ones.

    Parameters
    ----------
    places : collection of int
        Indices of the values to change, in the order of coding.
    """

    def __init__(self, rnd: random.Random, places: Sequence[int], pool: Pool) -> None:
        self.rnd, self.places, self.pool = rnd, places, pool
        self.limits, self.pos, self.visits = LIMITS, 0, 0
        self.name = ""
        self.old: dict[str, Iterator[Any]] = {}

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        return lambda n=0: self._value(kind, n)

    def _value(self, kind: str, n: int) -> Any:
        old = next(self.old.get(self.name, iter(())), None)
        at, self.visits = self.visits, self.visits + 1
        if at > MOST:
            raise LimitError(f"more than {MOST} values")
        if kind == "bits":
            if n > MOST_BITS:
                raise LimitError(f"more than {MOST_BITS} bits")
            return old if at not in self.places and old is not None and len(old) == n else flags(self.rnd, n, old)
        if at in self.places:
            known = self.pool.get(self.name)
            if known and self.rnd.random() < 0.3:
                return _fitting(self.rnd.choice(known), kind, n)
            return another(self.rnd, kind, n, old)
        return invented(self.rnd, kind, n) if old is None else _fitting(old, kind, n)


def _fitting(value: Any, kind: str, n: int) -> Any:
    """Return the value in the range of its descriptor, which an earlier element may have reduced."""
    return int(value) & ((1 << n) - 1) if kind == "u" else value


class Reviser(SampleReader):
    """Reader of a structure from a `Source`."""

    def revise(self, old: Structure) -> Structure:
        """Return the structure, read again."""
        self.io.old = values_of(old)  # type: ignore[attr-defined]
        return self._walked(type(old), "")

    def _value(self, name: str, descriptor: Descriptor) -> Any:
        source: Any = self.io
        name = name.partition("[")[0]
        if descriptor.kind != "struct":
            source.name = name
            return super()._value(name, descriptor)
        outer = source.old
        old = next(outer.get(name, iter(())), None)
        source.old = values_of(old) if type(old) is descriptor.cls else {}
        value = self._walked(descriptor.cls, name)
        source.old = outer
        return value


def revise(old: S, session: Session, rnd: random.Random, *, places: Sequence[int] = (), pool: Pool | None = None) -> S:
    """Return a structure with other values at ``places``; raise NnrError if its table or the session rejects them."""
    return Reviser(session, Source(rnd, places, pool or {})).revise(old)  # type: ignore[return-value]


def invent(cls: type[S], session: Session, rnd: random.Random) -> S:
    """Return a structure of a class with invented values."""
    return revise(cls.__new__(cls), session, rnd)
