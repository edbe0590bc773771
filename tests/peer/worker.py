"""Runs under the peer's own python: encodes and decodes with NNCodec, one pickled request after another.

A request is a tuple (verb, argument, options), a reply a pair (whether it went well, result or message), each after its
length in 8 bytes; arrays go as (type, shape, bytes), since the two sides have different numpy. Only NNCodec's public
names ``compress``, ``decompress`` and ``HdspTool`` are used. Both ends are ours, so pickle is safe here.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import runpy
import sys
from typing import Any, BinaryIO

import numpy as np


def packed(tensors: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Arrays by name as (type, shape, bytes)."""
    return {name: (tensors[name].dtype.str, tensors[name].shape, tensors[name].tobytes()) for name in tensors}


def unpacked(tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> dict[str, Any]:
    """The inverse of `packed`; arrays that can be written to."""
    return {name: np.frombuffer(data, kind).reshape(shape).copy() for name, (kind, shape, data) in tensors.items()}


def remembered(history: bool) -> dict[str, Any]:
    """What either side of NNCodec keeps from one round to the next, as options of its functions."""
    base = {"parameters": {}, "put_node_depth": {}, "device_id": 0, "parameter_id": {}}
    rounds: dict[str, Any] = {"approx_param_base": base, "update_base_param": True}
    if history:
        from nncodec.nnc_core.hdsp.hdsp_tool import HdspTool

        rounds["hdsp_tool"] = HdspTool(True)
    return rounds


def handle(compression: Any, verb: str, argument: Any, options: dict[str, Any]) -> Any:
    """The answer to one request.

    ``encode`` makes bytes of tensors, ``update`` a list of bitstreams of a list of them (rounds, with state), and
    ``decode`` a list of tensors of a list of bitstreams (rounds, with state, if there are several). ``history``:
    whether the state has history, too.
    """
    history = options.pop("history", False)
    if verb == "encode":
        return bytes(compression.compress(unpacked(argument), bitstream_path=None, return_bitstream=True, **options))
    several = history or len(argument) > 1 or verb == "update"
    rounds = remembered(history) if several else {}
    if verb == "update":
        rounds |= {"bitstream_path": None, "return_bitstream": True, "compress_differences": True}
        return [bytes(compression.compress(unpacked(tensors), **rounds, **options)) for tensors in argument]
    if history:
        rounds["return_hls"] = True  # otherwise it does not learn of what was significant
    results = []
    for data in argument:
        noise = io.StringIO()
        with contextlib.redirect_stdout(noise):
            tensors = compression.decompress(bytearray(data), **rounds, **options)
        results.append(packed(tensors[0] if history else tensors))
    return results


def serve(tool: str, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer until the requests end."""
    compression = runpy.run_path(tool)["load"]()
    while header := requests.read(8):
        verb, argument, options = pickle.loads(requests.read(int.from_bytes(header, "big")))
        try:
            reply = (True, handle(compression, verb, argument, options))
        except Exception as error:  # whatever the peer raises is the answer, without the lines of its code
            reply = (False, f"{type(error).__name__}: {error}")
        content = pickle.dumps(reply)
        replies.write(len(content).to_bytes(8, "big") + content)
        replies.flush()


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the peer prints, from Python or from C++, shall not mix with the replies
    serve(sys.argv[1], sys.stdin.buffer, out)
