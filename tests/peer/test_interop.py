"""NNCodec and nnr_codec decode each other's bitstreams to equal values, for random models and options."""

from __future__ import annotations

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NnrUnitType, PayloadType

from ..arrays import made
from .conftest import Peer, assert_same_tensors
from .models import (
    Case,
    blocks_for_our_encoder,
    blocks_for_the_peer,
    for_our_encoder,
    for_the_peer,
    network_for_our_encoder,
    plain_for_our_encoder,
)

pytestmark = [pytest.mark.medium, pytest.mark.peer]

FAST, MANY = range(40), range(1000, 1100)


def ours_to_the_peer(peer: Peer, case: Case) -> None:
    data = nnr.encode(case.tensors, **case.options)
    got = nnr.decode(data)
    assert {name: (values.dtype, values.shape) for name, values in got.tensors.items()} == {
        name: (values.dtype, values.shape or (1,)) for name, values in case.tensors.items()
    }
    (theirs,) = peer.decode(data)
    assert_same_tensors(theirs, dict(got.tensors))
    for name, values in case.tensors.items():
        if values.dtype.kind == "i":
            np.testing.assert_array_equal(theirs[name], values)


def the_peers_to_us(peer: Peer, case: Case) -> None:
    data = peer.encode(case.tensors, **case.options)
    (theirs,) = peer.decode(data)
    assert_same_tensors(dict(nnr.decode(data, raw=True).tensors), theirs)


@pytest.mark.parametrize("seed", FAST)
def test_the_peer_decodes_ours(peer: Peer, seed: int) -> None:
    ours_to_the_peer(peer, for_our_encoder(seed))


@pytest.mark.parametrize("seed", range(60))
def test_the_peer_decodes_our_exact_codes(peer: Peer, seed: int) -> None:
    ours_to_the_peer(peer, plain_for_our_encoder(seed))


def test_the_exact_codes_are_among_them() -> None:
    """Default options choose codebooks, or steps at which floats are integers, for some tensors."""
    codebooks = steps = 0
    for case in map(plain_for_our_encoder, range(60)):
        file = nnr.open(nnr.encode(case.tensors, **case.options))
        for name, values in case.tensors.items():
            codebook = "codebook" in file.info[name].tools
            is_exact = values.dtype == "f4" and np.array_equal(file[name], values) and values.any()
            codebooks += codebook
            steps += is_exact and not codebook and file.info[name].payload_type == PayloadType.NNR_PT_FLOAT
            assert is_exact or not codebook
    assert codebooks > 5
    assert steps > 10


@pytest.mark.parametrize("kind", ["clustered", "ternary", "pruned", "binary_steps", "grid", "constant"])
def test_models_of_one_kind_to_the_peer(peer: Peer, kind: str) -> None:
    """Tensors are large enough for every code to save bytes, with units before and after."""
    model = {
        "before": made("normal", (20, 33), "float32"),
        "w": made(kind, (200, 150), "float32", 4),
        "conv": made(kind, (32, 16, 3, 3), "float32", 5),
        "bias": made(kind, (200,), "float32", 6),
        "after": made("counting", (7, 3), "int32"),
    }
    if kind == "constant":
        model |= {"w": np.full((200, 150), 0.1, "f4"), "conv": np.full((32, 16, 3, 3), -1, "f4")}
    data = nnr.encode(model)
    (theirs,) = peer.decode(data)
    assert_same_tensors(theirs, dict(nnr.decode(data).tensors))


def test_the_lossless_preset_without_a_record_is_read(peer: Peer) -> None:
    """Only the lossless codes of NNR are used."""
    kinds = ("ternary", "pruned", "binary_steps", "clustered")
    model = {kind: made(kind, (60, 50), "float32", 1) for kind in kinds} | {"i": made("special", (40, 3), "int32")}
    data = nnr.encode(model, exact=True, side_info=False)
    used = nnr.open(data).info
    model = {name: model[name] for name in sorted(model, key=lambda name: "raw" in used[name].tools)}
    (theirs,) = peer.decode(nnr.encode(model, exact=True, side_info=False))
    assert_same_tensors(theirs, model)
    for name, values in model.items():
        assert theirs[name].astype(values.dtype).tobytes() == values.tobytes(), name


@pytest.mark.parametrize("seed", FAST)
def test_we_decode_the_peers(peer: Peer, seed: int) -> None:
    the_peers_to_us(peer, for_the_peer(seed))


@pytest.mark.parametrize("seed", range(20))
def test_we_decode_the_peers_blocks(peer: Peer, seed: int) -> None:
    the_peers_to_us(peer, blocks_for_the_peer(seed))


@pytest.mark.parametrize("seed", range(20))
def test_the_peer_decodes_our_blocks(peer: Peer, seed: int) -> None:
    """The Rec* variables of 7.3.5 are equal; NNCodec does not multiply local scaling into the weight."""
    model, options = blocks_for_our_encoder(seed)
    data = nnr.encode(model, **options)
    (theirs,) = peer.decode(data)
    assert_same_tensors(theirs, dict(nnr.decode(data, raw=True).tensors))
    assert set(theirs) == set(model)


@pytest.mark.parametrize("seed", range(24))
def test_blocks_of_a_graph_to_the_peer(peer: Peer, seed: int) -> None:
    """Blocks with folding and scaling: LS, BI and BN with the first dimension of the weight."""
    model, options = network_for_our_encoder(seed)
    data = nnr.encode(model, **options)
    headers = [unit.ndu for unit in nnr.units(data) if unit.header.nnr_unit_type == NnrUnitType.NNR_NDU]
    assert headers[0].compressed_parameter_types
    (theirs,) = peer.decode(data)
    assert_same_tensors(theirs, dict(nnr.decode(data, raw=True).tensors))
    found = nnr.compare_models(nnr.folded(model, **options), nnr.decode(data, topology=model.topology))
    assert not (found.missing or found.extra or found.shapes)
    assert found.snr > 20


@pytest.mark.slow
@pytest.mark.parametrize("first", range(MANY.start, MANY.stop, 50))
def test_many_more(peer: Peer, first: int) -> None:
    for seed in range(first, first + 50):
        ours_to_the_peer(peer, for_our_encoder(seed))
        ours_to_the_peer(peer, plain_for_our_encoder(seed))
        the_peers_to_us(peer, for_the_peer(seed))
        the_peers_to_us(peer, blocks_for_the_peer(seed))


def test_raw_float_to_the_peer(peer: Peer) -> None:
    """All float32 bit patterns are lossless. NNCodec supports NNR_PT_RAW_FLOAT only as the last unit."""
    values = np.array([0.1, -0.0, 1e-45, 3.4e38, np.inf, -np.inf, 1 / 3, 2.0**-126], "f4")
    for shape in [(8,), (2, 4), (2, 2, 2)]:
        model = {"i": np.arange(6, dtype="i4"), "w": values.reshape(shape)}
        (theirs,) = peer.decode(nnr.encode(model, exact=True, side_info=False))
        assert theirs["w"].tobytes() == values.tobytes()
        assert theirs["w"].shape == shape


def test_integers_at_their_ends_to_the_peer(peer: Peer) -> None:
    values = np.array([2**31 - 1, -(2**31), 0, 1, -1, 2**30], "i4")
    model = {"v": values, "m": values.reshape(2, 3)}
    (theirs,) = peer.decode(nnr.encode(model))
    assert_same_tensors(theirs, model)


def test_the_default_options_are_read(peer: Peer) -> None:
    rng = np.random.default_rng(0)
    model = {
        "conv.weight": rng.normal(0, 0.05, (64, 32, 3, 3)).astype("f4"),
        "conv.bias": rng.normal(0, 1, 64).astype("f4"),
    }
    data = nnr.encode(model)
    (theirs,) = peer.decode(data)
    assert_same_tensors(theirs, dict(nnr.decode(data).tensors))


def test_metadata_and_casts_do_not_keep_the_peer_out(peer: Peer) -> None:
    """A small record is a string, which NNCodec skips."""
    rng = np.random.default_rng(11)
    tensors = {"w": rng.standard_normal((20, 30)).astype("f4"), "mask": rng.integers(0, 2, (4, 5)).astype(bool)}
    data = nnr.encode(nnr.Model(tensors, format="safetensors", metadata={"format": "pt"}))
    ours, (theirs,) = nnr.decode(data), peer.decode(data)
    assert ours.metadata == {"format": "pt"} and ours["mask"].dtype == bool
    assert theirs["w"].tobytes() == ours["w"].tobytes()
    assert np.array_equal(theirs["mask"], tensors["mask"])


@pytest.mark.parametrize("bias", [np.zeros(8, "f4"), np.full(8, 1e-3, "f4"), np.full(2, 0.1, "f4"), np.zeros(1, "f4")])
def test_a_bias_before_a_weight_is_read(peer: Peer, bias: np.ndarray) -> None:
    """Zero and other common biases with default options: NNCodec decodes the units after them."""
    model = {"fc.bias": bias, "fc.weight": np.eye(8, dtype="f4")}
    data = nnr.encode(model)
    (theirs,) = peer.decode(data)
    assert_same_tensors(theirs, dict(nnr.decode(data).tensors))


def test_fixed_point_numbers_to_the_peer(peer: Peer) -> None:
    tensors = {
        "matrix": np.random.default_rng(3).normal(0, 30, (40, 30)).astype("f4"),
        "ends": np.array([-128, 127.99609375, 0, 0.5], "f4"),
        "few": np.tile(np.array([0, 0.25, -7.5, 100], "f4"), (60, 20)),
    }
    data = nnr.encode(tensors, fixed_point="q7.8")
    (theirs,) = peer.decode(data)
    for name, values in tensors.items():
        wanted = np.rint(values.astype("f8") * 256).clip(-32768, 32767) / 256
        assert np.array_equal(theirs[name].reshape(values.shape), wanted)


def test_an_index_is_skipped(peer: Peer) -> None:
    rng = np.random.default_rng(12)
    model = {f"layers.{k}.weight": rng.standard_normal((9, 8)).astype("f4") for k in range(300)}
    data = nnr.encode(model, index=True)
    (theirs,) = peer.decode(data)
    assert_same_tensors(theirs, dict(nnr.decode(data).tensors))
