"""Position of an update in the bitstream sequence of its sender, stored in base_model_id (ISO/IEC 15938-17:2024,
6.4.3.3).

The standard leaves base_model_id to the application. Update trees alone cannot detect the loss of a bitstream if the
next bitstream omits its tensors; the position reveals it.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple, Protocol

from ..errors import MissingReferenceError
from ..syntax.structures import NnrModelParameterSetUnitPayload

#: Base, device_id, number, token; numbers in Python's decimal notation with at most 18 digits.
_FORM = re.compile(r"(.*)#(0|[1-9][0-9]{0,17})\.([1-9][0-9]{0,17})\.([A-Za-z0-9_-]{16}|)", re.DOTALL)


class Hash(Protocol):
    """Hash object of :mod:`hashlib`."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes."""

    def digest(self) -> bytes:
        """Return the digest of all bytes so far."""


class Position(NamedTuple):
    """Last decoded bitstream of one sender.

    Parameters
    ----------
    number : int
        Number of the bitstream.
    token : str
        Token that the next bitstream must have.
    """

    number: int
    token: str


class Lineage(NamedTuple):
    """Contents of a base_model_id of the form ``base#device_id.number.token``.

    Parameters
    ----------
    base : str
        Any text; identifies the model before the first bitstream.
    device_id : int
        Identifier of the sender.
    number : int
        Number of the bitstream in the sequence of its sender, from 1.
    token : str
        16 characters derived from the previous bitstream; empty if the bitstream does not refer to it.
    """

    base: str
    device_id: int
    number: int
    token: str

    @classmethod
    def parse(cls, text: str) -> Lineage | None:
        """Return the lineage in ``text``; None if it has another form."""
        if not (found := _FORM.fullmatch(text)):
            return None
        base, device_id, number, token = found.groups()
        return cls(base, int(device_id), int(number), token)

    def __str__(self) -> str:
        return f"{self.base}#{self.device_id}.{self.number}.{self.token}"

    def follow(self, data: bytes | memoryview) -> str:
        """Return the token of the next bitstream; ``data`` is this bitstream."""
        digest = self.digest()
        digest.update(data)
        return token(digest)

    def digest(self) -> Hash:
        """Return a hash object for the bytes of this bitstream; :func:`token` computes the next token from it."""
        return sha256(self.token.encode("ascii"))

    def check(self, known: Mapping[int, Position]) -> None:
        """Raise MissingReferenceError unless the bitstream follows the position of its sender in ``known``, by
        device_id."""
        last, who = known.get(self.device_id), f"bitstream {self.number} of device_id {self.device_id}"
        if last and self.number <= last.number:
            raise MissingReferenceError(f"{who} is repeated or out of order: number {last.number} was decoded")
        if not self.token or (last and last == (self.number - 1, self.token)):
            return
        have = f"the last decoded one is {last.number} ({last.token})" if last else "none was decoded"
        raise MissingReferenceError(
            f"{who} continues number {self.number - 1}, identified by {self.token}, which is not known: {have}; "
            "give the earlier updates first, in order"
        )


def base_model_id(mps: NnrModelParameterSetUnitPayload | None) -> str | None:
    """Return base_model_id, if the parameter set has one."""
    return mps.base_model_id if mps and "base_model_id" in mps else None


def token(digest: Hash) -> str:
    """Return the token for a digest of a bitstream; see :meth:`Lineage.digest`."""
    return urlsafe_b64encode(digest.digest())[:16].decode("ascii")
