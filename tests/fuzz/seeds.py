"""Seeds of mutation: small bitstreams that reach every branch of the syntax tables and every coding tool.

``python -m tests.fuzz.seeds`` reads all of them by executing the tables, to measure the reached branches.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import nnr_codec as nnr
from nnr_codec.bitstream.payload import parts, tensor_syntax
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.cabac_ext.kernel import TensorSide
from nnr_codec.conformance.cases import load_cases
from nnr_codec.constants import (
    NNR_CPT_BI,
    NNR_CPT_BN,
    NNR_CPT_DC,
    NNR_CPT_LS,
    NNR_LPS,
    NNR_MPS,
    NNR_PT_BLOCK,
    NNR_PT_FLOAT,
    NNR_PT_INT,
    NNR_QNT,
    NNR_TPL,
    TopologyStorageFormat,
)
from nnr_codec.errors import NnrError
from nnr_codec.limits import Limits
from nnr_codec.model import Topology
from nnr_codec.syntax import Session
from nnr_codec.syntax.structures import (
    NnrLayerParameterSetUnitHeader,
    NnrLayerParameterSetUnitPayload,
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrQuantizationUnitHeader,
    NnrQuantizationUnitPayload,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
)

from ..builder import Bitstream, codebook, ndu, update_ndu
from ..hostile_record import lossless_model
from .revise import invent

ROOT = Path(__file__).resolve().parents[2] / "bitstream_vectors"

#: Maximum bytes of a seed.
LARGEST = 2048

STRICT = Limits.strict()


@dataclass(frozen=True)
class Seed:
    """Bitstream, valid or not.

    Parameters
    ----------
    before : tuple of bytes
        The bitstreams that are decoded before it, with state.
    dimensions, topology
        Further arguments of the decoder.
    """

    name: str
    data: bytes
    before: tuple[bytes, ...] = ()
    dimensions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    topology: Topology | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Options of the functions that read bitstreams."""
        given = {"topology_dimensions": self.dimensions, "topology": self.topology}
        return {"limits": STRICT, **{name: value for name, value in given.items() if value}}


def corpus() -> list[Seed]:
    """Return all seeds, each bitstream once."""
    seen: dict[tuple[bytes, ...], Seed] = {}
    for seed in (*vectors(), *built(), *with_invented_parameters(), *encoded()):
        if 0 < len(seed.data) < LARGEST:
            seen.setdefault((seed.data, *seed.before), seed)
    return list(seen.values())


def digest(seeds: Sequence[Seed]) -> str:
    """Return a digest that identifies a corpus and the code of its mutation."""
    whole = hashlib.sha256()
    for name in ("mutate.py", "revise.py"):
        whole.update(Path(__file__).with_name(name).read_bytes())
    for seed in seeds:
        for data in (seed.data, *seed.before):
            whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()[:16]


# ------------------------------------------------------------------------------------------------ where they are from
def vectors() -> Iterator[Seed]:
    """Return each bitstream of the vectors, with the bitstreams before it."""
    for case in load_cases(ROOT):
        before: list[bytes] = []
        for stream in case.streams:
            data = stream.path.read_bytes()
            name = f"{case.id}/{stream.path.stem}" if len(case.streams) > 1 else case.id
            yield Seed(name, data, tuple(before), case.topology_dimensions, case.topology)
            before.append(data)


SHAPES = ((1,), (7,), (3, 5), (9, 4), (20, 9), (33, 6), (2, 3, 2, 2), (6, 1), (1, 6))


def built(count: int = 160) -> Iterator[Seed]:
    """Return tensors with all tools of the payload, tool by tool and at random."""
    for k in range(count):
        yield Seed(f"built-{k}", _built(random.Random(f"seed {k}"), k).data)
    for k in range(20):
        yield _update(random.Random(f"update {k}"), k)
    for bits in (12, 16, 20):  # of zeros, which take about a hundredth of a bit
        zeros = np.zeros((1 << bits - 6, 1 << 6), np.int64)
        header = ndu("w", zeros.shape, kind=NNR_PT_INT, scan_order=bits // 4 % 5)
        yield Seed(f"zeros-{bits}", Bitstream().str_(1).mps().ndu(header, zeros).data)


def _built(rnd: random.Random, k: int) -> Bitstream:
    """Return one or two tensors."""
    stream = Bitstream().str_(int(rnd.random() < 0.7)).mps(rnd.randrange(8), rnd.randint(-40, 9))
    profile = stream.session.general_profile_idc
    if rnd.random() < 0.2:
        stream.lps(rnd.randrange(4), rnd.randint(-9, 9))
    for name in ("w", "b")[: rnd.choice((1, 1, 2))]:
        dims = list(rnd.choice(SHAPES))
        elements: dict[str, Any] = {"dq_flag": rnd.getrandbits(1)}
        if len(dims) > 1:
            elements["scan_order"] = (k + rnd.randrange(2)) % 5
            if profile:
                elements["first_tensor_dimension_shift"] = rnd.randrange(len(dims)) if rnd.random() < 0.3 else 0
        kind = (NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_FLOAT, NNR_PT_BLOCK)[k % 4]
        names: Any = name
        if kind == NNR_PT_BLOCK:
            roles, elements["compressed_parameter_types"] = _block(rnd, dims, elements)
            names = [name + role for role in roles]
        low, high = -rnd.choice((1, 3, 40, 70000)), rnd.choice((1, 3, 40, 70000))
        if kind == NNR_PT_FLOAT and rnd.random() < 0.3:
            entries = sorted(rnd.sample(range(-30, 30), rnd.randint(1, 9)))
            zero = rnd.randrange(len(entries))
            elements |= {"codebook_present_flag": 1, "codebook": codebook(entries, zero, rnd.randrange(4))}
            low, high = -zero, len(entries) - 1 - zero
            elements["dq_flag"] = 0
        unary = rnd.choice((None, 0, 9, 9, 20))
        header = ndu(names, dims, kind=kind, unary=unary, **elements)
        sides, levels = _levels(rnd, header, stream.session, low, high)
        stream.ndu(header, *levels, qp=rnd.randint(-9, 9), sides=sides, pieces=rnd.choice((1, 1, 1, 2)))
    if rnd.random() < 0.1 and len(stream.units) > 3:
        stream.aggregate(2)
    return stream


def _block(rnd: random.Random, dims: list[int], elements: dict[str, Any]) -> tuple[list[str], int]:
    """Return names of the tensors of a block, at least two, and its types."""
    types = rnd.choice((NNR_CPT_BI, NNR_CPT_LS, NNR_CPT_BN, NNR_CPT_BI | NNR_CPT_LS | NNR_CPT_BN))
    types |= NNR_CPT_DC * rnd.getrandbits(1)
    names = ["g", "h"] if types & NNR_CPT_DC else ["w"]
    names += ["s"] if types & NNR_CPT_LS else []
    names += ["beta", "gamma", "mean", "var"] if types & NNR_CPT_BN else []
    names += ["bias"] if types & NNR_CPT_BI else []
    if types & NNR_CPT_DC:
        elements |= {"decomposition_rank": rnd.randint(1, 3), "g_number_of_rows": dims[0]}
    return names, types


def _levels(
    rnd: random.Random, header: Any, session: Session, low: int, high: int
) -> tuple[list[TensorSide | None], list[Any]]:
    """Return levels of each part, and their flags and ids."""
    sides: list[TensorSide | None] = []
    levels = []
    zeros = rnd.choice((0.0, 0.5, 0.9))
    for part in parts(header, session):
        size, rows = prod(part.dims), part.dims[0]
        values = np.array([0 if rnd.random() < zeros else rnd.randint(low, high) for _ in range(size)], np.int64)
        side = None
        if rnd.random() < 0.5:
            unary = header.cabac_unary_length_minus1
            ids = np.array([rnd.choice((0, 0, 0, rnd.randint(0, 8))) for _ in range(87 + 4 * (unary + 1))], np.uint8)
            skip = int(tensor_syntax(header, session, part).can_skip_rows and rnd.random() < 0.5)
            if skip:
                values.reshape(rows, -1)[rnd.randrange(rows)] = 0
            side = TensorSide(row_skip_enabled_flag=skip, shift_parameter_ids=ids)
        sides.append(side)
        levels.append(values)
    return sides, levels


def _update(rnd: random.Random, k: int) -> Seed:
    """Return a tensor, and one or two updates of it."""
    dims = list(rnd.choice(SHAPES))
    streams: list[bytes] = []
    for depth in range(rnd.choice((2, 2, 3))):
        stream = Bitstream().str_(1).mps(parent=1, pre=k & 1)
        elements = {"temporal_context_modeling_flag": k >> 1 & 1} if depth else {}
        header = update_ndu("w", dims, depth, kind=(NNR_PT_FLOAT, NNR_PT_INT)[k >> 2 & 1], **elements)
        levels = np.array([rnd.choice((0, 0, 1, -1, 2)) for _ in range(prod(dims))])
        before = np.zeros(dims, np.int32)
        stream.ndu(
            header,
            levels,
            co_loc=[before] if elements.get("temporal_context_modeling_flag") else (),
            any_sig=[before > 0] if depth else (),
        )
        streams.append(stream.data)
    return Seed(f"built-update-{k}", streams[-1], tuple(streams[:-1]))


def with_invented_parameters(count: int = 60) -> Iterator[Seed]:
    """Return random parameter sets and topology units, with performance maps, and a small tensor after them."""
    for k in range(count):
        rnd = random.Random(f"invented {k}")
        stream = Bitstream().str_(k & 1).mps()
        for _ in range(rnd.randint(1, 3)):
            with contextlib.suppress(NnrError, ValueError):
                _add_invented(stream, rnd)
        with contextlib.suppress(NnrError):  # its names may have become indices
            indexed = stream.session.mps_topology_indexed_reference_flag
            stream.ndu(ndu(0 if indexed else "w", [3, 2]), [1, 0, -1, 2, 0, 0])
        yield Seed(f"invented-{k}", stream.data)


def _add_invented(stream: Bitstream, rnd: random.Random) -> None:
    session, kind = stream.session, rnd.choice((NNR_MPS, NNR_MPS, NNR_LPS, NNR_TPL, NNR_QNT))
    if kind == NNR_MPS:
        payload = invent(NnrModelParameterSetUnitPayload, session, rnd)
        stream.unit(NnrUnitHeader(nnr_unit_type=kind, detail=NnrModelParameterSetUnitHeader()), payload)
    elif kind == NNR_LPS:
        detail = NnrLayerParameterSetUnitHeader(lps_self_contained_flag=rnd.getrandbits(1))
        lps = invent(NnrLayerParameterSetUnitPayload, session, rnd)
        stream.unit(NnrUnitHeader(nnr_unit_type=kind, detail=detail), lps)
    elif kind == NNR_TPL:
        session.topology_storage_format = rnd.choice(list(TopologyStorageFormat))
        topology = NnrTopologyUnitHeader(topology_storage_format=session.topology_storage_format)
        tpl = invent(NnrTopologyUnitPayload, session, rnd)
        stream.unit(NnrUnitHeader(nnr_unit_type=kind, detail=topology), tpl)
    else:
        quantization = NnrQuantizationUnitHeader(quantization_storage_format=rnd.randrange(3))
        qnt = invent(NnrQuantizationUnitPayload, session, rnd)
        stream.unit(NnrUnitHeader(nnr_unit_type=kind, detail=quantization), qnt)


def encoded() -> Iterator[Seed]:
    """Return bitstreams of the encoder for small models, including side information."""
    for name, tensor in lossless_model().items():
        small = tensor[:6] if tensor.ndim else tensor
        yield Seed(f"exact-{name}", nnr.encode({name: small}, exact=True))
    weight = np.linspace(-1, 1, 60, dtype=np.float32).reshape(12, 5)
    model = {"w": weight, "b": weight[0], "i": np.arange(6, dtype=np.int32)}
    for effort in (1, 5, 9):
        yield Seed(f"encoded-{effort}", nnr.encode(model, effort=effort))
    base = nnr.encode(model)
    changed = {name: tensor + tensor.dtype.type(1) for name, tensor in model.items()}
    update = nnr.encode_update(model, changed)
    yield Seed("encoded-update", update, (base,))


# ------------------------------------------------------------------------------------------------ reading them all
def main() -> None:
    """Execute the tables on each seed as far as possible; compiled readers are not measured."""
    for seed in corpus():
        reader = UnitReader(seed.data, STRICT, Session(seed.dimensions), trace=lambda *event: None)
        with contextlib.suppress(NnrError):
            for _unit in reader:
                pass


if __name__ == "__main__":
    main()
