"""T42: names and other untrusted text in terminals, JSON, reports and logs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nnr_cli.main import run

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.integrations.rounds import one_line

from ..cli.support import NAMES
from ..cli.test_main import every_command
from ..formats.support import nnef_model

#: Beginning of texts with an effect on a terminal or a page, and ends of texts to quote.
BAD = "\x1b]0;x\x07\x1b[2J\r\n\x9b31m\u202e</script><script>alert(1)</script>'\"` [red]"
TENSORS = {name: np.full((4, 5), k, np.float32) for k, name in enumerate([BAD, *NAMES])}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make models, bitstreams and updates with hostile names, some of them malformed, in the current folder."""
    monkeypatch.chdir(tmp_path)
    new = {name: array + np.float32(0.5) for name, array in TENSORS.items()}
    nnr.save(TENSORS, "old.safetensors")
    nnr.save(new, "new.safetensors")
    nnr.save({BAD: np.zeros(())}, "samples.npz")
    nnr.encode_file(TENSORS, "m.nnr")
    nnr.encode_file(new, "n.nnr")
    update = nnr.UpdateEncoder(base_model_id=BAD)
    Path("u.nnr").write_bytes(update.encode({BAD: new[BAD]}))
    data = Path("m.nnr").read_bytes()
    Path("cut.nnr").write_bytes(data[:-3])
    Path("twice.nnr").write_bytes(data + data[data.index(b"[red]x") - 8 :])
    Path("bad.nnef").write_bytes(f"version 1.0; graph g(x) -> (y) {{ y = {BAD}(x); }}".encode())
    os.mkdir("graph.nnef")
    Path("graph.nnef", "graph.nnef").write_bytes(nnef_model(TENSORS).topology.data)  # type: ignore[union-attr]
    Path("bad.onnx").write_bytes(BAD.encode())
    Path("bad.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0" + json.dumps({BAD: {}}).encode().ljust(64))


COMMANDS = [
    ["ls", "m.nnr"],
    ["ls", "u.nnr"],
    ["ls", "--maps", "m.nnr"],
    ["ls", "cut.nnr"],
    ["inspect", "m.nnr"],
    ["inspect", "u.nnr"],
    ["inspect", "--all", "m.nnr"],
    ["inspect", "--requirements", "m.nnr"],
    ["inspect", "twice.nnr"],
    ["verify", "m.nnr", "twice.nnr", "cut.nnr", "u.nnr"],
    ["verify", "bad.nnef"],
    ["verify", "graph.nnef"],
    ["verify", "--against", "manifest.json", "m.nnr"],
    ["diff", "m.nnr", "n.nnr"],
    ["diff", "old.safetensors", "new.safetensors"],
    ["diff", "bad.onnx", "new.safetensors"],
    ["decode", "-v", "m.nnr", "-o", "x.npz"],
    ["decode", "m.nnr", "-o", "x.nnef"],
    ["decode", "cut.nnr", "-o", "x.npz"],
    ["decode", "--only", BAD, "cut.nnr", "-o", "x.npz"],
    ["encode", "-v", "old.safetensors", "-o", "x.nnr", "--check"],
    ["encode", "--dry-run", "old.safetensors"],
    ["encode", "bad.safetensors", "-o", "x.nnr"],
    ["encode", "bad.nnef", "-o", "x.nnr"],
    ["encode", "graph.nnef", "-o", "x.nnr"],
    ["encode", "bad.onnx", "-o", "x.nnr"],
    ["encode", f"none{BAD}", "-o", "x.nnr"],
    ["encode", "old.safetensors", "-o", "x.nnr", "--rule", f"{BAD}:qp=1"],
    ["calibrate", "bad.onnx", "--data", "samples.npz", "-o", "x.npz"],
    ["calibrate", "old.safetensors", "--module", f"{BAD}:f", "--data", "samples.npz", "-o", "x.npz"],
    ["extract", "m.nnr", "--unit", "99", "-o", "x.nnr"],
    ["update", "encode", "new.safetensors", "--base", "old.safetensors", "-o", "x.nnr", "-v"],
    ["update", "apply", "old.safetensors", "u.nnr", "-o", "x.safetensors"],
    ["update", "chain", "old.safetensors", "u.nnr", "-o", "x.safetensors", "-v"],
    ["update", "squash", "old.safetensors", "u.nnr", "-o", "x.nnr", "-v"],
    ["store", "init", "s"],
    ["store", "add", "s", "old.safetensors"],
    ["store", "add", "s", f"none{BAD}"],
    ["store", "add", "s", "old.safetensors", "--name", BAD],
    ["store", "ls", "s"],
    ["store", "ls", BAD],
    ["store", "get", "s", "old", "-o", "x.safetensors"],
    ["store", "get", "s", BAD, "-o", "y.safetensors"],
    ["store", "rm", "s", f"old@{BAD}"],
    ["store", "gc", "s"],
    ["bench", "bad.safetensors"],
    ["conformance", "--only", BAD],
    ["explain", BAD],
    ["formats", BAD],
    [BAD],
    ["ls", f"--{BAD}"],
]


def shown(capsys: pytest.CaptureFixture[str], words: list[str]) -> tuple[str, str]:
    """Return the output of a command on standard output and standard error."""
    capsys.readouterr()
    assert run(words) not in (70, 141)
    return capsys.readouterr()


def test_t42_nothing_reaches_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command, successful or not, prints only lines of printable characters."""
    Path("manifest.json").write_text(json.dumps({"tensors": {BAD: "x"}}))
    seen = 0
    for words in COMMANDS:
        for text in shown(capsys, words):
            bad = [char for char in text if not char.isprintable() and char != "\n"]
            assert not bad, (words, bad, text)
            seen += "[2J" in text
    assert seen > 12  # names are shown


def test_t42_every_command_is_tried() -> None:
    tried = {words[0] for words in COMMANDS} | {" ".join(words[:2]) for words in COMMANDS}
    assert [name for name in every_command() if name not in tried] == []


@pytest.mark.parametrize(
    "words",
    [
        ["ls", "m.nnr"],
        ["ls", "u.nnr"],
        ["ls", "--maps", "m.nnr"],
        ["inspect", "m.nnr"],
        ["inspect", "u.nnr"],
        ["inspect", "--all", "m.nnr"],
        ["verify", "m.nnr", "twice.nnr", "graph.nnef"],
        ["diff", "m.nnr", "n.nnr"],
        ["diff", "old.safetensors", "new.safetensors"],
        ["encode", "--dry-run", "old.safetensors"],
    ],
)
def test_json_is_ascii(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """It is strict JSON, without the numbers that JavaScript cannot read."""

    def refuse(constant: str) -> None:
        pytest.fail(constant)

    text, _ = shown(capsys, [*words, "--json"])
    assert re.fullmatch(r"[\n -~]*", text), text
    assert json.loads(text, parse_constant=refuse) is not None


def test_t42_reports_are_text() -> None:
    """No name ends or begins an element or a script."""
    report = nnr.encode_file("old.safetensors", "x.nnr", statistics=True)
    page, plain = report.to_html(), nnr.encode_file({"w": TENSORS[BAD]}, "y.nnr", statistics=True).to_html()
    assert "alert(1)" in page
    assert page.count("<script") == plain.count("<script")
    assert page.count("</script") == plain.count("</script")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", page)


def test_t42_logs_have_one_line() -> None:
    line = one_line(ValueError(BAD * 50))
    assert line.isprintable()
    assert len(line) == 300


def test_messages_and_warnings_quote(recwarn: pytest.WarningsRecorder) -> None:
    """Messages of the library quote names like Python, so logs of applications are safe as well."""
    found: list[Any] = []
    for name in ("cut.nnr", "twice.nnr", "bad.nnef", "bad.onnx", "bad.safetensors", "graph.nnef"):
        with pytest.raises((nnr.NnrError, OSError)) as caught:
            (nnr.decode if name.endswith(".nnr") else formats.load)(name)
        found.append(caught.value)
    for message in [*map(str, found), *(str(warning.message) for warning in recwarn)]:
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", message), message
