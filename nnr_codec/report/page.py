"""Report as a self-contained HTML page; its script only sorts and filters."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.resources import files

from .charts import CODINGS, MOST_BITS, Row, bar, count, histogram, largest, plot, points, text
from .document import Document, is_bounded

#: Heading, sort direction of the first click, and explanation of each column.
COLUMNS = (
    ("tensor", "ascending", "Name. The tensors of a block are adjacent, and the first one has the bytes of all"),
    ("shape", "", "Shape and type in the model"),
    ("coding", "ascending", "Coding of values as quantization levels. After a +: the code that side information adds"),
    (
        "levels",
        "descending",
        "Histogram of quantization levels, heights logarithmic. Sorts by the number of distinct levels",
    ),
    ("parameters", "descending", "Number of values"),
    ("bytes", "descending", "Bytes of the units of the tensor, and their share of the bitstream"),
    ("bits/par", "descending", "Bits of the units for each parameter"),
    ("entropy", "descending", "Zero-order entropy of the levels plus bits stored beside them, for each parameter"),
    (
        "to entropy",
        "descending",
        "Bytes relative to that entropy, if each level occurs at least eight times on average",
    ),
    ("SNR", "ascending", "Signal-to-noise ratio of the decoded tensor in dB"),
    ("max error", "descending", "Largest absolute error of the decoded tensor"),
    ("step", "descending", "Quantization step size and quantization parameter qp"),
    (
        "tools",
        "",
        "Rate in squared step sizes per bit, unary length, scan order, skipped rows, shift parameter ids other than 0",
    ),
    ("ms", "descending", "Milliseconds of quantization and entropy coding"),
)
#: Heading of each total, and its meaning.
TOTALS = {
    "Size": "Bytes of the bitstream, including topology and side information, and of the tensors in the model file",
    "Ratio": "Bytes of the bitstream relative to the tensors in the model file",
    "Bits per parameter": "Bits of the bitstream for each parameter",
    "Relative to entropy": "Bytes of coded levels relative to their zero-order entropy. The context-adaptive coder can "
    "fall below it",
    "SNR of matrices": "Signal-to-noise ratio of all float tensors with at least two extents above 1 together, "
    "and the lowest one",
    "SNR of vectors": "Signal-to-noise ratio of all other float tensors together, and the number of exact tensors",
    "Became zero": "Share of the nonzero values that decode to 0",
    "Largest error": "Largest absolute error of any value, and its tensor",
}
#: Share of the parameters in the first plot.
MOST = 0.99
LEFT = ("tensor", "shape", "coding", "tools")
NONE, TIMES = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"
MISSING = f'<td data-v="">{NONE}</td>'


def page(document: Document) -> str:
    """Return the page; all its information comes from the document."""
    rows: list[Row] = document["tensors"]
    title, version = document["source"] or "Model", document["made_by"]["nnr_codec"]
    overhead = document["totals"]["overhead_bytes"]
    style, script = _part("page.css"), _part("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{text(title)}: NNR encode report</title>\n<style>{style}</style>\n</head>\n<body>\n<main>",
            f"<header><h1><bdi>{text(title)}</bdi></h1>",
            f'<p class="soft">encoded to NNR (ISO/IEC 15938-17) by nnr_codec {text(version)}, '
            f"in {document['seconds']:.2f} s with reading and writing</p>",
            f"{_facts(document)}</header>\n<section><h2>Distribution of bytes</h2>",
            f'<figure class="card">{bar(rows, overhead)}{_legend(document)}</figure></section>',
            _plots(rows),
            f"<section><h2>Tensors</h2>{_controls(rows)}{_table(rows, document['totals']['bytes'])}</section>",
            _steps(document["steps"]),
            f"<section><h2>Options</h2>{_options(document)}</section>",
            f"{_notes()}\n</main>\n<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _steps(steps: Sequence[Row]) -> str:
    """Return the table of reduction steps; empty if there are none."""
    if not steps:
        return ""
    head = "".join(f"<th>{title}</th>" for title in ("step", "changed", "parameters", "zeros", "SNR", "bytes then"))
    rows = "".join(
        f"<tr><td>{text(step['step'])}</td><td>{count(step['changed'])}</td><td>{count(step['parameters'])}</td>"
        f"<td>{_percent(step['zeros'])}</td><td>{NONE if step['snr_db'] is None else step['snr_db']}</td>"
        f"<td>{count(step['bytes'])}</td></tr>"
        for step in steps
    )
    return f"<section><h2>Reduction</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _facts(document: Document) -> str:
    """Return the totals."""
    totals = document["totals"]
    exact, tensors = totals["exact_tensors"], totals["tensors"]
    matrices, vectors = (_snr(totals[f"{kind}_snr_db"]) for kind in ("matrices", "vectors"))
    worst = totals["worst_matrix"]
    least = f"at least {_snr(totals['worst_matrix_snr_db'])}, in {_name(worst)}" if worst else ""
    facts = [
        (_size(totals["bytes"]), f"{count(totals['bytes'])} of {count(totals['source_bytes'])} B"),
        (_percent(totals["ratio"]), _times(totals)),
        (_decimals(totals["bits_per_parameter"], 3), f"{count(totals['parameters'])} parameters"),
        _against(totals),
        (matrices, least),
        (vectors, f"{exact} of {tensors} tensors exact"),
        (_percent(totals["zeroed"]), "of nonzero values"),
        (_figures(totals["max_error"]), _name(totals["worst_tensor"] or "none")),
    ]
    cells = (
        f'<div title="{meaning}"><dt>{name}</dt><dd><b>{value}</b> <span>{note}</span></dd></div>'
        for (name, meaning), (value, note) in zip(TOTALS.items(), facts, strict=True)
    )
    return f'<dl class="facts">{"".join(cells)}</dl>'


def _snr(value: float | None) -> str:
    return "exact" if value is None else f"{value:.2f} dB"


def _size(nbytes: int) -> str:
    """Return a size with a decimal prefix."""
    power = min((len(str(nbytes)) - 1) // 3, 3)
    return f"{nbytes / 1000**power:.2f} {' kMG'[power]}B" if power else f"{nbytes} B"


def _times(totals: Row) -> str:
    return f"{1 / totals['ratio']:.2f} times smaller" if totals["ratio"] else "no tensors"


def _against(totals: Row) -> tuple[str, str]:
    """Return the bytes relative to the entropy of the levels."""
    if not totals["entropy_bytes"]:
        return NONE, "no tensor has enough levels"
    return (
        _signed(totals["entropy_coded_bytes"] / totals["entropy_bytes"] - 1, 2),
        f"{count(totals['entropy_coded_bytes'])} for {count(totals['entropy_bytes'])} B",
    )


def _legend(document: Document) -> str:
    """Return the legend with bytes by coding."""
    sums = dict.fromkeys(CODINGS, 0)
    for row in document["tensors"]:
        if row["coding"] in sums:
            sums[row["coding"]] += row["bytes"]
    sums["overhead"] = document["totals"]["overhead_bytes"]
    whole = document["totals"]["bytes"] or 1
    entries = (
        f'<li><i class="dot k-{coding}"></i>{CODINGS[coding]} '
        f"<span>{count(nbytes)} B, {100 * nbytes / whole:.1f} %</span></li>"
        for coding, nbytes in sums.items()
        if nbytes
    )
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _plots(rows: Sequence[Row]) -> str:
    """Return plots of rate and distortion: of most parameters, and of all tensors if these are more."""
    shown = points(rows)
    if not shown:
        return ""
    most = largest(shown, MOST)
    figures = [
        (most, f"The {len(most)} largest tensors, with {100 * MOST:.0f} % of the parameters"),
        (shown, "All tensors"),
    ]
    drawn = "".join(
        f'<figure class="card"><figcaption>{label}</figcaption>'
        f"{plot(some, f'Signal to noise over bits per parameter: {label}')}</figure>"
        for some, label in (figures if len(most) < len(shown) else figures[1:])
    )
    return (
        f'<section><h2>Rate and distortion</h2><div class="plots">{drawn}</div>'
        '<p class="note">Each circle is a tensor; its area is the number of parameters. Tensors of more than '
        f"{MOST_BITS:.0f} bits per parameter are at the right edge. The dashed line is 6.02 dB per bit, the limit for "
        "Gaussian values. Weights with heavier tails or many zeros can exceed it.</p></section>"
    )


def _controls(rows: Sequence[Row]) -> str:
    """Return the filters, which the script makes visible."""
    present = {row["coding"] for row in rows}
    options = "".join(
        f'<option value="{coding}">{name}</option>' for coding, name in CODINGS.items() if coding in present
    )
    return (
        '<div class="controls" hidden><label>Name <input type="search" placeholder="part of a name"></label>'
        f'<label>Coding <select><option value="">all</option>{options}</select></label><output></output></div>'
    )


def _table(rows: Sequence[Row], whole: int) -> str:
    """Return the table of all tensors."""
    heads = "".join(
        f'<th scope="col"{f" data-sort={way}" if way else ""}{" class=left" if name in LEFT else ""} '
        f'title="{meaning}">{name}</th>'
        for name, way, meaning in COLUMNS
    )
    body = "\n".join(_row(k, row, whole) for k, row in enumerate(rows))
    return (
        '<div class="card scroll" tabindex="0" role="region" aria-label="Table of tensors"><table>'
        "<caption>Tensors: sizes, distortion and coding tools</caption>"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _row(number: int, row: Row, whole: int) -> str:
    """Return the table row of one tensor."""
    tools, levels = row["tools"] or {}, row["levels"]
    share = 100 * row["bytes"] / whole if whole else 0.0
    ratio = None
    if is_bounded(row) and row["entropy"]:
        ratio = row["bits_per_parameter"] / row["entropy"] - 1
    snr = _cell(row["snr_db"], 2)
    if row["exact"]:
        snr = '<td data-v="1e9">exact</td>'
    cells = [
        f'<th scope="row"><bdi>{_name(row["name"])}</bdi></th>',
        f'<td class="left">{TIMES.join(map(str, row["shape"])) or "scalar"} <small>{text(row["type"])}</small></td>',
        f'<td class="left"><i class="dot k-{row["coding"]}"></i>{_coding(row)}</td>',
        f'<td data-v="{levels["distinct"]}">{histogram(row)}</td>' if levels else MISSING,
        f'<td data-v="{row["parameters"]}">{count(row["parameters"])}</td>',
        f'<td class="meter" data-v="{row["bytes"]}">{count(row["bytes"])} <small>{share:.1f} %</small>'
        f'<i class="k-{row["coding"]}" style="width:{share:.1f}%"></i></td>',
        _cell(row["bits_per_parameter"], 3),
        _cell(row["entropy"], 3),
        MISSING if ratio is None else f'<td data-v="{ratio:.5f}">{_signed(ratio, 1)}</td>',
        snr,
        MISSING if row["max_error"] is None else f'<td data-v="{row["max_error"]}">{_figures(row["max_error"])}</td>',
        _step(tools),
        f'<td class="left">{_tools(tools)}</td>',
        f'<td data-v="{row["seconds"]}">{1000 * row["seconds"]:.2f}</td>',
    ]
    return f'<tr id="t{number}" data-coding="{row["coding"]}">{"".join(cells)}</tr>'


def _name(name: str) -> str:
    """Return a name with line break opportunities after dots, slashes and similar characters."""
    return re.sub("([./_:])", r"\1<wbr>", text(name))


def _step(tools: Row) -> str:
    if tools.get("step") is None:
        return MISSING
    return f'<td data-v="{tools["step"]}">{_figures(tools["step"])} <small>qp {tools["qp"]}</small></td>'


def _coding(row: Row) -> str:
    """Return the coding of a tensor in one word."""
    if row["same_as"]:
        return f"= <bdi>{text(row['same_as'])}</bdi>"
    size = (row["tools"] or {}).get("codebook_size")
    words = row["coding"] + (f" of {count(size)}" if size else "") + (f" + {row['code']}" if row["code"] else "")
    return text(words)


def _tools(tools: Row) -> str:
    """Return further tools of the coding."""
    if not tools or tools["cabac_unary_length_minus1"] is None:
        return ""
    used = [f"rate {tools['rate']:g}"] if tools["rate"] else []
    used.append(f"unary {tools['cabac_unary_length_minus1'] + 1}")
    if tools["codebook_size"] and tools["dq_flag"]:
        used.append("dq")
    if tools["scan_order"]:
        used.append(f"scan {tools['scan_order']}")
    if tools["rows_skipped"] is not None:
        used.append(f"{count(tools['rows_skipped'])} rows skipped")
    if tools["shift_parameter_ids"]:
        used.append(f"{len(tools['shift_parameter_ids'])} ids")
    return ", ".join(used)


def _cell(value: float | None, digits: int) -> str:
    return MISSING if value is None else f'<td data-v="{value}">{value:.{digits}f}</td>'


def _decimals(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.2f} %"


def _signed(value: float, digits: int) -> str:
    return f"{100 * value:+.{digits}f} %".replace("-", "\N{MINUS SIGN}")


def _figures(value: float | None) -> str:
    return NONE if value is None else f"{value:.3g}"


def _options(document: Document) -> str:
    made_by = ", ".join(f"{name} {version}" for name, version in document["made_by"].items())
    content = json.dumps(document["options"], indent=1)
    return f"<details><summary>{text(made_by)}</summary><pre>{_lines(content)}</pre></details>"


def _lines(content: str) -> str:
    return "\n".join(map(text, content.splitlines()))


def _notes() -> str:
    """Return the meanings of totals and columns."""
    meanings = [*TOTALS.items(), *((name, meaning) for name, _, meaning in COLUMNS)]
    items = "".join(f"<dt><b>{name}</b></dt><dd>{meaning}</dd>" for name, meaning in meanings)
    return f'<footer class="note"><details><summary>Meaning of the figures</summary><dl>{items}</dl></details></footer>'
