"""Tests of nnr decode."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr

from .support import DECODED, DIGITS, call, damaged, weights

Capture = pytest.CaptureFixture[str]


def test_summary_and_values(bitstream: Path, capsys: Capture) -> None:
    result = call(capsys, "decode", bitstream, "-o", "out.npz")
    assert (result.code, result.out) == (0, "")
    found = DECODED.fullmatch(result.err)
    assert found, result.err
    size = sum(array.nbytes for array in nnr.load("out.npz").tensors.values())
    assert found.groups()[2:] == (f"{bitstream.stat().st_size:,}", f"{size:,}", "3")
    expected = nnr.decode(bitstream)
    with np.load("out.npz") as arrays:
        assert list(arrays) == ["a.weight", "a.bias", "b.weight"]
        for name in arrays:
            assert np.array_equal(arrays[name], expected[name])


@pytest.mark.parametrize("target", ["out.nnef", "out.nnef/", "out.nnef.tgz", "out.tar"])
def test_nnef(capsys: Capture, target: str) -> None:
    nnr.encode_file(DIGITS, "digits.nnr")
    assert call(capsys, "decode", "digits.nnr", "-o", target).code == 0
    model, source = nnr.load(target), nnr.load(DIGITS)
    assert model.topology == source.topology
    assert {name: model[name].shape for name in model} == {name: source[name].shape for name in source}
    assert os.path.isdir(target) == (target in ("out.nnef", "out.nnef/"))


def test_standard_streams(bitstream: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    from nnr_cli.main import run

    assert run(["decode", str(bitstream), "-o", "-"]) == 0
    with np.load(io.BytesIO(capsysbinary.readouterr().out)) as arrays:
        assert list(arrays) == ["a.weight", "a.bias", "b.weight"]
    nnr.encode_file(DIGITS, "digits.nnr")
    assert run(["decode", "digits.nnr", "-o", "-"]) == 0
    with tarfile.open(fileobj=io.BytesIO(capsysbinary.readouterr().out)) as archive:
        assert "graph.nnef" in archive.getnames()


def test_standard_input(bitstream: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bitstream.read_bytes())))
    result = call(capsys, "decode", "-", "-o", "out.npz")
    assert result.code == 0
    assert result.err.startswith("- -> out.npz: ")


def test_format_of_the_output(bitstream: Path, capsys: Capture) -> None:
    result = call(capsys, "decode", bitstream, "-o", "weights")
    assert result.code == 2
    assert "run nnr formats to list the extensions" in result.err
    assert call(capsys, "decode", bitstream, "-o", "weights", "--format", "npz").code == 0
    assert list(nnr.load("weights")) == ["a.weight", "a.bias", "b.weight"]
    assert call(capsys, "decode", bitstream, "-o", "x", "--format", "zip").code == 2
    result = call(capsys, "decode", bitstream, "-o", "x.nnef")
    assert result.code == 3
    assert "a model of nnef requires a graph of nnef" in result.err
    assert sorted(os.listdir()) == ["model.nnr", "model.npz", "weights"]


def test_left_out_content_is_reported(capsys: Capture) -> None:
    nnr.encode_file(DIGITS, "digits.nnr")
    result = call(capsys, "decode", "digits.nnr", "-o", "x.npz")
    assert result.code == 0
    assert result.err.startswith("nnr: warning: an npz archive cannot store the topology\n")
    assert call(capsys, "decode", "digits.nnr", "-fqo", "x.npz").err == ""


def test_verbose_has_a_line_for_each_tensor(bitstream: Path, capsys: Capture) -> None:
    lines = call(capsys, "decode", bitstream, "-vo", "x.npz").err.splitlines()
    assert lines[:3] == ["a.weight: float32 24x30", "a.bias: float32 24", "b.weight: float32 24x30"]


def test_a_damaged_payload(bitstream: Path, capsys: Capture) -> None:
    Path("bad.nnr").write_bytes(damaged(bitstream.read_bytes(), 4))
    Path("out.npz").write_text("precious")
    result = call(capsys, "decode", "bad.nnr", "-f", "-o", "out.npz")
    assert result.code == 3
    assert result.err.startswith("nnr: error: bad.nnr: unit 4 (NNR_NDU 'b.weight'), ")
    assert result.err.count("\n") == 1
    assert Path("out.npz").read_text() == "precious"
    assert sorted(os.listdir()) == ["bad.nnr", "model.nnr", "model.npz", "out.npz"]


@pytest.mark.parametrize("length", [0, 1, 3, 7, 11, 13, 40, -1])
def test_every_kind_of_truncation(bitstream: Path, capsys: Capture, length: int) -> None:
    Path("bad.nnr").write_bytes(bitstream.read_bytes()[:length])
    for command in (["decode", "bad.nnr", "-o", "x.npz"], ["ls", "bad.nnr"], ["inspect", "bad.nnr"]):
        result = call(capsys, *command)
        assert result.code == 3, command
        assert result.out == "" or command[0] == "inspect"  # which prints what could be read
        assert result.err.startswith("nnr: error: bad.nnr: ")
        assert result.err.count("\n") == 1
    assert not Path("x.npz").exists()


@pytest.mark.parametrize("content", [b"some text, not a bitstream\n" * 9, bytes(range(256)), bytes(64), b"\xff" * 64])
def test_invalid_bitstreams(capsys: Capture, content: bytes) -> None:
    Path("x").write_bytes(content)
    for command in (["decode", "x", "-o", "x.npz"], ["ls", "x"], ["inspect", "x"]):
        result = call(capsys, *command)
        assert result.code == 3
        assert result.err.startswith("nnr: error: x: ")
        assert result.err.count("\n") == 1
    assert os.listdir() == ["x"]


@pytest.mark.parametrize(
    "command", [["ls"], ["inspect"], ["decode", "-o", "x.npz"], ["extract", "--unit", 0, "-o", "x"]]
)
@pytest.mark.parametrize("name", ["model.npz", "model.safetensors"])
def test_a_model_in_the_place_of_a_bitstream(npz: Path, capsys: Capture, name: str, command: list[str]) -> None:
    nnr.save(nnr.load(npz), "model.safetensors")
    result = call(capsys, *command, name)
    why = f"a model ({Path(name).suffix[1:]}), not a bitstream; use nnr encode to compress it"
    assert (result.code, result.err) == (3, f"nnr: error: {name}: {why}\n")
    assert not Path("x").exists()


def test_a_profile_that_is_not_defined(bitstream: Path, capsys: Capture) -> None:
    data = bytearray(bitstream.read_bytes())
    assert data[:4] == b"\x00\x04\x02\x01"
    data[3] = 9
    bitstream.write_bytes(data)
    result = call(capsys, "decode", bitstream, "-o", "x.npz")
    assert result.code == 4
    assert "general_profile_idc" in result.err


@pytest.mark.parametrize("name", ["missing.nnr", "folder"])
def test_what_cannot_be_read(capsys: Capture, name: str) -> None:
    Path("folder").mkdir()
    why = "Is a directory" if name == "folder" else "No such file or directory"
    for command in (["decode", name, "-o", "x.npz"], ["ls", name], ["inspect", name]):
        result = call(capsys, *command)
        assert (result.code, result.err) == (5, f"nnr: error: {name}: {why}\n")


def test_a_folder_that_is_a_model(capsys: Capture) -> None:
    why = "a model (nnef), not a bitstream; use nnr encode to compress it"
    for command in (["decode", DIGITS, "-o", "x.npz"], ["ls", DIGITS], ["inspect", DIGITS]):
        result = call(capsys, *command)
        assert (result.code, result.err) == (3, f"nnr: error: {DIGITS}: {why}\n")


def test_overwriting(bitstream: Path, capsys: Capture) -> None:
    nnr.encode_file(DIGITS, "digits.nnr")
    Path("out.nnef").mkdir()
    Path("out.nnef/graph.nnef").touch()
    Path("out.nnef/old.dat").touch()
    result = call(capsys, "decode", "digits.nnr", "-o", "out.nnef")
    assert (result.code, result.err) == (5, "nnr: error: out.nnef exists; use -f to replace it\n")
    assert call(capsys, "decode", "digits.nnr", "-f", "-o", "out.nnef").code == 0
    assert not Path("out.nnef/old.dat").exists()
    assert len(nnr.load("out.nnef")) == 16


def test_a_folder_that_is_no_model_is_never_replaced(capsys: Capture) -> None:
    nnr.encode_file(DIGITS, "digits.nnr")
    Path("home.nnef").mkdir()
    Path("home.nnef/letters").touch()
    result = call(capsys, "decode", "digits.nnr", "-f", "-o", "home.nnef")
    assert result.code in (3, 5)
    assert "not replaced" in result.err
    assert os.listdir("home.nnef") == ["letters"]


def test_the_input_is_never_replaced(bitstream: Path, capsys: Capture) -> None:
    content = bitstream.read_bytes()
    result = call(capsys, "decode", bitstream, "-f", "-o", bitstream, "--format", "npz")
    assert (result.code, result.err) == (5, "nnr: error: model.nnr is an input; write to another name\n")
    assert bitstream.read_bytes() == content


def test_the_output_is_looked_at_first(bitstream: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(nnr, "open", never)
    assert (
        call(capsys, "decode", bitstream, "-o", "no/x.npz").err
        == "nnr: error: the folder 'no' of the output does not exist; create it first\n"
    )
    assert call(capsys, "decode", bitstream, "-o", "model.npz").code == 5


def test_types_come_back(capsys: Capture) -> None:
    model = {
        "bool": np.array([[True, False]]),
        "i1": np.arange(-3, 3, dtype="i1").reshape(2, 3),
        "f2": weights(1, (3, 4)).astype("f2"),
        "f8": weights(2, (3, 4)).astype("f8"),
    }
    nnr.save(model, "m.npz")
    assert call(capsys, "encode", "m.npz", "-o", "m.nnr").code == 0
    assert call(capsys, "decode", "m.nnr", "-o", "n.npz").code == 0
    assert {name: array.dtype for name, array in nnr.load("n.npz").tensors.items()} == {
        "bool": np.dtype("?"),
        "i1": np.dtype("i1"),
        "f2": np.dtype("f2"),
        "f8": np.dtype("f8"),
    }


@pytest.mark.parametrize(
    ("globs", "names"),
    [
        (["a.*"], ["a.weight", "a.bias"]),
        (["*.weight"], ["a.weight", "b.weight"]),
        (["b.*", "*bias"], ["a.bias", "b.weight"]),
    ],
)
def test_only(bitstream: Path, capsys: Capture, globs: list[str], names: list[str]) -> None:
    options = [word for glob in globs for word in ("--only", glob)]
    result = call(capsys, "decode", bitstream, "-o", "out.npz", *options)
    assert result.code == 0, result.err
    expected = nnr.decode(bitstream)
    with np.load("out.npz") as arrays:
        assert list(arrays) == names
        for name in arrays:
            assert np.array_equal(arrays[name], expected[name])


def test_only_leaves_damaged_units_alone(bitstream: Path, capsys: Capture) -> None:
    data = bytearray(bitstream.read_bytes())
    unit = list(nnr.units(bytes(data)))[2]
    data[unit.offset + unit.size.nnr_unit_size - 1] ^= 0xFF
    Path("damaged.nnr").write_bytes(data)
    assert call(capsys, "decode", "damaged.nnr", "-o", "out.npz").code == 3
    assert call(capsys, "decode", "damaged.nnr", "-o", "out.npz", "--only", "b.*").code == 0


def test_only_must_match_a_tensor(bitstream: Path, capsys: Capture) -> None:
    result = call(capsys, "decode", bitstream, "-o", "out.npz", "--only", "c.*")
    assert result.code == 2
    assert "--only 'c.*' matches no tensor" in result.err


def test_some_tensors_are_no_network(capsys: Capture) -> None:
    nnr.encode_file(DIGITS, "digits.nnr")
    result = call(capsys, "decode", "digits.nnr", "-o", "out.nnef", "--only", "conv1/*")
    assert result.code == 2
    assert "--only omits tensors that the graph requires" in result.err
    assert call(capsys, "decode", "digits.nnr", "-o", "out.nnef", "--only", "*").code == 0


@pytest.mark.parametrize("jobs", ["1", "2", "5"])
def test_jobs(bitstream: Path, capsys: Capture, jobs: str) -> None:
    assert call(capsys, "decode", bitstream, "-o", "one.npz").code == 0
    assert call(capsys, "decode", bitstream, "-o", "out.npz", "-j", jobs).code == 0
    assert Path("out.npz").read_bytes() == Path("one.npz").read_bytes()


def test_a_bitstream_that_ends_early_between_units(capsys: Capture) -> None:
    nnr.encode_file(DIGITS, "digits.nnr")
    units = list(nnr.units("digits.nnr"))
    Path("some.nnr").write_bytes(Path("digits.nnr").read_bytes()[: units[-4].offset])
    result = call(capsys, "decode", "some.nnr", "-o", "out.npz")
    assert result.code == 3
    named = "'fc1/weight', 'fc1/bias', 'fc2/weight'"
    assert result.err == f"nnr: error: some.nnr: incomplete: 12 of 16 tensors; {named} and 1 more missing\n"
    assert not Path("out.npz").exists()
    assert call(capsys, "decode", "some.nnr", "-o", "out.npz", "--allow-missing").code == 0
    with np.load("out.npz") as arrays:
        assert len(arrays) == 12


def test_standard_output_gets_all_or_nothing(bitstream: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    from nnr_cli.main import run

    Path("bad.nnr").write_bytes(damaged(bitstream.read_bytes(), 4))
    for jobs in ("1", "2"):
        assert run(["decode", "bad.nnr", "-o", "-", "-j", jobs]) == 3
        assert capsysbinary.readouterr().out == b""


@pytest.mark.parametrize("target", ["out.nnef", "out.tar", "out.tgz", "out.npz", "out.safetensors"])
def test_threads_make_the_same_file(capsys: Capture, target: str) -> None:
    nnr.encode_file(DIGITS, "digits.nnr")
    contents = []
    for jobs in (1, 3):
        assert call(capsys, "decode", "digits.nnr", "-q", "-fo", target, "-j", jobs).code == 0
        path = Path(target)
        contents.append({p: p.read_bytes() for p in path.rglob("*.*")} if path.is_dir() else path.read_bytes())
    assert contents[0] == contents[1]
