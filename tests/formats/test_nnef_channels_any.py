"""Random NNEF networks without channels have the outputs of the same networks with zeros in their place."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.model import Model, Topology

from .. import engines
from ..engines import Job
from ..shared import every
from .onnx_nets import masked, removals, without

pytestmark = pytest.mark.medium

KINDS = ["conv"] * 4 + ["bare", "norm", "unary", "binary", "binary", "vector", "concat", "places", "depth", "deconv"]
KINDS += ["separable", "pool", "gate", "pad", "last", "fragment", "shared", "scaled"]
HEAD = """version 1.0; extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;
fragment twice(z: tensor<scalar>, k: tensor<scalar>, b: tensor<scalar>) -> (o: tensor<scalar>)
{ t = conv(z, k, b); o = relu(t) + z; }
"""


@dataclass
class Net:
    """Builder of a network for images of 6x6: values with their channels, and the expressions that compute them."""

    random: Random
    lines: list[str] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    values: list[tuple[str, int]] = field(default_factory=lambda: [("x", 3)])

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.shapes)}"
        self.shapes[name] = shape
        return name

    def value(self, expression: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {expression};")
        return name

    def grow(self) -> None:
        """Add one value with channels."""
        (a, c), (b, d) = self.random.choice(self.values), self.random.choice(self.values)
        w, kind, n = self.weight, self.random.choice(KINDS), self.random.choice([1, 2, 4, 4, 6])
        made, count = "", c
        match kind:
            case "conv":
                made, count = f"conv({a}, {w(n, c, 3, 3)}, {w(1, n)})", n
            case "bare":
                made, count = f"conv({a}, {w(n, c, 1, 1)})", n
            case "norm":
                made = f"batch_normalization({a}, {', '.join(w(1, c) for _ in range(4))}, epsilon = 0.1)"
            case "unary":
                made = f"{self.random.choice(['relu', 'sigmoid', 'tanh'])}({a})"
            case "binary" if c == d:
                made = f"{self.random.choice(['max', 'add', 'mul', 'sub'])}({a}, {b})"
            case "vector":
                made = f"{a} {self.random.choice('+*-')} {w(1, c)}"
            case "concat" if c + d < 32:
                made, count = f"concat([{a}, {b}], axis = 1)", c + d
            case "places":
                both = self.value(f"concat([{a}, relu({a})], axis = 2)")
                made = f"max_pool({both}, size = [1, 1, 2, 1], stride = [1, 1, 2, 1], border = 'ignore')"
            case "depth":
                count = c * self.random.choice([1, 2])
                made = f"conv({a}, {w(count, 1, 3, 3)}, {w(1, count)}, groups = 0)"
            case "deconv":
                made, count = f"deconv({a}, {w(c, n, 3, 3)}, {w(1, n)})", n
            case "separable":
                made, count = f"conv(conv({a}, {w(c, 1, 3, 3)}, groups = 0), {w(n, c, 1, 1)}, {w(1, n)})", n
            case "pool":
                made = f"avg_pool({a}, size = [1, 1, 3, 3], border = 'ignore')"
            case "gate":
                less = self.value(f"relu(conv(mean_reduce({a}, axes = [2, 3]), {w(2, c, 1, 1)}, {w(1, 2)}))")
                made = f"{a} * sigmoid(conv({less}, {w(c, 2, 1, 1)}, {w(1, c)}))"
            case "pad" if c < 28:
                made, count = f"pad({a}, padding = [(0, 0), (1, 2), (0, 0), (0, 0)])", c + 3
            case "last":
                made = f"transpose(relu(transpose({a}, axes = [0, 2, 3, 1])), axes = [0, 3, 1, 2])"
            case "fragment":
                made = f"twice({a}, {w(c, c, 3, 3)}, {w(1, c)})"
            case "shared":
                weight = w(c, c, 3, 3)
                made = f"conv(relu(conv({a}, {weight})), {weight})"
            case "scaled":
                made, count = f"conv({a}, {w(n, c, 1, 1)} * {w(n, 1, 1, 1)})", n
        if made:
            self.values.append((self.value(made), count))

    def model(self) -> Model:
        for _ in range(self.random.randint(3, 10)):
            self.grow()
        (a, c), outputs, w = self.values[-1], ["y"], self.weight
        batch, end = self.random.choice([1, 2, 3]), self.random.choice(["conv", "flat", "last", "mean"])
        if self.random.random() < 0.3:
            b, d = self.random.choice(self.values)
            self.lines.append(f"z = conv({b}, {w(2, d, 1, 1)});")
            outputs.append("z")
        if end == "conv":
            self.lines.append(f"y = conv({a}, {w(3, c, 3, 3)}, {w(1, 3)});")
        else:
            columns = c if end == "mean" else 36 * c
            flat = f"reshape({a}, shape = [0, -1])"
            if end == "last":
                flat = f"reshape(transpose({a}, axes = [0, 2, 3, 1]), shape = [{batch}, -1])"
            elif end == "mean":
                flat = f"squeeze(mean_reduce({a}, axes = [2, 3]), axes = [2, 3])"
            hidden = self.value(f"relu(linear({self.value(flat)}, {w(5, columns)}, {w(1, 5)}))")
            last = f"matmul({hidden}, {w(4, 5)}, transposeB = true)"
            self.lines.append(f"y = {self.random.choice([last, f'linear({hidden}, {w(4, 5)}, {w(1, 4)})'])};")
        known = [f"{name} = variable(shape = {[*shape]}, label = '{name}');" for name, shape in self.shapes.items()]
        lines = "\n".join([f"x = external(shape = [{batch}, 3, 6, 6]);", *known, *self.lines])
        text = f"{HEAD}graph g(x) -> ({', '.join(outputs)}) {{\n{lines}\n}}\n"
        random = np.random.default_rng(self.random.randrange(1 << 30))
        tensors = {name: random.uniform(0.1, 1, shape).astype(np.float32) for name, shape in self.shapes.items()}
        return Model(tensors, Topology("nnef", text.encode()))


@pytest.mark.clients
@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_any_network_without_channels(share: float, tmp_path: Path) -> None:
    engines.needs("nnef")
    count, found, jobs = 40 // every(4), 0, []
    for k in range(count):
        model = Net(Random(f"{share} {k}")).model()
        assert model.topology
        channels = formats.channels(model.topology)
        found += sum(group.size for group in channels)
        removed = removals(channels, np.random.default_rng(k), share)
        for kind, each in {"masked": masked(model, removed), "pruned": without(model, removed)}.items():
            nnr.save(each, tmp_path / f"{k}.{kind}.nnef")
            jobs.append(Job(tmp_path / f"{k}.{kind}.nnef", None, tmp_path / f"{k}.{kind}.npz"))
    results = engines.run("nnef", jobs)
    assert found > 8 * count
    for before, after in zip(results[::2], results[1::2], strict=True):
        assert (before.error, after.error) == ("", "")
        for one, other in zip(before.outputs, after.outputs, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5 * float(np.abs(one).max(initial=1)))
