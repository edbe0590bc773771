"""Check of an OpenVINO IR: its XML, the graph, and layers of opset1; the table of operations is in :mod:`operations`.

Layers of other operation sets are checked for ids, ports and edges only. Unknown extents (-1, ranges) and ports without
extents, which may be scalars or have an unknown rank, agree with everything. Values in the ``.bin`` are not read.
"""

from __future__ import annotations

import functools
import graphlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from ...errors import FormatError
from ...limits import Limits
from ..companion_files import located, opened
from ..findings import ModelFindings, ModelReport
from .ir import IrConstant, IrError, read_constants, read_text
from .layers import IrLayer, IrNetwork, Port, parse_layers
from .operations import OPERATIONS, Attribute, Operation
from .rules import RULES
from .shape_rules import MAX_RANK, Call, Fault, Shape, differ
from .weights import check_size

_INTEGER = re.compile("[+-]?[0-9]{1,18}")
_FLOAT = re.compile(r"[+-]?(?:(?:[0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(?:e[+-]?[0-9]{1,9})?|inf(?:inity)?|nan)")
_EXTENT = re.compile(r"-1|\?|[0-9]{1,18}|[0-9]{0,18}\.\.[0-9]{0,18}|\.\.\.")
_TYPE = re.compile("[iu][0-9]{1,3}|(?:n?f|bf)[0-9]{1,3}(?:e[0-9]m[0-9][a-z]{0,4})?|boolean|string")
#: Other spellings of element types; empty for an unknown type.
_TYPES = {
    **{"fp64": "f64", "fp32": "f32", "fp16": "f16", "bool": "boolean", "bin": "u1"},
    **dict.fromkeys(("dynamic", "undefined", "unspecified", "mixed"), ""),
}
# Maximum characters of a name, and items of a shape, in a message.
_LONGEST, _MOST_ITEMS = 60, 8


def validate(source: Path | BinaryIO, limits: Limits) -> ModelReport:
    """Check an IR: the XML at a path with the ``.bin`` of the same name, or the XML in a file.

    Raises LimitError if the XML exceeds the limits, and OSError if it cannot be read.
    """
    return _Validator(source if isinstance(source, Path) else None).run(read_text(source, limits), limits)


class _Validator:
    def __init__(self, path: Path | None) -> None:
        self.path, self.file = path, path.name if path else "model.xml"
        self.findings = ModelFindings(RULES, "OpenVINO")

    def run(self, data: bytes, limits: Limits) -> ModelReport:
        try:
            constants = read_constants(data, limits)
        except IrError as error:
            self.tell("ir-text", error.reason, error.place)
            return self.findings.end()
        except FormatError as error:
            self.tell("ir-text", error.message)
            return self.findings.end()
        self.data([*constants.values()])
        networks = [parse_layers(data)]
        if not networks[0].is_complete:
            self.tell("ir-limit", "the network has too many layers, ports, extents and edges to be checked")
            networks = []
        while networks:
            network = networks.pop()
            _NetworkChecker(network, self).run()
            networks += [body for layer in network.layers for body in layer.bodies]
        report = self.findings.end()
        report.variables = len(constants)
        return report

    def tell(self, rule: str, message: str, place: tuple[int, int] = (0, 0), clause: str = "") -> None:
        """Add a finding."""
        if self.findings.admit(rule):
            self.findings.add(rule, message, self.file, *place, clause)

    def data(self, constants: Sequence[IrConstant]) -> None:
        """Check the file of constants."""
        if self.path is None or not constants:
            return
        name = self.path.with_suffix(".bin").name
        try:
            with opened(located(self.path, name, f"the file of weights {name!a}")) as file:
                check_size(constants, os.fstat(file.fileno()).st_size)
        except FormatError as error:
            self.tell("ir-data", error.message)


class _NetworkChecker:
    """Checker of the net or of a body."""

    def __init__(self, network: IrNetwork, validator: _Validator) -> None:
        self.network, self.tell = network, validator.tell
        self.layers: dict[str, IrLayer] = {}
        self.types: dict[tuple[str, str], str] = {}  # types of inputs, by ids of layer and port
        self.unknown: set[tuple[str, str]] = set()  # inputs with a faulty edge

    def run(self) -> None:
        for layer in self.network.layers:
            if self.layers.setdefault(layer.id, layer) is not layer:
                self.tell("ir-layer-id", f"another layer has the id {layer.id[:_LONGEST]!a}", layer.place)
            self.ports(layer)
        self.edges()
        for layer in self.network.layers:
            operation = OPERATIONS.get(layer.type)
            if operation and layer.version in ("opset1", operation.opset):
                for rule, message in self.layer(layer, operation):
                    clause = f"{layer.version} {layer.type}"
                    self.tell(rule, f"{message} (layer {layer.name[:_LONGEST]!a})", layer.place, clause)
                if layer.type == "TensorIterator":
                    self.links(layer)
            elif layer.version == "opset1":
                what = f"{layer.type[:_LONGEST]!a} is not an operation of opset1"
                self.tell("ir-operation", f"{what}; the layer is not checked", layer.place)

    def ports(self, layer: IrLayer) -> None:
        """Check the ports of a layer."""
        for what, ports in (("inputs", layer.inputs), ("outputs", layer.outputs)):
            if len({port.id for port in ports}) < len(ports):
                self.tell("ir-port", f"two {what} have the same id", layer.place)
            for port in ports:
                where = f"port {port.id[:_LONGEST]!a}"
                if port.fault:
                    self.tell("ir-port", f"{port.fault!a} is not an extent ({where})", layer.place)
                if type_of(port.type) is None:
                    self.tell("ir-port", f"{port.type[:_LONGEST]!a} is not an element type ({where})", layer.place)

    def edges(self) -> None:
        """Check the edges, and find the types of inputs."""
        ends = {}
        for layer in self.layers.values():
            ends.update({(layer.id, port.id, False): port for port in layer.outputs})
            ends.update({(layer.id, port.id, True): port for port in layer.inputs})
        faulty, targets = set(), set()
        graph: dict[str, set[str]] = {}
        for (start, start_port, target, port), place in self.network.edges:
            one, other = ends.get((start, start_port, False)), ends.get((target, port, True))
            if one is None or other is None:
                kind, layer_id, port_id = ("output", start, start_port) if one is None else ("input", target, port)
                message = f"layer {layer_id[:_LONGEST]!a} has no {kind} {port_id[:_LONGEST]!a}"
                self.tell("ir-edge-port", message, place)
                faulty |= {target}
                continue
            if (target, port) in targets:
                self.tell("ir-input-edge", f"another edge ends at input {port[:_LONGEST]!a}", place)
            targets.add((target, port))
            graph.setdefault(target, set()).add(start)
            self.edge(one, other, (target, port), place)
        for layer in self.network.layers:
            for name in (port.id for port in layer.inputs):
                if (layer.id, name) not in targets and layer.id not in faulty:
                    self.tell("ir-input-edge", f"input {name[:_LONGEST]!a} has no edge", layer.place)
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            cycle = error.args[1]
            self.tell("ir-cycle", f"{len(cycle) - 1} layers form a cycle", self.layers[cycle[0]].place)

    def edge(self, start: Port, end: Port, target: tuple[str, str], place: tuple[int, int]) -> None:
        """Compare both ports of an edge."""
        types = [type_of(port.type) or "" for port in (start, end)]
        if all(types) and types[0] != types[1]:
            self.tell("ir-edge-type", f"the output is {types[0]}, but the input is {types[1]}", place)
            self.unknown.add(target)
        one, other = start.extents, end.extents
        if one and other and (len(one) != len(other) or any(map(differ, one, other))):
            message = f"the output has shape {shown(one)}, but the input has shape {shown(other)}"
            self.tell("ir-edge-shape", message, place)
            self.unknown.add(target)
        self.types[target] = types[1] or types[0]

    def links(self, layer: IrLayer) -> None:
        """Check the links between ports and the body of a layer, and between the iterations of the body."""
        if len(layer.bodies) != 1:
            self.tell("ir-body", f"the layer has {len(layer.bodies)} bodies, not 1", layer.place)
            return
        inputs, outputs = ({port.id for port in ports} for ports in (layer.inputs, layer.outputs))
        parameters, results = (
            {inner.id for inner in layer.bodies[0].layers if inner.type == type_} for type_ in ("Parameter", "Result")
        )
        ends = {
            "input": (("input", inputs), ("parameter", parameters)),
            "output": (("output", outputs), ("result", results)),
            "edge": (("result", results), ("parameter", parameters)),
        }
        for kind, *ids, place in layer.links:
            for id_, (what, known) in zip(ids, ends.get(kind, ()), strict=False):
                if id_ not in known:
                    self.tell("ir-body", f"there is no {what} {id_[:_LONGEST]!a}", place)

    def layer(self, layer: IrLayer, operation: Operation) -> Iterator[tuple[str, str]]:
        """Yield violated rules and messages of a layer; wrong counts or attributes hide other findings."""
        inputs, outputs = signature(operation.types)
        found = [
            *counts("ir-input-count", "inputs", len(layer.inputs), inputs),
            *counts("ir-output-count", "outputs", len(layer.outputs), outputs),
        ]
        attributes = {}
        for name, attribute in operation.attributes.items():
            text = next((layer.data[key] for key in (name, *attribute.aliases) if key in layer.data), None)
            if text is not None:
                if fault := attribute_fault(text, attribute):
                    found.append(("ir-attribute-value", f"{name} is {text[:_LONGEST]!a}, not {fault}"))
                attributes[name] = text
            elif attribute.default is not None:
                attributes[name] = attribute.default
            elif not (attribute.unless and attribute.unless in layer.data):
                found.append(("ir-attribute-missing", f"{layer.type} has no attribute {name!r}"))
        yield from found
        if found:
            return
        yield from self.element_types(layer, operation, inputs, outputs)
        places = [(layer.id, port.id) for port in layer.inputs]
        shapes = [
            None if place in self.unknown else shape_of(port) for place, port in zip(places, layer.inputs, strict=True)
        ]
        results = [shape_of(port) for port in layer.outputs]
        try:
            expected = operation.rule(Call(shapes, results, attributes))
        except Fault as fault:
            yield fault.rule, str(fault)
            return
        for k, (result, shape) in enumerate(zip(results, expected, strict=False)):
            if result is None or shape is None:
                continue
            if len(result) != len(shape) or any(map(differ, result, shape)):
                yield "ir-output-shape", f"output {k} has shape {shown(result)}, not {shown(shape)}"

    def element_types(
        self, layer: IrLayer, operation: Operation, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Iterator[tuple[str, str]]:
        """Yield violated rules of the types of ports."""
        bound: dict[str, str] = {}
        for what, ports, tokens in (("input", layer.inputs, inputs), ("output", layer.outputs, outputs)):
            for k, port in enumerate(ports):
                place, type_ = (layer.id, port.id), type_of(port.type) or ""
                if what == "input":
                    type_ = "" if place in self.unknown else self.types.get(place, type_)
                kind = tokens[min(k, len(tokens) - 1)][0]
                if not type_:
                    continue
                if not is_kind(type_, kind.lower()):
                    yield f"ir-{what}-type", f"{what} {k} is {type_}, not {_KINDS[kind.lower()]}"
                elif kind.isupper() and bound.setdefault(kind, type_) != type_:
                    message = f"{what} {k} is {type_}, but must have the type of another port, {bound[kind]}"
                    yield f"ir-{what}-type", message
        for name, attribute in operation.attributes.items():
            given, port_type = type_of(layer.data.get(name, "")), type_of(layer.outputs[0].type)
            if attribute.kind == "type" and given and port_type and given != port_type:
                yield "ir-output-type", f"output 0 is {port_type}, but {name} is {given}"


_KINDS = {"f": "a float", "i": "an integer", "b": "a boolean", "n": "a number", "a": "a type", "*": "a type"}


def is_kind(type_: str, kind: str) -> bool:
    """Return whether an element type is of a kind, a letter in ``types`` of :class:`Operation`."""
    if kind == "f":
        return type_.startswith(("f", "bf", "nf"))
    if kind == "i":
        return type_[0] in "iu"
    if kind == "b":
        return type_ == "boolean"
    return kind != "n" or type_ not in ("boolean", "string")


@functools.lru_cache
def signature(types: str) -> tuple[list[str], list[str]]:
    """Return the types of inputs and outputs in a string of :class:`Operation`."""
    inputs, _, outputs = types.partition("->")
    return inputs.split(), outputs.split()


def counts(rule: str, what: str, count: int, ports: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a finding unless a number of ports is permitted; only the first output is required."""
    required = sum("?" not in port for port in ports)
    least, is_open = required if what == "inputs" else min(1, required), any("+" in port for port in ports)
    if count < least or (count > len(ports) and not is_open):
        exact = f"{least}" if least == len(ports) else f"{least} to {len(ports)}"
        yield rule, f"the number of {what} is {count}, not {'one or more' if is_open else exact}"


def type_of(text: str) -> str | None:
    """Return the name of an element type; empty if it is unknown, None if the text is not one."""
    text = text.strip().lower()
    text = _TYPES.get(text, text)
    return text if not text or _TYPE.fullmatch(text) else None


def shape_of(port: Port) -> Shape | None:
    """Return the shape of a port; None if its rank is unknown or too large."""
    return tuple(port.extents) if 0 < len(port.extents) <= MAX_RANK else None


def attribute_fault(text: str, attribute: Attribute) -> str:
    """Return a description of the permitted values if a text is not one of them; otherwise an empty text."""
    kind = attribute.kind
    if kind == "type":
        return "an element type" if type_of(text) is None else ""
    if kind == "shape":
        text = text.strip().removeprefix("[").removesuffix("]").removeprefix("{").removesuffix("}")
    items = [item.strip().lower() for item in (text.split(",") if attribute.is_list or kind == "shape" else [text])]
    if items == [""] and (attribute.is_list or kind == "shape"):
        return ""
    if kind == "shape":
        return "" if all(_EXTENT.fullmatch(item) for item in items) else "a shape"
    if kind == "bool":
        return "" if items[0] in ("true", "false", "1", "0") else "true or false"
    if kind == "text":
        return "" if all(item in attribute.values for item in items) else "one of " + ", ".join(attribute.values)
    form, name = (_INTEGER, "an integer") if kind == "int" else (_FLOAT, "a number")
    name = f"a list of {name.split()[1]}s" if attribute.is_list else name
    if not all(form.fullmatch(item) for item in items):
        return name
    if any(float(item) < attribute.least for item in items):
        return f"{name} of at least {attribute.least:g}"
    return ""


def shown(shape: Sequence[int]) -> str:
    """Return a shape for a message, with ? for unknown extents."""
    items = [str(extent) if extent else "?" for extent in shape[:_MOST_ITEMS]]
    return f"[{', '.join(items + ['…'] * (len(shape) > _MOST_ITEMS))}]"
