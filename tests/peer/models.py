"""Random models and options, reproducible from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import nnr_codec as nnr
from nnr_codec.constants import PayloadType
from nnr_codec.model import Array

from ..arrays import made

SHAPES: list[tuple[int, ...]] = [
    (1,),
    (7,),
    (300,),
    (1, 37),
    (29, 1),
    (1, 1),
    (8, 8),
    (20, 33),
    (5, 4),
    (70, 12),
    (9, 68),
    (16, 8, 3, 3),
    (5, 7, 9),
    (130, 3),
    (3, 130),
    (40, 6, 3, 3),
    (1, 4, 6),
    (12, 1, 3, 3),
]


@dataclass(frozen=True)
class Case:
    """Tensors and encoder options."""

    tensors: dict[str, Array]
    options: dict[str, Any]


def floats(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return float32 values of a random distribution."""
    kind, spread = rng.integers(6), float(10.0 ** rng.uniform(-3, 1))
    if kind == 0:
        return np.zeros(shape, "f4")
    x = rng.laplace(0, spread, shape) if kind < 3 else rng.normal(0, spread, shape)
    if kind == 2:
        x *= rng.random(shape) < 0.1
    if kind == 3 and len(shape) > 1:
        x[rng.random(shape[0]) < 0.5] = 0
    if kind == 4:
        x = np.abs(x)
    return np.asarray(x, "f4")


def integers(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return int32 values of a random range, sometimes the full range."""
    bound = int(2 ** rng.uniform(0, 31))
    return rng.integers(-bound, bound, shape, dtype=np.int64).astype("i4")


def tensors(rng: np.random.Generator, *, matrices_only: bool = False, integer_share: float = 0.2) -> dict[str, Array]:
    """Return one to five tensors."""
    shapes = [shape for shape in SHAPES if min(shape[0], int(np.prod(shape[1:]))) > 1] if matrices_only else SHAPES
    result = {}
    for k in range(rng.integers(1, 6)):
        shape = shapes[rng.integers(len(shapes))]
        make = integers if rng.random() < integer_share else floats
        result[f"layer{k}.{'weight' if len(shape) > 1 else 'bias'}"] = make(rng, shape)
    return result


def for_our_encoder(seed: int) -> Case:
    """Return encoder options whose bitstreams NNCodec supports (errata N11)."""
    rng = np.random.default_rng([1, seed])
    model = tensors(rng)
    density = int(rng.integers(0, 8)) if seed % 3 == 0 else 2
    rules = []
    for name, values in model.items():
        width = int(np.prod(values.shape[1:]))
        scan = int(rng.integers(0, 5))
        skip = bool(rng.random() < 0.4)
        dq = bool(rng.random() < 0.6)
        if scan and skip and dq and width % 4:  # errata D6
            skip = False
        lowest = -60 << density >> 2
        options = {
            "qp": int(max(rng.integers(lowest, -2), -(1 << (5 + density)))),
            "scan_order": scan,
            "row_skipping": skip,
            "dependent_quantization": dq,
            "cabac_unary_length_minus1": int(rng.choice([0, 1, 3, 9, 10, 10, 10, 40, 255])),
            "choose_shift_parameters": bool(rng.random() < 0.7),
        }
        if values.dtype == np.float32 and rng.random() < 0.4:
            options["exact"] = bool(rng.random() < 0.5)
        rules.append(nnr.Rule(name, **options))
    options = {"qp": -8, "qp_density": density, "rules": tuple(rules), "side_info": False}
    return Case(_at_most_one_raw(model, options), options)


#: Content of tests.arrays that has lossless codes.
EXACT_KINDS = (
    "normal",
    "positive",
    "pruned",
    "pruned_with_signed_zeros",
    "clustered",
    "ternary",
    "constant",
    "zeros",
    "binary_steps",
    "grid",
    "grid_by_channel",
    "narrower",
)


def plain_for_our_encoder(seed: int) -> Case:
    """Return a pruned, clustered or quantized model of float32 and int32, with (nearly) default options."""
    rng = np.random.default_rng([5, seed])
    model: dict[str, Array] = {}
    for k in range(rng.integers(1, 5)):
        shape = SHAPES[rng.integers(len(SHAPES))]
        if rng.random() < 0.15:
            model[f"t{k}"] = made(str(rng.choice(["special", "clustered", "far_away"])), shape, "int32", seed + k)
            continue
        values = made(EXACT_KINDS[rng.integers(len(EXACT_KINDS))], shape, "float32", seed + k)
        model[f"t{k}"] = np.where(np.isfinite(values), values, np.float32(0.5))
    options: dict[str, Any] = {}
    if seed % 3 == 1:
        options["qp_density"] = int(rng.integers(0, 8))
    if seed % 3 == 2:
        options |= {"scan_order": int(rng.integers(0, 5)), "row_skipping": True, "dependent_quantization": False}
    return Case(_at_most_one_raw(model, options), options)


def _at_most_one_raw(model: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """Return the model with at most one NNR_PT_RAW_FLOAT tensor, at the end: NNCodec reads no unit after it."""
    info = nnr.open(nnr.encode(model, **options)).info
    raw = [name for name in model if info[name].payload_type == PayloadType.NNR_PT_RAW_FLOAT]
    return {name: model[name] for name in [*(name for name in model if name not in raw), *raw[:1]]}


def for_the_peer(seed: int) -> Case:
    """Return options that avoid known faults of NNCodec's encoder (errata D6, F3, G2)."""
    rng = np.random.default_rng([2, seed])
    scan = int(rng.integers(0, 5)) if rng.random() < 0.5 else 0
    mode = int(rng.choice([0, 0, 0, 1, 2]))
    model = tensors(rng, matrices_only=scan > 0, integer_share=0.15 if mode == 0 else 0.0)
    density = int(rng.integers(0, 5)) if rng.random() < 0.3 else 2
    dq = bool(rng.random() < 0.5)
    skip = bool(rng.random() < 0.5)
    if scan and skip and dq and any(int(np.prod(values.shape[1:])) % 4 for values in model.values()):
        skip = False
    scale = 2.0 ** (density - 2)
    options: dict[str, Any] = {
        "qp": int(rng.integers(-44, -8) * scale),
        "nonweight_qp": int(rng.integers(-75, -20) * scale),
        "qp_density": density,
        "use_dq": dq,
        "codebook_mode": mode,
        "scan_order": scan,
        "row_skipping": skip,
        "param_opt": bool(rng.random() < 0.6),
        "cabac_unary_length_minus1": int(rng.choice([0, 1, 2, 5, 10, 10, 10, 31])),
        "lambda_scale": float(rng.choice([0, 0, 0.3, 1.0])),
    }
    for key in ("qp", "nonweight_qp"):
        bound = 1 << (5 + density)
        options[key] = max(options[key], 1 - bound)
    return Case(model, options)


def blocks_for_the_peer(seed: int) -> Case:
    """Return a weight with bias and batch normalization in one NNR_PT_BLOCK."""
    rng = np.random.default_rng([3, seed])
    rows = int(rng.integers(2, 30))
    shape = (rows, *(int(n) for n in rng.integers(1, 6, 2)), 2)
    model: dict[str, Array] = {"c.weight": np.asarray(rng.normal(0, 0.1, shape), "f4")}
    kinds = {"c.weight": "weight"}
    if with_norm := rng.random() < 0.7:
        for name in ("beta", "gamma", "mean", "var"):
            model[f"c.bn.{name}"] = np.asarray(np.abs(rng.normal(0.5, 0.2, rows)) + 0.1, "f4")
            kinds[f"c.bn.{name}"] = f"bn.{name}"
    if not with_norm or rng.random() < 0.5:
        model["c.bias"] = np.asarray(rng.normal(0, 0.1, rows), "f4")
        kinds["c.bias"] = "bias"
    width = int(np.prod(shape[1:]))
    scan, dq, skip = int(rng.integers(0, 5)), bool(rng.random() < 0.5), bool(rng.random() < 0.5)
    if scan and skip and dq and width % 4:
        skip = False
    options = {
        "block_id_and_param_type": {"parameter_type": kinds, "block_identifier": dict.fromkeys(kinds, "block0")},
        "qp": int(rng.integers(-44, -8)),
        "use_dq": dq,
        "scan_order": scan,
        "row_skipping": skip,
        "bnf": bool(with_norm and rng.random() < 0.5),
        "param_opt": bool(rng.random() < 0.6),
    }
    return Case(model, options)


def blocks_for_our_encoder(seed: int) -> tuple[nnr.Model, dict[str, Any]]:
    """Return two weights with the other tensors of their blocks, without decomposition (errata N11)."""
    rng = np.random.default_rng([4, seed])
    tensors: dict[str, Array] = {}
    blocks = []
    for layer in "ab":
        rows, width = int(rng.integers(1, 40)), 4 * int(rng.integers(1, 12))
        tensors[f"{layer}.weight"] = np.asarray(rng.normal(0, 0.1, (rows, width)), "f4")
        members = {}
        for group in (("scale",), ("bias",), ("beta", "gamma", "mean", "var")):
            if rng.random() < 0.7:
                for member in group:
                    members[member] = f"{layer}.{member}"
                    tensors[members[member]] = np.asarray(rng.normal(0, 0.5, rows).clip(-2, 2), "f4")
        blocks.append(nnr.Block(f"{layer}.weight", **members))
    order = rng.permutation(list(tensors))
    options = {
        "qp": int(rng.integers(-50, -8)),
        "dependent_quantization": bool(rng.random() < 0.6),
        "scan_order": int(rng.integers(0, 5)),
        "row_skipping": bool(rng.random() < 0.4),
        "choose_shift_parameters": bool(rng.random() < 0.7),
        "cabac_unary_length_minus1": int(rng.choice([0, 3, 10, 40])),
    }
    if rng.random() < 0.3:
        options["rules"] = (nnr.Rule("*.bias", exact=False, qp=int(rng.integers(-60, -20))),)
    return nnr.Model({str(name): tensors[str(name)] for name in order}, blocks=blocks), options


def network_for_our_encoder(seed: int) -> tuple[nnr.Model, dict[str, Any]]:
    """Return convolutions of a graph with blocks that the encoder finds; NNCodec does not read the graph."""
    rng = np.random.default_rng([5, seed])
    tensors: dict[str, Array] = {}
    lines, last = ["x = external<scalar>(shape = [1, 4, 8, 8]);"], "x"
    channels = 4
    for layer in "abc"[: int(rng.integers(1, 4))]:
        before, channels = channels, 4 * int(rng.integers(1, 9))
        tensors[f"{layer}.weight"] = np.asarray(rng.normal(0, 0.1, (channels, before, 3, 3)), "f4")
        bias = "0.0"
        if rng.random() < 0.5:
            bias = f"{layer}_bias"
            tensors[f"{layer}.bias"] = np.asarray(rng.normal(0, 0.1, (1, channels)), "f4")
        lines.append(f"{layer}_y = conv({last}, {layer}_weight, {bias}, padding = [(1, 1), (1, 1)]);")
        last = f"{layer}_y"
        if layer == "a" or rng.random() < 0.7:
            for member in ("mean", "var", "beta", "gamma"):
                tensors[f"{layer}.{member}"] = np.asarray(rng.uniform(0.1, 2, (1, channels)), "f4")
            members = ", ".join(f"{layer}_{member}" for member in ("mean", "var", "beta", "gamma"))
            lines.append(f"{layer}_z = batch_normalization({last}, {members}, epsilon = 0.001);")
            last = f"{layer}_z"
    variables = [
        f"{name.replace('.', '_')} = variable<scalar>(shape = {list(array.shape)}, label = '{name}');"
        for name, array in tensors.items()
    ]
    text = "\n".join(["version 1.0;", f"graph net(x) -> ({last})", "{", lines[0], *variables, *lines[1:], "}", ""])
    options = {
        "topology": "external",
        "qp": int(rng.integers(-50, -20)),
        "block": True,
        "fold_batchnorm": bool(rng.random() < 0.5),
        "local_scaling": bool(rng.random() < 0.5),
        "dependent_quantization": bool(rng.random() < 0.6),
        "scan_order": int(rng.integers(0, 5)),
    }
    return nnr.Model(tensors, nnr.Topology("nnef", text.encode())), options


@dataclass(frozen=True)
class Rounds:
    """Differences of several rounds, and encoder options."""

    differences: list[dict[str, Array]]
    options: dict[str, Any]

    @property
    def history(self) -> bool:
        """True if NNCodec requires its history option."""
        return bool(self.options.get("history") or self.options.get("hist_dep_sig_prob"))


def differences(rng: np.random.Generator, model: dict[str, Array], count: int) -> list[dict[str, Array]]:
    """Return rounds of updates in which the same parameters often change again; some tensors are zero."""
    likely = {name: rng.random(values.shape) ** 2 for name, values in model.items()}
    rows = {name: rng.random((len(values), *[1] * (values.ndim - 1))) < 0.8 for name, values in model.items()}
    rounds: list[dict[str, Array]] = []
    last = {name: np.zeros(values.shape) for name, values in model.items()}
    for _ in range(count):
        rounds.append({})
        for name, values in model.items():
            spread = 40.0 if values.dtype.kind == "i" else 0.03
            fresh = rng.normal(0, spread, values.shape) * (rng.random(values.shape) < likely[name]) * rows[name]
            last[name] = 0.5 * last[name] + fresh
            is_zero = rng.random() < 0.2
            rounds[-1][name] = (last[name] * (not is_zero)).astype(values.dtype)
    return rounds


def rounds_for_the_peer(seed: int, count: int) -> Rounds:
    """Return encoder options for NNCodec, with and without temporal contexts, history and residuals."""
    rng = np.random.default_rng([6, seed])
    case = for_the_peer(seed)
    options = case.options | {"tca": bool(seed & 1), "history": bool(seed & 2)}
    if seed % 5 == 4:
        options |= {"pre_signalling": True}
    return Rounds(differences(rng, case.tensors, count), options)


def rounds_for_our_encoder(seed: int, count: int) -> Rounds:
    """Return rounds that NNCodec supports; it does not add residuals of nnr_pre_flag (errata N10, N11)."""
    rng = np.random.default_rng([7, seed])
    case = for_our_encoder(seed)
    rules = [nnr.Rule(rule.pattern, **(rule.options | {"exact": False})) for rule in case.options["rules"]]
    tools = {
        name: (None, True, False)[int(rng.integers(3))] for name in ("temporal_context_modeling", "hist_dep_sig_prob")
    }
    options = case.options | tools | {"rules": tuple(rules), "nnr_pre": False, "device_id": int(rng.integers(4))}
    options["base_model_id"] = ("", "m", "sha256:" + 64 * "0")[int(rng.integers(3))]
    return Rounds(differences(rng, case.tensors, count), options)
