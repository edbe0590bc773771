"""Model formats: loading and saving by name, content or file extension, and helpers shared by format modules.

The content determines the format for reading, the file extension for writing; :mod:`.registry` lists the formats.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
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
    FolderFormat,
    Format,
    GraphFormat,
    QuantizedFormat,
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
    "dequantized",
    "described",
    "fill",
    "get",
    "is_folder",
    "is_text",
    "lacks_type",
    "listed",
    "load",
    "names",
    "needs_topology",
    "of_topology",
    "opened",
    "opened_file",
    "quantized",
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

#: A topology, a model of which only the topology is used, or a path or file of either.
TopologySource = Topology | Model | str | os.PathLike[str] | BinaryIO

_CHUNK = 1 << 20
_IN_MEMORY = 1 << 20


@runtime_checkable
class Deferred(Protocol):
    """Lazy tensors that are computed on each access; formats announce the order in which they read them."""

    def announce(self, names: Iterable[str]) -> None:
        """Announce the names that will be read, in this order."""

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the dtype and shape of a tensor without computing it."""


def announce(model: Model, names: Iterable[str]) -> None:
    """Announce the tensors that a format will read, with repetitions; the default is all of them, once, in order."""
    if isinstance(model.tensors, Deferred):
        model.tensors.announce(names)


def described(model: Model, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and shape of a tensor, without reading it if possible."""
    return type_and_shape(model.tensors, name)


def warn_of_loss(model: Model, what: str, *kept: str, own: str = "\0") -> None:
    """Issue a FormatWarning for parts of a model that ``what``, a file of some format, cannot store.

    These may be the "topology", the "metadata" and the "ties"; ``kept`` lists the parts that are stored, and ``own`` is
    the prefix of metadata keys that the format itself created.
    """
    metadata = any(not str(key).startswith(own) for key in model.metadata)
    has = {"topology": model.topology is not None, "metadata": metadata, "ties": bool(model.aliases)}
    lost = [f"the {name}" for name, there in has.items() if there and name not in kept]
    if lost:
        copies = "; tied tensors are written separately" if "the ties" in lost else ""
        warnings.warn(f"{what} cannot store {' and '.join(lost)}{copies}", FormatWarning, stacklevel=5)


def listed(names: Iterable[str], most: int = 8) -> str:
    """Return the first names in ASCII, truncated if long, and the number of further names."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(ascii(name[:80]) for name in names[:most]) + more


def is_text(text: str) -> bool:
    """Return whether the text has no lone surrogates, which UTF-8 cannot encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def wiring(topology: Topology) -> Wiring:
    """Return the information of a topology about its tensors; empty if its format has none, or if it is unreadable."""
    return readable_wiring(topology) or Wiring()


def readable_wiring(topology: Topology) -> Wiring | None:
    """Return the result of :func:`wiring`, or None if the text is unreadable; the last four results are cached."""
    module = of_topology(topology)
    return _wiring_by(cast(Hashable, module), topology) if module else Wiring()


@lru_cache(maxsize=4)  # base model and update, each also as passed by the caller
def _wiring_by(module: Hashable, topology: Topology) -> Wiring | None:
    try:
        return cast(GraphFormat, module).wiring(topology)
    except (FormatError, LimitError):
        return None


def channels(topology: Topology, shapes: Mapping[str, tuple[int, ...]] | None = None) -> tuple[Channels, ...]:
    """Return the channels of the network that could be removed.

    The result is empty if the format defines no channels, or if the topology is unreadable.

    ``shapes`` has the shapes of tensors that pruning made smaller than in the topology.
    """
    module = of_topology(topology)
    try:
        return module.channels(topology, shapes or {}) if isinstance(module, ChannelFormat) else ()
    except (FormatError, LimitError):
        return ()


def topology_of(source: TopologySource | None, *, limits: Limits | None = None) -> Topology | None:
    """Return the topology given directly, as a model, or as the path or file of one; None for None.

    Raises FormatError for an invalid topology, and the errors of :func:`load`.
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
        raise FormatError(f"{what} has no topology; give a graph.nnef or a model with a topology")
    return topology


def fill(file: BinaryIO | io.BufferedIOBase, array: Array, what: str) -> None:
    """Read the bytes of an array from the current position.

    Raises FormatError, prefixed with ``what``, if the file ends early.
    """
    source, target = cast(io.BufferedIOBase, file), array.reshape(-1).view("u1").data
    while target:
        # In parts, because some file objects read into their own buffer first.
        count = source.readinto(target[:_CHUNK])
        if not count:
            raise FormatError(f"{what}: the file ends {len(target)} bytes early")
        target = target[count:]


def state(file: IO[bytes] | io.FileIO) -> tuple[int, ...]:
    """Return values that change when an open file is modified or replaced."""
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def spooled(stream: BinaryIO | io.BufferedIOBase, limits: Limits, what: str) -> BinaryIO:
    """Return a copy of the rest of a stream, at its start: in memory if it is small, else in an unnamed temporary file.

    Raises LimitError, prefixed with ``what``, before more than max_archive_bytes are copied.
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
    """Return the error for a dtype that a format cannot represent, with the alternatives."""
    from .safetensors import has_type

    stored = stored_type(dtype)
    ways = ["save it as .safetensors"] if format != "safetensors" and has_type(dtype) else []
    if stored and stored.kind == "f":
        ways.append("convert it to float32 (--dtype, dtype=)")
    return FormatError(f"{what}: {format} does not support dtype {dtype}{'; ' if ways else ''}{' or '.join(ways)}")


def load(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO,
    *,
    format: str | None = None,
    limits: Limits | None = None,
    strict: bool = False,
    attach: Collection[str] | None = (),
) -> Model:
    """Read a model.

    Parameters
    ----------
    source : path, bytes-like or binary file
        A file, a directory, the bytes of a file, or a file object such as standard input; a non-seekable file is copied
        to a temporary file. In a directory that is not a model but contains one model file, that file is read, and the
        other files are the attachments of the model: files of at most 64 MiB each, but no other weights, pickles or
        programs, and no hidden files.
    format : str, optional
        Name of the format; default: detected from the content.
    limits : Limits, optional
        Resource limits for reading.
    strict : bool
        Reject files of the model that are not read; otherwise a FormatWarning lists them.
    attach : collection of str or None
        Globs of further files of the directory to attach, such as ``"*.py"``; None: no attachments.

    Raises
    ------
    FormatError
        The file is malformed, or its format is unknown.
    LimitError
        The file exceeds the limits or the available memory.
    OSError
        The file cannot be read.
    """
    limits = limits or Limits()
    with opened(source, limits) as found:
        file = model_file(found)
        with _named(file):
            module = _format_of(file, format)
            model = module.load(file, limits, strict=strict)
        if attach is None or not isinstance(found, Path) or not isinstance(file, Path) or not found.is_dir():
            return model
        main = file if file is not found else module.main_file(found) if isinstance(module, FolderFormat) else None
        return folders.attached(model, found, main, attach, limits, strict=strict) if main else model


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
    """Return a model unchanged, or the model of named arrays or PyTorch tensors, a PyTorch module, or a file.

    A dict may be a checkpoint: PyTorch tensors and plain values in nested containers.

    Raises the errors of :func:`load`.
    """
    if isinstance(model, Model):
        return model
    torch = sys.modules.get("torch")  # who passes a module or tensor has imported it
    if isinstance(model, Mapping):
        if torch and isinstance(model, dict) and any(isinstance(one, (torch.Tensor, dict)) for one in model.values()):
            from .pytorch.modules import from_state_dict

            return from_state_dict(model)
        return Model(model)
    if torch and isinstance(model, torch.nn.Module):
        from .pytorch.modules import from_module

        return from_module(model)
    if not isinstance(model, (str, os.PathLike, bytes, bytearray, memoryview)) and not hasattr(model, "read"):
        raise TypeError(f"a model is a dict of arrays, a Model, a module, a path or a file, got {type(model).__name__}")
    return load(cast(Any, model))


@contextlib.contextmanager
def opened(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO, limits: Limits
) -> Iterator[Path | BinaryIO]:
    """Yield the path of a file or directory, or a seekable file at its start.

    Raises LimitError if a stream exceeds the limits, OSError if it cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if stat.S_ISREG(path.stat().st_mode) or path.is_dir():
            yield path
            return
        # A pipe, such as /dev/stdin or <(command) of a shell.
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
    """Return the requested format, or the format of the content."""
    module = reading(format) if format else recognise(source)
    if module is None:
        diagnose(source)
    return module


@contextlib.contextmanager
def _named(source: Path | BinaryIO) -> Iterator[str]:
    """Yield the name of a file in errors, and add it to errors raised in the block."""
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
        raise LimitError("not enough memory for the model", unit=what) from None


def save(
    model: Model, target: str | os.PathLike[str] | BinaryIO, *, format: str | None = None, overwrite: bool = False
) -> None:
    """Write a model.

    Parameters
    ----------
    model : Model
        Model to write.
    target : path or binary file
        A path, whose extension determines the format, or a file object such as standard output. A path without the
        extension of a format is a new folder if the model has attachments, which are written to it.
    format : str, optional
        Name of the format. Default for a file object: the format of the model's topology (a tar for an NNEF graph), or
        the source format, if it can be written to a stream; otherwise npz.
    overwrite : bool
        Whether an existing file may be replaced.

    Raises
    ------
    FormatError
        The name belongs to no known format, or the format cannot represent the model.
    FileExistsError
        The path exists and ``overwrite`` is false.
    """
    if isinstance(target, (str, os.PathLike)):
        path = Path(target)
        if model.attachments and is_folder(path):
            folders.save_folder(model, path, format=format, overwrite=overwrite)
            return
        _warn_of_attachments(model)
        module = writing(format) if format else by_suffix(path)
        module.save(_suited(model, module), path, overwrite=overwrite)
        return
    _warn_of_attachments(model)
    chosen = get(format or _stream_format(model))
    if not isinstance(chosen, StreamFormat):
        raise FormatError(f"format {chosen.NAME!r} cannot be written to a stream; give a path")
    chosen.write(_suited(model, chosen), target)


def is_folder(target: str | os.PathLike[str]) -> bool:
    """Return whether a model with attachments is written to this path as a folder: no format has its file extension."""
    return folders.format_of(Path(target).name) is None


def _warn_of_attachments(model: Model) -> None:
    if model.attachments:
        names = listed(model.attachments)
        warnings.warn(f"attachments are left out: {names}; give a folder to write them", FormatWarning, stacklevel=3)


def _suited(model: Model, form: Format) -> Model:
    """Return a model to write in a format: floats replace items that only the format of the source interprets."""
    from . import nnef

    own = of_topology(model.topology) if model.topology else None
    model = own.dequantized(model) if own is not form and isinstance(own, QuantizedFormat) else model
    return nnef.with_numbers(model, form.NAME)


def dequantized(model: Model) -> Model:
    """Return a model with floats in place of the parts of quantized tensors, and without the topology that lists them.

    Items of NNEF tensor files that stand for numbers become these numbers. Other models are returned unchanged.
    """
    from . import nnef

    form = of_topology(model.topology) if model.topology else None
    model = replace(form.dequantized(model), topology=None) if isinstance(form, QuantizedFormat) else model
    return nnef.with_numbers(model, "")


def quantized(model: Model) -> Collection[str]:
    """Return the names of tensors that are parts of quantized tensors."""
    form = of_topology(model.topology) if model.topology else None
    return wiring(model.topology).quantized if model.topology and isinstance(form, QuantizedFormat) else ()


def source_format(topology: Topology | None, format: str | None) -> str | None:
    """Return the name of the format of a topology; for an unknown topology, ``format`` if it is known, else None."""
    if of_graph := of_topology(topology) if topology else None:
        return of_graph.NAME
    return format if format in names() else None


def _stream_format(model: Model) -> str:
    """Return the default format of a model: its own if that can be written to a stream, otherwise npz."""
    known = source_format(model.topology, model.format)
    return known if known and isinstance(get(known), StreamFormat) else "npz"


from . import folders  # noqa: E402  # which uses the functions above
