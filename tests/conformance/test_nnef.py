"""Rules of Annex A for which one bitstream per rule (violations.py) is not sufficient."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

import nnr_codec as nnr
from nnr_codec.conformance.verify import verify
from nnr_codec.constants import NNR_CPT_BI, NNR_CPT_DC, NNR_CPT_LS, NNR_DFL, NNR_PT_BLOCK
from nnr_codec.model import Topology

from ..builder import Bitstream, ndu
from .violations import GRAPH, QUANT, pruned, raw, start

TWO = GRAPH.replace(b"w = variable", b'b = variable(shape = [1, 1], label = "b"); w = variable')


def told(data: bytes, topology: bytes | None = None) -> list[tuple[str, int | None, str]]:
    """Return rule, unit and element of each violation and warning."""
    report = verify(data, topology=Topology("nnef", topology) if topology else None)
    assert all(found.bit >= 0 for found in (*report.violations, *report.warnings) if found.element)
    return [(found.requirement, found.unit, found.element) for found in (*report.violations, *report.warnings)]


def carried(graph: bytes = GRAPH, **elements: int) -> Bitstream:
    """Return NNR_STR, NNR_MPS and a graph."""
    return start(topology_carriage_flag=1, **elements).topology(graph)


# ------------------------------------------------------------------------------------------------ texts
@pytest.mark.parametrize("text", [b"", b"\0\0", QUANT[:-1], QUANT + b"x"])
def test_quantization_that_is_no_string(text: bytes) -> None:
    assert told(raw(carried().quantization(text), "w").data) == [("nnef-quantization-string", 3, "")]


def test_quantization_that_is_not_utf8() -> None:
    data = raw(carried().quantization(b"# \xff\n" + QUANT), "w").data
    assert told(data) == [("nnef-quantization-string", 3, "quantization_data")]


def test_a_graph_that_is_not_utf8_is_not_read() -> None:
    assert told(raw(carried(b"# \xff\n" + GRAPH), "v").data) == [("nnef-string", 2, "topology_data")]


def test_the_place_in_the_graph_is_reported() -> None:
    report = nnr.verify(raw(carried(GRAPH.replace(b"(x) ->", b"(x) >")), "w").data)
    (found,) = report.violations
    assert found.requirement == "nnef-graph" and "graph.nnef:1:" in found.message


@pytest.mark.parametrize("storage", [0, 2, 3, 4])
def test_a_graph_under_another_format(storage: int) -> None:
    element = "nnr_topology_unit_header.topology_storage_format"
    for data, compression in ((GRAPH, 0), (GRAPH[:-1], 0), (zlib.compress(GRAPH), NNR_DFL)):
        s = start(topology_carriage_flag=1).topology(data, storage=storage, compression=compression)
        assert told(raw(s, "w").data) == [("nnef-topology-format", 2, element)]
    for data in (b"net\0", b"", GRAPH[:60], b"\xff" + GRAPH):
        s = start(topology_carriage_flag=1).topology(data, storage=storage)
        assert not told(raw(s, "w").data)


def test_a_graph_under_a_private_format_is_nobodys_business() -> None:
    assert not told(raw(start(topology_carriage_flag=1).topology(GRAPH, storage=200), "w").data)


def test_quantization_under_another_format() -> None:
    element = "nnr_quantization_unit_header.quantization_storage_format"
    for data, compression in ((QUANT, 0), (zlib.compress(QUANT), NNR_DFL)):
        s = carried().quantization(data, storage=2, compression=compression)
        assert told(raw(s, "w").data) == [("nnef-quantization-format", 3, element)]
    assert not told(raw(carried().quantization(b"bits=8\0", storage=2), "w").data)
    s = start(topology_carriage_flag=1).topology(b"net", storage=2).quantization(QUANT, storage=2)
    assert not told(raw(s, "w").data)  # ONNX may have similar nodes


# ------------------------------------------------------------------------------------------------ order
def test_quantization_before_the_graph_and_between_it_and_the_list() -> None:
    s = start(topology_carriage_flag=1).quantization(QUANT).topology(GRAPH).reference_list("w", "W")
    assert not told(raw(s, "w").data)
    assert not told(raw(carried().quantization(QUANT).reference_list("w", "W"), "w").data)


def test_a_list_after_a_unit_that_decoders_pass_over() -> None:
    assert not told(raw(carried().topology(b"x", storage=200).reference_list("w", "W"), "w").data)


@pytest.mark.parametrize(
    "between",
    [lambda s: pruned(s, sparse_flag=0), lambda s: s.topology(b"x", storage=2).topology(b"\0", storage=0)],
    ids=["pruning", "another"],
)
def test_a_list_after_another_topology_unit(between: Callable[[Bitstream], Bitstream]) -> None:
    found = told(raw(between(carried()).reference_list("w", "W"), "w").data)
    # In another topology, which replaces the graph, "W" is another tensor.
    assert [rule for rule, *_ in found if rule != "complete"] == ["nnef-list-consecutive"]


def test_lists_without_a_graph_stand_where_they_like() -> None:
    s = start(topology_carriage_flag=1).topology(b"x", storage=2).topology(b"y", storage=3).reference_list("w", "v")
    assert not told(raw(raw(s, "w"), "v").data)


def test_late_topologies_break_the_rule_of_their_format() -> None:
    late = raw(start(topology_carriage_flag=1), "w")
    assert told(late.topology(b"x", storage=2).data) == [("topology-first", 3, "nnr_unit_type")]
    late = raw(carried(), "w")
    assert told(late.topology(b"x", storage=200).data) == [("nnef-topology-first", 4, "nnr_unit_type")]
    late = raw(start(), "w")
    assert told(late.quantization(QUANT).data) == [("nnef-quantization-first", 3, "nnr_unit_type")]


# ------------------------------------------------------------------------------------------------ names
def block(s: Bitstream, types: int, *names: str) -> bytes:
    """Return a block of one parameter, or of as many as its roles require."""
    more = {"decomposition_rank": 1, "g_number_of_rows": 1} if types & NNR_CPT_DC else {}
    header = ndu(names, [1], kind=NNR_PT_BLOCK, compressed_parameter_types=types, **more)
    return s.ndu(header, *([[1]] * len(names))).data


#: For an NNR_MPS with a step size.
STEP = {"mps_quantization_method_flags": 1, "mps_qp_density": 2, "mps_quantization_parameter": 0}


@pytest.mark.parametrize(
    ("types", "names", "strangers"),
    [
        (NNR_CPT_LS | NNR_CPT_BI, ("w", "scaling", "b"), []),  # the weight's id counts (errata N5)
        (NNR_CPT_LS, ("w", "b"), []),
        (NNR_CPT_DC | NNR_CPT_BI, ("w", "w_H", "b"), []),
        (NNR_CPT_BI, ("v", "b"), ["v"]),
        (NNR_CPT_BI, ("w", "bias"), ["bias"]),  # is decoded as a tensor, but is not a variable
        (NNR_CPT_DC | NNR_CPT_BI, ("w_G", "w", "b"), ["w_G"]),
    ],
)
def test_names_in_blocks(types: int, names: tuple[str, ...], strangers: list[str]) -> None:
    for graph, apart in ((TWO, None), (b"", TWO[:-1])):
        s = carried(graph, **STEP) if graph else start(**STEP)
        report = verify(block(s, types, *names), topology=Topology("nnef", apart) if apart else None)
        found = [violation.message for violation in report.violations if violation.requirement == "nnef-names"]
        assert found == [f"{name!r} is not a variable of the topology" for name in strangers]


def test_names_by_index() -> None:
    s = carried(TWO, mps_topology_indexed_reference_flag=1).reference_list("w", "v")
    for index in range(2):
        s.raw(ndu(index, [1], kind=2), [0.0])
    found = told(s.data)
    assert ("nnef-reference-list", 3, "topology_elem_id_list[1]") in found
    assert ("nnef-names", 5, "") in found
