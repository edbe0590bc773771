"""Results of NNCodec on all vectors: ``python -m tests.peer.record`` runs them (NNR_PEER names its interpreter).

The record is benchmarks/results/nncodec.jsonl: a summary line and one line for each case. docs/reference/conformance.md
is generated from it. Without ``--all``, only cases with changed bitstreams or expected results run again; ``--page``
writes only the page.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import nnr_codec as nnr
from nnr_codec.conformance.suite import Suite
from nnr_codec.conformance.vectors import KINDS, Case, Outcome, Result, load_cases, run, summary

from ..vectors.make import ROOT
from .disagreements import INVALID, VALID, Group, group_of

TOP = Path(__file__).resolve().parents[2]
RECORD, PAGE = TOP / "benchmarks" / "results" / "nncodec.jsonl", TOP / "docs" / "reference" / "conformance.md"
WRAPPER = TOP / "examples" / "decoders" / "nncodec2.py"

#: Time limit of a case in seconds; on a busy machine the start of a process takes most of it.
TIMEOUT = 120.0


def ask(python: str, cases: Sequence[Case], jobs: int = 1) -> list[Result]:
    """Run cases in NNCodec."""
    command = f"{shlex.quote(python)} {shlex.quote(str(WRAPPER))} {{input}} {{outdir}} {{inputs}}"
    return list(run(cases, ROOT, jobs=jobs, timeout=TIMEOUT, memory=1 << 30, command=command))


def reason(result: Result) -> str:
    """Return the detail of a result without common prefixes and paths."""
    detail = result.detail.removeprefix("rejected: ").removeprefix("exit code 1: ")
    detail = re.sub(r"^ERROR: In function .*? in \S+:\d+: ", "", detail)
    return re.sub(r"^\S+\.(nnr|nnc): ", "", detail)


def entry(result: Result) -> dict[str, Any]:
    """Return the line of a case."""
    case = result.case
    facts = {"id": case.id, "class": case.kind, "sha256": fingerprint(case), "outcome": str(result.outcome)}
    return facts if result.outcome == Outcome.PASS else facts | {"detail": reason(result)}


def fingerprint(case: Case) -> str:
    """Return a digest of the bitstreams and expected results of a case."""
    case = case.without_extension() if case.extension else case
    facts = [(stream.sha256, stream.tensors, stream.raw) for stream in case.streams]
    return hashlib.sha256(repr((case.result, case.topology_dimensions, facts)).encode()).hexdigest()[:16]


def own(cases: Sequence[Case]) -> dict[str, Any]:
    """Return results of nnr_codec, which are the same with one process and with two."""
    (both,) = {summary(run(cases, ROOT, jobs=jobs)) for jobs in (1, 2)}
    return {"summary": both, "core": len(nnr.selftest().results)}


def record(python: str, known: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all lines; unchanged cases keep their line from ``known``."""
    cases, suite = load_cases(ROOT), Suite.read(ROOT)
    assert suite
    lines = {line["id"]: line for line in known}
    new = [case for case in cases if fingerprint(case) != lines.get(case.id, {}).get("sha256")]
    lines |= {result.case.id: entry(result) for result in ask(python, new, jobs=2)}
    head = {
        "suite": {"revision": suite.revision, "sha256": suite.sha256, "cases": len(cases)},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "nnr_codec": own(cases),
    }
    return [head, *(lines[case.id] for case in cases)]


# ------------------------------------------------------------------------------------------------ page
def read() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the summary line and the lines of the cases."""
    head, *lines = map(json.loads, RECORD.read_text("utf-8").splitlines())
    return head, lines


def group(line: dict[str, Any]) -> Group | None:
    """Return the group of a case with an unexpected result."""
    return group_of(line["id"], line["detail"], is_valid=line["class"] != "invalid")


def page(head: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    """Return the text of docs/reference/conformance.md."""
    suite, ours = head["suite"], head["nnr_codec"]
    wrong = [line for line in lines if line["outcome"] not in ("PASS", "SKIP")]
    skipped = [line for line in lines if line["outcome"] == Outcome.SKIP]
    grouped: dict[int, list[dict[str, Any]]] = {}
    for line in wrong:
        grouped.setdefault(id(group(line)), []).append(line)
    text = [
        INTRODUCTION.format(
            cases=suite["cases"], revision=suite["revision"], sha256=suite["sha256"], summary=ours["summary"],
            core=ours["core"], python=head["python"], platform=head["platform"],
        ),
        *_table(lines),
        OUTCOMES.format(wrong=len(wrong)),
        "### Valid bitstreams",
        "",
        *_sections(VALID, grouped),
        "### Invalid bitstreams",
        "",
        *_sections(INVALID, grouped),
        "### Skipped cases",
        "",
        *_reasons(skipped),
    ]  # fmt: skip
    return "\n".join(text)


def _table(lines: list[dict[str, Any]]) -> list[str]:
    counts = {kind: Counter(line["outcome"] for line in lines if line["class"] == kind) for kind in KINDS}
    outcomes = [str(outcome) for outcome in Outcome if any(found[outcome] for found in counts.values())]
    rows = [["class", "cases", *outcomes], ["---", *["---:"] * (len(outcomes) + 1)]]
    for kind, found in counts.items():
        rows.append([kind, str(sum(found.values())), *(str(found[outcome] or "") for outcome in outcomes)])
    return [f"| {' | '.join(row)} |" for row in rows]


def _sections(groups: Iterable[Group], grouped: dict[int, list[dict[str, Any]]]) -> list[str]:
    lines = []
    for each in groups:
        mine = grouped.get(id(each), [])
        outcomes = Counter(line["outcome"] for line in mine)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        errata = f"; errata {each.errata}" if each.errata else ""
        lines += [f"**{each.title}** ({counts}; {each.clauses}{errata}).", each.why, ""]
        lines += [f"<sub>{', '.join(_short(line['id'] for line in mine))}</sub>", ""]
    return lines


def _short(ids: Iterable[str]) -> list[str]:
    """Return ids, with runs of consecutive ids as ranges."""
    found: list[list[str]] = []
    for id_ in ids:
        stem, number = re.fullmatch(r"(.*?)(\d*)", id_).groups()  # type: ignore[union-attr]  # matches anything
        before = found[-1][-1] if found else ""
        follows = number and before == f"{stem}{int(number) - 1:0{len(number)}}"
        if follows:
            found[-1].append(id_)
        else:
            found.append([id_])
    return [each[0] if len(each) == 1 else f"{each[0]} to {each[-1].rpartition('-')[2]}" for each in found]


def _reasons(lines: list[dict[str, Any]]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for line in lines:
        reasons.setdefault(line["detail"], []).append(line["id"])
    return [f"* {why}: {', '.join(_short(ids))}" for why, ids in reasons.items()] + [""]


INTRODUCTION = """# Conformance

`nnr conformance` runs the {cases} cases in `bitstream_vectors`, each in a process with limits of time and memory.
`nnr conformance --decoder` runs them in any other program ([vectors](../../bitstream_vectors/README.md)). The vectors
were written by this project or by NNCodec. The vectors of ISO/IEC 15938-18 are not public, and this page is not a claim
of conformance to it.

`python -m tests.peer.record` generates this page. Revision {revision} of the vectors (`{sha256}`),
Python {python} on {platform}.

## nnr_codec

> {summary}

`nnr_codec.selftest()`, for installations without the vectors, runs {core} cases.

[conformance.schema.json](conformance.schema.json) describes `--json`; `--junit` and `--markdown` report the same.
`--claim` ends with a quotable sentence if all cases were run, all results are as expected, and the files match the
manifest. `--fluster` writes a test suite for fluster. Its `result` is the digest of the decoded model
(`model_sha256` of `nnr verify --digest`), and empty for a bitstream that a decoder must reject.

## NNCodec 2.1.3

NNCodec is the published software of Fraunhofer HHI. nnr_codec decodes its streams bit for bit. NNCodec decodes the
streams of nnr_codec bit for bit if it supports their syntax elements. Where the text of the standard is broken or
silent, the vectors follow the [errata](errata.md). A wrapper runs all cases in NNCodec:

<!-- not run: needs NNCodec -->
```sh
nnr conformance --decoder 'PYTHON examples/decoders/nncodec2.py {{input}} {{outdir}} {{inputs}}'
```
"""

OUTCOMES = """
A decoder may reject `acceptable` bitstreams. They include the bitstreams with side information, which is not part of
the standard. A decoder may return the Rec* variables of 7.3, for example a weight and its local scaling, or the tensors
computed from them. The {wrong} disagreements, grouped by cause:
"""


def main(arguments: Sequence[str]) -> None:
    """Write the record and the page, or only the page."""
    if "--page" not in arguments:
        lines = record(os.environ["NNR_PEER"], [] if "--all" in arguments else read()[1])
        RECORD.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    head, lines = read()
    PAGE.write_text(page(head, lines), "utf-8")
    for line in lines:
        if line["outcome"] not in ("PASS", "SKIP") and not group(line):
            print(f"disagreements.toml has no group for {line['id']}: {line['detail']}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
