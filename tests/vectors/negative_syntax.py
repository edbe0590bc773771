"""NNR-NEG-050 on: headers with reserved, contradictory or excessive values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnr_codec.constants import NNR_PT_BLOCK, NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.syntax.structures import IntegerCodebook

from ..builder import ndu
from .bits import NAME_W
from .bits import ndu as ndu_bits
from .case import Content, invalid
from .negative_units import HEAD, RAW, bad, raw_named, sized
from .stream import Stream

#: A payload with only a terminating bin; decoders reject most cases before reading it.
END = b"\xfe\x80"


def header(id_: str, title: str, clauses: str, error: str, features: str = "", unit: int = 2, **options: Any) -> None:
    """Register a bitstream of one tensor with an invalid header; ``options`` are arguments of `tests.builder.ndu`."""
    fields = {key: options.pop(key) for key in ("limits", "requirements") if key in options}
    payload, profile = options.pop("payload", END), options.pop("profile", 1)
    after = options.pop("after", b"")
    methods = options.pop("methods", 1)
    names, dims = options.pop("names", "w"), options.pop("dims", [2, 2])

    @invalid(id_, title, clauses, features, error, unit, **fields)
    def make() -> Content:
        s = Stream().start(profile, methods=methods)
        s.ndu(ndu(names, dims, **options), payload=payload)
        s.add(after)
        return s.refused()


# ------------------------------------------------------------------------------------------------ reserved values
bad(
    "NNR-NEG-050",
    "reserved payload type 4",
    "7.3.1",
    "ElementError",
    2,
    HEAD + RAW[:3] + b"\x21" + RAW[4:],
    requirements="payload-type",
)
MATRIX = ("0 node_id_present_flag", "0 dq_flag", "100000 dimensions", "0100 2", "10000010 2", "10000010 2", "10 shift")
for number, scan in ((52, 5), (53, 15)):
    unit = sized(*ndu_bits(0, 0, NAME_W, *MATRIX, f"{scan:04b}", "100000")[1:], "0xfe80")
    bad(
        f"NNR-NEG-{number:03}",
        f"reserved scan_order {scan}",
        "6.4.3.7",
        "ElementError",
        2,
        HEAD + unit,
        requirements="scan-order",
    )
header(
    "NNR-NEG-054",
    "reserved nnr_decompressed_data_format 10",
    "7.2",
    "ElementError",
    data_format=10,
    requirements="data-format",
)
header(
    "NNR-NEG-055",
    "an integer format for floats",
    "6.4.3.7",
    "ElementError",
    data_format=0,
    requirements="data-format-kind",
)
header(
    "NNR-NEG-056",
    "a float format for integers",
    "6.4.3.7",
    "ElementError",
    data_format=1,
    kind=NNR_PT_INT,
    requirements="data-format-kind",
)
header(
    "NNR-NEG-057",
    "a format of profile 1 in profile 0",
    "6.4.3.7 7.2",
    "ElementError",
    data_format=8,
    profile=0,
    requirements="data-format",
)

# ------------------------------------------------------------------------------------------------ dimensions
header("NNR-NEG-058", "a dimension of 0", "6.4.3.7 7.3", "ElementError", dims=[2, 0], requirements="tensor-dimensions")
header(
    "NNR-NEG-059",
    "integers without dimensions",
    "6.4.3.7 7.3",
    "ElementError",
    dims=[],
    kind=NNR_PT_INT,
    requirements="tensor-dimensions",
)
header(
    "NNR-NEG-060",
    "a tensor of 4 TiB",
    "6.4.3.7",
    "LimitError",
    dims=[1 << 20, 1 << 20],
    limits={"preset": "strict"},
    requirements="limits",
)
header(
    "NNR-NEG-062",
    "17 dimensions, with max_dims 16",
    "6.4.3.7",
    "LimitError",
    dims=[1] * 17,
    limits={"max_dims": 16},
    requirements="limits",
)
header(
    "NNR-NEG-063",
    "first_tensor_dimension_shift 2 for two dimensions",
    "6.4.3.7",
    "ElementError",
    first_tensor_dimension_shift=2,
    requirements="first-dimension-shift",
)
bad(
    "NNR-NEG-064",
    "an Exp-Golomb code with 40 leading zeros, with max_eg_bits 32",
    "6.1.3",
    "LimitError",
    2,
    HEAD + sized(*ndu_bits(0, 0, NAME_W, "0", "0", "100000", "11", "0" * 40, "1" + "0" * 45)[1:], "0xfe80"),
    features="ue(k)",
    limits={"max_eg_bits": 32},
    requirements="limits",
)


# ------------------------------------------------------------------------------------------------ byte_alignment()
def aligned(last: int) -> bytes:
    """Return the raw tensor with these last bits instead of 1000000."""
    return HEAD + RAW[:8] + bytes([RAW[8] & 0x80 | last]) + RAW[9:]


bad(
    "NNR-NEG-065",
    "byte_alignment() without the bit equal to one",
    "6.3.5",
    "ElementError",
    2,
    aligned(0b0000000),
    requirements="byte-alignment",
)
bad(
    "NNR-NEG-066",
    "byte_alignment() with a second bit equal to one",
    "6.3.5",
    "ElementError",
    2,
    aligned(0b1000001),
    requirements="byte-alignment",
)


# ------------------------------------------------------------------------------------------------ codebooks
def book(
    id_: str,
    title: str,
    error: str,
    size: int,
    centre: int,
    zero: int,
    left: Sequence[int],
    right: Sequence[int],
    **options: Any,
) -> None:
    """Register an invalid codebook."""
    codebook = IntegerCodebook(
        codebook_egk=0,
        codebook_size=size,
        codebook_centre_offset=centre,
        codebook_zero_value=zero,
        codebook_delta_left=list(left),
        codebook_delta_right=list(right),
    )
    header(id_, title, "6.3.3.7 6.4.3.7", error, "codebook", codebook_present_flag=1, codebook=codebook, **options)


book(
    "NNR-NEG-067",
    "CbZeroOffset outside the codebook",
    "ElementError",
    3,
    2,
    0,
    [0, 0, 0],
    [],
    requirements="codebook-offset",
)
book("NNR-NEG-068", "negative CbZeroOffset", "ElementError", 3, -2, 0, [], [0, 0, 0], requirements="codebook-offset")
book("NNR-NEG-069", "a codebook without entries", "ElementError", 0, 0, 0, [], [], requirements="codebook-offset")
book("NNR-NEG-070", "codebook entry 2^31", "ElementError", 2, -1, 2**31 - 1, [], [0], requirements="codebook-values")
book(
    "NNR-NEG-072",
    "a codebook of 5,000 entries",
    "LimitError",
    5000,
    -2500,
    0,
    [],
    [0] * 4999,
    limits={"preset": "strict"},
    requirements="limits",
)

# ------------------------------------------------------------------------------------------------ several tensors
SPLIT: dict[str, Any] = {
    "names": ["a", "b"],
    "kind": NNR_PT_RAW_FLOAT,
    "payload": bytes(16),
    "features": "TensorSplit",
    "clauses": "4.12 7.3.1",
    "requirements": "split-mapping",
}


def split(id_: str, title: str, **options: Any) -> None:
    """Register a raw matrix of 2 x 2 with an invalid split."""
    given = {"concatentation_axis_index": 0, "split_index": [1], "number_of_shifts": [0, 0]} | options
    header(id_, title, error="ElementError", **SPLIT, **given)


split("NNR-NEG-073", "split_index equal to the dimension", split_index=[2])
split(
    "NNR-NEG-075",
    "concatentation_axis_index 2 for two dimensions",
    concatentation_axis_index=2,
)
split(
    "NNR-NEG-076",
    "an axis shifted to a position before the first",
    number_of_shifts=[0, 1],
    shift_index=[[], [1]],
    shift_value=[[], [2]],
)


def block(id_: str, title: str, names: Any, types: int, clauses: str = "6.4.3.7", **options: Any) -> None:
    """Register an invalid block."""
    header(
        id_,
        title,
        clauses,
        "ElementError",
        "NNR_PT_BLOCK",
        names=names,
        kind=NNR_PT_BLOCK,
        compressed_parameter_types=types,
        **options,
    )


block(
    "NNR-NEG-077", "two ids for a weight with bias and local scaling", ["w", "b"], 0b1010, requirements="block-elements"
)
block("NNR-NEG-078", "three ids for a weight with bias", ["w", "b", "c"], 0b1000, requirements="block-elements")
block("NNR-NEG-079", "a single id for a weight with bias", "w", 0b1000, requirements="block-elements")
block("NNR-NEG-080", "a block with only a weight", ["w", "b"], 0, requirements="block-parameters")
block(
    "NNR-NEG-081",
    "G with 3 rows for a tensor of 4 elements",
    ["g", "h"],
    1,
    decomposition_rank=1,
    g_number_of_rows=3,
    requirements="decomposition-dimensions",
)
block(
    "NNR-NEG-082",
    "decomposition rank 0",
    ["g", "h"],
    1,
    decomposition_rank=0,
    g_number_of_rows=2,
    requirements="decomposition-dimensions",
)

# ------------------------------------------------------------------------------------------------ decomposed, raw
G: dict[str, Any] = {"compressed_parameter_types": 1, "decomposition_rank": 1, "g_number_of_rows": 2, "dims": [2, 2]}


def lonely(after: bytes) -> Content:
    """Return a stream with G and without H."""
    s = Stream().start()
    s.ndu(ndu("g", kind=NNR_PT_FLOAT, **G), [[1], [2]])
    s.add(after)
    return s.refused()


@invalid(
    "NNR-NEG-083",
    "a different tensor after G",
    "6.4.3.7",
    "NNR_CPT_DC",
    "ElementError",
    3,
    requirements="decomposition-pair",
)
def other_after_g() -> Content:
    return lonely(raw_named("v"))


@invalid(
    "NNR-NEG-084",
    "the bitstream ends after G",
    "6.4.3.7",
    "NNR_CPT_DC",
    "ElementError",
    None,
    requirements="decomposition-pair",
)
def nothing_after_g() -> Content:
    return lonely(b"")


@invalid(
    "NNR-NEG-199",
    "a layer parameter set between G and H",
    "6.4.3.7",
    "NNR_CPT_DC NNR_LPS",
    "ElementError",
    3,
    requirements="decomposition-pair",
)
def layer_after_g() -> Content:
    s = Stream().start()
    s.ndu(ndu("g", kind=NNR_PT_FLOAT, **G), [[1], [2]]).lps(2).ndu(ndu("h", kind=NNR_PT_FLOAT, **G), [[3, 4]])
    return s.refused()


header(
    "NNR-NEG-085",
    "raw parameters as G",
    "7.3.4",
    "ElementError",
    kind=NNR_PT_RAW_FLOAT,
    payload=bytes(8),
    **G,
    requirements="decomposition-payload",
)


@invalid(
    "NNR-NEG-086",
    "quantized floats without a QpDensity in any parameter set",
    "6.4.4.3",
    "mps_quantization_method_flags=0",
    "ElementError",
    2,
    requirements="quantization-parameters",
)
def no_density() -> Content:
    s = Stream().start(methods=0)
    s.ndu(ndu("w", [2]), payload=END)
    return s.refused()


# ------------------------------------------------------------------------------------------------ pruning information
def pruned(*lines: str) -> bytes:
    """Return a topology unit of format NNR_TPL_PRUN with these bits."""
    return HEAD + sized("000011 NNR_TPL", "10 complete", "0x05 NNR_TPL_PRUN", "0x00", *lines) + RAW


bad(
    "NNR-NEG-087",
    "a bit mask of 2^32 - 1 bits in one byte",
    "6.3.4.5",
    "TruncatedError",
    2,
    pruned("00 1 0 0 000".replace(" ", ""), "0xffffffff", "0xaa"),
    features="NNR_TPL_PRUN",
    requirements="unit-size",
)
bad(
    "NNR-NEG-088",
    "half a million ids in an empty payload",
    "6.3.4.5",
    "TruncatedError",
    2,
    pruned("01100000", "0" * 12 + "1" + "0" * 19, "0x8000"),
    features="NNR_TPL_PRUN",
    requirements="string",
)
