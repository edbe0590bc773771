"""Shapes of the operations of OpenVINO's opset1.

Shapes are tuples of extents; 0 is an unknown extent, and None a shape of unknown rank. A rule returns the expected
shapes of the outputs of a layer, and raises :class:`Fault` for shapes that contradict each other. :func:`pattern` makes
a rule from a text. Axes, target shapes and similar inputs are values in the ``.bin``, which rules do not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from math import prod
from typing import NamedTuple

#: Maximum rank of a shape; the rank of a longer shape is unknown.
MAX_RANK = 32

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]


class Fault(Exception):  # noqa: N818 - it is reported, never raised to callers
    """Contradiction in a layer: the violated rule, and a description."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


class Call(NamedTuple):
    """Layer whose attributes and numbers of inputs and outputs are valid."""

    inputs: list[Shape | None]
    outputs: list[Shape | None]
    attributes: Mapping[str, str]

    def text(self, name: str) -> str:
        """Return a text attribute in lower case."""
        return self.attributes[name].strip().lower()

    def number(self, name: str) -> int:
        """Return an integer attribute."""
        return int(self.attributes[name])

    def numbers(self, name: str) -> Shape:
        """Return an attribute that is a list of integers; empty if it is absent."""
        return tuple(int(item) for item in self.attributes.get(name, "").split(",") if item.strip())

    def is_true(self, name: str) -> bool:
        """Return a boolean attribute."""
        return self.text(name) in ("true", "1")

    def ranked(self, k: int, least: int, most: int = 0) -> Shape | None:
        """Return the shape of an input; raise Fault if its rank is outside ``least`` to ``most``."""
        shape = self.inputs[k] if k < len(self.inputs) else None
        most = most or least
        if shape is not None and not least <= len(shape) <= most:
            permitted = f"{least}" if least == most else f"{least} to {most}"
            raise Fault("ir-input-rank", f"input {k} has rank {len(shape)}, not {permitted}")
        return shape

    def axis(self, name: str, rank: int) -> int:
        """Return an axis from 0; raise Fault if a tensor of this rank lacks it."""
        return normal_axis(self.number(name), rank, name)

    def per_dimension(self, count: int, *names: str) -> None:
        """Raise Fault unless these lists have one item for each dimension of a window; paddings may be empty."""
        for name in names:
            found = len(self.numbers(name))
            if name in self.attributes and found != count and (found or "pad" not in name):
                raise Fault("ir-attribute-count", f"{name} has {found} items for {count} spatial dimensions")

    def counted(self, k: int, count: int, what: str) -> None:
        """Raise Fault unless an input is a list of ``count`` items; ``what`` describes this number."""
        shape = self.inputs[k] if k < len(self.inputs) else None
        if shape and (len(shape) != 1 or shape[0] not in (0, count)):
            raise Fault("ir-input-shape", f"input {k} has shape {list(shape)}, not [{count}] ({what})")


def normal_axis(axis: int, rank: int, name: str = "axis") -> int:
    """Return an axis from 0; raise Fault if a tensor of this rank lacks it."""
    if not -rank <= axis < rank:
        raise Fault("ir-axis", f"{name} is {axis}, but the input has rank {rank}")
    return axis % rank


def differ(one: int, other: int) -> bool:
    """Return whether two extents are known and different."""
    return bool(one and other and one != other)


def require(is_valid: bool, rule: str, message: str) -> None:
    """Raise Fault unless a condition holds."""
    if not is_valid:
        raise Fault(rule, message)


Rule = Callable[[Call], Shapes]


# ------------------------------------------------------------------------------------------------ rules of shapes
def same(call: Call) -> Shapes:
    """Return the shape of the first input."""
    return [call.inputs[0]] * len(call.outputs)


def unchecked(call: Call) -> Shapes:
    """Return unknown shapes."""
    return [None] * len(call.outputs)


def along_axis(call: Call) -> Shapes:
    """Return the shape of the first input, which has the dimension ``axis``."""
    if (shape := call.inputs[0]) is not None:
        call.axis("axis", len(shape))
    return [shape]


def broadcast_shapes(shapes: Shapes, rule: str = "ir-broadcast") -> Shape | None:
    """Return the shape that shapes are broadcast to, aligned at the last dimension."""
    if None in shapes:
        return None
    result: list[int] = []
    for extents in zip_longest(*(shape[::-1] for shape in shapes if shape is not None), fillvalue=1):
        long = {extent for extent in extents if extent > 1}
        listed = " and ".join(str(list(shape)) for shape in shapes if shape is not None)
        require(len(long) < 2, rule, f"inputs of shapes {listed} cannot be broadcast")
        result.append(max(long) if long else min(extents))
    return tuple(result[::-1])


def elementwise(call: Call) -> Shapes:
    """Return the common shape of all inputs by ``auto_broadcast``."""
    mode = call.text("auto_broadcast")
    if mode == "numpy":
        return [broadcast_shapes(call.inputs)]
    if mode == "none":
        first = next((shape for shape in call.inputs if shape is not None), None)
        for shape in call.inputs:
            if first is not None and shape is not None:
                is_equal = len(shape) == len(first) and not any(map(differ, shape, first))
                message = f"shapes {list(first)} and {list(shape)} differ, but auto_broadcast is none"
                require(is_equal, "ir-broadcast", message)
        return [first]
    return [None]


def fake_quantize(call: Call) -> Shapes:
    """Return the shape of the data, to which ranges are broadcast."""
    data = call.inputs[0]
    if call.text("auto_broadcast") == "numpy" and data is not None and (shape := broadcast_shapes(call.inputs)):
        fits = len(shape) == len(data) and not any(differ(one, other) for one, other in zip(shape, data, strict=True))
        require(fits, "ir-broadcast", f"a range cannot be broadcast to {list(data)}")
    return [data]


def _windows(call: Call, extents: Shape, kernel: Shape, *, ceil: bool = False) -> Shape:
    """Return the numbers of positions of a window in each spatial dimension."""
    names = ("strides", "dilations", "pads_begin", "pads_end")
    call.per_dimension(len(extents), *names)
    mode = call.text("auto_pad")
    strides, dilations, begin, end = (call.numbers(name) for name in names)
    if not strides or (mode == "explicit" and not (begin and end)):
        return (0,) * len(extents)
    counts = []
    for k, (extent, window, stride) in enumerate(zip(extents, kernel, strides, strict=True)):
        if not extent or not window:
            counts.append(0)
            continue
        size = (window - 1) * (dilations[k] if dilations else 1) + 1
        padded = extent
        if mode == "explicit":
            padded += begin[k] + end[k]
        elif mode.startswith("same"):
            padded += max(0, (-(-extent // stride) - 1) * stride + size - extent)
        message = f"a window of {size} exceeds the padded extent {padded} of dimension {k + 2}"
        require(size <= padded, "ir-window", message)
        counts.append((-(-(padded - size) // stride) if ceil else (padded - size) // stride) + 1)
    return tuple(counts)


def _channels(given: int, taken: int) -> None:
    require(not differ(given, taken), "ir-channels", f"the input has {given} channels; the weights take {taken}")


def convolution(call: Call) -> Shapes:
    """Return the shape of a convolution: weights are [O, I, ...]."""
    data, weights = call.ranked(0, 3, 5), call.ranked(1, 3, 5)
    if data is None or weights is None:
        return [None]
    call.ranked(1, len(data))
    _channels(data[1], weights[1])
    return [(data[0], weights[0], *_windows(call, data[2:], weights[2:]))]


def group_convolution(call: Call) -> Shapes:
    """Return the shape of a grouped convolution: weights are [G, O, I, ...]."""
    data, weights = call.ranked(0, 3, 5), call.ranked(1, 4, 6)
    if data is None or weights is None:
        return [None]
    call.ranked(1, len(data) + 1)
    _channels(data[1], weights[0] * weights[2])
    return [(data[0], weights[0] * weights[1], *_windows(call, data[2:], weights[3:]))]


def _backprop(call: Call, data: Shape, kernel: Shape) -> Shape:
    """Return the spatial extents of a transposed convolution."""
    names = ("strides", "dilations", "pads_begin", "pads_end", "output_padding")
    call.per_dimension(len(kernel), *names)
    if len(call.inputs) > 2:
        call.counted(2, len(kernel), "the spatial output shape")
        return (0,) * len(kernel)
    strides, dilations, begin, end, extra = (call.numbers(name) or (0,) * len(kernel) for name in names)
    mode = call.text("auto_pad")
    if mode not in ("explicit", "valid") or 0 in strides:
        return (0,) * len(kernel)
    extents = []
    for k, (extent, window) in enumerate(zip(data[2:], kernel, strict=True)):
        pads = begin[k] + end[k] if mode == "explicit" else 0
        result = strides[k] * (extent - 1) + (window - 1) * (dilations[k] or 1) + 1 - pads + extra[k]
        extents.append(result if extent and window else 0)
        require(extents[-1] >= 0, "ir-window", f"the paddings exceed dimension {k + 2} of the output")
    return tuple(extents)


def convolution_backprop(call: Call) -> Shapes:
    """Return the shape of a transposed convolution: weights are [I, O, ...]."""
    data, weights = call.ranked(0, 3, 5), call.ranked(1, 3, 5)
    if data is None or weights is None:
        return [None]
    call.ranked(1, len(data))
    _channels(data[1], weights[0])
    return [(data[0], weights[1], *_backprop(call, data, weights[2:]))]


def group_convolution_backprop(call: Call) -> Shapes:
    """Return the shape of a grouped transposed convolution: weights are [G, I, O, ...]."""
    data, weights = call.ranked(0, 3, 5), call.ranked(1, 4, 6)
    if data is None or weights is None:
        return [None]
    call.ranked(1, len(data) + 1)
    _channels(data[1], weights[0] * weights[1])
    return [(data[0], weights[0] * weights[2], *_backprop(call, data, weights[3:]))]


def deformable_convolution(call: Call) -> Shapes:
    """Return the shape of a deformable convolution; inputs are data, offsets and weights [O, I, Y, X]."""
    data, offsets, weights = (call.ranked(k, 4) for k in range(3))
    if data is None or weights is None:
        return [None]
    _channels(data[1], weights[1] * call.number("group"))
    result = (data[0], weights[0], *_windows(call, data[2:], weights[2:]))
    if offsets is not None:
        wanted = (data[0], 2 * call.number("deformable_group") * prod(weights[2:]), *result[2:])
        message = f"the offsets have shape {list(offsets)}, not {list(wanted)}"
        require(not any(map(differ, offsets, wanted)), "ir-input-shape", message)
    return [result]


def pooling(call: Call) -> Shapes:
    """Return the shape of a pooling result."""
    data = call.ranked(0, 3, 5)
    if data is None:
        return [None]
    call.per_dimension(len(data) - 2, "kernel")
    return [(*data[:2], *_windows(call, data[2:], call.numbers("kernel"), ceil=call.text("rounding_type") == "ceil"))]


def matmul(call: Call) -> Shapes:
    """Return the shape of a product of matrices; unknown if an input is a vector."""
    shapes = [call.ranked(k, 1, MAX_RANK) for k in range(2)]
    matrices, batches = [], []
    for shape, name in zip(shapes, "ab", strict=True):
        if shape is None or len(shape) < 2:
            return [None]
        matrices.append(shape[:-3:-1] if call.is_true(f"transpose_{name}") else shape[-2:])
        batches.append(shape[:-2])
    (rows, inner), (other, columns) = matrices
    require(not differ(inner, other), "ir-matmul-inner", f"the inner dimensions {inner} and {other} differ")
    return [(*(broadcast_shapes(batches) or ()), rows, columns)]


def concat(call: Call) -> Shapes:
    """Return the shape of joined inputs."""
    shapes = [shape for shape in call.inputs if shape is not None]
    if not shapes:
        return [None]
    axis, first = call.axis("axis", len(shapes[0])), list(shapes[0])
    for shape in shapes[1:]:
        fits = len(shape) == len(first) and not any(
            differ(one, other) for k, (one, other) in enumerate(zip(first, shape, strict=True)) if k != axis
        )
        require(fits, "ir-concat-shapes", f"shapes {list(shapes[0])} and {list(shape)} differ outside axis {axis}")
        first = [one or other for one, other in zip(first, shape, strict=True)]
    extents = [shape[axis] for shape in shapes]
    first[axis] = sum(extents) if all(extents) and len(shapes) == len(call.inputs) else 0
    return [tuple(first)]


def _parts(call: Call, count: int) -> tuple[int, int, list[int]] | None:
    """Return the axis that is split, its extent and the extents of its parts; None if they are unknown."""
    data, outputs = call.inputs[0], [shape for shape in call.outputs if shape is not None]
    require(
        len(call.outputs) <= count,
        "ir-output-count",
        f"the layer has {len(call.outputs)} outputs, but only {count} parts",
    )
    if data is None or len(outputs) < count or 0 in data or any(0 in shape for shape in outputs):
        return None
    fits = all(len(shape) == len(data) for shape in outputs)
    axes = [k for k in range(len(data)) if any(shape[k] != data[k] for shape in outputs)] if fits else []
    require(fits and len(axes) < 2, "ir-output-shape", f"parts differ from {list(data)} in rank or several dimensions")
    return (axes[0], data[axes[0]], [shape[axes[0]] for shape in outputs]) if axes else None


def split(call: Call) -> Shapes:
    """Check that parts are equal and fill the axis."""
    count = call.number("num_splits")
    if found := _parts(call, count):
        axis, extent, parts = found
        message = f"extents {parts} are not {count} equal parts of dimension {axis} with extent {extent}"
        require(all(part * count == extent for part in parts), "ir-split", message)
    return unchecked(call)


def variadic_split(call: Call) -> Shapes:
    """Check that parts fill the axis."""
    lengths = call.ranked(2, 1)
    if lengths and lengths[0] and (found := _parts(call, lengths[0])):
        axis, extent, parts = found
        require(sum(parts) == extent, "ir-split", f"extents {parts} do not fill dimension {axis} with extent {extent}")
    return unchecked(call)


def reshape(call: Call) -> Shapes:
    """Check that the volume does not change."""
    data, result = call.inputs[0], call.outputs[0]
    if result is not None:
        call.counted(1, len(result), "the rank of the output")
        if data is not None and 0 not in data + result:
            message = f"{list(data)} has {prod(data):,} items; {list(result)} has {prod(result):,}"
            require(prod(data) == prod(result), "ir-volume", message)
    return [None]


def squeeze(call: Call) -> Shapes:
    """Check that input and output differ by dimensions of extent 1."""
    data, result = call.inputs[0], call.outputs[0]
    if data is not None and result is not None and 0 not in data + result:
        one, other = ([extent for extent in shape if extent != 1] for shape in (data, result))
        message = f"{list(data)} becomes {list(result)}, which differs by more than extents of 1"
        require(one == other, "ir-volume", message)
    return [None]


def transpose(call: Call) -> Shapes:
    """Check that the output has the extents of the input in some order; in reverse order without a second input."""
    data, result = call.inputs[0], call.outputs[0]
    if data is None or len(call.inputs) == 1:
        return [data and data[::-1]]
    call.counted(1, len(data), "the rank of the input")
    if result is not None:
        fits = len(data) == len(result) and (0 in data + result or sorted(data) == sorted(result))
        require(fits, "ir-output-shape", f"{list(result)} is not a permutation of {list(data)}")
    return [None]


def tile(call: Call) -> Shapes:
    """Check that the output repeats the input."""
    data, result = call.inputs[0], call.outputs[0]
    if data is not None and result is not None:
        pairs = zip(data[::-1], result[::-1], strict=False)
        fits = len(data) <= len(result) and not any(one and other % one for one, other in pairs)
        require(fits, "ir-output-shape", f"{list(result)} does not repeat {list(data)}")
    return [None]


def broadcast(call: Call) -> Shapes:
    """Check that the data can be broadcast to the output."""
    data, result, mode = call.inputs[0], call.outputs[0], call.text("mode")
    require(mode != "explicit" or len(call.inputs) == 3, "ir-input-count", "mode explicit requires 3 inputs")
    if result is not None:
        call.counted(1, len(result), "the rank of the output")
    if data is not None and mode == "explicit":
        call.counted(2, len(data), "the rank of the data")
    if data is not None and result is not None and mode == "numpy":
        pairs = zip(data[::-1], result[::-1], strict=False)
        fits = len(data) <= len(result) and not any(one > 1 and differ(one, other) for one, other in pairs)
        require(fits, "ir-broadcast", f"{list(data)} cannot be broadcast to {list(result)}")
    return [None]


def pad(call: Call) -> Shapes:
    """Check numbers of paddings, and that no extent decreases."""
    data, result = call.inputs[0], call.outputs[0]
    if data is not None:
        call.counted(1, len(data), "the rank of the data")
        call.counted(2, len(data), "the rank of the data")
        if result is not None:
            fits = len(data) == len(result) and all(
                other >= one or not other for one, other in zip(data, result, strict=True)
            )
            require(fits, "ir-output-shape", f"{list(result)} is not {list(data)} with paddings")
    return [None]


def strided_slice(call: Call) -> Shapes:
    """Return a shape with unknown extents, whose rank follows from the masks."""
    data, begin = call.inputs[0], call.inputs[1]
    if data is None or not begin or not begin[0]:
        return [None]
    for k in range(2, len(call.inputs)):
        call.counted(k, begin[0], "the length of begin")
    names = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    masks = zip_longest(*(call.numbers(name)[: begin[0]] for name in names), fillvalue=0)
    rank = len(data) + sum(0 if ellipsis else 1 if new else -shrink for ellipsis, new, shrink in masks)
    require(rank >= 0, "ir-input-rank", f"the masks remove more than {len(data)} dimensions")
    return [(0,) * rank]


def gather(call: Call) -> Shapes:
    """Return a shape with unknown extents and the rank of the result."""
    data, indices = call.inputs[:2]
    return [None if data is None or indices is None else (0,) * (len(data) - 1 + len(indices))]


def depth_to_space(call: Call) -> Shapes:
    """Return the shape with channels moved to spatial dimensions."""
    data, block = call.ranked(0, 3, 5), call.number("block_size")
    if data is None:
        return [None]
    factor = block ** (len(data) - 2)
    require(data[1] % factor == 0, "ir-input-shape", f"{data[1]} channels are not divisible by {factor}")
    return [(data[0], data[1] // factor, *(extent * block for extent in data[2:]))]


def space_to_depth(call: Call) -> Shapes:
    """Return the shape with spatial dimensions moved to channels."""
    data, block = call.ranked(0, 3, 5), call.number("block_size")
    if data is None:
        return [None]
    fits = not any(extent % block for extent in data[2:])
    require(fits, "ir-input-shape", f"extents of {list(data)} are not divisible by {block}")
    return [(data[0], data[1] * block ** (len(data) - 2), *(extent // block for extent in data[2:]))]


def one_hot(call: Call) -> Shapes:
    """Return the shape of the indices with one more dimension."""
    if (shape := call.inputs[0]) is None:
        return [None]
    axis = call.axis("axis", len(shape) + 1)
    return [(*shape[:axis], 0, *shape[axis:])]


def top_k(call: Call) -> Shapes:
    """Return the shape of the data with an unknown extent of the axis."""
    if (shape := call.inputs[0]) is None:
        return unchecked(call)
    axis = call.axis("axis", len(shape))
    return [(*shape[:axis], 0, *shape[axis + 1 :])] * len(call.outputs)


def shape_of(call: Call) -> Shapes:
    """Return the shape of a list with an item for each dimension of the input."""
    return [None if (shape := call.inputs[0]) is None else (len(shape),)]


def interpolate(call: Call) -> Shapes:
    """Return the shape of the data with unknown extents of the axes."""
    axes = call.numbers("axes")
    call.counted(1, len(axes), "the number of axes")
    if (shape := call.inputs[0]) is None:
        return [None]
    changed = {normal_axis(axis, len(shape), "an item of axes") for axis in axes}
    return [tuple(0 if k in changed else extent for k, extent in enumerate(shape))]


def reduction(call: Call) -> Shapes:
    """Check that the output lacks the reduced dimensions, or has them with extent 1."""
    data, result, axes = call.inputs[0], call.outputs[0], call.inputs[1]
    if data is None or result is None:
        return [None]
    if call.is_true("keep_dims"):
        fits = len(data) == len(result)
        fits = fits and not any(other > 1 and differ(one, other) for one, other in zip(data, result, strict=True))
    else:
        count = len(data) - len(result)  # a list of axes may have duplicates
        least, most = (1, axes[0]) if axes and len(axes) == 1 and axes[0] else (0, len(data))
        fits = least <= count <= most
        rest = iter(data)
        fits = fits and (0 in data + result or all(extent in rest for extent in result))
    require(fits, "ir-output-shape", f"{list(result)} is not a reduction of {list(data)}")
    return [None]


def reverse(call: Call) -> Shapes:
    """Return the shape of the data; a mask has one item for each dimension."""
    if (shape := call.inputs[0]) is not None and call.text("mode") == "mask":
        call.counted(1, len(shape), "the rank of the data")
    return [shape]


def reverse_sequence(call: Call) -> Shapes:
    """Return the shape of the data."""
    if (shape := call.inputs[0]) is not None:
        call.axis("seq_axis", len(shape))
        if extent := shape[call.axis("batch_axis", len(shape))]:
            call.counted(1, extent, "the extent of batch_axis")
    return [shape]


def shuffle_channels(call: Call) -> Shapes:
    """Return the shape of the data; raise Fault unless the channels can be divided into groups."""
    if (shape := call.inputs[0]) is not None:
        extent, group = shape[call.axis("axis", len(shape))], call.number("group")
        require(extent % group == 0, "ir-input-shape", f"{extent} channels are not divisible by {group} groups")
    return [shape]


def batch_norm(call: Call) -> Shapes:
    """Return the shape of the data; other inputs are vectors with an item for each channel.

    The data is the third input in OpenVINO, and the first in the example of the specification.
    """
    at = 0 if len(call.inputs[0] or ()) > 1 else 2
    if (shape := call.ranked(at, 2, MAX_RANK)) is not None and shape[1]:
        for k in {*range(5)} - {at}:
            call.counted(k, shape[1], "the number of channels")
    return [shape]


def region_yolo(call: Call) -> Shapes:
    """Return the shape of the result of RegionYolo."""
    data = call.ranked(0, 4)
    if data is None:
        return [None]
    first, last = call.axis("axis", 4), call.axis("end_axis", 4)
    if not call.is_true("do_softmax"):
        channels = (call.number("classes") + call.number("coords") + 1) * len(call.numbers("mask"))
        return [(data[0], channels, *data[2:])]
    return [(*data[:first], prod(data[first : last + 1]), *data[last + 1 :])]


def reorg_yolo(call: Call) -> Shapes:
    """Return the shape with spatial dimensions moved to channels."""
    data, stride = call.ranked(0, 4), call.number("stride")
    if data is None:
        return [None]
    fits = not any(extent % stride for extent in data[2:])
    require(fits, "ir-input-shape", f"extents of {list(data)} are not divisible by {stride}")
    return [(data[0], data[1] * stride**2, data[2] // stride, data[3] // stride)]


def declared(call: Call) -> Shapes:
    """Return the shape in the attributes of a constant or a parameter."""
    text = call.text("shape").strip("[]")
    if "..." in text:
        return [None]
    extents = text.split(",") if text else []
    return [tuple(int(extent) if extent.strip().isdigit() else 0 for extent in extents)]


def lstm_cell(call: Call) -> Shapes:
    """Return the shapes of the states; an older form with joined weights has five inputs in another order."""
    return (_CELL if len(call.inputs) > 5 else _JOINED_CELL)(call)


_TERM = re.compile(r"(?:([0-9]+)\*)?([a-z_]+)|([0-9]+)")


def pattern(text: str) -> Rule:
    """Return the rule of a pattern, such as ``n 4*hidden_size, n _ -> n 2``.

    It has the dimensions of each input and output. Equal names are equal extents; the name of an attribute is its
    value; ``_`` is any extent, and ``*`` any shape.
    """
    inputs, _, outputs = (part.strip() for part in text.partition("->"))

    def rule(call: Call) -> Shapes:
        known: dict[str, int] = {}
        for name, value in call.attributes.items():
            if re.fullmatch("[0-9]{1,18}", value):
                known[name] = int(value)
        for k, (terms, shape) in enumerate(zip(inputs.split(","), call.inputs, strict=False)):
            if shape is None or terms.strip() == "*":
                continue
            call.ranked(k, len(terms.split()))
            for at, (term, extent) in enumerate(zip(terms.split(), shape, strict=True)):
                wanted = _extent(term, known)
                message = f"dimension {at} of input {k} is {extent}, not {wanted} ({terms.strip()})"
                require(not differ(wanted, extent), "ir-input-shape", message)
                found = _TERM.fullmatch(term)
                if extent and not wanted and found and not found[1]:
                    known[term] = extent
        return [
            None if terms.strip() == "*" else tuple(_extent(term, known) for term in terms.split())
            for terms in outputs.split(",")
        ]

    return rule


def _extent(term: str, known: Mapping[str, int]) -> int:
    """Return the value of a term of a pattern; 0 if it is unknown."""
    found = _TERM.fullmatch(term)
    if not found or term == "_":
        return 0
    return int(found[3]) if found[3] else int(found[1] or 1) * known.get(found[2], 0)


_STATES = "-> b hidden_size, b hidden_size"
_JOINED_CELL = pattern(f"b _, b hidden_size, b hidden_size, 4*hidden_size _ {_STATES}")
_CELL = pattern(
    "b i, b hidden_size, b hidden_size, 4*hidden_size i, 4*hidden_size hidden_size, 4*hidden_size" + _STATES
)
