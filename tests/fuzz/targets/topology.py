"""Target: texts of NNEF, a graph.nnef and a graph.quant, as topologies and in all checks of ``nnr verify``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.formats.nnef.graph import parse_graph, with_shapes
from nnr_codec.formats.nnef.quant import read_quantization
from nnr_codec.formats.nnef.validate import validate_texts
from nnr_codec.model import Topology

from ...builder import Bitstream, ndu
from ...formats.support import SYNTHETIC, graph_text
from .support import LIMITS, harmless, joined, parted, tensors

COMPOSITIONAL = b"""version 1.0;
extension KHR_enable_fragment_definitions;
extension KHR_enable_operator_expressions;
fragment conv_bn(x: tensor<scalar>, n: integer, label: string = 'c') -> (y: tensor<scalar>)
{
    w = variable(shape = [n, 3, 3, 3], label = label + '/w');
    b = variable(shape = [1, n], label = label + '/b');
    z = conv(x, w, b, stride = [2, 2], padding = [(1, 1), (1, 1)]);
    m = variable(shape = [1, n], label = label + '/m');
    v = variable(shape = [1, n], label = label + '/v');
    y = batch_normalization(z, m, v, 0.0, 1.0, epsilon = 1e-3);
}
graph net(x) -> (y)
{
    x = external<scalar>(shape = [1, 3, 8, 8]);
    h = [conv_bn(x, 4 * i, label = 'c' + string(i)) for i in range_of([1, 2])];
    s = relu(h[0]) + (0.5 if true else -1.0) * h[1][0:2, :] ^ 2.0;
    y = concat([s, copy(s)], axis = 1);
}
"""
FLAT = b"""version 1.0;

graph net(x) -> (y)
{
    x = external<scalar>(shape = [1, 3, 8, 8]);
    w = variable<scalar>(shape = [4, 3, 3, 3], label = 'a/w');
    b = variable<scalar>(shape = [1, 4], label = 'a/b');
    g = variable<scalar>(shape = [1, 4], label = 'a/gamma');
    c = conv(x, w, b, padding = [(1, 1), (1, 1)], stride = [1, 1], dilation = [1, 1], groups = 1);
    m = variable<scalar>(shape = [1, 4], label = 'a/mean');
    v = variable<scalar>(shape = [1, 4], label = 'a/var');
    n = batch_normalization(c, m, v, 0.0, g, epsilon = 0.001);
    r = relu(n);
    p = max_pool(r, size = [1, 1, 2, 2], stride = [1, 1, 2, 2], padding = [(0, 0), (0, 0), (0, 0), (0, 0)]);
    f = reshape(p, shape = [1, -1]);
    k = variable<scalar>(shape = [10, 64], label = 'k');
    l = linear(f, k, 0.0);
    (s, t) = split(l, axis = 1, ratios = [1, 1]);
    y = softmax(add(s, t), axes = [1]);
}
"""
#: A bitstream of a variable of the first graph, without its dimensions.
WITHOUT_DIMENSIONS = Bitstream({"k": [10, 64]}).str_().mps().ndu(ndu("k", None), [0] * 640).data
QUANT = b'"w": linear_quantize(min = -1.0, max = 1.0, bits = 8);\n"b": zero_point_linear_quantize(zero_point = 3);\n'


def target(data: bytes) -> None:
    """Read a graph and a quantization file in all ways."""
    text, quantization = parted(data, 2)
    topology = Topology("nnef", text, quantization or None)
    with harmless():
        graph = parse_graph(text, LIMITS)
        _ = formats.wiring(topology).blocks
        formats.channels(topology)
        shapes = {variable.label.casefold(): (7, *variable.shape[1:]) for variable in graph.variables}
        parse_graph(with_shapes(text, graph, shapes), LIMITS)
    with harmless():
        read_quantization(quantization, LIMITS)
    with harmless():
        validate_texts(text, quantization or None, LIMITS)
    with harmless():
        nnr.decode(WITHOUT_DIMENSIONS, limits=LIMITS, topology=topology, allow_missing=True)


def seeds() -> Iterable[bytes]:
    """Return flat and compositional graphs, and graphs of the test models."""
    yield joined(FLAT, QUANT)
    yield joined(COMPOSITIONAL, QUANT)
    yield joined(graph_text(tensors()))
    for path in sorted(Path(SYNTHETIC).rglob("graph.nnef")):
        quantization = path.with_name("graph.quant")
        text = path.read_bytes()
        if len(text) < 4096:
            yield joined(text, quantization.read_bytes() if quantization.exists() else b"")
