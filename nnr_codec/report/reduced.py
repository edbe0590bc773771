"""What steps of parameter reduction did to size and error."""

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
    """What one step did.

    Parameters
    ----------
    step : str
    changed : int
        How many tensors have other values, another shape, or are new or gone.
    parameters : int
        Of the model as it is coded after the step.
    zeros : float
        The share of them that are 0.
    snr : float
        Signal to noise in dB of all matrices, as they will come out, relative to those before the step; infinite where
        no value differs. What tensors lost counts as 0.
    nbytes : int
        What the bitstream would take after the step, estimated; with a target, at the steps that it would have without.
    """

    step: str
    changed: int
    parameters: int
    zeros: float
    snr: float
    nbytes: int

    def document(self) -> dict[str, Any]:
        """The same as plain data, as reports have it (docs/reports.md)."""
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
    """A model after steps of parameter reduction, and what each of them did.

    Parameters
    ----------
    model : Model
        As decoders restore it, but for quantization.
    steps : tuple of StepReport
    """

    model: Model
    steps: tuple[StepReport, ...]


def step_report(step: Step, before: Prepared, after: Prepared, nbytes: int) -> StepReport:
    """What became of a model by a step, after which ``nbytes`` would be coded."""
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
    """What comes out, tensors that lost some of their indices with 0 there."""
    model, pruning = prepared.restored, prepared.pruning
    return replace(model, tensors=pruning.widened(model.tensors)) if pruning else model


def number(value: float | None) -> float | None:
    """Seven digits, which are the same on every machine; None for what is no number."""
    return float(f"{value:.7g}") if value is not None and isfinite(value) else None
