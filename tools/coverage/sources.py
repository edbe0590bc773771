"""Sources of the listings: tables of 6.3, composition of payloads (7.3), clause 10 of ISO/IEC 15938-17:2024."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from nnr_codec.bitstream import payload
from nnr_codec.syntax import deepcabac, tables
from nnr_codec.syntax.coder import TABLES

from . import framing
from .listing import Listing, Table

_CLAUSE = re.compile(r"\b(\d+(?:\.\d+)+)\b")

#: Clauses of the functions of `tables` without their own structure.
_HELPERS = {
    "tensor_dimension_list": "6.3.3.7",
    "topology_elements_ids_list": "6.3.3.7",
    "topology_tensor_dimension_mapping": "6.3.3.7",
}

#: Constant expressions: the coverage only decodes with the plain implementation of clause 10.
_DECODING = {
    "c.decoding": True,
    "self.c.decoding": True,
    "isinstance(c, ArithmeticDecoder)": True,
    "wanted is not None": False,
}
_ENGINE = {
    "__init__": "10.3.2.4",
    "set_ivl_curr_range_256": "10.2.1.4",
    "code": "7.3.6",
    "nesting_zero_bits": "10.2.1.2",
    "read_bit": "",
}


#: Titles of functions that are not tables of the standard.
_TITLES = {
    "parts": "tensors of a payload",
    "code": "integer weight tensor",
    "row_flags": "quant_tensor(), elements before the levels",
    "row_flags_present": "quant_tensor(), presence of these elements",
    "quant_tensor": "quant_tensor(), levels",
    "terminate": "terminate_cabac()",
    "nesting_zero_bits": "terminate_cabac(), end of the byte",
    "init_prob_est_param": "probability estimation parameters",
    "__init__": "arithmetic decoding engine",
    "co_loc_param": "coLocParam",
    "ctx_inc_sig_flag": "ctxInc of sig_flag",
    "ctx_inc_sign_flag": "ctxInc of sign_flag",
    "ctx_inc_abs_level_greater_x": "ctxInc of abs_level_greater_x",
    "ae": "DecodeDecision()",
    "_renorm": "renormalization",
    "bypass": "DecodeBypass()",
    "at": "DecodeTerminate()",
}


def _printed(definition: ast.FunctionDef, _: str) -> str:
    """Return the clause of a table of 6.3."""
    return _HELPERS.get(definition.name) or TABLES[definition.name].clause


def _said(definition: ast.FunctionDef, owner: str, others: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the clause in a docstring."""
    if definition.name == "__init__" and owner != "ArithmeticDecoder":
        return ""
    found = _CLAUSE.search(ast.get_docstring(definition) or "")
    return others.get(definition.name, found[1] if found else "")


class Sources:
    """Listings of one coverage run, with their recorded hits."""

    def __init__(self) -> None:
        self.tables = Listing(tables, [*TABLES, *_HELPERS], _printed)
        self.framing = Listing(
            framing,
            (
                "nnr_unit",
                "nnr_unit_payload",
                "nnr_compressed_data_unit_payload",
                "nnr_aggregate_unit_payload",
                "byte_alignment",
            ),
            _said,
        )
        self.payload = Listing(payload, ["parts"], _said)
        self.clause_10 = Listing(
            deepcabac,
            ["Context", "ArithmeticDecoder", "QuantTensorSyntax", "_QuantTensor", "quant_tensor", "terminate"],
            partial(_said, others=_ENGINE),
            _DECODING,
        )

    @property
    def all(self) -> tuple[Listing, ...]:
        """All listings, in the order of the clauses."""
        return self.framing, self.tables, self.payload, self.clause_10

    @property
    def listed(self) -> list[tuple[Listing, Table]]:
        """All tables with lines, sorted by clause."""
        found = [(listing, table) for listing in self.all for table in listing.tables if table.lines]
        return sorted(found, key=lambda pair: [int(number) for number in pair[1].clause.split(".")])

    def title(self, table: Table) -> str:
        """Return the title of a table."""
        return _TITLES.get(table.name, f"{table.name}()")
