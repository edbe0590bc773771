"""NNR-UPD-019 on: updates of several devices, parents by hash, external parents, and errors."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import numpy as np

from nnr_codec.constants import ICNN_NDU_EXT, ICNN_NDU_ID, ICNN_NDU_PL_SHA256, ICNN_NDU_PL_SHA512, NNR_PT_INT

from ..builder import ndu
from .arithmetic import chosen, floats
from .case import Content, Tensor, acceptable, invalid, valid
from .stream import Stream, side
from .update import DISTINCT

DIMS = [5, 6]
#: Shift parameter ids that distinguish the contexts of updates, including history contexts.
SIG, SIGN, GTX = DISTINCT["sig"], DISTINCT["sign"], DISTINCT["gtx"]
HISTORY = side(history=1, sig={**SIG, 40: 8}, sign=SIGN, gtx=GTX)
TEMPORAL = side(sig=SIG, sign=SIGN, gtx=GTX)
DIGESTS: dict[int, tuple[str, str]] = {
    ICNN_NDU_PL_SHA256: ("parent_node_payload_sha256", "sha256"),
    ICNN_NDU_PL_SHA512: ("parent_node_payload_sha512", "sha512"),
}


def start(*, pre: int = 0, base: str = "m", parent: int = 1) -> Stream:
    """Return a stream with the first units of an update."""
    s = Stream()
    s.str_()
    s.parameters(
        base_model_id_present_flag=1, base_model_id=base, mps_parent_signalling_enabled_flag=parent, nnr_pre_flag=pre
    )
    return s


def ids(parameter: int, depth: int, device: int = 0) -> dict[str, int]:
    """Return the ids of a node."""
    return {"node_id_present_flag": 1, "device_id": device, "parameter_id": parameter, "put_node_depth": depth}


def by_id(device: int = 0) -> dict[str, int]:
    """Return the elements that identify a parent by ids."""
    return {"parent_node_id_present_flag": 1, "parent_node_id_type": ICNN_NDU_ID, "parent_device_id": device}


def by_hash(payload: bytes, kind: int = ICNN_NDU_PL_SHA256) -> dict[str, int]:
    """Return the elements that identify a parent by the hash of its payload."""
    name, digest = DIGESTS[kind]
    number = int.from_bytes(hashlib.new(digest, payload).digest(), "big")
    return {"parent_node_id_present_flag": 1, "parent_node_id_type": kind, name: number}


EXTERNAL = {"parent_node_id_present_flag": 1, "parent_node_id_type": ICNN_NDU_EXT}


class Parameter:
    """State of one parameter: its last update, history and value.

    Parameters
    ----------
    name : str
    seed : int
        Determines the levels.
    """

    def __init__(self, name: str = "w", seed: int = 0) -> None:
        self.name, self.seed = name, seed
        self.payload = b""
        self.restart()

    def restart(self) -> None:
        """Forget all earlier updates."""
        self.last: Tensor | None = None
        self.any_sig = np.zeros(DIMS, bool)
        self.value: Tensor = np.zeros(DIMS, np.float32)

    def unit(
        self, s: Stream, elements: dict[str, int], *, temporal: int = 0, history: int = 0, pre: int = 0
    ) -> dict[str, Tensor]:
        """Add a unit, and return its tensor by name."""
        self.seed += 1
        levels = chosen(DIMS, 3, 7 * self.seed)
        is_update = elements.get("parent_node_id_present_flag", 0)
        flag = {"temporal_context_modeling_flag": 1} if temporal else {}
        header = ndu(self.name, DIMS, **elements, **flag)
        reference: dict[str, Any] = {"any_sig": [self.any_sig]} if is_update else {}
        if temporal and self.last is not None:
            reference["co_loc"] = [self.last]
        sides = [HISTORY if history else TEMPORAL]
        self.payload = s.payload(header, [levels], -4, sides, **reference)
        s.ndu(header, payload=self.payload)
        got = floats(levels, -4) + (self.value if pre else 0)
        if is_update:
            self.last, self.any_sig, self.value = levels, self.any_sig | (levels != 0), got
        else:
            self.restart()
        return {self.name: got}


@valid(
    "NNR-UPD-019",
    "two devices update in turn: each has its own history and residuals",
    "6.4.3.7 9.2.4 10.2.1.4",
    "ICNN_NDU_ID parent_device_id device_id hist_dep_sig_prob_enabled_flag nnr_pre_flag",
)
def two_devices() -> list[Content]:
    made, own = [], {0: Parameter(seed=1), 4: Parameter(seed=20)}
    for depth, (device, parent) in enumerate([(0, 0), (4, 0), (0, 4), (4, 0), (4, 4)], 1):
        pre = int(depth > 2)
        s = start(pre=pre)
        unit = own[device].unit(s, ids(5, depth, device) | by_id(parent), history=1, pre=pre)
        made.append(s.gives(unit))
    return made


@valid(
    "NNR-UPD-020",
    "parents from another device, while temporal contexts use the device's own previous update",
    "6.4.3.7 10.3.4.2.2",
    "parent_device_id temporal_context_modeling_flag",
)
def own_contexts() -> list[Content]:
    made, own = [], {0: Parameter(seed=3), 2: Parameter(seed=30)}
    for depth, device, parent in [(1, 0, 0), (1, 2, 2), (2, 0, 2), (2, 2, 2), (3, 0, 2)]:
        s = start()
        made.append(s.gives(own[device].unit(s, ids(1, depth, device) | by_id(parent), temporal=1)))
    return made


def hashed(kind: int, has_ids: int) -> list[Content]:
    """Return a base model and three updates with parents by hash; the last two are residuals."""
    made, w = [], Parameter(seed=kind)
    for depth in range(4):
        s, parent, pre = start(pre=int(depth > 1), parent=int(depth > 0)), w.payload, int(depth > 1)
        elements = (ids(3, depth) if has_ids else {}) | (by_hash(parent, kind) if depth else {})
        more = {"temporal": 1, "history": int(depth > 1), "pre": pre} if depth else {}
        made.append(s.gives(w.unit(s, elements, **more)))
    return made


@valid(
    "NNR-UPD-021",
    "parent by SHA-256 without ids: its levels and update are the reference for contexts and residuals",
    "6.4.3.7 9.2.4 10.3.4.2.2",
    "node_id_present_flag=0 ICNN_NDU_PL_SHA256 temporal_context_modeling_flag nnr_pre_flag",
)
def hashed_without_ids() -> list[Content]:
    return hashed(ICNN_NDU_PL_SHA256, 0)


@valid(
    "NNR-UPD-022",
    "parent by SHA-512 without ids: its levels and update are the reference for contexts and residuals",
    "6.4.3.7 9.2.4 10.3.4.2.2",
    "node_id_present_flag=0 ICNN_NDU_PL_SHA512 temporal_context_modeling_flag nnr_pre_flag",
)
def hashed_without_ids_512() -> list[Content]:
    return hashed(ICNN_NDU_PL_SHA512, 0)


@valid(
    "NNR-UPD-023",
    "parent by SHA-256 with ids, contexts and residuals",
    "6.4.3.7 9.2.4 10.3.4.2.2",
    "ICNN_NDU_PL_SHA256 temporal_context_modeling_flag nnr_pre_flag",
)
def hashed_with_ids() -> list[Content]:
    return hashed(ICNN_NDU_PL_SHA256, 1)


@valid(
    "NNR-UPD-024",
    "parent by SHA-512 from another device: a base model that two devices update",
    "6.4.3.7",
    "ICNN_NDU_PL_SHA512 device_id",
)
def hashed_base() -> list[Content]:
    server, s = Parameter(seed=2), start(parent=0)
    made = [s.gives(server.unit(s, ids(3, 0)))]
    for device in (6, 7):
        s = start()
        elements = ids(3, 1, device) | by_hash(server.payload, ICNN_NDU_PL_SHA512)
        made.append(s.gives(Parameter(seed=device).unit(s, elements)))
    return made


@valid(
    "NNR-UPD-025",
    "an update with an external parent restarts: no history, and its residual is the update",
    "6.4.3.7 9.2.4",
    "ICNN_NDU_EXT hist_dep_sig_prob_enabled_flag nnr_pre_flag",
)
def restart() -> list[Content]:
    made, w = [], Parameter(seed=5)
    for depth in range(1, 6):
        pre, external = int(depth > 1), depth == 3
        if external:
            w.restart()
        s = start(pre=pre)
        elements = ids(2, depth) | (EXTERNAL if external else by_id())
        made.append(s.gives(w.unit(s, elements, history=1, temporal=int(not external), pre=pre)))
    return made


@valid(
    "NNR-UPD-026",
    "a tensor without a unit is unchanged; its next residual is added to its last update",
    "6.4.3.7 7.3.3 9.2.4",
    "nnr_pre_flag put_node_depth",
)
def left_out() -> list[Content]:
    made, depths = [], {"a": 0, "b": 0}
    own = {name: Parameter(name, seed) for name, seed in (("a", 1), ("b", 40))}
    for k, names in enumerate(["ab", "b", "b", "ab", "a"]):
        s = start(pre=int(k > 0))
        values: dict[str, Tensor] = {}
        for name in names:
            depths[name] += 1
            elements = ids(ord(name), depths[name]) | by_id()
            values |= own[name].unit(s, elements, temporal=1, pre=int(k > 0))
        made.append(s.gives(values))
    return made


def lineage(number: int, token: str = "", device: int = 3) -> str:
    """Return the base_model_id of a bitstream of one sender."""
    return f"m#{device}.{number}.{token}"


def after(token: str, data: bytes) -> str:
    """Return the token of the next bitstream."""
    return base64.b64encode(hashlib.sha256(token.encode() + data).digest(), b"-_")[:16].decode()


def followed(count: int) -> tuple[list[Content], list[str]]:
    """Return bitstreams that identify the previous one of a sender, and their tokens; the third has no tensor."""
    made: list[Content] = []
    w, tokens, depth = Parameter(seed=9), [""], 0
    for number in range(1, count + 1):
        s = start(base=lineage(number, tokens[-1]))
        values: dict[str, Tensor] = {}
        if number != 3:
            depth += 1
            values = w.unit(s, ids(8, depth, 3) | by_id(3), temporal=1)
        made.append(s.gives(values))
        tokens.append(after(tokens[-1], s.data))
    return made, tokens


@valid(
    "NNR-UPD-027",
    "base_model_id identifies the previous bitstream of the sender, including one without tensors",
    "6.4.4.3",
    "base_model_id",
)
def in_line() -> list[Content]:
    return followed(4)[0]


# ------------------------------------------------------------------------------------------------ acceptable
@acceptable("NNR-ACC-028", "a repeated update", "6.4.3.7", "put_node_depth", requirements="parent-depth")
def repeated() -> list[Content]:
    w, made = Parameter(seed=4), []
    for depth in (1, 2):
        s = start()
        made.append(s.gives(w.unit(s, ids(0, depth) | by_id())))
    return [*made, made[-1]]


# A tree may have branches; decoders are not required to keep all nodes.
@acceptable("NNR-ACC-029", "an update of an older payload: a tree with two branches", "6.4.3.7", "ICNN_NDU_PL_SHA256")
def branch() -> list[Content]:
    w, made, payload = Parameter(seed=6), [], b""
    for k in range(3):
        s = start(parent=int(k > 0))
        made.append(s.gives(w.unit(s, by_hash(payload) if k else {})))
        payload = payload or w.payload
    return made


@acceptable(
    "NNR-ACC-030",
    "a repeated update with an external parent",
    "6.4.3.7",
    "ICNN_NDU_EXT put_node_depth",
    requirements="update-order",
)
def restarted_twice() -> list[Content]:
    s = start()
    made = s.gives(Parameter(seed=8).unit(s, ids(0, 4) | EXTERNAL))
    return [made, made]


# The application defines the meaning of base_model_id.
@acceptable("NNR-ACC-031", "base_model_id identifies a previous bitstream that is missing", "6.4.4.3", "base_model_id")
def lost() -> list[Content]:
    made, _ = followed(4)
    return [*made[:2], made[3]]


@acceptable(
    "NNR-ACC-032",
    "a repeated update with an external parent and a base_model_id that starts a new sequence",
    "6.4.4.3",
    "base_model_id",
    requirements="update-order",
)
def repeated_in_line() -> list[Content]:
    made, s = followed(3)[0], start(base=lineage(4))
    again = s.gives(Parameter(seed=12).unit(s, ids(8, 4, 3) | EXTERNAL))
    return [*made, again, again]


# ------------------------------------------------------------------------------------------------ invalid
def without(parent: dict[str, int], *, pre: int = 0, temporal: int = 0, depth: int = 2, device: int = 0) -> Content:
    """Return an update that decoders must reject."""
    s = start(pre=pre)
    has_ids = "parent_device_id" in parent
    Parameter(seed=1).unit(s, (ids(0, depth, device) if has_ids else {}) | parent, temporal=temporal)
    return s.refused()


def first() -> Content:
    """Return a first update of device 0."""
    s = start()
    return s.gives(Parameter(seed=2).unit(s, ids(0, 1) | by_id()))


@invalid(
    "NNR-NEG-194",
    "temporal contexts with a parent whose payload is unknown",
    "6.4.3.7 10.3.4.2.2",
    "ICNN_NDU_PL_SHA256 temporal_context_modeling_flag",
    "MissingReferenceError",
    2,
    requirements="parent-hash required-information",
)
def unknown_contexts() -> list[Content]:
    return [first(), without(by_hash(b"another"), temporal=1)]


@invalid(
    "NNR-NEG-195",
    "a residual with a parent whose payload is unknown",
    "6.4.3.7 9.2.4",
    "ICNN_NDU_PL_SHA512 nnr_pre_flag",
    "MissingReferenceError",
    2,
    requirements="parent-hash required-information",
)
def unknown_update() -> list[Content]:
    return [first(), without(by_hash(b"another", ICNN_NDU_PL_SHA512), pre=1)]


@invalid(
    "NNR-NEG-196",
    "temporal contexts without an earlier update of the same device",
    "6.4.3.7 10.3.4.2.2",
    "parent_device_id temporal_context_modeling_flag",
    "MissingReferenceError",
    2,
    requirements="required-information",
)
def contexts_of_another() -> list[Content]:
    return [first(), without(by_id(0), temporal=1, device=5)]


@invalid(
    "NNR-NEG-197",
    "the parent is an update of another device that was not decoded",
    "6.4.3.7",
    "parent_device_id",
    "MissingReferenceError",
    2,
    requirements="required-information",
)
def parent_of_another() -> list[Content]:
    return [first(), without(by_id(9), device=0)]


@invalid(
    "NNR-NEG-198",
    "temporal contexts with a parent of a different shape, identified by hash",
    "6.4.3.7 10.3.4.2.2",
    "ICNN_NDU_PL_SHA256 temporal_context_modeling_flag",
    "MissingReferenceError",
    2,
    requirements="update-shape",
)
def another_shape() -> list[Content]:
    payload, made = b"", []
    for k, dims in enumerate([[2, 3], [2, 3], [3, 2]]):
        s, levels = start(parent=int(k > 0)), np.array([[1, 0, -2], [k, 3, 0]], np.int32).reshape(dims)
        header = ndu("w", dims, kind=NNR_PT_INT, **(by_hash(payload) if k else {}))
        header.temporal_context_modeling_flag = int(k == 2)
        payload = s.payload(header, [levels])
        s.ndu(header, payload=payload)
        made.append(s.gives({"w": levels}) if k < 2 else s.refused())
    return made
