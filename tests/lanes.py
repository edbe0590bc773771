"""Decoding in lanes of tensors of any size, for comparison with scalar code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import pytest

from nnr_codec.cabac_ext.kernel import decode_lanes, lane_engines
from nnr_codec.decoder import lanes, unit


@contextlib.contextmanager
def all_in_lanes() -> Iterator[None]:
    """Decode all suitable tensors in lanes, up to their last level and from all entry points."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit, "LANES", lane_engines())
        patch.setattr(lanes, "LEAST", 0)
        for module in (lanes, unit):
            patch.setattr(module, "TOGETHER", 0)
            patch.setattr(module, "decode_lanes", partial(decode_lanes, few=0))
        patch.setattr(unit, "LANE_SEGMENT", 1)
        yield


@contextlib.contextmanager
def no_lanes() -> Iterator[None]:
    """Decode everything with scalar code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit, "LANES", [])
        yield
