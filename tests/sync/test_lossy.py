"""Lossy updates in a closed loop."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.sync import Publisher, Subscriber

from ..cli.support import weights
from .support import Tensors, has

pytestmark = pytest.mark.medium

#: Types of weights, with their names.
TYPES = {"single": np.float32, "brain": ml_dtypes.bfloat16, "half": np.float16, "double": np.float64}


def walk(steps: int, scale: float = 3e-3) -> list[Tensors]:
    """Return models of a random walk in each type, with a counter."""
    values = {name: weights(seed, (40, 50), 0.3).astype("f8") for seed, name in enumerate(TYPES)}
    found = []
    for step in range(steps):
        for seed, name in enumerate(TYPES):
            values[name] += weights(100 * step + seed, (40, 50), scale)
        found.append({name: values[name].astype(dtype) for name, dtype in TYPES.items()} | {"step": np.array(step)})
    return found


def errors(subscriber: Subscriber, tensors: Tensors) -> dict[str, float]:
    """Return the largest error of each tensor."""
    return {
        name: float(np.abs(subscriber.tensors[name].astype("f8") - array.astype("f8")).max(initial=0))
        for name, array in tensors.items()
    }


@pytest.mark.parametrize("bound", [0.02, 1e-3, 3e-5])
def test_max_error_bounds_the_error_of_every_version(tmp_path: Path, bound: float) -> None:
    publisher, subscriber = Publisher(tmp_path / "s", max_error=bound, anchor_every=3), Subscriber(tmp_path / "s")
    for tensors in walk(8):
        publication = publisher.publish(tensors)
        subscriber.poll()
        found = errors(subscriber, tensors)
        assert max(found.values()) <= bound and found["step"] == 0
        assert publication.identity == subscriber.identity == nnr.identity(dict(subscriber.tensors))
        late = Subscriber(tmp_path / "s")
        late.poll()
        assert has(late, dict(subscriber.tensors))


def test_bound_holds_for_new_tensors_and_infinities() -> None:
    publisher, subscriber = Publisher(None, max_error=1e-3), Subscriber(None)
    models = [
        {"a": weights(1)},
        {"a": weights(2), "new": weights(3)},
        {"a": weights(4, (9, 9)), "new": weights(5)},
        {"a": weights(4, (9, 9)), "new": np.full((24, 30), np.inf, "f4")},
        {"a": np.full((9, 9), 3e38, "f4"), "new": weights(6)},
        {"a": np.full((9, 9), -3e38, "f4"), "new": weights(7).astype("f2")},
    ]
    for tensors in models:
        subscriber.feed(publisher.publish(tensors).frame)
        with np.errstate(invalid="ignore"):
            wrong = [np.abs(subscriber.tensors[name] - array) > 1e-3 for name, array in tensors.items()]
        assert not any(one.any() for one in wrong)


def test_errors_do_not_accumulate(tmp_path: Path) -> None:
    """The loss of each update relative to the update is constant, and the next update also corrects it."""
    publisher, subscriber = Publisher(tmp_path / "s", quality=20), Subscriber(tmp_path / "s")
    models = walk(30)
    largest = []
    for tensors in models:
        publisher.publish(tensors)
        subscriber.poll()
        largest.append(errors(subscriber, tensors)["single"])
    assert max(largest[20:]) < 2 * max(largest[1:6])
    for _ in range(6):  # the same model
        publisher.publish(models[-1])
    subscriber.poll()
    assert errors(subscriber, models[-1])["single"] < 1e-3 * max(largest)


def test_loop_continues_after_a_restart(tmp_path: Path) -> None:
    subscriber = Subscriber(tmp_path / "s")
    for tensors in walk(5):
        publisher = Publisher(tmp_path / "s", max_error=1e-3)
        publisher.publish(tensors)
        subscriber.poll()
        assert max(errors(subscriber, tensors).values()) <= 1e-3


def test_lossy_updates_are_smaller_and_rules_select_tensors() -> None:
    sizes: list[int] = []
    options: list[dict[str, object]] = [
        {},
        {"max_error": 1e-3},
        {"rules": [nnr.Rule("brain", exact=False, quality=20)]},
    ]
    for each in options:
        publisher, subscriber = Publisher(None, **each), Subscriber(None)  # type: ignore[arg-type]
        size = 0
        for tensors in walk(3):
            publication = publisher.publish(tensors)
            size += publication.nbytes * (publication.version > 1)
            subscriber.feed(publication.frame)
        wrong = {name for name, error in errors(subscriber, tensors).items() if error}
        assert wrong == [set(), {*TYPES}, {"brain"}][len(sizes)]
        sizes.append(size)
    assert sizes[1] < sizes[2] < sizes[0]
