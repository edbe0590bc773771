"""Random schedules of publishing and faults over folders and byte streams: ``python -m tests.sync.schedules``.

A schedule is a random sequence of actions: publish, restart, join, poll, and faults of storage or transport.
After each action, a subscriber has every bit of a version that was published. If the files that lead to a newer version
are intact and visible, `poll` returns that version; otherwise its error names a version with a fault. After all faults,
one anchor leads every subscriber to the newest version.
"""

from __future__ import annotations

import argparse
import hmac
import json
import random
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np

import nnr_codec as nnr
from nnr_codec.errors import LimitError
from nnr_codec.model import Array
from nnr_codec.sync import Publisher, Subscriber, transport
from nnr_codec.sync.records import MAGIC
from nnr_codec.sync.subscriber import MOST_WAITING

Tensors = dict[str, Array]
#: Name, type, shape and bits of each tensor.
Content = dict[str, tuple[str, tuple[int, ...], bytes]]

SHAPES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "layer.w": (ml_dtypes.bfloat16, (4, 2)),
    "layer.b": (np.float32, (3,)),
    "half": (np.float16, (2, 2)),
    "step": (np.int64, ()),
    "empty": (np.float32, (0, 3)),
}
#: Selections of subscribers.
SELECTIONS: list[dict[str, Any]] = [{}, {}, {"names": ["layer.*", "no.*"]}, {"slices": {"layer.w": (slice(1, 3),)}}]
#: Bound of the errors of lossy schedules.
MAX_ERROR = 0.01
KEY = b"key of a test"


class CrashError(BaseException):
    """End of the publisher's process."""


def content_of(tensors: Mapping[str, Array]) -> Content:
    return {name: (array.dtype.name, array.shape, array.tobytes()) for name, array in tensors.items()}


def sign(data: bytes) -> bytes:
    return hmac.digest(KEY, data, "sha256")


def verify(data: bytes, signature: bytes) -> bool:
    return hmac.compare_digest(sign(data), signature)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return other bytes."""
    if not data:
        return b"\0"
    place = rng.randrange(len(data))
    return rng.choice(
        [
            data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :],
            data[:place],
            data + data[: place + 1],
            rng.randbytes(len(data)),
        ]
    )


class Trainer:
    """Models with random changes."""

    def __init__(self, rng: random.Random) -> None:
        self._numbers = np.random.default_rng(rng.getrandbits(64))
        self._rng = rng
        # A tensor that never changes makes updates smaller than anchors.
        self.tensors: Tensors = {"frozen": self._numbers.integers(0, 256, 500, np.uint8)}
        for name in ["layer.w", *rng.sample(sorted(SHAPES), 2)]:
            dtype, shape = SHAPES[name]
            self.tensors[name] = np.asarray(self._numbers.normal(0, 1, shape)).astype(dtype)

    def step(self) -> Tensors:
        """Change some tensors, and return all of them."""
        kind = self._rng.randrange(20)
        for name, array in list(self.tensors.items()):
            if kind == 0 or name == "frozen" or array.size == 0 or self._rng.random() < 0.3:
                continue
            change = self._numbers.normal(0, 0.01 if array.dtype.kind != "i" else 3, array.shape)
            change *= self._numbers.random(array.shape) < self._rng.choice([0.1, 1])
            self.tensors[name] = np.asarray(array.astype(np.float64) + change).astype(array.dtype)
        if kind == 1 and "layer.b" in self.tensors:
            self.tensors["layer.b"][0] = self._rng.choice([np.nan, np.inf, -0.0])
        elif kind == 2:
            self.tensors[f"new.{len(self.tensors)}"] = np.ones((2, 3), np.float32)
        elif kind == 3:
            self.tensors = {name: array for name, array in self.tensors.items() if not name.startswith("new.")}
        elif kind == 4 and "half" in self.tensors:
            self.tensors["half"] = np.zeros((3,), self._rng.choice([np.float16, np.float32]))
        return self.tensors


class Account:
    """Published versions of one schedule: the given models, or if lossy, restored without nnr_codec.sync."""

    def __init__(self, lossy: bool) -> None:
        self.lossy = lossy
        self.models: dict[tuple[str, int], nnr.Model] = {}
        self.identities: dict[tuple[str, int], str] = {}

    def add(self, record: Mapping[str, Any], payload: bytes, given: Tensors) -> None:
        """Add a version when its record is written."""
        key = record["stream"], record["version"]
        assert record["kind"] == "anchor" or key not in self.models, f"two updates of version {key}"
        model = nnr.Model({name: array.copy() for name, array in given.items()})
        if self.lossy and record["kind"] == "anchor":
            model = nnr.decode(payload)
        elif self.lossy:
            model = nnr.apply_update(self.models[record["stream"], record["version"] - 1], payload)
            for name, array in given.items():
                with np.errstate(invalid="ignore"):
                    error = np.abs(model[name].astype(np.float64) - array.astype(np.float64))
                assert not (error > MAX_ERROR * (1 + 1e-12)).any(), f"error of {name} in version {key}"
        identity = nnr.identity(model)
        assert self.identities.setdefault(key, identity) == identity, f"two models of version {key}"
        assert record["identity"] == identity
        self.models[key] = model

    def check(self, subscriber: Subscriber, selection: Mapping[str, Any]) -> None:
        """Compare a subscriber with the version that it claims to have."""
        if not subscriber.version:
            assert not subscriber.tensors
            return
        key = subscriber.stream, subscriber.version
        assert key in self.models, f"version {key} was never published"
        expected = self.models[key].tensors
        if names := selection.get("names"):
            expected = {name: each for name, each in expected.items() if any(fnmatchcase(name, n) for n in names)}
        for name, part in selection.get("slices", {}).items():
            expected = {**expected, name: expected[name][part]}
        assert content_of(subscriber.tensors) == content_of(expected), f"other bits than version {key}"
        assert subscriber.identity == self.identities[key], f"other identity than version {key}"


# ------------------------------------------------------------------------------------------------ folders
class Disk:
    """Files of a folder with their history."""

    def __init__(self) -> None:
        self.history: dict[str, list[bytes | None]] = {}
        self.original: dict[str, bytes] = {}

    def get(self, path: str) -> bytes | None:
        return self.history.get(path, [None])[-1]

    def put(self, path: str, data: bytes | None) -> None:
        self.history.setdefault(path, [None]).append(data)

    def paths(self) -> list[str]:
        return sorted(path for path in self.history if self.get(path) is not None)

    def is_intact(self, path: str) -> bool:
        """Return whether a file has its content."""
        return self.get(path) == self.original[path]


class View:
    """Folder as one process sees it: late, and with failing operations."""

    def __init__(self, disk: Disk, rng: random.Random, faults: float, stats: Counter[str]) -> None:
        self.disk, self._rng, self.faults, self._stats = disk, rng, faults, stats
        self.lag = faults
        self._listed: dict[str, int] = {}
        self._read: dict[str, int] = {}

    def _seen(self, seen: dict[str, int], path: str) -> bytes | None:
        events = self.disk.history.get(path, [None])
        if self._rng.random() >= self.lag:
            seen[path] = len(events) - 1
        return events[seen.get(path, 0)]

    def _fault(self, what: str, rate: float = 1) -> bool:
        if self._rng.random() < self.faults * rate:
            self._stats[what] += 1
            return True
        return False

    def _may_fail(self) -> None:
        if self._fault("failed operations", 0.2):
            raise OSError("a fault of the schedule")

    def sizes(self, under: str) -> dict[str, int]:
        self._may_fail()
        seen = ((path, self._seen(self._listed, path)) for path in list(self.disk.history))
        return {path: len(data) for path, data in seen if data is not None and path.startswith(under + "/")}

    def read(self, paths: Iterable[str], most: int) -> dict[str, bytes]:
        self._may_fail()
        found = {}
        for path in paths:
            data = self._seen(self._read, path)
            if data is None:
                continue
            if self._fault("damaged reads", 0.1):
                data = damaged(self._rng, data)
            if len(data) > most:
                raise LimitError(f"{path} has {len(data)} bytes, more than {most}")
            found[path] = data
        return found

    def write(self, path: str, data: bytes, *, new: bool = False) -> None:
        self._may_fail()
        if self._fault("crashes", 0.1):
            raise CrashError
        if new and self.disk.get(path) is not None:
            raise FileExistsError(path)
        self.disk.put(path, data)
        self.disk.original.setdefault(path, data)
        if self._fault("crashes", 0.1):
            raise CrashError
        if self._fault("written in spite of an error", 0.1):
            raise OSError("a fault of the schedule after the write")

    def age(self, path: str) -> float | None:
        return None if self.disk.get(path) is None else 0.0

    def remove(self, path: str) -> None:
        self._may_fail()
        self.disk.put(path, None)


class FolderSchedule:
    """One schedule over a folder."""

    def __init__(self, seed: int, stats: Counter[str]) -> None:
        self.rng, self.stats = random.Random(f"folder {seed}"), stats
        self.faults = self.rng.choice([0, 0.2, 0.5, 0.9])
        self.lossy, self.signed = self.rng.random() < 0.15, self.rng.random() < 0.2
        self.options: dict[str, Any] = {
            "anchor_every": self.rng.choice([None, 0, 1, 2, 3, 5]),
            "keep": self.rng.choice([None, 1, 2]),
            "effort": 1,
            **({"max_error": MAX_ERROR} if self.lossy else {}),
            **({"sign": sign} if self.signed else {}),
        }
        self.disk, self.trainer, self.account = Disk(), Trainer(self.rng), Account(self.lossy)
        self.publisher: Publisher | None = None
        self.view = View(self.disk, self.rng, 0, stats)
        self.subscribers: list[tuple[Subscriber, View, dict[str, Any]]] = []
        self.noted: set[str] = set()

    def run(self) -> None:
        for _ in range(self.rng.randint(5, 15)):
            action = self.rng.choice(
                [self.publish] * 5 + [self.poll] * 5 + [self.damage] * 2 + [self.restart, self.join]
            )
            action()
            for subscriber, _, selection in self.subscribers:
                self.account.check(subscriber, selection)
        self.join()
        for subscriber, view, selection in self.subscribers:
            self.calm(subscriber, view, selection)
        self.finish()

    def publish(self, anchor: bool = False) -> None:
        tensors = self.trainer.step()
        try:
            if self.publisher is None:
                self.view = View(self.disk, self.rng, self.faults / 3, self.stats)
                self.view.lag = 0  # otherwise it may publish deleted versions again
                self.publisher = Publisher("fake", storage_options={"folder": self.view}, **self.options)
            publication = self.publisher.publish(tensors, anchor=anchor)
            self.stats["publications"] += 1
            self.stats["updates"] += publication.kind == "update"
            assert f"versions/{publication.version}.json" in self.disk.history
        except CrashError:
            self.publisher = None
        except FileExistsError:
            self.stats["rejected publications"] += 1
            self.publisher = None
        except OSError:
            self.stats["failed publications"] += 1
            if self.rng.random() < 0.3:
                self.publisher = None
        except nnr.FormatError:  # of a damaged file, when a folder is continued
            assert self.publisher is None and self.faults
            self.stats["folders that cannot be continued"] += 1
        for path, data in self.disk.original.items():
            if path.endswith(".json") and path != "sync.json" and path not in self.noted:
                self.noted.add(path)
                record = json.loads(data)
                payload = self.disk.original[f"payloads/{record['version']}-{record['sha256'][:16]}.nnr"]
                self.account.add(record, payload, tensors)

    def restart(self) -> None:
        self.publisher = None

    def join(self) -> None:
        if len(self.subscribers) == 3:
            del self.subscribers[self.rng.randrange(3)]
        selection = self.rng.choice(SELECTIONS)
        view = View(self.disk, self.rng, self.faults, self.stats)
        check = {"verify": verify} if self.signed else {}
        subscriber = Subscriber("fake", storage_options={"folder": view}, **selection, **check)
        self.subscribers.append((subscriber, view, selection))

    def poll(self) -> None:
        if not self.subscribers:
            self.join()
        subscriber, view, selection = self.rng.choice(self.subscribers)
        if self.rng.random() < 0.2:
            self.calm(subscriber, view, selection)
            return
        before = subscriber.version
        try:
            version = subscriber.poll()
        except (nnr.NnrError, OSError) as error:
            self.stats[f"poll: {type(error).__name__}"] += 1
            assert subscriber.version == before
        else:
            assert (version or before) == subscriber.version >= before

    def damage(self) -> None:
        """Damage or delete a file, or exchange two."""
        paths = [path for path in self.disk.paths() if path != "sync.json"]
        if not paths or not self.faults:
            return
        self.stats["damaged files"] += 1
        path, other = self.rng.choice(paths[-4:]), self.rng.choice(paths)
        data = self.disk.get(path)
        assert data is not None
        # Without its record, the newest version does not exist, and a new publisher publishes it again.
        is_newest = path == max((path for path in paths if path.startswith("versions/")), key=version_of, default="")
        lost = b"" if is_newest else None
        self.disk.put(path, self.rng.choice([damaged(self.rng, data), lost, b"", self.disk.get(other)]))

    def calm(self, subscriber: Subscriber, view: View, selection: Mapping[str, Any]) -> None:
        """Poll without failing operations: it returns the newest version that can be restored, or names a fault."""
        faults, view.faults, view.lag = view.faults, 0, 0
        newest = max((version_of(path) for path in self.disk.paths() if path.startswith("versions/")), default=0)
        reachable = self.reachable(subscriber.version, newest)
        self.stats["checked polls"] += 1
        try:
            for _ in range(3):
                if subscriber.poll() is None:
                    break
            problem = ""
        except nnr.NnrError as error:
            problem = str(error)
        self.account.check(subscriber, selection)
        goal = f"newest {newest}, reachable {reachable}, at {subscriber.version}: {problem}"
        assert subscriber.version == reachable, goal
        assert bool(problem) == (newest != reachable), goal
        if problem:
            faulty = {version_of(path) for path in self.disk.original if not self.disk.is_intact(path)}
            named = {int(number) for number in re.findall(r"(?:versions/|anchors/|payloads/|version )(\d+)", problem)}
            assert named & faulty or "versions in between are missing" in problem or "older than" in problem, goal
            self.stats["errors that name a fault"] += 1
        view.faults = view.lag = faults

    def reachable(self, version: int, newest: int) -> int:
        """Return the newest version, up to the newest listed one, to which intact files lead."""
        found = {version} if version else set()
        intact = {self.disk.original[path]: version_of(path) for path in self.noted}
        texts = {path: self.disk.get(path) for path in self.noted}  # an anchor may replace the update of its version
        records = [json.loads(text) for path, text in texts.items() if text and intact.get(text) == version_of(path)]
        for record in sorted(records, key=lambda record: record["version"]):
            number = record["version"]
            payload = f"payloads/{number}-{record['sha256'][:16]}.nnr"
            if (
                version < number <= newest
                and self.disk.is_intact(payload)
                and (record["kind"] == "anchor" or number - 1 in found)
            ):
                found.add(number)
        return max(found, default=0)

    def finish(self) -> None:
        """Publish an anchor without faults: every subscriber has its version."""
        self.faults = self.view.faults = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):  # the first call may report an earlier fault
                count = self.stats["publications"]
                self.publish(anchor=True)
                if self.stats["publications"] > count:
                    break
        assert self.publisher is not None, "no version can be published after all faults"
        for subscriber, view, selection in self.subscribers:
            view.faults = view.lag = 0
            newest = self.publisher.version
            if subscriber.version != newest:
                assert subscriber.poll() == newest, f"{subscriber.version} instead of {newest}"
            self.account.check(subscriber, selection)


def version_of(path: str) -> int:
    """Return the version of a file of a folder."""
    found = re.search(r"/(\d+)", path)
    return int(found[1]) if found else 0


# ------------------------------------------------------------------------------------------------ byte streams
class Pipe:
    """Writable file that may fail, and collects what was written."""

    def __init__(self, rng: random.Random, faults: float) -> None:
        self._rng, self.faults, self.data = rng, faults, bytearray()

    def write(self, data: bytes) -> int:
        failure = self._rng.random() < self.faults * 0.05
        count = self._rng.randint(1, len(data)) if self._rng.random() < 0.3 and len(data) else len(data)
        self.data += data[:count]
        if failure:
            raise BrokenPipeError("a fault of the schedule")
        return count

    def flush(self) -> None:
        if self._rng.random() < self.faults * 0.05:
            raise TimeoutError("a fault of the schedule")


class Source:
    """Readable file with the bytes that have arrived."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self.data = rng, bytearray()

    def read1(self, count: int) -> bytes:
        part = bytes(
            self.data[: self._rng.randint(1, count) if self._rng.random() < 0.5 else self._rng.randint(1, 200)]
        )
        del self.data[: len(part)]
        return part

    read = read1


def frames_of(data: bytes) -> Iterator[tuple[dict[str, Any], bytes, bytes]]:
    """Yield the record, payload and bytes of complete frames."""
    place = 0
    while place < len(data):
        assert MAGIC.startswith(data[place : place + len(MAGIC)])
        start = place + len(MAGIC) + 36
        if len(data) < start:
            return
        length = int.from_bytes(data[place + len(MAGIC) : place + len(MAGIC) + 4], "little")
        if len(data) < start + length:
            return
        record = json.loads(data[start : start + length])
        stop = start + length + record["size"]
        if len(data) < stop:
            return
        yield record, bytes(data[start + length : stop]), bytes(data[place:stop])
        place = stop


class StreamSchedule:
    """One schedule over byte streams that lose, repeat, exchange and damage frames."""

    def __init__(self, seed: int, stats: Counter[str]) -> None:
        self.rng, self.stats = random.Random(f"stream {seed}"), stats
        self.faults = self.rng.choice([0, 0.2, 0.5, 0.9])
        self.cuts = self.rng.random() < 0.5  # faults inside frames
        self.lossy, self.signed = self.rng.random() < 0.15, self.rng.random() < 0.2
        self.options: dict[str, Any] = {
            "anchor_every": self.rng.choice([None, 0, 1, 2, 3, 5]),
            "effort": 1,
            **({"max_error": MAX_ERROR} if self.lossy else {}),
            **({"sign": sign} if self.signed else {}),
        }
        self.trainer, self.account = Trainer(self.rng), Account(self.lossy)
        self.publisher: Publisher | None = None
        self.pipe: Pipe | None = None
        self.subscribers: list[tuple[Subscriber, Source | None, dict[str, Any], list[bytes]]] = []
        self.frames: dict[bytes, dict[str, Any]] = {}
        self.received: dict[tuple[Subscriber, str], list[dict[str, Any]]] = {}

    def run(self) -> None:
        for _ in range(self.rng.randint(5, 18)):
            action = self.rng.choice([self.publish] * 6 + [self.deliver] * 6 + [self.restart, self.join])
            action()
        self.join()
        self.finish()

    def publish(self, anchor: bool = False) -> None:
        tensors = self.trainer.step()
        if self.publisher is None:
            self.pipe = Pipe(self.rng, self.faults) if self.rng.random() < 0.7 else None
            self.publisher = Publisher(self.pipe, **self.options)  # type: ignore[arg-type]
        try:
            publication = self.publisher.publish(tensors, anchor=anchor)
        except OSError:
            self.stats["failed publications"] += 1
            if self.rng.random() < 0.3:
                self.publisher = None
            assert self.pipe is not None
            data = bytes(self.pipe.data)
        else:
            self.stats["publications"] += 1
            self.stats["updates"] += publication.kind == "update"
            data = bytes(self.pipe.data) if self.pipe else publication.frame
        if self.pipe:
            self.pipe.data.clear()
        rest = data
        for record, payload, frame in frames_of(data):
            self.account.add(record, payload, tensors)
            rest = rest[len(frame) :]
            self.frames[frame] = record
            for *_, queue in self.subscribers:
                queue.append(frame)
        if rest:
            for *_, queue in self.subscribers:
                queue.append(rest)

    def restart(self) -> None:
        if self.rng.random() < 0.5:
            self.publisher = None

    def join(self) -> None:
        if len(self.subscribers) == 3:
            del self.subscribers[self.rng.randrange(3)]
        selection = self.rng.choice(SELECTIONS)
        source = Source(self.rng) if self.rng.random() < 0.4 else None
        check = {"verify": verify} if self.signed else {}
        self.subscribers.append((Subscriber(source, **selection, **check), source, selection, []))  # type: ignore[arg-type]

    def deliver(self) -> None:
        if not self.subscribers:
            self.join()
        subscriber, source, selection, queue = self.rng.choice(self.subscribers)
        while queue and self.rng.random() < 0.8:
            self.give(subscriber, source, self.transported(queue))
            self.account.check(subscriber, selection)

    def transported(self, queue: list[bytes]) -> bytes:
        """Return the next bytes of a transport with faults."""
        rng = self.rng
        place = rng.randrange(len(queue)) if rng.random() < self.faults * 0.5 else 0
        frame = queue.pop(place)
        if rng.random() < self.faults * 0.3:
            self.stats["lost frames"] += 1
            return b""
        if rng.random() < self.faults * 0.3:
            self.stats["repeated frames"] += 1
            queue.insert(rng.randint(0, len(queue)), frame)
        if self.cuts and rng.random() < self.faults * 0.4:
            self.stats["damaged frames"] += 1
            frame = rng.choice([damaged(rng, frame), frame[rng.randrange(len(frame)) :], MAGIC + frame])
        if self.cuts and rng.random() < self.faults * 0.2:
            frame += rng.randbytes(rng.randrange(50)) + MAGIC[: rng.randrange(9)]
        return frame

    def give(self, subscriber: Subscriber, source: Source | None, data: bytes) -> None:
        """Pass bytes to a subscriber, in parts of any size."""
        before = subscriber.stream, subscriber.version
        if source:
            source.data += data
            while subscriber.poll() is not None:
                pass
        else:
            for part in [data] if self.rng.random() < 0.5 else [data[:50], data[50:300], data[300:]]:
                subscriber.feed(part)
        self.stats["deliveries"] += 1
        after = subscriber.stream, subscriber.version
        assert after[0] != before[0] or after[1] >= before[1]
        if after[0] != before[0]:  # a reordered frame may lead to another stream and back
            self.received.pop((subscriber, after[0]), None)
        if data in self.frames:
            received = self.received.setdefault((subscriber, self.frames[data]["stream"]), [])
            if after[0] == self.frames[data]["stream"]:
                received.append(self.frames[data])
        if not self.cuts:
            received = self.received.get((subscriber, after[0]), [])
            for record in received[-MOST_WAITING:]:
                is_next = record["version"] == after[1] + 1 or record["kind"] == "anchor"
                assert record["version"] <= after[1] or not is_next, f"{record['version']} after {after[1]} was ignored"

    def finish(self) -> None:
        """Publish an anchor, and deliver it and an update without faults."""
        for *_, queue in self.subscribers:
            queue.clear()
        self.faults = 0
        if self.pipe:
            self.pipe.faults = 0
        for last in (True, False):
            self.publish(anchor=last)
            for subscriber, source, selection, queue in self.subscribers:
                while queue:
                    self.give(subscriber, source, queue.pop(0))
                self.account.check(subscriber, selection)
        assert self.publisher is not None
        for subscriber, _, _, _ in self.subscribers:
            found = subscriber.stream, subscriber.version
            newest = self.publisher._stream, self.publisher.version
            assert found == newest, f"{found} instead of {newest}"
            assert not subscriber.needs_anchor, "it has the newest version and needs an anchor"


KINDS = {"folder": FolderSchedule, "stream": StreamSchedule}


def run(kind: str, seed: int, stats: Counter[str]) -> None:
    """Run one schedule. Raise AssertionError."""
    opened = patch.object(transport, "open_folder", lambda url, options: options["folder"])
    with opened, warnings.catch_warnings():
        warnings.simplefilter("ignore", nnr.EncodeWarning)
        KINDS[kind](seed, stats).run()
    stats[f"schedules of a {kind}"] += 1


def run_many(seeds: range) -> tuple[Counter[str], list[tuple[str, int, str]]]:
    """Run schedules, and return statistics and failures."""
    stats: Counter[str] = Counter()
    failures = []
    for seed in seeds:
        for kind in KINDS:
            try:
                run(kind, seed, stats)
            except Exception:
                failures.append((kind, seed, traceback.format_exc()))
    return stats, failures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="number of schedules, half of them over folders")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    options = parser.parse_args()
    start, total = time.perf_counter(), Counter[str]()
    seeds = range(options.first, options.first + options.count // 2)
    parts = [seeds[place : place + 50] for place in range(0, len(seeds), 50)]
    count = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for stats, failures in pool.map(run_many, parts):
            total += stats
            for kind, seed, text in failures:
                count += 1
                print(f"{kind} {seed}: {text.splitlines()[-1]}" if count > 3 else f"{kind} {seed}\n{text}", flush=True)
    for name, number in sorted(total.items()):
        print(f"{number:9,} {name}")
    print(f"{count:9,} failures in {time.perf_counter() - start:.0f} s")
    sys.exit(count > 0)


if __name__ == "__main__":
    main()
