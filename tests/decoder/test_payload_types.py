"""NNR_PT_INT, NNR_PT_FLOAT and NNR_PT_RAW_FLOAT: 7.2, 7.3.2 to 7.3.4 and 7.3.6."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_NDU, NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.constants import DecompressedDataFormat as Format
from nnr_codec.syntax.deepcabac import ArithmeticDecoder, QuantTensorSyntax, quant_tensor, terminate

from ..builder import Bitstream, ndu, resolved, step_size
from .support import refused

BITS = {"INT2": 2, "INT3": 3, "INT4": 4, "INT8": 8, "INT16": 16, "INT32": 32, "INT64": 64}
INT_TYPES = {"INT2": "i1", "INT3": "i1", "INT4": "i1", "INT8": "i1", "INT16": "i2", "INT32": "i4", "INT64": "i8"}
FLOAT_TYPES = {"FLOAT16": "f2", "FLOAT32": "f4", "FLOAT64": "f8"}
LEVELS = np.array([[0, 1, -1, 2, -2], [3, 0, 0, 0, -7], [0, 0, 0, 0, 0], [100, -101, 12, -13, 1]], np.int32)


def fmt(name: str) -> Format:
    return Format[f"TENSOR_{name}"]


def one(header: Any, levels: Any, *, profile: int = 1, qp: int = 0, density: int = 2, parameter: int = 0) -> bytes:
    """Return a bitstream of one coded unit."""
    return Bitstream().str_(profile).mps(density, parameter).ndu(header, levels, qp=qp).data


def oracle(data: bytes, syntax: QuantTensorSyntax) -> list[int]:
    """Return the QuantParam of the only coded unit from the plain implementation of clause 10."""
    (payload,) = (unit.payload for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU)
    assert isinstance(payload, memoryview)
    coder = ArithmeticDecoder(bytes(payload))
    params = quant_tensor(coder, syntax).quant_param
    terminate(coder)
    return params


# ------------------------------------------------------------------------------------------------ integers
@pytest.mark.parametrize("profile", [0, 1])
@pytest.mark.parametrize("dims", [[20], [4, 5], [2, 2, 5], [1, 20], [20, 1], [1, 1, 20, 1]])
@pytest.mark.parametrize("unary", [0, 3, 9, 255])
def test_int_is_its_levels(profile: int, dims: list[int], unary: int) -> None:
    data = one(ndu("w", dims, kind=NNR_PT_INT, unary=unary), LEVELS, profile=profile)
    got = nnr.decode(data)["w"]
    np.testing.assert_array_equal(got, LEVELS.reshape(dims))
    assert got.dtype == np.int32
    syntax = QuantTensorSyntax(tuple(dims), general_profile_idc=profile, cabac_unary_length_minus1=unary)
    assert oracle(data, syntax) == LEVELS.reshape(-1).tolist()


def test_int_without_unary_length_has_ten() -> None:
    """cabac_unary_length_minus1 is inferred to be 9 (errata I6)."""
    data = one(ndu("w", [4, 5], kind=NNR_PT_INT, unary=None), LEVELS)
    np.testing.assert_array_equal(nnr.decode(data)["w"], LEVELS)
    assert oracle(data, QuantTensorSyntax((4, 5), cabac_unary_length_minus1=9)) == LEVELS.reshape(-1).tolist()


def test_int_with_dependent_quantization_is_expanded() -> None:
    """The text expands levels of any payload type (errata D10)."""
    data = one(ndu("w", [4, 5], kind=NNR_PT_INT, dq_flag=1), LEVELS)
    np.testing.assert_array_equal(nnr.decode(data)["w"], resolved(LEVELS))
    assert oracle(data, QuantTensorSyntax((4, 5), dq_flag=1)) == resolved(LEVELS).reshape(-1).tolist()


@pytest.mark.parametrize("values", [[2**31 - 1, -(2**31)], [-(2**31), -(2**31) + 1, 0, 2**31 - 2]])
def test_int_reaches_32_bits(values: list[int]) -> None:
    assert nnr.decode(one(ndu("w", [len(values)], kind=NNR_PT_INT), values))["w"].tolist() == values


@pytest.mark.parametrize("name", INT_TYPES)
def test_int_formats_of_profile_1(name: str) -> None:
    bound = 1 << (min(BITS[name], 32) - 1)
    values = np.array([-bound, bound - 1, 0, -1, 1 if bound > 1 else 0], np.int64)
    got = nnr.decode(one(ndu("w", [5], kind=NNR_PT_INT, data_format=fmt(name)), values))["w"]
    assert got.dtype == np.dtype(INT_TYPES[name])
    np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize("name", ["INT2", "INT3", "INT4", "INT8", "INT16"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_level_beyond_its_bit_depth_is_refused(name: str, sign: int) -> None:
    """7.3.2 permits only values that the bit depth can represent."""
    bound = 1 << (BITS[name] - 1)
    data = one(ndu("w", [2], kind=NNR_PT_INT, data_format=fmt(name)), [0, bound if sign > 0 else -bound - 1])
    refused(data, nnr.PayloadError, f"{BITS[name]} bits of TENSOR_{name}", unit="unit 2 (NNR_NDU 'w')")


# ------------------------------------------------------------------------------------------------ floats
@pytest.mark.parametrize("profile", [0, 1])
@pytest.mark.parametrize("dq", [0, 1])
@pytest.mark.parametrize(
    ("density", "qp", "parameter"), [(2, -40, 0), (0, -7, 3), (7, 300, -600), (2, -1, -31), (3, 5, 1)]
)
def test_float_is_levels_times_step(profile: int, dq: int, density: int, qp: int, parameter: int) -> None:
    """7.3.6 with qp_value + QuantizationParameter, also with negative qp, where & and % take the low bits upwards."""
    data = one(ndu("w", [4, 5], dq_flag=dq), LEVELS, profile=profile, qp=qp, density=density, parameter=parameter)
    got = nnr.decode(data)["w"]
    integers = resolved(LEVELS) if dq else LEVELS
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, integers.astype("f4") * np.float32(step_size(qp + parameter, density)))


@pytest.mark.parametrize("name", FLOAT_TYPES)
def test_float_formats_of_profile_1(name: str) -> None:
    got = nnr.decode(one(ndu("w", [4, 5], data_format=fmt(name)), LEVELS, qp=-13))["w"]
    assert got.dtype == np.dtype(FLOAT_TYPES[name])
    np.testing.assert_array_equal(got, LEVELS * np.float64(7 * 2.0 ** (-4 - 2)))  # -13 = -4 * 4 + 3: 7/4 * 2**-4


def test_products_are_rounded_to_nearest() -> None:
    """The product level * mul has more than 24 bits (errata N6)."""
    levels = np.array([2**24 + 1, 2**31 - 1, -(2**25) - 3, 3], np.int32)
    got = nnr.decode(one(ndu("w", [4]), levels, qp=3))["w"]
    np.testing.assert_array_equal(got, levels.astype("f4") * np.float32(1.75))
    exact = nnr.decode(one(ndu("w", [4], data_format=fmt("FLOAT64")), levels, qp=3))["w"]
    assert exact.tolist() == [level * 1.75 for level in levels.tolist()]


@pytest.mark.parametrize("profile", [0, 1])
@pytest.mark.parametrize("dims", [[], [1], [3, 2], [2, 1, 3]])
def test_raw_float_is_kept_bit_by_bit(profile: int, dims: list[int]) -> None:
    values = np.array([0.1, -0.0, np.inf, -np.inf, 1e-45, 3.4e38], "<f4")[: int(np.prod(dims))].reshape(dims)
    header = ndu("w", dims, kind=NNR_PT_RAW_FLOAT)
    got = nnr.decode(Bitstream().str_(profile).mps().raw(header, values).data)["w"]
    assert (got.dtype, got.shape, got.tobytes()) == (np.float32, tuple(dims), values.tobytes())


def test_raw_float_keeps_the_bits_of_a_nan() -> None:
    values = np.array([0x7FC00001, 0xFFC12345, 0x7F800000], "<u4").view("<f4")
    got = nnr.decode(Bitstream().str_().mps().raw(ndu("w", [3], kind=NNR_PT_RAW_FLOAT), values).data)["w"]
    assert got.tobytes() == values.tobytes()


@pytest.mark.parametrize("name", FLOAT_TYPES)
def test_raw_float_formats_of_profile_1(name: str) -> None:
    values = np.array([1.5, -2.25, np.nan, np.inf, 65504], "f4")
    header = ndu("w", [5], kind=NNR_PT_RAW_FLOAT, data_format=fmt(name))
    got = nnr.decode(Bitstream().str_().mps().raw(header, values).data)["w"]
    assert got.dtype == np.dtype(FLOAT_TYPES[name])
    np.testing.assert_array_equal(got, values.astype(FLOAT_TYPES[name]))


@pytest.mark.parametrize("values", [[1e5], [65520.0], [-3e38, 1.0]])
def test_raw_float_beyond_float16_is_refused(values: list[float]) -> None:
    """The declared format cannot represent the value; numpy's warning must not be visible."""
    header = ndu("w", [len(values)], kind=NNR_PT_RAW_FLOAT, data_format=fmt("FLOAT16"))
    data = Bitstream().str_().mps().raw(header, values).data
    with pytest.raises(nnr.BitstreamError, match=r"FLOAT16|float16"):
        nnr.decode(data)


@pytest.mark.parametrize("surplus", [-4, -1, 1, 4])
def test_raw_float_of_another_length_is_refused(surplus: int) -> None:
    payload = bytes(24 + surplus)
    data = Bitstream().str_().mps().ndu(ndu("w", [2, 3], kind=NNR_PT_RAW_FLOAT), payload=payload).data
    refused(data, nnr.PayloadError, f"{len(payload)} bytes of raw_float32", unit="unit 2 (NNR_NDU 'w')")


# ------------------------------------------------------------------------------------------ formats that do not fit
@pytest.mark.parametrize("kind", [NNR_PT_INT, NNR_PT_FLOAT, NNR_PT_RAW_FLOAT])
@pytest.mark.parametrize("value", [*range(13), 127])
@pytest.mark.parametrize("profile", [0, 1])
def test_formats_by_profile_and_payload_type(kind: int, value: int, profile: int) -> None:
    """Table 15 permits 0 and 1 in profile 0, 0 to 9 in profile 1; TENSOR_INT for NNR_PT_INT only (6.4.3.7)."""
    stream = Bitstream().str_(profile).mps()
    header = ndu("w", [2], kind=kind, data_format=value)
    data = (stream.raw(header, [1, 0]) if kind == NNR_PT_RAW_FLOAT else stream.ndu(header, [1, 0])).data
    path = "nnr_compressed_data_unit_header.nnr_decompressed_data_format"
    if value > (9 if profile else 1):
        refused(data, nnr.ElementError, f"format {value} is not defined in profile {profile}", unit="unit 2", path=path)
    elif (value in (1, 8, 9)) == (kind == NNR_PT_INT):
        refused(data, nnr.ElementError, "not allowed with this payload type", unit="unit 2", path=path)
    else:
        assert nnr.decode(data)["w"].tolist() == [1, 0]


@pytest.mark.parametrize("kind", [4, 5, 31])
def test_reserved_payload_types_are_refused(kind: int) -> None:
    data = Bitstream().str_().mps().ndu(ndu("w", [2], kind=kind, unary=None), payload=b"\xfe\x80").data
    refused(data, nnr.ElementError, f"payload type {kind} is reserved", unit="unit 2 (NNR_NDU")


@pytest.mark.parametrize("kind", [NNR_PT_INT, NNR_PT_FLOAT])
@pytest.mark.parametrize("dims", [[], [0], [3, 0], [0, 3]])
def test_nothing_to_code_is_refused(kind: int, dims: list[int]) -> None:
    data = Bitstream().str_().mps().ndu(ndu("w", dims, kind=kind), payload=b"\xfe\x80").data
    refused(data, nnr.ElementError, "describe an empty tensor", unit="unit 2 (NNR_NDU 'w')")


# ------------------------------------------------------------------------------------------------ steps
@pytest.mark.parametrize(
    ("name", "parameter", "good"),
    [
        ("FLOAT32", -126 * 4, True),
        ("FLOAT32", -126 * 4 - 1, False),
        ("FLOAT32", 127 * 4 + 3, True),
        ("FLOAT32", 128 * 4, False),
        ("FLOAT16", -14 * 4, True),
        ("FLOAT16", -14 * 4 - 1, False),
        ("FLOAT16", 15 * 4 + 3, True),
        ("FLOAT16", 16 * 4, False),
        ("FLOAT64", -1022 * 4, True),
        ("FLOAT64", -1022 * 4 - 1, False),
        ("FLOAT64", 4095, True),  # the largest in a header: 2**1023 * 1.75
        ("FLOAT64", -4096, False),
    ],
)
def test_a_step_is_finite_and_normal(name: str, parameter: int, good: bool) -> None:
    """The rule applies in the output's type (errata N6), even if no level needs the step size."""
    data = one(ndu("w", [2], data_format=fmt(name)), [1, 0], parameter=parameter)
    if good:
        assert nnr.decode(data)["w"].tolist() == [step_size(parameter), 0]
    else:
        refused(data, nnr.ElementError, "is not a normal number", unit="unit 2 (NNR_NDU 'w')")


@pytest.mark.parametrize(("density", "parameter"), [(0, 4095), (0, -4096), (1, 4095), (1, -4096), (7, -4096)])
def test_extreme_steps_of_every_density(density: int, parameter: int) -> None:
    """2**4095 exceeds float64; the error is an NnrError, not a Python exception."""
    data = one(ndu("w", [1], data_format=fmt("FLOAT64")), [1], density=density, parameter=parameter)
    try:
        assert nnr.decode(data)["w"][0] == step_size(parameter, density)
    except nnr.ElementError as error:
        assert "is not a normal number" in str(error)
        assert density < 2


@pytest.mark.parametrize(
    ("name", "parameter", "largest"),
    [("FLOAT32", 127 * 4, 1), ("FLOAT32", 104 * 4, 2**24 - 1), ("FLOAT16", 5 * 4, 2047)],
)
def test_level_times_step_stays_finite(name: str, parameter: int, largest: int) -> None:
    fits = one(ndu("w", [2], data_format=fmt(name)), [largest, -largest], parameter=parameter)
    assert np.isfinite(nnr.decode(fits)["w"]).all()
    for level in (largest + 1, -largest - 1):
        data = one(ndu("w", [2], data_format=fmt(name)), [0, level], parameter=parameter)
        refused(data, nnr.ElementError, rf"level {largest + 1} times the step", unit="unit 2 (NNR_NDU 'w')")


def test_float_needs_a_qp_density() -> None:
    """Without NNR_QSU and NNR_QCB there is none (errata F4); integers and raw values do not need it."""
    stream = Bitstream().str_().mps(methods=0).ndu(ndu("i", [1], kind=NNR_PT_INT), [5])
    stream.raw(ndu("r", [1], kind=NNR_PT_RAW_FLOAT), [5])
    assert nnr.decode(stream.data)["i"].tolist() == nnr.decode(stream.data)["r"].tolist() == [5]
    stream.ndu(ndu("w", [1]), payload=b"\xda\x24\x80")
    refused(stream.data, nnr.ElementError, "qp_density", unit="unit 4 (NNR_NDU 'w')")


def test_the_shortest_payload() -> None:
    """qp_value -38 and a terminating bit are DA 24 80 (errata B8); all levels are outside any codebook."""
    data = Bitstream().str_().mps().ndu(ndu("w", [1]), payload=b"\xda\x24\x80").data
    error = refused(data, nnr.PayloadError, None, unit="unit 2 (NNR_NDU 'w')")
    header = next(unit for unit in nnr.units(data) if unit.type_name == "NNR_NDU").payload_offset
    assert 8 * header <= error.bit <= 8 * (header + 3)


# ------------------------------------------------------------------------------------------------ damaged payloads
def test_every_truncation_of_a_payload_is_refused() -> None:
    payload = Bitstream().str_().mps().payload(ndu("w", [4, 5]), [LEVELS])
    for length in range(len(payload)):
        data = Bitstream().str_().mps().ndu(ndu("w", [4, 5]), payload=payload[:length]).data
        error = refused(data, nnr.PayloadError, None, unit="unit 2 (NNR_NDU 'w')")
        assert error.bit > 0


@pytest.mark.parametrize("tail", [b"\0", b"\x80", b"\xff\xff"])
def test_bytes_after_the_end_of_a_payload_are_refused(tail: bytes) -> None:
    payload = Bitstream().str_().mps().payload(ndu("w", [4, 5]), [LEVELS]) + tail
    refused(Bitstream().str_().mps().ndu(ndu("w", [4, 5]), payload=payload).data, nnr.PayloadError, None, unit="unit 2")


# ------------------------------------------------------------------------------------------------ first dimension
@pytest.mark.parametrize("kind", [NNR_PT_INT, NNR_PT_FLOAT, NNR_PT_RAW_FLOAT])
@pytest.mark.parametrize("shift", [0, 1, 2])
def test_the_first_dimension_moves(kind: int, shift: int) -> None:
    """DimensionShift(), 4.12, moves element [a, b, c] to the index with a at position ``shift``."""
    values = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    header = ndu("w", [2, 3, 4], kind=kind, first_tensor_dimension_shift=shift)
    stream = Bitstream().str_().mps()
    data = (stream.raw(header, values) if kind == NNR_PT_RAW_FLOAT else stream.ndu(header, values)).data
    got, raw = nnr.decode(data)["w"], nnr.decode(data, raw=True)["w"]
    for a, b, c in np.ndindex(2, 3, 4):
        index = [b, c]
        index.insert(shift, a)
        assert got[tuple(index)] == values[a, b, c]
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, raw)
    assert nnr.open(data).info["w"].shape == got.shape


def test_the_first_dimension_moves_no_further_than_the_last() -> None:
    header = ndu("w", [2, 3], kind=NNR_PT_INT, first_tensor_dimension_shift=2)
    data = Bitstream().str_().mps().ndu(header, np.ones((2, 3))).data
    refused(data, nnr.ElementError, "first_tensor_dimension_shift 2 is not less", unit="unit 2 (NNR_NDU 'w')")
