"""NNR-SYN-034 on: pruning information, NNR_TPL_PRUN, and its effect on tensors (6.4.4.5, 8.3.3, errata N1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bitarray import bitarray

from nnr_codec.constants import NNR_CPT_BI, NNR_PT_BLOCK, NNR_PT_INT, NNR_PT_RAW_FLOAT, NNR_TPL, NNR_TPL_PRUN
from nnr_codec.syntax.structures import (
    BitMask,
    NnrPruningTopologyContainer,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
)

from ..builder import Bitstream, ndu
from .arithmetic import chosen, floats
from .case import Content, Tensor, acceptable, valid
from .stream import Stream


def container(
    *,
    prune: Sequence[int] = (),
    sparse: Sequence[int] = (),
    row_major: int = 1,
    dims: Mapping[Any, Sequence[int]] | None = None,
) -> NnrPruningTopologyContainer:
    """Return a container with masks, or with new dimensions by name or index."""
    t = NnrPruningTopologyContainer(nnr_rep_type=int(dims is not None), order_flag=row_major)
    t.prune_flag, t.sparse_flag = int(bool(prune) or dims is not None), int(bool(sparse))
    if dims is not None:
        keys = list(dims)
        t.count_ids, t.count_dims = len(keys), [len(extents) for extents in dims.values()]
        t.dim = [list(extents) for extents in dims.values()]
        setattr(t, "element_id" if keys and isinstance(keys[0], str) else "element_id_index", keys)
    elif prune:
        t.prune_mask = BitMask(bit_mask_value=bitarray(prune))
    if sparse:
        t.sparse_mask = BitMask(bit_mask_value=bitarray(sparse))
    return t


def pruned(s: Bitstream, t: NnrPruningTopologyContainer) -> None:
    """Write NNR_TPL with a container."""
    header = NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_PRUN))
    s.unit(header, NnrTopologyUnitPayload(pruning=t))


def bits(n: int, seed: int) -> list[int]:
    """Return chosen bits, of which about one in three is 0."""
    return [int(value != 0) for value in chosen([n], 1, seed, 0) + chosen([n], 1, seed + 7, 0)]


def zeroed(value: Tensor, mask: Sequence[int], row_major: int = 1) -> Tensor:
    """Return a tensor that is 0 where its bit is 0, in row-major or column-major order."""
    out = value.copy()
    indices = list(np.ndindex(*value.shape)) if row_major else [i[::-1] for i in np.ndindex(*value.shape[::-1])]
    for bit, index in zip(mask, indices, strict=True):
        if not bit:
            out[index] = 0
    return out


SHAPES = {"conv": [3, 2, 2, 2], "conv.bias": [3], "fc": [2, 5], "scale": [4]}


def masked(prune: str, row_major: int) -> Content:
    """Return a bitstream with a mask of two weights, with vectors between the weights."""
    mask = bits(24 + 10, 5)
    s = Stream().start()
    pruned(s, container(**{prune: mask}, row_major=row_major))  # type: ignore[arg-type]  # prune or sparse
    values = {}
    for k, (name, shape) in enumerate(SHAPES.items()):
        levels = chosen(shape, 4, k + 1, 0)
        s.ndu(ndu(name, shape), levels, qp=k)
        values[name] = floats(levels, k)
    after = dict(values)
    after["conv"] = zeroed(values["conv"], mask[:24], row_major)
    after["fc"] = zeroed(values["fc"], mask[24:], row_major)
    return s.gives(after, raw=values)


for number, (element, row_major) in enumerate([("sparse", 1), ("sparse", 0), ("prune", 1), ("prune", 0)], 34):

    @valid(
        f"NNR-SYN-{number:03}",
        f"{element}_mask with a bit for each parameter, {'row' if row_major else 'column'}-major",
        "6.3.4.5 6.4.4.5 8.3.3",
        f"NNR_TPL_BMSK {element}_mask order_flag={row_major}",
    )
    def element_wise(element: str = element, row_major: int = row_major) -> Content:
        return masked(element, row_major)


@valid(
    "NNR-SYN-038",
    "prune_mask with a bit for each output channel, the first of the coded dimensions",
    "6.3.4.5 6.4.4.5 8.3.3",
    "NNR_TPL_BMSK prune_mask channels first_tensor_dimension_shift",
)
def channels() -> Content:
    a, b = chosen([3, 4], 5, 1, 0), chosen([4, 2, 3], 5, 2, 0)
    s = Stream().start()
    pruned(s, container(prune=[1, 0, 1, 0, 1, 1, 0]))
    s.ndu(ndu("a", [3, 4], kind=NNR_PT_INT), a).ndu(ndu("b", [4, 2, 3], first_tensor_dimension_shift=2), b, qp=3)
    moved = np.array([[[floats(b, 3)[i, j, k] for i in range(4)] for k in range(3)] for j in range(2)], "<f4")
    after = moved.copy()
    after[:, :, 0] = after[:, :, 3] = 0
    kept = a.copy()
    kept[1] = 0
    return s.gives({"a": kept, "b": after}, raw={"a": a, "b": moved})


@valid(
    "NNR-SYN-039",
    "masks of parameters and channels in two containers: a parameter is zero if any mask removes it",
    "6.4.4.5 8.3.3",
    "NNR_TPL_BMSK prune_mask sparse_mask",
)
def several_masks() -> Content:
    levels = chosen([4, 3], 9, 3, 0)
    one, other = bits(12, 2), bits(12, 11)
    s = Stream().start()
    pruned(s, container(prune=[1, 1, 0, 1], sparse=one))
    pruned(s, container(sparse=other, row_major=0))
    s.ndu(ndu("w", [4, 3]), levels)
    value = floats(levels)
    after = zeroed(zeroed(value, one), other, 0)
    after[2] = 0
    return s.gives({"w": after}, raw={"w": value})


@valid(
    "NNR-SYN-040",
    "masks of the weight of a block and of tensors that share a unit",
    "6.4.4.5 7.3.1 7.3.5",
    "NNR_TPL_BMSK sparse_mask NNR_PT_BLOCK TensorSplit",
)
def shared_units() -> Content:
    weight, bias, both = chosen([2, 3], 4, 1, 0), chosen([2], 4, 2, 0), chosen([5, 2], 4, 3, 0)
    mask = bits(6 + 4 + 6, 3)
    s = Stream().start()
    pruned(s, container(sparse=mask))
    header = ndu(["w", "w.bias"], [2, 3], kind=NNR_PT_BLOCK, compressed_parameter_types=NNR_CPT_BI)
    s.ndu(header, bias, weight, qp=[1, 2])
    s.ndu(ndu(["a", "b"], [5, 2], concatentation_axis_index=0, split_index=[2], number_of_shifts=[0, 0]), both)
    values = {"w": floats(weight, 2), "w.bias": floats(bias, 1), "a": floats(both)[:2], "b": floats(both)[2:]}
    after = dict(values)
    for name, first, last in (("w", 0, 6), ("a", 6, 10), ("b", 10, 16)):
        after[name] = zeroed(values[name], mask[first:last])
    return s.gives(after, raw={"w": values["w"], "w.bias": values["w.bias"], "a": floats(both)})


# ------------------------------------------------------------------------------------------------ dictionaries
@valid(
    "NNR-SYN-041",
    "a dictionary by name with omitted dimensions of two units, and equal dimensions of a third",
    "6.4.3.7 6.4.4.5",
    "NNR_TPL_DICT element_id tensor_dimensions_flag=0",
)
def dictionary() -> Content:
    dims = {"a": [2, 3], "b": [4], "c": [1, 2, 2]}
    levels = {name: chosen(shape, 6, k + 1) for k, (name, shape) in enumerate(dims.items())}
    s = Stream().start()
    pruned(s, container(dims={**dims, "elsewhere": [7, 7]}))
    s.ndu(ndu("a", None), levels["a"]).ndu(ndu("b", [4]), levels["b"]).ndu(ndu("c", None), levels["c"], qp=2)
    return s.gives({"a": floats(levels["a"]), "b": floats(levels["b"]), "c": floats(levels["c"], 2)})


@valid(
    "NNR-SYN-042",
    "a dictionary by index and a sparse_mask; its dimensions take precedence over the topology",
    "6.4.3.7 6.4.4.5",
    "NNR_TPL_DICT element_id_index NNR_TPL_REFLIST sparse_mask",
    topology_dimensions={"a": [9, 9], "b": [3]},
)
def indexed_dictionary() -> Content:
    a, b = chosen([2, 2], 6, 1, 0), chosen([3], 6, 2, 0)
    s = Stream({"a": [9, 9], "b": [3]}).start(indexed=1)
    s.reference_list("b", "a")
    pruned(s, container(dims={1: [2, 2]}, sparse=[0, 1, 1, 0]))
    s.ndu(ndu(1, None, kind=NNR_PT_INT), a).ndu(ndu(0, None, kind=NNR_PT_INT), b)
    return s.gives({"a": zeroed(a, [0, 1, 1, 0]), "b": b}, raw={"a": a, "b": b})


@acceptable(
    "NNR-ACC-016",
    "masks that match no number of parameters or channels are not applied",
    "6.4.4.5",
    "NNR_TPL_BMSK count_bits",
    requirements="prune-mask",
)
def misfits() -> Content:
    s = Stream().start()
    pruned(s, container(prune=[0, 0, 0], sparse=[0] * 2))
    pruned(s, container(sparse=[0] * 7))
    s.raw(ndu("w", [2, 3], kind=NNR_PT_RAW_FLOAT), np.ones((2, 3)))
    return s.gives({"w": np.ones((2, 3), "<f4")})
