"""Levels of effort (docs/explanation/effort.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Effort:
    """Choices of the encoder if options do not determine them. Each level adds to the previous one.

    Parameters
    ----------
    shift_parameters : bool
        Choose shift parameter ids.
    glance : bool
        Search for codebooks of fixed-point numbers.
    optimised : bool
        Use rate-distortion optimization in quantization.
    passes : int
        Number of searches of each block of parameters in this optimization.
    shaping : bool
        Shape the errors of convolutions.
    rows : bool
        Skip rows of zeros if that saves bits.
    unary : bool
        Choose cabac_unary_length_minus1 by its cost.
    codebooks : bool
        Try codebooks for tensors with few distinct values, as after an earlier quantization.
    uniform : bool
        Try uniform quantization if dependent quantization is the default.
    scans : bool
        Try all scan orders, and use all levels to choose tools.
    """

    shift_parameters: bool = False
    glance: bool = False
    optimised: bool = False
    passes: int = 1
    shaping: bool = False
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
        {"shaping": True, "rows": True},
        {"unary": True, "passes": 2},
        {"codebooks": True},
        {"uniform": True},
        {"scans": True, "passes": 3},
    ):
        levels.append(replace(levels[-1], **more))
    return tuple(levels)


#: Efforts by level.
EFFORTS = dict(enumerate(_levels(), start=1))
