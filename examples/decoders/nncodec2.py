"""NNCodec 2 as a decoder for ``nnr conformance --decoder``: INPUT OUTDIR [EARLIER...].

    nnr conformance --decoder 'PYTHON examples/decoders/nncodec2.py {input} {outdir} {inputs}'

PYTHON is an interpreter with nncodec 2.1.3; PyTorch and TensorFlow are not required. ``adapter.py`` describes the
protocol and is the adapter to copy for other decoders.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from urllib.parse import quote

import numpy as np

#: ``nnr bench`` runs NNCodec by the same file.
DRIVER = Path(__file__).resolve().parents[2] / "cli" / "nncodec_worker.py"


def main(source: str, folder: str, *earlier: str) -> None:
    """Decode, and write the tensors."""
    os.dup2(2, 1)  # NNCodec prints, from Python and from C++
    codec = runpy.run_path(str(DRIVER))["Codec"]()
    try:
        if earlier:
            codec.begin(history=True)
        for path in (*earlier, source):
            tensors = codec.decode(bytearray(Path(path).read_bytes()))
    except Exception as error:  # any exception is a refusal
        sys.exit(f"{type(error).__name__}: {error}")
    for name, tensor in tensors.items():
        np.save(Path(folder, quote(name, safe="") + ".npy"), tensor)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("nncodec2.py INPUT OUTDIR [EARLIER...]")
    main(*sys.argv[1:])
