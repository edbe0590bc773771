"""Runners of the command, in this process and in a separate one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from nnr_cli.main import run

import nnr_codec as nnr

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.nnef"

_SCRIPT = Path(sys.executable).with_name("nnr")
#: The installed command, or an equivalent if none is beside the interpreter.
COMMAND = [str(_SCRIPT)] if _SCRIPT.exists() else [sys.executable, "-c", "from nnr_cli.main import main; main()"]

SUMMARY = re.compile(
    r"(?P<source>.+) -> (?P<target>.+): (?P<before>[\d,]+) -> (?P<after>[\d,]+) bytes "
    r"\((?P<percent>\d+\.\d\d) %, (?P<bits>\d+\.\d\d) bits/parameter\), (?P<loss>.*) \(\d+\.\d\d s\)\n"
)
CHECK = re.compile(
    r"check: largest error (?P<error>\S+) \(in '(?P<name>.*)'\), SNR (?P<snr>-?\d+\.\d\d) dB; (?P<loss>.*)\n"
)
DECODED = re.compile(r"(?P<source>.+) -> (?P<target>.+): ([\d,]+) -> ([\d,]+) bytes, (\d+) tensors? in \d+\.\d\d s\n")

#: Names with an effect on a terminal or on rich, and their printed form.
NAMES = {
    "[red]x": "[red]x",
    "[/]": "[/]",
    "[link=http://x]a[/link]": "[link=http://x]a[/link]",
    ":smile:": ":smile:",
    "\x1b[31mred\x1b[0m": r"\x1b[31mred\x1b[0m",
    "two\nlines": r"two\nlines",
    "tab\tcr\rbell\x07del\x7f": r"tab\tcr\rbell\x07del\x7f",
    "\x9b31m": r"\x9b31m",
    "é 名前 😀": "é 名前 😀",
    "שלום": "שלום",
    "\u202ertl\u202c": r"\u202ertl\u202c",
    "zero\u200bwidth\u2028line": r"zero\u200bwidth\u2028line",
    "n" * 300: "n" * 300,
}


@dataclass
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> Result:
    """Run a command line in this process."""
    capsys.readouterr()
    code = run([os.fspath(a) if isinstance(a, Path) else str(a) for a in arguments])
    captured = capsys.readouterr()
    return Result(code, captured.out, captured.err)


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the installed command with pipes, for at most a minute."""
    options = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": 60, **options}
    if {"stdout", "stderr"} & options.keys():
        del options["capture_output"]
    return subprocess.run([*COMMAND, *map(str, arguments)], check=False, **options)


def weights(seed: int = 1, shape: tuple[int, ...] = (24, 30), scale: float = 0.1) -> npt.NDArray[np.float32]:
    """Return values distributed like weights."""
    return np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32)


def damaged(data: bytes, unit: int) -> bytes:
    """Return the bitstream with the second half of one unit's bytes inverted, which damages only the payload."""
    info = nnr.inspect(data)[unit]
    middle, end = info.offset + info.size // 2, info.offset + info.size
    return data[:middle] + bytes(byte ^ 0xFF for byte in data[middle:end]) + data[end:]
