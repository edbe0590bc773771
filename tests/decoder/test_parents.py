"""Parents of updates and remembered senders: trees, hashes, lineages (6.4.3.7, errata H5, N8, N19)."""

from __future__ import annotations

import base64
import copy
import hashlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.cabac_ext.kernel import TensorSide
from nnr_codec.constants import ICNN_NDU_EXT, NNR_MPS, NNR_PT_FLOAT, NNR_PT_INT
from nnr_codec.decoder.lineage import Position
from nnr_codec.decoder.state import ENTRY_BYTES, UpdateNode
from nnr_codec.limits import Limits
from nnr_codec.parallel import pool as pool_module
from nnr_codec.syntax.structures import (
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrUnitHeader,
)

from ..builder import Bitstream, ndu, update_ndu
from ..shared import examples
from .support import contents

DIMS = [3, 4]
LEVELS = [np.random.default_rng(k).integers(-3, 4, DIMS).astype(np.int32) for k in range(10)]
HISTORY = TensorSide(hist_dep_sig_prob_enabled_flag=1)


def start(base: str | None = None, *, parent: int = 1, pre: int = 0) -> Bitstream:
    payload = NnrModelParameterSetUnitPayload(mps_quantization_method_flags=1)
    payload.mps_qp_density, payload.mps_quantization_parameter = 2, 0
    payload.mps_parent_signalling_enabled_flag, payload.nnr_pre_flag = parent, pre
    if base is not None:
        payload.base_model_id_present_flag, payload.base_model_id = 1, base
    head = NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader())
    return Bitstream().str_().unit(head, payload)


def update(depth: int, levels: int | None = None, *, base: str | None = None, pre: int = 0, **elements: Any) -> bytes:
    """Return a bitstream with an update of w, or (depth 0) its base; levels depend on a number."""
    levels = depth if levels is None else levels
    co_loc, any_sig = elements.pop("co_loc", None), elements.pop("any_sig", None)
    if co_loc is not None:
        elements["temporal_context_modeling_flag"] = 1
    header = update_ndu("w", DIMS, depth, **elements)
    if elements.get("parent_node_id_type", 0):
        header.__dict__.pop("parent_device_id", None)
    more: dict[str, Any] = {} if any_sig is None else {"sides": [HISTORY], "any_sig": [any_sig]}
    stream = start(base, parent=int(depth > 0), pre=pre)
    return stream.ndu(header, LEVELS[levels], co_loc=() if co_loc is None else (co_loc,), **more).data


def external(depth: int, levels: int | None = None, **elements: Any) -> bytes:
    """Return an update with an external parent, which starts anew."""
    return update(depth, levels, parent_node_id_type=ICNN_NDU_EXT, **elements)


def by_hash(parent: bytes, levels: int, *, pre: int = 0, name: str = "w", **elements: Any) -> bytes:
    """Return an update without ids whose parent is the tensor of another bitstream."""
    ids = {"parent_node_id_present_flag": 1, "parent_node_id_type": 1}
    header = ndu(name, DIMS, **ids, parent_node_payload_sha256=digest_of(parent), **elements)
    return start(pre=pre).ndu(header, LEVELS[levels]).data


def digest_of(data: bytes) -> int:
    """Return the SHA-256 of the payload of the last unit."""
    payload = list(nnr.units(data))[-1].payload
    assert isinstance(payload, memoryview)
    return int.from_bytes(hashlib.sha256(payload).digest(), "big")


def decoded(*before: bytes, **options: Any) -> nnr.UpdateDecoder:
    """Return a decoder that has decoded these bitstreams."""
    decoder = nnr.UpdateDecoder(**options)
    for data in before:
        decoder.decode(data)
    return decoder


def missing(decoder: nnr.UpdateDecoder, data: bytes, match: str) -> None:
    """Check that the bitstream is rejected and the state is unchanged."""
    state, content = decoder.state, contents(decoder.state)
    for jobs in (1, 2):
        with pytest.raises(nnr.MissingReferenceError, match=match):
            decoder.decode(data, jobs=jobs)
    assert decoder.state is state and contents(state) == content


# ------------------------------------------------------------------------------------------------ order
@pytest.mark.parametrize(
    ("before", "data", "match"),
    [
        ([update(1), update(2)], update(2, 3), "update 2 .*its parent has put_node_depth 1, but .* depth 2"),
        ([update(1), update(2), update(3)], update(1), "update 1 .*repeated or out of order: update 3 was decoded"),
        ([external(5)], external(5), "update 5 .*repeated or out of order: update 5 was decoded"),
        ([external(5)], external(4), "update 4 .*repeated or out of order: update 5 was decoded"),
        ([external(5)], external(1), "update 1 .*repeated or out of order: update 5 was decoded"),
        (
            [update(1), update(1, 2, device=1, parent_device_id=1)],
            update(3, parent_device_id=1),
            "and device_id 1, but",
        ),
        ([update(1)], update(2, parent_device_id=7), "put_node_depth 1 and device_id 7, but none is known"),
    ],
)
def test_repeated_and_lost_bitstreams(before: list[bytes], data: bytes, match: str) -> None:
    missing(decoded(*before), data, match)


def test_a_base_model_is_always_taken() -> None:
    decoder = decoded(update(0), update(1), update(2), update(0), update(0, 5))
    np.testing.assert_array_equal(decoder.decode(update(1, 6))["w"], LEVELS[6])


def test_updates_that_all_have_depth_1() -> None:
    """NNCodec writes such siblings if temporal contexts are disabled; their history continues."""
    any_sig = LEVELS[1] != 0
    decoder = decoded(update(1, 1))
    np.testing.assert_array_equal(decoder.decode(update(1, 2, any_sig=any_sig))["w"], LEVELS[2])
    any_sig = any_sig | (LEVELS[2] != 0)
    np.testing.assert_array_equal(decoder.decode(update(1, 3, any_sig=any_sig, pre=1))["w"], LEVELS[3])


# ------------------------------------------------------------------------------------------------ continued state
def test_an_external_parent_starts_anew() -> None:
    """History and WeightUpdateCache are cleared; later updates continue from there."""
    decoder = decoded(update(1), update(2))
    zeros = np.zeros(DIMS, bool)
    np.testing.assert_array_equal(decoder.decode(external(3, any_sig=zeros, pre=1))["w"], LEVELS[3])
    got = decoder.decode(update(4, any_sig=LEVELS[3] != 0, pre=1))["w"]
    np.testing.assert_array_equal(got, LEVELS[3] + LEVELS[4])


def test_temporal_contexts_of_an_external_parent_are_of_the_own_update_before() -> None:
    """10.3.4.2.2 requires only ids and depth."""
    decoder = decoded(update(1))
    np.testing.assert_array_equal(decoder.decode(external(2, co_loc=LEVELS[1]))["w"], LEVELS[2])
    missing(decoder, external(4, co_loc=LEVELS[2]), "has temporal contexts of update 3 of device_id 0, parameter_id 0")


def test_temporal_contexts_never_refer_to_another_device() -> None:
    decoder = decoded(update(1))
    data = update(2, device=5, parent_device_id=0, co_loc=LEVELS[1])
    missing(decoder, data, "temporal contexts of update 1 of device_id 5, parameter_id 0, but none is known")
    got = decoder.decode(update(2, 4, device=5, parent_device_id=0, pre=1))["w"]
    np.testing.assert_array_equal(got, LEVELS[4])  # nor is its WeightUpdateCache
    data = update(3, device=0, parent_device_id=5, co_loc=LEVELS[1])
    missing(decoder, data, "temporal contexts of update 2 of .* but the last known one has depth 1")
    got = decoder.decode(update(3, device=0, parent_device_id=5, pre=1))["w"]
    np.testing.assert_array_equal(got, LEVELS[1] + LEVELS[3])


# ------------------------------------------------------------------------------------------------ hashes
def test_contexts_and_residuals_of_a_parent_that_a_hash_names() -> None:
    """The unit becomes the next node of its parent's parameter, with ids or without."""
    for first in (update(1), start(parent=0).ndu(ndu("w", DIMS), LEVELS[1]).data):
        decoder = decoded(first)
        second = by_hash(first, 2)
        np.testing.assert_array_equal(decoder.decode(second)["w"], LEVELS[2])
        total = LEVELS[2] + LEVELS[3]
        third = start(pre=1)
        header = ndu("w", DIMS, parent_node_id_present_flag=1, parent_node_id_type=1, temporal_context_modeling_flag=1)
        header.parent_node_payload_sha256 = digest_of(second)
        np.testing.assert_array_equal(
            decoder.decode(third.ndu(header, LEVELS[3], co_loc=(LEVELS[2],)).data)["w"], total
        )
        assert len(decoder.state) == 1
        for old in (first, second):
            missing(
                decoder, by_hash(old, 4), "has a parent of another parent_node_payload_sha256 than the last payload"
            )


def test_a_hash_is_that_of_the_same_parameter() -> None:
    """Short payloads are often equal, so the name, or parameter_id, is compared as well."""
    first = start(parent=0).ndu(ndu("w", DIMS), LEVELS[1]).ndu(ndu("v", DIMS), LEVELS[1]).data
    decoder = decoded(first)
    missing(decoder, by_hash(first, 2, name="x"), "'x' has a parent of another")
    decoder.decode(by_hash(first, 2))
    decoder.decode(by_hash(first, 2, name="v"))
    missing(decoder, by_hash(first, 3), "'w' has a parent of another")
    decoder = decoded(update(0, 1, parameter=1))
    header = update_ndu("x", DIMS, 1, parameter=2, parent_node_id_type=1)
    header.__dict__.pop("parent_device_id")
    header.parent_node_payload_sha256 = digest_of(update(0, 1))
    missing(decoder, start().ndu(header, LEVELS[2]).data, "'x' has a parent of another")
    header.parameter_id = 1
    decoder.decode(start().ndu(header, LEVELS[2]).data)


def test_a_hash_that_two_devices_share() -> None:
    """Without ids the parent is ambiguous."""
    first = update(1)
    decoder = decoded(first, update(1, device=3, parent_device_id=3))
    missing(decoder, by_hash(first, 2), "which is ambiguous: 2 devices have it")


@pytest.mark.parametrize("depth", [0, 1])
def test_a_hash_with_ids_is_verified(depth: int) -> None:
    first = update(depth)
    good = update(depth + 1, 4, parent_node_id_type=1, parent_node_payload_sha256=digest_of(first))
    bad = update(depth + 1, 4, parent_node_id_type=1, parent_node_payload_sha256=digest_of(first) ^ 1)
    decoder = decoded(first)
    missing(decoder, bad, "has a parent of another")
    np.testing.assert_array_equal(decoder.decode(good)["w"], LEVELS[4])
    missing(decoder, good, "has a parent of another|repeated or out of order")


def test_a_hash_of_another_devices_update() -> None:
    """The tree branches there; the parent's device continues independently."""
    first = update(1)
    second: dict[str, Any] = {"parent_node_id_type": 1, "parent_node_payload_sha256": digest_of(first)}
    decoder = decoded(first)
    for device in (4, 5):
        np.testing.assert_array_equal(decoder.decode(update(2, device=device, **second))["w"], LEVELS[2])
    np.testing.assert_array_equal(decoder.decode(update(2, 6))["w"], LEVELS[6])
    assert sorted(decoder.state.device_ids) == [0, 4, 5]


def test_two_units_of_one_parameter() -> None:
    """One unit has ids and the other a hash: they are rejected, with any number of threads."""
    first = update(1)
    data = start().ndu(update_ndu("x", DIMS, 2), LEVELS[2])
    header = ndu("w", DIMS, parent_node_id_present_flag=1, parent_node_id_type=1)
    header.parent_node_payload_sha256 = digest_of(first)
    data = data.ndu(header, LEVELS[3])
    for jobs in (1, 2):
        decoder = decoded(first)
        content = contents(decoder.state)
        with pytest.raises(nnr.ElementError, match="occur twice in one bitstream"):
            decoder.decode(data.data, jobs=jobs)
        assert contents(decoder.state) == content


# ------------------------------------------------------------------------------------------------ lineages
def line(count: int, device: int = 2) -> list[bytes]:
    """Return bitstreams of a sender, each of which names the previous one; even ones are empty."""
    made, token, depth = [], "", 0
    for number in range(1, count + 1):
        base = f"base#{device}.{number}.{token}"
        if number % 2:
            depth += 1
            made.append(update(depth, base=base, device=device, parent_device_id=device))
        else:
            made.append(start(base).data)
        token = base64.b64encode(hashlib.sha256(token.encode() + made[-1]).digest(), b"-_")[:16].decode()
    return made


def updates(messages: list[bytes]) -> Iterator[list[str]]:
    """Return the names decoded by UpdateDecoder."""
    decoder = nnr.UpdateDecoder()
    for data in messages:
        update = decoder.decode(data)
        yield [name for name in update if name not in update.left_out]


def streamed(messages: list[bytes]) -> Iterator[list[str]]:
    """Return the names decoded by StreamDecoder, in chunks of a few bytes; the next bitstream ends the previous one."""
    decoder = nnr.StreamDecoder()
    for data in messages:
        yield [name for k in range(0, len(data), 5) for name, _ in decoder.feed(data[k : k + 5])]
    decoder.finish()


def opened(messages: list[bytes]) -> Iterator[list[str]]:
    """Return the names decoded from files, with a state."""
    state = nnr.UpdateState(keep_digests=True)
    for data in messages:
        with nnr.open(data) as file:
            yield list(file.decode(state=state, allow_missing=True))


@pytest.mark.parametrize("read", [updates, streamed, opened])
def test_a_lineage(read: Callable[[list[bytes]], Iterator[list[str]]]) -> None:
    made = line(6)
    assert [bool(names) for names in read(made)] == [True, False] * 3
    for order, match in [
        ([0, 2], "bitstream 3 of device_id 2 continues number 2, .* the last decoded one is 1"),
        ([0, 1, 2, 4], "bitstream 5 of device_id 2 continues number 4, .* the last decoded one is 3"),
        ([0, 1, 1], "bitstream 2 of device_id 2 is repeated or out of order: number 2 was decoded"),
        ([0, 0], "bitstream 1 of device_id 2 is repeated"),
        ([1], "bitstream 2 of device_id 2 continues number 1, .* none was decoded"),
    ]:
        with pytest.raises(nnr.MissingReferenceError, match=match):
            list(read([made[k] for k in order]))


def test_the_state_knows_how_far() -> None:
    made = line(3)
    decoder = nnr.UpdateDecoder()
    token = ""
    for number, data in enumerate(made, 1):
        update = decoder.decode(data)
        assert update.base_model_id == f"base#2.{number}.{token}"
        token = base64.b64encode(hashlib.sha256(token.encode() + data).digest(), b"-_")[:16].decode()
        assert decoder.state.lineages == {2: Position(number, token)}
    missing(decoder, made[0], "repeated")
    anew = external(9, base="other#2.4.", device=2)
    decoder.decode(anew)
    assert decoder.state.lineages[2].number == 4
    missing(decoder, anew, "repeated")


def test_other_texts_are_opaque() -> None:
    decoder = decoded(update(1, base="sha256:00"), update(2, base="sha256:00"), update(3, base="#1.2.x"))
    assert decoder.state.lineages == {}


def test_a_lineage_ends_with_its_bitstream() -> None:
    """Bytes after it, with allow_trailing, do not count."""
    first, second = line(2)
    decoder = nnr.UpdateDecoder(limits=Limits(allow_trailing=True))
    decoder.decode(first + update(1))
    decoder.decode(second)
    assert decoder.state.lineages[2].number == 2


def test_a_stream_does_not_hoard_what_precedes_its_parameter_set() -> None:
    stream = Bitstream().str_()
    for _ in range(40):
        stream.unit(NnrUnitHeader(nnr_unit_type=20), b"x" * 1000)
    decoder = nnr.StreamDecoder(limits=Limits(max_pending_bytes=20_000))
    with pytest.raises(nnr.LimitError, match="before the NNR_MPS"):
        decoder.feed(stream.data)


# ------------------------------------------------------------------------------------------------ omitted tensors
def two(
    a: int | None, b: int | None, *, parent: int = 1, device: int = 0, pre: int = 0, kind: int = NNR_PT_FLOAT
) -> bytes:
    """Return a bitstream with updates of a and b at these depths; ``kind`` is the payload type of b."""
    stream = start(parent=parent, pre=pre)
    for parameter, (name, depth) in enumerate({"a": a, "b": b}.items()):
        if depth is not None:
            ids = {"device": device, "parameter": parameter} | ({"parent_device_id": device} if depth else {})
            stream.ndu(update_ndu(name, DIMS, depth, **ids, kind=kind if name == "b" else NNR_PT_FLOAT), LEVELS[depth])
    return stream.data


def test_what_an_update_leaves_out_is_zeros() -> None:
    decoder = decoded(two(0, 0, parent=0, kind=NNR_PT_INT))
    update = decoder.decode(two(1, None))
    assert (list(update), sorted(update.left_out), sorted(update.whole)) == (["a", "b"], ["b"], [])
    assert update["b"].dtype == np.int32 and update["b"].shape == (3, 4) and not update["b"].any()
    update["b"][:] = 1  # the caller's
    update = decoder.decode(two(None, None))
    assert update.left_out == {"a", "b"} and not update["b"].any()
    assert decoder.decode(two(2, 1, kind=NNR_PT_INT)).left_out == frozenset()
    assert dict(decoder.decode(two(None, 2, kind=NNR_PT_INT), raw=True)).keys() == {"b"}
    assert list(decoder.decode(two(1, None, device=1))) == ["a"]  # another sender has a separate one


def test_a_base_model_removes_tensors_that_it_omits() -> None:
    decoder = decoded(two(0, 0, parent=0))
    assert list(decoder.decode(two(0, None, parent=0))) == ["a"]
    assert list(decoder.decode(two(1, None))) == ["a"]


def test_residuals_leave_the_cache_of_others_alone() -> None:
    """An omitted tensor does not change, not even by the update before (9.2.4)."""
    decoder = decoded(two(1, 1, pre=1))
    assert not decoder.decode(two(2, None, pre=1))["b"].any()
    got = decoder.decode(two(3, 2, pre=1))
    np.testing.assert_array_equal(got["a"], LEVELS[1] + LEVELS[2] + LEVELS[3])
    np.testing.assert_array_equal(got["b"], LEVELS[1] + LEVELS[2])


def test_whole_tensors_are_reported() -> None:
    data = start().ndu(update_ndu("w", DIMS, 1), LEVELS[1]).ndu(update_ndu("v", DIMS, 0, parameter=1), LEVELS[2]).data
    assert nnr.UpdateDecoder().decode(data).whole == {"v"}
    assert nnr.UpdateDecoder().decode(update(0)).whole == {"w"}


# ------------------------------------------------------------------------------------------------ expected tensors
MODEL = {
    "a": np.ones(DIMS, np.float16),
    "b": np.ones(DIMS, np.int64),
    "c": np.ones((), ml_dtypes.bfloat16),
    "d": np.ones(2, bool),
}


def test_the_model_supplies_omitted_tensors() -> None:
    decoder = nnr.UpdateDecoder(like=MODEL)
    update = decoder.decode(two(1, 1, kind=NNR_PT_INT))
    assert [(name, a.dtype, a.shape) for name, a in update.items()] == [
        ("a", np.float32, (3, 4)),
        ("b", np.int32, (3, 4)),
        ("c", ml_dtypes.bfloat16, ()),
        ("d", np.bool_, (2,)),
    ]
    assert update.left_out == {"c", "d"}
    scalar = start().ndu(update_ndu("c", [1], 1), [3]).data
    assert nnr.UpdateDecoder(like=MODEL).decode(scalar)["c"].shape == ()


@pytest.mark.parametrize(
    ("name", "dims", "kind", "match"),
    [
        ("x", DIMS, NNR_PT_FLOAT, "'x' is not one of the 4"),
        ("a", [4, 3], NNR_PT_FLOAT, r"'a' is float32 \(4, 3\)"),
        ("a", [12], NNR_PT_FLOAT, r"'a' is float32 \(12,\)"),
        ("a", DIMS, NNR_PT_INT, "'a' is int32"),
        ("b", DIMS, NNR_PT_FLOAT, "'b' is float32"),
        ("c", [2], NNR_PT_FLOAT, "'c' is float32"),
        ("a", [1 << 30, 1 << 20], NNR_PT_FLOAT, "'a' is float32"),
    ],
)
def test_nothing_else_is_taken(name: str, dims: list[int], kind: int, match: str) -> None:
    decoder = nnr.UpdateDecoder(like=MODEL, limits=Limits.unlimited())
    content = contents(decoder.state)
    with pytest.raises(nnr.LimitError, match=match):
        decoder.decode(start().ndu(update_ndu(name, dims, 1, kind=kind), payload=b"\0\0").data)
    assert contents(decoder.state) == content


def test_integers_that_are_differences_of_patterns() -> None:
    """They are bit patterns only if the metadata says so, and never floats for integers."""
    bits = {"nnr_codec.update": "bits"}
    floats, integers = {"b": np.ones(DIMS, np.float32)}, {"a": np.ones(DIMS, np.int32)}
    data = nnr.encode(nnr.Model(integers, metadata=bits))
    assert nnr.UpdateDecoder(like=MODEL).decode(data).metadata == bits
    for model, match in ((nnr.Model(integers), "'a' is int32"), (nnr.Model(floats, metadata=bits), "'b' is float32")):
        with pytest.raises(nnr.LimitError, match=match):
            nnr.UpdateDecoder(like=MODEL).decode(nnr.encode(model))


# ------------------------------------------------------------------------------------------------ senders
def fleet(devices: int, **options: Any) -> nnr.UpdateDecoder:
    """Return a decoder with a first update of each of these devices."""
    return decoded(*(update(1, device=k, parent_device_id=k) for k in range(devices)), **options)


def test_the_devices_that_were_not_heard_of_for_long_are_forgotten() -> None:
    each = fleet(1).state.nbytes
    decoder = fleet(3, limits=Limits(max_history_bytes=3 * each))
    assert decoder.state.device_ids == [0, 1, 2]
    assert decoder.state.nbytes == 3 * each
    decoder.decode(update(2, device=0, parent_device_id=0))
    decoder.decode(update(1, device=3, parent_device_id=3))
    assert decoder.state.device_ids == [2, 0, 3]
    missing(decoder, update(2, device=1, parent_device_id=1), "device_id 1, .* none is known")
    decoder.decode(update(2, device=2, parent_device_id=2))


def test_a_device_whose_updates_are_continued_is_in_use() -> None:
    each = fleet(1).state.nbytes
    decoder = fleet(3, limits=Limits(max_history_bytes=3 * each))
    decoder.decode(update(2, device=7, parent_device_id=0))
    assert decoder.state.device_ids == [2, 0, 7]


def test_a_device_that_alone_is_too_much() -> None:
    """No other device is removed for it."""
    each = fleet(1).state.nbytes
    decoder = fleet(3, limits=Limits(max_history_bytes=3 * each))
    content, stream = contents(decoder.state), start()
    for k in range(5):
        stream.ndu(update_ndu(f"w{k}", DIMS, 1, parameter=k, device=9, parent_device_id=9), LEVELS[1])
    with pytest.raises(nnr.LimitError, match="max_history_bytes"):
        decoder.decode(stream.data)
    assert contents(decoder.state) == content


def test_the_lineage_is_forgotten_with_its_device() -> None:
    made = line(3)
    each = decoded(made[0]).state.nbytes
    decoder = decoded(*made[:2], limits=Limits(max_history_bytes=2 * each))
    for k in (5, 6):
        decoder.decode(update(1, device=k, parent_device_id=k))
    missing(decoder, made[2], "none was decoded")


def test_very_many_senders_that_leave_nothing_but_a_lineage() -> None:
    decoder = nnr.UpdateDecoder(limits=Limits(max_history_bytes=5_000))
    for device in range(100):
        decoder.decode(start(f"#{device}.1.").data)
    assert len(decoder.state.lineages) == 5_000 // 256


def test_reset() -> None:
    decoder = fleet(3)
    before = decoder.state
    decoder.reset(1)
    assert decoder.state.device_ids == [0, 2] and before.device_ids == [0, 1, 2]
    missing(decoder, update(2, device=1, parent_device_id=1), "none is known")
    decoder.decode(update(1, device=1, parent_device_id=1))
    decoder.reset(99)
    decoder.reset()
    assert len(decoder.state) == decoder.state.nbytes == 0
    decoder.decode(update(1))


def test_decoders_share_what_they_begin_with() -> None:
    state = fleet(2).state
    content = contents(state)
    one, other = nnr.UpdateDecoder(state=state), nnr.UpdateDecoder(state=state)
    one.decode(update(2))
    assert contents(state) == content == contents(other.state)
    other.decode(update(2, 5))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("pplrwbu"), st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_the_size_of_the_state_is_counted(steps: list[tuple[str, int, int]]) -> None:
    """The size follows added, replaced and removed nodes; earlier forks are unchanged."""
    before, limits = nnr.UpdateState(), Limits(max_history_bytes=6_000)
    state = before.fork()
    for step, device, k in steps:
        content = contents(before)
        try:
            if step == "p":
                state.put((device, k), UpdateNode(k, (np.ones(50 * k + 1, np.int32),), name="w" * k), limits)
            elif step == "l":
                state.place(device, Position(k + 1, ""), limits)
            elif step == "r":
                state.remember(device, {f"{j}": ((j,), "int8") for j in range(k)}, limits)
            elif step == "w":
                state.forget(device)
            elif step == "u" and state.node((device, k)):
                state.put((9, k), UpdateNode(k), limits, [device])
            else:
                before, content = state, contents(state)
                state = state.fork()
        except nnr.NnrError:
            state = before.fork()
        assert contents(before) == content or step == "b"
        assert state.nbytes == sum(sender.nbytes for sender in state.senders.values()) <= 6_000
        for sender in state.senders.values():
            entries = sum(ENTRY_BYTES + len(name) for name in sender.schema)
            assert sender.nbytes == ENTRY_BYTES + entries + sum(node.nbytes for node in sender.nodes.values())


def test_the_state_does_not_depend_on_the_decoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither does the order in which devices are removed."""
    monkeypatch.setattr(pool_module, "SMALL", 0)
    stream = start()
    for k in range(8):
        header = update_ndu(f"w{k}", DIMS, 1, parameter=k, device=7 - k, parent_device_id=7 - k)
        stream.ndu(header, LEVELS[k])
    last = start()
    for k, device in enumerate([5, 2, 6]):
        header = update_ndu(f"w{7 - device}", DIMS, 2, parameter=7 - device, device=9 + k, parent_device_id=device)
        last.ndu(header, LEVELS[k])
    files, limits = [], Limits(max_history_bytes=decoded(stream.data).state.nbytes)
    for jobs in (1, 3):
        decoder = nnr.UpdateDecoder(limits=limits)
        for data in (stream.data, last.data):
            decoder.decode(data, jobs=jobs)
        decoder.state.save(tmp_path / f"{jobs}")
        files.append((tmp_path / f"{jobs}").read_bytes())
    assert files[0] == files[1]
    assert {9, 10, 11} <= set(decoder.state.device_ids) and len(decoder.state.device_ids) < 11


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_are_independent(copied: Callable[[Any], Any]) -> None:
    """Copies of states and of decoders continue independently."""
    decoder = fleet(2, like={"w": LEVELS[0].astype(np.float32)})
    content = contents(decoder.state)
    state, twin = copied(decoder.state), copied(decoder)
    assert contents(state) == content == contents(twin.state)
    np.testing.assert_array_equal(twin.decode(update(2, pre=1))["w"], LEVELS[1] + LEVELS[2])
    np.testing.assert_array_equal(nnr.UpdateDecoder(state=state).decode(update(2, pre=1))["w"], LEVELS[1] + LEVELS[2])
    assert contents(decoder.state) == content == contents(state)
    with pytest.raises(nnr.LimitError, match="is not one of"):
        twin.decode(two(1, None))
