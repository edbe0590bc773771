"""Driver of NNCodec in a separate process: requests and replies are lines of JSON on standard input and output.

The interpreter with NNCodec runs this file as a script, so it imports nothing of this project. `contenders.Peer` sends
the requests; benchmarks/worker.py and examples/decoders/nncodec2.py load :class:`Codec` from this file. Only NNCodec's
public names ``compress``, ``decompress`` and ``HdspTool`` are used.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np

#: CPU seconds after which no further run is made, and maximum number of runs.
ENOUGH, RUNS = 0.5, 5


class Codec:
    """NNCodec's functions for arrays, with its state between updates."""

    def __init__(self) -> None:
        self._functions = load()
        self._state: dict[str, Any] = {}
        self.version = version("nncodec")

    def begin(self, history: bool = False) -> None:
        """Start a sequence of updates; ``history`` adds the tool for history-dependent significance."""
        base = {"parameters": {}, "put_node_depth": {}, "device_id": 0, "parameter_id": {}}
        self._state = {"approx_param_base": base, "update_base_param": True}
        if history:
            self._state["hdsp_tool"] = import_module("nncodec.nnc_core.hdsp.hdsp_tool").HdspTool(True)

    def end(self) -> None:
        """End the sequence: later tensors are not updates."""
        self._state = {}

    def encode(self, tensors: Mapping[str, Any], **options: Any) -> Any:
        """Return the bitstream of tensors, or of differences within a sequence."""
        if self._state:
            options |= self._state | {"compress_differences": True}
        return self._functions.compress(dict(tensors), bitstream_path=None, return_bitstream=True, **options)

    def decode(self, data: bytearray) -> dict[str, Any]:
        """Return the tensors of a bitstream; all-zero tensors are missing from updates."""
        if "hdsp_tool" not in self._state:
            tensors: dict[str, Any] = self._functions.decompress(data, **self._state)
            return tensors
        # Without return_hls, NNCodec does not update its significance history.
        tensors, *_ = self._functions.decompress(data, return_hls=True, **self._state)
        return tensors


def module(name: str, **attributes: Any) -> types.ModuleType:
    """Install a module in place of one that would import a framework."""
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(attributes, __path__=[])
    return made


def load() -> Any:
    """Return NNCodec's functions for arrays, without torch and TensorFlow."""
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
    """Return the result, and the CPU seconds of the fastest run."""
    best, spent = float("inf"), 0.0
    for _ in range(RUNS):
        started = time.process_time()
        result = call()
        taken = time.process_time() - started
        best, spent = min(best, taken), spent + taken
        if spent >= ENOUGH:
            break
    return result, best


def answer(codec: Codec, request: dict[str, Any]) -> dict[str, Any]:
    """Execute a request.

    ``begin`` and ``end`` are methods of :class:`Codec`. ``encode`` writes the bitstream of the arrays in the .npz file
    ``from`` to the file ``to``; the request has their ``names``. ``decode`` does the opposite, and the reply has the
    names. With ``timed``, the reply has the CPU seconds.
    """
    verb, timing = request["do"], timed if request.get("timed") else lambda call: (call(), None)
    if verb == "begin":
        codec.begin(request["history"])
    elif verb == "end":
        codec.end()
    elif verb == "encode":
        with np.load(request["from"]) as file:
            tensors = dict(zip(request["names"], (file[f"arr_{k}"] for k in range(len(file.files))), strict=True))
        data, seconds = timing(lambda: codec.encode(tensors, **request["options"]))
        with open(request["to"], "wb") as target:
            target.write(data)
        return {"seconds": seconds}
    else:
        with open(request["from"], "rb") as source:
            content = source.read()
        decoded, seconds = timing(lambda: codec.decode(bytearray(content)))
        np.savez(request["to"], *(decoded[name] for name in decoded))
        return {"seconds": seconds, "names": list(decoded)}
    return {}


def main() -> None:
    """Answer requests until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the codec must not mix with replies
    codec = Codec()
    print(json.dumps({"version": codec.version}), file=replies, flush=True)
    for line in sys.stdin:
        try:
            reply = answer(codec, json.loads(line))
        except Exception as error:  # any exception is a reply
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
