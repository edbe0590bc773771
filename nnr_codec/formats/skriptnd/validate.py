"""Validation of a SkriptND model: its modules, names, variables and tensor files (NNEF 2 draft)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from ...errors import FormatError
from ...limits import Budget, Limits
from .. import opened_file
from ..findings import ModelFindings, ModelReport
from ..nnef.container import Directory
from ..nnef.labels import is_hidden, path_label
from ..nnef.lexer import Text, VersionError
from ..nnef.tensorfile import TensorFileHeader, read_data, read_header
from ..nnef.tree import SyntaxNode
from . import MAIN, check_place, module_path, read_main
from .parser import FUNCTIONS, ScriptText, parse
from .rules import RULES
from .tree import (
    Bound,
    Declaration,
    Definition,
    Document,
    Expression,
    Invocation,
    IterationCount,
    Loop,
    Lowering,
    Target,
)
from .variables import STANDARD_MODULES, NestedVariables, faults


def validate(source: Path | BinaryIO, limits: Limits | None = None) -> ModelReport:
    """Check a SkriptND model.

    Parameters
    ----------
    source : Path or seekable binary file
        A directory with a ``main.sknd``, this file, or the text of a main module; tensor files are not required for a
        text alone.
    limits : Limits, optional
        Resource limits for the model.

    Returns
    -------
    ModelReport
        Findings, at most :data:`..findings.MOST` per rule.

    Raises
    ------
    FormatError
        There is no ``main.sknd``.
    LimitError
        The model exceeds the limits.
    OSError
        The model cannot be read.
    """
    return _Validator(source, limits or Limits()).run()


class _Validator:
    def __init__(self, source: Path | BinaryIO, limits: Limits) -> None:
        self.findings, self.budget = ModelFindings(RULES, "NNEF 2 draft"), Budget(limits)
        self.folder: Directory | None = None
        self.requires_data = isinstance(source, Path) and source.is_dir()
        if isinstance(source, Path) and (self.requires_data or source.name == MAIN):
            self.folder = Directory(source if self.requires_data else source.parent, limits, texts=(MAIN,))
            self.main = read_main(self.folder)
        else:
            with opened_file(source) as file:
                limits.check("max_topology_bytes", file.seek(0, 2), f"bytes of {MAIN}")
                file.seek(0)
                self.main = file.read()

    def run(self) -> ModelReport:
        """Check the whole model."""
        files = [path for path in self.folder.files if not is_hidden(path)] if self.folder else []
        documents: dict[str, tuple[Document, Text] | None] = {MAIN: self.parsed(self.main, MAIN)}
        documents |= {path: self.module(path) for path in files if path.endswith(".sknd") and path != MAIN}
        names = {_module_name(path): found and found[0] for path, found in documents.items()}
        for path, found in documents.items():
            if found:
                for rule, message, offset, clause in _name_faults(found[0], _module_name(path), names):
                    self.tell(rule, found[1].error(message, offset, clause), path)
                if self.folder:
                    self.imports(found[0], found[1], names.keys() | STANDARD_MODULES)
        headers = self.headers([path for path in files if path.endswith(".dat")])
        if found := documents.pop(MAIN):
            nested = NestedVariables(found[0])
            for path, other in documents.items():
                if other:
                    nested.add(path, other[0])
            if self.requires_data or headers:
                for rule, error in faults(found[0], nested, headers, found[1]):
                    self.tell(rule, error, MAIN)
        for path in files:
            if not path.endswith((".sknd", ".dat")):
                self.tell("sknd-vendor-file", FormatError("a vendor file"), path)
        report = self.findings.end()
        report.variables = sum(len(each.variables) for each in found[0].definitions if each.is_graph) if found else 0
        return report

    def tell(self, rule: str, error: FormatError, file: str) -> None:
        """Add a finding."""
        if self.findings.admit(rule):
            self.findings.add(rule, error.message, file, error.line, error.column, error.clause)

    def parsed(self, data: bytes, path: str) -> tuple[Document, Text] | None:
        """Parse a module; return None if it is malformed."""
        try:
            return parse(data, path, is_main=path == MAIN), ScriptText(data, path, "2.2")
        except VersionError as error:
            self.tell("sknd-version", error, path)
        except FormatError as error:
            self.tell("sknd-syntax" if error.line else "sknd-text", error, path)
        return None

    def module(self, path: str) -> tuple[Document, Text] | None:
        """Read and parse a module other than the main one."""
        assert self.folder
        try:
            module_path(path)
            with closing(self.folder.members([path])) as members:
                _, stream, size = next(members)
                self.budget.charge("max_side_info_bytes", size + len(path), "bytes of all modules")
                data = stream.read(size)
        except FormatError as error:
            self.tell("sknd-path", error, path)
            return None
        return self.parsed(data, path)

    def imports(self, document: Document, text: Text, known: set[str]) -> None:
        """Note the imported modules that are neither in the folder nor in the standard library."""
        for name in document.imports:
            if name not in known:
                self.tell("sknd-import", FormatError(f"module {name[:80]!r} is not in the folder"), text.source)

    def headers(self, paths: list[str]) -> dict[str, TensorFileHeader | None]:
        """Check tensor files; return their headers by name, None for a malformed one."""
        assert self.folder or not paths
        headers: dict[str, TensorFileHeader | None] = {}
        for path in paths:
            try:
                check_place(path)
                name = path_label(path)
            except FormatError as error:
                self.tell("sknd-path", error, path)
                continue
            if name in headers:
                message = "another file has the same tensor name, with or without % escapes"
                self.tell("sknd-path", FormatError(message), path)
            headers[name] = None
            try:
                headers[name] = header = self.header(path)
            except FormatError as error:
                self.tell("sknd-data-file", error, path)
            else:
                if header.vendor_length:
                    self.tell("sknd-vendor-data", FormatError("its item type belongs to a vendor"), path)
        return headers

    def header(self, path: str) -> TensorFileHeader:
        """Read a header. Read packed items too, to detect malformed ones."""
        assert self.folder
        with closing(self.folder.members([path])) as members:
            _, stream, size = next(members)
            header = read_header(stream, size, path)
            self.budget.tensor(header.shape, header.dtype.itemsize, path)
            if header.is_packed:
                read_data(stream, header, path)
            return header


def _module_name(path: str) -> str:
    return path.removesuffix(".sknd").replace("/", ".")


# Names


def _name_faults(
    document: Document, module: str, modules: Mapping[str, Document | None]
) -> Iterator[tuple[str, str, int, str]]:
    """Yield rule, message, offset and clause of each unknown operator or name of a module."""
    own, imports = {each.name for each in document.definitions}, {*document.imports, module}
    for definition in document.definitions:
        declared = _declared(definition)
        for node in _walk(definition):
            if isinstance(node, Invocation):
                if message := _unknown_operator(node.operator, own, imports, modules):
                    yield "sknd-operator", message, node.start, "2.15"
            elif isinstance(node, Expression) and node.kind == "name":
                name = str(node.value).partition(".")[0]
                if name not in declared:
                    yield "sknd-name", f"{name[:80]!r} is not declared in {definition.name[:80]!r}", node.start, "2.2"


def _unknown_operator(name: str, own: set[str], imports: set[str], modules: Mapping[str, Document | None]) -> str:
    """Return a message if the operator of an invocation is unknown; empty if it is known, or in an unknown module."""
    module, _, operator = name.rpartition(".")
    if not module:
        return "" if name in own or name in FUNCTIONS else f"the module has no operator {name[:80]!r}"
    if module not in imports:
        return f"module {module[:80]!r} is not imported"
    document = modules.get(module)
    if document is None or any(each.name == operator for each in document.definitions):
        return ""
    return f"module {module[:80]!r} has no operator {operator[:80]!r}"


def _declared(definition: Definition) -> set[str]:
    """Return the names that a definition declares anywhere.

    Symbols in the shapes and pack lengths of inputs and attributes, and extents with an upper bound in outputs, are
    declared by their first use (2.6).
    """
    names = {each.name for each in definition.types}
    for node in _walk(definition):
        match node:
            case Declaration():
                names |= {node.name, node.rank}
            case Bound():
                names.add(node.name)
            case Target():
                names.update(node.names)
            case IterationCount():
                names.add(node.index)
            case Loop():
                names.update(name for name, _ in node.scanned)
            case Lowering():
                names.update(name for name, _ in node.locals)
    dynamic = tuple(extent.value for each in definition.outputs for extent in each.shape or () if extent.bound)
    for node in _walk((dynamic, *((each.shape, each.pack) for each in (*definition.attributes, *definition.inputs)))):
        if isinstance(node, Expression) and node.kind == "name":
            names.add(str(node.value))
    return names


def _walk(root: object) -> Iterator[SyntaxNode]:
    """Yield all nodes of a tree, in the order of the text."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(reversed(node))
        elif isinstance(node, SyntaxNode):
            yield node
            waiting.extend(getattr(node, name) for name in reversed(type(node).__slots__))
