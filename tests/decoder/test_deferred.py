"""Tests of deferred(): it returns the tensors of decode(), decoded on access, each unit once."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_INT
from nnr_codec.decoder import deferred as deferred_module
from nnr_codec.decoder.deferred import DeferredTensors
from nnr_codec.decoder.group import GroupDecoder
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Block, Model
from nnr_codec.parallel import pool as pool_module

from ..builder import Bitstream, ndu
from ..vectors.few import Case, cases, for_each
from .test_parallel import ways

pytestmark = pytest.mark.medium

RNG = np.random.default_rng(3)


def many(count: int = 12, size: int = 100) -> bytes:
    """Return a bitstream of tensors t0, t1, ... with one value each, in separate units."""
    made = Bitstream().str_().mps()
    for k in range(count):
        made.ndu(ndu(f"t{k}", [size], kind=NNR_PT_INT), np.full(size, k))
    return made.data


def mixed() -> bytes:
    """Return blocks, low bits, ties, an empty tensor and several types, in few units."""
    tensors: dict[str, Array] = {}
    blocks = []
    for k in range(3):
        tensors[f"{k}.w"] = RNG.normal(0, 0.1, (8, 5)).astype("f4")
        tensors |= {f"{k}.{name}": RNG.uniform(0.5, 1, 8).astype("f4") for name in ("b", "beta", "gamma", "m", "v")}
        blocks.append(Block(f"{k}.w", f"{k}.b", f"{k}.beta", f"{k}.gamma", f"{k}.m", f"{k}.v"))
    tensors["bf"] = RNG.normal(size=(9, 7)).astype(ml_dtypes.bfloat16)
    tensors["f8"] = RNG.normal(size=(9, 7)).astype("f8")
    tensors["none"] = np.zeros((0, 3), "f4")
    tensors["flags"] = np.array([True, False, True])
    tensors["tied"] = tensors["bf"]
    rules = [nnr.Rule(name, exact=True) for name in ("bf", "f8", "tied")]
    return nnr.encode(Model(tensors, blocks=blocks, metadata={"key": "text"}, format="safetensors"), rules=rules)


def facts(model: Model, names: list[str] | None = None) -> tuple[Any, ...]:
    """Return everything that must be equal; tensors are read in the order of the names."""
    arrays = {name: model[name] for name in names or model}
    tensors = [(name, a.dtype, a.shape, a.tobytes()) for name in model for a in [arrays[name]]]
    return tensors, model.topology, model.metadata, list(model.pruned), model.format, model.aliases


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (nnr.NnrError, ValueError) as error:
        return type(error), str(error), getattr(error, "bit", None)


def deferred(data: bytes, order: int | None = None, **options: Any) -> tuple[Any, ...]:
    """Return the facts of a model that is read in an announced order or in its own."""
    with nnr.open(data, limits=Limits.strict()) as file, file.deferred(**options) as model:
        names = list(model)
        if order is not None:
            random.Random(order).shuffle(names)
            assert isinstance(model.tensors, DeferredTensors)
            model.tensors.announce(names)
        return facts(model, names)


@pytest.fixture(params=["kept and ahead", "stored and one by one"])
def _room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submit tensors of all sizes to executors, with much space for waiting tensors or none."""
    monkeypatch.setattr(pool_module, "SMALL", 0)
    if request.param == "stored and one by one":
        monkeypatch.setattr(pool_module, "WINDOW", 0)
        monkeypatch.setattr(deferred_module, "KEPT", 0)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the number of times that each unit is decoded, by its first name."""
    found: Counter[str] = Counter()
    init = GroupDecoder.__init__

    def counting(self: GroupDecoder, group: Any, *arguments: Any, **options: Any) -> None:
        found[group.infos[0].name] += 1
        init(self, group, *arguments, **options)

    monkeypatch.setattr(GroupDecoder, "__init__", counting)
    return found


# ------------------------------------------------------------------------------------------------ equality
@pytest.mark.filterwarnings("ignore::nnr_codec.decoder.pruning.PruningWarning")
@pytest.mark.usefixtures("_room")
@for_each(cases("valid", "acceptable", "invalid"), "slow")
def test_vectors(case: Case) -> None:
    """This includes rejected vectors: the first error is the error of the first tensor."""
    data = case.streams[-1].path.read_bytes()
    want = outcome(lambda: facts(nnr.decode(data, limits=Limits.strict())))
    assert outcome(lambda: deferred(data)) == want
    shuffled = outcome(lambda: deferred(data, order=1))
    if isinstance(want[0], list):
        assert shuffled == want
    else:
        assert isinstance(shuffled[0], type)
    for options in ({"jobs": 2}, {"jobs": 4}):
        assert outcome(lambda: deferred(data, **options)) == want  # noqa: B023
        assert outcome(lambda: deferred(data, order=1, **options)) == shuffled  # noqa: B023


@pytest.mark.usefixtures("_room")
def test_everything_that_shares_units() -> None:
    data = mixed()
    want = facts(nnr.decode(data))
    assert len(want[0]) == 23
    for order in (None, 0, 1, 2):
        assert deferred(data, order) == want
        for way in ways():
            assert deferred(data, order, **way) == want


@pytest.mark.usefixtures("_room")
@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("order", [None, 0, 1])
def test_each_unit_is_decoded_once(decoded: Counter[str], order: int | None, jobs: int) -> None:
    data = mixed()
    decoded.clear()
    deferred(data, order, jobs=jobs)
    assert len(decoded) > 5
    assert set(decoded.values()) == {1}


def test_some_names() -> None:
    data = mixed()
    with nnr.open(data) as file, file.deferred(names=["tied", "1.beta"], jobs=2) as model:
        assert list(model) == ["1.beta", "tied"]
        assert (len(model), "bf" in model.tensors, model.topology) == (2, False, None)
        want = file.decode(names=["tied", "1.beta"])
        assert facts(model) == facts(want)
        with pytest.raises(KeyError):
            model["bf"]
    with nnr.open(data) as file, pytest.raises(KeyError), file.deferred(names=["x"]):
        pass


def test_asked_for_more_often_or_otherwise_than_announced(decoded: Counter[str]) -> None:
    with nnr.open(many(6)) as file, file.deferred() as model:
        for name in ("t3", "t0", "t3", "t5", "t1", "t1", "t4", "t2"):
            assert (model[name] == int(name[1])).all()
        assert decoded == {"t0": 1, "t1": 2, "t2": 1, "t3": 2, "t4": 1, "t5": 1}
    decoded.clear()
    with nnr.open(many(3)) as file, file.deferred() as model:
        assert isinstance(model.tensors, DeferredTensors)
        model.tensors.announce(["t2", "t0", "t2"])
        assert decoded == {"t1": 1}  # which is only decoded for its errors
        first = model["t2"]
        first[:] = 9  # the caller's own
        assert [int(model[name][0]) for name in ("t0", "t2", "t2")] == [0, 2, 2]
        assert decoded == {"t1": 1, "t2": 2, "t0": 1}


def test_types_and_shapes_without_decoding(decoded: Counter[str]) -> None:
    data = mixed()
    want = nnr.decode(data)
    decoded.clear()
    with nnr.open(data) as file, file.deferred() as model:
        assert isinstance(model.tensors, DeferredTensors)
        assert {name: model.tensors.described(name) for name in model} == {
            name: (array.dtype, array.shape) for name, array in want.tensors.items()
        }
    assert not decoded


def test_progress_is_reported_once() -> None:
    told: list[tuple[str, int, int]] = []
    with nnr.open(many(4)) as file, file.deferred(lambda *args: told.append(args), jobs=2) as model:
        assert isinstance(model.tensors, DeferredTensors)
        model.tensors.announce(["t3", "t1", "t3"])
        assert told == [("t0", 1, 4), ("t2", 2, 4)]
        for name in ("t3", "t1", "t3", "t3"):
            assert model[name].size
    assert told[2:] == [("t3", 3, 4), ("t1", 4, 4)]


# ------------------------------------------------------------------------------------------------ memory
class Waiting(ThreadPoolExecutor):
    """Executor that runs a task when its result is requested, and counts the waiting tasks."""

    def __init__(self) -> None:
        super().__init__(1)
        self.given = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        class Late(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                if not self.done():
                    self.set_result(fn(*args, **kwargs))
                return super().result(timeout)

        self.given += 1
        return Late()


def test_submitted_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SMALL", 0)
    monkeypatch.setattr(pool_module, "WINDOW", 3 * 400)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    pool = Waiting()
    with nnr.open(many(12)) as file, file.deferred(executor=pool) as model:
        assert pool.given == 0
        for k, name in enumerate(model):
            assert model[name].size
            assert pool.given == min(k + 3, 12)
    pool = Waiting()
    monkeypatch.setattr(pool_module, "WINDOW", 0)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    with nnr.open(many(12)) as file, file.deferred(executor=pool) as model:
        assert model["t0"].size
        assert pool.given == 5  # one for each worker, and the one that was requested


def shared(rows: list[int], width: int) -> bytes:
    """Return a bitstream of one unit whose tensors t0, t1, ... have as many rows as their numbers."""
    names = [f"t{k}" for k in range(len(rows))]
    mapping = {
        "concatentation_axis_index": 0,
        "split_index": np.cumsum(rows)[:-1].tolist(),
        "number_of_shifts": [0] * len(rows),
    }
    header = ndu(names, [sum(rows), width], kind=NNR_PT_INT, **mapping)
    return Bitstream().str_().mps().ndu(header, np.repeat(np.arange(len(rows)), rows)[:, None].repeat(width, 1)).data


@contextmanager
def memory() -> Iterator[Callable[[], int]]:
    """Return a function that measures the increase of allocated memory in bytes."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kept", [0, 1 << 20, 1 << 30])
def test_what_waits_is_stored(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a unit with many tensors, KEPT bytes wait in memory, and the rest in a file."""
    monkeypatch.setattr(deferred_module, "KEPT", kept)
    width, count = 1 << 14, 24
    with nnr.open(shared([1] * count, width)) as file, file.deferred() as model, memory() as used:
        assert (model["t0"] == 0).all()
        assert used() == pytest.approx(min(kept, 4 * width * (count - 1)), abs=1 << 17)
        for name in reversed(list(model)[1:]):
            assert model[name].shape == (1, width)
            assert (model[name] == int(name[1:])).all()


def test_returned_tensors_leave_space(monkeypatch: pytest.MonkeyPatch) -> None:
    made, width = Bitstream().str_().mps(), 1 << 12
    monkeypatch.setattr(deferred_module, "KEPT", 3 * 4 * width)
    monkeypatch.setattr(deferred_module.tempfile, "TemporaryFile", None)
    mapping = {"concatentation_axis_index": 0, "split_index": [1], "number_of_shifts": [0, 0]}
    for k in range(8):
        made.ndu(ndu([f"a{k}", f"b{k}"], [2, width], kind=NNR_PT_INT, **mapping), np.full((2, width), k))
    with nnr.open(made.data) as file, file.deferred() as model:
        for name in model:
            assert (model[name] == int(name[1:])).all()


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_threads_have_decoded_is_forgotten(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "WINDOW", 0)
    size = 1 << 16
    with nnr.open(many(16, size)) as file, memory() as used, file.deferred(jobs=jobs) as model:
        for k, name in enumerate(model):
            assert (model[name] == k).all()
            assert used() < 8 * 4 * size


def test_memory_of_returned_tensors_is_released() -> None:
    """Returned tensors are released, although the tensors of a unit are parts of one array at first."""
    with nnr.open(shared([255, 1], 1 << 13)) as file, file.deferred() as model, memory() as used:
        assert (model["t0"] == 0).all()
        assert used() < 1 << 18
        assert (model["t1"] == 1).all()


# ------------------------------------------------------------------------------------------------ errors
def damaged(index: int) -> bytes:
    """Return the bitstream of many() with a damaged payload."""
    data = bytearray(many())
    unit = list(nnr.units(bytes(data)))[2 + index]
    data[unit.offset + unit.size.nnr_unit_size - 1] ^= 0xFF
    return bytes(data)


@pytest.mark.usefixtures("_room")
@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_a_damaged_unit(jobs: int) -> None:
    with nnr.open(damaged(5)) as file, file.deferred(jobs=jobs) as model:
        for k in range(5):
            assert (model[f"t{k}"] == k).all()
        for _ in range(2):
            with pytest.raises(nnr.PayloadError, match=r"unit 7 .*'t5'"):
                model["t5"]
        assert (model["t9"] == 9).all()  # the others can still be read


@pytest.mark.parametrize("jobs", [1, 3])
def test_an_error_of_an_unrequested_tensor(jobs: int) -> None:
    with nnr.open(damaged(5)) as file, file.deferred(jobs=jobs) as model:
        assert isinstance(model.tensors, DeferredTensors)
        with pytest.raises(nnr.PayloadError, match="'t5'"):
            model.tensors.announce(["t3", "t4"])


def test_limits_are_charged_before_anything_is_decoded(decoded: Counter[str]) -> None:
    data = many(4)
    with nnr.open(data, limits=Limits(max_total_bytes=1000)) as file:
        decoded.clear()
        with pytest.raises(nnr.LimitError, match="max_total_bytes"), file.deferred():
            pass
    assert not decoded


def test_ties_are_charged_as_decode_does() -> None:
    values = np.arange(1000).astype(ml_dtypes.bfloat16)
    data = nnr.encode({"a": values, "b": values, "c": values}, exact=True)
    enough = 0
    for limit in range(4000, 26_000, 500):
        limits = Limits(max_total_bytes=limit)
        want = outcome(lambda: facts(nnr.decode(data, limits=limits)))  # noqa: B023
        with nnr.open(data, limits=limits) as file:

            def get(file: nnr.NnrFile = file) -> tuple[Any, ...]:
                with file.deferred() as model:
                    return facts(model)

            assert outcome(get) == want
        enough += isinstance(want[0], list)
    assert 0 < enough < 44


def test_incomplete_bitstreams() -> None:
    data = many(3)
    limits = Limits(expected={f"t{k}": ((100,), "int32") for k in range(4)})
    with nnr.open(data, limits=limits) as file:
        with pytest.raises(nnr.IncompleteError), file.deferred():
            pass
        with file.deferred(allow_missing=True) as model:
            assert len(model) == 3


def test_jobs_must_be_positive() -> None:
    with (
        nnr.open(many(1)) as file,
        file.deferred(jobs=0) as model,
        pytest.raises(ValueError, match="jobs must be at least 1"),
    ):
        model["t0"]


def test_afterwards_tensors_are_decoded_one_by_one() -> None:
    with nnr.open(many(3)) as file:
        with file.deferred(jobs=2) as model:
            assert model["t0"].size
        assert (model["t2"] == 2).all()
        before = threading.active_count()
        assert (model["t0"] == 0).all()
        assert threading.active_count() == before


def test_nothing_runs_after_an_error_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SMALL", 0)
    before = threading.active_count()

    def interrupted() -> None:
        with nnr.open(many()) as file, file.deferred(jobs=3) as model:
            assert model["t0"].size
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert threading.active_count() == before
