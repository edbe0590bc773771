"""NNR-UPD: differential updates, temporal and history contexts, predictive residual encoding, parents."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnr_codec.cabac_ext.kernel import TensorSide
from nnr_codec.constants import (
    ICNN_NDU_EXT,
    ICNN_NDU_PL_SHA256,
    ICNN_NDU_PL_SHA512,
    NNR_CPT_BI,
    NNR_PT_BLOCK,
    NNR_PT_INT,
)

from ..builder import codebook, ndu, update_ndu
from .arithmetic import chosen, dependent, floats, look_up
from .case import Content, Tensor, valid
from .stream import Stream, side

DIMS = [6, 7]


def rounds(
    depths: Sequence[int],
    *,
    dims: Sequence[int] = DIMS,
    temporal: int = 0,
    history: int = 0,
    pre: int = 0,
    dq: int = 0,
    scan: int = 0,
    skip: int = 0,
    kind: int = 1,
    sides: TensorSide | None = None,
) -> list[Content]:
    """Return bitstreams of one parameter, one for each depth; depth 0 is the base model.

    With ``pre``, updates from the second on are residuals (9.2.4). History contexts are used where the syntax permits
    them, temporal contexts in all updates.
    """
    made: list[Content] = []
    last: Tensor | None = None  # QuantParam of the previous update
    any_sig: Tensor | None = None
    value: Tensor | None = None  # value of the previous update, including its residual
    for k, depth in enumerate(depths):
        levels = chosen(dims, 3 + k % 2, 11 * depth + dq + scan + 1)
        if skip:
            levels[[1, 4]] = 0
        is_residual = pre and depth > 1
        s = Stream()
        s.str_()
        more = {"base_model_id_present_flag": 1, "base_model_id": "m", "nnr_pre_flag": 1} if is_residual else {}
        s.parameters(mps_parent_signalling_enabled_flag=int(depth > 0), **more)
        header = update_ndu("w", dims, depth, parameter=5, kind=kind, dq_flag=dq, scan_order=scan)
        reference: dict[str, Any] = {}
        if depth:
            header.temporal_context_modeling_flag = temporal
            if temporal and last is not None:
                reference["co_loc"] = [last]
            if any_sig is not None:
                reference["any_sig"] = [any_sig]
        given = sides if depth else None
        if given is None:
            given = side(skip=skip, history=history if depth else 0)
        s.ndu(header, levels, qp=-4, sides=[given], **reference)
        quant_param = dependent(levels, scan) if dq else levels
        got = quant_param.astype(np.int32) if kind == NNR_PT_INT else floats(quant_param, -4)
        if is_residual and value is not None:
            got = got + value
        if depth:
            any_sig = (quant_param != 0) if any_sig is None else any_sig | (quant_param != 0)
            last, value = quant_param.astype(np.int32), got
        made.append(s.gives({"w": got}))
    return made


#: Shift parameter ids that distinguish all contexts of updates, for a unary part of length 10.
DISTINCT = {
    "sig": {0: 1, 1: 2, 2: 6, 24: 3, 25: 7},
    "sign": {0: 8, 1: 2, 2: 1, 3: 4, 4: 5},
    "gtx": {k: (k + 3) % 9 for k in range(40)},
}
DISTINCT_DQ = DISTINCT | {"sig": {k: (4 * k + 1) % 9 for k in range(40)}}


@valid("NNR-UPD-001", "a base model and two updates", "6.3.3.7 6.4.3.7", "ICNN_NDU_ID")
def plain() -> list[Content]:
    return rounds([0, 1, 2])


@valid(
    "NNR-UPD-002",
    "temporal contexts over three updates; the first has no reference",
    "6.4.3.7 10.2.1.6 10.3.4.2.2 10.3.4.2.3 10.3.4.2.4",
    "temporal_context_modeling_flag shift_parameter_ids",
)
def temporal() -> list[Content]:
    return rounds([1, 2, 3], temporal=1, sides=side(**DISTINCT))


@valid(
    "NNR-UPD-003",
    "temporal contexts with dependent quantization use QuantParam, not the coded levels",
    "10.3.4.2.2 10.2.1.6",
    "temporal_context_modeling_flag dq_flag",
)
def temporal_dq() -> list[Content]:
    return rounds([0, 1, 2, 3], temporal=1, dq=1, sides=side(**DISTINCT_DQ))


@valid("NNR-UPD-004", "history contexts over three updates", "10.2.1.4 10.3.4.2.2", "hist_dep_sig_prob_enabled_flag")
def history() -> list[Content]:
    return rounds([0, 1, 2, 3], history=1, sides=side(history=1, sig={0: 1, 1: 2, 2: 6, 40: 8}))


@valid(
    "NNR-UPD-005",
    "history contexts take precedence over temporal contexts, with dependent quantization",
    "10.2.1.4 10.2.1.6 10.3.4.2.2",
    "hist_dep_sig_prob_enabled_flag temporal_context_modeling_flag dq_flag",
)
def both() -> list[Content]:
    ids = DISTINCT_DQ | {"sig": {k: (4 * k + 1) % 9 for k in range(48)}}
    return rounds([1, 2, 3], history=1, temporal=1, dq=1, sides=side(history=1, **ids))


@valid("NNR-UPD-006", "residuals of updates, float", "6.4.4.3 7.3.3 9.2.4", "nnr_pre_flag NNR_PT_FLOAT")
def pre() -> list[Content]:
    return rounds([0, 1, 2, 3], pre=1)


@valid("NNR-UPD-007", "residuals of updates, integer", "6.4.4.3 7.3.2 9.2.4", "nnr_pre_flag NNR_PT_INT")
def pre_integers() -> list[Content]:
    return rounds([1, 2, 3], pre=1, kind=NNR_PT_INT)


@valid(
    "NNR-UPD-008",
    "temporal contexts use the residuals, not their sums",
    "9.2.4 10.3.4.2.2",
    "nnr_pre_flag temporal_context_modeling_flag",
)
def pre_temporal() -> list[Content]:
    return rounds([1, 2, 3], pre=1, temporal=1, sides=side(**DISTINCT))


@valid(
    "NNR-UPD-009",
    "temporal contexts, skipped rows and entry points",
    "10.2.1.4 10.3.4.2.2",
    "temporal_context_modeling_flag row_skip_enabled_flag scan_order=1",
)
def temporal_scan() -> list[Content]:
    return rounds([1, 2], dims=[11, 9], temporal=1, skip=1, scan=1)


@valid("NNR-UPD-010", "the first update, without decoding its base model", "6.4.3.7", "ICNN_NDU_ID put_node_depth=1")
def without_base() -> list[Content]:
    return rounds([1])


def by_hash(kind: int, name: str, digest: str) -> list[Content]:
    """Return a base model and an update whose parent is identified by the digest of its payload."""
    base, update = chosen([3, 4], 4), chosen([3, 4], 2, 8)
    s = Stream()
    s.start()
    header = update_ndu("w", [3, 4], 0, parameter=1)
    payload = s.payload(header, [base], 2)
    s.ndu(header, payload=payload)
    ids = {"node_id_present_flag": 1, "device_id": 0, "parameter_id": 1, "put_node_depth": 1}
    ids |= {"parent_node_id_present_flag": 1, "parent_node_id_type": kind}
    parent = {name: int.from_bytes(hashlib.new(digest, payload).digest(), "big")} if name else {}
    u = Stream().start(parent=1)
    u.ndu(ndu("w", [3, 4], **ids, **parent), update, qp=-9)
    return [s.gives({"w": floats(base, 2)}), u.gives({"w": floats(update, -9)})]


@valid("NNR-UPD-011", "parent by SHA-256 of its payload", "6.3.3.7 6.4.3.7", "ICNN_NDU_PL_SHA256")
def sha256() -> list[Content]:
    return by_hash(ICNN_NDU_PL_SHA256, "parent_node_payload_sha256", "sha256")


@valid("NNR-UPD-012", "parent by SHA-512 of its payload", "6.3.3.7 6.4.3.7", "ICNN_NDU_PL_SHA512")
def sha512() -> list[Content]:
    return by_hash(ICNN_NDU_PL_SHA512, "parent_node_payload_sha512", "sha512")


@valid("NNR-UPD-013", "external parent, not in a bitstream", "6.3.3.7 6.4.3.7", "ICNN_NDU_EXT")
def external() -> list[Content]:
    return by_hash(ICNN_NDU_EXT, "", "sha256")[1:]


@valid(
    "NNR-UPD-014",
    "no node ids: parameter_id and put_node_depth follow the parent's ids",
    "6.3.3.7",
    "node_id_present_flag=0 ICNN_NDU_ID",
)
def parent_ids_alone() -> list[Content]:
    first, second = chosen(DIMS, 3), chosen(DIMS, 3, 4)
    made = []
    for depth, levels in ((1, first), (2, second)):
        s = Stream().start(parent=1)
        header = ndu(
            "w",
            DIMS,
            parent_node_id_present_flag=1,
            parent_node_id_type=0,
            parent_device_id=3,
            parameter_id=40,
            put_node_depth=depth,
            temporal_context_modeling_flag=1,
        )
        s.ndu(header, levels, sides=[side(**DISTINCT)], co_loc=[first] if depth == 2 else ())
        made.append(s.gives({"w": floats(levels)}))
    return made


@valid(
    "NNR-UPD-015",
    "two devices update one parameter in separate chains",
    "6.4.3.7 10.3.4.2.2",
    "device_id temporal_context_modeling_flag",
)
def devices() -> list[Content]:
    chains: dict[int, Tensor] = {}
    made = []
    for k, (device, depth) in enumerate([(0, 1), (9, 1), (0, 2), (9, 2)]):
        levels = chosen([4, 4], 3, k + 1)
        s = Stream().start(parent=1)
        header = update_ndu("w", [4, 4], depth, device=device, temporal_context_modeling_flag=1)
        s.ndu(header, levels, sides=[side(**DISTINCT)], co_loc=[chains[device]] if device in chains else ())
        chains[device] = levels
        made.append(s.gives({"w": floats(levels)}))
    return made


@valid(
    "NNR-UPD-016",
    "an unchanged tensor has no unit, and its depth does not increase",
    "6.4.3.7",
    "put_node_depth temporal_context_modeling_flag",
)
def left_out() -> list[Content]:
    made, last = [], {}
    for k, present in enumerate([{"a": 1, "b": 1}, {"b": 2}, {"a": 2, "b": 3}]):
        s, values = Stream().start(parent=1), {}
        for name, depth in present.items():
            levels = chosen([3, 5], 3, 5 * k + depth)
            parameter = ord(name) - 97
            header = update_ndu(name, [3, 5], depth, parameter=parameter, temporal_context_modeling_flag=1)
            s.ndu(header, levels, sides=[side(**DISTINCT)], co_loc=[last[name]] if name in last else ())
            last[name], values[name] = levels, floats(levels)
        made.append(s.gives(values))
    return made


@valid(
    "NNR-UPD-017",
    "temporal and history contexts for each part of a block",
    "7.3.5 10.3.4.2.2",
    "NNR_PT_BLOCK temporal_context_modeling_flag hist_dep_sig_prob_enabled_flag",
)
def blocks() -> list[Content]:
    made, last = [], None
    sig: list[Tensor] | None = None
    for depth in (1, 2, 3):
        bias, weight = chosen([4], 3, depth), chosen([4, 5], 3, depth + 10)
        header = update_ndu(
            "",
            [4, 5],
            depth,
            kind=NNR_PT_BLOCK,
            compressed_parameter_types=int(NNR_CPT_BI),
            temporal_context_modeling_flag=1,
        )
        del header.topology_elem_id
        header.nnr_multiple_topology_elements_present_flag = 1
        header.topology_elem_id_list = ["w", "b"]
        reference: dict[str, Any] = {"co_loc": last, "any_sig": sig} if last and sig else {}
        s = Stream().start(parent=1)
        weight_ids = {**DISTINCT, "sig": {**DISTINCT["sig"], 40: 4}}
        sides = [side(**DISTINCT), side(history=1, **weight_ids)]
        s.ndu(header, bias, weight, qp=[1, -2], sides=sides, **reference)
        last = [bias, weight]
        now = [bias != 0, weight != 0]
        sig = [a | b for a, b in zip(sig, now, strict=True)] if sig else now
        made.append(s.gives({"w": floats(weight, -2), "b": floats(bias, 1)}))
    return made


@valid(
    "NNR-UPD-018",
    "temporal contexts use codebook indices, not entries",
    "10.3.4.2.2",
    "codebook temporal_context_modeling_flag",
)
def codebooks() -> list[Content]:
    entries, made, last = [-50, -3, 0, 20, 70], [], None
    for depth in (1, 2):
        levels = chosen(DIMS, 2, depth)
        header = update_ndu("w", DIMS, depth, temporal_context_modeling_flag=1)
        header.codebook_present_flag, header.codebook = 1, codebook(entries, 2)
        s = Stream().start(parent=1)
        ids = side(**{**DISTINCT, "gtx": {0: 1, 1: 2, 2: 3, 3: 4, 20: 5, 21: 6}})
        s.ndu(header, levels, sides=[ids], co_loc=[last] if last is not None else ())
        last = levels
        made.append(s.gives({"w": floats(look_up(levels, entries, 2))}))
    return made
