"""Tuning: search for the coarsest step sizes that keep the score of the decoded model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..config import DEFAULT_STEP_EXPONENT, EncoderConfig
from ..errors import EncodeError, Option
from ..model import Array, Model
from .facts import tensor_facts
from .goals import GREATEST_QP, LEAST_QP, OCTAVE, resolve_goals, with_density
from .planning import plan_tensor
from .tensor_tasks import Pool, TensorReader

#: Decoded model, size of its bitstream in bytes, and size of the units of each tensor.
Coded = tuple[Model, int, Mapping[str, int]]

#: RANGE: maximum octaves by which all tensors become coarser; FINER: multiple of RANGE by which they become finer;
#: FINEST: smallest change of qp.
RANGE, FINER, FINEST = 8, 3, OCTAVE // 4


@dataclass(frozen=True)
class Tuning:
    """Result of :func:`nnr_codec.tune`.

    Parameters
    ----------
    config : EncoderConfig
        Options that reproduce the bitstream.
    score, reference : float
        Score of the decoded model, and of the original model.
    nbytes : int
        Size of the bitstream in bytes.
    evaluations : int
        Number of calls of ``evaluate``.
    """

    config: EncoderConfig
    score: float
    reference: float
    nbytes: int
    evaluations: int


def tune(
    model: Model,
    prepared: Model,
    evaluate: Callable[[Model], float],
    coded: Callable[[EncoderConfig], Coded],
    config: EncoderConfig,
    tolerance: float,
    budget: int,
    restored: Model | None = None,
) -> Tuning:
    """See :func:`nnr_codec.tune`.

    ``prepared`` is the model in the form that is coded, ``restored`` the model that decoders restore. ``coded`` encodes
    and decodes with given options.
    """
    if not tolerance >= 0:
        raise EncodeError(Option("tolerance"), f" must be a number of at least 0, got {tolerance}")
    if budget < 2:
        raise EncodeError(Option("budget"), f" must be at least 2 evaluations, got {budget}")
    if config.target_size is not None or config.target_ratio is not None:
        name = "target_ratio" if config.target_size is None else "target_size"
        raise EncodeError(Option(name), " leaves nothing to tune; remove it")
    read = TensorReader(prepared)
    with Pool() as pool:
        config = with_density(resolve_goals(prepared, config, read, pool, restored=restored))
    starts = {name: _start(name, read([name])[0], config) for name in prepared.tensors}
    first = {name: qp for name, qp in starts.items() if qp is not None}
    reference = float(evaluate(model))
    tuner = _Tuner(evaluate, coded, config, reference, tolerance, budget - 1, first)
    tuner.run()
    return Tuning(tuner.options(tuner.best), tuner.score, reference, tuner.nbytes, 1 + tuner.evaluations)


def _start(name: str, array: Array, config: EncoderConfig) -> int | None:
    """Return the initial qp of a tensor; None for a lossless tensor or a tensor without floats."""
    tensor = tensor_facts(name, array, config)
    if tensor.stored.kind != "f" or tensor.options.exact:
        return None
    if tensor.options.qp is not None:
        return tensor.options.qp
    if tensor.is_fine:
        return DEFAULT_STEP_EXPONENT * OCTAVE
    plan = plan_tensor(tensor, in_block=True)
    return plan.qp if plan.step else None


@dataclass
class _Tuner:
    """Search for coarser step sizes that keep the score: first for all tensors, then for smaller and smaller groups."""

    evaluate: Callable[[Model], float]
    coded: Callable[[EncoderConfig], Coded]
    config: EncoderConfig
    reference: float
    tolerance: float
    budget: int
    best: dict[str, int]
    score: float = float("nan")
    nbytes: int = 0
    units: Mapping[str, int] = field(default_factory=dict)
    evaluations: int = 0

    def run(self) -> None:
        """Find the coarsest step sizes. If the initial ones do not keep the score, begin with finer ones."""
        start = self.best
        if self.holds(start, self.tolerance):
            low, high = 0, RANGE * OCTAVE
        else:
            low = high = 0
            for _ in range(FINER):
                low, high = low - RANGE * OCTAVE, low
                if self.evaluations < self.budget and self.holds(_moved(start, low, start), self.tolerance):
                    break
            else:
                raise EncodeError(
                    f"none of the tried step sizes keeps the score within {self.tolerance:g} of {self.reference:g}; "
                    "raise the tolerance or the budget"
                )
        while high - low > OCTAVE // 2 and self.evaluations < self.budget:
            middle = (low + high) // 2
            # Half of the tolerance is reserved for groups of tensors.
            if self.holds(_moved(start, middle, start), self.tolerance / 2):
                low = middle
            else:
                high = middle
        step, names = OCTAVE, list(self.best)
        while step >= FINEST and self.evaluations < self.budget:
            names = self.coarser(sorted(names, key=self.size, reverse=True), step)
            if not names:
                step, names = step // 2, list(self.best)

    def coarser(self, names: list[str], step: int) -> list[str]:
        """Try a coarser step size for tensors, in halves if necessary; return the names for which the score holds."""
        if not names or self.evaluations >= self.budget:
            return []
        moved = _moved(self.best, step, names)
        coded = self.coded(self.options(moved))
        if coded[1] >= self.nbytes:
            return []
        if self.holds(moved, self.tolerance, coded):
            return names
        if len(names) == 1:
            return []
        middle, half = 1, sum(map(self.size, names)) / 2
        while middle < len(names) - 1 and sum(map(self.size, names[:middle])) < half:
            middle += 1
        return self.coarser(names[:middle], step) + self.coarser(names[middle:], step)

    def size(self, name: str) -> int:
        """Return the bytes of a tensor's units."""
        return self.units.get(name, 0)

    def holds(self, qps: dict[str, int], tolerance: float, coded: Coded | None = None) -> bool:
        """Return True if the score is within the tolerance; ``qps`` are then the best so far."""
        self.evaluations += 1
        model, nbytes, units = coded or self.coded(self.options(qps))
        score = float(self.evaluate(model))
        if not score >= self.reference - tolerance:
            return False
        self.best, self.score, self.nbytes, self.units = qps, score, nbytes, units
        return True

    def options(self, qps: Mapping[str, int]) -> EncoderConfig:
        """Return the options with these step sizes."""
        return self.config.overridden({name: {"qp": qp} for name, qp in qps.items()})


def _moved(qps: Mapping[str, int], by: int, names: Sequence[str] | Mapping[str, int]) -> dict[str, int]:
    """Return ``qps`` with ``by`` added for the given tensors, within the range of qp."""
    chosen = set(names)
    return {name: max(LEAST_QP, min(GREATEST_QP, qp + by)) if name in chosen else qp for name, qp in qps.items()}
