"""Entry point of the ``nnr`` command: the command group, and the handling of exceptions.

The module of a command is imported when the command is used. It imports only click at the top, so that ``nnr --help``
starts without numpy.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import NoReturn

import click

from nnr_codec import __version__

from . import errors

#: Modules with one command each, whose name is also the name of the command.
COMMANDS = (
    "encode",
    "decode",
    "calibrate",
    "extract",
    "ls",
    "formats",
    "bench",
    "conformance",
    "diff",
    "inspect",
    "explain",
    "store",
    "update",
    "verify",
)
EPILOG = """\b
Exit codes: 0 success, 1 "no" (violations, differences), 2 usage, 3 bad input,
4 unsupported, 5 file or missing package, 70 internal error, 128+n signal n
(130 interrupted, 141 standard output closed).
NNR_DEBUG=1 prints tracebacks, NO_COLOR=1 disables colors.
Shell completion: eval "$(_NNR_COMPLETE=bash_source nnr)", or zsh_source;
fish: _NNR_COMPLETE=fish_source nnr | source
"""
COMPLETE = "_NNR_COMPLETE"


class _Commands(Mapping[str, click.Command]):
    """Commands by name; each is imported from the module of its name when it is used."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in COMMANDS:
            raise KeyError(name)
        command: click.Command = getattr(import_module(f".{name}", __package__), name)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@click.group(
    commands=_Commands(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog=EPILOG,
)
@click.version_option(__version__, "-V", "--version", prog_name="nnr", message="%(prog)s %(version)s")
def cli() -> None:
    """Compress neural networks into NNR bitstreams (ISO/IEC 15938-17) and back."""


def main() -> NoReturn:
    """Run the command of this process and exit with its code."""
    # A model consists of many long-lived objects: searching them for cycles every 700 allocations takes a fifth of the
    # time.
    gc.set_threshold(100_000, 20, 20)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, errors.terminate)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    if code == errors.CLOSED_PIPE:
        # Python would print an error when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command line (without the program name); errors are printed on standard error.

    Returns
    -------
    int
        The exit code.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=UserWarning)
        warnings.showwarning = errors.warn
        try:
            if COMPLETE in os.environ:
                from click.shell_completion import shell_complete

                return shell_complete(cli, {}, "nnr", COMPLETE, os.environ[COMPLETE])
            with cli.make_context("nnr", list(arguments)) as context:
                cli.invoke(context)
            if sys.stdout is not None:
                sys.stdout.flush()
        except (Exception, KeyboardInterrupt, errors.Terminated) as error:
            return errors.report(error)
    return errors.FINE
