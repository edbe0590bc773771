"""Check that a wheel holds the two packages of the source tree only, in less than 3 MB: wheel.py FOLDER ROOT."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

MAX_SIZE = 3_000_000  # bytes; 1,800,000 in 2026


def missing(wheel: Path, root: Path) -> list[str]:
    """Return the files of the packages below ``root`` that the wheel lacks."""
    have = zipfile.ZipFile(wheel).namelist()
    want = {
        f"{package}/{path.relative_to(root / folder).as_posix()}"
        for package, folder in (("nnr_codec", "nnr_codec"), ("nnr_cli", "cli"))
        for path in (root / folder).rglob("*")
        if path.suffix in (".py", ".pyi", ".css", ".js", ".zip", ".toml") or path.name == "py.typed"
    }
    lacks = sorted(want - set(have))
    for source in (root / "nnr_codec").rglob("*.pyx"):
        module = f"{source.relative_to(root).with_suffix('').as_posix()}."
        if not any(name.startswith(module) and name.endswith((".so", ".pyd")) for name in have):
            lacks.append(f"the compiled {module}")
    return lacks


def surplus(wheel: Path) -> set[str]:
    """Return the folders of a wheel that are not part of its packages, such as tools or tests."""
    folders = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    return {name for name in folders if not name.endswith(".dist-info")} - {"nnr_codec", "nnr_cli"}


if __name__ == "__main__":
    (wheel,) = Path(sys.argv[1]).glob("*.whl")
    if lacks := missing(wheel, Path(sys.argv[2])):
        sys.exit(f"{wheel.name} lacks {', '.join(lacks)}")
    if others := surplus(wheel):
        sys.exit(f"{wheel.name} has {', '.join(sorted(others))} as well")
    if (size := wheel.stat().st_size) > MAX_SIZE:
        sys.exit(f"{wheel.name} has {size:,} bytes, more than {MAX_SIZE:,}")
    print(f"{wheel.name} is complete, {size:,} bytes")
