"""T34: deflated topology and quantization data, and declarations of a graph."""

from __future__ import annotations

import zlib

import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_INT
from nnr_codec.limits import Limits

from ..builder import ndu
from ..decoder import test_topology as wired
from .support import memory, refused, start


def deflated(zeros: int) -> bytes:
    """Return a mebibyte, deflated to a kilobyte."""
    return zlib.compress(zeros * b" " + b"\0", 9)


def test_t34_a_bomb() -> None:
    bomb = start().topology(deflated(100 << 20), compression=1).data
    assert len(bomb) < 1 << 17
    with memory() as used:
        refused(bomb, nnr.LimitError, "max_topology_bytes", limits=Limits(max_topology_bytes=1 << 20))
    assert used.peak < 4 << 20


@pytest.mark.parametrize("compression", [0, 1])
def test_t34_many_topologies(compression: int) -> None:
    """Each is within the limit."""
    stream, text = start(), 999 * b" " + b"\0"
    for _ in range(4):
        stream.topology(zlib.compress(text) if compression else text, compression=compression)
    stream.quantization(zlib.compress(text) if compression else text, compression=compression)
    assert nnr.decode(stream.data, limits=Limits(max_topology_bytes=5000)).topology
    refused(stream.data, nnr.LimitError, "max_topology_bytes", limits=Limits(max_topology_bytes=4999))


GOOD = deflated(500)
DICTIONARY = zlib.compressobj(zdict=b"graph")


@pytest.mark.parametrize(
    "data", [GOOD[:-1], GOOD[:-4], GOOD + b"\0", GOOD + GOOD], ids=["cut", "no sum", "zero", "two"]
)
def test_t34_data_that_does_not_end_with_its_unit(data: bytes) -> None:
    refused(start().topology(data, compression=1).data, nnr.ElementError, "does not end with its unit")


@pytest.mark.parametrize(
    "data",
    [
        GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
        DICTIONARY.compress(b"graph\0") + DICTIONARY.flush(),
        zlib.compress(b"\0")[2:],
        b"\x78\x9c\xff",
    ],
    ids=["sum", "dictionary", "no header", "block type"],
)
def test_t34_damaged_data(data: bytes) -> None:
    refused(start().topology(data, compression=1).data, nnr.ElementError, "deflated data is damaged")


def test_t34_many_graphs_for_readers_of_headers() -> None:
    """Each of them would be parsed."""
    stream, text = wired.start(known={"w": [2], "v": [2]}), wired.graph({"w": (2,), "v": (2,)}) + b"\0"
    for name in ("w", "v"):
        stream.topology(text).ndu(ndu(name, None, kind=NNR_PT_INT), [1, 2])
    assert nnr.inspect(stream.data, limits=Limits(max_topology_bytes=2 * len(text)))
    with pytest.raises(nnr.LimitError, match="max_topology_bytes"):
        nnr.inspect(stream.data, limits=Limits(max_topology_bytes=2 * len(text) - 1))


@pytest.mark.parametrize("shape", [(1 << 31, 1 << 31), (4,), (1, 1)])
def test_a_graph_that_declares_another_shape(shape: tuple[int, ...]) -> None:
    data = wired.normalized(dict.fromkeys(wired.VECTORS, shape)).data
    with memory() as used:
        assert nnr.decode(data)["gamma"].shape == (3,)
    assert used.peak < 1 << 20


def test_recreated_tensors_are_charged() -> None:
    data = wired.folded(wired.start(wired.network())).data
    total = 4 * (12 + 2 * 3 + 3 * 3)
    nnr.decode(data, limits=Limits(max_total_bytes=total))
    refused(data, nnr.LimitError, "recreated tensor", limits=Limits(max_total_bytes=total - 1))


@pytest.mark.parametrize("name", ["bn/mean", "bn/var", "bn/bias"])
def test_recreated_tensors_that_exist_already(name: str) -> None:
    other = ndu(name, [1, 3])
    after = wired.folded(wired.start(wired.network())).ndu(other, [1, 2, 3]).data
    before = wired.folded(wired.start(wired.network()).ndu(other, [1, 2, 3])).data
    for data in (after, before):
        refused(data, nnr.ElementError, f"'{name}' occurs twice", unit="unit 4")
        assert nnr.verify(data).violations
