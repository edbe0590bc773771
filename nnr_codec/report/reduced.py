"""Effects of steps of parameter reduction on size and error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from ..compare import ModelDifference, compare_models
from ..encoder.prepared import Prepared, decomposed, is_matrix
from ..model import Model, described
from ..reduction_steps import Step


@dataclass(frozen=True)
class StepReport:
    """Effect of one step.

    Parameters
    ----------
    step : str
    changed : int
        Number of tensors with changed values or shapes, including new and removed tensors.
    parameters : int
        Number of parameters of the model as coded after the step.
    zeros : float
        Share of parameters that are 0.
    snr : float
        Signal-to-noise ratio in dB of all restored matrices relative to the matrices before the step; infinite if no
        value differs. Removed parts of tensors count as 0.
    nbytes : int
        Estimated size of the bitstream in bytes after the step; with a size target, at the step sizes without it.
    """

    step: str
    changed: int
    parameters: int
    zeros: float
    snr: float
    nbytes: int

    def document(self) -> dict[str, Any]:
        """Return the plain data for reports (docs/guides/reports.md)."""
        return {
            "step": self.step,
            "changed": self.changed,
            "parameters": self.parameters,
            "zeros": number(self.zeros),
            "snr_db": number(self.snr),
            "bytes": self.nbytes,
        }


@dataclass(frozen=True)
class Reduction:
    """Model after steps of parameter reduction, with the effect of each step.

    Parameters
    ----------
    model : Model
        The model as decoders restore it, apart from quantization.
    steps : tuple of StepReport
    """

    model: Model
    steps: tuple[StepReport, ...]


def step_report(step: Step, before: Prepared, after: Prepared, nbytes: int) -> StepReport:
    """Return the effect of a step on a model with the coded size ``nbytes``."""
    was, now = _widened(before), _widened(after)
    found = compare_models(was, now)
    others = [name for name, one in found.tensors.items() if one.count]
    others += [*found.shapes, *found.missing, *found.extra]
    parameters = zeros = 0
    for name in after.model:
        array = np.asarray(after.model[name])
        parameters += array.size
        zeros += array.size - int(np.count_nonzero(array))
    factors = {name for block in decomposed(after.model, after.restored) for name in (block.g, block.h)}
    coded = {*before.model}.symmetric_difference(after.model) - factors
    matrices = {name: one for name, one in found.tensors.items() if is_matrix(*described(was.tensors, name))}
    share = zeros / parameters if parameters else 0.0
    return StepReport(str(step), len({*others, *coded}), parameters, share, ModelDifference(matrices).snr, nbytes)


def _widened(prepared: Prepared) -> Model:
    """Return the restored model with zeros for removed indices of tensors."""
    model, pruning = prepared.restored, prepared.pruning
    return replace(model, tensors=pruning.widened(model.tensors)) if pruning else model


def number(value: float | None) -> float | None:
    """Round to seven digits, which are the same on every machine; None if not finite."""
    return float(f"{value:.7g}") if value is not None and isfinite(value) else None
