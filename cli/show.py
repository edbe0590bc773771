"""``nnr ls`` and ``nnr inspect``: what a bitstream holds, from headers alone."""

from __future__ import annotations

import json

import click

from . import output, params


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
def ls(bitstream: str, as_json: bool) -> None:
    """List the tensors of BITSTREAM (- for standard input): shape, type, coding tools, bytes, bits per parameter.

    Nothing is decoded but headers. Tensors that share a unit with the one above them have 0 bytes of their own.
    """
    import nnr_codec as nnr

    with output.source(bitstream) as data, nnr.open(data) as file:
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


@click.command(
    short_help="Print a line for each unit of a bitstream.",
    epilog="""\b
Examples:
  nnr inspect model.nnr
  nnr inspect --json - < model.nnr
""",
)
@click.argument("bitstream", type=params.FileName())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(bitstream: str, as_json: bool) -> None:
    """Print one line for each unit of BITSTREAM (- for standard input).

    Offset and size in bytes, type, name, shape, coding tools, bits per parameter; units of an aggregate are indented.
    """
    from dataclasses import asdict

    import nnr_codec as nnr

    with output.source(bitstream) as data:
        infos = nnr.inspect(data)
        if not infos:
            raise nnr.BitstreamError("the bitstream has no unit (6.2.3)")
    if as_json:
        rows = [{**asdict(info), "bits_per_parameter": info.bits_per_parameter} for info in infos]
        click.echo(json.dumps(rows, indent=1))
        return
    output.table(
        ("unit", "offset", "size", "type", "name", "shape", "detail", "bits/par"),
        (
            (
                "  " * info.depth + str(info.index),
                str(info.offset),
                str(info.size),
                info.type,
                " ".join(info.names),
                output.dims(info.shape),
                info.detail,
                f"{info.bits_per_parameter:.2f}" if info.bits_per_parameter else "",
            )
            for info in infos
        ),
        right=("offset", "size", "bits/par"),
        fold=("name", "detail"),
    )
