"""Fixed-point formats: each float is rounded to the nearest number of the format; out-of-range values saturate."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite, prod

import numpy as np
import numpy.typing as npt

from ..config import FIXED_POINT
from ..dtypes import STORED_TYPES
from ..errors import EncodeError, Option
from ..sideinfo.record import TensorRecord
from .codebooks import exact_codebook
from .distinct_values import chunks
from .exact import Cheapest
from .facts import TensorFacts
from .plan import FixedPoint, Quantized, TensorPlan
from .quantization import fixed_levels, multiples

#: Number of tensors in a warning, and characters of each name.
LISTED, LONGEST = 8, 200


@dataclass(frozen=True)
class Saturation:
    """Out-of-range parameters of a tensor in a fixed-point format.

    Parameters
    ----------
    parameters : int
        Number of out-of-range parameters.
    largest : float
        Out-of-range parameter with the largest magnitude.
    """

    parameters: int
    largest: float


class SaturationWarning(UserWarning):
    """Parameters that saturate because they are out of the range of a fixed-point format.

    Parameters
    ----------
    message : str
    tensors : mapping of str to Saturation
        Affected tensors by name, in the order of the model.
    """

    def __init__(self, message: str, tensors: Mapping[str, Saturation]) -> None:
        super().__init__(message)
        self.tensors = dict(tensors)

    def __reduce__(self) -> tuple[type[SaturationWarning], tuple[str, dict[str, Saturation]]]:
        return type(self), (str(self), self.tensors)


def fixed_plan(facts: TensorFacts, in_block: bool = False) -> TensorPlan:
    """Return the plan of a tensor of floats in the fixed-point format of the options; it decodes to float32 (7.3.3).

    The step size 2**-fraction exists at any QpDensity. A codebook of all distinct numbers is used if it is smaller.
    Raises EncodeError with the name of the tensor for values that are not finite.
    """
    name = facts.config.fixed_point or ""
    fraction, bits = FIXED_POINT[name]
    qp, limit = -fraction << facts.config.qp_density, 1 << (bits - 1)
    form = FixedPoint(qp, 2.0**-fraction, fraction, -limit, limit - 1)
    if not all(map(isfinite, facts.bounds)):
        raise EncodeError(
            f"tensor {facts.name!r} has values that are not finite, which ",
            Option("fixed_point", name),
            " cannot represent",
            tensor=facts.name,
        )
    form.saturated = _saturated(facts, form)
    plan = facts.plan(Quantized(form))
    plan = replace(plan, record=None if facts.array.ndim else TensorRecord("float32", ()))
    if in_block or facts.options.codebook == 0 or not facts.effort.glance:
        return plan
    levels = fixed_levels(facts.array, form).reshape(facts.array.shape)
    fixed = replace(facts, array=levels.astype(np.float32) * np.float32(plan.step), stored=STORED_TYPES["float32"])
    found = fixed.distinct
    if found is None or len(found.patterns) > prod(plan.dims) // 2:
        return plan
    cheapest = Cheapest(fixed)
    for offered in (plan, exact_codebook(fixed, plan, found)):
        if offered:
            cheapest.offer(offered)
    return cheapest.plan or plan


def warn_saturated(plans: Iterable[TensorPlan], name: str) -> None:
    """Issue one SaturationWarning for all plans with out-of-range parameters in the format of this name."""
    found = {}
    for plan in plans:
        form = plan.coding.quantizer
        if isinstance(form, FixedPoint) and form.saturated:
            found[plan.name] = Saturation(*form.saturated)
    if not found:
        return
    fraction, bits = FIXED_POINT[name]
    least, most = -(2.0 ** (bits - 1 - fraction)), 2.0 ** (bits - 1 - fraction) - 2.0**-fraction
    shown = [
        f"{tensor[:LONGEST]!a} ({one.parameters:,}, the largest {one.largest:g})"
        for tensor, one in list(found.items())[:LISTED]
    ]
    more = f" and {len(found) - LISTED} more tensors" if len(found) > LISTED else ""
    message = f"parameters outside {least:g}..{most:.8f} of {name} saturate: {', '.join(shown)}{more}"
    warnings.warn(SaturationWarning(message, found), stacklevel=2)


def _saturated(facts: TensorFacts, form: FixedPoint) -> tuple[int, float] | None:
    """Return the number of out-of-range values, and the one with the largest magnitude; None if all are in range."""
    low, high = facts.bounds
    edges: npt.NDArray[np.float64] = multiples(np.array([low, high], np.float64), form)
    if form.least <= edges[0] and edges[1] <= form.most:
        return None
    number = 0
    for part in chunks(facts.array.reshape(-1)):
        found = multiples(part, form)
        number += int(np.count_nonzero((found < form.least) | (found > form.most)))
    return number, low if -low > high else high
