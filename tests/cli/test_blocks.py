"""Tests of nnr encode with options for blocks, --indexed-references, --topology external and --preset 3gpp-full."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_CPT_BI, NNR_CPT_BN, NNR_CPT_LS, NNR_QNT, NNR_TPL

from ..clients import NnefClient
from ..encoder.test_blocks import units
from ..encoder.test_fold import MODEL, TENSORS, TOPOLOGY
from .support import CHECK, call

Capture = pytest.CaptureFixture[str]
BLOCK = ["conv.weight", "bn.beta", "bn.gamma", "bn.mean", "bn.var", "conv.bias"]


@pytest.fixture
def folder() -> str:
    nnr.save(MODEL, "m.nnef")
    return "m.nnef"


@pytest.mark.parametrize(
    ("arguments", "types", "names"),
    [
        (["--block"], NNR_CPT_BN | NNR_CPT_BI, BLOCK),
        (["--fold-batchnorm"], NNR_CPT_LS | NNR_CPT_BI, ["conv.weight", "bn.gamma", "bn.beta"]),
        (["--fold-batchnorm", "--local-scaling"], NNR_CPT_LS | NNR_CPT_BI, ["conv.weight", "bn.gamma", "bn.beta"]),
        (
            ["--local-scaling"],
            NNR_CPT_LS | NNR_CPT_BN | NNR_CPT_BI,
            ["conv.weight", "conv.weight_scaling", *BLOCK[1:]],
        ),
        (
            ["--preset", "3gpp-full"],
            NNR_CPT_LS | NNR_CPT_BN,
            ["conv.weight", "conv.weight_scaling", *BLOCK[1:-1]],
        ),
        (["--preset", "3gpp-full", "--indexed-references", "--quality", "40"], NNR_CPT_BN, BLOCK[:-1]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_comes_of_options(
    folder: str, capsys: Capture, arguments: list[str], types: int, names: list[str]
) -> None:
    result = call(capsys, "encode", folder, "-o", "m.nnr", "--check", *arguments)
    assert result.code == 0, result.err
    found = units(Path("m.nnr").read_bytes())
    if "--indexed-references" not in arguments:
        assert found[0] == (types, names)
    assert found[0][0] == types
    check = CHECK.fullmatch(result.err.splitlines(keepends=True)[-1])
    assert check, result.err
    assert float(check["snr"]) > 35
    assert call(capsys, "decode", "m.nnr", "-o", "back.nnef").code == 0
    assert Path("back.nnef/graph.nnef").read_bytes() == TOPOLOGY.data
    back = nnr.load("back.nnef")
    assert {name: back[name].shape for name in back} == {name: array.shape for name, array in TENSORS.items()}


@pytest.mark.medium
@pytest.mark.parametrize("arguments", [["--block"], ["--fold-batchnorm"], ["--fold-batchnorm", "--local-scaling"]])
def test_outputs_are_the_same(folder: str, capsys: Capture, arguments: list[str]) -> None:
    """Folding and scaling do not change the network's outputs; quantization has the same effect as without them."""
    if not NnefClient.installed():
        pytest.skip("needs nnef")
    inputs = np.random.default_rng(3).normal(0, 1, (1, 5, 6, 6)).astype("f4")
    before = NnefClient().run(Path(folder), inputs)
    assert call(capsys, "encode", folder, "-o", "m.nnr", "--quality", "80", *arguments).code == 0
    assert call(capsys, "decode", "m.nnr", "-o", "back.nnef").code == 0
    for one, other in zip(before, NnefClient().run(Path("back.nnef"), inputs), strict=True):
        wanted, found = np.asarray(one, "f8"), np.asarray(other, "f8")
        assert ((wanted - found) ** 2).sum() < 1e-5 * (wanted**2).sum()
    options = {argument[2:].replace("-", "_"): True for argument in arguments}
    nnr.save(nnr.folded(folder, **options), "folded.nnef")
    for one, other in zip(before, NnefClient().run(Path("folded.nnef"), inputs), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def test_a_graph_kept_apart(folder: str, capsys: Capture) -> None:
    Path(folder, "graph.quant").write_text('"y": linear_quantize(min = -1.0, max = 1.0, bits = 8);\n')
    arguments = ["--topology", "external", "--fold-batchnorm", "--indexed-references"]
    result = call(capsys, "encode", folder, "-o", "m.nnr", "--check", *arguments)
    assert result.code == 0, result.err
    assert CHECK.fullmatch(result.err.splitlines(keepends=True)[-1])
    kinds = [unit.header.nnr_unit_type for unit in nnr.units("m.nnr")]
    assert kinds.count(NNR_TPL) == 1  # the list of names
    assert NNR_QNT not in kinds
    assert call(capsys, "decode", "m.nnr", "-o", "back.nnef", "--topology", "m.nnef/graph.nnef").code == 0
    assert nnr.compare_models(nnr.folded(folder, fold_batchnorm=True), nnr.load("back.nnef")).snr > 35


def test_a_list_of_names(folder: str, capsys: Capture) -> None:
    assert call(capsys, "encode", folder, "-o", "m.nnr", "--indexed-references").code == 0
    assert Path("m.nnr").read_bytes() == nnr.encode(folder, indexed_references=True)


def test_estimates_and_reports(folder: str, capsys: Capture) -> None:
    """They list the model's tensors; derived tensors take no bytes."""
    result = call(capsys, "encode", folder, "--dry-run", "--json", "--fold-batchnorm")
    estimate = json.loads(result.out)
    assert [row["name"] for row in estimate["tensors"] if not row["bytes"]] == ["bn.mean", "bn.var", "conv.bias"]
    arguments = ["--fold-batchnorm", "--local-scaling", "--report", "r.json", "--report", "r.html"]
    assert call(capsys, "encode", folder, "-o", "m.nnr", *arguments).code == 0
    report = json.loads(Path("r.json").read_text())
    rows = {row["name"]: row for row in report["tensors"]}
    assert rows.keys() == TENSORS.keys()
    assert [name for name, row in rows.items() if row["coding"] == "folded"] == ["bn.mean", "bn.var", "conv.bias"]
    assert all(rows[name]["exact"] for name in ("bn.mean", "bn.var", "conv.bias"))
    assert report["totals"]["snr_db"] > 35
    assert report["options"]["fold_batchnorm"] is True


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["--fold-batchnorm", "--lossless"],
            2,
            "--lossless keeps every bit, so --fold-batchnorm has no effect",
        ),
        (["--preset", "3gpp-full", "--fold-batchnorm"], 2, "which --fold-batchnorm requires; remove one"),
        (["--topology", "graph.nnef"], 2, "'graph.nnef' is not one of 'carried', 'external'"),
    ],
)
def test_refusals(folder: str, capsys: Capture, arguments: list[str], code: int, message: str) -> None:
    result = call(capsys, "encode", folder, "-o", "m.nnr", *arguments)
    assert result.code == code
    assert message in result.err
    assert not Path("m.nnr").exists()


def test_nothing_to_fold(capsys: Capture) -> None:
    np.savez("w.npz", w=np.eye(3))
    result = call(capsys, "encode", "w.npz", "-o", "m.nnr", "--fold-batchnorm")
    assert result.code
    assert "no batch normalization can be folded: the model has no graph" in result.err


@pytest.mark.parametrize("option", ["--block", "--local-scaling"])
def test_options_about_blocks_are_refused_without_blocks(capsys: Capture, option: str) -> None:
    np.savez("w.npz", w=np.eye(3))
    result = call(capsys, "encode", "w.npz", "-o", "m.nnr", option)
    assert result.code
    assert "requires blocks, but the model has no graph" in result.err
    assert not Path("m.nnr").exists()


def test_a_preset_with_blocks_suits_a_model_without_blocks(capsys: Capture) -> None:
    np.savez("w.npz", w=np.eye(3))
    assert call(capsys, "encode", "w.npz", "-o", "m.nnr", "--preset", "3gpp-full").code == 0


@pytest.mark.parametrize(
    ("arguments", "told"), [(["--local-scaling"], True), (["--local-scaling", "--fold-batchnorm"], False), ([], False)]
)
def test_a_list_leaves_no_place_for_scales(folder: str, capsys: Capture, arguments: list[str], told: bool) -> None:
    result = call(capsys, "encode", folder, "-o", "m.nnr", "--indexed-references", *arguments)
    assert result.code == 0
    assert ("warning: --local-scaling has no effect: --indexed-references leaves no names" in result.err) == told


def test_lists_of_units_have_one_name_each(folder: str, capsys: Capture) -> None:
    """Trees and JSON have the other names."""
    assert call(capsys, "encode", folder, "-o", "m.nnr", "--block").code == 0
    rows = call(capsys, "inspect", "m.nnr").out.splitlines()
    assert [row.split("  ")[0] for row in rows if "conv.weight and 5 more" in row] == ["3"]
    assert not any("bn.gamma" in row for row in rows)
    units = json.loads(call(capsys, "inspect", "m.nnr", "--json").out)
    assert units[3]["names"] == BLOCK
    assert "'bn.gamma'" in call(capsys, "inspect", "m.nnr", "--unit", "3").out
