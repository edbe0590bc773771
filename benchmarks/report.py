"""Tables of docs/benchmarks/performance.md: ``python -m benchmarks.report RESULTS.jsonl``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from .workloads import GOAL_DECODE_MEAN


def ratio(row: dict[str, Any], what: str) -> str:
    """Return a ratio of times, with the ratio of the minima in brackets if noisy; bold if it meets the target."""
    if what not in row:
        return ""
    entry, goal = row[what], row["goal"].get(what)
    text = f"{entry['ratio']:.2f}" + (f" ({entry['ratio_of_minima']:.2f})" if entry["noisy"] else "")
    if goal is None:
        return text
    return f"**{text}** ≥ {goal}" if entry["ratio"] >= goal else f"{text} < {goal}"


def memory(row: dict[str, Any], what: str) -> str:
    """Return the peak memory of NNCodec and of this project in bytes per parameter."""
    entry = row.get(what, {}).get("memory")
    return " / ".join(f"{entry[side] / row['parameters']:.1f}" for side in ("theirs", "ours")) if entry else ""


def tables(rows: list[dict[str, Any]]) -> str:
    """Return the output of compare.py as Markdown."""
    out = [
        "| work | parameters | bits each | size | encode | decode | lanes | memory, encode | memory, decode |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    work = [row for row in rows if "parameters" in row]
    for row in work:
        cells = [
            row["row"],
            f"{row['parameters']:,}",
            f"{row['bits']['ours']:.2f}",
            f"{row['size']:.4f}" if "size" in row else "",
            *(ratio(row, what) for what in ("encode", "decode")),
            f"{row['decode']['lanes']:.0%}" if "lanes" in row.get("decode", {}) else "",
            *(memory(row, what) for what in ("encode", "decode")),
        ]
        out.append(f"| {' | '.join(cells)} |")
    one_thread = [row for row in work if row["jobs"] == 1]
    means = [geometric_mean(row[what]["ratio"] for row in one_thread) for what in ("encode", "decode")]
    decode = f"**{means[1]:.2f}** ≥ {GOAL_DECODE_MEAN}"
    if means[1] < GOAL_DECODE_MEAN:
        decode = f"{means[1]:.2f} < {GOAL_DECODE_MEAN}"
    out.append(f"| geometric mean, one thread | | | | {means[0]:.2f} | {decode} | | | |")
    for row in rows:
        if "import" in row:
            out += start_up(row)
    return "\n".join([*out, "", versions(rows[0]["machine"])])


def start_up(row: dict[str, Any]) -> list[str]:
    """Return the lines about start-up."""
    start = row["import"]
    out = [
        "",
        f"* memory that the import needs: {start['memory']['theirs'] / start['memory']['ours']:.2f} (ours: "
        f"{start['memory']['ours'] / 2**20:.0f} MiB)",
    ]
    if "version" in row:
        version = row["version"]
        out += [
            f"* CPU time of `nnr --version`: {version['seconds']:.3f} s; of an empty Python program: "
            f"{version['bare_interpreter']:.3f} s",
            f"* CPU time until `encode` and `decode` are imported, numpy included: {version['library']:.3f} s",
        ]
    return out


def versions(facts: dict[str, Any]) -> str:
    """Return the line with versions and processor."""
    ours = f" with numpy {facts['ours']['numpy']}" if "ours" in facts else ""
    return (
        f"NNCodec {facts['theirs']['version']} with numpy {facts['theirs']['numpy']}; ours at {facts['commit']}{ours}; "
        f"Python {facts['python']}, {facts['cores']} cores, {facts['cpu']}."
    )


def equal_error(rows: list[dict[str, Any]]) -> str:
    """Return the output of quality.py as Markdown."""
    out = [
        "| work | qp | SNR, dB | bits each | entropy | size | target | size, lambda_scale=1 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        size, other = row["size"]["default"], row["size"]["lambda_scale=1"]
        cells = [row["row"], f"{row['qp']}", f"{row['snr']:.2f}", f"{row['bits']:.3f}", f"{row['entropy']:.3f}"]
        cells += [f"**{size:.4f}**" if size <= row["goal"] else f"{size:.4f}", f"≤ {row['goal']}", f"{other:.4f}"]
        out.append(f"| {' | '.join(cells)} |")
    mean = geometric_mean(row["size"]["lambda_scale=1"] for row in rows)
    out.append(f"| geometric mean | | | | | | | {mean:.4f} |")
    return "\n".join([*out, "", versions(rows[0]["machine"])])


def sizes(rows: list[dict[str, Any]]) -> str:
    """Return the output of sizes.py as Markdown."""
    out = [
        "| network | type | raw | zstd -19 | zstd -19, planes | lossless | of raw | of planes | bits each | default |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [row["row"], row["type"], *(f"{row[what]:,}" for what in ("raw", "zstd", "planes"))]
        cells += [f"**{row['lossless']:,}**", f"{row['lossless'] / row['raw']:.3f}"]
        cells += [f"{row['lossless'] / row['planes']:.3f}", f"{8 * row['lossless'] / row['parameters']:.2f}"]
        out.append(f"| {' | '.join(cells)} | {row['lossy']:,} |")
    for row in rows:
        if "entropy" in row:
            out += [
                "",
                f"{row['row']} as indices in an ideal code of order 0, and palettes: {row['entropy']:,} bytes; "
                f"ours is {row['lossless'] / row['entropy']:.3f} of this size.",
            ]
    facts = rows[0]["machine"]
    out += [
        "",
        f"Ours at {facts['commit']} with numpy {facts['numpy']} and Python {facts['python']}; zstd {facts['zstd']}.",
    ]
    return "\n".join(out)


if __name__ == "__main__":
    results = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    kind = sizes if "raw" in results[0] else equal_error if "snr" in results[0] else tables
    print(kind(results))
