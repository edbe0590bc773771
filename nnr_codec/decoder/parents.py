"""References of updates: the parent, and the previous update of the same parameter (ISO/IEC 15938-17:2024, 6.4.3.7)."""

from __future__ import annotations

from typing import NamedTuple

from ..constants import ICNN_NDU_EXT, ICNN_NDU_ID
from ..errors import MissingReferenceError
from ..rules import Requirement
from ..syntax.structures import NnrCompressedDataUnitHeader
from .state import Device, Key, UpdateNode, UpdateState


class Reference(NamedTuple):
    """References of one unit to earlier updates, and the identity of its own node.

    Parameters
    ----------
    key : Key
        Parameter to which the new node belongs.
    put_node_depth : int
    name : str
        First topology element of the unit.
    history : UpdateNode or None
        Node whose AnySigBeforeFlag is continued; None if history starts anew.
    cache : UpdateNode or None
        Node whose WeightUpdateCache is added to residuals; None if there is none.
    co_loc : UpdateNode or None
        Node whose levels are used by temporal contexts; None without temporal contexts.
    used : tuple of Device
        Devices of these nodes and of the parent.
    """

    key: Key
    put_node_depth: int
    name: str
    history: UpdateNode | None = None
    cache: UpdateNode | None = None
    co_loc: UpdateNode | None = None
    used: tuple[Device, ...] = ()


def node_key(header: NnrCompressedDataUnitHeader) -> tuple[int, int] | None:
    """Return (device_id, parameter_id) of a unit; without device_id, use parent_device_id. None without ids."""
    if "parameter_id" not in header.__dict__:
        return None
    return (header.device_id if "device_id" in header else header.parent_device_id), header.parameter_id


def refer(
    header: NnrCompressedDataUnitHeader, name: str, residual: bool, state: UpdateState | None
) -> Reference | None:
    """Return the references of a unit to earlier bitstreams; None if no later unit can refer to it.

    An update of put_node_depth 1 refers to a base model, which may be unknown (errata N8). A parent outside any
    bitstream may also be unknown (errata N20). In both cases, WeightUpdateCache is initially empty; with a parent
    outside any bitstream, there is no history either.

    Parameters
    ----------
    header : NnrCompressedDataUnitHeader
    name : str
        First topology element of the unit.
    residual : bool
        Whether the unit is coded predictively (9.2.4).
    state : UpdateState or None
        None if there are no other updates.

    Raises
    ------
    MissingReferenceError
        The parent is unknown or not the last node of its parameter; the update is not later than the last update of its
        own parameter; or temporal contexts have no reference.
    """
    ids = node_key(header)
    key: Key = ids or (None, name)
    if not header.parent_node_id_present_flag:
        depth = header.put_node_depth if ids else 0
        return Reference(key, depth, name) if state is not None and (ids or state.keep_digests) else None
    state = UpdateState() if state is None else state
    external = header.parent_node_id_type == ICNN_NDU_EXT
    used: tuple[Device, ...] = ()
    if ids:
        depth = header.put_node_depth
        own = state.before(key)
        if external:
            pass
        elif header.parent_node_id_type == ICNN_NDU_ID:
            used = (_check_parent(header, name, ids, state),)
        else:
            used = _check_digest(header, name, ids, state)
        if own and depth <= own.put_node_depth and max(depth, own.put_node_depth) > 1:
            raise MissingReferenceError(
                f"{name!r} is update {depth} of device_id {ids[0]}, parameter_id {ids[1]}, which is repeated or out of "
                f"order: update {own.put_node_depth} was decoded",
                clause="6.4.3.7",
                rule=Requirement.UPDATE_ORDER,
            )
    elif external:
        if not state.keep_digests:
            return None
        depth, own = 1, None
    else:
        found = _find(header, name, residual, state)
        if found is None:
            return Reference(key, 1, name) if state.keep_digests else None
        key, own = found
        depth = own.put_node_depth + 1
    co_loc = own if own and 0 < own.put_node_depth == depth - 1 else None
    if header.temporal_context_modeling_flag and depth > 1 and not co_loc:
        raise MissingReferenceError(
            f"{name!r} has temporal contexts of update {depth - 1} of {_text(key)}, but {_known(own)}",
            clause="10.3.4.2.2",
            rule=Requirement.REQUIRED_INFORMATION,
        )
    return Reference(
        key,
        depth,
        name,
        history=None if external else own,
        cache=None if external or depth <= 1 else own,
        co_loc=co_loc if header.temporal_context_modeling_flag else None,
        used=used,
    )


def _check_parent(header: NnrCompressedDataUnitHeader, name: str, ids: tuple[int, int], state: UpdateState) -> Device:
    """Return the device of a parent that is identified by ids and must be the last node of its parameter."""
    depth, device = header.put_node_depth, header.parent_device_id
    parent = state.before((device, ids[1]))
    if depth > 1 and not (parent and parent.put_node_depth == depth - 1):
        whose = f" and device_id {device}" if device != ids[0] else ""
        raise MissingReferenceError(
            f"{name!r} is update {depth} of device_id {ids[0]}, parameter_id {ids[1]}; its parent has "
            f"put_node_depth {depth - 1}{whose}, but {_known(parent)}",
            clause="6.4.3.7",
            rule=Requirement.PARENT_DEPTH if parent else Requirement.REQUIRED_INFORMATION,
        )
    return device


def _check_digest(
    header: NnrCompressedDataUnitHeader, name: str, ids: tuple[int, int], state: UpdateState
) -> tuple[Device, ...]:
    """Return the device of a parent that is identified by a hash; empty if it is unknown and optional."""
    element, digest = parent_digest(header)
    own, depth = state.before(ids), header.put_node_depth
    if own and any(digest in known for known in own.digests):
        return (ids[0],)
    for (device, parameter), node in state.find(digest):
        if parameter == ids[1] or node.name == name:
            return (device,)
    if not state.trusting:
        raise _unknown(name, element, digest)
    if depth > 1:
        raise MissingReferenceError(
            f"{name!r} is update {depth} of device_id {ids[0]}, parameter_id {ids[1]}; its parent has {element} "
            f"{digest.hex()}, but none is known",
            clause="6.4.3.7",
            rule=Requirement.REQUIRED_INFORMATION,
        )
    return ()


def _find(
    header: NnrCompressedDataUnitHeader, name: str, residual: bool, state: UpdateState
) -> tuple[Key, UpdateNode] | None:
    """Return the parent of a unit without ids; None if it is unknown and optional.

    Small payloads may occur in many tensors, so the name must match too (errata N19).
    """
    element, digest = parent_digest(header)
    own = state.before((None, name))
    if own and any(digest in known for known in own.digests):
        return (None, name), own
    found = [(key, node) for key, node in state.find(digest) if node.name == name]
    if len(found) > 1 and any(node.any_sig or node.updates for _, node in found):
        raise MissingReferenceError(
            f"{name!r} has a parent with {element} {digest.hex()}, which is ambiguous: {len(found)} devices have it",
            clause="6.4.3.7",
            rule=Requirement.REQUIRED_INFORMATION,
        )
    if found:
        return found[0]
    if not state.trusting:
        raise _unknown(name, element, digest)
    if header.temporal_context_modeling_flag or residual:
        raise MissingReferenceError(
            f"{name!r} requires a parent with {element} {digest.hex()}, which is not known",
            rule=Requirement.REQUIRED_INFORMATION,
        )
    return None


def parent_digest(header: NnrCompressedDataUnitHeader) -> tuple[str, bytes]:
    """Return the syntax element with the digest of the parent's payload, and the digest."""
    for element, size in (("parent_node_payload_sha256", 32), ("parent_node_payload_sha512", 64)):
        if element in header:
            return element, getattr(header, element).to_bytes(size, "big")
    raise ValueError("the parent is not identified by a hash")


def _unknown(name: str, element: str, digest: bytes) -> MissingReferenceError:
    return MissingReferenceError(
        f"{name!r} has a parent of another {element} than the last payload of its parameter, {digest.hex()}",
        clause="6.4.3.7",
        rule=Requirement.PARENT_HASH,
    )


def _known(node: UpdateNode | None) -> str:
    return f"the last known one has depth {node.put_node_depth}" if node else "none is known"


def _text(key: Key) -> str:
    return f"{key[1]!r}" if key[0] is None else f"device_id {key[0]}, parameter_id {key[1]}"
