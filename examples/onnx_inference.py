"""Compress an ONNX model and run both in onnxruntime: ``python examples/onnx_inference.py``.

Writes the network of ``examples/digits`` as ONNX, and compares size, outputs and accuracy. Requires onnx, onnxruntime.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import nnr_codec as nnr

try:
    import onnx
    import onnxruntime
    from onnx import numpy_helper, parser
except ModuleNotFoundError as error:
    sys.exit(f"{error}; install it with: pip install onnx onnxruntime")

DIGITS = Path(__file__).parent / "digits"
GRAPH = """<ir_version: 8, opset_import: ["" : 17]>
digits (float[N, 1, 8, 8] image) => (float[N, 10] scores) {
    a = Conv <pads = [1, 1, 1, 1]> (image, conv1_weight, conv1_bias)
    b = BatchNormalization (a, bn1_scale, bn1_offset, bn1_mean, bn1_variance)
    c = Relu (b)
    d = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
    e = Conv <pads = [1, 1, 1, 1]> (d, conv2_weight, conv2_bias)
    f = BatchNormalization (e, bn2_scale, bn2_offset, bn2_mean, bn2_variance)
    g = Relu (f)
    h = Flatten (g)
    i = Gemm <transB = 1> (h, fc1_weight, fc1_bias)
    j = Relu (i)
    scores = Gemm <transB = 1> (j, fc2_weight, fc2_bias)
}"""


def make_model(path: Path) -> None:
    """Write the network of examples/digits as ONNX."""
    model = parser.parse_model(GRAPH)
    for label, tensor in nnr.load(DIGITS / "digits.nnef").tensors.items():
        value = np.asarray(tensor) if label.endswith("weight") else np.ravel(tensor)
        model.graph.initializer.append(numpy_helper.from_array(value, label.replace("/", "_")))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def run(path: Path, images: np.ndarray) -> np.ndarray:
    """Return the scores [n, 10] of images [n, 1, 8, 8]."""
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"image": images})[0]


with np.load(DIGITS / "test.npz") as test:
    images, labels = test["images"], test["labels"]
with tempfile.TemporaryDirectory() as temporary:
    source, bitstream, restored = (Path(temporary, name) for name in ("digits.onnx", "digits.nnr", "restored.onnx"))
    make_model(source)
    nnr.encode_file(source, bitstream, quality=30)  # stores the graph as well
    nnr.decode_file(bitstream, restored)

    before, after = source.stat().st_size, bitstream.stat().st_size
    print(f"size:     {before:,} bytes as ONNX, {after:,} bytes as NNR ({after / before:.1%})")
    expected, got = run(source, images), run(restored, images)
    print(f"outputs:  {np.mean(expected.argmax(1) == got.argmax(1)):.1%} same decision")
    accuracies = [np.mean(scores.argmax(1) == labels) for scores in (expected, got)]
    print(f"accuracy: {accuracies[0]:.1%} before, {accuracies[1]:.1%} after")
