"""Target: labels of NNEF as paths, which are distinct, reversible and below the model on every system."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nnr_codec import formats
from nnr_codec.errors import NnrError
from nnr_codec.formats.nnef.labels import label_path, label_paths, path_label, portable_path

from ...formats.support import nnef_model
from ...formats.test_labels import ATTACKS, escapes
from .support import folder, harmless

ARRAY = np.zeros(1, np.float32)


def target(data: bytes) -> None:
    """Convert labels, one in a line, and paths."""
    labels = data.decode("utf-8", "surrogateescape").split("\n")[:8]
    for label in labels:
        with harmless():
            plain = label_path(label)
            assert path_label(plain) == label.removeprefix("/")
            portable = portable_path(label)
            assert not escapes(portable), portable
            assert path_label(portable) == label.removeprefix("/")
        with harmless():
            assert label in (label_path(path_label(label)), portable_path(path_label(label)))
    with harmless():
        for portable in (False, True):
            paths = list(label_paths(labels, portable=portable).values())
            assert len({path.casefold() for path in paths}) == len({label.casefold() for label in labels})
    if any("'" in label or not label.isprintable() for label in labels):
        return
    with folder({}) as path, harmless():
        inside = path / "inside"
        inside.mkdir()
        try:
            formats.save(nnef_model(dict.fromkeys(labels, ARRAY)), inside / "m.nnef")
        except NnrError:
            assert not list(inside.iterdir())
            raise
        finally:
            assert list(path.iterdir()) == [inside]
        assert all(each.resolve().is_relative_to(inside) for each in path.rglob("*"))


def seeds() -> Iterable[bytes]:
    """Return attacks, and labels of models."""
    for label in ATTACKS:
        yield label.encode("utf-8", "surrogateescape")
    yield b"conv1/weight\nconv1/bias\nConv1/Weight\n/conv2"
    yield b"a\\b\naux/x\ncon\na.b.c\na%5Cb.dat"
