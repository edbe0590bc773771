"""T48: hostile and damaged stores."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nnr_codec as nnr
from nnr_codec.store import Store, _Objects

from ..store.test_store import checkpoint, same


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the content of a manifest, with a valid checksum."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    change(content)
    path.write_bytes(gzip.compress(json.dumps(content).encode()))


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "cycle": (lambda c: c["tensors"][0].update(parts=[1, 0]), "are not in order"),
    "repeated part": (lambda c: c["tensors"][0].update(parts=[0, 0]), "are not in order"),
    "negative part": (lambda c: c["tensors"][0].update(parts=[-1]), "are not in order"),
    "part of no object": (lambda c: c["tensors"][0].update(parts=[7]), "IndexError"),
    "too many parts": (lambda c: c["tensors"][0].update(parts=[*range(99)]), "has 99 parts"),
    "no parts": (lambda c: c["tensors"][0].update(parts=[]), "has 0 parts"),
    "unnamed part": (lambda c: c["tensors"][0].update(parts=[[0, 3]]), "has no name"),
    "number as bool": (lambda c: c["tensors"][0].update(parts=[[True, "a"]]), "are not in order"),
    "path as digest": (lambda c: c["objects"][0].__setitem__(0, "../../etc/passwd"), "contradict"),
    "another model": (lambda c: c.update(model_sha256="0" * 64), "contradict"),
    "repeated tensor": (lambda c: c["tensors"].append(c["tensors"][0]), "contradict"),
    "false tie": (lambda c: c.update(ties={"trained": "frozen"}), "contradict"),
    "circular tie": (lambda c: c.update(ties={"copy": "frozen", "frozen": "copy"}), "contradict"),
    "number as text": (lambda c: c.update(base=1), "contradict"),
    "missing key": (lambda c: c.pop("head"), "KeyError"),
    "not a list": (lambda c: c.update(tensors=3), "TypeError"),
    "deep": (lambda c: c.update(head="[" * 9), "TypeError"),
    "other format": (lambda c: c.update(format="x"), "not a file of a store"),
    "other version": (lambda c: c.update(version=2), "has version 2"),
    "dimensions": (lambda c: _reshape(c, [1] * 33), "max_dims"),
    "large tensor": (lambda c: _reshape(c, [1 << 40]), "max_tensor_bytes"),
    "wrong part": (lambda c: c["tensors"][0].update(parts=[1]), "not stored as its manifest says"),
    "other tensor": (lambda c: c["tensors"][0].update(parts=[[0, "half"]]), "digest does not match"),
    "no tensor": (lambda c: c["tensors"][0].update(parts=[[0, "x"]]), "has no tensor 'x'"),
    "large object": (lambda c: c["objects"][0].__setitem__(1, 1 << 60), "max_archive_bytes"),
    "small object": (lambda c: c["objects"][0].__setitem__(1, 10), "more than 10"),
}


def _reshape(content: dict[str, Any], shape: list[int]) -> None:
    content["tensors"][0]["shape"] = shape


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two versions of a model."""
    folder = tmp_path_factory.mktemp("stores") / "s"
    store = Store(folder, create=True)
    for step in range(2):
        store.add(checkpoint(step), "net")
    return folder


@pytest.fixture
def damaged(made: Path, tmp_path: Path) -> Path:
    """Return a copy to change."""
    return Path(shutil.copytree(made, tmp_path / "s"))


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_t48_malformed_manifests_are_rejected(
    damaged: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    changed(damaged / "models" / "net" / "2.json.gz", change)
    with pytest.raises(nnr.NnrError, match=message):
        Store(damaged).get("net")


def test_t48_total_size_of_a_model_is_limited(damaged: Path) -> None:
    with pytest.raises(nnr.LimitError, match="bytes of the model"):
        Store(damaged, limits=nnr.Limits(max_total_bytes=9000)).get("net")


def test_t48_manifest_that_inflates_without_end_is_rejected(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnr_codec.store.manifest.MOST_BYTES", 1000)
    (damaged / "models" / "net" / "2.json.gz").write_bytes(gzip.compress(b" " * 100_000))
    with pytest.raises(nnr.FormatError, match="more than 1,000 bytes"):
        Store(damaged).get("net")


@pytest.mark.parametrize("pattern", ["store.json", "models/net/1.json.gz", "models/net/2.json.gz", "objects/*/*.nnr"])
@pytest.mark.parametrize("kind", ["cut", "flipped", "empty"])
def test_t48_damage_of_any_file_is_detected(damaged: Path, pattern: str, kind: str) -> None:
    for path in damaged.glob(pattern):
        data = path.read_bytes()
        flipped = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        path.write_bytes({"cut": data[:-9], "flipped": flipped, "empty": b""}[kind])
    name = "net@2" if "2" in pattern else "net@1"
    message = "the object is damaged" if pattern.startswith("objects") else "."
    with pytest.raises(nnr.NnrError, match=message):
        Store(damaged).get(name)


def test_t48_damaged_version_can_be_removed(damaged: Path) -> None:
    (damaged / "models" / "net" / "1.json.gz").write_bytes(b"x")
    store = Store(damaged)
    with pytest.raises(nnr.FormatError, match=r"models/net/1\.json\.gz: the manifest is truncated"):
        store.gc(grace=0)
    store.remove("net@1")
    store.gc(grace=0)
    assert same(store.get("net@2"), checkpoint(1))


def test_t48_objects_that_depend_on_each_other_are_rejected(damaged: Path) -> None:
    """Manifests that contradict each other do not send `add` into a loop."""
    path, odd = (damaged / "models" / name / "2.json.gz" for name in ("net", "odd"))
    odd.parent.mkdir()
    odd.write_bytes(path.read_bytes())

    def turn(content: dict[str, Any]) -> None:
        content["objects"].reverse()
        for entry in content["tensors"]:
            entry["parts"] = [0, 1] if entry["name"] == "half" else [0]

    changed(odd, turn)
    chains = [parts for manifest in Store(damaged)._manifests().values() for parts in manifest.tensors.values()]
    with pytest.raises(nnr.FormatError, match="in a cycle"):
        _Objects.in_order(chains)


@pytest.mark.parametrize("name", ["", "a/b", "../s", ".", "-x", "a" * 129, "é", "a/b@1", "net/1@1"])
def test_t48_paths_are_not_made_from_invalid_names(damaged: Path, name: str) -> None:
    store = Store(damaged)
    calls: list[Callable[[], object]] = [
        lambda: store.get(name),
        lambda: store.remove(name if "@" in name else f"{name}@1"),
        lambda: store.add({}, name),
        lambda: store.add({}, "new", base=name or "-"),
    ]
    for call in calls:
        with pytest.raises(nnr.FormatError, match="is not a name of a model"):
            call()


@pytest.mark.parametrize("name", ["net@", "net@0", "net@3", "net@01", "x", "x@1"])
def test_t48_unknown_versions_are_rejected(damaged: Path, name: str) -> None:
    store = Store(damaged)
    with pytest.raises(nnr.FormatError, match="has no model"):
        store.get(name)
    with pytest.raises(nnr.FormatError, match="has no model"):
        store.add({}, "new", base=name)
    with pytest.raises(nnr.FormatError, match="has no model" if "@" in name else "names no version"):
        store.remove(name)
    with pytest.raises(nnr.FormatError, match="names no version"):
        store.remove("net")
    assert len(store.versions()) == 2
