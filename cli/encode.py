"""``nnr encode``: a model file in, a bitstream out."""

from __future__ import annotations

import io
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from . import output, params
from .diff import errors_told

if TYPE_CHECKING:
    import nnr_codec as nnr
    from nnr_codec.compare import ModelDifference

PRESETS = DEFAULT, LOSSLESS = "default", "lossless"


@click.command(
    short_help="Compress a model into a bitstream.",
    epilog="""\b
Examples:
  nnr encode model.nnef -o model.nnr
  nnr encode model.safetensors -o model.nnr --lossless
  nnr encode weights.npz -o weights.nnr --qp -32 --rule 'head.*:exact=true' --check

\b
Keys of a rule: qp, dq, exact, scan_order, row_skipping, cabac_unary_length_minus1,
choose_shift_parameters. Where several rules match a tensor, the last one wins.
""",
)
@click.argument("model", type=params.FileName())
@params.target("OUT.nnr", "The bitstream")
@click.option("--qp", type=int, help="Quantization parameter: 4 less halve the error (default -40, a step of 1/1024).")
@click.option(
    "--qp-density",
    type=click.IntRange(0, 7),
    help="Steps of qp that double the step size, as a power of 2 (default 2).",
)
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    help="Options that go together. lossless: all tensors come back bit for bit; default: weights are quantized.",
)
@click.option("--lossless", is_flag=True, help="Short for --preset lossless.")
@click.option("--profile", type=click.IntRange(0, 1), help="1: extended feature set (default), 0: base feature set.")
@click.option("--dq/--no-dq", default=None, help="Dependent quantization (default) or uniform.")
@click.option(
    "--scan-order",
    type=click.IntRange(0, 4),
    help="0: row by row (default); 1 to 4: blocks of 8, 16, 32, 64 with entry points.",
)
@click.option("--row-skipping/--no-row-skipping", default=None, help="Code rows of zeros as one flag each.")
@click.option(
    "--max-unit-size",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Spread tensors over units of at most so many bytes (up to 255 each).",
)
@click.option(
    "--no-side-info",
    "side_info",
    is_flag=True,
    flag_value=False,
    default=None,
    help="Refuse what needs side information, which other decoders skip: types, shapes and metadata unknown to NNR.",
)
@click.option("--indexed-references", is_flag=True, default=None, help="Name the tensors once, in a list.")
@click.option(
    "--rule",
    "rules",
    multiple=True,
    callback=params.rules,
    metavar="GLOB:KEY=VALUE,...",
    help="Options for the tensors whose names match; repeatable.",
)
@params.model_format("by its content")
@click.option(
    "--check", is_flag=True, help="Decode what was written and print the largest error, or that no bit differs."
)
@params.limits
@params.conversion
def encode(
    model: str,
    target: str,
    model_format: str | None,
    preset: str | None,
    lossless: bool,
    check: bool,
    limits: nnr.Limits,
    force: bool,
    quiet: bool,
    verbose: bool,
    dq: bool | None,
    **options: Any,
) -> None:
    """Compress MODEL into an NNR bitstream.

    MODEL is an NNEF folder or archive (.tar, .tgz), a .safetensors file or an .npz; - for standard input.
    """
    import nnr_codec as nnr

    printer = output.Printer(quiet, verbose)
    if lossless and preset not in (None, LOSSLESS):
        raise click.UsageError(f"--lossless is --preset {LOSSLESS}, not {preset}")
    given = {name: value for name, value in {**options, "dependent_quantization": dq}.items() if value is not None}
    try:
        config = nnr.EncoderConfig.preset(LOSSLESS if lossless else preset or DEFAULT, **given)
    except nnr.EncodeError as error:
        raise click.UsageError(str(error)) from None
    stream = params.open_target(target, model, force=force, folder=False)
    kept = io.BytesIO() if stream and check else None
    source = nnr.load(output.stdin() if model == "-" else model, format=model_format, limits=limits)
    for rule in config.rules:
        if not any(fnmatchcase(name, rule.pattern) for name in source):
            printer.warning(f"rule {rule.pattern!r} matches no tensor")
    with printer.progress("encoding", len(source)) as advance:

        def note(tensor: Any) -> None:
            bits = f", {8 * tensor.unit_bytes / tensor.parameters:.2f} bits/parameter" if tensor.parameters else ""
            printer.detail(f"{tensor.name}: {tensor.source_bytes:,} -> {tensor.unit_bytes:,} bytes{bits}")
            advance()

        report = nnr.encode_file(source, kept or stream or target, config, overwrite=force, progress=note)
    if stream and kept:
        stream.write(kept.getvalue())
    printer.note(f"{model} -> {target}: {summary(report)} in {report.seconds:.2f} s")
    if check:
        with printer.progress("checking", len(source)) as advance:
            decoded = nnr.open(kept.getvalue() if kept else target, limits=limits)
            found = nnr.compare_models(source, decoded, advance)
        printer.note(f"check: {checked(found)}")


def checked(found: ModelDifference) -> str:
    """What the comparison of a model with its bitstream says."""
    if found.same():
        return "decodes to the same tensors, bit for bit"
    others = [*found.missing, *found.extra, *found.shapes, *found.dtypes]
    more = f"; {output.tensors(len(others))} of another type or shape (as {others[0]!r})" if others else ""
    return f"{errors_told(found)}{more}"


def summary(report: nnr.EncodeReport) -> str:
    """Sizes before and after."""
    sizes = f"{report.source_bytes:,} -> {report.nbytes:,} bytes"
    if not report.parameters:
        return sizes
    return f"{sizes} ({100 * report.ratio:.2f} %, {report.bits_per_parameter:.2f} bits/parameter)"
