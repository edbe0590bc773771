"""Exact codes: their selection, requirements and sizes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.units import Unit
from nnr_codec.config import EncoderConfig
from nnr_codec.constants import NNR_MPS, NNR_NDU, NNR_PT_FLOAT, NNR_QCB, NNR_QSU, NNR_TPL, NNR_TPL_REFLIST, PayloadType
from nnr_codec.dtypes import STORED_TYPES
from nnr_codec.encoder.encode import encode_units
from nnr_codec.encoder.exact_codes import grid_codes
from nnr_codec.encoder.facts import tensor_facts
from nnr_codec.encoder.reduce import prepare
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Block, Model, Wiring
from nnr_codec.sideinfo.codes import split
from nnr_codec.sideinfo.record import TensorRecord

from ..shared import SHARED, needs_shared

SHAPE = (64, 96)
BFLOAT16 = STORED_TYPES["bfloat16"].dtype


def rng(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(shape: tuple[int, ...] = SHAPE, dtype: Any = "f4") -> Array:
    return rng().normal(0, 0.1, shape).astype(dtype)


def quantized(bits: int, axis: int | None = None, dtype: Any = "f4", zero_point: int = 0) -> Array:
    """Return weights after symmetric quantization to integers and back to floats."""
    values, most = normal(), (1 << (bits - 1)) - 1
    scale = np.abs(values).max(axis=None if axis is None else 1 - axis, keepdims=True) / np.float32(most)
    integers = np.rint(values / scale).astype("i4") - zero_point
    return (integers * scale).astype("f4").astype(dtype)


def affine(zero_point: int, dtype: Any = "f4", most: int = 255) -> Array:
    """Return random numbers after quantization with a zero point; the largest integers of rows differ."""
    integers = rng().integers(0, most, SHAPE, endpoint=True) - zero_point
    scale = rng(8).uniform(0.001, 0.01, (SHAPE[0], 1)).astype("f4")
    return (integers.astype("f4") * scale).astype(dtype)


def side(data: bytes, name: str = "w") -> Any:
    """Return the code of a tensor; None if it has none."""
    record = nnr.open(data).side.tensors.get(name)
    return record.code if record else None


def units(data: bytes, unit_type: int) -> Iterator[Unit]:
    return (unit for unit in nnr.units(data) if unit.header.nnr_unit_type == unit_type)


def assert_exact(data: bytes, **tensors: Array) -> None:
    decoded = nnr.decode(data)
    for name, array in tensors.items():
        assert decoded[name].dtype == array.dtype
        assert decoded[name].shape == array.shape
        assert decoded[name].tobytes() == array.tobytes(), name


# ------------------------------------------------------------------------------------------------ choice of codes
def few(values: Any, dtype: Any = "f4") -> Array:
    return rng().choice(np.array(values, dtype), SHAPE)


CODES: dict[str, tuple[Array, str, float]] = {  # the tensor, its code, and the maximum number of bits per parameter
    "float32": (normal(), "float", 27.6),
    "float64": (normal(dtype="f8"), "float", 56.6),
    "float16": (normal(dtype="f2"), "float", 14.2),
    "bfloat16": (normal(dtype=BFLOAT16), "float", 11.3),
    "of bfloat16": (normal(dtype=BFLOAT16).astype("f4"), "float", 11.3),
    "of float32": (normal().astype("f8"), "float", 27.6),
    "pruned": (normal((640, 96)) * (rng().random((640, 96)) < 0.05).astype("f4") + np.float32(0), "float", 1.9),
    "variances": (np.abs(normal()), "float", 26.6),
    "clusters": (few(rng().normal(0, 1, 30)), "palette", 5.5),
    "with -0.0": (few([-0.0, 0.0, 0.5]), "palette", 1.9),
    "with a nan": (few([np.nan, 1.0, np.inf]), "palette", 1.9),
    "clusters of a grid": (few([-7.5, -1, 0, 0.25, 11]), "codebook", 2.6),
    "one value": (np.full(SHAPE, 0.3, "f4"), "codebook", 0.2),
    "zeros": (np.zeros(SHAPE, "f4"), "step", 0.1),
    "a grid": (rng().integers(-300, 300, SHAPE).astype("f4") * np.float32(5 / 1024), "step", 10.8),
    "int8": (quantized(8), "grid", 7.4),
    "int4": (quantized(4), "codebook", 3.5),
    "int8 by rows": (quantized(8, 0), "grid", 8.4),
    "int8 by columns": (quantized(8, 1), "grid", 8.7),
    "int4 by rows, zero point": (quantized(4, 0, zero_point=3), "grid", 4.6),
    "int8 by rows, float16": (quantized(8, 0, "f2"), "grid", 8.4),
    "int8 by rows, bfloat16": (quantized(8, 0, BFLOAT16), "grid", 8.4),
    "uint8 by rows, float16": (affine(100, "f2"), "grid", 9.1),
    "uint8 by rows": (affine(100), "grid", 9.1),
    "ternary by rows": (affine(1, most=2), "grid", 2.5),
    "int16": (quantized(16), "grid", 15.9),
    "random bits": (rng().integers(0, 1 << 32, SHAPE).astype("u4").view("f4"), "raw float", 32.1),
    "random bits of float16": (rng().integers(0, 1 << 16, SHAPE).astype("u2").view("f2"), "raw", 16.2),
    "uint8": (rng().integers(0, 256, SHAPE).astype("u1"), "raw", 8.2),
    "int8 itself": (np.rint(normal() * 300).astype("i1"), "integers", 7.2),
    "uint8 with zero point": (np.rint(normal() * 200 + 128).astype("u1"), "integer", 6.7),
    "uint32": (rng().integers((1 << 32) - 100, 1 << 32, SHAPE).astype("u4"), "integer", 7.4),
    "int64": (rng().integers(1 << 50, 1 << 51, SHAPE), "integer", 54.0),
    "uint64": (rng().integers((1 << 63) - 500, (1 << 63) - 1, SHAPE).astype("u8") * 2, "integer", 10.7),
    "few of int64": (few([-(1 << 63), 3, 1 << 40], "i8"), "palette", 1.9),
    "random bits of int64": (rng().integers(-(1 << 63), (1 << 63) - 1, SHAPE), "raw", 64.2),
    "booleans": (rng().random(SHAPE) < 0.1, "integers", 0.7),
}


@pytest.mark.parametrize("case", CODES.values(), ids=CODES)
def test_the_code_of(case: tuple[Array, str, float]) -> None:
    array, expected, bits = case
    data = nnr.encode({"w": array}, exact=True)
    assert_exact(data, w=array)
    code = side(data)
    info = nnr.open(data).info["w"]
    plain = {
        PayloadType.NNR_PT_FLOAT: "codebook" if "codebook" in info.tools else "step",
        PayloadType.NNR_PT_RAW_FLOAT: "raw float",
        PayloadType.NNR_PT_INT: "integers",
    }
    assert (code.KIND if code else plain[info.payload_type]) == expected
    assert 8 * len(data) / array.size <= bits


@pytest.mark.parametrize("name", CODES)
def test_what_needs_no_record_is_the_same_for_every_decoder(name: str) -> None:
    array, expected, _ = CODES[name]
    if expected in ("codebook", "step", "raw float"):
        data = nnr.encode({"w": array}, exact=True)
        assert not nnr.open(data).side
        assert nnr.decode(data, raw=True)["w"].tobytes() == array.tobytes()
        assert nnr.encode({"w": array}, exact=True, side_info=False) == data


def test_a_codebook_is_flagged() -> None:
    """The flag is in mps_quantization_method_flags; entries increase, and one of them is 0 or the most frequent."""
    (parameters,) = units(nnr.encode({"w": CODES["clusters of a grid"][0]}), NNR_MPS)
    assert parameters.payload.mps_quantization_method_flags == NNR_QSU | NNR_QCB  # type: ignore[union-attr]
    (parameters,) = units(nnr.encode({"w": normal()}), NNR_MPS)
    assert parameters.payload.mps_quantization_method_flags == NNR_QSU  # type: ignore[union-attr]


@pytest.mark.medium
@pytest.mark.parametrize("density", range(8))
@pytest.mark.parametrize("odd", [1, 3, 5, 7, 9, 31, 255, 257])
def test_steps_of_every_density(density: int, odd: int) -> None:
    """There are 2**density mantissas; a grid with another mantissa uses the power of two in it."""
    array = rng().integers(-100, 100, SHAPE).astype("f4") * np.float32(odd / 2048)
    data = nnr.encode({"w": array}, exact=True, qp_density=density, side_info=False)
    assert_exact(data, w=array)
    (unit,) = units(data, NNR_NDU)
    assert unit.ndu.nnr_compressed_data_unit_payload_type == NNR_PT_FLOAT
    assert 8 * len(data) / array.size < (8.5 if odd < 2 << density else 17)


@pytest.mark.parametrize(
    "array",
    [
        few([1.0, 2.0**-40]),  # too far apart for a codebook's 32 bits
        few([1.0, -0.0]),
        few([2.0**40, 3.0]),
        few([1e-45, 2e-45]),  # no step size is as small
        np.full(SHAPE, 2.0**-140, "f4"),
        few([1.0, np.nextafter(np.float32(1), np.float32(2)), 3e38]),
        few([2.0**-24, 1.0], "f2"),  # a step size that is not a normal number of float16
        few([2.0**-24, 2.0**-22], "f2"),
        few([5e-324, 1e308], "f8"),
        few([1.0, 1 + 2.0**-30], "f8"),  # profile 0 has float32 only
    ],
)
@pytest.mark.parametrize("profile", [0, 1])
@pytest.mark.parametrize("exact", [None, True])
def test_the_ends_of_exact_steps(array: Array, profile: int, exact: bool | None) -> None:
    data = nnr.encode({"w": array}, exact=exact, profile=profile)
    got = nnr.decode(data)["w"]
    assert got.dtype == array.dtype
    if exact:
        assert got.tobytes() == array.tobytes()


@pytest.mark.parametrize("base", [-(1 << 31), 0, 1 << 31, (1 << 63) - (1 << 32)])
@pytest.mark.parametrize("span", [1, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
def test_integers_of_any_range(base: int, span: int) -> None:
    array = np.concatenate([[base, base + span], base + rng().integers(0, span, 200)]).astype("i8")
    for name in ("int64", "uint64") if base >= 0 else ("int64",):
        assert_exact(nnr.encode({"w": array.astype(name)}, exact=True), w=array.astype(name))


# ------------------------------------------------------------------------------------------------ the default
def test_the_default_uses_smaller_exact_codes() -> None:
    array = CODES["clusters of a grid"][0]
    data = nnr.encode({"w": array})
    assert_exact(data, w=array)
    assert not nnr.open(data).side
    assert len(data) < len(nnr.encode({"w": array}, exact=False))
    assert "codebook" in nnr.open(data).info["w"].tools


def test_the_default_stays_lossy_where_that_is_smaller() -> None:
    for array in (normal(), rng().integers(-100, 100, SHAPE).astype("f4") / np.float32(2**22), normal(dtype="f2")):
        assert nnr.encode({"w": array}, qp=-40) == nnr.encode({"w": array}, qp=-40, exact=False)


def test_the_default_is_exact_where_floats_have_few_bits() -> None:
    array = normal(dtype=STORED_TYPES["float8_e4m3fn"].dtype)
    data = nnr.encode({"w": array})
    assert data == nnr.encode({"w": array}, exact=True)
    assert_exact(data, w=array)


def test_a_grid_on_which_a_product_is_rounded_up_to_a_power_of_two() -> None:
    """Numbers below it are closer to each other than numbers above."""
    integers = [1, 2, 3, 6, 7, 9, 23, 25, 30, 36, 38, 40, 41, 43, 48, 58, 63, 65, 68, 80, 82, 93, 115, 118, 119, 127]
    row = (np.array(integers, "f4") * np.float32(np.float16(0.00026035))).astype("f2")
    assert 2.0**-7 in row
    (code,) = grid_codes(tensor_facts("w", row, EncoderConfig()))
    assert split(TensorRecord("float16", code=code), row)[0].tolist() == integers


@pytest.mark.medium
def test_a_palette_of_nearly_as_many_values_as_decoders_read() -> None:
    array = rng().normal(size=60_000).astype("f4")[rng().integers(0, 60_000, 1_000_000)]
    data = nnr.encode({"w": array}, exact=True)
    assert side(data).KIND == "palette"
    assert_exact(data, w=array)


def test_tiny_tensors_have_no_code_where_raw_ones_do() -> None:
    tensors = {"floats": normal((11,)), "rows": np.full((5, 2), 0.3, "f4"), "integers": np.array([1 << 40, -(1 << 63)])}
    data = nnr.encode(tensors, exact=True)
    assert [side(data, name) and side(data, name).KIND for name in tensors] == [None, None, "raw"]
    assert_exact(data, **tensors)


def test_a_block_has_no_exact_codes() -> None:
    array = CODES["clusters of a grid"][0]
    model = Model({"w": array, "b": np.ones(64, "f4")}, blocks=[Block("w", bias="b")])
    (unit,) = units(nnr.encode(model), NNR_NDU)
    assert not unit.ndu.codebook_present_flag
    assert_exact(nnr.encode(model, exact=True), **model.tensors)


# ------------------------------------------------------------------------------------------------ ids
def test_names_of_other_bits_are_free() -> None:
    model = {name: normal() + np.float32(k) for k, name in enumerate(["w#bits", "w", "w##bits", "w#", "#bits", ""])}
    data = nnr.encode(model, exact=True)
    assert list(nnr.decode(data)) == list(model)
    assert_exact(data, **model)
    ids = [str(unit.ndu.topology_elem_id) for unit in units(data, NNR_NDU)]
    assert len(set(ids)) == len(ids) == 2 * len(model)
    assert ids[2:4] == ["w#levels", "w###bits"]


def test_a_name_that_leaves_no_room_for_another() -> None:
    name = "x" * Limits().max_name_bytes
    for array in (normal(), normal(dtype="f8"), rng().integers(0, 1 << 60, SHAPE)):
        assert_exact(nnr.encode({name: array}, exact=True), **{name: array})


def test_the_reference_list_has_all_ids() -> None:
    data = nnr.encode({"a": normal(), "b": np.ones((3, 3), "f4")}, exact=True, indexed_references=True)
    (unit,) = (u for u in units(data, NNR_TPL) if u.header.detail.topology_storage_format == NNR_TPL_REFLIST)
    assert unit.payload.topology_elem_id_list == ["a#levels", "a#bits", "b"]  # type: ignore[union-attr]
    assert list(nnr.decode(data)) == ["a", "b"]


# ------------------------------------------------------------------------------------------------ the record
@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ({"ok": normal(), "w": np.ones((2, 2), "u1")}, {}, "'w' has type uint8, which NNR cannot represent"),
        ({"w": np.ones((2, 2), "f2")}, {"profile": 0}, "'w' has type float16, which profile 0 cannot represent"),
        ({"w": np.float32(3)}, {}, r"'w' has no dimensions: shape \(\)"),
        ({"w": np.ones((2, 2), BFLOAT16)}, {"exact": True}, "'w' has type bfloat16"),
        (Model({"w": normal()}, metadata={"a": "b"}), {}, "metadata"),
        (Model({"v": normal(), "w": normal()}, aliases={"w": "v"}), {}, "'w' is tied to 'v'"),
    ],
)
def test_without_side_information_it_is_refused(model: Any, options: dict[str, Any], message: str) -> None:
    assert nnr.open(nnr.encode(model, **options)).side
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.encode(model, **options, side_info=False)


def test_source_and_metadata() -> None:
    model = Model({"w": normal()}, metadata={"ü": "\n"}, format="safetensors")
    decoded = nnr.decode(nnr.encode(model))
    assert (decoded.format, decoded.metadata) == ("safetensors", {"ü": "\n"})
    plain = nnr.encode(Model({"w": normal()}, format="safetensors"))
    assert plain == nnr.encode({"w": normal()})  # the format alone does not justify a record


def test_a_record_that_is_too_long_is_refused() -> None:
    metadata = {"a": "b" * Limits().max_side_info_bytes}
    with pytest.raises(nnr.EncodeError, match=r"side information of .* exceeds the default limits"):
        nnr.encode(Model({"w": normal()}, metadata=metadata))


def test_palettes_leave_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum is bounded: tensors that exceed it are coded in another way."""
    for module in ("unit_layout", "preamble"):
        monkeypatch.setattr(f"nnr_codec.encoder.{module}.DEFAULT_LIMITS", Limits(max_side_info_bytes=2000))
    model = {f"{k}": CODES["clusters"][0] * np.float32(1.1**k) for k in range(9)}
    data = nnr.encode(model, exact=True)
    assert_exact(data, **model)
    kinds = [code.KIND if (code := side(data, name)) else "" for name in model]
    assert kinds == ["palette"] * 5 + ["float"] * 2 + [""] * 2


# ------------------------------------------------------------------------------------------------ ties
def test_the_same_memory_is_coded_once() -> None:
    w = normal()
    model = {"a": w, "b": w[:], "c": w.T, "d": w.view("i4"), "e": w[:-1], "f": w.copy(), "": w, "g": w}
    data = nnr.encode(model, exact=True)
    assert_exact(data, **model)
    assert list(nnr.decode(data)) == list(model)
    assert nnr.decode(data).aliases == {"b": "a", "g": "a"}
    untied = nnr.encode(model, exact=True, side_info=True, rules=[nnr.Rule("b", exact=False)])
    assert nnr.decode(untied).aliases == {"g": "a"}


def test_arrays_that_are_read_anew_are_not_tied() -> None:
    """They may be at the address of earlier arrays."""

    class Lazy(dict[str, Array]):
        def __getitem__(self, name: str) -> Array:
            return np.full(SHAPE, float(name), "f4")

    tensors = Lazy.fromkeys(map(str, range(20)))
    data = nnr.encode(Model(tensors), exact=True)
    assert not nnr.decode(data).aliases
    assert_exact(data, **{name: tensors[name] for name in tensors})


def test_ties_that_a_model_names() -> None:
    w = normal()
    tensors = {"c": w.copy(), "a": w, "b": w.copy(), "d": w}
    decoded = nnr.decode(nnr.encode(Model(tensors, aliases={"c": "b", "b": "a"}), exact=True))
    assert decoded.aliases == {"c": "a", "b": "a", "d": "a"}
    assert list(decoded) == list(tensors)
    assert decoded["c"] is decoded["a"]
    for aliases in ({"b": "x"}, {"x": "a"}, {"a": "a"}, {"a": "b", "b": "a"}):
        with pytest.raises(nnr.EncodeError, match="declared as tied"):
            nnr.encode(Model(tensors, aliases=aliases))
    for other in (w + 1, w.T, w.astype("f8"), w.view("i4")):
        with pytest.raises(nnr.EncodeError, match="'b' is declared as tied to 'a', but differs from it"):
            nnr.encode(Model({"a": w, "b": other}, aliases={"b": "a"}))


def test_a_tie_to_a_tied_tensor_is_one_to_the_first() -> None:
    """It does not matter how either tie was found."""
    w = normal()
    decoded = nnr.decode(nnr.encode(Model({"x": w, "a": w, "b": w.copy()}, aliases={"b": "a"})))
    assert decoded.aliases == {"a": "x", "b": "x"}


def test_blocks_are_not_tied() -> None:
    w, s = normal(), np.full(64, 2.0, "f4")
    model = Model({"w": w, "s": s, "v": w, "t": s}, blocks=[Block("w", scale="s")], aliases={"v": "w", "w": "v"})
    with pytest.raises(nnr.EncodeError, match="tied in a cycle"):
        nnr.encode(model)
    model.aliases = {"v": "w", "t": "s"}
    decoded = nnr.decode(nnr.encode(model, qp=-40))
    assert not decoded.aliases
    assert np.abs(decoded["v"] - w).max() < 0.01
    assert np.abs(decoded["w"] - 2 * w).max() < 0.01


# ------------------------------------------------------------------------------------------------ reports, memory
def test_the_report_has_all_tensors(tmp_path: Path) -> None:
    w = normal()
    model = {"w": w, "tied": w, "empty": np.zeros((0, 4), "f4"), "scalar": np.float32(1)}
    report = nnr.encode_file(model, tmp_path / "x.nnr", exact=True)
    assert list(report.tensors) == list(model)
    assert [tensor.unit_bytes > 0 for tensor in report.tensors.values()] == [True, False, False, True]
    assert [tensor.parameters for tensor in report.tensors.values()] == [w.size, w.size, 0, 1]
    ndus = sum(unit.size.nnr_unit_size for unit in units((tmp_path / "x.nnr").read_bytes(), NNR_NDU))
    assert sum(tensor.unit_bytes for tensor in report.tensors.values()) == ndus


@pytest.mark.medium
def test_planning_keeps_no_tensor() -> None:
    class Lazy(dict[str, Array]):
        def __getitem__(self, name: str) -> Array:
            return np.random.default_rng(int(name)).normal(0, 0.1, (400, 1000)).astype("f4")

    tensors = Lazy.fromkeys(map(str, range(12)))
    nnr.encode({"warm": normal()}, exact=True)
    tracemalloc.start()
    config = nnr.EncoderConfig(exact=True)
    for _ in encode_units(prepare(Model(tensors), config, Wiring()), config):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 1_600_000


def test_coding_keeps_no_tensor(tmp_path: Path) -> None:
    """At most the tensor, its levels and its other bits are in memory at once."""
    tensor = normal((1000, 2000))
    np.savez(tmp_path / "m.npz", w=tensor)
    nnr.encode({"warm": normal()}, exact=True)
    tracemalloc.start()
    nnr.encode_file(tmp_path / "m.npz", tmp_path / "m.nnr", exact=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3.5 * tensor.nbytes


# ------------------------------------------------------------------------------------------------ options
def test_presets() -> None:
    assert nnr.EncoderConfig.preset("lossless") == nnr.EncoderConfig(exact=True)
    assert nnr.EncoderConfig.preset("default", qp=-20) == nnr.EncoderConfig(qp=-20)
    assert nnr.EncoderConfig.preset("lossless", exact=None, profile=0) == nnr.EncoderConfig(profile=0)
    with pytest.raises(
        nnr.EncodeError, match="unknown preset 'tiny'; choose from default, small, balanced, fine, lossless"
    ):
        nnr.EncoderConfig.preset("tiny")
    with pytest.raises(nnr.EncodeError, match="side_info must be true or false, got 1"):
        nnr.EncoderConfig(side_info=1)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ real networks
@pytest.mark.medium
@needs_shared
@pytest.mark.parametrize(
    ("name", "most"),
    [("resnet20_cifar10", 914_309), ("resnet56_cifar10", 2_887_037), ("squeezenet1_0_deepcompression", 600_099)],
)
def test_real_networks(name: str, most: int) -> None:
    """The size is at most zstd -19 over byte planes, and for the quantized one the size of its paper's codes."""
    assert SHARED
    model = nnr.load(SHARED / "models" / f"{name}.safetensors")
    data = nnr.encode(model, exact=True)
    assert_exact(data, **model.tensors)
    assert len(data) <= most


def test_zeros_of_a_mask_cost_little() -> None:
    """Pruning by a product leaves +0.0 and -0.0, which take a bit each."""
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((256, 256)).astype(np.float32)
    pruned = weights * (rng.random(weights.shape) < 0.1)
    data = nnr.encode({"w": pruned}, exact=True)
    assert nnr.decode(data)["w"].tobytes() == pruned.tobytes()
    assert 8 * len(data) < 4.2 * pruned.size


def test_a_tensor_that_changes_meanwhile() -> None:
    class Restless(dict[str, Array]):
        def __getitem__(self, name: str) -> Array:
            self[name] = array = super().__getitem__(name).repeat(2, axis=0)
            return array

    values = np.random.default_rng(1).standard_normal((64, 8))
    for dtype in ("float16", "float64"):
        with pytest.raises(nnr.EncodeError, match="'w' changed during encoding"):
            nnr.encode(nnr.Model(Restless(w=values.astype(dtype))), exact=True)
    with pytest.raises(nnr.EncodeError, match="'w' changed"):
        nnr.encode(nnr.Model(Restless(w=values.astype("f4"))))


# ------------------------------------------------------------------------------------------------ integers near entropy
@pytest.mark.parametrize("sigma", [16, 32])
def test_normal_integers_take_their_entropy(sigma: int) -> None:
    """Low bits are uniform, and arithmetic coding would increase their size."""
    integers = np.rint(rng().normal(0, sigma, (700, 700))).clip(-128, 127).astype("i1")
    counts = np.unique(integers, return_counts=True)[1] / integers.size
    entropy = -integers.size * float((counts * np.log2(counts)).sum()) / 8
    data = nnr.encode({"w": integers}, exact=True)
    assert side(data).low > 0
    assert len(data) < 1.005 * entropy + 200
    assert np.array_equal(nnr.decode(data)["w"], integers)


def test_palettes_in_order_of_frequency() -> None:
    """The most frequent values are far from each other."""
    ends = np.where(rng().random((300, 300)) < 0.5, -100, 100) + rng(8).integers(0, 9, (300, 300))
    data = nnr.encode({"w": ends.astype("i1")}, exact=True)
    assert side(data).KIND == "palette"
    assert len(data) < 1.03 * np.log2(18) / 8 * ends.size + 200
