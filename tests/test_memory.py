"""Peak memory of whole files: at most three times the tensors as float32, and 100 MB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

MILLION = 1_000_000
ENCODE = "import sys, nnr_codec; nnr_codec.encode_file(sys.argv[1], sys.argv[2])"
LOSSLESS = "import sys, nnr_codec; nnr_codec.encode_file(sys.argv[1], sys.argv[2], exact=True)"
DECODE = "import sys, nnr_codec; nnr_codec.save(nnr_codec.decode(sys.argv[1]), sys.argv[2])"
# Of the process's own memory: ru_maxrss would count what the process that started it had at that moment.
PEAK = "\nprint(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"


def peak(script: str, *arguments: Path) -> float:
    """The largest resident size of a new process, in MB."""
    command = [sys.executable, "-c", script + PEAK, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(run.stdout) / 1024  # kilobytes on Linux


def npz(path: Path, tensors: int, millions: int) -> Path:
    """An npz file of that many tensors of that many million parameters."""
    rng = np.random.default_rng(0)
    shape = (1000, 1000 * millions)
    np.savez(path, **{f"w{k}": rng.normal(0, 0.05, shape).astype("f4") for k in range(tensors)})
    return path


def nnef(path: Path, tensors: int, millions: int) -> Path:
    """An NNEF folder of the same."""
    rng = np.random.default_rng(0)
    path.mkdir()
    lines = ["version 1.0;", "", "graph g(x) -> (y)", "{", "    x = external<scalar>(shape = [1, 1000]);"]
    shape = (1000, 1000 * millions)
    for k in range(tensors):
        lines.append(f"    w{k} = variable<scalar>(shape = {list(shape)}, label = 'w{k}');")
        values = rng.normal(0, 0.05, shape).astype("<f4")
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
    """A safetensors file of the same: of float32 that was bfloat16 in every other tensor."""
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
    [("npz", 1, 10), ("npz", 25, 4), ("nnef", 25, 4), ("safetensors", 25, 4)],
    ids=["npz of one tensor of 10 million", "npz of 400 MB", "NNEF of 400 MB", "safetensors of 400 MB"],
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
