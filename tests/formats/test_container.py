"""Containers: directories, tars and gzipped tars, and content that is rejected."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import tarfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError, NnrError
from nnr_codec.formats.nnef import container, tar
from nnr_codec.limits import Limits
from nnr_codec.model import Model

from ..shared import examples
from .support import assert_same, dat, graph_text, minimal, nnef_model, regular, tar_bytes, write_folder

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX file systems only")


def load(data: bytes, limits: Limits | None = None) -> Model:
    return formats.load(io.BytesIO(data), format="nnef", limits=limits)


def special(name: str, kind: bytes, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info, b""


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.type = kind
    return info.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_tarfile_are_read(format: int, compress: bool) -> None:
    label = "deep/" * 45 + "w" * 20
    array = np.arange(3, dtype=np.float32)
    files = {
        "./graph.nnef": graph_text({label: array}),
        f"./{label}.dat": dat(array),
        "./._graph.nnef": b"droppings",
    }
    members = [special("./", tarfile.DIRTYPE), special("./deep", tarfile.DIRTYPE), *regular(files)]
    for info, _ in members:
        # Fractions and other alphabets cause extended headers of the pax format.
        info.mtime, info.uname = 1.5, "utilis\N{LATIN SMALL LETTER E WITH ACUTE}"
    data = tar_bytes(members, format)
    model = load(gzip.compress(data) if compress else data)
    assert_same(model.tensors, {label: array})


def test_order_of_the_archive_does_not_matter() -> None:
    tensors = {name: np.full((2,), index, np.float32) for index, name in enumerate("dacb")}
    files = {f"{name}.dat": dat(array) for name, array in tensors.items()}
    for names in (sorted(files), sorted(files, reverse=True)):
        for at in (0, 2, 4):
            ordered = [*names[:at], "graph.nnef", *names[at:]]
            data = tar_bytes(regular({name: {**files, "graph.nnef": graph_text(tensors)}[name] for name in ordered}))
            assert_same(load(data).tensors, tensors)
            assert_same(load(gzip.compress(data)).tensors, tensors)


def test_archives_may_begin_like_a_text() -> None:
    data = tar_bytes(regular({"version": b"1.0", **minimal()}))
    for packed in (data, gzip.compress(data)):
        with pytest.warns(formats.FormatWarning, match="'version'"):
            assert list(load(packed)) == ["a/w"]


def test_content_decides(tmp_path: Path) -> None:
    data = tar_bytes(regular(minimal()))
    for name, content in (("a.npz", data), ("b.tar", gzip.compress(data)), ("c.tgz", data), ("d", gzip.compress(data))):
        (tmp_path / name).write_bytes(content)
        assert list(formats.load(tmp_path / name)) == ["a/w"]


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (special("a/w.dat", tarfile.SYMTYPE, "/etc/passwd"), "is not a regular file"),
        (special("x", tarfile.SYMTYPE, "graph.nnef"), "is not a regular file"),
        (special("x", tarfile.LNKTYPE, "graph.nnef"), "is not a regular file"),
        (special("x", tarfile.CHRTYPE), "is not a regular file"),
        (special("x", tarfile.BLKTYPE), "is not a regular file"),
        (special("x", tarfile.FIFOTYPE), "is not a regular file"),
        (special("x", tarfile.GNUTYPE_SPARSE), "is not a regular file"),
        (special("x", tarfile.GNUTYPE_LONGLINK), "is not a regular file"),
        (special("x", tarfile.SOLARIS_XHDTYPE), "is not a regular file"),
        (special("x", b"M"), "is not a regular file"),
        (special("x", b"V"), "is not a regular file"),
        (special("x", b"Z"), "is not a regular file"),
        (special("/x", tarfile.REGTYPE), "outside its folder"),
        (special("../x", tarfile.REGTYPE), "outside its folder"),
        (special("a/../../x", tarfile.REGTYPE), "outside its folder"),
        (special("a/..", tarfile.DIRTYPE), "outside its folder"),
        (special(".", tarfile.REGTYPE), "is not a regular file"),
        (special("graph.nnef", tarfile.REGTYPE), "twice"),
        (special("./a//./w.dat", tarfile.REGTYPE), "twice"),
    ],
    ids=lambda value: f"{value[0].name}-{value[0].type!r}" if isinstance(value, tuple) else "",
)
@pytest.mark.parametrize("compress", [False, True])
def test_hostile_members(member: tuple[tarfile.TarInfo, bytes], message: str, compress: bool) -> None:
    data = tar_bytes([*regular(minimal()), member])
    with pytest.raises(FormatError, match=message):
        load(gzip.compress(data) if compress else data)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"path": "../x"}, "outside its folder"),
        ({"path": "a\0b"}, "outside its folder"),
        ({"size": "-1"}, "malformed size"),
        ({"size": "1e3"}, "malformed size"),
        ({"size": "\N{SUPERSCRIPT TWO}"}, "malformed size"),
        ({"size": "9" * 30}, "malformed size"),
        ({"GNU.sparse.major": "1"}, "sparse"),
        ({"GNU.sparse.name": "x", "GNU.sparse.realsize": "1"}, "sparse"),
        ({"path": "/x"}, "outside its folder"),
        ({"path": "a/w.dat"}, "twice"),
        ({"path": "./graph.nnef"}, "twice"),
    ],
)
def test_hostile_extended_headers(headers: dict[str, str], message: str) -> None:
    info = tarfile.TarInfo("x")
    info.pax_headers = headers
    with pytest.raises(FormatError, match=message):
        load(tar_bytes([*regular(minimal()), (info, b"")]))


@pytest.mark.parametrize(
    "records", [b"x", b"5 a=b", b"6 a=b\n\n", b"0 a=b\n", b" a=b\n", b"99 a=b\n", b"-6 a=b\n", b"6 abc\n"]
)
def test_malformed_extended_headers(records: bytes) -> None:
    data = header("x", len(records), tarfile.XHDTYPE) + records.ljust(512, b"\0")
    with pytest.raises(FormatError, match="malformed extended header"):
        load(data + tar_bytes(regular(minimal())))


def test_chains_and_sizes_of_extended_headers() -> None:
    rest = tar_bytes(regular(minimal()))
    long_name = header("x", 3, tarfile.GNUTYPE_LONGNAME) + b"abc".ljust(512, b"\0")
    with pytest.raises(FormatError, match="two extended headers"):
        load(long_name * 5000 + rest)
    with pytest.raises(FormatError, match="too large"):
        load(header("x", 1 << 21, tarfile.XHDTYPE) + bytes(1 << 21) + rest)
    with pytest.raises(FormatError, match="sets a path or size"):
        load(header("x", 10, tarfile.XGLTYPE) + b"10 path=a\n".ljust(512, b"\0") + rest)
    assert list(load(header("x", 12, tarfile.XGLTYPE) + b"12 comment=\n".ljust(512, b"\0") + rest)) == ["a/w"]
    start = time.process_time()
    many = b"6 a=b\n" * 150_000
    load(header("x", len(many), tarfile.XHDTYPE) + many + bytes(-len(many) % 512) + rest)
    assert time.process_time() - start < 3


def test_bombs_are_charged_before_they_are_read() -> None:
    bomb = gzip.compress(tar_bytes([*regular(minimal()), *regular({"zeros": bytes(8 << 20)})]))
    assert len(bomb) < 20_000
    tracemalloc.start()
    try:
        with pytest.raises(LimitError, match="max_archive_bytes"):
            load(bomb, Limits(max_archive_bytes=1 << 20))
        with pytest.warns(formats.FormatWarning, match="zeros"):
            load(bomb)
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_compressed_bytes_after_the_archive_are_charged() -> None:
    bomb = gzip.compress(tar_bytes(regular(minimal())) + bytes(8 << 20))
    with pytest.raises(LimitError, match="max_archive_bytes"):
        load(bomb, Limits(max_archive_bytes=1 << 20))


@pytest.mark.parametrize("name", ["zeros.bin", "zeros.dat", "a/w.dat", "graph.txt"])
@pytest.mark.parametrize("first", [True, False])
def test_files_that_are_no_tensors_are_refused_before_they_are_inflated(name: str, first: bool) -> None:
    """The archive ends after the header of such a file; reading the file would detect the truncation."""
    model = tar_bytes(regular(minimal() if name != "a/w.dat" else {"graph.nnef": minimal()["graph.nnef"]}))
    data = header(name, 3 << 30) if first else model[:-10240] + header(name, 3 << 30)
    with pytest.raises(LimitError, match="neither text nor tensor file: 3,221,225,472 is more than max_topology_bytes"):
        load(gzip.compress(data + bytes(512)))


def test_tensors_of_zeros_may_inflate_to_any_number_of_bytes() -> None:
    zeros = np.zeros((1 << 10, 1 << 10), np.float32)
    data = gzip.compress(tar_bytes(regular({"graph.nnef": graph_text({"w": zeros}), "w.dat": dat(zeros)})))
    assert len(data) < 10_000
    assert not load(data, Limits(max_topology_bytes=1000)).tensors["w"].any()


def test_other_files_of_an_archive_may_have_a_multiple_of_its_bytes() -> None:
    noise = np.random.default_rng(1).bytes(1 << 16)
    for size, is_refused in ((1 << 20, False), (4 << 20, True)):
        data = gzip.compress(tar_bytes(regular({**minimal(), "vendor.bin": noise + bytes(size)})))
        expected = pytest.raises(LimitError) if is_refused else pytest.warns(formats.FormatWarning, match="vendor.bin")
        with expected:
            load(data, Limits(max_topology_bytes=1000))


def test_zeros_after_a_gzipped_archive_are_limited() -> None:
    data = gzip.compress(tar_bytes(regular(minimal())) + bytes(8 << 20))
    with pytest.raises(LimitError, match="neither text nor tensor file"):
        load(data, Limits(max_topology_bytes=1 << 20))


def test_promises_cost_nothing() -> None:
    huge = header("a/w.dat", 0o77777777777)
    tracemalloc.start()
    try:
        for data in (huge, gzip.compress(huge)):
            with pytest.raises(FormatError, match="truncated"):
                load(tar_bytes(regular({"graph.nnef": minimal()["graph.nnef"]}))[:1024] + data)
            with pytest.raises(LimitError):
                load(data, Limits.strict())
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_numbers_and_names_of_members_are_limited() -> None:
    files = {f"f{index}": b"" for index in range(20)}
    data = tar_bytes(regular({**minimal(), **files}))
    with pytest.raises(LimitError, match="max_names"):
        load(data, Limits(max_names=10))
    with pytest.raises(LimitError, match="max_name_bytes"):
        load(data, Limits(max_name_bytes=5))
    with pytest.raises(LimitError, match="max_topology_bytes"):
        load(data, Limits(max_topology_bytes=20))


def test_every_truncation_is_noticed() -> None:
    data = tar_bytes(regular(minimal()))
    end = len(data.rstrip(b"\0"))
    for size in range(0, end, 7):
        with pytest.raises(FormatError):
            load(data[:size])
    packed = gzip.compress(data)
    for size in range(len(packed)):
        with pytest.raises(FormatError):
            load(packed[:size])


def test_damaged_headers() -> None:
    rest = tar_bytes(regular(minimal()))
    negative = bytearray(header("x", 0))
    negative[124:136] = b"\xff" * 12
    negative[148:156] = b"%06o\0 " % (sum(negative[:148]) + 8 * 32 + sum(negative[156:]))
    with pytest.raises(FormatError, match="negative size"):
        load(bytes(negative) + rest)
    with pytest.raises(FormatError, match="not a tar archive, or damaged"):
        load(rest[:1024] + b"x" * 512 + rest)
    with pytest.raises(FormatError, match="truncated"):
        load(rest[:1024] + bytes(0) + b"\0" * 100 + b"x")


def test_damage_of_gzip_is_noticed() -> None:
    # Stored blocks: only the checksum detects that an item has changed.
    packed = bytearray(gzip.compress(tar_bytes(regular(minimal())), compresslevel=0))
    packed[packed.index(np.float32(-2.0).tobytes())] ^= 1
    with pytest.raises(FormatError, match="gzip stream is damaged"):
        load(bytes(packed))


def test_model_below_the_top_is_pointed_out() -> None:
    data = tar_bytes(regular({f"model/{name}": content for name, content in minimal().items()}))
    with pytest.raises(
        FormatError, match=r"graph\.nnef is missing; found only 'model/graph\.nnef', but the model must be at the top"
    ):
        load(data)


@posix
def test_links_in_directories_are_not_followed(tmp_path: Path) -> None:
    files = minimal()
    write_folder(tmp_path / "elsewhere", {"w.dat": files["a/w.dat"], "graph.nnef": files["graph.nnef"]})
    for name, link, target in (
        ("file", "a/w.dat", "../../elsewhere/w.dat"),
        ("folder", "a", "../elsewhere"),
        ("graph", "graph.nnef", "../elsewhere/graph.nnef"),
    ):
        kept = {path: data for path, data in files.items() if not path.startswith(link)}
        write_folder(tmp_path / name, kept)
        (tmp_path / name / link).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / link).symlink_to(target)
        with pytest.raises(FormatError, match="is a symbolic link"):
            formats.load(tmp_path / name)


@posix
@pytest.mark.parametrize("meanwhile", ["file", "folder", "pipe"])
def test_what_takes_the_place_of_a_file_meanwhile_is_not_read(
    meanwhile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is replaced between its check and its opening; no descriptor stays open."""
    folder = write_folder(tmp_path / "m", minimal())
    secret = np.array([[6.25, 9.75]], np.float32)
    write_folder(tmp_path / "elsewhere", {"w.dat": dat(secret)})
    model, look, done = formats.load(folder), os.stat, []

    def look_and_change(path: str, **options: Any) -> os.stat_result:
        found = look(path, **options)
        if not done and os.path.basename(path) == ("a" if meanwhile == "folder" else "w.dat"):
            done.append(path)
            if meanwhile == "folder":
                (folder / "a").rename(folder / "b")
                (folder / "a").symlink_to(tmp_path / "elsewhere")
                return found
            (folder / "a" / "w.dat").unlink()
            if meanwhile == "pipe":
                os.mkfifo(folder / "a" / "w.dat")
            else:
                (folder / "a" / "w.dat").symlink_to(tmp_path / "elsewhere" / "w.dat")
        return found

    descriptors = len(os.listdir("/dev/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", look_and_change)
        patch.setattr(os, "lstat", look_and_change)
        with pytest.raises((FormatError, OSError)):
            model["a/w"]
    assert done
    assert len(os.listdir("/dev/fd")) == descriptors
    with pytest.raises((FormatError, OSError)):
        model["a/w"]
    assert len(os.listdir("/dev/fd")) == descriptors


def test_systems_without_relative_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_RELATIVE", False)
    test_links_in_directories_are_not_followed(tmp_path / "links")
    test_directories_with_other_things(tmp_path / "others")
    folder = write_folder(tmp_path / "m", minimal())
    assert_same(formats.load(folder).tensors, load(tar_bytes(regular(minimal()))).tensors)
    (folder / "a" / "w.dat").unlink()
    with pytest.raises(FormatError, match=r"a/w\.dat is missing"):
        formats.load(folder)


@posix
def test_directories_with_other_things(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", minimal())
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(".")
    write_folder(folder, {".git/x": b"", ".DS_Store": b"", "a/._w.dat": b""})
    with pytest.warns(formats.FormatWarning, match="left out: 'loop', 'pipe'$"):
        formats.load(folder)
    (folder / "a" / "w.dat").unlink()
    os.mkfifo(folder / "a" / "w.dat")
    with pytest.raises(FormatError, match=r"a/w\.dat is not a regular file"):
        formats.load(folder)


@pytest.mark.medium
def test_directories_deeper_than_recursion(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", minimal())
    # Created and removed from the top, because cleaning up after tests may recurse.
    (folder / "d").mkdir()
    try:
        for _ in range(1200):
            (folder / "up").mkdir()
            (folder / "d").rename(folder / "up" / "d")
            (folder / "up").rename(folder / "d")
        assert list(formats.load(folder)) == ["a/w"]
    finally:
        while (folder / "d" / "d").exists():
            (folder / "d" / "d").rename(folder / "up")
            (folder / "d").rmdir()
            (folder / "up").rename(folder / "d")


def test_directory_limits(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {**minimal(), **{f"f{index}": b"" for index in range(20)}})
    with pytest.raises(LimitError, match="max_names"):
        formats.load(folder, limits=Limits(max_names=10))
    with pytest.raises(LimitError, match="max_topology_bytes"):
        formats.load(folder, limits=Limits(max_topology_bytes=10))


@pytest.mark.medium
@settings(max_examples=examples(300))
@given(st.data())
def test_headers_are_decoded_as_by_tarfile(data: st.DataObject) -> None:
    """This includes headers that differ from the previous one only in name, size and checksum."""
    decode = tar._Decoder()
    names, sizes = ["a", "b/w.dat", "é", "x" * 99, f"{'p' * 60}/{'n' * 60}", "d/"], [0, 7, 8**11 - 1, 8**11]
    for _ in range(4):
        info = tarfile.TarInfo(data.draw(st.sampled_from(names)))
        info.size = data.draw(st.sampled_from(sizes))
        info.type = data.draw(st.sampled_from([tarfile.REGTYPE, tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE]))
        block = bytearray(info.tobuf(data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])))[-512:])
        if data.draw(st.booleans()):
            place = data.draw(
                st.sampled_from([0, 5, 99, 100, 124, 130, 135, 140, 148, 153, 154, 155, 156, 157, 345, 511])
            )
            block[place] = data.draw(st.sampled_from(b"\0 01789+-_ax/\x80\xff"))
            if data.draw(st.booleans()):
                total = sum(block[:148]) + 8 * 32 + sum(block[156:])
                block[148:156] = b"%06o\0 " % total
        try:
            expected = tarfile.TarInfo.frombuf(bytes(block), "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            with pytest.raises(FormatError, match=re.escape(str(error))):
                decode(bytes(block))
        else:
            assert decode(bytes(block)) == (expected.name, expected.size, expected.type)


@pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")
@settings(deadline=None)
@given(st.data())
def test_damaged_archives_give_a_model_or_an_error(draw: st.DataObject) -> None:
    data = bytearray(
        tar_bytes(regular(minimal()), draw.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])))
    )
    if draw.draw(st.booleans()):
        for _ in range(draw.draw(st.integers(1, 3))):
            data[draw.draw(st.integers(0, 2047))] = draw.draw(st.integers(0, 255))
        # With a corrected checksum, damage reaches the fields.
        for start in (0, 1024):
            block = data[start : start + 512]
            total = sum(block[:148]) + 8 * 32 + sum(block[156:])
            data[start + 148 : start + 156] = b"%06o\0 " % total
    if draw.draw(st.booleans()):
        data = bytearray(gzip.compress(data, mtime=0))
        for _ in range(draw.draw(st.integers(0, 3))):
            data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(NnrError):
        load(bytes(data), Limits.strict())


@pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")
@settings(deadline=None)
@given(st.binary(max_size=1200), st.sampled_from([b"", b"\x1f\x8b", b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b"PK\3\4"]))
def test_any_bytes_give_a_model_or_an_error(data: bytes, start: bytes) -> None:
    for format in (None, "nnef", "npz"):
        with contextlib.suppress(NnrError):
            formats.load(io.BytesIO(start + data), format=format, limits=Limits.strict())


def test_writing_is_reproducible(tmp_path: Path) -> None:
    tensors = {"b/w": np.arange(300, dtype=np.float32), "a": np.ones((1, 2), np.bool_), "c" * 120: np.zeros(1, np.int8)}
    model = nnef_model(tensors, b"# none\n")
    contents = []
    for suffix in (".nnef.tar", ".tar", ".nnef.tgz", ".tar.gz", ".tgz"):
        path = tmp_path / f"m{suffix}"
        formats.save(model, path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert contents[2] == contents[3] == contents[4]
    assert gzip.decompress(contents[2]) == contents[0]
    assert contents[2][3:8] == bytes(5)
    stream = io.BytesIO()
    formats.save(model, stream)
    assert stream.getvalue() == contents[0]
    assert len(contents[0]) % tarfile.RECORDSIZE == 0
    with tarfile.open(tmp_path / "m.tar", mode="r:", errorlevel=2) as archive:
        members = archive.getmembers()
        assert archive.fileobj is not None
    assert [member.name for member in members] == sorted(
        [*(f"{label}.dat" for label in tensors), "graph.nnef", "graph.quant"]
    )
    assert {(member.mtime, member.uid, member.gid, member.uname, member.mode) for member in members} == {
        (0, 0, 0, "", 0o644)
    }
