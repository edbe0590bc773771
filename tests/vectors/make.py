"""Writes all vectors: ``python -m tests.vectors.make [FOLDER]``; the folder is bitstream_vectors if none is given."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .case import GROUPS, Case, Content, Tensor, digest, little_endian, units
from .cases import CASES

ROOT = Path(__file__).resolve().parents[2] / "bitstream_vectors"

#: Tensors of up to this many finite values stand in case.json, others in expected.npz.
INLINE = 64


def files(case: Case) -> dict[str, bytes]:
    """The files of one case by name."""
    contents = case.contents()
    names = [*(f"input{k}.nnr" for k in range(len(contents) - 1)), "stream.nnr"]
    made: dict[str, bytes] = {}
    arrays: dict[str, Tensor] = {}
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
    """general_profile_idc of a whole start unit, else None."""
    found = units(data)
    return data[found[0][1] + found[0][2] - 1] if found and found[0][0] == "STR" else None


def _described(name: str, content: Content, arrays: dict[str, Tensor]) -> dict[str, Any]:
    data = content.data
    facts: dict[str, Any] = {
        "stream": _file(name, data),
        "units": [list(unit) for unit in units(data)],
    }
    if content.tensors is None and content.raw is not None:  # refused for the sake of an extension
        facts["expected"] = {"raw": _tensors(content.raw, arrays)}
    elif content.tensors is not None:
        expected: dict[str, Any] = {"tensors": _tensors(content.tensors, arrays)}
        known = {tensor["name"]: tensor["sha256"] for tensor in expected["tensors"]}
        if content.raw is not None and {name: digest(tensor) for name, tensor in content.raw.items()} != known:
            expected["raw"] = _tensors(content.raw, arrays, known.values())
        for key, text in (("topology", content.topology), ("quantization", content.quantization)):
            if text is not None:
                expected[key] = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
                if content.topology_format != "nnef":
                    expected[key]["format"] = content.topology_format
        facts["expected"] = expected
    return facts


def _tensors(
    tensors: Mapping[str, Tensor], arrays: dict[str, Tensor], known: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Facts about each tensor, with its values unless they are among the ``known`` digests."""
    listed = []
    for name, tensor in tensors.items():
        facts: dict[str, Any] = {
            "name": name,
            "dtype": tensor.dtype.name,
            "shape": tensor.shape,
            "sha256": digest(tensor),
        }
        if facts["sha256"] in known:
            pass
        elif tensor.size <= INLINE and _is_finite(tensor):
            facts["values"] = _plain(tensor.tolist())
        else:
            facts["npz"] = f"t{len(arrays)}"
            arrays[facts["npz"]] = tensor
        listed.append(facts)
    return listed


def _is_finite(tensor: Tensor) -> bool:
    with np.errstate(invalid="ignore"):  # as not-a-numbers of ml_dtypes are
        return bool(np.isfinite(tensor).all())


def _plain(values: Any) -> Any:
    """Whole numbers without a fraction, all but minus zero."""
    if isinstance(values, list):
        return [_plain(value) for value in values]
    whole = float(values).is_integer() and abs(values) < 1e9 and str(values) != "-0.0"
    return int(values) if whole else values


def _npz(arrays: Mapping[str, Tensor]) -> bytes:
    """As numpy.savez writes, and the same bytes everywhere."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, little_endian(tensor), version=(1, 0), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, member.getvalue())
    return buffer.getvalue()


def to_json(value: Any, level: int = 0) -> str:
    """Objects, and arrays of objects or texts, one entry a line down to the third level; the rest in one line."""
    nested = isinstance(value, dict) or (
        isinstance(value, (list, tuple)) and value and isinstance(value[0], (dict, str))
    )
    if not nested or not value or level > 2 or (level and _is_short(value)):
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    indent = "\n" + " " * (level + 1)
    if isinstance(value, dict):
        rows = [f"{json.dumps(key, ensure_ascii=False)}: {to_json(item, level + 1)}" for key, item in value.items()]
    else:
        rows = [to_json(item, level + 1) for item in value]
    left, right = "{}" if isinstance(value, dict) else "[]"
    end = "\n" + " " * level + right
    return left + indent + ("," + indent).join(rows) + end + ("\n" if not level else "")


def _is_short(value: Any) -> bool:
    return len(json.dumps(value, ensure_ascii=False)) < 200


def write(folder: Path) -> None:
    """Write all cases below ``folder``, and take away cases of these groups that are no more."""
    for group in GROUPS.values():
        shutil.rmtree(folder / group, ignore_errors=True)
    for case in CASES.values():
        target = folder / case.folder
        target.mkdir(parents=True)
        for name, data in files(case).items():
            (target / name).write_bytes(data)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
