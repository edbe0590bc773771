"""Folders for the OpenVX neural network extension 1.2.1: one file per tensor, their dimensions, and a client in C.

Write-only, for any model whose floats are Q7.8, 16-bit fixed-point numbers with 8 fraction bits, as produced by the
option ``fixed_point``. The memory layout of the extension is row-major, with dimensions in reverse order.
``tensors.json`` has the arguments of vxCreateTensor; ``client.h`` and ``client.c`` create and load the tensors, and
build the layers of an NNEF or ONNX graph with the functions of OpenVX.
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
from ...topology.graph import Graph
from .. import FormatWarning, announce, described
from ..nnef.dataflow import flow
from ..nnef.graph import parse_graph, with_shapes
from ..onnx.exact import exact_flow
from .builder import build, vectors_of
from .client import client_source, header_source
from .network import Network, Parameters
from .tensors import VxTensor, describe, write_tensor

NAME = "openvx"
SUFFIXES = (".openvx",)
DESCRIPTION = "OpenVX neural network extension 1.2.1: tensors, and a client in C"
READS = ""

#: File that identifies a folder of this format.
MARKER = "tensors.json"
#: Maximum number of names in a warning, and of characters of each.
LISTED, LONGEST = 8, 200


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write a folder; a FormatWarning reports a missing graph, or operations without a layer.

    Batch normalizations that only add an offset become biases; others become factors and offsets. The tensors that they
    replace are omitted.

    Raises FormatError, naming the tensor, for floats that are not exactly Q7.8, for types other than int8 and uint8,
    and for empty tensors; also for a malformed graph.
    """
    network = _network(model)
    tensors = describe(model, network)
    with output_directory(path, overwrite=overwrite, marker=MARKER) as folder:
        for tensor in tensors:
            with open(folder / tensor.file, "xb") as file:
                derived = network.derived.get(tensor.name)
                write_tensor(file, model.tensors[tensor.name] if derived is None else derived, tensor)
        texts = {
            MARKER: json.dumps(_description(tensors, network), indent=1) + "\n",
            "client.h": header_source(tensors, network),
            "client.c": client_source(tensors, network),
        }
        for name, text in texts.items():
            (folder / name).write_bytes(text.encode("ascii"))


def _network(model: Model) -> Network:
    """Return the layers of a model's graph; empty without a graph."""
    graph, parameters = _graph(model), Parameters(model)
    if graph is None:
        _warn("the model has no NNEF or ONNX graph: the client loads the tensors, but builds no layers")
        announce(model, model)
        return Network()
    vectors = vectors_of(graph, parameters)
    announce(model, [*vectors, *model])
    network = build(graph, parameters, {name: model.tensors[name] for name in vectors})
    if network.left:
        _warn(
            "the client omits operations that OpenVX does not support; add them to the graph: "
            + _listed(f"{called} ({count})" for called, count in network.left.items())
        )
    return network


def _graph(model: Model) -> Graph | None:
    """Return the graph of a model with all arguments of its operations; None for formats other than NNEF and ONNX."""
    topology, limits = model.topology, Limits.unlimited()
    if topology is None:
        return None
    shapes = {name: described(model, name)[1] for name in model.pruned if name in model.tensors}
    if topology.format == "nnef":
        graph = parse_graph(topology.data, limits)
        if shapes:
            folded = {name.casefold(): shape for name, shape in shapes.items()}
            graph = parse_graph(with_shapes(topology.data, graph, folded), limits)
        return flow(graph, whole=True)
    return exact_flow(topology.data, shapes) if topology.format == "onnx" else None


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
