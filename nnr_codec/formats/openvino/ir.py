"""Reader of the constants in the XML of an OpenVINO IR: positions in the ``.bin``, types, shapes and names.

It reads ``offset``, ``size``, ``element_type`` and ``shape`` of the ``data`` of layers with type ``Const``
(``Constant`` in the text of opset1), and ignores all other operations and attributes.

The parser is expat, which gets the text in parts and builds no tree. A document type is rejected, so that only the five
predefined entities of XML can occur. Depth, number of elements, length of a tag and number of different names are
limited.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import BinaryIO
from xml.parsers import expat

from ...dtypes import STORED_TYPES, StoredType
from ...errors import FormatError, LimitError
from ...limits import Budget, Limits
from .. import opened_file

#: Supported versions.
VERSIONS = (10, 11)

#: Stored type of each supported element type. Other types (nf4, u1, u3, string) are stored as bytes without a shape.
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

#: Limits, far above real models: depth, elements, bytes of a tag, different names of elements and attributes.
MAX_DEPTH, MAX_ELEMENTS, MAX_TAG, MAX_WORDS = 200, 4_000_000, 1 << 20, 1 << 16

_PART = 1 << 16
_NUMBER = re.compile("[0-9]{1,18}")
_SHAPE = re.compile(r"\s*(?:[0-9]{1,18}(?:\s*,\s*[0-9]{1,18})*)?\s*")
#: Types of layers that are constants.
CONSTANTS = ("Const", "Constant")
# Characters of a name in an error message.
_LONGEST = 80


@dataclass(frozen=True)
class IrConstant:
    """Range of the ``.bin``, with name, type and shape of the first ``Const`` that refers to it.

    Parameters
    ----------
    name : str
        Unique name: the names of the layers around the constant and of its layer, ``loop/body/weight``.
    offset, nbytes : int
        Position in the ``.bin``, in bytes. Ranges are not empty and do not overlap.
    stored : StoredType
        Type of the items; uint8 for bytes.
    shape : tuple of int
    """

    name: str
    offset: int
    nbytes: int
    stored: StoredType
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        """Offset of the first byte after the range."""
        return self.offset + self.nbytes

    @property
    def padding(self) -> int:
        """Number of unused bits in the last byte."""
        return 8 * self.nbytes - prod(self.shape) * bits_of(self.stored)


def bits_of(stored: StoredType) -> int:
    """Return the bits of one item in a ``.bin``; a boolean has 8."""
    return 8 if stored.kind == "b" else stored.bits


class IrError(FormatError):
    """Fault in the XML of an IR.

    Attributes
    ----------
    reason : str
        Message without the position.
    place : tuple of int
        Line and column, from 1.
    """

    def __init__(self, reason: str, line: int = 0, column: int = 0) -> None:
        super().__init__(f"line {line}: {reason}")
        self.reason, self.place = reason, (line, column + 1)


class _EnoughError(Exception):
    """Exception that ends parsing when the result is known."""


@dataclass
class _Layer:
    """Layer that is being read."""

    name: str
    is_constant: bool
    has_data: bool = False
    # Name of the child element that is being read, for example "body".
    part: str = ""


class _IrReader:
    """Parser of the elements of an IR. With ``until_layers``, it raises _EnoughError at the first layers."""

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
            # By default, expat 2.6 and later may defer a complete tag, which the limit on its length would reject.
            self._parser.SetReparseDeferralEnabled(False)
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end

    def feed(self, data: bytes, *, last: bool) -> None:
        """Parse a part of the text; raise FormatError or LimitError."""
        self._fed += len(data)
        try:
            self._parser.Parse(data, last)
        except expat.ExpatError as error:
            what = expat.ErrorString(error.code)
            raise IrError(f"the XML is damaged: {what}", error.lineno, error.offset) from None
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
        """Add the data of a constant."""
        what = f"the constant {layer.name[:_LONGEST]!a}"
        if layer.has_data:
            raise self._error(f"{what} has data twice")
        layer.has_data = True
        self._budget.charge("max_names", 1, "constants of the IR")
        offset, size = (self._number(attributes.get(key, ""), f"the {key} of {what}") for key in ("offset", "size"))
        stored, shape = self._type(attributes, size, what)
        known = self.constants.get((offset, size))
        if known and known.stored != stored:  # constants of different types share the bytes
            self.constants[offset, size] = replace(known, stored=_BYTES, shape=(size,))
        elif not known and size:
            self.constants[offset, size] = IrConstant(self._name(layer), offset, size, stored, shape)

    def _type(self, attributes: Mapping[str, str], size: int, what: str) -> tuple[StoredType, tuple[int, ...]]:
        """Return type and shape of an array of ``size`` bytes."""
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
        """Return a unique name for the range of a layer."""
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

    def _error(self, message: str) -> IrError:
        return IrError(message, self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber)


def is_ir(beginning: bytes) -> bool:
    """Return True if an XML with this beginning is an IR: a ``net`` with a version, followed by layers."""
    reader = _IrReader(Limits(), until_layers=True)
    try:
        for part in _parts(beginning):
            reader.feed(part, last=False)
    except _EnoughError:
        return True
    except (FormatError, LimitError):
        pass
    return False


def read_text(source: Path | BinaryIO, limits: Limits) -> bytes:
    """Return the XML of an IR; raise LimitError if it is too long."""
    with opened_file(source) as file:
        limits.check("max_topology_bytes", file.seek(0, os.SEEK_END), "bytes of the XML")
        file.seek(0)
        return file.read()


def read_constants(data: bytes, limits: Limits) -> dict[str, IrConstant]:
    """Return the ranges of the ``.bin`` that an XML refers to, by name and in the order of the XML.

    A range that several constants share has name, type and shape of the first one, or is bytes if their types differ.

    Raises
    ------
    FormatError
        If the XML is not an IR of a supported version or is malformed, or if ranges overlap or do not fit their shapes.
    LimitError
        If the XML exceeds the limits.
    """
    limits.check("max_topology_bytes", len(data), "bytes of the XML")
    reader = _IrReader(limits)
    for part in _parts(data):
        reader.feed(part, last=False)
    reader.feed(b"", last=True)
    _check_places(reader.constants.values())
    return {constant.name: constant for constant in reader.constants.values()}


def _parts(data: bytes) -> Iterable[bytes]:
    """Return the text in parts; raise FormatError for a document type or zero bytes."""
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
