"""Reader of the tensors and nodes of a serialized ModelProto.

Tensors are dense and sparse initializers and values of Constant nodes in the main graph, its subgraphs, functions and
training graphs. Their items are in ``raw_data``, in the field of their type, or in another file. Some tensors stay in
the graph:

- values that describe structure: scalars, up to 16 integers or booleans, and up to 16 items of a Constant;
- types outside :data:`.tensor.TYPES`;
- encodings that no protocol buffer serializer writes.

Initializers keep their names. A Constant has the name of its output, and the indices of a sparse tensor have a suffix.
Names in subgraphs begin with node and attribute, names in functions with the function. A numeric suffix makes repeated
names unique.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ...errors import FormatError
from ...limits import Budget, Limits
from ..protobuf import FIXED32, LENGTH, VARINT, Field, MessageSource, signed
from .layout import Layout, Length, Slot
from .proto import (
    ConstantTensor,
    check_inside,
    constant_of,
    extents_of,
    integers,
    number,
    once,
    patches_of,
    read_tensor,
)

#: Operations that blocks consist of.
FOLLOWED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "BatchNormalization", "Transpose")

_MAX_DEPTH = 32  # nested graphs
_MAX_NODES = 500_000
_MAX_EACH = 1 << 16  # inputs, outputs and attributes of a node; graphs and integers of an attribute
_MAX_WORD = 64  # bytes of a string attribute that are read
_ONNX = ("", "ai.onnx")


class _Model:
    """Field numbers of a ModelProto."""

    IR_VERSION, GRAPH, OPSET_IMPORT, TRAINING_INFO, FUNCTIONS = 1, 7, 8, 20, 25


class _Graph:
    """Field numbers of a GraphProto."""

    NODE, INITIALIZER, INPUT, OUTPUT, SPARSE_INITIALIZER = 1, 5, 11, 12, 15


class _Node:
    """Field numbers of a NodeProto."""

    INPUT, OUTPUT, NAME, OP_TYPE, ATTRIBUTE, DOMAIN = 1, 2, 3, 4, 5, 7


class _Attribute:
    """Field numbers of an AttributeProto."""

    NAME, FLOAT, INT, STRING, T, G, INTS, TENSORS, GRAPHS = 1, 2, 3, 4, 5, 6, 8, 10, 11
    SPARSE_TENSOR, SPARSE_TENSORS = 22, 23


class _Function:
    """Field numbers of a FunctionProto."""

    NAME, NODE, DOMAIN, OVERLOAD = 1, 7, 10, 13


# Field numbers of the graphs of a TrainingInfoProto.
_TRAINING = {1: "initialization", 2: "algorithm"}
# Field numbers of ValueInfoProto, TensorProto, SparseTensorProto and OperatorSetIdProto.
_VALUE_NAME, _TENSOR_NAME, _VALUES, _INDICES, _OPSET_DOMAIN, _OPSET_VERSION = 1, 8, 1, 2, 1, 2


@dataclass
class OnnxNode:
    """Operation of the main graph; ``operation`` is empty for operators of other domains than ONNX."""

    operation: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: dict[str, int | float | str | list[int]] = field(default_factory=dict)


@dataclass
class OnnxGraph:
    """Tensors and nodes of a model.

    Parameters
    ----------
    layout : Layout
        Positions of the tensors in the serialized model.
    nodes : list of OnnxNode
        Nodes of the main graph, in order: operations in :data:`FOLLOWED`, or all.
    values : dict of str to Slot
        Dense tensors of the main graph, by the value names of its nodes.
    uses : Counter of str
        Number of uses of each value as a node input or graph output, in all graphs.
    inputs : set of str
        Inputs of the main graph.
    outputs : list of str
        Outputs of the main graph.
    constants : dict of str to ConstantTensor
        Small tensors of the main graph that stay in it; only with ``whole``.
    extents : dict of str to tuple of int
        Declared shapes of the inputs, with 0 for an unknown extent; only with ``whole``.
    ir_version, opset : int
    """

    layout: Layout
    nodes: list[OnnxNode] = field(default_factory=list)
    values: dict[str, Slot] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)
    inputs: set[str] = field(default_factory=set)
    outputs: list[str] = field(default_factory=list)
    constants: dict[str, ConstantTensor] = field(default_factory=dict)
    extents: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ir_version: int = 0
    opset: int = 0


def read_graph(source: MessageSource, limits: Limits, *, whole: bool = False) -> OnnxGraph:
    """Read a model. With ``whole``, keep all nodes of the main graph and its small constants.

    Raises
    ------
    FormatError
        If the model is malformed, or the data of a tensor does not fit its shape and type.
    LimitError
        If the model exceeds the limits.
    """
    walker = _Walker(source, limits, whole)
    walker.model()
    walker.graph.layout.patches.sort(key=lambda patch: patch.start)
    return walker.graph


class _Walker:
    def __init__(self, source: MessageSource, limits: Limits, whole: bool) -> None:
        self.source, self.limits, self.budget, self.whole = source, limits, Budget(limits), whole
        self.graph = OnnxGraph(Layout(source.size))
        self.nodes = 0
        self.taken: Counter[str] = Counter()

    def within(self, found: Field, walk: Callable[[Field], None]) -> None:
        """Walk through a message. If a tensor in it is removed, record that its length must be rewritten."""
        if found.wire != LENGTH:
            raise FormatError(f"field {found.number} at byte {found.start} is not a message")
        patches = self.graph.layout.patches
        before = len(patches)
        walk(found)
        if len(patches) > before:
            patches.append(Length(found.value, found.body, found.end))

    def collect(self, parts: list[Field], found: Field) -> None:
        parts.append(found)
        if len(parts) > _MAX_EACH:
            raise FormatError(f"more than {_MAX_EACH:,} values of field {found.number}, at byte {found.start}")

    def name_in(self, found: Field, place: int) -> str:
        """Return the name in a message: its field number ``place``."""
        if found.wire != LENGTH:
            raise FormatError(f"field {found.number} at byte {found.start} is not a message")
        name = ""
        for part in self.source.fields(found.body, found.end):
            if part.number == place:
                name = self.source.text(part)
        return name

    # -------------------------------------------------------------------------------------------- graphs
    def model(self) -> None:
        seen: dict[int, Field] = {}
        others: list[Field] = []
        for part in self.source.fields(0, self.source.size):
            if part.number == _Model.IR_VERSION:
                self.graph.ir_version = number(part)
            elif part.number == _Model.OPSET_IMPORT:
                self.opset(part)
            elif part.number == _Model.GRAPH:
                once(seen, part)
            elif part.number in (_Model.FUNCTIONS, _Model.TRAINING_INFO):
                self.collect(others, part)
        if _Model.GRAPH not in seen:
            raise FormatError("the ModelProto has no graph")
        self.within(seen[_Model.GRAPH], partial(self.inner, prefix="", depth=0))
        for place, part in enumerate(others):
            walk = self.function if part.number == _Model.FUNCTIONS else partial(self.training, place=place)
            self.within(part, walk)

    def training(self, found: Field, place: int) -> None:
        """Read a TrainingInfoProto."""
        for part in self.source.fields(found.body, found.end):
            if part.number in _TRAINING:
                prefix = f"training_info/{place}/{_TRAINING[part.number]}/"
                self.within(part, partial(self.inner, prefix=prefix, depth=1))

    def opset(self, found: Field) -> None:
        if found.wire != LENGTH:
            raise FormatError(f"field {found.number} at byte {found.start} is not a message")
        domain, version = "", 0
        for part in self.source.fields(found.body, found.end):
            if part.number == _OPSET_DOMAIN:
                domain = self.source.text(part)
            elif part.number == _OPSET_VERSION:
                version = number(part)
        if domain in _ONNX:
            self.graph.opset = version

    def inner(self, found: Field, prefix: str, depth: int) -> None:
        """Read a GraphProto."""
        if depth > _MAX_DEPTH:
            raise FormatError(f"graphs are nested deeper than {_MAX_DEPTH}")
        node = partial(self.node, prefix=prefix, depth=depth)
        tensor = partial(self.tensor, prefix=prefix, is_value=not depth)
        for part in self.source.fields(found.body, found.end):
            if part.number == _Graph.NODE:
                self.within(part, node)
            elif part.number == _Graph.INITIALIZER:
                self.within(part, tensor)
            elif part.number == _Graph.SPARSE_INITIALIZER:
                self.within(part, partial(self.sparse, prefix=prefix))
            elif part.number == _Graph.OUTPUT:
                name = self.name_in(part, _VALUE_NAME)
                self.graph.uses[name] += 1
                if not depth:
                    self.graph.outputs.append(name)
            elif part.number == _Graph.INPUT and not depth:
                name = self.name_in(part, _VALUE_NAME)
                self.graph.inputs.add(name)
                if self.whole:
                    self.graph.extents[name] = extents_of(self.source, part, self.limits)

    def function(self, found: Field) -> None:
        """Read a FunctionProto."""
        seen: dict[int, Field] = {}
        for part in self.source.fields(found.body, found.end):
            if part.number in (_Function.NAME, _Function.DOMAIN, _Function.OVERLOAD):
                once(seen, part)
        names = {place: self.source.text(part) for place, part in seen.items()}
        order = (_Function.DOMAIN, _Function.NAME, _Function.OVERLOAD)
        prefix = ":".join(names[place] for place in order if names.get(place))
        for part in self.source.fields(found.body, found.end):
            if part.number == _Function.NODE:
                self.within(part, partial(self.node, prefix=f"{prefix}/", depth=1))

    # -------------------------------------------------------------------------------------------- nodes
    def node(self, found: Field, prefix: str, depth: int) -> None:
        """Read a NodeProto. Tensors in its attributes get the node's name, or its first output, as prefix."""
        self.nodes += 1
        if self.nodes > _MAX_NODES:
            raise FormatError(f"more than {_MAX_NODES:,} nodes")
        seen: dict[int, Field] = {}
        inputs: list[Field] = []
        outputs: list[Field] = []
        attributes: list[Field] = []
        lists = {_Node.INPUT: inputs, _Node.OUTPUT: outputs, _Node.ATTRIBUTE: attributes}
        for part in self.source.fields(found.body, found.end):
            if part.number in lists:
                self.collect(lists[part.number], part)
            elif part.number in (_Node.NAME, _Node.OP_TYPE, _Node.DOMAIN):
                once(seen, part)
        text = self.source.text
        node = OnnxNode("", [text(part) for part in inputs], [text(part) for part in outputs])
        uses = self.graph.uses
        for value in node.inputs:
            uses[value] = uses.get(value, 0) + 1  # Counter.update is slower for few inputs
        if _Node.OP_TYPE in seen and (_Node.DOMAIN not in seen or text(seen[_Node.DOMAIN]) in _ONNX):
            node.operation = text(seen[_Node.OP_TYPE])
        first = node.outputs[0] if node.outputs else ""
        name = text(seen[_Node.NAME]) if _Node.NAME in seen else ""
        is_followed = not depth and (self.whole or node.operation in FOLLOWED)
        if is_followed:
            self.graph.nodes.append(node)
        for attribute in attributes:
            walk = partial(
                self.attribute,
                node=node if is_followed else None,
                path=f"{prefix}{name or first}/",
                constant=prefix + first if node.operation == "Constant" else None,
                depth=depth,
            )
            self.within(attribute, walk)

    def attribute(self, found: Field, node: OnnxNode | None, path: str, constant: str | None, depth: int) -> None:
        """Read an AttributeProto; store its value in ``node``, unless None.

        Names in its graphs begin with ``path``. ``constant`` is the name of the tensor if the node is a Constant.
        """
        seen: dict[int, Field] = {}
        numbers: list[Field] = []
        graphs: list[Field] = []
        for part in self.source.fields(found.body, found.end):
            if part.number in (_Attribute.NAME, _Attribute.T, _Attribute.G, _Attribute.SPARSE_TENSOR):
                once(seen, part)
            elif part.number == _Attribute.GRAPHS:
                self.collect(graphs, part)
            elif part.number in (_Attribute.TENSORS, _Attribute.SPARSE_TENSORS):
                self.stay(part, sparse=part.number == _Attribute.SPARSE_TENSORS)
            elif part.number in (_Attribute.FLOAT, _Attribute.INT, _Attribute.STRING, _Attribute.INTS) and node:
                self.collect(numbers, part)
        name = self.source.text(seen[_Attribute.NAME]) if _Attribute.NAME in seen else ""
        if node and numbers:
            node.attributes[name] = self.value(numbers)
        if _Attribute.G in seen:
            self.within(seen[_Attribute.G], partial(self.inner, prefix=f"{path}{name}/", depth=depth + 1))
        for place, graph in enumerate(graphs):
            self.within(graph, partial(self.inner, prefix=f"{path}{name}/{place}/", depth=depth + 1))
        if _Attribute.T in seen and name == "value" and constant is not None:
            walk = partial(self.tensor, path=constant, constant=True, is_value=not depth)
            self.within(seen[_Attribute.T], walk)
        elif _Attribute.T in seen:
            self.stay(seen[_Attribute.T])
            if node and node.operation == "ConstantOfShape" and self.whole:
                value = constant_of(self.source, read_tensor(self.source, seen[_Attribute.T], self.limits))
                node.attributes[name] = [int(each) for each in value.values] if value else []
        if _Attribute.SPARSE_TENSOR in seen and name == "sparse_value" and constant is not None:
            self.within(seen[_Attribute.SPARSE_TENSOR], partial(self.sparse, path=constant))
        elif _Attribute.SPARSE_TENSOR in seen:
            self.stay(seen[_Attribute.SPARSE_TENSOR], sparse=True)

    def value(self, parts: list[Field]) -> int | float | str | list[int]:
        """Return the number, string or integers of an attribute."""
        last = parts[-1]
        if last.number == _Attribute.FLOAT and last.wire == FIXED32:
            return float(struct.unpack("<f", self.source.read(last.body, last.end))[0])
        if last.number == _Attribute.INT and last.wire == VARINT:
            return number(last)
        if last.number == _Attribute.STRING and last.wire == LENGTH:
            return self.source.read(last.body, min(last.end, last.body + _MAX_WORD)).decode("ascii", "replace")
        return [signed(value) for part in parts for value in integers(self.source, part, _MAX_EACH)]

    # -------------------------------------------------------------------------------------------- tensors
    def tensor(
        self, found: Field, prefix: str = "", path: str | None = None, constant: bool = False, is_value: bool = False
    ) -> None:
        """Read a TensorProto. Its name is ``path``, or else ``prefix`` and its own name.

        With ``is_value``, it is a value of the main graph.
        """
        tensor = read_tensor(self.source, found, self.limits)
        name = prefix + tensor.name if path is None else path
        patches = patches_of(self.source, tensor, name, self.claim, constant=constant)
        self.graph.layout.patches.extend(patches)
        for patch in patches:
            if is_value and isinstance(patch, Slot):
                self.graph.values[name] = patch
        found_inside = constant_of(self.source, tensor) if self.whole and is_value and not patches else None
        if found_inside:
            self.graph.constants[name] = found_inside

    def sparse(self, found: Field, prefix: str = "", path: str | None = None) -> None:
        """Read a SparseTensorProto, which has the name of its values."""
        seen: dict[int, Field] = {}
        for part in self.source.fields(found.body, found.end):
            if part.number in (_VALUES, _INDICES):
                once(seen, part)
        name = path
        if name is None:
            name = prefix + (self.name_in(seen[_VALUES], _TENSOR_NAME) if _VALUES in seen else "")
        for place, part in seen.items():
            own = name if place == _VALUES else f"{name}/indices"
            self.within(part, partial(self.tensor, path=own, constant=path is not None))

    def stay(self, found: Field, *, sparse: bool = False) -> None:
        """Check a tensor that stays in the graph, because it may not be a weight: its data must be in this file."""
        if found.wire != LENGTH:
            raise FormatError(f"field {found.number} at byte {found.start} is not a message")
        if not sparse:
            tensor = read_tensor(self.source, found, self.limits)
            check_inside(tensor, f"tensor {tensor.name[:80]!a} of an attribute")
            return
        for part in self.source.fields(found.body, found.end):
            if part.number in (_VALUES, _INDICES):
                self.stay(part)

    def claim(self, name: str) -> str:
        """Return a unique name: this one, with a numeric suffix if an earlier tensor has it."""
        if not name or "\0" in name:
            raise FormatError(f"a tensor has the invalid name {name[:80]!a}")
        size = len(name.encode())
        if size > self.limits.max_name_bytes:
            self.limits.check("max_name_bytes", size, f"bytes of the name {name[:80]!a}")
        self.budget.charge("max_names", 1, "tensors of the model")
        # In subgraphs each name repeats the path of its graph, so that names can be much longer than the model.
        self.budget.charge("max_topology_bytes", size, "bytes of all names")
        found = name
        while found in self.taken:
            self.taken[name] += 1
            found = f"{name}#{self.taken[name]}"
        self.taken[found] = 1
        return found
