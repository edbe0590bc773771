"""Removable channels of NNEF graphs: for each operation, and in real networks."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnr_codec import formats
from nnr_codec.model import Channels, Slice, Topology

from ..shared import SHARED, needs_shared

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.nnef"

VARIABLES = {
    "w": [4, 3, 3, 3],
    "b": [1, 4],
    "v": [4, 4, 3, 3],
    "r": [2, 4, 1, 1],
    "r8": [2, 8, 1, 1],
    "r10": [2, 10, 1, 1],
    "g": [4, 2, 3, 3],
    "p": [4, 1, 3, 3],
    "p8": [8, 1, 3, 3],
    "q": [5, 4, 1, 1],
    "r5": [2, 5, 1, 1],
    "d": [4, 6, 3, 3],
    "r6": [2, 6, 1, 1],
    "f": [5, 256],
    "f4": [5, 4],
    "k": [6, 5],
    "m": [5, 6],
    "k5": [1, 5],
    "o": [2, 6],
    "t": [3, 3, 3, 4],
    "mean": [1, 4],
    "var": [1, 4],
    "beta": [1, 4],
    "gamma": [1, 4],
    "alpha": [1, 4],
    "one": [1, 1],
    "s": [4, 1, 1, 1],
    "d2": [6, 4, 3, 3],
}
_SAME = "c = conv(x, w, b);"


def graph(body: str, fragments: str = "", outputs: str = "y", extra: str = "") -> bytes:
    """Return a graph that declares the variables it names."""
    used = [name for name in VARIABLES if any(part == name for part in _words(body + fragments))]
    lines = [f"{name} = variable<scalar>(shape = {VARIABLES[name]}, label = '{name}');" for name in used]
    head = f"version 1.0; extension KHR_enable_fragment_definitions; {fragments} graph g(x) -> ({outputs}) {{\n"
    return "\n".join([head, "x = external(shape = [1, 3, 8, 8]);", extra, *lines, body, "}"]).encode()


def _words(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split()


def told(part: Slice) -> str:
    """Return tensor.axis, with + offset, x outer and * inner unless trivial; ! marks the producer of the channels."""
    text = f"{part.tensor}.{part.axis}"
    text += f"+{part.offset}" if part.offset else ""
    text += f"x{part.outer}" if part.outer > 1 else ""
    text += f"*{part.inner}" if part.inner > 1 else ""
    return text + "!" * part.makes


def channels(data: bytes) -> list[str]:
    """Return each group: number of channels and their positions."""
    found: tuple[Channels, ...] = formats.channels(Topology("nnef", data))
    return [" ".join([f"{group.size}:", *sorted(map(told, group.parts))]) for group in found]


#: Bodies, and their channels: ``w`` makes four from the input's three, ``r`` reads four.
RULES: dict[str, tuple[str, list[str]]] = {
    "conv": (f"{_SAME} y = conv(c, r);", ["4: b.1 r.1 w.0!"]),
    "conv, unknown groups": (f"{_SAME} y = conv(c, r, groups = k);", []),
    "groups": (f"{_SAME} e = conv(c, g, groups = 2); y = conv(e, r);", []),
    "depthwise": (f"{_SAME} e = conv(c, p, groups = 0); y = conv(e, r);", ["4: b.1 p.0 r.1 w.0!"]),
    "several filters a channel": (
        f"{_SAME} e = conv(c, p8, groups = 0); y = conv(e, r8);",
        ["4: b.1 p8.0*2 r8.1*2 w.0!"],
    ),
    "separable_conv": (
        f"{_SAME} e = separable_conv(c, p, q); y = conv(e, r5);",
        ["4: b.1 p.0 q.1 w.0!", "5: q.0! r5.1"],
    ),
    "deconv": (f"{_SAME} e = deconv(c, d); y = conv(e, r6);", ["4: b.1 d.0 w.0!", "6: d.1! r6.1"]),
    "deconv of given extents": (
        f"{_SAME} e = deconv(c, d, output_shape = [1, 6, 8, 8]); y = conv(e, r6);",
        [],
    ),
    "transposed filter": ("c = conv(x, transpose(t, axes = [3, 2, 0, 1])); y = conv(c, r);", ["4: r.1 t.3!"]),
    "scaled filter": ("c = conv(x, w * s); y = conv(c, r);", ["4: r.1 s.0 w.0!"]),
    "batch_normalization": (
        f"{_SAME} n = batch_normalization(c, mean, var, beta, gamma, epsilon = 0.1); y = conv(n, r);",
        ["4: b.1 beta.1 gamma.1 mean.1 r.1 var.1 w.0!"],
    ),
    "bias added": ("c = conv(x, w) + b; y = conv(c, r);", ["4: b.1 r.1 w.0!"]),
    "single bias": ("c = conv(x, w) + one; y = conv(c, r);", ["4: r.1 w.0!"]),
    "prelu": (f"{_SAME} e = prelu(c, alpha); y = conv(e, r);", ["4: alpha.1 b.1 r.1 w.0!"]),
    "unary": (f"{_SAME} e = tanh(relu(sigmoid(elu(c)))); y = conv(e, r);", ["4: b.1 r.1 w.0!"]),
    "clamp": (f"{_SAME} e = clamp(c, 0.0, 6.0); y = conv(e, r);", ["4: b.1 r.1 w.0!"]),
    "select": (f"{_SAME} e = select(c > 0.0, c, 0.5 * c); y = conv(e, r);", ["4: b.1 r.1 w.0!"]),
    "residual": (f"{_SAME} e = relu(conv(c, v) + c); y = conv(e, r);", ["4: b.1 r.1 v.0! v.1 w.0!"]),
    "squeeze and excite": (
        f"{_SAME} u = mean_reduce(c, axes = [2, 3]); e = c * sigmoid(u); y = conv(e, r);",
        ["4: b.1 r.1 w.0!"],
    ),
    "concat": (f"{_SAME} e = concat([c, relu(c)], axis = 1); y = conv(e, r8);", ["4: b.1 r8.1x2 w.0!"]),
    "concat of several": (
        f"{_SAME} e = conv(c, d2); y = conv(concat([e, c], axis = 1), r10);",
        ["4: b.1 d2.1 r10.1+6 w.0!", "6: d2.0! r10.1"],
    ),
    "concat of places": (f"{_SAME} e = concat([c, c], axis = 2); y = conv(e, r);", ["4: b.1 r.1 w.0!"]),
    "concat with the input": ("c = conv(x, w); y = conv(concat([x, c, x], axis = 1), r10);", ["4: r10.1+3 w.0!"]),
    "pad of channels": (
        f"{_SAME} e = pad(c, padding = [(0, 0), (3, 3), (0, 0), (0, 0)]); y = conv(e, r10);",
        ["4: b.1 r10.1+3 w.0!"],
    ),
    "pad of channels by others": (
        f"{_SAME} e = pad(c, padding = [(0, 0), (3, 3), (0, 0), (0, 0)], border = 'reflect'); y = conv(e, r10);",
        [],
    ),
    "pad": (f"{_SAME} e = pad(c, padding = [(0, 0), (0, 0), (1, 1), (0, 1)]); y = conv(e, r);", ["4: b.1 r.1 w.0!"]),
    "max_pool": (
        f"{_SAME} e = max_pool(c, size = [1, 1, 2, 2], stride = [1, 1, 2, 2], border = 'ignore', "
        "padding = [(0, 0), (0, 0), (0, 1), (0, 1)]); y = conv(e, r);",
        ["4: b.1 r.1 w.0!"],
    ),
    "pool over channels": (f"{_SAME} e = avg_pool(c, size = [1, 2, 1, 1], border = 'ignore'); y = conv(e, r);", []),
    "pool of every other channel": (
        f"{_SAME} e = max_pool(c, size = [1, 1, 1, 1], stride = [1, 2, 1, 1], border = 'ignore'); y = conv(e, r);",
        [],
    ),
    "upsample": (
        f"{_SAME} e = nearest_upsample(c, factor = [2, 2]); y = conv(e, r);",
        ["4: b.1 r.1 w.0!"],
    ),
    "neighbours": (f"{_SAME} e = local_response_normalization(c, size = [1, 3, 1, 1]); y = conv(e, r);", []),
    "neighbours in space": (
        f"{_SAME} e = local_response_normalization(c, size = [1, 1, 3, 3]); y = conv(e, r);",
        ["4: b.1 r.1 w.0!"],
    ),
    "softmax": (f"{_SAME} e = softmax(c); y = conv(e, r);", []),
    "softmax in space": (f"{_SAME} e = softmax(c, axes = [2, 3]); y = conv(e, r);", ["4: b.1 r.1 w.0!"]),
    "mean over channels": (f"{_SAME} u = mean_reduce(c, axes = [1]); y = conv(c - u, r);", []),
    "flatten": (
        f"{_SAME} l = linear(reshape(c, shape = [0, -1]), f, k5); y = matmul(l, m);",
        ["4: b.1 f.1*64 w.0!", "5: f.0! k5.1 m.0"],
    ),
    "flatten of channels last": (
        f"{_SAME} e = transpose(c, axes = [0, 2, 3, 1]); l = linear(reshape(e, shape = [1, -1]), f, k5); "
        "y = matmul(l, k, transposeB = true);",
        ["4: b.1 f.1x64 w.0!", "5: f.0! k.1 k5.1"],
    ),
    "flatten by number": (
        f"{_SAME} l = linear(reshape(c, shape = [1, 256]), f, k5); y = matmul(l, m);",
        ["5: f.0! k5.1 m.0"],
    ),
    "flatten both ways": (
        f"{_SAME} e = transpose(c, axes = [0, 2, 1, 3]); l = linear(reshape(e, shape = [0, -1]), f, k5); "
        "y = matmul(l, m);",
        ["5: f.0! k5.1 m.0"],
    ),
    "flatten of one place": (
        f"{_SAME} u = mean_reduce(c, axes = [2, 3]); l = linear(reshape(u, shape = [0, -1]), f4); y = linear(l, k);",
        ["4: b.1 f4.1 w.0!", "5: f4.0! k.1"],
    ),
    "squeeze": (
        f"{_SAME} u = squeeze(mean_reduce(c, axes = [2, 3]), axes = [2, 3]); l = linear(u, f4); y = linear(l, k);",
        ["4: b.1 f4.1 w.0!", "5: f4.0! k.1"],
    ),
    "unsqueeze": (
        f"{_SAME} u = squeeze(mean_reduce(c, axes = [2, 3]), axes = [2, 3]); y = conv(unsqueeze(u, axes = [2, 3]), r);",
        ["4: b.1 r.1 w.0!"],
    ),
    "reshape of others": (
        f"{_SAME} e = reshape(c, shape = [64, -1], axis_start = 2, axis_count = 2); "
        "y = conv(reshape(e, shape = [8, 8], axis_start = 2, axis_count = 2), r);",
        ["4: b.1 r.1 w.0!"],
    ),
    "channels apart": (
        f"{_SAME} e = reshape(c, shape = [0, 2, 2, 8, 8]); y = conv(reshape(e, shape = [1, 4, 8, 8]), r);",
        [],
    ),
    "slice": (f"{_SAME} e = slice(c, axes = [1], begin = [0], end = [4]); y = conv(e, r);", []),
    "slice of places": (
        f"{_SAME} e = slice(c, axes = [2], begin = [1], end = [7]); y = conv(e, r);",
        ["4: b.1 r.1 w.0!"],
    ),
    "split": (f"{_SAME} [a, e] = split(c, axis = 1, ratios = [1, 1]); y = conv(concat([a, e], axis = 1), r);", []),
    "unknown": (f"{_SAME} e = vendor_thing(c); y = conv(e, r);", []),
    "unknown beside": (f"{_SAME} e = vendor_thing(x); y = conv(c + e, r);", []),
    "unknown before": ("e = vendor_thing(x); c = conv(e, w); y = conv(c, r);", ["4: r.1 w.0!"]),
    "in arrays of arrays": (f"{_SAME} e = vendor_thing([[c], [[c]]]); y = conv(c, r) + e;", []),
    "in the same array twice": (f"{_SAME} a = [c]; e = vendor_thing([a, a]); y = conv(c, r) + e;", []),
    "in a condition": (f"{_SAME} y = conv(c, r) if shape_of(c)[1] == 4 else c;", []),
    "read as places": (f"{_SAME} e = transpose(c, axes = [0, 2, 1, 3]); y = conv(e, r8);", []),
    "divided by channels": (f"{_SAME} e = relu(c) / c; y = conv(e, r);", []),
    "divided by a vector": (f"{_SAME} e = c / alpha; y = conv(e, r);", []),
    "deconv of each channel": (f"{_SAME} e = deconv(c, g, groups = 0); y = conv(e, r8);", ["4: b.1 g.0 r8.1*2 w.0!"]),
    "product of something unknown": (
        "e = vendor_thing(x); l = matmul(e, m); y = matmul(l, o, transposeB = true);",
        ["6: m.1! o.1"],
    ),
    "both are activations": (
        f"{_SAME} u = squeeze(mean_reduce(c, axes = [2, 3]), axes = [2, 3]); y = matmul(u, u, transposeB = true);",
        [],
    ),
    "unknown argument": (f"{_SAME} y = conv(c, r, vendor = c);", []),
    "fragment": ("y = conv(twice(conv(x, w), v), r);", ["4: r.1 v.0! v.1 w.0!"]),
    "constants": (f"{_SAME} e = c * constant(shape = [1, 4], value = [1.0]); y = conv(e, r);", []),
    "one constant": (f"{_SAME} e = c * constant(shape = [1, 1], value = [2.0]); y = conv(e, r);", ["4: b.1 r.1 w.0!"]),
    "read twice": (
        f"{_SAME} y = conv(c, r) + mean_reduce(conv(relu(c), r), axes = [2, 3]);",
        ["4: b.1 r.1 w.0!"],
    ),
}
_VENDOR = "fragment vendor_thing(x: tensor<scalar>) -> (y: tensor<scalar>);"
_TWICE = "fragment twice(z: tensor<scalar>, k: tensor<scalar>) -> (o: tensor<scalar>) { o = conv(z, k) + z; }"


def support(body: str) -> str:
    """Return the fragments that a body needs."""
    return _VENDOR * ("vendor" in body) + _TWICE * ("twice" in body)


@pytest.mark.parametrize("name", RULES)
def test_operations(name: str) -> None:
    body, expected = RULES[name]
    assert channels(graph(body, support(body))) == expected


def test_outputs_and_inputs_stay() -> None:
    assert channels(graph(f"{_SAME} y = conv(c, r);", outputs="y, c")) == []
    assert channels(graph(f"{_SAME} y = relu(c);")) == []
    assert channels(graph("y = conv(x, w);")) == []


def test_labels_that_differ_in_case_are_one_tensor() -> None:
    extra = "V2 = variable<scalar>(shape = [4, 4, 3, 3], label = 'V');"
    body = f"{_SAME} e = conv(c, V2); y = conv(conv(e, v), r);"
    assert channels(graph(body, extra=extra)) == ["4: V.0! V.1 b.1 r.1 w.0!"]


def test_integers_stay() -> None:
    extra = "i = variable<integer>(shape = [4, 3, 3, 3], label = 'i');"
    assert channels(graph("c = conv(x, i); y = conv(c, r);", extra=extra)) == []


def test_extents_are_not_taken_at_their_word() -> None:
    """No test case allocates the declared size."""
    big = "h = variable<scalar>(shape = [2000000000, 3, 1, 1], label = 'h');"
    assert channels(graph("c = conv(x, h); y = mean_reduce(c, axes = [1]);", extra=big)) == []
    body = f"{_SAME} e = pad(c, padding = [(0, 0), (2000000000, 0), (0, 0), (0, 0)]); y = conv(e, r);"
    assert channels(graph(body)) == []
    body = "z = external(shape = [2000000000, 2000000000]); y = conv(relu(conv(x, w)), r) + z;"
    assert channels(graph(body)) == ["4: r.1 w.0!"]


def test_invalid_graphs_have_no_channels() -> None:
    assert formats.channels(Topology("nnef", b"no graph")) == ()
    assert formats.channels(Topology("", b"unknown")) == ()


def sizes(path: Path) -> list[int]:
    topology = formats.load(path).topology
    assert topology
    return [group.size for group in formats.channels(topology)]


def test_the_example() -> None:
    assert sizes(EXAMPLE) == [16, 48, 64]


@needs_shared
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("digits_cnn", [16, 32, 64]),
        ("digits_cnn.nnef_tools", [64, 32, 16]),
        ("digits_f32.tflite", [16]),  # the other is flattened by number
        ("resnet20_cifar10", [16] * 4 + [32] * 3 + [64] * 3),
        ("resnet56_cifar10", [16] * 10 + [32] * 9 + [64] * 9),
        (
            "squeezenet1_0_deepcompression",
            [96, *[k for n in (16, 16, 32, 32, 48, 48, 64, 64) for k in (n, 4 * n, 4 * n)]],
        ),
    ],
)
def test_networks(name: str, expected: list[int]) -> None:
    assert SHARED
    assert sizes(SHARED / "models" / f"{name}.nnef") == expected


@needs_shared
def test_residuals_that_grow() -> None:
    """In ResNet-20, the channels of the first stage are the middle ones of later stages, between zeros."""
    assert SHARED
    topology = formats.load(SHARED / "models" / "resnet20_cifar10.nnef").topology
    assert topology
    stage = next(group for group in formats.channels(topology) if len(group.parts) > 10)
    offsets = {
        name: {part.offset for part in stage.parts if part.tensor.startswith(name)} for name in ("layer2/1", "layer3/1")
    }
    assert (stage.size, offsets) == (16, {"layer2/1": {8}, "layer3/1": {24}})
