"""Conversion of the contents of a PyTorch file to and from the nodes of its description."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...dtypes import StoredType
from ...errors import FormatError
from ...limits import Budget
from .. import is_text
from . import description
from .description import Node
from .pickles import Leaf, PickledContainer

#: A surrogate pair: two characters in a str of Python, but one character in JSON.
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_KINDS = {kind: kind.__name__ for kind in (list, tuple, set, dict, OrderedDict, Counter)}


class View(NamedTuple):
    """Location of the items of a tensor in a storage, which may be shared.

    Parameters
    ----------
    storage : hashable
        Identity of the storage; for a file, its offset.
    stored : StoredType
    shape, stride : tuple of int
        Shape, and stride in items.
    start, stop : int
        Range of the used bytes of the storage.
    requires_grad, is_parameter : bool
        Properties of the tensor.
    """

    storage: Hashable
    stored: StoredType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int
    stop: int
    requires_grad: bool
    is_parameter: bool

    @classmethod
    def of(
        cls,
        storage: Hashable,
        stored: StoredType,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        requires_grad: bool,
        is_parameter: bool,
        *,
        offset: int,
        size: int,
        what: str,
    ) -> View:
        """Return the view of a tensor, with its first item at ``offset``, in a storage of ``size`` bytes."""
        last = offset
        for extent, step in zip(shape, stride, strict=True):
            last += (extent - 1) * step
        start, stop = offset * stored.itemsize, (last + 1) * stored.itemsize
        if 0 in shape:
            start = stop = 0
        # The stride of an extent of 1 is arbitrary. Keeping it would permit hash collisions of strides.
        stride = tuple([step if extent > 1 else 0 for extent, step in zip(shape, stride, strict=True)])
        if min((offset, *stride)) < 0 or stop > size:
            raise FormatError(f"{what} has items outside its storage")
        return cls(storage, stored, shape, stride, start, stop, requires_grad, is_parameter)

    @property
    def is_contiguous(self) -> bool:
        """True if the items are in row-major order, without gaps."""
        step = 1
        for extent, given in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if extent != 1 and given != step:
                return 0 in self.shape
            step *= extent
        return True


@dataclass
class Found:
    """Result of a walk through a file's content.

    Parameters
    ----------
    tree : node
        Description of the content.
    tensors : dict of str to TensorRef
        Tensors by the names that they get.
    views : dict of str to View
    aliases : dict of str to str
        Tensors that are equal views of one storage, with the first of them.
    apart : list of str
        Tensors that share memory with another one, but are different views.
    """

    tree: Node = None
    tensors: dict[str, Any] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    apart: list[str] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """True if the content is a plain dict of tensors, which needs no description."""
        if not isinstance(self.tree, dict) or self.tree.keys() != {"dict"}:
            return False
        return all(
            key and isinstance(key, str) and isinstance(node, dict) and node.keys() == {"tensor"}
            for key, node in self.tree["dict"]
        )


#: Function that returns the :class:`View` of a tensor, the :class:`Leaf` of another value without parts, or None. The
#: second argument is the position of the value for error messages.
Reader = Callable[[Any, str], View | Leaf | None]


def walk(value: object, budget: Budget, read: Reader) -> Found:
    """Describe the content of a file or the state of a module.

    Parameters
    ----------
    value : object
        Value with containers of Python or of :mod:`.pickles`.
    budget : Budget
        Charged with names, and with the bytes of tensors.
    read : callable
        See :data:`Reader`.

    Raises
    ------
    FormatError
        The value is nested too deeply or contains itself, or has unsupported values or tensors.
    LimitError
        The value exceeds the limits.
    """
    walker = _Walker(budget, read)
    found = Found(walker.node(value, (), 0))
    walker.name(found)
    _find_ties(found)
    return found


class _Walker:
    def __init__(self, budget: Budget, read: Reader) -> None:
        self.budget, self.read = budget, read
        self.tensors: list[tuple[str, Node, Any, View]] = []
        self.characters = 0  # total length of tensor names

    def node(self, value: Any, path: tuple[str, ...], depth: int) -> Node:
        self.budget.charge("max_names", 1, "values of the file")
        if depth > description.MAX_DEPTH:
            raise FormatError(f"containers are nested deeper than {description.MAX_DEPTH}, or contain themselves")
        kind = value.kind if type(value) is PickledContainer else _KINDS.get(type(value))
        if kind is None:
            return self.leaf(value, path)
        if kind in description.PAIRS:
            return self.mapping(value, kind, path, depth)
        if kind == "set":  # its order is irrelevant
            nodes = [(self.key(item, path, 0), item) for item in value]
            return {
                "set": sorted({_identity(item): node for node, item in reversed(nodes)}.values(), key=description.text)
            }
        items = [self.node(item, (*path, str(k)), depth + 1) for k, item in enumerate(value)]
        return items if kind == "list" else {"tuple": items}

    def mapping(self, value: Any, kind: str, path: tuple[str, ...], depth: int) -> Node:
        keys: dict[str, Node] = {}
        values: dict[str, Any] = {}
        parts = iter(value)
        for key, item in zip(parts, parts, strict=True) if type(value) is PickledContainer else value.items():
            node = self.key(key, path, 0)
            same = _identity(key)
            keys.setdefault(same, node)
            values[same] = item
        node = {
            kind: [
                (key, self.node(item, (*path, description.part(key)), depth + 1))
                for key, item in zip(keys.values(), values.values(), strict=True)
            ]
        }
        if type(value) is PickledContainer:
            metadata = value.metadata
        else:
            attributes = getattr(value, "__dict__", {})
            if attributes.keys() - {"_metadata"}:
                raise FormatError(f"{_place(path)} has attributes besides its keys, which are not supported")
            metadata = tuple(attributes.values())
        if metadata:
            node["_metadata"] = self.node(metadata[0], (*path, "_metadata"), depth + 1)
        return node

    def key(self, key: Any, path: tuple[str, ...], depth: int) -> Node:
        self.budget.charge("max_names", 1, "keys of the file")
        if type(key) is tuple and depth < description.MAX_DEPTH:
            return {"tuple": [self.key(item, path, depth + 1) for item in key]}
        if key is None or type(key) in (bool, int, float, str):
            return self.leaf(key, path)
        found = self.read(key, _place(path))
        if not isinstance(found, Leaf) or found.kind != "dtype":
            raise FormatError(f"{_place(path)}: a key or item of a set has type {_type(key)}, which is not supported")
        return {"dtype": found.value}

    def leaf(self, value: Any, path: tuple[str, ...]) -> Node:
        kind = type(value)
        if kind is str:
            if _PAIR.search(value):
                raise FormatError(
                    f"{_place(path)}: a string has two surrogate code points in a row, which JSON would read back as "
                    "one character"
                )
            return self.charged(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return self.charged(description.whole(value))
        if kind is float:
            return description.real(value)
        if kind is complex:
            return {"complex": [description.real(value.real), description.real(value.imag)]}
        what = _place(path)
        found = self.read(value, what)
        if found is None:
            raise FormatError(f"{what} has type {_type(value)}, which is not supported")
        if isinstance(found, Leaf):
            return self.charged({found.kind: found.value})
        return self.tensor(value, found, path, what)

    def charged(self, node: Node) -> Node:
        """Charge values that may be long in the description."""
        if type(node) is not int:
            self.budget.charge("max_topology_bytes", len(description.text(node)), "bytes of values in the description")
        return node

    def tensor(self, value: Any, view: View, path: tuple[str, ...], what: str) -> Node:
        limits = self.budget.limits
        limits.check("max_name_bytes", sum(map(len, path)) + len(path), "characters of the name of a tensor")
        elements = self.budget.tensor(view.shape, view.stored.itemsize, what)
        if not view.is_contiguous:  # all bytes from its first to its last item are read
            span = view.stop - view.start
            limits.check("max_tensor_bytes", span, f"{what}: bytes from the first to the last item")
            more = max(span - elements * view.stored.itemsize, 0)
            self.budget.charge("max_total_bytes", more, f"{what}: bytes between its items")
        kind = "parameter" if view.is_parameter else "tensor"
        node: Node = {kind: view.shape}
        if view.requires_grad is not description.TENSORS[kind]:
            node["requires_grad"] = view.requires_grad
        name = description.name_of(path)
        if not is_name(name):
            raise FormatError(
                f"{what}: the name is empty, contains a zero byte, or is not Unicode text; rename the tensor"
            )
        limits.check("max_name_bytes", len(name.encode()), "bytes of the name of a tensor")
        self.characters += len(name)
        if self.characters > description.MAX_NAMES:
            raise FormatError(f"the names of the tensors have more than {description.MAX_NAMES:,} characters")
        self.tensors.append((name, node, value, view))
        return node

    def name(self, found: Found) -> None:
        """Assign a unique name to each tensor: the one of its position, or one stored in its node."""
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


def _identity(key: Any) -> str:
    """Return a text that is equal for equal Python keys, which must not be hashed."""
    if type(key) is tuple:
        return f"({','.join(map(_identity, key))})"
    if key != key:
        return f"nan {id(key)}"
    if isinstance(key, int | float) and key % 1 == 0:
        return hex(int(key))
    return repr(key)


def _find_ties(found: Found) -> None:
    """Find tied tensors, and tensors that overlap in other ways."""
    known: dict[object, str] = {}
    storages: dict[Hashable, list[tuple[int, int, str]]] = {}
    for name, view in found.views.items():
        if view.start == view.stop:
            continue
        place = view.storage, view.stored.name, view.shape, view.stride, view.start
        if (first := known.setdefault(place, name)) != name:
            found.aliases[name] = first
        else:
            storages.setdefault(view.storage, []).append((view.start, view.stop, name))
    for views in storages.values():
        end, before = 0, ""
        for start, stop, name in sorted(views):
            if start < end:
                found.apart += [other for other in (before, name) if other not in found.apart[-2:]]
            if stop > end:
                end, before = stop, name


def build(torch: Any, node: Node, tensors: Mapping[str, Any], path: tuple[str, ...] = ()) -> Any:
    """Build the content of a file. Raise FormatError if PyTorch lacks a type or device.

    Parameters
    ----------
    torch : module
    node : node
        Checked node of a description.
    tensors : mapping of str to TensorRef
        All tensors of the description.
    """
    if isinstance(node, list):
        return [build(torch, item, tensors, (*path, str(k))) for k, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    kind, value = description.kind_of(node)
    if kind in description.TENSORS:
        return _built(torch, kind, node, tensors[node.get("name", description.name_of(path))])
    if kind == "tuple":
        return tuple(build(torch, item, tensors, (*path, str(k))) for k, item in enumerate(value))
    if kind == "set":
        return {build(torch, item, {}) for item in value}
    if kind in description.PAIRS:
        pairs = [
            (build(torch, key, {}), build(torch, item, tensors, (*path, description.part(key)))) for key, item in value
        ]
        found: Any = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}[kind](
            pairs if kind != "Counter" else dict(pairs)
        )
        if len(found) < len(pairs):
            raise FormatError("the description has a dict with a repeated key")
        if "_metadata" in node:
            found._metadata = build(torch, node["_metadata"], tensors, (*path, "_metadata"))
        return found
    return _value(torch, kind, value)


def _built(torch: Any, kind: str, node: Node, tensor: Any) -> Any:
    gradients = node.get("requires_grad", description.TENSORS[kind])
    if gradients and not tensor.is_floating_point():
        raise FormatError("the description has integers that require gradients")
    if kind == "parameter":
        return torch.nn.Parameter(tensor, requires_grad=gradients)
    # Another occurrence of a tied tensor may have no gradients.
    return tensor.detach().requires_grad_(gradients)


def _value(torch: Any, kind: str, value: Any) -> Any:
    """Return a value that JSON cannot represent."""
    if kind == "int":
        return description.integer_of(value)
    if kind == "float":
        return description.float_of({"float": value})
    if kind == "complex":
        return complex(*map(description.float_of, value))
    if kind == "size":
        return torch.Size(value)
    try:
        # Not getattr, which would import parts of PyTorch by untrusted names.
        found = torch.device(value) if kind == "device" else vars(torch).get(value)
    except RuntimeError:
        found = None
    if type(found) not in (torch.device, torch.dtype):
        raise FormatError(f"the installed PyTorch has no {kind} {value[:40]!a}")
    return found


def _place(path: tuple[str, ...]) -> str:
    return f"{'.'.join([part[:80] for part in path])[:80]!a}" if path else "the content"


def _type(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def is_name(text: str) -> bool:
    """Return whether a bitstream can have tensors of that name: not empty, without zeros and lone surrogates."""
    return bool(text) and "\0" not in text and is_text(text)
