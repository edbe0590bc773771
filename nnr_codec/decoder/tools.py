"""Syntax tree with the elements before the levels of payloads, and the coding tools that a bitstream requires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from typing import TYPE_CHECKING

from ..bitstream.nodes import Node, UnitNode, bare
from ..bitstream.tree import trees
from ..bitstream.units import Unit, UnitReader
from ..constants import NNR_NDU
from ..errors import NnrError
from ..limits import Limits
from ..syntax.docs import value_meaning, values_of
from .bins import ELEMENTS, heads
from .decode import BitstreamParser
from .group import Group, is_first_edition
from .texts import session_for

if TYPE_CHECKING:
    from ..bitstream.source import Bitstream
    from ..formats import TopologySource

#: Elements that require a tool unless they are 0; for elements with a value table, each value is a tool.
_ELEMENTS = """
general_profile_idc nnr_unit_type partial_data_counter_present_flag nnr_aggregate_unit_type entry_points_present_flag
topology_storage_format topology_compression_format nnr_rep_type prune_flag sparse_flag quantization_storage_format
quantization_compression_format mps_topology_indexed_reference_flag mps_quantization_method_flags
lps_quantization_method_flags lps_self_contained_flag mps_parent_signalling_enabled_flag nnr_pre_flag
nnr_compressed_data_unit_payload_type nnr_multiple_topology_elements_present_flag compressed_parameter_types
nnr_decompressed_data_format tensor_dimensions_flag first_tensor_dimension_shift scan_order cabac_offset_list
codebook_present_flag dq_flag row_skip_enabled_flag parent_node_id_present_flag parent_node_id_type
temporal_context_modeling_flag hist_dep_sig_prob_enabled_flag
"""
ORDER = _ELEMENTS.split()

#: Elements that require a tool if they are 0: the dimensions are then not in the bitstream.
ZEROS = frozenset({"tensor_dimensions_flag"})


@dataclass(frozen=True)
class Tool:
    """Coding tool that a decoder must support.

    Parameters
    ----------
    element : str
        Syntax element that requires it.
    value : int or None
        Value of the element, or one of its bits; None if any value requires it, or if the value is unknown.
    meaning : str
    clause : str
        Clause of the element's syntax table.
    units : int
        Number of units that require it.
    first : int
        Number of the first of these units.
    """

    element: str
    value: int | None
    meaning: str
    clause: str
    units: int
    first: int


class Payloads:
    """Callback for :func:`~nnr_codec.bitstream.tree.trees` that adds the elements before the levels of payloads.

    Attributes
    ----------
    error : NnrError or None
        First error outside the syntax; no elements are added after it.
    unknown : dict of int to NnrError
        Reasons why no elements could be added, by unit.
    """

    def __init__(self, reader: UnitReader) -> None:
        self.parser = BitstreamParser(reader)
        self.error: NnrError | None = None
        self.unknown: dict[int, NnrError] = {}
        self._nodes: dict[int, Node] = {}  # units of an incomplete group

    def __call__(self, unit: Unit, node: Node) -> None:
        if self.error:
            return
        if unit.header.nnr_unit_type == NNR_NDU:
            self._nodes[unit.index] = node
        try:
            for group in self.parser.take(unit):
                self._add(group)
                self._nodes.clear()
        except NnrError as error:
            self.error = error

    def _add(self, group: Group) -> None:
        first_edition = self.parser.profile == 0 and group.first.is_block and is_first_edition([group])
        for task in group.tasks:
            payload = self._nodes[task.unit.index]
            try:
                for part, elements in heads(task, first_edition):
                    tensor = _inner(payload, part.role, "quant_tensor()", "10.2.1.4")
                    tensor.meaning = part.name
                    for element in elements:
                        clause, _, meaning = ELEMENTS[element.name]
                        leaf = _inner(tensor, element.name, element.descriptor, clause)
                        leaf.value, leaf.meaning = element.value, meaning
            except NnrError as error:
                payload.meaning += f", its head cannot be read: {error}"
                self.unknown[task.unit.index] = error


def _inner(owner: Node, name: str, descriptor: str, clause: str) -> Node:
    """Return a node of 0 bits, because elements in an arithmetic codeword have no bits of their own."""
    node = Node(owner.unit, name, f"{owner.path}.{name}", descriptor, clause, owner.bit, owner.offset)
    owner.children.append(node)
    return node


def tree(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    inferred: bool = False,
    payloads: bool = False,
    topology: TopologySource | None = None,
) -> list[UnitNode]:
    """Return the syntax trees of the units of a bitstream; units of an aggregate are in its tree.

    Parameters
    ----------
    data, limits, topology_dimensions, topology
        As for :func:`decode`.
    inferred : bool
        Add absent elements that have an inferred value.
    payloads : bool
        Add the elements before the levels in payloads.

    Raises
    ------
    BitstreamError, MissingReferenceError
        The bitstream is malformed; :func:`~nnr_codec.bitstream.tree.trees` yields the readable part.
    """
    reader = UnitReader(data, limits, session_for(topology_dimensions, topology, limits))
    inside = Payloads(reader) if payloads else None
    roots = list(trees(reader, inferred=inferred, inside=inside))
    if inside and inside.error:
        raise inside.error
    return roots


def requirements(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: TopologySource | None = None,
) -> list[Tool]:
    """Return the tools that a decoder needs for a bitstream; parameters and errors are as for :func:`tree`.

    In payloads, only the elements before the levels are decoded, and in a block also the levels that precede them.
    """
    reader = UnitReader(data, limits, session_for(topology_dimensions, topology, limits))
    payloads = Payloads(reader)
    found: dict[tuple[str, int | None], Tool] = {}
    last: dict[tuple[str, int | None], int] = {}  # last unit counted
    for root in trees(reader, inferred=True, inside=payloads):
        for node in root.walk():
            for element, value, meaning in _asked(node):
                key = element, value
                tool = found.get(key) or Tool(element, value, meaning, node.clause, 0, node.unit)
                found[key] = replace(tool, units=tool.units + (last.get(key) != node.unit))
                last[key] = node.unit
    if payloads.error:
        raise payloads.error
    tools = sorted(found.values(), key=lambda tool: (ORDER.index(tool.element), tool.value or 0))
    if payloads.unknown:
        unit, error = next(iter(payloads.unknown.items()))
        clause, _, _ = ELEMENTS["row_skip_enabled_flag"]
        tools.append(Tool("row_skip_enabled_flag", None, f"not known: {error}", clause, len(payloads.unknown), unit))
    return tools


def _asked(node: Node) -> Iterator[tuple[str, int | None, str]]:
    """Yield the tools that an element requires: element, value, meaning."""
    name, is_entry = bare(node.name), "[" in node.name
    if name not in ORDER or node.value is None:
        return
    values = values_of(name)
    if is_entry:
        if name == "cabac_offset_list":
            yield name, None, node.meaning
    elif values and issubclass(values, IntFlag):
        for bit in values:
            if bit & node.value:
                yield name, int(bit), value_meaning(name, bit)
    elif values or (node.value == 0) == (name in ZEROS) or name == "general_profile_idc":
        yield name, int(node.value), node.meaning
