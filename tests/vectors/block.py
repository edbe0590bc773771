"""NNR-BLK: weights and related tensors in one arithmetic code string, and decomposed tensors.

Products and sums are exact in float32, so the order of additions and rounding have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from nnr_codec.constants import NNR_PT_BLOCK

from ..builder import codebook, ndu
from .arithmetic import chosen, dependent, exact, floats, look_up
from .case import Content, Tensor, acceptable, valid
from .stream import Stream, side

DC, LS, BN, BI = 1, 2, 4, 8

#: Roles in the order of the ids (6.4.3.7), and in the order of the bits (7.3.5).
LISTED = ("weight", "g", "h", "ls", "beta", "gamma", "mean", "var", "bias")
CODED = ("ls", "bias", "beta", "gamma", "mean", "var", "weight", "g", "h")
QP = {"ls": -12, "bias": 3, "beta": -5, "gamma": -8, "mean": 0, "var": -7, "weight": -4, "g": 0, "h": -4}


def product(g: Tensor, h: Tensor, dims: Sequence[int], scaling: Tensor | None, dtype: str) -> Tensor:
    """Return G * H, reshaped, each row of the first dimension times its scaling."""
    values = [
        sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(row, column, strict=True)), Fraction(0))
        for row in g
        for column in h.T
    ]
    return scaled(values, dims, scaling, dtype)


def scaled(values: Sequence[Fraction], dims: Sequence[int], scaling: Tensor | None, dtype: str) -> Tensor:
    """Return the values of a tensor, each row of the first dimension times its scaling."""
    if scaling is not None:
        per_row = prod(dims[1:])
        values = [value * Fraction(float(scaling[k // per_row])) for k, value in enumerate(values)]
    return exact(values, dtype, dims)


def block(
    types: int,
    dims: Sequence[int],
    *,
    rows: int = 0,
    rank: int = 0,
    books: tuple[tuple[list[int], int], ...] = (),
    sides: dict[str, Any] | None = None,
    dtype: str = "<f4",
    profile: int = 1,
    density: int = 2,
    **header: Any,
) -> Content:
    """Return a bitstream of one block with parts of chosen integers."""
    dims, dq, scan = tuple(dims), header.get("dq_flag", 0), header.get("scan_order", 0)
    present = {"ls"} if types & LS else set()
    present |= {"beta", "gamma", "mean", "var"} if types & BN else set()
    present |= {"bias"} if types & BI else set()
    present |= {"g", "h"} if types & DC else {"weight"}
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(present, dims[:1])
    if types & DC:
        shapes |= {"g": (rows, rank), "h": (rank, prod(dims) // rows)}
        header |= {"decomposition_rank": rank, "g_number_of_rows": rows}
    else:
        shapes["weight"] = dims
    coded = [role for role in CODED if role in present]
    levels = {role: chosen(shapes[role], 3, 3 * k + types + 1) for k, role in enumerate(coded)}
    if types & LS:
        levels["ls"] = np.array([1 + k % 5 for k in range(dims[0])], np.int32)
    for skipped in (side_role for side_role in sides or {} if side_role in ("weight", "g")):
        levels[skipped][0] = 0
    if books:
        header |= {"codebook_present_flag": 1, "codebook": codebook(*books[0])}
        if types & DC:
            header["codebook_dc"] = codebook(*books[1])
    names = [role for role in LISTED if role in present]
    s = Stream().start(profile, density)
    s.ndu(
        ndu(names, dims, kind=NNR_PT_BLOCK, compressed_parameter_types=types, **header),
        *(levels[role] for role in coded),
        qp=[QP[role] for role in coded],
        sides=[(sides or {}).get(role) for role in coded],
    )
    rec: dict[str, Tensor] = {}
    for role in coded:
        block_scan = scan if role in ("weight", "g", "h") else 0
        integers = dependent(levels[role], block_scan) if dq else levels[role]
        if books and role in ("weight", "g", "h"):
            entries, zero = books[role == "h"]
            integers = look_up(integers, entries, zero)
        rec[role] = floats(integers, QP[role], density, dtype)
    shift = header.get("first_tensor_dimension_shift", 0)
    tensors = {role: value for role, value in rec.items() if role not in ("weight", "g", "h", "ls")}
    if types & DC:
        weight, name = product(rec["g"], rec["h"], dims, rec.get("ls"), dtype), "g"
    else:
        values = [Fraction(float(value)) for value in rec["weight"].flat]
        weight, name = scaled(values, dims, rec.get("ls"), dtype), "weight"
    tensors[name] = np.moveaxis(weight, 0, shift)
    raw = dict(rec)
    if not types & DC:
        raw["weight"] = np.moveaxis(rec["weight"], 0, shift)
    return s.gives(tensors, raw=raw)


COMBINATIONS = [LS, BI, BN, LS | BI, LS | BN, BN | BI, LS | BN | BI]
NAMES = {LS: "local scaling", BN: "batch normalization", BI: "bias", DC: "decomposition"}


def described(types: int) -> str:
    """Return the parameter types in words."""
    return ", ".join(name for bit, name in NAMES.items() if types & bit)


for number, types in enumerate(COMBINATIONS, 1):

    @valid(
        f"NNR-BLK-{number:03}",
        f"weight with {described(types)}",
        "6.4.3.7 7.3.5 8.3.8 8.3.9",
        f"NNR_PT_BLOCK compressed_parameter_types={types}",
    )
    def weights(types: int = types) -> Content:
        return block(types, [4, 2, 3])


for number, types in enumerate([DC, DC | LS, DC | BI, DC | LS | BN | BI], 8):

    @valid(
        f"NNR-BLK-{number:03}",
        f"weight as G and H with {described(types)}",
        "6.4.3.7 7.3.5 8.3.7",
        f"NNR_PT_BLOCK NNR_CPT_DC compressed_parameter_types={types}",
    )
    def decomposed(types: int = types) -> Content:
        return block(types, [4, 3, 2], rows=4, rank=2)


@valid(
    "NNR-BLK-012",
    "G has more rows than the first dimension of the tensor",
    "6.4.3.7 7.3.5",
    "NNR_PT_BLOCK NNR_CPT_DC g_number_of_rows",
)
def other_rows() -> Content:
    return block(DC | LS, [2, 3, 4], rows=6, rank=3)


@valid("NNR-BLK-013", "the codebook applies only to the weight", "6.3.3.7 7.3.5", "NNR_PT_BLOCK codebook")
def with_codebook() -> Content:
    return block(LS | BI, [3, 5], books=(([-20, -7, -1, 0, 2, 9, 30], 3),))


@valid("NNR-BLK-014", "separate codebooks for G and H", "6.3.3.7 7.3.5", "NNR_PT_BLOCK NNR_CPT_DC codebook CodebookDC")
def two_codebooks() -> Content:
    books = (([-9, -5, -1, 0, 2, 4, 8], 3), ([-6, -4, -2, 1, 3, 7, 12], 3))
    return block(DC | BI, [4, 6], rows=4, rank=2, books=books)


@valid(
    "NNR-BLK-026",
    "separate codebooks for G and H with local scaling, batch normalization and bias",
    "6.3.3.7 7.3.5",
    "NNR_PT_BLOCK NNR_CPT_DC NNR_CPT_LS NNR_CPT_BN codebook CodebookDC",
)
def two_codebooks_and_all_vectors() -> Content:
    books = (([-9, -5, -1, 0, 2, 4, 8], 3), ([-6, -4, -2, 1, 3, 7, 12], 3))
    return block(DC | LS | BN | BI, [4, 2, 3], rows=4, rank=2, books=books)


@valid(
    "NNR-BLK-015",
    "dependent quantization of all parts, each starting in state 0",
    "7.3.5 10.2.1.4",
    "NNR_PT_BLOCK dq_flag",
)
def dependent_block() -> Content:
    return block(LS | BN | BI, [5, 4], dq_flag=1)


@valid(
    "NNR-BLK-016",
    "shift parameter ids for each part, and skipped rows",
    "7.3.5 10.2.1.6 10.3.2.2",
    "NNR_PT_BLOCK shift_parameter_ids row_skip_enabled_flag",
)
def ids() -> Content:
    return block(
        BN,
        [6, 4],
        sides={
            "beta": side(sig={0: 1, 2: 3}),
            "mean": side(sign={0: 8}),
            "weight": side(sig={0: 5, 1: 6}, gtx={0: 2}, skip=1),
        },
    )


@valid(
    "NNR-BLK-017",
    "entry points for the weight only",
    "6.4.3.7 7.3.5",
    "NNR_PT_BLOCK scan_order=1 cabac_offset_list",
)
def scanned() -> Content:
    return block(LS | BI, [17, 9], scan_order=1)


@valid(
    "NNR-BLK-018",
    "entry points of G, then of H, with states",
    "6.4.3.7 7.3.5",
    "NNR_PT_BLOCK NNR_CPT_DC scan_order=1 dq_state_list",
)
def scanned_decomposed() -> Content:
    return block(DC | BI, [17, 10], rows=17, rank=9, scan_order=1, dq_flag=1)


@valid(
    "NNR-BLK-019",
    "only the dimensions of the weight are shifted",
    "4.12 7.3.5",
    "NNR_PT_BLOCK first_tensor_dimension_shift",
)
def shifted() -> Content:
    return block(LS | BI, [3, 4, 2], first_tensor_dimension_shift=2)


@valid(
    "NNR-BLK-020",
    "the dimensions of the recomposed tensor are shifted, not those of G and H",
    "4.12 7.3.5",
    "NNR_PT_BLOCK NNR_CPT_DC first_tensor_dimension_shift",
)
def shifted_decomposed() -> Content:
    return block(DC | LS, [3, 4, 2], rows=3, rank=2, first_tensor_dimension_shift=1)


@valid("NNR-BLK-021", "all parts in float64", "7.2 7.3.5", "NNR_PT_BLOCK nnr_decompressed_data_format=9")
def in_float64() -> Content:
    return block(
        LS | BN | BI, [3, 4], dtype="<f8", nnr_decompressed_data_format_present_flag=1, nnr_decompressed_data_format=9
    )


@valid("NNR-BLK-022", "block in profile 0", "7.3.5", "NNR_PT_BLOCK profile_0")
def profile_0() -> Content:
    return block(LS | BN | BI, [4, 3], profile=0, density=1)


WHOLE = (4, 3, 2)


def pair(*dims: Sequence[int] | None, **header: Any) -> Content:
    """Return G and H in two units of type NNR_PT_FLOAT with these tensor_dimensions; None omits them."""
    g, h = chosen([4, 2], 3), chosen([2, 6], 3, 9)
    common = {"compressed_parameter_types": DC, "decomposition_rank": 2, "g_number_of_rows": 4} | header
    s = Stream({"w": WHOLE}).start()
    s.ndu(ndu("w", dims[0], **common), g, qp=4).ndu(ndu("w_H", dims[1], **common), h, qp=-8)
    s.ndu(ndu("after", [2]), [1, 2])
    rec = {"w": floats(g, 4), "w_H": floats(h, -8)}
    weight = product(rec["w"], rec["w_H"], WHOLE, None, "<f4")
    weight = np.moveaxis(weight, 0, header.get("first_tensor_dimension_shift", 0))
    after = {"after": floats([1, 2])}
    return s.gives({"w": weight} | after, raw=rec | after)


@valid("NNR-BLK-023", "G and H in two units", "6.4.3.7 8.3.7", "NNR_PT_FLOAT NNR_CPT_DC")
def two_units() -> Content:
    return pair(WHOLE, WHOLE)


@valid(
    "NNR-BLK-024",
    "G and H in two units, with one dimension shift of the recomposed tensor",
    "6.4.3.7 8.3.7",
    "NNR_PT_FLOAT NNR_CPT_DC first_tensor_dimension_shift",
)
def two_units_shifted() -> Content:
    return pair(WHOLE, WHOLE, first_tensor_dimension_shift=1)


@valid(
    "NNR-SYN-058",
    "G and H in two units without dimensions, which the topology provides under the id of G",
    "6.4.3.7 8.3.7",
    "NNR_PT_FLOAT NNR_CPT_DC tensor_dimensions_flag=0",
    topology_dimensions={"w": WHOLE},
)
def two_units_of_topology() -> Content:
    return pair(None, None)


# The standard takes omitted dimensions only from the topology.
@acceptable(
    "NNR-ACC-035",
    "H without dimensions, after G with dimensions",
    "6.4.3.7 8.3.7",
    "NNR_PT_FLOAT NNR_CPT_DC tensor_dimensions_flag=0",
)
def h_without_dimensions() -> Content:
    return pair(WHOLE, None)
