"""What decoding remembers from one update of a parameter to the next (ISO/IEC 15938-17:2024, 6.4.3.7, 10.3.4.2.2)."""

from __future__ import annotations

from hashlib import sha256, sha512
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..constants import ICNN_NDU_EXT
from ..errors import MissingReferenceError
from ..limits import Limits
from ..syntax.structures import NnrCompressedDataUnitHeader

Key = tuple[int, int]
Arrays = tuple[npt.NDArray[Any], ...]

#: What a node and an array weigh beside their numbers, and a digest of a payload, roughly.
NODE_BYTES, ARRAY_BYTES, DIGEST_BYTES = 512, 256, 256

#: How many digests of earlier payloads are remembered, two for each; the oldest go first.
MAX_DIGESTS = 1 << 17


class Node(NamedTuple):
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
        arrays: Arrays = self.levels + self.any_sig + self.updates
        return NODE_BYTES + sum([ARRAY_BYTES + array.nbytes for array in arrays])


class UpdateState:
    """Update trees by (device_id, parameter_id).

    Nodes are immutable, so :meth:`fork` is cheap: a bitstream is decoded against a fork, which replaces the state only
    when all of it was decoded.

    Parameters
    ----------
    keep_digests : bool
        Whether to remember payloads by their SHA-256 and SHA-512, for updates that name their parents so.
    """

    def __init__(self, *, keep_digests: bool = False) -> None:
        self._nodes: dict[Key, Node] = {}
        self._nbytes = 0  # of the nodes
        self.keep_digests = keep_digests
        self._digests: dict[bytes, None] = {}  # of the payloads of the present bitstream, in order
        self._earlier: dict[bytes, None] = {}  # of those before it

    def fork(self) -> UpdateState:
        """The state for another bitstream: independent, with the same nodes."""
        other = UpdateState(keep_digests=self.keep_digests)
        other._nodes, other._nbytes = dict(self._nodes), self._nbytes
        other._earlier = dict.fromkeys([*(self._earlier | self._digests)][-MAX_DIGESTS:])
        return other

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, key: Key) -> Node | None:
        """The last node of a parameter."""
        return self._nodes.get(key)

    def put(self, key: Key, node: Node, limits: Limits) -> None:
        """Make ``node`` the last one of its parameter; LimitError when the state would outgrow max_history_bytes."""
        old = self._nodes.get(key)
        more = node.nbytes - (old.nbytes if old else 0)
        self._check(more, limits)
        self._nodes[key], self._nbytes = node, self._nbytes + more

    def add_payload(self, payload: memoryview, limits: Limits) -> None:
        """Remember a payload by its digests; LimitError as for :meth:`put`."""
        self._check(2 * DIGEST_BYTES, limits)
        self._digests |= dict.fromkeys([sha256(payload).digest(), sha512(payload).digest()])

    def _check(self, more: int, limits: Limits) -> None:
        total = self._nbytes + DIGEST_BYTES * (len(self._earlier) + len(self._digests)) + more
        if total > limits.max_history_bytes:
            limits.check("max_history_bytes", total, "bytes kept for later updates")

    def knows(self, digest: bytes) -> bool:
        """Whether an earlier bitstream had a payload of this digest; also true where none was decoded here."""
        return not self._earlier or digest in self._earlier


def check_parent(
    header: NnrCompressedDataUnitHeader, before: Node | None, name: str, residual: bool, state: UpdateState
) -> None:
    """Raise MissingReferenceError when the update that this one continues was not the last one decoded (6.4.3.7).

    The first update of a parameter continues a base model, which need not be known (errata N8). ``residual``: the unit
    is coded predictively (9.2.4).
    """
    if not header.parent_node_id_present_flag or header.parent_node_id_type == ICNN_NDU_EXT:
        return
    for element, size in (("parent_node_payload_sha256", 32), ("parent_node_payload_sha512", 64)):
        if element in header and not state.knows(getattr(header, element).to_bytes(size, "big")):
            raise MissingReferenceError(f"{name!r} has a parent of another {element} than all that were decoded")
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
    if "parameter_id" not in header.__dict__:
        return None
    return (header.device_id if "device_id" in header else header.parent_device_id), header.parameter_id
