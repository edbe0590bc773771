"""``nnr explain``: explain a name of the standard or of this package."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from nnr_codec.topics import Topic

_PLURALS = {
    "structure": "Syntax structures",
    "element": "Syntax elements",
    "table": "Tables of values",
    "constant": "Constants",
    "requirement": "Requirements",
    "erratum": "Errata",
    "error": "Errors",
    "limit": "Limits",
    "extension": "Side information, which is not part of the standard",
    "output": "JSON output of nnr inspect and nnr verify",
}


def names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return completions of a name."""
    from nnr_codec.topics import topics

    found = (topic.name for values in topics().values() for topic in values[:1])
    return [name for name in found if name.casefold().startswith(incomplete.casefold())]


@click.command(
    short_help="Explain a syntax element, table, constant, requirement, erratum, error or limit.",
    epilog="""\b
Examples:
  nnr explain scan_order
  nnr explain Table 16
  nnr explain TruncatedError
  nnr explain errata
""",
)
@click.argument("name", nargs=-1, shell_complete=names)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(name: tuple[str, ...], as_json: bool) -> None:
    """Explain NAME: a syntax element or structure of ISO/IEC 15938-17:2024, a table of its values (Table 16), a
    constant, a requirement of nnr verify, an erratum such as N8, an error or a limit. The name of a kind, such as
    errata or requirements, lists its entries. Without NAME, list all names.
    """
    import nnr_codec as nnr
    from nnr_codec.topics import kind_of, of_kind

    if not name:
        kinds = of_kind()
        if as_json:
            click.echo(json.dumps(kinds, indent=1))
            return
        for kind, known in kinds.items():
            click.secho(_PLURALS[kind], bold=True)
            words = " ".join(name.replace(" ", "\xa0") for name in known)
            lines = textwrap.wrap(words, 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
            click.echo("\n".join(lines).replace("\xa0", " "))
        return
    try:
        found = nnr.explain(" ".join(name))
    except LookupError as error:
        raise click.UsageError(
            f"{error.args[0]}; nnr explain without a name lists all names;"
            " docs/reference/glossary.md explains other terms"
        ) from None
    if as_json:
        click.echo(json.dumps([asdict(topic) for topic in found], indent=1))
        return
    if kind_of(" ".join(name)):
        click.echo("\n".join(f"{topic.name}: {topic.text}".partition("\n")[0].rstrip(": ") for topic in found))
        return
    click.echo("\n\n".join(map(_text, found)))


def _text(topic: Topic) -> str:
    head = click.style(f"{topic.name}: {topic.kind}{f', {topic.clause}' if topic.clause else ''}", bold=True)
    return "\n".join([head, *(f"  {line}".rstrip() for line in (topic.text, *topic.details) if line)])
