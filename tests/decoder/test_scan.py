"""Tests of scan_order: blocks of rows, entry points, and tensors without them (4.12, 6.4.3.7, 10.2.1.4)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.cabac_ext.kernel import TensorSide
from nnr_codec.constants import NNR_NDU, NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.syntax.deepcabac import ArithmeticDecoder, QuantTensorSyntax, quant_tensor, terminate

from ..builder import TRANSITIONS, Bitstream, ndu, step_size
from .support import overwritten, refused

SHAPES = [[8, 8], [17, 13], [9, 70], [70, 9], [65, 65], [33, 3, 5], [5, 4], [40, 1], [1, 40], [2, 130], [130, 2]]


def order(height: int, width: int, scan: int) -> list[int]:
    """Return row-major indices in coding order: blocks from left to right, rows from top to bottom (IndexToXY)."""
    side = 4 << scan
    return [
        y * width + x
        for top in range(0, height, side)
        for left in range(0, width, side)
        for y in range(top, min(top + side, height))
        for x in range(left, min(left + side, width))
    ]


def expand(levels: np.ndarray, scan: int) -> np.ndarray:
    """Return levels after dependent quantization is resolved in coding order."""
    flat, out, state = levels.reshape(-1), np.zeros(levels.size, np.int64), 0
    for i in order(levels.shape[0], levels.size // levels.shape[0], scan):
        level = int(flat[i])
        out[i] = 2 * level - ((level > 0) - (level < 0)) * (state & 1)
        state = TRANSITIONS[state][level & 1]
    return out.reshape(levels.shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scan", [1, 2, 3, 4])
def test_levels_are_where_they_belong(shape: list[int], scan: int) -> None:
    for dq, profile in product((0, 1), repeat=2):
        assert_levels_are_where_they_belong(shape, scan, dq, profile)


def assert_levels_are_where_they_belong(shape: list[int], scan: int, dq: int, profile: int) -> None:
    rng = np.random.default_rng(scan)
    levels = rng.integers(-6, 7, shape).astype(np.int32)
    levels[::3] = 0
    sides = [TensorSide(row_skip_enabled_flag=1)] if profile and min(shape[0], levels[0].size) > 1 else None
    header = ndu("w", shape, scan_order=scan, dq_flag=dq)
    data = Bitstream().str_(profile).mps().ndu(header, levels, qp=-4, sides=sides).data
    assert len(header.cabac_offset_list) == -(-shape[0] // (4 << scan)) - 1
    integers = expand(levels, scan if min(shape[0], levels[0].size) > 1 else 0) if dq else levels
    np.testing.assert_array_equal(nnr.decode(data)["w"], integers * step_size(-4))

    (payload,) = (unit.payload for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU)
    assert isinstance(payload, memoryview)
    syntax = QuantTensorSyntax(tuple(shape), general_profile_idc=profile, dq_flag=dq, qp_bits=8, scan_order=scan)
    coder = ArithmeticDecoder(bytes(payload))
    decoded = quant_tensor(coder, syntax)
    terminate(coder)
    assert decoded.quant_param == integers.reshape(-1).tolist()


@pytest.mark.parametrize("scan", [5, 7, 15])
@pytest.mark.parametrize("kind", [NNR_PT_INT, NNR_PT_RAW_FLOAT])
def test_reserved_orders_are_refused(scan: int, kind: int) -> None:
    good = Bitstream().str_().mps().ndu(ndu("w", [3, 3], kind=kind), payload=bytes(36)).data
    data = overwritten(good, "scan_order", scan)
    error = refused(data, nnr.ElementError, f"scan_order {scan} is outside", unit="unit 2 (NNR_NDU")
    assert error.bit > 0


def test_a_column_has_no_entry_points() -> None:
    """The header lists them, but coding ignores them (errata G2), so they may have any values."""
    header = ndu("w", [40, 1], scan_order=1, dq_flag=1)
    stream = Bitstream().str_().mps()
    levels = np.arange(40) - 20
    payload = stream.payload(header, [levels])
    header.cabac_offset_list, header.dq_state_list = [255] * 4, [7] * 4
    header.bit_offset_delta1, header.bit_offset_delta2 = 12345, [-99, 0, 99]
    got = nnr.decode(stream.ndu(header, payload=payload).data)["w"]
    np.testing.assert_array_equal(got, expand(levels.reshape(40, 1), 0))


def test_many_block_rows_without_their_bits_are_refused() -> None:
    """2**28 entry points are declared, but none is present."""
    header = ndu("w", [1 << 31, 2], scan_order=0)
    good = Bitstream().str_().mps().ndu(header, payload=bytes(8)).data
    with pytest.raises(nnr.LimitError):
        nnr.decode(good)
