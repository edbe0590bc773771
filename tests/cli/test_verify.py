"""Tests of ``nnr verify``: lines, JSON, exit codes, digests."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_RAW_FLOAT

from ..builder import ndu
from ..conformance.violations import base, raw, start, update
from ..formats import ir_operations as irs
from ..formats.onnx_files import model as onnx_model
from ..formats.onnx_files import tensor as onnx_tensor
from ..formats.support import minimal, regular, tar_bytes, tree, write_folder
from .support import call


@pytest.fixture
def fine(tmp_path: Path) -> Path:
    """Write a bitstream without violations."""
    path = tmp_path / "fine.nnr"
    path.write_bytes(raw(raw(start(), "a"), "b", [2, 3]).data)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """Write a bitstream with a violation, and a name with control characters."""
    path = tmp_path / "bad.nnr"
    path.write_bytes(raw(raw(start(nnr_reserved_zero_2bits=1), "\x1b[31m"), "\x1b[31m").add(b"\x00\x03\x82").data)
    return path


def test_fine(capsys: pytest.CaptureFixture[str], fine: Path) -> None:
    result = call(capsys, "verify", fine)
    assert (result.code, result.out, result.err) == (0, "1 bitstream, 0 violations, 0 warnings\n", "")


def test_violations(capsys: pytest.CaptureFixture[str], fine: Path, bad: Path) -> None:
    result = call(capsys, "verify", bad, fine)
    assert (result.code, result.err) == (1, "")
    assert result.out.splitlines() == [
        f"{bad}: unit 1 (NNR_MPS), bit 38, nnr_reserved_zero_2bits: nnr_reserved_zero_2bits is 1 "
        "(reserved-zero, 6.1.4)",
        f"{bad}: unit 3 (NNR_NDU '\\x1b[31m'): '\\x1b[31m' occurs twice; topology element ids must be unique "
        "(unique-ids, 6.2.3)",
        f"{bad}: note: unit 4 (NNR_UNSP) is ignored: its type 32 is unspecified",
        "2 bitstreams, 2 violations, 0 warnings",
    ]


def test_warnings_are_no_violations(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "w.nnr"
    path.write_bytes(start(topology_carriage_flag=1).data)
    result = call(capsys, "verify", path)
    assert result.code == 0
    assert result.out.startswith(f"{path}: warning: unit 1 (NNR_MPS), bit 24, topology_carriage_flag: ")
    assert result.out.endswith("1 bitstream, 0 violations, 1 warning\n")


def test_json(capsys: pytest.CaptureFixture[str], fine: Path, bad: Path) -> None:
    result = call(capsys, "verify", "--json", fine, bad)
    assert result.code == 1
    one, two = json.loads(result.out)
    assert one["file"] == str(fine)
    assert one["violations"] == one["warnings"] == one["notes"] == one["differences"] == []
    assert [tensor["name"] for tensor in one["tensors"]] == ["a", "b"]
    assert [violation["requirement"] for violation in two["violations"]] == ["reserved-zero", "unique-ids"]
    assert two["violations"][0]["bit"] == 38


def test_inputs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("0", "1", "2")]
    for path, data in zip(paths, (base(), update(1), update(2)), strict=True):
        path.write_bytes(data)
    assert call(capsys, "verify", paths[2], "-i", paths[0], "-i", paths[1]).code == 0
    alone = call(capsys, "verify", paths[2])
    assert alone.code == 1 and "(required-information, 7.1)" in alone.out


def test_digests(capsys: pytest.CaptureFixture[str], tmp_path: Path, fine: Path) -> None:
    printed = call(capsys, "verify", "--digest", fine)
    assert printed.code == 0 and printed.err == "1 bitstream, 0 violations, 0 warnings\n"
    manifest = tmp_path / "digests"
    manifest.write_text(printed.out, "utf-8")
    assert call(capsys, "verify", fine, "--against", manifest).code == 0
    other = tmp_path / "other.nnr"
    s = raw(start(), "a", [2]).raw(ndu("b", [2, 3], kind=NNR_PT_RAW_FLOAT), [1.0] * 6)
    other.write_bytes(raw(s, "c").data)
    result = call(capsys, "verify", other, "--against", manifest)
    assert result.code == 1
    assert result.out.splitlines()[:-1] == [
        f"{other}: tensor 'c' is not expected",
        f"{other}: tensor 'a' has shape (2,), not (1,)",
        f"{other}: tensor 'b' has other values",
    ]
    one = tmp_path / "one.nnr"
    one.write_bytes(raw(start(), "a").data)
    assert "tensor 'b' is missing" in call(capsys, "verify", one, "--against", manifest).out
    parsed = json.loads(call(capsys, "verify", "--json", one, "--against", manifest).out)
    assert parsed[0]["differences"] == ["tensor 'b' is missing"]


def test_limits(capsys: pytest.CaptureFixture[str], fine: Path) -> None:
    result = call(capsys, "verify", "--limit", "max_tensor_elements=5", fine)
    assert result.code == 1 and result.out.count("(limits)") == 1


@pytest.mark.parametrize("options", [["--digest", "--json"], ["--digest", "other"], ["--against", "m", "other"]])
def test_usage(capsys: pytest.CaptureFixture[str], fine: Path, options: list[str]) -> None:
    assert call(capsys, "verify", fine, *options).code == 2


def test_files_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path, fine: Path) -> None:
    assert call(capsys, "verify", tmp_path / "none").code == 5
    assert call(capsys, "verify", fine, "--against", tmp_path / "none").code == 5
    (tmp_path / "m").write_text("{}", "utf-8")
    result = call(capsys, "verify", fine, "--against", tmp_path / "m")
    assert (result.code, result.err) == (
        3,
        f"nnr: error: {tmp_path / 'm'}: not a manifest: it has no list of tensors\n",
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write an NNEF model that breaks a rule, with a file without variable, and a label with control characters."""
    files = {**minimal(), "\x1b[31m": b""}
    files["graph.nnef"] = files["graph.nnef"].replace(b"y = copy(x)", b"y = copy(q)")
    return write_folder(tmp_path / "model.nnef", files)


_FOUND = "graph.nnef:6:14: 'q' is used before it is assigned (use-before-assignment, NNEF 3.3.2)"


def test_models(capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path, fine: Path) -> None:
    result = call(capsys, "verify", model, fine)
    assert (result.code, result.err) == (1, "")
    assert result.out.splitlines() == [
        f"{model}: {_FOUND}",
        f"{model}: note: \\x1b[31m: a vendor file (vendor-file, NNEF 5.1)",
        "1 bitstream, 1 model, 1 violation, 0 warnings",
    ]
    assert call(capsys, "verify", write_folder(tmp_path / "m", minimal())).out == "1 model, 0 violations, 0 warnings\n"


def test_skriptnd_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "m", {"main.sknd": b"graph G { @variable { w: real[2]; }\n@compose { y = f(w); } }"}
    )
    result = call(capsys, "verify", folder)
    assert (result.code, result.err) == (1, "")
    assert result.out.splitlines() == [
        f"{folder}: main.sknd:1:23: variable 'w' has no file main.G.w.dat (sknd-data-missing, NNEF 2 draft 2.7)",
        f"{folder}: main.sknd:2:16: the module has no operator 'f' (sknd-operator, NNEF 2 draft 2.15)",
        "1 model, 2 violations, 0 warnings",
    ]
    (folder / "main.sknd").write_bytes(b"graph G { }")
    assert call(capsys, "verify", folder, folder / "main.sknd").out == "2 models, 0 violations, 0 warnings\n"
    result = call(capsys, "verify", folder, "--digest")
    assert (result.code, result.out) == (2, "")


def test_models_by_content(capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path) -> None:
    files = {name: data for name, data in tree(model).items() if name != "\x1b[31m"}
    packed = tar_bytes(regular(files))
    for name, data in (("a", packed), ("b", gzip.compress(packed)), ("c", files["graph.nnef"])):
        (tmp_path / name).write_bytes(data)
        assert call(capsys, "verify", tmp_path / name).out.splitlines()[0] == f"{tmp_path / name}: {_FOUND}"


def test_models_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Path, fine: Path
) -> None:
    for path, line in ((model / "graph.nnef", f"-: {_FOUND}"), (fine, "1 bitstream, 0 violations, 0 warnings")):
        with open(path, "rb") as file:
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))
            assert call(capsys, "verify", "-").out.splitlines()[0] == line


def test_models_as_json(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    result = call(capsys, "verify", "--json", model)
    assert result.code == 1
    (printed,) = json.loads(result.out)
    assert (printed["file"], printed["variables"], printed["warnings"]) == (str(model), 1, [])
    assert printed["violations"] == [
        {
            "rule": "use-before-assignment",
            "clause": "3.3.2",
            "message": "'q' is used before it is assigned",
            "file": "graph.nnef",
            "line": 6,
            "column": 14,
            "specification": "NNEF",
        }
    ]


def test_broken_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.tgz").write_bytes(gzip.compress(tar_bytes(regular(minimal())))[:-9])
    for name, message in (("empty", "graph.nnef is missing"), ("cut.tgz", "the gzip stream is damaged: ")):
        result = call(capsys, "verify", tmp_path / name)
        assert (result.code, result.out) == (3, "")
        assert result.err.startswith(f"nnr: error: {tmp_path / name}: {message}")
        assert result.err.count("\n") == 1


@pytest.mark.parametrize("name", ["m.npz", "m.safetensors", "m.onnx", "-"])
def test_models_of_other_formats_are_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / ("m.onnx" if name == "-" else name)
    if path.suffix == ".onnx":
        path.write_bytes(onnx_model(tensors=[onnx_tensor("w", np.eye(3, dtype="f4"))]))
    else:
        nnr.save(nnr.Model({"w": np.eye(3, dtype="f4")}), path)
    with open(path, "rb") as file:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))
        result = call(capsys, "verify", "-" if name == "-" else path)
    where = "standard input" if name == "-" else path
    checked = "bitstreams, NNEF, OpenVINO and SkriptND models"
    why = f"a model ({path.suffix[1:]}), not a bitstream; nnr verify checks {checked}"
    assert (result.code, result.out, result.err) == (3, "", f"nnr: error: {where}: {why}; use nnr encode first\n")


@pytest.fixture
def ir(tmp_path: Path) -> Path:
    """Return an IR whose weights have a channel too many."""
    window = {"strides": "1,1", "dilations": "1,1", "pads_begin": "0,0", "pads_end": "0,0"}
    inputs = [irs.data(1, 3, 6, 6), irs.floats(4, 4, 3, 3)]
    return irs.write(irs.case("Convolution", inputs, (1, 4, 4, 4), **window), tmp_path / "ir")


def test_irs(capsys: pytest.CaptureFixture[str], ir: Path) -> None:
    found = "m.xml:32:1: the input has 3 channels; the weights take 4 (layer 'Convolution4') (ir-channels,"
    result = call(capsys, "verify", ir)
    assert (result.code, result.err) == (1, "")
    assert result.out.splitlines() == [
        f"{ir}: {found} OpenVINO opset1 Convolution)",
        "1 model, 1 violation, 0 warnings",
    ]
    (printed,) = json.loads(call(capsys, "verify", "--json", ir).out)
    assert printed["variables"] == 2
    assert printed["violations"][0]["specification"] == "OpenVINO"
    ir.with_suffix(".bin").unlink()
    result = call(capsys, "verify", ir)
    assert result.out.splitlines()[0].startswith(f"{ir}: m.xml: ")
    assert result.out.splitlines()[-1] == "1 model, 2 violations, 0 warnings"


def test_irs_from_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ir: Path) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(ir.read_bytes())))
    assert call(capsys, "verify", "-").out.splitlines()[0].startswith("-: model.xml:32:1: ")


def test_mistakes_with_irs(capsys: pytest.CaptureFixture[str], ir: Path) -> None:
    for arguments, code in (([ir, "--digest"], 2), ([ir, "--limit", "max_topology_bytes=10"], 3), ([ir, "-i", ir], 2)):
        result = call(capsys, "verify", *arguments)
        assert (result.code, result.out) == (code, ""), (arguments, result)
        assert result.err.splitlines()[-1].startswith("Error: " if code == 2 else "nnr: error: ")


def test_a_bitstream_that_ends_as_a_model_is_a_bitstream(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nnr.save(nnr.Model({"w": np.eye(3, dtype="f4")}), tmp_path / "m.npz")
    data = nnr.encode(nnr.Model({"w": np.eye(3, dtype="f4")}))
    (tmp_path / "both.nnr").write_bytes(data + (tmp_path / "m.npz").read_bytes())
    result = call(capsys, "verify", tmp_path / "both.nnr")
    assert result.code == 1 and "violation" in result.out and not result.err


def test_limits_of_models(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    result = call(capsys, "verify", model, "--limit", "max_topology_bytes=10")
    assert result.code == 3
    assert result.err.startswith(f"nnr: error: {model}: bytes of graph.nnef: ")


def test_models_have_no_digests(capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path, fine: Path) -> None:
    manifest = tmp_path / "manifest"
    manifest.write_text(call(capsys, "verify", "--digest", fine).out, "utf-8")
    for options in (["--digest"], ["--against", manifest], ["-i", fine]):
        result = call(capsys, "verify", model, *options)
        assert result.code == 2 and "is a model" in result.err
