"""Findings of `verify` for vectors, bitstreams of other encoders, and bitstreams with several faults."""

from __future__ import annotations

import hashlib
import json
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import dtypes
from nnr_codec.conformance.cases import Case, Stream, load_cases
from nnr_codec.conformance.verify import verify
from nnr_codec.constants import NNR_AGG_SLF, NNR_NDU, NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.syntax.structures import NnrUnitHeader
from nnr_codec.tensor.quant import step_size

from ..builder import Bitstream, ndu, update_ndu
from ..vectors.few import for_each
from .violations import GRAPH, VECTORS, base, raw, start

pytestmark = pytest.mark.medium

CASES = load_cases(VECTORS)

#: Invalid vectors that break a rule twice, or two rules: two entry points, a part that claims to be none, a record
#: that is late like any topology, an invalid graph without dimensions,
#: a graph with contradictory shapes, a name that is in no graph, unknown parents
#: that are required, a start unit without a later parameter set.
TWICE = {
    "NNR-NEG-133",
    "NNR-NEG-155",
    "NNR-SID-212",
    "NNR-NEG-185",
    "NNR-NEG-187",
    "NNR-NEG-191",
    "NNR-NEG-192",
    "NNR-NEG-193",
    "NNR-NEG-194",
    "NNR-NEG-195",
    "NNR-NEG-901",
}

#: Content that is not decoded further, although other decoders may.
UNDECODED = {"NNR-ACC-028", "NNR-ACC-030", "NNR-ACC-032", "NNR-ACC-240"}

#: The rules that NNCodec breaks, by case.
NNCODEC = {
    "nncodec-v2/incr_pre": {"base-model-id", "residual-first"},  # sets nnr_pre_flag and codes updates (errata H6, N10)
    "nncodec-levels/hdsp": {"parent-depth"},  # three updates of put_node_depth 1
}


def reports(case: Case) -> list[nnr.Report]:
    """Return the report of each bitstream of a case after the bitstreams before it."""
    data = [stream.path.read_bytes() for stream in case.streams]
    return [
        verify(
            each,
            limits=case.limits,
            topology_dimensions=case.topology_dimensions,
            inputs=data[:k],
            topology=case.topology,
        )
        for k, each in enumerate(data)
    ]


def broken(*found: nnr.Report) -> set[str]:
    """Return the names of the broken rules."""
    return {violation.requirement for report in found for violation in report.violations}


def of(*results: str) -> dict[str, Case]:
    """Return the cases with one of these results, by folder and id, including cases of other implementations."""
    return {f"{case.group}/{case.id}": case for case in CASES if case.result in results}


@for_each(of("valid"), "medium")
def test_valid_vectors_break_nothing(case: Case) -> None:
    found = reports(case)
    assert broken(*found) == NNCODEC.get(case.id, set())
    assert_digests(case.streams, found)


def assert_digests(streams: Sequence[Stream], found: Sequence[nnr.Report]) -> None:
    for stream, report in zip(streams, found, strict=True):
        if stream.tensors is not None:
            assert sorted(report.tensors, key=str) == sorted(stream.tensors, key=str)


@for_each(of("invalid"), "medium")
def test_invalid_vectors_break_a_rule_that_has_a_name(case: Case) -> None:
    *before, last = reports(case)
    assert not broken(*before)
    assert case.error
    told = last.warnings if case.error[0] is nnr.IncompleteError else last.violations
    assert case.error[1] in [violation.unit for violation in told], told
    assert "decodable" not in broken(last)
    assert len(told) == 1 + (case.id in TWICE), told
    if case.extension and case.error[0] is not nnr.LimitError:
        assert told[0].requirement in (case.extension, "attachment", "complete")


@for_each(of("acceptable"), "medium")
def test_acceptable_vectors(case: Case) -> None:
    found = reports(case)
    assert broken(*found) == set(case.requirements)
    decoded = len(case.streams) - (case.id in UNDECODED)
    assert_digests(case.streams[:decoded], found[:decoded])


def test_a_labelled_topology() -> None:
    """The label has another spelling."""
    found = nnr.verify(raw(start(topology_carriage_flag=1).topology(GRAPH), "W").data)
    assert not found.violations and not found.warnings and not found.notes


def test_reference_lists_come_first_only_with_nnef() -> None:
    """Without NNEF, a later list has its own tensors (6.2.3); with NNEF it must come first (A.4)."""
    lists = raw(start(topology_carriage_flag=1), "w").reference_list("w", "v")
    assert not broken(nnr.verify(raw(lists, "v").data))
    s = raw(start(topology_carriage_flag=1).topology(GRAPH), "w").reference_list("w", "W")
    assert broken(nnr.verify(s.data)) == {"nnef-topology-first"}


def test_nnef_that_is_not_utf8() -> None:
    data = start(topology_carriage_flag=1).topology(GRAPH.replace(b"label", b"lab\xffl")).data
    assert broken(nnr.verify(data)) == {"nnef-string"}


# ------------------------------------------------------------------------------------------------ side information
RECORD = b'{"nnr_codec":1,"tensors":{"w":{"code":{"kind":"integer","low":8},"type":"int64"}}}'


def recorded(record: bytes = RECORD, *, storage: int = 128, **elements: object) -> Bitstream:
    """Return a record, w as levels and one word, and an NNEF topology with w."""
    s = start(topology_carriage_flag=1, **elements).topology(GRAPH).topology(record + b"\0", storage=storage)
    return s.ndu(ndu("w", [1], kind=NNR_PT_INT), [3]).raw(ndu("w#bits", [1], kind=NNR_PT_RAW_FLOAT), [0.0])


def test_bits_of_a_tensor_are_no_variable_of_the_topology() -> None:
    found = nnr.verify(recorded().data)
    assert not found.violations and not found.warnings
    assert [str(tensor.sha256) for tensor in found.tensors] == [nnr.digest(np.array([3 << 8]))]
    assert found.notes == ["unit 3 (NNR_TPL) contains side information, which is not part of the standard"]
    assert broken(nnr.verify(recorded(storage=200).data)) == {"nnef-names"}


def test_all_attachments_have_one_note() -> None:
    model = nnr.Model({"w": np.ones((2, 2), np.float32)}, attachments={"a.json": b"{}", "b.txt": b"text"})
    assert nnr.verify(nnr.encode(model)).notes == ["attachments in 2 NNR_TPL are not part of the standard"]


def test_bits_of_a_tensor_in_a_reference_list() -> None:
    s = start(topology_carriage_flag=1, mps_topology_indexed_reference_flag=1).topology(GRAPH)
    s.reference_list("w", "w#bits").topology(RECORD + b"\0", storage=128)
    s.ndu(ndu(0, [1], kind=NNR_PT_INT), [3]).raw(ndu(1, [1], kind=NNR_PT_RAW_FLOAT), [0.0])
    assert not broken(nnr.verify(s.data))
    assert broken(nnr.verify(s.data.replace(b"nnr_codec", b"another's"))) == {"nnef-names", "nnef-reference-list"}


@pytest.mark.parametrize("storage", [128, 200])
@pytest.mark.parametrize("flag", [0, 1])
def test_a_private_format_is_a_topology_or_not(storage: int, flag: int) -> None:
    s = start(topology_carriage_flag=flag).topology(b"anything", storage=storage)
    assert not nnr.verify(raw(s, "w").data).warnings
    known = nnr.verify(raw(start(topology_carriage_flag=flag).topology(b"anything", storage=2), "w").data)
    assert [warning.requirement for warning in known.warnings] == ["topology-carriage"] * (1 - flag)


def test_side_information_of_another_version() -> None:
    """The model is unknown, but the units are still checked."""
    found = nnr.verify(recorded(RECORD.replace(b":1,", b":2,")).data)
    assert [(violation.unit, violation.requirement) for violation in found.violations] == [
        (3, "side-information"),
        (5, "nnef-names"),
    ]
    assert [tensor.name for tensor in found.tensors] == ["w", "w#bits"]


def test_tensors_come_in_the_order_of_the_model() -> None:
    record = b'{"nnr_codec":1,"tensors":{"e":{"index":1,"shape":[0],"type":"bool"},"z":{"index":0,"same_as":"b"}}}'
    s = raw(raw(start().topology(record + b"\0", storage=128), "v"), "b")
    found = nnr.verify(s.data)
    assert [tensor.name for tensor in found.tensors] == list(nnr.decode(s.data)) == ["z", "e", "v", "b"]


def test_what_side_information_may_have_said_is_not_missed() -> None:
    s = start(mps_topology_indexed_reference_flag=1).reference_list("v", "w")
    s.topology(b'{"nnr_codec":1,"tensors":{"w":{"same_as":"v"}}}\0', storage=128)
    found = nnr.verify(s.raw(ndu(0, [1], kind=NNR_PT_RAW_FLOAT), [0.0]).data)
    assert [violation.element for violation in found.violations] == ['tensors["w"].index']
    assert not found.warnings


def test_types_that_cannot_be_checked_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    record = b'{"nnr_codec":1,"tensors":{"e":{"index":9,"shape":[0],"type":"int4"},"w":{"type":"bfloat16"}}}'
    data = raw(raw(start().topology(record + b"\0", storage=128), "w"), "v").data
    assert [tensor.name for tensor in nnr.verify(data).tensors] == ["w", "v", "e"]
    dtypes._dtype.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    found = nnr.verify(data)
    monkeypatch.undo()
    dtypes._dtype.cache_clear()
    assert not found.violations and [tensor.name for tensor in found.tensors] == ["v"]
    assert "unit 3 (NNR_NDU 'w') is not checked any further: numpy does not support bfloat16" in found.notes[1]
    assert "not all tensors are checked: numpy does not support int4" in found.notes[2]


# ------------------------------------------------------------------------------------------------ several at once
def test_all_violations_are_reported() -> None:
    s = start(nnr_reserved_zero_2bits=2)
    s = raw(raw(raw(s, "a"), "a"), "b", data_format=0)
    s.ndu(ndu("c", [2], kind=NNR_PT_INT), payload=b"\0\0")
    raw(s, "d", [3])
    found = nnr.verify(s.data)
    assert [(violation.unit, violation.requirement) for violation in found.violations] == [
        (1, "reserved-zero"),
        (3, "unique-ids"),
        (4, "data-format-kind"),
        (5, "payload-complete"),
    ]
    assert [tensor.name for tensor in found.tensors] == ["a", "d"]
    assert found.units == 7


def swapped(s: Bitstream, name: str, old: bytes, new: bytes) -> Bitstream:
    """Return a tensor whose unit has other bytes."""
    s = raw(s, name)
    s.units[-1] = s.units[-1].replace(old, new)
    return s


def in_aggregate(s: Bitstream, name: str) -> Bitstream:
    """Return two tensors in an aggregate of a reserved type."""
    first = len(s.units)
    return raw(raw(s, name), f"{name}2").aggregate(first, kind=2)


#: Units that break a rule, each with its own name.
FRAGMENTS: dict[str, Callable[[Bitstream, str], Bitstream]] = {
    "reserved-zero": lambda s, name: s.lps(nnr_reserved_zero_1_bit=1),
    "unit-type": lambda s, name: s.add(b"\x00\x03\x1e"),
    "string": lambda s, name: swapped(s, name, name.encode(), b"\xff"),
    "unique-ids": lambda s, name: raw(raw(s, name), name),
    "partial-sequence": lambda s, name: s.part(ndu(name, [1]), 3, b"").part(ndu(name, [1]), 1, b""),
    "aggregate-type": in_aggregate,
    "data-format-kind": lambda s, name: raw(s, name, data_format=0),
    "tensor-dimensions": lambda s, name: s.ndu(ndu(name, [0], kind=NNR_PT_INT), payload=b""),
    "payload-complete": lambda s, name: s.ndu(ndu(name, [2], kind=NNR_PT_INT), payload=b"\0\0"),
    "raw-size": lambda s, name: s.ndu(ndu(name, [2], kind=NNR_PT_RAW_FLOAT), payload=bytes(7)),
}


@pytest.mark.parametrize("first", FRAGMENTS)
def test_each_of_several_violations_is_reported_once(first: str) -> None:
    for second in FRAGMENTS:
        for third in FRAGMENTS:
            s, names = start(), (first, second, third)
            for name, requirement in zip("xyz", names, strict=True):
                s = FRAGMENTS[requirement](s, name)
            found = nnr.verify(raw(s, "last").data)
            assert [violation.requirement for violation in found.violations] == list(names)
            assert not found.warnings and found.tensors[-1].name == "last"


def test_layers_with_equal_payloads_are_distinguished() -> None:
    dimensions = {"w": [1]}
    s = raw(Bitstream(dimensions).str_().mps().lps(), "v").lps(alone=1)
    s.raw(ndu("w", None, kind=NNR_PT_RAW_FLOAT), [0.0])
    found = nnr.verify(s.data, topology_dimensions=dimensions)
    assert [(violation.unit, violation.requirement) for violation in found.violations] == [(4, "lps-self-contained")]


def test_two_violations_of_one_unit() -> None:
    """Findings of header checks do not hide findings of decoding, nor the reverse."""
    header = update_ndu("w", [2], 1, kind=NNR_PT_INT)
    data = start(mps_parent_signalling_enabled_flag=1).ndu(header, payload=b"\0\0").data
    found = nnr.verify(data, inputs=[base("v")])
    assert [violation.requirement for violation in found.violations] == ["parent-tensor", "payload-complete"]


@pytest.mark.parametrize("keep", [0, 1])
def test_without_parameter_set_there_is_one_violation(keep: int) -> None:
    """The parameter set is missing or unreadable."""
    units = raw(raw(raw(start(), "a"), "b"), "c").units
    units[1:2] = [units[1][:-1] + b"\0"][:keep]
    found = nnr.verify(b"".join(units))
    assert [violation.requirement for violation in found.violations] == [["mps-first", "byte-alignment"][keep]]
    assert found.notes[0] == f"{2 + keep} NNR_NDU cannot be read without the NNR_MPS"
    assert all(note.startswith("because of an earlier violation, ") for note in found.notes[1:])


def test_what_an_aggregate_lacks_beyond_a_limit_or_damage_is_not_counted() -> None:
    s = raw(raw(raw(start(), "a"), "b"), "c").aggregate(2)
    assert broken(nnr.verify(s.data, limits=nnr.Limits(max_units=4))) == {"limits"}
    damaged = s.data[:-13] + b"\x7f\xff" + s.data[-11:]
    assert broken(nnr.verify(damaged)) == {"unit-size"}


def test_units_after_a_damaged_one_are_read() -> None:
    units = raw(raw(raw(start(), "a"), "b"), "c").units
    damaged = bytearray(units[3])
    damaged[4] = 0xFF  # the first byte of the id
    found = nnr.verify(b"".join([*units[:3], bytes(damaged), units[4]]))
    assert [(violation.unit, violation.requirement) for violation in found.violations] == [(3, "string")]
    assert found.violations[0].bit == 32 and found.violations[0].label == "unit 3 (NNR_NDU)"
    assert [tensor.name for tensor in found.tensors] == ["a", "c"]


@pytest.mark.parametrize("inside", [b"\x00\x00\x16", b"\x7f\xff\x16\x10"])
def test_after_an_impossible_size_the_aggregate_ends(inside: bytes) -> None:
    s = raw(start(), "a")
    s.units[2:] = [s.units[2], inside]
    head, body = s.units[:2], b"".join(s.units[2:])
    aggregate = b"\x1a\x00\x00\x00\x00\x00\x00" + body
    data = b"".join(head) + (len(aggregate) + 2).to_bytes(2, "big") + aggregate
    data += raw(start(), "z").units[2]
    found = nnr.verify(data)
    assert [(violation.unit, violation.requirement) for violation in found.violations] == [(4, "unit-size")]
    assert [tensor.name for tensor in found.tensors] == ["a", "z"]


def test_what_follows_from_a_violation_is_none() -> None:
    """H of a rejected G is recorded; the tensors after it are read."""
    s = start(mps_quantization_method_flags=1, mps_qp_density=2, mps_quantization_parameter=0)
    elements = {"compressed_parameter_types": 1, "decomposition_rank": 1, "g_number_of_rows": 2}
    s.ndu(ndu("w", [2, 2], data_format=0, **elements), payload=b"\0\0")
    s.ndu(ndu("w", [2, 2], **elements), [[1, 2]])
    raw(s, "v")
    found = nnr.verify(s.data)
    assert [(violation.unit, violation.requirement) for violation in found.violations] == [(2, "data-format-kind")]
    assert found.notes == [
        "because of an earlier violation, unit 3 (NNR_NDU 'w'): H of 'w' has no readable G "
        "(decomposition-pair, 6.4.3.7)"
    ]
    assert [tensor.name for tensor in found.tensors] == ["v"]


def test_another_bitstream_is_checked_as_well() -> None:
    second = raw(start(nnr_reserved_zero_2bits=1), "w").data
    found = nnr.verify(raw(start(), "w").data + second, limits=nnr.Limits(allow_trailing=True))
    assert [(violation.unit, violation.requirement) for violation in found.violations] == [(4, "reserved-zero")]
    assert found.notes == ["unit 3 (NNR_STR) begins another bitstream"]
    assert [tensor.name for tensor in found.tensors] == ["w", "w"]


def test_an_empty_file() -> None:
    found = nnr.verify(b"")
    assert [str(violation) for violation in found.violations] == [
        "bitstream: the bitstream has no units (start-unit, 6.2.3)"
    ]


def test_limits_end_the_search_for_units() -> None:
    data = start().data + 1000 * b"\x00\x03\x82"
    found = nnr.verify(data, limits=replace(nnr.Limits(), max_units=10))
    assert broken(found) == {"limits"} and found.units == 11


def test_what_precedes_a_self_contained_unit_is_not_read_again() -> None:
    """Reading a list for each of many parameter sets would take hours."""
    s = start()
    for _ in range(30):
        s.reference_list("a", "b")
    for k in range(30):
        raw(s.lps(alone=1), str(k))
    assert not nnr.verify(s.data, limits=nnr.Limits(max_units=92, max_names=150)).violations


@pytest.mark.parametrize("density", [2, 3])
def test_a_self_contained_aggregate_takes_no_step_from_a_layer_before_it(density: int) -> None:
    s = Bitstream().str_().mps(3, -8).lps(density, -8)
    data = s.ndu(ndu("a", [1]), [1]).ndu(ndu("b", [1]), [1]).aggregate(3, kind=NNR_AGG_SLF).data
    assert nnr.decode(data)["a"] == step_size(-8, density)
    assert broken(nnr.verify(data)) == ({"aggregate-self-contained"} if density == 2 else set())


def test_integers_need_no_step_of_a_layer() -> None:
    s = start().lps(3, -8)
    s.ndu(ndu("a", [1], kind=NNR_PT_INT), [1]).ndu(ndu("b", [1], kind=NNR_PT_INT), [1])
    assert not nnr.verify(s.aggregate(3, kind=NNR_AGG_SLF).data).violations


def test_a_layer_inside_of_a_self_contained_aggregate_is_no_more_than_it_holds() -> None:
    s = start().lps(3, -8).ndu(ndu("a", [1]), [1]).aggregate(2, kind=NNR_AGG_SLF)
    assert not nnr.verify(s.data).violations


@pytest.mark.parametrize("counter", [0, 1, 3, 255])
def test_the_counter_of_an_independently_decodable_unit_is_noted(counter: int) -> None:
    header = NnrUnitHeader(
        nnr_unit_type=NNR_NDU,
        partial_data_counter_present_flag=1,
        partial_data_counter=counter,
        detail=ndu("w", [1], kind=NNR_PT_RAW_FLOAT),
    )
    data = start().unit(header, bytes(4)).data
    assert nnr.decode(data)["w"].tolist() == [0]
    found = nnr.verify(data)
    assert not found.violations and not found.warnings
    assert found.notes == [
        "unit 2 (NNR_NDU) is independently decodable: its partial_data_counter has no meaning and is ignored"
    ]


# ------------------------------------------------------------------------------------------------ G and H
PAIR: dict[str, Any] = {"compressed_parameter_types": 1, "decomposition_rank": 1, "g_number_of_rows": 2}


@pytest.mark.parametrize("between", ["NNR_LPS", "NNR_LPS, self-contained", "NNR_UNSP"])
def test_a_unit_between_g_and_h_is_the_only_violation(between: str) -> None:
    s = Bitstream().str_().mps(3).ndu(ndu("w", [2, 2], **PAIR), [[1], [2]])
    between, _, self_contained = between.partition(", ")
    s = s.lps(3, alone=int(bool(self_contained))) if between == "NNR_LPS" else s.add(b"\x00\x03\x82")
    data = s.ndu(ndu("w", [2, 2], **PAIR), [[3, 4]]).data
    with pytest.raises(nnr.ElementError, match=rf"unit 3 \({between}\).*H of 'w' is expected after G"):
        nnr.decode(data)
    found = nnr.verify(data)
    assert broken(found) == {"decomposition-pair"} and [violation.unit for violation in found.violations] == [3]
    assert [tensor.name for tensor in found.tensors] == ["w"]


def test_an_aggregate_that_begins_with_h_may_follow_g() -> None:
    s = Bitstream().str_().mps(3).ndu(ndu("w", [2, 2], **PAIR), [[1], [2]])
    s.ndu(ndu("w", [2, 2], **PAIR), [[3, 4]]).ndu(ndu("v", [1]), [1]).aggregate(3)
    assert not nnr.verify(s.data).violations


@pytest.mark.parametrize("given", ["header of G", "topology, by the name of G"])
def test_h_without_dimensions_has_those_of_g(given: str) -> None:
    dims = [2, 2] if given == "header of G" else None
    known = {} if dims else {"w": [2, 2]}
    s = Bitstream(known).str_().mps(3)
    s.ndu(ndu("w", dims, **PAIR), [[1], [2]]).ndu(ndu("w_H", None, **PAIR), [[3, 4]])
    assert nnr.decode(s.data, topology_dimensions=known)["w"].tolist() == [[3, 4], [6, 8]]
    found = nnr.verify(s.data, topology_dimensions=known)
    assert not found.violations and not found.warnings


# ------------------------------------------------------------------------------------------------ updates
def chain(*depths: int) -> list[bytes]:
    """Return updates of one tensor."""
    made = []
    for depth in depths:
        s = start(mps_parent_signalling_enabled_flag=1)
        made.append(s.ndu(update_ndu("w", [1], depth, kind=NNR_PT_INT), [depth]).data)
    return made


def test_a_sequence_of_updates() -> None:
    first, second = chain(1, 2)
    assert not nnr.verify(first, inputs=[base()]).violations
    found = nnr.verify(second, inputs=[base(), first])
    assert not found.violations and not found.notes


def test_an_update_alone() -> None:
    found = nnr.verify(*chain(1))
    assert not found.violations
    assert found.notes == ["the bitstream is an update, but the preceding bitstreams were not given"]


def test_a_broken_bitstream_before_it_is_noted() -> None:
    first, second = chain(1, 2)
    found = nnr.verify(second, inputs=[base()[:-1], first])
    assert not found.violations
    assert found.notes[0].startswith("earlier bitstream 1 has violations, beginning with unit 2 (NNR_NDU)")


# ------------------------------------------------------------------------------------------------ the report
def test_a_report_is_plain_data() -> None:
    found = asdict(nnr.verify(raw(start(nnr_reserved_zero_2bits=1), "w").data))
    parsed = json.loads(json.dumps(found))
    assert parsed["violations"] == [
        {
            "requirement": "reserved-zero",
            "clause": "6.1.4",
            "message": "nnr_reserved_zero_2bits is 1",
            "unit": 1,
            "label": "unit 1 (NNR_MPS)",
            "element": "nnr_reserved_zero_2bits",
            "bit": 38,
        }
    ]


def test_files_and_open_files(tmp_path: Path) -> None:
    path = tmp_path / "w.nnr"
    path.write_bytes(raw(start(), "w").data)
    with path.open("rb") as file:
        assert nnr.verify(path) == nnr.verify(file) == nnr.verify(path.read_bytes())
    with pytest.raises(FileNotFoundError):
        nnr.verify(tmp_path / "none.nnr")


@pytest.mark.slow
def test_agrees_with_the_decoder_about_mutants() -> None:
    """The result is always a report, and every bitstream that the decoder rejects has a violation."""
    seeds = [case.streams[-1].path.read_bytes() for case in CASES if case.group not in ("nncodec-v1", "nncodec-v2")]
    chance = random.Random(7)
    limits = replace(nnr.Limits.strict(), max_tensor_elements=1 << 16, max_total_bytes=1 << 20)
    for _ in range(1500):
        data = bytearray(chance.choice(seeds) or b"\0")
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        found = nnr.verify(bytes(data), limits=limits)
        try:
            with warnings.catch_warnings(action="ignore"):
                nnr.decode(bytes(data), limits=limits, allow_missing=True)
        except nnr.NnrError as error:
            assert found.violations, error


def test_partial_data_is_hashed_as_a_whole() -> None:
    header = update_ndu("w", [4], 0, kind=NNR_PT_RAW_FLOAT)
    first = start().ndu(header, payload=bytes(16), pieces=2).data
    digest = int.from_bytes(hashlib.sha256(bytes(16)).digest(), "big")
    elements = {"parent_node_id_type": 1, "parent_node_payload_sha256": digest}
    update = update_ndu("w", [4], 1, kind=NNR_PT_INT, **elements)
    del update.parent_device_id
    second = start(mps_parent_signalling_enabled_flag=1).ndu(update, [1, 2, 3, 4]).data
    assert not nnr.verify(second, inputs=[first]).violations
    assert broken(nnr.verify(second, inputs=[base()])) == {"parent-hash"}
