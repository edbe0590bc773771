"""Command-line arguments: names of files and formats, rules, and output locations."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from . import output
from .errors import Terminated

if TYPE_CHECKING:
    import nnr_codec as nnr

F = TypeVar("F", bound=Callable[..., None])
Option = bool | int | float | None
_WORDS: dict[str, bool] = {"true": True, "yes": True, "false": False, "no": False}


class GroupedCommand(click.Command):
    """Command whose help lists options under headings.

    Parameters
    ----------
    headings : mapping of str to str
        Names of options, separated by spaces, by heading, in this order. The last heading gets all other options.
    """

    def __init__(self, *arguments: Any, headings: Mapping[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.headings = headings

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {option.name: option.get_help_record(ctx) for option in options}
        sections = {heading: [records.pop(name) for name in names.split()] for heading, names in self.headings.items()}
        sections[list(sections)[-1]] += records.values()
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl([row for row in rows if row])


class FileName(click.Path):
    """File or folder, or ``-``; its readability is checked on reading."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("the file name must not be empty", param, ctx)
        return super().convert(value, param, ctx)


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """Number of bytes, optionally with a unit: k, M and G are powers of 1000, Ki, Mi and Gi of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+) *(?:([kKMG])(i?))?B?", str(value).strip(), re.ASCII)
        if not found:
            self.fail(f"{value!r} is not a size such as 2500000, 2.5MB or 300KiB", param, ctx)
        number, unit, binary = found.groups()
        power = " kmg".index((unit or " ").lower())
        return int(Decimal(number) * (1024 if binary else 1000) ** power)


class Ratio(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """Share of a whole, as a number or in percent."""

    name = "ratio"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        try:
            return float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            self.fail(f"{value!r} is not a ratio such as 0.1 or 10%", param, ctx)


def _format_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check the name of a model format."""
    from nnr_codec import formats

    if value is not None and value not in formats.names():
        raise click.BadParameter(f"unknown model format {value!r}; choose from {', '.join(formats.names())}")
    return value


def _format_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return completions of the name of a model format."""
    from nnr_codec import formats

    return [name for name in formats.names() if name.startswith(incomplete)]


def rules(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[nnr.Rule, ...]:
    """Convert each ``GLOB:KEY=VALUE,...`` to a Rule."""
    return tuple(map(_rule, values))


def _reports(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Check report file names: known extensions, each file once."""
    for k, name in enumerate(values):
        if not name.lower().endswith((".json", ".html")):
            raise click.BadParameter(f"{name!r} must end in .json or .html")
        if os.path.realpath(name) in map(os.path.realpath, values[:k]):
            raise click.BadParameter(f"{name!r} is given twice")
    return values


def report(command: F) -> F:
    """Add the option ``--report``, which sets ``reports``."""
    return click.option(
        "--report",
        "reports",
        multiple=True,
        callback=_reports,
        metavar="FILE",
        help="Write a report on each tensor to a .json or .html file (see docs/guides/reports.md); repeatable.",
    )(command)


def parts(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | str | int | None:
    """Parse ``--parts layers``, ``--parts size:BYTES`` and ``--parts GLOB=NAME``."""
    if values == ("layers",):
        return "layers"
    if len(values) == 1 and values[0].startswith("size:") and "=" not in values[0]:
        return Size().convert(values[0].removeprefix("size:"), param, ctx)
    found = {}
    for value in values:
        glob, equals, name = value.rpartition("=")
        if not (equals and glob and name):
            raise click.BadParameter(f"{value!r} is not of the form GLOB=NAME; layers and size:BYTES stand alone")
        found[glob] = name
    return found or None


def _rule(text: str) -> nnr.Rule:
    import nnr_codec as nnr

    pattern, colon, options = text.rpartition(":")
    if not colon or not pattern:
        raise click.BadParameter(f"{text!r} is not GLOB:KEY=VALUE,..., such as 'conv1/*:qp=-44'")
    try:
        known: Any = dict(map(_option, options.split(",")))
        return nnr.Rule(pattern, **known)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from None


def _option(text: str) -> tuple[str, Option]:
    from dataclasses import fields
    from difflib import get_close_matches

    from nnr_codec.config import TensorOptions

    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    key = key.replace("-", "_")
    key = {"dq": "dependent_quantization"}.get(key, key)
    kinds = {field.name: str(field.type) for field in fields(TensorOptions)}
    if key not in kinds:
        similar = get_close_matches(key, kinds, 1)
        known = f"did you mean {similar[0]!r}?" if similar else f"choose from {', '.join(sorted(kinds))} and dq"
        raise ValueError(f"unknown key {key!r}; {known}")
    return key, _value(key, kinds[key], value.lower())


def _value(key: str, kind: str, text: str) -> Option:
    if text == "auto" and "None" in kind:
        return None
    if kind.startswith("int"):
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{key} must be an integer, got {text!r}") from None
    if kind.startswith("float"):
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{key} must be a number, got {text!r}") from None
    if text not in _WORDS:
        raise ValueError(f"{key} must be true{', false or auto' if 'None' in kind else ' or false'}, got {text!r}")
    return _WORDS[text]


def _limits(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> nnr.Limits:
    """Combine presets and NAME=VALUE; later values override earlier values."""
    from dataclasses import replace

    from nnr_codec import Limits

    result = Limits()
    for text in values:
        name, equals, value = (part.strip() for part in text.partition("="))
        try:
            if not equals:
                result = {"strict": Limits.strict, "default": Limits, "unlimited": Limits.unlimited}[name]()
                continue
            if name not in (*Limits.names(), "allow_trailing"):
                raise KeyError(name)
            change: dict[str, Any] = {name: _WORDS[value.lower()] if name == "allow_trailing" else _count(value)}
            result = replace(result, **change)
        except KeyError:
            raise click.BadParameter(
                f"{text!r} is not a limit; use strict, default, unlimited, allow_trailing=true or NAME=NUMBER, where "
                f"NAME is one of {', '.join(Limits.names())}"
            ) from None
        except ValueError as error:
            raise click.BadParameter(f"{text!r}: {error}") from None
    return result


def _count(text: str) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError(f"{text!r} is not an integer of at least 0")
    return number


def limits(command: F) -> F:
    """Add the option ``--limit``, which sets Limits."""
    return click.option(
        "--limit",
        "limits",
        multiple=True,
        callback=_limits,
        metavar="NAME=VALUE",
        help="Limits for the input: strict, unlimited, or a limit by name (see nnr explain Limits); repeatable.",
    )(command)


def topology(description: str) -> Callable[[F], F]:
    """Return the option ``--topology``, whose value :func:`given` reads."""
    return click.option("--topology", type=FileName(), metavar="FILE", help=f"{description}: a graph.nnef or a model.")


def given(name: str | None, limits: nnr.Limits, *others: str) -> nnr.Topology | None:
    """Return the topology of a file (- for standard input, unless another argument uses it); None for None."""
    from nnr_codec import formats

    if name == "-" and "-" in others:
        raise click.UsageError("only one file can be standard input")
    return formats.topology_of(output.stdin() if name == "-" else name, limits=limits)


def inputs(description: str) -> Callable[[F], F]:
    """Return the option ``-i``, which sets ``inputs``: earlier bitstreams."""
    return click.option(
        "-i",
        "--input",
        "inputs",
        multiple=True,
        type=FileName(),
        metavar="FILE",
        help=f"{description}; repeatable, in order.",
    )


def target(metavar: str, description: str, required: bool = True) -> Callable[[F], F]:
    """Return the option ``-o``, which sets ``target``."""
    return click.option(
        "-o",
        "--output",
        "target",
        required=required,
        type=FileName(),
        metavar=metavar,
        help=f"{description}; - for standard output.",
    )


def in_folder(target: str | None) -> bool:
    """Return whether an output gets a default name: in the folder ``target``, or beside its input for None."""
    if target is None:
        return True
    is_folder = target.endswith(("/", os.sep)) or os.path.isdir(target)
    return is_folder and not os.path.splitext(os.path.normpath(target))[1]


def place(source: str, target: str | None, suffix: str) -> str:
    """Return the path of the output of ``source``: the target, or a path in the folder ``target`` or beside ``source``.

    A missing folder is created. The output of a URL is in the current folder by default.
    """
    from nnr_codec import formats
    from nnr_codec.urls import base_name, is_url

    if target is not None and not in_folder(target):
        return target
    if source == "-":
        raise click.UsageError("standard input has no default output name; give -o")
    if is_url(source) and not (source := base_name(source)):
        raise click.UsageError("the URL has no file name; give -o")
    stem = formats.without_suffix(source)
    if target is None:
        return stem + suffix
    os.makedirs(target, exist_ok=True)
    return os.path.join(target, os.path.basename(stem) + suffix)


def model_format(default: str, *names: str, of: str = "MODEL") -> Callable[[F], F]:
    """Return the option ``--format``, or an option with other names, which sets ``model_format``."""
    return click.option(
        "--format",
        *names,
        "model_format",
        metavar="NAME",
        callback=_format_name,
        shell_complete=_format_names,
        help=f"Format of {of} (default: {default}); see nnr formats.",
    )


def resume(command: F) -> F:
    """Add the option ``--resume``."""
    return click.option(
        "--resume",
        is_flag=True,
        help="Keep finished parts in a folder beside the output (its name plus .parts) until it is complete; after"
        " an interruption, the same command continues from there.",
    )(command)


@contextmanager
def resumable(resume: bool, done: Sequence[str]) -> Iterator[None]:
    """Add the command for continuing to the message of an interruption, without the inputs ``done``."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        if resume:
            without = f" without {', '.join(done)}" if done else ""
            error.add_note(f"the same command{without} continues from here")
        raise


def check_resume(resume: bool, target: str | None) -> None:
    """Raise UsageError for an output that cannot have a folder beside it."""
    if resume and target == "-":
        raise click.UsageError("--resume requires an output file; give -o")


def conversion(command: F) -> F:
    """Add the options that all conversion commands share."""
    for option in (
        click.option(
            "-v", "--verbose", is_flag=True, help="Print a line for each tensor, and the progress every 10 seconds."
        ),
        click.option("-q", "--quiet", is_flag=True, help="Print errors only."),
        click.option("-f", "--force", "--overwrite", is_flag=True, help="Replace an existing output."),
    ):
        command = option(command)
    return command


def open_target(target: str, *sources: str, force: bool, folder: bool) -> BinaryIO | None:
    """Check before the work whether an output can be written.

    Parameters
    ----------
    target, *sources : str
        Names of the output and the inputs, as on the command line.
    force : bool
        Whether an existing target may be replaced.
    folder : bool
        Whether the target may be a folder.

    Returns
    -------
    binary file or None
        Standard output for ``-``; None for a file, which the library writes under a temporary name first.
    """
    import tempfile

    if target == "-":
        return output.stdout()
    target = target.rstrip(os.sep) or target  # a file is not found with a final separator
    if os.path.lexists(target):
        if os.path.exists(target) and any(_is_part(target, name) for name in filter(os.path.exists, sources)):
            raise FileExistsError(f"{target} is an input; write to another name")
        if os.path.isdir(target) and not folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
        if not force:
            raise FileExistsError(f"{target} exists; use -f to replace it")
    parent = os.path.dirname(target) or "."
    try:
        with tempfile.TemporaryFile(dir=parent):
            return None
    except FileNotFoundError:
        raise FileNotFoundError(f"the folder {parent!r} of the output does not exist; create it first") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, parent) from None


def check_bitstream_name(target: str) -> None:
    """Raise UsageError for a bitstream with the file extension of a model."""
    from nnr_codec.formats.registry import model_suffix

    if suffix := model_suffix(target):
        name = target[: -len(suffix)] + ".nnr"
        raise click.UsageError(f"{target!r} has the file extension of a model; name the bitstream {name!r}")


def _is_part(target: str, source: str) -> bool:
    """Return whether an existing target is an input or a file in its folder; earlier bitstreams there are outputs."""
    if os.path.samefile(source, target):
        return True
    folder, place = os.path.realpath(source), os.path.realpath(target)
    is_output = target.lower().endswith(".nnr") and os.path.isfile(target)
    return os.path.isdir(folder) and place.startswith(os.path.join(folder, "")) and not is_output


def check_companions(model: nnr.Model, *targets: str | None) -> None:
    """Raise FileExistsError if an output is one of several files of an input model, such as its weights or a shard."""
    for target in targets:
        for path in getattr(model.tensors, "files", ()):
            if target and os.path.exists(target) and os.path.samefile(path, target):
                raise FileExistsError(f"{target} is a file of an input model; write to another name")


def matching(file: nnr.NnrFile, globs: Sequence[str], option: str) -> list[str]:
    """Return the matching tensor names. Raise UsageError for a glob without a match."""
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in file):
            raise click.UsageError(f"{option} {glob!r} matches no tensor")
    return [name for name in file if any(fnmatchcase(name, glob) for glob in globs)]
