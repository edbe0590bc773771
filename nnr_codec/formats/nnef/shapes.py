"""Shapes of the results of operations, and requirements on the shapes of operands (NNEF 1.0.3, chapter 4).

Each function describes one operation or one family; its parameters have the names of the standard, and it is called
only if all its arguments are known. Tensors are given as shapes and arrays of tensors as lists of shapes. A result is a
shape, a list of shapes for an array or a tuple, or None if it is unknown. Dimensions beyond the rank of a tensor are
singular (2.2), so operands of different rank are aligned at their first dimensions. Compound operations (4.9) follow
from their definitions. Deviations of Khronos' parser are listed in ``docs/reference/nnef.md``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import NamedTuple, TypeAlias, TypeVar

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Sequence[Shape]
Pairs: TypeAlias = Sequence[tuple[int, int]]
Result: TypeAlias = "Shape | list[Shape] | None"
_Function = TypeVar("_Function", bound=Callable[..., Result])

#: Maximum number of tensors of an array; arrays that an operation would make longer are unknown.
MAX_ITEMS = 1 << 16


class ShapeError(Exception):
    """Violation of a rule by the operands of an operation.

    Parameters
    ----------
    rule : str
        Id of the rule.
    message : str
    parameter : str, optional
        Parameter whose argument is wrong.
    """

    def __init__(self, rule: str, message: str, parameter: str = "") -> None:
        super().__init__(message)
        self.rule, self.message, self.parameter = rule, message, parameter


class ShapeFunction(NamedTuple):
    """Shape function of an operation, its parameters, given by name, and the clause that it implements."""

    function: Callable[..., Result]
    parameters: tuple[str, ...]
    clause: str


#: Shape functions by operation.
FUNCTIONS: dict[str, ShapeFunction] = {}


def _describes(clause: str, *operations: str) -> Callable[[_Function], _Function]:
    """Register a function for operations."""

    def register(function: _Function) -> _Function:
        parameters = tuple(inspect.signature(function).parameters)
        FUNCTIONS.update(dict.fromkeys(operations, ShapeFunction(function, parameters, clause)))
        return function

    return register


# ---------------------------------------------------------------------------------------------- requirements
def _broadcast(**operands: Shape) -> Shape:
    """Return the common shape of operands, of which singular extents are repeated (4.2.2)."""
    result = []
    for k in range(max(map(len, operands.values()))):
        wide = {name: shape[k] for name, shape in operands.items() if k < len(shape) and shape[k] != 1}
        if len(set(wide.values())) > 1:
            first = next(iter(wide))
            other = next(name for name in wide if wide[name] != wide[first])
            raise ShapeError(
                "broadcast",
                f"{first} {[*operands[first]]} and {other} {[*operands[other]]} differ in dimension {k}",
                other,
            )
        result.append(next(iter(wide.values()), 1))
    return tuple(result)


def _same_rank(least: int, **operands: Shape) -> None:
    """Check that operands have the same rank, at least ``least``."""
    first = next(iter(operands))
    for name, shape in operands.items():
        if len(shape) != len(operands[first]):
            message = f"{name} {[*shape]} has rank {len(shape)}; {first} has rank {len(operands[first])}"
            raise ShapeError("operand-rank", message, name)
        if len(shape) < least:
            message = f"{name} {[*shape]} has rank {len(shape)}; the rank must be at least {least}"
            raise ShapeError("operand-rank", message, name)


def _count(items: Sequence[object], name: str, count: int, *, empty: bool = False) -> None:
    """Check that an array has an item for each dimension. With ``empty``, it may also have no items."""
    if len(items) != count and (items or not empty):
        raise ShapeError("item-count", f"{name} has {_plural(len(items), 'item')}, expected {count}", name)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _in_range(axes: Iterable[int], rank: int, name: str = "axes") -> None:
    """Check that axes are dimensions of a tensor."""
    for axis in axes:
        if not 0 <= axis < rank:
            raise ShapeError("axis-range", f"axis {axis} is not a dimension of a tensor of rank {rank}", name)


# ---------------------------------------------------------------------------------------------- 4.1, 4.2
@_describes("4.1", "external", "constant", "variable")
def _introduced(shape: Sequence[int]) -> Result:
    return tuple(shape)


@_describes(
    "4.2.1",
    *("copy", "neg", "rcp", "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh"),
    *("acosh", "atanh", "abs", "sign", "not", "floor", "ceil", "round", "sqr", "sqrt", "rsqr", "rsqrt", "log2"),
    *("sigmoid", "relu", "leaky_relu", "elu", "selu", "gelu", "silu", "tanh", "softplus"),
)
def _unary(x: Shape) -> Result:
    return x


@_describes("4.2.1", "cast")
def _cast(input: Shape) -> Result:
    return input


# Results that have the common shape of the operands.
for _clause, _operations, _operands in (
    ("4.2.2", "add sub mul div pow lt gt le ge eq ne and or min max", "x y"),
    ("4.2.3", "select", "condition true_value false_value"),
    ("4.2.4", "clamp", "x a b"),
    ("4.9.1", "prelu", "x alpha"),
    ("4.9.4", "batch_normalization", "input mean variance offset scale"),
    ("4.9.5", "min_max_linear_quantize linear_quantize", "x min max"),
    ("4.9.5", "zero_point_linear_quantize", "x zero_point scale"),
    ("4.9.5", "logarithmic_quantize", "x max"),
):
    _broadcasting = ShapeFunction(_broadcast, tuple(_operands.split()), _clause)
    FUNCTIONS.update(dict.fromkeys(_operations.split(), _broadcasting))


# ---------------------------------------------------------------------------------------------- 4.3
class _Window(NamedTuple):
    """Window along one dimension: dilated size, stride, and padding before and after (None: automatic)."""

    size: int
    stride: int
    padding: tuple[int, int] | None

    def down(self, extent: int, axis: int) -> int:
        """Return the down-scaled extent."""
        if self.padding is None:
            return -(-extent // self.stride)
        padded = sum(self.padding) + extent
        if padded < self.size:
            message = f"the window has {self.size} items in dimension {axis}; the padded extent is {padded}"
            raise ShapeError("window-extent", message)
        return (padded - self.size) // self.stride + 1

    def up(self, extent: int, axis: int) -> int:
        """Return the up-scaled extent."""
        if self.padding is None:
            return extent * self.stride
        found = (extent - 1) * self.stride + self.size - sum(self.padding)
        if found < 1:
            raise ShapeError("window-extent", f"the extent of the result is {found} in dimension {axis}")
        return found


def _windows(size: Sequence[int], padding: Pairs, stride: Sequence[int], dilation: Sequence[int]) -> list[_Window]:
    """Return the window along each dimension; arrays other than ``size`` may be empty."""
    rank = len(size)
    for items, name in ((padding, "padding"), (stride, "stride"), (dilation, "dilation")):
        _count(items, name, rank, empty=True)
    return [
        _Window((size[k] - 1) * (dilation[k] if dilation else 1) + 1, stride[k] if stride else 1, padding[k])
        if padding
        else _Window(0, stride[k] if stride else 1, None)
        for k in range(rank)
    ]


def _down(extents: Shape, windows: list[_Window], first: int = 0) -> Shape:
    return tuple(window.down(extents[k], k) for k, window in enumerate(windows, first))


def _up(extents: Shape, windows: list[_Window], channels: Shape, output_shape: Sequence[int]) -> Shape:
    """Return the shape of a reverse operation; ``channels`` are the first extents, which no window covers."""
    first = len(channels)
    _count(output_shape, "output_shape", len(extents), empty=True)
    if not output_shape:
        return (*channels, *(window.up(extents[k], k) for k, window in enumerate(windows, first)))
    wanted = tuple(output_shape)
    if min(wanted) < 1 or wanted[:first] != channels or _down(wanted, windows, first) != extents[first:]:
        message = f"an input {[*extents]} does not result from output_shape {[*wanted]}"
        raise ShapeError("output-shape", message, "output_shape")
    return wanted


def _check_bias(bias: Shape, channels: int) -> None:
    """Check the bias of a convolution. The shape [channels] is accepted, because Khronos' own parser accepts it too."""
    if bias != (channels,) and any(extent != 1 and (k != 1 or extent != channels) for k, extent in enumerate(bias)):
        raise ShapeError("conv-bias", f"bias {[*bias]} does not have the shape [1, {channels}] or [1, 1]", "bias")


def _check_groups(filter: Shape, groups: int) -> None:
    if filter[0] % groups:
        message = f"{groups} groups do not divide the batch dimension {filter[0]} of filter {[*filter]}"
        raise ShapeError("conv-groups", message, "groups")


@_describes("4.3.1", "conv")
def _conv(
    input: Shape,
    filter: Shape,
    bias: Shape,
    padding: Pairs,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Shape:
    _same_rank(2, input=input, filter=filter)
    groups = groups or input[1]
    if filter[1] * groups != input[1]:
        message = f"filter {[*filter]} has {_plural(filter[1], 'channel')} in each of {_plural(groups, 'group')}"
        raise ShapeError("conv-channels", f"{message}; input {[*input]} has {input[1]}", "filter")
    _check_groups(filter, groups)
    _check_bias(bias, filter[0])
    return (input[0], filter[0], *_down(input, _windows(filter[2:], padding, stride, dilation), 2))


@_describes("4.3.1", "deconv")
def _deconv(
    input: Shape,
    filter: Shape,
    bias: Shape,
    padding: Pairs,
    stride: Sequence[int],
    dilation: Sequence[int],
    output_shape: Sequence[int],
    groups: int,
) -> Shape:
    _same_rank(2, input=input, filter=filter)
    if filter[0] != input[1]:
        message = f"the batch dimension of filter {[*filter]} is not the number of channels of input {[*input]}"
        raise ShapeError("conv-channels", message, "filter")
    if not groups:  # the channels of the up-scaled tensor
        groups = output_shape[1] if len(output_shape) > 1 and output_shape[1] > 0 else input[1]
    _check_groups(filter, groups)
    channels = filter[1] * groups
    _check_bias(bias, channels)
    return _up(input, _windows(filter[2:], padding, stride, dilation), (input[0], channels), output_shape)


@_describes("4.9.2", "separable_conv")
def _separable_conv(
    input: Shape,
    plane_filter: Shape,
    point_filter: Shape,
    bias: Shape,
    padding: Pairs,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Result:
    return _conv(_conv(input, plane_filter, (), padding, stride, dilation, 0), point_filter, bias, [], [], [], groups)


@_describes("4.9.2", "separable_deconv")
def _separable_deconv(
    input: Shape,
    plane_filter: Shape,
    point_filter: Shape,
    bias: Shape,
    padding: Pairs,
    stride: Sequence[int],
    dilation: Sequence[int],
    output_shape: Sequence[int],
    groups: int,
) -> Result:
    filtered = _deconv(input, point_filter, (), [], [], [], [], groups)
    return _deconv(filtered, plane_filter, bias, padding, stride, dilation, output_shape, 0)


@_describes("4.3.2", "box", "avg_pool", "rms_pool")
@_describes("4.3.3", "argmax_pool", "max_pool")
def _box(input: Shape, size: Sequence[int], padding: Pairs, stride: Sequence[int], dilation: Sequence[int]) -> Shape:
    _count(size, "size", len(input))
    return _down(input, _windows(size, padding, stride, dilation))


@_describes("4.3.3", "max_pool_with_index")
def _max_pool_with_index(
    input: Shape, size: Sequence[int], padding: Pairs, stride: Sequence[int], dilation: Sequence[int]
) -> Result:
    return [_box(input, size, padding, stride, dilation)] * 2


@_describes("4.3.2", "debox")
def _debox(
    input: Shape,
    size: Sequence[int],
    padding: Pairs,
    stride: Sequence[int],
    dilation: Sequence[int],
    output_shape: Sequence[int],
) -> Shape:
    _count(size, "size", len(input))
    return _up(input, _windows(size, padding, stride, dilation), (), output_shape)


def _check_index(index: Shape, shape: Shape) -> None:
    if index != shape:
        raise ShapeError("index-shape", f"index {[*index]} does not have the shape {[*shape]}", "index")


@_describes("4.3.3", "sample")
def _sample(
    input: Shape,
    index: Shape,
    size: Sequence[int],
    padding: Pairs,
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Result:
    output = _box(input, size, padding, stride, dilation)
    _check_index(index, output)
    return output


@_describes("4.3.3", "desample")
def _desample(
    input: Shape,
    index: Shape,
    size: Sequence[int],
    padding: Pairs,
    stride: Sequence[int],
    dilation: Sequence[int],
    output_shape: Sequence[int],
) -> Result:
    _check_index(index, input)
    return _debox(input, size, padding, stride, dilation, output_shape)


@_describes("4.3.4", "nearest_downsample", "area_downsample")
def _downsample(input: Shape, factor: Sequence[int]) -> Result:
    _same_rank(2, input=input)
    _count(factor, "factor", len(input) - 2)
    if any(extent % by for extent, by in zip(input[2:], factor, strict=True)):
        raise ShapeError("sampling-factor", f"factor {[*factor]} does not divide input {[*input]}", "factor")
    return (*input[:2], *(extent // by for extent, by in zip(input[2:], factor, strict=True)))


@_describes("4.3.4", "nearest_upsample", "multilinear_upsample")
def _upsample(input: Shape, factor: Sequence[int]) -> Result:
    _same_rank(2, input=input)
    _count(factor, "factor", len(input) - 2)
    return (*input[:2], *(extent * by for extent, by in zip(input[2:], factor, strict=True)))


# ---------------------------------------------------------------------------------------------- 4.4, 4.5
@_describes("4.4", "sum_reduce", "max_reduce", "min_reduce", "mean_reduce", "argmax_reduce", "argmin_reduce")
@_describes("4.4", "all_reduce", "any_reduce")
def _reduce(input: Shape, axes: Sequence[int]) -> Shape:
    _in_range(axes, len(input))
    return tuple(1 if k in axes else extent for k, extent in enumerate(input))


@_describes("4.9.6", "moments")
def _moments(input: Shape, axes: Sequence[int]) -> Result:
    return [_reduce(input, axes)] * 2


@_describes("4.5.1", "reshape")
def _reshape(input: Shape, shape: Sequence[int], axis_start: int, axis_count: int) -> Result:
    end = len(input) if axis_count == -1 else axis_start + axis_count
    if not 0 <= axis_start <= end <= len(input):
        message = f"axes {axis_start} to {end - 1} are not dimensions of a tensor of rank {len(input)}"
        raise ShapeError("axis-range", message, "axis_start" if axis_start else "axis_count")
    replaced = input[axis_start:end]
    what = f"shape {[*shape]} of input {[*input]}"
    if list(shape).count(-1) > 1 or min(shape, default=1) < -1:
        raise ShapeError("reshape-volume", f"{what} has an extent below -1, or more than one of -1", "shape")
    if any(not extent and axis_start + k >= len(input) for k, extent in enumerate(shape)):
        raise ShapeError("reshape-volume", f"{what} inherits an extent that the input lacks", "shape")
    extents = [extent or input[axis_start + k] for k, extent in enumerate(shape)]
    known, volume = prod(extent for extent in extents if extent != -1), prod(replaced)
    if volume % known or (known != volume and -1 not in extents):
        more = f" from {axis_start} to {end}" if len(replaced) < len(input) else ""
        raise ShapeError("reshape-volume", f"{what} has volume {known}, not {volume}{more}", "shape")
    return (*input[:axis_start], *(volume // known if extent == -1 else extent for extent in extents), *input[end:])


@_describes("4.5.1", "squeeze")
def _squeeze(input: Shape, axes: Sequence[int]) -> Result:
    _in_range(axes, len(input))
    if wide := [axis for axis in axes if input[axis] != 1]:
        raise ShapeError("reshape-volume", f"input {[*input]} is not singular in dimension {wide[0]}", "axes")
    return tuple(extent for k, extent in enumerate(input) if k not in axes)


@_describes("4.5.1", "unsqueeze")
def _unsqueeze(input: Shape, axes: Sequence[int]) -> Shape:
    _in_range(axes, len(input) + len(axes))
    extents = iter(input)
    return tuple(1 if k in axes else next(extents) for k in range(len(input) + len(axes)))


@_describes("4.5.2", "transpose")
def _transpose(input: Shape, axes: Sequence[int]) -> Result:
    if len(axes) > len(input) or sorted(axes) != [*range(len(axes))]:
        message = f"axes {[*axes]} are not a permutation of the first dimensions of input {[*input]}"
        raise ShapeError("transpose-axes", message, "axes")
    return (*(input[axis] for axis in axes), *input[len(axes) :])


@_describes("4.5.3", "split")
def _split(value: Shape, axis: int, ratios: Sequence[int]) -> Result:
    _in_range([axis], len(value), "axis")
    total = sum(ratios)
    if not total or value[axis] % total:
        message = f"the sum of ratios, {total}, does not divide the extent {value[axis]} of dimension {axis}"
        raise ShapeError("split-ratios", message, "ratios")
    return [(*value[:axis], value[axis] // total * ratio, *value[axis + 1 :]) for ratio in ratios]


@_describes("4.5.3", "concat")
def _concat(values: Shapes, axis: int) -> Result:
    if not values:
        return None
    first = values[0]
    for shape in values:
        if len(shape) != len(first):
            raise ShapeError("concat-shapes", f"values {[*first]} and {[*shape]} differ in rank", "values")
    _in_range([axis], len(first), "axis")
    for shape in values:
        if shape[:axis] + shape[axis + 1 :] != first[:axis] + first[axis + 1 :]:
            message = f"values {[*first]} and {[*shape]} differ in dimensions other than {axis}"
            raise ShapeError("concat-shapes", message, "values")
    return (*first[:axis], sum(shape[axis] for shape in values), *first[axis + 1 :])


@_describes("4.5.3", "stack")
def _stack(values: Shapes, axis: int) -> Result:
    if not values:
        return None
    _in_range([axis], len(values[0]) + 1, "axis")
    for shape in values:
        if shape != values[0]:
            raise ShapeError("concat-shapes", f"values {[*values[0]]} and {[*shape]} differ", "values")
    return (*values[0][:axis], len(values), *values[0][axis:])


@_describes("4.5.3", "unstack")
def _unstack(value: Shape, axis: int) -> Result:
    _in_range([axis], len(value), "axis")
    return [(*value[:axis], *value[axis + 1 :])] * value[axis] if value[axis] <= MAX_ITEMS else None


@_describes("4.5.4", "slice")
def _slice(
    input: Shape, axes: Sequence[int], begin: Sequence[int], end: Sequence[int], stride: Sequence[int]
) -> Result:
    _count(begin, "begin", len(axes))
    _count(end, "end", len(axes))
    _count(stride, "stride", len(axes), empty=True)
    _in_range(axes, len(input))
    result = list(input)
    for k, axis in enumerate(axes):
        extent, step = input[axis], stride[k] if stride else 1
        first = begin[k] + extent if begin[k] < 0 else begin[k]
        last = end[k] + extent if end[k] < 0 or (end[k] == 0 and step > 0) else end[k]
        # Negative steps, which are later than NNEF 1.0.3, end at -1 after the first item.
        length = -((first - last) // step) if step else 0
        if not (0 <= first < extent and -1 <= last <= extent and length > 0):
            message = f"the slice {begin[k]}:{end[k]} of extent {extent} in dimension {axis} is empty or out of range"
            raise ShapeError("slice-range", message, "end" if 0 <= first < extent else "begin")
        result[axis] = length
    return tuple(result)


@_describes("4.5.5", "pad")
def _pad(input: Shape, padding: Pairs) -> Result:
    _count(padding, "padding", len(input))
    result = tuple(extent + sum(pair) for extent, pair in zip(input, padding, strict=True))
    if min(result, default=1) < 1:
        raise ShapeError("window-extent", f"padding of input {[*input]} has the result {[*result]}", "padding")
    return result


@_describes("4.5.6", "tile")
def _tile(input: Shape, repeats: Sequence[int]) -> Result:
    _count(repeats, "repeats", len(input))
    return tuple(extent * times for extent, times in zip(input, repeats, strict=True))


@_describes("4.5", "gather")
def _gather(input: Shape, indices: Shape, axis: int) -> Result:
    _in_range([axis], len(input), "axis")
    return (*input[:axis], *indices, *input[axis + 1 :])


# ---------------------------------------------------------------------------------------------- 4.6 to 4.8
@_describes("4.6.1", "avg_roi_pool", "max_roi_pool")
@_describes("4.6.2", "roi_resample")
def _roi(input: Shape, rois: Shape, batch_index: Shape, output_size: Sequence[int]) -> Result:
    _same_rank(2, input=input)
    spatial = len(input) - 2
    _count(output_size, "output_size", spatial)
    if len(rois) != 2 or rois[1] != 2 * spatial:
        raise ShapeError("roi-shape", f"rois {[*rois]} does not have the shape [N, {2 * spatial}]", "rois")
    if batch_index[:1] != rois[:1] or prod(batch_index[1:]) != 1:
        message = f"batch_index {[*batch_index]} does not have the shape [{rois[0]}, 1]"
        raise ShapeError("roi-shape", message, "batch_index")
    return (rois[0], input[1], *output_size)


@_describes("4.6.2", "avg_roi_align", "max_roi_align")
def _roi_align(
    input: Shape, rois: Shape, batch_index: Shape, output_size: Sequence[int], sampling_rate: Sequence[int]
) -> Result:
    _count(sampling_rate, "sampling_rate", len(output_size))
    return _roi(input, rois, batch_index, output_size)


def _product(transpose_a: bool, transpose_b: bool, **operands: Shape) -> Shape:
    """Return the shape of a product of matrices."""
    _same_rank(2, **operands)
    (a, one), (b, other) = operands.items()
    rows, inner = one[:-3:-1] if transpose_a else one[-2:]
    other_inner, columns = other[:-3:-1] if transpose_b else other[-2:]
    if inner != other_inner:
        message = f"the inner dimensions of {a} {[*one]} and {b} {[*other]} are {inner} and {other_inner}"
        raise ShapeError("matmul-inner", message, b)
    return (*(_broadcast(**{a: one[:-2], b: other[:-2]})), rows, columns)


@_describes("4.7", "matmul")
def _matmul(A: Shape, B: Shape, transposeA: bool, transposeB: bool) -> Result:  # noqa: N803
    return _product(transposeA, transposeB, A=A, B=B)


@_describes("4.8", "update")
def _update(variable: Shape, value: Shape) -> Result:
    if value != variable:
        raise ShapeError("updated-shape", f"value {[*value]} does not have the shape {[*variable]}", "value")
    return variable


# ---------------------------------------------------------------------------------------------- 4.9
@_describes("4.9.2", "linear")
def _linear(input: Shape, filter: Shape, bias: Shape) -> Result:
    return _broadcast(product=_product(False, True, input=input, filter=filter), bias=bias)


@_describes("4.9.1", "softmax")
def _softmax(x: Shape, axes: Sequence[int]) -> Result:
    _in_range(axes, len(x))
    return x


@_describes("4.9.4", "l1_normalization", "l2_normalization")
def _normalization(input: Shape, axes: Sequence[int]) -> Result:
    _in_range(axes, len(input))
    return input


@_describes("4.9.4", "local_response_normalization", "local_mean_normalization", "local_variance_normalization")
@_describes("4.9.4", "local_contrast_normalization")
def _local_normalization(input: Shape, size: Sequence[int]) -> Result:
    _count(size, "size", len(input))
    return input


@_describes("4.9.6", "copy_n")
def _copy_n(x: Shape, times: int) -> Result:
    return [x] * times if 0 <= times <= MAX_ITEMS else None


@_describes("4.9.6", "add_n")
def _add_n(x: Shapes) -> Result:
    try:
        return _broadcast(**{f"x[{k}]": shape for k, shape in enumerate(x)}) if x else ()
    except ShapeError as error:
        raise ShapeError(error.rule, error.message, "x") from None
