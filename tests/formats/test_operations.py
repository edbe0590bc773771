"""The table of NNEF's operations equals the specification."""

from __future__ import annotations

import re

import pytest

from nnr_codec.formats.nnef.operations import LEAST, MODES, later_operations, operations
from nnr_codec.formats.nnef.types import declared, spelled

from ..shared import SHARED, needs_shared

# Changes of 1.0.1 to 1.0.5 to operations of 1.0.
_CHANGED = {
    "reshape": {"axis_start": "integer", "axis_count": "integer"},
    "slice": {"stride": "integer[]"},
    "elu": {"alpha": "scalar"},
}
_ADDED = {
    *("sin", "cos", "all_reduce", "any_reduce", "pad", "tile"),
    *("min_max_linear_quantize", "zero_point_linear_quantize"),
}


def signatures() -> dict[str, dict[str, str]]:
    """Return parameters and types of all operations."""
    return {
        name: {parameter.name.name: spelled(declared(parameter.type)) for parameter in fragment.parameters}
        for name, fragment in operations().items()
    }


def test_there_are_104_operations_and_14_later_ones() -> None:
    assert len(later_operations()) == 14
    assert len(operations()) == 104 + 14


@needs_shared
def test_names_and_types_equal_the_specification() -> None:
    """The text is NNEF 1.0, with errors of its extraction: ``debbox``, comments, blanks."""
    assert SHARED
    text = (SHARED / "spec" / "khronos-nnef-1.0-rev3-2018.txt").read_text("utf-8")
    chapter = re.sub(r"#.*", "", text[text.rindex("4.1.1. External Data Sources") : text.index("Chapter 5. Storing")])
    printed: dict[str, dict[str, str]] = {}
    for name, parameters in re.findall(r"fragment (\w+)\s*(?:<[^>]*>)?\s*\((.*?)\)\s*->", chapter, re.DOTALL):
        found = re.findall(r"(\w+): (\(integer,integer\)\[\]|[\w<>?]+(?:\[\])?)", parameters)
        printed[name.replace("debbox", "debox")] = {
            parameter: type_.replace("integer,", "integer, ") + ("<>" if type_ == "tensor" else "")
            for parameter, type_ in found
        }
    # Examples, and definitions of compound operations.
    for name in [name for name in printed if name.startswith(("_", "calculate_"))]:
        del printed[name]
    ours = signatures()
    assert len(printed) == 96
    assert set(ours) - set(printed) == _ADDED | set(later_operations())
    for name, parameters in printed.items():
        assert ours[name] == parameters | _CHANGED.get(name, {}), name
        assert list(ours[name]) == [*parameters, *_CHANGED.get(name, {})]


def test_values_are_of_parameters_that_there_are() -> None:
    ours = signatures()
    for name, parameter in MODES:
        assert ours[name][parameter] == "string"
    for parameter in LEAST:
        assert any(parameter in parameters for parameters in ours.values())


@pytest.mark.parametrize(
    ("name", "generic", "default"), [("conv", False, ""), ("copy", True, ""), ("variable", True, "scalar")]
)
def test_generic_operations(name: str, generic: bool, default: str) -> None:
    fragment = operations()[name]
    assert (fragment.generic, fragment.generic_default) == (generic, default)
