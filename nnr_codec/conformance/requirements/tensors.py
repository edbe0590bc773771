"""Checks of tensors and their headers: ISO/IEC 15938-17:2024, 6.4.3.7, 6.4.4.3, 7.3.3, 9.2.4."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...bitstream.payload import codebook_array
from ...constants import (
    ICNN_NDU_ID,
    NNR_CPT_DC,
    NNR_NDU,
    NNR_PT_BLOCK,
    NNR_PT_FLOAT,
    NNR_PT_INT,
    QuantizationMethod,
)
from ...decoder.group import Group
from ...decoder.reconstruct import Rec
from ...rules import Requirement
from .registry import CheckedBitstream, Finding, SeenUnit, each_tensor, each_unit

_Ints = npt.NDArray[np.int32]
_Floats = npt.NDArray[np.float64]

HEADER = "nnr_compressed_data_unit_header"


@each_unit(Requirement.PARENT_FLAG, NNR_NDU)
def parent_flag(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    header = seen.unit.ndu  # depth 0 or no depth: replaces the tensor of the base
    if not seen.session.mps_parent_signalling_enabled_flag or header.parent_node_id_present_flag:
        return
    if header.node_id_present_flag and header.put_node_depth:
        message = f"the tensor is not an update, but its put_node_depth is {header.put_node_depth}"
        yield Finding(message, f"{HEADER}.parent_node_id_present_flag")


@each_unit(Requirement.RESIDUAL_QUANTIZATION, NNR_NDU)
def pre_without_dq(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    if _is_residual(seen) and seen.unit.ndu.dq_flag:
        yield Finding("nnr_pre_flag and dq_flag are 1", f"{HEADER}.dq_flag")


@each_unit(Requirement.RESIDUAL_FIRST, NNR_NDU)
def pre_first(checked: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    if _is_residual(seen):
        if "put_node_depth" in seen.unit.ndu and seen.unit.ndu.put_node_depth <= 1:
            depth = seen.unit.ndu.put_node_depth
            yield Finding(f"no update precedes the residual of put_node_depth {depth}", f"{HEADER}.put_node_depth")
        elif checked.history.bitstreams and not checked.history.updates:
            yield Finding("no update precedes the residual", f"{HEADER}.parent_node_id_present_flag")


def _is_residual(seen: SeenUnit) -> bool:
    header = seen.unit.ndu
    predictable = header.nnr_compressed_data_unit_payload_type in (NNR_PT_INT, NNR_PT_FLOAT)
    return bool(seen.session.nnr_pre_flag and predictable and header.parent_node_id_present_flag)


@each_unit(Requirement.QUANTIZATION_METHOD_USED, NNR_NDU)
def method_used(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    mps, lps = seen.session.mps, seen.session.lps
    if seen.unit.ndu.nnr_compressed_data_unit_payload_type != NNR_PT_FLOAT or not mps:
        return
    flags = lps.lps_quantization_method_flags if lps else mps.mps_quantization_method_flags
    needed = QuantizationMethod.NNR_QCB if seen.unit.ndu.codebook_present_flag else QuantizationMethod.NNR_QSU
    if flags and not flags & needed:  # without any flag there is no step size, and the decoder rejects the unit
        message = f"{needed.name} is used, but the active quantization method flags are {flags}"
        yield Finding(message, f"{HEADER}.codebook_present_flag")


@each_unit(Requirement.PARAMETER_TYPES, NNR_NDU)
def parameter_types(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    header = seen.unit.ndu
    others = header.compressed_parameter_types & ~NNR_CPT_DC
    if others and header.nnr_compressed_data_unit_payload_type < NNR_PT_BLOCK:
        message = f"compressed_parameter_types is {header.compressed_parameter_types}, but the unit is not a block"
        yield Finding(message, f"{HEADER}.compressed_parameter_types")


# ------------------------------------------------------------------------------------------------ parents
def _is_named(seen: SeenUnit) -> bool:
    """Return whether the unit is an update that names its parent by ids."""
    header = seen.unit.ndu
    return bool(header.parent_node_id_present_flag and header.parent_node_id_type == ICNN_NDU_ID)


@each_unit(Requirement.PARENT_DEPTH, NNR_NDU)
def parent_depth(checked: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    if not _is_named(seen):
        return
    header = seen.unit.ndu
    parent = checked.history.state.node((header.parent_device_id, header.parameter_id))
    if header.put_node_depth == 0 or (parent and parent.put_node_depth != header.put_node_depth - 1):
        known = f"but its parent has {parent.put_node_depth}" if parent else "and no parent can have less"
        yield Finding(f"put_node_depth is {header.put_node_depth}, {known}", f"{HEADER}.put_node_depth")


@each_unit(Requirement.PARENT_TENSOR, NNR_NDU)
def parent_tensor(checked: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    if _is_named(seen):
        header = seen.unit.ndu
        names = checked.history.names.get((header.parent_device_id, header.parameter_id))
        if names and seen.names and names != seen.names:
            message = f"parameter_id {header.parameter_id} belongs to {names[0]!r}"
            yield Finding(message, f"{HEADER}.parameter_id")


@each_unit(Requirement.PARENT_HASH, NNR_NDU)
def parent_hash(checked: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    header = seen.unit.ndu
    for name, size in (("parent_node_payload_sha256", 32), ("parent_node_payload_sha512", 64)):
        if not checked.history.bitstreams or name not in header:
            continue
        if getattr(header, name).to_bytes(size, "big") not in checked.history.digests:
            yield Finding("no tensor of the earlier bitstreams has a payload of this hash", f"{HEADER}.{name}")


# Number of values compared at a time, to limit memory.
CHUNK = 1 << 20


@each_tensor(Requirement.FLOAT_EXACT)
def float_exact(checked: CheckedBitstream, group: Group, recs: list[Rec]) -> Iterator[Finding]:
    for part, rec in zip((part for task in group.tasks for part in task.parts), recs, strict=True):
        if rec.levels is None or rec.values.dtype.kind != "f":
            continue
        values = rec.values
        if group.first.role == "weight":  # already shifted
            values = np.moveaxis(values, group.first.header.first_tensor_dimension_shift, 0)
        levels, zero = rec.levels.reshape(-1), part.codebook.cb_zero_offset if part.codebook else 0
        numbers, times = values.reshape(-1), 1
        if levels.min() == levels.max():  # a few bytes may declare millions of equal levels
            levels, numbers, times = levels[:1], numbers[:1], levels.size
        entries = codebook_array(part.codebook, checked.limits) if part.codebook else None

        def integers(start: int, levels: _Ints = levels, entries: _Ints | None = entries, zero: int = zero) -> _Floats:
            chunk = levels[start : start + CHUNK]
            return (chunk if entries is None else entries[chunk + zero]).astype(np.float64)

        wrong = times * _inexact(integers, numbers)
        if wrong:
            yield Finding(f"{wrong} of {values.size} values of {rec.name!r} are rounded to {rec.values.dtype}")


def _inexact(integers: Callable[[int], _Floats], values: npt.NDArray[np.floating[Any]]) -> int:
    """Return the number of values that are not their integer times one common step of at most eight significant bits.

    The smallest integer determines the step: if its product is rounded, the quotient has more bits than a step size
    has. ``integers`` returns CHUNK integers from an index on.
    """
    some, least, step = 0, np.inf, 0.0
    for start in range(0, values.size, CHUNK):
        factors = integers(start)
        nonzero = np.flatnonzero(factors)
        some += nonzero.size
        k = nonzero[np.abs(factors[nonzero]).argmin()] if nonzero.size else 0
        if 0 < abs(factors[k]) < least:
            least, step = abs(factors[k]), float(values[start + k]) / factors[k]
    mantissa = np.frexp(step)[0] * 256
    if mantissa != int(mantissa):
        return some
    chunks = ((integers(start), values[start : start + CHUNK]) for start in range(0, values.size, CHUNK))
    return sum(int(np.count_nonzero(factors * step != chunk)) for factors, chunk in chunks)
