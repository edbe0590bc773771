"""Tests of nnr update, of other commands with updates, and of the errors in docs/guides/updates.md."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nnr_cli import output
from nnr_cli.main import run

import nnr_codec as nnr
from nnr_codec.model import Array, Progress

from .support import DIGITS, NAMES, call, weights

EXACTLY = nnr.EncoderConfig(exact=True)
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "updates.md"

Capture = pytest.CaptureFixture[str]
Monkey = pytest.MonkeyPatch

ENCODED = re.compile(
    r"(?P<source>.+) -> (?P<target>.+): (?P<before>[\d,]+) -> (?P<after>[\d,]+) bytes \(\d+\.\d\d %, \d+\.\d\d "
    r"bits/parameter\), (?P<all>\d+) tensors?: (?P<same>\d+) unchanged, (?P<differences>\d+) as differences, "
    r"(?P<whole>\d+) whole, in \d+\.\d\d s\n"
)
CHECK = re.compile(
    r"check: largest error \S+ \(in '.*'\), SNR \d+\.\d\d dB, SNR of the differences (?P<snr>\d+\.\d\d) dB\n"
)
EXACT = "check: applies to the same tensors, bit for bit\n"


def model(version: int) -> dict[str, Array]:
    """Return a model after some training: 5 tensors, one of which never changes, and a sixth from version 3 on."""
    rng = np.random.default_rng(version)
    tensors: dict[str, Array] = {
        "a.weight": weights(1, (30, 40)) + (version > 1) * weights(version, (30, 40), 1e-3),
        "a.bias": weights(2, (30,)),
        "half": (weights(3) + (version > 1) * weights(version, scale=1e-3)).astype("f2"),
        "steps": np.array(1000 * version),
        "mask": rng.random(12) < 0.5,
    }
    return tensors if version < 3 else {**tensors, "new": weights(4)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that ``versions`` copies."""
    folder = tmp_path_factory.mktemp("versions")
    for k in range(1, 5):
        np.savez(folder / f"v{k}.npz", **model(k))  # type: ignore[arg-type]
        if k > 1:
            update = nnr.encode_update(folder / f"v{k - 1}.npz", folder / f"v{k}.npz", EXACTLY)
            (folder / f"v{k}.nnr").write_bytes(update)
    return folder


@pytest.fixture
def versions(here: Path, made: Path) -> Path:
    """Write ``v1.npz`` to ``v4.npz``, and ``v2.nnr`` to ``v4.nnr``, lossless updates of the one before."""
    shutil.copytree(made, here, dirs_exist_ok=True)
    return here


def short(name: str) -> str:
    return f"{nnr.identity(name)[:19]}..."


# ------------------------------------------------------------------------------------------------ encode, apply
def test_there_and_back(versions: Path, capsys: Capture) -> None:
    result = call(capsys, "update", "encode", "v3.npz", "--base", "v2.npz", "-o", "d.nnr", "--lossless")
    assert (result.code, result.out) == (0, "")
    found = ENCODED.fullmatch(result.err)
    assert found, result.err
    assert found["source"] == "v3.npz"
    assert int(found["before"].replace(",", "")) == sum(array.nbytes for array in model(3).values())
    assert int(found["after"].replace(",", "")) == Path("d.nnr").stat().st_size
    assert [int(found[name]) for name in ("all", "same", "differences", "whole")] == [6, 1, 3, 2]
    assert Path("d.nnr").read_bytes() == nnr.encode_update("v2.npz", "v3.npz", EXACTLY)
    result = call(capsys, "update", "apply", "v2.npz", "d.nnr", "-o", "out.npz")
    assert (result.code, result.out) == (0, "")
    assert re.fullmatch(r"v2\.npz \+ d\.nnr -> out\.npz: 6 tensors in \d+\.\d\d s\n", result.err)
    assert nnr.identity("out.npz") == nnr.identity("v3.npz")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {}),
        (["--preset", "update"], {}),
        (["--quality", 40], {"quality": 40}),
        (["--preset", "fl", "--qp", -42], {"qp": -42, "fine_vectors": False}),
        (["--preset", "fl"], {"config": nnr.EncoderConfig.preset("fl")}),
        (["--preset", "3gpp-incremental"], {"config": nnr.EncoderConfig.preset("3gpp-incremental")}),
        (["--preset", "lossless"], {"config": EXACTLY}),
        (["--snr", 30, "--no-dq", "-j", 2], {"snr": 30, "dependent_quantization": False}),
        (["--max-error", 1e-4, "--effort", 2], {"max_error": 1e-4, "effort": 2}),
        (["--target-size", "900"], {"target_size": 900}),
        (["--rule", "a.*:exact=true"], {"rules": [nnr.Rule("a.*", exact=True)]}),
        (["--indexed-references", "--row-skipping"], {"indexed_references": True, "row_skipping": True}),
        (["--sbt", 0.9], {"sbt": 0.9}),
        (["--sbt", 0.8, "--sbt-ternary", 0, "-j", 2], {"sbt": 0.8, "sbt_ternary": 0}),
    ],
)
def test_options(versions: Path, capsys: Capture, options: list[Any], expected: dict[str, Any]) -> None:
    result = call(capsys, "update", "encode", "v2.npz", "--base", "v1.npz", "-o", "d.nnr", *options)
    assert result.code == 0, result.err
    assert Path("d.nnr").read_bytes() == nnr.encode_update("v1.npz", "v2.npz", **expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--qp", -40, "--quality", 30], "--qp and --quality cannot be combined"),
        (["--lossless", "--preset", "fl"], "--lossless and --preset fl cannot be combined; choose one"),
        (["--lossless", "--quality", 30], "--lossless keeps every bit, so --quality has no effect"),
        (["--lossless", "--fold-batchnorm"], "so --fold-batchnorm has no effect"),
        (["--structured"], "--structured requires --sparsity"),
        (["--sparsity", 1.5], "1.5 is not in the range"),
        (["--sparsity", "nan"], "--sparsity must be a finite number, got nan"),
        (["--sbt", 1.5], "1.5 is not in the range"),
        (["--sbt", "much"], "'much' is not a number"),
        (["--sbt", "nan"], "--sbt must be a number from 0 to 1, got nan"),
        (["--sbt", 0.9, "--sbt-ternary", -1], "-1.0 is not in the range"),
        (["--sbt", 0.9, "--sbt-ternary", "inf"], "inf is not in the range"),
        (["--sbt", 0.9, "--sbt-ternary", "nan"], "--sbt-ternary must be a number from 0 to 1, got nan"),
        (["--sbt-ternary", 0.5], "--sbt-ternary requires --sbt"),
        (["--sbt", 0.9, "--lossless"], "--lossless keeps every bit, so --sbt has no effect"),
        (["--preset", "default"], "'default' is not one of"),
        (["--rule", "a:snr=30", "--rule", "b:qp=1000"], "--rule 'b': qp 1000 is outside"),
        (["--block"], "No such option"),
    ],
)
def test_options_that_make_no_sense(versions: Path, capsys: Capture, options: list[Any], message: str) -> None:
    result = call(capsys, "update", "encode", "v2.npz", "--base", "v1.npz", "-o", "d.nnr", *options)
    assert result.code == 2
    assert message in result.err
    assert not Path("d.nnr").exists()


def test_check(versions: Path, capsys: Capture) -> None:
    command = ("update", "encode", "v2.npz", "--base", "v1.npz", "-f", "-o", "d.nnr", "--check")
    found = CHECK.fullmatch(call(capsys, *command).err.splitlines(keepends=True)[1])
    assert found
    assert 20 < float(found["snr"]) < 30
    assert call(capsys, *command, "--lossless").err.endswith(EXACT)
    assert call(capsys, *command, "-q").err == ""


def test_nothing_to_update(versions: Path, capsys: Capture) -> None:
    result = call(capsys, "update", "encode", "v1.npz", "--base", "v1.npz", "-o", "d.nnr", "--check")
    assert result.err.endswith(EXACT)
    found = ENCODED.match(result.err)
    assert found
    assert [int(found[name]) for name in ("all", "same", "differences", "whole")] == [5, 5, 0, 0]
    assert call(capsys, "update", "apply", "v1.npz", "d.nnr", "-o", "out.npz").code == 0
    assert nnr.identity("out.npz") == nnr.identity("v1.npz")


def test_verbose_has_a_line_for_each_tensor(versions: Path, capsys: Capture) -> None:
    result = call(capsys, "update", "encode", "v3.npz", "--base", "v2.npz", "-o", "d.nnr", "--lossless", "-v")
    size = r"[\d,]+ bytes, \d+\.\d\d bits/parameter"
    lines = [f"{name}: {what}, {size}" for name, what in (("a.weight", "difference"), ("new", "whole"))]
    for line in lines:
        assert re.search(f"^{line}$", result.err, re.MULTILINE)
    assert "a.bias" not in result.err
    result = call(capsys, "update", "apply", "v2.npz", "d.nnr", "-o", "out.npz", "-v")
    assert re.search(f"^{lines[1]}$", result.err, re.MULTILINE)


def test_sbt(versions: Path, capsys: Capture) -> None:
    """One in ten parameters of each matrix changes, all by the same amount."""
    command = ("update", "encode", "v2.npz", "--base", "v1.npz", "-o", "d.nnr", "--sbt", 0.9, "--check")
    result = call(capsys, *command)
    assert result.code == 0
    assert CHECK.fullmatch(result.err.splitlines(keepends=True)[1])
    assert call(capsys, "update", "apply", "v1.npz", "d.nnr", "-o", "out.npz").code == 0
    got, before = nnr.load("out.npz"), model(1)
    change = np.abs(got["a.weight"] - before["a.weight"])
    assert 0 < (change > 0).mean() <= 0.1
    assert np.ptp(change[change > 0]) < 1e-6
    assert call(capsys, "verify", "d.nnr").code == 0


@pytest.mark.parametrize("structured", [False, True])
def test_sparsity(versions: Path, capsys: Capture, structured: bool) -> None:
    options = ["--sparsity", 0.8, *(["--structured"] if structured else [])]
    for more in ([], ["--lossless"]):
        command = ("update", "encode", "v2.npz", "--base", "v1.npz", "-f", "-o", "d.nnr", *options, *more)
        result = call(capsys, *command)
        assert (result.code, "--sparsity changes NEW" in result.err) == (0, bool(more))
        got, before, after = nnr.apply_update(model(1), Path("d.nnr")), model(1), model(2)
        same = got["a.weight"] == before["a.weight"]
        both = np.concatenate([(got[name] == before[name]).ravel() for name in ("a.weight", "half")])
        assert 0.8 <= both.mean() < 0.9
        if structured and more:
            assert (same.all(axis=1) | ~same.any(axis=1)).mean() > 0.9
        if more:
            assert (same | (got["a.weight"] == after["a.weight"])).all()
        assert got["steps"] == after["steps"]


# ------------------------------------------------------------------------------------------------ formats
def digits(scale: float) -> nnr.Model:
    """Return a network in which each tensor is next to a batch normalization."""
    source, rng = nnr.load(DIGITS), np.random.default_rng(1)
    tensors = {
        name: source[name] * (1 + scale * rng.standard_normal(source[name].shape)).astype("f4") for name in source
    }
    return replace(source, tensors=tensors)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["m.nnef", "m.nnef.tgz", "m.tar", "m.safetensors", "m.npz"])
@pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")
def test_formats(capsys: Capture, name: str) -> None:
    nnr.save(nnr.load(DIGITS), f"old-{name}")
    nnr.save(digits(0.01), f"new-{name}")
    command = ("update", "encode", f"new-{name}", "--base", f"old-{name}", "-o", "d.nnr", "--lossless", "--check")
    result = call(capsys, *command)
    assert (result.code, result.err.endswith(EXACT)) == (0, True), result.err
    for target, folder in ((f"out-{name}", name.endswith("nnef")), ("plain", "nnef" in name or name.endswith(".tar"))):
        assert call(capsys, "update", "apply", f"old-{name}", "d.nnr", "-o", target).code == 0
        assert nnr.identity(target) == nnr.identity(f"new-{name}")
        assert nnr.load(target).topology == nnr.load(f"new-{name}").topology
        assert os.path.isdir(target) == folder
    assert nnr.load("plain").format == nnr.load(f"new-{name}").format


def test_the_format_of_the_output(versions: Path, capsys: Capture) -> None:
    for target, options, expected in (
        ("x.safetensors", [], "safetensors"),
        ("x", [], "npz"),
        ("y", ["--format", "safetensors"], "safetensors"),
        ("z.npz", ["--format", "safetensors"], "safetensors"),
    ):
        for command in (["apply", "v1.npz", "v2.nnr"], ["chain", "v1.npz", "v2.nnr"]):
            assert call(capsys, "update", *command, "-fo", target, *options).code == 0
            assert nnr.load(target).format == expected
    result = call(capsys, "update", "apply", "v1.npz", "v2.nnr", "-o", "x.nnef")
    assert result.code == 3
    assert "graph" in result.err
    assert not Path("x.nnef").exists()


def test_two_formats(versions: Path, capsys: Capture) -> None:
    nnr.save(model(2), "v2.safetensors")
    command = ("update", "encode", "v2.safetensors", "--base", "v1.npz", "-o", "d.nnr", "--lossless", "--check")
    assert call(capsys, *command).err.endswith(EXACT)
    assert call(capsys, "update", "apply", "v1.npz", "d.nnr", "-o", "out").code == 0
    assert (nnr.identity("out"), nnr.load("out").format) == (nnr.identity("v2.npz"), "npz")


def test_folding(capsys: Capture) -> None:
    network = Path(os.environ.get("NNR_SHARED", ROOT.parent / "shared")) / "models" / "digits_cnn.nnef"
    if not network.exists():
        pytest.skip("the network with batch normalizations is not at hand")
    source, rng = nnr.load(network), np.random.default_rng(1)
    tensors = {name: (source[name] * rng.uniform(0.99, 1.01, source[name].shape)).astype("f4") for name in source}
    nnr.save(replace(source, tensors=tensors), "new.nnef")
    sizes = []
    for options in ([], ["--fold-batchnorm"]):
        command = ("update", "encode", "new.nnef", "--base", network, "-f", "-o", "d.nnr", "--check", *options)
        result = call(capsys, *command)
        assert result.code == 0, result.err
        assert re.search(r"SNR of the differences [2-4]\d\.", result.err)
        sizes.append(Path("d.nnr").stat().st_size)
        assert call(capsys, "update", "apply", network, "d.nnr", "-f", "-o", "out.nnef").code == 0
    assert sizes[1] < sizes[0]
    out = nnr.load("out.nnef")
    folded = [name for name in out if name.endswith("running_mean")]
    assert folded
    assert not any(np.any(out[name]) for name in folded)


def test_standard_streams(versions: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: Monkey) -> None:
    def given(name: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(name).read_bytes())))

    expected = Path("v2.nnr").read_bytes()
    for name, arguments in (("v2.npz", ["-", "--base", "v1.npz"]), ("v1.npz", ["v2.npz", "--base", "-"])):
        given(name)
        assert run(["update", "encode", *arguments, "-o", "-", "--lossless"]) == 0
        assert capsysbinary.readouterr().out == expected
    for name, old, update in (("v2.nnr", "v1.npz", "-"), ("v1.npz", "-", "v2.nnr")):
        for command in ("apply", "chain"):
            given(name)
            assert run(["update", command, old, update, "-o", "-"]) == 0
            assert nnr.identity(capsysbinary.readouterr().out) == nnr.identity("v2.npz")
    given("v2.nnr")
    assert run(["update", "squash", "v1.npz", "-", "v3.nnr", "-o", "-"]) == 0
    assert capsysbinary.readouterr().out == nnr.squash_updates("v1.npz", ["v2.nnr", "v3.nnr"])
    for arguments in (["encode", "-", "--base", "-"], ["apply", "-", "-"], ["squash", "v1.npz", "-", "-"]):
        given("v2.nnr")
        assert run(["update", *arguments, "-o", "-"]) == 2
        assert b"only one file can be standard input" in capsysbinary.readouterr().err


# ------------------------------------------------------------------------------------------------ refused
def test_the_wrong_base(versions: Path, capsys: Capture) -> None:
    result = call(capsys, "update", "apply", "v2.npz", "v2.nnr", "-o", "x.npz")
    assert result.code == 3
    message = f"nnr: error: v2.nnr is an update of {short('v1.npz')}, v2.npz is {short('v2.npz')}"
    assert (result.out, result.err) == (
        "",
        f"{message}; use the model that it updates, or add the updates in between\n",
    )
    assert not Path("x.npz").exists()


COMMANDS: list[list[str]] = [
    ["update", "apply", "v1.npz", "v2.nnr", "-o"],
    ["update", "chain", "v1.npz", "v2.nnr", "-o"],
    ["update", "squash", "v1.npz", "v2.nnr", "-o"],
    ["update", "encode", "v2.npz", "--base", "v1.npz", "-o"],
]


def out(command: list[str]) -> str:
    """Return a name for the output of a command: a bitstream or a model."""
    return "out.nnr" if command[1] in ("encode", "squash") else "out.npz"


def test_squash_names_its_default_in_an_error(versions: Path, capsys: Capture) -> None:
    result = call(capsys, "update", "squash", "v1.npz", "v2.nnr", "-o", "x.nnr", "--rate", 3)
    message = "the default without --quality or another goal keeps every bit, so --rate has no effect; omit it\n"
    assert (result.code, result.err.endswith(f"Error: {message}")) == (2, True)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("encode v3.npz --base v2.npz", ["encoding"]),
        ("apply v1.npz v2.nnr", ["applying"]),
        ("chain v1.npz v2.nnr v3.nnr", ["applying", "applying"]),
        ("squash v1.npz v2.nnr v3.nnr --quality 30", ["applying", "applying", "encoding"]),
    ],
)
def test_progress_reaches_its_end(
    versions: Path, capsys: Capture, monkeypatch: Monkey, command: str, expected: list[str]
) -> None:
    ends, last = list[str](), 0

    @contextmanager
    def progress(self: output.Printer, label: str, total: int) -> Iterator[Progress]:
        def advance(name: str, done: int, total: int) -> None:
            nonlocal last
            assert done == last + 1
            last = done % total
            if done == total:
                ends.append(label)

        yield advance

    monkeypatch.setattr(output.Printer, "progress", progress)
    assert call(capsys, "update", *command.split(), "-o", out(["update", *command.split()])).code == 0
    assert (ends, last) == (expected, 0)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[1])
def test_existing_files_are_not_replaced(versions: Path, capsys: Capture, command: list[str]) -> None:
    Path(out(command)).write_text("precious")
    result = call(capsys, *command, out(command))
    assert (result.code, result.err) == (5, f"nnr: error: {out(command)} exists; use -f to replace it\n")
    inputs = [name for name in command if name.startswith("v")]
    for name in inputs:
        content = Path(name).read_bytes()
        result = call(capsys, *command, name, "-f")
        assert (result.code, result.err) == (5, f"nnr: error: {name} is an input; write to another name\n")
        assert Path(name).read_bytes() == content
    assert (
        call(capsys, *command, f"no/{out(command)}").err
        == "nnr: error: the folder 'no' of the output does not exist; create it first\n"
    )
    assert Path(out(command)).read_text() == "precious"
    assert call(capsys, *command, out(command), "-f").code == 0
    assert Path(out(command)).read_bytes() != b"precious"


@pytest.mark.parametrize("command", COMMANDS[:3], ids=lambda command: command[1])
@pytest.mark.parametrize("length", [0, 3, 40, 200, -1])
def test_truncated_updates(versions: Path, capsys: Capture, command: list[str], length: int) -> None:
    Path("v2.nnr").write_bytes(Path("v2.nnr").read_bytes()[:length])
    Path(out(command)).write_text("precious")
    before = sorted(os.listdir())
    result = call(capsys, *command, out(command), "-f")
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("nnr: error: v2.nnr: ")
    assert result.err.count("\n") == 1
    assert sorted(os.listdir()) == before
    assert Path(out(command)).read_text() == "precious"


@pytest.mark.parametrize("command", COMMANDS[:3], ids=lambda command: command[1])
def test_invalid_updates(versions: Path, capsys: Capture, command: list[str]) -> None:
    nnr.encode_file("v1.npz", "whole.nnr")
    for name, code, message in (
        ("whole.nnr", 3, "nnr: error: whole.nnr: the bitstream is a whole model, not an update; use nnr decode\n"),
        ("v1.npz", 3, "nnr: error: v1.npz: a model (npz), not a bitstream; "),
        ("missing.nnr", 5, "nnr: error: missing.nnr: No such file or directory\n"),
    ):
        result = call(capsys, *[name if word == "v2.nnr" else word for word in command], out(command))
        assert (result.code, result.out) == (code, "")
        assert result.err.startswith(message)
        assert result.err.count("\n") == 1
    result = call(capsys, *["whole.nnr" if word == "v1.npz" else word for word in command], out(command))
    assert result.code == 3
    assert re.fullmatch(r"nnr: error: v2.nnr is an update of .*, whole.nnr is .*; use the model.*\n", result.err)
    assert not Path(out(command)).exists()


def test_a_tensor_that_is_gone(versions: Path, capsys: Capture) -> None:
    result = call(capsys, "update", "encode", "v2.npz", "--base", "v3.npz", "-o", "d.nnr")
    assert result.code == 3
    assert result.err.startswith("nnr: error: tensor 'new' of the base model is missing")
    assert not Path("d.nnr").exists()


@pytest.mark.parametrize("command", [COMMANDS[2], COMMANDS[3]], ids=lambda command: command[1])
def test_rules_that_match_nothing(versions: Path, capsys: Capture, command: list[str]) -> None:
    result = call(capsys, *command, "d.nnr", "--rule", "a.*:exact=yes", "--rule", "b.*:exact=yes")
    assert result.code == 0
    assert result.err.startswith("nnr: warning: rule 'b.*' matches no tensor; a name is 'a.bias'\n")
    assert result.err.count("matches no tensor") == 1
    assert call(capsys, *command, "d.nnr", "-qf", "--rule", "b.*:exact=yes").err == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x.npz: not a model of a supported format, or a damaged file; run nnr formats to list supported formats"),
        (b"PK\x03\x04" + bytes(50), "x.npz"),
        (None, "x.npz: No such file or directory"),
    ],
)
def test_models_that_are_none(versions: Path, capsys: Capture, content: bytes | None, message: str) -> None:
    if content is not None:
        Path("x.npz").write_bytes(content)
    before = sorted(os.listdir())
    for command in COMMANDS:
        for name in {"v1.npz", "v2.npz"}.intersection(command):
            result = call(capsys, *["x.npz" if word == name else word for word in command], out(command))
            assert (result.code, result.out) == (5 if content is None else 3, "")
            assert result.err.startswith(f"nnr: error: {message}")
            assert result.err.count("\n") == 1
    assert sorted(os.listdir()) == before


def test_limits(versions: Path, capsys: Capture) -> None:
    for command in COMMANDS[:3]:
        result = call(capsys, *command, out(command), "--limit", "max_units=2")
        assert result.code == 3
        assert "max_units" in result.err


# ------------------------------------------------------------------------------------------------ chain, squash
def test_a_chain_is_checked(versions: Path, capsys: Capture) -> None:
    result = call(capsys, "update", "chain", "v1.npz", "v2.nnr", "v3.nnr", "v4.nnr")
    names = ["v1.npz", "v2.nnr", "v3.nnr", "v4.nnr"]
    lines = [f"{name}: {nnr.identity(f'v{k}.npz')}\n" for k, name in enumerate(names, 1)]
    assert (result.code, result.out, result.err) == (0, "".join(lines), "")


def test_a_chain_is_applied(versions: Path, capsys: Capture) -> None:
    result = call(capsys, "update", "chain", "v1.npz", "v2.nnr", "v3.nnr", "v4.nnr", "-o", "out.npz")
    assert (result.code, result.out) == (0, "")
    assert re.fullmatch(r"v1\.npz \+ 3 updates -> out\.npz: 6 tensors in \d+\.\d\d s\n", result.err)
    assert nnr.identity("out.npz") == nnr.identity("v4.npz")


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        (["v3.nnr", "v2.nnr"], "v3.nnr is an update of {2}, v1.npz is {1}; it follows v2.nnr"),
        (
            ["v2.nnr", "v4.nnr"],
            "v4.nnr is an update of {3}, the model after v2.nnr is {2}; none of the other updates produces that model",
        ),
        (["v2.nnr", "v2.nnr"], "v2.nnr is an update of {1}, the model after v2.nnr is {2}; it follows v1.npz"),
    ],
)
def test_a_chain_that_is_none(versions: Path, capsys: Capture, updates: list[str], message: str) -> None:
    told = message.format(*[short(f"v{max(k, 1)}.npz") for k in range(5)])
    for options in ([], ["-o", "out.npz"]):
        result = call(capsys, "update", "chain", "v1.npz", *updates, *options)
        assert (result.code, result.err) == (3, f"nnr: error: {told}\n")
        assert len(result.out.splitlines()) == (0 if options else 1 + (updates[0] == "v2.nnr"))
    result = call(capsys, "update", "squash", "v1.npz", *updates, "-o", "d.nnr")
    assert (result.code, result.err) == (3, f"nnr: error: {told}\n")
    assert not Path("out.npz").exists()
    assert not Path("d.nnr").exists()


def test_squash(versions: Path, capsys: Capture) -> None:
    command = ("update", "squash", "v1.npz", "v2.nnr", "v3.nnr", "-o", "d.nnr", "--check")
    result = call(capsys, *command)
    assert (result.code, result.out) == (0, "")
    assert ENCODED.match(result.err)
    assert result.err.startswith("v1.npz + 2 updates -> d.nnr: ")
    assert result.err.endswith(EXACT)
    assert Path("d.nnr").read_bytes() == nnr.squash_updates("v1.npz", ["v2.nnr", "v3.nnr"])
    assert call(capsys, "update", "chain", "v1.npz", "d.nnr", "v4.nnr", "-o", "out.npz").code == 0
    assert nnr.identity("out.npz") == nnr.identity("v4.npz")
    assert call(capsys, *command, "-f", "--lossless", "--effort", 2).err.endswith(EXACT)


@pytest.mark.parametrize("options", [["--quality", 20], ["--preset", "fl"], ["--qp", -38], ["--snr", 20, "--no-dq"]])
def test_lossy_squash(versions: Path, capsys: Capture, options: list[Any]) -> None:
    command = ("update", "squash", "v1.npz", "v2.nnr", "v3.nnr", "-f", "-o", "d.nnr", "--check", *options)
    result = call(capsys, *command)
    assert result.code == 0, result.err
    lines = result.err.splitlines(keepends=True)[-3:]  # the qp is too large for some of the matrices
    assert lines[0] == (
        "nnr: warning: d.nnr does not restore exactly the same model, so later updates do not apply; use --lossless\n"
    )
    assert CHECK.fullmatch(lines[2])
    assert Path("d.nnr").stat().st_size < len(nnr.squash_updates("v1.npz", ["v2.nnr", "v3.nnr"]))
    result = call(capsys, "update", "chain", "v1.npz", "d.nnr", "v4.nnr")
    assert result.code == 3
    assert "none of the other updates produces that model" in result.err


# ------------------------------------------------------------------------------------------------ other commands
def test_ls(versions: Path, capsys: Capture) -> None:
    base = nnr.identity("v2.npz")
    result = call(capsys, "ls", "v3.nnr")
    assert result.out.splitlines()[-1] == (
        f"an update of {base}: tensors with the tool update are stored as differences (of bit patterns), "
        "the others whole"
    )
    rows = {line.split()[0]: line for line in result.out.splitlines()}
    assert "update" in rows["a.weight"]
    assert "update" not in rows["new"]
    Path("lossy.nnr").write_bytes(nnr.encode_update(model(2), model(3)))
    assert call(capsys, "ls", "lossy.nnr").out.splitlines()[-1] == (
        f"an update of {base}: tensors with the tool update are stored as differences, the others whole"
    )
    nnr.encode_file("v1.npz", "whole.nnr")
    assert "update" not in call(capsys, "ls", "whole.nnr").out


@pytest.fixture
def messages(here: Path) -> list[str]:
    """Write ``m1.nnr`` to ``m3.nnr``, from an encoder with a state."""
    encoder = nnr.UpdateEncoder(device_id=2, base_model_id="release 7")
    for k in range(1, 4):
        Path(f"m{k}.nnr").write_bytes(encoder.encode({"w": weights(k)}))
    return ["m1.nnr", "m2.nnr", "m3.nnr"]


def test_ls_of_an_encoder_with_a_memory(messages: list[str], capsys: Capture) -> None:
    last = [call(capsys, "ls", name).out.splitlines()[-1].partition(":")[0] for name in messages]
    assert last[0] == "update 1 of device 2 of release 7"
    assert re.fullmatch(r"update 3 of device 2 of release 7, after [\w-]{16}", last[2])


def test_inspect(versions: Path, messages: list[str], capsys: Capture) -> None:
    result = call(capsys, "inspect", "v2.nnr")
    assert f"updates, base {nnr.identity('v1.npz')}\n" in result.out
    result = call(capsys, "inspect", "m3.nnr")
    assert re.search(r"updates, (pre, )?base release 7#2\.3\.[\w-]{16}\n", result.out)
    assert re.search(r"update, .*device 2, depth 3 ", result.out)


def test_decode_says_that_these_are_differences(versions: Path, messages: list[str], capsys: Capture) -> None:
    result = call(capsys, "decode", "v2.nnr", "-o", "out.npz")
    assert result.code == 0
    assert result.err.startswith(
        f"nnr: warning: v2.nnr is an update of {nnr.identity('v1.npz')}: these are differences; nnr update apply adds "
        "them to a model\n"
    )
    assert call(capsys, "decode", "v2.nnr", "-qfo", "out.npz").err == ""
    assert call(capsys, "decode", "m1.nnr", "-fo", "o.npz").err.startswith(
        "nnr: warning: m1.nnr is update 1 of device 2 of release 7: these are differences; nnr update chain adds them "
        "to a model\n"
    )
    result = call(capsys, "decode", "v2.nnr", "-o", "out.nnef")
    assert result.err.startswith("nnr: error: v2.nnr: a model of nnef requires a graph of nnef; this one has none")
    assert result.err.count("\n") == 1
    nnr.encode_file("v1.npz", "whole.nnr")
    assert "update" not in call(capsys, "decode", "whole.nnr", "-fo", "out.npz").err


def test_a_chain_of_an_encoder_with_a_memory(messages: list[str], capsys: Capture) -> None:
    np.savez("zeros.npz", w=np.zeros_like(weights()))
    assert call(capsys, "update", "chain", "zeros.npz", *messages, "-o", "out.npz").code == 0
    decoder = nnr.UpdateDecoder()
    expected = sum(decoder.decode(name)["w"] for name in messages)
    np.testing.assert_allclose(nnr.load("out.npz")["w"], expected, atol=1e-6)
    result = call(capsys, "update", "chain", "zeros.npz", "m1.nnr", "m3.nnr", "-fo", "out.npz")
    assert result.code == 3
    assert result.err.startswith("nnr: error: m3.nnr: bitstream 3 of device_id 2 continues number 2")


def test_verify(messages: list[str], capsys: Capture) -> None:
    Path("d.nnr").write_bytes(nnr.encode_update({"w": weights(1)}, {"w": weights(2)}))
    result = call(capsys, "verify", "d.nnr", messages[0])
    assert (result.code, result.out.splitlines()[-1]) == (0, "2 bitstreams, 0 violations, 0 warnings"), result.out


def test_names_of_tensors_and_bases(capsys: Capture) -> None:
    """Untrusted names have no effect on a terminal."""
    base = {name: weights(k, (3, 4)) for k, name in enumerate(NAMES)}
    new = {name: array + np.float32(1e-3) for name, array in base.items()}
    nnr.save(base, "old.safetensors")
    nnr.save(new, "new.safetensors")
    command = ("update", "encode", "new.safetensors", "--base", "old.safetensors", "-o", "d.nnr", "-v")
    result = call(capsys, *command)
    assert result.code == 0
    for shown in NAMES.values():
        assert f"{shown}: difference, " in result.err
    encoder = nnr.UpdateEncoder(base_model_id="\x1b[31m\nred")
    Path("m.nnr").write_bytes(encoder.encode({"w": weights()}))
    assert call(capsys, "ls", "m.nnr").out.splitlines()[-1].startswith(r"update 1 of device 0 of \x1b[31m\nred: ")
    assert r"base \x1b[31m\nred#0.1." in call(capsys, "inspect", "m.nnr").out


# ------------------------------------------------------------------------------------------------ the page
@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("nnr update apply", lambda: ["other.npz", "v3.nnr"]),
        ("nnr update chain", lambda: ["v1.npz", "v3.nnr", "v2.nnr"]),
    ],
)
def test_errors_of_the_page(versions: Path, capsys: Capture, command: str, given: Callable[[], list[str]]) -> None:
    """They have the form that the page shows."""
    shutil.copy("v1.npz", "other.npz")
    shown = re.search(rf"^\$ ({command} .*)\n(nnr: error: .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert shown
    result = call(capsys, *command.split()[1:], *given(), "-o", "x.npz")
    assert result.code == 3
    form = re.compile(r"[\w.]+\.(npz|nnr)|sha256:[0-9a-f]+\.\.\.")
    assert form.sub("X", result.err.strip()) == form.sub("X", shown[2])


def test_bitstreams_in_the_place_of_models(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in (1, 2):
        np.savez(f"v{k}.npz", w=weights(k))
        nnr.encode_file(f"v{k}.npz", f"v{k}.nnr")
        nnr.decode_file(f"v{k}.nnr", f"d{k}.npz")
    assert call(capsys, "update", "encode", "v2.nnr", "--base", "v1.nnr", "-o", "u.nnr").code == 0
    assert Path("u.nnr").read_bytes() == nnr.encode_update("d1.npz", "d2.npz")
    for base in ("v1.nnr", "d1.npz"):
        assert call(capsys, "update", "apply", base, "u.nnr", "-o", "new.npz", "-f").code == 0
        assert nnr.compare_models(nnr.load("new.npz"), nnr.apply_update("d1.npz", Path("u.nnr").read_bytes())).same()
    told = call(capsys, "update", "chain", "v1.nnr", "u.nnr").out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("v1.nnr").read_bytes())))
    assert call(capsys, "update", "chain", "-", "u.nnr").out == told.replace("v1.nnr", "-", 1)
    assert call(capsys, "update", "squash", "v1.nnr", "u.nnr", "-o", "s.nnr").code == 0
    assert "v1.nnr: 1 tensor" in call(capsys, "bench", "v1.nnr", "--qp", -20).out


def test_a_dry_run(versions: Path, capsys: Capture) -> None:
    result = call(capsys, "update", "encode", "v2.npz", "--base", "v1.npz", "--dry-run")
    size = len(nnr.encode_update("v1.npz", "v2.npz"))
    assert (result.code, result.err) == (0, "")
    assert f" -> {size:,} bytes (" in result.out.splitlines()[-1]
    before = set(os.listdir())
    assert call(capsys, "update", "encode", "v2.npz", "--base", "v1.npz", "--dry-run", "-o", "x.nnr").code == 0
    assert set(os.listdir()) == before
    for option in ("--check", "--report=x.json"):
        result = call(capsys, "update", "encode", "v2.npz", "--base", "v1.npz", "--dry-run", option)
        assert (result.code, "--dry-run cannot be combined with" in result.err) == (2, True)
    assert "Missing option '-o'" in call(capsys, "update", "encode", "v2.npz", "--base", "v1.npz").err


def test_a_report(capsys: Capture) -> None:
    same = weights(3)
    np.savez("a.npz", w=weights(1), same=same)
    np.savez("b.npz", w=weights(2), same=same)
    result = call(
        capsys, "update", "encode", "b.npz", "--base", "a.npz", "-o", "u.nnr", "--report=u.json", "--report=u.html"
    )
    assert (result.code, Path("u.html").read_text()[:9].lower()) == (0, "<!doctype")
    found = json.loads(Path("u.json").read_text())
    assert [one["name"] for one in found["tensors"]] == ["w"]
    totals = found["totals"]
    assert (totals["source_bytes"], totals["bytes"]) == (2 * same.nbytes, os.path.getsize("u.nnr"))
    decoded = nnr.decode("u.nnr")["w"]
    change = weights(2) - weights(1)
    assert totals["max_error"] == pytest.approx(np.abs(decoded - change).max(), rel=1e-5)
    assert Path("u.nnr").read_bytes() == nnr.encode_update("a.npz", "b.npz")


@pytest.mark.parametrize("ratio", [0.05, 0.1])
def test_a_target_ratio_refers_to_the_whole_model(capsys: Capture, ratio: float) -> None:
    same = weights(3, (60, 60))
    np.savez("a.npz", w=weights(1, (60, 60)), same=same)
    np.savez("b.npz", w=weights(2, (60, 60)), same=same)
    result = call(capsys, "update", "encode", "b.npz", "--base", "a.npz", "-o", "u.nnr", "--target-ratio", ratio)
    assert result.code == 0
    target = ratio * 2 * same.nbytes
    assert 0.97 * target <= os.path.getsize("u.nnr") <= target


@pytest.mark.parametrize("parent", ["node", "sha256", "sha512", "external"])
def test_a_sequence_with_parents(capsys: Capture, parent: str) -> None:
    start, step = weights(1, (80, 90)), weights(2, (80, 90), 0.01)
    for k in range(1, 4):
        np.savez(f"v{k}.npz", w=start + k * step + weights(3 + k, (80, 90), 0.0005), n=np.arange(k))
    first = ("update", "encode", "v2.npz", "--base", "v1.npz", "--parent", parent, "-o", "u2.nnr")
    second = ("update", "encode", "v3.npz", "--base", "v1.npz", "-i", "u2.nnr", "--parent", parent)
    assert call(capsys, *first).code == 0
    result = call(capsys, *second, "-o", "u3.nnr", "--check")
    assert (result.code, "check: largest error" in result.err) == (0, True)
    assert call(capsys, "update", "chain", "v1.npz", "u2.nnr", "u3.nnr", "-o", "end.npz").code == 0
    end, expected = nnr.load("end.npz"), nnr.load("v3.npz")
    assert np.abs(end["w"] - expected["w"]).max() < 0.003
    assert np.array_equal(end["n"], expected["n"])
    alone, after = os.path.getsize("u2.nnr"), os.path.getsize("u3.nnr")
    assert after < 0.6 * alone if parent != "external" else 0.9 * alone < after
    assert f" -> {after:,} bytes" in call(capsys, *second, "--dry-run").out


def test_mistakes_with_parents(versions: Path, capsys: Capture) -> None:
    encode = ("update", "encode", "v2.npz", "--base", "v1.npz", "-o", "u.nnr")
    for options, code, message in (
        (["-i", "v2.nnr"], 2, "--input requires --parent"),
        (["--parent", "node", "--lossless"], 2, "--parent cannot be combined with --lossless"),
        (["--parent", "node", "--report", "x.json"], 2, "--parent cannot be combined with --lossless"),
        (["--parent", "node", "-i", "v2.nnr"], 2, "v2.nnr was encoded without --parent"),
        (["--parent", "node", "-i", "v3.nnr"], 3, "v3.nnr is an update of "),
    ):
        result = call(capsys, *encode, *options)
        assert (result.code, message in result.err) == (code, True), result.err
        assert not Path("u.nnr").exists()


def test_metadata_stay_in_a_sequence_with_parents(capsys: Capture) -> None:
    for k in (1, 2):
        nnr.save(nnr.Model({"w": weights(k)}, metadata={"version": str(k)}), f"v{k}.safetensors")
    encode = ("update", "encode", "v2.safetensors", "--base", "v1.safetensors", "-fo", "u.nnr")
    warning = "nnr: warning: an update with --parent cannot change metadata; the metadata of OLD is kept\n"
    for options, is_told in (((), False), (("--parent", "node"), True)):
        assert (warning in call(capsys, *encode, *options).err) == is_told
        assert call(capsys, "update", "apply", "v1.safetensors", "u.nnr", "-fo", "new.safetensors").code == 0
        assert nnr.load("new.safetensors").metadata == {"version": "1" if is_told else "2"}


def test_a_report_does_not_replace_the_update(versions: Path, capsys: Capture) -> None:
    encode = ("update", "encode", "v2.npz", "--base", "v1.npz", "-fo", "u.json", "--report", "./u.json")
    result = call(capsys, *encode)
    assert (result.code, "u.json is the file of two outputs; use other names" in result.err) == (2, True)
