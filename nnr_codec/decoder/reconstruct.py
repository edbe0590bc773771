"""Reconstruction of model tensors from Rec* tensors (ISO/IEC 15938-17:2024, 7.3.1, 7.3.5, errata N2, N5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..constants import NNR_PT_BLOCK
from ..errors import ElementError
from ..model import Array
from ..rules import Requirement
from ..syntax.structures import NnrCompressedDataUnitHeader
from ..tensor.quant import cast_floats
from ..tensor.reduction import local_scaling, product
from ..tensor.shape import dimension_shift, shift_axes, tensor_split
from .topology import PLAIN, Outputs

A = TypeVar("A", bound=np.generic)


@dataclass(slots=True)
class Rec:
    """Decoded tensor: name, role in the unit, values, and integers (None for raw floats)."""

    name: str
    role: str
    values: npt.NDArray[Any]
    levels: npt.NDArray[np.int32] | None = None


def reconstruct(
    recs: Sequence[Rec],
    header: NnrCompressedDataUnitHeader,
    names: Sequence[str],
    dims: Sequence[int],
    raw: bool,
    outputs: Outputs | None = None,
) -> dict[str, Array]:
    """Return the named tensors of one unit, or of a G unit and its H unit.

    Parameters
    ----------
    recs : sequence of Rec
        Tensors in coding order.
    names : sequence of str
        Topology element ids of the unit.
    dims : sequence of int
        tensor_dimensions of the original tensor.
    raw : bool
        Return G, H and the local scaling separately, and do not split tensors. H is named ``<name>_H`` if its unit has
        the same name as the unit of G.
    outputs : Outputs, optional
        Changes to the tensors of a block that the topology requires.
    """
    if len(recs) == len(names) == 1 and recs[0].role == "weight":  # the most frequent case
        return {recs[0].name: recs[0].values}
    by_role = {rec.role: rec for rec in recs}
    shift = header.first_tensor_dimension_shift
    if raw:
        one_name = len(recs) == 2 and recs[0].name == recs[1].name
        return {
            f"{rec.name}_H" if one_name and rec.role == "h" else rec.name: dimension_shift(
                rec.values, shift if rec.role == "weight" and len(recs) > 1 else 0
            )
            for rec in recs
        }
    main = by_role.get("weight") or by_role["g"]
    weight = main.values
    outputs = outputs or PLAIN
    is_scaled = "ls" in by_role and not outputs.scale
    if "g" in by_role or is_scaled:
        with np.errstate(over="ignore", invalid="ignore"):  # cast_floats below rejects overflow
            if "g" in by_role:
                weight = product(by_role["g"].values, by_role["h"].values, dims)
            if is_scaled:
                weight = local_scaling(weight, by_role["ls"].values)
        if not np.isfinite(weight).all():
            raise ElementError("a recomposed value is not finite", clause="7.3.5", rule=Requirement.FLOAT_RANGE)
        weight = cast_floats(weight, main.values.dtype)
    is_block = header.nnr_compressed_data_unit_payload_type == NNR_PT_BLOCK
    if is_block or "g" in by_role:  # other tensors are already shifted
        weight = dimension_shift(weight, shift)
    if header.nnr_multiple_topology_elements_present_flag and not is_block:
        return {
            name: np.ascontiguousarray(piece) for name, piece in zip(names, split(weight, header, names), strict=True)
        }
    plain = ["beta", "gamma", "mean", "var", "bias", *(["ls"] if outputs.scale else [])]
    tensors = {main.name: weight}
    for rec in recs:
        if rec.role in plain:
            tensors[rec.name] = rec.values.reshape(outputs.shape(rec.name, rec.values.shape))
    for each in outputs.recreated:
        value = cast_floats(np.array(each.value), main.values.dtype)
        tensors[each.name] = np.full(each.shape, value)
    return tensors


def split(tensor: npt.NDArray[A], header: NnrCompressedDataUnitHeader, names: Sequence[str]) -> list[npt.NDArray[A]]:
    """Return the tensors of a unit with several topology elements, as views, in the order of their ids (7.3.1)."""
    axis = header.concatentation_axis_index if header.split_index else 0
    pieces = tensor_split(tensor, header.split_index, axis) if tensor.ndim else [tensor]
    if len(pieces) != len(names):
        raise ElementError(
            f"{len(names)} topology elements are listed for a tensor of {len(pieces)} pieces",
            clause="7.3.1",
            rule=Requirement.SPLIT_MAPPING,
        )
    return [
        shift_axes(piece, header.shift_index[k], header.shift_value[k]) if header.number_of_shifts[k] else piece
        for k, piece in enumerate(pieces)
    ]
