"""Target: replies of clients in a round of federated learning, as received by Flower or NVIDIA FLARE servers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np

import nnr_codec as nnr
from nnr_codec.integrations.rounds import decode_reply, encode_reply, limits_for, lineage_of, reader

from .support import harmless

BASE = {
    "w": np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8),
    "b": np.linspace(-1, 1, 7, dtype=np.float16),
    "n": np.arange(6, dtype=np.int64).reshape(3, 2),
    "mask": np.asarray([True, False]),
    "steps": np.asarray(5, np.int32),
}
LIMITS = limits_for([BASE])


@cache
def replies() -> tuple[tuple[bytes, ...], nnr.UpdateState]:
    """Return replies of two rounds, in several ways, and the state of a server after the first."""
    rng, sent, config = np.random.default_rng(1), [], nnr.EncoderConfig.preset("fl")
    new = {name: np.asarray(array + array.dtype.type(1)) for name, array in BASE.items() if name != "mask"}
    new["mask"] = ~BASE["mask"]
    new["w"] = BASE["w"] + rng.normal(0, 0.1, (6, 8)).astype("f4")
    for options in ({}, {"sparsity": 0.5}, {"sbt": 0.2}):
        encoder = nnr.UpdateEncoder(config, base_model_id="k", parent="external", names=BASE, **options)
        sent.append(encode_reply(BASE, new, encoder))
    encoder = nnr.UpdateEncoder(config, base_model_id="k", device_id=3, parent="node", names=BASE)
    decoder = nnr.UpdateDecoder(like=BASE, limits=LIMITS)
    sent.append(encode_reply(BASE, new, encoder))
    decode_reply(sent[-1], BASE, decoder)
    sent.append(encode_reply(BASE, new, encoder))
    return tuple(sent), decoder.state


def target(data: bytes) -> None:
    """Process a reply with and without the earlier state."""
    state = replies()[1]
    for before in (None, state):
        with harmless():
            lineage_of(data, LIMITS)
            decoder = nnr.UpdateDecoder(like=BASE, limits=LIMITS, state=before)
            found, update = decode_reply(data, BASE, decoder)
            assert list(found) == list(BASE)
            for name, tensor in found.items():
                assert (tensor.shape, tensor.dtype) == (BASE[name].shape, BASE[name].dtype)
                assert np.isfinite(tensor).all()
                if before is None:
                    assert reader(data, BASE, LIMITS, update.whole)(name).shape == tensor.shape


def seeds() -> Iterable[bytes]:
    """Return replies."""
    return replies()[0]
