"""Writer of all vectors: ``python -m tests.vectors.make [FOLDER]``; the default folder is bitstream_vectors.

It also writes the core set in the package.
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import core, interop, manifest, schema
from .case import GROUPS, Case, Content, Tensor, coded_units, digest, little_endian, units
from .cases import CASES
from .jsontext import to_json

ROOT = Path(__file__).resolve().parents[2] / "bitstream_vectors"

#: Maximum number of values of a tensor in case.json, if all are finite; other tensors are in expected.npz.
INLINE = 64


def files(case: Case, *, values: bool = True) -> dict[str, bytes]:
    """Return the files of one case by name; without ``values``, tensors have only a digest."""
    contents = case.contents()
    names = [*(f"input{k}.nnr" for k in range(len(contents) - 1)), "stream.nnr"]
    made: dict[str, bytes] = {}
    arrays: dict[str, Tensor] | None = {} if values else None
    streams = []
    for name, content in zip(names, contents, strict=True):
        made[name] = content.data
        streams.append(_described(name, content, arrays))
    last = streams.pop()
    facts: dict[str, Any] = {
        "id": case.id,
        "rev": case.rev,
        "title": case.title,
        "origin": "nnr_codec",
        "license": "CC0-1.0",
        "spec": "ISO/IEC 15938-17:2024",
        "clauses": case.clauses,
        "profile_idc": _profile(contents[-1].data),
        "features": case.features,
        "result": case.result,
        "extension": case.extension,
        "limits": case.limits,
        "topology_dimensions": case.topology_dimensions,
        "topology": _file("topology.nnef", case.topology) if case.topology else None,
        "inputs": streams,
        **last,
    }
    if case.error:
        facts["error"] = {"class": case.error[0], "unit": case.error[1]}
    facts["requirements"] = case.requirements
    facts["bits"] = case.bits
    if case.topology:
        made["topology.nnef"] = case.topology
    if arrays:
        made["expected.npz"] = _npz(arrays)
    kept = {key: value for key, value in facts.items() if value not in ({}, [], (), None, "")}
    made["case.json"] = to_json(kept).encode()
    return made


def _file(name: str, data: bytes) -> dict[str, Any]:
    return {"file": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def _profile(data: bytes) -> int | None:
    """Return general_profile_idc of a complete start unit, else None."""
    found = units(data)
    return data[found[0][1] + found[0][2] - 1] if found and found[0][0] == "STR" else None


def _described(name: str, content: Content, arrays: dict[str, Tensor] | None) -> dict[str, Any]:
    data = content.data
    facts: dict[str, Any] = {
        "stream": _file(name, data),
        "units": [list(unit) for unit in units(data)],
    }
    expected: dict[str, Any] = {}
    if content.tensors is not None:
        expected["tensors"] = _tensors(content.tensors, arrays)
        known = {tensor["name"]: tensor["sha256"] for tensor in expected["tensors"]}
        if content.raw is not None and {name: digest(tensor) for name, tensor in content.raw.items()} != known:
            expected["raw"] = _tensors(content.raw, arrays, known.values())
    elif content.raw is not None:  # invalid only for decoders that support the extension
        expected["raw"] = _tensors(content.raw, arrays)
    for key, text in (("topology", content.topology), ("quantization", content.quantization)):
        if text is not None:
            expected[key] = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
            if content.topology_format != "nnef":
                expected[key]["format"] = content.topology_format
    if expected:
        facts["expected"] = expected | ({"levels": levels} if (levels := _levels(content)) else {})
    return facts


def _levels(content: Content) -> list[dict[str, Any]]:
    """Return the entry of each QuantParam; raise ValueError if a payload has none."""
    return [
        {"unit": unit, "shape": tensor.shape, "sha256": digest(tensor)}
        for unit, tensors in zip(coded_units(content.data), content.quant_params, strict=True)
        for tensor in tensors
    ]


def _tensors(
    tensors: Mapping[str, Tensor], arrays: dict[str, Tensor] | None, known: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the entry of each tensor, with its values unless its digest is in ``known``."""
    listed = []
    for name, tensor in tensors.items():
        facts: dict[str, Any] = {
            "name": name,
            "dtype": tensor.dtype.name,
            "shape": tensor.shape,
            "sha256": digest(tensor),
        }
        if arrays is None or facts["sha256"] in known:
            pass
        elif tensor.size <= INLINE and _is_finite(tensor):
            facts["values"] = _plain(tensor.tolist())
        else:
            facts["npz"] = f"t{len(arrays)}"
            arrays[facts["npz"]] = tensor
        listed.append(facts)
    return listed


def _is_finite(tensor: Tensor) -> bool:
    with np.errstate(invalid="ignore"):  # NaNs of ml_dtypes warn
        return bool(np.isfinite(tensor).all())


def _plain(values: Any) -> Any:
    """Convert whole numbers to int, except minus zero."""
    if isinstance(values, list):
        return [_plain(value) for value in values]
    whole = float(values).is_integer() and abs(values) < 1e9 and str(values) != "-0.0"
    return int(values) if whole else values


def _npz(arrays: Mapping[str, Tensor]) -> bytes:
    """Return a reproducible archive in the format of numpy.savez."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, little_endian(tensor), version=(1, 0), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, member.getvalue())
    return buffer.getvalue()


def write(folder: Path) -> None:
    """Write new and changed files, delete obsolete files of the groups, then write schema and manifest."""
    made = {folder / case.folder / name: data for case in CASES.values() for name, data in files(case).items()}
    for group in GROUPS.values():
        for path in sorted((folder / group).rglob("*"), reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            elif path.is_file() and path not in made:
                path.unlink()
    made[folder / schema.FILE] = to_json(schema.SCHEMA).encode()
    if folder == ROOT:
        made |= interop.case_files()
    for path, data in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)
    (folder / manifest.FILE).write_bytes(manifest.manifest(folder))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    core.FILE.write_bytes(core.archive(files))
