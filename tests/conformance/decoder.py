"""Decoder for ``nnr conformance --decoder`` that misbehaves as requested: MODE INPUT OUTDIR [INPUT...].

An INPUT ``--topology=FILE`` is a graph that is stored separately.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import numpy as np

import nnr_codec as nnr
from nnr_codec.bitstream.summary import side_information
from nnr_codec.bitstream.units import UnitReader


def without_record(path: str) -> bytes:
    """Return the bitstream as read by decoders that ignore side information."""
    reader = UnitReader(Path(path).read_bytes())
    return b"".join(bytes(unit.data) for unit in reader if side_information(unit) is None)


def main(mode: str, source: str, folder: str, *before: str) -> None:
    """Write NAME.npy for each tensor."""
    if mode == "crash":
        os.abort()
    if mode == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        Path(os.environ["CHILD"]).write_text(str(child.pid))
        time.sleep(60)
    if mode == "allocate":
        np.ones(1 << 31)
    if mode == "shell":
        sys.exit(139)
    if mode == "torn":
        Path(folder, "all.npz").write_bytes(b"PK")
        return
    if mode == "flood":
        for _ in range(1 << 8):
            os.write(2, b"." * (1 << 20))
    graphs = [word.removeprefix("--topology=") for word in before if word.startswith("--topology=")]
    before = tuple(word for word in before if not word.startswith("--topology="))
    decoder = nnr.UpdateDecoder(topology=graphs[0] if graphs else None)
    tensors = {}
    try:
        for path in (*before, source):
            update = decoder.decode(without_record(path) if mode == "plain" else Path(path))
            tensors = {name: tensor for name, tensor in update.items() if name not in update.left_out}
    except nnr.NnrError as error:
        sys.exit(0 if mode == "lenient" else str(error))
    if mode == "silent":
        return
    if mode == "rubbish":
        Path(folder, "w.npy").write_bytes(b"\x93NUMPY")
        return
    if mode == "archive":
        np.savez(Path(folder, "all.npz"), **tensors)
        return
    for name, tensor in tensors.items():
        written = tensor.astype("f8") if mode == "type" else tensor.copy()
        if mode == "patterns" and tensor.dtype.isbuiltin == 2:  # a type that .npy does not support
            written = tensor.view(f"u{tensor.itemsize}")
        if mode == "wrong" and written.size:
            written.reshape(-1)[-1] += 1
        np.save(Path(folder, quote(name, safe="") + ".npy"), written)


if __name__ == "__main__":
    main(*sys.argv[1:])
