"""T39: files that request execution of code or endless work raise an error of the package, and no code runs."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.formats import pytorch
from nnr_codec.formats.pytorch import description
from nnr_codec.formats.pytorch.archive import LEGACY
from nnr_codec.limits import Limits

from ..threats.test_pytorch import Call
from .torch_support import archive_of, integer, mapping, rebuilt, refused, saved, storage, tensor, text
from .torch_support import pytorch as torch_or_skip

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module", name="torch")
def fixture_torch() -> Any:
    return torch_or_skip()


def legacy(content: bytes) -> bytes:
    """Return a file of the old format with this content and no storages."""
    return LEGACY + b"\x80\x02M\xe9\x03." + b"\x80\x02}." + content + b"\x80\x02]."


WRAPPED = pytest.mark.parametrize("wrap", [archive_of, legacy], ids=["zip", "legacy"])


def attacks(victim: Path) -> list[Call]:
    """Return calls that would each create a file."""
    code = f"open({str(victim)!r}, 'w').close()"
    return [
        Call(os.system, f"touch {victim}"),
        Call(builtins.eval, code),
        Call(builtins.exec, code),
        Call(builtins.open, str(victim), "w"),
        Call(subprocess.getoutput, f"touch {victim}"),
        Call(getattr, "os", "system"),
        Call(os.mkdir, str(victim)),
        Call(builtins.__import__, "antigravity"),
        Call(builtins.compile, code, "x", "exec"),
    ]


@WRAPPED
@pytest.mark.parametrize("number", range(9))
@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_run(tmp_path: Path, wrap: Callable[[bytes], bytes], number: int, protocol: int) -> None:
    victim = tmp_path / "victim"
    attack = attacks(victim)[number]
    for content in (attack, {"w": attack}, [attack], (attack,), {"state_dict": {"w": [1, attack]}}):
        refused(wrap(pickle.dumps(content, protocol)))
    assert not victim.exists()
    if number in (1, 2, 6):  # it would have been called
        pickle.loads(pickle.dumps(attack, protocol))
        assert victim.exists()


def test_a_metadata_key_that_calls() -> None:
    """BUILD may only set known attributes of an OrderedDict."""
    state = b"}" + text("fromkeys") + b"K\1s"
    refused(archive_of(b"\x80\x02ccollections\nOrderedDict\n)R" + state + b"b."), "has attributes besides its keys")
    for target in (b"K\1", b"]", b"}", tensor(4, 0, [4], [1])):
        refused(archive_of(mapping({"w": target + state + b"b"}), {"0": bytes(16)}), "not a container for them")


@pytest.mark.torch
def test_a_type_that_is_a_part_of_pytorch(torch: Any) -> None:
    """In a separate process, decoding a description imports none of its modules, not even one of PyTorch."""
    data = description.to_bytes({"dict": [["w", {"tensor": [1]}], ["t", {"dtype": "_dynamo"}]]})
    program = (
        "import io, sys, numpy as np, nnr_codec as nnr\n"
        f"model = nnr.Model({{'w': np.ones(1, 'f4')}}, nnr.Topology('pytorch', {data!r}))\n"
        "try: nnr.save(model, io.BytesIO(), format='pytorch')\n"
        "except nnr.FormatError as error: print(error, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "the installed PyTorch has no dtype '_dynamo' False"


def test_one_text_in_many_places() -> None:
    """The limit applies to the size in the description, which may be larger."""
    data = archive_of(b"\x80\x02](" + text("\u00e9" * 1000) + b"q\0" + b"h\0" * 99 + b"e.")
    assert len(nnr.load(data, limits=Limits(max_topology_bytes=650_000)).topology.data) > 600_000  # type: ignore[union-attr]
    refused(data, "bytes of values in the description", limits=Limits(max_topology_bytes=590_000))


@pytest.mark.torch
def test_more_values_than_a_description_may_have(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a file could be encoded but not restored."""
    data = saved(torch, {"w": torch.ones(1), "many": list(range(2000))})
    nnr.load(data)
    monkeypatch.setattr(description, "_MAX_MARKS", 2000)
    refused(data, "more than 2,000 values")


def test_a_name_that_python_would_warn_of() -> None:
    refused(archive_of(b"\x80\x02cos\\}\nsystem\n."), r"disallowed function: os\\\\\}\.system")


def test_persistent_ids() -> None:
    """Persistent ids are not storages or have wrong sizes."""
    for asked in (
        text("storage") + b"Q",
        b"K\5Q",
        b"(" + text("module") + text("os") + text("x") + text("y") + b"tQ",
        b"(" + text("storage") + b"K\1" + text("0") + text("cpu") + b"K\1tQ",
        b"(" + text("storage") + b"ctorch\nfloat32\n" + text("0") + text("cpu") + b"K\1tQ",
        storage(1, key="../../x"),
        storage(1, key="0\0"),
        storage(1 << 62),
        storage(-1),
        storage(4),
        storage(1, kind="MissingStorage"),
    ):
        refused(archive_of(mapping({"w": asked}), {"0": bytes(16)}), "damaged|disallowed function|is a storage")


@pytest.mark.torch
def test_an_old_file_whose_storages_lie(torch: Any) -> None:
    data = saved(torch, {"w": torch.ones(4)}, legacy=True)
    size = (4).to_bytes(8, "little")
    assert data.count(size) == 1
    for numel in (3, 5, 1 << 30, (1 << 63) - 1, 1 << 63):
        refused(data.replace(size, numel.to_bytes(8, "little")), "ends beyond the end|the pickle says")
    for numel in (1 << 30, 1 << 50, (1 << 62) - 1):
        changed = data.replace(b"K\4N", integer(numel) + b"N")  # in the form of the pickle
        assert changed != data
        refused(changed, "the pickle says")
    refused(data[:-1], "ends beyond the end")


def test_an_old_file_whose_pickles_are_longer_than_the_limit() -> None:
    content = b"(" + text("a") + b"ctorch\nfloat32\nK\x01" + integer(70_000) + b"G" + bytes(8) + b"\x8a\x01\x05t."
    data = legacy(mapping({"w": content.removesuffix(b".")}))
    assert nnr.load(data, limits=Limits(max_topology_bytes=4096)).topology
    for most in range(len(data)):
        with pytest.raises(nnr.LimitError, match="max_topology_bytes") as caught:
            nnr.load(data, limits=Limits(max_topology_bytes=most))
        assert caught.value.option == "max_topology_bytes"
        with pytest.raises(nnr.FormatError):
            nnr.load(data[: max(most, len(LEGACY))], limits=Limits(max_topology_bytes=4096))


def test_structures_without_end() -> None:
    itself: list[Any] = []
    itself.append(itself)
    inside: dict[str, Any] = {}
    inside["x"] = [inside]
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    wide: list[Any] = [1.5]
    for _ in range(40):
        wide = [wide, wide]
    for content in (itself, inside):
        refused(archive_of(pickle.dumps(content, 2)), "such as one that contains itself")
    refused(archive_of(pickle.dumps(deep, 2)), "nested deeper than 100")
    refused(archive_of(pickle.dumps(wide, 2)), "in all their places")
    refused(archive_of(pickle.dumps(wide, 2)), "max_names", limits=Limits.strict())


@pytest.mark.torch
def test_a_compiled_module(torch: Any) -> None:
    """TorchScript has a pickle at the place of PyTorch's, and code beside it."""
    data = rebuilt(
        saved(torch, {"w": torch.ones(1)}), {"constants.pkl": b"x", "code/__torch__.py": b"import os; os.abort()"}
    )
    with pytest.warns(formats.FormatWarning, match="are left out: 'constants.pkl', 'code/__torch__.py'"):
        assert nnr.load(data)["w"].tolist() == [1]
    refused(data, "unused members of the archive", strict=True)


def test_a_tar_that_begins_as_an_old_file() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        info = tarfile.TarInfo("x")
        info.size = 4
        archive.addfile(info, io.BytesIO(b"abcd"))
    data = bytearray(file.getvalue())
    data[: len(LEGACY)] = LEGACY
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 8 * 32 + sum(data[156:512]))
    with tarfile.open(fileobj=io.BytesIO(data)):
        pass
    assert pytorch.recognise(io.BytesIO(data))
    refused(bytes(data))


def test_reading_imports_nothing_of_the_file(tmp_path: Path) -> None:
    """In a separate process, reading imports no module that the pickle names, nor PyTorch, also for a valid file."""
    (tmp_path / "x.pt").write_bytes(archive_of(b"\x80\x02cantigravity\nfly\n."))
    (tmp_path / "y.pt").write_bytes(archive_of(mapping({"w": tensor(2, 0, (2,), (1,))}), {"0": bytes(8)}))
    program = (
        "import sys, nnr_codec as nnr\n"
        f"print(*nnr.load({str(tmp_path / 'y.pt')!r})['w'])\n"
        f"try: nnr.load({str(tmp_path / 'x.pt')!r})\n"
        "except nnr.FormatError as error: print('refused', {'antigravity', 'torch'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["0.0 0.0", "refused set()"]


def test_extents_beside_a_zero_fit_an_array() -> None:
    view = archive_of(mapping({"w": tensor(0, 0, (0, 1 << 62, 1 << 62), (1, 1, 1))}), {"0": b""})
    refused(view, "exceeds the largest possible array")
    small = archive_of(mapping({"w": tensor(0, 0, (0, 3, 4), (12, 4, 1))}), {"0": b""})
    assert nnr.load(small).tensors["w"].shape == (0, 3, 4)


# ------------------------------------------------------------------------------------------------ found by review
DEVICE = b"\x80\x02ctorch\ndevice\n"


@pytest.mark.parametrize("name", [b")q\0" + b"h\0\x86q\0" * 26, b")" + b"\x85" * 100_000], ids=["shared", "deep"])
def test_the_name_of_a_device_is_a_text_before_it_is_written_out(name: bytes) -> None:
    refused(archive_of(DEVICE + name + b"K\0\x86R."), "a device has an invalid name or index")


def test_strides_of_extents_of_1_do_not_matter_to_ties() -> None:
    prime = (1 << 61) - 1  # whose multiples have equal hashes in Python
    content = {f"t{k}": tensor(1, 0, [1] * 8, [k * prime] * 8) for k in range(4)}
    model = nnr.load(archive_of(mapping(content), {"0": b"\0" * 4}))
    assert dict(model.aliases) == dict.fromkeys(("t1", "t2", "t3"), "t0")


@pytest.mark.parametrize(
    "pickle",
    [
        b"\x80\x02}" + text("k" * 4000) + b"](" + tensor(1, 0, [1], [1]) + b"q\0" + b"h\0" * 20_000 + b"es.",
        b"\x80\x02](" + b"ctorch\nSize\n(" + integer((1 << 63) - 1) * 32 + b"t\x85Rq\0" + b"h\0" * 200_000 + b"e.",
        b"\x80\x02](\x8a\xff" + b"\x7f" * 255 + b"q\0" + b"h\0" * 200_000 + b"e.",
    ],
    ids=["names", "sizes", "integers"],
)
def test_what_stands_in_many_places_is_charged_for_each(pickle: bytes) -> None:
    refused(archive_of(pickle, {"0": b"\0" * 4}), limits=nnr.Limits.strict())


def test_bytes_between_the_items_of_a_tensor_are_charged() -> None:
    size = 1 << 20
    far = tensor(size, 0, [2], [size - 1])
    data = archive_of(b"\x80\x02](" + far + b"q\0" + b"h\0" * 100 + b"e.", {"0": bytes(4 * size)})
    refused(data, "max_total_bytes", limits=nnr.Limits(max_total_bytes=100 << 20))
    refused(data, "max_tensor_bytes", limits=nnr.Limits(max_tensor_bytes=4 * size - 1))


@pytest.mark.parametrize("end", [b"ccollections\nOrderedDict\n" + text("ab") + b"R.", text("storage") + b"Q."])
def test_arguments_are_tuples(end: bytes) -> None:
    refused(archive_of(b"\x80\x02" + end), "not a tuple")


def test_a_storage_has_items_of_one_type() -> None:
    ints = tensor(1, 0, [1], [1]).replace(b"FloatStorage", b"IntStorage")
    content = mapping({"a": ints, "b": tensor(1, 0, [1], [1])})
    refused(archive_of(content, {"0": b"\0" * 4}), "items of two types")


def test_empty_tensors_lie_anywhere() -> None:
    model = nnr.load(archive_of(mapping({"a": tensor(10, 12, [0], [3])}), {"0": bytes(40)}))
    assert model["a"].shape == (0,)


def test_surrogate_pairs_are_refused() -> None:
    pair = "\ud83d\ude00".encode("utf-8", "surrogatepass")
    refused(archive_of(b"\x80\x02](X" + struct.pack("<I", len(pair)) + pair + b"e."), "two surrogate code points")
