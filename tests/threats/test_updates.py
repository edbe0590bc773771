"""T29, T30: updates and their parents."""

from __future__ import annotations

import base64
import hashlib
import io
import struct
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import ICNN_NDU_EXT, ICNN_NDU_PL_SHA256, ICNN_NDU_PL_SHA512, NNR_MPS, NNR_PT_INT
from nnr_codec.limits import Limits
from nnr_codec.syntax.structures import (
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrUnitHeader,
)

from ..builder import Bitstream, update_ndu

DIMS = [5, 6]
LEVELS = np.random.default_rng(3).integers(-3, 4, DIMS).astype(np.int32)


def update(depth: int, dims: list[int] | None = None, *, pre: int = 0, co_loc: Any = None, **options: Any) -> bytes:
    """Return a bitstream with one update of w."""
    dims = dims or DIMS
    levels = np.resize(LEVELS, dims)
    temporal = {"temporal_context_modeling_flag": 1} if co_loc is not None else {}
    header = update_ndu("w", dims, depth, **(temporal | options))
    co_locs = () if co_loc is None else (np.resize(co_loc, dims),)
    return Bitstream().str_().mps(parent=1, pre=pre).ndu(header, levels, co_loc=co_locs).data


def refused_after(before: list[bytes], data: bytes, match: str, **options: Any) -> nnr.NnrError:
    """Return the error of ``data``, and check that the state is unchanged."""
    decoder = nnr.UpdateDecoder(**options)
    for known in before:
        decoder.decode(known)
    state = decoder.state
    with pytest.raises((nnr.MissingReferenceError, nnr.LimitError), match=match) as caught:
        decoder.decode(data)
    assert decoder.state is state
    return caught.value


@pytest.mark.parametrize(("before", "depth"), [([], 2), ([1], 3), ([1, 2], 2), ([1, 2, 3], 2), ([0], 1 << 31)])
def test_t29_a_parent_that_is_not_the_last_update(before: list[int], depth: int) -> None:
    refused_after([update(known) for known in before], update(depth), "its parent has put_node_depth")


@pytest.mark.parametrize("dims", [[6, 5], [30], [5, 7], [1, 1]])
def test_t29_co_located_levels_of_another_shape(dims: list[int]) -> None:
    """The kernel would read outside them."""
    refused_after([update(1)], update(2, dims, co_loc=LEVELS), "do not have its shape")
    refused_after([update(1)], update(2, dims), "shape")  # their history has one as well


def test_t29_a_residual_of_another_type() -> None:
    """Integers cannot be added to an update of floats (9.2.4)."""
    refused_after([update(1, pre=1)], update(2, pre=1, kind=NNR_PT_INT), "different shape or type")


def test_t29_a_cache_of_any_size() -> None:
    """It has many parameters, each within the limits of a bitstream."""
    before = [update(1, parameter=k) for k in range(5)]
    refused_after(before, update(1, parameter=5), "max_history_bytes", limits=Limits(max_history_bytes=11_000))


def test_t29_an_update_that_is_repeated() -> None:
    """Its parent may be of another device, or missing."""
    first = update(1, device=4, parent_device_id=4)
    refused_after([first, update(2, parent_device_id=4)], update(2, parent_device_id=4), "is repeated or out of order")
    header = update_ndu("w", DIMS, 3, parent_node_id_type=ICNN_NDU_EXT)
    header.__dict__.pop("parent_device_id")
    external = Bitstream().str_().mps(parent=1).ndu(header, LEVELS).data
    refused_after([external], external, "is repeated or out of order")


def test_t29_contexts_of_an_update_of_another_device() -> None:
    """The contexts are neither that device's nor zeros."""
    data = update(2, device=4, parent_device_id=0, co_loc=LEVELS)
    refused_after([update(1)], data, "has temporal contexts of update 1 of device_id 4")


def test_t29_two_updates_of_a_parameter() -> None:
    """One has ids and one a hash, so the last one would depend on the order of decoding."""
    first = update(1)
    payload = list(nnr.units(first))[-1].payload
    assert isinstance(payload, memoryview)
    unit = list(nnr.units(by_hash(ICNN_NDU_PL_SHA256, int.from_bytes(hashlib.sha256(payload).digest(), "big"))))[-1]
    second = [*nnr.units(update(2)), unit]
    second[2].ndu.topology_elem_id = "x"
    decoder = nnr.UpdateDecoder()
    decoder.decode(first)
    with pytest.raises(nnr.ElementError, match="occur twice"):
        decoder.decode(nnr.write_units(second))


def sent(number: int, token: str = "") -> bytes:
    """Return a bitstream without tensors that states its position."""
    payload = NnrModelParameterSetUnitPayload(mps_parent_signalling_enabled_flag=1)
    payload.base_model_id_present_flag, payload.base_model_id = 1, f"m#0.{number}.{token}"
    head = NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader())
    return Bitstream().str_().unit(head, payload).data


def test_t29_a_message_that_is_replayed() -> None:
    refused_after([sent(3)], sent(3), "is repeated or out of order")
    refused_after([sent(3)], sent(2), "is repeated or out of order")


def test_t29_a_message_between_that_was_lost() -> None:
    """It is detected even if the next message refers to none of its tensors."""
    first, token = sent(1), "x" * 16
    good = base64.b64encode(hashlib.sha256(first).digest(), b"-_")[:16].decode()
    nnr.UpdateDecoder(state=after(first)).decode(sent(2, good))
    refused_after([first], sent(3, good), "continues number 2")
    refused_after([first], sent(2, token), "continues number 1")
    refused_after([], sent(2, token), "none was decoded")


def after(data: bytes) -> nnr.UpdateState:
    """Return the state after a bitstream."""
    decoder = nnr.UpdateDecoder()
    decoder.decode(data)
    return decoder.state


def test_t29_what_precedes_the_parameter_set_of_a_stream() -> None:
    """It is kept for the lineage until this is known."""
    stream = Bitstream().str_()
    for _ in range(20):
        stream.unit(NnrUnitHeader(nnr_unit_type=20), bytes(1000))
    with pytest.raises(nnr.LimitError, match="before the NNR_MPS"):
        nnr.StreamDecoder(limits=Limits(max_pending_bytes=9_000)).feed(stream.data)


# ------------------------------------------------------------------------------------------------ state files
def state_file(nodes: bytes, count: int = 1) -> bytes:
    """Return a file of one device with these nodes and a correct digest."""
    content = b"NNRSTATE" + struct.pack("<IIIqQIII", 1, 0, 1, 0, 0, 0, 0, count) + nodes
    return content + hashlib.sha256(content).digest()


#: A node without name and digests, up to its arrays.
NODE = struct.pack("<QIQI", 0, 0, 1, 0)


def test_t29_a_state_file_that_says_to_be_long() -> None:
    with pytest.raises(nnr.FormatError, match="a list of 4,294,967,295"):
        nnr.UpdateState.load(state_file(NODE, (1 << 32) - 1))


def test_t29_a_state_file_that_is_long() -> None:
    """It is not read."""

    class Long(io.BytesIO):
        def seek(self, offset: int, whence: int = 0) -> int:
            return 1 << 40 if whence else super().seek(offset)

        def read(self, size: int | None = -1) -> bytes:
            raise AssertionError("it is read")

    with pytest.raises(nnr.LimitError, match="bytes of the state file"):
        nnr.UpdateState.load(Long())


def test_t29_flags_take_more_memory_than_bytes() -> None:
    count = 1 << 20
    data = state_file(NODE + struct.pack("<IIBIQ", 0, 1, 1, 1, count) + bytes(count // 8) + struct.pack("<I", 0))
    with pytest.raises(nnr.LimitError, match="arrays"):
        nnr.UpdateState.load(data, limits=Limits(max_history_bytes=count - 1))


@pytest.mark.parametrize("arrays", [(2, 0, 0), (0, 5, 0), (0, 0, 1), (8, 0, 0)])
def test_t29_a_state_file_with_arrays_of_another_type(arrays: tuple[int, ...]) -> None:
    """The kernel would read floats as levels."""
    lists = b"".join(struct.pack("<IBIQ", 1, k, 1, 1) + bytes(8) if k else bytes(4) for k in arrays)
    with pytest.raises(nnr.FormatError, match="an array has type"):
        nnr.UpdateState.load(state_file(NODE + lists))


def test_t29_a_state_file_that_is_damaged() -> None:
    data = bytearray(state_file(NODE + bytes(12)))
    assert len(nnr.UpdateState.load(bytes(data))) == 1
    data[30] ^= 1
    with pytest.raises(nnr.FormatError, match="its digest differs"):
        nnr.UpdateState.load(bytes(data))


def by_hash(kind: int, digest: int, *, temporal: int = 0, pre: int = 0) -> bytes:
    """Return an update without ids whose parent is a payload with a given SHA-256 or SHA-512."""
    name = "parent_node_payload_sha256" if kind == ICNN_NDU_PL_SHA256 else "parent_node_payload_sha512"
    header = update_ndu("w", DIMS, 1, **{"parent_node_id_type": kind, name: digest, "node_id_present_flag": 0})
    for absent in ("parent_device_id", "device_id", "parameter_id", "put_node_depth"):
        header.__dict__.pop(absent)
    header.temporal_context_modeling_flag = temporal
    return Bitstream().str_().mps(parent=1, pre=pre).ndu(header, -LEVELS).data


@pytest.mark.parametrize("kind", [ICNN_NDU_PL_SHA256, ICNN_NDU_PL_SHA512])
@pytest.mark.parametrize("tool", ["temporal", "pre"])
def test_t30_a_parent_that_only_a_hash_names(kind: int, tool: str) -> None:
    """The parent is unknown, so nothing is added to a wrong one, and its contexts are not zeros."""
    with pytest.raises(nnr.MissingReferenceError, match="requires a parent with"):
        nnr.decode(by_hash(kind, 1, **{tool: 1}))
    refused_after([], by_hash(kind, 1, **{tool: 1}), "has a parent of another")


@pytest.mark.parametrize("kind", [ICNN_NDU_PL_SHA256, ICNN_NDU_PL_SHA512])
def test_t30_a_hash_of_another_parent_is_refused(kind: int) -> None:
    """All decoders with a state reject it, whole or in chunks; nor is a parent continued twice."""
    base, make = update(1), hashlib.sha256 if kind == ICNN_NDU_PL_SHA256 else hashlib.sha512
    payload = list(nnr.units(base))[-1].payload
    assert isinstance(payload, memoryview)
    digest = int.from_bytes(make(payload).digest(), "big")
    good, bad = by_hash(kind, digest), by_hash(kind, digest ^ 1)
    decoder, stream = nnr.UpdateDecoder(), nnr.StreamDecoder()
    for data in (base, good):
        assert list(decoder.decode(data)) == [name for name, _ in stream.feed(data)]
    for before in ([], [base], [base, good]):
        refused_after(before, bad, "has a parent of another parent_node_payload_sha")
    refused_after([base, good], good, "has a parent of another parent_node_payload_sha")
    with pytest.raises(nnr.MissingReferenceError, match="has a parent of another"):
        stream.feed(bad)


@pytest.mark.parametrize("jobs", [1, 2])
def test_t30_parents_are_in_earlier_bitstreams(jobs: int) -> None:
    """A unit of the same bitstream is not a parent, for all decoders."""
    first = update(1)
    payload = list(nnr.units(first))[-1].payload
    assert isinstance(payload, memoryview)
    digest = int.from_bytes(hashlib.sha256(payload).digest(), "big")
    second = list(nnr.units(by_hash(ICNN_NDU_PL_SHA256, digest)))[-1]
    second.ndu.topology_elem_id = "x"
    with pytest.raises(nnr.MissingReferenceError, match="'x' has a parent of another"):
        nnr.UpdateDecoder().decode(nnr.write_units([*nnr.units(first), second]), jobs=jobs)


@pytest.mark.parametrize("kind", [ICNN_NDU_PL_SHA256, ICNN_NDU_PL_SHA512])
def test_t30_a_hash_of_another_parent_is_reported(kind: int) -> None:
    base = update(1)
    payload = list(nnr.units(base))[-1].payload
    assert isinstance(payload, memoryview)
    make = hashlib.sha256 if kind == ICNN_NDU_PL_SHA256 else hashlib.sha512
    digest = int.from_bytes(make(payload).digest(), "big")
    assert nnr.verify(by_hash(kind, digest), inputs=[base]).violations == []
    found = nnr.verify(by_hash(kind, digest ^ 1), inputs=[base]).violations
    assert [violation.requirement for violation in found] == ["parent-hash"]
