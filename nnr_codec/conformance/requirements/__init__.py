"""Checks of the requirements of :mod:`nnr_codec.rules`."""

from __future__ import annotations

from . import composition as _composition  # these register their checks
from . import nnef as _nnef
from . import parameters as _parameters
from . import tensors as _tensors
from .notes import notes_on
from .registry import (
    END_CHECKS,
    TENSOR_CHECKS,
    UNIT_CHECKS,
    AggregateMember,
    CheckedBitstream,
    Finding,
    History,
    SeenUnit,
)

__all__ = [
    "END_CHECKS",
    "TENSOR_CHECKS",
    "UNIT_CHECKS",
    "AggregateMember",
    "CheckedBitstream",
    "Finding",
    "History",
    "SeenUnit",
    "notes_on",
]
del _composition, _nnef, _parameters, _tensors
