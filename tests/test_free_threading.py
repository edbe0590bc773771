"""Concurrent calls in one process give the results of single calls, with and without the global interpreter lock."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr

THREADS = 8
ROUNDS = 3
RNG = np.random.default_rng(24)
MODELS = [
    {f"w{i}": RNG.normal(0, 0.1, (40 + 9 * i, 30)).astype("f4"), "b": RNG.normal(0, 1, 70).astype("f4")}
    for i in range(4)
]
OPTIONS: list[dict[str, Any]] = [{}, {"dependent_quantization": True}, {"exact": True}, {"effort": 7}]


def in_threads(task: Callable[[int], Any]) -> list[Any]:
    """Return the results of ``task(0)``, ``task(1)`` ..., run several times in threads that start at the same time."""
    barrier = Barrier(THREADS)

    def several(index: int) -> list[Any]:
        barrier.wait()
        return [task(index) for _ in range(ROUNDS)]

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(several, range(THREADS)))


def values(data: bytes) -> dict[str, bytes]:
    return {name: np.asarray(tensor).tobytes() for name, tensor in nnr.decode(data).tensors.items()}


@pytest.fixture(scope="module")
def bitstreams() -> list[bytes]:
    """Return bitstreams that single calls encode."""
    return [nnr.encode(model, **options) for model, options in zip(MODELS, OPTIONS, strict=True)]


@pytest.mark.parametrize("models", [1, len(MODELS)], ids=["same model", "different models"])
class TestThreads:
    def test_encode_the_same_bytes(self, bitstreams: list[bytes], models: int) -> None:
        found = in_threads(lambda i: nnr.encode(MODELS[i % models], **OPTIONS[i % models]))
        assert found == [[bitstreams[i % models]] * ROUNDS for i in range(THREADS)]

    def test_decode_the_same_values(self, bitstreams: list[bytes], models: int) -> None:
        found = in_threads(lambda i: values(bitstreams[i % models]))
        assert found == [[values(bitstreams[i % models])] * ROUNDS for i in range(THREADS)]

    def test_encode_while_others_decode(self, bitstreams: list[bytes], models: int) -> None:
        def task(i: int) -> bool:
            k = i // 2 % models
            if i % 2:
                return values(bitstreams[k]) == expected[k]
            return nnr.encode(MODELS[k], **OPTIONS[k]) == bitstreams[k]

        expected = [values(data) for data in bitstreams]
        assert in_threads(task) == [[True] * ROUNDS] * THREADS


def test_threads_read_one_open_file(bitstreams: list[bytes]) -> None:
    with nnr.open(bitstreams[0]) as file:
        found = in_threads(lambda _: {name: np.asarray(file[name]).tobytes() for name in file})
    assert found == [[values(bitstreams[0])] * ROUNDS] * THREADS


if sysconfig.get_config_var("Py_GIL_DISABLED"):

    def test_import_keeps_the_lock_off() -> None:
        assert not sys._is_gil_enabled()  # type: ignore[attr-defined]
