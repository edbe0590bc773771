"""NNCodec 2 as a decoder for ``nnr conformance --decoder``: INPUT OUTDIR [EARLIER...].

    nnr conformance --decoder 'PYTHON examples/decoders/nncodec2.py {input} {outdir} {inputs}'

PYTHON is one that has nncodec 2.1.3; PyTorch and TensorFlow are not needed. Each tensor is written as it comes, under
its name, percent-encoded, with ``.npy``. Wrappers of other decoders need no more than this: exit code 0 says that the
bitstream was decoded, 1 that it was refused, with the reason on standard error.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

#: What NNCodec imports for models of frameworks, and what it asks of that about a dict of arrays.
FRAMEWORKS: dict[str, dict[str, Any]] = {
    "nncodec.framework": {"__path__": []},
    "nncodec.framework.pytorch_model": {"is_pyt_model": lambda *_: False},
    "nncodec.framework.tensorflow_model": {"is_tef_model": lambda *_: False},
    "nncodec.framework.use_case_init": {"use_cases": {}},
}


def load() -> Any:
    """Its functions ``compress`` and ``decompress``, without PyTorch and TensorFlow."""
    for name, content in FRAMEWORKS.items():
        module = sys.modules[name] = types.ModuleType(name)
        vars(module).update(content)
        parent, _, last = name.rpartition(".")
        if parent in FRAMEWORKS:
            setattr(sys.modules[parent], last, module)
    return import_module("nncodec.nnc.compression")


def decode(codec: Any, source: Path, earlier: list[Path]) -> Mapping[str, Any]:
    """The tensors of a bitstream after those that come before it.

    Significance that depends on history is remembered by a tool of NNCodec that has to be given, as has all else that
    goes from one update to the next.
    """
    options: dict[str, Any] = {}
    if earlier:
        hdsp = import_module("nncodec.nnc_core.hdsp.hdsp_tool")
        base = {"parameters": {}, "put_node_depth": {}, "device_id": 0, "parameter_id": {}}
        options = {"approx_param_base": base, "update_base_param": True, "hdsp_tool": hdsp.HdspTool(True)}
        options["return_hls"] = True  # without that, it does not learn what was significant
    for path in (*earlier, source):
        tensors = codec.decompress(bytearray(path.read_bytes()), **options)
    return tensors[0] if earlier else tensors


def main(source: str, folder: str, *earlier: str) -> None:
    """Decode, and write what comes of it."""
    os.dup2(2, 1)  # what NNCodec prints, from Python and from C++, is no result
    codec = load()
    try:
        tensors = decode(codec, Path(source), list(map(Path, earlier)))
    except Exception as error:  # whatever it raises, it does not decode this
        sys.exit(f"{type(error).__name__}: {error}")
    for name, tensor in tensors.items():
        np.save(Path(folder, quote(name, safe="") + ".npy"), tensor)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("nncodec2.py INPUT OUTDIR [EARLIER...]")
    main(*sys.argv[1:])
