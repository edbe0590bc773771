"""Conversion of exceptions to exit codes and one-line messages on standard error."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from nnr_codec.errors import Option

FINE, NO, USAGE, BAD_INPUT, UNSUPPORTED, FILE, INTERNAL = 0, 1, 2, 3, 4, 5, 70
SIGNALLED = 128  # plus the signal number, as in shells
INTERRUPTED, CLOSED_PIPE = SIGNALLED + 2, SIGNALLED + 13

#: Options of the encoder that have another name on the command line.
_OPTIONS = {"exact": "--lossless", "rules": "--rule", "performance": "--map", "hessians": "--sensitivity hessians"}

#: Kinds of numbers in messages of click, in plain words.
_PLAIN = {
    "integer": "a whole number",
    "integer range": "a whole number",
    "float": "a number",
    "float range": "a number",
}


class Terminated(BaseException):
    """Termination by a signal; an exception, so that unfinished outputs are removed."""


def terminate(number: int, _: object) -> NoReturn:
    """Raise Terminated for a signal."""
    raise Terminated(number)


def report(error: BaseException) -> int:
    """Print an error to standard error and return its exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.ClickException):
        # Arguments are file names, which are untrusted.
        message = "\n".join(map(one_line, _public(error.message).split("\n")))
        for words, plain in _PLAIN.items():
            message = message.replace(f"is not a valid {words}.", f"is not {plain}")
        error.message = message  # type: ignore[misc]  # Final in click
        with contextlib.suppress(OSError):
            error.show()
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE  # the reader of the output closed it
    if isinstance(error, KeyboardInterrupt):
        say("; ".join(["nnr: interrupted", *getattr(error, "__notes__", ())]))
        return INTERRUPTED
    if isinstance(error, Terminated):
        number = int(error.args[0])
        say("; ".join([f"nnr: ended by {signal.Signals(number).name}", *getattr(error, "__notes__", ())]))
        return SIGNALLED + number
    if os.environ.get("NNR_DEBUG"):
        with contextlib.suppress(OSError):
            import traceback

            traceback.print_exception(error)
    code, message = _explain(error)
    say(f"nnr: error: {message}")
    return code


def _explain(error: BaseException) -> tuple[int, str]:
    from nnr_codec import errors  # deferred for fast start-up

    text = error.named(option_name) if isinstance(error, errors.EncodeError) else str(error)
    if isinstance(error, errors.TruncatedError) and not isinstance(error, errors.IncompleteError):
        text += "; the file is truncated or damaged"
    message = ": ".join([*getattr(error, "__notes__", ()), text])
    if isinstance(error, errors.UnsupportedError):
        return UNSUPPORTED, message
    if isinstance(error, errors.MissingDependencyError):
        return FILE, message
    if isinstance(error, errors.NnrError):
        return BAD_INPUT, message
    if isinstance(error, OSError):
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        return FILE, f"{place}{error.strerror}" if error.strerror else message
    if isinstance(error, MemoryError):
        return FILE, "out of memory"
    if isinstance(error, RuntimeError) and "start new thread" in message:
        return FILE, "the system cannot start more threads; lower --jobs"
    frame = error.__traceback__
    while frame and frame.tb_next:
        frame = frame.tb_next
    place = f" at {os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}" if frame else ""
    what = f"{type(error).__name__}: {message}"
    return INTERNAL, f"internal error{place}, please report it: {what} (NNR_DEBUG=1 prints a traceback)"


def option_name(option: Option) -> str:
    """Return the command-line name of an encoder option, with its value."""
    dashed = option.name.replace("_", "-")
    name = _OPTIONS.get(option.name, f"--{dashed}")
    if option.value in ("", "True"):
        return name
    return f"--no-{dashed}" if option.value == "False" else f"{name} {option.value}"


def warn(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning; replaces :func:`warnings.showwarning`."""
    from nnr_codec.errors import EncodeWarning

    say(f"nnr: warning: {message.named(option_name) if isinstance(message, EncodeWarning) else message}")


def say(text: str) -> None:
    """Print a line on standard error; ignore write errors."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(one_line(_public(text)), file=sys.stderr, flush=True)


def _public(text: str) -> str:
    """Return a message without the credentials in its URLs."""
    if "://" in text:  # deferred for fast start-up
        from nnr_codec.urls import public

        return public(text)
    return text


def one_line(text: str) -> str:
    """Return the text with control characters escaped, because file names are untrusted."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
