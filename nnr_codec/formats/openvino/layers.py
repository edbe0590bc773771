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
#: Limit on layers, ports, dimensions and edges of a net; large language models have 200,000.
MOST = 500_000
# Depth in the XML of layers of the net, their children, ports and dimensions.
_LAYER, _DATA, _PORT, _DIM = 3, 4, 5, 6


@dataclass(slots=True, eq=False)
class Port:
    """Input or output of a layer: extents (0 if unknown), and the byte offset of each dimension in the XML."""

    id: str
    extents: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class IrLayer:
    """Layer of the net. Layers in its bodies are omitted."""

    id: str
    type: str
    version: str
    data: Mapping[str, str] = field(default_factory=dict)
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)

    def is_true(self, attribute: str) -> bool:
        """Return True if an attribute of the layer's data is true."""
        return self.data.get(attribute, "").lower() in ("true", "1")


@dataclass
class IrNetwork:
    """Layers of a net in the order of the XML.

    Parameters
    ----------
    layers : list of IrLayer
    sources : dict of (str, str) to (str, str)
        Ids of the layer and port that each input is connected to, by ids of the input's layer and port.
    constants : list of (int, dict)
        Byte offset and attributes of the ``data`` of all constants, including those in bodies.
    """

    layers: list[IrLayer] = field(default_factory=list)
    sources: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    constants: list[tuple[int, Mapping[str, str]]] = field(default_factory=list)


def range_of(attributes: Mapping[str, str]) -> tuple[int, int]:
    """Return the position of a constant in the ``.bin``: offset and number of bytes; (0, 0) if it is not stated."""
    offset, size = (attributes.get(name, "") for name in ("offset", "size"))
    return (int(offset), int(size)) if _NUMBER.fullmatch(offset) and _NUMBER.fullmatch(size) else (0, 0)


def read_layers(data: bytes) -> IrNetwork:
    """Return the layers of an IR.

    Returns constants only if the net exceeds a limit, two layers have the same id, or an input has two sources.
    """
    reader = _LayerReader()
    reader.parser.Parse(data, True)
    network = reader.network
    ids = {layer.id for layer in network.layers}
    if reader.is_full or len(ids) < len(network.layers) or len(network.sources) < reader.edges:
        return IrNetwork(constants=network.constants)
    return network


class _LayerReader:
    def __init__(self) -> None:
        self.network, self.edges, self.count = IrNetwork(), 0, 0
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
        depth = len(self.path)
        if tag == "layer" and parent == "layers":
            self.types.append(attributes.get("type", ""))
        elif tag == "data" and parent == "layer" and self.types and self.types[-1] in CONSTANTS:
            self.network.constants.append((self.parser.CurrentByteIndex, attributes))
        self.count += tag in ("layer", "port", "dim", "edge")
        if self.is_full:
            return
        if depth < _LAYER or self.path[1] != "layers":
            if depth == _LAYER and tag == "edge" and parent == "edges":
                self.edge(attributes)
            return
        if depth == _LAYER and tag == "layer":
            id_, type_, version = (attributes.get(name, "") for name in ("id", "type", "version"))
            self.network.layers.append(IrLayer(id_, type_, version))
        elif not self.network.layers:
            return
        elif depth == _DATA:
            layer = self.network.layers[-1]
            self.ports = {"input": layer.inputs, "output": layer.outputs}.get(tag)
            if tag == "data":
                layer.data = attributes
        elif depth == _PORT and tag == "port" and self.ports is not None:
            self.ports.append(Port(attributes.get("id", "")))
        elif depth == _DIM and tag == "dim" and self.ports:
            self.ports[-1].places.append(self.parser.CurrentByteIndex)
            self.text = ""

    @property
    def is_full(self) -> bool:
        """True if the net exceeds the limit."""
        return self.count > MOST

    def edge(self, attributes: Mapping[str, str]) -> None:
        source, port, target, to = (
            attributes.get(name, "") for name in ("from-layer", "from-port", "to-layer", "to-port")
        )
        self.network.sources[target, to] = source, port
        self.edges += 1

    def characters(self, text: str) -> None:
        if len(self.path) == _DIM and len(self.text) < 20:
            self.text += text

    def end(self, tag: str) -> None:
        depth = len(self.path)
        if depth == _DIM and tag == "dim" and self.ports and not self.is_full:
            port, text = self.ports[-1], self.text.strip()
            if len(port.extents) < len(port.places):
                port.extents.append(int(text) if _NUMBER.fullmatch(text) else 0)
        self.path.pop()
        if tag == "layer" and self.path[-1:] == ["layers"]:
            self.types.pop()
