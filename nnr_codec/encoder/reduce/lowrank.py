"""Low rank and low displacement rank: weights as products of two matrices G and H (8.3.7, 7.3.5).

Truncated singular value decompositions of weights as matrices (Denton and others, 2014; Eckart and Young), with ranks
by error, by a water level over all singular values, or by rate and distortion; f-circulant displacement (Kailath and
others, 1979; Sindhwani and others, 2015), W - Z W Zf^T = G H.
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

#: Grid of vectors and factors relative to their largest magnitude: it hides the last bits of LAPACK.
GRID = 2.0**-20
#: The corners of displacements that are tried: Toeplitz-like, circulant, skew-circulant matrices.
CORNERS = (0, 1, -1)
#: Ratio of ranks that are tried by rate and distortion, and of displacements.
GROWTH = 1.25
#: Upper bound of raises of a rank, where rounding of G and H makes the error too large.
TRIES = 4
#: Least largest magnitude of a weight that is decomposed; its inverse is the greatest: squares stay finite.
LEAST = 2.0**-400
FORMS = ("block", "units")


@dataclass(frozen=True)
class Decompose:
    """Take weights apart into two matrices wherever these have fewer parameters.

    Of ``error``, ``mse``, ``ratio``, ``rank`` and ``rate`` there may be one; without any it is ``rate=1``.

    Parameters
    ----------
    error : float or None
        Of each tensor, at most: the root of the squared errors' sum, relative to that of the squares of its values.
    mse : float or None
        The mean squared error of each tensor, at most: mse_threshold of the decomposition performance map.
    ratio : float or None
        The parameters of these tensors, relative to their number before, at most; ranks are such that errors are least.
    rank : int or None
        Of each tensor, at most.
    rate : float or None
        Decompose where the sum of squared error and bits is less than without, as the encoder's model of rates has it:
        worth of a bit relative to the usual one.
    form : str
        ``block``: G and H in one NNR_PT_BLOCK; ``units``: in two units of NNR_PT_FLOAT, as they always are where ids
        are in a list that has labels of a topology alone (``indexed_references``, A.4).
    displacement : bool
        Where the displacement of a weight has so low a rank that it takes fewer parameters at the same error, code
        that; only decoders that know side information of version 2 make the weight of it.
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
            raise EncodeError(Option("reduce"), f": lowrank(form={self.form}): choose from {', '.join(FORMS)}")

    def apply(self, prepared: Prepared) -> Prepared:
        """See :class:`~.tool.ReductionTool`; what has no fewer parameters as a product stays.

        EncodeError with fixed-point numbers, without matrices, and for displacements without side information.
        """
        if prepared.config.fixed_point is not None:
            raise EncodeError(Option("reduce"), ": lowrank creates products, which are not fixed-point numbers")
        if self.displacement and not prepared.config.side_info:
            raise EncodeError(Option("reduce"), ": lowrank(displacement=true) requires side information")
        names = [name for name in prepared.matrices(self.tensors) if _decomposable(name, prepared)]
        pairs = self._chosen((weight for name in names if (weight := _Weight.of(name, prepared.array(name)))), prepared)
        listed = prepared.config.indexed_references and prepared.model.topology is not None  # where H has no name (A.4)
        return _decomposed(prepared, pairs, listed or self.form == "units") if pairs else prepared

    def _chosen(self, weights: Iterable[_Weight], prepared: Prepared) -> dict[str, _Pair]:
        """Return G and H of the weights that are decomposed; a ratio needs all weights in memory at once."""
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
        """Return the pair of a rank, or one of a displacement with fewer parameters and no greater error."""
        pair = weight.pair(rank)
        return weight.displaced(pair.squared, pair) if pair and self.displacement else pair

    def _cheapest(self, weight: _Weight, plain: _Plain) -> _Pair | None:
        """Return the pair of the least sum of squared error and bits; None where that of the weight itself is less."""
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
    """The weights before, with the steps that they would have: without a target, where there is one."""

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
    """Return whether G and H can be quantized with the given step, or with a usual one where a goal decides."""
    options, qp = config.for_tensor(weight.name), config.for_tensor(weight.name).qp
    if has_goal(options) or config.target_size is not None or config.target_ratio is not None:
        config, qp = with_density(config), usual_qp([(weight.energy, weight.matrix.size)])
    elif qp is None:
        rows, columns = weight.matrix.shape
        step = default_step(sqrt(weight.energy / (rows * columns)), columns, dependent=True)
        qp = qp_below(step, config.qp_density)
    return all(plan_tensor(one, in_block=True).step for one in pair.facts(weight.name, qp, config))


def _ladder(most: int) -> Iterator[int]:
    """Yield ranks from 1 on, each a little larger than the one before."""
    rank = 1
    while rank <= most:
        yield rank
        rank = max(rank + 1, int(rank * GROWTH))


# ------------------------------------------------------------------------------------------------ one weight
@dataclass(frozen=True)
class _Pair:
    """G and H of a weight."""

    g: Array  # in the type that is coded, like h
    h: Array
    squared: float  # sum of the squared errors of the weight
    corner: int | None = None  # see nnr_codec.model.Block

    @property
    def parameters(self) -> int:
        """Parameters of both."""
        return int(self.g.size + self.h.size)

    @property
    def factors(self) -> Factors:
        """The sums of squares from which their steps follow."""
        (rows, rank), columns = self.g.shape, self.h.shape[1]
        g, h = (power(np.asarray(array, np.float64)) for array in (self.g, self.h))
        return Factors(g, h, rows, columns, rank, gain_of(rows, columns, self.corner))

    def facts(self, name: str, qp: int, config: EncoderConfig) -> list[TensorFacts]:
        """Return the facts about G and H, with the steps that follow from that of the weight with this name."""
        found = []
        for array, own in zip((self.g, self.h), self.factors.qps(qp, config.qp_density), strict=True):
            facts = tensor_facts(name, array, config)
            options = facts.options.replaced({"qp": own, "fine_vectors": False, "codebook": 0})
            found.append(replace(facts, options=options))
        return found


@dataclass(frozen=True)
class _Weight:
    """A weight as a matrix: of all that its dimensions can be split into, the one nearest to a square."""

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
        with np.errstate(invalid="ignore"):  # signalling not-a-numbers become quiet ones
            wide = np.asarray(array, np.float64)
        largest = float(np.abs(wide).max())
        if not LEAST < largest < 1 / LEAST:  # no comparison with a not-a-number is true
            return None
        split = min(range(1, array.ndim), key=lambda k: prod(array.shape[:k]) + prod(array.shape[k:]))
        matrix = wide.reshape(prod(array.shape[:split]), -1)
        dtype = np.dtype(stored.name if stored.name in FLOAT_FORMATS else np.float32)
        return cls(name, array.shape, dtype, matrix, _Basis.of(matrix))

    @property
    def energy(self) -> float:
        """The sum of the squares."""
        return power(self.matrix)

    @property
    def most(self) -> int:
        """The greatest rank at which G and H have fewer parameters."""
        rows, columns = self.matrix.shape
        return int((rows * columns - 1) // (rows + columns))

    @cached_property
    def _moved(self) -> list[tuple[int, Floats, _Basis]]:
        """The displacements, by their corners."""
        moved = [(corner, displacement(self.matrix, corner)) for corner in CORNERS]
        return [(corner, one, _Basis.of(one)) for corner, one in moved]

    def pair(self, rank: int) -> _Pair | None:
        """Return G and H of a rank, or of the matrix's own; None for more parameters, or if the type overflows."""
        rank = min(rank, self.basis.rank)
        return self._made(self.matrix, self.basis, rank, None) if rank <= self.most else None

    def within(self, most: float) -> _Pair | None:
        """Return the pair of the least rank with a sum of squared errors of at most this; None where there is none."""
        rank, more = max(int(np.count_nonzero(self.basis.tails > most)), 1), 1
        for _ in range(TRIES):
            pair = self.pair(rank)
            if pair is None or pair.squared <= most:
                return pair
            rank, more = rank + more, 2 * more
        return None

    def displaced(self, most: float, other: _Pair | None) -> _Pair | None:
        """Return G and H of a displacement with at most this error, if they have fewer parameters than ``other``.

        Otherwise that pair is returned.
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
        with np.errstate(over="ignore"):  # what does not fit is looked at
            factors = g.astype(self.dtype), h.astype(self.dtype)
            found = (factors[0].astype(np.float64) @ factors[1].astype(np.float64)).astype(self.dtype)
        if not all(np.isfinite(array).all() for array in (*factors, found)):
            return None
        errors = self.matrix - (found if corner is None else from_displacement(found, corner))
        return _Pair(*factors, power(errors), corner) if np.isfinite(errors).all() else None


@dataclass(frozen=True)
class _Basis:
    """Singular vectors of a matrix on its shorter side, and its singular values."""

    vectors: Floats  # columns by descending value, on a grid, largest component positive; shape (n, n)
    values: Floats  # shape (n,)
    tails: Floats  # for each rank from 0 on, the sum of the squares of the values left out; shape (n,)
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
        """Number of singular values above rounding errors: vectors of others are arbitrary."""
        return int(np.count_nonzero(self.values > self.values[0] * GRID))

    def factors(self, matrix: Floats, rank: int) -> tuple[Floats, Floats]:
        """Return G and H of a rank, whose product is next to the matrix.

        A singular value is shared so that its powers are as m to n in an (m, n) matrix: then the bits of both, with
        one step for each, are least at high rates.
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
    """Return the nearest multiples of a small part of the largest magnitude, a power of two."""
    largest = float(np.abs(array).max())
    if not largest:
        return array
    step = np.ldexp(GRID, int(np.frexp(largest)[1]))
    found: Floats = np.rint(array / step) * step
    return found


# ------------------------------------------------------------------------------------------------ all weights
def _ranks(weights: Sequence[_Weight], ratio: float) -> dict[str, int]:
    """Return the ranks of the least sum of squared errors with so many of the parameters; beyond ``most``: as it is."""
    budget = ratio * sum(one.matrix.size for one in weights)

    def at(level: float) -> list[int]:
        """Return ranks in which each parameter makes the errors less by as much as the level, or more."""
        return [_rank(one, level) for one in weights]

    def taken(ranks: Sequence[int]) -> int:
        return sum(_parameters(one, rank) for one, rank in zip(weights, ranks, strict=True))

    low, high = 0.0, max((one.energy for one in weights), default=0.0) + 1.0
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (low, middle) if taken(at(middle)) <= budget else (middle, high)
    ranks = at(high)
    left = budget - taken(ranks)
    while True:  # the rest goes to weights that gain most by one rank more
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
    """Return the rank of the least sum of squared errors and parameters, each of which is worth a level."""
    if not weight.most:
        return 1
    gains = weight.basis.values[: weight.most] ** 2
    rank = max(int(np.count_nonzero(gains > level * sum(weight.matrix.shape))), 1)
    saved = level * (weight.matrix.size - _parameters(weight, rank))
    return rank if float(weight.basis.tails[rank]) < saved else weight.most + 1


# ------------------------------------------------------------------------------------------------ the model
def _decomposable(name: str, prepared: Prepared) -> bool:
    """Return whether a weight can be a product of two tensors, by its blocks, options and names."""
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
    """Return the names of G and H of a weight until they are coded."""
    return f"{name}.G", f"{name}.H"


def _decomposed(prepared: Prepared, pairs: Mapping[str, _Pair], two_units: bool) -> Prepared:
    """Return the model with G and H in the places of some weights."""
    model = prepared.model
    blocks = {block.weight: block for block in model.blocks}
    for name, pair in pairs.items():
        g, h = _names(name)
        block = blocks.get(name, Block(name))
        if two_units or pair.corner is not None or block.axis:
            block = Block(name)  # the others of it stand apart
        shape = described(model.tensors, name)[1]
        blocks[name] = replace(block, g=g, h=h, shape=shape, two_units=two_units, corner=pair.corner)
    tensors = {name: dict(zip(_names(name), (pair.g, pair.h), strict=True)) for name, pair in pairs.items()}
    coded = replace(model, tensors=with_factors(model.tensors, tensors), blocks=list(blocks.values()))
    products = {name: product_of(blocks[name], coded, described(model.tensors, name)[0]) for name in pairs}
    restored = replace(prepared.restored, tensors=overlaid(prepared.restored.tensors, products))
    return replace(prepared, model=coded, restored=restored, maps=prepared.maps.noting("decomposition"))
