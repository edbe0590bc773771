"""Model formats: which there are, and loading and saving by name, content or suffix.

A format is a module listed in :data:`_MODULES` that has what :class:`Format` asks for; modules are imported when they
are first needed. On reading the content decides, on writing the suffix.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Protocol, cast, runtime_checkable

from ..dtypes import stored_type
from ..errors import FormatError, LimitError
from ..limits import Limits
from ..model import Array, Model, Topology, Wiring

if TYPE_CHECKING:
    import numpy as np

#: Format names and their modules, in the order in which content is tried.
_MODULES = {"nnef": ".nnef", "safetensors": ".safetensors", "npz": ".npz"}

_CHUNK = 1 << 20
_IN_MEMORY = 1 << 20


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

    def load(self, source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
        """Read a model; a file object (seekable) is not needed any more when this returns.

        With ``strict`` nothing is left out: FormatError instead of a FormatWarning.
        """

    def save(self, model: Model, path: Path, *, overwrite: bool) -> None:
        """Write a model to a path, whole or not at all."""


@runtime_checkable
class StreamFormat(Protocol):
    """A format that can also be written to a stream."""

    def write(self, model: Model, file: BinaryIO) -> None:
        """Write a model to a binary file that need not be seekable."""


@runtime_checkable
class TopologyFormat(Protocol):
    """A format whose topology can be read without the tensors."""

    def load_topology(self, source: Path | BinaryIO, limits: Limits) -> Topology:
        """Read a model's topology; of a file object (seekable) from its start."""


@runtime_checkable
class Deferred(Protocol):
    """Tensors of a model that take work each time they are asked for; formats tell them what they will ask for."""

    def announce(self, names: Iterable[str]) -> None:
        """What will be asked for, in this order."""

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Type and shape of a tensor, without the work."""


def announce(model: Model, names: Iterable[str]) -> None:
    """Say which tensors a format is about to ask for, each as often as it is there; without this all, in order."""
    if isinstance(model.tensors, Deferred):
        model.tensors.announce(names)


def described(model: Model, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Type and shape of a tensor."""
    if isinstance(model.tensors, Deferred):
        return model.tensors.described(name)
    return model.tensors[name].dtype, model.tensors[name].shape


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


def wiring(topology: Topology) -> Wiring:
    """What a topology says of its tensors; nothing when its format does not tell, or its text cannot be read."""
    if topology.format != "nnef":
        return Wiring()
    from .nnef import wiring as of_nnef

    try:
        return of_nnef(topology.data)
    except (FormatError, LimitError):
        return Wiring()


def topology_of(
    source: Topology | Model | str | os.PathLike[str] | BinaryIO | None, *, limits: Limits | None = None
) -> Topology | None:
    """The topology that somebody gives as such, as a model, or as the path or file of one; None for None.

    Raises FormatError when it is none, and as :func:`load`.
    """
    if source is None:
        return None
    if isinstance(source, Topology):
        if source.format == "nnef":
            from .nnef import wiring as of_nnef

            of_nnef(source.data)
        return source
    what, topology = "the model", None
    if isinstance(source, Model):
        topology = source.topology
    else:
        limits = limits or Limits()
        with opened(source, limits) as file, _named(file) as what:
            module = _format_of(file, None)
            if isinstance(module, TopologyFormat):
                topology = module.load_topology(file, limits)
    if topology is None:
        raise FormatError(f"{what} has no topology; give a graph.nnef, or a model that has one")
    return topology


def fill(file: BinaryIO | io.BufferedIOBase, array: Array, what: str) -> None:
    """Read an array's bytes from the present position; FormatError, which begins with ``what``, at an early end."""
    source, target = cast(io.BufferedIOBase, file), array.reshape(-1).view("u1").data
    while target:
        # In parts, because some files read into memory of their own first.
        count = source.readinto(target[:_CHUNK])
        if not count:
            raise FormatError(f"{what}: the file ends {len(target)} bytes early")
        target = target[count:]


def state(file: IO[bytes]) -> tuple[int, ...]:
    """What changes when somebody writes to an open file, or puts another one in its place."""
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def spooled(stream: BinaryIO | io.BufferedIOBase, limits: Limits, what: str) -> BinaryIO:
    """A copy of the rest of a stream, at its start: in a temporary file without a name, or in memory if it is small.

    Raises LimitError, which begins with ``what``, before more than max_archive_bytes are copied.
    """
    spool, total = cast(BinaryIO, tempfile.SpooledTemporaryFile(_IN_MEMORY)), 0  # noqa: SIM115  # it is the caller's
    try:
        while chunk := stream.read(_CHUNK):
            total += len(chunk)
            limits.check("max_archive_bytes", total, what)
            spool.write(chunk)
    except BaseException:
        spool.close()
        raise
    spool.seek(0)
    return spool


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
    strict: bool = False,
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
    strict : bool
        Refuse files of the model that are no part of what is read, which otherwise a FormatWarning lists.

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
    with opened(source, limits) as file, _named(file):
        return _format_of(file, format).load(file, limits, strict=strict)


def as_model(
    model: Model | Mapping[str, Array] | str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO,
) -> Model:
    """A model as it is, or of tensors by name, or of a file; raises what :func:`load` raises."""
    if isinstance(model, Model):
        return model
    return Model(model) if isinstance(model, Mapping) else load(model)


@contextlib.contextmanager
def opened(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO, limits: Limits
) -> Iterator[Path | BinaryIO]:
    """The path of a file or directory, or a seekable file at its start, of what is given to be read.

    Raises LimitError when a stream is larger than the limits permit, OSError when it cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if stat.S_ISREG(path.stat().st_mode) or path.is_dir():
            yield path
            return
        # A pipe of the system's, as /dev/stdin or a shell's <(command).
        with open(path, "rb") as file, spooled(file, limits, "bytes of the stream") as spool:
            yield spool
    elif isinstance(source, (bytes, bytearray, memoryview)):
        yield io.BytesIO(source)
    elif isinstance(source, io.BufferedIOBase) and source.seekable() and source.tell() == 0:
        yield source
    else:
        with spooled(source, limits, "bytes of the stream") as spool:
            yield spool


def _format_of(source: Path | BinaryIO, format: str | None) -> Format:
    """The format that is asked for, or else the one that the content has."""
    module = get(format) if format else recognise(source)
    if module is None:
        raise FormatError(f"not a model of a format that is read here ({', '.join(_MODULES)})")
    return module


@contextlib.contextmanager
def _named(source: Path | BinaryIO) -> Iterator[str]:
    """What errors call a file, and do when they leave."""
    what = str(source) if isinstance(source, Path) else "the stream"
    try:
        yield what
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
