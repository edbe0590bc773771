"""``python -m benchmarks.report RESULTS.jsonl``: the tables of docs/performance.md, from compare.py or sizes.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any


def ratio(entry: dict[str, Any]) -> str:
    """A ratio of times; in brackets where the minima say something else."""
    return f"{entry['ratio']:.2f}" + (f" ({entry['ratio_of_minima']:.2f})" if entry["noisy"] else "")


def memory(entry: dict[str, Any], parameters: int) -> str:
    """Bytes of peak memory for each parameter, theirs and ours."""
    return " / ".join(f"{entry['memory'][side] / parameters:.1f}" for side in ("theirs", "ours"))


def tables(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    out = [
        "| work | parameters | bits each | size | encode | decode | memory, encode | memory, decode |",
        "|---|---|---|---|---|---|---|---|",
    ]
    work = [row for row in rows if "encode" in row]
    for row in work:
        count = row["parameters"]
        cells = [
            row["row"],
            f"{count:,}",
            f"{row['bits']['ours']:.2f}",
            f"{row['size']:.4f}",
            ratio(row["encode"]),
            ratio(row["decode"]),
            memory(row["encode"], count),
            memory(row["decode"], count),
        ]
        out.append(f"| {' | '.join(cells)} |")
    means = (f"**{geometric_mean(row[what]['ratio'] for row in work):.2f}**" for what in ("encode", "decode"))
    size = geometric_mean(row["size"] for row in work)
    out.append(f"| geometric mean | | | {size:.4f} | {' | '.join(means)} | | |")
    for row in rows:
        if "import" in row:
            start = row["import"]
            out += [
                "",
                f"* import: ratio {start['ratio']:.2f}; memory that it takes: "
                f"{start['memory']['theirs'] / start['memory']['ours']:.2f}",
            ]
            if "version" in row:
                share = row["version"]["seconds"] / row["version"]["bare_interpreter"]
                out.append(f"* `nnr --version` takes {share:.1f} times as long as a Python that does nothing")
    facts = rows[0]["machine"]
    out += [
        "",
        f"NNCodec {facts['theirs']['version']} with numpy {facts['theirs']['numpy']}; ours at {facts['commit']} "
        f"with numpy {facts['ours']['numpy']}; Python {facts['python']}, {facts['cores']} cores, {facts['cpu']}.",
    ]
    return "\n".join(out)


def sizes(rows: list[dict[str, Any]]) -> str:
    """Markdown of what sizes.py printed."""
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
                f"ours is {row['lossless'] / row['entropy']:.3f} of that.",
            ]
    facts = rows[0]["machine"]
    out += [
        "",
        f"Ours at {facts['commit']} with numpy {facts['numpy']} and Python {facts['python']}; zstd {facts['zstd']}.",
    ]
    return "\n".join(out)


if __name__ == "__main__":
    results = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    print(sizes(results) if "raw" in results[0] else tables(results))
