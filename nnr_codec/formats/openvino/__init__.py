"""OpenVINO IR, versions 10 and 11: a ``model.xml`` with operations, and a ``model.bin`` with constants beside it.

The XML is the topology and is stored unchanged. NNR has no topology format number for it (Table 4); decoders recognize
it by its content. Each range of bytes of the ``.bin`` that constants refer to is one tensor, with the name of the first
of these constants. When writing, each tensor is placed at the offset that the XML states. Bytes that no constant refers
to become 0.

A tensor has the element type and the shape of its constant. A one-dimensional ``uint8`` tensor stores constants of
types that numpy and ``ml_dtypes`` lack (nf4, f4e2m1, f8e8m0, u1, u3, u6, string), and ranges that constants of
different types share.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from ...errors import FormatError
from ...files import output_files
from ...limits import Budget, Limits
from ...model import Channels, Model, Topology, Wiring
from ...topology.blocks import find_blocks
from ...topology.channels import find_channels
from .. import FormatWarning, announce, check_topology, described, listed, opened_file, state, warn_of_loss
from ..companion_files import located, opened
from ..lazy import LazyTensors
from .dataflow import flow
from .ir import IrConstant, is_ir, read_constants, read_text
from .shapes import with_shapes
from .weights import check_size, count_left_out, entry_of, write_items, write_zeros

NAME = "openvino"
SUFFIXES = (".xml",)
DESCRIPTION = "OpenVINO IR, versions 10 and 11"
READS = "a .xml with its .bin beside it"
#: NNR has no topology format number for this format (Table 4).
TOPOLOGY = ""
NEEDS_TOPOLOGY = True

_BEGINNING = 1 << 16
#: Metadata key of the size of the ``.bin`` in bytes, if it does not end with the last constant.
_SIZE = "openvino:size"


def recognise(source: Path | BinaryIO) -> bool:
    """Return True if the content begins like the XML of an IR."""
    if isinstance(source, Path) and not source.is_file():
        return False
    with opened_file(source) as file:
        return is_ir(file.read(_BEGINNING))


def owns(topology: Topology) -> bool:
    """Return True if the topology is the XML of an IR."""
    return is_ir(topology.data[:_BEGINNING])


def wiring(topology: Topology) -> Wiring:
    """Return types, shapes and blocks of the constants. Raises FormatError or LimitError as :func:`read_constants`."""
    constants = read_constants(topology.data, Limits())
    return Wiring(
        {name: constant.shape for name, constant in constants.items()},
        lambda: find_blocks(flow(topology.data, constants)),
        {name: constant.stored.kind for name, constant in constants.items()},
    )


def channels(topology: Topology, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Channels, ...]:
    """Return the prunable channels of the network; ``shapes`` replace the shapes of constants.

    Raises FormatError or LimitError if the XML cannot be read.
    """
    data, constants = topology.data, read_constants(topology.data, Limits())
    if shapes:
        data = with_shapes(data, constants, shapes)
        constants = read_constants(data, Limits())
    return find_channels(flow(data, constants))


def load_topology(source: Path | BinaryIO, limits: Limits) -> Topology:
    """Return the XML of an IR, which needs no ``.bin``; raises the same errors as :func:`load`."""
    topology, _ = _read_xml(source, limits)
    return topology


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read an IR: the XML at a path, and the ``.bin`` of the same name. Tensors are read on access.

    Warns with FormatWarning if the ``.bin`` has nonzero bytes that no constant refers to; raises FormatError instead if
    ``strict``.

    Raises
    ------
    FormatError
        If the XML is malformed or of another version, the ``.bin`` is missing, or a constant is outside it.
    MissingDependencyError
        If a constant needs ``ml_dtypes``, which is not installed.
    LimitError
        If the IR exceeds the limits.
    """
    topology, constants = _read_xml(source, limits)
    if not isinstance(source, Path):
        raise FormatError("an OpenVINO IR has two files; give the path of the .xml, with the .bin in the same folder")
    budget, name = Budget(limits), source.with_suffix(".bin").name
    for constant in constants.values():
        budget.tensor(constant.shape, constant.stored.itemsize, f"constant {constant.name[:80]!a}")
        _ = constant.stored.dtype
    path = located(source, name, f"the file of weights {name!a}")
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        limits.check("max_archive_bytes", size, f"bytes of {name}")
        check_size(constants.values(), size)
        left_out = count_left_out(file, constants.values(), size)
        entries = {name: entry_of(constant) for name, constant in constants.items()}
        tensors = LazyTensors([(path, state(file))], entries)
    if left_out:
        message = f"{left_out:,} nonzero bytes of {name} belong to no constant"
        if strict:
            raise FormatError(f"{message} and would be lost")
        warnings.warn(f"{message}; they are written as 0", FormatWarning, stacklevel=3)
    metadata = {} if size == _end(constants) else {_SIZE: str(size)}
    return Model(tensors, topology, metadata=metadata, format=NAME)


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write an IR: the XML to the path, and the constants to the ``.bin`` of the same name.

    Warns with FormatWarning for data that is not written.

    Raises
    ------
    FormatError
        If the topology is not the XML of an IR, or a constant is missing or has another type or shape.
    """
    topology = model.topology
    check_topology(NAME, topology)
    assert topology is not None
    # The caller already has this XML in memory: its size is no reason to reject it.
    most, text = max(len(topology.data), Limits().max_topology_bytes), topology.data
    constants = read_constants(text, Limits(max_topology_bytes=most))
    if shapes := {name: described(model, name)[1] for name in model.pruned if name in constants and name in model}:
        text = with_shapes(text, constants, shapes)
        constants = read_constants(text, Limits(max_topology_bytes=2 * most))
    ordered = sorted(constants.values(), key=lambda constant: constant.offset)
    for constant in ordered:
        _check_fit(model, constant)
    size = _end(constants) if shapes else _size(model, constants)
    check_size(constants.values(), size)
    _warn_of_others(model, constants)
    warn_of_loss(model, "an OpenVINO IR", "topology", own=_SIZE)
    announce(model, [constant.name for constant in ordered])
    with output_files(path, overwrite=overwrite) as create:
        file, at = create(path.with_suffix(".bin").name), 0
        for constant in ordered:
            write_zeros(file, constant.offset - at)
            write_items(file, model.tensors[constant.name], constant.stored)
            at = constant.end
        write_zeros(file, size - at)
        create(path.name).write(text)


def _read_xml(source: Path | BinaryIO, limits: Limits) -> tuple[Topology, dict[str, IrConstant]]:
    data = read_text(source, limits)
    return Topology(TOPOLOGY, data), read_constants(data, limits)


def _end(constants: Mapping[str, IrConstant]) -> int:
    return max((constant.end for constant in constants.values()), default=0)


def _size(model: Model, constants: Mapping[str, IrConstant]) -> int:
    """Return the required size of the ``.bin`` in bytes."""
    text = model.metadata.get(_SIZE)
    if text is None:
        return _end(constants)
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise FormatError(f"the metadata has the invalid size {text[:40]!a} of the .bin")
    return int(text)


def _check_fit(model: Model, constant: IrConstant) -> None:
    """Raise FormatError unless the model has a constant with the type and shape in the XML."""
    what = f"{constant.stored.name} {list(constant.shape)}"
    if constant.name not in model.tensors:
        raise FormatError(f"the model has no tensor {constant.name[:80]!a}, which is a constant of the XML")
    dtype, shape = described(model, constant.name)
    if shape != constant.shape:
        raise FormatError(
            f"tensor {constant.name[:80]!a} has shape {list(shape)}; the XML says {what}; save it as .safetensors",
            tensor=constant.name,
        )
    if dtype.name != constant.stored.name:
        raise FormatError(
            f"tensor {constant.name[:80]!a} is {dtype}; the XML says {what}; omit --dtype (dtype=), or save it"
            " as .safetensors",
            tensor=constant.name,
        )


def _warn_of_others(model: Model, constants: Mapping[str, IrConstant]) -> None:
    others = [name for name in model if name not in constants]
    if others:
        message = f"tensors that are not constants of the XML are left out: {listed(others)}"
        warnings.warn(message, FormatWarning, stacklevel=4)
