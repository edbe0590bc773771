"""Exceptions to exit codes and one line each."""

from __future__ import annotations

import os
import sys

import click

NO, USAGE, BAD_INPUT, UNSUPPORTED, FILE, INTERNAL, INTERRUPTED = 1, 2, 3, 4, 5, 70, 130


def report(error: BaseException) -> int:
    """Print what went wrong to standard error and return the exit code for it."""
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        click.echo("nnr: interrupted, nothing was written", err=True)
        return INTERRUPTED
    code, message = _explain(error)
    if code == INTERNAL and os.environ.get("NNR_DEBUG"):
        raise error
    click.echo(f"nnr: error: {message}", err=True)
    return code


def _explain(error: BaseException) -> tuple[int, str]:
    from nnr_codec import errors  # after start-up

    message = one_line(str(error))
    if isinstance(error, errors.UnsupportedError):
        return UNSUPPORTED, message
    if isinstance(error, errors.MissingDependencyError):
        return FILE, message
    if isinstance(error, errors.NnrError):
        return BAD_INPUT, message
    if isinstance(error, FileExistsError):
        return FILE, f"{message}; -f replaces it" if "-f" not in message else message
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return FILE, one_line(f"{name}{error.strerror}") if error.strerror else message
    if isinstance(error, MemoryError):
        return FILE, "out of memory"
    frame = error.__traceback__
    while frame and frame.tb_next:
        frame = frame.tb_next
    place = f" at {os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}" if frame else ""
    return INTERNAL, f"internal error{place}, please report it: {type(error).__name__}: {message} (NNR_DEBUG=1 says more)"


def warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line on standard error."""
    click.echo(f"nnr: warning: {one_line(str(message))}", err=True)


def one_line(text: str) -> str:
    """The text with everything escaped that a terminal would act on (names come from files)."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_terminal() -> bool:
    """Whether standard error is a terminal, where a progress bar makes sense."""
    return sys.stderr.isatty()
