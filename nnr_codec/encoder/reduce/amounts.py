"""How much of a reduction a target size is worth: amounts of steps that were left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from math import inf
from typing import Any

from ...config import EncoderConfig
from ...errors import EncodeError
from ...reduction_steps import Step
from . import tool_of


def open_amounts(config: EncoderConfig) -> list[int]:
    """Which steps of ``config.reduce`` have no amount, though a target decides on it."""
    if config.target_size is None and config.target_ratio is None:
        return []
    return [k for k, step in enumerate(config.reduction) if _amount_of(step)]


def with_amounts(config: EncoderConfig, score: Callable[[EncoderConfig], float]) -> EncoderConfig:
    """The options with those amounts, of the ladder of each step, whose score is best.

    Steps that do no good are left out. They are decided one after another, without those that are not decided yet.
    EncodeError where no amount at all gives a bitstream of the target.
    """
    steps: list[Step | None] = [None if _amount_of(step) else step for step in config.reduction]
    for k in open_amounts(config):
        asked, failure = config.reduction[k], None
        best: tuple[float, Step | None] = (-inf, None)
        for step in (None, *_ladder(asked)):
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
    """The name of the option that a step lacks; empty for none, also where it has another one in its place."""
    tool: Any = tool_of(step)
    given = any(getattr(tool, option.name) is not None for option in fields(tool) if option.default is None)
    name: str = "" if given else getattr(tool, "AMOUNT", "")
    return name


def _ladder(step: Step) -> list[Step]:
    """The step with each of the amounts that are worth trying."""
    tool: Any = tool_of(step)
    return [Step(step.tool, **{**dict(step.options), tool.AMOUNT: amount}) for amount in tool.AMOUNTS]
