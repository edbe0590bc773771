"""NNEF 2 (draft of 2025): a folder with SkriptND modules, the main one in ``main.sknd``, and one file per tensor.

The text of ``main.sknd`` is the topology. NNR has no number for it (Table 4; NNR_TPL_NNEF is NNEF 1.0); it is
recognized by its content. Other modules, also in sub-folders, are metadata: ``skriptnd:`` and the path, with the text.
Tensor names are the paths of tensor files: ``main.Net.w.dat`` is the tensor ``main.Net.w``, and ``sub/w.dat`` is
``sub/w``. Tensor files and the mapping of names to paths follow NNEF 1.0 (:mod:`..nnef.tensorfile`,
:mod:`..nnef.labels`); header fields that differ from the default are metadata of the file's path.

Reading a folder parses all modules (:mod:`.parser`) and compares the variables with the tensor files
(:mod:`.variables`). Texts are stored unchanged. Decoders do not parse them, because bitstreams may contain texts that
earlier versions did not check; for the same reason, :func:`wiring` and :func:`load_topology` do not parse them.

A folder that also has a ``graph.nnef`` is read as NNEF 1.0, unless this format is requested.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from ...errors import FormatError
from ...files import output_directory
from ...limits import Budget, Limits
from ...model import Array, Model, Topology, Wiring
from .. import FormatWarning, announce, check_topology, listed, opened_file, warn_of_loss
from ..nnef import NnefTensors
from ..nnef.container import Directory
from ..nnef.labels import GRAPH, is_hidden, label_path, label_paths, path_label, portable_path
from ..nnef.lexer import check_text
from ..nnef.tensorfile import DATA_TYPES, TensorFileHeader, header_of, read_header, write_tensor
from .parser import ScriptText, parse
from .variables import NestedVariables, faults

NAME = "skriptnd"
SUFFIXES = (".sknd",)
DESCRIPTION = "Khronos NNEF 2 (draft): SkriptND"
READS = "a directory with a main.sknd"
#: NNR has no number for these topologies (Table 4).
TOPOLOGY = ""
NEEDS_TOPOLOGY = True

#: Main module of a model.
MAIN = "main.sknd"

#: System whose file name rules apply to folders.
SYSTEM = os.name

_MODULE, _TENSOR = ".sknd", ".dat"
_KEY = "skriptnd:"
_BEGINNING = 1 << 20
_START = re.compile(rb"(?:[ \t\r\n]++|#[^\n]*+)*+(?:version|extension|import|public|operator|graph)\b")
_PASSED_OVER = re.compile(rb"""#[^\n]*+|"[^"\n]*+"|'[^'\n]*+'""")
# In NNEF 1.0, a parenthesis follows the name.
_NETWORK = re.compile(rb"\bgraph[ \t\r\n]++[A-Za-z_][A-Za-z_0-9]*+[ \t\r\n]*+\{")


def recognise(source: Path | BinaryIO) -> bool:
    """Return whether the source has ``main.sknd`` but not ``graph.nnef``, or starts like the text of a main module."""
    if isinstance(source, Path) and source.is_dir():
        return (source / MAIN).is_file() and not (source / GRAPH).is_file()
    with opened_file(source) as file:
        return _is_main(file.read(_BEGINNING))


def owns(topology: Topology) -> bool:
    """Return whether the topology is SkriptND with a graph."""
    return _is_main(topology.data)


def wiring(topology: Topology) -> Wiring:
    """Return an empty result, because decoders must accept texts that :func:`load` rejects."""
    return Wiring()


def load_topology(source: Path | BinaryIO, limits: Limits) -> Topology:
    """Read the text of a main module, in its folder or alone; raises the errors of :func:`load`."""
    if isinstance(source, Path) and source.is_dir():
        return Topology(TOPOLOGY, _checked(read_main(_folder(source, limits))))
    with opened_file(source) as file:
        limits.check("max_topology_bytes", file.seek(0, os.SEEK_END), f"bytes of {MAIN}")
        file.seek(0)
        return Topology(TOPOLOGY, _checked(file.read()))


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read a model from its folder, or the ``main.sknd`` in it. Headers are checked, and tensors are read on access.

    Files other than modules and tensor files are listed in a FormatWarning, or in a FormatError if ``strict``; hidden
    files and folders are ignored.

    Raises
    ------
    FormatError
        There is no ``main.sknd``, it has no graph, a text is malformed or not UTF-8, a tensor file is malformed, is
        missing, belongs to no variable or does not match its variable, or a name is not safe as a path.
    LimitError
        The model exceeds the limits.
    """
    if not isinstance(source, Path) or not (source.is_dir() or source.name == MAIN):
        raise FormatError(f"this is a single module; give the folder of the model, or its {MAIN}")
    folder = _folder(source if source.is_dir() else source.parent, limits)
    topology, budget = Topology(TOPOLOGY, _checked(read_main(folder))), Budget(limits)
    files = [path for path in folder.files if path != MAIN and not is_hidden(path)]
    modules = [path for path in files if path.endswith(_MODULE)]
    labels = _labels([path for path in files if path.endswith(_TENSOR)])
    strangers = [path for path in files if not path.endswith((_MODULE, _TENSOR))]
    if strangers and strict:
        raise FormatError(f"files do not belong to the model and would be lost: {listed(strangers)}")
    if strangers:
        warnings.warn(
            f"files that do not belong to the model are left out: {listed(strangers)}", FormatWarning, stacklevel=3
        )
    main = parse(topology.data, MAIN, is_main=True)
    metadata = _texts(folder, modules, budget)
    nested = NestedVariables(main)
    for path in modules:
        nested.add(path, parse(metadata[_KEY + path].encode(), path, is_main=False))
    headers: dict[str, TensorFileHeader] = {}
    with closing(folder.members(labels)) as members:
        for path, stream, size in members:
            header = read_header(stream, size, path)
            budget.tensor(header.shape, header.dtype.itemsize, path)
            headers[path] = header
            if not header.is_written or header.data_type != DATA_TYPES[header.dtype.kind]:
                metadata[_KEY + labels[path] + _TENSOR] = header.text
    named = {labels[path]: header for path, header in headers.items()}
    for _, error in faults(main, nested, named, ScriptText(topology.data, MAIN)):
        raise error
    return Model(
        NnefTensors(folder, {labels[path]: path for path in headers}, headers), topology, metadata=metadata, format=NAME
    )


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write a model as a folder; metadata and ties are lost, with a FormatWarning.

    Raises
    ------
    FormatError
        The model has no SkriptND text, a name is not safe as a path, or a tensor file cannot represent a tensor.
    """
    topology = model.topology
    check_topology(NAME, topology)
    assert topology is not None
    texts, fields = {MAIN: topology.data}, {}
    for key, text in model.metadata.items():
        if not key.startswith(_KEY):
            continue
        name = key.removeprefix(_KEY)
        if name.endswith(_TENSOR):
            fields[name.removesuffix(_TENSOR)] = text
        else:
            texts[module_path(name)] = _encoded(text, name)
    paths = label_paths(model, portable=SYSTEM == "nt")
    for place in paths.values():
        check_place(place)
    warn_of_loss(model, "a SkriptND folder", "topology", own=_KEY)
    ordered = sorted(paths, key=lambda name: paths[name])
    announce(model, ordered)
    with output_directory(path, overwrite=overwrite, marker=MAIN) as folder:
        for place, data in texts.items():
            with _created(folder, place) as file:
                file.write(data)
        for name in ordered:
            _write_tensor(folder, paths[name], model.tensors[name], fields.get(name))


def _is_main(text: bytes) -> bool:
    return _START.match(text) is not None and _NETWORK.search(_PASSED_OVER.sub(b" ", text)) is not None


def _folder(path: Path, limits: Limits) -> Directory:
    return Directory(path, limits, texts=(MAIN,))


def read_main(folder: Directory) -> bytes:
    """Return the text of the main module. Raise FormatError if it is missing."""
    if MAIN not in folder.texts:
        raise FormatError(f"{MAIN} is missing")
    return folder.texts[MAIN]


def _checked(text: bytes) -> bytes:
    """Check and return the text of a main module."""
    check_text(text, MAIN)
    if not _is_main(text):
        raise FormatError(f"{MAIN} has no graph (NNEF 2, 2.15)")
    return text


def _texts(folder: Directory, paths: list[str], budget: Budget) -> dict[str, str]:
    """Return the modules other than the main one, as metadata."""
    found: dict[str, str] = {}
    with closing(folder.members(map(module_path, paths))) as members:
        for path, stream, size in members:
            # Other side information is counted when it is decoded.
            budget.charge("max_side_info_bytes", size + len(path), "bytes of all modules")
            text = stream.read(size)
            check_text(text, path)
            found[_KEY + path] = text.decode()
    return found


def _encoded(text: str, name: str) -> bytes:
    """Return the text of a module in UTF-8. Raise FormatError if that is impossible."""
    data = text.encode(errors="surrogatepass")
    check_text(data, name[:80])
    return data


def _labels(paths: Iterable[str]) -> dict[str, str]:
    """Return the names of tensors by the paths of their files."""
    labels: dict[str, str] = {}
    for path in paths:
        check_place(path)
        labels[path] = path_label(path)
    if len(set(labels.values())) < len(labels):
        name = Counter(labels.values()).most_common(1)[0][0]
        raise FormatError(f"two tensor files have the same tensor name {name[:80]!a}, one with % escapes")
    return labels


def module_path(path: str) -> str:
    """Return the path of a module other than the main one. Raise FormatError if it is not portable."""
    portable = label_path(path) == portable_path(path)
    if not portable or not path.endswith(_MODULE) or path.casefold() == MAIN or path.startswith("/"):
        raise FormatError(f"{path[:80]!a} is not a valid path of a module")
    check_place(path)
    return path


def check_place(path: str) -> None:
    """Raise FormatError for a path that is ignored on reading, or that has a folder named like a file."""
    if is_hidden(path):
        raise FormatError(f"{path[:80]!a} is hidden: the name of the file or of a folder begins with a dot")
    if re.search(r"\.(?:sknd|dat)\.*[/\\]", path, re.IGNORECASE):
        raise FormatError(f"{path[:80]!a} contains a folder with a file extension (.sknd or .dat)")


def _write_tensor(folder: Path, place: str, array: Array, fields: str | None) -> None:
    header = header_of(array, None, place, fields)
    with _created(folder, place) as file:
        write_tensor(file, array, header, place)


def _created(folder: Path, place: str) -> BinaryIO:
    """Return a new file below a folder."""
    target = folder / place
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        return target.open("xb")
    except FileExistsError:
        raise FormatError(f"{place[:80]!a} has the same name as another file on this file system") from None
