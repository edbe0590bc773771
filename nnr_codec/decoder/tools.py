"""The tools that a decoder needs for a bitstream, by the syntax elements that ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntFlag

from ..bitstream.nodes import Node, bare
from ..bitstream.tree import trees
from ..bitstream.units import Unit, UnitReader
from ..errors import BitstreamError, NnrError, TruncatedError
from ..syntax.docs import value_meaning, values_of
from .bins import heads
from .decode import BitstreamParser
from .task import NduTask

#: Elements that ask for a tool when they are not 0, and with each value that a table lists.
TOOLS = """
general_profile_idc nnr_unit_type partial_data_counter_present_flag nnr_aggregate_unit_type entry_points_present_flag
topology_storage_format topology_compression_format quantization_storage_format quantization_compression_format
nnr_rep_type prune_flag sparse_flag mps_topology_indexed_reference_flag mps_parent_signalling_enabled_flag nnr_pre_flag
lps_self_contained_flag lps_quantization_method_flags mps_quantization_method_flags
nnr_compressed_data_unit_payload_type nnr_multiple_topology_elements_present_flag parent_node_id_present_flag
parent_node_id_type temporal_context_modeling_flag codebook_present_flag dq_flag nnr_decompressed_data_format
compressed_parameter_types first_tensor_dimension_shift scan_order cabac_offset_list
hist_dep_sig_prob_enabled_flag row_skip_enabled_flag
""".split()
