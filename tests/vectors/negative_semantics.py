"""NNR-NEG-132 on: invalid aggregates, pruning information, parameter sets and topology data."""

from __future__ import annotations

from bitarray import bitarray

from nnr_codec.bitstream.units import write_unit
from nnr_codec.constants import NNR_AGG, NNR_DFL, NNR_PT_RAW_FLOAT
from nnr_codec.syntax import BitWriter, Session, Writer
from nnr_codec.syntax.structures import BitMask, NnrAggregateUnitHeader, NnrPruningTopologyContainer, NnrUnitHeader

from ..builder import ndu
from .bits import MPS_HEAD
from .negative_units import HEAD, RAW, bad, raw_named, sized
from .pruning import container
from .stream import Stream
from .topologies import stored

# ------------------------------------------------------------------------------------------------ entry points
UNITS = [raw_named("a"), raw_named("b", 3)]
FIRST = 2 + 1 + 2 + 2 + 2 * 5 + 2 * 1  # bytes before the first unit


def listed(*entries: tuple[int, int]) -> bytes:
    """Return an aggregate of both units with these types and entry points."""
    header = NnrAggregateUnitHeader(
        nnr_aggregate_unit_type=0,
        entry_points_present_flag=1,
        num_of_nnr_units_minus2=0,
        nnr_unit_type=[kind for kind, _ in entries],
        nnr_unit_entry_point=[entry for _, entry in entries],
        quant_bitdepth=[0, 0],
        nnr_reserved_zero_3bits=[0, 0],
    )
    return HEAD + write_unit(NnrUnitHeader(nnr_unit_type=NNR_AGG, detail=header), b"".join(UNITS), Session())


SECOND = FIRST + len(UNITS[0])
for number, (title, rule, entries) in enumerate(
    [
        ("an entry point in the middle of a unit", "aggregate-entry-point", ((5, FIRST), (5, SECOND + 1))),
        (
            "entry points relative to the payload instead of the aggregate",
            "aggregate-entry-point",
            ((5, 0), (5, len(UNITS[0]))),
        ),
        (
            "an entry point at the end of its aggregate",
            "aggregate-entry-point",
            ((5, FIRST), (5, FIRST + sum(map(len, UNITS)))),
        ),
        ("an entry point of 2^34 - 1", "aggregate-entry-point", ((5, FIRST), (5, (1 << 34) - 1))),
        ("a list with wrong unit types", "aggregate-unit-type", ((5, FIRST), (3, SECOND))),
    ],
    132,
):
    bad(
        f"NNR-NEG-{number}",
        title,
        "6.4.3.8",
        "ElementError",
        2,
        listed(*entries),
        features="NNR_AGG entry_points_present_flag",
        requirements=rule,
    )


# ------------------------------------------------------------------------------------------------ pruning information
def unit_of(t: NnrPruningTopologyContainer, indexed: int) -> bytes:
    """Return NNR_TPL with a container, written without a session, which rejects some of them."""
    writer = BitWriter()
    Writer(Session(mps_topology_indexed_reference_flag=indexed), writer).write(t)
    return sized("000011 NNR_TPL", "10 complete", "0x05 NNR_TPL_PRUN", "0x00", f"0x{writer.getvalue().hex()}")


def with_pruning(*containers: NnrPruningTopologyContainer, indexed: int = 0) -> bytes:
    """Return a raw tensor w of 2 x 3 after these containers."""
    s = Stream().start(methods=0, indexed=indexed)
    if indexed:
        s.reference_list("w", "v")
    for t in containers:
        s.add(unit_of(t, indexed))
    header = ndu(0 if indexed else "w", [2, 3], kind=NNR_PT_RAW_FLOAT)
    return s.raw(header, [[1, 2, 3], [4, 5, 6]]).data


NO_BITS = container(sparse=[1])
NO_BITS.sparse_mask = BitMask(bit_mask_value=bitarray())
DICTIONARY, MASK = "NNR_TPL_DICT", "NNR_TPL_BMSK"
for number, (title, features, rule, unit, data) in enumerate(
    [
        (
            "reserved nnr_rep_type 2",
            "nnr_rep_type=2",
            "representation-type",
            2,
            NnrPruningTopologyContainer(nnr_rep_type=2),
        ),
        ("a mask with count_bits 0", f"{MASK} count_bits=0", "prune-counts", 2, NO_BITS),
        ("a dictionary with count_ids 0", f"{DICTIONARY} count_ids=0", "prune-counts", 2, container(dims={})),
        (
            "new dimensions with count_dims 0",
            f"{DICTIONARY} count_dims=0",
            "prune-counts",
            2,
            container(dims={"v": []}),
        ),
        ("a new dimension 0", f"{DICTIONARY} dim=0", "prune-counts", 2, container(dims={"v": [2, 0]})),
        (
            "new dimensions that differ from those of the unit",
            DICTIONARY,
            "prune-dimensions",
            3,
            container(dims={"w": [3, 2]}),
        ),
    ],
    137,
):
    bad(
        f"NNR-NEG-{number}",
        title,
        "6.4.4.5",
        "ElementError",
        unit,
        with_pruning(data),
        features=f"NNR_TPL_PRUN {features}",
        requirements=rule,
    )
bad(
    "NNR-NEG-143",
    "new dimensions of an element that is not in the reference list",
    "6.4.4.5",
    "MissingReferenceError",
    3,
    with_pruning(container(dims={2: [2, 3]}), indexed=1),
    features="NNR_TPL_PRUN NNR_TPL_DICT element_id_index",
    requirements="reference-index",
)
bad(
    "NNR-NEG-144",
    "new dimensions twice for one element, with different values",
    "6.4.4.5",
    "ElementError",
    3,
    with_pruning(container(dims={"v": [2, 3]}), container(dims={"v": [3, 2]})),
    features="NNR_TPL_PRUN NNR_TPL_DICT",
    requirements="prune-dimensions",
)

# ------------------------------------------------------------------------------------------------ parameter sets
for number, (title, error, rule, flags, rest) in enumerate(
    [
        (
            "a performance map of 254 rows in an empty payload",
            "TruncatedError",
            "unit-size",
            "010000000 0000000",
            ("0xff 255", "0x80"),
        ),
        (
            "a base_model_id without its terminating zero",
            "TruncatedError",
            "string",
            "000000000 1000000",
            ("0x626173 'bas'",),
        ),
        ("a base_model_id that is not UTF-8", "ElementError", "string", "000000000 1000000", ("0xff00", "0x80")),
        (
            "a validation result without its metric",
            "TruncatedError",
            "unit-size",
            "000000000 0100000",
            ("0x0000203f 0.625", "0x80"),
        ),
        (
            "bytes after a validation result",
            "ElementError",
            "unit-size",
            "000000000 0100000",
            ("0x00", "0x0000203f", "0x80", "0x00"),
        ),
    ],
    145,
):
    lines = ("".join(flags.split()), *rest)
    bad(
        f"NNR-NEG-{number}",
        title,
        "6.1.3 6.3.4.3",
        error,
        1,
        HEAD[:4] + sized(*MPS_HEAD, *lines) + RAW,
        features="NNR_MPS",
        requirements=rule,
    )


# ------------------------------------------------------------------------------------------------ topology data
def with_topology(data: bytes, storage: int, compression: int, kind: str) -> bytes:
    """Return a tensor after topology or quantization data."""
    s = Stream()
    s.session.general_profile_idc = 1
    getattr(s, kind)(data, storage=storage, compression=compression)
    return HEAD + s.data + RAW


for number, (title, rule, data, storage, compression, kind) in enumerate(
    [
        ("deflated ONNX data without its checksum", "deflate", stored(b"model")[:-2], 2, NNR_DFL, "topology"),
        (
            "bytes after the deflated data of a PyTorch topology",
            "deflate",
            stored(b"net") + b"\0",
            3,
            NNR_DFL,
            "topology",
        ),
        ("a TensorFlow topology with reserved compression format 2", "compression-format", b"net", 4, 2, "topology"),
        (
            "ONNX quantization data with compression format NNR_DFL that is not deflated",
            "deflate",
            b"bits=8",
            2,
            NNR_DFL,
            "quantization",
        ),
    ],
    150,
):
    bad(
        f"NNR-NEG-{number}",
        title,
        "6.4.3.5 6.4.3.6",
        "ElementError",
        2,
        with_topology(data, storage, compression, kind),
        features="topology_data",
        requirements=rule,
    )


# ------------------------------------------------------------------------------------------------ parts of tensors
def in_parts(*parts: tuple[int, str]) -> bytes:
    """Return parts of a raw tensor with these counters and names."""
    s = Stream().start(methods=0)
    for counter, name in parts:
        s.part(ndu(name, [1], kind=NNR_PT_RAW_FLOAT), counter, b"\0")
    return s.data


for number, (title, rules, unit, data) in enumerate(
    [
        ("a part with a different id", "partial-sequence", 3, in_parts((2, "w"), (1, "v"))),
        (
            "a whole tensor after the first of two parts",
            "partial-sequence partial-flag-equal",
            3,
            in_parts((2, "w"), (0, "w")),
        ),
        (
            "the last of 255 parts is missing",
            "partial-sequence",
            None,
            in_parts(*((255 - k, "w") for k in range(254))),
        ),
    ],
    154,
):
    bad(
        f"NNR-NEG-{number}",
        title,
        "6.4.3.1",
        "ElementError",
        unit,
        data,
        features="partial_data_counter",
        requirements=rules,
    )
