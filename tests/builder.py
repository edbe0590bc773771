"""Bitstreams built unit by unit from chosen integers, for tests of decoders.

>>> from tests.builder import Bitstream, ndu
>>> import nnr_codec
>>> nnr_codec.decode(Bitstream().str_().mps().ndu(ndu("w", [2], kind=NNR_PT_INT), [3, -4]).data)["w"].tolist()
[3, -4]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nnr_codec.bitstream.aggregate import write_aggregate
from nnr_codec.bitstream.ndu import code_levels, ndu_header, write_payload
from nnr_codec.bitstream.payload import parts
from nnr_codec.bitstream.units import write_unit
from nnr_codec.cabac_ext.kernel import TensorSide
from nnr_codec.constants import (
    NNR_AGG,
    NNR_AGG_GEN,
    NNR_LPS,
    NNR_MPS,
    NNR_PT_FLOAT,
    NNR_PT_INT,
    NNR_PT_RAW_FLOAT,
    NNR_QNT,
    NNR_QSU,
    NNR_STR,
    NNR_TPL,
    NNR_TPL_NNEF,
    NNR_TPL_REFLIST,
)
from nnr_codec.syntax import Session, Structure
from nnr_codec.syntax.structures import (
    IntegerCodebook,
    NnrAggregateUnitHeader,
    NnrCompressedDataUnitHeader,
    NnrLayerParameterSetUnitHeader,
    NnrLayerParameterSetUnitPayload,
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrQuantizationUnitHeader,
    NnrQuantizationUnitPayload,
    NnrStartUnitHeader,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
)

Ints = npt.NDArray[np.int32]


class Bitstream:
    """Builder of a bitstream; every method except `data` appends one unit and returns the bitstream.

    Parameters
    ----------
    topology_dimensions : mapping of str to sequence of int
        Dimensions of tensors whose headers omit them.
    """

    def __init__(self, topology_dimensions: Mapping[str, Sequence[int]] | None = None) -> None:
        self.session = Session(topology_dimensions or {})
        self.units: list[bytes] = []
        self.lps_at = -1  # the index of the last NNR_LPS

    @property
    def data(self) -> bytes:
        """All units."""
        return b"".join(self.units)

    def add(self, unit: bytes) -> Bitstream:
        """Append bytes unchanged."""
        self.units.append(unit)
        return self

    def unit(self, header: NnrUnitHeader, payload: Structure | bytes | None = None) -> Bitstream:
        """Append a unit of any type."""
        return self.add(write_unit(header, payload, self.session))

    def str_(self, profile: int = 1) -> Bitstream:
        """Append an NNR_STR."""
        return self.unit(NnrUnitHeader(nnr_unit_type=NNR_STR, detail=NnrStartUnitHeader(general_profile_idc=profile)))

    def mps(
        self,
        density: int = 2,
        parameter: int = 0,
        *,
        methods: int = NNR_QSU,
        parent: int = 0,
        pre: int = 0,
        indexed: int = 0,
    ) -> Bitstream:
        """Append an NNR_MPS with QpDensity and QuantizationParameter; ``methods`` 0 omits both."""
        payload = NnrModelParameterSetUnitPayload(
            mps_quantization_method_flags=methods, mps_topology_indexed_reference_flag=indexed
        )
        if methods:
            payload.mps_qp_density, payload.mps_quantization_parameter = density, parameter
        if parent:
            payload.mps_parent_signalling_enabled_flag, payload.nnr_pre_flag = 1, pre
        return self.unit(NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader()), payload)

    def lps(
        self, density: int = 2, parameter: int = 0, *, methods: int = NNR_QSU, alone: int = 0, **elements: Any
    ) -> Bitstream:
        """Append an NNR_LPS; ``alone`` is lps_self_contained_flag, ``elements`` are other elements."""
        payload = NnrLayerParameterSetUnitPayload(lps_quantization_method_flags=methods)
        if methods:
            payload.lps_qp_density, payload.lps_quantization_parameter = density, parameter
        for name, value in elements.items():
            setattr(payload, name, value)
        detail = NnrLayerParameterSetUnitHeader(lps_self_contained_flag=alone)
        self.lps_at = len(self.units)
        return self.unit(NnrUnitHeader(nnr_unit_type=NNR_LPS, detail=detail), payload)

    def topology(self, data: bytes, *, storage: int = NNR_TPL_NNEF, compression: int = 0) -> Bitstream:
        """Append an NNR_TPL with ``data`` as stored in the unit."""
        detail = NnrTopologyUnitHeader(topology_storage_format=storage, topology_compression_format=compression)
        return self.unit(
            NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=detail), NnrTopologyUnitPayload(topology_data=data)
        )

    def quantization(self, data: bytes, *, storage: int = 1, compression: int = 0) -> Bitstream:
        """Append an NNR_QNT with ``data`` as stored in the unit."""
        detail = NnrQuantizationUnitHeader(
            quantization_storage_format=storage, quantization_compression_format=compression
        )
        payload = NnrQuantizationUnitPayload(quantization_data=data)
        return self.unit(NnrUnitHeader(nnr_unit_type=NNR_QNT, detail=detail), payload)

    def reference_list(self, *names: str) -> Bitstream:
        """Append an NNR_TPL with a reference list."""
        detail = NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_REFLIST)
        payload = NnrTopologyUnitPayload(topology_elem_id_list=list(names))
        return self.unit(NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=detail), payload)

    def ndu(
        self,
        header: NnrCompressedDataUnitHeader,
        *levels: Any,
        qp: int | Sequence[int] = 0,
        sides: Sequence[TensorSide | None] | None = None,
        co_loc: Sequence[Ints] = (),
        any_sig: Sequence[npt.NDArray[np.bool_]] = (),
        payload: bytes | None = None,
        pieces: int = 1,
    ) -> Bitstream:
        """Append an NNR_NDU.

        Parameters
        ----------
        header : NnrCompressedDataUnitHeader
            Lists of entry points are filled in.
        *levels : array of int
            Coded levels (before dependent quantization is resolved) of each part in coding order.
        qp : int or sequence of int
            qp_value of all parts, or of each.
        sides : sequence of TensorSide, optional
        co_loc, any_sig : sequence of ndarray
            coLocParam and AnySigBeforeFlag of each part.
        payload : bytes, optional
            Replaces ``levels``.
        pieces : int
            Number of units over which the payload is distributed, counted down by partial_data_counter.
        """
        if payload is None:
            payload = self.payload(header, levels, qp, sides, co_loc, any_sig)
        self.units += write_payload(header, payload, self.session, pieces=pieces)
        return self

    def part(self, header: NnrCompressedDataUnitHeader, counter: int, payload: bytes) -> Bitstream:
        """Append an NNR_NDU with one part of a payload (6.4.3.1)."""
        return self.unit(ndu_header(header, counter), payload)

    def payload(
        self,
        header: NnrCompressedDataUnitHeader,
        levels: Sequence[Any],
        qp: int | Sequence[int] = 0,
        sides: Sequence[TensorSide | None] | None = None,
        co_loc: Sequence[Ints] = (),
        any_sig: Sequence[npt.NDArray[np.bool_]] = (),
    ) -> bytes:
        """Return the payload of an NNR_NDU, and complete the entry points of ``header``; see `ndu`."""
        dims = [part.dims for part in parts(header, self.session)]
        completed, payload = code_levels(
            header,
            [np.asarray(level, np.int32).reshape(shape) for level, shape in zip(levels, dims, strict=True)],
            self.session,
            qp=qp,
            sides=sides or (),
            co_loc=[np.asarray(array, np.int32) for array in co_loc],
            any_sig=[np.asarray(array, bool) for array in any_sig],
        )
        vars(header).update(vars(completed))
        return bytes(payload)

    def raw(self, header: NnrCompressedDataUnitHeader, values: Any) -> Bitstream:
        """Append an NNR_NDU of type NNR_PT_RAW_FLOAT."""
        return self.ndu(header, payload=np.asarray(values, "<f4").tobytes())

    def aggregate(self, first: int, *, count: int | None = None, kind: int = NNR_AGG_GEN, **options: Any) -> Bitstream:
        """Replace the units from number ``first`` on by one NNR_AGG that declares ``count`` units.

        ``options`` are the options of `write_aggregate`. A parameter set among the units stays active until here.
        """
        inside, self.units = self.units[first:], self.units[:first]
        if self.lps_at >= first:
            self.session.end_aggregate()
        self.add(aggregate(inside, count=count, kind=kind, session=self.session, **options))
        return self


def aggregate(units: Sequence[bytes], *, count: int | None = None, kind: int = NNR_AGG_GEN, **options: Any) -> bytes:
    """Return one NNR_AGG around ``units`` that declares ``count``; ``options`` are options of `write_aggregate`."""
    if count is None:
        return write_aggregate(units, nnr_aggregate_unit_type=kind, **options)
    detail = NnrAggregateUnitHeader(
        nnr_aggregate_unit_type=kind,
        num_of_nnr_units_minus2=count - 2,
        quant_bitdepth=[0] * count,
        nnr_reserved_zero_3bits=[0] * count,
    )
    return write_unit(NnrUnitHeader(nnr_unit_type=NNR_AGG, detail=detail), b"".join(units), Session())


def ndu(
    names: str | int | Sequence[str] | Sequence[int],
    dims: Sequence[int] | None,
    *,
    kind: int = NNR_PT_FLOAT,
    data_format: int | None = None,
    unary: int | None = 9,
    **elements: Any,
) -> NnrCompressedDataUnitHeader:
    """Return a header of an NNR_NDU.

    Parameters
    ----------
    names : str, int, or sequence of them
        topology_elem_id or topology_elem_id_index; a sequence for a unit with several.
    dims : sequence of int or None
        tensor_dimensions; None omits them.
    kind : int
        Payload type.
    data_format : int, optional
        nnr_decompressed_data_format, omitted by default.
    unary : int or None
        cabac_unary_length_minus1; None omits it.
    **elements
        Other syntax elements.
    """
    header = NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=kind, input_parameters_present_flag=1, tensor_dimensions_flag=0
    )
    if isinstance(names, (str, int)):
        setattr(header, "topology_elem_id" if isinstance(names, str) else "topology_elem_id_index", names)
    else:
        header.nnr_multiple_topology_elements_present_flag = 1
        is_name = isinstance(names[0], str)
        setattr(header, "topology_elem_id_list" if is_name else "topology_elem_id_index_list", list(names))
    if dims is not None:
        header.tensor_dimensions_flag, header.tensor_dimensions = 1, [int(extent) for extent in dims]
    if kind != NNR_PT_RAW_FLOAT and unary is not None:
        header.cabac_unary_length_flag, header.cabac_unary_length_minus1 = 1, unary
    if data_format is not None:
        header.nnr_decompressed_data_format_present_flag, header.nnr_decompressed_data_format = 1, data_format
    for name, value in elements.items():
        setattr(header, name, value)
    return header


def update_ndu(
    name: str, dims: Sequence[int], depth: int, *, parameter: int = 0, device: int = 0, **elements: Any
) -> NnrCompressedDataUnitHeader:
    """Return a header of update number ``depth`` of a parameter; depth 0 is the base model."""
    ids = {"node_id_present_flag": 1, "device_id": device, "parameter_id": parameter, "put_node_depth": depth}
    if depth:
        ids |= {"parent_node_id_present_flag": 1, "parent_node_id_type": 0, "parent_device_id": device}
    return ndu(name, dims, **(ids | elements))


def codebook(values: Sequence[int], zero: int, egk: int = 0) -> IntegerCodebook:
    """Return an integer_codebook() with the given entries; ``zero`` is CbZeroOffset."""
    return IntegerCodebook(
        codebook_egk=egk,
        codebook_size=len(values),
        codebook_centre_offset=zero - (len(values) >> 1),
        codebook_zero_value=values[zero],
        codebook_delta_left=[values[k + 1] - values[k] - 1 for k in range(zero - 1, -1, -1)],
        codebook_delta_right=[values[k] - values[k - 1] - 1 for k in range(zero + 1, len(values))],
    )


# ------------------------------------------------------------------------------------------ the arithmetic, plainly
TRANSITIONS = ((0, 2), (7, 5), (1, 3), (6, 4), (2, 0), (5, 7), (3, 1), (4, 6))


def step_size(qp: int, density: int = 2) -> float:
    """Return stepSize, 7.3.6."""
    mul = 2**density + qp % 2**density
    return float(mul) * 2.0 ** (qp // 2**density - density)


def resolved(levels: Any) -> npt.NDArray[np.int64]:
    """Return the QuantParam of coded levels with dq_flag 1, row by row (10.2.1.4)."""
    levels = np.asarray(levels, np.int64)
    state, out = 0, []
    for level in levels.reshape(-1).tolist():
        sign = (level > 0) - (level < 0)
        out.append(2 * level - sign * (state & 1))
        state = TRANSITIONS[state][level & 1]
    return np.array(out, np.int64).reshape(levels.shape)


__all__ = [
    "NNR_PT_INT",
    "TRANSITIONS",
    "Bitstream",
    "aggregate",
    "codebook",
    "ndu",
    "resolved",
    "step_size",
    "update_ndu",
]
