"""Adapters of peft with the preset ``lora``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr

from ..test_examples import CHECKS, folder, run  # noqa: F401  (a fixture)

pytestmark = pytest.mark.heavy


@pytest.mark.usefixtures("folder")
def test_the_example_runs() -> None:
    result = run("lora.py")
    assert result.returncode == 0, result.stderr
    CHECKS["lora.py"](result.stdout)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_products_of_every_kind_of_adapter_keep_45_db(tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    torch: Any = pytest.importorskip("torch")

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.dense = torch.nn.Embedding(300, 64), torch.nn.Linear(64, 256)
            self.head = torch.nn.Linear(256, 5)

    torch.manual_seed(1)
    for kind in (
        {"r": 1},
        {"r": 8, "use_dora": True},
        {"r": 32, "rank_pattern": {"dense": 3}},
        {"r": 4, "bias": "all"},
    ):
        options: Any = {"target_modules": ["embedding", "dense"], "modules_to_save": ["head"], **kind}
        model = peft.get_peft_model(Network(), peft.LoraConfig(**options))
        for name, value in model.named_parameters():
            if kind["r"] != 4 and ("lora_B" in name or "lora_embedding_A" in name):  # zero before training
                torch.nn.init.normal_(value, std=1e-3)
        model.save_pretrained(tmp_path)
        trained = nnr.load(tmp_path / "adapter_model.safetensors")
        decoded = nnr.decode(nnr.encode(trained, preset="lora"))
        assert list(decoded) == list(trained)
        for name in trained:
            if "magnitude" in name:
                np.testing.assert_array_equal(decoded[name], trained[name])
            if "_A" in name:
                other = name.replace("_A", "_B")
                before = trained[other].astype(np.float64) @ trained[name]
                errors = decoded[other].astype(np.float64) @ decoded[name] - before
                assert np.sum(errors**2) <= 10**-4.5 * np.sum(before**2), name
