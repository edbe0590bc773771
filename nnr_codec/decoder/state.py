"""State between updates of a parameter (ISO/IEC 15938-17:2024, 6.4.3.7, 10.3.4.2.2)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256, sha512
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ElementError
from ..limits import Limits
from ..rules import Requirement
from .lineage import Lineage, Position

if TYPE_CHECKING:
    from ..bitstream.source import Bitstream

#: device_id; None for units without ids.
Device = int | None
#: (device_id, parameter_id); (None, first topology_elem_id) for units without ids.
Key = tuple[Device, int | str]
Arrays = tuple[npt.NDArray[Any], ...]
#: Shape and name of the :class:`~nnr_codec.dtypes.StoredType` of each tensor.
Schema = Mapping[str, tuple[tuple[int, ...], str]]

#: Approximate overhead in bytes of a node, an array, the digests of a payload, and a tensor or sender.
NODE_BYTES, ARRAY_BYTES, DIGEST_BYTES, ENTRY_BYTES = 512, 256, 512, 256


class Digest(NamedTuple):
    """Digests that identify a payload."""

    sha256: bytes
    sha512: bytes

    @classmethod
    def of(cls, payload: memoryview) -> Digest:
        """Return the digests of a payload."""
        return cls(sha256(payload).digest(), sha512(payload).digest())


class UpdateNode(NamedTuple):
    """Last node in the update tree of one parameter.

    Parameters
    ----------
    put_node_depth : int
        If the unit lacks the element: 0 for a base model, else one more than the depth of the parent.
    levels : tuple of ndarray of int32
        QuantParam of each tensor of the unit, row-major, in coding order; empty if the unit is not an update.
    any_sig : tuple of ndarray of bool
        AnySigBeforeFlag of each tensor: whether any update so far had a nonzero level there (errata D4, N8).
    updates : tuple of ndarray
        WeightUpdateCache (7.3.2, 7.3.3) of each tensor.
    name : str
        First topology element of the unit.
    digests : tuple of Digest
        Digests of the payload of each unit, if the state keeps digests.
    """

    put_node_depth: int
    levels: tuple[npt.NDArray[np.int32], ...] = ()
    any_sig: tuple[npt.NDArray[np.bool_], ...] = ()
    updates: tuple[npt.NDArray[Any], ...] = ()
    name: str = ""
    digests: tuple[Digest, ...] = ()

    @property
    def nbytes(self) -> int:
        """Memory of the node in bytes, including objects."""
        arrays: Arrays = self.levels + self.any_sig + self.updates
        own = NODE_BYTES + len(self.name) + DIGEST_BYTES * len(self.digests)
        return own + sum([ARRAY_BYTES + array.nbytes for array in arrays])


@dataclass
class Sender:
    """State of one device. Entries from before the current bitstream are immutable.

    Parameters
    ----------
    nodes : dict
        Nodes by parameter_id, or by name.
    schema : mapping
        Tensors of its bitstreams.
    position : Position or None
        Position of its last bitstream.
    nbytes : int
        Memory of the entry in bytes.
    """

    nodes: dict[int | str, UpdateNode] = field(default_factory=dict)
    schema: Schema = field(default_factory=dict)
    position: Position | None = None
    nbytes: int = ENTRY_BYTES


class UpdateState:
    """Update trees by (device_id, parameter_id), and other state of devices.

    Entries are never changed, only replaced, so :meth:`fork` is cheap: a bitstream is decoded against a fork, which
    replaces the state only after complete success. A bitstream uses the state after earlier bitstreams, never its own
    changes.

    If the state would exceed max_history_bytes, the least recently used devices are removed.

    Parameters
    ----------
    keep_digests : bool
        Whether to store the SHA-256 and SHA-512 of payloads, for updates that identify their parents by digest.
    trusting : bool, optional
        Whether a parent identified by digest may be unknown if its data are not needed; default: not keep_digests.
    """

    def __init__(self, *, keep_digests: bool = False, trusting: bool | None = None) -> None:
        self.keep_digests = keep_digests
        self.trusting = not keep_digests if trusting is None else trusting
        self._senders: dict[Device, Sender] = {}  # the least recently used one first
        self._nbytes = 0
        self.begin()

    def begin(self) -> None:
        """Start a bitstream."""
        self._before: Mapping[Device, Sender] = dict(self._senders)
        self._written: dict[Device, set[int | str]] = {}  # by the current bitstream
        self._index: dict[bytes, list[Key]] | None = None  # payload digests, built on the first search

    def fork(self) -> UpdateState:
        """Return an independent state with the same content, for another bitstream."""
        other = UpdateState(keep_digests=self.keep_digests, trusting=self.trusting)
        other._senders, other._nbytes = dict(self._senders), self._nbytes
        other.begin()
        return other

    __copy__ = fork

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_before", "_written", "_index")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self.begin()

    def __len__(self) -> int:
        return sum(len(sender.nodes) for sender in self._senders.values())

    @property
    def nbytes(self) -> int:
        """Memory in bytes, including objects."""
        return self._nbytes

    @property
    def device_ids(self) -> list[int]:
        """Known devices, least recently used first."""
        return [device for device in self._senders if device is not None]

    @property
    def senders(self) -> Mapping[Device, Sender]:
        """State of each device, least recently used first; key None for units without ids."""
        return MappingProxyType(self._senders)

    @property
    def lineages(self) -> dict[int, Position]:
        """Position of the last bitstream of each device."""
        found = ((device, sender.position) for device, sender in self._senders.items())
        return {device: position for device, position in found if device is not None and position}

    def node(self, key: Key) -> UpdateNode | None:
        """Return the last node of a parameter."""
        sender = self._senders.get(key[0])
        return sender.nodes.get(key[1]) if sender else None

    def schema(self, device: Device) -> Schema:
        """Return the tensors of the bitstreams of a device."""
        return self._senders[device].schema if device in self._senders else {}

    # ------------------------------------------------------------------------------------------ for a bitstream
    def before(self, key: Key) -> UpdateNode | None:
        """Return the last node of a parameter before the current bitstream."""
        sender = self._before.get(key[0])
        return sender.nodes.get(key[1]) if sender else None

    def find(self, digest: bytes) -> Iterator[tuple[Key, UpdateNode]]:
        """Yield the parameters whose last node before the current bitstream has a payload with this digest."""
        if self._index is None:
            self._index = {}
            for device, sender in self._before.items():
                for parameter, node in sender.nodes.items():
                    for each in node.digests:
                        for known in each:
                            self._index.setdefault(known, []).append((device, parameter))
        for key in self._index.get(digest, ()):
            if found := self.before(key):
                yield key, found

    def put(self, key: Key, node: UpdateNode, limits: Limits, used: Iterable[Device] = ()) -> None:
        """Make ``node`` the last node of its parameter; mark the devices in ``used`` as recently used.

        Raises
        ------
        LimitError
            The devices of the current bitstream alone exceed max_history_bytes.
        ElementError
            The current bitstream already has a node of the parameter.
        """
        device, parameter = key
        if parameter in self._written.get(device, ()):
            raise ElementError(
                f"device_id and parameter_id {key} occur twice in one bitstream",
                clause="6.4.3.7",
                rule=Requirement.UNIQUE_PARAMETERS,
            )
        for each in used:
            self._use(each)
        sender = self._write(device, limits)
        self._written[device].add(parameter)
        old = sender.nodes.get(parameter)
        self._grow(sender, node.nbytes - (old.nbytes if old else 0), limits)
        sender.nodes[parameter] = node

    def remember(self, device: Device, schema: Schema, limits: Limits) -> None:
        """Replace the tensors of the bitstreams of a device. Raise LimitError as :meth:`put` does."""
        sender = self._write(device, limits)
        self._grow(sender, _weight(schema) - _weight(sender.schema), limits)
        sender.schema = dict(schema)

    def expect(self, lineage: Lineage) -> None:
        """Start a bitstream of a sender; if it refers to no earlier bitstream, discard the earlier updates.

        Raises MissingReferenceError unless it follows the last bitstream of its sender.
        """
        lineage.check(self.lineages)
        if not lineage.token:
            self.renew(lineage.device_id)

    def renew(self, device: int, *, keep_base: bool = True) -> None:
        """Discard the updates of a device, optionally with its base model, but keep its position."""
        old = self._senders.get(device)
        if old is None:
            return
        kept = {key: node for key, node in old.nodes.items() if keep_base and not node.put_node_depth}
        less = sum(node.nbytes for key, node in old.nodes.items() if key not in kept)
        self._senders[device] = replace(old, nodes=kept, nbytes=old.nbytes - less)
        self._nbytes -= less
        self.begin()

    def follow(self, lineage: Lineage, token: str, limits: Limits) -> None:
        """Record a decoded bitstream and the token of the next one. Raise LimitError as :meth:`put` does."""
        self.place(lineage.device_id, Position(lineage.number, token), limits)

    def place(self, device: int, position: Position, limits: Limits) -> None:
        """Set the position of the last bitstream of a device. Raise LimitError as :meth:`put` does."""
        self._write(device, limits).position = position

    def forget(self, device_id: Device) -> None:
        """Discard all state of a device (None: of units without ids); do nothing if it is unknown."""
        sender = self._senders.pop(device_id, None)
        if sender:
            self._nbytes -= sender.nbytes
        self._written.pop(device_id, None)

    # ------------------------------------------------------------------------------------------
    def _use(self, device: Device) -> None:
        """Mark a device as recently used."""
        if device in self._senders:
            self._senders[device] = self._senders.pop(device)

    def _write(self, device: Device, limits: Limits) -> Sender:
        """Return the entry of a device that the current bitstream may change."""
        if device not in self._written:
            self._written[device] = set()
            old = self._senders.pop(device, None)
            sender = replace(old, nodes=dict(old.nodes)) if old else Sender(nbytes=0)
            self._senders[device] = sender
            if not old:
                self._grow(sender, ENTRY_BYTES, limits)
        return self._senders[device]

    def _grow(self, sender: Sender, more: int, limits: Limits) -> None:
        while self._nbytes + more > limits.max_history_bytes:
            device = next((device for device in self._senders if device not in self._written), -1)
            if device == -1:
                limits.check("max_history_bytes", self._nbytes + more, "bytes kept for later updates")
            self.forget(device)
        sender.nbytes += more
        self._nbytes += more

    # ------------------------------------------------------------------------------------------ files
    def save(self, target: str | os.PathLike[str] | BinaryIO, *, overwrite: bool = False) -> None:
        """Write the state to a path or an open file; see :mod:`nnr_codec.decoder.statefile`.

        Raises FileExistsError if the file exists, unless ``overwrite`` is true, and OSError.
        """
        from .statefile import save_state

        save_state(self, target, overwrite=overwrite)

    @classmethod
    def load(cls, source: Bitstream, *, limits: Limits | None = None) -> UpdateState:
        """Read the state from a file written by :meth:`save`.

        Raises
        ------
        FormatError
            The file is not a state file, or is damaged.
        LimitError
            The state exceeds max_history_bytes.
        OSError
            The file cannot be read.
        """
        from .statefile import load_state

        state: UpdateState = load_state(source, limits or Limits())
        return state


def _weight(schema: Schema) -> int:
    return sum(ENTRY_BYTES + len(name) for name in schema)
