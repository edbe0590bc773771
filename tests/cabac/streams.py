"""Bitstreams of other encoders with their integer levels, and the DeepCABAC payloads in them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nnr_codec.constants import NNR_CPT_BI, NNR_CPT_BN, NNR_CPT_LS, NNR_NDU, NNR_PT_BLOCK, NNR_PT_INT
from nnr_codec.syntax import BitReader, Reader, Session
from nnr_codec.syntax.deepcabac import QuantTensorSyntax
from nnr_codec.syntax.structures import (
    NnrCompressedDataUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrUnitHeader,
    NnrUnitSize,
)

#: NAME.nnc and NAME_levels.npz.
FOLDER = Path(__file__).parents[2] / "bitstream_vectors" / "interop" / "nncodec-levels"


@cache
def names() -> list[str]:
    """Return the names of the streams, without their suffix."""
    return sorted(path.stem for path in FOLDER.glob("*.nnc"))


@dataclass
class Payload:
    """Payload of one NDU: its bytes, the names and syntaxes of its tensors, and the lists of its header."""

    data: bytes
    names: list[str]
    syntaxes: list[QuantTensorSyntax]
    entry_points: list[tuple[int, int, int]]


def levels(name: str) -> dict[str, npt.NDArray[np.int64]]:
    """Return the QuantParam of each tensor of a stream, as decoded by the codec that wrote it."""
    with np.load(FOLDER / f"{name}_levels.npz") as stored:
        return {key: stored[key].astype(np.int64) for key in stored.files}


def earlier(name: str) -> list[str]:
    """Return the streams that precede this one in its sequence of updates, the latest first."""
    family, _, last = name.rpartition("_")
    known = [f"{family}_{k}" for k in range(3)]
    return known[: int(last)][::-1] if set(known) <= set(names()) and last.isdigit() else []


def payloads(name: str) -> list[Payload]:
    """Return all coded NDUs of a stream. References are the stored levels of the streams before it."""
    data, pos, session, found = (FOLDER / f"{name}.nnc").read_bytes(), 0, Session(), []
    before = [levels(k) for k in earlier(name)]
    while pos < len(data):
        size = Reader(session, BitReader(data[pos:])).read(NnrUnitSize).nnr_unit_size
        unit, pos = data[pos : pos + size], pos + size
        reader = Reader(session, BitReader(unit))
        reader.read(NnrUnitSize)
        header = reader.read(NnrUnitHeader)
        is_mps = "NNR_MPS" in str(header.nnr_unit_type.name)  # type: ignore[attr-defined]
        payload = reader.read(NnrModelParameterSetUnitPayload) if is_mps else None
        start = reader.io.pos
        session.activate(header, payload)
        if header.nnr_unit_type == NNR_NDU:
            assert isinstance(header.detail, NnrCompressedDataUnitHeader)
            found.append(_payload(name, session, header.detail, unit[start // 8 :], before))
    return found


def _payload(
    name: str,
    session: Session,
    header: NnrCompressedDataUnitHeader,
    data: bytes,
    before: list[dict[str, npt.NDArray[np.int64]]],
) -> Payload:
    kind, ids, dims = header.nnr_compressed_data_unit_payload_type, session.names(header), header.tensor_dimensions
    parts = [(ids[0], tuple(dims), True)]
    if kind == NNR_PT_BLOCK:  # ids and payload differ in their order (6.4.3.7, 7.3.5)
        types = header.compressed_parameter_types
        roles = ["weight"] + ["LS"] * bool(types & NNR_CPT_LS)
        roles += ["beta", "gamma", "mean", "var"] * bool(types & NNR_CPT_BN) + ["bias"] * bool(types & NNR_CPT_BI)
        by_role = dict(zip(roles, ids, strict=True))
        parts = [
            (by_role[role], tuple(dims) if role == "weight" else (dims[0],), role == "weight")
            for role in ("LS", "bias", "beta", "gamma", "mean", "var", "weight")
            if role in by_role
        ]
    density = 0 if session.quantization is None else session.quantization[0]
    syntaxes = []
    for key, extents, is_weight in parts:
        codebook = header.codebook if is_weight and header.codebook_present_flag else None
        references = [known[key].reshape(-1) for known in before if key in known]
        parent = header.parent_node_id_present_flag
        use_co_loc = parent and header.temporal_context_modeling_flag and references
        syntaxes.append(
            QuantTensorSyntax(
                extents,
                dq_flag=header.dq_flag,
                general_profile_idc=session.general_profile_idc,
                cabac_unary_length_minus1=header.cabac_unary_length_minus1,
                scan_order=header.scan_order if is_weight else 0,
                codebook=None if codebook is None else (codebook.codebook_size, codebook.cb_zero_offset),
                parent_node_id_present_flag=parent,
                temporal_context_modeling_flag=header.temporal_context_modeling_flag,
                co_loc=references[0].tolist() if use_co_loc else None,
                any_sig_before=np.any(references, axis=0).astype(int).tolist() if parent and references else None,
                qp_bits=0 if kind == NNR_PT_INT else 6 + density,
                first_edition=name.startswith("nncodec1_"),
            )
        )
    deltas = [header.bit_offset_delta1, *header.bit_offset_delta2] if header.cabac_offset_list else []
    states = header.dq_state_list or [0] * len(deltas)
    lists = zip(header.cabac_offset_list, states, np.cumsum(deltas, dtype=int).tolist(), strict=True)
    return Payload(data, [key for key, _, _ in parts], syntaxes, list(lists))
