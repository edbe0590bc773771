"""Tables and charts of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import log
from pathlib import Path
from typing import Any

from .scores import ENOUGH, geometric_mean, monotone, size_at

Row = dict[str, Any]

#: Settings of the first table: title, method and setting.
SETTINGS = (
    ("NNR, default", "NNR, default", "default"),
    ("NNCodec, default", "NNCodec, default", "qp -32"),
    ("bfloat16", "bfloat16", "zstd -19"),
    ("int8", "integers", "8 bits"),
    ("int4", "integers", "4 bits"),
    ("int4, GPTQ", "GPTQ", "4 bits"),
    ("Q8_0", "GGUF", "Q8_0"),
    ("Q4_0", "GGUF", "Q4_0"),
)
#: Curves, with their color (a class of the style) and whether they are dashed.
CURVES = {
    "NNR": ("ours", False),
    "NNR, with data": ("ours", True),
    "NNCodec": ("theirs", False),
    "NNCodec, RDO": ("theirs", True),
    "integers": ("plain", False),
    "GPTQ": ("plain", True),
    "NNR, fine-tuned": ("tuned", False),
}
MINUS = "\N{MINUS SIGN}"
#: Falls of the score in points at which sizes are compared.
BUDGETS = (0.5, 1.0)
#: Methods of this project whose ratios are listed for each network.
OURS = ("NNR", "NNR, with data")
INT8 = "int8"
#: Columns of ratios: reference and fall, or None for the score that int8 has.
REFERENCES: tuple[tuple[str, float | None], ...] = (
    *((reference, budget) for reference in ("NNCodec", "NNCodec, RDO") for budget in BUDGETS),
    (INT8, None),
    (INT8, 0.5),
)
#: Columns of the table with a row for each network.
FIRST = tuple(reference for reference in REFERENCES if reference[0] != "NNCodec, RDO")

STYLE = """
.paper{fill:#fff}text{fill:#444}.grid{stroke:#ddd}.frame{stroke:#999;fill:none}
.ours{stroke:#0b63c5;fill:#0b63c5}.theirs{stroke:#c2560a;fill:#c2560a}.plain{stroke:#2b7d3f;fill:#2b7d3f}.blocks{stroke:#7d4fb3;fill:#7d4fb3}.tuned{stroke:#b8326a;fill:#b8326a}
@media(prefers-color-scheme:dark){.paper{fill:#131416}text{fill:#ccc}.grid{stroke:#333}.frame{stroke:#777}
.ours{stroke:#5aa9ff;fill:#5aa9ff}.theirs{stroke:#ff9e4f;fill:#ff9e4f}.plain{stroke:#66c47c;fill:#66c47c}.blocks{stroke:#bd94ea;fill:#bd94ea}.tuned{stroke:#f07aa8;fill:#f07aa8}}
path.line{fill:none;stroke-width:1.6}path.dashed{stroke-dasharray:5 3}circle{stroke-width:0;fill-opacity:.6}
"""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, COLUMNS = 340, 220, 40, 20, 92, 2
#: Ends of the axes: sizes relative to float32, and falls.
SIZES, FALLS = (0.02, 0.4), (-1.0, 4.0)


class Results:
    """Rows by network, method and setting; the rows with the most samples of each network.

    Networks with enough samples for means come first.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.networks: dict[str, dict[tuple[str, str], Row]] = {}
        rows = list(rows)
        most: dict[str, int] = {}
        for row in rows:
            most[row["network"]] = max(row["samples"], most.get(row["network"], 0))
        for row in sorted(rows, key=lambda row: row["samples"] < ENOUGH):
            if row["samples"] == most[row["network"]]:
                self.networks.setdefault(row["network"], {})[row["method"], row["setting"]] = row
        for network, found in self.networks.items():
            if len({row["weights"] for row in found.values()}) > 1:
                raise SystemExit(f"rows of {network} are for different weights; delete the rows of the old weights")

    def exact(self, network: str) -> Row:
        """Return the row of the float32 network."""
        return self.networks[network]["float32", ""]

    def counted(self) -> list[str]:
        """Return the networks with enough test samples for means."""
        return [name for name in self.networks if self.exact(name)["samples"] >= ENOUGH]

    def points(self, network: str, method: str) -> list[tuple[float, float]]:
        """Return relative sizes and falls of a curve."""
        whole = self.exact(network)["bytes"]
        rows = (row for (name, _), row in self.networks[network].items() if name == method)
        return sorted(((row["bytes"] / whole, row["fall"]) for row in rows), reverse=True)

    def ratio(self, network: str, method: str, reference: str, budget: float | None) -> float | None:
        """Return a size relative to a reference; None if one of both is not known.

        Parameters
        ----------
        reference : str
            Name of a curve, or `INT8`.
        budget : float or None
            Fall in points at which sizes are compared. None is the fall of int8, or 0 if int8 has a better score than
            the float32 network by chance. int8 is no reference for smaller falls than its own.
        """
        if reference == INT8:
            row = self.networks[network].get(("integers", "8 bits"))
            budget = max(row["fall"], 0.0) if row and budget is None else budget
            other = row["bytes"] / self.exact(network)["bytes"] if row and row["fall"] <= budget else None
        else:
            other = size_at(self.points(network, reference), budget)
        size = size_at(self.points(network, method), budget) if other else None
        return size / other if size and other else None

    def mean(self, method: str, reference: str, budget: float | None) -> str:
        """Return the geometric mean of ratios, with the number of networks, or an empty text."""
        found = [self.ratio(network, method, reference, budget) for network in self.counted()]
        ratios = [ratio for ratio in found if ratio]
        return f"{geometric_mean(ratios):.3f} ({len(ratios)})" if ratios else ""


def table(rows: Iterable[Row]) -> str:
    """Return four tables in Markdown: settings, sizes at equal scores, ratios for each network, and means."""
    results = Results(rows)
    return "\n\n".join("\n".join(make(results)) for make in (_settings, _sizes, _ratios, _means))


def _lines(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (titles, ["---"] + ["--:"] * (len(titles) - 1), *rows)]


def _settings(results: Results) -> list[str]:
    rows = []
    for network, found in results.networks.items():
        exact = results.exact(network)
        low, high = exact["interval"]
        cells = [network, f"{exact['accuracy']:.2f} ({low:.2f} to {high:.2f})"]
        for _, *key in SETTINGS:
            row = found.get((key[0], key[1]))
            cells.append(f"{100 * row['bytes'] / exact['bytes']:.1f} %, {_change(row)}" if row else "")
        rows.append(cells)
    return _lines(["network", "float32", *(title for title, *_ in SETTINGS)], rows)


def _change(row: Row) -> str:
    """Return the change of a score and half the length of its interval."""
    low, high = row["fall_interval"]
    change = f"{0 - row['fall']:+.2f}".replace("-", MINUS)
    return f"{change} ± {(high - low) / 2:.2f}"


def _sizes(results: Results) -> list[str]:
    rows = []
    for network in results.networks:
        cells = [network]
        for method in CURVES:
            sizes = [size_at(results.points(network, method), budget) for budget in BUDGETS]
            cells.append(" / ".join(f"{100 * size:.2f}" if size else "-" for size in sizes) if any(sizes) else "")
        rows.append(cells)
    return _lines(["network", *CURVES], rows)


def _ratios(results: Results) -> list[str]:
    columns = [(method, *reference) for method in OURS for reference in FIRST]
    rows = []
    for network in results.networks:
        ratios = [results.ratio(network, *column) for column in columns]
        if any(ratios):
            rows.append([network, *(f"{ratio:.3f}" if ratio else "-" for ratio in ratios)])
    rows.append(["geometric mean (networks)", *(results.mean(*column) for column in columns)])
    return _lines(
        ["network", *(f"{method} / {_title(reference, budget)}" for method, reference, budget in columns)], rows
    )


def _means(results: Results) -> list[str]:
    rows = [[method, *(results.mean(method, *reference) for reference in REFERENCES)] for method in CURVES]
    return _lines(["method", *(_title(*reference) for reference in REFERENCES)], rows)


def _title(reference: str, budget: float | None) -> str:
    return f"{reference}, its score" if budget is None else f"{reference}, {budget:g} point{'s' * (budget != 1)}"


# ------------------------------------------------------------------------------------------------ charts
def charts(rows: Iterable[Row], folder: Path) -> None:
    """Write ``accuracy.svg``, with light and dark colors: falls of the score by size, a panel for each network.

    Points are measurements; lines are the monotone curves that sizes are interpolated on.
    """
    results = Results(rows)
    panels = [_panel(results, network, k) for k, network in enumerate(results.networks)]
    height = TOP + HEIGHT * -(-len(panels) // COLUMNS) - 30
    label = "Fall of accuracy by size for each network"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * COLUMNS} {height}" role="img" '
        f'aria-label="{label}" font-family="system-ui, sans-serif" font-size="11"><style>{STYLE}</style>',
        f'<rect class="paper" width="{WIDTH * COLUMNS}" height="{height}"/>',
        f'<defs><clipPath id="c"><rect width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - 60}"/></clipPath></defs>',
        *_legend(),
        *panels,
        "</svg>\n",
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "accuracy.svg").write_text("\n".join(parts), "utf-8")


def _legend() -> Iterable[str]:
    for k, (name, (color, dashed)) in enumerate(CURVES.items()):
        x, y = LEFT + 150 * (k // 2), 20 + 18 * (k % 2)
        dash = " dashed" if dashed else ""
        yield f'<path class="line {color}{dash}" d="M{x} {y}h28"/><text x="{x + 34}" y="{y + 4}">{name}</text>'
    x = LEFT + 450
    yield f'<path class="blocks" d="M{x + 20} 34h8v8h-8z"/><text x="{x + 34}" y="42">GGUF Q8_0, Q4_0</text>'
    yield f'<text x="{LEFT}" y="64">Change of the score in points, by size relative to float32</text>'


def _panel(results: Results, network: str, number: int) -> str:
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - 60

    def x_of(size: float) -> float:
        return width * log(size / SIZES[0]) / log(SIZES[1] / SIZES[0])

    def y_of(fall: float) -> float:
        return height * (fall - FALLS[0]) / (FALLS[1] - FALLS[0])

    row, column = divmod(number, COLUMNS)
    exact = results.exact(network)
    score = f"{exact['accuracy']:.1f} %" if exact["metric"] != "Spearman" else f"{exact['accuracy'] / 100:.3f}"
    title = f"{network}: {exact['metric']}" + (f", float32 {score}" if exact["metric"] != "agreement" else "")
    parts = [f'<g transform="translate({LEFT + WIDTH * column} {TOP + HEIGHT * row})">']
    parts.append(f'<text y="-7" font-weight="600">{escape(title)}</text>')
    for size in (0.02, 0.05, 0.1, 0.2, 0.4):
        parts.append(f'<path class="grid" d="M{x_of(size):.1f} 0V{height}"/>')
        parts.append(f'<text x="{x_of(size):.1f}" y="{height + 15}" text-anchor="middle">{100 * size:g} %</text>')
    for fall in range(int(FALLS[0]), int(FALLS[1]) + 1):
        parts.append(f'<path class="grid" d="M0 {y_of(fall):.1f}H{width}"/>')
        mark = f"{-fall:+d}".replace("-", MINUS) if fall else "0"
        parts.append(f'<text x="-6" y="{y_of(fall) + 4:.1f}" text-anchor="end">{mark}</text>')
    parts.append(f'<rect class="frame" width="{width}" height="{height}"/><g clip-path="url(#c)">')
    for method, (color, dashed) in CURVES.items():
        points = results.points(network, method)
        smooth = monotone([fall for _, fall in points])
        line = "L".join(f"{x_of(size):.1f} {y_of(fall):.1f}" for (size, _), fall in zip(points, smooth, strict=True))
        if points:
            parts.append(f'<path class="line {color}{" dashed" if dashed else ""}" d="M{line}"/>')
        for size, fall in points:
            parts.append(f'<circle class="{color}" cx="{x_of(size):.1f}" cy="{y_of(fall):.1f}" r="1.8"/>')
    for size, fall in results.points(network, "GGUF"):
        parts.append(f'<path class="blocks" d="M{x_of(size) - 4:.1f} {y_of(fall) - 4:.1f}h8v8h-8z"/>')
    return "".join([*parts, "</g></g>"])
