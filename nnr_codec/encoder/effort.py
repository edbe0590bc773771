"""Levels of effort (docs/explanation/effort.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Effort:
    """Choices that the options leave open; each level does more than the one before.

    Parameters
    ----------
    shift_parameters : bool
        Choose shift parameter ids.
    glance : bool
        Look for codebooks of fixed-point numbers.
    optimised : bool
        Weigh errors against bits when quantizing.
    passes : int
        Number of searches of each block of parameters for that.
    rows : bool
        Skip rows of zeros where that saves bits.
    unary : bool
        Choose cabac_unary_length by its cost.
    codebooks : bool
        Try codebooks of tensors that have been quantized.
    uniform : bool
        Try uniform quantization where dependent quantization is the default.
    scans : bool
        Try all scan orders, and look at all levels to choose tools.
    """

    shift_parameters: bool = False
    glance: bool = False
    optimised: bool = False
    passes: int = 1
    rows: bool = False
    unary: bool = False
    codebooks: bool = False
    uniform: bool = False
    scans: bool = False


def _levels() -> tuple[Effort, ...]:
    levels = [Effort()]
    for more in (
        {"optimised": True},
        {"shift_parameters": True},
        {"glance": True},
        {"rows": True},
        {"unary": True, "passes": 2},
        {"codebooks": True},
        {"uniform": True},
        {"scans": True, "passes": 3},
    ):
        levels.append(replace(levels[-1], **more))
    return tuple(levels)


#: By level, from 1 on.
EFFORTS = dict(enumerate(_levels(), start=1))
