"""Errors are identified by their class and attributes, never by their text."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import errors
from nnr_codec.errors import EncodeError, FormatError
from nnr_codec.formats.nnef.parser import parse
from nnr_codec.rules import Requirement

from .builder import Bitstream

ROOT = Path(__file__).parents[1]

#: Functions that search, or escape, the texts of other programs: click, the operating system, tract, PyTorch.
OTHERS = {
    ("cli/errors.py", "report"),
    ("cli/errors.py", "_explain"),
    ("nnr_codec/bitstream/remote.py", "_failure"),  # texts of other libraries, which may have a login
    ("nnr_codec/runtime.py", "main"),
    ("nnr_codec/formats/pytorch/__init__.py", "_line"),
}

#: Methods that search a text; `split` only with an argument.
SEARCHES = {
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
    "replace",
    "find",
    "index",
    "count",
    "translate",
} | {
    *("partition", "rpartition", "split", "rsplit", "strip", "lstrip", "rstrip"),
    *("search", "match", "fullmatch", "findall", "finditer", "sub", "subn"),
}


def searches(function: ast.AST) -> Iterator[int]:
    """Return the lines of a function that search the text of an error, or replace it."""
    nodes = list(ast.walk(function))
    errors = {node.name for node in nodes if isinstance(node, ast.ExceptHandler)}
    errors |= {node.arg for node in nodes if isinstance(node, ast.arg) and takes_error(node)}
    texts: set[str] = set()

    def is_error(node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in errors

    def is_text(node: ast.expr) -> bool:
        parts = list(ast.walk(node))
        return (
            any(isinstance(part, ast.Name) and part.id in texts for part in parts)
            or any(isinstance(part, ast.Attribute) and is_message(part) for part in parts)
            or any(isinstance(part, ast.Call) and is_str(part) for part in parts)
        )

    def is_message(node: ast.expr) -> bool:
        return isinstance(node, ast.Attribute) and node.attr in ("args", "message") and is_error(node.value)

    def is_str(node: ast.Call) -> bool:
        return isinstance(node.func, ast.Name) and node.func.id in ("str", "repr") and any(map(is_error, node.args))

    assignments = [node for node in nodes if isinstance(node, ast.Assign)]
    for node in assignments:
        if is_text(node.value):
            texts |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    yield from (node.lineno for node in assignments if any(map(is_message, node.targets)))
    for call in nodes:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in SEARCHES:
            joins_words = call.func.attr == "split" and not call.args
            if not joins_words and (is_text(call.func.value) or any(map(is_text, call.args))):
                yield call.lineno
        elif isinstance(call, ast.Compare) and any(map(is_text, call.comparators)):
            yield call.lineno


def takes_error(argument: ast.arg) -> bool:
    """Return whether a parameter is annotated as an exception."""
    names = [part.id for part in ast.walk(argument) if isinstance(part, ast.Name)]
    return any(name.endswith(("Error", "Exception", "Warning")) for name in names)


def test_the_search_finds_what_it_is_for() -> None:
    for line in (
        "re.search('unit', str(error))",
        "str(error).removeprefix('a')",
        "'a' in error.message",
        "error.args = ('b',)",
        "text = f'{1}: ' + str(error); text.startswith('a')",
    ):
        source = f"try: pass\nexcept ValueError as error:\n    {line}"
        assert list(searches(ast.parse(source))), line
    assert not list(searches(ast.parse("try: pass\nexcept ValueError as error:\n    print(str(error), error.rule)")))


@pytest.mark.medium
def test_no_code_looks_into_the_text_of_our_errors() -> None:
    found, seen = [], 0
    for path in [*(ROOT / "nnr_codec").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                seen += 1
                name = path.relative_to(ROOT).as_posix()
                if (name, node.name) not in OTHERS:
                    found += [f"{name}:{line} in {node.name}" for line in searches(node)]
    assert seen > 3000
    assert found == []


def test_an_error_of_options_names_them_as_the_caller_does() -> None:
    try:
        nnr.EncoderConfig(exact=True, snr=30)
    except EncodeError as error:
        found = pickle.loads(pickle.dumps(error))
    assert (found.option, found.where) == ("exact", "")
    assert str(found) == "exact=True keeps every bit, so snr has no effect; omit it"
    assert found.named(str.upper) == "EXACT=TRUE keeps every bit, so SNR has no effect; omit it"


def test_an_error_of_a_rule_says_which_and_keeps_the_option() -> None:
    with pytest.raises(EncodeError) as caught:
        nnr.EncoderConfig(rules=[nnr.Rule("a*", rate=99)])
    assert (caught.value.option, caught.value.where) == ("rate", "rule 'a*'")


def test_an_error_of_a_text_has_line_column_and_clause() -> None:
    with pytest.raises(FormatError) as caught:
        parse(b"version 1.0;\ngraph g(x) -> (y) {\n  y = ;\n}", nnr.Limits())
    error = caught.value
    assert (error.where, error.line, error.column, error.clause) == ("graph.nnef", 3, 7, "3.2")
    assert str(error) == f"graph.nnef:3:7: {error.message} (NNEF 1.0, 3.2)"
    error.within("model.tgz")
    assert str(error) == f"model.tgz: graph.nnef:3:7: {error.message} (NNEF 1.0, 3.2)"


def test_an_error_of_a_bitstream_has_rule_clause_unit_and_element() -> None:
    with pytest.raises(nnr.ElementError) as caught:
        nnr.decode(Bitstream().str_(1).mps().mps().data)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.rule, error.clause) == (Requirement.SINGLE_MPS, "6.2.3")
    assert (error.unit, error.unit.number) == ("unit 2 (NNR_MPS)", 2)


def test_an_error_of_a_limit_names_it_and_says_what_to_do() -> None:
    with pytest.raises(nnr.LimitError) as caught:
        nnr.Limits(max_units=2).check("max_units", 3, "units of the bitstream", "unit 2")
    error = caught.value
    assert (error.rule, error.option) == (Requirement.LIMITS, "max_units")
    assert str(error) == f"unit 2: units of the bitstream: 3 is more than max_units=2; {error.hint}"


def test_an_error_that_becomes_another_keeps_its_identity() -> None:
    error = nnr.ElementError("too much", rule=Requirement.INTEGER_RANGE, tensor="w", path="scan_order")
    found = error.converted(EncodeError)
    assert (str(found), found.rule, found.tensor) == ("scan_order: too much", Requirement.INTEGER_RANGE, "w")


def test_an_error_of_overrides_names_the_tensor() -> None:
    for options, option in (({"rate": 99}, "rate"), ({"snr": 3, "qp": 1}, "qp"), ({"exact": True, "snr": 3}, "exact")):
        with pytest.raises(EncodeError) as caught:
            nnr.EncoderConfig(overrides={"a": {}, "conv1": options})
        found = pickle.loads(pickle.dumps(caught.value))
        assert (found.tensor, found.option, found.where) == ("conv1", option, "overrides of 'conv1'")
        assert str(found).startswith("overrides of 'conv1': ")
    with pytest.raises(EncodeError) as caught:
        nnr.EncoderConfig(exact=True, overrides={"conv1": {"rate": 2}})
    assert (caught.value.tensor, caught.value.where) == ("conv1", "overrides of 'conv1'")


MODEL = {"w": np.arange(36, dtype="f4").reshape(6, 6), "b": np.ones(6, "f4")}


@pytest.mark.parametrize(
    ("encode", "option"),
    [
        (lambda: nnr.encode(MODEL, reduce="prune(ratio=0.5)"), "reduce"),
        (lambda: nnr.encode(MODEL, reduce="prune"), "reduce"),
        (lambda: nnr.encode(MODEL, reduce="prune(ratio=0.5,scope=all)"), "reduce"),
        (lambda: nnr.encode(MODEL, reduce="unify"), "reduce"),
        (lambda: nnr.encode(MODEL, reduce="unify(ratio=0.5,threshold=1)"), "reduce"),
        (lambda: nnr.encode(MODEL, reduce="unify(ratio=0.5,block=1x1)"), "reduce"),
        (lambda: nnr.encode(MODEL, reduce="lowrank(rank=1,error=1)"), "reduce"),
        (lambda: nnr.encode(MODEL, reduce="lowrank(rank=1,form=x)"), "reduce"),
        (lambda: nnr.encode(MODEL, reduce="scale(method=x)"), "reduce"),
        (lambda: nnr.encode(MODEL, reduce="scale(method=gain)"), "reduce"),
        (lambda: nnr.encode(MODEL, reduce="fold"), "reduce"),
        (lambda: nnr.encode(MODEL, reduce="sparsify(ratio=0.5,tensors=x)"), "reduce"),
        (lambda: nnr.encode(MODEL, reduce=[3]), "reduce"),
        (lambda: nnr.encode(MODEL, fold_batchnorm=True), "fold_batchnorm"),
        (lambda: nnr.encode(MODEL, block=True), "block"),
        (lambda: nnr.encode(MODEL, local_scaling=True), "local_scaling"),
        (lambda: nnr.encode({"w": np.zeros(3, bool)}, side_info=False), "side_info"),
        (lambda: nnr.encode({"w": np.float32([[1, np.nan]])}, fixed_point="q7.8"), "fixed_point"),
        (lambda: nnr.encode(MODEL, max_unit_size=3), "max_unit_size"),
        (lambda: nnr.encode(MODEL, sensitivity={"x": 1}), "sensitivity"),
        (lambda: nnr.encode(MODEL, hessians={"w": np.eye(5)}), "hessians"),
        (lambda: nnr.tune(MODEL, lambda model: 0, tolerance=-1, budget=9), "tolerance"),
        (lambda: nnr.UpdateEncoder(profile=0), "profile"),
        (lambda: nnr.UpdateEncoder(block=True), "block"),
        (lambda: nnr.UpdateEncoder(local_scaling=True), "local_scaling"),
        (lambda: nnr.UpdateEncoder(reduce="prune(ratio=0.5)"), "reduce"),
        (lambda: nnr.UpdateEncoder(preset="lossless", fixed_point=None, sbt=0.5), "exact"),
        (lambda: nnr.UpdateEncoder(sbt=2), "sbt"),
        (lambda: nnr.UpdateEncoder(sbt_ternary=0.5), "sbt_ternary"),
        (lambda: nnr.UpdateEncoder(nnr_pre=True, dependent_quantization=True), "nnr_pre"),
        (lambda: nnr.UpdateEncoder(sparsity=2), "sparsity"),
        (lambda: nnr.UpdateEncoder(device_id=-1), "device_id"),
        (lambda: nnr.UpdateEncoder(parent="x"), "parent"),
        (lambda: nnr.encode_update(MODEL, MODEL, lossless=True, quality=3), "lossless"),
    ],
)
def test_errors_after_configuration_name_the_option(encode: Callable[[], object], option: str) -> None:
    with pytest.raises(EncodeError) as caught:
        encode()
    assert caught.value.option == option
    assert option in str(caught.value)


def test_a_warning_names_options_as_the_caller_does() -> None:
    with pytest.warns(nnr.EncodeWarning) as issued:
        nnr.encode(MODEL, topology="external")
    found = pickle.loads(pickle.dumps(issued[0].message))
    assert str(found) == "topology='external' has no effect: the model has no graph"
    assert found.named(lambda option: f"<{option.name}>") == "<topology> has no effect: the model has no graph"


# ------------------------------------------------------------------------------------------------ the page
PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the table on the page that begins with a heading."""
    (table,) = re.findall(rf"^\| {heading} .*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


def test_the_page_has_all_classes_and_attributes() -> None:
    known = {name: cls for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, nnr.NnrError)}
    assert [row[0].strip("`") for row in rows("class")] == list(known)
    for name, also, *_ in rows("class"):
        bases = {base.__name__ for base in known[name.strip("`")].__bases__}
        assert bases - {"NnrError"} == set(re.findall(r"`(\w+)`", also)), name
    samples: dict[str, nnr.NnrError] = {name: cls("x") for name, cls in known.items() if name != "IncompleteError"}
    samples["IncompleteError"] = errors.IncompleteError(2, ["a"])
    listed: dict[str, set[str]] = {}
    for names, owner, _ in rows("attribute"):
        listed.setdefault(owner.strip("`"), set()).update(re.findall(r"`(\w+)`", names))
    assert listed["all"] == set(vars(samples["NnrError"]))
    for owner, cls in known.items():
        own = set(vars(samples[owner])) | {name for name in vars(cls) if name in ("line", "column")}
        inherited = {name for base in cls.__mro__ for name in listed.get(base.__name__, ())}
        assert own - listed["all"] <= inherited, owner
        assert all(hasattr(samples[owner], name) for name in inherited)


def test_the_example_of_the_page_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = re.findall(r"^```(?:python)?\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == printed
