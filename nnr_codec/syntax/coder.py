"""Descriptors, syntax structures, and coders that apply a syntax table to a structure.

A table function of `tables` contains statements such as ``t.name = u(8)``. The coder bound to ``t`` gives them a
meaning: a Reader reads 8 bits and stores the value, a Writer codes the stored value in 8 bits, a Writer over a
BitCounter counts them, and a Reader over a Sampler generates a value. For type checkers, ``u(8)`` is an int.
Clause numbers refer to ISO/IEC 15938-17:2024.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast, dataclass_transform, overload

from bitarray import bitarray

from ..errors import BitstreamError, ElementError, WriteError
from ..rules import Requirement
from .bitio import BitCounter, BitReader, BitWriter
from .compiled import Compiled, make_reader, make_writer

if TYPE_CHECKING:
    from .session import Session

E = TypeVar("E", bound=IntEnum)
S = TypeVar("S", bound="Structure")
T = TypeVar("T")


class AbsentElementError(AttributeError):
    """Read access to a syntax element that is not present in its structure; a programming error."""


# ------------------------------------------------------------------------------------------------ descriptors, 6.1.3
class Descriptor:
    """Placeholder in a table function that a coder replaces with a value."""

    __slots__ = ("cls", "count", "kind", "n")

    def __init__(self, kind: str, n: int = 0, cls: Any = None, count: int = 0) -> None:
        self.kind, self.n, self.cls, self.count = kind, n, cls, count

    def __repr__(self) -> str:
        if self.kind == "struct":
            return f"{self.cls.table_name}()"
        if self.kind == "bits":
            return f"u(1) x {self.count}"
        return f"{self.kind}({'v' if self.kind in ('st', 'bs') else self.n})"

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} is a descriptor, not a value: assign it to a syntax element first")

    __index__ = __int__ = __bool__


# The tables use the same few descriptors repeatedly.
_descriptor = lru_cache(maxsize=1024)(Descriptor)


@overload
def u(n: int) -> int: ...
@overload
def u(n: int, values: type[E]) -> E: ...
def u(n: int, values: Any = None) -> Any:
    """Return the descriptor u(n); with ``values``, read as a member of that enumeration if possible."""
    return _descriptor("u", n, values)


def i(n: int) -> int:
    """Return the descriptor i(n)."""
    return cast(int, _descriptor("i", n))


def ue(k: int) -> int:
    """Return the descriptor ue(k)."""
    return cast(int, _descriptor("ue", k))


def ie(k: int) -> int:
    """Return the descriptor ie(k)."""
    return cast(int, _descriptor("ie", k))


def flt(n: int) -> float:
    """Return the descriptor flt(n)."""
    return cast(float, _descriptor("flt", n))


def st() -> str:
    """Return the descriptor st(v)."""
    return cast(str, _descriptor("st"))


def bs() -> bytes:
    """Return the descriptor bs(v)."""
    return cast(bytes, _descriptor("bs"))


def bits(count: int) -> bitarray:
    """Return the descriptor of ``count`` flags u(1), as one bitarray."""
    return cast(bitarray, Descriptor("bits", count, None, count))


def struct(cls: type[S]) -> S:
    """Return the descriptor of a nested syntax structure."""
    return cast(S, Descriptor("struct", 0, cls))


# ------------------------------------------------------------------------------------------------ structures
class _Absent:
    """Default of an absent element: reading it is a programming error."""

    name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        raise AbsentElementError(f"{self.name} is not present in this {type(instance).table_name}()")


class _Derived:
    """Default of an element that is derived from others if it is not set."""

    def __init__(self, derive: Callable[[Any], Any]) -> None:
        self.derive = derive

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self.derive(instance)


class _NoEntries:
    """Default of a list: empty; while its structure is read, a list to which the table appends."""

    name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        values = instance.__dict__
        if "_coder" not in values:
            return []  # never shared between structures
        entries = values[self.name] = _List(instance, self.name)
        return entries


def absent() -> Any:
    """Return the default of an optional element."""
    return _Absent()


def inferred(value: T) -> T:
    """Return the default of an element that is inferred to be ``value`` if absent."""
    return cast(T, _NoEntries()) if value == [] else value


def derived(derive: Callable[[Any], Any]) -> Any:
    """Return the default of an element that a writer need not set, such as a count."""
    return _Derived(derive)


@dataclass_transform(kw_only_default=True)
class Structure:
    """Base of all syntax structures: declares the elements; the table defines which elements are coded."""

    clause: ClassVar[str] = ""
    table_name: ClassVar[str] = ""
    table: ClassVar[Callable[..., None]]
    elements: ClassVar[dict[str, str]] = {}
    lists: ClassVar[tuple[str, ...]] = ()
    _coder: ClassVar[Any] = None

    def __init_subclass__(cls) -> None:
        cls.elements = {name: str(kind) for name, kind in vars(cls).get("__annotations__", {}).items()}
        cls.lists = tuple(name for name, kind in cls.elements.items() if kind.startswith("list["))

    if not TYPE_CHECKING:  # with these methods, type checkers would accept any name

        def __init__(self, **elements: Any) -> None:
            if elements.keys() <= self.elements.keys():
                self.__dict__.update(elements)
            else:
                for name, value in elements.items():
                    setattr(self, name, value)  # raises an error with the name

        def __setattr__(self, name: str, value: Any) -> None:
            if isinstance(value, Descriptor):
                self._coder.element(self, name, value)
            elif name in self.elements:
                self.__dict__[name] = value
            else:
                raise AttributeError(f"{self.table_name}() ({self.clause}) has no syntax element {name!r}")

    def present(self) -> dict[str, Any]:
        """Return the elements that are set, in the order in which they were coded or set."""
        return {name: value for name, value in self.__dict__.items() if name[0] != "_"}

    def __copy__(self: S) -> S:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.present() == other.present()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.present().items())})"


TABLES: dict[str, type[Structure]] = {}

#: Counts that a reader checks against a limit before looping, with the offset to add first.
LIMITED = {
    "count_topology_elements_minus2": ("max_names", 2),
    "count_tensor_dimensions": ("max_dims", 0),
    "codebook_size": ("max_codebook", 0),
    "count_ids": ("max_names", 0),
    "num_of_nnr_units_minus2": ("max_units", 2),
}


def syntax(clause: str, cls: type[S]) -> Callable[[Callable[[S, Session], None]], Callable[[S, Session], None]]:
    """Register the decorated function as the table of structure ``cls``, printed in ``clause``."""

    def register(table: Callable[[S, Session], None]) -> Callable[[S, Session], None]:
        cls.clause, cls.table_name, cls.table = clause, table.__name__, staticmethod(table)
        TABLES[table.__name__] = cls
        return table

    return register


class _List(list[Any]):
    """List-valued element during coding: ``t.x[j] = u(8)`` and ``t.x.append(u(8))`` code one entry."""

    __slots__ = ("cursor", "name", "owner")

    def __init__(self, owner: Structure, name: str, values: Iterable[Any] = ()) -> None:
        super().__init__(values)
        self.owner, self.name = owner, name
        self.cursor = 0  # number of entries coded so far

    def __setitem__(self, j: Any, descriptor: Any) -> None:
        self.owner._coder.item(self, j, descriptor)

    def append(self, descriptor: Any) -> None:
        self.owner._coder.item(self, self.cursor, descriptor)

    def __getitem__(self, j: Any) -> Any:
        while len(self) <= j:
            list.append(self, [])
        value = list.__getitem__(self, j)
        if isinstance(value, list):
            self.cursor = max(self.cursor, j + 1)
            if not isinstance(value, _List):
                value = _List(self.owner, f"{self.name}[{j}]", value)
                list.__setitem__(self, j, value)
        return value

    def surplus(self) -> bool:
        """Return whether a writer left entries uncoded."""
        return any(
            v.surplus() if isinstance(v, _List) else bool(v) if isinstance(v, list) else k >= self.cursor
            for k, v in enumerate(self)
        )


def _component(name: str, cls: type[Structure]) -> str:
    """Return the name of a nested structure in paths; for the header of a unit type, its table name."""
    return cls.table_name if name == "detail" else name


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list) else value


_READERS = Compiled(partial(make_reader, limited=LIMITED))
_WRITERS = Compiled(make_writer)


# ------------------------------------------------------------------------------------------------ coders
class Trace(Protocol):
    """Callback for each coded element: path, descriptor, first bit, number of bits, value."""

    def __call__(self, path: str, descriptor: Descriptor, bit: int, size: int, value: Any) -> None:
        """See the class."""


class Coder:
    """Base of coders, which apply the table of a structure."""

    def __init__(self, ctx: Session, io: Any, trace: Trace | None = None) -> None:
        self.ctx, self.io, self.trace, self.path = ctx, io, trace, ""

    def table_of(self, cls: type[Structure]) -> Callable[..., None]:
        """Return the table function of a structure class."""
        return cls.table

    def _walk(self, structure: Structure) -> None:
        structure.__dict__["_coder"] = self
        self.table_of(type(structure))(structure, self.ctx)

    def _emit(self, trace: Trace, name: str, descriptor: Descriptor, start: int, value: Any) -> None:
        trace(f"{self.path}.{name}" if self.path else name, descriptor, start, self.io.pos - start, value)


class Reader(Coder):
    """Coder that builds structures from bits, or from a sampler."""

    io: BitReader
    items = 0  # number of list entries read so far

    def __init__(self, ctx: Session, io: Any, trace: Trace | None = None) -> None:
        self.ctx, self.io, self.trace, self.path = ctx, io, trace, ""
        # True if the compiled functions can be used.
        self._is_plain = trace is None and type(self) is Reader and type(io) is BitReader

    def read(self, cls: type[S], name: str = "") -> S:
        """Read one structure of class ``cls``; ``name`` is its name in paths."""
        if self._is_plain and (function := _READERS[cls.table]):
            structure, io, items = cls.__new__(cls), self.io, self.items
            start = io.pos
            try:
                function(self, structure)
            except Exception:  # the table walk below raises it again, with its path
                io.pos, self.items = start, items
            else:
                return structure
        return self._walked(cls, name)

    def _walked(self, cls: type[S], name: str) -> S:
        outer, self.path = self.path, f"{self.path}.{name}" if self.path and name else name or self.path
        structure = cls.__new__(cls)
        try:
            self._walk(structure)
        except BitstreamError as error:
            error.path = error.path or self.path or cls.table_name
            error.bit = error.bit if error.bit >= 0 else self.io.pos
            raise
        values = structure.__dict__
        del values["_coder"]
        for element in cls.lists:
            if element in values:
                if values[element]:
                    values[element] = _plain(values[element])
                else:
                    del values[element]
        self.path = outer
        return structure

    def _value(self, name: str, descriptor: Descriptor) -> Any:
        kind, cls = descriptor.kind, descriptor.cls
        if kind == "struct":
            return self.read(cls, _component(name, cls))
        start = self.io.pos
        try:
            value = getattr(self.io, kind)(descriptor.n)
            if name in LIMITED:
                limit, more = LIMITED[name]
                self.io.limits.check(limit, value + more, name)
        except BitstreamError as error:
            error.path, error.bit = f"{self.path}.{name}" if self.path else name, start
            raise
        return value if cls is None else cls._value2member_map_.get(value, value)  # a reserved value stays an int

    def element(self, structure: Structure, name: str, descriptor: Descriptor) -> None:
        """Execute ``t.name = descriptor``."""
        start = self.io.pos
        values = structure.__dict__
        if name in values:
            del values[name]  # an element printed at two places keeps bit order
        value = values[name] = self._value(name, descriptor)
        if self.trace:
            self._emit(self.trace, name, descriptor, start, value)

    def item(self, target: _List, j: int, descriptor: Descriptor) -> None:
        """Execute ``t.name[j] = descriptor``."""
        start = self.io.pos
        self.items += 1
        if self.items > self.io.limits.max_names:
            self.io.limits.check("max_names", self.items, "list entries of one unit")
        value = self._value(target.name, descriptor)
        if j == 0:
            name, nested, _ = target.name.partition("[")
            values = target.owner.__dict__
            if not nested or sum(map(len, values[name])) == 0:
                values[name] = values.pop(name)  # keeps the elements in bit order
        list.append(target, value)
        target.cursor = j + 1
        if self.trace:
            self._emit(self.trace, f"{target.name}[{j}]", descriptor, start, value)

    def alignment(self) -> None:
        """Read byte_alignment(), 6.3.5."""
        start = self.io.pos
        n = 8 - (start & 7)
        value = self.io.u(n)
        if value != 1 << (n - 1):
            raise ElementError(
                f"byte_alignment() is {value:0{n}b}, not a one followed by zeros",
                clause="6.3.5",
                bit=start,
                rule=Requirement.BYTE_ALIGNMENT,
            )
        if self.trace:
            self._emit(self.trace, "byte_alignment()", Descriptor("f", n), start, value)


class Writer(Coder):
    """Coder that writes structures as bits, or counts them over a BitCounter."""

    io: BitWriter | BitCounter

    def write(self, structure: Structure) -> None:
        """Code one structure.

        Raises WriteError if an element is set that its table does not code, or if one is missing.
        """
        if self.trace is None and (function := _WRITERS[type(structure).table]):
            state: Any = self.io.state()
            path = self.path
            try:
                function(self, structure)
            except Exception:  # the table walk below raises it again, with details
                self.io.restore(state)
                self.path = path
            else:
                return
        self._walked(structure)

    def _walked(self, structure: Structure) -> None:
        view = copy.copy(structure)  # the caller's structure is never bound to a coder
        values = view.__dict__
        seen: set[str] = set()
        values["_seen"] = seen
        try:
            for name in view.lists:
                values[name] = _List(view, name, getattr(view, name, ()))
            self._walk(view)
        except (BitstreamError, TypeError) as error:
            raise WriteError(f"{structure.table_name}() ({structure.clause}): {error}") from error
        for name, value in structure.present().items():
            unused = values[name].surplus() if name in view.lists else name not in seen
            if unused and value != getattr(type(structure), name, None):
                table = f"{structure.table_name}() ({structure.clause})"
                raise WriteError(f"{name}={value!r} is set, but {table} does not have it here")

    def _code(self, owner: Structure, name: str, descriptor: Descriptor, value: Any) -> None:
        start = self.io.pos
        try:
            if descriptor.kind == "struct":
                if not isinstance(value, descriptor.cls):
                    raise WriteError(f"{owner.table_name}().{name} is {type(value).__name__}, not {descriptor!r}")
                component = _component(name, descriptor.cls)
                outer, self.path = self.path, f"{self.path}.{component}" if self.path else component
                self.write(value)
                self.path = outer
            else:
                getattr(self.io, descriptor.kind)(descriptor.n, value)
        except (ValueError, TypeError, AttributeError) as error:
            if isinstance(error, WriteError):
                raise
            raise WriteError(f"{owner.table_name}().{name}: {error}") from None
        if self.trace:
            self._emit(self.trace, name, descriptor, start, value)

    def element(self, structure: Structure, name: str, descriptor: Descriptor) -> None:
        """Execute ``t.name = descriptor``."""
        try:
            value = getattr(structure, name)
        except AttributeError:
            raise WriteError(
                f"{structure.table_name}() ({structure.clause}) requires {name} here, but it is not set"
            ) from None
        cast(Any, structure)._seen.add(name)
        self._code(structure, name, descriptor, value)

    def item(self, target: _List, j: int, descriptor: Descriptor) -> None:
        """Execute ``t.name[j] = descriptor``."""
        if j >= len(target):
            raise WriteError(
                f"{target.owner.table_name}() requires {target.name}[{j}], but only {len(target)} entries are given"
            )
        target.cursor = j + 1
        self._code(target.owner, f"{target.name}[{j}]", descriptor, list.__getitem__(target, j))

    def alignment(self) -> None:
        """Write byte_alignment(), 6.3.5."""
        start = self.io.pos
        n = 8 - (start & 7)
        self.io.u(n, 1 << (n - 1))
        if self.trace:
            self._emit(self.trace, "byte_alignment()", Descriptor("f", n), start, 1 << (n - 1))


class Sampler:
    """Bit source that generates values, so that ``Reader(ctx, Sampler(draw))`` builds random valid structures.

    ``draw(low, high)`` returns an int in that closed range, as hypothesis or a random generator would choose it.
    """

    def __init__(self, draw: Callable[[int, int], int], limits: Any) -> None:
        self.draw, self.limits, self.pos = draw, limits, 0

    def u(self, n: int) -> int:
        """Generate u(n); the only fixed pattern is an alignment, see Reader.alignment."""
        self.pos += n
        return self.draw(0, (1 << n) - 1)

    def i(self, n: int) -> int:
        """Generate i(n)."""
        self.pos += n
        return self.draw(-(1 << (n - 1)), (1 << (n - 1)) - 1)

    def ue(self, k: int) -> int:
        """Generate ue(k)."""
        return self.draw(0, 9)

    def ie(self, k: int) -> int:
        """Generate ie(k)."""
        return self.draw(-9, 9)

    def flt(self, n: int) -> float:
        """Generate flt(n), exactly representable."""
        return self.draw(-1000, 1000) / 8

    def st(self, n: int) -> str:
        """Generate st(v)."""
        return "".join(chr(self.draw(97, 122)) for _ in range(self.draw(0, 5)))

    def bs(self, n: int) -> bytes:
        """Generate bs(v)."""
        return bytes(self.draw(0, 255) for _ in range(self.draw(0, 9)))

    def bits(self, count: int) -> bitarray:
        """Generate a sequence of flags."""
        return bitarray(self.draw(0, 1) for _ in range(count))


class SampleReader(Reader):
    """Reader over a Sampler."""

    def alignment(self) -> None:
        """Skip the alignment, which has no value to generate."""


def byte_alignment(t: Structure) -> None:
    """byte_alignment(), 6.3.5: a one, then zeros up to the next byte boundary."""
    t._coder.alignment()
