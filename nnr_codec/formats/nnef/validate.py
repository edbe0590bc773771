"""Validation of an NNEF model: its texts, shapes, labels and tensor files (NNEF 1.0.3, chapter 6).

The rules are in :mod:`rules`, the semantic checks in :mod:`check`, shapes in :mod:`dataflow`; this module iterates over
the files of a model.
Faults hidden by a syntax error are not reported.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ...errors import FormatError
from ...limits import Budget, Limits
from ..findings import ModelFindings, ModelReport
from .check import Checker
from .container import Container, Stream, open_container
from .dataflow import flow
from .graph import read_graph
from .invoke import Declared, Signature
from .labels import GRAPH, QUANT, is_hidden, label_path, label_paths, path_label, present_path
from .lexer import Text, VersionError
from .parser import parse
from .quant import Quantization, doubtful, identifiers_of, read_quantization
from .rules import RULES
from .tensorfile import TensorFileHeader, read_data, read_header
from .tree import Argument, Document, Invocation, SyntaxNode
from .types import ArrayOf, TensorOf, Type, is_attribute


def validate(source: Path | BinaryIO, limits: Limits | None = None) -> ModelReport:
    """Check an NNEF model.

    Parameters
    ----------
    source : Path or seekable binary file
        A directory, a tar, a gzipped tar, or the text of a graph; for a text alone, tensor files are not required.
    limits : Limits, optional
        Resource limits for the model.

    Returns
    -------
    ModelReport
        All findings, at most :data:`~nnr_codec.formats.findings.MOST` per rule.

    Raises
    ------
    FormatError
        The container is malformed.
    LimitError
        The model exceeds the limits.
    OSError
        The model cannot be read.
    """
    limits = limits or Limits()
    return _Validator(open_container(source, limits), limits).run()


def validate_texts(graph: bytes, quantization: bytes | None = None, limits: Limits | None = None) -> ModelReport:
    """Check the texts of a model without its tensor files.

    Returns the results and raises the errors of :func:`validate`.
    """
    texts = {GRAPH: graph} if quantization is None else {GRAPH: graph, QUANT: quantization}
    return _Validator(_Texts(texts), limits or Limits()).run()


@dataclass(frozen=True)
class _Texts:
    """Container with texts only."""

    texts: dict[str, bytes]
    files: tuple[str, ...] = ()
    text_only: bool = True

    def members(self, paths: Iterable[str]) -> Generator[tuple[str, Stream, int]]:
        """Yield nothing."""
        yield from ()

    def only(self, paths: Iterable[str]) -> None:
        """Return None."""


class _Validator:
    def __init__(self, container: Container, limits: Limits) -> None:
        self.container, self.limits = container, limits
        self.findings = ModelFindings(RULES, "NNEF")
        self.names = frozenset(container.files)
        self.groups: dict[str, list[Declared]] = {}  # variables by label in folded case

    def run(self) -> ModelReport:
        """Check the whole model."""
        document, checker = self.graph()
        quantization = self.quantization(document)
        wanted = {GRAPH, QUANT}
        if checker:
            self.labels(checker)
            wanted |= self.data(checker, quantization.tensors if quantization else frozenset())
            self.strangers(wanted)
        report = self.findings.end()
        report.variables = len(self.groups)
        return report

    def tell(self, rule: str, message: str, file: str, line: int = 0, column: int = 0, clause: str = "") -> None:
        """Add a finding."""
        if self.findings.admit(rule):
            self.findings.add(rule, message, file, line, column, clause)

    def refused(self, error: FormatError, rule: str, file: str) -> None:
        """Add the error of a reader of a text."""
        if not error.line:
            rule = "text"
        elif isinstance(error, VersionError):
            rule = "version"
        self.tell(rule, error.message, file, error.line, error.column, error.clause)

    def graph(self) -> tuple[Document | None, Checker | None]:
        data = self.container.texts[GRAPH]
        try:
            document = parse(data, self.limits)
        except FormatError as error:
            self.refused(error, "syntax", GRAPH)
            return None, None
        text = Text(data, GRAPH)
        checker = Checker(document, text, self.findings)
        checker.run()
        self.shapes(document, text)
        return document, checker

    def shapes(self, document: Document, text: Text) -> None:
        """Check the shapes of all operands, unless a variable is faulty, which the checker reports."""
        try:
            graph = read_graph(document, text, self.limits)
        except FormatError:
            return
        # The checker has reported literal arguments, structures and types.
        violations = [found for found in self.findings.report.violations if found.rule != "operator-extension"]
        reported = {(found.line, found.column) for found in violations}

        def report(rule: str, message: str, node: SyntaxNode, clause: str, call: Invocation | None) -> None:
            if self.findings.is_full(rule):
                self.findings.admit(rule)  # a place in a long text takes time
                return
            if call:
                message += f" (in {call.operation.name[:60]}, invoked in line {text.place(call.start)[0]})"
            place = text.place(node.start)
            if place not in reported and not (rule == "shape-limit" and reported):
                self.tell(rule, message, GRAPH, *place, clause)

        flow(graph, report=report)

    def quantization(self, document: Document | None) -> Quantization | None:
        if QUANT not in self.container.texts:
            return None
        try:
            quantization = read_quantization(self.container.texts[QUANT], self.limits)
        except FormatError as error:
            self.refused(error, "quant-syntax", QUANT)
            return None
        if document:
            checker = _QuantizationChecker(document, quantization.text, self.findings)
            for rule, message, entry in doubtful(quantization, identifiers_of(document)):
                checker.tell(rule, message, entry)
            for entry in quantization.entries:
                checker.invocation(entry.call)
        return quantization

    # Variables and their files

    def labels(self, checker: Checker) -> None:
        """Check labels and group variables by them."""
        fine: list[str] = []
        for variable in checker.variables:
            if variable.label is None:
                continue
            group = self.groups.setdefault(variable.label.casefold(), [])
            group.append(variable)
            first = group[0]
            differs = (first.shape, first.dtype) != (variable.shape, variable.dtype)
            if differs and None not in (first.shape, variable.shape):
                message = f"label {variable.label!r} is also used in line {first.line}, with another shape or data type"
                checker.tell("shared-label", message, variable.call)
            try:
                label_path(variable.label)
                fine.append(variable.label)
            except FormatError as error:
                checker.tell("label-path", str(error), variable.call)
        try:
            label_paths(fine)
        except FormatError as error:
            self.tell("label-path", str(error), GRAPH)

    def data(self, checker: Checker, listed: frozenset[str]) -> set[str]:
        """Check the tensor files; return their paths."""
        groups: list[dict[str, Declared]] = []
        for variables in self.groups.values():
            groups.append({})
            for variable in variables:
                if path := self.path(variable.label or ""):
                    groups[-1].setdefault(path, variable)
        wanted = {path for group in groups for path in group}
        if self.container.text_only and self.names.isdisjoint(wanted):
            return wanted
        budget = Budget(self.limits)
        for group in groups:
            present = [path for path in group if path in self.names]
            if group and not present:
                path, variable = next(iter(group.items()))
                self.tell("data-missing", f"the file of the variable in {GRAPH}:{variable.line} is missing", path)
            headers = {path: header for path in present if (header := self.file(path, group[path], budget))}
            if len(headers) > 1 and len({self.digest(path, header) for path, header in headers.items()}) > 1:
                self.tell("data-shared", f"the content differs from {present[0]}", present[-1])
            names = {variable.identifier for variable in group.values()}
            for path, header in headers.items():
                if header.is_quantized and names.isdisjoint(listed):
                    self.tell("quant-missing", f"its items are quantized, but {QUANT} does not list it", path)
        return wanted

    def path(self, label: str) -> str:
        """Return the actual or expected path of a label's tensor file; empty if there can be none."""
        try:
            return present_path(label_path(label), self.names)
        except FormatError:
            return ""

    def file(self, path: str, variable: Declared, budget: Budget) -> TensorFileHeader | None:
        """Check a tensor file; return its header if that is readable."""
        try:
            with contextlib.closing(self.container.members([path])) as members:
                _, stream, size = next(members)
                header = read_header(stream, size, path)
                budget.tensor(header.shape, header.dtype.itemsize, path)
                if header.is_packed:
                    read_data(stream, header, path)
        except FormatError as error:
            self.tell("data-file", error.message, path)
            return None
        if variable.shape is not None and header.shape != variable.shape:
            self.tell("data-shape", f"the file has shape {header.shape}; the graph says {variable.shape}", path)
        if header.vendor_length:
            self.tell("vendor-data", "its item type belongs to a vendor", path)
        elif variable.dtype and header.data_type != variable.dtype:
            self.tell("data-type", f"the file has {header.data_type} data; the graph says {variable.dtype}", path)
        return header

    def digest(self, path: str, header: TensorFileHeader) -> bytes:
        """Return a digest of the type and items of a tensor file."""
        with contextlib.closing(self.container.members([path])) as members:
            _, stream, size = next(members)
            read_header(stream, size, path)
            return hashlib.sha256(header.dtype.str.encode() + read_data(stream, header, path).tobytes()).digest()

    def strangers(self, wanted: set[str]) -> None:
        """Report files that no variable needs; hidden files and folders are ignored."""
        for path in self.container.files:
            if path in wanted or is_hidden(path):
                continue
            what = "a vendor file"
            if re.search(r"\.dat\.[^/]*$", path):
                what = "another version of a tensor file"
            elif path.endswith(".dat"):
                what = "a tensor file without a variable"
                with contextlib.suppress(FormatError):
                    what += f"; its label would be {path_label(path)!r}"
            self.tell("vendor-file", what, path)


class _QuantizationChecker(Checker):
    """Checker of operations in ``graph.quant``: the quantized tensor is not an argument, and all arguments are named.

    Tensors may be given as arrays of numbers, for example per channel (NNEF 1.0.5, 5.3).
    """

    def signature(self, call: Invocation) -> Signature | None:
        signature = super().signature(call)
        if signature is None or not signature.names or is_attribute(signature.types[signature.names[0]]):
            return signature
        return signature.without(signature.names[0])

    def parameter(self, signature: Signature, argument: Argument, position: int, *, named: bool) -> str:
        name = argument.name.name if argument.name else ""
        if name in signature.types:
            return name
        operation = signature.fragment.name.name
        what = f"{operation} has no parameter {name[:60]!r}" if name else f"an argument of {operation} has no name"
        self.tell("quant-argument", what, argument)
        return ""

    def check_types(
        self, call: Invocation, signature: Signature, given: Mapping[str, tuple[Argument, Type]]
    ) -> str | None:
        flat = {name: (argument, _item(signature.types[name], type_)) for name, (argument, type_) in given.items()}
        return super().check_types(call, signature, flat)


def _item(parameter: Type, given: Type) -> Type:
    """Return the type of the numbers if an array of them stands for a tensor."""
    while isinstance(parameter, TensorOf) and isinstance(given, ArrayOf):
        given = given.item
    return given
