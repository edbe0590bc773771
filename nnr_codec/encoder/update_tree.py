"""References of an update to earlier tensors: parameter update trees (ISO/IEC 15938-17:2024, 6.4.3.7).

Contexts may refer to them too (10.2.1.4, 10.3.4.2.2), if that saves bits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..bitstream import payload
from ..cabac_ext import quantizer
from ..cabac_ext.kernel import TensorSide
from ..syntax import Session
from ..syntax.structures import NnrCompressedDataUnitHeader
from .coding_tools import CodedTensor, bits_of, choose_tools

if TYPE_CHECKING:
    from ..decoder.state import UpdateNode


@dataclass(frozen=True)
class Link:
    """Position of a tensor of an update in its parameter update tree.

    Parameters
    ----------
    elements : mapping
        Syntax elements of the compressed data unit header.
    before : UpdateNode or None
        Last node of the parameter, to which contexts may refer; None without one.
    temporal_context_modeling, hist_dep_sig_prob : bool or None
        Whether contexts use earlier updates; None: if that saves bits.
    is_residual : bool
        nnr_pre_flag applies to the tensor (9.2.4).
    is_bits : bool
        The tensor holds differences of bit patterns.
    by_exponent : bool
        They are sorted by the exponents of the base.
    is_optional : bool
        The tensor takes no unit if all of its levels are 0.
    """

    elements: Mapping[str, Any]
    before: UpdateNode | None = None
    temporal_context_modeling: bool | None = None
    hist_dep_sig_prob: bool | None = None
    is_residual: bool = False
    is_bits: bool = False
    by_exponent: bool = False
    is_optional: bool = False

    @property
    def is_update(self) -> bool:
        """True if the tensor is a difference of two tensors."""
        return bool(self.elements.get("parent_node_id_present_flag"))


@dataclass(frozen=True)
class Links:
    """References of all tensors of an update.

    Parameters
    ----------
    of : dict of str to Link
        Links by name. Tensors without a link replace tensors of the base.
    base_model_id : str
    nnr_pre_flag : int
        1: the tensors are residuals to the previous updates (9.2.4).
    names : collection of str
        Tensors of the updated model; no other unit may have their names.
    """

    of: Mapping[str, Link] = field(default_factory=dict)
    base_model_id: str = ""
    nnr_pre_flag: int = 0
    names: Collection[str] = ()

    @property
    def elements(self) -> dict[str, Any]:
        """Syntax elements of the model parameter set."""
        elements: dict[str, Any] = {"mps_parent_signalling_enabled_flag": 1, "nnr_pre_flag": self.nnr_pre_flag}
        if self.base_model_id:
            elements |= {"base_model_id_present_flag": 1, "base_model_id": self.base_model_id}
        return elements


def refer(
    header: NnrCompressedDataUnitHeader, session: Session, part: payload.PayloadPart, coded: CodedTensor, link: Link
) -> CodedTensor:
    """Return a tensor of an update with the contexts that need the fewest bits; set temporal_context_modeling_flag."""
    if link.before is None:
        return coded
    co_loc = _of_shape(link.before.levels, coded.plan.dims)
    any_sig = _of_shape(link.before.any_sig, coded.plan.dims) if coded.syntax.can_skip_rows else None
    candidates = []
    temporal, history = _flags(link.temporal_context_modeling, co_loc), _flags(link.hist_dep_sig_prob, any_sig)
    for flag, hist in product(temporal, history):
        header.temporal_context_modeling_flag = flag
        syntax = payload.tensor_syntax(header, session, part, co_loc=co_loc if flag else None, any_sig=any_sig)
        side = TensorSide(hist_dep_sig_prob_enabled_flag=hist)
        candidates.append((flag, replace(coded, syntax=syntax, side=side)))
    header.temporal_context_modeling_flag, best = (
        candidates[0] if len(candidates) == 1 else min(candidates, key=lambda candidate: _bits(candidate[1]))
    )
    return best


def trellis_groups(
    header: NnrCompressedDataUnitHeader, session: Session, part: payload.PayloadPart, values: CodedTensor, link: Link
) -> npt.NDArray[np.uint8] | None:
    """Return the trellis group of each parameter, shape (n,): different groups will have different contexts.

    Returns None without a rate or earlier levels. ``values`` has values instead of levels.
    """
    plan, before = values.plan, link.before
    if before is None or not (before.levels or before.any_sig) or not plan.rate or plan.codebook:
        return None
    floats: quantizer.Real = np.ascontiguousarray(values.levels).reshape(-1)
    rough = np.empty(floats.size, np.int32)
    quantizer.uniform(floats, plan.step * (1 + plan.dq_flag), rough)
    guess = refer(header, session, part, replace(values, levels=rough.reshape(plan.dims)), link)
    if guess.side.hist_dep_sig_prob_enabled_flag:
        return before.any_sig[0].reshape(-1).view(np.uint8)
    if header.temporal_context_modeling_flag:
        sizes = np.abs(before.levels[0]).reshape(-1)
        return np.minimum(sizes, 2, dtype=np.int32).astype(np.uint8)
    return None


def _of_shape(arrays: tuple[npt.NDArray[Any], ...], dims: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """Return the levels or flags of an earlier update; None if all are 0 or the dimensions differ."""
    return arrays[0] if len(arrays) == 1 and arrays[0].shape == dims and arrays[0].any() else None


def _flags(wanted: bool | None, reference: npt.NDArray[Any] | None) -> tuple[int, ...]:
    """Return the possible values of a flag."""
    if reference is None or wanted is False:
        return (0,)
    return (1,) if wanted else (0, 1)


def _bits(coded: CodedTensor) -> float:
    return bits_of(choose_tools([coded], thorough=coded.plan.tools.thorough)[1])
