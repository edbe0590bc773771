"""Local scaling adaptation: scales of the outputs of weights (8.3.9), by least squares or from gains.

After Haase and others, *Encoder Optimizations for the NNR Standard on Neural Network Compression* (2021), without
training; nnr_codec.integrations.training has trained scales.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...config import EncoderConfig
from ...constants import NNR_CPT_LS
from ...errors import EncodeError, Option
from ...model import Array, Block, Model, Wiring, described
from ..facts import fits_name
from ..overlay import Floats, multiplied, overlaid
from ..prepared import Prepared, matches
from .tool import may_change, members

#: Largest ratio of a scale to the median of all scales, and of the median to a scale.
RANGE = 16.0


METHODS = ("fit", "gain")


@dataclass(frozen=True)
class Scale:
    """Scaling of the outputs of weights.

    Parameters
    ----------
    method : str
        ``fit``: after quantization, each output gets the scale with the lowest squared error. It is merged into an
        existing scale or batch normalization, or coded with the weight if that is worth the bits. ``gain``: weights
        before batch normalizations are divided by scales, so that errors are smaller where the normalization amplifies
        them.
    tensors : str
        Patterns of names of weights, separated by ``|``.
    """

    method: str = METHODS[0]
    tensors: str = "*"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise EncodeError(
                Option("reduce"), f": scale has no method {self.method!r}; choose from {', '.join(METHODS)}"
            )

    def apply(self, prepared: Prepared) -> Prepared:
        """See :class:`~.tool.ReductionTool`. Raises EncodeError without a weight for which scales can be fitted."""
        if self.method == "fit":
            return replace(prepared, fitted=prepared.fitted.union(prepared.matrices(self.tensors)))
        return _scaled(prepared, self.tensors)


def with_scales(prepared: Prepared) -> Prepared:
    """Return the model after all steps, with a scale of ones for each fitted weight without a tensor to scale.

    Weights are removed from the fitted ones if they have ``sensitivity`` or ``hessians``, a codebook or a goal, or if a
    tensor of their block must not change.
    """
    if not prepared.fitted:
        return prepared
    model, config = prepared.model, prepared.config
    blocks = list(model.blocks)
    apart = prepared.fitted - {name for block in blocks for name in (block.weight, block.g, block.h, *members(block))}
    blocks += [Block(name) for name in model.tensors if name in apart]
    labels = {name.casefold() for name in (*model.tensors, *prepared.wiring.shapes)}
    fits, found, scales = set(), [], dict[str, Array]()
    for block in blocks:
        own, new = block, f"{block.weight}_scaling"
        if block.weight in prepared.fitted and block.g is None and _may_fit(block, model, config):
            dtype, shape = described(model.tensors, block.weight)
            if block.scale is not None or block.gamma is not None:
                fits.add(block.weight)
            elif new.casefold() not in labels and _holds(dtype, new, model, config) and block.axis < len(shape):
                fits.add(block.weight)
                scales[new] = np.ones(shape[block.axis], dtype)
                own = replace(block, scale=new)
        if own.scale is not None or block.weight not in apart:
            found.append(own)
    coded = replace(model, tensors=overlaid(model.tensors, scales), blocks=found)
    return replace(prepared, model=coded, fitted=frozenset(fits))


def _may_fit(block: Block, model: Model, config: EncoderConfig) -> bool:
    """Return whether tensors of a block may be fitted to the levels of its weight."""
    taking: tuple[str | None, ...] = ()
    if block.scale is not None:
        taking = (block.scale,)
    elif block.gamma is not None:
        taking = block.gamma, block.mean, block.bias
    names = [name for name in (block.weight, *taking) if name is not None]
    known = (config.sensitivity or (), config.hessians or ())
    return (
        may_change(names, model, config)
        and not any(_has_goals(name, config) for name in names)
        and not any(name in given for name in names for given in known)
        and all(described(model.tensors, name)[0].kind == "f" for name in names)
    )


def _holds(dtype: np.dtype[Any], scale: str, model: Model, config: EncoderConfig) -> bool:
    """Return whether a new scale is sufficiently precise, and can be in a unit with a weight of this type."""
    listed = config.indexed_references and model.topology is not None  # all names must be labels of the topology (A.4)
    allowed = config.compressed_parameter_types & NNR_CPT_LS and config.for_tensor(scale).fine_vectors
    return dtype.itemsize >= 4 and bool(allowed) and not listed and fits_name(scale)


def _scaled(prepared: Prepared, tensors: str) -> Prepared:
    """Return the model with weights divided by factors, which become scales or are multiplied into existing ones.

    Decoders do not return new scales; they return the undivided weights.
    """
    model, restored, config, wiring = prepared.model, prepared.restored, prepared.config, prepared.wiring
    others: dict[str, Array] = {}
    scales: dict[str, Array] = {}
    divisors: dict[str, tuple[Floats, int]] = {}
    blocks, labels = [], {name.casefold() for name in (*model.tensors, *wiring.shapes)}
    listed = config.indexed_references and model.topology is not None  # all names must be labels of the topology (A.4)
    for block in model.blocks:
        done = block.scale is not None and block.scale not in restored.tensors
        divisor = None if done or not matches(block.weight, tensors) else _divisor(block, model, config, wiring)
        scale = block.scale or f"{block.weight}_scaling"
        new = block.scale is None
        free = not new or (not (listed or scale.casefold() in labels) and fits_name(scale))
        if divisor is None or not free or (new and not _fits(block, scale, divisor, config)):
            blocks.append(block)
            continue
        if new:
            scales[scale] = divisor
        else:
            tensor, factors = np.asarray(model.tensors[scale]), divisor.astype(np.float64)
            others[scale] = multiplied(tensor.reshape(-1), factors).reshape(tensor.shape)
            divisors[block.weight] = factors, block.axis
        blocks.append(replace(block, scale=scale))
    if not others and not scales:
        return prepared
    return replace(
        prepared,
        model=replace(model, tensors=overlaid(model.tensors, others | scales, divisors), blocks=blocks),
        restored=replace(restored, tensors=overlaid(restored.tensors, others, divisors)),
    )


def _divisor(block: Block, model: Model, config: EncoderConfig, wiring: Wiring) -> Array | None:
    """Return the divisor of each index of a weight's dimension, in the weight's type; None to keep the weight.

    The batch normalization amplifies an error by alpha (8.2.1), so the error should be inversely proportional to alpha.
    It may be proportional to the root mean square of the index. The geometric mean of both gave the best results. The
    root mean square of the weight does not change, and neither does its step size.
    """
    gain = _gain(block, model, wiring)
    if gain is None or block.g is not None or not may_change([block.weight, *members(block)], model, config):
        return None
    if block.weight in (config.sensitivity or ()) or block.weight in (config.hessians or ()):
        return None
    weight = np.asarray(model.tensors[block.weight])
    if weight.dtype.kind != "f" or not block.axis < weight.ndim or gain.shape != (weight.shape[block.axis],):
        return None
    rows = np.moveaxis(weight, block.axis, 0).reshape(len(gain), -1).astype(np.float64)
    with np.errstate(all="ignore"):  # results that are not finite are checked below
        squares = (rows * rows).sum(axis=1)
        found = np.sqrt(np.sqrt(squares / max(rows.shape[1], 1)) / np.abs(gain))
        usual = found[np.isfinite(found) & (found > 0)]
        if not usual.size or not np.isfinite(squares).all():
            return None
        middle = float(np.sort(usual)[len(usual) // 2])
        found = np.where(found > 0, found, middle).clip(middle / RANGE, middle * RANGE)
        found *= np.sqrt((squares / found**2).sum() / squares.sum())
        largest = (np.abs(rows).max(axis=1) / found).astype(weight.dtype)
        narrow: npt.NDArray[np.floating[Any]] = found.astype(weight.dtype)
    return narrow if np.isfinite(narrow).all() and narrow.all() and np.isfinite(largest).all() else None


def _fits(block: Block, scale: str, divisor: Array, config: EncoderConfig) -> bool:
    """Return whether a new scale is sufficiently precise, and the weight has no goal of its own."""
    return (
        divisor.dtype.itemsize >= 4 and not _has_goals(block.weight, config) and config.for_tensor(scale).fine_vectors
    )


def _has_goals(name: str, config: EncoderConfig) -> bool:
    """Return whether the options require a codebook or an error of the tensor before scaling."""
    options = config.for_tensor(name)
    return (options.codebook or None, options.snr, options.max_error) != (None, None, None)


def _gain(block: Block, model: Model, wiring: Wiring) -> Floats | None:
    """Return alpha of the batch normalization of a block, one number for each index; None without one."""
    by_weight = {known.weight: known for known in wiring.blocks}
    bn = by_weight.get(block.weight, block) if block.gamma is None else block
    if bn.gamma is None or bn.var is None or bn.epsilon is None or (block.gamma is None and block.scale != bn.gamma):
        return None
    names = [bn.gamma, bn.var] + ([block.scale] if block.scale is not None and block.gamma is not None else [])
    if any(name not in model.tensors for name in (block.weight, *names)):
        return None
    arrays = [np.asarray(model.tensors[name]) for name in names]
    if any(array.dtype.kind != "f" or array.size != arrays[0].size for array in arrays):
        return None
    gamma, var, *scale = (array.astype(np.float64).reshape(-1) for array in arrays)
    with np.errstate(all="ignore"):  # as above
        alpha: Floats = gamma / np.sqrt(var + bn.epsilon)
        return alpha * scale[0] if scale else alpha
