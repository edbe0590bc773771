"""Worker process with one codec: requests and answers are lines of JSON on standard input and output.

The interpreter with the codec runs this file as a script, so it imports nothing of this project except the measured
package: ``worker.py ours`` or ``worker.py theirs DRIVER``, where DRIVER is cli/nncodec_worker.py.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Codec = tuple[Callable[[dict[str, Any], dict[str, Any]], bytes], Callable[[Any, int], dict[str, Any]], str]


def ours() -> Codec:
    """Return the functions of this project."""
    import nnr_codec as nnr

    _ = nnr.encode, nnr.decode, nnr.EncoderConfig  # imports them, which is otherwise done at the first use

    def encode(tensors: dict[str, Any], o: dict[str, Any]) -> bytes:
        fine = [nnr.Rule(pattern, exact=False, qp=o["fine_qp"]) for pattern in o["fine"]]
        config = nnr.EncoderConfig(
            qp=o["qp"],
            dependent_quantization=o["dq"],
            choose_shift_parameters=o["choice"],
            rate=o["rate"],
            noise_shaping=False,
            cabac_unary_length_minus1=o["unary"],
            fast_decode=o.get("fast_decode", False),
            rules=tuple(fine),
        )
        return nnr.encode(tensors, config, jobs=o.get("jobs", 1))

    def decode(data: Any, jobs: int) -> dict[str, Any]:
        return dict(nnr.decode(data, jobs=jobs).tensors)

    from nnr_codec.decoder import lanes

    decode_lanes = lanes.decode_lanes

    def counted(jobs: Any) -> tuple[int, int]:
        busy, steps = decode_lanes(jobs)
        LANES[0] += busy
        LANES[1] += steps
        return busy, steps

    lanes.decode_lanes = counted  # type: ignore[assignment]
    return encode, decode, nnr.__version__


def theirs(driver: str) -> Codec:
    """Return the functions of NNCodec."""
    codec = runpy.run_path(driver)["Codec"]()
    codec.begin(history=True)  # imports modules before the first round is measured
    codec.end()

    def encode(tensors: dict[str, Any], o: dict[str, Any]) -> bytes:
        options = {}
        if update := o.get("update"):
            if not update["number"]:
                codec.begin(update["history"])
            options = {"tca": update["temporal"], "row_skipping": update["row_skipping"]}
        data: bytes = codec.encode(
            tensors,
            qp=o["qp"],
            nonweight_qp=o["fine_qp"],
            use_dq=o["dq"],
            param_opt=o["choice"],
            lambda_scale=o["lambda_scale"],
            cabac_unary_length_minus1=o["unary"],
            **options,
        )
        return data

    def decode(data: Any, jobs: int) -> dict[str, Any]:
        result: dict[str, Any] = codec.decode(data)
        return result

    return encode, decode, codec.version


#: Sums of active lanes and of all lanes over all steps of one request.
LANES = [0, 0]


def peak() -> int:
    """Return the peak memory of the process since :func:`forget_peak`, in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


def forget_peak() -> int:
    """Reset the peak, and return the current memory of the process in bytes."""
    gc.collect()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return peak()


def measured(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the result, CPU and wall seconds, and the peak of memory in bytes above the memory before the call."""
    before = forget_peak()
    cpu, wall = time.process_time(), time.perf_counter()
    result = call()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return result, {"cpu": cpu, "wall": wall, "memory": peak() - before}


def main(side: str, *arguments: str) -> None:
    """Answer requests until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of a codec out of the answers
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
            LANES[:] = 0, 0
            result, answer = measured(partial(decode, content, request.get("jobs", 1)))
            if LANES[1]:
                answer["lanes"] = round(LANES[0] / LANES[1], 3)
            if request.get("to"):
                np.savez(request["to"], **result)
        print(json.dumps(answer), file=replies, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
