"""Trace of payloads: every bin, and the syntax elements before the levels (ISO/IEC 15938-17:2024, 10.2.1).

Bins are decoded by the plain implementation of clause 10, `nnr_codec.syntax.deepcabac`, which is slow.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import numpy as np
from bitarray import bitarray

from ..bitstream.payload import SCANNED, PayloadPart, quantization, tensor_syntax
from ..cabac_ext.kernel import PayloadDecoder, TensorSide, TensorSyntax
from ..constants import NNR_PT_INT, NNR_PT_RAW_FLOAT
from ..errors import BitstreamError, MissingReferenceError, UnsupportedError
from ..rules import Requirement
from ..syntax.deepcabac import ArithmeticDecoder, Bin, QuantTensorSyntax, index_to_xy, quant_tensor, terminate
from ..syntax.structures import NnrCompressedDataUnitHeader
from .parents import Reference, refer
from .state import UpdateState
from .task import NduTask
from .unit import located

#: Maximum size of a traced tensor: the plain implementation keeps 16 bytes per parameter.
MAX_PARAMETERS = 1 << 24


#: Syntax elements of payloads: clause, descriptor, meaning.
ELEMENTS = {
    "raw_float32_parameter": ("6.3.4.7", "flt(32)", "one parameter"),
    "qp_value": ("10.2.1.3", "iae(6 + QpDensity)", "quantization parameter minus QuantizationParameter"),
    "hist_dep_sig_prob_enabled_flag": ("10.2.1.4", "uae(1)", "contexts depend on all earlier updates"),
    "row_skip_enabled_flag": ("10.2.1.4", "uae(1)", "row_skip_list is present"),
    "row_skip_list": ("10.2.1.4", "ae(v)", "1 for each row of zeros, whose levels are not coded"),
    "shift_idx_minus_1_present_flag": ("10.2.1.7", "ae(v)", "a context does not have the default adaptation rates"),
    "shift_idx_minus_1": ("10.2.1.7", "uae(3)", "the adaptation rates, and the initial state"),
    "sig_flag": ("10.2.1.5", "ae(v)", "the level is not 0"),
    "sign_flag": ("10.2.1.5", "ae(v)", "the level is negative"),
    "abs_level_greater_x": ("10.2.1.5", "ae(v)", "the magnitude exceeds its coded part, in steps of 1"),
    "abs_level_greater_x2": ("10.2.1.5", "ae(v)", "the magnitude exceeds its coded part, in steps that double"),
    "abs_remainder": ("10.2.1.5", "uae(RemBits)", "the rest of the magnitude"),
    "terminating_one_bit": ("10.2.1.2", "at(v)", "the arithmetic code string ends"),
    "nesting_zero_bit": ("10.2.1.2", "f(1)", "0, up to the end of the byte"),
}


class TensorBin(NamedTuple):
    """Bin of a payload.

    Parameters
    ----------
    number : int
        Number of the bin in its payload.
    part : PayloadPart
        The tensor; ``tensor`` and ``role`` in JSON.
    parameter : tuple of int or None
        Index in the coded dimensions; None for bins before and after the levels.
    bin : Bin
        In JSON its fields: element, ctx_inc (-1 for bypass and termination), bin, and the state after the bin:
        ivl_curr_range, ivl_offset, p0 and p1 (pStateIdx0 and pStateIdx1 of the context).
    """

    number: int
    part: PayloadPart
    parameter: tuple[int, ...] | None
    bin: Bin


class Element(NamedTuple):
    """Syntax element before the levels of a tensor."""

    name: str
    descriptor: str
    value: int | bitarray


class StopTracing(Exception):  # noqa: N818  # not an error: a callback ends the trace
    """Exception that a callback raises to end a trace."""


def trace_bins(
    task: NduTask,
    emit: Callable[[TensorBin], None],
    first_edition: bool = False,
    state: UpdateState | None = None,
) -> None:
    """Call ``emit`` with each bin of a unit's payload in order, until it raises StopTracing.

    Parameters
    ----------
    state : UpdateState, optional
        State after earlier bitstreams.

    Raises
    ------
    PayloadError
        The payload is malformed; raised after its valid bins.
    MissingReferenceError
        Contexts depend on updates that are not in ``state``.
    UnsupportedError
        A tensor has more than MAX_PARAMETERS parameters, or its payload has no bins.
    """
    header = task.header
    if header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT:
        raise UnsupportedError("an NNR_PT_RAW_FLOAT payload has no bins", clause="6.3.4.7", unit=task.label)
    if any(prod(part.dims) > MAX_PARAMETERS for part in task.parts):
        raise UnsupportedError(
            f"bins are listed only for tensors of up to {MAX_PARAMETERS:,} parameters", unit=task.label
        )
    with located(task):
        reference = refer(header, task.names[0], False, (state or UpdateState()).fork())
        syntaxes = plain_syntaxes(task, first_edition, reference)
    number = 0

    def count(part: PayloadPart, parameter: tuple[int, ...] | None, bin_: Bin) -> None:
        nonlocal number
        number += 1
        emit(TensorBin(number - 1, part, parameter, bin_))

    decoder = None
    try:
        decoder = ArithmeticDecoder(bytes(task.payload))
        for part, s in zip(task.parts, syntaxes, strict=True):
            decoder.trace = _Follower(part, s, count)
            quant_tensor(decoder, s)
        decoder.trace = lambda bin_: count(part, None, bin_)
        terminate(decoder)
    except StopTracing:
        return
    except BitstreamError as error:
        error.unit = error.unit or task.label
        error.bit = 8 * task.unit.payload_offset + (decoder.bit_pointer if decoder else 0)
        raise


def heads(task: NduTask, first_edition: bool = False) -> list[tuple[PayloadPart, list[Element]]]:
    """Return the elements before the levels of each tensor of a unit. Levels are decoded only if another tensor
    follows.

    Raises PayloadError for a malformed payload, MissingReferenceError if levels that must be decoded depend on earlier
    bitstreams.
    """
    header, found = task.header, []
    if header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT:
        return []
    if len(task.parts) > 1:
        refer(header, task.names[0], False, UpdateState())
    try:
        decoder = PayloadDecoder(task.payload, first_edition=first_edition)
        for part in task.parts:
            syntax = tensor_syntax(header, task.session, part, first_edition=first_edition)
            elements = []
            if header.nnr_compressed_data_unit_payload_type != NNR_PT_INT:
                n = 6 + quantization(task.session)[0]
                elements.append(Element("qp_value", f"iae({n})", decoder.quant_param(n)))
            reader = decoder.head(syntax)
            found.append((part, elements + _flags(header, syntax, reader.side())))
            if part is not task.parts[-1]:
                reader.read(np.empty(syntax.size, np.int32))
    except BitstreamError as error:
        error.unit = error.unit or task.label
        raise
    return found


def _flags(header: NnrCompressedDataUnitHeader, syntax: TensorSyntax, side: TensorSide) -> list[Element]:
    if not syntax.can_skip_rows:  # condition of both flags (errata A6)
        return []
    flags = ["row_skip_enabled_flag"]
    if header.parent_node_id_present_flag:
        flags.insert(0, "hist_dep_sig_prob_enabled_flag")
    elements = [Element(name, "uae(1)", getattr(side, name)) for name in flags]
    if side.row_skip_list is not None:
        elements.append(Element("row_skip_list", "ae(v)", bitarray(side.row_skip_list.tolist())))
    return elements


def plain_syntaxes(task: NduTask, first_edition: bool, reference: Reference | None) -> list[QuantTensorSyntax]:
    """Return the coding parameters of each part, from headers and the previous update, for the plain implementation."""
    header, first = task.header, task.role == "h"  # h is the second tensor of a node in two units
    is_int = header.nnr_compressed_data_unit_payload_type == NNR_PT_INT
    temporal, history = (reference.co_loc, reference.history) if reference else (None, None)
    found = []
    for k, part in enumerate(task.parts, first):
        codebook = part.codebook
        co_loc = temporal.levels[k : k + 1] if temporal else ()
        any_sig = history.any_sig[k : k + 1] if history else ()
        if any(array.shape != part.dims for array in (*co_loc, *any_sig)):
            raise MissingReferenceError(
                f"the updates before {task.names[0]!r} do not have its shape",
                clause="10.3.4.2.2",
                rule=Requirement.UPDATE_SHAPE,
            )
        found.append(
            QuantTensorSyntax(
                part.dims,
                dq_flag=header.dq_flag,
                general_profile_idc=task.session.general_profile_idc,
                cabac_unary_length_minus1=header.cabac_unary_length_minus1,
                scan_order=header.scan_order if part.role in SCANNED else 0,
                codebook=(codebook.codebook_size, codebook.cb_zero_offset) if codebook else None,
                parent_node_id_present_flag=header.parent_node_id_present_flag,
                temporal_context_modeling_flag=header.temporal_context_modeling_flag,
                co_loc=co_loc[0].reshape(-1).tolist() if co_loc else None,
                any_sig_before=any_sig[0].reshape(-1).tolist() if any_sig else None,
                qp_bits=0 if is_int else 6 + quantization(task.session)[0],
                first_edition=first_edition,
            )
        )
    return found


class _Follower:
    """Tracker of the parameter to which each bin of a tensor belongs: every coded parameter begins with its
    sig_flag."""

    def __init__(
        self, part: PayloadPart, s: QuantTensorSyntax, emit: Callable[[PayloadPart, tuple[int, ...] | None, Bin], None]
    ) -> None:
        self.part, self.s, self.emit = part, s, emit
        self.row_skip_list: list[int] = []
        self.position = -1  # in coding order
        self.parameter: tuple[int, ...] | None = None

    def __call__(self, bin_: Bin) -> None:
        if bin_.element == "row_skip_list":
            self.row_skip_list.append(bin_.bin)
        elif bin_.element == "sig_flag":
            self._advance()
        self.emit(self.part, self.parameter, bin_)

    def _advance(self) -> None:
        w, h = self.s.tensor_2d_width, self.s.tensor_2d_height
        blocks = self.s.scan_order > 0 and w > 1 and h > 1
        while True:
            self.position += 1
            y, x = divmod(self.position, w)
            if blocks:
                x, y = index_to_xy(w, h, self.position, 4 << self.s.scan_order)
            if not self.row_skip_list or not self.row_skip_list[y]:
                break
        index = []
        for extent in reversed(self.part.dims[1:]):
            x, i = divmod(x, extent)
            index.append(i)
        self.parameter = (y, *reversed(index))
