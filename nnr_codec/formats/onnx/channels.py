"""Finds the channels of activations that can be removed from an ONNX graph, and where tensors have numbers of them.

Channels are made by ``Conv``, ``ConvTranspose``, ``Gemm`` and ``MatMul`` whose second input is a tensor of the model,
and are followed from operation to operation, each of which has a rule here, to those that read them. Values that are
added or multiplied have their channels in common; concatenated ones keep theirs. What has no rule here, or does not fit
it, keeps all channels of what it uses: each value and tensor has to be used by operations that were understood alone,
which graphs in the graph, functions and the outputs are not. So do tensors that callers can replace, that are not of
floats, or that stay in the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...model import Channels
from ..tracks import Ids, Tracks
from .blocks import REPLACEABLE
from .graph import Graph, Node

#: Longer extents are not followed.
_MOST = 1 << 20
_MAX_RANK = 32
# Operations on several values broadcast them as numpy does since then, and normalizations are for inference.
_BROADCASTS = 7
#: What stands before or behind the channels in a dimension that was several is known by the first tensor that fits.
_BEFORE, _BEHIND = "before", "behind"


@dataclass(frozen=True, eq=False)
class _Flow:
    """A value with channels.

    Parameters
    ----------
    axis : int
        The dimension that they are in, -1 for the last.
    ids : ndarray
        The tracks of this dimension.
    rank, first : int
        The number of dimensions, and the first extent; 0 where that is not known.
    spread : str
        More numbers than tracks, by a factor that is not known: _BEFORE or _BEHIND the channels; or empty.
    is_point : bool
        All dimensions behind this one have extent 1.
    """

    axis: int
    ids: Ids
    rank: int = 0
    first: int = 0
    spread: str = ""
    is_point: bool = False

    @property
    def place(self) -> int:
        """The dimension, counted from the front; -1 where that is not known."""
        return self.rank + self.axis if self.rank else -1

    @property
    def is_one(self) -> bool:
        """Whether it has one channel, which is there for each of others that it is applied to."""
        return not self.spread and len(self.ids) == 1


def find_channels(graph: Graph) -> tuple[Channels, ...]:
    """The channels that can be removed, of a graph that was read as a whole; LimitError where following them grows."""
    walk = _Walk(graph)
    for node in graph.nodes if graph.opset >= _BROADCASTS else ():
        walk.node(node)
    return walk.found()


class _Walk:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.tracks = graph, Tracks()
        replaceable = graph.inputs if graph.ir_version >= REPLACEABLE else set()
        #: Tensors, also transposed ones, by name: that of the tensor, and the dimension of it that each one is.
        self.views = {
            name: (name, tuple(range(len(slot.items.shape))))
            for name, slot in graph.values.items()
            if slot.items.stored.kind == "f" and name not in replaceable
        }
        self.constants = {name: value for name, value in graph.constants.items() if name not in replaceable}
        self.flows: dict[str, _Flow] = {}
        #: The tracks of dimensions of tensors that were asked for.
        self.places: dict[tuple[str, int], Ids] = {}
        #: Dimensions that are used for something else.
        self.kept: set[tuple[str, int]] = set()
        #: How often each value is used by operations that were understood.
        self.seen: Counter[str] = Counter()
        for name, extents in graph.extents.items():
            if name not in graph.values and len(extents) > 1 and 0 < extents[1] <= _MOST:
                self.flows[name] = _Flow(1 - len(extents), self.tracks.fixed(extents[1]), len(extents), extents[0])

    def node(self, node: Node) -> None:
        """Follow an operation that has a rule and one output; one that does not leaves its inputs unseen."""
        rule = _RULES.get(node.operation)
        output, *others = node.outputs or [""]
        if rule is None or not output or any(self.graph.uses[name] for name in others if name):
            return
        flow = None if (is_view := self.view(node)) else rule(self, node)
        if flow and flow.rank <= _MAX_RANK:
            self.flows[output] = flow
        elif not is_view:
            return
        self.seen.update(node.inputs)

    def found(self) -> tuple[Channels, ...]:
        """The channels of which all uses are understood."""
        for name, flow in self.flows.items():
            if self.seen[name] != self.graph.uses[name]:
                self.tracks.fix(flow.ids)
        for name, (tensor, order) in self.views.items():
            if self.seen[name] != self.graph.uses[name]:
                self.kept.update((tensor, axis) for axis in order)
        for key, ids in self.places.items():
            if key in self.kept:
                self.tracks.fix(ids)
        return self.tracks.channels()

    # -------------------------------------------------------------------------------------------- tensors
    def view(self, node: Node) -> bool:
        """Take a tensor that is passed on, or transposed."""
        source = self.views.get(node.inputs[0]) if node.inputs else None
        if source is None or node.operation not in ("Identity", "Transpose"):
            return False
        tensor, order = source
        chosen = node.attributes.get("perm", [*range(len(order))][::-1])
        if node.operation == "Transpose":
            if not isinstance(chosen, list) or sorted(chosen) != [*range(len(order))]:
                return False
            order = tuple(order[place] for place in chosen)
        self.views[node.outputs[0]] = tensor, order
        return True

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, or of a constant that stays in the graph."""
        if name in self.views:
            tensor, order = self.views[name]
            shape = self.graph.values[tensor].items.shape
            return tuple(shape[axis] for axis in order)
        return self.constants[name].shape if name in self.constants else None

    def at(self, name: str, place: int) -> Ids | None:
        """The tracks of a dimension of a tensor; None where it is not followed."""
        tensor, order = self.views[name]
        slot, key = self.graph.values[tensor], (tensor, order[place])
        if key not in self.places:
            extent = slot.items.shape[key[1]]
            if extent > _MOST:
                return None
            self.places[key] = self.tracks.of(slot.name, key[1], extent)
        return self.places[key]

    def attach(self, name: str, flows: Mapping[int, _Flow | None]) -> None:
        """Note what a tensor has in some of its dimensions; in the others, nothing goes."""
        tensor, order = self.views[name]
        for place, axis in enumerate(order):
            flow = flows.get(place)
            ids = self.at(name, place) if flow else None
            if flow is None or ids is None or not self.fits(ids, flow):
                self.kept.add((tensor, axis))
                if flow:
                    self.tracks.fix(flow.ids)

    def fits(self, ids: Ids, flow: _Flow) -> bool:
        """Note that tracks are those of a value, if they are as many."""
        self.tracks.charge(len(ids))
        factor, rest = divmod(len(ids), len(flow.ids))
        if rest or (factor != 1 and not flow.spread):
            return False
        spread = np.tile if flow.spread == _BEFORE else np.repeat
        self.tracks.join(ids, flow.ids if factor == 1 else spread(flow.ids, factor))
        return True

    def alone(self, names: Iterable[str]) -> bool:
        """Whether inputs beside the one that is followed have no channels; of tensors that is noted."""
        names = [name for name in names if name]
        if any(name in self.flows for name in names):
            return False
        for name in names:
            if name in self.views:
                self.attach(name, {})
        return True

    def integers(self, node: Node, attribute: str, place: int) -> list[int] | None:
        """Those of an attribute, or of a constant input, as it is in newer versions; None where they are not known."""
        told = node.attributes.get(attribute)
        if isinstance(told, list):
            return told
        name = _input(node, place)
        constant = self.constants.get(name)
        if told is not None or constant is None or len(constant.shape) != 1 or not constant.values:
            return None
        return [int(value) for value in constant.values]

    # -------------------------------------------------------------------------------------------- makers
    def made(self, weight: str, place: int, axis: int, rank: int, source: _Flow | None) -> _Flow | None:
        """What a dimension of a weight makes of a value; None where it is not followed."""
        ids = self.at(weight, place)
        if ids is None or not len(ids):
            return None
        self.tracks.make(ids)
        if len(ids) == 1:
            self.tracks.fix(ids)
        return _Flow(axis, ids, rank, source.first if source else 0)

    def is_read(self, node: Node) -> bool:
        """Whether a weight is applied to a value, rather than to another tensor of the model, which keeps all."""
        return _input(node, 0) not in self.views

    def conv(self, node: Node) -> _Flow | None:
        weight, bias = _input(node, 1), _input(node, 2)
        shape, flow = self.shape(weight), self.flows.get(_input(node, 0))
        if weight not in self.views or shape is None or len(shape) < 3 or (bias and bias not in self.views):
            return None
        if not self.is_read(node):
            return None
        rank, groups = len(shape), node.attributes.get("group", 1)
        if not isinstance(groups, int) or (flow and flow.axis != 1 - rank):
            return None
        if groups == 1:
            maker = 1 if node.operation == "ConvTranspose" else 0
            made = self.made(weight, maker, 1 - rank, rank, flow)
            if made is None:
                return None
            self.attach(weight, {maker: made, 1 - maker: flow})
        elif flow and not flow.spread and weight in self.graph.values and len(flow.ids) == groups:
            filters = _depthwise(node.operation, shape, groups)
            if not 0 < filters * groups <= _MOST:
                return None
            self.tracks.charge(filters * groups)
            made = replace(flow, ids=np.repeat(flow.ids, filters), rank=rank, is_point=False)
            self.attach(weight, {0: flow if node.operation == "ConvTranspose" else made})
        else:
            return None
        if bias:
            self.attach(bias, {0: made})
        return made

    def gemm(self, node: Node) -> _Flow | None:
        weight, bias = _input(node, 1), _input(node, 2)
        shape, flow = self.shape(weight), self.flows.get(_input(node, 0))
        if weight not in self.views or shape is None or len(shape) != 2 or not self.is_read(node):
            return None
        if flow and (flow.axis != -1 or node.attributes.get("transA", 0)):
            return None
        maker = 0 if node.attributes.get("transB", 0) else 1
        made = self.made(weight, maker, -1, 2, flow)
        if made is None or (bias and not self.broadcast(bias, made)):
            return None
        self.attach(weight, {maker: made, 1 - maker: flow})
        return made

    def matmul(self, node: Node) -> _Flow | None:
        weight, flow = _input(node, 1), self.flows.get(_input(node, 0))
        shape = self.shape(weight)
        if weight not in self.views or shape is None or len(shape) != 2 or not self.is_read(node):
            return None
        if flow and flow.axis != -1:
            # What is made here has its channels in another dimension.
            self.tracks.fix(flow.ids)
        made = self.made(weight, 1, -1, flow.rank if flow else 0, flow)
        self.attach(weight, {0: flow if flow and flow.axis == -1 else None, 1: made})
        return made

    # -------------------------------------------------------------------------------------------- what follows
    def norm(self, node: Node) -> _Flow | None:
        """Batch and instance normalization."""
        flow, (_, *vectors) = self.flows.get(_input(node, 0)), node.inputs or [""]
        is_batch = node.operation == "BatchNormalization"
        count = 4 if is_batch else 2
        if flow is None or flow.place != 1 or len(vectors) != count:
            return None
        if any(name not in self.views for name in vectors):
            return None
        if is_batch and (node.attributes.get("training_mode", 0) or node.attributes.get("spatial", 1) != 1):
            return None
        for name in vectors:
            self.attach(name, {0: flow})
        return flow

    def unary(self, node: Node) -> _Flow | None:
        """An operation on each number, which may have scalars beside."""
        flow = self.flows.get(_input(node, 0))
        return flow if flow and self.alone(node.inputs[1:]) else None

    def elementwise(self, node: Node) -> _Flow | None:
        """An operation on the numbers of several values, as they are broadcast."""
        flows = [self.flows[name] for name in node.inputs if name in self.flows]
        others = [name for name in node.inputs if name not in self.flows]
        is_first_alone = [name in self.flows for name in node.inputs] == [True, False]
        if not flows or (node.operation in ("Div", "PRelu") and not is_first_alone):
            return None
        # A channel alone has the extent of others that it is applied to.
        wide = [flow for flow in flows if not flow.is_one] or flows[:1]
        chosen, shapes = wide[0], [self.shape(name) for name in others]
        if any((len(flow.ids), flow.spread) != (len(chosen.ids), chosen.spread) for flow in wide):
            return None
        if any(flow.axis != chosen.axis for flow in flows):
            return None
        if node.operation == "Div" and any(shape is None or _at(shape, chosen.axis) != 1 for shape in shapes):
            # What is removed would be divided by zero elsewhere.
            return None
        if not all(self.broadcast(name, chosen) for name in others):
            return None
        self.joined(wide)
        ranks = [flow.rank for flow in flows]
        lengths = [len(shape) for shape in shapes if shape is not None]
        same = len({(flow.rank, flow.first) for flow in flows}) == 1 and max(lengths, default=0) < chosen.rank
        behind = [extent for shape in shapes if shape is not None for extent in shape[len(shape) + chosen.axis + 1 :]]
        return replace(
            chosen,
            rank=max(ranks + lengths) if all(ranks) else 0,
            first=chosen.first if same else 0,
            is_point=all(flow.is_point for flow in flows) and (chosen.axis == -1 or all(n == 1 for n in behind)),
        )

    def joined(self, flows: list[_Flow]) -> None:
        """Note that values have their channels in common."""
        for flow in flows[1:]:
            self.tracks.join(flows[0].ids, flow.ids)

    def broadcast(self, name: str, flow: _Flow) -> bool:
        """Note what a tensor has of the channels of a value that it is broadcast to; False where it is none."""
        shape = self.shape(name)
        if shape is None:
            return False
        extent = _at(shape, flow.axis)
        if name not in self.views:
            return extent == 1
        if extent != 1 and flow.is_one:
            return False
        self.attach(name, {len(shape) + flow.axis: flow} if extent != 1 else {})
        return True

    def concat(self, node: Node) -> _Flow | None:
        flows = [self.flows.get(name) for name in node.inputs]
        known = [flow for flow in flows if flow and flow.rank and not flow.spread]
        axis = node.attributes.get("axis")
        if not known or len(known) != len(flows) or not isinstance(axis, int):
            return None
        first = known[0]
        if any((flow.axis, flow.rank) != (first.axis, first.rank) for flow in known):
            return None
        axis = axis if axis < 0 else axis - first.rank
        ids = first.ids
        if axis == first.axis:
            self.tracks.charge(sum(len(flow.ids) for flow in known))
            ids = np.concatenate([flow.ids for flow in known])
        elif all(len(flow.ids) == len(ids) for flow in known):
            self.joined(known)
        else:
            return None
        is_first_same = len({flow.first for flow in known}) == 1 and axis != -first.rank
        is_point = all(flow.is_point for flow in known) and axis <= first.axis
        return replace(first, ids=ids, first=first.first if is_first_same else 0, is_point=is_point)

    def pool(self, node: Node) -> _Flow | None:
        flow = self.flows.get(_input(node, 0))
        if flow is None or flow.place != 1:
            return None
        return replace(flow, is_point=node.operation.startswith("Global"))

    def reduce(self, node: Node) -> _Flow | None:
        """A reduction over other dimensions than that of the channels."""
        flow, told = self.flows.get(_input(node, 0)), self.integers(node, "axes", 1)
        if flow is None or not told or (not flow.rank and max(told) >= 0):
            return None
        axes = {axis if axis < 0 else axis - flow.rank for axis in told}
        if flow.axis in axes or (flow.rank and not -flow.rank <= min(axes) <= max(axes) < 0):
            return None
        behind = sum(axis > flow.axis for axis in axes)
        is_point = flow.is_point or behind == -1 - flow.axis
        if node.attributes.get("keepdims", 1):
            return replace(flow, first=1 if -flow.rank in axes else flow.first, is_point=is_point)
        first = 0 if -flow.rank in axes else flow.first
        return replace(
            flow, axis=flow.axis + behind, rank=max(flow.rank - len(axes), 0), first=first, is_point=is_point
        )

    def pad(self, node: Node) -> _Flow | None:
        flow, pads = self.flows.get(_input(node, 0)), self.integers(node, "pads", 1)
        if flow is None or not flow.rank or not pads or len(pads) != 2 * flow.rank or _input(node, 3):
            return None
        if pads[flow.place] or pads[flow.rank + flow.place] or not self.alone(node.inputs[1:]):
            return None
        return replace(flow, first=0 if pads[0] or pads[flow.rank] else flow.first, is_point=False)

    def resize(self, node: Node) -> _Flow | None:
        """One by factors; such as are taken out of the graph are 1 for channels, or readers would not fit."""
        flow, is_old = self.flows.get(_input(node, 0)), len(node.inputs) == 2
        scales, axes = _input(node, 1 if is_old else 2), node.attributes.get("axes")
        region = self.shape("" if is_old else _input(node, 1))
        if flow is None or not flow.rank or _input(node, 3) or region not in (None, (0,)):
            return None
        shape, place = self.shape(scales), flow.place
        if isinstance(axes, list):
            axes = [axis % flow.rank for axis in axes]
            place = axes.index(place) if place in axes else -1
        if shape is None or len(shape) != 1 or shape[0] != (len(axes) if isinstance(axes, list) else flow.rank):
            return None
        values = self.constants[scales].values if scales in self.constants else None
        if place >= 0 and values is not None and (len(values) <= place or values[place] != 1):
            return None
        return replace(flow, first=0, is_point=False) if self.alone(node.inputs[1:]) else None

    # -------------------------------------------------------------------------------------------- other shapes
    def flat(self, flow: _Flow, rows: int) -> _Flow | None:
        """A matrix of a value, of which so many dimensions become rows."""
        before = flow.place - rows
        is_spread = not (flow.axis == -1 or flow.is_point)
        if not flow.rank or before < 0 or rows < 1:
            return None
        if (before or is_spread) and flow.spread:
            return None
        if before and is_spread:
            return None
        spread = _BEFORE if before else _BEHIND if is_spread else flow.spread
        return _Flow(-1, flow.ids, 2, flow.first if rows == 1 else 0, spread)

    def flatten(self, node: Node) -> _Flow | None:
        flow, axis = self.flows.get(_input(node, 0)), node.attributes.get("axis", 1)
        if flow is None or not isinstance(axis, int):
            return None
        return self.flat(flow, axis if axis >= 0 else axis + flow.rank)

    def reshape(self, node: Node) -> _Flow | None:
        """To a shape that says nothing of the channels."""
        flow, shape = self.flows.get(_input(node, 0)), self.integers(node, "shape", 1)
        if flow is None or not flow.rank or not shape or node.attributes.get("allowzero", 0) or flow.place < 1:
            return None
        if not any(shape[: flow.place + 1]) and len(shape) > flow.place:
            return replace(flow, axis=flow.place - len(shape), rank=len(shape), is_point=False)
        is_matrix = len(shape) > 1 and shape[1] == -1 and all(extent == 1 for extent in shape[2:])
        if not is_matrix or shape[0] not in (0, flow.first or 0):
            return None
        matrix = self.flat(flow, 1)
        return replace(matrix, axis=1 - len(shape), rank=len(shape), is_point=True) if matrix else None

    def squeeze(self, node: Node) -> _Flow | None:
        flow, told = self.flows.get(_input(node, 0)), self.integers(node, "axes", 1)
        if flow is None or not flow.rank or not told:
            return None
        is_more = node.operation == "Unsqueeze"
        rank = flow.rank + len(told) if is_more else flow.rank
        axes = {axis if axis >= 0 else axis + rank for axis in told}
        if len(axes) != len(told) or min(axes) < 0 or max(axes) >= rank:
            return None
        if is_more:
            place = [place for place in range(rank) if place not in axes][flow.place]
            return replace(flow, axis=place - rank, rank=rank, first=1 if 0 in axes else flow.first)
        if flow.place in axes:
            return None
        behind = sum(axis > flow.place for axis in axes)
        return replace(flow, axis=flow.axis + behind, rank=rank - len(axes), first=0 if 0 in axes else flow.first)

    def transpose(self, node: Node) -> _Flow | None:
        flow = self.flows.get(_input(node, 0))
        if flow is None or not flow.rank:
            return None
        order = node.attributes.get("perm", [*range(flow.rank)][::-1])
        if not isinstance(order, list) or sorted(order) != [*range(flow.rank)]:
            return None
        axis = order.index(flow.place) - flow.rank
        return replace(flow, axis=axis, first=flow.first if order[0] == 0 else 0, is_point=False)


def _input(node: Node, place: int) -> str:
    """The name of an input; empty where it is left out."""
    return node.inputs[place] if place < len(node.inputs) else ""


def _depthwise(operation: str, shape: tuple[int, ...], groups: int) -> int:
    """How many filters each channel has of its own; 0 where it has not."""
    if operation == "ConvTranspose":
        return shape[1] if shape[0] == groups else 0
    return shape[0] // groups if shape[1] == 1 and shape[0] % groups == 0 else 0


def _at(shape: tuple[int, ...], axis: int) -> int:
    """An extent, counted from the end, of a shape before which there are any number of 1."""
    return shape[axis] if -axis <= len(shape) else 1


_Rule = Callable[[_Walk, Node], _Flow | None]

_UNARY = (
    *("Abs", "Cast", "Ceil", "Celu", "Clip", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
    *("HardSwish", "Identity", "LeakyRelu", "Mish", "Neg", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus"),
    *("Softsign", "Sqrt", "Swish", "Tanh", "ThresholdedRelu"),
)
_POOLS = ("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool")
_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare")

#: The rule of each operation; none for those that mix channels, or give no number where channels are zero.
_RULES: dict[str, _Rule] = {
    "Conv": _Walk.conv,
    "ConvTranspose": _Walk.conv,
    "Gemm": _Walk.gemm,
    "MatMul": _Walk.matmul,
    "BatchNormalization": _Walk.norm,
    "InstanceNormalization": _Walk.norm,
    **dict.fromkeys(("Add", "Div", "Max", "Mean", "Min", "Mul", "PRelu", "Sub", "Sum"), _Walk.elementwise),
    **dict.fromkeys(_UNARY, _Walk.unary),
    **dict.fromkeys(_POOLS, _Walk.pool),
    **dict.fromkeys(_REDUCTIONS, _Walk.reduce),
    "Concat": _Walk.concat,
    "Pad": _Walk.pad,
    "Resize": _Walk.resize,
    "Upsample": _Walk.resize,
    "Flatten": _Walk.flatten,
    "Reshape": _Walk.reshape,
    "Squeeze": _Walk.squeeze,
    "Unsqueeze": _Walk.squeeze,
    "Transpose": _Walk.transpose,
}
