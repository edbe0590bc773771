"""The description of PyTorch files and its information about tensors, without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError
from nnr_codec.formats import pytorch
from nnr_codec.formats.pytorch import description
from nnr_codec.model import Block, Model, Topology, Wiring

from .torch_support import floats


def described(tree_: Any, blocks: Any = None) -> bytes:
    """Return the text of a description."""
    fields = {"nnr_codec.pytorch": 1, "tree": tree_} | ({} if blocks is None else {"blocks": blocks})
    return json.dumps(fields, separators=(",", ":")).encode()


STATE: Any = {
    "OrderedDict": [
        ["c.weight", {"tensor": [4, 2, 3, 3]}],
        ["c.bias", {"tensor": [4]}],
        *([f"n.{name}", {"tensor": [4]}] for name in ("weight", "bias", "running_mean", "running_var")),
        ["n.num_batches_tracked", {"tensor": []}],
    ],
    "_metadata": {"OrderedDict": [["", {"dict": [["version", 1]]}]]},
}
BLOCK: dict[str, Any] = {
    "weight": "c.weight",
    "bias": "c.bias",
    "beta": "n.bias",
    "gamma": "n.weight",
    "mean": "n.running_mean",
    "var": "n.running_var",
    "axis": 0,
    "epsilon": 1e-5,
}


def test_wiring() -> None:
    topology = Topology("pytorch", described(STATE, [BLOCK]))
    assert pytorch.owns(topology)
    found = formats.wiring(topology)
    assert found.shapes == {key: tuple(node["tensor"]) for key, node in STATE["OrderedDict"]}
    assert found.blocks == (Block(**BLOCK),)
    assert not found.ignores_case
    assert description.to_bytes(STATE, found.blocks) == topology.data


def test_names() -> None:
    nodes = {
        "dict": [
            ["a", [{"tensor": [1]}, {"tuple": [{"parameter": [2], "requires_grad": False}]}]],
            [1, {"tensor": [], "name": "own", "requires_grad": True}],
            [None, {"tensor": [3]}],
            [{"tuple": [1, "x"]}, {"tensor": [4]}],
        ]
    }
    assert description.parse(described(nodes)).wiring.shapes == {
        "a.0": (1,),
        "a.1.0": (2,),
        "own": (),
        "null": (3,),
        '{"tuple":[1,"x"]}': (4,),
    }
    assert description.parse(described({"tensor": [5]})).wiring.shapes == {"tensor": (5,)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"{}",
        b"[]",
        b"nnef",
        b'{"nnr_codec.pytorch":',
        b'{"nnr_codec.pytorch":1}',
        b'{"nnr_codec.pytorch":2,"tree":1}',
        b'{"nnr_codec.pytorch":true,"tree":1,"x":1}',
        b'{"nnr_codec.pytorch":1,"tree":NaN}',
        b'{"nnr_codec.pytorch":1,"tree":1e999}',
        b'{"nnr_codec.pytorch":1,"tree":1,"tree":2}',
        b'{"nnr_codec.pytorch":1,"tree":1}\0',
        '{"nnr_codec.pytorch":1,"tree":"é"}'.encode(),
        b'{"nnr_codec.pytorch":1,"tree":' + b"9" * 5000 + b"}",
        b'{"nnr_codec.pytorch":1,"tree":' + b"[" * 100_000,
    ],
)
def test_invalid_descriptions(data: bytes) -> None:
    with pytest.raises(FormatError):
        description.parse(data)
    assert formats.wiring(Topology("pytorch", data)) == Wiring()


NODES: list[Any] = [
    {},
    {"x": 1},
    {"dict": 1},
    {"dict": [1]},
    {"dict": [[1]]},
    {"dict": [[1, 2, 3]]},
    {"dict": [[[], 1]]},
    {"dict": [[{"dict": []}, 1]]},
    {"dict": [[{"set": []}, 1]]},
    {"dict": [], "_metadata": 1},
    {"OrderedDict": [], "metadata": 1},
    {"Counter": {}},
    {"tuple": 1},
    {"tuple": [], "x": 1},
    {"set": [[]]},
    {"set": [{"tensor": []}]},
    {"set": 1},
    {"tensor": 1},
    {"tensor": [-1]},
    {"tensor": [1.0]},
    {"tensor": [True]},
    {"tensor": [1 << 63]},
    {"tensor": [1] * 33},
    {"tensor": [1], "x": 1},
    {"tensor": [1], "name": 1},
    {"tensor": [1], "requires_grad": 1},
    {"parameter": None},
    {"float": "7ff"},
    {"float": 1.0},
    {"float": "G" * 16},
    {"float": "7FF8000000000000"},
    {"int": 5},
    {"int": "x"},
    {"int": "0x" + "f" * 600},
    {"int": "1" * 5000},
    {"complex": [1.0]},
    {"complex": [1, 2]},
    {"complex": ["a", "b"]},
    {"complex": [{}, 1.0]},
    {"size": [-1]},
    {"size": "x"},
    {"dtype": 1},
    {"device": []},
    {"dtype": "float32", "x": 1},
    {"name": "w"},
    {"requires_grad": True},
    [{"tensor": [1], "name": "a"}, {"tensor": [2], "name": "a"}],
    {"dict": [["a", {"tensor": []}], ["a", {"tensor": []}]]},
]


@pytest.mark.parametrize("node", NODES, ids=lambda node: json.dumps(node)[:40])
def test_nodes_that_are_none(node: Any) -> None:
    with pytest.raises(FormatError, match="the description"):
        description.parse(described(node))
    with pytest.raises(FormatError):
        description.parse(described({"dict": [["k", [node]]]}))


@pytest.mark.parametrize(
    "change",
    [
        {"weight": None},
        {"weight": "x"},
        {"weight": 1},
        {"weight": ["c.weight"]},
        {"axis": 1},
        {"axis": 4},
        {"axis": -1},
        {"axis": 0.0},
        {"axis": True},
        {"axis": None},
        {"epsilon": "1"},
        {"epsilon": -1.0},
        {"epsilon": 1},
        {"epsilon": 10**400},
        {"weight": "n.weight", "gamma": "c.weight"},
        {"mean": "n.num_batches_tracked"},
        {"beta": "n.weight"},
        {"scale": "c.bias"},
        {"x": 1},
    ],
    ids=str,
)
def test_blocks_that_are_none(change: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="block"):
        description.parse(described(STATE, [BLOCK | change]))


def test_blocks_are_a_list() -> None:
    for blocks in ({}, 1, [1], [[]], [{}], [BLOCK, BLOCK]):
        with pytest.raises(FormatError, match="block"):
            description.parse(described(STATE, blocks))


def test_a_foreign_topology_of_that_number() -> None:
    """The format of others is unknown; their tensors are still read."""
    for data in (b"some text", b'{"model": 1}', b"\x80\x02."):
        bitstream = nnr.encode(Model({"w": floats(3, 3)}, Topology("pytorch", data)))
        assert nnr.decode(bitstream).topology == Topology("pytorch", data)
        assert not pytorch.owns(Topology("pytorch", data))


@pytest.mark.medium
def test_decoders_need_no_pytorch() -> None:
    """The description suffices to unfold batch normalizations."""
    tensors = {key: floats(*node["tensor"]) + 1 for key, node in STATE["OrderedDict"]}
    data = nnr.encode(Model(tensors, Topology("pytorch", described(STATE, [BLOCK]))), fold_batchnorm=True, qp=-60)
    program = (
        "import sys; sys.modules['torch'] = None; import nnr_codec as nnr; "
        "model = nnr.decode(sys.stdin.buffer.read()); print(*model, model['n.running_var'][0])"
    )
    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True)
    *names, variance = done.stdout.decode().split()
    assert sorted(names) == sorted(tensors)
    assert float(variance) == pytest.approx(1 - 1e-5)


@given(
    st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(allow_nan=False),
            st.text(max_size=3),
            st.sampled_from(["tensor", "dict", "w"]),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(["tensor", "dict", "tuple", "set", "float", "int", "name", "size"]), inner, max_size=2
            ),
        ),
        max_leaves=10,
    )
)
def test_any_json(node: Any) -> None:
    data = json.dumps({"nnr_codec.pytorch": 1, "tree": node}).encode()
    try:
        found = description.parse(data)
    except FormatError:
        return
    assert description.parse(description.to_bytes(found.tree, found.blocks)).places == found.places
