"""The case files in bitstream_vectors/interop.

They describe streams and arrays as case.json describes the project's own vectors. The arrays were decoded by another
codec; this module decodes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_BLOCK, NNR_PT_RAW_FLOAT
from nnr_codec.syntax.structures import NnrCompressedDataUnitHeader

from ..interop import ALL, LEVELS, Stream
from .block import BI, BN, CODED, DC, LISTED, LS
from .case import Tensor, digest, units
from .jsontext import to_json

_SCALING = "_scaling"
#: Parts that a block has only if a bit of compressed_parameter_types is set.
ABSENT = {DC: ("g", "h"), LS: ("ls",), BN: ("beta", "gamma", "mean", "var"), BI: ("bias",)}


def case_files() -> Iterator[tuple[Path, bytes]]:
    """Yield path and content of each case file, one for each stream or sequence of streams."""
    for _, sequence in groupby(ALL, lambda stream: stream.before[0] if stream.before else stream.path):
        yield _case(list(sequence))


def _case(sequence: list[Stream]) -> tuple[Path, bytes]:
    last = sequence[-1]
    folder = last.path.parent
    if last.path.suffix == ".nnr":
        path, id_ = folder / "case.json", f"{folder.parent.name}/{folder.name}"
        given = json.loads(path.read_text("utf-8"))
        origin, options = given["origin"], given["options"]
    else:
        name = last.path.stem.removesuffix("_2" if last.before else "")
        path, id_ = folder / f"{name}.case.json", f"{folder.name}/{name}"
        origin, options = _listed(last.path)
    streams = []
    residuals = "pre_signalling" in options
    update: dict[str, Tensor] = {}
    for stream in sequence:
        rec = {name: _typed(values) for name, values in stream.values.items()}
        # 7.3.3: with nnr_pre_flag, the rounds are residuals of the previous update.
        update = {name: values + update[name] if name in update else values for name, values in rec.items()}
        streams.append(_described(stream, update if residuals else _scaled(rec), rec))
    facts = {
        "id": id_,
        "rev": 1,
        "title": f"written by {origin}",
        "origin": origin,
        "license": "CC0-1.0",
        "spec": "ISO/IEC 15938-17:2024",
        "profile_idc": last.data[3],
        "options": options,
        "result": "valid",
        "inputs": streams[:-1],
        **streams[-1],
    }
    return path, to_json({key: value for key, value in facts.items() if value != []}).encode()


def _listed(path: Path) -> tuple[str, str]:
    """Return encoder and options of a stream, from MANIFEST.txt."""
    for line in (path.parent / "MANIFEST.txt").read_text("utf-8").splitlines():
        name, _, rest = line.partition(" ")
        if name == path.stem:
            first = name.startswith("nncodec1_")
            return "NNCodec 1" if first else "NNCodec 2.1.3", rest.partition(" bytes ")[2].strip()
    raise KeyError(path.stem)


def _typed(values: Tensor) -> Tensor:
    """Return the values as int32 or float32, the type in the header; the arrays have codebook parameters as float64."""
    typed = values.astype(np.int32 if values.dtype.kind == "i" else np.float32)
    np.testing.assert_array_equal(typed, values)
    return typed


def _scaled(rec: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors after local scaling of each row of a weight (8.3.9)."""
    tensors = {name: values for name, values in rec.items() if not name.endswith(_SCALING)}
    for name in rec.keys() - tensors.keys():
        weight = tensors[name.removesuffix(_SCALING)]
        factors = rec[name].astype(np.float64).reshape(-1, *[1] * (weight.ndim - 1))
        tensors[name.removesuffix(_SCALING)] = (weight.astype(np.float64) * factors).astype(weight.dtype)
    return tensors


def _described(stream: Stream, tensors: dict[str, Tensor], rec: dict[str, Tensor]) -> dict[str, Any]:
    expected: dict[str, Any] = {"arrays": stream.path.with_suffix(".npz").name}
    known = {name: digest(values) for name, values in rec.items()}
    expected["tensors"] = [_facts(name, values, known) for name, values in tensors.items()]
    if {entry["name"]: entry["sha256"] for entry in expected["tensors"]} != known:
        expected["raw"] = [_facts(name, values, known) for name, values in rec.items()]
    data = stream.data
    if stream in LEVELS:
        expected["levels"] = list(_levels(stream))
    return {
        "stream": {"file": stream.path.name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)},
        "units": [list(unit) for unit in units(data)],
        "expected": expected,
    }


def _levels(stream: Stream) -> Iterator[dict[str, Any]]:
    """Yield the entry of each QuantParam in coding order; the names are from the headers."""
    levels = stream.levels
    for unit in nnr.units(stream.data):
        header = unit.header.detail
        if not isinstance(header, NnrCompressedDataUnitHeader) or (
            header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT
        ):
            continue
        names = header.topology_elem_id_list or [header.topology_elem_id]
        if header.nnr_compressed_data_unit_payload_type == NNR_PT_BLOCK:
            absent = {
                role for bit, roles in ABSENT.items() if not header.compressed_parameter_types & bit for role in roles
            }
            absent |= {"weight"} if header.compressed_parameter_types & DC else set()
            ids = dict(zip((role for role in LISTED if role not in absent), names, strict=True))
            names = [ids[role] for role in CODED if role in ids]
        for name in names:
            values = levels.pop(name).astype(np.int32)
            yield {"unit": unit.index, "shape": values.shape, "sha256": digest(values)}
    if levels:
        raise ValueError(f"{stream.id}: no unit of {', '.join(levels)}")


def _facts(name: str, values: Tensor, known: dict[str, str]) -> dict[str, Any]:
    sha256 = digest(values)
    facts = {"name": name, "dtype": values.dtype.name, "shape": values.shape, "sha256": sha256}
    return {**facts, "npz": name} if sha256 == known[name] else facts
