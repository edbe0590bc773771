"""``nnr calibrate``: measure the cost of errors in each weight with sample inputs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from . import output, params, samples

if TYPE_CHECKING:
    import nnr_codec as nnr


@click.command(
    short_help="Measure with sample inputs how much errors in each weight matter.",
    epilog="""\b
Examples:
  nnr calibrate model.onnx --data samples.npz -o known.npz
  nnr calibrate weights.safetensors --module network:Net --data samples.npz -o known.npz
  nnr encode model.onnx -o model.nnr --target-ratio 10% --sensitivity known.npz
""",
)
@click.argument("model", type=params.FileName())
@samples.options("", required=True)
@click.option("--samples", "first", type=click.IntRange(1), metavar="N", help="Use the first N samples (default: all).")
@params.target("KNOWN.npz", "The archive for nnr encode --sensitivity")
@params.limits
@click.option("-f", "--force", "--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def calibrate(
    model: str,
    data: str,
    module: str | None,
    first: int | None,
    target: str,
    limits: nnr.Limits,
    force: bool,
    quiet: bool,
) -> None:
    """Run the network in MODEL on sample inputs, and write the costs of errors for nnr encode --sensitivity.

    No labels are required. 64 to 512 samples are usual; do not use samples on which the result is tested.
    """
    import nnr_codec as nnr
    from nnr_codec.integrations.second_moments import archive

    if target != "-" and not target.lower().endswith(".npz"):
        raise click.UsageError(f"{target!r} must end in .npz")
    started, printer = time.perf_counter(), output.Printer(quiet)
    stream = params.open_target(target, model, data, force=force, folder=False)
    given = samples.Samples.read(data, model, module, limits, first=first)
    with printer.progress("calibrating", 1) as progress:
        costs, moments = given.costs(progress)
    known = nnr.Model(archive(costs, moments))
    output.save(known, stream, target, "npz", force)
    printer.note(
        f"{model} -> {target}: costs of {output.tensors(len(costs))}, second moments of {len(moments):,}, "
        f"from {len(given):,} samples in {time.perf_counter() - started:.2f} s"
    )
