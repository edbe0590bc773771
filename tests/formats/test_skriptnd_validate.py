"""``nnr verify`` of SkriptND models: each rule by a model that breaks it alone, and the models of Khronos."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats.findings import MOST
from nnr_codec.formats.skriptnd.rules import RULES
from nnr_codec.formats.skriptnd.validate import validate

from ..shared import SHARED, needs_shared
from .support import dat, head, write_folder
from .test_skriptnd import MAIN, WEIGHT, files
from .test_tensorfile import vendor_file


def model(
    changes: dict[str, bytes | None] | None = None, replace: tuple[bytes, bytes] = (b"", b"")
) -> dict[str, bytes]:
    """Return the model of test_skriptnd with other files, or with other text in its main module."""
    content: dict[str, bytes | None] = {**files(), "main.sknd": MAIN.replace(*replace), **(changes or {})}
    return {name: data for name, data in content.items() if data is not None}


_VARIABLE = b"w: real[4,4];"
_TWO_SPELLINGS = {
    **{name: dat(WEIGHT) for name in ("%61ux.dat", "aux.dat")},
    "a.sknd": b"operator f { @variable { aux: real; } }",
}
#: Packed items with a bit after the last one.
_PACKED = head(2, 1, (3,)) + b"\xf0"
#: Violated rule, the model, and the place of the finding.
BROKEN: list[tuple[str, dict[str, bytes], tuple[str, int, int], str]] = [
    ("sknd-text", model(replace=(b"It's", b"\xff")), ("main.sknd", 0, 0), ""),
    ("sknd-text", model({"x.sknd": b"\0"}), ("x.sknd", 0, 0), ""),
    ("sknd-syntax", model(replace=(b"real[4,4]", b"real[4,4")), ("main.sknd", 7, 28), "2.16"),
    ("sknd-syntax", model(replace=(b"w: real[4", b"w: quux[4")), ("main.sknd", 7, 20), "2.3"),
    ("sknd-syntax", model(replace=(b"y: real", b"x: real")), ("main.sknd", 6, 15), "2.16"),
    ("sknd-syntax", model({"x.sknd": b"operator f {\n @input { x: real[; } }"}), ("x.sknd", 2, 19), "2.16"),
    ("sknd-syntax", model({"x.sknd": b"graph f { }"}), ("x.sknd", 1, 1), "2.15"),
    ("sknd-version", model(replace=(b"import nn", b"version 1.0;\nimport nn")), ("main.sknd", 2, 9), "2.16"),
    ("sknd-path", model({"aux.sknd": b""}), ("aux.sknd", 0, 0), "2.15"),
    ("sknd-path", model({**_TWO_SPELLINGS}), ("aux.dat", 0, 0), "2.15"),
    ("sknd-path", model({"a.dat/main.Net.b.dat": dat(WEIGHT)}), ("a.dat/main.Net.b.dat", 0, 0), "2.15"),
    ("sknd-import", model(replace=(b"nn, own", b"nn, own, a.ops")), ("main.sknd", 0, 0), "2.15"),
    ("sknd-operator", model(replace=(b"own.f(", b"own.g(")), ("main.sknd", 8, 36), "2.15"),
    ("sknd-operator", model(replace=(b"own.f(", b"math.f(")), ("main.sknd", 8, 36), "2.15"),
    ("sknd-operator", model(replace=(b"own.f(", b"f(")), ("main.sknd", 8, 36), "2.15"),
    ("sknd-name", model(replace=(b"own.f(z, w)", b"own.f(z, v)")), ("main.sknd", 8, 45), "2.2"),
    ("sknd-name", model(replace=(_VARIABLE, b"w: real[n,4];")), ("main.sknd", 7, 25), "2.2"),
    ("sknd-extent", model(replace=(_VARIABLE, b"w: real[4,4 - 4];")), ("main.sknd", 7, 27), "2.6"),
    ("sknd-extent", model(replace=(_VARIABLE, b"w: real[4,4 / 0];")), ("main.sknd", 7, 27), "2.4"),
    ("sknd-data-missing", model({"main.Net.w.dat": None}), ("main.sknd", 7, 17), "2.7"),
    ("sknd-data-shape", model(replace=(_VARIABLE, b"w: real[4,5];")), ("main.sknd", 7, 17), "2.7"),
    ("sknd-data-type", model({"main.Net.w.dat": dat(np.ones((4, 4), np.int32))}), ("main.sknd", 7, 17), "2.7"),
    ("sknd-data-variable", model({"v.dat": dat(WEIGHT)}), ("main.sknd", 4, 7), "2.7"),
    ("sknd-data-file", model({"main.Net.w.dat": dat(WEIGHT)[:-1]}), ("main.Net.w.dat", 0, 0), "2.7"),
    ("sknd-data-file", model({"main.Net.w.dat": _PACKED}), ("main.Net.w.dat", 0, 0), "2.7"),
    ("sknd-vendor-data", model({"main.Net.w.dat": vendor_file((4, 4), bytes(9))}), ("main.Net.w.dat", 0, 0), "2.7"),
    ("sknd-vendor-file", model({"README": b""}), ("README", 0, 0), "2.15"),
]  # fmt: skip


def findings(report: nnr.ModelReport) -> list[nnr.ModelFinding]:
    return [*report.violations, *report.warnings, *report.notes]


@pytest.mark.parametrize(("rule", "content", "place", "clause"), BROKEN)
def test_each_rule_is_found_alone(
    rule: str, content: dict[str, bytes], place: tuple[str, int, int], clause: str, tmp_path: Path
) -> None:
    found = findings(nnr.verify_model(write_folder(tmp_path / "m", content)))
    assert [(f.rule, (f.file, f.line, f.column)) for f in found] == [(rule, place)]
    assert clause in ("", found[0].clause)
    assert str(found[0]).endswith(f"({rule}, NNEF 2 draft {found[0].clause})")


def test_every_rule_is_tried() -> None:
    tried = {rule for rule, *_ in BROKEN}
    assert tried == set(RULES)


def test_a_valid_model_and_its_text_alone(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {**files(), ".git/x.dat": b""})
    for source in (folder, folder / "main.sknd", MAIN, io.BytesIO(MAIN)):
        report = nnr.verify_model(source)
        assert findings(report) == []
        assert report.variables == 1
    for path in folder.glob("**/*.dat"):
        path.unlink()
    assert findings(nnr.verify_model(folder / "main.sknd")) == []
    assert [found.rule for found in findings(nnr.verify_model(folder))] == ["sknd-data-missing"]


def test_several_findings_are_reported_at_once(tmp_path: Path) -> None:
    content = model({"own.sknd": b"operator f {", "main.Net.w.dat": b"", "x": b""}, (b"(x);", b"(q);"))
    found = findings(nnr.verify_model(write_folder(tmp_path / "m", content)))
    assert [(each.rule, each.file) for each in found] == [
        ("sknd-data-file", "main.Net.w.dat"),
        ("sknd-name", "main.sknd"),
        ("sknd-syntax", "own.sknd"),
        ("sknd-vendor-file", "x"),
    ]


def test_findings_and_resources_are_limited(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", model(replace=(b"own.f(", b"own.g(" + b"q," * 200)))
    assert len(nnr.verify_model(folder).violations) == MOST + 1
    write_folder(folder, files())
    modules = sum(len(name) + len(files()[name]) for name in ("own.sknd", "sub/deep/ops.sknd"))
    for limits in (
        nnr.Limits(max_topology_bytes=len(MAIN) - 1),
        nnr.Limits(max_side_info_bytes=modules - 1),
        nnr.Limits(max_names=4),
        nnr.Limits(max_total_bytes=79),
    ):
        with pytest.raises(LimitError):
            nnr.verify_model(folder, limits=limits)
    with pytest.raises(LimitError):
        nnr.verify_model(MAIN, limits=nnr.Limits(max_topology_bytes=len(MAIN) - 1))
    (folder / "main.sknd").unlink()
    with pytest.raises(FormatError, match=r"main\.sknd is missing"):
        validate(folder)


@needs_shared
def test_models_of_khronos_have_no_findings(tmp_path: Path) -> None:
    """Also in the modules of the standard library, which are copied beside each model."""
    assert SHARED
    assert findings(nnr.verify_model(SHARED / "models" / "digits_cnn.sknd")) == []
    project = SHARED / "nnef_corpus" / "khronos_nnef_tools_v2_sknd" / "skriptnd-pyproject"
    for path in (project / "skriptnd" / "stdlib").glob("*.sknd"):
        shutil.copy(path, tmp_path)
    for path in ("perceptron.sknd", "alexnet.sknd", "skriptnd/test/unittest.sknd"):
        shutil.copy(project / path, tmp_path / "main.sknd")
        assert findings(nnr.verify_model(tmp_path / "main.sknd")) == []
