"""The report as JSON agrees with the decoder."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any, cast

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.cabac_ext.kernel import PayloadDecoder, TensorSyntax
from nnr_codec.constants import NNR_NDU
from nnr_codec.model import Model

from .support import HOSTILE, model, report

#: Keys of a tensor, in order; a change requires a new version of the format.
TENSOR = (
    "name shape type parameters source_bytes bytes bits_per_parameter entropy coding code same_as exact snr_db "
    "max_error rms_error zeroed tools levels seconds"
)
DOCUMENT = "format version made_by source options totals overhead seconds steps tensors"
TOOLS = (
    "payload_type qp step rate dq_flag cabac_unary_length_minus1 scan_order rows_skipped codebook_size "
    "shift_parameter_ids"
)
LEVELS = "entropy other_bits zeros distinct least greatest histogram"
TOTALS = (
    "tensors parameters source_bytes bytes overhead_bytes ratio bits_per_parameter entropy_bytes entropy_coded_bytes "
    "exact_tensors snr_db max_error worst_tensor matrices_snr_db vectors_snr_db worst_matrix worst_matrix_snr_db zeroed"
)


def rows_of(source: Any, **options: Any) -> dict[str, dict[str, Any]]:
    """Return the rows of a report by name."""
    return {row["name"]: row for row in json.loads(report(source, **options)[0].to_json())["tensors"]}


def without_times(text: str) -> dict[str, Any]:
    """Return the parts of a report that are equal in all runs."""
    document: dict[str, Any] = json.loads(text)
    del document["seconds"]
    for row in document["tensors"]:
        del row["seconds"]
    return document


def test_keys() -> None:
    document = json.loads(report(model(), qp=-32)[0].to_json())
    assert list(document) == DOCUMENT.split()
    assert (document["format"], document["version"], document["source"]) == ("nnr-encode-report", 1, None)
    assert list(document["totals"]) == TOTALS.split()
    assert document["options"]["qp"] == -32
    for row in document["tensors"]:
        assert list(row) == TENSOR.split()
        if row["tools"]:
            assert list(row["tools"]) == TOOLS.split()
        if row["levels"]:
            assert list(row["levels"]) == LEVELS.split()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qp": -20, "jobs": 2},
        {"exact": True},
        {"dependent_quantization": False},
        {"profile": 0},
        {"max_unit_size": 2000, "indexed_references": True},
    ],
    ids=str,
)
def test_a_decoder_finds_the_same(options: dict[str, Any]) -> None:
    source = Model({name: array for name, array in model().tensors.items() if not name.startswith("conv")})
    made, data = report(source, **options)
    document = json.loads(made.to_json())
    found = nnr.compare_models(source, nnr.decode(data))
    infos = nnr.open(data).info
    for row in document["tensors"]:
        name, one = row["name"], found.tensors[row["name"]]
        assert (row["shape"], row["type"]) == (list(source[name].shape), source[name].dtype.name)
        assert row["exact"] is (one.count == 0)
        assert row["max_error"] == pytest.approx(one.largest, rel=1e-6)
        assert row["rms_error"] == pytest.approx(one.rms, rel=1e-6)
        if math.isfinite(one.snr):
            assert row["snr_db"] == pytest.approx(one.snr, rel=1e-6)
        assert row["bytes"] == infos[name].nbytes
        assert (row["code"] or "") == infos[name].code
        assert (row["same_as"] or "") == infos[name].same_as
    totals = document["totals"]
    assert totals["bytes"] == len(data)
    assert sum(row["bytes"] for row in document["tensors"]) + totals["overhead_bytes"] == len(data)
    assert totals["snr_db"] == (pytest.approx(found.snr, rel=1e-6) if math.isfinite(found.snr) else None)
    assert totals["worst_tensor"] == found.worst
    assert totals["worst_matrix"] == found.loss.worst
    for key, value in (("matrices_snr_db", found.loss.matrices), ("vectors_snr_db", found.loss.vectors)):
        assert totals[key] == (pytest.approx(value, rel=1e-6) if value and math.isfinite(value) else None)
    assert totals["zeroed"] == pytest.approx(found.loss.zeroed, rel=1e-6)
    units: dict[str, int] = {}
    for unit in nnr.inspect(data):
        if unit.type != "NNR_NDU":
            units[unit.type] = units.get(unit.type, 0) + unit.size
    assert document["overhead"] == units


def test_ways_to_code() -> None:
    rows = rows_of(model(), qp=-40, rules=[nnr.Rule("half", exact=True)])
    assert rows["dense"]["coding"] == "dependent"
    assert rows["dense"]["tools"]["dq_flag"] == 1
    assert rows["dense"]["tools"]["step"] == 2.0**-10
    assert (rows["tied"]["coding"], rows["tied"]["same_as"]) == ("tied", "dense")
    assert rows["empty"]["coding"] == "empty"
    assert rows["empty"]["bits_per_parameter"] is None
    assert rows["counts"]["coding"] == rows["half"]["coding"] == "integer"
    assert rows["half"]["code"] == "float"
    assert rows["odd"]["exact"] is True
    assert rows["scalar"]["shape"] == []
    assert rows["zeros"]["levels"]["zeros"] == 25
    assert rows["zeros"]["entropy"] == 0


def test_entropy_is_that_of_the_levels() -> None:
    levels = np.random.default_rng(1).integers(-3, 4, (100, 100))
    row = rows_of({"w": (levels * 2.0**-4).astype(np.float32)}, qp=-16, dependent_quantization=False, exact=False)["w"]
    share = np.unique(levels, return_counts=True)[1] / levels.size
    assert row["coding"] == "uniform"
    assert row["entropy"] == pytest.approx(-(share * np.log2(share)).sum(), rel=1e-6)
    assert row["levels"]["histogram"]["counts"] == np.unique(levels, return_counts=True)[1].tolist()
    assert row["bits_per_parameter"] == pytest.approx(row["entropy"], rel=0.05)


def test_what_a_bit_is_worth() -> None:
    source = {"w": np.random.default_rng(1).normal(0, 0.1, (60, 60)).astype(np.float32), "n": np.arange(9)}
    rows = rows_of(source, rate=0.125)
    assert rows["w"]["tools"]["rate"] == 0.125
    assert rows["n"]["tools"]["rate"] is None


def test_bits_beside_the_levels_count() -> None:
    row = rows_of({"w": np.random.default_rng(1).normal(0, 1, (100, 100)).astype(np.float32)}, exact=True)["w"]
    assert row["levels"]["other_bits"] > 20 * 10_000
    assert row["entropy"] == pytest.approx(row["levels"]["entropy"] + row["levels"]["other_bits"] / 10_000, rel=1e-6)
    assert row["bits_per_parameter"] == pytest.approx(row["entropy"], rel=0.05)


def test_tools_agree_with_the_bitstream() -> None:
    rng = np.random.default_rng(2)
    weight = np.where(rng.random((64, 1)) < 0.5, 0, rng.normal(0, 1, (64, 64))).astype(np.float32)
    made, data = report({"w": weight}, row_skipping=True, scan_order=2, cabac_unary_length_minus1=5, exact=False)
    row = json.loads(made.to_json())["tensors"][0]
    (unit,) = [unit for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU]
    header, payload = unit.ndu, PayloadDecoder(bytes(cast(memoryview, unit.payload)))
    assert row["tools"]["scan_order"] == header.scan_order == 2
    assert row["tools"]["cabac_unary_length_minus1"] == header.cabac_unary_length_minus1 == 5
    assert row["tools"]["dq_flag"] == header.dq_flag
    assert row["tools"]["rows_skipped"] == int((~weight.any(axis=1)).sum())
    assert row["tools"]["qp"] == payload.quant_param(6 + 2)
    levels, side = payload.quant_tensor(
        TensorSyntax((64, 64), dq_flag=header.dq_flag, cabac_unary_length_minus1=5, scan_order=2)
    )
    ids = side.shift_parameter_ids
    assert ids is not None
    assert row["tools"]["shift_parameter_ids"] == {str(k): ids[k] for k in np.flatnonzero(ids)} != {}
    coded = (np.abs(levels) + header.dq_flag >> header.dq_flag) * np.sign(levels)  # 2 * level, or 1 nearer to 0 (9.2.3)
    assert (row["levels"]["least"], row["levels"]["greatest"]) == (coded.min(), coded.max())
    assert row["levels"]["zeros"] == (coded == 0).sum()
    share = np.unique(coded, return_counts=True)[1] / coded.size
    assert row["levels"]["entropy"] == pytest.approx(-(share * np.log2(share)).sum(), rel=1e-6)


def test_a_block_with_local_scaling() -> None:
    rows = rows_of(model(), exact=False, rules=[nnr.Rule(name, exact=True) for name in ("odd", "counts", "scalar")])
    assert rows["conv"]["snr_db"] is rows["conv"]["exact"] is None  # the decoded value is its product with the scaling
    assert rows["conv.bias"]["snr_db"] is not None
    assert (rows["conv.scale"]["bytes"], rows["conv.bias"]["bytes"]) == (0, 0)
    assert rows["conv"]["bytes"] > 0


def test_the_same_but_for_times() -> None:
    first, second = (report(model(), jobs=jobs)[0].to_json() for jobs in (1, 3))
    assert without_times(first) == without_times(second)


def test_statistics_go_to_other_processes() -> None:
    for one in report(model())[0].tensors.values():
        assert pickle.loads(pickle.dumps(one)) == one


def test_the_bitstream_is_the_same() -> None:
    assert report(model())[1] == nnr.encode(model())


def test_no_statistics_no_report(tmp_path: Any) -> None:
    made = nnr.encode_file(model(), tmp_path / "m.nnr")
    assert all(one.statistics is None for one in made.tensors.values())
    for call in (made.to_json, made.to_html):
        with pytest.raises(ValueError, match="statistics=True"):
            call()


def test_names_and_options_are_text() -> None:
    source = dict.fromkeys((*HOSTILE, '"tensors": []'), np.ones((3, 3), np.float32))
    made, _ = report(source, rules=[nnr.Rule('"tensors": []', qp=-20)])
    document = json.loads(made.to_json())
    assert [row["name"] for row in document["tensors"]] == list(source)
    assert document["options"]["rules"] == [{"pattern": '"tensors": []', "qp": -20}]


def test_arrays_among_the_options() -> None:
    made, _ = report({"w": np.ones((3, 3), np.float32)}, sensitivity={"w": np.ones((3, 3), np.float32)})
    assert json.loads(made.to_json())["options"]["sensitivity"] == {"w": "float32 [3, 3]"}


def test_no_tensors() -> None:
    document = json.loads(report({})[0].to_json())
    assert document["tensors"] == []
    assert document["totals"]["ratio"] is None


def test_save(tmp_path: Any) -> None:
    made, _ = report({"w": np.ones((3, 3), np.float32)})
    made.save(tmp_path / "r.JSON")
    assert (tmp_path / "r.JSON").read_text() == made.to_json()
    with pytest.raises(FileExistsError):
        made.save(tmp_path / "r.JSON")
    made.save(tmp_path / "r.html")
    made.save(tmp_path / "r.html", overwrite=True)
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == made.to_html()
    with pytest.raises(ValueError, match=r"must end in \.json or \.html"):
        made.save(tmp_path / "r.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.JSON", "r.html"]


def test_steps_of_reduction() -> None:
    weights = {"w": np.linspace(-1, 1, 600, dtype="f4").reshape(20, 30)}
    document = json.loads(report(weights, reduce="sparsify(ratio=0.5)")[0].to_json())
    (step,) = document["steps"]
    assert document["options"]["reduce"] == ["sparsify(ratio=0.5)"]
    assert list(step) == ["step", "changed", "parameters", "zeros", "snr_db", "bytes"]
    assert (step["step"], step["changed"], step["parameters"]) == ("sparsify(ratio=0.5)", 1, 600)
    assert step["zeros"] == pytest.approx(0.5, abs=0.01)
    assert document["totals"]["bytes"] == pytest.approx(step["bytes"], rel=0.1)
