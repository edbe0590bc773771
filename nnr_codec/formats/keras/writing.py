"""Writing of HDF5 files and ``.keras`` archives with h5py; equal models give equal bytes."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np

from ...dtypes import STORED_TYPES
from ...errors import FormatError
from ...model import Model
from .. import FormatWarning, announce, described, lacks_type, require
from . import archive, attributes
from .hdf5 import BFLOAT16, Attribute

_CONFIG = "model_config"
_IN_MEMORY = 1 << 20
# The oldest structures, which the reader supports, whatever the default of h5py is.
_VERSIONS = ("earliest", "v108")
# Types of HDF5; bfloat16 is stored as opaque items, as in Keras.
_TYPES = {
    "bool",
    "bfloat16",
    *(f"{u}int{8 << k}" for u in ("", "u") for k in range(4)),
    *(f"float{16 << k}" for k in range(3)),
}


@dataclass(frozen=True)
class KerasPlan:
    """Contents of the file to write.

    Parameters
    ----------
    members : mapping of str to bytes or None, or None
        Archive members, with None for the weights; None for a plain HDF5 file.
    attributes : mapping
        Attributes by path.
    """

    members: Mapping[str, bytes | None] | None
    attributes: Mapping[str, Mapping[str, Attribute]]


def plan(model: Model, name: str) -> KerasPlan:
    """Plan the Keras file for a model; the file extension of ``name`` selects the format.

    A FormatWarning lists lost information.

    Raises FormatError if the file cannot represent the model, MissingDependencyError if h5py is not installed.
    """
    _h5py()
    own = model.topology if model.topology and model.topology.format == "tensorflow" else None
    config = own.data if own and own.data.lstrip()[:1] == b"{" else None
    found = attributes.from_metadata(model.metadata, config)
    in_attribute = _CONFIG in found.get("", {})
    as_archive = name.endswith(".keras") or (not name and config is not None and not in_attribute)
    lost = []
    if as_archive:
        if config is None or in_attribute or not _is_whole(config):
            raise FormatError("a .keras archive requires the config.json of a Keras 3 model; write it as .h5")
    elif config is not None and not in_attribute:
        if not name.endswith(".weights.h5"):
            raise FormatError(
                "an .h5 file requires a model in the older format of Keras; write it as .keras, or the weights alone "
                "as .weights.h5"
            )
        lost.append("the topology")
    elif name.endswith(".weights.h5") and in_attribute:
        raise FormatError("a .weights.h5 file cannot store a model in the older format of Keras; write it as .h5")
    if model.topology and config is None:
        lost.append("the topology")
    if not as_archive and archive.is_beside(model.metadata):
        lost.append("files beside the weights")
    if any(not key.startswith("keras:") for key in model.metadata):
        lost.append("metadata")
    if lost:
        warnings.warn(f"left out: {', '.join(lost)}", FormatWarning, stacklevel=4)
    members = archive.members(model.metadata, config) if as_archive and config is not None else None
    _check_paths(model, found)
    return KerasPlan(members, found)


def to_file(model: Model, plan: KerasPlan, file: BinaryIO) -> None:
    """Write a model to a seekable file."""
    if plan.members is None:
        _write_hdf5(model, plan, file)
    else:
        to_stream(model, plan, file)


def to_stream(model: Model, plan: KerasPlan, file: BinaryIO) -> None:
    """Write a model to a file that need not be seekable, through a temporary file."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as spool:
        weights = cast(BinaryIO, spool)
        _write_hdf5(model, plan, weights)
        weights.seek(0)
        if plan.members is None:
            shutil.copyfileobj(weights, file)
        else:
            archive.write(plan.members, weights, file)


def _is_whole(config: bytes) -> bool:
    """Return whether the configuration describes a model as Keras 3 writes it."""
    try:
        value = json.loads(config)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "module" in value and "class_name" in value


def _check_paths(model: Model, found: Mapping[str, object]) -> None:
    """Check that HDF5 supports the type and name of each tensor, and that no group has the name of a tensor."""
    groups: set[str] = set()
    for name in [*model, *filter(None, found)]:
        parts = name.split("/")
        if any(part in ("", ".") for part in parts) or not attributes.is_text(name):
            raise FormatError(f"{name[:80]!a} is not a valid path in an HDF5 file")
        groups.update("/".join(parts[:count]) for count in range(1, len(parts)))
    for name in model:
        dtype = described(model, name)[0]
        if dtype.name not in _TYPES:
            raise lacks_type(f"tensor {name[:80]!a}", dtype, "keras")
        if name in groups:
            raise FormatError(f"{name[:80]!a} is both a tensor and a group, which HDF5 does not permit")


def _write_hdf5(model: Model, plan: KerasPlan, file: BinaryIO) -> None:
    """Write groups, datasets and attributes, one tensor at a time."""
    with _h5py().File(file, "w", libver=_VERSIONS, track_order=False) as target:
        _write_attributes(target, plan.attributes.get("", {}))
        for path in sorted(set(plan.attributes) - {""} - set(model)):
            # With a str, h5py would create a group in the style of HDF5 1.8.
            _write_attributes(target.require_group(path.encode()), plan.attributes[path])
        ties = {
            name: other
            for name, other in model.aliases.items()
            if name in model.tensors and other in model.tensors and other not in model.aliases
        }
        own = [name for name in model if name not in ties]
        announce(model, [*own])
        for name in own:
            dataset = _write_tensor(target, name, model)
            _write_attributes(dataset, plan.attributes.get(name, {}))
        for name, other in ties.items():
            target[name] = target[other]


def _h5py() -> Any:
    return require("h5py", "keras", "writing Keras models")


def _write_tensor(target: Any, name: str, model: Model) -> Any:
    """Write a tensor into a file or group of h5py and return its dataset."""
    array = np.asarray(model.tensors[name])
    bfloat16 = array.dtype.name == "bfloat16"
    items: Any = array.view("V2") if bfloat16 else array
    dataset = target.create_dataset(name, data=items, track_times=False)
    if bfloat16:
        dataset.attrs.create(BFLOAT16[0], BFLOAT16[1], dtype=_h5py().string_dtype("utf-8"))
    return dataset


def _write_attributes(target: Any, values: Mapping[str, Attribute]) -> None:
    h5py = _h5py()
    for name, value in values.items():
        kind: Any
        if value.type.kind == "number":
            kind = STORED_TYPES[value.type.stored].dtype.newbyteorder(">" if value.type.big_endian else "<")
            data: Any = np.frombuffer(bytes(value.values), kind)  # type: ignore[arg-type]
        else:
            encoding = "utf-8" if value.type.utf8 else "ascii"
            kind = h5py.string_dtype(encoding, value.type.size if value.type.kind == "text" else None)
            texts = [text.encode() for text in cast(list[str], value.values)]
            data = np.array(texts, kind if value.type.kind == "text" else object)
        if value.shape is None:
            target.attrs[name] = h5py.Empty(kind)
        else:
            target.attrs.create(name, data.reshape(value.shape), dtype=kind)
