"""Attributes of HDF5 files as metadata: JSON objects by path, in which a string stands for itself.

Other values are lists of a type, a shape and the values. Types are ``utf8`` and ``ascii`` for strings of variable
length, ``utf8:8`` and ``ascii:8`` for strings of 8 bytes, and numpy's codes for numbers (``<f8``, ``|b1``), whose
values are hexadecimal bytes. The shape is null for an attribute without a value. The values of the model configuration
are null, because the topology contains them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...dtypes import STORED_TYPES
from ...errors import FormatError
from .. import is_text as is_unicode
from .hdf5 import Attribute
from .messages import HdfType, text_of

_KEY = "keras:hdf5"
_CONFIG = "model_config"
_TEXT = re.compile(r"(utf8|ascii)(?::([1-9][0-9]{0,4}))?")
_NUMBER = re.compile(r"[<>|](?:b1|[iu][1248]|f[248])")
_MAX_BYTES = 64_000  # limit of HDF5 for an attribute in an object header
_MAX_ATTRIBUTES = 1000  # HDF5 searches all of them for each access
_MAX_RANK = 32


def configuration(attributes: Mapping[str, Mapping[str, Attribute]]) -> bytes | None:
    """Return the text of model_config in the root group, if there is one."""
    found = attributes.get("", {}).get(_CONFIG)
    if found is None or not isinstance(found.values, list) or found.shape != ():
        return None
    return found.values[0].encode("utf-8")


def to_metadata(attributes: Mapping[str, Mapping[str, Attribute]], has_config: bool) -> dict[str, str]:
    """Return the attributes and empty groups of a file; ``has_config``: the configuration is stored elsewhere."""
    found: dict[str, dict[str, Any]] = {}
    own = None if has_config else configuration(attributes)
    for path, values in attributes.items():
        found[path] = {name: _plain(value) for name, value in values.items()}
        if path == "" and own is not None:
            kind = _plain(values[_CONFIG])
            found[path][_CONFIG] = ["utf8" if isinstance(kind, str) else kind[0], [], None]
    return {_KEY: json.dumps(found, ensure_ascii=False, separators=(",", ":"))} if found else {}


def _plain(value: Attribute) -> Any:
    if value.type.kind == "number":
        kind, order = STORED_TYPES[value.type.stored].dtype, ">" if value.type.big_endian else "<"
        return [kind.newbyteorder(order).str, _list(value.shape), bytes(value.values).hex()]  # type: ignore[arg-type]
    if value.type.kind == "texts" and value.type.utf8 and value.shape == ():
        return value.values[0]
    kind_name = "utf8" if value.type.utf8 else "ascii"
    size = f":{value.type.size}" if value.type.kind == "text" else ""
    return [kind_name + size, _list(value.shape), value.values]


def _list(shape: tuple[int, ...] | None) -> list[int] | None:
    return None if shape is None else list(shape)


def from_metadata(metadata: Mapping[str, str], config: bytes | None) -> dict[str, dict[str, Attribute]]:
    """Return the attributes to write; ``config`` is the topology. Raise FormatError for malformed metadata."""
    if _KEY not in metadata:
        return {}
    try:
        groups = json.loads(metadata[_KEY])
    except (ValueError, RecursionError):
        groups = None
    if not isinstance(groups, dict) or not all(isinstance(values, dict) for values in groups.values()):
        raise FormatError(f"metadata {_KEY!r} is not an object of attributes by path")
    found: dict[str, dict[str, Attribute]] = {}
    for path, values in groups.items():
        what = f"metadata {_KEY!r}, {path[:80]!a}"
        if len(values) > _MAX_ATTRIBUTES:
            raise FormatError(f"{what} has {len(values):,} attributes; at most {_MAX_ATTRIBUTES:,} are supported")
        own = None if path else config
        found[path] = {name: _attribute(name, value, own, what) for name, value in values.items()}
    return found


def _attribute(name: str, value: Any, config: bytes | None, what: str) -> Attribute:
    what = f"{what}, attribute {name[:80]!a}"
    if not name or not is_text(name):
        raise FormatError(f"{what}: the name is invalid")
    kind, shape, values = ["utf8", [], [value]] if isinstance(value, str) else _three(value, what)
    if values is None and name == _CONFIG and shape == []:
        if config is None:
            raise FormatError("an .h5 file requires the configuration of the model; give it (topology=, --topology)")
        values = [text_of(config, what)]
    if not isinstance(kind, str) or not (shape is None or _is_shape(shape)):
        raise FormatError(f"{what}: neither a string nor a list of type, shape and values")
    count = 0 if shape is None else math.prod(shape)
    extents = None if shape is None else tuple(shape)
    if match := _TEXT.fullmatch(kind):
        type_ = HdfType("text" if match[2] else "texts", int(match[2] or 16), utf8=match[1] == "utf8")
        if not isinstance(values, list) or len(values) != count or not all(is_text(text) for text in values):
            raise FormatError(f"{what}: the number of strings does not match the shape")
        if match[2] and any(len(text.encode()) > type_.size for text in values):
            raise FormatError(f"{what}: a string has more than {type_.size} bytes")
    elif _NUMBER.fullmatch(kind):
        dtype = np.dtype(kind)
        type_ = HdfType("number", dtype.itemsize, dtype.name, kind[0] == ">")
        values = _bytes(values)
        if values is None or len(values) != count * dtype.itemsize:
            raise FormatError(f"{what}: the number of values does not match the shape")
    else:
        raise FormatError(f"{what}: unknown type {kind[:40]!a}")
    if count * type_.size > _MAX_BYTES:
        raise FormatError(
            f"{what}: the value has {count * type_.size:,} bytes; an attribute has at most {_MAX_BYTES:,}"
        )
    return Attribute(type_, extents, values)


def _three(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != 3:
        raise FormatError(f"{what}: neither a string nor a list of type, shape and values")
    return value


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and len(shape) <= _MAX_RANK
        and all(type(extent) is int and 0 <= extent <= _MAX_BYTES for extent in shape)
    )


def is_text(text: Any) -> bool:
    """Return whether the value is Unicode text without zero bytes."""
    return isinstance(text, str) and "\0" not in text and is_unicode(text)


def _bytes(values: Any) -> bytes | None:
    try:
        return bytes.fromhex(values) if isinstance(values, str) else None
    except ValueError:
        return None
