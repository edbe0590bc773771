"""The rules that NNEF models are checked against, and what was found (NNEF 1.0.3, chapter 6)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

#: How many findings of one rule are told; a text can have one for every few of its bytes.
MOST = 100

# Names in messages may be as long as the text.
_LONGEST = 400

Severity = Literal["violation", "warning", "note"]


class ModelRule(NamedTuple):
    """A rule: its name, its clause of NNEF 1.0.3, how grave it is to break it, and what it says."""

    id: str
    clause: str
    severity: Severity
    text: str


_RULES = (
    # The document
    ModelRule("text", "3.1", "violation", "A text is UTF-8 without NUL; outside comments it is ASCII."),
    ModelRule("syntax", "3.2", "violation", "A document follows the grammar; keywords are no identifiers."),
    ModelRule("version", "3.2.4", "violation", "The version of a document is 1.x."),
    ModelRule("version-known", "3.2.4", "warning", "There is version 1.0 only, also of 1.0.1 to 1.0.5."),
    ModelRule("extension-name", "3.2.4", "warning", "An extension is a list of identifiers; two are of Khronos."),
    ModelRule("fragment-extension", "3.2.2", "violation", "Fragments need KHR_enable_fragment_definitions."),
    ModelRule("operator-extension", "3.2.3", "violation", "Expressions need KHR_enable_operator_expressions."),
    # Declarations
    ModelRule(
        "fragment-unique", "3.3.2", "violation", "Fragments have different names, which are none of an operation."
    ),
    ModelRule(
        "parameter-unique", "3.3.2", "violation", "Parameters and results of a declaration have different names."
    ),
    ModelRule("tensors-first", "3.3.2", "violation", "Parameters of tensor type precede attributes."),
    ModelRule("result-type", "3.3.2", "violation", "Results of a fragment are tensors, with a data type."),
    ModelRule("mixed-tuple", "3.3.1", "violation", "A tuple has tensors only, or none."),
    ModelRule("default-type", "3.3.2", "violation", "A default value has the type of its parameter."),
    ModelRule(
        "generic-declaration", "3.3.2", "violation", "A fragment is generic if and only if it has a generic type."
    ),
    ModelRule("recursion", "3.3.3", "violation", "A fragment invokes itself under a condition only."),
    # Identifiers
    ModelRule(
        "single-assignment", "3.3.2", "violation", "An identifier is assigned once, and no parameter of a fragment is."
    ),
    ModelRule("use-before-assignment", "3.3.2", "violation", "An identifier is assigned before it is used."),
    ModelRule("result-assigned", "3.3.2", "violation", "Every result is assigned."),
    ModelRule(
        "graph-parameter", "3.3.2", "violation", "The parameters of the graph are the results of external operations."
    ),
    ModelRule("graph-only", "3.3.2", "violation", "external, variable and update stand in the body of the graph only."),
    ModelRule("identifier-tensor", "3.3.2", "violation", "Identifiers in the body of the graph are single tensors."),
    ModelRule("target-structure", "3.3.2", "violation", "The left side of an assignment is built as its right side."),
    ModelRule("update-variable", "4.8", "violation", "What is updated is a variable, once."),
    # Invocations
    ModelRule(
        "operation-known", "3.3.2", "violation", "An operation is one of the standard or a fragment of the document."
    ),
    ModelRule("vendor-operation", "3.3.2", "note", "An operation that is neither may be that of a vendor's extension."),
    ModelRule("later-operation", "4", "note", "An operation is in NNEF 1.0.3, which ISO/IEC 15938-17 refers to."),
    ModelRule("argument-order", "3.3.2", "violation", "Positional arguments precede named ones."),
    ModelRule("argument-count", "3.3.2", "violation", "There are no more arguments than parameters."),
    ModelRule("argument-name", "3.3.2", "violation", "A named argument has the name of a parameter."),
    ModelRule("argument-twice", "3.3.2", "violation", "A parameter has one argument."),
    ModelRule("argument-missing", "3.3.2", "violation", "A parameter without default value has an argument."),
    ModelRule("attribute-named", "3.3.2", "violation", "Attributes are named arguments."),
    ModelRule("tensor-positional", "3.3.2", "warning", "Tensors should be positional arguments."),
    ModelRule(
        "generic-argument", "3.3.2", "violation", "A generic type is given, deduced without doubt, or has a default."
    ),
    ModelRule("argument-type", "3.3.1", "violation", "An argument can be cast to the type of its parameter."),
    ModelRule("expression-type", "3.3.3", "violation", "Operands of an expression have types that it permits."),
    ModelRule("argument-value", "4", "violation", "Literal arguments have values that the operation permits."),
    ModelRule("deprecated", "3.3.3", "warning", "shape_of and linear_quantize should not be used."),
    # Variables and their data
    ModelRule("variable-constant", "4.1.3", "violation", "Shape and label of a variable are constant."),
    ModelRule("variable-shape", "4.1.3", "violation", "Extents of a variable are positive, and at most eight."),
    ModelRule("label", "4.1.3", "violation", "A label is not empty, and has letters, digits and _ - . / \\ only."),
    ModelRule("label-path", "5.1", "violation", "Labels can be the names of files, which are different."),
    ModelRule(
        "shared-label", "4.1.3", "violation", "Variables of one label, case ignored, have one shape and data type."
    ),
    ModelRule("data-missing", "5.1", "violation", "Every variable has a tensor file."),
    ModelRule("data-file", "5.2", "violation", "A tensor file is well-formed, and of an item type of Khronos."),
    ModelRule("data-shape", "5.2", "violation", "A tensor file has the shape of its variable."),
    ModelRule("data-type", "5.2.1", "violation", "A tensor file has items of the data type of its variable."),
    ModelRule("data-shared", "4.1.3", "violation", "Tensor files of one label, case ignored, are the same."),
    ModelRule("vendor-file", "5.1", "note", "Other files are those of vendors, or other versions of data."),
    # Quantization
    ModelRule("quant-syntax", "5.3", "violation", "graph.quant is well-formed."),
    ModelRule("quant-unique", "5.3", "violation", "A tensor is listed once."),
    ModelRule("quant-identifier", "5.3", "violation", "What is listed is an identifier of the graph."),
    ModelRule("quant-argument", "5.3", "violation", "A quantization has named arguments, those of its operation."),
    ModelRule("quant-missing", "5.2", "warning", "A tensor file of quantized items is listed."),
)
#: The rules by name.
RULES = {rule.id: rule for rule in _RULES}


@dataclass(frozen=True)
class ModelFinding:
    """A rule that an NNEF model breaks.

    Parameters
    ----------
    rule, clause : str
        The name of the rule, and its clause of NNEF 1.0.3.
    message : str
        What is wrong.
    file : str
        The file in the model.
    line, column : int
        Where in a text, both from 1; 0 where it is no single place.
    """

    rule: str
    clause: str
    message: str
    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{place}: {self.message} ({self.rule}, NNEF {self.clause})"


@dataclass
class ModelReport:
    """What checking an NNEF model found.

    Parameters
    ----------
    violations : list of ModelFinding
        By file and place; empty when the model is valid as far as a program can tell.
    warnings : list of ModelFinding
        Of what the specification advises, or deprecates.
    notes : list of ModelFinding
        What is a vendor's or from a later version, and was not checked.
    variables : int
        How many labels the graph has.
    """

    violations: list[ModelFinding] = field(default_factory=list)
    warnings: list[ModelFinding] = field(default_factory=list)
    notes: list[ModelFinding] = field(default_factory=list)
    variables: int = 0


class ModelFindings:
    """Fills a report."""

    def __init__(self) -> None:
        self.report = ModelReport()
        self._counts: Counter[str] = Counter()

    def admit(self, rule: str) -> bool:
        """Count a finding; whether there are less than :data:`MOST` of its rule, so that it is to be added."""
        self._counts[rule] += 1
        return self._counts[rule] <= MOST

    def add(self, rule: str, message: str, file: str, line: int = 0, column: int = 0, clause: str = "") -> None:
        """Add a finding that was admitted; ``clause`` may be more precise than that of the rule."""
        report = self.report
        lists = {"violation": report.violations, "warning": report.warnings, "note": report.notes}
        message = message if len(message) <= _LONGEST else message[:_LONGEST] + "…"
        found = ModelFinding(rule, clause or RULES[rule].clause, message, file, line, column)
        lists[RULES[rule].severity].append(found)

    def end(self) -> ModelReport:
        """The report, in the order of files and places."""
        for rule, count in self._counts.items():
            if count > MOST:
                self.report.notes.append(
                    ModelFinding(rule, RULES[rule].clause, f"{count - MOST} more findings are left out", "model")
                )
        for listed in (self.report.violations, self.report.warnings, self.report.notes):
            listed.sort(key=lambda found: (found.file, found.line, found.column))
        return self.report
