"""Which bitstream of a sender an update follows, written into base_model_id (ISO/IEC 15938-17:2024, 6.4.3.3).

The standard leaves base_model_id to the application. Update trees alone do not show that a bitstream was lost whose
tensors the next one leaves out; this does.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple, Protocol

from ..errors import MissingReferenceError
from ..syntax.structures import NnrModelParameterSetUnitPayload

#: Base, device_id, number, token; numbers as Python writes them, of at most 18 digits.
_FORM = re.compile(r"(.*)#(0|[1-9][0-9]{0,17})\.([1-9][0-9]{0,17})\.([A-Za-z0-9_-]{16}|)", re.DOTALL)


class Hash(Protocol):
    """What :mod:`hashlib` makes."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Take more bytes."""

    def digest(self) -> bytes:
        """The digest of all bytes so far."""


class Position(NamedTuple):
    """How far one sender's bitstreams were followed.

    Parameters
    ----------
    number : int
        Of the last one.
    token : str
        What the next one must have.
    """

    number: int
    token: str


class Lineage(NamedTuple):
    """A base_model_id of the form ``base#device_id.number.token``.

    Parameters
    ----------
    base : str
        Any text; what the first bitstream continues.
    device_id : int
        The sender.
    number : int
        Of the bitstream among those of its sender, from 1.
    token : str
        16 characters that the bitstream before determines; empty where nothing before it is referred to.
    """

    base: str
    device_id: int
    number: int
    token: str

    @classmethod
    def parse(cls, text: str) -> Lineage | None:
        """The lineage that ``text`` tells; None where it is of another form."""
        if not (found := _FORM.fullmatch(text)):
            return None
        base, device_id, number, token = found.groups()
        return cls(base, int(device_id), int(number), token)

    def __str__(self) -> str:
        return f"{self.base}#{self.device_id}.{self.number}.{self.token}"

    def follow(self, data: bytes | memoryview) -> str:
        """The token of the bitstream after this one, which is ``data``."""
        digest = self.digest()
        digest.update(data)
        return token(digest)

    def digest(self) -> Hash:
        """What takes the bytes of this bitstream; :func:`token` makes of it the one of the bitstream after it."""
        return sha256(self.token.encode("ascii"))

    def check(self, known: Mapping[int, Position]) -> None:
        """Raise MissingReferenceError unless the bitstream follows what is known of its sender, by device_id."""
        last, who = known.get(self.device_id), f"bitstream {self.number} of device_id {self.device_id}"
        if last and self.number <= last.number:
            raise MissingReferenceError(f"{who} is repeated or out of order: number {last.number} was decoded")
        if not self.token or (last and last == (self.number - 1, self.token)):
            return
        have = f"the last one is {last.number}, which {last.token} follows" if last else "none of them is"
        raise MissingReferenceError(
            f"{who} continues number {self.number - 1}, which {self.token} follows; that is not known, {have}"
        )


def base_model_id(mps: NnrModelParameterSetUnitPayload | None) -> str | None:
    """base_model_id, where the parameter set has one."""
    return mps.base_model_id if mps and "base_model_id" in mps else None


def token(digest: Hash) -> str:
    """The token that the bytes of a bitstream make; see :meth:`Lineage.digest`."""
    return urlsafe_b64encode(digest.digest())[:16].decode("ascii")
