"""Local scaling: weights divided, index by index of their outputs, by what is multiplied in again (8.3.9)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...config import EncoderConfig
from ...model import Array, Block, Model, Wiring
from ..changed import Floats, changed, multiplied
from .blocks import may_change, members
from .tool import Reduced

#: How many times less, or more, an index of a weight may be scaled than the median of them is.
RANGE = 16.0


@dataclass(frozen=True)
class Scale:
    """Scale weights before batch normalizations, so that errors are less where those amplify them."""

    def apply(self, reduced: Reduced) -> Reduced:
        """See :class:`nnr_codec.encoder.reduce.tool.Tool`."""
        coded, restored = _scaled(reduced.model, reduced.config, reduced.wiring)
        return replace(reduced, model=coded, restored=replace(restored, blocks=reduced.restored.blocks))


def _scaled(model: Model, config: EncoderConfig, wiring: Wiring) -> tuple[Model, Model]:
    """The model with new scales for its blocks, and weights divided, index by index, by what multiplies known ones.

    The second one is what comes out: without the scales that are new.
    """
    others: dict[str, Array] = {}
    scales: dict[str, Array] = {}
    divisors: dict[str, tuple[Floats, int]] = {}
    blocks, labels = [], {name.casefold() for name in (*model.tensors, *wiring.shapes)}
    listed = config.indexed_references and model.topology is not None  # where names are labels of it, all of them (A.4)
    for block in model.blocks:
        divisor = _divisor(block, model, config, wiring)
        scale = block.scale or f"{block.weight}_scaling"
        new = block.scale is None
        free = not new or not (listed or scale.casefold() in labels)
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
    scaled = replace(model, tensors=changed(model.tensors, others | scales, divisors), blocks=blocks)
    return scaled, replace(model, tensors=changed(model.tensors, others, divisors))


def _divisor(block: Block, model: Model, config: EncoderConfig, wiring: Wiring) -> Array | None:
    """What each index of a weight's dimension is divided by, in the weight's type; None where it is to stay as it is.

    An error is amplified by alpha of the batch normalization (8.2.1), in proportion to which it should be less; in
    proportion to the root mean square of the index, it could be more. The geometric mean of both is what served
    networks best. The root mean square of the whole weight stays what it is, and so do its steps.
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
    with np.errstate(all="ignore"):  # whatever the values are, what comes of them is looked at
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
    """Whether a new scale is as precise as it has to be, and what is asked of the weight not asked of their product."""
    options = config.for_tensor(block.weight)
    goals = (options.codebook or None, options.snr, options.max_error)
    return divisor.dtype.itemsize >= 4 and goals == (None, None, None) and config.for_tensor(scale).fine_vectors


def _gain(block: Block, model: Model, wiring: Wiring) -> Floats | None:
    """Alpha of the batch normalization of a block, one number for each index; None where it has none."""
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
