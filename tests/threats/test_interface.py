"""T44 to T46: bytes after a bitstream, several threads, and exceptions of the library."""

from __future__ import annotations

import copy
import io
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import errors
from nnr_codec.constants import NNR_PT_INT
from nnr_codec.limits import Limits

from ..builder import codebook, ndu, update_ndu
from .support import good, refused, start

# ------------------------------------------------------------------------------------------------ T44: trailing bytes


def test_t44_a_second_bitstream() -> None:
    refused(good() + good("v"), nnr.ElementError, "second NNR_STR")
    assert list(nnr.decode(good() + good("v"), limits=Limits(allow_trailing=True))) == ["w"]


@pytest.mark.parametrize("tail", [b"PK\3\4", b"\x80\4K*.", b"\0\4\x1e", bytes([127]) * 1000])
def test_t44_bytes_after_the_last_unit(tail: bytes) -> None:
    """The bytes include zip archives and pickles."""
    refused(good() + tail, nnr.TruncatedError, "remain")


# ------------------------------------------------------------------------------------------------ T45: threads
class Slow(io.BytesIO):
    """File whose position is visible to other threads before it is read."""

    def read(self, size: int | None = -1) -> bytes:
        time.sleep(0.0002)
        return super().read(size)


TENSORS = {f"w{k}": np.random.default_rng(k).normal(size=(30, 20)).astype(np.float32) for k in range(8)}


@pytest.mark.parametrize("source", [bytes, Slow])
def test_t45_one_file_from_eight_threads(source: Callable[[bytes], bytes | Slow]) -> None:
    data = nnr.encode(TENSORS)
    expected = nnr.decode(data).tensors
    with nnr.open(source(data)) as file, ThreadPoolExecutor(8) as pool:
        names = 10 * list(file)
        for name, array in zip(names, pool.map(file.__getitem__, names), strict=True):
            np.testing.assert_array_equal(array, expected[name])


def test_t45_inputs_are_not_modified() -> None:
    tensors = {name: array.copy() for name, array in TENSORS.items()}
    data = bytearray(nnr.encode(tensors))
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], array)
    before = bytes(data)
    nnr.decode(data)
    nnr.open(data)["w0"][:] = 0
    assert bytes(data) == before


def test_t45_views_of_an_input_are_read_only() -> None:
    for unit in nnr.units(bytearray(good())):
        assert unit.data.readonly
        if isinstance(unit.payload, memoryview):
            assert unit.payload.readonly


def test_t45_results_are_not_kept() -> None:
    """The caller may change it."""
    results = []
    for spoil in (False, True):
        decoder = nnr.UpdateDecoder()
        for depth in (1, 2):
            stream = start()
            stream.units.pop()
            stream.mps(parent=1, pre=1)
            tensor = decoder.decode(stream.ndu(update_ndu("w", [4], depth), [1, -2, 3, 0]).data)["w"]
            results.append(tensor.tolist())
            if spoil:
                tensor[:] = 99
    assert results[:2] == results[2:]


# ------------------------------------------------------------------------------------------------ T46: exceptions
def every_error() -> list[type[nnr.NnrError]]:
    """Return all classes of errors.py."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, nnr.NnrError)]
    assert len(kinds) > 10
    return kinds


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_t46_errors_survive_pickling(kind: type[nnr.NnrError]) -> None:
    """Notes and fields are kept; otherwise a pool of processes would hang."""
    error = nnr.IncompleteError(12, ["a", "b"]) if kind is nnr.IncompleteError else kind("a message")
    if isinstance(error, nnr.BitstreamError):
        error.unit, error.path, error.bit = "unit 3 (NNR_NDU 'w')", "header.element", 17
    error.add_note("a note")
    ways = [lambda one, k=k: pickle.loads(pickle.dumps(one, k)) for k in range(pickle.HIGHEST_PROTOCOL + 1)]
    for way in (*ways, copy.copy, copy.deepcopy):
        again = way(error)
        assert type(again) is kind
        assert (str(again), vars(again)) == (str(error), vars(error))
        assert again.__notes__ == ["a note"]
        assert again.args == error.args


@pytest.mark.parametrize("jobs", [1, 2])
def test_errors_of_many_threads_are_the_first(jobs: int) -> None:
    """The caller gets the first error of the bitstream, with its class, for any number of threads."""
    data = good()
    broken = start().ndu(ndu("a", [2], kind=NNR_PT_INT), payload=b"").ndu(ndu("b", [2]), payload=b"").data
    with pytest.raises(nnr.PayloadError, match="'a'"):
        nnr.decode(broken, jobs=jobs)
    assert list(nnr.decode(data, jobs=jobs)) == ["w"]


@pytest.mark.parametrize("value", [1 << 64, -(1 << 4000), -1, float("nan"), 1e308], ids=range(5))
def test_numbers_of_any_size_from_callers(value: float) -> None:
    """An invalid number is reported as the caller's error, not as an OverflowError of an array or a struct."""
    for call in (
        lambda: nnr.encode({"w": np.ones((2, 3), np.float32)}, qp=value),
        lambda: nnr.encode({"w": np.ones((2, 3), np.float32)}, target_size=value),
        lambda: nnr.encode({"w": np.ones((2, 3), np.float32)}, max_unit_size=value),
        lambda: nnr.encode({"w": np.ones((2, 3), np.float32)}, max_error=value),
        lambda: nnr.encode({"w": np.ones((2, 3), np.float32)}, quality=value),
        lambda: nnr.encode({"w": np.ones((2, 3), np.float32)}, snr=value),
    ):
        try:
            call()
        except (ValueError, TypeError) as error:
            assert not isinstance(error, UnicodeError)


def test_t46_errors_of_every_kind_come_from_bitstreams() -> None:
    for data in (good()[:-1], good() + good(), start(2).data, start().ndu(ndu("w", [2]), payload=b"").data, b""):
        with pytest.raises(nnr.NnrError) as caught:
            nnr.decode(data)
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (type(copy), str(copy)) == (type(caught.value), str(caught.value))


def test_t46_memory_that_is_not_there() -> None:
    """The machine's limit applies if the caller has set none."""
    header = ndu("w", 3 * [1 << 18], codebook_present_flag=1, codebook=codebook([0], 0))
    data = start().ndu(header, payload=bytes(8)).data
    refused(data, nnr.LimitError, "not enough memory", limits=Limits.unlimited())


class TooLarge(Mapping[str, np.ndarray]):
    """Tensor that exceeds the memory."""

    def __getitem__(self, name: str) -> np.ndarray:
        raise MemoryError

    def __iter__(self) -> Iterator[str]:
        return iter(["w"])

    def __len__(self) -> int:
        return 1


def test_t46_a_tensor_that_is_larger_than_the_memory() -> None:
    with pytest.raises(nnr.LimitError, match="tensor 'w': not enough memory"):
        nnr.encode(nnr.Model(TooLarge()))


def test_t46_a_model_that_is_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("nnr_codec.formats.npz.load", no_memory)
    file = io.BytesIO()
    np.savez(file, w=np.ones(3))
    with pytest.raises(nnr.LimitError, match="the stream: not enough memory"):
        nnr.load(file.getvalue())


def test_t46_depth_is_not_recursion() -> None:
    """Python's stack is not a limit; see also T4. An unreadable topology is still stored."""
    nested = 100_000 * b"(" + b"1" + 100_000 * b")"
    text = b"version 1.0; graph g(x) -> (y) { y = variable(shape = [" + nested + b"], label = 'w'); }"
    model = nnr.decode(start().topology(text + b"\0").ndu(ndu("w", [1], kind=NNR_PT_INT), [1]).data)
    assert model.topology is not None
    assert model.topology.data == text
