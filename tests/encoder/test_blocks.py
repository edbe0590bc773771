"""Blocks of a model: tensors in one unit, separately coded ones, and rejected blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.constants import NNR_CPT_BI, NNR_CPT_BN, NNR_CPT_DC, NNR_CPT_LS, NNR_NDU, NNR_PT_BLOCK
from nnr_codec.decoder.decode import BitstreamParser
from nnr_codec.decoder.group import Group
from nnr_codec.decoder.reconstruct import Rec
from nnr_codec.decoder.state import UpdateState
from nnr_codec.limits import Budget, Limits
from nnr_codec.model import Array, Block, Model

from ..builder import step_size
from .test_encoder import vector_bound

RNG = np.random.default_rng(5)
ROWS = 12
NAMES = {name: f"layer.{name}" for name in ("bias", "beta", "gamma", "mean", "var", "scale")}
BN = ("beta", "gamma", "mean", "var")


def vector(largest: float = 1.0, dtype: str = "f4") -> Array:
    values = RNG.uniform(-largest, largest, ROWS)
    values[0] = largest
    return values.astype(dtype)


def made(*members: str, dtype: str = "f4", **changed: Array) -> Model:
    """Return a model of one block, with a tensor before and one after it."""
    tensors = {"before": np.ones((2, 3), "f4"), "layer.weight": RNG.normal(0, 0.1, (ROWS, 5, 3)).astype(dtype)}
    tensors |= {NAMES[name]: changed.get(name, vector(dtype=dtype)) for name in members} | {"after": np.zeros(3, "f4")}
    if "weight" in changed:
        tensors["layer.weight"] = changed["weight"]
    return Model(tensors, blocks=[Block("layer.weight", **{name: NAMES[name] for name in members})])


def units(data: bytes) -> list[tuple[int, list[str]]]:
    """Return compressed_parameter_types and names of the compressed data units."""
    return [
        (unit.ndu.compressed_parameter_types, list(map(str, unit.ndu.topology_elem_ids)))
        for unit in nnr.units(data)
        if unit.header.nnr_unit_type == NNR_NDU
    ]


def recs(group: Group) -> list[Rec]:
    """Return the tensors of a unit with their levels."""
    return group.recs(state=UpdateState(), budget=Budget(Limits()))


def product(model: Model) -> Any:
    """Return the weight with its local scaling."""
    scale = model.tensors.get(NAMES["scale"], np.ones(ROWS, "f4"))
    return model["layer.weight"].astype("f8") * scale.astype("f8")[:, None, None]


# ------------------------------------------------------------------------------------------------ contents of a unit
@pytest.mark.parametrize("ls", [(), ("scale",)])
@pytest.mark.parametrize("bn", [(), BN])
@pytest.mark.parametrize("bi", [(), ("bias",)])
@pytest.mark.parametrize(
    "options", [{}, {"dependent_quantization": False}, {"scan_order": 1, "row_skipping": True}, {"profile": 0}], ids=str
)
def test_every_combination(
    ls: tuple[str, ...], bn: tuple[str, ...], bi: tuple[str, ...], options: dict[str, Any]
) -> None:
    model = made(*bi, *bn, *ls)  # in another order than in the header
    data = nnr.encode(model, **options)
    types = NNR_CPT_LS * bool(ls) | NNR_CPT_BN * bool(bn) | NNR_CPT_BI * bool(bi)
    names = ["layer.weight", *(NAMES[name] for name in (*ls, *bn, *bi))]
    assert units(data) == [(0, ["before"]), (types, names), (0, ["after"])]
    got, raw = nnr.decode(data), nnr.decode(data, raw=True)
    assert set(got) == set(model) - {NAMES["scale"]}
    assert set(raw) == set(model)
    for name in (*ls, *bn, *bi):  # as exactly as in a separate unit
        assert np.abs(raw[NAMES[name]].astype("f8") - model[NAMES[name]]).max() <= vector_bound(model[NAMES[name]])
    assert np.abs(raw["layer.weight"].astype("f8") - model["layer.weight"]).max() <= 2 * step_size(-40)
    scaled = np.abs(model["layer.weight"]).max() * vector_bound(model[NAMES["scale"]]) if ls else 0
    assert np.abs(got["layer.weight"] - product(model)).max() <= 2.01 * step_size(-40) + scaled


@pytest.mark.medium
@given(
    exponents=st.lists(st.integers(-12, 12), min_size=6, max_size=6),
    dq=st.booleans(),
    density=st.integers(0, 7),
    dtype=st.sampled_from(["f4", "f8"]),
    scan_order=st.integers(0, 4),
)
def test_no_tensor_loses_by_being_in_a_block(
    exponents: list[int], dq: bool, density: int, dtype: str, scan_order: int
) -> None:
    """This holds for all sizes."""
    changed = {name: vector(2.0**exponent, dtype) for name, exponent in zip(NAMES, exponents, strict=True)}
    model = made(*NAMES, dtype=dtype, **changed)
    options: dict[str, Any] = {"dependent_quantization": dq, "qp_density": density, "scan_order": scan_order}
    try:
        data = nnr.encode(model, **options)
    except nnr.EncodeError as refusal:
        assert NAMES["scale"] in str(refusal)
        assert exponents[-1] >= (4 if dq else 11)
        return
    raw = nnr.decode(data, raw=True)
    for rec in (rec for group in BitstreamParser(UnitReader(data)).groups() for rec in recs(group)):
        if rec.levels is not None and rec.levels.any():  # exact multiples of the step size, as 7.3.3 requires
            level, value = next((n, x) for n, x in zip(rec.levels.flat, rec.values.flat, strict=True) if n)
            np.testing.assert_array_equal(rec.values.astype("f8"), rec.levels * (float(value) / float(level)))
    for name in NAMES.values():
        values = model[name].astype("f8")
        if not np.array_equal(raw[name], model[name].astype("f4")):
            assert np.abs(raw[name].astype("f8") - values).max() <= vector_bound(values), name


def test_zeros_stay_zeros() -> None:
    model = made("bias", *BN, bias=np.zeros(ROWS, "f4"), mean=np.zeros(ROWS, "f4"))
    got = nnr.decode(nnr.encode(model))
    assert not got[NAMES["bias"]].any()
    assert not got[NAMES["mean"]].any()


def test_options_of_each_tensor() -> None:
    """Each tensor has its own step size; the flag of dependent quantization is the weight's."""
    model = made("bias", *BN)
    rules = (
        nnr.Rule("layer.weight", qp=-20),
        nnr.Rule("layer.bias", exact=False, qp=-12),
        nnr.Rule("layer.mean", exact=False, qp=-12, dependent_quantization=False),
    )
    for dq in (False, True):
        data = nnr.encode(model, rules=rules, dependent_quantization=dq)
        assert len(units(data)) == 3
        got = nnr.decode(data)
        errors = {name: np.abs(got[name].astype("f8") - model[name]).max() for name in model}
        assert 2.0**-7 < errors["layer.weight"] <= 2 * step_size(-20)
        assert step_size(-12) / 8 < errors["layer.bias"] <= step_size(-12) * (2 if dq else 0.5)
        assert step_size(-12) / 8 < errors["layer.mean"] <= step_size(-12) / 2
        assert errors["layer.gamma"] <= vector_bound(model["layer.gamma"])


def test_the_unit_stands_where_its_first_tensor_does() -> None:
    w, b = RNG.normal(0, 1, (4, 3)).astype("f4"), RNG.normal(0, 1, 4).astype("f4")
    model = Model({"b": b, "x": w, "w": w}, blocks=[Block("w", bias="b")])
    assert units(nnr.encode(model)) == [(NNR_CPT_BI, ["w", "b"]), (0, ["x"])]


def test_two_blocks() -> None:
    w, b = RNG.normal(0, 1, (4, 3)).astype("f4"), RNG.normal(0, 1, 4).astype("f4")
    model = Model({"w1": w, "w2": w, "b2": b, "b1": b}, blocks=[Block("w1", bias="b1"), Block("w2", bias="b2")])
    data = nnr.encode(model)
    assert units(data) == [(NNR_CPT_BI, ["w1", "b1"]), (NNR_CPT_BI, ["w2", "b2"])]
    assert set(nnr.decode(data)) == set(model)


def test_tensors_are_read_twice(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read to plan and to code; a mapping with types and shapes may read them from a file each time."""
    monkeypatch.setattr("nnr_codec.encoder.encode.SURE", 0)  # no comparison with a lossless encoding
    read: list[str] = []

    class Lazy(dict[str, Array]):
        def __getitem__(self, name: str) -> Array:
            read.append(name)
            return super().__getitem__(name)

        def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
            array = super().__getitem__(name)
            return array.dtype, array.shape

    model = made(*NAMES)
    nnr.encode_file(Model(Lazy(model.tensors), blocks=model.blocks), tmp_path / "x.nnr", indexed_references=True)
    assert sorted(read) == sorted([*model, *model])


def test_the_report_counts_the_unit_once(tmp_path: Any) -> None:
    model = made("bias")
    report = nnr.encode_file(model, tmp_path / "x.nnr")
    assert set(report.tensors) == set(model)
    assert report.parameters == sum(array.size for array in model.tensors.values())
    assert report.tensors[NAMES["bias"]].unit_bytes == 0
    assert sum(tensor.unit_bytes for tensor in report.tensors.values()) < report.nbytes
    assert report.tensors["layer.weight"].unit_bytes > 100


# ------------------------------------------------------------------------------------------------ G and H
@pytest.mark.parametrize("shape", [None, (ROWS, 5, 3), (4, 45), (180,)])
@pytest.mark.parametrize("rank", [1, 2, 7])
@pytest.mark.parametrize("scan_order", [0, 1])
def test_products(shape: tuple[int, ...] | None, rank: int, scan_order: int) -> None:
    """The weight is not a tensor of the model; it is decoded, with its name and shape."""
    g, h = RNG.normal(0, 0.3, (ROWS, rank)).astype("f4"), RNG.normal(0, 0.3, (rank, 15)).astype("f4")
    first = (shape or (ROWS,))[0]
    bias, scale = np.ones(first, "f4"), np.full(first, 2.0, "f4")
    model = Model(
        {"bias": bias, "w.g": g, "w.h": h, "scale": scale},
        blocks=[Block("w", bias="bias", scale="scale", g="w.g", h="w.h", shape=shape)],
    )
    data = nnr.encode(model, scan_order=scan_order)
    types = NNR_CPT_DC | NNR_CPT_LS | NNR_CPT_BI
    assert units(data) == [(types, ["w", "w_H", "scale", "bias"])]
    got, raw = nnr.decode(data), nnr.decode(data, raw=True)
    assert set(got) == {"w", "bias"}
    assert set(raw) == {"w", "w_H", "scale", "bias"}
    assert got["w"].shape == (shape or (ROWS, 15))
    assert np.abs(raw["w"].astype("f8") - g).max() <= 2 * step_size(-40)
    want = 2 * (raw["w"].astype("f8") @ raw["w_H"].astype("f8")).reshape(got["w"].shape)
    np.testing.assert_allclose(got["w"], want, rtol=1e-6, atol=1e-7)


def test_a_product_alone_is_a_block() -> None:
    """This includes the result of decode(raw=True), in which G has the name of the weight."""
    model = Model({"w": np.eye(4, 2, dtype="f4"), "w_H": np.ones((2, 6), "f4")}, blocks=[Block("w", g="w", h="w_H")])
    data = nnr.encode(model, qp=-40)
    assert units(data) == [(NNR_CPT_DC, ["w", "w_H"])]
    np.testing.assert_array_equal(nnr.decode(data)["w"], model["w"] @ model["w_H"])
    assert nnr.encode(Model(nnr.decode(data, raw=True).tensors, blocks=model.blocks), qp=-40) == data


def test_factors_of_different_flags_are_quantized_uniformly() -> None:
    model = Model({"g": np.eye(4, 2, dtype="f4"), "h": np.ones((2, 6), "f4")}, blocks=[Block("w", g="g", h="h")])
    data = nnr.encode(model, rules=(nnr.Rule("h", dependent_quantization=False),))
    (unit,) = (unit for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU)
    assert unit.ndu.dq_flag == 0
    assert unit.ndu.nnr_compressed_data_unit_payload_type == NNR_PT_BLOCK


# ------------------------------------------------------------------------------------------------ separate tensors
APART: dict[str, tuple[dict[str, Array], dict[str, Any], int]] = {
    "a bias of another shape": ({"bias": np.ones((1, ROWS), "f4")}, {}, NNR_CPT_BN),
    "a bias of another length": ({"bias": np.ones(5, "f4")}, {}, NNR_CPT_BN),
    "a bias of another type": ({"bias": np.ones(ROWS, "f8")}, {}, NNR_CPT_BN),
    "a bias of integers": ({"bias": np.ones(ROWS, "i4")}, {}, NNR_CPT_BN),
    "an exact bias": ({}, {"rules": (nnr.Rule("*.bias", exact=True),)}, NNR_CPT_BN),
    "a bias that no step suits": ({"bias": np.geomspace(1e-20, 1, ROWS, dtype="f4")}, {}, NNR_CPT_BN),
    "a large variance with dependent quantization": (
        {"var": np.append(np.ones(ROWS - 1), 370_000).astype("f4")},
        {},
        NNR_CPT_BI,
    ),
    "a mean of another type": ({"mean": vector(dtype="f8")}, {}, NNR_CPT_BI),
    "an exact weight": ({}, {"rules": (nnr.Rule("*.weight", exact=True),)}, 0),
    "all exact": ({}, {"exact": True}, 0),
    "a weight of integers": ({"weight": np.ones((ROWS, 2), "i4")}, {}, 0),
}


@pytest.mark.parametrize("case", APART.values(), ids=APART)
def test_what_the_unit_cannot_hold_is_coded_apart(case: tuple[dict[str, Array], dict[str, Any], int]) -> None:
    """Each tensor has its own unit at its position; decoded tensors are the same as without a block."""
    changed, options, types = case
    model = made("bias", *BN, **changed)
    data = nnr.encode(model, **options)
    found = {names[0].removesuffix("#levels"): kind for kind, names in units(data)}
    assert found["layer.weight"] == types
    assert (NAMES["bias"] in found) == (not types & NNR_CPT_BI)
    assert all((NAMES[name] in found) == (not types & NNR_CPT_BN) for name in BN)
    got, plain = nnr.decode(data), nnr.decode(nnr.encode(Model(model.tensors), **options))
    assert set(got) == set(plain)
    for name in plain:
        assert got[name].shape == plain[name].shape
        assert got[name].dtype == plain[name].dtype
        if name in found and name != "layer.weight":
            np.testing.assert_array_equal(got[name], plain[name])


def test_a_large_variance_is_in_the_unit_without_dependent_quantization() -> None:
    model = made(*BN, var=vector(20.0))
    assert NNR_CPT_BN in dict(units(nnr.encode(model, dependent_quantization=False)))


def test_an_incomplete_batch_normalization_is_apart() -> None:
    model = made("beta", "gamma", "bias")
    assert (NNR_CPT_BI, ["layer.weight", NAMES["bias"]]) in units(nnr.encode(model))


def test_float16() -> None:
    """Vectors of float16 do not fit a unit with dependent quantization, except with their own step size."""
    model = made("bias", dtype="f2")
    assert (0, ["layer.weight"]) in units(nnr.encode(model, qp=-40))
    data = nnr.encode(model, qp=-40, rules=(nnr.Rule("*.bias", exact=False, qp=-32),))
    assert (NNR_CPT_BI, ["layer.weight", NAMES["bias"]]) in units(data)
    got = nnr.decode(data)
    assert {array.dtype.name for name, array in got.tensors.items() if "layer" in name} == {"float16"}
    assert np.abs(got[NAMES["bias"]].astype("f8") - model[NAMES["bias"]]).max() <= 2 * step_size(-32)


# ------------------------------------------------------------------------------------------------ rejected input
G, H = np.ones((4, 2), "f4"), np.ones((2, 6), "f4")


@pytest.mark.parametrize(
    ("tensors", "block", "message"),
    [
        ({"w": G}, Block("w", bias="b"), "block of 'w' refers to 'b', which is not a tensor"),
        ({"w": G}, Block("v"), "block of 'v' refers to 'v', which is not a tensor"),
        ({"w": G, "b": G[:, 0]}, Block("w", bias="b", beta="b"), "'b' is in two blocks, or twice in one"),
        ({"g": G, "h": H}, Block("w", g="g"), "one of g and h"),
        ({"g": G, "h": H, "w": G}, Block("w", g="g", h="h"), "two tensors would have the name 'w'"),
        ({"g": G, "h": H, "w_H": G}, Block("w", g="g", h="h"), "two tensors would have the name 'w_H'"),
        ({"g": G, "h": G}, Block("w", g="g", h="h"), "have no matrix product"),
        ({"g": G, "h": H[0]}, Block("w", g="g", h="h"), "have no matrix product"),
        ({"g": G, "h": H}, Block("w", g="g", h="h", shape=(4, 7)), r"cannot have the shape \(4, 7\)"),
        ({"g": G, "h": H}, Block("w", g="g", h="h", shape=(24, *[1] * 32)), "cannot have the shape"),
        ({"g": G, "h": H}, Block("w\0", g="g", h="h"), "zero character"),
        ({"g": G, "h": H}, Block("w" * 4095, g="g", h="h"), "exceeds the default limits of decoders"),
        ({"": G, "h": H}, Block("w", g="", h="x"), "refers to 'x', which is not a tensor"),
        ({"g": G, "h": H}, Block("w", g="g", h="h", shape=()), r"cannot have the shape \(\)"),
        ({"g": G, "h": H.astype("f8")}, Block("w", g="g", h="h"), "'h' decodes to TENSOR_FLOAT64, 'g' to TENSOR_FLOAT"),
        ({"g": G.astype("i4"), "h": H}, Block("w", g="g", h="h"), "'g' has integers"),
        ({"w": G, "s": G[:, 0].astype("i4")}, Block("w", scale="s"), "'s' has integers"),
        ({"w": G, "s": G[:2, 0]}, Block("w", scale="s"), r"'s' has shape \(2,\), not \(4,\)"),
        ({"w": G, "s": np.geomspace(1e-20, 1, 4, dtype="f4")}, Block("w", scale="s"), "'s' is stored losslessly"),
        ({"w": G.astype("i4"), "s": G[:, 0]}, Block("w", scale="s"), "'w' has integers"),
        ({"w": G, "s": np.zeros(0, "f4")}, Block("w", scale="s"), "'s' is empty"),
    ],
)
def test_refusals(tensors: dict[str, Array], block: Block, message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.encode(Model(tensors, blocks=[block]))


def test_a_tensor_in_two_blocks_is_refused() -> None:
    model = Model({"v": G, "w": G, "b": G[:, 0]}, blocks=[Block("v", bias="b"), Block("w", bias="b")])
    with pytest.raises(nnr.EncodeError, match="'b' is in two blocks, or twice in one"):
        nnr.encode(model)


@pytest.mark.parametrize("scan_order", [0, 1])
def test_codebooks_in_blocks(scan_order: int) -> None:
    rng = np.random.default_rng(3)
    tensors = {"g": rng.normal(size=(20, 4)), "h": rng.normal(size=(4, 30)), "w": rng.normal(size=(20, 9))}
    tensors |= {name: rng.normal(size=20) for name in ("b", "c")}
    model = nnr.Model(
        {name: tensor.astype(np.float32) for name, tensor in tensors.items()},
        blocks=[nnr.Block("product", g="g", h="h", bias="b"), nnr.Block("w", bias="c")],
    )
    data = nnr.encode(model, codebook=16, scan_order=scan_order)
    assert not nnr.verify(data).violations
    product, plain = [unit.ndu for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU]
    assert product.codebook.codebook_size <= 16
    assert product.codebook_dc.codebook_size <= 16
    assert plain.codebook_present_flag
    assert "codebook_dc" not in plain
    found = nnr.decode(data)
    assert np.unique(found["w"]).size <= 16
    assert np.corrcoef(found["product"].ravel(), (model["g"] @ model["h"]).ravel())[0, 1] > 0.98


def test_factors_share_codebooks_or_have_none() -> None:
    model = nnr.Model(
        {"g": RNG.normal(size=(9, 4)), "h": RNG.normal(size=(4, 8))}, blocks=[nnr.Block("product", g="g", h="h")]
    )
    data = nnr.encode(model, rules=[nnr.Rule("g", codebook=4)])
    (unit,) = [unit.ndu for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU]
    assert not unit.codebook_present_flag
