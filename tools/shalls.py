"""Every "shall" of ISO/IEC 15938-17:2024 from clause 6 to Annex A with its requirement, or the reason for its absence.

The texts are paraphrases; a clause and a number in it identify the sentence. A test compares the counts with the
standard.
"""

from __future__ import annotations

from typing import NamedTuple

_READER = "applies to decoders; nnr_codec ignores the value"
_FRAME = "introduces the sentences that follow"
_DECODER = "applies to decoders; nnr_codec conforms"


class Shall(NamedTuple):
    """Sentence with "shall": clause, paraphrase, and the ids of its requirements or the reason why it has none."""

    clause: str
    text: str
    requirements: tuple[str, ...]
    reason: str


def _table() -> tuple[Shall, ...]:
    rows = []
    for clause, entries in _ENTRIES.items():
        for text, answer in entries:
            is_reason = " " in answer  # ids contain no spaces
            rows.append(Shall(clause, text, () if is_reason else tuple(answer.split("|")), answer if is_reason else ""))
    return tuple(rows)


_ENTRIES: dict[str, tuple[tuple[str, str], ...]] = {
    "6.1.3": (("strings are UTF-8", "string"),),
    "6.1.4": (
        (
            "reserved values are not used",
            "unit-type|topology-format|quantization-format|compression-format|aggregate-type|quantization-methods|"
            "representation-type|payload-type|data-format|profile|scan-order",
        ),
        ("nnr_reserved_zero_0bit has no bits", "the element is not coded"),
        ("decoders ignore nnr_reserved_zero_0bit", _READER),
        ("nnr_reserved_zero_1bit is 0", "reserved-zero"),
        ("decoders ignore nnr_reserved_zero_1bit", _READER),
        ("nnr_reserved_zero_2bits is 0", "reserved-zero"),
        ("decoders ignore nnr_reserved_zero_2bits", _READER),
        ("nnr_reserved_zero_3bits is 0", "reserved-zero"),
        ("decoders ignore nnr_reserved_zero_3bits", _READER),
        ("nnr_reserved_zero_5bits is 0", "the element is in no syntax table"),
        ("decoders ignore nnr_reserved_zero_5bits", "the element is in no syntax table"),
        ("nnr_reserved_zero_7bits is 0", "reserved-zero"),
        ("decoders ignore nnr_reserved_zero_7bits", _READER),
    ),
    "6.2.3": (
        ("an NNR_STR comes first", "start-unit"),
        ("a bitstream has one NNR_MPS", "single-mps"),
        ("the NNR_MPS precedes the tensors", "mps-first"),
        ("the scope of an NNR_LPS", "defines the active parameter set; nnr_codec follows it"),
        ("ids and indices of topology elements are unique", "unique-ids"),
        (
            "topology and quantization units precede the tensors",
            "topology-first|quantization-first|nnef-topology-first|nnef-quantization-first",
        ),
    ),
    "6.4.1": (
        (
            "values that are absent from the tables do not occur",
            "unit-type|profile|compression-format|quantization-methods|representation-type|payload-type|data-format|"
            "scan-order",
        ),
    ),
    "6.4.3.1": (
        ("encoders do not use reserved unit types", "unit-type"),
        ("independently_decodable_flag is equal in all units of a topology element", "partial-flag-equal"),
        ("a unit that is not independently decodable has partial_data_counter", "partial-flags"),
        ("partial_data_counter is above 0", "partial-flags|partial-sequence"),
    ),
    "6.4.3.2": (("base models to which updates are applied", "describes an application: applying updates to a model"),),
    "6.4.3.4": (("units under a self-contained NNR_LPS can be reconstructed", "lps-self-contained"),),
    "6.4.3.5": (
        ("topology format 1 follows Annex A", "nnef-graph|nnef-string|nnef-topology-format"),
        ("encoders do not use reserved topology formats", "topology-format"),
        ("deflated data follows RFC 1950", "deflate"),
    ),
    "6.4.3.6": (
        (
            "quantization format 1 follows Annex A",
            "nnef-quantization|nnef-quantization-string|nnef-quantization-format",
        ),
        ("encoders do not use reserved quantization formats", "quantization-format"),
        ("deflated data follows RFC 1950", "deflate"),
    ),
    "6.4.3.7": (
        ("a block has several topology elements", "block-elements"),
        ("a block lists its topology elements in order", "block-elements|block-parameters"),
        ("indices count from 0", "reference-index"),
        ("parameter_id equals the parameter_id of the parent", "parent-tensor|unique-parameters"),
        ("put_node_depth is the put_node_depth of the parent plus 1", "parent-depth"),
        ("parent_node_id_present_flag is 1 in updates and 0 in other units", "parent-flag"),
        ("parent_node_payload_sha256 is the SHA-256 of the parent's payload", "parent-hash"),
        ("parent_node_payload_sha512 is the SHA-512 of the parent's payload", "parent-hash"),
        ("integers have an integer format, floats have a float format", "data-format-kind"),
        ("uncoded dimensions come from the topology", "dimensions-known"),
        ("first_tensor_dimension_shift is below the number of dimensions", "first-dimension-shift"),
        ("an uncoded number of dimensions comes from the topology", "dimensions-known"),
        ("uncoded extents come from the topology", "dimensions-known"),
        ("indices in lists count from 0", "reference-index"),
    ),
    "6.4.3.8": (
        ("a self-contained aggregate decodes after NNR_STR and NNR_MPS", "aggregate-self-contained"),
        ("its decoding results in a full or partial model", "aggregate-self-contained|payload-complete"),
        ("encoders do not use reserved aggregate types", "aggregate-type"),
        ("a listed type equals the type of its unit", "aggregate-unit-type"),
        ("an entry point is inside the aggregate", "aggregate-entry-point"),
    ),
    "6.4.4.3": (
        ("without indexed references, NNR_TPL units contain the topology", "topology-data|topology-carriage"),
        ("residuals have a base_model_id", "base-model-id"),
        ("residuals do not use dependent quantization", "residual-quantization|residual-first"),
        ("spm_count_thresholds is not 0", "map-counts"),
        ("ppm_count_pruning_ratios is not 0", "map-counts"),
        ("upm_count_thresholds is not 0", "map-counts"),
        ("dpm_count_thresholds is not 0", "map-counts"),
    ),
    "6.4.4.4": (
        ("selection of the applicable sparsification map", "applies to users of the maps"),
        ("selection of the applicable pruning map", "applies to users of the maps"),
        ("selection of the applicable unification map", "applies to users of the maps"),
    ),
    "6.4.4.5": (
        ("count_ids is above 0", "prune-counts"),
        ("count_dims is above 0", "prune-counts"),
        ("dim is above 0", "prune-counts|prune-dimensions"),
        ("count_bits is above 0", "prune-counts"),
    ),
    "6.4.4.8": (("the number of units of an aggregate", "aggregate-count"),),
    "7.1": (
        ("a decoder reads a bitstream of 6.3 and outputs tensors or texts", _DECODER),
        ("conditions of decoding apply", _FRAME),
        (
            "information missing in the bitstream is supplied separately",
            "required-information|dimensions-known|topology-fit",
        ),
        ("decoding begins with an NNR_STR", "start-unit|one-bitstream"),
        ("an NNR_STR resets the decoder", _DECODER),
        ("presence and number of units follow the clauses and annexes", "single-mps|mps-first|complete"),
        ("tensors are output as soon as they are decoded", _DECODER),
    ),
    "7.2": (("profile 0 has only the formats 0 and 1", "data-format"),),
    "7.3.1": (("tensors of several topology elements are split", "split-mapping"),),
    "7.3.2": (("integers fit their format", "integer-range"),),
    "7.3.3": (("values are represented as floats without loss of precision", "float-exact|float-range"),),
    "7.3.6": (("selection of the codebook", "defines an input of the decoding process; nnr_codec conforms"),),
    "8.2.1": (("a copy of the folded network is kept for training", "applies to training applications"),),
    "8.3.3": (
        ("1 in a sparsification mask: preserved", "prune-mask"),
        ("0 in a sparsification mask: set to zero", "defines a value; nnr_codec follows it"),
        ("1 in a pruning mask: preserved", "prune-mask"),
        ("0 in a pruning mask: pruned", "defines a value; nnr_codec follows it"),
    ),
    "10.3.2.4": (("the first IvlOffset is not 510 or 511", "interval-offset"),),
    "10.3.4.3.3": (("IvlOffset is below IvlCurrRange in renormalization", "interval-offset"),),
    "10.3.4.3.4": (("IvlOffset is below IvlCurrRange in bypass decoding", "interval-offset"),),
    "A.1": (("NNEF data follows NNEF 1.0.3", "nnef-graph|nnef-quantization|nnef-shapes"),),
    "A.2": (("NNEF has the identifiers of Table A.1", "nnef-topology-format|nnef-quantization-format"),),
    "A.4": (
        ("constraints on an NNEF topology apply", _FRAME),
        ("the topology is a null-terminated string in topology_data", "nnef-string"),
        ("the string is UTF-8", "nnef-string"),
        ("a reference list contains null-terminated UTF-8 NNEF labels", "nnef-reference-list|string"),
        ("the listed labels are in the topology", "nnef-reference-list"),
        ("NNR_TPL precedes the tensors", "nnef-topology-first"),
        ("topology_storage_format is NNR_TPL_NNEF", "nnef-topology-format"),
        ("constraints on NNEF quantization information apply", _FRAME),
        ("quantization information is a null-terminated string in quantization_data", "nnef-quantization-string"),
        ("the string is UTF-8", "nnef-quantization-string"),
        ("NNR_QNT precedes the tensors", "nnef-quantization-first"),
        ("quantization_storage_format is NNR_QNT_NNEF", "nnef-quantization-format"),
        ("constraints on NNR_NDU apply", _FRAME),
        ("tensors are identified by their NNEF labels", "nnef-names"),
    ),
}

SHALLS = _table()

#: Every sentence of A.4 in order, with or without "shall": paraphrase, and ids of requirements or a reason.
A4_SENTENCES: tuple[tuple[str, str], ...] = (
    ("constraints on an NNEF topology apply", _FRAME),
    ("the topology is a null-terminated UTF-8 string in topology_data", "nnef-string"),
    ("a reference list may follow in a consecutive NNR_TPL of format NNR_TPL_REFLIST", "nnef-list-consecutive"),
    ("the list contains null-terminated UTF-8 NNEF labels", "nnef-reference-list|string"),
    ("all labels of the list are in the topology", "nnef-reference-list"),
    ("NNR_TPL precedes the tensors", "nnef-topology-first"),
    ("topology_storage_format is NNR_TPL_NNEF", "nnef-topology-format"),
    ("constraints on NNEF quantization information apply", _FRAME),
    ("quantization information is a null-terminated UTF-8 string in quantization_data", "nnef-quantization-string"),
    ("NNR_QNT precedes the tensors", "nnef-quantization-first"),
    ("quantization_storage_format is NNR_QNT_NNEF", "nnef-quantization-format"),
    ("constraints on NNR_NDU apply", _FRAME),
    ("topology_elem_id and topology_elem_id_list contain NNEF labels", "nnef-names|nnef-reference-list"),
    ("these labels identify the tensors of NNEF", "unique-ids|reference-index"),
)
