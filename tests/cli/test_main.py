"""Tests of the command group: help, completion, and handling of exceptions."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import click.shell_completion
import pytest
from nnr_cli import errors, output
from nnr_cli.main import cli, run
from nnr_cli.params import GroupedCommand

import nnr_codec as nnr
from nnr_codec.config import TensorOptions

from .support import COMMAND, call

ROOT = Path(__file__).resolve().parents[2]
#: Pages whose options are compared with the options of the commands.
PAGES = [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs" / "guides").glob("*.md"))]
PAGES += ["faq.md", "tutorial/first-steps.md", "explanation/effort.md", "reference/formats.md", "reference/nnef.md"]
#: Options in pages of the documentation that belong to other programs, or to the group.
OTHERS = {"--help", "--minilm", "--only", "--plot", "--table"}

Capture = pytest.CaptureFixture[str]


def every_command(group: click.Group = cli) -> dict[str, click.Command]:
    """Return all commands by name; nested ones have names such as ``update apply``."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": each for inner, each in every_command(command).items()}
    return found


@pytest.mark.parametrize("command", [[], *(name.split() for name in every_command())])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help(capsys: Capture, command: list[str], option: str) -> None:
    result = call(capsys, *command, option)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: {' '.join(['nnr', *command])} [OPTIONS]")
    assert max(map(len, result.out.splitlines())) <= 100
    if command:
        examples = re.findall(rf"^    .*nnr {' '.join(command)}\b.*$", result.out, re.MULTILINE)
        assert len(examples) >= 2
    else:
        assert all(f"\n  {name} " in result.out for name in cli.commands)
        assert "..." not in result.out.replace("[ARGS]...", "")


@pytest.mark.medium
def test_python_m_runs_the_same_command() -> None:
    for arguments in (["--version"], ["encode", "--help"], ["explain", "nothing at all"]):
        module, script = (
            subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
            for command in ([sys.executable, "-m", "nnr_codec"], COMMAND)
        )
        assert (module.returncode, module.stdout, module.stderr) == (script.returncode, script.stdout, script.stderr)


def test_help_names_all_keys_of_a_rule(capsys: Capture) -> None:
    keys = re.search(r"Keys of a rule: (.+?)\.\n", call(capsys, "encode", "--help").out, re.DOTALL)
    assert keys
    assert set(keys[1].replace(",", " ").split()) == {field.name for field in fields(TensorOptions)}


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}" for name in PAGES)])
def test_pages_name_options_that_there_are(page: str) -> None:
    options = {
        name: {text for option in command.params for text in (*option.opts, *option.secondary_opts)}
        for name, command in every_command().items()
    }
    every = set().union(*options.values())
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("`python -m", "python -m", "pip "))]
    for line in lines:
        for command, words in re.findall(r"\bnnr ((?:update|store) \w+|\w+)\b([^`|]*)", line):
            if command in options:
                for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", re.sub(r"&&.*", "", words)):
                    assert option in options[command], line
        for option in re.findall(r"`(--?[a-z][a-z-]*)", line):
            assert option in every | OTHERS, line


def test_without_arguments(capsys: Capture) -> None:
    result = call(capsys)
    assert result.code in (0, 2)  # 0 before click 8.2
    assert (result.out + result.err).startswith("Usage: nnr [OPTIONS] COMMAND")


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(capsys: Capture, option: str) -> None:
    result = call(capsys, option)
    assert (result.code, result.out, result.err) == (0, f"nnr {nnr.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["frobnicate"], ["--frobnicate"]])
def test_what_there_is_not(capsys: Capture, arguments: list[str]) -> None:
    result = call(capsys, *arguments)
    assert result.code == 2
    assert "No such" in result.err


def complete(capsys: Capture, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """Return the shell completions of the last word."""
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv("_NNR_COMPLETE", "bash_complete")
    result = call(capsys)
    assert result.code == 0
    return result.out.splitlines()


def test_completion(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = complete(capsys, monkeypatch, "nnr", "")
    assert {"plain,decode", "plain,encode", "plain,explain", "plain,inspect", "plain,ls"} <= set(commands)
    assert complete(capsys, monkeypatch, "nnr", "en") == ["plain,encode"]
    assert complete(capsys, monkeypatch, "nnr", "encode", "--qp") == ["plain,--qp", "plain,--qp-density"]
    assert complete(capsys, monkeypatch, "nnr", "decode", "mod") == ["file,mod"]
    assert complete(capsys, monkeypatch, "nnr", "decode", "--format", "nn") == ["plain,nnef"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(capsys: Capture, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    # click asks bash for its version; the answer is not what is tested here.
    monkeypatch.setattr(click.shell_completion.BashComplete, "_check_version", lambda *_: None)
    monkeypatch.setenv("_NNR_COMPLETE", f"{shell}_source")
    result = call(capsys)
    assert result.code == 0
    assert f"_NNR_COMPLETE={shell}_complete" in result.out


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (nnr.BitstreamError("odd", unit="unit 1", path="x", bit=3), 3, "error: b: unit 1, bit 3, x: odd"),
        (nnr.LimitError("too much"), 3, "error: b: too much"),
        (nnr.EncodeError("cannot"), 3, "error: b: cannot"),
        (nnr.FormatError("two\nlines \x1b[2J"), 3, r"error: b: two\nlines \x1b[2J"),
        (nnr.MissingReferenceError("no parent"), 3, "error: b: no parent"),
        (nnr.UnsupportedError("new"), 4, "error: b: new"),
        (nnr.MissingDependencyError("install it"), 5, "error: b: install it"),
        (PermissionError(13, "Permission denied", "b"), 5, "error: b: Permission denied"),
        (OSError(28, "No space left on device"), 5, "error: No space left on device"),
        (OSError("plain"), 5, "error: plain"),
        (FileExistsError("b exists"), 5, "error: b exists"),
        (MemoryError(), 5, "error: out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (errors.Terminated(signal.SIGTERM), 143, "ended by SIGTERM"),
        (click.UsageError("no"), 2, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_exit_codes(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str | None
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(nnr, "requirements", fail)
    result = call(capsys, "inspect", "b", "--requirements")
    assert result.code == code
    assert result.out == ""
    if message is not None:
        assert result.err == f"nnr: {message}\n"


def test_internal_error(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("oh\nno")

    monkeypatch.setattr(nnr, "requirements", fail)
    result = call(capsys, "inspect", "b", "--requirements")
    assert result.code == 70
    assert re.fullmatch(
        r"nnr: error: internal error at test_main\.py:\d+, please report it: RuntimeError: oh\\nno "
        r"\(NNR_DEBUG=1 prints a traceback\)\n",
        result.err,
    )
    monkeypatch.setenv("NNR_DEBUG", "1")
    result = call(capsys, "inspect", "b", "--requirements")
    assert result.code == 70
    assert result.err.startswith("Traceback (most recent call last):")
    assert result.err.splitlines()[-1].startswith("nnr: error: internal error")


def test_debug_helps_with_bad_input(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("x").write_bytes(b"\x00")
    monkeypatch.setenv("NNR_DEBUG", "1")
    result = call(capsys, "ls", "x")
    assert result.code == 3
    assert "Traceback" in result.err


def test_nothing_is_left_changed(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    before = warnings.showwarning, list(warnings.filters), signal.getsignal(signal.SIGTERM)
    assert run(["--version"]) == 0
    assert (warnings.showwarning, list(warnings.filters), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("text", ["", "plain é 名 😀 [x]", "a\\b"])
def test_one_line_leaves_alone(text: str) -> None:
    assert errors.one_line(text) == text


def test_one_line_escapes() -> None:
    everything = "".join(map(chr, range(0x3000))) + "\ud800\udcff\ufeff\U000e0001"
    assert errors.one_line(everything).isprintable()
    assert errors.one_line("\x00\n\x1b\x9b\u202e\udcff") == r"\x00\n\x1b\x9b\u202e\udcff"


def test_options_are_under_headings(capsys: Capture) -> None:
    """Each option of a command with headings is under one of them, once."""
    found = {name: one for name, one in every_command().items() if isinstance(one, GroupedCommand)}
    assert {"encode", "decode", "update encode", "update squash"} <= found.keys()
    for name, command in found.items():
        named = " ".join(command.headings.values()).split()
        assert sorted(named) == sorted(one.name or "" for one in command.params if isinstance(one, click.Option)), name
        result = call(capsys, *name.split(), "--help")
        assert all(f"\n{heading}:\n" in result.out for heading in command.headings)
        assert "Common options" in next(iter(command.headings))


def test_progress_without_a_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "INTERVAL", 0.01)
    for verbose in (True, False):
        with output.Printer(verbose=verbose).progress("encoding", 3) as advance:
            advance("conv1.weight", 1, 3)
            time.sleep(0.1)
        lines = capsys.readouterr().err.splitlines()
        assert set(lines[1:]) == ({"encoding: 1 of 3 done, conv1.weight"} if verbose else set())
