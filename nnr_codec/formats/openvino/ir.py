"""The XML of an OpenVINO IR: where in the ``.bin`` its constants lie, which types and shapes and which names they have.

What is read is the layers of type ``Const`` (``Constant`` in the text of opset1): ``offset``, ``size``,
``element_type`` and ``shape`` of their ``data``. All else, operations and attributes, means nothing here.

The reader is expat, fed in parts; it makes no tree. A document type is refused, and with it every entity but the five
that XML has anyway. How deep elements are, how many there are, how long a tag and how many words are is limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from xml.parsers import expat

from ...dtypes import STORED_TYPES, StoredType
from ...errors import FormatError, LimitError
from ...limits import Budget, Limits

#: The versions that are read.
VERSIONS = (10, 11)

#: Element types that are here what they are there. Others (nf4, u1, u3, string) are bytes, of which no shape is known.
_TYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "boolean": "bool",
    **{f"{sign}{bits}": f"{name}{bits}" for sign, name in (("i", "int"), ("u", "uint")) for bits in (4, 8, 16, 32, 64)},
    "u2": "uint2",
}
_BYTES = STORED_TYPES["uint8"]

#: Bounds on what nobody needs: depth, elements, bytes of a tag, different names of elements and attributes.
MAX_DEPTH, MAX_ELEMENTS, MAX_TAG, MAX_WORDS = 200, 4_000_000, 1 << 20, 1 << 16

_PART = 1 << 16
_NUMBER = re.compile("[0-9]{1,18}")
_SHAPE = re.compile(r"\s*(?:[0-9]{1,18}(?:\s*,\s*[0-9]{1,18})*)?\s*")
#: Types of the layers that are constants.
CONSTANTS = ("Const", "Constant")
# How much of a name an error tells.
_LONGEST = 80


@dataclass(frozen=True)
class IrConstant:
    """A range of the ``.bin``, and what the first ``Const`` that refers to it makes of it.

    Parameters
    ----------
    name : str
        That of the layer, below those of the layers around it: ``loop/body/weight``; different for each range.
    offset, nbytes : int
        Where it lies; there is no range of 0 bytes, and none overlaps another one.
    stored : StoredType
        Of the items; uint8 where they are bytes.
    shape : tuple of int
    """

    name: str
    offset: int
    nbytes: int
    stored: StoredType
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.nbytes

    @property
    def padding(self) -> int:
        """Bits of the last byte that no item has."""
        return 8 * self.nbytes - prod(self.shape) * bits_of(self.stored)


def bits_of(stored: StoredType) -> int:
    """Bits of one item in a ``.bin``: booleans have bytes."""
    return 8 if stored.kind == "b" else stored.bits


class _EnoughError(Exception):
    """Ends parsing as soon as the answer is known."""


@dataclass
class _Layer:
    """A layer that is being read."""

    name: str
    is_constant: bool
    has_data: bool = False
    # The element of this one that is being read, as a body.
    part: str = ""


class _Reader:
    """Takes the elements of an IR one by one; ``until_layers`` tells to go no further than that there are some."""

    def __init__(self, limits: Limits, *, until_layers: bool = False) -> None:
        self._budget, self._until_layers = Budget(limits), until_layers
        self._path: list[str] = []
        self._layers: list[_Layer] = []
        self._elements = self._fed = self._seen = 0
        self._words: dict[str, str] = {}
        self._names: dict[str, int] = {}
        self.constants: dict[tuple[int, int], IrConstant] = {}
        self._parser = expat.ParserCreate("utf-8", intern=self._words)
        if hasattr(self._parser, "SetReparseDeferralEnabled"):
            # Else expat, from 2.6 on, may want more of the text than the longest tag before it tells of one.
            self._parser.SetReparseDeferralEnabled(False)
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end

    def feed(self, data: bytes, *, last: bool) -> None:
        """Read a part; raises FormatError and LimitError."""
        self._fed += len(data)
        try:
            self._parser.Parse(data, last)
        except expat.ExpatError as error:
            raise FormatError(f"the XML is damaged: {error}") from None
        self._seen = max(self._seen, self._parser.CurrentByteIndex)
        if self._fed - self._seen > MAX_TAG:
            raise self._error(f"a tag or comment has more than {MAX_TAG:,} bytes")

    def _start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._elements += 1
        if len(self._path) >= MAX_DEPTH:
            raise self._error(f"elements are nested deeper than {MAX_DEPTH}")
        if self._elements > MAX_ELEMENTS:
            raise self._error(f"more than {MAX_ELEMENTS:,} elements")
        if len(self._words) > MAX_WORDS:
            raise self._error(f"more than {MAX_WORDS:,} different names of elements and attributes")
        parent = self._path[-1] if self._path else ""
        self._path.append(tag)
        if not parent:
            self._check_root(tag, attributes)
        elif tag == "layers" and len(self._path) == 2 and self._until_layers:
            raise _EnoughError
        elif tag == "layer" and parent == "layers":
            self._layers.append(_Layer(attributes.get("name", ""), attributes.get("type") in CONSTANTS))
        elif parent == "layer" and self._layers:
            layer = self._layers[-1]
            layer.part = tag
            if tag == "data" and layer.is_constant:
                self._add(layer, attributes)

    def _end(self, tag: str) -> None:
        self._path.pop()
        if tag == "layer" and self._path[-1:] == ["layers"]:
            layer = self._layers.pop()
            if layer.is_constant and not layer.has_data:
                raise self._error(f"the constant {layer.name[:_LONGEST]!a} has no data")

    def _check_root(self, tag: str, attributes: Mapping[str, str]) -> None:
        version = attributes.get("version", "")
        if tag != "net" or not _NUMBER.fullmatch(version):
            raise FormatError(f"not an OpenVINO IR: the root element is {tag[:_LONGEST]!a}, not 'net' with a version")
        if not self._until_layers and int(version) not in VERSIONS:
            raise FormatError(
                f"OpenVINO IR version {version} is not supported; only {' and '.join(map(str, VERSIONS))} are"
            )

    def _add(self, layer: _Layer, attributes: Mapping[str, str]) -> None:
        """Take in the data of a constant."""
        what = f"the constant {layer.name[:_LONGEST]!a}"
        if layer.has_data:
            raise self._error(f"{what} has data twice")
        layer.has_data = True
        self._budget.charge("max_names", 1, "constants of the IR")
        offset, size = (self._number(attributes.get(key, ""), f"the {key} of {what}") for key in ("offset", "size"))
        stored, shape = self._type(attributes, size, what)
        known = self.constants.get((offset, size))
        if known and known.stored != stored:  # no value is both; bytes are
            self.constants[offset, size] = replace(known, stored=_BYTES, shape=(size,))
        elif not known and size:
            self.constants[offset, size] = IrConstant(self._name(layer), offset, size, stored, shape)

    def _type(self, attributes: Mapping[str, str], size: int, what: str) -> tuple[StoredType, tuple[int, ...]]:
        """Type and shape of an array of this many bytes."""
        name, extents = attributes.get("element_type", ""), attributes.get("shape")
        if name not in _TYPES or extents is None:
            return _BYTES, (size,)
        if not _SHAPE.fullmatch(extents):
            raise self._error(f"{extents[:_LONGEST]!a} is not a shape ({what})")
        shape = tuple(int(extent) for extent in extents.split(",")) if extents.strip() else ()
        stored = STORED_TYPES[_TYPES[name]]
        self._budget.limits.check("max_dims", len(shape), f"{what}: number of dimensions")
        if (prod(shape) * bits_of(stored) + 7) // 8 != size:
            raise self._error(f"{what} has {size:,} bytes; {name} of shape {list(shape)} requires a different size")
        return stored, shape

    def _number(self, text: str, what: str) -> int:
        if not _NUMBER.fullmatch(text):
            raise self._error(f"{text[:_LONGEST]!a} is not a number of bytes ({what})")
        return int(text)

    def _name(self, layer: _Layer) -> str:
        """A name that no other range has."""
        outer = "".join(f"{around.name}/{around.part}/" for around in self._layers[:-1])
        name = base = outer + (layer.name or "Const")
        while name in self._names:
            self._names[base] = self._names.get(base, 1) + 1
            name = f"{base}#{self._names[base]}"
        self._names[name] = 1
        length = len(name.encode())
        self._budget.limits.check("max_name_bytes", length, f"bytes of the name {name[:_LONGEST]!a}")
        self._budget.charge("max_topology_bytes", length, "bytes of all names")
        return name

    def _error(self, message: str) -> FormatError:
        return FormatError(f"line {self._parser.CurrentLineNumber}: {message}")


def is_ir(beginning: bytes) -> bool:
    """Return whether an XML with this beginning is an IR: a ``net`` with a version, followed by layers."""
    reader = _Reader(Limits(), until_layers=True)
    try:
        for part in _parts(beginning):
            reader.feed(part, last=False)
    except _EnoughError:
        return True
    except (FormatError, LimitError):
        pass
    return False


def read_constants(data: bytes, limits: Limits) -> dict[str, IrConstant]:
    """The ranges of the ``.bin`` that an XML refers to by name, in its order.

    Where constants share a range, it is that of the first one; where they give it different types, it is bytes.

    Raises
    ------
    FormatError
        It is no IR of a version that is read, is malformed, or ranges overlap or do not fit their shapes.
    LimitError
        It asks for more than the limits permit.
    """
    limits.check("max_topology_bytes", len(data), "bytes of the XML")
    reader = _Reader(limits)
    for part in _parts(data):
        reader.feed(part, last=False)
    reader.feed(b"", last=True)
    _check_places(reader.constants.values())
    return {constant.name: constant for constant in reader.constants.values()}


def _parts(data: bytes) -> Iterable[bytes]:
    """The text in parts; FormatError where it has what is not read."""
    if b"<!DOCTYPE" in data:
        raise FormatError("the XML has a document type declaration, which is not permitted in an IR")
    if 0 in data:
        raise FormatError("the XML is not UTF-8: it has NUL bytes")
    return (data[start : start + _PART] for start in range(0, len(data), _PART))


def _check_places(constants: Iterable[IrConstant]) -> None:
    for one, other in pairwise(sorted(constants, key=lambda constant: constant.offset)):
        if one.end > other.offset:
            names = f"{one.name[:_LONGEST]!a} and {other.name[:_LONGEST]!a}"
            raise FormatError(f"the constants {names} partially overlap at byte {other.offset:,}")
