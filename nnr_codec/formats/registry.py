"""Which model formats there are, and which one a file, a name or a topology asks for.

A format is a module that has what :class:`Format` asks for: those of :data:`_MODULES`, and those that other packages
add (:mod:`.plugins`). Modules are imported when they are first needed, what others add only where none of ours answers.
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
    """A module, with what it is asked for by: its SUFFIXES and TOPOLOGY, so that it is not imported in vain."""

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
    "gguf": _Ours(".gguf"),
    "openvino": _Ours(".openvino", (".xml",), ""),
    "openvx": _Ours(".openvx", (".openvx",)),
}


class Format(Protocol):
    """What every format module has; besides, it is a :class:`Reading` or a :class:`Writing` one, or both."""

    #: The short name, as for ``--format``.
    NAME: str
    #: One line for a list of formats.
    DESCRIPTION: str
    #: The endings of file names it writes, in lower case; the longest decides, of our formats before all plugins.
    SUFFIXES: tuple[str, ...]
    #: What it reads, in a few words; empty if it only writes.
    READS: str
    # Where other packages are needed, also NEEDS or NEEDS_TO_WRITE: tuple[str, ...], their names on import, and
    # EXTRA: str, the extra of this package that has them.


@runtime_checkable
class Reading(Format, Protocol):
    """A format that can be read."""

    def recognise(self, source: Path | BinaryIO) -> bool:
        """Whether the content is of this format; a file object is read from its start. Raises OSError only."""

    def load(self, source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
        """Read a model; a file object (seekable) is not needed any more when this returns.

        With ``strict`` nothing is left out: FormatError instead of a FormatWarning.
        """


@runtime_checkable
class Writing(Format, Protocol):
    """A format that can be written."""

    def save(self, model: Model, path: Path, *, overwrite: bool) -> None:
        """Write a model to a path, whole or not at all."""


@runtime_checkable
class StreamFormat(Format, Protocol):
    """A format that can also be written to a stream."""

    def write(self, model: Model, file: BinaryIO) -> None:
        """Write a model to a binary file that need not be seekable."""


@runtime_checkable
class GraphFormat(Format, Protocol):
    """A format that has topologies."""

    #: :attr:`nnr_codec.model.Topology.format` of them; empty for those that have no number (Table 4).
    TOPOLOGY: str
    # Where nothing can be written without one, also NEEDS_TOPOLOGY = True.

    def owns(self, topology: Topology) -> bool:
        """Whether a topology of that name is of this format, as far as a look at it tells."""

    def wiring(self, topology: Topology) -> Wiring:
        """What it says of its tensors, whatever packages are installed; FormatError or LimitError if it is malformed.

        Decoders go by it, and have to come to the same tensors on every machine.
        """


@runtime_checkable
class ChannelFormat(Protocol):
    """A format whose topologies tell which channels could be removed."""

    def channels(self, topology: Topology, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Channels, ...]:
        """These channels, with all tensors that have a part of them, some of which have other shapes than it says.

        FormatError or LimitError if it is malformed.
        """


@runtime_checkable
class TopologyFormat(Protocol):
    """A format whose topology can be read without the tensors."""

    def load_topology(self, source: Path | BinaryIO, limits: Limits) -> Topology:
        """Read a model's topology; of a file object (seekable) from its start."""


def names() -> tuple[str, ...]:
    """The names of all formats, those of other packages last."""
    return tuple(dict.fromkeys([*_MODULES, *plugins.entries()]))


def every() -> Iterator[Format]:
    """All formats, ours first; those of other packages that cannot be used are warned of."""
    yield from _ours()
    yield from _theirs()


def get(name: str) -> Format:
    """The format called ``name``; FormatError when there is none, or that of another package cannot be used."""
    if name in _MODULES:
        return cast(Format, importlib.import_module(_MODULES[name].module, __package__))
    if name not in plugins.entries():
        raise FormatError(f"no model format is called {name!r}; there are {', '.join(names())}")
    return cast(Format, plugins.named(name))


def reading(name: str) -> Reading:
    """The format called ``name``, to read; FormatError when there is none, or it only writes."""
    module = get(name)
    if not isinstance(module, Reading):
        raise FormatError(f"{name} models cannot be read")
    return module


def writing(name: str) -> Writing:
    """The format called ``name``, to write; FormatError when there is none, or it only reads."""
    module = get(name)
    if not isinstance(module, Writing):
        raise FormatError(f"{name} models cannot be written")
    return module


def recognise(source: Path | BinaryIO) -> Reading | None:
    """The format of a file, directory or seekable file object by its content; None when no format claims it."""
    for module in every():
        if isinstance(module, Reading) and module.recognise(source):
            return module
    return None


@contextlib.contextmanager
def opened_file(source: Path | BinaryIO) -> Iterator[BinaryIO]:
    """A binary file: of a path, or the one given, at its start."""
    if isinstance(source, Path):
        with open(source, "rb") as file:
            yield file
    else:
        source.seek(0)
        yield source


def begins(source: Path | BinaryIO, magic: bytes) -> bool:
    """Whether a file has these bytes at its start; what is no file has none."""
    if isinstance(source, Path) and not source.is_file():
        return False
    with opened_file(source) as file:
        return file.read(len(magic)) == magic


def by_suffix(path: str | os.PathLike[str]) -> Writing:
    """The format that a name asks for; FormatError, with a list of what can be written, when it asks for none."""
    name = Path(path).name.lower()
    ours = {suffix: known for known, place in _MODULES.items() for suffix in place.suffixes if name.endswith(suffix)}
    if ours:
        return writing(ours[max(ours, key=len)])
    found = [module for module in _theirs() if isinstance(module, Writing)]
    fitting = [(len(suffix), module) for module in found for suffix in module.SUFFIXES if name.endswith(suffix)]
    if fitting:
        return max(fitting, key=lambda fit: fit[0])[1]
    endings = {known: place.suffixes for known, place in _MODULES.items()}
    endings |= {module.NAME: module.SUFFIXES for module in found}
    known = [f"{known}: {' '.join(suffixes)}" for known, suffixes in endings.items() if suffixes]
    raise FormatError(
        f"the name {name!r} does not say which model format to write; known endings are {'; '.join(known)}"
    )


def without_suffix(path: str | os.PathLike[str]) -> str:
    """Return a path without the file extension of a model format, or else without its last extension."""
    text = os.path.normpath(path)
    known = [suffix for place in _MODULES.values() for suffix in place.suffixes if suffix.startswith(".")]
    found = [suffix for suffix in known if text.lower().endswith(suffix)]
    return text[: -len(max(found, key=len))] if found else os.path.splitext(text)[0]


def of_topology(topology: Topology) -> GraphFormat | None:
    """The format that a topology is of; None when that is not known."""
    ours = (get(name) for name, place in _MODULES.items() if place.topology == topology.format)
    for module in chain(ours, _theirs()):
        if isinstance(module, GraphFormat) and topology.format == module.TOPOLOGY and module.owns(topology):
            return module
    return None


def needs_topology(name: str) -> bool:
    """Whether a format can only be written with a topology of its own."""
    return bool(getattr(get(name), "NEEDS_TOPOLOGY", False))


def check_topology(name: str, topology: Topology | None) -> None:
    """Raise FormatError, with the ways out, unless a topology is one of the format called ``name``."""
    module = get(name)
    if topology is None or not isinstance(module, GraphFormat) or of_topology(topology) is not module:
        raise FormatError(
            f"there is no {name} graph, which a model of that format needs",
            hint="give one (topology=, --topology), or write a .safetensors or .npz",
        )


def require(package: str, extra: str, what: str) -> ModuleType:
    """Import a package; MissingDependencyError, which says what it is for and which extra has it, if that fails."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.partition(".")[0]
        raise MissingDependencyError(f"{what} needs the package {name}: pip install 'nnr_codec[{extra}]'") from None


def _ours() -> Iterator[Format]:
    return map(get, _MODULES)


def _theirs() -> Iterator[Format]:
    return (cast(Format, module) for module in plugins.working(_MODULES))
