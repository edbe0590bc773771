"""T36: paths of the files of SkriptND models, which a bitstream tells."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats import skriptnd
from nnr_codec.limits import Limits
from nnr_codec.model import Model, Topology

from ..formats.support import dat, write_folder

MAIN = b"graph G { }"
W = np.ones(2, np.float32)


def save(folder: Path, names: tuple[str, ...] = (), **modules: str) -> None:
    metadata = {f"skriptnd:{path}": text for path, text in modules.items()}
    model = Model(dict.fromkeys(names, W), Topology("", MAIN), metadata=metadata)
    skriptnd.save(model, folder / "out" / "m.sknd", overwrite=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.mark.parametrize("path", ["x.sh", "/x.sknd", "aux.sknd", "a./x.sknd", "a\\x.sknd", "main.sknd", "Main.sknd"])
def test_t36_modules_that_are_none(path: str, folder: Path) -> None:
    with pytest.raises(FormatError, match="is not a valid path of a module"):
        save(folder, **{path: ""})
    assert os.listdir(folder / "out") == []


@pytest.mark.parametrize(
    "path",
    [
        *("../x.sknd", "../../x.sknd", "a/../../x.sknd", "..\\x.sknd", "a/..\\..\\x.sknd", "//x.sknd", "a//x.sknd"),
        *("./x.sknd", "a/.../x.sknd", "C:x.sknd", "C:\\x.sknd", "\\\\srv\\x.sknd", "a:b.sknd", "a\0.sknd", "a\n.sknd"),
        *(" .sknd", "%2e%2e/x.sknd", "caf\xe9.sknd", "\N{FULLWIDTH FULL STOP}/x.sknd", "con/x.sknd", "a/nul.sknd"),
        "a" * 256 + ".sknd",
    ],
    ids=ascii,
)
def test_t36_ways_out(path: str, folder: Path) -> None:
    with pytest.raises(FormatError):
        save(folder, **{path: ""})
    assert os.listdir(folder) == ["out"]
    assert os.listdir(folder / "out") == []


@pytest.mark.parametrize("name", ["../x", "a/../../x", "..\\x", "/../x", "//x", "C:x", "a\0", "a/..", ".", "\udc80"])
def test_t36_names_of_tensors(name: str, folder: Path) -> None:
    with pytest.raises(FormatError, match="label"):
        save(folder, (name,))
    assert os.listdir(folder) == ["out"]


@pytest.mark.parametrize(
    ("name", "module"),
    [("a", "a.dat/x.sknd"), ("main.sknd/a", "x.sknd"), ("x.SKND/a", "x.sknd"), ("x.sknd./a", "x.sknd")],
)
def test_t36_a_folder_where_a_file_is(name: str, module: str, folder: Path) -> None:
    with pytest.raises(FormatError, match="contains a folder with a file extension"):
        save(folder, (name,), **{module: ""})


@pytest.mark.parametrize("text", ["\udc80", "\0"])
def test_t36_modules_that_are_no_text(text: str, folder: Path) -> None:
    with pytest.raises(FormatError, match=r"x\.sknd: byte 0 is"):
        save(folder, **{"x.sknd": text})


def test_t36_modules_that_no_decoder_takes(folder: Path) -> None:
    large = folder / "m" / "x.sknd"
    write_folder(folder / "m", {"main.sknd": MAIN, "x.sknd": b""})
    os.truncate(large, 1 << 40)
    with pytest.raises(LimitError, match="max_side_info_bytes"):
        formats.load(folder / "m", limits=Limits())


def test_t36_two_files_of_one_name(folder: Path) -> None:
    write_folder(folder / "m", {"main.sknd": MAIN, "aux.dat": dat(W), "%61ux.dat": dat(W)})
    with pytest.raises(FormatError, match="two tensor files have the same tensor name"):
        formats.load(folder / "m")
