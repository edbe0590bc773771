"""NNCodec in a process of its own: requests and answers are lines of JSON on standard input and output.

Run as a script by the interpreter that has NNCodec, so it imports nothing of this project.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np

#: Seconds of CPU after which no further run is made, and runs at most.
ENOUGH, RUNS = 0.5, 5


def module(name: str, **attributes: Any) -> types.ModuleType:
    """A module in the place of one that would import a framework."""
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(attributes, __path__=[])
    return made


def load() -> Any:
    """Its functions for arrays, without torch and TensorFlow."""
    framework = module("nncodec.framework")
    parts: dict[str, dict[str, Any]] = {
        "pytorch_model": {"is_pyt_model": lambda *_: False},
        "tensorflow_model": {"is_tef_model": lambda *_: False},
        "use_case_init": {"use_cases": {}},
    }
    for name, attributes in parts.items():
        setattr(framework, name, module(f"nncodec.framework.{name}", **attributes))
    return import_module("nncodec.nnc.compression")


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the CPU seconds of the fastest run."""
    best, spent = float("inf"), 0.0
    for _ in range(RUNS):
        started = time.process_time()
        result = call()
        taken = time.process_time() - started
        best, spent = min(best, taken), spent + taken
        if spent >= ENOUGH:
            break
    return result, best


def measured(codec: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Code the tensors of one file, and write what they decode to into another."""
    with np.load(request["tensors"]) as file:
        tensors = dict(file)
    options = {"bitstream_path": None, "return_bitstream": True, "qp": request["qp"]}
    data, encoding = timed(lambda: codec.compress(dict(tensors), **options))
    decoded, decoding = timed(lambda: codec.decompress(bytearray(data)))
    np.savez(request["to"], **decoded)
    return {"bytes": len(data), "encode": encoding, "decode": decoding}


def main() -> None:
    """Answer until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the codec prints is no answer
    codec = load()
    print(json.dumps({"version": version("nncodec")}), file=replies, flush=True)
    for line in sys.stdin:
        try:
            answer = measured(codec, json.loads(line))
        except Exception as error:  # whatever it raises is the answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=replies, flush=True)


if __name__ == "__main__":
    main()
