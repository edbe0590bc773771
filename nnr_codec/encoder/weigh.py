"""Which of several ways to quantize a tensor has the least sum of error and rate."""

from __future__ import annotations

from collections.abc import Sequence

from .cost import measured, unit_syntax
from .distortion import distortion
from .plan import Subject, TensorPlan

#: Bytes of an entry point, about: its offset, its state, and bits since the one before.
ENTRY_POINT_BYTES = 4


def least(subject: Subject, plans: Sequence[TensorPlan]) -> TensorPlan:
    """The plan of the least sum of squared errors and bits, of equal ones the first.

    The first plan's step and rate say what a bit is worth.
    """
    if len(plans) == 1:
        return plans[0]
    worth = plans[0].rate * plans[0].step ** 2
    return min(plans, key=lambda plan: _cost(subject, plan, worth))


def _cost(subject: Subject, plan: TensorPlan, worth: float) -> float:
    entry_points = unit_syntax(plan, subject.config.profile).entry_points if plan.options.scan_order else 0
    taken = measured(subject, plan) + ENTRY_POINT_BYTES * entry_points
    return distortion(subject, plan).noise + worth * 8 * taken
