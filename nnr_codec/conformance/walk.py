"""Reading units one by one, whatever is wrong with those before them."""

from __future__ import annotations

from collections.abc import Iterable

from ..bitstream.units import Unit, UnitReader
from ..constants import NNR_CPT_DC, NNR_NDU
from ..decoder.decode import BitstreamParser
from ..decoder.state import node_key
from ..limits import Limits
from ..syntax import BitReader, Reader, Session
from ..syntax.structures import NnrUnitSize


class OneUnit(UnitReader):
    """Reads the unit at the start of ``data``, number ``index`` of the bitstream."""

    def __init__(self, data: memoryview, index: int, limits: Limits, session: Session) -> None:
        super().__init__(data, limits, session)
        self._index = index


class Parser(BitstreamParser):
    """A parser that goes on after errors."""

    def drop(self, unit: Unit, names: Iterable[str]) -> None:
        """Forget what has begun and is not complete, when a unit is refused; its G or H may have its names."""
        self._partial = self._g = None
        if unit.header.nnr_unit_type == NNR_NDU and unit.ndu.compressed_parameter_types & NNR_CPT_DC:
            self.names.difference_update(names)
            self._keys.discard(node_key(unit.ndu) or (-1, -1))


def unit_size(data: memoryview) -> int:
    """nnr_unit_size where the unit may be as long as that, else 0."""
    if len(data) < 5 and (len(data) < 3 or data[0] >> 7):
        return 0
    size = Reader(Session(), BitReader(data[:4])).read(NnrUnitSize)
    return size.nnr_unit_size if 3 + 2 * size.nnr_unit_size_flag <= size.nnr_unit_size <= len(data) else 0


def unit_type(data: memoryview) -> int:
    """nnr_unit_type of the unit at the start of ``data``, -1 where that is too short."""
    header = 2 + 2 * (data[0] >> 7)
    return data[header] >> 2 if len(data) > header else -1
