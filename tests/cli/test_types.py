"""Models of every type through the commands: encode, decode, ls, diff."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from nnr_cli.encode import PRESETS
from nnr_cli.update import PRESETS as UPDATE_PRESETS

import nnr_codec as nnr
from nnr_codec.config import PRESETS as LIBRARY_PRESETS
from nnr_codec.model import Array
from nnr_codec.syntax.structures import NnrTopologyUnitPayload

from .support import DIGITS, SUMMARY, call, process, weights

Capture = pytest.CaptureFixture[str]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
VECTORS = Path(__file__).resolve().parents[2] / "bitstream_vectors"


def hostile(dtype: str) -> Array:
    """Return floats with all unusual values."""
    w = weights(3, (16, 9)).astype(dtype)
    w.reshape(-1)[:7] = np.array([0, -0.0, np.nan, np.inf, -np.inf, 1, -1], dtype)
    w.reshape(-1).view(f"u{w.itemsize}")[7:9] = 1, np.array(np.nan, dtype).view(f"u{w.itemsize}") + 1
    return w


TENSORS: dict[str, Array] = {
    "bf16": weights(1, (20, 30)).astype(BFLOAT16),
    "e4m3": weights(2, (8, 9)).astype(ml_dtypes.float8_e4m3fn),
    "e5m2": weights(2, (8, 9)).astype(ml_dtypes.float8_e5m2),
    "f16": hostile("f2"),
    "f32": hostile("f4"),
    "f64": hostile("f8"),
    "mask": np.eye(5, dtype=np.bool_),
    "u8": np.arange(256, dtype=np.uint8).reshape(16, 16),
    "u64": np.array([0, 2**64 - 1, 2**63], np.uint64),
    "i64": np.array([-(2**63), 2**63 - 1, 5], np.int64),
    "steps": np.array(7, np.int64),
    "none": np.zeros((0, 4), np.float32),
}


@pytest.fixture
def typed(here: Path) -> Path:
    """Write ``typed.safetensors`` with all types and metadata."""
    nnr.save(nnr.Model(TENSORS, metadata={"format": "pt"}), "typed.safetensors")
    return Path("typed.safetensors")


def test_every_tensor_comes_back_bit_for_bit(typed: Path, capsys: Capture) -> None:
    result = call(capsys, "encode", typed, "-o", "m.nnr", "--lossless", "--check")
    assert result.code == 0, result.err
    summary, check = result.err.splitlines(keepends=True)
    assert SUMMARY.fullmatch(summary)
    assert check == "check: decodes to the same tensors, bit for bit\n"
    assert call(capsys, "decode", "m.nnr", "-o", "out.safetensors").code == 0
    assert Path("out.safetensors").read_bytes() == typed.read_bytes()
    result = call(capsys, "diff", typed, "m.nnr")
    assert (result.code, result.out) == (0, "0 of 12 tensors differ in values\n")


def test_lossy_models_keep_types_and_shapes(typed: Path, capsys: Capture) -> None:
    assert call(capsys, "encode", typed, "-o", "m.nnr").code == 0
    assert call(capsys, "decode", "m.nnr", "-o", "out.safetensors").code == 0
    out = nnr.load("out.safetensors")
    assert {name: (out[name].dtype, out[name].shape) for name in out} == {
        name: (array.dtype, array.shape) for name, array in TENSORS.items()
    }
    assert out.metadata == {"format": "pt"}
    for name in ("mask", "u8", "u64", "i64", "steps"):
        assert out[name].tobytes() == TENSORS[name].tobytes()


def test_presets(npz: Path, capsys: Capture) -> None:
    assert {*PRESETS, *UPDATE_PRESETS} == set(LIBRARY_PRESETS)
    exact = nnr.encode(npz, exact=True)
    for options, expected in (
        (["--preset", "lossless"], exact),
        (["--lossless"], exact),
        (["--lossless", "--preset", "lossless"], exact),
        (["--preset", "default"], nnr.encode(npz)),
        (["--lossless", "--rule", "*:exact=auto"], nnr.encode(npz, exact=True, rules=[nnr.Rule("*", exact=None)])),
    ):
        assert call(capsys, "encode", npz, "-fo", "x.nnr", *options).code == 0
        assert Path("x.nnr").read_bytes() == expected
    for options in (["--preset", "tiny"], ["--lossless", "--preset", "default"], ["--exact"]):
        assert call(capsys, "encode", npz, "-o", "y.nnr", *options).code == 2
    assert not Path("y.nnr").exists()


def test_without_side_information(typed: Path, npz: Path, capsys: Capture) -> None:
    result = call(capsys, "encode", typed, "-o", "m.nnr", "--no-side-info")
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("nnr: error: ")
    assert result.err.count("\n") == 1
    assert not Path("m.nnr").exists()
    for tensors, metadata, said in (
        (
            {"w": TENSORS["mask"]},
            {},
            "tensor 'w' has type bool, which NNR cannot represent (Table 15); use --side-info",
        ),
        (
            {"w": TENSORS["steps"]},
            {},
            "tensor 'w' has no dimensions: shape (), which NNR cannot represent; use --side-info",
        ),
        ({"w": TENSORS["none"]}, {}, "tensor 'w' is empty: shape (0, 4), which NNR cannot represent; use --side-info"),
        (
            {"w": weights()},
            {"format": "pt"},
            "the model has metadata, which only side information can represent; use --side-info",
        ),
    ):
        nnr.save(nnr.Model(tensors, metadata=metadata), "one.safetensors", overwrite=True)
        result = call(capsys, "encode", "one.safetensors", "-o", "m.nnr", "--no-side-info")
        assert (result.code, result.err.count("\n")) == (3, 1)
        assert result.err.startswith(f"nnr: error: {said}")
    for options in ([], ["--lossless"]):
        result = call(capsys, "encode", npz, "-fo", "m.nnr", "--no-side-info", "--check", *options)
        assert result.code == 0
        assert ("bit for bit" in result.err) == bool(options)
        assert all(unit.type != "NNR_TPL" for unit in nnr.inspect("m.nnr"))


def test_check_reports_differences_of_bits(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez("m.npz", w=np.array([0.0, -0.0, 1.0], "f4"))
    monkeypatch.setattr(nnr.NnrFile, "deferred", lambda *_, **__: nullcontext({"w": np.array([0.0, 0.0, 1.0], "f4")}))
    result = call(capsys, "encode", "m.npz", "-o", "m.nnr", "--check")
    assert result.err.endswith("check: only bits differ, such as the sign of 0 (in 'w')\n")
    monkeypatch.setattr(nnr.NnrFile, "deferred", lambda *_, **__: nullcontext({"w": np.array([0.0, 0.0, 1.0], "f8")}))
    result = call(capsys, "encode", "m.npz", "-fo", "m.nnr", "--check")
    assert result.err.endswith("check: the same values; 1 tensor missing or of another type or shape, such as 'w'\n")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_decoding_to_one_type(typed: Path, capsys: Capture, dtype: str) -> None:
    source = {name: array for name, array in TENSORS.items() if name not in ("f32", "f64")}
    nnr.encode_file(source, "m.nnr", exact=True)
    assert call(capsys, "decode", "m.nnr", "-o", "m.npz", "--dtype", dtype).code == 0
    out = nnr.load("m.npz")
    assert list(out) == list(source)
    for name, array in source.items():
        floats = name in ("bf16", "e4m3", "e5m2", "f16", "none")
        expected = array.astype(dtype) if floats else array
        assert (out[name].dtype, out[name].shape) == (expected.dtype, array.shape)
        assert np.array_equal(out[name], expected, equal_nan=floats)
    assert call(capsys, "decode", "m.nnr", "-o", "x.npz", "--dtype", "float8").code == 2


def test_values_that_a_type_cannot_hold(capsys: Capture) -> None:
    nnr.encode_file({"w": np.array([[1e30, 2.5], [0.1, np.inf]], "f4")}, "m.nnr", exact=True)
    result = call(capsys, "decode", "m.nnr", "-o", "m.npz", "--dtype", "float16")
    assert (result.code, result.err.count("\n")) == (3, 1)
    assert "'w'" in result.err
    assert not Path("m.npz").exists()


@pytest.mark.parametrize(("name", "way"), [("bf16", "save it as .safetensors or convert it to float32"), ("i4", "")])
def test_what_a_format_cannot_hold(capsys: Capture, name: str, way: str) -> None:
    nnr.encode_file({"bf16": TENSORS["bf16"], "i4": np.ones((2, 3), ml_dtypes.int4)}, "m.nnr", exact=True)
    result = call(capsys, "decode", "m.nnr", "-o", "m.npz", "--only", name)
    assert result.code == 3
    assert result.err.startswith(f"nnr: error: m.nnr: tensor '{name}': npz does not support dtype ")
    assert way in result.err
    assert result.err.count("\n") == 1
    assert not Path("m.npz").exists()


def test_a_network_of_bfloat16(capsys: Capture) -> None:
    model = nnr.load(DIGITS)
    cast = {name: array.astype(BFLOAT16) for name, array in model.tensors.items()}
    nnr.encode_file(nnr.Model(cast, model.topology), "m.nnr", exact=True)
    result = call(capsys, "decode", "m.nnr", "-o", "m.nnef")
    assert result.code == 3
    assert (
        "nnef does not support dtype bfloat16; save it as .safetensors or convert it to float32 (--dtype, dtype=)"
        in result.err
    )
    assert call(capsys, "decode", "m.nnr", "-o", "m.nnef", "--dtype", "float32").code == 0
    out = nnr.load("m.nnef")
    for name, array in cast.items():
        assert out[name].tobytes() == array.astype(np.float32).reshape(out[name].shape).tobytes()
    result = call(capsys, "decode", "m.nnr", "-o", "m.safetensors")
    assert result.code == 0
    assert "a safetensors file cannot store the topology" in result.err
    assert {name: array.dtype for name, array in nnr.load("m.safetensors").tensors.items()} == dict.fromkeys(
        cast, BFLOAT16
    )


@pytest.mark.parametrize("options", [[], ["--lossless"]])
@pytest.mark.parametrize("dtype", ["g", "c8", "c16"])
def test_types_that_are_refused_by_name(capsys: Capture, dtype: str, options: list[str]) -> None:
    np.savez("m.npz", w=np.ones((2, 3), dtype))
    result = call(capsys, "encode", "m.npz", "-o", "m.nnr", *options)
    assert result.code == 3
    assert "'w'" in result.err
    assert np.dtype(dtype).name in result.err
    assert not Path("m.nnr").exists()


def test_npz_keeps_its_types(capsys: Capture) -> None:
    tensors = {
        name: array
        for name, array in TENSORS.items()
        if array.dtype.kind != "V" and not array.dtype.name.startswith("float8")
    }
    tensors["fortran"] = np.asfortranarray(weights(4, (5, 6)))
    np.savez("m.npz", **tensors)
    assert call(capsys, "encode", "m.npz", "-o", "m.nnr", "--lossless").code == 0
    assert call(capsys, "decode", "m.nnr", "-o", "n.npz").code == 0
    assert call(capsys, "diff", "m.npz", "n.npz").code == 0
    with np.load("m.npz") as before, np.load("n.npz") as after:
        assert list(before) == list(after)
        for name in before:
            assert before[name].dtype == after[name].dtype
            assert before[name].tobytes() == after[name].tobytes()


# ------------------------------------------------------------------------------------------------ ls
def test_ls_shows_types_and_how_they_are_coded(typed: Path, capsys: Capture) -> None:
    nnr.encode_file(typed, "m.nnr", exact=True)
    result = call(capsys, "ls", "m.nnr")
    assert (result.code, result.err) == (0, "")
    heading, *rows, total = result.out.splitlines()
    assert heading.split() == ["name", "shape", "type", "coded", "tools", "bytes", "bits/par"]
    cells = {row.split()[0]: row.split() for row in rows}
    assert set(cells) == set(TENSORS)
    assert cells["bf16"][1:3] == ["20x30", "bfloat16"]
    assert cells["steps"][1:3] == ["scalar", "int64"]
    assert cells["mask"][1:3] == ["5x5", "bool"]
    assert cells["none"][1:] == ["0x4", "float32", "-", "0", "0.00"]
    parameters = sum(array.size for array in TENSORS.values())
    assert total.startswith(f"12 tensors, {parameters:,} parameters, ")
    facts = {row["name"]: row for row in json.loads(call(capsys, "ls", "m.nnr", "--json").out)}
    file = nnr.open("m.nnr")
    for name, row in facts.items():
        info = file.info[name]
        assert (row["dtype"], tuple(row["shape"])) == (TENSORS[name].dtype.name, TENSORS[name].shape)
        assert (row["code"], row["same_as"], row["bytes"]) == (info.code or None, None, info.nbytes)
    assert (facts["none"]["payload_type"], facts["none"]["bits_per_parameter"]) == (None, 0)
    coded = {row["name"]: cells[row["name"]][3].partition("+")[2] or None for row in facts.values()}
    assert coded == {name: row["code"] for name, row in facts.items()}
    assert any(coded.values())


def test_a_record_of_another_version(typed: Path, capsys: Capture) -> None:
    units = list(nnr.units(nnr.encode(typed, exact=True)))
    unit = next(unit for unit in units if isinstance(unit.payload, NnrTopologyUnitPayload))
    text = bytes(unit.payload.topology_data)
    unit.payload.topology_data = text.replace(b'{"nnr_codec":3', b'{"nnr_codec":5')
    Path("m.nnr").write_bytes(nnr.write_units(units))
    result = call(capsys, "ls", "m.nnr")
    version = "side information has version 5; only versions up to 4 are supported"
    warning = f"nnr: warning: skipped, because its type or format is unknown: unit 2 ({version})"
    assert (result.code, result.err) == (0, warning + "\n")
    result = call(capsys, "decode", "m.nnr", "-o", "out.npz")
    assert (result.code, result.err.splitlines()) == (
        4,
        [warning, f"nnr: error: m.nnr: unit 2 (NNR_TPL): {version}"],
    )


def test_tied_tensors(capsys: Capture) -> None:
    w = weights()
    nnr.encode_file({"embed": w, "head": w}, "m.nnr")
    _, *rows, total = call(capsys, "ls", "m.nnr").out.splitlines()
    assert rows[1].split() == ["head", "24x30", "float32", "=", "embed", "0", "0.00"]
    assert total.startswith("2 tensors, 720 parameters, ")
    facts = json.loads(call(capsys, "ls", "m.nnr", "--json").out)
    assert [(row["same_as"], row["payload_type"]) for row in facts] == [(None, "NNR_PT_FLOAT"), ("embed", None)]
    assert call(capsys, "decode", "m.nnr", "-o", "m.safetensors").code == 0
    out = nnr.load("m.safetensors")
    assert out["embed"].tobytes() == out["head"].tobytes()


@pytest.mark.medium
def test_ls_without_ml_dtypes(typed: Path, capsys: Capture) -> None:
    nnr.encode_file(typed, "m.nnr", exact=True)
    expected = call(capsys, "ls", "m.nnr").out
    for command, code in ((["ls", "m.nnr"], 0), (["decode", "m.nnr", "-o", "x.safetensors"], 5)):
        program = (
            f"import sys; sys.modules['ml_dtypes'] = None\nfrom nnr_cli.main import run; sys.exit(run({command!r}))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert done.stdout == (expected if code == 0 else "")
        assert code == 0 or "pip install 'nnr_codec[types]'" in done.stderr
    assert not Path("x.safetensors").exists()


@pytest.mark.medium
def test_vectors_without_ml_dtypes(here: Path) -> None:
    (here / "ml_dtypes.py").write_text("raise ImportError")
    env = {**os.environ, "PYTHONPATH": str(here)}
    done = process("conformance", VECTORS, "--only", "NNR-SID-27[23]", "--timeout", 60, env=env)
    assert done.returncode == 0
    assert [line.split()[:2] for line in done.stdout.splitlines()[:2]] == [
        ["PASS", "NNR-SID-272"],
        ["SKIP", "NNR-SID-273"],
    ]
    assert "pip install 'nnr_codec[types]'" in done.stdout


def test_a_model_of_empty_tensors(capsys: Capture) -> None:
    nnr.save({"a": np.zeros((0, 3), "f4"), "b": np.zeros(0, "i8")}, "m.safetensors")
    result = call(capsys, "encode", "m.safetensors", "-vo", "m.nnr", "--check")
    assert result.code == 0
    first, second, summary, check = result.err.splitlines()
    assert (first, second) == ("b: 0 -> 0 bytes", "a: 0 -> 0 bytes")  # in the order of the file, the wider type first
    size = Path("m.nnr").stat().st_size
    assert summary.startswith(f"m.safetensors -> m.nnr: 0 -> {size:,} bytes (")
    assert check == "check: decodes to the same tensors, bit for bit"
    assert call(capsys, "ls", "m.nnr").out.splitlines()[-1] == "2 tensors, 0 parameters, 0 bytes"
    assert call(capsys, "decode", "m.nnr", "-vo", "n.safetensors").code == 0
    assert Path("n.safetensors").read_bytes() == Path("m.safetensors").read_bytes()


# ------------------------------------------------------------------------------------------------ diff
def test_diff_of_every_type(typed: Path, capsys: Capture) -> None:
    changed: dict[str, Array] = {name: array.copy() for name, array in TENSORS.items()}
    for name in ("bf16", "e4m3", "u8"):
        changed[name][0, 1] = changed[name][0, 0]
    changed["f32"][0, 1] = 0.0  # was -0.0
    changed["u64"][1] -= np.uint64(1)
    changed["steps"] = np.array(8, np.int64)
    nnr.save(changed, "other.safetensors")
    result = call(capsys, "diff", typed, "other.safetensors")
    assert result.code == 1
    *rows, last = result.out.splitlines()
    assert {row.split()[0] for row in rows[1:]} == {"bf16", "e4m3", "u8", "f32", "u64", "steps"}
    assert last.startswith("6 of 12 tensors differ in values: largest error 1 (in ")
    facts = json.loads(call(capsys, "diff", typed, "other.safetensors", "--json").out)["tensors"]
    assert (facts["u64"]["expected"], facts["u64"]["got"]) == (2**64 - 1, 2**64 - 2)
    assert (facts["f32"]["count"], facts["f32"]["largest"]) == (1, 0)
    assert (facts["steps"]["first"], facts["steps"]["got"]) == ([], 8)
    assert call(capsys, "diff", typed, "other.safetensors", "--tolerance", 1).code == 0


def test_diff_of_bits_alone(capsys: Capture) -> None:
    nnr.save({"w": np.array([0.0, np.nan], "f4")}, "a.npz")
    nnr.save({"w": np.array([-0.0, np.nan], "f4")}, "b.npz")
    result = call(capsys, "diff", "a.npz", "b.npz")
    assert result.code == 1
    assert result.out.endswith("1 of 1 tensor differs in values: only bits differ, such as the sign of 0 (in 'w')\n")
    assert call(capsys, "diff", "a.npz", "b.npz", "--tolerance", 0).code == 0


def test_diff_of_bitstreams(typed: Path, capsys: Capture) -> None:
    nnr.encode_file({"w": weights(1, (40, 30)).astype(BFLOAT16)}, "a.nnr", exact=True)
    nnr.encode_file({"w": weights(2, (40, 30)).astype(BFLOAT16)}, "b.nnr", exact=True)
    result = call(capsys, "diff", "a.nnr", "b.nnr")
    assert result.code == 1
    assert result.out.splitlines()[-1].startswith("'w'[0, 0]: ")


# ------------------------------------------------------------------------------------------------ the process
@pytest.mark.medium
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nnr encode m.npz --preset ", set(PRESETS)),
        ("nnr encode m.npz --los", {"--lossless"}),
        ("nnr encode m.npz --no-s", {"--no-side-info"}),
        ("nnr encode --format s", {"safetensors", "skriptnd"}),
        ("nnr decode m.nnr --dtype ", {"source", "float32", "float16", "bfloat16"}),
    ],
)
def test_completion(words: str, expected: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = words.split(" ")
    monkeypatch.setenv("_NNR_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(parts) - 1))
    found = {line.partition(",")[2] for line in process().stdout.splitlines()}
    assert expected <= found
    assert expected == {word for word in found if word.startswith(parts[-1])}


@pytest.mark.medium
def test_the_installed_command(typed: Path) -> None:
    done = process("encode", typed, "-o", "m.nnr", "--lossless", "--check")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "check: decodes to the same tensors, bit for bit")
    with open("m.nnr", "rb") as file:
        # Standard output has the format of the source model.
        data = process("decode", "-", "-o", "-", stdin=file, text=False, encoding=None).stdout
    assert data == typed.read_bytes()
