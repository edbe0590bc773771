"""Check that a wheel holds the two packages of the source tree, and nothing else: wheel.py FOLDER ROOT."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path


def missing(wheel: Path, root: Path) -> list[str]:
    """What the wheel lacks of the packages below ``root``."""
    have = zipfile.ZipFile(wheel).namelist()
    want = {
        f"{package}/{path.relative_to(root / folder).as_posix()}"
        for package, folder in (("nnr_codec", "nnr_codec"), ("nnr_cli", "cli"))
        for path in (root / folder).rglob("*")
        if path.suffix in (".py", ".pyi", ".css", ".js", ".zip", ".toml") or path.name == "py.typed"
    }
    lacks = sorted(want - set(have))
    for module in ("kernel", "quantizer", "bits", "surgeon"):
        if not any(
            name.startswith(f"nnr_codec/cabac_ext/{module}.") and name.endswith((".so", ".pyd")) for name in have
        ):
            lacks.append(f"the compiled nnr_codec.cabac_ext.{module}")
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
    print(f"{wheel.name} is complete")
