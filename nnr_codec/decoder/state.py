"""What decoding remembers from one update of a parameter to the next (ISO/IEC 15938-17:2024, 6.4.3.7, 10.3.4.2.2)."""

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

#: device_id; None for units that have no ids.
Device = int | None
#: (device_id, parameter_id); (None, first topology_elem_id) of units that have no ids.
Key = tuple[Device, int | str]
Arrays = tuple[npt.NDArray[Any], ...]
#: Shape and name of the :class:`~nnr_codec.dtypes.StoredType` of each tensor.
Schema = Mapping[str, tuple[tuple[int, ...], str]]

#: What a node, an array, the digests of a payload, and a tensor or sender weigh beside their numbers, roughly.
NODE_BYTES, ARRAY_BYTES, DIGEST_BYTES, ENTRY_BYTES = 512, 256, 512, 256


class Digest(NamedTuple):
    """What names a payload."""

    sha256: bytes
    sha512: bytes

    @classmethod
    def of(cls, payload: memoryview) -> Digest:
        """The digests of a payload."""
        return cls(sha256(payload).digest(), sha512(payload).digest())


class UpdateNode(NamedTuple):
    """The last node of one parameter's update tree.

    Parameters
    ----------
    put_node_depth : int
        Where the unit has none: 0 for a base model, and one more than that of the parent.
    levels : tuple of ndarray of int32
        QuantParam of each tensor of the unit, row-major, in coding order; empty for a unit that is not an update.
    any_sig : tuple of ndarray of bool
        AnySigBeforeFlag of each tensor: whether any update so far had a level other than 0 there (errata D4, N8).
    updates : tuple of ndarray
        WeightUpdateCache (7.3.2, 7.3.3) of each tensor.
    name : str
        The first topology element of the unit.
    digests : tuple of Digest
        Of the payload of each unit, where the state keeps digests.
    """

    put_node_depth: int
    levels: tuple[npt.NDArray[np.int32], ...] = ()
    any_sig: tuple[npt.NDArray[np.bool_], ...] = ()
    updates: tuple[npt.NDArray[Any], ...] = ()
    name: str = ""
    digests: tuple[Digest, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes that the node keeps, those of its objects included."""
        arrays: Arrays = self.levels + self.any_sig + self.updates
        own = NODE_BYTES + len(self.name) + DIGEST_BYTES * len(self.digests)
        return own + sum([ARRAY_BYTES + array.nbytes for array in arrays])


@dataclass
class Sender:
    """What is known of one device; of that which was there before the present bitstream, nothing changes.

    Parameters
    ----------
    nodes : dict
        By parameter_id, or by name.
    schema : mapping
        The tensors that its bitstreams had.
    position : Position or None
        How far its bitstreams were followed.
    nbytes : int
        Bytes of all this.
    """

    nodes: dict[int | str, UpdateNode] = field(default_factory=dict)
    schema: Schema = field(default_factory=dict)
    position: Position | None = None
    nbytes: int = ENTRY_BYTES


class UpdateState:
    """Update trees by (device_id, parameter_id), and what else is known of devices.

    What is there is never changed, only replaced, so :meth:`fork` is cheap: a bitstream is decoded against a fork,
    which replaces the state only when all of it was decoded. A bitstream sees what those before it left, and nothing
    of its own.

    When it would outgrow max_history_bytes, those devices are forgotten that were not used for the longest time.

    Parameters
    ----------
    keep_digests : bool
        Whether to remember payloads by their SHA-256 and SHA-512, for updates that name their parents so.
    trusting : bool, optional
        Whether such a parent need not be known where nothing else is needed of it; by default without digests.
    """

    def __init__(self, *, keep_digests: bool = False, trusting: bool | None = None) -> None:
        self.keep_digests = keep_digests
        self.trusting = not keep_digests if trusting is None else trusting
        self._senders: dict[Device, Sender] = {}  # the least recently used one first
        self._nbytes = 0
        self.begin()

    def begin(self) -> None:
        """A bitstream begins."""
        self._before: Mapping[Device, Sender] = dict(self._senders)
        self._written: dict[Device, set[int | str]] = {}  # by the present bitstream
        self._index: dict[bytes, list[Key]] | None = None  # of their payloads, once one is looked for

    def fork(self) -> UpdateState:
        """The state for another bitstream: independent, with the same content."""
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
        """Bytes that are kept, those of objects included."""
        return self._nbytes

    @property
    def device_ids(self) -> list[int]:
        """The devices that something is known of, the least recently used one first."""
        return [device for device in self._senders if device is not None]

    @property
    def senders(self) -> Mapping[Device, Sender]:
        """What is known of each device, the least recently used one first; None: units without ids."""
        return MappingProxyType(self._senders)

    @property
    def lineages(self) -> dict[int, Position]:
        """How far the bitstreams of devices were followed."""
        found = ((device, sender.position) for device, sender in self._senders.items())
        return {device: position for device, position in found if device is not None and position}

    def node(self, key: Key) -> UpdateNode | None:
        """The last node of a parameter."""
        sender = self._senders.get(key[0])
        return sender.nodes.get(key[1]) if sender else None

    def schema(self, device: Device) -> Schema:
        """The tensors that the bitstreams of a device had."""
        return self._senders[device].schema if device in self._senders else {}

    # ------------------------------------------------------------------------------------------ for a bitstream
    def before(self, key: Key) -> UpdateNode | None:
        """The last node of a parameter that is of an earlier bitstream."""
        sender = self._before.get(key[0])
        return sender.nodes.get(key[1]) if sender else None

    def find(self, digest: bytes) -> Iterator[tuple[Key, UpdateNode]]:
        """The parameters whose last node of an earlier bitstream has a payload of this digest."""
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
        """Make ``node`` the last one of its parameter; devices ``used`` were of use for it.

        Raises
        ------
        LimitError
            The present bitstream's devices alone outgrow max_history_bytes.
        ElementError
            The bitstream had a node of the parameter.
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
        """Replace the tensors that the bitstreams of a device had; LimitError as for :meth:`put`."""
        sender = self._write(device, limits)
        self._grow(sender, _weight(schema) - _weight(sender.schema), limits)
        sender.schema = dict(schema)

    def expect(self, lineage: Lineage) -> None:
        """A bitstream of a sender begins; where it refers to nothing before it, the updates before it are forgotten.

        Raises MissingReferenceError unless it follows what is known of its sender.
        """
        lineage.check(self.lineages)
        if not lineage.token:
            self.renew(lineage.device_id)

    def renew(self, device: int, *, keep_base: bool = True) -> None:
        """Forget the updates of a device, perhaps its base model too, but not how far its bitstreams were followed."""
        old = self._senders.get(device)
        if old is None:
            return
        kept = {key: node for key, node in old.nodes.items() if keep_base and not node.put_node_depth}
        less = sum(node.nbytes for key, node in old.nodes.items() if key not in kept)
        self._senders[device] = replace(old, nodes=kept, nbytes=old.nbytes - less)
        self._nbytes -= less
        self.begin()

    def follow(self, lineage: Lineage, token: str, limits: Limits) -> None:
        """A bitstream was decoded, after which ``token`` comes; LimitError as for :meth:`put`."""
        self.place(lineage.device_id, Position(lineage.number, token), limits)

    def place(self, device: int, position: Position, limits: Limits) -> None:
        """Say how far the bitstreams of a device were followed; LimitError as for :meth:`put`."""
        self._write(device, limits).position = position

    def forget(self, device_id: Device) -> None:
        """Forget all that is known of a device, or (None) of units without ids; nothing if it is not known."""
        sender = self._senders.pop(device_id, None)
        if sender:
            self._nbytes -= sender.nbytes
        self._written.pop(device_id, None)

    # ------------------------------------------------------------------------------------------
    def _use(self, device: Device) -> None:
        """Move a device to the end of those that may be forgotten."""
        if device in self._senders:
            self._senders[device] = self._senders.pop(device)

    def _write(self, device: Device, limits: Limits) -> Sender:
        """What the present bitstream may change."""
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
        """Write all that is known to a file, or into one that is open; see :mod:`nnr_codec.decoder.statefile`.

        Raises FileExistsError where there is one, unless ``overwrite`` is true, and OSError.
        """
        from .statefile import save_state

        save_state(self, target, overwrite=overwrite)

    @classmethod
    def load(cls, source: Bitstream, *, limits: Limits | None = None) -> UpdateState:
        """The state of a file that :meth:`save` wrote.

        Raises
        ------
        FormatError
            It is no such file, or damaged.
        LimitError
            It holds more than max_history_bytes.
        OSError
            It cannot be read.
        """
        from .statefile import load_state

        state: UpdateState = load_state(source, limits or Limits())
        return state


def _weight(schema: Schema) -> int:
    return sum(ENTRY_BYTES + len(name) for name in schema)
