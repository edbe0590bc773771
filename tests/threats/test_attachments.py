"""T49: malicious attachments of bitstreams and folders: names, sizes, links."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.attachments import Attachment
from nnr_codec.constants import NNR_PT_INT
from nnr_codec.limits import Limits

from ..builder import Bitstream, ndu
from .support import memory, start
from .support import refused as refused_by_decoders

W = np.ones((4, 4), np.float32)
FILE = b'{"attachment":"a","bytes":4}\nabcd\0'


def attached(*data: bytes) -> Bitstream:
    """Return a bitstream with units of storage format 129 and a tensor."""
    s = start()
    for each in data:
        s.topology(each, storage=129)
    return s.ndu(ndu("w", [2], kind=NNR_PT_INT), [3, -4])


def named(*names: str) -> bytes:
    """Return a bitstream with empty attachments."""
    return attached(*(Attachment(name).to_bytes() + b"\0" for name in names)).data


def refused(data: bytes, match: str, error: type[nnr.NnrError] = nnr.ElementError, **limits: int) -> None:
    """Check that decoders reject a bitstream, and that verify reports it."""
    refused_by_decoders(data, error, match, limits=Limits(**limits))  # type: ignore[arg-type]
    (found,) = nnr.verify(data, limits=Limits(**limits)).violations  # type: ignore[arg-type]
    assert found.requirement == ("limits" if error is nnr.LimitError else "attachment")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        *((name, "is not a valid name") for name in ("", "../x", "/etc/x", "a/../../b", "a\0", "a\\b", "C:x", "a\nb")),
        ("\ud800", "is not a valid name"),
        *((name, "is reserved for a device") for name in ("CON", "a/nul.txt")),
        *((name, "is the name of a hidden file") for name in (".x", ".git/config", "a/.x")),
        ("caf\xe9", "changes with Unicode normalization"),
        ("a/" * 127 + "bb", "has more than 255 bytes"),
    ],
)
def test_names(name: str, match: str) -> None:
    refused(named(name), match)


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (("a", "a"), "are equal, or differ only in case"),
        (("A", "a"), "differ only in case"),
        (("a", "a/b"), "is both a file and a folder"),
        (("a/b", "A"), "is both a file and a folder"),
    ],
)
def test_names_that_collide(names: tuple[str, ...], match: str) -> None:
    refused(named(*names), match)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b'{"attachment":1}\n\0', "no canonical header"),
        (b'{"attachment":"a"\n\0', "no canonical header"),
        (b'{"attachment":"a","bytes":-1}\n\0', "no canonical header"),
        (b'{"attachment":"a","bytes":true}\n\0', "no canonical header"),
        (b'{"attachment":"a","bytes":0}\n\0', "no canonical header"),
        (b'{"attachment":"a","more":1}\n\0', "no canonical header"),
        (b'{"attachment":' + b"[" * 100_000 + b"\n\0", "no canonical header"),
        (b'{"attachment":"' + b"a" * 3000 + b'"}\n\0', "no canonical header"),
        (b'{"attachment":"a"}\n', "does not end with a zero byte"),
        (FILE[:-1], "does not end with a zero byte"),
        (FILE.replace(b"4", b"5"), "the attachment has 4 bytes; its header says 5"),
        (b'{"attachment":"a","bytes":1,"coding":"tensors"}\n\0', "the attachment has 0 bytes; its header says 1"),
    ],
)
def test_headers(data: bytes, match: str) -> None:
    refused(attached(data).data, match)


def test_two_files_of_tensors() -> None:
    data = [Attachment(name, 0, "tensors").to_bytes() + b"\0" for name in "ab"]
    refused(attached(*data).data, "names two files of tensors")


def test_limits() -> None:
    data = attached(FILE, FILE.replace(b'"a"', b'"b"')).data
    assert len(nnr.open(data, limits=Limits(max_attachment_bytes=8, max_attachments=2)).attachments) == 2
    refused(data, "max_attachment_bytes", nnr.LimitError, max_attachment_bytes=7)
    refused(data, "max_attachments", nnr.LimitError, max_attachments=1)


@pytest.mark.parametrize(
    ("size", "stream", "match"),
    [
        (100, zlib.compress(bytes(99)), "does not inflate to exactly 100 bytes"),
        (100, zlib.compress(bytes(1 << 26)), "does not inflate to exactly 100 bytes"),
        (100, zlib.compress(bytes(100)) + b"x", "does not inflate to exactly 100 bytes"),
        (100, zlib.compress(bytes(100))[:-1], "does not inflate to exactly 100 bytes"),
        (100, b"x" + zlib.compress(bytes(100)), "deflated data is damaged"),
    ],
)
def test_deflated_bytes_of_another_size(size: int, stream: bytes, match: str) -> None:
    data = attached(Attachment("a", size, "deflate").to_bytes() + stream + b"\0").data
    with nnr.open(data) as file, memory() as used, pytest.raises(nnr.ElementError, match=match):
        file.attachments["a"]
    assert used.peak < 300_000
    (found,) = nnr.verify(data).violations
    assert (found.requirement, match in found.message) == ("attachment", True)


def test_opening_does_not_inflate() -> None:
    coded = Attachment("a", 1 << 26, "deflate").to_bytes() + zlib.compress(bytes(1 << 26)) + b"\0"
    data = attached(coded).data
    with memory() as used, nnr.open(data) as file:
        assert file.attachments.sizes == {"a": 1 << 26}
    assert used.peak < 500_000


def test_verify_inflates_within_the_limits() -> None:
    data = attached(Attachment("a", 1 << 26, "deflate").to_bytes() + zlib.compress(bytes(1 << 26)) + b"\0").data
    with memory() as used:
        nnr.verify(data, limits=Limits(max_attachment_bytes=1 << 20))
    assert used.peak < 20_000_000


def test_an_unknown_coding_is_listed_but_not_read() -> None:
    data = attached(Attachment("a", 3, "later").to_bytes() + b"?\0").data
    with nnr.open(data) as file:
        assert list(file.attachments) == ["a"]
        with pytest.raises(nnr.UnsupportedError, match="has the unknown coding 'later'"):
            file.attachments["a"]
    assert not nnr.verify(data).violations


@pytest.mark.parametrize("name", ["model.safetensors", "MODEL.safetensors", "model.safetensors/x"])
def test_names_of_the_files_of_tensors(name: str, tmp_path: Path) -> None:
    data = nnr.encode(nnr.Model({"w": W}, format="safetensors", attachments={name: b"x"}))
    with pytest.raises(nnr.FormatError, match=r"differ only in case|both a file and a folder"):
        nnr.decode_file(data, tmp_path / "out")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["../x", ".x", "a" * 256, "CON", "x\0"])
def test_names_that_are_not_encoded(name: str) -> None:
    with pytest.raises(nnr.FormatError):
        nnr.encode(nnr.Model({"w": W}, attachments={name: b"x"}))


def test_a_file_of_tensors_in_another_folder(tmp_path: Path) -> None:
    tensors = Attachment("b/c.npz", 0, "tensors").to_bytes() + b"\0"
    nnr.decode_file(attached(tensors, FILE).data, tmp_path / "out", format="npz")
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "model.npz"]


def test_links_that_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    folder = tmp_path / "m"
    (folder / "real").mkdir(parents=True)
    nnr.save({"w": W}, folder / "model.safetensors")
    (folder / "out.json").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    (folder / "none").symlink_to("missing")
    os.mkfifo(folder / "pipe")
    with pytest.warns(nnr.formats.FormatWarning, match="files are left out: 'none', 'out.json', 'pipe', 'up'$"):
        assert not nnr.load(folder).attachments


def test_a_file_that_becomes_a_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    folder = tmp_path / "m"
    folder.mkdir()
    nnr.save({"w": W}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    model = nnr.load(folder)
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(tmp_path / "secret")
    with pytest.raises(nnr.FormatError, match="is a symbolic link"):
        model.attachments["config.json"]
    (folder / "config.json").unlink()
    (folder / "config.json").write_text("longer")
    with pytest.raises(nnr.FormatError, match="has changed since the model was opened"):
        model.attachments["config.json"]


def test_folders_of_many_files(tmp_path: Path) -> None:
    nnr.save({"w": W}, tmp_path / "model.safetensors")
    for k in range(3):
        (tmp_path / f"{k}.json").write_text("{}")
    assert len(nnr.load(tmp_path, limits=Limits(max_attachments=3)).attachments) == 3
    with pytest.raises(nnr.LimitError, match="max_attachments"):
        nnr.load(tmp_path, limits=Limits(max_attachments=2))
    with pytest.raises(nnr.LimitError, match="max_names"):
        nnr.load(tmp_path, limits=Limits(max_names=3))
