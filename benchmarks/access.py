"""Time until tensors are available: ``python -m benchmarks.access [--quick]``.

Each function below measures one quantity and returns a row, a JSON line. Two ways to do the same work alternate, and
the result is the median of the ratios of these pairs, so that temporary load on the machine affects both. The row
"machine" is the largest speedup that two threads can reach here; if it is not near 2, the machine is busy.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import nnr_codec as nnr
from nnr_codec.bitstream.ndu import write_ndu
from nnr_codec.bitstream.units import write_unit
from nnr_codec.constants import NNR_MPS, NNR_QSU, NNR_STR
from nnr_codec.syntax import Session
from nnr_codec.syntax.structures import (
    NnrCompressedDataUnitHeader,
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrStartUnitHeader,
    NnrUnitHeader,
)

Row = dict[str, Any]


def cpus() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds(call: Callable[[], object]) -> float:
    """Return the wall time of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def pairs(slow: Callable[[], object], fast: Callable[[], object], repetitions: int) -> Row:
    """Return the median of the ratios of pairs of calls, each ratio, and the median wall times in seconds."""
    slow(), fast()  # neither is charged for work that is done only once, such as fetching memory from the system
    times = []
    for k in range(repetitions):
        if k % 2:
            late = seconds(fast)
            times.append((seconds(slow), late))
        else:
            times.append((seconds(slow), seconds(fast)))
    each = [one / other for one, other in times]
    return {
        "ratio": round(statistics.median(each), 3),
        "ratios": [round(ratio, 3) for ratio in each],
        "seconds": [round(statistics.median(column), 4) for column in zip(*times, strict=True)],
    }


def machine_of_two(repetitions: int = 5) -> float:
    """Measure the speedup of two independent threads over one: 2 on an idle machine with two processors."""
    content = bytes(32 << 20)

    def both() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(sha256, [content] * 2))

    return float(pairs(lambda: [sha256(content), sha256(content)], both, repetitions)["ratio"])


def block_scan(path: Path, rows: int, columns: int, scan_order: int = 4) -> None:
    """Write a bitstream of one float tensor "w" with entry points: Laplacian levels, half of them 0."""
    levels = np.random.default_rng(1).laplace(0, 0.72, (min(rows, 1000), columns)).round().astype(np.int32)
    levels = np.tile(levels, (-(-rows // 1000), 1))[:rows]
    session = Session()
    start = NnrUnitHeader(nnr_unit_type=NNR_STR, detail=NnrStartUnitHeader(general_profile_idc=1))
    parameters = NnrModelParameterSetUnitPayload(
        mps_quantization_method_flags=NNR_QSU, mps_qp_density=2, mps_quantization_parameter=0
    )
    mps = NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader())
    header = NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=1,
        input_parameters_present_flag=1,
        topology_elem_id="w",
        tensor_dimensions_flag=1,
        tensor_dimensions=[rows, columns],
        cabac_unary_length_flag=1,
        cabac_unary_length_minus1=10,
        scan_order=scan_order,
    )
    with path.open("wb") as file:
        file.write(write_unit(start, None, session) + write_unit(mps, parameters, session))
        file.writelines(write_ndu(header, levels, session, qp=-32))


def entry_points(quick: bool) -> Row:
    """Decode a large tensor with entry points in two threads and in one: at least 1.7 times as fast."""
    rows = 1000 if quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "large.nnr")
        block_scan(path, rows, 10_000)
        row = pairs(lambda: nnr.decode(path), lambda: nnr.decode(path, jobs=2), 3 if quick else 7)
        bits = 8 * path.stat().st_size / (rows * 10_000)
    return {"row": "entry points", "parameters": rows * 10_000, "bits": round(bits, 3), **row, "at_least": 1.7}


def listing(quick: bool) -> Row:
    """Measure the CPU time of ``nnr ls`` for 1,000 tensors minus the time for one tensor: at most 80 ms."""
    rng = np.random.default_rng(2)
    tensors = {f"model.layers.{k // 10}.block{k % 10}.weight": rng.normal(size=(16, 16)) for k in range(1000)}
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "one.nnr"), Path(folder, "thousand.nnr")
        nnr.encode_file({"w": tensors["model.layers.0.block0.weight"]}, paths[0])
        nnr.encode_file(tensors, paths[1])
        times = [tuple(cpu_seconds("ls", str(path)) for path in paths) for _ in range(5 if quick else 21)]
    one, thousand = (statistics.median(column) for column in zip(*times, strict=True))
    return {"row": "nnr ls", "one": round(one, 4), "thousand": round(thousand, 4), "above": round(thousand - one, 4)}


def cpu_seconds(*arguments: str) -> float:
    """Return the CPU time of a command, whose output must not be empty."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", "from nnr_cli.main import main; main()", *arguments]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


class Counting(io.FileIO):
    """File that counts the bytes read from it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        part: bytes = super().read(-1 if size is None else size)
        self.count += len(part)
        return part


def one_tensor(quick: bool) -> Row:
    """Count bytes read for one tensor of a bitstream of 100 MB, beyond its unit and all headers: less than 1 %."""
    count = 10 if quick else 100
    tensors = {f"layer{k}.weight": np.full((512, 512), k, "f4") for k in range(count)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "large.nnr")
        nnr.encode_file(tensors, path, exact=True)
        headers = sum(unit.payload_offset for unit in nnr.units(path))
        with Counting(str(path)) as file:
            opened = nnr.open(file)
            assert (opened["layer7.weight"] == 7).all()
            needed = headers + opened.info["layer7.weight"].nbytes
            return {
                "row": "one tensor",
                "bytes": opened.nbytes,
                "needed": needed,
                "read": file.count,
                "percent_above": round(100 * (file.count / needed - 1), 3),
            }


ROWS: tuple[Callable[[bool], Row], ...] = (entry_points, listing, one_tensor)


def main() -> None:
    """Print the machine, then a row for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="do a tenth of the work")
    quick = parser.parse_args().quick
    print(json.dumps({"row": "machine", "cpus": cpus(), "two_threads": machine_of_two()}), flush=True)
    for measure in ROWS:
        print(json.dumps(measure(quick)), flush=True)
    print(json.dumps({"row": "machine", "cpus": cpus(), "two_threads": machine_of_two()}), flush=True)


if __name__ == "__main__":
    main()
