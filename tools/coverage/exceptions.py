"""Exceptions of the coverage: items that no bitstream, or no valid bitstream, can reach, with reasons."""

from __future__ import annotations

from .listing import FALSE, ONE, POSITIVE, REACHED, ROUNDS, TRUE

_NONE, _ONE, _SEVERAL = ROUNDS
_CONSTANT = "the count is a constant above 1"

#: Unreachable outcomes of lines with the reason, by the text of the line.
NEVER: dict[str, dict[str, str]] = {
    "for i in range(num_of_nnr_units_minus2 + 2)": dict.fromkeys((_NONE, _ONE), "the count is at least 2"),
    "for j in range(count_topology_elements_minus2 + 2)": dict.fromkeys((_NONE, _ONE), "the count is at least 2"),
    "for k in range(count_topology_elements_minus2 + 2)": dict.fromkeys((_NONE, _ONE), "the count is at least 2"),
    "for j in range(count_topology_elements_minus2 + 1)": {_NONE: "the count is at least 1"},
    "for i in range(tensor_2d_height)": dict.fromkeys((_NONE, _ONE), "a single row has no flags (errata A6)"),
    "for i in range(w * h)": {_NONE: "each extent is at least 1"},
    "for i in range(2 * n)": dict.fromkeys((_NONE, _ONE), "n is at least 1"),
    "for i in range(2 * n, 4 * n)": dict.fromkeys((_NONE, _ONE), "n is at least 1"),
    "for i in range(9)": {_NONE: _CONSTANT},
    **{
        text: dict.fromkeys((_NONE, _ONE), _CONSTANT)
        for text in (
            "for i in range(24 if dq else 3)",
            "for i in range(24, 40 if dq else 26)",
            "for i in range(5 if tcm else 3)",
            "for i in range(abs_level_greater_x2_ids)",
            "for (element, ids) in shift_parameter_ids.items()",
            "for (context, set_id) in zip(contexts[element], ids, strict=True)",
        )
    },
    "for i in range(40, 48 if dq else 41)": {_NONE: "the count is a constant"},
}

#: Lines with outcomes that only some bitstreams reach: bitstreams that break a rule, or that decoders may reject.
BROKEN: frozenset[tuple[str, str]] = frozenset(
    {
        *((name, "0") for name in ("nnr_unit_size", "partial_data_counter", "nnr_unit_entry_point[i]")),
        *((name, "0") for name in ("decomposition_rank", "g_number_of_rows", "codebook_size", "tensor_dimensions[j]")),
        *((name, "0") for name in ("spm_count_thresholds", "ppm_count_pruning_ratios", "upm_count_thresholds")),
        *((name, "0") for name in ("dpm_count_thresholds", "reshaped_tensor_dimensions[i][j]", "split_index[j]")),
        *((name, "0") for name in ("super_block_dimensions[i][j]", "block_dimensions[i][j]", "count_bits")),
        *((name, "0") for name in ("count_ids", "count_dims[j]", "dim[j][k]", "terminating_one_bit")),
        *((name, POSITIVE) for name in ("nnr_reserved_zero_7_bits", "nnr_reserved_zero_7bits")),
        *((name, POSITIVE) for name in ("nnr_reserved_zero_2bits", "nnr_reserved_zero_2bits[i]")),
        *((name, POSITIVE) for name in ("nnr_reserved_zero_3bits", "nnr_reserved_zero_3bits[i]")),
        *((name, ONE) for name in ("nnr_reserved_zero_1bit", "nnr_reserved_zero_1_bit")),
        *((loop, _NONE) for loop in ("for i in range(prod(tensor_dimensions))", "for j in range(count_ids)")),
        ("for k in range(count_dims[j])", _NONE),
        ("put_node_depth", "0"),  # in units without node ids, which have a parent
        ("else if nnr_rep_type == NNR_TPL_DICT", FALSE),
        ("if len(names) != len(listed)", TRUE),
        ("for i in range(9)", _ONE),
        ("if not bin_val", TRUE),
        ("renorm()", REACHED),
        ("if bin_val and (not data[last >> 3] >> 7 - (last & 7) & 1)", TRUE),
        ("bin_val", FALSE),
        ("not data[last >> 3] >> 7 - (last & 7) & 1", TRUE),
        ("if read_bit()", TRUE),
        ("if len(data) - bit_pointer // 8", TRUE),
        ("first_edition", TRUE),
        ("if not -(1 << 31) <= quant_param < 1 << 31", TRUE),
        ("j < 30", FALSE),
    }
)

#: The same for rows of value tables: ends of their texts.
BROKEN_VALUES = ("reserved", "unspecified", "2..255")

#: Requirements that no vector breaks, with the reason.
UNBROKEN = {"decodable": "no known bitstream breaks only this rule"}

#: Sentences with "shall" that no vector can demonstrate and that are not requirements (see `tools.shalls`).
UNSHOWN = {
    "nnr_reserved_zero_0bit has no bits",
    "decoders ignore nnr_reserved_zero_0bit",
    "nnr_reserved_zero_5bits is 0",
    "decoders ignore nnr_reserved_zero_5bits",
    "base models to which updates are applied",
    "a copy of the folded network is kept for training",
    "conditions of decoding apply",
    "constraints on an NNEF topology apply",
    "constraints on NNEF quantization information apply",
    "constraints on NNR_NDU apply",
}

#: Items that demonstrate the other sentences: a step of decoding, a row of a value table, or an element with "> 0".
SHOWN: dict[str, tuple[str, ...]] = {
    "decoders ignore nnr_reserved_zero_1bit": ("nnr_reserved_zero_1bit > 0",),
    "decoders ignore nnr_reserved_zero_2bits": ("nnr_reserved_zero_2bits > 0", "nnr_reserved_zero_2bits[i] > 0"),
    "decoders ignore nnr_reserved_zero_3bits": ("nnr_reserved_zero_3bits > 0", "nnr_reserved_zero_3bits[i] > 0"),
    "decoders ignore nnr_reserved_zero_7bits": ("nnr_reserved_zero_7bits > 0", "nnr_reserved_zero_7_bits > 0"),
    "the scope of an NNR_LPS": ("LPS", "LPS in aggregate", "LPS ended"),
    "selection of the applicable sparsification map": ("lps_sparsification_flag > 0",),
    "selection of the applicable pruning map": ("lps_pruning_flag > 0",),
    "selection of the applicable unification map": ("lps_unification_flag > 0",),
    "a decoder reads a bitstream of 6.3 and outputs tensors or texts": ("tensors", "texts"),
    "an NNR_STR resets the decoder": ("NNR_STR again",),
    "tensors are output as soon as they are decoded": ("tensors",),
    "selection of the codebook": ("no codebook", "Codebook", "CodebookDC"),
    "0 in a sparsification mask: set to zero": ("sparsification mask",),
    "0 in a pruning mask: pruned": ("pruning mask",),
}
