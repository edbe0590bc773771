"""Folders of one model and other files, its attachments, such as ``config.json`` and tokenizer files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from ..errors import FormatError
from ..files import AttachmentNames, FileNames, output_directory
from ..limits import Limits
from ..model import Model
from . import listed, save, source_format
from .companion_files import files, located, opened
from .diagnosis import leave_out
from .plugins import FormatWarning
from .registry import Writing, by_suffix, writing

#: Larger files are attached only if a glob requests them. Tokenizers of current models have up to 34 MB.
LARGEST = 64 << 20
#: File extensions of files that can run code when they are loaded: pickles and programs.
CODE = (
    *(".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill", ".npy", ".npz"),
    *(".py", ".pyc", ".so", ".dll", ".dylib", ".exe", ".sh", ".bat"),
)
#: File extensions of other weights.
WEIGHTS = (
    *(".safetensors", ".safetensors.index.json", ".bin.index.json", ".onnx", ".onnx_data", ".h5", ".hdf5", ".keras"),
    *(".msgpack", ".ot", ".gguf", ".tflite", ".pb", ".nnr"),
)

_PYTORCH = "pytorch_model.bin"
_INDEX_OF_PYTORCH = ".bin.index.json"


class FolderFiles(Mapping[str, bytes]):
    """Files of a folder by relative path, read on access.

    An access raises FormatError if the file has changed, OSError if it cannot be read.
    """

    def __init__(self, files: Mapping[str, tuple[Path, int]]) -> None:
        self._files = dict(files)

    def __getitem__(self, name: str) -> bytes:
        path, size = self._files[name]
        with opened(path) as file:
            data = file.read(size + 1)
        if len(data) != size:
            raise FormatError(f"{path} has changed since the model was opened; open it again")
        return data

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def attached(model: Model, folder: Path, file: Path, globs: Collection[str], limits: Limits, *, strict: bool) -> Model:
    """Return a model with the other files of its folder as attachments.

    Files that are too large, other weights, files that run code, links out of the folder and special files are listed
    in a FormatWarning, or in a FormatError if ``strict``. Names that begin with a dot are ignored.

    Parameters
    ----------
    file : Path
        The file with the tensors, or the index of its shards.
    globs : collection of str
        Attach matching files even if they are large, weights or code.
    """
    own = {path.resolve() for path in (file, *getattr(model.tensors, "files", ()))}
    found: dict[str, tuple[Path, int]] = {}
    left: list[str] = []
    names, own_name = AttachmentNames(), file.name
    if own_name.endswith(_INDEX_OF_PYTORCH):
        own_name = own_name.removesuffix(".index.json")
    try:
        names.add(own_name)
    except FormatError:
        own_name = ""  # not a name on every system
    for name in _names(folder, limits):
        if (folder / name).resolve() in own:
            continue
        asked = any(fnmatchcase(name, glob) for glob in globs)
        try:
            path = located(file, name, f"{name[:80]!a}")
            size = path.stat().st_size
            if not asked and (size > LARGEST or name.lower().endswith((*CODE, *WEIGHTS))):
                raise FormatError("")
            names.add(name)
        except FormatError:
            left.append(name)
            continue
        found[name] = path, size
        limits.check("max_attachments", len(found), "attachments of the folder")
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in found):
            raise FormatError(f"no file of the folder that can be attached matches {glob!r}")
    if left:
        leave_out(f"files are left out: {listed(sorted(left))}", strict)
    return replace(model, attachments=FolderFiles(found), file_name=own_name)


def _names(folder: Path, limits: Limits) -> Iterator[str]:
    """Yield the relative paths of all files and links below a folder, in order, without hidden ones."""
    count = 0
    for directory, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(directory, name))]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted([*names, *links]):
            count += 1
            limits.check("max_names", count, "files of the folder")
            if not name.startswith("."):
                yield (Path(directory) / name).relative_to(folder).as_posix()


def format_of(name: str) -> Writing | None:
    """Return the format for a file name; None if no format has its file extension."""
    try:
        return by_suffix(name)
    except FormatError:
        return None


def save_folder(model: Model, path: Path, *, format: str | None, overwrite: bool) -> None:
    """Write a model and its attachments to a new folder, complete or not at all.

    The file of tensors keeps the name that it had in the model's folder, if this name belongs to the format. The
    default format is safetensors. A FormatWarning lists files that can run code when they are loaded.

    Raises FormatError for invalid names or names that collide, and the errors of :func:`nnr_codec.formats.save`.
    """
    name = model.file_name
    module = writing(format) if format else format_of(name)
    if module is None or "/" in name or format_of(name) is not module:
        module = writing(format or source_format(model.topology, model.format) or "safetensors")
        name = _PYTORCH if _PYTORCH in module.SUFFIXES else f"model{module.SUFFIXES[0]}"
    with output_directory(path, overwrite=overwrite, marker=name) as made:
        save(replace(model, attachments={}, file_name=""), made / name, format=module.NAME)
        write_files(made, model.attachments)
    if code := [name for name in model.attachments if name.lower().endswith(CODE)]:
        warnings.warn(f"files that can run code when they are loaded: {listed(code)}", FormatWarning, stacklevel=3)


def write_files(folder: Path, attachments: Mapping[str, bytes]) -> None:
    """Write attachments to a folder. Raise FormatError for a name that is invalid or collides with another file."""
    names = FileNames()
    for name, _ in files(folder, Limits.unlimited()):
        names.add(name)
    for name, data in attachments.items():
        names.add(name)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with open(folder / name, "xb") as file:
            file.write(data)
