"""Results of campaigns: ``python -m tests.fuzz.results [FILE ...]``.

Adds the lines of these files to benchmarks/results/fuzzing.jsonl, and rewrites the tables of
docs/explanation/fuzzing.md.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "fuzzing.jsonl", ROOT / "docs" / "explanation" / "fuzzing.md"

KINDS = {"structure": "by structure", "bytes": "by bytes"}

#: The ways of campaigns in which each input is decoded in all ways, with a comparison of the results.
COMPARED = {"agreement"}

#: Lines of the page before and after the tables.
BEGIN, END = "<!-- python -m tests.fuzz.results -->\n", "<!-- end -->\n"

Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    """Return the lines of a file of results, if it exists."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def done(lines: Iterable[Line], kind: str, seed: int, sanitized: bool) -> int:
    """Return the number of tried inputs."""
    key = kind, seed, sanitized
    return max((line["first"] + line["inputs"] for line in lines if _campaign(line) == key), default=0)


def _campaign(line: Line) -> tuple[str, int, bool]:
    return line["kind"], line["seed"], line["sanitized"]


def merged(*files: Iterable[Line]) -> list[Line]:
    """Return the lines of all files in order, each part once."""
    parts = {(*_campaign(line), line["first"]): line for lines in files for line in lines}
    return [line for _, line in sorted(parts.items(), key=lambda part: (part[0][2], *part[0]))]


def tables(lines: Sequence[Line]) -> str:
    """Return results as Markdown: by kind of input, by outcome, and by way of reading."""
    rows = ["| mutated | inputs | seeds | reach the kernel | slowest | largest peak | findings |"]
    rows.append("|---|---:|---|---:|---:|---:|---:|")
    for sanitized, compared in product((False, True), repeat=2):
        for kind, words in KINDS.items():
            key = kind, sanitized, compared
            some = [line for line in lines if (line["kind"], line["sanitized"], {*line["ways"]} == COMPARED) == key]
            if some:
                how = (", all ways compared" if compared else "") + (", under the sanitizers" if sanitized else "")
                rows.append(_row(words + how, sanitized, some))
    total, found = sum(line["inputs"] for line in lines), sum(len(line["findings"]) for line in lines)
    rows.append(f"| **together** | **{total:,}** | | | | | **{found}** |")
    dates = sorted(line["date"] for line in lines)
    commits = sorted({line["commit"] for line in lines})
    said = f"From {dates[0]} to {dates[-1]}, at {', '.join(commits)}.\n" if lines else "None yet.\n"
    return "\n".join([said, *rows, "", *_shares("outcome", "outcomes", lines), "", *_shares("by", "ways", lines), ""])


def _row(words: str, sanitized: bool, lines: Sequence[Line]) -> str:
    count = sum(line["inputs"] for line in lines)
    peak = "" if sanitized else f"{max(line['peak'][0] for line in lines) / 2**20:.0f} MiB"
    cells = (
        words,
        f"{count:,}",
        ", ".join(str(seed) for seed in sorted({line["seed"] for line in lines})),
        f"{sum(line['kernel'] for line in lines) / count:.1%}",
        f"{max(line['slowest'][0] for line in lines):.2f} s",
        peak,
        str(sum(len(line["findings"]) for line in lines)),
    )
    return f"| {' | '.join(cells)} |"


def _shares(title: str, key: str, lines: Iterable[Line]) -> list[str]:
    counts = Counter[str]()
    for line in lines:
        counts.update(line[key])
    return [f"| {title} | inputs |", "|---|---:|", *(f"| {name} | {count:,} |" for name, count in counts.most_common())]


def page(text: str, lines: Sequence[Line]) -> str:
    """Return the page with these results."""
    return re.sub(f"(?s){re.escape(BEGIN)}.*{re.escape(END)}", lambda _: f"{BEGIN}{tables(lines)}{END}", text)


def main(files: Sequence[str]) -> None:
    """Run the command."""
    lines = merged(read(RESULTS), *(read(Path(file)) for file in files))
    RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    PAGE.write_text(page(PAGE.read_text("utf-8"), lines), "utf-8")
    print(tables(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
