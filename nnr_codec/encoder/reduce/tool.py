"""Interface and options of the tools of parameter reduction, and the blocks that they change."""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf
from typing import Any, Protocol, get_type_hints

from ...config import EncoderConfig
from ...errors import EncodeError, Option
from ...model import Block, Model, Wiring
from ...reduction_steps import Step
from ..prepared import Prepared, PruningInfo

#: Fields of Block with names of tensors other than the weight.
MEMBERS = ("bias", "beta", "gamma", "mean", "var", "scale")
#: Orders of the bits of a mask: by rows, by columns.
ORDERS = ("row", "column")


class ReductionTool(Protocol):
    """Frozen dataclass whose fields are the options of a step. Raises EncodeError for invalid values."""

    def apply(self, prepared: Prepared) -> Prepared:
        """Return the model after the step. Raises EncodeError if the step has no effect."""


def made(cls: type[Any], step: Step) -> ReductionTool:
    """Return the tool of a step; parse options by the types of its fields. Raises EncodeError for unknown options."""
    types, known = get_type_hints(cls), [option.name for option in fields(cls)]
    options = {}
    for name, value in step.options:
        if name not in known:
            there = f"; choose from {', '.join(known)}" if known else ""
            raise EncodeError(Option("reduce"), f": {step.tool} has no option {name!r}{there}")
        options[name] = _read(value, str(types[name]), f"{step.tool}({name}={value})")
    tool: ReductionTool = cls(**options)
    return tool


def _read(value: Any, kind: str, what: str) -> Any:
    """Return the value of an option, parsed from a text by the name of its type."""
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
        asked = "true or false" if "bool" in kind else "an integer" if "int" in kind else "a finite number"
        raise EncodeError(Option("reduce"), f": {what} must be {asked}") from None
    if not isinstance(value, str):
        raise EncodeError(Option("reduce"), f": {what} must be a string")
    return value


def within(name: str, value: float | None, low: float, high: float = inf) -> None:
    """Raise EncodeError for an optional value outside ``low..high``."""
    if value is not None and not low <= value <= high:
        where = f"less than {low:g}" if high == inf else f"outside {low:g}..{high:g}"
        raise EncodeError(Option("reduce"), f": {name} {value} is {where}")


def check_order(tool: str, order: str, *, has_mask: bool) -> None:
    """Raise EncodeError for an unknown order of bits, and for an order without a mask."""
    if order not in ORDERS:
        raise EncodeError(Option("reduce"), f": {tool} has no order {order!r}; choose from {', '.join(ORDERS)}")
    if order != ORDERS[0] and not has_mask:
        raise EncodeError(Option("reduce"), f": order requires {tool}(mask=true){' or form=mask' * (tool == 'prune')}")


def with_mask(prepared: Prepared, order: str) -> Prepared:
    """Return the model with a mask of its nonzero parameters; one order applies to all masks."""
    info = prepared.pruning or PruningInfo()
    return replace(prepared, pruning=replace(info, sparse=True, by_column=info.by_column or order == ORDERS[1]))


def members(block: Block) -> list[str]:
    """Return the tensors of a block except its weight."""
    return [name for name in (getattr(block, member) for member in MEMBERS) if name is not None]


def whole(block: Block) -> Block:
    """Return a block of the topology, without the decomposition of its weight by a step."""
    return replace(block, g=None, h=None, shape=None, two_units=False, corner=None)


def recognised(model: Model, wiring: Wiring) -> list[Block]:
    """Return the blocks of the topology whose tensors are all in the model, and in no other block."""
    taken = {name for block in model.blocks for name in (block.weight, block.g, block.h, *members(block))}
    taken |= model.aliases.keys()
    found = []
    for block in wiring.blocks:
        names = [block.weight, *members(block)]
        if len(names) > 1 and all(name in model.tensors and name not in taken for name in names):
            taken.update(names)
            found.append(block)
    return found


def may_change(names: list[str], model: Model, config: EncoderConfig) -> bool:
    """Return whether steps may change these tensors: no tensor is tied to them, and no rule excludes them."""
    tied = {*model.aliases, *model.aliases.values()}
    kept = ((options := config.for_tensor(name)).exact or not options.reducible for name in names)
    return tied.isdisjoint(names) and not any(kept)
