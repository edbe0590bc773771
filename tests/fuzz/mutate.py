"""Mutated bitstreams, by structure or by bytes; they depend only on the seeds and the generator.

By structure: units are parsed into elements, changed, and written again, with or without following the tables, with
right or wrong sizes; the kernel codes payloads again. By bytes: changes ignore the structure.
"""

from __future__ import annotations

import copy
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nnr_codec.bitstream.ndu import code_levels
from nnr_codec.bitstream.payload import parts, tensor_syntax
from nnr_codec.bitstream.units import PAYLOADS, Unit, UnitReader, aggregate_header
from nnr_codec.cabac_ext.kernel import TensorSide
from nnr_codec.constants import (
    NNR_AGG,
    NNR_AGG_GEN,
    NNR_CPT_DC,
    NNR_DFL,
    NNR_LPS,
    NNR_MPS,
    NNR_NDU,
    NNR_PT_BLOCK,
    NNR_PT_FLOAT,
    NNR_PT_RAW_FLOAT,
    NNR_QNT,
    NNR_STR,
    NNR_TPL,
)
from nnr_codec.decoder.texts import session_for
from nnr_codec.errors import NnrError
from nnr_codec.syntax import BitWriter, Session, Structure, Writer
from nnr_codec.syntax.structures import NnrAggregateUnitHeader, NnrUnitHeader

from ..builder import codebook, ndu
from ..hostile_record import RECORD, mutated
from . import revise
from .seeds import STRICT, Seed

#: Maximum bytes of a mutant: up to this size, decoding must end within a second.
LARGEST = 4096

#: Maximum number of levels that are coded again.
MOST_LEVELS = 1500

#: Errors of structures that no table can write.
IMPOSSIBLE = (NnrError, ValueError, TypeError, ArithmeticError, AttributeError, LookupError)


class Mutant(NamedTuple):
    """Bitstream with its origin."""

    data: bytes
    seed: Seed


class Field(NamedTuple):
    """Coded element of a unit, after nnr_unit_size()."""

    name: str
    kind: str
    n: int
    value: Any
    bits: str


@dataclass(slots=True)
class Piece:
    """Unit in parts that can be changed.

    Parameters
    ----------
    head : bytes
        Everything after nnr_unit_size() that tables describe.
    tail : bytes
        The payload of a compressed data unit, or bytes of a unit that cannot be read.
    header, content : Structure or None
        Parsed content of ``head``, if it is readable.
    session : Session
        State of the parser before the unit.
    fields : tuple of Field
        The elements of ``head``; empty if it was written anew.
    long : bool
        Whether nnr_unit_size has 31 bits.
    size : int or None
        Wrong value of nnr_unit_size.
    framed : bool
        False for bytes without nnr_unit_size().
    """

    head: bytes
    tail: bytes
    depth: int
    session: Session
    header: NnrUnitHeader | None = None
    content: Structure | None = None
    fields: tuple[Field, ...] = ()
    long: bool = False
    size: int | None = None
    framed: bool = True

    @property
    def kind(self) -> int:
        """nnr_unit_type, or -1."""
        return int(self.header.nnr_unit_type) if self.header else -1

    def copy(self) -> Piece:
        """Return another piece with the same parts."""
        described = (self.header, self.content, self.fields, self.long, self.size, self.framed)
        return Piece(self.head, self.tail, self.depth, self.session, *described)

    def joined(self, inside: bytes = b"") -> bytes:
        """Return the bytes of the unit around the units that it contains."""
        body = self.head + self.tail + inside
        if not self.framed:
            return body
        wide = self.long or len(body) + 2 > 0x7FFF
        size = len(body) + 2 + 2 * wide if self.size is None else self.size
        return ((1 << 31 | size & 0x7FFFFFFF).to_bytes(4, "big") if wide else (size & 0x7FFF).to_bytes(2, "big")) + body


def pieces_of(seed: Seed) -> list[Piece]:
    """Return the readable units of a seed, and the rest unchanged."""
    events: list[tuple[Any, ...]] = []
    session = session_for(seed.dimensions, seed.topology, STRICT)
    reader = UnitReader(seed.data, STRICT, session, trace=lambda *event: events.append(event))
    pieces: list[Piece] = []
    end = 0
    try:
        for unit in reader:
            fields = tuple(_fields(seed.data, unit, events))
            events.clear()
            start = unit.offset + (4 if unit.size.nnr_unit_size_flag else 2)
            end = unit.offset + unit.size.nnr_unit_size
            split = end if unit.structure else unit.offset + unit.payload_offset
            is_aggregate = unit.header.nnr_unit_type == NNR_AGG
            tail = b"" if is_aggregate else seed.data[split:end]
            end = split if is_aggregate else end
            pieces.append(
                Piece(
                    seed.data[start:split],
                    tail,
                    unit.depth,
                    private(reader.session),
                    unit.header,
                    unit.structure,
                    fields,
                    bool(unit.size.nnr_unit_size_flag),
                )
            )
    except NnrError:
        pass
    if end < len(seed.data):
        pieces.append(Piece(b"", seed.data[end:], 0, private(reader.session), framed=False))
    return pieces


def private(session: Session) -> Session:
    """Return a session that no other piece changes."""
    session = session.snapshot()
    session.pruned_dimensions = dict(session.pruned_dimensions)
    return session


def _fields(data: bytes, unit: Unit, events: Iterable[tuple[Any, ...]]) -> Iterable[Field]:
    start = 8 * unit.offset
    for path, descriptor, bit, size, value in events:
        if descriptor.kind == "struct" or path.endswith(("nnr_unit_size_flag", "nnr_unit_size")):
            continue
        first, last = start + bit, start + bit + size
        word = int.from_bytes(data[first >> 3 : (last + 7) >> 3], "big") >> (-last & 7) & ((1 << size) - 1)
        yield Field(revise.name_of(path), descriptor.kind, descriptor.n, value, f"{word:0{size}b}" if size else "")


class Mutator:
    """Generator of mutants of seeds.

    Parameters
    ----------
    seeds : sequence of Seed
    live : collection of int
        Numbers of the seeds whose payloads are decoded; most mutants derive from these.
    """

    def __init__(self, seeds: Sequence[Seed], live: Sequence[int]) -> None:
        self.seeds, self.live = seeds, live
        self.pieces = [pieces_of(seed) for seed in seeds]
        self.pool: dict[str, list[Any]] = {}
        for piece in (piece for pieces in self.pieces for piece in pieces):
            for field in piece.fields:
                values = self.pool.setdefault(field.name, [])
                if len(values) < 64 and field.value not in values and field.kind not in ("f", "bs", "bits"):
                    values.append(field.value)

    def mutant(self, kind: str, rnd: random.Random) -> Mutant:
        """Return a mutant of a kind: ``structure`` or ``bytes``; up to `LARGEST` bytes."""
        number = rnd.choice(self.live) if rnd.random() < 0.85 else rnd.randrange(len(self.seeds))
        seed, change = self.seeds[number], self._by_structure if kind == "structure" else self._by_bytes
        data = seed.data
        while data == seed.data:  # an unchanged bitstream is not a mutant
            data = change(number, rnd)[:LARGEST]
        return Mutant(data, seed)

    # -------------------------------------------------------------------------------------------- by structure
    def _by_structure(self, number: int, rnd: random.Random) -> bytes:
        pieces = [piece.copy() for piece in self.pieces[number]]
        done = 0
        for _ in range(9):
            ways, weights = WAYS
            done += rnd.choices(ways, weights)[0](self, pieces, rnd)
            if done and (done > 3 or rnd.random() < 0.7):
                break
        if rnd.random() < 0.04:
            piece = rnd.choice(pieces)
            size = len(piece.head + piece.tail) + 2
            piece.size = rnd.choice((0, 1, 2, 3, size - 1, size + 1, 2 * size, 0x7FFF, 0x7FFFFFFF))
        return assembled(pieces, rnd)

    def _revise(self, pieces: list[Piece], rnd: random.Random) -> bool:
        """Change one or two elements and the elements that depend on them, for parameter sets also in later units."""
        at = rnd.randrange(len(pieces))
        piece = pieces[at]
        if not piece.header:
            return False
        of_header = revise.leaves(piece.header)
        count = of_header + (revise.leaves(piece.content) if piece.content else 0)
        places = [rnd.randrange(count) for _ in range(rnd.choice((1, 1, 1, 2)))]
        try:
            rewrite(piece, piece.session, rnd, places, self.pool)
        except IMPOSSIBLE:
            return False
        if piece.kind in (NNR_STR, NNR_MPS, NNR_LPS, NNR_TPL) and rnd.random() < 0.6:
            _carry(pieces, at, rnd)
        elif piece.kind == NNR_NDU and rnd.random() < 0.5:
            _code_again(piece, rnd)
        return True

    def _field(self, pieces: list[Piece], rnd: random.Random) -> bool:
        """Change the bits of one element, and otherwise only alignments."""
        candidates = [piece for piece in pieces if piece.fields]
        if not candidates:
            return False
        piece = rnd.choice(candidates)
        at = rnd.randrange(len(piece.fields))
        field = piece.fields[at]
        if field.kind in ("f", "bits") or rnd.random() < 0.05:
            bits = field.bits and f"{revise.whole(rnd, len(field.bits), int(field.bits, 2)):0{len(field.bits)}b}"
            bits += "0" * rnd.choice((0, 0, 1, 8, 40))
        else:
            known = self.pool.get(field.name)
            value = rnd.choice(known) if known and rnd.random() < 0.3 else None
            if value is None or type(value) is not type(field.value):
                value = revise.another(rnd, field.kind, field.n, field.value)
            bits = _bits_of(field.kind, field.n, value)
        changed = list(piece.fields)
        changed[at] = field._replace(bits=bits)
        piece.fields = tuple(changed)
        piece.head = packed(piece.fields)
        return True

    def _units(self, pieces: list[Piece], rnd: random.Random) -> bool:
        """Remove, repeat, swap, borrow or truncate a unit, put some into an aggregate, or split one into parts."""
        at = rnd.randrange(len(pieces))
        piece = pieces[at]
        kind = rnd.randrange(8)
        if kind == 0 and len(pieces) > 1:
            del pieces[at]
        elif kind == 1:
            pieces.insert(rnd.randrange(len(pieces) + 1), piece.copy())
        elif kind == 2:
            other = rnd.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        elif kind == 3:
            borrowed = rnd.choice(self.pieces[rnd.randrange(len(self.seeds))]).copy()
            borrowed.depth = piece.depth
            if rnd.random() < 0.3:
                pieces[at] = borrowed
            else:
                pieces.insert(rnd.randrange(at, len(pieces) + 1), borrowed)
        elif kind == 4:
            whole = piece.head + piece.tail
            cut = rnd.randrange(len(whole) + 1)
            piece.head, piece.tail = whole[:cut], rnd.randbytes(rnd.choice((0, 0, 1, 3)))
        elif kind == 5 and at and at + 2 <= len(pieces):
            _wrap(pieces, at, rnd.randint(2, len(pieces) - at), rnd)
        elif kind == 6 and piece.kind == NNR_NDU and piece.header and piece.tail:
            _split(pieces, at, rnd)
        elif kind == 7 and piece.kind == NNR_AGG:
            del pieces[at]
            for inside in pieces[at:]:
                inside.depth = max(0, inside.depth - 1)
        else:
            return False
        return True

    def _payload(self, pieces: list[Piece], rnd: random.Random) -> bool:
        """Change the payload of a compressed data unit."""
        candidates = [piece for piece in pieces if piece.tail and piece.kind == NNR_NDU]
        if not candidates:
            return False
        piece = rnd.choice(candidates)
        kind = rnd.randrange(7)
        if kind < 2:
            return _code_again(piece, rnd)
        data = bytearray(piece.tail)
        at = rnd.randrange(len(data))
        if kind == 2:
            data[at] ^= 1 << rnd.randrange(8)
        elif kind == 3:
            data[at:] = rnd.choice((bytes, lambda n: b"\xff" * n, rnd.randbytes))(rnd.choice((0, 1, 9, len(data))))
        elif kind == 4:
            data[at:at] = rnd.randbytes(rnd.choice((1, 1, 4)))
        elif kind == 5:
            data[at:] = rnd.choice(self.pieces[rnd.choice(self.live)]).tail
        else:
            data[at : at + 4] = rnd.randbytes(4)
        piece.tail = bytes(data)
        return True

    def _large(self, pieces: list[Piece], rnd: random.Random) -> bool:
        """Let a few bytes declare a large tensor, or a product, of one value: up to the limits and beyond."""
        candidates = [piece for piece in pieces if piece.kind == NNR_NDU and piece.session.general_profile_idc]
        if not candidates:
            return False
        piece = rnd.choice(candidates)
        dims = [max(1, (1 << rnd.randint(4, 25)) + rnd.randint(-1, 1))]
        if rnd.random() < 0.7:
            dims = [1 << rnd.randint(1, 12), 1 << rnd.randint(1, 13)]
        one = codebook([rnd.choice((0, 1, -1, 70000))], 0)
        elements: dict[str, Any] = {"codebook_present_flag": 1, "codebook": one}
        name: Any = 0 if piece.session.mps_topology_indexed_reference_flag else "w"
        names, kind = name, NNR_PT_FLOAT
        if len(dims) > 1 and rnd.random() < 0.4:
            names, kind = ([0, 1] if name == 0 else ["w", "v"]), NNR_PT_BLOCK
            rank = 1 << rnd.randint(1, 12)
            elements |= {"codebook_dc": one, "compressed_parameter_types": NNR_CPT_DC}
            elements |= {"decomposition_rank": rank, "g_number_of_rows": dims[0]}
        try:
            header = ndu(names, dims, kind=kind, unary=0, **elements)
            small = ndu(names, [2, 2][: len(dims)], kind=kind, unary=0, **elements)
            if kind == NNR_PT_BLOCK:
                small.decomposition_rank = small.g_number_of_rows = 2
            # A codebook of one entry has no coded levels, whatever their number.
            levels = [np.zeros(part.dims, np.int64) for part in parts(small, piece.session)]
            _, payload = code_levels(small, levels, piece.session, qp=rnd.randint(-3, 3))
            unit = NnrUnitHeader(nnr_unit_type=NNR_NDU, independently_decodable_flag=1, detail=header)
            piece.head = written(unit, None, piece.session)
        except IMPOSSIBLE:
            return False
        piece.header, piece.tail, piece.fields = unit, bytes(payload), ()
        return True

    def _text(self, pieces: list[Piece], rnd: random.Random) -> bool:
        """Change the text of a topology or quantization unit, or the record of side information, and deflate it."""
        candidates = [piece for piece in pieces if piece.kind in (NNR_TPL, NNR_QNT) and piece.content]
        name = "topology_data" if rnd.random() < 0.8 else "quantization_data"
        candidates = [piece for piece in candidates if piece.content is not None and name in piece.content]
        if not candidates:
            return False
        piece = rnd.choice(candidates)
        assert piece.header
        assert piece.content
        detail: Any = piece.header.detail
        prefix = name.partition("_")[0]
        deflated = getattr(detail, f"{prefix}_compression_format") == NNR_DFL
        try:
            data = bytes(getattr(piece.content, name))
            data = zlib.decompress(data) if deflated else data
            if prefix == "topology" and detail.topology_storage_format == RECORD and rnd.random() < 0.9:
                data = mutated(data, rnd)
            else:
                data = revise.blob(rnd, data)
            data = zlib.compress(data) if deflated else data
            piece.content = copy.copy(piece.content)
            setattr(piece.content, name, data)
            piece.head, piece.fields = written(piece.header, piece.content, piece.session), ()
        except (*IMPOSSIBLE, zlib.error):
            return False
        return True

    # -------------------------------------------------------------------------------------------- by bytes
    def _by_bytes(self, number: int, rnd: random.Random) -> bytes:
        data = bytearray(self.seeds[number].data)
        for _ in range(rnd.choice((1, 1, 1, 2, 3, 5, 8))):
            at, kind = rnd.randrange(len(data) + 1), rnd.randrange(9)
            if kind < 3 and at < len(data):
                data[at] ^= 1 << rnd.randrange(8)
            elif kind < 5 and at < len(data):
                data[at] = rnd.choice((0, 1, 0x7F, 0x80, 0xFF, rnd.randrange(256)))
            elif kind == 5:
                data[at : at + rnd.randint(1, 4)] = b""
            elif kind == 6:
                data[at:at] = rnd.randbytes(rnd.randint(1, 4))
            elif kind == 7:
                other = self.seeds[rnd.randrange(len(self.seeds))].data
                start = rnd.randrange(len(other))
                data[at:] = other[start:]
            else:
                start = rnd.randrange(len(data) + 1)
                data[at:at] = data[start : start + rnd.randint(1, 64)]
        if rnd.random() < 0.05:
            del data[rnd.randrange(len(data) + 1) :]
        return bytes(data)


#: Ways to change a mutant by structure, with their weights.
WAYS: tuple[tuple[Callable[[Mutator, list[Piece], random.Random], bool], ...], tuple[int, ...]] = (
    (Mutator._revise, Mutator._field, Mutator._units, Mutator._payload, Mutator._text, Mutator._large),
    (340, 180, 120, 300, 60, 4),
)


# ------------------------------------------------------------------------------------------------ parts of it
def written(header: NnrUnitHeader, content: Structure | None, session: Session) -> bytes:
    """Return the bytes of structures, without nnr_unit_size() and payload."""
    bits = BitWriter()
    Writer(session, bits).write(header)
    head = bits.getvalue()
    if content is None:
        return head
    if header.nnr_unit_type == NNR_TPL:
        session = session.snapshot()
        session.topology_storage_format = header.detail.topology_storage_format  # type: ignore[attr-defined]
    bits = BitWriter()
    Writer(session, bits).write(content)
    return head + bits.getvalue()


def rewrite(
    piece: Piece, session: Session, rnd: random.Random, places: Sequence[int] = (), pool: revise.Pool | None = None
) -> None:
    """Read the structures of a piece again for a session, with changes at ``places``, and write them."""
    assert piece.header
    of_header = revise.leaves(piece.header)
    header = revise.revise(piece.header, session, rnd, places=places, pool=pool)
    content, seen = piece.content, session
    if cls := PAYLOADS.get(header.nnr_unit_type):
        if header.nnr_unit_type == NNR_TPL:
            seen = session.snapshot()
            seen.topology_storage_format = header.detail.topology_storage_format  # type: ignore[attr-defined]
        old = content if type(content) is cls else cls.__new__(cls)
        content = revise.revise(old, seen, rnd, places=[place - of_header for place in places], pool=pool)
    else:
        content = None
    head = written(header, content, seen)
    piece.header, piece.content, piece.head, piece.session, piece.fields = header, content, head, session, ()


def _carry(pieces: list[Piece], at: int, rnd: random.Random) -> None:
    """Write the units after one again, for their new session."""
    session = private(pieces[at].session)
    for k in range(at, len(pieces)):
        piece = pieces[k]
        if not piece.header:
            return
        try:
            if k > at:
                rewrite(piece, private(session), rnd)
            session.activate(piece.header, piece.content, piece.depth)
        except IMPOSSIBLE:
            return


def _code_again(piece: Piece, rnd: random.Random) -> bool:
    """Let the kernel code other levels for the header."""
    assert piece.header
    header: Any = piece.header.detail
    try:
        if header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT:
            values = prod(piece.session.tensor_dimensions(header))
            piece.tail = rnd.randbytes(4 * min(values, MOST_LEVELS))
            return True
        tensors = parts(header, piece.session)
        sizes = [prod(part.dims) for part in tensors]
        if sum(sizes) > MOST_LEVELS or header.cabac_unary_length_minus1 > 40:
            return False
        width = rnd.choice((0, 1, 1, 2, 5, 40, 70000, (1 << 30) - 1, (1 << 31) - 1))
        zeros = (0,) * rnd.choice((0, 3, 20))
        palette = (*zeros, 1, -1, width, -width, *(rnd.randint(-width, width) for _ in range(4)))
        levels = []
        for part, size in zip(tensors, sizes, strict=True):
            low, high = -(1 << 31), (1 << 31) - 1
            if part.codebook:
                low = -part.codebook.cb_zero_offset
                high = low + part.codebook.codebook_size - 1
            values = [min(max(value, low), high) for value in palette]
            levels.append(np.array(rnd.choices(values, k=size), np.int64))
        sides = [_side(rnd, header, piece.session, part) for part in tensors] if rnd.random() < 0.4 else ()
        qp = rnd.choice((0, 0, rnd.randint(-20, 20), -30, 31))
        detail, payload = code_levels(header, levels, piece.session, qp=qp, sides=sides)
        unit = copy.copy(piece.header)
        unit.detail = detail
        piece.head = written(unit, None, piece.session)
    except IMPOSSIBLE:
        return False
    piece.header, piece.tail, piece.fields = unit, bytes(payload), ()
    return True


def _side(rnd: random.Random, header: Any, session: Session, part: Any) -> TensorSide:
    """Return random flags and ids."""
    ids = rnd.choices((0, 0, 0, 1, rnd.randint(2, 8)), k=87 + 4 * (header.cabac_unary_length_minus1 + 1))
    skip = int(tensor_syntax(header, session, part).can_skip_rows) and rnd.getrandbits(1)
    history = skip and header.parent_node_id_present_flag and rnd.getrandbits(1)
    return TensorSide(
        row_skip_enabled_flag=skip,
        hist_dep_sig_prob_enabled_flag=history,
        shift_parameter_ids=np.array(ids, np.uint8),
    )


def _wrap(pieces: list[Piece], at: int, count: int, rnd: random.Random) -> None:
    """Put units into an aggregate."""
    first = pieces[at]
    detail = NnrAggregateUnitHeader(
        nnr_aggregate_unit_type=rnd.choice((NNR_AGG_GEN, NNR_AGG_GEN, 0, 1, 255)),
        entry_points_present_flag=rnd.getrandbits(1),
        quant_bitdepth=[0] * count,
        nnr_reserved_zero_3bits=[0] * count,
    )
    header = NnrUnitHeader(nnr_unit_type=NNR_AGG, detail=detail)
    for piece in pieces[at : at + count]:
        piece.depth += 1
    pieces.insert(at, Piece(b"", b"", first.depth, first.session, header))


def _split(pieces: list[Piece], at: int, rnd: random.Random) -> None:
    """Distribute a payload over units with partial_data_counter, which may be wrong."""
    piece = pieces[at]
    assert piece.header
    count = rnd.randint(2, 4)
    cuts = sorted(rnd.randrange(len(piece.tail) + 1) for _ in range(count - 1))
    counters = list(range(count, 0, -1))
    if rnd.random() < 0.4:
        counters[rnd.randrange(count)] = rnd.choice((0, 1, 2, 255))
    made = []
    for counter, start, stop in zip(counters, (0, *cuts), (*cuts, len(piece.tail)), strict=True):
        header = copy.copy(piece.header)
        header.independently_decodable_flag = 0
        header.partial_data_counter_present_flag, header.partial_data_counter = 1, counter
        try:
            head = written(header, None, piece.session)
        except IMPOSSIBLE:
            return
        made.append(replace(piece, header=header, head=head, tail=piece.tail[start:stop], fields=()))
    pieces[at : at + 1] = made


def assembled(pieces: Sequence[Piece], rnd: random.Random) -> bytes:
    """Return the bytes of all units. Most aggregates get the count, types and entry points of their units."""
    left = list(reversed(pieces))
    made: list[tuple[int, bytes]] = []
    while left:
        made += _level(left, left[-1].depth, rnd)
    return b"".join(data for _, data in made)


def _level(left: list[Piece], depth: int, rnd: random.Random) -> list[tuple[int, bytes]]:
    made = []
    while left and left[-1].depth >= depth:
        piece = left.pop()
        inside = _level(left, piece.depth + 1, rnd) if piece.kind == NNR_AGG else []
        if piece.header and inside and (not piece.head or rnd.random() < 0.9):
            try:
                header = aggregate_header(piece.header, inside, piece.session, piece.long)
                piece.head = written(header, None, piece.session)
            except IMPOSSIBLE:
                pass
        made.append((max(0, piece.kind), piece.joined(b"".join(data for _, data in inside))))
    return made


# ------------------------------------------------------------------------------------------------ bits
def _bits_of(kind: str, n: int, value: Any) -> str:
    """Return the bits of an element; an Exp-Golomb code sometimes gets more leading zeros than any limit permits."""
    if kind == "st":
        data = value.encode("utf-8", "replace") + b"\0"
        return f"{int.from_bytes(data, 'big'):0{8 * len(data)}b}"
    if kind == "bs":
        return f"{int.from_bytes(value, 'big'):0{8 * len(value)}b}" if value else ""
    if kind == "ue" and value == 3:
        return "0" * 300
    writer = BitWriter()
    getattr(writer, kind)(n, value)
    data = writer.getvalue()
    whole = f"{int.from_bytes(data, 'big'):0{8 * len(data)}b}"
    return whole[: writer.pos]


def packed(fields: Iterable[Field]) -> bytes:
    """Return elements one after another, with alignments at their positions."""
    bits: list[str] = []
    position = 0
    for field in fields:
        text = field.bits
        if field.name == "byte_alignment()" and field.bits == _alignment(len(field.bits)):
            text = _alignment(8 - position % 8)
        bits.append(text)
        position += len(text)
    whole = "".join(bits)
    whole += "0" * (-len(whole) % 8)
    return int(whole, 2).to_bytes(len(whole) // 8, "big") if whole else b""


def _alignment(n: int) -> str:
    return "1" + "0" * (n - 1)
