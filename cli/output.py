"""Output of commands: tables and progress with rich, which is imported on use; and binary streams."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from .errors import one_line, say, warn

if TYPE_CHECKING:
    from rich.console import Console

    import nnr_codec as nnr
    from nnr_codec.model import Progress

WIDE = 100_000  # width of a table in a file, which is not limited by a terminal
INTERVAL = 10.0  # seconds between lines of progress
NARROW = 80  # narrower terminals wrap lines themselves


class Printer:
    """Printer of lines and a progress bar on standard error; results go to standard output instead.

    Parameters
    ----------
    quiet : bool
        Print only errors, no warnings.
    verbose : bool
        Print a line for each tensor.
    """

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet, self.verbose = quiet, verbose and not quiet
        if quiet:
            warnings.simplefilter("ignore")

    def note(self, text: str) -> None:
        """Print a line."""
        if not self.quiet:
            say(text)

    def warning(self, text: str) -> None:
        """Print a warning."""
        if not self.quiet:
            warn(text)

    def passed_over(self, ignored: Sequence[str]) -> None:
        """Print a warning about ignored units, if there are any."""
        if ignored:
            more = f" and {len(ignored) - 1} more" if len(ignored) > 1 else ""
            self.warning(f"skipped, because its type or format is unknown: {ignored[0]}{more}")

    def detail(self, text: str) -> None:
        """Print a line if verbose."""
        if self.verbose:
            say(text)

    @contextlib.contextmanager
    def progress(self, label: str, total: int) -> Iterator[Progress]:
        """Yield a ``progress`` callback for functions of nnr_codec.

        A terminal has a bar, which is removed at the end. When verbose, there is a line every 10 seconds instead.
        """
        if self.verbose:
            with _progress_lines(label, total) as advance:
                yield advance
            return
        if self.quiet or not _is_terminal(sys.stderr):
            yield lambda name, done, total: None
            return
        from rich import progress

        columns = (
            progress.SpinnerColumn("line"),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
        )
        with progress.Progress(*columns, console=_console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda name, done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def _progress_lines(label: str, total: int) -> Iterator[Progress]:
    """Yield a callback; meanwhile a thread prints the number of finished items and the last name."""
    line, ended = f"{label}: 0 of {total:,} done", threading.Event()

    def advance(name: str, done: int, total: int) -> None:
        nonlocal line
        line = f"{label}: {done:,} of {total:,} done, {name}"

    def repeat() -> None:
        while not ended.wait(INTERVAL):
            say(line)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        ended.set()
        thread.join()


def table(
    headings: Iterable[str], rows: Iterable[Iterable[str]], *, right: Collection[str], fold: Collection[str]
) -> None:
    """Print a table to standard output.

    Parameters
    ----------
    headings, rows : iterable of str, iterable of iterables of str
        Cells are plain text, not markup, and are escaped.
    right, fold : collection of str
        Headings of the columns with numbers, and of the columns that become narrower on a narrow terminal.
    """
    titles, cells = list(headings), [[one_line(cell) for cell in row] for row in rows]
    wide = not _is_terminal(sys.stdout)
    if wide and not os.environ.get("FORCE_COLOR"):
        click.echo(_columns(titles, cells, right))
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for heading in titles:
        grid.add_column(
            heading, justify="right" if heading in right else "left", overflow="fold", no_wrap=heading not in fold
        )
    for row in cells:
        grid.add_row(*map(Text, row))
    console = _console()
    console.width = WIDE if wide else max(console.width, NARROW)
    with console.capture() as lines:
        console.print(grid)
    # Not with rich, which ends the process if the reader closes the output.
    click.echo("\n".join(line.rstrip() for line in lines.get().splitlines()), color=True)


def _columns(titles: list[str], cells: list[list[str]], right: Collection[str]) -> str:
    """Return the table for a file or program, without folding or bold text; fast for thousands of rows."""
    lines = [titles, *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    layout = "  ".join(
        f"{{:{'>' if title in right else '<'}{width}}}" for title, width in zip(titles, widths, strict=True)
    )
    return "\n".join(layout.format(*line).rstrip() for line in lines)


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")


@contextlib.contextmanager
def source(
    name: str, *, or_model: bool = False, hint: str = "use nnr encode to compress it"
) -> Iterator[str | BinaryIO]:
    """Yield the input for ``name``, standard input for ``-``; errors of the library get a note with the name.

    Raises FormatError with ``hint`` for a model instead of a bitstream, unless ``or_model``.
    """
    from nnr_codec import NnrError
    from nnr_codec.formats.diagnosis import diagnosed

    try:
        with diagnosed(None if or_model or name == "-" else name, hint):
            yield stdin() if name == "-" else name
    except NnrError as error:
        error.add_note("standard input" if name == "-" else name)
        raise


def model(name: str, *, limits: nnr.Limits, or_bitstream: bool = False, **options: Any) -> nnr.Model:
    """Load the model called ``name``, standard input for ``-``; decode a bitstream if ``or_bitstream``."""
    import nnr_codec as nnr
    from nnr_codec.bitstream.source import open_source

    data: Any = name
    where = "standard input" if name == "-" else name
    if name == "-":
        data = stdin()
        if or_bitstream:
            source = open_source(data, limits)  # a pipe can be read only once
            data = source.view(0, source.size)
    try:
        return nnr.load(data, limits=limits, **options)
    except nnr.FormatError as error:
        try:
            with nnr.NnrFile(b"" if data is not name and not or_bitstream else data, limits) as file:
                is_update = file.is_update
        except (nnr.NnrError, OSError) as unreadable:
            if not name.lower().endswith(".nnr"):
                raise error from None
            unreadable.add_note(where)
            raise
    if not or_bitstream:
        raise nnr.FormatError("an NNR bitstream, not a model", where=where, hint="use nnr decode to restore the model")
    if is_update:
        raise nnr.FormatError(
            "an update, not a model", where=where, hint="give the base model first, then its updates (nnr update chain)"
        )
    try:
        return nnr.decode(data, limits=limits)
    except nnr.NnrError as error:
        error.add_note(where)
        raise


def save(model: nnr.Model, stream: BinaryIO | None, target: str, model_format: str | None, force: bool) -> None:
    """Write a model, complete or not at all, in the requested format, the format of the file extension, or its own."""
    import nnr_codec as nnr
    from nnr_codec import formats

    if stream:
        with tempfile.TemporaryFile() as whole:
            nnr.save(model, cast(BinaryIO, whole), format=model_format or model.format)
            whole.seek(0)
            shutil.copyfileobj(whole, stream)
        return
    if not model_format:
        with contextlib.suppress(nnr.FormatError):
            model_format = formats.by_suffix(target).NAME
    nnr.save(model, target, format=model_format or model.format, overwrite=force)


def stdin() -> BinaryIO:
    """Return standard input for ``-``; a terminal is rejected."""
    if sys.stdin is None or _is_terminal(sys.stdin):
        state = "closed" if sys.stdin is None else "a terminal"
        raise click.UsageError(f"standard input is {state}; give a file or pipe one in")
    return sys.stdin.buffer


def stdout() -> BinaryIO:
    """Return standard output for ``-o -``; a terminal is rejected."""
    if sys.stdout is None or _is_terminal(sys.stdout):
        state = "closed" if sys.stdout is None else "a terminal"
        raise click.UsageError(f"standard output is {state}; give a file with -o or pipe the output")
    return sys.stdout.buffer


def _is_terminal(stream: object) -> bool:
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty())


def dims(shape: Iterable[int]) -> str:
    """Return a shape as ``64x3x7x7``; ``scalar`` if it has no dimensions."""
    return "x".join(map(str, shape)) or "scalar"


def update_of(file: nnr.NnrFile) -> str:
    """Describe the base of an update, or its position in the sequence of its sender; empty if it is not an update."""
    if not file.is_update:
        return ""
    if lineage := file.lineage:
        of_base = f" of {lineage.base}" if lineage.base else ""
        after = f", after {lineage.token}" if lineage.token else ""
        return f"update {lineage.number} of device {lineage.device_id}{of_base}{after}"
    base = file.performance.base_model_id
    return f"an update of {base}" if base else "an update"


def tensors(n: int) -> str:
    """Return the number of tensors as text: ``1 tensor``, ``2 tensors``."""
    return f"{n:,} tensor{'' if n == 1 else 's'}"


def attachments(names: Collection[str], sizes: str = "") -> str:
    """Return the number of attachments, their first names, and ``sizes`` as text."""
    from nnr_codec.formats import listed

    return f"{len(names):,} attachment{'' if len(names) == 1 else 's'}{sizes}: {listed(names)}"


def stored_size(model: str) -> int | None:
    """Return the size of a model's file in bytes; None for a folder, standard input and a bitstream."""
    return os.path.getsize(model) if os.path.isfile(model) and not model.lower().endswith(".nnr") else None


def packed_size(source_bytes: int, stored: int | None) -> int | None:
    """Return ``stored`` if the file is smaller than its tensors as arrays, as with compression; otherwise None."""
    return stored if stored and stored < source_bytes else None


def sizes(source_bytes: int, stored: int | None, nbytes: int, parameters: int) -> str:
    """Describe the size of a bitstream relative to its source.

    Parameters
    ----------
    source_bytes, parameters : int
        Bytes of the tensors as arrays, and the number of their values.
    stored : int or None
        Bytes of the file (:func:`stored_size`), to which the first ratio refers if it is a packed file.
    nbytes : int
        Bytes of the bitstream.
    """
    packed = packed_size(source_bytes, stored)
    text = f"{packed or source_bytes:,} -> {nbytes:,} bytes"
    if not parameters:
        return text
    ratio = f"{100 * nbytes / source_bytes:.2f} %" if source_bytes else ""
    if packed:
        ratio = f"{100 * nbytes / packed:.2f} % of the file, {ratio} of its values as arrays"
    return f"{text} ({ratio}, {8 * nbytes / parameters:.2f} bits/parameter)"
