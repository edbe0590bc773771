"""Selection of the format of a file."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats import registry
from nnr_codec.limits import Limits
from nnr_codec.model import Model, Topology

from .support import Pipe, assert_same, minimal, nnef_model, regular, tar_bytes, write_folder

ROOT = Path(__file__).resolve().parents[2]
#: In the order of recognition by content.
NAMES = (
    *("skriptnd", "nnef", "safetensors", "keras", "tensorflow", "pytorch", "npz", "onnx", "npy", "gguf", "tflite"),
    *("openvino", "openvx"),
)
#: Packages that are imported only on use.
HEAVY = ("torch", "h5py", "tensorflow", "onnx", "onnxruntime", "openvino", "gguf", "safetensors", "ml_dtypes")


def test_formats() -> None:
    assert formats.names() == NAMES
    for name in formats.names():
        module = formats.get(name)
        assert name == module.NAME
        assert module.DESCRIPTION
        assert all("." in suffix and suffix == suffix.lower() for suffix in module.SUFFIXES)
        assert bool(module.READS) == isinstance(module, formats.Reading)
        assert bool(module.SUFFIXES) == isinstance(module, formats.Writing)
        assert isinstance(module, formats.Reading | formats.Writing)
        assert not hasattr(module, "TOPOLOGY") or isinstance(module, formats.GraphFormat)
        assert not getattr(module, "NEEDS_TOPOLOGY", False) or isinstance(module, formats.GraphFormat)
    with pytest.raises(FormatError, match=r"unknown model format 'pickle'; choose one of skriptnd, nnef, safetensors,"):
        formats.get("pickle")


def test_no_two_formats_have_the_same_ending() -> None:
    endings = [suffix for name in formats.names() for suffix in formats.get(name).SUFFIXES]
    assert len(set(endings)) == len(endings)


def test_required_packages_are_in_an_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in formats.names():
        module = formats.get(name)
        if needs := (*getattr(module, "NEEDS", ()), *getattr(module, "NEEDS_TO_WRITE", ())):
            assert set(needs) <= {re.split(r"[^\w-]", package)[0] for package in extras[getattr(module, "EXTRA", "")]}


def test_formats_that_only_read_or_write(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", w=np.zeros(3))
    with pytest.raises(FormatError, match="format 'openvx' can be written, but not read"):
        formats.load(tmp_path / "m.npz", format="openvx")


@pytest.mark.parametrize("name", [name for name in NAMES if getattr(formats.get(name), "NEEDS_TOPOLOGY", False)])
def test_what_cannot_be_written_without_a_topology(name: str, tmp_path: Path) -> None:
    """All formats raise the same error, and nothing is written."""
    for topology in (None, Topology("", b"of no known kind"), Topology("pytorch", b"another one")):
        with pytest.raises(FormatError, match=f"a model of {name} requires a graph of {name}; this one has none"):
            formats.save(Model({"w": np.zeros((2, 3))}, topology), tmp_path / "m", format=name)
    assert list(tmp_path.iterdir()) == []


def test_nothing_heavy_is_imported() -> None:
    """Neither the modules of all formats nor the recognition of files import large packages."""
    code = (
        "import sys, io, nnr_codec.formats as f\n"
        "for name in f.names(): f.get(name)\n"
        "first = sorted(set(sys.argv[1:]) & set(sys.modules))\n"
        "heads = b'', b'PK\\3\\4', b'\\x89HDF\\r\\n\\x1a\\n', b'GGUF', b'<?xml?>', b'\\x08\\x08:\\x02'\n"
        "for data in heads:\n"
        "    f.recognise(io.BytesIO(data))\n"
        "print(first, sorted(set(sys.argv[1:]) & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[] []"


def test_what_decides_stands_in_the_table() -> None:
    for name, place in registry._MODULES.items():
        module = formats.get(name)
        assert place.suffixes == module.SUFFIXES
        assert place.topology == getattr(module, "TOPOLOGY", None)


@pytest.mark.medium
def test_a_name_or_a_topology_imports_nothing_in_vain(tmp_path: Path) -> None:
    """Small models take little more time than the start of the interpreter."""
    digits = ROOT / "examples" / "digits" / "digits.nnef"
    nnr.encode_file(digits, tmp_path / "m.nnr")
    code = (
        "import sys, nnr_codec as nnr\n"
        "nnr.decode_file(sys.argv[1], sys.argv[2])\n"
        "print(*[name for name in nnr.formats.names() if f'nnr_codec.formats.{name}' in sys.modules])"
    )
    for target, expected in (("m.nnef", "nnef"), ("m.safetensors", "nnef safetensors")):
        command = [sys.executable, "-c", code, tmp_path / "m.nnr", tmp_path / target]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        assert result.stdout.strip() == expected


def test_modules_are_imported_when_needed() -> None:
    code = (
        "import sys, nnr_codec.formats as f\n"
        "late = ['tarfile', 'zipfile', 'nnr_codec.formats.nnef', 'nnr_codec.formats.npz']\n"
        "import numpy; before = [m for m in late if m in sys.modules]\n"
        "f.get('npz'); after = [m for m in late if m in sys.modules]\n"
        "print(before, after)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[] ['zipfile', 'nnr_codec.formats.npz']"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("m.nnef", "nnef"),
        ("m.NNEF.tgz", "nnef"),
        ("m.tar.gz", "nnef"),
        ("m.tar", "nnef"),
        ("x.y.npz", "npz"),
        ("m.safetensors", "safetensors"),
    ],
)
def test_suffix_decides_on_writing(name: str, expected: str, tmp_path: Path) -> None:
    assert expected == formats.by_suffix(name).NAME
    formats.save(nnef_model({"w": np.zeros(1)}) if expected == "nnef" else Model({}), tmp_path / name)
    module = formats.recognise(tmp_path / name)
    # An archive without members has no array that identifies it.
    assert module is None if expected == "npz" else module is formats.get(expected)


@pytest.mark.parametrize("name", ["m", "m.onnx.gz", "m.nnef.zip", "nnef"])
def test_unknown_suffix_is_an_error(name: str, tmp_path: Path) -> None:
    suffix = Path(name).suffix
    what = f"no writable format has the file extension '{suffix}' of '{name}'"
    what = what if suffix else f"'{name}' has no file extension"
    with pytest.raises(FormatError, match=f"^{what}; run nnr formats to list the extensions$"):
        formats.save(Model({}), tmp_path / name)
    formats.save(Model({}), tmp_path / name, format="npz")
    assert (tmp_path / name).read_bytes()[:2] == b"PK"


def test_invalid_models(tmp_path: Path) -> None:
    known = "not a model of a supported format, or a damaged file; run nnr formats to list supported formats"
    for name, data in (("empty", b""), ("text", b"hello"), ("zeros", bytes(2000))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError, match=f"{name}: {known}"):
            formats.load(tmp_path / name)
        with pytest.raises(FormatError, match="the stream: not a model"):
            formats.load(io.BytesIO(data))
        for format in formats.names():
            with pytest.raises(FormatError):
                formats.load(tmp_path / name, format=format)
    with pytest.raises(FormatError, match="the folder contains no model of a supported format"):
        formats.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        formats.load(tmp_path / "nowhere")


def test_streams(tmp_path: Path) -> None:
    tensors = {"a": np.arange(50_000, dtype=np.float32)}
    for model in (nnef_model(tensors), Model(tensors)):
        file = io.BytesIO()
        formats.save(model, file)
        data = file.getvalue()
        shifted = io.BytesIO(b"skipped" + data)
        shifted.seek(7)
        for source in (io.BytesIO(data), io.BufferedReader(Pipe(data)), cast(BinaryIO, Pipe(data)), shifted):
            result = formats.load(source)
            assert result.topology == model.topology
            source.close()
            assert_same(result.tensors, tensors)
        (tmp_path / "file").write_bytes(data)
        with open(tmp_path / "file", "rb", buffering=0) as raw, open(tmp_path / "file", "rb") as buffered:
            for opened in (cast(BinaryIO, raw), buffered):
                assert_same(formats.load(opened).tensors, tensors)


@pytest.mark.skipif(os.name != "posix", reason="named pipes")
def test_named_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    data = tar_bytes(regular(minimal()))
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(data,))
    writer.start()
    assert list(formats.load(tmp_path / "pipe")) == ["a/w"]
    writer.join()


def test_stream_is_limited() -> None:
    data = tar_bytes(regular(minimal()))
    with pytest.raises(LimitError, match="max_archive_bytes"):
        formats.load(io.BufferedReader(Pipe(data)), limits=Limits(max_archive_bytes=4096))


def test_errors_name_the_source(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m.nnef", {**minimal(), "a/w.dat": b""})
    with pytest.raises(FormatError, match=r"m\.nnef: a/w\.dat: the file has 0 bytes; the header"):
        formats.load(folder)
    with pytest.raises(LimitError, match=r"m\.nnef: .*max_topology_bytes"):
        formats.load(folder, limits=Limits(max_topology_bytes=1))


@pytest.mark.parametrize("model", [np.ones(3, "f4"), [np.ones(3, "f4")], 3])
def test_other_types_are_refused_by_name(model: Any) -> None:
    with pytest.raises(TypeError, match=f"got {type(model).__name__}$"):
        formats.as_model(model)
