"""Several tensors in one unit: option join (TensorSplit, 6.4.3.7)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_NDU

RNG = np.random.default_rng(0)
TENSORS: dict[str, Any] = {
    f"layer.{k}.{name}.w": RNG.normal(size=(20 + rows, 30)).astype(np.float32)
    for k in (0, 1)
    for rows, name in enumerate(("q", "k", "v"))
}
TENSORS |= {f"half.{name}": RNG.normal(size=(5, 4)).astype(ml_dtypes.bfloat16) for name in "ab"}
TENSORS |= {f"int.{name}": RNG.integers(-9, 9, size=(5, 4)).astype(np.int8) for name in "ab"}
TENSORS |= {f"row.{name}": RNG.normal(size=(1, 4)).astype(np.float32) for name in "ab"}
TENSORS |= {
    f"several.{name}": np.ones(dims, np.float32) for name, dims in (("a", (2, 3)), ("b", (2, 4)), ("c", (3, 3)))
}
TENSORS |= {"layer.bias": RNG.normal(size=20).astype(np.float32)}
EVERY = ("layer.*.{v,q,k}.w", "half.{a,b}", "int.{b,a}")


def shared(data: bytes) -> list[list[str]]:
    """Return the lists of ids of the units with several tensors."""
    units = [unit.ndu for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU]
    return [unit.topology_elem_id_list for unit in units if unit.nnr_multiple_topology_elements_present_flag]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"indexed_references": True},
        {"scan_order": 1},
        {"max_unit_size": 500},
        {"parts": {"layer.*": "layers"}},
        {"target_ratio": 0.3},
        {"reduce": "sparsify(ratio=0.5)"},
        {"codebook": 16},
        {"jobs": 2},
    ],
)
def test_tensors_come_back_as_with_one_step(options: dict[str, Any]) -> None:
    data = nnr.encode(TENSORS, join=EVERY, **options)
    assert not nnr.verify(data).violations
    found = nnr.decode(data)
    assert set(found) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        if tensor.dtype == np.int8:
            assert (found[name] == tensor).all()
    if options.keys() & {"target_ratio", "reduce"}:  # where other tensors matter
        return
    joined = np.concatenate([TENSORS[f"layer.1.{name}.w"] for name in "vqk"])
    alone = nnr.decode(nnr.encode({"layer.1.v.w": joined}, **options))["layer.1.v.w"]
    assert np.concatenate([found[f"layer.1.{name}.w"] for name in "vqk"]).tobytes() == alone.tobytes()


def test_ids_are_in_the_order_of_the_alternatives() -> None:
    assert sorted(shared(nnr.encode(TENSORS, join=EVERY))) == [
        ["half.a", "half.b"],
        ["int.b", "int.a"],
        ["layer.0.v.w", "layer.0.q.w", "layer.0.k.w"],
        ["layer.1.v.w", "layer.1.q.w", "layer.1.k.w"],
    ]
    assert shared(nnr.encode(TENSORS)) == []


def test_tensors_are_joined_along_the_dimension_in_which_they_differ() -> None:
    tensors = {name: RNG.normal(size=(9, columns, 4)).astype(np.float32) for columns, name in ((3, "a"), (5, "b"))}
    data = nnr.encode(tensors, join=["{a,b}"])
    (unit,) = [unit.ndu for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU]
    assert (unit.tensor_dimensions, unit.concatentation_axis_index, unit.split_index) == ([9, 8, 4], 1, [3])
    found = nnr.decode(data)
    alone = nnr.decode(nnr.encode({"a": np.concatenate([tensors["a"], tensors["b"]], 1)}))["a"]
    assert np.concatenate([found["a"], found["b"]], 1).tobytes() == alone.tobytes()


@pytest.mark.parametrize(
    ("shape", "other", "order", "axis", "moves"),
    [
        ((20, 3), (3, 20), (1, 0), 0, ([1], [1])),
        ((20, 3), (3, 21), (1, 0), 0, ([1], [1])),
        ((2, 3, 4, 5), (4, 2, 9, 5), (1, 2, 0, 3), 1, ([2], [2])),
        ((2, 3, 4, 5), (5, 4, 3, 2), (3, 2, 1, 0), 0, ([3, 3, 3], [3, 2, 1])),
        ((2, 3, 4, 5), (3, 4, 5, 2), (3, 0, 1, 2), 0, ([1, 2, 3], [1, 1, 1])),
    ],
)
def test_dimensions_in_another_order_come_back(
    shape: tuple[int, ...],
    other: tuple[int, ...],
    order: tuple[int, ...],
    axis: int,
    moves: tuple[list[int], list[int]],
) -> None:
    tensors = {"a": RNG.normal(size=shape).astype(np.float32), "b": RNG.normal(size=other).astype(np.float32)}
    data = nnr.encode(tensors, join=["{a,b}"])
    assert not nnr.verify(data).violations
    (unit,) = [unit.ndu for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU]
    assert (unit.number_of_shifts, unit.shift_index[1], unit.shift_value[1]) == ([0, len(moves[0])], *moves)
    found = nnr.decode(data)
    assert (found["a"].shape, found["b"].shape) == (shape, other)
    joined = np.concatenate([tensors["a"], tensors["b"].transpose(order)], axis)
    alone = nnr.decode(nnr.encode({"a": joined}))["a"]
    assert np.concatenate([found["a"], found["b"].transpose(order)], axis).tobytes() == alone.tobytes()


def test_options_of_the_first_tensor_apply() -> None:
    rules = [nnr.Rule("layer.?.k.w", qp=-4), nnr.Rule("layer.?.q.w", qp=-60)]
    data = nnr.encode(TENSORS, join=["layer.*.{q,k,v}.w"], rules=rules)
    found = nnr.decode(data)
    assert max(abs(found[name] - TENSORS[name]).max() for name in TENSORS if name.startswith("layer.0")) < 1e-4


def test_files_are_read_tensor_by_tensor(tmp_path: Any) -> None:
    model = {name: tensor for name, tensor in TENSORS.items() if tensor.dtype == np.float32}
    nnr.save(nnr.Model(model), tmp_path / "m.safetensors")
    nnr.encode_file(tmp_path / "m.safetensors", tmp_path / "m.nnr", join=["layer.*.{q,k,v}.w"])
    expected = nnr.encode(nnr.load(tmp_path / "m.safetensors"), join=["layer.*.{q,k,v}.w"])
    assert (tmp_path / "m.nnr").read_bytes() == expected


@pytest.mark.parametrize(
    ("join", "options", "match"),
    [
        ("x.{a,b}", {}, "must be a sequence"),
        (["layer.*.q.w"], {}, "in braces"),
        (["{a,a}"], {}, "in braces"),
        (["{a}"], {}, "in braces"),
        (["{a,b}{c,d}"], {}, "in braces"),
        ([3], {}, "in braces"),
        (["x.{a,b}"], {}, "matches no tensors"),
        (["[z-a].{a,b}"], {}, "is not a glob"),
        (["layer.*.{q,o}.w"], {}, "no tensor with 'o'"),
        (["{half.a,int.a}"], {}, "must have the same type and rank"),
        (["{layer.bias,half.a}"], {}, "must have the same type and rank"),
        (["row.{a,b}"], {}, "is a vector"),
        (["several.{a,b,c}"], {}, "differ in several dimensions"),
        (["half.{a,b}", "half.{b,a}"], {}, "in several groups"),
        (["layer.0.{q,k}.w"], {"exact": True}, "coded with side information"),
    ],
)
def test_what_cannot_be_joined(join: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(nnr.EncodeError, match=match):
        nnr.encode(TENSORS, join=join, **options)


def test_tied_tensors_and_updates_cannot_be_joined() -> None:
    model = nnr.Model({**TENSORS, "tied": TENSORS["half.a"]}, aliases={"tied": "half.a"})
    with pytest.raises(nnr.EncodeError, match="tied"):
        nnr.encode(model, join=["half.{a,b}"])
    with pytest.raises(nnr.EncodeError, match="whole models only"):
        nnr.encode_update(TENSORS, {name: tensor + tensor for name, tensor in TENSORS.items()}, join=["half.{a,b}"])


def test_blocks_cannot_be_joined() -> None:
    model = nnr.Model(
        {"w": np.ones((3, 4), np.float32), "b": np.ones(3, np.float32)}, blocks=[nnr.Block("w", bias="b")]
    )
    with pytest.raises(nnr.EncodeError, match="blocks"):
        nnr.encode(model, join=["{w,b}"])
