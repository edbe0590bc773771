"""Decoding in lanes of tensors of any size, to compare it with scalar code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import pytest

from nnr_codec.cabac_ext.kernel import decode_lanes, has_lanes
from nnr_codec.decoder import lanes, unit


@contextlib.contextmanager
def all_in_lanes() -> Iterator[None]:
    """Let all tensors be decoded in lanes that suit them, to their last level, and from all entry points."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit, "LANES", has_lanes())
        patch.setattr(lanes, "LEAST", 0)
        for module in (lanes, unit):
            patch.setattr(module, "TOGETHER", 0)
            patch.setattr(module, "decode_lanes", partial(decode_lanes, few=0))
        patch.setattr(unit, "LANE_SEGMENT", 1)
        yield


@contextlib.contextmanager
def no_lanes() -> Iterator[None]:
    """Let scalar code decode everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit, "LANES", False)
        yield
