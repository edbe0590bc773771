"""Lazy reading of model files: the graph alone, members on access, and files that are not kept."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tempfile
import threading
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats.nnef import NnefTensors
from nnr_codec.formats.nnef.labels import portable_path
from nnr_codec.limits import Limits
from nnr_codec.model import Model

from .support import Pipe, assert_same, dat, graph_text, minimal, regular, tar_bytes, write_folder

TEXT = graph_text({"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.float32)})
LARGE = {name: np.full((1 << 10, 1 << 10), value, np.float32) for name, value in (("a", 1), ("b", 2), ("c", 3))}


def large_files() -> dict[str, bytes]:
    """Return a model of three tensors of 4 MB."""
    return {"graph.nnef": graph_text(LARGE), **{f"{name}.dat": dat(array) for name, array in LARGE.items()}}


# ------------------------------------------------------------------------------------------------ the graph alone
@pytest.mark.parametrize(
    "start", [b"", b"\n\t \r\f\v", b"# a comment\n\n#another\n", b"#" + b"version 1.0;" * 99 + b"\n"]
)
@pytest.mark.parametrize("kind", ["path", "bytes", "file", "pipe"])
def test_a_text_is_a_model_without_tensors(start: bytes, kind: str, tmp_path: Path) -> None:
    data = start + TEXT
    (tmp_path / "net.txt").write_bytes(data)
    sources = {
        "path": lambda: tmp_path / "net.txt",
        "bytes": lambda: data,
        "file": lambda: io.BytesIO(data),
        "pipe": lambda: io.BufferedReader(Pipe(data)),
    }
    model = formats.load(sources[kind]())
    assert model.topology == nnr.Topology("nnef", data)
    assert not model.tensors
    assert model.format == "nnef"


def test_graph_nnef_stands_for_its_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {**minimal(), "graph.quant": b"# none\n"})
    model = formats.load(folder / "graph.nnef")
    assert model.topology == formats.load(folder).topology
    assert_same(model.tensors, formats.load(folder).tensors)
    write_folder(folder, {"other.dat": b""})
    with pytest.warns(formats.FormatWarning, match=r"left out: 'other\.dat'$"):
        formats.load(folder / "graph.nnef")


@pytest.mark.parametrize("label", [".a/w", "a/.w", ".a/aux"])
def test_tensor_files_behind_a_dot(label: str, tmp_path: Path) -> None:
    """A hidden file may be a variable, not a foreign file."""
    weight = np.array([[1.5, -2.0]], np.float32)
    for path in (f"{label}.dat", portable_path(label)):
        folder = write_folder(tmp_path / path, {"graph.nnef": graph_text({label: weight}), path: dat(weight)})
        assert not nnr.verify_model(folder).violations
        for source in (folder, folder / "graph.nnef"):
            assert_same(formats.load(source).tensors, {label: weight})


def test_graph_nnef_without_any_tensor_file_is_the_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {"graph.nnef": TEXT, "graph.quant": b"# none\n", "README": b""})
    model = formats.load(folder / "graph.nnef")
    assert model.topology == nnr.Topology("nnef", TEXT, b"# none\n")
    assert not model.tensors
    with pytest.raises(FormatError, match=r"a\.dat is missing"):
        formats.load(folder)
    write_folder(folder, {"b.dat": dat(np.zeros(4, np.float32))})
    with pytest.raises(FormatError, match=r"a\.dat is missing"):
        formats.load(folder / "graph.nnef")


@pytest.mark.parametrize(
    "data", [b"versions 1.0;", b"graph g", b"#version 1.0;", b"//\nversion 1.0;", b"", b"\xff\xfeversion 1.0;"]
)
def test_invalid_texts_of_graphs(data: bytes) -> None:
    with pytest.raises(FormatError, match="not a model of a supported format"):
        formats.load(data)


def test_errors_of_texts() -> None:
    with pytest.raises(FormatError, match=r"graph\.nnef: the text begins with a byte order mark"):
        formats.load(b"\xef\xbb\xbf" + TEXT)
    with pytest.raises(FormatError, match="is not UTF-8"):
        formats.load(TEXT + b"#\xff")
    with pytest.raises(FormatError, match="is NUL"):
        formats.load(TEXT + b"#\0")
    with pytest.raises(FormatError, match=r"graph\.nnef:1:"):
        formats.load(b"version 1.0 graph")
    with pytest.raises(LimitError, match="max_topology_bytes"):
        formats.load(TEXT, limits=Limits(max_topology_bytes=len(TEXT) - 1))
    assert formats.load(TEXT, limits=Limits(max_topology_bytes=len(TEXT))).topology


def test_a_text_is_read_when_it_is_small_enough(tmp_path: Path) -> None:
    path = tmp_path / "net.txt"
    path.write_bytes(TEXT)
    os.truncate(path, 1 << 40)  # a sparse file
    with pytest.raises(LimitError, match="max_topology_bytes"):
        formats.load(path)


def test_a_graph_without_its_tensors_is_not_encoded() -> None:
    model = formats.load(TEXT)
    for call in (nnr.encode, nnr.estimate):
        with pytest.raises(FormatError, match=r"only a graph; give the folder or archive .* \(2 missing\)"):
            call(model)
    with pytest.raises(FormatError, match="only a graph"):
        nnr.encode(io.BytesIO(TEXT))
    no_variables = graph_text({})
    assert nnr.decode(nnr.encode(no_variables)).topology == nnr.Topology("nnef", no_variables)


# ------------------------------------------------------------------------------------------------ on access
@pytest.mark.parametrize("name", ["m", "m.tar", "m.tgz", "stream of m.tar", "stream of m.tgz", "pipe of m.tgz"])
def test_every_container_is_read_on_access(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    write_folder(tmp_path / "m", large_files())
    data = tar_bytes(regular(large_files()))
    (tmp_path / "m.tar").write_bytes(data)
    (tmp_path / "m.tgz").write_bytes(gzip.compress(data, 1))
    del data
    kind, _, file = name.rpartition(" of ")
    opened = open(tmp_path / file, "rb") if kind == "stream" else None  # noqa: SIM115
    pipe = Pipe((tmp_path / file).read_bytes()) if kind == "pipe" else None
    source = opened or (io.BufferedReader(pipe) if pipe else tmp_path / file)
    tracemalloc.start()
    try:
        model = formats.load(source)
        if opened:
            opened.close()
        assert isinstance(model.tensors, NnefTensors)
        for label in model:
            assert np.array_equal(model[label], LARGE[label])
        assert tracemalloc.get_traced_memory()[1] < 2 * LARGE["a"].nbytes
        tracemalloc.reset_peak()
        del model
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert not os.listdir(tmp_path / "temporary")  # which have no names


@pytest.mark.parametrize("form", ["m.tar", "m.tgz"])
def test_several_threads_may_read(form: str, tmp_path: Path) -> None:
    tensors = {f"w{k}": np.full(3000, k, np.float32) for k in range(8)}
    files = {"graph.nnef": graph_text(tensors), **{f"{name}.dat": dat(array) for name, array in tensors.items()}}
    data = tar_bytes(regular(files))
    (tmp_path / form).write_bytes(gzip.compress(data) if form == "m.tgz" else data)
    model, wrong = formats.load(tmp_path / form), []

    def read(first: int) -> None:
        for k in range(300):
            name = f"w{(first + k) % 8}"
            if model[name].tobytes() != tensors[name].tobytes():
                wrong.append(name)

    threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


@pytest.mark.parametrize("kind", ["rewritten", "replaced"])
def test_archives_that_change_are_not_read(kind: str, tmp_path: Path) -> None:
    """The tensors are exchanged, and all headers stay at their offsets."""
    files = {"graph.nnef": graph_text({k: np.zeros(4, np.float32) for k in "ab"})}
    one, other = dat(np.ones(4, np.float32)), dat(np.zeros(4, np.float32))
    path = tmp_path / "m.tar"
    path.write_bytes(tar_bytes(regular({**files, "a.dat": one, "b.dat": other})))
    os.utime(path, ns=(0, 0))
    model = formats.load(path)
    if kind == "replaced":
        path.unlink()
    path.write_bytes(tar_bytes(regular({**files, "b.dat": other, "a.dat": one})))
    with pytest.raises(FormatError, match="the archive has changed since it was opened"):
        model["a"]


def test_inflated_data_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "m.tgz"
    path.write_bytes(gzip.compress(tar_bytes(regular(large_files()))))
    written = 0

    class Counting(io.BytesIO):
        def write(self, data: Any) -> int:
            nonlocal written
            written += len(data)
            return super().write(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "SpooledTemporaryFile", lambda *_: Counting())
        with pytest.raises(LimitError, match="max_archive_bytes"):
            formats.load(path, limits=Limits(max_archive_bytes=3 << 20))
    assert written <= 3 << 20


# ------------------------------------------------------------------------------------------------ strict
STRANGERS = {"a/w.dat.0": b"x", "vendor/info.txt": b"x", "nnet2/graph.nnef": TEXT, "inner.nnef.tar": b"", "b.dat": b""}


@pytest.mark.parametrize("form", ["folder", "graph.nnef", "tar", "tgz", "stream"])
def test_files_that_nothing_carries(form: str, tmp_path: Path) -> None:
    def loader(files: dict[str, bytes]) -> Callable[[bool], Model]:
        data = tar_bytes(regular(files))
        folder = write_folder(tmp_path / f"{len(files)}", files)
        (tmp_path / "file").write_bytes(gzip.compress(data) if form == "tgz" else data)
        source = {"folder": folder, "graph.nnef": folder / "graph.nnef"}.get(form, tmp_path / "file")
        return lambda strict: formats.load(io.BytesIO(data) if form == "stream" else source, strict=strict)

    load = loader({**minimal(), **STRANGERS, ".git/x": b"", "a/._w.dat": b""})
    listed = ", ".join(map(repr, sorted(STRANGERS)))
    with pytest.warns(formats.FormatWarning, match=f"left out: {listed}$") as caught:
        loose = load(False)
    assert [len(caught), list(loose)] == [1, ["a/w"]]
    with pytest.raises(FormatError, match=f"files do not belong to the model and would be lost: {listed}$"):
        load(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(loader({**minimal(), ".DS_Store": b""})(True)) == ["a/w"]


def test_many_strangers_are_counted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {**minimal(), **{f"x{k:02}": b"" for k in range(30)}})
    with pytest.raises(FormatError, match=r"'x07' and 22 more$"):
        formats.load(folder, strict=True)


def test_strict_archives_of_arrays(tmp_path: Path) -> None:
    import zipfile

    np.savez(tmp_path / "m.npz", a=np.zeros(2))
    assert list(formats.load(tmp_path / "m.npz", strict=True)) == ["a"]
    with zipfile.ZipFile(tmp_path / "m.npz", "a") as archive:
        archive.writestr("notes.txt", "x")
    with pytest.raises(FormatError, match=r"members that are not arrays would be lost: 'notes\.txt'"):
        formats.load(tmp_path / "m.npz", strict=True)


def test_a_topology_is_read_without_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "graph.nnef").write_bytes(TEXT)
    (tmp_path / "graph.quant").write_bytes(b'"v": linear_quantize(min = 0.0, max = 1.0, bits = 8);\n')
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "w.dat").write_bytes(b"damaged")
    for k in range(30):
        (tmp_path / f"{k}").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source in (tmp_path, tmp_path / "graph.nnef"):
            topology = formats.topology_of(source, limits=Limits(max_names=20))
            assert topology is not None
            assert topology.quantization == (tmp_path / "graph.quant").read_bytes()
    (tmp_path / "graph.quant").write_bytes(b'"v": linear_quantize(')
    with pytest.raises(FormatError, match=r"graph\.nnef: graph\.quant:1"):
        formats.topology_of(tmp_path / "graph.nnef")
