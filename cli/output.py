"""What commands print: tables, summaries and progress, by rich, which is imported when something is printed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

import click

from .errors import is_terminal, one_line

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 100_000  # a table that goes to a file is not cut to a terminal's width


class Printer:
    """Results to standard output, everything else to standard error.

    Parameters
    ----------
    quiet : bool
        Errors only.
    verbose : bool
        A line for each tensor.
    """

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet, self.verbose = quiet, verbose

    def note(self, text: str) -> None:
        """A line on standard error."""
        if not self.quiet:
            click.echo(one_line(text), err=True)

    def detail(self, text: str) -> None:
        """A line on standard error when verbose."""
        if self.verbose:
            click.echo(one_line(text), err=True)

    @contextlib.contextmanager
    def progress(self, label: str, total: int) -> Iterator[Callable[[str], None]]:
        """Yield a function that advances by one and shows a name; a bar appears on terminals only."""
        if self.quiet or self.verbose or not is_terminal():
            yield lambda name: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda name: bar.update(task, advance=1)


def table(headings: Iterable[str], rows: Iterable[Iterable[str]], right: Iterable[str] = ()) -> None:
    """Print a table to standard output; the columns named in ``right`` are numbers."""
    from rich.table import Table
    from rich.text import Text

    right = set(right)
    grid = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for heading in headings:
        grid.add_column(heading, justify="right" if heading in right else "left", overflow="fold", no_wrap=heading in right)
    for row in rows:
        grid.add_row(*(Text(one_line(cell)) for cell in row))
    console().print(grid)


def console() -> Console:
    """Standard output as rich sees it; NO_COLOR is honoured."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False, soft_wrap=not sys.stdout.isatty())


def stdin() -> BinaryIO:
    """Standard input for ``-``."""
    if sys.stdin.isatty():
        raise click.UsageError("standard input is a terminal; give a file or pipe one in")
    return sys.stdin.buffer


def stdout() -> BinaryIO:
    """Standard output for ``-o -``."""
    if sys.stdout.isatty():
        raise click.UsageError("standard output is a terminal; name a file with -o or pipe the output on")
    return sys.stdout.buffer


def count(n: int) -> str:
    """A number with separators between thousands."""
    return f"{n:,}"
