"""Tests of open(): it reads single tensors, repeatedly."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_CPT_DC, NNR_PT_INT, PayloadType
from nnr_codec.limits import Limits

from ..builder import Bitstream, ndu
from ..interop import BY_ID

START = Bitstream().str_().mps().data


def stream() -> bytes:
    made = Bitstream().str_().mps()
    for name in "abc":
        made.ndu(ndu(name, [10, 10], kind=NNR_PT_INT), np.full((10, 10), ord(name)))
    return made.data


def test_a_mapping() -> None:
    data = stream()
    with nnr.open(data) as file:
        assert list(file) == ["a", "b", "c"]
        assert len(file) == 3
        assert "b" in file
        assert "x" not in file
        assert (file["b"] == ord("b")).all()
        assert file.nbytes == len(data)
        info = file.info["c"]
        assert (info.name, info.shape, info.dtype, info.payload_type) == (
            "c",
            (10, 10),
            np.int32,
            PayloadType.NNR_PT_INT,
        )
        assert info.parameters == 100
        assert info.tools == ("int",)
        with pytest.raises(KeyError):
            file["x"]
    assert file.info["a"].nbytes > 0


@pytest.mark.parametrize("kind", ["path", "str", "file", "bytes"])
def test_sources(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.nnr"
    path.write_bytes(stream())
    source = {"path": path, "str": str(path), "file": io.BytesIO(stream()), "bytes": stream()}[kind]
    assert (nnr.open(source)["c"] == ord("c")).all()


def test_any_number_of_reads() -> None:
    """Limits bound the memory at one time, not the number of reads."""
    limits = Limits(max_total_bytes=3 * 400)
    with nnr.open(stream(), limits=limits) as file:
        for _ in range(10):
            for name in file:
                assert file[name].size == 100


def test_a_damaged_tensor_leaves_the_others_readable() -> None:
    data = bytearray(stream())
    units = list(nnr.units(bytes(data)))
    data[units[3].offset + units[3].size.nnr_unit_size - 1] ^= 0xFF
    file = nnr.open(bytes(data))
    assert (file["a"] == ord("a")).all()
    for _ in range(2):
        with pytest.raises(nnr.PayloadError, match="'b'"):
            file["b"]
    assert (file["c"] == ord("c")).all()


def test_a_bitstream_of_the_first_edition() -> None:
    """The first tensor that is read determines the reading of profile 0 (errata K1)."""
    names = list(nnr.decode(BY_ID["levels/nncodec1_def"].data))
    want = BY_ID["levels/nncodec1_def"].values
    for first in names:
        file = nnr.open(BY_ID["levels/nncodec1_def"].data)
        for name in [first, *names]:
            np.testing.assert_array_equal(file[name], want[name])


@pytest.mark.parametrize("scan_order", [0, 1])
@pytest.mark.parametrize("shift", [0, 1])
def test_rows(scan_order: int, shift: int) -> None:
    levels = np.random.default_rng(1).integers(-9, 10, (40, 6))
    header = ndu("w", [40, 6], scan_order=scan_order, first_tensor_dimension_shift=shift)
    with nnr.open(Bitstream().str_().mps().ndu(header, levels).data) as file:
        whole = file["w"]
        for start, stop in [(0, 40), (0, 1), (7, 9), (8, 16), (39, 40), (5, 5)]:
            np.testing.assert_array_equal(file.rows("w", start, stop), np.take(whole, range(start, stop), shift))
        for start, stop in [(-1, 3), (3, 2), (0, 41)]:
            with pytest.raises(IndexError, match="has no rows"):
                file.rows("w", start, stop)
        with pytest.raises(KeyError):
            file.rows("x", 0, 1)


def test_rows_of_tensors_that_share_a_unit() -> None:
    mapping = {
        "concatentation_axis_index": 1,
        "split_index": [2],
        "number_of_shifts": [0, 1],
        "shift_index": [[], [1]],
        "shift_value": [[], [1]],
    }
    stream = (
        Bitstream().str_().mps().ndu(ndu(["a", "b"], [3, 7], kind=NNR_PT_INT, **mapping), np.arange(21).reshape(3, 7))
    )
    with nnr.open(stream.data) as file:
        assert (file["a"].shape, file["b"].shape) == ((3, 2), (5, 3))
        for name in "ab":
            np.testing.assert_array_equal(file.rows(name, 1, 3), file[name][1:3])


def test_names() -> None:
    """Names may be any iterable; progress reports only them, whatever shares a unit with them."""
    mapping = {"concatentation_axis_index": 0, "split_index": [1], "number_of_shifts": [0, 0]}
    header = ndu(["x", "y"], [3, 7], kind=NNR_PT_INT, **mapping)
    told: list[str] = []
    with nnr.open(stream() + Bitstream().str_().mps().ndu(header, np.ones(21)).data[len(START) :]) as file:
        model = file.decode(lambda name, *_: told.append(name), names=(name for name in "cyc"))
        assert (list(model.tensors), told) == (["c", "y"], ["c", "y"])
        with pytest.raises(KeyError):
            file.decode(names=["z"])


def test_names_of_raw_tensors() -> None:
    """Both halves of a decomposed tensor are returned."""
    rank = {"compressed_parameter_types": NNR_CPT_DC, "decomposition_rank": 1, "g_number_of_rows": 2}
    made = Bitstream().str_().mps().ndu(ndu("w", [2, 3], **rank), [[1], [2]])
    data = made.ndu(ndu("w", [2, 3], **rank), [[1, 2, 3]]).raw(ndu("v", [1], kind=2), [1.0]).data
    with nnr.open(data) as file:
        assert list(file.decode(names=["w"], raw=True).tensors) == ["w", "w_H"]


def test_a_stream_that_does_not_block() -> None:
    """Temporary lack of data is not the end of the stream."""

    class Socket(io.RawIOBase):
        def read(self, size: int | None = -1, /) -> bytes | None:  # type: ignore[override]
            return None

    with pytest.raises(BlockingIOError, match="StreamDecoder"):
        nnr.open(Socket())  # type: ignore[arg-type]


@pytest.mark.medium
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", ["path", "unbuffered", "buffered"])
def test_children_of_a_fork_read_a_file_at_once(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    model = {f"w{k}": rng.integers(-99, 99, (40, 50), np.int32) for k in range(20)}
    path = tmp_path / "m.nnr"
    path.write_bytes(nnr.encode(model))
    with contextlib.ExitStack() as stack:
        opened = (
            path if kind == "path" else stack.enter_context(path.open("rb", buffering=0 if kind != "buffered" else -1))
        )
        file = nnr.open(opened)
        children = []
        for _ in range(4):
            child = os.fork()
            if not child:
                good = all(np.array_equal(file[name], model[name]) for _ in range(5) for name in model)
                os._exit(0 if good else 1)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_fork_does_not_move_the_position_of_a_file(tmp_path: Path) -> None:
    class Other(io.FileIO):
        """File whose reads differ from the reads of the operating system."""

    path = tmp_path / "m.nnr"
    path.write_bytes(nnr.encode({"w": np.ones((4, 4), np.int32)}))
    with Other(path) as opened:
        file = nnr.open(cast(BinaryIO, opened))
        assert file["w"].all()
        child = os.fork()
        if not child:
            try:
                file["w"]
            except OSError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
