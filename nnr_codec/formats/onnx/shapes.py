"""Changes of tensor shapes in a serialized ModelProto, with all dependent declarations.

These are graph inputs with the names of such tensors, and the attribute ``group`` of depthwise convolutions.
Declarations of intermediate values are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...limits import Limits
from ..protobuf import LENGTH, VARINT, Field, MessageSource, message, varint
from .graph import OnnxGraph, OnnxNode
from .layout import Layout, Length, Other, Patch
from .proto import path_to_shape

# Field numbers of ModelProto, GraphProto, NodeProto and AttributeProto,
_GRAPH, _NODE, _INPUT, _INFO, _ATTRIBUTE, _ATTRIBUTE_NAME, _INT = 7, 1, 11, 13, 5, 1, 3
# of ValueInfoProto, TypeProto.Tensor, TensorShapeProto and Dimension; of TensorProto.
_VALUE_NAME, _SHAPE, _DIM, _DIM_VALUE, _DIMS = 1, 2, 1, 1, 1

Shape = tuple[int, ...]


def with_shapes(data: bytes, graph: OnnxGraph, shapes: Mapping[str, Shape]) -> bytes:
    """Return a model without items, with new shapes of the named tensors; ``graph`` must have all its nodes."""
    source = MessageSource(data, Limits.unlimited())
    changes: set[Patch] = {patch for patch in graph.layout.patches if isinstance(patch, Length)}
    for slot in graph.layout.slots:
        if slot.name in shapes and slot.dims:
            first, *others = slot.dims
            dims = b"".join(varint(_DIMS << 3) + varint(extent) for extent in shapes[slot.name])
            changes |= {Other(*first, dims), *(Other(start, end, b"") for start, end in others)}
    values = {name: (slot.items.shape, shapes[slot.name]) for name, slot in graph.values.items() if slot.name in shapes}
    nodes = iter(graph.nodes)
    for outer in source.fields(0, source.size):
        for part in source.fields(outer.body, outer.end) if outer.number == _GRAPH else ():
            if part.number == _NODE:
                changes.update(_grouped(source, part, next(nodes), values))
            elif part.number == _INPUT:
                changes.update(_declared(source, part, values))
            elif part.number == _INFO:
                changes.add(Other(part.start, part.end, b""))
    edited = Layout(graph.layout.size, sorted(changes, key=lambda patch: patch.start))
    parts, _ = edited.composed(edited.emptied())
    return b"".join(part for part, _ in edited.joined(source.read, parts))


def _grouped(
    source: MessageSource, found: Field, node: OnnxNode, values: Mapping[str, tuple[Shape, Shape]]
) -> Iterator[Patch]:
    """Yield the changes of a depthwise convolution whose number of filters has changed."""
    before, after = values.get(node.inputs[1], ((), ())) if len(node.inputs) > 1 else ((), ())
    groups = node.attributes.get("group", 1)
    if node.operation not in ("Conv", "ConvTranspose") or not isinstance(groups, int) or groups < 2:
        return
    if min(len(before), len(after)) < 2:
        return
    is_alone = before[0] == groups if node.operation == "ConvTranspose" else before[1] == 1
    count, rest = divmod(after[0] * groups, before[0] or 1)
    if not is_alone or rest or count == groups:
        return
    for attribute in source.fields(found.body, found.end):
        if attribute.number != _ATTRIBUTE or attribute.wire != LENGTH:
            continue
        parts = [*source.fields(attribute.body, attribute.end)]
        if any(part.number == _ATTRIBUTE_NAME and source.text(part) == "group" for part in parts):
            yield from (_length(found), _length(attribute))
            numbers = [part for part in parts if part.number == _INT and part.wire == VARINT]
            yield from (Other(part.body, part.end, varint(count)) for part in numbers)


def _declared(source: MessageSource, found: Field, values: Mapping[str, tuple[Shape, Shape]]) -> Iterator[Patch]:
    """Yield the changes of an input with the name of a tensor."""
    names = [source.text(part) for part in source.fields(found.body, found.end) if part.number == _VALUE_NAME]
    path = path_to_shape(source, found)
    if path and names and names[-1] in values:
        _, shape = values[names[-1]]
        dims = (message(_DIM, varint(_DIM_VALUE << 3) + varint(extent)) for extent in shape)
        yield from (_length(part) for part in (found, *path[:-1]))
        yield Other(path[-1].start, path[-1].end, message(_SHAPE, b"".join(dims)))


def _length(found: Field) -> Length:
    return Length(found.value, found.body, found.end)
