"""Weights that side information computes from their displacements (docs/reference/side-information.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_CPT_DC, NNR_PT_BLOCK
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Block, Model, Topology
from nnr_codec.sideinfo.record import DisplacementCode, SideInfo, TensorRecord

from ..builder import Bitstream, ndu

G, H = np.array([[1, 0], [0, 2], [3, -1]], np.int32), np.array([[2, 0, -1], [1, 4, 0]], np.int32)
#: By hand, from G * H = [[2, 0, -1], [2, 8, 0], [5, -4, -3]].
MADE = {
    0: [[2, 0, -1], [2, 10, 0], [5, -2, 7]],
    1: [[2, 0, -1], [1, 10, 0], [5, -3, 7]],
    -1: [[2, 0, -1], [3, 10, 0], [5, -1, 7]],
}
UNIT = "w_displacement"


def bitstream(corner: int = 0, type_: str = "float32", *, two_units: bool = False, **members: Any) -> bytes:
    """Return G and H of a displacement, and a tensor after them."""
    side = SideInfo({"w": TensorRecord(type_, code=DisplacementCode(UNIT, corner), **members)})
    s = Bitstream().str_().mps(2)
    s.topology(side.to_bytes() + b"\0", storage=128)
    header = {"compressed_parameter_types": NNR_CPT_DC, "g_number_of_rows": 3, "decomposition_rank": 2}
    if two_units:
        s.ndu(ndu(UNIT, [3, 3], **header), G)
        s.ndu(ndu(f"{UNIT}_H", [3, 3], **header), H)
    else:
        s.ndu(ndu([UNIT, f"{UNIT}_H"], [3, 3], kind=NNR_PT_BLOCK, **header), G, H)
    s.ndu(ndu("after", [2]), [1, 2])
    return bytes(s.data)


def same(got: Array, want: Any, dtype: str = "float32") -> None:
    assert got.dtype.name == dtype
    np.testing.assert_array_equal(got.astype("f8"), want)


@pytest.mark.parametrize("corner", MADE)
@pytest.mark.parametrize("two_units", [False, True])
def test_all_ways_to_decode(corner: int, two_units: bool, tmp_path: Path) -> None:
    data = bitstream(corner, two_units=two_units)
    got = nnr.decode(data)
    assert [*got] == ["w", "after"]
    assert got.metadata == {}
    same(got["w"], MADE[corner])
    same(nnr.decode(data, jobs=2)["w"], MADE[corner])
    raw = nnr.decode(data, raw=True)
    assert [*raw] == [UNIT, f"{UNIT}_H", "after"]
    same(raw[UNIT], G)
    with nnr.open(data) as file:
        assert [*file] == ["w", "after"]
        info = file.info["w"]
        assert (info.name, info.shape, info.type, info.code) == ("w", (3, 3), "float32", "displacement")
        same(file["w"], MADE[corner])
        same(file.rows("w", 1, 3), MADE[corner][1:])
        assert [*file.decode(names=["after"])] == ["after"]
        same(file.decode(names=["w"])["w"], MADE[corner])
    stream = nnr.StreamDecoder()
    found = dict([tensor for byte in data for tensor in stream.feed(bytes([byte]))] + stream.finish())
    same(found["w"], MADE[corner])
    nnr.decode_file(data, tmp_path / "x.npz")
    same(nnr.load(tmp_path / "x.npz")["w"], MADE[corner])
    assert not nnr.verify(data).violations


def test_the_numbers_of_the_documentation() -> None:
    text = b'{"nnr_codec":2,"tensors":{"w":{"code":{"corner":1,"kind":"displacement"},"type":"float32"}}}'
    s = Bitstream().str_().mps(2)
    s.topology(text + b"\0", storage=128)
    s.ndu(ndu(UNIT, [3, 3]), [[2, -4, 1], [0, 0, 0], [0, 6, 0]], qp=-4)
    same(nnr.decode(bytes(s.data))["w"], [[1, -2, 0.5], [0.5, 1, -2], [-2, 3.5, 1]])


def test_types_and_shapes() -> None:
    same(nnr.decode(bitstream(1, "float16"))["w"], MADE[1], "float16")
    same(nnr.decode(bitstream(1, "float64"), dtype="float16")["w"], MADE[1], "float16")
    got = nnr.decode(bitstream(1, shape=(3, 1, 3)))["w"]
    same(got, np.reshape(MADE[1], (3, 1, 3)))
    flat = nnr.decode(bitstream(1, shape=(9,)))["w"]  # one column
    same(flat, np.cumsum(G @ H))
    same(nnr.decode(bitstream(1, shape=(1, 9)))["w"], (G @ H).reshape(1, 9))


def test_ties() -> None:
    records = {"w": TensorRecord("float32", code=DisplacementCode(UNIT)), "z": TensorRecord(same_as="w", index=0)}
    s = Bitstream().str_().mps(2)
    s.topology(SideInfo(records).to_bytes() + b"\0", storage=128)
    s.ndu(ndu(UNIT, [3, 3]), G @ H)
    got = nnr.decode(bytes(s.data))
    assert [*got] == ["z", "w"]
    assert got.aliases == {"z": "w"}
    same(got["z"], MADE[0])


def test_limits() -> None:
    data = bitstream()
    work = 3 * 2048 + 9  # of additions
    product = 2 * (2048 + 9)
    for limit, passes in ((work + product, True), (max(work, product) - 1, False)):
        limits = Limits(max_decomp_elements=limit)
        if passes:
            nnr.decode(data, limits=limits)
        else:
            with pytest.raises(nnr.LimitError, match="max_decomp_elements"):
                nnr.decode(data, limits=limits)
    with pytest.raises(nnr.LimitError, match="additions to displacements"):
        nnr.decode(data, limits=Limits(max_decomp_elements=work - 1))
    expected = {"w": np.empty((3, 3), "f4"), "after": np.empty(2, "f4")}
    same(nnr.decode(data, limits=Limits(expected=expected))["w"], MADE[0])
    with pytest.raises(nnr.LimitError, match="'w'"):
        nnr.decode(data, limits=Limits(expected={"w": np.empty((3, 4), "f4"), "after": expected["after"]}))


def test_variables_of_a_graph() -> None:
    """The variables are the decoded tensors, not the displacements."""
    graph = b"""version 1.0;
graph net(x) -> (y) {
    x = external(shape = [1, 40]);
    w = variable(shape = [30, 40], label = 'w');
    b = variable(shape = [1, 30], label = 'b');
    y = linear(x, w, b);
}
"""
    values = np.random.default_rng(0).normal(0, 0.1, 69)
    w = values[np.arange(30)[:, None] - np.arange(40) + 39].astype("f4")
    model = Model({"w": w, "b": np.ones((1, 30), "f4")}, Topology("nnef", graph))
    for options in ({}, {"indexed_references": True}, {"block": True}, {"topology": "external"}):
        data = nnr.encode(model, reduce="lowrank(error=0.001, displacement=true)", **options)
        given = {"topology": model.topology} if "topology" in options else {}
        got = nnr.decode(data, **given)
        assert [*got] == ["w", "b"]
        assert np.linalg.norm(got["w"] - w) < 0.02 * np.linalg.norm(w)
        assert "code=displacement" not in str(got.metadata)
        report = nnr.verify(data, **given)
        assert not report.violations, options


def test_names_that_are_taken_are_not_used() -> None:
    w = np.ones((3, 4), "f4")
    tensors = {UNIT: w, "g": w[:, :2], "h": w[:2]}
    with pytest.raises(nnr.EncodeError, match="two tensors would have the name"):
        nnr.encode(Model(tensors, blocks=[Block("w", g="g", h="h", corner=0)]))
