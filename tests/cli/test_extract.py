"""Tests of nnr extract."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from nnr_cli.main import run

import nnr_codec as nnr
from nnr_codec.constants import NNR_AGG_SLF, NNR_PT_INT

from ..builder import Bitstream, aggregate, ndu
from .support import call

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def whole(here: Path) -> Path:
    """Return a bitstream in which unit 3 is a self-contained aggregate of b and c, unit 6 a generic one of d and e."""
    s = Bitstream().str_().mps()
    for k, name in enumerate("abcde"):
        s.ndu(ndu(name, [2], kind=NNR_PT_INT), [k, -k])
    s.units[3:] = [aggregate(s.units[3:5], kind=NNR_AGG_SLF), aggregate(s.units[5:])]
    (here / "whole.nnr").write_bytes(s.data)
    return Path("whole.nnr")


def test_a_part_decodes_alone(whole: Path, capsys: Capture) -> None:
    result = call(capsys, "extract", whole, "--unit", 3, "-o", "part.nnr")
    size = Path("part.nnr").stat().st_size
    assert (result.code, result.out) == (0, "")
    assert result.err == f"whole.nnr -> part.nnr: unit 3, {size} bytes\n"
    model = nnr.decode("part.nnr")
    assert {name: model[name].tolist() for name in model} == {"b": [1, -1], "c": [2, -2]}


def test_quiet(whole: Path, capsys: Capture) -> None:
    result = call(capsys, "extract", "-q", whole, "--unit", 3, "-o", "part.nnr")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_generic_units_on_request(whole: Path, capsys: Capture) -> None:
    result = call(capsys, "extract", whole, "--unit", 6, "-o", "part.nnr")
    assert result.code == 4
    assert "whole.nnr: unit 6 (NNR_AGG) is not marked as self-contained" in result.err
    assert not Path("part.nnr").exists()
    assert call(capsys, "extract", whole, "--unit", 6, "-o", "part.nnr", "--generic").code == 0
    assert list(nnr.decode("part.nnr")) == ["d", "e"]


@pytest.mark.parametrize(("unit", "code"), [(0, 4), (2, 4), (9, 3)])
def test_what_cannot_be_extracted(whole: Path, capsys: Capture, unit: int, code: int) -> None:
    result = call(capsys, "extract", whole, "--unit", unit, "-o", "part.nnr")
    assert result.code == code
    assert result.err.startswith("nnr: error: whole.nnr: ")
    assert not Path("part.nnr").exists()


def test_tensors_decode_alone(whole: Path, capsys: Capture) -> None:
    result = call(capsys, "extract", whole, "--name", "[bd]", "--name", "e", "-o", "part.nnr")
    assert result.err == f"whole.nnr -> part.nnr: 3 tensors, {Path('part.nnr').stat().st_size} bytes\n"
    model = nnr.decode("part.nnr")
    assert {name: model[name].tolist() for name in model} == {"b": [1, -1], "d": [3, -3], "e": [4, -4]}


def test_a_glob_without_a_match(whole: Path, capsys: Capture) -> None:
    result = call(capsys, "extract", whole, "--name", "a", "--name", "x*", "-o", "part.nnr")
    assert (result.code, Path("part.nnr").exists()) == (2, False)
    assert "--name 'x*' matches no tensor" in result.err


@pytest.mark.parametrize(
    "arguments",
    [[], ["--unit", "-1"], ["--unit", "x"], ["--unit", "3", "--name", "b"], ["--name", "b", "--generic"]],
)
def test_usage(whole: Path, capsys: Capture, arguments: list[str]) -> None:
    assert call(capsys, "extract", whole, "-o", "part.nnr", *arguments).code == 2
    assert call(capsys, "extract", whole, "--unit", 3).code == 2


def test_an_output_is_replaced_by_force(whole: Path, capsys: Capture) -> None:
    Path("part.nnr").write_bytes(b"old")
    result = call(capsys, "extract", whole, "--unit", 3, "-o", "part.nnr")
    assert result.code == 5
    assert Path("part.nnr").read_bytes() == b"old"
    assert call(capsys, "extract", "-f", whole, "--unit", 3, "-o", "part.nnr").code == 0
    assert call(capsys, "extract", "-f", whole, "--unit", 3, "-o", whole).code == 5


def test_standard_streams(
    whole: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(whole.read_bytes())))
    assert run(["extract", "-", "--unit", "3", "-o", "-"]) == 0
    assert capsysbinary.readouterr().out == nnr.extract(whole, 3)
