"""Sparsification: sets small parameters, or rows or blocks of small parameters, to 0 (8.3.1, 8.3.2, 8.3.4, 8.3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...errors import EncodeError, Option
from ...model import Array
from ..prepared import Prepared
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
from .tool import ORDERS, check_order, with_mask, within

Arrays = Mapping[str, Array]

METHODS = ("magnitude", "statistics", "compressibility", "rows", "micro")
SCOPES = ("global", "local")
#: Default block: a complete kernel, so that zeros are consecutive in coding order.
KERNEL = "1x1"


@dataclass(frozen=True)
class Sparsify:
    """Sparsification: small parameters of matrices become 0.

    Parameters
    ----------
    ratio : float or None
        Share of the parameters of all matrices together that is 0 afterwards, 0 to 1.
    threshold : float or None
        Instead of ``ratio``: set parameters with a magnitude below it to 0 (sparsification_threshold, 6.4.4.3). Only
        for the methods ``magnitude`` and ``statistics``.
    method : str
        ``magnitude``: parameters of smallest magnitude. ``statistics``: parameters up to mean + delta * standard
        deviation of their tensor, with one delta for all tensors (8.3.4). ``compressibility``: parameters whose removal
        minimizes the loss of 8.3.1. ``rows``: indices of the outputs by mean magnitude (8.3.5). ``micro``: blocks by
        root mean square (8.3.2).
    scope : str
        ``global``: the ratio applies to all matrices together. ``local``: the ratio applies to each tensor.
    block, superblock : str
        For ``micro``: extents such as ``4x1x1`` in the three dimensions of :func:`reshaped`; an omitted extent at the
        end is the tensor's. With a superblock, the ratio applies to each superblock.
    mask : bool
        Also write the zeros as a mask in NNR_TPL_PRUN (Table 19).
    order : str
        Order of the bits of each tensor in the mask: ``row`` or ``column`` (order_flag).
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
    order: str = ORDERS[0]
    tensors: str = "*"

    AMOUNT: ClassVar[str] = "ratio"
    AMOUNTS: ClassVar[tuple[float, ...]] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9)

    def __post_init__(self) -> None:
        within("sparsify(ratio)", self.ratio, 0, 1)
        check_order("sparsify", self.order, has_mask=self.mask)
        within("sparsify(threshold)", self.threshold, 0, float(np.finfo(np.float32).max))
        for option, value, known in (("method", self.method, METHODS), ("scope", self.scope, SCOPES)):
            if value not in known:
                raise EncodeError(
                    Option("reduce"), f": sparsify has no {option} {value!r}; choose from {', '.join(known)}"
                )
        if self.threshold is not None and (self.ratio is not None or self.method not in METHODS[:2]):
            raise EncodeError(
                Option("reduce"), ": sparsify(threshold) requires method statistics or magnitude, without a ratio"
            )
        if (self.block or self.superblock) and self.method != "micro":
            raise EncodeError(Option("reduce"), ": block and superblock require sparsify(method=micro)")
        block, superblock = self._blocks
        if self.superblock:
            divided(block, superblock)

    def apply(self, prepared: Prepared) -> Prepared:
        """See :class:`~.tool.ReductionTool`. Raises EncodeError without a ratio or threshold, and without matrices."""
        if self.ratio is None and self.threshold is None:
            raise EncodeError(
                Option("reduce"), ": sparsify requires a ratio, such as sparsify(ratio=0.6), or a threshold"
            )
        before = {name: prepared.array(name) for name in prepared.matrices(self.tensors)}
        axes = {block.weight: block.axis for block in (*prepared.wiring.blocks, *prepared.model.blocks)}
        after: dict[str, Array] = {}
        for part in [before] if self.scope == "global" else [{name: array} for name, array in before.items()]:
            after |= self._sparse(part, axes)
        done = prepared.replaced(after).noting("sparsification", before)
        return with_mask(done, self.order) if self.mask else done

    @property
    def _blocks(self) -> tuple[Triple, Triple]:
        block = dimensions("sparsify(block)", self.block or KERNEL, whole=True)
        return block, dimensions("sparsify(superblock)", self.superblock or KERNEL, whole=True)

    def _sparse(self, tensors: Arrays, axes: Mapping[str, int]) -> Arrays:
        """Return the changed tensors."""
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
    """Return an update with small parameters of its matrices set to 0.

    Matrices are float tensors with at least two extents above 1; other tensors are unchanged. One number delta for all
    matrices determines which parameters are small: the smallest delta that gives the requested share of zeros.

    Parameters
    ----------
    update : mapping of str to ndarray
        Differences.
    ratio : float
        Minimum share of zeros among the parameters of all matrices together, 0 to 1.
    structured : bool, default False
        False: set a parameter to 0 if its magnitude is at most ``|mean| + delta * standard deviation`` of its tensor.
        True: set a row, an index of the first dimension, to 0 if its mean magnitude is at most delta times the average
        of all rows. Rows and parameters that are not finite are unchanged.

    Returns
    -------
    dict of str to ndarray
        Unchanged arrays, and copies of the changed ones.

    Raises
    ------
    EncodeError
        The ratio is outside 0 to 1.
    """
    if not 0 <= ratio <= 1:
        raise EncodeError(f"the ratio of zeros must be from 0 to 1, got {ratio}")
    found = matrices(update)
    return {**update, **(_rows if structured else _single)(found, missing(found.values(), ratio))}


def _single(tensors: Arrays, wanted: int) -> Arrays:
    """Return the changed matrices, with single parameters set to 0 by statistics."""
    found = thresholds(tensors, wanted)
    return {name: cleared(tensors[name], magnitudes(tensors[name]) <= found[name]) for name in found}


def _rows(tensors: Arrays, wanted: int, axes: Mapping[str, int] | None = None) -> Arrays:
    """Return the changed matrices, with rows (indices of the first dimension, or of the one in ``axes``) set to 0."""
    turned = {name: np.moveaxis(array, (axes or {}).get(name, 0), 0) for name, array in tensors.items()}
    found = small_rows(turned, wanted)
    out: dict[str, Array] = {}
    for name, rows in found.items():
        if rows.any():
            out[name] = np.array(tensors[name])
            np.moveaxis(out[name], (axes or {}).get(name, 0), 0)[rows] = 0
    return out
