"""``nnr calibrate``: measure the cost of errors in each weight with sample inputs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from . import output, params

if TYPE_CHECKING:
    import nnr_codec as nnr

#: Samples in a batch of a PyTorch module; each batch gives one gradient.
BATCH = 4


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
@click.option(
    "--data",
    required=True,
    type=params.FileName(),
    metavar="FILE.npz",
    help="Sample inputs: an array for each input of the network, with samples along the first dimension.",
)
@click.option(
    "--module",
    metavar="MODULE:FUNCTION",
    help="Function or class of a Python module in the current folder that returns the torch.nn.Module to which the "
    "weights in MODEL belong. Without it, MODEL is an ONNX file.",
)
@click.option("--samples", type=click.IntRange(1), metavar="N", help="Use the first N samples (default: all).")
@params.target("KNOWN.npz", "The archive for nnr encode --sensitivity")
@params.limits
@click.option("-f", "--force", "--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def calibrate(
    model: str,
    data: str,
    module: str | None,
    samples: int | None,
    target: str,
    limits: nnr.Limits,
    force: bool,
    quiet: bool,
) -> None:
    """Run the network in MODEL on sample inputs, and write the costs of errors for nnr encode --sensitivity.

    No labels are required. 64 to 512 samples are usual; do not use samples on which the result is tested.
    """
    import nnr_codec as nnr
    from nnr_codec.integrations import onnx
    from nnr_codec.integrations.second_moments import archive

    if target != "-" and not target.lower().endswith(".npz"):
        raise click.UsageError(f"{target!r} must end in .npz")
    started, printer = time.perf_counter(), output.Printer(quiet)
    stream = params.open_target(target, model, data, force=force, folder=False)
    inputs = nnr.load(data, format="npz", limits=limits).tensors
    counts = {name: len(array) if array.ndim else 0 for name, array in inputs.items()}
    if len({*counts.values()}) != 1 or 0 in counts.values():
        raise nnr.EncodeError(f"{data} must have arrays with the same number of samples, got {counts}")
    given = {name: array[:samples] for name, array in inputs.items()}
    with printer.progress("calibrating", 1) as progress:
        if module:
            costs, moments = of_module(module, output.model(model, limits=limits), given)
        else:
            costs, moments = onnx.sensitivity(model, given, progress=progress)
    known = nnr.Model(archive(costs, moments))
    output.save(known, stream, target, "npz", force)
    count = len(next(iter(given.values())))
    printer.note(
        f"{model} -> {target}: costs of {output.tensors(len(costs))}, second moments of {len(moments):,}, "
        f"from {count:,} samples in {time.perf_counter() - started:.2f} s"
    )


def of_module(
    place: str, weights: nnr.Model, samples: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the costs and second moments of the network that ``MODULE:FUNCTION`` returns."""
    import nnr_codec as nnr
    from nnr_codec import formats
    from nnr_codec.integrations import torch as integration

    name, colon, function = place.partition(":")
    if not (name and colon and function):
        raise click.UsageError(f"--module {place!r} is not of the form MODULE:FUNCTION, such as network:Net")
    sys.path.insert(0, os.getcwd())
    try:
        network = getattr(import_module(name), function)()
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"--module {place!r}: {error}") from None
    torch = formats.require("torch", "torch", "a PyTorch module")
    integration.load_state(network, weights)
    starts = range(0, len(next(iter(samples.values()))), BATCH)
    try:
        tensors = {key: torch.from_numpy(array) for key, array in samples.items()}
        batches = ({key: array[start : start + BATCH] for key, array in tensors.items()} for start in starts)
        loader = (next(iter(batch.values())) if len(batch) == 1 else batch for batch in batches)
        return integration.sensitivity(network, loader)
    except (RuntimeError, TypeError, ValueError) as error:  # of the network
        raise nnr.EncodeError(f"the module {place} cannot run on the samples: {str(error).splitlines()[0]}") from None
