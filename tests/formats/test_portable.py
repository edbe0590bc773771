"""Tensors of files that other processes read by themselves: a pickle has some hundred bytes and reads nothing."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tracemalloc
import zipfile
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from nnr_codec import formats
from nnr_codec.errors import FormatError
from nnr_codec.model import Array, Described, Model, Portable, nbytes_of, only_of

from .support import assert_same, dat, graph_text, regular, tar_bytes, write_folder

TENSORS: dict[str, Array] = {
    f"layer{k}": np.random.default_rng(k).normal(0, 1, (60, 50)).astype("f4") for k in range(20)
} | {"flags": np.array([[True, False]]), "bytes": np.full((3, 1), 7, "i4")}
FILES = {
    "graph.nnef": graph_text(TENSORS),
    **{f"{name}.dat": dat(array) for name, array in TENSORS.items()},
}
NAMES = ["m.safetensors", "m.npz", "packed.npz", "m.nnef", "m.tar"]


def made(folder: Path, name: str) -> Path:
    """Return a file, or a folder, with the tensors."""
    path = folder / name
    if name == "packed.npz":
        np.savez_compressed(path, **cast(dict[str, Any], TENSORS))
    elif name == "m.nnef":
        write_folder(path, FILES)
    elif name == "m.tar":
        path.write_bytes(tar_bytes(regular(FILES)))
    else:
        formats.save(Model(TENSORS), path)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_pickles_are_small(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    tensors = formats.load(name).tensors
    assert isinstance(tensors, Portable)
    assert isinstance(tensors, Described)
    assert_same({each: tensors[each] for each in TENSORS}, TENSORS)
    for wanted in (["layer3"], ["flags", "layer7", "layer3"], ["bytes"]):
        message = pickle.dumps(tensors.only(wanted))
        assert len(message) < 600 + 500 * len(wanted)
        with chdir("/"):
            found: Mapping[str, Array] = pickle.loads(message)
            assert_same(found, {each: TENSORS[each] for each in wanted})
            assert list(found) == wanted
            assert len(found) == len(wanted)
            assert "layer4" not in found
            again = pickle.loads(pickle.dumps(only_of(found, wanted[:1])))
            assert_same(again, {wanted[0]: TENSORS[wanted[0]]})
    for each, array in TENSORS.items():
        assert tensors.described(each) == (array.dtype, array.shape)
        assert nbytes_of(tensors, each) == array.nbytes


@pytest.mark.parametrize("name", NAMES)
def test_another_file_is_noticed(name: str, tmp_path: Path) -> None:
    """A file of other size or modification time is rejected; a copy with both, as on other machines, is accepted."""
    path = made(tmp_path, name)
    message = pickle.dumps(only_of(formats.load(path).tensors, ["layer3"]))
    copy = tmp_path / "copy"
    (shutil.copytree if path.is_dir() else shutil.copy2)(path, copy)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    copy.rename(path)
    assert_same(pickle.loads(message), {"layer3": TENSORS["layer3"]})
    file = path / "layer3.dat" if path.is_dir() else path
    os.utime(file, (1, 1))
    with pytest.raises(FormatError, match="has changed since"):
        pickle.loads(message)["layer3"]
    file.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        pickle.loads(message)["layer3"]
    assert str(caught.value.filename) == str(file)


def test_an_inflated_archive_stays_here(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "m.tgz").write_bytes(gzip.compress(tar_bytes(regular(FILES))))
    tensors = formats.load(tmp_path / "m.tgz").tensors
    found = pickle.loads(pickle.dumps(only_of(tensors, ["layer3"])))
    assert type(found) is dict
    assert_same(found, {"layer3": TENSORS["layer3"]})


def test_arrays_of_archives_are_read_on_access(tmp_path: Path) -> None:
    large = {f"w{k}": np.full((1 << 10, 1 << 10), k, "f4") for k in range(6)}
    for save in (np.savez, np.savez_compressed):
        cast(Any, save)(tmp_path / "m.npz", **large)
        tracemalloc.start()
        tensors = formats.load(tmp_path / "m.npz").tensors
        assert tracemalloc.get_traced_memory()[1] < large["w0"].nbytes / 2
        for name, array in tensors.items():
            assert array[0, 0] == large[name][0, 0]
            assert array.flags.writeable
            del array
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2.5 * large["w0"].nbytes
    one = formats.load(tmp_path / "m.npz")
    formats.save(one, tmp_path / "m.npz", overwrite=True)  # replaces the file that is read
    assert_same(formats.load(tmp_path / "m.npz").tensors, large)
    with pytest.raises(FormatError, match="changed since"):
        one["w0"]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_arrays_are_found_on_access(compression: int, tmp_path: Path) -> None:
    data = io.BytesIO()
    np.save(data, TENSORS["layer1"])
    with zipfile.ZipFile(tmp_path / "m.npz", "w", compression) as archive:
        archive.writestr("a.npy", data.getvalue())
    content = bytearray((tmp_path / "m.npz").read_bytes())
    content[len(content) // 2] ^= 0x55
    (tmp_path / "m.npz").write_bytes(content)
    tensors = formats.load(tmp_path / "m.npz").tensors
    with pytest.raises(FormatError, match=r"m\.npz: .*damaged.*'a\.npy'"):
        tensors["a"]
