"""The command line and the library call the same option by the same name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import click
from nnr_cli.main import cli

import nnr_codec as nnr
from nnr_codec.api.decoding import OpenOptions
from nnr_codec.config import EncoderOptions

#: The functions that each command calls. Commands that only print have options for what they print.
FUNCTIONS: dict[str, tuple[Callable[..., Any], ...]] = {
    "encode": (nnr.encode_file, nnr.load, nnr.measure),
    "decode": (nnr.decode_file,),
    "extract": (nnr.extract, nnr.save),
    "update encode": (nnr.encode_update, nnr.UpdateEncoder, nnr.sparsify, nnr.load, nnr.save),
    "update apply": (nnr.apply_update, nnr.save),
    "update chain": (nnr.chain_updates, nnr.save),
    "update squash": (nnr.squash_updates, nnr.save),
}

#: Options that are no keyword of these functions, and why.
EXCEPTIONS = {
    "--output": "functions take the target after the source, other programs after -o",
    "--lossless": "short for --preset lossless",
    "--input": "previous updates, which UpdateDecoder decodes one by one",
    "--only": "takes patterns; names are whole names",
    "--unit": "the second argument of extract, by its position",
    "--sparsify": "a point of the bitstream's performance map, which the library gives to folded()",
    "--prune": "as --sparsify",
    "--check": "a call of compare_models",
    "--report": "a call of EncodeReport.save for each file",
    "--dry-run": "calls estimate instead of encode_file",
    "--json": "about what is printed",
    "--quiet": "about what is printed",
    "--verbose": "about what is printed",
}


def keywords(function: Callable[..., Any]) -> Iterator[str]:
    """The names of all arguments."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            kinds = {"Unpack[EncoderOptions]": EncoderOptions, "Unpack[OpenOptions]": OpenOptions}
            yield from kinds[parameter.annotation].__annotations__
        else:
            yield parameter.name


def options(command: str) -> dict[str, set[str]]:
    """The long names of each option; those of an option that repeats also in the plural."""
    found: Any = cli
    for part in command.split():
        found = found.commands[part]
    names: dict[str, set[str]] = {}
    for option in found.params:
        if isinstance(option, click.Option):
            long = [name for name in option.opts if name.startswith("--")]
            names[long[0]] = {*long, *(f"{name}s" for name in long if option.multiple)}
    return names


def test_options_have_the_names_of_keywords() -> None:
    others = set()
    for command, functions in FUNCTIONS.items():
        known = {f"--{name.replace('_', '-')}" for function in functions for name in keywords(function)}
        others |= {name for name, names in options(command).items() if not names & known}
    assert others == set(EXCEPTIONS)
