"""``nnr verify``: check a bitstream, or an NNEF, SkriptND or OpenVINO model, and print digests of tensors."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import output, params
from .errors import NO, one_line

if TYPE_CHECKING:
    import nnr_codec as nnr

_HINT = "nnr verify checks bitstreams, NNEF, OpenVINO and SkriptND models; use nnr encode first"


@click.command(
    short_help="Check the conformance of a bitstream, or of an NNEF, SkriptND or OpenVINO model.",
    epilog="""\b
Examples:
  nnr verify model.nnr
  nnr verify update2.nnr -i base.nnr -i update1.nnr
  nnr verify model.nnr --digest > model.digests
  nnr verify model.nnr --against model.digests
  nnr verify model.nnef
  nnr verify model.xml
""",
)
@click.argument("bitstreams", nargs=-1, required=True, type=params.FileName(), metavar="FILE...")
@params.inputs("A bitstream that FILE updates")
@params.topology("Topology that replaces the topologies in the bitstreams")
@click.option("--digest", "as_manifest", is_flag=True, help="Print a manifest of SHA-256 digests of the tensors.")
@click.option("--against", type=params.FileName(), metavar="MANIFEST", help="Compare the tensors with a manifest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@params.limits
def verify(
    bitstreams: tuple[str, ...],
    inputs: tuple[str, ...],
    topology: str | None,
    as_manifest: bool,
    against: str | None,
    as_json: bool,
    limits: nnr.Limits,
) -> None:
    """Parse and decode each FILE (- for standard input), and print all violations of ISO/IEC 15938-17:2024.

    Each line has file, unit, bit, syntax element, a description, and the rule with its clause; see nnr explain RULE.
    Warnings and notes are not violations. JSON output is a list with a Report for each file; see nnr explain Report.
    The exit code is 1 if there is a violation, or a difference from MANIFEST.

    A FILE that is an NNEF model (a folder, a tar, a gzipped tar, or a graph.nnef) is checked against NNEF 1.0.3: its
    graph, operands of operations, graph.quant, labels and tensor files. Lines have the file, line and column in the
    model; see nnr explain ModelReport.

    A FILE that is a SkriptND model (a folder with a main.sknd, or this file) is checked against the draft of NNEF 2:
    modules, names of operators, tensors and attributes, and tensor files.

    A FILE that is the XML of an OpenVINO IR is checked against opset1: its graph, attributes, element types and shapes
    of operations, and the size of the .bin. Models of other formats are rejected.
    """
    import nnr_codec as nnr
    from nnr_codec import formats
    from nnr_codec.conformance.digest import differences, manifest, read_manifest
    from nnr_codec.formats import nnef, openvino, skriptnd
    from nnr_codec.formats.diagnosis import check_bitstream
    from nnr_codec.urls import is_url, public

    if (as_manifest or against) and len(bitstreams) > 1:
        raise click.UsageError("--digest and --against require a single FILE")
    if as_manifest and as_json:
        raise click.UsageError("--json includes the digests; remove --digest")
    given, expected = params.given(topology, limits, *bitstreams, *inputs), None
    if against:
        with output.source(against) as file:
            expected = read_manifest(Path(file).read_bytes() if isinstance(file, str) else file.read())
    printed, models, differing, violations, warnings = [], 0, 0, 0, 0
    for name in bitstreams:
        report: nnr.Report | nnr.ModelReport
        lines: list[str] = []
        with ExitStack() as stack:
            before = [stack.enter_context(output.source(earlier)) for earlier in inputs]
            source: Any = stack.enter_context(output.source(name, or_model=True))
            is_model, is_remote = False, is_url(name)
            if not is_remote:
                source = stack.enter_context(formats.opened(source, limits))
                is_model = any(form.recognise(source) for form in (nnef, openvino, skriptnd))
                if not isinstance(source, Path):
                    source.seek(0)
                elif source.is_dir() and not is_model:
                    check_bitstream(source, _HINT)
                    is_model = True  # an incomplete model, whose report lists the missing files
            if is_model:
                if inputs or topology or as_manifest or against:
                    raise click.UsageError(
                        f"{name} is a model, but --input, --topology, --digest and --against apply to bitstreams only"
                    )
                report = nnr.verify_model(source, limits=limits)
                models += 1
            else:
                report = nnr.verify(source, limits=limits, inputs=before, topology=given)
                if (first := report.violations[:1]) and first[0].unit == 0 and not is_remote:
                    check_bitstream(source, _HINT)
        if expected is not None and isinstance(report, nnr.Report):
            wrong = differences(expected, {tensor.name: tensor for tensor in report.tensors})
            lines = [f"tensor {tensor!r} {what}" for tensor, what in wrong.items()]
        shown = public(name)
        violations, warnings = violations + len(report.violations), warnings + len(report.warnings)
        differing += len(lines)
        if as_json:
            printed.append({"file": shown, **asdict(report), "differences": lines})
            continue
        _print(shown, report, lines, to_stderr=as_manifest)
        if as_manifest and isinstance(report, nnr.Report):
            click.echo(json.dumps(manifest(report.tensors), indent=1))
    if as_json:
        click.echo(json.dumps(printed, indent=1))
    else:
        files = (len(bitstreams) - models, "bitstream"), (models, "model")
        counts = *(file for file in files if file[0]), (violations, "violation"), (warnings, "warning")
        line = ", ".join(f"{count:,} {what}{'' if count == 1 else 's'}" for count, what in counts)
        click.echo(line, err=as_manifest)
    if violations or differing:
        raise click.exceptions.Exit(NO)


def _print(name: str, report: nnr.Report | nnr.ModelReport, differences: list[str], *, to_stderr: bool) -> None:
    """Print a line for each finding; names and messages may contain text of the file."""
    lines: list[Any] = [*report.violations, *differences]
    lines += [f"warning: {warning}" for warning in report.warnings]
    lines += [f"note: {note}" for note in report.notes]
    for line in lines:
        click.echo(one_line(f"{name}: {line}"), err=to_stderr)
