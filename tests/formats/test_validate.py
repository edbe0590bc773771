"""Rules of NNEF models: for each rule of their files a model that breaks only this rule, and all available models."""

from __future__ import annotations

import gzip
import io
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats.findings import MOST
from nnr_codec.formats.nnef.rules import RULES

from ..shared import SHARED, needs_shared
from .support import SYNTHETIC, dat, graph_text, minimal, regular, tar_bytes, write_folder
from .test_check import BROKEN
from .test_shapes import BROKEN as SHAPES

pytestmark = pytest.mark.medium

_WEIGHT = np.array([[1.5, -2.0]], np.float32)
_ENTRY = b'"v0": min_max_linear_quantize(min = 0.0, max = 1.0, bits = 8, signed = false, symmetric = false);\n'
_VARIABLE = b"v0 = variable<scalar>(shape = [1, 2], label = 'a/w');"


def model(
    changes: dict[str, bytes | None] | None = None, replace: tuple[bytes, bytes] = (b"", b"")
) -> dict[str, bytes]:
    """Return the smallest model with other files, or with other text in its graph."""
    files = minimal()
    files["graph.nnef"] = files["graph.nnef"].replace(*replace)
    for name, data in (changes or {}).items():
        if data is None:
            del files[name]
        else:
            files[name] = data
    return files


def second(text: bytes, **files: bytes) -> dict[str, bytes]:
    """Return the smallest model with another variable in line 6, and more files."""
    return {**model(replace=(_VARIABLE, _VARIABLE + b"\n    " + text)), **files}


def archive(files: dict[str, bytes]) -> bytes:
    return tar_bytes(regular(files))


def quantized(data: bytes) -> bytes:
    """Return a tensor file with items of type 3."""
    return data[:48] + b"\3" + data[49:]


_QUANT = "graph.quant"
#: Broken rules, the model, and the position of the finding.
FILES: list[tuple[str, dict[str, bytes], tuple[str, int, int]]] = [
    ("text", model(replace=(b"graph g", b"# \xff\ngraph g")), ("graph.nnef", 0, 0)),
    ("text", model({_QUANT: b"\0"}), (_QUANT, 0, 0)),
    ("syntax", model(replace=(b"copy(x)", b"copy x")), ("graph.nnef", 6, 14)),
    ("syntax", model(replace=(b"graph g", b"graph for")), ("graph.nnef", 2, 7)),
    ("version", model(replace=(b"version 1.0", b"version 2.0")), ("graph.nnef", 1, 9)),
    ("label-path", model({"a/w.dat": None}, (b"'a/w'", b"'../w'")), ("graph.nnef", 5, 10)),
    (
        "label-path",
        second(b"v1 = variable(shape = [1, 2], label = 'a\\\\w');", **{"a\\w.dat": dat(_WEIGHT)}),
        ("graph.nnef", 0, 0),
    ),
    ("shared-label", second(b"v1 = variable(shape = [2, 1], label = 'a/w');"), ("graph.nnef", 6, 10)),
    ("shared-label", second(b"v1 = variable<integer>(shape = [1, 2], label = 'A/w');"), ("graph.nnef", 6, 10)),
    ("data-missing", model({"a/w.dat": None, "b.dat": dat(_WEIGHT)}), ("a/w.dat", 0, 0)),
    ("data-file", model({"a/w.dat": dat(_WEIGHT)[:-1]}), ("a/w.dat", 0, 0)),
    ("data-file", model({"a/w.dat": b"\0" * 200}), ("a/w.dat", 0, 0)),
    ("vendor-data", model({"a/w.dat": dat(_WEIGHT)[:50] + b"TR" + dat(_WEIGHT)[52:]}), ("a/w.dat", 0, 0)),
    ("data-shape", model({"a/w.dat": dat(_WEIGHT.T)}), ("a/w.dat", 0, 0)),
    ("data-type", model({"a/w.dat": dat(np.array([[True, False]]))}), ("a/w.dat", 0, 0)),
    (
        "data-shared",
        second(b"v1 = variable(shape = [1, 2], label = 'A/W');", **{"A/W.dat": dat(_WEIGHT + 1)}),
        ("A/W.dat", 0, 0),
    ),
    ("vendor-file", model({"opt.bin": b""}), ("opt.bin", 0, 0)),
    ("vendor-file", model({"a/w.dat.q8": b""}), ("a/w.dat.q8", 0, 0)),
    ("vendor-file", model({"a/b.dat": b""}), ("a/b.dat", 0, 0)),
    ("quant-syntax", model({_QUANT: b"\n 'v0': f(;"}), (_QUANT, 2, 10)),
    ("quant-unique", model({_QUANT: _ENTRY + _ENTRY}), (_QUANT, 2, 1)),
    ("quant-identifier", model({_QUANT: _ENTRY.replace(b"v0", b"a/w")}), (_QUANT, 1, 1)),
    ("operation-known", model({_QUANT: b"'v0': f(bits = 8);"}), (_QUANT, 1, 7)),
    ("argument-missing", model({_QUANT: b"'v0': logarithmic_quantize(max = 1.0);"}), (_QUANT, 1, 7)),
    ("argument-twice", model({_QUANT: b"'v0': logarithmic_quantize(max = 1.0, bits = 8, bits = 8);"}), (_QUANT, 1, 49)),
    ("argument-type", model({_QUANT: b"'v0': logarithmic_quantize(max = 1, bits = 8);"}), (_QUANT, 1, 34)),
    ("argument-type", model({_QUANT: b"'v0': logarithmic_quantize(max = 1.0, bits = [8]);"}), (_QUANT, 1, 46)),
    ("quant-argument", model({_QUANT: b"'v0': logarithmic_quantize(1.0, bits = 8);"}), (_QUANT, 1, 28)),
    ("quant-argument", model({_QUANT: b"'v0': logarithmic_quantize(x = 1.0, max = 1.0, bits = 8);"}), (_QUANT, 1, 28)),
    ("use-before-assignment", model({_QUANT: b"'v0': logarithmic_quantize(max = x, bits = 8);"}), (_QUANT, 1, 34)),
    ("quant-missing", model({"a/w.dat": quantized(dat(np.array([[1, -2]], np.int32)))}), ("a/w.dat", 0, 0)),
]  # fmt: skip


def findings(report: nnr.ModelReport) -> list[nnr.ModelFinding]:
    return [*report.violations, *report.warnings, *report.notes]


@pytest.mark.parametrize("kind", ["folder", "tar", "tgz"])
@pytest.mark.parametrize(("rule", "files", "place"), FILES)
def test_each_rule_is_found_alone(
    tmp_path: Path, rule: str, files: dict[str, bytes], place: tuple[str, int, int], kind: str
) -> None:
    source: Path | bytes
    if kind == "folder":
        source = write_folder(tmp_path / "m.nnef", files)
    else:
        source = archive(files) if kind == "tar" else gzip.compress(archive(files))
    found = findings(nnr.verify_model(source))
    if rule == "data-missing":
        assert found.pop().rule == "vendor-file"
    assert [(f.rule, (f.file, f.line, f.column)) for f in found] == [(rule, place)]
    assert found[0].message


def test_every_rule_is_tried() -> None:
    tried = {rule for rule, _ in BROKEN} | {rule for rule, _, _ in FILES} | {rule for rule, _, _ in SHAPES}
    assert tried == set(RULES)


@pytest.mark.parametrize(
    "files",
    [
        model(),
        model({_QUANT: _ENTRY, ".DS_Store": b"", "a/.x": b"", ".git/y": b""}),
        model({_QUANT: b"'v0': zero_point_linear_quantize(zero_point = [[0, 1]], scale = [0.5, 0.25], bits = 8,"
               b" signed = true, symmetric = true);", "a/w.dat": quantized(dat(np.array([[1, -2]], np.int32)))}),
        model({"%61ux.dat": dat(_WEIGHT), "a/w.dat": None}, (b"'a/w'", b"'aux'")),
        second(b"v1 = variable(shape = [1, 2], label = 'A/W');"),
        second(b"v1 = variable(shape = [1, 2], label = 'A/W');", **{"A/W.dat": dat(_WEIGHT)}),
        second(b"v1 = variable<logical>(shape = [], label = 'b');", **{"b.dat": dat(np.array(True))}),
    ],
)  # fmt: skip
def test_valid_models(tmp_path: Path, files: dict[str, bytes]) -> None:
    for source in (write_folder(tmp_path / "m", files), archive(files)):
        assert findings(nnr.verify_model(source)) == []


def test_the_text_alone(tmp_path: Path) -> None:
    text = graph_text({"a": _WEIGHT, "b": _WEIGHT})
    (tmp_path / "graph.nnef").write_bytes(text)
    for source in (text, io.BytesIO(text), tmp_path / "graph.nnef"):
        report = nnr.verify_model(source)
        assert findings(report) == []
        assert report.variables == 2
    assert [f.file for f in nnr.verify_model(tmp_path).violations] == ["a.dat", "b.dat"]
    (tmp_path / "a.dat").write_bytes(dat(_WEIGHT))
    assert [f.file for f in nnr.verify_model(tmp_path / "graph.nnef").violations] == ["b.dat"]


def test_all_files_are_looked_at(tmp_path: Path) -> None:
    """All faults except syntax errors are reported together."""
    folder = write_folder(
        tmp_path / "m",
        {
            **second(b"v1 = variable(shape = [3], label = 'b');\n    z = nothing(x);", **{"b.dat": b"?"}),
            "a/w.dat": dat(_WEIGHT.T),
            _QUANT: b"'q': g();",
        },
    )
    report = nnr.verify_model(folder)
    assert [(f.file, f.rule) for f in report.violations] == [
        ("a/w.dat", "data-shape"),
        ("b.dat", "data-file"),
        ("graph.nnef", "operation-known"),
        ("graph.quant", "quant-identifier"),
        ("graph.quant", "operation-known"),
    ]
    (folder / "graph.nnef").write_bytes(b"version 1.0; graph")
    (folder / _QUANT).write_bytes(b"?")
    assert [(f.file, f.rule) for f in nnr.verify_model(folder).violations] == [
        ("graph.nnef", "syntax"),
        ("graph.quant", "quant-syntax"),
    ]


def test_links_are_no_tensor_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", model({"a/w.dat": None}))
    (tmp_path / "w.dat").write_bytes(dat(_WEIGHT))
    (folder / "a").mkdir()
    (folder / "a" / "w.dat").symlink_to(tmp_path / "w.dat")
    (found,) = nnr.verify_model(folder).violations
    assert (found.rule, found.file) == ("data-file", "a/w.dat")
    assert "symbolic link" in found.message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (archive({"x/graph.nnef": b""}), "graph.nnef is missing; found only 'x/graph.nnef'"),
        (gzip.compress(archive(minimal()))[:-9], "gzip stream is damaged"),
        (b"\0\3\x80", "not an NNEF, SkriptND or OpenVINO model"),
        (b"", "not an NNEF, SkriptND or OpenVINO model"),
    ],
)
def test_broken_containers_are_errors(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        nnr.verify_model(data)


def test_folders_without_graph_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"graph\.nnef is missing"):
        nnr.verify_model(tmp_path)
    with pytest.raises(FileNotFoundError):
        nnr.verify_model(tmp_path / "none")


def test_limits(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", minimal())
    for limits in (nnr.Limits(max_topology_bytes=9), nnr.Limits(max_tensor_elements=1), nnr.Limits(max_names=1)):
        with pytest.raises(LimitError):
            nnr.verify_model(folder, limits=limits)


@pytest.mark.parametrize("same", [True, False])
def test_hostile_models_take_linear_time(same: bool) -> None:
    """Searching the column of each variable from the start of its line would take minutes."""
    blanks, count = 8 << 20, 10_000
    lines = (f"v{k} = variable(shape = [{k + 1}], label = 'w{0 if same else k}');" for k in range(count))
    text = (
        f"version 1.0; graph g(x) -> (y) {{ x = external(shape = [1]); {' ' * blanks} {''.join(lines)} y = copy(x); }}"
    )
    files = {"graph.nnef": text.encode(), "w0.dat": dat(np.ones(1, np.float32))}
    report = nnr.verify_model(archive(files))
    rule = "shared-label" if same else "data-missing"
    assert {found.rule for found in report.violations} == {rule}
    assert f"{count - 1 - MOST} more findings" in report.notes[0].message


def test_spellings_of_one_label_have_one_type() -> None:
    """Items of different types have different bytes, for readers and here."""
    files = second(b"v2 = variable<scalar>(shape = [1, 2], label = 'A/W');", **{_QUANT: _ENTRY})
    data = dat(np.array([[1, 2]], np.int8), "scalar")
    files |= {"a/w.dat": data, "A/W.dat": data}
    assert findings(nnr.verify_model(archive(files))) == []
    files["A/W.dat"] = data[:48] + b"\2" + data[49:]
    assert [found.rule for found in findings(nnr.verify_model(archive(files)))] == ["data-shared"]
    with pytest.raises(FormatError, match="differ, although their labels differ only in case"):
        nnr.load(archive(files))


def loads(source: Path) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", formats.FormatWarning)
        try:
            formats.load(source)
        except FormatError:
            return False
    return True


#: Findings in the project's models; the text files that describe them count as files of vendors.
_SYNTHETIC = {
    "compositional": {"extension-name": 1},
    "dtype_conflict": {"data-type": 1},
    "extra_files": {"vendor-file": 3},
    "missing_dat": {"data-missing": 1},
    "shape_conflict": {"data-shape": 1},
    "traversal": {"label-path": 1},
}


@pytest.mark.parametrize("name", sorted(path.name for path in (SYNTHETIC / "graphs").iterdir()))
def test_our_own_models(name: str) -> None:
    report = nnr.verify_model(SYNTHETIC / "graphs" / name)
    found = [f.rule for f in findings(report) if f.file != "NOTE.txt"]
    assert Counter(found) == _SYNTHETIC.get(name, {})
    assert loads(SYNTHETIC / "graphs" / name) is not bool(report.violations)


_HARNESS = "nnef_corpus/sonos_tract/harness"
_TRACT = f"{_HARNESS}/nnef-test-cases"
_KHRONOS = "nnef_corpus/khronos_nnef_tools_final_v1.0/parser/cpp/examples"
# A fragment written by tract, with strings where tensors are declared.
_PROPERTIES = "expression-type fragment-extension mixed-tuple operator-extension result-type"
#: Violations and warnings in public models, with their number if more than one.
_FOUND = {
    "operator-extension": [f"{_TRACT}/cmp-operators", f"{_TRACT}/non_zero_two_nodes", f"{_TRACT}/submodel"],
    "identifier-tensor operator-extension": [
        f"{_TRACT}/gather-elements-last-axis",
        *(f"{_TRACT}/resize/core_resize_{name}" for name in ("linear", "nearest", "sizes")),
    ],
    "identifier-tensor:2 operator-extension": [f"{_TRACT}/submodel/nnet1.nnef.tar"],
    "identifier-tensor:3 operator-extension use-before-assignment": [f"{_TRACT}/pulse-sync-inputs-multi-delay"],
    "argument-type single-assignment use-before-assignment": [f"{_TRACT}/slice-of-static-with-streaming-size"],
    "fragment-extension": [f"{_TRACT}/scan-body-stream-drift"],
    _PROPERTIES: [
        *(f"{_TRACT}/sdpa/simple-{name}" for name in ("causal-f32", "f16", "mask-f32", "non-causal-f32", "scale-f32")),
        *(f"{_TRACT}/test_{name}/model.nnef.tgz" for name in ("all_reduce", "any_reduce", "manage_gru_states")),
    ],
    # Dimension 3 of three dimensions.
    "axis-range": [f"{_TRACT}/softmax/softmax-quant/model"],
    f"axis-range {_PROPERTIES}": [f"{_TRACT}/softmax/softmax-quant/expected"],
    f"{_PROPERTIES} quant-missing": [f"{_TRACT}/scatter-nd-block"],
    f"{_PROPERTIES} identifier-tensor:2": [f"{_TRACT}/submodel/nnet2"],
    f"{_PROPERTIES} identifier-tensor single-assignment": [f"{_TRACT}/gru-epilogue"],
    "argument-type:50 expression-type:3 fragment-extension generic-argument mixed-tuple operator-extension result-type"
    " single-assignment:9 tensor-positional:21": [f"{_TRACT}/sdpa/simple-grouped-query-att-f32/model.nnef.tgz"],
    "extension-name operator-extension": [
        *(f"{_HARNESS}/pulse-multi-axis/{name}" for name in ("ex01-block-diag-reduce", "ex10-conv-then-sdpa"))
    ],
    "argument-type:2 extension-name operator-extension": [f"{_HARNESS}/pulse-multi-axis/ex03-banded-reduce"],
    "extension-name operator-extension use-before-assignment": [
        f"{_HARNESS}/pulse-multi-axis/ex08-block-diag-select-sdpa"
    ],
    "argument-type:2 extension-name operator-extension use-before-assignment": [
        f"{_HARNESS}/pulse-multi-axis/ex13-padmask-broadcast-transpose"
    ],
    # The fragments of these models are in a separate file.
    "operation-known:11": [f"{_KHRONOS}/alexnet_comp.txt"],
    "operation-known:5 operator-extension": [f"{_KHRONOS}/vgg19_comp.txt"],
    "extension-name operation-known:16": [f"{_KHRONOS}/googlenet_comp.txt"],
    "extension-name operation-known:3": [f"{_KHRONOS}/resnet_comp.txt"],
    "tensor-positional:68": [
        "nnef_corpus/khronos_nnef_tools/nnef-pyproject/examples/resnet.txt",
        f"{_KHRONOS}/resnet_flat.txt",
    ],
}


@needs_shared
def test_models_of_others() -> None:
    assert SHARED
    corpus, models = SHARED / "nnef_corpus", SHARED / "models"
    sources = [path.parent for folder in (corpus, models) for path in folder.rglob("graph.nnef")]
    sources += [path for pattern in ("*.tgz", "*.tar", "examples/*.txt") for path in corpus.rglob(pattern)]
    reports = {
        path.relative_to(SHARED).as_posix(): nnr.verify_model(path) for path in sources if "synthetic" not in path.parts
    }
    assert len(reports) == 60
    found: dict[str, list[str]] = {}
    for name, report in reports.items():
        counts = sorted(Counter(finding.rule for finding in [*report.violations, *report.warnings]).items())
        if counts:
            found.setdefault(" ".join(f"{rule}:{k}" if k > 1 else rule for rule, k in counts), []).append(name)
    assert {key: sorted(names) for key, names in found.items()} == {
        " ".join(sorted(key.split())): sorted(names) for key, names in _FOUND.items()
    }
    refused = [name for name in reports if not name.endswith(".txt") and not loads(SHARED / name)]
    assert all(reports[name].violations for name in refused)
