"""The encoder's output conforms for any options, and the plain implementation of clause 10 decodes it equally.

Any number of threads writes the same bytes.

``python -m tests.conformance.test_encoder [--examples N] [--seed S]`` runs more examples.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.parallel import pool as pool_module
from nnr_codec.syntax import deepcabac

from ..encodes import CASES, layers
from ..shared import examples
from .asked import ASKED, BITSTREAM, CONTEXTS, GOALS, MODEL_ONLY, OTHERS, TENSOR, Asked
from .levels import Seen, check

pytestmark = pytest.mark.medium

EXAMPLES = {"models": 60, "networks": 40, "retrained": 15, "aggregates": 15, "senders": 30, "differences": 30}


def run(what: str, examples: int, start: int | None = None) -> Seen:
    """Try this number of requests; return the features of the bitstreams, and the number of rejections."""
    seen: Seen = Counter()

    @settings(
        deadline=None,
        max_examples=examples,
        database=None,
        suppress_health_check=[*HealthCheck],
        phases=[Phase.generate, Phase.shrink],
        print_blob=True,
    )
    @given(ASKED[what], st.sampled_from([1, 1, 1, 1, 2, 5, 8]))
    def one(asked: Asked, jobs: int) -> None:
        seen["examples"] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", nnr.SaturationWarning)
                bitstreams = asked.write(1)
                if jobs > 1:
                    with mock.patch.object(pool_module, "SMALL", 0):
                        assert asked.write(jobs) == bitstreams
        except nnr.EncodeError as refusal:
            seen["refused"] += 1
            seen[f"refused: {refusal}"] += 1
            return
        seen.update(check(bitstreams, asked.topology))

    (one if start is None else seed(start)(one))()
    return seen


def test_other_levels_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed state transition of the plain implementation is detected, and so is an invalid bitstream."""
    (data,) = CASES["default"]({})
    with pytest.raises(AssertionError, match="unit-size"):
        check([data[:-5]])
    table = list(deepcabac.TRANSITION_TABLE)
    table[16] += 16
    monkeypatch.setattr(deepcabac, "TRANSITION_TABLE", tuple(table))
    with pytest.raises((AssertionError, nnr.PayloadError)):
        check([data])


#: Features of the bitstreams of ``tests.encodes``.
TOOLS = {
    *("NNR_STR", "NNR_MPS", "NNR_TPL", "NNR_NDU", "partial data", "profile 0", "profile 1"),
    *("NNR_PT_INT", "NNR_PT_FLOAT", "NNR_PT_RAW_FLOAT", "NNR_PT_BLOCK", "weight", "block", "g", "h"),
    *("TENSOR_INT8", "TENSOR_INT32", "TENSOR_FLOAT16", "TENSOR_FLOAT32", "TENSOR_FLOAT64"),
    *(f"compressed_parameter_types {bit}" for bit in (1, 2, 4, 8)),
    *(f"scan_order {order}" for order in (1, 2, 3, 4)),
    *("entry points", "dq_flag", "codebook_present_flag", "row_skip_enabled_flag", "shift_parameter_ids"),
    *("cabac_unary_length", "first_tensor_dimension_shift", "topology_carriage_flag"),
    *("mps_topology_indexed_reference_flag", "mps_sparsification_flag", "mps_unification_flag", "mps_pruning_flag"),
    *("parent_node_id_type 0", "parent_node_id_type 1", "parent_node_id_type 3", "base_model_id_present_flag"),
    *("temporal_context_modeling_flag", "co-located levels", "hist_dep_sig_prob_enabled_flag"),
    *("predictive residuals", "topology_storage_format 1", "topology_storage_format 5", "topology_storage_format 6"),
}


@pytest.mark.slow
def test_each_tool_conforms() -> None:
    """This test is not random."""
    seen: Seen = Counter()
    for name, case in CASES.items():
        try:
            seen.update(check(case({}), layers().topology if name.startswith("topology apart") else None))
        except AssertionError as error:
            error.add_note(name)
            raise
    half = np.random.default_rng(0).normal(0, 1, (30, 20)).astype("f2")
    seen.update(check([nnr.encode({"half": half}, qp=-32)], None))
    assert not [tool for tool in sorted(TOOLS) if not seen[tool]]


def test_all_options_are_asked_for() -> None:
    asked = {*TENSOR, *GOALS, *BITSTREAM, *MODEL_ONLY, *CONTEXTS, *OTHERS}
    assert asked == {option.name for option in fields(nnr.EncoderConfig)}


@pytest.mark.parametrize("what", ASKED)
def test_written_bitstreams_conform(what: str, record_property: Callable[[str, object], None]) -> None:
    seen = run(what, examples(EXAMPLES[what]))
    assert seen["examples"] < 12 or seen["refused"] <= 0.75 * seen["examples"]  # half of them; few may all be
    record_property("figure: encodings that were verified", seen["bitstreams"])
    record_property("figure: their tensors, read by the plain implementation", seen["tensors"])


def main() -> None:
    """Run many examples, and print their features."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.test_encoder")
    parser.add_argument("--examples", type=int, default=2000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*ASKED])
    arguments = parser.parse_args()
    total: Seen = Counter()
    for what in [arguments.only] if arguments.only else ASKED:
        started = time.perf_counter()
        seen = run(what, arguments.examples, arguments.seed)
        print(f"{what}: {seen['examples']:,} examples, {seen['refused']:,} refused, {seen['tensors']:,} tensors")
        print(f"  {time.perf_counter() - started:.0f} s", flush=True)
        total += seen
    for name, number in sorted(total.items()):
        print(f"{name}: {number:,}")


if __name__ == "__main__":
    main()
