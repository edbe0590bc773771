"""Tensors that pruning has made smaller than in the graph: the saved graph has their shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_INT
from nnr_codec.errors import FormatError
from nnr_codec.formats.nnef.graph import parse_graph, with_shapes
from nnr_codec.model import Array, Model, Topology

from ..builder import Bitstream, ndu
from ..vectors.pruning import container, pruned

GRAPH = b"""version 1.0;  # comments stay
graph net(x) -> (y)
{
    x = external(shape = [1, 4]);
    w = variable<integer>(label = 'fc/W', shape = [ 3,4 ] ) ;
    b = variable<integer>(shape = [1] + [3], label = "fc/b");
    c = variable<integer>(shape = [3, 4], label = 'FC/w');  # of w
    y = linear(x, w, b);
}
"""
PRUNED = GRAPH.replace(b"[ 3,4 ]", b"[ 2,4 ]").replace(b"[1] + [3]", b"[1, 2]").replace(b"[3, 4]", b"[2, 4]")


def replaced(**shapes: tuple[int, ...]) -> bytes:
    names = {"w": "fc/w", "b": "fc/b"}
    return with_shapes(GRAPH, parse_graph(GRAPH), {names[name]: shape for name, shape in shapes.items()})


def test_only_numbers_change() -> None:
    assert replaced(w=(2, 4), b=(1, 2)) == PRUNED
    assert replaced() == replaced(w=(3, 4), b=(3,)) == GRAPH
    assert parse_graph(PRUNED).variables[0].shape == (2, 4)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[3,  # rows\n 4]", "[2,  # rows\n 5]"),
        ("([03, 4])", "([2, 5])"),
        ("[ (3), 4 ]", "[ (2), 5 ]"),
        ("[3, 2 * 2]", "[2, 5]"),
        ("[- -3, 4]", "[2, 5]"),
        ("([3] + [4])", "([2, 5])"),
        ("[3] + [4]", "[2, 5]"),
    ],
)
def test_what_stands_between_the_numbers_stays(before: str, after: str) -> None:
    """Shapes of other nodes, such as the input, are not edited either."""
    text = "version 1.0; graph g(x) -> (w) {{ x = external(shape = [3, 4]); w = variable(label = 'w', shape = {}); }}"
    data = text.format(before).encode()
    assert with_shapes(data, parse_graph(data), {"w": (2, 5)}) == text.format(after).encode()


def test_extents_of_1_that_the_tensor_does_not_have_stay() -> None:
    assert replaced(w=(2, 4), b=(2,)) == PRUNED
    assert replaced(b=(1,)) == GRAPH.replace(b"[1] + [3]", b"[1, 1]")


@pytest.mark.parametrize("shape", [(), (2,), (2, 4, 1)])
def test_what_cannot_be_placed_is_left_to_the_error(shape: tuple[int, ...]) -> None:
    assert replaced(w=shape) == GRAPH


def tensors() -> dict[str, Array]:
    return {"fc/W": np.arange(8, dtype=np.int32).reshape(2, 4), "fc/b": np.array([5, 6], np.int32)}


def test_a_pruned_model_is_saved_with_its_shapes(tmp_path: Path) -> None:
    model = Model(tensors(), Topology("nnef", GRAPH), pruned=["fc/W", "fc/b", "no tensor"])
    nnr.save(model, tmp_path / "m.nnef")
    assert (tmp_path / "m.nnef" / "graph.nnef").read_bytes() == PRUNED
    loaded = nnr.load(tmp_path / "m.nnef")
    assert {name: loaded[name].tolist() for name in loaded} == {
        "fc/W": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "fc/b": [[5, 6]],
    }


def test_other_tensors_have_to_fit(tmp_path: Path) -> None:
    for names in ([], ["fc/b"]):
        with pytest.raises(FormatError, match="has shape"):
            nnr.save(Model(tensors(), Topology("nnef", GRAPH), pruned=names), tmp_path / "m.nnef")


def test_from_a_bitstream(tmp_path: Path) -> None:
    s = Bitstream().str_().mps().topology(GRAPH + b"\0")
    pruned(s, container(dims={"fc/W": [2, 4], "fc/b": [2]}))
    for name, values in tensors().items():
        s.ndu(ndu(name, None, kind=NNR_PT_INT), values)
    model = nnr.decode(s.data)
    assert list(model.pruned) == ["fc/W", "fc/b"]
    nnr.save(model, tmp_path / "m.nnef.tgz")
    topology = nnr.load(tmp_path / "m.nnef.tgz").topology
    assert topology is not None
    assert topology.data == PRUNED
