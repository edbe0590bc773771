"""``nnr conformance``: a decoder, this one or another, against vectors."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import click

from . import params
from .errors import NO, one_line

if TYPE_CHECKING:
    from nnr_codec.conformance.vectors import Case, Result

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _kinds(ctx: click.Context, param: click.Parameter, value: str | None) -> frozenset[str]:
    from nnr_codec.conformance.vectors import KINDS

    kinds = frozenset(value.split(",")) if value else frozenset(KINDS)
    if not kinds <= set(KINDS):
        raise click.BadParameter(f"{value!r} is not a list of {', '.join(KINDS)}")
    return kinds


def _extensions(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    from nnr_codec.conformance.vectors import EXTENSIONS

    if not set(value) <= set(EXTENSIONS):
        raise click.BadParameter(f"{', '.join(value)} is not among {', '.join(EXTENSIONS)}")
    return value


def _size(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    digits, unit = (value[:-1], _SIZES[value[-1].upper()]) if value[-1:].upper() in _SIZES else (value, 1)
    if not digits.isdecimal():
        raise click.BadParameter(f"{value!r} is not a number of bytes, as 512M or 2G; 0 for no limit")
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
            raise click.BadParameter(f"{value!r} has no {place}")
    if not shutil.which(words[0]):
        raise click.BadParameter(f"there is no program {words[0]!r}")
    return value


@click.command(
    short_help="Run conformance vectors.",
    epilog="""\b
Examples:
  nnr conformance
  nnr conformance --class invalid --only 'NNR-NEG-0*' -v
  nnr conformance bitstream_vectors --decoder 'mydecoder {input} -o {outdir}' --junit report.xml

\b
Outcomes: PASS; FAIL decoded to something else, or refused for another reason;
ERROR refused although valid, or an unexpected exception; CRASH; TIMEOUT; OOM out
of memory; XPASS decoded although invalid; SKIP the command cannot be asked, or a
package is missing.
""",
)
@click.argument("folder", required=False, type=params.FileName(), metavar="[DIR]")
@click.option("--only", multiple=True, metavar="GLOB", help="Cases whose id matches; repeatable.")
@click.option("--class", "kinds", callback=_kinds, metavar="LIST", help="Some of valid,invalid,acceptable,interop.")
@click.option(
    "--feature", multiple=True, metavar="NAME", help="Cases about this syntax element or tool, as dq_flag; repeatable."
)
@click.option("--profile", type=click.IntRange(0, 1), help="Cases of this general_profile_idc.")
@click.option("-j", "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds for each case.",
)
@click.option(
    "--memory", callback=_size, default="512M", show_default=True, metavar="SIZE", help="Memory for each case; 0: any."
)
@click.option("--fail-fast", is_flag=True, help="Stop at the first case that is not as expected.")
@click.option("--json", "as_json", type=params.FileName(), metavar="FILE", help="Write a report as JSON.")
@click.option("--junit", type=params.FileName(), metavar="FILE", help="Write a report as JUnit's XML.")
@click.option(
    "--decoder",
    "command",
    callback=_command,
    metavar="COMMAND",
    help="Another decoder, as 'CMD {input} {outdir}'; it writes NAME.npy for each tensor (names percent-encoded), or "
    "one .npz. {inputs} stands for the bitstreams of earlier updates, {topology} for an NNEF graph kept apart.",
)
@click.option(
    "--extension",
    "extensions",
    multiple=True,
    callback=_extensions,
    metavar="NAME",
    help="What that decoder knows beyond the standard, as side-information; repeatable.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print how long each case took, and why it was refused.")
@click.option("-q", "--quiet", is_flag=True, help="Print only cases that are not as expected, and the counts.")
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
    as_json: str | None,
    junit: str | None,
    command: str | None,
    extensions: tuple[str, ...],
    verbose: bool,
    quiet: bool,
) -> None:
    """Run the vectors in DIR and below, and print what became of each, with the counts of each class.

    DIR is bitstream_vectors of the source tree that this program runs from, unless given. Each case is decoded in a
    process with limits of time and memory. Exit code 0 says that all are as expected, 1 that some are not.
    """
    from nnr_codec.conformance.vectors import load_cases, run, summary

    if extensions and not command:
        raise click.UsageError("--extension is about another decoder: it goes with --decoder")
    if as_json and as_json == junit:
        raise click.UsageError("--json and --junit cannot go to the same place")
    root = Path(folder) if folder else _shipped()
    reports = {name: _target(name) for name in (as_json, junit) if name}
    cases = [
        case
        for case in load_cases(root)
        if case.kind in kinds
        and (not only or any(fnmatchcase(case.id, pattern) for pattern in only))
        and (profile is None or case.profile_idc == profile)
        and all(name in case.features or name in (f.partition("=")[0] for f in case.features) for name in feature)
    ]
    if not cases:
        raise click.UsageError("no case is left of those that are there")
    started, results = time.perf_counter(), []
    for result in run(cases, root, jobs=jobs, timeout=timeout, memory=memory, command=command, extensions=extensions):
        results.append(result)
        if not quiet or not result.is_fine:
            click.echo(one_line(_line(result, verbose)), err="-" in reports)
        if fail_fast and not result.is_fine:
            break
    seconds = time.perf_counter() - started
    for name, text in ((as_json, _as_json), (junit, _as_junit)):
        if name:
            _write(name, reports[name], text(results, seconds))
    click.echo(f"{summary(results)}, {seconds:.1f} s", err="-" in reports)
    ctx.exit(0 if all(result.is_fine for result in results) else NO)


def _shipped() -> Path:
    import nnr_codec

    folder = Path(nnr_codec.__file__).parents[1] / "bitstream_vectors"
    if not folder.is_dir():
        raise click.UsageError(
            "this installation has no vectors beside it: name the folder bitstream_vectors of a source distribution "
            "('pip download --no-deps --no-binary nnr_codec nnr_codec') or checkout of nnr_codec"
        )
    return folder


def _line(result: Result, verbose: bool) -> str:
    detail = f": {result.detail}" if result.detail and (verbose or result.outcome != "PASS") else ""
    taken = f"{1000 * result.seconds:7.1f} ms  " if verbose else ""
    return f"{result.outcome:8}{taken}{result.case.id}  {result.case.title}{detail}"


def _target(name: str) -> Any:
    """Where a report goes; found out before the work."""
    return params.open_target(name, "", force=True, folder=False)


def _write(name: str, stream: Any, text: bytes) -> None:
    from nnr_codec.files import output_file

    if stream:
        stream.write(text)
        return
    with output_file(name, overwrite=True) as file:
        file.write(text)


def _facts(case: Case) -> dict[str, Any]:
    return {"id": case.id, "group": case.group, "class": case.kind, "title": case.title}


def _as_json(results: list[Result], seconds: float) -> bytes:
    import platform

    from nnr_codec import __version__

    report = {
        "tool": "nnr_codec",
        "version": __version__,
        "platform": platform.platform(),
        "seconds": round(seconds, 3),
        "fine": sum(result.is_fine for result in results),
        "cases": [
            {
                **_facts(result.case),
                "outcome": result.outcome,
                "ms": round(1000 * result.seconds, 1),
                "detail": result.detail,
            }
            for result in results
        ],
    }
    return json.dumps(report, indent=1).encode() + b"\n"


def _as_junit(results: list[Result], seconds: float) -> bytes:
    """A suite for each group; CRASH, ERROR, TIMEOUT and OOM are errors, FAIL and XPASS are failures."""
    from nnr_codec.conformance.vectors import Outcome

    suites = ElementTree.Element("testsuites", name="nnr conformance", time=f"{seconds:.3f}")
    kinds = {Outcome.FAIL: "failure", Outcome.XPASS: "failure", Outcome.SKIP: "skipped"}
    for group in dict.fromkeys(result.case.group for result in results):
        mine = [result for result in results if result.case.group == group]
        tags = [kinds.get(result.outcome, "error") for result in mine if result.outcome != Outcome.PASS]
        counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
        attributes = {
            "name": one_line(group),
            "tests": str(len(mine)),
            "time": f"{sum(result.seconds for result in mine):.3f}",
            **{name: str(tags.count(tag)) for name, tag in counts.items()},
        }
        suite = ElementTree.SubElement(suites, "testsuite", attributes)
        for result in mine:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                name=one_line(result.case.id),
                classname=f"nnr.{one_line(group)}",
                time=f"{result.seconds:.3f}",
            )
            if result.outcome != Outcome.PASS:
                tag = kinds.get(result.outcome, "error")
                ElementTree.SubElement(case, tag, type=result.outcome, message=one_line(result.detail))
    return bytes(ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)) + b"\n"
