"""Performance maps (6.4.4.3): measured by a command during encoding, and applied during decoding."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import click

from . import output
from .errors import one_line

if TYPE_CHECKING:
    import nnr_codec as nnr

F = TypeVar("F", bound=Callable[..., None])
Maps = dict[str, tuple[float, ...] | None]

#: Bytes of a command's output to keep: the last line may have 65,535 accuracies.
KEPT = 1 << 22
#: Maximum number of points listed in a message.
MOST_TOLD = 16
KINDS = ("sparsification", "pruning", "unification", "decomposition")


def _maps(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Maps:
    """Parse each ``KIND`` or ``KIND=POINT,...``; kinds are unique."""
    maps: Maps = {}
    for text in values:
        kind, equals, points = text.partition("=")
        if kind not in KINDS:
            raise click.BadParameter(f"unknown map {kind!r}; choose from {', '.join(KINDS)}")
        if kind in maps:
            raise click.BadParameter(f"map {kind!r} is given twice")
        try:
            maps[kind] = tuple(map(float, points.split(","))) if equals else None
        except ValueError:
            raise click.BadParameter(f"the points in {text!r} must be numbers") from None
    return maps


def measuring(command: F) -> F:
    """Add the options for statements about performance, and ``--base-model-id``."""
    for option in (
        click.option(
            "--base-model-id",
            metavar="TEXT",
            help="Identifier of the base model, to be stored in the bitstream (6.4.4.3).",
        ),
        click.option(
            "--validation-performance",
            type=float,
            metavar="VALUE",
            help="Performance on a validation set, to be stored in the bitstream; requires --metric.",
        ),
        click.option(
            "--metric",
            metavar="NAME",
            help="Metric of the maps and of --validation-performance, such as top-1: performance_metric_type.",
        ),
        click.option(
            "--evaluate",
            metavar="COMMAND",
            help="Command that measures accuracy: it gets the name of a model file in the format of MODEL as its "
            "last argument; the last line that it prints is the accuracy, optionally followed by the accuracy "
            "of each class.",
        ),
        click.option(
            "--map",
            "wanted",
            multiple=True,
            callback=_maps,
            metavar="KIND[=P,...]",
            help=f"Measure the accuracy of the decoded model after further reduction, and write it into the bitstream: "
            f"{', '.join(KINDS)}; with thresholds or ratios (default: points chosen to fit the weights); repeatable "
            "(docs/guides/reduction.md).",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class Request:
    """Maps to measure, with the command and the metric."""

    maps: Maps
    words: list[str]
    metric: str | None


def checked(
    maps: Maps,
    evaluate: str | None,
    metric: str | None,
    validation: float | None,
    config: nnr.EncoderConfig,
    dry_run: bool,
) -> Request | None:
    """Return the requested measurement, or None. Raise UsageError for options that do not match."""
    if bool(maps) != (evaluate is not None):
        raise click.UsageError("--map and --evaluate require each other")
    if metric is not None and not maps and validation is None:
        raise click.UsageError("--metric requires --map or --validation-performance")
    if validation is not None and metric is None:
        raise click.UsageError("--validation-performance requires --metric")
    if metric == "":
        raise click.UsageError("--metric must not be empty")
    if metric is not None and config.profile == 0:
        raise click.UsageError("--metric requires --profile 1")
    if evaluate is None:
        return None
    if dry_run:
        raise click.UsageError("--dry-run and --map cannot be combined")
    try:
        words = shlex.split(evaluate)
    except ValueError as error:
        raise click.UsageError(f"--evaluate: {str(error).lower()}") from None
    if not words:
        raise click.UsageError("--evaluate must not be empty")
    return Request(maps, words, metric)


def stating(
    config: nnr.EncoderConfig, base_model_id: str | None, validation: float | None, metric: str | None
) -> nnr.EncoderConfig:
    """Return the options with statements about the base model and the performance on a validation set."""
    import nnr_codec as nnr

    if base_model_id is None and validation is None:
        return config
    if config.profile == 0:
        name = "--validation-performance" if base_model_id is None else "--base-model-id"
        raise click.UsageError(f"{name} requires --profile 1")
    known = config.performance if isinstance(config.performance, nnr.Performance) else nnr.Performance()
    stated = replace(
        known,
        base_model_id=base_model_id,
        performance_metric_type=metric,
        validation_set_performance=validation,
    )
    return replace(config, performance=stated)


def measured(
    source: nnr.Model, name: str, config: nnr.EncoderConfig, request: Request, jobs: int, printer: output.Printer
) -> nnr.EncoderConfig:
    """Return the options with the measured maps of a model from a file of this name."""
    import nnr_codec as nnr

    evaluate = Evaluation(request.words, source.format, file_name(name, source.format), printer)
    found = nnr.measure(source, evaluate, request.maps, metric=request.metric, config=config, jobs=jobs)
    return replace(config, performance=found)


@dataclass(frozen=True)
class Evaluation:
    """Command that evaluates models in files."""

    words: list[str]
    format: str
    file: str
    printer: output.Printer

    def __call__(self, model: nnr.Model) -> tuple[float, list[float | None]]:
        """Return accuracy, and accuracies of classes. Raise EncodeError if the command fails or prints no accuracy."""
        import nnr_codec as nnr

        with tempfile.TemporaryDirectory(prefix="nnr-") as folder:
            path = os.path.join(folder, self.file)
            nnr.save(model, path, format=self.format)
            code, printed, error_output = _run([*self.words, path])
        if code:
            raise nnr.EncodeError(f"--evaluate: {self.words[0]} {_failure(code, error_output)}")
        line = _last_line(printed)
        try:
            accuracy, *classes = [None if word == "-" else float(word) for word in line.split()]
            if accuracy is None:
                raise ValueError
        except ValueError:
            raise nnr.EncodeError(
                f"--evaluate: the last line of {self.words[0]} must be an accuracy, optionally followed by accuracies "
                f"of classes, got {line[:80]!r}"
            ) from None
        self.printer.detail(f"accuracy {accuracy:g}")
        return accuracy, classes


def file_name(name: str, model_format: str) -> str:
    """Return the file name for a model in a format: the name of its source if its extension matches the format."""
    from nnr_codec import FormatError, formats

    own = os.path.basename(os.path.normpath(name))
    try:
        if model_format == formats.by_suffix(own).NAME:
            return own
    except FormatError:
        pass
    return f"model{formats.writing(model_format).SUFFIXES[0]}"


def _run(words: list[str]) -> tuple[int, bytes, bytes]:
    """Run a command; return its exit code, and the ends of its standard output and standard error."""
    pipe, error_output = subprocess.PIPE, [b""]
    with subprocess.Popen(words, bufsize=0, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
        printed, errors = (cast(IO[bytes], stream) for stream in (process.stdout, process.stderr))
        reader = threading.Thread(target=lambda: error_output.append(_end(errors)), daemon=True)
        try:
            reader.start()
            result = _end(printed)
            reader.join()
            return process.wait(), result, error_output[-1]
        except BaseException:
            process.kill()
            raise


def _end(stream: IO[bytes]) -> bytes:
    """Return the last complete lines of a stream, at most 2 * KEPT bytes."""
    kept, cut = bytearray(), False
    while chunk := stream.read(1 << 16):
        kept += chunk
        if len(kept) > 2 * KEPT:
            del kept[:-KEPT]
            cut = True
    return bytes(kept.partition(b"\n")[2] if cut else kept)


def _failure(code: int, error_output: bytes) -> str:
    ended = f"ended by signal {-code}" if code < 0 else f"exited with code {code}"
    line = _last_line(error_output)
    return f"{ended}: {line[:200]}" if line else ended


def _last_line(text: bytes) -> str:
    return (text.decode(errors="replace").strip().splitlines() or [""])[-1]


def applying(command: F) -> F:
    """Add the options ``--sparsify`` and ``--prune``."""
    for name, what in (("--prune", "ratio"), ("--sparsify", "threshold")):
        command = click.option(
            name,
            type=float,
            metavar=what.upper(),
            help=f"Apply a {what} of the bitstream's performance map, and print the accuracy that it states.",
        )(command)
    return command


@dataclass(frozen=True)
class Point:
    """Point of a performance map to apply: the reduction step, and the accuracy that the map states."""

    step: nnr.Step
    promise: str


def point_of(file: nnr.NnrFile, sparsify: float | None, prune: float | None) -> Point | None:
    """Return the requested point. Raise UsageError if the bitstream's map does not have it."""
    from nnr_codec import Step

    if sparsify is not None and prune is not None:
        raise click.UsageError("--sparsify and --prune cannot be combined; choose one")
    if (sparsify is not None or prune is not None) and file.is_update:
        raise click.UsageError("--sparsify and --prune apply to whole models, but the bitstream is an update")
    if sparsify is not None:
        row, names = _row(file, "--sparsify", sparsify, "sparsification", "threshold")
        step, share = Step("sparsify", threshold=row.threshold, **_only(names)), f", {_share(row)}"
    elif prune is not None:
        row, names = _row(file, "--prune", prune, "pruning", "pruning_ratio")
        step, share = Step("prune", ratio=row.pruning_ratio, **_only(names)), ""
    else:
        return None
    metric, where = _metric(file), f" of {_listed(names)}" if names else ""
    return Point(step, f"accuracy {row.nn_accuracy:g}{f' ({metric})' if metric else ''}{share}{where}")


def _only(names: Sequence[str]) -> dict[str, str]:
    """Return the option of a step that selects these tensors; none for the whole model."""
    escaped = [re.sub(r"([*?[])", r"[\1]", name) for name in names]
    return {"tensors": "|".join(escaped)} if names else {}


def _listed(names: Sequence[str]) -> str:
    """Name the tensors of a layer parameter set."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _scopes(file: nnr.NnrFile) -> list[tuple[tuple[str, ...], nnr.PerformanceMaps]]:
    """Return the maps of the whole model, without names, and the maps of layers, with the names of their tensors."""
    layers = file.performance_of_layers().items()
    return [((), file.performance.maps), *((tuple(names), maps) for maps, names in layers)]


def _row(file: nnr.NnrFile, option: str, value: float, kind: str, name: str) -> tuple[Any, tuple[str, ...]]:
    """Return the row of a map whose point is the float32 nearest to a number, and its tensors; () for the model.

    A map of the whole model comes first, then the first layer parameter set.
    """
    import numpy as np

    found = [(names, getattr(maps, kind)) for names, maps in _scopes(file)]
    found = [(names, table) for names, table in found if table is not None and table.rows]
    if not found:
        raise click.UsageError(f"{option} requires a {kind} map, but the bitstream has none")
    points = {np.float32(getattr(row, name)): (row, names) for names, table in reversed(found) for row in table.rows}
    with np.errstate(over="ignore"):
        asked = np.float32(value)
    if asked not in points:
        there = ", ".join(map(str, points)) if len(points) <= MOST_TOLD else f"{len(points)} points (nnr ls --maps)"
        raise click.UsageError(f"{option} {value} is not a point of the {kind} map; it has {there}")
    return points[asked]


def print_maps(file: nnr.NnrFile, as_json: bool) -> None:
    """Print the rows of the maps of the whole model, and of the maps of layers."""
    import json
    from dataclasses import asdict

    rows = [
        (names, kind, row)
        for names, known in _scopes(file)
        for kind in KINDS
        for row in getattr(getattr(known, kind), "rows", ())
    ]
    if as_json:
        of = [{"tensors": list(names)} if names else {} for names, _, _ in rows]
        found = [{"map": kind, **_plain(asdict(row)), **own} for own, (_, kind, row) in zip(of, rows, strict=True)]
        click.echo(json.dumps(found, indent=1))
        return
    metric = one_line(_metric(file) or "accuracy")
    heads = ["map", "tensors", "point", metric, "remains", "of classes"]
    cells = [
        [kind, _listed(names) if names else "", _text(_point(row)), f"{row.nn_accuracy:g}", _share(row), _classes(row)]
        for names, kind, row in rows
    ]
    if not any(names for names, _, _ in rows):
        for line in (heads, *cells):
            del line[1]
    output.table(heads, cells, right=("point", metric), fold=("of classes",))


def _metric(file: nnr.NnrFile) -> str | None:
    """Return the metric of the maps, if the bitstream states it."""
    about = file.performance
    return about.performance_metric_type if about.metric_type_performance_map_valid_flag else None


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for JSON: numbers that are not finite become strings."""
    from nnr_codec.bitstream.nodes import plain

    return {name: [*map(plain, value)] if isinstance(value, tuple) else plain(value) for name, value in row.items()}


def _point(row: Any) -> float:
    """Return the point of a row, its first field."""
    from dataclasses import fields

    point: float = getattr(row, fields(row)[0].name)
    return point


def _text(value: float) -> str:
    """Return the shortest number that rounds to the same float32."""
    import numpy as np

    return str(np.float32(value))


def _share(row: Any) -> str:
    """Describe the remaining share of the model in a row."""
    if hasattr(row, "non_zero_ratio"):
        return f"{100 * row.non_zero_ratio:.1f} % of the weights are not 0"
    if hasattr(row, "nn_reduction_ratio"):
        return f"{100 * row.nn_reduction_ratio:.1f} % of the parameters"
    return ""


def _classes(row: Any) -> str:
    """Return the accuracies of classes from the first class with an accuracy; - for classes without accuracy."""
    given = iter(row.class_accuracies)
    mask = f"{row.class_bitmask:b}" if hasattr(row, "class_bitmask") else "1" * len(row.class_accuracies)
    return (
        " ".join(f"{next(given, float('nan')):.4g}" if bit == "1" else "-" for bit in mask)
        if row.class_accuracies
        else ""
    )
