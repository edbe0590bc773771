"""What decoding remembers from one update of a parameter to the next (ISO/IEC 15938-17:2024, 6.4.3.7, 10.3.4.2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..constants import ICNN_NDU_EXT
from ..errors import MissingReferenceError
from ..limits import Limits
from ..syntax.structures import NnrCompressedDataUnitHeader

Key = tuple[int, int]

#: What a node and an array weigh beside their numbers, roughly.
NODE_BYTES, ARRAY_BYTES = 512, 256


@dataclass(frozen=True)
class Node:
    """The last node of one parameter's update tree.

    Parameters
    ----------
    put_node_depth : int
    levels : tuple of ndarray of int32
        QuantParam of each tensor of the unit, row-major, in coding order; empty for a unit that is not an update.
    any_sig : tuple of ndarray of bool
        AnySigBeforeFlag of each tensor: whether any update so far had a level other than 0 there (errata D4, N8).
    updates : tuple of ndarray
        WeightUpdateCache (7.3.2, 7.3.3) of each tensor.
    """

    put_node_depth: int
    levels: tuple[npt.NDArray[np.int32], ...] = ()
    any_sig: tuple[npt.NDArray[np.bool_], ...] = ()
    updates: tuple[npt.NDArray[Any], ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes that the node keeps, those of its objects included."""
        return NODE_BYTES + sum(ARRAY_BYTES + a.nbytes for a in (*self.levels, *self.any_sig, *self.updates))


class UpdateState:
    """Update trees by (device_id, parameter_id).

    Nodes are immutable, so :meth:`fork` is cheap: a bitstream is decoded against a fork, which replaces the state only
    when all of it was decoded.
    """

    def __init__(self) -> None:
        self._nodes: dict[Key, Node] = {}
        self._nbytes = 0

    def fork(self) -> UpdateState:
        """An independent state with the same nodes."""
        other = UpdateState()
        other._nodes, other._nbytes = dict(self._nodes), self._nbytes
        return other

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, key: Key) -> Node | None:
        """The last node of a parameter."""
        return self._nodes.get(key)

    def put(self, key: Key, node: Node, limits: Limits) -> None:
        """Make ``node`` the last one of its parameter; LimitError when the state would outgrow max_history_bytes."""
        old = self._nodes.get(key)
        total = self._nbytes + node.nbytes - (old.nbytes if old else 0)
        limits.check("max_history_bytes", total, "bytes kept for later updates")
        self._nodes[key], self._nbytes = node, total


def check_parent(header: NnrCompressedDataUnitHeader, before: Node | None, name: str, residual: bool) -> None:
    """Raise MissingReferenceError when the update that this one continues was not the last one decoded (6.4.3.7).

    The first update of a parameter continues a base model, which need not be known (errata N8). ``residual``: the unit
    is coded predictively (9.2.4).
    """
    if not header.parent_node_id_present_flag or header.parent_node_id_type == ICNN_NDU_EXT:
        return
    key = node_key(header)
    if key is None:
        if header.temporal_context_modeling_flag or residual:
            raise MissingReferenceError(
                f"{name!r} needs a parent that only a hash of its payload names; such parents are not kept"
            )
        return
    if header.put_node_depth <= 1 or (before and before.put_node_depth == header.put_node_depth - 1):
        return
    found = f"the last known one has depth {before.put_node_depth}" if before else "none is known"
    raise MissingReferenceError(
        f"{name!r} is update {header.put_node_depth} of device_id {key[0]}, parameter_id {key[1]}; its parent has "
        f"put_node_depth {header.put_node_depth - 1}, but {found} (6.4.3.7)"
    )


def node_key(header: NnrCompressedDataUnitHeader) -> Key | None:
    """(device_id, parameter_id) of a unit that has them; device_id of the parent where only that is present."""
    if "parameter_id" not in header:
        return None
    return (header.device_id if "device_id" in header else header.parent_device_id), header.parameter_id
