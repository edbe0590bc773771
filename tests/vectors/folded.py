"""NNR-NEF-028 on, NNR-ACC-601 on: folded batch normalization for each form of block in an NNEF or an ONNX graph.

The bitstreams have the weight, gamma and beta. Decoders that recognize the block recreate mean, variance and, if the
block has one, the bias (8.2.1). The dimension of the outputs is coded first (4.12).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from nnr_codec.constants import NNR_PT_RAW_FLOAT

from ..builder import ndu
from ..formats.onnx_files import model, node
from . import onnx
from .block import BI, LS
from .case import Content, acceptable, valid
from .wired import BIAS, FILTER, FOLDED, NORMALIZATION, NORMALIZED, block, by_id, graph, start, variable

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """A topology with a block that has three outputs.

    ``weight`` is the shape of the weight and ``axis`` its output dimension. ``bias`` is the shape of the bias that
    decoders recreate, ``other`` the shape of a tensor with a separate unit.
    """

    title: str
    topology: bytes
    weight: Shape = (3, 2, 1, 2)
    axis: int = 0
    bias: Shape | None = None
    other: Shape | None = None
    epsilon: float = 0.001

    def content(self, format: str, vector: Shape) -> Content:
        """Return the bitstream; ``vector`` is the declared shape of the batch normalization tensors."""
        s = start(self.topology) if format == "nnef" else onnx.start(self.topology)
        outer = [extent for place, extent in enumerate(self.weight) if place != self.axis]
        rec = block(s, LS | BI, FOLDED, [3, *outer], first_tensor_dimension_shift=self.axis)
        rec["weight"] = np.moveaxis(rec["weight"], 0, self.axis)
        raw = by_id(FOLDED, rec)
        if self.other:
            raw["other"] = np.arange(1, 1 + prod(self.other)).reshape(self.other).astype("<f4")
            s.raw(ndu("other", self.other, kind=NNR_PT_RAW_FLOAT), raw["other"])
        variance = np.full(vector, np.float32(1 - self.epsilon), "<f4")
        tensors = raw | {"mean": np.zeros(vector, "<f4"), "variance": variance}
        tensors |= {name: raw[name].reshape(vector) for name in ("scale", "offset")}
        if self.bias:
            tensors["bias"] = np.zeros(self.bias, "<f4")
        return s.gives(tensors, raw=raw, topology=self.topology, topology_format=format)


def text(*lines: str, weight: str = FILTER, size: str = "[1, 2, 4, 4]", output: str = NORMALIZED) -> bytes:
    """Return an NNEF graph of variables and lines that compute ``features``, which are normalized."""
    return graph(weight, *NORMALIZATION, *lines, f"output = {output}", shape=size)


def with_extension(name: str, document: bytes, fragments: str = "") -> bytes:
    """Return an NNEF document that uses an extension."""
    return document.replace(b"\n\n", f"\nextension {name};\n\n{fragments}".encode(), 1)


OPERATORS, FRAGMENTS = "KHR_enable_operator_expressions", "KHR_enable_fragment_definitions"
FRAGMENT = """fragment layer(
    input: tensor<scalar>, filter: tensor<scalar>,
    mean: tensor<scalar>, variance: tensor<scalar>, offset: tensor<scalar>, scale: tensor<scalar>
) -> (output: tensor<scalar>)
{
    features = conv(input, filter);
    output = batch_normalization(features, mean, variance, offset, scale, epsilon = 0.001);
}

"""
DEPTHWISE, VECTOR = variable("filter", 3, 1, 1, 2), "[1, 4]"
DECONV, MATRIX, ROWS = variable("filter", 2, 3, 1, 2), variable("filter", 4, 3), variable("filter", 3, 4)
LAST = variable("filter", 1, 2, 2, 3)

NNEF = (
    Form(
        "a depthwise convolution, groups = 0",
        text(BIAS, "features = conv(input, filter, bias, groups = 0)", weight=DEPTHWISE, size="[1, 3, 4, 4]"),
        (3, 1, 1, 2),
        bias=(1, 3),
    ),
    Form(
        "a convolution with as many groups as channels, whose bias is the literal 0.0",
        text("features = conv(input, filter, 0.0, groups = 3)", weight=DEPTHWISE, size="[1, 3, 4, 4]"),
        (3, 1, 1, 2),
    ),
    Form(
        "a convolution whose bias has one dimension",
        text(variable("bias", 3), "features = conv(input, filter, bias = bias)"),
        bias=(3,),
    ),
    Form(
        "a convolution and an added bias, which is the first operand",
        text(BIAS, "products = conv(input, filter)", "features = add(bias, products)"),
        bias=(1, 3),
    ),
    Form(
        "a convolution with bias 0 and a bias added by an operator",
        with_extension(
            OPERATORS, text(variable("bias", 1, 3, 1, 1), "features = conv(input, filter, bias = 0.0) + bias")
        ),
        bias=(1, 3, 1, 1),
    ),
    Form(
        "a convolution multiplied by a variable before a bias is added",
        text(
            BIAS,
            variable("other", 1, 3, 1, 1),
            "products = conv(input, filter)",
            "scaled = mul(products, other)",
            "features = add(scaled, bias)",
        ),
        bias=(1, 3),
        other=(1, 3, 1, 1),
    ),
    Form(
        "a deconvolution with bias",
        text(BIAS, "features = deconv(input, filter, bias)", weight=DECONV),
        (2, 3, 1, 2),
        axis=1,
        bias=(1, 3),
    ),
    Form(
        "a deconvolution, groups = 1",
        text("features = deconv(input, filter, groups = 1)", weight=DECONV),
        (2, 3, 1, 2),
        axis=1,
    ),
    Form(
        "the point filter of a separable convolution",
        text(
            BIAS,
            variable("other", 2, 1, 1, 2),
            "features = separable_conv(input, other, filter, bias)",
            weight=variable("filter", 3, 2, 1, 1),
        ),
        (3, 2, 1, 1),
        bias=(1, 3),
        other=(2, 1, 1, 2),
    ),
    Form(
        "linear with bias",
        text(BIAS, "features = linear(input, filter, bias)", weight=ROWS, size=VECTOR),
        (3, 4),
        bias=(1, 3),
    ),
    Form(
        "matmul and an added bias",
        text(BIAS, "products = matmul(input, filter)", "features = add(products, bias)", weight=MATRIX, size=VECTOR),
        (4, 3),
        axis=1,
        bias=(1, 3),
    ),
    Form(
        "matmul with transposeB",
        text("features = matmul(input, filter, transposeB = true)", weight=ROWS, size=VECTOR),
        (3, 4),
    ),
    Form(
        "matmul with a transposed matrix",
        text("matrix = transpose(filter, axes = [1, 0])", "features = matmul(input, matrix)", weight=ROWS, size=VECTOR),
        (3, 4),
    ),
    Form(
        "a convolution with a transposed filter, whose last dimension is the output",
        text(
            BIAS, "turned = transpose(filter, axes = [3, 2, 0, 1])", "features = conv(input, turned, bias)", weight=LAST
        ),
        (1, 2, 2, 3),
        axis=3,
        bias=(1, 3),
    ),
    Form(
        "a batch normalization with named parameters in a different order and epsilon 0.0",
        text(
            "features = conv(input, filter)",
            output="batch_normalization(features, scale = scale, offset = offset, epsilon = 0.0, "
            "variance = variance, mean = mean)",
        ),
        epsilon=0.0,
    ),
    Form(
        "a convolution and its batch normalization in a fragment",
        with_extension(
            FRAGMENTS, text(output="layer(input, filter, mean, variance, offset, scale)"), fragments=FRAGMENT
        ),
    ),
)
NORM = ["features", "scale", "offset", "mean", "variance"]


def proto(*nodes: bytes, weight: Shape, **others: Shape) -> bytes:
    """Return an ONNX model of nodes that compute ``features``, which are normalized."""
    norm = node("BatchNormalization", NORM, ["y"], epsilon=0.5)
    shapes = {"filter": weight, **dict.fromkeys(NORM[1:], (3,)), **others}
    return model([*nodes, norm], [onnx.empty(name, *shape) for name, shape in shapes.items()])


def onnx_form(
    title: str, *nodes: bytes, weight: Shape = (3, 2, 1, 2), axis: int = 0, bias: Shape | None = None
) -> Form:
    """Return a form of an ONNX graph."""
    others = {"bias": bias} if bias else {}
    return Form(title, proto(*nodes, weight=weight, **others), weight, axis, bias, epsilon=0.5)


BIASED, UNBIASED = ["x", "filter", "bias"], ["x", "filter"]
ONNX = (
    onnx_form("Conv without bias", node("Conv", UNBIASED, ["features"])),
    onnx_form("depthwise Conv", node("Conv", BIASED, ["features"], group=3), weight=(3, 1, 1, 2), bias=(3,)),
    onnx_form(
        "Conv and Add",
        node("Conv", UNBIASED, ["products"]),
        node("Add", ["bias", "products"], ["features"]),
        bias=(3, 1, 1),
    ),
    onnx_form("ConvTranspose", node("ConvTranspose", BIASED, ["features"]), weight=(2, 3, 1, 2), axis=1, bias=(3,)),
    onnx_form("Gemm with transB", node("Gemm", BIASED, ["features"], transB=1), weight=(3, 4), bias=(3,)),
    onnx_form(
        "Gemm and Add",
        node("Gemm", UNBIASED, ["products"]),
        node("Add", ["products", "bias"], ["features"]),
        weight=(4, 3),
        axis=1,
        bias=(1, 3),
    ),
    onnx_form(
        "Conv with a transposed filter, whose last dimension is the output",
        node("Transpose", ["filter"], ["turned"], perm=[3, 2, 0, 1]),
        node("Conv", ["x", "turned", "bias"], ["features"]),
        weight=(1, 2, 2, 3),
        axis=3,
        bias=(3,),
    ),
    onnx_form(
        "Gemm with a transposed matrix",
        node("Transpose", ["filter"], ["turned"]),
        node("Gemm", ["x", "turned"], ["features"]),
        weight=(3, 4),
    ),
    Form(
        "a batch normalization with the default epsilon, 1e-05 in float32",
        model(
            [node("Conv", UNBIASED, ["features"]), node("BatchNormalization", NORM, ["y"])],
            [onnx.empty("filter", 3, 2, 1, 2), *(onnx.empty(name, 3) for name in NORM[1:])],
        ),
        epsilon=float(np.float32(1e-5)),
    ),
)

for number, form in enumerate(NNEF, 28):

    @valid(
        f"NNR-NEF-{number:03}",
        f"folded batch normalization: {form.title}",
        "8.2.1 7.3.5 4.12 A.4",
        "NNR_TPL_NNEF NNR_PT_BLOCK compressed_parameter_types=10 batchnorm_folding",
    )
    def of_nnef(form: Form = form) -> Content:
        return form.content("nnef", (1, 3))


for number, form in enumerate(ONNX, 601):
    # Annex B is informative.
    @acceptable(
        f"NNR-ACC-{number:03}",
        f"folded batch normalization of an ONNX graph: {form.title}",
        "8.2.1 7.3.5 4.12 B.4",
        "NNR_TPL_ONNX NNR_PT_BLOCK compressed_parameter_types=10 batchnorm_folding",
    )
    def of_onnx(form: Form = form) -> Content:
        return form.content("onnx", (3,))
