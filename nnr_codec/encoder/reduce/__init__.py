"""Parameter reduction (ISO/IEC 15938-17:2024, clause 8, 5.2): steps from one model to another, in the order asked for.

Each tool is a module with a frozen dataclass, whose fields are its options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module

from ...errors import EncodeError, Option
from ...reduction_steps import Step
from .tool import Reduced, Tool, made

#: Module and class of each tool, by the name that steps have.
TOOLS = {
    "sparsify": ("sparsify", "Sparsify"),
    "unify": ("unify", "Unify"),
    "prune": ("prune", "Prune"),
    "lowrank": ("lowrank", "LowRank"),
    "fold": ("fold", "Fold"),
    "scale": ("scaling", "Scale"),
}


def tool_of(step: Step) -> Tool:
    """The tool of a step with its options; EncodeError for one that does not exist, or other options than it has."""
    if step.tool not in TOOLS:
        raise EncodeError(Option("reduce"), f": there is no step {step.tool!r}; there are {', '.join(TOOLS)}")
    module, cls = TOOLS[step.tool]
    return made(getattr(import_module(f".{module}", __package__), cls), step)


def apply(reduced: Reduced, steps: Iterable[Step]) -> Iterator[tuple[Step, Reduced]]:
    """Each step and the model after it; EncodeError, before any is applied, for a step that means nothing."""
    tools = [(step, tool_of(step)) for step in steps]
    for step, tool in tools:
        reduced = tool.apply(reduced)
        yield step, reduced
