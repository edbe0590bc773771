"""Guarantees of the encoder: errors, types, options, and deterministic bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nnr_codec as nnr
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.cabac_ext.kernel import PayloadDecoder
from nnr_codec.constants import NNR_NDU, PayloadType
from nnr_codec.decoder.decode import BitstreamParser
from nnr_codec.decoder.reconstruct import Rec
from nnr_codec.decoder.state import UpdateState
from nnr_codec.dtypes import STORED_TYPES
from nnr_codec.encoder.facts import fast_scan_order, native
from nnr_codec.limits import Budget, Limits
from nnr_codec.syntax.structures import NnrCompressedDataUnitHeader

from ..builder import step_size
from ..shared import examples

pytestmark = pytest.mark.medium

RNG = np.random.default_rng(12)
MATRIX = RNG.normal(0, 0.3, (40, 30)).astype("f4")


def headers(data: bytes) -> dict[str, NnrCompressedDataUnitHeader]:
    """Return headers of the compressed data units by name."""
    return {unit.ndu.topology_elem_id: unit.ndu for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU}


def has_record(data: bytes) -> bool:
    """Return whether there is side information."""
    return bool(nnr.open(data).side)


def kind(data: bytes, name: str = "w") -> PayloadType:
    """Return the payload type of a tensor."""
    return nnr.open(data).info[name].payload_type


def coded(values: Any, **options: Any) -> Any:
    """Return a tensor after the codec."""
    return nnr.decode(nnr.encode({"w": values}, **options))["w"]


def vector_bound(values: Any, step: float = step_size(-40)) -> float:
    """Return the largest error of a vector at the step size of other tensors."""
    octaves = float(np.log2(step / step_size(-40)))
    mean = float(np.sqrt((values.astype("f8") ** 2).mean()))
    return 1.1 * mean * 2.0 ** (min(octaves, octaves / 2, 2) - 10)


def error(values: Any, **options: Any) -> float:
    """Return the largest error in float64."""
    return float(np.abs(coded(values, **options).astype("f8") - values.astype("f8")).max())


# ------------------------------------------------------------------------------------------------ default choices
def test_a_matrix_is_quantized_at_qp() -> None:
    data = nnr.encode({"w": MATRIX}, qp=-40)
    header = headers(data)["w"]
    assert header.nnr_compressed_data_unit_payload_type == PayloadType.NNR_PT_FLOAT
    assert header.dq_flag == 1
    assert error(MATRIX, qp=-40) < 2 * step_size(-40)
    ratio = nnr.decode(data)["w"].astype("f8") / step_size(-40)
    np.testing.assert_array_equal(ratio, np.rint(ratio))
    assert len(data) < MATRIX.nbytes / 2


@pytest.mark.parametrize("shape", [(50,), (1, 50), (50, 1), (1, 50, 1), (1, 1, 1), (1,), ()])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("scale", [1e-12, 1e-5, 0.1, 1, 30, 2047, 1e5])
def test_a_vector_is_kept_finely(shape: tuple[int, ...], dtype: str, scale: float) -> None:
    """The error is within 2**-10 of the root mean square, or the rounding to float32."""
    values = RNG.normal(0, 0.4, shape).astype(dtype) * np.dtype(dtype).type(scale)
    worst = error(values)
    as_float32 = np.array_equal(coded(values).reshape(shape), values.astype("f4"))
    assert as_float32 or worst <= vector_bound(values)


@pytest.mark.parametrize("value", [1e-50, 1e-300, 5e-324])
def test_a_tiny_vector_of_doubles_does_not_vanish(value: float) -> None:
    """float32, the type of raw parameters, is too coarse: a smaller step size or lossless coding is used."""
    values = np.array([value, -value / 2])
    np.testing.assert_allclose(coded(values), values, rtol=1e-3)


@pytest.mark.parametrize("size", [1, 10, 1000])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_a_vector_of_zeros_costs_little(size: int, dtype: str) -> None:
    """Biases usually start as zeros. They take few bytes, not four each, and NNCodec reads them (errata N11)."""
    values = np.zeros(size, dtype)
    np.testing.assert_array_equal(coded(values), values)
    assert len(nnr.encode({"w": values})) <= 70


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("shape", [(60,), (6, 10), (1, 60), (2, 3, 10), ()])
@pytest.mark.parametrize("profile", [0, 1])
def test_integers_are_exact(dtype: str, shape: tuple[int, ...], profile: int) -> None:
    if dtype == "?":
        values = RNG.random(shape) < 0.5
    else:
        info = np.iinfo(dtype)
        low, high = max(info.min, -(2**31)), min(info.max, 2**31 - 1)
        values = np.asarray(RNG.integers(low, high, shape, endpoint=True)).astype(dtype)
        if shape:
            values.flat[:2] = low, high
    data = nnr.encode({"w": np.asarray(values)}, profile=profile)
    got = nnr.decode(data)["w"]
    np.testing.assert_array_equal(got, values)
    assert (got.dtype, got.shape) == (np.dtype(dtype), shape)
    plain = nnr.decode(data, raw=True)["w"]  # the values of decoders that ignore the record
    np.testing.assert_array_equal(plain, np.asarray(values).reshape(plain.shape))
    assert plain.shape == (shape or (1,))
    expected = {"?": "i1", "i1": "i1", "u1": "i2", "i2": "i2", "u2": "i4", "i4": "i4"}.get(dtype, "i8")
    assert plain.dtype == np.dtype("i4" if profile == 0 else expected)


def test_doubles_in_a_profile_without_them() -> None:
    """Step sizes are finer than float32, and every decoded value is exact in float32 (7.3.3)."""
    model = {"w": np.random.default_rng(3).normal(0, 0.1, (30, 40))}
    data = nnr.encode(model, profile=0, qp=-118)
    assert not nnr.verify(data).violations
    np.testing.assert_allclose(nnr.decode(data)["w"], model["w"], rtol=2**-24, atol=2**-29)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("profile", [0, 1])
@pytest.mark.parametrize("exact", [None, True, False])
def test_types_of_floats(dtype: str, profile: int, exact: bool | None) -> None:
    matrix = MATRIX.astype(STORED_TYPES[dtype].dtype)
    for values in (matrix, matrix[0]):
        got = coded(values, profile=profile, exact=exact)
        assert got.dtype == values.dtype
        assert np.abs(got.astype("f8") - values.astype("f8")).max() < (2 if dtype != "bfloat16" else 10) * step_size(
            -40
        )
        assert not exact or got.tobytes() == values.tobytes()


# ------------------------------------------------------------------------------------------ errors of quantization
DISTRIBUTIONS = {
    "normal": RNG.normal(0, 0.1, 20_000),
    "laplace": RNG.laplace(0, 0.02, 20_000),
    "uniform": RNG.uniform(-1, 1, 20_000),
    "sparse": RNG.normal(0, 1, 20_000) * (RNG.random(20_000) < 0.05),
    "ties": RNG.integers(-40, 41, 20_000) / 2048,
}


@pytest.mark.parametrize("values", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
@pytest.mark.parametrize("qp", [-44, -40, -37, -30, -21, -4, 0, 7])
def test_uniform_quantization_errs_by_half_a_step(values: Any, dtype: str, qp: int) -> None:
    matrix = values.reshape(100, 200).astype(dtype)
    data = nnr.encode({"w": matrix}, qp=qp, dependent_quantization=False, rate=0)
    got = nnr.decode(data)["w"].astype("f8")
    step = used_step(data)
    assert step <= step_size(qp)
    assert np.abs(got - matrix.astype("f8")).max() <= step / 2 * (1 + 2.0**-20)
    np.testing.assert_array_equal(got / step, np.rint(got / step))


def used_step(data: bytes) -> float:
    """Return stepSize of the first tensor: its qp_value is the first 8 bits of the arithmetic code, bypass coded."""
    (unit,) = (unit for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU)
    assert isinstance(unit.payload, memoryview)
    return step_size(PayloadDecoder(unit.payload).quant_param(8))


@pytest.mark.parametrize("values", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("scan_order", [0, 2])
@pytest.mark.parametrize("qp", [-40, -30, -20, -8])
def test_dependent_quantization_errs_by_two_steps_at_most(values: Any, dtype: str, scan_order: int, qp: int) -> None:
    """The search minimizes the squared error over values four steps apart; few values differ by a step."""
    matrix = values.reshape(100, 200).astype(dtype)
    errors = np.abs(coded(matrix, qp=qp, scan_order=scan_order).astype("f8") - matrix.astype("f8")) / step_size(qp)
    assert errors.max() <= 2
    assert (errors > 1).mean() < 0.05
    assert np.sqrt(np.square(errors).mean()) < 0.52


def test_dependent_quantization_has_less_error_than_uniform() -> None:
    """Uniform quantization has twice the step size, and as many values: 8 states gain about 1.1 dB."""
    values = RNG.uniform(-1, 1, (300, 300)).astype("f4")
    mean_square = float(np.square(coded(values, qp=-16).astype("f8") - values).mean())
    uniform_at_twice = float(
        np.square(coded(values, qp=-12, dependent_quantization=False).astype("f8") - values).mean()
    )
    assert mean_square < uniform_at_twice * 10 ** (-1.0 / 10)


# ------------------------------------------------------------------------------------------------ exact values, 7.3.3
@pytest.mark.parametrize("dq", [False, True])
@pytest.mark.parametrize("qp", [-60, -56, -45, -40, -35, -21, -6, 3])
@pytest.mark.parametrize("scale", [2.0**-14, 0.01, 1, 100, 30000])
def test_float16_is_never_rounded(dq: bool, qp: int, scale: float) -> None:
    """Each decoded value is exactly a level times the step size in float16 (7.3.3)."""
    matrix = np.clip(RNG.normal(0, 1, (30, 20)) * scale, -65504, 65504).astype("f2")
    try:
        data = nnr.encode({"w": matrix}, qp=qp, dependent_quantization=dq, side_info=False)
    except nnr.EncodeError as refusal:
        assert "'w'" in str(refusal)
        return
    for rec in recs_of(data):
        exact = rec.levels.astype("f8") * used_step(data)
        np.testing.assert_array_equal(rec.values.astype("f8"), exact)


def recs_of(data: bytes) -> list[Rec]:
    """Return the decoder's tensors and integers of the only unit."""
    (group,) = BitstreamParser(UnitReader(data)).groups()
    return group.recs(state=UpdateState(), budget=Budget(Limits()))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("qp", [-80, -61, -41])
def test_values_that_need_many_levels_are_not_rounded_either(dtype: str, qp: int) -> None:
    matrix = (RNG.normal(0, 1, (30, 20)) * 30).astype(dtype)
    matrix[0, 0] = 1000.3
    data = nnr.encode({"w": matrix}, qp=qp)
    for rec in recs_of(data):
        np.testing.assert_array_equal(rec.values.astype("f8"), rec.levels.astype("f8") * used_step(data))
    assert np.abs(nnr.decode(data)["w"].astype("f8") - matrix).max() <= 2 * step_size(qp)


# ------------------------------------------------------------------------------------------------ options
@pytest.mark.parametrize("profile", [0, 1])
def test_profiles(profile: int) -> None:
    model = {"m": MATRIX, "v": MATRIX[0], "i": np.arange(6), "h": MATRIX.astype("f2"), "b": np.eye(3, dtype=bool)}
    data = nnr.encode(model, profile=profile, row_skipping=profile == 1, scan_order=1)
    assert next(iter(nnr.units(data))).header.detail.general_profile_idc == profile  # type: ignore[attr-defined]
    for name, header in headers(data).items():
        assert header.nnr_decompressed_data_format_present_flag == (profile == 1 and name in "ihb")
    got = nnr.decode(data)
    assert list(got) == list(model)
    np.testing.assert_array_equal(got["i"], model["i"])


@pytest.mark.parametrize(
    ("shape", "scan_order"),
    [
        ((30522, 384), 4),  # many rows
        ((1000, 2000), 3),  # 16 rows of blocks of 64 are not full
        ((384, 1536), 3),  # rows of blocks of 16 would be too small
        ((384, 384), 4),
        ((512, 512, 3, 3), 3),
        ((64, 1024), 3),
        ((16, 65536), 1),
        ((8, 65536), None),  # one row of blocks of 8
        ((255, 256), None),  # too small
        ((100000,), None),
        ((70000, 1), None),
        ((30000, 255), None),  # rows of blocks would be too small
        ((1, 70000), None),
        ((0, 2), None),
    ],
)
def test_the_scan_order_for_fast_decoding_follows_from_size_and_rows(
    shape: tuple[int, ...], scan_order: int | None
) -> None:
    assert fast_scan_order(shape) == scan_order


def test_fast_decode_leaves_levels_and_given_scan_orders_alone() -> None:
    model = {"w": RNG.normal(0, 0.1, (300, 256)).astype("f4"), "v": RNG.normal(0, 0.1, (300, 256)).astype("f4")}
    options: dict[str, Any] = {"qp": -32, "dependent_quantization": False, "rate": 0}
    plain, fast = nnr.encode(model, **options), nnr.encode(model, **options, fast_decode=True)
    assert nnr.decode(plain).tensors["w"].tobytes() == nnr.decode(fast).tensors["w"].tobytes()
    assert len(plain) < len(fast) < 1.01 * len(plain)
    given = nnr.encode(model, **options, fast_decode=True, rules=[nnr.Rule("v", scan_order=0)])
    with nnr.open(given) as file:
        assert [[tool for tool in info.tools if "scan" in tool] for info in file.info.values()] == [["scan 4"], []]


@pytest.mark.parametrize("shape", [(70, 50), (8, 8), (65, 3), (3, 65), (130, 2, 2), (1, 30), (30, 1), (30,)])
@pytest.mark.parametrize("scan_order", [1, 2, 3, 4])
@pytest.mark.parametrize("dq", [False, True])
def test_scan_orders(shape: tuple[int, ...], scan_order: int, dq: bool) -> None:
    """Only matrices have blocks, with the entry points that a decoder reaches."""
    values = RNG.normal(0, 0.1, shape).astype("f4")
    data = nnr.encode({"w": values}, scan_order=scan_order, dependent_quantization=dq, exact=False, rate=0)
    header = headers(data)["w"]
    is_matrix = len(shape) > 1 and min(shape[0], int(np.prod(shape[1:]))) > 1
    assert header.scan_order == (scan_order if is_matrix else 0)
    count = -(-shape[0] // (4 << scan_order)) - 1 if is_matrix else 0
    assert len(header.cabac_offset_list) == count
    assert len(header.dq_state_list) == (count if dq else 0)
    got = nnr.decode(data)["w"]
    assert np.abs(got.astype("f8") - values).max() <= 2 * step_size(-40)
    if not dq:
        np.testing.assert_array_equal(got, coded(values, dependent_quantization=False, exact=False, rate=0))
    if count:  # the lists agree with the payload: bits between entry points, and their number in total
        bits = np.cumsum([header.bit_offset_delta1, *header.bit_offset_delta2])
        (unit,) = (unit for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU)
        assert (bits >= 0).all()
        assert bits.sum() <= 8 * len(unit.payload)  # type: ignore[arg-type]


def test_the_last_matching_rule_wins_for_each_option() -> None:
    config = nnr.EncoderConfig(
        qp=-40,
        rules=(
            nnr.Rule("conv*", qp=-30, scan_order=1),
            nnr.Rule("*.weight", dependent_quantization=False),
            nnr.Rule("conv1.*", qp=-20),
            nnr.Rule("nothing", qp=-10),
        ),
    )
    names = ["conv1.weight", "conv2.weight", "fc.weight", "CONV1.weight"]
    data = nnr.encode(dict.fromkeys(names, MATRIX), config)
    options = [config.for_tensor(name) for name in names]
    assert [(o.qp, o.scan_order, o.dependent_quantization) for o in options] == [
        (-20, 1, False),
        (-30, 1, False),
        (-40, None, False),
        (-40, None, False),
    ]
    for name, header in headers(data).items():
        assert header.scan_order == (config.for_tensor(name).scan_order or 0)
        assert header.dq_flag == 0
    assert nnr.encode(dict.fromkeys(names, MATRIX), config, scan_order=2) != data


def test_rules_know_their_options() -> None:
    with pytest.raises(TypeError, match=r"rule '\*' got an unexpected option 'qqp'; did you mean 'qp'\?"):
        nnr.Rule("*", qqp=11)
    with pytest.raises(TypeError, match=r"overrides of 'w' got an unexpected option 'nope'$"):
        nnr.EncoderConfig(overrides={"w": {"nope": 1}})
    for wrong in (
        {"qp": 512},
        {"qp": -505},
        {"scan_order": 5},
        {"scan_order": -1},
        {"cabac_unary_length_minus1": 256},
    ):
        with pytest.raises(nnr.EncodeError, match=next(iter(wrong))):
            nnr.EncoderConfig(**wrong)  # type: ignore[arg-type]
        with pytest.raises(nnr.EncodeError, match=next(iter(wrong))):
            nnr.EncoderConfig(rules=(nnr.Rule("x", **wrong),))
    for wrong in ({"profile": 2}, {"qp_density": 8}, {"qp_density": -1}):
        with pytest.raises(nnr.EncodeError, match=next(iter(wrong))):
            nnr.EncoderConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("density", range(8))
def test_every_density(density: int) -> None:
    qp = -(5 << density)
    got = coded(MATRIX, qp=qp, qp_density=density, dependent_quantization=False, rate=0)
    assert np.abs(got.astype("f8") - MATRIX).max() <= step_size(qp, density) / 2 * (1 + 2.0**-20)
    values = np.linspace(-1, 1, 50, dtype="f4")
    vector = nnr.decode(nnr.encode({"v": values}, qp=qp, qp_density=density))["v"]
    assert np.abs(vector.astype("f8") - values).max() <= vector_bound(values, step_size(qp, density))


@pytest.mark.parametrize("density", range(8))
def test_a_density_alone_is_enough(density: int) -> None:
    """The default qp is adapted to every density."""
    assert np.abs(coded(MATRIX, qp_density=density).astype("f8") - MATRIX).max() < 1


@pytest.mark.parametrize("dq", [False, True])
@pytest.mark.parametrize("scan_order", [0, 1])
def test_rows_of_zeros_are_skipped(dq: bool, scan_order: int) -> None:
    values = MATRIX[:, : MATRIX.shape[1] // 4 * 4].copy()  # errata D6
    values[::2] = 0
    options: dict[str, Any] = {"dependent_quantization": dq, "scan_order": scan_order, "qp": -40}
    plain, skipping = (nnr.encode({"w": values}, row_skipping=skip, **options) for skip in (False, True))
    assert nnr.encode({"w": values}, **options) == skipping
    assert len(skipping) < len(plain)
    got = nnr.decode(skipping)["w"]
    assert not got[::2].any()
    assert np.abs(got.astype("f8") - values).max() <= 2 * step_size(-40)
    if not dq:
        np.testing.assert_array_equal(got, nnr.decode(plain)["w"])
    assert nnr.encode({"w": MATRIX}, row_skipping=True, **options) == nnr.encode({"w": MATRIX}, **options)


def test_rows_are_not_skipped_where_decoders_disagree() -> None:
    """The case is dependent quantization in blocks, with a width that is not a multiple of four (errata D6)."""
    values = MATRIX[:, : MATRIX.shape[1] // 4 * 4 - 1].copy()
    values[::2] = 0
    always, never = (nnr.encode({"w": values}, row_skipping=skip, scan_order=1) for skip in (True, False))
    assert always == never == nnr.encode({"w": values}, scan_order=1)


@pytest.mark.parametrize("unary", [0, 1, 10, 255])
@pytest.mark.parametrize("choose", [False, True])
def test_options_of_the_entropy_coder_do_not_change_values(unary: int, choose: bool) -> None:
    got = coded(MATRIX, cabac_unary_length_minus1=unary, choose_shift_parameters=choose, rate=0)
    np.testing.assert_array_equal(got, coded(MATRIX, rate=0))


def test_choosing_shift_parameters_saves_bytes() -> None:
    values = RNG.laplace(0, 0.02, (300, 300)).astype("f4")
    assert len(nnr.encode({"w": values})) < len(nnr.encode({"w": values}, choose_shift_parameters=False))


# ------------------------------------------------------------------------------------------------ rejected input
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("options", [{}, {"exact": False}, {"exact": True}], ids=str)
def test_not_finite_is_kept_bit_for_bit(bad: float, dtype: str, options: dict[str, Any]) -> None:
    """Their tensor is not quantized but coded exactly, with elements of the standard alone if possible."""
    values = MATRIX.astype(dtype)
    values[3, 4] = bad
    for tensor in (values, values[3]):
        data = nnr.encode({"ok": MATRIX, "w": tensor}, **options)
        assert nnr.decode(data)["w"].tobytes() == tensor.tobytes()
        if dtype == "f4" and not options.get("exact"):
            assert kind(data) == PayloadType.NNR_PT_RAW_FLOAT
            assert not has_record(data)


def test_the_bits_of_a_nan_are_kept() -> None:
    values = np.array([[0x7FC00001, 0xFFC12345], [0x7F800000, 0x80000000]], "<u4").view("<f4")
    assert coded(values, exact=True).tobytes() == values.tobytes()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("profile", [0, 1])
def test_exact_is_exact(dtype: str, profile: int) -> None:
    """exact=True preserves each bit of every type."""
    values = RNG.normal(0, 1, (10, 10)).astype(dtype)
    assert coded(values, exact=True, profile=profile).tobytes() == values.tobytes()


def test_without_side_information_doubles_are_exact_or_refused() -> None:
    values = MATRIX.astype("f8")
    assert coded(values, exact=True, side_info=False).tobytes() == values.tobytes()
    values[1, 2] += 2.0**-40
    with pytest.raises(nnr.EncodeError, match=r"'w' has float64 values that float32.* cannot represent"):
        nnr.encode({"w": values}, exact=True, side_info=False)
    assert coded(values, exact=True).tobytes() == values.tobytes()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bfloat16"])
def test_an_empty_tensor_has_no_unit(shape: tuple[int, ...], dtype: str) -> None:
    model = {"w": MATRIX, "e": np.zeros(shape, STORED_TYPES[dtype].dtype), "v": MATRIX[0]}
    data = nnr.encode(model)
    assert list(headers(data)) == ["w", "v"]
    got = nnr.decode(data)
    assert list(got) == list(model)
    assert (got["e"].shape, got["e"].dtype) == (shape, model["e"].dtype)
    with pytest.raises(nnr.EncodeError, match=rf"'e' is empty: shape \({shape[0]},"):
        nnr.encode(model, side_info=False)


@pytest.mark.parametrize(
    ("value", "dtype"), [(2**31, "i8"), (-(2**31) - 1, "i8"), (2**63, "u8"), (2**31, "u4"), (-(2**63), "i8")]
)
@pytest.mark.parametrize("exact", [None, True])
def test_more_than_32_bits_take_side_information(value: int, dtype: str, exact: bool | None) -> None:
    values = np.array([0, value], dtype)
    got = coded(values, exact=exact)
    assert got.dtype == values.dtype
    np.testing.assert_array_equal(got, values)
    with pytest.raises(nnr.EncodeError, match=rf"'big' has integers outside int32 .*{value}"):
        nnr.encode({"big": values}, exact=exact, side_info=False)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("exact", [None, False])
def test_too_many_steps_are_coded_exactly(dtype: str, exact: bool | None) -> None:
    values = MATRIX.astype(dtype) * 1e30
    assert coded(values, exact=exact, qp=-40).tobytes() == values.tobytes()
    assert coded(values * 1e-30, exact=exact).tobytes() != (values * 1e-30).tobytes()


def test_beyond_float32_is_coded_exactly() -> None:
    values = np.array([1e39, 1.0])
    assert coded(values).tobytes() == values.tobytes()
    with pytest.raises(nnr.EncodeError, match=r"'w' has float64 values that float32"):
        nnr.encode({"w": values}, side_info=False)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(3, "c8"),
        np.array(["a"]),
        np.array([None]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, [("a", "f4")]),
        np.zeros(2, np.longdouble),
    ],
)
def test_other_types_are_refused(values: Any) -> None:
    with pytest.raises(nnr.EncodeError, match="'odd' has type"):
        nnr.encode({"odd": values})


@pytest.mark.parametrize("name", ["", "a b", "naïve/権重.σ[0]", "😀" * 50, "x" * 4000, "-", "../up", "a\nb"])
def test_names_are_kept(name: str) -> None:
    assert list(nnr.decode(nnr.encode({name: MATRIX}))) == [name]


@pytest.mark.parametrize("name", ["a\0b", "\0", "\ud800", "x" * 4097])
def test_names_that_cannot_be_written_or_read_back_are_refused(name: str) -> None:
    with pytest.raises(nnr.EncodeError):
        nnr.encode({"ok": MATRIX, name: MATRIX})


def test_too_many_dimensions_are_refused_or_read_back() -> None:
    values = np.ones((1,) * 20, "f4")
    try:
        data = nnr.encode({"w": values})
    except nnr.EncodeError:
        return
    assert nnr.decode(data)["w"].shape == values.shape


def test_no_tensor_is_a_model_too() -> None:
    assert len(nnr.decode(nnr.encode({}))) == 0


# ------------------------------------------------------------------------------------------------ determinism
def model() -> dict[str, Any]:
    rng = np.random.default_rng(99)
    return {
        "conv.weight": rng.normal(0, 0.1, (16, 8, 3, 3)).astype("f4"),
        "conv.bias": rng.normal(0, 0.1, 16).astype("f4"),
        "wide": rng.laplace(0, 1, (20, 12)).astype("f4").astype("f8"),  # so that it can be coded losslessly
        "half": rng.normal(0, 1, (9, 7)).astype("f2"),
        "ints": rng.integers(-1000, 1000, (5, 6, 2)),
        "bytes": rng.integers(0, 256, (10, 3)).astype("u1"),
    }


OPTIONS: list[dict[str, Any]] = [
    {},
    {"profile": 0},
    {"scan_order": 1, "row_skipping": True},
    {"dependent_quantization": False},
    {"exact": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_same_bytes_twice(options: dict[str, Any]) -> None:
    assert nnr.encode(model(), **options) == nnr.encode(model(), **options)


def variants(values: Any) -> dict[str, Any]:
    """Return the same values in other layouts of memory."""
    wide = np.empty((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
    wide[..., ::2] = values
    read_only = values.copy()
    read_only.flags.writeable = False
    return {
        "strided": wide[..., ::2],
        "Fortran": np.asfortranarray(values),
        "reversed": np.flip(np.flip(values).copy()),
        "big-endian": values.astype(values.dtype.newbyteorder(">")),
        "transposed": np.ascontiguousarray(values.T).T,
        "read-only": read_only,
        "unaligned": np.frombuffer(b"\0" + values.tobytes(), np.uint8)[1:].view(values.dtype).reshape(values.shape),
    }


@pytest.mark.parametrize("layout", variants(MATRIX))
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_layout_of_memory_does_not_matter(layout: str, options: dict[str, Any]) -> None:
    plain = model()
    changed = {name: variants(values)[layout] for name, values in plain.items()}
    before = {name: values.tobytes() for name, values in changed.items()}
    assert nnr.encode(changed, **options) == nnr.encode(plain, **options)
    assert {name: values.tobytes() for name, values in changed.items()} == before


@pytest.mark.parametrize("layout", variants(MATRIX))
def test_compiled_code_is_given_one_layout(layout: str) -> None:
    array = native(variants(MATRIX)[layout])
    assert array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative
    assert np.array_equal(array, MATRIX)
    assert native(array) is array


def test_encoding_does_not_change_the_model() -> None:
    values = MATRIX.copy()
    nnr.encode({"w": values}, row_skipping=True, scan_order=1)
    np.testing.assert_array_equal(values, MATRIX)


# ------------------------------------------------------------------------------------------------ any model
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=9)
ARRAYS = st.one_of(
    hnp.arrays(np.float32, SHAPES, elements=st.floats(-(2.0**17), 2.0**17, width=32)),
    hnp.arrays(np.float32, SHAPES, elements=st.floats(-1, 1, width=32)),
    # Below the range of float32, the type of raw parameters, an error is raised; see above.
    hnp.arrays(np.float64, SHAPES, elements=st.floats(-1000, 1000).map(lambda x: x if abs(x) > 1e-30 else 0.0)),
    hnp.arrays(np.float16, SHAPES, elements=st.floats(-65504, 65504, width=16)),
    *(
        hnp.arrays(
            dtype, SHAPES, elements=st.integers(max(np.iinfo(dtype).min, -(2**31)), min(np.iinfo(dtype).max, 2**31 - 1))
        )
        for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64)
    ),
    hnp.arrays(np.bool_, SHAPES),
)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


@given(
    model=st.dictionaries(NAMES, ARRAYS, max_size=4),
    profile=st.sampled_from([0, 1]),
    qp=st.integers(-44, -4),
    dq=st.booleans(),
    scan_order=st.integers(0, 4),
    row_skipping=st.booleans(),
)
@settings(max_examples=examples(100), deadline=None)
def test_any_model_comes_back_within_its_error(
    model: dict[str, Any], profile: int, qp: int, dq: bool, scan_order: int, row_skipping: bool
) -> None:
    """Matrices are within two steps (dependent) or half a step (uniform), vectors fine, integers exact."""
    options: dict[str, Any] = {"profile": profile, "qp": qp, "dependent_quantization": dq, "rate": 0}
    data = nnr.encode(model, **options, scan_order=scan_order, row_skipping=row_skipping and profile == 1)
    got = nnr.decode(data)
    assert list(got) == list(model)
    for name, values in model.items():
        result = got[name]
        assert (result.shape, result.dtype) == (values.shape, values.dtype)
        before, after = values.astype("f8"), result.astype("f8")
        if values.dtype.kind != "f":
            np.testing.assert_array_equal(after, before)
            continue
        # Raw parameters are float32, and so are all values in profile 0, which are finally rounded to float16.
        rounded = values.dtype == np.float64 or (values.dtype == np.float16 and profile == 0)
        info = np.finfo(np.float16 if values.dtype == np.float16 else np.float32)
        largest = np.maximum(np.abs(before), np.abs(after))
        ulp = (largest * float(info.eps) + float(info.smallest_subnormal)) / 2 if rounded else 0.0
        if sum(extent > 1 for extent in values.shape) < 2:
            bound = vector_bound(before, step_size(qp))
        else:
            bound = step_size(qp) * (2 if dq else 0.5)
        assert (np.abs(after - before) <= bound * (1 + 2.0**-20) + ulp).all()
