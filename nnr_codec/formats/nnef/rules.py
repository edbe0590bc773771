"""Rules for NNEF models, and reports of findings (NNEF 1.0.3, chapter 6)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

#: Maximum number of reported findings per rule; a text can have one for every few of its bytes.
MOST = 100

# Names in messages may be as long as the text.
_LONGEST = 400

Severity = Literal["violation", "warning", "note"]


class ModelRule(NamedTuple):
    """Rule: id, clause of NNEF 1.0.3, severity of a violation, and text."""

    id: str
    clause: str
    severity: Severity
    text: str


_RULES = (
    # The document
    ModelRule("text", "3.1", "violation", "A text is UTF-8 without NUL; outside comments it is ASCII."),
    ModelRule("syntax", "3.2", "violation", "A document follows the grammar; keywords are not identifiers."),
    ModelRule("version", "3.2.4", "violation", "The version of a document is 1.x."),
    ModelRule("version-known", "3.2.4", "warning", "The version is 1.0, also for NNEF 1.0.1 to 1.0.5."),
    ModelRule("extension-name", "3.2.4", "warning", "An extension is a list of identifiers; Khronos defines two."),
    ModelRule("fragment-extension", "3.2.2", "violation", "Fragments require KHR_enable_fragment_definitions."),
    ModelRule("operator-extension", "3.2.3", "violation", "Expressions require KHR_enable_operator_expressions."),
    # Declarations
    ModelRule("fragment-unique", "3.3.2", "violation", "Fragments have unique names other than those of operations."),
    ModelRule("parameter-unique", "3.3.2", "violation", "Parameters and results of a declaration have unique names."),
    ModelRule("tensors-first", "3.3.2", "violation", "Parameters of tensor type precede attributes."),
    ModelRule("result-type", "3.3.2", "violation", "Results of a fragment are tensors with a data type."),
    ModelRule("mixed-tuple", "3.3.1", "violation", "The items of a tuple are all tensors, or none is."),
    ModelRule("default-type", "3.3.2", "violation", "A default value has the type of its parameter."),
    ModelRule(
        "generic-declaration", "3.3.2", "violation", "A fragment is generic if and only if it has a generic type."
    ),
    ModelRule("recursion", "3.3.3", "violation", "A fragment invokes itself only under a condition."),
    # Identifiers
    ModelRule(
        "single-assignment", "3.3.2", "violation", "An identifier is assigned once, and parameters are never assigned."
    ),
    ModelRule("use-before-assignment", "3.3.2", "violation", "An identifier is assigned before it is used."),
    ModelRule("result-assigned", "3.3.2", "violation", "Every result is assigned."),
    ModelRule(
        "graph-parameter", "3.3.2", "violation", "The parameters of the graph are the results of external operations."
    ),
    ModelRule("graph-only", "3.3.2", "violation", "external, variable and update occur only in the body of the graph."),
    ModelRule("identifier-tensor", "3.3.2", "violation", "Identifiers in the body of the graph are single tensors."),
    ModelRule(
        "target-structure", "3.3.2", "violation", "The left side of an assignment has the structure of its right side."
    ),
    ModelRule(
        "update-variable", "4.8", "violation", "An update has a variable as target, and each variable is updated once."
    ),
    # Invocations
    ModelRule(
        "operation-known", "3.3.2", "violation", "An operation is a standard operation or a fragment of the document."
    ),
    ModelRule("vendor-operation", "3.3.2", "note", "An unknown operation may belong to a vendor's extension."),
    ModelRule("later-operation", "4", "note", "An operation is in NNEF 1.0.3, to which ISO/IEC 15938-17 refers."),
    ModelRule("argument-order", "3.3.2", "violation", "Positional arguments precede named ones."),
    ModelRule("argument-count", "3.3.2", "violation", "An invocation has at most as many arguments as parameters."),
    ModelRule("argument-name", "3.3.2", "violation", "A named argument has the name of a parameter."),
    ModelRule("argument-twice", "3.3.2", "violation", "A parameter has one argument."),
    ModelRule("argument-missing", "3.3.2", "violation", "A parameter without default value has an argument."),
    ModelRule("attribute-named", "3.3.2", "violation", "Attributes are named arguments."),
    ModelRule("tensor-positional", "3.3.2", "warning", "Tensors should be positional arguments."),
    ModelRule(
        "generic-argument", "3.3.2", "violation", "A generic type is given, unambiguously deduced, or has a default."
    ),
    ModelRule("argument-type", "3.3.1", "violation", "An argument can be cast to the type of its parameter."),
    ModelRule("expression-type", "3.3.3", "violation", "Operands of an expression have permitted types."),
    ModelRule("argument-value", "4", "violation", "Literal arguments have permitted values."),
    ModelRule("deprecated", "3.3.3", "warning", "shape_of and linear_quantize should not be used."),
    # Variables and their data
    ModelRule("variable-constant", "4.1.3", "violation", "Shape and label of a variable are constant."),
    ModelRule("variable-shape", "4.1.3", "violation", "A variable has at most eight extents, all positive."),
    ModelRule("label", "4.1.3", "violation", "A label is not empty and contains only letters, digits and _ - . / \\."),
    ModelRule("label-path", "5.1", "violation", "Labels are valid file names and map to different files."),
    ModelRule(
        "shared-label",
        "4.1.3",
        "violation",
        "Variables with the same label, ignoring case, have the same shape and data type.",
    ),
    ModelRule("data-missing", "5.1", "violation", "Every variable has a tensor file."),
    ModelRule("data-file", "5.2", "violation", "A tensor file is well-formed and has an item type of Khronos."),
    ModelRule("data-shape", "5.2", "violation", "A tensor file has the shape of its variable."),
    ModelRule("data-type", "5.2.1", "violation", "The items of a tensor file have the data type of its variable."),
    ModelRule("data-shared", "4.1.3", "violation", "Tensor files for the same label, ignoring case, are equal."),
    ModelRule("vendor-file", "5.1", "note", "Other files belong to vendors, or are other versions of data."),
    # Quantization
    ModelRule("quant-syntax", "5.3", "violation", "graph.quant is well-formed."),
    ModelRule("quant-unique", "5.3", "violation", "A tensor is listed once."),
    ModelRule("quant-identifier", "5.3", "violation", "Each entry is an identifier of the graph."),
    ModelRule("quant-argument", "5.3", "violation", "A quantization has only named arguments, those of its operation."),
    ModelRule("quant-missing", "5.2", "warning", "A tensor file of quantized items is listed."),
)
#: Rules by id.
RULES = {rule.id: rule for rule in _RULES}


@dataclass(frozen=True)
class ModelFinding:
    """Violated rule of an NNEF model.

    Parameters
    ----------
    rule, clause : str
        Id of the rule, and its clause of NNEF 1.0.3.
    message : str
        Description of the violation.
    file : str
        File in the model.
    line, column : int
        Position in a text, from 1; 0 if there is no single position.
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
    """Result of checking an NNEF model.

    Parameters
    ----------
    violations : list of ModelFinding
        Violations by file and position; empty if none was detected.
    warnings : list of ModelFinding
        Deviations from advice of the specification, and deprecated constructs.
    notes : list of ModelFinding
        Vendor-specific or later constructs, which were not checked.
    variables : int
        Number of labels in the graph.
    """

    violations: list[ModelFinding] = field(default_factory=list)
    warnings: list[ModelFinding] = field(default_factory=list)
    notes: list[ModelFinding] = field(default_factory=list)
    variables: int = 0


class ModelFindings:
    """Builder of a report."""

    def __init__(self) -> None:
        self.report = ModelReport()
        self._counts: Counter[str] = Counter()

    def admit(self, rule: str) -> bool:
        """Count a finding; return whether to add it, because its rule has at most :data:`MOST`."""
        self._counts[rule] += 1
        return self._counts[rule] <= MOST

    def add(self, rule: str, message: str, file: str, line: int = 0, column: int = 0, clause: str = "") -> None:
        """Add an admitted finding; ``clause`` may be more precise than that of the rule."""
        report = self.report
        lists = {"violation": report.violations, "warning": report.warnings, "note": report.notes}
        message = message if len(message) <= _LONGEST else message[:_LONGEST] + "…"
        found = ModelFinding(rule, clause or RULES[rule].clause, message, file, line, column)
        lists[RULES[rule].severity].append(found)

    def end(self) -> ModelReport:
        """Return the report, sorted by file and position."""
        for rule, count in self._counts.items():
            if count > MOST:
                self.report.notes.append(
                    ModelFinding(rule, RULES[rule].clause, f"{count - MOST} more findings are left out", "model")
                )
        for listed in (self.report.violations, self.report.warnings, self.report.notes):
            listed.sort(key=lambda found: (found.file, found.line, found.column))
        return self.report
