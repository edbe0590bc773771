"""What a PyTorch file holds, to and from the nodes of its description."""

from __future__ import annotations

import importlib
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...dtypes import STORED_TYPES, StoredType
from ...errors import FormatError
from ...limits import Budget
from .. import is_text
from . import tree
from .tree import Node


@dataclass(frozen=True)
class View:
    """Where the items of a tensor lie.

    Parameters
    ----------
    storage : hashable
        What tells storages apart.
    stored : StoredType
    shape, stride : tuple of int
        In items.
    offset : int
        Of the first item, in items.
    """

    storage: Hashable
    stored: StoredType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @cached_property
    def span(self) -> int:
        """How many items of the storage there are from the first to the last one."""
        if 0 in self.shape:
            return 0
        return 1 + sum((extent - 1) * step for extent, step in zip(self.shape, self.stride, strict=True))

    @property
    def is_contiguous(self) -> bool:
        """Whether the items lie in the order of the shape, without gaps."""
        if 0 in self.shape:
            return True
        return self.span == math.prod(self.shape) and self.stride == _strides(self.shape, self.stride)

    @cached_property
    def bytes(self) -> tuple[int, int]:
        """The first byte of the storage that is used, and the one after the last."""
        return self.offset * self.stored.itemsize, (self.offset + self.span) * self.stored.itemsize


def _strides(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of contiguous items; where an extent is 1 those given, which say nothing."""
    found, step = [], 1
    for extent, given in zip(reversed(shape), reversed(stride), strict=True):
        found.append(given if extent == 1 else step)
        step *= extent
    return tuple(reversed(found))


@dataclass
class Found:
    """What a walk through a file's content finds.

    Parameters
    ----------
    tree : node
        Its description.
    tensors : dict of str to Tensor
        By the names that they get.
    views : dict of str to View
    aliases : dict of str to str
        Tensors that are views alike of one storage, with the first of them.
    apart : list of str
        Those that share memory with another one, but are not alike.
    """

    tree: Node = None
    tensors: dict[str, Any] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    apart: list[str] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether it is a dict of tensors and nothing else, which needs no description."""
        if not isinstance(self.tree, dict) or self.tree.keys() != {"dict"}:
            return False
        return all(
            key and isinstance(key, str) and isinstance(node, dict) and node.keys() == {"tensor"}
            for key, node in self.tree["dict"]
        )


def storage_in_memory(tensor: Any) -> Hashable:
    """What tells the storage of a tensor from others, for :func:`walk`; FormatError for one without items."""
    if tensor.is_meta:
        raise FormatError("a tensor is of the device meta, which has no items")
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def walk(torch: Any, value: object, budget: Budget, storage_of: Callable[[Any], Hashable]) -> Found:
    """Describe the content of a file.

    Parameters
    ----------
    torch : module
    value : object
        As ``torch.load`` gives it.
    budget : Budget
        Charged with names, and with the bytes of tensors.
    storage_of : callable
        What tells the storage of a tensor from others; FormatError if its items are not there.

    Raises
    ------
    FormatError
        It is nested too deep or holds itself, or has a value or tensor of a kind that is not carried.
    LimitError
        It asks for more than the limits permit.
    """
    walker = _Walker(torch, budget, storage_of)
    found = Found(walker.node(value, (), 0))
    walker.name(found)
    _find_ties(found)
    return found


class _Walker:
    def __init__(self, torch: Any, budget: Budget, storage_of: Callable[[Any], Hashable]) -> None:
        self.torch, self.budget, self.storage_of = torch, budget, storage_of
        fake = importlib.import_module("torch._subclasses.fake_tensor").FakeTensor
        self.types = (torch.Tensor, torch.nn.Parameter, fake)
        self.tensors: list[tuple[str, Node, Any, View]] = []

    def node(self, value: object, path: tuple[str, ...], depth: int) -> Node:
        self.budget.charge("max_names", 1, "values of the file")
        if depth > tree.MAX_DEPTH:
            raise FormatError(f"containers are nested deeper than {tree.MAX_DEPTH}, or hold themselves")
        kind = type(value)
        if isinstance(value, self.torch.Tensor):
            return self.tensor(value, path)
        if isinstance(value, list | tuple) and kind in (list, tuple):
            items = [self.node(item, (*path, str(k)), depth + 1) for k, item in enumerate(value)]
            return items if kind is list else {"tuple": items}
        if isinstance(value, set):  # the order of which is no property of it
            return {"set": sorted((self.key(item, path, 0) for item in value), key=tree.text)}
        if kind in (dict, OrderedDict, Counter):
            return self.mapping(value, kind.__name__, path, depth)
        return self.leaf(value, path)

    def mapping(self, value: Any, kind: str, path: tuple[str, ...], depth: int) -> Node:
        pairs = []
        for key, item in value.items():
            found = self.key(key, path, 0)
            pairs.append([found, self.node(item, (*path, tree.part(found)), depth + 1)])
        node: Node = {kind: pairs}
        attributes = getattr(value, "__dict__", {})
        if attributes.keys() - {"_metadata"}:
            raise FormatError(f"{_place(path)} has attributes beside its keys, which are not carried")
        if attributes:
            node["_metadata"] = self.node(attributes["_metadata"], (*path, "_metadata"), depth + 1)
        return node

    def key(self, key: object, path: tuple[str, ...], depth: int) -> Node:
        self.budget.charge("max_names", 1, "keys of the file")
        if type(key) is tuple and depth < tree.MAX_DEPTH:
            return {"tuple": [self.key(item, path, depth + 1) for item in key]}
        if key is not None and type(key) not in (bool, int, float, str, self.torch.dtype):
            raise FormatError(f"{_place(path)}: a key or item of a set is of type {_type(key)}, which is not carried")
        return self.leaf(key, path)

    def leaf(self, value: Any, path: tuple[str, ...]) -> Node:
        kind, torch = type(value), self.torch
        if kind is str:
            self.budget.charge("max_topology_bytes", len(tree.text(value)), "bytes of texts in the description")
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return tree.whole(value)
        if kind is float:
            return tree.real(value)
        if kind is complex:
            return {"complex": [tree.real(value.real), tree.real(value.imag)]}
        if kind is torch.Size:
            return {"size": list(value)}
        if kind is torch.dtype:
            return {"dtype": str(value).removeprefix("torch.")}
        if kind is torch.device:
            return {"device": str(value)}
        raise FormatError(f"{_place(path)} is of type {_type(value)}, which is not carried")

    def tensor(self, value: Any, path: tuple[str, ...]) -> Node:
        size = sum(map(len, path)) + len(path)
        self.budget.limits.check("max_name_bytes", size, "characters of the name of a tensor")
        kind = "parameter" if isinstance(value, self.torch.nn.Parameter) else "tensor"
        view = self.view(value, path)
        node: Node = {kind: list(view.shape)}
        if value.requires_grad is not tree.TENSORS[kind]:
            node["requires_grad"] = value.requires_grad
        name = tree.name_of(path)
        if not is_name(name):
            raise FormatError(f"{_place(path)}: no bitstream has a tensor of that name")
        self.budget.limits.check("max_name_bytes", len(name.encode()), f"bytes of the name {name[:80]!a}")
        self.tensors.append((name, node, value, view))
        return node

    def view(self, value: Any, path: tuple[str, ...]) -> View:
        """The tensor's place, which has been checked."""
        what, torch = _place(path), self.torch
        if type(value) not in self.types:
            raise FormatError(f"{what} is a {_type(value)}; only tensors and parameters are carried")
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            kind = "nested" if value.is_nested else "quantized" if value.is_quantized else "sparse"
            raise FormatError(
                f"{what} is a {kind} tensor; only dense ones are carried: make it dense before it is saved"
            )
        stored = STORED_TYPES.get(str(value.dtype).removeprefix("torch."))
        if stored is None or value.is_neg() or value.is_conj():
            raise FormatError(f"{what} is of {value.dtype}, for which there is no type here")
        shape = tuple(value.shape)
        self.budget.tensor(shape, stored.itemsize, what)
        view = View(self.storage_of(value), stored, shape, tuple(value.stride()), value.storage_offset())
        if min((view.offset, *view.stride)) < 0 or view.bytes[1] > value.untyped_storage().nbytes():
            raise FormatError(f"{what} has items outside of its storage")
        return view

    def name(self, found: Found) -> None:
        """Give each tensor a name of its own: that of its place, or one that its node says."""
        taken = {name for name, _, _, _ in self.tensors}
        numbers: Counter[str] = Counter()
        for name, node, value, view in self.tensors:
            unique = name
            while numbers[name] and unique in taken:
                unique = f"{name}~{numbers[name] + 1}"
                numbers[name] += 1
            numbers[name] = max(numbers[name], 1)
            taken.add(unique)
            if unique != name:
                node["name"] = unique
            found.tensors[unique], found.views[unique] = value, view


def _find_ties(found: Found) -> None:
    """Which tensors are one, and which overlap otherwise."""
    first: dict[View, str] = {}
    storages: dict[Hashable, list[tuple[int, int, str]]] = {}
    for name, view in found.views.items():
        if view.span == 0:
            continue
        if (known := first.setdefault(view, name)) != name:
            found.aliases[name] = known
        else:
            storages.setdefault(view.storage, []).append((*view.bytes, name))
    for views in storages.values():
        end, before = 0, ""
        for start, stop, name in sorted(views):
            if start < end:
                found.apart += [other for other in (before, name) if other not in found.apart[-2:]]
            if stop > end:
                end, before = stop, name


def build(torch: Any, node: Node, tensors: Mapping[str, Any], path: tuple[str, ...] = ()) -> Any:
    """The content of a file; FormatError where PyTorch does not know a type or device.

    Parameters
    ----------
    torch : module
    node : node
        Of a description that was checked.
    tensors : mapping of str to Tensor
        All that it names.
    """
    if isinstance(node, list):
        return [build(torch, item, tensors, (*path, str(k))) for k, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    kind, value = tree.kind_of(node)
    if kind in tree.TENSORS:
        return _built(torch, kind, node, tensors[node.get("name", tree.name_of(path))])
    if kind == "tuple":
        return tuple(build(torch, item, tensors, (*path, str(k))) for k, item in enumerate(value))
    if kind == "set":
        return {build(torch, item, {}) for item in value}
    if kind in tree.PAIRS:
        pairs = [(build(torch, key, {}), build(torch, item, tensors, (*path, tree.part(key)))) for key, item in value]
        found: Any = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}[kind](
            pairs if kind != "Counter" else dict(pairs)
        )
        if len(found) < len(pairs):
            raise FormatError("the description has a dict with a key twice")
        if "_metadata" in node:
            found._metadata = build(torch, node["_metadata"], tensors, (*path, "_metadata"))
        return found
    return _value(torch, kind, value)


def _built(torch: Any, kind: str, node: Node, tensor: Any) -> Any:
    gradients = node.get("requires_grad", tree.TENSORS[kind])
    if gradients and not tensor.is_floating_point():
        raise FormatError("the description has integers that require gradients")
    if kind == "parameter":
        return torch.nn.Parameter(tensor, requires_grad=gradients)
    # Of a tied tensor, another place may be one without gradients.
    return tensor.detach().requires_grad_(gradients)


def _value(torch: Any, kind: str, value: Any) -> Any:
    """A value that JSON has no kind for."""
    if kind == "int":
        return tree.integer_of(value)
    if kind == "float":
        return tree.float_of({"float": value})
    if kind == "complex":
        return complex(*map(tree.float_of, value))
    if kind == "size":
        return torch.Size(value)
    try:
        # Not by getattr, which imports parts of PyTorch that somebody names.
        found = torch.device(value) if kind == "device" else vars(torch).get(value)
    except RuntimeError:
        found = None
    if type(found) not in (torch.device, torch.dtype):
        raise FormatError(f"the installed PyTorch knows no {kind} {value[:40]!a}")
    return found


def _place(path: tuple[str, ...]) -> str:
    return f"{'.'.join(path)[:80]!a}" if path else "the content"


def _type(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def is_name(text: str) -> bool:
    """Whether a bitstream has tensors of that name: not empty, without zeros and halves of surrogate pairs."""
    return bool(text) and "\0" not in text and is_text(text)
