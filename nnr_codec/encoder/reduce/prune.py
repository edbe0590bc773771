"""Combined pruning and sparsification: removes channels from all tensors that contain them (8.3.3, Table 19).

The topology lists the channels and their tensors (:class:`nnr_codec.model.Channels`). Their importance is computed by
graph diffusion (:mod:`.graph_diffusion`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...errors import EncodeError, Option
from ...model import Array, Channels, Slice, described
from ..overlay import overlaid
from ..prepared import Prepared, PruningInfo, matches
from .graph_diffusion import GRID, channel_importance
from .magnitudes import cleared, magnitudes, missing, share, work_type
from .tool import ORDERS, check_order, with_mask, within

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
#: Masks of remaining indices by tensor and dimension.
Stays = dict[tuple[str, int], Mask]

SCOPES = ("global", "local")
FORMS = ("dimensions", "mask", "channels")


@dataclass(frozen=True)
class Prune:
    """Removal of channels: filters or neurons, their biases and normalizations, and the weights that read them.

    Parameters
    ----------
    ratio : float or None
        Share of the removable channels to remove, rounded up; one channel of each group remains. A size target cannot
        determine it: errors of the remaining tensors do not show the importance of a channel.
    scope : str
        ``global``: remove the least important channels of all groups; ``local``: the same share of each group.
    sparsity : float
        Share of the parameters of the remaining matrices to set to 0: the parameters with the smallest product of
        magnitude and importance of their filter.
    mask : bool
        Write a mask of the nonzero parameters to NNR_TPL_PRUN, one bit for each parameter.
    form : str
        ``dimensions``: tensors become smaller. ``mask``, ``channels``: tensors keep their dimensions, with 0 for
        removed channels; NNR_TPL_PRUN has a mask with a bit for each parameter, or for each output channel. Variances
        are unchanged.
    order : str
        Order of the bits of each tensor in masks of parameters: ``row`` or ``column`` (order_flag).
    tensors : str
        Patterns of names, separated by ``|``: of weights that produce channels (all of a group must match), and of
        weights that become sparse.
    """

    ratio: float | None = None
    scope: str = SCOPES[0]
    sparsity: float = 0.0
    mask: bool = False
    form: str = FORMS[0]
    order: str = ORDERS[0]
    tensors: str = "*"

    def __post_init__(self) -> None:
        within("prune(ratio)", self.ratio, 0, 1)
        within("prune(sparsity)", self.sparsity, 0, 1)
        if self.scope not in SCOPES:
            raise EncodeError(Option("reduce"), f": prune has no scope {self.scope!r}; choose from {', '.join(SCOPES)}")
        if self.form not in FORMS:
            raise EncodeError(Option("reduce"), f": prune has no form {self.form!r}; choose from {', '.join(FORMS)}")
        check_order("prune", self.order, has_mask=self.mask or self.form == "mask")

    def apply(self, prepared: Prepared) -> Prepared:
        """See :class:`~.tool.ReductionTool`. Raises EncodeError without a graph that lists channels."""
        if self.ratio is None:
            raise EncodeError(Option("reduce"), ": prune requires a ratio, such as prune(ratio=0.1)")
        if (prepared.pruning and prepared.pruning.zeroed) or (self.form != FORMS[0] and prepared.model.pruned):
            raise EncodeError(Option("reduce"), ": prune(form=mask) and prune(form=channels) must be the only pruning")
        if self.ratio:
            groups = _groups(prepared, self.tensors)
            if not groups:
                raise EncodeError(Option("reduce"), f": prune({self._told}): {_why(prepared)}")
            kept = self._kept(groups)
            stays = _remaining(prepared, groups, kept)
            zeroed = self.form != FORMS[0]
            prepared = self._zeroed(prepared, stays) if zeroed else _without(prepared, groups, kept, stays)
        if self.sparsity:
            prepared = self._sparse(prepared)
        return with_mask(prepared, self.order) if self.mask else prepared

    def _zeroed(self, prepared: Prepared, stays: Stays) -> Prepared:
        """Return the model with 0 for the removed indices, which a mask lists."""
        divisors = {part.tensor for one in prepared.wiring.channels for part in one.parts if part.divides}
        others: dict[str, Array] = {}
        for (name, axis), mask in stays.items():
            if name not in divisors:
                others.setdefault(name, np.array(prepared.array(name)))
                np.moveaxis(others[name], axis, 0)[~mask] = 0
        info = replace(
            prepared.pruning or PruningInfo(),
            zeroed={
                name: tuple(stays.get((name, axis), np.ones(extent, np.bool_)) for axis, extent in enumerate(one.shape))
                for name, one in others.items()
            },
            by_channel=self.form == "channels",
        )
        info = replace(info, by_column=info.by_column or self.order == ORDERS[1])
        return replace(prepared.replaced(others), pruning=info).noting("pruning", others)

    @property
    def _told(self) -> str:
        return f"ratio={self.ratio}" + (f", tensors={self.tensors}" if self.tensors != "*" else "")

    def _kept(self, groups: list[_Group]) -> list[Mask]:
        """Return a mask of the remaining channels of each group."""
        ratio = self.ratio or 0.0
        kept = [np.ones(group.channels.size, np.bool_) for group in groups]
        if self.scope == "local":
            for group, mask in zip(groups, kept, strict=True):
                order = np.lexsort((np.arange(len(mask)), group.importance))
                mask[order[: min(share(ratio, len(mask)), len(mask) - 1)]] = False
            return kept
        found: list[tuple[float, int, int]] = []
        for k, group in enumerate(groups):
            last = int(np.lexsort((np.arange(group.channels.size), group.importance))[-1])
            found += [(value, k, c) for c, value in enumerate(group.importance.tolist()) if c != last]
        for _, k, c in sorted(found)[: share(ratio, sum(group.channels.size for group in groups))]:
            kept[k][c] = False
        return kept

    def _sparse(self, prepared: Prepared) -> Prepared:
        """Return the model with a share of the parameters of its matrices set to 0."""
        filters = _by_filter(_groups(prepared, "*"))
        names = prepared.matrices(self.tensors)
        arrays = {name: prepared.array(name) for name in names}
        weights = {name: _weighted(array, filters.get(name)) for name, array in arrays.items()}
        count = missing(arrays.values(), self.sparsity)
        every = np.concatenate(list(weights.values()))
        every = every[(every > 0) & (every < np.inf)]
        others: dict[str, Array] = {}
        if count > 0 and len(every):
            last = min(count, len(every)) - 1
            threshold = np.partition(every, last)[last]
            others = {name: cleared(array, weights[name] <= threshold) for name, array in arrays.items()}
        return prepared.replaced(others).noting("sparsification", names)


@dataclass(frozen=True)
class _Group:
    """Removable channels and their importance, shape (size,)."""

    channels: Channels
    importance: Floats


class _NoFloatsError(Exception):
    """Channels without a defined importance, because one of their tensors has no finite floats."""


def _why(prepared: Prepared) -> str:
    """Return the reason why the model has no removable channels."""
    if prepared.wiring.channels:
        return "rules, patterns, types or earlier steps exclude all channels"
    if prepared.model.topology is None:
        return "the model has no graph, which is required to find channels"
    return "the graph has no channels that can be removed"


def _groups(prepared: Prepared, tensors: str) -> list[_Group]:
    """Return the removable channels: their tensors may change and have the shapes of the graph."""
    tied = {*prepared.model.aliases, *prepared.model.aliases.values()}
    found = []
    for channels in prepared.wiring.channels:
        names = {part.tensor for part in channels.parts}
        if not all(name in prepared.model.tensors and name not in tied and prepared.may_change(name) for name in names):
            continue
        shapes = {name: described(prepared.model.tensors, name)[1] for name in names}
        if not all(_fits(part, channels.size, shapes[part.tensor]) for part in channels.parts):
            continue
        makers = [part for part in channels.parts if part.makes]
        if not makers or not all(matches(part.tensor, tensors) for part in makers):
            continue
        rows = (rows_of(prepared.array(part.tensor), part, channels.size) for part in makers)
        readers = (rows_of(prepared.array(part.tensor), part, channels.size) for part in _readers(prepared, channels))
        with suppress(_NoFloatsError):
            found.append(_Group(channels, channel_importance(rows, readers)))
    return found


def _readers(prepared: Prepared, channels: Channels) -> list[Slice]:
    """Return the slices of weights that read the channels."""
    makers = {(part.tensor, part.axis) for part in channels.parts if part.makes}
    shapes = {part.tensor: described(prepared.model.tensors, part.tensor)[1] for part in channels.parts}
    return [
        part
        for part in channels.parts
        if (part.tensor, part.axis) not in makers and sum(extent > 1 for extent in shapes[part.tensor]) > 1
    ]


def _fits(part: Slice, size: int, shape: tuple[int, ...]) -> bool:
    return part.axis < len(shape) and part.offset + part.outer * size * part.inner <= shape[part.axis]


def indices(part: Slice, channels: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Return the indices of some channels along the dimension of a slice, in order of the channels."""
    outer = np.arange(part.outer)[None, :, None] * size * part.inner
    inner = np.arange(part.inner)[None, None, :]
    return (part.offset + outer + channels[:, None, None] * part.inner + inner).reshape(-1)


def rows_of(array: Array, part: Slice, size: int) -> Floats:
    """Return the values of each channel, shape (size, n). Raises _NoFloatsError if they are not finite floats."""
    if work_type(array) is None:
        raise _NoFloatsError
    taken = np.take(np.moveaxis(array, part.axis, 0), indices(part, np.arange(size), size), axis=0)
    rows = taken.reshape(size, -1).astype(np.float64)
    if not np.isfinite(rows).all():
        raise _NoFloatsError
    return rows


def _remaining(prepared: Prepared, groups: list[_Group], kept: list[Mask]) -> Stays:
    """Return masks of the remaining indices of tensors with removed channels, by name and dimension."""
    stays: Stays = {}
    for group, mask in zip(groups, kept, strict=True):
        gone = np.flatnonzero(~mask)
        for part in group.channels.parts if len(gone) else ():
            key = part.tensor, part.axis
            if key not in stays:
                stays[key] = np.ones(described(prepared.model.tensors, part.tensor)[1][part.axis], np.bool_)
            stays[key][indices(part, gone, group.channels.size)] = False
    return stays


def _without(prepared: Prepared, groups: list[_Group], kept: list[Mask], stays: Stays) -> Prepared:
    """Return the model without the removed channels, with adapted shapes and channels of its topology."""
    others: dict[str, Array] = {}
    for (name, axis), mask in stays.items():
        others[name] = np.compress(mask, others[name] if name in others else prepared.array(name), axis=axis)
    shapes = {name: array.shape for name, array in others.items()}
    size = {id(group.channels): int(mask.sum()) for group, mask in zip(groups, kept, strict=True)}
    channels = tuple(
        Channels(size.get(id(each), each.size), tuple(_moved(part, stays) for part in each.parts))
        for each in prepared.wiring.channels
    )
    done = prepared.replaced(others)
    left = {name: _left(prepared, name, stays) for name in others}
    pruned = [*dict.fromkeys([*prepared.model.pruned, *others])]
    pruning = prepared.pruning or PruningInfo()
    return replace(
        done,
        model=replace(done.model, tensors=overlaid(done.model.tensors, _scales(prepared, stays)), pruned=pruned),
        restored=replace(done.restored, pruned=pruned),
        wiring=replace(prepared.wiring.with_shapes(shapes), channels=channels),
        pruning=replace(pruning, dims={**pruning.dims, **shapes}, kept={**pruning.kept, **left}),
    ).noting("pruning", others)


def _scales(prepared: Prepared, stays: Mapping[tuple[str, int], Mask]) -> dict[str, Array]:
    """Return the remaining parts of scales that an earlier step added; the graph does not list them."""
    return {
        block.scale: np.compress(stays[block.weight, block.axis], prepared.array(block.scale))
        for block in prepared.model.blocks
        if block.scale is not None
        and block.scale not in prepared.restored.tensors
        and (block.weight, block.axis) in stays
    }


def _left(prepared: Prepared, name: str, stays: Mapping[tuple[str, int], Mask]) -> tuple[Mask, ...]:
    """Return masks of the remaining indices of each dimension, relative to the dimensions before all steps."""
    shape = described(prepared.model.tensors, name)[1]
    before = prepared.pruning.kept.get(name) if prepared.pruning else None
    found = []
    for axis, extent in enumerate(shape):
        mask = stays.get((name, axis), np.ones(extent, np.bool_))
        if before is not None:
            whole = np.array(before[axis], np.bool_)
            whole[whole] = mask
            mask = whole
        found.append(mask)
    return tuple(found)


def _moved(part: Slice, stays: Mapping[tuple[str, int], Mask]) -> Slice:
    """Return a slice after the removal of other channels of its dimension."""
    mask = stays.get((part.tensor, part.axis))
    return part if mask is None else replace(part, offset=int(np.count_nonzero(mask[: part.offset])))


def _by_filter(groups: list[_Group]) -> dict[str, tuple[Slice, int, Floats]]:
    """Return the importances of the filters of weights."""
    return {
        part.tensor: (part, group.channels.size, group.importance)
        for group in groups
        for part in group.channels.parts
        if part.makes
    }


def _weighted(array: Array, filters: tuple[Slice, int, Floats] | None) -> npt.NDArray[np.float32]:
    """Return the weighted magnitude of each parameter, in row-major order; infinity for NaN."""
    found = magnitudes(array).astype(np.float64)
    found[np.isnan(found)] = np.inf
    if filters:
        part, size, value = filters
        factor = np.ones(array.shape[part.axis])
        factor[indices(part, np.arange(size), size)] = np.repeat(np.maximum(value, GRID), part.outer * part.inner)
        shape = [1] * array.ndim
        shape[part.axis] = -1
        found = (found.reshape(array.shape) * factor.reshape(shape)).reshape(-1)
    limits = np.finfo(np.float32)
    bounded = np.clip(found, float(limits.tiny), float(limits.max))
    return np.where((found > 0) & (found < np.inf), bounded, found).astype(np.float32)
