"""ONNX models: a serialized ModelProto, with its data inside or in other files (ISO/IEC 15938-17:2024, Annex B).

The topology is the ModelProto byte for byte, without the data of the tensors that become model tensors (errata N9);
see :mod:`.graph`. Protocol buffers are parsed here, without packages, so that decoders find the same tensors on every
machine, and models may exceed the memory and 2 GiB.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from ...errors import FormatError, LimitError, MissingDependencyError
from ...files import output_file, output_files
from ...limits import Budget, Limits
from ...model import Array, Channels, Model, Topology, Wiring
from ...topology.blocks import find_blocks
from ...topology.channels import find_channels
from .. import opened_file, state
from ..companion_files import neighbour, opened
from ..lazy import LazyTensors
from ..protobuf import LENGTH, VARINT, MessageSource, without_zero
from .dataflow import BROADCASTS, flow
from .external import find
from .graph import read_graph
from .layout import Layout, Slot
from .shapes import with_shapes
from .tensor import ItemLocation
from .writing import plan, write_plan

NAME = "onnx"
SUFFIXES = (".onnx",)
DESCRIPTION = "ONNX"
READS = "a .onnx file, with external data"
TOPOLOGY = "onnx"
NEEDS_TOPOLOGY = True

#: Suffix of the name of the data file.
DATA_SUFFIX = ".data"

# Fields of a ModelProto that may precede its graph, with their wire types, and the fields of the graph.
_HEAD = {1: VARINT, 2: LENGTH, 3: LENGTH, 4: LENGTH, 5: VARINT, 6: LENGTH, 8: LENGTH, 14: LENGTH}
_IR_VERSION, _GRAPH = 1, 7
_OF_GRAPH = (1, 2, 5, 10, 11, 12, 13, 14, 15, 16)
_MAX_VERSION = 1000
# Maximum number of fields before the graph.
_MAX_HEAD = 4096
#: Kinds of arrays permitted for each kind of tensor.
_KINDS = {"f": "f", "i": "iu", "u": "iu", "b": "biu"}


def recognise(source: Path | BinaryIO) -> bool:
    """Return whether the source starts like a ModelProto, with a version followed by a graph."""
    if isinstance(source, Path) and not source.is_file():
        return False
    with opened_file(source) as file:
        try:
            return _begins_well(MessageSource(file, Limits()))
        except (FormatError, LimitError):
            return False


def _begins_well(source: MessageSource) -> bool:
    at = 0
    key, at = source.varint(at, source.size)
    version, at = source.varint(at, source.size)
    if key != _IR_VERSION << 3 or not 0 < version < _MAX_VERSION:
        return False
    for _ in range(_MAX_HEAD):
        key, at = source.varint(at, source.size)
        number, wire = key >> 3, key & 7
        value, at = source.varint(at, source.size)
        if number == _GRAPH and wire == LENGTH:
            # The rest may not have arrived yet; the beginning decides.
            key, _ = source.varint(at, source.size)
            return value > 0 and key >> 3 in _OF_GRAPH and key & 7 == LENGTH
        if _HEAD.get(number) != wire:
            return False
        at += value if wire == LENGTH else 0
    return False


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read a model; tensors of a path are read on access. Everything is kept, so ``strict`` has no effect.

    A model whose data are all removed gives a model without tensors.

    Raises
    ------
    FormatError
        The file is malformed, data do not match the shape and type of their tensor, or data files are missing or
        outside the model's folder; or ``ml_dtypes`` is required and not installed (MissingDependencyError).
    LimitError
        The file exceeds the limits.
    """
    with opened_file(source) as file:
        parsed = MessageSource(file, limits)
        limits.check("max_archive_bytes", parsed.size, "bytes of the file")
        layout = read_graph(parsed, limits).layout
        topology = _topology(parsed, layout, limits)
        slots = layout.slots
        if all(slot.place is None for slot in slots):
            return Model({}, topology, format=NAME)
        budget = Budget(limits)
        if isinstance(source, Path):
            tensors: Mapping[str, Array] = _lazy(source, file, slots, budget)
        else:
            tensors = {slot.name: _read(file, slot, _entry(slot, budget)) for slot in slots}
    return Model(tensors, topology, format=NAME)


def load_topology(source: Path | BinaryIO, limits: Limits) -> Topology:
    """Read a model without its data, which may be missing; raises the errors of :func:`load`."""
    with opened_file(source) as file:
        parsed = MessageSource(file, limits)
        return _topology(parsed, read_graph(parsed, limits).layout, limits)


def _topology(source: MessageSource, layout: Layout, limits: Limits) -> Topology:
    parts, size = layout.composed(layout.emptied())
    limits.check("max_topology_bytes", size, "bytes of the model without its data")
    return Topology(NAME, b"".join(data for data, _ in layout.joined(source.read, parts)))


def _entry(slot: Slot, budget: Budget, file: int = 0) -> ItemLocation:
    """Return the location of a tensor.

    Raises FormatError if it has no data or an unsupported type, LimitError if it exceeds the limits.
    """
    what, items = f"tensor {slot.name[:80]!a}", slot.items
    if slot.place is None:
        raise FormatError(f"{what} has no data")
    budget.tensor(items.shape, items.stored.itemsize, what)
    try:
        _ = items.stored.dtype
    except MissingDependencyError as error:
        error.within(what, tensor=slot.name)
        raise
    return ItemLocation(items.type, items.shape, slot.place.start, slot.place.nbytes, file, items.field)


def _read(file: BinaryIO, slot: Slot, entry: ItemLocation) -> Array:
    what = f"tensor {slot.name[:80]!a}"
    if slot.place and slot.place.location:
        raise FormatError(f"{what}: its data is in another file; give the path of the model, not its content")
    return entry.read(file, what)


def _lazy(path: Path, file: BinaryIO, slots: list[Slot], budget: Budget) -> LazyTensors:
    """Return the tensors of a path, after checking all files with their data."""
    files = [(Path(os.path.realpath(path)), state(file))]
    sizes, numbers, entries = [os.fstat(file.fileno()).st_size], {"": 0}, {}
    for slot in slots:
        location = slot.place.location if slot.place else ""
        if location not in numbers:
            found = find(path, location)
            with opened(found) as other:
                files.append((found, state(other)))
                sizes.append(os.fstat(other.fileno()).st_size)
            numbers[location] = len(sizes) - 1
            budget.limits.check("max_archive_bytes", sum(sizes), "bytes of the files")
        number = numbers[location]
        entry = _entry(slot, budget, number)
        end = entry.start + entry.nbytes
        if end > sizes[number]:
            where = f"ends at byte {end:,} of {location[:80]!a}, but the file has only {sizes[number]:,} bytes"
            raise FormatError(f"tensor {slot.name[:80]!a}: its data {where}", tensor=slot.name)
        entries[slot.name] = entry
    return LazyTensors(files, entries)


# ------------------------------------------------------------------------------------------------ writing
def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write a model; data go to a second file if the source had external data or 2 GiB are exceeded.

    Raises
    ------
    FormatError
        The model has no ONNX graph, lacks one of its tensors, or has one that does not match its shape or type.
    """
    location = neighbour(path.name) + DATA_SUFFIX
    found = plan(model, location)
    if not found.outside:
        with output_file(path, overwrite=overwrite) as file:
            write_plan(found, model, file, None)
        return
    with output_files(path, overwrite=overwrite) as create:
        write_plan(found, model, create(path.name), create(location))


def write(model: Model, file: BinaryIO) -> None:
    """Write a model with all its data to a file that need not be seekable; raises the errors of :func:`save`."""
    write_plan(plan(model, None), model, file, None)


# ------------------------------------------------------------------------------------------------ topologies
def owns(topology: Topology) -> bool:
    """Return whether the bitstream declares the topology as ONNX, which has a number in Table 4."""
    return topology.format == NAME


def wiring(topology: Topology) -> Wiring:
    """Return the information of a model without data about its tensors.

    Raises FormatError or LimitError if it is malformed.
    """
    graph = read_graph(MessageSource(without_zero(topology.data), Limits()), Limits())
    slots = graph.layout.slots
    return Wiring(
        {slot.name: slot.items.shape for slot in slots},
        lambda: find_blocks(flow(graph)),
        {slot.name: _KINDS[slot.items.stored.kind] for slot in slots},
    )


def channels(topology: Topology, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Channels, ...]:
    """Return the removable channels (:mod:`nnr_codec.topology.channels`); ``shapes`` replaces declared shapes.

    Raises FormatError or LimitError for a malformed model.
    """
    data = without_zero(topology.data)
    graph = read_graph(MessageSource(data, Limits()), Limits(), whole=True)
    if shapes:
        graph = read_graph(MessageSource(with_shapes(data, graph, shapes), Limits()), Limits(), whole=True)
    return find_channels(flow(graph)) if graph.opset >= BROADCASTS else ()
