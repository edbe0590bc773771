"""``nnr decode``: a bitstream in, a model file out."""

from __future__ import annotations

import time

import click

from . import output, params


@click.command(
    short_help="Decode a bitstream into a model.",
    epilog="""\b
Examples:
  nnr decode model.nnr -o model.nnef
  nnr decode - -o weights.npz < weights.nnr
""",
)
@click.argument("bitstream", type=params.FileName())
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    type=params.FileName(),
    metavar="MODEL",
    help="The model; - for standard output.",
)
@click.option(
    "--format",
    "model_format",
    metavar="NAME",
    callback=params.format_name,
    shell_complete=params.format_names,
    help="Format of MODEL (default: by its name).",
)
@params.conversion
def decode(bitstream: str, target: str, model_format: str | None, force: bool, quiet: bool, verbose: bool) -> None:
    """Decode BITSTREAM (- for standard input) into a model.

    The name of MODEL decides on its format: a folder (name.nnef), .tar, .tgz or .nnef.tgz for NNEF, or .npz. Standard
    output gets a tar of NNEF when the bitstream carries an NNEF graph, else an npz.
    """
    import nnr_codec as nnr
    from nnr_codec import formats

    printer = output.Printer(quiet, verbose)
    if target != "-" and not model_format:
        try:
            formats.by_suffix(target)
        except nnr.FormatError as error:
            raise click.UsageError(str(error)) from None
    stream = params.open_target(target, bitstream, force=force, folder=True)
    started = time.perf_counter()
    with output.source(bitstream) as data, nnr.open(data) as file, printer.progress("decoding", len(file)) as advance:

        def note(name: str) -> None:
            info = file.info[name]
            printer.detail(f"{name}: {info.dtype.name} {output.dims(info.shape)}")
            advance()

        model, nbytes = file.decode(note), file.nbytes
    nnr.save(model, stream or target, format=model_format, overwrite=force)
    size = sum(array.nbytes for array in model.tensors.values())
    printer.note(
        f"{bitstream} -> {target}: {nbytes:,} -> {size:,} bytes, {output.tensors(len(model))} "
        f"in {time.perf_counter() - started:.2f} s"
    )
