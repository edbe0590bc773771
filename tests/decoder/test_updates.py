"""Sequences of updates: the state between bitstreams, temporal contexts, history, PRE (6.4.3.7, 9.2.4, 10.3.4.2.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.cabac_ext.kernel import TensorSide
from nnr_codec.constants import NNR_CPT_BI, NNR_MPS, NNR_NDU, NNR_PT_BLOCK, NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.limits import Limits
from nnr_codec.syntax.deepcabac import ArithmeticDecoder, QuantTensorSyntax, quant_tensor, terminate
from nnr_codec.syntax.structures import (
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrUnitHeader,
)

from ..builder import Bitstream, resolved, update_ndu

DIMS = [5, 6]
RNG = np.random.default_rng(17)
ROUNDS = [RNG.integers(-3, 4, DIMS).astype(np.int32) * (RNG.random(DIMS) < 0.5) for _ in range(4)]


def start(pre: int = 0) -> Bitstream:
    return Bitstream().str_().mps(parent=1, pre=pre)


def update(depth: int, levels: Any = None, *, pre: int = 0, co_loc: Any = None, **options: Any) -> bytes:
    """Return a bitstream with one update of w."""
    tcm = {"temporal_context_modeling_flag": 1} if co_loc is not None else {}
    header = update_ndu("w", DIMS, depth, **(tcm | options))
    levels = ROUNDS[depth % 4] if levels is None else levels
    return start(pre).ndu(header, levels, co_loc=() if co_loc is None else (co_loc,)).data


def nodes(decoder: nnr.UpdateDecoder) -> Any:
    """Return a comparable form of the state."""
    return decoder.state, {key: decoder.state.node(key) for key in [(0, k) for k in range(4)] + [(1, 0)]}


# ------------------------------------------------------------------------------------------------ the chain
@pytest.mark.parametrize("jobs", [1, 2])
def test_updates_in_order(jobs: int) -> None:
    decoder = nnr.UpdateDecoder()
    assert len(decoder.state) == 0
    for depth in range(4):
        np.testing.assert_array_equal(decoder.decode(update(depth), jobs=jobs)["w"], ROUNDS[depth])
    assert len(decoder.state) == 1


def test_an_update_of_an_unknown_base_model() -> None:
    """put_node_depth of at most 1 needs no state (errata N8)."""
    np.testing.assert_array_equal(nnr.UpdateDecoder().decode(update(1))["w"], ROUNDS[1])
    np.testing.assert_array_equal(nnr.decode(update(1))["w"], ROUNDS[1])


def test_an_update_without_the_topology_that_it_says_it_has_is_refused_in_every_way() -> None:
    mps = NnrModelParameterSetUnitPayload(mps_parent_signalling_enabled_flag=1, topology_carriage_flag=1)
    header = NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader())
    stream = Bitstream().str_().unit(header, mps).ndu(update_ndu("w", DIMS, 1, kind=NNR_PT_INT), ROUNDS[1])
    for decode in (nnr.decode, nnr.UpdateDecoder().decode, streamed):
        with pytest.raises(nnr.TruncatedError, match="it has no NNR_TPL"):
            decode(stream.data)


def streamed(data: bytes) -> object:
    """Return the tensors of a StreamDecoder."""
    decoder = nnr.StreamDecoder()
    return [*decoder.feed(data), *decoder.finish()]


@pytest.mark.parametrize(
    ("before", "depth", "found"),
    [
        ([0, 1], 3, "depth 1"),  # lost
        ([1, 2], 2, "depth 2"),  # repeated
        ([1, 2, 3], 2, "depth 3"),  # reordered
        ([], 2, "none is known"),
        ([0], 2, "depth 0"),
        ([1, 2, 0], 3, "depth 0"),  # a new base model begins a new chain
        ([0], 1000, "depth 0"),
    ],
)
def test_a_gap_in_the_chain_is_missing(before: list[int], depth: int, found: str) -> None:
    decoder = nnr.UpdateDecoder()
    for known in before:
        decoder.decode(update(known))
    state = nodes(decoder)
    with pytest.raises(nnr.MissingReferenceError, match=rf"'w' is update {depth} .*{found}"):
        decoder.decode(update(depth))
    assert nodes(decoder) == state
    if before == [0, 1]:
        decoder.decode(update(2))  # the lost one arrives last
        np.testing.assert_array_equal(decoder.decode(update(3))["w"], ROUNDS[3])


def test_parameters_and_devices_have_chains_of_their_own() -> None:
    decoder = nnr.UpdateDecoder()
    decoder.decode(update(1))
    decoder.decode(update(1, device=1, parent_device_id=1))
    decoder.decode(update(1, parameter=3))
    decoder.decode(update(2))
    assert len(decoder.state) == 3
    assert [decoder.state.node(key).put_node_depth for key in [(0, 0), (1, 0), (0, 3)]] == [2, 1, 1]  # type: ignore[union-attr]
    decoder.decode(update(2, device=1, parent_device_id=1))
    with pytest.raises(nnr.MissingReferenceError, match="device_id 1, parameter_id 3"):
        decoder.decode(update(2, device=1, parent_device_id=1, parameter=3))


def test_names_do_not_matter_to_the_chain() -> None:
    decoder = nnr.UpdateDecoder()
    decoder.decode(update(1))
    renamed = start().ndu(update_ndu("v", DIMS, 2), ROUNDS[2]).data
    np.testing.assert_array_equal(decoder.decode(renamed)["v"], ROUNDS[2])


def test_ids_of_the_parent_where_the_unit_has_none() -> None:
    """parameter_id and put_node_depth follow parent_device_id (errata H5)."""
    header = update_ndu("w", DIMS, 2, device=1)
    header.node_id_present_flag = 0
    del header.device_id
    decoder = nnr.UpdateDecoder()
    decoder.decode(update(1, device=1, parent_device_id=1))
    decoder.decode(start().ndu(header, ROUNDS[2]).data)
    assert decoder.state.node((1, 0)).put_node_depth == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "parent",
    [
        {"parent_node_id_type": 1, "parent_node_payload_sha256": 2**255 + 5},
        {"parent_node_id_type": 2, "parent_node_payload_sha512": 7},
        {"parent_node_id_type": 3},
    ],
)
def test_other_parent_ids(parent: dict[str, int]) -> None:
    """Without a state, the first update needs no parent; with a state, a hash is verified."""
    header = update_ndu("w", DIMS, 1, **parent)
    del header.parent_device_id
    data = start().ndu(header, ROUNDS[1]).data
    np.testing.assert_array_equal(nnr.decode(data)["w"], ROUNDS[1])
    if parent["parent_node_id_type"] == 3:
        np.testing.assert_array_equal(nnr.UpdateDecoder().decode(data)["w"], ROUNDS[1])
    else:
        with pytest.raises(nnr.MissingReferenceError, match="has a parent of another parent_node_payload_sha"):
            nnr.UpdateDecoder().decode(data)


# ------------------------------------------------------------------------------------------------ all or nothing
def test_a_bitstream_changes_the_state_as_a_whole_or_not_at_all() -> None:
    """The first unit of the damaged bitstream is a valid update, but it is not stored."""
    decoder = nnr.UpdateDecoder()
    decoder.decode(
        start().ndu(update_ndu("a", DIMS, 1), ROUNDS[1]).ndu(update_ndu("b", DIMS, 1, parameter=1), ROUNDS[0]).data
    )
    good = start().ndu(update_ndu("a", DIMS, 2), ROUNDS[2]).ndu(update_ndu("b", DIMS, 2, parameter=1), ROUNDS[3]).data
    state = nodes(decoder)
    for damaged in (good[:-1], good + b"\0", good[: len(good) // 2]):
        with pytest.raises(nnr.NnrError):
            decoder.decode(damaged)
        assert nodes(decoder) == state
    missing = (
        start().ndu(update_ndu("a", DIMS, 2), ROUNDS[2]).ndu(update_ndu("b", DIMS, 3, parameter=1), ROUNDS[3]).data
    )
    with pytest.raises(nnr.MissingReferenceError):
        decoder.decode(missing)
    assert nodes(decoder) == state
    np.testing.assert_array_equal(decoder.decode(good)["b"], ROUNDS[3])
    assert [decoder.state.node((0, k)).put_node_depth for k in (0, 1)] == [2, 2]  # type: ignore[union-attr]


def test_results_belong_to_the_caller() -> None:
    """Writing to a result does not change the references of later updates."""
    decoder = nnr.UpdateDecoder()
    decoder.decode(update(1, pre=1))["w"][:] = 99
    got = decoder.decode(update(2, pre=1, co_loc=ROUNDS[1]))["w"]
    np.testing.assert_array_equal(got, ROUNDS[1] + ROUNDS[2])


def test_integers_that_are_returned_are_the_callers() -> None:
    decoder = nnr.UpdateDecoder()
    decoder.decode(update(1, kind=NNR_PT_INT))["w"][:] = 99
    second = update(2, kind=NNR_PT_INT, co_loc=ROUNDS[1])
    np.testing.assert_array_equal(decoder.decode(second)["w"], ROUNDS[2])


def test_a_stateless_decode_changes_nothing() -> None:
    for _ in range(2):
        np.testing.assert_array_equal(nnr.decode(update(1, pre=1))["w"], ROUNDS[1])


# ------------------------------------------------------------------------------------------------ temporal contexts
@pytest.mark.parametrize("dq", [0, 1])
@pytest.mark.parametrize("kind", [NNR_PT_INT, 1])
def test_contexts_look_at_the_update_before(dq: int, kind: int) -> None:
    """coLocParam is QuantParam of the parent, after the expansion of dependent quantization (errata H1)."""
    expand = resolved if dq else np.asarray
    decoder = nnr.UpdateDecoder()
    decoder.decode(update(1, dq_flag=dq, kind=kind))
    for depth in (2, 3):
        reference = expand(ROUNDS[depth - 1])
        data = update(depth, co_loc=reference, dq_flag=dq, kind=kind)
        np.testing.assert_array_equal(decoder.decode(data)["w"], expand(ROUNDS[depth]))
        (payload,) = (unit.payload for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU)
        assert isinstance(payload, memoryview)
        coder = ArithmeticDecoder(bytes(payload))
        syntax = QuantTensorSyntax(
            tuple(DIMS),
            dq_flag=dq,
            parent_node_id_present_flag=1,
            temporal_context_modeling_flag=1,
            co_loc=reference.reshape(-1).tolist(),
            qp_bits=0 if kind == NNR_PT_INT else 8,
        )
        assert quant_tensor(coder, syntax).quant_param == expand(ROUNDS[depth]).reshape(-1).tolist()
        terminate(coder)


def test_temporal_contexts_without_a_reference() -> None:
    """The flag is legal at depth 1: coLocParam is 0 (errata H2)."""
    data = update(1, co_loc=np.zeros(DIMS))
    np.testing.assert_array_equal(nnr.decode(data)["w"], ROUNDS[1])


@pytest.mark.parametrize("dims", [[6, 5], [30], [5, 7], [1, 5, 6]])
def test_a_reference_of_another_shape_is_missing(dims: list[int]) -> None:
    decoder = nnr.UpdateDecoder()
    decoder.decode(start().ndu(update_ndu("w", dims, 1), np.ones(dims)).data)
    state = nodes(decoder)
    with pytest.raises(nnr.MissingReferenceError, match="shape"):
        decoder.decode(update(2, co_loc=ROUNDS[1]))
    assert nodes(decoder) == state


def test_a_block_refers_to_the_parts_of_the_block_before() -> None:
    names = ["w", "b"]
    block = {
        "kind": NNR_PT_BLOCK,
        "compressed_parameter_types": NNR_CPT_BI,
        "nnr_multiple_topology_elements_present_flag": 1,
    }

    def header(depth: int, **elements: int) -> Any:
        made = update_ndu("w", DIMS, depth, **(block | elements))
        del made.topology_elem_id
        made.topology_elem_id_list = names
        return made

    biases = [np.arange(5) - 2, np.array([0, 3, 0, -1, 0])]
    decoder = nnr.UpdateDecoder()
    decoder.decode(start().ndu(header(1), biases[0], ROUNDS[1]).data)
    second = start().ndu(
        header(2, temporal_context_modeling_flag=1), biases[1], ROUNDS[2], co_loc=[biases[0], ROUNDS[1]]
    )
    got = decoder.decode(second.data)
    np.testing.assert_array_equal(got["w"], ROUNDS[2])
    np.testing.assert_array_equal(got["b"], biases[1])
    with pytest.raises(nnr.MissingReferenceError, match="shape"):  # a single tensor after a block
        decoder.decode(update(3, co_loc=ROUNDS[2]))


def test_raw_parameters_leave_nothing_to_refer_to() -> None:
    decoder = nnr.UpdateDecoder()
    raw = update_ndu("w", DIMS, 1, kind=NNR_PT_RAW_FLOAT)
    np.testing.assert_array_equal(decoder.decode(start().raw(raw, ROUNDS[1]).data)["w"], ROUNDS[1])
    np.testing.assert_array_equal(decoder.decode(update(2))["w"], ROUNDS[2])


# ------------------------------------------------------------------------------------------------ history
def test_history_has_all_significant_parameters() -> None:
    """AnySigBeforeFlag is the OR over all updates so far, without the base model (errata D4, N8)."""
    decoder = nnr.UpdateDecoder()
    decoder.decode(update(0, np.ones(DIMS)))
    history = np.zeros(DIMS, bool)
    for depth in range(1, 5):
        header = update_ndu("w", DIMS, depth)
        side = TensorSide(hist_dep_sig_prob_enabled_flag=1)
        data = start().ndu(header, ROUNDS[depth % 4], sides=[side], any_sig=[history]).data
        np.testing.assert_array_equal(decoder.decode(data)["w"], ROUNDS[depth % 4])
        history |= ROUNDS[depth % 4] != 0
        node = decoder.state.node((0, 0))
        assert node
        np.testing.assert_array_equal(node.any_sig[0], history)


def test_the_state_is_limited() -> None:
    first = start().ndu(update_ndu("w", DIMS, 1), ROUNDS[1]).data
    second = start().ndu(update_ndu("v", DIMS, 1, parameter=1), ROUNDS[1]).data
    probe = nnr.UpdateDecoder()
    probe.decode(first)
    node = probe.state.node((0, 0))
    assert node
    decoder = nnr.UpdateDecoder(limits=Limits(max_history_bytes=2 * node.nbytes - 1))
    decoder.decode(first)
    for depth in (2, 3):  # replaces, does not add
        decoder.decode(update(depth))
    with pytest.raises(nnr.LimitError, match="max_history_bytes"):
        decoder.decode(second)
    assert len(decoder.state) == 1


# ------------------------------------------------------------------------------------------------ PRE
@pytest.mark.parametrize("kind", [NNR_PT_INT, 1])
@pytest.mark.parametrize("shift", [0, 1])
def test_residuals_add_up(kind: int, shift: int) -> None:
    """9.2.4, 7.3.3: an update is its residual plus the update before it; the first has no update before it."""
    decoder, raw = nnr.UpdateDecoder(), nnr.UpdateDecoder()
    total = np.zeros(DIMS)
    for depth in (1, 2, 3):
        data = update(depth, pre=1, kind=kind, first_tensor_dimension_shift=shift)
        total = total + ROUNDS[depth]
        got = decoder.decode(data)["w"]
        np.testing.assert_array_equal(got, np.moveaxis(total, 0, shift))
        assert got.dtype == (np.int32 if kind == NNR_PT_INT else np.float32)
        np.testing.assert_array_equal(raw.decode(data, raw=True)["w"], np.moveaxis(ROUNDS[depth], 0, shift))


def test_plain_updates_fill_the_cache_too() -> None:
    """nnr_pre_flag may change from one bitstream to the next (7.3.3)."""
    decoder = nnr.UpdateDecoder()
    flags, expected = [0, 1, 0, 1], np.zeros(DIMS)
    for depth, pre in enumerate(flags, 1):
        expected = ROUNDS[depth % 4] + (expected if pre else 0)
        np.testing.assert_array_equal(decoder.decode(update(depth, pre=pre))["w"], expected)


def test_a_base_model_empties_the_cache() -> None:
    decoder = nnr.UpdateDecoder()
    decoder.decode(update(1, pre=1))
    np.testing.assert_array_equal(decoder.decode(update(0, pre=1))["w"], ROUNDS[0])
    np.testing.assert_array_equal(decoder.decode(update(1, pre=1))["w"], ROUNDS[1])


def test_temporal_contexts_look_at_residuals() -> None:
    """QuantParam of the reference is the coded residual (errata H6)."""
    decoder = nnr.UpdateDecoder()
    decoder.decode(update(1, pre=1))
    decoder.decode(update(2, pre=1, co_loc=ROUNDS[1]))
    got = decoder.decode(update(3, pre=1, co_loc=ROUNDS[2]))["w"]
    np.testing.assert_array_equal(got, ROUNDS[1] + ROUNDS[2] + ROUNDS[3])


def test_blocks_have_no_residuals() -> None:
    """9.2.4 excludes NNR_PT_BLOCK."""
    decoder = nnr.UpdateDecoder()
    for depth in (1, 2):
        header = update_ndu("w", DIMS, depth, kind=NNR_PT_BLOCK, compressed_parameter_types=NNR_CPT_BI)
        del header.topology_elem_id
        header.nnr_multiple_topology_elements_present_flag, header.topology_elem_id_list = 1, ["w", "b"]
        got = decoder.decode(start(pre=1).ndu(header, np.ones(5), ROUNDS[depth]).data)
        np.testing.assert_array_equal(got["w"], ROUNDS[depth])


@pytest.mark.parametrize(
    ("data_format", "parameter", "level"),
    [(5, 0, 100), (6, 0, 30000), (0, 0, 2**31 - 1), (2, 0, 1), (8, 15 * 4, 1), (1, 127 * 4, 1), (9, 1023 * 4, 1)],
)
def test_a_sum_beyond_its_format_is_refused(data_format: int, parameter: int, level: int) -> None:
    """Each residual is legal, but their sum is not (7.3.2, 7.3.3): it neither wraps nor becomes infinite."""
    kind = 1 if data_format in (1, 8, 9) else NNR_PT_INT
    levels = np.full(DIMS, level)
    decoder = nnr.UpdateDecoder()

    def residual(depth: int) -> bytes:
        header = update_ndu("w", DIMS, depth, kind=kind, data_format=data_format)
        return Bitstream().str_().mps(parent=1, pre=1, parameter=parameter).ndu(header, levels).data

    first = decoder.decode(residual(1))["w"]
    assert np.isfinite(first.astype("f8")).all()
    state = nodes(decoder)
    with pytest.raises(nnr.BitstreamError, match="unit 2"):
        decoder.decode(residual(2))
    assert nodes(decoder) == state


def test_a_cache_of_another_shape_is_missing() -> None:
    decoder = nnr.UpdateDecoder()
    decoder.decode(start(1).ndu(update_ndu("w", [6, 5], 1), ROUNDS[1]).data)
    with pytest.raises(nnr.MissingReferenceError, match="shape"):
        decoder.decode(update(2, pre=1))


@pytest.mark.parametrize("pre", [0, 1])
def test_open_an_update_twice_over(pre: int) -> None:
    """Reading a tensor twice gives the same tensor."""
    with nnr.open(update(1, pre=pre)) as file:
        for _ in range(3):
            np.testing.assert_array_equal(file["w"], ROUNDS[1])
