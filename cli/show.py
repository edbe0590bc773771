"""``nnr ls`` and ``nnr inspect``: what a bitstream holds, from headers alone."""

from __future__ import annotations

import json

import click

from . import output



@click.command(
    epilog="""\b
Examples:
  nnr ls model.nnr
  nnr ls model.nnr --json | jq '.[] | select(.bits_per_parameter > 8).name'
"""
)
@click.argument("bitstream", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls(bitstream: str, as_json: bool) -> None:
    """List the tensors of BITSTREAM: shape, type, coding tools, bytes, bits per parameter."""
    import nnr_codec as nnr

    with nnr.open(output.stdin() if bitstream == "-" else bitstream) as file:
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
                "x".join(map(str, info.shape)),
                info.dtype.name,
                " ".join(info.tools),
                output.count(info.nbytes),
                f"{info.bits_per_parameter:.2f}",
            )
            for info in infos
        ),
        right=("bytes", "bits/par"),
    )
    parameters, nbytes = sum(info.parameters for info in infos), sum(info.nbytes for info in infos)
    each = f", {8 * nbytes / parameters:.2f} bits/parameter" if parameters else ""
    click.echo(f"{len(infos)} tensors, {parameters:,} parameters, {nbytes:,} bytes{each}")


@click.command(
    epilog="""\b
Examples:
  nnr inspect model.nnr
  nnr inspect - < model.nnr
"""
)
@click.argument("bitstream", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(bitstream: str, as_json: bool) -> None:
    """Print one line for each unit of BITSTREAM: offset, size, type, name, shape, tools, bits per parameter."""
    from dataclasses import asdict

    import nnr_codec as nnr

    infos = nnr.inspect(output.stdin() if bitstream == "-" else bitstream)
    if as_json:
        click.echo(json.dumps([asdict(info) for info in infos], indent=1))
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
                "x".join(map(str, info.shape)),
                info.detail,
                f"{info.bits_per_parameter:.2f}" if info.bits_per_parameter else "",
            )
            for info in infos
        ),
        right=("offset", "size", "bits/par"),
    )
