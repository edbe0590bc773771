"""Target: the command line, with documented exit codes, and output without control characters."""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Iterable

from nnr_cli.errors import INTERNAL
from nnr_cli.main import run

from ..seeds import corpus
from .support import folder

COMMANDS = (
    ("decode", "{}/in.nnr", "-o", "{}/out.npz", "--allow-missing", "--limit", "strict"),
    ("decode", "{}/in.nnr", "-o", "{}/out.safetensors", "--limit", "strict", "-v", "-j", "2"),
    ("decode", "{}/in.nnr", "-o", "{}/out.nnef", "--limit", "strict"),
    ("ls", "{}/in.nnr", "--maps", "--limit", "strict"),
    ("inspect", "{}/in.nnr", "--limit", "strict"),
    ("inspect", "{}/in.nnr", "--all", "--inferred", "--payloads", "--limit", "strict"),
    ("verify", "{}/in.nnr", "--limit", "strict"),
    ("inspect", "{}/in.nnr", "--requirements", "--json", "--limit", "strict"),
    ("verify", "{}/in.nnr", "--json", "--limit", "strict"),
    ("extract", "{}/in.nnr", "--unit", "2", "-o", "{}/out.nnr", "--limit", "strict"),
)


def target(data: bytes) -> None:
    """Run a command that the input selects."""
    command = COMMANDS[zlib.crc32(data) % len(COMMANDS)]
    out, err = io.StringIO(), io.StringIO()
    with folder({"in.nnr": data}) as path, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([word.format(path) for word in command])
        left = {each.name for each in path.iterdir()} - {"in.nnr"}
    printed = out.getvalue() + err.getvalue()
    assert 0 <= code < INTERNAL, (code, printed)
    assert all(char.isprintable() or char in "\n" for char in printed), ascii(printed)
    assert not any(name.endswith(".nnr-partial") for name in left), left


def seeds() -> Iterable[bytes]:
    """Return the seeds of the campaign."""
    return (seed.data for seed in corpus() if not seed.before)
