"""NNR-NEG-001 to 031: bitstreams rejected because of their units: order, sizes, aggregates, parts, names."""

from __future__ import annotations

from typing import Any

from nnr_codec.constants import NNR_PT_RAW_FLOAT

from ..builder import aggregate, ndu
from .arithmetic import assemble
from .bits import MPS, NAME_W, ONE, STR1, TWO, mps, raw
from .bits import ndu as ndu_bits
from .case import Content, invalid
from .stream import Stream

HEAD = assemble(*STR1, *MPS)
FLOAT_HEAD = assemble(*STR1, *mps(2))
RAW = assemble(*ndu_bits(17, 2, NAME_W, *raw(2)), ONE, TWO)  # [1, 2]


def bad(id_: str, title: str, clauses: str, error: str, unit: int | None, data: bytes, **fields: Any) -> None:
    """Register bytes that decoders must reject."""

    @invalid(id_, title, clauses, fields.pop("features", ""), error, unit, **fields)
    def make() -> Content:
        return Content(data)


def sized(*lines: str) -> bytes:
    """Return a unit of these bits, preceded by its size."""
    body = assemble(*lines)
    return (len(body) + 2).to_bytes(2, "big") + body


def raw_named(name: str, n: int = 1) -> bytes:
    """Return an NNR_PT_RAW_FLOAT unit of ones."""
    s = Stream()
    s.session.general_profile_idc = 1
    return s.raw(ndu(name, [n], kind=NNR_PT_RAW_FLOAT), [1] * n).data


# ------------------------------------------------------------------------------------------------ order of units
bad("NNR-NEG-001", "an empty bitstream", "6.2.3", "ElementError", None, b"", requirements="start-unit")
bad("NNR-NEG-002", "no start unit", "6.2.3", "ElementError", 0, HEAD[4:] + RAW, requirements="start-unit")
bad(
    "NNR-NEG-003",
    "a second start unit",
    "6.2.3 7.1",
    "ElementError",
    3,
    HEAD + RAW + HEAD,
    requirements="one-bitstream",
)
bad(
    "NNR-NEG-004",
    "a tensor before the model parameter set",
    "6.2.3",
    "ElementError",
    1,
    HEAD[:4] + RAW + HEAD[4:],
    requirements="mps-first",
)
bad(
    "NNR-NEG-005",
    "a second model parameter set",
    "6.2.3",
    "ElementError",
    2,
    HEAD + HEAD[4:] + RAW,
    requirements="single-mps",
)
bad(
    "NNR-NEG-006",
    "general_profile_idc 2",
    "6.4.3.2",
    "UnsupportedError",
    0,
    b"\x00\x04\x02\x02" + HEAD[4:] + RAW,
    requirements="profile",
)
bad(
    "NNR-NEG-007",
    "two tensors with the same id",
    "6.2.3",
    "ElementError",
    3,
    HEAD + RAW + RAW,
    requirements="unique-ids",
)

# ------------------------------------------------------------------------------------------------ sizes
bad(
    "NNR-NEG-008",
    "a bitstream of one byte, shorter than a unit size",
    "6.3.2",
    "TruncatedError",
    0,
    b"\0",
    requirements="unit-size",
)
bad(
    "NNR-NEG-009",
    "the last byte of the last unit is missing",
    "6.3.2",
    "TruncatedError",
    2,
    (HEAD + RAW)[:-1],
    requirements="unit-size",
)
bad(
    "NNR-NEG-011",
    "a unit whose size ends inside its header",
    "6.3.2",
    "TruncatedError",
    2,
    HEAD + b"\x00\x06" + RAW[2:6],
    requirements="unit-size",
)
bad("NNR-NEG-012", "nnr_unit_size 0", "6.4.2", "ElementError", 2, HEAD + b"\0\0" + RAW[2:], requirements="unit-size")
bad(
    "NNR-NEG-013",
    "nnr_unit_size 2, the length of the size field",
    "6.4.2",
    "ElementError",
    2,
    HEAD + b"\0\2" + RAW,
    requirements="unit-size",
)
bad(
    "NNR-NEG-014",
    "nnr_unit_size 2^31 - 1",
    "6.3.2",
    "TruncatedError",
    2,
    HEAD + b"\xff\xff\xff\xff" + RAW[2:],
    requirements="unit-size",
)
bad(
    "NNR-NEG-015",
    "a zero byte after the last unit",
    "6.3.2",
    "TruncatedError",
    3,
    HEAD + RAW + b"\0",
    requirements="unit-size",
)
bad(
    "NNR-NEG-016",
    "bytes after byte_alignment() of the model parameter set",
    "6.3.4.3",
    "ElementError",
    1,
    HEAD[:4] + b"\x00\x08" + HEAD[6:] + b"\0\0" + RAW,
    requirements="unit-size",
)

# ------------------------------------------------------------------------------------------------ aggregates
AGG = aggregate([raw_named("a"), raw_named("b")])
bad(
    "NNR-NEG-017",
    "an aggregate of two units that declares three",
    "6.4.3.8 6.4.4.8",
    "ElementError",
    2,
    HEAD + aggregate([raw_named("a"), raw_named("b")], count=3),
    features="NNR_AGG",
    requirements="aggregate-count",
)
bad(
    "NNR-NEG-018",
    "an aggregate of three units that declares two",
    "6.4.3.8 6.4.4.8",
    "ElementError",
    2,
    HEAD + aggregate([raw_named("a"), raw_named("b"), raw_named("c")], count=2),
    features="NNR_AGG",
    requirements="aggregate-count",
)
bad(
    "NNR-NEG-019",
    "a unit that extends beyond its aggregate",
    "6.4.4.8",
    "TruncatedError",
    4,
    HEAD + (len(AGG) - 1).to_bytes(2, "big") + AGG[2:],
    features="NNR_AGG",
    requirements="unit-size",
)
nest = aggregate([raw_named("a"), raw_named("b")])
for k in range(4):
    nest = aggregate([nest, raw_named(f"c{k}")])
bad(
    "NNR-NEG-020",
    "five nested aggregates, with max_agg_depth 4",
    "6.3.4.8",
    "LimitError",
    6,
    HEAD + nest,
    features="NNR_AGG",
    limits={"max_agg_depth": 4},
    requirements="limits",
)


# ------------------------------------------------------------------------------------------------ parts of tensors
def parts(*counters: int, name: str = "w", end: bytes = b"") -> bytes:
    """Return a bitstream with these parts of a raw tensor."""
    s = Stream().start(methods=0)
    for counter in counters:
        s.part(ndu(name, [1], kind=NNR_PT_RAW_FLOAT), counter, b"\x80")
    return s.data + end


bad(
    "NNR-NEG-021",
    "part 1 of 3 after part 3",
    "6.4.3.1",
    "ElementError",
    3,
    parts(3, 1),
    features="partial_data_counter",
    requirements="partial-sequence",
)
bad(
    "NNR-NEG-022",
    "the same part twice",
    "6.4.3.1",
    "ElementError",
    3,
    parts(2, 2),
    features="partial_data_counter",
    requirements="partial-sequence",
)
bad(
    "NNR-NEG-023",
    "the last part is missing",
    "6.4.3.1",
    "ElementError",
    None,
    parts(3, 2),
    features="partial_data_counter",
    requirements="partial-sequence",
)
bad(
    "NNR-NEG-024",
    "another tensor between the parts",
    "6.4.3.1",
    "ElementError",
    3,
    parts(2, end=raw_named("v")),
    features="partial_data_counter",
    requirements="partial-sequence",
)

# ------------------------------------------------------------------------------------------------ names and lists
bad(
    "NNR-NEG-025",
    "an id that is not UTF-8",
    "6.1.3",
    "ElementError",
    2,
    HEAD + RAW.replace(b"w", b"\xff"),
    features="st(v)",
    requirements="string",
)
bad(
    "NNR-NEG-026",
    "an id without its terminating zero",
    "6.1.3",
    "TruncatedError",
    2,
    HEAD + b"\x00\x0b\x16\x11wwwwwww",
    features="st(v)",
    requirements="string",
)
bad(
    "NNR-NEG-027",
    "an id of 65 bytes, with max_name_bytes 64",
    "6.1.3",
    "LimitError",
    2,
    HEAD + raw_named("w" * 65),
    features="st(v)",
    limits={"max_name_bytes": 64},
    requirements="limits",
)


def listed(index: int, *names: str) -> bytes:
    """Return a tensor by index, after a reference list of ``names`` if any."""
    s = Stream().start(indexed=1, methods=0)
    if names:
        s.reference_list(*names)
    return s.raw(ndu(index, [1], kind=NNR_PT_RAW_FLOAT), [1]).data


bad(
    "NNR-NEG-028",
    "an index outside the reference list",
    "6.4.3.7",
    "MissingReferenceError",
    3,
    listed(2, "a", "b"),
    features="topology_elem_id_index",
    requirements="reference-index",
)
bad(
    "NNR-NEG-029",
    "an index without a reference list",
    "6.4.3.7",
    "MissingReferenceError",
    2,
    listed(0),
    features="topology_elem_id_index",
    requirements="reference-index",
)
bad(
    "NNR-NEG-030",
    "two tensors with the same index",
    "6.2.3",
    "ElementError",
    4,
    listed(1, "a", "b") + listed(1)[10:],
    features="topology_elem_id_index",
    requirements="unique-ids",
)
bad(
    "NNR-NEG-031",
    "unknown dimensions: absent in the unit, no topology",
    "6.4.3.7",
    "MissingReferenceError",
    2,
    HEAD + b"\x00\x0b\x16\x11w\0\x01" + b"\0" * 4,
    features="tensor_dimensions_flag=0",
    requirements="dimensions-known",
)
