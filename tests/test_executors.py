"""Equal results from all executors: with lost workers, and with files that workers cannot find."""

from __future__ import annotations

import asyncio
import gzip
import os
import pickle
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, chdir, contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.cancellation import CancelToken, check_cancelled
from nnr_codec.model import Array
from nnr_codec.parallel import pool as pool_module

from .formats.support import dat, graph_text, regular, tar_bytes, write_folder
from .lanes import no_lanes

pytestmark = pytest.mark.medium

RNG = np.random.default_rng(11)


def tensors() -> dict[str, Array]:
    """Return some large tensors and many small ones, of several types."""
    found: dict[str, Array] = {"first": RNG.normal(0, 0.1, (300, 300)).astype("f4")}
    for k in range(60):
        found[f"bias{k}"] = RNG.normal(0, 0.1, 9 + k).astype("f4")
    found["wide"] = RNG.normal(0, 0.1, (90, 80))
    found["brain"] = RNG.normal(0, 0.1, (70, 50)).astype(ml_dtypes.bfloat16)
    found["numbers"] = RNG.integers(-9, 9, (200, 30), "i4")
    found["last"] = RNG.normal(0, 0.1, (280, 300)).astype("f4")
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with these tensors; its bitstream is beside it."""
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    nnr.save(tensors(), path)
    nnr.encode_file(path, path.with_suffix(".nnr"))
    return path


class Handle:
    """Minimal result of an executor's ``submit``."""

    def __init__(self, call: Callable[[], Any], before: Callable[[], None] = lambda: None) -> None:
        self._call, self._before = call, before
        self.cancelled = self.ran = False

    def run(self) -> None:
        """Do the work once."""
        if not self.ran:
            self.ran = True
            self._found = self._call()

    def result(self) -> Any:
        """Return the result of the work."""
        if self.cancelled:
            raise CancelledError
        self._before()
        self.run()
        return self._found

    def cancel(self) -> bool:
        """Return whether the work has not begun."""
        self.cancelled = not self.ran
        return self.cancelled


class Now:
    """Executor that runs each task when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Handle:
        handle = Handle(lambda: fn(*args))
        handle.run()
        return handle


class Anyhow:
    """Executor that works in any order when a result is requested, and never in the order of submission."""

    def __init__(self) -> None:
        self.waiting: list[Handle] = []
        self.random = random.Random(3)

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Handle:
        handle = Handle(lambda: fn(*args), self.work)
        self.waiting.append(handle)
        return handle

    def work(self) -> None:
        self.random.shuffle(self.waiting)
        while self.waiting:
            self.waiting.pop().run()


class Away:
    """Executor that pickles work and results as if another process did the work."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self.sent: list[int] = []
        self.before = before

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        message = pickle.dumps((fn, args))
        self.sent.append(len(message))
        self.before()
        future: Future[Any] = Future()
        with chdir("/"):
            function, given = pickle.loads(message)
            future.set_result(pickle.loads(pickle.dumps(function(*given))))
        return future


@contextmanager
def dask_executor() -> Iterator[Executor]:
    distributed = pytest.importorskip("dask.distributed")
    with ExitStack() as stack:
        options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
        cluster = stack.enter_context(distributed.LocalCluster(**options))
        yield stack.enter_context(distributed.Client(cluster)).get_executor(pure=False)


@contextmanager
def loky_executor() -> Iterator[Executor]:
    executor = pytest.importorskip("loky").get_reusable_executor(2)
    yield executor
    executor.shutdown()


@contextmanager
def anyone(executor: Any) -> Iterator[Executor]:
    yield executor


#: Constructors of executors without further packages.
ENGINES: dict[str, Callable[[], Any]] = {
    "at once": lambda: anyone(Now()),
    "in any order": lambda: anyone(Anyhow()),
    "pickling": lambda: anyone(Away()),
    "threads": lambda: ThreadPoolExecutor(3),
    "one thread": lambda: ThreadPoolExecutor(1),
    "processes": lambda: ProcessPoolExecutor(2, get_context("spawn")),
    "one process": lambda: ProcessPoolExecutor(1, get_context("spawn")),
}
#: Executors that are tried by default.
FEW = {"in any order", "pickling", "processes"}
OTHERS = [
    pytest.param(loky_executor, id="loky", marks=[pytest.mark.slow, pytest.mark.clients]),
    pytest.param(
        dask_executor, id="dask", marks=[pytest.mark.slow, pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
    ),
]


@pytest.mark.parametrize(
    "engine",
    [
        *(
            pytest.param(start, id=name, marks=() if name in FEW else pytest.mark.slow)
            for name, start in ENGINES.items()
        ),
        *OTHERS,
    ],
)
def test_the_same_bytes(engine: Callable[[], Any], model: Path, tmp_path: Path) -> None:
    bitstream = model.with_suffix(".nnr")
    one = bitstream.read_bytes()
    decoded = nnr.decode(one).tensors
    nnr.decode_file(one, tmp_path / "one.safetensors")
    source = dict(nnr.load(model).tensors)
    with engine() as executor:
        assert nnr.encode(model, executor=executor) == one
        assert nnr.encode(nnr.load(model), executor=executor, jobs=7) == one
        plain = {name: source[name] for name in ("first", "wide", "bias7", "last")}
        for options in ({"exact": True}, {"quality": 30, "effort": 3}, {"target_ratio": 0.1}):
            assert nnr.encode(plain, executor=executor, **options) == nnr.encode(plain, **options)
        for data in (bitstream, one):
            found = nnr.decode(data, executor=executor).tensors
            assert list(found) == list(decoded)
            assert all(found[name].tobytes() == decoded[name].tobytes() for name in decoded)
        nnr.decode_file(bitstream, tmp_path / "other.safetensors", executor=executor)
        assert (tmp_path / "other.safetensors").read_bytes() == (tmp_path / "one.safetensors").read_bytes()
        estimates = nnr.estimate(model, executor=executor), nnr.estimate(model)
        assert estimates[0].tensors == estimates[1].tensors


# ------------------------------------------------------------------------------------------------ sent data
LARGE: dict[str, Array] = {name: RNG.normal(0, 0.1, (300, 400)).astype("f4") for name in "ab"}


def tar_of(files: Mapping[str, bytes]) -> bytes:
    return tar_bytes(regular(files))


def sources(folder: Path) -> Iterator[tuple[str, Path]]:
    """Return the same tensors in files of several formats."""
    for name in ("m.safetensors", "m.npz"):
        nnr.save(LARGE, folder / name)
        yield name, folder / name
    np.savez_compressed(folder / "packed.npz", **cast(dict[str, Any], LARGE))
    yield "packed.npz", folder / "packed.npz"
    files = {"graph.nnef": graph_text(LARGE), **{f"{name}.dat": dat(array) for name, array in LARGE.items()}}
    yield "m.nnef", write_folder(folder / "m.nnef", files)
    (folder / "m.tar").write_bytes(tar_of(files))
    yield "m.tar", folder / "m.tar"


def test_paths_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes relative paths for workers with another current folder."""
    monkeypatch.chdir(tmp_path)
    for name, path in sources(tmp_path):
        one = nnr.encode(path)
        for given in (path, Path(name)):
            executor = Away()
            assert nnr.encode(given, executor=cast(Executor, executor)) == one
            assert len(executor.sent) == 4
            assert max(executor.sent) < 4000, name


def test_what_cannot_be_read_elsewhere_is_sent(tmp_path: Path) -> None:
    files = {"graph.nnef": graph_text(LARGE), **{f"{name}.dat": dat(array) for name, array in LARGE.items()}}
    packed = gzip.compress(tar_of(files))
    (tmp_path / "m.tgz").write_bytes(packed)
    for source in (LARGE, tmp_path / "m.tgz", packed):
        executor = Away()
        assert nnr.encode(source, executor=cast(Executor, executor)) == nnr.encode(source)
        assert min(executor.sent) > LARGE["a"].nbytes


def test_folded_models_are_read_elsewhere(tmp_path: Path) -> None:
    """Results of folding are sent, and workers read the other tensors."""
    digits = Path(__file__).parents[1] / "examples" / "digits" / "digits.nnef"
    for options in ({}, {"block": True}, {"local_scaling": True}):
        executor = Away()
        assert nnr.encode(digits, executor=cast(Executor, executor), **options) == nnr.encode(digits, **options)
        assert max(executor.sent) < 60_000


def test_ranges_of_bitstreams_are_sent(tmp_path: Path) -> None:
    nnr.encode_file(LARGE, tmp_path / "m.nnr")
    data = (tmp_path / "m.nnr").read_bytes()
    (tmp_path / "later").write_bytes(b"before" + data)
    expected = {name: array.tobytes() for name, array in nnr.decode(data).tensors.items()}

    def sent(source: Any, **options: Any) -> int:
        executor = Away()
        found = nnr.decode(source, executor=cast(Executor, executor), **options).tensors
        assert {name: array.tobytes() for name, array in found.items()} == expected
        assert len(executor.sent) == 2
        return max(executor.sent)

    assert sent(tmp_path / "m.nnr") < 6000
    with open(tmp_path / "m.nnr", "rb") as file:
        assert sent(file) < 6000
    with open(tmp_path / "later", "rb", buffering=0) as raw:
        raw.seek(6)
        assert sent(raw) < 6000
    assert sent(data) > len(data) / 3
    nnr.encode_file(LARGE, tmp_path / "parts.nnr", max_unit_size=2000)  # in parts with partial_data_counter
    assert sent(tmp_path / "parts.nnr") < 30_000


def test_only_options_of_the_tensors_are_sent() -> None:
    executor = Away()
    many = {f"w{k}": RNG.normal(0, 0.1, (300, 300)).astype("f4") for k in range(4)}
    sensitivity = {name: np.abs(array) for name, array in many.items()}
    one = nnr.encode(many, sensitivity=sensitivity, quality=30)
    assert nnr.encode(many, sensitivity=sensitivity, quality=30, executor=cast(Executor, executor)) == one
    assert max(executor.sent) < 2.2 * many["w0"].nbytes


@pytest.mark.slow
def test_small_tensors_are_sent_together(tmp_path: Path) -> None:
    many = {f"b{k}": np.full(64, k, "f4") for k in range(1000)}
    many |= {f"w{k}": RNG.normal(0, 0.1, (300, 300)).astype("f4") for k in range(3)}
    nnr.save(many, tmp_path / "m.npz")
    for source in (tmp_path / "m.npz", many):
        executor = Away()
        data = nnr.encode(source, executor=cast(Executor, executor), fine_vectors=False)
        assert data == nnr.encode(many, fine_vectors=False)
        assert len(executor.sent) == 14  # to plan, and to code: 4 together, 3 separately
        executor = Away()
        assert len(nnr.decode(data, executor=cast(Executor, executor)).tensors) == 1003
        assert len(executor.sent) == 7


class Counting(Now):
    """Executor that counts submitted work without collected results."""

    def __init__(self) -> None:
        self.open = self.most = self.given = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Handle:
        self.open, self.given = self.open + 1, self.given + 1
        self.most = max(self.most, self.open)
        return Handle(lambda: fn(*args), self.took)

    def took(self) -> None:
        self.open -= 1


@cache
def twenty() -> tuple[dict[str, Any], bytes]:
    """Return 20 tensors of 480 kB, and their bitstream."""
    many = {f"w{k}": np.full((300, 400), k, "f4") for k in range(20)}
    return many, nnr.encode(many)


@pytest.mark.parametrize(("window", "most"), [(1 << 25, 6), (300_000, 3), (0, 3), (480_000, 6), (400_000, 5)])
def test_work_in_flight_is_bounded(window: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three workers has two tensors of 480 kB, or one tensor that is larger than the window."""
    monkeypatch.setattr(pool_module, "WINDOW", window)
    many, data = twenty()
    for call in (lambda e: nnr.encode(many, executor=e, jobs=3), lambda e: nnr.decode(data, executor=e, jobs=3)):
        executor = Counting()
        call(executor)
        assert executor.most == most


# ------------------------------------------------------------------------------------------------ failures
class Losing(Now):
    """Executor that loses a task after a number of tasks."""

    def __init__(self, after: int, error: BaseException, at: str) -> None:
        self.left, self.error, self.at = after, error, at

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Handle:
        self.left -= 1

        def lose() -> None:
            raise self.error

        if self.left < 0 and self.at == "submit":
            lose()
        return super().submit(fn, *args) if self.left >= 0 else Handle(lose)


class KilledWorker(Exception):  # noqa: N818  # dask's name
    """Exception class of an executor."""


LOST = [BrokenProcessPool("a process died"), KilledWorker("3 times"), CancelledError(), asyncio.CancelledError("x")]


@pytest.mark.parametrize("after", [0, 2, 5])
@pytest.mark.parametrize(
    ("error", "at"),
    [*[(error, "result") for error in LOST], *[(error, "submit") for error in LOST[:2]]],
    ids=lambda value: value if isinstance(value, str) else type(value).__module__,
)
def test_a_lost_worker(error: BaseException, after: int, at: str, model: Path, tmp_path: Path) -> None:
    bitstream = model.with_suffix(".nnr")
    for call, target in (
        (lambda e: nnr.encode_file(model, tmp_path / "x.nnr", executor=e), "x.nnr"),
        (lambda e: nnr.decode_file(bitstream, tmp_path / "x.npz", executor=e, names=["first", "last"]), "x.npz"),
    ):
        executor = Losing(min(after, 1) if target == "x.npz" else after, error, at)
        with pytest.raises(nnr.WorkerError, match=r"lost the work on tensor '\w+'.*resume=True") as caught:
            call(executor)
        assert type(error).__name__ in str(caught.value)
        assert caught.value.__cause__ is error
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("when", [0, 1])
def test_threads_that_are_shut_down(when: int, tmp_path: Path) -> None:
    """The shutdown is before the work, or during it, which cancels waiting tasks."""
    source = tmp_path / "m.safetensors"
    nnr.save({f"w{k}": RNG.normal(0, 0.1, (300, 300)).astype("f4") for k in range(9)}, source)
    bitstream, target = tmp_path / "m.nnr", tmp_path / "x.npz"
    nnr.encode_file(source, bitstream)
    before = {*tmp_path.iterdir()}
    for call in (
        lambda executor, end: nnr.encode_file(source, tmp_path / "x.nnr", executor=executor, progress=end),
        lambda executor, end: nnr.decode_file(bitstream, target, executor=executor, progress=end),
        lambda executor, end: nnr.open(bitstream).decode(end, executor=executor),
    ):
        executor = ThreadPoolExecutor(1)

        def end(*_: object, executor: ThreadPoolExecutor = executor) -> None:
            executor.shutdown(wait=False, cancel_futures=True)

        if not when:
            end(None)
        with no_lanes(), pytest.raises(nnr.WorkerError, match=r"lost the work on tensor 'w\d'") as caught:
            call(executor, end)  # otherwise lanes would have decoded everything before it ends
        assert isinstance(caught.value.__cause__, (RuntimeError, CancelledError))
        assert {*tmp_path.iterdir()} == before


def test_an_interruption_is_none(model: Path, tmp_path: Path) -> None:
    for at in ("submit", "result"):
        with pytest.raises(KeyboardInterrupt):
            nnr.encode_file(model, tmp_path / "x.nnr", executor=cast(Executor, Losing(2, KeyboardInterrupt(), at)))
    assert not list(tmp_path.iterdir())


def test_what_waits_is_cancelled_after_an_error() -> None:
    handles: list[Handle] = []

    class Kept(Now):
        def submit(self, fn: Callable[..., Any], /, *args: Any) -> Handle:
            handles.append(Handle(lambda: fn(*args)))
            return handles[-1]

    many = {f"w{k}": np.full((300, 400), 1 << 40, "i8") for k in range(9)}
    with pytest.raises(nnr.EncodeError, match="'w0'"):
        nnr.encode(many, side_info=False, profile=0, executor=cast(Executor, Kept()), jobs=4)
    assert [handle.ran for handle in handles] == [True] + 7 * [False]
    assert all(handle.cancelled for handle in handles[1:])


def test_errors_come_in_the_order_of_the_bitstream() -> None:
    data = bytearray(nnr.encode({f"w{k}": RNG.normal(0, 0.1, (40, 30)).astype("f4") for k in range(6)}))
    ends = [unit.offset + unit.size.nnr_unit_size for unit in nnr.units(bytes(data))]
    for end in ends[3:6:2]:
        data[end - 2] ^= 0xFF
    with pytest.raises(nnr.NnrError) as one:
        nnr.decode(bytes(data))
    for start in ENGINES.values():
        with start() as executor, pytest.raises(type(one.value)) as other:
            nnr.decode(bytes(data), executor=executor)
        assert str(other.value) == str(one.value)


def test_a_worker_without_the_file(model: Path, tmp_path: Path) -> None:
    source, bitstream = tmp_path / "m.safetensors", tmp_path / "m.nnr"
    for path, call in (
        (source, lambda e: nnr.encode(source, executor=e)),
        (bitstream, lambda e: nnr.decode(bitstream, executor=e)),
    ):
        shutil.copy(model.with_suffix(path.suffix), path)
        with pytest.raises(nnr.WorkerError, match=rf"worker \S+:\d+ cannot read {path} \(No such file"):
            call(Away(lambda: path.unlink(missing_ok=True)))  # noqa: B023
        shutil.copy(model.with_suffix(path.suffix), path)
        with pytest.raises(nnr.NnrError, match="change") as caught:
            call(Away(lambda: os.utime(path, (1, 1))))  # noqa: B023
        assert str(path) in str(caught.value)
        assert any(":" in note for note in getattr(caught.value, "__notes__", [str(caught.value)]))


def test_other_machines_have_other_inodes(model: Path, tmp_path: Path) -> None:
    """Size and modification time determine whether a file is the same."""
    path = tmp_path / "m.safetensors"
    shutil.copy2(model, path)

    def another() -> None:
        shutil.copy2(path, tmp_path / "copy")
        os.replace(tmp_path / "copy", path)

    assert nnr.encode(path, executor=cast(Executor, Away(another))) == model.with_suffix(".nnr").read_bytes()


# ------------------------------------------------------------------------------------------------ processes that die
DEADLY = '''
import os
from collections.abc import Mapping

import numpy as np

class Deadly(Mapping):
    """Tensors of which one ends the process that reads it: always, or once, as a file tells.

    They are made when they are read: before Python 3.11.5, ProcessPoolExecutor hangs if a process dies while a large
    task is sent to it.
    """

    def __init__(self, names, name, pid, once=None):
        self.names, self.name, self.pid, self.once = names, name, pid, once

    def __getitem__(self, name):
        if name == self.name and os.getpid() != self.pid and not (self.once and os.path.exists(self.once)):
            if self.once:
                open(self.once, "w").close()
            os._exit(1)
        return np.random.default_rng(int(name[1:])).normal(0, 0.1, (300, 300)).astype("f4")

    def only(self, names):
        return Deadly(names, self.name, self.pid, self.once)

    def __iter__(self):
        return iter(self.names)

    def __len__(self):
        return len(self.names)
'''


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Mapping[str, Array]]]:
    """Write a module for other processes that makes tensors, one of which kills its worker."""
    (tmp_path / "deadly_tensors.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))
    import deadly_tensors  # type: ignore[import-not-found]

    names = [f"w{k}" for k in range(6)]
    yield lambda once=None: deadly_tensors.Deadly(names, "w3", os.getpid(), once)
    del sys.modules["deadly_tensors"]


@pytest.mark.parametrize(
    "start", [ENGINES["processes"], ENGINES["one process"], pytest.param(loky_executor, marks=pytest.mark.clients)]
)
def test_a_process_that_dies(start: Any, deadly: Callable[..., Mapping[str, Array]], tmp_path: Path) -> None:
    with pytest.raises(nnr.WorkerError, match="lost the work on tensor 'w"), start() as executor:
        nnr.encode_file(deadly(), tmp_path / "x.nnr", executor=executor)
    assert not (tmp_path / "x.nnr").exists()


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.filterwarnings("ignore")
def test_dask_tries_again(deadly: Callable[..., Mapping[str, Array]], tmp_path: Path) -> None:
    """Dask retries on another or a new worker, and gives up on a task that kills every worker."""
    with dask_executor() as executor:
        tensors = deadly(str(tmp_path / "died"))
        nnr.encode_file(tensors, tmp_path / "x.nnr", executor=executor)
        assert (tmp_path / "died").exists()
        assert (tmp_path / "x.nnr").read_bytes() == nnr.encode(dict(tensors))
        with pytest.raises(nnr.WorkerError, match=r"lost the work on tensor 'w3'.*KilledWorker"):
            nnr.encode_file(deadly(), tmp_path / "y.nnr", executor=executor)
        assert not (tmp_path / "y.nnr").exists()


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.filterwarnings("ignore")
def test_dask_with_a_worker_killed_on_the_way(tmp_path: Path) -> None:
    """Workers read a checkpoint themselves; the bytes are equal although one worker dies during encoding."""
    distributed = pytest.importorskip("dask.distributed")
    many = {f"w{k}": RNG.normal(0, 0.1, (1000, 1000)).astype("f4") for k in range(40)}
    nnr.save(many, tmp_path / "m.safetensors")
    nnr.encode_file(tmp_path / "m.safetensors", tmp_path / "one.nnr", effort=1)
    nnr.decode_file(tmp_path / "one.nnr", tmp_path / "one.safetensors")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        done: list[object] = []

        def kill(name: str, *_: int) -> None:
            done.append(name)
            if len(done) == 5:
                os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

        executor = client.get_executor(pure=False)
        source = tmp_path / "m.safetensors"
        nnr.encode_file(source, tmp_path / "two.nnr", effort=1, executor=executor, progress=kill)
        done.clear()
        nnr.decode_file(tmp_path / "two.nnr", tmp_path / "two.safetensors", executor=executor, progress=kill)
    for suffix in (".nnr", ".safetensors"):
        one, two = (tmp_path / f"{name}{suffix}" for name in ("one", "two"))
        assert two.read_bytes() == one.read_bytes()


# ------------------------------------------------------------------------------------------------ errors
def all_errors() -> Iterator[nnr.NnrError]:
    classes = [nnr.NnrError]
    for cls in classes:
        classes += cls.__subclasses__()
        yield nnr.IncompleteError(5, ["a", "b"]) if cls is nnr.IncompleteError else cls("what is wrong")


@pytest.mark.parametrize("error", [*all_errors()], ids=lambda error: type(error).__name__)
def test_errors_survive_the_way_back(error: nnr.NnrError) -> None:
    error.add_note("worker a:1")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)

    def fail() -> int:
        raise error

    results, other = pickle.loads(
        pickle.dumps(pool_module.perform([lambda: 1, fail, lambda: 2], CancelToken(), range(3)))
    )
    assert results == [1]
    assert type(other) is type(error)
    assert str(other) == str(error)


class _Work(pool_module.Task[str]):
    """Task that returns its name; the task without name fails."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.names, self.nbytes = [name], nbytes

    def __call__(self) -> str:
        check_cancelled()
        if not self.names[0]:
            raise nnr.EncodeError("what is wrong")
        return self.names[0]


def test_an_error_leaves_earlier_tasks_of_later_batches_alone() -> None:
    """Both small tasks are submitted together, before the large one between them."""
    tasks = [_Work("small", 1), _Work("large", pool_module.GROUP + 1), _Work("", 1)]
    with pool_module.Pool(2, cast(Executor, Now())) as pool:
        results = pool.run(tasks)
        assert [next(results), next(results)] == ["small", "large"]
        with pytest.raises(nnr.EncodeError, match="what is wrong"):
            next(results)
