"""GGUF files, the format of llama.cpp: versions 2 and 3, little-endian.

The topology is the file without the bytes of its tensors: keys, the list of tensors, and padding. NNR has no number for
it (Table 4); it is recognized by its content. Tensors of F32, F16, BF16, F64, I8, I16, I32 and I64 keep their types.

A quantized tensor ``w`` is several tensors of the model: ``w#levels``, ``w#d`` and other fields of its blocks
(:mod:`.blocks`), which lossy options do not change. For other formats, :func:`dequantized` computes the float32
weights. Blocks of types without fields here (IQ, TQ, MXFP4) are bytes, ``w#blocks``.
"""

from __future__ import annotations

import io
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from ...dtypes import STORED_TYPES
from ...errors import FormatError, MissingDependencyError
from ...files import output_file
from ...limits import Budget, Limits
from ...model import Model, Topology, Wiring
from .. import FormatWarning, announce, begins, check_topology, listed, opened_file, state, warn_of_loss
from ..lazy import Entry, LazyTensors
from .head import MAGIC, PREFIX, Head, read_head
from .tensors import Weights, check_fit, entries, write_tensor

NAME = "gguf"
SUFFIXES = (".gguf",)
DESCRIPTION = "GGUF: models of llama.cpp, also quantized"
READS = "a .gguf file"
#: NNR has no topology format number for this format (Table 4).
TOPOLOGY = ""
NEEDS_TOPOLOGY = True
#: Maximum size of the metadata in the side-information record, half of the default limit of decoders.
METADATA_BYTES = Limits().max_side_info_bytes // 2


def recognise(source: Path | BinaryIO) -> bool:
    """Return whether the source starts like a GGUF file."""
    return begins(source, MAGIC)


def owns(topology: Topology) -> bool:
    """Return whether the topology starts like a GGUF file."""
    return topology.data.startswith(MAGIC)


def wiring(topology: Topology) -> Wiring:
    """Return types and shapes of the tensors. Raises FormatError or LimitError for a malformed topology."""
    tensors = _head(topology, Limits()).tensors
    parts = [part for tensor in tensors for part in tensor.parts()]
    return Wiring(
        {name: shape for name, _, shape in parts},
        kinds={name: STORED_TYPES[type].kind for name, type, _ in parts},
        quantized=tuple(name for tensor in tensors for name in tensor.fields),
    )


def load_topology(source: Path | BinaryIO, limits: Limits) -> Topology:
    """Read a file without the bytes of its tensors; raises the errors of :func:`load`."""
    with opened_file(source) as file:
        return _topology(file, read_head(file, Budget(limits)), limits)


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read a file, with its tensors in file order; tensors of a path are read on access.

    A FormatWarning, or a FormatError if ``strict``, reports a file that is one of several of a model.

    Raises
    ------
    FormatError
        The file is malformed, big-endian or of another version, has a tensor of an unsupported type, or tensors that
        overlap or exceed the file; or ``ml_dtypes`` is required and not installed (MissingDependencyError).
    LimitError
        The file exceeds the limits; max_topology_bytes applies to all bytes that are not tensor data.
    """
    with opened_file(source) as file:
        head = read_head(file, Budget(limits))
        topology = _topology(file, head, limits)
        found = {name: entry for tensor in head.tensors for name, entry in entries(tensor)}
        _check_types(found)
        if head.files > 1:
            message = f"this is one of {head.files:,} files of a model and contains only some of its tensors"
            if strict:
                raise FormatError(message)
            warnings.warn(message, FormatWarning, stacklevel=3)
        if isinstance(source, Path):
            return Model(LazyTensors([(source, state(file))], found), topology, format=NAME)
        tensors = {name: entry.read(file, f"tensor {name[:80]!a}") for name, entry in found.items()}
    return Model(tensors, topology, format=NAME)


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write a model whose topology is a GGUF file. Metadata and ties are lost, with a FormatWarning.

    Raises
    ------
    FormatError
        The topology is not a GGUF file, a tensor is missing or has another type or shape, or an integer does not fit
        its block.
    """
    head = _checked(model)
    with output_file(path, overwrite=overwrite) as file:
        _write(model, head, file)


def write(model: Model, file: BinaryIO) -> None:
    """Write a model to a stream; see :func:`save`."""
    _write(model, _checked(model), file)


def dequantized(model: Model) -> Model:
    """Return a model with float32 weights in place of the fields of quantized tensors, and with the keys as metadata.

    A FormatWarning lists keys whose values are not Unicode text, or too large for metadata.
    """
    assert model.topology is not None
    head = _head(model.topology, Limits.unlimited(), METADATA_BYTES)
    if head.left_out:
        message = f"skipped the values of these keys: {listed(head.left_out)}"
        warnings.warn(message, FormatWarning, stacklevel=4)
    return replace(model, tensors=Weights(model.tensors, head.tensors), metadata={**model.metadata, **head.metadata})


def _checked(model: Model) -> Head:
    """Return the part before the tensor data of the file to write. Raise FormatError if the model does not fit it."""
    check_topology(NAME, model.topology)
    assert model.topology is not None
    # The caller already has the topology in memory: its size is no reason to reject it.
    head = _head(model.topology, Limits.unlimited())
    for tensor in head.tensors:
        check_fit(model, tensor)
    known = {name for tensor in head.tensors for name, _, _ in tensor.parts()}
    if others := [name for name in model if name not in known]:
        message = f"tensors that the GGUF file does not list are left out: {listed(others)}"
        warnings.warn(message, FormatWarning, stacklevel=4)
    warn_of_loss(model, "a GGUF file", "topology", own=PREFIX)
    announce(model, [name for tensor in head.by_place for name, _, _ in tensor.parts()])
    return head


def _write(model: Model, head: Head, file: BinaryIO) -> None:
    assert model.topology is not None
    rest = io.BytesIO(model.topology.data)
    size = len(model.topology.data) + sum(tensor.nbytes for tensor in head.tensors)
    ranges = head.gaps(size)
    for tensor in head.by_place:
        start, end = next(ranges)
        file.write(rest.read(end - start))
        write_tensor(file, model.tensors, tensor)
    file.write(rest.read())


def _topology(file: BinaryIO, head: Head, limits: Limits) -> Topology:
    """Return the bytes of a file before, between and after its tensors."""
    ranges = list(head.gaps(file.seek(0, os.SEEK_END)))
    limits.check("max_topology_bytes", sum(end - start for start, end in ranges), "bytes that are not tensor data")
    data = bytearray()
    for start, end in ranges:
        file.seek(start)
        data += file.read(end - start)
    return Topology(TOPOLOGY, bytes(data))


def _head(topology: Topology, limits: Limits, room: int = 0) -> Head:
    """Return the part before the tensor data of a topology."""
    head = read_head(io.BytesIO(topology.data), Budget(limits), room)
    size = len(topology.data) + sum(tensor.nbytes for tensor in head.tensors)
    for _ in head.gaps(size):  # raises an error
        pass
    return head


def _check_types(found: dict[str, Entry]) -> None:
    """Raise MissingDependencyError if the type of a tensor requires a package that is not installed."""
    for name, entry in found.items():
        try:
            _ = entry.dtype
        except MissingDependencyError as error:
            error.within(f"tensor {name[:80]!a}")
            raise
