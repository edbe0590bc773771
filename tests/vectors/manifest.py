"""bitstream_vectors/manifest.json: groups of the suite, and the digest of every file."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

FILE = "manifest.json"

#: Revision of the suite; increases with each release that changes, adds or removes a case.
REVISION = 1


def manifest(root: Path) -> bytes:
    """Return the text of the manifest of ``root``."""
    digests = {
        path.relative_to(root): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path != root / FILE
    }
    folders: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for path, sha256 in digests.items():
        group, *between = path.parts[:-1] or [""]
        folders[group]["/".join(between)][path.name] = sha256
    common = folders.pop("")
    groups = {group: {"counts": _counts(root / group), "files": files} for group, files in folders.items()}
    total = Counter[str]()
    for group in groups.values():
        total.update(group["counts"])
    return _text(
        {
            "suite": "nnr_codec",
            "revision": REVISION,
            "spec": "ISO/IEC 15938-17:2024",
            "license": "CC0-1.0",
            "sha256": _digest(digests),
            "counts": total,
            "files": common[""],
            "groups": groups,
        }
    )


def _digest(digests: dict[Path, str]) -> str:
    """Return the digest of the suite: SHA-256 of the ``sha256sum`` lines, sorted by path."""
    lines = sorted((path.as_posix(), sha256) for path, sha256 in digests.items())
    return hashlib.sha256("".join(f"{sha256}  {path}\n" for path, sha256 in lines).encode()).hexdigest()


def _counts(folder: Path) -> dict[str, int]:
    """Return the number of cases for each result."""
    results = Counter(json.loads(path.read_text("utf-8"))["result"] for path in folder.rglob("*case.json"))
    return {result: results[result] for result in ("valid", "invalid", "acceptable") if results[result]}


def _text(facts: dict[str, Any]) -> bytes:
    """Return JSON with one line for each folder of files."""
    lines = json.dumps(facts | {"groups": None}, indent=1).split("\n")
    del lines[-2:]
    groups = []
    for name, group in facts["groups"].items():
        files = ",\n".join(f"    {json.dumps(folder)}: {_short(listed)}" for folder, listed in group["files"].items())
        groups.append(f'  {json.dumps(name)}: {{"counts": {_short(group["counts"])}, "files": {{\n{files}\n  }}}}')
    lines += [' "groups": {', ",\n".join(groups), " }", "}", ""]
    return "\n".join(lines).encode()


def _short(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
