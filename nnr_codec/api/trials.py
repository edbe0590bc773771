"""Trials of an encoding: estimated sizes, scores, reduction steps, performance maps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from .. import formats
from ..bitstream.performance import Performance, PerformanceMaps
from ..config import EncoderConfig, EncoderOptions, configured
from ..encoder import accuracy_drop, tuning
from ..encoder import estimate as estimation
from ..encoder.encode import encode_units
from ..encoder.prepared import Prepared
from ..encoder.tensor_report import TensorReport
from ..encoder.tensor_tasks import Pool, TensorReader
from ..errors import EncodeError
from ..model import Model
from ..reduction_steps import Step
from ..report.encoded import EncodeReport, Notes
from ..report.reduced import Reduction, StepReport
from .decoding import decode
from .files import file_name
from .preparation import prepared_model, with_all_amounts

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import numpy.typing as npt

    from ..encoder.accuracy_drop import DropTuning
    from ..encoder.tuning import Tuning
    from .arguments import ModelSource


def estimate(
    model: ModelSource,
    config: EncoderConfig | None = None,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    **options: Unpack[EncoderOptions],
) -> EncodeReport:
    """Estimate the report of :func:`encode_file` without coding; sizes of large tensors are estimated from excerpts.

    Takes the parameters, raises the errors and issues the warnings of :func:`encode`. Size targets apply to the
    estimated size.

    Returns
    -------
    EncodeReport
        Estimated sizes in bytes and errors, without statistics.
    """
    started = time.perf_counter()
    loaded = formats.as_model(model)
    settings = with_all_amounts(loaded, configured(estimate, config, options))
    report = EncodeReport(source=file_name(model), config=settings)
    prepared = prepared_model(loaded, settings, report.steps)
    with Pool(jobs, executor) as pool:
        report.nbytes, tensors = estimation.estimate(prepared, settings, TensorReader(prepared.model), pool, warn=True)
    notes = Notes(prepared, report)
    for plan, size, loss in tensors:
        report.nbytes += size
        notes.take(TensorReport(plan.name, plan.parameters, plan.source.nbytes, size, loss=loss))
    report.seconds = time.perf_counter() - started
    return report


def tune(
    model: ModelSource,
    evaluate: Callable[[Model], float],
    *,
    tolerance: float,
    config: EncoderConfig | None = None,
    budget: int = 40,
    **options: Unpack[EncoderOptions],
) -> Tuning:
    """Find the coarsest step sizes at which the score of the decoded model stays within a tolerance.

    All tensors are made coarser together, then groups of them, starting with the tensors that take the most bytes.

    Parameters
    ----------
    model
        As for :func:`encode`.
    evaluate : callable
        Function from a Model to its score, a float; higher is better, as for an accuracy. It gets ``model`` first, then
        decoded models.
    tolerance : float
        Maximum difference between the score of ``model`` and the score of the decoded model, at least 0, in the unit of
        the score.
    config, options
        As for :func:`encode`: the starting point of the search. Tensors that rules keep exact stay exact.
    budget : int, default 40
        Maximum number of calls of ``evaluate``, at least 2. Each call after the first one needs an encoding and a
        decoding.

    Returns
    -------
    Tuning
        Options of the smallest bitstream found whose score is within the tolerance, and its size.

    Raises
    ------
    EncodeError
        None of the tried step sizes meets the tolerance, the options have a size target, or ``tolerance`` or ``budget``
        is out of range.
    NnrError
        As :func:`encode`.
    """
    loaded = formats.as_model(model)
    settings = with_all_amounts(loaded, configured(tune, config, options))
    prepared = prepared_model(loaded, settings)

    def coded(settings: EncoderConfig) -> tuning.Coded:
        units: dict[str, int] = {}

        def note(tensor: TensorReport) -> None:
            units[tensor.name] = tensor.unit_bytes

        data = b"".join(encode_units(prepared, settings, note))
        return decode(data, topology=loaded.topology), len(data), units

    return tuning.tune(loaded, prepared.model, evaluate, coded, settings, tolerance, budget, prepared.restored)


def tune_drop(
    model: ModelSource,
    outputs: Callable[[Model], npt.NDArray[Any]],
    *,
    target_drop: float,
    labels: npt.NDArray[Any] | None = None,
    config: EncoderConfig | None = None,
    budget: int = accuracy_drop.BUDGET,
    **options: Unpack[EncoderOptions],
) -> DropTuning:
    """Find the smallest size at which a classifier is predicted to lose little accuracy.

    The accuracy is predicted from the outputs on a few samples (docs/guides/data-aware.md). Use ``sensitivity`` and
    ``hessians`` to get smaller files, from other samples: the encoder fits the model to them.

    Parameters
    ----------
    model
        As for :func:`encode`.
    outputs : callable
        Function from a Model to the scores of its classes on the samples: floats of shape (samples, ..., classes),
        logits or probabilities, for at least 32 decisions. It gets ``model`` first, then decoded models. The samples
        must not be those on which the network was trained.
    target_drop : float
        Maximum loss of accuracy in percentage points, above 0. The upper limit of the predicted loss meets it.
    labels : ndarray of int, optional
        Correct classes of the samples, shape (samples, ...). They correct for a network that is too certain or
        uncertain about its decisions.
    config, options
        As for :func:`encode`, without any goal.
    budget : int, default 10
        Maximum number of evaluations, at least 2. Each one after the first needs an encoding and a decoding.

    Returns
    -------
    DropTuning
        Options of the smallest bitstream found that meets the target, its size, and its predicted loss.

    Raises
    ------
    EncodeError
        No tried size meets the target, outputs or labels do not have the required form, the options have a goal, or
        ``target_drop`` or ``budget`` is out of range.
    NnrError
        As :func:`encode`.
    """
    loaded = formats.as_model(model)

    def coded(settings: EncoderConfig) -> tuple[Model, int]:
        settings = with_all_amounts(loaded, settings)
        data = b"".join(encode_units(prepared_model(loaded, settings), settings))
        return decode(data, topology=loaded.topology), len(data)

    settings = configured(tune_drop, config, options)
    return accuracy_drop.tune_drop(loaded, outputs, labels, coded, settings, target_drop, budget)


def folded(model: ModelSource, config: EncoderConfig | None = None, **options: Unpack[EncoderOptions]) -> Model:
    """Return the model that a bitstream with these options restores, apart from quantization.

    It equals ``model`` unless ``reduce``, ``fold_batchnorm`` or ``local_scaling`` change tensors. ``fold_batchnorm``
    and ``local_scaling`` keep the outputs of the network, up to rounding. Takes the parameters and raises the errors of
    :func:`encode`.
    """
    loaded = formats.as_model(model)
    return prepared_model(loaded, with_all_amounts(loaded, configured(folded, config, options))).restored


def reduce(
    model: ModelSource,
    steps: str | Iterable[Step | str],
    config: EncoderConfig | None = None,
    **options: Unpack[EncoderOptions],
) -> Reduction:
    """Apply steps of parameter reduction to a model, without coding it (ISO/IEC 15938-17:2024, clause 8).

    Parameters
    ----------
    model
        As for :func:`encode`.
    steps : str, or iterable of Step or str
        Steps such as ``"sparsify(ratio=0.6), fold"``; docs/guides/reduction.md lists all tools and their options. They
        replace the option ``reduce``.
    config, options
        As for :func:`encode`: rules can exclude tensors; all options affect the estimated sizes.

    Returns
    -------
    Reduction
        The reduced model, and the effect of each step on size and error.

    Raises
    ------
    EncodeError
        A step or one of its options does not exist, or a step has no effect.
    NnrError
        As :func:`encode`.
    """
    loaded = formats.as_model(model)
    settings = with_all_amounts(loaded, replace(configured(reduce, config, options), reduce=steps))
    found: list[StepReport] = []
    prepared = prepared_model(loaded, settings, found)
    return Reduction(prepared.restored, tuple(found))


def measure(
    model: ModelSource,
    evaluate: Callable[[Model], float | tuple[float, Sequence[float | None]]],
    maps: Mapping[str, Sequence[float] | None],
    *,
    metric: str | None = None,
    config: EncoderConfig | None = None,
    jobs: int = 1,
    **options: Unpack[EncoderOptions],
) -> Performance:
    """Measure performance maps of a bitstream (6.4.4.3): reduce its decoded model further and evaluate it.

    With the same options, and ``performance`` set to the result, :func:`encode` returns a bitstream with these maps,
    which decodes to the model that the maps describe.

    Parameters
    ----------
    model
        As for :func:`encode`.
    evaluate : callable
        Function from a Model to its accuracy, or to a pair of accuracy and sequence of accuracies of the classes, in
        the order of the network's outputs, with None for classes that the map omits. It is called once for each point,
        and once more with ``target_size`` or ``target_ratio``.
    maps : mapping of str to sequence of float or None
        Maps to measure by kind, each with at most 254 points: thresholds of ``"sparsification"``, ratios of
        ``"pruning"``, thresholds of ``"unification"`` (in blocks of 2x2x2), mean square errors of ``"decomposition"``.
        None: points are chosen from the weights.
    metric : str, optional
        performance_metric_type, such as ``"top-1"``; the maps are marked as using it. Default: the metric of
        ``performance``, if any.
    config, jobs, options
        As for :func:`encode`; other fields of ``performance`` are kept.

    Returns
    -------
    Performance
        The maps. All numbers are rounded to float32, as a decoder reads them.

    Raises
    ------
    EncodeError
        A map does not exist, a point is invalid or cannot be applied to the model, ``evaluate`` returns no finite
        number, or ``metric`` is empty.
    NnrError
        As :func:`encode`.
    """
    loaded, asked = formats.as_model(model), configured(measure, config, options)
    known = asked.performance if isinstance(asked.performance, Performance) else Performance()
    if metric is not None:
        if not isinstance(metric, str) or not metric:
            raise EncodeError(f"metric must be a string such as top-1, got {metric!r:.200}")
        known = replace(known, performance_metric_type=metric, metric_type_performance_map_valid_flag=True)

    def coded(settings: EncoderConfig) -> Model:
        settled = with_all_amounts(loaded, settings)
        data = b"".join(encode_units(prepared_model(loaded, settled), settled, jobs=jobs))
        apart = loaded.topology if settled.topology == "external" else None
        return decode(data, topology=apart, allow_missing=True, jobs=jobs)

    def with_maps(found: PerformanceMaps) -> Performance:
        tables = {kind: getattr(found, kind) for kind in maps}
        return replace(known, maps=replace(known.maps, **tables))

    from ..encoder import performance_maps  # imported here because no other function needs it

    kinds = performance_maps.checked(maps)
    decoded = coded(replace(asked, performance=known))
    points = performance_maps.filled(decoded, kinds)
    if asked.target_size is not None or asked.target_ratio is not None:  # maps reduce the bytes left for the tensors
        blank = performance_maps.blank(decoded, points, evaluate(decoded))
        decoded = coded(replace(asked, performance=with_maps(blank)))

    def reduced(step: Step) -> Prepared:
        return prepared_model(decoded, EncoderConfig(reduce=(step,)))

    return with_maps(performance_maps.measured(decoded, points, reduced, evaluate))
