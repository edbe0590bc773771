"""Stores in S3, as simulated by moto."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.store import Store

from ..cli.support import weights

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    """Yield the options of a file system with the bucket "stores"."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    given = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
    pytest.importorskip("s3fs").S3FileSystem(**given).makedirs("stores", exist_ok=True)  # servers share buckets
    yield given
    server.stop()


def model(step: int) -> dict[str, Any]:
    return {"w": weights(1, (40, 40)) + np.float32(step) * weights(2, (40, 40), 1e-5), "fixed": weights(3)}


def test_versions_are_restored_removed_and_deleted(options: dict[str, Any]) -> None:
    store = Store("s3://stores/a", create=True, storage_options=options)
    for step in range(3):
        store.add(model(step), "net")
    assert [version.parts for version in store.versions()] == [1, 2, 3]
    assert nnr.identity(store.get("net@2")) == nnr.identity(model(1))
    store.remove("net@2")
    assert not store.gc()
    assert list(store.gc(grace=0)) == ["removed/net/2.json.gz"]
    assert nnr.identity(store.get("net")) == nnr.identity(model(2))
    with pytest.raises(FileExistsError, match="is already a store"):
        Store("s3://stores/a", create=True, storage_options=options)
    with pytest.raises(nnr.FormatError, match=r"store\.json is missing"):
        Store("s3://stores/b", storage_options=options)
    with pytest.raises(FileNotFoundError):
        Store("s3://other/b", create=True, storage_options=options)


def test_two_writers_get_a_version_each(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stores = [Store("s3://stores/c", create=k == 0, storage_options=options) for k in range(2)]
    barrier = threading.Barrier(2)

    def numbers(name: str) -> list[int]:  # both see no version, and choose the first
        barrier.wait()
        return []

    for store in stores:
        monkeypatch.setattr(store, "_numbers", numbers)
    threads = [threading.Thread(target=store.add, args=(model(k), "net")) for k, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {nnr.identity(stores[0].get(f"net@{number}")) for number in (1, 2)}
    assert found == {nnr.identity(model(0)), nnr.identity(model(1))}


def test_damaged_and_missing_objects_are_detected(options: dict[str, Any]) -> None:
    store = Store("s3://stores/d", create=True, storage_options=options)
    store.add(model(0), "net")
    files: Any = store._folder
    (path,) = files.sizes("objects")
    data = files.read([path], 1 << 20)[path]
    files.write(path, data[:-1] + b"x")
    with pytest.raises(nnr.FormatError, match="the object is damaged"):
        store.get("net")
    files.remove(path)
    with pytest.raises(nnr.FormatError, match="the object is missing"):
        store.get("net")
