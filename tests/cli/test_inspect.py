"""Tests of nnr inspect: trees, tables, JSON, bins and requirements. The list of units is tested with nnr ls."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nnr_cli import nodes

import nnr_codec as nnr

from .support import NAMES, call, damaged, weights

Capture = pytest.CaptureFixture[str]
VECTORS = Path(__file__).resolve().parents[2] / "bitstream_vectors"
BLOCK = VECTORS / "block" / "NNR-BLK-001" / "stream.nnr"
UPDATE = VECTORS / "interop" / "nncodec-v2" / "incr_hdsp_tca_dq"

GOLDEN = Path(__file__).parent / "golden"

PAYLOAD = """\
unit 2 (NNR_NDU 'weight'), 6.3.1: byte 12, 40 bytes
    184      0                   iae(8)   qp_value = -12  # quantization parameter minus QuantizationParameter
    184      0                   iae(8)   qp_value = -4  # quantization parameter minus QuantizationParameter
"""

AT = """\
unit 2 (NNR_NDU 'weight'), 6.3.1: byte 12, 40 bytes
    141      8 10000100          ue(7)    tensor_dimensions[0] = 4  # extents, before first_tensor_dimension_shift
"""


def squeezed(text: str) -> str:
    """Return the text with every run of blanks as one."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("unit.txt", ["--unit", 1]),
        ("unit.txt", ["--type", "mps"]),
        ("unit.txt", ["--type", "NNR_MPS", "--unit", 1]),
        ("unit.json", ["--type", "STR", "--json"]),
        ("table.txt", ["--type", "STR", "--format", "table"]),
        ("payloads.txt", ["--all", "--payloads"]),
        ("bins.txt", ["--bins"]),
        ("requirements.txt", ["--requirements"]),
    ],
)
def test_golden_texts(capsys: Capture, name: str, options: list[object]) -> None:
    result = call(capsys, "inspect", BLOCK, *options)
    assert (result.code, result.err) == (0, "")
    assert result.out == (GOLDEN / name).read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--element", "qp_value", "--payloads"], PAYLOAD),
        (["--offset", 12 * 8 + 141], AT),
        (["--offset", 12 * 8 + 148, "--name", "we*"], AT),
    ],
)
def test_single_elements(capsys: Capture, options: list[object], expected: str) -> None:
    result = call(capsys, "inspect", BLOCK, *options)
    assert (result.code, result.err, result.out) == (0, "", expected)


@pytest.mark.parametrize("options", [["--all"], ["--unit", 0, "--unit", 2], ["--element", "*_flag"], ["--inferred"]])
def test_all_formats_have_the_same_elements(capsys: Capture, options: list[object]) -> None:
    tree = call(capsys, "inspect", BLOCK, *options).out
    table = call(capsys, "inspect", BLOCK, *options, "--format", "table").out
    parsed = json.loads(call(capsys, "inspect", BLOCK, *options, "--json").out)
    assert parsed == json.loads(call(capsys, "inspect", BLOCK, *options, "--format", "json").out)
    found = [(node["unit"], node["path"], node["bit"]) for root in parsed for node in below(root) if node["raw"]]
    assert found
    for unit, path, bit in found:
        assert any(row.split()[:2] == [str(unit), str(bit)] and f" {path} " in row for row in table.splitlines())
        name = path.rpartition(".")[2]
        assert any(row.split()[:1] == [str(bit)] and f" {name} = " in row for row in tree.splitlines())


def below(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [node, *(inner for child in node["children"] for inner in below(child))]


def test_units_are_chosen(bitstream: Path, capsys: Capture) -> None:
    def chosen(*options: object) -> list[int]:
        return [root["unit"] for root in json.loads(call(capsys, "inspect", bitstream, "--json", *options).out)]

    assert chosen("--all") == [0, 1, 2, 3, 4]
    assert chosen("--unit", 3, "--unit", 0) == [0, 3]
    assert chosen("--type", "NDU") == [2, 3, 4]
    assert chosen("--type", "STR", "--type", "nnr_mps") == [0, 1]
    assert chosen("--name", "a.*") == [2, 3]
    assert chosen("--name", "a.*", "--name", "*.weight", "--type", "NDU", "--unit", 4) == [4]
    assert set(chosen("--element", "general_profile_idc")) == {0}


def test_nothing_found(bitstream: Path, capsys: Capture) -> None:
    size = 8 * bitstream.stat().st_size
    for options in (["--unit", 5], ["--name", "x"], ["--element", "x"], ["--offset", size], ["--type", "RSVD"]):
        result = call(capsys, "inspect", bitstream, *options)
        assert (result.code, result.out, result.err) == (1, "", "nnr: nothing in the bitstream matches\n")
    assert call(capsys, "inspect", bitstream, "--unit", 5, "--json").out == "[]\n"


def test_usage(bitstream: Path, capsys: Capture) -> None:
    for options, message in (
        (["--type", "XYZ"], "unknown unit type 'NNR_XYZ'"),
        (["--format", "xml"], "'xml'"),
        (["--unit", -1], "-1"),
        (["--bins", "--requirements"], "cannot be combined with options that select units"),
        (["--requirements", "--unit", 1], "cannot be combined with options that select units"),
        (["--bins", "--element", "sig_flag"], "only with --unit, --name and --all"),
        (["--all", "-i", bitstream], "-i requires --bins"),
        (["--bins"], "3 compressed data units match"),
        (["--bins", "--name", "x"], "0 compressed data units match"),
        (["--limit", "x=1"], "x=1"),
    ):
        result = call(capsys, "inspect", bitstream, *options)
        assert result.code == 2
        assert message in result.err


@pytest.mark.parametrize(
    "options", [[], ["--json"], ["--all"], ["--format", "table"], ["--all", "--json"], ["--element", "nnr_unit_size"]]
)
def test_what_could_be_read_of_a_malformed_bitstream(bitstream: Path, capsys: Capture, options: list[str]) -> None:
    whole = call(capsys, "inspect", bitstream, *options).out
    data = bitstream.read_bytes()
    unit = nnr.inspect(data)[3]
    bitstream.write_bytes(data[: unit.offset + unit.size - 1])
    result = call(capsys, "inspect", bitstream, *options)
    assert result.code == 3
    assert result.err.startswith("nnr: error: model.nnr: unit 3 (NNR_NDU), bit 0, nnr_unit_size: the unit has ")
    assert result.err.count("\n") == 1
    if "--json" in options:
        assert json.loads(result.out) == json.loads(whole)[:3]
    elif "table" not in options and options:
        assert whole.startswith(result.out)
        assert result.out.count("unit 2 (NNR_NDU 'a.weight')") == 1
    else:
        assert squeezed(whole).startswith(squeezed(result.out))


def test_bytes_of_another_kind_are_not_shown_as_units(capsys: Capture) -> None:
    Path("text").write_bytes(b"\x00\x04\xa0\x00" + b"\x7f\xff\xa0\x00\x00")  # two of type 40; the second is cut
    result = call(capsys, "inspect", "text")
    assert (result.code, result.out) == (3, "")


def test_names_are_escaped(capsys: Capture) -> None:
    nnr.encode_file({name: weights(k, (4, 5)) for k, name in enumerate(NAMES)}, "m.nnr")
    for style in ("tree", "table"):
        out = call(capsys, "inspect", "m.nnr", "--all", "--format", style).out
        assert all(c.isprintable() or c == "\n" for c in out)
    parsed = json.loads(call(capsys, "inspect", "m.nnr", "--element", "topology_elem_id", "--json").out)
    assert [node["value"] for node in parsed] == list(NAMES)


def test_payloads_are_left_alone(bitstream: Path, capsys: Capture) -> None:
    before = call(capsys, "inspect", bitstream, "--all").out
    bitstream.write_bytes(damaged(bitstream.read_bytes(), 2))
    assert call(capsys, "inspect", bitstream, "--all").out == before


def test_limits(bitstream: Path, capsys: Capture) -> None:
    for options in ([], ["--all"], ["--requirements"], ["--bins", "--all"]):
        result = call(capsys, "inspect", bitstream, *options, "--limit", "max_units=2")
        assert result.code == 3
        assert "max_units" in result.err


# ------------------------------------------------------------------------------------------------ bins
def test_bins_of_a_tensor(capsys: Capture) -> None:
    nnr.encode_file({"w": np.array([[0, 0], [3, -1], [0, 0]], np.int32)}, "m.nnr", row_skipping=True)
    result = call(capsys, "inspect", "m.nnr", "--bins")
    assert (result.code, result.err) == (0, "")
    heading, label, *rows = result.out.splitlines()
    assert heading.split() == ["number", "element", "ctxInc", "bin", "range", "offset", "p0", "p1", "parameter"]
    assert label == "unit 2 (NNR_NDU 'w')"
    cells = [row.split(maxsplit=8) for row in rows]
    assert [int(cell[0]) for cell in cells] == list(range(len(cells)))
    assert [cell[1:4] for cell in cells[:4]] == [
        ["row_skip_enabled_flag", "bypass", "1"],
        *(["row_skip_list", "0", bit] for bit in "101"),
    ]
    levels = [(cell[1], cell[3], cell[8]) for cell in cells if cell[-1].endswith("]")]
    assert levels == [
        ("sig_flag", "1", "[1, 0]"),
        ("sign_flag", "0", "[1, 0]"),
        ("abs_level_greater_x", "1", "[1, 0]"),
        ("abs_level_greater_x", "1", "[1, 0]"),
        ("abs_level_greater_x", "0", "[1, 0]"),
        ("sig_flag", "1", "[1, 1]"),
        ("sign_flag", "1", "[1, 1]"),
        ("abs_level_greater_x", "0", "[1, 1]"),
    ]
    assert cells[-1][1:4] == ["terminating_one_bit", "end", "1"]


def test_bins_as_json(capsys: Capture) -> None:
    text = call(capsys, "inspect", BLOCK, "--bins").out
    parsed = json.loads(call(capsys, "inspect", BLOCK, "--bins", "--json").out)
    assert len(parsed) == len(text.splitlines()) - 2
    assert {(one["tensor"], one["role"]) for one in parsed} == {("ls", "ls"), ("weight", "weight")}
    assert list(parsed[0]) == [
        *("unit", "number", "tensor", "role", "element", "ctx_inc", "bin", "ivl_curr_range", "ivl_offset", "p0", "p1"),
        "parameter",
    ]
    assert [one["parameter"] for one in parsed if one["element"] == "sig_flag" and one["role"] == "weight"][:4] == [
        *([0, 0, 0], [0, 0, 1], [0, 0, 2]),
        [0, 1, 0],
    ]


@pytest.mark.parametrize("scan_order", [0, 1])
def test_bins_name_each_parameter_in_coding_order(capsys: Capture, scan_order: int) -> None:
    nnr.encode_file({"w": weights(1, (20, 3, 5))}, "m.nnr", scan_order=scan_order)
    bins = json.loads(call(capsys, "inspect", "m.nnr", "--bins", "--bins-limit", 0, "--json").out)
    order = [tuple(one["parameter"]) for one in bins if one["element"] == "sig_flag"]
    assert sorted(order) == list(np.ndindex(20, 3, 5))
    rows = [y for y, _, _ in order]
    assert (rows == sorted(rows)) == (scan_order == 0)


def test_bins_are_limited(bitstream: Path, capsys: Capture) -> None:
    result = call(capsys, "inspect", bitstream, "--bins", "--all", "--bins-limit", 7)
    assert len(result.out.splitlines()) == 1 + 1 + 7
    assert result.err == "nnr: only the first 7 bins are shown; raise --bins-limit, or use 0 for all\n"
    assert result.code == 0
    nnr.encode_file({"w": np.arange(900, dtype="i4").reshape(30, 30)}, "long.nnr")
    assert len(json.loads(call(capsys, "inspect", "long.nnr", "--bins", "--unit", 2, "--json").out)) == 1000
    everything = call(capsys, "inspect", bitstream, "--bins", "--all", "--bins-limit", 0)
    assert everything.err == ""
    assert everything.out.count("terminating_one_bit") == everything.out.count("unit ") == 3


def test_bins_of_a_damaged_payload(bitstream: Path, capsys: Capture) -> None:
    bitstream.write_bytes(damaged(bitstream.read_bytes(), 3))
    options = ["--bins", "--unit", 3, "--bins-limit", 0]
    result = call(capsys, "inspect", bitstream, *options)
    assert result.code == 3
    assert result.err.startswith("nnr: error: model.nnr: unit 3 (NNR_NDU 'a.bias'), bit ")
    assert len(result.out.splitlines()) > 20
    assert json.loads(call(capsys, "inspect", bitstream, *options, "--json").out)


def test_bins_that_are_not_there(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    result = call(capsys, "inspect", UPDATE / "03.nnr", "--bins", "--unit", 3)
    assert result.code == 3
    assert "unit 3 (NNR_NDU 'w'): 'w' is update 4 of" in result.err
    assert "its parent has put_node_depth 3, but none is known" in result.err
    before = [argument for k in range(3) for argument in ("-i", UPDATE / f"0{k}.nnr")]
    result = call(capsys, "inspect", UPDATE / "03.nnr", "--bins", "--unit", 3, "--bins-limit", 0, *before)
    assert (result.code, result.err) == (0, "") and "hist_dep_sig_prob_enabled_flag" in result.out
    assert call(capsys, "inspect", UPDATE / "03.nnr", *before).code == 2
    raw = VECTORS / "negative" / "NNR-NEG-019" / "stream.nnr"
    assert call(capsys, "inspect", raw, "--bins").code == 3
    nnr.encode_file({"w": weights()}, "m.nnr")
    monkeypatch.setattr("nnr_codec.decoder.bins.MAX_PARAMETERS", 719)
    result = call(capsys, "inspect", "m.nnr", "--bins")
    assert (result.code, result.err.endswith("bins are listed only for tensors of up to 719 parameters\n")) == (4, True)


# ------------------------------------------------------------------------------------------------ requirements
def tools(capsys: Capture, path: Path) -> dict[tuple[str, int | None], int]:
    rows = json.loads(call(capsys, "inspect", path, "--requirements", "--json").out)
    return {(row["element"], row["value"]): row["units"] for row in rows}


def test_requirements_of_updates(capsys: Capture) -> None:
    first, last = tools(capsys, UPDATE / "00.nnr"), tools(capsys, UPDATE / "03.nnr")
    assert {("dq_flag", 1), ("parent_node_id_present_flag", 1), ("parent_node_id_type", 0)} <= set(first)
    assert ("temporal_context_modeling_flag", 1) not in first
    assert last["temporal_context_modeling_flag", 1] == 3
    assert last["hist_dep_sig_prob_enabled_flag", 1] == 2


@pytest.mark.parametrize(
    ("options", "tool"),
    [
        ({"dependent_quantization": True}, ("dq_flag", 1)),
        ({"scan_order": 2}, ("scan_order", 2)),
        ({"scan_order": 1}, ("cabac_offset_list", None)),
        ({"row_skipping": True}, ("row_skip_enabled_flag", 1)),
        ({"profile": 0}, ("general_profile_idc", 0)),
        ({"exact": True}, ("nnr_compressed_data_unit_payload_type", 2)),
    ],
)
def test_each_tool(capsys: Capture, options: dict[str, Any], tool: tuple[str, int | None]) -> None:
    plain = {"dependent_quantization": False, "scan_order": 0, "row_skipping": False}
    values = np.zeros((80, 40), np.float32)
    values[::2] = weights(1, (40, 40))
    nnr.encode_file({"w": values}, "with.nnr", **{**plain, **options})
    nnr.encode_file({"w": values}, "without.nnr", **plain)
    assert tool in tools(capsys, Path("with.nnr"))
    assert tool not in tools(capsys, Path("without.nnr"))


def test_requirements_of_every_interop_stream() -> None:
    for path in sorted((VECTORS / "interop").rglob("*.nn[rc]")):
        found = nnr.requirements(path)
        assert found[0].element == "general_profile_idc"
        assert not [tool for tool in found if tool.meaning.startswith("not known")]
        assert max(tool.units for tool in found) <= len(nnr.inspect(path))


def test_offset_in_an_aggregate(capsys: Capture) -> None:
    path = VECTORS / "negative" / "NNR-NEG-019" / "stream.nnr"
    result = call(capsys, "inspect", path, "--offset", 8 * 19 + 16)
    assert result.out.splitlines()[0] == "unit 3 (NNR_NDU 'a'), 6.3.1: byte 19, 13 bytes"
    assert result.out.splitlines()[1].split()[:5] == ["16", "6", "000101", "u(6)", "nnr_unit_type"]
    some = call(capsys, "inspect", path, "--offset", 8 * 19 + 16, "--element", "nnr_unit_*", "--json")
    assert [node["name"] for node in json.loads(some.out)] == ["nnr_unit_type"]
    assert call(capsys, "inspect", path, "--offset", 8 * 19 + 16, "--element", "scan_order", "--json").out == "[]\n"


@pytest.mark.medium
def test_long_bitstreams_take_no_room(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Printed units are released, and tables are printed in pieces."""
    data = nnr.encode({"w": weights()}) + 3000 * b"\x00\x03\x82"
    tracemalloc.start()
    nnr.requirements(data)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    Path("m.nnr").write_bytes(data[:-9000])
    monkeypatch.setattr(nodes, "ROWS", 5)
    assert call(capsys, "inspect", "m.nnr", "--format", "table").out.count("unit  bit  offset") == 3
