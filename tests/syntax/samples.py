"""Random valid structures of every table, with random sessions; they depend only on the seed.

``NNR_STRUCTURES`` in the environment is the number of structures for each table.
"""

from __future__ import annotations

import os
import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from nnr_codec.constants import NNR_PT_INT, TopologyStorageFormat
from nnr_codec.errors import NnrError
from nnr_codec.limits import Limits
from nnr_codec.syntax import (
    TABLES,
    BitCounter,
    BitReader,
    BitWriter,
    Descriptor,
    Reader,
    Sampler,
    SampleReader,
    Session,
    Structure,
    Writer,
)
from nnr_codec.syntax.structures import NnrCompressedDataUnitHeader

from ..shared import examples

S = TypeVar("S", bound=Structure)

#: Number of structures of each table in the tests.
PER_TABLE = int(os.environ.get("NNR_STRUCTURES", examples(200)))

#: Elements that determine the number of iterations of a table, which stay small.
COUNTS = re.compile(
    r"count_|number_of_shifts|num_of_nnr_units|codebook_size|codebook_centre|g_number|rank|^tensor_dimensions$"
)

FEW_OR_MANY = ([6] * 9 + [90], [6, 300])  # of counts, and of extents

#: Usual values of other elements: entries of the reference list, and permitted values.
KNOWN = {"topology_elem_id_index": range(10), "topology_elem_id_index_list": range(10), "scan_order": range(5)}


class AnyTopology(Mapping[str, Sequence[int]]):
    """Topology that declares the dimensions of every tensor."""

    def __getitem__(self, name: str) -> Sequence[int]:
        digest = zlib.crc32(name.encode())
        return [1 + (digest >> 8 * k) % 40 for k in range(digest % 4)]

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Sample(NamedTuple):
    """Structure, with the session in which it is valid."""

    structure: Structure
    session: Session


def random_session(rnd: random.Random) -> Session:
    """Return any state that earlier units may leave."""
    flag = rnd.getrandbits
    g_header = NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=NNR_PT_INT, tensor_dimensions_flag=1, tensor_dimensions=[4, 6]
    )
    return Session(
        AnyTopology(),
        general_profile_idc=flag(1),
        mps_topology_indexed_reference_flag=flag(1),
        mps_parent_signalling_enabled_flag=flag(1),
        mps_unification_flag=flag(1),
        lps_unification_flag=flag(1),
        nnr_pre_flag=flag(1),
        topology_storage_format=rnd.choice(list(TopologyStorageFormat)),
        reference_list=[f"tensor.{k}" for k in range(10)],
        g_header=rnd.choice([None, g_header]),
    )


def draw_from(rnd: random.Random) -> Callable[[int, int], int]:
    """Return a ``draw`` for Sampler: extreme and small values are likely, possible counts are small."""

    def draw(low: int, high: int) -> int:
        if high in (0xFF, 0xFFFF, 0xFFFFFFFF):  # the widths of all counts
            return rnd.randint(0, 0xFF if high == 0xFF and rnd.random() < 0.08 else 5)
        kind = rnd.random()
        if kind < 0.3:
            return low if kind < 0.15 else high
        return rnd.randint(low, high if kind < 0.6 else min(high, low + 7))

    return draw


class Inventor(Sampler):
    """Inventor of values of the full range of each descriptor; counts, by ``name``, are small enough for loops."""

    name = ""
    known: Sequence[int] = ()  # defined values, if only some are defined

    def __init__(self, rnd: random.Random, limits: Limits) -> None:
        super().__init__(rnd.randint, limits)
        self.rnd = rnd

    def whole(self, bits: int) -> int:
        """Return a number of at most this many bits: any number of bits, all ones, a known value, or a count."""
        if COUNTS.search(self.name):
            return self.rnd.randrange(min(1 << bits, self.rnd.choice(FEW_OR_MANY[self.name == "tensor_dimensions"])))
        if self.known and self.rnd.random() < 0.8:
            return self.rnd.choice(self.known)
        return self.rnd.choice([(1 << bits) - 1, *[self.rnd.getrandbits(self.rnd.randint(0, bits)) for _ in range(5)]])

    def u(self, n: int) -> int:
        """Invent u(n)."""
        return self.rnd.getrandbits(1) if n == 1 else self.whole(n)

    def i(self, n: int) -> int:
        """Invent i(n)."""
        return self.whole(n - 1) - self.rnd.choice([0, 1 << (n - 1)])

    def ue(self, k: int) -> int:
        """Invent ue(k)."""
        return self.whole(32)

    def ie(self, k: int) -> int:
        """Invent ie(k)."""
        return self.whole(31) * self.rnd.choice([-1, 1])

    def flt(self, n: int) -> float:
        """Invent flt(n): any 32 bits, including not-a-numbers and infinities."""
        bits = self.rnd.choice([0, 1 << 31, 0x7F80, 0x80FF, 0xC07F, self.rnd.getrandbits(n), self.rnd.getrandbits(n)])
        return BitReader(bits.to_bytes(n >> 3, "big")).flt(n)

    def st(self, n: int = 0) -> str:
        """Invent st(v): from all of Unicode except zero and surrogates."""
        ends = [(1, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0x10FFFF)]
        return "".join(chr(self.draw(*self.rnd.choice(ends))) for _ in range(self.length()))

    def bs(self, n: int = 0) -> bytes:
        """Invent bs(v)."""
        return self.rnd.randbytes(self.length())

    def length(self) -> int:
        """Return the length of a string."""
        return self.rnd.randint(0, self.rnd.choice([0, 5, 5, 70]))


class InventingReader(SampleReader):
    """Reader whose values come from an Inventor."""

    def _value(self, name: str, descriptor: Descriptor) -> Any:
        inventor: Any = self.io
        inventor.name = name
        inventor.known = list(descriptor.cls) if descriptor.cls and descriptor.kind == "u" else KNOWN.get(name, ())
        return super()._value(name, descriptor)


def sample(name: str, seed: int) -> Sample:
    """Return a random structure of table ``name``; values that the table rejects (scan_order 5) are drawn again."""
    rnd = random.Random(f"{name} {seed}")
    while True:
        session = random_session(rnd)
        try:
            structure = InventingReader(session, Inventor(rnd, Limits())).read(TABLES[name])
        except NnrError:
            continue
        return Sample(structure, session)


@lru_cache(maxsize=1)
def samples(name: str) -> list[Sample]:
    """Return `PER_TABLE` structures."""
    return [sample(name, seed) for seed in range(PER_TABLE)]


def write(structure: Structure, session: Session | None = None) -> bytes:
    """Return the bits of a structure, padded with zeros to whole bytes."""
    bits = BitWriter()
    Writer(session or Session(), bits).write(structure)
    return bits.getvalue()


def count(structure: Structure, session: Session | None = None) -> int:
    """Return the size of a structure in bits."""
    bits = BitCounter()
    Writer(session or Session(), bits).write(structure)
    return bits.pos


def read(data: bytes, cls: type[S], session: Session | None = None, limits: Limits | None = None) -> S:
    """Read a structure from its bits."""
    return Reader(session or Session(), BitReader(data, limits=limits)).read(cls)
