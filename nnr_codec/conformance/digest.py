"""Digests of decoded tensors and of models, and manifests of digests.

The digest of a tensor is the SHA-256 of ``NNRT1``, one byte for the type, one byte for the number of dimensions, the
dimensions as 64-bit numbers and the values in row-major order, all little-endian. The type is the number of the format
in Table 15 of ISO/IEC 15938-17:2024; integers below a byte count as int8. Types that exist only in side information
have numbers from 128, in the order of :data:`BEYOND`; their integers below a byte are sign-extended to one byte.

The digest of a model is the SHA-256 of ``NNRM1`` and, for each tensor in ascending order of its UTF-8 name, the length
of the name in bytes (32 bits), the name, and the 32-byte digest of the tensor.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..dtypes import STORED_TYPES, bit_patterns, stored_type
from ..errors import FormatError
from ..model import Array
from ..tensor.quant import DTYPES

#: Types that Table 15 lacks. New types must be appended: the numbers are part of every digest.
BEYOND = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int2",
    "int4",
    "uint2",
    "uint4",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3",
    "float8_e4m3fnuz",
    "float8_e4m3b11fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e3m4",
)
#: Number of each type; if several formats decode to one type, the widest format.
_CODES = {dtype.name: int(data_format) for data_format, dtype in DTYPES.items()} | {
    name: 128 + number for number, name in enumerate(BEYOND)
}


def digest(tensor: Array) -> str:
    """Return the digest of a tensor.

    Parameters
    ----------
    tensor : ndarray
        Tensor of any type of :mod:`nnr_codec.dtypes`, in any byte order and layout.

    Returns
    -------
    str
        Digest as 64 hexadecimal digits.

    Raises
    ------
    FormatError
        The type is not supported.
    """
    stored = stored_type(tensor.dtype)
    if stored is None:
        raise FormatError(f"tensors of type {tensor.dtype} are not supported, so they have no digest")
    head = struct.pack(f"<BB{tensor.ndim}Q", _CODES[stored.name], tensor.ndim, *tensor.shape)
    found = hashlib.sha256(b"NNRT1" + head)
    found.update(bit_patterns(tensor).astype(stored.pattern.newbyteorder("<"), copy=False).view(np.uint8).data)
    return found.hexdigest()


@dataclass(frozen=True)
class TensorDigest:
    """Name, dtype name, shape and digest of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @classmethod
    def of(cls, name: str, tensor: Array) -> TensorDigest:
        """Return the digest of a tensor with its name."""
        return cls(name, tensor.dtype.name, tensor.shape, digest(tensor))

    @classmethod
    def read(cls, entry: Any) -> TensorDigest:
        """Parse an entry of a JSON file, which may have other fields. Raise FormatError if the entry is invalid."""
        try:
            read = cls(entry["name"], entry["dtype"], tuple(entry["shape"]), entry["sha256"])
            texts = all(isinstance(text, str) for text in (read.name, read.dtype, read.sha256))
            sizes = all(type(extent) is int and extent >= 0 for extent in read.shape)
            read.name.encode()
            known = read.dtype in STORED_TYPES
        except (TypeError, KeyError, AttributeError, UnicodeEncodeError) as error:
            raise FormatError(f"expected an object with name, dtype, shape and sha256: {error}") from None
        if not texts or not sizes or not known or not re.fullmatch("[0-9a-f]{64}", read.sha256):
            raise FormatError("name, dtype, shape or sha256 of a tensor is invalid")
        return read


def manifest(entries: Sequence[TensorDigest]) -> dict[str, Any]:
    """Return the manifest of a model: the digests of its tensors in order, and its own digest, for JSON."""
    return {"tensors": [asdict(entry) for entry in entries], "model_sha256": model_digest(entries)}


def model_digest(entries: Iterable[TensorDigest]) -> str:
    """Return the digest of a model from the digests of its tensors, whose names are unique."""
    found = hashlib.sha256(b"NNRM1")
    for name, sha256 in sorted((entry.name.encode(), entry.sha256) for entry in entries):
        found.update(struct.pack("<I", len(name)) + name + bytes.fromhex(sha256))
    return found.hexdigest()


def read_manifest(text: str | bytes) -> list[TensorDigest]:
    """Parse the entries of a manifest.

    Raises
    ------
    FormatError
        The text is not a manifest, repeats a tensor, or its ``model_sha256`` does not match its tensors.
    """
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a manifest: {error}") from None
    listed = parsed.get("tensors") if isinstance(parsed, dict) else None
    if not isinstance(listed, list):
        raise FormatError("not a manifest: it has no list of tensors")
    entries = [TensorDigest.read(entry) for entry in listed]
    names = Counter(entry.name for entry in entries)
    if len(names) < len(entries):
        raise FormatError(f"the manifest lists tensor {names.most_common(1)[0][0][:80]!a} twice")
    if parsed.get("model_sha256") != model_digest(entries):
        raise FormatError("model_sha256 of the manifest is not the digest of its tensors")
    return entries


def differences(expected: Iterable[TensorDigest], tensors: Mapping[str, Array | TensorDigest]) -> dict[str, str]:
    """Return the deviation of each tensor (or digest) from the expected one, by name; empty if all match."""
    wrong = dict.fromkeys(tensors, "is not expected")
    for entry in expected:
        wrong.pop(entry.name, None)
        if entry.name not in tensors:
            wrong[entry.name] = "is missing"
            continue
        tensor = tensors[entry.name]
        dtype = tensor.dtype if isinstance(tensor, TensorDigest) else tensor.dtype.name
        if tensor.shape != entry.shape:
            wrong[entry.name] = f"has shape {tensor.shape}, not {entry.shape}"
        elif dtype != entry.dtype:
            wrong[entry.name] = f"is {dtype}, not {entry.dtype}"
        elif (tensor.sha256 if isinstance(tensor, TensorDigest) else digest(tensor)) != entry.sha256:
            wrong[entry.name] = "has other values"
    return wrong
