"""T39: files of PyTorch that mean harm, whose pickles and archives are looked at before PyTorch reads them."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats.pytorch import archive, tree
from nnr_codec.formats.pytorch.pickles import LEGACY, check_legacy, check_pickle
from nnr_codec.limits import Budget, Limits

from ..formats.torch_support import archive_of, integer, mapping, rebuilt, tensor, text
from .checks import pins
from .support import memory

PICKLES, ARCHIVE, TREE = (f"formats/pytorch/{name}.py" for name in ("pickles", "archive", "tree"))


def check(data: bytes, limits: Limits | None = None) -> None:
    """Look through a pickle, at next to no cost."""
    with memory() as used:
        check_pickle(io.BytesIO(data), Budget(limits or Limits()))
    assert used.peak < 4 << 20


class Call:
    """What a pickle calls when it is read by Python."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


# ------------------------------------------------------------------------------------------------ pickles
@pins(PICKLES, "if not called and not _NAMED.fullmatch(asked):")
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
    with pytest.raises(FormatError, match="nothing of it is run"):
        check(data)


@pins(PICKLES, 'elif name not in ("PROTO", "STOP"):', 'elif name == "INST":')
@pytest.mark.parametrize(
    "data",
    [
        *(pickle.dumps(Call(print, "x"), protocol) for protocol in (3, 4, 5)),  # STACK_GLOBAL, FRAME
        b"(S'x'\nios\nsystem\n.",
        b"(cbuiltins\neval\nS'1'\no.",
        b"\x80\x02ccollections\nOrderedDict\n)\x81.",
        b"P0\n.",
        b"\x82\1.",  # an extension of copyreg's
    ],
)
def test_t39_opcodes_that_name_and_call(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"has opcode [A-Z_0-9]+ at \d+|asks for 'builtins"):
        check(data)


@pins(PICKLES, "if not stack.pop().is_called:", "if not stack.pop():")
@pytest.mark.parametrize(
    "called",
    [b"ctorch\nFloatStorage\n", b"ctorch.storage\nUntypedStorage\n", b"ctorch\nfloat16\n", b"K\1", text("os.system")],
)
def test_t39_what_a_pickle_may_call(called: bytes) -> None:
    with pytest.raises(FormatError, match="calls what is not to be called"):
        check(b"\x80\x02" + called + integer(1 << 40) + b"\x85R.")


@pins(PICKLES, "if depth > MAX_DEPTH:")
def test_t39_a_deep_key() -> None:
    """Hashing it would overflow the stack of the machine, which ends the process."""
    with pytest.raises(FormatError, match="tuples are nested deeper than 100"):
        check(b"\x80\x02})" + b"\x85" * 200 + b"K\1s.")


@pins(PICKLES, "if len(below) > _MAX_MARKS:")
def test_t39_marks_that_are_never_closed() -> None:
    """Each would hold a stack of its own."""
    with pytest.raises(FormatError, match="containers are nested deeper than 100"):
        check(b"\x80\x02" + b"(" * 300 + b"t" * 300 + b".")


PLACES = 'budget.charge("max_names", 1 + _AGAIN * (known.size - 1), "objects of the pickle, in all their places")'


def twice(count: int, opened: bytes, closed: bytes) -> bytes:
    """Opcodes of an object that has one twice that has one twice."""
    return b"".join(b"q" + bytes([k]) + opened + 2 * (b"h" + bytes([k])) + closed for k in range(count))


@pins(PICKLES, PLACES, "pass")
@pytest.mark.parametrize("count", [17, 60])
def test_t39_a_key_of_keys(count: int) -> None:
    """Hashing it would take more than a lifetime, or a moment each time that it is one."""
    uses = b"q\x7f" + b"h\x7fK\1" * 100
    with pytest.raises(LimitError, match="in all their places"):
        check(b"\x80\x02}()" + twice(count, b"(", b"t") + uses + b"u.")


@pins(PICKLES, PLACES, "pass")
def test_t39_a_list_of_lists() -> None:
    """It would have a million of places, each of which is described."""
    with pytest.raises(LimitError, match="in all their places"):
        check(b"\x80\x02]" + twice(20, b"](", b"e") + b".")


@pins(PICKLES, "self.size += sum(item.size for item in items)", "pass")
def test_t39_a_list_of_which_many_sets_are_made() -> None:
    items = b"".join(integer(k) for k in range(10_000))
    with pytest.raises(LimitError, match="in all their places"):
        check(b"\x80\x02](](" + items + b"eq\0" + b"cbuiltins\nset\nh\0\x85R" * 1000 + b"e.")


@pins(PICKLES, "stack.append(_Object(size=1 + arguments.size, is_open=True))", "stack.append(_Object(is_open=True))")
def test_t39_what_is_made_of_many() -> None:
    items = b"".join(integer(k) for k in range(10_000))
    with pytest.raises(LimitError, match="in all their places"):
        check(b"\x80\x02](cbuiltins\nset\n](" + items + b"e\x85Rq\0" + b"h\0" * 1000 + b"e.")


@pins(PICKLES, "if not self.is_open:")
@pytest.mark.parametrize("change", [b"K\1a", b"(K\1e", b"K\1K\1s", b"(K\1K\1u", b"}b"])
def test_t39_an_object_that_grows_elsewhere(change: bytes) -> None:
    """Where it was put first, it would be larger than it counts."""
    with pytest.raises(FormatError, match="changes an object that is elsewhere by then"):
        check(b"\x80\x02](]q\0h\0" + change + b"e.")


@pins(
    PICKLES,
    '            budget.charge("max_names", 1, "objects of the pickle")\n            stack.append(_Object(is_open',
    "            stack.append(_Object(is_open",
)
def test_t39_many_objects() -> None:
    with pytest.raises(LimitError, match="max_names"):
        check(b"\x80\x02" + b"]" * 2000 + b".", Limits(max_names=1000))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80\x02", b"\x80\x02h\5.", b"\x80\x02q\0.", b"\x80\x02R.", b"\x80\x02t.", b"\x80\x02u.",
     b"\x80\x02\x8a\xff.", b"\x80\x02X\xff\xff\xff\xffx", b"\x80\x02c\xff\n.", b"\x80\x02Q.", b"\xff"],
)  # fmt: skip
def test_damaged_pickles(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"damaged|opcode"):
        check(data)


@pins(PICKLES, "for _ in range(_LEGACY_PICKLES):", "for _ in range(3):")
def test_t39_every_pickle_of_an_old_file() -> None:
    good, bad = b"\x80\x02K\1.", b"\x80\x02cos\nsystem\n."
    for place in range(1, 5):
        pickles = [LEGACY, *[good] * 4]
        pickles[place] = bad
        with pytest.raises(FormatError, match=r"os\.system"):
            check_legacy(io.BytesIO(b"".join(pickles)), Limits())


@pins(PICKLES, "return self._file.read(min(count, self._size - self._file.tell()))", "return self._file.read(count)")
@pytest.mark.parametrize("count", [(1 << 31) - 1, (1 << 62)])
def test_t39_a_text_of_an_old_file_that_ends_early(count: int, tmp_path: Path) -> None:
    """Of a file, so much memory would be asked for before it is read."""
    opcode = b"X" + struct.pack("<I", count) if count < 1 << 32 else b"\x8e" + struct.pack("<Q", count)
    (tmp_path / "a.pt").write_bytes(LEGACY + b"\x80\x02" + opcode + b"x.")
    with (tmp_path / "a.pt").open("rb") as file, memory() as used, pytest.raises(FormatError, match="is damaged"):
        check_legacy(file, Limits())
    assert used.peak < 1 << 20


@pins(PICKLES, 'limits.check("max_total_bytes", size, "bytes of the file, which is read whole")', "pass")
def test_t39_an_old_file_is_read_whole() -> None:
    with pytest.raises(LimitError, match="max_total_bytes"):
        check_legacy(io.BytesIO(LEGACY + b"\x80\x02K\1." * 4), Limits(max_total_bytes=20))


# ------------------------------------------------------------------------------------------------ archives
GOOD = archive_of(mapping({"w": tensor(4, 0, [4], [1])}), {"0": bytes(16)})


def opened(data: bytes, limits: Limits | None = None) -> archive.Archive:
    """An archive, at next to no cost."""
    with memory() as used:
        found = archive.open_archive(io.BytesIO(data), limits or Limits())
    assert used.peak < 4 << 20
    return found


def edited(name: str, **fields: int) -> bytes:
    """The good archive with other fields of a member in its directory."""
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


@pins(
    ARCHIVE,
    "if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:",
)
@pytest.mark.parametrize("fields", [{"method": 8}, {"flags": 1}, {"size": 17}])
def test_t39_a_storage_that_is_not_as_it_is(fields: dict[str, int]) -> None:
    with pytest.raises(FormatError, match="compressed or encrypted"):
        opened(edited("archive/data/0", **fields)).place("0")


@pins(ARCHIVE, "if not 0 <= info.header_offset <= size:")
@pytest.mark.parametrize("name", ["archive/data/0", "archive/data.pkl"])
@pytest.mark.parametrize("offset", [1 << 20, 1 << 62, 1 << 63, (1 << 64) - 1])
def test_t39_a_member_that_begins_beyond_the_end(name: str, offset: int, tmp_path: Path) -> None:
    """No system finds places of more than 63 bits."""
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


@pins(ARCHIVE, "if members[name].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):")
@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_t39_a_pickle_that_is_compressed_in_other_ways(method: int) -> None:
    """Where it is damaged, it ends in errors of other kinds."""
    with pytest.raises(FormatError, match="in a way that PyTorch does not read"):
        opened(rebuilt(GOOD, {}, method=method))


@pins(ARCHIVE, "if start + info.file_size > self.size:")
def test_t39_a_storage_beyond_the_end() -> None:
    with pytest.raises(FormatError, match="ends beyond the end"):
        opened(edited("archive/data/0", packed=1 << 30, size=1 << 30)).place("0")


@pins(ARCHIVE, 'if len(local) < _LOCAL.size or not local.startswith(b"PK\\3\\4"):')
@pytest.mark.parametrize("offset", [1, len(GOOD) - 3])
def test_t39_a_storage_that_is_elsewhere(offset: int) -> None:
    with pytest.raises(FormatError, match="is not where the archive says"):
        opened(edited("archive/data/0", offset=offset)).place("0")


@pins(ARCHIVE, 'budget.charge("max_archive_bytes", info.file_size, "bytes of the members of the archive")', "pass")
def test_t39_members_larger_than_the_file() -> None:
    with pytest.raises(LimitError, match="bytes of the members"):
        opened(edited("archive/version", size=1 << 30), Limits(max_archive_bytes=1 << 20))


@pins(ARCHIVE, 'limits.check("max_topology_bytes", members[name].file_size, f"bytes of {name}")', "pass")
def test_t39_a_pickle_that_is_a_bomb() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("archive/data.pkl", b"]" * (100 << 20))
    with pytest.raises(LimitError, match=r"bytes of data\.pkl"):
        opened(file.getvalue(), Limits(max_topology_bytes=1 << 20))


@pins(ARCHIVE, "if name in members:")
def test_t39_two_pickles() -> None:
    """One to be looked at, and one to be read."""
    file = io.BytesIO(GOOD)
    with zipfile.ZipFile(file, "a") as twice, pytest.warns(UserWarning, match="Duplicate name"):
        twice.writestr("archive/data.pkl", b"\x80\x02cos\nsystem\n.")
    with pytest.raises(FormatError, match=r"two members 'data\.pkl'"):
        opened(file.getvalue())


@pytest.mark.medium
@pins(ARCHIVE, 'limits.check("max_topology_bytes", length, "bytes of the archive\'s directory")', "pass")
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


def test_pytorch_sees_no_member_but_the_pickle() -> None:
    """Not the code of a module that was compiled, nor anything else that it would go by."""
    file = io.BytesIO(GOOD)
    with zipfile.ZipFile(file, "a") as more:
        more.writestr("archive/constants.pkl", b"x")
        more.writestr("archive/code/__torch__.py", b"x")
        more.writestr("archive/data/../../x", b"x")
    skeleton, _ = opened(file.getvalue()).skeleton()
    with zipfile.ZipFile(skeleton) as seen:
        assert seen.namelist() == [f"archive/{name}" for name in ("data.pkl", "version", "byteorder", "data/0")]


# ------------------------------------------------------------------------------------------------ descriptions
def description(tree_text: str, blocks: str = "") -> bytes:
    """The text of a description."""
    return f'{{"nnr_codec.pytorch":1,"tree":{tree_text}{blocks and ","}{blocks}}}'.encode()


@pins(TREE, "if depth > MAX_DEPTH:")
def test_t39_a_deep_description() -> None:
    with pytest.raises(FormatError, match="nested deeper than 100"):
        tree.parse(description("[" * 300 + "]" * 300))


@pins(TREE, 'if sum(data.count(mark) for mark in b"[{,") > _MAX_MARKS:')
def test_t39_a_description_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "_MAX_MARKS", 10_000)
    with memory() as used, pytest.raises(FormatError, match="more than 10,000 values"):
        tree.parse(description(f"[{'[],' * 100_000}1]"))
    assert used.peak < 1 << 20


@pins(TREE, "if size > _MAX_NAMES:")
def test_t39_a_key_in_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "_MAX_NAMES", 1 << 20)
    tensors = ",".join(['{"tensor":[1]}'] * 1000)
    with memory() as used, pytest.raises(FormatError, match="the names of the description have more than"):
        tree.parse(description(f'{{"dict":[["{"k" * 100_000}",[{tensors}]]]}}'))
    assert used.peak < 8 << 20


@pins(TREE, "if any(places[name].shape != (shape[axis],) for name in names[1:]):")
def test_t39_a_block_of_other_shapes() -> None:
    tensors = '{"dict":[["w",{"tensor":[4,3]}],["b",{"tensor":[5]}]]}'
    with pytest.raises(FormatError, match="differ in shape"):
        tree.parse(description(tensors, '"blocks":[{"weight":"w","bias":"b","axis":0}]'))


@pins(TREE, "if taken.intersection(names) or len(set(names)) < len(names):")
def test_t39_a_tensor_in_two_blocks() -> None:
    tensors = '{"dict":[["w",{"tensor":[4,3]}],["b",{"tensor":[4]}]]}'
    for blocks in ('{"weight":"w","axis":0},{"weight":"w","axis":0}', '{"weight":"w","bias":"b","beta":"b","axis":0}'):
        with pytest.raises(FormatError, match="is in a block already"):
            tree.parse(description(tensors, f'"blocks":[{blocks}]'))
