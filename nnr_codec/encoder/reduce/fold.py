"""Folding of batch normalizations, which keeps the outputs of the network up to rounding (8.2.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...config import EncoderConfig
from ...errors import EncodeError, Option
from ...model import Array, Block, Model, Wiring
from ..overlay import Floats, overlaid, with_factors
from ..prepared import Prepared
from .tool import may_change, whole


@dataclass(frozen=True)
class Fold:
    """Folding of each batch normalization of the topology: gamma becomes alpha, and beta becomes delta (8.2.1).

    Alpha and delta are coded; decoders derive the other tensors with the topology.
    """

    def apply(self, prepared: Prepared) -> Prepared:
        """See :class:`~.tool.ReductionTool`. Raises EncodeError if the model has nothing to fold."""
        return _folded(prepared, prepared.config)


def _folded(prepared: Prepared, config: EncoderConfig) -> Prepared:
    """Return the model with its batch normalizations folded: alpha is their gamma, delta their beta (8.2.1).

    A scale of an earlier step is multiplied into alpha. With a fixed-point format, alpha is multiplied into weights and
    becomes 1, so that values are rounded only once.
    """
    model, restored = prepared.model, prepared.restored
    others: dict[str, Array] = {}
    divisors: dict[str, tuple[Floats, int]] = {}
    gone: dict[str, dict[str, Array]] = {}
    blocks, reasons = [], []
    for block in model.blocks:
        ours = block.scale if block.scale not in restored.tensors else None
        plain = block if ours is None else replace(block, scale=None)
        reason = _unfoldable(plain, model, config, prepared.wiring)
        if reason:
            reasons.append(f": {reason}")
            blocks.append(block)
            continue
        scale = None if ours is None else np.asarray(model.tensors[ours]).astype(np.float64).reshape(-1)
        others |= _alpha_delta(plain, model, scale)
        if ours is not None and scale is not None:
            divisors[block.weight] = scale, block.axis
            gone[ours] = {}
        if config.fixed_point is not None and block.gamma is not None:
            alpha = others[block.gamma]
            with np.errstate(divide="ignore"):
                divisors[block.weight] = 1 / alpha.astype(np.float64).reshape(-1), block.axis
            others[block.gamma] = np.ones_like(alpha)
        folded = replace(plain, bias=block.beta, scale=block.gamma)
        blocks.append(replace(folded, beta=None, gamma=None, mean=None, var=None))
    if not others:
        why = reasons[0] if reasons else ": the model has no graph"
        option = Option("fold_batchnorm" if config.fold_batchnorm else "reduce")
        raise EncodeError(option, f": no batch normalization can be folded{why}; remove this option or step")
    coded = overlaid(model.tensors, others, divisors)
    if gone:
        coded = with_factors(coded, gone)
    return replace(
        prepared,
        model=replace(model, tensors=coded, blocks=blocks),
        restored=replace(restored, tensors=overlaid(restored.tensors, others, divisors)),
    )


def _unfoldable(block: Block, model: Model, config: EncoderConfig, wiring: Wiring) -> str:
    """Return the reason why the batch normalization of a block cannot be folded; empty if it can."""
    what = f"the block of {block.weight!r}"
    parts = {member: getattr(block, member) for member in ("beta", "gamma", "mean", "var")}
    if missing := [member for member, name in parts.items() if name is None]:
        return f"{what} has no {'batch normalization' if len(missing) == len(parts) else ', '.join(missing)}"
    if block.epsilon is None:
        return f"the epsilon of {what} is unknown"
    if whole(block) not in wiring.blocks:
        return f"{what} is not defined by the topology, so decoders do not know it"
    if block.scale is not None:
        return f"{what} has its own scale"
    names = [name for name in (*parts.values(), block.bias) if name is not None]
    if any(name not in model.tensors for name in names):
        return f"the model lacks a tensor of {what}"
    if not may_change(names, model, config):
        return f"a tensor of {what} is tied to another one, or a rule keeps it"
    arrays = [np.asarray(model.tensors[name]) for name in names]
    if any(array.dtype.kind != "f" or array.size != arrays[0].size for array in arrays):
        return f"the tensors of {what} differ in size, or are not floats"
    if config.fixed_point is not None:  # the weight is multiplied by alpha
        weight = np.asarray(model.tensors[block.weight])
        if not may_change([block.weight], model, config):
            return f"{block.weight!r} is tied to another tensor"
        if weight.dtype.kind != "f" or weight.shape[block.axis : block.axis + 1] != (arrays[0].size,):
            return f"{block.weight!r} has integers, or a different shape from the batch normalization"
    return ""


def _alpha_delta(block: Block, model: Model, scale: Floats | None) -> dict[str, Array]:
    """Return the folded batch normalization of a block: alpha, delta, 0, 1 - epsilon, and 0 for the bias.

    alpha is multiplied by ``scale``, by which the weight is divided.
    """
    arrays: dict[str, npt.NDArray[np.floating[Any]]] = {}
    for member in ("beta", "gamma", "mean", "var", "bias"):
        if (name := getattr(block, member)) is not None:
            arrays[member] = np.asarray(model.tensors[name])
    # A bias may have extents of 1 that the normalization lacks.
    value = {member: array.astype(np.float64).reshape(-1) for member, array in arrays.items()}
    epsilon = block.epsilon or 0.0
    with np.errstate(all="ignore"):  # results are checked
        # Folding again changes nothing: the variance is 1 - epsilon rounded to the type.
        folded = arrays["var"].reshape(-1) == arrays["var"].dtype.type(1 - epsilon)
        alpha = value["gamma"] / np.where(folded, 1.0, np.sqrt(value["var"] + epsilon))
        delta = (value.get("bias", 0.0) - value["mean"]) * alpha + value["beta"]
        if scale is not None:
            alpha = alpha * scale
        found = {
            member: np.asarray(values, np.float64).astype(arrays[member].dtype).reshape(arrays[member].shape)
            for member, values in (("gamma", alpha), ("beta", delta), ("var", np.full_like(value["var"], 1 - epsilon)))
        }
    for member, array in found.items():
        if not np.isfinite(array).all():
            raise EncodeError(
                f"the batch normalization of {block.weight!r} cannot be folded: with {block.var!r} and epsilon "
                f"{epsilon:g}, {getattr(block, member)!r} has no finite values (8.2.1)",
                tensor=block.weight,
            )
    found["mean"] = np.zeros_like(arrays["mean"])
    if "bias" in arrays:
        found["bias"] = np.zeros_like(arrays["bias"])
    return {getattr(block, member): array for member, array in found.items()}
