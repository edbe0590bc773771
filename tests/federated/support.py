"""Support of tests of updates."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnr_codec as nnr


def packed(node: Any) -> tuple[Any, ...]:
    """Return a comparable form of a node without its digests."""
    arrays = (node.levels, node.any_sig, node.updates)
    return node.put_node_depth, *(tuple((a.dtype.str, a.shape, a.tobytes()) for a in part) for part in arrays)


def content(state: nnr.UpdateState) -> list[Any]:
    """Return a comparable form of a state; senders are in the order in which they would be removed."""
    return [
        (
            device,
            {key: (packed(node), node.name, node.digests) for key, node in sender.nodes.items()},
            dict(sender.schema),
            sender.position,
            sender.nbytes,
        )
        for device, sender in state.senders.items()
    ]


def described(tensors: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shapes and types by name."""
    return {name: (tuple(array.shape), np.dtype(array.dtype).name) for name, array in tensors.items()}
