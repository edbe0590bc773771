"""Sparsification: small parameters, or rows or blocks of them, become 0 (8.3.1, 8.3.2, 8.3.4, 8.3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ...errors import EncodeError, Option
from ...model import Array
from ..prepared import Prepared, PruningInfo
from .magnitudes import below, cleared, magnitudes, matrices, missing
from .sparsify_methods import (
    compressible,
    largest_of_least,
    small_blocks,
    small_items,
    small_of_superblocks,
    small_rows,
    thresholds,
)
from .structure import Triple, dimensions, divided
from .tool import within

Arrays = Mapping[str, Array]

METHODS = ("magnitude", "statistics", "compressibility", "rows", "micro")
SCOPES = ("global", "local")
#: Default block: a whole kernel, whose zeros are coded one after the other.
KERNEL = "1x1"


@dataclass(frozen=True)
class Sparsify:
    """Make small parameters of matrices 0.

    Parameters
    ----------
    ratio : float or None
        The share of the parameters of all matrices together that is 0 afterwards, from 0 to 1.
    threshold : float or None
        In its place, and for single parameters: those of a magnitude below it (sparsification_threshold, 6.4.4.3).
    method : str
        ``magnitude``: those of least magnitude. ``statistics``: up to the mean of its tensor and a number of standard
        deviations, the same number for all tensors (8.3.4). ``compressibility``: where it makes the loss of 8.3.1
        least. ``rows``: indices of the outputs by their mean magnitude (8.3.5). ``micro``: blocks by their root mean
        square (8.3.2).
    scope : str
        ``global``: the least of the whole model. ``local``: of each tensor the ratio.
    block, superblock : str
        For ``micro``, extents such as ``4x1x1`` of the tensor as :func:`reshaped` makes it; of those that are left out
        at the end, all that it has. With a superblock, of each of them the ratio.
    mask : bool
        Zeros are written as a mask of NNR_TPL_PRUN as well (Table 19).
    tensors : str
        Patterns of names, separated by ``|``.
    """

    ratio: float | None = None
    threshold: float | None = None
    method: str = METHODS[0]
    scope: str = "global"
    block: str = ""
    superblock: str = ""
    mask: bool = False
    tensors: str = "*"

    AMOUNT: ClassVar[str] = "ratio"
    AMOUNTS: ClassVar[tuple[float, ...]] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9)

    def __post_init__(self) -> None:
        within("sparsify(ratio)", self.ratio, 0, 1)
        within("sparsify(threshold)", self.threshold, 0, float(np.finfo(np.float32).max))
        for option, value, known in (("method", self.method, METHODS), ("scope", self.scope, SCOPES)):
            if value not in known:
                raise EncodeError(
                    Option("reduce"), f": sparsify has no {option} {value!r}; choose from {', '.join(known)}"
                )
        if self.threshold is not None and (self.ratio is not None or self.method not in METHODS[:2]):
            raise EncodeError(Option("reduce"), ": a threshold of sparsify cannot be combined with a ratio or blocks")
        if (self.block or self.superblock) and self.method != "micro":
            raise EncodeError(Option("reduce"), ": block and superblock require sparsify(method=micro)")
        block, superblock = self._blocks
        if self.superblock:
            divided(block, superblock)

    def apply(self, prepared: Prepared) -> Prepared:
        """See :class:`~.tool.ReductionTool`; EncodeError without a ratio, or without matrices."""
        if self.ratio is None and self.threshold is None:
            raise EncodeError(
                Option("reduce"), ": sparsify requires a ratio, such as sparsify(ratio=0.6), or a threshold"
            )
        before = {name: prepared.array(name) for name in prepared.matrices(self.tensors)}
        axes = {block.weight: block.axis for block in (*prepared.wiring.blocks, *prepared.model.blocks)}
        after: dict[str, Array] = {}
        for part in [before] if self.scope == "global" else [{name: array} for name, array in before.items()]:
            after |= self._sparse(part, axes)
        pruning = replace(prepared.pruning or PruningInfo(), sparse=True) if self.mask else prepared.pruning
        maps = prepared.maps.noting("sparsification")
        return replace(prepared.replaced(after), pruning=pruning, maps=maps)

    @property
    def _blocks(self) -> tuple[Triple, Triple]:
        block = dimensions("sparsify(block)", self.block or KERNEL, whole=True)
        return block, dimensions("sparsify(superblock)", self.superblock or KERNEL, whole=True)

    def _sparse(self, tensors: Arrays, axes: Mapping[str, int]) -> Arrays:
        """Return the tensors that change."""
        if self.threshold is not None:
            return {name: cleared(array, below(array, self.threshold)) for name, array in tensors.items()}
        ratio, (block, superblock) = self.ratio or 0.0, self._blocks
        wanted = missing(tensors.values(), ratio)
        if self.method == "rows":
            return _rows(tensors, wanted, axes)
        if self.method == "statistics":
            return _single(tensors, wanted)
        if self.method == "compressibility":
            threshold = largest_of_least(tensors, wanted)
            return compressible(tensors, threshold) if threshold else {}
        if self.method == "magnitude":
            masks = small_items(tensors, wanted)
        elif self.superblock:
            masks = {name: small_of_superblocks(array, ratio, block, superblock) for name, array in tensors.items()}
        else:
            masks = small_blocks(tensors, wanted, block)
        return {name: cleared(tensors[name], mask) for name, mask in masks.items()}


def sparsify(update: Mapping[str, Array], ratio: float, *, structured: bool = False) -> dict[str, Array]:
    """Return an update with the small parameters of its matrices set to 0, about as many as requested.

    Matrices are the float tensors with at least two extents above 1; all others stay as they are. What stays and what
    does not is decided by one number, delta, for all of them: it is the least one that gives enough zeros.

    Parameters
    ----------
    update : mapping of str to ndarray
        Differences.
    ratio : float
        The part of the parameters of all matrices together that is to be 0, from 0 to 1.
    structured : bool
        False: a parameter is set to 0 whose magnitude is at most ``|mean| + delta * standard deviation`` of its tensor.
        True: so is a row, an index of the first dimension, whose mean magnitude is at most delta times the mean of
        those of all rows. Rows and parameters that are not finite stay.

    Returns
    -------
    dict of str to ndarray
        The same arrays, or new ones in which some parameters are 0.

    Raises
    ------
    EncodeError
        The ratio is not within 0 and 1.
    """
    if not 0 <= ratio <= 1:
        raise EncodeError(f"the ratio of zeros must be from 0 to 1, got {ratio}")
    found = matrices(update)
    return {**update, **(_rows if structured else _single)(found, missing(found.values(), ratio))}


def _single(tensors: Arrays, wanted: int) -> Arrays:
    """Return the matrices that change, with single parameters set to 0 by statistics."""
    found = thresholds(tensors, wanted)
    return {name: cleared(tensors[name], magnitudes(tensors[name]) <= found[name]) for name in found}


def _rows(tensors: Arrays, wanted: int, axes: Mapping[str, int] | None = None) -> Arrays:
    """Return the matrices that change, with rows set to 0: indices of the first dimension, or of that in ``axes``."""
    turned = {name: np.moveaxis(array, (axes or {}).get(name, 0), 0) for name, array in tensors.items()}
    found = small_rows(turned, wanted)
    out: dict[str, Array] = {}
    for name, rows in found.items():
        if rows.any():
            out[name] = np.array(tensors[name])
            np.moveaxis(out[name], (axes or {}).get(name, 0), 0)[rows] = 0
    return out
