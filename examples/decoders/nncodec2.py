"""NNCodec 2 as a decoder for ``nnr conformance --decoder``: INPUT OUTDIR [EARLIER...].

    nnr conformance --decoder 'PYTHON examples/decoders/nncodec2.py {input} {outdir} {inputs}'

PYTHON is one that has nncodec 2.1.3; PyTorch and TensorFlow are not needed. Each tensor is written as it comes, under
its name, percent-encoded, with ``.npy``. Wrappers of other decoders need no more than this: exit code 0 says that the
bitstream was decoded, 1 that it was refused, with the reason on standard error.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from urllib.parse import quote

import numpy as np

#: ``nnr bench`` drives NNCodec by the same file.
DRIVER = Path(__file__).resolve().parents[2] / "cli" / "nncodec_worker.py"


def main(source: str, folder: str, *earlier: str) -> None:
    """Decode, and write the tensors."""
    os.dup2(2, 1)  # what NNCodec prints, from Python and from C++, is no result
    codec = runpy.run_path(str(DRIVER))["Codec"]()
    try:
        if earlier:
            codec.begin(history=True)
        for path in (*earlier, source):
            tensors = codec.decode(bytearray(Path(path).read_bytes()))
    except Exception as error:  # whatever it raises, it does not decode this
        sys.exit(f"{type(error).__name__}: {error}")
    for name, tensor in tensors.items():
        np.save(Path(folder, quote(name, safe="") + ".npy"), tensor)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("nncodec2.py INPUT OUTDIR [EARLIER...]")
    main(*sys.argv[1:])
