"""Every rule of ISO/IEC 15938-17:2024 that a program can check of a bitstream, each with its name, clause and check."""

from __future__ import annotations

from . import composition as _composition  # these register their rules
from . import decoding as _decoding
from . import nnef as _nnef
from . import parameters as _parameters
from . import tensors as _tensors
from .notes import notes_on
from .registry import (
    END_CHECKS,
    REQUIREMENTS,
    TENSOR_CHECKS,
    UNIT_CHECKS,
    Checked,
    Finding,
    History,
    Member,
    Requirement,
    Seen,
    refused,
)

__all__ = [
    "END_CHECKS",
    "REQUIREMENTS",
    "TENSOR_CHECKS",
    "UNIT_CHECKS",
    "Checked",
    "Finding",
    "History",
    "Member",
    "Requirement",
    "Seen",
    "notes_on",
    "refused",
]
del _composition, _decoding, _nnef, _parameters, _tensors
