"""Tables of values, of numbers and of tools, and the decoding steps that no syntax table shows.

Each row lists the items that vectors must reach (see `walk`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntFlag

from nnr_codec.constants import DecompressedDataFormat
from nnr_codec.syntax import structures
from nnr_codec.syntax.docs import CLASSES, comments, meaning_of, value_tables

from .listing import REACHED, Line, Listing
from .sources import Sources
from .walk import Reached


@dataclass(frozen=True)
class Row:
    """Row of a value table.

    Parameters
    ----------
    text : str
    needed : tuple of Reached
        Items that reach the row.
    every : bool
        Whether all items are required, by any vectors; otherwise one is sufficient.
    """

    text: str
    needed: tuple[Reached, ...]
    every: bool = False


@dataclass(frozen=True)
class ValueTable:
    """Table with name, clause and rows."""

    name: str
    clause: str
    rows: tuple[Row, ...]


#: Values that are not in the enumerations.
_OUTSIDE: dict[str, tuple[tuple[str, range], ...]] = {
    "nnr_unit_type": (("7..31 reserved", range(7, 32)), ("32..63 unspecified", range(32, 64))),
    "topology_storage_format": (("7..127 reserved", range(7, 128)), ("128..255 unspecified", range(128, 256))),
    "topology_compression_format": (("2..255 reserved", range(2, 256)),),
    "quantization_storage_format": (("5..127 reserved", range(5, 128)), ("128..255 unspecified", range(128, 256))),
    "quantization_compression_format": (("2..255 reserved", range(2, 256)),),
    "nnr_aggregate_unit_type": (("2..127 reserved", range(2, 128)), ("128..255 unspecified", range(128, 256))),
    "mps_quantization_method_flags": (("4..7 reserved", range(4, 8)),),
    "lps_quantization_method_flags": (("4..7 reserved", range(4, 8)),),
    "nnr_rep_type": (("2..3 reserved", range(2, 4)),),
    "nnr_compressed_data_unit_payload_type": (("4..31 reserved", range(4, 32)),),
    "nnr_decompressed_data_format": (("10..127 reserved", range(10, 128)),),
}

#: Elements without an enumeration and with distinguished values: clause and values.
_VALUED: dict[str, tuple[str, tuple[tuple[str, range], ...]]] = {
    "general_profile_idc": ("6.4.3.2", (("0", range(1)), ("1", range(1, 2)), ("2..255", range(2, 256)))),
    "scan_order": ("6.4.3.7", (*((str(k), range(k, k + 1)) for k in range(5)), ("5..15 reserved", range(5, 16)))),
    "mps_qp_density": ("6.4.4.3", tuple((str(k), range(k, k + 1)) for k in range(8))),
    "lps_qp_density": ("6.4.4.4", tuple((str(k), range(k, k + 1)) for k in range(8))),
    "ctu_scan_order": ("6.4.3.8", (("0: horizontal", range(1)), ("1: vertical", range(1, 2)))),
    "dq_state_list": ("6.4.3.7", tuple((str(k), range(k, k + 1)) for k in range(8))),
}

#: Clauses of the elements of tables, by the number of the table.
_CLAUSES = {
    "3": "6.4.3.1",
    "4": "6.4.3.5",
    "5": "6.4.3.5",
    "6": "6.4.3.6",
    "7": "6.4.3.6",
    "8": "6.4.3.7",
    "9": "6.4.3.7",
    "10": "6.4.3.8",
    "11": "6.4.4.3",
    "12": "6.4.4.4",
    "13": "6.4.4.5",
    "15": "7.2",
    "16": "7.3.1",
}

#: Tables 17 to 28: title, clause, and the elements of the tool, with a value if only this value counts.
_TOOLS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("17, sparsification using compressibility loss", "8.3.1", ("tensor_dimensions[j]",)),
    (
        "18, sparsification using micro-structured pruning; 22, weight unification",
        "8.3.2",
        (
            "count_resaped_tensor_dimension",
            "reshaped_tensor_dimensions[i][j]",
            "count_super_block_dimension",
            "super_block_dimensions[i][j]",
            "count_block_dimension",
            "block_dimensions[i][j]",
        ),
    ),
    (
        "19, combined pruning and sparsification",
        "8.3.3",
        (
            "nnr_rep_type",
            "prune_flag",
            "order_flag",
            "sparse_flag",
            "count_ids",
            "element_id[j]",
            "element_id_index[j]",
            "count_dims[j]",
            "dim[j][k]",
            "bit_mask_value",
        ),
    ),
    ("20, unstructured statistics-adaptive sparsification", "8.3.4", ("qp_value", "mps_qp_density")),
    ("21, structured sparsification", "8.3.5", ("row_skip_enabled_flag", "row_skip_list")),
    (
        "23, low rank",
        "8.3.7",
        ("compressed_parameter_types&1", "decomposition_rank", "g_number_of_rows", "tensor_dimensions[j]"),
    ),
    (
        "24, batchnorm folding",
        "8.3.8",
        ("compressed_parameter_types&4", "mps_qp_density", "mps_quantization_parameter", "qp_value", "dq_flag"),
    ),
    (
        "25, local scaling",
        "8.3.9",
        ("compressed_parameter_types&2", "mps_qp_density", "mps_quantization_parameter", "qp_value", "dq_flag"),
    ),
    (
        "26, uniform quantization",
        "9.3.1",
        ("mps_qp_density", "mps_quantization_parameter", "qp_value", "dq_flag=0"),
    ),
    (
        "27, codebook-based method",
        "9.3.2",
        (
            "mps_qp_density",
            "mps_quantization_parameter",
            "qp_value",
            "codebook_egk",
            "codebook_size",
            "codebook_centre_offset",
            "codebook_zero_value",
            "codebook_delta_left",
            "codebook_delta_right",
        ),
    ),
    (
        "28, dependent scalar quantization",
        "9.3.3",
        ("mps_qp_density", "mps_quantization_parameter", "qp_value", "dq_flag=1"),
    ),
)

#: Steps of decoding: clause, name in `steps`, and description.
STEPS: tuple[tuple[str, str, str], ...] = (
    ("4.12", "IndexToXY", "a tensor is scanned in blocks, with entry points"),
    ("4.12", "DimensionShift", "the first dimension moves (first_tensor_dimension_shift)"),
    ("4.12", "TensorSplit", "a tensor is split into the tensors of several topology elements"),
    ("4.12", "AxisSwap", "axes of the pieces are shifted"),
    ("6.2.3", "LPS", "an active NNR_LPS replaces the step sizes of the NNR_MPS"),
    ("6.2.3", "LPS in aggregate", "an NNR_LPS in an aggregate is active there"),
    ("6.2.3", "LPS ended", "a tensor after an aggregate whose NNR_LPS has ended with it"),
    ("6.2.2", "aggregate", "units in an aggregate"),
    ("6.2.2", "aggregate in aggregate", "an aggregate contains another one"),
    ("6.4.3.1", "parts", "the payload of a tensor is divided into parts"),
    ("6.4.3.7", "dimensions given", "dimensions that a unit omits come from another source"),
    ("6.4.3.7", "reference list", "a tensor is identified by its index"),
    ("7.1", "NNR_STR again", "an NNR_STR resets the decoder between two bitstreams"),
    ("7.1", "tensors", "tensors are output"),
    ("7.1", "texts", "a topology or quantization text is output"),
    ("7.3.1", "several from integers", "integers are split"),
    ("7.3.1", "several from floats", "floats are split"),
    ("7.3.1", "several from raw floats", "raw floats are split"),
    ("7.3.2", "NNR_PT_INT", "integers"),
    ("7.3.2", "update of integers", "a weight update of integers is stored in WeightUpdateCache"),
    ("7.3.2", "residual of integers", "a residual of integers is added to WeightUpdateCache"),
    ("7.3.3", "NNR_PT_FLOAT", "floats"),
    ("7.3.3", "update of floats", "a weight update of floats is stored in WeightUpdateCache"),
    ("7.3.3", "residual of floats", "a residual of floats is added to WeightUpdateCache"),
    ("7.3.4", "NNR_PT_RAW_FLOAT", "raw floats"),
    ("7.3.5", "NNR_PT_BLOCK", "a block"),
    ("7.3.5", "block with G and H", "RecWeightG and RecWeightH of a block, and their product"),
    ("7.3.5", "block with shifted weight", "the weight of a block is shifted"),
    ("7.3.6", "no codebook", "codebookId -1: QuantParam are the integers"),
    ("7.3.6", "Codebook", "codebookId 0"),
    ("7.3.6", "CodebookDC", "codebookId 1"),
    ("7.3.6", "step above 1", "stepSize above 1"),
    ("7.3.6", "step below 1", "stepSize below 1"),
    ("8.2.1", "batch norm", "a block has batch norm parameters"),
    ("8.3.3", "pruning mask", "pruning information has a pruning mask"),
    ("8.3.3", "sparsification mask", "pruning information has a sparsification mask"),
    ("8.3.3", "dictionary", "a dictionary gives tensors new dimensions"),
    ("8.3.6", "unification", "a parameter set with mps_unification_flag or lps_unification_flag"),
    ("8.3.7", "G and H", "a decomposed tensor in two units"),
    ("8.3.9", "local scaling", "a block has local scaling"),
    ("9.2.1", "uniform", "uniform quantization"),
    ("9.2.2", "codebook", "a codebook, with uniform quantization"),
    ("9.2.2", "codebook and states", "a codebook, with dependent quantization"),
    ("9.2.3", "states", "dependent scalar quantization"),
    ("9.2.4", "block under nnr_pre_flag", "a block of a bitstream of residuals is a weight update"),
    ("10.1.1.4", "coLocParam", "contexts depend on the previous update"),
    ("10.1.1.4", "residual coLocParam", "contexts depend on the previous residuals (nnr_pre_flag)"),
    ("10.2.1.3", "qp_value below 0", "a negative qp_value"),
    ("10.2.1.3", "qp_value above 0", "a positive qp_value"),
    ("10.3.2.3", "several tensors", "contexts are initialized again: several tensors in a payload"),
    ("10.2.1.5", "AnySigBeforeFlag", "contexts depend on all previous updates"),
    ("A.3", "NNEF topology", "an NNEF topology"),
    ("A.3", "NNEF quantization", "NNEF quantization information"),
    ("A.4", "NNEF and reference list", "an NNEF topology with a reference list"),
    ("B.4", "ONNX", "an ONNX topology"),
    ("C", "PyTorch", "a PyTorch topology"),
    ("D", "TensorFlow", "a TensorFlow topology"),
)


def value_rows(sources: Sources) -> list[ValueTable]:
    """Return all value tables."""
    numbers = sources.all.index(sources.tables), sources.all.index(sources.clause_10)
    listings = [(k, sources.all[k]) for k in numbers]
    return [
        ValueTable("Data types", "6.1.3", tuple(_descriptors(listings))),
        *_enumerations(),
        _kinds(),
        *(
            ValueTable(element, clause, tuple(_range(text, element, values) for text, values in rows))
            for element, (clause, rows) in _VALUED.items()
        ),
        *(
            ValueTable(f"Table {name}", clause, tuple(_tool(element, listings) for element in elements))
            for name, clause, elements in _TOOLS
        ),
        *_numbers(),
    ]


_SIZES = {"ae(n)": "(v)", "at(n)": "(v)", "bs(n)": "(v)", "st(n)": "(v)", "ue(n)": "(k)", "ie(n)": "(k)"}


def _descriptors(listings: Iterable[tuple[int, Listing]]) -> Iterator[Row]:
    found: dict[str, list[Reached]] = {}
    for k, listing in listings:
        for line in _lines(listing):
            kind = line.descriptor.partition("(")[0]
            if kind and line.outcomes:
                found.setdefault(f"{kind}(n)", []).extend((k, (line.number, outcome)) for outcome in line.outcomes)
    found["f(n)"] = [("byte_alignment", 0)]
    yield from (
        Row(kind.replace("(n)", _SIZES.get(kind, "(n)")), tuple(needed)) for kind, needed in sorted(found.items())
    )


def _lines(listing: Listing) -> Iterator[Line]:
    return (line for table in listing.tables for line in table.lines)


def _enumerations() -> Iterator[ValueTable]:
    elements = dict.fromkeys(name for cls in CLASSES for name in comments(structures)[cls])
    for number, values in value_tables().items():
        for element in elements:
            if meaning_of(element) != f"Table {number}":
                continue
            rows = []
            for name, member in values.__members__.items():
                is_bit = issubclass(values, IntFlag)
                means = tuple(k for k in range(256) if k & member.value) if is_bit else (member.value,)
                shown = f"{member.value:#04x}" if is_bit else str(member.value)
                rows.append(Row(f"{shown} {name}", tuple((element, value) for value in means)))
            rows += [_range(text, element, outside) for text, outside in _OUTSIDE.get(element, ())]
            yield ValueTable(f"Table {number}, {element}", _CLAUSES[number], tuple(rows))


def _kinds() -> ValueTable:
    """Return Table 14, derived from the formats of Table 15."""
    element = "nnr_decompressed_data_format"
    kinds = (("TENSOR_INT", False), ("TENSOR_FLOAT", True))
    rows = [
        Row(name, tuple((element, f.value) for f in DecompressedDataFormat if f.is_float is kind))
        for name, kind in kinds
    ]
    return ValueTable("Table 14, data types", "7.2", tuple(rows))


def _range(text: str, element: str, values: range) -> Row:
    return Row(text, tuple((element, value) for value in values))


def _tool(element: str, listings: Iterable[tuple[int, Listing]]) -> Row:
    """Return the row of an element of a tool; ``name=1`` requires this value, ``name&1`` a bit of this mask."""
    name, sign, number = element.partition("=") if "=" in element else element.partition("&")
    if sign:
        values = (k for k in range(256) if k == int(number) or (sign == "&" and k & int(number)))
        return Row(f"{name} {sign} {number}", tuple((name, k) for k in values))
    needed: list[Reached] = []
    for k, listing in listings:
        for line in _lines(listing):
            if line.text == element and line.descriptor:
                needed += [(k, (line.number, outcome)) for outcome in (REACHED, *line.outcomes)]
    return Row(element, tuple(dict.fromkeys(needed)))


def _numbers() -> Iterator[ValueTable]:
    def every(text: str, name: str, values: Iterable[int]) -> Row:
        return Row(text, tuple((name, value) for value in values), every=True)

    yield ValueTable(
        "StateTransTab",
        "10.2.1.4",
        tuple(every(f"stateId {k}, even and odd", "STATE_TRANS_TAB", (2 * k, 2 * k + 1)) for k in range(8)),
    )
    yield ValueTable(
        "CtxParameterList", "10.3.2.2", tuple(every(f"setId {k}", "CTX_PARAMETER_LIST", (k,)) for k in range(9))
    )
    yield ValueTable(
        "Table 29, ctxInc",
        "10.3.4.2.1",
        (
            every("row_skip_list: 0", "row_skip_list", (0,)),
            every("shift_idx_minus_1_present_flag: 0", "shift_idx_minus_1_present_flag", (0,)),
            every("sig_flag: 0..2, without states", "sig_flag", range(3)),
            every("sig_flag: 3..23, of stateId 1..7", "sig_flag", range(3, 24)),
            every("sig_flag: 24..39, with coLocParam", "sig_flag", range(24, 40)),
            every("sig_flag: 40..47, with AnySigBeforeFlag", "sig_flag", range(40, 48)),
            every("sign_flag: 0..2", "sign_flag", range(3)),
            every("sign_flag: 3..4, with coLocParam", "sign_flag", range(3, 5)),
            every("abs_level_greater_x: 0..19, of ten bins", "abs_level_greater_x", range(20)),
            every("abs_level_greater_x: 20..39, with coLocParam", "abs_level_greater_x", range(20, 40)),
            every("abs_level_greater_x: up to 511, of 256 bins", "abs_level_greater_x", range(40, 512)),
            every("abs_level_greater_x2: 0..30", "abs_level_greater_x2", range(31)),
        ),
    )
    yield ValueTable(
        "rlpsTable",
        "10.3.4.3.2.1",
        tuple(every(f"qRangeIdx {k:#04x}, 32 states", "RLPS_TABLE", range(k, k + 32)) for k in range(0, 256, 32)),
    )
    yield ValueTable("transitionTable", "10.3.4.3.2.2", (every("32 entries", "TRANSITION_TABLE", range(32)),))
