"""Encoding by several threads or processes gives the bytes and errors of one thread, in the same order."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.config import EncoderConfig
from nnr_codec.encoder import coded_unit as unit_module
from nnr_codec.encoder import preamble as preamble_module
from nnr_codec.encoder import unit_layout as layout_module
from nnr_codec.encoder.encode import encode_units
from nnr_codec.encoder.reduce import prepare
from nnr_codec.model import Array, Block, Model, Wiring
from nnr_codec.parallel import pool as pool_module

from ..decoder.test_parallel import Pickling, Sorted

RNG = np.random.default_rng(5)


def ways() -> Iterator[dict[str, Any]]:
    """Return arguments of encode."""
    yield {"jobs": 2}
    yield {"jobs": 5}
    with ThreadPoolExecutor(3) as pool:
        yield {"executor": pool}
    yield {"executor": Sorted()}
    yield {"executor": Pickling()}


def tensors() -> dict[str, Array]:
    """Return tensors of several types and sizes; a late one is the largest."""
    found: dict[str, Array] = {f"w{k}": RNG.normal(0, 0.1, (9 + k, 12)).astype("f4") for k in range(12)}
    found["half"] = RNG.normal(0, 0.1, (30, 20)).astype("f2")
    found["bias"] = RNG.normal(0, 0.1, 33).astype("f4")
    found["int"] = RNG.integers(-9, 9, (20, 30), "i4")
    found["wide"] = RNG.integers(-(1 << 40), 1 << 40, (20, 30), "i8")
    found["wide#bits"] = RNG.integers(-(1 << 40), 1 << 40, (20, 30), "i8")
    found["large"] = RNG.normal(0, 0.1, (70, 80)).astype("f4")
    found["last"] = np.zeros((), "f4")
    return found


def blocks() -> Model:
    """Return a block that is one unit, and one whose bias has a separate unit."""
    found: dict[str, Array] = {name: RNG.normal(0, 1, (6, 7)).astype("f4") for name in "ab"}
    found |= {"a.bias": RNG.random(6).astype("f4"), "c": RNG.random((3, 3)).astype("f4"), "b.bias": RNG.random(6)}
    return Model(found, blocks=[Block("a", bias="a.bias"), Block("b", bias="b.bias")])


@pytest.fixture(autouse=True)
def _every_tensor_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SMALL", 0)


@pytest.mark.medium
@pytest.mark.parametrize("options", [{}, {"exact": True}, {"indexed_references": True, "scan_order": 1}])
@pytest.mark.parametrize("model", [tensors, blocks])
def test_the_same_bytes(model: Any, options: dict[str, Any]) -> None:
    source = model()
    one = nnr.encode(source, **options)
    for way in ways():
        assert nnr.encode(source, **options, **way) == one


@pytest.mark.medium
def test_processes() -> None:
    source = tensors()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        assert nnr.encode(source, exact=True, executor=pool) == nnr.encode(source, exact=True)


@pytest.mark.medium
def test_the_record_is_shared_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The space that later tensors may use in it depends on earlier ones."""
    source = {f"w{k}": RNG.integers(0, 200, 5000).astype("f4") / 3 for k in range(8)}
    plenty = nnr.encode(source, exact=True)
    for room in (2000, 2500, 5000):
        for module in (layout_module, preamble_module):
            monkeypatch.setattr(module, "DEFAULT_LIMITS", nnr.Limits(max_side_info_bytes=room))
        one = nnr.encode(source, exact=True)
        assert one != plenty
        for way in ways():
            assert nnr.encode(source, exact=True, **way) == one


def test_bits_have_names_of_their_own() -> None:
    """If the bits of two tensors would have the same id, the second gets another one."""
    values = RNG.normal(0, 1, (2, 3000)).astype("f8")
    source = {"w": values[0], "w#": values[1], "w#bits": values[1, :3], "w##bits##": values[0, :3]}
    one = nnr.encode(source, exact=True)
    assert nnr.decode(one).tensors.keys() == source.keys()
    for way in ways():
        assert nnr.encode(source, exact=True, **way) == one


def test_the_first_error() -> None:
    """The first error is raised, whichever tensor fails first."""
    source = tensors()
    del source["half"]
    source["w3"], source["w9"] = source["int"].astype("i8") << 50, source["int"].astype("i8") << 50
    for way in ways():
        with pytest.raises(nnr.EncodeError, match="'w3'"):
            nnr.encode(source, side_info=False, **way)


def test_the_executor_survives_an_error() -> None:
    source = tensors()
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(nnr.EncodeError):
            nnr.encode(source, side_info=False, executor=pool)
        assert nnr.encode(source, executor=pool) == nnr.encode(source)


def test_progress_is_in_order_and_in_the_calling_thread(tmp_path: Path) -> None:
    source, told = tensors(), []

    def note(name: str, done: int, total: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        told.append((name, done, total))

    nnr.encode_file(source, tmp_path / "a.nnr", progress=note, jobs=4)
    assert told == [(name, k, len(source)) for k, name in enumerate(source, 1)]
    nnr.encode_file(source, tmp_path / "b.nnr")
    assert (tmp_path / "a.nnr").read_bytes() == (tmp_path / "b.nnr").read_bytes()


class Lazy(Mapping[str, Array]):
    """Tensors that are created on each access, which only one thread may make at a time."""

    def __init__(self, count: int, shape: tuple[int, int]) -> None:
        self.names = [f"w{k}" for k in range(count)]
        self.shape = shape
        self.reading = threading.Lock()
        self.read: list[str] = []

    def __getitem__(self, name: str) -> Array:
        assert self.reading.acquire(blocking=False)
        self.read.append(name)
        array = np.random.default_rng(self.names.index(name)).normal(0, 0.1, self.shape).astype("f4")
        self.reading.release()
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def test_tensors_are_read_one_at_a_time() -> None:
    lazy = Lazy(20, (50, 50))
    one = nnr.encode(lazy)
    assert len(lazy.read) == 40
    assert nnr.encode(lazy, jobs=4) == one


def test_work_does_not_run_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tensors that are large together, few are coded before the first result is used."""
    lazy = Lazy(40, (50, 50))
    monkeypatch.setattr(pool_module, "WINDOW", 30_000)
    sizes = [
        len(lazy.read) - 40
        for _ in encode_units(prepare(Model(lazy), EncoderConfig(), Wiring()), EncoderConfig(), jobs=2)
    ]
    assert sizes[:2] == [0, 0]  # NNR_STR, NNR_MPS
    assert all(read <= 5 + k for k, read in enumerate(sizes))


def test_nothing_goes_on_after_the_caller_stops() -> None:
    lazy, executor = Lazy(20, (50, 50)), Sorted()
    units = encode_units(prepare(Model(lazy), EncoderConfig(), Wiring()), EncoderConfig(), executor=executor)
    for _ in range(4):
        next(units)
    units.close()
    assert all(future.done() for future, _ in executor.waiting)
    before = threading.active_count()
    units = encode_units(prepare(Model(lazy), EncoderConfig(), Wiring()), EncoderConfig(), jobs=3)
    for _ in range(4):
        next(units)
    assert threading.active_count() > before
    units.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("jobs", [0, -1])
def test_no_workers(jobs: int) -> None:
    with pytest.raises(ValueError, match="jobs must be at least 1"):
        nnr.encode({"w": np.ones(3, "f4")}, jobs=jobs)


@pytest.mark.medium
def test_rows_of_blocks_of_a_large_tensor_are_coded_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"w": RNG.normal(0, 0.1, (600, 900)).astype("f4"), "small": RNG.normal(0, 0.1, (9, 12)).astype("f4")}
    alone = nnr.encode(found, scan_order=2)
    maps: list[int] = []
    mapping = unit_module.mapping

    def noted(jobs: int) -> Any:
        maps.append(jobs)
        return mapping(jobs)

    monkeypatch.setattr(unit_module, "mapping", noted)
    for way in ways():
        maps.clear()
        assert nnr.encode(found, scan_order=2, **way) == alone
        assert max(maps, default=2) > 1
