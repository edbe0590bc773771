"""One codec in a process of its own: requests and answers are lines of JSON on standard input and output.

Run as a script by the interpreter that has the codec, so it imports nothing of this project but what it measures:
``worker.py ours`` or ``worker.py theirs TOOLS``, TOOLS being the folder of nncodec_peer.py.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Codec = tuple[Callable[[dict[str, Any], dict[str, Any]], bytes], Callable[[Any, int], dict[str, Any]], str]


def ours() -> Codec:
    """This project."""
    import nnr_codec as nnr

    _ = nnr.encode, nnr.decode, nnr.EncoderConfig  # imported when first used

    def encode(tensors: dict[str, Any], o: dict[str, Any]) -> bytes:
        fine = [nnr.Rule(pattern, exact=False, qp=o["fine_qp"]) for pattern in o["fine"]]
        config = nnr.EncoderConfig(
            qp=o["qp"],
            dependent_quantization=o["dq"],
            choose_shift_parameters=o["choice"],
            rate=o["rate"],
            cabac_unary_length_minus1=o["unary"],
            rules=tuple(fine),
        )
        return nnr.encode(tensors, config, jobs=o.get("jobs", 1))

    def decode(data: Any, jobs: int) -> dict[str, Any]:
        return dict(nnr.decode(data, jobs=jobs).tensors)

    return encode, decode, nnr.__version__


def theirs(tools: str) -> Codec:
    """NNCodec, without the frameworks that it imports otherwise."""
    sys.path.insert(0, tools)
    from importlib import import_module
    from importlib.metadata import version

    nnc = import_module("nncodec_peer").load()
    history_of = import_module("nncodec.nnc_core.hdsp.hdsp_tool").HdspTool
    state: dict[str, Any] = {}

    def rounds(number: int, temporal: bool, history: bool, row_skipping: bool) -> dict[str, Any]:
        """Options of a round of updates; the first begins with an empty state."""
        if not number:
            empty = {"parameters": {}, "put_node_depth": {}, "device_id": 0, "parameter_id": {}}
            state.update(approx_param_base=empty, hdsp_tool=history_of(True) if history else None)
        tools = {"tca": temporal, "row_skipping": row_skipping}
        return {"compress_differences": True, "update_base_param": True, **tools, **state}

    def encode(tensors: dict[str, Any], o: dict[str, Any]) -> bytes:
        data: bytes = nnc.compress(
            dict(tensors),
            bitstream_path=None,
            return_bitstream=True,
            qp=o["qp"],
            nonweight_qp=o["fine_qp"],
            use_dq=o["dq"],
            param_opt=o["choice"],
            lambda_scale=o["lambda_scale"],
            cabac_unary_length_minus1=o["unary"],
            **(rounds(**o["update"]) if "update" in o else {}),
        )
        return data

    def decode(data: Any, jobs: int) -> dict[str, Any]:
        result: dict[str, Any] = nnc.decompress(data)
        return result

    return encode, decode, version("nncodec")


def peak() -> int:
    """The most memory that the process had at a time since :func:`forget_peak`, in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


def forget_peak() -> int:
    """Let :func:`peak` count from now on; what the process has now, in bytes."""
    gc.collect()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return peak()


def measured(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """The result, with CPU and wall time in seconds, and the peak of memory above that before the call in bytes."""
    before = forget_peak()
    cpu, wall = time.process_time(), time.perf_counter()
    result = call()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return result, {"cpu": cpu, "wall": wall, "memory": peak() - before}


def main(side: str, *arguments: str) -> None:
    """Answer until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a codec prints is no answer
    empty = forget_peak()
    started = time.perf_counter()
    encode, decode, version = theirs(*arguments) if side == "theirs" else ours()
    about = {"version": version, "import": time.perf_counter() - started, "numpy": np.__version__}
    print(json.dumps({**about, "memory": peak() - empty}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "encode":
            with np.load(request["tensors"]) as file:
                tensors = dict(file)
            data, answer = measured(partial(encode, tensors, request["options"]))
            with open(request["to"], "wb") as target:
                target.write(data)
            answer["bytes"] = len(data)
        else:
            with open(request["from"], "rb") as source:
                content = bytearray(source.read())
            result, answer = measured(partial(decode, content, request.get("jobs", 1)))
            if request.get("to"):
                np.savez(request["to"], **result)
        print(json.dumps(answer), file=replies, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
