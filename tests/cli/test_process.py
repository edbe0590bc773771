"""Tests of the installed command in a process: start-up, pipes, terminals, signals."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import nnr_codec as nnr

from .support import COMMAND, DIGITS, SUMMARY, process, weights

pytestmark = pytest.mark.medium

posix = pytest.mark.skipif(os.name != "posix", reason="signals and terminals of POSIX")
full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")


def test_there_and_back() -> None:
    done = process("encode", DIGITS, "-o", "d.nnr", "--check")
    assert (done.returncode, done.stdout) == (0, "")
    assert SUMMARY.match(done.stderr)
    assert process("ls", "d.nnr").stdout.splitlines()[-1].startswith("16 tensors, 57,242 parameters, ")
    assert process("inspect", "d.nnr").stdout.splitlines()[1].split() == ["0", "0", "4", "NNR_STR", "profile", "1"]
    assert process("decode", "d.nnr", "-o", "d.nnef").returncode == 0
    assert (Path("d.nnef") / "graph.nnef").read_bytes() == (DIGITS / "graph.nnef").read_bytes()


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["encode", "--help"], ["frobnicate"]])
def test_start_up_is_light(arguments: list[str]) -> None:
    code = (
        "import sys, nnr_cli.main as m\n"
        f"code = m.run({arguments!r})\n"
        "heavy = {'numpy', 'rich', 'bitarray', 'asyncio', 'nnr_codec.api'} & sys.modules.keys()\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_the_used_command_is_imported() -> None:
    code = (
        "import sys, nnr_cli.main as m\n"
        "m.run(sys.argv[1:])\n"
        "print(*[name for name in m.COMMANDS if f'nnr_cli.{name}' in sys.modules])"
    )
    for arguments, imported in ((["--version"], ""), (["explain", "dq_flag"], "explain")):
        done = subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == imported


def test_exit_codes(npz: Path) -> None:
    Path("bad.nnr").write_bytes(b"nothing")
    Path("new.nnr").write_bytes(b"\x00\x04\x02\x09")
    assert process("ls", "bad.nnr").returncode == 3
    assert process("ls", "new.nnr").returncode == 4
    assert process("ls", "missing.nnr").returncode == 5


def test_a_pipeline(npz: Path) -> None:
    def pipe(data: bytes, *arguments: str) -> bytes:
        return subprocess.run([*COMMAND, *arguments], check=True, capture_output=True, input=data).stdout

    encoded = pipe(npz.read_bytes(), "encode", "-", "-o", "-")
    assert encoded == nnr.encode(npz)
    assert b"\n3 tensors, " in pipe(encoded, "ls", "-")
    with np.load(io.BytesIO(pipe(encoded, "decode", "-", "-o", "-"))) as arrays:
        assert np.array_equal(arrays["b.weight"], nnr.decode(encoded)["b.weight"])


@posix
@pytest.mark.parametrize("arguments", [["ls", "m.nnr"], ["ls", "--json", "m.nnr"], ["decode", "m.nnr", "-o", "-"]])
def test_closed_output(arguments: list[str]) -> None:
    nnr.encode_file({f"layer{k}": weights(k, (5, 6)) for k in range(400)}, "m.nnr")
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stderr
        child.stdout.read(1)
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode in (0, 141)  # 0: it had already written everything


@posix
def test_output_closed_from_the_start(npz: Path) -> None:
    for arguments in (["encode", npz, "-o", "-"], ["--help"], ["ls", npz.with_suffix(".nnr")]):
        nnr.encode_file(npz, "model.nnr", overwrite=True)
        reader, writer = os.pipe()
        os.close(reader)
        done = process(*arguments, stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        assert done.returncode == 141
        assert done.stderr == ""


@full
def test_full_disk(npz: Path) -> None:
    nnr.encode_file(npz, "model.nnr")
    for arguments in (["ls", "model.nnr"], ["--help"], ["encode", npz, "-o", "-"], ["decode", "model.nnr", "-o", "-"]):
        with open("/dev/full", "wb") as sink:
            done = process(*arguments, stdout=sink, stderr=subprocess.PIPE)
        assert (done.returncode, done.stderr) == (5, "nnr: error: No space left on device\n"), arguments


@full
def test_messages_that_cannot_be_written(npz: Path) -> None:
    with open("/dev/full", "wb") as sink:
        assert process("encode", npz, "-o", "x.nnr", "-v", stdout=subprocess.PIPE, stderr=sink).returncode == 0
        assert process("ls", "missing", stdout=subprocess.PIPE, stderr=sink).returncode == 5
        assert process("ls", stdout=subprocess.PIPE, stderr=sink).returncode == 2
    assert Path("x.nnr").read_bytes() == nnr.encode(npz)


@posix
def test_streams_that_are_closed(npz: Path) -> None:
    def shell(command: str) -> subprocess.CompletedProcess[str]:
        quoted = " ".join(f"'{word}'" for word in COMMAND)
        return subprocess.run(
            ["sh", "-c", command.replace("nnr ", f"{quoted} ", 1)], check=False, capture_output=True, text=True
        )

    assert shell("nnr encode model.npz -o x.nnr >&-").returncode == 0
    assert shell("nnr encode model.npz -f -o x.nnr 2>&-").returncode == 0
    assert shell("nnr encode model.npz -f -o x.nnr <&- >&- 2>&-").returncode == 0
    assert Path("x.nnr").read_bytes() == nnr.encode(npz)
    assert shell("nnr ls missing 2>&-").returncode == 5
    for command in ("nnr ls - <&-", "nnr encode model.npz -o - >&-"):
        done = shell(command)
        assert done.returncode == 2
        assert "is closed" in done.stderr


def test_an_output_that_does_not_know_every_character() -> None:
    nnr.encode_file({"é 名前": weights(1, (4, 5))}, "m.nnr")
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = process("ls", "m.nnr", env=env, encoding="latin-1")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].startswith(r"é \u540d\u524d ")
    as_json = process("ls", "m.nnr", "--json", env=env)
    assert json.loads(as_json.stdout)[0]["name"] == "é 名前"


# ---------------------------------------------------------------------------------------------------------- terminals
def terminal(
    *arguments: object, on: tuple[str, ...] = ("stdin", "stdout", "stderr"), width: int = 100, **environment: str
) -> tuple[int, str]:
    """Run the command with some of its streams on a terminal; return its exit code and the terminal's output."""
    import fcntl
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    streams = {name: slave if name in on else subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
    env = {"TERM": "xterm-256color", "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **environment}
    child = subprocess.Popen([*COMMAND, *map(str, arguments)], env=env, **cast(Any, streams))
    os.close(slave)
    received = bytearray()

    def read() -> None:
        try:
            while part := os.read(master, 1 << 16):
                received.extend(part)
        except OSError:
            pass  # Linux reports a closed other side in this way

    reader = threading.Thread(target=read)
    reader.start()
    code = child.wait(60)
    reader.join(60)
    os.close(master)
    return code, received.decode().replace("\r\n", "\n")


ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def many() -> Path:
    """Write ``many.npz``, whose encoding takes a moment."""
    np.savez("many.npz", **{f"layer{k}": weights(k, (120, 200)) for k in range(25)})
    return Path("many.npz")


@posix
def test_progress_on_a_terminal(many: Path) -> None:
    code, text = terminal("encode", many, "-o", "x.nnr", "--check")
    assert code == 0
    assert "encoding" in text
    assert "checking" in text
    assert "/25" in text
    assert COLOURS.search(text)
    # The bar is gone at the end, and the cursor is back.
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    last = ESCAPES.sub("", text[text.rindex("\x1b[2K") :]).strip()
    assert last.startswith("check: largest error ")
    code, text = terminal("decode", "x.nnr", "-o", "y.npz")
    assert code == 0
    assert "decoding" in text


@posix
def test_progress_without_colours(many: Path) -> None:
    code, text = terminal("encode", many, "-o", "x.nnr", NO_COLOR="1")
    assert code == 0
    assert "encoding" in text
    assert not COLOURS.search(text)


@posix
@pytest.mark.parametrize("option", ["-q", "-v"])
def test_no_progress_when_quiet_or_verbose(npz: Path, option: str) -> None:
    code, text = terminal("encode", npz, "-o", "x.nnr", option)
    assert code == 0
    assert "encoding" not in text
    assert "\x1b" not in text


@posix
def test_no_progress_on_a_dumb_terminal_or_elsewhere(npz: Path) -> None:
    code, text = terminal("encode", npz, "-o", "x.nnr", TERM="dumb")
    assert code == 0
    assert "\x1b" not in text
    assert SUMMARY.fullmatch(text.lstrip("\n"))
    assert "\x1b" not in process("encode", npz, "-fo", "x.nnr", env={**os.environ, "FORCE_COLOR": "1"}).stderr


@posix
def test_binary_data_is_kept_from_a_terminal(npz: Path) -> None:
    nnr.encode_file(npz, "model.nnr")
    for arguments in (["encode", npz, "-o", "-"], ["decode", "model.nnr", "-o", "-"]):
        code, text = terminal(*arguments)
        assert code == 2
        assert "standard output is a terminal; give a file with -o or pipe the output" in text
    for arguments in (["ls", "-"], ["encode", "-", "-o", "x.nnr"]):
        code, text = terminal(*arguments)
        assert code == 2
        assert "standard input is a terminal; give a file or pipe one in" in text
    assert sorted(os.listdir()) == ["model.nnr", "model.npz"]


@posix
@pytest.mark.parametrize("width", [100, 80, 40])
def test_tables_on_a_terminal(width: int) -> None:
    nnr.encode_file(DIGITS, "d.nnr")
    code, text = terminal("inspect", "d.nnr", on=("stdout",), width=width)
    lines = [ESCAPES.sub("", line) for line in text.splitlines()]
    assert code == 0
    assert text.startswith("\x1b[1munit")
    assert max(map(len, lines)) <= max(width, 80)
    assert (len(lines) == 20) == (width == 100)
    assert any(re.search(r"NNR_NDU +conv2/", line) for line in lines)
    code, text = terminal("inspect", "d.nnr", on=("stdout",), width=width, NO_COLOR="1")
    assert text.splitlines() == lines


@posix
def test_a_long_name_is_folded_on_a_terminal() -> None:
    nnr.encode_file({"n" * 300: weights(), "[red]x\x1b[31m": weights()}, "m.nnr")
    code, text = terminal("ls", "m.nnr", on=("stdout",), width=80, NO_COLOR="1")
    lines = text.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert sum(line.split(" ")[0].count("n") for line in lines[1:-1]) == 300
    assert any(line.startswith(r"[red]x\x1b[31m ") for line in lines)


# ------------------------------------------------------------------------------------------------------------ signals
@posix
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_nothing_behind(here: Path, number: signal.Signals, code: int) -> None:
    folder = here / "out"
    folder.mkdir()
    np.savez("m.npz", first=weights(1, (4, 5)), second=weights(2, (4000, 2000)))
    with subprocess.Popen(
        [*COMMAND, "encode", "m.npz", "-o", "out/m.nnr"],
        stderr=subprocess.PIPE,
        text=True,
        # A test that runs in the background may have inherited ignored signals.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509  # no threads here
    ) as child:
        assert child.stderr
        while child.poll() is None and not os.listdir(folder):
            time.sleep(0.01)
        assert [name.endswith(".nnr-partial") for name in os.listdir(folder)] == [True]
        sent = time.monotonic()
        child.send_signal(number)
        rest = child.stderr.read()
    assert child.returncode == code
    assert rest == ("nnr: interrupted\n" if number == signal.SIGINT else f"nnr: ended by {number.name}\n")
    assert os.listdir(folder) == []
    assert time.monotonic() - sent < 5


@posix
def test_a_signal_while_reading(here: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "encode", "-", "-o", "x.nnr"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  # no threads here
    ) as child:
        assert child.stdin
        assert child.stderr
        child.stdin.buffer.write(b"PK\x03\x04" + bytes(1 << 20))  # more than a pipe holds: reading has started
        # Python handles a signal that arrives just before a read only after the read, with the next signal.
        while child.poll() is None:
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5)
        assert child.stderr.read() == "nnr: interrupted\n"
    assert child.returncode == 130
    assert os.listdir() == []
