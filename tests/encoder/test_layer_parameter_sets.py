"""Layer parameter sets without parts: option layer_parameter_sets (6.2.3, 6.4.4.4)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.performance import SparsificationRow
from nnr_codec.constants import NNR_LPS, NNR_NDU, NNR_QCB, NNR_QSU

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.nnef"
RNG = np.random.default_rng(0)


def normal(scale: float, *shape: int) -> Any:
    """Return normally distributed values in float32."""
    return (RNG.normal(size=shape) * scale).astype(np.float32)


TENSORS = {
    "stem": normal(1, 9, 8),
    "a.0.w": normal(1, 9, 8),
    "b.w": normal(10, 40, 30),
    "a.0.b": normal(0.1, 9),
    "tied": np.zeros(0, np.float32),
    "a.1.w": normal(1e-3, 40, 30),
    "a.1.steps": np.arange(5, dtype=np.int64),
}
FAR = {"a.w": normal(1e-20, 50, 50), "b.w": normal(1e20, 20, 20), "b.b": normal(1e18, 20), "c": normal(1, 5, 5)}


def parameter_sets(data: bytes) -> dict[str, Any]:
    """Return the layer parameter set that applies to each tensor, or None."""
    active: Any = None
    found = dict[str, Any]()
    for unit in nnr.units(data):
        if unit.header.nnr_unit_type == NNR_LPS:
            active = unit.structure
        elif unit.header.nnr_unit_type == NNR_NDU:
            found |= dict.fromkeys(unit.ndu.topology_elem_ids, active)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"indexed_references": True},
        {"max_unit_size": 200},
        {"qp": -20, "qp_density": 0},
        {"quality": 30},
        {"join": ["{stem,a.0.w}"]},
        {"profile": 0},
        {"jobs": 2},
    ],
    ids=str,
)
def test_the_model_is_the_same(options: dict[str, Any]) -> None:
    data = nnr.encode(TENSORS, layer_parameter_sets=True, **options)
    assert nnr.verify(data).violations == nnr.verify(data).warnings == []
    expected = nnr.decode(nnr.encode(TENSORS, **options))
    found = nnr.decode(data)
    assert set(found) == set(expected)
    stream = nnr.StreamDecoder()
    parts = dict(item for start in range(0, len(data), 99) for item in stream.feed(data[start : start + 99]))
    stream.finish()
    for name in expected:
        array = expected[name]
        assert (found[name].dtype, found[name].tobytes()) == (array.dtype, array.tobytes())
        assert name not in parts or parts[name].tobytes() == array.tobytes()


def test_each_layer_has_a_set_and_decodes_alone() -> None:
    data = nnr.encode(TENSORS, layer_parameter_sets=True)
    sets, whole, layers = parameter_sets(data), nnr.decode(data), []
    for unit in nnr.units(data):
        if unit.header.nnr_unit_type == NNR_LPS:
            layer = nnr.extract(data, unit.index)
            assert not nnr.verify(layer).violations
            model = nnr.decode(layer)
            assert all(model[name].tobytes() == whole[name].tobytes() for name in model)
            layers.append(sorted(model))
    assert layers == [["stem"], ["a.0.b", "a.0.w"], ["b.w"], ["a.1.steps", "a.1.w"]]
    large = {name: own.lps_quantization_parameter for name, own in sets.items() if own and name in ("b.w", "a.1.w")}
    assert large["a.1.w"] < large["b.w"]  # of the layer's own scale


def test_tensors_out_of_reach_of_one_base_are_quantized() -> None:
    data = nnr.encode(FAR, layer_parameter_sets=True)
    assert nnr.verify(data).violations == []
    found = nnr.decode(data)
    for name, array in FAR.items():
        error = abs(found[name].astype(np.float64) - array).max()
        assert 0 < error < 0.02 * abs(array).max()
    with pytest.warns(nnr.EncodeWarning, match="'b.b' and 1 more: the step size is too far .*layer_parameter_sets"):
        alone = nnr.encode(FAR)
    assert len(alone) > len(data)
    assert nnr.decode(alone)["b.w"].tobytes() == FAR["b.w"].tobytes()


def test_tensors_of_a_block_that_is_divided_stay_in_reach() -> None:
    """The weight of a block is out of reach in its layer, so its bias is in a layer of its own."""
    weight, bias, large = normal(1e-20, 2000, 4), normal(1e20, 2000), normal(1e20, 300, 400)
    model = nnr.Model({"a.w": weight, "far.b": bias, "a.large": large}, blocks=[nnr.Block("a.w", bias="far.b")])
    data = nnr.encode(model, layer_parameter_sets=True, block=None)
    assert not nnr.verify(data).violations
    found, sets = nnr.decode(data), parameter_sets(data)
    assert found["a.w"].tobytes() == weight.tobytes()
    assert 0 < abs(found["far.b"] - bias).max() < 1e18
    assert sets["far.b"] != sets["a.w"]


def test_sets_have_the_methods_reductions_and_maps_of_their_tensors() -> None:
    maps = nnr.PerformanceMaps(nnr.SparsificationMap((SparsificationRow(0.5, 0.25, 0.75),)))
    rules = [nnr.Rule("b.*", codebook=8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnr.LossWarning)
        data = nnr.encode(
            TENSORS,
            layer_parameter_sets=True,
            rules=rules,
            performance=nnr.Performance(layers={"b": maps}),
            reduce="sparsify(ratio=0.2, tensors=a.*), unify(ratio=0.2, tensors=a.1.*)",
        )
    assert nnr.verify(data).violations == nnr.verify(data).warnings == []
    sets = {name: own for name, own in parameter_sets(data).items() if own}
    flags = {
        name: (own.lps_sparsification_flag, own.lps_pruning_flag, own.lps_unification_flag)
        for name, own in sets.items()
    }
    assert flags == {
        "stem": (0, 0, 0),
        **dict.fromkeys(("a.0.w", "a.0.b"), (1, 0, 0)),
        "b.w": (1, 0, 0),
        **dict.fromkeys(("a.1.w", "a.1.steps"), (1, 0, 1)),
    }
    assert sets["b.w"].lps_quantization_method_flags == NNR_QSU | NNR_QCB
    assert sets["stem"].lps_quantization_method_flags == NNR_QSU
    with nnr.open(data) as file:
        assert file.performance_of("b.w") == maps


def test_a_pruned_layer_is_marked() -> None:
    data = nnr.encode(DIGITS, layer_parameter_sets=True, reduce="prune(ratio=0.3, tensors=conv2/*)")
    pruned = {name for name, own in parameter_sets(data).items() if own and own.lps_pruning_flag}
    assert {"conv2/weight", "bn2/mean", "fc1/weight"} <= pruned
    assert "conv1/weight" not in pruned
    assert not nnr.verify(data).violations


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"layer_parameter_sets": 1}, "true or false"),
        ({"layer_parameter_sets": True, "parts": "layers"}, "each part has a layer parameter set"),
        ({"layer_parameter_sets": True, "performance": nnr.Performance(layers={"c": nnr.PerformanceMaps()})}, "'c'"),
    ],
)
def test_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(nnr.EncodeError, match=match):
        nnr.encode(TENSORS, **options)


def test_updates_have_no_layer_parameter_sets() -> None:
    with pytest.raises(nnr.EncodeError, match="whole models only"):
        nnr.encode_update(TENSORS, TENSORS, layer_parameter_sets=True)
