"""Arguments of the wrong type, and values out of range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.sync import Publisher, Record, Subscriber

TENSORS = {"w": np.ones((2, 3), "f4")}


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (5, {}, "the target must be a path, a URL, a writable binary file or None, got 5"),
        (None, {"keep": 0}, "keep must be at least 1, got 0"),
        (None, {"anchor_every": -1}, "anchor_every must be at least 0, got -1"),
    ],
)
def test_publisher_rejects_an_argument(target: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Publisher(target, **options)


@pytest.mark.parametrize("model", [None, 5, {1: np.ones(3)}, {"w": np.array(["text"])}, b"not a model"])
def test_publisher_continues_after_a_model_that_it_rejects(model: Any) -> None:
    publisher, subscriber = Publisher(None), Subscriber(None)
    subscriber.feed(publisher.publish(TENSORS).frame)
    with pytest.raises((TypeError, nnr.NnrError)):
        publisher.publish(model)
    assert subscriber.feed(publisher.publish(TENSORS).frame) == 2


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (5, {}, "the source must be a path, a URL, a readable binary file or None, got 5"),
        (None, {"names": "w"}, "names must be a list of patterns, got 'w'"),
        (None, {"slices": {"w": slice(1)}}, "the slices of tensor 'w' must be a tuple of slices"),
        (None, {"slices": {"w": (1,)}}, "the slices of tensor 'w' must be a tuple of slices"),
    ],
)
def test_subscriber_rejects_an_argument(source: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Subscriber(source, **options)


def test_more_slices_than_dimensions_are_rejected() -> None:
    subscriber = Subscriber(None, slices={"w": (slice(1), slice(1), slice(1))})
    with pytest.raises(nnr.FormatError, match="tensor 'w' has 2 dimensions, but 3 slices"):
        subscriber.feed(Publisher(None).publish(TENSORS).frame)


@pytest.mark.parametrize("data", ["text", None, [1], 5])
def test_subscriber_follows_after_an_object_that_is_not_bytes(data: Any) -> None:
    subscriber = Subscriber(None)
    with pytest.raises(TypeError):
        subscriber.feed(data)
    assert subscriber.feed(Publisher(None).publish(TENSORS).frame) == 1


def test_subscriber_uses_the_bytes_of_an_array() -> None:
    frame = Publisher(None).publish(TENSORS).frame
    assert Subscriber(None).feed(np.frombuffer(frame, "u1").data) == 1


@pytest.mark.parametrize("text", [b"", b"[]", b"\xff", b"[" * 100_000, b"9" * 5000, b'{"format":"nnr_codec sync"}'])
def test_record_rejects_other_texts(text: bytes) -> None:
    with pytest.raises(nnr.FormatError):
        Record.parse(text)


def test_target_that_is_not_a_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        Publisher(tmp_path / "file")
