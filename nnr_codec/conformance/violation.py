"""What verifying a bitstream found."""

from __future__ import annotations

from dataclasses import dataclass, field

from .digest import TensorDigest


@dataclass(frozen=True)
class Violation:
    """A rule that a bitstream breaks.

    Parameters
    ----------
    requirement, clause : str
        The name of the rule, and its clause of ISO/IEC 15938-17:2024 (empty for limits).
    message : str
        What is wrong.
    unit : int or None
        The number of the unit; None for the bitstream as a whole.
    label : str
        The unit, as ``unit 17 (NNR_NDU 'conv1')``.
    element : str
        Path of the syntax element in the unit; empty when it is no single one.
    bit : int
        Bit position relative to the start of the unit; -1 when not known.
    """

    requirement: str
    clause: str
    message: str
    unit: int | None = None
    label: str = ""
    element: str = ""
    bit: int = -1

    def __str__(self) -> str:
        place = ", ".join(filter(None, (self.label, f"bit {self.bit}" if self.bit >= 0 else "", self.element)))
        rule = ", ".join(filter(None, (self.requirement, self.clause)))
        return f"{place or 'bitstream'}: {self.message} ({rule})"


@dataclass
class Report:
    """What verifying found.

    Parameters
    ----------
    violations : list of Violation
        By unit, those of the bitstream as a whole last; empty when it conforms as far as a program can tell.
    warnings : list of Violation
        Of what the standard states or recommends, but does not demand.
    notes : list of str
        What was ignored, and how the bitstream was read.
    units : int
        How many units were found.
    tensors : list of TensorDigest
        Of what was decoded, in bitstream order.
    """

    violations: list[Violation] = field(default_factory=list)
    warnings: list[Violation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    units: int = 0
    tensors: list[TensorDigest] = field(default_factory=list)
