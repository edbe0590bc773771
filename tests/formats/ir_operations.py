"""Every operation of OpenVINO's opset1 in a small IR: inputs, attributes and outputs, from which the XML is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnr_codec.model import Array

from .irs import put

#: Precisions and element types of arrays.
TYPES = {
    **{"float32": ("FP32", "f32"), "bool": ("BOOL", "boolean"), "uint8": ("U8", "u8")},
    **{"int64": ("I64", "i64"), "int32": ("I32", "i32")},
}
_PRECISIONS = {element: precision for precision, element in TYPES.values()}


class Data(NamedTuple):
    """Input of float32: the sum of a parameter and a constant."""

    shape: tuple[int, ...]


@dataclass
class Case:
    """Layer with its inputs, and the shapes and types of its outputs."""

    type: str
    inputs: Sequence[Data | Array]
    outputs: Sequence[tuple[int, ...]]
    attributes: Mapping[str, object] = field(default_factory=dict)
    types: Sequence[str] = ()
    inner: str = ""

    def __str__(self) -> str:
        return self.type


def data(*shape: int) -> Data:
    return Data(shape)


def ints(*items: int) -> Array:
    return np.array(items, np.int64)


def scalar(item: object, dtype: Any = np.int64) -> Array:
    return np.array(item, dtype)


def floats(*shape: int, low: float = -1.0) -> Array:
    """Return random floats that do not depend on other cases."""
    return np.random.default_rng(sum(shape) + len(shape)).uniform(low, 1, shape).astype(np.float32)


def bools(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).integers(0, 2, shape).astype(bool)


def case(
    type: str,
    inputs: Sequence[Data | Array],
    *outputs: tuple[int, ...],
    types: str = "f32",
    inner: str = "",
    **attributes: object,
) -> Case:
    named = {name.replace("exclude_pad", "exclude-pad"): value for name, value in attributes.items()}
    return Case(type, inputs, outputs, named, types.split() * (1 if " " in types else len(outputs)), inner)


_WINDOW: dict[str, Any] = {
    **{"strides": "1,1", "dilations": "1,1", "pads_begin": "0,0", "pads_end": "0,0"},
    "auto_pad": "explicit",
}
_POOL: dict[str, Any] = {**_WINDOW, "kernel": "2,2", "strides": "2,2"}
del _POOL["dilations"]
_BOXES = np.array([[[0, 0, 1, 1], [0, 0, 0.9, 0.9], [0.5, 0.5, 1, 1]]], np.float32)
_ROIS = np.array([[0, 0, 0, 3, 3], [0, 1, 1, 5, 5]], np.float32)

_UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceiling", "Cos", "Cosh", "Erf", "Exp", "Floor"),
    *("Log", "Negative", "ReLU", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh"),
)
_BINARY = (
    *("Add", "Divide", "FloorMod", "Maximum", "Minimum", "Mod", "Multiply", "Power", "SquaredDifference", "Subtract"),
)
_COMPARISONS = ("Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual")
_H = {"hidden_size": 2}

_BODY = """
<port_map>
<input external_port_id="0" internal_layer_id="0" axis="0" start="0" end="-1" stride="1" part_size="1"/>
<input external_port_id="1" internal_layer_id="1"/>
<output external_port_id="2" internal_layer_id="3" axis="0" start="0" end="-1" stride="1" part_size="1"/>
</port_map>
<back_edges><edge from-layer="3" to-layer="1"/></back_edges>
<body><layers>
<layer id="0" name="item" type="Parameter" version="opset1"><data shape="1,3" element_type="f32"/>
<output><port id="0" precision="FP32"><dim>1</dim><dim>3</dim></port></output></layer>
<layer id="1" name="sum" type="Parameter" version="opset1"><data shape="1,3" element_type="f32"/>
<output><port id="0" precision="FP32"><dim>1</dim><dim>3</dim></port></output></layer>
<layer id="2" name="add" type="Add" version="opset1"><data auto_broadcast="numpy"/>
<input><port id="0" precision="FP32"><dim>1</dim><dim>3</dim></port>
<port id="1" precision="FP32"><dim>1</dim><dim>3</dim></port></input>
<output><port id="2" precision="FP32"><dim>1</dim><dim>3</dim></port></output></layer>
<layer id="3" name="next" type="Result" version="opset1">
<input><port id="0" precision="FP32"><dim>1</dim><dim>3</dim></port></input></layer>
</layers><edges>
<edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
<edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>
<edge from-layer="2" from-port="2" to-layer="3" to-port="0"/>
</edges></body>"""

CASES = [
    *(case(name, [data(2, 3)], (2, 3)) for name in _UNARY),
    *(case(name, [data(2, 3, 4), floats(3, 1, low=0.5)], (2, 3, 4), auto_broadcast="numpy") for name in _BINARY),
    *(case(name, [data(2, 3), floats(1, 3)], (2, 3), types="boolean", auto_broadcast="numpy") for name in _COMPARISONS),
    case("Add", [data(2, 3), floats(2, 3)], (2, 3), auto_broadcast="none"),
    *(
        case(name, [bools(2, 3), bools(3)], (2, 3), types="boolean", auto_broadcast="numpy")
        for name in ("LogicalAnd", "LogicalOr", "LogicalXor")
    ),
    case("LogicalNot", [bools(2, 3)], (2, 3), types="boolean"),
    *(
        case(name, [data(2, 3, 4), ints(1)], (2, 4), keep_dims="false")
        for name in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")
    ),
    case("ReduceMean", [data(2, 3, 4), ints(1, -1)], (2, 1, 1), keep_dims="true"),
    *(
        case(name, [bools(2, 3), ints(1)], (2, 1), types="boolean", keep_dims="true")
        for name in ("ReduceLogicalAnd", "ReduceLogicalOr")
    ),
    case("AvgPool", [data(1, 2, 5, 5)], (1, 2, 3, 3), **_POOL, exclude_pad="true", rounding_type="ceil"),
    case("AvgPool", [data(1, 2, 5)], (1, 2, 3), **{**_POOL, "strides": 2, "kernel": 2, "pads_begin": 0, "pads_end": 1},
         exclude_pad="false"),
    case("BatchNormInference", [floats(3), floats(3), data(2, 3, 4, 4), floats(3), floats(3, low=0.1)], (2, 3, 4, 4),
         epsilon="0.001"),
    case("BinaryConvolution", [data(1, 8, 4, 4), np.arange(8, dtype=np.uint8)], (1, 8, 4, 4), **_WINDOW,
         mode="xnor-popcount", pad_value="0"),
    case("Broadcast", [data(1, 3), ints(2, 4, 3)], (2, 4, 3), mode="numpy"),
    case("Broadcast", [data(3), ints(2, 3, 4), ints(1)], (2, 3, 4), mode="explicit"),
    case("CTCGreedyDecoder", [data(5, 2, 4), np.ones((5, 2), np.float32)], (2, 5, 1, 1), ctc_merge_repeated="true"),
    case("Clamp", [data(2, 3)], (2, 3), min="-0.5", max="3.4028234663852886e+38"),
    case("Concat", [data(2, 3), floats(2, 1), floats(2, 2)], (2, 6), axis="-1"),
    case("Const", [floats(2, 3)], (2, 3)),
    case("Convert", [data(2, 3)], (2, 3), types="i32", destination_type="i32"),
    case("ConvertLike", [data(2, 3), scalar(1, np.int32)], (2, 3), types="i32"),
    case("Convolution", [data(1, 3, 6, 6), floats(4, 3, 3, 3)], (1, 4, 4, 4), **_WINDOW),
    case("Convolution", [data(1, 3, 7), floats(4, 3, 3)], (1, 4, 4),
         **{**_WINDOW, "strides": 2, "dilations": 1, "pads_begin": 0, "pads_end": 0, "auto_pad": "same_upper"}),
    case("ConvolutionBackpropData", [data(1, 3, 4, 4), floats(3, 2, 3, 3)], (1, 2, 8, 8),
         **{**_WINDOW, "strides": "2,2", "pads_begin": "1,1", "pads_end": "1,1", "output_padding": "1,1"}),
    case("ConvolutionBackpropData", [data(1, 3, 4, 4), floats(3, 2, 3, 3), ints(8, 8)], (1, 2, 8, 8),
         **{**_WINDOW, "strides": "2,2", "auto_pad": "same_upper", "output_padding": "0,0"}),
    case("DeformableConvolution", [data(1, 4, 5, 5), floats(1, 18, 3, 3), floats(2, 4, 3, 3)], (1, 2, 3, 3), **_WINDOW,
         group="1", deformable_group="1"),
    case("DeformablePSROIPooling", [data(1, 8, 6, 6), _ROIS], (2, 2, 2, 2), output_dim="2", spatial_scale="1",
         group_size="2", mode="bilinear_deformable", spatial_bins_x="1", spatial_bins_y="1", trans_std="1",
         part_size="1"),
    case("DepthToSpace", [data(1, 8, 2, 3)], (1, 2, 4, 6), mode="blocks_first", block_size="2"),
    case("DetectionOutput", [data(1, 8), floats(1, 4, low=0), floats(1, 2, 8, low=0.1)], (1, 1, 1, 7), num_classes="2",
         background_label_id="0", top_k="1", variance_encoded_in_target="false", keep_top_k="1",
         code_type="caffe.PriorBoxParameter.CORNER", share_location="true", nms_threshold="0.5",
         confidence_threshold="0.01", clip_after_nms="false", clip_before_nms="false", decrease_label_id="false",
         normalized="true", input_height="1", input_width="1", objectness_score="0"),
    case("Elu", [data(2, 3)], (2, 3), alpha="0.7"),
    case("FakeQuantize", [data(1, 3, 4), floats(3, 1, low=-2), floats(1, low=0.5), scalar(-1, "f4"), scalar(1, "f4")],
         (1, 3, 4), levels="16", auto_broadcast="numpy"),
    case("GRN", [data(1, 3, 4, 4)], (1, 3, 4, 4), bias="0.0001"),
    case("Gather", [data(4, 3), ints(2, 0), scalar(0)], (2, 3)),
    case("GatherTree", [np.arange(6, dtype=np.int32).reshape(3, 1, 2), np.zeros((3, 1, 2), np.int32),
                        np.array([3], np.int32), scalar(5, np.int32)], (3, 1, 2), types="i32"),
    case("GroupConvolution", [data(1, 4, 5, 5), floats(2, 3, 2, 3, 3)], (1, 6, 3, 3), **_WINDOW),
    case("GroupConvolutionBackpropData", [data(1, 4, 3, 3), floats(2, 2, 1, 3, 3)], (1, 2, 5, 5), **_WINDOW,
         output_padding="0,0"),
    case("HardSigmoid", [data(2, 3), scalar(0.2, "f4"), scalar(0.5, "f4")], (2, 3)),
    case("Interpolate", [data(1, 2, 3, 3), ints(6, 5)], (1, 2, 6, 5), axes="2,3", mode="nearest",
         align_corners="false", antialias="false", pads_begin="0", pads_end="0"),
    case("LRN", [data(1, 4, 3, 3), ints(1)], (1, 4, 3, 3), alpha="0.0001", beta="0.75", bias="1", size="3"),
    case("LSTMCell", [data(1, 3), floats(1, 2), floats(1, 2), floats(8, 3), floats(8, 2), floats(8)], (1, 2), (1, 2),
         **_H, activations="sigmoid,tanh,tanh", activations_alpha="", activations_beta="", clip="0"),
    case("LSTMSequence", [data(1, 4, 3), floats(1, 1, 2), floats(1, 1, 2), ints(4), floats(1, 8, 3), floats(1, 8, 2),
                          floats(1, 8)], (1, 1, 4, 2), (1, 1, 2), (1, 1, 2), **_H,
         direction="forward", activations="sigmoid,tanh,tanh", activations_alpha="", activations_beta="", clip="0"),
    case("MVN", [data(1, 3, 4, 4)], (1, 3, 4, 4), across_channels="true", normalize_variance="true", eps="1e-9"),
    case("MatMul", [data(2, 3, 4), floats(5, 4)], (2, 3, 5), transpose_a="false", transpose_b="true"),
    case("MaxPool", [data(1, 2, 5, 5)], (1, 2, 2, 2), **_POOL, rounding_type="floor"),
    case("MaxPool", [data(1, 2, 5, 5)], (1, 2, 3, 3), **{**_POOL, "auto_pad": "same_lower"}, rounding_type="floor"),
    case("NonMaxSuppression", [_BOXES, data(1, 1, 3), scalar(2), scalar(0.5, "f4"), scalar(-9, "f4")], (2, 3),
         types="i64", box_encoding="corner", sort_result_descending="true"),
    case("NormalizeL2", [data(1, 3, 4, 4), ints(1)], (1, 3, 4, 4), eps="1e-8", eps_mode="add"),
    case("OneHot", [ints(0, 2, 1), scalar(3), scalar(1, "f4"), scalar(0, "f4")], (3, 3), axis="-1"),
    case("PReLU", [data(1, 3, 4, 4), floats(3)], (1, 3, 4, 4)),
    case("PSROIPooling", [data(1, 8, 6, 6), _ROIS], (2, 2, 2, 2), output_dim="2", spatial_scale="1", group_size="2",
         mode="average", spatial_bins_x="1", spatial_bins_y="1"),
    case("Pad", [data(2, 3), ints(1, 0), ints(0, 2), scalar(0.5, "f4")], (3, 5), pad_mode="constant"),
    case("Pad", [data(2, 3), ints(1, 0), ints(0, 2)], (3, 5), pad_mode="edge"),
    case("Parameter", [data(2, 3)], (2, 3)),
    case("PriorBox", [ints(2, 2), ints(10, 10)], (2, 32), min_size="2", max_size="5", aspect_ratio="", flip="false",
         clip="false", step="5", offset="0.5", variance="0.1,0.1,0.2,0.2", scale_all_sizes="true", fixed_ratio="",
         fixed_size="", density=""),
    case("PriorBoxClustered", [ints(2, 2), ints(10, 10)], (2, 32), width="2,3", height="3,2", clip="false", step="5",
         step_w="0", step_h="0", offset="0.5", variance="0.1,0.1,0.2,0.2"),
    case("Proposal", [data(1, 2, 8, 8), floats(1, 4, 8, 8), np.array([128, 128, 1], np.float32)], (16, 5),
         base_size="16", pre_nms_topn="64", post_nms_topn="16", nms_thresh="0.5", feat_stride="16", min_size="1",
         ratio="1", scale="1", clip_before_nms="true", clip_after_nms="false", normalize="false", box_size_scale="1",
         box_coordinate_scale="1", framework=""),
    case("RNNCell", [data(1, 3), floats(1, 2), floats(2, 3), floats(2, 2), floats(2)], (1, 2), **_H, activations="tanh",
         activations_alpha="", activations_beta="", clip="0"),
    case("ROIPooling", [data(1, 2, 6, 6), _ROIS], (2, 2, 2, 2), pooled_h="2", pooled_w="2", spatial_scale="1",
         method="max"),
    case("Range", [scalar(1), scalar(9), scalar(2)], (4,), types="i64"),
    case("RegionYolo", [data(1, 14, 3, 3)], (1, 126), anchors="1,2,3,4", axis="1", coords="4", classes="2",
         end_axis="3", num="2", do_softmax="true", mask=""),
    case("RegionYolo", [data(1, 14, 3, 3)], (1, 14, 3, 3), anchors="1,2,3,4", axis="1", coords="4", classes="2",
         end_axis="3", num="4", do_softmax="0", mask="0,1"),
    case("ReorgYolo", [data(1, 4, 4, 6)], (1, 16, 2, 3), stride="2"),
    case("Reshape", [data(2, 3, 4), ints(0, -1)], (2, 12), special_zero="true"),
    case("Result", [data(2, 3)]),
    case("Reverse", [data(2, 3), ints(1)], (2, 3), mode="index"),
    case("Reverse", [data(2, 3), bools(2)], (2, 3), mode="mask"),
    case("ReverseSequence", [data(2, 3, 2), ints(2, 3)], (2, 3, 2), batch_axis="0", seq_axis="1"),
    case("Select", [bools(2, 3), data(2, 3), floats(3)], (2, 3), auto_broadcast="numpy"),
    case("Selu", [data(2, 3), floats(1, low=0.5), floats(1, low=0.5)], (2, 3)),
    case("ShapeOf", [data(2, 3)], (2,), types="i64"),
    case("ShuffleChannels", [data(1, 6, 2, 2)], (1, 6, 2, 2), axis="1", group="3"),
    case("SoftMax", [data(2, 3)], (2, 3), axis="1"),
    case("SpaceToDepth", [data(1, 2, 4, 6)], (1, 8, 2, 3), mode="depth_first", block_size="2"),
    case("Split", [data(2, 6), scalar(1)], (2, 3), (2, 3), num_splits="2"),
    case("Squeeze", [data(1, 3, 1), ints(0)], (3, 1)),
    case("StridedSlice", [data(4, 3, 5), ints(1, 0, 0), ints(3, 0, 2), ints(1, 1, 1)], (2, 2), begin_mask="0,1,1",
         end_mask="0,1,0", new_axis_mask="0,0,0", shrink_axis_mask="0,1,0", ellipsis_mask="0,0,0"),
    case("StridedSlice", [data(4, 3), ints(0, 1), ints(0, 3), ints(1, 1)], (1, 2, 3), begin_mask="0,0", end_mask="0,0",
         new_axis_mask="1,0", shrink_axis_mask="0,0", ellipsis_mask="0,0"),
    case("TensorIterator", [data(4, 3), floats(1, 3)], (4, 3), inner=_BODY),
    case("Tile", [data(2, 3), ints(1, 2)], (2, 6)),
    case("TopK", [data(2, 5), scalar(3)], (2, 3), (2, 3), types="f32 i32", axis="1", mode="max", sort="value"),
    case("Transpose", [data(2, 3, 4), ints(2, 0, 1)], (4, 2, 3)),
    case("Unsqueeze", [data(2, 3), ints(0, 2)], (1, 2, 1, 3)),
    case("VariadicSplit", [data(2, 6), scalar(1), ints(2, 4)], (2, 2), (2, 4),),
]  # fmt: skip


#: Number and port of a layer, and type and shape of that output.
Source = tuple[int, int, str, Sequence[int]]


def port(number: int, type: str, shape: Sequence[int]) -> str:
    extents = "".join(f"<dim>{extent}</dim>" for extent in shape)
    return f'<port id="{number}" precision="{_PRECISIONS.get(type, type)}">{extents}</port>\n'


class Network:
    """XML of a case, layer by layer, with one line for each element."""

    def __init__(self) -> None:
        self.layers: list[str] = []
        self.edges: list[str] = []
        self.data = bytearray()

    def layer(
        self,
        type: str,
        inputs: Sequence[Source],
        outputs: Sequence[tuple[str, Sequence[int]]],
        version: str = "opset1",
        inner: str = "",
        **attributes: object,
    ) -> int:
        """Add a layer; return its number."""
        number = len(self.layers)
        given = "".join(port(k, type_, shape) for k, (_, _, type_, shape) in enumerate(inputs))
        made = "".join(port(len(inputs) + k, type_, shape) for k, (type_, shape) in enumerate(outputs))
        named = "".join(f' {name}="{value}"' for name, value in attributes.items())
        self.layers.append(
            f'<layer id="{number}" name="{type}{number}" type="{type}" version="{version}">\n<data{named}/>\n'
            f"{f'<input>{chr(10)}{given}</input>{chr(10)}' if given else ''}"
            f"{f'<output>{chr(10)}{made}</output>{chr(10)}' if made else ''}{inner}</layer>\n"
        )
        for k, (source, source_port, _, _) in enumerate(inputs):
            edge = f'from-layer="{source}" from-port="{source_port}" to-layer="{number}" to-port="{k}"'
            self.edges.append(f"<edge {edge}/>\n")
        return number

    def constant(self, array: Array, type: str = "", shape: Sequence[int] | None = None) -> Source:
        type, shape = type or TYPES[array.dtype.name][1], array.shape if shape is None else shape
        offset = len(self.data)
        self.data += array.tobytes()
        where = {"offset": offset, "size": array.nbytes}
        text = ", ".join(map(str, shape))
        return self.layer("Const", [], [(type, shape)], element_type=type, shape=text, **where), 0, type, shape

    def parameter(self, shape: Sequence[int]) -> Source:
        text = ",".join(map(str, shape))
        return self.layer("Parameter", [], [("f32", shape)], element_type="f32", shape=text), 0, "f32", shape

    def xml(self) -> bytes:
        layers, edges = "".join(self.layers), "".join(self.edges)
        head = '<?xml version="1.0"?>\n<net name="n" version="11">\n'
        return f"{head}<layers>\n{layers}</layers>\n<edges>\n{edges}</edges>\n</net>\n".encode()


def network(case: Case, version: str = "opset1") -> Network:
    """Return the network of a case; the layer of its operation is the last but its results."""
    net = Network()
    inputs = []
    for item in case.inputs:
        if isinstance(item, Data):
            first, second = net.parameter(item.shape), net.constant(floats(*item.shape))
            added = net.layer("Add", [first, second], [("f32", item.shape)], auto_broadcast="numpy")
            inputs.append((added, 2, "f32", item.shape))
        elif case.type == "BinaryConvolution":
            inputs.append(net.constant(item, "u1", (8, 8, 1, 1)))
        else:
            inputs.append(net.constant(item))
    if case.type in ("Const", "Parameter"):
        outputs = inputs
    elif case.type == "Result":
        net.layer("Result", inputs, [])
        return net
    else:
        results = list(zip(case.types, case.outputs, strict=True))
        number = net.layer(case.type, inputs, results, version, case.inner, **case.attributes)
        outputs = [(number, len(inputs) + k, *result) for k, result in enumerate(results)]
    for output in outputs:
        net.layer("Result", [output], [])
    return net


def write(case: Case, folder: Path, version: str = "opset1") -> Path:
    """Write both files; return the path of the XML."""
    net = network(case, version)
    return put(folder, net.xml(), bytes(net.data))
