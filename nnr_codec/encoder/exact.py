"""The cheapest of all ways to code a tensor bit for bit (docs/side-information.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from ..constants import NNR_PT_INT, NNR_PT_RAW_FLOAT
from ..errors import EncodeError
from ..sideinfo.record import PaletteCode, RawCode
from .cost import code_bytes, measured, overhead
from .distinct import SAMPLE
from .floats import UNARY, float_code
from .grids import grid_codes
from .integers import bounds, integer_codes
from .plan import Subject, TensorPlan
from .steps import exact_step, with_codebook

#: Parts by which codes that are only estimated from entropies exceed them, and by which a record has to pay.
SURPLUS, GAIN = 1.003, 2.0**-9


@dataclass
class Cheapest:
    """The plan that takes the fewest bytes of those that are offered, of about equal ones the one without a code.

    Parameters
    ----------
    subject : Subject
    plan : TensorPlan or None
        None as long as none was accepted.
    price : float
        What it takes; of a plan with a code a little more.
    """

    subject: Subject
    plan: TensorPlan | None = None
    price: float = float("inf")

    def offer(self, plan: TensorPlan, price: float | None = None, floor: float = 0.0) -> None:
        """Accept a plan that is cheaper; without a price it is measured, unless ``floor`` bytes of levels are too many.

        A code that the tensor does not fit is not accepted, nor one for which the record has no room.
        """
        factor = 1 + GAIN if plan.code else 1
        if plan.code and code_bytes(plan.code) > self.subject.room and not isinstance(plan.code, RawCode):
            return
        if price is None:
            if factor * (overhead(plan) + floor) >= self.price:
                return
            try:
                price = measured(self.subject, plan)
            except ValueError:
                return
        if factor * price < self.price:
            self.plan, self.price = plan, factor * price

    def offer_levels(self) -> None:
        """Offer exact steps and codebooks."""
        for plan in exact_levels(self.subject):
            self.offer(plan, floor=entropy(self.subject))


def exact(subject: Subject) -> TensorPlan:
    """The plan that keeps every bit in the fewest bytes.

    Raises EncodeError where side information is not allowed, and NNR alone does not hold the tensor.
    """
    cheapest = Cheapest(subject)
    if subject.stored.kind == "f":
        _offer_raw(cheapest)
        if subject.config.side_info:
            _offer_float_code(cheapest)
        cheapest.offer_levels()
    else:
        low, high = bounds(subject)
        if low >= -(1 << 31) and high < 1 << 31:
            cheapest.offer(subject.plan(NNR_PT_INT))
    if subject.config.side_info:
        _offer_codes(cheapest)
    if cheapest.plan is None:
        raise EncodeError(_reason(subject))
    return cheapest.plan


def exact_plain(subject: Subject) -> TensorPlan | None:
    """The plan that keeps every bit of floats in the fewest bytes that every decoder understands; None if none does."""
    cheapest = Cheapest(subject)
    _offer_raw(cheapest)
    cheapest.offer_levels()
    return cheapest.plan


def exact_levels(subject: Subject) -> Iterator[TensorPlan]:
    """Plans of exact steps and codebooks, which every decoder understands."""
    plan = exact_step(subject)
    if plan is None or (plan.record and not subject.plan(NNR_PT_RAW_FLOAT).record):
        return
    yield plan
    found = subject.distinct
    if found is not None and len(found.patterns) <= prod(plan.dims) // 2:
        book = with_codebook(subject, plan, found)
        if book is not None:
            yield book


def entropy(subject: Subject) -> float:
    """Bytes that levels take, about, which tell the items of a tensor apart; 0 where that is not known."""
    return subject.distinct.bits / 8 if subject.distinct else 0.0


def _offer_raw(cheapest: Cheapest) -> None:
    """Offer the values as float32."""
    subject = cheapest.subject
    if _raw_is_exact(subject):
        cheapest.offer(subject.plan(NNR_PT_RAW_FLOAT))


def _offer_float_code(cheapest: Cheapest) -> None:
    """Offer exponents and the rest of the bits apart."""
    subject = cheapest.subject
    choice = float_code(subject)
    if choice is not None:
        plan = subject.coded(choice.code, unary=UNARY)
        small = subject.array.size <= SAMPLE
        cheapest.offer(plan, None if small else overhead(plan) + SURPLUS * choice.bits / 8)


def _offer_codes(cheapest: Cheapest) -> None:
    """Offer the codes of integers, and those of all types."""
    subject = cheapest.subject
    if subject.stored.name != "float32":
        cheapest.offer(subject.coded(RawCode(), (-(-subject.array.nbytes // 4),)))
    if subject.stored.kind == "f":
        grids = grid_codes(subject) if subject.stored.bits > 8 else ()  # of 256 values, a palette has all
        for grid in grids:
            cheapest.offer(subject.coded(grid), floor=0.0 if grid.axis is not None else entropy(subject))
    else:
        for code in integer_codes(subject):
            cheapest.offer(subject.coded(code))
    found = subject.distinct
    if found is not None and subject.stored.bits >= 8:
        values = found.patterns.astype(found.patterns.dtype.newbyteorder("<")).tobytes()
        zero = found.patterns == 0
        for offset in sorted({int(zero.argmax()) if zero.any() else found.most_frequent, found.most_frequent}):
            cheapest.offer(subject.coded(PaletteCode(values, offset)), floor=entropy(subject))


def _raw_is_exact(subject: Subject) -> bool:
    """Whether float32 holds all values; of other types not-a-numbers are left out, whose bits conversions change."""
    if subject.stored.name == "float32":
        return True
    values = subject.floats
    if subject.stored.bits < 32:
        return not np.isnan(values).any()
    return np.array_equal(values.astype(np.float32), values)


def _reason(subject: Subject) -> str:
    """Why NNR alone does not hold a tensor."""
    name, stored = subject.name, subject.stored
    if stored.kind != "f":
        low, high = bounds(subject)
        return (
            f"tensor {name!r} has integers outside of int32 ({low}..{high}), which only side information holds (7.3.2)"
        )
    return (
        f"tensor {name!r} has {stored.name} values that float32, the type of raw parameters, does not hold (7.3.4); "
        "only side information does"
    )
