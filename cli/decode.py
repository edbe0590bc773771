"""``nnr decode``: a bitstream in, a model file out."""

from __future__ import annotations

import contextlib
import io
import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from . import maps, output, params

if TYPE_CHECKING:
    import nnr_codec as nnr


@click.command(
    short_help="Decode a bitstream into a model.",
    epilog="""\b
Examples:
  nnr decode model.nnr -o model.nnef
  nnr decode model.nnr -o model.onnx
  nnr decode - -o weights.npz < weights.nnr
  nnr decode model.nnr -o model.safetensors --dtype float16
  nnr decode model.nnr -o heads.npz --only 'head/*' -j 4
  nnr decode weights.nnr -o model.nnef --topology graph.nnef
  nnr decode fixed.nnr -o folder --to openvx
  nnr decode model.nnr -o thin.nnef --sparsify 0.01
""",
)
@click.argument("bitstream", type=params.FileName())
@params.target("MODEL", "The model")
@params.model_format("by its name", "--to")
@click.option(
    "--only", multiple=True, metavar="GLOB", help="Decode the tensors whose names match, and nothing else; repeatable."
)
@click.option(
    "--dtype",
    type=click.Choice(["source", "float16", "float32"]),
    default="source",
    help="Type of floats: what they were (default), or all the same; a value too large for it is an error.",
)
@maps.applying
@click.option("--allow-missing", is_flag=True, help="Take a bitstream that lacks tensors which its topology names.")
@params.topology("What the bitstream belongs to; in the place of the topology that it carries, if it does")
@click.option("-j", "--jobs", type=click.IntRange(1), default=1, help="Threads (default 1); the output is the same.")
@params.resume
@params.limits
@params.conversion
def decode(
    bitstream: str,
    target: str,
    model_format: str | None,
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
    quiet: bool,
    verbose: bool,
) -> None:
    """Decode BITSTREAM (- for standard input) into a model.

    The name of MODEL decides on its format, unless --to says it (nnr formats lists names and endings). Standard output
    gets the format of the graph that the bitstream carries (of NNEF a tar), or that which it was made of, where that
    can be a stream; else an npz.
    """
    import nnr_codec as nnr
    from nnr_codec import formats

    printer = output.Printer(quiet, verbose)
    params.check_resume(resume, target)
    if (sparsify is not None or prune is not None) and (only or resume or dtype != "source"):
        raise click.UsageError(
            "--sparsify and --prune take a whole model as it is, without --only, --dtype and --resume"
        )
    if target != "-" and not model_format:
        try:
            model_format = formats.by_suffix(target).NAME
        except nnr.FormatError as error:
            raise click.UsageError(str(error)) from None
    stream = params.open_target(target, bitstream, force=force, folder=True)
    started = time.perf_counter()
    given = params.given(topology, limits, bitstream)
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(output.source(bitstream))
        if isinstance(source, str):  # read in places, so that it is never in memory as a whole
            source = stack.enter_context(open(source, "rb"))
        file = stack.enter_context(nnr.open(source, limits=limits, dtype=dtype, topology=given))
        printer.passed_over(file.ignored)
        names = _matching(file, only) if only else None
        if model_format and formats.needs_topology(model_format):
            formats.check_topology(model_format, file.topology)
            if names and len(names) < len(file):
                raise click.UsageError("--only leaves out tensors that a network needs; write a .safetensors or .npz")
        if update := output.update_of(file):
            command = "chain" if file.lineage else "apply"
            printer.warning(
                f"{bitstream} is {update}: these are differences; nnr update {command} adds them to a model"
            )
        point = maps.point_of(file, sparsify, prune)
        advance = stack.enter_context(printer.progress("decoding", len(names or file)))

        def note(name: str) -> None:
            info = file.info[name]
            printer.detail(f"{name}: {info.type} {output.dims(info.shape)}")
            advance()

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


def _matching(file: nnr.NnrFile, globs: tuple[str, ...]) -> list[str]:
    """The names that match; a glob that matches none is a mistake of the user's."""
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in file):
            raise click.UsageError(f"--only {glob!r} matches no tensor")
    return [name for name in file if any(fnmatchcase(name, glob) for glob in globs)]
