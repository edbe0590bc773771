"""Measurement of performance maps: accuracy of a decoded model after reduction at given points (6.4.4.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from numbers import Real
from typing import Any

import numpy as np

from ..bitstream.performance import (
    MAPS,
    DecompositionRow,
    PerformanceMaps,
    PruningRow,
    SparsificationRow,
    UnificationRow,
)
from ..errors import EncodeError
from ..limits import Limits
from ..model import Model
from ..reduction_steps import Step
from .prepared import Prepared
from .reduce.magnitudes import magnitudes
from .reduce.structure import reshaped
from .reduce.unify import Unify

Points = Mapping[str, Sequence[float]]

#: Shapes of blocks and superblocks for unification, one of each in a row; superblocks have complete kernels.
BLOCK, SUPERBLOCK = (2, 2, 2), (64, 64)
_UNIFY: dict[str, Any] = {"block": "x".join(map(str, BLOCK)), "superblock": "x".join(map(str, SUPERBLOCK))}

#: Kinds of maps, and function from a point to its reduction step.
STEPS: dict[str, Callable[[float], Step]] = {
    "sparsification": lambda point: Step("sparsify", threshold=point),
    "pruning": lambda point: Step("prune", ratio=point),
    "unification": lambda point: Step("unify", threshold=point, **_UNIFY),
    "decomposition": lambda point: Step("lowrank", mse=point),
}

#: Maximum number of rows: spm_count_thresholds and similar elements are u(8), and one more than the rows (errata I16).
MOST_ROWS = 254
#: Maximum number of classes in a row: spm_count_classes and similar elements are u(8), dpm_count_classes is u(16).
MOST_CLASSES = {**dict.fromkeys(STEPS, 255), "decomposition": 65_535}
#: Smallest mask whose ue(7) code exceeds the default limits of decoders.
MASKS = (2 << Limits().max_eg_bits) - (1 << 7)

#: Default points: shares of zero weights, of pruned channels and of unified weights, and mean square errors relative to
#: the mean squares of the weights.
SPARSE = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PRUNED = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
UNIFIED = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
DECOMPOSED = (0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)


def checked(kinds: Mapping[str, Sequence[float] | None]) -> dict[str, tuple[float, ...] | None]:
    """Return the points of each map, rounded to float32, without repetition; None for a map without points.

    Raises EncodeError if the mapping is empty, a kind does not exist, a point is not a number of at least 0 (for
    pruning: 0 to 1), or a map has no points or more than 254.
    """
    if not kinds:
        raise EncodeError("no maps are given")
    if not isinstance(kinds, Mapping):
        raise EncodeError(
            f"maps must be a mapping from kinds to points, such as {{'sparsification': None}}, got {kinds!r:.200}"
        )
    found: dict[str, tuple[float, ...] | None] = {}
    for kind, points in kinds.items():
        if kind not in STEPS:
            raise EncodeError(f"unknown map {kind!r}; choose from {', '.join(STEPS)}")
        if not (points is None or isinstance(points, Iterable)):
            raise EncodeError(f"points of a {kind} map must be a sequence of numbers or None, got {points!r:.200}")
        found[kind] = rounded = None if points is None else tuple(dict.fromkeys(_point(kind, one) for one in points))
        if rounded is not None and not 0 < len(rounded) <= MOST_ROWS:
            raise EncodeError(f"a {kind} map must have 1 to {MOST_ROWS} points, got {len(rounded)} (6.3.4.3)")
    return found


def filled(model: Model, kinds: Mapping[str, tuple[float, ...] | None]) -> dict[str, tuple[float, ...]]:
    """Return the points of each map; if none are given, points of two digits that suit the decoded model.

    Raises EncodeError if the model has no finite weights, or weights too large for float32.
    """
    return {
        kind: tuple(dict.fromkeys(_point(kind, float(f"{one:.2g}")) for one in _ladder(model, kind)))
        if points is None
        else points
        for kind, points in kinds.items()
    }


def measured(
    model: Model, points: Points, reduce: Callable[[Step], Prepared], evaluate: Callable[[Model], object]
) -> PerformanceMaps:
    """Return the maps of a decoded model: for each point, evaluate the model that ``reduce`` returns.

    Raises EncodeError for an invalid accuracy or one that does not fit a row, and errors of ``reduce`` and
    ``evaluate``.
    """

    def row(kind: str, point: float) -> Any:
        prepared = reduce(STEPS[kind](point))
        # `evaluate` may change its arrays; other points use the original ones.
        given = {name: np.array(array) for name, array in prepared.restored.tensors.items()}
        return _row(kind, point, model, prepared, evaluate(replace(prepared.restored, tensors=given)))

    return _maps(points, row)


def blank(model: Model, points: Points, score: object) -> PerformanceMaps:
    """Return maps of the same size in bytes as the measured ones, if all scores have the classes of this score."""
    return _maps(points, lambda kind, point: _row(kind, point, model, Prepared(model, model), score))


def _maps(points: Points, row: Callable[[str, float], Any]) -> PerformanceMaps:
    """Return maps with the rows that a function returns."""
    tables: dict[str, Any] = {
        kind: MAPS[kind](tuple(row(kind, point) for point in values)) for kind, values in points.items()
    }
    return PerformanceMaps(**tables)


def _row(kind: str, point: float, model: Model, prepared: Prepared, score: object) -> Any:
    """Return the row of a map for a model at a point."""
    accuracy, classes = _accuracies(score)
    given = tuple(one for one in classes if one is not None)
    if len(given) > MOST_CLASSES[kind]:
        raise EncodeError(f"a row of a {kind} map has at most {MOST_CLASSES[kind]} classes, got {len(given)} (6.3.4.3)")
    if kind == "decomposition":
        if len(given) < len(classes):
            raise EncodeError("a decomposition map must have the accuracies of all classes (6.3.4.3)")
        return DecompositionRow(point, accuracy, _rounded(_parameters(prepared.model) / _parameters(model)), given)
    mask = sum(1 << k for k, one in enumerate(reversed(classes)) if one is not None)
    if mask >= MASKS:
        most = MASKS.bit_length() - 1
        raise EncodeError(f"only the last {most} classes can have accuracies; use None for the others")
    if kind == "pruning":
        return PruningRow(point, accuracy, mask, given)
    names = _matrices(model)
    if kind == "sparsification":
        arrays = [np.asarray(prepared.restored.tensors[name]) for name in names]
        ratio = sum(int(np.count_nonzero(array)) for array in arrays) / sum(array.size for array in arrays)
        return SparsificationRow(point, _rounded(ratio), accuracy, mask, given)
    shapes = {reshaped(np.asarray(model.tensors[name]).shape) for name in names}
    alike = shapes.pop() if len(shapes) == 1 else ()
    return UnificationRow(point, accuracy, alike, SUPERBLOCK, BLOCK, mask, given)


def _accuracies(score: Any) -> tuple[float, tuple[float | None, ...]]:
    """Return accuracy and accuracies of classes as float32. Raise EncodeError for an invalid score."""
    try:
        accuracy, classes = (score, ()) if _is_number(score) else score
        return _rounded(accuracy), tuple(None if one is None else _rounded(one) for one in classes)
    except (TypeError, ValueError):
        raise EncodeError(
            f"an evaluation must return a finite number, optionally with a sequence of accuracies of classes, "
            f"got {score!r:.200}"
        ) from None


def _rounded(value: Any) -> float:
    """Return a number rounded to float32. Raise ValueError or TypeError if it is not a number or not finite."""
    if not _is_number(value):
        raise TypeError
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    if not isfinite(rounded):
        raise ValueError
    return rounded


def _is_number(value: object) -> bool:
    return isinstance(value, (Real, np.number)) and not isinstance(value, bool)


def _point(kind: str, point: object) -> float:
    try:
        rounded = _rounded(point)
    except (TypeError, ValueError):
        rounded = -1.0
    most, allowed = (1.0, "from 0 to 1") if kind == "pruning" else (inf, "of at least 0")
    if not 0 <= rounded <= most:
        raise EncodeError(f"a point of a {kind} map must be a number {allowed}, got {point!r:.200}")
    return rounded


def _ladder(model: Model, kind: str) -> Sequence[float]:
    """Return default points for a model."""
    if kind == "pruning":
        return PRUNED
    names = _matrices(model)
    if kind == "unification":
        unify, reduced = Unify(**_UNIFY), _unreduced(model)
        return [unify.threshold_at(reduced, part) for part in UNIFIED]
    found = np.concatenate([magnitudes(np.asarray(model.tensors[name])) for name in names])
    found = found[np.isfinite(found)]
    if not found.size:
        raise EncodeError(
            f"the model has no finite weights, so the points of a {kind} map cannot be chosen; give points"
        )
    if kind == "decomposition":
        with np.errstate(over="ignore"):
            mean = float(np.square(found, dtype=np.float64).mean())
        return [part * mean for part in DECOMPOSED]
    places = [int(part * found.size) for part in SPARSE]
    return [0.0, *np.partition(found, places)[places[1:]].tolist()]


def _matrices(model: Model) -> list[str]:
    """Return the tensors that reduction steps without further options change."""
    return _unreduced(model).matrices()


def _unreduced(model: Model) -> Prepared:
    return Prepared(model, model)


def _parameters(model: Model) -> int:
    """Return the number of parameters; tied tensors count once."""
    return sum(np.asarray(model.tensors[name]).size for name in model.tensors if name not in model.aliases)
