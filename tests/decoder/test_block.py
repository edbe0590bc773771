"""NNR_PT_BLOCK in every combination of its parameters, and decomposed tensors in one unit and in two (7.3.5)."""

from __future__ import annotations

import tracemalloc
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.cabac_ext.kernel import TensorSide
from nnr_codec.constants import (
    NNR_CPT_BI,
    NNR_CPT_BN,
    NNR_CPT_DC,
    NNR_CPT_LS,
    NNR_PT_BLOCK,
    NNR_PT_INT,
    NNR_PT_RAW_FLOAT,
)
from nnr_codec.limits import Limits
from nnr_codec.syntax.structures import NnrCompressedDataUnitHeader

from ..builder import Bitstream, codebook, ndu, resolved, step_size
from .support import refused

DIMS = [6, 4, 3]
ROWS, RANK = 4, 2  # of G: 4 x 2, of H: 2 x 18
COMBINATIONS = [
    sum(chosen)
    for size in range(1, 5)
    for chosen in combinations((NNR_CPT_DC, NNR_CPT_LS, NNR_CPT_BN, NNR_CPT_BI), size)
]
ENTRIES, ENTRIES_DC = [-40, -9, -3, 0, 2, 5, 30], [-100, -7, 0, 1, 4]
LISTED = {NNR_CPT_LS: ["ls"], NNR_CPT_BN: ["beta", "gamma", "mean", "var"], NNR_CPT_BI: ["bias"]}


def roles(types: int) -> tuple[list[str], list[str]]:
    """Return the roles in the order of the ids, and in the order of the payload (6.4.3.7, 7.3.5)."""
    weights = ["g", "h"] if types & NNR_CPT_DC else ["weight"]
    vectors = {flag: names if types & flag else [] for flag, names in LISTED.items()}
    ids = [*weights, *vectors[NNR_CPT_LS], *vectors[NNR_CPT_BN], *vectors[NNR_CPT_BI]]
    return ids, [*vectors[NNR_CPT_LS], *vectors[NNR_CPT_BI], *vectors[NNR_CPT_BN], *weights]


def shape_of(role: str) -> tuple[int, ...]:
    if role == "g":
        return (ROWS, RANK)
    if role == "h":
        return (RANK, DIMS[0] * DIMS[1] * DIMS[2] // ROWS)
    return tuple(DIMS) if role == "weight" else (DIMS[0],)


def block(types: int, with_codebook: bool = False, **elements: Any) -> NnrCompressedDataUnitHeader:
    if types & NNR_CPT_DC:
        elements |= {"decomposition_rank": RANK, "g_number_of_rows": ROWS}
    if with_codebook:
        elements |= {"codebook_present_flag": 1, "codebook": codebook(ENTRIES, 3)}
        if types & NNR_CPT_DC:
            elements["codebook_dc"] = codebook(ENTRIES_DC, 2, egk=3)
    return ndu(roles(types)[0], DIMS, kind=NNR_PT_BLOCK, compressed_parameter_types=types, **elements)


def looked_up(role: str, levels: Any) -> Any:
    """Return Codebook[] of the weight or G, CodebookDC[] of H, and nothing for vectors."""
    if role in ("weight", "g"):
        return np.array(ENTRIES)[levels + 3]
    return np.array(ENTRIES_DC)[levels + 2] if role == "h" else levels


def chosen_levels(types: int, with_codebook: bool, dq: int) -> dict[str, Any]:
    """Draw levels by role, in coding order; inside the codebooks after dependent quantization is resolved."""
    rng = np.random.default_rng(types + 16 * with_codebook + 32 * dq)
    levels = {}
    for role in roles(types)[1]:
        bound = {"weight": 3, "g": 3, "h": 2}.get(role, 9) if with_codebook else 9
        levels[role] = rng.integers(-bound, bound + 1, shape_of(role)).astype(np.int32)
        if dq and with_codebook and role in ("weight", "g", "h"):
            # resolved levels reach 2 * level; level 1 gives 2 or 1, so only -1, 0 and 1 stay inside
            levels[role] = np.clip(levels[role], -1, 1)
    return levels


def product(g: Any, h: Any) -> Any:
    """Return G * H with sums in order of the rank, in float64."""
    return sum(g[:, r : r + 1].astype("f8") * h[r : r + 1].astype("f8") for r in range(g.shape[1]))


@pytest.mark.parametrize("types", COMBINATIONS)
@pytest.mark.parametrize("profile", [0, 1])
def test_every_combination(profile: int, types: int) -> None:
    for with_codebook in (False, True):
        for dq in (0, 1):
            assert_decodes(profile, types, with_codebook, dq)


def assert_decodes(profile: int, types: int, with_codebook: bool, dq: int) -> None:
    levels = chosen_levels(types, with_codebook, dq)
    coded_order = roles(types)[1]
    qps = [-4 * k - 3 for k in range(len(coded_order))]  # qp_value is each tensor's own
    shift = 1 if profile else 0
    header = block(types, with_codebook, dq_flag=dq, **({"first_tensor_dimension_shift": 1} if profile else {}))
    data = Bitstream().str_(profile).mps().ndu(header, *levels.values(), qp=qps).data

    rec = {}
    for role, qp in zip(coded_order, qps, strict=True):
        integers = resolved(levels[role]) if dq else levels[role]
        if with_codebook:
            integers = looked_up(role, integers)
        rec[role] = integers.astype("f4") * np.float32(step_size(qp))

    raw = nnr.decode(data, raw=True)
    assert list(raw) == coded_order
    for role, values in rec.items():
        expected = np.moveaxis(values, 0, shift) if role == "weight" else values
        np.testing.assert_array_equal(raw[role], expected, err_msg=role)
        assert raw[role].dtype == np.float32

    weight = product(rec["g"], rec["h"]).reshape(DIMS) if types & NNR_CPT_DC else rec["weight"]
    if types & NNR_CPT_LS:
        weight = weight.astype("f8") * rec["ls"].astype("f8").reshape(-1, 1, 1)
    want = {roles(types)[0][0]: np.moveaxis(weight.astype("f4"), 0, shift)}
    want |= {role: rec[role] for role in rec if role in ("beta", "gamma", "mean", "var", "bias")}
    model = nnr.decode(data)
    assert set(model) == set(want)
    for name, values in want.items():
        np.testing.assert_array_equal(model[name], values, err_msg=name)
        assert model[name].dtype == np.float32
    with nnr.open(data) as file:
        assert set(file) == set(want)
        for name, values in want.items():
            assert file.info[name].shape == values.shape
            np.testing.assert_array_equal(file[name], values)


def test_a_block_of_nothing_but_a_weight_is_refused() -> None:
    """Without LS, BN, BI and DC there is one id, and a list has at least two (errata N7)."""
    header = ndu(["w", "x"], DIMS, kind=NNR_PT_BLOCK, compressed_parameter_types=0)
    data = Bitstream().str_().mps().ndu(header, payload=b"\xda\x24\x80").data
    refused(data, nnr.ElementError, None, unit="unit 2 (NNR_NDU")
    single = ndu("w", DIMS, kind=NNR_PT_BLOCK, compressed_parameter_types=0)
    with pytest.raises(nnr.ElementError, match="no parameters besides its weight"):
        nnr.decode(Bitstream().str_().mps().ndu(single, payload=b"\xda\x24\x80").data)


@pytest.mark.parametrize("types", COMBINATIONS)
@pytest.mark.parametrize("surplus", [-1, 1])
def test_ids_that_do_not_fit_the_parameter_types_are_refused(types: int, surplus: int) -> None:
    header = block(types)
    names = [f"t{k}" for k in range(len(roles(types)[0]) + surplus)]
    if len(names) < 2:
        return
    header.topology_elem_id_list = names
    data = Bitstream().str_().mps().ndu(header, payload=b"\xda\x24\x80").data
    refused(data, nnr.ElementError, f"{len(names)} topology elements", unit="unit 2", path="topology_elem_id_list")


def test_a_block_is_float() -> None:
    header = block(NNR_CPT_BI, nnr_decompressed_data_format_present_flag=1, nnr_decompressed_data_format=0)
    data = Bitstream().str_().mps().ndu(header, np.ones(6), np.ones(DIMS)).data
    refused(data, nnr.ElementError, "TENSOR_INT32 is not allowed with this payload type", unit="unit 2")


@pytest.mark.parametrize("data_format", [8, 9])
def test_a_block_of_other_floats(data_format: int) -> None:
    header = block(NNR_CPT_BI | NNR_CPT_LS, nnr_decompressed_data_format_present_flag=1)
    header.nnr_decompressed_data_format = data_format
    weight = np.arange(72).reshape(DIMS)
    scaling = np.arange(1, 7)
    got = nnr.decode(Bitstream().str_().mps().ndu(header, scaling, np.arange(6), weight, qp=-8).data)
    dtype = {8: np.float16, 9: np.float64}[data_format]
    assert {values.dtype for values in got.tensors.values()} == {np.dtype(dtype)}
    want = (weight.astype("f8") / 4) * (scaling.reshape(-1, 1, 1) / 4)
    np.testing.assert_array_equal(got["weight"], want.astype(dtype))
    np.testing.assert_array_equal(got["bias"], np.arange(6) / 4)


def test_a_scaled_weight_beyond_its_format_is_refused() -> None:
    """Each factor is legal, but the product is infinite in float32 (7.3.5)."""
    header = block(NNR_CPT_LS)
    data = Bitstream().str_().mps(parameter=400).ndu(header, np.ones(6), np.ones(DIMS)).data
    assert np.isfinite(nnr.decode(data, raw=True)["weight"]).all()
    with pytest.raises(nnr.BitstreamError, match="unit 2"):
        nnr.decode(data)


@pytest.mark.parametrize("scan", [1, 2, 3, 4])
@pytest.mark.parametrize("dq", [0, 1])
def test_blocks_with_entry_points_and_row_skipping(scan: int, dq: int) -> None:
    """scan_order applies to the weight only; G's entry points come before H's (errata G5)."""
    rng = np.random.default_rng(scan)
    g, h = rng.integers(-5, 6, (80, 24)), rng.integers(-5, 6, (24, 40))
    g[[3, 4, 40]] = 0
    ids = ["g", "h", "bias"]
    header = ndu(ids, [80, 8, 5], kind=NNR_PT_BLOCK, compressed_parameter_types=NNR_CPT_DC | NNR_CPT_BI)
    header.decomposition_rank, header.g_number_of_rows = 24, 80
    header.scan_order, header.dq_flag = scan, dq
    bias = np.arange(80) - 40
    stream = Bitstream().str_().mps()
    sides = [None, TensorSide(row_skip_enabled_flag=1), None]
    data = stream.ndu(header, bias, g, h, qp=-8, sides=sides).data
    assert len(header.cabac_offset_list) == -(-80 // (4 << scan)) - 1 + -(-24 // (4 << scan)) - 1
    raw = nnr.decode(data, raw=True)
    if dq:
        # Resolving follows the coding order; the kernel's is checked elsewhere. Parities and signs are distinguishable.
        assert ((raw["g"] != 0) == (g != 0)).all()
        assert (np.sign(raw["h"]) == np.sign(h)).all()
        np.testing.assert_array_equal(raw["bias"], resolved(bias) / 4)
        return
    np.testing.assert_array_equal(raw["g"], g / 4)
    np.testing.assert_array_equal(raw["h"], h / 4)
    np.testing.assert_array_equal(nnr.decode(data)["g"], (g @ h / 16).reshape(80, 8, 5))


# ------------------------------------------------------------------------------------------------ G and H in two units
def half(name: str, dims: list[int] = DIMS, **elements: Any) -> NnrCompressedDataUnitHeader:
    ids = {"compressed_parameter_types": NNR_CPT_DC, "decomposition_rank": RANK, "g_number_of_rows": ROWS}
    return ndu(name, dims, **(ids | elements))


G = np.arange(8).reshape(4, 2) - 3
H = np.arange(36).reshape(2, 18) - 11


@pytest.mark.parametrize("second", ["w", "w_H"])
@pytest.mark.parametrize("shift", [0, 1, 2])
def test_two_units(second: str, shift: int) -> None:
    """G precedes H; the result is one variable with the name of G (errata N5). The shift applies to the product."""
    header_g = half("w", first_tensor_dimension_shift=shift)
    header_h = half(second, first_tensor_dimension_shift=shift)
    stream = Bitstream().str_().mps().ndu(header_g, G, qp=-8).ndu(header_h, H, qp=-4)
    data = stream.ndu(ndu("after", [1], kind=NNR_PT_INT), [5]).data
    model = nnr.decode(data)
    assert list(model) == ["w", "after"]
    np.testing.assert_array_equal(model["w"], np.moveaxis((G @ H / 8).reshape(DIMS), 0, shift))
    with nnr.open(data) as file:
        assert file.info["w"].shape == model["w"].shape
        np.testing.assert_array_equal(file["w"], model["w"])
        assert file.info["w"].nbytes == sum(unit.size.nnr_unit_size for unit in list(nnr.units(data))[2:4])


def test_two_units_raw() -> None:
    data = Bitstream().str_().mps().ndu(half("w"), G, qp=-8).ndu(half("w_H"), H, qp=-4).data
    raw = nnr.decode(data, raw=True)
    assert list(raw) == ["w", "w_H"]
    np.testing.assert_array_equal(raw["w"], G / 4)
    np.testing.assert_array_equal(raw["w_H"], H / 2)


def test_two_units_of_one_name_raw() -> None:
    """A G/H pair may share its id (errata N4); raw still returns both halves."""
    data = Bitstream().str_().mps().ndu(half("w"), G, qp=-8).ndu(half("w"), H, qp=-4).data
    raw = nnr.decode(data, raw=True)
    assert {values.shape for values in raw.tensors.values()} == {G.shape, H.shape}


def test_two_units_with_codebooks() -> None:
    g, h = np.clip(G, -3, 3), np.clip(H, -2, 2)
    header_g = half("w", codebook_present_flag=1, codebook=codebook(ENTRIES, 3))
    header_h = half("w_H", codebook_present_flag=1, codebook=codebook(ENTRIES_DC, 2))
    got = nnr.decode(Bitstream().str_().mps().ndu(header_g, g).ndu(header_h, h).data)["w"]
    np.testing.assert_array_equal(got, (np.array(ENTRIES)[g + 3] @ np.array(ENTRIES_DC)[h + 2]).reshape(DIMS))


def test_two_units_sum_in_order_of_the_rank() -> None:
    """Sums are in float64 with one rounding and without reordering, so all machines agree (errata N5)."""
    rng = np.random.default_rng(5)
    g, h = rng.integers(-(2**20), 2**20, (30, 17)), rng.integers(-(2**20), 2**20, (17, 20))
    ids = {"decomposition_rank": 17, "g_number_of_rows": 30}
    stream = Bitstream().str_().mps().ndu(half("w", [30, 4, 5], **ids), g, qp=-75)
    got = nnr.decode(stream.ndu(half("w_H", [30, 4, 5], **ids), h, qp=-78).data)["w"]
    g32, h32 = g.astype("f4") * np.float32(step_size(-75)), h.astype("f4") * np.float32(step_size(-78))
    np.testing.assert_array_equal(got, product(g32, h32).astype("f4").reshape(30, 4, 5))


@pytest.mark.parametrize("kind", [None, NNR_PT_INT])
def test_g_without_h_is_refused(kind: int | None) -> None:
    stream = Bitstream().str_().mps().ndu(half("w"), G)
    if kind is None:
        refused(stream.data, nnr.ElementError, "ends before H of 'w'")
        return
    refused(stream.ndu(ndu("x", [1], kind=kind), [1]).data, nnr.ElementError, "H of 'w' is expected", unit="unit 3")


def test_h_of_another_rank_is_refused() -> None:
    stream = Bitstream().str_().mps().ndu(half("w"), G)
    data = stream.ndu(half("w_H", decomposition_rank=3), np.ones((3, 18))).data
    with pytest.raises(nnr.BitstreamError, match="unit 3"):
        nnr.decode(data)


def test_h_of_another_size_is_refused() -> None:
    stream = Bitstream().str_().mps().ndu(half("w"), G)
    data = stream.ndu(half("w_H", [6, 4, 4]), np.ones((2, 24))).data
    with pytest.raises(nnr.BitstreamError):
        nnr.decode(data)


def test_h_cannot_make_the_product_larger_than_the_limits() -> None:
    """The product of a tall G and a smaller H is rejected before it is allocated."""
    limits = Limits(max_tensor_elements=10_000, max_tensor_bytes=100_000, max_total_bytes=200_000)
    stream = Bitstream().str_().mps().ndu(half("w", [9000], decomposition_rank=1, g_number_of_rows=9000), np.ones(9000))
    header = half("w_H", [9000], decomposition_rank=1, g_number_of_rows=1)
    data = stream.ndu(header, np.ones(9000)).data
    tracemalloc.start()
    try:
        with pytest.raises(nnr.BitstreamError):
            nnr.decode(data, limits=limits)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000, f"{peak:,} bytes for tensors of at most 100,000"


@pytest.mark.parametrize(("rank", "rows"), [(0, 4), (2, 0), (2, 5), (2, 144), (2, 7)])
def test_dimensions_that_do_not_divide_are_refused(rank: int, rows: int) -> None:
    header = half("w", decomposition_rank=rank, g_number_of_rows=rows)
    data = Bitstream().str_().mps().ndu(header, payload=b"\xda\x24\x80").data
    refused(data, nnr.ElementError, "cannot be G", unit="unit 2 (NNR_NDU", path="g_number_of_rows")


def test_raw_parameters_are_not_decomposed() -> None:
    header = half("w", kind=NNR_PT_RAW_FLOAT)
    data = Bitstream().str_().mps().ndu(header, payload=bytes(32)).data
    refused(
        data,
        nnr.ElementError,
        "only tensors of NNR_PT_FLOAT and NNR_PT_BLOCK can be decomposed",
        unit="unit 2 (NNR_NDU 'w')",
    )


def test_multiplications_are_limited() -> None:
    data = Bitstream().str_().mps().ndu(half("w"), G).ndu(half("w_H"), H).data
    work = 2 * (72 + 2048)  # of both terms, including the fixed cost of a term
    assert nnr.decode(data, limits=Limits(max_decomp_elements=work))["w"].size == 72
    with pytest.raises(nnr.LimitError, match=f"max_decomp_elements={work - 1:,}"):
        nnr.decode(data, limits=Limits(max_decomp_elements=work - 1))
