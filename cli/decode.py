"""``nnr decode``: decode a bitstream into a model file."""

from __future__ import annotations

import contextlib
import io
import os
import time
from typing import TYPE_CHECKING, Any

import click

from . import maps, output, params

if TYPE_CHECKING:
    import nnr_codec as nnr


@click.command(
    cls=params.GroupedCommand,
    headings={
        "Common options": "target model_format only dtype topology jobs force",
        "Performance maps": "sparsify prune",
        "Input and output": "allow_missing resume limits verbose quiet",
    },
    short_help="Decode a bitstream into a model.",
    epilog="""\b
Examples:
  nnr decode model.nnr
  nnr decode model.nnr -o model.onnx
  nnr decode *.nnr -o folder/ --to safetensors
  nnr decode - -o weights.npz < weights.nnr
  nnr decode model.nnr -o model.safetensors --dtype float16
  nnr decode model.nnr -o heads.npz --only 'head/*' -j 4
  nnr decode weights.nnr -o model.nnef --topology graph.nnef
  nnr decode minilm.nnr -o all-MiniLM-L6-v2
  nnr decode fixed.nnr -o folder --to openvx
  nnr decode model.nnr -o thin.nnef --sparsify 0.01
""",
)
@click.argument("bitstreams", metavar="BITSTREAM...", type=params.FileName(), nargs=-1, required=True)
@params.target("MODEL", "The model, or a folder for it (default: beside BITSTREAM)", required=False)
@params.model_format("from its file extension, else the format of the source", "--to")
@click.option("--only", multiple=True, metavar="GLOB", help="Decode only the tensors whose names match; repeatable.")
@click.option(
    "--dtype",
    type=click.Choice(["source", "float32", "float16", "bfloat16"]),
    default="source",
    help="Type of floats: the original type (default), or one type for all; an out-of-range value is an error.",
)
@maps.applying
@click.option("--allow-missing", is_flag=True, help="Accept a bitstream without some tensors of its topology.")
@params.topology("Topology that replaces the topology in the bitstream")
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    default=1,
    help="Number of threads (default 1); the output does not depend on it.",
)
@params.resume
@params.limits
@params.conversion
def decode(
    bitstreams: tuple[str, ...],
    target: str | None,
    model_format: str | None,
    only: tuple[str, ...],
    dtype: str,
    sparsify: float | None,
    prune: float | None,
    resume: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Decode each BITSTREAM (- for standard input) into a model.

    --to or the file extension of MODEL selects the format (see nnr formats). Otherwise, in a folder or on standard
    output, it is the format of the graph in the bitstream (NNEF as a tar on standard output) or of the encoded model.
    Standard output is an npz if that format cannot be written to a stream.

    A bitstream with attachments, such as config.json, becomes a folder MODEL, unless MODEL has the file extension of a
    format.
    """
    printer = output.Printer(quiet, verbose)
    params.check_resume(resume, target)
    if (sparsify is not None or prune is not None) and (only or resume or dtype != "source"):
        raise click.UsageError("--sparsify and --prune cannot be combined with --only, --dtype or --resume")
    named = not params.in_folder(target)
    if named and len(bitstreams) > 1:
        raise click.UsageError(f"{len(bitstreams)} bitstreams require an output folder, such as -o {target}/")
    options |= {"only": only, "dtype": dtype, "sparsify": sparsify, "prune": prune, "resume": resume, "places": set()}
    options["alone"] = len(bitstreams) == 1
    for k, bitstream in enumerate(bitstreams):
        with params.resumable(resume, bitstreams[:k]):
            _decode(bitstream, target, model_format, printer, **options)


def _decode(
    bitstream: str,
    target: str | None,
    model_format: str | None,
    printer: output.Printer,
    *,
    only: tuple[str, ...],
    dtype: str,
    sparsify: float | None,
    prune: float | None,
    allow_missing: bool,
    topology: str | None,
    jobs: int,
    resume: bool,
    limits: nnr.Limits,
    force: bool,
    places: set[str],
    alone: bool,
) -> None:
    """Decode one bitstream; ``places`` are the paths of earlier outputs, ``alone`` is true without other bitstreams."""
    import nnr_codec as nnr
    from nnr_codec import formats
    from nnr_codec.urls import is_url

    started = time.perf_counter()
    stream = None
    inputs = [bitstream] if topology is None else [bitstream, topology]
    named = not params.in_folder(target)
    if named and target:
        stream = params.open_target(target, *inputs, force=force, folder=True)
    given = params.given(topology, limits, bitstream)
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(output.source(bitstream))
        if isinstance(source, str) and not is_url(source):  # so that the file is never read completely into memory
            source = stack.enter_context(open(source, "rb"))
        file = stack.enter_context(nnr.open(source, limits=limits, dtype=dtype, topology=given))
        is_folder = bool(file.attachments) and not only
        if target and named:
            is_folder = is_folder and target != "-" and formats.is_folder(target)
            if target != "-" and not model_format and not is_folder:
                try:
                    model_format = formats.by_suffix(target).NAME
                except nnr.FormatError as error:
                    raise click.UsageError(str(error)) from None
        else:
            suffix = ""
            if not is_folder:
                model_format = model_format or formats.source_format(file.topology, file.side.format)
                if not model_format:
                    raise click.UsageError(
                        f"{bitstream} does not state the format of its model; give -o with a file extension, or --to"
                    )
                suffix = "".join(formats.writing(model_format).SUFFIXES[:1])
            target = target if is_folder and target and alone else params.place(bitstream, target, suffix)
            if (place := os.path.realpath(target)) in places:
                raise click.UsageError(f"{target} is the file of two outputs; use other names")
            places.add(place)
            params.open_target(target, *inputs, force=force, folder=True)
        printer.passed_over(file.ignored)
        names = params.matching(file, only, "--only") if only else None
        if model_format and formats.needs_topology(model_format):
            formats.check_topology(model_format, file.topology)
            if names and len(names) < len(file):
                raise click.UsageError("--only omits tensors that the graph requires; write .safetensors or .npz")
        if update := output.update_of(file):
            command = "chain" if file.lineage else "apply"
            printer.warning(
                f"{bitstream} is {update}: these are differences; nnr update {command} adds them to a model"
            )
        point = maps.point_of(file, sparsify, prune)
        progress = stack.enter_context(printer.progress("decoding", len(names or file)))

        def note(name: str, done: int, total: int) -> None:
            info = file.info[name]
            printer.detail(f"{name}: {info.type} {output.dims(info.shape)}")
            progress(name, done, total)

        if point:
            model = nnr.folded(file.decode(note, allow_missing=allow_missing, jobs=jobs), reduce=[point.step])
            whole = io.BytesIO() if stream else None
            nnr.save(model, whole or target, format=model_format, overwrite=force)
            if stream and whole:
                stream.write(whole.getvalue())
            size, count = sum(model[name].nbytes for name in model), len(model)
        else:
            nnr.decode_file(
                file,
                stream or target,
                format=model_format,
                overwrite=force,
                progress=note,
                names=names,
                allow_missing=allow_missing,
                jobs=jobs,
                resume=resume,
            )
            infos = [file.info[name] for name in names or file]
            size, count = sum(info.parameters * info.dtype.itemsize for info in infos), len(infos)
    printer.note(
        f"{bitstream} -> {target}: {file.nbytes:,} -> {size:,} bytes, {output.tensors(count)} "
        f"in {time.perf_counter() - started:.2f} s"
    )
    if point:
        printer.note(f"the performance map says: {point.promise}")
