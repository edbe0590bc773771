"""Operations of senders and receivers in a round of federated learning, independent of the framework.

A round begins with a model that receivers keep as a base under a key. The update of a sender has that key in its
base_model_id (:class:`~nnr_codec.decoder.lineage.Lineage`), with the sender's device_id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import open as open_bitstream
from ..decoder.lineage import Lineage
from ..decoder.update_sequence import Update, UpdateDecoder
from ..dtypes import stored_type
from ..errors import EncodeError, FormatError, LimitError, MissingReferenceError
from ..federated.apply import apply_update
from ..federated.difference import add, difference
from ..federated.update import UpdateEncoder
from ..limits import Limits
from ..model import Array

Tensors = Mapping[str, Array]
Floats = npt.NDArray[np.float64]
Reader = Callable[[str], Array]


class Dropped(NamedTuple):
    """Rejected reply.

    Parameters
    ----------
    sender : int
        Number of the sender in the framework.
    reason : str
        Reason in one line.
    """

    sender: int
    reason: str


@dataclass
class RoundStatistics:
    """Statistics of one round.

    Parameters
    ----------
    downlink_raw, downlink_wire : int
        Sizes in bytes of the sent models, as tensors and as transferred, summed over receivers.
    uplink_raw, uplink_wire : int
        Sizes in bytes of the accepted replies, as tensors and as transferred.
    encode_seconds, decode_seconds : float
        Time of the server in seconds.
    replies : int
        Number of accepted replies.
    dropped : list of Dropped
        Rejected replies.
    """

    downlink_raw: int = 0
    downlink_wire: int = 0
    uplink_raw: int = 0
    uplink_wire: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    replies: int = 0
    dropped: list[Dropped] = field(default_factory=list)


@dataclass(eq=False)
class Base:
    """Sent model.

    Parameters
    ----------
    key : str
    tensors : mapping of str to ndarray
        Tensors as the receivers have them.
    round : int
        Last round in which the model was sent.
    waiting : Counter of int
        Number of expected replies, by sender.
    """

    key: str
    tensors: Tensors
    round: int = 0
    waiting: Counter[int] = field(default_factory=Counter)

    @property
    def nbytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def answered(self, sender: int) -> None:
        """Record a reply."""
        self.waiting[sender] -= 1
        if self.waiting[sender] <= 0:
            del self.waiting[sender]


class Bases:
    """Models for which replies are expected, from the last ``rounds`` rounds."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._bases: dict[str, Base] = {}

    def __len__(self) -> int:
        return len(self._bases)

    def expect(self, base: Base, sender: int, number: int) -> None:
        """Expect a reply to this model, sent in round ``number``."""
        base = self._bases[base.key] = self._bases.pop(base.key, base)
        base.round = number
        base.waiting[sender] += 1

    def due(self, sender: int) -> list[Base]:
        """Return the models for which replies of this sender are expected, most recent first."""
        return [base for base in reversed(self._bases.values()) if base.waiting[sender] > 0]

    def find(self, key: str, sender: int) -> Base:
        """Return the model with this key. Raise MissingReferenceError if no reply of the sender to it is expected."""
        for base in self.due(sender):
            if base.key == key:
                return base
        raise MissingReferenceError(
            "the base model of the update is unknown: it was not sent to this client, it expired, or the client "
            "already replied"
        )

    def failed(self, sender: int) -> None:
        """Stop expecting replies of this sender to the models of the latest round."""
        due = self.due(sender)
        for base in due:
            if base.round == due[0].round:
                base.answered(sender)

    def trim(self, number: int) -> None:
        """Discard models without expected replies, and models that are too old for round ``number``."""
        kept = {key: base for key, base in self._bases.items() if base.waiting and base.round > number - self._rounds}
        self._bases = kept


def as_type(array: Array, dtype: npt.DTypeLike) -> Array:
    """Return the array in another type; averages of integers and booleans are rounded.

    Raises FormatError if it is not numeric.
    """
    wanted = np.dtype(dtype)
    if array.dtype == wanted:
        return array
    if stored_type(array.dtype) is None:
        raise FormatError(f"tensors of type {array.dtype} are not supported")
    if wanted.kind not in "iub" or array.dtype.kind in "iub":
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(wanted)
    wide = np.nan_to_num(array.astype(np.float64))
    if wanted.kind == "b":
        return wide >= 0.5
    low, high = int(np.iinfo(wanted.name).min), int(np.iinfo(wanted.name).max)
    highest = min(high, int(np.nextafter(high + 1.0, 0)))  # float64 cannot represent the maximum of 64 bits
    return np.clip(np.rint(wide), low, highest).astype(wanted)


def check_finite(name: str, tensor: Array, base: Array) -> None:
    """Raise FormatError for values that are not finite where the base has finite values."""
    if tensor.dtype.kind in "iub":
        return
    bad = ~np.isfinite(tensor)
    if bad.any() and bool((bad & np.isfinite(base)).any()):
        raise FormatError(f"tensor {name!r} has values that are not finite", tensor=name)


def limits_for(models: Iterable[Tensors]) -> Limits:
    """Return the limits for an update of one of these models from an untrusted sender."""
    tensors = [tensor for model in models for tensor in model.values()]
    items = sum(tensor.size for tensor in tensors)
    largest = max((tensor.size for tensor in tensors), default=0)
    return replace(
        Limits.strict(),
        max_unit_bytes=(1 << 16) + 16 * items,
        max_units=1000 + 8 * len(tensors),
        max_names=10_000 + 16 * len(tensors),
        max_tensor_elements=max(largest, 1),
        max_tensor_bytes=8 * max(largest, 1),
        max_total_bytes=(1 << 16) + 32 * items,
        max_pending_bytes=(1 << 16) + 32 * items,
        max_history_bytes=(1 << 20) + 32 * items + 4096 * len(tensors),
    )


def encode_reply(base: Tensors, new: Tensors, encoder: UpdateEncoder, *, jobs: int = 1) -> bytes:
    """Encode the update from ``base`` to ``new``, which have the same names.

    Raises
    ------
    EncodeError
        Names or shapes differ from the base, or values are not finite.
    """
    if other := new.keys() ^ base.keys():
        raise EncodeError(f"tensor {min(other)!r} is in only one of the model and its update")
    update: dict[str, Array] = {}
    whole: dict[str, Array] = {}
    for name, before in base.items():
        after = as_type(new[name], before.dtype)
        if after.shape != before.shape:
            raise EncodeError(
                f"tensor {name!r} of shape {before.shape} was returned with shape {after.shape}", tensor=name
            )
        try:
            check_finite(name, after, before)
        except FormatError as error:
            raise error.converted(EncodeError) from None
        found = difference(before, after)
        (whole if found.kind == "whole" else update)[name] = found.array
    return encoder.encode(update, whole=whole, jobs=jobs)


def lineage_of(payload: bytes, limits: Limits) -> Lineage:
    """Return the lineage of a reply. Raise FormatError if it has none."""
    with open_bitstream(payload, limits=limits) as file:
        text = file.performance.base_model_id
    if text is None or (lineage := Lineage.parse(text)) is None:
        raise FormatError("base_model_id of the update does not name the model of a round")
    return lineage


def decode_reply(payload: bytes, base: Tensors, decoder: UpdateDecoder) -> tuple[dict[str, Array], Update]:
    """Return the model updated by a reply, in the order and types of the base, and the update.

    Parameters
    ----------
    payload : bytes
    base : mapping of str to ndarray
    decoder : UpdateDecoder
        A decoder with ``like=base``; its state changes only if decoding succeeds.

    Raises
    ------
    BitstreamError, MissingReferenceError, FormatError
        Errors of :meth:`UpdateDecoder.decode`. Values that are not finite also raise FormatError.
    """
    update = decoder.decode(payload)
    found = apply_update(base, update, check=False)
    tensors: dict[str, Array] = {}
    for name, before in base.items():
        tensor = np.asarray(found[name])
        if tensor.shape != before.shape or tensor.dtype != before.dtype:
            raise LimitError(
                f"tensor {name!r} is {tensor.dtype} {tensor.shape}; expected {before.dtype} {before.shape}",
                tensor=name,
            )
        check_finite(name, tensor, before)
        tensors[name] = tensor
    return tensors, update


def one_line(error: BaseException) -> str:
    """Return the message of an error in one printable line for a log, because it may cite untrusted text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(char if char.isprintable() else "?" for char in text)[:300]


# ------------------------------------------------------------------------------------------------ averages
def differ(a: Array, b: Array) -> bool:
    """Return whether any bits differ."""
    return a.tobytes() != b.tobytes()


def minus(new: Array, base: Array) -> Floats:
    """Return the difference of tensors of one type; 0 where it is not finite."""
    if base.dtype.kind in "iub":
        return np.asarray(new.astype(np.int64).reshape(base.shape) - base.astype(np.int64), np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.asarray(new.astype(np.float64).reshape(base.shape) - base.astype(np.float64))
    found[~np.isfinite(found)] = 0
    return found


def plus(base: Array, difference: Floats) -> Array:
    """Return the sum of a tensor and a difference, rounded once to its type."""
    if base.dtype.kind not in "iu":
        return np.asarray(as_type(base.astype(np.float64) + difference, base.dtype))
    total = base.astype(np.int64) + np.rint(difference).astype(np.int64)
    if base.dtype.itemsize < 8:
        bounds = np.iinfo(base.dtype.name)
        total = np.clip(total, bounds.min, bounds.max)
    return np.asarray(total.astype(base.dtype))


def reader(payload: bytes, base: Tensors, limits: Limits, whole: Set[str]) -> Reader:
    """Return a function that computes single tensors of an updated model.

    Parameters
    ----------
    payload : bytes
        A payload that :func:`decode_reply` accepted; it stays compressed.
    base : mapping of str to ndarray
    limits : Limits
    whole : set of str
        Tensors that replace tensors of the base.
    """
    file = open_bitstream(payload, limits=limits)

    def read(name: str) -> Array:
        if name not in file:
            return base[name]
        return add(base[name], file[name], "whole" if name in whole else "difference")

    return read
