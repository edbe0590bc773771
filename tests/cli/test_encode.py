"""Tests of nnr encode."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr

from .support import CHECK, DIGITS, NAMES, SUMMARY, call, weights

Capture = pytest.CaptureFixture[str]


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Make ``data`` the standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_summary_of_the_example(capsys: Capture) -> None:
    result = call(capsys, "encode", DIGITS, "-o", "digits.nnr")
    assert result.code == 0
    assert result.out == ""
    found = SUMMARY.fullmatch(result.err)
    assert found, result.err
    size = Path("digits.nnr").stat().st_size
    parameters = sum(array.size for array in nnr.load(DIGITS).tensors.values())
    assert found["source"] == str(DIGITS)
    assert found["target"] == "digits.nnr"
    assert found["before"] == f"{4 * parameters:,}"
    assert found["after"] == f"{size:,}"
    assert found["percent"] == f"{100 * size / (4 * parameters):.2f}"
    assert found["bits"] == f"{8 * size / parameters:.2f}"
    loss = nnr.compare_models(nnr.load(DIGITS), nnr.decode("digits.nnr")).loss
    assert found["loss"] == (
        f"matrices {loss.matrices:.1f} dB (worst: {loss.worst} {loss.worst_snr:.1f} dB), "
        f"vectors {loss.vectors:.1f} dB, {100 * loss.zeroed:.2g} % of values became zero"
    )


OPTIONS: list[tuple[list[str], dict[str, Any]]] = [
    ([], {}),
    (["--qp", "-20"], {"qp": -20}),
    (["--qp=-60", "--qp-density", "3"], {"qp": -60, "qp_density": 3}),
    (["--no-dq"], {"dependent_quantization": False}),
    (["--dq"], {"dependent_quantization": True}),
    (["--lossless"], {"exact": True}),
    (["--no-side-info"], {"side_info": False}),
    (["--profile", "0"], {"profile": 0}),
    (["--scan-order", "1", "--row-skipping"], {"scan_order": 1, "row_skipping": True}),
    (["--max-unit-size", "100"], {"max_unit_size": 100}),
    (["--indexed-references"], {"indexed_references": True}),
    (["--layer-parameter-sets"], {"layer_parameter_sets": True}),
    (["--parts", "size:1kB"], {"parts": 1000}),
    (["--effort", "1"], {"effort": 1}),
    (["--effort", "9", "-j", "2"], {"effort": 9}),
    (["--rate", "0"], {"rate": 0}),
    (["--codebook", "5", "--jobs", "3"], {"codebook": 5}),
    (["--rule", "*.weight:codebook=7,rate=0.5"], {"rules": (nnr.Rule("*.weight", codebook=7, rate=0.5),)}),
    (["--rule", "*.weight:qp=-20"], {"rules": (nnr.Rule("*.weight", qp=-20),)}),
    (["--rule", "a.*: dq=No, scan-order=2"], {"rules": (nnr.Rule("a.*", dependent_quantization=False, scan_order=2),)}),
    (
        ["--lossless", "--rule", "*:exact=auto", "--rule", "*.bias:exact=yes"],
        {"exact": True, "rules": (nnr.Rule("*", exact=None), nnr.Rule("*.bias", exact=True))},
    ),
    (
        ["--rule", "*:cabac_unary_length_minus1=3,choose_shift_parameters=false,row-skipping=true"],
        {"rules": (nnr.Rule("*", cabac_unary_length_minus1=3, choose_shift_parameters=False, row_skipping=True),)},
    ),
]


@pytest.mark.parametrize(("arguments", "fields"), OPTIONS, ids=[" ".join(a) or "none" for a, _ in OPTIONS])
def test_options_equal_the_library(npz: Path, capsys: Capture, arguments: list[str], fields: dict[str, Any]) -> None:
    assert call(capsys, "encode", npz, "-o", "x.nnr", *arguments).code == 0
    assert Path("x.nnr").read_bytes() == nnr.encode(npz, **fields)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts", "size:"], "'' is not a size"),
        (["--parts", "size:x"], "'x' is not a size"),
        (["--parts", "size:0"], "--parts must be at least 1 byte, got 0"),
        (["--parts", "size:1kB", "--parts", "layers"], "stand alone"),
        (["--parts", "size:1kB", "--layer-parameter-sets"], "cannot be combined with --layer-parameter-sets"),
    ],
)
def test_parts_that_cannot_be_made(npz: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    result = call(capsys, "encode", npz, "-o", "x.nnr", *arguments)
    assert result.code == 2
    assert message in result.err
    assert not Path("x.nnr").exists()


def test_colons_belong_to_the_pattern(capsys: Capture) -> None:
    np.savez("m.npz", **{"model:0": weights(1), "model:1": weights(2)})
    assert call(capsys, "encode", "m.npz", "-o", "m.nnr", "--rule", "model:0:exact=true").code == 0
    decoded = nnr.decode("m.nnr")
    assert np.array_equal(decoded["model:0"], weights(1))
    assert not np.array_equal(decoded["model:1"], weights(2))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("x", "'x' is not GLOB:KEY=VALUE"),
        (":qp=1", "is not GLOB:KEY=VALUE"),
        ("*:", "'' is not KEY=VALUE"),
        ("*:qp", "'qp' is not KEY=VALUE"),
        ("*:qp=1,", "'' is not KEY=VALUE"),
        ("*:qp=", "qp must be an integer, got ''"),
        ("*:qp=1e3", "qp must be an integer"),
        ("*:qp=true", "qp must be an integer"),
        ("*:exact=5", "exact must be true, false or auto, got '5'"),
        ("*:dq=7", "dependent_quantization must be true, false or auto, got '7'"),
        ("*:rate=x", "rate must be a number, got 'x'"),
        ("*:codebook=-1", "codebook -1 is outside 0..65536"),
        ("*:pattern=3", "unknown key 'pattern'; choose from "),
        ("*:self=3", "unknown key 'self'"),
        ("*:nope=1", "unknown key 'nope'"),
        ("*:qp=-5000", "qp -5000 is outside -504..511"),
        ("*:scan_order=5", "scan_order 5 is outside 0..4"),
    ],
)
def test_wrong_rules(npz: Path, capsys: Capture, rule: str, message: str) -> None:
    result = call(capsys, "encode", npz, "-o", "x.nnr", "--rule", rule)
    assert result.code == 2
    assert message in result.err
    assert not Path("x.nnr").exists()


def test_a_rule_without_tensors_is_reported(npz: Path, capsys: Capture) -> None:
    result = call(capsys, "encode", npz, "-o", "x.nnr", "--rule", "conv*:qp=-20")
    assert result.code == 0
    warning, summary = result.err.splitlines(keepends=True)
    assert warning == "nnr: warning: rule 'conv*' matches no tensor; a name is 'a.bias'\n"
    assert SUMMARY.fullmatch(summary)
    assert call(capsys, "encode", npz, "-fqo", "x.nnr", "--rule", "conv*:qp=-20").err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--qp", "abc"],
        ["--qp", "600"],
        ["--qp-density", "8"],
        ["--profile", "2"],
        ["--scan-order", "5"],
        ["--format", "onnxx"],
        ["--nope"],
        ["extra"],
    ],
)
def test_wrong_options(npz: Path, capsys: Capture, arguments: list[str]) -> None:
    result = call(capsys, "encode", npz, "-o", "x.nnr", *arguments)
    assert result.code == 2
    assert result.err.startswith("Usage: nnr encode")
    assert "\nError: " in result.err
    assert not Path("x.nnr").exists()


@pytest.mark.parametrize("options", [[], ["--qp", "10"], ["--no-dq", "--qp", "-20"]])
def test_check_prints_the_error_and_snr(npz: Path, capsys: Capture, options: list[str]) -> None:
    result = call(capsys, "encode", npz, "-o", "x.nnr", "--check", *options)
    assert result.code == 0
    summary, check = result.err.splitlines(keepends=True)[-2:]
    told = SUMMARY.fullmatch(summary)
    assert told, summary
    found = CHECK.fullmatch(check)
    assert found, check
    assert found["loss"] == told["loss"]
    before, after = nnr.load(npz), nnr.decode("x.nnr")
    errors = {name: before[name].astype("f8") - after[name].reshape(before[name].shape) for name in before}
    worst = {name: np.abs(error).max() for name, error in errors.items()}
    noise = sum((error**2).sum() for error in errors.values())
    signal = sum((before[name].astype("f8") ** 2).sum() for name in before)
    assert found["name"] == max(worst, key=lambda name: float(worst[name]))
    assert float(found["error"]) == pytest.approx(max(worst.values()), rel=0.005)
    assert float(found["snr"]) == pytest.approx(10 * np.log10(signal / noise), abs=0.006)


def test_check_of_exact_values(capsys: Capture) -> None:
    special = np.array([[1, np.nan], [np.inf, -np.inf]], "f4")
    np.savez("m.npz", w=weights(), special=special, i=np.arange(-6, 6, dtype="i2").reshape(3, 4))
    result = call(capsys, "encode", "m.npz", "-o", "m.nnr", "--lossless", "--check")
    assert result.code == 0
    summary, check = result.err.splitlines(keepends=True)
    told = SUMMARY.fullmatch(summary)
    assert told
    assert told["loss"] == "lossless"
    assert check == "check: decodes to the same tensors, bit for bit\n"


def test_check_counts_finite_values_beside_others(capsys: Capture) -> None:
    np.savez("m.npz", w=weights(), special=np.array([[1e3, np.nan], [np.inf, 0]], "f4"))
    result = call(capsys, "encode", "m.npz", "-o", "m.nnr", "--rule", "special:exact=true", "--check")
    found = CHECK.search(result.err)
    assert found, result.err
    noise = ((weights().astype("f8") - nnr.decode("m.nnr")["w"]) ** 2).sum()
    signal = (weights().astype("f8") ** 2).sum() + 1e6
    assert float(found["snr"]) == pytest.approx(10 * np.log10(signal / noise), abs=0.006)


def test_check_of_a_tensor_without_a_name(capsys: Capture) -> None:
    np.savez("m.npz", **{"": weights()})
    found = CHECK.search(call(capsys, "encode", "m.npz", "-o", "m.nnr", "--check").err)
    assert found
    assert found["name"] == ""


def test_values_that_cannot_be_quantized_are_kept(capsys: Capture) -> None:
    np.savez("m.npz", w=np.array([[1, np.nan], [0, 2]], "f4"))
    result = call(capsys, "encode", "m.npz", "-o", "m.nnr", "--check")
    assert result.code == 0
    assert result.err.endswith("check: decodes to the same tensors, bit for bit\n")


def test_verbose_has_a_line_for_each_tensor(npz: Path, capsys: Capture) -> None:
    lines = call(capsys, "encode", npz, "-vo", "x.nnr").err.splitlines()
    units = nnr.inspect("x.nnr")
    for line, unit in zip(lines[:-1], units[2:], strict=True):
        count = int(np.prod(unit.shape))
        name = unit.names[0]
        assert line == f"{name}: {4 * count:,} -> {unit.size:,} bytes, {8 * unit.size / count:.2f} bits/parameter"


def test_quiet_says_nothing(npz: Path, capsys: Capture) -> None:
    assert call(capsys, "encode", npz, "-q", "-v", "--check", "-o", "x.nnr").err == ""
    assert Path("x.nnr").exists()


def test_standard_output(npz: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    from nnr_cli.main import run

    for options in ([], ["--check"]):
        assert run(["encode", str(npz), "-o", "-", *options]) == 0
        captured = capsysbinary.readouterr()
        assert captured.out == nnr.encode(npz)
        assert captured.err.startswith(b"model.npz -> -: ")
        assert (b"check: " in captured.err) == bool(options)


def test_standard_input(npz: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, npz.read_bytes())
    result = call(capsys, "encode", "-", "-o", "x.nnr")
    assert result.code == 0
    assert result.err.startswith("- -> x.nnr: ")
    assert Path("x.nnr").read_bytes() == nnr.encode(npz)


@pytest.mark.parametrize("content", [b"", b"some text\n", b"\x00\x04\x02\x01", b"PK\x03\x04" + bytes(40)])
def test_invalid_models(capsys: Capture, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    Path("x").write_bytes(content)
    result = call(capsys, "encode", "x", "-o", "x.nnr")
    assert result.code == 3
    assert result.err.startswith("nnr: error: x: ")
    assert result.err.count("\n") == 1
    feed(monkeypatch, content)
    result = call(capsys, "encode", "-", "-o", "x.nnr")
    assert result.code == 3
    assert result.err.startswith("nnr: error: the stream: ")
    assert os.listdir() == ["x"]


def test_an_existing_output_is_refused(npz: Path, capsys: Capture) -> None:
    Path("x.nnr").write_text("precious")
    result = call(capsys, "encode", npz, "-o", "x.nnr")
    assert (result.code, result.err) == (5, "nnr: error: x.nnr exists; use -f to replace it\n")
    assert Path("x.nnr").read_text() == "precious"
    assert call(capsys, "encode", npz, "-f", "-o", "x.nnr").code == 0
    assert Path("x.nnr").read_bytes() == nnr.encode(npz)
    assert sorted(os.listdir()) == ["model.npz", "x.nnr"]


def test_an_existing_output_survives_an_error(capsys: Capture) -> None:
    np.savez("m.npz", good=weights(), bad=np.array([[1j, 0], [0, 0]], "c8"))
    Path("x.nnr").write_text("precious")
    assert call(capsys, "encode", "m.npz", "-fo", "x.nnr").code == 3
    assert Path("x.nnr").read_text() == "precious"
    assert sorted(os.listdir()) == ["m.npz", "x.nnr"]


@pytest.mark.parametrize("force", [[], ["-f"]])
def test_places_where_no_file_can_be(npz: Path, capsys: Capture, force: list[str]) -> None:
    Path("folder.nnr").mkdir()
    Path("file").touch()
    for target, message in {
        "folder.nnr": "folder.nnr: Is a directory",
        "no/x.nnr": "the folder 'no' of the output does not exist; create it first",
        "file/x.nnr": "file: Not a directory",
    }.items():
        result = call(capsys, "encode", npz, "-o", target, *force)
        assert (result.code, result.err) == (5, f"nnr: error: {message}\n")
    assert sorted(os.listdir()) == ["file", "folder.nnr", "model.npz"]
    assert os.listdir("folder.nnr") == []


def test_a_folder_that_is_read_only(npz: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root can write to any folder, so the system's error is simulated."""
    Path("folder").mkdir(0o500)
    system_open = os.open

    def refusing(path: str | Path, flags: int, *mode: int) -> int:
        if "folder" in str(path) and flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return system_open(path, flags, *mode)

    monkeypatch.setattr(os, "open", refusing)
    result = call(capsys, "encode", npz, "-o", "folder/x.nnr")
    assert (result.code, result.err) == (5, "nnr: error: folder/x.nnr: Permission denied\n")
    assert os.listdir("folder") == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_device_is_never_replaced(npz: Path, capsys: Capture) -> None:
    result = call(capsys, "encode", npz, "-f", "-o", "/dev/full")
    assert result.code == 5
    assert result.err.startswith("nnr: error: /dev/full")
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("target", ["model.npz", "./model.npz", "link.npz"])
def test_the_input_is_never_replaced(npz: Path, capsys: Capture, target: str) -> None:
    Path("link.npz").symlink_to("model.npz")
    content = npz.read_bytes()
    result = call(capsys, "encode", npz, "-f", "-o", target)
    assert (result.code, result.err) == (5, f"nnr: error: {target} is an input; write to another name\n")
    assert npz.read_bytes() == content


def test_a_link_to_nothing_is_replaced(npz: Path, capsys: Capture) -> None:
    Path("x.nnr").symlink_to("nowhere")
    result = call(capsys, "encode", npz, "-o", "x.nnr")
    assert (result.code, result.err) == (5, "nnr: error: x.nnr exists; use -f to replace it\n")
    assert call(capsys, "encode", npz, "-fo", "x.nnr").code == 0
    assert list(nnr.decode("x.nnr")) == list(nnr.load(npz))


def test_missing_model(capsys: Capture) -> None:
    for name, printed in {"no.npz": "no.npz", "\x1b[31m": r"\x1b[31m"}.items():
        result = call(capsys, "encode", name, "-o", "x.nnr")
        assert (result.code, result.err) == (5, f"nnr: error: {printed}: No such file or directory\n")
    assert os.listdir() == []


@pytest.mark.parametrize("arguments", [["", "-o", "x.nnr"], ["model.npz", "-o", ""], ["-o", "x.nnr"]])
def test_missing_names(npz: Path, capsys: Capture, arguments: list[str]) -> None:
    assert call(capsys, "encode", *arguments).code == 2


def test_names_are_escaped(capsys: Capture) -> None:
    model = {name: weights(k, (4, 5)) for k, name in enumerate(NAMES)}
    nnr.save(model, "m.npz")
    result = call(capsys, "encode", "m.npz", "-vo", "m.nnr")
    assert result.code == 0
    lines = result.err.removesuffix("\n").split("\n")
    assert [line.split(": 80 -> ")[0] for line in lines[:-1]] == list(NAMES.values())
    assert list(nnr.decode("m.nnr")) == list(NAMES)
    assert call(capsys, "encode", "m.npz", "-fo", "[bold]\n.nnr").err.startswith("m.npz -> [bold]\\n.nnr: 1,040 -> ")


def test_a_model_without_tensors(capsys: Capture) -> None:
    Path("m.nnef").mkdir()
    Path("m.nnef/graph.nnef").write_text(
        "version 1.0;\ngraph g( x ) -> ( y )\n{\n    x = external<scalar>(shape = [1]);\n    y = relu(x);\n}\n"
    )
    result = call(capsys, "encode", "m.nnef", "-o", "m.nnr", "--check")
    assert result.code == 0
    assert "nan" not in result.err
    assert "check: decodes to the same tensors, bit for bit" in result.err
    assert json.loads(call(capsys, "ls", "m.nnr", "--json").out) == []
    assert call(capsys, "ls", "m.nnr").out.splitlines()[-1] == "0 tensors, 0 parameters, 0 bytes"


def test_units_are_no_larger_than_asked(npz: Path, capsys: Capture) -> None:
    assert call(capsys, "encode", npz, "-o", "x.nnr", "--max-unit-size", "64").code == 0
    assert 60 < max(unit.size for unit in nnr.inspect("x.nnr")) <= 64
    result = call(capsys, "encode", npz, "-o", "y.nnr", "--max-unit-size", "14")
    assert result.code == 3
    assert "255 units of max_unit_size=14 can hold" in result.err
    assert not Path("y.nnr").exists()
    assert call(capsys, "encode", npz, "-o", "y.nnr", "--max-unit-size", "0").code == 2


def test_files_that_the_bitstream_cannot_carry(capsys: Capture) -> None:
    shutil.copytree(DIGITS, "m.nnef")
    assert call(capsys, "encode", "m.nnef", "--strict", "-qo", "fine.nnr").code == 0
    Path("m.nnef/vendor.txt").touch()
    result = call(capsys, "encode", "m.nnef", "-o", "m.nnr")
    assert result.code == 0
    assert result.err.startswith("nnr: warning: files that do not belong to the model are left out: 'vendor.txt'\n")
    assert Path("m.nnr").read_bytes() == Path("fine.nnr").read_bytes()
    result = call(capsys, "encode", "m.nnef", "--strict", "-o", "strict.nnr")
    assert result.code == 3
    assert result.err.endswith("files do not belong to the model and would be lost: 'vendor.txt'\n")
    assert not Path("strict.nnr").exists()


def test_the_graph_of_a_folder_and_the_graph_alone(capsys: Capture) -> None:
    assert call(capsys, "encode", DIGITS, "-qo", "folder.nnr").code == 0
    assert call(capsys, "encode", DIGITS / "graph.nnef", "-qo", "graph.nnr").code == 0
    assert Path("folder.nnr").read_bytes() == Path("graph.nnr").read_bytes()
    shutil.copy(DIGITS / "graph.nnef", "graph.nnef")
    for dry in ([], ["--dry-run"]):
        result = call(capsys, "encode", "graph.nnef", "-o", "alone.nnr", *dry)
        assert result.code == 3
        assert "that also has the tensor files (16 missing)" in result.err
    assert not Path("alone.nnr").exists()
