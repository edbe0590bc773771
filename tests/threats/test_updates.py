"""T29, T30: updates and their parents."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import ICNN_NDU_PL_SHA256, ICNN_NDU_PL_SHA512, NNR_PT_INT
from nnr_codec.limits import Limits

from ..builder import Bitstream, update_ndu
from .checks import pins

GROUP = "decoder/group.py"
STATE = "decoder/state.py"

DIMS = [5, 6]
LEVELS = np.random.default_rng(3).integers(-3, 4, DIMS).astype(np.int32)


def update(depth: int, dims: list[int] | None = None, *, pre: int = 0, co_loc: Any = None, **options: Any) -> bytes:
    """A bitstream with one update of w."""
    dims = dims or DIMS
    levels = np.resize(LEVELS, dims)
    temporal = {"temporal_context_modeling_flag": 1} if co_loc is not None else {}
    header = update_ndu("w", dims, depth, **(temporal | options))
    co_locs = () if co_loc is None else (np.resize(co_loc, dims),)
    return Bitstream().str_().mps(parent=1, pre=pre).ndu(header, levels, co_loc=co_locs).data


def refused_after(before: list[bytes], data: bytes, match: str, **options: Any) -> nnr.NnrError:
    """The error of ``data``; the state stays as it was."""
    decoder = nnr.UpdateDecoder(**options)
    for known in before:
        decoder.decode(known)
    state = decoder.state
    with pytest.raises((nnr.MissingReferenceError, nnr.LimitError), match=match) as caught:
        decoder.decode(data)
    assert decoder.state is state
    return caught.value


@pins(
    STATE, "if header.put_node_depth <= 1 or (before and before.put_node_depth == header.put_node_depth - 1):", "if 1:"
)
@pytest.mark.parametrize(("before", "depth"), [([], 2), ([1], 3), ([1, 2], 2), ([1, 2, 3], 2), ([0], 1 << 31)])
def test_t29_a_parent_that_is_not_the_last_update(before: list[int], depth: int) -> None:
    refused_after([update(known) for known in before], update(depth), "its parent has put_node_depth")


@pins("decoder/unit.py", "if arrays and [array.shape for array in arrays] != [part.dims for part in task.parts]:")
@pytest.mark.parametrize("dims", [[6, 5], [30], [5, 7], [1, 1]])
def test_t29_co_located_levels_of_another_shape(dims: list[int]) -> None:
    """The kernel would read beyond them."""
    refused_after([update(1)], update(2, dims, co_loc=LEVELS), "have not its shape")
    refused_after([update(1)], update(2, dims), "shape")  # their history has one as well


@pins(GROUP, "if cache[0].shape != residual.shape or cache[0].dtype.kind != residual.dtype.kind:")
def test_t29_a_residual_of_another_type() -> None:
    """Integers cannot be added to an update of floats (9.2.4)."""
    refused_after([update(1, pre=1)], update(2, pre=1, kind=NNR_PT_INT), "another shape or type")


@pins(STATE, 'limits.check("max_history_bytes", total, "bytes kept for later updates")', "pass")
def test_t29_a_cache_of_any_size() -> None:
    """Of many parameters, each within the limits of a bitstream."""
    before = [update(1, parameter=k) for k in range(5)]
    refused_after(before, update(1, parameter=5), "max_history_bytes", limits=Limits(max_history_bytes=9_000))


def by_hash(kind: int, digest: int, *, temporal: int = 0, pre: int = 0) -> bytes:
    """An update whose parent is a payload with a given SHA-256 or SHA-512, without ids of its own."""
    name = "parent_node_payload_sha256" if kind == ICNN_NDU_PL_SHA256 else "parent_node_payload_sha512"
    header = update_ndu("w", DIMS, 1, **{"parent_node_id_type": kind, name: digest, "node_id_present_flag": 0})
    for absent in ("parent_device_id", "device_id", "parameter_id", "put_node_depth"):
        header.__dict__.pop(absent)
    header.temporal_context_modeling_flag = temporal
    return Bitstream().str_().mps(parent=1, pre=pre).ndu(header, LEVELS).data


@pins(STATE, "if header.temporal_context_modeling_flag or residual:")
@pytest.mark.parametrize("kind", [ICNN_NDU_PL_SHA256, ICNN_NDU_PL_SHA512])
@pytest.mark.parametrize("tool", ["temporal", "pre"])
def test_t30_a_parent_that_only_a_hash_names(kind: int, tool: str) -> None:
    """It is not looked for, so that nothing is added to the wrong one."""
    refused_after([], by_hash(kind, 1, **{tool: 1}), "only a hash of its payload names")


@pins(STATE, "return not self._earlier or digest in self._earlier", "return True")
@pytest.mark.parametrize("kind", [ICNN_NDU_PL_SHA256, ICNN_NDU_PL_SHA512])
def test_t30_a_hash_of_another_parent_is_refused(kind: int) -> None:
    """Wherever something was decoded before, be it whole or in chunks; else the parent need not be known."""
    base, make = update(1), hashlib.sha256 if kind == ICNN_NDU_PL_SHA256 else hashlib.sha512
    payload = list(nnr.units(base))[-1].payload
    assert isinstance(payload, memoryview)
    digest = int.from_bytes(make(payload).digest(), "big")
    good, bad = by_hash(kind, digest), by_hash(kind, digest ^ 1)
    decoder, stream = nnr.UpdateDecoder(), nnr.StreamDecoder()
    for data in (base, good, good):  # a tree may branch
        assert list(decoder.decode(data)) == [name for name, _ in stream.feed(data)]
    assert nnr.UpdateDecoder().decode(bad)
    refused_after([base, good], bad, "has a parent of another parent_node_payload_sha")
    with pytest.raises(nnr.MissingReferenceError, match="has a parent of another"):
        stream.feed(bad)


@pytest.mark.parametrize("jobs", [1, 2])
def test_t30_parents_are_those_of_earlier_bitstreams(jobs: int) -> None:
    """What a bitstream holds itself is no parent, and makes no other unknown."""
    one = by_hash(ICNN_NDU_PL_SHA256, 1)
    first = list(nnr.units(one))
    second = list(nnr.units(one))[-1]
    second.ndu.topology_elem_id = "x"
    assert list(nnr.UpdateDecoder().decode(nnr.write_units([*first, second]), jobs=jobs)) == ["w", "x"]


@pins("conformance/requirements/tensors.py", "not in checked.history.digests:", "is None:")
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
