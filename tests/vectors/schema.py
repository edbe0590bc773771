"""The JSON Schema of case files, bitstream_vectors/case.schema.json."""

from __future__ import annotations

from typing import Any

from nnr_codec import errors
from nnr_codec.limits import Limits

from .case import NAMES, TYPE_CODES

FILE = "case.schema.json"

_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "items": _TEXT, "minItems": 1, "uniqueItems": True}
_COUNT = {"type": "integer", "minimum": 0}
_SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_UNIT = {
    "type": "array",
    "prefixItems": [{"type": "string", "pattern": f"^({'|'.join(NAMES)}|type [0-9]+)$"}, _COUNT, _COUNT],
    "minItems": 3,
    "items": False,
}
_ERRORS = sorted(name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error"))


def _object(required: str, optional: str = "", **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with only these members, each described in ``properties`` or `_MEMBERS`."""
    names = [*required.split(), *optional.split()]
    return {
        "type": "object",
        "properties": {name: properties.get(name, _MEMBERS.get(name, {})) for name in names},
        "required": required.split(),
        "additionalProperties": False,
    }


def _list(name: str) -> dict[str, Any]:
    return {"type": "array", "items": {"$ref": f"#/$defs/{name}"}}


#: Schemas of members, by name.
_MEMBERS: dict[str, Any] = {
    "id": {"type": "string", "pattern": "^[A-Za-z0-9_./+=-]+$"},
    "rev": {"type": "integer", "minimum": 1},
    "title": _TEXT,
    "origin": _TEXT,
    "license": {"const": "CC0-1.0"},
    "spec": {"const": "ISO/IEC 15938-17:2024"},
    "clauses": _TEXTS,
    "profile_idc": _COUNT,
    "features": _TEXTS,
    "options": {"type": ["string", "object"], "additionalProperties": {"type": "string"}},
    "result": {"enum": ["valid", "invalid", "acceptable"]},
    "extension": {"enum": ["side-information", "index"]},
    "limits": {
        "type": "object",
        "properties": {"preset": {"const": "strict"}, **dict.fromkeys(sorted(Limits.names()), _COUNT)},
        "additionalProperties": False,
    },
    "topology_dimensions": {"type": "object", "additionalProperties": _SHAPE},
    "topology": {"$ref": "#/$defs/file"},
    "inputs": _list("bitstream"),
    "stream": {"$ref": "#/$defs/file"},
    "units": {"type": "array", "items": _UNIT},
    "expected": {"$ref": "#/$defs/expected"},
    "error": {"$ref": "#/$defs/error"},
    "requirements": _TEXTS,
    "bits": {"type": "array", "items": _TEXT, "minItems": 1},
    "file": {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.+=-]*$"},
    "sha256": _SHA256,
    "bytes": _COUNT,
    "name": {"type": "string"},
    "dtype": {"enum": list(TYPE_CODES)},
    "shape": _SHAPE,
    "unit": _COUNT,
    "tensors": _list("tensor"),
    "raw": _list("tensor"),
    "levels": {**_list("level"), "minItems": 1},
    "quantization": {"$ref": "#/$defs/text"},
    "npz": _TEXT,
    "format": {"enum": ["", "onnx", "pytorch", "tensorflow"]},
}
_MEMBERS["arrays"] = _MEMBERS["file"]

_DEFINITIONS = {
    "file": _object("file sha256 bytes"),
    "text": _object("bytes sha256", "format"),
    "bitstream": _object("stream", "units expected"),
    "tensor": _object("name dtype shape sha256", "values npz"),
    "level": _object("unit shape sha256"),
    "expected": _object(
        "",
        "tensors raw topology quantization levels arrays",
        topology={"$ref": "#/$defs/text"},
        quantization={"$ref": "#/$defs/text"},
    ),
    "error": _object("class unit", **{"class": {"enum": _ERRORS}, "unit": {"anyOf": [_COUNT, {"type": "null"}]}}),
}

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Conformance case of bitstream_vectors; README.md in this folder describes the fields",
    **_object(
        "id rev title origin license spec result stream",
        "clauses profile_idc features options extension limits topology_dimensions topology inputs units expected "
        "error requirements bits",
    ),
    "oneOf": [
        {
            "properties": {"result": {"const": "invalid"}, "expected": {"not": {"required": ["tensors"]}}},
            "required": ["error", "requirements"],
        },
        {
            "properties": {"result": {"enum": ["valid", "acceptable"]}, "expected": {"required": ["tensors"]}},
            "required": ["expected"],
            "not": {"required": ["error"]},
        },
    ],
    "$defs": _DEFINITIONS,
}
