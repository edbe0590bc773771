"""Registry of model formats, and selection by name, content, file extension or topology.

A format is a module with the attributes of :class:`Format`. :data:`_MODULES` lists the built-in formats, and
:mod:`.plugins` finds formats of other packages. Modules are imported on first use, and modules of other packages only
if no built-in format matches.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, NamedTuple, Protocol, cast, runtime_checkable

from ..errors import FormatError, MissingDependencyError
from ..limits import Limits
from ..model import Channels, Model, Topology, Wiring
from . import plugins


class _Ours(NamedTuple):
    """Module with its SUFFIXES and TOPOLOGY, so that it is imported only if it is needed."""

    module: str
    suffixes: tuple[str, ...] = ()
    topology: str | None = None


#: Format names and their modules, in the order in which content is tried.
_MODULES = {
    "skriptnd": _Ours(".skriptnd", (".sknd",), ""),  # before nnef: texts of both may begin with a version
    "nnef": _Ours(".nnef", (".nnef", ".nnef.tar", ".nnef.tgz", ".tar", ".tgz", ".tar.gz"), "nnef"),
    "safetensors": _Ours(".safetensors", (".safetensors", ".safetensors.index.json")),
    "keras": _Ours(".keras", (".keras", ".h5", ".hdf5", ".weights.h5"), "tensorflow"),
    "tensorflow": _Ours(".tensorflow", (".savedmodel", ".index"), "tensorflow"),
    "pytorch": _Ours(".pytorch", (".pt", ".pth", ".ckpt", "pytorch_model.bin"), "pytorch"),
    "npz": _Ours(".npz", (".npz",)),
    "onnx": _Ours(".onnx", (".onnx",), "onnx"),
    "npy": _Ours(".npy", (".npy",)),
    "gguf": _Ours(".gguf", (".gguf",), ""),
    "tflite": _Ours(".tflite", (".tflite",), ""),
    "openvino": _Ours(".openvino", (".xml",), ""),
    "openvx": _Ours(".openvx", (".openvx",)),
}


class Format(Protocol):
    """Attributes of every format module, which is also a :class:`Reading` or a :class:`Writing` format, or both."""

    #: Short name, as for ``--format``.
    NAME: str
    #: One line for the list of formats.
    DESCRIPTION: str
    #: Lower-case file extensions for writing; the longest match decides, built-in formats first.
    SUFFIXES: tuple[str, ...]
    #: Readable inputs in a few words; empty if the format is write-only.
    READS: str
    # Optional: NEEDS or NEEDS_TO_WRITE: tuple[str, ...], import names of required packages, and EXTRA: str, the extra
    # of this package with them.


@runtime_checkable
class Reading(Format, Protocol):
    """Format that can be read."""

    def recognise(self, source: Path | BinaryIO) -> bool:
        """Return whether the content has this format; a file object is read from its start. Raises only OSError."""

    def load(self, source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
        """Read a model; a (seekable) file object is no longer needed after this returns.

        With ``strict``, losses raise FormatError instead of issuing a FormatWarning.
        """


@runtime_checkable
class Writing(Format, Protocol):
    """Format that can be written."""

    def save(self, model: Model, path: Path, *, overwrite: bool) -> None:
        """Write a model to a path, complete or not at all."""


@runtime_checkable
class StreamFormat(Format, Protocol):
    """Format that can also be written to a stream."""

    def write(self, model: Model, file: BinaryIO) -> None:
        """Write a model to a binary file that need not be seekable."""


@runtime_checkable
class GraphFormat(Format, Protocol):
    """Format with topologies."""

    #: Their :attr:`nnr_codec.model.Topology.format`; empty for formats without a number (Table 4).
    TOPOLOGY: str
    # Optional: NEEDS_TOPOLOGY = True if models without a topology cannot be written.

    def owns(self, topology: Topology) -> bool:
        """Return whether a topology with that name looks like this format."""

    def wiring(self, topology: Topology) -> Wiring:
        """Return the information of a topology about its tensors. Raise FormatError or LimitError if it is malformed.

        The result must not depend on installed packages, because decoders must find the same tensors on every machine.
        """


@runtime_checkable
class ChannelFormat(Protocol):
    """Format whose topologies define removable channels."""

    def channels(self, topology: Topology, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Channels, ...]:
        """Return the removable channels with all their tensors; ``shapes`` replaces declared shapes.

        Raises FormatError or LimitError for a malformed topology.
        """


@runtime_checkable
class TopologyFormat(Protocol):
    """Format whose topology can be read without the tensors."""

    def load_topology(self, source: Path | BinaryIO, limits: Limits) -> Topology:
        """Read a model's topology; a (seekable) file object is read from its start."""


@runtime_checkable
class FolderFormat(Protocol):
    """Format that reads folders in which other files are attachments."""

    def main_file(self, folder: Path) -> Path:
        """Return the file of tensors, or the index of the shards, of a folder that the format recognizes."""


@runtime_checkable
class QuantizedFormat(Protocol):
    """Format whose models have parts of quantized tensors, such as integers and scales, as tensors."""

    def dequantized(self, model: Model) -> Model:
        """Return a model of this format with floats in place of these parts, and with the same topology."""


def names() -> tuple[str, ...]:
    """Return the names of all formats; formats of other packages come last."""
    return tuple(dict.fromkeys([*_MODULES, *plugins.entries()]))


def every() -> Iterator[Format]:
    """Yield all formats, built-in ones first; issue a warning for unusable formats of other packages."""
    yield from _ours()
    yield from _theirs()


def get(name: str) -> Format:
    """Return the format called ``name``. Raise FormatError if it does not exist or is unusable."""
    if name in _MODULES:
        return cast(Format, importlib.import_module(_MODULES[name].module, __package__))
    if name not in plugins.entries():
        raise FormatError(f"unknown model format {name!r}; choose one of {', '.join(names())}")
    return cast(Format, plugins.named(name))


def reading(name: str) -> Reading:
    """Return the format called ``name`` for reading. Raise FormatError if it does not exist or is write-only."""
    module = get(name)
    if not isinstance(module, Reading):
        raise FormatError(f"format {name!r} can be written, but not read")
    return module


def writing(name: str) -> Writing:
    """Return the format called ``name`` for writing. Raise FormatError if it does not exist or is read-only."""
    module = get(name)
    if not isinstance(module, Writing):
        raise FormatError(f"format {name!r} can be read, but not written")
    return module


def recognise(source: Path | BinaryIO) -> Reading | None:
    """Return the format of a file, directory or seekable file object by content; None if no format matches."""
    for module in every():
        if isinstance(module, Reading) and module.recognise(source):
            return module
    return None


@contextlib.contextmanager
def opened_file(source: Path | BinaryIO) -> Iterator[BinaryIO]:
    """Yield a binary file at its start: an open one, or the file at a path."""
    if isinstance(source, Path):
        with open(source, "rb") as file:
            yield file
    else:
        source.seek(0)
        yield source


def begins(source: Path | BinaryIO, magic: bytes) -> bool:
    """Return whether a file starts with these bytes; False for anything but a file."""
    if isinstance(source, Path) and not source.is_file():
        return False
    with opened_file(source) as file:
        return file.read(len(magic)) == magic


def by_suffix(path: str | os.PathLike[str]) -> Writing:
    """Return the format for a file name. Raise FormatError if none matches."""
    name = Path(path).name.lower()
    ours = {suffix: known for known, place in _MODULES.items() for suffix in place.suffixes if name.endswith(suffix)}
    if ours:
        return writing(ours[max(ours, key=len)])
    found = [module for module in _theirs() if isinstance(module, Writing)]
    fitting = [(len(suffix), module) for module in found for suffix in module.SUFFIXES if name.endswith(suffix)]
    if fitting:
        return max(fitting, key=lambda fit: fit[0])[1]
    suffix = Path(name).suffix
    what = (
        f"no writable format has the file extension {suffix!r} of {name!r}"
        if suffix
        else f"{name!r} has no file extension"
    )
    raise FormatError(what, hint="run nnr formats to list the extensions")


def model_suffix(path: str) -> str:
    """Return the file extension if it is one of a model format of this package, else an empty string."""
    known = (suffix for place in _MODULES.values() for suffix in place.suffixes if suffix.startswith("."))
    return max((suffix for suffix in known if path.lower().endswith(suffix)), key=len, default="")


def without_suffix(path: str | os.PathLike[str]) -> str:
    """Return a path without the file extension of a model format; otherwise, a file's path without its last extension.

    A folder like ``.`` gets its own name.
    """
    text = os.path.normpath(path)
    if os.path.basename(text) in ("", ".", ".."):
        text = os.path.abspath(text)
    if suffix := model_suffix(text):
        return text[: -len(suffix)]
    return text if os.path.isdir(text) else os.path.splitext(text)[0]  # the dot of a folder is part of a version


def of_topology(topology: Topology) -> GraphFormat | None:
    """Return the format of a topology; None if it is unknown."""
    ours = (get(name) for name, place in _MODULES.items() if place.topology == topology.format)
    for module in chain(ours, _theirs()):
        if isinstance(module, GraphFormat) and topology.format == module.TOPOLOGY and module.owns(topology):
            return module
    return None


def needs_topology(name: str) -> bool:
    """Return whether a format can only be written with a topology of its own."""
    return bool(getattr(get(name), "NEEDS_TOPOLOGY", False))


def check_topology(name: str, topology: Topology | None) -> None:
    """Raise FormatError, with alternatives, unless a topology has the format called ``name``."""
    module = get(name)
    other = of_topology(topology) if topology else None
    if other is None or other is not module:
        as_it_is = f"write {other.NAME}, " if other else ""
        found = f"has a graph of {other.NAME}, and graphs are not converted" if other else "has none"
        raise FormatError(
            f"a model of {name} requires a graph of {name}; this one {found}",
            hint=f"{as_it_is}give one (topology=, --topology), or write a .safetensors or .npz file",
        )


def require(package: str, extra: str, what: str) -> ModuleType:
    """Import a package. If that fails, raise MissingDependencyError with its purpose and the extra to install."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.partition(".")[0]
        raise MissingDependencyError(
            f"{what} requires the package {name}; run pip install 'nnr_codec[{extra}]'"
        ) from None


def _ours() -> Iterator[Format]:
    return map(get, _MODULES)


def _theirs() -> Iterator[Format]:
    return (cast(Format, module) for module in plugins.working(_MODULES))
