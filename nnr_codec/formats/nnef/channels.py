"""Which channels of an NNEF graph could be removed, and from which variables.

The graph is walked from its inputs: each operation says which extents of its operands and results are the same
channels, and which it mixes or counts. Whatever is not understood, or would take another number in the text than a
variable's shape, has to stay: inputs and outputs of the network, groups, literal shapes. A contraction lets channels
go where one of its operands is a weight, whose numbers for them go with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

import numpy as np

from ...model import Channels
from ..tracks import Ids, Tracks
from .dataflow import Value, flow
from .graph import Graph
from .operations import operations
from .tree import Variable

#: Longer extents are not followed.
_MOST = 1 << 22
_MAX_RANK = 32

_OPERATORS = {"+", "-", "*", "/", "^", "<", ">", "<=", ">=", "==", "!=", "&&", "||"}
#: Operations that compute each number from those at the same place.
_ELEMENTWISE = frozenset(
    {
        *("copy", "neg", "rcp", "exp", "log", "sin", "cos", "tan", "abs", "sign", "floor", "ceil", "round", "sqr"),
        *("sqrt", "rsqr", "rsqrt", "log2", "not", "add", "sub", "mul", "div", "pow", "min", "max", "lt", "gt", "le"),
        *("ge", "eq", "ne", "and", "or", "select", "clamp", "sigmoid", "relu", "tanh", "softplus", "prelu", "elu"),
        *("leaky_relu", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "gelu", "silu", "selu"),
        *("min_max_linear_quantize", "zero_point_linear_quantize", "linear_quantize", "cast"),
    }
)
#: Those of weights that leave nothing where a weight is 0.
_SCALING = ("copy", "neg", "mul", "*")


@dataclass(eq=False)
class _Merged:
    """An extent that a reshape has multiplied from channels and extents that are not known, after or before them."""

    ids: Ids
    after: bool
    known: Ids | None = None


Axis = Ids | _Merged | None


@dataclass(eq=False)
class _Tensor:
    """A value: its extents, None for those that are not known and hold no channels; no list where nothing is known.

    ``weight`` is whether it is made of variables alone, and nothing is left of what is 0 in these.
    """

    axes: list[Axis] | None
    weight: bool = False


class _LostError(Exception):
    """An operation that is not understood: what it takes has to stay."""


def find_channels(graph: Graph) -> tuple[Channels, ...]:
    """The channels of a graph that can be removed; none where fragments make it too large.

    LimitError where there are too many of them.
    """
    return _Walk(graph).run()


@dataclass
class _Walk:
    graph: Graph
    tracks: Tracks = field(default_factory=Tracks)
    tensors: dict[int, _Tensor] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)

    def run(self) -> tuple[Channels, ...]:
        """All values in order; then what is used by something else has to stay."""
        for variable in self.graph.variables:
            self.labels.setdefault(variable.label.casefold(), variable.label)
        values = flow(self.graph).values
        for value in values:
            self.tensors[id(value)] = self.tensor(value)
        for value in values:
            if any(id(user) not in self.tensors for user in value.users):
                self.fix_all([value])
        return self.tracks.channels()

    # ---------------------------------------------------------------------------------------------- values
    def tensor(self, value: Value) -> _Tensor:
        """What a value is, once those before it are known."""
        if value.variable is not None:
            return self.variable(value.variable)
        if value.constant is not None:
            return _Tensor([])
        if not value.called:
            return _Tensor(None)
        arguments = _arguments(value)
        try:
            found, tensors = self.operation(value, arguments)
            if found.axes is not None and len(found.axes) > _MAX_RANK:
                raise _LostError
        except _LostError:
            self.fix_all(value.inputs.values())
            return _Tensor(None)
        self.fix_all(other for name, other in arguments.items() if name not in tensors)
        return found

    def operation(self, value: Value, arguments: dict[str, Value]) -> tuple[_Tensor, Collection[str]]:
        """What an operation gives, and which of its arguments it takes as tensors."""
        if value.called in _OPERATORS or value.called in _ELEMENTWISE:
            return self.elementwise(value, arguments), arguments
        rule, tensors = self.RULES.get(value.called, (None, ()))
        if rule is None:
            raise _LostError
        return rule(self, arguments), tensors

    def variable(self, variable: Variable) -> _Tensor:
        """A variable; those of one label are one tensor. Integers and logicals mean indices or choices: they stay."""
        label = self.labels[variable.label.casefold()]
        axes: list[Axis] = [
            self.tracks.fixed(1) if extent == 1 else self.tracks.of(label, k, extent) if extent <= _MOST else None
            for k, extent in enumerate(variable.shape)
        ]
        if variable.dtype != "scalar":
            for axis in axes:
                self.fix(axis)
        return _Tensor(axes, weight=True)

    def of(self, value: Value | None) -> _Tensor:
        """The tensor that a value is, a single number where there is none."""
        return _Tensor([]) if value is None else self.tensors[id(value)]

    def known(self, value: Value | None) -> list[Axis]:
        """The extents of a value; _LostError where they are not known."""
        axes = self.of(value).axes
        if axes is None:
            raise _LostError
        return list(axes)

    def fix(self, axis: Axis) -> None:
        """These channels have to stay."""
        if axis is not None:
            self.tracks.fix(axis.ids if isinstance(axis, _Merged) else axis)

    def fix_all(self, values: Iterable[Value]) -> None:
        """All channels of values, and of what arrays have in them, have to stay."""
        left = list(values)
        while left:
            value = left.pop()
            if id(value) not in self.lost:
                self.lost.add(id(value))
                left += value.items or ()
                for axis in self.tensors[id(value)].axes or ():
                    self.fix(axis)

    # ---------------------------------------------------------------------------------------------- extents
    def ids(self, axis: Axis, extent: int | None = None) -> Ids | None:
        """The tracks of an extent, which may tell how long a merged one is."""
        if not isinstance(axis, _Merged):
            return axis
        if axis.known is None and extent is not None and extent % len(axis.ids) == 0:
            self.tracks.charge(extent)
            times = extent // len(axis.ids)
            axis.known = np.repeat(axis.ids, times) if axis.after else np.tile(axis.ids, times)
        return axis.known

    def same(self, axes: Sequence[Axis]) -> Axis:
        """What is the same of all operands; extents of 1 are repeated."""
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
        """Whether an extent is 1."""
        ids = self.ids(axis)
        return ids is not None and len(ids) == 1

    def contracted(self, one: Axis, other: Axis, *, weighted: bool) -> None:
        """Channels that are summed over, each times a number of a weight; without one they have to stay."""
        if not weighted or self.is_single(one) != self.is_single(other):
            self.fix(one)
            self.fix(other)
        self.same([one, other])

    def with_vector(self, axis: Axis, value: Value | None) -> Axis:
        """An extent of channels, for each of which a vector may have a number."""
        if value is None:
            return axis
        axes = self.known_or_none(value)
        wide = [of for of in axes or () if not self.is_single(of)]
        if axes is not None and not wide:
            return axis
        if axes is not None and len(wide) == 1:
            return self.same([axis, wide[0]])
        self.fix_all([value])
        self.fix(axis)
        return axis

    def known_or_none(self, value: Value | None) -> list[Axis] | None:
        """The extents of a value, if they are known."""
        return self.of(value).axes

    def channel(self, value: Value | None) -> Axis:
        """The channels of an activation: its second dimension."""
        axes = self.of(value).axes
        return axes[1] if axes is not None and len(axes) > 1 else None

    def result(self, value: Value | None, channels: Axis, rank: int) -> _Tensor:
        """A result with the first extent of an operand, and channels; the others are not known."""
        axes = self.of(value).axes
        first = axes[0] if axes else None
        return _Tensor([first, channels, *[None] * ((len(axes) if axes else rank) - 2)])

    # ---------------------------------------------------------------------------------------------- operations
    def elementwise(self, value: Value, arguments: dict[str, Value]) -> _Tensor:
        """Operands whose dimensions are aligned from the first (NNEF 1.0, 4.2.2)."""
        tensors = [self.of(argument) for argument in arguments.values()]
        if any(tensor.axes is None for tensor in tensors):
            raise _LostError
        axes = [tensor.axes or [] for tensor in tensors]
        weight = value.called in _SCALING and all(tensor.weight or not tensor.axes for tensor in tensors)
        return _Tensor(
            [self.same([of[k] for of in axes if k < len(of)]) for k in range(max(map(len, axes), default=0))], weight
        )

    def external(self, a: dict[str, Value]) -> _Tensor:
        shape = _integers(a.get("shape"))
        return _Tensor([self.tracks.fixed(extent) if 1 <= extent <= _MOST else None for extent in shape])

    def conv(self, a: dict[str, Value]) -> _Tensor:
        return self.convolved(a, "filter", into=1, out=0)

    def deconv(self, a: dict[str, Value]) -> _Tensor:
        if "output_shape" in a and _integers(a["output_shape"]):
            raise _LostError
        return self.convolved(a, "filter", into=0, out=1)

    def separable_conv(self, a: dict[str, Value]) -> _Tensor:
        if _integer(a.get("groups"), 1) != 1:
            raise _LostError
        planes = self.planes(a, "plane_filter")
        return self.convolved(a, "point_filter", into=1, out=0, source=planes)

    def convolved(
        self, a: dict[str, Value], name: str, *, into: int, out: int, source: _Tensor | None = None
    ) -> _Tensor:
        """A convolution with a filter that has its input channels in one dimension, its own in another."""
        weight, axes = self.of(a.get(name)), self.known(a.get(name))
        groups = _integer(a.get("groups"), 1)
        if len(axes) < 2 or groups not in (0, 1):
            raise _LostError
        if groups == 0:
            made = self.channel_of(self.planes(a, name))
        else:
            given = self.channel_of(source) if source else self.channel(a.get("input"))
            self.contracted(given, axes[into], weighted=weight.weight)
            made = self.made(axes[out])
        made = self.with_vector(made, a.get("bias"))
        return self.result(a.get("input"), made, len(axes))

    def planes(self, a: dict[str, Value], name: str) -> _Tensor:
        """A convolution of each channel with some filters of its own."""
        axes, channels = self.known(a.get(name)), self.ids(self.channel(a.get("input")))
        own = self.ids(axes[0]) if axes else None
        if len(axes) < 2 or channels is None or own is None or len(own) % len(channels):
            raise _LostError
        self.tracks.charge(len(own))
        self.tracks.join(np.repeat(channels, len(own) // len(channels)), own)
        self.fix(axes[1])
        return self.result(a.get("input"), own, len(axes))

    def channel_of(self, tensor: _Tensor) -> Axis:
        return tensor.axes[1] if tensor.axes else None

    def made(self, axis: Axis) -> Axis:
        """Channels that a weight makes."""
        ids = self.ids(axis)
        if ids is not None:
            self.tracks.make(ids)
        return axis

    def linear(self, a: dict[str, Value]) -> _Tensor:
        weight, axes = self.of(a.get("filter")), self.known(a.get("filter"))
        if len(axes) != 2:
            raise _LostError
        self.contracted(self.channel(a.get("input")), axes[1], weighted=weight.weight)
        return self.result(a.get("input"), self.with_vector(self.made(axes[0]), a.get("bias")), 2)

    def matmul(self, a: dict[str, Value]) -> _Tensor:
        one, other = self.known(a.get("A")), self.known(a.get("B"))
        if len(one) != len(other) or len(one) < 2:
            raise _LostError
        rows, inner = one[:-3:-1][::-1] if not _logical(a.get("transposeA")) else one[:-3:-1]
        other_inner, columns = other[:-3:-1][::-1] if not _logical(a.get("transposeB")) else other[:-3:-1]
        weights = self.of(a.get("A")).weight, self.of(a.get("B")).weight
        self.contracted(inner, other_inner, weighted=any(weights))
        if weights[0]:
            self.made(rows)
        if weights[1]:
            self.made(columns)
        batch = [self.same([x, y]) for x, y in zip(one[:-2], other[:-2], strict=True)]
        return _Tensor([*batch, rows, columns])

    def batch_normalization(self, a: dict[str, Value]) -> _Tensor:
        axes = self.known(a.get("input"))
        if len(axes) < 2:
            raise _LostError
        for name in ("mean", "variance", "offset", "scale"):
            axes[1] = self.with_vector(axes[1], a.get(name))
        return _Tensor(axes)

    def windowed(self, a: dict[str, Value]) -> _Tensor:
        """Pooling: what has a window of its own stays as it is."""
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
        return _Tensor(found)

    def resampled(self, a: dict[str, Value]) -> _Tensor:
        axes = self.known(a.get("input"))
        for axis in axes[2:]:
            self.fix(axis)
        return _Tensor([*axes[:2], *[None] * len(axes[2:])])

    def neighbours(self, a: dict[str, Value]) -> _Tensor:
        """Normalizations that look at what is near: sizes of 1 look no further."""
        axes, size = self.known(a.get("input")), _integers(a.get("size"))
        for k, axis in enumerate(axes):
            if size[k : k + 1] != [1]:
                self.fix(axis)
        return _Tensor(axes)

    def along(self, a: dict[str, Value]) -> _Tensor:
        """Normalizations along axes."""
        axes = self.known(a.get("input", a.get("x")))
        for k in self.places(a.get("axes"), len(axes)) if "axes" in a else [1]:
            if k < len(axes):
                self.fix(axes[k])
        return _Tensor(axes)

    def reduced(self, a: dict[str, Value]) -> _Tensor:
        axes = self.known(a.get("input"))
        for k in self.places(a.get("axes"), len(axes)):
            self.fix(axes[k])
            axes[k] = self.tracks.fixed(1)
        return _Tensor(axes)

    def places(self, value: Value | None, rank: int) -> list[int]:
        """Axes of a tensor; _LostError where they are not known, or not of it."""
        found = _integers(value)
        if len(set(found)) < len(found) or not all(0 <= k < rank for k in found):
            raise _LostError
        return found

    def transpose(self, a: dict[str, Value]) -> _Tensor:
        axes = self.known(a.get("input"))
        order = self.places(a.get("axes"), len(axes))
        if sorted(order) != list(range(len(order))):
            raise _LostError
        return _Tensor([*[axes[k] for k in order], *axes[len(order) :]], self.of(a.get("input")).weight)

    def squeeze(self, a: dict[str, Value]) -> _Tensor:
        axes = self.known(a.get("input"))
        gone = self.places(a.get("axes"), len(axes))
        for k in gone:
            self.fix(axes[k])
        return _Tensor([axis for k, axis in enumerate(axes) if k not in gone], self.of(a.get("input")).weight)

    def unsqueeze(self, a: dict[str, Value]) -> _Tensor:
        axes = self.known(a.get("input"))
        wanted = _integers(a.get("axes"))
        for k in self.places(a.get("axes"), len(axes) + len(wanted)):
            axes.insert(k, self.tracks.fixed(1))
        return _Tensor(axes, self.of(a.get("input")).weight)

    def reshape(self, a: dict[str, Value]) -> _Tensor:
        axes, shape = self.known(a.get("input")), _integers(a.get("shape"))
        start, count = _integer(a.get("axis_start"), 0), _integer(a.get("axis_count"), -1)
        end = len(axes) if count == -1 else start + count
        if not 0 <= start <= end <= len(axes):
            raise _LostError
        found = self.reshaped(axes[start:end], shape)
        return _Tensor([*axes[:start], *found, *axes[end:]], self.of(a.get("input")).weight)

    def reshaped(self, axes: list[Axis], shape: list[int]) -> list[Axis]:
        """Extents by their new shape: 0 is the extent at the same place, -1 what is left."""
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
        """Whether an extent stays as it is; channels have to where it is given as a number."""
        ids = self.ids(axis)
        if extent and (ids is None or len(ids) != extent):
            return False
        if extent:
            self.fix(axis)
        return True

    def merged(self, axes: list[Axis]) -> Axis:
        """The product of extents, the last one moving fastest."""
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

    def pad(self, a: dict[str, Value]) -> _Tensor:
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
        return _Tensor(found)

    def concat(self, a: dict[str, Value]) -> _Tensor:
        values, axis = a.get("values"), _integer(a.get("axis"), -1)
        if values is None or not values.items:
            raise _LostError
        parts = [self.known(item) for item in values.items]
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
        return _Tensor(found)

    def sliced(self, a: dict[str, Value]) -> _Tensor:
        axes = self.known(a.get("input"))
        for k in self.places(a.get("axes"), len(axes)):
            self.fix(axes[k])
            axes[k] = None
        return _Tensor(axes)

    #: The rule of each operation, and those of its parameters that it takes as tensors.
    RULES: ClassVar[dict[str, tuple[Callable[[_Walk, dict[str, Value]], _Tensor], tuple[str, ...]]]] = {
        **dict.fromkeys(("external", "constant"), (external, ())),
        "conv": (conv, ("input", "filter", "bias")),
        "deconv": (deconv, ("input", "filter", "bias")),
        "separable_conv": (separable_conv, ("input", "plane_filter", "point_filter", "bias")),
        "linear": (linear, ("input", "filter", "bias")),
        "matmul": (matmul, ("A", "B")),
        "batch_normalization": (batch_normalization, ("input", "mean", "variance", "offset", "scale")),
        **dict.fromkeys(("max_pool", "avg_pool", "rms_pool", "box"), (windowed, ("input",))),
        **dict.fromkeys(
            ("nearest_downsample", "area_downsample", "nearest_upsample", "multilinear_upsample"),
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


def _arguments(value: Value) -> dict[str, Value]:
    """The arguments of an operation by parameter."""
    declared = operations().get(value.called)
    names = [parameter.name.name for parameter in declared.parameters] if declared else []
    found: dict[str, Value] = {}
    for name, argument in value.inputs.items():
        found[names[int(name)] if name.isdigit() and int(name) < len(names) else name] = argument
    return found


def _integers(value: Value | None) -> list[int]:
    """The integers of an array or a pair, none where there is no argument; _LostError where they are not known."""
    if value is None:
        return []
    if value.items is None:
        raise _LostError
    return [_integer(item, 0) for item in value.items]


def _integer(value: Value | None, default: int) -> int:
    """An integer; _LostError where it is not known."""
    if value is None:
        return default
    if isinstance(value.constant, bool) or not isinstance(value.constant, int):
        raise _LostError
    return value.constant


def _logical(value: Value | None) -> bool:
    """A logical, false where there is no argument; _LostError where it is not known."""
    if value is None:
        return False
    if not isinstance(value.constant, bool):
        raise _LostError
    return value.constant
