"""T52, T53: hostile folders and byte streams of synchronized weights."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nnr_codec as nnr
from nnr_codec.sync import Publisher, Subscriber
from nnr_codec.sync.records import HEAD, MAGIC, MOST_BYTES, frame_head, record_in

from ..sync.support import has, model
from .support import memory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three versions of a model."""
    folder = tmp_path_factory.mktemp("sync") / "s"
    publisher = Publisher(folder)
    for step in range(3):
        publisher.publish(model(step))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a copy to change."""
    return Path(shutil.copytree(made, tmp_path / "s"))


@pytest.fixture
def follower(folder: Path) -> Subscriber:
    """Return a subscriber at version 1 of the copy."""
    hidden = folder / "versions.hidden"
    hidden.mkdir()
    for number in (2, 3):
        (folder / "versions" / f"{number}.json").rename(hidden / f"{number}.json")
    subscriber = Subscriber(folder)
    assert subscriber.poll() == 1
    for path in hidden.iterdir():
        path.rename(folder / "versions" / path.name)
    (folder / "versions" / "3.json").unlink()
    return subscriber


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a record."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(canonical(content))


def canonical(content: dict[str, Any]) -> str:
    """Return a record as publishers write it, with its digest."""

    def text(content: dict[str, Any]) -> str:
        return json.dumps(content, separators=(",", ":"), sort_keys=True) + "\n"

    content = {key: value for key, value in content.items() if key != "digest"}
    return text(content | {"digest": hashlib.sha256(text(content).encode()).hexdigest()})


def field(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda content: content.update({name: value})


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another version": (field("version", 3), "the record is of version 3"),
    "version 0": (field("version", 0), "an invalid value"),
    "large version": (field("version", 10**30), "an invalid value"),
    "version as text": (field("version", "2"), "wrong type"),
    "version as bool": (field("version", True), "wrong type"),
    "another kind": (field("kind", "x"), "an invalid value"),
    "anchor that is an update": (field("kind", "anchor"), "the payload is an update"),
    "another stream": (field("stream", "0" * 32), "belongs to another stream"),
    "path as stream": (field("stream", "../.."), "an invalid value"),
    "path as digest": (field("sha256", "../../../../etc/passwd"), "an invalid value"),
    "another digest": (field("sha256", "0" * 64), "is missing"),
    "another identity": (field("identity", "sha256:" + "0" * 64), "its record says"),
    "identity without a digest": (field("identity", "me"), "an invalid value"),
    "size as float": (field("size", 1.5), "wrong type"),
    "negative size": (field("size", -1), "an invalid value"),
    "small size": (field("size", 10), "more than 10"),
    "large size": (field("size", 1 << 60), "max_archive_bytes"),
    "odd signature": (field("signature", "abc"), "an invalid value"),
    "time with a newline": (field("time", "2026\n"), "an invalid value"),
    "number as time": (field("time", 3), "wrong type"),
    "unknown field": (field("x", 1), "malformed"),
    "missing field": (lambda content: content.pop("kind"), "malformed"),
    "other format": (field("format", "x"), "not a file of nnr_codec.sync"),
    "other version of the format": (field("format_version", 2), "has version 2"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_t52_malformed_records_are_rejected(
    folder: Path, follower: Subscriber, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    changed(folder / "versions" / "2.json", change)
    with pytest.raises(nnr.NnrError, match=message):
        follower.poll()
    assert follower.version == 1 and has(follower, model(0))


def test_t52_damaged_records_are_rejected(folder: Path, follower: Subscriber) -> None:
    path = folder / "versions" / "2.json"
    path.write_text(re.sub('"time":"2', '"time":"3', path.read_text()))
    with pytest.raises(nnr.FormatError, match="the record is damaged"):
        follower.poll()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 50_000, "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "not a file of nnr_codec.sync"),
        (b" " * (MOST_BYTES + 1), "more than 65,536"),
    ],
)
def test_t52_files_that_are_no_records_are_rejected(
    folder: Path, follower: Subscriber, text: bytes, message: str
) -> None:
    (folder / "versions" / "2.json").write_bytes(text)
    with pytest.raises(nnr.NnrError, match=message):
        follower.poll()
    assert has(follower, model(0))


def test_t52_update_of_another_model_is_rejected(folder: Path, follower: Subscriber, made: Path) -> None:
    """The payload of version 3 as version 2, with a matching record."""
    record = json.loads((made / "versions" / "3.json").read_text())
    (payload,) = made.glob("payloads/3-*")
    shutil.copy(payload, folder / "payloads" / payload.name.replace("3-", "2-"))
    (folder / "versions" / "2.json").write_text(canonical({**record, "version": 2}))
    with pytest.raises(nnr.MissingReferenceError, match="the payload updates sha256"):
        follower.poll()
    assert has(follower, model(0))


def test_t52_whole_model_in_place_of_an_update_is_rejected(folder: Path, follower: Subscriber) -> None:
    data = nnr.encode(model(1), exact=True)
    sha256 = hashlib.sha256(data).hexdigest()
    (folder / "payloads" / f"2-{sha256[:16]}.nnr").write_bytes(data)
    changed(folder / "versions" / "2.json", lambda content: content.update(sha256=sha256, size=len(data)))
    with pytest.raises(nnr.FormatError, match="the payload is a whole model"):
        follower.poll()


def test_t52_files_that_are_too_large_do_not_hide_an_anchor(folder: Path, follower: Subscriber) -> None:
    Publisher(folder).publish(model(5), anchor=True)
    (folder / "versions" / "1.json").write_bytes(b" " * (MOST_BYTES + 1))
    for path in folder.glob("payloads/2-*"):
        path.write_bytes(path.read_bytes() * 100)
    assert follower.poll() == 3 and has(follower, model(5))


def test_t52_damaged_payload_is_not_applied(folder: Path, follower: Subscriber) -> None:
    for path in folder.glob("payloads/2-*"):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(nnr.FormatError, match="its digest does not match"):
        follower.poll()


def test_t52_records_without_a_valid_signature_are_rejected(folder: Path) -> None:
    with pytest.raises(nnr.FormatError, match="has no signature"):
        Subscriber(folder, verify=lambda *_: True).poll()
    changed(folder / "versions" / "1.json", field("signature", "00"))
    with pytest.raises(nnr.FormatError, match="the signature of the anchor of version 1 is invalid"):
        Subscriber(folder, verify=lambda *_: False).poll()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (field("stream", "../x"), "no valid identifier"),
        (field("stream", "0" * 32), "damaged"),
        (dict.clear, "not a file"),
    ],
)
def test_t52_malformed_markers_are_rejected(
    folder: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    changed(folder / "sync.json", change)
    for use in (lambda: Subscriber(folder).poll(), lambda: Publisher(folder)):
        with pytest.raises(nnr.FormatError, match=message):
            use()


def test_t52_payload_beyond_the_limits_is_rejected(folder: Path) -> None:
    with pytest.raises(nnr.LimitError, match="max_total_bytes"):
        Subscriber(folder, limits=nnr.Limits(max_total_bytes=2000)).poll()


# ------------------------------------------------------------------------------------------------ byte streams
def message(step: int = 0) -> bytes:
    return Publisher(None).publish(model(step)).frame


def record_of(frame: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record_in(bytearray(frame), 0) or b"")
    return found


def framed(record: bytes, payload: bytes = b"") -> bytes:
    return frame_head(record) + record + payload


def test_t53_length_of_a_record_is_limited() -> None:
    data = bytearray(message())
    data[len(MAGIC) : len(MAGIC) + 4] = (1 << 31).to_bytes(4, "little")
    subscriber = Subscriber(None)
    assert subscriber.feed(bytes(data)) is None and subscriber.feed(message(1)) == 1


@pytest.mark.parametrize("record", [b"{}", b"[" * 50_000, b"\xff"])
def test_t53_invalid_records_are_skipped_with_an_error(record: bytes) -> None:
    subscriber = Subscriber(None)
    with pytest.raises(nnr.FormatError):
        subscriber.feed(framed(record, b"xyz") + message(1))
    assert subscriber.feed(b"") == 1 and has(subscriber, model(1))


def test_t53_size_of_a_payload_is_limited_before_its_bytes_arrive() -> None:
    subscriber = Subscriber(None, limits=nnr.Limits(max_archive_bytes=100_000))
    record = canonical(record_of(message()) | {"size": 1 << 40}).encode()
    with memory() as used, pytest.raises(nnr.LimitError, match="max_archive_bytes"):
        subscriber.feed(framed(record))
    assert used.peak < 100_000
    assert subscriber.feed(message(1)) == 1


def test_t53_frame_of_another_model_is_rejected_and_skipped() -> None:
    publisher, other, subscriber = Publisher(None), Publisher(None), Subscriber(None)
    subscriber.feed(publisher.publish(model(0)).frame)
    other.publish(model(5))
    frame = other.publish(model(6)).frame
    content = record_of(frame)
    payload = frame[-content["size"] :]
    record = canonical(content | {"stream": subscriber.stream}).encode()
    with pytest.raises(nnr.MissingReferenceError, match="the payload updates sha256"):
        subscriber.feed(framed(record, payload))
    assert subscriber.needs_anchor and has(subscriber, model(0))
    assert subscriber.feed(publisher.publish(model(1)).frame) == 2 and has(subscriber, model(1))


@pytest.mark.parametrize("place", [len(MAGIC) + 6, HEAD + 30, -1])
def test_t53_damaged_frames_are_skipped(place: int) -> None:
    data = bytearray(message())
    data[place] ^= 1
    subscriber = Subscriber(None)
    assert subscriber.feed(bytes(data)) is None and subscriber.needs_anchor


def test_t53_magic_bytes_without_end_take_linear_time() -> None:
    subscriber = Subscriber(None)
    for _ in range(20):
        subscriber.feed(MAGIC * 2000)
    assert subscriber.feed(message()) == 1
