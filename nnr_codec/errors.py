"""Every exception that leaves nnr_codec.

All derive from :class:`NnrError` and from the builtin that fits, so ``except ValueError`` works as well.
A message says what is wrong, where (unit, syntax element, bit) and by which clause of ISO/IEC 15938-17:2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class NnrError(Exception):
    """Base of all errors of this package."""


def locate(error: NnrError, unit: str) -> None:
    """Say in an error which unit it is about; a BitstreamError that knows already stays as it is."""
    if isinstance(error, BitstreamError):
        error.unit = error.unit or unit
    else:
        error.args = (f"{unit}: {error}",)


class BitstreamError(NnrError, ValueError):
    """A malformed bitstream.

    Parameters
    ----------
    message : str
        What is wrong.
    unit : str
        The unit, as ``unit 17 (NNR_NDU 'conv1')``; empty when not known (yet).
    path : str
        The syntax element, as ``nnr_compressed_data_unit_header.scan_order``; empty when not known.
    bit : int
        Bit position relative to the start of the unit; -1 when not known.
    """

    def __init__(self, message: str, *, unit: str = "", path: str = "", bit: int = -1) -> None:
        super().__init__(message)
        self.message, self.unit, self.path, self.bit = message, unit, path, bit

    def __str__(self) -> str:
        place = ", ".join(filter(None, (self.unit, f"bit {self.bit}" if self.bit >= 0 else "", self.path)))
        return f"{place}: {self.message}" if place else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.message, self.__dict__)


def _restore(cls: type[BitstreamError], message: str, state: dict[str, Any]) -> BitstreamError:
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(state)
    return error


class TruncatedError(BitstreamError):
    """The bitstream ends inside a unit or a payload."""


class IncompleteError(TruncatedError):
    """The bitstream ends, between two units, before all tensors were there that its topology or reference list names.

    Parameters
    ----------
    named : int
        How many tensors are named.
    missing : sequence of str
        Those that are not there, in order.
    """

    def __init__(self, named: int, missing: Sequence[str]) -> None:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        names = ", ".join(map(repr, missing[:3]))
        super().__init__(f"incomplete: {named - len(missing)} of {named} tensors; {names}{more} missing")
        self.named, self.missing = named, tuple(missing)


class ElementError(BitstreamError):
    """A syntax element has a value that is reserved or impossible where it stands."""


class PayloadError(BitstreamError):
    """A DeepCABAC payload that no encoder writes: overrun, no terminating bit, a level out of range."""


class LimitError(BitstreamError):
    """A bitstream or model asks for more than the caller's :class:`~nnr_codec.Limits` permit."""


class MissingReferenceError(NnrError, LookupError):
    """Something outside the unit is needed and absent: a parent update, a topology, a reference list."""


class UnsupportedError(NnrError, ValueError):
    """Legal, but outside what this version decodes, such as a reserved profile."""


class EncodeError(NnrError, ValueError):
    """A wish that the syntax cannot express, or a tensor that cannot be coded as asked."""


class WriteError(EncodeError):
    """A structure that its own syntax table cannot represent."""


class EncodeWarning(UserWarning):
    """An encoding with an unexpected result: a large error, an option without full effect, more bytes than lossless."""


class LossWarning(EncodeWarning):
    """Matrices are coded with a large error.

    Attributes
    ----------
    tensors : mapping of str to float
        SNR of each of them in dB, by name, the lowest first.
    """

    tensors: Mapping[str, float]


class FormatError(NnrError, ValueError):
    """A model file that is malformed or cannot be represented."""


class MissingDependencyError(FormatError, ImportError):
    """An optional package is needed; the message names the extra to install."""


class WorkerError(NnrError, RuntimeError):
    """Work that was handed to an executor did not come back, or its worker cannot read a file that it is about."""
