"""``nnr ls``: the tensors of a bitstream, from headers alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from . import output, params

if TYPE_CHECKING:
    import nnr_codec as nnr


@click.command(
    short_help="List the tensors of a bitstream.",
    epilog="""\b
Examples:
  nnr ls model.nnr
  nnr ls model.nnr --json | jq '.[] | select(.bits_per_parameter > 8).name'
""",
)
@click.argument("bitstream", type=params.FileName())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@params.limits
def ls(bitstream: str, as_json: bool, limits: nnr.Limits) -> None:
    """List the tensors of BITSTREAM (- for standard input): shape, type, coding tools, bytes, bits per parameter.

    Nothing is decoded but headers. Tensors that share a unit with the one above them have 0 bytes of their own.
    """
    import nnr_codec as nnr

    with output.source(bitstream) as data, nnr.open(data, limits=limits) as file:
        infos = list(file.info.values())
    if as_json:
        rows = [
            {
                "name": info.name,
                "shape": info.shape,
                "dtype": info.dtype.name,
                "payload_type": info.payload_type.name,
                "tools": info.tools,
                "bytes": info.nbytes,
                "bits_per_parameter": round(info.bits_per_parameter, 4),
            }
            for info in infos
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    output.table(
        ("name", "shape", "type", "tools", "bytes", "bits/par"),
        (
            (
                info.name,
                output.dims(info.shape),
                info.dtype.name,
                " ".join(info.tools),
                f"{info.nbytes:,}",
                f"{info.bits_per_parameter:.2f}",
            )
            for info in infos
        ),
        right=("bytes", "bits/par"),
        fold=("name", "tools"),
    )
    parameters, nbytes = sum(info.parameters for info in infos), sum(info.nbytes for info in infos)
    each = f", {8 * nbytes / parameters:.2f} bits/parameter" if parameters else ""
    click.echo(f"{output.tensors(len(infos))}, {parameters:,} parameters, {nbytes:,} bytes{each}")
