"""Side-information record: its contents, and its form in a bitstream (docs/reference/side-information.md).

An NNR_TPL unit of topology_storage_format 128, which the standard leaves unspecified, carries it as deflated canonical
JSON. Decoders without support skip it and return the tensors of the units unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..dtypes import STORED_TYPES, StoredType
from ..errors import ElementError, EncodeError, UnsupportedError
from ..limits import Budget, Limits
from ..rules import Requirement
from .members import Members, load, shown, text

#: topology_storage_format of the record's unit; 128 and above are unspecified (Table 4).
STORAGE_FORMAT = 128
#: Latest version; a record uses the lowest version that can represent its contents. It is the last one: all later
#: extensions are features.
VERSION = 4
#: Features of version 4 that this package supports. A record names the features that it uses.
FEATURES = frozenset({"order", "repeats"})

#: Order of differences by the exponents of the base.
BY_EXPONENT = "exponent"

#: First bytes of an inflated record.
MAGIC = b'{"nnr_codec":'
_VERSION = re.compile(rb"([1-9][0-9]{0,8})[,}]")

#: Largest position of a tensor without a unit among all tensors.
_MAX_INDEX = (1 << 31) - 1


@dataclass(frozen=True)
class FloatCode:
    """Floats split into exponents, in a unit of integers, and sign and mantissa bits in another unit.

    Parameters
    ----------
    bits : str
        Id of the unit with the other bits.
    pivot : int
        Exponent and first mantissa bits, as one number, for level 0. Level d stands for ``pivot - d``.
    mantissa : int
        Number of mantissa bits in the level.
    holes : int
        1: level 0 is +0.0, without other bits; 2: level 1 is -0.0 too, as masked pruning produces it. Level ``holes +
        d`` then stands for ``pivot - d``.
    unsigned : bool
        True if all sign bits are 0 and omitted.
    zeros : int
        Number of low mantissa bits that are 0 and omitted in some rows (indices of the first dimension).
    rows : bytes or None
        One bit for each row, highest first, that is 1 for rows with such bits; None: all rows.
    unit : str or None
        Id of the unit with the levels, as in all codes. None in records before version 3: the name of the tensor.
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
    """Integers, or float bit patterns as unsigned integers: ``base + level * 2**low`` plus ``low`` bits.

    Parameters
    ----------
    base : int
    low : int
        Number of low bits of each integer in the unit ``bits``.
    bits : str or None
        Id of that unit; None if ``low`` is 0.
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
    """Bytes of the items, little-endian, in a unit of NNR_PT_RAW_FLOAT, zero-padded to whole words."""

    KIND: ClassVar[str] = "raw"
    PART: ClassVar[str] = "raw"
    unit: str | None = None


@dataclass(frozen=True)
class DeltaCode:
    """Differences of bit patterns in a unit of int32, for the receiver of an update to add. Since version 3.

    Parameters
    ----------
    unit : str
        Id of that unit.
    order : str
        ``"exponent"``: the items are sorted by the exponents of the base, items with equal exponents in the order of
        the tensor (this is the feature ``order``); empty: the order of the tensor.
    """

    KIND: ClassVar[str] = "delta"
    PART: ClassVar[str] = "delta"
    unit: str
    order: str = ""


@dataclass(frozen=True)
class PaletteCode:
    """Levels that are indices: item ``level + offset`` of a palette.

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
    """Floats on uniform grids: level times scale, in float32 (float64 for float64), rounded to the type.

    Parameters
    ----------
    scale : bytes
        Scales as float32 (float64 for float64), little-endian: one, or one for each index along ``axis``.
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
    """Float matrix stored as its displacement; :func:`nnr_codec.tensor.reduction.from_displacement` restores it.

    The rows are the indices of the tensor's first dimension. Since version 2.

    Parameters
    ----------
    unit : str
        Id of the unit with the displacement; no unit has the name of the tensor.
    corner : int
        -1, 0 or 1.
    """

    KIND: ClassVar[str] = "displacement"
    PART: ClassVar[str] = "displacement"
    unit: str
    corner: int = 0


Code = FloatCode | IntegerCode | RawCode | DeltaCode | PaletteCode | GridCode | DisplacementCode


@dataclass(frozen=True)
class Repeats:
    """Runs of items that are copies of earlier items; the units of the tensor have the other items.

    This is the feature ``repeats``. The four sequences have one number for each run.

    Parameters
    ----------
    kept : tuple of int
        Number of items of the units before the run and after the previous run.
    length : tuple of int
        Number of items of the run.
    distance : tuple of int
        First item of the run minus first item of the copied run; at least the length, at most the first item.
    change : tuple of int
        Sum of 1 for reversed order, 2 for negated items at even positions in the run, 4 for odd positions.
    columns : bool
        Items are in the order of columns: a matrix with a row for each index of the first dimension, transposed.
    """

    kept: tuple[int, ...]
    length: tuple[int, ...]
    distance: tuple[int, ...]
    change: tuple[int, ...]
    columns: bool = False

    @property
    def copied(self) -> int:
        """Number of copied items."""
        return sum(self.length)


@dataclass(frozen=True)
class TensorRecord:
    """Side information on one tensor.

    Parameters
    ----------
    type : str
        Name of its :class:`~nnr_codec.dtypes.StoredType`; empty for an alias.
    shape : tuple of int or None
        None: the shape of its unit.
    code : Code or None
        Conversion of the items of its unit to its own items; None: a cast to the type.
    index : int or None
        Position in the model of a tensor without a unit, that is, an alias or an empty tensor.
    same_as : str
        Tensor to which this one is tied.
    repeats : Repeats or None
        Runs of copied items; the code then applies to the other items.
    """

    type: str = ""
    shape: tuple[int, ...] | None = None
    code: Code | None = None
    index: int | None = None
    same_as: str = ""
    repeats: Repeats | None = None

    @property
    def stored(self) -> StoredType:
        """Stored type of the tensor."""
        return STORED_TYPES[self.type]

    @property
    def bits(self) -> str | None:
        """Id of the unit with further bits of its items; None if there is none."""
        return self.code.bits if isinstance(self.code, FloatCode | IntegerCode) else None

    @property
    def unit(self) -> str | None:
        """Id of the unit with its levels, bytes, differences or displacement; None if it is the name of the tensor."""
        return self.code.unit if self.code else None

    @property
    def units(self) -> tuple[str, ...]:
        """Ids of its units other than the name of the tensor."""
        return tuple(unit for unit in (self.unit, self.bits) if unit is not None)


@dataclass(frozen=True)
class SideInfo:
    """Side-information record of a bitstream.

    Parameters
    ----------
    tensors : dict of str to TensorRecord
        Tensors with properties that their units lack, by name; empty if there is no record.
    format : str
        Format of the source model file; empty if unknown.
    metadata : dict of str to str
        Metadata of that file.
    """

    tensors: Mapping[str, TensorRecord] = field(default_factory=dict)
    format: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tensors or self.metadata)

    @property
    def by_exponent(self) -> frozenset[str]:
        """Names of the tensors whose differences are in the order of the exponents of the base."""
        ordered = {name for name, record in self.tensors.items() if _is_ordered(record)}
        return frozenset(ordered | {name for name, record in self.tensors.items() if record.same_as in ordered})

    def to_bytes(self) -> bytes:
        """Return the record as canonical JSON, before deflation. Raise EncodeError for text that is not Unicode."""
        try:
            "".join([self.format, *self.metadata, *self.metadata.values()]).encode()
        except (TypeError, UnicodeEncodeError):
            raise EncodeError("metadata of the model is not valid Unicode") from None
        source = {"format": self.format, "metadata": dict(self.metadata)}
        members: dict[str, Any] = {
            "source": {name: value for name, value in source.items() if value},
            "tensors": {name: _written(name, tensor) for name, tensor in self.tensors.items()},
        }
        members["requires"] = sorted({name for tensor in self.tensors.values() for name in _features(tensor)})
        version = max([_version(tensor) for tensor in self.tensors.values()], default=1)
        members = {"nnr_codec": version} | {name: value for name, value in members.items() if value}
        return json.dumps(members, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes, budget: Budget) -> SideInfo | None:
        """Parse the inflated text of a record; return None for other data.

        Raises LimitError (max_side_info_bytes, max_names, max_name_bytes, max_dims, max_codebook), UnsupportedError for
        another version or an unknown feature, and ElementError with the JSON path for anything that :meth:`to_bytes`
        would not write.
        """
        if not data.startswith(MAGIC):
            return None
        budget.limits.check("max_side_info_bytes", len(data), "bytes of side information")
        version = _VERSION.match(data, len(MAGIC))
        if version is None:
            raise ElementError("is not a version number", path="nnr_codec", rule=Requirement.SIDE_INFORMATION)
        if int(version[1]) > VERSION:
            raise UnsupportedError(
                f"side information has version {int(version[1])}; only versions up to {VERSION} are supported",
                rule=Requirement.SIDE_INFORMATION,
            )
        record = _read(Members(load(data), ""), budget)
        try:
            canonical = record.to_bytes()
        except EncodeError:
            raise ElementError("is not Unicode text", path="source", rule=Requirement.SIDE_INFORMATION) from None
        if canonical != data:
            raise ElementError("the side information is not canonical", rule=Requirement.SIDE_INFORMATION)
        return record


# ------------------------------------------------------------------------------------------------------------ writing
def _features(tensor: TensorRecord) -> tuple[str, ...]:
    """Return the features that a tensor requires."""
    return (("order",) if _is_ordered(tensor) else ()) + (("repeats",) if tensor.repeats else ())


def _is_ordered(tensor: TensorRecord) -> bool:
    return isinstance(tensor.code, DeltaCode) and bool(tensor.code.order)


def _version(tensor: TensorRecord) -> int:
    """Return the first version that can represent a tensor."""
    if _features(tensor):
        return 4
    if isinstance(tensor.code, DisplacementCode):
        return 2
    return 1 if tensor.unit is None else 3


def _default_id(name: str, code: type[Code], member: str) -> str:
    """Return the default id of a unit of a tensor."""
    if member == "unit" and code is DisplacementCode:
        return default_unit(name)
    return f"{name}#{'bits' if member == 'bits' else code.PART}"


def default_unit(name: str) -> str:
    """Return the default id of the unit with a tensor's displacement."""
    return f"{name}_displacement"


def _written(name: str, tensor: TensorRecord) -> dict[str, Any]:
    """Return the JSON object of a tensor, without default values."""
    members = _changed(tensor)
    if tensor.code is not None:
        code = {
            key: text(value, _width(tensor.stored, key)) if isinstance(value, bytes) else value
            for key, value in _changed(tensor.code).items()
            if key not in ("bits", "unit") or value != _default_id(name, type(tensor.code), key)
        }
        members["code"] = {"kind": tensor.code.KIND} | code
    if tensor.repeats is not None:
        members["repeats"] = _changed(tensor.repeats)
    return members


def _changed(instance: TensorRecord | Code | Repeats) -> dict[str, Any]:
    """Return the fields whose values differ from their defaults."""
    values = {item.name: (getattr(instance, item.name), item.default) for item in fields(instance)}
    return {name: value for name, (value, default) in values.items() if value != default}


def _width(stored: StoredType, key: str) -> int:
    """Return the bytes of an item in a base64 member of a code."""
    if key == "scale":
        return 8 if stored.name == "float64" else 4
    return stored.itemsize if key == "values" else 1


# ------------------------------------------------------------------------------------------------------------ reading
class _Tensor(NamedTuple):
    """Properties of a tensor against which a code is checked."""

    name: str
    stored: StoredType
    shape: tuple[int, ...] | None
    limits: Limits
    version: int
    repeats: bool


def _read(root: Members, budget: Budget) -> SideInfo:
    version = root.need("nnr_codec", int)
    if version >= 4:
        _check_features(root, budget)
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
                "expected a string", path=metadata.path + shown(key[:50]), rule=Requirement.SIDE_INFORMATION
            )
    tensors = {}
    for name, value in objects.values.items():
        _check_name(name, "tensors", budget.limits)
        tensors[name] = _read_tensor(name, Members(value, objects.path + shown(name)), budget.limits, version)
    _check_together(tensors)
    return SideInfo(tensors, model_format, metadata.values)


def _check_features(root: Members, budget: Budget) -> None:
    """Raise UnsupportedError, with the names, if the record requires features that are not supported."""
    required = root.need("requires", list)
    budget.charge("max_names", len(required), "features in side information")
    for name in required:
        if type(name) is not str or not name:
            root.refuse("requires", "expected names")
        _check_name(name, "requires", budget.limits)
    if not required or required != sorted(set(required)):
        root.refuse("requires", "expected different names in order")
    unknown = [repr(name[:50]) for name in required if name not in FEATURES]
    if unknown:
        raise UnsupportedError(
            f"side information requires the feature {', '.join(unknown[:5])}, which is not supported",
            rule=Requirement.SIDE_INFORMATION,
        )


def _read_tensor(name: str, members: Members, limits: Limits, version: int) -> TensorRecord:
    if "same_as" in members.values:
        target = members.need("same_as", str)
        if not target:
            members.refuse("same_as", "expected a name")
        _check_name(target, members.at("same_as"), limits)
        record = TensorRecord(same_as=target, index=_read_index(members))
        members.close()
        return record
    kind = members.need("type", str)
    if kind not in STORED_TYPES:
        members.refuse("type", "is an unknown type")
    stored = STORED_TYPES[kind]
    shape = _read_shape(members, stored, limits)
    if shape is not None and 0 in shape:
        record = TensorRecord(kind, shape, index=_read_index(members))
    elif "code" in members.values:
        repeats = _read_repeats(members, stored, shape) if "repeats" in members.values else None
        code = Members(members.need("code", dict), members.at("code"))
        # With repeats, the unit determines the shape of its items.
        tensor = _Tensor(name, stored, None if repeats else shape, limits, version, repeats is not None)
        record = TensorRecord(kind, shape, _read_code(code, tensor), repeats=repeats)
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
            members.refuse("shape", "expected integers of at least 0")
        size *= extent or 1
    if size > Limits.NONE:
        members.refuse("shape", f"{extents} exceeds the largest possible array")
    return tuple(extents)


def _read_repeats(members: Members, stored: StoredType, shape: tuple[int, ...] | None) -> Repeats:
    """Read runs of copied items: each run copies items before it, and the last one ends within the tensor."""
    if not shape:
        members.refuse("repeats", "require a shape with dimensions")
    runs = Members(members.need("repeats", dict), members.at("repeats"))
    numbers = {name: runs.need(name, list) for name in ("kept", "length", "distance", "change")}
    columns = runs.take("columns", bool, False)
    runs.close()
    kept, lengths, distances, changes = numbers.values()
    if not kept or not len(kept) == len(lengths) == len(distances) == len(changes):
        members.refuse("repeats", "expected arrays of the same length, with a number for each run")
    size, start = prod(shape), 0
    most = 7 if stored.kind in "fi" else 1  # unsigned integers and booleans have no negative
    for name, values in numbers.items():
        if any(type(value) is not int for value in values):
            runs.refuse(name, "expected integers")
    for more, length, distance, change in zip(kept, lengths, distances, changes, strict=True):
        runs.check("kept", more, 0, size)
        start += more
        runs.check("length", length, 1, max(size - start, 0))
        runs.check("distance", distance, length, start)
        runs.check("change", change, 0, most)
        start += length
    return Repeats(tuple(kept), tuple(lengths), tuple(distances), tuple(changes), columns)


def _read_code(members: Members, tensor: _Tensor) -> Code:
    kind = members.need("kind", str)
    if kind not in _CODES:
        members.refuse("kind", "is an unknown code")
    if tensor.repeats and kind in (DeltaCode.KIND, DisplacementCode.KIND):
        members.refuse("kind", "cannot have repeats")
    code = _CODES[kind](members, tensor)
    members.close()
    return code


def _read_id(members: Members, tensor: _Tensor, code: type[Code], member: str) -> str:
    """Read the id of a unit of a tensor."""
    found = members.take(member, str, _default_id(tensor.name, code, member))
    _check_name(found, members.at(member), tensor.limits)
    return found


def _read_unit(members: Members, tensor: _Tensor, code: type[Code]) -> str | None:
    """Read the id of the unit with levels or bytes; None before version 3."""
    return None if tensor.version < 3 else _read_id(members, tensor, code, "unit")


def _read_float(members: Members, tensor: _Tensor) -> FloatCode:
    stored = tensor.stored
    if stored.kind != "f":
        members.refuse("kind", f"{stored.name} is not a float type")
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
        members.refuse("rows", "must have one bit for each index of the first dimension")
    return rows


def _read_integer(members: Members, tensor: _Tensor) -> IntegerCode:
    base = members.take("base", int, 0)
    members.check("base", base, *tensor.stored.range)
    low = members.take("low", int, 0)
    members.check("low", low, 0, 64)
    bits = _read_id(members, tensor, IntegerCode, "bits") if low else None
    return IntegerCode(base, low, bits, _read_unit(members, tensor, IntegerCode))


def _read_raw(members: Members, tensor: _Tensor) -> RawCode:
    if tensor.shape is None and not tensor.repeats:
        members.refuse("kind", "the tensor requires a shape, because its unit has none")
    return RawCode(_read_unit(members, tensor, RawCode))


def _read_delta(members: Members, tensor: _Tensor) -> DeltaCode:
    if tensor.stored.name != "int32":
        members.refuse("kind", f"differences must be int32, got {tensor.stored.name}")
    order = members.take("order", str, "")
    if order not in ("", BY_EXPONENT):
        members.refuse("order", "is an unknown order")
    return DeltaCode(_read_id(members, tensor, DeltaCode, "unit"), order)


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
        members.refuse("kind", f"{tensor.stored.name} is not a float type")
    width = _width(tensor.stored, "scale")
    scale = members.data("scale", width)
    scales = np.frombuffer(scale, f"<f{width}")
    if not np.isfinite(scales).all() or not scales.all():
        members.refuse("scale", "contains a scale that is 0 or not finite")
    axis = members.take("axis", int, None)
    shape = tensor.shape
    if axis is not None:
        members.check("axis", axis, 0, (tensor.limits.max_dims if shape is None else len(shape)) - 1)
    if scales.size != 1 if axis is None else shape is not None and scales.size != shape[axis]:
        members.refuse(
            "scale", f"{scales.size:,} scales are given; expected one for each index of the axis, or one without axis"
        )
    return GridCode(scale, axis, _read_unit(members, tensor, GridCode))


def _read_displacement(members: Members, tensor: _Tensor) -> DisplacementCode:
    if tensor.stored.kind != "f":
        members.refuse("kind", f"{tensor.stored.name} is not a float type")
    if tensor.shape is not None and not tensor.shape:
        members.refuse("kind", "rows require a tensor with dimensions")
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
        raise ElementError("the name contains a zero character", path=path, rule=Requirement.SIDE_INFORMATION)


def _check_together(tensors: Mapping[str, TensorRecord]) -> None:
    """Raise ElementError if tensors contradict each other."""
    units: set[str] = set()
    for name, tensor in tensors.items():
        for unit in tensor.units:
            if unit in tensors or unit in units:
                member = "code.unit" if unit == tensor.unit else "code.bits"
                raise ElementError(
                    f"{unit!r} is already used as a name",
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
                f"{tensor.index} is already the index of another tensor",
                path=_path(name, "index"),
                rule=Requirement.SIDE_INFORMATION,
            )
        places.add(tensor.index)
        target = tensor.same_as
        if target and (target in units or (target in tensors and tensors[target].same_as)):
            raise ElementError(
                f"{target!r} is not a tensor with its own values",
                path=_path(name, "same_as"),
                rule=Requirement.SIDE_INFORMATION,
            )


def _path(name: str, member: str) -> str:
    return f"tensors{shown(name)}.{member}"
