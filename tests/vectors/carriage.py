"""NNR-TPL: topologies of other formats than NNEF, in the bitstream or stored separately (6.4.3.5, B.4, errata N9).

Decoders are not required to interpret them: Annex B is informative, and the content of topologies of PyTorch,
TensorFlow and unrecognized formats is unspecified. A bitstream that takes dimensions or blocks only from such a
topology is therefore acceptable. docs/reference/formats.md has the descriptions that this project writes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnr_codec.constants import NNR_DFL, NNR_PT_BLOCK, NNR_PT_INT, NNR_PT_RAW_FLOAT, TopologyStorageFormat

from ..builder import ndu, update_ndu
from ..formats.onnx_files import model, node
from .arithmetic import chosen, floats
from .bits import f4
from .block import BI, LS
from .case import Content, Tensor, acceptable, invalid, valid
from .onnx import EPSILON, GEMM, empty
from .pruning import container, pruned
from .stream import Stream
from .topologies import stored
from .wired import block, by_id

UNREC, NNEF, ONNX, PYTORCH, TENSORFLOW = list(TopologyStorageFormat)[:5]
NAMES = {UNREC: "", ONNX: "onnx", PYTORCH: "pytorch", TENSORFLOW: "tensorflow"}

# ------------------------------------------------------------------------------------------------ topology data
#: A module as PyTorch prints it.
PRINTED = "Net(\n  (größe): Linear(in_features=3, out_features=4)\n)".encode()
#: A GraphDef of one node.
GRAPH_DEF = b"\n\x1b\n\x0cdense/kernel\x12\x0bVarHandleOp"
#: The configuration of a Keras model.
CONFIG = b'{"class_name": "Sequential", "config": {"name": "net", "layers": []}}'


def ir(*constants: tuple[str, Sequence[int]]) -> bytes:
    """Return an OpenVINO IR of float32 constants."""
    layers, offset = [], 0
    for number, (name, shape) in enumerate(constants):
        size = 4 * int(np.prod(shape))
        extents = ",".join(map(str, shape))
        data = f'<data element_type="f32" shape="{extents}" offset="{offset}" size="{size}"/>'
        layers.append(f'<layer id="{number}" name="{name}" type="Const" version="opset1">{data}</layer>')
        offset += size
    return f'<?xml version="1.0"?><net name="n" version="11"><layers>{"".join(layers)}</layers></net>'.encode()


def description(shapes: dict[str, Sequence[int]], *blocks: dict[str, Any]) -> bytes:
    """Return the description of a state_dict with these parameters."""
    tree = {"OrderedDict": [[name, {"tensor": list(shape)}] for name, shape in shapes.items()]}
    fields = {"nnr_codec.pytorch": 1, "tree": tree} | ({"blocks": blocks} if blocks else {})
    return json.dumps(fields, separators=(",", ":")).encode()


def start(storage: int, data: bytes, *, profile: int = 1, deflate: int = 0, **parameters: Any) -> Stream:
    """Return a stream with NNR_STR, NNR_MPS and the topology."""
    s = Stream()
    s.str_(profile)
    s.parameters(topology_carriage_flag=int(data != b"\0"), **parameters)
    return s.topology(data, storage=storage, compression=deflate)  # type: ignore[return-value]  # the builder's type


def two(s: Stream, *names: str | int) -> tuple[Tensor, Tensor]:
    """Write a matrix and a vector, and return their values."""
    weight, bias = chosen([4, 3], 9), [0.5, -1.0, 2.0, 0.0]
    s.ndu(ndu(names[0], [4, 3]), weight, qp=-9).raw(ndu(names[1], [4], kind=NNR_PT_RAW_FLOAT), bias)
    return floats(weight, -9), f4(*bias)


# ------------------------------------------------------------------------------------------------ stored separately
for number, storage in enumerate((UNREC, PYTORCH, TENSORFLOW), 1):

    @valid(
        f"NNR-TPL-{number:03}",
        f"a topology of format {storage.name} that is stored separately: a single zero byte",
        "6.4.3.5 6.4.4.5 B.4",
        f"{storage.name} topology_carriage_flag=0",
    )
    def apart(storage: int = storage) -> Content:
        s = start(storage, b"\0")
        return s.gives(dict(zip("wb", two(s, "w", "b"), strict=True)))


@valid(
    "NNR-TPL-004",
    "a topology that is stored separately, and a reference list",
    "6.4.3.5 6.4.3.7 B.4",
    "NNR_TPL_ONNX NNR_TPL_REFLIST topology_elem_id_index",
)
def apart_with_list() -> Content:
    s = start(ONNX, b"\0", mps_topology_indexed_reference_flag=1)
    s.reference_list("b", "w")
    return s.gives(dict(zip("wb", two(s, 1, 0), strict=True)))


# ------------------------------------------------------------------------------------------------ in the bitstream
IN_FULL = [
    (PYTORCH, PRINTED, ("größe.weight", "größe.bias"), "a printed module in UTF-8"),
    (
        PYTORCH,
        description({"w": [4, 3], "b": [4]}),
        ("w", "b"),
        "the description of a state_dict (docs/reference/formats.md)",
    ),
    (TENSORFLOW, GRAPH_DEF, ("dense/kernel:0", "dense/bias:0"), "a GraphDef, variable names with slash and colon"),
    (TENSORFLOW, CONFIG, ("dense/kernel", "dense/bias"), "the configuration of a Keras model"),
    (UNREC, ir(("w", [4, 3]), ("b", [4])), ("w", "b"), "an OpenVINO IR, which has no storage format number"),
]
for number, (storage, data, names, title) in enumerate(IN_FULL, 5):

    @valid(
        f"NNR-TPL-{number:03}",
        f"{title}, tensors by name",
        "6.4.3.5 6.4.4.5",
        f"{storage.name} topology_elem_id",
    )
    def by_name(storage: TopologyStorageFormat = storage, data: bytes = data, names: Any = names) -> Content:
        s = start(storage, data)
        found = dict(zip(names, two(s, *names), strict=True))
        return s.gives(found, topology=data, topology_format=NAMES[storage])

    @valid(
        f"NNR-TPL-{number + len(IN_FULL):03}",
        f"{title}, deflated, tensors by index",
        "6.4.3.5 6.4.3.7 6.4.4.5",
        f"{storage.name} NNR_DFL NNR_TPL_REFLIST topology_elem_id_index",
    )
    def by_index(storage: TopologyStorageFormat = storage, data: bytes = data, names: Any = names) -> Content:
        s = start(storage, stored(data), deflate=NNR_DFL, mps_topology_indexed_reference_flag=1)
        s.reference_list(*names)
        found = dict(zip(names, two(s, 0, 1), strict=True))
        return s.gives(found, topology=data, topology_format=NAMES[storage])


@valid(
    "NNR-TPL-015",
    "a PyTorch topology, with tensor names that differ only in case",
    "6.2.3 6.4.3.7",
    "NNR_TPL_PYT topology_elem_id",
)
def by_case() -> Content:
    data = description({"W": [4, 3], "w": [4]})
    s = start(PYTORCH, data)
    return s.gives(dict(zip("Ww", two(s, "W", "w"), strict=True)), topology=data, topology_format="pytorch")


@valid(
    "NNR-TPL-016",
    "an ONNX model in profile 0, a weight and its bias in one unit, ids by index",
    "6.4.3.5 7.3.5 B.4",
    "NNR_TPL_ONNX NNR_TPL_REFLIST NNR_PT_BLOCK profile_0",
)
def base_profile() -> Content:
    s = start(ONNX, GEMM, profile=0, mps_topology_indexed_reference_flag=1)
    s.reference_list("b", "w")
    levels, bias = chosen([4, 3], 9), chosen([4], 9, 3)
    header = ndu([1, 0], [4, 3], kind=NNR_PT_BLOCK, compressed_parameter_types=BI)
    s.ndu(header, bias, levels, qp=[-8, 4])
    return s.gives({"w": floats(levels, 4), "b": floats(bias, -8)}, topology=GEMM, topology_format="onnx")


@valid(
    "NNR-TPL-017",
    "an update with a topology that is stored separately, in the previous bitstream",
    "6.4.3.5 6.4.3.7 B.4",
    "NNR_TPL_ONNX ICNN_NDU_ID put_node_depth",
)
def updated() -> list[Content]:
    made = []
    for depth, data in enumerate((GEMM, b"\0")):
        s = start(ONNX, data, mps_parent_signalling_enabled_flag=depth)
        values = {}
        for number, (name, shape) in enumerate({"w": [4, 3], "b": [4]}.items()):
            levels = chosen(shape, 5, 3 * number + depth + 1)
            s.ndu(update_ndu(name, shape, depth, parameter=number), levels, qp=-5)
            values[name] = floats(levels, -5)
        text = {"topology": data, "topology_format": "onnx"} if not depth else {}
        made.append(s.gives(values, **text))  # type: ignore[arg-type]  # bytes and str
    return made


# ------------------------------------------------------------------------------------------------ deflate, bit by bit
def fixed(data: bytes, *blocks: str) -> bytes:
    """Return a zlib stream of ``data`` with blocks of these bits in the order of RFC 1951, lowest bit first."""
    bits = "".join(blocks)
    bits += "0" * (-len(bits) % 8)
    body = bytes(int(bits[k : k + 8][::-1], 2) for k in range(0, len(bits), 8))
    return b"\x78\x01" + body + zlib.adler32(data).to_bytes(4, "big")


def literals(data: bytes) -> str:
    """Return the fixed codes of bytes (RFC 1951, 3.2.6)."""
    return "".join(f"{0x30 + byte:08b}" if byte < 144 else f"{0x190 + byte - 144:09b}" for byte in data)


def raw_block(data: bytes, last: int) -> str:
    """Return a stored block, the first of its stream."""
    length = len(data)
    bytes_ = length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little") + data
    return f"{last}00" + "00000" + "".join(f"{byte:08b}"[::-1] for byte in bytes_)


FIXED, END = "10", "0000000"
#: Nine bytes from three bytes before: length 9 is code 263, distance 3 code 2.
COPY = "0000111" + "00010"


@valid(
    "NNR-TPL-018",
    "an ONNX model deflated with fixed codes of 8 and 9 bits",
    "6.4.4.5",
    "NNR_TPL_ONNX NNR_DFL",
)
def fixed_codes() -> Content:
    text = model([node("Gemm", ["x", "w", "b"], ["y"], transB=1, alpha=-1.5)], [empty("w", 4, 3), empty("b", 4)])
    s = start(ONNX, fixed(text, "1", FIXED, literals(text), END), deflate=NNR_DFL)
    return s.gives(dict(zip("wb", two(s, "w", "b"), strict=True)), topology=text, topology_format="onnx")


@valid(
    "NNR-TPL-019",
    "three deflate blocks, with a copy that overlaps itself and starts in an earlier block",
    "6.4.4.5",
    "NNR_TPL_TEF NNR_DFL",
)
def three_blocks() -> Content:
    text = b"abc" + b"abcabcabc" + b"\xff" + b"\0"
    blocks = (raw_block(b"abc", 0), "0", FIXED, COPY, END, "1", FIXED, literals(b"\xff\0"), END)
    s = start(TENSORFLOW, fixed(text, *blocks), deflate=NNR_DFL)
    s.raw(ndu("w", [2], kind=NNR_PT_RAW_FLOAT), [1, 2])
    return s.gives({"w": f4(1, 2)}, topology=text, topology_format="tensorflow")


@valid(
    "NNR-TPL-020", "a deflated empty string: the topology is stored separately", "6.4.4.5 B.4", "NNR_TPL_ONNX NNR_DFL"
)
def deflated_nothing() -> Content:
    s = start(ONNX, fixed(b"\0", "1", FIXED, literals(b"\0"), END), deflate=NNR_DFL)
    s.raw(ndu("w", [2], kind=NNR_PT_RAW_FLOAT), [1, 2])
    return s.gives({"w": f4(1, 2)})


# ------------------------------------------------------------------------------------------------ acceptable
def with_dimensions(
    storage: TopologyStorageFormat, data: bytes, *, deflate: int = 0, later: tuple[int, bytes] | None = None
) -> Content:
    """Return a matrix and a vector without dimensions; ``later`` is a second topology without dimensions."""
    s = start(storage, stored(data) if deflate else data, deflate=deflate)
    if later:
        s.topology(later[1], storage=later[0])
    s.session.topology_dimensions = {"w": [4, 3], "b": [4]}
    weight, bias = chosen([4, 3], 9), [0.5, -1.0, 2.0, 0.0]
    s.ndu(ndu("w", None), weight, qp=-9).raw(ndu("b", None, kind=NNR_PT_RAW_FLOAT), bias)
    tensors = {"w": floats(weight, -9), "b": f4(*bias)}
    return s.gives(tensors, topology=data, topology_format=NAMES[storage])


LEFT_OUT = "tensor_dimensions_flag=0"
STATE_DICT, IR = description({"w": [4, 3], "b": [4]}), ir(("w", [4, 3]), ("b", [4]))
for number, (storage, data, deflate, title) in enumerate(
    [
        (PYTORCH, STATE_DICT, 0, "the description of a state_dict (docs/reference/formats.md)"),
        (UNREC, IR, 0, "an OpenVINO IR"),
        (ONNX, GEMM, NNR_DFL, "a deflated ONNX model"),
    ],
    111,
):

    @acceptable(
        f"NNR-ACC-{number}",
        f"omitted dimensions are taken from {title}",
        "6.4.3.7 B.4",
        f"{storage.name} {LEFT_OUT}",
    )
    def dimensions(storage: TopologyStorageFormat = storage, data: bytes = data, deflate: int = deflate) -> Content:
        return with_dimensions(storage, data, deflate=deflate)


for number, (later, title) in enumerate(
    [
        ((ONNX, b"\0"), "a second topology is stored separately"),
        ((UNREC, b"w, b"), "a second topology has an unrecognized format"),
    ],
    117,
):

    @acceptable(
        f"NNR-ACC-{number}",
        f"omitted dimensions are taken from an ONNX graph; {title}",
        "6.4.3.7 B.4",
        f"NNR_TPL_ONNX {LEFT_OUT}",
    )
    def two_topologies(later: tuple[int, bytes] = later) -> Content:
        return with_dimensions(ONNX, GEMM, later=later)


BATCH = {"weight": "conv.weight", "ls": "bn.weight", "bias": "bn.bias"}


@acceptable(
    "NNR-ACC-114",
    "folded batch normalization of a PyTorch module: mean and variance are recreated",
    "8.2.1 7.3.5",
    "NNR_TPL_PYT NNR_PT_BLOCK compressed_parameter_types=10 batchnorm_folding",
)
def folded_module() -> Content:
    vectors = {"bias": "conv.bias", "beta": "bn.bias", "gamma": "bn.weight", "mean": "bn.mean", "var": "bn.var"}
    shapes = {"conv.weight": [3, 2, 1, 2], **{name: [3] for name in vectors.values()}}
    text = description(shapes, {"weight": "conv.weight", **vectors, "axis": 0, "epsilon": EPSILON})
    s = start(PYTORCH, text)
    raw = by_id(BATCH, block(s, LS | BI, BATCH, [3, 2, 1, 2]))
    zero = f4(0, 0, 0)
    recreated = {"bn.mean": zero, "bn.var": np.full(3, np.float32(1 - EPSILON), "<f4"), "conv.bias": zero}
    return s.gives(raw | recreated, raw=raw, topology=text, topology_format="pytorch")


@acceptable(
    "NNR-ACC-115",
    "omitted dimensions are taken from an ONNX graph after pruning",
    "6.4.3.7 6.4.4.5 8.3.3 B.4",
    f"NNR_TPL_ONNX NNR_TPL_PRUN NNR_TPL_DICT {LEFT_OUT}",
)
def pruned_graph() -> Content:
    s = start(ONNX, GEMM)
    pruned(s, container(dims={"w": [2, 3], "b": [2]}))
    s.session.topology_dimensions = {"w": [2, 3], "b": [2]}
    weight = chosen([2, 3], 9)
    s.ndu(ndu("w", None), weight, qp=-9).raw(ndu("b", None, kind=NNR_PT_RAW_FLOAT), [1, 2])
    return s.gives({"w": floats(weight, -9), "b": f4(1, 2)}, topology=GEMM, topology_format="onnx")


@acceptable("NNR-ACC-116", "a tensor that is not in the ONNX graph", "B.4", "NNR_TPL_ONNX topology_elem_id")
def stranger() -> Content:
    s = start(ONNX, GEMM)
    found = dict(zip("wb", two(s, "w", "b"), strict=True))
    s.raw(ndu("v", [1], kind=NNR_PT_RAW_FLOAT), [1])
    return s.gives(found | {"v": f4(1)}, topology=GEMM, topology_format="onnx")


# ------------------------------------------------------------------------------------------------ invalid
def bad(
    number: int,
    title: str,
    features: str,
    error: str,
    unit: int | None,
    rules: str,
    make: Callable[[], Stream],
    **fields: Any,
) -> None:
    """Register a bitstream that is invalid because of its topology."""
    fields |= {"requirements": rules}
    invalid(f"NNR-NEG-{number}", title, "6.4.3.5 6.4.3.7 B.4", features, error, unit, **fields)(
        lambda: make().refused()
    )


def without_dimensions(storage: int, data: bytes, name: str) -> Callable[[], Stream]:
    """Return a maker of a tensor without dimensions."""

    def make() -> Stream:
        s = start(storage, data)
        s.session.topology_dimensions = {name: [4, 3]}
        s.ndu(ndu(name, None, kind=NNR_PT_INT), np.ones([4, 3], np.int32))
        return s

    return make


def damaged() -> Stream:
    """Return a bitstream whose deflated data copies bytes from before its start."""
    s = start(ONNX, fixed(b"abc" * 4, "1", FIXED, literals(b"ab"), COPY, END), deflate=NNR_DFL)
    return s.raw(ndu("w", [1], kind=NNR_PT_RAW_FLOAT), [1])  # type: ignore[return-value]  # the builder's type


MISSING = "MissingReferenceError"
HUGE = model([node("Gemm", ["x", "w", "b"], ["y"])], [empty("w", 1 << 20, 1 << 20), empty("b", 4)])
for number, (title, storage, data, name) in enumerate(
    [
        ("of a tensor that is not in the ONNX graph", ONNX, GEMM, "v"),
        ("from a truncated ONNX model", ONNX, GEMM[:-7], "w"),
        ("from an ONNX model that is stored separately and unavailable", ONNX, b"\0", "w"),
        ("from the truncated description of a state_dict", PYTORCH, STATE_DICT[:-1], "w"),
        ("from a GraphDef without dimensions", TENSORFLOW, GRAPH_DEF, "dense/kernel"),
        ("from a topology of unrecognized format", UNREC, b"w, b", "w"),
    ],
    311,
):
    features = f"{storage.name} {LEFT_OUT}"
    bad(
        number,
        f"omitted dimensions {title}",
        features,
        MISSING,
        3,
        "dimensions-known",
        without_dimensions(storage, data, name),
    )
bad(
    317,
    "omitted dimensions from an ONNX graph with the product 2^40",
    f"NNR_TPL_ONNX {LEFT_OUT}",
    "LimitError",
    3,
    "limits",
    without_dimensions(ONNX, HUGE, "w"),
    limits={"preset": "strict"},
)
bad(
    318,
    "deflated data with a copy from before its start",
    "NNR_TPL_ONNX NNR_DFL",
    "ElementError",
    2,
    "deflate",
    damaged,
)
