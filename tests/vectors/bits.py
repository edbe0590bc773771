"""Annotated bits of units and headers, for `tests.vectors.arithmetic.assemble`."""

from __future__ import annotations

import numpy as np

from .case import Tensor

STR0 = ("0x0004 nnr_unit_size 4", "000000 nnr_unit_type NNR_STR", "10 complete", "0x00 general_profile_idc 0")
STR1 = (*STR0[:3], "0x01 general_profile_idc 1")
MPS_HEAD = ("000001 nnr_unit_type NNR_MPS", "10 complete")
#: No quantization method, so no QpDensity. The 16 bits are flags of profile 1 or reserved zeros of profile 0.
MPS = ("0x0006 nnr_unit_size 6", *MPS_HEAD, "0x0000 flags, all 0", "0x80 byte_alignment()")


def mps(density: int, parameter: int = 0) -> tuple[str, ...]:
    """Return an NNR_MPS with mps_quantization_method_flags NNR_QSU."""
    return (
        "0x0008 nnr_unit_size 8",
        *MPS_HEAD,
        "00000001 mps_quantization_method_flags NNR_QSU in the last 3 bits",
        "0x00 flags, all 0",
        f"{density:03b} mps_qp_density {density}",
        f"{parameter & 0x1FFF:013b} mps_quantization_parameter {parameter}",
        "0x80 byte_alignment()",
    )


def ndu(size: int, kind: int, *rest: str) -> tuple[str, ...]:
    """Return the first elements of an NNR_NDU, up to input_parameters_present_flag."""
    return (
        f"0x{size:04x} nnr_unit_size {size}",
        "000101 nnr_unit_type NNR_NDU",
        "10 complete",
        f"{kind:05b} nnr_compressed_data_unit_payload_type {kind}",
        "0 nnr_multiple_topology_elements_present_flag",
        "0 nnr_decompressed_data_format_present_flag",
        "1 input_parameters_present_flag",
        *rest,
    )


def raw(n: int) -> tuple[str, ...]:
    """Return the header of an NNR_PT_RAW_FLOAT unit of n parameters, from node_id_present_flag on."""
    return (
        "0 node_id_present_flag",
        "1 tensor_dimensions_flag",
        "0 cabac_unary_length_flag",
        "0000 compressed_parameter_types",
        "11 count_tensor_dimensions ue(1) = 1",
        f"1{n:07b} tensor_dimensions[0] ue(7) = {n}",
        "1000000 byte_alignment()",
    )


NAME_W = "0x7700 topology_elem_id 'w'"
ONE, TWO, THREE = "0x0000803F 1.0", "0x00000040 2.0", "0x00004040 3.0"  # little-endian


def f4(*values: float) -> Tensor:
    """Return a vector of float32."""
    return np.array(values, "<f4")


def one_entry(size: int, value: int, extent: int, name: str = NAME_W) -> tuple[str, ...]:
    """Return an NNR_PT_FLOAT header whose codebook has one entry: the payload is a qp_value without levels."""
    return (
        *ndu(size, 1, name),
        "0 node_id_present_flag",
        "1 codebook_present_flag",
        "0000 codebook_egk",
        "101 codebook_size ue(2) = 1",
        "100 codebook_centre_offset ie(2) = 0",
        f"1{2 * value - 1:07b} codebook_zero_value ie(7) = {value}",
        "0 dq_flag",
        "1 tensor_dimensions_flag",
        "0 cabac_unary_length_flag",
        "0000 compressed_parameter_types",
        "11 count_tensor_dimensions ue(1) = 1",
        f"1{extent:07b} tensor_dimensions[0] ue(7) = {extent}",
        "100 byte_alignment()",
    )


def integers(size: int, count: int) -> tuple[str, ...]:
    """Return an NNR_PT_INT header with cabac_unary_length_minus1 0."""
    return (
        *ndu(size, 0, NAME_W),
        "0 node_id_present_flag",
        "0 dq_flag",
        "1 tensor_dimensions_flag",
        "1 cabac_unary_length_flag",
        "0000 compressed_parameter_types",
        "11 count_tensor_dimensions ue(1) = 1",
        f"1{count:07b} tensor_dimensions[0] ue(7) = {count}",
        "0x00 cabac_unary_length_minus1",
        "100000 byte_alignment()",
    )
