"""Frequent mistakes at the command line: each causes a message of one line, and no traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr

from .support import DIGITS, call, weights

Capture = pytest.CaptureFixture[str]

#: Command lines, exit codes, and parts of the message.
MISTAKES: list[tuple[str, int, str]] = [
    # files
    ("encode missing.npz -o x.nnr", 5, "missing.npz: No such file or directory"),
    ("encode w.npz -o missing/x.nnr", 5, "the folder 'missing' of the output does not exist; create it first"),
    ("encode w.npz", 5, "w.nnr exists; use -f to replace it"),
    ("encode w.npz -o w.nnr", 5, "w.nnr exists; use -f to replace it"),
    ("encode w.npz -o w.npz -f", 5, "w.npz is an input; write to another name"),
    ("encode w.npz -o x.nnr --preset lora --lossless", 2, "--lossless and --preset lora cannot be combined"),
    ("encode w.npz -o x.nnr --preset lora --fixed-point q7.8", 2, "--snr has no effect; omit it"),
    ("encode w.npz -o x.npz", 2, "'x.npz' has the file extension of a model; name the bitstream 'x.nnr'"),
    ("update encode w.npz --base v.npz -o x.npz", 2, "name the bitstream 'x.nnr'"),
    ("encode w.npz -o .", 5, "./w.nnr exists; use -f to replace it"),
    ("encode w.nnr -o x.nnr", 3, "w.nnr: an NNR bitstream, not a model; use nnr decode to restore the model"),
    ("encode w.nnr", 3, "w.nnr: an NNR bitstream, not a model; use nnr decode to restore the model"),
    (
        "encode text.txt -o x.nnr",
        3,
        "not a model of a supported format, or a damaged file; run nnr formats",
    ),
    ("encode cut.npz -o x.nnr", 3, "cut.npz: an .npz file without a zip directory; the file is trunc"),
    ("encode two -o x.nnr", 3, "two: the folder has 2 model files but no model.safetensors.index.json"),
    ("encode pointer.onnx -o x.nnr", 3, "pointer.onnx: a git-lfs pointer, not the file itself; run git lfs pull"),
    ("decode pointer.onnx -o x.npz", 3, "pointer.onnx: a git-lfs pointer, not the file itself; run git lfs pull"),
    ("verify pointer.onnx", 3, "pointer.onnx: a git-lfs pointer, not the file itself; run git lfs pull to fetch it"),
    (
        "verify w.npz",
        3,
        "w.npz: a model (npz), not a bitstream; nnr verify checks bitstreams, NNEF, OpenVINO and SkriptND models; ",
    ),
    ("update apply w.npz v.npz -o x.npz", 3, "v.npz: a model (npz), not a bitstream; use nnr update encode --base to"),
    (
        "verify two",
        3,
        "two: a folder with model files, not a bitstream; nnr verify checks bitstreams, NNEF, OpenVINO and SkriptND ",
    ),
    (
        "verify cut.npz",
        3,
        "cut.npz: an .npz file without a zip directory; the file is truncated; ",
    ),
    (
        "encode objects.npz -o x.nnr",
        3,
        "objects.npz: array 'a': dtype '|O' is not supported; only numbers and booleans",
    ),
    ("decode missing.nnr -o x.npz", 5, "missing.nnr: No such file or directory"),
    ("decode cut.nnr -o x.npz", 3, "; the file is truncated or damaged"),
    (
        "decode text.txt -o x.npz",
        3,
        "text.txt: not an NNR bitstream: it does not begin with a start unit, NNR_STR (6.2.3)",
    ),
    ("decode w.npz -o x.npz", 3, "w.npz: a model (npz), not a bitstream; use nnr encode to compress it\n"),
    (
        "decode w.nnr -o x.model",
        2,
        "no writable format has the file extension '.model' of 'x.model'; run nnr formats to list the extensions",
    ),
    ("decode w.nnr -o x.onnx", 3, "a model of onnx requires a graph of onnx; this one has none; give one"),
    (
        "decode w.nnr -o x.nnef --topology v.npz",
        3,
        "v.npz has no topology; give a graph.nnef or a model with a topology",
    ),
    (
        "decode digits.nnr -o x.nnef --topology other.nnef",
        3,
        "1 of 16 tensors have different shapes: 'fc2/weight' is (10, 64), declared as (11, 64) in graph.nnef:20; use",
    ),
    # options
    ("encode w.npz -o x.nnr --qualty 20", 2, "--qualty"),
    ("encode w.npz -o x.nnr --quality high", 2, "Invalid value for '--quality': 'high' is not a number"),
    ("encode w.npz -o x.nnr --quality 200", 2, "--quality 200 is outside 0..100"),
    ("encode w.npz -o x.nnr --preset tiny", 2, "Invalid value for '--preset': 'tiny' is not one of 'default', "),
    (
        "encode w.npz -o x.nnr --preset lossless --quality 20",
        2,
        "--preset lossless keeps every bit, so --quality has no",
    ),
    ("encode w.npz -o x.nnr --lossless --quality 20", 2, "--lossless keeps every bit, so --quality has no effect"),
    ("encode w.npz -o x.nnr --lossless --sensitivity w.npz", 2, "keeps every bit, so --sensitivity has no effect"),
    ("encode w.npz -o x.nnr --rule fc*:qpp=1", 2, "'fc*:qpp=1': unknown key 'qpp'; did you mean 'qp'?"),
    ("encode w.npz -o x.nnr --rule fc*:rate=99", 2, "--rule 'fc*': rate 99 is outside 0..16"),
    ("encode w.npz -o x.nnr --lossless --rule fc*:rate=2", 2, "--rule 'fc*': exact=True keeps every bit, so rate has"),
    ("encode w.npz -o x.nnr --target-size 10", 3, "more than the target of 10 bytes; use a larger target"),
    ("encode w.npz -o x.nnr --max-unit-size 3", 3, "more than --max-unit-size 3, but only tensors can be split"),
    ("encode w.npz -o x.nnr --format foo", 2, "unknown model format 'foo'; choose from "),
    ("encode w.npz -o x.nnr --block", 3, "--block requires blocks, but the model has no graph"),
    ("encode w.npz -o x.nnr --fold-batchnorm", 3, "--fold-batchnorm: no batch normalization can be folded: "),
    ("encode w.npz -o x.nnr --reduce prune(ratio=0.5)", 3, "--reduce: prune(ratio=0.5): the model has no graph"),
    ("encode w.npz -o x.nnr --reduce shrink", 2, "--reduce: unknown step 'shrink'; choose from sparsify, unify, "),
    (
        "encode nan.npz -o x.nnr --fixed-point q7.8",
        3,
        "tensor 'fc.weight' has values that are not finite, which --fixed-",
    ),
    (
        "encode bool.npz -o x.nnr --no-side-info",
        3,
        "tensor 'a' has type bool, which NNR cannot represent (Table 15); use",
    ),
    ("decode w.nnr -o x.npz --only conv*", 2, "--only 'conv*' matches no tensor"),
    ("decode w.nnr -o x.npz --limit max_units=1", 3, "2 is more than max_units=1; raise the limit if the source is"),
    # updates
    ("update encode v.npz -o x.nnr", 2, "Missing option '--base'."),
    (
        "update encode v.npz --base digits.nnef -o x.nnr",
        3,
        "tensor 'conv1/weight' of the base model is missing from the new model; an update",
    ),
    (
        "update encode v.npz --base w.npz -o x.nnr --preset lossless --sbt 0.5",
        2,
        "--preset lossless keeps every bit, so",
    ),
    ("update apply v.npz u.nnr -o x.npz", 3, "; use the model that it updates"),
    ("update apply w.npz w.nnr -o x.npz", 3, "w.nnr: the bitstream is a whole model, not an update"),
    (
        "update apply u.nnr w.npz -o x.npz",
        3,
        "u.nnr: an update, not a model; give the base model first",
    ),
    ("update encode w.npz --base cut.nnr -o x.nnr", 3, "cut.nnr: unit 3 "),
    ("update encode w.npz --base w.nnr -o x.nnr --limit max_units=1", 3, "w.nnr: "),
    ("bench u.nnr", 3, "u.nnr: an update, not a model; give the base model first, then its updates (nnr update chain)"),
    # others
    ("extract w.nnr --unit 99 -o x.nnr", 3, "w.nnr: the bitstream has no unit 99"),
    ("inspect text.txt", 3, "text.txt: not an NNR bitstream"),
    ("explain scan_ordre", 2, "unknown name 'scan_ordre'; similar names: scan_order"),
    ("compress w.npz", 2, "No such command 'compress'."),
]


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with models, bitstreams and damaged copies of both."""
    folder = tmp_path_factory.mktemp("mistakes")
    tensors = {"fc.weight": weights(), "fc.bias": weights(2, (24,))}
    np.savez(folder / "w.npz", **tensors)  # type: ignore[arg-type]
    np.savez(folder / "v.npz", **{name: array + 1 for name, array in tensors.items()})  # type: ignore[arg-type]
    tensors["fc.weight"][0, 0] = np.nan
    np.savez(folder / "nan.npz", **tensors)  # type: ignore[arg-type]
    np.savez(folder / "objects.npz", a=np.array([{}], object))
    np.savez(folder / "bool.npz", a=np.ones(3, bool))
    (folder / "cut.npz").write_bytes((folder / "w.npz").read_bytes()[:-200])
    (folder / "two").mkdir()
    for name in "ab":
        nnr.save(nnr.load(folder / "w.npz"), folder / "two" / f"{name}.safetensors")
    (folder / "pointer.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 9\n")
    (folder / "text.txt").write_text("no model at all")
    nnr.encode_file(folder / "w.npz", folder / "w.nnr")
    (folder / "cut.nnr").write_bytes((folder / "w.nnr").read_bytes()[:-9])
    (folder / "u.nnr").write_bytes(nnr.encode_update(folder / "w.npz", folder / "v.npz"))
    shutil.copytree(DIGITS, folder / "digits.nnef")
    shutil.copytree(DIGITS, folder / "other.nnef")
    graph = folder / "other.nnef" / "graph.nnef"
    graph.write_text(graph.read_text().replace("shape = [10, 64]", "shape = [11, 64]"))
    nnr.encode_file(DIGITS, folder / "digits.nnr", topology="external")
    return folder


@pytest.mark.parametrize(("command", "code", "message"), MISTAKES, ids=[command for command, _, _ in MISTAKES])
def test_a_mistake(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, command: str, code: int, message: str
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    result = call(capsys, *command.split())
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    lines = [line for line in result.err.splitlines() if line and not line.startswith(("Usage: ", "Try "))]
    assert len(lines) == 1
    assert lines[0].startswith("nnr: error: " if code != 2 else "Error: ")
    assert sorted(folder.rglob("*")) == before


def test_a_package_that_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    result = call(capsys, "decode", "w.nnr", "-o", "x.h5")
    assert (result.code, result.out) == (5, "")
    assert result.err.startswith("nnr: error: w.nnr: ")
    assert "pip install" in result.err
    assert result.err.count("\n") == 1
