"""NNR-SYN-001 to 015: bitstreams composed of annotated bits, without a writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .arithmetic import assemble, bypass, exact, interval, padded, step
from .bits import MPS, MPS_HEAD, NAME_W, ONE, STR0, STR1, THREE, TWO, f4, integers, mps, ndu, one_entry, raw
from .case import Content, Tensor, acceptable, valid


def hand(
    id_: str,
    title: str,
    clauses: str,
    features: str,
    tensors: Mapping[str, Tensor],
    *lines: str,
    levels: Sequence[Sequence[Tensor]] = (),
    raw: Mapping[str, Tensor] | None = None,
    breaks: str | None = None,
) -> None:
    """Register bits that decode to ``tensors``; with ``breaks``, the broken rules, they are acceptable.

    ``levels`` are QuantParam of the tensors of each coded payload.
    """
    register = valid if breaks is None else acceptable

    @register(id_, title, clauses, f"hand {features}", bits=lines, requirements=breaks or "")
    def make() -> Content:
        return Content(assemble(*lines), tensors, raw, quant_params=levels)


hand(
    "NNR-SYN-001",
    "only a start unit and a model parameter set, profile 1",
    "6.2.3 6.3.2 6.3.3.1 6.3.4.3",
    "",
    {},
    *STR1,
    *MPS,
)
hand(
    "NNR-SYN-002",
    "only a start unit and a model parameter set, profile 0",
    "6.2.3 6.3.2 6.3.3.1 6.3.4.3",
    "",
    {},
    *STR0,
    *MPS,
)
hand(
    "NNR-SYN-003",
    "raw float parameters: 1, minus zero, infinity, a NaN with payload, the smallest and the largest number",
    "6.1.3 6.3.3.7 6.3.4.7 7.3.4",
    "NNR_PT_RAW_FLOAT",
    {"w": np.array([0x3F800000, 0x80000000, 0x7F800000, 0x7FC12345, 1, 0x7F7FFFFF], "<u4").view("<f4")},
    *STR1,
    *MPS,
    *ndu(33, 2, NAME_W, *raw(6)),
    ONE,
    "0x00000080 -0.0",
    "0x0000807F infinity",
    "0x4523C17F NaN, 7FC12345",
    "0x01000000 2^-149",
    "0xFFFF7F7F (2 - 2^-23) 2^127",
)
hand(
    "NNR-SYN-004",
    "raw float parameter without dimensions",
    "6.3.3.7 7.3.4",
    "NNR_PT_RAW_FLOAT scalar",
    {"w": np.array(3, "<f4")},
    *STR1,
    *MPS,
    *ndu(12, 2, NAME_W),
    "0 node_id_present_flag",
    "1 tensor_dimensions_flag",
    "0 cabac_unary_length_flag",
    "0000 compressed_parameter_types",
    "10 count_tensor_dimensions ue(1) = 0",
    "1000000 byte_alignment()",
    THREE,
)
hand(
    "NNR-SYN-005",
    "raw float parameters in profile 0",
    "6.3.3.7 7.3.4",
    "NNR_PT_RAW_FLOAT",
    {"w": f4(1, 2)},
    *STR0,
    *MPS,
    *ndu(17, 2, NAME_W),
    "1 tensor_dimensions_flag",
    "0 cabac_unary_length_flag",
    "0000 compressed_parameter_types",
    "11 count_tensor_dimensions ue(1) = 1",
    "10000010 tensor_dimensions[0] ue(7) = 2",
    "10000000 byte_alignment() of an aligned header",
    ONE,
    TWO,
)
hand(
    "NNR-SYN-006",
    "aggregate of two units",
    "6.3.3.8 6.4.3.8 6.4.4.8",
    "NNR_AGG",
    {"a": f4(1), "b": f4(2)},
    *STR1,
    *MPS,
    "0x0023 nnr_unit_size 35",
    "000110 nnr_unit_type NNR_AGG",
    "10 complete",
    "0x00 nnr_aggregate_unit_type NNR_AGG_GEN",
    "0 entry_points_present_flag",
    "0000000 nnr_reserved_zero_7bits",
    "0x0000 num_of_nnr_units_minus2",
    "00000 quant_bitdepth[0]",
    "000 nnr_reserved_zero_3bits[0]",
    "00000 quant_bitdepth[1]",
    "000 nnr_reserved_zero_3bits[1]",
    *ndu(13, 2, "0x6100 topology_elem_id 'a'", *raw(1)),
    ONE,
    *ndu(13, 2, "0x6200 topology_elem_id 'b'", *raw(1)),
    TWO,
)
hand(
    "NNR-SYN-007",
    "payload in two parts, cut inside a parameter",
    "6.4.3.1 7.3.4",
    "partial_data_counter",
    {"w": f4(1, 2)},
    *STR1,
    *MPS,
    "0x000D nnr_unit_size 13",
    "000101 nnr_unit_type NNR_NDU",
    "01 independently_decodable_flag 0, partial_data_counter_present_flag 1",
    "0x02 partial_data_counter",
    "00010001 raw, one id, input parameters",
    NAME_W,
    *raw(2),
    "0x000080 three bytes of 1.0",
    "0x000F nnr_unit_size 15",
    "000101 nnr_unit_type NNR_NDU",
    "01 independently_decodable_flag 0, partial_data_counter_present_flag 1",
    "0x01 partial_data_counter",
    "00010001 raw, one id, input parameters",
    NAME_W,
    *raw(2),
    "0x3F the fourth byte",
    TWO,
)
hand(
    "NNR-SYN-008",
    "tensors by index in the reference list, in a different order",
    "6.3.4.5 6.4.3.7",
    "NNR_TPL_REFLIST topology_elem_id_index",
    {"b": f4(1), "a": f4(2)},
    *STR1,
    "0x0006 nnr_unit_size 6",
    *MPS_HEAD,
    "1 topology_carriage_flag",
    "0000000 flags, all 0",
    "1 mps_topology_indexed_reference_flag",
    "0000000 flags, all 0",
    "0x80 byte_alignment()",
    "0x000B nnr_unit_size 11",
    "000011 nnr_unit_type NNR_TPL",
    "10 complete",
    "0x06 topology_storage_format NNR_TPL_REFLIST",
    "0x00 topology_compression_format",
    "10000000 count_topology_elements_minus2 ue(7) = 0",
    "0x80 byte_alignment()",
    "0x6100 topology_elem_id_list[0] 'a'",
    "0x6200 topology_elem_id_list[1] 'b'",
    *ndu(12, 2, "10000001 topology_elem_id_index ue(7) = 1", *raw(1)),
    ONE,
    *ndu(12, 2, "10000000 topology_elem_id_index ue(7) = 0", *raw(1)),
    TWO,
)
hand(
    "NNR-SYN-009",
    "every unit size in the long form",
    "6.3.2 6.4.2",
    "nnr_unit_size_flag",
    {"w": f4(1)},
    "1 nnr_unit_size_flag",
    "0000000000000000000000000000110 nnr_unit_size u(31) = 6",
    *STR1[1:],
    "0x80000008 nnr_unit_size_flag 1, nnr_unit_size 8",
    *MPS[1:],
    "0x8000000F nnr_unit_size_flag 1, nnr_unit_size 15",
    *ndu(0, 2, NAME_W, *raw(1))[1:],
    ONE,
)


hand(
    "NNR-SYN-010",
    "codebook of one entry: the payload is qp_value -38 in 8 bypass bins and a terminating bin",
    "7.3.6 10.2.1.2 10.2.1.3 10.3.4.3.4 10.3.4.3.5",
    "codebook_size=1 terminate",
    {"w": exact([5 * step(-38)] * 3, "<f4", [3])},
    *STR1,
    *mps(2),
    *one_entry(14, 5, 3),
    f"{bypass(-38, 8):017b} 218 * 510 + 509 in 8 + 9 bits",
    "0000000 nesting_zero_bit",
    levels=[[np.zeros(3, "<i4")]],
)
for number, density in ((11, 0), (12, 1), (13, 7)):
    n = 6 + density
    qp = -(2 ** (5 + density)) + 5 * density  # all values of the low bits
    hand(
        f"NNR-SYN-{number:03}",
        f"payload of {n} bypass bins: qp_value {qp} at QpDensity {density}, {-(n + 9) % 8} nesting_zero_bits",
        "7.3.6 10.2.1.2 10.2.1.3",
        f"codebook_size=1 mps_qp_density={density}",
        {"w": exact([3 * step(qp, density)] * 2, "<f4", [2])},
        *STR1,
        *mps(density),
        *one_entry(11 + (n + 16) // 8, 3, 2),
        f"0x{padded(bypass(qp, n), n + 9).hex()} {qp & 2**n - 1} * 510 + 509 in {n} + 9 bits, then zeros",
        levels=[[np.zeros(2, "<i4")]],
    )


def integer_case(id_: str, title: str, levels: list[int], *bins: str) -> None:
    """Register a vector of integers whose payload `interval` computes from its bins."""
    payload = interval("shift_idx_minus_1_present_flag:" + 39 * "0", *bins)
    hand(
        id_,
        title,
        "10.2.1.2 10.2.1.4 10.2.1.5 10.2.1.6 10.3.4.2 10.3.4.3",
        "NNR_PT_INT cabac_unary_length=1",
        {"w": np.array(levels, "<i4")},
        *STR1,
        *MPS,
        *integers(10 + len(payload), len(levels)),
        f"0x{payload.hex()} shift_idx_minus_1_present_flag 39 times 0; {' '.join(bins)}; terminate",
        levels=[[np.array(levels, "<i4")]],
    )


integer_case("NNR-SYN-014", "a single level -2", [-2], "sig0:1", "sign0:1", "gtx1:1", "x2_0:0")
integer_case(
    "NNR-SYN-015",
    "levels 1, -1, 0, 6: the context for each sign of the previous level, and a remainder of two bits",
    [1, -1, 0, 6],
    *("sig0:1", "sign0:0", "gtx0:0"),
    *("sig2:1", "sign2:1", "gtx1:0"),
    "sig1:0",
    *("sig0:1", "sign0:0", "gtx0:1", "x2_0:1", "x2_1:1", "x2_2:0", ":01"),
)
