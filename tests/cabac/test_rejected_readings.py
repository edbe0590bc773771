"""The readings of clause 10 that docs/reference/errata.md rejects do not decode the streams that it cites as evidence.

Each reading is the plain implementation with a line or two replaced.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from nnr_codec.conformance.errata import ERRATA
from nnr_codec.errors import NnrError
from nnr_codec.syntax import deepcabac

from . import streams

pytestmark = pytest.mark.medium

_RESET = "                self.init_prob_est_param()\n            level = 0\n"
_CONTEXTS = (
    "        self.contexts = {name: [Context(name, i) for i in range(count)] for name, count in counts.items()}\n"
)
_CARRIED = """\
        for name in ("row_skip_list", "shift_idx_minus_1_present_flag"):
            self.contexts[name] = getattr(c, "carried", self.contexts)[name]
        c.carried = self.contexts
"""

#: By erratum: text of the plain implementation, and its replacement for the rejected reading.
READINGS = {
    "A1": (
        "self.row_flags()\n        self.shift_parameter_ids()",
        "self.shift_parameter_ids()\n        self.row_flags()",
    ),
    "A2": (_CONTEXTS, _CONTEXTS + _CARRIED),
    "A3": ("1 if self.previous < 0 else 2 if self.previous > 0", "2 if self.previous < 0 else 1 if self.previous > 0"),
    "A4": ("24 + (abs(co_loc_param) > 1)", "24 + (abs(co_loc_param) <= 1)"),
    "A5": ("2 * j + 2 * (self.max_num_no_rem_minus1 + 1)", "2 * j + 2 * self.max_num_no_rem_minus1"),
    "A7": ("(h > bs or s.first_edition)", "s.first_edition"),
    "B1": ("*[64] * 15, 0)", "*[64] * 13, 0, 0, 0)"),
    "B4": (
        "abs((16 * self.p_state_idx0 + self.p_state_idx1) >> 7)",
        "(abs(16 * self.p_state_idx0 + self.p_state_idx1) >> 7)",
    ),
    "C1": ('self.contexts["row_skip_list"][0]', 'self.contexts["shift_idx_minus_1_present_flag"][0]'),
    "C4": ("i < 2 * max_abs_val:", "i < 2 * (max_abs_val - 1):"),
    "D1": ("unlimited = max_abs_val == -1", "unlimited = bool(max_abs_val)"),
    "G3": (_RESET, f"                self.state_id = 0\n{_RESET}"),
    "H1": ("return int(self.s.co_loc[idx])", "return (self.s.co_loc[idx] + (self.s.co_loc[idx] > 0)) // 2"),
}


def reading(*replacement: str) -> ModuleType:
    """Return the plain implementation with a replacement that matches once."""
    source = Path(deepcabac.__file__).read_text("utf-8")
    assert not replacement or source.count(replacement[0]) == 1
    module = ModuleType(deepcabac.__name__)
    module.__package__ = deepcabac.__package__
    exec(source.replace(*replacement) if replacement else source, vars(module))
    return module


def decodes(module: ModuleType, name: str) -> bool:
    """Return whether a stream decodes to the integers that are stored beside it."""
    stored = streams.levels(name)
    try:
        for payload in streams.payloads(name):
            coder = module.ArithmeticDecoder(payload.data)
            for key, syntax in zip(payload.names, payload.syntaxes, strict=True):
                if not np.array_equal(module.quant_tensor(coder, syntax).quant_param, stored[key].reshape(-1)):
                    return False
            module.terminate(coder)
    except (NnrError, IndexError):
        return False
    return True


@pytest.mark.parametrize("id_", READINGS)
def test_a_rejected_reading_does_not_decode_the_streams_cited(id_: str) -> None:
    cases = re.findall(r"nncodec-levels/(\w+)", ERRATA[id_].evidence)
    assert cases
    rejected = reading(*READINGS[id_])
    for case in cases:
        updates = [name for name in streams.names() if re.fullmatch(rf"{case}(_[012])?", name)]
        assert updates
        assert not all(decodes(rejected, name) for name in updates), case


def test_our_reading_decodes_all_streams() -> None:
    assert all(decodes(reading(), name) for name in streams.names())
