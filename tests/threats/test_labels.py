"""T36: labels as paths, and checked models: the cost of a report."""

from __future__ import annotations

import pytest

import nnr_codec as nnr
from nnr_codec.errors import FormatError
from nnr_codec.formats import findings
from nnr_codec.formats.nnef.labels import label_path, label_paths


def document(body: str, fragments: str = "") -> bytes:
    return f"version 1.0; {fragments} graph g(x) -> (y) {{ x = external(shape = [1]); y = copy(x); {body} }}".encode()


@pytest.mark.parametrize("label", ["../x", "a/../../x", "..\\x", "a/..", "//x", "/../x", "a/.../x"])
def test_t36_ways_out(label: str) -> None:
    with pytest.raises(FormatError, match="cannot be a file name"):
        label_path(label)


@pytest.mark.parametrize("label", ["C:x", "a\0", "a b", "%2e%2e", "a:b", "\N{FULLWIDTH FULL STOP}"])
def test_t36_characters(label: str) -> None:
    with pytest.raises(FormatError, match="characters"):
        label_path(label)


def test_t36_long_names() -> None:
    with pytest.raises(FormatError, match="too long"):
        label_path("a" * 252)


@pytest.mark.parametrize("labels", [("a", "/a"), ("a/b", "a\\b"), ("a./b", "a/b")])
def test_t36_labels_of_one_file(labels: tuple[str, ...]) -> None:
    with pytest.raises(FormatError, match="have the same file"):
        label_paths(labels)


def test_t36_a_folder_where_a_file_is() -> None:
    with pytest.raises(FormatError, match="requires a folder"):
        label_paths(["a", "a.dat/b"])


def test_reports_are_bounded() -> None:
    assert len(nnr.verify_model(document("y = x(); " * 1000)).violations) <= 2 * findings.MOST


def test_messages_are_bounded() -> None:
    report = nnr.verify_model(document(f"{'z' * 4000} = copy({'q' * 4000});"))
    assert len(str(report.violations[0])) < 1000


def test_types_are_bounded() -> None:
    """Each line would double the type of the line before."""
    lines = "".join(f"t{k + 1} = (t{k}, t{k}); u{k + 1} = (u{k}, u{k}); v{k} = [t{k}, u{k}];" for k in range(12))
    text = document(
        "", f"fragment f(t0: tensor<scalar>, u0: string) -> (b: tensor<scalar>) {{ b = copy(t0); {lines} }}"
    )
    found = [violation.rule for violation in nnr.verify_model(text).violations]
    assert found.count("expression-type") == 6  # larger labels have no type that could be wrong
