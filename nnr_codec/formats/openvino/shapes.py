"""Changes of constant shapes in the XML of an OpenVINO IR, with all dependent declarations.

These are the offsets of all constants in the ``.bin``, and the extents of ports. From the first constant that changes,
constants are aligned to 64 bytes, without larger gaps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod

from .dataflow import MAX_RANK, RULES
from .ir import CONSTANTS, IrConstant, bits_of
from .layers import IrLayer, IrNetwork, range_of, read_layers

_ATTRIBUTE = re.compile(rb"\s+([^\s=]+)\s*=\s*(\"[^\"]*\"|'[^']*')")
_DIM = re.compile(rb"(<dim\s*>\s*)([0-9]+)(?=\s*</dim)")
_ALIGNMENT = 64  # bytes; the alignment that OpenVINO writes

Shape = tuple[int, ...]
_Range = tuple[int, int]
_Edit = tuple[int, int, bytes]


def with_shapes(data: bytes, constants: Mapping[str, IrConstant], shapes: Mapping[str, Shape]) -> bytes:
    """Return the XML with new shapes of the named constants; a shape of another rank is ignored."""
    network = read_layers(data)
    changed: dict[_Range, Shape] = {}
    places: dict[_Range, tuple[int, int]] = {}
    end = after = 0
    for constant in sorted(constants.values(), key=lambda constant: constant.offset):
        old, shape = (constant.offset, constant.nbytes), shapes.get(constant.name, constant.shape)
        nbytes = constant.nbytes
        if shape != constant.shape and len(shape) == len(constant.shape):
            changed[old] = shape
            nbytes = (prod(shape) * bits_of(constant.stored) + 7) // 8
        after += (constant.offset - after) % _ALIGNMENT if changed else constant.offset - end
        places[old] = after, nbytes
        end, after = constant.end, after + nbytes
    edits = sorted({*_moved(data, network, changed, places), *_extents(data, network, changed)})
    pieces, at = [], 0
    for start, stop, text in edits:
        pieces += [data[at:start], text]
        at = stop
    return b"".join([*pieces, data[at:]])


def _moved(
    data: bytes, network: IrNetwork, changed: Mapping[_Range, Shape], places: Mapping[_Range, tuple[int, int]]
) -> Iterator[_Edit]:
    """Yield the edits of the attributes of constants."""
    for start, attributes in network.constants:
        old = range_of(attributes)
        if old not in places:
            continue  # empty
        offset, nbytes = places[old]
        values = {b"offset": str(offset), b"size": str(nbytes)}
        if old in changed:
            values[b"shape"] = (", " if ", " in attributes.get("shape", "") else ",").join(map(str, changed[old]))
        at = start + len("<data")
        while found := _ATTRIBUTE.match(data, at):
            at = found.end()
            if found[1] in values:
                yield found.start(2) + 1, found.end(2) - 1, values[found[1]].encode()


def _extents(data: bytes, network: IrNetwork, changed: Mapping[_Range, Shape]) -> Iterator[_Edit]:
    """Yield the edits of the extents of ports, layer by layer."""
    extents: dict[tuple[str, str], list[int]] = {}
    for layer in network.layers:
        before = [port.extents for port in layer.inputs]
        after = []
        for port in layer.inputs:
            source = network.sources.get((layer.id, port.id), ("", ""))
            new = extents.get(source, port.extents)
            after.append(new if len(new) == len(port.extents) else port.extents)
        for port, new in zip(layer.inputs, after, strict=True):
            yield from _dims(data, port.places, port.extents, new)
        for port in layer.outputs:
            new = _given(layer, port.extents, before, after, changed)
            extents[layer.id, port.id] = new
            yield from _dims(data, port.places, port.extents, new)


def _given(
    layer: IrLayer, old: list[int], before: list[list[int]], after: list[list[int]], changed: Mapping[_Range, Shape]
) -> list[int]:
    """Return the extents of an output after a change of inputs; outputs of unknown layers do not change."""
    if layer.type in CONSTANTS:
        shape = changed.get(range_of(layer.data), ())
        return list(shape) if len(shape) == len(old) else old
    if before == after or layer.type not in RULES or len(old) > MAX_RANK:
        return old
    new, is_pair = list(old), len(after) > 1 and min(map(len, (old, *after))) > 1
    if is_pair and "Convolution" in layer.type:
        first, second, *_ = after[1]
        new[1] = {"Convolution": first, "ConvolutionBackpropData": second}.get(layer.type, first * second)
    elif is_pair and layer.type == "MatMul":
        new[-2] = after[0][-1 if layer.is_true("transpose_a") else -2]
        new[-1] = after[1][-2 if layer.is_true("transpose_b") else -1]
    else:
        for k in range(1, len(old) + 1):
            extents = [(one[-k], other[-k]) for one, other in zip(before, after, strict=True) if len(one) >= k]
            if layer.type == "Concat" and sum(one for one, _ in extents) == old[-k]:
                new[-k] = sum(other for _, other in extents)
            else:
                new[-k] = next((other for one, other in extents if one == old[-k] != other), old[-k])
    return new


def _dims(data: bytes, places: list[int], old: list[int], new: list[int]) -> Iterator[_Edit]:
    """Yield the edits of the extents of a port."""
    for place, one, other in zip(places, old, new, strict=False):
        found = _DIM.match(data, place) if one != other else None
        if found:
            yield found.start(2), found.end(2), str(other).encode()
