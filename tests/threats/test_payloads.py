"""T17, T19 to T26 and T28: contents of payloads, and their interpretation with parameter sets."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.cabac_ext.kernel import PayloadDecoder, TensorSide, TensorSyntax
from nnr_codec.constants import NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.errors import PayloadError
from nnr_codec.limits import Limits
from nnr_codec.syntax.deepcabac import (
    ArithmeticEncoder,
    Context,
    QuantTensor,
    QuantTensorSyntax,
    quant_tensor,
    terminate,
)

from ..builder import Bitstream, codebook, ndu
from .support import memory, refused, start

RNG = np.random.default_rng(5)
LEVELS = RNG.integers(-9, 10, (17, 5)).astype(np.int32)
HEADER = ndu("w", LEVELS.shape, kind=NNR_PT_INT)
PAYLOAD = start().payload(HEADER, [LEVELS])


def with_payload(payload: bytes, header: Any = HEADER) -> bytes:
    """Return a bitstream of one tensor with any payload."""
    return start().ndu(header, payload=payload).data


# ------------------------------------------------------------------------------------------------ T17: codebooks
@pytest.mark.parametrize(("level", "dq"), [(2, 0), (-3, 0), (1000, 0), (-1, 1)])
def test_t17_an_index_outside_the_codebook(level: int, dq: int) -> None:
    """In profile 0 the bins do not bound it, nor with dependent quantization, which doubles levels."""
    book = codebook([-7, 0, 9, 20], 2 if level > 0 else 1) if dq == 0 else codebook([-7, 0], 1)
    header = ndu("w", [1], codebook_present_flag=1, codebook=book, dq_flag=dq)
    stream = Bitstream().str_(dq).mps()
    refused(stream.ndu(header, [level]).data, PayloadError, "outside the codebook")


# ------------------------------------------------------------------------------------------------ T19, T20: entries
BLOCKS = ndu("w", [40, 8], kind=NNR_PT_INT, scan_order=1, dq_flag=1)
BLOCKS_PAYLOAD = start().payload(BLOCKS, [RNG.integers(-9, 10, (40, 8))])  # completes the lists


def contradicted(name: str, k: int, change: int) -> None:
    """Return a bitstream in which one entry of a list contradicts the payload."""
    header = copy.copy(BLOCKS)
    entries = BLOCKS.present()[name]
    if isinstance(entries, list):
        setattr(header, name, [entry + change * (k == i) for i, entry in enumerate(entries)])
    else:
        setattr(header, name, entries + change)
    path = f"{name}[{k}]" if isinstance(entries, list) else name
    refused(with_payload(BLOCKS_PAYLOAD, header), nnr.ElementError, "at the entry point in the payload", path=path)


@pytest.mark.parametrize("change", [-1, 1, 8, 1 << 30, -(1 << 30)])
def test_t19_entry_points_that_lead_elsewhere(change: int) -> None:
    """They include positions before and after the payload."""
    for k in range(3):
        contradicted("bit_offset_delta2", k, change)
    if change + BLOCKS.bit_offset_delta1 >= 0:
        contradicted("bit_offset_delta1", 0, change)


@pytest.mark.parametrize("bits", [-1, -(1 << 33), 8 * len(BLOCKS_PAYLOAD), 1 << 33])
def test_t19_nothing_is_read_outside_the_payload(bits: int) -> None:
    """A decoder that begins at an entry point has not compared it with the payload before."""
    points = np.array([[0, 0, bits], [0, 0, 0], [0, 0, 0], [0, 0, 0]], np.int64)
    reader = PayloadDecoder(BLOCKS_PAYLOAD).head(TensorSyntax([40, 8], scan_order=1, entry_point_list=points))
    with pytest.raises(nnr.ElementError, match="outside the payload"):
        reader.fork(8)


def test_t20_other_states_at_entry_points() -> None:
    for k in range(4):
        for name, last in (("cabac_offset_list", 255), ("dq_state_list", 7)):
            contradicted(name, k, 1 if BLOCKS.present()[name][k] < last else -1)


class WithoutRange(ArithmeticEncoder):
    """Encoder that does not set the range to 256 at entry points."""

    def set_ivl_curr_range_256(self) -> None:
        """Do nothing."""


def test_t20_an_offset_that_is_not_below_the_range() -> None:
    """IvlOffset must be less than 256 at an entry point."""
    found = 0
    syntax = QuantTensorSyntax((24, 4), scan_order=1)
    for seed in range(40):
        encoder = WithoutRange()
        levels = np.random.default_rng(seed).integers(-5, 6, 96)
        quant_tensor(encoder, syntax, QuantTensor(levels.tolist()))
        terminate(encoder)
        try:
            PayloadDecoder(encoder.finish()).quant_tensor(TensorSyntax((24, 4), scan_order=1))
        except PayloadError as error:
            found += "IvlOffset" in str(error)
    assert found > 10


# ------------------------------------------------------------------------------------------------ T21, T22: levels
def test_t21_a_unary_part_of_any_length() -> None:
    """The maximum is 256, with 1,111 contexts of 24 bytes."""
    with memory() as used:
        data = start().ndu(ndu("w", [2], kind=NNR_PT_INT, unary=255), [300, -1]).data
        assert nnr.decode(data)["w"].tolist() == [300, -1]
    assert used.peak < 200_000
    for length in (-1, 256, 1 << 20):
        with pytest.raises(ValueError, match="cabac_unary_length_minus1"):
            TensorSyntax([2], cabac_unary_length_minus1=length)


def level_of(prefix: list[int], remainder: int, dq: int) -> bytes:
    """Return a payload of one level with the given abs_level_greater_x2 bins and abs_remainder."""
    c = ArithmeticEncoder()
    flags = Context("shift_idx_minus_1_present_flag", 0)
    for _ in range((24 if dq else 3) + 3 + 2 + 31):
        c.ae(flags, 0)
    for bin_val in (1, 0, 1, *prefix):  # each the first bin of its context
        c.ae(Context("", 0), bin_val)
    c.uae(sum(prefix), remainder)
    terminate(c)
    return c.finish()


@pytest.mark.parametrize(
    ("prefix", "remainder", "dq"),
    [(30 * [1] + [0], 2**30 - 1, 0), (31 * [1], 0, 0), (31 * [1], 2**31 - 1, 0), (30 * [1] + [0], 0, 1)],
)
def test_t22_a_level_of_more_than_32_bits(prefix: list[int], remainder: int, dq: int) -> None:
    header = ndu("w", [1], kind=NNR_PT_INT, unary=0, dq_flag=dq)
    good = nnr.decode(with_payload(level_of(29 * [1] + [0], 0, dq), header))["w"].tolist()
    assert good == [(1 + dq) * (2 + 2**29 - 1)]
    refused(with_payload(level_of(prefix, remainder, dq), header), PayloadError, "exceeds 32 bits")


# ------------------------------------------------------------------------------------------------ T23, T24: the end
def read(payload: bytes, dims: tuple[int, ...] = LEVELS.shape) -> PayloadDecoder:
    """Decode a tensor, but not the end of the payload."""
    decoder = PayloadDecoder(payload)
    decoder.quant_tensor(TensorSyntax(dims))
    return decoder


def test_t23_zeros_after_the_end_are_not_read() -> None:
    """Truncation raises an error, also in payloads of more than one piece of 4,096 parameters."""
    for length in range(1, len(PAYLOAD) - 2):
        with pytest.raises(PayloadError, match="ends before its last parameter"):
            read(PAYLOAD[:length])
        refused(with_payload(PAYLOAD[:length]), PayloadError, "ends before its last parameter")
    with pytest.raises(PayloadError, match="ends before its last parameter"):
        read(b"\x80", (1 << 20, 4))


def test_t24_no_terminating_bit() -> None:
    for payload in ("00 00 00", "FD 80 00"):
        with pytest.raises(PayloadError, match="terminating_one_bit is 0"):
            PayloadDecoder(bytes.fromhex(payload)).terminate()


def test_t24_no_stop_bit() -> None:
    with pytest.raises(PayloadError, match="the last bit read into IvlOffset is 0"):
        PayloadDecoder(bytes.fromhex("FE 00")).terminate()


def test_t24_nesting_bits_that_are_not_zero() -> None:
    for payload in ("FE 81", "FE C0"):
        with pytest.raises(PayloadError, match="nesting_zero_bit is 1"):
            PayloadDecoder(bytes.fromhex(payload)).terminate()


@pytest.mark.parametrize("tail", [b"\0", b"\x80", bytes(100)])
def test_t24_bytes_after_the_payload(tail: bytes) -> None:
    refused(with_payload(PAYLOAD + tail), PayloadError, f"{len(tail)} bytes follow the end")


def test_t25_a_row_skip_list_of_any_length() -> None:
    """It has as many flags as the tensor has rows, and is allocated with the tensor after the charge."""
    header = ndu("w", [1 << 22, 2], kind=NNR_PT_INT)
    data = with_payload(b"\x80\0\0\0", header)
    with memory() as used:
        refused(data, nnr.LimitError, "max_tensor_elements", limits=Limits(max_tensor_elements=(1 << 23) - 1))
    assert used.peak < 200_000
    rows = np.zeros((9, 2))
    side = [TensorSide(row_skip_enabled_flag=1)]
    assert not nnr.decode(start().ndu(ndu("w", [9, 2], kind=NNR_PT_INT), rows, sides=side).data)["w"].any()


# ------------------------------------------------------------------------------------------------ T26, T28: numbers
@pytest.mark.parametrize("parameter", [-4096, -1000, 1000, 4095])
@pytest.mark.parametrize("density", [0, 2])
def test_t26_a_step_that_is_no_number(parameter: int, density: int) -> None:
    """The step size has exponents up to 4,096."""
    data = Bitstream().str_().mps(density, parameter).ndu(ndu("w", [2]), [0, 0]).data
    refused(data, nnr.ElementError, "is not a normal number")


def test_t26_a_step_beyond_float64() -> None:
    data = Bitstream().str_().mps(0, 4095).ndu(ndu("w", [2], data_format=9), [0, 0]).data
    refused(data, nnr.ElementError, "the step size inf is not a normal number")


@pytest.mark.parametrize(("data_format", "parameter"), [(1, 127), (8, 15), (9, 1023)])
def test_t26_a_product_that_is_infinite(data_format: int, parameter: int) -> None:
    header = ndu("w", [2], data_format=data_format)
    good = nnr.decode(Bitstream().str_().mps(0, parameter).ndu(header, [1, 0]).data)["w"]
    assert np.isfinite(good).all()
    refused(Bitstream().str_().mps(0, parameter).ndu(header, [0, -2]).data, nnr.ElementError, "level 2 times the step")


@pytest.mark.parametrize("surplus", [-4, -1, 1, 4, 400])
def test_t28_raw_floats_of_another_number(surplus: int) -> None:
    header = ndu("w", [5, 2], kind=NNR_PT_RAW_FLOAT)
    refused(with_payload(bytes(40 + surplus), header), PayloadError, "bytes of raw_float32_parameter")
