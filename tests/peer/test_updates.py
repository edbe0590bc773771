"""Updates of several rounds: NNCodec and nnr_codec decode each other's bitstreams and keep equal state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.model import Array

from .conftest import Peer, assert_same_tensors
from .models import Rounds, differences, rounds_for_our_encoder, rounds_for_the_peer

pytestmark = [pytest.mark.medium, pytest.mark.peer]

ROUNDS = 5


def filled(decoded: dict[str, Array], like: dict[str, Array]) -> dict[str, Array]:
    """Return the tensors with zeros for omitted ones, which are or became zero."""
    return {name: decoded.get(name, np.zeros_like(values)) for name, values in like.items()}


def tools(streams: list[bytes]) -> set[str]:
    """Return the syntax elements that some bitstream sets."""
    return {tool.element for data in streams for tool in nnr.requirements(data) if tool.value}


def the_peers_to_us(peer: Peer, rounds: Rounds) -> list[bytes]:
    """Return bitstreams of NNCodec."""
    streams = peer.update(*rounds.differences, **rounds.options)
    theirs = peer.decode(*streams, history=rounds.history)
    decoder = nnr.UpdateDecoder()
    seen: set[str] = set()
    # NNCodec's nnr_pre_flag does not describe the values (errata N10)
    raw = rounds.options.get("pre_signalling", False)
    for data, want, tensors in zip(streams, theirs, rounds.differences, strict=True):
        got = decoder.decode(data, raw=raw)
        seen |= set(want)
        assert set(got) == (set(want) if raw else seen)  # zeros replace tensors that are no longer present
        assert_same_tensors(filled(got, tensors), filled(want, tensors))
    return streams


@pytest.mark.parametrize("seed", range(20))
def test_we_decode_the_peers(peer: Peer, seed: int) -> None:
    """Temporal contexts, history, both, neither; NNCodec omits zero tensors."""
    rounds = rounds_for_the_peer(seed, ROUNDS)
    found = tools(the_peers_to_us(peer, rounds))
    assert ("temporal_context_modeling_flag" in found) <= rounds.options["tca"]
    assert ("hist_dep_sig_prob_enabled_flag" in found) <= rounds.history


@pytest.mark.parametrize("seed", range(1000, 1004))
def test_we_decode_ten_rounds_of_the_peers(peer: Peer, seed: int) -> None:
    the_peers_to_us(peer, rounds_for_the_peer(seed, 10))


def test_the_tools_are_among_them(peer: Peer) -> None:
    found = set()
    for seed in range(8):
        rounds = rounds_for_the_peer(seed, ROUNDS)
        found |= tools(peer.update(*rounds.differences, **rounds.options))
    wanted = {"temporal_context_modeling_flag", "hist_dep_sig_prob_enabled_flag", "row_skip_enabled_flag", "dq_flag"}
    assert wanted | {"codebook_present_flag", "scan_order", "nnr_pre_flag"} <= found


# ------------------------------------------------------------------------------------------------ nnr_codec to NNCodec
def ours_to_the_peer(peer: Peer, rounds: Rounds) -> list[bytes]:
    """Return bitstreams of nnr_codec."""
    encoder, decoder = nnr.UpdateEncoder(**rounds.options), nnr.UpdateDecoder()
    streams, ours = [], []
    for tensors in rounds.differences:
        streams.append(encoder.encode(tensors))
        ours.append(decoder.decode(streams[-1]))
    theirs = peer.decode(*streams, history=True)
    for got, want, tensors in zip(theirs, ours, rounds.differences, strict=True):
        assert set(got) <= set(want)
        assert_same_tensors(filled(got, tensors), filled(dict(want), tensors))
    return streams


@pytest.mark.parametrize("seed", range(30))
def test_the_peer_decodes_ours(peer: Peer, seed: int) -> None:
    ours_to_the_peer(peer, rounds_for_our_encoder(seed, ROUNDS))


@pytest.mark.slow
def test_many_more(peer: Peer) -> None:
    for seed in range(100, 150):
        the_peers_to_us(peer, rounds_for_the_peer(seed, ROUNDS))
        ours_to_the_peer(peer, rounds_for_our_encoder(seed, ROUNDS))


@pytest.mark.parametrize("seed", range(1000, 1004))
def test_the_peer_decodes_ten_rounds_of_ours(peer: Peer, seed: int) -> None:
    ours_to_the_peer(peer, rounds_for_our_encoder(seed, 10))


@pytest.mark.parametrize("seed", range(2000, 2012))
def test_the_peer_decodes_binary_ternary_ones_of_ours(peer: Peer, seed: int) -> None:
    rounds = rounds_for_our_encoder(seed, ROUNDS)
    ours_to_the_peer(peer, replace(rounds, options=rounds.options | {"sbt": 0.8, "error_feedback": True}))


def test_our_tools_are_among_them() -> None:
    found = set()
    for seed in range(12):
        rounds = rounds_for_our_encoder(seed, ROUNDS)
        encoder = nnr.UpdateEncoder(**rounds.options)
        found |= tools([encoder.encode(tensors) for tensors in rounds.differences])
    wanted = {"temporal_context_modeling_flag", "hist_dep_sig_prob_enabled_flag", "row_skip_enabled_flag", "dq_flag"}
    assert wanted | {"scan_order"} <= found


@pytest.mark.parametrize("dq", [False, True])
@pytest.mark.parametrize("history", [False, True])
def test_five_rounds_with_temporal_contexts(peer: Peer, history: bool, dq: bool) -> None:
    """Temporal contexts for all later updates of tensors, as the encoder writes them with user options."""
    rng = np.random.default_rng(8)
    model = {
        "conv.weight": np.zeros((32, 16, 3, 3), "f4"),
        "conv.bias": np.zeros(32, "f4"),
        "steps": np.zeros(1, "i4"),
        "fc.weight": np.zeros((10, 200), "f4"),
    }
    encoder = nnr.UpdateEncoder(
        qp=-32,
        exact=False,
        temporal_context_modeling=True,
        hist_dep_sig_prob=history,
        dependent_quantization=dq,
        nnr_pre=False,
    )
    streams = []
    for tensors in differences(rng, model, ROUNDS):
        tensors["steps"] = np.array([100], "i4")
        streams.append(encoder.encode(tensors))
    decoder = nnr.UpdateDecoder()
    ours = [dict(decoder.decode(data)) for data in streams]
    for got, want in zip(peer.decode(*streams, history=history), ours, strict=True):
        assert_same_tensors(filled(got, model), filled(want, model))
    found = tools(streams)
    assert "temporal_context_modeling_flag" in found
    assert ("hist_dep_sig_prob_enabled_flag" in found) is history
    assert ("dq_flag" in found) is dq
