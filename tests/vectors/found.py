"""NNR-NEG-900 on: what mutated bitstreams found wrong in this decoder; docs/fuzzing.md tells of each."""

from __future__ import annotations

from ..builder import aggregate
from .negative_units import HEAD, bad, raw_named


def with_more(listed: bytes, *more: bytes) -> bytes:
    """An aggregate of which units behind those that it lists are part as well."""
    size = len(listed) + sum(map(len, more))
    return size.to_bytes(2, "big") + listed[2:] + b"".join(more)


# The list was read beyond its end: IndexError (structure 1, 168481).
bad(
    "NNR-NEG-900",
    "an aggregate that lists two units and holds four",
    "6.4.3.8 6.4.4.8",
    "ElementError",
    2,
    HEAD + with_more(aggregate([raw_named("a"), raw_named("b")], entry_points=True), raw_named("c"), raw_named("d")),
    features="NNR_AGG entry_points_present_flag",
    requirements="aggregate-count",
)
