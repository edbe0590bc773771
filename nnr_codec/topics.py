"""Topics of ``nnr explain``: syntax, tables, constants, requirements, errata, errors, limits and side information."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from types import ModuleType

from . import constants, errors
from .bitstream import attachments
from .bitstream.nodes import Node, UnitNode
from .bitstream.summary import UnitInfo
from .conformance.digest import TensorDigest
from .conformance.errata import ERRATA
from .conformance.report import Report, Violation
from .decoder.bins import ELEMENTS, TensorBin
from .decoder.tools import Tool
from .errors import NnrError
from .formats.findings import ModelFinding, ModelReport
from .formats.nnef.rules import RULES as NNEF_RULES
from .formats.openvino.rules import RULES as IR_RULES
from .formats.skriptnd.rules import RULES as SKRIPTND_RULES
from .limits import Limits
from .rules import Requirement
from .sideinfo import record
from .sideinfo.record import (
    DisplacementCode,
    FloatCode,
    GridCode,
    IntegerCode,
    PaletteCode,
    RawCode,
    Repeats,
    SideInfo,
    TensorRecord,
)
from .syntax.coder import LIMITED, byte_alignment
from .syntax.docs import CLASSES, comments, meaning_of, syntax_tables, value_tables, values_of

#: Kinds of topics, and their plurals.
KINDS = {
    "structure": "structures",
    "element": "elements",
    "table": "tables",
    "constant": "constants",
    "requirement": "requirements",
    "erratum": "errata",
    "error": "errors",
    "limit": "limits",
    "extension": "extensions",
    "output": "outputs",
}


@dataclass(frozen=True)
class Topic:
    """Entry of ``nnr explain``.

    Parameters
    ----------
    name : str
    kind : str
        One of KINDS.
    clause : str
        Clause of ISO/IEC 15938-17:2024; empty if not in the standard.
    text : str
        Explanation.
    details : tuple of str
        Further lines: location, values, table rows.
    """

    name: str
    kind: str
    clause: str
    text: str
    details: tuple[str, ...] = ()


def explain(name: str) -> list[Topic]:
    """Return the topics with a name.

    Parameters
    ----------
    name : str
        Name such as ``scan_order``, ``tensor_dimensions[0]``, ``nnr_unit_header()``, ``Table 16``, ``NNR_PT_INT``,
        ``TruncatedError``, ``max_dims``, ``N8``; case is ignored. A kind such as ``errata`` selects all
        topics of that kind, unless a topic has the same name.

    Raises
    ------
    LookupError
        No topic has that name; the message lists similar names.
    """
    known = topics()
    key = _key(name)
    if key not in known:
        if kind := kind_of(name):
            return [topic for found in known.values() for topic in found if topic.kind == kind]
        similar = get_close_matches(key, known, 5) or [other for other in known if len(key) > 2 and key in other][:5]
        close = list(dict.fromkeys(known[other][0].name for other in similar))
        raise LookupError(f"unknown name {name!r}" + (f"; similar names: {', '.join(close)}" if close else ""))
    return list(known[key])


def kind_of(name: str) -> str:
    """Return the kind with this name, singular or plural; empty for other names, and if a topic has the same name."""
    key = _key(name)
    return "" if key in topics() else next((kind for kind, plural in KINDS.items() if key in (kind, plural)), "")


def _key(name: str) -> str:
    return re.sub(r"\[.*|\(\s*\)|\s+", "", name.rpartition(".")[2]).casefold()


@lru_cache
def topics() -> dict[str, tuple[Topic, ...]]:
    """Return all topics by case-folded name without spaces; topics of the standard come first."""
    found: dict[str, list[Topic]] = defaultdict(list)
    for source in (
        _structures,
        _elements,
        _payload_elements,
        _tables,
        _constants,
        _requirements,
        _errata,
        _errors,
        _limits,
        _side_information,
        _outputs,
    ):
        for topic in source():
            found[re.sub(r"\s", "", topic.name).casefold()].append(topic)
    return {key: tuple(values) for key, values in found.items()}


def _structures() -> Iterator[Topic]:
    for table in syntax_tables().values():
        rows = tuple("  " * len(row.within) + f"{row.text}  {row.descriptor}".rstrip() for row in table.rows)
        yield Topic(table.name, "structure", table.clause, table.note, rows)
    name, _, text = (byte_alignment.__doc__ or "").partition(": ")
    yield Topic("byte_alignment", "structure", name.rpartition(" ")[2], text)


def _elements() -> Iterator[Topic]:
    rules = [(rule.id, re.split(r"\W+", rule.text)) for rule in Requirement]
    places: dict[str, list[str]] = defaultdict(list)
    clauses: dict[str, str] = {}
    for table in syntax_tables().values():
        for row in table.rows:
            if row.descriptor:
                within = ", ".join(row.within)
                places[row.element].append(f"{row.descriptor} in {table.name}(){', ' if within else ''}{within}")
                clauses.setdefault(row.element, table.clause)
    for element, where in places.items():
        details = [*dict.fromkeys(where), *_values(element), *_inferred(element)]
        if element == "topology_storage_format":
            details += [
                f"{record.STORAGE_FORMAT} side information of nnr_codec; from 128 on, values are unspecified",
                f"{attachments.STORAGE_FORMAT} attachment of nnr_codec",
            ]
        if element in LIMITED:
            details.append(f"limited by {LIMITED[element][0]}")
        details += [f"requirement {rule}" for rule, words in rules if element in words]
        yield Topic(element, "element", clauses[element], meaning_of(element), tuple(details))


def _values(element: str) -> Iterator[str]:
    values = values_of(element)
    if values:
        said = comments(constants)[values.__name__]
        yield from (f"{member.value} {name}: {said[name]}".rstrip(": ") for name, member in values.__members__.items())


def _inferred(element: str) -> Iterator[str]:
    """Yield the value that a structure infers for an absent element."""
    for cls in CLASSES.values():
        value = vars(cls).get(element)
        if isinstance(value, int) and not element.startswith("nnr_reserved"):
            yield f"{value} if it is absent"
            return


def _payload_elements() -> Iterator[Topic]:
    for name, (clause, descriptor, meaning) in ELEMENTS.items():
        yield Topic(name, "element", clause, meaning, (descriptor,))


def _tables() -> Iterator[Topic]:
    for number, values in value_tables().items():
        said = comments(constants)[values.__name__]
        rows = tuple(f"{m.value} {name}: {said[name]}".rstrip(": ") for name, m in values.__members__.items())
        yield Topic(f"Table {number}", "table", "", values.__doc__ or "", rows)


def _constants() -> Iterator[Topic]:
    for values in dict.fromkeys(value_tables().values()):
        said = comments(constants)[values.__name__]
        for name, member in values.__members__.items():
            yield Topic(name, "constant", "", said[name] or name, (f"{member.value} in {values.__doc__}",))


def _requirements() -> Iterator[Topic]:
    for rule in Requirement:
        yield Topic(rule.id, "requirement", rule.clause, rule.text, (f"severity: {rule.severity}",))
    for name, version, rules in (
        ("NNEF", "NNEF 1.0.3", NNEF_RULES),
        ("NNEF 2 draft", "the draft of NNEF 2", SKRIPTND_RULES),
        ("OpenVINO", "OpenVINO IR", IR_RULES),
    ):
        for model_rule in rules.values():
            details = (f"severity: {model_rule.severity}", f"a rule of {version}, for models")
            yield Topic(model_rule.id, "requirement", f"{name} {model_rule.clause}", model_rule.text, details)


def _errata() -> Iterator[Topic]:
    for erratum in ERRATA.values():
        text = f"Text: {erratum.text}\nDecision: {erratum.decision}\nEvidence: {erratum.evidence}"
        yield Topic(erratum.id, "erratum", erratum.clauses, erratum.title, tuple(text.splitlines()))


def _errors() -> Iterator[Topic]:
    for name, cls in vars(errors).items():
        if isinstance(cls, type) and issubclass(cls, NnrError):
            text, *rest = _prose(cls)
            bases = ", ".join(base.__name__ for base in cls.__bases__)
            yield Topic(name, "error", "", text, (f"a kind of {bases}", *rest))


def _limits() -> Iterator[Topic]:
    text, *rest = _prose(Limits)
    yield Topic("Limits", "limit", "", text, tuple(rest))
    presets = {"default": Limits(), "strict": Limits.strict(), "unlimited": Limits.unlimited()}
    for name in Limits.names():
        names = next(k for k, line in enumerate(rest) if re.search(rf"\b{name}\b.* : ", line))
        values = (f"{getattr(preset, name):,} in the preset {key}" for key, preset in presets.items())
        yield Topic(name, "limit", "", rest[names + 1].strip(), (rest[names], *values))


def _side_information() -> Iterator[Topic]:
    text, *rest = _prose(record)
    unit = " ".join(rest)
    page = "docs/reference/side-information.md describes it"
    yield Topic("side information", "extension", "", text, (unit, *_prose(SideInfo)[1:], page))
    yield Topic(f"topology_storage_format {record.STORAGE_FORMAT}", "extension", "", unit, (page,))
    text, *rest = _prose(attachments)
    yield Topic(f"topology_storage_format {attachments.STORAGE_FORMAT}", "extension", "", text, (" ".join(rest), page))
    for cls in (SideInfo, TensorRecord, Repeats):
        text, *rest = _prose(cls)
        yield Topic(cls.__name__, "extension", "", text, tuple(rest))
    for code in (FloatCode, IntegerCode, RawCode, PaletteCode, GridCode, DisplacementCode):
        text, *rest = _prose(code)
        yield Topic(code.__name__, "extension", "", text, (f'"kind": "{code.KIND}"', *rest))
        yield Topic(code.KIND, "extension", "", text, (f"a code of side information, {code.__name__}", *rest))


def _outputs() -> Iterator[Topic]:
    for cls in (UnitInfo, UnitNode, Node, TensorBin, Tool, Report, Violation, TensorDigest, ModelReport, ModelFinding):
        text, *rest = _prose(cls)
        yield Topic(cls.__name__, "output", "", text, tuple(rest))


def _prose(cls: type | ModuleType) -> list[str]:
    """Return the lines of a docstring without markup."""
    text = re.sub(r":\w+:`~?([^`]*)`|``", r"\1", inspect.cleandoc(cls.__doc__ or ""))
    return [line for line in text.splitlines() if line and line not in ("Parameters", "Attributes") and line.strip("-")]


def of_kind() -> dict[str, list[str]]:
    """Return the names of all topics by kind."""
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for found in topics().values():
        for topic in found:
            kinds[topic.kind].append(topic.name)
    return kinds
