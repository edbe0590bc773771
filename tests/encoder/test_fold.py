"""Blocks of a topology: recognized, folded, scaled, and restored by decoders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_CPT_BI, NNR_CPT_BN, NNR_CPT_LS, NNR_MPS, NNR_NDU, NNR_QNT, NNR_TPL
from nnr_codec.model import Array, Block, Model, Topology

from .test_blocks import units

RNG = np.random.default_rng(8)
C = 12
EPSILON = 0.001
BN = ("bn.mean", "bn.var", "bn.beta", "bn.gamma")

GRAPH = f"""version 1.0;
graph net(x) -> (y, z)
{{
    x = external<scalar>(shape = [1, 5, 6, 6]);
    w = variable<scalar>(shape = [{C}, 5, 3, 3], label = 'conv.weight');
    b = variable<scalar>(shape = [1, {C}], label = 'conv.bias');
    c = conv(x, w, b, stride = [1, 1], dilation = [1, 1], padding = [], border = 'constant');
    mean = variable<scalar>(shape = [1, {C}], label = 'bn.mean');
    var = variable<scalar>(shape = [1, {C}], label = 'bn.var');
    beta = variable<scalar>(shape = [1, {C}], label = 'bn.beta');
    gamma = variable<scalar>(shape = [1, {C}], label = 'bn.gamma');
    y = batch_normalization(c, mean, var, beta, gamma, epsilon = {EPSILON});
    up = variable<scalar>(shape = [{C}, 7, 2, 2], label = 'up.weight');
    up_b = variable<scalar>(shape = [1, 7], label = 'up.bias');
    z = deconv(y, up, up_b, stride = [2, 2], dilation = [1, 1], padding = [], border = 'constant');
}}
"""
TOPOLOGY = Topology("nnef", GRAPH.encode())


def vector(n: int = C, low: float = -0.5, high: float = 0.5) -> Array:
    return RNG.uniform(low, high, (1, n)).astype("f4")


TENSORS: dict[str, Array] = {
    "conv.weight": (RNG.normal(0, 0.1, (C, 5, 3, 3)) * np.geomspace(0.2, 3, C)[:, None, None, None]).astype("f4"),
    "conv.bias": vector(),
    "bn.mean": vector(),
    "bn.var": vector(low=0.01, high=4),
    "bn.beta": vector(),
    "bn.gamma": vector(low=0.1, high=2),
    "up.weight": RNG.normal(0, 0.1, (C, 7, 2, 2)).astype("f4"),
    "up.bias": vector(7),
}
MODEL = Model(TENSORS, TOPOLOGY)


def headers(data: bytes) -> dict[str, Any]:
    """Return headers of the compressed data units, by their first names."""
    found = [unit.ndu for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU]
    return {str(header.topology_elem_ids[0]): header for header in found}


def linear(tensors: Mapping[str, Array]) -> tuple[Any, Any]:
    """Return factor and offset of the convolution with its batch normalization, in float64."""
    value = {name: np.asarray(array, "f8") for name, array in tensors.items()}
    alpha = (value["bn.gamma"] / np.sqrt(value["bn.var"] + EPSILON)).reshape(-1)
    delta = (value["conv.bias"] - value["bn.mean"]).reshape(-1) * alpha + value["bn.beta"].reshape(-1)
    return value["conv.weight"] * alpha[:, None, None, None], delta


# ------------------------------------------------------------------------------------------------ blocks
def test_blocks_are_recognised() -> None:
    data = nnr.encode(MODEL, block=True)
    weight, bias = ["conv.weight", "bn.beta", "bn.gamma", "bn.mean", "bn.var", "conv.bias"], ["up.weight", "up.bias"]
    assert units(data) == [(NNR_CPT_BN | NNR_CPT_BI, weight), (NNR_CPT_BI, bias)]
    got, plain = nnr.decode(data), nnr.decode(nnr.encode(MODEL))
    assert {name: array.shape for name, array in got.tensors.items()} == {n: a.shape for n, a in TENSORS.items()}
    found, usual = nnr.compare_models(MODEL, got), nnr.compare_models(MODEL, plain)
    for name in TENSORS:
        assert found.tensors[name].largest <= 2 * usual.tensors[name].largest, name
    assert not any(header.compressed_parameter_types for header in headers(nnr.encode(MODEL)).values())


@pytest.mark.parametrize("options", [{}, {"scan_order": 1, "row_skipping": True}, {"dependent_quantization": False}])
def test_a_dimension_that_is_not_the_first(options: dict[str, Any]) -> None:
    """It is coded first: in tensor_dimensions, and for the lengths of vectors (4.12, 7.3.5)."""
    data = nnr.encode(MODEL, block=True, **options)
    header = headers(data)["up.weight"]
    assert header.first_tensor_dimension_shift == 1
    assert list(header.tensor_dimensions) == [7, C, 2, 2]
    got = nnr.decode(data)
    assert np.abs(got["up.weight"].astype("f8") - TENSORS["up.weight"]).max() <= 2.0**-9
    assert np.abs(got["up.bias"].astype("f8") - TENSORS["up.bias"]).max() <= 2.0**-9
    assert nnr.open(data).info["up.weight"].shape == (C, 7, 2, 2)


def test_estimates_of_a_dimension_that_is_not_the_first() -> None:
    """They are estimates of the coded tensors."""
    w, b = RNG.normal(0, 0.1, (40, 30, 5)) * np.geomspace(0.01, 2, 30)[:, None], np.ones(30, "f4")
    turned = Model({"w": np.moveaxis(w, 1, 0).astype("f4"), "b": b}, blocks=[Block("w", bias="b")])
    model = Model({"w": w.astype("f4"), "b": b}, blocks=[Block("w", bias="b", axis=1)])
    found, wanted = (nnr.estimate(each).tensors["w"].unit_bytes for each in (model, turned))
    assert found == wanted


def test_a_dimension_of_a_block_of_the_callers() -> None:
    w, b = RNG.normal(0, 0.1, (3, 4, 5)).astype("f4"), np.ones(5, "f4")
    model = Model({"w": w, "b": b}, blocks=[Block("w", bias="b", axis=2)])
    data = nnr.encode(model)
    assert units(data) == [(NNR_CPT_BI, ["w", "b"])]
    got = nnr.decode(data)
    assert np.abs(got["w"].astype("f8") - w).max() <= 2.0**-9
    scaled = nnr.decode(nnr.encode(Model({"w": w, "s": 2 * b}, blocks=[Block("w", scale="s", axis=2)])))
    assert np.abs(scaled["w"].astype("f8") - 2 * w).max() <= 2.0**-8
    with pytest.raises(nnr.EncodeError, match="the block of 'w' has axis 3, but the tensor has 3 dimensions"):
        nnr.encode(replace(model, blocks=[Block("w", bias="b", axis=3)]))
    for options in ({}, {"scan_order": 2}):
        assert units(nnr.encode(model, profile=0, **options)) == [(0, ["w"]), (0, ["b"])]  # which has no such shift
    with pytest.raises(
        nnr.EncodeError, match="another order, which profile 0 cannot represent, but it belongs to a block"
    ):
        nnr.encode(Model({"w": w, "s": b}, blocks=[Block("w", scale="s", axis=2)]), profile=0)
    g = np.ones((5, 5), "f4")
    with pytest.raises(nnr.EncodeError, match="axis 1; the axis of a product must be 0"):
        nnr.encode(Model({"g": g, "h": g, "b": b}, blocks=[Block("w", bias="b", g="g", h="h", axis=1)]))


def test_what_errors_cost_follows_the_dimension() -> None:
    """Sensitivities have the shape of the tensor, whichever dimension is coded first."""
    costs = np.ones((C, 7, 2, 2))
    costs[:, 3] = 1000
    options: dict[str, Any] = {"qp": -20, "block": True, "rate": 2.0}
    plain, known = (nnr.decode(nnr.encode(MODEL, sensitivity=s, **options)) for s in ({}, {"up.weight": costs}))
    before, after = ((m["up.weight"].astype("f8") - TENSORS["up.weight"])[:, 3] for m in (plain, known))
    assert (after**2).mean() < 0.8 * (before**2).mean()
    moments = np.eye(28)
    assert nnr.decode(nnr.encode(MODEL, hessians={"up.weight": moments}, **options)).tensors.keys() == TENSORS.keys()


def test_blocks_of_the_model_come_first() -> None:
    """Blocks of the topology that share tensors with them, or that lack tensors, are ignored."""
    model = replace(MODEL, blocks=[Block("conv.weight", beta="bn.beta")])
    assert list(headers(nnr.encode(model, block=True))) == [*TENSORS][:-1]
    tensors = {name: array for name, array in TENSORS.items() if name != "up.bias"}
    found = headers(nnr.encode(replace(MODEL, tensors=tensors), block=True))
    assert found["conv.weight"].compressed_parameter_types
    assert not found["up.weight"].compressed_parameter_types


def test_tied_tensors_are_in_no_block() -> None:
    """A tie takes fewer bytes."""
    model = replace(MODEL, tensors={**TENSORS, "bn.beta": TENSORS["bn.mean"].copy()}, aliases={"bn.beta": "bn.mean"})
    data = nnr.encode(model, block=True)
    found = headers(data)
    assert not found["conv.weight"].compressed_parameter_types
    assert found["up.weight"].compressed_parameter_types
    assert "bn.beta" not in found
    assert nnr.open(data).info["bn.beta"].same_as == "bn.mean"


@pytest.mark.parametrize("types", [0, NNR_CPT_BI, NNR_CPT_BN, NNR_CPT_LS | NNR_CPT_BN])
def test_what_blocks_may_have(types: int) -> None:
    found = headers(nnr.encode(MODEL, block=True, compressed_parameter_types=types))
    assert found["conv.weight"].compressed_parameter_types == types & ~NNR_CPT_LS
    assert ("conv.bias" in found) == (not types & NNR_CPT_BI)


def test_a_scale_that_blocks_may_not_have() -> None:
    model = Model({"w": np.eye(4, dtype="f4"), "s": np.ones(4, "f4")}, blocks=[Block("w", scale="s")])
    with pytest.raises(nnr.EncodeError, match="'s' is not among compressed_parameter_types"):
        nnr.encode(model, compressed_parameter_types=NNR_CPT_BN)


def test_members_come_out_as_declared() -> None:
    """Otherwise they have separate units, as without a topology."""
    flat = {name: array.reshape(-1) if array.ndim == 2 else array for name, array in TENSORS.items()}
    for model in (replace(MODEL, tensors=flat), replace(MODEL, topology=None, blocks=[Block("up.weight", "up.bias")])):
        got = nnr.decode(nnr.encode(model, block=True))
        assert {name: got[name].shape for name in model} == {name: model[name].shape for name in model}


# ------------------------------------------------------------------------------------------------ folding
def test_folding() -> None:
    """8.2.1: alpha and delta are coded under the names of gamma and beta; the other tensors follow from them."""
    data = nnr.encode(MODEL, fold_batchnorm=True)
    assert units(data)[0] == (NNR_CPT_LS | NNR_CPT_BI, ["conv.weight", "bn.gamma", "bn.beta"])
    folded, got = nnr.folded(MODEL, fold_batchnorm=True), nnr.decode(data)
    for model in (folded, got):
        assert set(model) == set(TENSORS)
        assert not model["bn.mean"].any()
        assert not model["conv.bias"].any()
        np.testing.assert_array_equal(model["bn.var"], np.full((1, C), 1 - EPSILON, "f4"))
    for before, after in zip(linear(TENSORS), linear(folded.tensors), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(folded["conv.weight"], TENSORS["conv.weight"])
    found = nnr.compare_models(folded, got)
    assert not found.missing
    assert not found.shapes
    assert found.tensors["bn.gamma"].snr > 60
    assert len(data) < len(nnr.encode(MODEL))
    assert folded.blocks == []
    again = nnr.folded(folded, fold_batchnorm=True)
    np.testing.assert_allclose(again["bn.gamma"], folded["bn.gamma"], rtol=1e-6)


def test_folding_needs_no_record() -> None:
    assert nnr.encode(MODEL, fold_batchnorm=True, side_info=False) == nnr.encode(MODEL, fold_batchnorm=True)


@pytest.mark.medium
@pytest.mark.parametrize(
    "options",
    [
        {"rules": (nnr.Rule("bn.beta", codebook=3, fine_vectors=False),)},
        {"rules": (nnr.Rule("up.*", exact=True),)},
        {"overrides": {"conv.weight": {"exact": True}}},
        {"max_error": 0.01},
        {"snr": 45.0},
        {"quality": 35.0},
        {"target_ratio": 0.3},
        {"indexed_references": True},
        {"local_scaling": True},
        {"local_scaling": True, "target_ratio": 0.3},
        {"profile": 0, "dependent_quantization": False},
        {"topology": "external"},
    ],
    ids=str,
)
def test_folding_with_other_options(tmp_path: Path, options: dict[str, Any]) -> None:
    """Tensors that do not fit the unit have separate units, and are decoded."""
    report = nnr.encode_file(MODEL, tmp_path / "x.nnr", fold_batchnorm=True, statistics=True, **options)
    got = nnr.decode(tmp_path / "x.nnr", topology=TOPOLOGY)
    folded = nnr.folded(MODEL, fold_batchnorm=True, **options)
    found = nnr.compare_models(folded, got)
    assert not found.missing
    assert not found.extra
    assert not found.shapes
    assert found.snr > 25
    assert set(report.tensors) == set(TENSORS)
    assert report.source_bytes == sum(array.nbytes for array in TENSORS.values())
    assert report.difference.tensors == found.tensors
    estimate = nnr.estimate(MODEL, fold_batchnorm=True, **options)
    assert set(estimate.tensors) == set(TENSORS)
    assert 0.9 < estimate.nbytes / report.nbytes < 1.1
    if "target_ratio" in options:
        assert 0.29 < report.ratio <= 0.3


def test_values_that_do_not_follow_are_coded() -> None:
    """The caller names gamma and beta as scale and bias of a block whose other tensors decoders cannot recreate."""
    block = Block("conv.weight", bias="bn.beta", scale="bn.gamma")
    got = nnr.decode(nnr.encode(replace(MODEL, blocks=[block])))
    found = nnr.compare_models(MODEL, got)
    assert not found.missing
    assert found.snr > 30
    folded = nnr.folded(MODEL, fold_batchnorm=True)
    data = nnr.encode(replace(folded, blocks=[block]))
    assert units(data)[0][0] == NNR_CPT_LS | NNR_CPT_BI
    assert "bn.mean" not in headers(data)
    assert nnr.compare_models(folded, nnr.decode(data)).snr > 30


def upper(*names: str) -> dict[str, str]:
    return {name: name.upper() for name in names}


@pytest.mark.parametrize(
    ("spelled", "lacking", "others", "types"),
    [
        ({}, (), [], NNR_CPT_LS | NNR_CPT_BI),
        ({}, (), [Block("up.weight", bias="bn.mean")], NNR_CPT_LS),
        ({}, ("bn.var",), [], NNR_CPT_LS),
        (upper("conv.weight", "bn.gamma", "bn.beta"), (), [], NNR_CPT_LS | NNR_CPT_BI),
        (upper(*TENSORS), (), [], NNR_CPT_LS),
    ],
    ids=["as they are", "other block", "missing", "some upper", "upper"],
)
def test_what_decoders_would_make_others_of(
    spelled: Mapping[str, str], lacking: tuple[str, ...], others: list[Block], types: int
) -> None:
    """Scale and bias are separate where decoders would recreate tensors that are absent, equal or spelled otherwise."""
    names = {name: spelled.get(name, name) for name in TENSORS}
    block = Block(names["conv.weight"], bias=names["bn.beta"], scale=names["bn.gamma"])
    folded = nnr.folded(replace(MODEL, tensors={**TENSORS, "up.bias": vector(C)}), fold_batchnorm=True)
    tensors = {names[name]: array for name, array in folded.tensors.items() if name not in lacking}
    if others:
        tensors["up.weight"] = np.ones((C, 2), "f4")
    model = replace(folded, tensors=tensors, blocks=[block, *others])
    data = nnr.encode(model)
    assert headers(data)[names["conv.weight"]].compressed_parameter_types == types
    found = nnr.compare_models(model, nnr.decode(data, allow_missing=True))
    assert not found.missing
    assert not found.extra
    assert found.snr > 30


def test_lazy_tensors_are_not_kept() -> None:
    """Weights are read when they are coded, scaled or not."""
    read: list[str] = []

    class Lazy(Mapping[str, Array]):
        def __getitem__(self, name: str) -> Array:
            read.append(name)
            return TENSORS[name]

        def __contains__(self, name: object) -> bool:
            return name in TENSORS

        def __iter__(self) -> Iterator[str]:
            return iter(TENSORS)

        def __len__(self) -> int:
            return len(TENSORS)

    options: dict[str, Any]
    for options in ({"fold_batchnorm": True, "qp": -28}, {"local_scaling": True, "qp": -28}):
        read.clear()
        data = nnr.encode(Model(Lazy(), TOPOLOGY), **options)
        assert read.count("conv.weight") == (2 if "local_scaling" in options else 1)
        assert data == nnr.encode(MODEL, **options)
        assert data == nnr.encode(Model(Lazy(), TOPOLOGY), jobs=3, **options)


def test_tuning() -> None:
    def score(model: Model) -> float:
        weight, delta = linear(model.tensors)
        before = linear(TENSORS)
        return -float(((weight - before[0]) ** 2).mean() + ((delta - before[1]) ** 2).mean())

    found = nnr.tune(MODEL, score, tolerance=1e-4, budget=12, fold_batchnorm=True, local_scaling=True)
    assert found.reference == 0
    assert -1e-4 <= found.score < 0
    data = nnr.encode(MODEL, found.config)
    assert len(data) == found.nbytes < len(nnr.encode(MODEL))
    assert score(nnr.decode(data)) == found.score


def without(*names: str) -> Model:
    """Return the model with some tensors of batch normalization as constants in the graph."""
    text = GRAPH
    for name in names:
        variable = name.removeprefix("bn.")
        lines = text.splitlines()
        text = "\n".join(line for line in lines if not line.strip().startswith(f"{variable} =")) + "\n"
        text = text.replace(f", {variable},", ", 1.0,")
    return Model({n: a for n, a in TENSORS.items() if n not in names}, Topology("nnef", text.encode()))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            Model({"w": np.eye(3)}),
            {},
            "no batch normalization can be folded: the model has no graph",
        ),
        (without("bn.gamma"), {}, "can be folded: the block of 'conv.weight' has no batch normalization"),
        (
            Model(TENSORS, blocks=[Block("conv.weight", beta="bn.beta", gamma="bn.gamma")]),
            {},
            "can be folded: the block of 'conv.weight' has no mean, var",
        ),
        (
            Model(TENSORS, blocks=[Block("conv.weight", None, *(BN[k] for k in (2, 3, 0, 1)))]),
            {},
            "can be folded: the epsilon of the block of 'conv.weight' is unknown",
        ),
        (
            Model(TENSORS, blocks=[Block("conv.weight", None, *(BN[k] for k in (2, 3, 0, 1)), epsilon=0.1)]),
            {},
            "is not defined by the topology, so decoders do not know it",
        ),
        (MODEL, {"rules": (nnr.Rule("bn.*", exact=True),)}, "is tied to another one, or a rule keeps it"),
        (replace(MODEL, aliases={"up.bias": "bn.var"}), {}, "is tied to another one, or a rule keeps it"),
        (Model({**TENSORS, "bn.var": -TENSORS["bn.var"]}, TOPOLOGY), {}, "with 'bn.var' and epsilon 0.001, 'bn.gamma'"),
        (Model({**TENSORS, "bn.mean": TENSORS["bn.mean"] * np.nan}, TOPOLOGY), {}, "'bn.beta' has no finite values"),
        (Model({**TENSORS, "bn.mean": TENSORS["bn.mean"][:, 1:]}, TOPOLOGY), {}, "differ in size, or are not floats"),
        (
            Model(
                {n: a for n, a in TENSORS.items() if n != "bn.var"},
                TOPOLOGY,
                [Block("conv.weight", "conv.bias", *(BN[k] for k in (2, 3, 0, 1)), epsilon=EPSILON)],
            ),
            {},
            "the model lacks a tensor of the block of 'conv.weight'",
        ),
        (
            Model(TENSORS, Topology("nnef", GRAPH.replace(str(EPSILON), "1e39").encode())),
            {},
            r"epsilon 1e\+39, 'bn.var' has no finite values",
        ),
    ],
)
def test_what_cannot_be_folded(model: Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.encode(model, fold_batchnorm=True, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"fold_batchnorm": True, "exact": True},
            "exact=True keeps every bit, so fold_batchnorm has no effect",
        ),
        ({"local_scaling": True, "exact": True}, "so local_scaling has no effect"),
        (
            {"fold_batchnorm": True, "compressed_parameter_types": NNR_CPT_LS | NNR_CPT_BN},
            "fold_batchnorm requires",
        ),
        ({"local_scaling": True, "compressed_parameter_types": NNR_CPT_BN}, "local_scaling requires 2"),
        ({"compressed_parameter_types": 1}, "compressed_parameter_types 1 is not a sum of 2, 4 and 8"),
        ({"compressed_parameter_types": -2}, "is not a sum"),
        ({"compressed_parameter_types": "2"}, "must be an integer"),
        ({"block": 1}, "block must be true, false or None"),
        ({"topology": "apart"}, "topology must be carried or external, got 'apart'"),
        ({"topology": None}, "topology must be carried or external, got None"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.EncoderConfig(**options)


# ------------------------------------------------------------------------------------------------ local scaling
def test_scaling() -> None:
    """The tensors are the same; errors are smaller where the batch normalization amplifies them."""
    data = nnr.encode(MODEL, local_scaling=True)
    names = ["conv.weight", "conv.weight_scaling", "bn.beta", "bn.gamma", "bn.mean", "bn.var", "conv.bias"]
    assert units(data)[0] == (NNR_CPT_LS | NNR_CPT_BN | NNR_CPT_BI, names)
    assert headers(data)["up.weight"].compressed_parameter_types == NNR_CPT_BI
    got = nnr.decode(data)
    found = nnr.compare_models(MODEL, got)
    assert not found.missing
    assert not found.extra
    assert nnr.folded(MODEL, local_scaling=True).tensors.keys() == TENSORS.keys()
    blocks = nnr.compare_models(MODEL, nnr.decode(nnr.encode(MODEL, block=True)))
    before, after = blocks.tensors["conv.weight"].snr, found.tensors["conv.weight"].snr
    assert abs(after - before) < 6
    raw = nnr.decode(data, raw=True)
    scale, gain = raw["conv.weight_scaling"].astype("f8"), linear(TENSORS)[0] / TENSORS["conv.weight"]
    rms = np.sqrt((TENSORS["conv.weight"].astype("f8").reshape(C, -1) ** 2).mean(1))
    ratio = scale / np.sqrt(rms / gain[:, 0, 0, 0])
    np.testing.assert_allclose(ratio, ratio[0], rtol=0.02)
    powers = [float((np.asarray(w, "f8") ** 2).sum()) for w in (raw["conv.weight"], TENSORS["conv.weight"])]
    assert 0.98 < powers[0] / powers[1] < 1.02  # so step sizes are unchanged


def test_estimates_of_scaled_tensors(tmp_path: Path) -> None:
    weight = (RNG.normal(0, 1, (C, 50, 3, 3)) * np.geomspace(1e-3, 10, C)[:, None, None, None]).astype("f4")
    gamma = np.geomspace(10, 0.001, C, dtype="f4")[None]
    text = GRAPH.replace(f"[{C}, 5, 3, 3]", f"[{C}, 50, 3, 3]")
    model = Model({**TENSORS, "conv.weight": weight, "bn.gamma": gamma}, Topology("nnef", text.encode()))
    for options in ({"local_scaling": True}, {"block": True}):
        report = nnr.encode_file(model, tmp_path / "x.nnr", overwrite=True, **options)
        assert 0.98 < nnr.estimate(model, **options).nbytes / report.nbytes < 1.02


def test_a_target_with_scaling() -> None:
    """A ratio is relative to the model's tensors, without added scales."""
    for ratio in (0.2, 0.25, 0.3):
        data = nnr.encode(MODEL, local_scaling=True, target_ratio=ratio)
        assert 0.98 * ratio < len(data) / sum(array.nbytes for array in TENSORS.values()) <= ratio


def test_scaling_of_folded_tensors() -> None:
    """The scale is part of gamma; decoders multiply nothing."""
    data = nnr.encode(MODEL, local_scaling=True, fold_batchnorm=True)
    assert units(data)[0] == (NNR_CPT_LS | NNR_CPT_BI, ["conv.weight", "bn.gamma", "bn.beta"])
    folded = nnr.folded(MODEL, local_scaling=True, fold_batchnorm=True)
    assert nnr.compare_models(folded, nnr.decode(data)).snr > 30
    assert not np.array_equal(folded["conv.weight"], TENSORS["conv.weight"])
    for before, after in zip(linear(TENSORS), linear(folded.tensors), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


def test_scaling_by_a_scale_of_the_topology() -> None:
    """Existing local scaling of the network includes the factors."""
    text = GRAPH.replace("c = conv(x, w, b,", "d = conv(x, w, 0.0,").replace(
        "    mean =",
        f"    s = variable<scalar>(shape = [1, {C}], label = 'conv.scale');\n    e = mul(d, s);\n"
        "    c = add(e, b);\n    mean =",
        1,
    )
    tensors = {**TENSORS, "conv.scale": vector(low=0.5, high=2)}
    model = Model(tensors, Topology("nnef", text.encode()))
    plain = nnr.encode(model, block=True)
    types, names = units(plain)[0]
    assert types == NNR_CPT_LS | NNR_CPT_BN | NNR_CPT_BI
    assert names[1] == "conv.scale"
    found = nnr.compare_models(model, nnr.decode(plain))
    assert not found.missing
    assert found.snr > 30
    with pytest.raises(nnr.EncodeError, match="has its own scale"):
        nnr.encode(model, fold_batchnorm=True)
    scaled = nnr.folded(model, local_scaling=True)
    assert set(scaled) == set(tensors)
    products = [m["conv.weight"] * m["conv.scale"].reshape(-1, 1, 1, 1) for m in (model, scaled)]
    assert not np.array_equal(scaled["conv.scale"], tensors["conv.scale"])
    np.testing.assert_allclose(products[1], products[0], rtol=1e-6)
    factors = (scaled["conv.scale"] / tensors["conv.scale"]).reshape(-1).astype("f8")
    gain = (linear(TENSORS)[0] / TENSORS["conv.weight"])[:, 0, 0, 0] * tensors["conv.scale"].reshape(-1)
    ratio = factors / np.sqrt(np.sqrt((TENSORS["conv.weight"].astype("f8").reshape(C, -1) ** 2).mean(1)) / gain)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)
    assert nnr.compare_models(scaled, nnr.decode(nnr.encode(model, local_scaling=True))).snr > 30


@pytest.mark.parametrize(
    "model",
    [
        Model({**TENSORS, "conv.weight_scaling": np.ones(3, "f4")}, TOPOLOGY),
        Model({**TENSORS, "conv.weight": TENSORS["conv.weight"] * 0}, TOPOLOGY),
        Model({**TENSORS, "conv.weight": TENSORS["conv.weight"] * np.nan}, TOPOLOGY),
        Model({**TENSORS, "conv.weight": TENSORS["conv.weight"].astype("i4")}, TOPOLOGY),
        Model({**TENSORS, "bn.var": TENSORS["bn.var"] * -1}, TOPOLOGY),
        Model({**TENSORS, "bn.gamma": TENSORS["bn.gamma"] * 0}, TOPOLOGY),
        Model({**TENSORS, "bn.var": TENSORS["bn.var"].astype("i4")}, TOPOLOGY),
        Model({name: array.astype("f2") for name, array in TENSORS.items()}, TOPOLOGY),
        Model(
            {name: array for name, array in TENSORS.items() if name != "bn.var"},
            TOPOLOGY,
            [Block("conv.weight", scale="bn.gamma")],
        ),
    ],
    ids=["name", "zeros", "nan", "integers", "variance", "gamma", "type", "float16", "missing"],
)
def test_tensors_that_are_not_scaled(model: Model) -> None:
    assert nnr.encode(model, local_scaling=True) == nnr.encode(model, block=True)


@pytest.mark.parametrize(
    "options",
    [
        {"rules": (nnr.Rule("conv.*", exact=True),)},
        {"sensitivity": {"conv.weight": 2.0}},
        {"hessians": {"conv.weight": np.eye(45)}},
        {"rules": (nnr.Rule("conv.weight", codebook=9),)},
        {"rules": (nnr.Rule("conv.weight", snr=30),)},
        {"max_error": 0.01},
        {"indexed_references": True},  # whose list has labels of the topology only (A.4)
    ],
    ids=str,
)
def test_options_that_leave_weights_as_they_are(options: dict[str, Any]) -> None:
    assert nnr.encode(MODEL, local_scaling=True, **options) == nnr.encode(MODEL, block=True, **options)


def test_values_that_scaling_would_make_too_large() -> None:
    values = TENSORS["conv.weight"].astype("f8")
    weight = (values * (3.3e38 / np.abs(values).max())).astype("f4")
    row, gamma = np.unravel_index(np.abs(weight).argmax(), weight.shape)[0], TENSORS["bn.gamma"].copy()
    gamma[0, row] *= 100
    model = Model({**TENSORS, "conv.weight": weight, "bn.gamma": gamma}, TOPOLOGY)
    np.testing.assert_array_equal(nnr.folded(model, local_scaling=True, fold_batchnorm=True)["conv.weight"], weight)
    smaller = replace(model, tensors={**model.tensors, "conv.weight": weight * np.float32(0.01)})
    assert nnr.encode(smaller, local_scaling=True) == nnr.encode(smaller, block=True)
    assert nnr.estimate(smaller, local_scaling=True).nbytes == nnr.estimate(smaller, block=True).nbytes


def test_scales_that_a_unit_cannot_hold() -> None:
    """If the topology has none, a weight need not be scaled."""
    text = GRAPH.replace("z = deconv(", "u = deconv(").replace(
        "}\n",
        "".join(
            f"    up_{name} = variable<scalar>(shape = [1, 7], label = 'up.{name}');\n"
            for name in ("mean", "var", "beta", "gamma")
        )
        + "    z = batch_normalization(u, up_mean, up_var, up_beta, up_gamma, epsilon = 0.1);\n}\n",
    )
    more = {f"up.{name}": vector(7, 0.5, 1) for name in ("mean", "var", "beta", "gamma")}
    model = Model({**TENSORS, **more}, Topology("nnef", text.encode()))
    assert "up.weight_scaling" in nnr.decode(nnr.encode(model, local_scaling=True), raw=True).tensors
    data = nnr.encode(model, local_scaling=True, profile=0)  # which has no order of dimensions
    raw = nnr.decode(data, raw=True).tensors
    assert "conv.weight_scaling" in raw
    assert not headers(data)["up.weight"].compressed_parameter_types
    for name in ("up.weight", *more):
        np.testing.assert_array_equal(raw[name], nnr.decode(nnr.encode(model, profile=0))[name])
    for rule in (nnr.Rule("*_scaling", exact=True), nnr.Rule("*_scaling", fine_vectors=False)):
        assert nnr.encode(model, local_scaling=True, rules=(rule,)) == nnr.encode(model, block=True)


def test_rows_of_zeros_stay_zeros() -> None:
    weight = TENSORS["conv.weight"].copy()
    weight[3] = 0
    model = Model({**TENSORS, "conv.weight": weight}, TOPOLOGY)
    assert not nnr.decode(nnr.encode(model, local_scaling=True))["conv.weight"][3].any()


# ------------------------------------------------------------------------------------------------ the bitstream
@pytest.mark.parametrize("indexed", [False, True])
def test_a_topology_kept_apart(indexed: bool) -> None:
    model = replace(MODEL, topology=replace(TOPOLOGY, quantization=b"version 1.0;\n"))
    options: dict[str, Any] = {"topology": "external", "block": True, "indexed_references": indexed}
    data = nnr.encode(model, **options)
    found = list(nnr.units(data))
    kinds = [unit.header.nnr_unit_type for unit in found]
    assert kinds.count(NNR_TPL) == indexed
    assert NNR_QNT not in kinds
    (mps,) = (unit.payload for unit in found if unit.header.nnr_unit_type == NNR_MPS)
    assert mps.topology_carriage_flag == 0  # type: ignore[union-attr]
    got = nnr.decode(data, topology=model.topology)
    assert got.topology == model.topology
    want = nnr.decode(nnr.encode(model, block=True))
    for name in TENSORS:
        np.testing.assert_array_equal(got[name], want[name])


def test_the_preset_of_3gpp(tmp_path: Path) -> None:
    config = nnr.EncoderConfig.preset("3gpp-full")
    values = {**TENSORS, "few": RNG.choice([0.1, 0.25, 0.7], (40, 40)).astype("f4")}
    data = nnr.encode(Model(values, TOPOLOGY), replace(config, effort=9))
    found = headers(data)
    assert found["conv.weight"].compressed_parameter_types == NNR_CPT_LS | NNR_CPT_BN
    assert "up.bias" in found
    assert not any(header.codebook_present_flag or header.scan_order for header in found.values())
    weights = [name for name, header in found.items() if len(header.tensor_dimensions) > 1 and "bias" not in name]
    assert all(found[name].dq_flag for name in weights if name != "few")
    codebooks = headers(nnr.encode(Model(values, TOPOLOGY)))
    assert codebooks["few"].codebook_present_flag
    assert nnr.EncoderConfig.preset("3gpp-full", quality=30).quality == 30
