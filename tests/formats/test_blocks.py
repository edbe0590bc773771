"""Blocks recognized in NNEF graphs, and the information of a graph about its tensors."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError
from nnr_codec.formats import nnef
from nnr_codec.formats.nnef import dataflow
from nnr_codec.model import Block, Topology, Wiring

from ..shared import SHARED, needs_shared
from .test_nnef_channels import EXAMPLE

_VARIABLES = {
    "w": [4, 3, 2, 2],
    "m": [3, 4],
    "n": [4, 3],
    "d": [3, 4, 2, 2],
    "t": [2, 2, 3, 4],
    "p": [3, 1, 2, 2],
    "q": [4, 3, 1, 1],
    "k": [2, 3, 4],
    "b": [1, 4],
    "s": [1, 4, 1, 1],
    "r": [4],
    "c": [4, 1, 1],
    "o": [1, 1],
    "f": [2, 2],
    "e": [1, 3],
    "z": [1, 4],
    "mean": [1, 4],
    "var": [1, 4],
    "beta": [1, 4],
    "gamma": [1, 4],
}
_BN = "batch_normalization({}, mean, var, beta, gamma, epsilon = 0.001)"


def normalized(block: Block, epsilon: float | None = 0.001) -> Block:
    return replace(block, beta="beta", gamma="gamma", mean="mean", var="var", epsilon=epsilon)


def graph(body: str, fragments: str = "", outputs: str = "y") -> bytes:
    lines = [f"{name} = variable<scalar>(shape = {shape}, label = '{name}');" for name, shape in _VARIABLES.items()]
    head = f"version 1.0; extension KHR_enable_fragment_definitions; {fragments} graph g(x) -> ({outputs}) {{\n"
    return "\n".join([head, "x = external(shape = [1, 3, 8, 8]);", *lines, body, "}"]).encode()


def found(body: str, fragments: str = "", outputs: str = "y") -> list[Block]:
    return list(nnef.wiring(Topology("nnef", graph(body, fragments, outputs))).blocks)


@pytest.mark.parametrize(
    ("body", "block"),
    [
        # The operations and the dimension of their outputs.
        ("y = conv(x, w);", Block("w")),
        ("y = conv(x, filter = w, groups = 0);", Block("w")),
        ("y = conv(x, w, 0.0, groups = 3);", Block("w")),
        ("y = deconv(x, d);", Block("d", axis=1)),
        ("y = deconv(x, d, b, groups = 1);", Block("d", bias="b", axis=1)),
        ("y = separable_conv(x, p, q, b);", Block("q", bias="b")),
        ("y = linear(x, n, b);", Block("n", bias="b")),
        ("y = matmul(x, m);", Block("m", axis=1)),
        ("y = matmul(x, n, transposeB = true);", Block("n")),
        ("y = matmul(x, B = m, transposeA = true, transposeB = false) + b;", Block("m", bias="b", axis=1)),
        # Transposed weights.
        ("v = transpose(t, axes = [3, 2, 0, 1]); y = conv(x, v, b);", Block("t", bias="b", axis=3)),
        ("y = conv(x, transpose(t, axes = [2, 3, 1, 0]));", Block("t", axis=2)),
        ("y = matmul(x, transpose(n, axes = [1, 0])) + b;", Block("n", bias="b")),
        # Biases.
        ("y = conv(x, w, bias = b);", Block("w", bias="b")),
        ("y = conv(x, w, r);", Block("w", bias="r")),
        ("y = conv(x, w, c);", Block("w", bias="c")),
        ("y = conv(x, w, s);", Block("w", bias="s")),
        ("y = add(conv(x, w), b);", Block("w", bias="b")),
        ("y = add(y = conv(x, w), x = b);", Block("w", bias="b")),
        ("v = conv(x, w); y = s + v;", Block("w", bias="s")),
        ("y = relu(conv(x, w, 0) + b);", Block("w", bias="b")),
        # Batch normalization.
        (f"y = {_BN.format('conv(x, w)')};", normalized(Block("w"))),
        (f"v = conv(x, w, b); y = {_BN.format('v')};", normalized(Block("w", bias="b"))),
        (f"v = conv(x, w) + b; y = relu({_BN.format('v')});", normalized(Block("w", bias="b"))),
        (f"y = {_BN.format('linear(x, n, b)')};", normalized(Block("n", bias="b"))),
        (f"y = {_BN.format('deconv(x, d)')};", normalized(Block("d", axis=1))),
        (
            "y = batch_normalization(conv(x, w), scale=gamma, offset=beta, variance=var, mean=mean, epsilon=0);",
            normalized(Block("w"), 0.0),
        ),
        (
            "y = batch_normalization(conv(x, w), mean, var, beta, gamma, epsilon = eps);",
            normalized(Block("w"), None),
        ),
        # Local scaling.
        ("y = conv(x, w) * s;", Block("w", scale="s")),
        ("y = mul(s, conv(x, w)) + b;", Block("w", scale="s", bias="b")),
        (f"y = {_BN.format('s * conv(x, w) + b')};", normalized(Block("w", scale="s", bias="b"))),
    ],
)
def test_blocks(body: str, block: Block) -> None:
    assert found(body) == [block]


@pytest.mark.parametrize(
    ("body", "blocks"),
    [
        # The input is used elsewhere, or is an output.
        (f"v = conv(x, w, b); u = relu(v); y = {_BN.format('v')};", [Block("w", bias="b")]),
        ("v = conv(x, w); y = v + b; u = v * s;", [Block("w")]),
        ("v = conv(x, w); y = [for i in [1, 2] yield v + b][0];", [Block("w")]),
        ("v = conv(x, w); u = v if k else x; y = v + b;", [Block("w")]),
        ("v = conv(x, w); y = v + v;", [Block("w")]),
        ("v = conv(x, w); u = f([v, x]); y = v + b;", [Block("w")]),
        ("v = conv(x, w); [u] = v; y = v + b;", [Block("w")]),
        # Weights and vectors that are used twice.
        ("v = conv(x, w); u = conv(x, w); y = v + u;", []),
        ("v = transpose(t, axes = [3, 2, 0, 1]); y = conv(conv(x, v), v);", []),
        ("v = conv(x, w, b); u = deconv(x, d, b); y = v + u;", [Block("w"), Block("d", axis=1)]),
        ("y = conv(x, w, b) * b;", [Block("w")]),
        ("y = batch_normalization(conv(x, w), mean, mean, beta, gamma, epsilon = 0.1);", [Block("w")]),
        ("u = update(b, x); y = conv(x, w, b);", [Block("w")]),
        ("u = shape_of(b); y = conv(x, w, b);", [Block("w")]),
        # Shapes that do not match.
        ("y = conv(x, w, o);", [Block("w")]),
        ("y = conv(x, w, e);", [Block("w")]),
        ("y = conv(x, w, f);", [Block("w")]),
        ("y = conv(x, w) + r;", [Block("w")]),
        ("y = conv(x, w) + c;", [Block("w")]),
        ("y = conv(x, w) + n;", [Block("w")]),
        ("y = conv(x, b);", [Block("b")]),
        ("y = conv(x, r);", []),
        ("y = linear(x, w);", []),
        ("y = matmul(x, k);", []),
        ("y = batch_normalization(conv(x, w), mean, var, beta, e, epsilon = 0.1);", [Block("w")]),
        # Not a variable.
        ("y = conv(x, f(w), b);", []),
        ("y = conv(x, [[1.0]]);", []),
        ("y = conv(x, w, f(b));", [Block("w")]),
        (f"y = {_BN.format('conv(x, w, 1.0)')};", [Block("w")]),
        ("y = batch_normalization(conv(x, w), mean, var, beta, 1.0, epsilon = 0.1);", [Block("w")]),
        # Other operations, and other orders.
        ("y = conv(x, w) - b;", [Block("w")]),
        ("y = relu(conv(x, w)) + b;", [Block("w")]),
        ("y = conv(x, w, b) * s;", [Block("w", bias="b")]),
        ("y = conv(x, w, b) + z;", [Block("w", bias="b")]),
        ("y = conv(x, w) * s * s;", [Block("w")]),
        ("y = conv(x, w) * s * z;", [Block("w", scale="s")]),
        (f"y = conv(x, w) + {_BN.format('x')};", [Block("w")]),
        ("y = batch_normalization(x, mean, var, beta, conv(x, w), epsilon = 0.1);", [Block("w")]),
        ("y = batch_normalization(x, mean, var, beta, gamma, epsilon = conv(x, w));", [Block("w")]),
        ("y = matmul(m, x);", []),
        ("y = matmul(x, n, transposeB = f(x));", []),
        ("y = deconv(x, d, groups = 2);", []),
        ("y = deconv(x, d, groups = f(x));", []),
        ("y = conv(x, transpose(t, axes = f(x)));", []),
        ("y = conv(x, transpose(t, axes = [3, 3, 0, 1]));", []),
        ("y = conv(x, transpose(t, axes = [9, 8, 7, 6]));", []),
        ("y = conv(x, transpose(t, axes = [4, 3, 2, 1, 0]));", []),
        ("y = conv(x);", []),
        ("y = conv(x, w, b, s);", []),
        ("y = conv(x, x, filter = w);", []),
        ("y = my_conv(x, w, b);", []),
    ],
)
def test_what_belongs_to_no_block(body: str, blocks: list[Block]) -> None:
    assert found(body) == blocks


def test_outputs_of_the_graph_are_used() -> None:
    assert found("v = conv(x, w); y = v + b;", outputs="y, v") == [Block("w")]
    assert found("y = conv(x, w, b);", outputs="b") == [Block("w")]
    assert found("y = conv(x, w);", outputs="w") == []


@pytest.mark.parametrize("second", ["'B'", "'b'"])
def test_labels_that_are_shared_belong_to_no_block(second: str) -> None:
    body = f"v = variable(shape = [1, 4], label = {second}); y = conv(x, w, b); u = v * x;"
    assert found(body) == [Block("w")]
    assert found("y = conv(x, w, b);") == [Block("w", bias="b")]


def test_variables_of_other_types_belong_to_no_block() -> None:
    assert found("v = variable<integer>(shape = [1, 4], label = 'v'); y = conv(x, w, v);") == [Block("w")]


def test_variables_inside_of_expressions() -> None:
    body = "y = linear(x, variable(shape = [4, 3], label = 'i'), variable(shape = [1, 4], label = 'j'));"
    assert found(body) == [Block("i", bias="j")]


def test_several_blocks_have_the_order_of_the_operations() -> None:
    body = f"u = conv(x, w) + b; v = linear(u, n, z); y = {_BN.format('matmul(v, m)')};"
    assert found(body) == [Block("w", bias="b"), Block("n", bias="z"), normalized(Block("m", axis=1))]


_FRAGMENTS = """
fragment normalized(x: tensor<scalar>, mean: tensor<scalar>, var: tensor<scalar>, beta: tensor<scalar>,
                    gamma: tensor<scalar>, epsilon: scalar = 0.001) -> (y: tensor<scalar>)
{ y = batch_normalization(x, mean, var, beta, gamma, epsilon = epsilon); }
fragment layer(input: tensor<scalar>, w: tensor<scalar>, b: tensor<scalar> = 0.0, groups: integer = 1)
-> (output: tensor<scalar>)
{ v = deconv(input, w, groups = groups); output = v + b; }
fragment two(x: tensor<scalar>, v: tensor<scalar>, w: tensor<scalar>) -> (y: tensor<scalar>, z: tensor<scalar>)
{ y = conv(x, v); z = conv(x, w); }
fragment twice(x: tensor<scalar>, w: tensor<scalar>) -> (y: tensor<scalar>) { y = conv(conv(x, w), w); }
fragment unused(x: tensor<scalar>, w: tensor<scalar>) -> (y: tensor<scalar>) { y = x; }
fragment linear(a: tensor<scalar>, b: tensor<scalar>) -> (c: tensor<scalar>) { c = matmul(a, b); }
fragment conv(input: tensor<scalar>, filter: tensor<scalar>, bias: tensor<scalar> = 0.0) -> (y: tensor<scalar>);
"""


@pytest.mark.parametrize(
    ("body", "blocks"),
    [
        ("y = normalized(layer(x, d, b), mean, var, beta, gamma);", [normalized(Block("d", bias="b", axis=1))]),
        ("y = layer(x, groups = 1, w = d, b = b);", [Block("d", bias="b", axis=1)]),
        ("y = layer(x, d, groups = 2);", []),
        ("[u, v] = [layer(x, d), x]; y = relu(u);", [Block("d", axis=1)]),
        ("u, v = two(x, w, q); y = u + b;", [Block("w", bias="b"), Block("q")]),
        ("u = two(x, w, q); y = relu(u);", [Block("w"), Block("q")]),
        ("y = twice(x, w);", []),
        ("y = unused(conv(x, w), b);", [Block("w")]),
        ("y = conv(unused(x, w), w, b);", [Block("w", bias="b")]),
        ("y = linear(x, m);", [Block("m", axis=1)]),
    ],
)
def test_fragments_are_followed(body: str, blocks: list[Block]) -> None:
    assert found(body, _FRAGMENTS) == blocks


@pytest.mark.parametrize(
    "fragments",
    [
        "fragment f0(x: tensor<scalar>) -> (y: tensor<scalar>) { y = f0(x); }",
        "fragment f0(x: tensor<scalar>) -> (y: tensor<scalar>) { y = f1(x); }"
        "fragment f1(x: tensor<scalar>) -> (y: tensor<scalar>) { y = f0(x) + f0(x); }",
        "".join(
            f"fragment f{k}(x: tensor<scalar>) -> (y: tensor<scalar>) {{ y = f{k + 1}(x) + f{k + 1}(x); }}"
            for k in range(100)
        ),
    ],
)
def test_fragments_without_end_give_no_blocks(monkeypatch: pytest.MonkeyPatch, fragments: str) -> None:
    monkeypatch.setattr(dataflow, "MAX_WORK", 10_000)
    assert found("v = conv(x, w, b); y = f0(v);", fragments) == []


def test_deep_and_long_graphs() -> None:
    chain = "v0 = conv(x, w, b);" + "".join(f"v{k + 1} = relu(v{k});" for k in range(5000)) + "y = v5000;"
    assert found(chain) == [Block("w", bias="b")]
    assert found(f"y = {'relu(' * 150}conv(x, w, b){')' * 150};") == [Block("w", bias="b")]
    assert found(f"y = conv(x, w, b){' + x' * 5000};") == [Block("w", bias="b")]
    assert found(f"k0 = constant(shape = [5000], value = [{'1.5, ' * 4999}2]); y = conv(x, w, b);") == [
        Block("w", bias="b")
    ]


def test_wiring() -> None:
    text = graph("y = conv(x, w, b); v = variable(shape = [3, 4], label = 'M');")
    wiring = nnef.wiring(Topology("nnef", text))
    assert list(wiring.shapes) == list(_VARIABLES)
    assert wiring.shapes == {name: tuple(shape) for name, shape in _VARIABLES.items()}
    assert wiring.blocks == (Block("w", bias="b"),)
    assert formats.wiring(Topology("nnef", text)) == wiring
    assert formats.wiring(Topology("", text)) == Wiring()
    assert formats.wiring(Topology("nnef", text[:-1])) == Wiring()
    with pytest.raises(FormatError):
        nnef.wiring(Topology("nnef", text[:-1]))


def test_a_graph_is_built_for_blocks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder of other bitstreams needs only names and shapes."""
    plain, folded = nnr.encode(EXAMPLE), nnr.encode(EXAMPLE, fold_batchnorm=True)

    def fail(graph: object) -> None:
        raise AssertionError("a graph is built")

    monkeypatch.setattr(nnef, "flow", fail)
    formats._wiring_by.cache_clear()
    assert list(nnr.decode(plain)) == list(nnr.load(EXAMPLE))
    with pytest.raises(AssertionError, match="a graph is built"):
        nnr.decode(folded)


def test_blocks_go_to_other_processes() -> None:
    """The recognized blocks are sent, not the graph."""
    wiring = nnef.wiring(Topology("nnef", graph("y = conv(x, w, b);")))
    assert pickle.loads(pickle.dumps(wiring)) == wiring
    assert wiring.with_shapes({"w": (2, 3, 2, 2)}).blocks == (Block("w", bias="b"),)


@needs_shared
@pytest.mark.parametrize(
    ("model", "blocks", "normalized"),
    [
        ("digits_cnn.nnef", 4, 2),
        ("digits_cnn.nnef_tools.nnef", 4, 0),
        ("digits_f32.tflite.nnef", 3, 0),
        ("digits_int8.tflite.nnef", 3, 0),
        ("resnet20_cifar10.nnef", 20, 19),
        ("resnet56_cifar10.nnef", 56, 55),
        ("squeezenet1_0_deepcompression.nnef", 26, 0),
    ],
)
def test_models(model: str, blocks: int, normalized: int) -> None:
    """Every variable of these networks belongs to a block."""
    assert SHARED is not None
    wiring = nnef.wiring(Topology("nnef", (SHARED / "models" / model / "graph.nnef").read_bytes()))
    assert len(wiring.blocks) == blocks
    assert sum(block.mean is not None and block.epsilon == 1e-5 for block in wiring.blocks) == normalized
    names = [
        name
        for block in wiring.blocks
        for name in (block.weight, block.bias, block.beta, block.gamma, block.mean, block.var)
        if name
    ]
    assert sorted(names) == sorted(wiring.shapes)
