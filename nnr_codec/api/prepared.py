"""What a model becomes before it is coded."""

from __future__ import annotations

from dataclasses import replace

from .. import formats
from ..compare import compare_models
from ..config import EncoderConfig
from ..encoder import estimate as estimation
from ..encoder.encode import encode_units
from ..encoder.prepared import Prepared
from ..encoder.reduce import open_amounts, prepare, with_amounts
from ..encoder.reduce.scaling import with_scales
from ..encoder.schedule import Pool, Reader
from ..errors import FormatError
from ..model import Model, Wiring
from ..reduction_steps import Step
from ..report.reduced import StepReport, step_report
from .decoding import decode


def with_all_amounts(model: Model, config: EncoderConfig) -> EncoderConfig:
    """The options with all amounts of steps of reduction: those that a target decides on give the best SNR."""
    if not open_amounts(config):
        return config

    def snr(tried: EncoderConfig) -> float:
        prepared = prepared_model(model, tried)
        data = b"".join(encode_units(prepared, tried))
        found = decode(data, topology=model.topology, allow_missing=True)
        if prepared.pruning:
            found = replace(found, tensors=prepared.pruning.widened(found.tensors))
        return compare_models(model, found).snr

    return with_amounts(config, snr)


def prepared_model(model: Model, config: EncoderConfig, reports: list[StepReport] | None = None) -> Prepared:
    """The model as it is coded; FormatError for the text of a graph without the tensors of its variables.

    What steps of ``config.reduce`` do goes into ``reports``, if there are any.
    """
    if model.topology and not model.tensors and (wanted := len(formats.wiring(model.topology).shapes)):
        raise FormatError(f"the model is a graph alone, and its {wanted} variables have no tensor files")
    known = formats.wiring(model.topology) if model.topology and (model.blocks or config.has_blocks) else Wiring()
    if model.topology and any(step.tool == "prune" for step in config.steps):
        smaller = {name: formats.described(model, name)[1] for name in model.pruned if name in model.tensors}
        known = replace(known, channels=formats.channels(model.topology, smaller))
    plain = replace(config, target_size=None, target_ratio=None)

    def note(step: Step, before: Prepared, after: Prepared) -> None:
        if reports is not None and len(reports) < len(config.reduction):
            prepared = with_scales(after)
            with Pool(1) as pool:
                overhead, sizes = estimation.estimate(prepared, plain, Reader(prepared.model), pool)
            reports.append(step_report(step, before, after, overhead + sum(size for _, size, _ in sizes)))

    return prepare(model, config, known, note)
