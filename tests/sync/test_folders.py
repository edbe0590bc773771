"""Versions in local folders and in memory."""

from __future__ import annotations

import hashlib
import hmac
import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.conformance.digest import TensorDigest
from nnr_codec.sync import Publisher, Record, Subscriber
from nnr_codec.sync.transport import SyncFolder

from ..cli.support import DIGITS, weights
from .support import Tensors, has, model, published

pytestmark = pytest.mark.medium


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the path or URL of a folder that does not exist."""
    if request.param == "local":
        return str(tmp_path / "run")
    pytest.importorskip("fsspec")
    return f"memory://{tmp_path.name}"


def files(folder: Path, pattern: str) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern))


# ------------------------------------------------------------------------------------------------ versions
def test_subscriber_has_every_published_version_exactly(place: str) -> None:
    subscriber = Subscriber(place)
    assert subscriber.poll() is None and subscriber.version == 0 and not subscriber.tensors  # nothing is published yet
    publisher = Publisher(place, anchor_every=3)
    for step in range(7):
        publication = publisher.publish(model(step))
        assert subscriber.poll() == subscriber.version == publication.version == step + 1
        assert has(subscriber, model(step)) and subscriber.identity == publication.identity
        assert (publication.kind, bool(publication.anchor_bytes)) == ("update" if step else "anchor", step in (3, 6))
    assert subscriber.poll() is None
    assert has(subscriber, model(6))


def test_late_joiner_gets_the_newest_version(place: str) -> None:
    publisher = Publisher(place, anchor_every=3)
    for step in range(9):
        publisher.publish(model(step))
        late = Subscriber(place)
        assert late.poll() == step + 1 and has(late, model(step))


def test_subscriber_reads_the_fewest_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    payloads = SyncFolder.payloads

    def noted(self: SyncFolder, records: Iterable[Any], errors: dict[str, nnr.NnrError]) -> dict[str, bytes]:
        read.extend(str(record) for record in records)
        return payloads(self, records, errors)

    monkeypatch.setattr(SyncFolder, "payloads", noted)
    followers = [Subscriber(tmp_path / "s"), Subscriber(tmp_path / "s")]
    publisher = Publisher(tmp_path / "s", anchor_every=4, keep=None)
    for step in range(10):
        publisher.publish(model(step))
        if step in (0, 7):
            followers[step == 7].poll()
    read.clear()
    followers[0].poll()  # from version 1: eight updates take more bytes than an anchor
    assert read == ["anchor of version 9", "update of version 10"]
    read.clear()
    followers[1].poll()  # from version 8
    assert read == ["update of version 9", "update of version 10"]
    assert all(has(follower, model(9)) for follower in followers)


def test_unchanged_tensors_are_shared_between_versions(tmp_path: Path) -> None:
    publisher, subscriber = Publisher(tmp_path / "s"), Subscriber(tmp_path / "s")
    publisher.publish(model(0))
    subscriber.poll()
    first = dict(subscriber.tensors)
    publisher.publish(model(1))
    subscriber.poll()
    same = {name for name, array in subscriber.tensors.items() if array is first[name]}
    assert same == {"rare", "frozen", "empty"}
    assert nnr.identity(first) == nnr.identity(model(0))  # earlier arrays never change


def test_tensors_of_a_subscriber_cannot_be_changed(tmp_path: Path) -> None:
    subscriber = Subscriber(published(tmp_path / "s", 1))
    subscriber.poll()
    with pytest.raises(ValueError, match="read-only"):
        subscriber.tensors["trained"][0] = 0
    with pytest.raises(TypeError):
        subscriber.tensors["trained"] = weights()  # type: ignore[index]


def test_model_may_change_after_it_was_published(tmp_path: Path) -> None:
    tensors, publisher, subscriber = model(0), Publisher(tmp_path / "s"), Subscriber(tmp_path / "s")
    for step in range(3):
        tensors["trained"] = tensors["trained"] + np.float32(step)
        expected = nnr.identity(tensors)
        publisher.publish(tensors)
        tensors["trained"][0] = 7
        subscriber.poll()
        assert subscriber.identity == expected == nnr.identity(dict(subscriber.tensors))


def test_only_changed_tensors_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    of = TensorDigest.of

    def noted(name: str, tensor: Any) -> TensorDigest:
        hashed.append(name)
        return of(name, tensor)

    publisher, subscriber = Publisher(tmp_path / "s"), Subscriber(tmp_path / "s")
    publisher.publish(model(0))
    subscriber.poll()
    monkeypatch.setattr(TensorDigest, "of", noted)
    publisher.publish(model(1))
    assert sorted(hashed) == ["half", "odd", "steps", "trained"]
    hashed.clear()
    subscriber.poll()
    assert sorted(hashed) == ["half", "odd", "steps", "trained"]


def test_other_tensors_may_come_and_go(place: str) -> None:
    publisher, subscriber = Publisher(place), Subscriber(place)
    models: list[Tensors] = [
        {"a": weights(1), "b": weights(2)},
        {"a": weights(1), "b": weights(2), "c": weights(3)},
        {"a": weights(1), "b": weights(2, (5, 5)), "c": weights(3)},
        {"a": weights(1), "b": weights(2, (5, 5)), "c": weights(3).astype("f2")},
        {"b": weights(2, (5, 5)), "c": weights(3).astype("f2")},
        {},
        {"a": weights(1)},
    ]
    kinds = []
    for tensors in models:
        kinds.append(publisher.publish(tensors).kind)
        subscriber.poll()
        assert has(subscriber, tensors) and subscriber.tensors.keys() == tensors.keys()
    assert kinds == ["anchor", "update", "update", "update", "anchor", "anchor", "anchor"]
    assert has_version(place, 7, models[-1])


def has_version(place: str, version: int, tensors: Tensors) -> bool:
    """Return whether a new subscriber gets this version."""
    late = Subscriber(place)
    return late.poll() == version and has(late, tensors)


def test_anchor_replaces_an_update_that_is_not_smaller(tmp_path: Path) -> None:
    publisher, subscriber = Publisher(tmp_path / "s"), Subscriber(tmp_path / "s")
    publisher.publish({"w": weights(1)})
    publication = publisher.publish({"w": -weights(2)})
    assert (publication.kind, publication.anchor_bytes) == ("anchor", 0)
    assert subscriber.poll() == 2 and has(subscriber, {"w": -weights(2)})


def test_equal_models_are_versions_without_tensors(tmp_path: Path) -> None:
    publisher, subscriber = Publisher(tmp_path / "s"), Subscriber(tmp_path / "s")
    publisher.publish(model(0))
    assert publisher.publish(model(0)).nbytes < 200
    assert subscriber.poll() == 2 and has(subscriber, model(0))


def test_models_with_graph_metadata_and_ties_are_published(tmp_path: Path) -> None:
    publisher, subscriber = Publisher(tmp_path / "s", anchor_every=2), Subscriber(tmp_path / "s")
    digits = nnr.load(DIGITS)
    tied = nnr.Model({"a": weights(), "b": weights()}, metadata={"k": "v"}, format="pytorch", aliases={"b": "a"})
    changed = nnr.Model({"a": weights(2), "b": weights(2)}, metadata={"k": "w"}, format="pytorch", aliases={"b": "a"})
    for published_model in (digits, digits, tied, changed, tied):
        publisher.publish(published_model)
        subscriber.poll()
        assert has(subscriber, dict(published_model.tensors))
        late = Subscriber(tmp_path / "s")
        late.poll()
        assert has(late, dict(published_model.tensors))


def test_result_does_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    sizes = []
    for jobs in (1, 3):
        publisher = Publisher(tmp_path / str(jobs), jobs=jobs)
        subscriber = Subscriber(tmp_path / str(jobs), jobs=jobs)
        sizes.append([publisher.publish(model(step)).nbytes for step in range(3)])
        subscriber.poll()
        assert has(subscriber, model(2))
    assert sizes[0] == sizes[1]


# ------------------------------------------------------------------------------------------------ publishers
def test_publisher_continues_a_folder_with_updates(place: str) -> None:
    subscriber = Subscriber(place)
    for step in range(6):
        publication = Publisher(place, anchor_every=4).publish(model(step))
        assert publication.version == step + 1
        assert publication.kind == ("update" if step else "anchor") and bool(publication.anchor_bytes) == (step == 4)
        subscriber.poll()
        assert has(subscriber, model(step))


def test_publisher_that_cannot_restore_the_last_version_starts_with_an_anchor(tmp_path: Path) -> None:
    folder = published(tmp_path / "s", 3)
    subscriber = Subscriber(folder)
    subscriber.poll()
    for path in folder.glob("payloads/1-*"):
        path.unlink()
    with pytest.warns(nnr.EncodeWarning, match=r"version 3 cannot be restored.*anchor of version 1 is missing"):
        publisher = Publisher(folder)
    publication = publisher.publish(model(3))
    assert (publication.version, publication.kind) == (4, "anchor")
    assert subscriber.poll() == 4 and has(subscriber, model(3)) and has_version(str(folder), 4, model(3))


def test_of_two_publishers_one_gets_an_error(place: str) -> None:
    one, other, subscriber = Publisher(place), Publisher(place), Subscriber(place)
    one.publish(model(0))
    for _ in range(2):
        with pytest.raises(FileExistsError, match="another publisher published version 1"):
            other.publish(model(1))
    assert one.publish(model(2)).version == 2
    assert subscriber.poll() == 2 and has(subscriber, model(2))
    assert Publisher(place).publish(model(3)).version == 3


def test_concurrent_publishers_never_publish_a_version_twice(tmp_path: Path) -> None:
    results: list[tuple[int, str]] = []

    def publish(number: int) -> None:
        for step in range(6):
            try:
                publication = Publisher(tmp_path / "s").publish(model(10 * number + step))
                results.append((publication.version, publication.identity))
            except FileExistsError:
                continue

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(version for version, _ in results) == [*range(1, len(results) + 1)]
    subscriber = Subscriber(tmp_path / "s")
    assert (subscriber.poll(), subscriber.identity) == max(results)


def test_failed_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher, subscriber = Publisher(tmp_path / "s"), Subscriber(tmp_path / "s")
    publisher.publish(model(0))
    with monkeypatch.context() as patch:
        patch.setattr(SyncFolder, "write", raising(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            publisher.publish(model(1))
    assert publisher.version == 1
    assert publisher.publish(model(2)).version == 2
    assert subscriber.poll() == 2 and has(subscriber, model(2))


def test_version_that_was_published_in_spite_of_an_error_is_continued(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, subscriber = Publisher(place), Subscriber(place)
    publisher.publish(model(0))
    write = SyncFolder.write

    def without_reply(self: SyncFolder, *arguments: Any, **options: Any) -> None:
        write(self, *arguments, **options)
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(SyncFolder, "write", without_reply)
        with pytest.raises(TimeoutError):
            publisher.publish(model(1))
    assert subscriber.poll() == 2 and has(subscriber, model(1))
    publication = publisher.publish(model(2))
    assert (publication.version, publication.kind) == (3, "update")
    assert subscriber.poll() == 3 and has(subscriber, model(2))


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("tensors", "message"),
    [({"\ud800": weights()}, "ud800"), ({"a": np.array(["x"])}, "tensor 'a'"), ({1: weights()}, "string")],
)
def test_tensors_that_cannot_be_published_are_named(tmp_path: Path, tensors: Tensors, message: str) -> None:
    publisher = Publisher(tmp_path / "s")
    publisher.publish(model(0))
    with pytest.raises(nnr.NnrError, match=message):
        publisher.publish(tensors)
    assert publisher.publish(model(1)).version == 2 and has_version(str(tmp_path / "s"), 2, model(1))


def test_options_without_meaning_are_rejected(tmp_path: Path) -> None:
    for option in ({"target_size": 1000}, {"target_ratio": 0.1}, {"fold_batchnorm": True}):
        with pytest.raises(nnr.EncodeError, match="does not apply to a sequence of versions"):
            Publisher(tmp_path / "s", **option)
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        Publisher(tmp_path / "s", keep=0)
    with pytest.raises(TypeError, match="names must be a list"):
        Subscriber(tmp_path / "s", names="a")
    with pytest.raises(TypeError, match="call poll"):
        Subscriber(tmp_path / "s").feed(b"")
    assert not (tmp_path / "s").exists()


# ------------------------------------------------------------------------------------------------ deletion and damage
def test_old_versions_are_deleted(place: str) -> None:
    behind = Subscriber(place)
    publisher = Publisher(place, anchor_every=3, keep=2)
    for step in range(10):
        publisher.publish(model(step))
        if step == 1:
            behind.poll()
    folder = SyncFolder(place, nnr.Limits(), None)
    assert folder.versions() == {7, 8, 9, 10} and folder.anchors() == {7, 10}
    assert behind.poll() == 10 and has(behind, model(9))


def test_all_versions_are_kept_on_request(tmp_path: Path) -> None:
    folder = published(tmp_path / "s", 10, anchor_every=3, keep=None)
    assert len(files(folder, "versions/*")) == 10 and len(files(folder, "payloads/*")) == 13


def test_subscriber_survives_deletion_while_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher, subscriber = Publisher(tmp_path / "s", anchor_every=3, keep=1), Subscriber(tmp_path / "s")
    publisher.publish(model(0))
    publisher.publish(model(1))
    payloads = SyncFolder.payloads
    steps = iter(range(2, 6))

    def after_more_versions(self: SyncFolder, records: Iterable[Any], errors: dict[str, Any]) -> dict[str, bytes]:
        for step in steps:
            publisher.publish(model(step))  # deletes versions 1 to 3
        return payloads(self, records, errors)

    monkeypatch.setattr(SyncFolder, "payloads", after_more_versions)
    assert subscriber.poll() == 6 and has(subscriber, model(5))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "flipped": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("pattern", ["versions/3.json", "payloads/3-*"])
def test_damaged_files_are_named_and_the_next_anchor_recovers(
    tmp_path: Path, pattern: str, damage: Callable[[Path], object]
) -> None:
    publisher, subscriber = Publisher(tmp_path / "s", anchor_every=5), Subscriber(tmp_path / "s")
    for step in range(4):
        publisher.publish(model(step))
        if step == 0:
            subscriber.poll()
    (path,) = (tmp_path / "s").glob(pattern)
    damage(path)
    assert subscriber.poll() == 2 and has(subscriber, model(1))  # as far as possible
    named = "versions in between are missing" if "versions" in pattern and not path.exists() else path.name
    for _ in range(2):
        with pytest.raises(nnr.FormatError, match=named):
            subscriber.poll()
        assert has(subscriber, model(1))
    publisher.publish(model(4))
    publisher.publish(model(5))
    assert subscriber.poll() == 6 and has(subscriber, model(5))


def test_damaged_anchor_is_replaced_by_an_earlier_one(tmp_path: Path) -> None:
    folder = published(tmp_path / "s", 5, anchor_every=3)
    (path,) = (path for path in folder.glob("payloads/4-*") if path.stat().st_size > 9000)
    path.write_bytes(b"x" * path.stat().st_size)
    assert has_version(str(folder), 5, model(4))


def test_folder_without_an_anchor_cannot_be_joined(tmp_path: Path) -> None:
    folder = published(tmp_path / "s", 3)
    (folder / "versions" / "1.json").unlink()
    with pytest.raises(nnr.FormatError, match="version 3 cannot be restored from version 0"):
        Subscriber(folder).poll()


def test_files_of_killed_publishers_are_ignored(tmp_path: Path) -> None:
    folder = published(tmp_path / "s", 2)
    for name in ("versions/3.json.x.nnr-partial", "versions/03.json", "payloads/3-0123456789abcdef.nnr", "versions/x"):
        (folder / name).write_bytes(b"")
    assert has_version(str(folder), 2, model(1))
    assert Publisher(folder).publish(model(2)).version == 3 and has_version(str(folder), 3, model(2))


def test_replaced_folder_is_detected(tmp_path: Path) -> None:
    folder = published(tmp_path / "s", 3)
    subscriber = Subscriber(folder)
    subscriber.poll()
    shutil.rmtree(folder)
    published(folder, 2)
    with pytest.raises(nnr.FormatError, match="the newest version is 2, older than version 3"):
        subscriber.poll()
    published(folder, 3)
    with pytest.raises(nnr.FormatError, match="belongs to another stream"):
        subscriber.poll()
    assert has(subscriber, model(2))


def test_marker_of_another_program_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "sync.json").write_text("{}")
    for use in (lambda: Publisher(tmp_path), lambda: Subscriber(tmp_path).poll()):
        with pytest.raises(nnr.FormatError, match=r"sync\.json: not a file of nnr_codec\.sync"):
            use()


# ------------------------------------------------------------------------------------------------ parts of models
def test_selected_tensors_follow_every_version(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "s", anchor_every=3)
    subscriber = Subscriber(tmp_path / "s", names=["tr*", "half", "odd"])
    for step in range(8):
        publisher.publish(model(step))
        if step % 3 != 1:
            subscriber.poll()
            expected = {name: array for name, array in model(step).items() if name in ("trained", "half", "odd")}
            assert nnr.identity(dict(subscriber.tensors)) == nnr.identity(expected)
            assert subscriber.identity == nnr.identity(model(step))


def test_slices_follow_every_version(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "s")
    slices = {"half": (slice(0, 8),), "trained": (slice(None), slice(10, 30))}
    subscriber = Subscriber(tmp_path / "s", slices=slices)
    for step in range(3):
        publisher.publish(model(step))
        subscriber.poll()
        for name, array in model(step).items():
            assert nnr.digest(subscriber.tensors[name]) == nnr.digest(array[slices.get(name, (...,))])


def test_selection_of_unknown_tensors_is_rejected(tmp_path: Path) -> None:
    folder = published(tmp_path / "s", 1)
    with pytest.raises(nnr.FormatError, match="no tensor matches"):
        Subscriber(folder, names=["x*"]).poll()
    with pytest.raises(nnr.FormatError, match="slices has tensor 'x', which version 1 lacks"):
        Subscriber(folder, slices={"x": (slice(0, 1),)}).poll()


# ------------------------------------------------------------------------------------------------ signatures
def sign(data: bytes) -> bytes:
    return hmac.digest(b"key", data, hashlib.sha256)


def verify(data: bytes, signature: bytes) -> bool:
    return hmac.compare_digest(sign(data), signature)


def test_signed_versions_are_followed(tmp_path: Path) -> None:
    published(tmp_path / "s", 3, sign=sign)
    subscriber = Subscriber(tmp_path / "s", verify=verify)
    assert subscriber.poll() == 3 and has(subscriber, model(2))


def test_versions_without_a_valid_signature_are_rejected(tmp_path: Path) -> None:
    subscriber = Subscriber(tmp_path / "s", verify=verify)
    Publisher(tmp_path / "s", sign=sign).publish(model(0))
    subscriber.poll()
    Publisher(tmp_path / "s").publish(model(1))
    with pytest.raises(nnr.FormatError, match="the update of version 2 has no signature"):
        subscriber.poll()
    path = tmp_path / "s" / "versions" / "2.json"
    path.unlink()
    Publisher(tmp_path / "s", sign=sign).publish(model(1))
    text = path.read_bytes()
    path.write_bytes(replace(Record.parse(text), time="2020").to_bytes())
    with pytest.raises(nnr.FormatError, match="the signature of the update of version 2 is invalid"):
        subscriber.poll()
    path.write_bytes(text)
    assert subscriber.poll() == 2


def test_signature_that_no_reader_accepts_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(nnr.LimitError, match="use a shorter signature"):
        Publisher(tmp_path / "s", sign=lambda _: bytes(1 << 16)).publish(model(0))
    assert Subscriber(tmp_path / "s").poll() is None
