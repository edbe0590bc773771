"""Tables of 6.3 without a structure in the codec, because `nnr_codec.bitstream.units` implements them directly.

The functions decode nothing: the coverage calls them with each unit to detect the lines that it reaches.
"""

from __future__ import annotations

from math import prod
from typing import cast

from nnr_codec.bitstream.units import Unit
from nnr_codec.constants import NNR_AGG, NNR_LPS, NNR_MPS, NNR_NDU, NNR_PT_RAW_FLOAT, NNR_QNT, NNR_STR, NNR_TPL
from nnr_codec.syntax import Session
from nnr_codec.syntax.structures import NnrAggregateUnitHeader


def _listed_elsewhere(*_: object) -> None:
    """Stand for a table of `nnr_codec.syntax.tables` or an element, which is listed elsewhere; do nothing."""


nnr_unit_size = nnr_unit_header = nnr_start_unit_payload = _listed_elsewhere
nnr_model_parameter_set_unit_payload = nnr_layer_parameter_set_unit_payload = _listed_elsewhere
nnr_topology_unit_payload = nnr_quantization_unit_payload = _listed_elsewhere
decode_compressed_data_unit_payload = raw_float32_parameter = _nnr_unit = _listed_elsewhere
alignment_bit_equal_to_one = alignment_bit_equal_to_zero = _listed_elsewhere


def nnr_unit(unit: Unit, ctx: Session) -> None:
    """nnr_unit(), 6.3.1."""
    nnr_unit_size()
    nnr_unit_header()
    nnr_unit_payload(unit, ctx)


def nnr_unit_payload(unit: Unit, ctx: Session) -> None:
    """nnr_unit_payload(), 6.3.4.1."""
    nnr_unit_type = unit.header.nnr_unit_type
    if nnr_unit_type == NNR_MPS:
        nnr_model_parameter_set_unit_payload()
    if nnr_unit_type == NNR_LPS:
        nnr_layer_parameter_set_unit_payload()
    if nnr_unit_type == NNR_TPL:
        nnr_topology_unit_payload()
    if nnr_unit_type == NNR_QNT:
        nnr_quantization_unit_payload()
    if nnr_unit_type == NNR_NDU:
        nnr_compressed_data_unit_payload(unit, ctx)
    if nnr_unit_type == NNR_STR:
        nnr_start_unit_payload()
    if nnr_unit_type == NNR_AGG:
        nnr_aggregate_unit_payload(unit, ctx)


def nnr_compressed_data_unit_payload(unit: Unit, ctx: Session) -> None:
    """nnr_compressed_data_unit_payload(), 6.3.4.7."""
    tensor_dimensions = ctx.tensor_dimensions(unit.ndu)
    if unit.ndu.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT:
        for i in range(prod(tensor_dimensions)):
            raw_float32_parameter(i)
    decode_compressed_data_unit_payload()


def nnr_aggregate_unit_payload(unit: Unit, ctx: Session) -> None:
    """nnr_aggregate_unit_payload(), 6.3.4.8."""
    num_of_nnr_units_minus2 = cast(NnrAggregateUnitHeader, unit.header.detail).num_of_nnr_units_minus2
    for i in range(num_of_nnr_units_minus2 + 2):
        _nnr_unit(i)


def byte_alignment(number_of_bits: int) -> None:
    """byte_alignment(), 6.3.5."""
    alignment_bit_equal_to_one()
    for _i in range(number_of_bits - 1):
        alignment_bit_equal_to_zero()
