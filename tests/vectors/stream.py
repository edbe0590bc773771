"""A bitstream builder that checks every payload with the plain implementation of clause 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nnr_codec.bitstream.payload import parts
from nnr_codec.cabac_ext.kernel import TensorSide
from nnr_codec.constants import NNR_MPS, NNR_PT_INT
from nnr_codec.syntax.deepcabac import (
    ArithmeticDecoder,
    ArithmeticEncoder,
    QuantTensor,
    QuantTensorSyntax,
    quant_tensor,
    terminate,
)
from nnr_codec.syntax.structures import (
    NnrCompressedDataUnitHeader,
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrUnitHeader,
)

from ..builder import Bitstream
from .arithmetic import dependent
from .case import Content, Tensor

#: First entry of each syntax element in TensorSide.shift_parameter_ids.
FIRST = {"sig_flag": 0, "sign_flag": 48, "abs_level_greater_x2": 53, "abs_level_greater_x": 87}


def side(
    n: int = 10,
    *,
    sig: Mapping[int, int] | None = None,
    sign: Mapping[int, int] | None = None,
    gtx: Mapping[int, int] | None = None,
    gtx2: Mapping[int, int] | None = None,
    skip: int = 0,
    history: int = 0,
) -> TensorSide:
    """Return the coding parameters of a tensor: shift parameter ids by context, row_skip and history flags.

    ``n`` is cabac_unary_length_minus1 + 1.
    """
    ids = np.zeros(87 + 4 * n, np.uint8)
    for element, given in zip(FIRST, (sig, sign, gtx2, gtx), strict=True):
        for context, value in (given or {}).items():
            ids[FIRST[element] + context] = value
    return TensorSide(hist_dep_sig_prob_enabled_flag=history, row_skip_enabled_flag=skip, shift_parameter_ids=ids)


class Stream(Bitstream):
    """Builder of bitstreams with checked payloads and expected results.

    Parameters
    ----------
    topology_dimensions : mapping of str to sequence of int
    first_edition : bool
        Write payloads like the first edition's software in profile 0 (errata K1, K4), with the plain implementation.
    """

    def __init__(
        self, topology_dimensions: Mapping[str, Sequence[int]] | None = None, *, first_edition: bool = False
    ) -> None:
        super().__init__(topology_dimensions)
        self.first_edition = first_edition
        self.quant_params: list[list[Tensor]] = []

    def start(self, profile: int = 1, density: int = 2, parameter: int = 0, **options: Any) -> Stream:
        """Add NNR_STR and NNR_MPS."""
        self.str_(profile).mps(density, parameter, **options)
        return self

    def parameters(self, density: int = 2, **elements: Any) -> Stream:
        """Add NNR_MPS with any syntax elements."""
        payload = NnrModelParameterSetUnitPayload(mps_quantization_method_flags=1)
        payload.mps_qp_density, payload.mps_quantization_parameter = density, 0
        for name, value in elements.items():
            setattr(payload, name, value)
        self.unit(NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader()), payload)
        return self

    def payload(
        self,
        header: NnrCompressedDataUnitHeader,
        levels: Sequence[Any],
        qp: int | Sequence[int] = 0,
        sides: Sequence[TensorSide | None] | None = None,
        co_loc: Sequence[npt.NDArray[np.int32]] = (),
        any_sig: Sequence[npt.NDArray[np.bool_]] = (),
    ) -> bytes:
        """Return the payload; raise ValueError if the two implementations write or decode different data."""
        is_int = header.nnr_compressed_data_unit_payload_type == NNR_PT_INT
        density = 0 if is_int else self.session.quantization[0]  # type: ignore[index]  # a payload of levels has a header
        plain = []
        for k, part in enumerate(parts(header, self.session)):
            book = part.codebook
            syntax = QuantTensorSyntax(
                part.dims,
                dq_flag=header.dq_flag,
                general_profile_idc=self.session.general_profile_idc,
                cabac_unary_length_minus1=header.cabac_unary_length_minus1,
                scan_order=header.scan_order if part.role in ("weight", "g", "h") else 0,
                codebook=(book.codebook_size, book.cb_zero_offset) if book else None,
                parent_node_id_present_flag=header.parent_node_id_present_flag,
                temporal_context_modeling_flag=header.temporal_context_modeling_flag,
                co_loc=np.asarray(co_loc[k]).reshape(-1).tolist() if co_loc else None,
                any_sig_before=np.asarray(any_sig[k]).reshape(-1).tolist() if any_sig else None,
                qp_bits=0 if is_int else 6 + density,
                first_edition=self.first_edition,
            )
            qp_value = 0 if is_int else qp if isinstance(qp, int) else qp[k]
            plain.append((syntax, _tensor(syntax, levels[k], qp_value, sides[k] if sides else None)))
        coder = ArithmeticEncoder()
        for syntax, tensor in plain:
            quant_tensor(coder, syntax, tensor)
        terminate(coder)
        payload = coder.finish()
        decoder = ArithmeticDecoder(payload)
        back = [quant_tensor(decoder, syntax) for syntax, _ in plain]
        terminate(decoder)
        if [tensor.levels for tensor in back] != [tensor.levels for _, tensor in plain]:
            raise ValueError("the decoded levels differ")
        if not self.first_edition and super().payload(header, levels, qp, sides, co_loc, any_sig) != payload:
            raise ValueError("the kernel and the plain implementation write different payloads")
        points = [offset for tensor in back for offset in tensor.cabac_offset_list]
        if points and header.cabac_offset_list != points:
            raise ValueError("the two implementations write different entry points")
        self.quant_params.append(
            [_quant_param(syntax, given) for (syntax, _), given in zip(plain, levels, strict=True)]
        )
        return payload

    def gives(
        self,
        tensors: Mapping[str, Tensor] | None = None,
        *,
        raw: Mapping[str, Tensor] | None = None,
        topology: bytes | None = None,
        quantization: bytes | None = None,
        topology_format: str = "nnef",
    ) -> Content:
        """Return the bitstream with its expected result."""
        return Content(self.data, tensors or {}, raw, topology, quantization, topology_format, self.quant_params)

    def refused(self) -> Content:
        """Return the bitstream without an expected result."""
        return Content(self.data)


def _quant_param(syntax: QuantTensorSyntax, levels: Any) -> Tensor:
    """Return QuantParam of the chosen levels (10.2.1.4)."""
    array = np.asarray(levels, np.int64).reshape(tuple(syntax.dims))
    return (dependent(array, syntax.scan_order) if syntax.dq_flag else array).astype(np.int32)


def _tensor(syntax: QuantTensorSyntax, levels: Any, qp_value: int, given: TensorSide | None) -> QuantTensor:
    array = np.asarray(levels, np.int64)
    tensor = QuantTensor(levels=array.reshape(-1).tolist(), qp_value=qp_value)
    if given is None:
        return tensor
    tensor.hist_dep_sig_prob_enabled_flag = given.hist_dep_sig_prob_enabled_flag
    tensor.row_skip_enabled_flag = given.row_skip_enabled_flag
    if given.row_skip_enabled_flag:
        tensor.row_skip_list = [int(not row.any()) for row in array.reshape(syntax.tensor_2d_height, -1)]
    ids = given.shift_parameter_ids
    if ids is not None:
        counts = {
            "sig_flag": 48,
            "sign_flag": 5,
            "abs_level_greater_x2": 32,
            "abs_level_greater_x": 4 * (syntax.cabac_unary_length_minus1 + 1),
        }
        tensor.shift_parameter_ids = {e: ids[FIRST[e] : FIRST[e] + counts[e]].tolist() for e in FIRST}
    return tensor
