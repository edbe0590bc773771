"""NNR-NEG-900 on: mutated bitstreams that revealed errors of this decoder (docs/explanation/fuzzing.md)."""

from __future__ import annotations

from nnr_codec.constants import NNR_PT_INT

from ..builder import aggregate, ndu
from .negative_units import HEAD, RAW, bad, raw_named
from .stream import Stream


def with_more(listed: bytes, *more: bytes) -> bytes:
    """Return an aggregate with units after the listed ones."""
    size = len(listed) + sum(map(len, more))
    return size.to_bytes(2, "big") + listed[2:] + b"".join(more)


# The decoder read past the end of the list: IndexError (structure 1, 168481).
bad(
    "NNR-NEG-900",
    "an aggregate that lists two units and contains four",
    "6.4.3.8 6.4.4.8",
    "ElementError",
    2,
    HEAD + with_more(aggregate([raw_named("a"), raw_named("b")], entry_points=True), raw_named("c"), raw_named("d")),
    features="NNR_AGG entry_points_present_flag",
    requirements="aggregate-count",
)


def coded() -> bytes:
    """Return a unit of two integers of profile 1."""
    s = Stream().start()
    before = len(s.data)
    return s.ndu(ndu("w", [2], kind=NNR_PT_INT), [3, -4]).data[before:]


# nnr verify decoded the tensor with the profile of the following unit: ValueError (bytes 3, 409361).
bad(
    "NNR-NEG-901",
    "an NNR_STR of profile 0 in an aggregate, after a tensor of profile 1",
    "6.2.3 7.1",
    "ElementError",
    4,
    HEAD + aggregate([coded(), HEAD[:3] + b"\0"]),
    features="NNR_AGG NNR_STR",
    requirements="one-bitstream single-mps",
)


# StreamDecoder waited forever for the rest of an aggregate that ends in its header.
for number, unit, place in (
    (902, "000318", "before nnr_aggregate_unit_type"),
    (903, "00041800", "before entry_points_present_flag"),
    (904, "0005180000", "before num_of_nnr_units_minus2"),
    (905, "000618000000", "inside num_of_nnr_units_minus2"),
    (906, "00071800000000", "before quant_bitdepth"),
    (907, "00061a000000", "inside num_of_nnr_units_minus2, with independently_decodable_flag 1"),
):
    bad(
        f"NNR-NEG-{number}",
        f"an aggregate that ends {place}",
        "6.3.3.8 6.4.2",
        "TruncatedError",
        2,
        HEAD + bytes.fromhex(unit) + RAW,
        features="NNR_AGG",
        requirements="unit-size",
    )
