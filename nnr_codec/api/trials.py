"""What encoding would do: sizes, scores, steps of reduction, performance maps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Unpack

from .. import formats
from ..bitstream.performance import Performance, PerformanceMaps
from ..config import EncoderConfig, EncoderOptions, configured
from ..encoder import estimate as estimation
from ..encoder import tuning
from ..encoder.encode import encode_units
from ..encoder.prepared import Prepared
from ..encoder.schedule import Pool, Reader
from ..encoder.tensor_report import TensorReport
from ..errors import EncodeError
from ..model import Model
from ..reduction_steps import Step
from ..report.encoded import EncodeReport, Notes
from ..report.reduced import Reduction, StepReport
from .decoding import decode
from .files import file_name
from .prepared import prepared_model, with_all_amounts

if TYPE_CHECKING:
    from concurrent.futures import Executor

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
    """What :func:`encode_file` would report, without coding: sizes are estimated, those of large tensors by excerpts.

    Parameters and errors are those of :func:`encode`; a target is met by what is estimated.
    """
    started = time.perf_counter()
    loaded = formats.as_model(model)
    settings = with_all_amounts(loaded, configured(estimate, config, options))
    report = EncodeReport(source=file_name(model), config=settings)
    prepared = prepared_model(loaded, settings, report.steps)
    with Pool(jobs, executor) as pool:
        report.nbytes, tensors = estimation.estimate(prepared, settings, Reader(prepared.model), pool, warn=True)
    notes = Notes(prepared, report)
    for plan, size, loss in tensors:
        report.nbytes += size
        notes.take(TensorReport(plan.name, prod(plan.dims), plan.source.nbytes, size, loss=loss))
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
    """Find the coarsest steps at which a score of the decoded model holds, tensor by tensor.

    All tensors are made coarser together, then groups of them, those first that take most bytes.

    Parameters
    ----------
    model : Model, mapping of str to ndarray, path or binary file
    evaluate : callable
        From a Model with decoded tensors to a number, of which more is better, such as an accuracy.
    tolerance : float
        By how much the score may be less than that of ``model``.
    config, **options
        As for :func:`encode`: where the search begins. Rules may keep tensors exact, which then stay so.
    budget : int
        Calls of ``evaluate`` at most, that of ``model`` included; each comes after an encoding and a decoding.

    Returns
    -------
    Tuning
        The options that give the smallest bitstream whose score held, and what that takes.

    Raises
    ------
    EncodeError
        No steps hold the score, or the options have a target.
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


def folded(model: ModelSource, config: EncoderConfig | None = None, **options: Unpack[EncoderOptions]) -> Model:
    """The model that a bitstream of these options restores, but for quantization.

    It is ``model`` unless ``reduce``, ``fold_batchnorm`` or ``local_scaling`` change tensors. The latter two leave the
    outputs of the network what they are, up to rounding. Parameters and errors are those of :func:`encode`.
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
    model : Model, mapping of str to ndarray, path or binary file
    steps : str or sequence of Step
        Such as ``"sparsify(ratio=0.6), fold"``; docs/reduction.md has all tools and their options.
    config, **options
        As for :func:`encode`: rules keep tensors out, estimated sizes follow the rest.

    Returns
    -------
    Reduction
        The reduced model, and what each step did to size and error.

    Raises
    ------
    EncodeError
        A step or one of its options does not exist, or there is nothing that it could do.
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
    """Performance maps of a bitstream, by measurement (6.4.4.3): its decoded model is reduced further, and evaluated.

    With the same options, and ``performance`` set to what this returns, :func:`encode` gives a bitstream that has these
    maps, and decodes to the model that they tell of.

    Parameters
    ----------
    model : Model, mapping of str to ndarray, path or binary file
    evaluate : callable
        From a Model to its accuracy, or to that and a sequence of the accuracies of its classes, in the order of the
        network's outputs, None for those of which the map is to say nothing. It is called once for each point, and
        with ``target_size`` or ``target_ratio`` once more.
    maps : mapping of str to sequence of float, or None
        Which maps, and their points, 254 at most: thresholds of ``"sparsification"``, ratios of ``"pruning"``,
        thresholds of ``"unification"`` (in blocks of 2x2x2), mean square errors of ``"decomposition"``. None: some that
        suit the weights.
    metric : str, optional
        performance_metric_type, such as ``"top-1"``; the maps are marked as being in it.
    config, jobs, **options
        As for :func:`encode`; of ``performance``, what else it tells is kept.

    Returns
    -------
    Performance
        All numbers are those of float32, as they will be read.

    Raises
    ------
    EncodeError
        There is no such map, a point is none or cannot be applied to the model, ``evaluate`` gives no finite number, or
        ``metric`` is empty.
    """
    loaded, asked = formats.as_model(model), configured(measure, config, options)
    known = asked.performance if isinstance(asked.performance, Performance) else Performance()
    if metric is not None:
        if not isinstance(metric, str) or not metric:
            raise EncodeError(f"a metric is a text such as top-1, not {metric!r:.200}")
        known = replace(known, performance_metric_type=metric, metric_type_performance_map_valid_flag=True)

    def coded(settings: EncoderConfig) -> Model:
        settled = with_all_amounts(loaded, settings)
        data = b"".join(encode_units(prepared_model(loaded, settled), settled, jobs=jobs))
        apart = loaded.topology if settled.topology == "external" else None
        return decode(data, topology=apart, allow_missing=True, jobs=jobs)

    def told(found: PerformanceMaps) -> Performance:
        tables = {kind: getattr(found, kind) for kind in maps}
        return replace(known, maps=replace(known.maps, **tables))

    from ..encoder import performance_maps  # imported here only: most callers do not need it

    kinds = performance_maps.checked(maps)
    decoded = coded(replace(asked, performance=known))
    points = performance_maps.filled(decoded, kinds)
    if asked.target_size is not None or asked.target_ratio is not None:  # maps leave less for the tensors
        blank = performance_maps.blank(decoded, points, evaluate(decoded))
        decoded = coded(replace(asked, performance=told(blank)))

    def reduced(step: Step) -> Prepared:
        return prepared_model(decoded, EncoderConfig(reduce=(step,)))

    return told(performance_maps.measured(decoded, points, reduced, evaluate))
