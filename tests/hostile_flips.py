"""Vectors with one inverted header bit: rejected, flagged by ``nnr verify``, or counted by syntax element."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nnr_codec.conformance.digest import TensorDigest
from nnr_codec.conformance.report import Report
from nnr_codec.decoder.index import NnrFile
from nnr_codec.decoder.pruning import PruningWarning
from nnr_codec.errors import NnrError
from nnr_codec.syntax import Descriptor

from .hostile import Subject, Tally, flipped
from .soon import soon

#: Findings of ``nnr verify`` for a bitstream that decodes: a broken rule, a contradiction, or ignored content.
FLAGGED = ("violation", "warning", "note")
#: Bitstreams that decode without an error or warning: to the same tensors, or to other ones.
SILENT = ("same", "other")

#: Elements of which an inverted bit may change the result without an error or warning, by kind:
#: nothing else in a bitstream determines their values.
MAY_CHANGE = {
    "names, and what tells senders, parameters and updates apart": "topology_elem_id topology_elem_id_list "
    "topology_elem_id_index element_id element_id_index base_model_id performance_metric_type device_id parameter_id "
    "put_node_depth parent_device_id nnr_pre_flag",
    "texts and their formats": "topology_data topology_storage_format topology_compression_format quantization_data "
    "quantization_storage_format quantization_compression_format",
    "step sizes, codebooks and masks": "mps_qp_density mps_quantization_parameter lps_qp_density "
    "lps_quantization_parameter "
    "codebook_zero_value codebook_delta_left codebook_delta_right codebook_egk codebook_centre_offset bit_mask_value "
    "order_flag",
    "shapes, orders and types of tensors": "tensor_dimensions first_tensor_dimension_shift split_index shift_index "
    "shift_value concatentation_axis_index scan_order nnr_decompressed_data_format cabac_unary_length_minus1",
    "performance maps": "validation_set_performance metric_type_performance_map_valid_flag spm_count_thresholds "
    "ppm_count_pruning_ratios sparsification_threshold non_zero_ratio spm_nn_accuracy "
    "spm_class_bitmask spm_nn_class_accuracy pruning_ratio ppm_nn_accuracy ppm_class_bitmask ppm_nn_class_accuracy "
    "unification_threshold upm_nn_accuracy upm_class_bitmask upm_nn_class_accuracy super_block_dimensions "
    "block_dimensions reshaped_tensor_dimensions count_super_block_dimension count_block_dimension "
    "count_resaped_tensor_dimension mse_threshold dpm_nn_accuracy dpm_class_bitmask dpm_nn_class_accuracy "
    "nn_reduction_ratio",
    "units that nobody reads, which become others or take more in": "nnr_unit_type nnr_unit_size",
}


@dataclass
class FlipTally(Tally):
    """Counts of the outcomes of inverted bits.

    Attributes
    ----------
    elements : dict of str to Counter
        The outcomes by syntax element.
    """

    elements: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Add another tally."""
        super().add(other)
        if isinstance(other, FlipTally):
            for element, outcomes in other.elements.items():
                self.elements.setdefault(element, Counter()).update(outcomes)

    @property
    def unforeseen(self) -> set[str]:
        """Elements outside MAY_CHANGE that change the result without an error or warning."""
        foreseen = {element for elements in MAY_CHANGE.values() for element in elements.split()}
        return {element for element, outcomes in self.elements.items() if outcomes["other"]} - foreseen


class Flipper:
    """Inverter of bits of a vector that classifies the outcomes."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.contents, self.findings = self._contents(subject.data), _findings(subject.verify(subject.data))
        self.elements = _elements(subject)

    def try_all(self, positions: Iterable[int], bits: Iterable[int] = range(8), seconds: float = 1.0) -> FlipTally:
        """Invert these bits of each byte; an AssertionError names the first position with a wrong result."""
        tally, bits = FlipTally(), list(bits)
        for position in positions:
            for bit in bits:
                data = flipped(self.subject.data, position, bit)
                what = f"{self.subject.id}, byte {position} bit {bit}"
                try:
                    outcome, elapsed = soon(lambda: self.outcome(data), seconds)  # noqa: B023
                except Exception as error:
                    raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
                tally.outcomes[outcome] += 1
                tally.elements.setdefault(self.elements[8 * position + 7 - bit], Counter())[outcome] += 1
                tally.took(elapsed, what)
        return tally

    def outcome(self, data: bytes) -> str:
        """Return the name of the NnrError, FLAGGED or SILENT."""
        try:
            contents = self._contents(data)
        except NnrError as error:
            return type(error).__name__
        found = _findings(self.subject.verify(data))
        return next((what for what in FLAGGED if found[what] - self.findings[what]), SILENT[contents != self.contents])

    def _contents(self, data: bytes) -> Any:
        """Return all results of a decoder for comparison; only warnings of pruning are ignored."""
        subject = self.subject
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", PruningWarning)  # which verify reports
            file = subject.open(data)
            model = file.decode(state=subject.state, allow_missing=subject.case.result == "acceptable")
        topology = model.topology
        return (
            [TensorDigest.of(name, tensor) for name, tensor in model.tensors.items()],
            topology and (topology.format, topology.data, topology.quantization),
            (model.format, model.metadata, model.aliases, sorted(model.pruned)),
            (file.base_model_id, _performance(file)),
        )


def _performance(file: NnrFile) -> str:
    try:
        return repr(file.performance)
    except NnrError as error:  # of a map without entries, which has no effect on tensors
        return str(error)


def _findings(report: Report) -> dict[str, set[Any]]:
    return {
        "violation": {(found.requirement, found.unit) for found in report.violations},
        "warning": {(found.requirement, found.unit) for found in report.warnings},
        "note": set(report.notes),
    }


def _elements(subject: Subject) -> dict[int, str]:
    """Return the syntax element of each bit of the headers, without its structure and indices."""
    parser, elements, path_of = subject.parser(), dict[int, str](), dict[int, str]()

    def note(path: str, descriptor: Descriptor, bit: int, size: int, value: object) -> None:
        if descriptor.kind != "struct":
            name = re.sub(r"\[\d+\]", "", path).rpartition(".")[2]
            path_of.update(dict.fromkeys(range(bit, bit + size), name))

    parser.reader.trace = note
    for unit in parser.reader:
        start, end = 8 * unit.offset, 8 * unit.size.nnr_unit_size
        rest = dict.fromkeys(range(8 * unit.payload_offset, end), f"payload of {unit.type_name}")
        elements |= {start + bit: name for bit, name in (rest | path_of).items()}
        path_of.clear()
        parser.take(unit)
    return elements
