"""``nnr encode``: encode a model file as a bitstream."""

from __future__ import annotations

import io
import itertools
import json
import os
from dataclasses import replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import click

from . import coding, maps, output, params, samples
from .coding import LOSSLESS
from .diff import error_text

if TYPE_CHECKING:
    import nnr_codec as nnr
    from nnr_codec.compare import LossSummary, ModelDifference

DEFAULT, GPP = "default", "3gpp-full"
PRESETS = (DEFAULT, "small", "balanced", "fine", LOSSLESS, "lora", GPP)


@click.command(
    cls=params.GroupedCommand,
    headings={
        "Common options": "target quality preset lossless target_size check dry_run reports jobs force",
        "Other goals": "qp qp_density snr max_error target_ratio target_drop rules fixed_point",
        "Sample inputs": "data labels module known",
        "Quantization": coding.QUANTIZATION,
        "Graph and parameter reduction": "topology block fold_batchnorm local_scaling reduce",
        "Bitstream syntax": f"profile {coding.SYNTAX} parts layer_parameter_sets join",
        "Performance": "wanted evaluate metric validation_performance base_model_id",
        "Input and output": "model_format attach attachments dequantize strict resume as_json limits verbose quiet",
    },
    short_help="Compress a model into a bitstream.",
    epilog="""\b
Examples:
  nnr encode model.onnx
  nnr encode model.onnx -o model.nnr --quality 40
  nnr encode *.safetensors -o folder/
  nnr encode model.safetensors -o model.nnr --lossless
  nnr encode checkpoint/ -o model.nnr -j 8 --resume
  nnr encode all-MiniLM-L6-v2/ -o minilm.nnr --attach '*.py'
  nnr encode weights.npz -o weights.nnr --qp -32 --rule 'head.*:exact=true' --check
  nnr encode model.nnef -o model.nnr --target-size 2.5MB
  nnr encode model.onnx -o model.nnr --data samples.npz --target-drop 0.5
  nnr encode model.nnef --preset small --dry-run
  nnr encode model.nnef -o model.nnr --fold-batchnorm --indexed-references --check
  nnr encode model.nnef -o model.nnr --fixed-point q7.8 --fold-batchnorm
  nnr encode model.nnef -o model.nnr --reduce 'sparsify(ratio=0.6), fold'
  nnr encode examples/digits/digits.nnef -o digits.nnr --map sparsification \\
    --evaluate 'python examples/digits/evaluate.py'

\b
Keys of a rule: qp, quality, snr, max_error, fine_vectors, dependent_quantization, exact,
scan_order, fast_decode, row_skipping, cabac_unary_length_minus1, choose_shift_parameters, rate,
codebook, noise_shaping, reducible.
dq is short for dependent_quantization.
Where several rules match a tensor, the last one wins.
""",
)
@click.argument("models", metavar="MODEL...", type=params.FileName(), nargs=-1, required=True)
@params.target("OUT.nnr", "The bitstream, or a folder for it (default: beside MODEL)", required=False)
@click.option(
    "--qp",
    type=int,
    help="Quantization parameter of matrices; lowering it by 4 halves the step size, which is 1/1024 at -40. "
    "Default: a step size for each matrix, computed from its values.",
)
@coding.options("qp_density")
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    help="Set of options. small, balanced, fine: a quality of 30, 40, 60; lossless: every bit is kept; "
    "default: a step size for each matrix; lora: an SNR of about 45 dB for the products of LoRA adapters; "
    "3gpp-full: the tools of 3GPP S4-260200 for a whole model.",
)
@click.option(
    "--quality",
    type=float,
    metavar="0..100",
    help="Approximate SNR of all matrices together in dB; raising it by 6 halves the step size. Each matrix "
    "gets at least the lower of 35 dB and this value minus 10 dB.",
)
@coding.options("snr", "max_error", "target_size", "target_ratio", "lossless", "fixed_point")
@click.option("--profile", type=click.IntRange(0, 1), help="1: extended feature set (default), 0: base feature set.")
@coding.options(
    *("dependent_quantization", "fast_decode", "scan_order", "row_skipping"),
    *("max_unit_size", "side_info", "index", "indexed_references", "parts", "layer_parameter_sets", "join"),
)
@click.option(
    "--topology",
    type=click.Choice(["carried", "external"]),
    help="Store the graph in the bitstream (default), or supply it to decoders separately (nnr decode --topology).",
)
@click.option(
    "--block",
    is_flag=True,
    default=None,
    help="Code the weights of the graph together with their biases and batch normalizations, if they are "
    "quantized without a codebook.",
)
@click.option(
    "--fold-batchnorm",
    is_flag=True,
    default=None,
    help="Fold batch normalizations, which halves the number of their coded parameters; outputs are the same "
    "up to rounding. Implies --block.",
)
@click.option(
    "--local-scaling",
    is_flag=True,
    default=None,
    help="Scale weights before batch normalizations, so that errors are smaller where the normalizations amplify them. "
    "Implies --block.",
)
@click.option(
    "--reduce",
    metavar="STEPS",
    help="Steps of parameter reduction before quantization, such as 'sparsify(ratio=0.6), fold': sparsify, "
    "unify, prune, lowrank, fold, scale (docs/guides/reduction.md). With a size target, a step without an amount"
    " gets the amount with the smallest error.",
)
@coding.options("rules", "effort", "rate", "codebook", "jobs")
@click.option(
    "--target-drop",
    type=float,
    metavar="POINTS",
    help="Smallest size at which a classifier is predicted to lose at most this many percentage points of accuracy, "
    "such as 0.5; requires --data. Takes up to 10 encodings.",
)
@samples.options(
    ", as for nnr calibrate. Sensitivities and second moments are measured with them. With --target-drop, every fourth "
    "sample is used for that, and the others for the loss"
)
@click.option(
    "--labels",
    metavar="NAME",
    help="Array of --data with the correct class of each sample, from 0, for --target-drop. Labels make the predicted "
    "loss more accurate.",
)
@click.option(
    "--sensitivity",
    "known",
    type=params.FileName(),
    metavar="FILE.npz",
    help="Costs of errors (see docs/guides/data-aware.md), by tensor name, and second moments, by hessian:NAME and "
    "row_hessian:NAME.",
)
@params.model_format("detected from its content")
@click.option(
    "--attach",
    multiple=True,
    metavar="GLOB",
    help="Attach further files of the folder MODEL, such as '*.py'; repeatable. By default, files of at most 64 MiB "
    "are attached, but no other weights, pickles or programs.",
)
@click.option("--no-attachments", "attachments", is_flag=True, flag_value=False, default=True, help="Attach no files.")
@click.option(
    "--strict",
    is_flag=True,
    help="Reject a model with parts that the bitstream cannot represent, instead of issuing a warning.",
)
@click.option(
    "--dequantize",
    is_flag=True,
    help="Encode the float32 weights of quantized tensors, instead of their integers and scales (GGUF, "
    "TensorFlow Lite, NNEF).",
)
@click.option(
    "--check", is_flag=True, help="Decode the output and print the largest error, or that all bits are equal."
)
@params.report
@maps.measuring
@params.resume
@click.option("--dry-run", is_flag=True, help="Print the estimated size of each tensor without writing a file.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print JSON.")
@params.limits
@params.conversion
def encode(
    models: tuple[str, ...],
    target: str | None,
    model_format: str | None,
    attach: tuple[str, ...],
    attachments: bool,
    preset: str | None,
    lossless: bool,
    strict: bool,
    dequantize: bool,
    check: bool,
    jobs: int,
    target_drop: float | None,
    data: str | None,
    module: str | None,
    labels: str | None,
    known: str | None,
    rules: tuple[nnr.Rule, ...],
    reports: tuple[str, ...],
    wanted: maps.Maps,
    evaluate: str | None,
    metric: str | None,
    validation_performance: float | None,
    base_model_id: str | None,
    resume: bool,
    dry_run: bool,
    as_json: bool,
    limits: nnr.Limits,
    force: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Compress each MODEL into an NNR bitstream.

    MODEL is a file or folder in any format listed by nnr formats, detected from its content; - for standard input.
    """
    import nnr_codec as nnr

    printer = output.Printer(quiet, verbose)
    if preset == GPP and options["fold_batchnorm"]:
        raise click.UsageError(
            f"--preset {GPP} does not code biases in blocks, which --fold-batchnorm requires; remove one of them"
        )
    config = coding.encoder_config(DEFAULT, preset, lossless, rules, options)
    check_steps(config)
    check_samples(models, data, module, known)
    if data and options["join"]:
        raise click.UsageError("--data and --join cannot be combined; the sensitivities are those of single tensors")
    if labels is not None and target_drop is None:
        raise click.UsageError("--labels requires --target-drop")
    if target_drop is not None:
        check_drop(target_drop, data, config, preset, {"--map": bool(wanted), "--dry-run": dry_run})
    if attach and not attachments:
        raise click.UsageError("--attach and --no-attachments cannot be combined; choose one")
    if attach and not all(map(os.path.isdir, models)):
        raise click.UsageError("--attach requires a folder as MODEL")
    if as_json and not dry_run:
        raise click.UsageError("--json requires --dry-run")
    if dry_run and (check or reports):
        raise click.UsageError(f"--dry-run and {'--check' if check else '--report'} cannot be combined")
    if len(models) > 1 and (as_json or reports):
        raise click.UsageError(f"{'--json' if as_json else '--report'} requires one model, got {len(models)}")
    if len(models) > 1 and not params.in_folder(target):
        raise click.UsageError(f"{len(models)} models require an output folder, such as -o {target}/")
    evaluation = maps.checked(wanted, evaluate, metric, validation_performance, config, dry_run)
    params.check_resume(resume, "-" if dry_run else target)
    places = [model if dry_run else params.place(model, target, ".nnr") for model in models]
    for k, (model, place) in enumerate(zip(models, places, strict=True)):
        if os.path.realpath(place) in map(os.path.realpath, (*reports, *places[:k])):
            raise click.UsageError(f"{place} is the file of two outputs; use other names")
        if place == model != "-":
            output.model(model, format=model_format, limits=limits)  # raises the error for a bitstream
    inputs = [*models, *[name for name in (known, data) if name]]
    for name in reports:
        params.open_target(name, *inputs, force=force, folder=False)
    streams = [None if dry_run else params.open_target(place, *inputs, force=force, folder=False) for place in places]
    for place in [] if dry_run else places:
        params.check_bitstream_name(place)
    if known is not None:
        try:
            costs = costs_of(nnr.load(known, format="npz", limits=limits))
        except nnr.FormatError as error:
            error.add_note("--sensitivity requires an .npz file (docs/guides/data-aware.md)")
            raise
        with coding.usage_errors():
            config = replace(config, **costs)
    tested = None
    if data:
        given = samples.Samples.read(data, models[0], module, limits, labels=labels)
        if target_drop is not None:
            given, tested = given.divided()  # the encoder fits the model to its samples
        with printer.progress("calibrating", 1) as progress:
            sensitivities, hessians = given.costs(progress)
        with coding.usage_errors():
            config = replace(config, sensitivity=sensitivities, hessians=hessians)
    for k, (model, place, stream) in enumerate(zip(models, places, streams, strict=True)):
        chosen = attach if attachments else None
        source = output.model(model, format=model_format, limits=limits, strict=strict, attach=chosen)
        source = nnr.dequantized(source) if dequantize else source
        params.check_companions(source, *reports, *([] if dry_run else places))
        if dry_run:
            estimated(nnr.estimate(source, config, jobs=jobs), config, output.stored_size(model), as_json)
            continue
        asked = maps.measured(source, model, config, evaluation, jobs, printer) if evaluation else config
        asked = maps.stating(asked, base_model_id, validation_performance, metric)
        if tested is not None and target_drop is not None:
            asked = tuned(source, tested, target_drop, asked, printer)
        kept = io.BytesIO() if stream and check else None
        with params.resumable(resume, models[:k]), printer.progress("encoding", len(source)) as progress:
            report = nnr.encode_file(
                source,
                kept or stream or place,
                asked,
                overwrite=force,
                progress=progress,
                jobs=jobs,
                statistics=bool(reports),
                resume=resume,
            )
        if stream and kept:
            stream.write(kept.getvalue())
        report.source = "" if model == "-" else os.path.basename(os.path.normpath(model))
        for name in reports:
            report.save(name, overwrite=force)
        for tensor in report.tensors.values():
            bits = f", {8 * tensor.unit_bytes / tensor.parameters:.2f} bits/parameter" if tensor.parameters else ""
            printer.detail(f"{tensor.name}: {tensor.source_bytes:,} -> {tensor.unit_bytes:,} bytes{bits}")
        for line in step_lines(asked, report):
            printer.note(line)
        if source.attachments:
            printer.note(output.attachments(source.attachments))
        printer.note(f"{model} -> {place}: {summary(report, output.stored_size(model))} ({report.seconds:.2f} s)")
        if check:
            printer.note(
                f"check: {checked(compared(source, kept.getvalue() if kept else place, report, limits, jobs, printer))}"
            )
        for name in reports:
            printer.note(f"report: {name}")


def compared(
    source: nnr.Model,
    bitstream: str | bytes,
    report: nnr.EncodeReport,
    limits: nnr.Limits,
    jobs: int,
    printer: output.Printer,
) -> ModelDifference:
    """Return the difference between the tensors of a bitstream and its source after reduction."""
    import nnr_codec as nnr

    config = report.config
    apart = source.topology if config and config.topology == "external" else None
    with printer.progress("checking", len(source)) as progress:
        written = nnr.open(bitstream, limits=limits, topology=apart)
        with written.deferred(allow_missing=True, jobs=jobs) as decoded:
            return nnr.compare_models(nnr.folded(source, config), decoded, progress)


def check_samples(models: tuple[str, ...], data: str | None, module: str | None, known: str | None) -> None:
    """Raise UsageError for sample inputs that cannot be used."""
    if module and not data:
        raise click.UsageError("--module requires --data")
    if data and known:
        raise click.UsageError("--data and --sensitivity cannot be combined; --data measures the sensitivities")
    if data and (len(models) > 1 or models == ("-",)):
        raise click.UsageError(
            f"--data requires one model file, got {'standard input' if len(models) == 1 else len(models)}"
        )


def check_drop(
    target_drop: float, data: str | None, config: nnr.EncoderConfig, preset: str | None, others: dict[str, bool]
) -> None:
    """Raise UsageError for options that exclude a predicted loss; ``others`` maps options to whether they are given."""
    from nnr_codec.encoder import accuracy_drop

    if not data:
        raise click.UsageError("--target-drop requires --data, a file of sample inputs")
    others = {**others, f"--preset {preset}": preset not in (None, DEFAULT, GPP)}
    for other, is_given in others.items():
        if is_given:
            raise click.UsageError(f"--target-drop and {other} cannot be combined; choose one")
    with coding.usage_errors():
        accuracy_drop.check(config, target_drop)


def tuned(
    source: nnr.Model, given: samples.Samples, target_drop: float, config: nnr.EncoderConfig, printer: output.Printer
) -> nnr.EncoderConfig:
    """Return the options for the smallest size at which the predicted loss of accuracy meets the target."""
    import nnr_codec as nnr
    from nnr_codec.encoder.accuracy_drop import BUDGET

    scores, calls = given.scores(), itertools.count(1)
    with printer.progress("predicting losses", BUDGET) as progress:

        def outputs(model: nnr.Model) -> Any:
            found = scores(model)
            progress("", next(calls), BUDGET)
            return found

        found = nnr.tune_drop(source, outputs, target_drop=target_drop, labels=given.labels, config=config)
    printer.note(
        f"predicted loss of accuracy at {found.nbytes:,} bytes: {found.drop:.2f} points, at most {found.limit:.2f} "
        f"with 95 % confidence ({len(given):,} samples, {found.evaluations} evaluations)"
    )
    return found.config


def costs_of(known: nnr.Model) -> dict[str, Any]:
    """Return the options from an archive of sensitivities and second moments."""
    from nnr_codec.integrations.second_moments import PREFIXES

    sides = [{name.removeprefix(one): known[name] for name in known if name.startswith(one)} for one in PREFIXES]
    return {
        "sensitivity": {name: known[name] for name in known if not name.startswith(PREFIXES)},
        "hessians": {name: tuple(side.get(name) for side in sides) for side in sides for name in side},
    }


def estimated(report: nnr.EncodeReport, config: nnr.EncoderConfig, stored: int | None, as_json: bool) -> None:
    """Print the estimated size of each tensor."""
    from nnr_codec.report.document import loss_facts
    from nnr_codec.report.reduced import number

    tensors = report.tensors.values()
    if as_json:
        rows = [
            {
                "name": tensor.name,
                "parameters": tensor.parameters,
                "source_bytes": tensor.source_bytes,
                "bytes": tensor.unit_bytes,
                "bits_per_parameter": _each(tensor.unit_bytes, tensor.parameters),
                "snr_db": number(tensor.loss.snr) if tensor.loss else None,
                "zeroed": tensor.loss.zeroed if tensor.loss else None,
            }
            for tensor in tensors
        ]
        total = {
            "parameters": report.parameters,
            "source_bytes": report.source_bytes,
            "bytes": report.nbytes,
            "bits_per_parameter": _each(report.nbytes, report.parameters),
            **loss_facts(report.loss),
        }
        steps = [step.document() for step in report.steps]
        click.echo(json.dumps({"tensors": rows, "steps": steps, **total}, indent=1))
        return
    output.table(
        ("name", "parameters", "before", "bytes", "bits/par", "SNR dB"),
        (
            (
                tensor.name,
                f"{tensor.parameters:,}",
                f"{tensor.source_bytes:,}",
                f"{tensor.unit_bytes:,}",
                f"{_each(tensor.unit_bytes, tensor.parameters):.2f}",
                _decibels(tensor.loss.snr) if tensor.loss else "",
            )
            for tensor in tensors
        ),
        right=("parameters", "before", "bytes", "bits/par", "SNR dB"),
        fold=("name",),
    )
    for line in step_lines(config, report):
        click.echo(line)
    click.echo(f"{output.tensors(len(report.tensors))}, estimated: {summary(report, stored)}")


def check_steps(config: nnr.EncoderConfig) -> None:
    """Raise UsageError for an unknown step of parameter reduction, or an unknown option of a step."""
    from nnr_codec.encoder.reduce import tool_of

    with coding.usage_errors():
        for step in config.reduction:
            tool_of(step)


def step_lines(config: nnr.EncoderConfig, report: nnr.EncodeReport) -> list[str]:
    """Describe the effects of the steps of parameter reduction, and the steps that a size target omitted."""
    done = list(report.config.reduction) if report.config else []
    asked = list(config.reduction)
    for step in [step for step in asked if step in done]:
        asked.remove(step)
        done.remove(step)
    for step in done:  # the size target chose its amount
        asked.remove(next(one for one in asked if one.tool == step.tool and {*one.options} <= {*step.options}))
    return [
        *map(step_text, report.steps),
        *(f"{step}: skipped, because it does not help at this size" for step in asked),
    ]


def step_text(step: nnr.StepReport) -> str:
    """Describe the effect of a step of parameter reduction."""
    error = f", {step.snr:.1f} dB" if isfinite(step.snr) else ""
    return (
        f"{step.step}: {output.tensors(step.changed)} changed, {step.parameters:,} parameters, "
        f"{100 * step.zeros:.1f} % zeros{error}; about {step.nbytes:,} bytes"
    )


def _each(nbytes: int, parameters: int) -> float:
    """Return bits per parameter."""
    return round(8 * nbytes / parameters, 4) if parameters else 0.0


def checked(found: ModelDifference) -> str:
    """Describe the result of comparing a model with its bitstream."""
    if found.same():
        return "decodes to the same tensors, bit for bit"
    others = [*found.missing, *found.extra, *found.shapes, *found.dtypes]
    more = (
        f"; {output.tensors(len(others))} missing or of another type or shape, such as {others[0]!r}" if others else ""
    )
    loss = loss_text(found.loss)
    return f"{error_text(found)}{f'; {loss}' if loss else ''}{more}"


def summary(report: nnr.EncodeReport, stored: int | None) -> str:
    """Describe sizes before and after, relative to :func:`.output.stored_size`, and errors."""
    sizes = output.sizes(report.source_bytes, stored, report.nbytes, report.parameters)
    if not report.parameters:
        return sizes
    exact = "lossless" if report.config and report.config.exact else "all values exact"
    return f"{sizes}, {loss_text(report.loss) or exact}"


def loss_text(loss: LossSummary) -> str:
    """Describe the errors of a model in one line; empty if there are none."""
    if loss.matrices in (None, inf) and loss.vectors in (None, inf):
        return ""
    worst = f" (worst: {loss.worst} {loss.worst_snr:.1f} dB)" if loss.worst else ""
    parts = [
        f"{kind} {_decibels(snr)}{' dB' if isfinite(snr) else ''}{worst if kind == 'matrices' else ''}"
        for kind, snr in (("matrices", loss.matrices), ("vectors", loss.vectors))
        if snr is not None
    ]
    zeroed = [f"{_percent(100 * loss.zeroed)} % of values became zero"] if loss.zeroed else []
    return ", ".join(parts + zeroed)


def _decibels(snr: float) -> str:
    return "exact" if snr == inf else f"{round(snr, 1) + 0:.1f}"  # without the sign of -0.0


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2g}"
