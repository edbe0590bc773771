"""Requirements of ISO/IEC 15938-17:2024 that ``nnr verify`` checks and decoders enforce.

An error has its requirement in :attr:`nnr_codec.errors.NnrError.rule`. ``docs/reference/requirements.md`` and
``nnr explain`` list all requirements.
"""

from __future__ import annotations

from enum import Enum


class Requirement(Enum):
    """Requirement on bitstreams; its value is its id, so ``Requirement("scan-order")`` looks it up.

    Attributes
    ----------
    id : str
        The name of the rule, which never changes.
    clause : str
        Clause of ISO/IEC 15938-17:2024; empty for a rule that is not in the standard.
    text : str
        The rule.
    severity : str
        ``shall``; ``should`` for a statement or recommendation of the standard, reported as a warning; ``limit`` for
        a limit of the reader; ``extension`` for a rule of this project.
    """

    id: str
    clause: str
    text: str
    severity: str

    def __new__(cls, id_: str, clause: str, text: str, severity: str = "shall") -> Requirement:
        rule = object.__new__(cls)
        rule._value_ = rule.id = id_
        rule.clause, rule.text, rule.severity = clause, text, severity
        return rule

    # Units and their order, aggregates, parts of tensors, reserved bits (6.1 to 6.4.3)
    STRING = "string", "6.1.3", "A string is UTF-8 and ends with a zero byte within its unit."
    RESERVED_ZERO = "reserved-zero", "6.1.4", "Reserved bits are 0."
    BYTE_ALIGNMENT = "byte-alignment", "6.3.5", "Alignment is a one and then zeros."
    UNIT_SIZE = (
        "unit-size",
        "6.4.2",
        "nnr_unit_size is the number of bytes of size, header and payload, and the unit is within its aggregate or "
        "bitstream.",
    )
    START_UNIT = "start-unit", "6.2.3", "The first unit of a bitstream is an NNR_STR."
    ONE_BITSTREAM = (
        "one-bitstream",
        "7.1",
        "One bitstream is not followed by another: a second NNR_STR starts a new bitstream.",
    )
    SINGLE_MPS = "single-mps", "6.2.3", "A bitstream has a single NNR_MPS."
    MPS_FIRST = "mps-first", "6.2.3", "The NNR_MPS comes before all NNR_NDU."
    UNIQUE_IDS = "unique-ids", "6.2.3", "A topology element is coded once in a bitstream."
    TOPOLOGY_FIRST = "topology-first", "6.2.3", "NNR_TPL units come before the NNR_NDU that refer to them."
    QUANTIZATION_FIRST = "quantization-first", "6.2.3", "NNR_QNT units come before the NNR_NDU that refer to them."
    UNIT_TYPE = "unit-type", "6.4.3.1", "No unit has a reserved nnr_unit_type (7 to 31)."
    PARTIAL_FLAGS = (
        "partial-flags",
        "6.4.3.1",
        "A unit that is not independently decodable has a partial_data_counter above 0.",
    )
    PARTIAL_FLAG_EQUAL = (
        "partial-flag-equal",
        "6.4.3.1",
        "independently_decodable_flag is equal in all units of one topology element.",
    )
    PARTIAL_SEQUENCE = (
        "partial-sequence",
        "6.4.3.1",
        "The parts of a tensor follow one another, with equal headers, and count down to 1.",
    )
    LPS_SELF_CONTAINED = (
        "lps-self-contained",
        "6.4.3.4",
        "The tensors under a self-contained NNR_LPS can be reconstructed from their units alone.",
    )
    AGGREGATE_TYPE = "aggregate-type", "6.4.3.8", "No aggregate has a reserved type (2 to 127)."
    AGGREGATE_SELF_CONTAINED = (
        "aggregate-self-contained",
        "6.4.3.8",
        "A self-contained aggregate decodes to the same tensors after only NNR_STR and NNR_MPS. An NNR_LPS "
        "before it stays active inside (6.2.3, 6.3.3.8), and no tensor inside uses its step size.",
    )
    AGGREGATE_COUNT = "aggregate-count", "6.4.4.8", "An aggregate holds num_of_nnr_units_minus2 + 2 units."
    AGGREGATE_UNIT_TYPE = "aggregate-unit-type", "6.4.3.8", "The types listed in an aggregate match its units."
    AGGREGATE_ENTRY_POINT = (
        "aggregate-entry-point",
        "6.4.3.8",
        "The entry points listed in an aggregate are the offsets of its units, and are inside it.",
    )
    QUANT_BITDEPTH = (
        "quant-bitdepth",
        "6.4.3.8",
        "quant_bitdepth is enough for the largest level of the tensor, as a signed integer.",
        "should",
    )
    # Decoding (6.4.3.7, 7 and 10)
    UNIQUE_PARAMETERS = "unique-parameters", "6.4.3.7", "device_id and parameter_id identify one tensor of a bitstream."
    PROFILE = "profile", "6.4.3.2", "general_profile_idc is 0 or 1."
    PAYLOAD_TYPE = "payload-type", "7.3.1", "The payload type is one of Table 16."
    SCAN_ORDER = "scan-order", "6.4.3.7", "scan_order is 0 to 4."
    TENSOR_DIMENSIONS = "tensor-dimensions", "6.4.3.7", "Each dimension of a coded tensor is at least 1."
    DIMENSIONS_KNOWN = "dimensions-known", "6.4.3.7", "The topology supplies dimensions that a unit omits."
    FIRST_DIMENSION_SHIFT = (
        "first-dimension-shift",
        "6.4.3.7",
        "first_tensor_dimension_shift is less than the number of dimensions.",
    )
    DATA_FORMAT = "data-format", "7.2", "nnr_decompressed_data_format is one of Table 15, 0 or 1 in profile 0."
    DATA_FORMAT_KIND = (
        "data-format-kind",
        "6.4.3.7",
        "The format is an integer format for NNR_PT_INT and a float format for all other types.",
    )
    REFERENCE_INDEX = (
        "reference-index",
        "6.4.3.7",
        "topology_elem_id_index is an index into the reference list, counted from 0.",
    )
    BLOCK_ELEMENTS = (
        "block-elements",
        "6.4.3.7",
        "A block lists the ids of its tensors in order, one for each tensor in compressed_parameter_types.",
    )
    BLOCK_PARAMETERS = (
        "block-parameters",
        "6.4.3.7",
        "A block has local scaling, bias, batch norm parameters or a decomposed weight (errata N7).",
    )
    DECOMPOSITION_PAYLOAD = (
        "decomposition-payload",
        "7.3.5",
        "Decomposed tensors have type NNR_PT_FLOAT or NNR_PT_BLOCK, and one topology element.",
    )
    DECOMPOSITION_PAIR = (
        "decomposition-pair",
        "6.4.3.7",
        "A unit with G is followed by the unit with its H, and both describe the same tensor.",
    )
    DECOMPOSITION_DIMENSIONS = (
        "decomposition-dimensions",
        "6.4.3.7",
        "The rows and the rank of G and H match the dimensions of the tensor.",
    )
    CODEBOOK_OFFSET = "codebook-offset", "6.4.3.7", "CbZeroOffset is an entry of the codebook."
    CODEBOOK_VALUES = "codebook-values", "9.2.2", "The entries of a codebook are 32-bit integers."
    CODEBOOK_INDEX = "codebook-index", "7.3.6", "Each level is an index into the codebook."
    SPLIT_MAPPING = (
        "split-mapping",
        "7.3.1",
        "The dimension mapping splits the tensor into one piece for each topology element and shifts axes within them.",
    )
    QUANTIZATION_PARAMETERS = (
        "quantization-parameters",
        "6.4.4.3",
        "An active parameter set has the density and the quantization parameter of float tensors.",
    )
    REQUIRED_INFORMATION = (
        "required-information",
        "7.1",
        "All information for decoding is in the bitstream or supplied separately: here, the parent of an update.",
    )
    TOPOLOGY_FIT = (
        "topology-fit",
        "7.1",
        "A separately supplied topology has all tensors of the bitstream, with their shapes.",
    )
    UPDATE_SHAPE = "update-shape", "10.3.4.2.2", "All updates of a parameter have the same shape and type."
    INTEGER_RANGE = "integer-range", "7.3.2", "Integers fit the bits of their format."
    FLOAT_RANGE = (
        "float-range",
        "7.3.3",
        "Step sizes are normal numbers of the format, and values are finite (errata N6).",
    )
    RAW_SIZE = "raw-size", "6.3.4.7", "Raw parameters take four bytes each."
    DEFLATE = "deflate", "6.4.3.5", "Deflated data follows RFC 1950 and ends with its unit."
    PAYLOAD_COMPLETE = "payload-complete", "10.2.1.1", "The payload contains all bins of its tensors."
    TERMINATING_BIT = "terminating-bit", "10.2.1.2", "terminating_one_bit is 1, and so is the last bit read before it."
    NESTING_ZERO_BIT = "nesting-zero-bit", "10.2.1.2", "The bits after the terminating one are 0."
    INTERVAL_OFFSET = "interval-offset", "10.3.2.4", "IvlOffset is less than IvlCurrRange, and not 510 or 511 at first."
    COMPLETE = (
        "complete",
        "7.1",
        "All tensors of the topology, the reference list and side information are present, except in an update.",
        "should",
    )
    SIDE_INFORMATION = (
        "side-information",
        "",
        "Side information conforms to docs/reference/side-information.md, and units match it; not a rule of the "
        "standard.",
        "extension",
    )
    ATTACHMENT = (
        "attachment",
        "",
        "Attachments conform to docs/reference/side-information.md; not a rule of the standard.",
        "extension",
    )
    INDEX = (
        "index",
        "",
        "An index conforms to docs/reference/unit-index.md, and the units match it; not a rule of the standard.",
        "extension",
    )
    LIMITS = "limits", "", "Reading and decoding stay within the given limits; not a rule of the standard.", "limit"
    DECODABLE = "decodable", "7.1", "The decoder can decode the bitstream."
    # NNEF (Annex A)
    NNEF_QUANTIZATION_STRING = (
        "nnef-quantization-string",
        "A.4",
        "NNEF quantization information is one null-terminated UTF-8 string.",
    )
    NNEF_STRING = "nnef-string", "A.4", "An NNEF topology is one null-terminated UTF-8 string."
    NNEF_GRAPH = "nnef-graph", "A.1", "An NNEF topology conforms to NNEF 1.0.3."
    NNEF_QUANTIZATION = "nnef-quantization", "A.1", "NNEF quantization information conforms to NNEF 1.0.3."
    NNEF_TOPOLOGY_FORMAT = (
        "nnef-topology-format",
        "A.4",
        "The topology_storage_format of an NNEF topology is NNR_TPL_NNEF.",
    )
    NNEF_QUANTIZATION_FORMAT = (
        "nnef-quantization-format",
        "A.4",
        "The quantization_storage_format of NNEF quantization information is NNR_QNT_NNEF.",
    )
    NNEF_LIST_CONSECUTIVE = (
        "nnef-list-consecutive",
        "A.4",
        "A reference list is in the topology unit directly after the NNEF topology.",
        "should",
    )
    NNEF_REFERENCE_LIST = (
        "nnef-reference-list",
        "A.4",
        "A reference list names variables of the NNEF topology in the bitstream.",
    )
    NNEF_TOPOLOGY_FIRST = (
        "nnef-topology-first",
        "A.4",
        "With an NNEF topology in the bitstream, all NNR_TPL come before all NNR_NDU.",
    )
    NNEF_QUANTIZATION_FIRST = (
        "nnef-quantization-first",
        "A.4",
        "An NNR_QNT with NNEF quantization information comes before all NNR_NDU.",
    )
    NNEF_NAMES = "nnef-names", "A.4", "Tensors have the names of variables of the NNEF topology."
    NNEF_SHAPES = (
        "nnef-shapes",
        "A.1",
        "A tensor has the shape of its variable in the NNEF topology of the bitstream, apart from extents of 1.",
    )
    # Parameter sets, topology and quantization units (6.4.3.5, 6.4.3.6, 6.4.4.3 to 6.4.4.5)
    TOPOLOGY_FORMAT = "topology-format", "6.4.3.5", "No topology has a reserved storage format (7 to 127)."
    COMPRESSION_FORMAT = "compression-format", "6.4.3.5", "Topology and quantization data are raw (0) or deflated (1)."
    QUANTIZATION_FORMAT = (
        "quantization-format",
        "6.4.3.6",
        "No quantization unit has a reserved storage format (5 to 127).",
    )
    QUANTIZATION_METHODS = "quantization-methods", "6.4.4.3", "No reserved bit of the quantization method flags is set."
    TOPOLOGY_CARRIAGE = (
        "topology-carriage",
        "6.4.4.3",
        "topology_carriage_flag is 1 if and only if NNR_TPL units carry the topology.",
        "should",
    )
    TOPOLOGY_DATA = (
        "topology-data",
        "6.4.4.3",
        "topology_data of an NNEF topology is not empty, unless units refer to tensors by index.",
    )
    BASE_MODEL_ID = "base-model-id", "6.4.4.3", "A bitstream of residuals (nnr_pre_flag) has a base_model_id."
    MAP_COUNTS = "map-counts", "6.4.4.3", "The count at the start of a performance map is not 0."
    REPRESENTATION_TYPE = (
        "representation-type",
        "6.4.4.5",
        "Pruning information is a bit mask or a dictionary: nnr_rep_type is 0 or 1.",
    )
    PRUNE_COUNTS = (
        "prune-counts",
        "6.4.4.5",
        "count_ids, count_dims, dim and count_bits of pruning information are not 0.",
    )
    PRUNE_DIMENSIONS = (
        "prune-dimensions",
        "6.4.4.5",
        "A dictionary has one set of new dimensions per tensor; dimensions in its unit are equal.",
    )
    PRUNE_MASK = (
        "prune-mask",
        "8.3.3",
        "A mask has one bit per parameter or, for pruning, per output channel of the tensors (errata N1).",
    )
    # Tensors and their headers (6.4.3.7, 6.4.4.3, 7.3.3, 9.2.4)
    PARENT_FLAG = (
        "parent-flag",
        "6.4.3.7",
        "In a bitstream of updates (mps_parent_signalling_enabled_flag), a tensor with put_node_depth above 0 is "
        "an update (parent_node_id_present_flag 1).",
    )
    PARENT_DEPTH = "parent-depth", "6.4.3.7", "put_node_depth is one more than the put_node_depth of the parent."
    UPDATE_ORDER = (
        "update-order",
        "6.4.3.7",
        "put_node_depth increases from each update of a parameter of a device to the next.",
    )
    PARENT_TENSOR = "parent-tensor", "6.4.3.7", "A tensor has the parameter_id of its parent."
    PARENT_HASH = (
        "parent-hash",
        "6.4.3.7",
        "The hash of a parent is the SHA-256 or SHA-512 of the payload of an earlier tensor.",
    )
    RESIDUAL_QUANTIZATION = (
        "residual-quantization",
        "6.4.4.3",
        "Residuals are not coded with dependent scalar quantization.",
    )
    RESIDUAL_FIRST = (
        "residual-first",
        "6.4.4.3",
        "Residuals (nnr_pre_flag) occur only after at least one update of the model.",
    )
    QUANTIZATION_METHOD_USED = (
        "quantization-method-used",
        "6.4.4.3",
        "The active quantization method flags include the method of each tensor.",
        "should",
    )
    PARAMETER_TYPES = (
        "parameter-types",
        "6.4.3.7",
        "compressed_parameter_types has bits for local scaling, bias and batch norm parameters only in blocks, "
        "because no other unit contains these.",
        "should",
    )
    ENTRY_POINTS = (
        "entry-points",
        "6.4.3.7",
        "The lists of entry points match the state of a sequential decoder there: IvlOffset, stateId and bits.",
    )
    FLOAT_EXACT = "float-exact", "7.3.3", "Each value is represented exactly in the float format."
