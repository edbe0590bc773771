"""Parameter reduction (ISO/IEC 15938-17:2024, 5.2, clause 8): steps, applied in the given order.

Each tool is a module with a frozen dataclass, whose fields are the options of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from importlib import import_module
from math import inf
from typing import Any

from ...config import EncoderConfig
from ...errors import EncodeError, Option
from ...model import Model, Wiring, described
from ...reduction_steps import Step
from ..joining import with_joined
from ..prepared import Prepared
from .scaling import with_scales
from .tool import ReductionTool, made, recognised

#: Module and class of each tool, by its name in steps.
TOOLS = {
    "sparsify": ("sparsify", "Sparsify"),
    "unify": ("unify", "Unify"),
    "prune": ("prune", "Prune"),
    "lowrank": ("lowrank", "Decompose"),
    "fold": ("fold", "Fold"),
    "scale": ("scaling", "Scale"),
}

Note = Callable[[Step, Prepared, Prepared], None]


def prepare(model: Model, config: EncoderConfig, wiring: Wiring, note: Note | None = None) -> Prepared:
    """Return the model after all reduction steps of the options. Raises EncodeError for an impossible step.

    ``note`` is called with each step, the model before it and the model after it.
    """
    if model.pruned:
        names = [name for name in model.pruned if name in model.tensors]
        wiring = wiring.with_shapes({name: described(model.tensors, name)[1] for name in names})
    coded = replace(model, blocks=[*model.blocks, *recognised(model, wiring)]) if config.has_blocks else model
    prepared = Prepared(coded, model, wiring, config)
    unused = []
    for step, after in apply(prepared, config.steps):
        if note:
            note(step, prepared, after)
        if after is prepared:
            unused.append(step)
        prepared = after
    done = with_scales(prepared)
    if not done.fitted:
        unused += [step for step in config.steps if step.tool == "scale" and ("method", "gain") not in step.options]
    return with_joined(replace(done, source=model, unused=tuple(unused)))


def tool_of(step: Step) -> ReductionTool:
    """Return the tool of a step with its options. Raises EncodeError for an unknown tool or option."""
    if step.tool not in TOOLS:
        raise EncodeError(Option("reduce"), f": unknown step {step.tool!r}; choose from {', '.join(TOOLS)}")
    module, cls = TOOLS[step.tool]
    return made(getattr(import_module(f".{module}", __package__), cls), step)


def apply(prepared: Prepared, steps: Iterable[Step]) -> Iterator[tuple[Step, Prepared]]:
    """Yield each step and the model after it. Raises EncodeError for an invalid step before applying any."""
    tools = [(step, tool_of(step)) for step in steps]
    for step, tool in tools:
        prepared = tool.apply(prepared)
        yield step, prepared


def open_amounts(config: EncoderConfig) -> list[int]:
    """Return the indices of the steps of ``config.reduce`` without an amount, if a size target determines it."""
    if config.target_size is None and config.target_ratio is None:
        return []
    return [k for k, step in enumerate(config.reduction) if _amount_of(step)]


def with_amounts(config: EncoderConfig, score: Callable[[EncoderConfig], float]) -> EncoderConfig:
    """Return the options with the best amounts: for each step, the amount listed by its tool with the best score.

    Steps are determined one after another; undetermined steps are omitted meanwhile. Steps that do not improve the
    score are removed. Raises EncodeError if no amount meets the target.
    """
    steps: list[Step | None] = [None if _amount_of(step) else step for step in config.reduction]
    for k in open_amounts(config):
        asked, failure = config.reduction[k], None
        tool: Any = tool_of(asked)
        amounts = [Step(asked.tool, **{**dict(asked.options), tool.AMOUNT: amount}) for amount in tool.AMOUNTS]
        best: tuple[float, Step | None] = (-inf, None)
        for step in (None, *amounts):
            tried = [step if i == k else known for i, known in enumerate(steps)]
            try:
                found = score(replace(config, reduce=tuple(one for one in tried if one is not None)))
            except EncodeError as error:
                failure = failure or error
                continue
            if found > best[0]:
                best = found, step
        if best[0] == -inf and failure:
            raise failure
        steps[k] = best[1]
    return replace(config, reduce=tuple(step for step in steps if step is not None))


def _amount_of(step: Step) -> str:
    """Return the option name of the missing amount of a step; empty if it has an amount or an alternative option."""
    tool: Any = tool_of(step)
    given = any(getattr(tool, option.name) is not None for option in fields(tool) if option.default is None)
    name: str = "" if given else getattr(tool, "AMOUNT", "")
    return name
