"""Model formats: loading and saving by name, content or suffix, and what format modules share.

On reading the content decides, on writing the suffix; :mod:`.registry` knows which formats there are.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Protocol, cast, runtime_checkable

from ..dtypes import stored_type
from ..errors import FormatError, LimitError
from ..limits import Limits
from ..model import Array, Channels, Model, StatefulModule, Topology, Wiring
from ..model import described as type_and_shape
from .diagnosis import diagnose, model_file
from .plugins import FormatWarning
from .registry import (
    ChannelFormat,
    Format,
    GraphFormat,
    Reading,
    StreamFormat,
    TopologyFormat,
    Writing,
    begins,
    by_suffix,
    check_topology,
    get,
    names,
    needs_topology,
    of_topology,
    opened_file,
    reading,
    recognise,
    require,
    without_suffix,
    writing,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Deferred",
    "Format",
    "FormatWarning",
    "GraphFormat",
    "Reading",
    "StreamFormat",
    "TopologyFormat",
    "TopologySource",
    "Writing",
    "announce",
    "as_model",
    "begins",
    "by_suffix",
    "channels",
    "check_topology",
    "described",
    "fill",
    "get",
    "is_text",
    "lacks_type",
    "listed",
    "load",
    "names",
    "needs_topology",
    "of_topology",
    "opened",
    "opened_file",
    "reading",
    "recognise",
    "require",
    "save",
    "source_format",
    "spooled",
    "state",
    "topology_of",
    "warn_of_loss",
    "wiring",
    "without_suffix",
    "writing",
]

#: A topology, a model of which only the topology is used, or the path or file of either.
TopologySource = Topology | Model | str | os.PathLike[str] | BinaryIO

_CHUNK = 1 << 20
_IN_MEMORY = 1 << 20


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
    """Type and shape of a tensor, without reading it where that is known."""
    return type_and_shape(model.tensors, name)


def warn_of_loss(model: Model, what: str, *kept: str, own: str = "\0") -> None:
    """Warn (FormatWarning) of what a model has and ``what``, as a file of some format, does not keep.

    Besides the tensors, that may be the "topology", the "metadata" and the "ties"; ``kept`` are those that it keeps,
    ``own`` is how the keys of metadata begin that the format has put there.
    """
    metadata = any(not str(key).startswith(own) for key in model.metadata)
    has = {"topology": model.topology is not None, "metadata": metadata, "ties": bool(model.aliases)}
    lost = [f"the {name}" for name, there in has.items() if there and name not in kept]
    if lost:
        keeps = f"tensors and {' and '.join(kept)}" if kept else "the tensors only"
        copies = " (of tied tensors each is written)" if "the ties" in lost else ""
        warnings.warn(f"{what} keeps {keeps}, not {' and '.join(lost)}{copies}", FormatWarning, stacklevel=5)


def listed(names: Iterable[str], most: int = 8) -> str:
    """The first names, as ASCII and cut where they are long, and how many there are besides."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(ascii(name[:80]) for name in names[:most]) + more


def is_text(text: str) -> bool:
    """Whether there is no half of a surrogate pair, which no UTF-8 has."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def wiring(topology: Topology) -> Wiring:
    """What a topology says of its tensors; nothing when its format does not tell, or its text cannot be read."""
    return readable_wiring(topology) or Wiring()


def readable_wiring(topology: Topology) -> Wiring | None:
    """Return what :func:`wiring` returns, or None if the text cannot be read; the last four results are kept."""
    module = of_topology(topology)
    return _wiring_by(cast(Hashable, module), topology) if module else Wiring()


@lru_cache(maxsize=4)  # base model and update, each also as given by the caller
def _wiring_by(module: Hashable, topology: Topology) -> Wiring | None:
    try:
        return cast(GraphFormat, module).wiring(topology)
    except (FormatError, LimitError):
        return None


def channels(topology: Topology, shapes: Mapping[str, tuple[int, ...]] | None = None) -> tuple[Channels, ...]:
    """Which channels of its network could be removed; none when its format does not tell, or its text is not read.

    ``shapes`` are those of tensors that pruning has made smaller than the topology says.
    """
    module = of_topology(topology)
    try:
        return module.channels(topology, shapes or {}) if isinstance(module, ChannelFormat) else ()
    except (FormatError, LimitError):
        return ()


def topology_of(source: TopologySource | None, *, limits: Limits | None = None) -> Topology | None:
    """The topology that somebody gives as such, as a model, or as the path or file of one; None for None.

    Raises FormatError when it is none, and as :func:`load`.
    """
    if source is None:
        return None
    if isinstance(source, Topology):
        if readable_wiring(source) is None and (module := of_topology(source)):
            module.wiring(source)  # raises the error
        return source
    what, topology = "the model", None
    if isinstance(source, Model):
        topology = source.topology
    else:
        limits = limits or Limits()
        with opened(source, limits) as found:
            file = model_file(found)
            with _named(file) as what:
                form = _format_of(file, None)
                if isinstance(form, TopologyFormat):
                    topology = form.load_topology(file, limits)
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


def state(file: IO[bytes] | io.FileIO) -> tuple[int, ...]:
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
        to a temporary file. Of a directory that is no model but has one model file, that file is read.
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
        It asks for more than the limits permit, or than there is memory.
    OSError
        It cannot be read.
    """
    limits = limits or Limits()
    with opened(source, limits) as found:
        file = model_file(found, strict=strict)
        with _named(file):
            return _format_of(file, format).load(file, limits, strict=strict)


def as_model(
    model: Model
    | Mapping[str, Any]
    | StatefulModule
    | str
    | os.PathLike[str]
    | bytes
    | bytearray
    | memoryview
    | BinaryIO,
) -> Model:
    """Return the model, or that of arrays or PyTorch tensors by name, of a PyTorch module, or of a file.

    Raises what :func:`load` raises.
    """
    if isinstance(model, Model):
        return model
    torch = sys.modules.get("torch")  # who passes a module or tensor has imported it
    if isinstance(model, Mapping):
        if torch and any(isinstance(value, torch.Tensor) for value in model.values()):
            from .pytorch.modules import from_state_dict

            return from_state_dict(model)
        return Model(model)
    if torch and isinstance(model, torch.nn.Module):
        from .pytorch.modules import from_module

        return from_module(model)
    return load(cast(Any, model))


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


def _format_of(source: Path | BinaryIO, format: str | None) -> Reading:
    """The format that is asked for, or else the one that the content has."""
    module = reading(format) if format else recognise(source)
    if module is None:
        diagnose(source)
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
        error.within(what)
        raise
    except MemoryError:
        raise LimitError("there is not enough memory for the model", unit=what) from None


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
        The name of the format. By default a file object gets that of the model's topology (of an NNEF graph a tar), or
        that which the model came from, where it can be written to a stream; else npz.
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
        module = writing(format) if format else by_suffix(path)
        module.save(model, path, overwrite=overwrite)
        return
    chosen = get(format or _stream_format(model))
    if not isinstance(chosen, StreamFormat):
        raise FormatError(f"{chosen.NAME} cannot be written to a stream")
    chosen.write(model, target)


def source_format(topology: Topology | None, format: str | None) -> str | None:
    """Return the name of the format of a topology, or else ``format`` if it is the name of one; None if unknown."""
    if of_graph := of_topology(topology) if topology else None:
        return of_graph.NAME
    return format if format in names() else None


def _stream_format(model: Model) -> str:
    """Return the format of a model for which none is given: its own if that can be a stream, otherwise npz."""
    known = source_format(model.topology, model.format)
    return known if known and isinstance(get(known), StreamFormat) else "npz"
