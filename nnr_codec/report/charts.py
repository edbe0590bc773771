"""Charts of a report as inline SVG. All external text must be passed through :func:`text`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

Row = dict[str, Any]

#: Names of codings on the page, by class of the style sheet.
CODINGS = {
    "dependent": "dependent quantization",
    "uniform": "uniform quantization",
    "codebook": "codebook",
    "integer": "integers",
    "raw": "unquantized floats",
    "overhead": "units without tensors",
}
#: Minimum share of a bar segment; narrower segments are merged with neighbours of the same coding.
NARROW = 0.004
#: Upper end of the plot in bits per parameter; points beyond it are placed at the edge.
MOST_BITS = 34.0
#: Minimum number of bins for which a histogram has its full width.
WIDE = 9


def text(value: object) -> str:
    """Return text for a page: markup is escaped, and non-printable characters are shown as escape sequences."""
    plain = str(value)
    if not plain.isprintable():
        plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)
    return escape(plain)


def count(number: float) -> str:
    """Return a number with thousands separators."""
    return f"{number:,.0f}"


# ------------------------------------------------------------------------------------------------ sizes
def bar(rows: Sequence[Row], overhead: int) -> str:
    """Return a bar of all bytes in bitstream order, in segments with titles."""
    whole = sum(row["bytes"] for row in rows) + overhead
    segments, x = [], 0.0
    for coding, nbytes, title in _joined(rows, overhead, whole):
        width = 1000 * nbytes / whole if whole else 0.0
        segments.append(
            f'<rect class="k-{coding}" x="{x:.2f}" y="0" width="{width:.2f}" height="44">'
            f"<title>{text(title)}: {count(nbytes)} bytes, {100 * nbytes / (whole or 1):.2f} %</title></rect>"
        )
        x += width
    return (
        '<svg class="bar" viewBox="0 0 1000 44" preserveAspectRatio="none" role="img" '
        f'aria-label="Shares of {count(whole)} bytes, in the order of the bitstream">{"".join(segments)}</svg>'
    )


def _joined(rows: Sequence[Row], overhead: int, whole: int) -> Iterable[tuple[str, int, str]]:
    """Yield coding, bytes and title of each segment."""
    yield "overhead", overhead, CODINGS["overhead"]
    group: list[Row] = []
    for row in (*(row for row in rows if row["bytes"]), None):
        narrow = row is not None and row["bytes"] < NARROW * whole
        if group and not (row and narrow and row["coding"] == group[0]["coding"]):
            more = f" and {len(group) - 1} more" if len(group) > 1 else ""
            yield group[0]["coding"], sum(one["bytes"] for one in group), f"{group[0]['name']}{more}"
            group = []
        if row is not None and narrow:
            group.append(row)
        elif row is not None:
            yield row["coding"], row["bytes"], row["name"]


# ------------------------------------------------------------------------------------------------ rate and distortion
Point = tuple[int, Row]
LEFT, RIGHT, TOP, BOTTOM = 56.0, 584.0, 46.0, 362.0


def points(rows: Sequence[Row]) -> list[Point]:
    """Return the tensors that can be plotted, with their numbers."""
    return [(k, row) for k, row in enumerate(rows) if row["parameters"] and row["bytes"] and row["exact"] is not None]


def largest(all_points: Sequence[Point], share: float) -> list[Point]:
    """Return the largest tensors, as few as contain this share of the parameters."""
    chosen, left = [], (1 - share) * sum(row["parameters"] for _, row in all_points)
    for point in sorted(all_points, key=lambda point: point[1]["parameters"]):
        left -= point[1]["parameters"]
        if left < 0:
            chosen.append(point)
    return chosen


def plot(chosen: Sequence[Point], label: str) -> str:
    """Return a plot of SNR over bits per parameter: circles with areas by size, linked to the rows of the table."""
    bits = [min(row["bits_per_parameter"], MOST_BITS) for _, row in chosen]
    snrs = [row["snr_db"] for _, row in chosen if row["snr_db"] is not None]
    x_start, x_step, x_end = _scale(min(bits), max(bits), 1.0)
    y_start, y_step, y_end = _scale(min(snrs, default=0.0), max(snrs, default=60.0), 6.0)

    def x_of(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * (min(value, x_end) - x_start) / (x_end - x_start)

    def y_of(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (value - y_start) / (y_end - y_start)

    bottom = BOTTOM if snrs else TOP - 6  # without lossy tensors there is no distortion axis
    parts = [f'<svg class="plot" viewBox="0 0 600 {bottom + 48:g}" role="group" aria-label="{text(label)}">']
    for value in _ticks(x_start, x_step, x_end):
        parts.append(f'<path class="grid" d="M{x_of(value):.1f} {min(TOP, bottom - 4)}V{bottom}"/>')
        parts.append(f'<text x="{x_of(value):.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{bottom + 40}" text-anchor="middle">bits per parameter</text>')
    if snrs:
        for value in _ticks(y_start, y_step, y_end):
            parts.append(f'<path class="grid" d="M{LEFT} {y_of(value):.1f}H{RIGHT}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y_of(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
        turned = f'transform="translate(14 {(TOP + BOTTOM) / 2}) rotate(-90)"'
        parts.append(f'<text {turned} text-anchor="middle">SNR in dB</text>')
        slope = 20 * math.log10(2)
        first, last = max(x_start, y_start / slope), min(x_end, y_end / slope)
        if first < last:
            line = f"M{x_of(first):.1f} {y_of(first * slope):.1f}L{x_of(last):.1f} {y_of(last * slope):.1f}"
            parts.append(f'<path class="bound" d="{line}"><title>6.02 dB for each bit</title></path>')
    lane = TOP - 24
    if len(snrs) < len(chosen):
        parts.append(f'<path class="grid" d="M{LEFT} {lane}H{RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{lane + 4}" text-anchor="end">exact</text>')
    most = max(row["parameters"] for _, row in chosen)
    for k, row in sorted(chosen, key=lambda point: -point[1]["parameters"]):
        radius = 3 + 10 * math.sqrt(row["parameters"] / most)
        y = lane if row["snr_db"] is None else y_of(row["snr_db"])
        snr = "exact" if row["snr_db"] is None else f"{row['snr_db']:.2f} dB"
        title = f"{row['name']}: {row['bits_per_parameter']:.3f} bits, {snr}, {count(row['parameters'])} parameters"
        place = f'cx="{x_of(row["bits_per_parameter"]):.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        circle = f'<circle class="k-{row["coding"]}" {place}><title>{text(title)}</title></circle>'
        parts.append(f'<a href="#t{k}" tabindex="-1">{circle}</a>')
    return "".join([*parts, "</svg>"])


def _scale(low: float, high: float, least: float) -> tuple[float, float, float]:
    """Return first tick, distance and last tick of an axis that spans at least ``least``, with four to ten ticks."""
    rough = max(high - low, least) / 8
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    start = math.floor(low / step) if low > high / 4 or low < 0 else 0
    return start * step, step, max(math.ceil(high / step), start + 1) * step


def _ticks(start: float, step: float, end: float) -> Iterable[float]:
    return (start + k * step for k in range(round((end - start) / step) + 1))


# ------------------------------------------------------------------------------------------------ histograms
def histogram(row: Row) -> str:
    """Return the histogram of levels, with heights by the logarithm of the count; empty without levels."""
    levels = row["levels"]
    if levels is None:
        return ""
    counts = levels["histogram"]["counts"]
    top = math.log1p(max(counts))
    width = 120 / max(len(counts), WIDE)
    left = (120 - width * len(counts)) / 2
    bins = (
        f"V{28 - 27 * math.log1p(number) / top:.1f}H{left + width * (k + 1):.1f}" for k, number in enumerate(counts)
    )
    path = f"M{left:.1f} 28{''.join(bins)}V28Z".replace(".0", "")
    zeros = 100 * levels["zeros"] / row["parameters"]
    label = f"{count(levels['distinct'])} levels from {levels['least']} to {levels['greatest']}, {zeros:.1f} % are 0"
    return (
        f'<svg class="hist" viewBox="0 0 120 28" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'<title>{label}</title><path class="k-{row["coding"]}" d="{path}"/></svg>'
    )
