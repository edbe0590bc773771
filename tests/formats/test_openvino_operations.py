"""OpenVINO runs every operation of opset1 before and after the codec, and writes IRs without findings."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.formats.openvino.operations import OPERATIONS

from .ir_operations import CASES, write
from .irs import pair

ov = pytest.importorskip("openvino", reason="the package openvino (extra 'clients') is not installed")

pytestmark = [pytest.mark.medium, pytest.mark.clients]

#: Operations that OpenVINO has under this name only in a later set, which the other tests use.
LATER = ["Acosh", "Asinh", "Atanh", "LSTMSequence"]


@cache
def core() -> Any:
    return ov.Core()


def run(path: Path) -> list[bytes]:
    """Return the outputs for seeded inputs, in float32."""
    model = core().compile_model(core().read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    random = np.random.default_rng(1)
    outputs = model([random.uniform(-1, 1, each.shape).astype(np.float32) for each in model.inputs])
    return [output.tobytes() for output in outputs.values()]


@pytest.mark.slow
def test_operations_before_and_after(tmp_path: Path) -> None:
    for number, each in enumerate(CASES):
        source = write(each, tmp_path / str(number), OPERATIONS[each.type].opset)
        target = source.with_name("out.xml")
        nnr.decode_file(io.BytesIO(nnr.encode(source, exact=True)), target)
        assert pair(target) == pair(source), each
        expected = run(source)
        assert expected, each
        assert run(target) == expected, each


def test_operations_that_opset1_of_the_runtime_lacks(tmp_path: Path) -> None:
    refused = []
    for number, each in enumerate(CASES):
        try:
            core().read_model(write(each, tmp_path / str(number)))
        except RuntimeError as error:
            assert f"Opset opset1 doesn't contain the operation with type: {each.type}" in str(error)
            refused.append(each.type)
    assert sorted(refused) == LATER


@pytest.mark.parametrize("shape", ["static", "ranges", "rank"])
def test_irs_of_the_runtime_have_no_finding(shape: str, tmp_path: Path) -> None:
    for number, each in enumerate(CASES):
        model = core().read_model(write(each, tmp_path / str(number), OPERATIONS[each.type].opset))
        if shape == "rank":
            model.reshape({node: ov.PartialShape.dynamic() for node in model.inputs})
        elif shape == "ranges":
            shapes = {node: [ov.Dimension(1, 9), *list(node.shape)[1:]] for node in model.inputs}
            model.reshape({node: ov.PartialShape(extents) for node, extents in shapes.items()})
        ov.serialize(model, tmp_path / "out.xml")
        report = nnr.verify_model(tmp_path / "out.xml")
        assert [*report.violations, *report.notes] == [], each


def test_windows_have_the_shapes_of_the_runtime(tmp_path: Path) -> None:
    """Random strides, dilations, paddings and roundings of convolutions and poolings."""
    random, kinds = np.random.default_rng(2), set()
    for number in range(200):
        rank = int(random.integers(1, 4))
        strides, kernel = random.integers(1, 4, rank).tolist(), random.integers(1, 4, rank).tolist()
        dilations, extents = random.integers(1, 3, rank).tolist(), random.integers(5, 12, rank).tolist()
        begin, end = ([int(random.integers(0, size)) for size in kernel] for _ in range(2))
        auto_pad = str(random.choice(["explicit", "same_upper", "same_lower", "valid"]))
        rounding = str(random.choice(["floor", "ceil"]))
        made, window = ov.opset1, (strides, begin, end)
        values = made.parameter([1, 4, *extents], np.float32)
        weights = made.constant(np.zeros((2, 2, 2, *kernel), np.float32))
        if number % 4 == 0:
            node = made.max_pool(values, *window, kernel, rounding, auto_pad)
        elif number % 4 == 1:
            node = made.avg_pool(values, *window, kernel, False, rounding, auto_pad)
        elif number % 4 == 2:
            node = made.group_convolution(values, weights, *window, dilations, auto_pad)
        else:
            node = made.group_convolution_backprop_data(values, weights, strides, None, begin, end, dilations, auto_pad)
        ov.serialize(ov.Model([node], [values]), tmp_path / "m.xml")
        report = nnr.verify_model(tmp_path / "m.xml")
        assert report.violations == [], (node, strides, kernel, dilations, begin, end, auto_pad, rounding)
        kinds.add(node.get_type_name())
    assert len(kinds) == 4
