"""Tests of nnr diff."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import nnr_codec as nnr

from .support import DIGITS, NAMES, call, weights

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def other(npz: Path) -> Path:
    """Write ``other.nnr``, a coarser encoding of model.npz."""
    nnr.encode_file(npz, "other.nnr", qp=-20)
    return Path("other.nnr")


def test_the_same(bitstream: Path, npz: Path, capsys: Capture) -> None:
    result = call(capsys, "diff", bitstream, bitstream)
    assert (result.code, result.out, result.err) == (0, "the bitstreams are identical\n", "")
    result = call(capsys, "diff", npz, npz)
    assert (result.code, result.out) == (0, "0 of 3 tensors differ in values\n")
    assert json.loads(call(capsys, "diff", "--json", bitstream, bitstream).out) == {"same": True}


def test_bitstreams(bitstream: Path, other: Path, capsys: Capture) -> None:
    result = call(capsys, "diff", bitstream, other)
    assert (result.code, result.err) == (1, "")
    a, b, value = result.out.splitlines()
    place = nnr.diff(bitstream, other)
    assert place
    assert place.values
    assert place.places[0].element == "payload"
    assert a.startswith(f"model.nnr: byte 12: unit 2 (NNR_NDU), bit {place.places[0].bit}, payload: ")
    assert b.startswith("other.nnr: byte 12: unit 2 (NNR_NDU), bit ")
    assert value.startswith(f"'a.weight'[0, 0]: {place.values.expected} and {place.values.got}; ")
    facts = json.loads(call(capsys, "diff", "--json", bitstream, other).out)
    assert facts["same"] is False
    assert facts["tensor"] == "a.weight"
    assert facts["places"][1]["offset"] == 12
    assert facts["values"]["first"] == [0, 0]


def test_an_element(npz: Path, bitstream: Path, capsys: Capture) -> None:
    nnr.encode_file(npz, "dq.nnr", dependent_quantization=False)
    result = call(capsys, "diff", bitstream, "dq.nnr")
    assert result.code == 1
    assert result.out.splitlines()[0].endswith("nnr_compressed_data_unit_header.dq_flag: 1")
    assert result.out.splitlines()[1].endswith("nnr_compressed_data_unit_header.dq_flag: 0")


def test_the_end(bitstream: Path, capsys: Capture) -> None:
    units = nnr.inspect(bitstream)
    Path("short.nnr").write_bytes(bitstream.read_bytes()[: units[-1].offset])
    result = call(capsys, "diff", bitstream, "short.nnr")
    assert (result.code, result.out.splitlines()[1]) == (1, "short.nnr: ends here")


@pytest.mark.parametrize("names", [("model.npz", "other.nnr"), ("model.nnr", "model.npz")])
def test_a_model_and_a_bitstream(bitstream: Path, other: Path, capsys: Capture, names: tuple[str, str]) -> None:
    result = call(capsys, "diff", *names)
    assert result.code == 1
    heading, *rows, last = result.out.splitlines()
    assert heading.split() == ["name", "differ", "largest", "rms", "SNR", "dB"]
    models = [nnr.decode(name) if name.endswith("nnr") else nnr.load(name) for name in names]
    found = nnr.compare_models(*models)
    for row in rows:
        name, count, largest, rms, snr = row.split()
        one = found.tensors[name]
        assert (int(count), float(largest)) == (one.count, pytest.approx(one.largest, rel=0.01))
        assert (float(rms), float(snr)) == (pytest.approx(one.rms, rel=0.01), pytest.approx(one.snr, abs=0.01))
    assert last == (
        f"{len(rows)} of 3 tensors differ in values: largest error {found.tensors[found.worst].largest:.3g} "
        f"(in {found.worst!r}), SNR {found.snr:.2f} dB"
    )


def test_decoded_and_tolerance(bitstream: Path, other: Path, capsys: Capture) -> None:
    result = call(capsys, "diff", bitstream, other, "--decoded")
    assert result.code == 1
    assert result.out.splitlines()[0].startswith("name ")
    largest = json.loads(call(capsys, "diff", bitstream, other, "--decoded", "--json").out)
    worst = max(one["largest"] for one in largest["tensors"].values())
    assert call(capsys, "diff", bitstream, other, "--tolerance", worst * 1.001).code == 0
    assert call(capsys, "diff", bitstream, other, "--tolerance", worst * 0.999).code == 1


def test_everything_that_may_differ(capsys: Capture) -> None:
    w = weights(1, (2, 3))
    np.savez("a.npz", **{"same": w, "type": w, "shape": w, "gone": w, "\x1b[1m": w})
    np.savez("b.npz", **{"same": w, "type": w.astype("f8"), "shape": w.T, "new": w, "\x1b[1m": w})
    result = call(capsys, "diff", "a.npz", "b.npz")
    assert result.code == 1
    assert "\x1b" not in result.out
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[1:5] == [
        ["type", "float32", "/", "float64", "0", "0", "0", "inf"],
        ["shape", "2x3", "/", "3x2"],
        ["only", "in", "a.npz:", "gone"],
        ["only", "in", "b.npz:", "new"],
    ]
    assert "same" not in result.out
    assert any(line.startswith("same ") for line in call(capsys, "diff", "-v", "a.npz", "b.npz").out.splitlines())
    facts = json.loads(call(capsys, "diff", "--json", "a.npz", "b.npz").out)
    assert (facts["missing"], facts["extra"], facts["shapes"]) == (["gone"], ["new"], {"shape": [[2, 3], [3, 2]]})
    np.savez("c.npz", **{"same": w, "type": w.astype("f8")})
    np.savez("d.npz", **{"same": w, "type": w})
    assert [call(capsys, "diff", "c.npz", "d.npz", *more).code for more in ([], ["--tolerance", 0])] == [1, 0]


def test_json_has_no_infinity(capsys: Capture) -> None:
    np.savez("a.npz", w=np.array([np.nan, np.inf], "f4"), c=np.array([1j]))
    np.savez("b.npz", w=np.array([1, 2], "f4"), c=np.array([1.0 + 0j]))
    text = call(capsys, "diff", "--json", "a.npz", "b.npz").out
    assert json.loads(text, parse_constant=pytest.fail)["tensors"]["w"]["largest"] is None


def test_standard_input(
    bitstream: Path, npz: Path, other: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (bitstream, npz):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(name.read_bytes())))
        assert call(capsys, "diff", name, "-").code == 0
    result = call(capsys, "diff", "-", "-")
    assert result.code == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_read_once(bitstream: Path, npz: Path, capsys: Capture) -> None:
    """A shell creates such a pipe for <(command)."""
    os.mkfifo("pipe")
    for name in (bitstream, npz):
        writer = Thread(target=Path("pipe").write_bytes, args=(name.read_bytes(),))
        writer.start()
        assert call(capsys, "diff", "pipe", name).code == 0
        writer.join()


def test_bad_input(bitstream: Path, npz: Path, capsys: Capture) -> None:
    Path("short.nnr").write_bytes(bitstream.read_bytes()[:-2])
    Path("zip.npz").write_bytes(npz.read_bytes()[:-40])
    Path("empty").touch()
    for arguments, code, what in (
        ((bitstream, "short.nnr"), 3, "the second: unit 4 (NNR_NDU)"),
        (("short.nnr", npz), 3, "short.nnr: unit 4 (NNR_NDU)"),
        ((npz, "zip.npz"), 3, "zip.npz: "),
        ((npz, "empty"), 3, "empty: "),
        ((npz, "none"), 5, "none: "),
        ((npz, "."), 3, ".: the folder has 2 model files: "),
        ((bitstream, bitstream, "--limit", "max_units=1"), 3, "the first: "),
    ):
        result = call(capsys, "diff", *arguments)
        assert (result.code, result.out) == (code, ""), arguments
        assert result.err.startswith(f"nnr: error: {what}"), result.err
        assert result.err.count("\n") == 1


def test_usage(npz: Path, capsys: Capture) -> None:
    for arguments in (
        [],
        [npz],
        [npz, npz, npz],
        [npz, npz, "--tolerance", -1],
        [npz, npz, "--tolerance", "x"],
        [npz, "-", "--run", "-"],
    ):
        result = call(capsys, "diff", *arguments)
        assert (result.code, result.err[:15]) == (2, "Usage: nnr diff")


def test_names_are_escaped(capsys: Capture) -> None:
    model = {name: weights(k, (40, 50)) for k, name in enumerate(NAMES)}
    nnr.encode_file(model, "a.nnr")
    nnr.encode_file(model, "b.nnr", qp=-20)
    for options in ([], ["--decoded"]):
        out = call(capsys, "diff", "a.nnr", "b.nnr", *options).out
        assert all(c.isprintable() or c == "\n" for c in out)


@pytest.mark.clients
class TestRun:
    """Tests of ``--run`` with the engine."""

    @pytest.fixture(autouse=True)
    def engine(self) -> None:
        pytest.importorskip("tract", reason="the package tract (extra 'clients') is not installed")

    @pytest.fixture
    def images(self, here: Path) -> Path:
        with np.load(DIGITS.with_name("test.npz")) as test:
            np.savez("images.npz", x=test["images"][:40])
        return Path("images.npz")

    @pytest.mark.medium
    def test_agreement(self, images: Path, capsys: Capture) -> None:
        nnr.encode_file(DIGITS, "m.nnr")
        result = call(capsys, "diff", DIGITS, "m.nnr", "--run", images, "--tolerance", 0.01)
        assert result.code == 0
        last = result.out.splitlines()[-1]
        assert last.startswith("output ")
        assert "top-1 agreement 100.00 % of 40, cosine 0.9999" in last or "cosine 1.000000" in last
        nnr.save(nnr.Model(nnr.decode("m.nnr").tensors), "m.npz")
        facts = json.loads(call(capsys, "diff", DIGITS, "m.npz", "--run", images, "--json").out)
        ((_, agreement),) = facts["outputs"].items()
        assert (agreement["samples"], agreement["top_1"]) == (40, 1.0)

    def test_inputs_that_do_not_fit(self, images: Path, capsys: Capture) -> None:
        np.savez("flat.npz", x=np.zeros((4, 3), "f4"))
        result = call(capsys, "diff", DIGITS, DIGITS, "--run", "flat.npz")
        assert result.code == 3
        assert "has shape (4, 3)" in result.err
        assert call(capsys, "diff", DIGITS, DIGITS, "--run", "none.npz").code == 5
        assert call(capsys, "diff", images, images, "--run", images).code == 4

    @pytest.mark.medium
    def test_what_cannot_be_compared(self, images: Path, capsys: Capture) -> None:
        """The message names the model that does not run, without internals of the engine."""
        model = nnr.load(DIGITS)
        assert model.topology
        for old, new, what in (
            (b"scores", b"answers", "the outputs are scores and answers"),
            (b"relu(", b"no_such(", "ren.nnef: tract cannot run the model: "),
        ):
            text = model.topology.data.replace(old, new)
            nnr.save(replace(model, topology=replace(model.topology, data=text)), "ren.nnef", overwrite=True)
            result = call(capsys, "diff", DIGITS, "ren.nnef", "--run", images)
            assert (result.code, result.out) == (3, "")
            assert result.err.startswith(f"nnr: error: {what}")
            assert "backtrace" not in result.err


def test_run_without_the_engine(npz: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = call(capsys, "diff", DIGITS, DIGITS, "--run", npz)
    assert (result.code, result.out) == (5, "")
    assert result.err.count("\n") == 1
    assert result.err.endswith("running NNEF models requires the package tract; pip install tract\n")
