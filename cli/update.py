"""``nnr update``: encode the difference between two models as a bitstream, and apply such bitstreams."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from . import coding, output, params
from .coding import LOSSLESS
from .diff import error_text
from .errors import one_line

if TYPE_CHECKING:
    import nnr_codec as nnr
    from nnr_codec.compare import ModelDifference
    from nnr_codec.model import Array

F = TypeVar("F", bound=Callable[..., None])
UPDATE = "update"
PRESETS = (UPDATE, "fl", "3gpp-incremental", LOSSLESS)
#: Options that limit the loss of an update; without any of them, nnr update squash is lossless.
GOALS = ("qp", "quality", "snr", "max_error", "target_size", "target_ratio")


@click.group(
    short_help="Encode and apply updates of models.",
    epilog="""\b
Examples:
  nnr update encode v2.safetensors --base v1.safetensors -o v2.nnr --lossless
  nnr update apply v1.safetensors v2.nnr -o v2.safetensors
  nnr update chain v1.safetensors v2.nnr v3.nnr v4.nnr -o v4.safetensors
  nnr update squash v1.safetensors v2.nnr v3.nnr v4.nnr -o v1-to-v4.nnr
""",
)
def update() -> None:
    """Encode the difference between two models, and apply it: see docs/guides/updates.md."""


def _codings(command: F) -> F:
    """Add the encoder options of updates."""
    for option in (
        coding.options("rules", "effort", "rate", "codebook", "jobs"),
        coding.options(
            *("dependent_quantization", "fast_decode", "scan_order", "row_skipping"),
            *("max_unit_size", "side_info", "index", "indexed_references"),
        ),
        coding.options("snr", "max_error", "target_size", "target_ratio", "lossless"),
        click.option(
            "--quality",
            type=float,
            metavar="0..100",
            help="Approximate SNR of each tensor's differences in dB (default 25); raising it by 6 halves the step "
            "size.",
        ),
        click.option(
            "--preset",
            type=click.Choice(PRESETS),
            help="Set of options. update: a quality of 25; fl: a quality of 12, for federated training with error "
            "feedback; lossless: every bit is kept; 3gpp-incremental: the tools of 3GPP S4-260200 for updates.",
        ),
        coding.options("qp_density"),
        click.option(
            "--qp", type=int, help="Quantization parameter of differences; lowering it by 4 halves the step size."
        ),
    ):
        command = option(command)
    return command


# ------------------------------------------------------------------------------------------------ encode
@update.command(
    cls=params.GroupedCommand,
    headings={
        "Common options": "base target quality preset lossless target_size check dry_run reports jobs force",
        "Other goals": "qp qp_density snr max_error target_ratio rules",
        "Sparse updates": "sparsity structured sbt sbt_ternary",
        "Sequences of updates": "parent inputs",
        "Quantization": f"{coding.QUANTIZATION} fold_batchnorm",
        "Bitstream syntax": coding.SYNTAX,
        "Input and output": "model_format limits verbose quiet",
    },
    short_help="Encode the difference between two models.",
    epilog="""\b
Examples:
  nnr update encode new.nnef --base old.nnef -o new.nnr --check
  nnr update encode new.onnx --base old.onnx -o new.nnr --quality 40
  nnr update encode new.safetensors --base old.safetensors -o new.nnr --lossless
  nnr update encode new.npz --base old.npz -o new.nnr --sparsity 0.9
  nnr update encode new.npz --base old.npz -o new.nnr --sbt 0.98
  nnr update encode v2.npz --base v1.npz -o v2.nnr --parent node
  nnr update encode v3.npz --base v1.npz -i v2.nnr -o v3.nnr --parent node
""",
)
@click.argument("new", type=params.FileName())
@click.option("--base", required=True, type=params.FileName(), metavar="OLD", help="Base model.")
@params.target("UPDATE.nnr", "The bitstream", required=False)
@_codings
@click.option(
    "--fold-batchnorm",
    is_flag=True,
    default=None,
    help="Fold the batch normalizations of both models, which halves the number of their coded parameters; nnr"
    " update apply then folds OLD too.",
)
@click.option(
    "--sparsity",
    type=click.FloatRange(0, 1),
    metavar="R",
    help="Keep the OLD values of this share of the parameters of matrices: the parameters with the smallest changes.",
)
@click.option("--structured", is_flag=True, help="With --sparsity: keep whole rows.")
@click.option(
    "--sbt",
    type=click.FloatRange(0, 1),
    metavar="R",
    help="Stochastic binary-ternary quantization: keep at least this share of the parameters of each matrix as in OLD; "
    "the others change by the same amount, up or down.",
)
@click.option(
    "--sbt-ternary",
    type=click.FloatRange(0, 1),
    metavar="P",
    help="With --sbt: probability (default 0.5) that the parameters of a matrix change in both directions "
    "instead of one.",
)
@params.model_format("detected from its content", of="NEW and OLD")
@click.option("--check", is_flag=True, help="Apply the output and print the largest error, or that all bits are equal.")
@params.report
@click.option(
    "--parent",
    type=click.Choice(["node", "sha256", "sha512", "external"]),
    help="Reference to the previous update, which makes a sequence of updates smaller: by its place in the sequence, "
    "by a digest of its payloads, or none. Give previous updates of OLD by --input. Default: an update of OLD alone.",
)
@params.inputs("With --parent: a previous update of OLD")
@click.option("--dry-run", is_flag=True, help="Print the size of each tensor without writing a file.")
@params.limits
@params.conversion
def encode(
    new: str,
    base: str,
    target: str | None,
    model_format: str | None,
    preset: str | None,
    lossless: bool,
    rules: tuple[nnr.Rule, ...],
    jobs: int,
    sparsity: float | None,
    structured: bool,
    sbt: float | None,
    sbt_ternary: float | None,
    check: bool,
    reports: tuple[str, ...],
    parent: str | None,
    inputs: tuple[str, ...],
    dry_run: bool,
    limits: nnr.Limits,
    force: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Encode the difference between OLD and NEW (- for standard input) as an update of OLD.

    Equal tensors take no bytes. Tensors that OLD lacks, or has with another shape or type, are coded whole, as are
    tensors with changes that are not finite. Integers are lossless.
    """
    import nnr_codec as nnr
    from nnr_codec.api.files import file_name
    from nnr_codec.federated.folding import fold
    from nnr_codec.federated.sbt import binary_ternary_of

    printer = output.Printer(quiet, verbose)
    config = coding.encoder_config(UPDATE, preset, lossless, rules, options)
    if structured and sparsity is None:
        raise click.UsageError("--structured requires --sparsity")
    if sparsity is not None and math.isnan(sparsity):
        raise click.UsageError("--sparsity must be a finite number, got nan")
    if sparsity is not None and (lossless or preset == LOSSLESS):
        printer.warning("--sparsity changes NEW; --lossless keeps every bit of the remaining changes")
    with coding.usage_errors():
        binary_ternary_of(sbt, sbt_ternary, config)
    if dry_run and (check or reports):
        raise click.UsageError(f"--dry-run cannot be combined with {'--check' if check else '--report'}")
    if inputs and not parent:
        raise click.UsageError("--input requires --parent")
    if parent and (lossless or preset == LOSSLESS or config.fold_batchnorm or reports):
        raise click.UsageError("--parent cannot be combined with --lossless, --fold-batchnorm or --report")
    if target is None and not dry_run:
        raise click.UsageError("Missing option '-o' / '--output'.")
    stream = None
    if target and not dry_run:
        stream = params.open_target(target, new, base, *inputs, force=force, folder=False)
        params.check_bitstream_name(target)
    for name in reports:
        if target and os.path.realpath(name) == os.path.realpath(target):
            raise click.UsageError(f"{target} is the file of two outputs; use other names")
        params.open_target(name, new, base, force=force, folder=False)
    started = time.perf_counter()
    before, after = _models((base, new, *inputs), (base, new), model_format, limits)
    for model in (before, after):
        params.check_companions(model, *reports, None if dry_run else target)
    encoder = None
    if parent:
        base_model_id = nnr.identity(before)
        before, state = _continued(before, base, inputs, limits, printer)
        with coding.usage_errors():
            encoder = nnr.UpdateEncoder(
                config, parent=parent, base_model_id=base_model_id, sbt=sbt, sbt_ternary=sbt_ternary, state=state
            )
    if config.fold_batchnorm:
        before, after, config = fold(before), fold(after), replace(config, fold_batchnorm=False)
    wanted = sparser(before, after, sparsity, structured) if sparsity is not None else after
    report = nnr.EncodeReport(source=file_name(new), version=nnr.__version__) if reports else None
    if encoder:
        differences, whole = _changes(before, wanted)
        if after.metadata != before.metadata:
            printer.warning("an update with --parent cannot change metadata; the metadata of OLD is kept")
        data = encoder.encode(differences, whole=whole, jobs=jobs)
    else:
        with printer.progress("encoding", len(after)) as progress:
            data = nnr.encode_update(
                before, wanted, config, sbt=sbt, sbt_ternary=sbt_ternary, report=report, progress=progress, jobs=jobs
            )
    stored = output.stored_size(new)
    if dry_run or target is None:
        _print_sizes(after, stored, data)
        return
    _write(data, stream, target, force)
    if report:
        for name in reports:
            report.save(name, overwrite=force)
    _tell(printer, new, target, _sizes(after, stored, data), data, started)
    if check:
        got = nnr.apply_update(before, encoder.decoded if encoder else data, limits=limits)
        printer.note(f"check: {_checked(before, after, got)}")
    for name in reports:
        printer.note(f"report: {name}")


def _continued(
    model: nnr.Model, base: str, updates: tuple[str, ...], limits: nnr.Limits, printer: output.Printer
) -> tuple[nnr.Model, nnr.UpdateState]:
    """Return the model after previous updates of a sequence, and the state of their decoder."""
    import nnr_codec as nnr
    from nnr_codec.decoder.lineage import Lineage
    from nnr_codec.federated.chain import base_of

    decoder = nnr.UpdateDecoder(limits=limits)
    for name, (data, after) in zip(updates, _links(model, base, updates, limits, printer), strict=True):
        if not Lineage.parse(base_of(data, limits)):
            raise click.UsageError(
                f"{name} was encoded without --parent, so later updates cannot refer to it; encode it with --parent"
            )
        decoder.decode(data)
        model = after
    return model, decoder.state


def _changes(before: nnr.Model, after: nnr.Model) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the differences of tensors, and the tensors that are coded whole."""
    import nnr_codec as nnr
    from nnr_codec.federated.difference import difference

    if missing := [name for name in before if name not in after.tensors]:
        raise nnr.EncodeError(
            f"tensor {missing[0]!r} of the base model is missing, but an update cannot remove tensors;"
            " encode the whole model"
        )
    if after.topology != before.topology:
        raise nnr.EncodeError("the graphs differ, which an update with --parent cannot represent; remove --parent")
    found = {name: difference(before.tensors.get(name), after[name]) for name in after}
    differences = {name: one.array for name, one in found.items() if one.kind == "difference"}
    return differences, {name: one.array for name, one in found.items() if one.kind == "whole"}


# ------------------------------------------------------------------------------------------------ apply
@update.command(
    short_help="Apply an update to its base model.",
    epilog="""\b
Examples:
  nnr update apply old.nnef new.nnr -o new.nnef
  nnr update apply old.npz new.nnr -o new.safetensors
  curl -s https://example.org/new.nnr | nnr update apply old.npz - -o new.npz
""",
)
@click.argument("old", type=params.FileName())
@click.argument("bitstream", type=params.FileName(), metavar="UPDATE")
@params.target("NEW", "The model")
@params.model_format("from its file extension, else the format of OLD", of="NEW")
@params.limits
@params.conversion
def apply(
    old: str,
    bitstream: str,
    target: str,
    model_format: str | None,
    limits: nnr.Limits,
    force: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Apply UPDATE to its base model OLD (- for standard input).

    An update of another model is rejected.
    """
    printer = output.Printer(quiet, verbose)
    stream = params.open_target(target, old, bitstream, force=force, folder=True)
    started = time.perf_counter()
    (before,) = _models((old, bitstream), (old,), None, limits)
    params.check_companions(before, target)
    ((data, model),) = _links(before, old, (bitstream,), limits, printer)
    _details(printer, data)
    output.save(model, stream, target, model_format, force)
    printer.note(
        f"{old} + {bitstream} -> {target}: {output.tensors(len(model))} in {time.perf_counter() - started:.2f} s"
    )


# ------------------------------------------------------------------------------------------------ chain
@update.command(
    short_help="Apply several updates in order.",
    epilog="""\b
Examples:
  nnr update chain v1.npz v2.nnr v3.nnr v4.nnr
  nnr update chain v1.npz v2.nnr v3.nnr v4.nnr -o v4.npz
""",
)
@click.argument("base", type=params.FileName())
@click.argument("updates", nargs=-1, required=True, type=params.FileName(), metavar="UPDATE...")
@params.target("NEW", "The model after the last update; without it, updates are only checked", required=False)
@params.model_format("from its file extension, else the format of BASE", of="NEW")
@params.limits
@params.conversion
def chain(
    base: str,
    updates: tuple[str, ...],
    target: str | None,
    model_format: str | None,
    limits: nnr.Limits,
    force: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Apply each UPDATE (one may be - for standard input) to the result of BASE and the updates before it.

    An update without --parent must be an update of exactly that model. An update with --parent is an update of BASE
    and follows the updates before it. Without NEW, print a line for BASE and for each UPDATE with the digest of the
    model, by which the next update identifies it.
    """
    import nnr_codec as nnr

    printer = output.Printer(quiet, verbose)
    stream = params.open_target(target, base, *updates, force=force, folder=True) if target else None
    started = time.perf_counter()
    model = before = _models((base, *updates), (base,), None, limits)[0]
    params.check_companions(before, target)
    if not target:
        click.echo(one_line(f"{base}: {nnr.identity(before)}"))
    for name, (data, model) in zip(updates, _links(before, base, updates, limits, printer), strict=True):
        _details(printer, data)
        if not target:
            click.echo(one_line(f"{name}: {nnr.identity(model)}"))
    if target:
        output.save(model, stream, target, model_format, force)
        printer.note(
            f"{base} + {_counted(updates)} -> {target}: {output.tensors(len(model))} "
            f"in {time.perf_counter() - started:.2f} s"
        )


# ------------------------------------------------------------------------------------------------ squash
@update.command(
    cls=params.GroupedCommand,
    headings={
        "Common options": "target quality preset lossless target_size check jobs force",
        "Other goals": "qp qp_density snr max_error target_ratio rules",
        "Quantization": coding.QUANTIZATION,
        "Bitstream syntax": coding.SYNTAX,
        "Input and output": "limits verbose quiet",
    },
    short_help="Merge several updates into one.",
    epilog="""\b
Examples:
  nnr update squash v1.npz v2.nnr v3.nnr v4.nnr -o v1-to-v4.nnr
  nnr update squash v1.npz v2.nnr v3.nnr v4.nnr -o v1-to-v4.nnr --quality 30
""",
)
@click.argument("base", type=params.FileName())
@click.argument("updates", nargs=-1, required=True, type=params.FileName(), metavar="UPDATE...")
@params.target("NEW.nnr", "The update")
@_codings
@click.option("--check", is_flag=True, help="Apply the output and print the largest error, or that all bits are equal.")
@params.limits
@params.conversion
def squash(
    base: str,
    updates: tuple[str, ...],
    target: str,
    preset: str | None,
    lossless: bool,
    rules: tuple[nnr.Rule, ...],
    jobs: int,
    check: bool,
    limits: nnr.Limits,
    force: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Merge each UPDATE in order into one update of BASE (one may be - for standard input).

    Without --preset or a goal, the resulting model is the same, bit for bit, so that later updates still apply.
    """
    import nnr_codec as nnr

    printer = output.Printer(quiet, verbose)
    default = UPDATE if any(options[goal] is not None for goal in GOALS) else LOSSLESS
    config = coding.encoder_config(default, preset, lossless, rules, options)
    stream = params.open_target(target, base, *updates, force=force, folder=False)
    params.check_bitstream_name(target)
    started = time.perf_counter()
    after = before = _models((base, *updates), (base,), None, limits)[0]
    params.check_companions(before, target)
    for _, after in _links(before, base, updates, limits, printer):  # noqa: B007  # only the last one is needed
        pass
    with printer.progress("encoding", len(after)) as progress:
        data = nnr.encode_update(before, after, config, progress=progress, jobs=jobs)
    _write(data, stream, target, force)
    if not (config.exact and all(rule.options.get("exact", True) for rule in config.rules)):
        printer.warning(
            f"{target} does not restore exactly the same model, so later updates do not apply; use --lossless"
        )
    _tell(printer, f"{base} + {_counted(updates)}", target, _sizes(after, None, data), data, started)
    if check:
        printer.note(f"check: {_checked(before, after, nnr.apply_update(before, data, limits=limits))}")


# ------------------------------------------------------------------------------------------------ options and files
def _models(
    inputs: tuple[str, ...], names: tuple[str, ...], model_format: str | None, limits: nnr.Limits
) -> list[nnr.Model]:
    """Return the models of these files, decoded from bitstreams of whole models; - is standard input, at most once."""
    if inputs.count("-") > 1:
        raise click.UsageError("only one file can be standard input")
    return [output.model(name, format=model_format, limits=limits, or_bitstream=True) for name in names]


def _links(
    model: nnr.Model, base: str, updates: tuple[str, ...], limits: nnr.Limits, printer: output.Printer
) -> Iterator[tuple[memoryview, nnr.Model]]:
    """Yield each update and the model after it."""
    from nnr_codec.bitstream.source import open_source
    from nnr_codec.federated.chain import base_of, links

    contents = []
    for name in updates:
        with output.source(name, hint="use nnr update encode --base to compress it as an update") as data:
            source = open_source(data, limits)
            contents.append(source.view(0, source.size))
            base_of(contents[-1], limits)
    names = ["standard input" if name == "-" else name for name in (base, *updates)]
    with printer.progress("applying", len(model)) as progress:
        yield from zip(contents, links(model, contents, names=names, limits=limits, progress=progress), strict=True)


def _write(data: bytes, stream: BinaryIO | None, target: str, force: bool) -> None:
    """Write a bitstream."""
    from nnr_codec.files import output_file

    if stream:
        stream.write(data)
        return
    with output_file(target, overwrite=force) as file:
        file.write(data)


def sparser(base: nnr.Model, new: nnr.Model, ratio: float, structured: bool) -> nnr.Model:
    """Return the new model without the smallest changes of its matrices."""
    import numpy as np

    from nnr_codec.encoder.reduce.sparsify import sparsify
    from nnr_codec.federated.difference import difference

    found = {name: difference(base[name], new[name]) for name in new if name in base.tensors}
    changes = {name: one.array for name, one in found.items() if one.kind == "difference"}
    kept = sparsify(changes, ratio, structured=structured)
    tensors = {name: np.where(kept[name] != 0, new[name], base[name]) if name in kept else new[name] for name in new}
    return replace(new, tensors=tensors)


# ------------------------------------------------------------------------------------------------ printing
def _parts(data: bytes | memoryview) -> dict[str, tuple[str, nnr.TensorInfo]]:
    """Return for each tensor of an update whether it is a difference or whole, with its info."""
    import nnr_codec as nnr

    with nnr.open(data) as file:
        return {name: ("whole" if name in file.whole else "difference", info) for name, info in file.info.items()}


def _details(printer: output.Printer, data: bytes | memoryview) -> None:
    """Print a line for each tensor if verbose."""
    for name, (what, info) in _parts(data).items() if printer.verbose else ():
        printer.detail(f"{name}: {what}, {info.nbytes:,} bytes, {info.bits_per_parameter:.2f} bits/parameter")


def _print_sizes(model: nnr.Model, stored: int | None, data: bytes) -> None:
    """Print the size of each tensor of an update, and of the update."""
    output.table(
        ("name", "coded as", "parameters", "bytes", "bits/par"),
        (
            (name, what, f"{info.parameters:,}", f"{info.nbytes:,}", f"{info.bits_per_parameter:.2f}")
            for name, (what, info) in _parts(data).items()
        ),
        right=("parameters", "bytes", "bits/par"),
        fold=("name",),
    )
    click.echo(_sizes(model, stored, data))


def _tell(printer: output.Printer, source: str, target: str, sizes: str, data: bytes, started: float) -> None:
    """Print the sizes of a model and of its update, and the number of tensors in the update."""
    _details(printer, data)
    printer.note(f"{source} -> {target}: {sizes}, in {time.perf_counter() - started:.2f} s")


def _sizes(model: nnr.Model, stored: int | None, data: bytes) -> str:
    """Return the sizes of a model (``stored``: :func:`.output.stored_size`) and its update, and numbers of tensors."""
    from nnr_codec.model import source_size

    kinds = [what for what, _ in _parts(data).values()]
    source_bytes, parameters = source_size(model)
    return (
        f"{output.sizes(source_bytes, stored, len(data), parameters)}, {output.tensors(len(model))}: "
        f"{len(model) - len(kinds):,} unchanged, {kinds.count('difference'):,} as differences, "
        f"{kinds.count('whole'):,} whole"
    )


def _checked(base: nnr.Model, new: nnr.Model, got: nnr.Model) -> str:
    """Describe the difference between the updated model and the intended one."""
    import nnr_codec as nnr

    found = nnr.compare_models(new, got)
    if found.same():
        return "applies to the same tensors, bit for bit"
    noises = [_noise(one) for one in (nnr.compare_models(base, new), found)]
    ratio = f", SNR of the differences {10 * math.log10(noises[0] / noises[1]):.2f} dB" if all(noises) else ""
    return f"{error_text(found)}{ratio}"


def _noise(found: ModelDifference) -> float:
    """Return the sum of the squared differences of floats."""
    return math.fsum(one.noise for one in found.tensors.values() if not one.integers)


def _counted(updates: tuple[str, ...]) -> str:
    return f"{len(updates):,} update{'' if len(updates) == 1 else 's'}"
