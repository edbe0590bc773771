"""Test cases in vector folders: bitstreams with their decoding results, or the errors that decoders must raise.

A case file is ``case.json``, or ``NAME.case.json`` if several cases share a folder; the README of ``bitstream_vectors``
describes its fields. All files that it names are in its own folder; no other file is read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import errors, formats
from ..dtypes import STORED_TYPES, StoredType
from ..errors import FormatError, NnrError
from ..limits import Limits
from ..model import Array, Topology
from .digest import TensorDigest

RESULTS = ("valid", "invalid", "acceptable")
#: Kinds by which cases are counted: the result, or valid cases from another implementation.
KINDS = (*RESULTS, "interop")
#: Extensions of the standard that this library supports, as named in case files.
EXTENSIONS = ("side-information", "index")

_MAX_FILE = 64 << 20
_MAX_CASES = 100_000
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.+=-]{0,200}", re.ASCII)


class LevelDigest(NamedTuple):
    """QuantParam of one tensor (10.2.1.4): number of its unit, shape, and digest as a tensor of int32."""

    unit: int
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class Stream:
    """Bitstream of a case.

    Parameters
    ----------
    path : Path
    sha256 : str
        Digest of the file.
    tensors, raw : tuple of TensorDigest or None
        Decoded tensors, and the Rec* variables of 7.3 if these differ; None if the case does not state them. In a case
        for an extension, ``raw`` is the result of decoders without support for it.
    texts : dict of str to str
        SHA-256 of ``topology`` and ``quantization``, if present.
    levels : tuple of LevelDigest or None
        QuantParam of everything that is arithmetically coded, in order; None if the case does not state it.
    """

    path: Path
    sha256: str
    tensors: tuple[TensorDigest, ...] | None
    raw: tuple[TensorDigest, ...] | None
    texts: Mapping[str, str]
    levels: tuple[LevelDigest, ...] | None = None
    _entries: tuple[Mapping[str, Any], ...] = ()
    _arrays: Path | None = None

    def is_intact(self) -> bool:
        """Return whether the file has the expected digest."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest() == self.sha256

    def values(self, digest: TensorDigest) -> Array | None:
        """Return the expected values of a tensor with this digest, if the case contains them."""
        for entry in self._entries:
            if entry.get("sha256") == digest.sha256 and entry.get("name") == digest.name:
                stored = STORED_TYPES[digest.dtype]
                if "values" in entry:
                    return np.array(entry["values"], stored.dtype).reshape(digest.shape)
                if "npz" in entry and self._arrays:
                    array = formats.load(self._arrays, format="npz")[entry["npz"]]
                    return typed(array, stored).astype(stored.dtype, copy=False)
        return None

    def without_extension(self) -> Stream:
        """Return the stream as expected from decoders without the extension, which output ``raw``."""
        return self if self.raw is None else replace(self, tensors=self.raw, raw=None)


def typed(array: Array, stored: StoredType) -> Array:
    """Return bit patterns as values of their type, if numpy lacks the type and the pattern size matches."""
    is_pattern = not stored.is_numpys and array.dtype.kind in "Vu" and array.dtype.itemsize == stored.itemsize
    return array.view(stored.dtype) if is_pattern else array


@dataclass(frozen=True)
class Case:
    """Test case.

    Parameters
    ----------
    id, title, origin : str
        ``origin`` is the implementation that wrote the bitstream.
    group : str
        Folder below the root.
    result : str
        One of RESULTS.
    rev : int or None
        Revision of the case.
    profile_idc : int or None
    clauses, features : tuple of str
    requirements : tuple of str
        Requirements of ``nnr verify`` that the bitstream violates.
    file : Path
        Path of the case file.
    streams : tuple of Stream
        The bitstream, preceded by the bitstreams that must be decoded first.
    error : (str, int or None) or None
        For an invalid case, the class in errors.py and the number of the unit (None: the whole bitstream).
    limits : Limits
    topology_dimensions : dict of str to tuple of int
    topology_file : Path or None
        NNEF graph that is stored separately from the bitstream.
    extension : str
        Extension that the case tests; empty for the standard alone.
    """

    id: str
    title: str
    origin: str
    group: str
    result: str
    rev: int | None
    profile_idc: int | None
    clauses: tuple[str, ...]
    features: tuple[str, ...]
    requirements: tuple[str, ...]
    file: Path
    streams: tuple[Stream, ...]
    error: tuple[type[NnrError], int | None] | None
    limits: Limits
    topology_dimensions: Mapping[str, tuple[int, ...]]
    topology_file: Path | None = None
    extension: str = ""

    def without_extension(self) -> Case:
        """Return the case for a decoder without the extension, which may ignore or reject the bitstream."""
        streams = tuple(stream.without_extension() for stream in self.streams)
        return replace(self, result="acceptable", error=None, streams=streams, extension="")

    @property
    def topology(self) -> Topology | None:
        """Topology in ``topology_file``."""
        return Topology("nnef", self.topology_file.read_bytes()) if self.topology_file else None

    @property
    def kind(self) -> str:
        """Kind of the case, one of KINDS."""
        return "interop" if self.result == "valid" and self.origin != "nnr_codec" else self.result


def load_cases(root: str | Path) -> list[Case]:
    """Load all cases in a folder and its subfolders, sorted by group and id.

    Raises
    ------
    FormatError
        A case file is malformed or names a file outside its folder, an id is not unique, or there is no case.
    OSError
        The folder cannot be read.
    """
    root = Path(root)
    paths = [path for path in root.rglob("*case.json") if path.name == "case.json" or path.name.endswith(".case.json")]
    if not paths:
        next(root.iterdir(), None)  # raises an OSError that is more precise
        raise FormatError(f"{root}: no case.json in this folder or its subfolders")
    if len(paths) > _MAX_CASES:
        raise FormatError(f"{root}: {len(paths):,} cases exceed the limit of {_MAX_CASES:,}")
    cases = sorted((read_case(path, root) for path in paths), key=lambda case: (case.group, case.id))
    seen: dict[str, Case] = {}
    for case in cases:
        if case.id in seen:
            raise FormatError(f"{case.file}: the id {case.id!a} is also used by {seen[case.id].file}")
        seen[case.id] = case
    return cases


def read_case(path: Path, root: Path) -> Case:
    """Load one case; raises the errors of :func:`load_cases`."""
    try:
        return _case(path, root)
    except (FormatError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: {error}") from None


def _case(path: Path, root: Path) -> Case:
    folder = path.parent
    facts = json.loads(_inside(folder, path.name).read_text("utf-8"))
    if not isinstance(facts, dict):
        raise FormatError("not an object")
    result = _field(facts, "result", str)
    if result not in RESULTS:
        raise FormatError(f"result is {result!a}, not one of {', '.join(RESULTS)}")
    relative = folder.relative_to(root).parts
    streams = tuple(_stream(folder, stream) for stream in (*_field(facts, "inputs", list, ()), facts))
    if any(stream.tensors is None for stream in (streams if result == "valid" else streams[:-1])):
        raise FormatError("a valid bitstream lacks expected tensors")
    return Case(
        id=_field(facts, "id", str),
        title=_field(facts, "title", str, ""),
        origin=_field(facts, "origin", str, ""),
        group=relative[0] if relative else "",
        result=result,
        rev=_field(facts, "rev", int, None),
        profile_idc=_field(facts, "profile_idc", int, None),
        clauses=_texts(facts, "clauses"),
        features=_texts(facts, "features"),
        requirements=_texts(facts, "requirements"),
        file=path,
        streams=streams,
        error=_error(_field(facts, "error", dict)) if result == "invalid" else None,
        limits=_limits(_field(facts, "limits", dict, {})),
        topology_dimensions={
            name: _numbers(dims) for name, dims in _field(facts, "topology_dimensions", dict, {}).items()
        },
        topology_file=_topology(folder, _field(facts, "topology", dict, None)),
        extension=_field(facts, "extension", str, ""),
    )


def _field(facts: Any, name: str, kind: type, *default: Any) -> Any:
    """Return a field of an object. Raise FormatError if it has another type, or is absent without a default."""
    if not isinstance(facts, dict):
        raise FormatError(f"expected an object with {name}, got {type(facts).__name__}")
    if name not in facts and default:
        return default[0]
    value = facts.get(name)
    if type(value) is not kind:
        raise FormatError(f"{name} must be {kind.__name__}, got {type(value).__name__}")
    return value


def _texts(facts: Any, name: str) -> tuple[str, ...]:
    return tuple(map(str, _field(facts, name, list, ())))


def _numbers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise FormatError(f"dimensions must be a list of integers of at least 0, got {str(value)[:80]!r}")
    return tuple(value)


def _inside(folder: Path, name: str) -> Path:
    """Return a regular file in the folder itself; paths and links that leave it are rejected."""
    path = folder / name
    if not _PLAIN_NAME.fullmatch(name) or path.resolve().parent != folder.resolve() or not path.is_file():
        raise FormatError(f"{name!a} is not a file in the folder of the case")
    if path.stat().st_size > _MAX_FILE:
        raise FormatError(f"{name} is larger than {_MAX_FILE:,} bytes")
    return path


def _topology(folder: Path, facts: Any) -> Path | None:
    if facts is None:
        return None
    path = _inside(folder, _field(facts, "file", str))
    if hashlib.sha256(path.read_bytes()).hexdigest() != _field(facts, "sha256", str):
        raise FormatError(f"the SHA-256 of {path.name} differs from its case file")
    return path


def _stream(folder: Path, facts: Any) -> Stream:
    stream, expected = _field(facts, "stream", dict), _field(facts, "expected", dict, None)
    path, sha256 = _inside(folder, _field(stream, "file", str)), _field(stream, "sha256", str)
    if expected is None:
        return Stream(path, sha256, None, None, {})
    raw = _field(expected, "raw", list, None)
    listed = _field(expected, "tensors", list, *([] if raw is None else [None]))
    entries = (*(listed or ()), *(raw or ()))
    tensors, rec = (None if given is None else tuple(map(TensorDigest.read, given)) for given in (listed, raw))
    texts = {
        key: _field(_field(expected, key, dict), "sha256", str)
        for key in ("topology", "quantization")
        if key in expected
    }
    arrays = None
    if any("npz" in entry for entry in entries):
        arrays = _inside(folder, _field(expected, "arrays", str, "expected.npz"))
    levels = _field(expected, "levels", list, None)
    quant_params = None if levels is None else tuple(map(_level, levels))
    return Stream(path, sha256, tensors, rec, texts, quant_params, entries, arrays)


def _level(facts: Any) -> LevelDigest:
    return LevelDigest(_field(facts, "unit", int), _numbers(_field(facts, "shape", list)), _field(facts, "sha256", str))


def _error(facts: Any) -> tuple[type[NnrError], int | None]:
    name, unit = _field(facts, "class", str), facts.get("unit")
    cls = getattr(errors, name, None)
    if not isinstance(cls, type) or not issubclass(cls, NnrError):
        raise FormatError(f"{name!a} is not a class of nnr_codec.errors")
    return cls, None if unit is None else _field(facts, "unit", int)


def _limits(facts: Mapping[str, Any]) -> Limits:
    given = {name: _field(facts, name, int) for name in facts if name != "preset"}
    if not given.keys() <= set(Limits.names()) or facts.get("preset", "strict") != "strict":
        raise FormatError(f"limits must be names of Limits, and preset must be strict, got {', '.join(facts)}")
    return replace(Limits.strict() if "preset" in facts else Limits(), **given)
