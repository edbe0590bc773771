"""Blocks of the topology as steps see them."""

from __future__ import annotations

from ...config import EncoderConfig
from ...model import Block, Model, Wiring

#: What a block has beside its weight.
MEMBERS = ("bias", "beta", "gamma", "mean", "var", "scale")


def members(block: Block) -> list[str]:
    """The tensors of a block beside its weight."""
    return [name for name in (getattr(block, member) for member in MEMBERS) if name is not None]


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
    """Whether these tensors may become others: nothing is tied to them, nor are they to be kept bit for bit."""
    tied = {*model.aliases, *model.aliases.values()}
    return not any(name in tied or config.for_tensor(name).exact for name in names)
