"""Folders for the OpenVX neural network extension 1.2.1: one file per tensor, their dimensions, and a client in C.

Write-only, for any model whose floats are Q7.8, 16-bit fixed-point numbers with 8 fraction bits, as produced by the
option ``fixed_point``. The memory layout of the extension is row-major, with dimensions in reverse order.
``tensors.json`` has the arguments of vxCreateTensor; ``client.h`` and ``client.c`` create and load the tensors, and
build the layers of an NNEF graph with the functions of the extension.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...files import output_directory
from ...limits import Limits
from ...model import Model
from .. import FormatWarning, announce
from ..nnef.graph import parse_graph
from .builder import build, vectors_of
from .client import client_source, header_source
from .network import Network, Parameters
from .tensors import VxTensor, describe, write_tensor

NAME = "openvx"
SUFFIXES = (".openvx",)
DESCRIPTION = "OpenVX neural network extension 1.2.1: tensors, and a client in C"
READS = ""

#: File that identifies such a folder.
MARKER = "tensors.json"
#: Maximum number of names in a warning, and of characters of each.
LISTED, LONGEST = 8, 200


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write a folder; a FormatWarning reports a missing NNEF graph, or operations without a layer.

    Batch normalizations that only add an offset become biases, and their tensors are omitted.

    Raises FormatError, naming the tensor, for floats that are not exactly Q7.8, for types other than int8 and uint8,
    and for empty tensors; also for a malformed graph.
    """
    network = _network(model)
    tensors = describe(model, network)
    with output_directory(path, overwrite=overwrite, marker=MARKER) as folder:
        for tensor in tensors:
            with open(folder / tensor.file, "xb") as file:
                write_tensor(file, model.tensors[tensor.name], tensor)
        texts = {
            MARKER: json.dumps(_description(tensors, network), indent=1) + "\n",
            "client.h": header_source(tensors, network),
            "client.c": client_source(tensors, network),
        }
        for name, text in texts.items():
            (folder / name).write_bytes(text.encode("ascii"))


def _network(model: Model) -> Network:
    """Return the layers of a model's graph; empty without a graph."""
    topology = model.topology
    if topology is None or topology.format != "nnef":
        _warn("the model has no NNEF graph: the client loads the tensors, but builds no layers")
        announce(model, model)
        return Network()
    graph, parameters = parse_graph(topology.data, Limits.unlimited()), Parameters(model)
    vectors = vectors_of(graph, parameters)
    announce(model, [*vectors, *model])
    network = build(graph, parameters, {name: model.tensors[name] for name in vectors})
    if network.left:
        _warn(
            "the client omits operations that the extension does not support; add them to the graph: "
            + _listed(f"{called} ({count})" for called, count in network.left.items())
        )
    return network


def _warn(message: str) -> None:
    """Issue a warning for the caller of :func:`nnr_codec.formats.save`."""
    warnings.warn(message, FormatWarning, stacklevel=5)


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(name[:LONGEST] for name in names[:LISTED]) + more


def _description(tensors: list[VxTensor], network: Network) -> dict[str, Any]:
    """Return the content of ``tensors.json``."""
    signals = network.signals
    return {
        "extension": "OpenVX neural network extension 1.2.1",
        "tensors": [
            {"name": tensor.name, "file": tensor.file, **tensor.created(), "is_turned": tensor.turned}
            for tensor in tensors
        ],
        "inputs": [{"name": signals[k].name, **signals[k].created()} for k in network.inputs],
        "outputs": [{"name": signals[k].name, **signals[k].created()} for k in network.outputs],
        "is_complete": network.is_complete,
    }
