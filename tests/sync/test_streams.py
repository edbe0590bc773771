"""Versions in pipes, files and messages."""

from __future__ import annotations

import io
import os
import random
import threading

import pytest

import nnr_codec as nnr
from nnr_codec.sync import Publisher, Subscriber
from nnr_codec.sync.records import HEAD, MAGIC
from nnr_codec.sync.subscriber import MOST_WAITING

from .support import has, model


def frames(count: int, **options: object) -> list[bytes]:
    """Return the messages of versions of a model."""
    publisher = Publisher(None, **options)  # type: ignore[arg-type]
    return [publisher.publish(model(step)).frame for step in range(count)]


#: Messages of six versions with an additional anchor of version 4.
MESSAGES = frames(6, anchor_every=3)


def test_versions_arrive_through_a_pipe() -> None:
    reading, writing = os.pipe()

    def publish() -> None:
        with os.fdopen(writing, "wb") as file:
            publisher = Publisher(file)
            for step in range(5):
                assert publisher.publish(model(step)).frame == b""

    thread = threading.Thread(target=publish)
    thread.start()
    with os.fdopen(reading, "rb") as file:
        subscriber, seen = Subscriber(file), 0
        while (version := subscriber.poll()) is not None:
            assert version > seen and has(subscriber, model(version - 1))
            seen = version
    thread.join()
    assert seen == 5


def test_unbuffered_files_get_whole_frames() -> None:
    class Slow(io.BytesIO):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            return super().write(bytes(data)[:1000])

    file = Slow()
    publisher = Publisher(file)
    publisher.publish(model(0))
    publisher.publish(model(1))
    subscriber = Subscriber(io.BytesIO(file.getvalue()))
    assert subscriber.poll() == 2 and has(subscriber, model(1)) and subscriber.poll() is None


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.medium), 7, 100, 5000])
def test_frames_may_arrive_in_parts_of_any_size(size: int) -> None:
    subscriber, data, seen = Subscriber(None), b"".join(MESSAGES[:2]), []
    for start in range(0, len(data), size):
        if version := subscriber.feed(data[start : start + size]):
            seen.append(version)
            assert has(subscriber, model(version - 1))
    assert seen == [1, 2] and not subscriber.needs_anchor


def test_late_joiner_waits_for_an_anchor() -> None:
    subscriber = Subscriber(None)
    assert (subscriber.feed(MESSAGES[1]), subscriber.needs_anchor) == (None, True)
    assert (subscriber.feed(MESSAGES[3]), subscriber.needs_anchor) == (4, False)
    assert has(subscriber, model(3)) and subscriber.feed(MESSAGES[4]) == 5


def test_anchor_is_published_on_request() -> None:
    publisher, subscriber = Publisher(None), Subscriber(None)
    publisher.publish(model(0))
    assert subscriber.feed(publisher.publish(model(1)).frame) is None
    publication = publisher.publish(model(2), anchor=True)
    assert publication.kind == "update" and publication.anchor_bytes > publication.nbytes
    assert subscriber.feed(publication.frame) == 3 and has(subscriber, model(2))
    assert publisher.publish(model(3)).anchor_bytes == 0


def test_reordered_and_repeated_frames_do_no_harm() -> None:
    for order in ([0, 2, 1, 3, 5, 4], [0, 5, 4, 3, 2, 1], [0, 0, 1, 1, 0, 2, 2, 3, 1, 4, 5, 5], [3, 0, 5, 4, 1]):
        subscriber = Subscriber(None)
        for number in order:
            subscriber.feed(MESSAGES[number])
            assert not subscriber.version or has(subscriber, model(subscriber.version - 1))
        assert subscriber.version == 6 and not subscriber.needs_anchor, order


def test_lost_frames_are_made_up_for_by_the_next_anchor() -> None:
    subscriber = Subscriber(None)
    assert subscriber.feed(MESSAGES[0]) == 1
    assert (subscriber.feed(MESSAGES[2]), subscriber.needs_anchor) == (None, True)
    assert has(subscriber, model(0))
    assert (subscriber.feed(MESSAGES[3]), subscriber.needs_anchor) == (4, False)
    assert has(subscriber, model(3))


def test_frames_that_wait_are_limited() -> None:
    messages = frames(MOST_WAITING + 9)
    subscriber = Subscriber(None)
    for message in messages[2:]:
        subscriber.feed(message)
    assert len(subscriber._waiting) == MOST_WAITING
    small = Subscriber(None, limits=nnr.Limits(max_pending_bytes=10_000))
    for message in messages[2:]:
        small.feed(message)
    assert 0 < len(small._waiting) < 9
    assert small.feed(messages[0]) == 1  # an anchor that does not have to wait may be larger


@pytest.mark.medium
def test_damage_anywhere_is_detected_and_the_next_anchor_recovers() -> None:
    rng, whole = random.Random(os.getpid()), b"".join(MESSAGES)
    for _ in range(60):
        data, place = bytearray(whole), rng.randrange(len(whole))
        match rng.randrange(4):
            case 0:
                data[place] ^= 1 << rng.randrange(8)
            case 1:
                del data[place : place + rng.randrange(1, 3000)]
            case 2:
                data[place:place] = rng.randbytes(rng.randrange(1, 300))
            case 3:
                data[place:place] = MAGIC + rng.randbytes(rng.randrange(1, 60))
        subscriber = Subscriber(None)
        step = rng.choice((100, 1000, 10**6))
        for start in range(0, len(data), step):
            if version := subscriber.feed(bytes(data[start : start + step])):
                assert has(subscriber, model(version - 1))
        for message in MESSAGES[3:]:  # an anchor, and the versions after it
            subscriber.feed(message)
        assert subscriber.version == 6 and has(subscriber, model(5)), place


def test_frame_that_lost_bytes_is_skipped_as_soon_as_another_one_begins() -> None:
    subscriber = Subscriber(None)
    subscriber.feed(MESSAGES[0][:-5000])  # a publisher was killed
    other = frames(2)
    assert subscriber.feed(other[0]) == 1 and has(subscriber, model(0))
    assert subscriber.feed(other[1]) == 2 and has(subscriber, model(1))


def test_restarted_publisher_is_followed_and_earlier_streams_are_not() -> None:
    first, second, third = frames(3), frames(2), frames(2)
    subscriber = Subscriber(None)
    for message in first:
        subscriber.feed(message)
    assert subscriber.feed(second[1]) is None and subscriber.version == 3  # of another stream
    assert subscriber.feed(second[0]) == 1 and has(subscriber, model(0))
    stream = subscriber.stream
    assert subscriber.feed(first[0]) is None and subscriber.stream == stream
    assert subscriber.feed(second[1]) == 2
    assert subscriber.feed(MESSAGES[3]) is None  # an older anchor
    assert subscriber.feed(third[0]) == 1 and subscriber.stream != stream


def test_subscriber_without_a_version_follows_the_stream_that_has_an_anchor() -> None:
    other, subscriber = frames(2), Subscriber(None)
    assert subscriber.feed(other[1]) is None
    assert subscriber.feed(MESSAGES[3]) == 4
    assert subscriber.feed(MESSAGES[4]) == 5 and has(subscriber, model(4))


def test_publisher_continues_with_an_anchor_after_a_failed_write() -> None:
    """The subscriber may have the version that failed: after its last bytes were written, a reply was lost."""

    class Broken(io.BytesIO):
        left = 10**6

        def write(self, data: bytes) -> int:  # type: ignore[override]
            if self.left < len(data):
                super().write(bytes(data)[: self.left])
                raise BrokenPipeError
            return super().write(data)

        def flush(self) -> None:
            if self.left == 0:
                raise BrokenPipeError

    for left in (700, 0):
        file = Broken()
        publisher = Publisher(file)
        publisher.publish(model(0))
        file.left = left
        with pytest.raises(BrokenPipeError):
            publisher.publish(model(1))
        file.left = 10**6
        publication = publisher.publish(model(2))
        assert (publication.version, publication.kind) == (3, "anchor")
        subscriber = Subscriber(io.BytesIO(file.getvalue()))
        assert subscriber.poll() == 3 and has(subscriber, model(2))


def test_no_memory_is_reserved_for_a_frame_before_its_bytes_arrive() -> None:
    subscriber = Subscriber(None, limits=nnr.Limits(max_archive_bytes=1000))
    with pytest.raises(nnr.LimitError, match="max_archive_bytes"):
        subscriber.feed(MESSAGES[0][: HEAD + 1000])
    assert subscriber.feed(MESSAGES[0][HEAD + 1000 :]) is None


def test_signed_frames_are_followed_and_others_rejected() -> None:
    signed = frames(3, sign=lambda data: data[:3])
    subscriber = Subscriber(None, verify=lambda data, signature: data[:3] == signature)
    assert subscriber.feed(signed[0]) == 1
    with pytest.raises(nnr.FormatError, match="has no signature"):
        subscriber.feed(MESSAGES[0])
    assert subscriber.feed(signed[1]) == 2 and has(subscriber, model(1))


def test_selection_of_tensors_follows_frames() -> None:
    subscriber = Subscriber(None, names=["half"], slices={"half": (slice(2, 5),)})
    for step, message in enumerate(MESSAGES):
        assert subscriber.feed(message) == step + 1
        assert nnr.digest(subscriber.tensors["half"]) == nnr.digest(model(step)["half"][2:5])


def test_subscriber_without_a_source_cannot_poll() -> None:
    with pytest.raises(TypeError, match=r"feed\(\)"):
        Subscriber(None).poll()
