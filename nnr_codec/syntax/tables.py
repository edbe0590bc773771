"""Syntax tables of ISO/IEC 15938-17:2024, 6.3, in the order and wording of the standard.

A test compares them row by row with the printed text. The tables that only dispatch (nnr_unit(), nnr_unit_payload(),
nnr_aggregate_unit_payload()) are implemented by the framing in `nnr_codec.bitstream`.
"""

from __future__ import annotations

from ..constants import (
    ICNN_NDU_ID,
    ICNN_NDU_PL_SHA256,
    ICNN_NDU_PL_SHA512,
    NNR_AGG,
    NNR_CPT_DC,
    NNR_LPS,
    NNR_MPS,
    NNR_NDU,
    NNR_PT_BLOCK,
    NNR_PT_FLOAT,
    NNR_PT_INT,
    NNR_QCB,
    NNR_QNT,
    NNR_QSU,
    NNR_STR,
    NNR_TPL,
    NNR_TPL_BMSK,
    NNR_TPL_DICT,
    NNR_TPL_PRUN,
    NNR_TPL_REFLIST,
    NnrRepType,
    NnrUnitType,
    ParentNodeIdType,
    PayloadType,
)
from .coder import bits, bs, byte_alignment, flt, i, ie, st, struct, syntax, u, ue
from .session import Session
from .structures import (
    BitMask,
    DecompositionPerformanceMap,
    IntegerCodebook,
    NnrAggregateUnitHeader,
    NnrCompressedDataUnitHeader,
    NnrLayerParameterSetUnitHeader,
    NnrLayerParameterSetUnitPayload,
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrPruningTopologyContainer,
    NnrQuantizationUnitHeader,
    NnrQuantizationUnitPayload,
    NnrStartUnitHeader,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
    NnrUnitSize,
    PruningPerformanceMap,
    SparsificationPerformanceMap,
    UnificationPerformanceMap,
)


@syntax("6.3.2", NnrUnitSize)
def nnr_unit_size(t: NnrUnitSize, ctx: Session) -> None:
    t.nnr_unit_size_flag = u(1)
    t.nnr_unit_size = u(15 + t.nnr_unit_size_flag * 16)


@syntax("6.3.3.1", NnrUnitHeader)
def nnr_unit_header(t: NnrUnitHeader, ctx: Session) -> None:
    t.nnr_unit_type = u(6, NnrUnitType)
    t.independently_decodable_flag = u(1)
    t.partial_data_counter_present_flag = u(1)
    if t.partial_data_counter_present_flag:
        t.partial_data_counter = u(8)
    if t.nnr_unit_type == NNR_MPS:
        t.detail = struct(NnrModelParameterSetUnitHeader)
    if t.nnr_unit_type == NNR_LPS:
        t.detail = struct(NnrLayerParameterSetUnitHeader)
    if t.nnr_unit_type == NNR_TPL:
        t.detail = struct(NnrTopologyUnitHeader)
    if t.nnr_unit_type == NNR_QNT:
        t.detail = struct(NnrQuantizationUnitHeader)
    if t.nnr_unit_type == NNR_NDU:
        t.detail = struct(NnrCompressedDataUnitHeader)
    if t.nnr_unit_type == NNR_STR:
        t.detail = struct(NnrStartUnitHeader)
    if t.nnr_unit_type == NNR_AGG:
        t.detail = struct(NnrAggregateUnitHeader)


@syntax("6.3.3.2", NnrStartUnitHeader)
def nnr_start_unit_header(t: NnrStartUnitHeader, ctx: Session) -> None:
    t.general_profile_idc = u(8)


@syntax("6.3.3.3", NnrModelParameterSetUnitHeader)
def nnr_model_parameter_set_unit_header(t: NnrModelParameterSetUnitHeader, ctx: Session) -> None:
    pass


@syntax("6.3.3.4", NnrLayerParameterSetUnitHeader)
def nnr_layer_parameter_set_unit_header(t: NnrLayerParameterSetUnitHeader, ctx: Session) -> None:
    t.lps_self_contained_flag = u(1)
    t.nnr_reserved_zero_7_bits = u(7)


@syntax("6.3.3.5", NnrTopologyUnitHeader)
def nnr_topology_unit_header(t: NnrTopologyUnitHeader, ctx: Session) -> None:
    t.topology_storage_format = u(8)
    t.topology_compression_format = u(8)


@syntax("6.3.3.6", NnrQuantizationUnitHeader)
def nnr_quantization_unit_header(t: NnrQuantizationUnitHeader, ctx: Session) -> None:
    t.quantization_storage_format = u(8)
    t.quantization_compression_format = u(8)


@syntax("6.3.3.7", NnrCompressedDataUnitHeader)
def nnr_compressed_data_unit_header(t: NnrCompressedDataUnitHeader, ctx: Session) -> None:
    t.nnr_compressed_data_unit_payload_type = u(5, PayloadType)
    t.nnr_multiple_topology_elements_present_flag = u(1)
    t.nnr_decompressed_data_format_present_flag = u(1)
    t.input_parameters_present_flag = u(1)
    if t.nnr_multiple_topology_elements_present_flag == 1:
        topology_elements_ids_list(t, ctx.mps_topology_indexed_reference_flag)
    else:
        if not ctx.mps_topology_indexed_reference_flag:
            t.topology_elem_id = st()
        else:
            t.topology_elem_id_index = ue(7)
    if ctx.general_profile_idc == 1:
        t.node_id_present_flag = u(1)
        if t.node_id_present_flag:
            t.device_id = ue(1)
            t.parameter_id = ue(5)
            t.put_node_depth = ue(4)
        if ctx.mps_parent_signalling_enabled_flag == 1:
            t.parent_node_id_present_flag = u(1)
            if t.parent_node_id_present_flag:
                t.parent_node_id_type = u(2, ParentNodeIdType)
                t.temporal_context_modeling_flag = u(1)
                if t.parent_node_id_type == ICNN_NDU_ID:
                    t.parent_device_id = ue(1)
                    if not t.node_id_present_flag:
                        t.parameter_id = ue(5)
                        t.put_node_depth = ue(4)
                elif t.parent_node_id_type == ICNN_NDU_PL_SHA256:
                    t.parent_node_payload_sha256 = u(256)
                elif t.parent_node_id_type == ICNN_NDU_PL_SHA512:
                    t.parent_node_payload_sha512 = u(512)
    if t.nnr_compressed_data_unit_payload_type in (NNR_PT_FLOAT, NNR_PT_BLOCK):
        t.codebook_present_flag = u(1)
        if t.codebook_present_flag:
            t.codebook = struct(IntegerCodebook)
    if t.nnr_compressed_data_unit_payload_type in (NNR_PT_INT, NNR_PT_FLOAT, NNR_PT_BLOCK):
        t.dq_flag = u(1)
    if t.nnr_decompressed_data_format_present_flag == 1:
        t.nnr_decompressed_data_format = u(7)
    if t.input_parameters_present_flag == 1:
        t.tensor_dimensions_flag = u(1)
        t.cabac_unary_length_flag = u(1)
        t.compressed_parameter_types = u(4)
        if (t.compressed_parameter_types & NNR_CPT_DC) != 0:
            t.decomposition_rank = ue(3)
            t.g_number_of_rows = ue(3)
        if t.tensor_dimensions_flag == 1:
            tensor_dimension_list(t)
        if t.nnr_compressed_data_unit_payload_type != NNR_PT_BLOCK:
            if t.nnr_multiple_topology_elements_present_flag == 1:
                topology_tensor_dimension_mapping(t)
        if t.cabac_unary_length_flag == 1:
            t.cabac_unary_length_minus1 = u(8)
    if (
        t.nnr_compressed_data_unit_payload_type == NNR_PT_BLOCK
        and (t.compressed_parameter_types & NNR_CPT_DC) != 0
        and t.codebook_present_flag
    ):
        t.codebook_dc = struct(IntegerCodebook)
    if ctx.count_tensor_dimensions(t) > 1:
        if ctx.general_profile_idc == 1:
            t.first_tensor_dimension_shift = ue(1)
        t.scan_order = u(4)
        if t.scan_order > 0:
            for j in range(ctx.num_block_rows_minus1(t)):
                t.cabac_offset_list[j] = u(8)
                if t.dq_flag:
                    t.dq_state_list[j] = u(3)
                if j == 0:
                    t.bit_offset_delta1 = ue(11)
                else:
                    t.bit_offset_delta2.append(ie(7))
    byte_alignment(t)


@syntax("6.3.3.7", IntegerCodebook)
def integer_codebook(t: IntegerCodebook, ctx: Session) -> None:
    t.codebook_egk = u(4)
    t.codebook_size = ue(2)
    t.codebook_centre_offset = ie(2)
    t.codebook_zero_value = ie(7)
    for _j in range(t.cb_zero_offset - 1, -1, -1):
        t.codebook_delta_left.append(ue(t.codebook_egk))
    for _j in range(t.cb_zero_offset + 1, t.codebook_size):
        t.codebook_delta_right.append(ue(t.codebook_egk))


def tensor_dimension_list(t: NnrCompressedDataUnitHeader) -> None:
    t.count_tensor_dimensions = ue(1)
    for j in range(t.count_tensor_dimensions):
        t.tensor_dimensions[j] = ue(7)


def topology_elements_ids_list(
    t: NnrCompressedDataUnitHeader | NnrTopologyUnitPayload, topology_indexed_flag: int
) -> None:
    t.count_topology_elements_minus2 = ue(7)
    if topology_indexed_flag == 0:
        byte_alignment(t)
    for j in range(t.count_topology_elements_minus2 + 2):
        if topology_indexed_flag == 0:
            t.topology_elem_id_list[j] = st()
        else:
            t.topology_elem_id_index_list[j] = ue(7)
    if topology_indexed_flag == 1:
        byte_alignment(t)


def topology_tensor_dimension_mapping(t: NnrCompressedDataUnitHeader) -> None:
    t.concatentation_axis_index = u(8)
    for j in range(t.count_topology_elements_minus2 + 1):
        t.split_index[j] = ue(7)
    for k in range(t.count_topology_elements_minus2 + 2):
        t.number_of_shifts[k] = ue(1)
        for i in range(t.number_of_shifts[k]):
            t.shift_index[k][i] = ue(7)
            t.shift_value[k][i] = ue(1)


@syntax("6.3.3.8", NnrAggregateUnitHeader)
def nnr_aggregate_unit_header(t: NnrAggregateUnitHeader, ctx: Session) -> None:
    t.nnr_aggregate_unit_type = u(8)
    t.entry_points_present_flag = u(1)
    t.nnr_reserved_zero_7bits = u(7)
    t.num_of_nnr_units_minus2 = u(16)
    if t.entry_points_present_flag:
        for i in range(t.num_of_nnr_units_minus2 + 2):
            t.nnr_unit_type[i] = u(6)
            t.nnr_unit_entry_point[i] = u(34)
    for i in range(t.num_of_nnr_units_minus2 + 2):
        t.quant_bitdepth[i] = u(5)
        if ctx.mps_unification_flag or ctx.lps_unification_flag:
            t.ctu_scan_order[i] = u(1)
            t.nnr_reserved_zero_2bits[i] = u(2)
        else:
            t.nnr_reserved_zero_3bits[i] = u(3)


@syntax("6.3.4.3", NnrModelParameterSetUnitPayload)
def nnr_model_parameter_set_unit_payload(t: NnrModelParameterSetUnitPayload, ctx: Session) -> None:
    t.topology_carriage_flag = u(1)
    t.mps_sparsification_flag = u(1)
    t.mps_pruning_flag = u(1)
    t.mps_unification_flag = u(1)
    t.mps_decomposition_performance_map_flag = u(1)
    t.mps_quantization_method_flags = u(3)
    t.mps_topology_indexed_reference_flag = u(1)
    if ctx.general_profile_idc == 1:
        t.base_model_id_present_flag = u(1)
        t.validation_set_performance_present_flag = u(1)
        t.metric_type_performance_map_valid_flag = u(1)
        t.mps_parent_signalling_enabled_flag = u(1)
        if t.mps_parent_signalling_enabled_flag == 1:
            t.nnr_pre_flag = u(1)
        else:
            t.nnr_reserved_zero_1bit = u(1)
        t.nnr_reserved_zero_2bits = u(2)
        if t.base_model_id_present_flag == 1:
            t.base_model_id = st()
        if t.validation_set_performance_present_flag == 1 or t.metric_type_performance_map_valid_flag == 1:
            t.performance_metric_type = st()
    else:
        t.nnr_reserved_zero_7bits = u(7)
    if (t.mps_quantization_method_flags & NNR_QSU) == NNR_QSU or (t.mps_quantization_method_flags & NNR_QCB) == NNR_QCB:
        t.mps_qp_density = u(3)
        t.mps_quantization_parameter = i(13)
    if t.mps_sparsification_flag == 1:
        t.sparsification = struct(SparsificationPerformanceMap)
    if t.mps_pruning_flag == 1:
        t.pruning = struct(PruningPerformanceMap)
    if t.mps_unification_flag == 1:
        t.unification = struct(UnificationPerformanceMap)
    if t.mps_decomposition_performance_map_flag == 1:
        t.decomposition = struct(DecompositionPerformanceMap)
    if ctx.general_profile_idc == 1 and t.validation_set_performance_present_flag == 1:
        t.validation_set_performance = flt(32)
    byte_alignment(t)


@syntax("6.3.4.3", SparsificationPerformanceMap)
def sparsification_performance_map(t: SparsificationPerformanceMap, ctx: Session) -> None:
    t.spm_count_thresholds = u(8)
    for i in range(t.spm_count_thresholds - 1):
        t.sparsification_threshold[i] = flt(32)
        t.non_zero_ratio[i] = flt(32)
        t.spm_nn_accuracy[i] = flt(32)
        t.spm_count_classes[i] = u(8)
        t.spm_class_bitmask[i] = ue(7)
        for j in range(t.spm_count_classes[i]):
            t.spm_nn_class_accuracy[i][j] = flt(32)


@syntax("6.3.4.3", PruningPerformanceMap)
def pruning_performance_map(t: PruningPerformanceMap, ctx: Session) -> None:
    t.ppm_count_pruning_ratios = u(8)
    for i in range(t.ppm_count_pruning_ratios - 1):
        t.pruning_ratio[i] = flt(32)
        t.ppm_nn_accuracy[i] = flt(32)
        t.ppm_count_classes[i] = u(8)
        t.ppm_class_bitmask[i] = ue(7)
        for j in range(t.ppm_count_classes[i]):
            t.ppm_nn_class_accuracy[i][j] = flt(32)


@syntax("6.3.4.3", UnificationPerformanceMap)
def unification_performance_map(t: UnificationPerformanceMap, ctx: Session) -> None:
    t.upm_count_thresholds = u(8)
    for i in range(t.upm_count_thresholds - 1):
        t.count_resaped_tensor_dimension.append(ue(1))
        for j in range(t.count_resaped_tensor_dimension[i] - 1):
            t.reshaped_tensor_dimensions[i][j] = ue(7)
        byte_alignment(t)
        t.count_super_block_dimension.append(u(8))
        for j in range(t.count_super_block_dimension[i] - 1):
            t.super_block_dimensions[i][j] = u(8)
        t.count_block_dimension.append(u(8))
        for j in range(t.count_block_dimension[i] - 1):
            t.block_dimensions[i][j] = u(8)
        t.unification_threshold[i] = flt(32)
        t.upm_nn_accuracy[i] = flt(32)
        t.upm_count_classes[i] = u(8)
        t.upm_class_bitmask[i] = ue(7)
        for j in range(t.upm_count_classes[i]):
            t.upm_nn_class_accuracy[i][j] = flt(32)


@syntax("6.3.4.3", DecompositionPerformanceMap)
def decomposition_performance_map(t: DecompositionPerformanceMap, ctx: Session) -> None:
    t.dpm_count_thresholds = u(8)
    for i in range(t.dpm_count_thresholds - 1):
        t.mse_threshold[i] = flt(32)
        t.dpm_nn_accuracy[i] = flt(32)
        t.nn_reduction_ratio[i] = flt(32)
        t.dpm_count_classes[i] = u(16)
        for j in range(t.dpm_count_classes[i]):
            t.dpm_nn_class_accuracy[i][j] = flt(32)


@syntax("6.3.4.4", NnrLayerParameterSetUnitPayload)
def nnr_layer_parameter_set_unit_payload(t: NnrLayerParameterSetUnitPayload, ctx: Session) -> None:
    t.nnr_reserved_zero_1_bit = u(1)
    t.lps_sparsification_flag = u(1)
    t.lps_pruning_flag = u(1)
    t.lps_unification_flag = u(1)
    t.lps_quantization_method_flags = u(3)
    t.nnr_reserved_zero_1bit = u(1)
    if (t.lps_quantization_method_flags & NNR_QCB) == NNR_QCB or (t.lps_quantization_method_flags & NNR_QSU) == NNR_QSU:
        t.lps_qp_density = u(3)
        t.lps_quantization_parameter = i(13)
    if t.lps_sparsification_flag == 1:
        t.sparsification = struct(SparsificationPerformanceMap)
    if t.lps_pruning_flag == 1:
        t.pruning = struct(PruningPerformanceMap)
    if t.lps_unification_flag == 1:
        t.unification = struct(UnificationPerformanceMap)
    byte_alignment(t)


@syntax("6.3.4.5", NnrTopologyUnitPayload)
def nnr_topology_unit_payload(t: NnrTopologyUnitPayload, ctx: Session) -> None:
    if ctx.topology_storage_format == NNR_TPL_PRUN:
        t.pruning = struct(NnrPruningTopologyContainer)
    elif ctx.topology_storage_format == NNR_TPL_REFLIST:
        topology_elements_ids_list(t, 0)
    else:
        t.topology_data = bs()


@syntax("6.3.4.5", NnrPruningTopologyContainer)
def nnr_pruning_topology_container(t: NnrPruningTopologyContainer, ctx: Session) -> None:
    t.nnr_rep_type = u(2, NnrRepType)
    t.prune_flag = u(1)
    t.order_flag = u(1)
    t.sparse_flag = u(1)
    t.nnr_reserved_zero_3bits = u(3)
    if t.prune_flag == 1:
        if t.nnr_rep_type == NNR_TPL_BMSK:
            t.prune_mask = struct(BitMask)
        elif t.nnr_rep_type == NNR_TPL_DICT:
            t.count_ids = ue(7)
            if not ctx.mps_topology_indexed_reference_flag:
                byte_alignment(t)
                for j in range(t.count_ids):
                    t.element_id[j] = st()
            else:
                for j in range(t.count_ids):
                    t.element_id_index[j] = ue(7)
            for j in range(t.count_ids):
                t.count_dims[j] = ue(1)
                for k in range(t.count_dims[j]):
                    t.dim[j][k] = ue(7)
            byte_alignment(t)
    if t.sparse_flag == 1:
        t.sparse_mask = struct(BitMask)


@syntax("6.3.4.5", BitMask)
def bit_mask(t: BitMask, ctx: Session) -> None:
    t.count_bits = u(32)
    t.bit_mask_value = bits(t.count_bits)
    byte_alignment(t)


@syntax("6.3.4.6", NnrQuantizationUnitPayload)
def nnr_quantization_unit_payload(t: NnrQuantizationUnitPayload, ctx: Session) -> None:
    t.quantization_data = bs()
