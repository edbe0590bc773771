"""Vectors, their registration, and the digest of a tensor.

A generator is a function without arguments, registered by `valid`, `invalid` or `acceptable`. It returns one `Content`,
or a list for a sequence of bitstreams: the last one is the case, the others are its inputs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nnr_codec.constants import NNR_PT_RAW_FLOAT

Tensor = npt.NDArray[Any]

#: Folder of each group of ids.
GROUPS = {
    "SYN": "syntax",
    "CAB": "cabac",
    "QNT": "quant",
    "TEN": "tensor",
    "BLK": "block",
    "UPD": "update",
    "NEF": "nnef",
    "TPL": "topologies",
    "3GP": "profile3gpp",
    "SID": "sideinfo",
    "NEG": "negative",
    "ACC": "acceptable",
}

#: Code of each type in a digest: its number in Table 15, or a number from 128 on.
TYPE_CODES = {"int32": 0, "float32": 1, "int8": 5, "int16": 6, "int64": 7, "float16": 8, "float64": 9}
TYPE_CODES |= {"bool": 128, "uint8": 129, "uint16": 130, "uint32": 131, "uint64": 132}
TYPE_CODES |= {"int2": 133, "int4": 134, "uint2": 135, "uint4": 136, "bfloat16": 137}
TYPE_CODES |= {"float8_e4m3fn": 138, "float8_e4m3": 139, "float8_e4m3fnuz": 140, "float8_e4m3b11fnuz": 141}
TYPE_CODES |= {"float8_e5m2": 142, "float8_e5m2fnuz": 143, "float8_e3m4": 144}


@dataclass
class Content:
    """One bitstream and its expected result.

    Parameters
    ----------
    data : bytes
    tensors : mapping of str to ndarray or None
        In bitstream order; None if the bitstream is invalid.
    raw : mapping of str to ndarray or None
        The Rec* variables of 7.3, if they differ from ``tensors``. For a case with an extension, the result of decoders
        that do not support it.
    topology, quantization : bytes or None
        Texts of Annex A without their terminating zero, or the data of another format.
    topology_format : str
        Topology.format.
    quant_params : sequence of sequence of ndarray
        For each arithmetically coded payload, QuantParam of its tensors in coding order (10.2.1.4).
    """

    data: bytes
    tensors: Mapping[str, Tensor] | None = None
    raw: Mapping[str, Tensor] | None = None
    topology: bytes | None = None
    quantization: bytes | None = None
    topology_format: str = "nnef"
    quant_params: Sequence[Sequence[Tensor]] = ()


@dataclass(frozen=True)
class Case:
    """One vector; see the README of bitstream_vectors for the fields of its case.json.

    ``topology`` is an NNEF graph that is stored separately. ``requirements`` are the rules of `nnr verify` that the
    bitstream breaks.
    """

    id: str
    title: str
    clauses: tuple[str, ...]
    features: tuple[str, ...]
    result: str
    make: Callable[[], Content | list[Content]]
    error: tuple[str, int | None] | None = None
    requirements: tuple[str, ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)
    topology_dimensions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    topology: bytes = b""
    bits: tuple[str, ...] = ()
    extension: str = ""
    rev: int = 1

    @property
    def folder(self) -> str:
        """Folder of the case, relative to bitstream_vectors."""
        return f"{GROUPS[self.id.split('-')[1]]}/{self.id}"

    def contents(self) -> list[Content]:
        """Return the bitstreams, in order."""
        made = self.make()
        return made if isinstance(made, list) else [made]


REGISTRY: dict[str, Case] = {}

Maker = Callable[[], "Content | list[Content]"]


def _register(
    result: str, id_: str, title: str, clauses: str, features: str, *, requirements: str = "", **fields: Any
) -> Callable[[Maker], Maker]:
    lists = {"clauses": clauses, "features": features, "requirements": requirements}

    def keep(make: Maker) -> Maker:
        if id_ in REGISTRY:
            raise ValueError(f"{id_} is taken")
        split = {name: tuple(dict.fromkeys(words.split())) for name, words in lists.items()}
        REGISTRY[id_] = Case(id=id_, title=title, result=result, make=make, **split, **fields)
        return make

    return keep


def valid(id_: str, title: str, clauses: str, features: str, **fields: Any) -> Callable[[Maker], Maker]:
    """Register a bitstream that every decoder decodes; clauses and features are separated by spaces."""
    return _register("valid", id_, title, clauses, features, **fields)


def acceptable(id_: str, title: str, clauses: str, features: str, **fields: Any) -> Callable[[Maker], Maker]:
    """Register a bitstream that a decoder may decode as given or reject; ``requirements`` are the broken rules."""
    return _register("acceptable", id_, title, clauses, features, **fields)


def invalid(
    id_: str,
    title: str,
    clauses: str,
    features: str,
    error: str,
    unit: int | None,
    *,
    requirements: str,
    **fields: Any,
) -> Callable[[Maker], Maker]:
    """Register a bitstream that every decoder must reject.

    ``error`` is a class of nnr_codec.errors, ``unit`` the number of the unit, or None for the bitstream.
    ``requirements`` are the broken rules, separated by spaces.
    """
    return _register("invalid", id_, title, clauses, features, error=(error, unit), requirements=requirements, **fields)


def little_endian(tensor: Tensor) -> Tensor:
    """Return the values, little-endian and in C order; types that numpy lacks as bit patterns or small integers."""
    if tensor.dtype.isbuiltin == 2:
        tensor = tensor.astype(tensor.dtype.newbyteorder("="))
        small = tensor.dtype.name.lstrip("u") in ("int2", "int4")
        kind = f"{'i' if tensor.dtype.name[0] == 'i' else 'u'}1"
        tensor = tensor.astype(kind) if small else np.ascontiguousarray(tensor).view(f"u{tensor.dtype.itemsize}")
    return np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).reshape(tensor.shape)


def digest(tensor: Tensor) -> str:
    """Return the SHA-256 of "NNRT1", type code u8, number of dimensions u8, dimensions u64 and data, little-endian."""
    head = struct.pack(f"<BB{tensor.ndim}Q", TYPE_CODES[tensor.dtype.name], tensor.ndim, *tensor.shape)
    return hashlib.sha256(b"NNRT1" + head + little_endian(tensor).tobytes()).hexdigest()


# ------------------------------------------------------------------------------------------------ units
NAMES = ("STR", "MPS", "LPS", "TPL", "QNT", "NDU", "AGG")


def units(data: bytes) -> list[tuple[str, int, int]]:
    """Return type, offset and size of all units, including units in aggregates, up to the first implausible size."""
    found: list[tuple[str, int, int]] = []
    _walk(data, 0, len(data), found)
    return found


def coded_units(data: bytes) -> list[int]:
    """Return the numbers of units with arithmetically coded payloads; for a payload in parts, the last unit."""
    numbers, left = [], 0
    for number, (name, offset, _) in enumerate(units(data)):
        if name == "NDU":
            head = data[offset + (4 if data[offset] >> 7 else 2) :]
            has_counter, is_whole = head[0] & 1, head[0] & 2
            left = max(head[1] if has_counter and not is_whole else 0, 1) - 1
            if not left and head[1 + has_counter] >> 3 != NNR_PT_RAW_FLOAT:
                numbers.append(number)
    return numbers


def _walk(data: bytes, start: int, end: int, found: list[tuple[str, int, int]]) -> None:
    while end - start >= 3:
        field_size = 4 if data[start] >> 7 else 2
        size = int.from_bytes(data[start : start + field_size], "big") & (0x7FFFFFFF if field_size == 4 else 0x7FFF)
        if size <= field_size or start + size > end:
            return
        kind = data[start + field_size] >> 2
        found.append((NAMES[kind] if kind < len(NAMES) else f"type {kind}", start, size))
        if kind == 6:
            head = start + field_size + 1 + (data[start + field_size] & 1)
            count = int.from_bytes(data[head + 2 : head + 4], "big") + 2
            listed = 5 * count if data[head + 1] >> 7 else 0
            _walk(data, head + 4 + listed + count, start + size, found)
        start += size
