"""NNR-CAB: arithmetic coding, binarization, contexts, flags before the levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnr_codec.cabac_ext.kernel import TensorSide
from nnr_codec.constants import NNR_PT_INT

from ..builder import ndu
from .arithmetic import chosen, dependent, floats
from .case import Content, valid
from .stream import Stream, side

#: nnr_decompressed_data_format of 8-bit integers: expected.npz has one byte per value.
NARROW = 5


def one(dims: Sequence[int], levels: Any, sides: TensorSide | None = None, profile: int = 1, **header: Any) -> Content:
    """Return a bitstream of one integer tensor."""
    levels = np.asarray(levels, np.int64).reshape(tuple(dims))
    s = Stream().start(profile)
    s.ndu(ndu("w", dims, kind=NNR_PT_INT, **header), levels, sides=[sides])
    want = dependent(levels, header.get("scan_order", 0)) if header.get("dq_flag") else levels
    return s.gives({"w": want.astype(np.int8 if header.get("data_format") == NARROW else np.int32)})


@valid("NNR-CAB-001", "integers in profile 0", "7.3.2 10.2.1.4 10.2.1.5", "NNR_PT_INT profile_0")
def profile_0() -> Content:
    return one([4, 5], chosen([4, 5], 6), profile=0)


for number, n in ((2, 1), (3, 2), (4, 11), (5, 256)):

    @valid(
        f"NNR-CAB-{number:03}",
        f"levels around the end of a unary part of length {n}",
        "10.2.1.5 10.3.3",
        f"NNR_PT_INT cabac_unary_length={n}",
    )
    def unary(n: int = n) -> Content:
        edges = [n - 1, n, n + 1, n + 2, n + 3, n + 4, n + 7, n + 8]
        return one([2 * len(edges)], [*edges, *(-edge for edge in edges)], unary=n - 1)


for number, n in ((6, 1), (7, 11)):

    @valid(
        f"NNR-CAB-{number:03}",
        f"the largest integers and every remainder length, after a unary part of length {n}",
        "7.3.2 10.2.1.5 10.3.3.2",
        f"NNR_PT_INT cabac_unary_length={n} abs_remainder",
    )
    def remainders(n: int = n) -> Content:
        levels = [2**31 - 1, -(2**31) + 1, -(2**31)]
        for k in range(1, 31):
            levels += [n + 2**k, -(n + 2**k - 1)]
        return one([len(levels)], levels, unary=n - 1)


@valid(
    "NNR-CAB-008",
    "each shift parameter id for all contexts of a tensor, with and without dependent quantization",
    "10.2.1.6 10.2.1.7 10.3.2.2",
    "NNR_PT_INT shift_parameter_ids dq_flag",
)
def all_ids() -> Content:
    s, values = Stream().start(), {}
    for k in range(9):
        for dq in (0, 1):
            levels = chosen([3, 4], 7, 10 * k + dq + 1)
            ids = side(
                3,
                sig=dict.fromkeys(range(24 if dq else 3), k),
                sign=dict.fromkeys(range(3), k),
                gtx=dict.fromkeys(range(6), k),
                gtx2=dict.fromkeys(range(31), k),
            )
            s.ndu(ndu(f"id{k}dq{dq}", [3, 4], kind=NNR_PT_INT, unary=2, dq_flag=dq), levels, sides=[ids])
            values[f"id{k}dq{dq}"] = dependent(levels).astype(np.int32) if dq else levels
    return s.gives(values)


@valid(
    "NNR-CAB-009",
    "different shift parameter ids for the contexts after zero, negative and positive levels",
    "10.3.4.2.2 10.3.4.2.3",
    "NNR_PT_INT shift_parameter_ids neighbours",
)
def neighbours() -> Content:
    return one([6, 7], chosen([6, 7], 2), side(sig={0: 1, 1: 2, 2: 6}, sign={0: 3, 1: 2, 2: 1}))


@valid(
    "NNR-CAB-010",
    "a different shift parameter id for each context and each state of dependent quantization",
    "10.2.1.6 10.3.4.2",
    "NNR_PT_INT shift_parameter_ids dq_flag",
)
def mixed_ids() -> Content:
    ids = side(
        4,
        sig={k: (2 * k + 1) % 9 for k in range(24)},
        sign={0: 8, 1: 4, 2: 5},
        gtx={k: (5 * k + 3) % 9 for k in range(8)},
        gtx2={k: (k + 6) % 9 for k in range(31)},
    )
    return one([9, 11], chosen([9, 11], 12), ids, unary=3, dq_flag=1)


ROWS = np.array([[0, 0, 0, 0], [1, 0, -2, 0], [0, 0, 0, 0], [0, 0, 0, 3], [0, 0, 0, 0]])


@valid("NNR-CAB-011", "rows of zeros are skipped", "10.2.1.4", "NNR_PT_INT row_skip_enabled_flag")
def row_skip() -> Content:
    return one([5, 4], ROWS, side(skip=1))


@valid("NNR-CAB-012", "all rows are skipped", "10.2.1.4", "NNR_PT_INT row_skip_enabled_flag")
def all_skipped() -> Content:
    return one([6, 3], np.zeros((6, 3), int), side(skip=1))


@valid("NNR-CAB-013", "rows of zeros are coded, not skipped", "10.2.1.4", "NNR_PT_INT row_skip_enabled_flag=0")
def not_skipped() -> Content:
    return one([5, 4], ROWS)


@valid(
    "NNR-CAB-014",
    "skipped rows advance the state of dependent quantization",
    "10.2.1.4 9.2.3",
    "NNR_PT_INT row_skip_enabled_flag dq_flag",
)
def row_skip_dq() -> Content:
    levels = chosen([7, 3], 3)
    levels[[0, 3, 4]] = 0
    levels[2, 2] = 1
    return one([7, 3], levels, side(skip=1, sig={k: k % 9 for k in range(24)}), dq_flag=1)


@valid("NNR-CAB-015", "one row: no flags before the levels", "10.2.1.4", "NNR_PT_INT tensor2DHeight=1")
def one_row() -> Content:
    return one([1, 9], chosen([1, 9], 3))


@valid("NNR-CAB-016", "one column: no flags before the levels", "10.2.1.4", "NNR_PT_INT tensor2DWidth=1")
def one_column() -> Content:
    return one([9, 1], chosen([9, 1], 3))


@valid("NNR-CAB-017", "all levels are zero", "10.2.1.5", "NNR_PT_FLOAT")
def zeros() -> Content:
    s = Stream().start()
    s.ndu(ndu("w", [8, 8]), np.zeros((8, 8), int))
    return s.gives({"w": floats(np.zeros((8, 8), int))})


@valid(
    "NNR-CAB-018",
    "long runs of equal levels: probabilities reach their limits",
    "10.3.4.3.2.1 10.3.4.3.2.2",
    "NNR_PT_INT shift_parameter_ids",
)
def saturated() -> Content:
    levels = np.array([0] * 200 + [1] * 150 + [0] * 3 + [-1] * 80)
    return one(
        [len(levels)], levels, side(2, sig={0: 4, 2: 8}, sign={1: 7}, gtx={0: 3, 1: 5}), unary=1, data_format=NARROW
    )


@valid(
    "NNR-CAB-019", "the largest and smallest levels of dependent quantization", "7.3.2 10.2.1.4", "NNR_PT_INT dq_flag"
)
def dq_range() -> Content:
    return one([4], [2**30 - 1, -(2**30) + 1, 2**30 - 1, -(2**30)], dq_flag=1)


@valid("NNR-CAB-020", "tensors with one and three dimensions of one element", "10.2.1.4", "NNR_PT_INT")
def single() -> Content:
    s = Stream().start()
    s.ndu(ndu("a", [1], kind=NNR_PT_INT), [-7]).ndu(ndu("b", [1, 1, 1], kind=NNR_PT_INT), [8])
    return s.gives({"a": np.array([-7], np.int32), "b": np.full((1, 1, 1), 8, np.int32)})


@valid(
    "NNR-CAB-021",
    "rare ones among zeros: the first and last entries of both tables",
    "10.3.4.3.2.1 10.3.4.3.2.2",
    "NNR_PT_INT shift_parameter_ids",
)
def rare() -> Content:
    levels = [level for k in range(8) for level in [0] * (90 + 7 * k) + [1]]
    return one([len(levels)], levels, side(2, sig={0: 2, 2: 3}), unary=1, data_format=NARROW)
