"""NNR-NEF-026 on: pruned variables that are smaller than the graph declares (6.4.4.5, 8.3.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..builder import ndu
from .arithmetic import chosen, floats
from .block import BI, LS
from .case import Content, valid
from .pruning import bits, container, pruned, zeroed
from .stream import Stream
from .wired import BIAS, EPSILON, FILTER, NORMALIZATION, NORMALIZED, block, graph, start, variable

#: A convolution, its bias and its batch normalization, and a convolution of its output.
PRUNABLE = graph(
    *(FILTER, BIAS, *NORMALIZATION, variable("reader", 2, 3, 1, 1)),
    "features = conv(input, filter, bias, padding = [])",
    f"normalized = {NORMALIZED}",
    "output = conv(normalized, reader)",
)
#: Two of three channels remain.
LEFT = {
    "filter": [2, 2, 1, 2],
    **{name: [1, 2] for name in ("bias", "mean", "variance", "offset", "scale")},
    "reader": [2, 2, 1, 1],
}
FOLDED = {"weight": "filter", "ls": "scale", "bias": "offset"}


def folded(s: Stream, names: Mapping[str, str | int], mask: Sequence[int], reader: str | int) -> Content:
    """Return the block and its reader with two channels; a mask sets some parameters of the reader to zero."""
    rec = block(s, LS | BI, {role: names[name] for role, name in FOLDED.items()}, LEFT["filter"])
    levels = chosen(LEFT["reader"], 5, 8)
    s.ndu(ndu(reader, LEFT["reader"]), levels, qp=2)
    variance = np.full((1, 2), np.float32(1 - float(EPSILON)), "<f4")
    raw = {name: rec[role] for role, name in FOLDED.items()} | {"reader": floats(levels, 2)}
    return s.gives(
        {
            "filter": zeroed(rec["weight"], mask[:8]),
            "scale": rec["ls"].reshape(1, 2),
            "offset": rec["bias"].reshape(1, 2),
            "mean": np.zeros((1, 2), "<f4"),
            "variance": variance,
            "bias": np.zeros((1, 2), "<f4"),
            "reader": zeroed(raw["reader"], mask[8:]),
        },
        raw=raw,
        topology=PRUNABLE,
    )


@valid(
    "NNR-NEF-026",
    "folded batch normalization with a pruned channel: recreated tensors are in the dictionary, not in masks",
    "6.4.4.5 8.2.1 8.3.3 A.4",
    "NNR_TPL_NNEF NNR_TPL_PRUN NNR_TPL_DICT element_id sparse_mask batchnorm_folding",
)
def by_name() -> Content:
    s = start(PRUNABLE)
    mask = bits(8 + 4, 5)
    pruned(s, container(dims=LEFT, sparse=mask))
    return folded(s, {name: name for name in FOLDED.values()}, mask, "reader")


@valid(
    "NNR-NEF-027",
    "like NNR-NEF-026, by index in a reference list with the recreated tensors; separately stored topology",
    "6.4.4.5 8.2.1 8.3.3 A.4",
    "NNR_TPL_PRUN NNR_TPL_DICT NNR_TPL_REFLIST element_id_index sparse_mask batchnorm_folding",
    topology=PRUNABLE,
)
def by_index() -> Content:
    s = start(b"", mps_topology_indexed_reference_flag=1)
    index = {name: k for k, name in enumerate(LEFT)}
    s.reference_list(*LEFT)
    mask = bits(8 + 4, 9)
    pruned(s, container(dims={index[name]: dims for name, dims in LEFT.items()}, sparse=mask))
    return folded(s, index, mask, index["reader"])
