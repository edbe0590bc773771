"""Cancellation of long work in all executors, measured in steps instead of time."""

from __future__ import annotations

import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest

from nnr_codec import cancellation
from nnr_codec.cabac_ext import bits, quantizer, surgeon
from nnr_codec.cabac_ext.kernel import PayloadDecoder, PayloadEncoder, PayloadEstimator, TensorSyntax, measure
from nnr_codec.cancellation import CancelToken, cancelled_by
from nnr_codec.parallel import pool as pool_module

STEP = 1 << 20
LEVELS = np.zeros((1, 3 * STEP), np.int32)
SYNTAX = TensorSyntax(LEVELS.shape)
BLOCKS = np.zeros((1 << 11, 1 << 9), np.int32)


def coded(encoder: PayloadEncoder, syntax: TensorSyntax, levels: Any) -> bytes:
    """Return a payload of one tensor."""
    encoder.quant_tensor(syntax, levels)
    encoder.terminate()
    return encoder.getvalue()


def in_blocks(run: Any = map) -> None:
    """Return rows of blocks with entry points."""
    coded(PayloadEncoder(run=run), TensorSyntax(BLOCKS.shape, scan_order=1), BLOCKS)


def trellis(dq_flag: int) -> None:
    """Run the trellis search of the quantizer."""
    x = np.zeros(3 * STEP, np.float32)
    quantizer.trellis(x, 1.0, LEVELS.reshape(-1).copy(), dq_flag=dq_flag, rate=0.1)


def surgery(dq_flag: int) -> None:
    """Run the search that compensates errors."""
    levels = np.zeros((12, 4096), np.int32)
    unit = np.zeros((4096, 4096), np.float32)
    options = {
        "dq_flag": dq_flag,
        "rate": 0.1,
        "cabac_unary_length_minus1": 10,
        "row_unit": None,
        "run": 0,
        "stride": 0,
    }
    x = np.zeros(levels.shape, np.float32)
    surgeon.surgeon(x, 1.0, levels, unit, np.ones(4096), np.ones(12), **cast(Any, options))


def words(split: bool) -> None:
    """Return integers of 64 bits as levels and a stream of their low bits."""
    patterns, levels = np.zeros(3 * STEP, np.uint64), LEVELS.reshape(-1).copy()
    stream = np.zeros(3 * STEP, np.uint8)
    if split:
        bits.split_integers(patterns, levels, stream, least=0, origin=0, low=8)
    else:
        bits.join_integers(levels, stream, patterns, least=0, origin=0, low=8, first=(0, 0), last=(0, 255))


PAYLOAD = coded(PayloadEncoder(), SYNTAX, LEVELS)
LOOPS: dict[str, Callable[[], object]] = {
    "decode": lambda: PayloadDecoder(PAYLOAD).quant_tensor(SYNTAX),
    "decode and scale": lambda: PayloadDecoder(PAYLOAD).scaled(SYNTAX, 1.0, np.empty(LEVELS.shape, np.float32)),
    "encode": lambda: coded(PayloadEncoder(), SYNTAX, LEVELS),
    "encode in blocks": in_blocks,
    "estimate": lambda: PayloadEstimator().quant_tensor(SYNTAX, LEVELS),
    "choose shift parameters": lambda: measure(SYNTAX, LEVELS, sample=LEVELS.size),
    "uniform trellis": lambda: trellis(0),
    "dependent trellis": lambda: trellis(1),
    "uniform surgeon": lambda: surgery(0),
    "dependent surgeon": lambda: surgery(1),
    "factorize": lambda: surgeon.factorize(np.eye(2048), 0.0),
    "split": lambda: words(True),
    "join": lambda: words(False),
}


class Enough(Exception):  # noqa: N818  # no error
    """Exception that cancels work."""


@pytest.mark.parametrize("name", LOOPS)
def test_long_loops_check_for_cancellation(name: str) -> None:
    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise Enough

    with pytest.raises(Enough), cancelled_by(check):
        LOOPS[name]()
    assert asked == 2
    cancellation.check_cancelled()  # the check is removed
    assert asked == 2


def test_rows_of_blocks_in_threads_end() -> None:
    """After a cancellation, the thread starts no other row."""
    done: list[int] = []
    ended = threading.Event()

    def check() -> None:
        raise Enough

    with ThreadPoolExecutor(1) as threads:

        def run(rows: Any, groups: range) -> Any:
            def row(group: int) -> Any:
                done.append(group)
                if group:
                    ended.wait(60)
                return rows(group)

            return threads.map(row, groups)

        with pytest.raises(Enough), cancelled_by(check):
            in_blocks(run)
        ended.set()
    assert done in ([0], [0, 1])  # of 8


class Work(pool_module.Task[None]):
    """Task that encodes a tensor of 24 steps of the kernel."""

    def __init__(self, name: str) -> None:
        self.names, self.nbytes = [name], 1 << 30

    def __call__(self) -> None:
        PayloadEncoder().quant_tensor(TensorSyntax((1, 24 * STEP)), np.zeros((1, 24 * STEP), np.int32))


class Watched(CancelToken):
    """Work that waits for its cancellation in the kernel, and is counted when it checks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[int, int] = {}
        self.late: list[int] = []
        self.running, self.ended = threading.Semaphore(0), threading.Event()

    def cancel(self, after: int = -1) -> None:
        super().cancel(after)
        self.ended.set()

    def __call__(self, number: int = 0) -> None:
        thread = threading.get_ident()
        self.asked[thread] = self.asked.get(thread, 0) + 1
        if self.asked[thread] == 2:  # the first time was before it began
            self.running.release()
            self.ended.wait(600)
        if self.ended.is_set():
            self.late.append(thread)
        super().__call__(number)


@contextmanager
def interrupting(pool: pool_module.Pool, count: threading.Semaphore, times: int) -> Iterator[None]:
    """Raise KeyboardInterrupt when a number of tasks run and the pool has their futures.

    An interruption while a thread starts would leave a thread that its executor does not know.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def work() -> None:
        for _ in range(times):
            count.acquire()
        while len(pool._begun) < times:
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.get_ident()
    before = signal.signal(signal.SIGINT, interrupt)
    helper = threading.Thread(target=work)
    helper.start()
    try:
        yield
    finally:
        helper.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals of POSIX")
@pytest.mark.parametrize("given", [False, True])
def test_threads_leave_what_they_are_at(monkeypatch: pytest.MonkeyPatch, given: bool) -> None:
    asked = Watched()
    monkeypatch.setattr(pool_module, "CancelToken", lambda: asked)
    threads = threading.active_count()
    with ThreadPoolExecutor(2) as executor:
        with (
            pytest.raises(KeyboardInterrupt),
            pool_module.Pool(2, executor if given else None) as pool,
            interrupting(pool, asked.running, 2),
        ):
            next(pool.run([Work(name) for name in "abc"]))
        assert list(asked.asked.values()) == [2, 2]  # of 25
        assert sorted(asked.late) == sorted(asked.asked)
    assert threading.active_count() == threads


class Busy:
    """Executor whose remote workers are never ready."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, *_: object) -> Future[Any]:
        future = Waiting()
        if not self.futures:
            future.set_running_or_notify_cancel()
        self.futures.append(future)
        return future


class Waiting(Future[Any]):
    """Work during which the user cancels."""

    waits = 0

    def result(self, timeout: float | None = None) -> Any:
        self.waits += 1
        raise KeyboardInterrupt


def test_other_workers_are_not_waited_for() -> None:
    """Waiting tasks are cancelled; results of running tasks are ignored."""
    executor = Busy()
    with pytest.raises(KeyboardInterrupt), pool_module.Pool(2, cast(Any, executor)) as pool:
        next(pool.run([Work(name) for name in "abc"]))
    first, *others = cast("list[Waiting]", executor.futures)
    assert first.running()
    assert first.waits == 1
    assert others
    assert all(future.cancelled() for future in others)


def test_an_answer_for_another_process_is_yes() -> None:
    asked = CancelToken()
    asked.cancel()
    with pytest.raises(CancelledError):
        asked()
    pickle.loads(pickle.dumps(asked))()
