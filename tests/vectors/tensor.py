"""NNR-TEN: decompressed data formats, scan orders and entry points, dimension shifts, tensors that share a unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnr_codec.constants import NNR_PT_INT, NNR_PT_RAW_FLOAT, NNR_QCB, NNR_QSU

from ..builder import codebook, ndu
from .arithmetic import chosen, dependent, floats, look_up
from .case import Content, valid
from .stream import Stream, side

#: Bits and numpy type of the integer formats of Table 15.
INTEGERS = {0: (32, "<i4"), 2: (2, "|i1"), 3: (3, "|i1"), 4: (4, "|i1"), 5: (8, "|i1"), 6: (16, "<i2"), 7: (32, "<i8")}
FLOATS = {1: (24, "<f4"), 8: (11, "<f2"), 9: (31, "<f8")}

for fmt, (depth, dtype) in INTEGERS.items():

    @valid(
        f"NNR-TEN-{1 + fmt:03}",
        f"integers of nnr_decompressed_data_format {fmt}, both ends of the coded range",
        "6.4.3.7 7.2 7.3.2",
        f"NNR_PT_INT nnr_decompressed_data_format={fmt}",
    )
    def integers(fmt: int = fmt, depth: int = depth, dtype: str = dtype) -> Content:
        levels = [2 ** (depth - 1) - 1, -(2 ** (depth - 1)), 0, 1, -1]
        s = Stream().start()
        s.ndu(ndu("w", [5], kind=NNR_PT_INT, data_format=fmt), levels)
        return s.gives({"w": np.array(levels, dtype)})


for fmt, (depth, dtype) in FLOATS.items():

    @valid(
        f"NNR-TEN-{1 + fmt:03}",
        f"floats of nnr_decompressed_data_format {fmt}, with levels as wide as the significand, at most 31 bits",
        "6.4.3.7 7.2 7.3.3",
        f"NNR_PT_FLOAT nnr_decompressed_data_format={fmt}",
    )
    def reals(fmt: int = fmt, depth: int = depth, dtype: str = dtype) -> Content:
        levels = [2**depth - 1, -(2**depth) + 1, 0, 1, -1]
        s = Stream().start()
        s.ndu(ndu("w", [5], data_format=fmt), levels, qp=-16)
        return s.gives({"w": floats(levels, -16, dtype=dtype)})


@valid(
    "NNR-TEN-011",
    "raw parameters converted to float16, in profile 1",
    "7.2 7.3.4",
    "NNR_PT_RAW_FLOAT nnr_decompressed_data_format=8",
)
def raw_float16() -> Content:
    values = [1.0, -0.0, 65504.0, 2.0**-24, -1.5]
    s = Stream().start()
    s.raw(ndu("w", [5], kind=NNR_PT_RAW_FLOAT, data_format=8), values)
    return s.gives({"w": np.array(values, "<f2")})


@valid("NNR-TEN-012", "decompressed data formats of profile 0", "6.4.3.7 7.2", "profile_0 nnr_decompressed_data_format")
def formats_profile_0() -> Content:
    s = Stream().start(0)
    s.ndu(ndu("n", [2], kind=NNR_PT_INT, data_format=0), [5, -6]).ndu(ndu("w", [2], data_format=1), [5, -6], qp=2)
    return s.gives({"n": np.array([5, -6], np.int32), "w": floats([5, -6], 2)})


SCANS: list[tuple[str, Sequence[int], int, dict[str, Any]]] = [
    ("8x8 blocks, incomplete in both dimensions", [19, 13], 1, {}),
    ("8x8 blocks, incomplete in both dimensions", [19, 13], 1, {"dq": 1}),
    ("16x16 blocks, narrower than a block", [35, 9], 2, {}),
    ("16x16 blocks, one in each row", [17, 16], 2, {"dq": 1}),
    ("32x32 blocks", [33, 5], 3, {}),
    ("32x32 blocks", [65, 2], 3, {"dq": 1}),
    ("64x64 blocks", [65, 3], 4, {}),
    ("64x64 blocks", [130, 2], 4, {"dq": 1}),
    ("8x8 blocks of four dimensions", [9, 2, 3, 3], 1, {}),
    ("8x8 blocks in a single row", [8, 20], 1, {"dq": 1}),
    ("64x64 blocks, a single block", [5, 5], 4, {}),
    ("8x8 blocks in profile 0", [17, 10], 1, {"profile": 0, "dq": 1}),
    ("8x8 blocks with skipped rows", [18, 12], 1, {"skip": 1}),
    ("8x8 blocks with skipped rows, widths that are not multiples of 4", [18, 10], 1, {"skip": 1, "dq": 1}),
    ("8x8 blocks and one row: row-major order, no entry points", [1, 40], 1, {}),
]

for number, (title, dims, scan, options) in enumerate(SCANS, 13):

    @valid(
        f"NNR-TEN-{number:03}",
        f"scan order {scan}: {title}{', dependent quantization' * options.get('dq', 0)}",
        "4.12 6.3.3.7 6.4.3.7 10.2.1.4",
        f"scan_order={scan} {'cabac_offset_list ' * (dims[0] > 4 << scan)}{'dq_flag ' * options.get('dq', 0)}"
        f"{'row_skip_enabled_flag' * options.get('skip', 0)}",
    )
    def scanned(dims: Sequence[int] = dims, scan: int = scan, options: dict[str, Any] = options) -> Content:
        dq, skip = options.get("dq", 0), options.get("skip", 0)
        levels = chosen(dims, 5, 7 * scan + dq)
        if skip:
            levels[[0, 3, 4, 9, 16, 17]] = 0
        ids = side(10, skip=skip, sig={0: 1, 1: 4, 2: 6}, sign={1: 7, 2: 3}, gtx={0: 8, 1: 5, 2: 2}, gtx2={0: 4})
        s = Stream().start(options.get("profile", 1))
        s.ndu(ndu("w", dims, scan_order=scan, dq_flag=dq), levels, qp=-10, sides=[ids])
        return s.gives({"w": floats(dependent(levels, scan) if dq else levels, -10)})


@valid(
    "NNR-TEN-028", "block scan of integers and of a codebook", "6.3.3.7 7.3.2 7.3.6", "scan_order=1 NNR_PT_INT codebook"
)
def scanned_others() -> Content:
    entries = [-7, -1, 0, 3, 8]
    numbers, indices = chosen([10, 9], 40), chosen([10, 9], 2, 5)
    s = Stream().start()
    s.ndu(ndu("n", [10, 9], kind=NNR_PT_INT, scan_order=1), numbers)
    header = ndu("w", [10, 9], scan_order=1, codebook_present_flag=1, codebook=codebook(entries, 2))
    s.ndu(header, indices, qp=1)
    return s.gives({"n": numbers, "w": floats(look_up(indices, entries, 2), 1)})


for number, shift in ((29, 1), (30, 2), (31, 3)):

    @valid(
        f"NNR-TEN-{number:03}",
        f"the first of four dimensions moves to position {shift}",
        "4.12 6.4.3.7 7.3.3",
        f"first_tensor_dimension_shift={shift}",
    )
    def shifted(shift: int = shift) -> Content:
        levels = chosen([2, 3, 4, 2], 9)
        s = Stream().start()
        s.ndu(ndu("w", [2, 3, 4, 2], first_tensor_dimension_shift=shift), levels)
        values = floats(levels)
        order = [1, 2, 3]
        order.insert(shift, 0)
        shape = [values.shape[axis] for axis in order]
        moved = np.zeros(shape, "<f4")
        for index in np.ndindex(*values.shape):
            moved[tuple(index[axis] for axis in order)] = values[index]
        return s.gives({"w": moved})


@valid(
    "NNR-TEN-032",
    "a tensor split into two along its first dimension",
    "4.12 6.4.3.7 7.3.1",
    "topology_tensor_dimension_mapping TensorSplit",
)
def split_in_two() -> Content:
    levels = chosen([5, 3], 9)
    header = ndu(["a", "b"], [5, 3], concatentation_axis_index=0, split_index=[2], number_of_shifts=[0, 0])
    s = Stream().start()
    s.ndu(header, levels)
    values = floats(levels)
    return s.gives({"a": values[:2], "b": values[2:]})


@valid(
    "NNR-TEN-033",
    "integers split into three along the last dimension, ids by index",
    "4.12 6.4.3.7 7.3.1",
    "topology_tensor_dimension_mapping topology_elem_id_index_list",
)
def split_in_three() -> Content:
    levels = chosen([2, 2, 6], 9)
    header = ndu(
        [2, 0, 1],
        [2, 2, 6],
        kind=NNR_PT_INT,
        concatentation_axis_index=2,
        split_index=[1, 3],
        number_of_shifts=[0, 0, 0],
    )
    s = Stream().start(indexed=1)
    s.reference_list("a", "b", "c")
    s.ndu(header, levels)
    return s.gives({"c": levels[:, :, :1], "a": levels[:, :, 1:3], "b": levels[:, :, 3:]})


@valid(
    "NNR-TEN-034",
    "axes of split tensors shifted left, one by two positions, one twice by one",
    "4.12 6.4.3.7 7.3.1",
    "topology_tensor_dimension_mapping AxisSwap",
)
def split_and_shifted() -> Content:
    levels = chosen([4, 3, 2], 9)
    header = ndu(
        ["a", "b", "c"],
        [4, 3, 2],
        concatentation_axis_index=0,
        split_index=[1, 3],
        number_of_shifts=[0, 1, 2],
        shift_index=[[], [2], [1, 2]],
        shift_value=[[], [2], [1, 1]],
    )
    s = Stream().start()
    s.ndu(header, levels)
    values = floats(levels)
    a, b, c = values[:1], values[1:3], values[3:]
    b = b.swapaxes(2, 1).swapaxes(1, 0)
    c = c.swapaxes(1, 0).swapaxes(2, 1)
    return s.gives({"a": a, "b": b, "c": c})


@valid(
    "NNR-TEN-036",
    "a codebook of a tensor split into three along its second dimension",
    "4.12 6.4.3.7 7.3.1 7.3.6",
    "topology_tensor_dimension_mapping TensorSplit codebook",
)
def split_codebook() -> Content:
    entries = [-40, -7, -1, 0, 3, 8, 21]
    indices = chosen([3, 7], 3, 2)
    header = ndu(
        ["a", "b", "c"],
        [3, 7],
        concatentation_axis_index=1,
        split_index=[2, 3],
        number_of_shifts=[0, 0, 0],
        codebook_present_flag=1,
        codebook=codebook(entries, 3),
    )
    s = Stream().start(methods=NNR_QSU | NNR_QCB)
    s.ndu(header, indices, qp=-3)
    values = floats(look_up(indices, entries, 3), -3)
    return s.gives({"a": values[:, :2], "b": values[:, 2:3], "c": values[:, 3:]})


@valid(
    "NNR-TEN-037",
    "dependent quantization and 8x8 blocks of a tensor in three units, split into two along its second dimension",
    "4.12 6.4.3.1 6.4.3.7 7.3.1 10.2.1.4",
    "topology_tensor_dimension_mapping TensorSplit dq_flag scan_order=1 cabac_offset_list partial_data_counter",
)
def split_blocks() -> Content:
    levels = chosen([19, 13], 5, 11)
    header = ndu(
        ["a", "b"],
        [19, 13],
        concatentation_axis_index=1,
        split_index=[9],
        number_of_shifts=[0, 0],
        scan_order=1,
        dq_flag=1,
    )
    s = Stream().start()
    s.ndu(header, levels, qp=-6, pieces=3)
    values = floats(dependent(levels, 1), -6)
    return s.gives({"a": values[:, :9], "b": values[:, 9:]})


@valid("NNR-TEN-035", "a tensor of eight dimensions", "6.4.3.7", "count_tensor_dimensions=8")
def many_dimensions() -> Content:
    dims = [2, 1, 2, 1, 2, 1, 2, 3]
    levels = chosen(dims, 3)
    s = Stream().start()
    s.ndu(ndu("w", dims), levels)
    return s.gives({"w": floats(levels)})
