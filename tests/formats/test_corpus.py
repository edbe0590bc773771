"""Public models and tensor files, and the project's: all accepted files are restored byte for byte."""

from __future__ import annotations

import tarfile
import warnings
from pathlib import Path

import pytest

import nnr_codec as nnr
from nnr_codec.errors import FormatError
from nnr_codec.formats import FormatWarning
from nnr_codec.formats.nnef.graph import parse_graph
from nnr_codec.formats.nnef.tensorfile import read_header

from ..shared import SHARED, needs_shared
from .support import tree, write_folder

pytestmark = needs_shared

_ROOT = SHARED or Path()
_OURS, _TRACT = "nnef_corpus/synthetic", "nnef_corpus/sonos_tract/harness/nnef-test-cases"
_KHRONOS = "nnef_corpus/khronos_nnef_tools"


def found(*patterns: str) -> list[str]:
    """Return paths below the shared folder."""
    return sorted(path.relative_to(_ROOT).as_posix() for pattern in patterns for path in _ROOT.glob(pattern))


_MODELS = [
    *(path.removesuffix("/graph.nnef") for path in found("nnef_corpus/**/graph.nnef", "models/*/graph.nnef")),
    *found("nnef_corpus/**/*.tgz", "nnef_corpus/**/*.tar"),
]
_TENSOR_FILES = found("nnef_corpus/**/*.dat", "models/*.sknd/*.dat")
_SLOW = ("models/resnet56_cifar10.nnef", "models/squeezenet1_0_deepcompression.nnef")

#: The rejected models, with reasons.
_NO_MODELS = {
    f"{_OURS}/graphs/dtype_conflict": r"w\.dat contains float32, which is scalar data; graph\.nnef:5 says integer",
    f"{_OURS}/graphs/missing_dat": r"w\.dat is missing",
    f"{_OURS}/graphs/shape_conflict": r"w\.dat has shape \(1, 2\); graph\.nnef:5 says \(2, 1\)",
    f"{_OURS}/graphs/traversal": r"label '\.\./\.\./evil' has a component '\.\.'",
}
#: The rejected tensor files, with reasons.
_NO_TENSORS = {
    f"{_OURS}/dat/bad_bits_float24.dat": r"item type 0x0 \(float\) cannot have 24 bits",
    f"{_OURS}/dat/bad_header_only64.dat": "the file has 64 bytes; the header",
    f"{_OURS}/dat/bad_huge.dat": "the header declares 8 bytes of items",
    f"{_OURS}/dat/bad_len.dat": "the header declares 4 bytes of items",
    f"{_OURS}/dat/bad_magic.dat": "begins with 58 ef instead of 4e ef",
    f"{_OURS}/dat/bad_rank9.dat": "rank 9",
    f"{_OURS}/dat/bad_short.dat": "135 bytes; header and items require 136",
    f"{_OURS}/dat/bad_trailing.dat": "137 bytes; header and items require 136",
    f"{_OURS}/dat/bad_version.dat": r"version 2\.0",
    f"{_OURS}/dat/literal_0x0100.dat": r"item type 0x100 is a misprint in NNEF 1\.0\.3; use 4 \(signed integer\)",
}
#: Graphs without data, and their numbers of variables; the variables of compositional ones are in fragments that the
#: documents lack.
_GRAPHS = {
    **{
        f"{_KHRONOS}/nnef-pyproject/examples/{name}.txt": count
        for name, count in {"alexnet": 16, "googlenet": 116, "resnet": 159, "vgg": 38}.items()
    },
    **{
        f"{_KHRONOS}_final_v1.0/parser/cpp/examples/{name}_flat.txt": count
        for name, count in {"alexnet": 16, "googlenet": 116, "resnet": 159, "vgg19": 38}.items()
    },
    **{
        f"{_KHRONOS}_final_v1.0/parser/cpp/examples/{name}_comp.txt": 0
        for name in ("alexnet", "googlenet", "resnet", "vgg19")
    },
}
#: Documents that are not graphs: fragments alone, and another language.
_NO_GRAPHS = found("nnef_corpus/**/stdlib.nnef", "nnef_corpus/**/*.sknd", "models/**/*.sknd/*.sknd")


def test_the_corpus_is_the_one_that_was_counted() -> None:
    assert (len(_MODELS), len(_NO_MODELS)) == (64, 4)
    assert (len(_TENSOR_FILES), len(_NO_TENSORS)) == (68, 10)
    assert (len(_GRAPHS), len(_NO_GRAPHS)) == (12, 16)
    assert set(_NO_MODELS) < set(_MODELS)
    assert set(_NO_TENSORS) < set(_TENSOR_FILES)
    assert set(_GRAPHS) == set(found("nnef_corpus/khronos*/**/*.txt"))


def content(path: Path) -> dict[str, bytes]:
    """Return the files of a folder or archive."""
    if path.is_dir():
        return tree(path)
    with tarfile.open(path) as archive:
        return {
            info.name.removeprefix("./"): file.read()
            for info in archive
            if (file := archive.extractfile(info)) is not None
        }


def returned(path: Path, folder: Path) -> dict[str, bytes]:
    """Return the files of a model after lossless encoding and decoding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        data = nnr.encode(path, exact=True)
    out = folder / f"out{path.suffix if path.is_file() else '.nnef'}"
    nnr.save(nnr.decode(data), out)
    return content(out)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in _SLOW else ()) for name in _MODELS if name not in _NO_MODELS],
)
def test_models(name: str, tmp_path: Path) -> None:
    files = content(_ROOT / name)
    labels = [variable.label for variable in parse_graph(files["graph.nnef"]).variables]
    expected = {"graph.nnef", "graph.quant", *(f"{label.removeprefix('/')}.dat" for label in labels)} & set(files)
    assert returned(_ROOT / name, tmp_path) == {path: files[path] for path in expected}


@pytest.mark.parametrize("name", _NO_MODELS)
def test_models_that_are_refused(name: str) -> None:
    with pytest.raises(FormatError, match=_NO_MODELS[name]):
        nnr.load(_ROOT / name)


def wrapped(data: bytes, shape: tuple[int, ...] = (), data_type: str = "scalar") -> dict[str, bytes]:
    """Return a model of one tensor file."""
    graph = (
        "version 1.0;\ngraph g(x) -> (y)\n{\n    x = external<scalar>(shape = [1]);\n"
        f"    w = variable<{data_type}>(shape = {list(shape)}, label = 'w');\n    y = copy(x);\n}}\n"
    )
    return {"graph.nnef": graph.encode(), "w.dat": data}


@pytest.mark.parametrize("name", [name for name in _TENSOR_FILES if name not in _NO_TENSORS])
def test_tensor_files(name: str, tmp_path: Path) -> None:
    data = (_ROOT / name).read_bytes()
    with open(_ROOT / name, "rb") as file:
        header = read_header(file, len(data), name)
    files = wrapped(data, header.shape, header.data_type or "scalar")
    assert returned(write_folder(tmp_path / "in.nnef", files), tmp_path) == files


@pytest.mark.parametrize("name", _NO_TENSORS)
def test_tensor_files_that_are_refused(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in.nnef", wrapped((_ROOT / name).read_bytes()))
    with pytest.raises(FormatError, match=rf"in\.nnef: w\.dat: .*{_NO_TENSORS[name]}"):
        nnr.load(folder)


@pytest.mark.parametrize("name", _GRAPHS)
def test_graphs_without_data(name: str, tmp_path: Path) -> None:
    data = (_ROOT / name).read_bytes()
    assert len(parse_graph(data).variables) == _GRAPHS[name]
    folder = write_folder(tmp_path / "m.nnef", {"graph.nnef": data})
    if _GRAPHS[name]:
        with pytest.raises(FormatError, match=r"\.dat is missing"):
            nnr.load(folder)
    else:
        assert returned(folder, tmp_path) == {"graph.nnef": data}


@pytest.mark.parametrize("name", _NO_GRAPHS)
def test_documents_that_are_no_graphs(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        FormatError, match=r"graph\.nnef:\d+:1: expected 'version', found '(fragment|import|operator|graph)'"
    ):
        nnr.load(write_folder(tmp_path / "m.nnef", {"graph.nnef": (_ROOT / name).read_bytes()}))


def test_a_folder_of_another_language() -> None:
    folder = _ROOT / "models" / "digits_cnn.sknd"
    assert nnr.load(folder).format == "skriptnd"
    with pytest.raises(FormatError, match=r"graph\.nnef is missing"):
        nnr.load(folder, format="nnef")
