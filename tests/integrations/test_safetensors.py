"""nnr_codec.safetensors has the interface of the library safetensors."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import safetensors
from nnr_codec.decoder.index import NnrFile
from nnr_codec.safetensors import SafetensorError, safe_open
from nnr_codec.safetensors import numpy as ours

RNG = np.random.default_rng(5)
TENSORS: dict[str, Any] = {
    "w.weight": RNG.normal(0, 0.1, (40, 50)).astype("f4"),
    "b": RNG.normal(0, 0.1, 40),
    "half": RNG.normal(0, 1, (3, 4, 5)).astype("f2"),
    "brain": RNG.normal(0, 1, 7).astype(ml_dtypes.bfloat16),
    "ids": np.arange(6, dtype="i8").reshape(2, 3),
    "mask": np.array([True, False]),
    "scalar": np.array(3.5, "f4"),
    "empty": np.zeros((0, 4), "f4"),
}
METADATA = {"format": "pt", "é": "\u1234"}


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(
        (first[k].dtype, first[k].shape, first[k].tobytes()) == (second[k].dtype, second[k].shape, second[k].tobytes())
        for k in first
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a saved file."""
    ours.save_file(TENSORS, tmp_path / "model", METADATA)
    return tmp_path / "model"


def test_a_file_restores_every_bit_and_the_metadata(path: Path) -> None:
    assert same(ours.load_file(path), TENSORS)
    assert same(ours.load(path.read_bytes()), TENSORS)
    assert same(dict(nnr.decode(path).tensors), TENSORS)  # it is a bitstream
    assert ours.save(dict(reversed(TENSORS.items())), METADATA) == path.read_bytes()
    with safe_open(path, "np") as file:
        assert file.metadata() == METADATA
        assert file.keys() == sorted(TENSORS)


@pytest.mark.parametrize(
    ("options", "is_exact"),
    [
        ({}, True),
        ({"effort": 2}, True),
        ({"scan_order": 1}, True),
        ({"quality": 40}, False),
        ({"qp": -30}, False),
        ({"exact": False}, False),
        ({"preset": "small"}, False),
        ({"preset": "lossless"}, True),
        ({"reduce": "sparsify(ratio=0.5)"}, False),
    ],
)
def test_only_options_that_permit_errors_cause_them(options: dict[str, Any], is_exact: bool) -> None:
    assert same(ours.load(ours.save({"w": TENSORS["w.weight"]}, **options)), {"w": TENSORS["w.weight"]}) is is_exact


@pytest.mark.clients
def test_files_read_as_by_the_library(path: Path) -> None:
    library = pytest.importorskip("safetensors")
    importlib.import_module("safetensors.numpy").save_file(TENSORS, path.with_suffix(".st"), METADATA)

    def outcome(module: Any, file: Any, name: str, index: Any) -> Any:
        try:
            part = file.get_slice(name)[index]
        except module.SafetensorError as error:
            return str(error)
        return part.dtype, part.shape, part.tobytes()

    with library.safe_open(path.with_suffix(".st"), "np") as theirs, safe_open(path, "np") as file:
        assert file.keys() == theirs.keys()
        for name in file.keys():  # noqa: SIM118  # it is no mapping
            assert file.get_slice(name).get_shape() == theirs.get_slice(name).get_shape()
            assert file.get_slice(name).get_dtype() == theirs.get_slice(name).get_dtype()
        whole = slice(None)
        for index in (
            *(0, -1, 39, 40, -41, ..., (), [], [1], None, "x"),
            *(slice(3, 9), slice(3, 9, 2), slice(41), slice(8, None, -1), slice(60, 61)),
            *((0, 0), (0, 0, 0), (..., 3), (whole, 3), (whole, slice(2, 5)), (slice(5, 7), -1), (slice(2, None), 50)),
        ):
            assert outcome(safetensors, file, "w.weight", index) == outcome(library, theirs, "w.weight", index), index


@pytest.mark.parametrize("scan_order", [0, 1])
def test_repeated_slices_decode_a_tensor_at_most_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scan_order: int
) -> None:
    ours.save_file({"w": TENSORS["w.weight"]}, tmp_path / "a", quality=40, scan_order=scan_order)
    whole = ours.load_file(tmp_path / "a")["w"]
    decoded: list[str] = []
    decode = NnrFile.__getitem__
    monkeypatch.setattr(NnrFile, "__getitem__", lambda self, name: decoded.append(name) or decode(self, name))
    with safe_open(tmp_path / "a", "np") as file:
        part = file.get_slice("w")
        for index in (slice(8, 16), slice(9, 16, 3), 5, -1, (slice(30, None), 2)):
            found = part[index]
            assert np.array_equal(found, whole[index])
            found[...] = 0  # a copy
        assert len(decoded) == (0 if scan_order else 1)  # with a scan order, rows have entry points
        assert np.array_equal(part[:], whole)


def test_a_safetensors_file_is_rejected_with_the_next_step(tmp_path: Path) -> None:
    nnr.save(nnr.Model({"w": TENSORS["b"]}), tmp_path / "a.safetensors")
    for load in (
        lambda: ours.load_file(tmp_path / "a.safetensors"),
        lambda: ours.load((tmp_path / "a.safetensors").read_bytes()),
        lambda: safe_open(tmp_path / "a.safetensors", "np"),
    ):
        with pytest.raises(
            SafetensorError, match=r"^a model \(safetensors\), .*; load it with the library safetensors"
        ):
            load()


@pytest.mark.parametrize(
    ("tensors", "metadata", "options", "message"),
    [
        ({1: TENSORS["b"]}, {}, {}, "names and metadata must be str, got 1"),
        ({"a": [1.0]}, {}, {}, "tensor 'a' must be a numpy array, got list"),
        ([TENSORS["b"]], {}, {}, "expected a dict of arrays, got list"),
        ({"a": TENSORS["b"]}, {"epoch": 3}, {}, "names and metadata must be str, got 3"),
        ({"a": np.zeros(3, "c8")}, {}, {}, "tensor 'a' has type complex64, which is not supported"),
        (
            {"a": TENSORS["b"]},
            {},
            {"qality": 3},
            "save_file() got an unexpected option 'qality'; did you mean 'quality'?",
        ),
        ({"a": TENSORS["b"]}, {}, {"quality": 400}, "quality 400 is outside 0..100"),
    ],
)
def test_invalid_arguments_leave_no_file(
    tmp_path: Path, tensors: Any, metadata: Any, options: Any, message: str
) -> None:
    with pytest.raises((TypeError, nnr.EncodeError)) as found:
        ours.save_file(tensors, tmp_path / "a", metadata, **options)
    assert str(found.value) == message
    assert not list(tmp_path.iterdir())


def test_invalid_requests_raise_the_error_of_the_library(path: Path) -> None:
    for arguments, message in (
        ({"framework": "tf"}, "framework 'tf' is not supported; use 'np' or 'pt'"),
        ({"framework": "np", "device": "cuda"}, "device 'cuda' is not supported for numpy; use 'cpu'"),
        ({"framework": "np", "backend": "io"}, "backend 'io' is not supported; use 'mmap' or 'pread'"),
    ):
        with pytest.raises(SafetensorError) as found:
            safe_open(path, **arguments)
        assert str(found.value) == message
    with pytest.raises(FileNotFoundError):
        ours.load_file(path.with_name("absent"))
    with pytest.raises(nnr.BitstreamError):
        ours.load(path.read_bytes()[:-9])
    with pytest.raises(TypeError):
        ours.load("model")  # type: ignore[arg-type]  # a path
    with safe_open(path, "np") as file:
        for request in (file.get_tensor, file.get_slice):
            with pytest.raises(SafetensorError, match=r"^the file has no tensor 'x'$"):
                request("x")
    for late in (file.keys, file.metadata, file.get_tensors):
        with pytest.raises(SafetensorError, match=r"^the file is closed$"):
            late()


@pytest.mark.medium
def test_importing_the_modules_imports_no_framework() -> None:
    program = (
        "import sys, nnr_codec.safetensors.torch, nnr_codec.torch; print(*{'torch', 'safetensors'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
