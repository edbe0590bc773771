"""NNEF 2 (SkriptND): texts and a tensor file in a folder."""

from __future__ import annotations

from collections.abc import Iterable

from ...formats.test_skriptnd import files
from .support import folder, joined, parted, read


def target(data: bytes) -> None:
    """Read a folder, and its main text alone."""
    main, module, tensor = parted(data, 3)
    with folder({"main.sknd": main, "sub/own.sknd": module, "main.w.dat": tensor}) as path:
        read(path, "skriptnd")
        read(path)
    read(main)


def seeds() -> Iterable[bytes]:
    """A model."""
    found = files()
    yield joined(found["main.sknd"], found["own.sknd"], found["main.Net.w.dat"])
    yield joined(found["main.sknd"], b"", found["sub/main.Net.b.dat"])
