"""Target: state files, whose digest is computed from the input."""

from __future__ import annotations

import io
from collections.abc import Iterable
from hashlib import sha256

import nnr_codec as nnr
from nnr_codec.decoder.statefile import load_state

from ..seeds import vectors
from .reply import BASE, replies
from .support import LIMITS, harmless


def target(data: bytes) -> None:
    """Load a state, save it again, and decode an update in it."""
    with harmless():
        state = load_state(data + sha256(data).digest(), LIMITS)
        file = io.BytesIO()
        state.save(file)
        assert file.getvalue()[:-32] == data
        for reply in replies()[0][-2:]:
            with harmless():
                nnr.UpdateDecoder(like=BASE, limits=LIMITS, state=state).decode(reply)


def seeds() -> Iterable[bytes]:
    """Return states after replies, and after vectors."""
    states = [replies()[1], nnr.UpdateState()]
    for seed in vectors():
        if seed.before:
            decoder = nnr.UpdateDecoder(**seed.options)
            with harmless():
                for data in seed.before:
                    decoder.decode(data)
                states.append(decoder.state)
    for state in states:
        file = io.BytesIO()
        state.save(file)
        if len(file.getvalue()) < 1 << 13:
            yield file.getvalue()[:-32]
