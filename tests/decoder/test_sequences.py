"""Sequences of units that caused defects: updates of mixed kinds, pairs of G and H, reading by name."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.payload import parts
from nnr_codec.cabac_ext.kernel import TensorSide
from nnr_codec.constants import (
    ICNN_NDU_EXT,
    NNR_CPT_BI,
    NNR_CPT_DC,
    NNR_PT_BLOCK,
    NNR_PT_FLOAT,
    NNR_PT_INT,
    NNR_PT_RAW_FLOAT,
    DecompressedDataFormat,
)
from nnr_codec.decoder.state import DIGEST_BYTES, NODE_BYTES, UpdateNode, UpdateState
from nnr_codec.limits import Limits
from nnr_codec.tensor.quant import scale

from ..builder import Bitstream, codebook, ndu, update_ndu
from ..interop import BY_ID
from ..shared import mostly_slow
from ..soon import soon
from .support import refused

DIMS = [2, 3]
LEVELS = [np.array(levels) for levels in ([[1, 0, -2], [0, 0, 3]], [[0, 4, 1], [0, 0, -1]], [[2, 2, 0], [0, 1, 0]])]
HISTORY = TensorSide(hist_dep_sig_prob_enabled_flag=1)


def start(pre: int = 0) -> Bitstream:
    return Bitstream().str_().mps(parent=1, pre=pre)


def int_update(depth: int, levels: Any = None, *, pre: int = 0, **elements: Any) -> bytes:
    """Return a bitstream with one NNR_PT_INT update of w."""
    levels = np.asarray(LEVELS[depth % 3] if levels is None else levels)
    header = update_ndu("w", levels.shape, depth, kind=NNR_PT_INT, **elements)
    return start(pre).ndu(header, levels).data


def raw_update(depth: int, values: Any, *, pre: int = 0) -> bytes:
    """Return a bitstream with one NNR_PT_RAW_FLOAT update of w."""
    values = np.asarray(values)
    return start(pre).raw(update_ndu("w", values.shape, depth, kind=NNR_PT_RAW_FLOAT), values).data


def half(name: str = "w", dims: Sequence[int] = (4, 5), *, depth: int | None = None, **elements: Any) -> Any:
    """Return the header of G or H."""
    ids = {"compressed_parameter_types": NNR_CPT_DC, "decomposition_rank": 2, "g_number_of_rows": 4} | elements
    return ndu(name, dims, **ids) if depth is None else update_ndu(name, dims, depth, **ids)


def kept(state: UpdateState) -> dict[tuple[int, int], Any]:
    """Return the content of a state for the parameters of these tests, as bytes."""
    found = {}
    for key in [(device, parameter) for device in range(3) for parameter in range(3)]:
        if node := state.node(key):
            arrays = [[(a.dtype, a.shape, a.tobytes()) for a in k] for k in (node.levels, node.any_sig, node.updates)]
            found[key] = (node.put_node_depth, arrays)
    return found


# ------------------------------------------------------------------------------------------------ history
def test_history_survives_a_raw_update() -> None:
    """Raw parameters have no levels; AnySigBeforeFlag of the updates before is kept (errata D4)."""
    decoder = nnr.UpdateDecoder()
    decoder.decode(int_update(1))
    np.testing.assert_array_equal(decoder.decode(raw_update(2, np.ones(DIMS)))["w"], np.ones(DIMS))
    history = LEVELS[1] != 0
    node = decoder.state.node((0, 0))
    assert node
    np.testing.assert_array_equal(node.any_sig[0], history)
    header = update_ndu("w", DIMS, 3, kind=NNR_PT_INT)
    data = start().ndu(header, LEVELS[0], sides=[HISTORY], any_sig=[history]).data
    np.testing.assert_array_equal(decoder.decode(data)["w"], LEVELS[0])
    node = decoder.state.node((0, 0))
    assert node
    np.testing.assert_array_equal(node.any_sig[0], history | (LEVELS[0] != 0))


def test_a_raw_update_gives_no_contexts() -> None:
    """After a raw update there is no QuantParam, so coLocParam is 0 (errata H2)."""
    decoder = nnr.UpdateDecoder()
    decoder.decode(int_update(1))
    decoder.decode(raw_update(2, np.ones(DIMS)))
    header = update_ndu("w", DIMS, 3, kind=NNR_PT_INT, temporal_context_modeling_flag=1)
    data = start().ndu(header, LEVELS[0], co_loc=[np.zeros(DIMS)]).data
    np.testing.assert_array_equal(decoder.decode(data)["w"], LEVELS[0])


# ------------------------------------------------------------------------------------------------ G and H, updated
@pytest.mark.parametrize("pre", [0, 1])
@pytest.mark.parametrize("dims", [(4, 5), (2, 2)])
def test_both_halves_have_references_of_their_own(pre: int, dims: tuple[int, int]) -> None:
    """G and H of one device_id and parameter_id have separate contexts, history and residuals."""
    rng = np.random.default_rng(3)
    g = [rng.integers(-3, 4, (dims[0], 2)) * (rng.random((dims[0], 2)) < 0.6) for _ in range(3)]
    h = [rng.integers(-3, 4, (2, dims[1])) * (rng.random((2, dims[1])) < 0.6) for _ in range(3)]
    decoder = nnr.UpdateDecoder()
    total = [np.zeros_like(g[0]), np.zeros_like(h[0])]
    seen = [np.zeros(g[0].shape, bool), np.zeros(h[0].shape, bool)]
    before = [np.zeros_like(g[0]), np.zeros_like(h[0])]
    for depth in (1, 2, 3):
        stream = start(pre)
        for k, levels in enumerate((g[depth - 1], h[depth - 1])):
            header = half(dims=dims, depth=depth, g_number_of_rows=dims[0], temporal_context_modeling_flag=1)
            stream.ndu(header, levels, sides=[HISTORY], co_loc=[before[k]], any_sig=[seen[k]])
            total[k] = total[k] * pre + levels
            seen[k] = seen[k] | (levels != 0)
            before[k] = levels
        np.testing.assert_array_equal(decoder.decode(stream.data)["w"], total[0] @ total[1])
    node = decoder.state.node((0, 0))
    assert node and node.put_node_depth == 3
    for k in (0, 1):
        np.testing.assert_array_equal(node.levels[k], before[k])
        np.testing.assert_array_equal(node.any_sig[k], seen[k])
        np.testing.assert_array_equal(node.updates[k], total[k])


def test_a_pair_does_not_continue_a_whole_tensor() -> None:
    """Nor does a whole tensor continue a pair; the state is unchanged."""
    ones = np.ones((2, 2), int)
    pair = [
        start(1)
        .ndu(half(dims=(2, 2), depth=n, g_number_of_rows=2), ones)
        .ndu(half(dims=(2, 2), depth=n, g_number_of_rows=2), ones)
        for n in (1, 2)
    ]
    whole = [start(1).ndu(update_ndu("w", (2, 2), n), ones) for n in (1, 2)]
    for first, second in ((pair[0], whole[1]), (whole[0], pair[1])):
        decoder = nnr.UpdateDecoder()
        decoder.decode(first.data)
        state, content = decoder.state, kept(decoder.state)
        with pytest.raises(nnr.MissingReferenceError):
            decoder.decode(second.data)
        assert decoder.state is state and kept(state) == content


# ------------------------------------------------------------------------------------------------ PRE
@pytest.mark.parametrize("first", ["float", "transposed", "flat"])
def test_a_cache_of_another_kind_or_shape_is_missing(first: str) -> None:
    """A residual requires an update of the same shape and type (9.2.4); the state is unchanged."""
    dims = {"float": DIMS, "transposed": DIMS[::-1], "flat": [6]}[first]
    header = update_ndu("w", dims, 1, kind=NNR_PT_FLOAT if first == "float" else NNR_PT_INT)
    decoder = nnr.UpdateDecoder()
    decoder.decode(start(1).ndu(header, np.ones(dims)).data)
    state, content = decoder.state, kept(decoder.state)
    data = int_update(2, pre=1)
    with pytest.raises(nnr.MissingReferenceError, match="shape"):
        decoder.decode(data)
    assert decoder.state is state and kept(state) == content


def test_raw_parameters_are_no_residuals() -> None:
    """9.2.4 defines residuals of NNR_PT_INT and NNR_PT_FLOAT; raw values, including not-a-number, are unchanged."""
    decoder = nnr.UpdateDecoder()
    for depth, value in enumerate([5.0, 5.0, np.nan, np.inf], 1):
        np.testing.assert_array_equal(decoder.decode(raw_update(depth, [value, 1.0], pre=1))["w"], [value, 1.0])
    decoder = nnr.UpdateDecoder()
    decoder.decode(start(1).ndu(update_ndu("w", DIMS, 1), LEVELS[1]).data)
    np.testing.assert_array_equal(decoder.decode(raw_update(2, np.ones(DIMS), pre=1))["w"], np.ones(DIMS))


def test_a_block_is_no_residual_of_a_tensor_either() -> None:
    """Nothing is added to an NNR_PT_BLOCK after a float update of the same shape (9.2.4)."""
    decoder = nnr.UpdateDecoder()
    first = start(1).ndu(update_ndu("w", DIMS, 0), LEVELS[1])
    decoder.decode(first.data)
    for depth in (1, 2):
        header = update_ndu("w", DIMS, depth, kind=NNR_PT_BLOCK, compressed_parameter_types=NNR_CPT_BI)
        del header.topology_elem_id
        header.nnr_multiple_topology_elements_present_flag, header.topology_elem_id_list = 1, ["w", "b"]
        got = decoder.decode(start(1).ndu(header, [3, -1], LEVELS[2]).data)
        np.testing.assert_array_equal(got["b"], [3, -1])
        np.testing.assert_array_equal(got["w"], LEVELS[2])


@pytest.mark.parametrize("raw", [False, True])
def test_raw_output_does_not_change_the_state(raw: bool) -> None:
    """decode(raw=True) returns the residual, but stores the update."""
    decoder = nnr.UpdateDecoder()
    decoder.decode(int_update(1, pre=1))
    second = decoder.decode(int_update(2, pre=1), raw=raw)["w"]
    np.testing.assert_array_equal(second, LEVELS[2] if raw else LEVELS[1] + LEVELS[2])
    second[:] = 99
    np.testing.assert_array_equal(decoder.decode(int_update(3, pre=1))["w"], sum(LEVELS))


# ------------------------------------------------------------------------------------------------ parents
@pytest.mark.parametrize("depth", [1, 3])
def test_a_parent_outside_needs_no_predecessor(depth: int) -> None:
    """With ICNN_NDU_EXT the parent is external, at any depth (6.4.3.7)."""
    header = update_ndu("w", DIMS, depth, kind=NNR_PT_INT, parent_node_id_type=ICNN_NDU_EXT)
    del header.parent_device_id
    data = start().ndu(header, LEVELS[1]).data
    np.testing.assert_array_equal(nnr.decode(data)["w"], LEVELS[1])
    decoder = nnr.UpdateDecoder()
    np.testing.assert_array_equal(decoder.decode(data)["w"], LEVELS[1])
    node = decoder.state.node((0, 0))
    assert node and node.put_node_depth == depth


# ------------------------------------------------------------------------------------------------ G and H
def test_integers_are_not_decomposed() -> None:
    """Clause 7.3.5 defines the product only for float tensors."""
    data = Bitstream().str_().mps().ndu(half(kind=NNR_PT_INT), np.full((4, 2), 2**30)).data
    refused(data, nnr.ElementError, "only tensors of NNR_PT_FLOAT and NNR_PT_BLOCK can be decomposed", unit="unit 2")


@pytest.mark.parametrize(
    ("elements", "what"),
    [
        ({"dims": (5, 4)}, "tensor_dimensions"),
        ({"dims": (4, 5, 1)}, "tensor_dimensions"),
        ({"data_format": DecompressedDataFormat.TENSOR_FLOAT64}, "nnr_decompressed_data_format"),
        ({"first_tensor_dimension_shift": 1}, "first_tensor_dimension_shift"),
    ],
)
def test_halves_that_differ_are_refused(elements: dict[str, Any], what: str) -> None:
    """A tensor has one shape and one type (6.4.3.7)."""
    stream = Bitstream().str_().mps().ndu(half(), np.ones((4, 2)))
    data = stream.ndu(half(**elements), np.ones((2, 5))).data
    refused(data, nnr.ElementError, f"G and H of 'w' differ in {what}", unit="unit 3")
    with pytest.raises(nnr.ElementError):
        nnr.open(data)


def test_h_does_not_take_the_name_of_an_earlier_tensor() -> None:
    """Topology element ids are unique (6.2.3), also in raw output by name."""
    stream = Bitstream().str_().mps().ndu(ndu("x", [2], kind=NNR_PT_INT), [7, 7])
    data = stream.ndu(half(), np.ones((4, 2))).ndu(half("x"), np.ones((2, 5))).data
    for raw in (False, True):
        refused(data, nnr.ElementError, "'x' occurs twice", unit="unit 4", raw=raw)


def test_an_enormous_rank_costs_nothing() -> None:
    """A codebook of one entry codes any number of levels in no bits; the product is rejected before the computation."""
    rank = (16 << 20) - 1
    elements = {"g_number_of_rows": 1, "codebook_present_flag": 1, "codebook": codebook([1], 0)}
    small = Bitstream().str_().mps()
    payload = small.payload(half("w", (1, 1), decomposition_rank=4, **elements), [np.zeros((1, 4))])
    stream = Bitstream().str_().mps()
    for _ in range(2):
        stream.ndu(half("w", (1, 1), decomposition_rank=rank, **elements), payload=payload)
    assert len(stream.data) < 100
    for read in (nnr.decode, nnr.open, nnr.UpdateDecoder(limits=Limits.strict()).decode):
        options = {} if read not in (nnr.decode, nnr.open) else {"limits": Limits.strict()}

        def refuse(read: Callable[..., object] = read, options: dict[str, Any] = options) -> None:
            with pytest.raises(nnr.LimitError):
                read(stream.data, **options)

        soon(refuse, 0.5)


def test_pairs_are_charged_together() -> None:
    """The limit applies to the sum of all pairs."""
    stream = Bitstream().str_().mps()
    for k in range(5):
        stream.ndu(half(f"w{k}"), np.ones((4, 2))).ndu(half(f"w{k}"), np.ones((2, 5)))
    work = 5 * 2 * (20 + 2048)
    assert len(nnr.decode(stream.data, limits=Limits(max_decomp_elements=work))) == 5
    refused(stream.data, nnr.LimitError, "max_decomp_elements", limits=Limits(max_decomp_elements=work - 1))
    with nnr.open(stream.data, limits=Limits(max_decomp_elements=work // 5)) as file:
        for name in file:  # by name, only one exists at a time
            assert (file[name] == 2).all()
        with pytest.raises(nnr.LimitError, match="max_decomp_elements"):
            file.decode()


# ------------------------------------------------------------------------------------------------ reading by name
def test_asking_for_a_name_decodes_nothing() -> None:
    """`in` only reads the headers: the payload may be damaged."""
    data = Bitstream().str_().mps().ndu(ndu("w", [2], kind=NNR_PT_RAW_FLOAT), payload=b"\0").data
    with nnr.open(data) as file:
        assert "w" in file
        assert "x" not in file
        with pytest.raises(nnr.PayloadError):
            file["w"]


def test_a_closed_file() -> None:
    """Names and infos remain available, tensors do not; closing twice is permitted."""
    with nnr.open(int_update(1)) as file:
        assert file["w"].shape == (2, 3)
    file.close()
    for read in (lambda: file["w"], file.decode, lambda: file["x"]):
        with pytest.raises(ValueError, match="closed"):
            read()
    assert list(file) == ["w"] and "w" in file and file.info["w"].shape == (2, 3)


@pytest.mark.parametrize("stream", ["v1/dq/00", "v1/mixed_int_float/00", "v1/block_bn/00"])
def test_reads_of_a_first_edition_file(stream: str) -> None:
    """One reading of profile 0 applies to the file (errata K1), for any order of reads and number of threads."""
    data = BY_ID[stream].data
    want = nnr.decode(data)
    with nnr.open(data) as file:
        for name in [*reversed(list(want)), *want]:
            np.testing.assert_array_equal(file[name], want[name])
        assert list(file.decode()) == list(want)
    for _ in range(3):
        with nnr.open(data) as file, ThreadPoolExecutor(8) as pool:
            names = list(file) * 3
            for name, values in zip(names, pool.map(file.__getitem__, names), strict=True):
                np.testing.assert_array_equal(values, want[name])


def test_an_update_can_be_listed_without_its_parent() -> None:
    """Listing needs only headers; decoding needs the parent."""
    data = int_update(2, temporal_context_modeling_flag=1)
    with nnr.open(data) as file:
        assert list(file) == ["w"]
        assert (file.info["w"].shape, file.info["w"].dtype) == ((2, 3), np.int32)
        for read in (lambda: file["w"], file.decode):
            with pytest.raises(nnr.MissingReferenceError):
                read()
    assert nnr.inspect(data)[-1].names == ("w",)
    with pytest.raises(nnr.MissingReferenceError):
        nnr.decode(data)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("pre", [0, 1])
@pytest.mark.parametrize("kind", [0, ICNN_NDU_EXT])
def test_two_updates_of_one_parameter_in_one_bitstream(kind: int, pre: int, depth: int) -> None:
    """By name, the second one is the tensor of decode(), or its parent is missing; it never has another value."""
    header = update_ndu("v", DIMS, depth, kind=NNR_PT_INT, parent_node_id_type=kind)
    if kind == ICNN_NDU_EXT:
        del header.parent_device_id
    stream = start(pre).ndu(update_ndu("w", DIMS, 1, kind=NNR_PT_INT), LEVELS[1])
    data = stream.ndu(header, LEVELS[2], any_sig=[LEVELS[1] != 0]).data
    try:
        want = nnr.decode(data)
    except nnr.NnrError:
        return  # two nodes of one parameter may be refused
    with nnr.open(data) as file:
        try:
            values = file["v"]
        except nnr.MissingReferenceError:
            return
        np.testing.assert_array_equal(values, want["v"])


def test_bytes_of_a_tensor_in_parts() -> None:
    """info counts all units of the tensor; a single part has no bits per parameter."""
    levels = np.random.default_rng(0).integers(-9, 9, (50, 50))
    data = Bitstream().str_().mps().ndu(ndu("w", [50, 50]), levels, pieces=4).ndu(ndu("v", [50, 50]), levels).data
    facts = nnr.inspect(data)
    assert len(facts) == 7
    with nnr.open(data) as file:
        assert file.info["w"].nbytes == sum(unit.size for unit in facts[2:6])
        assert file.info["v"].nbytes == facts[6].size
        assert file.info["w"].bits_per_parameter == 8 * file.info["w"].nbytes / 2500
    assert [unit.bits_per_parameter for unit in facts[2:6]] == [None] * 4
    assert facts[6].bits_per_parameter == 8 * facts[6].size / 2500


# ------------------------------------------------------------------------------------------------ UpdateDecoder
def test_a_base_model_that_is_cut_between_units_is_incomplete() -> None:
    data = nnr.encode({"a": np.ones((4, 4), np.float32), "b": np.ones((4, 4), np.float32)}, indexed_references=True)
    cut = data[: [*nnr.units(data)][-1].offset]
    decoder = nnr.UpdateDecoder()
    with pytest.raises(nnr.IncompleteError, match="'b' missing"):
        decoder.decode(cut)
    assert set(decoder.decode(data)) == {"a", "b"}


def test_updates_from_paths_and_files(tmp_path: Path) -> None:
    """All arguments of decode() are accepted."""
    path = tmp_path / "1.nnr"
    path.write_bytes(int_update(1, pre=1))
    decoder = nnr.UpdateDecoder()
    np.testing.assert_array_equal(decoder.decode(path)["w"], LEVELS[1])
    np.testing.assert_array_equal(decoder.decode(io.BytesIO(int_update(2, pre=1)))["w"], LEVELS[1] + LEVELS[2])
    (tmp_path / "3.nnr").write_bytes(int_update(3, pre=1))
    np.testing.assert_array_equal(decoder.decode(str(tmp_path / "3.nnr"))["w"], sum(LEVELS))


def test_nodes_weigh_something() -> None:
    """Very many parameters of one number each are rejected, although the numbers take few bytes."""
    limits, state = Limits.strict(), UpdateState()
    one = (np.ones(1, np.int32),)
    node = UpdateNode(1, one, (np.ones(1, bool),), one)

    def fill() -> None:
        for k in range(100_000):
            state.put((0, k), node, limits)

    with pytest.raises(nnr.LimitError, match="max_history_bytes"):
        fill()
    assert len(state) < 100_000


def test_nodes_without_arrays_weigh_something() -> None:
    """A base model leaves a node for each parameter, and the existing tensors."""
    stream = start()
    for k in range(20):
        stream.ndu(update_ndu(f"w{k}", [1], 0, parameter=k, kind=NNR_PT_INT), [k])
    probe = nnr.UpdateDecoder()
    assert len(probe.decode(stream.data)) == 20
    assert probe.state.nbytes > 20 * (NODE_BYTES + DIGEST_BYTES)
    nnr.UpdateDecoder(limits=Limits(max_history_bytes=probe.state.nbytes)).decode(stream.data)
    decoder = nnr.UpdateDecoder(limits=Limits(max_history_bytes=probe.state.nbytes - 1))
    with pytest.raises(nnr.LimitError, match="max_history_bytes"):
        decoder.decode(stream.data)
    assert len(decoder.state) == 0


def test_a_server_that_runs_for_ever() -> None:
    """Memory does not grow with the number of updates."""
    decoder, sizes = nnr.UpdateDecoder(limits=Limits(max_history_bytes=5000)), set()
    for depth in range(1, 30):
        decoder.decode(int_update(depth, [[depth] * 3] * 2))
        sizes.add(decoder.state.nbytes)
    assert len(sizes) == 1


# ------------------------------------------------------------------------------------------------ options
@pytest.mark.parametrize(
    "options",
    [
        {"scan_order": 9},
        {"cabac_unary_length_minus1": 300},
        {"qp": "x"},
        {"qp": 99999},
        {"qp": -99999},
        {"qp": True},
        {"qp": 1.5},
        {"exact": "false"},
        {"row_skipping": 1},
        {"dependent_quantization": 2},
    ],
)
def test_options_of_rules_are_checked(options: dict[str, Any]) -> None:
    """The check covers every rule, also without matching tensors, and the encoder itself."""
    values = {"a.w": np.ones((9, 9), np.float32)}
    for pattern in ("[ab].w", "[", "nothing*"):
        with pytest.raises(nnr.EncodeError):
            nnr.encode(values, rules=[nnr.Rule(pattern, **options)])
    with pytest.raises(nnr.EncodeError):
        nnr.EncoderConfig(**options)


def test_rules_are_rules() -> None:
    """A tuple is not a rule."""
    with pytest.raises(nnr.EncodeError, match="Rule"):
        nnr.EncoderConfig(rules=[("*", {})])


def test_a_whole_number_of_any_type() -> None:
    """np.int64 is accepted like int."""
    values = {"a.w": np.random.default_rng(0).normal(size=(9, 9)).astype(np.float32)}
    assert nnr.encode(values, qp=np.int64(-32)) == nnr.encode(values, qp=-32)
    assert nnr.encode(values, rules=[nnr.Rule("[ab].w", qp=np.int64(-32))]) == nnr.encode(values, qp=-32)


@pytest.mark.parametrize("factor", [1.0, 2e5])
def test_byte_order_does_not_matter(factor: float) -> None:
    """float64 in non-native byte order is coded, lossy and lossless."""
    values = np.random.default_rng(1).normal(size=(50, 50)) * factor
    exact = values.astype(np.float32).astype(np.float64)
    for array, options in ((values, {}), (values[0], {}), (exact, {"exact": True})):
        swapped = array.astype(">f8")
        assert nnr.encode({"w": swapped}, **options) == nnr.encode({"w": array.astype("<f8")}, **options)


# ------------------------------------------------------------------------------------------------ scaling
@pytest.mark.parametrize(("mul", "bits", "level"), [(254, 38, 1082196419), (49, 36, 1402438209), (31, 35, 1108378560)])
def test_a_product_that_rounds_to_infinity_is_refused(mul: int, bits: int, level: int) -> None:
    """The level is rounded to float32 before the multiplication, so the result may exceed the exact product."""
    for sign in (1, -1):
        with pytest.raises(nnr.ElementError, match="exceeds the range of float32"):
            scale(np.array([sign * level], np.int32), mul * 2.0 ** (128 - bits), DecompressedDataFormat.TENSOR_FLOAT32)


def test_a_bitstream_that_rounds_to_infinity_is_refused() -> None:
    """The same happens in a bitstream with mul 49 and shift 97 of QpDensity 5."""
    data = Bitstream().str_().mps(5, 97 * 32 + 17).ndu(ndu("w", [1]), [1402438209]).data
    refused(data, nnr.ElementError, "exceeds the range of float32", unit="unit 2")


# ------------------------------------------------------------------------------------------------ anything at all
class _Random:
    """Generator of small bitstreams with random flags, many of them invalid."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed).choice
        self.rng = np.random.default_rng(seed)

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def bitstream(self) -> bytes | None:
        """Return one bitstream; None if the chosen elements cannot be written."""
        stream = Bitstream().str_().mps(parent=self.pick([1, 1, 0]), pre=self.pick([0, 1]))
        try:
            count = self.pick([1, 1, 2])
            for k in range(count):
                self.unit(stream, k)
            if stream.session.g_header and self.chance(0.9):
                self.unit(stream, count, as_h=True)
        except (nnr.NnrError, ValueError, IndexError):
            return None
        return stream.data

    def unit(self, stream: Bitstream, k: int, as_h: bool = False) -> None:
        pick, g = self.pick, stream.session.g_header
        if as_h and g and self.chance(0.8):  # a valid H
            header = half(f"w{k}", g.tensor_dimensions)
            for name, value in vars(g).items():
                if name not in ("topology_elem_id", "cabac_offset_list", "dq_state_list", "bit_offset_delta1"):
                    setattr(header, name, value)
            self.levels(stream, header, g.nnr_compressed_data_unit_payload_type)
            return
        kind = pick([NNR_PT_INT, NNR_PT_FLOAT, NNR_PT_FLOAT, NNR_PT_RAW_FLOAT, NNR_PT_BLOCK])
        dims = pick([[2, 3], [4], [2, 2], [1, 5], [9, 2], [2, 2, 2]])
        names: str | list[str] = f"w{k}"
        elements: dict[str, Any] = {"kind": kind}
        if self.chance(0.6):
            elements |= {"node_id_present_flag": 1, "device_id": pick([0, 0, 1]), "parameter_id": pick([0, 0, 1])}
            elements |= {"put_node_depth": pick([0, 1, 1, 2, 3])}
        if stream.session.mps_parent_signalling_enabled_flag and self.chance(0.7):
            elements |= {"parent_node_id_present_flag": 1, "parent_node_id_type": pick([0, 0, 0, 3, 1])}
            elements |= {"temporal_context_modeling_flag": pick([0, 1])}
            if elements["parent_node_id_type"] == 0:
                elements |= {"parent_device_id": pick([0, 1])}
                elements.setdefault("parameter_id", pick([0, 0, 1]))
                elements.setdefault("put_node_depth", pick([0, 1, 2]))
            if elements["parent_node_id_type"] == 1:
                elements |= {"parent_node_payload_sha256": 1}
        if self.chance(0.2):
            elements |= {"data_format": pick(range(10))}
        if kind == NNR_PT_BLOCK:
            types = elements["compressed_parameter_types"] = pick([1, 2, 8, 9, 12, 3, 15])
            count = 1 + (types & 1) + (types >> 1 & 1) + 4 * (types >> 2 & 1) + (types >> 3 & 1)
            names = [f"{letter}{k}" for letter in "abcdefghijk"[:count]]
        elif self.chance(0.2):
            names = [f"w{k}", f"v{k}"]
            elements |= {"concatentation_axis_index": pick([0, 1]), "split_index": [pick([1, 2])]}
            elements |= {"number_of_shifts": [0, pick([0, 1])]}
            if elements["number_of_shifts"][1]:
                elements |= {"shift_index": [[], [pick([0, 1])]], "shift_value": [[], [pick([0, 1])]]}
        elif self.chance(0.3):
            elements |= {"compressed_parameter_types": NNR_CPT_DC}
        decomposed = elements.get("compressed_parameter_types", 0) & NNR_CPT_DC
        if decomposed:
            elements |= {"decomposition_rank": pick([1, 2]), "g_number_of_rows": pick([1, 2])}
        if kind != NNR_PT_RAW_FLOAT:
            elements |= {"dq_flag": pick([0, 0, 1])}
        if len(dims) > 1:
            elements |= {"first_tensor_dimension_shift": pick([0, 0, 1])}
            if kind != NNR_PT_RAW_FLOAT:
                elements |= {"scan_order": pick([0, 0, 1])}
        if kind in (NNR_PT_FLOAT, NNR_PT_BLOCK) and self.chance(0.2):
            elements |= {"codebook_present_flag": 1, "codebook": codebook(pick([[1], [-1, 0, 3], [2, 2**31 - 1]]), 0)}
            if kind == NNR_PT_BLOCK and decomposed:
                elements |= {"codebook_dc": codebook([0, 1], 0)}
        self.levels(stream, ndu(names, dims, **elements), kind)

    def levels(self, stream: Bitstream, header: Any, kind: int) -> None:
        if kind == NNR_PT_RAW_FLOAT:
            values = [self.pick([0, 1, np.nan, np.inf, 3e38]) for _ in range(int(np.prod(header.tensor_dimensions)))]
            stream.raw(header, values)
            return
        low, high = (0, 1) if "codebook" in header else (self.pick([-2, -2, -(2**29)]), self.pick([2, 2, 2**29]))
        levels = [self.rng.integers(low, high, part.dims) for part in parts(header, stream.session)]
        stream.ndu(header, *levels, qp=self.pick([0, -20, 31 * 4, -128]))


@pytest.mark.medium
@pytest.mark.parametrize("seed", mostly_slow(2, range(6)))
def test_any_sequence_decodes_or_is_refused(seed: int) -> None:
    """Only NnrError is raised, without warnings, and a failing bitstream leaves the state unchanged."""
    generator, decoded, failed = _Random(seed), 0, 0
    limits = Limits.strict()
    for _ in range(60):
        decoder = nnr.UpdateDecoder(limits=limits)
        for data in filter(None, [generator.bitstream() for _ in range(3)]):
            state, content = decoder.state, kept(decoder.state)
            try:
                decoder.decode(data)
                decoded += 1
            except nnr.NnrError:
                failed += 1
                assert decoder.state is state and kept(state) == content
            try:
                nnr.inspect(data, limits=limits)
                nnr.decode(data, limits=limits, raw=True)
                file = nnr.open(data, limits=limits)
                whole = nnr.decode(data, limits=limits)
            except nnr.NnrError:
                continue
            assert list(file) == list(whole)
            for name, info in file.info.items():
                assert info.shape == whole[name].shape and info.dtype == whole[name].dtype
                try:
                    values = file[name]
                except nnr.MissingReferenceError:  # its parent is in the same bitstream
                    continue
                assert info.shape == values.shape
                assert info.dtype == values.dtype
                np.testing.assert_array_equal(values, whole[name])
    assert min(decoded, failed) > 10, (decoded, failed)
