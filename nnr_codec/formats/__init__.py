"""Model formats: which there are, and loading and saving by name, content or suffix.

A format is a module listed in :data:`_MODULES` that has what :class:`Format` asks for; modules are imported when they
are first needed. On reading the content decides, on writing the suffix.
"""

from __future__ import annotations

import importlib
import io
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast, runtime_checkable

from ..dtypes import stored_type
from ..errors import FormatError, LimitError
from ..limits import Limits
from ..model import Array, Model, Topology

if TYPE_CHECKING:
    import numpy as np

#: Format names and their modules, in the order in which content is tried.
_MODULES = {"nnef": ".nnef", "safetensors": ".safetensors", "npz": ".npz"}

_CHUNK = 1 << 20
_IN_MEMORY = 64 << 20


class FormatWarning(UserWarning):
    """Something in a model file or model that the reader or writer leaves out."""


class Format(Protocol):
    """What a format module offers."""

    #: The short name, as for ``--format``.
    NAME: str
    #: The endings of file names it writes, in lower case.
    SUFFIXES: tuple[str, ...]
    #: One line for a list of formats.
    DESCRIPTION: str

    def recognise(self, source: Path | BinaryIO) -> bool:
        """Whether the content is of this format; a file object is read from its start. Raises OSError only."""

    def load(self, source: Path | BinaryIO, limits: Limits) -> Model:
        """Read a model; of a file object (seekable) everything is read before this returns."""

    def save(self, model: Model, path: Path, *, overwrite: bool) -> None:
        """Write a model to a path, whole or not at all."""


@runtime_checkable
class StreamFormat(Protocol):
    """A format that can also be written to a stream."""

    def write(self, model: Model, file: BinaryIO) -> None:
        """Write a model to a binary file that need not be seekable."""


def names() -> tuple[str, ...]:
    """The names of all formats."""
    return tuple(_MODULES)


def get(name: str) -> Format:
    """The format called ``name``; FormatError when there is none."""
    if name not in _MODULES:
        raise FormatError(f"no model format is called {name!r}; there are {', '.join(_MODULES)}")
    return cast(Format, importlib.import_module(_MODULES[name], __name__))


def recognise(source: Path | BinaryIO) -> Format | None:
    """The format of a file, directory or seekable file object by its content; None when no format claims it."""
    for name in _MODULES:
        module = get(name)
        if module.recognise(source):
            return module
    return None


def by_suffix(path: str | os.PathLike[str]) -> Format:
    """The format that a name asks for; FormatError, with a list of what can be written, when it asks for none."""
    name = Path(path).name.lower()
    for module in map(get, _MODULES):
        if name.endswith(module.SUFFIXES):
            return module
    known = "; ".join(f"{module.NAME}: {' '.join(module.SUFFIXES)}" for module in map(get, _MODULES))
    raise FormatError(f"the name {name!r} does not say which model format to write; known endings are {known}")


def tensor_names(topology: Topology) -> list[str]:
    """The tensors that a topology wants; none when its format does not tell, or its text cannot be read."""
    if topology.format != "nnef":
        return []
    from .nnef import variable_labels

    try:
        return variable_labels(topology.data)
    except (FormatError, LimitError):
        return []


def fill(file: BinaryIO | io.BufferedIOBase, array: Array, what: str) -> None:
    """Read an array's bytes from the present position; FormatError, which begins with ``what``, at an early end."""
    source, target = cast(io.BufferedIOBase, file), array.reshape(-1).view("u1").data
    while target:
        # In parts, because some files read into memory of their own first.
        count = source.readinto(target[:_CHUNK])
        if not count:
            raise FormatError(f"{what}: the file ends {len(target)} bytes early")
        target = target[count:]


def lacks_type(what: str, dtype: np.dtype[Any], format: str) -> FormatError:
    """The error that a format cannot hold something of this dtype, with the ways out."""
    from .safetensors import has_type

    stored = stored_type(dtype)
    ways = ["save it as .safetensors"] if format != "safetensors" and has_type(dtype) else []
    if stored and stored.kind == "f":
        ways.append("ask for float32 (--dtype float32)")
    return FormatError(f"{what}: {format} has no type for {dtype}{'; ' if ways else ''}{' or '.join(ways)}")


def load(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO,
    *,
    format: str | None = None,
    limits: Limits | None = None,
) -> Model:
    """Read a model.

    Parameters
    ----------
    source : path, bytes-like or binary file
        A file, a directory, the bytes of a file, or a file object, as standard input; one that cannot seek is copied
        to a temporary file.
    format : str, optional
        The name of the format; by default the content decides.
    limits : Limits, optional
        What the file may cost.

    Raises
    ------
    FormatError
        The file is malformed, or of no known format.
    LimitError
        It asks for more than the limits permit.
    OSError
        It cannot be read.
    """
    limits = limits or Limits()
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = io.BytesIO(source)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            # A pipe of the system's, as /dev/stdin or a shell's <(command).
            with open(path, "rb") as file:
                return load(file, format=format, limits=limits)
        return _load(path, format, limits, str(path))
    if isinstance(source, io.BufferedIOBase) and source.seekable() and source.tell() == 0:
        return _load(source, format, limits, "the stream")
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as spool:
        total = 0
        while chunk := source.read(_CHUNK):
            total += len(chunk)
            limits.check("max_archive_bytes", total, "bytes of the stream")
            spool.write(chunk)
        return _load(cast(BinaryIO, spool), format, limits, "the stream")


def _load(source: Path | BinaryIO, format: str | None, limits: Limits, what: str) -> Model:
    module = get(format) if format else recognise(source)
    if module is None:
        raise FormatError(f"{what}: not a model of a format that is read here ({', '.join(_MODULES)})")
    try:
        return module.load(source, limits)
    except LimitError as error:
        error.unit = error.unit or what
        raise
    except FormatError as error:
        error.args = (f"{what}: {error}",)
        raise


def save(
    model: Model, target: str | os.PathLike[str] | BinaryIO, *, format: str | None = None, overwrite: bool = False
) -> None:
    """Write a model.

    Parameters
    ----------
    model : Model
        What to write.
    target : path or binary file
        A path, whose suffix decides on the format, or a file object, as standard output.
    format : str, optional
        The name of the format. By default a file object gets a tar of NNEF when the model has an NNEF graph,
        safetensors when it came from there, else npz.
    overwrite : bool
        Whether something at the path may be replaced.

    Raises
    ------
    FormatError
        The name asks for no known format, or the format cannot represent the model.
    FileExistsError
        The path exists and ``overwrite`` is false.
    """
    if isinstance(target, (str, os.PathLike)):
        path = Path(target)
        module = get(format) if format else by_suffix(path)
        module.save(model, path, overwrite=overwrite)
        return
    nnef = model.topology is not None and model.topology.format == "nnef"
    module = get(format or ("nnef" if nnef else "safetensors" if model.format == "safetensors" else "npz"))
    if not isinstance(module, StreamFormat):
        raise FormatError(f"{module.NAME} cannot be written to a stream")
    module.write(model, target)
