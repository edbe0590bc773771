"""Layers of the OpenVX extension from NNEF graphs: the client computes the graph in Q7.8."""

from __future__ import annotations

import json
import re
import subprocess
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.formats import FormatWarning
from nnr_codec.model import Array, Model, Topology

from . import openvx
from .openvx import Levels, compiled, compiles, levels, run, written

pytestmark = pytest.mark.medium

RNG = np.random.default_rng(78)


def network(body: str, tensors: Mapping[str, Array], shape: tuple[int, ...] = (1, 3, 9, 8), result: str = "y") -> Model:
    """Return a graph of one input ``x`` whose variables have their labels as names."""
    variables = "".join(
        f"    {name} = variable<scalar>(shape = {list(tensor.shape)}, label = '{name}');\n"
        for name, tensor in tensors.items()
    )
    text = (
        f"version 1.0;\ngraph net(x) -> ({result})\n{{\n    x = external<scalar>(shape = {list(shape)});\n"
        f"{variables}    {body}\n}}\n"
    )
    return Model(dict(tensors), Topology("nnef", text.encode()))


def some(*shape: int, scale: float = 0.3) -> Array:
    return RNG.normal(0, scale, shape).astype("f4")


X = some(2, 3, 9, 8, scale=1.0)
W, B = some(4, 3, 3, 3), some(1, 4)
Q = levels(X)


def numbers(x: Levels) -> Array:
    return x / 256


def normalized(x: Levels) -> Levels:
    squares = np.pad(numbers(x) ** 2, [(0, 0), (1, 1), (0, 0), (0, 0)])
    sums = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    found: Levels = np.rint(x / (1 + 0.5 / 3 * sums) ** 0.75)
    return found.astype(np.int64)


def softmax(x: Levels) -> Levels:
    powers = np.exp(numbers(x))
    return np.rint(256 * powers / powers.sum(axis=1, keepdims=True)).astype(np.int64)


def mean(x: Levels) -> Levels:
    return np.rint(x.mean(axis=(2, 3), keepdims=True)).astype(np.int64)


Q_W, Q_B = levels(W), levels(B)
W5 = some(5, 3, 3, 3)
UP, UP_B = some(3, 5, 3, 2), some(1, 5)
FULL, FULL_B = some(6, 216), some(1, 6)
BN = {"m": some(1, 4), "v": np.abs(some(1, 4)) + 0.5, "o": some(1, 4), "s": some(1, 4, scale=2)}
NORMALIZED = (
    "c = conv(x, w, b, padding = [(1, 1), (1, 1)]);"
    " n = batch_normalization(c, m, v, o, s, epsilon = 0.001); y = relu(n);"
)
GRAPHS: dict[str, tuple[str, dict[str, Array], Callable[[], Levels]]] = {
    "convolution": (
        "y = conv(x, w, b, stride = [1, 1], padding = [(1, 1), (1, 1)], dilation = [1, 1], groups = 1);",
        {"w": W, "b": B},
        lambda: openvx.convolution(Q, Q_W, Q_B, pads=[(1, 1), (1, 1)]),
    ),
    "strides that the extents tell": (
        "y = conv(x, w, b, stride = [2, 3], padding = [(1, 1), (0, 0)]);",
        {"w": W, "b": B},
        lambda: openvx.convolution(Q, Q_W, Q_B, pads=[(1, 1), (0, 0)], stride=(2, 3)),
    ),
    "dilation": (
        "y = conv(x, w, 0.0, dilation = [3, 2], padding = [(0, 0), (2, 2)]);",
        {"w": W},
        lambda: openvx.convolution(Q, Q_W, pads=[(0, 0), (2, 2)], dilation=(3, 2)),
    ),
    "padding that the stride makes": (
        "y = conv(x, w, b);",
        {"w": W, "b": B},
        lambda: openvx.convolution(Q, Q_W, Q_B, pads=[(1, 1), (1, 1)]),
    ),
    "less padding after": (
        "y = conv(x, w, b, stride = [2, 2], padding = [(1, 1), (1, 0)]);",
        {"w": W, "b": B},
        lambda: openvx.convolution(Q, Q_W, Q_B, pads=[(1, 1), (1, 0)], stride=(2, 2)),
    ),
    "more padding after": (
        "y = conv(x, w, b, stride = [2, 2]);",
        {"w": W, "b": B},
        lambda: openvx.convolution(Q, Q_W, Q_B, pads=[(1, 1), (0, 1)], stride=(2, 2)),
    ),
    "a bias that is added": (
        "c = conv(x, w, padding = [(0, 0), (0, 0)]); y = relu(c + b);",
        {"w": W, "b": B},
        lambda: openvx.convolution(Q, Q_W, Q_B).clip(0),
    ),
    "deconvolution": (
        "y = deconv(x, u, b, stride = [2, 3], padding = [(0, 0), (0, 0)]);",
        {"u": UP, "b": UP_B},
        lambda: openvx.deconvolution(Q, levels(UP), levels(UP_B), pads=[(0, 0), (0, 0)], stride=(2, 3)),
    ),
    "deconvolution with less cut off after": (
        "y = deconv(x, u, b, stride = [2, 1], padding = [(1, 0), (1, 1)]);",
        {"u": UP, "b": UP_B},
        lambda: openvx.deconvolution(Q, levels(UP), levels(UP_B), pads=[(1, 0), (1, 1)], stride=(2, 1)),
    ),
    "linear": (
        "f = reshape(x, shape = [0, -1]); y = linear(f, w, b);",
        {"w": FULL, "b": FULL_B},
        lambda: openvx.linear(Q, levels(FULL), levels(FULL_B)),
    ),
    "matmul": (
        "s = unsqueeze(squeeze(x, axes = [0]), axes = [0]); f = reshape(s, shape = [1, 216]);"
        " c = matmul(f, w, transposeB = true); y = c + b;",
        {"w": FULL, "b": FULL_B},
        lambda: openvx.linear(Q, levels(FULL), levels(FULL_B)),
    ),
    "matmul of columns": (
        "f = reshape(x, shape = [1, 216]); c = matmul(f, w); y = c + b;",
        {"w": np.ascontiguousarray(FULL.T), "b": FULL_B},
        lambda: openvx.linear(Q, levels(FULL), levels(FULL_B)),
    ),
    "addition of layers": ("y = relu(x) + tanh(x);", {}, lambda: Q.clip(0) + np.rint(256 * np.tanh(numbers(Q)))),
    "addition of a signal to itself": ("y = relu(add(x, x));", {}, lambda: (2 * Q).clip(0)),
    "addition that saturates": (
        "a = 100.0 * abs(x); y = a + a;",
        {},
        lambda: (2 * (100 * np.abs(Q)).clip(0, 32767)).clip(0, 32767),
    ),
    "addition of a tensor": ("y = t + relu(x);", {"t": W[:1, :, 0, 0]}, lambda: Q.clip(0) + levels(W[0, :, :1, :1])),
    "subtraction": ("y = x - abs(x);", {}, lambda: Q - np.abs(Q)),
    "multiplication by a layer": (
        "y = mean_reduce(x, axes = [2, 3]) * x;",
        {},
        lambda: np.rint(mean(Q) * Q / 256),
    ),
    "constants": ("y = (x - 0.5) * -0.01;", {}, lambda: np.rint((Q - 128) * -20972 / 2**21)),
    "batch normalization": (
        NORMALIZED,
        {"w": W, "b": B, **BN},
        lambda: openvx.normalization(
            openvx.convolution(Q, Q_W, Q_B, pads=[(1, 1), (1, 1)]), *(BN[name] for name in "mvos")
        ).clip(0),
    ),
    "padding": (
        "y = relu(pad(abs(x), padding = [(0, 0), (1, 2), (0, 1), (3, 0)], border = 'constant', value = 0.0));",
        {},
        lambda: np.pad(np.abs(Q), [(0, 0), (1, 2), (0, 1), (3, 0)]),
    ),
    "padding of what is used again": (
        "p = pad(x, padding = [(0, 0), (1, 1), (0, 0), (0, 0)]); y = conv(x, w, padding = [(1, 1), (1, 1)]) + p;",
        {"w": W5},
        lambda: np.pad(Q, [(0, 0), (1, 1), (0, 0), (0, 0)]) + openvx.convolution(Q, levels(W5), pads=[(1, 1), (1, 1)]),
    ),
    "max_pool": (
        "y = max_pool(x, size = [1, 1, 3, 2], stride = [1, 1, 3, 2], border = 'ignore',"
        " padding = [(0, 0), (0, 0), (0, 0), (0, 0)]);",
        {},
        lambda: openvx.windows(Q, (3, 2), (3, 2)).max(axis=(4, 5)),
    ),
    "max_pool of what is not negative": (
        "r = relu(x); y = max_pool(r, size = [1, 1, 2, 3], stride = [1, 1, 2, 2], border = 'ignore',"
        " padding = [(0, 0), (0, 0), (0, 1), (0, 1)]);",
        {},
        lambda: openvx.windows(openvx.padded(Q.clip(0), [(0, 1), (0, 1)]), (2, 3), (2, 2)).max(axis=(4, 5)),
    ),
    "avg_pool": (
        "y = avg_pool(x, size = [1, 1, 3, 3], stride = [1, 1, 1, 1], padding = [(0, 0), (0, 0), (1, 1), (1, 1)],"
        " border = 'constant');",
        {},
        lambda: np.rint(openvx.windows(openvx.padded(Q, [(1, 1), (1, 1)]), (3, 3), (1, 1)).mean(axis=(4, 5))),
    ),
    "mean": ("y = mean_reduce(x, axes = [2, 3]);", {}, lambda: mean(Q)),
    "softmax of channels": ("y = softmax(x);", {}, lambda: softmax(Q)),
    "softmax of a vector": (
        "y = softmax(squeeze(mean_reduce(x, axes = [3, 2]), axes = [2, 3]), axes = [1]);",
        {},
        lambda: softmax(mean(Q)),
    ),
    "normalization": (
        "y = local_response_normalization(x, size = [1, 3, 1, 1], alpha = 0.5, beta = 0.75, bias = 1.0);",
        {},
        lambda: normalized(Q),
    ),
    "relu": ("y = relu(copy(x));", {}, lambda: Q.clip(0)),
    "bounded relu": ("y = clamp(x, 0.0, 1.5);", {}, lambda: Q.clip(0, 384)),
    "sigmoid": ("y = sigmoid(x);", {}, lambda: np.rint(256 / (1 + np.exp(-numbers(Q))))),
    "tanh": ("y = tanh(x);", {}, lambda: np.rint(256 * np.tanh(numbers(Q)))),
    "softplus": ("y = softplus(x);", {}, lambda: np.rint(256 * np.log(1 + np.exp(numbers(Q))))),
    "abs": ("y = abs(x);", {}, lambda: np.abs(Q)),
    "sqr": ("y = sqr(x);", {}, lambda: np.rint(Q * Q / 256)),
    "sqrt": ("y = sqrt(abs(x));", {}, lambda: np.rint(256 * np.sqrt(np.abs(numbers(Q))))),
    "concat": (
        "c = conv(x, w, b, padding = []); r = relu(x); s = concat([c, r], axis = 1); y = relu(s);",
        {"w": W, "b": B},
        lambda: np.concatenate([openvx.convolution(Q, Q_W, Q_B, pads=[(1, 1), (1, 1)]), Q.clip(0)], axis=1).clip(0),
    ),
    "concat of concat": (
        "r = relu(x); t = tanh(x); s = concat([r, t], axis = 1); a = abs(x); u = concat([a, s], axis = 1);"
        " y = relu(u);",
        {},
        lambda: np.concatenate([np.abs(Q), Q.clip(0), np.rint(256 * np.tanh(numbers(Q)))], axis=1).clip(0),
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_client_computes_what_the_graph_says(name: str, tmp_path: Path) -> None:
    body, tensors, expected = GRAPHS[name]
    folder = written(network(body, tensors), tmp_path / "net.openvx")
    found, _ = run(compiled(folder, tmp_path / "client"), folder, list(X))
    wanted = expected().astype(np.int64).reshape(len(X), -1)
    assert found.shape == wanted.shape
    exact = not re.search("softmax|^normal|sigmoid|tanh|softplus|concat of|addition of layers", name)
    assert np.abs(found - wanted).max() <= (0 if exact else 1)


def test_the_client_names_a_file_that_it_cannot_open(tmp_path: Path) -> None:
    folder = written(network(GRAPHS["normalization"][0], {}), tmp_path / "net.openvx")
    program, missing, outside = compiled(folder, tmp_path / "client"), tmp_path / "none", tmp_path / "none" / "out"
    for arguments, message in (
        ([], f"usage: {program} FOLDER INPUT OUTPUT\n"),
        ([folder, missing, tmp_path / "out"], f"cannot open {missing}\n"),
        ([folder, folder / "tensors.json", outside], f"cannot open {outside}\n"),
    ):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, message)
    assert not (tmp_path / "out").exists()


def test_version_1_3_calls_the_normalization_otherwise(tmp_path: Path) -> None:
    folder = written(network(GRAPHS["normalization"][0], {}), tmp_path / "net.openvx")
    compiles(folder, "-DVX_VERSION_1_3=0x103")
    compiles(folder)
    compiles(folder, "-DVX_VERSION_1_3=0x103")


def test_a_batch_normalization_that_is_folded_is_a_bias(tmp_path: Path) -> None:
    model = network(NORMALIZED, {"w": W, "b": B, **BN})
    folder = written(model, tmp_path / "net.openvx", fold_batchnorm=True)
    names = [tensor["name"] for tensor in json.loads((folder / "tensors.json").read_text())["tensors"]]
    assert names == ["w", "o"]
    found, calls = run(compiled(folder, tmp_path / "client"), folder, list(X))
    assert "with 4 to 8x9x4x1" in calls
    alpha = (BN["s"] / np.sqrt(BN["v"] + 0.001)).astype("f8")
    offset = (B - BN["m"]) * alpha + BN["o"]
    weight = levels((W * alpha.reshape(-1, 1, 1, 1)).astype("f4"))
    wanted = openvx.convolution(Q, weight, levels(offset.astype("f4")), pads=[(1, 1), (1, 1)]).clip(0)
    assert np.array_equal(found, wanted.reshape(len(X), -1))


def test_a_batch_normalization_that_is_not_has_factors_and_offsets(tmp_path: Path) -> None:
    model = network(NORMALIZED, {"w": W, "b": B, **BN})
    model.tensors = {**model.tensors, "n/factors": B}
    folder = written(model, tmp_path / "net.openvx")
    found = json.loads((folder / "tensors.json").read_text())
    assert {tensor["name"]: tensor["dims"] for tensor in found["tensors"]} == {
        **{"w": [3, 3, 3, 4], "b": [4], "n/factors": [4, 1]},
        **{name: [1, 1, 4, 1] for name in ("n/factors_", "n/offsets")},
    }


@pytest.mark.parametrize(("name", "value"), [("o", 200.0), ("v", -1.0), ("s", 120.0)])
def test_a_batch_normalization_beyond_the_numbers_is_left(name: str, value: float, tmp_path: Path) -> None:
    """An offset or a factor does not fit Q7.8, or is no number."""
    tensors = {"w": W, "b": B, **BN, "v": np.full((1, 4), 0.25), name: np.full((1, 4), value)}
    tensors["m"] = np.full((1, 4), 100.0 if name == "o" else 0.0)
    tensors["s"] = np.full((1, 4), -2.0) if name == "o" else tensors["s"]
    with pytest.warns(FormatWarning, match=r"add them to the graph: batch_normalization \(1\)$"):
        folder = written(network(NORMALIZED, tensors), tmp_path / "net.openvx")
    compiles(folder)
    found = json.loads((folder / "tensors.json").read_text())
    assert [tensor["name"] for tensor in found["tensors"]] == ["w", "b", "m", "v", "o", "s"]
    assert [signal["name"] for signal in found["inputs"]] == ["x", "n"]
    assert [signal["name"] for signal in found["outputs"]] == ["c", "y"]
    assert not found["is_complete"]


REGIONS = (
    "version 1.0; graph net(x, r, k) -> (y) { x = external(shape = [BATCH, 3, 9, 8]); r = external(shape = [2, 4]);"
    " k = external<integer>(shape = [2, 1]); p = max_roi_pool(relu(x), r, k, output_size = [3, 2]); y = sqr(p); }"
)


def test_regions_are_pooled(tmp_path: Path) -> None:
    """Regions are columns and rows, from the first to the last; cells that share items overlap."""
    model = Model({}, Topology("nnef", REGIONS.replace("BATCH", "1").encode()))
    folder = written(model, tmp_path / "net.openvx")
    regions = [(0, 0, 7, 8), (1, 2, 5, 5)]
    inputs = np.concatenate([X[:1].reshape(-1), np.array(regions).reshape(-1) / 256])
    found, calls = run(compiled(folder, tmp_path / "client"), folder, [inputs])
    assert "roi pooling 8x9x3 by 4x2 to 2x3x3x2" in calls
    wanted = np.zeros((2, 3, 3, 2), np.int64)
    for k, (left, top, right, bottom) in enumerate(regions):
        height, width = bottom - top + 1, right - left + 1
        for i, j in np.ndindex(3, 2):
            rows = slice(top + i * height // 3, top - (-(i + 1) * height // 3))
            columns = slice(left + j * width // 2, left - (-(j + 1) * width // 2))
            wanted[k, :, i, j] = Q[0, :, rows, columns].clip(0).max(axis=(1, 2))
    assert np.array_equal(found.reshape(wanted.shape), np.rint(wanted**2 / 256))


@pytest.mark.parametrize(
    "text", [REGIONS.replace("BATCH", "2"), REGIONS.replace("BATCH", "1").replace("x), r,", "x), relu(r),")]
)
def test_regions_of_several_images_and_regions_that_are_computed_are_left(text: str, tmp_path: Path) -> None:
    """Computed ones are in Q7.8."""
    model = Model({}, Topology("nnef", text.encode()))
    with pytest.warns(FormatWarning, match=r"add them to the graph: max_roi_pool \(1\)$"):
        written(model, tmp_path / "net.openvx")


def test_a_folded_one_that_no_layer_precedes_loses_what_it_does_not_need(tmp_path: Path) -> None:
    """Its variance is not representable in Q7.8."""
    body = NORMALIZED.replace("padding = [(1, 1), (1, 1)]", "padding = [(1, 1), (1, 1)], border = 'reflect'")
    with pytest.warns(FormatWarning, match=r"add them to the graph: conv \(1\)$"):
        folder = written(network(body, {"w": W, "b": B, **BN}), tmp_path / "net.openvx", fold_batchnorm=True)
    found = json.loads((folder / "tensors.json").read_text())
    assert {tensor["name"] for tensor in found["tensors"]} == {"w", "b", "n/offsets"}


#: Graphs of which a part remains, and this part; later layers remain if their shapes are known.
LEFT: list[tuple[str, dict[str, Array], str, int]] = [
    ("c = conv(x, w, padding = [(1, 1), (1, 1)], groups = 3); y = relu(c);", {"w": some(3, 1, 3, 3)}, "conv (1)", 1),
    ("c = conv(x, w, border = 'replicate'); y = relu(c);", {"w": W}, "conv (1)", 1),
    ("c = conv(x, w, padding = [(0, 0), (0, 0)], stride = [5, 1]); y = relu(c);", {"w": W}, "conv (1)", 1),
    ("c = conv(x, transpose(w, axes = [1, 0, 2, 3])); y = relu(c);", {"w": some(3, 4, 1, 1)}, "conv (1)", 1),
    ("c = deconv(x, u, output_shape = [1, 5, 9, 8]); y = relu(c);", {"u": UP}, "deconv (1)", 1),
    ("c = deconv(x, u, stride = [2, 2], padding = [(0, 1), (0, 0)]); y = relu(c);", {"u": UP}, "deconv (1)", 1),
    ("c = deconv(x, u, dilation = [2, 2], padding = [(0, 0), (0, 0)]); y = relu(c);", {"u": UP}, "deconv (1)", 1),
    ("y = relu(x / x);", {}, "/ (1)", 1),
    ("y = relu(0.5 - x);", {}, "- (1)", 1),
    ("y = relu(x + 128.0);", {}, "+ (1)", 1),
    ("y = relu(x * 128.0);", {}, "* (1)", 1),
    ("y = relu(x + t);", {"t": some(2, 3, 9, 8)}, "+ (1)", 1),
    ("y = relu(x + squeeze(mean_reduce(x, axes = [2, 3]), axes = [2, 3]));", {}, "+ (1)", 2),
    ("f = reshape(x, shape = [216, 1]); y = matmul(f, w, transposeA = true);", {"w": some(216, 2)}, "matmul (1)", 0),
    ("y = softmax(x, axes = [2]);", {}, "softmax (1)", 0),
    ("y = local_response_normalization(x, size = [1, 9, 1, 1]);", {}, "local_response_normalization (1)", 0),
    ("y = local_response_normalization(x, size = [1, 1, 3, 3]);", {}, "local_response_normalization (1)", 0),
    ("y = local_response_normalization(x, [1, 3, 1, 1], bias = 2.0);", {}, "local_response_normalization (1)", 0),
    ("y = clamp(x, -1.0, 1.0);", {}, "clamp (1)", 0),
    ("y = max_pool(x, size = [1, 1, 3, 3], padding = [], border = 'ignore');", {}, "max_pool (1)", 0),
    ("y = avg_pool(x, size = [1, 1, 3, 3], padding = [], border = 'ignore');", {}, "avg_pool (1)", 0),
    ("y = avg_pool(x, size = [1, 3, 1, 1], padding = [(0,0), (1,1), (0,0), (0,0)]);", {}, "avg_pool (1)", 0),
    ("y = relu(concat([x, x], axis = 1));", {}, "concat (1)", 1),
    ("r = relu(x); y = concat([r, r], axis = 2);", {}, "concat (1)", 1),
    ("y = relu(pad(x, padding = [(0, 0), (0, 0), (1, 1), (1, 1)], border = 'reflect'));", {}, "pad (1)", 1),
    ("y = relu(pad(x, padding = [(0, 0), (0, 0), (1, 1), (1, 1)], value = 1.0));", {}, "pad (1)", 1),
    ("p = pad(x, padding = [(0, 0), (0, 1), (0, 0), (0, 0)]); q = pad(x, padding = [(0, 0), (1, 0), (0, 0), (0, 0)]);"
     " y = relu(p + q);", {}, "pad (1)", 2),
    ("y = relu(transpose(x, axes = [0, 2, 3, 1]));", {}, "transpose (1)", 1),
    ("y = mean_reduce(x, axes = [1]);", {}, "mean_reduce (1)", 0),
    ("y = x if k else relu(x);", {}, "an expression (1)", 0),
]  # fmt: skip


@pytest.mark.parametrize(("body", "tensors", "left", "layers"), LEFT)
def test_what_the_extension_cannot_do_is_left(
    body: str, tensors: dict[str, Array], left: str, layers: int, tmp_path: Path
) -> None:
    with pytest.warns(FormatWarning, match=re.escape(f"add them to the graph: {left}") + "$"):
        folder = written(network(body, tensors), tmp_path / "net.openvx")
    compiles(folder)
    text = (folder / "client.c").read_text()
    assert len(re.findall(r"^        status = \w+\(graph, signals, ", text, re.MULTILINE)) == layers
    assert "int main" not in text
    assert "#define NNR_IS_COMPLETE 0" in (folder / "client.h").read_text()


def test_a_tensor_for_two_kinds_of_layers(tmp_path: Path) -> None:
    """It can have only one memory order."""
    body = "c = conv(x, w, padding = [(1, 1), (1, 1)]); y = deconv(c, w, padding = [(1, 1), (1, 1)]);"
    with pytest.warns(FormatWarning, match=r"deconv \(1\)$"):
        folder = written(network(body, {"w": some(3, 3, 3, 3)}), tmp_path / "net.openvx")
    assert not any(each["is_turned"] for each in json.loads((folder / "tensors.json").read_text())["tensors"])


def test_integers_are_no_weights(tmp_path: Path) -> None:
    body = "y = linear(reshape(x, shape = [0, -1]), w);"
    model = network(body, {"w": RNG.integers(-5, 5, (4, 216)).astype("i1")})
    with pytest.warns(FormatWarning, match=r"linear \(1\)$"):
        nnr.save(model, tmp_path / "net.openvx")
    assert (tmp_path / "net.openvx" / "0-w.s8").read_bytes() == np.asarray(model["w"]).tobytes()


def test_pruned_tensors_have_their_own_shapes(tmp_path: Path) -> None:
    """The graph states the shapes before pruning."""
    model = network(
        "c = conv(x, w, padding = [(1, 1), (1, 1)]); n = div(c, c); y = relu(n);", {"w": some(4, 3, 3, 3)}, (1, 3, 9, 8)
    )
    model.tensors, model.pruned = {"w": W[:2]}, {"w"}
    with pytest.warns(FormatWarning, match=r"div \(1\)$"):
        folder = written(model, tmp_path / "net.openvx")
    (output, _) = json.loads((folder / "tensors.json").read_text())["outputs"]
    assert output["dims"] == [8, 9, 2, 1]


def test_a_tensor_that_is_missing_leaves_its_layer(tmp_path: Path) -> None:
    model = network(GRAPHS["convolution"][0], {"w": W, "b": B})
    model.tensors = {"w": np.rint(W * 256) / 256}
    with pytest.warns(FormatWarning, match=r"conv \(1\)$"):
        nnr.save(model, tmp_path / "net.openvx")


def test_labels_whose_case_differs_are_one_tensor(tmp_path: Path) -> None:
    model = network(GRAPHS["convolution"][0], {"w": W, "b": B})
    model.tensors = {"W": np.rint(W * 256) / 256, "B": np.rint(B * 256) / 256}
    nnr.save(model, tmp_path / "net.openvx")
    found, _ = run(compiled(tmp_path / "net.openvx", tmp_path / "client"), tmp_path / "net.openvx", list(X))
    assert np.array_equal(found, GRAPHS["convolution"][2]().reshape(len(X), -1))


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    text = (
        "version 1.0;\ngraph net(a, b) -> (y, z, a2)\n{ a = external(shape = [1, 2]); b = external(shape = [1, 3]);"
        " y = relu(b); z = abs(a); a2 = copy(a); }\n"
    )
    folder = written(Model({}, Topology("nnef", text.encode())), tmp_path / "net.openvx")
    program = compiled(folder, tmp_path / "client")
    order = [signal["name"] for signal in json.loads((folder / "tensors.json").read_text())["inputs"]]
    parts = {"a": np.array([-1.5, 2.0]), "b": np.array([-3.0, 4.0, -5.0])}
    found, _ = run(program, folder, [np.concatenate([parts[name] for name in order])])
    assert found.tolist() == [[0, 4 * 256, 0, 384, 512, -384, 512]]


@pytest.mark.parametrize(
    "body",
    [
        "y = relu(x); " + " ".join(f"y{k} = relu(y{k - 1});" if k else "y0 = relu(y);" for k in range(3000)),
        "y = " + "relu(" * 150 + "x" + ")" * 150 + ";",
    ],
)
def test_long_and_deep_graphs(body: str, tmp_path: Path) -> None:
    """No function recurses along the chain of operations."""
    result = "y2999" if "y2999" in body else "y"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = written(network(body, {}, result=result), tmp_path / "net.openvx")
    assert (folder / "client.c").stat().st_size > 10_000


@pytest.mark.parametrize(
    "arguments",
    [
        {"shape": (1, 4_000_000_000, 4_000_000_000, 4_000_000_000)},
        {"body": f"y = max_pool(x, size = [1, 1, 1, 1], stride = [1, 1, {10**30}, 1], border = 'ignore');"},
        {"body": f"y = max_pool(x, size = [1, 1, {10**40}, 1], padding = [(0,0),(0,0),({10**40},0),(0,0)]);"},
        {"body": "y = relu(pad(x, padding = [(0, 0), (0, 0), (-20, 0), (0, 0)]));"},
        {"body": "y = relu(transpose(x, axes = [0, 0, 0, 7]));"},
        {"body": "y = relu(concat([x], axis = -9));"},
        {"body": "y = relu(reshape(x, shape = [-1, -1]));"},
        {"body": "y = relu(reshape(x, shape = [-5, 0]));"},
        {"body": "y = relu(unsqueeze(x, axes = [99]));"},
        {"body": "y = relu(squeeze(x, axes = [1, -7]));"},
        {"body": "y = clamp(x, 0.0, 1.0e39);"},
        {"body": "y = clamp(x, 0.0, 1.0e-50);"},
        {"body": "y = conv(x, x, x);"},
        {"body": "y = batch_normalization(x, x, x, x, x, epsilon = x);"},
    ],
)
def test_hostile_arguments_leave_operations(arguments: dict[str, Any], tmp_path: Path) -> None:
    arguments = {"body": "y = relu(x);", "tensors": {}, **arguments}
    with pytest.warns(FormatWarning, match="the client omits operations"):
        folder = written(network(**arguments), tmp_path / "net.openvx")
    compiles(folder)
