"""integer_codebook(): levels as indices into a table (6.3.3.7, 7.3.6)."""

from __future__ import annotations

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_NDU, NNR_QCB
from nnr_codec.limits import Limits
from nnr_codec.syntax.deepcabac import ArithmeticDecoder, QuantTensorSyntax, quant_tensor, terminate
from nnr_codec.syntax.structures import IntegerCodebook, NnrCompressedDataUnitHeader

from ..builder import Bitstream, codebook, ndu, resolved, step_size
from .support import refused

CODEBOOKS = [
    ([-5, -2, 0, 1, 7], 2),
    ([-5, -2, 0, 1, 7], 0),  # one-sided: no sign is coded in profile 1
    ([-5, -2, 0, 1, 7], 4),
    ([-(2**31), 0, 2**31 - 1], 1),
    ([10, 11], 0),
    ([10, 11], 1),
    ([*range(-300, 300, 3)], 100),
    ([k**3 for k in range(-12, 30)], 12),
]


def with_codebook(values: list[int], zero: int, dims: list[int], **elements: int) -> NnrCompressedDataUnitHeader:
    return ndu("w", dims, codebook_present_flag=1, codebook=codebook(values, zero), **elements)


@pytest.mark.parametrize(("values", "zero"), CODEBOOKS)
@pytest.mark.parametrize("unary", [0, 1, 9])
def test_every_entry(values: list[int], zero: int, unary: int) -> None:
    for profile in (0, 1):
        for scan in (0, 1):
            assert_every_entry_is_decoded(profile, values, zero, unary, scan)


def assert_every_entry_is_decoded(profile: int, values: list[int], zero: int, unary: int, scan: int) -> None:
    """Check that each entry is decoded. Bounds of entries shorten the code in profile 1 only (10.2.1.5)."""
    rng = np.random.default_rng(len(values) + zero)
    indices = np.concatenate([np.arange(len(values)), rng.integers(0, len(values), 120)])
    indices = indices[: len(indices) // 10 * 10].reshape(-1, 10)
    header = with_codebook(values, zero, list(indices.shape), unary=unary, scan_order=scan)
    data = Bitstream().str_(profile).mps(methods=NNR_QCB).ndu(header, indices - zero, qp=-9).data
    got = nnr.decode(data, raw=True)["w"]
    want = np.array(values, np.int64)[indices].astype("f4") * np.float32(step_size(-9))
    np.testing.assert_array_equal(got, want)

    (payload,) = (unit.payload for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU)
    assert isinstance(payload, memoryview)
    syntax = QuantTensorSyntax(
        indices.shape,
        general_profile_idc=profile,
        codebook=(len(values), zero),
        cabac_unary_length_minus1=unary,
        qp_bits=8,
        scan_order=scan,
    )
    coder = ArithmeticDecoder(bytes(payload))
    decoded = quant_tensor(coder, syntax)
    terminate(coder)
    assert decoded.qp_value == -9
    assert decoded.quant_param == (indices - zero).reshape(-1).tolist()


@pytest.mark.parametrize("profile", [0, 1])
@pytest.mark.parametrize("dims", [[4], [3, 5]])
def test_one_entry(profile: int, dims: list[int]) -> None:
    """In profile 1 only qp_value is coded (10.2.1.5, 10.2.1.6)."""
    data = Bitstream().str_(profile).mps().ndu(with_codebook([7], 0, dims), np.zeros(dims), qp=-38).data
    np.testing.assert_array_equal(nnr.decode(data)["w"], np.full(dims, 7 * step_size(-38), "f4"))
    if profile == 1:
        assert data.endswith(b"\xda\x24\x80")


def test_with_dependent_quantization() -> None:
    """The index is the resolved level (errata D11)."""
    levels = np.array([[1, 0, -1, 1], [0, 0, 1, -1]])
    values, zero = [-9, -4, 0, 3, 20], 2
    assert abs(resolved(levels)).max() == 2
    data = Bitstream().str_().mps().ndu(with_codebook(values, zero, [2, 4], dq_flag=1), levels, qp=0).data
    np.testing.assert_array_equal(nnr.decode(data)["w"], np.array(values, "f4")[resolved(levels) + zero])


@pytest.mark.parametrize(
    ("level", "index"), [(3, 5), (-3, -1), (1000, 1002), (-(2**31), 2 - 2**31), (2**31 - 1, 2**31 + 1)]
)
def test_an_index_outside_is_refused_in_profile_0(level: int, index: int) -> None:
    """In profile 0 the syntax does not bound the levels (errata E4)."""
    header = with_codebook([-5, -2, 0, 1, 7], 2, [3])
    data = Bitstream().str_(0).mps().ndu(header, [0, level, 1]).data
    refused(data, nnr.PayloadError, f"index {index} is outside the codebook of 5", unit="unit 2 (NNR_NDU 'w')")


@pytest.mark.parametrize("level", [2, -2])
def test_an_index_outside_is_refused_with_dependent_quantization(level: int) -> None:
    """Resolved levels reach twice the bound."""
    header = with_codebook([-5, -2, 0, 1, 7], 2, [3], dq_flag=1)
    data = Bitstream().str_(1).mps().ndu(header, [0, level, 0]).data
    refused(data, nnr.PayloadError, "is outside the codebook of 5", unit="unit 2 (NNR_NDU 'w')")


@pytest.mark.parametrize(("size", "offset"), [(0, 0), (1, 1), (1, -1), (4, 2), (5, 3), (5, -3), (2, -2)])
def test_a_zero_that_is_no_entry_is_refused(size: int, offset: int) -> None:
    book = IntegerCodebook(codebook_egk=0, codebook_size=size, codebook_centre_offset=offset, codebook_zero_value=0)
    zero = book.cb_zero_offset
    book.codebook_delta_left = [0] * max(zero, 0)
    book.codebook_delta_right = [0] * max(size - zero - 1, 0)
    header = ndu("w", [3], codebook_present_flag=1, codebook=book)
    data = Bitstream().str_().mps().ndu(header, payload=b"\xda\x24\x80").data
    refused(data, nnr.ElementError, rf"CbZeroOffset {zero} is not an entry", unit="unit 2 (NNR_NDU")


@pytest.mark.parametrize("zero", [0, 1])
def test_an_entry_beyond_32_bits_is_refused(zero: int) -> None:
    values = [-(2**31) - 1, 5] if zero else [5, 2**31]
    header = ndu("w", [2], codebook_present_flag=1, codebook=codebook(values, zero, egk=15))
    data = Bitstream().str_().mps().ndu(header, payload=b"\xda\x24\x80").data
    refused(data, nnr.ElementError, "exceeds 32 bits", unit="unit 2 (NNR_NDU")


def test_the_size_is_limited() -> None:
    header = with_codebook([*range(50)], 0, [2])
    data = Bitstream().str_().mps().ndu(header, [1, 2]).data
    assert nnr.decode(data, limits=Limits(max_codebook=50))["w"].tolist() == [1, 2]
    with pytest.raises(nnr.LimitError, match="max_codebook=49"):
        nnr.decode(data, limits=Limits(max_codebook=49))


def test_the_size_is_checked_before_the_entries_are_read() -> None:
    """A complete codebook of 2**20 entries costs no more than its first few."""
    entries = 1 << 20
    book = IntegerCodebook(
        codebook_egk=0,
        codebook_size=entries,
        codebook_centre_offset=-(entries >> 1),
        codebook_zero_value=0,
        codebook_delta_right=[0] * (entries - 1),
    )
    header = ndu("w", [3], codebook_present_flag=1, codebook=book)
    data = Bitstream().str_().mps().ndu(header, payload=b"\xda\x24\x80").data
    reader = iter(nnr.units(data, limits=Limits.strict()))
    next(reader), next(reader)
    with pytest.raises(nnr.LimitError) as caught:
        next(reader)
    assert caught.value.bit < 2000, "the entries were read first"
