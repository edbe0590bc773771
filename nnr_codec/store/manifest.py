"""Manifests: the contents of a stored version of a model, as JSON compressed by gzip, whose checksum detects damage.

A manifest lists all objects that its model requires, so that a version never depends on another manifest. The parts of
a tensor are one tensor of an object that is coded whole, and differences in later objects of the list. Their order
bounds the work and excludes cycles.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ..conformance.digest import TensorDigest, model_digest
from ..dtypes import STORED_TYPES
from ..errors import FormatError, LimitError
from ..limits import Limits

#: Value of "format" in each JSON file, and the version of all formats of a store.
FORMAT, VERSION = "nnr_codec store", 1
#: Most parts of a tensor: one whole tensor and differences. Bounds the time of `get`.
MOST_PARTS = 5
#: Most bytes of the JSON text of a manifest: about 200,000 tensors.
MOST_BYTES = 64 << 20
#: Names of models, which are names of folders.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile("[0-9a-f]{64}")


class Part(NamedTuple):
    """Tensor of an object: SHA-256 of the object, and name of the tensor in it."""

    object: str
    key: str


#: Tensor that is coded whole, followed by differences.
Parts = tuple[Part, ...]


@dataclass(frozen=True)
class Manifest:
    """Contents of a version.

    Parameters
    ----------
    tensors : mapping of TensorDigest to Parts
        Tensors of the model, in order, with their parts.
    objects : mapping of str to int
        SHA-256 and bytes of all objects, each after the objects whose tensors its differences change.
    head : str
        SHA-256 of the object with topology and metadata; empty if the model has neither.
    created : str
        Time of the call, in UTC (ISO 8601).
    base : str
        ``NAME@VERSION`` of the base; empty if there was none. For information only.
    model_format : str
        Format of the model's file.
    ties : mapping of str to str
        Tied tensors, each with the name of the tensor that it equals.
    pruned : tuple of str
        See :class:`nnr_codec.Model`.
    """

    tensors: Mapping[TensorDigest, Parts]
    objects: Mapping[str, int]
    head: str
    created: str
    base: str
    model_format: str
    ties: Mapping[str, str]
    pruned: tuple[str, ...]

    @property
    def source_bytes(self) -> int:
        """Bytes of the tensors as arrays; tied tensors count once."""
        return sum(_nbytes(tensor) for tensor in self.tensors if tensor.name not in self.ties)

    @property
    def model_sha256(self) -> str:
        """Digest of the model, as in :func:`nnr_codec.identity`."""
        return model_digest(self.tensors)

    def to_bytes(self) -> bytes:
        """Return the file. Raise LimitError if the text has more than MOST_BYTES."""
        numbers = {sha256: k for k, sha256 in enumerate(self.objects)}

        def written(name: str, parts: Parts) -> list[Any]:
            return [numbers[sha256] if key == name else [numbers[sha256], key] for sha256, key in parts]

        content = {
            "format": FORMAT,
            "version": VERSION,
            "created": self.created,
            "base": self.base,
            "model_format": self.model_format,
            "model_sha256": self.model_sha256,
            "head": numbers[self.head] if self.head else None,
            "objects": [list(item) for item in self.objects.items()],
            "tensors": [{**asdict(one), "parts": written(one.name, parts)} for one, parts in self.tensors.items()],
            "ties": dict(self.ties),
            "pruned": list(self.pruned),
        }
        text = _text(content)
        if len(text) > MOST_BYTES:
            raise LimitError(f"the manifest has {len(text):,} bytes, more than {MOST_BYTES:,}")
        return gzip.compress(text, mtime=0)

    @classmethod
    def parse(cls, data: bytes, limits: Limits) -> Manifest:
        """Parse a file. Raise FormatError or LimitError."""
        inflate = zlib.decompressobj(wbits=31)
        try:
            text = inflate.decompress(data, MOST_BYTES)
        except zlib.error as error:
            raise FormatError(f"the manifest is damaged: {error}") from None
        if not inflate.eof:
            raise FormatError(f"the manifest is truncated, or has more than {MOST_BYTES:,} bytes")
        content = read_json(text)
        try:
            sha256s = [sha256 for sha256, _ in content["objects"]]
            found = cls(
                tensors={TensorDigest.read(entry): _parts(entry, sha256s) for entry in content["tensors"]},
                objects=dict(content["objects"]),
                head="" if content["head"] is None else sha256s[content["head"]],
                created=content["created"],
                base=content["base"],
                model_format=content["model_format"],
                ties=content["ties"],
                pruned=tuple(content["pruned"]),
            )
            names = {tensor.name: tensor.sha256 for tensor in found.tensors}
            valid = (
                len(names) == len(content["tensors"])
                and content["model_sha256"] == found.model_sha256
                and len(found.objects) == len(content["objects"])
                and all(_SHA256.fullmatch(sha256) and type(size) is int for sha256, size in found.objects.items())
                and all(type(text) is str for text in (found.created, found.base, found.model_format, *found.pruned))
                and all(names[name] == names[to] and to not in found.ties for name, to in found.ties.items())
            )
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise FormatError(f"the manifest is malformed ({type(error).__name__}: {error})") from None
        if not valid:
            raise FormatError("the manifest is malformed: its entries contradict each other")
        total = 0
        for tensor in found.tensors:
            limits.check("max_dims", len(tensor.shape), f"dimensions of tensor {tensor.name!r}")
            limits.check("max_tensor_bytes", _nbytes(tensor), f"bytes of tensor {tensor.name!r}")
            total += _nbytes(tensor)
        limits.check("max_total_bytes", total, "bytes of the model")
        return found


def read_json(text: bytes) -> dict[str, Any]:
    """Parse a JSON file of a store. Raise FormatError if it is malformed or has another format or version."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FormatError("not a file of a store of nnr_codec")
    if content.get("version") != VERSION:
        raise FormatError(f"the store has version {content.get('version')!r}; this release reads version {VERSION}")
    return content


def store_json() -> bytes:
    """Return the content of ``store.json``."""
    return _text({"format": FORMAT, "version": VERSION})


def _parts(entry: Mapping[str, Any], sha256s: list[str]) -> Parts:
    """Return the parts of a tensor, whose objects must be in the order of the list."""
    pairs = [(part, entry["name"]) if type(part) is int else part for part in entry["parts"]]
    numbers = [number for number, _ in pairs]
    if not 0 < len(pairs) <= MOST_PARTS:
        raise ValueError(f"tensor {entry['name']!r} has {len(pairs)} parts")
    if any(type(number) is not int for number in numbers) or numbers[0] < 0 or numbers != sorted(set(numbers)):
        raise ValueError(f"the parts of tensor {entry['name']!r} are not in order")
    if any(type(key) is not str for _, key in pairs):
        raise ValueError(f"a part of tensor {entry['name']!r} has no name")
    return tuple(Part(sha256s[number], key) for number, key in pairs)


def _nbytes(tensor: TensorDigest) -> int:
    return math.prod(tensor.shape) * STORED_TYPES[tensor.dtype].itemsize


def _text(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"
