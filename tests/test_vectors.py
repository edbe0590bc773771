"""The project's vectors in bitstream_vectors, one by one; generators reproduce them."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import nnr_codec as nnr
from nnr_codec import errors
from nnr_codec.conformance.cases import Case, Stream, load_cases
from nnr_codec.conformance.digest import TensorDigest
from nnr_codec.model import Array
from tools.coverage import Matrix

from .arrays import assert_identical
from .shared import every
from .vectors import manifest, schema
from .vectors.arithmetic import assemble
from .vectors.case import GROUPS, digest
from .vectors.case import Case as Made
from .vectors.cases import CASES
from .vectors.few import FEW, ON_DISK, cases, for_each
from .vectors.interop import case_files
from .vectors.make import ROOT, files

INTEROP = dict(case_files())

#: Acceptable cases that this decoder rejects.
REFUSED = {
    "NNR-ACC-013": "has a parent of another parent_node_payload_sha256",
    "NNR-ACC-028": "is update 2 .* but the last known one has depth 2",
    "NNR-ACC-029": "has a parent of another parent_node_payload_sha256",
    "NNR-ACC-030": "is repeated or out of order: update 4 was decoded",
    "NNR-ACC-031": "bitstream 4 of device_id 3 continues number 3, .* the last decoded one is 2 ",
    "NNR-ACC-032": "bitstream 4 of device_id 3 is repeated",
    "NNR-ACC-240": "describe an empty tensor",
}


#: Tied tensors by their targets.
TIES = {"NNR-SID-071": {"a": "plain", "b": "coded", "c": "coded", "z": "none"}}
TIES |= {"NNR-SID-304": {"z": "w"}, "NNR-SID-408": {"z": "w"}, "NNR-SID-509": {"tied": "w"}}

#: Cases that are invalid as a whole, although each present tensor can be decoded.
TOGETHER = {"NNR-SID-283", "NNR-SID-284", "NNR-SID-285", "NNR-SID-286", "NNR-SID-292", "NNR-SID-347"}
TOGETHER |= {"NNR-SID-464", "NNR-SID-465", "NNR-SID-466"}
TOGETHER |= {"NNR-NEG-188", "NNR-NEG-189", "NNR-NEG-192", "NNR-NEG-193", "NNR-NEG-908"}


def facts(case: Case) -> dict[str, Any]:
    """Return the content of the case file."""
    parsed: dict[str, Any] = json.loads(case.file.read_text("utf-8"))
    return parsed


def options(case: Case) -> dict[str, Any]:
    """Return the decoder's arguments besides the bitstream."""
    return {"limits": case.limits, "topology_dimensions": case.topology_dimensions, "topology": case.topology}


def assert_tensors(got: Mapping[str, Array], want: Sequence[TensorDigest] | None, stream: Stream) -> None:
    """Check names, types, shapes, digests and, bit by bit, values."""
    assert want is not None
    assert sorted(got) == sorted(tensor.name for tensor in want)
    for tensor in want:
        values, expected = got[tensor.name], stream.values(tensor)
        assert (values.dtype.name, values.shape) == (tensor.dtype, tensor.shape), tensor.name
        if expected is not None:
            assert digest(expected) == tensor.sha256, "the digest does not match the expected values"
            assert_identical(values, expected, tensor.name)
        assert digest(values) == tensor.sha256, tensor.name


def present(update: nnr.Update) -> dict[str, Array]:
    """Return the tensors of the bitstream; the others are zeros."""
    assert not any(update[name].any() for name in update.left_out)
    return {name: tensor for name, tensor in update.items() if name not in update.left_out}


def assert_topology(model: nnr.Model, expected: Mapping[str, Any]) -> None:
    """Check that the texts are the expected ones, or absent."""
    assert (model.topology is not None) == ("topology" in expected)
    if model.topology:
        assert model.topology.format == expected["topology"].get("format", "nnef")
        texts = {"topology": model.topology.data, "quantization": model.topology.quantization}
        for key, text in texts.items():
            assert (text is not None) == (key in expected)
            if text is not None:
                assert hashlib.sha256(text).hexdigest() == expected[key]["sha256"]


@pytest.mark.filterwarnings("ignore:pruning information is not applied")
@for_each(cases("valid", "acceptable"), "medium")
def test_decodes(case: Case) -> None:
    """Bitstreams without predecessors are also decoded alone, and so are the Rec* variables of 7.3."""
    decoder = nnr.UpdateDecoder(**options(case))
    for stream in case.streams:
        if case.id in REFUSED and stream is case.streams[-1]:
            with pytest.raises(nnr.NnrError, match=REFUSED[case.id]):
                decoder.decode(stream.path.read_bytes())
            return
        assert_tensors(present(decoder.decode(stream.path.read_bytes())), stream.tensors, stream)
    if len(case.streams) == 1:
        data = stream.path.read_bytes()
        model = nnr.decode(data, **options(case))
        assert_tensors(model.tensors, stream.tensors, stream)
        assert_topology(model, facts(case)["expected"])
        assert list(model) == list(nnr.open(data, **options(case)))
        if case.group == "sideinfo":
            assert list(model) == [tensor.name for tensor in stream.tensors or ()]
            assert model.aliases == TIES.get(case.id, {})
        if stream.raw is not None:
            assert_tensors(nnr.decode(data, raw=True, **options(case)).tensors, stream.raw, stream)


@for_each(cases("invalid"), "medium")
def test_is_refused(case: Case) -> None:
    decoder = nnr.UpdateDecoder(**options(case))
    *before, last = case.streams
    for stream in before:
        assert_tensors(present(decoder.decode(stream.path.read_bytes())), stream.tensors, stream)
    data, error = last.path.read_bytes(), getattr(errors, facts(case)["error"]["class"])
    whole = partial(nnr.decode, **options(case))
    with pytest.raises(error) as caught:  # an update may omit tensors, and is checked against no graph
        (whole if error in (errors.IncompleteError, errors.FormatError) else decoder.decode)(data)
    named = re.search(r"\bunit (\d+)\b", str(caught.value))
    assert (int(named[1]) if named else None) == facts(case)["error"]["unit"], str(caught.value)
    if not before:
        with pytest.raises(error):
            whole(data)
        if case.id not in TOGETHER:
            with pytest.raises(error):
                dict(nnr.open(data, **options(case)))


@for_each(cases("invalid", "acceptable"), "medium")
def test_requirements(case: Case) -> None:
    """`nnr verify` finds the rules that the generator declares as broken; missing information is a warning."""
    *before, last = (stream.path.read_bytes() for stream in case.streams)
    report = nnr.verify(last, inputs=before, **options(case))
    is_incomplete = case.error is not None and case.error[0] is errors.IncompleteError
    found = [*report.violations, *(report.warnings if is_incomplete else ())]
    assert {violation.requirement for violation in found} == set(facts(case).get("requirements", ()))


@for_each(cases("valid", "acceptable"), "medium")
def test_units(case: Case) -> None:
    """The listed units are the units that the library finds."""
    described = facts(case)
    for stream in (*described.get("inputs", []), described):
        data = (case.file.parent / stream["stream"]["file"]).read_bytes()
        found = nnr.inspect(data, topology_dimensions=case.topology_dimensions, topology=case.topology)
        listed = [tuple(unit[1:]) for unit in stream["units"]]
        assert [(unit.offset, unit.size) for unit in found] == listed


@pytest.mark.slow
def test_the_few_reach_nine_tenths_of_the_syntax() -> None:
    """The share is relative to the lines and branches that any vector reaches."""
    reached = [{case.id for case in line.cases} for line in Matrix(load_cases(ROOT)).lines if line.cases]
    assert len([ids for ids in reached if ids & FEW]) >= 0.9 * len(reached)
    assert set(ON_DISK) > FEW


def test_ids_are_folders() -> None:
    """Each id occurs once, in the folder of its group, which has no other content."""
    on_disk = [path for group in GROUPS.values() for path in (ROOT / group).iterdir()]
    assert sorted(path.name for path in on_disk) == sorted(CASES) == sorted(ON_DISK)
    assert all(ROOT / CASES[path.name].folder == path for path in on_disk)


@for_each(cases("valid", "acceptable", "invalid"), "medium")
def test_is_consistent(case: Case) -> None:
    """case.json agrees with the files beside it."""
    described, folder = facts(case), case.file.parent
    assert case.id == folder.name
    assert described["origin"] == "nnr_codec"
    assert (described["license"], described["spec"]) == ("CC0-1.0", "ISO/IEC 15938-17:2024")
    assert described["clauses"]
    assert (case.result == "invalid") == ("error" in described) == ("tensors" not in described.get("expected", {}))
    assert (case.group == "sideinfo" and case.result != "acceptable") == ("extension" in described)
    assert ("bits" in described) == ("hand" in described.get("features", []))
    if "bits" in described:
        assert assemble(*described["bits"]) == case.streams[-1].path.read_bytes()
    present = {"case.json", *(["expected.npz"] if '"npz":' in case.file.read_text("utf-8") else [])}
    if case.topology_file:
        present.add(case.topology_file.name)
        assert case.topology_file.stat().st_size == described["topology"]["bytes"] < 8192
    for stream, listed in zip(case.streams, (*described.get("inputs", []), described), strict=True):
        data = stream.path.read_bytes()
        present.add(stream.path.name)
        assert len(data) == listed["stream"]["bytes"] < 8192
        assert hashlib.sha256(data).hexdigest() == stream.sha256
        assert all(offset + size <= len(data) for _, offset, size in listed.get("units", []))
    assert {path.name for path in folder.iterdir()} == present


@for_each({case.folder: case for case in CASES.values()}, "medium")
def test_is_reproduced(case: Made) -> None:
    """`python -m tests.vectors.make` writes the existing files, byte by byte."""
    made = files(case)
    assert {path.name: path.read_bytes() for path in (ROOT / case.folder).iterdir()} == made


# ------------------------------------------------------------------------------------------------ the folder as a whole
@pytest.mark.medium
def test_the_manifest_names_every_file() -> None:
    """`python -m tests.vectors.make` writes it; the suite has the digest of the list that ``sha256sum`` prints."""
    text = (ROOT / manifest.FILE).read_bytes()
    assert text == manifest.manifest(ROOT)
    listed = json.loads(text)
    named = dict(listed["files"])
    for group, described in listed["groups"].items():
        for folder, contents in described["files"].items():
            named |= {"/".join(filter(None, (group, folder, name))): sha256 for name, sha256 in contents.items()}
    on_disk = {path.relative_to(ROOT).as_posix(): path for path in ROOT.rglob("*") if path.is_file()}
    assert named.keys() == on_disk.keys() - {manifest.FILE}
    assert all(hashlib.sha256(on_disk[name].read_bytes()).hexdigest() == sha256 for name, sha256 in named.items())
    lines = "".join(f"{named[name]}  {name}\n" for name in sorted(named))
    assert listed["sha256"] == hashlib.sha256(lines.encode()).hexdigest()
    kinds = Counter(case.result for case in load_cases(ROOT))
    assert listed["counts"] == kinds


def test_the_folder_is_small() -> None:
    sizes = [path.stat().st_size for path in ROOT.rglob("*") if path.is_file()]
    assert max(sizes) <= 256 << 10 and sum(sizes) <= 5_000_000


@pytest.mark.medium
def test_every_case_file_follows_the_schema() -> None:
    on_disk = json.loads((ROOT / schema.FILE).read_text("utf-8"))
    assert on_disk == schema.SCHEMA
    Draft202012Validator.check_schema(on_disk)
    validator = Draft202012Validator(on_disk)
    for case in load_cases(ROOT)[:: every(10)]:
        validator.validate(facts(case))


@pytest.mark.parametrize(
    ("id_", "change"),
    [
        ("NNR-SYN-001", {"result": "good"}),
        ("NNR-SYN-001", {"stream": {"file": "../stream.nnr", "sha256": 64 * "0", "bytes": 1}}),
        ("NNR-SYN-001", {"error": {"class": "ElementError", "unit": 1}}),
        ("NNR-SYN-001", {"requirement": ["unit-size"]}),
        ("NNR-SYN-001", {"limits": {"max_unit": 1}}),
        ("NNR-SYN-014", {"expected": {}}),
        ("NNR-SYN-014", {"expected": {"tensors": [], "levels": [{"unit": 2, "shape": [1]}]}}),
        ("NNR-NEG-001", {"error": {"class": "KeyError", "unit": None}}),
        ("NNR-NEG-001", {"requirements": []}),
        ("NNR-NEG-001", {"expected": {"tensors": []}}),
    ],
)
def test_the_schema_refuses(id_: str, change: dict[str, Any]) -> None:
    validator = Draft202012Validator(schema.SCHEMA)
    assert validator.is_valid(facts(ON_DISK[id_]))
    assert not validator.is_valid(facts(ON_DISK[id_]) | change)


def test_all_of_it_is_in_the_public_domain() -> None:
    assert (ROOT / "LICENSE").read_text("utf-8").startswith("Creative Commons Legal Code\n\nCC0 1.0 Universal\n")


def test_interop_cases_are_reproduced() -> None:
    """`python -m tests.vectors.make` writes the existing files, and there are no other cases."""
    assert [path for path in INTEROP if path.read_bytes() != INTEROP[path]] == []


def test_every_interop_case_is_made() -> None:
    assert {case.file for case in load_cases(ROOT / "interop")} == set(INTEROP)
