"""Description of the contents of a PyTorch file other than tensor items, as JSON text: a topology format of this
project.

Annex C of ISO/IEC 15938-17 is missing in our copy (errata I14); docs/reference/formats.md describes this text. It is
ASCII without zero bytes, in one canonical form. Reading does not need PyTorch.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...errors import FormatError
from ...model import Block, Wiring
from .. import listed
from ..safetensors.header import parse_object

#: First key of the text, and version of the format.
KEY, VERSION = "nnr_codec.pytorch", 1
#: Start of the text.
START = f'{{"{KEY}":'.encode()

#: Maximum nesting depth of containers.
MAX_DEPTH = 100
# Maximum number of brackets and commas, and so of values.
_MAX_MARKS = 4_000_000
MAX_NAMES = 1 << 26
_MAX_DIMS = 32
_MAX_SIZE = (1 << 63) - 1
#: Larger integers are written in hexadecimal, because other JSON readers use floats.
_EXACT = 1 << 53
#: Maximum bits of an integer, the limit of PyTorch.
_MAX_BITS = 255 * 8

#: Containers of key-value pairs.
PAIRS = ("dict", "OrderedDict", "Counter")
#: Kinds of tensors, and their default for requires_grad.
TENSORS = {"tensor": False, "parameter": True}
_LEAVES = ("int", "float", "complex", "size", "dtype", "device")

#: Any JSON value.
Node = Any
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class TensorPlace:
    """Position of a tensor.

    Parameters
    ----------
    name : str
        Name of the tensor.
    shape : tuple of int
    """

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Description:
    """Parsed description.

    Parameters
    ----------
    tree : node
        Checked JSON value.
    places : mapping of str to TensorPlace
        All tensors by name, in order.
    blocks : tuple of Block
    """

    tree: Node
    places: Mapping[str, TensorPlace] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()

    @property
    def wiring(self) -> Wiring:
        """Information about the tensors."""
        return Wiring({name: place.shape for name, place in self.places.items()}, self.blocks)


def to_bytes(tree: Node, blocks: Sequence[Block] = ()) -> bytes:
    """Return the text for a tree and the blocks of its tensors."""
    fields: dict[str, Any] = {KEY: VERSION, "tree": tree}
    if blocks:
        fields["blocks"] = [_fields(block) for block in blocks]
    return text(fields).encode("ascii")


def parse(data: bytes) -> Description:
    """Parse a text. Raise FormatError if it is malformed."""
    if sum(data.count(mark) for mark in b"[{,") > _MAX_MARKS:
        raise FormatError(f"the description has more than {_MAX_MARKS:,} values")
    if not data.isascii():
        raise FormatError("the description is not ASCII")
    value = parse_object(data, "the description")
    if KEY not in value:
        raise FormatError(f"not a description of a PyTorch file: {KEY!r} is missing")
    if value[KEY] != VERSION:
        raise FormatError(f"{KEY} {str(value[KEY])[:20]!a} is not supported; only {VERSION} is")
    if not {"tree"} <= value.keys() <= {KEY, "tree", "blocks"}:
        raise FormatError(
            f"the description must have 'tree' and may have 'blocks', got {listed(sorted(value.keys() - {KEY}))}"
        )
    places: dict[str, TensorPlace] = {}
    size = 0
    for name, shape in _places(value["tree"], (), 0):
        # A key that is written once may be part of many names.
        size += len(name)
        if size > MAX_NAMES:
            raise FormatError(f"the names of the description have more than {MAX_NAMES:,} characters")
        if name in places:
            raise FormatError(f"the description has two tensors with name {name[:80]!a}")
        places[name] = TensorPlace(name, shape)
    return Description(value["tree"], places, _blocks(value.get("blocks", []), places))


# ------------------------------------------------------------------------------------------------ values
def whole(value: int) -> Node:
    """Return the node of an integer."""
    return value if -_EXACT <= value <= _EXACT else {"int": hex(value)}


def real(value: float) -> Node:
    """Return the node of a float: Python's shortest text for finite numbers, else its bits."""
    return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}


def integer_of(text: str) -> int:
    """Return the integer for the digits of a node."""
    return int(text, 16)


def float_of(value: Node) -> float:
    """Return the float of a node with a number or bits."""
    if isinstance(value, dict):
        (found,) = struct.unpack(">d", bytes.fromhex(value["float"]))
        return float(found)
    return float(value)


def kind_of(node: Node) -> tuple[str, Any]:
    """Return the kind of a JSON object, which is its first key, and the value of that key."""
    kind = next(iter(node))
    return kind, node[kind]


def name_of(path: Sequence[str]) -> str:
    """Return the default name of a tensor."""
    return ".".join(path) or "tensor"


def text(node: Node) -> str:
    """Return the text of a node."""
    return _ENCODER.encode(node)


def part(key: Node) -> str:
    """Return the part of a name for a key: a string unchanged, other keys as JSON."""
    return key if isinstance(key, str) else text(key)


# ------------------------------------------------------------------------------------------------ checks
def _places(node: Node, path: tuple[str, ...], depth: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Check a node, and yield names and shapes of its tensors."""
    if depth > MAX_DEPTH:
        raise FormatError(f"the description is nested deeper than {MAX_DEPTH}")
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _places(item, (*path, str(index)), depth + 1)
    elif isinstance(node, dict):
        kind, value = kind_of(node) if node else ("", None)
        if kind in TENSORS:
            yield _tensor(kind, node, path)
        elif kind in PAIRS and isinstance(value, list):
            if node.keys() - {kind} - ({"_metadata"} if kind == "OrderedDict" else set()):
                raise FormatError(f"the description has a {kind} with unexpected fields")
            for pair in value:
                if not isinstance(pair, list) or len(pair) != 2 or not _is_key(pair[0], 0):
                    raise FormatError(f"the description has a {kind} with an entry that is not a key and a value")
                yield from _places(pair[1], (*path, part(pair[0])), depth + 1)
            if "_metadata" in node:
                yield from _places(node["_metadata"], (*path, "_metadata"), depth + 1)
        elif kind == "tuple" and isinstance(value, list) and len(node) == 1:
            yield from _places(value, path, depth)
        elif not _is_leaf(node) and not (node.keys() == {"set"} and isinstance(value, list) and _are_keys(value, 0)):
            raise FormatError(f"the description has a value of unknown kind {kind[:40]!a}")
    elif isinstance(node, float) and not math.isfinite(node):
        raise FormatError("the description has a number that is not a finite float")


def _tensor(kind: str, node: Node, path: tuple[str, ...]) -> tuple[str, tuple[int, ...]]:
    name, gradients = node.get("name", name_of(path)), node.get("requires_grad", False)
    if node.keys() - {kind, "name", "requires_grad"} or not isinstance(name, str) or type(gradients) is not bool:
        raise FormatError("the description has a tensor with unexpected fields")
    if not are_sizes(node[kind]):
        raise FormatError(f"the description gives tensor {name[:80]!a} an invalid shape")
    return name, tuple(node[kind])


def are_sizes(value: object) -> bool:
    """Return whether the value is a list of extents."""
    if not isinstance(value, list) or len(value) > _MAX_DIMS:
        return False
    return all(type(size) is int and 0 <= size <= _MAX_SIZE for size in value)


def _are_keys(nodes: list[Node], depth: int) -> bool:
    return all(_is_key(node, depth) for node in nodes)


def _is_key(node: Node, depth: int) -> bool:
    """Return whether a node can be a dict key or an item of a set."""
    if isinstance(node, dict) and node.keys() == {"tuple"} and isinstance(node["tuple"], list):
        return depth < MAX_DEPTH and _are_keys(node["tuple"], depth + 1)
    return not isinstance(node, list | dict) or (_is_leaf(node) and kind_of(node)[0] in ("int", "float", "dtype"))


def _is_leaf(node: Node) -> bool:
    """Return whether a JSON object stands for a value without parts."""
    if len(node) != 1:
        return False
    kind, value = kind_of(node)
    if kind == "complex":
        return isinstance(value, list) and len(value) == 2 and all(map(_is_float, value))
    if kind == "size":
        return are_sizes(value)
    if kind == "float":
        return _is_float(node)
    return kind in _LEAVES and isinstance(value, str) and (kind != "int" or _is_integer(value))


def _is_float(node: Node) -> bool:
    if isinstance(node, dict):
        bits = node.get("float") if len(node) == 1 else None
        return isinstance(bits, str) and len(bits) == 16 and set(bits) <= set("0123456789abcdef")
    return isinstance(node, float) and math.isfinite(node)


def _is_integer(text: str) -> bool:
    try:
        return len(text) < _MAX_BITS and integer_of(text).bit_length() <= _MAX_BITS
    except ValueError:
        return False


# ------------------------------------------------------------------------------------------------ blocks
_NAMES = ("weight", "bias", "beta", "gamma", "mean", "var")


def _fields(block: Block) -> dict[str, Any]:
    """Return the JSON object of a block."""
    found = asdict(block)
    named = {name: found[name] for name in _NAMES if found[name] is not None}
    return named | {"axis": block.axis} | ({} if block.epsilon is None else {"epsilon": float(block.epsilon)})


def _blocks(value: object, places: Mapping[str, TensorPlace]) -> tuple[Block, ...]:
    """Check and return the blocks of a description: tensors exist, are in one block each, and have matching shapes."""
    if not isinstance(value, list):
        raise FormatError("the blocks of the description are not a list")
    taken: set[str] = set()
    found = []
    for fields in value:
        if not isinstance(fields, dict) or not {"weight", "axis"} <= fields.keys() <= {*_NAMES, "axis", "epsilon"}:
            raise FormatError("a block of the description lacks weight or axis, or has unexpected fields")
        names = [fields[name] for name in _NAMES if name in fields]
        if not all(isinstance(name, str) and name in places for name in names):
            raise FormatError("a block of the description has an unknown tensor")
        if taken.intersection(names) or len(set(names)) < len(names):
            raise FormatError(f"a tensor of the block of {names[0][:80]!a} is already in a block")
        taken.update(names)
        axis, epsilon, shape = fields["axis"], fields.get("epsilon"), places[fields["weight"]].shape
        if type(axis) is not int or not 0 <= axis < len(shape) or len(shape) < 2:
            raise FormatError(
                f"the block of {names[0][:80]!a} has axis {str(axis)[:20]}, which is invalid for shape {shape}"
            )
        if not (epsilon is None or (isinstance(epsilon, float) and epsilon >= 0 and math.isfinite(epsilon))):
            raise FormatError(f"the block of {names[0][:80]!a} has an invalid epsilon")
        if any(places[name].shape != (shape[axis],) for name in names[1:]):
            raise FormatError(f"the tensors of the block of {names[0][:80]!a} differ in shape")
        found.append(Block(**fields))
    return tuple(found)
