"""Blocks of the topology as steps see them."""

from __future__ import annotations

from dataclasses import replace

from ...config import EncoderConfig
from ...model import Block, Model, Wiring

#: What a block has beside its weight.
MEMBERS = ("bias", "beta", "gamma", "mean", "var", "scale")


def members(block: Block) -> list[str]:
    """The tensors of a block beside its weight."""
    return [name for name in (getattr(block, member) for member in MEMBERS) if name is not None]


def whole(block: Block) -> Block:
    """A block as the topology knows it: without the form that a step gave its weight."""
    return replace(block, g=None, h=None, shape=None, two_units=False, corner=None)


def recognised(model: Model, wiring: Wiring) -> list[Block]:
    """The blocks of the topology whose tensors the model has, and in no other block."""
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
    """Whether these tensors may become others: nothing is tied to them, and no rule keeps them."""
    tied = {*model.aliases, *model.aliases.values()}
    kept = ((options := config.for_tensor(name)).exact or not options.reducible for name in names)
    return tied.isdisjoint(names) and not any(kept)
