"""Weight synchronization in S3, emulated by moto."""

from __future__ import annotations

from typing import Any

import pytest

from nnr_codec.sync import Publisher, Subscriber

from ..sync.support import has, model
from .test_store_s3 import options  # noqa: F401  # a fixture

pytestmark = pytest.mark.heavy


def test_versions_are_followed_in_s3(options: dict[str, Any]) -> None:  # noqa: F811
    place = "s3://stores/run"
    follower = Subscriber(place, storage_options=options)
    assert follower.poll() is None
    for step in range(7):
        publisher = Publisher(place, anchor_every=2, keep=1, storage_options=options)
        publisher.publish(model(step))
        assert follower.poll() == step + 1 and has(follower, model(step))
    late = Subscriber(place, storage_options=options)
    assert late.poll() == 7 and has(late, model(6))


def test_of_two_publishers_in_s3_one_gets_an_error(options: dict[str, Any]) -> None:  # noqa: F811
    place = "s3://stores/two"
    one, other = (Publisher(place, storage_options=options) for _ in range(2))
    one.publish(model(0))
    with pytest.raises(FileExistsError, match="another publisher published version 1"):
        other.publish(model(1))
    follower = Subscriber(place, storage_options=options)
    assert follower.poll() == 1 and has(follower, model(0))
