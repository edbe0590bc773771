"""Tests of nnr ls, and of its common features with nnr inspect."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

import nnr_codec as nnr

from .support import DIGITS, NAMES, call, damaged, weights

Capture = pytest.CaptureFixture[str]


def test_ls(bitstream: Path, capsys: Capture) -> None:
    result = call(capsys, "ls", bitstream)
    assert (result.code, result.err) == (0, "")
    heading, *rows, total = result.out.splitlines()
    assert heading.split() == ["name", "shape", "type", "coded", "tools", "bytes", "bits/par"]
    units = nnr.inspect(bitstream)[2:]
    for row, unit in zip(rows, units, strict=True):
        count = len(weights().reshape(-1)) if len(unit.shape) == 2 else 24
        size, bits = row.split()[-2:]
        assert row.split()[:4] == [unit.names[0], "x".join(map(str, unit.shape)), "float32", "float"]
        assert int(size.replace(",", "")) == unit.size
        assert float(bits) == pytest.approx(8 * unit.size / count, abs=0.006)
    nbytes = sum(unit.size for unit in units)
    assert total == f"3 tensors, 1,464 parameters, {nbytes:,} bytes, {8 * nbytes / 1464:.2f} bits/parameter"


def test_ls_as_json(bitstream: Path, capsys: Capture) -> None:
    rows = json.loads(call(capsys, "ls", "--json", bitstream).out)
    units = nnr.inspect(bitstream)
    assert rows[0] == {
        "name": "a.weight",
        "shape": [24, 30],
        "dtype": "float32",
        "payload_type": "NNR_PT_FLOAT",
        "code": None,
        "same_as": None,
        "tools": ["dq"],
        "bytes": units[2].size,
        "bits_per_parameter": round(8 * units[2].size / 720, 4),
    }
    assert [row["name"] for row in rows] == ["a.weight", "a.bias", "b.weight"]


def test_inspect(capsys: Capture) -> None:
    nnr.encode_file(DIGITS, "digits.nnr")
    result = call(capsys, "inspect", "digits.nnr")
    assert (result.code, result.err) == (0, "")
    heading, *rows = result.out.splitlines()
    assert heading.split() == ["unit", "offset", "size", "type", "name", "shape", "detail", "bits/par"]
    units = nnr.inspect("digits.nnr")
    assert len(rows) == len(units) == 19
    offset = 0
    for row, unit in zip(rows, units, strict=True):
        assert row.split()[:4] == [str(unit.index), str(offset), str(unit.size), unit.type]
        offset += unit.size
    assert offset == Path("digits.nnr").stat().st_size
    assert rows[0].split()[3:] == ["NNR_STR", "profile", "1"]
    assert rows[3].split()[3:7] == ["NNR_NDU", "conv1/weight", "16x1x3x3", "dq"]
    assert max(map(len, (heading, *rows))) <= 100


def test_inspect_as_json(bitstream: Path, capsys: Capture) -> None:
    rows = json.loads(call(capsys, "inspect", "--json", bitstream).out)
    assert [row["type"] for row in rows] == ["NNR_STR", "NNR_MPS", "NNR_NDU", "NNR_NDU", "NNR_NDU"]
    assert rows[3]["names"] == ["a.bias"]
    assert rows[3]["bits_per_parameter"] == pytest.approx(8 * rows[3]["size"] / 24)
    assert rows[0]["bits_per_parameter"] is None
    assert sum(row["size"] for row in rows) == bitstream.stat().st_size


@pytest.mark.parametrize("command", ["ls", "inspect"])
def test_payloads_are_not_decoded(bitstream: Path, capsys: Capture, command: str) -> None:
    before = call(capsys, command, bitstream).out
    data = bitstream.read_bytes()
    for unit in (2, 3, 4):
        data = damaged(data, unit)
    bitstream.write_bytes(data)
    assert call(capsys, command, bitstream).out == before
    assert call(capsys, "decode", bitstream, "-o", "x.npz").code == 3


@pytest.mark.parametrize("command", ["ls", "inspect"])
def test_standard_input(bitstream: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    expected = call(capsys, command, bitstream).out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bitstream.read_bytes())))
    assert call(capsys, command, "-").out == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\x00")))
    result = call(capsys, command, "-")
    assert result.code == 3
    assert result.err.startswith("nnr: error: standard input: ")


@pytest.mark.parametrize("command", ["ls", "inspect"])
def test_names_are_escaped_and_are_no_markup(capsys: Capture, command: str) -> None:
    nnr.encode_file({name: weights(k, (4, 5)) for k, name in enumerate(NAMES)}, "m.nnr")
    out = call(capsys, command, "m.nnr").out
    assert all(c.isprintable() or c == "\n" for c in out)
    lines = out.splitlines()
    rows = lines[1:-1] if command == "ls" else lines[3:]
    for row, printed in zip(rows, NAMES.values(), strict=True):
        assert row.startswith(printed + "  ") if command == "ls" else f"NNR_NDU  {printed}  " in row
    as_json = json.loads(call(capsys, command, "--json", "m.nnr").out)
    key = "name" if command == "ls" else "names"
    assert [row[key] if command == "ls" else row[key][0] for row in as_json if row[key]] == list(NAMES)


def test_colour_only_when_wanted(bitstream: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = call(capsys, "ls", bitstream).out
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert call(capsys, "ls", bitstream).out.startswith("\x1b[1mname")
    monkeypatch.setenv("NO_COLOR", "1")
    assert call(capsys, "ls", bitstream).out == plain


def test_one_tensor(capsys: Capture) -> None:
    nnr.encode_file({"w": weights()}, "m.nnr")
    assert call(capsys, "ls", "m.nnr").out.splitlines()[-1].startswith("1 tensor, 720 parameters, ")


def test_many_tensors(capsys: Capture) -> None:
    nnr.encode_file({f"layer{k}": weights(k, (2, 2)) for k in range(500)}, "m.nnr")
    assert len(call(capsys, "ls", "m.nnr").out.splitlines()) == 502
    assert len(call(capsys, "inspect", "m.nnr").out.splitlines()) == 503


@pytest.mark.parametrize("command", ["ls", "inspect"])
def test_usage(bitstream: Path, capsys: Capture, command: str) -> None:
    for arguments in ([], [""], [bitstream, "extra"], [bitstream, "--nope"]):
        result = call(capsys, command, *arguments)
        assert result.code == 2
        assert result.err.startswith(f"Usage: nnr {command}")
    assert sorted(os.listdir()) == ["model.nnr", "model.npz"]
