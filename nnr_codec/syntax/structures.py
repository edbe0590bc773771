"""Syntax structures: the elements of clause 6.3, their inferred values, and derived variables (6.4).

Elements carry the names of ISO/IEC 15938-17:2024, including misprints (``concatentation_axis_index``), in bit order.
``#:`` comments state their meaning in one line.
"""

from __future__ import annotations

from bitarray import bitarray

from .coder import Structure, absent, derived, inferred


class NnrUnitSize(Structure):
    """nnr_unit_size(), 6.3.2."""

    nnr_unit_size_flag: int = derived(lambda s: int(s.nnr_unit_size > 0x7FFF))  #: 0: 15 bits follow, 1: 31 bits
    nnr_unit_size: int  #: bytes of the unit: size, header and payload


class NnrStartUnitHeader(Structure):
    """nnr_start_unit_header(), 6.3.3.2."""

    general_profile_idc: int  #: 0: base feature set, 1: extended feature set


class NnrModelParameterSetUnitHeader(Structure):
    """nnr_model_parameter_set_unit_header(), 6.3.3.3; nnr_reserved_zero_0bit u(0) codes nothing and is left out."""


class NnrLayerParameterSetUnitHeader(Structure):
    """nnr_layer_parameter_set_unit_header(), 6.3.3.4."""

    lps_self_contained_flag: int  #: 1: the units that refer to this set form a full or partial model
    nnr_reserved_zero_7_bits: int = inferred(0)  #: reserved


class NnrTopologyUnitHeader(Structure):
    """nnr_topology_unit_header(), 6.3.3.5."""

    topology_storage_format: int  #: Table 4
    topology_compression_format: int = inferred(0)  #: Table 5


class NnrQuantizationUnitHeader(Structure):
    """nnr_quantization_unit_header(), 6.3.3.6."""

    quantization_storage_format: int  #: Table 6
    quantization_compression_format: int = inferred(0)  #: Table 7


class IntegerCodebook(Structure):
    """integer_codebook(), 6.3.3.7."""

    codebook_egk: int  #: Exp-Golomb order of the deltas
    codebook_size: int  #: number of entries, CbSize
    codebook_centre_offset: int  #: offset of CbZeroOffset from the middle entry
    codebook_zero_value: int  #: the entry at CbZeroOffset
    codebook_delta_left: list[int] = inferred([])  #: distance to the right neighbour minus 1
    codebook_delta_right: list[int] = inferred([])  #: distance to the left neighbour minus 1

    @property
    def cb_zero_offset(self) -> int:
        """CbZeroOffset, 6.4.3.7."""
        return (self.codebook_size >> 1) + self.codebook_centre_offset


class NnrCompressedDataUnitHeader(Structure):
    """nnr_compressed_data_unit_header(), 6.3.3.7."""

    nnr_compressed_data_unit_payload_type: int  #: Table 16
    nnr_multiple_topology_elements_present_flag: int = inferred(0)  #: a list of ids instead of one
    nnr_decompressed_data_format_present_flag: int = inferred(0)  #: nnr_decompressed_data_format is present
    input_parameters_present_flag: int = inferred(0)  #: dimensions, unary length and parameter types are present
    count_topology_elements_minus2: int = derived(
        lambda s: len(s.topology_elem_id_list or s.topology_elem_id_index_list) - 2
    )  #: number of ids minus 2
    topology_elem_id_list: list[str] = inferred([])  #: names of the tensors
    topology_elem_id_index_list: list[int] = inferred([])  #: indices of the names in the reference list
    topology_elem_id: str = absent()  #: name of the tensor
    topology_elem_id_index: int = absent()  #: index of the name in the reference list
    node_id_present_flag: int = inferred(0)  #: device_id, parameter_id and put_node_depth are present
    device_id: int = absent()  #: context in which the unit was generated
    parameter_id: int = absent()  #: identifies the parameter across updates
    put_node_depth: int = absent()  #: position in the chain of updates
    parent_node_id_present_flag: int = inferred(0)  #: the unit is a differential update
    parent_node_id_type: int = absent()  #: Table 8
    temporal_context_modeling_flag: int = inferred(0)  #: contexts use the levels of the previous update
    parent_device_id: int = absent()  #: device_id of the parent
    parent_node_payload_sha256: int = absent()  #: SHA-256 digest of the parent's payload
    parent_node_payload_sha512: int = absent()  #: SHA-512 digest of the parent's payload
    codebook_present_flag: int = inferred(0)  #: levels are indices into a codebook
    codebook: IntegerCodebook = absent()  #: codebook of the weight, or of G
    dq_flag: int = inferred(0)  #: 1: dependent scalar quantization (9.2.3), 0: uniform (9.2.1)
    nnr_decompressed_data_format: int = absent()  #: Table 15
    tensor_dimensions_flag: int = inferred(0)  #: 1: the dimensions are present, 0: the topology has them
    cabac_unary_length_flag: int = inferred(0)  #: cabac_unary_length_minus1 is present
    compressed_parameter_types: int = inferred(0)  #: Table 9
    decomposition_rank: int = absent()  #: rank of G and H
    g_number_of_rows: int = absent()  #: rows of G
    count_tensor_dimensions: int = derived(lambda s: len(s.tensor_dimensions))  #: number of dimensions
    tensor_dimensions: list[int] = inferred([])  #: extents, before first_tensor_dimension_shift
    concatentation_axis_index: int = absent()  #: axis along which the tensors are concatenated
    split_index: list[int] = inferred([])  #: split positions along the axis
    number_of_shifts: list[int] = inferred([])  #: axis shifts of each tensor
    shift_index: list[list[int]] = inferred([])  #: axis to move
    shift_value: list[list[int]] = inferred([])  #: number of axes by which it moves
    cabac_unary_length_minus1: int = inferred(9)  #: length of the unary part minus 1, inferred as 9 (errata I6)
    codebook_dc: IntegerCodebook = absent()  #: codebook of H
    first_tensor_dimension_shift: int = inferred(0)  #: position of the first dimension after decoding
    scan_order: int = inferred(0)  #: 0: rows, 1..4: blocks of 8, 16, 32, 64
    cabac_offset_list: list[int] = inferred([])  #: IvlOffset at the entry points
    dq_state_list: list[int] = inferred([])  #: stateId at the entry points
    bit_offset_delta1: int = absent()  #: first element of BitOffsetList
    bit_offset_delta2: list[int] = inferred([])  #: differences between the elements of BitOffsetList

    @property
    def topology_elem_ids(self) -> list[str] | list[int]:
        """Ids or indices to which the unit refers, one or several."""
        if self.nnr_multiple_topology_elements_present_flag:
            return self.topology_elem_id_list or self.topology_elem_id_index_list
        return [self.topology_elem_id] if "topology_elem_id" in self else [self.topology_elem_id_index]


class NnrAggregateUnitHeader(Structure):
    """nnr_aggregate_unit_header(), 6.3.3.8."""

    nnr_aggregate_unit_type: int  #: Table 10
    entry_points_present_flag: int = inferred(0)  #: types and offsets of the units are listed
    nnr_reserved_zero_7bits: int = inferred(0)  #: reserved
    num_of_nnr_units_minus2: int  #: number of units minus 2
    nnr_unit_type: list[int] = inferred([])  #: Table 3
    nnr_unit_entry_point: list[int] = inferred([])  #: byte offset from the start of the aggregate
    quant_bitdepth: list[int] = inferred([])  #: bits of the largest level
    ctu_scan_order: list[int] = inferred([])  #: 0: horizontal raster, 1: vertical
    nnr_reserved_zero_2bits: list[int] = inferred([])  #: reserved
    nnr_reserved_zero_3bits: list[int] = inferred([])  #: reserved


class NnrUnitHeader(Structure):
    """nnr_unit_header(), 6.3.3.1. The type-specific header follows."""

    nnr_unit_type: int  #: Table 3
    independently_decodable_flag: int = inferred(1)  #: 0: one of several parts
    partial_data_counter_present_flag: int = inferred(0)  #: partial_data_counter is present
    partial_data_counter: int = inferred(0)  #: counts down to 1, 0: complete
    detail: Structure = absent()  # the type-specific header

    @property
    def part(self) -> int:
        """Number of parts from this one on; 0 for a whole tensor, whose counter is ignored (errata N15)."""
        return 0 if self.independently_decodable_flag else self.partial_data_counter


class SparsificationPerformanceMap(Structure):
    """sparsification_performance_map(), 6.3.4.3. Loops run count - 1 times (errata I16)."""

    spm_count_thresholds: int  #: number of thresholds
    sparsification_threshold: list[float] = inferred([])  #: threshold applied to the weights
    non_zero_ratio: list[float] = inferred([])  #: share of weights that are not zero
    spm_nn_accuracy: list[float] = inferred([])  #: accuracy of the network
    spm_count_classes: list[int] = inferred([])  #: number of classes with their own accuracy
    spm_class_bitmask: list[int] = inferred([])  #: bit mask of these classes
    spm_nn_class_accuracy: list[list[float]] = inferred([])  #: accuracy of a class


class PruningPerformanceMap(Structure):
    """pruning_performance_map(), 6.3.4.3."""

    ppm_count_pruning_ratios: int  #: number of ratios
    pruning_ratio: list[float] = inferred([])  #: share of pruned parameters
    ppm_nn_accuracy: list[float] = inferred([])  #: accuracy of the network
    ppm_count_classes: list[int] = inferred([])  #: number of classes with their own accuracy
    ppm_class_bitmask: list[int] = inferred([])  #: bit mask of these classes
    ppm_nn_class_accuracy: list[list[float]] = inferred([])  #: accuracy of a class


class UnificationPerformanceMap(Structure):
    """unification_performance_map(), 6.3.4.3."""

    upm_count_thresholds: int  #: number of thresholds
    count_resaped_tensor_dimension: list[int] = inferred([])  #: dimensions of the reshaped tensor (as printed)
    reshaped_tensor_dimensions: list[list[int]] = inferred([])  #: extents of the reshaped tensor
    count_super_block_dimension: list[int] = inferred([])  #: dimensions of a super block
    super_block_dimensions: list[list[int]] = inferred([])  #: extents of a super block
    count_block_dimension: list[int] = inferred([])  #: dimensions of a block
    block_dimensions: list[list[int]] = inferred([])  #: extents of a block
    unification_threshold: list[float] = inferred([])  #: threshold applied to the blocks
    upm_nn_accuracy: list[float] = inferred([])  #: accuracy of the network
    upm_count_classes: list[int] = inferred([])  #: number of classes with their own accuracy
    upm_class_bitmask: list[int] = inferred([])  #: bit mask of these classes
    upm_nn_class_accuracy: list[list[float]] = inferred([])  #: accuracy of a class


class DecompositionPerformanceMap(Structure):
    """decomposition_performance_map(), 6.3.4.3."""

    dpm_count_thresholds: int  #: number of thresholds
    mse_threshold: list[float] = inferred([])  #: permitted mean square error of the decomposition
    dpm_nn_accuracy: list[float] = inferred([])  #: accuracy of the network
    nn_reduction_ratio: list[float] = inferred([])  #: share of parameters that remain
    dpm_count_classes: list[int] = inferred([])  #: number of classes with their own accuracy
    dpm_nn_class_accuracy: list[list[float]] = inferred([])  #: accuracy of a class


class NnrModelParameterSetUnitPayload(Structure):
    """nnr_model_parameter_set_unit_payload(), 6.3.4.3."""

    topology_carriage_flag: int = inferred(0)  #: the bitstream carries a topology unit
    mps_sparsification_flag: int = inferred(0)  #: sparsification was applied and its map is present
    mps_pruning_flag: int = inferred(0)  #: pruning was applied and its map is present
    mps_unification_flag: int = inferred(0)  #: unification was applied and its map is present
    mps_decomposition_performance_map_flag: int = inferred(0)  #: the decomposition map is present
    mps_quantization_method_flags: int = inferred(0)  #: Table 11
    mps_topology_indexed_reference_flag: int = inferred(0)  #: units refer to tensors by index
    base_model_id_present_flag: int = inferred(0)  #: base_model_id is present
    validation_set_performance_present_flag: int = inferred(0)  #: validation_set_performance is present
    metric_type_performance_map_valid_flag: int = inferred(0)  #: the maps use performance_metric_type
    mps_parent_signalling_enabled_flag: int = inferred(0)  #: units may name a parent
    nnr_pre_flag: int = inferred(0)  #: predictive residual encoding (9.2.4)
    nnr_reserved_zero_1bit: int = inferred(0)  #: reserved
    nnr_reserved_zero_2bits: int = inferred(0)  #: reserved
    base_model_id: str = absent()  #: name of the base model
    performance_metric_type: str = absent()  #: name of the metric
    nnr_reserved_zero_7bits: int = inferred(0)  #: reserved
    mps_qp_density: int = absent()  #: QpDensity
    mps_quantization_parameter: int = absent()  #: QuantizationParameter, added to every qp_value
    sparsification: SparsificationPerformanceMap = absent()
    pruning: PruningPerformanceMap = absent()
    unification: UnificationPerformanceMap = absent()
    decomposition: DecompositionPerformanceMap = absent()
    validation_set_performance: float = absent()  #: performance on the validation set


class NnrLayerParameterSetUnitPayload(Structure):
    """nnr_layer_parameter_set_unit_payload(), 6.3.4.4."""

    nnr_reserved_zero_1_bit: int = inferred(0)  #: reserved
    lps_sparsification_flag: int = inferred(0)  #: sparsification was applied and its map is present
    lps_pruning_flag: int = inferred(0)  #: pruning was applied and its map is present
    lps_unification_flag: int = inferred(0)  #: unification was applied and its map is present
    lps_quantization_method_flags: int = inferred(0)  #: Table 12
    nnr_reserved_zero_1bit: int = inferred(0)  #: reserved
    lps_qp_density: int = absent()  #: QpDensity
    lps_quantization_parameter: int = absent()  #: QuantizationParameter, added to every qp_value
    sparsification: SparsificationPerformanceMap = absent()
    pruning: PruningPerformanceMap = absent()
    unification: UnificationPerformanceMap = absent()


class BitMask(Structure):
    """bit_mask(), 6.3.4.5; 1 means preserved (errata N1)."""

    count_bits: int = derived(lambda s: len(s.bit_mask_value))  #: number of bits
    bit_mask_value: bitarray  #: one bit per row, column or parameter


class NnrPruningTopologyContainer(Structure):
    """nnr_pruning_topology_container(), 6.3.4.5."""

    nnr_rep_type: int  #: Table 13
    prune_flag: int = inferred(0)  #: pruning information is present
    order_flag: int = inferred(0)  #: 1: row-major, 0: column-major
    sparse_flag: int = inferred(0)  #: sparsification information is present
    nnr_reserved_zero_3bits: int = inferred(0)  #: reserved
    prune_mask: BitMask = absent()
    count_ids: int = absent()  #: number of tensors whose dimensions change
    element_id: list[str] = inferred([])  #: names of these tensors
    element_id_index: list[int] = inferred([])  #: indices of these names in the reference list
    count_dims: list[int] = inferred([])  #: number of dimensions
    dim: list[list[int]] = inferred([])  #: new extents
    sparse_mask: BitMask = absent()


class NnrTopologyUnitPayload(Structure):
    """nnr_topology_unit_payload(), 6.3.4.5."""

    pruning: NnrPruningTopologyContainer = absent()
    count_topology_elements_minus2: int = derived(lambda s: len(s.topology_elem_id_list) - 2)  #: number of ids minus 2
    topology_elem_id_list: list[str] = inferred([])  #: the reference list
    topology_elem_id_index_list: list[int] = inferred([])  #: never used here: the list itself has no indices
    topology_data: bytes = absent()  #: the topology, in its storage and compression format


class NnrQuantizationUnitPayload(Structure):
    """nnr_quantization_unit_payload(), 6.3.4.6."""

    quantization_data: bytes  #: the quantization information, in its storage and compression format
