"""T35 and T36: texts of SkriptND models, and paths of their files, which a bitstream contains."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats import skriptnd
from nnr_codec.formats.nnef import lexer
from nnr_codec.limits import Limits
from nnr_codec.model import Model, Topology

from ..formats.support import dat, write_folder
from .support import memory

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


def load(folder: Path, extent: str) -> None:
    text = f"graph G {{ @variable {{ w: real[{extent}]; }} }}"
    formats.load(write_folder(folder / "m", {"main.sknd": text.encode(), "w.dat": dat(W)}))


@pytest.mark.parametrize("text", ["(", "[", "- ", "x[", "1 ? ", "'{", "int(", "a ?? "])
def test_t35_depth(text: str, folder: Path) -> None:
    with pytest.raises(FormatError, match=r"main\.sknd:1:\d+: (nested deeper than 100|the '\{' in the string has no)"):
        load(folder, 100_000 * text + "1")


@pytest.mark.parametrize("text", ["y = { ", "y = while { ", "y = if x then { "])
def test_t35_blocks(text: str, folder: Path) -> None:
    main = f"graph G {{ @compose {{ {100_000 * text}"
    with pytest.raises(FormatError, match=r"main\.sknd:1:\d+: (nested deeper than 100|expected a name)"):
        formats.load(write_folder(folder / "m", {"main.sknd": main.encode()}))


def test_t35_many_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexer, "MAX_TOKENS", 10_000)
    with memory() as used, pytest.raises(FormatError, match="more than 10,000 tokens"):
        load(folder, f"[{200_000 * '1,'}1]")
    assert used.peak < 8 << 20


@pytest.mark.parametrize(
    ("extent", "message"),
    [
        (100_000 * "9", "more than 4000 digits"),
        ("2 ** 2 ** 100000000", "exceeds 64 bits"),
        ("1000000000000 * 1000000000000", "exceeds 64 bits"),
        ("1 / 0", "division by zero"),
        ("1 ..(1000000000000)", "length from 0 to 8"),
        (", ".join(100_000 * "1"), "more than 8 extents"),
    ],
)
def test_t35_large_shapes(extent: str, message: str, folder: Path) -> None:
    with memory() as used, pytest.raises(FormatError, match=message):
        load(folder, extent)
    assert used.peak < 64 << 20


def test_t35_memory_of_modules_is_released(folder: Path) -> None:
    """The tree of a module takes much more memory than its text."""
    module = b"operator F { @using { a = [" + 50_000 * b"1," + b"1]; } }"
    with memory() as used:
        formats.load(write_folder(folder / "m", {"main.sknd": MAIN, **{f"m{k}.sknd": module for k in range(8)}}))
    assert used.peak < 16 << 20


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
