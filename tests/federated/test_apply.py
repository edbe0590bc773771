"""Application of updates: only to the right base and to matching tensors."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.conformance.digest import TensorDigest, model_digest
from nnr_codec.constants import ICNN_NDU_EXT, NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.decoder.update_sequence import Update, UpdateDecoder
from nnr_codec.dtypes import STORED_TYPES
from nnr_codec.errors import FormatError, LimitError, MissingReferenceError
from nnr_codec.federated.apply import apply_update, identity
from nnr_codec.federated.folding import fold
from nnr_codec.federated.update import encode_update
from nnr_codec.model import Array, Block, Model, Topology

from ..arrays import assert_identical, from_patterns, in_memory, made, models, specials
from ..builder import Bitstream, update_ndu
from ..encoder.test_fold import GRAPH, TENSORS, TOPOLOGY

RNG = np.random.default_rng(3)
BASE: dict[str, Array] = {
    "w": RNG.normal(0, 0.1, (8, 6)).astype("f4"),
    "b": RNG.normal(0, 0.1, 8).astype("f4"),
    "steps": np.asarray(7, "i8"),
    "mask": np.arange(5) % 2 == 0,
}
STEP = {"w": np.full((8, 6), 0.125, "f4"), "steps": np.array([3], "i4")}


def moved(tensors: Mapping[str, Array], by: float) -> dict[str, Array]:
    return {name: np.asarray(a + a.dtype.type(by)) if a.dtype.kind == "f" else a for name, a in tensors.items()}


# ------------------------------------------------------------------------------------------------ differences
def test_a_mapping_of_differences() -> None:
    before = {name: array.copy() for name, array in BASE.items()}
    got = apply_update(BASE, STEP)
    assert type(got) is dict and list(got) == list(BASE)
    assert_identical(got["w"], BASE["w"] + np.float32(0.125))
    assert_identical(got["steps"], np.asarray(10, "i8"))
    assert got["b"] is BASE["b"] and got["mask"] is BASE["mask"]
    for name, array in before.items():
        assert_identical(BASE[name], array)


def test_a_model_that_stays_in_its_file_is_in_memory_once(tmp_path: Path) -> None:
    """Differences are released after they are added, so they are not in memory as well."""
    shape, path = (100, 1000), tmp_path / "base.safetensors"
    base = {f"w{k}": np.full(shape, k, "f4") for k in range(20)}
    formats.save(Model(base), path)
    data = encode_update(base, moved(base, 1.0))
    apply_update(path, data)  # which imports modules
    tracemalloc.start()
    got = apply_update(path, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(array.nbytes for array in got.tensors.values()) == 8_000_000
    assert peak < 12_000_000


def test_zeros_change_nothing() -> None:
    base = {"w": np.array([-0.0, np.nan, np.inf], "f4")}
    for zeros in (np.zeros(3, "f4"), np.zeros(3, "i4"), np.broadcast_to(np.float32(0), (3,))):
        assert apply_update(base, {"w": zeros})["w"] is base["w"]


@given(models())
def test_any_model_with_zeros(base: dict[str, Array]) -> None:
    got = apply_update(base, {name: np.zeros(array.shape, "i4") for name, array in base.items()})
    assert all(got[name] is array for name, array in base.items()) and list(got) == list(base)


@pytest.mark.parametrize("name", list(STORED_TYPES))
def test_the_type_of_the_base_stays(name: str) -> None:
    stored = STORED_TYPES[name]
    base = {"w": in_memory(made("pruned", (6, 7), name), "columns first")}
    difference = np.ones((6, 7), "f4" if stored.kind == "f" else "i4")
    if stored.kind != "f" and stored.bits < 8:
        with pytest.raises(FormatError, match=f"tensor 'w': a difference in int32 cannot be added to {name}"):
            apply_update(base, {"w": difference})
        return
    got = apply_update(base, {"w": difference})["w"]
    with np.errstate(over="ignore"):
        wanted = base["w"].astype("f8" if stored.bits == 64 else "f4") + 1 if stored.kind == "f" else base["w"] + 1
    assert_identical(got, np.asarray(wanted).astype(stored.dtype))


def test_shapes_that_are_the_same_but_for_extents_of_1() -> None:
    base: dict[str, Array] = {"w": np.ones((1, 3, 1), "f4"), "s": np.asarray(2.0)}
    got = apply_update(base, {"w": np.array([1, 2, 3], "f4"), "s": np.array([0.5])})
    assert_identical(got["w"], np.array([2, 3, 4], "f4").reshape(1, 3, 1))
    assert_identical(got["s"], np.asarray(2.5))


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"other": np.ones(3, "f4")}, "tensor 'other', which the base model lacks"),
        ({"other": np.zeros(3, "f4")}, "tensor 'other', which the base model lacks"),
        ({"w": np.ones((6, 8), "f4")}, r"shape \(6, 8\) for tensor 'w' of shape \(8, 6\)"),
        ({"w": np.ones(48, "f4")}, "for tensor 'w'"),
        ({"w": np.ones((8, 6), "i4")}, "tensor 'w': a difference in int32 cannot be added to float32"),
        ({"steps": np.ones(1, "f4")}, "tensor 'steps': a difference in float32 cannot be added to int64"),
        ({"mask": np.ones(5, "i4")}, "tensor 'mask': a difference in int32 cannot be added to bool"),
        (
            {"w": np.full((8, 6), np.inf, "f4")},
            "tensor 'w': the sum of base and difference exceeds the range of float32",
        ),
        ({"w": np.full((8, 6), np.nan, "f4")}, "tensor 'w': the sum of base and difference"),
        ({"w": np.full((8, 6), 1j)}, "tensor 'w': tensors of type complex128 are not supported"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(update: dict[str, Array], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        apply_update(BASE, update)


@pytest.mark.parametrize("name", [name for name, stored in STORED_TYPES.items() if stored.kind == "f"])
def test_any_pattern_as_a_difference(name: str) -> None:
    """Values that are not finite are rejected, signaling not-a-numbers without a warning."""
    values = from_patterns(specials(STORED_TYPES[name]), STORED_TYPES[name])
    for value in values.reshape(-1, 1):
        with np.errstate(invalid="ignore"):
            finite = bool(np.isfinite(value.astype("f8")))
        if finite:
            apply_update({"w": np.zeros(1, "f8")}, {"w": value})
            continue
        with pytest.raises(FormatError, match="tensor 'w': the sum of base and difference"):
            apply_update({"w": np.zeros(1, "f4")}, {"w": value})


def test_whole_tensors_replace_the_base() -> None:
    whole = {"w": np.ones((2, 2), "f8"), "new": np.zeros(3, "i2"), "mask": ~BASE["mask"], "b": np.zeros(8, "f4")}
    got = apply_update(BASE, Update({**STEP, **whole}, whole=whole))
    assert list(got) == [*BASE, "new"]
    for name, array in whole.items():
        assert got[name] is array
    assert got["steps"] == 10


def test_bits() -> None:
    base = {"w": np.array([1.0, -0.0, 2.0], "f4"), "n": np.array([1, 2], "i4")}
    steps = {"w": np.array([1, 1, -1]), "n": np.array([1, 0])}
    got = apply_update(base, Update(steps, metadata={"nnr_codec.update": "bits"}))
    assert_identical(
        got["w"],
        np.array([np.nextafter(np.float32(1), np.float32(2)), 0.0, np.nextafter(np.float32(2), np.float32(0))], "f4"),
    )
    assert got["n"].tolist() == [2, 2]
    for metadata in ({}, {"nnr_codec.update": "other"}):
        with pytest.raises(FormatError, match="cannot be added to float32"):
            apply_update(base, Update(steps, metadata=metadata))
    floats = {"w": np.array([1, 1, 1], "f4")}
    got = apply_update(base, Update(floats, metadata={"nnr_codec.update": "bits"}))
    assert got["w"].tolist() == [2, 1, 3]


# ------------------------------------------------------------------------------------------------ models
def test_a_model_keeps_what_the_update_does_not_have() -> None:
    tensors = {**BASE, "tied": BASE["w"], "other": BASE["b"].copy()}
    base = Model(
        tensors, TOPOLOGY, [Block("w", "b")], {"author": "a", "epoch": "1"}, ["b"], "safetensors",
        {"tied": "w", "other": "b"},
    )  # fmt: skip
    got = apply_update(base, STEP)
    assert isinstance(got, Model)
    assert (got.topology, got.blocks, got.metadata, got.pruned, got.format) == (
        base.topology, base.blocks, base.metadata, base.pruned, base.format,
    )  # fmt: skip
    assert got.aliases == {"other": "b"}  # the tied tensor has no difference
    both = apply_update(base, {**STEP, "tied": STEP["w"]})
    assert both.aliases == base.aliases
    topology = Topology("nnef", GRAPH.encode() + b"\n")
    metadata = {"epoch": "2", "nnr_codec.update": "bits"}
    got = apply_update(base, Update({}, metadata=metadata, topology=topology))
    assert (got.topology, got.metadata) == (topology, {"author": "a", "epoch": "2"})
    assert base.metadata == {"author": "a", "epoch": "1"}
    assert all(got[name] is array for name, array in tensors.items())


def test_kinds_of_bases_and_updates(tmp_path: Path) -> None:
    new = moved(BASE, 0.25)
    path, update = tmp_path / "base.safetensors", tmp_path / "d.nnr"
    nnr.save(BASE, path)
    data = encode_update(BASE, new, lossless=True)
    update.write_bytes(data)
    for base in (Model(BASE), path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes())):
        got = apply_update(base, data)
        assert isinstance(got, Model)
        for name, array in new.items():
            assert_identical(got[name], array)
    assert apply_update(path, data).format == "safetensors"
    for form in (data, bytearray(data), memoryview(data), update, str(update), io.BytesIO(data), nnr.open(data),
                 UpdateDecoder().decode(data), UpdateDecoder(like=BASE).decode(data)):  # fmt: skip
        tensors = apply_update(BASE, form)
        assert type(tensors) is dict
        for name, array in new.items():
            assert_identical(tensors[name], array)
        assert all(tensors[name] is BASE[name] for name in ("steps", "mask"))


def test_threads_do_not_matter() -> None:
    base = {f"{k}": made("normal", (48, 64), "float32", k) for k in range(4)}
    data = encode_update(base, moved(base, 0.01))
    one, three = (apply_update(base, data, jobs=jobs) for jobs in (1, 3))
    for name in base:
        assert_identical(one[name], three[name])


# ------------------------------------------------------------------------------------------------ identity
def test_identity_is_the_digest() -> None:
    wanted = f"sha256:{model_digest(TensorDigest.of(name, array) for name, array in BASE.items())}"
    assert identity(BASE) == identity(Model(BASE, TOPOLOGY, metadata={"a": "b"})) == wanted
    assert identity(dict(reversed(BASE.items()))) == wanted
    others: list[dict[str, Array]] = [
        {**BASE, "b": BASE["b"].reshape(1, 8)},
        {**BASE, "steps": BASE["steps"].astype("i4")},
        {**BASE, "more": BASE["b"]},
        {**BASE, "b": -BASE["b"]},
    ]
    assert len({identity(other) for other in (BASE, *others)}) == 5
    with pytest.raises(FormatError, match="tensor 'z': tensors of type complex64 are not supported"):
        identity({"z": np.zeros(3, "c8")})


def test_the_wrong_base_is_refused_by_name() -> None:
    data = encode_update(BASE, moved(BASE, 0.25))
    other = {**BASE, "b": BASE["b"] + np.float32(1)}
    for form in (data, UpdateDecoder().decode(data)):
        for base in (other, Model(other), Model({**other, **TENSORS}, TOPOLOGY)):
            with pytest.raises(MissingReferenceError) as caught:
                apply_update(base, form)
            assert identity(BASE) in str(caught.value) and identity(base) in str(caught.value)
        got = apply_update(other, form, check=False)
        np.testing.assert_allclose(got["b"], BASE["b"] + 1.25, atol=0.05)


@pytest.mark.parametrize("text", ["sha256:", "sha256:" + 64 * "G", "model 7", "", f"sha256:{64 * '0'}#0.1.", None])
def test_other_ids_are_not_checked(text: str | None) -> None:
    assert apply_update(BASE, Update(STEP, base_model_id=text))["steps"] == 10
    with pytest.raises(MissingReferenceError):
        apply_update(BASE, Update(STEP, base_model_id=f"sha256:{64 * '0'}"))


def test_the_base_is_looked_at_before_anything_is_decoded() -> None:
    data = encode_update(BASE, moved(BASE, 0.25))
    with pytest.raises(MissingReferenceError, match="the update is for the model"):
        apply_update({"other": BASE["w"]}, data[:-9] + bytes(9))


# ------------------------------------------------------------------------------------------------ bitstreams
def test_a_difference_of_an_absent_tensor() -> None:
    data = encode_update(BASE, moved(BASE, 0.25))
    for base, message in (
        ({name: BASE[name] for name in ("b", "steps")}, "tensor 'w', which the base model lacks"),
        ({**BASE, "w": BASE["w"].T}, r"shape \(8, 6\) for tensor 'w' of shape \(6, 8\)"),
        ({**BASE, "w": BASE["w"].astype("i4")}, "tensor 'w': a difference in float32 cannot be added to int32"),
    ):
        with pytest.raises(FormatError, match=message):
            apply_update(base, data, check=False)


def test_shapes_are_looked_at_before_anything_is_decoded() -> None:
    header = update_ndu("w", [6, 8], 1, kind=NNR_PT_INT, parent_node_id_type=ICNN_NDU_EXT)
    del header.parent_device_id
    data = Bitstream().str_().mps(parent=1).ndu(header, payload=bytes(2)).data
    with pytest.raises(FormatError, match=r"shape \(6, 8\) for tensor 'w'"):
        apply_update(BASE, data)
    with pytest.raises(nnr.BitstreamError):
        apply_update({"w": np.zeros((6, 8), "i4")}, data)


def test_a_whole_model_is_no_update() -> None:
    with pytest.raises(FormatError, match="is a whole model, not an update"):
        apply_update(BASE, nnr.encode(BASE))


def test_an_update_of_an_update_needs_a_decoder() -> None:
    encoder = nnr.UpdateEncoder(base_model_id="m")
    first, second = (encoder.encode({"w": STEP["w"] * k}) for k in (1, 2))
    assert apply_update(BASE, first)["w"].shape == (8, 6)
    with pytest.raises(MissingReferenceError):
        apply_update(BASE, second)
    decoder = UpdateDecoder(like=BASE)
    current: Any = BASE
    for message in (first, second):
        current = apply_update(current, decoder.decode(message))
    np.testing.assert_allclose(current["w"], BASE["w"] + 3 * STEP["w"], atol=0.05)


def test_limits() -> None:
    data = encode_update(BASE, {**BASE, "new": np.ones((100, 100), "f4")})
    assert apply_update(BASE, data)["new"].shape == (100, 100)
    for limits in (nnr.Limits(max_tensor_elements=9999), nnr.Limits(expected=BASE)):
        with pytest.raises(LimitError, match=r"new|max_tensor_elements"):
            apply_update(BASE, data, limits=limits)


# ------------------------------------------------------------------------------------------------ batch normalizations
def test_folded_batch_normalizations() -> None:
    """Mean and variance cost nothing, and the base need not be folded."""
    base = Model(dict(TENSORS), TOPOLOGY)
    new = replace(base, tensors=moved(TENSORS, 0.05))
    data = encode_update(base, new, fold_batchnorm=True)
    assert set(nnr.open(data)).isdisjoint({"bn.mean", "bn.var", "conv.bias"})
    got, wanted = apply_update(base, data), fold(new)
    for name, array in wanted.tensors.items():
        np.testing.assert_allclose(got[name], array, atol=0.02)
    again = apply_update(fold(base), data)
    for name, array in got.tensors.items():
        assert_identical(again[name], array)
    assert not got["bn.mean"].any()
    assert_identical(base["bn.mean"], TENSORS["bn.mean"])
    # The next round continues from the result of this one.
    newer = replace(got, tensors=moved(got.tensors, 0.05))
    next_data = encode_update(got, newer, fold_batchnorm=True)
    for name, array in apply_update(got, next_data).tensors.items():
        np.testing.assert_allclose(array, fold(newer)[name], atol=0.02)
    with pytest.raises(MissingReferenceError, match="the update is for the model"):
        apply_update(dict(TENSORS), data)  # without a topology, folding is impossible


def test_the_topology_of_the_base_is_that_of_the_update() -> None:
    """It gives dimensions that a unit omits."""
    header = update_ndu("conv.bias", [12], 1, kind=NNR_PT_RAW_FLOAT, parent_node_id_type=ICNN_NDU_EXT)
    del header.tensor_dimensions, header.parent_device_id
    header.tensor_dimensions_flag = 0
    data = Bitstream({"conv.bias": [1, 12]}).str_().mps(parent=1).raw(header, np.full((1, 12), 0.5)).data
    got = apply_update(Model(dict(TENSORS), TOPOLOGY), data)
    assert_identical(got["conv.bias"], TENSORS["conv.bias"] + np.float32(0.5))
    with pytest.raises(MissingReferenceError, match=r"dimensions of 'conv\.bias'"):
        apply_update(Model(dict(TENSORS)), data)
