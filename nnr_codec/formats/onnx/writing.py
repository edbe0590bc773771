"""Insertion of tensors into a serialized ModelProto whose items were removed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np

from ...dtypes import STORED_TYPES, stored_type
from ...errors import FormatError
from ...limits import Limits
from ...model import Array, Model
from .. import FormatWarning, announce, check_topology, described, listed, warn_of_loss
from ..protobuf import MessageSource, without_zero
from .graph import OnnxGraph, read_graph
from .layout import FilePart, Layout, Location, Slot, inside, located, outside
from .shapes import with_shapes

#: Maximum size of a serialized message in bytes.
LARGEST = (1 << 31) - 1
#: Minimum size in bytes of a tensor that is moved to another file although the source had it inside.
SMALLEST = 1024


@dataclass(frozen=True)
class Plan:
    """Layout of a file to write.

    Parameters
    ----------
    data : bytes
        The model without items.
    layout : Layout
        Layout of ``data``.
    parts : list of FilePart
        Replacements of the patches.
    outside : frozenset of str
        Names of the tensors that go to another file.
    sizes : mapping of str to int
        Sizes of the other tensors in bytes.
    """

    data: bytes
    layout: Layout
    parts: list[FilePart]
    outside: frozenset[str]
    sizes: Mapping[str, int]


def plan(model: Model, location: str | None) -> Plan:
    """Plan the file of a model; data go to the file ``location`` if they were external or are too large.

    Without a location, all data go to the model's own file. Tensors are read only if their size depends on their
    values; :func:`write_plan` reads all of them.

    Issues a FormatWarning for metadata and ties, which are lost. Raises FormatError if the model has no graph, does not
    match its graph, or is too large.
    """
    check_topology("onnx", model.topology)
    warn_of_loss(model, "an ONNX model", "topology")
    assert model.topology is not None
    data = without_zero(model.topology.data)
    graph = _read(data, whole=bool(model.pruned))
    if changed := {name: described(model, name)[1] for name in model.pruned if name in model.tensors}:
        data = with_shapes(data, graph, changed)
        graph = _read(data)
    layout, slots = graph.layout, graph.layout.slots
    _check(model, slots)
    varying = [slot for slot in slots if slot.items.is_varints]
    announce(model, [slot.name for slot in (*varying, *slots)])
    sizes = {slot.name: slot.items.raw_size for slot in slots}
    sizes |= {slot.name: slot.items.size_of(_fitted(model.tensors[slot.name], slot)) for slot in varying}
    chosen = frozenset(slot.name for slot in slots if slot.external and location is not None)
    parts, size = _parts(layout, sizes, chosen, location)
    if size > LARGEST and location is not None:
        chosen |= {slot.name for slot in slots if slot.items.raw_size >= SMALLEST}
        parts, size = _parts(layout, sizes, chosen, location)
    if size > LARGEST:
        where = "a stream" if location is None else "its own file"
        raise FormatError(f"the model requires {size:,} bytes in {where}; a ModelProto may have at most {LARGEST:,}")
    return Plan(data, layout, parts, chosen, sizes)


def _read(data: bytes, *, whole: bool = False) -> OnnxGraph:
    """Parse a model without items. Raise LimitError if it expands too much."""
    # The bytes were accepted before, but the parsed model may be many times as large.
    limits = replace(Limits.unlimited(), max_topology_bytes=max(len(data), Limits().max_topology_bytes))
    return read_graph(MessageSource(data, limits), limits, whole=whole)


def write_plan(found: Plan, model: Model, file: BinaryIO, other: BinaryIO | None) -> None:
    """Write a model, and the external data in graph order."""
    for data, patch in found.layout.joined(lambda start, end: found.data[start:end], found.parts):
        file.write(data)
        if isinstance(patch, Slot):
            array = _fitted(model.tensors[patch.name], patch)
            if patch.name in found.outside and other:
                patch.items.raw.write(other, array)
            elif patch.items.size_of(array) == found.sizes[patch.name]:
                patch.items.write(file, array)
            else:
                raise FormatError(f"tensor {patch.name[:80]!a} changed while it was written", tensor=patch.name)


def _parts(
    layout: Layout, sizes: Mapping[str, int], chosen: frozenset[str], location: str | None
) -> tuple[list[FilePart], int]:
    """Return the replacements of the patches, and the size of the file."""
    parts, offset = layout.emptied(), 0
    for place, patch in enumerate(layout.patches):
        if isinstance(patch, Location):
            parts[place] = located(patch.slot, patch.slot.name in chosen)
        elif isinstance(patch, Slot) and patch.name in chosen and location is not None:
            nbytes = patch.items.raw_size
            parts[place] = outside(patch, location, offset, nbytes)
            offset += nbytes
        elif isinstance(patch, Slot):
            parts[place] = inside(patch, sizes[patch.name])
    return layout.composed(parts)


# ------------------------------------------------------------------------------------------------ tensors
def _check(model: Model, slots: Sequence[Slot]) -> None:
    """Raise FormatError unless the model has the tensors of its graph, as far as known without reading them."""
    for slot in slots:
        if slot.name not in model.tensors:
            raise FormatError(f"the model has no tensor {slot.name[:80]!a}, which its graph requires")
        _check_fit(*described(model, slot.name), slot)
    known = {slot.name for slot in slots}
    strangers = [name for name in model if name not in known]
    if strangers:
        message = f"tensors that are not in the graph are left out: {listed(strangers)}"
        warnings.warn(message, FormatWarning, stacklevel=5)


def _check_fit(dtype: np.dtype[Any], shape: tuple[int, ...], slot: Slot) -> None:
    """Raise FormatError unless a tensor matches a slot; integers are also checked by value later."""
    what, wanted = f"tensor {slot.name[:80]!a}", slot.items.stored
    # Extents of 1 are ignored, because decoders may not know scalars.
    if [extent for extent in shape if extent != 1] != [extent for extent in slot.items.shape if extent != 1]:
        raise FormatError(f"{what} has shape {shape}; the graph says {slot.items.shape}")
    stored = stored_type(dtype)
    if stored is None or (stored != wanted and "f" in (stored.kind, wanted.kind)):
        raise FormatError(
            f"{what} is {dtype}, but the operations of the graph require {wanted.name}; omit --dtype (dtype=), or save "
            "it as .safetensors"
        )


def _fitted(array: Array, slot: Slot) -> Array:
    """Return an array in the shape and type of the graph. Raise FormatError if that is impossible."""
    _check_fit(array.dtype, array.shape, slot)
    wanted, array = slot.items.stored, array.reshape(slot.items.shape)
    if array.dtype == wanted.dtype:
        return array
    if wanted.kind != "f":
        least, most = wanted.range
        values = array.astype(f"{'i' if STORED_TYPES[array.dtype.name].kind == 'i' else 'u'}8")
        if values.size and not (least <= int(values.min()) and int(values.max()) <= most):
            raise FormatError(
                f"tensor {slot.name[:80]!a}: the graph says {wanted.name}, which cannot represent its values",
                tensor=slot.name,
            )
        array = values
    return array.astype(wanted.dtype)
