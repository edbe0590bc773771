"""``nnr store``: folders of models in which a new checkpoint takes the bytes of its changes."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from . import coding, output, params
from .errors import one_line

if TYPE_CHECKING:
    import nnr_codec as nnr


@click.group(
    short_help="Store checkpoints of models in a folder.",
    epilog="""\b
Examples:
  nnr store init checkpoints
  nnr store add checkpoints epoch1.safetensors --name net
  nnr store add checkpoints epoch2.safetensors --name net
  nnr store ls checkpoints
  nnr store get checkpoints net@1 -o old.safetensors
""",
)
def store() -> None:
    """Store models in a folder or bucket in which a new checkpoint takes the bytes of its changes.

    STORE is a path, or a URL of fsspec, such as s3://bucket/models. See docs/guides/store.md.
    """


_place = click.argument("store", type=params.FileName())
_quiet = click.option("-q", "--quiet", is_flag=True, help="Print errors only.")


# ------------------------------------------------------------------------------------------------ init
@store.command(
    epilog="""\b
Examples:
  nnr store init checkpoints
  nnr store init s3://bucket/models
"""
)
@_place
@_quiet
def init(store: str, quiet: bool) -> None:
    """Make an empty STORE."""
    from nnr_codec.store import Store

    Store(store, create=True)
    output.Printer(quiet).note(f"{store}: created an empty store")


# ------------------------------------------------------------------------------------------------ add
@store.command(
    short_help="Store a model as the next version.",
    epilog="""\b
Examples:
  nnr store add checkpoints epoch2.safetensors --name net
  nnr store add checkpoints tuned.onnx --base net@3
  nnr store add checkpoints epoch3.pt --name net --quality 40
""",
)
@_place
@click.argument("model", type=params.FileName())
@click.option("--name", metavar="NAME", help="Name of the model in STORE (default: from the name of the file).")
@click.option(
    "--base",
    metavar="NAME[@VERSION]",
    help="Version whose differences are stored (default: the latest version of NAME).",
)
@coding.options("rules", "effort", "jobs", "snr", "max_error")
@click.option(
    "--quality",
    type=float,
    metavar="0..100",
    help="Store changed tensors with loss, at approximately this SNR in dB; it applies to differences if there is a "
    "base. Default: lossless.",
)
@params.limits
@_quiet
def add(
    store: str,
    model: str,
    name: str | None,
    base: str | None,
    rules: tuple[nnr.Rule, ...],
    jobs: int,
    limits: nnr.Limits,
    quiet: bool,
    **options: Any,
) -> None:
    """Store MODEL (a file, or - for standard input) as the next version of NAME.

    Tensors that STORE has already take no bytes. Changed tensors are stored as differences if that is smaller. The
    model is restored exactly, unless an option permits a loss.
    """
    from nnr_codec import formats
    from nnr_codec.store import Store

    if name is None and model == "-":
        raise click.UsageError("standard input has no name; give --name")
    started = time.perf_counter()
    given = {key: value for key, value in options.items() if value is not None}
    place = Store(store, limits=limits)
    source = output.model(model, limits=limits, or_bitstream=True)
    name = name or os.path.basename(formats.without_suffix(os.path.normpath(model)))
    with coding.usage_errors():
        added = place.add(source, name, base=base, jobs=jobs, rules=rules, **given)
    of_base = f" of {added.base}" if added.base else ""
    output.Printer(quiet).note(
        f"{model} -> {added}{of_base}: {added.source_bytes:,} -> {added.stored_bytes:,} bytes, "
        f"{output.tensors(added.tensors)} in {time.perf_counter() - started:.2f} s"
    )


# ------------------------------------------------------------------------------------------------ get
@store.command(
    short_help="Restore a model.",
    epilog="""\b
Examples:
  nnr store get checkpoints net -o latest.safetensors
  nnr store get checkpoints net@2 -o epoch2.npz
""",
)
@_place
@click.argument("name", metavar="NAME[@VERSION]")
@params.target("MODEL", "The model")
@params.model_format("from its file extension, else the format of the stored model", "--to")
@coding.options("jobs")
@params.limits
@click.option("-f", "--force", "--overwrite", is_flag=True, help="Replace an existing output.")
@_quiet
def get(
    store: str,
    name: str,
    target: str,
    model_format: str | None,
    jobs: int,
    limits: nnr.Limits,
    force: bool,
    quiet: bool,
) -> None:
    """Restore a model, by default its latest version, and compare each tensor with its digest."""
    from nnr_codec.store import Store

    started = time.perf_counter()
    stream = params.open_target(target, store, force=force, folder=True)
    model = Store(store, limits=limits).get(name, jobs=jobs)
    output.save(model, stream, target, model_format, force)
    output.Printer(quiet).note(
        f"{name} -> {target}: {output.tensors(len(model))} in {time.perf_counter() - started:.2f} s"
    )


# ------------------------------------------------------------------------------------------------ ls
@store.command(
    epilog="""\b
Examples:
  nnr store ls checkpoints
  nnr store ls checkpoints --json | jq '.[-1].identity'
"""
)
@_place
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@params.limits
def ls(store: str, as_json: bool, limits: nnr.Limits) -> None:
    """List the versions of the models in STORE.

    stored counts the bytes that a version added: its manifest, and objects that no earlier version uses. parts is the
    largest number of bitstreams from which a tensor is restored.
    """
    from nnr_codec.store import Store

    versions = Store(store, limits=limits).versions()
    if as_json:
        click.echo(json.dumps([asdict(version) for version in versions], indent=1))
        return
    output.table(
        ("version", "base", "created", "tensors", "bytes", "stored", "ratio", "parts"),
        (
            (
                str(one),
                one.base or "-",
                one.created[:19],
                f"{one.tensors:,}",
                f"{one.source_bytes:,}",
                f"{one.stored_bytes:,}",
                _ratio(one.stored_bytes, one.source_bytes),
                str(one.parts),
            )
            for one in versions
        ),
        right=("tensors", "bytes", "stored", "ratio", "parts"),
        fold=("version", "base"),
    )
    source, stored = (sum(getattr(one, key) for one in versions) for key in ("source_bytes", "stored_bytes"))
    count = f"{len(versions):,} version{'' if len(versions) == 1 else 's'}"
    click.echo(f"{count}, {source:,} -> {stored:,} bytes{f' ({_ratio(stored, source)})' if source else ''}")


def _ratio(stored: int, source: int) -> str:
    return f"{100 * stored / source:.2f} %" if source else "-"


# ------------------------------------------------------------------------------------------------ rm
@store.command(
    epilog="""\b
Examples:
  nnr store rm checkpoints net@1
  nnr store rm checkpoints net@1 net@2
"""
)
@_place
@click.argument("names", metavar="NAME@VERSION...", nargs=-1, required=True)
@_quiet
def rm(store: str, names: tuple[str, ...], quiet: bool) -> None:
    """Remove versions. Other versions stay readable; nnr store gc frees the space."""
    from nnr_codec.store import Store

    place = Store(store)
    for name in names:
        place.remove(name)
        output.Printer(quiet).note(f"removed {name}")


# ------------------------------------------------------------------------------------------------ gc
@store.command(
    epilog="""\b
Examples:
  nnr store gc checkpoints --dry-run
  nnr store gc checkpoints --grace 1
"""
)
@_place
@click.option("--dry-run", is_flag=True, help="List the files without deleting them.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=24.0,
    metavar="HOURS",
    help="Keep files written, and versions removed, in the last HOURS (default 24); use 0 only without other users.",
)
@params.limits
def gc(store: str, dry_run: bool, grace: float, limits: nnr.Limits) -> None:
    """Delete files that no version uses, such as objects of removed versions and of interrupted commands."""
    from nnr_codec.store import Store

    deleted = Store(store, limits=limits).gc(grace=grace * 3600, dry_run=dry_run)
    for path in deleted:
        click.echo(one_line(path))
    done = "would delete" if dry_run else "deleted"
    click.echo(f"{done} {len(deleted):,} file{'' if len(deleted) == 1 else 's'}, {sum(deleted.values()):,} bytes")
