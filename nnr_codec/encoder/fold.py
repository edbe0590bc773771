"""Models as they are coded: blocks of the topology, batch normalizations folded (8.2.1), weights scaled by index.

Both changes leave the outputs of a network as they were, up to rounding, and the topology too. What a decoder has to
know of them it finds in the topology, or in the unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..config import EncoderConfig
from ..errors import EncodeError
from ..model import Array, Block, Described, Model, Wiring, only_of
from .links import Links

#: What a block has beside its weight.
MEMBERS = ("bias", "beta", "gamma", "mean", "var", "scale")
#: How many times less, or more, an index of a weight may be scaled than the median of them is.
RANGE = 16.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prepared:
    """A model, ready to be coded.

    Parameters
    ----------
    model : Model
        What is coded.
    restored : Model
        What decoders restore, but for quantization: without the scales that are multiplied into weights. Those of them
        that the caller does not have are optional: only a unit that has one divides its weight by it.
    wiring : Wiring
        What decoders learn from the topology, as far as blocks are concerned.
    links : Links or None
        The tensors are those of an update.
    """

    model: Model
    restored: Model
    wiring: Wiring = field(default_factory=Wiring)
    links: Links | None = None

    @property
    def scales(self) -> set[str]:
        """The scales that the caller does not have."""
        scales = (block.scale for block in self.model.blocks if block.scale is not None)
        return {scale for scale in scales if scale not in self.restored.tensors}

    @property
    def products(self) -> set[str]:
        """The weights that come out as a product of several tensors of the restored model."""
        tensors, shapes = self.restored.tensors, self.wiring.shapes
        return {
            block.weight
            for block in self.model.blocks
            if block.g is not None or (block.scale in tensors and block.scale not in shapes)
        }


def prepare(model: Model, config: EncoderConfig, wiring: Wiring) -> Prepared:
    """The model as it is coded with these options.

    Raises EncodeError where there is no batch normalization to fold, or one of those that are has values for which
    there is no such thing.
    """
    if not config.has_blocks:
        return Prepared(model, model, wiring)
    coded = replace(model, blocks=[*model.blocks, *_recognised(model, wiring)])
    if config.fold_batchnorm:
        coded = _folded(coded, config, wiring)
    restored = coded
    if config.local_scaling:
        coded, restored = _scaled(coded, config, wiring)
    return Prepared(coded, replace(restored, blocks=model.blocks), wiring)


class _Changed(Mapping[str, Array]):
    """Tensors of which some are others, and some are divided index by index when they are read."""

    def __init__(
        self, tensors: Mapping[str, Array], others: Mapping[str, Array], divisors: Mapping[str, tuple[Floats, int]]
    ) -> None:
        self._tensors, self._others, self._divisors = tensors, others, divisors
        self._names = [*tensors, *(name for name in others if name not in tensors)]

    def __getitem__(self, name: str) -> Array:
        if name in self._others:
            return self._others[name]
        tensor = self._tensors[name]
        if name not in self._divisors:
            return tensor
        divisor, axis = self._divisors[name]
        return divided(np.asarray(tensor), divisor, axis)

    def only(self, names: Sequence[str]) -> _Changed:
        """See :class:`nnr_codec.model.Portable`."""
        others = {name: self._others[name] for name in names if name in self._others}
        divisors = {name: self._divisors[name] for name in names if name in self._divisors}
        return _Changed(only_of(self._tensors, [name for name in names if name not in others]), others, divisors)

    def __contains__(self, name: object) -> bool:
        return name in self._others or name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _ChangedDescribed(_Changed):
    """The same, where type and shape are known of those that are not others."""

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """See :class:`nnr_codec.model.Described`."""
        if name in self._others:
            return self._others[name].dtype, self._others[name].shape
        return cast(Described, self._tensors).described(name)


def _changed(
    model: Model, others: Mapping[str, Array], divisors: Mapping[str, tuple[Floats, int]] | None = None
) -> Mapping[str, Array]:
    """The tensors of a model, in memory where they were."""
    cls = _ChangedDescribed if isinstance(model.tensors, Described) else _Changed
    found = cls(model.tensors, others, divisors or {})
    return dict(found) if type(model.tensors) is dict else found


def divided(tensor: Array, divisor: Array, axis: int) -> Array:
    """Each index of a dimension divided by a number of its own, in the tensor's type."""
    return _multiplied(tensor, 1 / divisor.astype(np.float64), axis)


def _multiplied(tensor: Array, factors: Floats, axis: int = 0) -> Array:
    """Each index of a dimension times a number of its own, in the tensor's type."""
    shape = [1] * tensor.ndim
    shape[axis] = len(factors)
    product: Array = (tensor.astype(np.float64) * factors.reshape(shape)).astype(tensor.dtype)
    return product


def _names(block: Block) -> list[str]:
    """The tensors of a block beside its weight."""
    return [name for name in (getattr(block, member) for member in MEMBERS) if name is not None]


def _recognised(model: Model, wiring: Wiring) -> list[Block]:
    """The blocks of the topology whose tensors the model has, and in no other block."""
    taken = {name for block in model.blocks for name in (block.weight, block.g, block.h, *_names(block))}
    taken |= model.aliases.keys()
    found = []
    for block in wiring.blocks:
        names = [block.weight, *_names(block)]
        if len(names) > 1 and all(name in model.tensors and name not in taken for name in names):
            taken.update(names)
            found.append(block)
    return found


def _may_change(names: list[str], model: Model, config: EncoderConfig) -> bool:
    """Whether these tensors may become others: nothing is tied to them, nor are they to be kept bit for bit."""
    tied = {*model.aliases, *model.aliases.values()}
    return not any(name in tied or config.for_tensor(name).exact for name in names)


# ------------------------------------------------------------------------------------------------ batch normalization
def _folded(model: Model, config: EncoderConfig, wiring: Wiring) -> Model:
    """The model with its batch normalizations folded: alpha is their gamma, delta their beta (8.2.1).

    With a fixed-point format, weights are multiplied by alpha, and it is 1: neither is rounded before the other.
    """
    others: dict[str, Array] = {}
    divisors: dict[str, tuple[Floats, int]] = {}
    blocks, reasons = [], []
    for block in model.blocks:
        reason = _unfoldable(block, model, config, wiring)
        if reason:
            reasons.append(f": {reason}")
            blocks.append(block)
            continue
        others |= _alpha_delta(block, model)
        if config.fixed_point is not None and block.gamma is not None:
            alpha = others[block.gamma]
            with np.errstate(divide="ignore"):
                divisors[block.weight] = 1 / alpha.astype(np.float64).reshape(-1), block.axis
            others[block.gamma] = np.ones_like(alpha)
        blocks.append(Block(block.weight, block.beta, scale=block.gamma, axis=block.axis, epsilon=block.epsilon))
    if not others:
        why = reasons[0] if reasons else ": there is no graph that tells of one"
        raise EncodeError(f"there is no batch normalization to fold{why}")
    return replace(model, tensors=_changed(model, others, divisors), blocks=blocks)


def _unfoldable(block: Block, model: Model, config: EncoderConfig, wiring: Wiring) -> str:
    """Why the batch normalization of a block cannot be folded; empty if it can."""
    what = f"the block of {block.weight!r}"
    parts = {member: getattr(block, member) for member in ("beta", "gamma", "mean", "var")}
    if missing := [member for member, name in parts.items() if name is None]:
        return f"{what} has no {'batch normalization' if len(missing) == len(parts) else ', '.join(missing)}"
    if block.epsilon is None:
        return f"the epsilon of {what} is not known"
    if block not in wiring.blocks:
        return f"{what} is not one of the topology, from which decoders know it"
    if block.scale is not None or block.g is not None:
        return f"{what} has a scaling or a decomposition of its own"
    names = [name for name in (*parts.values(), block.bias) if name is not None]
    if any(name not in model.tensors for name in names):
        return f"the model lacks a tensor of {what}"
    if not _may_change(names, model, config):
        return f"a tensor of {what} is tied to another one, or is kept exactly"
    arrays = [np.asarray(model.tensors[name]) for name in names]
    if any(array.dtype.kind != "f" or array.shape != arrays[0].shape for array in arrays):
        return f"the tensors of {what} differ in shape, or are no floats"
    if config.fixed_point is not None:  # the weight is multiplied by what normalizes
        weight = np.asarray(model.tensors[block.weight])
        if not _may_change([block.weight], model, config):
            return f"{block.weight!r} is tied to another tensor"
        if weight.dtype.kind != "f" or weight.shape[block.axis : block.axis + 1] != (arrays[0].size,):
            return f"{block.weight!r} is of integers, or of another shape than the batch normalization"
    return ""


def _alpha_delta(block: Block, model: Model) -> dict[str, Array]:
    """What becomes of the batch normalization of a block: alpha, delta, 0, 1 - epsilon, and 0 for the bias."""
    arrays: dict[str, npt.NDArray[np.floating[Any]]] = {}
    for member in ("beta", "gamma", "mean", "var", "bias"):
        if (name := getattr(block, member)) is not None:
            arrays[member] = np.asarray(model.tensors[name])
    value = {member: array.astype(np.float64) for member, array in arrays.items()}
    epsilon = block.epsilon or 0.0
    with np.errstate(all="ignore"):  # whatever the values are, what comes of them is looked at
        # What is folded stays as it is: its variance is 1 - epsilon as the type holds it.
        folded = arrays["var"] == arrays["var"].dtype.type(1 - epsilon)
        alpha = value["gamma"] / np.where(folded, 1.0, np.sqrt(value["var"] + epsilon))
        delta = (value.get("bias", 0.0) - value["mean"]) * alpha + value["beta"]
        found = {
            member: np.asarray(values, np.float64).astype(arrays[member].dtype)
            for member, values in (("gamma", alpha), ("beta", delta), ("var", np.full_like(value["var"], 1 - epsilon)))
        }
    for member, array in found.items():
        if not np.isfinite(array).all():
            raise EncodeError(
                f"the batch normalization of {block.weight!r} cannot be folded: with {block.var!r} and epsilon "
                f"{epsilon:g}, {getattr(block, member)!r} has no finite values (8.2.1)"
            )
    found["mean"] = np.zeros_like(arrays["mean"])
    if "bias" in arrays:
        found["bias"] = np.zeros_like(arrays["bias"])
    return {getattr(block, member): array for member, array in found.items()}


# ------------------------------------------------------------------------------------------------ local scaling
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
            others[scale] = _multiplied(tensor.reshape(-1), factors).reshape(tensor.shape)
            divisors[block.weight] = factors, block.axis
        blocks.append(replace(block, scale=scale))
    scaled = replace(model, tensors=_changed(model, others | scales, divisors), blocks=blocks)
    return scaled, replace(model, tensors=_changed(model, others, divisors))


def _divisor(block: Block, model: Model, config: EncoderConfig, wiring: Wiring) -> Array | None:
    """What each index of a weight's dimension is divided by, in the weight's type; None where it is to stay as it is.

    An error is amplified by alpha of the batch normalization (8.2.1), in proportion to which it should be less; in
    proportion to the root mean square of the index, it could be more. The geometric mean of both is what served
    networks best. The root mean square of the whole weight stays what it is, and so do its steps.
    """
    gain = _gain(block, model, wiring)
    if gain is None or block.g is not None or not _may_change([block.weight, *_names(block)], model, config):
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
