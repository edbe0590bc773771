"""ONNX models: a serialized ModelProto, its data in it or in files beside it (ISO/IEC 15938-17:2024, Annex B).

The topology is the ModelProto byte for byte, but for the data of its tensors, which are taken out (errata N9);
:mod:`.graph` tells of which. No package is needed for that: protocol buffers are read here, so that decoders come to
the same tensors on every machine, and models may be larger than the memory, and than 2 GiB.
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
from ..protobuf import LENGTH, VARINT, Source, without_zero
from .dataflow import BROADCASTS, flow
from .external import find
from .graph import read_graph
from .layout import Layout, Slot
from .shapes import with_shapes
from .tensor import Entry
from .writing import plan, write_plan

NAME = "onnx"
SUFFIXES = (".onnx",)
DESCRIPTION = "ONNX"
READS = "a .onnx file, with external data"
TOPOLOGY = "onnx"
NEEDS_TOPOLOGY = True

#: What the name of the file of data ends in.
DATA_SUFFIX = ".data"

# Fields of a ModelProto that may stand before its graph, with their wire types, and that of the graph.
_HEAD = {1: VARINT, 2: LENGTH, 3: LENGTH, 4: LENGTH, 5: VARINT, 6: LENGTH, 8: LENGTH, 14: LENGTH}
_IR_VERSION, _GRAPH = 1, 7
_OF_GRAPH = (1, 2, 5, 10, 11, 12, 13, 14, 15, 16)
_MAX_VERSION = 1000
# A file with more fields before its graph is none of these.
_MAX_HEAD = 4096
#: The kinds of arrays that may become tensors of each kind.
_KINDS = {"f": "f", "i": "iu", "u": "iu", "b": "biu"}


def recognise(source: Path | BinaryIO) -> bool:
    """Whether this begins with a version, and then has a graph, as a ModelProto does."""
    if isinstance(source, Path) and not source.is_file():
        return False
    with opened_file(source) as file:
        try:
            return _begins_well(Source(file, Limits()))
        except (FormatError, LimitError):
            return False


def _begins_well(source: Source) -> bool:
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
            # The rest may not have arrived; what there is tells.
            key, _ = source.varint(at, source.size)
            return value > 0 and key >> 3 in _OF_GRAPH and key & 7 == LENGTH
        if _HEAD.get(number) != wire:
            return False
        at += value if wire == LENGTH else 0
    return False


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read a model; of a path its tensors are read on access. All is kept (``strict``).

    One whose data have all been taken out gives a model without tensors.

    Raises
    ------
    FormatError
        It is malformed, data do not fit the shape and type of their tensor, or files of them are not there, or not
        below the model's folder; or ``ml_dtypes`` is needed and not installed (MissingDependencyError).
    LimitError
        It asks for more than the limits permit.
    """
    with opened_file(source) as file:
        parsed = Source(file, limits)
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
    """What is left of a model without data, whether they are there or not; raises as :func:`load`."""
    with opened_file(source) as file:
        parsed = Source(file, limits)
        return _topology(parsed, read_graph(parsed, limits).layout, limits)


def _topology(source: Source, layout: Layout, limits: Limits) -> Topology:
    parts, size = layout.composed(layout.emptied())
    limits.check("max_topology_bytes", size, "bytes of the model without its data")
    return Topology(NAME, b"".join(data for data, _ in layout.joined(source.read, parts)))


def _entry(slot: Slot, budget: Budget, file: int = 0) -> Entry:
    """Where a tensor is; FormatError unless it has data of a type that there is, LimitError."""
    what, items = f"tensor {slot.name[:80]!a}", slot.items
    if slot.place is None:
        raise FormatError(f"{what} has no data")
    budget.tensor(items.shape, items.stored.itemsize, what)
    try:
        _ = items.stored.dtype
    except MissingDependencyError as error:
        error.within(what, tensor=slot.name)
        raise
    return Entry(items.type, items.shape, slot.place.start, slot.place.nbytes, file, items.field)


def _read(file: BinaryIO, slot: Slot, entry: Entry) -> Array:
    what = f"tensor {slot.name[:80]!a}"
    if slot.place and slot.place.location:
        raise FormatError(f"{what}: its data are in another file; give the path of the model, not its content")
    return entry.read(file, what)


def _lazy(path: Path, file: BinaryIO, slots: list[Slot], budget: Budget) -> LazyTensors:
    """The tensors of a path, after a look at all files that their data are in."""
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
            where = f"bytes {entry.start:,} to {end:,} of {location[:80]!a}, which has {sizes[number]:,}"
            raise FormatError(f"tensor {slot.name[:80]!a}: its data are {where}", tensor=slot.name)
        entries[slot.name] = entry
    return LazyTensors(files, entries)


# ------------------------------------------------------------------------------------------------ writing
def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write a model, with data beside it where its source had such or 2 GiB are not enough: all in one file.

    Raises
    ------
    FormatError
        The model has no ONNX graph, or lacks a tensor of it, or has one that does not fit its shape or type.
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
    """Write a model with all its data to a file that need not be seekable; raises as :func:`save`."""
    write_plan(plan(model, None), model, file, None)


# ------------------------------------------------------------------------------------------------ topologies
def owns(topology: Topology) -> bool:
    """Whether a topology is one of this format, which has a number."""
    return topology.format == NAME


def wiring(topology: Topology) -> Wiring:
    """What a model without data says of its tensors; FormatError or LimitError if it is malformed."""
    graph = read_graph(Source(without_zero(topology.data), Limits()), Limits())
    slots = graph.layout.slots
    return Wiring(
        {slot.name: slot.items.shape for slot in slots},
        lambda: find_blocks(flow(graph)),
        {slot.name: _KINDS[slot.items.stored.kind] for slot in slots},
    )


def channels(topology: Topology, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Channels, ...]:
    """Which channels of the network could be removed, where some tensors have other shapes.

    Raises FormatError or LimitError for a model that is malformed.
    """
    data = without_zero(topology.data)
    graph = read_graph(Source(data, Limits()), Limits(), whole=True)
    if shapes:
        graph = read_graph(Source(with_shapes(data, graph, shapes), Limits()), Limits(), whole=True)
    return find_channels(flow(graph)) if graph.opset >= BROADCASTS else ()
