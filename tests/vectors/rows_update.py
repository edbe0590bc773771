"""NNR-UPD-201 on: syntax of updates that no other vector reaches (docs/reference/coverage.md)."""

from __future__ import annotations

import numpy as np

from nnr_codec.constants import ICNN_NDU_ID, NNR_CPT_BI, NNR_PT_BLOCK, NNR_PT_INT

from ..builder import ndu, update_ndu
from .arithmetic import chosen, dependent, floats
from .case import Content, acceptable, valid
from .parents import start
from .stream import Stream, side
from .update import DISTINCT, DISTINCT_DQ


@valid(
    "NNR-UPD-201",
    "a bitstream of updates with a whole tensor, which replaces the earlier tensor",
    "6.3.3.7 6.4.3.7",
    "mps_parent_signalling_enabled_flag parent_node_id_present_flag=0",
)
def no_update() -> list[Content]:
    first, second, whole = chosen([3, 4], 3), chosen([3, 4], 3, 2), chosen([5], 9, 3)
    s = start()
    s.ndu(update_ndu("w", [3, 4], 1), first)
    u = start()
    u.ndu(update_ndu("w", [3, 4], 2), second).ndu(ndu("v", [5]), whole, qp=1)
    return [s.gives({"w": floats(first)}), u.gives({"w": floats(second), "v": floats(whole, 1)})]


def alone(depth: int) -> Stream:
    """Return an update of parameter 0 without node ids; parameter_id and put_node_depth follow the parent's ids."""
    s = Stream().start(parent=1)
    header = ndu(
        "w",
        [3],
        kind=NNR_PT_INT,
        parent_node_id_present_flag=1,
        parent_node_id_type=ICNN_NDU_ID,
        parent_device_id=0,
        parameter_id=0,
        put_node_depth=depth,
    )
    s.ndu(header, [depth, 0, 1])
    return s


@valid(
    "NNR-UPD-202",
    "no node ids; the smallest parameter_id and put_node_depth after those of the parent",
    "6.3.3.7",
    "node_id_present_flag=0 parameter_id=0 put_node_depth=1",
)
def least_ids() -> Content:
    return alone(1).gives({"w": np.array([1, 0, 1], np.int32)})


@acceptable(
    "NNR-ACC-201",
    "an update with put_node_depth 0, which cannot have a parent",
    "6.4.3.7",
    "put_node_depth=0 ICNN_NDU_ID",
    requirements="parent-depth",
)
def depth_zero() -> Content:
    return alone(0).gives({"w": np.array([0, 0, 1], np.int32)})


@valid(
    "NNR-UPD-203",
    "dependent quantization after an update without it: temporal contexts of small levels, in all states",
    "10.3.4.2.2",
    "temporal_context_modeling_flag dq_flag",
)
def small_before() -> list[Content]:
    dims = [16, 17]
    before, levels = chosen(dims, 2, 3, 0), chosen(dims, 3, 8)
    s = Stream().start(parent=1)
    s.ndu(update_ndu("w", dims, 1, temporal_context_modeling_flag=1), before, sides=[side(**DISTINCT)])
    u = Stream().start(parent=1)
    header = update_ndu("w", dims, 2, temporal_context_modeling_flag=1, dq_flag=1)
    u.ndu(header, levels, sides=[side(**DISTINCT_DQ)], co_loc=[before])
    return [s.gives({"w": floats(before)}), u.gives({"w": floats(dependent(levels))})]


@valid(
    "NNR-UPD-204",
    "a block in a bitstream of residuals is a weight update; another tensor is a residual",
    "6.4.4.3 7.3.5 9.2.4",
    "nnr_pre_flag NNR_PT_BLOCK",
)
def block_beside_residual() -> list[Content]:
    made, value = [], np.zeros([6], np.float32)
    for depth in (1, 2):
        bias, weight, other = chosen([4], 3, depth), chosen([4, 5], 3, depth + 10), chosen([6], 3, depth + 20)
        header = update_ndu("", [4, 5], depth, kind=NNR_PT_BLOCK, compressed_parameter_types=int(NNR_CPT_BI))
        del header.topology_elem_id
        header.nnr_multiple_topology_elements_present_flag = 1
        header.topology_elem_id_list = ["w", "b"]
        s = start(pre=int(depth == 2))
        s.ndu(header, bias, weight, qp=[1, -2]).ndu(update_ndu("v", [6], depth, parameter=1), other)
        value = value + floats(other)
        made.append(s.gives({"w": floats(weight, -2), "b": floats(bias, 1), "v": value}))
    return made
