"""Check of OpenVINO IRs: every operation of opset1 has no finding, and each fault one finding at its line."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats.openvino import layers
from nnr_codec.formats.openvino.operations import OPERATIONS
from nnr_codec.formats.openvino.rules import RULES
from nnr_codec.limits import Limits

from ..shared import SHARED, needs_shared
from .ir_operations import CASES, Case, case, data, floats, ints, network, scalar, write

_WINDOW = {"strides": "1,1", "dilations": "1,1", "pads_begin": "0,0", "pads_end": "0,0", "auto_pad": "explicit"}
_POOL = {"strides": "2,2", "kernel": "2,2", "pads_begin": "0,0", "pads_end": "0,0"}
_IMAGE, _WEIGHT = data(1, 3, 6, 6), floats(4, 3, 3, 3)
_OUT = (1, 4, 4, 4)
_NUMPY = {"auto_broadcast": "numpy"}


def _without(attributes: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in attributes.items() if key != name}


#: Broken rules, and a layer that breaks only this rule.
LAYERS = [
    ("ir-operation", case("Gelu", [data(2, 3)], (2, 3))),
    ("ir-input-count", case("Sigmoid", [data(2, 3), floats(2, 3)], (2, 3))),
    ("ir-input-count", case("MatMul", [data(2, 3)], (2, 3))),
    ("ir-input-count", case("Concat", [], (2, 3), axis="0")),
    ("ir-input-count", case("Broadcast", [data(3), ints(2, 3)], (2, 3), mode="explicit")),
    ("ir-output-count", case("Sigmoid", [data(2, 3)])),
    ("ir-output-count", case("Sigmoid", [data(2, 3)], (2, 3), (2, 3))),
    ("ir-output-count", case("Split", [data(2, 6), scalar(1)], *[(2, 2)] * 3, num_splits="2")),
    ("ir-attribute-missing", case("Convolution", [_IMAGE, _WEIGHT], _OUT, **_without(_WINDOW, "strides"))),
    ("ir-attribute-missing", case("AvgPool", [_IMAGE], (1, 3, 3, 3), **_POOL)),
    ("ir-attribute-missing", case("MaxPool", [_IMAGE], (1, 3, 3, 3), **_without(_POOL, "pads_end"))),
    ("ir-attribute-missing", case("Clamp", [data(2, 3)], (2, 3), min="0")),
    ("ir-attribute-value", case("Convolution", [_IMAGE, _WEIGHT], _OUT, **{**_WINDOW, "strides": "1,x"})),
    ("ir-attribute-value", case("Convolution", [_IMAGE, _WEIGHT], _OUT, **{**_WINDOW, "strides": "0,1"})),
    ("ir-attribute-value", case("Convolution", [_IMAGE, _WEIGHT], _OUT, **{**_WINDOW, "auto_pad": "diagonal"})),
    ("ir-attribute-value", case("MatMul", [data(2, 3), floats(3, 4)], (2, 4), transpose_a="maybe")),
    ("ir-attribute-value", case("Convert", [data(2, 3)], (2, 3), destination_type="f3x")),
    ("ir-attribute-value", case("Elu", [data(2, 3)], (2, 3), alpha="much")),
    ("ir-attribute-value", case("Concat", [data(2, 3)], (2, 3), axis="1.5")),
    ("ir-attribute-value", case("FakeQuantize", [data(3), *[floats(3)] * 4], (3,), levels="1")),
    ("ir-attribute-value", case("RNNCell", [data(1, 3), floats(1, 2), floats(2, 3), floats(2, 2)], (1, 2),
                                hidden_size="2", activations="tanh,cosh")),
    ("ir-attribute-count", case("Convolution", [_IMAGE, _WEIGHT], _OUT, **{**_WINDOW, "strides": "1,1,1"})),
    ("ir-attribute-count", case("Convolution", [_IMAGE, _WEIGHT], _OUT, **{**_WINDOW, "dilations": ""})),
    ("ir-attribute-count", case("MaxPool", [_IMAGE], (1, 3, 3, 3), **{**_POOL, "kernel": "2"})),
    ("ir-attribute-count", case("MaxPool", [_IMAGE], (1, 3, 3, 3), **{**_POOL, "pads_end": "0"})),
    ("ir-input-type", case("Add", [data(2, 3), ints(1, 2, 3)], (2, 3), **_NUMPY)),
    ("ir-input-type", case("LogicalNot", [data(2, 3)], (2, 3), types="boolean")),
    ("ir-input-type", case("Gather", [data(2, 3), floats(2), scalar(1)], (2, 2))),
    ("ir-output-type", case("Equal", [data(2, 3), floats(3)], (2, 3), **_NUMPY)),
    ("ir-output-type", case("Sigmoid", [data(2, 3)], (2, 3), types="f16")),
    ("ir-output-type", case("Convert", [data(2, 3)], (2, 3), types="i64", destination_type="i32")),
    ("ir-input-rank", case("Convolution", [_IMAGE, floats(4, 27)], _OUT, **_WINDOW)),
    ("ir-input-rank", case("MaxPool", [data(4, 3)], (4, 3), **_POOL)),
    ("ir-input-rank", case("CTCGreedyDecoder", [data(5, 4), np.ones((5, 2), np.float32)], (2, 5, 1, 1))),
    ("ir-input-shape", case("Transpose", [data(2, 3, 4), ints(1, 0)], (3, 2, 4))),
    ("ir-input-shape", case("DepthToSpace", [data(1, 6, 2, 2)], (1, 1, 4, 4), block_size="2", mode="depth_first")),
    ("ir-input-shape", case("LSTMCell", [data(1, 3), floats(1, 2), floats(1, 2), floats(8, 4), floats(8, 2), floats(8)],
                            (1, 2), (1, 2), hidden_size="2")),
    ("ir-input-shape", case("BatchNormInference", [floats(3), floats(3), data(2, 4, 5), floats(3), floats(3)],
                            (2, 4, 5), epsilon="0.1")),
    ("ir-input-shape", case("ShuffleChannels", [data(1, 4, 2)], (1, 4, 2), group="3")),
    ("ir-axis", case("SoftMax", [data(2, 3)], (2, 3), axis="2")),
    ("ir-axis", case("Concat", [data(2, 3), floats(2, 3)], (4, 3), axis="-3")),
    ("ir-broadcast", case("Add", [data(2, 3), floats(2)], (2, 3), **_NUMPY)),
    ("ir-broadcast", case("Add", [data(2, 3), floats(1, 3)], (2, 3), auto_broadcast="none")),
    ("ir-broadcast", case("Broadcast", [data(2), ints(2, 3)], (2, 3), mode="numpy")),
    ("ir-broadcast", case("FakeQuantize", [data(1, 3), floats(2, 3), *[floats(3)] * 3], (1, 3), levels="4")),
    ("ir-channels", case("Convolution", [_IMAGE, floats(4, 2, 3, 3)], _OUT, **_WINDOW)),
    ("ir-channels", case("GroupConvolution", [_IMAGE, floats(2, 2, 2, 3, 3)], _OUT, **_WINDOW)),
    ("ir-channels", case("ConvolutionBackpropData", [_IMAGE, _WEIGHT], (1, 3, 8, 8), **_WINDOW)),
    ("ir-window", case("Convolution", [_IMAGE, floats(4, 3, 7, 3)], _OUT, **_WINDOW)),
    ("ir-window", case("ConvolutionBackpropData", [data(1, 4, 1, 1), _WEIGHT], (1, 3, 1, 1),
                       **{**_WINDOW, "pads_end": "4,4"})),
    ("ir-matmul-inner", case("MatMul", [data(2, 3), floats(4, 3)], (2, 3))),
    ("ir-concat-shapes", case("Concat", [data(2, 3), floats(3, 3)], (2, 6), axis="1")),
    ("ir-split", case("Split", [data(2, 5), scalar(1)], (2, 2), (2, 2), num_splits="2")),
    ("ir-split", case("VariadicSplit", [data(2, 6), scalar(1), ints(2, 5)], (2, 2), (2, 5))),
    ("ir-volume", case("Reshape", [data(2, 3), ints(5)], (5,), special_zero="false")),
    ("ir-volume", case("Squeeze", [data(2, 1, 3), ints(0)], (6,))),
    ("ir-output-shape", case("Sigmoid", [data(2, 3)], (2, 4))),
    ("ir-output-shape", case("Convolution", [_IMAGE, _WEIGHT], (1, 4, 5, 5), **_WINDOW)),
    ("ir-output-shape", case("MaxPool", [data(1, 2, 5, 5)], (1, 2, 3, 3), **_POOL)),
    ("ir-output-shape", case("ConvolutionBackpropData", [data(1, 4, 4, 4), _WEIGHT], (1, 3, 7, 6), **_WINDOW)),
    ("ir-output-shape", case("MatMul", [data(2, 3), floats(3, 4)], (2, 3))),
    ("ir-output-shape", case("ReduceSum", [data(2, 3), ints(0)], (2, 3), keep_dims="false")),
    ("ir-output-shape", case("StridedSlice", [data(4, 3), ints(0), ints(1), ints(1)], (1, 3), begin_mask="0",
                             end_mask="0", shrink_axis_mask="1")),
    ("ir-output-shape", case("Gather", [data(4, 3), ints(0, 1), scalar(0)], (2,))),
    ("ir-output-shape", case("Tile", [data(2, 3), ints(1, 2)], (2, 7))),
    ("ir-output-shape", case("Pad", [data(2, 3), ints(0, 0), ints(0, 1)], (2, 2), pad_mode="edge")),
    ("ir-output-shape", case("Transpose", [data(2, 3), ints(1, 0)], (3, 3))),
    ("ir-output-shape", case("Transpose", [data(2, 3)], (2, 3))),
    ("ir-output-shape", case("Split", [data(2, 6), scalar(1)], (1, 3), (2, 3), num_splits="2")),
    ("ir-output-shape", case("ShapeOf", [data(2, 3)], (3,), types="i64")),
    ("ir-attribute-count", case("ConvolutionBackpropData", [data(1, 4, 4, 4), _WEIGHT], (1, 3, 6, 6),
                                **{**_WINDOW, "strides": "1"})),
    ("ir-input-rank", case("Convolution", [_IMAGE, floats(4, 3, 3)], _OUT, **_WINDOW)),
    ("ir-input-rank", case("GroupConvolution", [_IMAGE, _WEIGHT], _OUT, **_WINDOW)),
    ("ir-input-rank", case("ConvolutionBackpropData", [data(1, 4, 4, 4), floats(4, 3, 3)], (1, 3, 6, 6), **_WINDOW)),
    ("ir-input-rank", case("GroupConvolutionBackpropData", [data(1, 4, 4, 4), _WEIGHT], (1, 3, 6, 6), **_WINDOW)),
    ("ir-input-rank", case("StridedSlice", [data(3), ints(0, 0), ints(1, 1), ints(1, 1)], (), begin_mask="0,0",
                           end_mask="0,0", shrink_axis_mask="1,1")),
    ("ir-input-shape", case("ConvolutionBackpropData", [data(1, 4, 4, 4), _WEIGHT, ints(8)], (1, 3, 8, 8), **_WINDOW)),
    ("ir-input-shape", case("DeformableConvolution", [_IMAGE, floats(1, 9, 4, 4), _WEIGHT], _OUT, **_WINDOW)),
    ("ir-input-shape", case("Reshape", [data(2, 3), ints(2, 3)], (6,), special_zero="false")),
    ("ir-input-shape", case("Broadcast", [data(3), ints(2, 3, 3)], (3, 3), mode="numpy")),
    ("ir-input-shape", case("Broadcast", [data(3), ints(2, 3), ints(0, 1)], (2, 3), mode="explicit")),
    ("ir-input-shape", case("Pad", [data(2, 3), ints(0), ints(0, 1)], (2, 4), pad_mode="edge")),
    ("ir-input-shape", case("Pad", [data(2, 3), ints(0, 0), ints(1)], (2, 4), pad_mode="edge")),
    ("ir-input-shape", case("StridedSlice", [data(4, 3), ints(0, 0), ints(1)], (1, 3), begin_mask="0,0", end_mask="0")),
    ("ir-input-shape", case("SpaceToDepth", [data(1, 1, 3, 2)], (1, 4, 1, 1), block_size="2", mode="depth_first")),
    ("ir-input-shape", case("Interpolate", [data(1, 2, 3, 3), ints(6)], (1, 2, 6, 6), axes="2,3", mode="nearest")),
    ("ir-input-shape", case("Reverse", [data(2, 3), ints(1)], (2, 3), mode="mask")),
    ("ir-input-shape", case("ReverseSequence", [data(2, 3), ints(1, 2, 3)], (2, 3))),
    ("ir-input-shape", case("ReorgYolo", [data(1, 4, 3, 4)], (1, 16, 1, 2), stride="2")),
    ("ir-channels", case("GroupConvolutionBackpropData", [_IMAGE, floats(2, 2, 1, 3, 3)], (1, 2, 8, 8), **_WINDOW)),
    ("ir-channels", case("DeformableConvolution", [_IMAGE, floats(1, 18, 4, 4), floats(4, 2, 3, 3)], _OUT, **_WINDOW)),
]  # fmt: skip

_SIGMOID, _ITERATOR = (next(each for each in CASES if each.type == name) for name in ("Sigmoid", "TensorIterator"))
_LAST_EDGE = '<edge from-layer="3" from-port="1" to-layer="4" to-port="0"/>'
_LAST_PORT = '<layer id="4" name="Result4" type="Result" version="opset1">\n<data/>\n<input>\n<port id="0" precision='
_PARAMETER = 'element_type="f32" shape="2,3"'
#: Broken rules, a change of the XML of a sigmoid, and a text in the line of the finding.
EDITS = [
    ("ir-text", 'size="24"', 'size="20"', 'size="20"'),
    ("ir-text", "</layers>", "</layer>", "</layer>\n<edges>"),
    ("ir-layer-id", "</layers>", '<layer id="0" type="Custom" version="extension"/></layers>', 'type="Custom"'),
    ("ir-port", 'precision="FP32"', 'precision="FLOAT"', '<layer id="0"'),
    ("ir-port", "<dim>2</dim>", "<dim>two</dim>", '<layer id="0"'),
    ("ir-port", "</layers>", '<layer type="Custom"><output><port id="0"/><port id="0"/></output></layer></layers>',
     'type="Custom"'),
    ("ir-edge-port", 'from-layer="0" from-port="0"', 'from-layer="0" from-port="5"', 'from-port="5"'),
    ("ir-edge-port", 'from-layer="0"', 'from-layer="9"', 'from-layer="9"'),
    ("ir-edge-port", 'to-layer="2" to-port="1"', 'to-layer="2" to-port="7"', 'to-port="7"'),
    ("ir-input-edge", _LAST_EDGE, "", '<layer id="4"'),
    ("ir-input-edge", "</edges>", f"{_LAST_EDGE}</edges>", "</edges>"),
    ("ir-edge-type", f'{_LAST_PORT}"FP32"', f'{_LAST_PORT}"I32"', _LAST_EDGE),
    ("ir-edge-shape", f'{_LAST_PORT}"FP32"><dim>2', f'{_LAST_PORT}"FP32"><dim>3', _LAST_EDGE),
    ("ir-edge-shape", f'{_LAST_PORT}"FP32"><dim>2</dim>', f'{_LAST_PORT}"FP32">', _LAST_EDGE),
    ("ir-cycle", '<edge from-layer="2" from-port="2"', '<edge from-layer="3" from-port="1"', '<layer id="3"'),
    ("ir-attribute-value", _PARAMETER, 'element_type="f32" shape="2,three"', '<layer id="0"'),
    ("ir-attribute-missing", _PARAMETER, 'element_type="f32"', '<layer id="0"'),
    ("ir-output-shape", _PARAMETER, 'element_type="f32" shape="2,4"', '<layer id="0"'),
    ("ir-output-type", _PARAMETER, 'element_type="i32" shape="2,3"', '<layer id="0"'),
]  # fmt: skip


def findings(report: nnr.ModelReport) -> list[nnr.ModelFinding]:
    return [*report.violations, *report.warnings, *report.notes]


def line_of(text: str, part: str) -> int:
    """Return the number of the line with the last occurrence of a text."""
    assert part in text, part
    return text[: text.rindex(part)].count("\n") + 1


def test_every_operation_of_opset1_is_tried() -> None:
    assert {each.type for each in CASES} == OPERATIONS.keys() - {"Constant"}


@needs_shared
def test_operations_of_the_specification() -> None:
    """Names are before the lines "Back to top", or in the examples."""
    assert SHARED
    text = (SHARED / "spec" / "openvino-opset1.txt").read_text()
    names = {name.removesuffix(" Layer") for name in re.findall(r"^(\S.*)\n+Back to top", text, re.MULTILINE)}
    names |= set(re.findall(r'<layer [^>]*type="(\w+)"', text)) - {"Const", "Substract"}
    assert names == OPERATIONS.keys() - {"Const"}


#: Findings in examples of the specification, with their reasons.
_EXAMPLES = {
    ("Parameter", "ir-attribute-missing"): "attributes are text, or left out in the body of a TensorIterator",
    ("Const", "ir-attribute-missing"): "left out in that body",
    ("Reshape", "ir-attribute-missing"): "left out in that body",
    ("Broadcast", "ir-port"): "two inputs have the same id",
    ("TopK", "ir-text"): "not well-formed",
    ("Tile", "ir-text"): "not well-formed",
    ("Substract", "ir-operation"): "misspelled",
    ("VariadicSplit", "ir-output-count"): "the length of one part, and several outputs",
}


@needs_shared
def test_examples_of_the_specification() -> None:
    assert SHARED
    text = (SHARED / "spec" / "openvino-opset1.txt").read_text().replace("...", "")
    layers = [each for each in re.findall("<layer [^>]*>.*?</layer>", text, re.DOTALL) if each.count("<layer") == 1]
    layers = [each.replace("<layer ", '<layer version="opset1" ', 1) for each in layers if "<dim>" in each]
    found = set()
    for layer in layers:
        report = nnr.verify_model(f'<net version="10"><layers>{layer}</layers></net>'.encode())
        rules = {each.rule for each in findings(report)} - {"ir-input-edge"}
        found |= {(re.findall(r' type="(\w+)"', layer)[0], rule) for rule in rules}
    assert len(layers) == 144
    assert found == _EXAMPLES.keys()


def test_operations_have_no_finding() -> None:
    for each in CASES:
        for opset in {"opset1", OPERATIONS[each.type].opset}:
            assert findings(nnr.verify_model(network(each, opset).xml())) == [], each


def test_operations_of_other_sets_are_not_checked() -> None:
    for _, each in LAYERS:
        for opset in ("opset7", ""):
            assert findings(nnr.verify_model(network(each, opset).xml())) == [], each


@pytest.mark.parametrize(("rule", "layer"), LAYERS, ids=str)
def test_each_layer_has_one_finding(rule: str, layer: Case) -> None:
    text = network(layer).xml()
    (found,) = findings(nnr.verify_model(text))
    line = line_of(text.decode(), f'type="{layer.type}"')
    assert (found.rule, found.file, found.line, found.column) == (rule, "model.xml", line, 1), found
    assert found.clause == ("opset1" if rule == "ir-operation" else f"opset1 {layer.type}")


@pytest.mark.parametrize(("rule", "old", "new", "mark"), EDITS)
def test_each_fault_of_a_graph_has_one_finding(rule: str, old: str, new: str, mark: str) -> None:
    text = network(_SIGMOID).xml().decode()
    assert old in text
    text = text.replace(old, new, 1)
    (found,) = findings(nnr.verify_model(text.encode()))
    assert (found.rule, found.line) == (rule, line_of(text, mark)), found


def test_every_rule_is_tried() -> None:
    tried = {rule for rule, _ in LAYERS} | {rule for rule, *_ in EDITS} | {"ir-data", "ir-limit", "ir-body"}
    assert tried == RULES.keys()


@pytest.mark.parametrize("weights", [None, bytes(23), bytes(100 << 20)], ids=["missing", "short", "long"])
def test_file_of_weights(weights: bytes | None, tmp_path: Path) -> None:
    path = write(_SIGMOID, tmp_path)
    path.with_suffix(".bin").unlink()
    if weights is not None:
        path.with_suffix(".bin").write_bytes(weights)
    (found,) = findings(nnr.verify_model(path))
    assert (found.rule, found.file, found.line) == ("ir-data", "m.xml", 0)


def test_a_net_above_the_limit_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "MOST", 5)
    assert [found.rule for found in findings(nnr.verify_model(network(_SIGMOID).xml()))] == ["ir-limit"]


@pytest.mark.medium
def test_unknown_extents_agree_with_everything() -> None:
    """-1 and ? are unknown extents, and a port without extents has an unknown rank."""
    for each in CASES:
        text = network(each).xml().decode()
        for extent in ("<dim>-1</dim>", "<dim>1..20</dim>", ""):
            assert findings(nnr.verify_model(re.sub("<dim>[0-9]+</dim>", extent, text).encode())) == [], each
        dynamic = re.sub(r'element_type="f32" shape="[0-9,]+"/', 'element_type="f32" shape="?,..."/', text)
        assert findings(nnr.verify_model(dynamic.encode())) == [], each


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('external_port_id="1"', 'external_port_id="2"', "there is no input '2'"),
        ('external_port_id="2"', 'external_port_id="0"', "there is no output '0'"),
        ('internal_layer_id="1"', 'internal_layer_id="3"', "there is no parameter '3'"),
        ('internal_layer_id="3"', 'internal_layer_id="2"', "there is no result '2'"),
        ('from-layer="3" to-layer="1"/></back', 'from-layer="0" to-layer="1"/></back', "there is no result '0'"),
        ('to-layer="1"/></back', 'to-layer="9"/></back', "there is no parameter '9'"),
    ],
)
def test_links_of_bodies_are_checked(old: str, new: str, message: str) -> None:
    text = network(_ITERATOR).xml().decode()
    line = text[: text.index(old)].count("\n") + 1
    (found,) = findings(nnr.verify_model(text.replace(old, new, 1).encode()))
    assert (found.rule, found.line, found.message) == ("ir-body", line, message)


def test_a_missing_body_is_found() -> None:
    text = network(replace(_ITERATOR, inner="")).xml().decode()
    (found,) = findings(nnr.verify_model(text.encode()))
    assert (found.rule, found.line) == ("ir-body", line_of(text, 'type="TensorIterator"'))


def test_bodies_are_checked() -> None:
    text = network(_ITERATOR).xml().decode()
    assert text.count('auto_broadcast="numpy"') == 2
    text = text[::-1].replace('"ypmun"', '"lla"', 1)[::-1]
    (found,) = findings(nnr.verify_model(text.encode()))
    assert (found.rule, found.line) == ("ir-attribute-value", line_of(text, 'name="add"'))


@needs_shared
def test_models_have_no_finding() -> None:
    assert SHARED
    paths = sorted(SHARED.rglob("*.xml"))
    assert len(paths) == 3
    for path in paths:
        report = nnr.verify_model(path)
        assert findings(report) == []
        assert report.variables == len(nnr.load(path))


def test_errors(tmp_path: Path) -> None:
    path = write(_SIGMOID, tmp_path)
    with pytest.raises(LimitError, match="bytes of the XML"):
        nnr.verify_model(path, limits=Limits(max_topology_bytes=10))
    with pytest.raises(FormatError, match="not an NNEF, SkriptND or OpenVINO model"):
        nnr.verify_model(b"<net/>")
    with pytest.raises(FileNotFoundError):
        nnr.verify_model(tmp_path / "none.xml")
