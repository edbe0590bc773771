"""Folders for the OpenVX neural network extension 1.2.1: a file for each tensor, their dimensions, a client in C.

Written only, and from any model whose floats are Q7.8, fixed-point numbers of 16 bits with 8 for the fraction, which
``fixed_point`` of the encoder makes them. The memory layout of the extension is that of row-major arrays, its order of
dimensions the reverse. ``tensors.json`` says what vxCreateTensor has to be told; ``client.h`` and ``client.c`` create
and load the tensors, and build the layers of an NNEF graph with the functions of the extension.
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

#: The file by which a folder is known as one of these.
MARKER = "tensors.json"
#: How many names a warning tells, and how many characters of each.
LISTED, LONGEST = 8, 200


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write a folder; without an NNEF graph, or with operations that have no layer, a FormatWarning says so.

    Batch normalizations that add an offset and nothing else become biases, and their tensors are left out.

    Raises FormatError, which names the tensor, for floats that are not exactly Q7.8, and for other types but int8 and
    uint8; for tensors without elements; and for a graph that is malformed.
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
    """The layers of a model's graph; none where it has none."""
    topology = model.topology
    if topology is None or topology.format != "nnef":
        _warn("there is no NNEF graph: the client creates and loads the tensors, and builds no layers")
        announce(model, model)
        return Network()
    graph, parameters = parse_graph(topology.data, Limits.unlimited()), Parameters(model)
    vectors = vectors_of(graph, parameters)
    announce(model, [*vectors, *model])
    network = build(graph, parameters, {name: model.tensors[name] for name in vectors})
    if network.left:
        _warn(
            "what the extension has no function for, or not with these arguments, is left to whoever uses the client: "
            + _listed(f"{called} ({count})" for called, count in network.left.items())
        )
    return network


def _warn(message: str) -> None:
    """Warn whoever called :func:`nnr_codec.formats.save`."""
    warnings.warn(message, FormatWarning, stacklevel=5)


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(name[:LONGEST] for name in names[:LISTED]) + more


def _description(tensors: list[VxTensor], network: Network) -> dict[str, Any]:
    """The content of ``tensors.json``."""
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
