"""Goals of single tensors (quality, snr, max_error), and the options, mostly step sizes, that meet them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import floor, fsum, log2, prod, sqrt
from typing import Any, TypeVar

import numpy as np

from ..config import DEFAULT_STEP_EXPONENT, EncoderConfig, Rule, TensorOptions
from ..errors import EncodeError, Option
from ..model import Array, Block, Model, described
from ..tensor.quant import step_size
from .default_step import FLOOR, default_step, floor_step, qp_below
from .effort import EFFORTS
from .factor_steps import Factors, has_steps, inherited, largest_qp, qp_options, read_factors
from .facts import TensorFacts, tensor_facts
from .planning import plan_tensor, with_dq_flag
from .prepared import decomposed
from .rate_distortion import Distortion, distortion, power
from .tensor_tasks import Pool, TensorReader, TensorTask

Options = dict[str, Any]
Result = TypeVar("Result")

#: QpDensity of tensors with a goal: the step size doubles every 128 qp; one qp is 0.05 dB.
DENSITY = 7
OCTAVE = 1 << DENSITY
#: Smallest and largest qp of that density whose step size is a normal float32 number.
LEAST_QP, GREATEST_QP = -126 << DENSITY, (128 << DENSITY) - 1
#: qp of the default step size, and its quality in dB in many networks; step sizes of vectors are relative to it.
DEFAULT_QP, USUAL_QUALITY = DEFAULT_STEP_EXPONENT << DENSITY, 46
#: qp steps by which an SNR may exceed its goal (0.2 dB), and maximum number of step sizes tried.
CLOSE, TRIES = 4, 24
#: Distance in qp of the step sizes tried for factors; finest and coarsest one, in root mean squares of the weight.
FACTOR_STEPS = OCTAVE // 16
FINEST, COARSEST = 2.0**-26, 8.0
#: Parameters of an excerpt, which represents a tensor while many step sizes are tried.
EXCERPT = 1 << 15
#: cabac_unary_length_minus1 of integers of 2 to 8 bits, which are distributed more evenly than quantized weights.
#: Levels of Q5_1 take 2.5 % less than with the default.
QUANTIZED_UNARY = 31
#: Smallest magnitude whose square float64 represents with a margin for sums.
LEAST = 2.0**-400


def resolve_goals(
    model: Model,
    config: EncoderConfig,
    read: TensorReader,
    pool: Pool,
    *,
    apart: bool = False,
    restored: Model | None = None,
) -> EncoderConfig:
    """Return options with which every tensor meets its quality, snr or max_error.

    With ``apart``, quality applies to each tensor separately, not to all together. Each snr and max_error is verified
    by quantizing the tensor; a tensor is lossless if no step size meets its goal. Factors of weights in ``restored``
    get the options of these weights, with step sizes at which the weights meet their goals. Raises EncodeError if no
    step size of factors does.
    """
    blocks = decomposed(model, restored) if restored is not None else []
    pairs = [block for block in blocks if not has_steps(config, block)]
    config = inherited(config, blocks)
    factors = {name for block in blocks for name in (block.g, block.h)}
    wanted = {name: config.for_tensor(name) for name in model.tensors if name not in factors}
    wanted |= {block.weight: config.for_tensor(block.weight) for block in pairs}
    names = [name for name, options in wanted.items() if not options.exact and has_goal(options)]
    if not names and not pairs:
        return config
    if names:
        config = with_density(config)
    by_quality = {name: quality for name in names if (quality := wanted[name].quality) is not None}
    known = read_factors(pairs, read, pool, energy=any(wanted[block.weight].qp is None for block in pairs))
    energies = read_each([name for name in by_quality if name not in known], read, pool, _energy, config)
    energies |= {
        name: (one.energy, one.rows * one.columns, one.columns) for name, one in known.items() if name in by_quality
    }
    found: dict[str, Options] = {}
    for group in [[name] for name in by_quality] if apart else [[*by_quality]]:
        found |= _quality_steps(by_quality, {name: energies[name] for name in group})
    low = [
        name for name in by_quality if name not in known and _may_miss_floor(wanted[name], energies[name], found[name])
    ]
    found |= read_each(low, read, pool, _with_floor, config, frozenset(block_members(model)), found)
    others = [name for name in names if name not in by_quality and name not in known]
    found |= read_each(others, read, pool, _settled, config, frozenset(block_members(model)))
    for block in pairs:
        quality_qp = found.pop(block.weight)["qp"] if block.weight in found else None
        qp = _weight_qp(block, known[block.weight], config, read, restored, block.weight in names, quality_qp)
        if qp is not None:
            found |= qp_options(block, known[block.weight], qp, config.qp_density)
    if names:
        config = replace(config, quality=None, snr=None, max_error=None)
    return config.overridden({name: options for name, options in found.items() if options})


def _weight_qp(
    block: Block,
    factors: Factors,
    config: EncoderConfig,
    read: TensorReader,
    restored: Model | None,
    has_own_goal: bool,
    quality_qp: int | None,
) -> int | None:
    """Return the qp of a decomposed weight, which determines the step sizes of G and H; None if a size target does.

    ``quality_qp`` is the qp for its quality, if any. Raises EncodeError if no step size meets the goal.
    """
    options, rms = config.for_tensor(block.weight), sqrt(factors.energy / (factors.rows * factors.columns))

    def reaches(error: Distortion) -> bool:
        if options.max_error is not None:
            return error.largest <= options.max_error
        return error.reaches(10 ** ((options.snr or 0.0) / 10))

    if quality_qp is not None:
        return min(quality_qp, qp_of(floor_step(rms, _floor(options.quality), dependent=True)))
    if has_own_goal:
        assert restored is not None
        dtype = described(restored.tensors, block.weight)[0]
        qps = range(qp_of(rms * FINEST), qp_of(rms * COARSEST) + 1, FACTOR_STEPS)
        qp = largest_qp(block, dtype, factors, config, read, reaches, qps)
        if qp is None:
            raise EncodeError(
                f"the requested error of {block.weight!r} cannot be reached with any step sizes of its factors; "
                "allow a larger error",
                tensor=block.weight,
            )
        return qp
    if options.qp is not None or config.target_size is not None or config.target_ratio is not None:
        return options.qp
    return qp_below(default_step(rms, factors.columns, options.dependent_quantization is not False), config.qp_density)


def with_density(config: EncoderConfig, qp_density: int = DENSITY) -> EncoderConfig:
    """Return options with the same step sizes at a higher QpDensity, or the next finer ones at a lower QpDensity."""
    shift = qp_density - config.qp_density

    def moved(qp: int | None) -> int | None:
        if qp is None:
            return None
        return qp << shift if shift >= 0 else (qp >> -shift) - 1

    def shifted(options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: moved(value) if name == "qp" else value for name, value in options.items()}

    return replace(
        config,
        qp_density=qp_density,
        qp=moved(config.qp),
        rules=tuple(Rule(rule.pattern, **shifted(rule.options)) for rule in config.rules),
        overrides={name: shifted(options) for name, options in config.overrides.items()},
    )


def qp_of(step: float) -> int:
    """Return the largest qp whose step size is at most ``step``, which is above 0."""
    return clipped(qp_below(step, DENSITY))


def read_each(
    names: Iterable[str], read: TensorReader, pool: Pool, function: Callable[..., Result], *arguments: Any
) -> dict[str, Result]:
    """Return the result of a function for each tensor; it gets a list with the array, the name, and other arguments."""
    calls = [TensorTask(function, read, (name,), (name, *arguments), read.nbytes([name])) for name in names]
    return {call.names[0]: result for call, result in zip(calls, pool.run(calls), strict=True)}


def excerpt(whole: TensorFacts, about: int = EXCERPT) -> TensorFacts:
    """Return an excerpt with ``about`` parameters in eight runs, of complete rows if rows are short."""
    array, runs = whole.array, 8
    if array.size <= about:
        return whole
    rows = array.reshape(array.shape[0], -1)
    options = whole.options
    if rows.shape[1] > about // runs:
        rows, options = array.reshape(-1, 1), replace(options, scan_order=0)
    count = about // runs // rows.shape[1]
    starts = [(len(rows) - count) * run // (runs - 1) for run in range(runs)]
    some = np.concatenate([rows[start : start + count] for start in starts])
    return replace(whole, array=some if some.shape[1] > 1 else some.reshape(-1), options=options)


def has_goal(options: TensorOptions) -> bool:
    """Return whether a tensor has a goal that determines its step size."""
    return not (options.quality is None and options.snr is None and options.max_error is None)


def block_members(model: Model) -> set[str]:
    """Return the names of the tensors in blocks."""
    return {name for block in model.blocks for name in vars(block).values() if isinstance(name, str)}


def quantizable(tensor: TensorFacts) -> bool:
    """Return whether all values are finite floats whose squares fit float64; other tensors cannot be quantized."""
    if tensor.stored.kind != "f" or not tensor.array.size:
        return False
    largest = max(-tensor.bounds[0], tensor.bounds[1])  # comparisons with NaN are false
    return bool(largest == 0 or LEAST < largest < 1 / LEAST)


# ------------------------------------------------------------------------------------------------ quality
def _quality_steps(wanted: Mapping[str, float], found: Mapping[str, tuple[float, int, int]]) -> dict[str, Options]:
    """Return the qp of each tensor with a quality, computed from the energies of all of them.

    Step sizes are proportional to fan-in**0.25. They have the same squared error together as one step size for all.
    """
    steps = {}
    for quality in set(wanted.values()):
        mine = [energy for name, energy in found.items() if wanted[name] == quality]
        usual = usual_qp((signal, count) for signal, count, _ in mine)
        total = sum(count for _, count, _ in mine)
        mean = fsum(count * sqrt(fan_in) for _, count, fan_in in mine) / max(total, 1)
        step = step_size(clipped(usual + quality_shift(quality)), DENSITY)
        steps[quality] = step / sqrt(mean) if total else step
    return {
        name: {"qp": qp_of(steps[wanted[name]] * sqrt(sqrt(fan_in)))}
        if count
        else {"qp": clipped(DEFAULT_QP + quality_shift(wanted[name]))}
        for name, (_, count, fan_in) in found.items()
    }


def _floor(quality: float | None) -> float:
    """Return the minimum ratio of signal and noise of each matrix for a quality: 10 dB lower, or the default."""
    return min(FLOOR, 10 ** (((quality or 0) - 10) / 10))


def _may_miss_floor(options: TensorOptions, energy: tuple[float, int, int], found: Options) -> bool:
    """Return whether a matrix could be below its floor at a step size, assuming twice the usual noise."""
    signal, count, _ = energy
    ratio = _floor(options.quality)
    if not signal or ratio <= 1:
        return False
    most = floor_step(sqrt(signal / count), 2 * ratio, options.dependent_quantization is not False)
    return step_size(found["qp"], DENSITY) > most


def _with_floor(
    arrays: list[Array], name: str, config: EncoderConfig, blocks: frozenset[str], found: Mapping[str, Options]
) -> Options:
    """Return the options with which a matrix reaches the floor of its quality."""
    tensor, qp = tensor_facts(name, arrays[0], config), found[name]["qp"]
    tensor = replace(tensor, options=replace(tensor.options, quality=None))
    ratio = _floor(config.for_tensor(name).quality)
    if all(error.reaches(ratio) for error in _errors(tensor.with_options({"qp": qp}), name in blocks)):
        return found[name]
    options = _with_snr(tensor, ratio, name in blocks)
    return {**options, "qp": min(qp, options["qp"])} if "qp" in options else options


def with_exact(config: EncoderConfig, names: Iterable[str]) -> EncoderConfig:
    """Return options with ``exact`` for tensors that are parts of quantized tensors (:attr:`Wiring.quantized`).

    Raises EncodeError if the options have fixed-point numbers, which would change them.
    """
    found: dict[str, Options] = {}
    for name in names:
        if config.fixed_point is not None:
            raise EncodeError(
                Option("fixed_point"),
                " would change tensors that are already quantized; use dequantized()",
                tensor=name,
            )
        found[name] = {"exact": True}
        if config.for_tensor(name).cabac_unary_length_minus1 is None and not EFFORTS[config.effort].unary:
            found[name]["cabac_unary_length_minus1"] = QUANTIZED_UNARY
    return config.overridden(found) if found else config


def quality_shift(quality: float) -> int:
    """Return the qp difference between a quality and the usual quality."""
    return -round((quality - USUAL_QUALITY) * OCTAVE / 6)


def usual_qp(energies: Iterable[tuple[float, float]]) -> int:
    """Return the qp of the usual quality for tensors with these sums of squares and numbers of nonzero values."""
    signal = count = 0.0
    for energy, number in energies:
        signal, count = signal + energy, count + number
    if not signal:
        return DEFAULT_QP
    return qp_of(sqrt(signal / count)) + OCTAVE - round(USUAL_QUALITY * OCTAVE / 6)


def clipped(qp: int) -> int:
    """Return the nearest qp in the permitted range."""
    return max(LEAST_QP, min(GREATEST_QP, qp))


def _energy(arrays: list[Array], name: str, config: EncoderConfig) -> tuple[float, int, int]:
    """Return the sum of the squares of a tensor with a quality, the number of its nonzero values, and its fan-in."""
    tensor = tensor_facts(name, arrays[0], config)
    if not quantizable(tensor) or tensor.is_fine:
        return 0.0, 0, 1
    return power(tensor.floats), int(np.count_nonzero(tensor.floats)), prod(tensor.dims[1:])


# ------------------------------------------------------------------------------------------------ snr, max_error
def _settled(arrays: list[Array], name: str, config: EncoderConfig, blocks: frozenset[str]) -> Options:
    """Return the options with which a tensor meets its goal of SNR or maximum error."""
    tensor = tensor_facts(name, arrays[0], config)
    if tensor.stored.kind != "f":
        return {}
    if not quantizable(tensor):
        return {"exact": True}
    options, in_block = tensor.options, name in blocks
    plain = replace(tensor, options=replace(options, snr=None, max_error=None, noise_shaping=False))
    if options.max_error is not None:
        return _bounded(plain, options.max_error, in_block)
    assert options.snr is not None
    found = _with_snr(plain, 10 ** (options.snr / 10), in_block)
    return {**found, "noise_shaping": False} if "qp" in found else found


def _bounded(tensor: TensorFacts, bound: float, in_block: bool) -> Options:
    """Return options of uniform quantization, whose errors are at most half a step size."""
    if tensor.is_fine and max(error.largest for error in _errors(tensor, in_block)) <= bound:
        return {}
    qp = qp_of(2 * bound)
    for shift in (0, 1, 2, OCTAVE // 8, OCTAVE):  # rounding may need smaller steps
        options = {"qp": max(LEAST_QP, qp - shift), "dependent_quantization": False, "rate": 0.0, "fine_vectors": False}
        if max(error.largest for error in _errors(tensor.with_options(options), in_block)) <= bound:
            return options
    return {"exact": True}


def _with_snr(tensor: TensorFacts, factor: float, in_block: bool) -> Options:
    """Return options with the largest step size that reaches an SNR."""
    if tensor.is_fine and all(error.reaches(factor) for error in _errors(tensor, in_block)):
        return {}
    some = excerpt(tensor)
    values = power(some.floats)
    qp = qp_of(sqrt(values / some.array.size / factor) * 2) if values else 0
    if some is not tensor:
        guess = _largest_step(some, factor, qp, in_block)
        qp = qp if guess is None else guess
    found = _largest_step(tensor, factor, qp, in_block)
    return {"exact": True} if found is None else {"qp": found, "fine_vectors": False}


def _largest_step(tensor: TensorFacts, factor: float, qp: int, in_block: bool) -> int | None:
    """Return approximately the largest qp that reaches an SNR; None if the search from ``qp`` finds none.

    The search assumes noise proportional to the square of the step size.
    """
    low, high = LEAST_QP - 1, GREATEST_QP + 1  # largest qp known to reach it, smallest known not to
    for attempt in range(TRIES):
        found = max(
            _errors(tensor.with_options({"qp": qp, "fine_vectors": False}), in_block), key=lambda error: error.noise
        )
        if found.reaches(factor):
            low = qp
        else:
            high = qp
        more = floor(log2(found.signal / found.noise / factor) * OCTAVE / 2) if found.noise else 0
        if low < LEAST_QP:
            more = min(more, -1 << attempt)  # if the noise is not proportional, as when all levels are 0
        if low == qp and (more <= CLOSE or high - low == 1):
            break
        qp = clipped(qp + more - (more < 0))
        if not low < qp < high:
            qp = (low + high) >> 1
    return low if low >= LEAST_QP else None


def _errors(tensor: TensorFacts, in_block: bool) -> list[Distortion]:
    """Return the errors of a tensor's possible plans: in a block or separate, with either dq_flag."""
    plans = [plan_tensor(tensor)]
    if in_block:
        plan = plan_tensor(tensor, in_block=True)
        plans.append(plan)
        if plan.step and not plan.codebook and sum(extent > 1 for extent in tensor.dims) < 2:
            other = with_dq_flag(plan, 1 - plan.dq_flag, tensor.floats, tensor.config.qp_density)
            plans += [other] if other else []
    return [distortion(tensor, plan) for plan in plans]
