"""Checks of the encoder's output by ``nnr verify`` and by the plain implementation of clause 10.

The plain implementation must decode the levels of the kernel, and encode them to the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

import nnr_codec as nnr
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.constants import NNR_MPS, NNR_PT_RAW_FLOAT, NNR_TPL, NnrUnitType
from nnr_codec.decoder.bins import plain_syntaxes
from nnr_codec.decoder.decode import BitstreamParser
from nnr_codec.decoder.group import Group, is_first_edition
from nnr_codec.decoder.parents import Reference, refer
from nnr_codec.decoder.reconstruct import Rec
from nnr_codec.decoder.task import NduTask
from nnr_codec.limits import Budget, Limits
from nnr_codec.model import Topology
from nnr_codec.syntax.deepcabac import ArithmeticDecoder, ArithmeticEncoder, QuantTensor, quant_tensor, terminate

#: Features of all bitstreams of a run: numbers of bitstreams, tensors and parameters, and tools by name.
Seen = Counter[str]


def check(bitstreams: Sequence[bytes], topology: Topology | None = None) -> Seen:
    """Check successive bitstreams, each with the state after the previous ones.

    Raise AssertionError if one breaks a rule of the standard, or if kernel and plain implementation disagree.
    """
    seen: Seen = Counter()
    decoder = nnr.UpdateDecoder(topology=topology)
    for k, data in enumerate(bitstreams):
        report = nnr.verify(data, inputs=bitstreams[:k], topology=topology)
        assert not report.violations, report.violations
        seen.update({f"warning {warning.requirement}" for warning in report.warnings})
        seen += compare(data, decoder.state, topology)
        decoder.decode(data)
    return seen


def compare(data: bytes, state: nnr.UpdateState, topology: Topology | None = None) -> Seen:
    """Decode the levels of a bitstream twice, with the state after the previous ones."""
    seen: Seen = Counter({"bitstreams": 1, "bytes": len(data)})
    parser = BitstreamParser(UnitReader(data), given=topology)
    groups = list(parser.groups())
    first_edition = parser.profile == 0 and is_first_edition(groups)
    left = state.fork()
    seen[f"profile {parser.profile}"] += 1
    for unit in nnr.units(data):
        seen.update(_of_unit(unit))
    for group in groups:
        recs = group.recs(state=left, budget=Budget(Limits.unlimited()), first_edition=first_edition, raw=True)
        _compare_group(group, recs, state, first_edition, seen)
    return seen


def _compare_group(group: Group, recs: list[Rec], state: nnr.UpdateState, first_edition: bool, seen: Seen) -> None:
    rest = iter(recs)
    for task in group.tasks:
        own = [next(rest) for _ in task.parts]
        seen.update(_of_task(task))
        if task.header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT:
            continue
        reference = refer(task.header, task.names[0], bool(task.session.nnr_pre_flag), state.fork())
        coded = _plain(task, reference, first_edition)
        for part, rec, plain in zip(task.parts, own, coded, strict=True):
            assert rec.levels is not None
            assert rec.levels.reshape(-1).tolist() == plain.quant_param, (task.label, part)
            seen["tensors"] += 1
            seen["parameters"] += prod(part.dims)
            seen.update(_of_tensor(plain, reference))


def _plain(task: NduTask, reference: Reference | None, first_edition: bool) -> list[QuantTensor]:
    """Return the tensors of a payload by the plain implementation, which encodes them to the same payload and lists."""
    header, payload = task.header, bytes(task.payload)
    syntaxes = plain_syntaxes(task, first_edition, reference)
    decoder, encoder = ArithmeticDecoder(payload), ArithmeticEncoder()
    coded = [quant_tensor(decoder, s) for s in syntaxes]
    terminate(decoder)
    for s, plain in zip(syntaxes, coded, strict=True):
        quant_tensor(encoder, s, plain)
    terminate(encoder)
    assert encoder.finish() == payload, task.label
    if header.scan_order:
        assert header.cabac_offset_list == [offset for plain in coded for offset in plain.cabac_offset_list]
        if header.dq_flag:
            assert header.dq_state_list == [state for plain in coded for state in plain.dq_state_list]
        deltas = [header.bit_offset_delta1, *header.bit_offset_delta2] if header.cabac_offset_list else []
        points = [sum(deltas[: k + 1]) for k in range(len(deltas))]
        assert points == [offset for plain in coded for offset in plain.bit_offset_list]
    return coded


# ------------------------------------------------------------------------------------------------ features
def _of_unit(unit: nnr.Unit) -> Iterator[str]:
    kind = unit.header.nnr_unit_type
    yield NnrUnitType(kind).name
    if unit.header.part:
        yield "partial data"
    if kind == NNR_TPL:
        yield f"topology_storage_format {unit.header.detail.topology_storage_format}"
    if kind == NNR_MPS:
        yield from (name for name, value in vars(unit.payload).items() if name.endswith("_flag") and value)


def _of_task(task: NduTask) -> Iterator[str]:
    header = task.header
    yield header.nnr_compressed_data_unit_payload_type.name
    yield task.data_format.name
    yield task.role
    flags = ("dq_flag", "codebook_present_flag", "temporal_context_modeling_flag", "parent_node_id_present_flag")
    yield from (name for name in flags if name in header and getattr(header, name))
    yield from (f"compressed_parameter_types {bit}" for bit in (1, 2, 4, 8) if header.compressed_parameter_types & bit)
    if header.scan_order:
        yield f"scan_order {header.scan_order}"
    if header.parent_node_id_present_flag:
        yield f"parent_node_id_type {int(header.parent_node_id_type)}"
    if header.cabac_unary_length_flag:
        yield "cabac_unary_length"
    if header.first_tensor_dimension_shift:
        yield "first_tensor_dimension_shift"
    if task.session.nnr_pre_flag:
        yield "predictive residuals"


def _of_tensor(plain: QuantTensor, reference: Reference | None) -> Iterator[str]:
    if plain.row_skip_enabled_flag:
        yield "row_skip_enabled_flag"
    if plain.hist_dep_sig_prob_enabled_flag:
        yield "hist_dep_sig_prob_enabled_flag"
    if any(map(any, plain.shift_parameter_ids.values())):
        yield "shift_parameter_ids"
    if plain.cabac_offset_list:
        yield "entry points"
    if reference and reference.co_loc:
        yield "co-located levels"
