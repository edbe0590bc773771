"""Decomposition of weights into products of two matrices G and H: low rank, low displacement rank (8.3.7, 7.3.5).

Low rank: truncated singular value decompositions of weights as matrices (Denton and others, 2014; Eckart and Young).
The rank is chosen by the error, by a threshold over all singular values, or by rate and distortion. Low displacement
rank: f-circulant displacement (Kailath and others, 1979; Sindhwani and others, 2015), W - Z W Zf^T = G H.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod, sqrt
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...config import EncoderConfig
from ...dtypes import stored_type
from ...errors import EncodeError, Option
from ...model import Array, Block, described
from ...sideinfo.record import default_unit
from ...tensor.reduction import displacement, from_displacement
from ..default_step import default_step, qp_below
from ..factor_steps import Factors, gain_of
from ..facts import FLOAT_FORMATS, TensorFacts, fits_name, native, tensor_facts
from ..goals import excerpt, has_goal, resolve_goals, usual_qp, with_density
from ..overlay import overlaid, with_factors
from ..planning import RATES, plan_tensor
from ..prepared import Prepared, product_of
from ..rate_distortion import distortion, estimated_bytes, power
from ..tensor_tasks import Pool, TensorReader
from .tool import members, within

Floats = npt.NDArray[np.float64]

#: Vectors and factors are rounded to this fraction of the largest magnitude, which hides differences between LAPACKs.
GRID = 2.0**-20
#: Corners of displacements that are tried: Toeplitz-like, circulant, skew-circulant matrices.
CORNERS = (0, 1, -1)
#: Ratio between ranks that are tried by rate and distortion, and for displacements.
GROWTH = 1.25
#: Maximum number of increments of a rank if rounding of G and H makes the error too large.
TRIES = 4
#: The largest magnitude of a weight must be between this and its inverse to be decomposed: squares then stay finite.
LEAST = 2.0**-400
FORMS = ("block", "units")


@dataclass(frozen=True)
class Decompose:
    """Decomposition of each weight into two matrices if these have fewer parameters.

    At most one of ``error``, ``mse``, ``ratio``, ``rank`` and ``rate`` may be given; default: ``rate=1``.

    Parameters
    ----------
    error : float or None
        Maximum relative error of each tensor: root of the sum of squared errors divided by the root of the sum of
        squares.
    mse : float or None
        Maximum mean squared error of each tensor: mse_threshold of the decomposition performance map.
    ratio : float or None
        Maximum number of parameters of these tensors relative to their number before; ranks minimize the total error.
    rank : int or None
        Maximum rank of each tensor.
    rate : float or None
        Decompose a weight if that reduces the sum of squared error and cost of bits in the encoder's rate model. The
        value is the cost of a bit relative to the usual one.
    form : str
        ``block``: G and H in one NNR_PT_BLOCK. ``units``: in two units of NNR_PT_FLOAT; always used if a reference list
        may contain only labels of a topology (``indexed_references``, A.4).
    displacement : bool
        Code the displacement of a weight instead, if it has fewer parameters at the same error. Only decoders that
        support side information of version 2 restore the weight.
    tensors : str
        Patterns of names, separated by ``|``.
    """

    AMOUNT: ClassVar[str] = "ratio"
    AMOUNTS: ClassVar[tuple[float, ...]] = (0.85, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12)

    error: float | None = None
    mse: float | None = None
    ratio: float | None = None
    rank: int | None = None
    rate: float | None = None
    form: str = FORMS[0]
    displacement: bool = False
    tensors: str = "*"

    def __post_init__(self) -> None:
        within("lowrank(error)", self.error, 0, 1)
        within("lowrank(mse)", self.mse, 0)
        within("lowrank(ratio)", self.ratio, 0, 1)
        within("lowrank(rank)", self.rank, 1)
        within("lowrank(rate)", self.rate, 0, 1000)
        amounts = {name: getattr(self, name) for name in ("error", "mse", "ratio", "rank", "rate")}
        if len(given := [name for name, value in amounts.items() if value is not None]) > 1:
            raise EncodeError(
                Option("reduce"), f": lowrank requires one of {', '.join(amounts)}, got {' and '.join(given)}"
            )
        if self.form not in FORMS:
            raise EncodeError(Option("reduce"), f": lowrank has no form {self.form!r}; choose from {', '.join(FORMS)}")

    def apply(self, prepared: Prepared) -> Prepared:
        """See :class:`~.tool.ReductionTool`. Weights stay unchanged if their product does not have fewer parameters.

        Raises EncodeError with a fixed-point format, without matrices, and for displacements without side information.
        """
        if prepared.config.fixed_point is not None:
            raise EncodeError(Option("reduce"), ": lowrank creates products, which are not fixed-point numbers")
        if self.displacement and not prepared.config.side_info:
            raise EncodeError(Option("reduce"), ": lowrank(displacement=true) requires side information")
        names = [name for name in prepared.matrices(self.tensors) if _decomposable(name, prepared)]
        pairs = self._chosen((weight for name in names if (weight := _Weight.of(name, prepared.array(name)))), prepared)
        listed = prepared.config.indexed_references and prepared.model.topology is not None  # H has no name then (A.4)
        return _decomposed(prepared, pairs, listed or self.form == "units") if pairs else prepared

    def _chosen(self, weights: Iterable[_Weight], prepared: Prepared) -> dict[str, _Pair]:
        """Return G and H of the decomposed weights. A ratio needs all weights in memory at once."""
        ranks: Mapping[str, int] = {}
        if self.ratio is not None:
            weights = list(weights)
            ranks = _ranks(weights, self.ratio)
        has_amount = any(amount is not None for amount in (self.error, self.mse, self.ratio, self.rank))
        plain = None if has_amount else _Plain(prepared)
        found = {}
        for one in weights:
            if plain:
                pair = self._cheapest(one, plain)
            elif self.error is not None or self.mse is not None:
                most = self.error**2 * one.energy if self.error is not None else (self.mse or 0.0) * one.matrix.size
                pair = one.within(most)
                pair = one.displaced(most, pair) if self.displacement else pair
            else:
                pair = self._of_rank(one, ranks[one.name] if self.rank is None else self.rank)
            if pair and _has_steps(one, pair, prepared.config):
                found[one.name] = pair
        return found

    def _of_rank(self, weight: _Weight, rank: int) -> _Pair | None:
        """Return the pair for a rank, or a pair for a displacement with fewer parameters and no larger error."""
        pair = weight.pair(rank)
        return weight.displaced(pair.squared, pair) if pair and self.displacement else pair

    def _cheapest(self, weight: _Weight, plain: _Plain) -> _Pair | None:
        """Return the pair with the lowest sum of squared error and cost of bits; None if the weight has a lower sum."""
        whole = plain.facts(weight.name)
        plan = plan_tensor(whole, in_block=True)  # the requested step, even if another coding is smaller
        if not plan.step:
            return None
        worth = (1.0 if self.rate is None else self.rate) * (plan.rate or RATES[bool(plan.dq_flag)]) * plan.step**2
        noise, nbytes = _estimated(replace(whole, options=replace(whole.options, qp=plan.qp)))
        least, best = noise + worth * 8 * nbytes, None
        for rank in _ladder(weight.most):
            pair = self._of_rank(weight, rank)
            if pair is None or pair.squared >= least:
                continue
            cost = pair.squared
            for own, each in zip(pair.facts(weight.name, plan.qp, plain.config), pair.factors.costs, strict=True):
                noise, nbytes = _estimated(own, in_block=True)
                cost += each * noise + worth * 8 * nbytes
            if cost < least:
                least, best = cost, pair
        return best


class _Plain:
    """Weights before decomposition, with their step sizes without a size target."""

    def __init__(self, prepared: Prepared) -> None:
        config, model = replace(prepared.config, target_size=None, target_ratio=None), prepared.model
        with Pool() as pool:
            self.config = resolve_goals(model, config, TensorReader(model), pool, restored=prepared.restored)
        self._model = model

    def facts(self, name: str) -> TensorFacts:
        """Return the facts about a weight."""
        return tensor_facts(name, native(np.asarray(self._model.tensors[name])), self.config)


def _estimated(whole: TensorFacts, in_block: bool = False) -> tuple[float, float]:
    """Estimate the sum of the squared errors of a tensor, and its bytes."""
    some = excerpt(whole)
    plan, share = plan_tensor(some, in_block=in_block), whole.array.size / some.array.size
    return share * distortion(some, plan).noise, share * estimated_bytes(some, plan)


def _has_steps(weight: _Weight, pair: _Pair, config: EncoderConfig) -> bool:
    """Return whether G and H can be quantized with the given step size, or with a usual one if a goal determines it."""
    options, qp = config.for_tensor(weight.name), config.for_tensor(weight.name).qp
    if has_goal(options) or config.target_size is not None or config.target_ratio is not None:
        config, qp = with_density(config), usual_qp([(weight.energy, weight.matrix.size)])
    elif qp is None:
        rows, columns = weight.matrix.shape
        step = default_step(sqrt(weight.energy / (rows * columns)), columns, dependent=True)
        qp = qp_below(step, config.qp_density)
    return all(plan_tensor(one, in_block=True).step for one in pair.facts(weight.name, qp, config))


def _ladder(most: int) -> Iterator[int]:
    """Yield increasing ranks from 1."""
    rank = 1
    while rank <= most:
        yield rank
        rank = max(rank + 1, int(rank * GROWTH))


# ------------------------------------------------------------------------------------------------ one weight
@dataclass(frozen=True)
class _Pair:
    """G and H of a weight."""

    g: Array  # in the coded type, like h
    h: Array
    squared: float  # sum of the squared errors of the weight
    corner: int | None = None  # see nnr_codec.model.Block

    @property
    def parameters(self) -> int:
        """Number of parameters of G and H."""
        return int(self.g.size + self.h.size)

    @property
    def factors(self) -> Factors:
        """Sums of squares that determine the step sizes of G and H."""
        (rows, rank), columns = self.g.shape, self.h.shape[1]
        g, h = (power(np.asarray(array, np.float64)) for array in (self.g, self.h))
        return Factors(g, h, rows, columns, rank, gain_of(rows, columns, self.corner))

    def facts(self, name: str, qp: int, config: EncoderConfig) -> list[TensorFacts]:
        """Return the facts about G and H, with step sizes derived from the step size of the weight with this name."""
        found = []
        for array, own in zip((self.g, self.h), self.factors.qps(qp, config.qp_density), strict=True):
            facts = tensor_facts(name, array, config)
            options = facts.options.replaced({"qp": own, "fine_vectors": False, "codebook": 0})
            found.append(replace(facts, options=options))
        return found


@dataclass(frozen=True)
class _Weight:
    """Weight reshaped to a matrix: dimensions are split so that it is nearest to a square."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # of G and H
    matrix: Floats  # shape (rows, columns)
    basis: _Basis

    @classmethod
    def of(cls, name: str, array: Array) -> _Weight | None:
        """Return the basis of a matrix of finite numbers."""
        stored = stored_type(array.dtype)
        if stored is None:
            return None
        with np.errstate(invalid="ignore"):  # signalling NaN become quiet NaN
            wide = np.asarray(array, np.float64)
        largest = float(np.abs(wide).max())
        if not LEAST < largest < 1 / LEAST:  # comparisons with NaN are false
            return None
        split = min(range(1, array.ndim), key=lambda k: prod(array.shape[:k]) + prod(array.shape[k:]))
        matrix = wide.reshape(prod(array.shape[:split]), -1)
        dtype = np.dtype(stored.name if stored.name in FLOAT_FORMATS else np.float32)
        return cls(name, array.shape, dtype, matrix, _Basis.of(matrix))

    @property
    def energy(self) -> float:
        """Sum of squares."""
        return power(self.matrix)

    @property
    def most(self) -> int:
        """Largest rank at which G and H have fewer parameters than the weight."""
        rows, columns = self.matrix.shape
        return int((rows * columns - 1) // (rows + columns))

    @cached_property
    def _moved(self) -> list[tuple[int, Floats, _Basis]]:
        """Corner, displacement and singular vectors for each corner."""
        moved = [(corner, displacement(self.matrix, corner)) for corner in CORNERS]
        return [(corner, one, _Basis.of(one)) for corner, one in moved]

    def pair(self, rank: int) -> _Pair | None:
        """Return G and H for a rank; None if they save no parameters or the type overflows."""
        rank = min(rank, self.basis.rank)
        return self._made(self.matrix, self.basis, rank, None) if rank <= self.most else None

    def within(self, most: float) -> _Pair | None:
        """Return the pair of the lowest rank with a limited sum of squared errors, or None."""
        rank, more = max(int(np.count_nonzero(self.basis.tails > most)), 1), 1
        for _ in range(TRIES):
            pair = self.pair(rank)
            if pair is None or pair.squared <= most:
                return pair
            rank, more = rank + more, 2 * more
        return None

    def displaced(self, most: float, other: _Pair | None) -> _Pair | None:
        """Return G and H of a displacement with a limited error if they have fewer parameters than ``other``.

        Otherwise returns ``other``.
        """
        best, both = other, sum(self.matrix.shape)
        if len(self.matrix) != self.shape[0]:
            return best
        for corner, moved, basis in self._moved:
            fewer = (best.parameters if best else self.matrix.size) - 1
            for rank in _ladder(min(fewer // both, basis.rank)):
                pair = self._made(moved, basis, rank, corner)
                if pair and pair.squared <= most:
                    best = pair
                    break
        return best

    def _made(self, matrix: Floats, basis: _Basis, rank: int, corner: int | None) -> _Pair | None:
        """Return G and H of the weight, or of its displacement."""
        g, h = basis.factors(matrix, rank)
        with np.errstate(over="ignore"):  # results are checked
            factors = g.astype(self.dtype), h.astype(self.dtype)
            found = (factors[0].astype(np.float64) @ factors[1].astype(np.float64)).astype(self.dtype)
        if not all(np.isfinite(array).all() for array in (*factors, found)):
            return None
        errors = self.matrix - (found if corner is None else from_displacement(found, corner))
        return _Pair(*factors, power(errors), corner) if np.isfinite(errors).all() else None


@dataclass(frozen=True)
class _Basis:
    """Singular vectors on the shorter side of a matrix, and its singular values."""

    vectors: Floats  # columns by descending value, on a grid, largest component positive; shape (n, n)
    values: Floats  # shape (n,)
    tails: Floats  # for each rank from 0, sum of squares of the omitted values; shape (n,)
    is_left: bool

    @classmethod
    def of(cls, matrix: Floats) -> _Basis:
        """Return the basis of a matrix of finite numbers."""
        is_left = matrix.shape[0] <= matrix.shape[1]
        squares, vectors = np.linalg.eigh(matrix @ matrix.T if is_left else matrix.T @ matrix)
        squares, vectors = np.maximum(squares[::-1], 0.0), _on_grid(vectors[:, ::-1])
        largest = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[None], axis=0)
        tails = np.cumsum(squares[::-1])[::-1]
        return cls(np.where(largest < 0, -vectors, vectors), np.sqrt(squares), tails, is_left)

    @property
    def rank(self) -> int:
        """Number of singular values above rounding errors; vectors of the other values are arbitrary."""
        return int(np.count_nonzero(self.values > self.values[0] * GRID))

    def factors(self, matrix: Floats, rank: int) -> tuple[Floats, Floats]:
        """Return G and H of a rank whose product approximates the matrix.

        Each singular value is split into two powers in the ratio m to n for an (m, n) matrix: this minimizes the bits
        of G and H at high rates, with one step size for each.
        """
        some = self.vectors[:, :rank]
        target = matrix if self.is_left else matrix.T
        other = np.linalg.solve(some.T @ some, some.T @ target)
        rows, columns = matrix.shape
        share = (rows if self.is_left else columns) / (rows + columns)
        scales = self.values[:rank] ** share
        g, h = _on_grid(some * scales), _on_grid(other / scales[:, None])
        return (g, h) if self.is_left else (h.T, g.T)


def _on_grid(array: Floats) -> Floats:
    """Round values to multiples of a power of two, a small fraction of the largest magnitude."""
    largest = float(np.abs(array).max())
    if not largest:
        return array
    step = np.ldexp(GRID, int(np.frexp(largest)[1]))
    found: Floats = np.rint(array / step) * step
    return found


# ------------------------------------------------------------------------------------------------ all weights
def _ranks(weights: Sequence[_Weight], ratio: float) -> dict[str, int]:
    """Return the ranks with the lowest total error for a ratio of parameters; above ``most``: not decomposed."""
    budget = ratio * sum(one.matrix.size for one in weights)

    def at(level: float) -> list[int]:
        """Return the ranks up to which each parameter reduces the errors by at least the level."""
        return [_rank(one, level) for one in weights]

    def taken(ranks: Sequence[int]) -> int:
        return sum(_parameters(one, rank) for one, rank in zip(weights, ranks, strict=True))

    low, high = 0.0, max((one.energy for one in weights), default=0.0) + 1.0
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (low, middle) if taken(at(middle)) <= budget else (middle, high)
    ranks = at(high)
    left = budget - taken(ranks)
    while True:  # remaining parameters: increment the rank with the largest gain
        gains = [
            (float(one.basis.values[rank]) ** 2 / sum(one.matrix.shape), -k)
            for k, (one, rank) in enumerate(zip(weights, ranks, strict=True))
            if rank < one.most and sum(one.matrix.shape) <= left
        ]
        if not gains:
            return {one.name: rank for one, rank in zip(weights, ranks, strict=True)}
        k = -max(gains)[1]
        ranks[k] += 1
        left -= sum(weights[k].matrix.shape)


def _parameters(weight: _Weight, rank: int) -> int:
    return rank * sum(weight.matrix.shape) if rank <= weight.most else weight.matrix.size


def _rank(weight: _Weight, level: float) -> int:
    """Return the rank that minimizes the sum of squared errors and parameters times level."""
    if not weight.most:
        return 1
    gains = weight.basis.values[: weight.most] ** 2
    rank = max(int(np.count_nonzero(gains > level * sum(weight.matrix.shape))), 1)
    saved = level * (weight.matrix.size - _parameters(weight, rank))
    return rank if float(weight.basis.tails[rank]) < saved else weight.most + 1


# ------------------------------------------------------------------------------------------------ the model
def _decomposable(name: str, prepared: Prepared) -> bool:
    """Return whether blocks, options and names permit coding a weight as a product of two tensors."""
    model, config = prepared.model, prepared.config
    if name in model.aliases.values() or name in (config.sensitivity or ()) or name in (config.hessians or ()):
        return False
    for block in model.blocks:
        if name in (block.g, block.h, *members(block)):
            return False
        if name == block.weight and block.scale is not None and block.scale not in prepared.wiring.shapes:
            return False
    taken = {other.casefold() for other in (*model.tensors, *prepared.wiring.shapes)}
    new = (f"{name}_H", default_unit(name), f"{default_unit(name)}_H", *_names(name))
    return not config.for_tensor(name).codebook and not any(
        other.casefold() in taken or not fits_name(other) for other in new
    )


def _names(name: str) -> tuple[str, str]:
    """Return the names of G and H of a weight before coding."""
    return f"{name}.G", f"{name}.H"


def _decomposed(prepared: Prepared, pairs: Mapping[str, _Pair], two_units: bool) -> Prepared:
    """Return the model with G and H instead of the decomposed weights."""
    model = prepared.model
    blocks = {block.weight: block for block in model.blocks}
    for name, pair in pairs.items():
        g, h = _names(name)
        block = blocks.get(name, Block(name))
        if two_units or pair.corner is not None or block.axis:
            block = Block(name)  # the other tensors of the block become separate
        shape = described(model.tensors, name)[1]
        blocks[name] = replace(block, g=g, h=h, shape=shape, two_units=two_units, corner=pair.corner)
    tensors = {name: dict(zip(_names(name), (pair.g, pair.h), strict=True)) for name, pair in pairs.items()}
    coded = replace(model, tensors=with_factors(model.tensors, tensors), blocks=list(blocks.values()))
    products = {name: product_of(blocks[name], coded, described(model.tensors, name)[0]) for name in pairs}
    restored = replace(prepared.restored, tensors=overlaid(prepared.restored.tensors, products))
    return replace(prepared, model=coded, restored=restored).noting("decomposition", pairs)
