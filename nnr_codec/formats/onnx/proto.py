"""Parser of a TensorProto: properties and location of its items."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from ...errors import FormatError
from ...limits import Limits
from ..protobuf import LENGTH, LONGEST, VARINT, Field, MessageSource, signed, unpacked
from .layout import Location, Other, Patch, Place, Slot
from .tensor import DOUBLE_DATA, FLOAT_DATA, INT32_DATA, INT64_DATA, RAW_DATA, TYPES, UINT64_DATA, Items, items_of

#: Maximum number of items of a tensor that stays in the topology as structure.
SMALL = 16

_DIMS, _DATA_TYPE, _SEGMENT, _STRING_DATA, _NAME, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 3, 6, 8, 13, 14
# Path to the shape in a ValueInfoProto: TypeProto, TypeProto.Tensor, TensorShapeProto; then Dimension and its value.
_TO_SHAPE, _DIM, _DIM_VALUE = (2, 1, 2), 1, 1
# Item types of constants whose values graph analysis needs.
_READ = ("int32", "int64", "float32")
_DATA = (FLOAT_DATA, INT32_DATA, INT64_DATA, RAW_DATA, DOUBLE_DATA, UINT64_DATA)
_EXTERNAL = 1
_MAX_FIELDS = 64  # maximum number of fields with the same meaning
_MAX_SIZE = (1 << 63) - 1
_MAX_DIGITS = 19


@dataclass(slots=True)
class TensorProto:
    """Fields of a TensorProto, in file order.

    Parameters
    ----------
    name : str
    type : int
        The field data_type.
    shape : tuple of int
    dims, data, entries, locations : tuple of Field
        Fields with the shape, the items, the external location, and the flag for external data.
    is_external : bool
    is_strange : bool
        True if the tensor has a segment or strings.
    """

    name: str = ""
    type: int = 0
    shape: tuple[int, ...] = ()
    dims: tuple[Field, ...] = ()
    data: tuple[Field, ...] = ()
    entries: tuple[Field, ...] = ()
    locations: tuple[Field, ...] = ()
    is_external: bool = False
    is_strange: bool = False


def read_tensor(source: MessageSource, found: Field, limits: Limits) -> TensorProto:
    """Read a TensorProto without its items. Raise FormatError if it is malformed, LimitError if it exceeds limits."""
    tensor = TensorProto()
    for part in source.fields(found.body, found.end):
        if part.number == _DIMS:
            tensor.dims += (part,)
            tensor.shape += tuple(map(signed, integers(source, part, limits.max_dims)))
            limits.check("max_dims", max(len(tensor.shape), len(tensor.dims)), "number of dimensions of a tensor")
        elif part.number == _DATA_TYPE:
            tensor.type = number(part)
        elif part.number == _NAME:
            tensor.name = source.text(part)
        elif part.number in (_EXTERNAL_DATA, _DATA_LOCATION):
            if part.number == _EXTERNAL_DATA:
                tensor.entries += (part,)
            else:
                tensor.locations += (part,)
                tensor.is_external = number(part) == _EXTERNAL
            if max(len(tensor.entries), len(tensor.locations)) > _MAX_FIELDS:
                raise FormatError(f"a tensor has more than {_MAX_FIELDS} entries of external_data")
        elif part.number in (_SEGMENT, _STRING_DATA):
            tensor.is_strange = True
        elif part.number in _DATA:
            # Two are enough to know that there is more than one.
            tensor.data = (*tensor.data[:1], part)
    return tensor


def patches_of(
    source: MessageSource, tensor: TensorProto, name: str, claim: Callable[[str], str], *, constant: bool
) -> list[Patch]:
    """Return the patches that remove the items of a tensor; empty if they stay.

    ``claim`` returns the unique name of the tensor in the model. Raises FormatError if shape, type and number of bytes
    do not match.
    """
    what = f"tensor {name[:80]!a}"
    if tensor.type not in TYPES or tensor.is_strange:
        check_inside(tensor, what)
        return []
    if any(extent < 0 for extent in tensor.shape) or prod(tensor.shape) * 8 > _MAX_SIZE:
        raise FormatError(f"{what}: shape {tensor.shape} is invalid")
    if 0 in tensor.shape:
        # Without items, no other file is needed.
        return [Other(part.start, part.end, b"") for part in tensor.entries + tensor.locations if tensor.is_external]
    found = _external(tensor, what) if tensor.is_external else _inside(tensor)
    if not found:
        return []
    first, *others = found
    if tensor.is_external:
        items = items_of(TYPES[tensor.type].name, tensor.shape, RAW_DATA)
        place = _place(source, tensor, items, what)
    else:
        items = items_of(TYPES[tensor.type].name, tensor.shape, first.number)
        nbytes = first.end - first.body
        if nbytes:
            if _stays(items, constant):
                return []
            items.check_size(nbytes, what)
        place = Place("", first.body, nbytes) if nbytes else None
    dims = tuple([(part.start, part.end) for part in tensor.dims])
    slot = Slot(first.start, first.end, claim(name), items, place, tensor.is_external, bool(tensor.locations), dims)
    patches: list[Patch] = [slot, *(Other(entry.start, entry.end, b"") for entry in others)]
    return patches + [Location(part.start, part.end, slot) for part in tensor.locations]


def check_inside(tensor: TensorProto, what: str) -> None:
    """Raise FormatError if the items of a tensor that stays in the graph are in another file, which is not stored."""
    is_lost = tensor.is_external
    if is_lost:
        raise FormatError(f"{what}: its data is in another file, which is supported only for weights")


class ConstantTensor(NamedTuple):
    """Small tensor that stays in the topology: its shape, and its items if their type is in :data:`_READ`."""

    shape: tuple[int, ...]
    values: tuple[float, ...] = ()


def constant_of(source: MessageSource, tensor: TensorProto) -> ConstantTensor | None:
    """Return the value of a tensor that :func:`patches_of` leaves in place; None if it is large, or not an array.

    Raises FormatError if the number of items does not match the shape.
    """
    if tensor.type not in TYPES or tensor.is_strange or tensor.is_external:
        return None
    found = _inside(tensor)
    if prod(tensor.shape) > SMALL or not found:
        return None
    items, what = items_of(TYPES[tensor.type].name, tensor.shape, found[0].number), f"tensor {tensor.name[:80]!a}"
    if items.type not in _READ:
        return ConstantTensor(tensor.shape)
    nbytes = found[0].end - found[0].body
    items.check_size(nbytes, what)
    array = items.read(io.BytesIO(source.read(found[0].body, found[0].end)), nbytes, what)
    return ConstantTensor(tensor.shape, tuple(array.reshape(-1).tolist()))


def extents_of(source: MessageSource, found: Field, limits: Limits) -> tuple[int, ...]:
    """Return the shape in a ValueInfoProto, with 0 for unknown extents; empty if it declares none."""
    path = path_to_shape(source, found)
    extents: list[int] = []
    for dim in source.fields(path[-1].body, path[-1].end) if path else ():
        if dim.number == _DIM and dim.wire == LENGTH:
            limits.check("max_dims", len(extents) + 1, "number of dimensions of an input")
            extents.append(0)
            for part in source.fields(dim.body, dim.end):
                if part.number == _DIM_VALUE:
                    extents[-1] = max(number(part), 0)
    return tuple(extents)


def path_to_shape(source: MessageSource, found: Field) -> list[Field]:
    """Return TypeProto, TypeProto.Tensor and TensorShapeProto of a ValueInfoProto; empty unless each occurs once."""
    path: list[Field] = []
    for place in _TO_SHAPE:
        inner: Field | None = None
        for part in source.fields(found.body, found.end):
            if part.number == place and (inner or part.wire != LENGTH):
                return []
            inner = part if part.number == place else inner
        if inner is None:
            return []
        found = inner
        path.append(found)
    return path


def _inside(tensor: TensorProto) -> tuple[Field, ...]:
    """Return the field with the items; empty if they are not in the usual form of protocol buffers."""
    known = (RAW_DATA, TYPES[tensor.type].field)
    is_plain = len(tensor.data) == 1 and tensor.data[0].wire == LENGTH and tensor.data[0].number in known
    return tensor.data if is_plain else ()


def _stays(items: Items, constant: bool) -> bool:
    """Return whether a tensor in the model is structure rather than weights."""
    if constant or items.stored.kind != "f":
        return prod(items.shape) <= SMALL
    return not items.shape


def _external(tensor: TensorProto, what: str) -> tuple[Field, ...]:
    """Return the fields with the location in another file."""
    if tensor.data:
        raise FormatError(f"{what}: its data is both in the model and in another file")
    if not tensor.entries:
        raise FormatError(f"{what}: its data is in another file, but it has no external_data")
    return tensor.entries


def _place(source: MessageSource, tensor: TensorProto, items: Items, what: str) -> Place | None:
    """Return file and location of the items; None if they were removed."""
    if all(entry.body == entry.end for entry in tensor.entries):
        return None
    entries = dict(_entry(source, entry) for entry in tensor.entries)
    if not entries.get("location"):
        raise FormatError(f"{what}: its data is in another file, but external_data has no location")
    length = _decimal(entries.get("length", str(items.raw_size)), f"{what}: length")
    items.check_size(length, what)
    return Place(entries["location"], _decimal(entries.get("offset", "0"), f"{what}: offset"), length)


def _entry(source: MessageSource, found: Field) -> tuple[str, str]:
    """Return key and value of a StringStringEntryProto."""
    if found.wire != LENGTH:
        raise FormatError(f"field {found.number} at byte {found.start} is not a message")
    texts = {1: "", 2: ""}
    for part in source.fields(found.body, found.end):
        if part.number in texts:
            texts[part.number] = source.text(part)
    return texts[1], texts[2]


def _decimal(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise FormatError(f"{what} {text[:40]!a} is not a number")
    return int(text)


def number(found: Field) -> int:
    """Return the value of an integer field."""
    if found.wire != VARINT:
        raise FormatError(f"field {found.number} at byte {found.start} is not an integer")
    return signed(found.value)


def integers(source: MessageSource, found: Field, most: int) -> list[int]:
    """Return the values of an integer field, packed or not, with at most ``most`` values."""
    if found.wire == VARINT:
        return [found.value]
    if found.wire != LENGTH:
        raise FormatError(f"field {found.number} at byte {found.start} is not an integer")
    if found.end - found.body > most * LONGEST:
        raise FormatError(f"field {found.number} at byte {found.start} has more than {most} integers")
    values, used = unpacked(np.frombuffer(source.read(found.body, found.end), np.uint8))
    if used < found.end - found.body:
        raise FormatError(f"the integers of field {found.number} at byte {found.start} end early")
    return [int(value) for value in values]


def once(seen: dict[int, Field], found: Field) -> None:
    """Register a field that must be unique in a message.

    Raises FormatError if it is repeated, or not a message or string.
    """
    if found.number in seen:
        raise FormatError(f"field {found.number} at byte {found.start} occurs twice")
    if found.wire != LENGTH:
        raise FormatError(f"field {found.number} at byte {found.start} has wire type {found.wire}, expected {LENGTH}")
    seen[found.number] = found
