"""All vectors, by id."""

from __future__ import annotations

from . import (
    acceptable,
    block,
    byhand,
    cabac,
    coded,
    fixed,
    negative_nnef,
    negative_payload,
    negative_record,
    negative_semantics,
    negative_sideinfo,
    negative_state,
    negative_syntax,
    negative_units,
    nnef,
    onnx,
    parameters,
    parents,
    pruning,
    quant,
    sideinfo,
    syntax,
    tensor,
    topologies,
    update,
    wired,
)
from .case import REGISTRY, Case

MODULES = (
    byhand,
    syntax,
    cabac,
    quant,
    fixed,
    tensor,
    block,
    update,
    parents,
    nnef,
    wired,
    parameters,
    pruning,
    topologies,
    onnx,
    negative_units,
    negative_state,
    negative_syntax,
    negative_payload,
    negative_semantics,
    negative_nnef,
    coded,
    sideinfo,
    negative_record,
    negative_sideinfo,
    acceptable,
)

CASES: dict[str, Case] = dict(sorted(REGISTRY.items()))
