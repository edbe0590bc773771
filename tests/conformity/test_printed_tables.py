"""Comparison of tables.py with the tables printed in clause 6.3 of the standard, whose text is not in the project."""

from __future__ import annotations

import ast
import contextlib
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nnr_codec.syntax import TABLES, structures, tables

from ..shared import standard_text
from .coded import Code, CodeError, expression
from .mutants import Mutation, mutations
from .printed import Printed, PrintError, Table, bare, printed_tables

CODE = Code(Path(tables.__file__).read_text(encoding="utf-8"))
LISTED: dict[str, list[dict[str, Any]]] = tomllib.loads(
    (Path(__file__).parent / "deviations.toml").read_text(encoding="utf-8")
)
each_table = pytest.mark.parametrize("name", CODE.functions)


@pytest.fixture(scope="module")
def standard() -> dict[str, Table]:
    """Return the printed tables."""
    return printed_tables(standard_text())


def expected_rows(name: str, standard: dict[str, Table]) -> list[str]:
    """Return the printed rows with the listed deviations, each of which must be found exactly once."""
    rows = Printed(standard[name]).rows
    for entry in LISTED["deviation"]:
        if entry["table"] == name:
            old, new = entry["printed"], entry["coded"]
            found = [k for k in range(len(rows)) if rows[k : k + len(old)] == old]
            assert old != new
            assert len(found) == 1, f"{old} is printed {len(found)} times in {name}()"
            rows[found[0] : found[0] + len(old)] = new
    return rows


@each_table
def test_table_is_as_printed(name: str, standard: dict[str, Table]) -> None:
    assert CODE.rows(CODE.functions[name]) == expected_rows(name, standard)


@each_table
def test_clause(name: str, standard: dict[str, Table]) -> None:
    if name in TABLES:  # a table that other tables call by name has no structure of its own
        assert TABLES[name].clause == CODE.clauses[name] == standard[name].clause


def test_all_printed_tables_are_accounted_for(standard: dict[str, Table]) -> None:
    elsewhere = [entry["table"] for entry in LISTED["elsewhere"]]
    assert sorted([*CODE.functions, *elsewhere]) == sorted(standard)
    rows = sum(len(Printed(standard[name]).rows) for name in CODE.functions)
    print(f"{len(CODE.functions)} tables, {rows} printed rows, {len(LISTED['deviation'])} listed deviations")
    assert len(CODE.functions) == 23
    assert rows > 250


def test_each_listed_deviation_is_explained() -> None:
    for entry in LISTED["deviation"] + LISTED["elsewhere"]:
        assert entry["reason"]
    assert {entry["table"] for entry in LISTED["deviation"]} <= set(CODE.functions)


def test_cb_zero_offset_is_as_printed(standard: dict[str, Table]) -> None:
    """It is the only derived variable whose formula is an assignment inside a table."""
    for node in ast.walk(ast.parse(Path(structures.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == "cb_zero_offset":
            result = node.body[-1]
            assert isinstance(result, ast.Return)
            assert result.value
            assert Printed(standard["integer_codebook"]).assigned["cb_zero_offset"] == bare(expression(result.value))
            return
    pytest.fail("structures.py has no cb_zero_offset")


# ------------------------------------------------------------------------------------------------ the checker, checked
@contextlib.contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """Return the syntax tree with a mistake in it."""
    old = getattr(mutation.node, mutation.field)
    setattr(mutation.node, mutation.field, mutation.value)
    try:
        yield
    finally:
        setattr(mutation.node, mutation.field, old)


def test_injected_mistakes_are_caught(standard: dict[str, Table]) -> None:
    caught: Counter[str] = Counter()
    without_convention = 0
    missed = []
    for name, function in CODE.functions.items():
        expected = expected_rows(name, standard)
        for mutation in list(mutations(function)):
            with applied(mutation):
                try:
                    same = CODE.rows(function) == expected
                except CodeError:
                    same = False
                    without_convention += 1
                if same:
                    missed.append(f"{name}: {mutation.kind} in {ast.unparse(mutation.node)}")
                else:
                    caught[mutation.kind] += 1
        assert CODE.rows(function) == expected
    print(f"{caught.total()} injected mistakes caught ({without_convention} without a convention): {dict(caught)}")
    assert not missed
    assert caught.total() - without_convention > 1000
    assert len(caught) > 15


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("u(5)", "u(6)"),
        ("st(v)", "bs(v)"),
        ("NNR_PT_FLOAT ", "NNR_PT_INT "),
        ("== 1 )", "== 0 )"),
        ("!= 0", "== 0"),
        ("&& codebook_present_flag", "|| codebook_present_flag"),
        ("scan_order > 0", "scan_order >= 0"),
        ("j < NumBlockRowsMinus1", "j <= NumBlockRowsMinus1"),
        ("j=0", "j=1"),
        ("CbZeroOffsetDC", "CbZeroOffset"),
        ("dq_state_list[ j ]", "dq_state_list"),
        ("{", "", ),
        ("else", ""),
    ],
)  # fmt: skip
def test_changes_of_the_print_are_noticed(old: str, new: str, standard: dict[str, Table]) -> None:
    """Changes of the text are detected as well."""
    printed = standard["nnr_compressed_data_unit_header"]
    rows = Printed(printed).rows
    for k, line in enumerate(printed.lines):
        if old in line:
            changed = Table(printed.clause, [*printed.lines[:k], line.replace(old, new, 1), *printed.lines[k + 1 :]])
            with contextlib.suppress(PrintError):  # no longer a table
                assert Printed(changed).rows != rows
            break
    else:
        pytest.fail(f"{old!r} is not printed")
