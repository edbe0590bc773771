"""NNR-NEF-007 on: dimensions, shapes and blocks from an NNEF graph, in the bitstream or stored separately.

Expected results follow from the chosen integers and the graph by 7.3.5, 8.2.1 and errata N5. One-dimensional outputs
get the declared shape. Local scaling is multiplied into the weight, unless its id is a variable that the graph
multiplies by. If this variable is the gamma of a batch normalization with only gamma and beta coded, its other tensors
are recreated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from nnr_codec.constants import NNR_PT_BLOCK, NNR_PT_INT, NNR_PT_RAW_FLOAT

from ..builder import ndu
from .arithmetic import chosen, floats
from .block import BI, BN, CODED, DC, LISTED, LS, QP, product, scaled
from .case import Content, Tensor, valid
from .nnef import GRAPH, with_tensors
from .stream import Stream

EPSILON = "0.001"


def graph(*body: str, shape: str = "[1, 2, 4, 4]") -> bytes:
    """Return a graph of these assignments, the last of which defines ``output``."""
    lines = "".join(f"    {line};\n" for line in (f"input = external(shape = {shape})", *body))
    return f"version 1.0;\n\ngraph net(input) -> (output)\n{{\n{lines}}}\n".encode()


def variable(label: str, *shape: int) -> str:
    """Return a variable whose identifier is the label."""
    return f"{label} = variable(shape = {list(shape)}, label = '{label}')"


NORMALIZATION = tuple(variable(label, 1, 3) for label in ("mean", "variance", "offset", "scale"))
FILTER, BIAS = variable("filter", 3, 2, 1, 2), variable("bias", 1, 3)
NORMALIZED = f"batch_normalization(features, mean, variance, offset, scale, epsilon = {EPSILON})"

#: A convolution, its bias and its batch normalization.
CONV = graph(
    FILTER, BIAS, *NORMALIZATION, "features = conv(input, filter, bias, padding = [])", f"output = {NORMALIZED}"
)
#: A convolution without bias, and its batch normalization.
BIASLESS = graph(FILTER, *NORMALIZATION, "features = conv(input, filter)", f"output = {NORMALIZED}")
#: A convolution whose output is multiplied.
SCALED = graph(FILTER, variable("scaling", 1, 3), "features = conv(input, filter)", "output = mul(features, scaling)")
#: A convolution with bias.
PLAIN = graph(FILTER, BIAS, "output = conv(input, filter, bias)")
#: A deconvolution, whose second filter dimension is the output channels.
DECONV = graph(variable("filter", 2, 3, 1, 2), BIAS, "output = deconv(input, filter, bias)")
#: A product with a matrix whose second dimension is the output.
MATMUL = graph(
    variable("matrix", 4, 3), BIAS, "product = matmul(input, matrix)", "output = add(product, bias)", shape="[1, 4]"
)

#: Ids of the batch normalization in the graphs, by role.
BATCH = {"beta": "offset", "gamma": "scale", "mean": "mean", "var": "variance"}


def start(text: bytes, **parameters: int) -> Stream:
    """Return a stream with NNR_STR, NNR_MPS and the graph, if any."""
    s = Stream()
    s.str_()
    s.parameters(topology_carriage_flag=int(bool(text)), **parameters)
    return s.topology(text + b"\0") if text else s  # type: ignore[return-value]  # the builder's type


def block(s: Stream, types: int, ids: Mapping[str, str | int], dims: Sequence[int], **header: Any) -> dict[str, Tensor]:
    """Add a block with ids by role, and return its Rec* variables by role."""
    shapes = {role: tuple(dims) if role == "weight" else tuple(dims[:1]) for role in ids}
    if types & DC:
        rows, rank = header["g_number_of_rows"], header["decomposition_rank"]
        shapes |= {"g": (rows, rank), "h": (rank, int(np.prod(dims)) // rows)}
    coded = [role for role in CODED if role in ids]
    levels = {
        role: chosen(shape, 9, types + 1) if len(shape := shapes[role]) > 1 else np.arange(k + 1, k + 1 + shape[0])
        for k, role in enumerate(coded)
    }
    names: Any = [ids[role] for role in LISTED if role in ids]
    given = None if header.pop("apart", False) else dims
    unit = ndu(names, given, kind=NNR_PT_BLOCK, compressed_parameter_types=types, **header)
    s.ndu(unit, *(levels[role] for role in coded), qp=[QP[role] for role in coded])
    return {role: floats(levels[role], QP[role]) for role in coded}


def declared(ids: Mapping[str, str], rec: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the vectors of a block, with the shape that the graph declares."""
    return {ids[role]: value.reshape(1, -1) for role, value in rec.items() if role not in ("weight", "g", "h")}


def by_id(ids: Mapping[str, str], rec: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the Rec* variables by id."""
    return {ids[role]: value for role, value in rec.items()}


def recreated(*, bias: bool) -> dict[str, Tensor]:
    """Return the recreated tensors (8.2.1): mean 0, variance 1 - epsilon, rounded once, and bias 0."""
    variance = np.full((1, 3), np.float32(1 - float(EPSILON)), "<f4")
    zeros = {"mean": np.zeros((1, 3), "<f4")} | ({"bias": np.zeros((1, 3), "<f4")} if bias else {})
    return zeros | {"variance": variance}


# ------------------------------------------------------------------------------------------------ stored separately
@valid(
    "NNR-NEF-007",
    "separately stored topology, dimensions in the bitstream",
    "6.4.4.3 A.4",
    "topology_carriage_flag=0",
    topology=GRAPH,
)
def apart() -> Content:
    return with_tensors(start(b""), topology=GRAPH)


def without_dimensions(s: Stream) -> Content:
    """Return the tensors of the graph without their dimensions."""
    weight, bias = chosen([4, 3], 9), [0.5, -1.0, 2.0, 0.0]
    s.session.topology_dimensions = {"fc/weight": [4, 3], "fc/bias": [1, 4]}
    s.ndu(ndu("fc/weight", None), weight, qp=-9).raw(ndu("fc/bias", None, kind=NNR_PT_RAW_FLOAT), bias)
    return s.gives(
        {"fc/weight": floats(weight, -9), "fc/bias": np.array([bias], "<f4")},
        topology=GRAPH,
    )


@valid(
    "NNR-NEF-008",
    "omitted dimensions are taken from a separately stored topology",
    "6.4.3.7 6.4.4.3",
    "topology_carriage_flag=0 tensor_dimensions_flag=0",
    topology=GRAPH,
)
def dimensions_apart() -> Content:
    return without_dimensions(start(b""))


@valid(
    "NNR-NEF-009",
    "omitted dimensions are taken from the topology in the bitstream",
    "6.4.3.7 A.4",
    "NNR_TPL_NNEF tensor_dimensions_flag=0",
)
def dimensions_in_band() -> Content:
    return without_dimensions(start(GRAPH))


# ------------------------------------------------------------------------------------------------ blocks
IDS = {"weight": "filter", "bias": "bias"}


@valid(
    "NNR-NEF-010",
    "the bias of a block gets its declared shape",
    "7.3.5 A.4",
    "NNR_TPL_NNEF NNR_PT_BLOCK compressed_parameter_types=8",
)
def declared_bias() -> Content:
    s = start(PLAIN)
    rec = block(s, BI, IDS, [3, 2, 1, 2])
    return s.gives({"filter": rec["weight"]} | declared(IDS, rec), raw=by_id(IDS, rec), topology=PLAIN)


@valid(
    "NNR-NEF-011",
    "batch normalization with declared shapes, not folded; separately stored topology",
    "7.3.5 A.4",
    "NNR_PT_BLOCK compressed_parameter_types=12",
    topology=CONV,
)
def declared_batch() -> Content:
    s, ids = start(b""), IDS | BATCH
    rec = block(s, BN | BI, ids, [3, 2, 1, 2])
    return s.gives({"filter": rec["weight"]} | declared(ids, rec), raw=by_id(ids, rec), topology=CONV)


@valid(
    "NNR-NEF-012",
    "local scaling whose id is not a variable is multiplied into the weight",
    "7.3.5 8.3.8 A.4",
    "NNR_TPL_NNEF NNR_PT_BLOCK compressed_parameter_types=10",
)
def consumed_scaling() -> Content:
    s, ids = start(PLAIN), IDS | {"ls": "filter_scaling"}
    rec = block(s, LS | BI, ids, [3, 2, 1, 2])
    weight = scaled([Fraction(float(value)) for value in rec["weight"].flat], [3, 2, 1, 2], rec["ls"], "<f4")
    tensors = {"filter": weight, "bias": rec["bias"].reshape(1, 3)}
    return s.gives(tensors, raw=by_id(ids, rec), topology=PLAIN)


@valid(
    "NNR-NEF-013",
    "local scaling that is a variable is a separate output; the graph multiplies",
    "7.3.5 8.3.8 A.4",
    "NNR_TPL_NNEF NNR_PT_BLOCK compressed_parameter_types=2",
)
def scaling_variable() -> Content:
    s, ids = start(SCALED), {"weight": "filter", "ls": "scaling"}
    rec = block(s, LS, ids, [3, 2, 1, 2])
    return s.gives({"filter": rec["weight"]} | declared(ids, rec), raw=by_id(ids, rec), topology=SCALED)


FOLDED = {"weight": "filter", "ls": "scale", "bias": "offset"}


@valid(
    "NNR-NEF-014",
    "folded batch normalization: gamma and beta are coded, mean and variance are recreated",
    "8.2.1 7.3.5 A.4",
    "NNR_TPL_NNEF NNR_PT_BLOCK compressed_parameter_types=10 batchnorm_folding",
)
def folded() -> Content:
    s = start(BIASLESS)
    rec = block(s, LS | BI, FOLDED, [3, 2, 1, 2])
    tensors = {"filter": rec["weight"]} | declared(FOLDED, rec) | recreated(bias=False)
    return s.gives(tensors, raw=by_id(FOLDED, rec), topology=BIASLESS)


@valid(
    "NNR-NEF-015",
    "folded batch normalization of a convolution with bias, which is also recreated",
    "8.2.1 7.3.5 A.4",
    "NNR_TPL_NNEF NNR_PT_BLOCK compressed_parameter_types=10 batchnorm_folding",
)
def folded_bias() -> Content:
    s = start(CONV)
    rec = block(s, LS | BI, FOLDED, [3, 2, 1, 2])
    tensors = {"filter": rec["weight"]} | declared(FOLDED, rec) | recreated(bias=True)
    return s.gives(tensors, raw=by_id(FOLDED, rec), topology=CONV)


@valid(
    "NNR-NEF-016",
    "folded batch normalization, omitted dimensions, separately stored topology",
    "8.2.1 6.4.3.7",
    "NNR_PT_BLOCK compressed_parameter_types=10 batchnorm_folding tensor_dimensions_flag=0",
    topology=CONV,
)
def folded_apart() -> Content:
    s = start(b"")
    s.session.topology_dimensions = {"filter": [3, 2, 1, 2]}
    rec = block(s, LS | BI, FOLDED, [3, 2, 1, 2], apart=True)
    tensors = {"filter": rec["weight"]} | declared(FOLDED, rec) | recreated(bias=True)
    return s.gives(tensors, raw=by_id(FOLDED, rec), topology=CONV)


@valid(
    "NNR-NEF-017",
    "folded batch normalization, ids by index in a reference list",
    "8.2.1 6.4.3.7 A.4",
    "NNR_TPL_NNEF NNR_TPL_REFLIST topology_elem_id_index_list batchnorm_folding",
)
def folded_indexed() -> Content:
    labels = ["filter", "mean", "variance", "offset", "scale"]
    s = start(BIASLESS, mps_topology_indexed_reference_flag=1)
    s.reference_list(*labels)
    rec = block(s, LS | BI, {role: labels.index(name) for role, name in FOLDED.items()}, [3, 2, 1, 2])
    tensors = {"filter": rec["weight"]} | declared(FOLDED, rec) | recreated(bias=False)
    return s.gives(tensors, raw=by_id(FOLDED, rec), topology=BIASLESS)


@valid(
    "NNR-NEF-018",
    "a deconvolution filter: its second dimension, the output channels, is coded first",
    "4.12 7.3.5 A.4",
    "NNR_TPL_NNEF NNR_PT_BLOCK first_tensor_dimension_shift=1",
)
def deconvolution() -> Content:
    s = start(DECONV)
    rec = block(s, BI, IDS, [3, 2, 1, 2], first_tensor_dimension_shift=1)
    shifted = {"filter": np.moveaxis(rec["weight"], 0, 1)}
    bias = rec["bias"]
    return s.gives(shifted | {"bias": bias.reshape(1, 3)}, raw=shifted | {"bias": bias}, topology=DECONV)


@valid(
    "NNR-NEF-019",
    "a matrix whose second dimension is the output, with local scaling applied before the dimension shift",
    "4.12 7.3.5 A.4",
    "NNR_TPL_NNEF NNR_PT_BLOCK first_tensor_dimension_shift=1 compressed_parameter_types=10",
)
def matrix() -> Content:
    s, ids = start(MATMUL), {"weight": "matrix", "bias": "bias", "ls": "matrix_scaling"}
    rec = block(s, LS | BI, ids, [3, 4], first_tensor_dimension_shift=1)
    weight = scaled([Fraction(float(value)) for value in rec["weight"].flat], [3, 4], rec["ls"], "<f4")
    raw = by_id(ids, rec) | {"matrix": np.moveaxis(rec["weight"], 0, 1)}
    return s.gives({"matrix": np.moveaxis(weight, 0, 1), "bias": rec["bias"].reshape(1, 3)}, raw=raw, topology=MATMUL)


@valid(
    "NNR-NEF-020",
    "a decomposed filter with a bias of declared shape; H is not a variable",
    "7.3.5 8.3.7 A.4",
    "NNR_TPL_NNEF NNR_PT_BLOCK NNR_CPT_DC compressed_parameter_types=9",
)
def decomposed() -> Content:
    s, ids = start(PLAIN), {"g": "filter", "h": "filter_H", "bias": "bias"}
    rec = block(s, DC | BI, ids, [3, 2, 1, 2], decomposition_rank=2, g_number_of_rows=3)
    weight = product(rec["g"], rec["h"], [3, 2, 1, 2], None, "<f4")
    return s.gives({"filter": weight, "bias": rec["bias"].reshape(1, 3)}, raw=by_id(ids, rec), topology=PLAIN)


@valid(
    "NNR-NEF-023",
    "a deconvolution filter with omitted dimensions: the second declared dimension is coded first",
    "4.12 6.4.3.7 A.4",
    "NNR_TPL_NNEF NNR_PT_BLOCK first_tensor_dimension_shift=1 tensor_dimensions_flag=0",
)
def deconvolution_left_out() -> Content:
    s = start(DECONV)
    s.session.topology_dimensions = {"filter": [3, 2, 1, 2]}
    rec = block(s, BI, IDS, [3, 2, 1, 2], first_tensor_dimension_shift=1, apart=True)
    shifted, bias = {"filter": np.moveaxis(rec["weight"], 0, 1)}, rec["bias"]
    return s.gives(shifted | {"bias": bias.reshape(1, 3)}, raw=shifted | {"bias": bias}, topology=DECONV)


@valid(
    "NNR-NEF-024",
    "a separately stored graph replaces the graph in the bitstream",
    "6.4.3.7 6.4.4.3",
    "NNR_TPL_NNEF tensor_dimensions_flag=0",
    topology=GRAPH,
)
def instead() -> Content:
    return without_dimensions(start(GRAPH.replace(b"shape = [4, 3]", b"shape = [3, 4]")))


@valid(
    "NNR-NEF-025",
    "gamma with a bias that is not beta: not folded, the graph multiplies by gamma",
    "7.3.5 8.2.1 A.4",
    "NNR_TPL_NNEF NNR_PT_BLOCK compressed_parameter_types=10",
)
def not_folded() -> Content:
    s, ids = start(CONV), {"weight": "filter", "ls": "scale", "bias": "bias"}
    rec = block(s, LS | BI, ids, [3, 2, 1, 2])
    others = {name: np.array([[k, -k, 0.5]], "<f4") for k, name in enumerate(("offset", "mean", "variance"), 1)}
    for name, values in others.items():
        s.raw(ndu(name, [1, 3], kind=NNR_PT_RAW_FLOAT), values)
    tensors = {"filter": rec["weight"]} | declared(ids, rec) | others
    return s.gives(tensors, raw=by_id(ids, rec) | others, topology=CONV)


# ------------------------------------------------------------------------------------------------ integers
QUANTIZED = b"""# what the integers stand for
"weight": zero_point_linear_quantize(zero_point = 0, scale = 0.25, bits = 8, signed = true, symmetric = true);
"bias": zero_point_linear_quantize(zero_point = 0, scale = 0.125, bits = 32, signed = true, symmetric = true);
"""


@valid(
    "NNR-NEF-021",
    "integers described by graph.quant remain integers",
    "7.3.2 A.4",
    "NNR_TPL_NNEF NNR_QNT_NNEF NNR_PT_INT nnr_decompressed_data_format=5",
)
def quantized() -> Content:
    s = start(GRAPH)
    s.quantization(QUANTIZED + b"\0")
    weight, bias = chosen([4, 3], 127), chosen([1, 4], 30000)
    s.ndu(ndu("fc/weight", [4, 3], kind=NNR_PT_INT, data_format=5), weight)
    s.ndu(ndu("fc/bias", [1, 4], kind=NNR_PT_INT), bias)
    tensors = {"fc/weight": weight.astype("i1"), "fc/bias": bias}
    return s.gives(tensors, topology=GRAPH, quantization=QUANTIZED)


@valid(
    "NNR-NEF-022",
    "integer and logical variables",
    "7.3.2 A.4",
    "NNR_TPL_NNEF NNR_PT_INT nnr_decompressed_data_format=7 nnr_decompressed_data_format=2",
)
def integers() -> Content:
    text = graph(
        "index = variable<integer>(shape = [2, 2], label = 'index')",
        "mask = variable<logical>(shape = [3], label = 'mask')",
        "output = copy(input)",
    )
    index, mask = chosen([2, 2], 100000), np.array([1, 0, 1], np.int32)
    s = start(text)
    s.ndu(ndu("index", [2, 2], kind=NNR_PT_INT, data_format=7), index)
    s.ndu(ndu("mask", [3], kind=NNR_PT_INT, data_format=2), mask)
    return s.gives({"index": index.astype("<i8"), "mask": mask.astype("i1")}, topology=text)
