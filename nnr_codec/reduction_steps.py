"""Steps of parameter reduction in text form: ``sparsify(ratio=0.6), fold, lowrank(error=0.02)``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import EncodeError, Option

Value = str | int | float | bool

_STEP = re.compile(r"\s*([a-z][a-z_]*)\s*(?:\(([^()]*)\)\s*)?")
_OPTION = re.compile(r"\s*([a-z][a-z_]*)\s*=\s*([^\s=][^=\x00-\x1f]*?)\s*")


@dataclass(frozen=True, init=False)
class Step:
    """Tool of parameter reduction with its options: ``Step("sparsify", ratio=0.6)``.

    Parameters
    ----------
    tool : str
        Name of the tool; docs/guides/reduction.md lists all tools and their options.
    **options
        Options of the tool; strings are parsed like option values in a text.

    Raises
    ------
    EncodeError
        ``tool`` is not a string. Unknown tools are detected when the step is applied.
    """

    tool: str
    options: tuple[tuple[str, Value], ...]

    def __init__(self, tool: str, /, **options: Value) -> None:
        if not isinstance(tool, str):
            raise EncodeError(Option("reduce"), f": a step must have the name of a tool, got {tool!r}")
        object.__setattr__(self, "tool", tool)
        object.__setattr__(self, "options", tuple(options.items()))

    def __str__(self) -> str:
        options = ", ".join(f"{name}={_described(value)}" for name, value in self.options)
        return f"{self.tool}({options})" if options else self.tool


def steps_of(given: object) -> tuple[Step, ...]:
    """Return the steps of a comma-separated text or of an iterable; raise EncodeError for other values."""
    if isinstance(given, str):
        return tuple(_parsed(given))
    if isinstance(given, Step):
        return (given,)
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise EncodeError(Option("reduce"), f" must be a string or a list of steps, got {given!r}")
    return tuple(step for one in given for step in ((one,) if isinstance(one, Step) else steps_of(_text(one))))


def _text(one: object) -> str:
    if not isinstance(one, str):
        raise EncodeError(Option("reduce"), f": a step must be a Step or a string, got {one!r}")
    return one


def _parsed(text: str) -> Iterable[Step]:
    """Yield the steps of a text, which may be empty."""
    start = 0
    while text.strip():
        found = _STEP.match(text, start)
        if not found or text[found.end() : found.end() + 1] not in ("", ","):
            raise EncodeError(
                Option("reduce"),
                f": {text[start:].strip()!r} is not a list of steps, such as sparsify(ratio=0.6), fold",
            )
        yield Step(found[1], **_options(found[1], found[2] or ""))
        if found.end() == len(text):
            return
        start = found.end() + 1


def _options(tool: str, text: str) -> dict[str, Value]:
    options: dict[str, Value] = {}
    for part in text.split(",") if text.strip() else ():
        found = _OPTION.fullmatch(part)
        if not found:
            raise EncodeError(
                Option("reduce"), f": {tool}: {part.strip()!r} is not an option with a value, such as ratio=0.6"
            )
        if found[1] in options:
            raise EncodeError(Option("reduce"), f": {tool} has the option {found[1]!r} twice")
        options[found[1]] = found[2]
    return options


def _described(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
