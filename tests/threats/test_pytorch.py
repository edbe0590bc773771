"""T39: malicious PyTorch files: pickles, archives and descriptions."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

import nnr_codec as nnr
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats.pytorch import archive, description
from nnr_codec.formats.pytorch.pickles import read_pickle
from nnr_codec.limits import Budget, Limits

from ..formats.torch_support import archive_of, integer, mapping, rebuilt, tensor, text
from .support import memory


def check(data: bytes, limits: Limits | None = None) -> None:
    """Read a pickle, within 4 MiB of memory."""
    with memory() as used:
        read_pickle(data, 0, Budget(limits or Limits()))
    assert used.peak < 4 << 20


class Call:
    """Object whose pickle makes Python call a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


# ------------------------------------------------------------------------------------------------ pickles
@pytest.mark.parametrize(
    "asked",
    [
        "os system",
        "posix system",
        "nt system",
        "builtins eval",
        "__builtin__ exec",
        "builtins getattr",
        "builtins bytearray",
        "subprocess Popen",
        "runpy run_path",
        "_codecs encode",
        "numpy.core.multiarray _reconstruct",
        "torch load",
        "torch.hub load",
        "torch.jit load",
        "torch Tensor",
        "torch os.system",
        "torch.serialization os.system",
        "torch._utils _rebuild_device_tensor_from_numpy",
        "torch._utils _rebuild_qtensor",
        "torch._tensor _rebuild_from_type_v2",
        "torch.nn.modules.linear Linear",
        "torch._dynamo.guards GuardBuilder",
        "collections OrderedDict.fromkeys",
        "collections namedtuple",
        "torch storageStorage",
        "torch FloatStorage.from_file",
        "torch float16.__class__",
    ],
)
def test_t39_what_a_pickle_may_name(asked: str) -> None:
    module, name = asked.split()
    data = b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"."
    with pytest.raises(FormatError, match=f"the pickle calls a disallowed function: {module}.{name};"):
        check(data)


@pytest.mark.parametrize(
    "data",
    [
        *(pickle.dumps(Call(print, "x"), protocol) for protocol in (3, 4, 5)),  # STACK_GLOBAL, FRAME
        b"(S'x'\nios\nsystem\n.",
        b"(cbuiltins\neval\nS'1'\no.",
        b"\x80\x02ccollections\nOrderedDict\n)\x81.",
        b"P0\n.",
        b"\x82\1.",  # an extension of copyreg
    ],
)
def test_t39_opcodes_that_name_and_call(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"has opcode [A-Z_0-9]+ at \d+|disallowed function: builtins\."):
        check(data)


@pytest.mark.parametrize(
    "called",
    [b"ctorch\nFloatStorage\n", b"ctorch.storage\nUntypedStorage\n", b"ctorch\nfloat16\n", b"K\1", text("os.system")],
)
def test_t39_what_a_pickle_may_call(called: bytes) -> None:
    with pytest.raises(FormatError, match="calls an object that is not a function"):
        check(b"\x80\x02" + called + integer(1 << 40) + b"\x85R.")


@pytest.mark.parametrize("opcodes", [b"})" + b"\x85" * 5000 + b"K\1s", b"]" * 5000 + b"a" * 4999])
def test_t39_deep_containers(opcodes: bytes) -> None:
    """Counting, hashing or describing them would overflow the stack."""
    with pytest.raises(FormatError, match="nested deeper than 100"):
        check(b"\x80\x02" + opcodes + b".")


def test_t39_marks_that_are_never_closed() -> None:
    """Each would have its own stack."""
    with pytest.raises(FormatError, match="containers are nested deeper than 100"):
        check(b"\x80\x02" + b"(" * 10_000)


def twice(count: int, opened: bytes, closed: bytes) -> bytes:
    """Return opcodes of an object that contains an object twice, repeatedly."""
    return b"".join(b"q" + bytes([k]) + opened + 2 * (b"h" + bytes([k])) + closed for k in range(count))


@pytest.mark.parametrize("count", [17, 59])
def test_t39_a_key_of_keys(count: int) -> None:
    """Hashing it would take years, or some time whenever it is used as a key."""
    uses = b"q\x7f" + b"h\x7fK\1" * 100
    with pytest.raises(LimitError, match="in all their places"):
        check(b"\x80\x02}()" + twice(count, b"(", b"t") + uses + b"u.")


def test_t39_a_list_of_lists() -> None:
    """It would have a million positions, each of which is described."""
    with pytest.raises(LimitError, match="in all their places"):
        check(b"\x80\x02]" + twice(20, b"](", b"e") + b".")


@pytest.mark.parametrize("call", ["builtins\nset", "collections\nOrderedDict"])
@pytest.mark.slow
def test_t39_a_list_of_which_many_containers_are_made(call: str) -> None:
    """Each call copies the list."""
    items = b"".join(integer(k) + integer(k) + b"\x86" for k in range(10_000))
    again = b"h\1h\0\x85R" * 2000
    with pytest.raises(LimitError, match="objects of the pickle:"), memory() as used:
        read_pickle(b"\x80\x02](](" + items + f"eq\0c{call}\nq\1".encode() + again + b"e.", 0, Budget(Limits()))
    assert used.peak < 300 << 20


@pytest.mark.parametrize("change", [b"K\1a", b"(K\1e"])
@pytest.mark.parametrize("used", [b"]q\0h\0", b"]q\0(h\0h\0tq\1"])
def test_t39_a_container_that_changes_after_it_was_used_again(used: bytes, change: bytes) -> None:
    """It could contain itself, or grow after it was counted."""
    with pytest.raises(FormatError, match=r"changes a container that is already shared|not a container for them"):
        check(b"\x80\x02](" + used + change + b"e.")


@pytest.mark.parametrize("pickled", [b"]q\0h\0a.", b"]q\0h\0\x85a.", b"}q\0K\1h\0s.", b"}q\0(K\1](h\0eu."])
def test_t39_a_container_that_holds_itself(pickled: bytes) -> None:
    with pytest.raises(FormatError, match="such as one that contains itself"):
        check(b"\x80\x02" + pickled)


def test_t39_many_objects() -> None:
    with pytest.raises(LimitError, match="max_names"):
        check(b"\x80\x02" + b"]" * 100_000, Limits(max_names=1000))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80\x02", b"\x80\x02h\5.", b"\x80\x02q\0.", b"\x80\x02R.", b"\x80\x02t.", b"\x80\x02u.",
     b"\x80\x02\x8a\xff.", b"\x80\x02X\xff\xff\xff\xffx", b"\x80\x02c\xff\n.", b"\x80\x02Q.", b"\xff",
     b"\x80\x02(K\1K\1K\1t", b"\x80\x02}(K\1u.", b"\x80\x02J\1", b"\x80\x02G\0", b"\x80\x02K\1K\1s.",
     b"\x80\x02]K\1K\1s.", b"\x80\x02}K\1a.", b"\x80\x02)(K\1e."],
)  # fmt: skip
def test_damaged_pickles(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"damaged|opcode"):
        check(data)


@pytest.mark.parametrize("opcode", [b"X\x09\0\0\0", b"U\x09", b"\x8a\x09"])
def test_t39_a_value_that_ends_early(opcode: bytes) -> None:
    """The value would be read as a shorter one, and the pickle would continue beyond its end."""
    with pytest.raises(FormatError, match="it ends early"):
        check(b"\x80\x02" + opcode + b"x.")


# ------------------------------------------------------------------------------------------------ tensors
def read(data: bytes, limits: Limits | None = None) -> None:
    """Read a file, within 4 MiB of memory."""
    with memory() as used:
        nnr.load(data, limits=limits)
    assert used.peak < 4 << 20


@pytest.mark.parametrize(("offset", "stride"), [(1, (1,)), (0, (2,)), (1 << 60, (1,)), (-1, (1,)), (3, (-1,))])
def test_t39_a_view_outside_of_its_storage(offset: int, stride: tuple[int]) -> None:
    with pytest.raises(FormatError, match="'w' has items outside its storage"):
        read(archive_of(mapping({"w": tensor(4, offset, (4,), stride)}), {"0": bytes(16)}))


@pytest.mark.parametrize("count", [3, 5, 1 << 40, (1 << 62)])
def test_t39_a_storage_of_another_size(count: int) -> None:
    """No size in the pickle is allocated."""
    with pytest.raises(FormatError, match="storage '0' has 16 bytes; the pickle says"):
        read(archive_of(mapping({"w": tensor(count, 0, (2,), (1,))}), {"0": bytes(16)}))


def test_t39_a_shape_of_many_extents() -> None:
    """Each tensor of this shape would be checked in full."""
    with pytest.raises(FormatError, match="not a tuple of up to 64 integers"):
        read(archive_of(mapping({"w": tensor(1, 0, (1,) * 65, (1,) * 65)}), {"0": bytes(4)}))


def test_t39_an_extent_of_many_digits() -> None:
    """Python refuses to print it."""
    with pytest.raises(FormatError, match="not a 64-bit integer"):
        read(archive_of(mapping({"w": tensor(1, 0, (1 << 2000,) * 30, (0,) * 30)}), {"0": bytes(4)}))


def test_t39_a_tensor_of_one_item_that_is_repeated() -> None:
    with pytest.raises(LimitError, match="max_tensor_elements"):
        read(archive_of(mapping({"w": tensor(1, 0, (1 << 40,), (0,))}), {"0": bytes(4)}))


def test_t39_a_key_that_is_there_again() -> None:
    """As in Python, the last value of equal keys counts; the others would be invisible tensors."""
    keys = [b"K\1", b"\x88", b"G?\xf0\0\0\0\0\0\0"]
    pairs = b"".join(key + integer(k) for k, key in enumerate(keys))
    topology = nnr.load(archive_of(b"\x80\x02}(" + pairs + b"u.")).topology
    assert topology is not None
    assert description.parse(topology.data).tree == {"dict": [[1, 2]]}


# ------------------------------------------------------------------------------------------------ the old format
def legacy(content: bytes, keys: bytes = b"]", storages: bytes = b"") -> bytes:
    """Return a file of the old format."""
    return archive.LEGACY + b"\x80\x02M\xe9\x03." + b"\x80\x02}." + content + b"\x80\x02" + keys + b"." + storages


@pytest.mark.parametrize("place", range(4))
def test_t39_every_pickle_of_an_old_file(place: int) -> None:
    pickles = [b"\x80\x02K\1."] * 4
    pickles[place] = b"\x80\x02cos\nsystem\n."
    with pytest.raises(FormatError, match=r"disallowed function: os\.system"):
        read(archive.LEGACY + b"".join(pickles))


OLD = mapping({"w": tensor(4, 0, (4,), (1,))})


@pytest.mark.parametrize("count", [5, 1 << 40, (1 << 64) - 1])
def test_t39_a_storage_of_an_old_file_beyond_its_end(count: int) -> None:
    with pytest.raises(FormatError, match="storage '0' ends beyond the end"):
        read(legacy(OLD, b"]" + text("0") + b"a", count.to_bytes(8, "little") + bytes(16)))


def test_t39_a_storage_that_an_old_file_lacks() -> None:
    with pytest.raises(FormatError, match="the file has no storage '0'"):
        read(legacy(OLD))


@pytest.mark.parametrize("keys", [text("0") + text("0"), text("1"), b"K\1", b"]"])
def test_t39_storages_that_an_old_file_does_not_use(keys: bytes) -> None:
    with pytest.raises(FormatError, match=r"is unknown to the pickle|occurs twice"):
        read(legacy(OLD, b"](" + keys + b"e", 2 * ((4).to_bytes(8, "little") + bytes(16))))


# ------------------------------------------------------------------------------------------------ archives
GOOD = archive_of(mapping({"w": tensor(4, 0, [4], [1])}), {"0": bytes(16)})


def opened(data: bytes, limits: Limits | None = None) -> archive.Archive:
    """Open an archive at nearly no cost."""
    with memory() as used:
        found = archive.open_archive(io.BytesIO(data), limits or Limits())
    assert used.peak < 4 << 20
    return found


def edited(name: str, **fields: int) -> bytes:
    """Return the valid archive with other fields of a member in its directory."""
    layout = {"method": (10, "H"), "flags": (8, "H"), "packed": (20, "I"), "size": (24, "I"), "offset": (42, "I")}
    data = bytearray(GOOD)
    at = data.index(name.encode(), data.index(b"PK\1\2")) - 46
    for field, value in fields.items():
        offset, code = layout[field]
        struct.pack_into(f"<{code}", data, at + offset, value)
    return bytes(data)


def test_the_good_archive() -> None:
    start, size = opened(GOOD).place("0")
    assert GOOD[start : start + size] == bytes(16)


@pytest.mark.parametrize("fields", [{"method": 8}, {"flags": 1}, {"size": 17}])
def test_t39_a_storage_that_is_not_as_it_is(fields: dict[str, int]) -> None:
    with pytest.raises(FormatError, match="compressed or encrypted"):
        opened(edited("archive/data/0", **fields)).place("0")


@pytest.mark.parametrize("name", ["archive/data/0", "archive/data.pkl"])
@pytest.mark.parametrize("offset", [1 << 20, 1 << 62, 1 << 63, (1 << 64) - 1])
def test_t39_a_member_that_begins_beyond_the_end(name: str, offset: int, tmp_path: Path) -> None:
    """No system supports offsets of more than 63 bits."""
    data = bytearray(edited(name, offset=(1 << 32) - 1))
    at = data.index(name.encode(), data.index(b"PK\1\2"))
    wide = struct.pack("<HHQ", 1, 8, offset)
    data[at + len(name) : at + len(name)] = wide
    struct.pack_into("<H", data, at - 46 + 30, len(wide))
    end = data.rindex(b"PK\5\6") + 12
    struct.pack_into("<I", data, end, struct.unpack_from("<I", data, end)[0] + len(wide))
    (tmp_path / "a.pt").write_bytes(data)
    with (tmp_path / "a.pt").open("rb") as file:
        for each in (file, io.BytesIO(data)):
            with pytest.raises(FormatError, match="begins beyond the end"):
                archive.open_archive(each, Limits())


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_t39_a_pickle_that_is_compressed_in_other_ways(method: int) -> None:
    """If it is damaged, decompression raises other exceptions."""
    with pytest.raises(FormatError, match="in a way that PyTorch does not read"):
        opened(rebuilt(GOOD, {}, method=method))


def test_t39_a_storage_beyond_the_end() -> None:
    with pytest.raises(FormatError, match="ends beyond the end"):
        opened(edited("archive/data/0", packed=1 << 30, size=1 << 30)).place("0")


@pytest.mark.parametrize("offset", [1, len(GOOD) - 3])
def test_t39_a_storage_that_is_elsewhere(offset: int) -> None:
    # zipfile of some Python versions rejects members that overlap.
    with pytest.raises(FormatError, match=r"is not at its declared offset|Overlapped entries"):
        opened(edited("archive/data/0", offset=offset)).place("0")


def test_t39_members_larger_than_the_file() -> None:
    with pytest.raises(LimitError, match="bytes of the members"):
        opened(edited("archive/version", size=1 << 30), Limits(max_archive_bytes=1 << 20))


def test_t39_a_pickle_that_is_a_bomb() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("archive/data.pkl", b"]" * (100 << 20))
    with pytest.raises(LimitError, match=r"bytes of data\.pkl"):
        opened(file.getvalue(), Limits(max_topology_bytes=1 << 20))


def test_t39_two_pickles() -> None:
    """One would be checked, and the other read."""
    file = io.BytesIO(GOOD)
    with zipfile.ZipFile(file, "a") as twice, pytest.warns(UserWarning, match="Duplicate name"):
        twice.writestr("archive/data.pkl", b"\x80\x02cos\nsystem\n.")
    with pytest.raises(FormatError, match=r"the archive contains 'data\.pkl' twice"):
        opened(file.getvalue())


@pytest.mark.medium
@pytest.mark.parametrize("wide", [False, True])
def test_t39_a_directory_of_many(wide: bool) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as many:
        for k in range(70_000 if wide else 10_000):
            many.writestr(f"archive/{k}", b"")
    assert (b"PK\6\7" in file.getvalue()) is wide
    with pytest.raises(LimitError, match="bytes of the archive's directory"), memory() as used:
        archive.open_archive(io.BytesIO(file.getvalue()), Limits(max_topology_bytes=100_000))
    assert used.peak < 1 << 20


# ------------------------------------------------------------------------------------------------ descriptions
def described(tree_text: str, blocks: str = "") -> bytes:
    """Return the text of a description."""
    return f'{{"nnr_codec.pytorch":1,"tree":{tree_text}{blocks and ","}{blocks}}}'.encode()


def test_t39_a_deep_description() -> None:
    with pytest.raises(FormatError, match="nested deeper than 100"):
        description.parse(described("[" * 300 + "]" * 300))


def test_t39_a_description_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "_MAX_MARKS", 10_000)
    with memory() as used, pytest.raises(FormatError, match="more than 10,000 values"):
        description.parse(described(f"[{'[],' * 100_000}1]"))
    assert used.peak < 1 << 20


def test_t39_a_key_in_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "MAX_NAMES", 1 << 20)
    tensors = ",".join(['{"tensor":[1]}'] * 1000)
    with memory() as used, pytest.raises(FormatError, match="the names of the description have more than"):
        description.parse(described(f'{{"dict":[["{"k" * 100_000}",[{tensors}]]]}}'))
    assert used.peak < 8 << 20


def test_t39_a_block_of_other_shapes() -> None:
    tensors = '{"dict":[["w",{"tensor":[4,3]}],["b",{"tensor":[5]}]]}'
    with pytest.raises(FormatError, match="differ in shape"):
        description.parse(described(tensors, '"blocks":[{"weight":"w","bias":"b","axis":0}]'))


def test_t39_a_tensor_in_two_blocks() -> None:
    tensors = '{"dict":[["w",{"tensor":[4,3]}],["b",{"tensor":[4]}]]}'
    for blocks in ('{"weight":"w","axis":0},{"weight":"w","axis":0}', '{"weight":"w","bias":"b","beta":"b","axis":0}'):
        with pytest.raises(FormatError, match="is already in a block"):
            description.parse(described(tensors, f'"blocks":[{blocks}]'))
