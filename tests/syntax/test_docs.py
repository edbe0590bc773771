"""Documentation generated from the source is complete and current."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

import pytest

from nnr_codec import constants
from nnr_codec.syntax import TABLES, docs, structures
from tools import written_page
from tools.syntax_page import page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "syntax.md"
#: Elements whose value is a structure with its own description.
STRUCTURES = {"detail", "sparsification", "pruning", "unification", "decomposition", "prune_mask", "sparse_mask"}


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `make docs`"


@pytest.mark.medium
def test_every_element_has_an_option_or_a_reason() -> None:
    text = written_page.page()
    assert (PAGE.parent / "written.md").read_text("utf-8") == text, "run `make docs`"
    assert "| *0* |" not in text


def test_every_element_has_a_meaning() -> None:
    for name, elements in docs.comments(structures).items():
        for element in elements:
            if name in docs.CLASSES and element not in STRUCTURES:
                assert docs.meaning_of(element), f"{name}.{element}"


def test_every_element_has_a_row() -> None:
    rows = {row.element for table in docs.syntax_tables().values() for row in table.rows}
    for cls in TABLES.values():
        assert set(cls.elements) <= rows


def test_every_value_has_a_meaning() -> None:
    for values in docs.value_tables().values():
        for name, text in docs.comments(constants)[values.__name__].items():
            assert text or name.startswith("TENSOR_")


def test_tables() -> None:
    found = docs.syntax_tables()
    assert set(TABLES) < set(found)
    assert list(found)[:2] == ["nnr_unit_size", "nnr_unit_header"]
    assert [found[name].clause for name in ("nnr_unit_size", "integer_codebook", "tensor_dimension_list")] == [
        *("6.3.2", "6.3.3.7", "6.3.3.7"),
    ]
    assert found["topology_elements_ids_list"].structures == ("NnrCompressedDataUnitHeader", "NnrTopologyUnitPayload")
    assert found["bit_mask"].note == "1 means preserved (errata N1)"


def test_rows() -> None:
    header = docs.syntax_tables()["nnr_compressed_data_unit_header"].rows
    assert docs.Row("scan_order", "scan_order", "u(4)", ("if count_tensor_dimensions > 1",)) in header
    assert docs.Row("integer_codebook()", "codebook_dc", "", header_conditions("codebook_dc")) in header
    listed = next(row for row in header if row.element == "cabac_offset_list")
    assert (listed.text, listed.descriptor) == ("cabac_offset_list[j]", "u(8)")
    assert listed.within[-2:] == ("if scan_order > 0", "for j in range(num_block_rows_minus1)")
    assert next(row for row in header if row.element == "bit_offset_delta2").text == "bit_offset_delta2"
    assert [row.text for row in header if row.text.startswith("else")] == [
        "else if not mps_topology_indexed_reference_flag",
        "else",
        "else if parent_node_id_type == ICNN_NDU_PL_SHA256",
        "else if parent_node_id_type == ICNN_NDU_PL_SHA512",
        "else",
    ]
    assert docs.syntax_tables()["bit_mask"].rows[1].descriptor == "u(1) x count_bits"


def header_conditions(element: str) -> tuple[str, ...]:
    return next(
        row.within for row in docs.syntax_tables()["nnr_compressed_data_unit_header"].rows if row.element == element
    )


def test_no_row_is_left_in_the_notation_of_python() -> None:
    for table in docs.syntax_tables().values():
        for row in table.rows:
            assert not {"t.", "ctx.", "append"} & set(row.text.split("(")), row.text
            assert "t." not in row.text.replace("count.", "")


@pytest.mark.parametrize(
    ("element", "value", "meaning"),
    [
        ("scan_order", 0, "rows"),
        ("scan_order", 3, "blocks of 8, 16, 32, 64"),
        ("scan_order", 9, "0: rows, 1..4: blocks of 8, 16, 32, 64"),
        ("dq_flag", 0, "uniform (9.2.1)"),
        ("dq_flag", 1, "dependent scalar quantization (9.2.3)"),
        ("partial_data_counter", 0, "complete"),
        ("partial_data_counter", 3, "counts down to 1, 0: complete"),
        ("codebook_present_flag", 0, "1: levels are indices into a codebook"),
        ("codebook_present_flag", 1, "levels are indices into a codebook"),
        ("nnr_unit_type", 5, "NNR_NDU: compressed data: one tensor, or a block of tensors"),
        ("nnr_unit_type", 9, "not in Table 3"),
        ("compressed_parameter_types", 0, "none"),
        (
            "compressed_parameter_types",
            6,
            "NNR_CPT_LS: local scaling, NNR_CPT_BN: batch normalization: beta, gamma, mean, variance",
        ),
        ("nnr_decompressed_data_format", 8, "TENSOR_FLOAT16"),
        ("topology_compression_format", 1, "NNR_DFL: deflated, RFC 1950"),
        ("no_such_element", 1, ""),
    ],
)
def test_meaning_of_a_value(element: str, value: int, meaning: str) -> None:
    assert docs.value_meaning(element, value) == meaning


def test_value_tables() -> None:
    assert list(docs.value_tables()) == [*map(str, range(3, 14)), "15", "16"]
    assert docs.value_tables()["5"] is docs.value_tables()["7"] is constants.CompressionFormat
    assert docs.values_of("nnr_rep_type") is constants.NnrRepType
    assert docs.values_of("scan_order") is None
    assert all(
        issubclass(values, IntEnum) or values.__name__ in ("CompressedParameterType", "QuantizationMethod")
        for values in docs.value_tables().values()
    )
