"""``nnr inspect``: print a bitstream by units, elements or bins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import bins, errors, nodes, output, params

if TYPE_CHECKING:
    import nnr_codec as nnr
    from nnr_codec.bitstream.nodes import UnitNode
    from nnr_codec.bitstream.source import Bitstream
    from nnr_codec.bitstream.units import UnitReader
    from nnr_codec.decoder.state import UpdateState


def unit_types(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Convert identifiers of Table 3, with or without NNR_."""
    from nnr_codec.constants import NnrUnitType

    known = [*NnrUnitType.__members__, "NNR_RSVD", "NNR_UNSP"]
    chosen = tuple(f"NNR_{value.upper().removeprefix('NNR_')}" for value in values)
    for name in chosen:
        if name not in known:
            raise click.BadParameter(f"unknown unit type {name!r}; choose from {', '.join(known)}")
    return chosen


@click.command(
    short_help="Print the units of a bitstream, their elements and bins.",
    epilog="""\b
Examples:
  nnr inspect model.nnr
  nnr inspect model.nnr --name 'conv1*'
  nnr inspect model.nnr --type NDU --element scan_order --format table
  nnr inspect model.nnr --offset 3200
  nnr inspect model.nnr --unit 5 --bins
  nnr inspect model.nnr --requirements --json
""",
)
@click.argument("bitstream", type=params.FileName())
@click.option("--all", "everything", is_flag=True, help="Print all units.")
@click.option(
    "--unit", "units", type=click.IntRange(0), multiple=True, metavar="N", help="Print this unit; repeatable."
)
@click.option(
    "--type",
    "types",
    multiple=True,
    callback=unit_types,
    metavar="TYPE",
    help="Print units of this type, such as NDU; repeatable.",
)
@click.option("--name", "names", multiple=True, metavar="GLOB", help="Print the units of these tensors; repeatable.")
@click.option("--element", "elements", multiple=True, metavar="GLOB", help="Print these elements only; repeatable.")
@click.option("--offset", type=click.IntRange(0), metavar="BIT", help="Print the element at this bit of the bitstream.")
@click.option("--inferred", is_flag=True, help="Include absent elements with their inferred values.")
@click.option(
    "--payloads", is_flag=True, help="Include the elements before the levels in payloads: qp_value, row flags."
)
@click.option("--bins", "show_bins", is_flag=True, help="Print the bins of one tensor, or of all with --all.")
@click.option(
    "--bins-limit",
    type=click.IntRange(0),
    default=1000,
    metavar="N",
    help="Maximum number of bins (default 1000); 0 for all.",
)
@params.inputs("A bitstream that BITSTREAM updates, for --bins")
@params.topology("Topology of a bitstream without one, for dimensions that it omits")
@click.option("--requirements", is_flag=True, help="Print the tools that a decoder needs for the bitstream.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["tree", "table", "json"]),
    help="Output format; without it, a line for each unit, or a tree of the parts that options select.",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@params.limits
def inspect(
    bitstream: str,
    limits: nnr.Limits,
    style: str | None,
    as_json: bool,
    show_bins: bool,
    bins_limit: int,
    inputs: Sequence[str],
    topology: str | None,
    requirements: bool,
    inferred: bool,
    payloads: bool,
    offset: int | None,
    elements: Sequence[str],
    everything: bool,
    **chosen: Any,
) -> None:
    """Print one line for each unit of BITSTREAM (- for standard input), or the parts selected by options.

    A line has offset and size in bytes, type, first name and number of further names, shape, coding tools and bits per
    parameter; units of an aggregate are indented. Trees show, for each syntax element, its bit position in the unit,
    number of bits, the bits, descriptor, value and meaning, and for each structure its clause in ISO/IEC 15938-17:2024.
    For a malformed bitstream, the readable part is printed before the error. JSON output is a list of objects; see nnr
    explain UnitInfo, UnitNode, Node, TensorBin and Tool.
    """
    from nnr_codec.bitstream.units import UnitReader
    from nnr_codec.decoder.texts import session_for

    narrowed = any(chosen.values()) or offset is not None
    if requirements and (show_bins or narrowed or everything or elements or inferred or payloads):
        raise click.UsageError("--requirements cannot be combined with options that select units; remove them")
    if show_bins and (chosen["types"] or offset is not None or elements or inferred or payloads):
        raise click.UsageError("--bins can be combined only with --unit, --name and --all")
    if inputs and not show_bins:
        raise click.UsageError("-i requires --bins")
    style = "json" if as_json else style
    given = params.given(topology, limits, bitstream)
    session = session_for(None, given, limits)
    with output.source(bitstream) as data:
        if requirements:
            _print_tools(data, limits, given, style)
        elif show_bins:
            reader = UnitReader(data, limits, session)
            state = _state(inputs, limits, given)
            bins.print_bins(reader, state, chosen["units"], chosen["names"], everything, bins_limit, style)
        elif narrowed or everything or elements or inferred or payloads or style in ("tree", "table"):
            found = _found(UnitReader(data, limits, session), elements, offset, inferred, payloads, **chosen)
            if not nodes.print_found(found, style or "tree"):
                errors.say("nnr: nothing in the bitstream matches")
                raise click.exceptions.Exit(errors.NO)
        else:
            _print_units(data, limits, session, style)


def _state(inputs: Sequence[str], limits: nnr.Limits, topology: nnr.Topology | None) -> UpdateState:
    """Return the state after earlier bitstreams."""
    import nnr_codec as nnr

    decoder = nnr.UpdateDecoder(limits=limits, topology=topology)
    for name in inputs:
        with output.source(name) as data:
            decoder.decode(data)
    return decoder.state


def _found(
    reader: UnitReader,
    elements: Sequence[str],
    offset: int | None,
    inferred: bool,
    payloads: bool,
    *,
    units: Sequence[int],
    types: Sequence[str],
    names: Sequence[str],
) -> Iterator[nodes.Found]:
    """Yield units with their nodes to print."""
    from nnr_codec.bitstream.nodes import UnitNode
    from nnr_codec.bitstream.tree import trees
    from nnr_codec.decoder.tools import Payloads

    def select(unit: UnitNode) -> bool:
        return (
            (not units or unit.unit in units)
            and (not types or unit.type in types)
            and (not names or any(fnmatchcase(name, glob) for name in unit.names for glob in names))
            and (offset is None or bool(unit.at(offset)))
        )

    inside = Payloads(reader) if payloads else None
    for root in trees(reader, select=select, inferred=inferred, inside=inside):
        if offset is not None:
            path = root.at(offset)
            unit = [node for node in path if isinstance(node, UnitNode)][-1]
            yield unit, [node for node in path if not elements or any(map(node.matches, elements))][-1:]
        elif elements:
            yield from ((unit, list(unit.find(elements))) for unit in root.units())
        else:
            yield root, [root]
    if inside and inside.error:
        raise inside.error


def _print_units(data: Bitstream, limits: nnr.Limits, session: nnr.Session, style: str | None) -> None:
    """Print a line for each unit."""
    import nnr_codec as nnr
    from nnr_codec.bitstream.summary import summarise
    from nnr_codec.formats import recognise
    from nnr_codec.urls import is_url

    if style == "json":
        infos = summarise(data, limits, session)
        nodes.print_json({**asdict(info), "bits_per_parameter": info.bits_per_parameter} for info in infos)
        return
    rows: list[tuple[str, ...]] = []
    try:
        for info in summarise(data, limits, session):
            bits = f"{info.bits_per_parameter:.2f}" if info.bits_per_parameter else ""
            place = "  " * info.depth + str(info.index), str(info.offset), str(info.size)
            rows.append(
                (
                    *place,
                    info.type,
                    _named(info.names),
                    output.dims(info.shape) if info.shape else "",
                    info.detail,
                    bits,
                )
            )
    except nnr.NnrError:
        if isinstance(data, str) and not is_url(data) and recognise(Path(data)):
            rows.clear()  # the error says that this is a model
        raise
    finally:
        if any(row[3] not in ("NNR_RSVD", "NNR_UNSP") for row in rows):  # otherwise this is not a bitstream
            output.table(
                ("unit", "offset", "size", "type", "name", "shape", "detail", "bits/par"),
                rows,
                right=("offset", "size", "bits/par"),
                fold=("name", "detail"),
            )


def _named(names: Sequence[str]) -> str:
    """Return the first name of a unit, and the number of further names."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{''.join(names[:1])}{more}"


def _print_tools(data: Bitstream, limits: nnr.Limits, topology: nnr.Topology | None, style: str | None) -> None:
    """Print the tools that a decoder needs."""
    import nnr_codec as nnr

    tools = nnr.requirements(data, limits=limits, topology=topology)
    if style == "json":
        nodes.print_json(map(asdict, tools))
        return
    rows = (
        (
            tool.element,
            "" if tool.value is None else str(tool.value),
            tool.meaning,
            tool.clause,
            str(tool.units),
            str(tool.first),
        )
        for tool in tools
    )
    headings = ("element", "value", "meaning", "clause", "units", "first")
    output.table(headings, rows, right=("value", "units", "first"), fold=("meaning",))
