"""All vectors, by id."""

from __future__ import annotations

from . import (
    acceptable,
    block,
    byhand,
    cabac,
    negative_payload,
    negative_state,
    negative_syntax,
    negative_units,
    nnef,
    quant,
    syntax,
    tensor,
    update,
)
from .case import REGISTRY, Case

MODULES = (
    byhand,
    syntax,
    cabac,
    quant,
    tensor,
    block,
    update,
    nnef,
    negative_units,
    negative_state,
    negative_syntax,
    negative_payload,
    acceptable,
)

CASES: dict[str, Case] = dict(sorted(REGISTRY.items()))
