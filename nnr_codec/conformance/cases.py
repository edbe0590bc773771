"""Cases of vectors: bitstreams with what they decode to, or why they are refused, as case files describe them.

A case file is ``case.json``, or ``NAME.case.json`` where several cases share a folder; its fields are in the README of
``bitstream_vectors``. What it names lies in its own folder; nothing else is ever read.
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
#: What cases are counted as: their result, or that they were written by another implementation and are valid.
KINDS = (*RESULTS, "interop")
#: What this library knows beyond the standard, as case files call it.
EXTENSIONS = ("side-information",)

_MAX_FILE = 64 << 20
_MAX_CASES = 100_000
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.+=-]{0,200}", re.ASCII)


class LevelDigest(NamedTuple):
    """QuantParam of one tensor (10.2.1.4): the number of its unit, its shape, and its digest as a tensor of int32."""

    unit: int
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class Stream:
    """One bitstream of a case.

    Parameters
    ----------
    path : Path
    sha256 : str
        Of the file.
    tensors, raw : tuple of TensorDigest or None
        What it decodes to, and the Rec* variables of 7.3 where these are others; None for what is not given. In a case
        about an extension, ``raw`` is what decoders give that do not know it.
    texts : dict of str to str
        SHA-256 of ``topology`` and ``quantization``, of those that are there.
    levels : tuple of LevelDigest or None
        Of all that is arithmetically coded, in its order; None where the case does not tell.
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
        """Whether the file is the one that is described."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest() == self.sha256

    def values(self, digest: TensorDigest) -> Array | None:
        """The expected values of a tensor of that digest, where the case gives them."""
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
        """The same for decoders that give ``raw``, as those do that do not know the extension of the case."""
        return self if self.raw is None else replace(self, tensors=self.raw, raw=None)


def typed(array: Array, stored: StoredType) -> Array:
    """Bit patterns as what they stand for, if the type is none of numpy's own and they are of its size."""
    is_pattern = not stored.is_numpys and array.dtype.kind in "Vu" and array.dtype.itemsize == stored.itemsize
    return array.view(stored.dtype) if is_pattern else array


@dataclass(frozen=True)
class Case:
    """One case.

    Parameters
    ----------
    id, title, origin : str
        ``origin`` is who wrote the bitstream.
    group : str
        The folder below the root.
    result : str
        One of RESULTS.
    rev : int or None
        Counts its changes.
    profile_idc : int or None
    clauses, features : tuple of str
    requirements : tuple of str
        The rules of ``nnr verify`` that the bitstream breaks.
    file : Path
        The case file.
    streams : tuple of Stream
        The bitstream, after those that have to be decoded before it.
    error : (str, int or None) or None
        Class of errors.py and number of the unit (None: the bitstream as a whole) of a case that is invalid.
    limits : Limits
    topology_dimensions : dict of str to tuple of int
    topology_file : Path or None
        An NNEF graph that is kept apart from the bitstream.
    extension : str
        What the case is about that is not in the standard; empty for what every decoder knows.
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
        """What the case is for a decoder that does not know the extension, which it may pass over or refuse."""
        streams = tuple(stream.without_extension() for stream in self.streams)
        return replace(self, result="acceptable", error=None, streams=streams, extension="")

    @property
    def topology(self) -> Topology | None:
        """What ``topology_file`` holds."""
        return Topology("nnef", self.topology_file.read_bytes()) if self.topology_file else None

    @property
    def kind(self) -> str:
        """One of KINDS."""
        return "interop" if self.result == "valid" and self.origin != "nnr_codec" else self.result


def load_cases(root: str | Path) -> list[Case]:
    """All cases in a folder and those below it, by group and id.

    Raises
    ------
    FormatError
        A case file is malformed or names something outside of its folder, an id occurs twice, or there is no case.
    OSError
        The folder cannot be read.
    """
    root = Path(root)
    paths = [path for path in root.rglob("*case.json") if path.name == "case.json" or path.name.endswith(".case.json")]
    if not paths:
        next(root.iterdir(), None)  # OSError says more, where there is one
        raise FormatError(f"{root}: no case.json here or below")
    if len(paths) > _MAX_CASES:
        raise FormatError(f"{root}: {len(paths):,} cases are more than {_MAX_CASES:,}")
    cases = sorted((read_case(path, root) for path in paths), key=lambda case: (case.group, case.id))
    seen: dict[str, Case] = {}
    for case in cases:
        if case.id in seen:
            raise FormatError(f"{case.file}: the id {case.id!a} is that of {seen[case.id].file}")
        seen[case.id] = case
    return cases


def read_case(path: Path, root: Path) -> Case:
    """One case; errors are those of :func:`load_cases`."""
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
        raise FormatError("a valid bitstream has no expected tensors")
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
    """A field of an object, of exactly this type; FormatError when it is absent and there is no default."""
    if not isinstance(facts, dict):
        raise FormatError(f"an object with {name} is expected, not {type(facts).__name__}")
    if name not in facts and default:
        return default[0]
    value = facts.get(name)
    if type(value) is not kind:
        raise FormatError(f"{name} is {type(value).__name__}, not {kind.__name__}")
    return value


def _texts(facts: Any, name: str) -> tuple[str, ...]:
    return tuple(map(str, _field(facts, name, list, ())))


def _numbers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise FormatError("dimensions are not a list of whole numbers")
    return tuple(value)


def _inside(folder: Path, name: str) -> Path:
    """A regular file of the folder itself: no other path, and no link that leaves it."""
    path = folder / name
    if not _PLAIN_NAME.fullmatch(name) or path.resolve().parent != folder.resolve() or not path.is_file():
        raise FormatError(f"{name!a} is not a file of the case's folder")
    if path.stat().st_size > _MAX_FILE:
        raise FormatError(f"{name} is larger than {_MAX_FILE:,} bytes")
    return path


def _topology(folder: Path, facts: Any) -> Path | None:
    if facts is None:
        return None
    path = _inside(folder, _field(facts, "file", str))
    if hashlib.sha256(path.read_bytes()).hexdigest() != _field(facts, "sha256", str):
        raise FormatError(f"{path.name} has another SHA-256 than its case file says")
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
        raise FormatError(f"limits are {', '.join(facts)}, not names of Limits and preset strict")
    return replace(Limits.strict() if "preset" in facts else Limits(), **given)
