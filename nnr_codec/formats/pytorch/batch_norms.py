"""Blocks of a PyTorch module: a batch normalization and the layer that produces its inputs.

They form a block if the inputs of the normalization are the outputs of one convolution or linear layer with no other
use. Both layers must be called once and be original PyTorch layers (no subclass, hook or parametrization), and no
tensor of them may be used elsewhere.
"""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Any

from ...model import Block

#: Output dimension of the weight, by type of layer.
_AXES = {
    "Linear": 0,
    "Conv1d": 0,
    "Conv2d": 0,
    "Conv3d": 0,
    "ConvTranspose1d": 1,
    "ConvTranspose2d": 1,
    "ConvTranspose3d": 1,
}
#: Normalization type for each layer type, and the number of dimensions that its inputs must have: only BatchNorm1d
#: accepts several, and always normalizes the second dimension.
_NORMS = {
    "Linear": ("BatchNorm1d", 2),
    "Conv1d": ("BatchNorm1d", 3),
    "ConvTranspose1d": ("BatchNorm1d", 3),
    "Conv2d": ("BatchNorm2d", None),
    "ConvTranspose2d": ("BatchNorm2d", None),
    "Conv3d": ("BatchNorm3d", None),
    "ConvTranspose3d": ("BatchNorm3d", None),
}
# Layers and methods that keep the number of dimensions.
_ELEMENTWISE = (
    "Linear",
    "BatchNorm1d",
    "ReLU",
    "ReLU6",
    "LeakyReLU",
    "GELU",
    "SiLU",
    "Tanh",
    "Sigmoid",
    "Dropout",
    "Identity",
)
_METHODS = ("relu", "tanh", "sigmoid")
# Maximum number of optional arguments: a module is traced with and without each of them.
_MAX_OPTIONAL = 4

Shapes = Mapping[str, tuple[int, ...]]
#: Number of dimensions of the outputs of layers, if observed.
Ranks = Mapping[str, int]


def find_blocks(torch: Any, module: Any, inputs: tuple[Any, ...], shapes: Shapes) -> list[Block]:
    """Return the blocks of a module, for tensors with the given shapes, in layer order.

    ``inputs`` are example inputs of a call, or empty.
    """
    layers = _Layers(torch, module)
    with _evaluating(module):
        norms = _joins(torch, module, layers, inputs)
    found = []
    for name, layer in layers.cores.items():
        parts = {"weight": _tensor(name, "weight")}
        if layer.bias is not None:
            parts["bias"] = _tensor(name, "bias")
        axis, epsilon = _AXES[type(layer).__name__], None
        if name in norms and layers.output(name) == layers.norms[norms[name]].num_features:
            members = {"beta": "bias", "gamma": "weight", "mean": "running_mean", "var": "running_var"}
            joined = {member: _tensor(norms[name], tensor) for member, tensor in members.items()}
            if all(tensor in shapes for tensor in joined.values()):
                parts, epsilon = parts | joined, float(layers.norms[norms[name]].eps)
        channels = shapes.get(parts["weight"], ())[axis : axis + 1]
        vectors = [shapes.get(tensor) for member, tensor in parts.items() if member != "weight"]
        if vectors and all(shape == channels for shape in vectors):
            found.append(
                Block(
                    parts["weight"],
                    parts.get("bias"),
                    parts.get("beta"),
                    parts.get("gamma"),
                    parts.get("mean"),
                    parts.get("var"),
                    axis=axis,
                    epsilon=epsilon,
                )
            )
    return found


class _Layers:
    """Unmodified layers of a module that occur once, by name."""

    def __init__(self, torch: Any, module: Any) -> None:
        times = Counter(id(layer) for _, layer in module.named_modules(remove_duplicate=False))
        plain = {
            name: layer
            for name, layer in module.named_modules()
            if times[id(layer)] == 1
            and type(layer) is getattr(torch.nn, type(layer).__name__, None)
            and not _changed(layer)
        }
        self.cores = {name: layer for name, layer in plain.items() if type(layer).__name__ in _AXES}
        self.norms = {
            name: layer
            for name, layer in plain.items()
            if type(layer).__name__ in ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
            and all(getattr(layer, part) is not None for part in ("weight", "bias", "running_mean", "running_var"))
        }
        self.chains = {name: layer for name, layer in plain.items() if type(layer) is torch.nn.Sequential}

    def output(self, name: str) -> int:
        """Return the number of output channels of a layer."""
        layer = self.cores[name]
        return int(layer.out_features if type(layer).__name__ == "Linear" else layer.out_channels)

    def fit(self, core: str, norm: str, rank: int | None) -> bool:
        """Return whether a normalization can follow a layer whose outputs have ``rank`` dimensions (None: unknown)."""
        wanted, needs = _NORMS[type(self.cores[core]).__name__]
        return type(self.norms[norm]).__name__ == wanted and needs in (None, rank)


def _changed(layer: Any) -> bool:
    """Return whether a layer has hooks or a replaced forward()."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
    return "forward" in vars(layer) or any(getattr(layer, each, None) for each in hooks)


def _tensor(layer: str, tensor: str) -> str:
    return f"{layer}.{tensor}" if layer else tensor


@contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    training = {layer: layer.training for layer in module.modules()}
    try:
        module.eval()
        yield
    finally:
        for layer, was in training.items():
            layer.training = was


def _joins(torch: Any, module: Any, layers: _Layers, inputs: tuple[Any, ...]) -> dict[str, str]:
    """Return the normalizations by the layers to which they belong."""
    ranks = _ranks(torch, layers, module, inputs) if inputs else {}
    try:
        graphs = list(_graphs(module))
    except Exception:  # modules may raise anything
        return dict(_adjacent(torch, module, layers, inputs, ranks))
    tensors = {id(value): name for name, value in _tensors(module)}
    return dict(set.intersection(*(set(_traced(module, layers, graph, tensors, ranks)) for graph in graphs)))


def _ranks(torch: Any, layers: _Layers, module: Any, inputs: tuple[Any, ...]) -> Ranks:
    """Return the number of output dimensions observed in a call, for layers where it is constant."""
    seen: dict[str, set[int]] = {name: set() for name in layers.cores}
    handles = [
        layer.register_forward_hook(lambda _, args, output, name=name: seen[name].add(getattr(output, "ndim", -1)))
        for name, layer in layers.cores.items()
    ]
    try:
        with torch.no_grad():
            module(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return {name: found.pop() for name, found in seen.items() if len(found) == 1}


def _graphs(module: Any) -> Iterator[Any]:
    """Yield traces of a module with and without optional arguments, because one trace follows only one branch."""
    fx: Any = importlib.import_module("torch.fx")
    arguments = inspect.signature(module.forward).parameters
    optional = [name for name, argument in arguments.items() if argument.default is None]
    if len(optional) > _MAX_OPTIONAL:
        raise ValueError("too many calls to be traced")
    for absent in product((False, True), repeat=len(optional)):
        tracer = fx.Tracer()
        tracer.proxy_buffer_attributes = True  # otherwise values computed from statistics would be constants
        yield tracer.trace(module, {name: None for name, is_so in zip(optional, absent, strict=True) if is_so} or None)


def _tensors(module: Any) -> Iterator[tuple[str, Any]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


# ------------------------------------------------------------------------------------------------ graphs of torch.fx
def _traced(
    module: Any, layers: _Layers, graph: Any, tensors: Mapping[int, str], ranks: Ranks
) -> Iterator[tuple[str, str]]:
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    # Tensors used outside their layer, under any name.
    loose = {tensors.get(id(_attribute(module, node.target)), "") for node in graph.nodes if node.op == "get_attr"}
    for node in graph.nodes:
        if node.op != "call_module" or node.target not in layers.norms or node.kwargs or len(node.args) != 1:
            continue
        core, norm = node.args[0], node.target
        if getattr(core, "op", "") != "call_module" or core.target not in layers.cores or len(core.users) != 1:
            continue
        used = any(name.rpartition(".")[0] in (core.target, norm) for name in loose)
        rank = ranks.get(core.target) or _rank(module, core)
        if not used and calls[norm] == calls[core.target] == 1 and layers.fit(core.target, norm, rank):
            yield core.target, norm


def _attribute(module: Any, target: str) -> Any:
    for part in target.split("."):
        module = getattr(module, part, None)
    return module


def _rank(module: Any, node: Any) -> int | None:
    """Return the number of dimensions of a value; None if it is unknown."""
    while True:
        if _flattens(module, node):
            return 2
        layer = type(module.get_submodule(node.target)).__name__ if node.op == "call_module" else ""
        same = layer in _ELEMENTWISE or (node.op == "call_method" and node.target in _METHODS)
        if not same and not (
            node.op == "call_function" and getattr(node.target, "__name__", "") in ("relu", "dropout")
        ):
            return None
        if not node.args or not hasattr(node.args[0], "op"):
            return None
        node = node.args[0]


def _flattens(module: Any, node: Any) -> bool:
    """Return whether a value is one vector per sample."""
    if node.op == "call_module":
        layer = module.get_submodule(node.target)
        return type(layer).__name__ == "Flatten" and (layer.start_dim, layer.end_dim) == (1, -1)
    if node.op not in ("call_method", "call_function"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name == "flatten" and node.args[1:] in ((1,), (1, -1)) and not node.kwargs


# ------------------------------------------------------------------------------------------------ Sequential
def _adjacent(
    torch: Any, module: Any, layers: _Layers, inputs: tuple[Any, ...], ranks: Ranks
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of consecutive layers in sequences that are known to be called as a whole."""
    names = {id(layer): name for name, layer in module.named_modules()}
    chains = _watched(torch, module, layers, inputs) if inputs else _certain(module, layers, names)
    for chain in chains:
        children = [names[id(child)] for child in layers.chains[chain]]
        for core, norm in pairwise(children):
            if core in layers.cores and norm in layers.norms and layers.fit(core, norm, ranks.get(core)):
                yield core, norm


def _certain(module: Any, layers: _Layers, names: Mapping[int, str]) -> list[str]:
    """Return the Sequential modules that form the module itself, because their forward() is known."""
    found = [""] if "" in layers.chains else []
    for name in found:  # grows during iteration
        found += [child for child in (names[id(each)] for each in layers.chains[name]) if child in layers.chains]
    return found


def _watched(torch: Any, module: Any, layers: _Layers, inputs: Sequence[Any]) -> list[str]:
    """Return the sequences whose layers are never called from outside."""
    inside: Counter[str] = Counter()
    whole = dict.fromkeys(layers.chains, False)
    broken: set[str] = set()
    handles = []
    try:
        for chain, sequence in layers.chains.items():
            handles += [
                sequence.register_forward_pre_hook(lambda *_, chain=chain: inside.update([chain])),
                sequence.register_forward_hook(lambda *_, chain=chain: inside.subtract([chain])),
            ]
            for child in sequence:

                def look(layer: Any, args: Any, output: Any, chain: str = chain) -> None:
                    whole[chain] = True
                    broken.update([chain] if not inside[chain] else [])

                handles.append(child.register_forward_hook(look))
        with torch.no_grad():
            module(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return [name for name, called in whole.items() if called and name not in broken]
