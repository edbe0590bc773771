"""Peak memory of whole files: at most three times the tensors as float32, plus 100 MB; of many tensors, 400 MB."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.model import Array

pytestmark = pytest.mark.slow

MILLION = 1_000_000
ENCODE = "import sys, nnr_codec; nnr_codec.encode_file(sys.argv[1], sys.argv[2])"
LOSSLESS = "import sys, nnr_codec; nnr_codec.encode_file(sys.argv[1], sys.argv[2], exact=True)"
ENCODE_IN_THREADS = "import sys, nnr_codec; nnr_codec.encode_file(sys.argv[1], sys.argv[2], jobs=int(sys.argv[3]))"
DECODE_TO_FILE = "import sys, nnr_codec; nnr_codec.decode_file(sys.argv[1], sys.argv[2], jobs=int(sys.argv[3]))"
COMMAND = "import sys; from nnr_cli.main import run; assert run(sys.argv[1:]) == 0"
DECODE = "import sys, nnr_codec; nnr_codec.save(nnr_codec.decode(sys.argv[1]), sys.argv[2])"
# Of the process's own memory: ru_maxrss would include the memory of the parent process at its start.
PEAK = "\nprint(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"


def peak(script: str, *arguments: object) -> float:
    """Return the peak resident memory of a new process, in MB."""
    command = [sys.executable, "-c", script + PEAK, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(run.stdout) / 1024  # kilobytes on Linux


def npz(path: Path, tensors: int, millions: int) -> Path:
    """Write an npz file of ``count`` tensors with ``millions`` million parameters each."""
    rng = np.random.default_rng(0)
    shape = (1000, 1000 * millions)
    np.savez(path, **{f"w{k}": rng.normal(0, 0.05, shape).astype("f4") for k in range(tensors)})
    return path


def nnef(path: Path, tensors: int, millions: int) -> Path:
    """Write an NNEF folder of the same tensors."""
    rng = np.random.default_rng(0)
    shape = (1000, 1000 * millions)
    return nnef_of(path, (rng.normal(0, 0.05, shape).astype("<f4") for _ in range(tensors)))


def nnef_of(path: Path, tensors: Iterator[Array]) -> Path:
    """Write an NNEF folder of these matrices, one after another."""
    path.mkdir()
    lines = ["version 1.0;", "", "graph g(x) -> (y)", "{", "    x = external<scalar>(shape = [1, 1000]);"]
    for k, values in enumerate(tensors):
        shape = values.shape
        lines.append(f"    w{k} = variable<scalar>(shape = {list(shape)}, label = 'w{k}');")
        header = bytearray(128)
        header[0:4] = b"\x4e\xef\x01\x00"
        header[4:8] = values.nbytes.to_bytes(4, "little")
        header[8:12] = (2).to_bytes(4, "little")
        header[12:20] = np.array(shape, "<u4").tobytes()
        header[44:48] = (32).to_bytes(4, "little")
        (path / f"w{k}.dat").write_bytes(bytes(header) + values.tobytes())
    lines += ["    y = matmul(x, w0);", "}", ""]
    (path / "graph.nnef").write_text("\n".join(lines))
    return path


def safetensors(path: Path, tensors: int, millions: int) -> Path:
    """Write a safetensors file of the same tensors; every other tensor has bfloat16 values in float32."""
    rng = np.random.default_rng(0)
    shape = (1000, 1000 * millions)
    size = 4 * millions * MILLION
    entries = {
        f"w{k:02}": {"dtype": "F32", "shape": shape, "data_offsets": [k * size, (k + 1) * size]} for k in range(tensors)
    }
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for k in range(tensors):
            values = rng.normal(0, 0.05, shape).astype("<f4")
            file.write(values.tobytes() if k % 2 else (values.view("<u4") & np.uint32(0xFFFF0000)).tobytes())
    return path


FORMS = {"npz": npz, "nnef": nnef, "safetensors": safetensors}


@pytest.mark.parametrize("encode", [ENCODE, LOSSLESS], ids=["default", "lossless"])
@pytest.mark.parametrize(
    ("form", "tensors", "millions"),
    [("npz", 1, 10), ("npz", 12, 4), ("nnef", 12, 4), ("safetensors", 12, 4)],
    ids=["npz of one tensor of 10 million", "npz of 192 MB", "NNEF of 192 MB", "safetensors of 192 MB"],
)
def test_peak(form: str, tensors: int, millions: int, encode: str, tmp_path: Path) -> None:
    source = FORMS[form](tmp_path / f"model.{form}", tensors, millions)
    bitstream, target = tmp_path / "model.nnr", tmp_path / f"decoded.{form}"
    size = 4 * tensors * millions * MILLION / 2**20
    encoding = peak(encode, source, bitstream)
    decoding = peak(DECODE, bitstream, target)
    print(f"{form}, {tensors} x {millions} million ({size:.0f} MB): encode {encoding:.0f} MB, decode {decoding:.0f} MB")
    assert target.exists()
    assert encoding <= 3 * size + 100
    assert decoding <= 3 * size + 100


# ------------------------------------------------------------------------------------------------ 32 tensors of 16 MB
TENSORS, SHAPE, MOST = 32, (1024, 4096), 400
FORMS_OF_NNEF = ("m.nnef", "m.tgz")


def sparse(tensors: int) -> Iterator[Array]:
    """Return matrices with a few nonzero rows, which are fast to code."""
    rng = np.random.default_rng(0)
    for _ in range(tensors):
        values = np.zeros(SHAPE, "<f4")
        values[:2] = rng.normal(0, 0.05, (2, SHAPE[1]))
        yield values


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with a model of 512 MB in two forms, and its bitstream."""
    path = tmp_path_factory.mktemp("folder")
    nnef_of(path / "m.nnef", sparse(TENSORS))
    nnr.save(nnr.load(path / "m.nnef"), path / "m.tgz")
    nnr.encode_file(path / "m.nnef", path / "m.nnr", jobs=2)
    yield path
    for form in FORMS_OF_NNEF:
        remove(path / form)


def remove(path: Path) -> None:
    """Delete a model, which would otherwise take disk space until later test runs."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(("form", "jobs"), [("m.nnef", 1), ("m.tgz", 2)])
def test_encoding_many_tensors(form: str, jobs: int, folder: Path, tmp_path: Path) -> None:
    found = peak(ENCODE_IN_THREADS, folder / form, tmp_path / "m.nnr", jobs)
    print(f"{form}, {jobs} jobs: encode {found:.0f} MB")
    assert (tmp_path / "m.nnr").read_bytes() == (folder / "m.nnr").read_bytes()
    assert found < MOST


@pytest.mark.parametrize(
    ("form", "way", "jobs"), [("m.nnef", "function", 1), ("m.tar", "command", 2), ("m.tgz", "command", 2)]
)
def test_decoding_many_tensors(form: str, jobs: int, way: str, folder: Path, tmp_path: Path) -> None:
    source, target = folder / "m.nnr", tmp_path / form
    if way == "function":
        found = peak(DECODE_TO_FILE, source, target, jobs)
    else:
        found = peak(COMMAND, "decode", source, "-q", "-o", target, "-j", jobs)
    print(f"{form}, {jobs} jobs: decode {found:.0f} MB")
    model = nnr.load(target)
    assert [model[f"w{k}"].shape for k in (0, TENSORS - 1)] == [SHAPE, SHAPE]
    assert len(model) == TENSORS
    remove(target)
    assert found < MOST


def test_a_large_bitstream(tmp_path: Path) -> None:
    """Memory is also bounded for tensors that are stored without compression."""
    rng = np.random.default_rng(0)
    nnef_of(tmp_path / "m.nnef", (rng.normal(0, 1, SHAPE).astype("<f4") for _ in range(32)))
    nnr.encode_file(tmp_path / "m.nnef", tmp_path / "m.nnr", rules=[nnr.Rule("*", exact=True)], effort=1, jobs=2)
    remove(tmp_path / "m.nnef")
    assert (tmp_path / "m.nnr").stat().st_size > MOST << 20
    found = peak(DECODE_TO_FILE, tmp_path / "m.nnr", tmp_path / "out.nnef", 2)
    remove(tmp_path / "out.nnef")
    assert found < MOST
