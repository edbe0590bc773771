"""What a step of parameter reduction takes and gives, and what all of them share (ISO/IEC 15938-17:2024, 5.2, 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from math import inf
from typing import Any, Protocol, get_type_hints

import numpy as np
import numpy.typing as npt

from ...bitstream.performance import PerformanceMaps
from ...config import EncoderConfig
from ...errors import EncodeError, Option
from ...model import Array, Block, Model, Wiring, described
from ...reduction_steps import Step
from ...tensor.reduction import from_displacement, product
from ..changed import changed
from .zeros import is_matrix


@dataclass(frozen=True)
class Pruning:
    """What NNR_TPL_PRUN is to say (6.4.4.5, Table 19).

    Parameters
    ----------
    dims : mapping of str to tuple of int
        The new dimensions of the tensors that lost some of their indices.
    sparse : bool
        A mask shall say which parameters are not 0 (sparse_flag), as they are when all steps are done.
    kept : mapping of str to tuple of ndarray
        Of each tensor of ``dims``, which of the indices that each dimension had are left, booleans.
    """

    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sparse: bool = False
    kept: Mapping[str, tuple[Array, ...]] = field(default_factory=dict, compare=False)

    def widened(self, tensors: Mapping[str, Array]) -> Mapping[str, Array]:
        """Tensors with the dimensions that they had, and 0 at the indices that they lost."""
        others = {}
        for name, masks in self.kept.items():
            if name in tensors:
                others[name] = np.zeros([len(mask) for mask in masks], described(tensors, name)[0])
                others[name][np.ix_(*masks)] = np.asarray(tensors[name])
        return changed(tensors, others)


@dataclass(frozen=True)
class Reduced:
    """A model on its way through the steps, with what its bitstream is to say of them.

    Parameters
    ----------
    model : Model
        What is coded.
    restored : Model
        What decoders restore, but for quantization: products of factors, without scales that are multiplied in.
    wiring : Wiring
        What the topology tells of the tensors.
    config : EncoderConfig
    maps : PerformanceMaps
        A map, with or without rows, for each kind of reduction that was applied (6.4.4.3).
    pruning : Pruning or None
    fitted : frozenset of str
        Weights that get scales by least squares when their levels are known.
    """

    model: Model
    restored: Model
    wiring: Wiring
    config: EncoderConfig
    maps: PerformanceMaps = field(default_factory=PerformanceMaps)
    pruning: Pruning | None = None
    fitted: frozenset[str] = frozenset()

    def array(self, name: str) -> Array:
        """A tensor as it is now."""
        return np.asarray(self.model.tensors[name])

    def matrices(self, tensors: str = "*") -> list[str]:
        """Names of float tensors with at least two extents above 1 that steps may change, in the model's order.

        ``tensors`` are patterns of names, separated by ``|``. Not among them are tensors that a rule keeps
        (``reducible=false`` or ``exact=true``), and those that are tied to another one, which :meth:`replaced` follows.
        EncodeError where there is none.
        """
        known = [name for name in self.model.tensors if matches(name, tensors)]
        known = [name for name in known if is_matrix(*described(self.model.tensors, name))]
        found = [name for name in known if self.may_change(name)]
        if not found:
            why = ": rules keep them, or they are tied to others" if known else ""
            raise EncodeError(Option("reduce"), f": there is no float matrix among the tensors {tensors!r}{why}")
        return found

    def may_change(self, name: str) -> bool:
        """Whether no rule keeps a tensor, and it is not tied to another one."""
        options = self.config.for_tensor(name)
        return options.reducible and not options.exact and name not in self.model.aliases

    def replaced(self, others: Mapping[str, Array]) -> Reduced:
        """The same with other values of some tensors, those that are tied to them and products of them included."""
        tied = {name: others[source] for name, source in self.model.aliases.items() if source in others}
        others = {**others, **tied}
        model = replace(self.model, tensors=changed(self.model.tensors, others))
        restored = dict(others)
        for block in decomposed(model, self.restored):
            factors = {name for name in (block.g, block.h) if name in restored}
            if factors:
                restored = {name: array for name, array in restored.items() if name not in factors}
                restored[block.weight] = product_of(block, model, self.restored.tensors[block.weight].dtype)
        return replace(
            self, model=model, restored=replace(self.restored, tensors=changed(self.restored.tensors, restored))
        )


def decomposed(model: Model, restored: Model) -> list[Block]:
    """The blocks whose weights a step decomposed: tensors that come out, but are not coded."""
    weights = (block for block in model.blocks if block.g is not None)
    return [block for block in weights if block.weight in restored.tensors and block.weight not in model.tensors]


def product_of(block: Block, model: Model, dtype: np.dtype[Any]) -> Array:
    """What decoders make of the G and the H of a block, in a type of floats."""
    g, h = (np.asarray(model.tensors[name or ""]) for name in (block.g, block.h))
    return weight_of(block, g, h, dtype)


def weight_of(block: Block, g: npt.NDArray[Any], h: npt.NDArray[Any], dtype: npt.DTypeLike) -> Array:
    """What decoders make of G and H, as they are coded, for the weight of a block with a type of floats."""
    shape = block.shape or (g.shape[0], h.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is no number
        found: npt.NDArray[np.floating[Any]] = product(g, h, shape).astype(g.dtype)
        if block.corner is not None:
            found = from_displacement(found.reshape(shape[0], -1), block.corner).reshape(shape)
        restored: Array = found.astype(dtype)
    return restored


class Tool(Protocol):
    """A frozen dataclass whose fields are the options of a step; EncodeError for values that mean nothing."""

    def apply(self, reduced: Reduced) -> Reduced:
        """The model after the step; EncodeError where there is nothing that it could do."""


def matches(name: str, tensors: str) -> bool:
    """Whether a name is one of those that patterns, separated by ``|``, stand for."""
    return any(fnmatchcase(name, pattern) for pattern in tensors.split("|"))


def made(cls: type[Any], step: Step) -> Tool:
    """The tool of a step, its options read by the types of its fields; EncodeError for others."""
    types, known = get_type_hints(cls), [option.name for option in fields(cls)]
    options = {}
    for name, value in step.options:
        if name not in known:
            there = f"; there {'are' if len(known) > 1 else 'is'} {', '.join(known)}" if known else ""
            raise EncodeError(Option("reduce"), f": {step.tool} has no option {name!r}{there}")
        options[name] = _read(value, str(types[name]), f"{step.tool}({name}={value})")
    tool: Tool = cls(**options)
    return tool


def _read(value: Any, kind: str, what: str) -> Any:
    """A value of an option whose type has such a name: text where that reads as one."""
    try:
        if "bool" in kind:
            return value if isinstance(value, bool) else {"true": True, "false": False}[value]
        if isinstance(value, bool):
            raise ValueError
        if "int" in kind:
            return int(value) if isinstance(value, str) else value.__index__()
        if "float" in kind:
            number = float(value)
            if number != number or number in (float("inf"), -float("inf")):
                raise ValueError
            return number
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        asked = "true or false" if "bool" in kind else "a whole number" if "int" in kind else "a finite number"
        raise EncodeError(Option("reduce"), f": {what} takes {asked}") from None
    if not isinstance(value, str):
        raise EncodeError(Option("reduce"), f": {what} takes a text")
    return value


def within(name: str, value: float | None, low: float, high: float = inf) -> None:
    """Check an option that may be left out; EncodeError for a value outside of ``low..high``."""
    if value is not None and not low <= value <= high:
        where = f"less than {low:g}" if high == inf else f"outside {low:g}..{high:g}"
        raise EncodeError(Option("reduce"), f": {name} {value} is {where}")
