"""Support of tests with new cases, and the decoder that misbehaves."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nnr_codec as nnr
from nnr_codec.model import Array

DECODER = shlex.join([sys.executable, "-P", str(Path(__file__).with_name("decoder.py"))])


def command(mode: str) -> str:
    """Return the command line of the decoder."""
    return f"{DECODER} {mode} {{input}} {{outdir}} {{inputs}}"


def described(data: bytes, tensors: Mapping[str, Array] | None = None, file: str = "stream.nnr") -> dict[str, Any]:
    """Return the fields of a bitstream in a case file."""
    facts: dict[str, Any] = {"stream": {"file": file, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}}
    if tensors is not None:
        facts["expected"] = {
            "tensors": [
                {
                    "name": name,
                    "dtype": tensor.dtype.name,
                    "shape": tensor.shape,
                    "sha256": nnr.digest(tensor),
                    "values": tensor.tolist(),
                }
                for name, tensor in tensors.items()
            ]
        }
    return facts


def write_case(root: Path, id_: str, data: bytes, tensors: Mapping[str, Array] | None = None, **fields: Any) -> Path:
    """Write a case of group ``g``; it is valid if there are tensors."""
    folder = root / "g" / id_
    folder.mkdir(parents=True)
    (folder / "stream.nnr").write_bytes(data)
    result = "invalid" if tensors is None else "valid"
    facts = {"id": id_, "title": id_, "origin": "nnr_codec", "result": result, **described(data, tensors), **fields}
    path = folder / "case.json"
    path.write_text(json.dumps(facts), "utf-8")
    return path
