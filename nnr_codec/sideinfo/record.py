"""The side-information record: what it says, and its form in a bitstream (docs/side-information.md).

An NNR_TPL unit of topology_storage_format 128, which the standard leaves to private use, carries it as deflated
canonical JSON. Decoders that do not know it skip it, and get the tensors of the units as they are.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..dtypes import STORED_TYPES, StoredType
from ..errors import ElementError, UnsupportedError
from ..limits import Budget

#: topology_storage_format of the record's unit; 128 and more are for private use (Table 4).
STORAGE_FORMAT = 128
VERSION = 1

_MAGIC = b'{"nnr_codec":'
_UNIT_VALUES = range(-(1 << 31), 1 << 31)


@dataclass(frozen=True)
class FloatCode:
    """Floats as exponents in a unit of integers, and sign and mantissa as they are in another one.

    Parameters
    ----------
    bits : str
        Id of the unit with the other bits.
    pivot : int
        What the level 0 stands for: exponent and the first bits of the mantissa, as one number. A level of d stands
        for ``pivot - d``.
    mantissa : int
        How many bits of the mantissa stand in the level.
    hole : bool
        Whether level 0 is +0.0, which has no other bits; a level d above 0 then stands for ``pivot - (d - 1)``.
    unsigned : bool
        Whether all sign bits are 0, and left out.
    zeros : int
        Low bits of the mantissa that are 0, and left out, in some rows (indices of the first dimension).
    rows : bytes or None
        In which: one bit each, the highest first; None: in all.
    """

    KIND: ClassVar[str] = "float"
    bits: str
    pivot: int
    mantissa: int = 0
    hole: bool = False
    unsigned: bool = False
    zeros: int = 0
    rows: bytes | None = None


@dataclass(frozen=True)
class IntegerCode:
    """Integers, or bit patterns of floats as unsigned integers: ``base + level * 2**low`` plus ``low`` bits.

    Parameters
    ----------
    base : int
    low : int
        How many bits of each integer stand in the unit ``bits``, as they are.
    bits : str or None
        Its id; None when ``low`` is 0.
    """

    KIND: ClassVar[str] = "integer"
    base: int = 0
    low: int = 0
    bits: str | None = None


@dataclass(frozen=True)
class RawCode:
    """The unit of NNR_PT_RAW_FLOAT holds the items' own bytes, little-endian, and zeros to a whole number of words."""

    KIND: ClassVar[str] = "raw"


@dataclass(frozen=True)
class PaletteCode:
    """Levels are indices: item ``level + offset`` of a palette.

    Parameters
    ----------
    values : bytes
        Items of the tensor's type, little-endian.
    offset : int
    """

    KIND: ClassVar[str] = "palette"
    values: bytes
    offset: int = 0


@dataclass(frozen=True)
class GridCode:
    """Floats on uniform grids: each level times its scale, in float32 (float64 for float64), rounded to the type.

    Parameters
    ----------
    scale : bytes
        float32 (float64 for float64), little-endian: one, or one for each index along ``axis``.
    axis : int or None
    """

    KIND: ClassVar[str] = "grid"
    scale: bytes
    axis: int | None = None


Code = FloatCode | IntegerCode | RawCode | PaletteCode | GridCode


@dataclass(frozen=True)
class TensorRecord:
    """What is to be known of one tensor.

    Parameters
    ----------
    type : str
        Name of its :class:`~nnr_codec.dtypes.StoredType`; empty for an alias.
    shape : tuple of int or None
        None: that of its unit.
    code : Code or None
        How its items follow from those of its unit; None: they are cast to the type.
    index : int or None
        Place in the model of a tensor without a unit: an alias or an empty one.
    same_as : str
        The tensor that this one is tied to.
    """

    type: str = ""
    shape: tuple[int, ...] | None = None
    code: Code | None = None
    index: int | None = None
    same_as: str = ""

    @property
    def stored(self) -> StoredType:
        """Its type."""
        return STORED_TYPES[self.type]


@dataclass(frozen=True)
class SideInfo:
    """The record of a bitstream.

    Parameters
    ----------
    tensors : dict of str to TensorRecord
        Tensors that are more than their units say, by name; an empty mapping where there is no record.
    format : str
        Of the model file that the tensors came from; empty when not known.
    metadata : dict of str to str
        What that file said beside them.
    """

    tensors: Mapping[str, TensorRecord] = field(default_factory=dict)
    format: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tensors or self.metadata)
