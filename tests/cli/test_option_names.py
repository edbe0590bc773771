"""The command line and the library use the same name for the same option."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import click
from nnr_cli.main import cli

import nnr_codec as nnr
from nnr_codec.api.decoding import OpenOptions
from nnr_codec.config import EncoderOptions

#: The functions that each command calls. Commands that only print have options for the output.
FUNCTIONS: dict[str, tuple[Callable[..., Any], ...]] = {
    "encode": (nnr.encode_file, nnr.load, nnr.measure, nnr.tune_drop),
    "decode": (nnr.decode_file,),
    "extract": (nnr.extract, nnr.NnrFile.extract, nnr.save),
    "update encode": (nnr.encode_update, nnr.UpdateEncoder, nnr.sparsify, nnr.load, nnr.save),
    "update apply": (nnr.apply_update, nnr.save),
    "update chain": (nnr.chain_updates, nnr.save),
    "update squash": (nnr.squash_updates, nnr.save),
}

#: Options that are not keywords of these functions, with reasons.
EXCEPTIONS = {
    "--output": "functions take the target after the source, other programs after -o",
    "--lossless": "short for --preset lossless",
    "--input": "previous updates, which UpdateDecoder decodes one by one",
    "--only": "takes patterns; names are whole names",
    "--unit": "the second argument of extract, by its position",
    "--sparsify": "a point of the bitstream's performance map, which the library gives to folded()",
    "--prune": "as --sparsify",
    "--base-model-id": "a field of Performance, the option performance",
    "--validation-performance": "as --base-model-id",
    "--check": "a call of compare_models",
    "--data": "inputs of the network, with which the library has no part",
    "--module": "as --data",
    "--report": "a call of EncodeReport.save for each file",
    "--no-attachments": "attach=None",
    "--dequantize": "a call of dequantized before encode_file",
    "--dry-run": "calls estimate instead of encode_file",
    "--json": "about what is printed",
    "--quiet": "about what is printed",
    "--verbose": "about what is printed",
}


def keywords(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the names of all arguments, including keyword options."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            kinds = {"Unpack[EncoderOptions]": EncoderOptions, "Unpack[OpenOptions]": OpenOptions}
            yield from kinds[parameter.annotation].__annotations__
        else:
            yield parameter.name


def options(command: str) -> dict[str, set[str]]:
    """Return the long names of each option; the names of repeatable options also in the plural."""
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
