"""Trees: each bit of each unit occurs once, values agree with bits, and malformed bitstreams are shown in part."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.nodes import Node, UnitNode
from nnr_codec.bitstream.tree import trees
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.constants import NNR_PT_INT
from nnr_codec.decoder.texts import session_for
from nnr_codec.syntax import BitReader

from ..builder import Bitstream, ndu
from ..vectors.few import for_each

ROOT = Path(__file__).resolve().parents[2] / "bitstream_vectors"
STREAMS = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.nn[rc]"))}


def facts(path: Path) -> dict[str, Any]:
    """Return the description of the bitstream in the case."""
    case = path.with_name("case.json")
    parsed: dict[str, Any] = json.loads(case.read_text("utf-8")) if case.exists() else {}
    return parsed


@lru_cache
def read(data: Path | bytes) -> tuple[list[UnitNode], nnr.NnrError | None]:
    """Return the trees of a bitstream, and the final error."""
    said = facts(data) if isinstance(data, Path) else {}
    given = None
    if isinstance(data, Path) and "topology" in said:
        given = nnr.Topology("nnef", data.with_name(said["topology"]["file"]).read_bytes())
    session = session_for(said.get("topology_dimensions"), given, None)
    roots: list[UnitNode] = []
    try:
        roots.extend(trees(UnitReader(data, None, session)))
    except nnr.NnrError as error:
        return roots, error
    return roots, None


def leaves(unit: Node) -> Iterator[Node]:
    """Return the nodes without children that cover bits, including nodes of inner units."""
    return (node for node in unit.walk() if node.bits and not node.children)


def is_invalid(path: Path) -> bool:
    return facts(path).get("result") == "invalid"


@for_each(STREAMS, "slow")
def test_nodes_cover_each_bit_once(path: Path) -> None:
    data = path.read_bytes()
    roots, error = read(path)
    assert error is None or is_invalid(path)
    position = 0
    for root in roots:
        assert root.offset == position
        for leaf in leaves(root):
            assert leaf.offset == position
            position += leaf.bits
        assert position == root.offset + root.bits or not root.complete
        for unit in root.units():
            for node in unit.walk():
                assert root.offset <= node.offset <= node.offset + node.bits <= root.offset + root.bits
    assert position == 8 * len(data) or error


@for_each(STREAMS, "slow")
def test_raw_bits_equal_the_bitstream(path: Path) -> None:
    bits = BitReader(path.read_bytes())
    for root in read(path)[0]:
        for leaf in leaves(root):
            if leaf.value is not None and leaf.bits <= 64:
                bits.pos = leaf.offset
                assert leaf.raw == f"{bits.u(leaf.bits):0{leaf.bits}b}", leaf.path
            else:
                assert leaf.raw == ""


@for_each(STREAMS, "slow")
def test_json(path: Path) -> None:
    for root in read(path)[0]:
        parsed = json.loads(json.dumps(root.to_dict(), allow_nan=False))
        assert list(parsed)[:12] == [
            *("unit", "name", "path", "descriptor", "clause", "bit", "offset", "bits", "raw", "value", "meaning"),
            "children",
        ]
        assert (parsed["type"], parsed["names"], parsed["depth"]) == (root.type, root.names, 0)
        assert count(parsed) == len(list(root.walk()))


def count(node: dict[str, Any]) -> int:
    return 1 + sum(map(count, node["children"]))


@for_each(
    {
        name: path
        for name, path in STREAMS.items()
        if name.startswith(("syntax", "block")) or name.endswith(("00.nnr", "dq.nnc"))
    },
    "slow",
)
def test_each_bit_has_an_element(path: Path) -> None:
    for root in read(path)[0]:
        expected = {bit: leaf for leaf in leaves(root) for bit in range(leaf.offset, leaf.offset + min(leaf.bits, 200))}
        for bit, leaf in expected.items():
            path = root.at(bit)
            assert path[0] is root
            assert path[-1] is leaf
        assert root.at(root.offset - 1) == root.at(root.offset + root.bits) == []


def one(data: bytes, number: int) -> UnitNode:
    (unit,) = trees(UnitReader(data), select=lambda node: node.unit == number)
    return unit


def element(unit: UnitNode, name: str) -> Node:
    (node,) = unit.find([name])
    return node


def test_nodes_of_a_tensor() -> None:
    data = Bitstream().str_().mps().ndu(ndu("w", [2, 3], kind=NNR_PT_INT), [[3, -4, 0], [1, 2, 3]]).data
    unit = one(data, 2)
    assert (unit.type, unit.names, unit.meaning, unit.complete) == ("NNR_NDU", ["w"], "NNR_NDU 'w'", True)
    assert [child.name for child in unit.children] == [
        "nnr_unit_size()",
        "nnr_unit_header()",
        "nnr_compressed_data_unit_payload()",
    ]
    kind = element(unit, "nnr_compressed_data_unit_payload_type")
    assert (kind.path, kind.descriptor, kind.clause, kind.bit, kind.bits, kind.raw, kind.value, kind.meaning) == (
        "nnr_compressed_data_unit_header.nnr_compressed_data_unit_payload_type",
        *("u(5)", "6.3.3.7", 24, 5, "00000", 0, "NNR_PT_INT: integers (7.3.2)"),
    )
    assert kind.offset == unit.offset + 24
    assert [node.value for node in unit.find(["tensor_dimensions"])] == [2, 3]
    payload = unit.children[-1]
    assert (payload.clause, payload.descriptor, payload.value) == ("6.3.4.7", "ae(v)", None)
    assert payload.meaning == f"{payload.bits // 8} bytes"


def test_inferred_elements_take_no_bits() -> None:
    data = Bitstream().str_().mps().ndu(ndu("w", [2], kind=NNR_PT_INT), [3, -4]).data
    plain, inferred = nnr.tree(data), nnr.tree(data, inferred=True)
    assert not list(plain[2].find(["scan_order"]))
    scan = element(inferred[2], "scan_order")
    assert (scan.bits, scan.raw, scan.value, scan.descriptor) == (0, "", 0, "inferred")
    assert scan.path == "nnr_compressed_data_unit_header.scan_order"
    assert [leaf.path for root in inferred for leaf in leaves(root)] == [n.path for root in plain for n in leaves(root)]


def test_what_precedes_the_levels() -> None:
    values = np.zeros((4, 6), np.float32)
    values[1] = 1
    unit = nnr.tree(nnr.encode({"w": values}, row_skipping=True), payloads=True)[-1]
    payload = unit.children[-1]
    (tensor,) = payload.children
    assert (tensor.name, tensor.meaning, tensor.clause) == ("weight", "w", "10.2.1.4")
    qp, flag, rows = tensor.children
    assert (qp.name, qp.descriptor, qp.clause) == ("qp_value", "iae(8)", "10.2.1.3")
    assert (flag.name, flag.value, rows.name, rows.value.to01()) == (
        "row_skip_enabled_flag",
        1,
        "row_skip_list",
        "1011",
    )
    assert {node.bits for node in tensor.walk()} == {0}
    assert unit.at(payload.offset)[-1] is payload


def test_aggregates_hold_their_units() -> None:
    data = next(path for name, path in STREAMS.items() if name.startswith("syntax") and _has_aggregate(path))
    flat = list(nnr.units(data))
    roots = nnr.tree(data)
    assert [unit.unit for root in roots for unit in root.units()] == [unit.index for unit in flat]
    assert [root.depth for root in roots] == [0] * len(roots)
    inner = next(unit for unit in flat if unit.depth)
    (alone,) = trees(UnitReader(data), select=lambda node: node.unit == inner.index)
    assert (alone.offset, alone.bits, alone.depth) == (8 * inner.offset, 8 * inner.size.nnr_unit_size, inner.depth)


def _has_aggregate(path: Path) -> bool:
    return any(unit.depth for unit in nnr.units(path))


def test_a_malformed_unit_shows_what_could_be_read() -> None:
    data = bytearray(Bitstream().str_().mps().ndu(ndu("w", [2, 3], kind=NNR_PT_INT), [[3, -4, 0], [1, 2, 3]]).data)
    scan = element(one(bytes(data), 2), "scan_order")
    for bit in range(scan.offset, scan.offset + scan.bits):
        data[bit >> 3] |= 0x80 >> (bit & 7)
    roots, error = read(bytes(data))
    assert isinstance(error, nnr.ElementError)
    assert "scan_order 15 is outside" in str(error)
    assert [root.complete for root in roots] == [True, True, False]
    last = list(roots[-1].walk())[-1]
    assert (roots[-1].type, last.name, last.value) == ("NNR_NDU", "scan_order", 15)


def test_an_empty_bitstream() -> None:
    with pytest.raises(nnr.TruncatedError, match="empty"):
        nnr.tree(b"")


@pytest.mark.medium
def test_a_thousand_units_take_a_moment() -> None:
    data = nnr.encode({f"layer{k}": np.full((2, 2), k, np.float32) for k in range(1000)})
    started = time.process_time()
    assert len(nnr.tree(data)) == 1002
    assert time.process_time() - started < 10
