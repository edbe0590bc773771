"""Warnings of the encoder: options without effect, large errors, and encodings larger than a lossless one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod

from ..compare import Loss, is_matrix_shape
from ..config import PRESETS, TENSOR_GOALS, EncoderConfig, TensorOptions
from ..constants import NNR_PT_RAW_FLOAT
from ..dtypes import STORED_TYPES
from ..errors import EncodeError, EncodeWarning, LossWarning, Option
from ..model import Block
from ..reduction_steps import Step
from ..tensor.quant import DTYPES
from .block_units import OPTIONAL, UnitPlan
from .facts import NARROW_FORMATS
from .fixed_point import LISTED, LONGEST
from .plan import TensorPlan
from .prepared import Prepared
from .unit_layout import is_listed

#: SNR in dB below which a warning names a matrix; the difference in dB to its quality that a matrix may have.
LEAST_SNR, SPREAD = 20.0, 10.0
#: Reason why a step of reduction changed nothing, by its tool.
_UNCHANGED = {
    "scale": "no weight can be scaled (docs/guides/steering.md)",
    "lowrank": "no matrix has fewer parameters as a product of two",
    "prune": "its ratio is 0",
}


def warn_unmatched(config: EncoderConfig, names: Collection[str]) -> None:
    """Warn about rules, overrides and parts that match none of these tensors."""
    patterns = [rule.pattern for rule in config.rules if rule.pattern not in PRESETS["lora"]["rules"]]
    idle = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    hint = f"; a name is {min(names)!r}" if names else ""
    _warn([(f"rule {pattern!r} matches no tensor{hint}",) for pattern in idle])
    _warn([(Option("overrides"), f" of {name!r} match no tensor") for name in config.overrides if name not in names])
    for pattern in config.parts if isinstance(config.parts, Mapping) else ():
        if not any(fnmatchcase(name, pattern) for name in names):
            _warn([(Option("parts"), f": {pattern!r} matches no tensor{hint}")])


def check_blocks(config: EncoderConfig, prepared: Prepared) -> None:
    """Raise EncodeError if options require blocks, but the model has none."""
    if prepared.wiring.blocks or prepared.model.blocks or prepared.restored.blocks:
        return
    options = [Option(name) for name in ("block", "local_scaling") if getattr(config, name)]
    options += [Option("reduce", repr(str(step))) for step in config.reduction if _needs_blocks(step)]
    if options:
        raise EncodeError(options[0], " requires blocks, but the model has no graph that defines them")


def _needs_blocks(step: Step) -> bool:
    """Return whether a reduction step changes only blocks."""
    return step.tool == "scale" and ("method", "gain") in step.options


def warn_not_update(config: EncoderConfig) -> None:
    """Warn about options that only have an effect on an update after another update."""
    names = ("temporal_context_modeling", "hist_dep_sig_prob", "nnr_pre")
    reason = " has no effect: there is no update before this one"
    _warn([(Option(name), reason) for name in names if getattr(config, name)])


def warn_unused(config: EncoderConfig, prepared: Prepared, units: Sequence[UnitPlan]) -> None:
    """Warn about options that have no effect on the model or on some of its blocks.

    ``config`` has the options of the caller, including goals and targets.
    """
    warn_not_update(config)
    if config.topology == "external" and prepared.model.topology is None:
        _warn([(Option("topology", repr("external")), " has no effect: the model has no graph")])
    if config.indexed_references and sum(len(unit.all_ids) for unit in units) < 2:
        _warn([(Option("indexed_references"), " has no effect: a list requires at least two tensors")])
    narrow = [plan for unit in units for plan in unit.plans if plan.data_format in NARROW_FORMATS and not plan.record]
    if narrow and not config.side_info:
        kind, others = NARROW_FORMATS[narrow[0].data_format], f" and {len(narrow) - 1} more" if narrow[1:] else ""
        _warn(
            [(f"tensor {narrow[0].name!r}{others} of type {kind} will decode to int8; use ", Option("side_info", True))]
        )
    _warn(_blocks(config, prepared, units))
    _warn(_tensors(config, prepared, [plan for unit in units for plan in unit.tensors.values()]))


def _warn(messages: Iterable[Iterable[str]]) -> None:
    """Issue one warning for each sequence of parts."""
    for parts in messages:
        warnings.warn(EncodeWarning(*parts), stacklevel=3)


def _blocks(config: EncoderConfig, prepared: Prepared, units: Sequence[UnitPlan]) -> Iterator[tuple[str, ...]]:
    """Yield block options that have no effect, or no effect on some blocks of the graph."""
    of_graph = {block.weight for block in prepared.wiring.blocks}
    known = [block for block in prepared.model.blocks if block.weight in of_graph] if config.has_blocks else []
    wanted = [block.weight for block in known if _has_members(block, config.compressed_parameter_types)]
    no_blocks = not known and not prepared.restored.blocks
    if config.block and not wanted:
        types = Option("compressed_parameter_types")
        yield Option("block"), " has no effect: ", types, " leaves nothing to code together with a weight"
    for step in prepared.unused:
        option = Option("reduce", repr(str(step))) if step in config.reduction else Option("local_scaling")
        if no_blocks and _needs_blocks(step):
            continue
        if step.tool == "scale" and is_listed(prepared.model, config):
            yield option, " has no effect: ", Option("indexed_references"), " leaves no names for scales"
        else:
            yield option, f" has no effect: {_UNCHANGED[step.tool]}"
    together = {plan.name for unit in units if unit.compressed_parameter_types for plan in unit.plans}
    plans = {plan.name: plan for unit in units for plan in unit.plans}
    if apart := [plans[name] for name in wanted if name not in together]:
        first = apart[0]
        reason = "exceeds the size of a unit" if first.step else "is exact"
        yield (f"{len(apart)} of {len(wanted)} blocks are coded as separate tensors: {first.name!r} {reason}",)
    default = EncoderConfig.compressed_parameter_types
    if config.compressed_parameter_types != default and not (config.has_blocks or prepared.model.blocks):
        types = Option("compressed_parameter_types")
        yield types, " has no effect: no tensors are coded in blocks; set ", Option("block")


def _has_members(block: Block, types: int) -> bool:
    """Return whether the options permit a unit with the weight and another tensor of its block."""
    members = [(kind, [getattr(block, name) for name in roles.values()]) for kind, roles in OPTIONAL]
    return block.g is not None or any(kind & types and None not in names for kind, names in members)


def _tensors(config: EncoderConfig, prepared: Prepared, plans: Sequence[TensorPlan]) -> Iterator[tuple[str, ...]]:
    """Yield tensor options that have no effect on any of their tensors."""
    factors = prepared.factors
    tensors = [(plan, config.for_tensor(factors.get(plan.name, plan.name))) for plan in plans if plan.has_unit]
    different = {id(own): own for _, own in tensors}.values()
    for names, obeys, reason in _TENSOR_OPTIONS:
        for name in names:
            if not any(_is_asked(name, getattr(own, name)) for own in different):
                continue
            asked = [(plan, own) for plan, own in tensors if _is_asked(name, getattr(own, name))]
            if not any(obeys(plan, own) for plan, own in asked):
                yield Option(name), f" has no effect: {reason}"
    if config.target_size is None and config.target_ratio is None:
        known = [plan.importance for plan in plans if plan.importance and not plan.codebook]
        for name, used in (
            ("sensitivity", any(one.sensitivity is not None and one.sensitivity.ndim for one in known)),
            ("hessians", any(one.has_moments for one in known)),
        ):
            if getattr(config, name) and not used:
                yield Option(name), " has no effect on any tensor (docs/guides/data-aware.md)"


def _is_asked(name: str, value: float | None) -> bool:
    """Return whether an option is set: 0 is a valid goal, but disables other options."""
    return value is not None if name in TENSOR_GOALS else bool(value)


def _is_lossy(plan: TensorPlan, options: TensorOptions) -> bool:
    """Return whether a tensor has floats that may be coded lossily."""
    known = plan.record.type if plan.record else None
    kind = STORED_TYPES[known].kind if known else DTYPES[plan.data_format].kind
    return kind == "f" and not options.exact


def _has_rows(plan: TensorPlan, _: TensorOptions) -> bool:
    """Return whether a tensor is coded as levels with several rows and columns."""
    return plan.payload_type != NNR_PT_RAW_FLOAT and plan.dims[0] > 1 and prod(plan.dims[1:]) > 1


def _has_entry_points(plan: TensorPlan, _: TensorOptions) -> bool:
    return bool(plan.tools.scan_order)


def _is_matrix(plan: TensorPlan, options: TensorOptions) -> bool:
    """Return whether a tensor may be quantized with a step size other than the fine one of vectors."""
    fine = options.exact is None and options.fine_vectors and not is_matrix_shape(plan.dims)
    return _is_lossy(plan, options) and not fine


def _is_optimised(plan: TensorPlan, options: TensorOptions) -> bool:
    """Return whether rate-distortion optimization may quantize a tensor."""
    return _is_matrix(plan, options) and options.max_error is None


def _is_dependent(plan: TensorPlan, options: TensorOptions) -> bool:
    """Return whether the quantization of a tensor may be dependent."""
    return _is_optimised(plan, options) and not options.codebook


#: Names of options, condition for a tensor on which they have an effect, and reason if no tensor meets it.
_TENSOR_OPTIONS: tuple[tuple[tuple[str, ...], Callable[[TensorPlan, TensorOptions], bool], str], ...] = (
    (("qp", "quality"), _is_lossy, "no tensor has floats that can be quantized"),
    (("scan_order", "row_skipping"), _has_rows, "no quantized tensor has several rows and columns"),
    (
        ("fast_decode",),
        _has_entry_points,
        "no tensor without a scan order has 65,536 parameters, 256 columns and more than 8 rows",
    ),
    (("dependent_quantization",), _is_dependent, "all tensors are exact, are vectors or use a codebook"),
    (("rate",), _is_optimised, "no matrix is quantized with a rate"),
    (("codebook",), _is_matrix, "no matrix can be quantized"),
)


def warn_of_loss(losses: Mapping[str, Loss], asked: EncoderConfig, prepared: Prepared) -> None:
    """Issue one LossWarning for all matrices with an SNR below 20 dB, unless the options permit less.

    A matrix at 0 dB or less, without information left, is always named.
    """
    factors, found = prepared.factors, dict[str, float]()
    for name, one in losses.items():
        weight = factors.get(name, name)
        options, least = asked.for_tensor(weight), LEAST_SNR
        if options.max_error is not None:
            least = 0.0
        elif options.snr is not None:
            least = min(least, options.snr)
        elif options.quality is not None:
            least = min(least, options.quality - SPREAD)
        if one.is_matrix and one.noise and (one.snr < least or one.snr <= 0):
            found[weight] = min(found.get(weight, one.snr), one.snr)
    if not found:
        return
    found = dict(sorted(found.items(), key=lambda item: item[1]))
    many, update = len(found) > 1, " of the update" if prepared.links else ""
    what = f"{len(found):,} {'matrices' if many else 'matrix'}{update} {'are' if many else 'is'}"
    named = ", ".join(f"{name[:LONGEST]!a} ({snr:.1f} dB)" for name, snr in [*found.items()][:LISTED])
    more = f" and {len(found) - LISTED:,} more" if len(found) > LISTED else ""
    if asked.fixed_point:
        advice: tuple[str, ...] = (
            "the step sizes of ",
            Option("fixed_point"),
            f" {asked.fixed_point!r} are too large for them",
        )
    elif asked.target_size is not None or asked.target_ratio is not None:
        advice = ("use a larger target, or a rule with snr= or exact=true",)
    elif asked.codebook:
        advice = "use a larger ", Option("codebook"), ", or a rule with exact=true"
    else:
        advice = "use a lower ", Option("qp"), ", a higher ", Option("quality"), ", or a rule with exact=true"
    warning = LossWarning(f"{what} coded below {LEAST_SNR:.0f} dB: {named}{more}; ", *advice)
    warning.tensors = found
    warnings.warn(warning, stacklevel=4)


def warn_out_of_reach(asked: EncoderConfig, names: Collection[str]) -> None:
    """Warn about tensors that are lossless because the quantization parameter does not reach their step sizes."""
    if not names or asked.parts or asked.layer_parameter_sets:
        return
    others = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    why = "the step size is too far from the step sizes of other tensors, so it is lossless"
    message = f"tensor {min(names)!r}{others}: {why}; use "
    warnings.warn(EncodeWarning(message, Option("layer_parameter_sets", True)), stacklevel=4)


def warn_if_larger(taken: int, exact: int, config: EncoderConfig) -> None:
    """Warn about an encoding that is larger than a lossless one."""
    if taken > exact:
        option = Option("target_size", exact) if config.steps else Option("exact", True)
        message = f"the encoding takes {taken:,} bytes, more than the {exact:,} bytes of a lossless encoding"
        warnings.warn(EncodeWarning(f"{message}; use ", option), stacklevel=4)
