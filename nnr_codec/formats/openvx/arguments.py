"""Arguments of NNEF operations, and the windows, shapes and numbers computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...topology.graph import Value

#: Values of vx_nn_rounding_type_e.
FLOOR, CEILING = "VX_NN_DS_SIZE_ROUNDING_FLOOR", "VX_NN_DS_SIZE_ROUNDING_CEILING"
#: Largest float32 number, and smallest positive normal float32 number.
LARGEST, LEAST = 2.0**128 - 2.0**104, 2.0**-126

#: Maximum of strides, dilations and paddings.
MOST = 1 << 32

Shape = tuple[int, ...]


class NoLayerError(Exception):
    """Operation whose arguments no function of the extension supports."""


@dataclass(frozen=True)
class Window:
    """Window of an operation along one dimension.

    Parameters
    ----------
    output : int
        Extent of the result.
    before : int
        Padding that the extension adds on both sides.
    pads : (int, int)
        Padding of the operation before and after the input.
    steps : frozenset of str
        As ``roundings``, with ``pads`` as part of the input and no other padding.
    is_padded : bool
        True if a window extends beyond the input.
    dilation : int
    roundings : frozenset of str
        Rounding modes with which the extension accepts this output and derives the same stride from it
        (vxConvolutionLayer).
    is_trivial : bool
        True if the window changes nothing.
    """

    output: int
    before: int
    pads: tuple[int, int]
    steps: frozenset[str]
    is_padded: bool
    dilation: int
    roundings: frozenset[str]
    is_trivial: bool


@dataclass(frozen=True)
class Spread:
    """Deconvolution along one dimension.

    Parameters
    ----------
    output : int
        Extent of the result.
    padding, more : int
        Number of items removed on each side, and its reduction on the last side (a_x or a_y of the extension).
    is_possible : bool
        True if the extension computes the same result.
    """

    output: int
    padding: int
    more: int
    is_possible: bool


def windows(value: Value, extents: Shape, kernel: Sequence[int]) -> list[Window]:
    """Return the windows of an operation. Raise NoLayerError for unknown arguments or an empty output."""
    stride, dilation, pads = _steps(value, len(extents), kernel)
    found = []
    for k in range(len(extents)):
        reach = (kernel[k] - 1) * dilation[k] + 1
        if pads is None:  # padding for output = input / stride (NNEF 1.0, 4.3.1)
            output = -(-extents[k] // stride[k])
            total = max((output - 1) * stride[k] + reach - extents[k], 0)
            before, after = total // 2, total - total // 2
        else:
            before, after = pads[k]
            output = (extents[k] + before + after - reach) // stride[k] + 1
        if output < 1:
            raise NoLayerError
        last = (output - 1) * stride[k] + reach - before - extents[k]
        roundings = _roundings(extents[k] + 2 * before - reach, stride[k], output)
        steps = _roundings(extents[k] + before + after - reach, stride[k], output)
        trivial = (kernel[k], stride[k], before, after) == (1, 1, 0, 0)
        is_padded = before > 0 or last > 0
        found.append(Window(output, before, (before, after), steps, is_padded, dilation[k], roundings, trivial))
    return found


def spreads(value: Value, extents: Shape, kernel: Sequence[int]) -> list[Spread]:
    """Return the spreads of a deconvolution. Raise NoLayerError for unknown arguments or an empty output."""
    stride, dilation, pads = _steps(value, len(extents), kernel)
    found = []
    for k in range(len(extents)):
        whole = (extents[k] - 1) * stride[k] + (kernel[k] - 1) * dilation[k] + 1
        total = max(whole - extents[k] * stride[k], 0)
        before, after = (total // 2, total - total // 2) if pads is None else pads[k]
        if whole <= before + after:
            raise NoLayerError
        fits = before == after or (before > after and before - after < stride[k] and extents[k] > 1)
        possible = dilation[k] == 1 and before < kernel[k] and fits
        found.append(Spread(whole - before - after, before, before - after, possible))
    return found


def _steps(value: Value, rank: int, kernel: Sequence[int]) -> tuple[list[int], list[int], list[tuple[int, int]] | None]:
    """Return stride, dilation and padding of ``rank`` dimensions; None for automatic padding."""
    stride, dilation = (integers(value, name, []) or [1] * rank for name in ("stride", "dilation"))
    pads = padding(value)
    if {len(stride), len(dilation), len(kernel)} != {rank} or len(pads or stride) != rank:
        raise NoLayerError
    if min(*stride, *dilation, *kernel) < 1 or max(*stride, *dilation, *kernel) > MOST:
        raise NoLayerError
    if any(not 0 <= pad <= MOST for pair in pads or () for pad in pair):
        raise NoLayerError
    return stride, dilation, pads


def _roundings(span: int, stride: int, output: int) -> frozenset[str]:
    """Return the roundings for which ``span / stride + 1`` is the output, with the smallest such stride."""
    found = set()
    if span >= 0:
        if span // stride + 1 == output and (output == 1 or span // output + 1 == stride):
            found.add(FLOOR)
        if -(-span // stride) + 1 == output and (output == 1 or -(-span // (output - 1)) == stride):
            found.add(CEILING)
    return frozenset(found)


def integers(value: Value, name: str, default: Sequence[int] | None = None) -> list[int]:
    """Return an argument that is an integer or an array of integers. Raise NoLayerError if it is unknown or missing."""
    given = value.inputs.get(name)
    if given is None and default is not None:
        return list(default)
    items = [given] if given is None or given.items is None else given.items
    found = [item.constant for item in items if item is not None and type(item.constant) is int]
    if len(found) != len(items):
        raise NoLayerError
    return found


def padding(value: Value) -> list[tuple[int, int]] | None:
    """Return the padding pairs, None for automatic padding. Raise NoLayerError for other values."""
    given = value.inputs.get("padding")
    if given is None or given.items == []:
        return None
    pairs = [
        tuple(item.constant for item in pair.items or () if type(item.constant) is int) for pair in given.items or ()
    ]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise NoLayerError
    return [(pair[0], pair[1]) for pair in pairs]


def number(value: Value | None) -> float | None:
    """Return a number in the range of float32; None for anything else."""
    constant = value.constant if value else None
    if isinstance(constant, bool) or not isinstance(constant, int | float) or not abs(constant) <= LARGEST:
        return None
    return float(constant)


def string(value: Value, name: str, default: str) -> str:
    """Return a string argument. Raise NoLayerError if it is unknown."""
    given = value.inputs.get(name)
    if given is None:
        return default
    if not isinstance(given.constant, str):
        raise NoLayerError
    return given.constant


def flag(value: Value, name: str) -> bool:
    """Return a logical argument with default False. Raise NoLayerError if it is unknown."""
    given = value.inputs.get(name)
    if given is None:
        return False
    if not isinstance(given.constant, bool):
        raise NoLayerError
    return given.constant
