"""Generator of the command-line reference of the site: the help of every command, as ``nnr COMMAND --help`` prints it.

docs/conf.py calls it when the site is built, so the repository has no copy of the help. sphinx-click would reformat the
parameters and lose the order, the headings and the examples of the help.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

SETTINGS: dict[str, Any] = {"terminal_width": 88, "max_content_width": 88, "help_option_names": ["-h", "--help"]}


def commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the full name and the command of each command of a group, in order, including nested groups."""
    for word, command in group.commands.items():
        yield f"{name} {word}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {word}")


def page() -> str:
    """Return the page as Markdown."""
    from cli.main import cli

    lines = ["# Command line", "", "The help of each command, as `nnr COMMAND --help` prints it.", ""]
    for name, command in [("nnr", cli), *commands(cli, "nnr")]:
        context = click.Context(command, info_name=name, **SETTINGS)
        lines += [f"## {name}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines)
