"""ONNX models above 2 GiB with external data, processed in little memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nnr_codec import formats

from . import onnx_files as made
from .onnx_files import entries, field, model

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")]

SIDE, COUNT = 4096, 36
NBYTES = 4 * SIDE * SIDE
CODEC = """
import sys, nnr_codec
nnr_codec.encode_file(sys.argv[1], sys.argv[2], exact=True)
nnr_codec.decode_file(sys.argv[2], sys.argv[3])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder that is deleted after the test, because it takes gigabytes."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def declared(number: int, data: bytes) -> bytes:
    """Return a tensor of 64 MiB."""
    return field(1, SIDE) * 2 + field(2, 1) + field(8, f"w{number}") + data


def holed(path: Path, *starts: int) -> None:
    """Make a sparse file of zeros in which the tensors at these offsets begin with 1, 2, 3 …"""
    with open(path, "r+b") as file:
        for number, start in enumerate(starts, 1):
            file.seek(start)
            file.write(np.float32(number).tobytes())
        file.truncate(max(file.seek(0, 2), starts[-1] + NBYTES))


def test_external_data(folder: Path) -> None:
    starts = [number * NBYTES for number in range(COUNT)]
    assert starts[-1] > 2 << 30
    source = made.write(
        folder,
        model(tensors=[declared(k, entries("weights", start, NBYTES)) for k, start in enumerate(starts)]),
        weights=b"",
    )
    holed(folder / "weights", *starts)
    (folder / "out").mkdir()
    target = folder / "out" / "m.onnx"
    command = [sys.executable, "-c", CODEC, str(source), str(folder / "m.nnr"), str(target)]
    memory = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(memory) < 700_000
    assert target.read_bytes() == model(
        tensors=[declared(k, entries("m.onnx.data", start, NBYTES)) for k, start in enumerate(starts)]
    )
    same = ["cmp", str(folder / "weights"), str(folder / "out" / "m.onnx.data")]
    subprocess.run(same, check=True)


def test_data_inside_go_outside(folder: Path) -> None:
    """Other software cannot write such a file, but it is read."""
    heads = []
    for number in range(COUNT):
        body = declared(number, made.varint(9 * 8 + 2) + made.varint(NBYTES))
        heads.append(made.varint(5 * 8 + 2) + made.varint(len(body) + NBYTES) + body)
    inner = field(2, "g")
    size = len(inner) + sum(map(len, heads)) + COUNT * NBYTES
    start = field(1, 8) + made.varint(7 * 8 + 2) + made.varint(size) + inner
    path, starts, at = folder / "m.onnx", [], len(start)
    with open(path, "wb") as file:
        file.write(start)
        for head in heads:
            file.seek(at)
            file.write(head)
            starts.append(at + len(head))
            at += len(head) + NBYTES
    holed(path, *starts)
    loaded = formats.load(path)
    assert [float(loaded[f"w{k}"][0, 0]) for k in (0, 9, COUNT - 1)] == [1, 10, COUNT]
    formats.save(loaded, folder / "out.onnx")
    assert (folder / "out.onnx").stat().st_size < 10_000
    again = formats.load(folder / "out.onnx")
    assert [float(again[f"w{k}"][0, 0]) for k in (0, 9, COUNT - 1)] == [1, 10, COUNT]
    assert (folder / "out.onnx.data").stat().st_size == COUNT * NBYTES
