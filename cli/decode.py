"""``nnr decode``: a bitstream in, a model file out."""

from __future__ import annotations

import os
import time

import click

from . import output


@click.command(
    epilog="""\b
Examples:
  nnr decode model.nnr -o model.nnef
  nnr decode - -o weights.npz < weights.nnr
"""
)
@click.argument("bitstream", type=click.Path())
@click.option("-o", "--output", "target", required=True, metavar="MODEL", help="The model; - for standard output.")
@click.option("--format", "model_format", metavar="NAME", help="Format of the model (default: by its name).")
@click.option("-f", "--force", is_flag=True, help="Replace an existing output.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each tensor.")
def decode(bitstream: str, target: str, model_format: str | None, force: bool, quiet: bool, verbose: bool) -> None:
    """Decode BITSTREAM (- for standard input) into a model.

    The name of MODEL decides on its format: a folder (name.nnef), .tar, .tgz or .nnef.tgz for NNEF, or .npz.
    """
    import nnr_codec as nnr
    from nnr_codec import formats

    printer = output.Printer(quiet, verbose)
    if target != "-":
        formats.get(model_format) if model_format else formats.by_suffix(target)
        if not force and os.path.lexists(target):
            raise FileExistsError(f"{target} exists")
    stream = output.stdout() if target == "-" else None
    started = time.perf_counter()
    with nnr.open(output.stdin() if bitstream == "-" else bitstream) as file:
        tensors = {}
        with printer.progress("decoding", len(file)) as advance:
            for name in file:
                tensors[name] = file[name]
                printer.detail(f"{name}: {file.info[name].dtype.name} {list(file.info[name].shape)}")
                advance(name)
        nbytes, topology = file.nbytes, file.topology
    model = nnr.Model(tensors, topology)
    nnr.save(model, stream or target, format=model_format, overwrite=force)
    size = sum(array.nbytes for array in tensors.values())
    printer.note(
        f"{bitstream} -> {target}: {nbytes:,} -> {size:,} bytes, {len(tensors)} tensors "
        f"in {time.perf_counter() - started:.2f} s"
    )
