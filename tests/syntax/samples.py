"""Random valid structures of every table, with random sessions; the same ones for the same seed."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from nnr_codec.constants import NNR_PT_INT, TopologyStorageFormat
from nnr_codec.errors import BitstreamError
from nnr_codec.limits import Limits
from nnr_codec.syntax import (
    TABLES,
    BitCounter,
    BitReader,
    BitWriter,
    Reader,
    Sampler,
    SampleReader,
    Session,
    Structure,
    Writer,
)
from nnr_codec.syntax.structures import NnrCompressedDataUnitHeader

S = TypeVar("S", bound=Structure)

#: How many structures of each table the tests use.
PER_TABLE = 200


class AnyTopology(Mapping[str, Sequence[int]]):
    """Knows the dimensions of every tensor, whatever its name."""

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
    """A structure, and the session in which it is valid."""

    structure: Structure
    session: Session


def random_session(rnd: random.Random) -> Session:
    """Any state that earlier units may have left."""
    flag = rnd.getrandbits
    g_header = NnrCompressedDataUnitHeader(nnr_compressed_data_unit_payload_type=NNR_PT_INT)
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
    """A ``draw`` for Sampler: ends of the range and small values are likely, what may be a count stays small."""

    def draw(low: int, high: int) -> int:
        if high in (0xFF, 0xFFFF, 0xFFFFFFFF):  # the widths of all counts
            return rnd.randint(0, 0xFF if high == 0xFF and rnd.random() < 0.08 else 5)
        kind = rnd.random()
        if kind < 0.3:
            return low if kind < 0.15 else high
        return rnd.randint(low, high if kind < 0.6 else min(high, low + 7))

    return draw


def sample(name: str, seed: int) -> Sample:
    """A random structure of table ``name``. Values that the table itself refuses (scan_order 5) are drawn again."""
    rnd = random.Random(f"{name} {seed}")
    while True:
        session = random_session(rnd)
        try:
            structure = SampleReader(session, Sampler(draw_from(rnd), Limits())).read(TABLES[name])
        except BitstreamError:
            continue
        return Sample(structure, session)


@lru_cache(maxsize=1)
def samples(name: str) -> list[Sample]:
    """`PER_TABLE` of them."""
    return [sample(name, seed) for seed in range(PER_TABLE)]


def write(structure: Structure, session: Session | None = None) -> bytes:
    """The bits of a structure, padded with zeros to whole bytes."""
    bits = BitWriter()
    Writer(session or Session(), bits).write(structure)
    return bits.getvalue()


def count(structure: Structure, session: Session | None = None) -> int:
    """The bits that a structure takes."""
    bits = BitCounter()
    Writer(session or Session(), bits).write(structure)
    return bits.pos


def read(data: bytes, cls: type[S], session: Session | None = None, limits: Limits | None = None) -> S:
    """A structure from its bits."""
    return Reader(session or Session(), BitReader(data, limits=limits)).read(cls)
