"""The programs in ``tools``: faults found in source files, and reported differences."""

from __future__ import annotations

import ast
import contextlib
import sys
from functools import cache
from typing import Any

import pytest

import nnr_codec as nnr
from nnr_codec.limits import Budget, Limits
from tools import faults, snapshot, switch


@cache
def found() -> list[Any]:
    return list(faults.every_fault())


MODULE = '''"""Text."""

def f(limits, größe):
    limits.check(größe, 3)
    check_size(größe)
    if größe < 2:
        raise ValueError("größe")

class C:
    def g(self, budget):
        try:
            return self._budget.tensor(1)
        except KeyError:
            raise ValueError from None
'''


def test_faults_have_names_that_do_not_depend_on_variables() -> None:
    made = {fault.name: fault.applied(MODULE) for fault in faults.in_python("p/syntax/m.py", MODULE)}
    assert list(made) == [
        "p/syntax/m.py::f::limit-1",
        "p/syntax/m.py::f::arithmetic-1",
        "p/syntax/m.py::f::check-1",
        "p/syntax/m.py::f::guard-1",
        "p/syntax/m.py::f::arithmetic-2",
        "p/syntax/m.py::f::arithmetic-3",
        "p/syntax/m.py::C.g::limit-1",
        "p/syntax/m.py::C.g::arithmetic-1",
        "p/syntax/m.py::C.g::handler-1",
    ]
    assert "if (größe <= 2):" in made["p/syntax/m.py::f::arithmetic-2"]
    assert "if größe < 3:" in made["p/syntax/m.py::f::arithmetic-3"]
    renamed = [fault.name for fault in faults.in_python("p/syntax/m.py", MODULE.replace("größe", "size"))]
    assert renamed == list(made)


GUARDED = """
def check(limits, budget):
    check_text(3)

def limit(limits, budget):
    limits.check("max_dims", 9, "dimensions")

def limit_of_a_value(limits, budget):
    return budget.tensor(9 * (1,), 1, "w")

def guard(limits, budget):
    if limits:
        raise ValueError

def guard_of_a_loop(limits, budget):
    for _ in "xy":
        raise ValueError

def handler(limits, budget):
    try:
        raise KeyError
    except KeyError:
        raise ValueError from None
"""


def refusing(_: int) -> None:
    raise ValueError


@pytest.mark.parametrize("name", ["check", "limit", "limit_of_a_value", "guard", "guard_of_a_loop", "handler"])
def test_a_guard_that_is_switched_off_refuses_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {"check_text": refusing}
    monkeypatch.setitem(sys.modules, "switch", switch)
    exec(faults.with_switches("m.py", GUARDED, [*faults.in_python("p/m.py", GUARDED)]), made)
    limits = Limits(max_dims=3)
    fired: list[str] = []
    monkeypatch.setattr(switch, "_fired", fired.append)
    with pytest.raises((ValueError, nnr.LimitError)):
        made[name](limits, Budget(limits))
    fault = f"p/m.py::{name}::{name.partition('_')[0]}-1"
    assert fired == [fault]
    monkeypatch.setattr(switch, "fault", fault)
    with pytest.raises(KeyError) if name == "handler" else contextlib.nullcontext():
        made[name](limits, Budget(limits))
    assert fired == [fault]


def test_faults_of_compiled_code_are_outside_of_comments() -> None:
    source = "static int f(int a) {\n    // 1 < 2\n    return a < 2; /* 3 */\n}\n"
    made = {fault.name: fault.applied(source).splitlines()[2] for fault in faults.in_compiled("k.h", source)}
    assert made == {"k.h::f::kernel-1": "    return a <= 2; /* 3 */", "k.h::f::kernel-2": "    return a < 3; /* 3 */"}


CYTHON = """
cdef int f(int a) noexcept nogil:
    if a > 2:
        x = 1
        return ERROR
    c.invalid |= a > 3
    return ERROR if a else OK

def g(a):
    if a:
        pass
    elif not a:
        raise ValueError(
            "no a"
        )
"""


def test_guards_of_compiled_code_are_conditions_of_errors() -> None:
    made = [fault for fault in faults.in_compiled("k.pyx", CYTHON) if fault.kind == "guard"]
    assert [(fault.name, fault.old) for fault in made] == [
        ("k.pyx::f::guard-1", "a > 2"),
        ("k.pyx::f::guard-2", "a > 3"),
        ("k.pyx::f::guard-3", "a"),
        ("k.pyx::g::guard-1", "not a"),
    ]
    assert 'elif guard(b"k.pyx::g::guard-1", not a):' in made[-1].applied(CYTHON)


@pytest.mark.slow
def test_each_fault_is_another_module_with_a_name_of_its_own() -> None:
    assert len({fault.name for fault in found()}) == len(found())
    for fault in faults.sample(found(), 200, seed=1):
        source = faults.source_of(fault.file).read_text(encoding="utf-8")
        changed = fault.applied(source)
        assert changed != source
        if fault.file.endswith(".py"):
            assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), fault.name


@pytest.mark.medium
def test_a_sample_has_all_kinds_and_depends_on_its_seed() -> None:
    first = faults.sample(found(), 40, seed=1)
    assert {fault.kind for fault in first} == {*faults.KINDS}
    assert first == faults.sample(found(), 40, seed=1) != faults.sample(found(), 40, seed=2)


def test_records_differ_in_facts_of_common_sections_and_not_in_measurements() -> None:
    one = {"facts": {"x/a": "1", "x/b": "2", "x/c": "3", "y/e": "6"}, "measurements": {"time": 1.0, "memory": 100}}
    other = {"facts": {"x/a": "1", "x/b": "4", "x/d": "5"}, "measurements": {"time": 1.1, "memory": 200}}
    assert snapshot.differences(one, other) == ["x/b: 2 != 4", "x/c: 3 != absent", "x/d: absent != 5"]
    assert snapshot.deviations(one, other) == ["measured: memory: 100 -> 200"]
    assert snapshot.failures({"facts": {"x": "PASS 0a", "y": "FAIL 0b", "z": "CRASH KeyError: 1"}}) == [
        "unexpected: y: FAIL 0b",
        "unexpected: z: CRASH KeyError: 1",
    ]
