"""``nnr ls``: list the tensors of a bitstream, from headers only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from . import maps, output, params
from .errors import one_line

if TYPE_CHECKING:
    import nnr_codec as nnr
    from nnr_codec.bitstream.attachments import Attachments


@click.command(
    short_help="List the tensors of a bitstream.",
    epilog="""\b
Examples:
  nnr ls model.nnr
  nnr ls model.nnr --maps
  nnr ls model.nnr --attachments
  nnr ls model.nnr --json | jq '.[] | select(.bits_per_parameter > 8).name'
""",
)
@click.argument("bitstream", type=params.FileName())
@click.option("--maps", "of_maps", is_flag=True, help="Print the performance maps: accuracy after further reduction.")
@click.option("--attachments", "of_attachments", is_flag=True, help="List the attachments instead of the tensors.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@params.topology("Topology of a bitstream without one, for shapes and tensors that it omits")
@params.limits
def ls(
    bitstream: str, of_maps: bool, of_attachments: bool, as_json: bool, topology: str | None, limits: nnr.Limits
) -> None:
    """List the tensors of BITSTREAM (- for standard input): shape, type, coding, tools, bytes, bits per parameter.

    Only headers are decoded. The column coded shows the contents of the units and, after a +, the code of the side
    information that restores the tensor; dq in the column tools is dependent quantization. Tensors that share a unit
    with the tensor above have 0 bytes, as do tied tensors (= NAME), tensors without elements, and tensors derived from
    a folded batch normalization.
    """
    import nnr_codec as nnr
    from nnr_codec.decoder.restore import BITS, UPDATE

    if of_maps and of_attachments:
        raise click.UsageError("--maps and --attachments cannot be combined; choose one")
    given = params.given(topology, limits, bitstream)
    with output.source(bitstream) as data, nnr.NnrFile(data, limits, topology=given) as file:
        output.Printer().passed_over(file.ignored)
        try:
            file.check_complete()
        except nnr.TruncatedError as error:
            output.Printer().warning(f"{bitstream}: {error}")
        if of_maps:
            maps.print_maps(file, as_json)
            return
        attachments = file.attachments
        if of_attachments:
            _print_attachments(attachments, as_json)
            return
        infos, update = list(file.info.values()), output.update_of(file)
        bits = file.side.metadata.get(UPDATE) == BITS
    if as_json:
        rows = [
            {
                "name": info.name,
                "shape": info.shape,
                "dtype": info.type,
                "payload_type": info.payload_type.name if info.payload_type is not None else None,
                "code": info.code or None,
                "same_as": info.same_as or None,
                "tools": info.tools,
                "bytes": info.nbytes,
                "bits_per_parameter": round(info.bits_per_parameter, 4),
            }
            for info in infos
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    output.table(
        ("name", "shape", "type", "coded", "tools", "bytes", "bits/par"),
        (
            (
                info.name,
                output.dims(info.shape),
                info.type,
                _coded(info),
                " ".join(info.tools),
                f"{info.nbytes:,}",
                f"{info.bits_per_parameter:.2f}",
            )
            for info in infos
        ),
        right=("bytes", "bits/par"),
        fold=("name", "coded", "tools"),
    )
    parameters = sum(info.parameters for info in infos if not info.same_as)
    nbytes = sum(info.nbytes for info in infos)
    each = f", {8 * nbytes / parameters:.2f} bits/parameter" if parameters else ""
    click.echo(f"{output.tensors(len(infos))}, {parameters:,} parameters, {nbytes:,} bytes{each}")
    if attachments:
        sizes = f", {sum(attachments.sizes.values()):,} -> {sum(attachments.coded_sizes.values()):,} bytes"
        click.echo(output.attachments(attachments, sizes))
    if update:
        of_bits = " (of bit patterns)" if bits else ""
        click.echo(
            one_line(f"{update}: tensors with the tool update are stored as differences{of_bits}, the others whole")
        )


def _print_attachments(attachments: Attachments, as_json: bool) -> None:
    """Print the names and sizes of the attachments."""
    rows = [(name, size, attachments.coded_sizes[name]) for name, size in attachments.sizes.items()]
    if as_json:
        keys = "name", "bytes", "coded_bytes"
        click.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=1))
        return
    cells = ((name, f"{size:,}", f"{coded:,}") for name, size, coded in rows)
    output.table(("name", "bytes", "coded"), cells, right=("bytes", "coded"), fold=("name",))
    where = one_line(f"; the tensors are from {attachments.file_name}") if attachments.file_name else ""
    click.echo(f"{len(rows):,} attachment{'' if len(rows) == 1 else 's'}{where}")


def _coded(info: nnr.TensorInfo) -> str:
    """Describe the contents of the units of a tensor, and their conversion."""
    if info.same_as:
        return f"= {info.same_as}"
    if info.payload_type is None:
        return "-"
    kind = info.payload_type.name.removeprefix("NNR_PT_").lower()
    return f"{kind}+{info.code}" if info.code else kind
