"""Interrupted work continues from its own finished parts only, and gives the same bytes."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.decoder import group as group_module
from nnr_codec.encoder import coded_unit as unit_module
from nnr_codec.encoder import encode as encode_module
from nnr_codec.model import Array, Progress
from nnr_codec.parallel import checkpoint as checkpoint_module
from nnr_codec.parallel.checkpoint import Checkpoint, checkpoint_of

from .shared import examples
from .test_executors import Away, Losing, tensors

pytestmark = pytest.mark.medium

RNG = np.random.default_rng(3)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"exact": True},
    {"quality": 30, "codebook": 40, "scan_order": 1},
    {"target_ratio": 0.2, "effort": 2},
]


class StopError(Exception):
    """Exception that interrupts work."""


def stopping(after: int) -> Progress:
    """Return a callback that interrupts the work after a number of tensors."""
    left = after

    def note(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise StopError

    return note


def some() -> dict[str, Array]:
    found: dict[str, Array] = {f"w{k}": RNG.normal(0, 0.1, (50, 40 + k)).astype("f4") for k in range(6)}
    found["half"] = RNG.normal(0, 0.1, (30, 20)).astype("f2")
    found["brain"] = RNG.normal(0, 0.1, (30, 20)).astype(ml_dtypes.bfloat16)
    found["few"] = RNG.integers(-2, 3, (60, 70)).astype("f4") / 8
    found["none"] = np.zeros((0, 3), "f4")
    found["numbers"] = RNG.integers(-90, 90, (20, 30), "i2")
    return found


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of tensors whose units are coded."""
    made: list[str] = []
    header = unit_module._header

    def noted(plan: Any, *rest: Any) -> Any:
        made.append(plan.ids[0])
        return header(plan, *rest)

    monkeypatch.setattr(unit_module, "_header", noted)
    return made


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of tensors whose units are decoded."""
    made: list[str] = []
    decoder = group_module.UnitDecoder

    class Noted(decoder):  # type: ignore[misc,valid-type]
        def __init__(self, task: Any, **options: Any) -> None:
            made.append(task.names[0])
            super().__init__(task, **options)

    monkeypatch.setattr(group_module, "UnitDecoder", Noted)
    return made


@pytest.mark.parametrize("way", [{}, {"jobs": 2}, {"executor": Away()}], ids=["one", "threads", "executor"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_encoding_goes_on(options: dict[str, Any], way: dict[str, Any], tmp_path: Path, units: list[str]) -> None:
    model, target, folder = some(), tmp_path / "m.nnr", tmp_path / "m.nnr.parts"
    nnr.encode_file(model, tmp_path / "one.nnr", **options)
    one = (tmp_path / "one.nnr").read_bytes()
    named: list[str] = []
    for after in (0, 3, 9):
        with pytest.raises(StopError):
            nnr.encode_file(model, target, resume=True, progress=stopping(after), **options, **way)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {path.name for path in tmp_path.iterdir()} == {"one.nnr", "m.nnr.parts"}
    units.clear()
    nnr.encode_file(model, target, resume=True, progress=lambda name, *_: named.append(name), **options, **way)
    assert target.read_bytes() == one
    assert not folder.exists()
    assert named == list(model)
    if not {"executor", "jobs"} & way.keys():
        assert units == ["numbers"]
    assert len(units) <= 4


@pytest.mark.parametrize("way", [{}, {"jobs": 2}, {"executor": Away()}], ids=["one", "threads", "executor"])
@pytest.mark.parametrize("options", [{}, {"exact": True, "scan_order": 1}], ids=str)
def test_decoding_goes_on(options: dict[str, Any], way: dict[str, Any], tmp_path: Path, decoded: list[str]) -> None:
    model, source, target = some(), tmp_path / "m.nnr", tmp_path / "m.safetensors"
    nnr.encode_file(model, source, **options)
    nnr.decode_file(source, tmp_path / "one.safetensors")
    for after in (0, 4, 9):
        with pytest.raises(StopError):
            nnr.decode_file(source, target, resume=True, progress=stopping(after), **way)
        assert not target.exists()
    assert stat.S_IMODE((tmp_path / "m.safetensors.parts").stat().st_mode) == 0o700
    decoded.clear()
    nnr.decode_file(source, target, resume=True, **way)
    assert target.read_bytes() == (tmp_path / "one.safetensors").read_bytes()
    assert not (tmp_path / "m.safetensors.parts").exists()
    assert len(decoded) <= 3


def test_a_lost_worker_costs_what_it_had(tmp_path: Path, units: list[str]) -> None:
    model, target = tensors(), tmp_path / "m.nnr"
    executor = Losing(8, RuntimeError("lost"), "result")
    with pytest.raises(nnr.WorkerError, match="'last'"):
        nnr.encode_file(model, target, resume=True, executor=cast(Executor, executor))
    made = set(units)
    units.clear()
    nnr.encode_file(model, target, resume=True)
    assert target.read_bytes() == nnr.encode(model)
    assert made.isdisjoint(units[: len(model) - len(made)])


# ------------------------------------------------------------------------------------------------ ownership of parts
def kept(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def interrupted(model: Any, target: Path, **options: Any) -> Path:
    """Return the folder with the parts of all tensors but the last."""
    with pytest.raises(StopError):
        nnr.encode_file(model, target, resume=True, progress=stopping(len(model) - 1), overwrite=True, **options)
    return target.with_name(f"{target.name}.parts")


def test_other_options_and_tensors_have_other_parts(tmp_path: Path, units: list[str]) -> None:
    model, target = some(), tmp_path / "m.nnr"
    folder = interrupted(model, target)
    before = set(kept(folder))
    changed = {name: array.copy() for name, array in model.items()}
    changed["w2"][3, 4] += 1
    swapped = {**model, "w0": model["w1"], "w1": model["w0"]}
    others: list[tuple[dict[str, Array], dict[str, Any]]] = [
        (model, {"qp": -30}),
        (model, {"profile": 0}),
        (model, {"max_unit_size": 900}),
        (model, {"indexed_references": True}),
        (changed, {}),
        (swapped, {}),
    ]
    for other, options in others:
        units.clear()
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        nnr.encode_file(other, target, resume=True, overwrite=True, **options)
        assert target.read_bytes() == nnr.encode(other, **options)
        assert "w2" in units
        copy.rename(folder)
        after = set(kept(interrupted(other, target, **options)))
        assert len(after) <= len(before)  # unnecessary ones were deleted
        shutil.rmtree(folder)
        folder = interrupted(model, target)


def test_another_version_has_other_parts(tmp_path: Path, units: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, target = some(), tmp_path / "m.nnr"
    interrupted(model, target)
    monkeypatch.setattr("nnr_codec.api.files.__version__", "99")
    units.clear()
    nnr.encode_file(model, target, resume=True)
    assert len(units) == len(model) - 1  # one has no unit


@pytest.mark.parametrize("damage", ["bit", "short", "long", "empty", "other", "text"])
def test_damaged_parts_are_made_again(damage: str, tmp_path: Path) -> None:
    model, target, bitstream = some(), tmp_path / "m.nnr", tmp_path / "one.nnr"
    nnr.encode_file(model, bitstream)
    folder = interrupted(model, target)
    with pytest.raises(StopError):
        nnr.decode_file(bitstream, tmp_path / "d.safetensors", resume=True, progress=stopping(9), names=["w0", *model])
    for place in (folder, tmp_path / "d.safetensors.parts"):
        parts = sorted(place.iterdir())
        contents = [path.read_bytes() for path in parts]
        for path, content, other in zip(parts, contents, contents[1:] + contents[:1], strict=True):
            path.write_bytes(
                {
                    "bit": content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
                    "short": content[:-1],
                    "long": content + b"\0",
                    "empty": b"",
                    "other": other,
                    "text": b"nothing of ours",
                }[damage]
            )
    nnr.encode_file(model, target, resume=True)
    assert target.read_bytes() == bitstream.read_bytes()
    nnr.decode_file(bitstream, tmp_path / "d.safetensors", resume=True)
    found, expected = nnr.load(tmp_path / "d.safetensors"), nnr.decode(bitstream)
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
    assert not list(tmp_path.glob("*.parts"))


def test_goals_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, target = some(), tmp_path / "m.nnr"
    interrupted(model, target, target_ratio=0.15)
    monkeypatch.setattr(encode_module, "allocate", None)
    nnr.encode_file(model, target, target_ratio=0.15, resume=True)
    monkeypatch.undo()
    assert target.read_bytes() == nnr.encode(model, target_ratio=0.15)


def test_reports_are_the_same(tmp_path: Path) -> None:
    model, target = some(), tmp_path / "m.nnr"
    interrupted(model, target, statistics=True)
    one = nnr.encode_file(model, target, statistics=True)
    two = nnr.encode_file(model, target, statistics=True, resume=True, overwrite=True)
    for name, report in one.tensors.items():
        assert two.tensors[name].statistics == report.statistics
        assert two.tensors[name].unit_bytes == report.unit_bytes


def test_arrays_of_options_are_distinguished(tmp_path: Path, units: list[str]) -> None:
    """Arrays are compared by their items, not by their objects."""

    class Cost:
        def __init__(self, cost: float) -> None:
            self.cost = cost

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.full((50, 40), self.cost)

    model, target = some(), tmp_path / "m.nnr"
    for cost, count in ((2.0, 0), (3.0, len(model) - 1)):
        interrupted(model, target, sensitivity={"w0": Cost(2.0)})
        units.clear()
        nnr.encode_file(model, target, resume=True, overwrite=True, sensitivity={"w0": Cost(cost)})
        assert len(units) == count
        assert target.read_bytes() == nnr.encode(model, sensitivity={"w0": Cost(cost)})


def test_second_moments_of_rows_are_distinguished(tmp_path: Path, units: list[str]) -> None:
    model, target = some(), tmp_path / "m.nnr"
    for rows, count in ((np.eye(50), 0), (np.eye(50) + 0.5, len(model) - 1), (None, len(model) - 1)):
        interrupted(model, target, hessians={"w0": (np.eye(50), np.eye(40))})
        units.clear()
        nnr.encode_file(model, target, resume=True, overwrite=True, hessians={"w0": (rows, np.eye(40))})
        assert len(units) == count
        assert target.read_bytes() == nnr.encode(model, hessians={"w0": (rows, np.eye(40))})


def test_blocks_and_topologies_are_distinguished(tmp_path: Path) -> None:
    """The tensors of the bitstream depend on the given topology."""
    digits = Path(__file__).parents[1] / "examples" / "digits" / "digits.nnef"
    for options in ({"block": True}, {"topology": "external"}):
        with pytest.raises(StopError):
            nnr.encode_file(digits, tmp_path / "m.nnr", resume=True, progress=stopping(3), overwrite=True, **options)
        nnr.encode_file(digits, tmp_path / "m.nnr", resume=True, overwrite=True, **options)
        assert (tmp_path / "m.nnr").read_bytes() == nnr.encode(digits, **options)


INTERRUPTED = """
import sys, nnr_codec as nnr
def stop(*_):
    raise SystemExit(3)
nnr.encode_file(sys.argv[1], sys.argv[2], resume=True, block=True, progress=stop, target_ratio=0.3)
"""


def test_another_process_resumes(tmp_path: Path, units: list[str]) -> None:
    """Names of records do not depend on the hashes of strings."""
    digits = Path(__file__).parents[1] / "examples" / "digits" / "digits.nnef"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, digits, tmp_path / "m.nnr"], env=environment, check=False)
    assert done.returncode == 3
    nnr.encode_file(digits, tmp_path / "m.nnr", resume=True, block=True, target_ratio=0.3)
    resumed = list(units)
    units.clear()
    assert (tmp_path / "m.nnr").read_bytes() == nnr.encode(digits, block=True, target_ratio=0.3)
    assert len(resumed) < len(units) / 2  # the goal is settled as well


# ------------------------------------------------------------------------------------------------ the folder
def test_a_foreign_folder_is_unchanged(tmp_path: Path) -> None:
    model, target, folder = some(), tmp_path / "m.nnr", tmp_path / "m.nnr.parts"
    (tmp_path / "elsewhere").mkdir()

    def refused() -> None:
        with pytest.raises(FileExistsError, match="not a checkpoint folder"):
            nnr.encode_file(model, target, resume=True)
        assert not target.exists()

    folder.symlink_to(tmp_path / "elsewhere")
    refused()
    assert not list((tmp_path / "elsewhere").iterdir())
    folder.unlink()
    folder.write_text("a file")
    refused()
    folder.unlink()
    folder.mkdir(0o700)
    (folder / "notes.txt").write_text("mine")
    refused()
    assert (folder / "notes.txt").read_text() == "mine"
    (folder / "notes.txt").unlink()
    folder.chmod(0o770)
    refused()
    folder.chmod(0o700)
    nnr.encode_file(model, target, resume=True)
    assert not folder.exists()


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    """The folder is unchanged."""
    old = tmp_path / "m.nnr.parts" / f"{'0' * 64}.nnrpart"
    old.parent.mkdir(0o700)
    old.write_text("of another version")
    with pytest.raises(FileExistsError, match="is a checkpoint of another version; remove it"):
        nnr.encode_file(some(), tmp_path / "m.nnr", resume=True)
    assert old.read_text() == "of another version"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give folders away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.nnr.parts").mkdir(0o700)
    os.chown(tmp_path / "m.nnr.parts", 1234, 1234)
    with pytest.raises(FileExistsError, match="not a checkpoint folder"):
        nnr.encode_file(some(), tmp_path / "m.nnr", resume=True)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.parent.with_name("victim"))])
def test_a_folder_with_more_than_files_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    """Links are not followed, pipes are not opened, and nothing is deleted."""
    model, target = some(), tmp_path / "m.nnr"
    folder = interrupted(model, target, target_ratio=0.2)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    names = {path.name for path in folder.iterdir()}
    for name in names:
        (folder / name).unlink()
        make(folder / name)
        make(folder / f"{name}.new")
    with pytest.raises(FileExistsError, match="not a checkpoint folder"):
        nnr.encode_file(model, target, resume=True, target_ratio=0.2)
    assert victim.read_text() == "precious"
    assert {path.name for path in folder.iterdir()} == names | {f"{name}.new" for name in names}


def test_files_that_are_named_by_digests_are_not_all_ours(tmp_path: Path) -> None:
    stored = tmp_path / "m.nnr.parts" / ("0" * 64)
    stored.parent.mkdir(0o700)
    stored.write_text("precious")
    with pytest.raises(FileExistsError, match="not a checkpoint folder"):
        nnr.encode_file(some(), tmp_path / "m.nnr", resume=True)
    assert stored.read_text() == "precious"


@pytest.mark.parametrize("how", [{}, {"jobs": 2}], ids=str)
def test_the_same_work_twice_at_once(how: dict[str, Any], tmp_path: Path) -> None:
    """The first process to finish deletes the parts, wherever the other one is then."""
    model, target, restored = some(), tmp_path / "m.nnr", tmp_path / "m.safetensors"
    expected = nnr.encode(model)

    def encode_too(*_: object) -> None:
        nnr.encode_file(model, target, resume=True, overwrite=True, **how)

    def decode_too(*_: object) -> None:
        nnr.decode_file(expected, restored, resume=True, overwrite=True, **how)

    nnr.encode_file(model, target, resume=True, overwrite=True, progress=encode_too, **how)
    nnr.decode_file(expected, restored, resume=True, overwrite=True, progress=decode_too, **how)
    assert target.read_bytes() == expected
    found, decoded = nnr.load(restored), nnr.decode(expected)
    assert all(found[name].tobytes() == decoded[name].tobytes() for name in decoded)
    assert not list(tmp_path.glob("*.parts"))


def test_an_empty_folder_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "m.nnr").write_bytes(b"x")
    with pytest.raises(FileExistsError):
        nnr.encode_file(some(), tmp_path / "m.nnr", resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["m.nnr"]


def test_a_stream_has_nothing_beside_it(tmp_path: Path) -> None:
    with open(tmp_path / "m.nnr", "wb") as file, pytest.raises(ValueError, match="requires a path"):
        nnr.encode_file(some(), file, resume=True)
    with open(tmp_path / "m.npz", "wb") as file, pytest.raises(ValueError, match="requires a path"):
        nnr.decode_file(nnr.encode(some()), file, resume=True)


def test_the_parts_are_no_larger_than_the_output(tmp_path: Path) -> None:
    model = {f"w{k}": RNG.normal(0, 0.1, (200, 300)).astype("f4") for k in range(8)}
    folder = interrupted(model, tmp_path / "m.nnr", target_ratio=0.2)
    size = sum(map(len, kept(folder).values()))
    assert size < len(nnr.encode(model, target_ratio=0.2)) + 9 * 2500


# ------------------------------------------------------------------------------------------------ records
def test_records_come_back(tmp_path: Path) -> None:
    arrays = [np.arange(6, dtype="i2"), np.ones((2, 0)), np.full(3, 1.5), np.ones(3, ml_dtypes.bfloat16)]
    value = {"numbers": [1, 0.1, np.float32(0.1), 1e300, float("inf")], "text": "\udc80\u00fc", "none": None}
    with checkpoint_of(tmp_path / "x", "1") as checkpoint:
        checkpoint.put("key", value, [array.reshape(-1).view(np.uint8).data for array in arrays])
        record = checkpoint.get("key")
        checkpoint.folder.joinpath("key").unlink()
    assert record is not None
    assert record[0] == {**value, "numbers": [1, 0.1, float(np.float32(0.1)), 1e300, float("inf")]}
    for array, buffer in zip(arrays, record[1], strict=True):
        found = np.frombuffer(buffer, array.dtype)
        assert found.flags.aligned and found.flags.writeable
        assert found.tobytes() == array.tobytes()
    with pytest.raises(TypeError), checkpoint_of(tmp_path / "x", "1") as checkpoint:
        checkpoint.put("key", object())


@settings(max_examples=examples(100))
@given(st.data())
def test_damage_is_detected(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    with checkpoint_of(tmp_path_factory.mktemp("any") / "x", "1") as checkpoint:
        checkpoint.put(key := checkpoint.key("a"), {"a": [1, None]}, [memoryview(b"some bytes"), memoryview(b"")])
        path = checkpoint.folder / key
        whole = bytearray(path.read_bytes())
        at, bits = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
        whole[at] ^= bits
        path.write_bytes(whole)
        assert (checkpoint.get(key) is None) == bool(bits)
        path.write_bytes(whole[:at])
        assert checkpoint.get(key) is None


def test_records_by_themselves(tmp_path: Path) -> None:
    with checkpoint_of(tmp_path / "x", "1") as checkpoint:
        one, two = checkpoint.key("a", 1), checkpoint.key("a", 2)
        checkpoint.put(one, 1)
        assert one in checkpoint
        assert two not in checkpoint
        assert checkpoint.get(two) is None
        assert checkpoint.get(one) == (1, [])
        (checkpoint.folder / one).write_bytes(b"damaged")
        assert one in checkpoint
        assert checkpoint.get(one) is None
        assert one not in checkpoint  # so that it is coded again
        checkpoint.put(one, 2)
        checkpoint.only([two])
        assert one not in checkpoint
        checkpoint.put(one, 3)
    assert not list(tmp_path.iterdir())
    assert Checkpoint(tmp_path / "y", "1").key("a") != Checkpoint(tmp_path / "y", "2").key("a")
    assert checkpoint_module.SUFFIX == ".parts"
