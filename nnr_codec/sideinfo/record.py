"""The side-information record: what it says, and its form in a bitstream (docs/reference/side-information.md).

An NNR_TPL unit of topology_storage_format 128, which the standard leaves unspecified, carries it as deflated
canonical JSON. Decoders that do not know it skip it, and get the tensors of the units as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..dtypes import STORED_TYPES, StoredType
from ..errors import ElementError, EncodeError, UnsupportedError
from ..limits import Budget, Limits
from ..rules import Requirement
from .members import Members, load, shown, text

#: topology_storage_format of the record's unit; 128 and more are unspecified (Table 4).
STORAGE_FORMAT = 128
#: The last one; a record has the least that can say what it does.
VERSION = 3

#: What the inflated record begins with.
MAGIC = b'{"nnr_codec":'
_VERSION = re.compile(rb"([1-9][0-9]{0,8})[,}]")

#: Of a tensor without a unit among all tensors.
_MAX_INDEX = (1 << 31) - 1


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
    holes : int
        1: level 0 is +0.0, which has no other bits; 2: level 1 is -0.0 as well, as pruning by a mask leaves it. A level
        of ``holes + d`` then stands for ``pivot - d``.
    unsigned : bool
        Whether all sign bits are 0, and left out.
    zeros : int
        Low bits of the mantissa that are 0, and left out, in some rows (indices of the first dimension).
    rows : bytes or None
        In which: one bit each, the highest first; None: in all.
    unit : str or None
        Id of the unit with the levels, as in all codes. None in records before version 3: the tensor's name.
    """

    KIND: ClassVar[str] = "float"
    PART: ClassVar[str] = "levels"
    bits: str
    pivot: int
    mantissa: int = 0
    holes: int = 0
    unsigned: bool = False
    zeros: int = 0
    rows: bytes | None = None
    unit: str | None = None


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
    unit : str or None
        Id of the unit with the levels.
    """

    KIND: ClassVar[str] = "integer"
    PART: ClassVar[str] = "levels"
    base: int = 0
    low: int = 0
    bits: str | None = None
    unit: str | None = None


@dataclass(frozen=True)
class RawCode:
    """The unit of NNR_PT_RAW_FLOAT holds the items' own bytes, little-endian, and zeros to a whole number of words."""

    KIND: ClassVar[str] = "raw"
    PART: ClassVar[str] = "raw"
    unit: str | None = None


@dataclass(frozen=True)
class DeltaCode:
    """The unit of int32 holds differences of bit patterns, which the receiver of an update adds. Since version 3."""

    KIND: ClassVar[str] = "delta"
    PART: ClassVar[str] = "delta"
    unit: str


@dataclass(frozen=True)
class PaletteCode:
    """Levels are indices: item ``level + offset`` of a palette.

    Parameters
    ----------
    values : bytes
        Items of the tensor's type, little-endian.
    offset : int
    unit : str or None
        Id of the unit with the levels.
    """

    KIND: ClassVar[str] = "palette"
    PART: ClassVar[str] = "levels"
    values: bytes
    offset: int = 0
    unit: str | None = None


@dataclass(frozen=True)
class GridCode:
    """Floats on uniform grids: each level times its scale, in float32 (float64 for float64), rounded to the type.

    Parameters
    ----------
    scale : bytes
        float32 (float64 for float64), little-endian: one, or one for each index along ``axis``.
    axis : int or None
    unit : str or None
        Id of the unit with the levels.
    """

    KIND: ClassVar[str] = "grid"
    PART: ClassVar[str] = "levels"
    scale: bytes
    axis: int | None = None
    unit: str | None = None


@dataclass(frozen=True)
class DisplacementCode:
    """A matrix of floats by its displacement, from which :func:`nnr_codec.tensor.reduction.from_displacement` makes it.

    Its rows are the indices of the tensor's first dimension. Since version 2.

    Parameters
    ----------
    unit : str
        Id of the unit with the displacement; there is none of the tensor's own name.
    corner : int
        -1, 0 or 1.
    """

    KIND: ClassVar[str] = "displacement"
    PART: ClassVar[str] = "displacement"
    unit: str
    corner: int = 0


Code = FloatCode | IntegerCode | RawCode | DeltaCode | PaletteCode | GridCode | DisplacementCode


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

    @property
    def bits(self) -> str | None:
        """Id of the unit with those bits of its items that are not in its own unit; None when there is none."""
        return self.code.bits if isinstance(self.code, FloatCode | IntegerCode) else None

    @property
    def unit(self) -> str | None:
        """Id of the unit with its levels, bytes, differences or displacement; None where that has the tensor's name."""
        return self.code.unit if self.code else None

    @property
    def units(self) -> tuple[str, ...]:
        """Ids of its units that do not have the tensor's name."""
        return tuple(unit for unit in (self.unit, self.bits) if unit is not None)


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

    def to_bytes(self) -> bytes:
        """The record as canonical JSON, not yet deflated; EncodeError for a source that is not Unicode text."""
        try:
            "".join([self.format, *self.metadata, *self.metadata.values()]).encode()
        except (TypeError, UnicodeEncodeError):
            raise EncodeError("metadata of the model is not Unicode text") from None
        source = {"format": self.format, "metadata": dict(self.metadata)}
        members: dict[str, Any] = {
            "source": {name: value for name, value in source.items() if value},
            "tensors": {name: _written(name, tensor) for name, tensor in self.tensors.items()},
        }
        version = max([_version(tensor) for tensor in self.tensors.values()], default=1)
        members = {"nnr_codec": version} | {name: value for name, value in members.items() if value}
        return json.dumps(members, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes, budget: Budget) -> SideInfo | None:
        """The record that an inflated text holds; None when it is another's.

        Raises LimitError (max_side_info_bytes, max_names, max_name_bytes, max_dims, max_codebook), UnsupportedError for
        another version, and ElementError with the JSON path for all that :meth:`to_bytes` would not write.
        """
        if not data.startswith(MAGIC):
            return None
        budget.limits.check("max_side_info_bytes", len(data), "bytes of side information")
        version = _VERSION.match(data, len(MAGIC))
        if version is None:
            raise ElementError("is no version number", path="nnr_codec", rule=Requirement.SIDE_INFORMATION)
        if int(version[1]) > VERSION:
            raise UnsupportedError(
                f"side information of version {int(version[1])}; known are those up to {VERSION}",
                rule=Requirement.SIDE_INFORMATION,
            )
        record = _read(Members(load(data), ""), budget)
        try:
            canonical = record.to_bytes()
        except EncodeError:
            raise ElementError("is not Unicode text", path="source", rule=Requirement.SIDE_INFORMATION) from None
        if canonical != data:
            raise ElementError(
                "the side information is not canonical: other bytes say the same", rule=Requirement.SIDE_INFORMATION
            )
        return record


# ------------------------------------------------------------------------------------------------------------ writing
def _version(tensor: TensorRecord) -> int:
    """The first version that can describe a tensor."""
    if isinstance(tensor.code, DisplacementCode):
        return 2
    return 1 if tensor.unit is None else 3


def _default_id(name: str, code: type[Code], member: str) -> str:
    """The id of one of a tensor's units unless the record has another one."""
    if member == "unit" and code is DisplacementCode:
        return default_unit(name)
    return f"{name}#{'bits' if member == 'bits' else code.PART}"


def default_unit(name: str) -> str:
    """What the unit with a tensor's displacement is called unless the record says so."""
    return f"{name}_displacement"


def _written(name: str, tensor: TensorRecord) -> dict[str, Any]:
    """The JSON object of a tensor; what is as by default is left out."""
    members = _changed(tensor)
    if tensor.code is not None:
        code = {
            key: text(value, _width(tensor.stored, key)) if isinstance(value, bytes) else value
            for key, value in _changed(tensor.code).items()
            if key not in ("bits", "unit") or value != _default_id(name, type(tensor.code), key)
        }
        members["code"] = {"kind": tensor.code.KIND} | code
    return members


def _changed(instance: TensorRecord | Code) -> dict[str, Any]:
    """The fields that have not their default values."""
    values = {item.name: (getattr(instance, item.name), item.default) for item in fields(instance)}
    return {name: value for name, (value, default) in values.items() if value != default}


def _width(stored: StoredType, key: str) -> int:
    """Bytes of an item of what a code has as base64."""
    if key == "scale":
        return 8 if stored.name == "float64" else 4
    return stored.itemsize if key == "values" else 1


# ------------------------------------------------------------------------------------------------------------ reading
class _Tensor(NamedTuple):
    """What a code is checked against."""

    name: str
    stored: StoredType
    shape: tuple[int, ...] | None
    limits: Limits
    version: int


def _read(root: Members, budget: Budget) -> SideInfo:
    version = root.need("nnr_codec", int)
    source = Members(root.take("source", dict, {}), "source")
    objects = Members(root.take("tensors", dict, {}), "tensors")
    root.close()
    metadata = Members(source.take("metadata", dict, {}), source.at("metadata"))
    model_format = source.take("format", str, "")
    source.close()
    budget.charge("max_names", len(objects.values) + len(metadata.values), "names in side information")
    for key, value in metadata.values.items():
        if type(value) is not str:
            raise ElementError(
                "a string is expected", path=metadata.path + shown(key[:50]), rule=Requirement.SIDE_INFORMATION
            )
    tensors = {}
    for name, value in objects.values.items():
        _check_name(name, "tensors", budget.limits)
        tensors[name] = _read_tensor(name, Members(value, objects.path + shown(name)), budget.limits, version)
    _check_together(tensors)
    return SideInfo(tensors, model_format, metadata.values)


def _read_tensor(name: str, members: Members, limits: Limits, version: int) -> TensorRecord:
    if "same_as" in members.values:
        target = members.need("same_as", str)
        if not target:
            members.refuse("same_as", "a name is expected")
        _check_name(target, members.at("same_as"), limits)
        record = TensorRecord(same_as=target, index=_read_index(members))
        members.close()
        return record
    kind = members.need("type", str)
    if kind not in STORED_TYPES:
        members.refuse("type", "is no type that is known")
    stored = STORED_TYPES[kind]
    shape = _read_shape(members, stored, limits)
    if shape is not None and 0 in shape:
        record = TensorRecord(kind, shape, index=_read_index(members))
    elif "code" in members.values:
        code = Members(members.need("code", dict), members.at("code"))
        record = TensorRecord(kind, shape, _read_code(code, _Tensor(name, stored, shape, limits, version)))
    else:
        record = TensorRecord(kind, shape)
    members.close()
    return record


def _read_index(members: Members) -> int:
    index = members.need("index", int)
    members.check("index", index, 0, _MAX_INDEX)
    return index


def _read_shape(members: Members, stored: StoredType, limits: Limits) -> tuple[int, ...] | None:
    extents = members.take("shape", list, None)
    if extents is None:
        return None
    limits.check("max_dims", len(extents), f"{members.at('shape')}: number of dimensions")
    size = stored.itemsize
    for extent in extents:
        if type(extent) is not int or extent < 0:
            members.refuse("shape", "integers from 0 on are expected")
        size *= extent or 1
    if size > Limits.NONE:
        members.refuse("shape", f"{extents} has more bytes than there are")
    return tuple(extents)


def _read_code(members: Members, tensor: _Tensor) -> Code:
    kind = members.need("kind", str)
    if kind not in _CODES:
        members.refuse("kind", "is no code that is known")
    code = _CODES[kind](members, tensor)
    members.close()
    return code


def _read_id(members: Members, tensor: _Tensor, code: type[Code], member: str) -> str:
    """The id of one of a tensor's units."""
    found = members.take(member, str, _default_id(tensor.name, code, member))
    _check_name(found, members.at(member), tensor.limits)
    return found


def _read_unit(members: Members, tensor: _Tensor, code: type[Code]) -> str | None:
    """The id of the unit with levels or bytes; None before version 3."""
    return None if tensor.version < 3 else _read_id(members, tensor, code, "unit")


def _read_float(members: Members, tensor: _Tensor) -> FloatCode:
    stored = tensor.stored
    if stored.kind != "f":
        members.refuse("kind", f"{stored.name} is no float")
    mantissa = members.take("mantissa", int, 0)
    members.check("mantissa", mantissa, 0, stored.mantissa)
    pivot = members.need("pivot", int)
    members.check("pivot", pivot, 0, (1 << (stored.exponent + mantissa)) - 1)
    zeros = members.take("zeros", int, 0)
    members.check("zeros", zeros, 0, stored.mantissa - mantissa)
    holes = members.take("holes", int, 0)
    members.check("holes", holes, 0, 2)
    return FloatCode(
        bits=_read_id(members, tensor, FloatCode, "bits"),
        pivot=pivot,
        mantissa=mantissa,
        holes=holes,
        unsigned=members.take("unsigned", bool, False),
        zeros=zeros,
        rows=_read_rows(members, tensor) if zeros and "rows" in members.values else None,
        unit=_read_unit(members, tensor, FloatCode),
    )


def _read_rows(members: Members, tensor: _Tensor) -> bytes:
    rows = members.data("rows", _width(tensor.stored, "rows"))
    if tensor.shape is not None and (not tensor.shape or len(rows) != (tensor.shape[0] + 7) // 8):
        members.refuse("rows", "is not one bit for each index of the first dimension")
    return rows


def _read_integer(members: Members, tensor: _Tensor) -> IntegerCode:
    base = members.take("base", int, 0)
    members.check("base", base, *tensor.stored.range)
    low = members.take("low", int, 0)
    members.check("low", low, 0, 64)
    bits = _read_id(members, tensor, IntegerCode, "bits") if low else None
    return IntegerCode(base, low, bits, _read_unit(members, tensor, IntegerCode))


def _read_raw(members: Members, tensor: _Tensor) -> RawCode:
    if tensor.shape is None:
        members.refuse("kind", "the tensor needs a shape, since its unit has none")
    return RawCode(_read_unit(members, tensor, RawCode))


def _read_delta(members: Members, tensor: _Tensor) -> DeltaCode:
    if tensor.stored.name != "int32":
        members.refuse("kind", f"differences are int32, not {tensor.stored.name}")
    return DeltaCode(_read_id(members, tensor, DeltaCode, "unit"))


def _read_palette(members: Members, tensor: _Tensor) -> PaletteCode:
    stored = tensor.stored
    values = members.data("values", _width(stored, "values"))
    entries = len(values) // stored.itemsize
    tensor.limits.check("max_codebook", entries, f"{members.at('values')}: number of entries")
    if stored.bits < 8:
        items = np.frombuffer(values, "i1" if stored.kind == "i" else "u1")
        for item in (items.min(), items.max()):
            members.check("values", int(item), *stored.range)
    offset = members.take("offset", int, 0)
    members.check("offset", offset, 0, entries - 1)
    return PaletteCode(values, offset, _read_unit(members, tensor, PaletteCode))


def _read_grid(members: Members, tensor: _Tensor) -> GridCode:
    if tensor.stored.kind != "f":
        members.refuse("kind", f"{tensor.stored.name} is no float")
    width = _width(tensor.stored, "scale")
    scale = members.data("scale", width)
    scales = np.frombuffer(scale, f"<f{width}")
    if not np.isfinite(scales).all() or not scales.all():
        members.refuse("scale", "holds a scale that is 0 or not finite")
    axis = members.take("axis", int, None)
    shape = tensor.shape
    if axis is not None:
        members.check("axis", axis, 0, (tensor.limits.max_dims if shape is None else len(shape)) - 1)
    if scales.size != 1 if axis is None else shape is not None and scales.size != shape[axis]:
        members.refuse("scale", f"{scales.size:,} scales are not one for each index of the axis, or one without it")
    return GridCode(scale, axis, _read_unit(members, tensor, GridCode))


def _read_displacement(members: Members, tensor: _Tensor) -> DisplacementCode:
    if tensor.stored.kind != "f":
        members.refuse("kind", f"{tensor.stored.name} is no float")
    if tensor.shape is not None and not tensor.shape:
        members.refuse("kind", "the tensor has no dimensions, of which the first one is that of rows")
    unit = _read_id(members, tensor, DisplacementCode, "unit")
    corner = members.take("corner", int, 0)
    members.check("corner", corner, -1, 1)
    return DisplacementCode(unit, corner)


_CODES: dict[str, Callable[[Members, _Tensor], Code]] = {
    FloatCode.KIND: _read_float,
    IntegerCode.KIND: _read_integer,
    RawCode.KIND: _read_raw,
    DeltaCode.KIND: _read_delta,
    PaletteCode.KIND: _read_palette,
    GridCode.KIND: _read_grid,
    DisplacementCode.KIND: _read_displacement,
}


def _check_name(name: str, path: str, limits: Limits) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ElementError("a name is not Unicode text", path=path, rule=Requirement.SIDE_INFORMATION) from None
    limits.check("max_name_bytes", size, f"{path}: bytes of a name")
    if "\0" in name:
        raise ElementError("a name holds a zero, which would end it", path=path, rule=Requirement.SIDE_INFORMATION)


def _check_together(tensors: Mapping[str, TensorRecord]) -> None:
    """Raise ElementError where tensors contradict each other."""
    units: set[str] = set()
    for name, tensor in tensors.items():
        for unit in tensor.units:
            if unit in tensors or unit in units:
                member = "code.unit" if unit == tensor.unit else "code.bits"
                raise ElementError(
                    f"{unit!r} is the name of something else",
                    path=_path(name, member),
                    rule=Requirement.SIDE_INFORMATION,
                )
            units.add(unit)
    places: set[int] = set()
    for name, tensor in tensors.items():
        if tensor.index is None:
            continue
        if tensor.index in places:
            raise ElementError(
                f"{tensor.index} is the place of another tensor",
                path=_path(name, "index"),
                rule=Requirement.SIDE_INFORMATION,
            )
        places.add(tensor.index)
        target = tensor.same_as
        if target and (target in units or (target in tensors and tensors[target].same_as)):
            raise ElementError(
                f"{target!r} is no tensor with values of its own",
                path=_path(name, "same_as"),
                rule=Requirement.SIDE_INFORMATION,
            )


def _path(name: str, member: str) -> str:
    return f"tensors{shown(name)}.{member}"
