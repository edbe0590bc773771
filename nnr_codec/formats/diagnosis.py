"""Diagnoses of files that no format reads, and the command that works instead."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NoReturn

from ..errors import FormatError, NnrError
from .plugins import FormatWarning
from .registry import begins, opened_file, recognise

#: File extensions of models that are one file. A folder with .h5 alone is an incomplete model of Keras.
_SUFFIXES = (".onnx", ".safetensors", ".pt", ".pth", ".ckpt", ".gguf", ".keras", ".npz")
_PYTORCH = "pytorch_model.bin"
_GIT_LFS = b"version https://git-lfs.github.com/spec/"
_ZIP = b"PK\3\4"
_START = b"\0\4"  # size of an NNR_STR, whose type, 0, is in the highest 6 bits of the next byte
_SHARD = re.compile(r"(.+)-[0-9]{5}-of-([0-9]{5})(\.[a-z]+)")
_HEAD = 512  # bytes, more than the header of the first member of an archive has
#: Hint for a truncated file.
AGAIN = "the file is truncated; copy or download it again"
_FORMATS = "run nnr formats to list supported formats"


def check_pointer(source: Path | BinaryIO) -> None:
    """Raise FormatError for the text that git stores in place of a large file."""
    if begins(source, _GIT_LFS):
        raise FormatError("a git-lfs pointer, not the file itself", hint="run git lfs pull to fetch it")


def check_bitstream(source: Path | BinaryIO, hint: str) -> None:
    """Raise FormatError for a model, a damaged archive of one, or a git-lfs pointer; ``hint`` is for a model."""
    check_pointer(source)
    if module := recognise(source):
        raise FormatError(f"a model ({module.NAME}), not a bitstream", hint=hint)
    if begins(source, _ZIP):
        diagnose(source)
    if isinstance(source, Path) and source.is_dir() and _model_files(source):
        raise FormatError("a folder with model files, not a bitstream", hint=hint)


@contextmanager
def diagnosed(source: object, hint: str) -> Iterator[None]:
    """Raise FormatError as :func:`check_bitstream` does if the block fails to read a path as a bitstream."""
    try:
        yield
    except (IsADirectoryError, NnrError) as error:
        if isinstance(source, (str, os.PathLike)) and not isinstance(error, FormatError):
            with suppress(OSError):
                try:
                    check_bitstream(Path(source), hint)
                except FormatError as mistake:
                    raise mistake from None
        raise


def diagnose(source: Path | BinaryIO) -> NoReturn:
    """Raise FormatError for a file or folder that no format recognizes; its hint is the command that works."""
    if isinstance(source, Path) and source.is_dir():
        raise _of_folder(source)
    check_pointer(source)
    with opened_file(source) as file:
        head = file.read(_HEAD)
        if head.startswith(_ZIP):
            raise _of_archive(file, head)
    if head.startswith(_START) and head[2:3] < b"\4":
        raise FormatError("an NNR bitstream, not a model", hint="decode it first")
    if isinstance(source, Path) and source.suffix == ".bin":
        graph = source.with_suffix(".xml")
        found = "" if graph.exists() else ", in the same folder"
        raise FormatError(
            "not a PyTorch file",
            hint=f"for the weights of an OpenVINO model, give its .xml file, {graph.name!a}{found}",
        )
    raise FormatError("not a model of a supported format, or a damaged file", hint=_FORMATS)


def model_file(source: Path | BinaryIO) -> Path | BinaryIO:
    """Return the only model file of a folder that no format recognizes; anything else as it is.

    A link is not followed: it may lead out of the folder.
    """
    if not isinstance(source, Path) or not source.is_dir() or recognise(source):
        return source
    found = _model_files(source)
    if len(found) != 1 or found[0].is_symlink():
        return source
    return found[0]


def leave_out(message: str, strict: bool) -> None:
    """Warn (FormatWarning) that a part of a model is left out, or raise FormatError if ``strict``."""
    if strict:
        raise FormatError(message)
    warnings.warn(message, FormatWarning, stacklevel=4)


def check_shard(path: Path, strict: bool, *, of_folder: bool) -> None:
    """Warn of a file named as one shard, ``NAME-00001-of-00002.safetensors``, or raise FormatError if ``strict``.

    Without an index, only a file that was found in a folder counts as a shard; a file given by name may be a model.
    """
    match = _SHARD.fullmatch(path.name)
    if not match:
        return
    index = path.with_name(f"{match[1]}{match[3]}.index.json")
    if index.is_file():
        leave_out(f"this is one shard of a model; give {index.name!a} to read all shards", strict)
    elif of_folder and int(match[2]) > 1:
        leave_out(f"{path.name!a} is one of {int(match[2]):,} shards of a model, but their index is missing", strict)


def _model_files(folder: Path) -> list[Path]:
    """Return the files of a folder that have the name of a model, or of them ``pytorch_model.bin`` alone."""
    files = [path for path in sorted(folder.iterdir()) if path.name.lower().endswith((*_SUFFIXES, _PYTORCH))]
    files = [path for path in files if path.is_file()]
    tensors = [path for path in files if path.suffix == ".safetensors"]
    return [path for path in files if path.name == _PYTORCH and not tensors] or files


def _of_folder(folder: Path) -> FormatError:
    files = _model_files(folder)
    if not files and (folder / ".metadata").is_file():
        return FormatError(
            "a checkpoint of torch.distributed.checkpoint",
            hint="convert it: python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pt",
        )
    if not files:
        return FormatError("the folder contains no model of a supported format", hint=_FORMATS)
    if len(files) == 1:
        return FormatError(
            "the model file in the folder is a symbolic link", hint=f"give the file itself, {files[0].name!a}"
        )
    kinds = {path.suffix for path in files}
    without = " but no model.safetensors.index.json" if kinds == {".safetensors"} else ""
    shown = ", ".join(ascii(path.name[:80]) for path in files[:3]) + (", ..." if len(files) > 3 else "")
    return FormatError(
        f"the folder has {len(files)} model files{without}: {shown}",
        hint="give one of them, or encode each separately (nnr encode FILE... -o FOLDER/)",
    )


def _of_archive(file: BinaryIO, head: bytes) -> FormatError:
    from .zips import directory_size, may_hold  # imports zipfile

    size = int.from_bytes(head[26:28], "little")  # of the name of the first member
    first = head[30 : 30 + size]
    kinds = {b"/data.pkl": "a PyTorch file", b".npy": "an .npz file"}
    kind = next((kind for end, kind in kinds.items() if first.endswith(end)), "a zip archive")
    try:
        directory_size(file, file.seek(0, 2))
    except FormatError:
        return FormatError(f"{kind} without a zip directory", hint=AGAIN)
    if may_hold(file, "archive_format"):
        return FormatError(
            "a torch.export program, not a state_dict",
            hint="save its weights: torch.save(torch.export.load(FILE).state_dict, 'weights.pt')",
        )
    return FormatError("a zip archive without a model of a supported format, or a damaged one", hint=_FORMATS)
