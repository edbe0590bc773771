"""One TensorProto: what it says of its items, and where they are."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from ...errors import FormatError
from ...limits import Limits
from ..protobuf import LENGTH, LONGEST, VARINT, Field, Source, signed, unpacked
from .layout import Location, Other, Patch, Place, Slot
from .tensor import DOUBLE_DATA, FLOAT_DATA, INT32_DATA, INT64_DATA, RAW_DATA, TYPES, UINT64_DATA, Items, items_of

#: So many items, at most, stay where they are if they say structure.
SMALL = 16

_DIMS, _DATA_TYPE, _SEGMENT, _STRING_DATA, _NAME, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 3, 6, 8, 13, 14
# To the shape in a ValueInfoProto: TypeProto, TypeProto.Tensor, TensorShapeProto; of that a Dimension and its value.
_TO_SHAPE, _DIM, _DIM_VALUE = (2, 1, 2), 1, 1
# Types of the items of constants that graphs are followed by.
_READ = ("int32", "int64", "float32")
_DATA = (FLOAT_DATA, INT32_DATA, INT64_DATA, RAW_DATA, DOUBLE_DATA, UINT64_DATA)
_EXTERNAL = 1
_MAX_FIELDS = 64  # of those that tell one thing
_MAX_SIZE = (1 << 63) - 1
_MAX_DIGITS = 19


@dataclass(slots=True)
class Tensor:
    """The fields of a TensorProto, in the order of the file.

    Parameters
    ----------
    name : str
    type : int
        data_type.
    shape : tuple of int
    dims, data, entries, locations : tuple of Field
        Those that say the shape, hold the items, tell of another file, and say whether there is one.
    is_external : bool
    is_strange : bool
        There is a segment, or there are strings.
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


def read_tensor(source: Source, found: Field, limits: Limits) -> Tensor:
    """Read a TensorProto but for its items; FormatError, LimitError."""
    tensor = Tensor()
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
                raise FormatError(f"a tensor tells more than {_MAX_FIELDS} times where its data are")
        elif part.number in (_SEGMENT, _STRING_DATA):
            tensor.is_strange = True
        elif part.number in _DATA:
            # Of more than one it matters only that there are more.
            tensor.data = (*tensor.data[:1], part)
    return tensor


def patches_of(
    source: Source, tensor: Tensor, name: str, claim: Callable[[str], str], *, constant: bool
) -> list[Patch]:
    """What is replaced where the items of a tensor are taken out; nothing where they stay.

    ``claim`` gives the name that the tensor has in the model, once. Raises FormatError where shape, type and number of
    bytes do not go together.
    """
    what = f"tensor {name[:80]!a}"
    if tensor.type not in TYPES or tensor.is_strange:
        check_inside(tensor, what)
        return []
    if any(extent < 0 for extent in tensor.shape) or prod(tensor.shape) * 8 > _MAX_SIZE:
        raise FormatError(f"{what}: shape {tensor.shape} is that of no array")
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


def check_inside(tensor: Tensor, what: str) -> None:
    """FormatError where the items of a tensor that stays are in another file, which nothing carries."""
    is_lost = tensor.is_external
    if is_lost:
        raise FormatError(f"{what}: its data are in another file, and cannot be carried")


class Constant(NamedTuple):
    """A tensor of few items that stays where it is: its shape, and its items where they are of :data:`_READ`."""

    shape: tuple[int, ...]
    values: tuple[float, ...] = ()


def constant_of(source: Source, tensor: Tensor) -> Constant | None:
    """What a tensor holds of which :func:`patches_of` replaces nothing; None where it is large, or no array.

    Raises FormatError where there are not as many items as its shape says.
    """
    if tensor.type not in TYPES or tensor.is_strange or tensor.is_external:
        return None
    found = _inside(tensor)
    if prod(tensor.shape) > SMALL or not found:
        return None
    items, what = items_of(TYPES[tensor.type].name, tensor.shape, found[0].number), f"tensor {tensor.name[:80]!a}"
    if items.type not in _READ:
        return Constant(tensor.shape)
    nbytes = found[0].end - found[0].body
    items.check_size(nbytes, what)
    array = items.read(io.BytesIO(source.read(found[0].body, found[0].end)), nbytes, what)
    return Constant(tensor.shape, tuple(array.reshape(-1).tolist()))


def extents_of(source: Source, found: Field, limits: Limits) -> tuple[int, ...]:
    """The shape that a ValueInfoProto declares, 0 for what it does not say; empty where it declares none."""
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


def path_to_shape(source: Source, found: Field) -> list[Field]:
    """TypeProto, TypeProto.Tensor and TensorShapeProto of a ValueInfoProto; nothing where they are not there once."""
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


def _inside(tensor: Tensor) -> tuple[Field, ...]:
    """The field that holds the items; none where they are not as serializers of protocol buffers write them."""
    known = (RAW_DATA, TYPES[tensor.type].field)
    is_plain = len(tensor.data) == 1 and tensor.data[0].wire == LENGTH and tensor.data[0].number in known
    return tensor.data if is_plain else ()


def _stays(items: Items, constant: bool) -> bool:
    """Whether a tensor with items in the model says structure rather than weights."""
    if constant or items.stored.kind != "f":
        return prod(items.shape) <= SMALL
    return not items.shape


def _external(tensor: Tensor, what: str) -> tuple[Field, ...]:
    """The fields that tell of another file."""
    if tensor.data:
        raise FormatError(f"{what}: its data are in the model and in another file")
    if not tensor.entries:
        raise FormatError(f"{what}: its data are in another file, of which nothing is said")
    return tensor.entries


def _place(source: Source, tensor: Tensor, items: Items, what: str) -> Place | None:
    """Where the items are in which file; None where that has been taken out."""
    if all(entry.body == entry.end for entry in tensor.entries):
        return None
    told = dict(_entry(source, entry) for entry in tensor.entries)
    if not told.get("location"):
        raise FormatError(f"{what}: its data are in another file, which has no name")
    length = _decimal(told.get("length", str(items.raw_size)), f"{what}: length")
    items.check_size(length, what)
    return Place(told["location"], _decimal(told.get("offset", "0"), f"{what}: offset"), length)


def _entry(source: Source, found: Field) -> tuple[str, str]:
    """Key and value of a StringStringEntryProto."""
    if found.wire != LENGTH:
        raise FormatError(f"field {found.number} at byte {found.start} is no message")
    texts = {1: "", 2: ""}
    for part in source.fields(found.body, found.end):
        if part.number in texts:
            texts[part.number] = source.text(part)
    return texts[1], texts[2]


def _decimal(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise FormatError(f"{what} {text[:40]!a} is no number")
    return int(text)


def number(found: Field) -> int:
    """The value of a field that is one integer."""
    if found.wire != VARINT:
        raise FormatError(f"field {found.number} at byte {found.start} is no integer")
    return signed(found.value)


def integers(source: Source, found: Field, most: int) -> list[int]:
    """The values, of which there are at most so many, of a field of integers, packed or not."""
    if found.wire == VARINT:
        return [found.value]
    if found.wire != LENGTH:
        raise FormatError(f"field {found.number} at byte {found.start} is no integer")
    if found.end - found.body > most * LONGEST:
        raise FormatError(f"field {found.number} at byte {found.start} has more than {most} integers")
    values, used = unpacked(np.frombuffer(source.read(found.body, found.end), np.uint8))
    if used < found.end - found.body:
        raise FormatError(f"the integers of field {found.number} at byte {found.start} end early")
    return [int(value) for value in values]


def once(seen: dict[int, Field], found: Field) -> None:
    """Take in a field that a message has once; FormatError where it is there again, or is no message or text."""
    if found.number in seen:
        raise FormatError(f"field {found.number} at byte {found.start} is there twice")
    if found.wire != LENGTH:
        raise FormatError(f"field {found.number} at byte {found.start} has wire type {found.wire}")
    seen[found.number] = found
