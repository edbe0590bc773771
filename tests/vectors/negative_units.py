"""NNR-NEG-001 to 049: bitstreams refused for their units: order, sizes, aggregates, parts, names, topology, updates."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from nnr_codec.constants import NNR_DFL, NNR_PT_INT, NNR_PT_RAW_FLOAT

from ..builder import aggregate, ndu, update_ndu
from .arithmetic import assemble
from .byhand import MPS, MPS_HEAD, NAME_W, ONE, STR1, TWO, mps, raw
from .byhand import ndu as ndu_bits
from .case import Content, Tensor, invalid
from .stream import Stream

HEAD = assemble(*STR1, *MPS)
FLOAT_HEAD = assemble(*STR1, *mps(2))
RAW = assemble(*ndu_bits(17, 2, NAME_W, *raw(2)), ONE, TWO)  # [1, 2]


def bad(id_: str, title: str, clauses: str, error: str, unit: int | None, data: bytes, **fields: Any) -> None:
    """Register bytes that are refused."""

    @invalid(id_, title, clauses, fields.pop("features", ""), error, unit, **fields)
    def make() -> Content:
        return Content(data)


def sized(*lines: str) -> bytes:
    """A unit of these bits with its size before them."""
    body = assemble(*lines)
    return (len(body) + 2).to_bytes(2, "big") + body


def raw_named(name: str, n: int = 1) -> bytes:
    """An NNR_PT_RAW_FLOAT unit of ones."""
    s = Stream()
    s.session.general_profile_idc = 1
    return s.raw(ndu(name, [n], kind=NNR_PT_RAW_FLOAT), [1] * n).data


# ------------------------------------------------------------------------------------------------ order of units
bad("NNR-NEG-001", "no unit at all", "6.2.3", "ElementError", None, b"")
bad("NNR-NEG-002", "no start unit", "6.2.3", "ElementError", 0, HEAD[4:] + RAW)
bad("NNR-NEG-003", "a second start unit", "6.2.3 7.1", "ElementError", 3, HEAD + RAW + HEAD)
bad("NNR-NEG-004", "a tensor before the model parameter set", "6.2.3", "ElementError", 1, HEAD[:4] + RAW + HEAD[4:])
bad("NNR-NEG-005", "a second model parameter set", "6.2.3", "ElementError", 2, HEAD + HEAD[4:] + RAW)
bad("NNR-NEG-006", "general_profile_idc 2", "6.4.3.2", "UnsupportedError", 0, b"\x00\x04\x02\x02" + HEAD[4:] + RAW)
bad("NNR-NEG-007", "an id twice", "6.2.3", "ElementError", 3, HEAD + RAW + RAW)

# ------------------------------------------------------------------------------------------------ sizes
bad("NNR-NEG-008", "one byte, not even a size", "6.3.2", "TruncatedError", 0, b"\0")
bad("NNR-NEG-009", "the last unit lacks its last byte", "6.3.2", "TruncatedError", 2, (HEAD + RAW)[:-1])
bad("NNR-NEG-010", "the last unit ends inside its header", "6.3.2", "TruncatedError", 2, HEAD + RAW[:6])
bad("NNR-NEG-011", "a unit whose own size ends inside the header", "6.3.2", "TruncatedError", 2, HEAD + b"\x00\x06" + RAW[2:6])
bad("NNR-NEG-012", "nnr_unit_size 0", "6.4.2", "ElementError", 2, HEAD + b"\0\0" + RAW[2:])
bad("NNR-NEG-013", "nnr_unit_size 2, the size of the field alone", "6.4.2", "ElementError", 2, HEAD + b"\0\2" + RAW)
bad("NNR-NEG-014", "nnr_unit_size 2^31 - 1", "6.3.2", "TruncatedError", 2, HEAD + b"\xff\xff\xff\xff" + RAW[2:])
bad("NNR-NEG-015", "a zero byte after the last unit", "6.3.2", "TruncatedError", 3, HEAD + RAW + b"\0")
bad("NNR-NEG-016", "bytes after byte_alignment() of the model parameter set", "6.3.4.3", "ElementError", 1, HEAD[:4] + b"\x00\x08" + HEAD[6:] + b"\0\0" + RAW)

# ------------------------------------------------------------------------------------------------ aggregates
AGG = aggregate([raw_named("a"), raw_named("b")])
bad("NNR-NEG-017", "an aggregate of two units that declares three", "6.4.3.8 6.4.4.8", "ElementError", 4, HEAD + aggregate([raw_named("a"), raw_named("b")], count=3), features="NNR_AGG")
bad("NNR-NEG-018", "an aggregate of three units that declares two", "6.4.3.8 6.4.4.8", "ElementError", 5, HEAD + aggregate([raw_named("a"), raw_named("b"), raw_named("c")], count=2), features="NNR_AGG")
bad("NNR-NEG-019", "a unit that goes beyond its aggregate", "6.4.4.8", "TruncatedError", 4, HEAD + (len(AGG) - 1).to_bytes(2, "big") + AGG[2:], features="NNR_AGG")
nest = aggregate([raw_named("a"), raw_named("b")])
for k in range(4):
    nest = aggregate([nest, raw_named(f"c{k}")])
bad("NNR-NEG-020", "five aggregates around a unit under max_agg_depth 4", "6.3.4.8", "LimitError", 6, HEAD + nest, features="NNR_AGG", limits={"max_agg_depth": 4})


# ------------------------------------------------------------------------------------------------ parts of tensors
def parts(*counters: int, name: str = "w", end: bytes = b"") -> bytes:
    """A raw tensor of which these parts come."""
    s = Stream().start(methods=0)
    for counter in counters:
        s.part(ndu(name, [1], kind=NNR_PT_RAW_FLOAT), counter, b"\x80")
    return s.data + end


bad("NNR-NEG-021", "part 1 of 3 after part 3", "6.4.3.1", "ElementError", 3, parts(3, 1), features="partial_data_counter")
bad("NNR-NEG-022", "the same part twice", "6.4.3.1", "ElementError", 3, parts(2, 2), features="partial_data_counter")
bad("NNR-NEG-023", "the last part never comes", "6.4.3.1", "ElementError", None, parts(3, 2), features="partial_data_counter")
bad("NNR-NEG-024", "another tensor between the parts", "6.4.3.1", "ElementError", 3, parts(2, end=raw_named("v")), features="partial_data_counter")

# ------------------------------------------------------------------------------------------------ names and lists
bad("NNR-NEG-025", "an id that is not UTF-8", "6.1.3", "ElementError", 2, HEAD + RAW.replace(b"w", b"\xff"), features="st(v)")
bad("NNR-NEG-026", "an id without its terminating zero", "6.1.3", "TruncatedError", 2, HEAD + b"\x00\x0b\x16\x11wwwwwww", features="st(v)")
bad("NNR-NEG-027", "an id of 65 bytes under max_name_bytes 64", "6.1.3", "LimitError", 2, HEAD + raw_named("w" * 65), features="st(v)", limits={"max_name_bytes": 64})


def listed(index: int, *names: str) -> bytes:
    """A tensor by index, after a reference list if there are names."""
    s = Stream().start(indexed=1, methods=0)
    if names:
        s.reference_list(*names)
    return s.raw(ndu(index, [1], kind=NNR_PT_RAW_FLOAT), [1]).data


bad("NNR-NEG-028", "an index beyond the reference list", "6.4.3.7", "MissingReferenceError", 3, listed(2, "a", "b"), features="topology_elem_id_index")
bad("NNR-NEG-029", "an index without a reference list", "6.4.3.7", "MissingReferenceError", 2, listed(0), features="topology_elem_id_index")
bad("NNR-NEG-030", "an index twice", "6.2.3", "ElementError", 4, listed(1, "a", "b") + listed(1)[10:], features="topology_elem_id_index")
bad("NNR-NEG-031", "dimensions neither in the unit nor known otherwise", "6.4.3.7", "MissingReferenceError", 2, HEAD + b"\x00\x0b\x16\x11w\0\x01" + b"\0" * 4, features="tensor_dimensions_flag=0")

# ------------------------------------------------------------------------------------------------ topology
TOPOLOGY = assemble(*STR1, "0x0006 nnr_unit_size 6", *MPS_HEAD, "0x8000", "0x80")


def topology(data: bytes, compression: int = 0, kind: str = "topology") -> bytes:
    """A bitstream with a topology or quantization unit of these bytes, and a tensor."""
    s = Stream()
    s.session.general_profile_idc = 1
    getattr(s, kind)(data, compression=compression)
    return TOPOLOGY + s.data + RAW


TEXT = b"version 1.0; graph net(i) -> (o) {}\0"
WHOLE = zlib.compress(TEXT, 0)  # one stored block
DAMAGED = bytearray(WHOLE)
DAMAGED[10] ^= 1  # the checksum tells


def bomb(length: int) -> bytes:
    """A zlib stream of ``length`` bytes 'A': fixed codes, one literal and copies of 258 bytes."""
    bits = "1" + "10" + "01110001"  # final block, fixed codes (least significant bit first), literal 'A' (0x41)
    copies, rest = divmod(length - 1, 258)
    bits += "1100010100000" * copies + "01110001" * rest + "0000000"
    bits += "0" * (-len(bits) % 8)
    body = bytes(int(bits[k : k + 8][::-1], 2) for k in range(0, len(bits), 8))
    return b"\x78\x01" + body + zlib.adler32(b"A" * length).to_bytes(4, "big")


for number, (title, error, data, compression, kind, limits) in enumerate(
    [
        ("a topology without its terminating zero", "ElementError", TEXT[:-1], 0, "topology", {}),
        ("a topology with a zero inside", "ElementError", b"a\0" + TEXT, 0, "topology", {}),
        ("a topology of reserved compression format 2", "ElementError", TEXT, 2, "topology", {}),
        ("deflated data that its checksum does not fit", "ElementError", bytes(DAMAGED), NNR_DFL, "topology", {}),
        ("deflated data that ends too early", "ElementError", WHOLE[:-6], NNR_DFL, "topology", {}),
        ("bytes after deflated data", "ElementError", WHOLE + b"\0", NNR_DFL, "topology", {}),
        ("a topology that is not deflated, said to be", "ElementError", TEXT, NNR_DFL, "topology", {}),
        (
            "256 KiB in 1.6 KB under max_topology_bytes 65536",
            "LimitError",
            bomb(1 << 18),
            NNR_DFL,
            "topology",
            {"max_topology_bytes": 65536},
        ),
        ("deflated quantization data without its terminating zero", "ElementError", zlib.compress(TEXT[:-1], 0), NNR_DFL, "quantization", {}),
    ],
    32,
):
    bad(f"NNR-NEG-{number:03}", title, "6.4.3.5 A.4", error, 2, topology(data, compression, kind), features="topology_data", limits=limits)


# ------------------------------------------------------------------------------------------------ updates
def update(*depths: int, dims: tuple[tuple[int, ...], ...] = ((2, 3), (2, 3)), temporal: int = 0, device: int = 0) -> list[Content]:
    """Bitstreams of updates of these depths, of which the last one is refused."""
    made = []
    for k, depth in enumerate(depths):
        shape = dims[k]
        levels = [j % 3 for j in range(shape[0] * shape[1])]
        s = Stream().start(parent=int(depth > 0))
        header = update_ndu("w", shape, depth, kind=NNR_PT_INT, device=device * k)
        header.temporal_context_modeling_flag = temporal if depth else 0
        s.ndu(header, levels)
        last = k == len(depths) - 1
        made.append(s.refused() if last else s.gives({"w": _array(levels, shape)}))
    return made


def _array(levels: list[int], shape: tuple[int, ...]) -> Tensor:
    return np.array(levels, np.int32).reshape(shape)


def bad_updates(id_: str, title: str, *depths: int, **options: Any) -> None:
    """Register updates of which the last has no parent."""

    @invalid(id_, title, "6.4.3.7 10.3.4.2.2", "put_node_depth", "MissingReferenceError", 2)
    def make() -> list[Content]:
        return update(*depths, **options)


bad_updates("NNR-NEG-041", "the second update without the first", 2)
bad_updates("NNR-NEG-042", "the third update after the first", 1, 3, temporal=1)
bad_updates("NNR-NEG-043", "the second update of another device", 1, 2, device=1)
bad_updates("NNR-NEG-044", "temporal contexts, but the update before has another shape", 1, 2, dims=((2, 3), (3, 2)), temporal=1)
