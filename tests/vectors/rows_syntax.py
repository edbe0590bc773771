"""NNR-SYN-201, NNR-QNT-201, NNR-TEN-201 on: syntax that no other vector reaches (docs/reference/coverage.md)."""

from __future__ import annotations

import numpy as np

from nnr_codec.bitstream.performance import (
    DecompositionMap,
    DecompositionRow,
    Performance,
    PerformanceMaps,
    PruningMap,
    PruningRow,
    SparsificationMap,
    SparsificationRow,
    UnificationMap,
    UnificationRow,
)
from nnr_codec.constants import NNR_PT_INT

from ..builder import codebook, ndu
from .arithmetic import chosen, dependent, floats, look_up
from .case import Content, valid
from .parameters import model
from .stream import Stream, side

#: One row in each map, one class in each row, and two extents, of which one is coded, minus one.
SINGLE = PerformanceMaps(
    SparsificationMap((SparsificationRow(0.5, 0.25, 0.75, 1, (0.5,)),)),
    PruningMap((PruningRow(0.5, 0.75, 1, (0.25,)),)),
    UnificationMap((UnificationRow(0.5, 1.0, (64,), (8,), (4,), 1, (0.5,)),)),
    DecompositionMap((DecompositionRow(0.5, 0.75, 0.25, (0.5,)),)),
)


@valid(
    "NNR-SYN-201",
    "performance maps with one row, one class and lists of one extent",
    "6.3.4.3 6.4.4.3",
    "performance_maps spm_count_classes=1 ppm_count_pruning_ratios=2 dpm_count_thresholds=2",
)
def single_rows() -> Content:
    s = model(Performance(maps=SINGLE))
    s.ndu(ndu("w", [3]), [1, -2, 3], qp=5)
    return s.gives({"w": floats([1, -2, 3], 5)})


@valid(
    "NNR-QNT-201",
    "a matrix with a codebook of one entry: neither levels nor the flags before them are coded",
    "7.3.6 10.2.1.4 10.2.1.5 10.2.1.6",
    "codebook_size=1 row_skip_enabled_flag",
)
def one_entry() -> Content:
    levels = np.zeros([4, 5], np.int32)
    s = Stream().start(methods=2)
    s.ndu(ndu("w", [4, 5], codebook_present_flag=1, codebook=codebook([-7], 0)), levels, qp=1)
    return s.gives({"w": floats(look_up(levels, [-7], 0), 1)})


@valid(
    "NNR-TEN-201",
    "tensors that share a unit, one with axis 0 shifted by 0",
    "6.3.3.7 7.3.1",
    "TensorSplit shift_index=0 shift_value=0",
)
def shift_by_nothing() -> Content:
    levels = chosen([3, 2], 40)
    header = ndu(["a", "b"], [3, 2], kind=NNR_PT_INT)
    header.concatentation_axis_index, header.split_index = 0, [1]
    header.number_of_shifts, header.shift_index, header.shift_value = [1, 0], [[0]], [[0]]
    s = Stream().start()
    s.ndu(header, levels)
    return s.gives({"a": levels[:1], "b": levels[1:]})


@valid(
    "NNR-TEN-202",
    "entry points after skipped rows of blocks, with no bits between them",
    "6.3.3.7 6.4.3.7 10.2.1.4",
    "scan_order=1 bit_offset_delta1=0 bit_offset_delta2=0 row_skip_enabled_flag",
)
def nothing_between() -> Content:
    levels = chosen([40, 3], 5, 4)
    levels[:24] = 0
    s = Stream().start()
    s.ndu(ndu("w", [40, 3], scan_order=1), levels, qp=-10, sides=[side(skip=1)])
    return s.gives({"w": floats(levels, -10)})


@valid("NNR-TEN-203", "an entry point with IvlOffset 0", "6.3.3.7 6.4.3.7", "scan_order=1 cabac_offset_list=0")
def offset_zero() -> Content:
    levels = chosen([24, 9], 5)
    levels[8, 0] = -3000  # all bins are 1, the lower part of the interval in initialized contexts
    header = ndu("w", [24, 9], scan_order=1)
    s = Stream().start()
    s.ndu(header, levels, qp=-10)
    if 0 not in header.cabac_offset_list:
        raise ValueError("no offset is 0")
    return s.gives({"w": floats(levels, -10)})


@valid("NNR-TEN-204", "an entry point in state 1", "6.3.3.7 6.4.3.7", "scan_order=1 dq_flag dq_state_list=1")
def state_one() -> Content:
    levels = chosen([24, 9], 5, 2)
    header = ndu("w", [24, 9], scan_order=1, dq_flag=1)
    s = Stream().start()
    s.ndu(header, levels, qp=-10)
    if 1 not in header.dq_state_list:
        raise ValueError("no state is 1")
    return s.gives({"w": floats(dependent(levels, 1), -10)})
