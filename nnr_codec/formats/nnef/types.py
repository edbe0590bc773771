"""Types of NNEF (NNEF 1.0, 3.3.1): casts, and the deduction of generic types.

A type is the name of a primitive type, a tensor, an array or a tuple. None is an unknown type, which matches
everything, so that one mistake is reported once. The same applies to ``?`` in the body of a generic fragment, which is
not checked for every possible type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from . import tree


@dataclass(frozen=True, slots=True)
class TensorOf:
    """``tensor<item>``; ``item`` is empty for ``tensor<>``, None if unknown."""

    item: str | None


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """``item[]``."""

    item: Type


@dataclass(frozen=True, slots=True)
class TupleOf:
    """``(a, b)``."""

    items: tuple[Type, ...]


Type: TypeAlias = str | TensorOf | ArrayOf | TupleOf | None

#: Type of ``[]``, which can be cast to every array.
EMPTY = ArrayOf("")
GENERIC = "?"
SHAPE = ArrayOf("integer")

# Maximum number of parts of a type, which limits the cost of comparisons; no text needs more.
_LARGEST = 64


def declared(node: tree.Type) -> Type:
    """Return the type in a declaration."""
    match node:
        case tree.Primitive(name=name):
            return TensorOf("") if name == "tensor" else name
        case tree.TensorType(item=item):
            return TensorOf(item)
        case tree.ArrayType(item=item_type):
            return array_of(declared(item_type))
        case tree.TupleType(items=items):
            return tuple_of([declared(item_type) for item_type in items])


def array_of(item: Type) -> Type:
    """Return an array type; unknown if it would be too large."""
    return ArrayOf(item) if _size(item) < _LARGEST else None


def tuple_of(items: list[Type]) -> Type:
    """Return a tuple type; unknown if it would be too large."""
    if len(items) >= _LARGEST or sum(map(_size, items)) >= _LARGEST:
        return None
    return TupleOf(tuple(items))


def _size(type_: Type) -> int:
    match type_:
        case ArrayOf(item=item):
            return 1 + _size(item)
        case TupleOf(items=items):
            return 1 + sum(map(_size, items))
    return 1


def parts(type_: Type) -> Iterable[Type]:
    """Yield the primitive and tensor types in a type."""
    match type_:
        case ArrayOf(item=item):
            yield from parts(item)
        case TupleOf(items=items):
            for item in items:
                yield from parts(item)
        case _:
            yield type_


def is_attribute(type_: Type) -> bool:
    """Return whether a type contains no tensor."""
    return not any(isinstance(part, TensorOf) for part in parts(type_))


def is_generic(type_: Type) -> bool:
    """Return whether a type contains ``?``."""
    return any(part in (GENERIC, TensorOf(GENERIC)) for part in parts(type_))


def substitute(type_: Type, generic: str | None) -> Type:
    """Replace ``?`` in a type."""
    match type_:
        case TensorOf(item=item):
            return TensorOf(generic) if item == GENERIC else type_
        case ArrayOf(item=item_type):
            return ArrayOf(substitute(item_type, generic))
        case TupleOf(items=items):
            return TupleOf(tuple(substitute(item, generic) for item in items))
    return generic if type_ == GENERIC else type_


def castable(source: Type, target: Type) -> bool:
    """Return whether a value of one type may be used for another one (3.3.1, type casting)."""
    if source is target or source is None or target is None or GENERIC in (source, target):
        return True
    match source, target:
        case TensorOf(item=one), TensorOf(item=other):
            return one == other or not other or None in (one, other) or GENERIC in (one, other)
        case str(), TensorOf(item=other):
            return not other or other in (source, GENERIC)
        case ArrayOf(item=one), ArrayOf(item=other):
            return source == EMPTY or (target != EMPTY and castable(one, other))
        case TupleOf(items=ones), TupleOf(items=others):
            return len(ones) == len(others) and all(map(castable, ones, others))
    return source == target


def common(one: Type, other: Type) -> tuple[Type, bool]:
    """Return the common type of two types, and whether there is one (3.3.1)."""
    if castable(one, other):
        return other, True
    return (one, True) if castable(other, one) else (None, False)


def candidates(parameter: Type, argument: Type) -> set[str | None]:
    """Return the possible types for ``?`` in a parameter, given an argument; None if unknown."""
    match parameter, argument:
        case TensorOf(item=item), _ if item == GENERIC:
            return {
                argument.item if isinstance(argument, TensorOf) else argument if isinstance(argument, str) else None
            }
        case ArrayOf(item=item_type), ArrayOf(item=given):
            return candidates(item_type, given) if argument != EMPTY else set()
        case TupleOf(items=items), TupleOf(items=givens):
            found: set[str | None] = set()
            for one, other in zip(items, givens, strict=False):
                found |= candidates(one, other)
            return found
    if parameter == GENERIC:
        return {argument if isinstance(argument, str) else None}
    return {None} if is_generic(parameter) else set()


def spelled(type_: Type) -> str:
    """Return a type in NNEF notation."""
    match type_:
        case TensorOf(item=item):
            return f"tensor<{'?' if item is None else item}>"
        case ArrayOf(item=item_type):
            return "[]" if type_ == EMPTY else f"{spelled(item_type)}[]"
        case TupleOf(items=items):
            return f"({', '.join(map(spelled, items))})"
    return type_ or "?"
