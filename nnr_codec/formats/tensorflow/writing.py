"""Writing checkpoints by TensorFlow: the operations that save tensors, and no graph."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FormatError
from ...model import Model
from .. import FormatWarning, announce, described, lacks_type, require
from ..beside import from_metadata
from .bundle import TYPES

_FORMAT = "tensorflow"
_STRING = "tensorflow:string:"
_STRINGS = "tensorflow:strings"
#: Bytes of tensors that are in memory together.
_AT_ONCE = 256 << 20
_MAX_RANK = 32

Strings = dict[str, tuple[tuple[int, ...], list[bytes]]]


@dataclass(frozen=True)
class Plan:
    """What is written beside the tensors: files by name, and tensors of strings."""

    files: Mapping[str, bytes]
    strings: Strings


def plan(model: Model, *, keeps_all: bool) -> Plan:
    """What to write; warns of what is lost, which is not ``keeps_all``.

    Raises FormatError for tensors or metadata that cannot be written, MissingDependencyError without TensorFlow.
    """
    files, strings = from_metadata(_FORMAT, model.metadata), strings_from_metadata(model.metadata)
    for name in model:
        dtype = described(model, name)[0]
        if dtype.name not in TYPES.values():
            raise lacks_type(f"tensor {name[:80]!a}", dtype, _FORMAT)
        if not name or name in strings or not _is_text(name):
            raise FormatError(f"tensor {name[:80]!a}: that is no name in a checkpoint, or there twice")
    _tensorflow()
    lost = []
    if not keeps_all:
        lost = ["the topology"] * (model.topology is not None) + ["files beside the variables"] * bool(files)
    if any(not key.startswith(f"{_FORMAT}:") for key in model.metadata):
        lost.append("metadata")
    if lost:
        warnings.warn(f"left out: {', '.join(lost)}", FormatWarning, stacklevel=4)
    return Plan(files, strings)


def write(model: Model, plan: Plan, prefix: Path) -> None:
    """Write ``prefix.index`` and data files beside it, a part of the tensors at a time."""
    tf = _tensorflow()
    names = sorted(model)
    parts = _parts(model, names)
    announce(model, names)
    with tf.device("CPU:0"):
        prefixes = []
        for number, part in enumerate(parts):
            found = {name: tf.constant(np.asarray(model.tensors[name])) for name in part}
            if number == 0:
                found |= {name: _constant(tf, shape, texts) for name, (shape, texts) in plan.strings.items()}
            prefixes.append(str(prefix) if len(parts) == 1 else f"{prefix}-part{number}")
            tf.raw_ops.SaveV2(
                prefix=prefixes[-1],
                tensor_names=list(found),
                shape_and_slices=[""] * len(found),
                tensors=list(found.values()),
            )
            del found
        if len(parts) > 1:
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=prefixes, destination_prefix=str(prefix), delete_old_dirs=False
            )


def _tensorflow() -> Any:
    return require("tensorflow", "tensorflow", "writing models of TensorFlow")


def _parts(model: Model, names: list[str]) -> list[list[str]]:
    """The names in parts that fit the memory."""
    parts, size = [list[str]()], 0
    for name in names:
        dtype, shape = described(model, name)
        nbytes = math.prod(shape) * dtype.itemsize
        if parts[-1] and size + nbytes > _AT_ONCE:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += nbytes
    return parts


def _constant(tf: Any, shape: tuple[int, ...], texts: list[bytes]) -> Any:
    return tf.reshape(tf.constant(texts, tf.string), shape)


def strings_as_metadata(strings: Strings) -> dict[str, str]:
    """Tensors of strings as metadata, each character a byte: a scalar by its name, others as shape and strings."""
    scalars = {_STRING + name: texts[0].decode("latin-1") for name, (shape, texts) in strings.items() if shape == ()}
    rest = {
        name: [list(shape), [text.decode("latin-1") for text in texts]]
        for name, (shape, texts) in strings.items()
        if shape != ()
    }
    return scalars | ({_STRINGS: json.dumps(rest, ensure_ascii=False, separators=(",", ":"))} if rest else {})


def strings_from_metadata(metadata: Mapping[str, str]) -> Strings:
    """The same back; FormatError when it is malformed."""
    scalars = {key.removeprefix(_STRING): [[], [text]] for key, text in metadata.items() if key.startswith(_STRING)}
    error = FormatError(f"metadata {_STRINGS!r} are no strings by name, or are there twice")
    try:
        found = json.loads(metadata.get(_STRINGS, "{}"))
    except (ValueError, RecursionError):
        raise error from None
    if not isinstance(found, dict) or found.keys() & scalars.keys():
        raise error
    strings: Strings = {}
    for name, value in (found | scalars).items():
        if not name or not _is_text(name) or not isinstance(value, list) or len(value) != 2:
            raise error
        shape, texts = value
        if not isinstance(shape, list) or not isinstance(texts, list) or len(shape) > _MAX_RANK:
            raise error
        if any(type(extent) is not int or not 0 <= extent <= len(texts) for extent in shape):
            raise error
        try:
            strings[name] = tuple(shape), [text.encode("latin-1") for text in texts]
        except (AttributeError, UnicodeEncodeError):
            raise error from None
        if math.prod(shape) != len(texts):
            raise error
    return strings


def _is_text(name: str) -> bool:
    try:
        return "\0" not in name and bool(name.encode("utf-8"))
    except UnicodeEncodeError:
        return False
