"""Models of several formats, run by their own runtimes: ``python -m benchmarks.formats [--table]``.

Each model is encoded at the default settings and without loss, decoded to its own format, and run: the digits network
of Keras with 450 test images, the others with 256 seeded images. Rows are printed as JSON; ``--table`` prints the table
of docs/reference/formats.md. Needs onnxruntime, openvino, tensorflow, keras, and the shared folder with models.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}

import numpy as np
import numpy.typing as npt

import nnr_codec as nnr

from .compare import ROOT, SHARED, machine

MODELS = SHARED / "models"
RESULTS = ROOT / "benchmarks" / "results" / "formats.jsonl"
#: Model files of runtimes other than Keras and TensorFlow, by label.
FILES = {
    "ONNX: digits CNN": "digits_cnn.onnx",
    "ONNX: ResNet-20": "resnet20_cifar10.onnx",
    "ONNX: ResNet-56": "resnet56_cifar10.onnx",
    "ONNX: SqueezeNet 1.0, pruned and clustered": "squeezenet1_0_deepcompression.onnx",
    "OpenVINO IR v10: digits CNN": "digits_cnn_irv10.xml",
    "OpenVINO IR v11: ResNet-20, batch norm folded by OpenVINO": "resnet20_cifar10_irv11.xml",
    "OpenVINO IR v11: SqueezeNet 1.0, pruned and clustered": "squeezenet1_0_deepcompression_irv11.xml",
}

Floats = npt.NDArray[np.floating[Any]]
Run = Callable[[Path], Floats]


def in_onnxruntime(path: Path) -> Floats:
    import onnxruntime

    from tests.test_agreement import pictures

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    shape = tuple(extent if isinstance(extent, int) else 1 for extent in given.shape)
    return np.concatenate([session.run(None, {given.name: one[None]})[0] for one in pictures(shape)])


def in_openvino(path: Path) -> Floats:
    import openvino

    from tests.test_agreement import pictures

    core = openvino.Core()
    network = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    shape = tuple(network.input(0).partial_shape.get_min_shape())
    return np.concatenate([network(one[None])[0] for one in pictures((1, *shape[1:]))])


def in_keras(path: Path) -> Floats:
    import keras

    from tests.formats.test_keras_models import digits_inputs, outputs

    return outputs(keras.saving.load_model(path), digits_inputs()[0])


def in_tensorflow(path: Path) -> Floats:
    import tensorflow

    from tests.formats.test_keras_models import digits_inputs

    model = tensorflow.saved_model.load(path)
    return np.asarray(model.serve(digits_inputs()[0]))


def models(folder: Path) -> Iterator[tuple[str, Path, Run]]:
    """Yield label, path and runtime of each model."""
    for label, name in FILES.items():
        yield label, MODELS / name, in_openvino if name.endswith(".xml") else in_onnxruntime
    from tests.formats.test_keras_models import digits

    model = digits()
    for name in ("digits.keras", "digits.h5"):
        model.save(folder / name)
        yield f"Keras: digits CNN, `{Path(name).suffix}`", folder / name, in_keras
    model.export(folder / "digits.savedmodel", verbose=False)
    yield "TensorFlow: the same, a SavedModel", folder / "digits.savedmodel", in_tensorflow


def measured(path: Path, run: Run, folder: Path) -> dict[str, Any]:
    """Return sizes in bytes, equal decisions in percent, and SNR of the outputs in dB."""
    before, row = run(path), dict[str, Any]()
    for name, config in (("default", nnr.EncoderConfig()), ("lossless", nnr.EncoderConfig(exact=True))):
        stream, decoded = folder / f"{name}.nnr", folder / name / path.name
        decoded.parent.mkdir()
        nnr.encode_file(path, stream, config)
        nnr.decode_file(stream, decoded)
        row[f"{name}_bytes"] = stream.stat().st_size
        after = run(decoded)
        if name == "lossless":
            np.testing.assert_array_equal(after, before)
        else:
            row["same"] = round(100 * float(np.mean(before.argmax(1) == after.argmax(1))), 1)
            row["snr"] = round(10 * float(np.log10((before**2).sum() / ((after - before) ** 2).sum())), 1)
    row["tensor_bytes"] = sum(value.nbytes for value in nnr.load(path).tensors.values())
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| model | default | same decision | SNR of the outputs | `--lossless` |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        sizes = [
            f"{row[name]:,} ({100 * row[name] / row['tensor_bytes']:.1f} %)"
            for name in ("default_bytes", "lossless_bytes")
        ]
        lines.append(f"| {row['model']} | {sizes[0]} | {row['same']} % | {row['snr']} dB | {sizes[1]} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all models, or print the table of stored rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.formats", description=__doc__.partition(":")[0])
    parser.add_argument("--table", action="store_true", help="print the table of the rows")
    if parser.parse_args().table:
        print(table([json.loads(line) for line in RESULTS.read_text("utf-8").splitlines()]))
        return
    common = {"machine": machine({}), "command": "python -m benchmarks.formats"}
    with tempfile.TemporaryDirectory() as temporary:
        for number, (label, path, run) in enumerate(models(Path(temporary))):
            folder = Path(temporary, str(number))
            folder.mkdir()
            print(json.dumps({"model": label, **measured(path, run, folder), **common}), flush=True)


if __name__ == "__main__":
    main()
