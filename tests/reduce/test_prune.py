"""Pruning: removed channels, changed tensors, and the information in the bitstream."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitarray import bitarray
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.config import EncoderConfig
from nnr_codec.constants import NNR_TPL_BMSK, NNR_TPL_DICT
from nnr_codec.encoder.prepared import Prepared, PruningInfo
from nnr_codec.encoder.reduce.prune import Prune, indices
from nnr_codec.errors import EncodeError
from nnr_codec.model import Array, Channels, Model, Slice, Wiring
from nnr_codec.syntax.structures import NnrPruningTopologyContainer, NnrTopologyUnitPayload

from ..shared import SHARED, needs_shared

ONNX = (SHARED or Path()) / "models" / "digits_cnn.onnx"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.nnef"
RATIOS = st.sampled_from([0.1, 0.5, 1.0]) | st.floats(0.001, 1)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 0.1, shape).astype("f4")


#: Two layers and their reader: 6 channels, each 4 numbers wide where they are read, and 5.
TENSORS = {
    "a": normal(6, 3, 2, 2),
    "a.bias": normal(1, 6, seed=1),
    "b": normal(5, 24, seed=2),
    "b.bias": normal(5, seed=3),
    "c": normal(3, 5, seed=4),
    "other": normal(6, 6, seed=5),
}
FIRST = Channels(6, (Slice("a", 0, makes=True), Slice("a.bias", 1), Slice("b", 1, inner=4)))
SECOND = Channels(5, (Slice("b", 0, makes=True), Slice("b.bias", 0), Slice("c", 1)))


def prepared(
    tensors: Mapping[str, Array] = TENSORS, channels: Sequence[Channels] = (FIRST, SECOND), **options: Any
) -> Prepared:
    model = Model(dict(tensors), aliases=options.pop("aliases", {}))
    shapes = {name: array.shape for name, array in tensors.items()}
    return Prepared(model, model, Wiring(shapes, channels=tuple(channels)), EncoderConfig(**options))


def part(ratio: float, count: int) -> int:
    """Return the share of a number in decimal arithmetic, rounded up."""
    return ceil(Fraction(str(ratio)) * count)


def kept(after: Prepared, name: str, axis: int) -> list[bool]:
    """Return the remaining indices of a dimension."""
    masks = (after.pruning or PruningInfo()).kept
    return masks[name][axis].tolist() if name in masks else [True] * after.array(name).shape[axis]


# ------------------------------------------------------------------------------------------------ removed channels
def test_channels_go_from_all_their_tensors() -> None:
    after = Prune(ratio=0.3, scope="local").apply(prepared())
    first, second = np.array(kept(after, "a", 0)), np.array(kept(after, "b", 0))
    assert (first.sum(), second.sum()) == (4, 3)
    expected = {
        "a": TENSORS["a"][first],
        "a.bias": TENSORS["a.bias"][:, first],
        "b": TENSORS["b"][second][:, np.repeat(first, 4)],
        "b.bias": TENSORS["b.bias"][second],
        "c": TENSORS["c"][:, second],
        "other": TENSORS["other"],
    }
    for name, array in expected.items():
        for model in (after.model, after.restored):
            assert np.array_equal(model[name], array), name
    changed = [name for name in TENSORS if name != "other"]
    assert list(after.model.pruned) == list(after.restored.pruned) == ["a", "a.bias", "b", "b.bias", "c"]
    assert after.pruning
    assert after.pruning.dims == {name: expected[name].shape for name in changed}
    assert after.wiring.shapes == {name: array.shape for name, array in expected.items()}
    assert after.maps.pruning is not None
    assert after.maps.pruning.rows == ()


def test_least_of_all_go_first() -> None:
    """Pruning is global: unimportant neurons of the second layer are removed before any of the first."""
    tensors = {**TENSORS, "b": TENSORS["b"] * np.array([1, 1e-3, 1, 1e-3, 1], "f4")[:, None]}
    after = Prune(ratio=0.18).apply(prepared(tensors))
    assert (kept(after, "b", 0), kept(after, "a", 0)) == ([True, False, True, False, True], [True] * 6)
    assert "a" not in after.model.pruned
    assert after.array("b").shape == (3, 24)


def test_ties_go_by_group_and_index() -> None:
    tensors = {name: np.ones_like(array) for name, array in TENSORS.items()}
    after = Prune(ratio=0.5, scope="local").apply(prepared(tensors))
    assert (kept(after, "a", 0), kept(after, "b", 0)) == ([False] * 3 + [True] * 3, [False] * 3 + [True] * 2)
    after = Prune(ratio=0.36).apply(prepared(tensors))
    assert (kept(after, "a", 0), kept(after, "b", 0)) == ([False] * 4 + [True] * 2, [True] * 5)


@given(RATIOS, st.sampled_from(["global", "local"]), st.integers(0, 99))
def test_as_many_as_asked_for_and_never_all(ratio: float, scope: str, seed: int) -> None:
    tensors = {name: normal(*array.shape, seed=seed) for name, array in TENSORS.items()}
    after = Prune(ratio=ratio, scope=scope).apply(prepared(tensors))
    left = [sum(kept(after, "a", 0)), sum(kept(after, "b", 0))]
    if scope == "local":
        assert left == [max(size - part(ratio, size), 1) for size in (6, 5)]
    else:
        assert sum(left) == max(11 - part(ratio, 11), 2)
    assert min(left) >= 1
    widened = after.pruning.widened(after.model.tensors) if after.pruning else after.model.tensors
    for name, array in tensors.items():
        assert np.array_equal(widened[name], np.where(np.asarray(widened[name]) != 0, array, 0))


@given(st.integers(1, 5), st.integers(0, 3), st.integers(1, 3), st.integers(1, 3), st.data())
def test_where_channels_stand(size: int, offset: int, outer: int, inner: int, data: st.DataObject) -> None:
    """The positions agree with Slice."""
    chosen = sorted(data.draw(st.sets(st.integers(0, size - 1))))
    found = indices(Slice("t", 0, offset, outer, inner), np.array(chosen, np.int64), size)
    expected = [offset + (o * size + c) * inner + i for c in chosen for o in range(outer) for i in range(inner)]
    assert found.tolist() == expected


def test_groups_that_share_a_dimension() -> None:
    """Concatenated channels are removed in two steps; the second one knows their new positions."""
    tensors = {"a": normal(4, 3), "b": normal(4, 3, seed=1), "r": normal(2, 11, seed=2)}
    channels = [
        Channels(4, (Slice("a", 0, makes=True), Slice("r", 1, offset=1))),
        Channels(4, (Slice("b", 0, makes=True), Slice("r", 1, offset=6))),
    ]
    once = Prune(ratio=0.25, scope="local", tensors="a").apply(prepared(tensors, channels))
    assert [part.offset for group in once.wiring.channels for part in group.parts if part.tensor == "r"] == [1, 5]
    twice = Prune(ratio=0.5, scope="local").apply(once)
    assert [group.size for group in twice.wiring.channels] == [1, 2]
    assert twice.array("r").shape == (2, 6)
    assert twice.pruning
    widened = twice.pruning.widened(twice.model.tensors)
    left = np.array(kept(twice, "r", 1))
    assert np.array_equal(np.asarray(widened["r"]), tensors["r"] * left)
    assert left[[0, 5, 10]].all()
    assert left[1:5].tolist() == kept(twice, "a", 0)
    assert left[6:10].tolist() == kept(twice, "b", 0)


# ------------------------------------------------------------------------------------------------ remaining channels
@pytest.mark.parametrize(
    ("tensors", "options"),
    [
        ({}, {"rules": [nnr.Rule("a.bias", reducible=False)]}),
        ({}, {"rules": [nnr.Rule("a", exact=True)]}),
        ({}, {"aliases": {"a": "other"}}),
        ({}, {"aliases": {"other": "a"}}),
        ({"a": np.ones((6, 3, 2, 2), "i4")}, {}),
        ({"a": np.full((6, 3, 2, 2), np.nan, "f4")}, {}),
        ({"b": np.ones((5, 23), "f4")}, {}),
    ],
)
def test_groups_of_which_something_stays_stay(tensors: dict[str, Array], options: dict[str, Any]) -> None:
    after = Prune(ratio=0.5, scope="local").apply(prepared({**TENSORS, **tensors}, **options))
    assert np.array_equal(after.array("a"), {**TENSORS, **tensors}["a"], equal_nan=True)
    assert after.array("b").shape[0] == 2


def test_patterns_match_weights_that_produce_channels() -> None:
    after = Prune(ratio=0.5, tensors="b|zz*").apply(prepared())
    assert (after.array("a").shape[0], after.array("b").shape) == (6, (2, 24))


@pytest.mark.parametrize(
    ("tool", "given", "message"),
    [
        (Prune(), {}, "prune requires a ratio"),
        (Prune(ratio=0.5), {"channels": ()}, "no graph"),
        (Prune(ratio=0.5, tensors="zz"), {}, "tensors=zz): rules, patterns, types or earlier steps exclude all"),
        (Prune(ratio=0.5), {"rules": [nnr.Rule("*", reducible=False)]}, "exclude all channels"),
        (Prune(ratio=0.0, sparsity=0.5, tensors="zz"), {}, "is a float matrix"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(tool: Prune, given: dict[str, Any], message: str) -> None:
    with pytest.raises(EncodeError, match=re.escape(message)) as caught:
        tool.apply(prepared(**given))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"ratio": 1.1}, {"ratio": -0.1}, {"sparsity": 2.0}, {"scope": "none"}])
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(EncodeError):
        Prune(**options)


def test_a_graph_without_channels_says_so() -> None:
    graph = (
        b"version 1.0; graph g(x) -> (y) { x = external(shape = [1, 3]); w = variable(shape = [4, 3], label = 'w'); "
    )
    model = Model({"w": normal(4, 3)}, nnr.Topology("nnef", graph + b"y = linear(x, w); }"))
    with pytest.raises(EncodeError, match="the graph has no channels"):
        nnr.encode(model, reduce="prune(ratio=0.5)")


# ------------------------------------------------------------------------------------------------ sparsification
@given(st.floats(0, 1), st.sampled_from([0.0, 0.3]))
def test_the_share_of_zeros_refers_to_the_pruned_model(sparsity: float, ratio: float) -> None:
    after = Prune(ratio=ratio, sparsity=sparsity).apply(prepared())
    matrices = [after.array(name) for name in ("a", "b", "c", "other")]
    zeros, total = (sum(map(int, counts)) for counts in zip(*[((m == 0).sum(), m.size) for m in matrices], strict=True))
    assert zeros == part(sparsity, total)
    assert (after.maps.sparsification is not None) == (sparsity > 0)
    widened = (after.pruning or PruningInfo()).widened(after.model.tensors)
    for name, array in TENSORS.items():
        assert np.array_equal(np.asarray(widened[name]), np.where(np.asarray(widened[name]) != 0, array, 0))


def test_filters_that_matter_less_become_sparser() -> None:
    tensors = {**TENSORS, "c": TENSORS["c"] * np.array([1e-3, 1, 1, 1, 1], "f4")}
    after = Prune(ratio=0.0, sparsity=0.4).apply(prepared(tensors))
    zeros = (after.array("b") == 0).sum(axis=1)
    assert zeros[0] == 24
    assert (zeros[1:] < 20).all()


def test_not_a_numbers_stay() -> None:
    tensors = {**TENSORS, "other": TENSORS["other"].copy()}
    tensors["other"][0, :3] = np.nan, np.inf, -np.inf
    after = Prune(ratio=0.0, sparsity=1.0).apply(prepared(tensors))
    assert [after.array(name).any() for name in ("a", "b", "c")] == [False] * 3
    assert np.array_equal(after.array("other")[0, :3], tensors["other"][0, :3], equal_nan=True)
    assert np.count_nonzero(after.array("other")) == 3


# ------------------------------------------------------------------------------------------------ bitstreams
def container(data: bytes) -> NnrPruningTopologyContainer | None:
    """Return the content of NNR_TPL_PRUN."""
    found = [unit.payload for unit in nnr.units(data) if isinstance(unit.payload, NnrTopologyUnitPayload)]
    pruning = [payload.pruning for payload in found if "pruning" in payload]
    assert len(pruning) < 2
    return pruning[0] if pruning else None


@pytest.mark.medium
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("fold", [False, True])
def test_written_information_is_read(indexed: bool, fold: bool, tmp_path: Path) -> None:
    options = {"reduce": "prune(ratio=0.3)" + ", fold" * fold, "indexed_references": indexed}
    model = nnr.reduce(EXAMPLE, options["reduce"]).model
    data = nnr.encode(EXAMPLE, qp=-60, **options)
    assert not nnr.verify(data).violations
    t = container(data)
    assert t
    assert (t.prune_flag, t.nnr_rep_type, t.order_flag, t.sparse_flag) == (1, NNR_TPL_DICT, 1, 0)
    names = t.element_id
    if indexed:
        lists = [unit.payload for unit in nnr.units(data) if isinstance(unit.payload, NnrTopologyUnitPayload)]
        (listed,) = [payload.topology_elem_id_list for payload in lists if payload.topology_elem_id_list]
        assert not names
        names = [listed[index] for index in t.element_id_index]
    assert {name: tuple(dims) for name, dims in zip(names, t.dim, strict=True)} == {
        name: np.asarray(model[name]).shape for name in model.pruned
    }
    decoded = nnr.decode(data)
    assert sorted(decoded.pruned) == sorted(model.pruned)
    for name in model:
        assert decoded[name].shape == np.asarray(model[name]).shape
        assert np.abs(decoded[name] - model[name]).max() < 1e-3
    (mps,) = [unit.payload for unit in nnr.units(data) if hasattr(unit.payload, "mps_pruning_flag")]
    assert (mps.mps_pruning_flag, mps.mps_sparsification_flag) == (1, 0)
    nnr.save(decoded, tmp_path / "m.nnef")
    saved = nnr.load(tmp_path / "m.nnef")
    assert {name: saved[name].shape for name in saved} == {name: decoded[name].shape for name in decoded}


@pytest.mark.medium
@pytest.mark.parametrize("options", [{}, {"fold_batchnorm": True}, {"topology": "external", "block": True}])
def test_masks_mark_nonzero_parameters(options: dict[str, Any]) -> None:
    """They cover all tensors of two and more dimensions, in the order of their units; in blocks, only the weight."""
    step = "prune(ratio=0.2, sparsity=0.5, mask=true)"
    model = nnr.reduce(EXAMPLE, step).model
    data = nnr.encode(EXAMPLE, reduce=step, **options)
    topology = EXAMPLE if "topology" in options else None
    assert not nnr.verify(data, topology=topology).violations
    t = container(data)
    assert t
    assert (t.prune_flag, t.sparse_flag) == (1, 1)
    blocks = bool(options)
    names = [name for name in model if not blocks or name.endswith("weight")]
    expected = np.concatenate([np.asarray(model[name]).reshape(-1) != 0 for name in names])
    assert t.sparse_mask.bit_mask_value == bitarray(expected.tolist())
    decoded = nnr.decode(data, topology=topology)
    for name in ("conv2/weight", "fc1/weight"):
        assert not decoded[name][np.asarray(model[name]) == 0].any()


@pytest.mark.parametrize("options", ["form=mask", "form=mask, order=column", "form=channels"])
def test_masks_of_removed_channels(options: str) -> None:
    """Tensors keep their dimensions, with zeros in the places that the other form removes."""
    step, order = f"prune(ratio=0.3, {options})", "F" if "column" in options else "C"
    smaller, model = nnr.reduce(EXAMPLE, "prune(ratio=0.3)").model, nnr.reduce(EXAMPLE, step).model
    removed = []
    for name in model:
        array = np.asarray(model[name])
        others = [tuple({*range(array.ndim)} - {axis}) for axis in range(array.ndim)]
        kept = np.ix_(*[(array != 0).any(axes) for axes in others])
        if name.endswith("variance"):  # which divide
            assert (array > 0).all()
            kept = np.ix_(*[np.ones(extent, np.bool_) for extent in array.shape])
        else:
            assert array[kept].tobytes() == np.asarray(smaller[name]).tobytes()
        bits = np.zeros(array.shape, np.bool_)
        bits[kept] = True
        removed.append(bits.reshape(len(bits), -1).any(1) if "channels" in options else bits.ravel(order))
    data = nnr.encode(EXAMPLE, reduce=step)
    assert not nnr.verify(data).violations
    t = container(data)
    assert t
    assert (t.nnr_rep_type, t.prune_flag, t.sparse_flag) == (NNR_TPL_BMSK, 1, 0)
    assert t.order_flag == int(order == "C")
    assert t.prune_mask.bit_mask_value == bitarray(np.concatenate(removed).tolist())
    decoded = nnr.decode(data)
    assert not decoded.pruned
    for name in model:
        assert decoded[name].shape == model[name].shape
        assert not decoded[name][np.asarray(model[name]) == 0].any()
    units = [unit for unit in nnr.units(data) if getattr(unit.payload, "pruning", None) != t]
    without = nnr.decode(b"".join(unit.data for unit in units))
    assert all(without[name].tobytes() == decoded[name].tobytes() for name in model)


@pytest.mark.parametrize(
    ("step", "match"),
    [
        ("prune(ratio=0.1, form=bits)", "no form 'bits'"),
        ("prune(ratio=0.1, order=diagonal)", "no order 'diagonal'"),
        ("prune(ratio=0.1, form=channels, order=column)", "order requires"),
        ("prune(ratio=0.1, form=mask), prune(ratio=0.1)", "only pruning"),
        ("prune(ratio=0.1), prune(ratio=0.1, form=channels)", "only pruning"),
    ],
)
def test_forms_that_do_not_exist_or_mix(step: str, match: str) -> None:
    with pytest.raises(EncodeError, match=match):
        nnr.encode(EXAMPLE, reduce=step)


def test_masks_without_pruning() -> None:
    tensors = {"w": normal(8, 8), "b": normal(8)}
    data = nnr.encode(tensors, reduce="prune(ratio=0, sparsity=0.5, mask=true)")
    t = container(data)
    assert t
    assert (t.prune_flag, t.nnr_rep_type, t.sparse_flag) == (0, NNR_TPL_BMSK, 1)
    assert (len(t.sparse_mask.bit_mask_value), t.sparse_mask.bit_mask_value.count(0)) == (64, 32)
    assert not nnr.verify(data).violations
    assert (nnr.decode(data)["w"] == 0).sum() >= 32


def test_masks_keep_exact_values() -> None:
    """This includes negative zeros and codes."""
    exact = np.where(np.arange(4096).reshape(64, 64) % 3, normal(64, 64), np.float32(-0.0))
    exact[0] = 0
    tensors = {"w": normal(8, 8), "x": exact, "h": exact.astype("f2"), "n": np.arange(-8, 8, dtype="i8").reshape(4, 4)}
    tensors["s"] = np.array([[-0.0, 0.1], [0.3, -0.0]], "f4")  # unchanged
    rules = [nnr.Rule("[xhs]", exact=True)]
    data = nnr.encode(tensors, reduce="prune(ratio=0, sparsity=0.5, mask=true)", rules=rules)
    decoded = nnr.decode(data)
    for name in ("x", "h", "n", "s"):
        assert decoded[name].tobytes() == tensors[name].tobytes()


def test_dimensions_and_bits_are_as_coded(tmp_path: Path) -> None:
    """The second dimension of the block is coded first."""
    shapes = {"m": (4, 6), "b": (1, 6), "n": (6, 3), "k": (1, 3)}
    lines = [f"{name} = variable(shape = {list(shape)}, label = '{name}');" for name, shape in shapes.items()]
    body = "y = matmul(relu(matmul(x, m) + b), n) + k;"
    head = "version 1.0; extension KHR_enable_operator_expressions; graph g(x) -> (y) { x = external(shape = [1, 4]);"
    text = " ".join([head, *lines, body, "}"]).encode()
    tensors = {name: normal(*shape, seed=k) for k, (name, shape) in enumerate(shapes.items())}
    step = "prune(ratio=0.3, sparsity=0.5, mask=true)"
    model = nnr.reduce(Model(tensors, nnr.Topology("nnef", text)), step).model
    data = nnr.encode(Model(tensors, nnr.Topology("nnef", text)), reduce=step, block=True)
    assert not nnr.verify(data).violations
    t = container(data)
    assert t
    assert dict(zip(t.element_id, t.dim, strict=True)) == {"m": [4, 4], "b": [1, 4], "n": [3, 4]}
    expected = np.concatenate([np.asarray(model[name]).T.reshape(-1) != 0 for name in ("m", "n")])
    assert t.sparse_mask.bit_mask_value == bitarray(expected.tolist())
    decoded = nnr.decode(data)
    assert {name: decoded[name].shape for name in shapes} == {"m": (4, 4), "b": (1, 4), "n": (4, 3), "k": (1, 3)}
    for name in ("m", "n"):
        assert not decoded[name][np.asarray(model[name]) == 0].any()
    nnr.save(decoded, tmp_path / "m.nnef")


def test_a_pruned_model_is_encoded_again() -> None:
    once = nnr.decode(nnr.encode(EXAMPLE, reduce="prune(ratio=0.3)"))
    for options in ({}, {"fold_batchnorm": True, "indexed_references": True}):
        data = nnr.encode(once, **options)
        assert not nnr.verify(data).violations
        again = nnr.decode(data)
        assert sorted(again.pruned) == sorted(once.pruned)
        assert {name: again[name].shape for name in again} == {name: once[name].shape for name in once}


@pytest.mark.medium
@pytest.mark.parametrize("name", [EXAMPLE, pytest.param(ONNX, marks=needs_shared)], ids=["nnef", "onnx"])
@pytest.mark.parametrize(
    "options",
    [{}, {"block": True}, {"topology": "external"}, {"indexed_references": True}],
    ids=lambda options: "".join(options) or "plain",
)
def test_a_pruned_model_is_pruned_further(name: Path, options: dict[str, Any], tmp_path: Path) -> None:
    """The result is the same as with saving in between."""
    form, step = name.suffix[1:], "prune(ratio=0.3)"
    topology = name if "topology" in options else None
    once = nnr.decode(nnr.encode(name, reduce=step, qp=-60, **options), topology=topology)
    nnr.save(once, tmp_path / f"m.{form}")
    for further in (once, nnr.load(tmp_path / f"m.{form}")):
        data = nnr.encode(further, reduce=step, qp=-60, **options)
        apart = further if "topology" in options else None
        assert not nnr.verify(data, topology=apart).violations
        nnr.save(nnr.decode(data, topology=apart), tmp_path / f"{further is once}.{form}")
    direct, saved = (nnr.load(tmp_path / f"{kind}.{form}") for kind in (True, False))
    assert {each: direct[each].tobytes() for each in direct} == {each: saved[each].tobytes() for each in saved}
    assert direct.topology == saved.topology
    assert sum(direct[each].size for each in direct) < 0.8 * sum(np.asarray(once[each]).size for each in once)


@pytest.mark.medium
def test_reports_count_what_the_model_had(tmp_path: Path) -> None:
    whole = nnr.encode_file(EXAMPLE, tmp_path / "a.nnr")
    for options in ({}, {"fold_batchnorm": False, "block": True}, {"statistics": True}):
        report = nnr.encode_file(EXAMPLE, tmp_path / "b.nnr", reduce="prune(ratio=0.3)", overwrite=True, **options)
        assert (report.source_bytes, report.parameters) == (whole.source_bytes, whole.parameters)
    assert nnr.estimate(EXAMPLE, reduce="prune(ratio=0.3)").source_bytes == whole.source_bytes
    lowrank = nnr.encode_file(EXAMPLE, tmp_path / "c.nnr", reduce="prune(ratio=0.3), lowrank(rank=4)")
    assert (lowrank.source_bytes, lowrank.parameters) == (whole.source_bytes, whole.parameters)


def test_no_target_decides_on_a_ratio() -> None:
    for steps in ("prune", "sparsify, prune", "prune, sparsify"):
        with pytest.raises(EncodeError, match="prune requires a ratio"):
            nnr.encode(EXAMPLE, reduce=steps, target_ratio=0.1)


def test_the_same_bytes_for_any_number_of_threads() -> None:
    step = "prune(ratio=0.3, sparsity=0.3, mask=true), fold"
    assert nnr.encode(EXAMPLE, reduce=step) == nnr.encode(EXAMPLE, reduce=step, jobs=3)


def test_an_estimate_counts_pruning_information() -> None:
    step = "prune(ratio=0.2, sparsity=0.5, mask=true)"
    found = nnr.estimate(EXAMPLE, reduce=step).nbytes
    assert found == pytest.approx(len(nnr.encode(EXAMPLE, reduce=step)), rel=0.02)


def test_inspect_shows_it() -> None:
    data = nnr.encode(EXAMPLE, reduce="prune(ratio=0.2, sparsity=0.5, mask=true)")
    (told,) = [info.detail for info in nnr.inspect(data) if "NNR_TPL_PRUN" in info.detail]
    assert re.fullmatch(r"NNR_TPL_PRUN, new shapes of 15, sparse_mask of \d+ with \d+ zeros", told)


@needs_shared
def test_residuals_of_several_widths() -> None:
    """ResNet-20: the residual streams of all widths are cut equally, and zeros beside them stay."""
    assert SHARED
    model = nnr.reduce(SHARED / "models" / "resnet20_cifar10.nnef", "prune(ratio=0.3, scope=local)").model
    shapes = {name: np.asarray(model[name]).shape for name in model}
    left = shapes["conv1/weight"][0]
    assert left == 16 - ceil(0.3 * 16)
    assert shapes["layer1/2/conv2/weight"][0] == left
    assert shapes["layer2/1/conv2/weight"][0] == 32 - 16 + left
    assert shapes["linear/weight"] == (10, 64 - 16 + left)
