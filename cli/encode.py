"""``nnr encode``: a model file in, a bitstream out."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import click

from . import output

if TYPE_CHECKING:
    import nnr_codec as nnr

Value = bool | int | None


@click.command(
    epilog="""\b
Examples:
  nnr encode model.nnef -o model.nnr
  nnr encode weights.npz -o weights.nnr --qp -32 --rule 'head.*:exact=true' --check
"""
)
@click.argument("model", type=click.Path())
@click.option("-o", "--output", "target", required=True, metavar="OUT.nnr", help="The bitstream; - for standard output.")
@click.option("--qp", type=int, help="Quantization parameter: 4 less halve the error (default -40, a step of 1/1024).")
@click.option("--qp-density", type=click.IntRange(0, 7), help="Steps of qp that double the step size, as a power of 2.")
@click.option("--profile", type=click.IntRange(0, 1), help="1: extended feature set (default), 0: base feature set.")
@click.option("--dq/--no-dq", default=None, help="Dependent quantization (default) or uniform.")
@click.option("--scan-order", type=click.IntRange(0, 4), help="Block scan with entry points: 8, 16, 32 or 64 wide.")
@click.option("--row-skipping/--no-row-skipping", default=None, help="Code rows of zeros as one flag each.")
@click.option("--rule", "rules", multiple=True, metavar="GLOB:KEY=VALUE,...", help="Options for some tensors; repeatable.")
@click.option("--format", "model_format", metavar="NAME", help="Format of MODEL (default: by its content).")
@click.option("--check", is_flag=True, help="Decode what was written and print the largest error and the SNR.")
@click.option("-f", "--force", is_flag=True, help="Replace an existing output.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each tensor.")
def encode(
    model: str,
    target: str,
    rules: tuple[str, ...],
    model_format: str | None,
    check: bool,
    force: bool,
    quiet: bool,
    verbose: bool,
    dq: bool | None,
    **options: Any,
) -> None:
    """Compress MODEL (an NNEF folder or archive, or .npz; - for standard input) into an NNR bitstream."""
    import nnr_codec as nnr

    printer = output.Printer(quiet, verbose)
    try:
        given = {name: value for name, value in {**options, "dependent_quantization": dq}.items() if value is not None}
        config = nnr.EncoderConfig(**given, rules=tuple(parse_rule(rule) for rule in rules))
    except nnr.EncodeError as error:
        raise click.UsageError(str(error)) from None
    if target != "-" and not force and os.path.lexists(target):
        raise FileExistsError(f"{target} exists")
    source = nnr.load(output.stdin() if model == "-" else model, format=model_format)
    stream = output.stdout() if target == "-" else None
    kept = io.BytesIO() if stream and check else None
    with printer.progress("encoding", len(source)) as advance:

        def note(tensor: Any) -> None:
            printer.detail(
                f"{tensor.name}: {tensor.source_bytes:,} -> {tensor.unit_bytes:,} bytes, "
                f"{8 * tensor.unit_bytes / tensor.parameters:.2f} bits/parameter"
            )
            advance(tensor.name)

        report = nnr.encode_file(source, kept or stream or target, config, overwrite=force, progress=note)
    if stream and kept:
        stream.write(kept.getvalue())
    printer.note(
        f"{model} -> {target}: {report.source_bytes:,} -> {report.nbytes:,} bytes ({100 * report.ratio:.2f} %, "
        f"{report.bits_per_parameter:.2f} bits/parameter) in {report.seconds:.2f} s"
    )
    if check:
        printer.note(compare(source, nnr.open(kept.getvalue() if kept else target)))


def compare(source: nnr.Model, decoded: nnr.NnrFile) -> str:
    """The largest error and the SNR of all tensors, tensor by tensor in float64."""
    import numpy as np

    largest, where, signal, noise = 0.0, "", 0.0, 0.0
    for name in source:
        before = np.asarray(source[name]).reshape(-1)
        after = np.asarray(decoded[name]).reshape(-1)
        differs = np.flatnonzero(~((before == after) | ((before != before) & (after != after))))
        signal += float(np.dot(before.astype(np.float64), before.astype(np.float64))) if np.isfinite(before).all() else 0.0
        if differs.size:
            error = before[differs].astype(np.float64) - after[differs]
            noise += float(np.dot(error, error))
            if (worst := float(np.abs(error).max())) > largest:
                largest, where = worst, name
    if not where:
        return "check: decodes to the same values"
    return f"check: largest error {largest:.3g} (in {where}), SNR {10 * np.log10(signal / noise):.2f} dB"


def parse_rule(text: str) -> nnr.Rule:
    """``GLOB:key=value,key=value`` as a Rule."""
    import nnr_codec as nnr

    pattern, colon, options = text.rpartition(":")
    if not colon or not pattern:
        raise click.UsageError(f"rule {text!r} is not GLOB:KEY=VALUE,..., as in 'conv1/*:qp=-44'")
    values: dict[str, Value] = {}
    for option in options.split(","):
        key, equals, value = option.partition("=")
        if not equals:
            raise click.UsageError(f"rule {text!r}: {option!r} is not KEY=VALUE")
        values[{"dq": "dependent_quantization"}.get(key, key).replace("-", "_")] = _value(text, value)
    return nnr.Rule(pattern, **values)


def _value(rule: str, text: str) -> Value:
    words: dict[str, Value] = {"true": True, "yes": True, "false": False, "no": False, "auto": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(f"rule {rule!r}: {text!r} is neither a whole number nor true, false or auto") from None
