"""NNR-STR: large and slow valid bitstreams, generated on demand.

``python -m tests.vectors.stress FOLDER [ID…]`` writes them below FOLDER, where ``nnr conformance FOLDER`` runs them.
Case files have digests without values. Only the kernel writes most payloads: the plain implementation of clause 10
would take minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnr_codec.cabac_ext.kernel import TensorSide
from nnr_codec.constants import NNR_DFL, NNR_PT_BLOCK, NNR_PT_INT, NNR_PT_RAW_FLOAT, NNR_QCB, NNR_TPL_TEF
from nnr_codec.syntax.structures import NnrCompressedDataUnitHeader

from ..builder import Bitstream, aggregate, codebook, ndu
from .arithmetic import step
from .bits import f4
from .block import DC
from .case import Case, Content, Maker, Tensor
from .make import files
from .negative_state import bomb
from .negative_units import HEAD, raw_named
from .pruning import container, pruned
from .stream import Stream, side
from .update import rounds

STRESS: dict[str, Case] = {}


def stress(number: int, title: str, clauses: str, features: str, **fields: Any) -> Callable[[Maker], Maker]:
    """Register a bitstream like `case.valid`, but in a separate table."""

    def keep(make: Maker) -> Maker:
        id_ = f"NNR-STR-{number:03}"
        words = {"clauses": tuple(clauses.split()), "features": tuple(features.split())}
        STRESS[id_] = Case(id=id_, title=title, result="valid", make=make, **words, **fields)
        return make

    return keep


class Fast(Stream):
    """Builder whose payloads only the kernel writes, without dependent quantization."""

    def payload(
        self,
        header: NnrCompressedDataUnitHeader,
        levels: Sequence[Any],
        qp: int | Sequence[int] = 0,
        sides: Sequence[TensorSide | None] | None = None,
        co_loc: Any = (),
        any_sig: Any = (),
    ) -> bytes:
        """Return the payload."""
        if header.dq_flag:
            raise ValueError("QuantParam equals the levels only without dependent quantization")
        self.quant_params.append([np.asarray(level, np.int32) for level in levels])
        return Bitstream.payload(self, header, levels, qp, sides, co_loc, any_sig)


def times(levels: Tensor, qp: int) -> Tensor:
    """Return small levels times a power of two, exact in float32."""
    size = step(qp)
    if size.numerator & (size.numerator - 1) or np.abs(levels).max(initial=0) >= 1 << 24:
        raise ValueError("a product may not be exact")
    return np.float32(levels) * np.float32(size)


def spread(count: int, most: int) -> Tensor:
    """Return integers from -most to most."""
    return (np.arange(count, dtype=np.int64) * 2654435761 % (2 * most + 1) - most).astype(np.int32)


# ------------------------------------------------------------------------------------------------ large output
@stress(1, "2^24 floats from a payload of three bytes", "7.3.6 10.2.1.5", "codebook_size=1")
def one_entry() -> Content:
    s, dims = Fast().start(methods=1 | NNR_QCB), [4096, 4096]
    s.ndu(ndu("w", dims, codebook_present_flag=1, codebook=codebook([3], 0)), np.zeros(dims, np.int32), qp=-8)
    return s.gives({"w": np.full(dims, 0.75, "<f4")})


@stress(2, "2^24 integers in 65,536 skipped rows", "10.2.1.4", "row_skip_enabled_flag NNR_PT_INT")
def skipped() -> Content:
    s, dims = Fast().start(), [65536, 256]
    s.ndu(ndu("w", dims, kind=NNR_PT_INT, data_format=5), np.zeros(dims, np.int32), sides=[side(skip=1)])
    return s.gives({"w": np.zeros(dims, np.int8)})


@stress(3, "2^24 zeros, each coded as a bin", "10.2.1.5 10.3.4.3", "sig_flag NNR_PT_INT")
def zeros() -> Content:
    s, count = Fast().start(), 1 << 24
    s.ndu(ndu("w", [count], kind=NNR_PT_INT, data_format=5), np.zeros(count, np.int32), sides=[side(sig={0: 8})])
    return s.gives({"w": np.zeros(count, np.int8)})


@stress(4, "2^24 products of 8,192 numbers", "6.4.3.7 7.3.5 8.3.7", "NNR_PT_BLOCK NNR_CPT_DC")
def products() -> Content:
    g, h = spread(4096, 9).reshape(-1, 1), spread(4096, 7).reshape(1, -1)
    s = Fast().start()
    options = {"compressed_parameter_types": DC, "decomposition_rank": 1, "g_number_of_rows": 4096}
    s.ndu(ndu(["w", "w_H"], [4096, 4096], kind=NNR_PT_BLOCK, **options), g, h, qp=[-4, -8])
    rec = {"w": times(g, -4), "w_H": times(h, -8)}
    weight = rec["w"] * rec["w_H"] + np.float32(0)  # no minus zero: a sum of products starts with 0
    return s.gives({"w": weight}, raw=rec)


@stress(5, "a topology of 16 MiB deflated to 105 KB", "6.4.4.5", "NNR_TPL_TEF NNR_DFL")
def inflated() -> Content:
    s = Stream().start()
    s.topology(bomb(1 << 24), storage=NNR_TPL_TEF, compression=NNR_DFL)
    s.raw(ndu("w", [1], kind=NNR_PT_RAW_FLOAT), [1])
    return s.gives({"w": f4(1)}, topology=b"A" * (1 << 24), topology_format="tensorflow")


# ------------------------------------------------------------------------------------------------ many elements
def named(count: int) -> tuple[list[bytes], dict[str, Tensor]]:
    """Return raw units of one number, and their tensors."""
    unit, names = raw_named("name0"), [f"{k:05x}" for k in range(count)]
    return [unit.replace(b"name0", name.encode()) for name in names], {name: f4(1) for name in names}


@stress(6, "65,537 units in one aggregate, the maximum", "6.3.3.8 6.4.3.8", "NNR_AGG num_of_nnr_units_minus2")
def many_units() -> Content:
    inside, tensors = named(65537)
    return Content(HEAD + aggregate(inside), tensors)


@stress(7, "50,000 layer parameter sets, one before each tensor", "6.2.3 6.4.4.4", "NNR_LPS")
def many_sets() -> Content:
    inside, tensors = named(50_000)
    sets = [Stream().start().lps(density, 3).units[-1] for density in range(8)]
    return Content(HEAD + b"".join(sets[k % 8] + unit for k, unit in enumerate(inside)), tensors)


@stress(8, "64 nested aggregates", "6.3.4.8", "NNR_AGG", limits={"max_agg_depth": 64})
def deep() -> Content:
    inside, tensors = named(65)
    nest = inside[0]
    for unit in inside[1:]:
        nest = aggregate([nest, unit])
    return Content(HEAD + nest, tensors)


@stress(9, "a reference list of 20,000 names, used in reverse order", "6.3.4.5 6.4.3.7", "NNR_TPL_REFLIST")
def many_names() -> Content:
    names = [f"layers.{k}.weight" for k in range(20_000)]
    s = Stream().start(indexed=1)
    s.reference_list(*names)
    for index in reversed(range(len(names))):
        s.raw(ndu(index, [1], kind=NNR_PT_RAW_FLOAT), [index])
    return s.gives({names[index]: f4(index) for index in reversed(range(len(names)))})


@stress(10, "a tensor in 255 parts", "6.4.3.1", "partial_data_counter=255")
def many_parts() -> Content:
    values = spread(1 << 20, 1000).astype("<f4")
    s = Stream().start()
    s.ndu(ndu("w", values.shape, kind=NNR_PT_RAW_FLOAT), payload=values.tobytes(), pieces=255)
    return s.gives({"w": values})


@stress(11, "a tensor split into 1,000 tensors with swapped axes", "4.12 7.3.1", "TensorSplit AxisSwap")
def many_pieces() -> Content:
    names, values = [f"w{k}" for k in range(1000)], spread(6000, 1000).reshape(1000, 2, 3)
    mapping = {"concatentation_axis_index": 0, "split_index": list(range(1, 1000)), "number_of_shifts": [1] * 1000}
    mapping |= {"shift_index": [[2]] * 1000, "shift_value": [[2]] * 1000}
    s = Fast().start()
    s.ndu(ndu(names, values.shape, kind=NNR_PT_INT, **mapping), values)
    pieces = {name: values[k : k + 1].swapaxes(2, 1).swapaxes(1, 0) for k, name in enumerate(names)}
    return s.gives(pieces)


@stress(
    12,
    "200 updates as residuals, with history and temporal contexts",
    "9.2.4 10.3.4.2.2",
    "put_node_depth nnr_pre_flag",
)
def many_updates() -> list[Content]:
    return rounds(range(1, 201), temporal=1, history=1, pre=1, skip=1)


# ------------------------------------------------------------------------------------------------ long elements
@stress(
    13, "100,000 integers with the longest prefixes and remainders", "10.2.1.5 10.3.3.2", "abs_remainder NNR_PT_INT"
)
def prefixes() -> Content:
    levels = np.where(spread(100_000, 1) < 0, -(2**31) + 1, 2**31 - 1).astype(np.int32)
    s = Fast().start()
    s.ndu(ndu("w", levels.shape, kind=NNR_PT_INT, unary=0), levels)
    return s.gives({"w": levels})


@stress(14, "100,000 integers with 256 unary bins each", "10.2.1.5", "cabac_unary_length=256 NNR_PT_INT")
def unary() -> Content:
    levels = np.where(spread(100_000, 1) < 0, -256, 256).astype(np.int32)
    s = Fast().start()
    s.ndu(ndu("w", levels.shape, kind=NNR_PT_INT, unary=255, data_format=6), levels)
    return s.gives({"w": levels.astype("<i2")})


@stress(15, "100,000 entry points", "4.12 6.3.3.7 10.2.1.4", "scan_order=1 cabac_offset_list NNR_PT_INT")
def entry_points() -> Content:
    dims = [8 * 100_001, 2]
    levels = spread(dims[0] * 2, 2).reshape(dims)
    s = Fast().start()
    s.ndu(ndu("w", dims, kind=NNR_PT_INT, data_format=5, scan_order=1), levels)
    return s.gives({"w": levels.astype(np.int8)})


@stress(16, "a codebook of 65,536 entries", "6.3.3.7 7.3.6", "codebook_size=65536")
def large_codebook() -> Content:
    entries = np.cumsum(1 + np.arange(65536) % 3) - 65536
    levels = spread(65535, 32767)
    s = Fast().start(methods=1 | NNR_QCB)
    book = codebook(entries.tolist(), 32768)
    s.ndu(ndu("w", levels.shape, codebook_present_flag=1, codebook=book), levels, qp=-8)
    return s.gives({"w": times(entries[levels + 32768].astype(np.int32), -8)})


@stress(17, "32 dimensions, half of them of one element", "6.4.3.7", "count_tensor_dimensions=32")
def dimensions() -> Content:
    dims = [1, 2] * 16
    levels = spread(1 << 16, 5).reshape(dims)
    s = Fast().start()
    s.ndu(ndu("w", dims, first_tensor_dimension_shift=31), levels, qp=-4)
    return s.gives({"w": np.moveaxis(times(levels, -4), 0, 31)})


@stress(18, "names of 4,096 bytes", "6.1.3", "st(v)")
def long_names() -> Content:
    names = [f"{k:04}" * 1024 for k in range(200)]
    return Content(HEAD + b"".join(map(raw_named, names)), {name: f4(1) for name in names})


@stress(19, "a unit of 32 MiB", "6.3.2 7.3.4", "nnr_unit_size_flag NNR_PT_RAW_FLOAT")
def long_unit() -> Content:
    values = spread(1 << 23, 100_000).astype("<f4")
    s = Stream().start()
    s.raw(ndu("w", values.shape, kind=NNR_PT_RAW_FLOAT), values)
    return s.gives({"w": values})


@stress(20, "a mask of a million bits", "6.3.4.5 6.4.4.5 8.3.3", "NNR_TPL_PRUN NNR_TPL_BMSK sparse_mask")
def long_mask() -> Content:
    values, mask = 1 + np.arange(1 << 20, dtype="<f4").reshape(1024, 1024), spread(1 << 20, 1) < 0
    s = Stream().start()
    pruned(s, container(sparse=mask.tolist()))
    s.raw(ndu("w", values.shape, kind=NNR_PT_RAW_FLOAT), values)
    return s.gives({"w": np.where(mask.reshape(1024, 1024), values, np.float32(0))}, raw={"w": values})


def write(folder: Path, ids: Collection[str] = ()) -> None:
    """Write these cases, or all, below ``folder``; raise KeyError for an unknown id."""
    for id_ in ids or STRESS:
        target = folder / "stress" / id_
        target.mkdir(parents=True, exist_ok=True)
        for name, data in files(STRESS[id_], values=False).items():
            (target / name).write_bytes(data)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("python -m tests.vectors.stress FOLDER [ID…]")
    write(Path(sys.argv[1]), sys.argv[2:])
