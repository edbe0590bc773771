"""State that units pass to later units; the only input of tables besides the structure.

Readers and writers call :meth:`Session.activate` after each unit, so that both have the same state at the same unit
(ISO/IEC 15938-17:2024, 6.2.3, 6.4.3.7, 6.4.4.3, 6.4.4.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from ..constants import NNR_CPT_DC, NNR_NDU, NNR_PT_BLOCK, NNR_QCB, NNR_QSU, NNR_STR, TOPOLOGY_FORMATS
from ..errors import ElementError, MissingReferenceError
from ..rules import Requirement
from .structures import NnrLayerParameterSetUnitPayload, NnrModelParameterSetUnitPayload, NnrTopologyUnitPayload

if TYPE_CHECKING:
    from .coder import Structure
    from .structures import (
        NnrCompressedDataUnitHeader,
        NnrPruningTopologyContainer,
        NnrTopologyUnitHeader,
        NnrUnitHeader,
    )

    TopologyUnit = tuple[NnrTopologyUnitHeader, NnrTopologyUnitPayload]


@dataclass
class Session:
    """Active parameter sets, reference list, and information that the application supplies.

    Parameters
    ----------
    topology_dimensions : mapping of str to sequence of int
        Dimensions of tensors whose units omit them (``tensor_dimensions_flag`` 0), by name.
    declared : callable or None
        Returns the shape that a topology declares for a tensor, or None, from its name and the session.
    """

    topology_dimensions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    general_profile_idc: int = 0
    mps_topology_indexed_reference_flag: int = 0
    mps_parent_signalling_enabled_flag: int = 0
    mps_unification_flag: int = 0
    lps_unification_flag: int = 0
    nnr_pre_flag: int = 0
    has_mps: bool = False
    mps: NnrModelParameterSetUnitPayload | None = field(default=None, compare=False)  # active parameter sets
    lps: NnrLayerParameterSetUnitPayload | None = field(default=None, compare=False)
    topology_storage_format: int = 0  # format of the unit whose payload is coded
    reference_list: list[str] = field(default_factory=list)
    pruned_dimensions: dict[str, list[int]] = field(default_factory=dict)  # by name, see new_dimensions
    mps_quantization: tuple[int, int] | None = None
    lps_quantization: tuple[int, int] | None = None
    lps_depth: int = 0  # number of aggregates around the active LPS
    g_header: NnrCompressedDataUnitHeader | None = None  # the last unit carried G, so the next one carries H
    declared: Callable[[str, Session], Sequence[int] | None] | None = field(default=None, compare=False)
    topology: TopologyUnit | None = field(default=None, compare=False)  # last topology with content

    def snapshot(self, last: Session | None = None) -> Session:
        """Return the current state, which later units do not change: ``last`` if it is equal, else a copy."""
        if last is not None and last.__dict__ == self.__dict__:
            return last
        copy = object.__new__(Session)
        copy.__dict__.update(self.__dict__)
        return copy

    # ------------------------------------------------------------------------------------------ derived variables
    @property
    def quantization(self) -> tuple[int, int] | None:
        """QpDensity and QuantizationParameter of the active LPS, else of the MPS (errata F5, N17); None if
        undefined."""
        return self.lps_quantization or self.mps_quantization

    def names(self, t: NnrCompressedDataUnitHeader) -> list[str]:
        """Return the topology element ids of an NDU; indices are resolved with the reference list."""
        if "topology_elem_id" in t.__dict__ and not t.nnr_multiple_topology_elements_present_flag:  # the usual case
            return [t.topology_elem_id]
        return [self._name(key, "topology_elem_id_index") for key in t.topology_elem_ids]

    def _name(self, key: str | int, element: str) -> str:
        if isinstance(key, str):
            return key
        if key >= len(self.reference_list):
            raise MissingReferenceError(
                f"{element} {key} is not in the reference list of {len(self.reference_list)} names",
                clause="6.4.3.7",
                rule=Requirement.REFERENCE_INDEX,
            )
        return self.reference_list[key]

    def new_dimensions(self, t: NnrPruningTopologyContainer) -> dict[str, list[int]]:
        """Return the dimensions in a dictionary of pruning information, by name; indices are resolved (6.4.4.5).

        Raises MissingReferenceError for an index outside the reference list, and ElementError for a count or extent of
        0 or for an element that already has other dimensions.
        """
        new: dict[str, list[int]] = {}
        keys: Sequence[str | int] = t.element_id or t.element_id_index
        for j, key in enumerate(keys):
            name, dims = self._name(key, "element_id_index"), t.dim[j] if j < len(t.dim) else []
            if not dims or not all(dims) or new.get(name, self.pruned_dimensions.get(name, dims)) != dims:
                rule = Requirement.PRUNE_DIMENSIONS if all(dims) and dims else Requirement.PRUNE_COUNTS
                raise ElementError(f"{name!r} cannot have the new dimensions {dims}", clause="6.4.4.5", rule=rule)
            new[name] = dims
        return new

    def tensor_dimensions(self, t: NnrCompressedDataUnitHeader) -> list[int]:
        """Return tensor_dimensions from the header, else from the topology with pruning applied (6.4.3.7, errata N18).

        A topology declares the shape after decoding, so the dimension that first_tensor_dimension_shift moves comes
        first. H belongs to the same tensor as the preceding G.
        """
        if t.tensor_dimensions_flag:
            return t.tensor_dimensions
        if self.g_header and t is not self.g_header and t.compressed_parameter_types & NNR_CPT_DC:
            return self.tensor_dimensions(self.g_header)
        name = self.names(t)[0]
        if name in self.pruned_dimensions:
            return self.pruned_dimensions[name]
        if name in self.topology_dimensions:
            return [int(extent) for extent in self.topology_dimensions[name]]
        shape = self.declared(name, self) if self.declared else None
        if shape is None:
            raise MissingReferenceError(
                f"the dimensions of {name!r} are neither in the bitstream nor in a topology; give the topology",
                rule=Requirement.DIMENSIONS_KNOWN,
            )
        shift = t.first_tensor_dimension_shift
        return [*shape[shift : shift + 1], *shape[:shift], *shape[shift + 1 :]]

    def count_tensor_dimensions(self, t: NnrCompressedDataUnitHeader) -> int:
        """Return count_tensor_dimensions from the header, else from the topology."""
        return len(t.tensor_dimensions if t.tensor_dimensions_flag else self.tensor_dimensions(t))

    def coded_dimensions(self, t: NnrCompressedDataUnitHeader) -> list[list[int]]:
        """Return TensorDimensions of the weight; TensorDimensionsG and TensorDimensionsH for a block with both
        (6.4.3.7)."""
        dims = self.tensor_dimensions(t)
        if not t.compressed_parameter_types & NNR_CPT_DC:
            return [dims]
        rank, rows, size = t.decomposition_rank, t.g_number_of_rows, prod(dims)
        if not rank or not rows or size % rows:
            raise ElementError(
                f"tensor_dimensions {dims} cannot be G of {rows} rows times H of {rank} rows",
                clause="6.4.3.7",
                path="nnr_compressed_data_unit_header.g_number_of_rows",
                rule=Requirement.DECOMPOSITION_DIMENSIONS,
            )
        g, h = [rows, rank], [rank, size // rows]
        if t.nnr_compressed_data_unit_payload_type == NNR_PT_BLOCK:
            return [g, h]
        return [h] if self.g_header else [g]

    def num_block_rows_minus1(self, t: NnrCompressedDataUnitHeader) -> int:
        """Return NumBlockRowsMinus1, 6.4.3.7: the number of entry points (of G and H together in a block)."""
        scan = t.scan_order
        if scan == 0:
            return 0
        if scan > 4:
            raise ElementError(
                f"scan_order {scan} is outside 0..4",
                clause="6.4.3.7",
                path="nnr_compressed_data_unit_header.scan_order",
                rule=Requirement.SCAN_ORDER,
            )
        return sum(((dims[0] + (4 << scan) - 1) >> (2 + scan)) - 1 for dims in self.coded_dimensions(t))

    # ------------------------------------------------------------------------------------------ activation
    def activate(self, header: NnrUnitHeader, payload: Structure | None, depth: int = 0) -> None:
        """Apply the effect of a complete unit, in ``depth`` aggregates, on later units."""
        if header.nnr_unit_type == NNR_STR:
            self.__dict__.update(vars(Session(self.topology_dimensions, declared=self.declared)))
            self.general_profile_idc = header.detail.general_profile_idc  # type: ignore[attr-defined]
        elif header.nnr_unit_type == NNR_NDU and header.part < 2:
            detail: NnrCompressedDataUnitHeader = header.detail  # type: ignore[assignment]
            pair = detail.compressed_parameter_types & NNR_CPT_DC and (
                detail.nnr_compressed_data_unit_payload_type != NNR_PT_BLOCK
            )
            self.g_header = detail if pair and not self.g_header else None
        if payload is None:
            return
        if isinstance(payload, NnrModelParameterSetUnitPayload):
            self.has_mps, self.mps = True, payload
            for name in ("topology_indexed_reference_flag", "parent_signalling_enabled_flag", "unification_flag"):
                setattr(self, f"mps_{name}", getattr(payload, f"mps_{name}"))
            self.nnr_pre_flag = payload.nnr_pre_flag
            self.mps_quantization = _quantization(payload, "mps")
        elif isinstance(payload, NnrLayerParameterSetUnitPayload):
            self.lps, self.lps_unification_flag = payload, payload.lps_unification_flag
            self.lps_quantization, self.lps_depth = _quantization(payload, "lps"), depth
        elif isinstance(payload, NnrTopologyUnitPayload):
            unit: NnrTopologyUnitHeader = header.detail  # type: ignore[assignment]
            known = TOPOLOGY_FORMATS.get(unit.topology_storage_format)
            # A format without a number never replaces another format; zeros mean no data (B.4).
            if known is not None and (known or not self.topology) and payload.topology_data.rstrip(b"\0"):
                self.topology = unit, payload
            if payload.topology_elem_id_list:  # the last list applies (errata N21)
                self.reference_list = list(payload.topology_elem_id_list)
            if "pruning" in payload:
                # In place: entries never change, and a copy for each of a million units would take hours.
                self.pruned_dimensions |= self.new_dimensions(payload.pruning)

    def end_aggregate(self) -> None:
        """End the scope of an LPS at the end of the aggregate unit around it (6.2.3).

        The boundary of another aggregate does not end the scope: 6.3.3.8 parses the header of an aggregate with the
        preceding LPS (errata N13).
        """
        self.lps, self.lps_quantization, self.lps_unification_flag, self.lps_depth = None, None, 0, 0


def _quantization(payload: Structure, prefix: str) -> tuple[int, int] | None:
    if not getattr(payload, f"{prefix}_quantization_method_flags") & (NNR_QSU | NNR_QCB):
        return None
    return getattr(payload, f"{prefix}_qp_density"), getattr(payload, f"{prefix}_quantization_parameter")
