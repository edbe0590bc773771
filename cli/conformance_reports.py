"""Reports of ``nnr conformance`` as JSON (docs/reference/conformance.schema.json), JUnit XML and Markdown."""

from __future__ import annotations

import json
import platform
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from nnr_codec import __version__
from nnr_codec.conformance.suite import Suite
from nnr_codec.conformance.vectors import KINDS, Outcome, Result

from .errors import one_line

#: Format version, increased when a field of the JSON changes its meaning.
FORMAT = 1

_FAILURES = {Outcome.FAIL: "failure", Outcome.XPASS: "failure", Outcome.SKIP: "skipped"}  # other outcomes are errors


@dataclass(frozen=True)
class Run:
    """Data of a report.

    Parameters
    ----------
    results : sequence of Result
    seconds : float
    suite : Suite or None
        Manifest of the vectors, if there is one.
    command : str or None
        Command of another decoder.
    """

    results: Sequence[Result]
    seconds: float
    suite: Suite | None
    command: str | None

    @property
    def decoder(self) -> str:
        """Name of the decoder."""
        return self.command or f"nnr_codec {__version__}"


def as_json(run: Run) -> bytes:
    """Return an object with an entry for each case."""
    suite = run.suite
    report = {
        "format": FORMAT,
        "tool": "nnr_codec",
        "version": __version__,
        "platform": platform.platform(),
        "decoder": run.command,
        "suite": suite and {"name": suite.name, "revision": suite.revision, "sha256": suite.sha256},
        "seconds": round(run.seconds, 3),
        "fine": sum(result.is_fine for result in run.results),
        "counts": {kind: dict(found) for kind, found in _counts(run.results).items()},
        "cases": [
            {
                "id": result.case.id,
                "rev": result.case.rev,
                "group": result.case.group,
                "class": result.case.kind,
                "title": result.case.title,
                "clauses": result.case.clauses,
                "features": result.case.features,
                "outcome": result.outcome,
                "ms": round(1000 * result.seconds, 1),
                "rss": result.peak,
                "detail": result.detail,
            }
            for result in run.results
        ],
    }
    return json.dumps(report, indent=1).encode() + b"\n"


def _counts(results: Iterable[Result]) -> dict[str, Counter[str]]:
    """Count the outcomes of each kind of case."""
    counts = {kind: Counter[str]() for kind in KINDS}
    for result in results:
        counts[result.case.kind][result.outcome] += 1
    return {kind: found for kind, found in counts.items() if found}


def as_junit(run: Run) -> bytes:
    """Return a suite for each group; CRASH, ERROR, TIMEOUT and OOM are errors, FAIL and XPASS are failures."""
    suites = ElementTree.Element("testsuites", name="nnr conformance", time=f"{run.seconds:.3f}")
    for group in dict.fromkeys(result.case.group for result in run.results):
        mine = [result for result in run.results if result.case.group == group]
        tags = [_FAILURES.get(result.outcome, "error") for result in mine if result.outcome != Outcome.PASS]
        counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
        attributes = {
            "name": one_line(group),
            "tests": str(len(mine)),
            "time": f"{sum(result.seconds for result in mine):.3f}",
            **{name: str(tags.count(tag)) for name, tag in counts.items()},
        }
        suite = ElementTree.SubElement(suites, "testsuite", attributes)
        for result in mine:
            _junit_case(suite, result)
    return bytes(ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)) + b"\n"


def _junit_case(suite: ElementTree.Element, result: Result) -> None:
    case = result.case
    element = ElementTree.SubElement(
        suite,
        "testcase",
        name=one_line(case.id),
        classname=f"nnr.{one_line(case.group)}",
        time=f"{result.seconds:.3f}",
    )
    facts = [
        ("title", case.title),
        ("class", case.kind),
        *(("clause", clause) for clause in case.clauses),
        *(("feature", feature) for feature in case.features),
        *(("requirement", requirement) for requirement in case.requirements),
    ]
    if result.peak is not None:
        facts.append(("rss", str(result.peak)))
    properties = ElementTree.SubElement(element, "properties")
    for name, value in facts:
        ElementTree.SubElement(properties, "property", name=name, value=one_line(value))
    if result.outcome != Outcome.PASS:
        tag = _FAILURES.get(result.outcome, "error")
        ElementTree.SubElement(element, tag, type=result.outcome, message=one_line(result.detail))


def as_markdown(run: Run) -> bytes:
    """Return tables of the counts, by class and by group, and of unexpected or skipped cases."""
    suite = run.suite
    lines = [f"# Conformance of {_plain(run.decoder)}", ""]
    if suite:
        lines += [f"Vectors: {_plain(suite.name)}, revision {suite.revision} (`{suite.sha256}`).", ""]
    outcomes = [outcome for outcome in Outcome if any(result.outcome == outcome for result in run.results)]
    lines += _table(
        ["class", "cases", *outcomes],
        [
            [kind, str(found.total()), *(str(found[outcome] or "") for outcome in outcomes)]
            for kind, found in _counts(run.results).items()
        ],
    )
    groups: dict[str, Counter[str]] = {}
    for result in run.results:
        groups.setdefault(result.case.group, Counter())[result.outcome] += 1
    lines += _table(
        ["group", "cases", *outcomes],
        [
            [_plain(group), str(found.total()), *(str(found[outcome] or "") for outcome in outcomes)]
            for group, found in groups.items()
        ],
    )
    for heading, wanted in (
        ("Not as expected", [result for result in run.results if not result.is_fine]),
        ("Skipped", [result for result in run.results if result.outcome == Outcome.SKIP]),
    ):
        if wanted:
            rows = [[r.outcome, _plain(r.case.id), _plain(r.case.title), _plain(r.detail)] for r in wanted]
            lines += [f"## {heading}", "", *_table(["outcome", "case", "title", "details"], rows)]
    lines.append(f"nnr_codec {__version__}, {_plain(platform.platform())}, {run.seconds:.1f} s.")
    return "\n".join([*lines, ""]).encode()


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)] + [""]


def _plain(text: str) -> str:
    """Return text in one line, escaped for Markdown and HTML."""
    return re.sub(r"([\\`*_\[\]<>|&#~])", r"\\\1", one_line(text))


def as_fluster(suite: dict[str, Any]) -> bytes:
    """Return a test suite for fluster."""
    return json.dumps(suite, indent=4).encode() + b"\n"
