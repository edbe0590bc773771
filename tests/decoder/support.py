"""Support of the tests of this folder."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.units import UnitReader

E = TypeVar("E", bound=nnr.NnrError)


def refused(data: bytes, error: type[E], match: str | None, *, unit: str = "", path: str = "", **options: Any) -> E:
    """Return the error that decoding raises: of exactly this class, with unit label and path of the syntax element."""
    with pytest.raises(error, match=match) as caught:
        nnr.decode(data, **options)
    assert type(caught.value) is error
    if isinstance(caught.value, nnr.BitstreamError):
        assert unit in caught.value.unit
        assert path in caught.value.path
        assert -1 <= caught.value.bit <= 8 * len(data)
    return caught.value


def contents(state: nnr.UpdateState) -> list[tuple[Any, ...]]:
    """Return the whole content of a state, in the order of its use, in a comparable form."""
    found: list[tuple[Any, ...]] = [(state.nbytes, state.keep_digests)]
    for device, sender in state.senders.items():
        found.append((device, sender.position, sender.nbytes, dict(sender.schema)))
        for parameter, node in sender.nodes.items():
            arrays = [[(a.dtype, a.shape, a.tobytes()) for a in k] for k in (node.levels, node.any_sig, node.updates)]
            found.append((device, parameter, node.put_node_depth, node.name, node.digests, arrays))
    return found


def overwritten(data: bytes, name: str, value: int) -> bytes:
    """Return a copy with another value of the last syntax element ``name``, which has a fixed number of bits."""
    places: list[tuple[int, int]] = []
    reader = UnitReader(
        data, trace=lambda path, _, bit, size, __: places.append((bit, size)) if path.endswith(name) else None
    )
    offset = 0
    for unit in reader:
        if places and places[-1][0] >= 0:
            offset = unit.offset
            first, size = places[-1]
            places[-1] = (-1 - first - 8 * offset, size)  # now relative to the bitstream, and marked as such
    first, size = places[-1]
    shift = 8 * len(data) - (-1 - first) - size
    bits = int.from_bytes(data, "big") & ~(((1 << size) - 1) << shift) | value << shift
    return bits.to_bytes(len(data), "big")
