"""What a step of parameter reduction takes and gives, and what all of them share (ISO/IEC 15938-17:2024, 5.2, 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol, get_type_hints

import numpy as np

from ...bitstream.performance import PerformanceMaps
from ...config import EncoderConfig
from ...dtypes import stored_type
from ...errors import EncodeError
from ...model import Array, Described, Model, Wiring
from ...reduction import Step
from ..changed import changed


@dataclass(frozen=True)
class Pruning:
    """What NNR_TPL_PRUN is to say (6.4.4.5, Table 19).

    Parameters
    ----------
    dims : mapping of str to tuple of int
        The new dimensions of the tensors that lost some of their indices.
    """

    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


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
    """

    model: Model
    restored: Model
    wiring: Wiring
    config: EncoderConfig
    maps: PerformanceMaps = field(default_factory=PerformanceMaps)
    pruning: Pruning | None = None

    def array(self, name: str) -> Array:
        """A tensor as it is now."""
        return np.asarray(self.model.tensors[name])

    def matrices(self, tensors: str = "*") -> list[str]:
        """Names of float tensors with at least two extents above 1 that steps may change, in the model's order.

        ``tensors`` are patterns of names, separated by ``|``. Not among them are tensors that a rule keeps
        (``reducible=false`` or ``exact=true``), and those that are tied to another one, which :meth:`replaced` follows.
        EncodeError where there is none.
        """
        found = [name for name in self.model.tensors if self._is_matrix(name) and matches(name, tensors)]
        if not found:
            raise EncodeError(f"there is no float matrix to reduce among the tensors {tensors!r}")
        return found

    def may_change(self, name: str) -> bool:
        """Whether no rule keeps a tensor, and it is not tied to another one."""
        options = self.config.for_tensor(name)
        return options.reducible and not options.exact and name not in self.model.aliases

    def replaced(self, others: Mapping[str, Array]) -> Reduced:
        """The same with other values of some tensors, those that are tied to them included."""
        tied = {name: others[source] for name, source in self.model.aliases.items() if source in others}
        others = {**others, **tied}
        return replace(
            self,
            model=replace(self.model, tensors=changed(self.model.tensors, others)),
            restored=replace(self.restored, tensors=changed(self.restored.tensors, others)),
        )

    def _is_matrix(self, name: str) -> bool:
        tensors = self.model.tensors
        known = (
            tensors.described(name) if isinstance(tensors, Described) else (tensors[name].dtype, tensors[name].shape)
        )
        stored = stored_type(known[0])
        is_float = stored is not None and stored.kind == "f"
        return is_float and 0 not in known[1] and sum(extent > 1 for extent in known[1]) > 1 and self.may_change(name)


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
            raise EncodeError(f"reduce: {step.tool} has no option {name!r}{there}")
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
        raise EncodeError(f"reduce: {what} takes {asked}") from None
    if not isinstance(value, str):
        raise EncodeError(f"reduce: {what} takes a text")
    return value


def within(name: str, value: float | None, low: float, high: float) -> None:
    """Check an option that may be left out; EncodeError for a value outside of ``low..high``."""
    if value is not None and not low <= value <= high:
        raise EncodeError(f"reduce: {name} {value} is outside {low:g}..{high:g}")
