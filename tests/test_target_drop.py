"""The benchmark of predicted and measured losses of accuracy (benchmarks/target_drop.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .shared import needs_shared

pytestmark = [pytest.mark.medium, pytest.mark.torch]
for _package in ("torch", "PIL"):
    pytest.importorskip(_package)

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "data-aware.md"


def row(network: str, setting: str, nbytes: int, fall: float, limit: float = 0.4) -> dict[str, Any]:
    known = {"network": network, "setting": setting, "bytes": nbytes, "fall": fall, "fall_interval": [0.0, 1.0]}
    return known | {"predicted": 0.2, "limit": limit, "samples": 9000}


def test_the_table_counts_the_networks_that_were_not_used_for_tuning() -> None:
    from benchmarks.target_drop import table

    rows = []
    for network in ("ResNet-8", "ResNet-20", "mobile CNN"):
        fall = 0.6 if network == "mobile CNN" else 0.1
        rows += [
            row(network, "target 0.5", 1200, fall),
            row(network, "target 0.5, labels", 1300, 0.2),
            row(network, "size 1000", 1000, 0.5),
            row(network, "size 900", 900, 0.9),
        ]
    text = table(rows)
    assert "| ResNet-20 | 0.5 | no | 1,200 | 0.20 | 0.40 | 0.10 (0.00 to 1.00) | 1,000 | 1.20 |" in text
    assert "| ResNet-20 | 0.5 | yes | 1,300 | 0.20 | 0.40 | 0.20 (0.00 to 1.00) | 1,000 | 1.30 |" in text
    assert text.splitlines()[-2:] == [
        "With labels, the target is met in 2 of 2 cases on networks not used for tuning, and the size is at most 1.25 "
        "times the smallest in 1.",
        "Without labels, the target is met in 1 of 2 cases on networks not used for tuning, and the size is at most "
        "1.25 times the smallest in 2.",
    ]


def test_the_guide_has_the_table_of_the_stored_rows() -> None:
    from benchmarks.target_drop import RESULTS, table

    assert table([json.loads(line) for line in RESULTS.read_text("utf-8").splitlines()]) in GUIDE.read_text("utf-8")


@pytest.mark.slow
@needs_shared
def test_the_measured_loss_of_a_network_meets_the_target() -> None:
    pytest.importorskip("h5py")
    from benchmarks.target_drop import NETWORKS, Divided

    found = Divided(NETWORKS["ResNet-8"](Path(), 2512)).chosen(1.0, True)
    assert found["limit"] <= 1
    assert found["fall_interval"][0] <= 1
    assert found["bytes"] < 50_000  # 315 KB as float32
