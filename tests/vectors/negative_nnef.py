"""NNR-NEG-184 on, NNR-ACC-020 on: NNEF graphs that violate Annex A or contradict the tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnr_codec.constants import NNR_PT_RAW_FLOAT, NNR_TPL_NNEF

from ..builder import ndu
from .block import BI, LS
from .case import Content, Tensor, acceptable, invalid
from .nnef import GRAPH, QUANT
from .stream import Stream
from .wired import BIASLESS, FOLDED, PLAIN, block, start

TENSORS = ("fc/weight", "fc/bias")
SHAPES = {"fc/weight": (4, 3), "filter": (3, 2, 1, 2)}


def bitstream(
    *units: str, text: bytes = GRAPH, storage: int = NNR_TPL_NNEF, carried: int = 1
) -> tuple[Stream, dict[str, Tensor]]:
    """Return a stream with units in this order, and its tensors; names without a unit type are tensors."""
    s, tensors = Stream(), dict[str, Tensor]()
    s.str_()
    s.parameters(topology_carriage_flag=carried)
    for unit in units:
        if unit == "topology":
            s.topology(text + b"\0", storage=storage)
        elif unit == "quantization":
            s.quantization(QUANT + b"\0")
        elif unit == "list":
            s.reference_list(*TENSORS)
        else:
            shape = SHAPES.get(unit, (1, 4))
            tensors[unit] = np.arange(np.prod(shape), dtype="<f4").reshape(shape)
            s.raw(ndu(unit, shape, kind=NNR_PT_RAW_FLOAT), tensors[unit])
    return s, tensors


# ------------------------------------------------------------------------------------------------ acceptable
# The standard states the order without "shall", so a violation is a warning.
@acceptable("NNR-ACC-020", "a reference list before the topology", "A.4", "NNR_TPL_NNEF NNR_TPL_REFLIST")
def list_before_topology() -> Content:
    s, tensors = bitstream("list", "topology", *TENSORS)
    return s.gives(tensors, topology=GRAPH)


@acceptable(
    "NNR-ACC-021",
    "quantization information after tensors",
    "6.2.3 A.4",
    "NNR_TPL_NNEF NNR_QNT_NNEF",
    requirements="nnef-quantization-first",
)
def late_quantization() -> Content:
    s, tensors = bitstream("topology", *TENSORS, "quantization")
    return s.gives(tensors, topology=GRAPH, quantization=QUANT)


@acceptable(
    "NNR-ACC-022",
    "a tensor that is not a variable of the graph",
    "A.4",
    "NNR_TPL_NNEF topology_elem_id",
    requirements="nnef-names",
)
def stranger() -> Content:
    s, tensors = bitstream("topology", *TENSORS, "fc/other")
    return s.gives(tensors, topology=GRAPH)


@acceptable(
    "NNR-ACC-023", "a graph with a comment that is not UTF-8", "A.4", "NNR_TPL_NNEF UTF-8", requirements="nnef-string"
)
def not_utf8() -> Content:
    text = b"# gr\xf6\xdfe\n" + GRAPH
    s, tensors = bitstream("topology", *TENSORS, text=text)
    return s.gives(tensors, topology=text)


@acceptable(
    "NNR-ACC-024",
    "a graph with topology_storage_format NNR_TPL_UNREC",
    "A.2 A.4",
    "NNR_TPL_UNREC",
    requirements="nnef-topology-format",
)
def unrecognized() -> Content:
    s, tensors = bitstream("topology", *TENSORS, storage=0)
    # The zero is data, because an unrecognized format has no terminating zero.
    return s.gives(tensors, topology=GRAPH + b"\0", topology_format="")


@acceptable(
    "NNR-ACC-025", "a graph that does not follow the grammar of NNEF", "A.1", "NNR_TPL_NNEF", requirements="nnef-graph"
)
def no_graph() -> Content:
    text = GRAPH.replace(b"output = linear", b"= linear")
    s, tensors = bitstream("topology", *TENSORS, text=text)
    return s.gives(tensors, topology=text)


# A warning, as in NNR-ACC-020.
@acceptable("NNR-ACC-026", "a reference list after another topology unit", "A.4", "NNR_TPL_REFLIST NNR_TPL_ONNX")
def list_after_another() -> Content:
    s = bitstream()[0]
    s.topology(b"onnx", storage=2).topology(GRAPH + b"\0").reference_list(*TENSORS).reference_list(*TENSORS)
    tensors = {name: np.ones(SHAPES.get(name, (1, 4)), "<f4") for name in TENSORS}
    for name, tensor in tensors.items():
        s.raw(ndu(name, tensor.shape, kind=NNR_PT_RAW_FLOAT), tensor)
    return s.gives(tensors, topology=GRAPH)


# Only A.1 requires the declared shapes, by reference to chapter 6 of NNEF.
@acceptable(
    "NNR-ACC-027",
    "a bias keeps its shape if its size differs from its variable",
    "7.3.5 A.4",
    "NNR_TPL_NNEF NNR_PT_BLOCK compressed_parameter_types=8",
    requirements="nnef-graph nnef-shapes",
)
def other_bias() -> Content:
    text, ids = PLAIN.replace(b"shape = [1, 3]", b"shape = [1, 4]"), {"weight": "filter", "bias": "bias"}
    s = start(text)
    rec = block(s, BI, ids, [3, 2, 1, 2])
    return s.gives({"filter": rec["weight"], "bias": rec["bias"]}, topology=text)


# ------------------------------------------------------------------------------------------------ invalid
def bad(
    id_: str, title: str, clauses: str, features: str, error: str, unit: int | None, **fields: Any
) -> Callable[[Callable[[], Stream]], None]:
    """Register a bitstream that decoders must reject."""

    def register(make: Callable[[], Stream]) -> None:
        invalid(id_, title, clauses, features, error, unit, **fields)(lambda: make().refused())

    return register


def left_out(s: Stream, name: str = "fc/weight", dims: Sequence[int] = (4, 3)) -> Stream:
    """Add a tensor without dimensions."""
    s.session.topology_dimensions = {name: dims}
    s.ndu(ndu(name, None), np.ones(dims, np.int32))
    return s


MISSING = "MissingReferenceError"


@bad(
    "NNR-NEG-184",
    "omitted dimensions of a tensor that is not a variable of the graph",
    "6.4.3.7",
    "tensor_dimensions_flag=0",
    MISSING,
    5,
    requirements="dimensions-known",
)
def no_variable() -> Stream:
    return left_out(bitstream("topology", *TENSORS)[0], "fc/other")


@bad(
    "NNR-NEG-185",
    "omitted dimensions from a graph that cannot be parsed",
    "6.4.3.7",
    "tensor_dimensions_flag=0",
    MISSING,
    3,
    requirements="nnef-graph dimensions-known",
)
def unread() -> Stream:
    return left_out(bitstream("topology", text=GRAPH.replace(b"output = linear", b"= linear"))[0])


@bad(
    "NNR-NEG-186",
    "omitted dimensions from a graph that follows the tensor",
    "6.4.3.7 A.4",
    "tensor_dimensions_flag=0",
    MISSING,
    2,
    requirements="dimensions-known",
)
def too_late() -> Stream:
    s = left_out(bitstream()[0])
    return s.topology(GRAPH + b"\0")  # type: ignore[return-value]


@bad(
    "NNR-NEG-187",
    "omitted dimensions from a graph with the product 2^80",
    "6.4.3.7",
    "tensor_dimensions_flag=0",
    "LimitError",
    3,
    limits={"preset": "strict"},
    requirements="limits nnef-graph",
)
def huge() -> Stream:
    text = GRAPH.replace(b"shape = [4, 3]", b"shape = [1048576, 1048576, 1048576, 1048576]")
    return left_out(bitstream("topology", text=text)[0])


@bad(
    "NNR-NEG-188",
    "the tensor of a variable is missing",
    "7.1 A.4",
    "NNR_TPL_NNEF",
    "IncompleteError",
    None,
    requirements="complete",
)
def incomplete() -> Stream:
    return bitstream("topology", "fc/weight")[0]


@bad(
    "NNR-NEG-189",
    "the tensor of a variable of a separately stored graph is missing",
    "7.1",
    "topology_carriage_flag=0",
    "IncompleteError",
    None,
    topology=GRAPH,
    requirements="complete",
)
def incomplete_apart() -> Stream:
    return bitstream("fc/weight", carried=0)[0]


def folded_and(*more: str, first: bool = False) -> Stream:
    """Return a folded batch normalization, and separate units for some of its tensors."""
    s = bitstream("topology", *(more if first else ()), text=BIASLESS)[0]
    block(s, LS | BI, FOLDED, [3, 2, 1, 2])
    for name in () if first else more:
        s.raw(ndu(name, [1, 3], kind=NNR_PT_RAW_FLOAT), [1, 2, 3])
    return s


@bad(
    "NNR-NEG-190",
    "a unit for a mean that is already recreated",
    "6.2.3 8.2.1",
    "batchnorm_folding",
    "ElementError",
    4,
    requirements="unique-ids",
)
def coded_again() -> Stream:
    return folded_and("mean")


@bad(
    "NNR-NEG-191",
    "folded batch normalization after a unit for its variance",
    "6.2.3 8.2.1",
    "batchnorm_folding",
    "ElementError",
    4,
    requirements="nnef-shapes unique-ids",
)
def recreated_again() -> Stream:
    return folded_and("variance", first=True)


@bad(
    "NNR-NEG-908",
    "folded batch normalization, with an empty id for the weight",
    "8.2.1 6.4.3.7 7.1",
    "NNR_PT_BLOCK batchnorm_folding",
    "IncompleteError",
    None,
    requirements="nnef-names complete",
)
def folded_without_weight() -> Stream:
    s = bitstream("topology", text=BIASLESS)[0]
    block(s, LS | BI, FOLDED | {"weight": ""}, [3, 2, 1, 2])
    return s


@bad(
    "NNR-NEG-192",
    "the separately stored graph declares different shapes",
    "6.4.4.3 7.1",
    "topology_carriage_flag=0",
    "FormatError",
    None,
    topology=GRAPH.replace(b"shape = [4, 3]", b"shape = [3, 4]"),
    requirements="nnef-graph topology-fit",
)
def other_shapes() -> Stream:
    return bitstream(*TENSORS, carried=0)[0]


@bad(
    "NNR-NEG-193",
    "the separately stored graph lacks the name of a tensor",
    "6.4.4.3 7.1 A.4",
    "topology_carriage_flag=0",
    "FormatError",
    None,
    topology=GRAPH.replace(b"fc/bias", b"fc/offset"),
    requirements="nnef-names topology-fit",
)
def other_names() -> Stream:
    return bitstream(*TENSORS, carried=0)[0]
