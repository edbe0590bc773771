"""The units before the tensors: NNR_STR, NNR_MPS, NNR_TPL and NNR_QNT (ISO/IEC 15938-17:2024, 6.2.3, A.4, B.4)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from ..bitstream.units import write_unit
from ..config import EncoderConfig
from ..constants import (
    NNR_DFL,
    NNR_MPS,
    NNR_PT_RAW,
    NNR_QCB,
    NNR_QNT,
    NNR_QSU,
    NNR_STR,
    NNR_TPL,
    NNR_TPL_PRUN,
    NNR_TPL_REFLIST,
    TOPOLOGY_FORMATS,
)
from ..errors import EncodeError, Option
from ..model import Topology
from ..sideinfo.record import STORAGE_FORMAT, SideInfo
from ..syntax import Session
from ..syntax.structures import (
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrPruningTopologyContainer,
    NnrQuantizationUnitHeader,
    NnrQuantizationUnitPayload,
    NnrStartUnitHeader,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
)
from .layout import Layout
from .prepare import Prepared

#: Smaller records are not deflated: NNCodec 2.1.3 skips private units only if they hold a string.
DEFLATED_BYTES = 4096
#: Formats of topologies of which a bitstream says that they are kept apart: Annex B asks for it, Annex A does not.
ANNOUNCED = ("onnx", "pytorch", "tensorflow")


def preamble(
    prepared: Prepared,
    layout: Layout,
    references: Sequence[str],
    record: SideInfo,
    config: EncoderConfig,
    session: Session,
    *,
    codebooks: bool = False,
    pruning: NnrPruningTopologyContainer | None = None,
) -> Iterator[bytes]:
    """The units before the tensors; where the topology is kept apart, at most one that says of which format (B.4).

    ``references`` are the ids of a reference list, none when there shall be no list; ``codebooks`` says whether a
    tensor has one; ``pruning`` is what NNR_TPL_PRUN says.

    Raises EncodeError for a topology that its format cannot carry, and for one of these units that is larger than
    max_unit_size: they are not divided (6.4.3.1).
    """
    units = [*_units(prepared, layout, references, config, session, codebooks, pruning)]
    if record:
        units.append(_side_info(record, config, session))
    for unit in units:
        if config.max_unit_size is not None and len(unit) > config.max_unit_size:
            raise EncodeError(
                f"a unit that carries no tensor, such as a topology, has {len(unit):,} bytes, more than ",
                Option("max_unit_size", config.max_unit_size),
                ", and is not divided (6.4.3.1)",
            )
        yield unit


def _units(
    prepared: Prepared,
    layout: Layout,
    references: Sequence[str],
    config: EncoderConfig,
    session: Session,
    codebooks: bool,
    pruning: NnrPruningTopologyContainer | None,
) -> Iterator[bytes]:
    model, links = prepared.model, prepared.links
    topology = model.topology if config.topology == "carried" else None
    apart = "" if topology else model.topology.format if model.topology else model.format
    told = {**prepared.maps.elements("mps"), **(config.performance.elements() if config.performance else {})}
    own = links.elements if links else {}
    if "base_model_id" in told and "base_model_id" in own:
        raise EncodeError(
            Option("performance"), " has a base_model_id, but an update says itself what it builds on (6.4.4.3)"
        )
    start = NnrStartUnitHeader(general_profile_idc=config.profile)
    yield write_unit(NnrUnitHeader(nnr_unit_type=NNR_STR, detail=start), None, session)
    parameters = NnrModelParameterSetUnitPayload(
        topology_carriage_flag=int(topology is not None),
        mps_quantization_method_flags=NNR_QSU | NNR_QCB * codebooks,
        mps_qp_density=layout.qp_density,
        mps_quantization_parameter=layout.quantization_parameter,
        mps_topology_indexed_reference_flag=int(bool(references)),
        **told,
        **own,
    )
    yield write_unit(NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader()), parameters, session)
    if topology:
        yield _topology(topology, config, session)
    elif apart in ANNOUNCED:
        yield _topology_unit(_storage_format(apart), NNR_PT_RAW, b"\0", session)
    if references:  # right after the topology (A.4)
        names = NnrTopologyUnitPayload(topology_elem_id_list=list(references))
        header = NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_REFLIST)
        yield write_unit(NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=header), names, session)
    if pruning:
        prune = NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_PRUN)
        removed = NnrTopologyUnitPayload(pruning=pruning)
        yield write_unit(NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=prune), removed, session)
    if topology and topology.quantization is not None:
        yield _quantization(topology.format, topology.quantization, config, session)


def _topology(topology: Topology, config: EncoderConfig, session: Session) -> bytes:
    if not topology.data.strip(b"\0"):
        raise EncodeError("a topology of no bytes, or of zeros, says that there is none (B.4): leave it out")
    storage = _storage_format(topology.format)
    return _topology_unit(storage, *_carried(topology.data, storage, "topology", config), session)


def _topology_unit(storage: int, compression: int, data: bytes, session: Session) -> bytes:
    header = NnrTopologyUnitHeader(topology_storage_format=storage, topology_compression_format=compression)
    payload = NnrTopologyUnitPayload(topology_data=data)
    return write_unit(NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=header), payload, session)


def _side_info(record: SideInfo, config: EncoderConfig, session: Session) -> bytes:
    text = record.to_bytes()
    if config.deflate_topology and len(text) >= DEFLATED_BYTES:
        compression, data = NNR_DFL, zlib.compress(text, 9)
    else:
        compression, data = NNR_PT_RAW, text + b"\0"
    return _topology_unit(STORAGE_FORMAT, compression, data, session)


def _quantization(name: str, text: bytes, config: EncoderConfig, session: Session) -> bytes:
    storage = _storage_format(name)
    compression, data = _carried(text, storage, "quantization", config)
    header = NnrQuantizationUnitHeader(quantization_storage_format=storage, quantization_compression_format=compression)
    payload = NnrQuantizationUnitPayload(quantization_data=data)
    return write_unit(NnrUnitHeader(nnr_unit_type=NNR_QNT, detail=header), payload, session)


def _storage_format(name: str) -> int:
    """The number of a format in Tables 4 and 6."""
    for number, known in TOPOLOGY_FORMATS.items():
        if known == name:
            return number
    known_names = ", ".join(repr(known) for known in TOPOLOGY_FORMATS.values())
    raise EncodeError(f"a topology of format {name!r} has no number (Table 4); there are {known_names}")


def _carried(data: bytes, storage: int, what: str, config: EncoderConfig) -> tuple[int, bytes]:
    """Compression format and data: of NNEF a null-terminated string of UTF-8 (A.4), of others as it is (errata N9)."""
    if TOPOLOGY_FORMATS[storage] == "nnef":
        try:
            data.decode()
        except UnicodeDecodeError:
            raise EncodeError(f"the NNEF {what} is not UTF-8, as A.4 asks") from None
        if 0 in data:
            raise EncodeError(f"the NNEF {what} holds a zero byte, which would end it (A.4)")
        data += b"\0"
    deflated = zlib.compress(data, 9)
    if config.deflate_topology and len(deflated) < len(data):
        return NNR_DFL, deflated
    return NNR_PT_RAW, data
