"""What tests of updates have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnr_codec as nnr


def packed(node: Any) -> tuple[Any, ...]:
    """All of a node but its digests, in a form that can be compared."""
    arrays = (node.levels, node.any_sig, node.updates)
    return node.put_node_depth, *(tuple((a.dtype.str, a.shape, a.tobytes()) for a in part) for part in arrays)


def content(state: nnr.UpdateState) -> list[Any]:
    """All of a state, in a form that can be compared; senders in the order in which they would be forgotten."""
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
    """Shapes and types by name."""
    return {name: (tuple(array.shape), np.dtype(array.dtype).name) for name, array in tensors.items()}
