"""OpenVINO and nnr_codec read each other's files; outputs of OpenVINO before and after the codec are compared."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nnr_codec as nnr

from ..shared import SHARED, needs_shared
from ..test_agreement import pictures
from .irs import DTYPES, pair

ov = pytest.importorskip("openvino", reason="the package openvino (extra 'clients') is not installed")

pytestmark = [pytest.mark.medium, pytest.mark.clients]

Floats = npt.NDArray[np.float32]

MODELS = (SHARED or Path()) / "models"
NAMES = ["digits_cnn_irv10", "resnet20_cifar10_irv11", "squeezenet1_0_deepcompression_irv11"]
MARKED = [*NAMES[:2], pytest.param(NAMES[2], marks=pytest.mark.slow)]
#: Size of a whole bitstream in percent of the .bin, and the least SNR in dB of outputs, with default options.
DEFAULTS = dict(zip(NAMES, [(29, 45), (38, 29), (11, 40)], strict=True))


@cache
def core() -> Any:
    return ov.Core()


def run(path: Path, inputs: Floats) -> Floats:
    """Return the output for each input, in float32 even if the plug-in would use bfloat16 on this machine."""
    model = core().compile_model(core().read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.concatenate([model([inputs[k : k + 1]])[0] for k in range(len(inputs))])


def inputs_of(name: str) -> Floats:
    """Return inputs of a model: digits outside its training set, or the images used for the NNEF models."""
    if name.startswith("digits"):
        with np.load(MODELS / "digits_test.npz") as arrays:
            digits: Floats = arrays["x"]
            return digits
    return pictures((1, 3, 32, 32) if name.startswith("resnet") else (1, 3, 227, 227))


def snr(original: Floats, other: Floats) -> float:
    """Return the signal-to-noise ratio in dB."""
    return float(10 * np.log10((original.astype(np.float64) ** 2).sum() / ((original - other) ** 2).sum()))


def through(path: Path, target: Path, **options: Any) -> int:
    """Encode an IR and decode it to another path; return the size of the bitstream in bytes."""
    data = nnr.encode(path, **options)
    nnr.decode_file(io.BytesIO(data), target)
    return len(data)


# ------------------------------------------------------------------------------------------------ real models
@needs_shared
@pytest.mark.parametrize("name", MARKED)
def test_lossless(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    source, target = MODELS / f"{name}.xml", tmp_path / "out.xml"
    size = through(source, target, exact=True)
    assert pair(target) == pair(source)
    inputs = inputs_of(name)[:8]
    assert run(target, inputs).tobytes() == run(source, inputs).tobytes()
    share = 100 * size / source.with_suffix(".bin").stat().st_size
    record_property(f"figure: {name}, lossless", f"{size:,} bytes, {share:.1f} %")


@needs_shared
@pytest.mark.parametrize("name", MARKED)
def test_default(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    source, target = MODELS / f"{name}.xml", tmp_path / "out.xml"
    size = through(source, target)
    share = 100 * size / source.with_suffix(".bin").stat().st_size
    assert target.read_bytes() == source.read_bytes()
    inputs = inputs_of(name)
    before, after = run(source, inputs), run(target, inputs)
    same = float(np.mean(before.argmax(1) == after.argmax(1)))
    quality = snr(before, after)
    record_property(
        f"figure: {name}, default",
        f"{size:,} bytes, {share:.1f} %; {100 * same:.1f} % of {len(inputs)} the same decision, {quality:.1f} dB",
    )
    most, least = DEFAULTS[name]
    assert share < most
    assert quality > least
    assert same >= 0.95
    if name.startswith("digits"):
        with np.load(MODELS / "digits_test.npz") as arrays:
            assert np.allclose(before, arrays["p"], atol=1e-5)


@needs_shared
@pytest.mark.parametrize("name", MARKED)
def test_constants_that_are_not_weights(name: str) -> None:
    """Integers are unchanged, also with default options."""
    source = nnr.load(MODELS / f"{name}.xml")
    decoded = nnr.decode(nnr.encode(source))
    integers = [each for each in source if source[each].dtype.kind == "i"]
    assert integers
    assert all(decoded[each].tobytes() == source[each].tobytes() for each in integers)
    assert list(decoded) == list(source)


@pytest.mark.slow
@needs_shared
def test_half_precision(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """As OpenVINO's converter saves models, weights are float16 and followed by a conversion."""
    name = "resnet20_cifar10"
    ov.save_model(ov.convert_model(MODELS / f"{name}.onnx"), tmp_path / "m.xml")
    source = tmp_path / "m.xml"
    sizes = [through(source, tmp_path / "out.xml", exact=True), through(source, tmp_path / "lossy.xml")]
    assert pair(tmp_path / "out.xml") == pair(source)
    inputs = inputs_of(name)[:64]
    before, after = run(source, inputs), run(tmp_path / "lossy.xml", inputs)
    whole = source.with_suffix(".bin").stat().st_size
    record_property(
        f"figure: {name}, float16",
        f"{whole:,} bytes, lossless {sizes[0]:,}; default {sizes[1]:,}, "
        f"{100 * np.mean(before.argmax(1) == after.argmax(1)):.1f} % the same decision, {snr(before, after):.1f} dB",
    )
    assert whole > sizes[0] > sizes[1]
    assert snr(before, after) > 25


# ------------------------------------------------------------------------------------------------ files of OpenVINO
@pytest.mark.parametrize(
    ("type", "values"),
    [
        *(("i4", [1, -2, 3, -8, 7]), ("u4", [1, 15, 3]), ("u2", [1, 3, 2, 0, 1]), ("boolean", [1, 0, 1])),
        *((f"i{bits}", [1, -2, 3]) for bits in (8, 16, 32, 64)),
        *((f"u{bits}", [1, 2, 200]) for bits in (8, 16, 32, 64)),
        *((name, [0.5, -1.5, 2.0]) for name in ("f8e4m3", "f8e5m2", "f16", "bf16", "f32", "f64")),
        *(("u1", [1, 0, 1]), ("u3", [1, 2, 7]), ("u6", [1, 2, 63]), ("nf4", [0.1, 1, -1])),
        *(("f4e2m1", [1, 2, 0.5]), ("f8e8m0", [1, 2, 0.5])),
    ],
)
def test_values_are_the_same(type: str, values: list[float], tmp_path: Path) -> None:
    constant = ov.op.Constant(getattr(ov.Type, type), ov.Shape([len(values)]), values)
    constant.set_friendly_name("c")
    ov.save_model(ov.Model([constant], [], "m"), tmp_path / "m.xml", compress_to_fp16=False)
    array = nnr.load(tmp_path / "m.xml")["c"]
    if type in DTYPES:
        assert array.dtype.name == DTYPES[type]
        assert array.astype(np.float64).tolist() == values
    else:
        assert array.dtype == np.uint8
    through(tmp_path / "m.xml", tmp_path / "out.xml", exact=True)
    assert pair(tmp_path / "out.xml") == pair(tmp_path / "m.xml")
    assert core().read_model(tmp_path / "out.xml").get_ops()


def model_of_bodies() -> Any:
    """Return an ``If`` whose bodies have constants of the same name, one in half precision, and scalars beside them."""
    ops = ov.opset13
    x, chosen = ops.parameter([1, 4], np.float32, name="x"), ops.parameter([], np.bool_, name="chosen")

    def body(scale: float) -> tuple[Any, Any]:
        parameter = ops.parameter([1, 4], np.float32)
        weight = ops.constant(np.random.default_rng(3).normal(scale=scale, size=(4, 4)).astype(np.float32))
        weight.set_friendly_name("w")
        return ov.Model([ops.matmul(parameter, weight, False, False)], [parameter], "body"), parameter

    (first, one), (second, other) = body(1), body(2)
    either = ops.if_op(chosen)
    either.set_then_body(first)
    either.set_else_body(second)
    either.set_input(x.output(0), one, other)
    result = either.set_output(first.results[0], second.results[0])
    result = ops.add(result, ops.constant(np.float32(0.1)))
    result = ops.matmul(result, ops.constant(np.ones((4, 4), np.float32) / 3), False, False)
    return ov.Model([result], [x, chosen], "m")


@pytest.mark.parametrize("half", [False, True])
def test_bodies_and_half_precision(half: bool, tmp_path: Path) -> None:
    ov.save_model(model_of_bodies(), tmp_path / "m.xml", compress_to_fp16=half)
    source = nnr.load(tmp_path / "m.xml")
    bodies = [name.partition("/")[2].removesuffix("_compressed") for name in source if "body" in name]
    assert bodies == ["then_body/w", "else_body/w"]
    assert {source[name].dtype.name for name in source if "body" in name} == {"float16" if half else "float32"}
    through(tmp_path / "m.xml", tmp_path / "out.xml", exact=True)
    assert pair(tmp_path / "out.xml") == pair(tmp_path / "m.xml")
    through(tmp_path / "m.xml", tmp_path / "lossy.xml")
    inputs = np.array([[0.5, -1, 2, 3]], np.float32)
    for chosen in (True, False):
        outputs = []
        for name in ("m.xml", "out.xml", "lossy.xml"):
            model = core().compile_model(tmp_path / name, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            outputs.append(model([inputs, np.array(chosen)])[0])
        assert outputs[0].tobytes() == outputs[1].tobytes()
        assert np.allclose(outputs[0], outputs[2], atol=0.05)
