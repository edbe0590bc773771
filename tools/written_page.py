"""Generator of docs/reference/written.md: which option of the encoder writes each syntax element of 6.3.

``python -m tools.written_page > docs/reference/written.md``. Everything is observed: bitstreams are encoded with each
option and parsed, the vectors are parsed, and ``tests.peer.record`` supplies the results of NNCodec.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import nnr_codec as nnr
from nnr_codec.bitstream.performance import (
    DecompositionMap,
    DecompositionRow,
    PruningMap,
    PruningRow,
    SparsificationMap,
    SparsificationRow,
    UnificationMap,
    UnificationRow,
)
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.conformance.cases import load_cases
from nnr_codec.errors import NnrError
from nnr_codec.syntax import TABLES, Structure

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "examples" / "digits" / "digits.nnef"

#: An element: class of its structure, and name.
Element = tuple[type[Structure], str]


def _tensors() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(64, 48)).astype(np.float32)
    return {"a": weight, "b": weight[:3] + 1, "bias": weight[0].copy(), "count": np.arange(-3, 9, dtype=np.int32)}


def _large() -> dict[str, Any]:
    return {"a": np.random.default_rng(1).normal(size=(512, 256)).astype(np.float32)}


def _sparse() -> dict[str, Any]:
    weight = _tensors()["a"]
    weight[::3] = 0
    return {"a": weight}


def _updates(**options: Any) -> bytes:
    """Return the second of two similar updates."""
    encoder, data = nnr.UpdateEncoder(**options), b""
    for step in (1, 2):
        data = encoder.encode({name: array * array.dtype.type(step) for name, array in _tensors().items()})
    return data


def _factors() -> nnr.Model:
    tensors = {"g": _tensors()["a"][:, :4], "h": _tensors()["a"][:4], "c": _tensors()["a"][:, 0]}
    return nnr.Model(tensors, blocks=[nnr.Block("w", g="g", h="h", bias="c")])


def _with_quantization() -> nnr.Model:
    model = nnr.load(DIGITS)
    assert model.topology
    text = b'"x": linear_quantize(min = 0.0, max = 1.0, bits = 8);\n'
    return replace(model, topology=replace(model.topology, quantization=text * 9))


_ROW: dict[str, Any] = {"class_bitmask": 3, "class_accuracies": (0.5, 0.75)}
_UNIFIED: dict[str, Any] = {f"{name}_dimensions": (4, 4) for name in ("reshaped_tensor", "super_block", "block")}
_MAPS = nnr.PerformanceMaps(
    SparsificationMap((SparsificationRow(0.5, 0.25, 0.75, **_ROW),)),
    PruningMap((PruningRow(0.5, 0.75, **_ROW),)),
    UnificationMap((UnificationRow(0.5, 0.75, **_UNIFIED, **_ROW),)),
    DecompositionMap((DecompositionRow(0.5, 0.75, 0.25, (0.5, 0.75)),)),
)
_STATED = nnr.Performance("base", "top-1", True, 0.75, _MAPS)

#: Bitstreams by the option that they need, as on the command line; the first that writes an element counts.
OPTIONS: dict[str, Callable[[], bytes]] = {
    "always": lambda: nnr.encode(_tensors()),
    "a model with a graph": lambda: nnr.encode(DIGITS),
    "a tensor of float16, int8 ...": lambda: nnr.encode({"a": np.array([[1, 2]], np.float16)}),
    "`--topology external`": lambda: nnr.encode(DIGITS, topology="external"),
    "`--profile 0`": lambda: nnr.encode({"a": _tensors()["a"]}, profile=0),
    "`--quality`, `--snr` ...": lambda: nnr.encode(_tensors(), quality=30),
    "step sizes beyond the range of qp_value": lambda: nnr.encode(
        {"a": np.array([[1e30, 2e30], [3e30, 5e30]], np.float32)}
    ),
    "`--row-skipping`": lambda: nnr.encode(_sparse(), row_skipping=True),
    "`--fast-decode`, `--scan-order`": lambda: nnr.encode(_large(), fast_decode=True),
    "`--codebook`": lambda: nnr.encode(_tensors(), codebook=16),
    "`--indexed-references`": lambda: nnr.encode(_tensors(), indexed_references=True),
    "`--max-unit-size`": lambda: nnr.encode(_tensors(), max_unit_size=600),
    "`--layer-parameter-sets`": lambda: nnr.encode(_tensors(), layer_parameter_sets=True),
    "`--parts`": lambda: nnr.encode(_tensors(), parts={"*": "part"}),
    "`--join`": lambda: nnr.encode(_tensors(), join=["{a,b}"]),
    "`--join` along another dimension": lambda: nnr.encode(
        {"a": _tensors()["a"], "b": _tensors()["a"][:, :5].copy()}, join=["{a,b}"]
    ),
    "`--join` of tensors with different orders of dimensions": lambda: nnr.encode(
        {"a": _tensors()["a"], "b": _tensors()["a"][::-1].T.copy()}, join=["{a,b}"]
    ),
    "`--join`, `--indexed-references`": lambda: nnr.encode(_tensors(), join=["{a,b}"], indexed_references=True),
    "`--block`": lambda: nnr.encode(DIGITS, block=True),
    "`--fold-batchnorm`": lambda: nnr.encode(DIGITS, fold_batchnorm=True),
    # Only a block requires another first dimension. As a choice for each weight it would save 0.5 to 1.4 % of the
    # weights of ResNet-56, SqueezeNet and MiniLM (--qp -32 and -20), but NNCodec decodes them in the wrong order.
    "`--block` of a transposed convolution": lambda: nnr.encode(
        nnr.Model({"w": _tensors()["a"], "c": _tensors()["a"][0]}, blocks=[nnr.Block("w", bias="c", axis=1)])
    ),
    "`--reduce lowrank`": lambda: nnr.encode(_factors()),
    "`--reduce lowrank`, `--codebook`": lambda: nnr.encode(_factors(), codebook=8),
    "`--reduce 'sparsify(mask=true)'`": lambda: nnr.encode(_tensors(), reduce="sparsify(ratio=0.3, mask=true)"),
    "`--reduce prune`": lambda: nnr.encode(DIGITS, reduce="prune(ratio=0.3)"),
    "`--reduce 'prune(form=mask)'`": lambda: nnr.encode(DIGITS, reduce="prune(ratio=0.3, form=mask)"),
    "`--reduce prune`, `--indexed-references`": lambda: nnr.encode(
        DIGITS, reduce="prune(ratio=0.3)", indexed_references=True
    ),
    "`--reduce unify`": lambda: nnr.encode(_tensors(), reduce="unify(ratio=0.3)"),
    "`--layer-parameter-sets`, `--reduce`": lambda: nnr.encode(
        _tensors(), layer_parameter_sets=True, reduce="sparsify(ratio=0.3), unify(ratio=0.3)"
    ),
    "`--layer-parameter-sets`, `--reduce prune`": lambda: nnr.encode(
        DIGITS, layer_parameter_sets=True, reduce="prune(ratio=0.3)"
    ),
    "`parts` with `Performance.layers`": lambda: nnr.encode(
        _tensors(),
        parts={"*": "part"},
        performance=nnr.Performance(
            layers={"part": nnr.PerformanceMaps(_MAPS.sparsification, _MAPS.pruning, _MAPS.unification)}
        ),
    ),
    "`--reduce unify`, `--parts`": lambda: nnr.encode(_tensors(), reduce="unify(ratio=0.3)", parts={"*": "part"}),
    "`--map`, `--evaluate`, `--metric` ...": lambda: nnr.encode(_tensors(), performance=_STATED),
    "NNEF with a .quant file": lambda: nnr.encode(
        nnr.Model(
            nnr.load(DIGITS).tensors, nnr.Topology("nnef", (DIGITS / "graph.nnef").read_bytes(), b'"a": x();\n' * 99)
        )
    ),
    "`nnr update encode`": lambda: nnr.encode_update(_tensors(), {k: 2 * v for k, v in _tensors().items()}),
    "`nnr update encode --parent node`": _updates,
    "`UpdateEncoder(device_id=...)`": lambda: _updates(device_id=3),
    "`nnr update encode --parent sha256`": lambda: _updates(parent="sha256"),
    "`nnr update encode --parent sha512`": lambda: _updates(parent="sha512"),
    "`nnr update encode --parent node --nnr-pre`": lambda: _updates(nnr_pre=True, dependent_quantization=False),
}

#: Reasons for elements that no option writes.
REASONS = {
    "ctu_scan_order": "*always 0: the standard does not describe the order of unified blocks*",
    "quant_bitdepth": "*0, which states no depth*",
    "topology_elem_id_index_list": "*a reference list contains ids; a list of indices would refer to itself*",
}


def _elements(structure: Structure) -> Iterator[Element]:
    """Yield the elements of a structure and of the structures within it that have a value other than 0."""
    for name, value in structure.present().items():
        if isinstance(value, Structure):
            yield from _elements(value)
        if _is_set(value):
            yield type(structure), name


def _is_set(value: Any) -> bool:
    """Return whether a value is not 0, or a list has such a value."""
    return any(map(_is_set, value)) if isinstance(value, list) else bool(value)


def found_in(data: bytes) -> set[Element]:
    """Return the elements of a bitstream, as far as it can be parsed."""
    found: set[Element] = set()
    try:
        for unit in UnitReader(data):
            for structure in (unit.size, unit.header, unit.structure):
                found |= set(_elements(structure)) if structure is not None else set()
    except NnrError:
        pass
    return found


def page() -> str:
    """Return the page, in Markdown."""
    written: dict[Element, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for option, encoded in OPTIONS.items():
            for element in found_in(encoded()):
                written.setdefault(element, option)
    vectors: dict[Element, list[str]] = {}
    for case in sorted(load_cases(ROOT / "bitstream_vectors"), key=lambda case: case.result != "valid"):
        if case.result in ("valid", "acceptable") and case.id.startswith("NNR-"):
            for element in set().union(*(found_in(stream.path.read_bytes()) for stream in case.streams)):
                vectors.setdefault(element, []).append(case.id)
    results = [json.loads(line) for line in (ROOT / "benchmarks/results/nncodec.jsonl").read_text().splitlines()[1:]]
    passed = {result["id"] for result in results if result["outcome"] == "PASS" and result["class"] == "valid"}
    lines = [INTRODUCTION]
    for cls in TABLES.values():
        lines += ["", f"## {cls.table_name}(), {cls.clause}", "", "| element | written by | vector | NNCodec |"]
        lines.append("|---|---|---|---|")
        for name in cls.elements:
            element = cls, name
            ids = [one.removeprefix("NNR-") for one in vectors.get(element, [])]
            reserved = "*reserved: 0*" if "reserved" in name else "*0*"
            option = written.get(element) or REASONS.get(name, reserved)
            reads = "yes" if passed.intersection(vectors.get(element, [])) else "no"
            lines.append(f"| `{name}` | {option} | {ids[0] if ids else '*none*'} | {reads if ids else ''} |")
    return "\n".join(lines) + "\n"


INTRODUCTION = """<!-- Generated by python -m tools.written_page; edit that file. -->
# Elements and options

Every syntax element of ISO/IEC 15938-17:2024, 6.3, with

* **written by**: the first option of the encoder that writes a value other than 0. Further options may write the
  element too.
* **vector**: a vector of `bitstream_vectors/` (without `NNR-`) in which the element has a value other than 0; for
  reserved bits, an acceptable vector (`ACC-…`), otherwise a valid one. The decoder of this
  project decodes all of them; [coverage](coverage.md) lists more.
* **NNCodec**: whether NNCodec 2.1.3 decodes a valid vector in which the element has a value other than 0.

To generate the tables, the tool encodes bitstreams with each option and parses them."""

if __name__ == "__main__":
    print(page(), end="")
