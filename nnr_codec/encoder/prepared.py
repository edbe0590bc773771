"""Model ready for coding: tensors after parameter reduction, and the model that decoders restore from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from ..bitstream.performance import PerformanceMaps
from ..compare import is_matrix_shape
from ..config import EncoderConfig
from ..dtypes import stored_type
from ..errors import EncodeError, Option
from ..model import Array, Block, Model, Wiring, described, source_size
from ..reduction_steps import Step
from ..tensor.reduction import from_displacement, product
from .overlay import overlaid
from .update_tree import Links


@dataclass(frozen=True)
class PruningInfo:
    """Content of NNR_TPL_PRUN (6.4.4.5, Table 19).

    Parameters
    ----------
    dims : mapping of str to tuple of int
        New dimensions of tensors with removed indices.
    sparse : bool
        Write a mask of the parameters that are not 0 after all steps (sparse_flag).
    kept : mapping of str to tuple of ndarray
        For each tensor of ``dims`` and each dimension, a boolean mask of the remaining indices.
    zeroed : mapping of str to tuple of ndarray
        The same for tensors that keep their dimensions, with 0 at removed indices.
    by_channel : bool
        The mask of ``zeroed`` (prune_mask) has a bit for each output channel, instead of each parameter.
    by_column : bool
        The bits of a tensor are in column-major order (order_flag 0).
    """

    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sparse: bool = False
    kept: Mapping[str, tuple[Array, ...]] = field(default_factory=dict, compare=False)
    zeroed: Mapping[str, tuple[Array, ...]] = field(default_factory=dict, compare=False)
    by_channel: bool = False
    by_column: bool = False

    def widened(self, tensors: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return tensors with their dimensions before pruning, and 0 at removed indices."""
        others = {}
        for name, masks in self.kept.items():
            if name in tensors:
                others[name] = np.zeros([len(mask) for mask in masks], described(tensors, name)[0])
                others[name][np.ix_(*masks)] = np.asarray(tensors[name])
        return overlaid(tensors, others)


@dataclass(frozen=True)
class Prepared:
    """Model ready for coding; each step of parameter reduction returns a new one.

    Parameters
    ----------
    model : Model
        Model with the coded tensors.
    restored : Model
        Model that decoders restore, apart from quantization: with products of factors, without scales that decoders
        multiply into weights. A scale that the caller's model lacks is optional: only a unit that contains it divides
        its weight by it.
    wiring : Wiring
        Blocks, shapes and channels that the topology declares.
    config : EncoderConfig
        Options for the steps.
    links : Links or None
        References to earlier tensors; None unless the tensors belong to an update.
    maps : PerformanceMaps
        A map, with or without rows, for each kind of applied reduction (6.4.4.3).
    reduced : mapping of str to frozenset of str
        Names of the tensors of ``model`` to which reduction was applied, by its kind.
    pruning : PruningInfo or None
    fitted : frozenset of str
        Weights whose scales are fitted to their levels by least squares.
    source : Model or None
        Model before any step, whose bytes are the reference of ratios; None if it is ``restored``.
    unused : tuple of Step
        Steps without effect.
    joined : mapping of str to tuple of str
        Tensors of the units with several tensors, by the name of the concatenated tensor in ``model``.
    """

    model: Model
    restored: Model
    wiring: Wiring = field(default_factory=Wiring)
    config: EncoderConfig = field(default_factory=EncoderConfig)
    links: Links | None = None
    maps: PerformanceMaps = field(default_factory=PerformanceMaps)
    reduced: Mapping[str, frozenset[str]] = field(default_factory=dict)
    pruning: PruningInfo | None = None
    fitted: frozenset[str] = frozenset()
    source: Model | None = None
    unused: tuple[Step, ...] = ()
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def noting(self, kind: str, names: Iterable[str]) -> Prepared:
        """Return a copy that notes a kind of reduction of these tensors."""
        reduced = {**self.reduced, kind: self.reduced.get(kind, frozenset()).union(names)}
        return replace(self, maps=self.maps.noting(kind), reduced=reduced)

    def array(self, name: str) -> Array:
        """Return the current values of a tensor."""
        return np.asarray(self.model.tensors[name])

    def matrices(self, tensors: str = "*") -> list[str]:
        """Return the names of float tensors with at least two extents above 1 that steps may change, in model order.

        ``tensors`` has patterns of names, separated by ``|``. Tensors with ``reducible=false`` or ``exact=true`` are
        omitted, as are tensors tied to another tensor, which :meth:`replaced` updates. Raises EncodeError if none
        remain.
        """
        known = [name for name in self.model.tensors if matches(name, tensors)]
        known = [name for name in known if is_matrix(*described(self.model.tensors, name))]
        found = [name for name in known if self.may_change(name)]
        if not found:
            why = " that may change: rules keep them, or they are tied to others" if known else ""
            raise EncodeError(Option("reduce"), f": no tensor that matches {tensors!r} is a float matrix{why}")
        return found

    def may_change(self, name: str) -> bool:
        """Return whether steps may change a tensor: no rule excludes it, and it is not tied to another tensor."""
        options = self.config.for_tensor(name)
        return options.reducible and not options.exact and name not in self.model.aliases

    def replaced(self, others: Mapping[str, Array]) -> Prepared:
        """Return a copy with new values of some tensors, of tensors tied to them, and of weights computed from them."""
        tied = {name: others[source] for name, source in self.model.aliases.items() if source in others}
        others = {**others, **tied}
        model = replace(self.model, tensors=overlaid(self.model.tensors, others))
        restored = dict(others)
        for block in decomposed(model, self.restored):
            factors = {name for name in (block.g, block.h) if name in restored}
            if factors:
                restored = {name: array for name, array in restored.items() if name not in factors}
                restored[block.weight] = product_of(block, model, self.restored.tensors[block.weight].dtype)
        return replace(
            self, model=model, restored=replace(self.restored, tensors=overlaid(self.restored.tensors, restored))
        )

    @property
    def scales(self) -> set[str]:
        """Names of the scales that the caller's model lacks."""
        scales = (block.scale for block in self.model.blocks if block.scale is not None)
        return {scale for scale in scales if scale not in self.restored.tensors}

    @property
    def decomposed(self) -> dict[str, np.dtype[Any]]:
        """Decomposed weights and their types."""
        tensors = self.restored.tensors
        return {block.weight: described(tensors, block.weight)[0] for block in decomposed(self.model, self.restored)}

    @property
    def factors(self) -> dict[str, str]:
        """Decomposed weights by the names of G and of H."""
        blocks = decomposed(self.model, self.restored)
        return {name: block.weight for block in blocks for name in (block.g, block.h) if name is not None}

    @property
    def source_bytes(self) -> int:
        """Bytes of the tensors before any step; see :func:`nnr_codec.model.source_size`."""
        return source_size(self.source or self.restored)[0]

    @property
    def products(self) -> set[str]:
        """Weights that decoders return as a product of several tensors of the restored model."""
        tensors, shapes = self.restored.tensors, self.wiring.shapes
        return {
            block.weight
            for block in self.model.blocks
            if (block.g is not None and block.weight not in tensors)
            or (block.scale in tensors and block.scale not in shapes)
        }


def matches(name: str, tensors: str) -> bool:
    """Return whether a name matches a pattern; ``|`` separates patterns."""
    return any(fnmatchcase(name, pattern) for pattern in tensors.split("|"))


def is_matrix(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Return whether a tensor has floats, at least two extents above 1, and no extent of 0."""
    stored = stored_type(dtype)
    is_float = stored is not None and stored.kind == "f"
    return is_float and is_matrix_shape(shape)


def decomposed(model: Model, restored: Model) -> list[Block]:
    """Return the blocks with decomposed weights: G and H are coded, decoders return the weights."""
    weights = (block for block in model.blocks if block.g is not None)
    return [block for block in weights if block.weight in restored.tensors and block.weight not in model.tensors]


def product_of(block: Block, model: Model, dtype: np.dtype[Any]) -> Array:
    """Return the weight that decoders compute from G and H of a block, in a float type."""
    g, h = (np.asarray(model.tensors[name or ""]) for name in (block.g, block.h))
    return weight_of(block, g, h, dtype)


def weight_of(block: Block, g: npt.NDArray[Any], h: npt.NDArray[Any], dtype: npt.DTypeLike) -> Array:
    """Return the weight that decoders compute from coded G and H, in a float type."""
    shape = block.shape or (g.shape[0], h.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):  # overflow gives infinity or NaN
        found: npt.NDArray[np.floating[Any]] = product(g, h, shape).astype(g.dtype)
        if block.corner is not None:
            found = from_displacement(found.reshape(shape[0], -1), block.corner).reshape(shape)
        restored: Array = found.astype(dtype)
    return restored
