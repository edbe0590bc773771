"""Batch normalizations of models in updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.errors import EncodeError
from nnr_codec.federated.folding import fold
from nnr_codec.model import Array, Block, Model

from ..arrays import assert_identical
from ..encoder.test_fold import BN, EPSILON, MODEL, TENSORS, TOPOLOGY, C, linear

BLOCK = Block("conv.weight", "conv.bias", "bn.beta", "bn.gamma", "bn.mean", "bn.var", epsilon=EPSILON)


def test_the_network_is_the_same() -> None:
    before = {name: array.copy() for name, array in TENSORS.items()}
    got = fold(MODEL)
    for want, found in zip(linear(TENSORS), linear(got.tensors), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    assert not got["bn.mean"].any() and not got["conv.bias"].any()
    assert (got["bn.var"] == np.float32(1 - EPSILON)).all()
    assert {name: (a.shape, a.dtype) for name, a in got.tensors.items()} == {
        name: (a.shape, a.dtype) for name, a in TENSORS.items()
    }
    for name, array in TENSORS.items():
        assert_identical(array, before[name])
        if name not in (*BN, "conv.bias"):
            assert got[name] is array
    assert (got.topology, got.blocks, got.aliases) == (MODEL.topology, MODEL.blocks, MODEL.aliases)


def test_as_it_is_folded_for_a_bitstream() -> None:
    wanted = nnr.folded(MODEL, fold_batchnorm=True)
    for name, array in fold(MODEL).tensors.items():
        assert_identical(array, wanted[name])


def test_folded_tensors_stay_folded() -> None:
    once = fold(MODEL)
    twice = fold(once)
    for name, array in once.tensors.items():
        assert_identical(twice[name], array)
    trained = {**once.tensors, "bn.mean": np.asarray(once["bn.mean"] + np.float32(0.25))}
    trained["bn.var"] = np.where(np.arange(C) % 2, once["bn.var"], np.float32(4 - EPSILON))
    got = fold(replace(once, tensors=trained))
    halves = np.where(np.arange(C) % 2, 1, 2)
    np.testing.assert_allclose(got["bn.gamma"], once["bn.gamma"] / halves, rtol=1e-6)
    assert not got["bn.mean"].any()


def test_blocks_of_the_model_need_no_topology() -> None:
    got, wanted = fold(Model(dict(TENSORS), blocks=[BLOCK])), fold(MODEL)
    for name in TENSORS:
        assert_identical(got[name], wanted[name])
    assert got.blocks == [BLOCK]


def test_nothing_to_fold() -> None:
    for model in (Model(dict(TENSORS)), Model({"w": np.ones(3, "f4")}, TOPOLOGY)):
        with pytest.raises(EncodeError, match="no batch normalization can be folded"):
            fold(model)
    with pytest.raises(EncodeError, match=r"epsilon of the block of 'conv.weight' is unknown"):
        fold(Model(dict(TENSORS), blocks=[replace(BLOCK, epsilon=None)]))
    negative: dict[str, Array] = {**TENSORS, "bn.var": -TENSORS["bn.var"]}
    with pytest.raises(EncodeError, match="cannot be folded"):
        fold(Model(negative, TOPOLOGY))
