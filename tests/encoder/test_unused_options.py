"""Options without effect: rejected if the options alone determine it, a warning if it depends on the model."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.performance import Performance

from .test_fold import MODEL as BLOCKS

RNG = np.random.default_rng(17)
MATRIX = RNG.normal(0, 1.6, (32, 26)).astype("f4")
INTEGERS = {"count": np.arange(6, dtype="i4"), "other": np.arange(3, dtype="i4")}
#: Blocks with and without batch normalization, a large matrix, integers and a scalar.
MODEL = replace(BLOCKS, tensors={**BLOCKS.tensors, **INTEGERS, "matrix": MATRIX, "eps": np.float32([0.3])})
CONV = BLOCKS["conv.weight"]

#: One value of each option; most of them change the bitstream of MODEL.
OPTIONS: dict[str, Any] = {
    "qp": -24,
    "quality": 30.0,
    "snr": 35.0,
    "max_error": 0.01,
    "fine_vectors": False,
    "dependent_quantization": False,
    "exact": True,
    "scan_order": 1,
    "fast_decode": True,
    "row_skipping": True,
    "cabac_unary_length_minus1": 3,
    "choose_shift_parameters": False,
    "rate": 16,
    "codebook": 64,
    "noise_shaping": False,
    "reducible": False,
    "effort": 6,
    "profile": 0,
    "qp_density": 4,
    "rules": (nnr.Rule("conv.weight", qp=-16),),
    "overrides": {"conv.weight": {"qp": -20}},
    "target_size": 1600,
    "target_ratio": 0.2,
    "sensitivity": {"conv.weight": np.geomspace(1, 50, CONV.size).reshape(CONV.shape)},
    "hessians": {"conv.weight": np.diag(np.geomspace(1, 50, CONV[0].size)) + 0.5},
    "block": True,
    "fold_batchnorm": True,
    "local_scaling": True,
    "reduce": "sparsify(ratio=0.5)",
    "fixed_point": "q7.8",
    "compressed_parameter_types": 6,
    "topology": "external",
    "deflate_topology": False,
    "max_unit_size": 450,
    "indexed_references": True,
    "parts": {"m*": "part"},
    "layer_parameter_sets": True,
    "join": ["{count,other}"],
    "side_info": False,
    "index": True,
    "performance": Performance(base_model_id="base"),
    "temporal_context_modeling": True,
    "hist_dep_sig_prob": True,
    "nnr_pre": True,
}

#: Options without effect next to another option, which has their effect.
IMPLIED: dict[tuple[str, str], str] = {
    ("dependent_quantization", "exact"): "nothing is quantized",
    ("dependent_quantization", "max_error"): "uniform quantization bounds errors",
    ("dependent_quantization", "fixed_point"): "fixed-point numbers are uniform",
    ("dependent_quantization", "codebook"): "codebooks are uniform",
    ("fine_vectors", "exact"): "vectors are coded as all others",
    ("noise_shaping", "snr"): "errors of parameters are bounded",
    ("noise_shaping", "max_error"): "errors of parameters are bounded",
    ("noise_shaping", "exact"): "nothing is quantized",
    ("noise_shaping", "scan_order"): "states of dependent quantization follow the block scan",
    ("noise_shaping", "codebook"): "levels are entries of a codebook",
    ("noise_shaping", "fixed_point"): "fixed-point numbers are the nearest ones",
    ("effort", "cabac_unary_length_minus1"): "effort 6 chooses that length",
    ("rules", "overrides"): "overrides come after rules",
    ("block", "fold_batchnorm"): "folding codes blocks",
    ("block", "local_scaling"): "scaling codes blocks",
    ("deflate_topology", "topology"): "no topology is written",
}


@cache
def encoded(*names: str) -> tuple[bytes | None, bool]:
    """Return the bitstream with options, None if they are rejected, and whether a warning was issued."""
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        try:
            data = nnr.encode(MODEL, **{name: OPTIONS[name] for name in names})
        except nnr.EncodeError:
            return None, False
    return data, any("has no effect" in str(one.message) or "separate tensors" in str(one.message) for one in issued)


def test_every_option_has_a_value() -> None:
    assert OPTIONS.keys() == {option.name for option in fields(nnr.EncoderConfig)}


@pytest.mark.medium
@pytest.mark.parametrize("first", OPTIONS)
def test_no_option_is_silently_ignored_next_to_another(first: str) -> None:
    default, names = encoded()[0], list(OPTIONS)
    silent = set()
    for second in names[names.index(first) + 1 :]:
        both, warned = encoded(first, second)
        for name, other in ((first, second), (second, first)):
            alone = encoded(name)[0] != default
            if alone and both is not None and not warned and both == encoded(other)[0]:
                silent.add((name, other))
    assert silent == {pair for pair in IMPLIED if first == min(pair, key=names.index)}


TABLE = {"count": np.arange(20).reshape(4, 5)}
VECTOR = {"bias": np.linspace(-1, 1, 7, dtype="f4")}
PLAIN = {"w": MATRIX}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (PLAIN, {"rules": [nnr.Rule("conv*", qp=-20)]}, r"rule 'conv\*' matches no tensor"),
        (PLAIN, {"overrides": {"v": {"qp": -20}}}, "overrides of 'v' match no tensor"),
        (BLOCKS, {"reduce": "scale", "codebook": 5}, "reduce='scale' has no effect: no weight can be scaled"),
        (PLAIN, {"reduce": "lowrank(rank=40)"}, r"has no effect: no matrix has fewer parameters as a product of two"),
        (BLOCKS, {"local_scaling": True, "indexed_references": True}, "indexed_references leaves no names for scales"),
        (
            BLOCKS,
            {"block": True, "rules": [nnr.Rule("*.weight", exact=True)]},
            "2 of 2 blocks .* 'conv.weight' is exact",
        ),
        (BLOCKS, {"fold_batchnorm": True, "rules": [nnr.Rule("up.weight", exact=True)]}, "1 of 2 blocks"),
        (BLOCKS, {"block": True, "compressed_parameter_types": 0}, "block has no effect: compressed_parameter_types"),
        (PLAIN, {"compressed_parameter_types": 4}, "compressed_parameter_types has no effect"),
        (PLAIN, {"topology": "external"}, "topology='external' has no effect"),
        (PLAIN, {"indexed_references": True}, "indexed_references has no effect"),
        (
            PLAIN,
            {"fast_decode": True},
            "fast_decode has no effect: no tensor without a scan order has 65,536 parameters",
        ),
        (PLAIN, {"temporal_context_modeling": True}, "temporal_context_modeling has no effect"),
        (PLAIN, {"hist_dep_sig_prob": True}, "hist_dep_sig_prob has no effect"),
        (PLAIN, {"nnr_pre": True}, "nnr_pre has no effect"),
        (PLAIN, {"sensitivity": {"w": 3.0}}, "sensitivity has no effect"),
        (PLAIN, {"hessians": {"w": np.eye(26)}, "rate": 0}, "hessians has no effect"),
        (TABLE, {"qp": -20}, "qp has no effect"),
        (TABLE, {"quality": 20}, "quality has no effect"),
        (VECTOR, {"scan_order": 2}, "scan_order has no effect"),
        (VECTOR, {"row_skipping": True}, "row_skipping has no effect"),
        (VECTOR, {"codebook": 4}, "codebook has no effect"),
        (VECTOR, {"rate": 0.5}, "rate has no effect"),
        (VECTOR, {"dependent_quantization": True}, "dependent_quantization has no effect"),
    ],
)
@pytest.mark.parametrize("function", [nnr.encode, nnr.estimate])
def test_what_a_model_leaves_without_effect_is_warned_of_once(
    function: Callable[..., Any], model: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.warns(nnr.EncodeWarning, match=message) as issued:
        function(model, **options)
    assert len([one for one in issued if re.search(message, str(one.message))]) == 1


@pytest.mark.parametrize("function", [nnr.encode, nnr.estimate])
@pytest.mark.parametrize(
    "options",
    [{"block": True}, {"local_scaling": True}, {"reduce": "scale(method=gain)"}],
    ids=str,
)
def test_options_about_blocks_are_refused_without_blocks(function: Callable[..., Any], options: dict[str, Any]) -> None:
    with pytest.raises(nnr.EncodeError, match="requires blocks, but the model has no graph"):
        function(PLAIN, **options)


def test_a_search_for_a_target_warns_once() -> None:
    with pytest.warns(nnr.EncodeWarning) as issued:
        nnr.encode(PLAIN, target_ratio=0.1, topology="external", reduce="sparsify")
    assert len([one for one in issued if str(one.message).startswith("topology")]) == 1


@pytest.mark.parametrize("preset", ["small", "lossless", "3gpp-full"])
def test_presets_do_not_warn_for_a_model_that_has_all_they_ask_for(preset: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nnr.encode(BLOCKS, nnr.EncoderConfig.preset(preset))


def test_updates_warn_of_rules_by_the_names_of_the_whole_model() -> None:
    base, new = {**PLAIN, **VECTOR}, {**PLAIN, "bias": VECTOR["bias"] * 2}
    with pytest.warns(nnr.EncodeWarning) as issued:
        nnr.encode_update(base, new, rules=[nnr.Rule("w", qp=-20), nnr.Rule("v", qp=-20)])
    assert [str(one.message) for one in issued] == ["rule 'v' matches no tensor; a name is 'bias'"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exact": True, "qp": -20}, "exact=True .* qp"),
        ({"exact": True, "rules": [nnr.Rule("w", qp=-20)]}, "exact=True .* qp"),
        ({"exact": True, "codebook": 9}, "exact=True .* codebook"),
        ({"exact": True, "rate": 0.5}, "exact=True .* rate"),
        ({"exact": True, "block": True}, "exact=True .* block"),
        ({"exact": True, "sensitivity": {"w": 1}}, "exact=True .* sensitivity"),
        ({"max_error": 0.1, "rate": 0.5}, "max_error .* rate"),
        ({"max_error": 0.1, "dependent_quantization": True}, "max_error .* dependent_quantization"),
        ({"max_error": 0.1, "hessians": {"w": np.eye(3)}}, "max_error .* hessians"),
        ({"profile": 0, "row_skipping": True}, "row_skipping requires profile 1"),
        ({"quality": 30, "qp_density": 3}, "qp_density 3 has no effect, because quality uses 7"),
        ({"rules": [nnr.Rule("w", rate=99)]}, "rule 'w': rate 99"),
    ],
    ids=str,
)
def test_options_that_no_model_can_obey_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.EncoderConfig(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"exact": True, "qp": -20, "rules": [nnr.Rule("w", exact=False)]},
        {"max_error": 0.1, "rate": 0.5, "rules": [nnr.Rule("w", qp=-20)]},
        {"quality": 30, "qp_density": 3, "rules": [nnr.Rule("w", qp=-20)]},
    ],
    ids=str,
)
def test_options_that_rules_make_use_of_are_accepted(options: dict[str, Any]) -> None:
    nnr.EncoderConfig(**options)


def test_a_preset_gives_way_to_a_largest_error() -> None:
    assert nnr.EncoderConfig.preset("3gpp-full", max_error=0.1).dependent_quantization is None
