"""Tests of nnr_codec.explain: every name has a topic, and every topic agrees with the source."""

from __future__ import annotations

import pytest

import nnr_codec as nnr
from nnr_codec import errors
from nnr_codec.conformance.errata import ERRATA
from nnr_codec.formats.nnef.rules import RULES as NNEF_RULES
from nnr_codec.formats.openvino.rules import RULES as IR_RULES
from nnr_codec.formats.skriptnd.rules import RULES as SKRIPTND_RULES
from nnr_codec.rules import Requirement
from nnr_codec.sideinfo.record import FloatCode, GridCode, IntegerCode, PaletteCode, RawCode
from nnr_codec.syntax import TABLES
from nnr_codec.topics import of_kind


def one(name: str, kind: str) -> nnr.Topic:
    (topic,) = (topic for topic in nnr.explain(name) if topic.kind == kind)
    return topic


def test_all_kinds_are_complete() -> None:
    kinds = of_kind()
    elements = {
        name for cls in TABLES.values() for name, kind in cls.elements.items() if kind in ("int", "str", "float")
    }
    assert elements <= set(kinds["element"])
    assert set(TABLES) < set(kinds["structure"])
    assert set(kinds["requirement"]) == {*(rule.id for rule in Requirement), *NNEF_RULES, *SKRIPTND_RULES, *IR_RULES}
    assert kinds["erratum"] == list(ERRATA)
    assert set(kinds["limit"]) == {"Limits", *nnr.Limits.names()}
    assert set(kinds["error"]) == {
        name for name, cls in vars(errors).items() if isinstance(cls, type) and "Error" in name
    }
    assert "Table 16" in kinds["table"]
    assert {"NNR_PT_BLOCK", "NNR_STR", "TENSOR_INT4", "NNR_CPT_BI"} <= set(kinds["constant"])
    assert {"qp_value", "sig_flag", "raw_float32_parameter"} <= set(kinds["element"])


@pytest.mark.parametrize(
    "kind",
    ["element", "structure", "table", "constant", "requirement", "erratum", "error", "limit", "extension", "output"],
)
def test_every_topic_is_found_and_says_something(kind: str) -> None:
    for name in of_kind()[kind]:
        topic = one(name, kind)
        assert topic.name == name
        assert topic.text or topic.details or name == "nnr_model_parameter_set_unit_header"
        assert topic.clause or kind not in ("element", "structure")
        assert not any("``" in line or ":class:" in line or ":meth:" in line for line in (topic.text, *topic.details))


def test_an_element() -> None:
    topic = one("count_ids", "element")
    assert (topic.clause, topic.text) == ("6.3.4.5", "number of tensors whose dimensions change")
    assert topic.details[:2] == (
        "ue(7) in nnr_pruning_topology_container(), if prune_flag == 1, else if nnr_rep_type == NNR_TPL_DICT",
        "limited by max_names",
    )
    assert "0 if it is absent" in one("scan_order", "element").details
    assert "requirement scan-order" in one("scan_order", "element").details
    assert "1 NNR_DFL: deflated, RFC 1950" in one("topology_compression_format", "element").details
    assert one("qp_value", "element").clause == "10.2.1.3"


def test_spellings() -> None:
    for name in ("scan_order", "SCAN_ORDER", "nnr_compressed_data_unit_header.scan_order", " scan_order "):
        assert [topic.name for topic in nnr.explain(name)] == ["scan_order"]
    assert nnr.explain("tensor_dimensions[0]") == nnr.explain("tensor_dimensions")
    assert nnr.explain("nnr_unit_header( )") == nnr.explain("nnr_unit_header")
    assert nnr.explain("table16") == nnr.explain("Table 16")
    assert [topic.kind for topic in nnr.explain("nnr_unit_size")] == ["structure", "element"]


def test_an_error_a_limit_and_a_requirement() -> None:
    assert one("TruncatedError", "error").details == ("a kind of BitstreamError",)
    limit = one("max_names", "limit")
    assert "10,000,000 in the preset default" in limit.details
    assert "entries of all lists in headers" in limit.text
    rule = Requirement("scan-order")
    assert (one("scan-order", "requirement").clause, one("scan-order", "requirement").text) == (rule.clause, rule.text)


def test_an_erratum() -> None:
    erratum = ERRATA["N8"]
    topic = one("n8", "erratum")
    assert (topic.clause, topic.text) == (erratum.clauses, erratum.title)
    assert f"Decision: {erratum.decision}" in "\n".join(topic.details)


def test_side_information() -> None:
    assert "NNR_TPL" in one("side information", "extension").details[0]
    assert nnr.explain("side information")[0].details[0] == one("topology_storage_format 128", "extension").text
    assert any("128 side information" in line for line in one("topology_storage_format", "element").details)
    assert one("max_side_info_bytes", "limit").text
    for code in (FloatCode, IntegerCode, RawCode, PaletteCode, GridCode):
        assert one(code.KIND, "extension").text == one(code.__name__, "extension").text
        assert f'"kind": "{code.KIND}"' in one(code.__name__, "extension").details
    assert any(line.startswith("pivot") for line in one("float", "extension").details)


def test_unknown_names() -> None:
    with pytest.raises(LookupError, match=r"unknown name 'scan_ordre'; similar names: .*scan_order"):
        nnr.explain("scan_ordre")
    for name in ("", "?", "zzzzzzzz"):
        with pytest.raises(LookupError, match="unknown name"):
            nnr.explain(name)
