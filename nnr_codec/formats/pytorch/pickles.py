"""Interpreter of the pickles in PyTorch files. It calls and imports nothing, and creates only its own value types.

It supports the opcodes that ``torch.save`` writes (protocol 2). A global name becomes a constant, and a call of one
becomes a :class:`PickledContainer`, :class:`Leaf` or :class:`TensorRef`. Each opcode takes constant time, or time
proportional to bytes of the pickle or to items that are charged to a limit: repeated objects are shared, and keys are
not hashed. A container cannot change after it was referenced again. Therefore no container contains itself, and values
can be counted at the end.
"""

from __future__ import annotations

import pickletools
import re
import struct
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

from ...errors import FormatError, NnrError
from ...limits import Budget
from ..diagnosis import AGAIN
from .description import MAX_DEPTH, PAIRS

#: Maximum number of open marks: two for each container (its own and the mark of a nested tuple), and the marks of a
#: tensor.
_MAX_MARKS = 2 * MAX_DEPTH + 8
#: Maximum number of dimensions in PyTorch.
_MAX_DIMS = 64
_MAX_SIZE = (1 << 63) - 1
#: Weight of the values of a container for each further reference to it.
_AGAIN = 10
_DEVICE = re.compile(r"[a-z]{1,20}(:(0|[1-9][0-9]?|1[01][0-9]|12[0-7]))?")
_DTYPE = re.compile(
    r"torch\n(bool|b?float16|float(32|64)|float8_(e4m3fn|e5m2|e4m3fnuz|e5m2fnuz|e8m0fnu)|float4_e2m1fn_x2|complex(32|64|128)"
    r"|u?int([1-8]|16|32|64))"
)

_UINT2, _UINT4, _INT4, _DOUBLE = (struct.Struct(code).unpack_from for code in ("<H", "<I", "<i", ">d"))


# ------------------------------------------------------------------------------------------------ values
class PickledContainer(list[Any]):
    """Container: the items of a list or set, or alternating keys and values of a dict, OrderedDict or Counter.

    A key may be repeated: its last value counts.
    """

    #: Name of the container type.
    kind = "list"
    #: The attribute ``_metadata`` of an OrderedDict, if it has one.
    metadata: tuple[Any, ...] = ()
    #: True if it was referenced again and may not change.
    is_used = False

    @classmethod
    def of(cls, kind: str, items: Iterable[Any] = ()) -> PickledContainer:
        """Return a container of a kind."""
        found = cls(items)
        found.kind = kind
        return found


class Leaf(NamedTuple):
    """A torch.Size, torch.dtype or torch.device: kind and value of its node (:mod:`.description`)."""

    kind: str
    value: Any


class Storage(NamedTuple):
    """Reference to a storage: key, item type, item size in bytes, and declared number of items."""

    key: str
    type: str
    itemsize: int
    size: int


class TensorRef(NamedTuple):
    """Reference to a tensor or parameter: ``type`` is its item type; ``offset`` and ``stride`` are in items.

    ``key`` and ``nbytes`` belong to its storage.
    """

    key: str
    nbytes: int
    type: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    is_parameter: bool = False


class Pickle(NamedTuple):
    """Parsed pickle: its value, the end offset, and item type and item size of each storage."""

    value: Any
    end: int
    storages: dict[str, tuple[str, int]]


class _Function(NamedTuple):
    """Stand-in for a function or class that a pickle may call."""

    make: Callable[..., Any]


# ------------------------------------------------------------------------------------------------ calls
def _damaged(what: str) -> FormatError:
    return FormatError(f"the pickle is damaged: {what}")


def _sizes(values: Any) -> tuple[int, ...]:
    """Check the items of a shape or stride."""
    if type(values) is Leaf and values.kind == "size":
        values = values.value
    if type(values) is not tuple or len(values) > _MAX_DIMS:
        raise _damaged(f"a shape or stride is not a tuple of up to {_MAX_DIMS} integers")
    for value in values:
        if type(value) is not int or not -_MAX_SIZE <= value <= _MAX_SIZE:
            raise _damaged("an item of a shape or stride is not a 64-bit integer")
    return values


def _tensor(
    storage: Any,
    offset: Any,
    shape: Any,
    stride: Any,
    gradients: Any = False,
    hooks: Any = None,
    metadata: Any = None,
    *,
    dtype: str | None = None,
) -> TensorRef:
    """Emulate ``_rebuild_tensor`` and ``_rebuild_tensor_v2``."""
    if type(storage) is not Storage or type(offset) is not int or not -_MAX_SIZE <= offset <= _MAX_SIZE:
        raise _damaged("a tensor has an invalid storage or offset")
    _check_state(gradients, hooks)
    if metadata:
        raise FormatError(
            "a tensor is conjugated or negated lazily; save the result of resolve_conj() or resolve_neg()"
        )
    shape, stride = _sizes(shape), _sizes(stride)
    if len(shape) != len(stride) or min(shape, default=0) < 0:
        raise _damaged("the shape and stride of a tensor do not match, or an extent is negative")
    return TensorRef(
        storage.key, storage.size * storage.itemsize, dtype or storage.type, offset, shape, stride, gradients
    )


def _tensor_v3(
    storage: Any, offset: Any, shape: Any, stride: Any, gradients: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> TensorRef:
    if type(dtype) is not Leaf or dtype.kind != "dtype":
        raise _damaged("a tensor has no dtype")
    return _tensor(storage, offset, shape, stride, gradients, hooks, metadata, dtype=dtype.value)


def _parameter(data: Any, gradients: Any, hooks: Any) -> TensorRef:
    if type(data) is not TensorRef:
        raise _damaged("a parameter has no tensor")
    _check_state(gradients, hooks)
    return data._replace(requires_grad=gradients, is_parameter=True)


def _check_state(gradients: Any, hooks: Any) -> None:
    if type(gradients) is not bool or hooks:
        raise FormatError("a tensor of the pickle has backward hooks, or an invalid requires_grad")


def _ordered(pairs: Any = ()) -> PickledContainer:
    """Return an OrderedDict: empty, from a dict, or from pairs as Python 2 writes them."""
    if type(pairs) is PickledContainer and pairs.kind in PAIRS:
        return PickledContainer.of("OrderedDict", pairs)
    return PickledContainer.of("OrderedDict", [part for pair in _plain(pairs) for part in _plain(pair, 2)])


def _counter(pairs: Any = None) -> PickledContainer:
    """Return a Counter: empty, or from a dict."""
    if pairs is not None and not (type(pairs) is PickledContainer and pairs.kind in PAIRS):
        raise _damaged("a Counter is not made from a dict")
    return PickledContainer.of("Counter", pairs or ())


def _set(items: Any = ()) -> PickledContainer:
    return PickledContainer.of("set", _plain(items))


def _plain(items: Any, length: int | None = None) -> Any:
    """Check that the value is a list or tuple, of a given length."""
    if not (type(items) is tuple or (type(items) is PickledContainer and items.kind == "list")):
        raise _damaged("a container is made from neither a list nor a tuple")
    if length is not None and len(items) != length:
        raise _damaged("an item of a dict is not a pair")
    return items


def _complex(real: Any, imaginary: Any) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise _damaged("a part of a complex number is not a float")
    return complex(real, imaginary)


def _size(sizes: Any) -> Leaf:
    return Leaf("size", _sizes(sizes))


def _device(name: Any, index: Any = None) -> Leaf:
    if type(name) is str and (index is None or type(index) is int):
        text = name if index is None else f"{name}:{index}"
        if _DEVICE.fullmatch(text):
            return Leaf("device", text)
    raise _damaged("a device has an invalid name or index")


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "__builtin__\nset": _set,
    "builtins\nset": _set,
    "__builtin__\ncomplex": _complex,
    "builtins\ncomplex": _complex,
    "collections\nOrderedDict": _ordered,
    "collections\nCounter": _counter,
    "torch\nSize": _size,
    "torch\ndevice": _device,
    "torch._utils\n_rebuild_tensor": _tensor,
    "torch._utils\n_rebuild_tensor_v2": _tensor,
    "torch._utils\n_rebuild_tensor_v3": _tensor_v3,
    "torch._utils\n_rebuild_parameter": _parameter,
}
# Storage types are represented by bytes, unlike all other values.
_STORAGES = {
    "BoolStorage": ("bool", 1),
    "ByteStorage": ("uint8", 1),
    "CharStorage": ("int8", 1),
    "ShortStorage": ("int16", 2),
    "IntStorage": ("int32", 4),
    "LongStorage": ("int64", 8),
    "HalfStorage": ("float16", 2),
    "BFloat16Storage": ("bfloat16", 2),
    "FloatStorage": ("float32", 4),
    "DoubleStorage": ("float64", 8),
    "ComplexFloatStorage": ("complex64", 8),
    "ComplexDoubleStorage": ("complex128", 16),
    "UntypedStorage": ("uint8", 1),
}


def _constant(name: str, before: list[Any]) -> _Function | bytes | Leaf:
    """Return the stand-in for a global name; ``before`` is the stack before it."""
    module, _, short = name.partition("\n")
    if name in _FUNCTIONS:
        return _Function(_FUNCTIONS[name])
    if module in ("torch", "torch.cuda", "torch.storage") and short in _STORAGES:
        return short.encode()
    if match := _DTYPE.fullmatch(name):
        return Leaf("dtype", match[1])
    shown = ascii(f"{module}.{short}"[:100])[1:-1]
    after = f", after {before[-1][:80]!a}" if before and type(before[-1]) is str else ""
    raise FormatError(f"the pickle calls a disallowed function: {shown}{after}", hint=_instead(module, short))


def _instead(module: str, short: str) -> str:
    """Return a hint for saving an object of this class, or of this function, in another way."""
    weights = "torch.save(module.state_dict(), 'weights.pt')"
    if module.startswith("__torch__"):
        return f"this is TorchScript: run module = torch.jit.load(FILE), and save its weights with {weights}"
    if short.startswith(("qint", "quint")) or short == "_rebuild_qtensor" or "quantized" in module:
        return "PyTorch has quantized this model: give the original model, which is quantized on encoding"
    if module.startswith("torch.nn."):
        return f"this is a pickled module: save its weights with {weights}"
    if module.startswith("numpy"):
        return "save a number x of NumPy as x.item(), and an array as torch.from_numpy(x)"
    if f"{module}.{short}" in _PLAIN:
        return _PLAIN[f"{module}.{short}"]
    if short[:1].isupper():
        return "save a module or an optimizer x as x.state_dict(), and other objects as plain values, such as vars(x)"
    return "only tensors, parameters, plain containers and plain values are supported"


#: Hints for values that are often in the checkpoints of a training.
_PLAIN = {
    "argparse.Namespace": "save a namespace x as vars(x)",
    "collections.defaultdict": "save a defaultdict x as dict(x)",
    "collections.deque": "save a deque x as list(x)",
    "pathlib.PosixPath": "save a path x as str(x)",
    "pathlib.WindowsPath": "save a path x as str(x)",
    "_codecs.encode": "save bytes x as torch.frombuffer(bytearray(x), dtype=torch.uint8)",
}


# ------------------------------------------------------------------------------------------------ opcodes
def read_pickle(data: bytes, start: int, budget: Budget) -> Pickle:
    """Read the pickle that begins at an offset of ``data``.

    Parameters
    ----------
    data : bytes
    start : int
    budget : Budget
        Charged with the objects of the pickle, as ``max_names``.

    Raises
    ------
    FormatError
        The pickle is damaged, or contains anything but containers, plain values and tensors.
    LimitError
        The pickle has more objects than the limits permit, or ``data`` is as long as they permit and ends before it.
    """
    try:
        return _run(data, start, budget)
    except NnrError:
        raise
    except (EOFError, struct.error):
        budget.limits.check("max_topology_bytes", len(data) + 1, "bytes of the pickles")
        raise FormatError("the pickle is damaged: it ends early", hint=AGAIN) from None
    except (LookupError, ValueError, TypeError) as error:
        raise _damaged(f"{type(error).__name__} {str(error)[:100]}") from None


def _run(data: bytes, at: int, budget: Budget) -> Pickle:
    stack: list[Any] = []
    below: list[list[Any]] = []  # stacks below the open marks
    memo: dict[int, Any] = {}
    storages: dict[str, tuple[str, int]] = {}
    put = -1  # last key of the memo
    most = left = budget.limits.max_names - budget.spent.get("max_names", 0)
    last = len(data) - 1
    while left >= 0:
        if at >= last and data[at:] != b".":  # only STOP may be the last byte
            raise EOFError
        opcode = data[at]
        at += 1
        match opcode:
            # In the order of their frequency.
            case 0x72:  # LONG_BINPUT
                put = _UINT4(data, at)[0]
                memo[put] = stack[-1]
                at += 4
            case 0x68 | 0x6A:  # BINGET, LONG_BINGET
                known = memo[data[at] if opcode == 0x68 else _UINT4(data, at)[0]]
                at += 1 if opcode == 0x68 else 4
                if type(known) is PickledContainer:
                    known.is_used = True
                elif type(known) is TensorRef:  # each occurrence has its own name
                    left -= _AGAIN - 1
                stack.append(known)
                left -= 1
            case 0x4B:  # BININT1
                stack.append(data[at])
                at += 1
                left -= 1
            case 0x28:  # MARK
                if len(below) > _MAX_MARKS:
                    raise FormatError(f"containers are nested deeper than {MAX_DEPTH}")
                below.append(stack)
                stack = []
            case 0x58:  # BINUNICODE
                at, first = at + 4 + _UINT4(data, at)[0], at + 4
                stack.append(str(_bytes(data, first, at), "utf-8", "surrogatepass"))
                left -= 1
            case 0x74:  # TUPLE
                items, stack = stack, below.pop()
                stack.append(tuple(items))
                left -= 1
            case 0x52:  # REDUCE
                arguments = stack.pop()
                function = stack.pop()
                if type(function) is not _Function:
                    raise FormatError("the pickle calls an object that is not a function")
                if type(arguments) is not tuple:
                    raise _damaged("the arguments of a call are not a tuple")
                value = function.make(*arguments)
                stack.append(value)
                if type(value) is PickledContainer:  # contents are copied
                    left -= len(value)
                if memo.get(put) is arguments:  # no longer referenced: a third of all objects
                    del memo[put]
            case 0x85:  # TUPLE1
                stack[-1] = (stack[-1],)
                left -= 1
            case 0x29:  # EMPTY_TUPLE
                stack.append(())
                left -= 1
            case 0x51:  # BINPERSID
                if type(stack[-1]) is not tuple:
                    raise _damaged("a persistent identifier is not a tuple")
                stack[-1] = storage = _storage(*stack[-1])
                if storages.setdefault(storage.key, storage[1:3]) != storage[1:3]:
                    raise FormatError(f"storage {storage.key[:40]!a} has items of two types")
            case 0x89 | 0x88:  # NEWFALSE, NEWTRUE
                stack.append(opcode == 0x88)
                left -= 1
            case 0x86:  # TUPLE2
                stack[-2:] = [(stack[-2], stack[-1])]
                left -= 1
            case 0x87:  # TUPLE3
                stack[-3:] = [(stack[-3], stack[-2], stack[-1])]
                left -= 1
            case 0x71:  # BINPUT
                put = data[at]
                memo[put] = stack[-1]
                at += 1
            case 0x4D:  # BININT2
                stack.append(_UINT2(data, at)[0])
                at += 2
                left -= 1
            case 0x4A:  # BININT
                stack.append(_INT4(data, at)[0])
                at += 4
                left -= 1
            case 0x8A:  # LONG1
                at, first = at + 1 + data[at], at + 1
                stack.append(int.from_bytes(_bytes(data, first, at), "little", signed=True))
                left -= 1
            case 0x47:  # BINFLOAT
                stack.append(_DOUBLE(data, at)[0])
                at += 8
                left -= 1
            case 0x4E:  # NONE
                stack.append(None)
                left -= 1
            case 0x7D:  # EMPTY_DICT
                stack.append(PickledContainer.of("dict"))
                left -= 1
            case 0x5D:  # EMPTY_LIST
                stack.append(PickledContainer())
                left -= 1
            case 0x8F:  # EMPTY_SET
                stack.append(PickledContainer.of("set"))
                left -= 1
            case 0x75:  # SETITEMS
                items, stack = stack, below.pop()
                if len(items) % 2:
                    raise _damaged("a key has no value")
                _open(stack[-1], PAIRS).extend(items)
            case 0x65:  # APPENDS
                items, stack = stack, below.pop()
                _open(stack[-1], ("list",)).extend(items)
            case 0x73:  # SETITEM
                items = stack[-2:]
                del stack[-2:]
                _open(stack[-1], PAIRS).extend(items)
            case 0x61:  # APPEND
                value = stack.pop()
                _open(stack[-1], ("list",)).append(value)
            case 0x62:  # BUILD
                state = stack.pop()
                _build(stack[-1], state)
            case 0x63:  # GLOBAL
                try:
                    end = data.index(b"\n", data.index(b"\n", at) + 1)
                except ValueError:
                    raise EOFError from None
                stack.append(_constant(str(data[at:end], "utf-8"), stack))
                at = end + 1
                left -= 1
            case 0x55:  # SHORT_BINSTRING
                at, first = at + 1 + data[at], at + 1
                stack.append(str(_bytes(data, first, at), "ascii"))
                left -= 1
            case 0x80:  # PROTO
                at += 1
            case 0x2E:  # STOP
                break
            case _:
                names = {code.code: code.name for code in pickletools.opcodes}
                name = names.get(chr(opcode), hex(opcode))
                raise FormatError(f"the pickle has opcode {name} at {at - 1}, which torch.save does not write")
    budget.charge("max_names", most - left, "objects of the pickle")
    value = stack.pop()
    _count([value], budget, {}, 0)
    return Pickle(value, at, storages)


def _count(container: Any, budget: Budget, counts: dict[int, int], depth: int) -> int:
    """Count the described values of a container; charge a container that was counted before.

    ``counts`` has the results by identity of the container.
    """
    if depth > MAX_DEPTH + 1:
        raise FormatError(f"containers are nested deeper than {MAX_DEPTH}")
    total = 1
    for value in chain(container, container.metadata if type(container) is PickledContainer else ()):
        if type(value) is not tuple and type(value) is not PickledContainer:
            total += 1
            continue
        count = counts.get(id(value))
        if count is None:
            count = counts[id(value)] = _count(value, budget, counts, depth + 1)
        else:
            budget.charge("max_names", 1 + _AGAIN * (count - 1), "objects of the pickle, in all their places")
        total += count
    return total


def _bytes(data: bytes, first: int, end: int) -> bytes:
    if end > len(data):
        raise EOFError
    return data[first:end]


def _open(container: Any, kinds: tuple[str, ...]) -> PickledContainer:
    """Check that the value is a container that may still change."""
    if type(container) is not PickledContainer or container.kind not in kinds:
        raise _damaged("items are added to an object that is not a container for them")
    if container.is_used:
        raise FormatError("the pickle changes a container that is already shared, such as one that contains itself")
    return container


def _build(target: Any, state: Any) -> None:
    """Set the attributes of an OrderedDict."""
    target = _open(target, ("OrderedDict",))
    parts = iter(_open(state, ("dict",)))
    for key, value in zip(parts, parts, strict=True):  # _open() rejects a reused dict, which would cost time again
        if type(key) is not str or key != "_metadata":
            raise FormatError("an OrderedDict has attributes besides its keys, which are not supported")
        target.metadata = (value,)


def _storage(kind: Any, type_: Any, key: Any, location: Any, size: Any, view: Any = None) -> Storage:
    """Return the storage of a persistent identifier; ``view`` occurs only in files of the old format."""
    if kind != "storage" or type(type_) is not bytes or type(key) is not str or type(location) is not str:
        raise _damaged("a persistent identifier does not identify a storage")
    if type(size) is not int or not 0 <= size <= _MAX_SIZE or view is not None:
        raise _damaged(f"the size of storage {key[:40]!a} is invalid")
    type_name, itemsize = _STORAGES[type_.decode()]
    return Storage(key, type_name, itemsize, size)
