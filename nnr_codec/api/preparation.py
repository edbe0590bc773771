"""Preparation of a model for coding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .. import formats
from ..compare import compare_models
from ..config import EncoderConfig
from ..encoder.encode import encode_units
from ..encoder.goals import with_exact
from ..encoder.prepared import Prepared
from ..encoder.reduce import open_amounts, prepare, with_amounts
from ..encoder.reduce.scaling import with_scales
from ..encoder.tensor_tasks import Pool, TensorReader
from ..errors import FormatError
from ..model import Model, Wiring
from ..reduction_steps import Step

if TYPE_CHECKING:
    from ..report.reduced import StepReport


def with_all_amounts(model: Model, config: EncoderConfig) -> EncoderConfig:
    """Return the options with all amounts of reduction steps set; amounts left to a size target maximize the SNR.

    Tensors that the format of the model quantized become exact.
    """
    config = with_exact(config, formats.quantized(model))
    if not open_amounts(config):
        return config

    from .decoding import decode

    def snr(tried: EncoderConfig) -> float:
        prepared = prepared_model(model, tried)
        data = b"".join(encode_units(prepared, tried))
        found = decode(data, topology=model.topology, allow_missing=True)
        if prepared.pruning:
            found = replace(found, tensors=prepared.pruning.widened(found.tensors))
        return compare_models(model, found).snr

    return with_amounts(config, snr)


def prepared_model(model: Model, config: EncoderConfig, reports: list[StepReport] | None = None) -> Prepared:
    """Return the model in the form that is coded. Raise FormatError for a graph whose variables have no tensors.

    The effect of each step of ``config.reduce`` is appended to ``reports``, if given.
    """
    if model.topology and not model.tensors and (wanted := len(formats.wiring(model.topology).shapes)):
        raise FormatError(
            f"the model has only a graph; give the folder or archive that also has the tensor files ({wanted} missing)"
        )
    known = formats.wiring(model.topology) if model.topology and (model.blocks or config.has_blocks) else Wiring()
    if model.topology and any(step.tool == "prune" for step in config.steps):
        smaller = {name: formats.described(model, name)[1] for name in model.pruned if name in model.tensors}
        known = replace(known, channels=formats.channels(model.topology, smaller))
    plain = replace(config, target_size=None, target_ratio=None)

    def note(step: Step, before: Prepared, after: Prepared) -> None:
        if reports is not None and len(reports) < len(config.reduction):
            from ..encoder import estimate as estimation
            from ..report.reduced import step_report

            prepared = with_scales(after)
            with Pool(1) as pool:
                overhead, sizes = estimation.estimate(prepared, plain, TensorReader(prepared.model), pool)
            reports.append(step_report(step, before, after, overhead + sum(size for _, size, _ in sizes)))

    return prepare(model, config, known, note)
