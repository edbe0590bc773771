"""Shapes of NNEF operations: for each rule a graph that breaks only this rule, results, and hostile graphs."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest

import nnr_codec as nnr
from nnr_codec.formats.nnef import dataflow
from nnr_codec.formats.nnef.dataflow import flow
from nnr_codec.formats.nnef.graph import parse_graph
from nnr_codec.formats.nnef.operations import operations
from nnr_codec.formats.nnef.rules import RULES
from nnr_codec.formats.nnef.shapes import FUNCTIONS
from nnr_codec.formats.nnef.validate import validate, validate_texts

from ..shared import SHARED, needs_shared
from .test_check import broken

pytestmark = pytest.mark.medium

_INPUTS = {
    "x": [2, 3],
    "i": [1, 8, 16, 16],
    "w": [4, 8, 3, 3],
    "g": [4, 4, 3, 3],
    "d": [8, 4, 3, 3],
    "m": [8, 1, 3, 3],
    "p": [4, 8, 1, 1],
    "c": [1, 8],
    "v": [8],
    "s": [1, 1],
    "h": [1, 8, 8, 8],
    "a": [5, 2, 3],
    "b": [1, 3, 4],
    "r": [7, 4],
}
_FRAGMENTS = """
fragment twice(a: tensor<scalar>, f: tensor<scalar>) -> (b: tensor<scalar>)
{
    c = conv(a, f);
    b = conv(c, f);
}
fragment flat(a: tensor<scalar>, axes: integer[] = [1, 2]) -> (b: tensor<scalar>)
{
    shape = shape_of(a);
    b = reshape(a, shape = [shape[0], -1] if length_of(axes) == 2 else shape);
}
fragment last(a: tensor<scalar>, n: integer) -> (b: tensor<scalar>)
{
    b = last(unsqueeze(a, axes = [0]), n = n - 1) if n > 0 else a;
}
fragment pair(a: tensor<scalar>) -> (b: tensor<scalar>, c: tensor<scalar>)
{
    b = copy(a);
    c = mean_reduce(a, axes = [0]);
}
"""


def document(body: str, fragments: str = f"extension acme k;\n{_FRAGMENTS}") -> str:
    """Return a graph with inputs of the shapes above; ``k`` is an extension identifier, which is never known."""
    lines = "".join(f"    {name} = external(shape = {shape});\n" for name, shape in _INPUTS.items())
    return (
        "version 1.0;\nextension KHR_enable_fragment_definitions;\nextension KHR_enable_operator_expressions;\n"
        f"{fragments}graph g({', '.join(_INPUTS)}) -> (y)\n{{\n{lines}    {body}\n}}\n"
    )


#: Broken rules with their clause, and statements with an @ at the finding.
BROKEN = [
    ("argument-value", "4.3", "y = box(i, size = @[1] * 3 + [2 - 2]);"),
    ("argument-value", "4.5.3", "y = split(i, axis = 1, ratios = @[for q in [1, 2] yield 1 - q])[0];"),
    ("target-structure", "3.3.2", "@[y, z] = split(i, axis = 1, ratios = [1, 1, 2]);"),
    ("target-structure", "3.3.2", "@[y, z] = unstack(x, axis = 1);"),
    ("expression-value", "3.3.3", "y = @split(i, axis = 1, ratios = [1, 1])[2];"),
    ("expression-value", "3.3.3", "y = reshape(x, shape = [@shape_of(x)[2], 3]);"),
    ("expression-value", "3.3.3", "y = add_n(@[for q in [1, 2], z in [x] yield z]);"),
    ("operand-rank", "4.3.1", "y = conv(i, @x);"),
    ("operand-rank", "4.3.1", "y = deconv(@v, v);"),
    ("operand-rank", "4.7", "y = matmul(x, @a);"),
    ("operand-rank", "4.7", "y = matmul(@v, v);"),
    ("operand-rank", "4.9.2", "y = linear(i, @x);"),
    ("operand-rank", "4.6.1", "y = max_roi_pool(@v, r, argmax_reduce(r, axes = [1]), output_size = []);"),
    ("broadcast", "4.2.2", "y = add(x, @c);"),
    ("broadcast", "4.2.2", "y = x * @c;"),
    ("broadcast", "4.2.2", "z = lt(i, @x);\n    y = copy(x);"),
    ("broadcast", "4.2.3", "y = select(i > 0.0, i, @a);"),
    ("broadcast", "4.2.4", "y = clamp(i, 0.0, @a);"),
    ("broadcast", "4.9.1", "y = prelu(i, @a);"),
    ("broadcast", "4.9.2", "y = linear(x, x, @a);"),
    ("broadcast", "4.9.4", "y = batch_normalization(i, c, c, @x, c, epsilon = 0.1);"),
    ("broadcast", "4.9.5", "y = min_max_linear_quantize(x, @c, 1.0, bits = 8, signed = true, symmetric = false);"),
    ("broadcast", "4.9.6", "y = add_n(@[x, c]);"),
    ("item-count", "4.3.1", "y = conv(i, w, stride = @[1, 1, 2, 2]);"),
    ("item-count", "4.3.1", "y = conv(i, w, padding = @[(1, 1)]);"),
    ("item-count", "4.3.1", "y = conv(i, w, dilation = @[1]);"),
    ("item-count", "4.3.1", "y = deconv(i, d, output_shape = @[1, 4]);"),
    ("item-count", "4.3.2", "y = avg_pool(i, size = @[2, 2], stride = [1, 1, 2, 2]);"),
    ("item-count", "4.3.3", "y = max_pool(i, size = [1, 1, 2, 2], stride = @[2, 2]);"),
    ("item-count", "4.3.4", "y = nearest_upsample(i, factor = @[2]);"),
    ("item-count", "4.3.4", "y = area_downsample(i, factor = @[1, 1, 2, 2]);"),
    ("item-count", "4.5.4", "y = slice(i, axes = [2, 3], begin = @[0], end = [1, 1]);"),
    ("item-count", "4.5.5", "y = pad(i, padding = @[(1, 1), (1, 1)]);"),
    ("item-count", "4.5.6", "y = tile(i, repeats = @[2]);"),
    ("item-count", "4.6.1", "y = avg_roi_pool(i, r, argmax_reduce(r, axes = [1]), output_size = @[4]);"),
    ("item-count", "4.6.2", "y = max_roi_align(i, r, argmax_reduce(r, axes = [1]), output_size = [4, 4],"
     " sampling_rate = @[2]);"),
    ("item-count", "4.9.4", "y = local_response_normalization(i, size = @[1, 5]);"),
    ("conv-channels", "4.3.1", "y = conv(i, @g);"),
    ("conv-channels", "4.3.1", "y = conv(i, @w, groups = 2);"),
    ("conv-channels", "4.3.1", "y = conv(i, @w, groups = 0);"),
    ("conv-channels", "4.3.1", "y = deconv(i, @w);"),
    ("conv-channels", "4.9.2", "y = @separable_conv(i, m, g);"),
    ("conv-groups", "4.3.1", "y = conv(i, variable(shape = [6, 2, 3, 3], label = 'n'), groups = @4);"),
    ("conv-groups", "4.3.1", "y = deconv(i, d, groups = @3);"),
    ("conv-bias", "4.3.1", "y = conv(i, w, @c);"),
    ("conv-bias", "4.3.1", "y = deconv(i, d, @v);"),
    ("window-extent", "4.3.1", "y = @conv(i, w, padding = [(0, 0), (0, 0)], dilation = [8, 1]);"),
    ("window-extent", "4.3.1", "y = @deconv(i, d, padding = [(9, 9), (0, 0)]);"),
    ("window-extent", "4.3.2", "y = @box(i, size = [1, 1, 17, 1], padding = [(0, 0), (0, 0), (0, 0), (0, 0)]);"),
    ("window-extent", "4.5.5", "y = pad(i, padding = @[(0, 0), (0, 0), (-8, -8), (0, 0)]);"),
    ("output-shape", "4.3.1", "y = deconv(i, d, stride = [2, 2], output_shape = @[1, 4, 30, 32]);"),
    ("output-shape", "4.3.1", "y = deconv(i, d, stride = [2, 2], output_shape = @[1, 8, 32, 32]);"),
    ("output-shape", "4.3.2", "y = debox(h, size = [1, 1, 1, 1], output_shape = @[1, 8, 8, 9]);"),
    ("index-shape", "4.3.3", "n = argmax_pool(i, size = [1, 1, 2, 2]);\n"
     "    y = desample(h, @n, size = [1, 1, 2, 2], stride = [1, 1, 2, 2]);"),
    ("index-shape", "4.3.3", "n = argmax_pool(i, size = [1, 1, 2, 2]);\n"
     "    y = sample(i, @n, size = [1, 1, 2, 2], stride = [1, 1, 2, 2]);"),
    ("sampling-factor", "4.3.4", "y = nearest_downsample(i, factor = @[3, 2]);"),
    ("axis-range", "4.4", "y = mean_reduce(i, axes = @[2, 4]);"),
    ("axis-range", "4.4", "z = argmax_reduce(i, axes = @[4]);\n    y = copy(i);"),
    ("axis-range", "4.5.1", "y = squeeze(x, axes = @[2]);"),
    ("axis-range", "4.5.1", "y = unsqueeze(x, axes = @[3]);"),
    ("axis-range", "4.5.1", "y = reshape(x, shape = [6], axis_start = @1, axis_count = 2);"),
    ("axis-range", "4.5.3", "y = concat([x, x], axis = @2);"),
    ("axis-range", "4.5.3", "y = stack([x, x], axis = @3);"),
    ("axis-range", "4.5.3", "y = split(x, axis = @2, ratios = [1])[0];"),
    ("axis-range", "4.5.3", "y = unstack(x, axis = @2)[0];"),
    ("axis-range", "4.5.4", "y = slice(x, axes = @[2], begin = [0], end = [1]);"),
    ("axis-range", "4.9.1", "y = @softmax(v);"),
    ("axis-range", "4.9.4", "y = l2_normalization(x, axes = @[2]);"),
    ("reshape-volume", "4.5.1", "y = reshape(x, shape = @[7]);"),
    ("reshape-volume", "4.5.1", "y = reshape(x, shape = @[4, -1]);"),
    ("reshape-volume", "4.5.1", "y = reshape(x, shape = @[-1, -1]);"),
    ("reshape-volume", "4.5.1", "y = reshape(x, shape = @[2, 3, 0]);"),
    ("reshape-volume", "4.5.1", "y = reshape(i, shape = @[255], axis_start = 2);"),
    ("reshape-volume", "4.5.1", "y = squeeze(x, axes = @[1]);"),
    ("transpose-axes", "4.5.2", "y = transpose(i, axes = @[0, 2, 3]);"),
    ("transpose-axes", "4.5.2", "y = transpose(x, axes = @[0, 2, 1]);"),
    ("split-ratios", "4.5.3", "[y, z] = split(x, axis = 1, ratios = @[1, 1]);"),
    ("concat-shapes", "4.5.3", "y = concat(@[x, a], axis = 0);"),
    ("concat-shapes", "4.5.3", "y = concat(@[x, c], axis = 0);"),
    ("concat-shapes", "4.5.3", "y = stack(@[x, c], axis = 0);"),
    ("slice-range", "4.5.4", "y = slice(i, axes = [2], begin = [2], end = @[2]);"),
    ("slice-range", "4.5.4", "y = slice(i, axes = [2], begin = [0], end = @[17]);"),
    ("slice-range", "4.5.4", "y = slice(i, axes = [2], begin = @[16], end = [0]);"),
    ("slice-range", "4.5.4", "y = slice(i, axes = [2], begin = [0], end = @[1], stride = [0]);"),
    ("roi-shape", "4.6.1", "y = max_roi_pool(i, @x, argmax_reduce(r, axes = [1]), output_size = [4, 4]);"),
    ("roi-shape", "4.6.2", "y = roi_resample(i, r, @argmax_reduce(x, axes = [1]), output_size = [4, 4]);"),
    ("matmul-inner", "4.7", "y = matmul(x, @x);"),
    ("matmul-inner", "4.7", "y = matmul(x, @c, transposeB = true);"),
    ("matmul-inner", "4.9.2", "y = linear(x, @c);"),
    ("updated-shape", "4.8", "u = variable(shape = [3, 2], label = 'u');\n    y = update(u, @x);"),
    ("shape-limit", "6", "y = last(x, n = 1000);"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "clause", "body"), BROKEN)
def test_each_rule_is_found_alone_and_where_it_is_broken(rule: str, clause: str, body: str) -> None:
    text = document(body)
    text, line, column = broken(text.replace("graph g", "@graph g") if rule == "shape-limit" else text)
    report = validate_texts(text.encode())
    found = [*report.violations, *(note for note in report.notes if note.rule == "shape-limit")]
    assert [(f.rule, f.clause, f.file, f.line, f.column) for f in found] == [(rule, clause, "graph.nnef", line, column)]
    assert (not report.violations) == (RULES[rule].severity == "note")


#: Values of ``y``, and their shapes; None if it is unknown.
SHAPES = {
    "copy(x)": (2, 3),
    "-x": (2, 3),
    "x + 1.0": (2, 3),
    "2.0 ^ x": (2, 3),
    "2.0 + 1.0": (),
    "add(v, i)": (8, 8, 16, 16),
    "mul(s, i)": (1, 8, 16, 16),
    "add(c, i)": (1, 8, 16, 16),
    "select(x > 0.0, x, 0.0)": (2, 3),
    "conv(i, w)": (1, 4, 16, 16),
    "conv(i, w, stride = [2, 3])": (1, 4, 8, 6),
    "conv(i, w, 0.5, padding = [(0, 0), (1, 2)], stride = [2, 3], dilation = [2, 1])": (1, 4, 6, 6),
    "conv(i, m, c, groups = 0)": (1, 8, 16, 16),
    "conv(i, g, groups = 2)": (1, 4, 16, 16),
    "conv(x, variable(shape = [5, 3], label = 'n'))": (2, 5),
    "deconv(i, d)": (1, 4, 16, 16),
    "deconv(i, d, stride = [2, 2])": (1, 4, 32, 32),
    "deconv(i, d, stride = [2, 2], padding = [(1, 0), (1, 1)])": (1, 4, 32, 31),
    "deconv(i, d, stride = [2, 2], output_shape = [1, 4, 31, 32])": (1, 4, 31, 32),
    "deconv(i, d, groups = 2)": (1, 8, 16, 16),
    "deconv(i, m, c, groups = 0)": (1, 8, 16, 16),
    "separable_conv(i, m, p, stride = [2, 2])": (1, 4, 8, 8),
    "separable_deconv(i, variable(shape = [4, 1, 3, 3], label = 'q'), variable(shape = [8, 4, 1, 1], label = 'n'),"
    " stride = [2, 2])": (1, 4, 32, 32),
    "max_pool(i, size = [1, 1, 3, 3], stride = [1, 1, 2, 2], padding = [(0, 0), (0, 0), (0, 0), (0, 0)])": (1, 8, 7, 7),
    "rms_pool(i, size = [1, 1, 3, 3], stride = [1, 1, 5, 2])": (1, 8, 4, 8),
    "debox(h, size = [1, 1, 2, 2], stride = [1, 1, 2, 2])": (1, 8, 16, 16),
    "max_pool_with_index(i, size = [1, 1, 2, 2], stride = [1, 1, 2, 2])[1]": (1, 8, 8, 8),
    "sample(i, argmax_pool(i, size = [1, 1, 2, 2], stride = [1, 1, 2, 2]), size = [1, 1, 2, 2],"
    " stride = [1, 1, 2, 2])": (1, 8, 8, 8),
    "desample(h, argmax_pool(i, size = [1, 1, 2, 2], stride = [1, 1, 2, 2]), size = [1, 1, 2, 2],"
    " stride = [1, 1, 2, 2])": (1, 8, 16, 16),
    "area_downsample(i, factor = [2, 4])": (1, 8, 8, 4),
    "multilinear_upsample(i, factor = [2, 4])": (1, 8, 32, 64),
    "sum_reduce(i, axes = [2, 3])": (1, 8, 1, 1),
    "reshape(i, shape = [0, -1])": (1, 2048),
    "reshape(i, shape = [4, 4, -1], axis_start = 2)": (1, 8, 4, 4, 16),
    "reshape(i, shape = [-1], axis_start = 1, axis_count = 2)": (1, 128, 16),
    "reshape(x, shape = [])": None,
    "squeeze(i, axes = [0])": (8, 16, 16),
    "unsqueeze(x, axes = [3, 0])": (1, 2, 3, 1),
    "transpose(i, axes = [1, 0])": (8, 1, 16, 16),
    "split(i, axis = 1, ratios = [1, 3])[1]": (1, 6, 16, 16),
    "split(i, axis = 2, ratios = [1] * 16)[15]": (1, 8, 1, 16),
    "split(i, axis = 2, ratios = [1, 1, 1, 1, 1, 1, 1, 1, 8])[8]": (1, 8, 8, 16),
    "concat(split(i, axis = 1, ratios = [1, 3]) + [h], axis = 1)": None,
    "concat([x] * 3, axis = 1)": (2, 9),
    "concat([x, variable(shape = [2, 1], label = 'n')], axis = 1)": (2, 4),
    "stack([x, x], axis = 1)": (2, 2, 3),
    "unstack(i, axis = 1)[7]": (1, 16, 16),
    "slice(i, axes = [2, 3], begin = [1, -4], end = [0, -1])": (1, 8, 15, 3),
    "slice(i, axes = [2], begin = [1], end = [16], stride = [4])": (1, 8, 4, 16),
    "slice(i, axes = [2], begin = [-1], end = [-17], stride = [-1])": (1, 8, 16, 16),
    "pad(x, padding = [(1, 2), (0, -1)])": (5, 2),
    "tile(x, repeats = [2, 3])": (4, 9),
    "gather(i, argmax_reduce(x, axes = [1]), axis = 1)": (1, 2, 1, 16, 16),
    "cast<integer>(x)": (2, 3),
    "max_roi_pool(i, r, argmax_reduce(r, axes = [1]), output_size = [5, 6])": (7, 8, 5, 6),
    "avg_roi_align(i, r, argmax_reduce(r, axes = [1]), output_size = [5, 6], sampling_rate = [2, 2])": (7, 8, 5, 6),
    "matmul(a, b)": (5, 2, 4),
    "matmul(x, x, transposeA = true)": (3, 3),
    "matmul(x, x, transposeB = true)": (2, 2),
    "update(variable(shape = [3, 2], label = 'n'), x)": None,
    "linear(x, variable(shape = [5, 3], label = 'n'), variable(shape = [1, 5], label = 'o'))": (2, 5),
    "softmax(x)": (2, 3),
    "moments(i, axes = [0, 2])[1]": (1, 8, 1, 16),
    "batch_normalization(i, c, c, c, c, epsilon = 0.1)": (1, 8, 16, 16),
    "copy_n(x, times = 3)[2]": (2, 3),
    "add_n([for z in [x, x] yield z + x])": (2, 3),
    # Fragments and expressions
    "twice(i, variable(shape = [8, 8, 3, 3], label = 'n'))": (1, 8, 16, 16),
    "flat(i)": (1, 2048),
    "flat(x, axes = [1])": (2, 3),
    "last(x, n = 3)": (1, 1, 1, 2, 3),
    "pair(x)[1]": (1, 3),
    "x if 2 in shape_of(x) else c": (2, 3),
    "x if k else c": None,
    "reshape(x, shape = [for q in range_of(shape_of(x)) if q > 0 yield shape_of(x)[q]] + [2])": (3, 2),
    "reshape(x, shape = shape_of(x)[1:] + [length_of('ab')])": (3, 2),
    "reshape(x, shape = [integer('3'), integer(2.5)])": (3, 2),
    "pad(x, padding = [for q in [1, 2] yield (q, 7 / 2 - q)])": (5, 6),
    "reshape(x, shape = [2 ^ 2 - 2 * 1, -1, k])": None,
    "acme_something(x)": None,
    "copy(acme_something(x))": None,
    "conv(acme_something(x), w)": None,
}  # fmt: skip


@pytest.mark.parametrize("expression", SHAPES)
def test_shapes_of_results(expression: str) -> None:
    graph = parse_graph(document(f"y = {expression};").encode())
    assert flow(graph).names["y"].shape == SHAPES[expression]
    assert flow(graph, whole=True).names["y"].shape == SHAPES[expression]


def test_every_operation_has_a_shape_function() -> None:
    assert FUNCTIONS.keys() == operations().keys()
    for name, (_, parameters, _) in FUNCTIONS.items():
        assert set(parameters) <= {parameter.name.name for parameter in operations()[name].parameters}


def test_mistakes_in_fragments_are_found_once_with_their_first_invocation() -> None:
    report = validate_texts(document("u = twice(i, w);\n    y = twice(i, w);").encode())
    (found,) = report.violations
    line = document("").split("\n").index("    b = conv(c, f);") + 1
    assert (found.rule, found.line) == ("conv-channels", line)
    assert "(in twice, invoked in line 41)" in found.message


def test_results_of_faulty_operations_match_everything() -> None:
    report = validate_texts(document("u = conv(i, g);\n    z = add(u, x);\n    y = matmul(z, a);").encode())
    assert [found.rule for found in report.violations] == ["conv-channels"]


@pytest.mark.parametrize(
    "body",
    [
        "y = box(i, size = [0, 1, 1, 1]);",  # an argument
        "y = conv(i, w, stride = [1.0, 1.0]);",  # a type
        "y = conv(i, unknown);",  # an identifier
        "y = conv(i);",  # a missing argument
        "[y, z] = [x, x, x];",
        "y = max_pool_with_index(x, size = [1, 1])[2];",
    ],
)
def test_findings_of_other_stages_are_not_repeated(body: str) -> None:
    report = validate_texts(document(body, "").encode())
    assert len(report.violations) == 1


def test_findings_in_a_long_text_take_no_longer_than_others() -> None:
    """The positions of fragment and invocation are far apart."""
    faults = "".join(f"c{k} = conv(a, a, stride = [1, {k + 1}, 3]);" for k in range(5_000))
    fragments = f"fragment f(a: tensor<scalar>) -> (b: tensor<scalar>) {{ {faults} b = copy(a); }} {' ' * (8 << 20)}"
    extensions = "extension KHR_enable_fragment_definitions;\n"
    start = process_time()
    report = validate_texts(document("y = f(i);", extensions + fragments).encode())
    assert process_time() - start < 20
    assert len(report.violations) == 100 and "4900 more findings" in report.notes[0].message


def test_the_limit_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataflow, "MAX_WORK", 100)
    report = validate_texts(document("y = add_n([x] * 200);").encode())
    assert [note.rule for note in report.notes] == ["shape-limit"]
    assert report.violations == []


#: Graphs of tract that NNEF does not permit: softmax along axis 3 of three dimensions.
_INVALID = {"softmax-quant/expected": ["axis-range"], "softmax-quant/model": ["axis-range"]}
_NEW = {rule for rule, _, _ in BROKEN} - {"argument-value", "target-structure"}


@needs_shared
def test_no_other_model_of_the_corpus_has_a_finding() -> None:
    assert SHARED
    corpus, models = SHARED / "nnef_corpus", SHARED / "models"
    sources = [path.parent for folder in (corpus, models) for path in folder.rglob("graph.nnef")]
    sources += [path for pattern in ("*.tgz", "*.tar") for path in corpus.rglob(pattern)]
    texts = sorted(corpus.glob("khronos*/**/*.txt"))
    assert (len(sources), len(texts)) == (64, 12)
    found = {path.parent.name + "/" + path.name: _shape_findings(nnr.verify_model(path)) for path in sources}
    found |= {str(path): _shape_findings(validate(path)) for path in texts}
    assert {name: rules for name, rules in found.items() if rules} == _INVALID


def _shape_findings(report: nnr.ModelReport) -> list[str]:
    return [found.rule for found in [*report.violations, *report.warnings, *report.notes] if found.rule in _NEW]


def _known_share(path: Path) -> tuple[int, int]:
    names = flow(parse_graph(path.read_bytes())).names
    return sum(value.shape is not None for value in names.values()), len(names)


@needs_shared
@pytest.mark.parametrize("name", ["digits_cnn", "resnet20_cifar10", "squeezenet1_0_deepcompression"])
def test_all_shapes_of_real_models_are_known(name: str) -> None:
    assert SHARED
    known, total = _known_share(SHARED / "models" / f"{name}.nnef" / "graph.nnef")
    assert known == total > 0
