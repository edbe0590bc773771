"""How tensors of an update refer to earlier ones: parameter update trees (ISO/IEC 15938-17:2024, 6.4.3.7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..decoder.state import UpdateNode


@dataclass(frozen=True)
class Link:
    """What the header of a tensor's unit says of its place in the tree.

    Parameters
    ----------
    elements : mapping
        Syntax elements of its compressed data unit header.
    before : UpdateNode or None
        The last node of the parameter, to which contexts may refer; None where nothing counts.
    temporal_context_modeling, hist_dep_sig_prob : bool or None
        Whether they do; None: where that saves bits.
    is_residual : bool
        nnr_pre_flag is about the tensor (9.2.4).
    is_bits : bool
        The tensor holds differences of bit patterns.
    """

    elements: Mapping[str, Any]
    before: UpdateNode | None = None
    temporal_context_modeling: bool | None = None
    hist_dep_sig_prob: bool | None = None
    is_residual: bool = False
    is_bits: bool = False

    @property
    def is_update(self) -> bool:
        """True if the tensor is a difference of two tensors."""
        return bool(self.elements.get("parent_node_id_present_flag"))


@dataclass(frozen=True)
class Links:
    """What makes a bitstream an update.

    Parameters
    ----------
    of : dict of str to Link
        By name; tensors without one take the place of the base's.
    base_model_id : str
    nnr_pre_flag : int
        1: the tensors are residuals of the updates before (9.2.4).
    names : collection of str
        Tensors of the model that is updated, whose names no other unit may have.
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
