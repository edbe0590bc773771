"""NNR-NEG-090 on: payloads that no encoder writes, and values outside the range of their type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnr_codec.constants import NNR_CPT_LS, NNR_PT_BLOCK, NNR_PT_INT, NNR_PT_RAW_FLOAT

from ..builder import codebook, ndu, update_ndu
from .arithmetic import assemble, bypass, chosen, floats, interval, padded
from .bits import MPS, STR1, integers, mps, one_entry
from .case import Content, invalid
from .negative_units import bad
from .stream import Stream


# ------------------------------------------------------------------------------------------------ entry points
def wrong_entry_point(id_: str, title: str, element: str, change: Callable[[Any], None]) -> None:
    """Register a tensor of three rows of blocks whose header contradicts the payload in an entry point."""

    features = f"scan_order=1 dq_flag {element}"

    @invalid(id_, title, "6.4.3.7 10.2.1.4", features, "ElementError", 2, requirements="entry-points")
    def case() -> Content:
        levels = chosen([20, 9], 5)
        s = Stream().start()
        header = ndu("w", [20, 9], scan_order=1, dq_flag=1)
        payload = s.payload(header, [levels])
        change(header)
        s.ndu(header, payload=payload)
        return s.refused()


def shift_offset(header: Any) -> None:
    header.cabac_offset_list = [header.cabac_offset_list[0], header.cabac_offset_list[1] ^ 1]


def shift_state(header: Any) -> None:
    header.dq_state_list = [header.dq_state_list[0], header.dq_state_list[1] ^ 1]


def shift_first(header: Any) -> None:
    header.bit_offset_delta1 += 1
    header.bit_offset_delta2 = [header.bit_offset_delta2[0] - 2]  # the second entry point is unchanged


def shift_second(header: Any) -> None:
    header.bit_offset_delta2 = [-(2**30)]


wrong_entry_point("NNR-NEG-180", "an entry point with a wrong IvlOffset", "cabac_offset_list", shift_offset)
wrong_entry_point("NNR-NEG-181", "an entry point with a wrong stateId", "dq_state_list", shift_state)
wrong_entry_point("NNR-NEG-182", "an entry point one bit too late", "bit_offset_delta1", shift_first)
wrong_entry_point("NNR-NEG-183", "an entry point before the start of its tensor", "bit_offset_delta2", shift_second)


# ------------------------------------------------------------------------------------------------ end of a payload
def by_hand(id_: str, title: str, clauses: str, features: str, requirements: str, *bits: str) -> None:
    """Register bits with a payload that decoders must reject."""
    bad(
        id_,
        title,
        clauses,
        "PayloadError",
        2,
        assemble(*bits),
        features=features,
        requirements=requirements,
        bits=bits,
    )


def qp_payload(
    id_: str, title: str, payload: bytes, clauses: str = "10.2.1.2 10.3.4.3.5", *, requirements: str
) -> None:
    """Register a tensor with a damaged payload: a qp_value of 8 bypass bins (NNR-SYN-010)."""
    bits = (*STR1, *mps(2), *one_entry(11 + len(payload), 5, 3), *([f"0x{payload.hex()} payload"] if payload else []))
    by_hand(id_, title, clauses, "hand terminate_cabac()", requirements, *bits)


GOOD = padded(bypass(-38, 8), 17)
qp_payload("NNR-NEG-090", "terminating_one_bit is 0", padded(510 * 218 + 100, 17), requirements="terminating-bit")
qp_payload("NNR-NEG-091", "the last bit of IvlOffset is 0", padded(510 * 218 + 508, 17), requirements="terminating-bit")
qp_payload(
    "NNR-NEG-092",
    "the first nesting_zero_bit is 1",
    padded(bypass(-38, 8) << 1 | 1, 18),
    requirements="nesting-zero-bit",
)
qp_payload("NNR-NEG-094", "an extra byte after the payload", GOOD + b"\0", requirements="unit-size")
qp_payload("NNR-NEG-095", "the last byte of the payload is missing", GOOD[:-1], requirements="payload-complete")
qp_payload("NNR-NEG-096", "an empty payload", b"", "10.3.2.4", requirements="payload-complete")
qp_payload("NNR-NEG-097", "IvlOffset starts as 510", b"\xff\x00\x00", "10.3.2.4", requirements="interval-offset")
qp_payload("NNR-NEG-098", "IvlOffset starts as 511", b"\xff\xff\xff", "10.3.2.4", requirements="interval-offset")


def cut(id_: str, title: str, *, keep: int | None = None, more: bytes = b"", requirements: str) -> None:
    """Register a tensor of integers with ``keep`` bytes of its payload, then ``more``."""

    @invalid(id_, title, "10.2.1.2 10.3.4.3", "NNR_PT_INT", "PayloadError", 2, requirements=requirements)
    def make() -> Content:
        s = Stream().start()
        header = ndu("w", [6, 6], kind=NNR_PT_INT)
        payload = s.payload(header, [chosen([6, 6], 50)])
        s.ndu(header, payload=payload[:keep] + more)
        return s.refused()


cut("NNR-NEG-099", "the payload is truncated after half of the levels", keep=30, requirements="payload-complete")
cut(
    "NNR-NEG-100",
    "the payload is truncated after half of the levels, then filled with zeros",
    keep=30,
    more=bytes(40),
    requirements="terminating-bit",
)
cut("NNR-NEG-102", "an extra byte after the levels", more=b"\x80", requirements="unit-size")


# ------------------------------------------------------------------------------------------------ integers too large
def by_bins(id_: str, title: str, clauses: str, *bins: str, ids: int = 39, dq: int = 0) -> None:
    """Register one integer with bins that no encoder writes and a unary part of length 1."""
    payload = interval("shift_idx_minus_1_present_flag:" + ids * "0", *bins)
    lines = list(integers(10 + len(payload), 1))
    lines[lines.index("0 dq_flag")] = f"{dq} dq_flag"
    lines.append(f"0x{payload.hex()} shift_idx_minus_1_present_flag {ids} times 0; {' '.join(bins)}; terminate")
    by_hand(id_, title, clauses, "hand NNR_PT_INT abs_remainder", "integer-range", *STR1, *MPS, *lines)


LARGE = ("sig0:1", "sign0:0", "gtx0:1", *(f"x2_{j}:1" for j in range(30)))
by_bins("NNR-NEG-104", "level 2^31", "7.3.2 10.2.1.5", *LARGE, "x2_30:0", ":" + 30 * "1")
by_bins(
    "NNR-NEG-105",
    "level 2^32, a remainder of 31 bits",
    "7.3.2 10.2.1.5",
    *LARGE,
    "x2_30:1",
    ":" + 31 * "1",
)
by_bins(
    "NNR-NEG-106",
    "level 2^30 + 1, doubled by its state",
    "7.3.2 10.2.1.4",
    *LARGE,
    "x2_30:0",
    ":" + 30 * "0",
    ids=60,
    dq=1,
)


def tensor(
    id_: str,
    title: str,
    clauses: str,
    error: str,
    levels: Sequence[int],
    *,
    qp: int = 0,
    parameter: int = 0,
    profile: int = 1,
    features: str = "",
    requirements: str,
    **header: Any,
) -> None:
    """Register a vector of levels whose values are outside the range of the type."""

    @invalid(id_, title, clauses, features, error, 2, requirements=requirements)
    def make() -> Content:
        s = Stream().start(profile, parameter=parameter)
        s.ndu(ndu("w", [len(levels)], **header), levels, qp=qp)
        return s.refused()


for number, (fmt, depth) in enumerate([(2, 2), (3, 3), (4, 4), (5, 8), (6, 16)], 107):
    tensor(
        f"NNR-NEG-{number:03}",
        f"an integer that does not fit in {depth} bits",
        "7.2 7.3.2",
        "PayloadError",
        [0, 2 ** (depth - 1) if depth % 2 else -(2 ** (depth - 1)) - 1],
        kind=NNR_PT_INT,
        data_format=fmt,
        features=f"nnr_decompressed_data_format={fmt}",
        requirements="integer-range",
    )

# ------------------------------------------------------------------------------------------------ codebooks
BOOK = {"codebook_present_flag": 1, "codebook": codebook([-9, -3, 0, 4, 8], 2)}
tensor(
    "NNR-NEG-112",
    "an index outside the codebook, profile 0",
    "7.3.6",
    "PayloadError",
    [0, 3],
    profile=0,
    features="codebook",
    **BOOK,
    requirements="codebook-index",
)
tensor(
    "NNR-NEG-114",
    "an index outside the codebook after dependent quantization",
    "7.3.6",
    "PayloadError",
    [2, 2],
    dq_flag=1,
    features="codebook dq_flag",
    **BOOK,
    requirements="codebook-index",
)

# ------------------------------------------------------------------------------------------------ floats
FLOAT = {"clauses": "7.3.3 7.3.6", "error": "ElementError", "features": "stepSize"} | {"requirements": "float-range"}
tensor("NNR-NEG-115", "a step size below 2^-126 for float32", levels=[1], parameter=-505, **FLOAT)
tensor("NNR-NEG-116", "a step size above the range of float32", levels=[1], parameter=512, **FLOAT)
tensor(
    "NNR-NEG-117",
    "a step size above the range of float64",
    levels=[1],
    parameter=4095,
    qp=1,
    data_format=9,
    **FLOAT,
)
tensor(
    "NNR-NEG-119",
    "a step size below 2^-14 for float16",
    levels=[1],
    qp=-57,
    data_format=8,
    **FLOAT,
)
tensor("NNR-NEG-120", "a step size above the range of float16", levels=[0], qp=64, data_format=8, **FLOAT)
tensor("NNR-NEG-121", "a value outside the range of float32", levels=[0, -2], parameter=508, **FLOAT)
tensor(
    "NNR-NEG-122",
    "a value outside the range of float16",
    levels=[0, 65504 // 32 + 1],
    qp=20,
    data_format=8,
    **FLOAT,
)


@invalid(
    "NNR-NEG-123",
    "local scaling moves a weight outside the range of float32",
    "7.3.5 8.3.9",
    "NNR_PT_BLOCK NNR_CPT_LS",
    "ElementError",
    2,
    requirements="float-range",
)
def scaled() -> Content:
    s = Stream().start(parameter=400)
    header = ndu(["w", "s"], [2, 2], kind=NNR_PT_BLOCK, compressed_parameter_types=int(NNR_CPT_LS))
    s.ndu(header, [1, 2], [[0, 0], [1, 0]], qp=[-100, 108])
    return s.refused()


# ------------------------------------------------------------------------------------------------ raw
def raw(id_: str, title: str, payload: bytes, error: str = "PayloadError", *, requirements: str, **header: Any) -> None:
    """Register two raw parameters that decoders must reject."""

    @invalid(id_, title, "6.3.4.7 7.3.4", "NNR_PT_RAW_FLOAT", error, 2, requirements=requirements)
    def make() -> Content:
        s = Stream().start()
        s.ndu(ndu("w", [2], kind=NNR_PT_RAW_FLOAT, **header), payload=payload)
        return s.refused()


raw("NNR-NEG-124", "7 bytes for two raw parameters", bytes(7), requirements="raw-size")
raw("NNR-NEG-125", "12 bytes for two raw parameters", bytes(12), requirements="raw-size")
raw(
    "NNR-NEG-127",
    "a raw parameter outside the range of float16",
    np.array([0, 65520], "<f4").tobytes(),
    "ElementError",
    data_format=8,
    requirements="float-range",
)


# ------------------------------------------------------------------------------------------------ residuals
def residual(
    kind: int, shapes: Sequence[list[int]], levels: Sequence[Any], parameter: int = 0, **header: Any
) -> list[Content]:
    """Return an update and the residual of the next update."""
    made = []
    for depth, (shape, values) in enumerate(zip(shapes, levels, strict=True), 1):
        s = Stream()
        s.str_()
        more = {"base_model_id_present_flag": 1, "base_model_id": "m", "nnr_pre_flag": 1} if depth > 1 else {}
        s.parameters(mps_parent_signalling_enabled_flag=1, mps_quantization_parameter=parameter, **more)
        s.ndu(update_ndu("w", shape, depth, kind=kind, **header), values)
        array = np.array(values, np.int32)
        want = array.astype(np.int8 if header else np.int32) if kind == NNR_PT_INT else floats(array, parameter)
        made.append(s.gives({"w": want}) if depth < len(levels) else s.refused())
    return made


@invalid(
    "NNR-NEG-128",
    "the sum of integer updates does not fit in 32 bits",
    "7.3.2 9.2.4",
    "nnr_pre_flag",
    "PayloadError",
    2,
    requirements="integer-range",
)
def integer_sum() -> list[Content]:
    return residual(NNR_PT_INT, [[2], [2]], [[0, 2**31 - 1], [0, 1]])


@invalid(
    "NNR-NEG-129",
    "the sum of float updates is outside the range of float32",
    "7.3.3 9.2.4",
    "nnr_pre_flag",
    "ElementError",
    2,
    requirements="float-range",
)
def float_sum() -> list[Content]:
    return residual(1, [[2], [2]], [[0, 1], [0, 1]], 508)


@invalid(
    "NNR-NEG-130",
    "a residual with a different shape than its update",
    "7.3.3 9.2.4",
    "nnr_pre_flag",
    "MissingReferenceError",
    2,
    requirements="update-shape",
)
def other_shape() -> list[Content]:
    return residual(1, [[2], [3]], [[0, 1], [0, 1, 2]])


@invalid(
    "NNR-NEG-131",
    "the sum of integer updates does not fit in its 4 bits",
    "7.2 7.3.2 9.2.4",
    "nnr_pre_flag",
    "PayloadError",
    2,
    requirements="integer-range",
)
def narrow_sum() -> list[Content]:
    return residual(NNR_PT_INT, [[2], [2]], [[0, -8], [0, -1]], data_format=4)
