"""Detection of the decoding steps of `values.STEPS`, which no syntax table shows."""

from __future__ import annotations

from typing import cast

from nnr_codec.bitstream.payload import quantization
from nnr_codec.bitstream.units import Unit
from nnr_codec.cabac_ext.kernel import PayloadDecoder
from nnr_codec.constants import (
    NNR_AGG,
    NNR_CPT_BN,
    NNR_CPT_DC,
    NNR_CPT_LS,
    NNR_LPS,
    NNR_NDU,
    NNR_PT_BLOCK,
    NNR_PT_FLOAT,
    NNR_PT_INT,
    NNR_PT_RAW_FLOAT,
    NNR_TPL,
    NNR_TPL_BMSK,
    NNR_TPL_DICT,
    PayloadType,
)
from nnr_codec.decoder.decode import BitstreamParser
from nnr_codec.decoder.group import Group, References
from nnr_codec.decoder.parents import Reference
from nnr_codec.decoder.task import NduTask
from nnr_codec.syntax import Session
from nnr_codec.syntax.structures import NnrTopologyUnitPayload
from nnr_codec.tensor.quant import step_size

_KINDS: dict[int, str] = {NNR_PT_INT: "integers", NNR_PT_FLOAT: "floats", NNR_PT_RAW_FLOAT: "raw floats"}
_FORMATS = {"onnx": "ONNX", "pytorch": "PyTorch", "tensorflow": "TensorFlow"}


class Steps:
    """Steps of one bitstream, added to ``found`` as (step, 0)."""

    def __init__(self, found: set[tuple[str, int]]) -> None:
        self._found = found
        self._ended = False  # whether an NNR_LPS ended with its aggregate
        self._inner = False  # whether the active NNR_LPS is in an aggregate

    def _add(self, step: str, taken: object = True) -> None:
        if taken:
            self._found.add((step, 0))

    def unit(self, unit: Unit, session: Session) -> None:
        """Add the steps of a readable unit and its session."""
        kind = unit.header.nnr_unit_type
        self._add("aggregate", kind == NNR_AGG)
        self._add("aggregate in aggregate", kind == NNR_AGG and unit.depth)
        self._ended |= self._inner and not session.lps
        self._inner = (kind == NNR_LPS and unit.depth > 0) or (self._inner and bool(session.lps))
        if kind == NNR_NDU:
            self._add("LPS", session.lps_quantization and session.mps_quantization)
            self._add("LPS in aggregate", session.lps_quantization and session.lps_depth)
            self._add("LPS ended", self._ended and not session.lps)
            self._add("unification", session.mps_unification_flag or session.lps_unification_flag)
        elif kind == NNR_TPL and "pruning" in cast(NnrTopologyUnitPayload, unit.structure):
            pruning = cast(NnrTopologyUnitPayload, unit.structure).pruning
            self._add("pruning mask", pruning.prune_flag and pruning.nnr_rep_type == NNR_TPL_BMSK)
            self._add("sparsification mask", pruning.sparse_flag)
            self._add("dictionary", pruning.prune_flag and pruning.nnr_rep_type == NNR_TPL_DICT)

    def end(self, parser: BitstreamParser, is_later: bool) -> None:
        """Add the steps of the bitstream as a whole."""
        self._add("NNR_STR again", is_later)
        if topology := parser.topology:
            self._add("texts")
            self._add("NNEF topology", topology.format == "nnef")
            self._add("NNEF quantization", topology.format == "nnef" and topology.quantization)
            self._add("NNEF and reference list", topology.format == "nnef" and parser.reader.session.reference_list)
            self._add(_FORMATS.get(topology.format, "texts"))

    def group(self, group: Group, references: References) -> None:
        """Add the steps of a group of units and its references."""
        self._add("tensors")
        self._add("G and H", len(group.tasks) == 2)
        for task, reference in zip(group.tasks, references, strict=True):
            self._task(task, reference)

    def _task(self, task: NduTask, reference: Reference | None) -> None:
        header, kind = task.header, task.header.nnr_compressed_data_unit_payload_type
        types, is_update = header.compressed_parameter_types, header.parent_node_id_present_flag
        self._add(PayloadType(kind).name)
        self._add("parts", task.unit.header.part)
        self._add("dimensions given", not header.tensor_dimensions_flag)
        self._add("reference list", isinstance(header.topology_elem_ids[0], int))
        self._add("IndexToXY", header.cabac_offset_list)
        self._add("DimensionShift", header.first_tensor_dimension_shift)
        if kind == NNR_PT_BLOCK:
            self._add("block with G and H", types & NNR_CPT_DC)
            self._add("block with shifted weight", header.first_tensor_dimension_shift)
            self._add("batch norm", types & NNR_CPT_BN)
            self._add("local scaling", types & NNR_CPT_LS)
            self._add("block under nnr_pre_flag", is_update and task.session.nnr_pre_flag)
        else:
            several = header.nnr_multiple_topology_elements_present_flag
            self._add("TensorSplit", several)
            self._add("AxisSwap", several and any(header.number_of_shifts))
            self._add(f"several from {_KINDS[kind]}", several)
            is_residual = task.session.nnr_pre_flag and is_update
            self._add(f"{'residual' if is_residual else 'update'} of {_KINDS[kind]}", is_update)
        if kind != NNR_PT_RAW_FLOAT:
            self._coded(task, reference)

    def _coded(self, task: NduTask, reference: Reference | None) -> None:
        header = task.header
        is_residual = task.session.nnr_pre_flag and not task.is_block
        if reference:
            self._add("residual coLocParam" if is_residual else "coLocParam", reference.co_loc)
            self._add("AnySigBeforeFlag", reference.history and reference.history.any_sig)
        self._add("several tensors", len(task.parts) > 1)
        if header.nnr_compressed_data_unit_payload_type == NNR_PT_INT:
            return
        self._add("codebook and states" if header.dq_flag else "codebook", header.codebook_present_flag)
        self._add("states" if header.dq_flag else "uniform", not header.codebook_present_flag)
        self._add("no codebook", any(part.codebook is None for part in task.parts))
        self._add("Codebook", any(part.codebook and part.role != "h" for part in task.parts))
        self._add("CodebookDC", any(part.codebook and part.role == "h" for part in task.parts) and task.is_block)
        density, parameter = quantization(task.session)
        qp_value = PayloadDecoder(task.payload).quant_param(6 + density)
        self._add(f"qp_value {'below' if qp_value < 0 else 'above'} 0", qp_value)
        self._add("step above 1", step_size(qp_value + parameter, density) > 1)
        self._add("step below 1", step_size(qp_value + parameter, density) < 1)
