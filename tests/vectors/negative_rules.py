"""NNR-ACC-231 on, NNR-NEG-401 on: violations of a single requirement each (docs/reference/coverage.md)."""

from __future__ import annotations

import numpy as np

from nnr_codec.constants import NNR_AGG_SLF, NNR_PT_BLOCK, NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.syntax.structures import NnrPruningTopologyContainer

from ..builder import ndu, update_ndu
from .arithmetic import floats
from .bits import f4
from .case import Content, acceptable, invalid
from .negative_semantics import with_pruning, with_topology
from .negative_syntax import header, split
from .negative_units import bad
from .parents import start
from .stream import Stream

GRAPH = (
    b'version 1.0;\ngraph g(x) -> (y) { x = external(shape = [1]); w = variable(shape = [1], label = "w"); '
    b"y = mul(x, w); }\n"
)
QUANT = b'"w": linear_quantize(min = 0.0, max = 1.0, bits = 8);\n'


def with_graph(**flags: int) -> Stream:
    """Return a stream with NNR_STR, NNR_MPS and the graph."""
    s = Stream()
    s.str_()
    s.parameters(topology_carriage_flag=1, **flags).topology(GRAPH + b"\0")
    return s


# ------------------------------------------------------------------------------------------------ self-containment
@acceptable(
    "NNR-ACC-231",
    "a self-contained layer with a tensor whose dimensions come from outside the layer",
    "6.4.3.4",
    "lps_self_contained_flag",
    requirements="lps-self-contained",
    topology_dimensions={"w": [2]},
)
def layer() -> Content:
    s = Stream({"w": [2]}).start()
    s.lps(2, 4, alone=1).ndu(ndu("w", None), [1, -3])
    return s.gives({"w": floats([1, -3], 4)})


@acceptable(
    "NNR-ACC-232",
    "a self-contained aggregate with tensor indices in a reference list outside the aggregate",
    "6.4.3.8",
    "NNR_AGG_SLF NNR_TPL_REFLIST",
    requirements="aggregate-self-contained",
)
def outside() -> Content:
    s = Stream().start(methods=0, indexed=1)
    s.reference_list("a", "b")
    for k in range(2):
        s.raw(ndu(k, [1], kind=NNR_PT_RAW_FLOAT), [1])
    s.aggregate(3, kind=NNR_AGG_SLF)
    return s.gives({"a": f4(1), "b": f4(1)})


@acceptable(
    "NNR-ACC-241",
    "a self-contained aggregate that uses the step size of an earlier layer parameter set",
    "6.2.3 6.4.3.8",
    "NNR_AGG_SLF NNR_LPS",
    requirements="aggregate-self-contained",
)
def under_a_layer() -> Content:
    s = Stream().start(density=1, parameter=2)
    s.lps(3, -8).ndu(ndu("a", [2]), [1, -3]).ndu(ndu("b", [1]), [2]).aggregate(3, kind=NNR_AGG_SLF)
    return s.gives({"a": floats([1, -3], -8, 3), "b": floats([2], -8, 3)})


# ------------------------------------------------------------------------------------------------ NNEF
@acceptable(
    "NNR-ACC-233",
    "quantization information for a tensor that is not in the graph",
    "A.1",
    "NNR_QNT_NNEF",
    requirements="nnef-quantization",
)
def stranger() -> Content:
    text = QUANT.replace(b"w", b"v")
    s = with_graph().quantization(text + b"\0").raw(ndu("w", [1], kind=NNR_PT_RAW_FLOAT), [1])
    return Content(s.data, {"w": f4(1)}, topology=GRAPH, quantization=text)


@acceptable(
    "NNR-ACC-234",
    "NNEF quantization information with quantization_storage_format NNR_QNT_TEF",
    "A.2 A.4",
    "NNR_QNT_TEF",
    requirements="nnef-quantization-format",
)
def other_format() -> Content:
    s = with_graph().quantization(QUANT + b"\0", storage=4).raw(ndu("w", [1], kind=NNR_PT_RAW_FLOAT), [1])
    return Content(s.data, {"w": f4(1)}, topology=GRAPH)


@acceptable(
    "NNR-ACC-235",
    "an update whose reference list has a name that is neither in the graph nor coded",
    "A.4",
    "NNR_TPL_NNEF NNR_TPL_REFLIST",
    requirements="nnef-reference-list",
)
def listed_stranger() -> Content:
    s = with_graph(mps_parent_signalling_enabled_flag=1).reference_list("w", "v")
    s.raw(ndu("w", [1], kind=NNR_PT_RAW_FLOAT), [1])
    return Content(s.data, {"w": f4(1)}, topology=GRAPH)


@acceptable(
    "NNR-ACC-239",
    "an empty topology, with tensors by name",
    "6.4.4.3",
    "NNR_TPL_NNEF topology_data",
    requirements="topology-data",
)
def no_text() -> Content:
    s = Stream()
    s.str_()
    s.parameters(topology_carriage_flag=1).topology(b"\0").ndu(ndu("w", [2]), [1, -3])
    return s.gives({"w": floats([1, -3])})


# ------------------------------------------------------------------------------------------------ updates
def base(name: str = "w") -> Stream:
    """Return a base model of one tensor, parameter 0."""
    s = Stream().start()
    s.ndu(update_ndu(name, [3], 0, kind=NNR_PT_INT), [1, 2, 3])
    return s


INTS = np.array([1, 2, 3], np.int32)


@acceptable(
    "NNR-ACC-236",
    "put_node_depth 2 with parent_node_id_present_flag 0",
    "6.4.3.7",
    "put_node_depth=2 parent_node_id_present_flag=0",
    requirements="parent-flag",
)
def depth_alone() -> Content:
    unit = update_ndu("w", [3], 0, kind=NNR_PT_INT)
    unit.put_node_depth = 2
    s = start()
    s.ndu(unit, INTS)
    return s.gives({"w": INTS})


@acceptable(
    "NNR-ACC-237",
    "an update with the parameter_id of a tensor with a different name",
    "6.4.3.7",
    "parameter_id ICNN_NDU_ID",
    requirements="parent-tensor",
)
def other_parameter() -> list[Content]:
    before, u = base("v"), start()
    u.ndu(update_ndu("w", [3], 1, kind=NNR_PT_INT), INTS)
    return [before.gives({"v": INTS}), u.gives({"w": INTS})]


@acceptable(
    "NNR-ACC-238",
    "a residual without an earlier update",
    "6.4.4.3",
    "nnr_pre_flag put_node_depth=1",
    requirements="residual-first",
)
def first_residual() -> list[Content]:
    before, u = base(), start(pre=1)
    u.ndu(update_ndu("w", [3], 1, kind=NNR_PT_INT), INTS)
    return [before.gives({"w": INTS}), u.gives({"w": INTS})]


@invalid(
    "NNR-NEG-401",
    "two tensors with the same device_id and parameter_id",
    "6.4.3.7",
    "device_id parameter_id",
    "ElementError",
    3,
    requirements="unique-parameters",
)
def same_ids() -> Content:
    s = Stream().start(methods=0)
    for name in "ab":
        s.raw(update_ndu(name, [1], 0, kind=NNR_PT_RAW_FLOAT), [1])
    return s.refused()


# ------------------------------------------------------------------------------------------------ headers
# NNR-NEG-402 was such a tensor. The standard does not forbid it.
@acceptable(
    "NNR-ACC-240",
    "raw floats with a dimension of 0",
    "6.3.4.7 6.4.3.7",
    "NNR_PT_RAW_FLOAT tensor_dimensions=0",
    requirements="tensor-dimensions",
)
def no_floats() -> Content:
    s = Stream().start(methods=0)
    s.raw(ndu("w", [0], kind=NNR_PT_RAW_FLOAT), [])
    return s.gives({"w": f4()})


header(
    "NNR-NEG-403",
    "G with 0 rows",
    "6.4.3.7",
    "ElementError",
    "NNR_PT_BLOCK g_number_of_rows=0",
    names=["g", "h"],
    kind=NNR_PT_BLOCK,
    compressed_parameter_types=1,
    decomposition_rank=1,
    g_number_of_rows=0,
    requirements="decomposition-dimensions",
)
split("NNR-NEG-404", "split_index 0", split_index=[0])
header(
    "NNR-NEG-405",
    "a decomposed tensor with two topology elements",
    "7.3.1",
    "ElementError",
    "NNR_CPT_DC TensorSplit",
    names=["a", "b"],
    kind=NNR_PT_FLOAT,
    compressed_parameter_types=1,
    decomposition_rank=1,
    g_number_of_rows=2,
    concatentation_axis_index=0,
    split_index=[1],
    number_of_shifts=[0, 0],
    requirements="decomposition-payload",
)

# ------------------------------------------------------------------------------------------------ topologies
bad(
    "NNR-NEG-406",
    "quantization data with reserved compression format 2",
    "6.4.3.6",
    "ElementError",
    2,
    with_topology(b"bits=8", 2, 2, "quantization"),
    features="NNR_QNT quantization_compression_format=2",
    requirements="compression-format",
)
RESERVED = NnrPruningTopologyContainer(nnr_rep_type=2, prune_flag=1)
bad(
    "NNR-NEG-407",
    "pruning information with reserved nnr_rep_type 2, which has no syntax",
    "6.3.4.5 6.4.4.5",
    "ElementError",
    2,
    with_pruning(RESERVED),
    features="NNR_TPL_PRUN nnr_rep_type=2 prune_flag",
    requirements="representation-type",
)
EMPTY = NnrPruningTopologyContainer(nnr_rep_type=1, prune_flag=1, count_ids=0)
bad(
    "NNR-NEG-408",
    "a dictionary with count_ids 0, elements by index",
    "6.4.4.5",
    "ElementError",
    3,
    with_pruning(EMPTY, indexed=1),
    features="NNR_TPL_PRUN NNR_TPL_DICT count_ids=0",
    requirements="prune-counts",
)
