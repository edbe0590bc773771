"""``nnr conformance``: test of this or another decoder with vectors."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import params
from .errors import NO, one_line, say

if TYPE_CHECKING:
    from nnr_codec.conformance.vectors import Case, Result

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _kinds(ctx: click.Context, param: click.Parameter, value: str | None) -> frozenset[str]:
    from nnr_codec.conformance.vectors import KINDS

    kinds = frozenset(value.split(",")) if value else frozenset(KINDS)
    if not kinds <= set(KINDS):
        raise click.BadParameter(f"{value!r} is not a comma-separated list of {', '.join(KINDS)}")
    return kinds


def _extensions(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    from nnr_codec.conformance.vectors import EXTENSIONS

    if not set(value) <= set(EXTENSIONS):
        raise click.BadParameter(f"{', '.join(value)} is not among {', '.join(EXTENSIONS)}")
    return value


def _size(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    digits, unit = (value[:-1], _SIZES[value[-1].upper()]) if value[-1:].upper() in _SIZES else (value, 1)
    if not digits.isdecimal():
        raise click.BadParameter(f"{value!r} is not a number of bytes, such as 512M or 2G (0: no limit)")
    return int(digits) * unit or None


def _command(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}") from None
    for place in ("{input}", "{outdir}"):
        if not any(place in word for word in words):
            raise click.BadParameter(f"{value!r} lacks the placeholder {place}")
    for word in words:
        if "{inputs}" in word and word != "{inputs}":
            raise click.BadParameter(
                f"{value!r}: {{inputs}} must be a separate argument, because it expands to several"
            )
    if not shutil.which(words[0]):
        raise click.BadParameter(f"program {words[0]!r} not found")
    return value


@click.command(
    short_help="Run conformance vectors.",
    epilog="""\b
Examples:
  nnr conformance
  nnr conformance --class invalid --only 'NNR-NEG-0*' -v
  nnr conformance bitstream_vectors --decoder 'mydecoder {input} -o {outdir}' --junit report.xml

\b
Outcomes: PASS; FAIL a different result, or an error of a different kind; ERROR a
valid bitstream was rejected, or an unexpected exception; CRASH; TIMEOUT; OOM out
of memory; XPASS an invalid bitstream was decoded; SKIP the external decoder does
not support the case, or a package is missing.
""",
)
@click.argument("folder", required=False, type=params.FileName(), metavar="[DIR]")
@click.option("--only", multiple=True, metavar="GLOB", help="Run the cases whose id matches; repeatable.")
@click.option(
    "--class",
    "kinds",
    callback=_kinds,
    metavar="LIST",
    help="Run these classes of cases: valid,invalid,acceptable,interop.",
)
@click.option(
    "--feature",
    multiple=True,
    metavar="NAME",
    help="Run the cases for a syntax element or tool, such as dq_flag; repeatable.",
)
@click.option("--profile", type=click.IntRange(0, 1), help="Run the cases with this general_profile_idc.")
@click.option("-j", "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Number of processes.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=10.0,
    show_default=True,
    help="Time limit for each case in seconds.",
)
@click.option(
    "--memory",
    callback=_size,
    default="512M",
    show_default=True,
    metavar="SIZE",
    help="Memory limit for each case; 0: none.",
)
@click.option("--fail-fast", is_flag=True, help="Stop at the first unexpected outcome.")
@click.option("--lenient", is_flag=True, help="Accept any error for invalid bitstreams.")
@click.option("--json", type=params.FileName(), metavar="FILE", help="Write a report as JSON.")
@click.option("--junit", type=params.FileName(), metavar="FILE", help="Write a report as JUnit XML.")
@click.option("--markdown", type=params.FileName(), metavar="FILE", help="Write a report as Markdown.")
@click.option("--fluster", type=params.FileName(), metavar="FILE", help="Write the cases as a test suite for fluster.")
@click.option("--claim", is_flag=True, help="Print the conformance claim that the results support, after all cases.")
@click.option(
    "--decoder",
    "command",
    callback=_command,
    metavar="COMMAND",
    help="Test another decoder, given as 'CMD {input} {outdir}'; it writes NAME.npy for each tensor (names "
    "percent-encoded), or one .npz. {inputs} stands for the bitstreams of earlier updates, {topology} for"
    " a separate NNEF graph.",
)
@click.option(
    "--extension",
    "extensions",
    multiple=True,
    callback=_extensions,
    metavar="NAME",
    help="Extension that the other decoder supports, such as side-information; repeatable.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print the time of each case, and the reason for rejection.")
@click.option("-q", "--quiet", is_flag=True, help="Print only unexpected outcomes, and the counts.")
@click.pass_context
def conformance(
    ctx: click.Context,
    folder: str | None,
    only: tuple[str, ...],
    kinds: frozenset[str],
    feature: tuple[str, ...],
    profile: int | None,
    jobs: int,
    timeout: float,
    memory: int | None,
    fail_fast: bool,
    lenient: bool,
    json: str | None,
    junit: str | None,
    markdown: str | None,
    fluster: str | None,
    claim: bool,
    command: str | None,
    extensions: tuple[str, ...],
    verbose: bool,
    quiet: bool,
) -> None:
    """Run the conformance vectors in DIR and its subfolders, and print the outcome of each, with the counts of each
    class.

    Default for DIR: bitstream_vectors of the source tree, or the core set in the package if there is no source tree.
    Each case is decoded in a process with limits on time and memory. The exit code is 0 if all outcomes are as
    expected, otherwise 1. FILE may be - for standard output.
    """
    from nnr_codec.conformance import suite as suites
    from nnr_codec.conformance.vectors import load_cases, run, summary

    from . import conformance_reports as formats

    if extensions and not command:
        raise click.UsageError("--extension requires --decoder")
    if math.isnan(timeout):
        raise click.UsageError("--timeout must be a number, got nan")
    reports = _Reports({"json": json, "junit": junit, "markdown": markdown, "fluster": fluster})
    with _vectors(folder) as root:
        suite, there = suites.Suite.read(root), load_cases(root)
        cases = [case for case in there if _is_chosen(case, only, kinds, feature, profile)]
        if not cases:
            raise click.UsageError("no case matches --only, --class, --feature and --profile")
        reports.write("fluster", lambda: formats.as_fluster(suites.fluster(cases)))
        started, results = time.perf_counter(), []
        for result in run(
            cases,
            root,
            jobs=jobs,
            timeout=timeout,
            memory=memory,
            command=command,
            extensions=extensions,
            lenient=lenient,
        ):
            results.append(result)
            if not quiet or not result.is_fine:
                click.echo(one_line(_line(result, verbose)), err=reports.on_stdout)
            if fail_fast and not result.is_fine:
                break
        done = formats.Run(results, time.perf_counter() - started, suite, command)
        reports.write("json", lambda: formats.as_json(done))
        reports.write("junit", lambda: formats.as_junit(done))
        reports.write("markdown", lambda: formats.as_markdown(done))
        click.echo(f"{summary(results)}, {done.seconds:.1f} s", err=reports.on_stdout)
        if claim:
            sentence = suites.claim(results, suite, len(there), done.decoder)
            click.echo(one_line(sentence), err=reports.on_stdout)
    ctx.exit(0 if all(result.is_fine for result in results) else NO)


def _is_chosen(
    case: Case, only: tuple[str, ...], kinds: frozenset[str], feature: tuple[str, ...], profile: int | None
) -> bool:
    return (
        case.kind in kinds
        and (not only or any(fnmatchcase(case.id, pattern) for pattern in only))
        and (profile is None or case.profile_idc == profile)
        and all(name in case.features or name in (f.partition("=")[0] for f in case.features) for name in feature)
    )


def _line(result: Result, verbose: bool) -> str:
    detail = f": {result.detail}" if result.detail and (verbose or result.outcome != "PASS") else ""
    taken = f"{1000 * result.seconds:7.1f} ms  " if verbose else ""
    return f"{result.outcome:8}{taken}{result.case.id}  {result.case.title}{detail}"


@contextlib.contextmanager
def _vectors(folder: str | None) -> Iterator[Path]:
    """Yield the folder of the vectors; by default the folder of the source tree, or a folder with the core set."""
    import nnr_codec
    from nnr_codec.conformance.selftest import unpack

    beside = Path(nnr_codec.__file__).parents[1] / "bitstream_vectors"
    if folder or beside.is_dir():
        yield Path(folder) if folder else beside
        return
    say(
        "nnr: only the core vectors of the package are available (all are in the "
        "source distribution: 'pip download --no-deps --no-binary nnr_codec nnr_codec')"
    )
    with tempfile.TemporaryDirectory(prefix="nnr-core-") as core:
        unpack(Path(core))
        yield Path(core)


class _Reports:
    """Report files, checked before the run.

    Parameters
    ----------
    names : dict of str to str or None
        File names by kind of report.
    """

    def __init__(self, names: Mapping[str, str | None]) -> None:
        self._names = {kind: name for kind, name in names.items() if name}
        places = [name if name == "-" else os.path.realpath(name) for name in self._names.values()]
        if len(set(places)) < len(places):
            raise click.UsageError(f"two reports have the same file name: {', '.join(self._names.values())}")
        self._streams = {
            kind: params.open_target(name, "", force=True, folder=False) for kind, name in self._names.items()
        }

    @property
    def on_stdout(self) -> bool:
        """True if a report goes to standard output."""
        return "-" in self._names.values()

    def write(self, kind: str, text: Callable[[], bytes]) -> None:
        """Write the report of a kind, if it is requested."""
        from nnr_codec.files import output_file

        if kind not in self._names:
            return
        if stream := self._streams[kind]:
            stream.write(text())
            return
        with output_file(self._names[kind], overwrite=True) as file:
            file.write(text())
