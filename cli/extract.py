"""``nnr extract``: extract a self-contained part of a bitstream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import output, params

if TYPE_CHECKING:
    import nnr_codec as nnr


@click.command(
    short_help="Extract a self-contained part of a bitstream.",
    epilog="""\b
Examples:
  nnr extract model.nnr --unit 4 -o part.nnr
  nnr extract - --unit 4 -o - < model.nnr | nnr ls -
""",
)
@click.argument("bitstream", type=params.FileName())
@click.option(
    "--unit", type=click.IntRange(0), required=True, metavar="N", help="Number of the unit, as printed by nnr inspect."
)
@params.target("PART", "The bitstream to write")
@click.option("--generic", is_flag=True, help="Also extract a unit that is not declared self-contained.")
@params.limits
@click.option("-f", "--force", "--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def extract(
    bitstream: str, unit: int, target: str, generic: bool, limits: nnr.Limits, force: bool, quiet: bool
) -> None:
    """Extract unit N of BITSTREAM (- for standard input): an aggregate unit, or a layer parameter set with its units.

    PART includes the start unit and the model parameter set, and decodes without the rest. A unit that refers to
    anything outside it is rejected.
    """
    import nnr_codec as nnr
    from nnr_codec.files import output_file

    stream = params.open_target(target, bitstream, force=force, folder=False)
    params.check_bitstream_name(target)
    with output.source(bitstream) as data:
        part = nnr.extract(data, unit, generic=generic, limits=limits)
    if stream:
        stream.write(part)
    else:
        with output_file(target, overwrite=force) as file:
            file.write(part)
    output.Printer(quiet).note(f"{bitstream} -> {target}: unit {unit}, {len(part):,} bytes")
