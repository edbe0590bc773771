"""Keyword options of the functions: their types, and the error for an unknown name."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.api.decoding import OpenOptions
from nnr_codec.config import ConfigOptions, EncoderOptions, RuleOptions, TensorOptions

ROOT = Path(__file__).parents[1]
MODEL = {"w": np.ones((3, 4), "f4")}


@pytest.mark.parametrize(("options", "config"), [(RuleOptions, TensorOptions), (ConfigOptions, nnr.EncoderConfig)])
def test_options_are_the_fields(options: type, config: Any) -> None:
    types = get_type_hints(config)
    assert get_type_hints(options) == {field.name: types[field.name] for field in fields(config)}


def test_functions_that_encode_also_take_a_preset() -> None:
    assert get_type_hints(EncoderOptions) == get_type_hints(ConfigOptions) | {"preset": str}
    assert nnr.encode(MODEL, preset="lossless") == nnr.encode(MODEL, nnr.EncoderConfig.preset("lossless"))
    config = nnr.EncoderConfig.preset("small", effort=1)
    assert nnr.encode(MODEL, preset="small", effort=1) == nnr.encode(MODEL, config)
    with pytest.raises(TypeError, match=r"encode\(\) got both config and preset"):
        nnr.encode(MODEL, config, preset="small")
    with pytest.raises(nnr.EncodeError, match="preset 'smal'"):
        nnr.encode(MODEL, preset="smal")


def test_options_of_open_are_its_parameters() -> None:
    parameters = inspect.signature(nnr.open, eval_str=True, locals={"Bitstream": Any}).parameters.values()
    assert get_type_hints(OpenOptions) == {
        parameter.name: parameter.annotation for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nnr.encode(MODEL, qqp=3), "encode() got an unexpected option 'qqp'; did you mean 'qp'?"),
        (lambda: nnr.encode(MODEL, job=3), "encode() got an unexpected option 'job'; did you mean 'jobs'?"),
        (lambda: nnr.encode(MODEL, xyz=3), "encode() got an unexpected option 'xyz'"),
        (
            lambda: nnr.encode_file(MODEL, "m.nnr", over_write=True),
            "encode_file() got an unexpected option 'over_write'; did you mean 'overwrite'?",
        ),
        (
            lambda: nnr.estimate(MODEL, preset_="fl"),
            "estimate() got an unexpected option 'preset_'; did you mean 'preset'?",
        ),
        (
            lambda: nnr.tune(MODEL, lambda _: 0.0, tolerance=0, budgets=3),
            "tune() got an unexpected option 'budgets'; did you mean 'budget'?",
        ),
        (lambda: nnr.folded(MODEL, exakt=True), "folded() got an unexpected option 'exakt'; did you mean 'exact'?"),
        (lambda: nnr.reduce(MODEL, "fold", rule=()), "reduce() got an unexpected option 'rule'; did you mean 'rules'?"),
        (
            lambda: nnr.measure(MODEL, lambda _: 0.0, {}, metrics="top-1"),
            "measure() got an unexpected option 'metrics'; did you mean 'metric'?",
        ),
        (
            lambda: nnr.encode_update(MODEL, MODEL, lossles=True),
            "encode_update() got an unexpected option 'lossles'; did you mean 'lossless'?",
        ),
        (
            lambda: nnr.squash_updates(MODEL, [], efort=3),
            "squash_updates() got an unexpected option 'efort'; did you mean 'effort'?",
        ),
        (
            lambda: nnr.UpdateEncoder(sparcity=0.5),
            "UpdateEncoder() got an unexpected option 'sparcity'; did you mean 'sparsity'?",
        ),
        (
            lambda: nnr.decode_file(nnr.encode(MODEL), "m.npz", dtyp="float16"),
            "decode_file() got an unexpected option 'dtyp'; did you mean 'dtype'?",
        ),
        (
            lambda: nnr.EncoderConfig.preset("small", efort=3),
            "EncoderConfig.preset() got an unexpected option 'efort'; did you mean 'effort'?",
        ),
        (lambda: nnr.Rule("*", qqp=3), "rule '*' got an unexpected option 'qqp'; did you mean 'qp'?"),
    ],
)
def test_a_wrong_name_raises_type_error_with_a_suggestion(call: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == message


TYPED = """
import nnr_codec as nnr

def calls(model: nnr.Model) -> None:
    nnr.encode(model, qp=-32, preset="small", rules=[nnr.Rule("*.bias", exact=True)], jobs=2)
    nnr.encode_file(model, "m.nnr", target_ratio=0.1, overwrite=True)
    nnr.encode(model, nnr.EncoderConfig(qp=-38, rules=[nnr.Rule("*.bias", exact=True)]))
    nnr.UpdateEncoder(preset="fl", error_feedback=True, nnr_pre=None).encode({})
    nnr.decode_file("m.nnr", "m.npz", dtype="float16")
    nnr.LossWarning, nnr.Loss, nnr.__version__
    nnr.encode(model, qqp=3)  # error
    nnr.encode(model, qp="3")  # error
    nnr.encode_file(model, "m.nnr", qp=3, over_write=True)  # error
    nnr.estimate(model, presets="small")  # error
    nnr.tune(model, len, tolerance=0, budgets=3)  # error
    nnr.measure(model, len, {}, metrics="top-1")  # error
    nnr.reduce(model, "fold", rule=())  # error
    nnr.encode_update(model, model, lossles=True)  # error
    nnr.squash_updates(model, [], efort=3)  # error
    nnr.UpdateEncoder(sparcity=0.5)  # error
    nnr.decode_file("m.nnr", "m.npz", dtyp="float16")  # error
    nnr.EncoderConfig.preset("small", efort=3)  # error
    nnr.Rule("*", qqp=3)  # error
    nnr.encod  # error
"""


@pytest.mark.slow
def test_mypy_finds_wrong_options(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TYPED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path}", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line}
    assert found == {k for k, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# error")}, done.stdout
