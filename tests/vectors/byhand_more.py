"""NNR-SYN-101 on, NNR-NEG-301 on, NNR-ACC-101 on: more bitstreams of annotated bits, including invalid ones."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from .arithmetic import assemble, exact, floats, interval, step
from .bits import MPS, MPS_HEAD, NAME_W, ONE, STR0, STR1, TWO, f4, mps, raw
from .bits import ndu as sized_ndu
from .byhand import hand
from .case import Content, Tensor, invalid

Bits = tuple[str, ...]
FLAG = "shift_idx_minus_1_present_flag"


# ------------------------------------------------------------------------------------------------ pieces
def sized(*lines: str) -> Bits:
    """Return a unit of these bits, preceded by its size."""
    size = len(assemble(*lines)) + 2
    return (f"0x{size:04x} nnr_unit_size {size}", *lines)


def aligned(*lines: str) -> Bits:
    """Return these bits, followed by byte_alignment()."""
    words = [line.split()[0] for line in lines]
    bits = sum(4 * (len(word) - 2) if word.startswith("0x") else len(word) for word in words)
    return (*lines, f"1{'0' * (-(bits + 1) % 8)} byte_alignment()")


def ndu(kind: int, *rest: str, more: str = "001") -> Bits:
    """Return the first elements of an NNR_NDU, with flags for several ids, a data format and input parameters."""
    several, data_format, given = more
    return (
        "000101 nnr_unit_type NNR_NDU",
        "10 complete",
        f"{kind:05b} nnr_compressed_data_unit_payload_type {kind}",
        f"{several} nnr_multiple_topology_elements_present_flag",
        f"{data_format} nnr_decompressed_data_format_present_flag",
        f"{given} input_parameters_present_flag",
        *rest,
    )


def dims(*extents: int) -> Bits:
    """Return tensor_dimension_list() of one or two dimensions."""
    count = {1: "11 count_tensor_dimensions ue(1) = 1", 2: "0100 count_tensor_dimensions ue(1) = 2"}[len(extents)]
    return (count, *(f"1{extent:07b} tensor_dimensions[{k}] ue(7) = {extent}" for k, extent in enumerate(extents)))


#: input_parameters of a tensor with a unary part of length 1.
GIVEN = ("1 tensor_dimensions_flag", "1 cabac_unary_length_flag", "0000 compressed_parameter_types")
UNARY = "0x00 cabac_unary_length_minus1"
IN_ROWS = ("10 first_tensor_dimension_shift ue(1) = 0", "0000 scan_order")


def payload(*bins: str) -> str:
    """Return the payload of these bins; see `interval`."""
    return f"0x{interval(*bins).hex()} {' '.join(bins)}; terminate"


def refused(id_: str, title: str, clauses: str, features: str, error: str, unit: int, rule: str, *lines: str) -> None:
    """Register a bitstream that decoders must reject."""

    @invalid(id_, title, clauses, f"hand {features}", error, unit, bits=lines, requirements=rule)
    def make() -> Content:
        return Content(assemble(*lines))


def numbers(*values: int) -> Tensor:
    """Return a vector of int32."""
    return np.array(values, "<i4")


# ------------------------------------------------------------------------------------------------ valid
hand(
    "NNR-SYN-101",
    "the first update of a parameter, with the ids of its node and its parent",
    "6.3.3.7 6.3.4.3 6.4.3.7",
    "ICNN_NDU_ID node_id_present_flag NNR_PT_INT",
    {"w": numbers(-2)},
    *STR1,
    "0x0006 nnr_unit_size 6",
    *MPS_HEAD,
    "0x00 flags, all 0",
    "0000 mps_topology_indexed_reference_flag 0, base_model_id_present_flag 0, no performance",
    "1 mps_parent_signalling_enabled_flag",
    "0 nnr_pre_flag",
    "00 nnr_reserved_zero_2bits",
    "0x80 byte_alignment()",
    *sized(
        *aligned(
            *ndu(0, NAME_W),
            "1 node_id_present_flag",
            "0100 device_id ue(1) = 2",
            "100011 parameter_id ue(5) = 3",
            "10001 put_node_depth ue(4) = 1",
            "1 parent_node_id_present_flag",
            "00 parent_node_id_type ICNN_NDU_ID",
            "0 temporal_context_modeling_flag",
            "0100 parent_device_id ue(1) = 2",
            "0 dq_flag",
            *GIVEN,
            *dims(1),
            UNARY,
        ),
        payload(f"{FLAG}:{39 * '0'}", "sig0:1", "sign0:1", "gtx1:1", "x2_0:0"),
    ),
    levels=[[numbers(-2)]],
)
hand(
    "NNR-SYN-102",
    "weight and bias in one arithmetic code string, contexts initialized for each",
    "6.3.3.7 7.3.5 10.2.1.2 10.3.2.3",
    "NNR_PT_BLOCK NNR_CPT_BI",
    {"w": floats([-2], -3), "b": floats([1], 5)},
    *STR1,
    *mps(2),
    *sized(
        *aligned(
            *ndu(3, more="101"),
            "10000000 count_topology_elements_minus2 ue(7) = 0",
            "0x80 byte_alignment() of an aligned header",
            "0x7700 topology_elem_id_list[0] 'w'",
            "0x6200 topology_elem_id_list[1] 'b'",
            "0 node_id_present_flag",
            "0 codebook_present_flag",
            "0 dq_flag",
            *GIVEN[:2],
            "1000 compressed_parameter_types NNR_CPT_BI",
            *dims(1),
            UNARY,
        ),
        payload(
            *(":00000101", f"b.{FLAG}:{39 * '0'}", "b.sig0:1", "b.sign0:0", "b.gtx0:0"),
            *(":11111101", f"w.{FLAG}:{39 * '0'}", "w.sig0:1", "w.sign0:1", "w.gtx1:1", "w.x2_0:0"),
        ),
    ),
    levels=[[numbers(1), numbers(-2)]],
)
hand(
    "NNR-SYN-103",
    "dependent quantization: levels 1, 1, 1 in states 0, 2, 3 become 2, 2, 1",
    "10.2.1.4 10.3.4.2.2 9.2.3",
    "NNR_PT_INT dq_flag",
    {"w": numbers(2, 2, 1)},
    *STR1,
    *MPS,
    *sized(
        *aligned(*ndu(0, NAME_W), "0 node_id_present_flag", "1 dq_flag", *GIVEN, *dims(3), UNARY),
        payload(
            f"{FLAG}:{60 * '0'}",
            *("sig0:1", "sign0:0", "gtx0:0"),
            *("sig8:1", "sign2:0", "gtx0:0"),
            *("sig11:1", "sign2:0", "gtx0:0"),
        ),
    ),
    levels=[[numbers(2, 2, 1)]],
)
hand(
    "NNR-SYN-104",
    "a skipped row: row_skip_enabled_flag in a bypass bin, row_skip_list before the shift parameter ids",
    "10.2.1.4 10.2.1.6 10.3.4.3.4",
    "NNR_PT_INT row_skip_enabled_flag",
    {"w": numbers(0, 0, 3, -1).reshape(2, 2)},
    *STR1,
    *MPS,
    *sized(
        *aligned(*ndu(0, NAME_W), "0 node_id_present_flag", "0 dq_flag", *GIVEN, *dims(2, 2), UNARY, *IN_ROWS),
        payload(
            *(":1", "row:10", f"{FLAG}:{39 * '0'}"),
            *("sig0:1", "sign0:0", "gtx0:1", "x2_0:1", "x2_1:0", ":0"),
            *("sig2:1", "sign2:1", "gtx1:0"),
        ),
    ),
    levels=[[numbers(0, 0, 3, -1).reshape(2, 2)]],
)
hand(
    "NNR-SYN-105",
    "a nonzero shift parameter id for the first context",
    "10.2.1.6 10.2.1.7 10.3.2.2",
    "NNR_PT_INT shift_parameter_ids",
    {"w": numbers(0, 1)},
    *STR1,
    *MPS,
    *sized(
        *aligned(*ndu(0, NAME_W), "0 node_id_present_flag", "0 dq_flag", *GIVEN, *dims(2), UNARY),
        payload(f"{FLAG}:{38 * '0'}1", ":000", "sig0:0", "sig0:1", "sign0:0", "gtx0:0"),
    ),
    levels=[[numbers(0, 1)]],
)
hand(
    "NNR-SYN-106",
    "a codebook of three entries: levels -1 to 1 require no abs_level_greater_x",
    "6.3.3.7 7.3.6 10.2.1.5 10.2.1.6",
    "NNR_PT_FLOAT NNR_QCB codebook_size=3",
    {"w": floats([7, -4, 0], -9)},
    *STR1,
    "0x0008 nnr_unit_size 8",
    *MPS_HEAD,
    "00000011 mps_quantization_method_flags NNR_QSU and NNR_QCB in the last 3 bits",
    "0x00 flags, all 0",
    "010 mps_qp_density 2",
    "0000000000000 mps_quantization_parameter 0",
    "0x80 byte_alignment()",
    *sized(
        *aligned(
            *ndu(1, NAME_W),
            "0 node_id_present_flag",
            "1 codebook_present_flag",
            "0000 codebook_egk",
            "111 codebook_size ue(2) = 3",
            "100 codebook_centre_offset ie(2) = 0",
            "10000000 codebook_zero_value ie(7) = 0",
            "00100 codebook_delta_left[0] ue(0) = 3: the previous entry is -4",
            "00111 codebook_delta_right[0] ue(0) = 6: the next entry is 7",
            "0 dq_flag",
            *GIVEN,
            *dims(3),
            UNARY,
        ),
        payload(":11110111", f"{FLAG}:{8 * '0'}", "sig0:1", "sign0:0", "sig2:1", "sign2:1", "sig1:0"),
    ),
    levels=[[numbers(1, -1, 0)]],
)
hand(
    "NNR-SYN-107",
    "pruning information: a bit mask sets two of four parameters to zero",
    "6.3.4.5 6.4.4.5 8.3.3",
    "NNR_TPL_PRUN NNR_TPL_BMSK sparse_mask NNR_PT_RAW_FLOAT",
    {"w": f4(1, 0, 0, 2).reshape(2, 2)},
    *STR1,
    *MPS,
    *sized(
        "000011 nnr_unit_type NNR_TPL",
        "10 complete",
        "0x05 topology_storage_format NNR_TPL_PRUN",
        "0x00 topology_compression_format",
        "00 nnr_rep_type NNR_TPL_BMSK",
        "0 prune_flag",
        "1 order_flag, row-major",
        "1 sparse_flag",
        "000 nnr_reserved_zero_3bits",
        *aligned("0x00000004 count_bits", "1001 bit_mask_value"),
    ),
    *sized(
        *aligned(*ndu(2, NAME_W), "0 node_id_present_flag", "100000 dimensions", *dims(2, 2), *IN_ROWS),
        *(ONE, TWO, ONE, TWO),
    ),
    raw={"w": f4(1, 2, 1, 2).reshape(2, 2)},
)
hand(
    "NNR-SYN-108",
    "raw float parameters split into two tensors, the axes of the second swapped",
    "4.12 6.3.3.7 6.4.3.7 7.3.1",
    "topology_tensor_dimension_mapping TensorSplit AxisSwap NNR_PT_RAW_FLOAT",
    {"a": f4(1).reshape(1, 1), "b": f4(2, 1).reshape(2, 1)},
    *STR1,
    *MPS,
    *sized(
        *aligned(
            *ndu(2, more="101"),
            "10000000 count_topology_elements_minus2 ue(7) = 0",
            "0x80 byte_alignment() of an aligned header",
            "0x6100 topology_elem_id_list[0] 'a'",
            "0x6200 topology_elem_id_list[1] 'b'",
            "0 node_id_present_flag",
            "1 tensor_dimensions_flag",
            "0 cabac_unary_length_flag",
            "0000 compressed_parameter_types",
            *dims(1, 3),
            "0x01 concatentation_axis_index",
            "10000001 split_index[0] ue(7) = 1",
            "10 number_of_shifts[0] ue(1) = 0",
            "11 number_of_shifts[1] ue(1) = 1",
            "10000001 shift_index[1][0] ue(7) = 1",
            "11 shift_value[1][0] ue(1) = 1",
            *IN_ROWS,
        ),
        *(ONE, TWO, ONE),
    ),
)


def three(name: str, *bins: str, data_format: str = "") -> Bits:
    """Return an NNR_PT_FLOAT unit of two parameters with the single codebook entry 3; the payload is a qp_value."""
    return sized(
        *aligned(
            *ndu(1, name, more="011" if data_format else "001"),
            "0 node_id_present_flag",
            "1 codebook_present_flag",
            "0000 codebook_egk",
            "101 codebook_size ue(2) = 1",
            "100 codebook_centre_offset ie(2) = 0",
            "10000101 codebook_zero_value ie(7) = 3",
            "0 dq_flag",
            *([data_format] if data_format else []),
            "100000 dimensions",
            *dims(2),
        ),
        payload(*bins),
    )


def threes(size: Fraction, dtype: str = "<f4") -> Tensor:
    """Return the decoded parameters of `three` for this stepSize."""
    return exact([3 * size] * 2, dtype, [2])


hand(
    "NNR-SYN-109",
    "a layer parameter set replaces the step size of the model",
    "6.2.3 6.3.4.4 6.4.4.4 7.3.6",
    "NNR_LPS codebook_size=1",
    {"v": threes(step(-2 - 12)), "w": threes(step(-5 - 3, 0))},
    *STR1,
    *mps(2, -12),
    *three("0x7600 topology_elem_id 'v'", ":11111110"),
    *sized(
        "000010 nnr_unit_type NNR_LPS",
        "10 complete",
        "0 lps_self_contained_flag",
        "0000000 nnr_reserved_zero_7_bits",
        *aligned(
            "0000 nnr_reserved_zero_1_bit, no performance maps",
            "001 lps_quantization_method_flags NNR_QSU",
            "0 nnr_reserved_zero_1bit",
            "000 lps_qp_density 0",
            "1111111111101 lps_quantization_parameter -3",
        ),
    ),
    *three(NAME_W, ":111011"),
    levels=[[numbers(0, 0)], [numbers(0, 0)]],
)
hand(
    "NNR-SYN-110",
    "a model parameter set with a base_model_id and a validation result",
    "6.1.3 6.3.4.3 6.4.4.3",
    "base_model_id performance_metric_type validation_set_performance",
    {"w": f4(1)},
    *STR1,
    *sized(
        *MPS_HEAD,
        "0x00 flags, all 0",
        "0 mps_topology_indexed_reference_flag",
        "1 base_model_id_present_flag",
        "1 validation_set_performance_present_flag",
        "0 metric_type_performance_map_valid_flag",
        "0 mps_parent_signalling_enabled_flag",
        "000 nnr_reserved_zero_1bit, nnr_reserved_zero_2bits",
        "0x6D00 base_model_id 'm'",
        "0x746F703100 performance_metric_type 'top1'",
        "0x0000403F validation_set_performance 0.75",
        "0x80 byte_alignment()",
    ),
    *sized_ndu(13, 2, NAME_W, *raw(1)),
    ONE,
)
hand(
    "NNR-SYN-111",
    "float64 parameters with a step size outside the range of float32",
    "6.4.3.7 7.2 7.3.6",
    "nnr_decompressed_data_format=9 codebook_size=1",
    {"w": threes(step(-700 - 8), "<f8")},
    *STR1,
    *mps(2, -700),
    *three(NAME_W, ":11111000", data_format="0001001 nnr_decompressed_data_format 9"),
    levels=[[numbers(0, 0)]],
)
#: Prefix of levels from 2^30 + 1: thirty ones before the zero.
PREFIX = (*(f"x2_{j}:1" for j in range(30)), "x2_30:0")
hand(
    "NNR-SYN-112",
    "the largest and the smallest integer, with remainders of 30 bits",
    "7.3.2 10.2.1.5 10.3.3.2",
    "NNR_PT_INT abs_remainder extremes",
    {"w": numbers(2**31 - 1, -(2**31))},
    *STR1,
    *MPS,
    *sized(
        *aligned(*ndu(0, NAME_W), "0 node_id_present_flag", "0 dq_flag", *GIVEN, *dims(2), UNARY),
        payload(
            f"{FLAG}:{39 * '0'}",
            *("sig0:1", "sign0:0", "gtx0:1", *PREFIX, f":{29 * '1'}0"),
            *("sig2:1", "sign2:1", "gtx1:1", *PREFIX, f":{30 * '1'}"),
        ),
    ),
    levels=[[numbers(2**31 - 1, -(2**31))]],
)


def listed(second: int, *more: str) -> Bits:
    """Return an aggregate of two raw tensors with entry points, the second of which is ``second``."""
    return sized(
        "000110 nnr_unit_type NNR_AGG",
        "10 complete",
        "0x00 nnr_aggregate_unit_type NNR_AGG_GEN",
        "1 entry_points_present_flag",
        *(more or ("0000000 nnr_reserved_zero_7bits",)),
        "0x0000 num_of_nnr_units_minus2",
        "000101 nnr_unit_type[0] NNR_NDU",
        f"{19:034b} nnr_unit_entry_point[0] 19",
        "000101 nnr_unit_type[1] NNR_NDU",
        f"{second:034b} nnr_unit_entry_point[1] {second}",
        "0x00 quant_bitdepth[0] 0, nnr_reserved_zero_3bits[0]",
        "0x00 quant_bitdepth[1] 0, nnr_reserved_zero_3bits[1]",
        *sized_ndu(13, 2, "0x6100 topology_elem_id 'a'", *raw(1)),
        ONE,
        *sized_ndu(13, 2, "0x6200 topology_elem_id 'b'", *raw(1)),
        TWO,
    )


hand(
    "NNR-SYN-113",
    "entry points of an aggregate, relative to its first byte",
    "6.3.3.8 6.4.3.8",
    "NNR_AGG entry_points_present_flag",
    {"a": f4(1), "b": f4(2)},
    *STR1,
    *MPS,
    *listed(19 + 13),
)
CUT = interval(f"{FLAG}:{39 * '0'}", "sig0:1", "sign0:0", "gtx0:0").hex()
INTEGER = aligned("0 node_id_present_flag", "0 dq_flag", *GIVEN, *dims(1), UNARY)


def part(counter: int, data: str) -> Bits:
    """Return the unit of a part of a payload."""
    return sized(
        "000101 nnr_unit_type NNR_NDU",
        "01 independently_decodable_flag 0, partial_data_counter_present_flag 1",
        f"{counter:08b} partial_data_counter {counter}",
        "00000001 integers, one id, input parameters",
        NAME_W,
        *INTEGER,
        f"0x{data} {len(data) // 2} byte{'s' * (len(data) > 2)}",
    )


hand(
    "NNR-SYN-114",
    "an arithmetic code string in three parts",
    "6.4.3.1 10.2.1.2",
    "partial_data_counter NNR_PT_INT",
    {"w": numbers(1)},
    *STR1,
    *MPS,
    *part(3, CUT[:2]),
    *part(2, CUT[2:4]),
    *part(1, CUT[4:]),
    levels=[[numbers(1)]],
)

# ------------------------------------------------------------------------------------------------ invalid
refused(
    "NNR-NEG-301",
    "the long form of a unit size that is too small for the size field and the unit type",
    "6.3.2 6.4.2",
    "nnr_unit_size_flag",
    "ElementError",
    2,
    "unit-size",
    *STR1,
    *MPS,
    "0x80000004 nnr_unit_size_flag 1, nnr_unit_size 4",
    *sized_ndu(0, 2, NAME_W, *raw(1))[1:],
    ONE,
)
refused(
    "NNR-NEG-302",
    "an entry point relative to the byte after the size of the aggregate",
    "6.3.3.8 6.4.3.8",
    "NNR_AGG entry_points_present_flag",
    "ElementError",
    2,
    "aggregate-entry-point",
    *STR1,
    *MPS,
    *listed(19 + 13 - 2),
)
refused(
    "NNR-NEG-303",
    "the second of three parts of an arithmetic code string is missing",
    "6.4.3.1",
    "partial_data_counter NNR_PT_INT",
    "ElementError",
    3,
    "partial-sequence",
    *STR1,
    *MPS,
    *part(3, CUT[:2]),
    *part(1, CUT[4:]),
)
refused(
    "NNR-NEG-304",
    "an arithmetic code string in two parts with a missing byte",
    "6.4.3.1 10.2.1.2",
    "partial_data_counter NNR_PT_INT",
    "PayloadError",
    3,
    "payload-complete",
    *STR1,
    *MPS,
    *part(2, CUT[:2]),
    *part(1, CUT[2:-2]),
)
refused(
    "NNR-NEG-305",
    "the last nesting_zero_bit is 1",
    "10.2.1.2",
    "nesting_zero_bit NNR_PT_INT",
    "PayloadError",
    2,
    "nesting-zero-bit",
    *STR1,
    *MPS,
    *sized(*ndu(0, NAME_W), *INTEGER, f"0x{CUT[:-2]}{int(CUT[-2:], 16) | 1:02x} the last nesting_zero_bit is 1"),
)

# ------------------------------------------------------------------------------------------------ acceptable
hand(
    "NNR-ACC-101",
    "units of a reserved type, before and after a tensor",
    "6.4.3.1",
    "NNR_RSVD",
    {"w": f4(1)},
    *STR1,
    *MPS,
    *sized("000111 nnr_unit_type 7", "10 complete", "0xFF00FF reserved"),
    *sized_ndu(13, 2, NAME_W, *raw(1)),
    ONE,
    *sized("011111 nnr_unit_type 31", "10 complete"),
    breaks="unit-type",
)
hand(
    "NNR-ACC-102",
    "reserved bits of profile 0 are 1 where profile 1 has flags",
    "6.1.4 6.3.4.3",
    "profile_0 nnr_reserved_zero_7bits",
    {"w": f4(1)},
    *STR0,
    "0x0006 nnr_unit_size 6",
    *MPS_HEAD,
    "0x00 flags, all 0",
    "0 mps_topology_indexed_reference_flag",
    "1111111 nnr_reserved_zero_7bits",
    "0x80 byte_alignment()",
    *sized(
        *aligned(
            *ndu(2, NAME_W),
            "1 tensor_dimensions_flag",
            "0 cabac_unary_length_flag",
            "0000 compressed_parameter_types",
            *dims(1),
        ),
        ONE,
    ),
    breaks="reserved-zero",
)
hand(
    "NNR-ACC-103",
    "reserved bits of an aggregate are 1",
    "6.1.4 6.3.3.8",
    "NNR_AGG nnr_reserved_zero_7bits",
    {"a": f4(1), "b": f4(2)},
    *STR1,
    *MPS,
    *listed(19 + 13, "1111111 nnr_reserved_zero_7bits"),
    breaks="reserved-zero",
)
hand(
    "NNR-ACC-104",
    "a whole tensor with independently_decodable_flag 0",
    "6.4.3.1",
    "independently_decodable_flag NNR_PT_INT",
    {"w": numbers(1)},
    *STR1,
    *MPS,
    *sized(
        "000101 nnr_unit_type NNR_NDU",
        "00 independently_decodable_flag 0, partial_data_counter_present_flag 0",
        "00000001 integers, one id, input parameters",
        NAME_W,
        *INTEGER,
        f"0x{CUT} payload",
    ),
    levels=[[numbers(1)]],
    breaks="partial-flags",
)
