"""Looks through pickles before PyTorch's restricted unpickler does: nothing is run, and no object of them made.

That unpickler hashes tuples however deep they are, makes storages of any size, and lets a few bytes put the same object
anywhere again. So the list of what may be asked for is shorter here, that of what may be called still more so, and the
size of every object is known before it is a key, is given to what is called, or stands somewhere else as well.
"""

from __future__ import annotations

import os
import pickletools
import re
import struct
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, cast

from ...errors import FormatError, NnrError
from ...limits import Budget, Limits
from .tree import MAX_DEPTH

#: How files begin that PyTorch wrote before 1.6: the pickle of a number that it calls magic.
LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
# Pickles before the storages: that number, a version, the machine, the content, and the storages' names.
_LEGACY_PICKLES = 5

# What a pickle may call,
_CALLED = re.compile(
    r"collections (OrderedDict|Counter)|(__builtin__|builtins) (set|complex)|torch (Size|device)"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|tensor_v3|parameter)"
)
# and only name: the types of storages and of items.
_NAMED = re.compile(
    r"torch(\.cuda)? [A-Z]\w*Storage|torch\.storage (UntypedStorage|TypedStorage)"
    r"|torch (bool|b?float|complex|u?int)[0-9a-z_]*"
)

_PUSHES = {
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1", "BINUNICODE"),
    *("SHORT_BINSTRING", "EMPTY_LIST", "EMPTY_TUPLE", "EMPTY_DICT", "EMPTY_SET"),
}
_EMPTY = {name for name in _PUSHES if name.startswith("EMPTY_")}
# How many objects an opcode takes from the stack.
_POPS = {"APPEND": 1, "SETITEM": 2, "BUILD": 1}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

# Open marks at most: two for each container, its own and that of a tuple in it, and those of a tensor.
_MAX_MARKS = 2 * MAX_DEPTH + 8
# How many times an object counts, with all in it, where it stands again.
_AGAIN = 10


@dataclass(slots=True)
class _Object:
    """An object: how deep tuples are in it, how many objects are; whether it may be called, and may take in more."""

    depth: int = 0
    size: int = 1
    is_called: bool = False
    is_open: bool = False

    def take(self, items: Sequence[_Object]) -> None:
        if not self.is_open:
            # It could grow where its size was counted already.
            raise FormatError("the pickle changes an object that is elsewhere by then, or holds no others")
        self.size += sum(item.size for item in items)


_PLAIN = _Object()


def check_pickle(stream: BinaryIO, budget: Budget) -> None:
    """Look through the pickle that begins here, to its end.

    Raises
    ------
    FormatError
        It is damaged, or asks for anything but containers, plain values and tensors.
    LimitError
        It makes more objects than the limits permit.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pickletools reads some arguments as if they were Python's
            _run(stream, budget)
    except NnrError:
        raise
    except (ValueError, LookupError, struct.error, OverflowError, AttributeError) as error:
        raise FormatError(f"the pickle is damaged: {type(error).__name__} {str(error)[:100]}") from None


def _run(stream: BinaryIO, budget: Budget) -> None:
    """Follow a pickle's stack of objects."""
    stack: list[_Object] = []
    below: list[list[_Object]] = []  # what a mark separates from the present stack
    memo: dict[int, _Object] = {}
    argument: Any
    for opcode, argument, position in pickletools.genops(stream):
        name = opcode.name
        if name in _PUSHES:
            budget.charge("max_names", 1, "objects of the pickle")
            stack.append(_Object(is_open=True) if name in _EMPTY else _PLAIN)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            known = memo[argument]
            budget.charge("max_names", 1 + _AGAIN * (known.size - 1), "objects of the pickle, in all their places")
            stack.append(replace(known, is_open=False) if known.is_open else known)
        elif name == "GLOBAL":
            stack.append(_Object(is_called=_is_called(str(argument))))
        elif name == "MARK":
            if len(below) > _MAX_MARKS:
                raise FormatError(f"containers are nested deeper than {MAX_DEPTH}")
            below.append(stack)
            stack = []
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [_tuple(stack[-_TUPLES[name] :], budget)]
        elif name in ("TUPLE", "APPENDS", "SETITEMS"):
            items, stack = stack, below.pop()
            if name == "TUPLE":
                stack.append(_tuple(items, budget))
            else:
                stack[-1].take(items)
        elif name in _POPS:
            items = stack[-_POPS[name] :]
            del stack[-_POPS[name] :]
            stack[-1].take(items)
        elif name == "BINPERSID":
            stack[-1] = _PLAIN
        elif name == "REDUCE":
            arguments = stack.pop()
            if not stack.pop().is_called:
                raise FormatError("the pickle calls what is not to be called")
            stack.append(_Object(size=1 + arguments.size, is_open=True))
        elif name not in ("PROTO", "STOP"):
            raise FormatError(f"the pickle has opcode {name} at {position}, which torch.save does not write")


def _tuple(items: list[_Object], budget: Budget) -> _Object:
    """A tuple of these."""
    depth = 1 + max([item.depth for item in items], default=0)
    budget.charge("max_names", 1, "objects of the pickle")
    if depth > MAX_DEPTH:
        raise FormatError(f"tuples are nested deeper than {MAX_DEPTH}")
    return _Object(depth, 1 + sum([item.size for item in items]))


def _is_called(asked: str) -> bool:
    """Whether something may be called; FormatError where it may not even be named."""
    called = _CALLED.fullmatch(asked) is not None
    if not called and not _NAMED.fullmatch(asked):
        raise FormatError(
            f"the pickle asks for {asked.replace(' ', '.')[:100]!a}, and nothing of it is run: only tensors, "
            "parameters, plain containers and plain values are read"
        )
    return called


class _Bounded:
    """A file of which no more is asked for than there is: some allocate what they are asked for."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self.readline, self.tell = file.readline, file.tell

    def read(self, count: int) -> bytes:
        return self._file.read(min(count, self._size - self._file.tell()))


def check_legacy(file: BinaryIO, limits: Limits) -> None:
    """Look through the pickles of a file of the old kind; raises as :func:`check_pickle`."""
    size = file.seek(0, os.SEEK_END)
    limits.check("max_archive_bytes", size, "bytes of the file")
    limits.check("max_total_bytes", size, "bytes of the file, which is read whole")
    file.seek(0)
    budget, bounded = Budget(limits), cast(BinaryIO, _Bounded(file, size))
    for _ in range(_LEGACY_PICKLES):
        check_pickle(bounded, budget)
    file.seek(0)
