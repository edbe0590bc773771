"""Target: NNEF 2 (SkriptND), as texts and a tensor file in a folder."""

from __future__ import annotations

from collections.abc import Iterable

from nnr_codec.formats.skriptnd.parser import parse
from nnr_codec.formats.skriptnd.validate import validate

from ...formats.test_skriptnd import OPEN, files
from ...formats.test_skriptnd_text import LONG, MALFORMED, TREE, operator
from .support import folder, harmless, joined, parted, read


def target(data: bytes) -> None:
    """Read and check a folder and its main text alone, and parse both texts."""
    main, module, tensor = parted(data, 3)
    with folder({"main.sknd": main, "sub/own.sknd": module, "main.Net.w.dat": tensor}) as path:
        read(path, "skriptnd")
        read(path)
        with harmless():
            validate(path)
    read(main)
    with harmless():
        parse(module, "sub/own.sknd", is_main=False)


def seeds() -> Iterable[bytes]:
    """Return models, modules and malformed texts."""
    found = files()
    yield joined(found["main.sknd"], found["own.sknd"], found["main.Net.w.dat"])
    yield joined(OPEN, b"", found["sub/main.Net.b.dat"])
    for text in (TREE, *(text for text, *_ in MALFORMED)):
        yield joined(text.encode(), b"", b"")
    for before, repeated, after in LONG.values():
        yield joined(OPEN, operator(before + 2 * repeated + after).encode(), b"")
