"""NNR-SYN-016 on: units, headers, aggregates, parts of tensors, elements without effect on values."""

from __future__ import annotations

import numpy as np
from bitarray import bitarray

from nnr_codec.bitstream.units import write_unit
from nnr_codec.constants import NNR_AGG, NNR_AGG_SLF, NNR_PT_INT, NNR_PT_RAW_FLOAT, NNR_TPL, NNR_TPL_PRUN
from nnr_codec.syntax import Session
from nnr_codec.syntax.structures import (
    BitMask,
    DecompositionPerformanceMap,
    NnrAggregateUnitHeader,
    NnrPruningTopologyContainer,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
    PruningPerformanceMap,
    SparsificationPerformanceMap,
    UnificationPerformanceMap,
)

from ..builder import aggregate, ndu
from .arithmetic import chosen, floats
from .bits import f4
from .case import Content, valid
from .stream import Stream


@valid("NNR-SYN-016", "nested aggregates, and a unit after them", "6.3.3.8 6.4.4.8", "NNR_AGG nested")
def nested() -> Content:
    s, values = Stream().start(), {}
    for k, name in enumerate("abcdef"):
        levels = chosen([2, 3], 4, k + 1)
        s.ndu(ndu(name, [2, 3], kind=NNR_PT_INT), levels)
        values[name] = levels
    head, (a, b, c, d, e, f) = s.units[:2], s.units[2:]
    s.units = [*head, aggregate([aggregate([a, b]), c, aggregate([d, e])]), f]
    return s.gives(values)


@valid(
    "NNR-SYN-017",
    "self-contained aggregate with the types and offsets of its units",
    "6.3.3.8 6.4.3.8",
    "NNR_AGG_SLF entry_points_present_flag",
)
def entry_points() -> Content:
    s = Stream().start()
    s.raw(ndu("a", [2], kind=NNR_PT_RAW_FLOAT), [1, 2]).raw(ndu("b", [3], kind=NNR_PT_RAW_FLOAT), [3, 4, 5])
    *head, first, second = s.units
    start = 2 + 1 + 2 + 2 + 2 * 5 + 2 * 1  # bytes before the first unit
    header = NnrAggregateUnitHeader(
        nnr_aggregate_unit_type=NNR_AGG_SLF,
        entry_points_present_flag=1,
        num_of_nnr_units_minus2=0,
        nnr_unit_type=[5, 5],
        nnr_unit_entry_point=[start, start + len(first)],
        quant_bitdepth=[31, 1],
        nnr_reserved_zero_3bits=[0, 0],
    )
    s.units = [*head, write_unit(NnrUnitHeader(nnr_unit_type=NNR_AGG, detail=header), first + second, Session())]
    return s.gives({"a": f4(1, 2), "b": f4(3, 4, 5)})


@valid("NNR-SYN-018", "arithmetic code string in three parts", "6.4.3.1 7.3.3", "partial_data_counter NNR_PT_FLOAT")
def three_parts() -> Content:
    levels = chosen([5, 4], 9)
    s = Stream().start().ndu(ndu("w", [5, 4]), levels, qp=-7, pieces=3)
    s.ndu(ndu("after", [2], kind=NNR_PT_INT), [3, -4])
    return s.gives({"w": floats(levels, -7), "after": np.array([3, -4], np.int32)})


@valid(
    "NNR-SYN-019",
    "dimensions from the topology, not from the unit",
    "6.4.3.7",
    "tensor_dimensions_flag=0",
    topology_dimensions={"w": [2, 3]},
)
def dimensions_from_topology() -> Content:
    levels = chosen([2, 3], 5)
    s = Stream({"w": [2, 3]}).start()
    s.ndu(ndu("w", None), levels, qp=4)
    return s.gives({"w": floats(levels, 4)})


@valid(
    "NNR-SYN-020",
    "no input parameters: dimensions from the topology, default cabac_unary_length_minus1 9 and parameter types 0",
    "6.3.3.7 6.4.3.7",
    "input_parameters_present_flag=0",
    topology_dimensions={"w": [7]},
)
def no_input_parameters() -> Content:
    levels = [9, 10, 11, 12, -10, -11, 0]
    header = ndu("w", None, kind=NNR_PT_INT, unary=None, input_parameters_present_flag=0)
    s = Stream({"w": [7]}).start()
    s.ndu(header, levels)
    return s.gives({"w": np.array(levels, np.int32)})


@valid(
    "NNR-SYN-021",
    "performance maps in the model parameter set, with floats at unaligned bit positions",
    "6.1.3 6.3.4.3 6.4.4.3",
    "performance_maps base_model_id validation_set_performance",
)
def performance_maps() -> Content:
    s = Stream()
    s.str_()
    s.parameters(
        mps_sparsification_flag=1,
        mps_pruning_flag=1,
        mps_unification_flag=1,
        mps_decomposition_performance_map_flag=1,
        base_model_id_present_flag=1,
        base_model_id="base/1",
        validation_set_performance_present_flag=1,
        metric_type_performance_map_valid_flag=1,
        performance_metric_type="top-1",
        validation_set_performance=0.625,
        sparsification=SparsificationPerformanceMap(
            spm_count_thresholds=2,
            sparsification_threshold=[0.5],
            non_zero_ratio=[0.25],
            spm_nn_accuracy=[0.75],
            spm_count_classes=[2],
            spm_class_bitmask=[300],
            spm_nn_class_accuracy=[[0.5, 1.0]],
        ),
        pruning=PruningPerformanceMap(
            ppm_count_pruning_ratios=3,
            pruning_ratio=[0.5, 0.25],
            ppm_nn_accuracy=[0.75, 0.875],
            ppm_count_classes=[0, 1],
            ppm_class_bitmask=[0, 128],
            ppm_nn_class_accuracy=[[], [0.5]],
        ),
        unification=UnificationPerformanceMap(
            upm_count_thresholds=2,
            count_resaped_tensor_dimension=[3],
            reshaped_tensor_dimensions=[[64, 9]],
            count_super_block_dimension=[3],
            super_block_dimensions=[[64, 64]],
            count_block_dimension=[2],
            block_dimensions=[[2]],
            unification_threshold=[0.125],
            upm_nn_accuracy=[0.5],
            upm_count_classes=[1],
            upm_class_bitmask=[1],
            upm_nn_class_accuracy=[[0.25]],
        ),
        decomposition=DecompositionPerformanceMap(dpm_count_thresholds=1),
    )
    s.ndu(ndu("w", [3]), [1, -2, 3], qp=5)
    return s.gives({"w": floats([1, -2, 3], 5)})


@valid("NNR-SYN-022", "ids with multibyte characters, with a space, and with 300 characters", "6.1.3 6.3.3.7", "st(v)")
def names() -> Content:
    s = Stream().start()
    values = {}
    for k, name in enumerate(("größe/重み/🧠", " ", "x" * 300, "a.b/c:0")):
        s.raw(ndu(name, [1], kind=NNR_PT_RAW_FLOAT), [k])
        values[name] = f4(k)
    return s.gives(values)


@valid(
    "NNR-SYN-023",
    "pruning information that preserves all parameters",
    "6.3.4.5 6.4.4.5",
    "NNR_TPL_PRUN bit_mask dictionary",
    rev=2,
)
def pruning() -> Content:
    s = Stream().start()
    for container in (
        NnrPruningTopologyContainer(
            nnr_rep_type=0,
            prune_flag=1,
            order_flag=1,
            sparse_flag=1,
            prune_mask=BitMask(bit_mask_value=bitarray("11")),
            sparse_mask=BitMask(bit_mask_value=bitarray("111111")),
        ),
        NnrPruningTopologyContainer(
            nnr_rep_type=1, prune_flag=1, count_ids=1, element_id=["w"], count_dims=[2], dim=[[2, 3]]
        ),
    ):
        header = NnrUnitHeader(
            nnr_unit_type=NNR_TPL, detail=NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_PRUN)
        )
        s.unit(header, NnrTopologyUnitPayload(pruning=container))
    s.ndu(ndu("w", [2, 3]), [[1, 2, 3], [4, 5, 6]], qp=4)
    return s.gives({"w": floats([[1, 2, 3], [4, 5, 6]], 4)})


@valid(
    "NNR-SYN-024",
    "topology and quantization data with unrecognized formats",
    "6.4.3.5 6.4.4.5",
    "NNR_TPL_UNREC NNR_QNT_UNREC",
    rev=2,
)
def unrecognized() -> Content:
    s = Stream().start()
    s.topology(b"\0", storage=0).topology(b"any bytes \xff\x00 at all", storage=0)
    s.quantization(b"\xff", storage=0, compression=1)
    s.raw(ndu("w", [1], kind=NNR_PT_RAW_FLOAT), [1])
    return s.gives({"w": f4(1)}, topology=b"any bytes \xff\x00 at all", topology_format="")


@valid(
    "NNR-SYN-025",
    "raw parameters with decompressed data format and dimension shift",
    "6.3.3.7 7.2 7.3.4",
    "NNR_PT_RAW_FLOAT format=9 first_tensor_dimension_shift",
)
def raw_shifted() -> Content:
    values = np.arange(24, dtype="<f4").reshape(2, 3, 4) / 8
    header = ndu("w", [2, 3, 4], kind=NNR_PT_RAW_FLOAT, data_format=9, first_tensor_dimension_shift=1)
    s = Stream().start()
    s.raw(header, values)
    want = np.array([[[values[i, j, k] for k in range(4)] for i in range(2)] for j in range(3)], "<f8")
    return s.gives({"w": want})


@valid(
    "NNR-SYN-026",
    "integers by index, dimensions from the topology by name",
    "6.4.3.7",
    "topology_elem_id_index tensor_dimensions_flag=0",
    topology_dimensions={"a": [2], "b": [3]},
)
def indexed_dimensions() -> Content:
    s = Stream({"a": [2], "b": [3]}).start(indexed=1)
    s.reference_list("a", "b")
    s.ndu(ndu(1, None, kind=NNR_PT_INT), [1, 2, 3]).ndu(ndu(0, None, kind=NNR_PT_INT), [-4, 5])
    return s.gives({"b": np.array([1, 2, 3], np.int32), "a": np.array([-4, 5], np.int32)})
