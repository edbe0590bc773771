"""``nnr extract``: extract a self-contained unit, or some tensors, of a bitstream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import output, params

if TYPE_CHECKING:
    import nnr_codec as nnr


@click.command(
    short_help="Extract a self-contained unit, or some tensors.",
    epilog="""\b
Examples:
  nnr extract model.nnr --name 'encoder.*' -o encoder.nnr
  nnr extract model.nnr --unit 4 -o part.nnr
  nnr extract - --unit 4 -o - < model.nnr | nnr ls -
""",
)
@click.argument("bitstream", type=params.FileName())
@click.option(
    "--name", "names", multiple=True, metavar="GLOB", help="Extract the tensors whose names match; repeatable."
)
@click.option("--unit", type=click.IntRange(0), metavar="N", help="Extract this unit, numbered as by nnr inspect.")
@params.target("PART", "The bitstream to write")
@click.option("--generic", is_flag=True, help="With --unit, also extract a unit that is not declared self-contained.")
@params.limits
@click.option("-f", "--force", "--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def extract(
    bitstream: str,
    names: tuple[str, ...],
    unit: int | None,
    target: str,
    generic: bool,
    limits: nnr.Limits,
    force: bool,
    quiet: bool,
) -> None:
    """Extract tensors by --name, or one unit by --unit, of BITSTREAM (- for standard input).

    PART decodes without the rest. With --name, PART has the units of the matching tensors, without aggregates,
    topology and metadata; nothing is decoded or encoded again. With --unit, PART has the start unit, the model
    parameter set and the unit unchanged: an aggregate, or a layer parameter set with its units. Tensors or units that
    require anything outside PART are rejected.
    """
    import nnr_codec as nnr
    from nnr_codec.files import output_file

    if bool(names) == (unit is not None):
        raise click.UsageError("give --name or --unit, not both")
    if generic and unit is None:
        raise click.UsageError("--generic has no effect without --unit")
    stream = params.open_target(target, bitstream, force=force, folder=False)
    params.check_bitstream_name(target)
    with output.source(bitstream) as data:
        if unit is not None:
            what, part = f"unit {unit}", nnr.extract(data, unit, generic=generic, limits=limits)
        else:
            with nnr.open(data, limits=limits) as file:
                chosen = params.matching(file, names, "--name")
                what, part = output.tensors(len(chosen)), file.extract(chosen)
    if stream:
        stream.write(part)
    else:
        with output_file(target, overwrite=force) as output_stream:
            output_stream.write(part)
    output.Printer(quiet).note(f"{bitstream} -> {target}: {what}, {len(part):,} bytes")
