"""Operations of OpenVINO's opset1: attributes, numbers and types of inputs and outputs, and rules of shapes."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from .shape_rules import (
    Rule,
    along_axis,
    batch_norm,
    broadcast,
    concat,
    convolution,
    convolution_backprop,
    declared,
    deformable_convolution,
    depth_to_space,
    elementwise,
    fake_quantize,
    gather,
    group_convolution,
    group_convolution_backprop,
    interpolate,
    lstm_cell,
    matmul,
    one_hot,
    pad,
    pattern,
    pooling,
    reduction,
    region_yolo,
    reorg_yolo,
    reshape,
    reverse,
    reverse_sequence,
    same,
    shape_of,
    shuffle_channels,
    space_to_depth,
    split,
    squeeze,
    strided_slice,
    tile,
    top_k,
    transpose,
    unchecked,
    variadic_split,
)


class Attribute(NamedTuple):
    """Attribute of an operation.

    Parameters
    ----------
    kind : str
        ``int``, ``float``, ``bool``, ``text``, ``type`` (of elements) or ``shape``.
    default : str or None
        Value of an absent attribute, empty if it depends on others; None if the attribute is required.
    least : float
        Smallest permitted number.
    values : tuple of str
        Permitted texts; any if empty.
    is_list : bool
        Whether it is a list of numbers or texts, separated by commas.
    unless : str
        Attribute that makes a required attribute optional.
    aliases : tuple of str
        Other names of the attribute in versions of the specification.
    """

    kind: str
    default: str | None = None
    least: float = -inf
    values: tuple[str, ...] = ()
    is_list: bool = False
    unless: str = ""
    aliases: tuple[str, ...] = ()


def _int(default: str | None = None, least: float = -inf, *, many: bool = False, unless: str = "") -> Attribute:
    return Attribute("int", default, least, is_list=many, unless=unless)


def _float(default: str | None = None, least: float = -inf, *, many: bool = False) -> Attribute:
    return Attribute("float", default, least, is_list=many)


def _bool(default: str | None = None, *aliases: str) -> Attribute:
    return Attribute("bool", default, aliases=aliases)


def _text(*values: str, default: str | None = None, many: bool = False) -> Attribute:
    return Attribute("text", default, values=values, is_list=many)


Attributes = Mapping[str, Attribute]
_NONE: Attributes = {}


class Operation(NamedTuple):
    """Operation of opset1.

    Parameters
    ----------
    types : str
        Types of inputs and outputs, such as ``N i? -> N b``: equal upper-case letters are equal types. F and f are
        floats, i is an integer, b a boolean, N a number, A and * any type. A port with ? may be missing; a port with +
        may repeat.
    rule : callable
        Rule of the shapes.
    attributes : mapping of str to Attribute
    opset : str
        Another operation set with the same definition, to which OpenVINO assigns the operation; ``opset1`` if none.
    """

    types: str
    rule: Rule = same
    attributes: Attributes = _NONE
    opset: str = "opset1"


_BROADCAST: Attributes = {"auto_broadcast": _text("none", "numpy", "pdpd", "explicit", default="numpy")}
_AUTO_PAD: Attributes = {"auto_pad": _text("explicit", "same_upper", "same_lower", "valid", default="explicit")}
_PADS: Attributes = {name: _int(None, 0, many=True, unless="auto_pad") for name in ("pads_begin", "pads_end")}
_CONVOLUTION: Attributes = {
    "strides": _int(None, 1, many=True),
    "dilations": _int(None, 1, many=True),
    **_PADS,
    **_AUTO_PAD,
}
_BACKPROP: Attributes = {
    **_CONVOLUTION,
    **{name: _int("", 0, many=True) for name in ("pads_begin", "pads_end", "output_padding")},
}
_POOL: Attributes = {
    "strides": _int(None, 1, many=True),
    "kernel": _int(None, 1, many=True),
    "rounding_type": _text("floor", "ceil", default="floor"),
    **_PADS,
    **_AUTO_PAD,
}
_POSITION_SENSITIVE: Attributes = {
    "output_dim": _int(None, 1),
    "spatial_scale": _float(None, 0),
    "group_size": _int("1", 1),
    "spatial_bins_x": _int("1", 1),
    "spatial_bins_y": _int("1", 1),
}
_RECURRENT: Attributes = {
    "hidden_size": _int(None, 1),
    "activations": _text("relu", "sigmoid", "tanh", default="", many=True),
    "activations_alpha": _float("", many=True),
    "activations_beta": _float("", many=True),
    "clip": _float("inf", 0),
}
_AXIS: Attributes = {"axis": _int()}

#: Operations by type.
OPERATIONS: Mapping[str, Operation] = {
    **dict.fromkeys(
        ("Abs", "Acos", "Asin", "Atan", "Ceiling", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log", "Negative", "ReLU"),
        Operation("N -> N"),
    ),
    **dict.fromkeys(("Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh"), Operation("N -> N")),
    **dict.fromkeys(("Acosh", "Asinh", "Atanh"), Operation("N -> N", opset="opset4")),
    **dict.fromkeys(
        (
            "Add",
            "Divide",
            "FloorMod",
            "Maximum",
            "Minimum",
            "Mod",
            "Multiply",
            "Power",
            "SquaredDifference",
            "Subtract",
        ),
        Operation("N N -> N", elementwise, _BROADCAST),
    ),
    **dict.fromkeys(
        ("Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual"),
        Operation("A A -> b", elementwise, _BROADCAST),
    ),
    **dict.fromkeys(("LogicalAnd", "LogicalOr"), Operation("b b -> b", elementwise, _BROADCAST)),
    "LogicalXor": Operation("b b -> b", elementwise, _BROADCAST, "opset2"),
    **dict.fromkeys(
        ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
        Operation("N i -> N", reduction, {"keep_dims": _bool("false")}),
    ),
    **dict.fromkeys(
        ("ReduceLogicalAnd", "ReduceLogicalOr"), Operation("b i -> b", reduction, {"keep_dims": _bool("false")})
    ),
    **dict.fromkeys(
        ("Const", "Constant"),
        Operation(
            "-> *",
            declared,
            {
                "element_type": Attribute("type"),
                "shape": Attribute("shape"),
                "offset": _int(None, 0),
                "size": _int(None, 0),
            },
        ),
    ),
    "AvgPool": Operation("N -> N", pooling, {**_POOL, "exclude-pad": _bool(None, "exclude_pad")}),
    "BatchNormInference": Operation("F F F F F -> F", batch_norm, {"epsilon": _float(None, 0)}),
    "BinaryConvolution": Operation(
        "N * -> N", convolution, {**_CONVOLUTION, "mode": _text("xnor-popcount"), "pad_value": _float()}
    ),
    "Broadcast": Operation(
        "A i i? -> A", broadcast, {"mode": _text("numpy", "explicit", "none", "pdpd", default="numpy")}
    ),
    "CTCGreedyDecoder": Operation("F f -> F", pattern("t n c, t n -> n t 1 1"), {"ctc_merge_repeated": _bool("true")}),
    "Clamp": Operation("N -> N", same, {"min": _float(), "max": _float()}),
    "Concat": Operation("A+ -> A", concat, _AXIS),
    "Convert": Operation("* -> *", same, {"destination_type": Attribute("type")}),
    "ConvertLike": Operation("* A -> A"),
    "Convolution": Operation("N N -> N", convolution, _CONVOLUTION),
    "ConvolutionBackpropData": Operation("N N i? -> N", convolution_backprop, _BACKPROP),
    "DeformableConvolution": Operation(
        "N N N -> N",
        deformable_convolution,
        {**_CONVOLUTION, "group": _int("1", 1), "deformable_group": _int("1", 1)},
    ),
    "DeformablePSROIPooling": Operation(
        "F F F? -> F",
        pattern("n c y x, r 5, r _ _ _ -> r output_dim group_size group_size"),
        {
            **_POSITION_SENSITIVE,
            "mode": _text("bilinear_deformable", default="bilinear_deformable"),
            "trans_std": _float("1"),
            "part_size": _int("1", 1),
        },
    ),
    "DepthToSpace": Operation(
        "A -> A", depth_to_space, {"block_size": _int("1", 1), "mode": _text("blocks_first", "depth_first")}
    ),
    "DetectionOutput": Operation(
        "F F F F? F? -> F",
        pattern("n a, n b, p q r, n d, n e -> 1 1 _ 7"),
        {
            "num_classes": _int(None, 1),
            "background_label_id": _int("0"),
            "top_k": _int("-1", -1),
            "variance_encoded_in_target": _bool("false"),
            "keep_top_k": _int(None, -1, many=True),
            "code_type": _text(
                "caffe.priorboxparameter.center_size",
                "caffe.priorboxparameter.corner",
                default="caffe.PriorBoxParameter.CORNER",
            ),
            "share_location": _bool("true"),
            "nms_threshold": _float(),
            "confidence_threshold": _float("0"),
            "clip_after_nms": _bool("false"),
            "clip_before_nms": _bool("false"),
            "decrease_label_id": _bool("false"),
            "normalized": _bool("false"),
            "input_height": _int("1", 0),
            "input_width": _int("1", 0),
            "objectness_score": _float("0"),
        },
    ),
    "Elu": Operation("N -> N", same, {"alpha": _float()}),
    "FakeQuantize": Operation("F f f f f -> F", fake_quantize, {"levels": _int(None, 2), **_BROADCAST}),
    "GRN": Operation("F -> F", same, {"bias": _float()}),
    "Gather": Operation("A i i -> A", gather),
    "GatherTree": Operation("N N N N -> N", pattern("t b w, t b w, b, * -> t b w")),
    "GroupConvolution": Operation("N N -> N", group_convolution, _CONVOLUTION),
    "GroupConvolutionBackpropData": Operation("N N i? -> N", group_convolution_backprop, _BACKPROP),
    "HardSigmoid": Operation("F F F -> F"),
    "Interpolate": Operation(
        "N i -> N",
        interpolate,
        {
            "axes": _int(None, 0, many=True),
            "mode": _text("nearest", "linear", "cubic", "area"),
            "align_corners": _bool("true"),
            "antialias": _bool("false"),
            "pads_begin": _int("0", 0, many=True),
            "pads_end": _int("0", 0, many=True),
        },
    ),
    "LRN": Operation("F i -> F", same, {"alpha": _float(), "beta": _float(), "bias": _float(), "size": _int(None, 1)}),
    # OpenVINO writes peepholes as a seventh input.
    "LSTMCell": Operation("F F F F F F? F? -> F F", lstm_cell, _RECURRENT),
    "LSTMSequence": Operation(
        "F F F i F F F -> F F F",
        pattern(
            "b s i, b d hidden_size, b d hidden_size, b, d 4*hidden_size i, d 4*hidden_size hidden_size,"
            " d 4*hidden_size -> b d s hidden_size, b d hidden_size, b d hidden_size"
        ),
        {**_RECURRENT, "direction": _text("forward", "reverse", "bidirectional")},
        "opset5",
    ),
    "LogicalNot": Operation("b -> b"),
    "MVN": Operation(
        "F -> F",
        same,
        {"across_channels": _bool("true"), "normalize_variance": _bool("true"), "eps": _float(None, 0)},
        "opset2",
    ),
    "MatMul": Operation("N N -> N", matmul, {"transpose_a": _bool("false"), "transpose_b": _bool("false")}),
    "MaxPool": Operation("N -> N", pooling, _POOL),
    "NonMaxSuppression": Operation(
        "F F i? f? f? -> i",
        pattern("n b 4, n c b, *, *, * -> _ 3"),
        {"box_encoding": _text("corner", "center", default="corner"), "sort_result_descending": _bool("true")},
    ),
    "NormalizeL2": Operation("N i -> N", same, {"eps": _float(None, 0), "eps_mode": _text("add", "max")}),
    "OneHot": Operation("i i A A -> A", one_hot, _AXIS),
    "PReLU": Operation("N N -> N"),
    "PSROIPooling": Operation(
        "F f -> F",
        pattern("n c y x, r 5 -> r output_dim group_size group_size"),
        {**_POSITION_SENSITIVE, "mode": _text("average", "bilinear", default="average")},
    ),
    "Pad": Operation("A i i A? -> A", pad, {"pad_mode": _text("constant", "edge", "reflect", "symmetric")}),
    "Parameter": Operation("-> *", declared, {"element_type": Attribute("type"), "shape": Attribute("shape")}),
    "PriorBox": Operation(
        "i i -> f",
        pattern("2, 2 -> 2 _"),
        {
            **{name: _float("", 0, many=True) for name in ("min_size", "max_size", "aspect_ratio", "variance")},
            **{name: _float("", 0, many=True) for name in ("fixed_ratio", "fixed_size", "density")},
            "flip": _bool("false"),
            "clip": _bool("false"),
            "step": _float("0", 0),
            "offset": _float(None, 0),
            "scale_all_sizes": _bool("true"),
        },
    ),
    "PriorBoxClustered": Operation(
        "i i? -> f",
        pattern("2, 2 -> 2 _"),
        {
            "width": _float("1.0", 0, many=True),
            "height": _float("1.0", 0, many=True),
            "clip": _bool("true"),
            **{name: _float("0", 0) for name in ("step", "step_w", "step_h", "img_w", "img_h")},
            "offset": _float(None, 0),
            "variance": _float("", 0, many=True),
        },
    ),
    "Proposal": Operation(
        "F F f -> F",
        pattern("n a h w, n b h w, * -> _ 5"),
        {
            **{
                name: _int(None, 1)
                for name in ("base_size", "pre_nms_topn", "post_nms_topn", "feat_stride", "min_size")
            },
            "nms_thresh": _float(None, 0),
            "ratio": _float(None, many=True),
            "scale": _float(None, many=True),
            "clip_before_nms": _bool("true"),
            "clip_after_nms": _bool("false"),
            "normalize": _bool("false"),
            "box_size_scale": _float("1.0", 0),
            "box_coordinate_scale": _float("1.0", 0),
            "framework": _text("", "tensorflow", default=""),
        },
    ),
    "RNNCell": Operation(
        "F F F F F? -> F",
        pattern("b i, b hidden_size, hidden_size i, hidden_size hidden_size, hidden_size -> b hidden_size"),
        _RECURRENT,
        "opset3",
    ),
    "ROIPooling": Operation(
        "F F -> F",
        pattern("n c y x, r 5 -> r c pooled_h pooled_w"),
        {
            "pooled_h": _int(None, 0),
            "pooled_w": _int(None, 0),
            "spatial_scale": _float(None, 0),
            "method": _text("max", "bilinear", default="max"),
        },
        "opset2",
    ),
    "Range": Operation("N N N -> N", pattern("*, *, * -> _")),
    "RegionYolo": Operation(
        "N -> N",
        region_yolo,
        {
            "anchors": _float("", many=True),
            **{name: _int() for name in ("axis", "coords", "classes", "end_axis", "num")},
            "do_softmax": _bool("true"),
            "mask": _int("", many=True),
        },
    ),
    "ReorgYolo": Operation("A -> A", reorg_yolo, {"stride": _int(None, 1)}, "opset2"),
    "Reshape": Operation("A i -> A", reshape, {"special_zero": _bool()}),
    # OpenVINO writes an output, which no edge uses.
    "Result": Operation("* -> *?"),
    "Reverse": Operation("A * -> A", reverse, {"mode": _text("index", "mask")}),
    "ReverseSequence": Operation("A n -> A", reverse_sequence, {"batch_axis": _int("0"), "seq_axis": _int("1")}),
    "Select": Operation("b A A -> A", elementwise, _BROADCAST),
    "Selu": Operation("F F F -> F"),
    "ShapeOf": Operation("* -> i", shape_of),
    "ShuffleChannels": Operation("A -> A", shuffle_channels, {"axis": _int("1"), "group": _int("1", 1)}, "opset3"),
    "SoftMax": Operation("N -> N", along_axis, {"axis": _int("1")}),
    "SpaceToDepth": Operation(
        "A -> A", space_to_depth, {"block_size": _int("1", 1), "mode": _text("blocks_first", "depth_first")}
    ),
    "Split": Operation("A i -> A+", split, {"num_splits": _int(None, 1)}),
    "Squeeze": Operation("A i? -> A", squeeze),
    "StridedSlice": Operation(
        "A i i i? -> A",
        strided_slice,
        {
            "begin_mask": _int(None, 0, many=True),
            "end_mask": _int(None, 0, many=True),
            **{name: _int("0", 0, many=True) for name in ("new_axis_mask", "shrink_axis_mask", "ellipsis_mask")},
        },
    ),
    "TensorIterator": Operation("*+ -> *+", unchecked),
    "Tile": Operation("A i -> A", tile),
    "TopK": Operation(
        "N i -> N i",
        top_k,
        {**_AXIS, "mode": _text("min", "max"), "sort": _text("value", "index", "none")},
    ),
    "Transpose": Operation("A i? -> A", transpose),
    "Unsqueeze": Operation("A i -> A", squeeze),
    "VariadicSplit": Operation("A i i -> A+", variadic_split),
}
