"""Reader of the layers and edges of an OpenVINO IR, and of the positions of shapes in the XML.

The XML must have passed :func:`.ir.read_constants`, which checks its limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from .ir import CONSTANTS

_NUMBER = re.compile("[0-9]{1,18}")
_UNKNOWN = re.compile(r"-1|\?|[0-9]*\.\.[0-9]*|")
#: Limit on layers, ports, dimensions and edges of a net; large language models have 200,000.
MOST = 500_000
# Depth in a net or body of its layers, their children, ports (or the layers of a body), and dimensions.
_LAYER, _DATA, _PORT, _DIM = 3, 4, 5, 6
# Elements that link a body, and the attributes of their entries.
_LINKS = {"port_map": ("external_port_id", "internal_layer_id"), "back_edges": ("from-layer", "to-layer")}


@dataclass(slots=True, eq=False)
class Port:
    """Input or output of a layer: element type as written, extents (0 if unknown), byte offsets of dimensions.

    ``fault`` is the beginning of a text that is not an extent.
    """

    id: str
    type: str = ""
    fault: str = ""
    extents: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class IrLayer:
    """Layer of a network, with its line and column in the XML, from 1, and the networks in its bodies.

    ``links`` are the entries of the port map of a body (``input`` or ``output``, ids of the port and of the layer in
    the body) and its back edges (``edge``, ids of both layers), each with line and column.
    """

    id: str
    name: str
    type: str
    version: str
    place: tuple[int, int]
    data: Mapping[str, str] = field(default_factory=dict)
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    bodies: list[IrNetwork] = field(default_factory=list)
    links: list[tuple[str, str, str, tuple[int, int]]] = field(default_factory=list)

    def is_true(self, attribute: str) -> bool:
        """Return True if an attribute of the layer's data is true."""
        return self.data.get(attribute, "").lower() in ("true", "1")


@dataclass
class IrNetwork:
    """Layers of a net or body in the order of the XML.

    Parameters
    ----------
    layers : list of IrLayer
    edges : list of (tuple of str, tuple of int)
        Ids of the layer and port at the start and at the end of each edge, and its line and column in the XML.
    sources : dict of (str, str) to (str, str)
        Ids of the layer and port that each input is connected to, by ids of the input's layer and port.
    constants : list of (int, dict)
        Byte offset and attributes of the ``data`` of all constants of the net, including constants in bodies.
    is_complete : bool
        False if the net exceeds :data:`MOST`, so that layers, edges or ports are missing.
    """

    layers: list[IrLayer] = field(default_factory=list)
    edges: list[tuple[tuple[str, str, str, str], tuple[int, int]]] = field(default_factory=list)
    sources: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    constants: list[tuple[int, Mapping[str, str]]] = field(default_factory=list)
    is_complete: bool = True


def range_of(attributes: Mapping[str, str]) -> tuple[int, int]:
    """Return the position of a constant in the ``.bin``: offset and number of bytes; (0, 0) if it is not stated."""
    offset, size = (attributes.get(name, "") for name in ("offset", "size"))
    return (int(offset), int(size)) if _NUMBER.fullmatch(offset) and _NUMBER.fullmatch(size) else (0, 0)


def read_layers(data: bytes) -> IrNetwork:
    """Return the layers of an IR.

    Returns constants only if the net exceeds a limit, two layers have the same id, or an input has two sources.
    """
    network = parse_layers(data)
    ids = {layer.id for layer in network.layers}
    if not network.is_complete or len(ids) < len(network.layers) or len(network.sources) < len(network.edges):
        return IrNetwork(constants=network.constants)
    return network


def parse_layers(data: bytes) -> IrNetwork:
    """Return the layers of an IR as far as the limit permits, even if ids or edges are ambiguous."""
    reader = _LayerReader()
    reader.parser.Parse(data, True)
    return reader.network


class _LayerReader:
    def __init__(self) -> None:
        self.network, self.count = IrNetwork(), 0
        self.nets = [(0, self.network)]  # the net and the bodies around this position, with their depths in the XML
        self.path: list[str] = []
        self.types: list[str] = []  # types of the enclosing layers
        self.ports: list[Port] | None = None
        self.text = ""
        self.parser = expat.ParserCreate("utf-8", intern={})
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        parent = self.path[-1] if self.path else ""
        self.path.append(tag)
        if tag == "layer" and parent == "layers":
            self.types.append(attributes.get("type", ""))
        elif tag == "data" and parent == "layer" and self.types and self.types[-1] in CONSTANTS:
            self.network.constants.append((self.parser.CurrentByteIndex, attributes))
        self.count += tag in ("layer", "port", "dim", "edge") or parent == "port_map"
        if self.count > MOST:
            self.network.is_complete = False
            return
        base, network = self.nets[-1]
        depth = len(self.path) - base
        if depth < _LAYER or self.path[base + 1] != "layers":
            if depth == _LAYER and tag == "edge" and parent == "edges":
                self.edge(network, attributes)
            return
        if depth == _LAYER and tag == "layer":
            id_, name, type_, version = (attributes.get(key, "") for key in ("id", "name", "type", "version"))
            network.layers.append(IrLayer(id_, name, type_, version, self.place))
        elif not network.layers:
            return
        elif depth == _DATA:
            layer = network.layers[-1]
            self.ports = {"input": layer.inputs, "output": layer.outputs}.get(tag)
            if tag == "data":
                layer.data = attributes
        elif depth == _PORT and tag == "layers":
            body = IrNetwork()
            network.layers[-1].bodies.append(body)
            self.nets.append((len(self.path) - 2, body))
        elif depth == _PORT and parent in _LINKS:
            one, other = (attributes.get(name, "") for name in _LINKS[parent])
            network.layers[-1].links.append((tag, one, other, self.place))
        elif depth == _PORT and tag == "port" and self.ports is not None:
            self.ports.append(Port(attributes.get("id", ""), attributes.get("precision", "")))
        elif depth == _DIM and tag == "dim" and self.ports:
            self.ports[-1].places.append(self.parser.CurrentByteIndex)
            self.text = ""

    @property
    def place(self) -> tuple[int, int]:
        """Line and column in the XML, from 1."""
        return self.parser.CurrentLineNumber, self.parser.CurrentColumnNumber + 1

    def edge(self, network: IrNetwork, attributes: Mapping[str, str]) -> None:
        source, port, target, to = (
            attributes.get(name, "") for name in ("from-layer", "from-port", "to-layer", "to-port")
        )
        network.sources[target, to] = source, port
        network.edges.append(((source, port, target, to), self.place))

    def characters(self, text: str) -> None:
        if self.path[-1] == "dim" and len(self.text) < 20:
            self.text += text

    def end(self, tag: str) -> None:
        base, _ = self.nets[-1]
        depth = len(self.path) - base
        if depth == _DIM and tag == "dim" and self.ports and self.network.is_complete:
            port, text = self.ports[-1], self.text.strip()
            if len(port.extents) < len(port.places):
                is_known = _NUMBER.fullmatch(text)
                port.extents.append(int(text) if is_known else 0)
                if not is_known and not _UNKNOWN.fullmatch(text):
                    port.fault = text[:20]
        self.path.pop()
        if tag == "layer" and self.path[-1:] == ["layers"]:
            self.types.pop()
        if depth == 1 and base:
            self.nets.pop()
            self.ports = None
