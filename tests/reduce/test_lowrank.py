"""Weights as products of two matrices: ranks, step sizes, forms, displacements, and decoded weights."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nnr_codec as nnr
from nnr_codec.bitstream.performance import DecompositionMap
from nnr_codec.constants import NNR_CPT_BI, NNR_CPT_DC, NNR_NDU, NNR_PT_BLOCK, NNR_PT_FLOAT
from nnr_codec.encoder.factor_steps import Factors
from nnr_codec.encoder.prepared import Prepared
from nnr_codec.encoder.reduce import prepare
from nnr_codec.model import Array, Block, Model, Topology, Wiring
from nnr_codec.tensor.reduction import displacement, from_displacement

pytestmark = pytest.mark.medium

RNG = np.random.default_rng(11)
FORMS = ["block", "units"]


def decaying(rows: int, columns: int, fall: float = 6.0) -> Array:
    """Return a matrix whose singular values decrease exponentially."""
    n = min(rows, columns)
    left, right = (np.linalg.qr(RNG.normal(size=(size, n)))[0] for size in (rows, columns))
    return (left * np.exp(-np.arange(n) / fall) @ right.T).astype("f4")


def toeplitz(rows: int, columns: int) -> Array:
    values = RNG.normal(0, 0.1, rows + columns - 1)
    return values[np.arange(rows)[:, None] - np.arange(columns) + columns - 1].astype("f4")


def circulant(size: int, sign: int = 1) -> Array:
    values = RNG.normal(0, 0.1, size)
    shift = np.arange(size) - np.arange(size)[:, None]
    return (values[shift % size] * np.where(shift < 0, sign, 1)).astype("f4")


def model() -> dict[str, Array]:
    return {
        "first": RNG.normal(0, 0.1, (6, 5)).astype("f4"),
        "w": decaying(48, 40),
        "bias": RNG.normal(0, 1, 48).astype("f4"),
        "conv": decaying(32, 72).reshape(32, 8, 3, 3),
        "kernel": decaying(72, 32).reshape(3, 3, 8, 32),
    }


def prepared(tensors: Any, step: str, **options: Any) -> Prepared:
    """Return the model after the step."""
    found: list[Prepared] = []
    known = tensors if isinstance(tensors, Model) else Model(tensors)
    config = nnr.EncoderConfig(reduce=step, **options)
    prepare(known, config, Wiring(), lambda _, before, after: found.append(after))
    return found[-1]


def error(got: Array, want: Array) -> float:
    want = want.astype("f8")
    return float(np.linalg.norm(got.astype("f8") - want) / np.linalg.norm(want))


def parameters(found: Prepared) -> int:
    return sum(np.asarray(array).size for array in found.model.tensors.values())


def units(data: bytes) -> list[tuple[int, int, list[str]]]:
    """Return payload type, compressed_parameter_types and names of the compressed data units."""
    found = [unit.ndu for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU]
    kind = "nnr_compressed_data_unit_payload_type"
    return [(getattr(one, kind), one.compressed_parameter_types, [*map(str, one.topology_elem_ids)]) for one in found]


# ------------------------------------------------------------------------------------------------ ranks
@given(
    matrix=hnp.arrays(
        "f4",
        hnp.array_shapes(min_dims=2, max_dims=4, max_side=9),
        elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
    ),
    bound=st.floats(0, 1),
)
def test_no_error_exceeds_the_bound(matrix: Array, bound: float) -> None:
    if sum(extent > 1 for extent in matrix.shape) < 2:
        return
    found = prepared({"w": matrix}, f"lowrank(error={bound})")
    if "w" in found.model.tensors:
        np.testing.assert_array_equal(found.restored["w"], matrix)
        return
    assert error(found.restored["w"], matrix) <= bound
    assert parameters(found) < matrix.size
    assert found.restored["w"].dtype == matrix.dtype


@given(st.floats(1e-4, 0.9), st.booleans())
def test_the_rank_is_the_least(bound: float, mse: bool) -> None:
    w = decaying(30, 24)
    values = np.linalg.svd(w.astype("f8"), compute_uv=False)
    tails = np.sqrt(np.append(np.cumsum(values[::-1] ** 2)[::-1], 0))
    rank = max(1, int(np.argmax(tails <= bound * tails[0])))
    step = f"lowrank(mse={(bound * tails[0]) ** 2 / w.size})" if mse else f"lowrank(error={bound})"
    found = prepared({"w": w}, step)
    if rank * sum(w.shape) >= w.size:
        assert [*found.model] == ["w"]
    else:
        assert found.model["w.G"].shape[1] in (rank, rank + 1)  # rounding loses some


def test_ratio() -> None:
    """The ratio refers to all tensors together; no other ranks with as many parameters have smaller errors."""
    tensors = {name: array for name, array in model().items() if array.ndim > 1}
    total = sum(array.size for array in tensors.values())
    least = sum(sum(_matrix(array).shape) for array in tensors.values())

    def noise(found: Prepared) -> float:
        return sum(float(np.sum((found.restored[name].astype("f8") - array) ** 2)) for name, array in tensors.items())

    others = [prepared(tensors, f"lowrank(error={bound})") for bound in np.geomspace(0.01, 1, 9)]  # another way
    for ratio in (0.02, 0.1, 0.23, 0.4, 0.61, 0.8, 1):
        found = prepared(tensors, f"lowrank(ratio={ratio})")
        assert parameters(found) <= max(ratio * total, least)
        no_more = [other for other in others if parameters(other) <= parameters(found)]
        assert no_more
        assert all(noise(found) <= noise(other) * (1 + 1e-6) for other in no_more)


def _matrix(array: Array) -> Array:
    splits = range(1, array.ndim)
    best = min(splits, key=lambda k: np.prod(array.shape[:k]) + np.prod(array.shape[k:]))
    return array.reshape(int(np.prod(array.shape[:best])), -1)


def test_rank() -> None:
    found = prepared(model(), "lowrank(rank=5)")
    shapes = {name: found.model[name].shape for name in found.model}
    assert (shapes["w.G"], shapes["w.H"]) == ((48, 5), (5, 40))
    assert (shapes["conv.G"], shapes["conv.H"]) == ((32, 5), (5, 72))
    assert (shapes["kernel.G"], shapes["kernel.H"]) == ((72, 5), (5, 32))
    assert shapes["first"] == (6, 5)  # 5 * (6 + 5) are more parameters than 30


@pytest.mark.parametrize("step", ["lowrank(rank=9)", "lowrank(ratio=0.5)", "lowrank(rank=9, displacement=true)"])
def test_no_rank_is_more_than_that_of_the_matrix(step: str) -> None:
    """Further singular vectors would be arbitrary."""
    w = RNG.integers(-4, 5, (60, 3)) @ RNG.integers(-4, 5, (3, 50))
    found = prepared({"w": w.astype("f4")}, step)
    assert found.model["w.G"].shape == (60, 3)
    assert error(found.restored["w"], w) < 1e-5


def test_the_best_matrix_of_a_rank() -> None:
    w = decaying(40, 30)
    found = prepared({"w": w}, "lowrank(rank=7)").restored["w"]
    left, values, right = np.linalg.svd(w.astype("f8"), full_matrices=False)
    np.testing.assert_allclose(found, left[:, :7] * values[:7] @ right[:7], atol=1e-5)


def test_by_rate_and_distortion() -> None:
    """Without an amount, tensors are decomposed exactly where G and H take fewer bits for the same error."""
    tensors = {"low": decaying(96, 80, 4), "full": RNG.normal(0, 0.05, (96, 80)).astype("f4")}
    data = nnr.encode(tensors, reduce="lowrank")
    plain = nnr.encode(tensors)
    assert {names[0]: types for _, types, names in units(data)} == {"low": NNR_CPT_DC, "full": 0}
    assert len(data) < 0.8 * len(plain)
    assert error(nnr.decode(data)["low"], tensors["low"]) < 1.1 * error(nnr.decode(plain)["low"], tensors["low"])
    cheap = nnr.encode(tensors, reduce="lowrank(rate=20)")
    assert len(cheap) < len(data)


@pytest.mark.parametrize("goal", [{"quality": 20.0}, {"snr": 20.0}, {"target_size": 5000}, {"effort": 1}], ids=str)
def test_by_rate_with_goals(goal: dict[str, Any]) -> None:
    tensors = {"low": decaying(96, 80, 4)}
    assert NNR_CPT_DC in [types for _, types, _ in units(nnr.encode(tensors, reduce="lowrank", **goal))]


# ------------------------------------------------------------------------------------------------ unchanged tensors
def test_what_stays_as_it_is() -> None:
    w = decaying(40, 30)
    tensors = {
        "nan": np.where(np.eye(40, 30), np.nan, w),
        "inf": np.where(np.eye(40, 30), np.inf, w),
        "zero": np.zeros((40, 30), "f4"),
        "rule": w,
        "exact": w + 1,
        "codebook": w + 2,
        "known": w + 3,
        "int": np.ones((40, 30), "i4"),
        "taken": w + 4,
        "taken_h": np.ones(3, "f4"),
        "other": w + 5,
        "done": w + 6,
    }
    rules = [nnr.Rule("rule", reducible=False), nnr.Rule("exact", exact=True), nnr.Rule("codebook", codebook=9)]
    step = "lowrank(rank=3, tensors=n*|i*|z*|r*|e*|c*|k*|t*|d*)"
    found = prepared(tensors, step, rules=rules, sensitivity={"known": 2.0})
    assert set(tensors) - set(found.model) == {"done"}
    for name in set(tensors) - {"done"}:
        assert found.model[name] is tensors[name]


@pytest.mark.parametrize("options", [{}, {"quality": 20}, {"snr": 30}], ids=str)
def test_values_of_any_scale_are_decomposed(options: dict[str, Any]) -> None:
    tensors = {"large": decaying(40, 30, 4) * np.float32(1e12), "w": decaying(40, 30, 4)}
    data = nnr.encode(tensors, reduce="lowrank(error=0.05)", **options)
    assert [names for _, _, names in units(data)] == [["large", "large_H"], ["w", "w_H"]]
    assert error(nnr.decode(data)["large"], tensors["large"]) < 0.2


def test_values_that_the_step_does_not_suit_stay() -> None:
    tensors = {"huge": decaying(40, 30, 4) * np.float32(1e30), "w": decaying(40, 30, 4)}
    data = nnr.encode(tensors, reduce="lowrank(error=0.05)", qp=-20)
    assert [names for _, _, names in units(data)] == [["huge"], ["w", "w_H"]]
    np.testing.assert_array_equal(nnr.decode(data)["huge"], tensors["huge"])


def test_tied_tensors_stay() -> None:
    w = decaying(40, 30)
    tied = Model({"a": w, "b": w.copy(), "c": w + 1}, aliases={"b": "a"})
    found = prepared(tied, "lowrank(rank=3)")
    assert [*found.model] == ["a", "b", "c.G", "c.H"]
    got = nnr.decode(nnr.encode(tied, reduce="lowrank(rank=3)"))
    assert [*got] == ["a", "b", "c"]
    assert got.aliases == {"b": "a"}


def test_a_second_step_leaves_factors_alone() -> None:
    once = prepared(model(), "lowrank(error=0.1)")
    twice = prepared(model(), "lowrank(error=0.1), lowrank(rank=1)")
    assert twice.model["w.G"].shape == once.model["w.G"].shape
    assert "first.G" in twice.model


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("lowrank(error=-0.1)", "lowrank(error) -0.1 is outside 0..1"),
        ("lowrank(error=0.1, rank=2)", "requires one of error, mse, ratio, rank, rate, got error and rank"),
        ("lowrank(form=aggregate)", "choose from block, units"),
        ("lowrank(rank=0)", "lowrank(rank) 0 is less than 1"),
        ("lowrank(tensors=nothing)", "is a float matrix"),
    ],
)
def test_refusals(step: str, message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=re.escape(message)):
        nnr.encode(model(), reduce=step)


def test_what_excludes_it() -> None:
    with pytest.raises(nnr.EncodeError, match="not fixed-point"):
        nnr.encode(model(), reduce="lowrank(rank=2)", fixed_point="q7.8")
    with pytest.raises(nnr.EncodeError, match="requires side information"):
        nnr.encode(model(), reduce="lowrank(rank=2, displacement=true)", side_info=False)


# ------------------------------------------------------------------------------------------------ steps of G and H
@pytest.mark.parametrize("options", [{}, {"qp": -30}, {"quality": 35}, {"dependent_quantization": False}], ids=str)
def test_the_product_has_the_error_that_the_weight_would_have(options: dict[str, Any]) -> None:
    tensors = {"w": decaying(128, 96, 20), "v": RNG.normal(0, 0.1, (50, 60)).astype("f4")}
    plain, pair = (nnr.decode(nnr.encode(tensors, reduce=step, **options)) for step in ("", "lowrank(rank=40)"))
    whole = prepared(tensors, "lowrank(rank=40)", **options).restored["w"]
    assert error(pair["w"], whole) == pytest.approx(error(plain["w"], tensors["w"]), rel=0.2)


@pytest.mark.parametrize("form", FORMS)
def test_goals_refer_to_the_weight(form: str) -> None:
    step, tensors = f"lowrank(error=0.05, form={form})", model()
    whole = {name: prepared(tensors, step).restored[name].astype("f8") for name in ("w", "conv", "kernel")}
    got = nnr.decode(nnr.encode(tensors, reduce=step, snr=33))
    for name, want in whole.items():
        noise = 20 * np.log10(1 / error(got[name], want))
        assert 33 <= noise < 35
    got = nnr.decode(nnr.encode(tensors, reduce=step, max_error=2e-3))
    assert all(np.abs(got[name] - want).max() <= 2e-3 for name, want in whole.items())
    for size in (3000, 4500):
        assert 0.98 * size <= len(nnr.encode(tensors, reduce=step, target_size=size)) <= size


@pytest.mark.parametrize("dtype", ["f2", ml_dtypes.bfloat16])
@pytest.mark.parametrize("step", ["lowrank(error=0.05)", "lowrank(error=0.05, displacement=true)"])
def test_goals_count_what_narrow_types_round(step: str, dtype: Any) -> None:
    w = (toeplitz(60, 50) if "displacement" in step else decaying(60, 50, 4)).astype("f4")
    tensors = {"w": (8 * w).astype(dtype)}
    left = prepared(tensors, step).restored["w"].astype("f8")

    def got(**goal: float) -> Array:
        data = nnr.encode(tensors, reduce=step, **goal)
        assert units(data)[0][1] == NNR_CPT_DC
        return nnr.decode(data)["w"].astype("f8")

    assert error(got(snr=50), left) <= 10**-2.5
    for bound in (0.1, 0.01, 0.003, 0.001):
        assert np.abs(got(max_error=bound) - left).max() <= bound


def test_rules_and_overrides_of_the_weight_apply_to_its_factors() -> None:
    step, tensors = "lowrank(error=0.05)", model()
    plain = nnr.decode(nnr.encode(tensors, reduce=step))
    for options in ({"rules": [nnr.Rule("w", qp=-20)]}, {"overrides": {"w": {"qp": -20}}}):
        got = nnr.decode(nnr.encode(tensors, reduce=step, **options))
        assert error(got["w"], tensors["w"]) > 3 * error(plain["w"], tensors["w"])
        np.testing.assert_array_equal(got["conv"], plain["conv"])


def test_no_steps_are_fine_enough() -> None:
    with pytest.raises(nnr.EncodeError, match="the requested error of 'w' cannot be reached"):
        nnr.encode({"w": decaying(40, 30) * np.float32(1e-34)}, reduce="lowrank(error=0.2)", snr=150)


def test_tuning() -> None:
    tensors = model()

    def score(decoded: Model) -> float:
        return -max(error(decoded[name], tensors[name]) for name in ("w", "conv", "kernel"))

    found = nnr.tune(tensors, score, tolerance=0.15, budget=12, reduce="lowrank(error=0.05)")
    data = nnr.encode(tensors, found.config)
    assert len(data) == found.nbytes < len(nnr.encode(tensors, reduce="lowrank(error=0.05)"))
    assert score(nnr.decode(data)) == found.score


def test_costs() -> None:
    """The estimated effect of errors of G and H on the weight is compared with the real one."""
    g, h = RNG.normal(0, 1, (60, 5)), RNG.normal(0, 3, (5, 40))
    factors = Factors(float((g**2).sum()), float((h**2).sum()), 60, 40, 5)
    steps = factors.steps(0.01)
    noise = [RNG.normal(0, step, array.shape) for step, array in zip(steps, (g, h), strict=True)]
    assert np.sqrt(((g @ h - (g + noise[0]) @ (h + noise[1])) ** 2).mean()) == pytest.approx(0.01, rel=0.1)
    for cost, own, made in zip(factors.costs, noise, (noise[0] @ h, g @ noise[1]), strict=True):
        assert (made**2).sum() == pytest.approx(cost * (own**2).sum(), rel=0.4)


# ------------------------------------------------------------------------------------------------ bitstreams
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "options",
    [{}, {"scan_order": 1, "row_skipping": True}, {"profile": 0}, {"indexed_references": True}, {"max_unit_size": 300}],
    ids=str,
)
def test_bitstreams(form: str, options: dict[str, Any], tmp_path: Path) -> None:
    tensors, step = model(), f"lowrank(error=0.05, form={form})"
    data = nnr.encode(tensors, reduce=step, **options)
    assert not nnr.verify(data).violations
    got = nnr.decode(data)
    assert [*got] == [*tensors]
    for name, array in tensors.items():
        assert (got[name].shape, got[name].dtype) == (array.shape, array.dtype)
        assert error(got[name], array) < 0.1
    assert {"w", "w_H"} <= {*nnr.decode(data, raw=True)}
    assert nnr.encode(tensors, reduce=step, jobs=3, **options) == data
    with nnr.open(data) as file:
        assert file.performance.maps.decomposition == DecompositionMap()
        for name in file:
            np.testing.assert_array_equal(file[name], got[name])
            np.testing.assert_array_equal(file.rows(name, 1, 3), got[name][1:3])
    stream = nnr.StreamDecoder()
    parts = [part for start in range(0, len(data), 200) for part in stream.feed(data[start : start + 200])]
    for name, array in parts + stream.finish():
        np.testing.assert_array_equal(array, got[name])
    nnr.encode_file(tensors, tmp_path / "x.nnr", reduce=step, resume=True, **options)
    assert (tmp_path / "x.nnr").read_bytes() == data


def test_forms() -> None:
    found = {form: units(nnr.encode(model(), reduce=f"lowrank(rank=3, form={form})")) for form in FORMS}
    assert (NNR_PT_BLOCK, NNR_CPT_DC, ["w", "w_H"]) in found["block"]
    both = [(NNR_PT_FLOAT, NNR_CPT_DC, ["w"]), (NNR_PT_FLOAT, NNR_CPT_DC, ["w_H"])]
    start = found["units"].index(both[0])
    assert found["units"][start : start + 2] == both


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", [["w", "b"], ["w"]], ids=len)
def test_a_list_of_labels_has_each_of_them_once(names: list[str], form: str) -> None:
    """Two units have one id, because H has no label (A.4)."""
    shapes = {"w": (40, 30), "b": (1, 40)}
    variables = "".join(f"{name} = variable(shape = {[*shapes[name]]}, label = '{name}'); " for name in names)
    graph = f"version 1.0; graph g(x) -> (y) {{ x = external(shape = [1, 30]); {variables}y = linear(x, w); }}"
    arrays = {"w": decaying(40, 30, 4), "b": np.ones((1, 40), "f4")}
    known = Model({name: arrays[name] for name in names}, Topology("nnef", graph.encode()))
    data = nnr.encode(known, reduce=f"lowrank(error=0.05, form={form})", indexed_references=True)
    payloads = [one.payload for one in nnr.units(data)]
    lists = [one.topology_elem_id_list for one in payloads if hasattr(one, "topology_elem_id_list")]
    assert [found for found in lists if found] == [names] * (len(names) > 1)
    assert [types for _, types, _ in units(data)][:2] == [NNR_CPT_DC] * 2
    assert not nnr.verify(data).violations
    got = nnr.decode(data)
    assert [*got] == names
    assert error(got["w"], arrays["w"]) < 0.1


@pytest.mark.parametrize("form", FORMS)
def test_blocks_keep_what_belongs_to_the_weight(form: str) -> None:
    tensors = model()
    known = Model(tensors, blocks=[Block("w", bias="bias")])
    data = nnr.encode(known, reduce=f"lowrank(error=0.05, form={form})")
    types = {names[0]: kinds for _, kinds, names in units(data)}
    assert types["w"] == (NNR_CPT_DC | NNR_CPT_BI if form == "block" else NNR_CPT_DC)
    assert ("bias" in types) == (form == "units")
    assert set(nnr.decode(data)) == set(tensors)


def test_a_block_along_another_dimension_is_taken_apart() -> None:
    tensors = {"w": decaying(40, 48), "bias": np.ones(48, "f4")}
    data = nnr.encode(Model(tensors, blocks=[Block("w", bias="bias", axis=1)]), reduce="lowrank(error=0.05)")
    assert [names for _, _, names in units(data)] == [["w", "w_H"], ["bias"]]
    assert error(nnr.decode(data)["w"], tensors["w"]) < 0.1


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_types(dtype: Any) -> None:
    w = (8 * decaying(60, 50)).astype(dtype)
    for step in ("lowrank(error=0.1)", "lowrank(error=0.1, displacement=true)"):
        data = nnr.encode({"w": w}, reduce=step)
        got = nnr.decode(data)["w"]
        assert units(data)[0][1] == NNR_CPT_DC
        assert (got.dtype, got.shape) == (w.dtype, w.shape)
        assert error(got, w) < 0.15
        assert nnr.decode(data, dtype="float16")["w"].dtype == "f2"


def test_reports_agree_with_decoded_tensors(tmp_path: Path) -> None:
    tensors = model()
    report = nnr.encode_file(tensors, tmp_path / "x.nnr", reduce="lowrank(error=0.05)", statistics=True)
    assert [*report.tensors] == [*tensors]
    assert report.parameters == sum(array.size for array in tensors.values())
    assert report.source_bytes == sum(array.nbytes for array in tensors.values())
    assert sum(one.unit_bytes for one in report.tensors.values()) + sum(report.overhead.values()) == report.nbytes
    assert report.tensors["w"].unit_bytes > 300
    folded = nnr.folded(tensors, reduce="lowrank(error=0.05)")
    for name, one in report.details.items():
        assert one.difference
        assert one.difference.largest == np.abs(folded[name].astype("f8") - nnr.decode(tmp_path / "x.nnr")[name]).max()
    assert report.steps[0].changed == 3
    assert report.to_json()
    assert report.to_html()
    estimated = nnr.estimate(tensors, reduce="lowrank(error=0.05)")
    assert estimated.nbytes == pytest.approx(report.nbytes, rel=0.05)
    assert sum(one.unit_bytes for one in estimated.tensors.values()) <= estimated.nbytes


def test_later_steps_change_factors() -> None:
    found = prepared(model(), "lowrank(error=0.05)")
    g, h = found.array("w.G"), found.array("w.H")
    later = found.replaced({"w.G": 2 * g})
    np.testing.assert_allclose(later.restored["w"], 2 * found.restored["w"], rtol=1e-6)
    assert [*later.restored.tensors] == [*model()]
    assert later.model["w.H"] is h
    assert nnr.decode(nnr.encode(model(), reduce="lowrank(error=0.05), sparsify(ratio=0.5)"))["w"].shape == (48, 40)


def test_the_same_for_any_order_in_memory() -> None:
    tensors = model()
    turned = {name: np.asfortranarray(array) for name, array in tensors.items()}
    assert nnr.encode(turned, reduce="lowrank(error=0.05)") == nnr.encode(tensors, reduce="lowrank(error=0.05)")


# ------------------------------------------------------------------------------------------------ displacements
@given(
    hnp.arrays("i4", hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.integers(-100, 100)),
    st.integers(-1, 1),
)
def test_displacements_and_back(matrix: Array, corner: int) -> None:
    """The definition by matrices is used: W - Z W Zf^T, with the shift Z and the f-circulant Zf."""
    w = matrix.astype("f8")
    rows, columns = w.shape
    shift = np.eye(rows, k=-1)
    turn = np.eye(columns, k=-1)
    turn[0, -1] += corner
    moved = displacement(w, corner)
    np.testing.assert_array_equal(moved, w - shift @ w @ turn.T)
    np.testing.assert_array_equal(from_displacement(moved, corner), w)


@pytest.mark.parametrize(
    ("w", "rank"),
    [
        (toeplitz(60, 40), 2),
        (circulant(50), 1),
        (circulant(50, -1), 1),
        (np.linalg.inv(toeplitz(40, 40) + 2 * np.eye(40)).astype("f4"), 4),
        (toeplitz(32, 36).reshape(32, 4, 3, 3), 2),
    ],
    ids=["toeplitz", "circulant", "skew-circulant", "inverse", "four dimensions"],
)
@pytest.mark.parametrize("form", FORMS)
def test_low_displacement_rank(w: Array, rank: int, form: str) -> None:
    step = f"lowrank(error=0.001, displacement=true, form={form})"
    found = prepared({"w": w}, step)
    assert found.model["w.G"].shape[1] <= rank
    data = nnr.encode({"w": w}, reduce=step)
    assert len(data) < 0.35 * len(nnr.encode({"w": w}))
    assert not nnr.verify(data).violations
    got = nnr.decode(data)["w"]
    assert error(got, w) < 0.01
    with nnr.open(data) as file:
        assert (file.info["w"].shape, file.info["w"].code) == (w.shape, "displacement")
        np.testing.assert_array_equal(file["w"], got)
        np.testing.assert_array_equal(file.rows("w", 2, 5), got[2:5])
    assert {*nnr.decode(data, raw=True)} == {"w_displacement", "w_displacement_H"}
    np.testing.assert_array_equal(nnr.decode(data, jobs=2)["w"], got)


def test_displacements_only_where_they_are_fewer() -> None:
    tensors = {"low": decaying(50, 40, 2), "toeplitz": toeplitz(50, 40)}
    found = prepared(tensors, "lowrank(error=0.01, displacement=true)")
    corners = {block.weight: block.corner for block in found.model.blocks}
    assert corners["low"] is None
    assert corners["toeplitz"] is not None
    without = prepared(tensors, "lowrank(error=0.01)")
    assert "toeplitz" in without.model.tensors
    assert parameters(found) < parameters(without) / 2


@pytest.mark.parametrize("dependent", [True, False])
def test_by_rate_where_a_codebook_is_exact(dependent: bool) -> None:
    """Its step size does not bound errors."""
    tensors = {"w": toeplitz(40, 30)}
    options = {"dependent_quantization": dependent}
    data = nnr.encode(tensors, reduce="lowrank(displacement=true)", **options)
    assert len(data) < 0.4 * len(nnr.encode(tensors, **options))
    assert error(nnr.decode(data)["w"], tensors["w"]) < 0.01


def test_displaced_blocks_stand_apart() -> None:
    known = Model({"w": toeplitz(40, 30), "b": np.ones(40, "f4")}, blocks=[Block("w", bias="b")])
    data = nnr.encode(known, reduce="lowrank(error=0.01, displacement=true)")
    assert [names for _, _, names in units(data)] == [["w_displacement", "w_displacement_H"], ["b"]]
    assert [*nnr.decode(data)] == ["w", "b"]


def test_goals_of_displacements() -> None:
    w = toeplitz(40, 40)
    step = "lowrank(error=0.0001, displacement=true)"
    got = nnr.decode(nnr.encode({"w": w}, reduce=step, snr=30))["w"]
    assert 29.9 < -20 * np.log10(error(got, w)) < 34
    got = nnr.decode(nnr.encode({"w": w}, reduce=step, max_error=0.01))["w"]
    assert np.abs(got - w).max() < 0.0101


def test_scales_do_not_fit_other_forms() -> None:
    g, h = np.ones((4, 2), "f4"), np.ones((2, 6), "f4")
    block = Block("w", g="g", h="h", scale="s")
    for changed in ({"two_units": True}, {"corner": 0}):
        known = Model({"g": g, "h": h, "s": np.ones(4, "f4")}, blocks=[replace(block, **changed)])
        with pytest.raises(nnr.EncodeError, match="has a scale, which its form cannot represent"):
            nnr.encode(known)
