"""Exceptions raised by nnr_codec.

All derive from :class:`NnrError` and from a matching builtin, so ``except ValueError`` works as well.
Programs identify an error by its class and attributes; the text of a message may change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from .rules import Requirement

E = TypeVar("E", bound="NnrError")


class UnitLabel(str):
    """Name of a unit of a bitstream, such as ``unit 17 (NNR_NDU 'conv1')``.

    Attributes
    ----------
    number : int
        The number of the unit, from 0.
    """

    number: int

    def __new__(cls, text: str, number: int) -> UnitLabel:
        label = str.__new__(cls, text)
        label.number = number
        return label

    def __reduce__(self) -> tuple[Any, ...]:
        return UnitLabel, (str(self), self.number)


class NnrError(Exception):
    """Base of all errors of this package.

    Attributes
    ----------
    message : str
        Description of the error, without the place.
    rule : Requirement or None
        The rule of ISO/IEC 15938-17:2024 that a bitstream breaks, if it is known.
    clause : str
        The clause that ``str()`` appends to the message; empty if there is none. The clause of the rule is
        ``rule.clause``.
    tensor : str
        The name of the tensor; empty if there is none.
    option : str
        The field of ``EncoderConfig`` or ``Limits``, or the argument; empty if there is none.
    hint : str
        The suggested action, which ``str()`` appends to the message; empty if there is none.
    unit : str
        The unit, such as ``unit 17 (NNR_NDU 'conv1')``; a :class:`UnitLabel` if its number is known, empty if there
        is none.
    where : str
        The file, shard or tensor, which ``str()`` prepends to the message; see :meth:`within`.
    """

    #: Rule of all errors of the class.
    _rule: ClassVar[Requirement | None] = None

    def __init__(
        self,
        message: str,
        *,
        rule: Requirement | None = None,
        clause: str = "",
        tensor: str = "",
        option: str = "",
        hint: str = "",
        unit: str = "",
        where: str = "",
    ) -> None:
        super().__init__(message)
        self.message, self.rule, self.clause = message, rule or self._rule, clause
        self.tensor, self.option, self.hint, self.unit, self.where = tensor, option, hint, unit, where

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.where, self._place(), self.text(self.clause))))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)

    def text(self, clause: str) -> str:
        """Return the message with the clause, if it is not empty, and the hint."""
        return f"{self.message}{f' ({clause})' if clause else ''}{f'; {self.hint}' if self.hint else ''}"

    def _place(self) -> str:
        return self.unit

    def within(self, what: str, tensor: str = "") -> None:
        """Prepend a file, shard or tensor to the place of the error."""
        self.where = f"{what}: {self.where}" if self.where else what
        self.tensor = self.tensor or tensor

    def converted(self, kind: type[E]) -> E:
        """Return an error of another class with the text, rule, tensor and option of this error."""
        error = kind(str(self))
        error.rule, error.tensor, error.option = self.rule, self.tensor, self.option
        return error


def _restore(cls: type[NnrError], args: tuple[Any, ...], state: dict[str, Any]) -> NnrError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def locate(error: NnrError, unit: str) -> None:
    """Set the unit of an error that has none."""
    error.unit = error.unit or unit


class BitstreamError(NnrError, ValueError):
    """Malformed bitstream.

    Attributes
    ----------
    path : str
        The syntax element, such as ``nnr_compressed_data_unit_header.scan_order``; empty if unknown.
    bit : int
        Bit position relative to the start of the unit; -1 if unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        rule: Requirement | None = None,
        clause: str = "",
        tensor: str = "",
        option: str = "",
        hint: str = "",
        unit: str = "",
        where: str = "",
        path: str = "",
        bit: int = -1,
    ) -> None:
        super().__init__(
            message, rule=rule, clause=clause, tensor=tensor, option=option, hint=hint, unit=unit, where=where
        )
        self.path, self.bit = path, bit

    def _place(self) -> str:
        return ", ".join(filter(None, (self.unit, f"bit {self.bit}" if self.bit >= 0 else "", self.path)))


class TruncatedError(BitstreamError):
    """Bitstream that ends inside a unit or a payload."""


class IncompleteError(TruncatedError):
    """Bitstream that ends between two units, before all tensors of its topology or reference list.

    Parameters
    ----------
    named : int
        Number of tensors in the topology or list.
    missing : sequence of str
        Names of the missing tensors, in order.
    """

    def __init__(self, named: int, missing: Sequence[str]) -> None:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        names = ", ".join(map(repr, missing[:3]))
        super().__init__(
            f"incomplete: {named - len(missing)} of {named} tensors; {names}{more} missing", rule=Requirement.COMPLETE
        )
        self.named, self.missing = named, tuple(missing)


class ElementError(BitstreamError):
    """Syntax element with a reserved value, or with a value that is invalid in its context."""


class PayloadError(BitstreamError):
    """Invalid DeepCABAC payload: overrun, no terminating bit, or a level out of range."""


class LimitError(BitstreamError):
    """Bitstream or model that requires more than the caller's :class:`~nnr_codec.Limits` permit."""

    _rule = Requirement.LIMITS


class MissingReferenceError(NnrError, LookupError):
    """Missing item to which a unit refers: a parent update, a topology, a reference list."""


class UnsupportedError(NnrError, ValueError):
    """Legal bitstream with a feature that this version does not support, such as a reserved profile."""


class Option(str):
    """Name of an option in the message of an :class:`EncodeError` or warning: ``exact`` or ``exact=True``.

    Attributes
    ----------
    name : str
        The field of ``EncoderConfig``, or the argument.
    value : str
        Value of the option, as in ``exact=True``; empty if the message has none.
    """

    name: str
    value: str

    def __new__(cls, name: str, value: object = "") -> Option:
        option = str.__new__(cls, f"{name}={value}" if value != "" else name)
        option.name, option.value = name, str(value)
        return option

    def __reduce__(self) -> tuple[Any, ...]:
        return Option, (self.name, self.value)


def _named(parts: Iterable[str], name: Callable[[Option], str]) -> str:
    return "".join(name(part) if isinstance(part, Option) else part for part in parts)


class EncodeError(NnrError, ValueError):
    """Options that NNR syntax cannot represent, or a tensor that cannot be coded with its options.

    Parameters
    ----------
    *parts : str
        Parts of the message. The first :class:`Option` among them becomes the attribute ``option``.
    clause, tensor, where : str
        Attributes of :class:`NnrError`.
    """

    def __init__(self, *parts: str, clause: str = "", tensor: str = "", where: str = "") -> None:
        option = next((part.name for part in parts if isinstance(part, Option)), "")
        super().__init__("".join(parts), clause=clause, tensor=tensor, option=option, where=where)
        self.parts = parts

    def named(self, name: Callable[[Option], str]) -> str:
        """Return the text with ``name(option)`` for each option, such as its name on the command line."""
        error = copy.copy(self)
        error.message = _named(self.parts, name)
        return str(error)


class WriteError(EncodeError):
    """Structure with values that its syntax table cannot represent."""


class EncodeWarning(UserWarning):
    """Encoding with an unexpected result: a large error, an option without full effect, more bytes than lossless.

    Parameters
    ----------
    *parts : str
        Parts of the message.
    """

    def __init__(self, *parts: str) -> None:
        super().__init__("".join(parts))
        self.parts = parts

    def named(self, name: Callable[[Option], str]) -> str:
        """Return the text with ``name(option)`` for each option, such as its name on the command line."""
        return _named(self.parts, name)


class LossWarning(EncodeWarning):
    """Matrices coded with a large error.

    Attributes
    ----------
    tensors : mapping of str to float
        SNR of each of these matrices in dB, by name, lowest first.
    """

    tensors: Mapping[str, float]


class FormatError(NnrError, ValueError):
    """Model file that is malformed or cannot be represented.

    Attributes
    ----------
    line, column : int
        Position in a text, from 1; 0 if there is none.
    standard : str
        For an error with a position, the standard that contains ``clause``.
    """

    line: int = 0
    column: int = 0
    standard: str = "NNEF 1.0"

    def __str__(self) -> str:
        if not self.line:
            return super().__str__()
        return f"{self.where}:{self.line}:{self.column}: {self.message} ({self.standard}, {self.clause})"


class MissingDependencyError(FormatError, ImportError):
    """Missing optional package; the message names the extra to install."""


class WorkerError(NnrError, RuntimeError):
    """Executor that did not complete its work, or a worker that cannot read an input file."""
