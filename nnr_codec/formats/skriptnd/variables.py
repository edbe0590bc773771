"""Variables of a SkriptND model and their tensor files (NNEF 2 draft, 2.7 and 2.10).

The draft does not define the names of files. The file of a variable ``w`` of a graph ``Net`` is ``main.Net.w.dat``, as
the tools of Khronos write it, or ``Net.w.dat`` or ``w.dat``. Variables of operators have further components, the labels
of invocations, which are only known when the graph is composed, and packs have a file for each item. A file is accepted
if a component is the name of such a variable. All files are accepted if an imported module is neither in the folder nor
in the standard library, whose operators have no variables.

Extents are evaluated if they consist of literals and of symbols that ``@using`` defines by literals. Attributes are
not evaluated, because the user of the graph may replace their defaults.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ...errors import FormatError
from .. import listed
from ..nnef.constants import MAX_EXTENT, MAX_RANK
from ..nnef.lexer import Text
from ..nnef.tensorfile import TensorFileHeader
from .tree import Declaration, Definition, Document, Expression

#: Modules of the standard library (chapter 4).
STANDARD_MODULES = frozenset({"layout", "math", "linalg", "nn", "image", "quant", "algo"})
#: Data types of tensor files by the type of the variable; a type parameter permits any.
_DATA_TYPES = {"real": "scalar", "int": "integer", "bool": "logical", "str": "str"}
#: Limit of the magnitude of values.
_MAX_INTEGER = 1 << 64

#: Value of an expression; None if it is unknown.
Value: TypeAlias = "int | bool | None"
#: Extents, None for an unknown one; None for a shape of unknown rank.
Shape: TypeAlias = "tuple[int | None, ...] | None"

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_LOGIC: dict[str, Callable[[int, int], bool]] = {
    "&&": lambda left, right: bool(left and right),
    "||": lambda left, right: bool(left or right),
    "^": operator.ne,
    "=>": operator.le,
}
# `/` rounds down, and `\\` up.
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "\\": lambda left, right: -(-left // right),
    "%": operator.mod,
    "<?": min,
    ">?": max,
}


@dataclass(frozen=True)
class Variable:
    """Variable of a graph.

    Parameters
    ----------
    declaration : Declaration
    names : tuple of str
        Possible names of its tensor.
    data_type : str
        Data type of its tensor file; empty for any.
    is_required : bool
        True if there must be a tensor file.
    constants : mapping of str to Value
        Symbols of ``@using``.
    present : set of str
        Attributes that are a single value, never null.
    """

    declaration: Declaration
    names: tuple[str, ...]
    data_type: str
    is_required: bool
    constants: Mapping[str, Value]
    present: frozenset[str]


def variables(document: Document, text: Text) -> tuple[Variable, ...]:
    """Return the variables of all graphs of a main module.

    Only the first graph must have tensor files, because other graphs may be versions of it, or be invoked with a label.
    """
    found: list[Variable] = []
    graphs = [each for each in document.definitions if each.is_graph]
    for graph in graphs:
        constants = _constants(graph, text)
        present = frozenset(each.name for each in graph.attributes if not (each.is_optional or each.pack))
        for each in graph.variables:
            names = f"main.{graph.name}.{each.name}", f"{graph.name}.{each.name}", each.name
            is_required = graph is graphs[0] and not each.is_optional and each.pack is None
            found.append(Variable(each, names, _DATA_TYPES.get(each.type, ""), is_required, constants, present))
    return tuple(found)


class NestedVariables:
    """Names of variables of operators and of invoked graphs, and of packs."""

    def __init__(self, document: Document) -> None:
        main = next(each for each in document.definitions if each.is_graph)
        self._names = {variable.name for variable in main.variables if variable.pack}
        self._modules = set(STANDARD_MODULES)
        self._imports: set[str] = set()
        self._add(document, main)

    def add(self, path: str, document: Document) -> None:
        """Add another module of the model."""
        self._modules.add(path.removesuffix(".sknd").replace("/", "."))
        self._add(document, None)

    def _add(self, document: Document, main: Definition | None) -> None:
        self._imports.update(document.imports)
        self._names.update(
            variable.name for each in document.definitions if each is not main for variable in each.variables
        )

    def permits(self, name: str) -> bool:
        """Return whether a tensor may belong to one of these variables."""
        return not self._imports <= self._modules or not self._names.isdisjoint(name.split("."))


def faults(
    document: Document, nested: NestedVariables, headers: Mapping[str, TensorFileHeader | None], text: Text
) -> Iterator[tuple[str, FormatError]]:
    """Yield the faults of variables and their tensor files, with the rule that each violates.

    Parameters
    ----------
    document : Document
        The main module.
    nested : NestedVariables
        Variables whose tensors are not known.
    headers : mapping of str to TensorFileHeader or None
        Headers of tensor files by the name of the tensor; None for a malformed file.
    text : Text
        Text of the main module.
    """
    used = set()
    for variable in variables(document, text):
        name = next((name for name in variable.names if name in headers), None)
        declaration = variable.declaration
        try:
            shape = shape_of(variable, text)
        except FormatError as error:
            yield "sknd-extent", error
        else:
            if name is not None:
                yield from _misfits(variable, shape, f"{name[:200]}.dat", headers[name], text)
            elif variable.is_required:
                message = f"variable {declaration.name[:80]!r} has no file {variable.names[0][:200]}.dat"
                yield "sknd-data-missing", text.error(message, declaration.start, "2.7")
        used.add(name)
    strangers = [f"{name}.dat" for name in headers if name not in used and not nested.permits(name)]
    if strangers:
        first = next(each for each in document.definitions if each.is_graph)
        message = f"the model has no variables for the files {listed(strangers)}"
        yield "sknd-data-variable", text.error(message, first.start, "2.7")


def _misfits(
    variable: Variable, shape: Shape, path: str, header: TensorFileHeader | None, text: Text
) -> Iterator[tuple[str, FormatError]]:
    name, start = variable.declaration.name[:80], variable.declaration.start
    if header is None:
        return
    if shape is not None and (
        len(shape) != len(header.shape)
        or any(extent not in (None, actual) for extent, actual in zip(shape, header.shape, strict=True))
    ):
        extents = ", ".join("?" if extent is None else str(extent) for extent in shape)
        message = f"variable {name!r} has shape [{extents}], but {path} has {[*header.shape]}"
        yield "sknd-data-shape", text.error(message, start, "2.7")
    if header.data_type and variable.data_type not in ("", header.data_type):
        message = (
            f"variable {name!r} is {variable.declaration.type}, but {path} contains {header.dtype}, which is "
            f"{header.data_type} data"
        )
        yield "sknd-data-type", text.error(message, start, "2.7")


# Shapes


def _constants(graph: Definition, text: Text) -> dict[str, Value]:
    """Return the values of the symbols of ``@using``."""
    constants: dict[str, Value] = {}
    for each in graph.symbols:
        target = each.targets.items[0]
        if not each.targets.is_list and target.pack is None and len(target.names) == 1:
            constants[target.names[0]] = None
            with contextlib.suppress(FormatError):
                constants[target.names[0]] = _evaluate(each.value, constants, text)
    return constants


def shape_of(variable: Variable, text: Text) -> Shape:
    """Return the shape of a variable; an extent that may be null, and so be omitted, makes the rank unknown.

    Raises FormatError for an extent that no tensor file can have.
    """
    declaration, constants = variable.declaration, variable.constants
    shape: list[int | None] = []
    is_known = declaration.shape is not None
    for extent in declaration.shape or ():
        assert extent.value is not None  # see parser
        value = _evaluate(extent.value, constants, text)
        if value is None and extent.value.kind == "literal":
            text.fail("an extent must be an integer", extent.start, "2.6")
        if value is not None and (isinstance(value, bool) or not 0 < value <= MAX_EXTENT):
            text.fail(f"an extent must be an integer from 1 to {MAX_EXTENT}, not {value}", extent.start, "2.6")
        count: Value = 1
        if extent.pack:
            count = _evaluated(extent.pack.length, constants, text)
        if count is None or (value is None and not _is_present(extent.value, variable.present)):
            is_known = False
        elif not 0 <= count <= MAX_RANK:
            text.fail(f"a pack of extents must have a length from 0 to {MAX_RANK}, not {count}", extent.start, "2.6")
        else:
            shape.extend([value] * count)
    if len(shape) > MAX_RANK:
        text.fail(f"the variable has more than {MAX_RANK} extents", declaration.start, "2.7")
    return tuple(shape) if is_known else None


def _is_present(expression: Expression, names: frozenset[str]) -> bool:
    """Return whether an expression is a single value, never null: it consists of literals and of these names."""
    if expression.kind == "name":
        return expression.value in names
    if expression.kind not in ("literal", "unary", "operation"):
        return False
    return all(operand is not None and _is_present(operand, names) for operand in expression.operands)


def _evaluate(expression: Expression, constants: Mapping[str, Value], text: Text) -> Value:
    """Return the value of a constant expression of integers and logical values, None for any other one.

    Raises FormatError for a division by zero, a negative exponent, or a value beyond the limit.
    """
    value = expression.value
    if expression.kind == "name":
        return constants.get(str(value))
    if expression.kind == "literal":
        return _limited(value, expression, text) if isinstance(value, int) else None
    if expression.kind not in ("select", "unary", "call", "operation"):
        return None
    first, *others = expression.operands or (None,)
    result = _evaluated(first, constants, text)
    if expression.kind == "select":
        # The other operand may be an error, such as a division by zero.
        return _evaluated(others[0 if result else 1], constants, text) if isinstance(result, bool) else None
    if not isinstance(value, tuple):
        return _unary(str(value), result)
    for sign, operand in zip(value, others, strict=True):
        right = _evaluated(operand, constants, text)
        if result is None or right is None or isinstance(result, bool) != isinstance(right, bool):
            return None
        result = _limited(_binary(sign, result, right, expression, text), expression, text)
    return result


def _evaluated(operand: Expression | None, constants: Mapping[str, Value], text: Text) -> Value:
    return None if operand is None else _evaluate(operand, constants, text)


def _unary(name: str, value: Value) -> Value:
    if isinstance(value, bool):
        return not value if name == "!" else int(value) if name == "int" else None
    if value is None:
        return None
    return {"-": -value, "+": value, "int": value, "abs": abs(value)}.get(name)


def _binary(sign: str, left: int, right: int, at: Expression, text: Text) -> Value:
    """Return the value of an operation on two integers or two logical values."""
    if sign in _COMPARISONS:
        return _COMPARISONS[sign](left, right)
    if isinstance(left, bool):
        return _LOGIC[sign](left, right) if sign in _LOGIC else None
    if sign in ("/", "\\", "%") and right == 0:
        text.fail("division by zero", at.start, "2.4")
    if sign == "**":
        if right < 0:
            text.fail("an integer has a negative exponent", at.start, "2.4")
        # Avoids the computation of a large power; the smallest base is 2.
        return left**right if right <= 64 or abs(left) < 2 else _MAX_INTEGER
    return _ARITHMETIC[sign](left, right) if sign in _ARITHMETIC else None


def _limited(value: Value, at: Expression, text: Text) -> Value:
    if value is not None and abs(value) >= _MAX_INTEGER:
        text.fail("the value exceeds 64 bits", at.start, "2.4")
    return value
