"""Tests of ``--limit``: presets and single limits by name."""

from __future__ import annotations

from pathlib import Path

import pytest

import nnr_codec as nnr
from nnr_codec.limits import Limits

from .support import call

Capture = pytest.CaptureFixture[str]


def decode(capsys: Capture, bitstream: Path, *limits: str) -> tuple[int, str]:
    """Return exit code and standard error."""
    options = [word for limit in limits for word in ("--limit", limit)]
    result = call(capsys, "decode", bitstream, "-o", "out.npz", "-f", "-q", *options)
    return result.code, result.err


@pytest.mark.parametrize(
    "limits", [(), ("strict",), ("default",), ("unlimited",), ("max_units=5",), ("max_units=0x5",)]
)
def test_within_the_limits(capsys: Capture, bitstream: Path, limits: tuple[str, ...]) -> None:
    assert decode(capsys, bitstream, *limits) == (0, "")


def test_a_limit_that_is_exceeded_is_named(capsys: Capture, bitstream: Path) -> None:
    code, err = decode(capsys, bitstream, "max_units=4")
    assert code == 3
    assert "max_units=4" in err
    assert not Path("out.npz").exists()


@pytest.mark.parametrize("name", Limits.names())
def test_every_limit_has_its_name(capsys: Capture, bitstream: Path, name: str) -> None:
    assert decode(capsys, bitstream, f"{name}={getattr(Limits(), name)}") == (0, "")
    assert decode(capsys, bitstream, f" {name} = {getattr(Limits(), name)} ") == (0, "")


def test_the_later_wins(capsys: Capture, bitstream: Path) -> None:
    assert decode(capsys, bitstream, "strict", "max_units=4")[0] == 3
    assert decode(capsys, bitstream, "max_units=4", "max_units=5")[0] == 0
    assert decode(capsys, bitstream, "max_units=4", "unlimited")[0] == 0


def test_another_bitstream_after_the_first(capsys: Capture, bitstream: Path) -> None:
    bitstream.write_bytes(2 * bitstream.read_bytes())
    code, err = decode(capsys, bitstream)
    assert code == 3
    assert "second NNR_STR" in err
    for yes in ("true", "yes", "TRUE"):
        assert decode(capsys, bitstream, f"allow_trailing={yes}") == (0, "")
    assert decode(capsys, bitstream, "allow_trailing=false")[0] == 3


@pytest.mark.parametrize(
    "text",
    ["", "=", "none", "max_units", "max_units=", "max_units=many", "max_units=1.5", "max_dims=33", "allow_trailing=5",
     "expected=1", "NONE=1", "check=1", "__class__=1", "max_units=1=2"],
)  # fmt: skip
def test_invalid_limits(capsys: Capture, bitstream: Path, text: str) -> None:
    code, err = decode(capsys, bitstream, text)
    assert code == 2
    assert "--limit" in err


@pytest.mark.parametrize("command", ["inspect", "verify", "diff"])
def test_other_commands(capsys: Capture, bitstream: Path, command: str) -> None:
    files = [bitstream, bitstream] if command == "diff" else [bitstream]
    assert call(capsys, command, *files, "--limit", "strict").code == 0
    result = call(capsys, command, *files, "--limit", "max_units=4")
    assert result.code != 0
    assert "max_units=4" in result.out + result.err


def test_commands_that_write(capsys: Capture, bitstream: Path, npz: Path) -> None:
    for arguments, limit in (
        (("extract", bitstream, "--unit", 0), "max_units=0"),
        (("encode", npz), "max_archive_bytes=9"),
    ):
        result = call(capsys, *arguments, "-o", "out.nnr", "--limit", limit)
        assert (result.code, limit in result.err) == (3, True)
        assert not Path("out.nnr").exists()


def test_the_presets_are_ordered() -> None:
    """No limit of strict() exceeds the default, and no default exceeds unlimited()."""
    for name in Limits.names():
        strict, default, unlimited = (
            getattr(limits, name) for limits in (Limits.strict(), Limits(), Limits.unlimited())
        )
        assert strict <= default <= unlimited, name
    assert nnr.Limits is Limits
