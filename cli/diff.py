"""``nnr diff``: compare two bitstreams or two models."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import output, params
from .errors import NO, one_line

if TYPE_CHECKING:
    import nnr_codec as nnr
    from nnr_codec.bitstream_difference import BitstreamDifference
    from nnr_codec.compare import Agreement, ModelDifference, TensorDifference
    from nnr_codec.model import Array

_SHOWN = 60  # maximum number of characters of a value


@click.command(
    short_help="Compare two bitstreams or models.",
    epilog="""\b
Examples:
  nnr diff a.nnr b.nnr
  nnr diff model.nnef model.nnr --tolerance 0.01
  nnr diff model.nnef model.nnr --run images.npz
""",
)
@click.argument("a", type=params.FileName(), metavar="A")
@click.argument("b", type=params.FileName(), metavar="B")
@click.option("--decoded", is_flag=True, help="Compare the decoded models of two bitstreams.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    help="Ignore dtypes, signs of 0, and errors up to this size. Decodes bitstreams.",
)
@click.option(
    "--run",
    "inputs",
    type=params.FileName(),
    metavar="NPZ",
    help="Run both models (NNEF) with the arrays of this file, named like the inputs; for one input, any name.",
)
@params.topology("Topology that replaces the topologies in the bitstreams")
@click.option("-v", "--verbose", is_flag=True, help="List equal tensors too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@params.limits
@click.pass_context
def diff(
    ctx: click.Context,
    a: str,
    b: str,
    decoded: bool,
    tolerance: float | None,
    inputs: str | None,
    topology: str | None,
    verbose: bool,
    as_json: bool,
    limits: nnr.Limits,
) -> None:
    """Compare A with B; the exit code is 0 if they are equal, 1 if they differ.

    For two bitstreams, print the first syntax element or payload bit that differs, and the first decoded value that
    differs. For two models, or a model and a bitstream, print whether all bits are equal, and for each tensor the
    largest error, root mean square error and signal-to-noise ratio of B. - stands for standard input.
    """
    import nnr_codec as nnr
    from nnr_codec.compare import compare_models

    names = (a, b)
    if (*names, inputs).count("-") > 1:
        raise click.UsageError("only one file can be standard input")
    given = params.given(topology, limits, *names, inputs or "")
    sources = [_content(name, limits) for name in names]
    if all(is_bitstream for _, is_bitstream in sources) and not (decoded or inputs or tolerance is not None):
        difference = nnr.diff(sources[0][0], sources[1][0], limits=limits, topology=given)
        _print_bitstreams(names, difference, as_json)
        ctx.exit(NO if difference else 0)
    models = [_model(name, *source, limits, given) for name, source in zip(names, sources, strict=True)]
    found = compare_models(models[0], models[1])
    agreements = _agreements(names, models, inputs, limits) if inputs else {}
    same = found.same(tolerance)
    if as_json:
        click.echo(json.dumps({"same": same, **_model_facts(found), "outputs": _output_facts(agreements)}, indent=1))
    else:
        _print_models(names, found, verbose)
        for name, agreement in agreements.items():
            click.echo(
                f"output {one_line(name)}: top-1 agreement {100 * agreement.top_1:.2f} % of {agreement.samples:,}, "
                f"cosine {agreement.cosine:.6f}, largest error {agreement.largest:.3g}"
            )
    ctx.exit(0 if same else NO)


# ------------------------------------------------------------------------------------------------ reading
def _content(name: str, limits: nnr.Limits) -> tuple[Any, bool]:
    """Return the input for a name, and whether it is a bitstream, that is, not of any model format."""
    from nnr_codec import formats
    from nnr_codec.bitstream.source import open_source

    path = Path(name)
    if name != "-" and (path.is_file() or path.is_dir()):
        return path, not path.is_dir() and formats.recognise(path) is None
    source = open_source(output.stdin() if name == "-" else path, limits)  # pipes can be read only once
    data = source.view(0, source.size)
    return data, formats.recognise(io.BytesIO(data)) is None


def _model(name: str, data: Any, is_bitstream: bool, limits: nnr.Limits, topology: nnr.Topology | None) -> nnr.Model:
    import nnr_codec as nnr

    if not is_bitstream:
        return nnr.load(data, limits=limits)
    with output.source(name):  # adds the name to errors
        return nnr.decode(data, limits=limits, topology=topology)


def _agreements(names: Iterable[str], models: list[nnr.Model], inputs: str, limits: nnr.Limits) -> dict[str, Agreement]:
    """Return the agreement of the outputs, by name; a model without topology uses the other topology."""
    from dataclasses import replace

    import nnr_codec as nnr
    from nnr_codec.compare import compare_outputs
    from nnr_codec.runtime import run_model

    arrays = nnr.load(output.stdin() if inputs == "-" else inputs, format="npz", limits=limits).tensors
    outputs: list[dict[str, Array]] = []
    for name, model, other in zip(names, models, reversed(models), strict=True):
        with output.source(name, or_model=True):
            outputs.append(run_model(model if model.topology else replace(model, topology=other.topology), arrays))
    expected, got = outputs
    if expected.keys() != got.keys():
        raise nnr.FormatError(f"the outputs are {', '.join(expected)} and {', '.join(got)}: these cannot be compared")
    return {name: compare_outputs(array, got[name]) for name, array in expected.items()}


# ------------------------------------------------------------------------------------------------ printing
def error_text(found: ModelDifference) -> str:
    """Describe the largest error and the signal-to-noise ratio of decoded tensors."""
    if found.worst is None:
        return "the same values"
    largest = found.tensors[found.worst].largest
    if not largest:
        return f"only bits differ, such as the sign of 0 (in {found.worst!r})"
    return f"largest error {largest:.3g} (in {found.worst!r}), SNR {found.snr:.2f} dB"


def _print_models(names: Iterable[str], found: ModelDifference, verbose: bool) -> None:
    rows = []
    for name in dict.fromkeys([*found.tensors, *found.shapes]):
        one = found.tensors.get(name)
        if not (verbose or name in found.dtypes or one is None or one.count):
            continue
        numbers = ("", "", "", "")
        if one:
            numbers = (f"{one.count:,}", f"{one.largest:.3g}", f"{one.rms:.3g}", f"{one.snr:.2f}")
        shapes = " / ".join(output.dims(shape) for shape in found.shapes.get(name, ()))
        rows.append((name, " / ".join(filter(None, (*found.dtypes.get(name, ()), shapes))), *numbers))
    if rows:
        headings = ("name", "type, shape", "differ", "largest", "rms", "SNR dB")
        shown = [k for k in range(len(headings)) if any(row[k] for row in rows)]
        output.table(
            [headings[k] for k in shown], [[row[k] for k in shown] for row in rows], right=headings[2:], fold=("name",)
        )
    for which, missing in zip(names, (found.missing, found.extra), strict=True):
        for name in missing:
            click.echo(one_line(f"only in {which}: {name}"))
    differ = sum(one.count > 0 for one in found.tensors.values())
    errors = f": {error_text(found)}" if differ else ""
    compared, verb = output.tensors(len(found.tensors)), "differs" if differ == 1 else "differ"
    click.echo(
        one_line(f"{differ:,} of {compared} {verb} in values{errors}" if found.tensors else "no tensor is in both")
    )


def _print_bitstreams(names: tuple[str, str], found: BitstreamDifference | None, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"same": not found, **(_bitstream_facts(found) if found else {})}, indent=1))
        return
    if not found:
        click.echo("the bitstreams are identical")
        return
    for name, place in zip(names, found.places, strict=True):
        if place.unit:
            value = f"{place.value} bytes" if place.element == "payload" else _short(place.value)
            text = f"byte {place.offset:,}: {place.unit}, bit {place.bit}, {place.element}: {value}"
        else:
            text = "ends here"
        click.echo(one_line(f"{name}: {text}"))
    if found.values:
        one = found.values
        click.echo(
            one_line(
                f"{found.tensor!r}{list(one.first or ())}: {one.expected} and {one.got}; {one.count:,} of {one.size:,} "
                f"values differ, by {one.largest:.3g} at most"
            )
        )
    if found.note:
        click.echo(one_line(f"values are not compared: {found.note}"))


def _short(value: Any) -> str:
    text = "" if value is None else str(int(value)) if isinstance(value, int) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


# ------------------------------------------------------------------------------------------------ JSON
def _number(value: Any) -> Any:
    """Return a value for JSON, without infinities and NaN, and as text if it is not a number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else repr(value)


def _tensor_facts(one: TensorDifference) -> dict[str, Any]:
    facts = {**vars(one), "rms": one.rms, "snr": one.snr, "first": list(one.first) if one.first is not None else None}
    return {key: value if key == "first" else _number(value) for key, value in facts.items()}


def _model_facts(found: ModelDifference) -> dict[str, Any]:
    return {
        "tensors": {name: _tensor_facts(one) for name, one in found.tensors.items()},
        "shapes": found.shapes,
        "dtypes": found.dtypes,
        "missing": found.missing,
        "extra": found.extra,
        "snr": _number(found.snr),
    }


def _output_facts(agreements: Mapping[str, Agreement]) -> dict[str, Any]:
    return {name: {key: _number(value) for key, value in vars(one).items()} for name, one in agreements.items()}


def _bitstream_facts(found: BitstreamDifference) -> dict[str, Any]:
    return {
        "places": [{**vars(place), "value": _number(place.value)} for place in found.places],
        "tensor": found.tensor or None,
        "values": _tensor_facts(found.values) if found.values else None,
        "note": found.note,
    }
