"""Detection of the removable channels of a network, and of the tensors that contain them.

The algorithm walks the graph from its inputs. The rule of each operation joins the dimensions of operands and results
that are the same channels (see :mod:`.tracks`), and fixes dimensions whose channels cannot be removed. Channels are
fixed if

- an unknown operation uses them;
- a result is not finite when they are 0;
- the graph states their number: inputs and outputs of the network, groups, literal shapes;
- an operation sums over them, unless it multiplies them by a weight, whose elements for them are removed as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

import numpy as np

from ..model import Channels
from .graph import Graph, Tensor, Value
from .tracks import Ids, Tracks

#: Dimensions with a larger extent have no tracks, which bounds the memory.
_MOST = 1 << 22
_MAX_RANK = 32

#: Elementwise operations whose result is finite if all operands are 0. The divisor of ``div`` is fixed separately.
_ELEMENTWISE = frozenset(
    {
        *("copy", "neg", "exp", "sin", "cos", "tan", "abs", "sign", "floor", "ceil", "round", "sqr", "sqrt", "not"),
        *("add", "sub", "mul", "div", "pow", "min", "max", "lt", "gt", "le", "ge", "eq", "ne", "and", "or", "select"),
        *("clamp", "sigmoid", "relu", "tanh", "softplus", "prelu", "elu", "elementwise"),
        *("leaky_relu", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "gelu", "silu", "selu"),
        *("min_max_linear_quantize", "zero_point_linear_quantize", "linear_quantize", "cast"),
    }
)
#: Elementwise operations that map weights of 0 to 0, so that their result is a weight too.
_SCALING = ("copy", "neg", "mul")


@dataclass(eq=False)
class _Merged:
    """Dimension that a reshape has merged from channels and an unknown dimension after (``after``) or before them."""

    ids: Ids
    after: bool
    known: Ids | None = None


Axis = Ids | _Merged | None


@dataclass(eq=False)
class _Extents:
    """Dimensions of a value.

    ``axes`` has None for a dimension of unknown extent without channels, and is None if the rank is unknown. A value
    with ``is_weight`` is computed from tensors only, and is 0 where they are 0. A value with ``is_open`` may have more
    dimensions before ``axes``.
    """

    axes: list[Axis] | None
    is_weight: bool = False
    is_open: bool = False


_UNKNOWN = _Extents(None)


class _LostError(Exception):
    """Operation that the walk does not understand; the channels of its operands are fixed."""


def find_channels(graph: Graph) -> tuple[Channels, ...]:
    """Return the removable channels of a graph. Raises LimitError if the graph has too many channels."""
    return _Walk(graph).run()


Arguments = dict[str, Value]


@dataclass
class _Walk:
    graph: Graph
    tracks: Tracks = field(default_factory=Tracks)
    found: dict[int, _Extents] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)

    def run(self) -> tuple[Channels, ...]:
        """Walk all values in order, then fix the values that something outside the walk uses."""
        values = self.graph.values
        for value in values:
            # A value that precedes one of its inputs was processed without this input.
            self.fix_all([used for used in value.inputs.values() if id(used) not in self.found])
            found = self.found[id(value)] = self.extents(value)
            if id(value) in self.lost:
                self.fix_each(found.axes)
        for value in values:
            if any(id(user) not in self.found for user in value.users):
                self.fix_all([value])
        return self.tracks.channels()

    # ---------------------------------------------------------------------------------------------- values
    def extents(self, value: Value) -> _Extents:
        """Return the dimensions of a value from the dimensions of its inputs."""
        if value.tensor is not None:
            return self.of_tensor(value.tensor)
        if value.constant is not None:
            return _Extents([])
        if value.items is not None:
            return _UNKNOWN
        try:
            found, known = self.operation(value)
            if found.axes is not None and len(found.axes) > _MAX_RANK:
                raise _LostError
        except _LostError:
            self.fix_all(value.inputs.values())
            return _UNKNOWN
        self.fix_all(other for name, other in value.inputs.items() if name not in known)
        return found

    def operation(self, value: Value) -> tuple[_Extents, Collection[str]]:
        """Return the dimensions of the result of an operation, and the names of arguments that may be tensors."""
        if value.operation in _ELEMENTWISE:
            return self.elementwise(value), value.inputs
        rule, tensors = self.RULES.get(value.operation, (None, ()))
        if rule is None:
            raise _LostError
        return rule(self, value.inputs), tensors

    def of_tensor(self, tensor: Tensor) -> _Extents:
        """Return the dimensions of a tensor; equal names are one tensor. Integers are indices or choices, and fixed."""
        axes: list[Axis] = [
            self.tracks.fixed(1) if extent == 1 else self.tracks.of(tensor.name, k, extent) if extent <= _MOST else None
            for k, extent in enumerate(tensor.shape)
        ]
        if not tensor.is_float:
            self.fix_each(axes)
        return _Extents(axes, is_weight=True)

    def of(self, value: Value | None) -> _Extents:
        """Return the dimensions of a value. A missing value is a scalar."""
        return _Extents([]) if value is None else self.found.get(id(value), _UNKNOWN)

    def known(self, value: Value | None) -> list[Axis]:
        """Return all dimensions of a value; raise _LostError if the rank is unknown."""
        found = self.of(value)
        if found.axes is None or found.is_open:
            raise _LostError
        return list(found.axes)

    def fix(self, axis: Axis) -> None:
        """Fix the channels of a dimension."""
        if axis is not None:
            self.tracks.fix(axis.ids if isinstance(axis, _Merged) else axis)

    def fix_each(self, axes: Iterable[Axis] | None) -> None:
        """Fix the channels of all dimensions."""
        for axis in axes or ():
            self.fix(axis)

    def fix_all(self, values: Iterable[Value]) -> None:
        """Fix all channels of values and of the items of arrays."""
        left = list(values)
        while left:
            value = left.pop()
            if id(value) not in self.lost:
                self.lost.add(id(value))
                left += value.items or ()
                self.fix_each(self.of(value).axes)

    # ---------------------------------------------------------------------------------------------- extents
    def ids(self, axis: Axis, extent: int | None = None) -> Ids | None:
        """Return the tracks of a dimension, or None. With its ``extent``, tracks of a merged dimension are computed."""
        if not isinstance(axis, _Merged):
            return axis
        if axis.known is None and extent is not None and extent % len(axis.ids) == 0:
            self.tracks.charge(extent)
            times = extent // len(axis.ids)
            axis.known = np.repeat(axis.ids, times) if axis.after else np.tile(axis.ids, times)
        return axis.known

    def same(self, axes: Sequence[Axis]) -> Axis:
        """Join dimensions of operands, and return the dimension of the result. Extents of 1 are broadcast."""
        wide = [axis for axis in axes if not self.is_single(axis)]
        if not wide:
            return axes[0] if axes else self.tracks.fixed(1)
        if all(axis is wide[0] for axis in wide):
            return wide[0]
        extents = {len(ids) for axis in wide if (ids := self.ids(axis)) is not None}
        extent = extents.pop() if len(extents) == 1 else None
        found = [ids for axis in wide if (ids := self.ids(axis, extent)) is not None]
        if len(found) < len(wide) or any(len(ids) != len(found[0]) for ids in found):
            for axis in wide:
                self.fix(axis)
            return None
        for ids in found[1:]:
            self.tracks.join(found[0], ids)
        return found[0]

    def is_single(self, axis: Axis) -> bool:
        """Return True if the extent of a dimension is 1."""
        ids = self.ids(axis)
        return ids is not None and len(ids) == 1

    def contracted(self, one: Axis, other: Axis, *, weighted: bool) -> None:
        """Join dimensions over which an operation sums products; fix them unless one operand is a weight."""
        if not weighted or self.is_single(one) != self.is_single(other):
            self.fix(one)
            self.fix(other)
        self.same([one, other])

    def with_vector(self, axis: Axis, value: Value | None) -> Axis:
        """Join a dimension with the only dimension of a vector, such as a bias, and return it."""
        if value is None:
            return axis
        axes = self.of(value).axes
        wide = [of for of in axes or () if not self.is_single(of)]
        if axes is not None and not wide:
            return axis
        if axes is not None and len(wide) == 1:
            return self.same([axis, wide[0]])
        self.fix_all([value])
        self.fix(axis)
        return axis

    def channel(self, value: Value | None) -> Axis:
        """Return the channels of an activation, its second dimension."""
        found = self.of(value)
        if found.is_open:
            raise _LostError
        return found.axes[1] if found.axes is not None and len(found.axes) > 1 else None

    def result(self, value: Value | None, channels: Axis, rank: int) -> _Extents:
        """Return dimensions: the first one of an operand, ``channels``, and unknown ones up to the operand's rank."""
        axes = self.of(value).axes
        self.fix_each((axes or [])[2:])
        return _Extents([axes[0] if axes else None, channels, *[None] * ((len(axes) if axes else rank) - 2)])

    def broadcast(self, found: Sequence[_Extents]) -> list[Axis]:
        """Return the dimensions of the result of broadcasting."""
        step = -1 if self.graph.aligns_last else 1
        aligned = [((each.axes or [])[::step], each.is_open) for each in found]
        axes = [
            self.same([axes[k] if k < len(axes) else None for axes, is_open in aligned if k < len(axes) or is_open])
            for k in range(max((len(axes) for axes, _ in aligned), default=0))
        ]
        return axes[::step]

    # ---------------------------------------------------------------------------------------------- operations
    def elementwise(self, value: Value) -> _Extents:
        found = [self.of(argument) for argument in value.inputs.values()]
        if any(each.axes is None for each in found):
            raise _LostError
        if value.operation == "div":
            self.fix_each(self.of(value.inputs.get("y")).axes)
        is_weight = value.operation in _SCALING and all(each.is_weight or not each.axes for each in found)
        return _Extents(self.broadcast(found), is_weight, any(each.is_open for each in found))

    def external(self, a: Arguments) -> _Extents:
        shape = _integers(a.get("shape"))
        return _Extents([self.tracks.fixed(extent) if 1 <= extent <= _MOST else None for extent in shape])

    def conv(self, a: Arguments) -> _Extents:
        return self.convolved(a, "filter")

    def deconv(self, a: Arguments) -> _Extents:
        if _integers(a.get("output_shape")):
            raise _LostError
        return self.convolved(a, "filter", is_transposed=True)

    def separable_conv(self, a: Arguments) -> _Extents:
        if _integer(a.get("groups"), 1) != 1:
            raise _LostError
        return self.convolved(a, "point_filter", given=self.planes(a, "plane_filter"))

    def convolved(self, a: Arguments, name: str, given: Axis = None, *, is_transposed: bool = False) -> _Extents:
        """Return the result of a convolution. ``given`` replaces the channels of the input."""
        weight, axes = self.of(a.get(name)), self.known(a.get(name))
        groups = _integer(a.get("groups"), 1)
        if len(axes) < 2 or groups not in (0, 1):
            raise _LostError
        if groups == 0:
            made = self.planes(a, name, is_transposed=is_transposed)
        else:
            into, out = axes[:2] if is_transposed else axes[1::-1]
            given = self.channel(a.get("input")) if given is None else given
            self.contracted(given, into, weighted=weight.is_weight)
            made = self.made(out)
        return self.result(a.get("input"), self.with_vector(made, a.get("bias")), len(axes))

    def planes(self, a: Arguments, name: str, *, is_transposed: bool = False) -> Axis:
        """Return the channels of a depthwise convolution, which has separate filters for each channel."""
        axes, channels = self.known(a.get(name)), self.ids(self.channel(a.get("input")))
        own, each = (self.ids(axis) for axis in axes[:2]) if len(axes) > 1 else (None, None)
        if channels is None or own is None or each is None or len(own) % len(channels):
            raise _LostError
        self.tracks.charge(len(own))
        self.tracks.join(np.repeat(channels, len(own) // len(channels)), own)
        self.fix(axes[1])
        if not is_transposed:
            return own
        if len(own) * len(each) > _MOST:
            raise _LostError
        self.tracks.charge(len(own) * len(each))
        return np.repeat(own, len(each)) if len(each) > 1 else own

    def made(self, axis: Axis) -> Axis:
        """Record that a weight produces these channels, and return them."""
        ids = self.ids(axis)
        if ids is not None:
            self.tracks.make(ids)
        return axis

    def linear(self, a: Arguments) -> _Extents:
        weight, axes = self.of(a.get("filter")), self.known(a.get("filter"))
        if len(axes) != 2:
            raise _LostError
        self.contracted(self.channel(a.get("input")), axes[1], weighted=weight.is_weight)
        return self.result(a.get("input"), self.with_vector(self.made(axes[0]), a.get("bias")), 2)

    def matmul(self, a: Arguments, *, is_batched: bool = False) -> _Extents:
        """Return a matrix product. The first operand may have an unknown rank if the second one is a weight."""
        one, other = self.of(a.get("A")), self.of(a.get("B"))
        left, right = list(one.axes or []), self.known(a.get("B"))
        is_open = is_batched and (one.is_open or one.axes is None)
        if one.axes is None or one.is_open:
            if not other.is_weight or len(right) != 2:
                raise _LostError
            left = [None] * (2 - len(left)) + left
        if min(len(left), len(right)) < 2 or not (is_batched or len(left) == len(right)):
            raise _LostError
        rows, inner = left[:-3:-1] if _logical(a.get("transposeA")) else left[-2:]
        other_inner, columns = right[:-3:-1] if _logical(a.get("transposeB")) else right[-2:]
        self.contracted(inner, other_inner, weighted=one.is_weight or other.is_weight)
        if one.is_weight:
            self.made(rows)
        if other.is_weight:
            self.made(columns)
        batch = self.broadcast([_Extents(left[:-2]), _Extents(right[:-2])])
        return _Extents([*batch, rows, columns], is_open=is_open)

    def batched_matmul(self, a: Arguments) -> _Extents:
        return self.matmul(a, is_batched=True)

    def batch_normalization(self, a: Arguments) -> _Extents:
        axes = self.known(a.get("input"))
        if len(axes) < 2:
            raise _LostError
        for axis in self.of(a.get("variance")).axes or []:
            if axis is not None and not isinstance(axis, _Merged):
                self.tracks.divide(axis)
        for name in ("mean", "variance", "offset", "scale"):
            axes[1] = self.with_vector(axes[1], a.get(name))
        return _Extents(axes)

    def instance_normalization(self, a: Arguments) -> _Extents:
        found = self.batch_normalization(a)
        self.fix_each((found.axes or [])[2:])
        return found

    def windowed(self, a: Arguments) -> _Extents:
        """Return the result of pooling; dimensions with window 1, stride 1 and no padding are unchanged."""
        axes, size = self.known(a.get("input")), _integers(a.get("size"))
        stride, padding = _integers(a.get("stride")), a.get("padding")
        pairs = [] if padding is None else padding.items
        if pairs is None:
            raise _LostError
        found: list[Axis] = []
        for k, axis in enumerate(axes):
            alone = size[k : k + 1] == [1] and stride[k : k + 1] in ([], [1])
            if alone and (not pairs[k : k + 1] or _integers(pairs[k]) == [0, 0]):
                found.append(axis)
            else:
                self.fix(axis)
                found.append(None)
        return _Extents(found)

    def resampled(self, a: Arguments) -> _Extents:
        axes = self.known(a.get("input"))
        for k in self.places(a["axes"], len(axes)) if "axes" in a else range(2, len(axes)):
            self.fix(axes[k])
            axes[k] = None
        return _Extents(axes)

    def pooled(self, a: Arguments) -> _Extents:
        """Return the result of global pooling."""
        axes = self.known(a.get("input"))
        self.fix_each(axes[2:])
        return _Extents([*axes[:2], *[self.tracks.fixed(1) for _ in axes[2:]]])

    def neighbours(self, a: Arguments) -> _Extents:
        """Return the result of a normalization over neighbours; dimensions with window 1 are not fixed."""
        axes, size = self.known(a.get("input")), _integers(a.get("size"))
        for k, axis in enumerate(axes):
            if size[k : k + 1] != [1]:
                self.fix(axis)
        return _Extents(axes)

    def along(self, a: Arguments) -> _Extents:
        """Return the result of a normalization along axes, by default along the channels."""
        axes = self.known(a.get("input", a.get("x")))
        for k in self.places(a.get("axes"), len(axes)) if "axes" in a else [1]:
            if k < len(axes):
                self.fix(axes[k])
        return _Extents(axes)

    def reduced(self, a: Arguments) -> _Extents:
        found = self.of(a.get("input"))
        axes = list(found.axes) if found.is_open and found.axes is not None else self.known(a.get("input"))
        for k in self.places(a.get("axes"), len(axes), is_open=found.is_open):
            self.fix(axes[k])
            axes[k] = self.tracks.fixed(1)
        return _Extents(axes, is_open=found.is_open)

    def places(self, value: Value | None, rank: int, *, is_open: bool = False) -> list[int]:
        """Return axes as indices of dimensions; raise _LostError if they are unknown or out of range."""
        found = [k for k in _integers(value) if k >= -rank or not is_open]
        if is_open and any(k >= 0 for k in found):
            raise _LostError
        found = [k + rank if k < 0 else k for k in found]
        if len(set(found)) < len(found) or not all(0 <= k < rank for k in found):
            raise _LostError
        return found

    def transpose(self, a: Arguments) -> _Extents:
        axes = self.known(a.get("input"))
        order = self.places(a["axes"], len(axes)) if "axes" in a else [*range(len(axes))][::-1]
        if sorted(order) != list(range(len(order))):
            raise _LostError
        return _Extents([*[axes[k] for k in order], *axes[len(order) :]], self.of(a.get("input")).is_weight)

    def squeeze(self, a: Arguments) -> _Extents:
        found = self.of(a.get("input"))
        axes = list(found.axes) if found.is_open and found.axes is not None else self.known(a.get("input"))
        gone = self.places(a.get("axes"), len(axes), is_open=found.is_open)
        self.fix_each(axes[k] for k in gone)
        return _Extents([axis for k, axis in enumerate(axes) if k not in gone], found.is_weight, found.is_open)

    def unsqueeze(self, a: Arguments) -> _Extents:
        axes = self.known(a.get("input"))
        for k in sorted(self.places(a.get("axes"), len(axes) + len(_integers(a.get("axes"))))):
            axes.insert(k, self.tracks.fixed(1))
        return _Extents(axes, self.of(a.get("input")).is_weight)

    def flatten(self, a: Arguments) -> _Extents:
        axes, at = self.known(a.get("input")), _integer(a.get("axis"), 1)
        at = at + len(axes) if at < 0 else at
        if not 0 <= at <= len(axes):
            raise _LostError
        parts = ([axis for axis in part if not self.is_single(axis)] for part in (axes[:at], axes[at:]))
        return _Extents([self.merged(part) for part in parts])

    def reshape(self, a: Arguments) -> _Extents:
        axes, shape = self.known(a.get("input")), _integers(a.get("shape"))
        start, count = _integer(a.get("axis_start"), 0), _integer(a.get("axis_count"), -1)
        end = len(axes) if count == -1 else start + count
        if not 0 <= start <= end <= len(axes):
            raise _LostError
        found = self.reshaped(axes[start:end], shape)
        return _Extents([*axes[:start], *found, *axes[end:]], self.of(a.get("input")).is_weight)

    def reshaped(self, axes: list[Axis], shape: list[int]) -> list[Axis]:
        """Return dimensions for a new shape, in which 0 keeps a dimension and -1 is the remaining extent."""
        first = 0
        while first < min(len(axes), len(shape)) and self.stays(axes[first], shape[first]):
            first += 1
        last = 0
        while (
            last < min(len(axes), len(shape)) - first
            and shape[-1 - last]
            and self.stays(axes[-1 - last], shape[-1 - last])
        ):
            last += 1
        before, after = axes[:first], axes[len(axes) - last :]
        rest, wanted = axes[first : len(axes) - last], shape[first : len(shape) - last]
        rest = [axis for axis in rest if not self.is_single(axis)]
        if 0 in wanted:
            raise _LostError
        found: list[Axis] = []
        if wanted.count(-1) == 1 and all(extent in (-1, 1) for extent in wanted):
            found = [self.merged(rest) if extent == -1 else self.tracks.fixed(1) for extent in wanted]
        else:
            for axis in rest:
                self.fix(axis)
            found = [self.tracks.fixed(extent) if 1 <= extent <= _MOST else None for extent in wanted]
        return [*before, *found, *after]

    def stays(self, axis: Axis, extent: int) -> bool:
        """Return True if a reshape keeps a dimension; fix its channels if the shape states their number."""
        ids = self.ids(axis)
        if extent and (ids is None or len(ids) != extent):
            return False
        if extent:
            self.fix(axis)
        return True

    def merged(self, axes: list[Axis]) -> Axis:
        """Return the product of dimensions, in row-major order."""
        if len(axes) < 2:
            return axes[0] if axes else self.tracks.fixed(1)
        known = [ids for axis in axes if (ids := self.ids(axis)) is not None]
        loose = [ids for ids in known if not self.tracks.is_fixed(ids)]
        if len(known) == len(axes) and prod(map(len, known)) <= _MOST and len(loose) < 2:
            if not loose:
                return self.tracks.fixed(prod(map(len, known)))
            self.tracks.charge(prod(map(len, known)))
            (at,) = (k for k, ids in enumerate(known) if ids is loose[0])
            before, after = prod(map(len, known[:at])), prod(map(len, known[at + 1 :]))
            return np.tile(np.repeat(loose[0], after), before)
        alone = len(known) == 1 and not any(isinstance(axis, _Merged) for axis in axes)
        if alone and (axes[0] is known[0] or axes[-1] is known[0]):
            return _Merged(known[0], after=axes[0] is known[0])
        for axis in axes:
            self.fix(axis)
        return None

    def pad(self, a: Arguments) -> _Extents:
        axes, padding, border = self.known(a.get("input")), a.get("padding"), a.get("border")
        pairs = None if padding is None else padding.items
        if pairs is None or len(pairs) != len(axes):
            raise _LostError
        constant = border is None or border.constant == "constant"
        found: list[Axis] = []
        for axis, pair in zip(axes, map(_integers, pairs), strict=True):
            ids = self.ids(axis)
            if pair == [0, 0]:
                found.append(axis)
            elif constant and ids is not None and len(pair) == 2 and min(pair) >= 0 and sum(pair) <= _MOST:
                self.tracks.charge(len(ids))
                found.append(np.concatenate([self.tracks.fixed(pair[0]), ids, self.tracks.fixed(pair[1])]))
            else:
                self.fix(axis)
                found.append(None)
        return _Extents(found)

    def concat(self, a: Arguments) -> _Extents:
        values = a.get("values")
        if values is None or not values.items or "axis" not in a:
            raise _LostError
        parts = [self.known(item) for item in values.items]
        axis = _integer(a["axis"], 0)
        axis = axis + len(parts[0]) if axis < 0 else axis
        if any(len(part) != len(parts[0]) for part in parts) or not 0 <= axis < len(parts[0]):
            raise _LostError
        found = [self.same([part[k] for part in parts]) if k != axis else None for k in range(len(parts[0]))]
        known = [ids for part in parts if (ids := self.ids(part[axis])) is not None]
        if len(known) == len(parts):
            self.tracks.charge(sum(map(len, known)))
            found[axis] = np.concatenate(known)
        else:
            for part in parts:
                self.fix(part[axis])
        return _Extents(found)

    def sliced(self, a: Arguments) -> _Extents:
        axes = self.known(a.get("input"))
        for k in self.places(a.get("axes"), len(axes)):
            self.fix(axes[k])
            axes[k] = None
        return _Extents(axes)

    #: Rule of each operation, and the names of its parameters that may be tensors.
    RULES: ClassVar[dict[str, tuple[Callable[[_Walk, Arguments], _Extents], tuple[str, ...]]]] = {
        **dict.fromkeys(("external", "constant"), (external, ())),
        "conv": (conv, ("input", "filter", "bias")),
        "deconv": (deconv, ("input", "filter", "bias")),
        "separable_conv": (separable_conv, ("input", "plane_filter", "point_filter", "bias")),
        "linear": (linear, ("input", "filter", "bias")),
        "matmul": (matmul, ("A", "B")),
        "batched_matmul": (batched_matmul, ("A", "B")),
        "batch_normalization": (batch_normalization, ("input", "mean", "variance", "offset", "scale")),
        "instance_normalization": (instance_normalization, ("input", "offset", "scale")),
        "global_pool": (pooled, ("input",)),
        "flatten": (flatten, ("input",)),
        **dict.fromkeys(("max_pool", "avg_pool", "rms_pool", "box"), (windowed, ("input",))),
        **dict.fromkeys(
            ("nearest_downsample", "area_downsample", "nearest_upsample", "multilinear_upsample", "pool"),
            (resampled, ("input",)),
        ),
        **dict.fromkeys(
            (
                "local_response_normalization",
                "local_mean_normalization",
                "local_variance_normalization",
                "local_contrast_normalization",
            ),
            (neighbours, ("input",)),
        ),
        **dict.fromkeys(("softmax", "l1_normalization", "l2_normalization"), (along, ("x", "input"))),
        **dict.fromkeys(
            ("sum_reduce", "max_reduce", "min_reduce", "mean_reduce", "all_reduce", "any_reduce"),
            (reduced, ("input",)),
        ),
        "transpose": (transpose, ("input",)),
        "squeeze": (squeeze, ("input",)),
        "unsqueeze": (unsqueeze, ("input",)),
        "reshape": (reshape, ("input",)),
        "pad": (pad, ("input",)),
        "concat": (concat, ("values",)),
        "slice": (sliced, ("input",)),
    }


def _integers(value: Value | None) -> list[int]:
    """Return the integers of an array or a pair, [] for a missing argument; raise _LostError if they are unknown."""
    if value is None:
        return []
    if value.items is None:
        raise _LostError
    return [_integer(item, 0) for item in value.items]


def _integer(value: Value | None, default: int) -> int:
    """Return an integer; raise _LostError if it is unknown."""
    if value is None:
        return default
    if isinstance(value.constant, bool) or not isinstance(value.constant, int):
        raise _LostError
    return value.constant


def _logical(value: Value | None) -> bool:
    """Return a logical, False for a missing argument; raise _LostError if it is unknown."""
    if value is None:
        return False
    if not isinstance(value.constant, bool):
        raise _LostError
    return value.constant
