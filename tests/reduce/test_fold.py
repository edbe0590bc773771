"""Folding between other steps: the outputs of the network are the same as with the other steps alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.config import EncoderConfig
from nnr_codec.constants import NNR_CPT_BI, NNR_CPT_DC, NNR_CPT_LS
from nnr_codec.encoder.prepared import Prepared
from nnr_codec.encoder.reduce.fold import Fold
from nnr_codec.encoder.reduce.prune import Prune
from nnr_codec.encoder.reduce.scaling import Scale
from nnr_codec.model import Channels, Slice

from ..encoder.test_blocks import units
from ..encoder.test_fold import BN, MODEL, TENSORS, C, linear

FINE: dict[str, Any] = {"qp": -60}
OTHERS = ("sparsify(ratio=0.4, tensors=*weight)", "unify(ratio=0.3)", "lowrank(rank=4)", "scale(method=gain)", "scale")


def assert_close(got: Any, wanted: Any, tolerance: float) -> None:
    for one, other in zip(linear(got), linear(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("other", OTHERS)
def test_before_and_after_another_step(other: str) -> None:
    alone = nnr.reduce(MODEL, other).model.tensors
    for steps in (f"fold, {other}", f"{other}, fold"):
        found = nnr.reduce(MODEL, steps).model
        assert list(found.tensors) == list(TENSORS)
        assert not found["bn.mean"].any(), steps
        assert_close(found.tensors, alone, 1e-5)
        data = nnr.encode(MODEL, reduce=steps, **FINE)
        assert not nnr.verify(data).violations
        got = nnr.decode(data)
        assert set(got) == set(TENSORS)
        assert_close(got.tensors, alone, 0.05)
        assert nnr.compare_models(found, got).snr > 35 or "scale" in steps
        types, names = units(data)[0]
        assert (types & ~NNR_CPT_DC, names[-2:]) == (NNR_CPT_LS | NNR_CPT_BI, ["bn.gamma", "bn.beta"]), steps


def test_of_three_steps_in_any_order() -> None:
    for steps in permutations(["fold", "sparsify(ratio=0.4, tensors=conv*)", "scale(method=gain)"]):
        found = nnr.reduce(MODEL, ", ".join(steps)).model
        assert (found["conv.weight"] == 0).mean() == pytest.approx(0.4, abs=0.02)
        assert_close(nnr.decode(nnr.encode(MODEL, reduce=", ".join(steps), **FINE)).tensors, found.tensors, 0.05)


def test_a_scale_becomes_part_of_alpha() -> None:
    """Scaling and folding in either order give the same weights, without an added scale."""
    before, after = (
        nnr.reduce(MODEL, steps).model for steps in ("scale(method=gain), fold", "fold, scale(method=gain)")
    )
    assert not np.allclose(before["conv.weight"], TENSORS["conv.weight"], rtol=0.01)
    for name in TENSORS:
        np.testing.assert_allclose(before[name], after[name], rtol=1e-5, atol=1e-7, err_msg=name)
    raw = nnr.decode(nnr.encode(MODEL, reduce="scale(method=gain), fold"), raw=True).tensors
    assert "conv.weight_scaling" not in raw


def test_scales_of_ours_are_pruned_with_their_weights() -> None:
    wiring = formats.wiring(MODEL.topology)  # type: ignore[arg-type]
    parts = [
        Slice("conv.weight", 0, makes=True),
        *(Slice(name, 1) for name in ("conv.bias", *BN)),
        Slice("up.weight", 0),
    ]
    wiring = replace(wiring, channels=(Channels(C, tuple(parts)),))
    coded = replace(MODEL, blocks=list(wiring.blocks))
    start = Prepared(coded, MODEL, wiring, EncoderConfig())
    prune, gain = Prune(ratio=0.25), Scale(method="gain")
    one, other = prune.apply(gain.apply(start)), prune.apply(start)
    assert one.array("conv.weight").shape == (9, 5, 3, 3)
    assert one.array("conv.weight_scaling").shape == (9,)
    for name in TENSORS:
        np.testing.assert_array_equal(one.restored[name], other.restored[name])
    assert "conv.weight_scaling" not in one.restored.tensors
    assert_close(Fold().apply(one).restored.tensors, other.restored.tensors, 1e-5)


def test_tensors_that_steps_leave_alone() -> None:
    rules = (nnr.Rule("bn.beta", reducible=False),)
    with pytest.raises(nnr.EncodeError, match="or a rule keeps it"):
        nnr.encode(MODEL, reduce="fold", rules=rules)
    assert set(BN) < set(nnr.reduce(MODEL, "sparsify(ratio=0.4)", rules=rules).model.tensors)
