"""NNR-SYN-055 on: ONNX topologies, a serialized ModelProto without tensor data (Annex B, errata N9).

Decoders derive the same information as from an NNEF graph; see `wired`. Annex B is informative and requires a string,
which an ONNX topology is not, so a decoder may reject bitstreams that depend on it.
"""

from __future__ import annotations

import numpy as np

from nnr_codec.constants import NNR_PT_RAW_FLOAT, TopologyStorageFormat

from ..builder import ndu
from ..formats.onnx_files import CODES, field, model, node
from .arithmetic import chosen, floats
from .bits import f4
from .block import BI, LS
from .case import Content, acceptable, valid
from .stream import Stream
from .wired import block, by_id

ONNX = TopologyStorageFormat.NNR_TPL_ONNX
EPSILON = 0.5
NORM = ("gamma", "beta", "mean", "var")


def empty(name: str, *shape: int) -> bytes:
    """Return a TensorProto of float32 without data."""
    return b"".join(field(1, extent) for extent in shape) + field(2, CODES["float32"]) + field(8, name) + field(9, b"")


#: y = x W^T + b.
GEMM = model([node("Gemm", ["x", "w", "b"], ["y"], transB=1)], [empty("w", 4, 3), empty("b", 4)])
#: A convolution, its bias and its batch normalization.
CONV = model(
    [
        node("Conv", ["x", "w", "b"], ["a"]),
        node("BatchNormalization", ["a", *NORM], ["y"], epsilon=EPSILON),
    ],
    [empty("w", 3, 2, 1, 2), *(empty(name, 3) for name in ("b", *NORM))],
)


def start(data: bytes, **parameters: int) -> Stream:
    """Return a stream with NNR_STR, NNR_MPS and the topology."""
    s = Stream()
    s.str_()
    s.parameters(topology_carriage_flag=1, **parameters)
    return s.topology(data, storage=ONNX)  # type: ignore[return-value]  # the builder's type


@valid(
    "NNR-SYN-055",
    "a topology of format NNR_TPL_ONNX that is stored separately: a single zero byte",
    "6.4.3.5 B.4",
    "NNR_TPL_ONNX topology_carriage_flag",
)
def apart() -> Content:
    s = start(b"\0")
    s.raw(ndu("w", [2], kind=NNR_PT_RAW_FLOAT), [1, 2])
    return s.gives({"w": f4(1, 2)})


@valid(
    "NNR-SYN-056",
    "a ModelProto without tensor data, tensors by index",
    "6.4.3.5 B.2 B.4",
    "NNR_TPL_ONNX NNR_TPL_REFLIST topology_elem_id_index",
)
def carried() -> Content:
    s = start(GEMM, mps_topology_indexed_reference_flag=1)
    s.reference_list("w", "b")
    weight, bias = chosen([4, 3], 9), [0.5, -1.0, 2.0, 0.0]
    s.ndu(ndu(0, [4, 3]), weight, qp=-9).raw(ndu(1, [4], kind=NNR_PT_RAW_FLOAT), bias)
    tensors = {"w": floats(weight, -9), "b": f4(*bias)}
    return s.gives(tensors, topology=GEMM, topology_format="onnx")


# Annex B is informative.
@acceptable(
    "NNR-ACC-033",
    "omitted dimensions are taken from the ONNX graph in the bitstream",
    "6.4.3.7 B.4",
    "NNR_TPL_ONNX tensor_dimensions_flag=0",
)
def dimensions() -> Content:
    s = start(GEMM)
    s.session.topology_dimensions = {"w": [4, 3], "b": [4]}
    weight, bias = chosen([4, 3], 9), [0.5, -1.0, 2.0, 0.0]
    s.ndu(ndu("w", None), weight, qp=-9).raw(ndu("b", None, kind=NNR_PT_RAW_FLOAT), bias)
    return s.gives({"w": floats(weight, -9), "b": f4(*bias)}, topology=GEMM, topology_format="onnx")


# Annex B is informative.
@acceptable(
    "NNR-ACC-034",
    "folded batch normalization of an ONNX graph: gamma and beta are coded; mean, variance and bias are recreated",
    "8.2.1 7.3.5 B.4",
    "NNR_TPL_ONNX NNR_PT_BLOCK compressed_parameter_types=10 batchnorm_folding",
)
def folded() -> Content:
    s, ids = start(CONV), {"weight": "w", "ls": "gamma", "bias": "beta"}
    rec = block(s, LS | BI, ids, [3, 2, 1, 2])
    raw = by_id(ids, rec)
    recreated = {"mean": f4(0, 0, 0), "var": np.full(3, np.float32(1 - EPSILON), "<f4"), "b": f4(0, 0, 0)}
    return s.gives(raw | recreated, raw=raw, topology=CONV, topology_format="onnx")
