"""Models and bitstreams that point elsewhere: the command reads or writes only its inputs and output.

Threats T36 (labels as paths), T37 (archives) and T41 (outputs). The command runs in a folder `jail`; files beside it
must not be accessed.
"""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from nnr_cli import errors

import nnr_codec as nnr

from ..builder import Bitstream, ndu
from ..formats.support import dat, graph_text, minimal, regular, tar_bytes, write_folder
from .support import call, process

Capture = pytest.CaptureFixture[str]

VALUES = np.array([[1.5, -2.0]], np.float32)
SECRET = np.array([[6.25, 9.75]], np.float32)

#: Labels that are paths outside the model on some system, or not paths at all.
LABELS = [
    "../w",
    "../../outside/w",
    "a/../../w",
    "a/../w",
    "..",
    "../",
    "/../w",
    "//outside/w",
    "./w",
    "a//w",
    "a/",
    "/",
    "",
    "..\\w",
    "\\..\\w",
    "a\\..\\..\\w",
    "\\\\server\\share\\w",
    "\\w",
    "C:\\w",
    "C:w",
    "w:stream",
    "~/w",
    "%2e%2e/w",
    "$HOME/w",
    "w w",
    "w\r\nx",
    "\N{FULLWIDTH FULL STOP}\N{FULLWIDTH FULL STOP}/w",
    "\N{RIGHT-TO-LEFT OVERRIDE}w",
    "graph.nnef/w",
    "w" * 252,
]
OUTPUTS = ("out.nnef", "out.tar", "out.tgz")


def content(folder: Path) -> dict[str, object]:
    """Return everything below a folder: contents of files, targets of links, and other kinds of entries."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else "other"
    return found


@pytest.fixture(autouse=True)
def jail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to the folder in which the command runs."""
    monkeypatch.setenv("NO_COLOR", "1")
    write_folder(tmp_path / "outside", {"w.dat": dat(SECRET), "graph.nnef": graph_text({"w": SECRET})})
    write_folder(tmp_path, {"w.dat": dat(SECRET)})
    jail = tmp_path / "jail"
    jail.mkdir()
    monkeypatch.chdir(jail)
    return jail


def assert_refused(capsys: Capture, *arguments: object) -> str:
    """Check that the command rejects its input and changes nothing; return the message."""
    before = content(Path.cwd().parent)
    result = call(capsys, *arguments)
    assert result.code in (errors.BAD_INPUT, errors.UNSUPPORTED, errors.FILE), result
    assert result.err.startswith("nnr: ")
    assert content(Path.cwd().parent) == before
    return result.err


@pytest.mark.parametrize("label", [*LABELS, "w\0"], ids=ascii)
def test_labels_of_a_model(label: str, jail: Path, capsys: Capture) -> None:
    """Each interpretation of the label leads to an existing file."""
    files = {"graph.nnef": graph_text({label: VALUES}), "w.dat": dat(VALUES), "a/w.dat": dat(VALUES)}
    write_folder(jail / "in.nnef", files)
    assert_refused(capsys, "encode", "in.nnef", "-o", "out.nnr")
    (jail / "in.tar").write_bytes(tar_bytes(regular(files)))
    assert_refused(capsys, "encode", "in.tar", "-o", "out.nnr")


@pytest.mark.parametrize("label", LABELS, ids=ascii)
def test_labels_of_a_bitstream(label: str, jail: Path, capsys: Capture) -> None:
    write_bitstream(jail / "in.nnr", label)
    for output in OUTPUTS:
        assert_refused(capsys, "decode", "in.nnr", "-o", output)


def write_bitstream(path: Path, label: str) -> None:
    """Write a bitstream whose graph has a variable with this unchecked label."""
    text = graph_text({label: VALUES}) + b"\0"
    path.write_bytes(Bitstream().str_().mps().topology(text).ndu(ndu(label or "w", [1, 2]), [3, -4], qp=-38).data)


def test_a_label_that_begins_with_a_slash(jail: Path, capsys: Capture) -> None:
    """It is a path below the model (NNEF 1.0.3, 5.1), not an absolute path."""
    label = f"{jail.parent}/outside/w"
    write_bitstream(jail / "in.nnr", label)
    before = content(jail.parent)
    for output in OUTPUTS:
        assert call(capsys, "decode", "in.nnr", "-o", output).code == 0
    after = content(jail.parent)
    assert {name for name in after if name not in before and not name.startswith("jail/out.")} == set()
    assert {name: after[name] for name in before} == before
    assert (jail / "out.nnef" / f"{label[1:]}.dat").is_file()
    with tarfile.open(jail / "out.tar") as archive:
        assert f"{label[1:]}.dat" in archive.getnames()
    (jail / "out.nnef" / f"{label[1:]}.dat").unlink()
    assert_refused(capsys, "encode", "out.nnef", "-o", "again.nnr")


HOSTILE = {
    "symbolic link": ("w.dat", tarfile.SYMTYPE, "../outside/w.dat"),
    "link": ("w.dat", tarfile.LNKTYPE, "../outside/w.dat"),
    "link to a folder": ("a", tarfile.SYMTYPE, "../outside"),
    "character device": ("w.dat", tarfile.CHRTYPE, ""),
    "block device": ("w.dat", tarfile.BLKTYPE, ""),
    "pipe": ("w.dat", tarfile.FIFOTYPE, ""),
    "above": ("../w.dat", tarfile.REGTYPE, ""),
    "far above": ("a/../../w.dat", tarfile.REGTYPE, ""),
    "absolute": ("{outside}/w.dat", tarfile.REGTYPE, ""),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("compress", [False, True], ids=["tar", "tgz"])
def test_members_of_an_archive(kind: str, compress: bool, jail: Path, capsys: Capture) -> None:
    name, member_type, target = HOSTILE[kind]
    info = tarfile.TarInfo(name.format(outside=jail.parent / "outside"))
    info.type, info.linkname = member_type, target
    data = tar_bytes([*regular(minimal()), (info, dat(SECRET) if member_type == tarfile.REGTYPE else b"")])
    (jail / "in.nnef").write_bytes(gzip.compress(data) if compress else data)
    assert_refused(capsys, "encode", "in.nnef", "-o", "out.nnr")


def _file_link(folder: Path) -> None:
    (folder / "a" / "w.dat").unlink()
    (folder / "a" / "w.dat").symlink_to("../../../outside/w.dat")


def _folder_link(folder: Path) -> None:
    (folder / "a" / "w.dat").unlink()
    (folder / "a").rmdir()
    (folder / "a").symlink_to("../../outside")


def _graph_link(folder: Path) -> None:
    (folder / "graph.nnef").unlink()
    (folder / "graph.nnef").symlink_to("../../outside/graph.nnef")


def _device(folder: Path) -> None:
    (folder / "a" / "w.dat").unlink()
    (folder / "a" / "w.dat").symlink_to("/dev/zero")


def _pipe(folder: Path) -> None:
    (folder / "a" / "w.dat").unlink()
    os.mkfifo(folder / "a" / "w.dat")


@pytest.mark.parametrize("spoil", [_file_link, _folder_link, _graph_link, _device, _pipe])
def test_folders_with_links_and_devices(spoil: Callable[[Path], None], jail: Path, capsys: Capture) -> None:
    spoil(write_folder(jail / "in.nnef", minimal()))
    assert_refused(capsys, "encode", "in.nnef", "-o", "out.nnr")


def good(jail: Path) -> None:
    """Return a bitstream that decodes to `minimal`."""
    write_folder(jail / "in.nnef", minimal())
    (jail / "in.nnr").write_bytes(nnr.encode(nnr.load(jail / "in.nnef"), exact=True))


@pytest.mark.parametrize("output", OUTPUTS)
def test_an_output_that_is_a_link(output: str, jail: Path, capsys: Capture) -> None:
    good(jail)
    outside = jail.parent / "outside"
    victim = outside if output == "out.nnef" else outside / "w.dat"
    before = content(outside)
    (jail / output).symlink_to(victim)
    assert_refused(capsys, "decode", "in.nnr", "-o", output)
    assert call(capsys, "decode", "in.nnr", "-o", output, "-f").code == 0
    assert content(outside) == before
    assert not (jail / output).is_symlink()
    assert nnr.load(jail / output)["a/w"].tolist() == VALUES.tolist()


def test_links_in_a_folder_that_is_replaced(jail: Path, capsys: Capture) -> None:
    good(jail)
    outside = jail.parent / "outside"
    before = content(outside)
    folder = write_folder(jail / "out.nnef", {"graph.nnef": graph_text({"a/w": VALUES})})
    (folder / "a").symlink_to(outside)
    assert call(capsys, "decode", "in.nnr", "-o", "out.nnef", "-f").code == 0
    assert content(outside) == before
    assert not (folder / "a").is_symlink()


@pytest.mark.medium
def test_the_installed_command(jail: Path) -> None:
    """It runs in a separate process, with the model on standard input."""
    write_bitstream(jail / "in.nnr", "../../outside/w")
    before = content(jail.parent)
    hostile = tarfile.TarInfo("a/w.dat")
    hostile.type, hostile.linkname = tarfile.SYMTYPE, "../../outside/w.dat"
    members = [member for member in regular(minimal()) if member[0].name != "a/w.dat"]
    archive = tar_bytes([*members, (hostile, b"")])
    done = process("encode", "-", "-o", "out.nnr", input=archive, text=False, encoding=None)
    assert (done.returncode, len(done.stdout)) == (errors.BAD_INPUT, 0)
    done = process("decode", "-", "-o", "out.nnef", input=(jail / "in.nnr").read_bytes(), text=False, encoding=None)
    assert (done.returncode, len(done.stdout)) == (errors.BAD_INPUT, 0)
    assert content(jail.parent) == before
