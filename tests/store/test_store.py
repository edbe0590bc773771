"""Tests of stores in local folders and in memory."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.formats import FormatWarning
from nnr_codec.model import Array
from nnr_codec.store import Store, _object_path

from ..cli.support import DIGITS, weights

Tensors = dict[str, Array]


def checkpoint(step: int) -> Tensors:
    """Return a model after some steps: a trained, a frozen, a bfloat16-like and a tied tensor, and a counter."""
    frozen = weights(2, (50, 20))
    return {
        "trained": weights(1, (60, 40)) + weights(7, (60, 40), 1e-5) * np.float32(step),
        "half": (weights(3) + step * weights(8, scale=1e-3)).astype("f2"),
        "frozen": frozen,
        "copy": frozen.copy(),
        "steps": np.array(step),
        "empty": np.zeros((0, 3), "f4"),
    }


def same(model: nnr.Model, tensors: Tensors) -> bool:
    return nnr.identity(model) == nnr.identity(tensors) and list(model) == list(tensors)


def objects(folder: Path) -> list[Path]:
    return sorted(folder.glob("objects/*/*.nnr"))


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return an empty store."""
    if request.param == "local":
        return Store(tmp_path / "store", create=True)
    pytest.importorskip("fsspec")
    return Store(f"memory://{tmp_path.name}", create=True)


def test_every_version_is_restored_exactly(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnr_codec.store.MOST_PARTS", 3)
    for step in range(5):
        store.add(checkpoint(step), "net")
    for step in range(5):
        assert same(store.get(f"net@{step + 1}"), checkpoint(step))
    assert same(store.get("net"), checkpoint(4))
    versions = store.versions()
    assert [version.parts for version in versions] == [1, 2, 3, 2, 3]
    assert versions[1].stored_bytes < versions[0].stored_bytes * 0.6


def test_stored_tensors_take_no_bytes(tmp_path: Path) -> None:
    store, tensors = Store(tmp_path / "s", create=True), checkpoint(0)
    first = store.add({name: tensors[name] for name in ("trained", "frozen")}, "net")
    alone = store.add({"frozen": tensors["frozen"]}, "part")
    assert len(objects(tmp_path / "s")) == 1  # "part" refers to the object of "net"
    twice = store.add({"a": tensors["frozen"], "b": tensors["frozen"].copy(), "c": tensors["trained"]}, "other")
    assert len(objects(tmp_path / "s")) == 1
    assert alone.stored_bytes < 500 > twice.stored_bytes < first.stored_bytes
    found = store.get("other")
    found["a"][:] = 0  # type: ignore[index]
    assert found["b"].any()


def test_whole_tensors_are_stored_if_differences_are_larger(tmp_path: Path) -> None:
    store = Store(tmp_path / "s", create=True)
    base = {"w": weights(1, (80, 80))}
    store.add(base, "net")
    store.add({"w": -base["w"]}, "net")
    assert [version.parts for version in store.versions()] == [1, 1]


def test_graph_metadata_and_ties_are_restored(tmp_path: Path) -> None:
    store, digits = Store(tmp_path / "s", create=True), nnr.load(DIGITS)
    store.add(DIGITS, "digits")
    found = store.get("digits")
    assert found.topology == digits.topology and found.format == digits.format and same(found, dict(digits.tensors))
    tied = nnr.Model({"a": weights(), "b": weights()}, metadata={"k": "v"}, format="pytorch", aliases={"b": "a"})
    store.add(tied, "tied")
    found = store.get("tied")
    assert (found.aliases, found.metadata, found.format) == ({"b": "a"}, {"k": "v"}, "pytorch")


def test_loss_applies_to_new_tensors_only(tmp_path: Path) -> None:
    store, base = Store(tmp_path / "s", create=True), checkpoint(0)
    store.add(base, "net")
    lossy = store.add(checkpoint(9), "lossy", base="net", quality=20)
    lossless = store.add(checkpoint(9), "lossless", base="net")
    assert lossy.stored_bytes < lossless.stored_bytes
    found = store.get("lossy")
    assert np.array_equal(found["frozen"], base["frozen"]) and found["steps"] == 9
    change = checkpoint(9)["trained"] - base["trained"]
    assert 0 < np.abs(found["trained"] - checkpoint(9)["trained"]).max() < np.abs(change).max() / 5
    with pytest.raises(nnr.EncodeError, match="target_size does not apply"):
        store.add(base, "net", target_size=1000)


def test_rule_permits_loss_of_its_tensors_only(tmp_path: Path) -> None:
    store, tensors = Store(tmp_path / "s", create=True), checkpoint(1)
    store.add(tensors, "net", rules=[nnr.Rule("trained", exact=False, quality=20)])
    found = store.get("net")
    wrong = [name for name in tensors if nnr.digest(found[name]) != nnr.digest(tensors[name])]
    assert wrong == ["trained"]


def test_large_models_are_split_into_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnr_codec.store.OBJECT_BYTES", 9000)
    store = Store(tmp_path / "s", create=True)
    store.add(checkpoint(0), "net")
    assert len(objects(tmp_path / "s")) == 2
    assert same(store.get("net"), checkpoint(0))


# ------------------------------------------------------------------------------------------------ removal
def test_gc_keeps_what_versions_use(store: Store) -> None:
    for step in range(3):
        store.add(checkpoint(step), "net")
    store.remove("net@1")
    store.remove("net@2")
    assert not store.gc()  # of the last day
    deleted = store.gc(grace=0, dry_run=True)
    assert store.gc(grace=0) == deleted and not store.gc(grace=0)
    assert [path.partition("/")[0] for path in deleted] == ["removed", "removed"]
    assert same(store.get("net"), checkpoint(2))
    store.remove("net@3")
    assert any(path.startswith("objects/") for path in store.gc(grace=0))
    assert not store.versions()


def test_removed_versions_protect_their_objects_from_gc(tmp_path: Path) -> None:
    """A concurrent `add` may refer to objects that it saw before the removal."""
    store = Store(tmp_path / "s", create=True)
    store.add(checkpoint(0), "net")
    (path,) = objects(tmp_path / "s")
    os.utime(path, (0, 0))
    store.remove("net@1")
    assert not store.gc(grace=100) and path.exists()
    os.utime(tmp_path / "s" / "removed" / "net" / "1.json.gz", (0, 0))
    assert len(store.gc(grace=100)) == 2 and not path.exists()


def test_add_restores_an_object_that_gc_deletes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "s", create=True)
    number = store._numbers

    def numbers(name: str) -> list[int]:
        for path in objects(tmp_path / "s"):
            path.unlink()
        return number(name)

    monkeypatch.setattr(store, "_numbers", numbers)
    store.add(checkpoint(0), "net")
    assert same(store.get("net"), checkpoint(0))


def test_numbers_of_removed_versions_are_not_used_again(store: Store) -> None:
    store.add(checkpoint(0), "net")
    store.remove("net@1")
    assert store.add(checkpoint(1), "net").version == 2


# ------------------------------------------------------------------------------------------------ interruption
def test_two_writers_get_a_version_each(tmp_path: Path) -> None:
    Store(tmp_path / "s", create=True)
    failed: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            for step in range(4):
                Store(tmp_path / "s").add({"w": weights(10 * writer + step, (4, 4))}, "net")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = Store(tmp_path / "s")
    assert not failed and [version.version for version in store.versions()] == [*range(1, 13)]
    assert len({store.get(str(version))["w"].tobytes() for version in store.versions()}) == 12


#: Adds, removes and deletes versions until a file is opened, renamed, linked or deleted for the n-th time.
ADD = """
import os, signal, sys
from nnr_codec.store import Store
from tests.store.test_store import checkpoint

store, left = Store(sys.argv[1]), int(sys.argv[3])

def kill(event, _):
    global left
    if event in ("open", "os.rename", "os.link", "os.remove", "os.mkdir"):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
for step in range(int(sys.argv[2]), 1000):
    store.add(checkpoint(step), "net")
    if step % 3 == 2:
        store.remove(f"net@{step - 1}")
        store.gc(grace=0)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_killed_commands_leave_a_consistent_store(tmp_path: Path) -> None:
    store, rng = Store(tmp_path / "s", create=True), random.Random(os.getpid())
    for _ in range(8):
        begin = max((version.version for version in store.versions()), default=0)
        calls = rng.randrange(1, 120)
        command = [sys.executable, "-c", ADD, str(tmp_path / "s"), str(begin), str(calls)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        for version in store.versions():
            assert same(store.get(str(version)), checkpoint(version.version - 1)), (version, calls)
    store.gc(grace=0)
    used = {_object_path(sha256) for manifest in store._manifests().values() for sha256 in manifest.objects}
    assert {path.relative_to(tmp_path / "s").as_posix() for path in objects(tmp_path / "s")} == used


# ------------------------------------------------------------------------------------------------ places
def test_folder_that_is_no_store_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(nnr.FormatError, match=r"store\.json is missing"):
        Store(tmp_path)
    Store(tmp_path, create=True)
    with pytest.raises(FileExistsError, match="is already a store"):
        Store(tmp_path, create=True)


@pytest.mark.parametrize("url", ["file://{}/s", "memory://{}/s"])
def test_urls_and_paths_work_alike(tmp_path: Path, url: str) -> None:
    pytest.importorskip("fsspec")
    place = url.format(tmp_path.as_posix())
    Store(place, create=True).add(checkpoint(0), "net")
    assert same(Store(place).get("net"), checkpoint(0))
    assert (tmp_path / "s" / "store.json").exists() == place.startswith("file")


def test_errors_of_file_systems_are_os_errors() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(OSError, match="Protocol not known"):
        Store("unknown://x")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [({"\ud800": weights(2, (50, 20))}, "ud800"), ({"a": np.array(["x"])}, "tensor 'a'"), ({1: weights()}, "string")],
)
def test_tensors_that_cannot_be_stored_are_named(tmp_path: Path, tensors: Tensors, message: str) -> None:
    store = Store(tmp_path / "s", create=True)
    store.add(checkpoint(0), "net")
    with pytest.raises(nnr.NnrError, match=message):
        store.add(tensors, "net")
    assert len(objects(tmp_path / "s")) == len(store.versions()) == 1


def test_attachments_are_left_out_with_a_warning(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", create=True)
    with pytest.warns(FormatWarning, match=r"attachments are not stored: 'config\.json'"):
        store.add(nnr.Model({"w": weights(1)}, attachments={"config.json": b"{}"}), "net")
    assert not store.get("net").attachments
