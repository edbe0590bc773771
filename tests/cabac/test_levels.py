"""The fast decoder and encoder of levels against the tracer, which codes single bins, on larger tensors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nnr_codec.cabac_ext.kernel import PayloadDecoder, PayloadEncoder, PayloadTracer, TensorSide, TensorSyntax
from nnr_codec.errors import EncodeError, PayloadError

Levels = npt.NDArray[np.int32]
SHAPE = (91, 101)  # three pieces


def laplacian(seed: int, scale: float, shape: tuple[int, ...] = SHAPE, bound: int = 2**30 - 1) -> Levels:
    x = np.random.default_rng(seed).laplace(size=shape) * scale
    return np.clip(np.round(x), -bound, bound).astype(np.int32)


def random_ids(syntax: TensorSyntax, unary_length: int, seed: int) -> npt.NDArray[np.uint8]:
    """Draw an id for each context that has one in a plain tensor."""
    ids = np.zeros(87 + 4 * unary_length, np.uint8)
    rng = np.random.default_rng(seed)
    for start, stop in ((0, 3), (48, 51), (53, 84), (87, 87 + 2 * unary_length)):
        ids[start:stop] = rng.integers(0, 9, stop - start)
    return ids


def encoded(syntax: TensorSyntax, levels: Levels, side: TensorSide | None = None, **options: Any) -> bytes:
    encoder = PayloadEncoder(**options)
    encoder.quant_tensor(syntax, levels, side)
    encoder.terminate()
    return encoder.getvalue()


def check(levels: Levels, side: TensorSide | None = None, **options: Any) -> bytes:
    """Encode; the decoder agrees with the tracer, and without dependent quantization with the levels."""
    syntax = TensorSyntax(levels.shape, **options)
    payload = encoded(syntax, levels, side)
    decoder, tracer = PayloadDecoder(payload), PayloadTracer(payload)
    got, expected = decoder.quant_tensor(syntax)[0], tracer.quant_tensor(syntax)[0]
    assert np.array_equal(got, expected)
    decoder.terminate()
    tracer.terminate()
    if options.get("dq_flag"):
        assert np.array_equal(np.sign(got) * ((np.abs(got).astype(np.int64) + 1) // 2), levels)
    else:
        assert np.array_equal(got, levels)
    return payload


@pytest.mark.medium
@pytest.mark.parametrize("unary_length", [1, 2, 3, 10, 256])
@pytest.mark.parametrize("scale", [0.1, 0.7, 4, 30, 1e3, 1e8])
@pytest.mark.parametrize("dq_flag", [0, 1])
def test_plain(dq_flag: int, scale: float, unary_length: int) -> None:
    levels = laplacian(1, scale)
    options: dict[str, Any] = {"dq_flag": dq_flag, "cabac_unary_length_minus1": unary_length - 1}
    check(levels, **options)
    ids = random_ids(TensorSyntax(SHAPE, **options), unary_length, 2)
    check(levels, TensorSide(shift_parameter_ids=ids), **options)


@pytest.mark.parametrize("unary_length", [1, 10])
@pytest.mark.parametrize("dq_flag", [0, 1])
def test_improbable_bins_in_a_row(dq_flag: int, unary_length: int) -> None:
    """Each takes up to 7 bits, at any position of the window."""
    x: list[int] = []
    for k in range(60):
        x += [0, 1] * 150 + [1, -1] * 150 + [0] * (200 + k) + [-7] + [0] * k
    check(np.array(x, np.int32), dq_flag=dq_flag, cabac_unary_length_minus1=unary_length - 1)


@pytest.mark.parametrize("dq_flag", [0, 1])
@pytest.mark.parametrize("parameters", range(9))
def test_runs_of_zeros(parameters: int, dq_flag: int) -> None:
    """Leaps begin in any state of the context and end at any distance from the next other level."""
    rng = np.random.default_rng(parameters)
    dense = [rng.integers(-2, 3, 20 * part) * (rng.random(20 * part) < 1 / part) for part in (2, 5, 20, 100, 1000)]
    levels = np.concatenate([*dense, *dense[::-1]]).astype(np.int32)
    ids = np.full(87 + 40, parameters, np.uint8)
    ids[[*range(24, 48), *range(51, 53)]] = 0
    ids[107:] = 0
    if not dq_flag:
        ids[3:24] = 0
    check(levels, TensorSide(shift_parameter_ids=ids), dq_flag=dq_flag)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dq_flag", [0, 1])
def test_one_sign(dq_flag: int, sign: int) -> None:
    check(sign * np.abs(laplacian(1, 5)), dq_flag=dq_flag)


@pytest.mark.parametrize(
    "codebook", [(2, 0), (2, 1), (3, 1), (9, 0), (12, 11), (12, 10), (13, 6), (40, 17), (2**31, 5)]
)
@pytest.mark.parametrize("unary_length", [1, 5, 10])
def test_codebooks(unary_length: int, codebook: tuple[int, int]) -> None:
    """Both end values occur, for which bins that must be 0 are omitted."""
    size, zero = codebook
    levels = np.clip(laplacian(1, 9), -zero, size - 1 - zero)
    levels[5, 5], levels[7, 7] = -zero, min(size - 1 - zero, 2**30)
    for dq_flag in (0, 1):
        if not dq_flag or size < 2**30:
            check(levels, codebook=codebook, dq_flag=dq_flag, cabac_unary_length_minus1=unary_length - 1)


@pytest.mark.parametrize("dq_flag", [0, 1])
@pytest.mark.parametrize("scale", [0.5, 5, 100])
@pytest.mark.parametrize("references", ["co_loc", "any_sig", "both", "both, codebook"])
def test_references(references: str, scale: float, dq_flag: int) -> None:
    levels = laplacian(1, scale)
    options: dict[str, Any] = {"dq_flag": dq_flag, "parent_node_id_present_flag": 1}
    if references != "any_sig":
        options |= {"temporal_context_modeling_flag": 1, "co_loc": laplacian(2, 2)}
    if references != "co_loc":
        options["any_sig"] = np.random.default_rng(3).integers(0, 2, SHAPE, dtype=np.uint8)
    if references == "both, codebook":
        options["codebook"] = (21, 8)
        levels = np.clip(levels, -8, 12)
    side = TensorSide(hist_dep_sig_prob_enabled_flag=int(references != "co_loc"))
    check(levels, side, **options)


@pytest.mark.parametrize("dq_flag", [0, 1])
def test_rows_and_blocks(dq_flag: int) -> None:
    levels = laplacian(1, 3)
    levels[np.random.default_rng(2).random(SHAPE[0]) < 0.4] = 0
    for scan_order in range(5):
        check(levels, TensorSide(row_skip_enabled_flag=1), dq_flag=dq_flag, scan_order=scan_order)


@pytest.mark.parametrize("scale", [0.3, 4, 1e6])
def test_every_end_of_the_buffer(scale: float) -> None:
    """The payload ends where eight bytes cannot be read at once; truncation is detected without reading outside."""
    levels = laplacian(1, scale, (60,))
    syntax, payload = TensorSyntax([60]), encoded(TensorSyntax([60]), levels)
    for size in range(2, len(payload) + 1):
        outcomes = []
        for tool in (PayloadDecoder, PayloadTracer):
            try:
                outcomes.append(tool(payload[:size]).quant_tensor(syntax)[0].tolist())
            except PayloadError as error:
                outcomes.append(error.message)
        assert outcomes[0] == outcomes[1]


def test_twice_a_level_is_out_of_range() -> None:
    levels = np.zeros(5000, np.int32)
    levels[4500] = 2**30
    with pytest.raises(EncodeError, match="exceeds 32 bits"):
        encoded(TensorSyntax([5000], dq_flag=1), levels)


# ------------------------------------------------------------------------------------------------ rows of blocks
@pytest.mark.medium
@pytest.mark.parametrize("scan_order", [1, 2, 4])
@pytest.mark.parametrize("dq_flag", [0, 1])
@pytest.mark.parametrize("scale", [0.05, 3, 1e5])
def test_threads_change_nothing(scale: float, dq_flag: int, scan_order: int) -> None:
    """Groups of rows, the last of which is shorter, have any order; nearly constant zeros cause long carries."""
    shape = (1201, 300)
    levels = laplacian(1, scale, shape)
    syntax = TensorSyntax(shape, dq_flag=dq_flag, scan_order=scan_order)
    expected = encoded(syntax, levels)
    with ThreadPoolExecutor(3) as executor:
        assert encoded(syntax, levels, run=executor.map) == expected
    assert encoded(syntax, levels, run=lambda f, groups: [f(k) for k in [*groups][::-1]][::-1]) == expected
    assert np.array_equal(
        PayloadTracer(expected).quant_tensor(syntax)[0], PayloadDecoder(expected).quant_tensor(syntax)[0]
    )


@pytest.mark.parametrize("dq_flag", [0, 1])
@pytest.mark.parametrize("scale", [0.02, 1, 40])
def test_entry_points_equal_the_decoder_positions(scale: float, dq_flag: int) -> None:
    """The payload has several tensors."""
    tensors = [
        (TensorSyntax(shape, dq_flag=dq_flag, scan_order=scan_order), laplacian(k, scale, shape))
        for k, (shape, scan_order) in enumerate([((70, 9), 1), ((5, 5), 0), ((33, 200), 2), ((8, 8), 1), ((129, 3), 3)])
    ]
    encoder = PayloadEncoder()
    for syntax, levels in tensors:
        encoder.quant_tensor(syntax, levels)
    with pytest.raises(ValueError, match="terminated"):
        encoder.entry_points()
    encoder.terminate()
    decoder = PayloadDecoder(encoder.getvalue())
    met = [tuple(point) for syntax, _ in tensors for point in decoder.quant_tensor(syntax)[1].entry_points]
    assert len(met) == 8 + 2 + 4
    assert encoder.entry_points() == met


def test_an_error_in_a_row_of_blocks() -> None:
    levels = np.zeros((64, 8), np.int32)
    levels[40, 3] = 2**30
    with pytest.raises(EncodeError, match="exceeds 32 bits"):
        encoded(TensorSyntax((64, 8), dq_flag=1, scan_order=1), levels)
