"""Notes on units that conform but deserve attention: ignored units, values without a meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from ...bitstream.attachments import attachment_data
from ...bitstream.summary import side_information
from ...bitstream.unit_index import has_index
from ...bitstream.units import Unit
from ...constants import NNR_AGG, NNR_QNT, NNR_QNT_TEF, NNR_TPL, NNR_TPL_REFLIST
from ...syntax.structures import NnrAggregateUnitHeader, NnrQuantizationUnitHeader, NnrTopologyUnitHeader


def notes_on(unit: Unit) -> Iterator[str]:
    """Yield the notes on a unit, except on an attachment: all attachments have one note."""
    kind, header = unit.header.nnr_unit_type, unit.header
    if kind > NNR_AGG:
        yield f"{unit.label()} is ignored: its type {kind} is {'reserved' if kind < 32 else 'unspecified'}"
    elif kind == NNR_TPL:
        value = cast(NnrTopologyUnitHeader, header.detail).topology_storage_format
        if has_index(unit):
            yield f"{unit.label()} contains an index, which is not part of the standard"
        elif side_information(unit):
            yield f"{unit.label()} contains side information, which is not part of the standard"
        elif (value == 0 or value > NNR_TPL_REFLIST) and attachment_data(unit) is None:
            yield f"{unit.label()}: its topology has the storage format {value}, which does not define the contents"
    elif kind == NNR_QNT:
        value = cast(NnrQuantizationUnitHeader, header.detail).quantization_storage_format
        if value == 0 or value > NNR_QNT_TEF:
            yield f"{unit.label()}: its data has the storage format {value}, which does not define the contents"
    elif kind == NNR_AGG:
        value = cast(NnrAggregateUnitHeader, header.detail).nnr_aggregate_unit_type
        if value > 1:
            yield f"{unit.label()} has nnr_aggregate_unit_type {value} and is read as a generic aggregate"
    if header.independently_decodable_flag and header.partial_data_counter_present_flag:
        yield f"{unit.label()} is independently decodable: its partial_data_counter has no meaning and is ignored"
