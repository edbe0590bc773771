"""Entry point of the ``nnr`` command: the group of commands, and what becomes of exceptions.

Modules of commands import click alone at the top, so that ``nnr --version`` and ``nnr --help`` start without numpy.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

import click

from nnr_codec import __version__

from . import decode, encode, errors, show

EPILOG = """\b
Exit codes: 0 fine, 1 "no" (violations, differences), 2 usage, 3 bad input, 4 unsupported, 5 file or missing package,
70 internal error, 130 interrupted.
Shell completion: eval "$(_NNR_COMPLETE=bash_source nnr)", or zsh_source, fish_source.
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}, epilog=EPILOG)
@click.version_option(__version__, "-V", "--version", prog_name="nnr", message="%(prog)s %(version)s")
def cli() -> None:
    """Compress neural networks into NNR bitstreams (ISO/IEC 15938-17) and back."""


cli.add_command(encode.encode)
cli.add_command(decode.decode)
cli.add_command(show.ls)
cli.add_command(show.inspect)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its code; one line on standard error for anything that goes wrong."""
    warnings.showwarning = errors.warn
    try:
        code = cli(arguments, standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except BrokenPipeError:
        # The reader of our output is gone; Python would complain once more when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(errors.FILE)
    except (Exception, KeyboardInterrupt) as error:
        sys.exit(errors.report(error))
