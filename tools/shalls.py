"""Every "shall" of ISO/IEC 15938-17:2024 from clause 6 to Annex A: which requirement it is, or why it is none.

The texts are ours; a clause and a running number in it identify the sentence. A test counts them against the standard.
"""

from __future__ import annotations

from typing import NamedTuple

_READER = "decoders ignore the value; nnr_codec does"
_FRAME = "introduces the sentences that follow"
_DECODER = "applies to decoders; nnr_codec conforms"


class Shall(NamedTuple):
    """One "shall": its clause, what it asks for, and the ids of requirements or the reason why there is none."""

    clause: str
    text: str
    requirements: tuple[str, ...]
    reason: str


def _table() -> tuple[Shall, ...]:
    rows = []
    for clause, entries in _ENTRIES.items():
        for text, answer in entries:
            is_reason = " " in answer  # which no id has
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
        ("nnr_reserved_zero_0bit has no bits", "nothing is coded, so nothing can be wrong"),
        ("decoders ignore nnr_reserved_zero_0bit", _READER),
        ("nnr_reserved_zero_1bit is 0", "reserved-zero"),
        ("decoders ignore nnr_reserved_zero_1bit", _READER),
        ("nnr_reserved_zero_2bits is 0", "reserved-zero"),
        ("decoders ignore nnr_reserved_zero_2bits", _READER),
        ("nnr_reserved_zero_3bits is 0", "reserved-zero"),
        ("decoders ignore nnr_reserved_zero_3bits", _READER),
        ("nnr_reserved_zero_5bits is 0", "the element stands in no syntax table"),
        ("decoders ignore nnr_reserved_zero_5bits", "the element stands in no syntax table"),
        ("nnr_reserved_zero_7bits is 0", "reserved-zero"),
        ("decoders ignore nnr_reserved_zero_7bits", _READER),
    ),
    "6.2.3": (
        ("an NNR_STR comes first", "start-unit"),
        ("there is one NNR_MPS", "single-mps"),
        ("it precedes the tensors", "mps-first"),
        ("the scope of an NNR_LPS", "defines what is in force; decoding follows it"),
        ("ids and indices of topology elements are unique", "unique-ids"),
        (
            "topology and quantization units precede the tensors",
            "topology-first|quantization-first|nnef-topology-first|nnef-quantization-first",
        ),
    ),
    "6.4.1": (
        (
            "values that tables leave out do not occur",
            "unit-type|profile|compression-format|quantization-methods|representation-type|payload-type|data-format|"
            "scan-order",
        ),
    ),
    "6.4.3.1": (
        ("encoders do not use reserved types of units", "unit-type"),
        ("independently_decodable_flag is one for a topology element", "partial-flag-equal"),
        ("a unit that is not independently decodable has the counter", "partial-flags"),
        ("and the counter is above 0", "partial-flags|partial-sequence"),
    ),
    "6.4.3.2": (
        ("the base models to which updates are applied", "describes an application: applying updates to a model"),
    ),
    "6.4.3.4": (("units of a self-contained NNR_LPS can be reconstructed", "lps-self-contained"),),
    "6.4.3.5": (
        ("topology format 1 is as in Annex A", "nnef-graph|nnef-string|nnef-topology-format"),
        ("encoders do not use reserved topology formats", "topology-format"),
        ("deflating follows RFC 1950", "deflate"),
    ),
    "6.4.3.6": (
        (
            "quantization format 1 is as in Annex A",
            "nnef-quantization|nnef-quantization-string|nnef-quantization-format",
        ),
        ("encoders do not use reserved quantization formats", "quantization-format"),
        ("deflating follows RFC 1950", "deflate"),
    ),
    "6.4.3.7": (
        ("a block has several topology elements", "block-elements"),
        ("and lists them in order", "block-elements|block-parameters"),
        ("indices count from 0", "reference-index"),
        ("parameter_id is that of the parent", "parent-tensor|unique-parameters"),
        ("put_node_depth is that of the parent and 1", "parent-depth"),
        ("updates have parent_node_id_present_flag 1, others 0", "parent-flag"),
        ("SHA-256 of the parent's payload", "parent-hash"),
        ("SHA-512 of the parent's payload", "parent-hash"),
        ("formats of integers for integers, of floats for floats", "data-format-kind"),
        ("dimensions that are not coded come from the topology", "dimensions-known"),
        ("the dimension shift is below the number of dimensions", "first-dimension-shift"),
        ("a number of dimensions that is not coded comes from the topology", "dimensions-known"),
        ("extents that are not coded come from the topology", "dimensions-known"),
        ("indices in lists count from 0", "reference-index"),
    ),
    "6.4.3.8": (
        ("a self-contained aggregate decodes after NNR_STR and NNR_MPS", "aggregate-self-contained"),
        ("and a full or partial model results", "aggregate-self-contained|payload-complete"),
        ("encoders do not use reserved types of aggregates", "aggregate-type"),
        ("a listed type is that of the unit", "aggregate-unit-type"),
        ("an entry point lies inside the aggregate", "aggregate-entry-point"),
    ),
    "6.4.4.3": (
        ("without indexed references, NNR_TPL units contain the topology", "topology-data|topology-carriage"),
        ("residuals have a base_model_id", "base-model-id"),
        ("residuals go without dependent quantization", "residual-quantization|residual-first"),
        ("spm_count_thresholds is not 0", "map-counts"),
        ("ppm_count_pruning_ratios is not 0", "map-counts"),
        ("upm_count_thresholds is not 0", "map-counts"),
        ("dpm_count_thresholds is not 0", "map-counts"),
    ),
    "6.4.4.4": (
        ("which sparsification map holds for what", "directs users of a map to the right one"),
        ("which pruning map holds for what", "directs users of a map to the right one"),
        ("which unification map holds for what", "directs users of a map to the right one"),
    ),
    "6.4.4.5": (
        ("count_ids is above 0", "prune-counts"),
        ("count_dims is above 0", "prune-counts"),
        ("dim is above 0", "prune-counts|prune-dimensions"),
        ("count_bits is above 0", "prune-counts"),
    ),
    "6.4.4.8": (("the number of units of an aggregate", "aggregate-count"),),
    "7.1": (
        ("a decoder takes a bitstream of 6.3 and gives tensors or texts", _DECODER),
        ("conditions of decoding apply", _FRAME),
        ("information that is not in the bitstream is supplied", "required-information|dimensions-known|topology-fit"),
        ("decoding begins with an NNR_STR", "start-unit|one-bitstream"),
        ("it resets the decoder", _DECODER),
        ("presence and number of units follow the clauses and annexes", "single-mps|mps-first|complete"),
        ("tensors come out as soon as they are decoded", _DECODER),
    ),
    "7.2": (("profile 0 has formats 0 and 1 alone", "data-format"),),
    "7.3.1": (("tensors of several topology elements are split", "split-mapping"),),
    "7.3.2": (("integers fit their format", "integer-range"),),
    "7.3.3": (("values are floats without loss of precision", "float-exact|float-range"),),
    "7.3.6": (("which codebook is used", "names an input of the decoding process; ours does so"),),
    "8.2.1": (("a copy of the folded network is kept for training", "applies to training applications"),),
    "8.3.3": (
        ("1 in a sparsification mask: preserved", "prune-mask"),
        ("0 in a sparsification mask: made zero", "defines a value; decoding follows it"),
        ("1 in a pruning mask: preserved", "prune-mask"),
        ("0 in a pruning mask: pruned", "defines a value; decoding follows it"),
    ),
    "10.3.2.4": (("IvlOffset does not begin as 510 or 511", "interval-offset"),),
    "10.3.4.3.3": (("IvlOffset stays below IvlCurrRange when renormalized", "interval-offset"),),
    "10.3.4.3.4": (("IvlOffset stays below IvlCurrRange in bypass decoding", "interval-offset"),),
    "A.1": (("what is in NNEF follows NNEF 1.0.3", "nnef-graph|nnef-quantization|nnef-shapes"),),
    "A.2": (("NNEF has the identifiers of Table A.1", "nnef-topology-format|nnef-quantization-format"),),
    "A.4": (
        ("constraints on an NNEF topology apply", _FRAME),
        ("it is a null-terminated string in topology_data", "nnef-string"),
        ("and the string is UTF-8", "nnef-string"),
        ("a reference list holds NNEF labels, null-terminated, in UTF-8", "nnef-reference-list|string"),
        ("and they are in the topology", "nnef-reference-list"),
        ("NNR_TPL precedes the tensors", "nnef-topology-first"),
        ("topology_storage_format is NNR_TPL_NNEF", "nnef-topology-format"),
        ("constraints on NNEF quantization information apply", _FRAME),
        ("it is a null-terminated string in quantization_data", "nnef-quantization-string"),
        ("and the string is UTF-8", "nnef-quantization-string"),
        ("NNR_QNT precedes the tensors", "nnef-quantization-first"),
        ("quantization_storage_format is NNR_QNT_NNEF", "nnef-quantization-format"),
        ("constraints on NNR_NDU apply", _FRAME),
        ("tensors are called by their NNEF labels", "nnef-names"),
    ),
}

SHALLS = _table()

#: Every sentence of A.4 in order, also those without a "shall": which requirements it is, or why it is none.
A4_SENTENCES: tuple[tuple[str, str], ...] = (
    ("constraints on an NNEF topology apply", _FRAME),
    ("it is a null-terminated string of UTF-8 in topology_data", "nnef-string"),
    ("a reference list may follow in a consecutive NNR_TPL of format NNR_TPL_REFLIST", "nnef-list-consecutive"),
    ("the list holds NNEF labels, null-terminated, in UTF-8", "nnef-reference-list|string"),
    ("all of them are in the topology", "nnef-reference-list"),
    ("NNR_TPL precedes the tensors", "nnef-topology-first"),
    ("topology_storage_format is NNR_TPL_NNEF", "nnef-topology-format"),
    ("constraints on NNEF quantization information apply", _FRAME),
    ("it is a null-terminated string of UTF-8 in quantization_data", "nnef-quantization-string"),
    ("NNR_QNT precedes the tensors", "nnef-quantization-first"),
    ("quantization_storage_format is NNR_QNT_NNEF", "nnef-quantization-format"),
    ("constraints on NNR_NDU apply", _FRAME),
    ("topology_elem_id and topology_elem_id_list contain NNEF labels", "nnef-names|nnef-reference-list"),
    ("a tensor of NNEF is identified by that", "unique-ids|reference-index"),
)
