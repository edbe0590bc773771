"""NNEF 1.0 models: ``graph.nnef``, ``graph.quant`` and one tensor file for each variable.

In a :class:`~nnr_codec.model.Model` the tensors are keyed by label, in the order of the graph, and the two texts are
kept byte for byte (ISO/IEC 15938-17:2024, Annex A); only the shapes of pruned tensors are updated in the graph.
Variables whose labels differ only in case share one tensor (NNEF 1.0, 4.1.3), keyed by the first spelling.

Other header fields of a tensor file (item type and width, parameters, reserved bytes) are stored in the metadata, under
``nnef:`` and the label, if they differ from the default header. In other formats, which do not interpret them, items of
NNEF 1.0 to 1.0.2 that stand for numbers are written as these numbers (:func:`with_numbers`).
"""

from __future__ import annotations

import functools
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np

from ...dtypes import stored_type
from ...errors import FormatError
from ...files import output_directory, output_file
from ...limits import Budget, Limits
from ...model import Array, Channels, Model, Topology, Wiring
from ...topology.blocks import find_blocks
from ...topology.channels import find_channels
from .. import FormatWarning, announce, check_topology, described, listed
from .container import Container, is_container, open_container
from .dataflow import flow
from .graph import NnefGraph, parse_graph, with_shapes
from .labels import GRAPH, QUANT, is_hidden, label_paths, present_paths
from .lexer import check_text
from .quant import doubtful, identifiers_of, read_quantization
from .tar import Output, gzipped, write_tar
from .tensorfile import HEADER_SIZE, TensorFileHeader, header_of, parse_header, read_data, read_header, write_tensor
from .tree import Variable

NAME = "nnef"
SUFFIXES = (".nnef", ".nnef.tar", ".nnef.tgz", ".tar", ".tgz", ".tar.gz")
DESCRIPTION = "Khronos NNEF 1.0"
READS = "a directory, a tar or a gzipped tar; the graph.nnef of one, or alone"
TOPOLOGY = NAME
NEEDS_TOPOLOGY = True

#: System whose file name rules apply to folders.
SYSTEM = os.name

_GZIPPED = (".tgz", ".tar.gz")
#: Kinds of arrays permitted for variables; integers may become booleans.
_KINDS = {"scalar": "fiu", "integer": "iu", "logical": "biu"}
_HEADER_KEY = "nnef:"
#: Keys of metadata with the header of a tensor file, by format.
_HEADER_KEYS = {NAME: _HEADER_KEY + "{}", "skriptnd": "skriptnd:{}.dat"}


class NnefTensors(Mapping[str, Array]):
    """Tensors that are read from their container on each access; headers were checked before.

    An access raises FormatError if the file has changed, OSError if it cannot be read.

    Parameters
    ----------
    container : Container
    files : mapping of str to str
        Path of each tensor.
    headers : mapping of str to TensorFileHeader
        Headers by path.
    """

    def __init__(self, container: Container, files: Mapping[str, str], headers: Mapping[str, TensorFileHeader]) -> None:
        self._container, self._files, self._headers, self._lock = container, files, headers, Lock()

    def __getitem__(self, label: str) -> Array:
        path = self._files[label]
        header = self._headers[path]
        with self._lock, closing(self._container.members([path])) as members:
            _, stream, size = next(members)
            if read_header(stream, size, path) != header:
                raise FormatError(f"{path} has changed since the model was opened")
            return read_data(stream, header, path)

    def only(self, names: Sequence[str]) -> Mapping[str, Array]:
        """Return the named tensors for another process, which reads them itself if possible."""
        files = {name: self._files[name] for name in names}
        container = self._container.only(files.values())
        headers = {path: self._headers[path] for path in files.values()}
        return NnefTensors(container, files, headers) if container else {name: self[name] for name in names}

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the dtype and shape of a tensor, from its header if possible."""
        header = self._headers[self._files[name]]
        dtype = self[name].dtype if header.dtype.kind == "b" and not header.is_packed else header.dtype
        return dtype, header.shape

    def __reduce__(self) -> tuple[Any, ...]:
        return NnefTensors, (self._container, self._files, self._headers)

    def __contains__(self, label: object) -> bool:
        return label in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class _Numbers(Mapping[str, Array]):
    """Tensors; on each access, a tensor with a header is converted to the numbers that its items stand for."""

    def __init__(self, tensors: Mapping[str, Array], headers: Mapping[str, TensorFileHeader]) -> None:
        self._tensors, self._headers = tensors, headers

    def __getitem__(self, name: str) -> Array:
        array = self._tensors[name]
        return self._headers[name].dequantized(array) if name in self._headers else array

    def announce(self, names: Iterable[str]) -> None:
        """Announce the names that will be read, in this order."""
        announce(Model(self._tensors), names)

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the dtype and shape of a tensor, without reading it if possible."""
        dtype, shape = described(Model(self._tensors), name)
        return (self._headers[name].numbers if name in self._headers else dtype), shape

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def with_numbers(model: Model, target: str) -> Model:
    """Return a model for a format, in which items of types 0x10 and 0x11 are the numbers they stand for.

    Tensor files of this format itself keep their items. Tensors of item types of vendors remain bytes; a FormatWarning
    lists them.
    """
    headers, vendors, metadata = {}, [], dict(model.metadata)
    forms = [form for name, form in _HEADER_KEYS.items() if name != target]
    for name, form in itertools.product(model.tensors, forms):
        key = form.format(name)
        if (text := metadata.get(key)) is None:
            continue
        dtype, shape = described(model, name)
        try:
            header = parse_header(shape, text)
        except FormatError:
            continue  # not metadata of this module, or of a tensor that was changed
        if not header.holds(dtype):
            continue
        if header.range:
            headers[name] = header
            del metadata[key]
        elif header.vendor_length:
            vendors.append(name)
    _warn("tensors of item types of vendors are written as bytes", vendors, depth=2)
    if not headers:
        return model
    return replace(model, tensors=_Numbers(model.tensors, headers), metadata=metadata)


def recognise(source: Path | BinaryIO) -> bool:
    """Return whether the source is a directory with a ``graph.nnef``, or starts like a tar, gzipped tar or graph."""
    return is_container(source)


def load_topology(source: Path | BinaryIO, limits: Limits) -> Topology:
    """Read the texts of an NNEF model without its tensor files; raises the errors of :func:`load`."""
    texts = open_container(source, limits).texts
    parse_graph(texts[GRAPH], limits)
    if QUANT in texts:
        read_quantization(texts[QUANT], limits)
    return Topology(NAME, texts[GRAPH], texts.get(QUANT))


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read an NNEF model; headers are checked, and tensors are read on access.

    Files of the container that no variable needs (vendor files, other versions of tensor files, other models) are
    listed in one FormatWarning, or in a FormatError if ``strict``; hidden files and folders are ignored. Further
    warnings list useless entries of ``graph.quant``, and quantized tensors that it lacks. A graph text without tensor
    files gives a model without tensors.

    Raises
    ------
    FormatError
        The container, a text or a tensor file is malformed, or a tensor file does not match its variable.
    LimitError
        The model exceeds the limits.
    """
    container = open_container(source, limits)
    graph = parse_graph(container.texts[GRAPH], limits)
    quantization = container.texts.get(QUANT)
    quantized: frozenset[str] = frozenset()
    if quantization is not None:
        read = read_quantization(quantization, limits)
        wrong = doubtful(read, identifiers_of(graph.document))
        _warn(f"{QUANT} lists unknown or repeated identifiers", [entry.tensor for _, _, entry in wrong])
        quantized = read.tensors
    topology = Topology(NAME, container.texts[GRAPH], quantization)
    groups = _spellings(graph.variables)
    names = frozenset(container.files)
    paths = present_paths((label for labels in groups.values() for label in labels), names)
    if container.text_only and names.isdisjoint(paths.values()):
        return Model({}, topology, format=NAME)
    # Tensor files of every label; several spellings of a label may each have a file.
    files = {label: _present(labels, paths, names) for label, labels in groups.items()}
    variables = {variable.label: variable for variable in graph.variables}
    wanted = {path: variables[label] for label, found in files.items() for path in found}
    headers = _headers(container, wanted, graph, Budget(limits))
    tensors = NnefTensors(container, {label: found[0] for label, found in files.items()}, headers)
    several = [found for found in files.values() if len(found) > 1]
    arrays = NnefTensors(container, {path: path for found in several for path in found}, headers)
    for found in several:
        for path in found[1:]:
            if not _same(arrays[path], arrays[found[0]]):
                raise FormatError(
                    f"{found[0]} and {path} differ, although their labels differ only in case (NNEF 4.1.3)"
                )
    strangers = _strangers(container.files, {GRAPH, QUANT, *wanted})
    if strangers and strict:
        raise FormatError(f"files do not belong to the model and would be lost: {listed(strangers)}")
    _warn("files that do not belong to the model are left out", strangers)
    listed_labels = {variable.label.casefold() for variable in graph.variables if variable.identifier in quantized}
    unlisted = [name for name in files if headers[files[name][0]].is_quantized and name.casefold() not in listed_labels]
    _warn(f"scalar variables contain integers, but have no entry in {QUANT}", unlisted)
    metadata = {
        _HEADER_KEY + label: header.text
        for name, labels in groups.items()
        for label in labels
        if not (header := headers.get(paths[label], headers[files[name][0]])).is_written
    }
    return Model(tensors, topology, metadata=metadata, format=NAME)


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write an NNEF model to a tar or gzipped tar, if the file extension selects one, or to a folder.

    Raises
    ------
    FormatError
        The model has no NNEF graph, lacks a variable, or has one that does not match its shape or data type.
    """
    name = path.name.lower()
    archive = name.endswith((".tar", *_GZIPPED))
    outputs = _outputs(model, portable=not archive and SYSTEM == "nt")
    if name.endswith(".tar"):
        with output_file(path, overwrite=overwrite) as file:
            write_tar(file, outputs)
    elif name.endswith(_GZIPPED):
        with output_file(path, overwrite=overwrite) as file, gzipped(file) as stream:
            write_tar(stream, outputs)
    else:
        with output_directory(path, overwrite=overwrite) as folder:
            _write_directory(folder, outputs)


def write(model: Model, file: BinaryIO) -> None:
    """Write an NNEF model as a plain tar to a file that need not be seekable; raises the errors of :func:`save`."""
    write_tar(file, _outputs(model))


def owns(topology: Topology) -> bool:
    """Return True: every topology of the format :data:`TOPOLOGY` is a ``graph.nnef`` (Annex A)."""
    return True


def wiring(topology: Topology) -> Wiring:
    """Return information on the variables of a ``graph.nnef``, by first spelling.

    Raises FormatError if it is malformed.
    """
    read = parse_graph(topology.data, Limits())
    variables = {variable.label: variable for variable in read.variables}
    first = {label: variables[label] for label in _spellings(read.variables)}
    return Wiring(
        {label: variable.shape for label, variable in first.items()},
        lambda: find_blocks(flow(read)),
        {label: _KINDS[variable.dtype] for label, variable in first.items()},
        ignores_case=True,
        places={label: f"{GRAPH}:{read.line(variable)}" for label, variable in first.items()},
    )


def channels(topology: Topology, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Channels, ...]:
    """Return the removable channels (:mod:`nnr_codec.topology.channels`); ``shapes`` replaces declared shapes.

    Raises FormatError for a malformed text, LimitError beyond the limits.
    """
    graph = parse_graph(topology.data, Limits())
    if shapes:
        others = {name.casefold(): shape for name, shape in shapes.items()}
        graph = parse_graph(with_shapes(topology.data, graph, others), Limits())
    return find_channels(flow(graph, whole=True))


def _spellings(variables: Iterable[Variable]) -> dict[str, tuple[str, ...]]:
    """Return the spellings of every label in order, by the first spelling."""
    first: dict[str, str] = {}
    others: dict[str, dict[str, None]] = {}
    for variable in variables:
        label = first.setdefault(variable.label.casefold(), variable.label)
        if label != variable.label:
            others.setdefault(label, {})[variable.label] = None
    return {label: (label, *others.get(label, ())) for label in first.values()}


def _present(labels: tuple[str, ...], paths: dict[str, str], names: frozenset[str]) -> tuple[str, ...]:
    """Return the existing tensor files for the spellings of a label, or the first path if none exists."""
    return tuple([paths[label] for label in labels if paths[label] in names]) or (paths[labels[0]],)


def _headers(
    container: Container, wanted: dict[str, Variable], graph: NnefGraph, budget: Budget
) -> dict[str, TensorFileHeader]:
    """Check the header of every required tensor file."""
    headers: dict[str, TensorFileHeader] = {}
    with closing(container.members(wanted)) as members:
        for path, stream, size in members:
            header = read_header(stream, size, path)
            _check_fit(header, wanted[path], graph, path)
            budget.tensor(header.shape, header.dtype.itemsize, path)
            headers[path] = header
    return headers


def _check_fit(header: TensorFileHeader, variable: Variable, graph: NnefGraph, path: str) -> None:
    if header.shape != variable.shape:
        raise FormatError(f"{path} has shape {header.shape}; {GRAPH}:{graph.line(variable)} says {variable.shape}")
    if header.data_type not in ("", variable.dtype):
        raise FormatError(
            f"{path} contains {header.dtype}, which is {header.data_type} data; {GRAPH}:{graph.line(variable)} says"
            f" {variable.dtype} (NNEF 1.0.3, 5.2.1)"
        )


def _same(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _strangers(files: Iterable[str], known: set[str]) -> list[str]:
    return sorted(path for path in files if path not in known and not is_hidden(path))


def _warn(message: str, names: list[str], *, depth: int = 1) -> None:
    """Issue a warning for the caller of :func:`nnr_codec.formats.load` or ``save``, ``depth`` calls above this one."""
    if names:
        warnings.warn(f"{message}: {listed(names)}", FormatWarning, stacklevel=3 + depth)


def _outputs(model: Model, *, portable: bool = False) -> Iterator[Output]:
    """Check a model and yield its files in the order of their paths; tensors are read on demand."""
    topology = model.topology
    check_topology(NAME, topology)
    assert topology is not None
    # The text has been accepted before, so limits no longer apply.
    graph, text = parse_graph(topology.data, Limits.unlimited()), topology.data
    if shapes := {name.casefold(): described(model, name)[1] for name in model.pruned if name in model.tensors}:
        text = with_shapes(text, graph, shapes)
        graph = parse_graph(text, Limits.unlimited())
    texts = {GRAPH: text}
    if topology.quantization is not None:
        check_text(topology.quantization, QUANT)
        texts[QUANT] = topology.quantization
    spellings = _spellings(graph.variables)
    paths = label_paths((label for labels in spellings.values() for label in labels), portable=portable)
    variables = {variable.label: variable for variable in graph.variables}
    sources: dict[str, tuple[str, Variable]] = {}
    spelled = {name.casefold(): name for name in model}  # spelling in the model
    for labels in spellings.values():
        name = next((label for label in labels if label in model.tensors), spelled.get(labels[0].casefold()))
        if name is None:
            raise FormatError(
                f"the model has no tensor {labels[0]!r} for the variable in line {graph.line(variables[labels[0]])}"
            )
        sources.update({paths[label]: (name, variables[label]) for label in labels})
    used = {name for name, _ in sources.values()}
    unused = [name for name in model if name not in used]
    _warn("tensors that are not variables of the graph are left out", unused, depth=2)
    return _generate(model, texts, sources, graph)


def _generate(
    model: Model, texts: dict[str, bytes], sources: dict[str, tuple[str, Variable]], graph: NnefGraph
) -> Iterator[Output]:
    announce(model, [sources[path][0] for path in sorted(sources)])
    for path in sorted([*texts, *sources]):
        if path in texts:
            text = texts[path]
            yield Output(path, len(text), functools.partial(_write_text, text))
        else:
            name, variable = sources[path]
            fields = model.metadata.get(_HEADER_KEY + variable.label)
            array = _fit(model.tensors[name], variable, graph, headed=fields is not None)
            header = header_of(array, variable.dtype, path, fields)
            size = HEADER_SIZE + header.length
            yield Output(path, size, functools.partial(write_tensor, array=array, header=header, name=path))


def _write_text(text: bytes, file: BinaryIO) -> None:
    file.write(text)


def _write_directory(folder: Path, outputs: Iterator[Output]) -> None:
    for path, _, write_content in outputs:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        # On systems that ignore case, another spelling of the label already wrote this file.
        if not os.path.lexists(target):
            with open(target, "xb") as file:
                write_content(file)


def _fit(array: Array, variable: Variable, graph: NnefGraph, *, headed: bool) -> Array:
    """Return the array with the shape and a dtype that its variable permits.

    If the header of its source file is known (``headed``), booleans may be integers of 8 bits.
    """
    what = f"tensor {variable.label!r}"
    if array.shape != variable.shape:
        # NNEF declares one-dimensional biases as [1, C]: extents of 1 are irrelevant here.
        if [extent for extent in array.shape if extent != 1] != [extent for extent in variable.shape if extent != 1]:
            raise FormatError(f"{what} has shape {array.shape}; {GRAPH}:{graph.line(variable)} says {variable.shape}")
        array = array.reshape(variable.shape)
    stored = stored_type(array.dtype)
    fits = stored is not None and stored.kind in _KINDS[variable.dtype]
    if fits and variable.dtype == "logical" and array.dtype != np.bool_:
        if not np.any((array != 0) & (array != 1)):
            return array.astype(np.bool_)
        fits = headed
    if not fits:
        raise FormatError(
            f"{what} is {array.dtype}; {GRAPH}:{graph.line(variable)} says {variable.dtype} (NNEF 1.0.3, 5.2.1)"
        )
    return array
