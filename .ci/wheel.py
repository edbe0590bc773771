"""Checks that a wheel holds all that the source tree has: wheel.py WHEEL ROOT."""

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


if __name__ == "__main__":
    (wheel,) = Path(sys.argv[1]).glob("*.whl")
    if lacks := missing(wheel, Path(sys.argv[2])):
        sys.exit(f"{wheel.name} lacks {', '.join(lacks)}")
    print(f"{wheel.name} is complete")
