"""Tests of nnr explain."""

from __future__ import annotations

import json
import os

import pytest
from nnr_cli.explain import names

from nnr_codec.topics import of_kind

from .support import call, process

Capture = pytest.CaptureFixture[str]


def test_an_element(capsys: Capture) -> None:
    result = call(capsys, "explain", "parent_node_id_type")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "parent_node_id_type: element, 6.3.3.7\n"
        "  Table 8\n"
        "  u(2) in nnr_compressed_data_unit_header(), if general_profile_idc == 1, "
        "if mps_parent_signalling_enabled_flag == 1, if parent_node_id_present_flag\n"
        "  0 ICNN_NDU_ID: device_id, parameter_id and put_node_depth identify the parent\n"
        "  1 ICNN_NDU_PL_SHA256: the SHA-256 of its payload identifies the parent\n"
        "  2 ICNN_NDU_PL_SHA512: the SHA-512 of its payload identifies the parent\n"
        "  3 ICNN_NDU_EXT: the parent is a tensor of the base model, outside any NNR bitstream\n"
    )


def test_a_table_needs_no_quotes(capsys: Capture) -> None:
    result = call(capsys, "explain", "Table", "16")
    assert result.out.startswith("Table 16: table\n")
    assert "  3 NNR_PT_BLOCK: " in result.out


def test_several_things_of_one_name(capsys: Capture) -> None:
    out = call(capsys, "explain", "nnr_unit_size").out
    assert [line.split(",")[0] for line in out.splitlines() if line[:1].strip()] == [
        "nnr_unit_size: structure",
        "nnr_unit_size: element",
    ]


def test_json(capsys: Capture) -> None:
    parsed = json.loads(call(capsys, "explain", "scan_order", "--json").out)
    assert [list(topic) for topic in parsed] == [["name", "kind", "clause", "text", "details"]]
    assert parsed[0]["clause"] == "6.3.3.7"
    assert json.loads(call(capsys, "explain", "--json").out) == of_kind()


def test_all_topics(capsys: Capture) -> None:
    out = call(capsys, "explain").out
    assert max(map(len, out.splitlines())) <= 100
    headings = [line for line in out.splitlines() if not line.startswith(" ")]
    assert headings == [
        *("Syntax structures", "Syntax elements", "Tables of values", "Constants", "Requirements", "Errata"),
        *("Errors", "Limits"),
        "Side information, which is not part of the standard",
        "JSON output of nnr inspect and nnr verify",
    ]
    listed = " ".join(out.split())
    assert all(name in listed for known in of_kind().values() for name in known)


@pytest.mark.parametrize(("name", "kind"), [("errata", "erratum"), ("Requirements", "requirement"), ("error", "error")])
def test_a_kind_lists_its_entries(capsys: Capture, name: str, kind: str) -> None:
    result = call(capsys, "explain", name)
    assert (result.code, result.err) == (0, "")
    assert [line.partition(": ")[0] for line in result.out.splitlines()] == of_kind()[kind]
    parsed = json.loads(call(capsys, "explain", name, "--json").out)
    assert [topic["name"] for topic in parsed] == of_kind()[kind]


def test_a_topic_goes_before_a_kind_of_its_name(capsys: Capture) -> None:
    assert call(capsys, "explain", "limits").out.startswith("limits: requirement\n")


def test_unknown_names(capsys: Capture) -> None:
    result = call(capsys, "explain", "scan_ordre")
    assert (result.code, result.out) == (2, "")
    assert "unknown name 'scan_ordre'; similar names: " in result.err
    assert "scan_order" in result.err
    assert "similar names: parent_node_payload_sha256, " in call(capsys, "explain", "sha").err
    assert "\x1b" not in call(capsys, "explain", "\x1b[31m").err


@pytest.mark.medium
def test_completion() -> None:
    assert names(None, None, "scan") == ["scan_order", "scan-order"]  # type: ignore[arg-type]  # click's arguments are not looked at
    assert set(names(None, None, "nnr_tpl_")) == {  # type: ignore[arg-type]
        name for name in of_kind()["constant"] if name.startswith("NNR_TPL_")
    }
    environment = {**os.environ, "_NNR_COMPLETE": "bash_complete", "COMP_WORDS": "nnr explain Trunc", "COMP_CWORD": "2"}
    assert process(env=environment).stdout == "plain,TruncatedError\n"
