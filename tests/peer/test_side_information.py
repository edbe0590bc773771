"""NNCodec does not support side information: each tensor of a lossless bitstream is right, absent, or an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.model import Array

from .. import lossless
from .conftest import Peer, PeerError

pytestmark = [pytest.mark.medium, pytest.mark.peer]

FEW, MANY_MODELS, MANY_UPDATES = range(40), range(1000, 1300), range(1000, 1100)


def decoded(peer: Peer, data: bytes) -> dict[str, Array]:
    """Return NNCodec's tensors, or none if it raises an error."""
    try:
        (tensors,) = peer.decode(data)
    except PeerError:
        return {}
    return tensors


def check_models(peer: Peer, seeds: Iterable[int]) -> Counter[bool]:
    """Return the number of tensors of decoded models that are right (True) and absent (False)."""
    there = Counter[bool]()
    for seed in seeds:
        model = lossless.model(seed)
        theirs = decoded(peer, nnr.encode(model, exact=True))
        want = lossless.all_numbers(model.tensors)
        assert lossless.wrong(theirs, want) == [], seed
        there.update(name in theirs for name in want)
    return there


def check_updates(peer: Peer, seeds: Iterable[int]) -> Counter[bool]:
    """Return the number of tensors of decoded updates that are right (True) and absent (False)."""
    there = Counter[bool]()
    for seed in seeds:
        base, new = lossless.update(seed)
        data = nnr.encode_update(base, new, lossless=True)
        theirs, want = decoded(peer, data), lossless.numbers_of_update(base, new, data)
        assert lossless.wrong(theirs, want) == [], seed
        there.update(name in theirs for name in want)
    return there


def test_no_tensor_of_a_model_is_wrong(peer: Peer) -> None:
    there = check_models(peer, FEW)
    assert there[True] > 20


def test_no_tensor_of_an_update_is_wrong(peer: Peer) -> None:
    """NNCodec rejects the parent type of these differences; it decodes only updates of whole tensors."""
    there = check_updates(peer, FEW)
    assert there[True] > 5


@pytest.mark.slow
def test_no_tensor_of_many_models_is_wrong(peer: Peer) -> None:
    check_models(peer, MANY_MODELS)


@pytest.mark.slow
def test_no_tensor_of_many_updates_is_wrong(peer: Peer) -> None:
    check_updates(peer, MANY_UPDATES)


def test_attachments_are_skipped_or_an_error(peer: Peer) -> None:
    """NNCodec skips short texts, and rejects bitstreams with deflated files."""
    tensors = {"w": np.arange(24, dtype=np.int32).reshape(4, 6)}
    for others, skipped in (({"config.json": b"{}", "a/b.txt": "\xe9".encode()}, True), ({"c.bin": bytes(99)}, False)):
        data = nnr.encode(nnr.Model(tensors, attachments=others, file_name="model.safetensors"), exact=True)
        theirs = decoded(peer, data)
        assert list(theirs) == (["w"] if skipped else [])
        assert all(np.array_equal(theirs[name], tensors[name]) for name in theirs)
