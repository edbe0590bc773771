"""``nnr formats``: list supported model formats and the packages they require."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from . import output

if TYPE_CHECKING:
    from nnr_codec.formats import Format


@click.command(
    short_help="List supported model formats and the packages they require.",
    epilog="""\b
Examples:
  nnr formats
  nnr formats --json | python -m json.tool
""",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def formats(as_json: bool) -> None:
    """List the supported model formats, including formats of other packages.

    A model is recognized by its content for reading, and by its file extension for writing; --format and --to select a
    format by name.
    """
    from nnr_codec.formats import registry

    rows = sorted(map(row_of, registry.every()), key=lambda row: str(row["name"]))
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    output.table(
        ("name", "description", "reads", "writes", "packages"),
        (
            (
                row["name"],
                row["description"],
                row["reads"] or "no",
                " ".join(row["suffixes"]) or ("a folder" if row["writes"] else "no"),
                row["install"] or "installed",
            )
            for row in rows
        ),
        right=(),
        fold=("description", "reads", "writes", "packages"),
    )


def row_of(module: Format) -> dict[str, Any]:
    """Return the properties of a format."""
    from importlib.util import find_spec

    from nnr_codec.formats import Reading, Writing

    needs, to_write = getattr(module, "NEEDS", ()), getattr(module, "NEEDS_TO_WRITE", ())
    missing = [name for name in (*needs, *to_write) if find_spec(name) is None]
    extra = getattr(module, "EXTRA", "")
    install = f"pip install 'nnr_codec[{extra}]'" if extra else f"pip install {' '.join(missing)}"
    if not any(name in needs for name in missing):
        install = f"to write: {install}"
    return {
        "name": module.NAME,
        "description": module.DESCRIPTION,
        "reads": module.READS if isinstance(module, Reading) else "",
        "writes": isinstance(module, Writing),
        "suffixes": list(module.SUFFIXES),
        "needs": missing,
        "install": install if missing else "",
    }
