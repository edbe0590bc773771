"""Decoding by several threads or processes gives the tensors, errors and states of one thread, in the same order."""

from __future__ import annotations

import pickle
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.cancellation import CancelToken
from nnr_codec.constants import NNR_PT_INT
from nnr_codec.decoder import unit as unit_module
from nnr_codec.decoder.decode import BitstreamParser
from nnr_codec.decoder.group import GroupDecoder, is_first_edition
from nnr_codec.decoder.schedule import decode_groups
from nnr_codec.decoder.state import Device, Key, UpdateNode, UpdateState
from nnr_codec.limits import Budget, Limits
from nnr_codec.model import Array
from nnr_codec.parallel import pool as pool_module

from ..builder import Bitstream, ndu, update_ndu
from ..interop import ALL, Stream
from ..vectors.few import Case, cases, for_each
from .support import contents


class Sorted(ThreadPoolExecutor):
    """Executor without threads that runs the newest task when a result is requested, each task once."""

    last = -1

    def __init__(self) -> None:
        super().__init__(1)
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        owner = self

        class Late(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                while owner.waiting:
                    future, call = owner.waiting.pop(owner.last)
                    if future.set_running_or_notify_cancel():
                        try:
                            future.set_result(call())
                        except BaseException as error:
                            future.set_exception(error)
                return super().result(timeout)

        future: Future[Any] = Late()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future


class Pickling(Executor):
    """Executor that pickles each task and runs it when it is submitted, like an executor of other processes."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            function, given, named = pickle.loads(pickle.dumps((fn, args, kwargs)))
            future.set_result(pickle.loads(pickle.dumps(function(*given, **named))))
        except nnr.NnrError as error:
            future.set_exception(pickle.loads(pickle.dumps(error)))
        return future


def ways() -> Iterator[dict[str, Any]]:
    """Return arguments of decode."""
    yield {"jobs": 2}
    yield {"jobs": 4}
    with ThreadPoolExecutor(3) as pool:
        yield {"executor": pool}
    yield {"executor": Sorted()}
    yield {"executor": Pickling()}


@pytest.fixture(params=[64, 1 << 18], ids=["many segments", "one segment"])
def _segments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submit and divide small tensors like large ones."""
    monkeypatch.setattr(unit_module, "SEGMENT", request.param)
    monkeypatch.setattr(pool_module, "SMALL", 0)


# ------------------------------------------------------------------------------------------------ equality
def outcome(call: Callable[[], dict[str, Array]]) -> tuple[Any, ...]:
    """Return everything that must be equal."""
    try:
        return [(name, a.dtype, a.shape, a.tobytes()) for name, a in call().items()], None
    except nnr.NnrError as error:
        return type(error), str(error), getattr(error, "bit", None)


def decode(data: bytes, state: UpdateState, **options: Any) -> dict[str, Array]:
    """Decode the next bitstream of a sequence."""
    parser = BitstreamParser(UnitReader(data, Limits.strict()))
    groups = list(parser.groups())
    first_edition = parser.profile == 0 and is_first_edition(groups)
    return decode_groups(groups, Budget(Limits.strict()), first_edition=first_edition, state=state, **options)


@pytest.mark.medium
@pytest.mark.usefixtures("_segments")
@for_each(cases("valid", "acceptable", "invalid"), "slow")
def test_vectors(case: Case) -> None:
    """This includes rejected vectors, and the state after an error."""
    data = case.streams[-1].path.read_bytes()
    state = UpdateState()
    one = outcome(lambda: decode(data, state))
    raw = outcome(lambda: decode(data, UpdateState(), raw=True))
    for way in ways():
        other = UpdateState()
        assert outcome(lambda: decode(data, other, **way)) == one  # noqa: B023
        assert contents(other) == contents(state)
        assert outcome(lambda: decode(data, UpdateState(), raw=True, **way)) == raw  # noqa: B023


@pytest.mark.usefixtures("_segments")
@for_each({stream.id: stream for stream in ALL}, "slow")
def test_interop(stream: Stream) -> None:
    state = UpdateState()
    for path in stream.before:
        decode(path.read_bytes(), state, raw=True)
    for way in ways():
        fork = state.fork()
        got = decode(stream.data, fork, raw=True, **way)
        for name, values in got.items():
            np.testing.assert_array_equal(values, stream.values[name])
        once = state.fork()
        decode(stream.data, once, raw=True)
        assert contents(fork) == contents(once)


def model(tensors: int = 12, rows: int = 40, **elements: Any) -> Bitstream:
    """Return a bitstream of tensors w0, w1, … of growing size."""
    rng = np.random.default_rng(7)
    stream = Bitstream().str_().mps()
    for k in range(tensors):
        header = ndu(f"w{k}", [rows + k, 9], kind=NNR_PT_INT, scan_order=1, dq_flag=k % 2, **elements)
        stream.ndu(header, rng.integers(-9, 10, (rows + k, 9)))
    return stream


@pytest.mark.medium
@pytest.mark.usefixtures("_segments")
def test_processes() -> None:
    """Whole tensors are transferred; results and errors, also of updates, are the same."""
    data = model().data
    bad = bytearray(data)
    bad[-3] ^= 255
    stream = Bitstream().str_().mps(parent=1)
    update = update_ndu("w", [20, 7], 1, scan_order=1)
    first = stream.ndu(update, np.arange(140)).data
    header = update_ndu("w", [20, 7], 2, scan_order=1, temporal_context_modeling_flag=1)
    before = [np.arange(140).reshape(20, 7)]
    stream = Bitstream().str_().mps(parent=1)
    second = stream.ndu(header, np.ones(140), co_loc=before, any_sig=[before[0] != 0]).data
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for content in (data, bytes(bad)):
            one = outcome(lambda: dict(nnr.decode(content).tensors))  # noqa: B023
            assert outcome(lambda: dict(nnr.decode(content, executor=pool).tensors)) == one  # noqa: B023
        states = UpdateState(), UpdateState()
        for content in (first, second):
            one = outcome(lambda: decode(content, states[0]))  # noqa: B023
            assert outcome(lambda: decode(content, states[1], executor=pool)) == one  # noqa: B023
        assert contents(states[0]) == contents(states[1])
        limits = Limits(expected={f"w{k}": ((40 + k, 9), "int32") for k in range(12)})
        assert len(nnr.decode(data, executor=pool, limits=limits)) == 12


# ------------------------------------------------------------------------------------------------ order
@pytest.mark.usefixtures("_segments")
def test_tensors_and_progress_come_in_bitstream_order() -> None:
    data, names = model().data, [f"w{k}" for k in range(12)]
    for way in ways():
        told: list[tuple[str, threading.Thread]] = []
        with nnr.open(data) as file:
            got = file.decode(lambda name, *_: told.append((name, threading.current_thread())), **way)  # noqa: B023
        assert list(got) == names
        assert told == [(name, threading.current_thread()) for name in names]


@pytest.mark.usefixtures("_segments")
def test_the_state_is_changed_in_bitstream_order_by_the_caller() -> None:
    class Watched(UpdateState):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[tuple[Any, ...]] = []

        def put(self, key: Key, node: UpdateNode, limits: Limits, used: Iterable[Device] = ()) -> None:
            self.seen.append((key, threading.current_thread()))
            super().put(key, node, limits, used)

    stream = Bitstream().str_().mps(parent=1)
    for k in range(8):
        stream.ndu(update_ndu(f"w{k}", [20 + 5 * k, 3], 1, parameter=8 - k, scan_order=1), np.ones(60 + 15 * k))
    for way in ways():
        state = Watched()
        decode(stream.data, state, **way)
        assert state.seen == [((0, 8 - k), threading.current_thread()) for k in range(8)]


@pytest.mark.usefixtures("_segments")
def test_the_first_error_of_the_bitstream_is_raised() -> None:
    """w3 and w9 are damaged, and the larger w9 is decoded first; w7 lacks its parent, which is detected immediately."""
    stream = Bitstream().str_().mps(parent=1)
    rng = np.random.default_rng(0)
    for k in range(12):
        dims = [10 + 4 * k, 9]
        header = ndu(f"w{k}", dims, scan_order=1) if k != 7 else update_ndu("w7", dims, 4, scan_order=1)
        payload = stream.payload(header, [rng.integers(-9, 10, dims)])
        stream.ndu(header, payload=payload[: len(payload) // 2] if k in (3, 9) else payload)
    expected = outcome(lambda: decode(stream.data, UpdateState()))
    assert "'w3'" in expected[1]
    for way in ways():
        assert outcome(lambda: decode(stream.data, UpdateState(), **way)) == expected  # noqa: B023


def test_limits_are_charged_before_anything_is_handed_over() -> None:
    data = model().data
    limits = Limits(max_total_bytes=36 * sum(40 + k for k in range(12)) - 1)
    executor = Sorted()
    errors = [
        outcome(lambda: dict(nnr.decode(data, limits=limits, **way).tensors))  # noqa: B023
        for way in ({}, {"jobs": 2}, {"executor": executor})
    ]
    assert errors[0][0] is nnr.LimitError
    assert "'w11'" in errors[0][1]
    assert errors == errors[:1] * 3
    assert not executor.waiting


# ------------------------------------------------------------------------------------------------ the end of it
@pytest.mark.usefixtures("_segments")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interruption_leaves_nothing_running(error: type[BaseException]) -> None:
    def stop(name: str, *_: int) -> None:
        if name == "w1":
            raise error

    threads = threading.active_count()
    executor = Sorted()
    for way in ({"jobs": 3}, {"executor": executor}):
        with nnr.open(model().data) as file, pytest.raises(error):
            file.decode(stop, **way)
        assert threading.active_count() == threads
    assert all(future.cancelled() or future.done() for future, _ in executor.waiting)


def large(rows: int, cut: bool = False) -> bytes:
    """Return a tensor "w" of zeros with 1024 rows per 2**20 parameters, damaged at its end."""
    header = ndu("w", [rows, 1024], kind=NNR_PT_INT, scan_order=4)
    stream = Bitstream().str_().mps()
    payload = stream.payload(header, [np.zeros((rows, 1024), np.int32)])
    return stream.ndu(header, payload=payload[:-1] + b"\xff" if cut else payload).data


def test_running_work_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor without entry points in another thread is cancelled between two steps of the kernel."""
    levels = np.zeros((1, 24 << 20), np.int32)
    data = model(1).ndu(ndu("z", levels.shape, kind=NNR_PT_INT), levels).data
    checks: list[int] = []
    running, interrupted = threading.Event(), threading.Event()

    class Watched(CancelToken):
        def __call__(self, number: int = 0) -> None:
            checks.append(number)
            if len(checks) > 1:  # the first one comes before it begins
                running.set()
                interrupted.wait(600)
            super().__call__(number)

        def cancel(self, after: int = -1) -> None:
            super().cancel(after)
            running.set()  # also when the work fails
            interrupted.set()

    def stop(name: str, *_: int) -> None:
        running.wait(600)
        raise KeyboardInterrupt

    monkeypatch.setattr(pool_module, "CancelToken", Watched)
    with nnr.open(data) as file, pytest.raises(KeyboardInterrupt):
        file.decode(stop, jobs=2)
    assert len(checks) == 2  # of 24


def test_work_behind_an_error_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SMALL", 0)
    stream = model(1)
    header = ndu("bad", [2, 3])
    stream.ndu(header, payload=b"\x00\x00\x00")
    for k in range(2, 30):
        stream.ndu(ndu(f"v{k}", [40 + k, 9], kind=NNR_PT_INT), np.ones((40 + k) * 9))
    executor = Sorted()
    executor.last = 0  # in the order in which it came
    begun: list[str] = []
    decode = unit_module.UnitDecoder.at_once

    def watched(self: Any) -> Any:
        begun.append(self._task.names[0])
        return decode(self)

    monkeypatch.setattr(unit_module.UnitDecoder, "at_once", watched)
    with pytest.raises(nnr.PayloadError, match="'bad'"):
        nnr.decode(stream.data, executor=executor)
    assert begun == ["w0", "bad"]


def test_memory() -> None:
    """Memory holds the values and a few segments of each thread, but not the levels of the whole tensor."""
    data, sizes = large(4096), []
    for jobs in (1, 2):
        tracemalloc.start()
        nnr.decode(data, jobs=jobs)
        sizes.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    for size in sizes:
        assert size < 4 * 4096 * 1024 * 1.5


def test_delivered_tensors_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is released before the next tensor is decoded, which may use its units."""
    last: list[weakref.ref[Any]] = []
    run = GroupDecoder.run

    def watched(self: GroupDecoder) -> Any:
        assert all(reference() is None for reference in last)
        return run(self)

    def deliver(name: str, array: Array, label: str) -> list[tuple[str, Array]]:
        assert label.endswith(f"{name!r})")
        last.append(weakref.ref(array))
        return [] if name != "w3" else [("made", array[:0].copy())]

    monkeypatch.setattr(GroupDecoder, "run", watched)
    got = decode(model().data, UpdateState(), deliver=deliver)
    assert (list(got), len(last)) == (["made"], 12)


@pytest.mark.usefixtures("_segments")
def test_an_executor_that_takes_nothing() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        nnr.decode(model().data, executor=pool)


@pytest.mark.parametrize("jobs", [0, -1])
def test_jobs_must_be_positive(jobs: int) -> None:
    with pytest.raises(ValueError, match="jobs must be at least 1, got"):
        nnr.decode(model().data, jobs=jobs)


def test_an_error_at_the_end_of_a_large_tensor() -> None:
    """The segments have their real size."""
    data = large(1024, cut=True)
    one = outcome(lambda: dict(nnr.decode(data).tensors))
    assert one[0] is nnr.PayloadError
    for way in ways():
        assert outcome(lambda: dict(nnr.decode(data, **way).tensors)) == one  # noqa: B023
