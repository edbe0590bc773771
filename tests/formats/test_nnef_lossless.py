"""The project's NNEF models and tensor files through a lossless bitstream: the same files, byte for byte."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import nnr_codec as nnr
from nnr_codec.formats import FormatWarning
from nnr_codec.formats.nnef.tensorfile import read_header

from .support import SYNTHETIC, tree, write_folder

#: Tensor files that are neither malformed nor misprinted nor a vendor's.
FILES = sorted(
    path.stem for path in (SYNTHETIC / "dat").glob("*.dat") if not path.stem.startswith(("bad_", "literal_", "vendor_"))
)
GRAPHS = sorted(
    path.name
    for path in (SYNTHETIC / "graphs").iterdir()
    if path.name not in ("dtype_conflict", "missing_dat", "shape_conflict", "traversal")
)


def returned(folder: Path, tmp_path: Path) -> dict[str, bytes]:
    """Return the files of a model after encoding and decoding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        nnr.encode_file(folder, tmp_path / "m.nnr", exact=True)
    nnr.save(nnr.decode(tmp_path / "m.nnr"), tmp_path / "out.nnef")
    return tree(tmp_path / "out.nnef")


@pytest.mark.parametrize("name", FILES)
def test_tensor_files_of_every_type(name: str, tmp_path: Path) -> None:
    data = (SYNTHETIC / "dat" / f"{name}.dat").read_bytes()
    with open(SYNTHETIC / "dat" / f"{name}.dat", "rb") as file:
        header = read_header(file, len(data), name)
    graph = (
        "version 1.0;\ngraph g(x) -> (y)\n{\n    x = external<scalar>(shape = [1]);\n"
        f"    w = variable<{header.data_type}>(shape = {list(header.shape)}, label = 'w');\n    y = copy(x);\n}}\n"
    )
    files = {"graph.nnef": graph.encode(), "w.dat": data}
    assert returned(write_folder(tmp_path / "in.nnef", files), tmp_path) == files


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str, tmp_path: Path) -> None:
    out = returned(SYNTHETIC / "graphs" / name, tmp_path)
    files = tree(SYNTHETIC / "graphs" / name)
    assert out == {path: files[path] for path in out}
    assert {path for path in files if path.endswith((".dat", ".quant"))} == out.keys() - {"graph.nnef"}
