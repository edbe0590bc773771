"""References of a unit: reference lists, dimensions, several tensors in one unit (6.4.3.7, 7.3.1)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_CPT_BI, NNR_PT_BLOCK, NNR_PT_INT, NNR_PT_RAW_FLOAT

from ..builder import Bitstream, ndu
from .support import refused


# ------------------------------------------------------------------------------------------------ reference list
def test_indices_stand_for_names() -> None:
    stream = Bitstream().str_().mps(indexed=1).reference_list("a", "b", "c")
    stream.ndu(ndu(2, [1], kind=NNR_PT_INT), [5]).ndu(ndu(0, [1], kind=NNR_PT_INT), [6])
    with pytest.raises(nnr.IncompleteError, match=r"incomplete: 2 of 3 tensors; 'b' missing"):
        nnr.decode(stream.data)
    got = nnr.decode(stream.data, allow_missing=True)
    assert {name: values.tolist() for name, values in got.tensors.items()} == {"c": [5], "a": [6]}
    assert list(nnr.open(stream.data)) == ["c", "a"]
    assert [info.names for info in nnr.inspect(stream.data)][-2:] == [("c",), ("a",)]


def test_indices_of_a_block_and_of_a_split() -> None:
    stream = Bitstream().str_().mps(indexed=1).reference_list("w", "b", "x", "y")
    stream.ndu(ndu([0, 1], [2, 3], kind=NNR_PT_BLOCK, compressed_parameter_types=NNR_CPT_BI), [1, 2], np.ones((2, 3)))
    mapping = {"concatentation_axis_index": 0, "split_index": [1], "number_of_shifts": [0, 0]}
    stream.ndu(ndu([3, 2], [3], kind=NNR_PT_INT, **mapping), [7, 8, 9])
    got = nnr.decode(stream.data)
    assert {name: values.tolist() for name, values in got.tensors.items()} == {
        "w": [[1, 1, 1], [1, 1, 1]],
        "b": [1, 2],
        "y": [7],
        "x": [8, 9],
    }


@pytest.mark.parametrize("index", [3, 4, 1 << 20])
def test_an_index_beyond_the_list_is_missing(index: int) -> None:
    data = Bitstream().str_().mps(indexed=1).reference_list("a", "b", "c")
    header = ndu(index, [1], kind=NNR_PT_INT)
    data.session.reference_list += ["?"] * (index - 2)
    refused(data.ndu(header, [1]).data, nnr.MissingReferenceError, rf"{index} is not in the reference list of 3")


def test_an_index_without_a_list_is_missing() -> None:
    stream = Bitstream().str_().mps(indexed=1)
    stream.session.reference_list = ["w"]
    stream.ndu(ndu(0, [1], kind=NNR_PT_INT), [1])
    refused(stream.data, nnr.MissingReferenceError, "reference list of 0")


def test_two_indices_of_one_name_are_refused() -> None:
    stream = Bitstream().str_().mps(indexed=1).reference_list("a", "a")
    stream.ndu(ndu(0, [1], kind=NNR_PT_INT), [5]).ndu(ndu(1, [1], kind=NNR_PT_INT), [6])
    refused(stream.data, nnr.ElementError, "'a' occurs twice", unit="unit 4")


# ------------------------------------------------------------------------------------------------ dimensions
@pytest.mark.parametrize("kind", [NNR_PT_INT, NNR_PT_RAW_FLOAT])
@pytest.mark.parametrize("dims", [[6], [2, 3], [1, 2, 3]])
def test_dimensions_from_outside(kind: int, dims: list[int]) -> None:
    """count_tensor_dimensions determines the other elements of the header."""
    known = {"w": dims, "other": [7]}
    stream = Bitstream(known).str_().mps()
    header = ndu("w", None, kind=kind)
    values = np.arange(6).reshape(dims)
    data = (stream.raw(header, values) if kind == NNR_PT_RAW_FLOAT else stream.ndu(header, values)).data
    np.testing.assert_array_equal(nnr.decode(data, topology_dimensions=known)["w"], values)
    np.testing.assert_array_equal(nnr.open(data, topology_dimensions=known)["w"], values)
    np.testing.assert_array_equal(nnr.UpdateDecoder(topology_dimensions=known).decode(data)["w"], values)
    for dimensions in ({}, {"other": [7]}):
        refused(data, nnr.MissingReferenceError, "dimensions of 'w'", topology_dimensions=dimensions)
    with pytest.raises(nnr.MissingReferenceError, match="dimensions of 'w'"):
        nnr.open(data)
    with pytest.raises(nnr.MissingReferenceError, match="dimensions of 'w'"):
        nnr.inspect(data)


def test_without_input_parameters_there_is_nothing_but_the_default() -> None:
    known = {"w": [2, 3]}
    header = ndu("w", None, unary=None, input_parameters_present_flag=0)
    del header.tensor_dimensions_flag
    data = Bitstream(known).str_().mps().ndu(header, np.arange(6), qp=-4).data
    np.testing.assert_array_equal(nnr.decode(data, topology_dimensions=known)["w"], np.arange(6).reshape(2, 3) / 2)


def test_dimensions_in_the_header_win() -> None:
    data = Bitstream().str_().mps().ndu(ndu("w", [2, 3], kind=NNR_PT_INT), np.arange(6)).data
    assert nnr.decode(data, topology_dimensions={"w": [6]})["w"].shape == (2, 3)


@pytest.mark.parametrize("dims", [[7], [2, 2], [5], [3, 2, 2]])
def test_wrong_dimensions_from_outside_are_noticed(dims: list[int]) -> None:
    data = Bitstream({"w": [6]}).str_().mps().ndu(ndu("w", None, kind=NNR_PT_INT), [9, -9, 8, 100, -20, 3]).data
    with pytest.raises(nnr.BitstreamError):
        nnr.decode(data, topology_dimensions={"w": dims})


# ------------------------------------------------------------------------------------------------ several tensors
def mapping(
    splits: list[int], axis: int, shifts: list[list[tuple[int, int]]] | None = None, count: int | None = None
) -> dict[str, Any]:
    shifts = shifts or [[] for _ in range(count or len(splits) + 1)]
    return {
        "concatentation_axis_index": axis,
        "split_index": splits,
        "number_of_shifts": [len(pairs) for pairs in shifts],
        "shift_index": [[index for index, _ in pairs] for pairs in shifts],
        "shift_value": [[value for _, value in pairs] for pairs in shifts],
    }


def split(values: Any, splits: list[int], axis: int, shifts: list[list[tuple[int, int]]] | None = None) -> bytes:
    names = [f"t{k}" for k in range(len(splits) + 1)]
    header = ndu(names, values.shape, kind=NNR_PT_INT, **mapping(splits, axis, shifts))
    return Bitstream().str_().mps().ndu(header, values).data


def swapped_left(tensor: Any, index: int, value: int) -> Any:
    """Return ``value`` after AxisSwap(axis, axis - 1) for each axis from ``index`` on (errata N2)."""
    for axis in range(index, index - value, -1):
        tensor = np.swapaxes(tensor, axis, axis - 1)
    return tensor


@pytest.mark.parametrize(("splits", "axis"), [([1], 0), ([1, 3], 0), ([2], 1), ([1, 2, 3, 4], 1), ([1, 5], 2)])
def test_split(splits: list[int], axis: int) -> None:
    """TensorSplit(), 4.12: piece x has the elements from splitIndices[x] on."""
    values = np.arange(4 * 5 * 6).reshape(4, 5, 6)
    data = split(values, splits, axis)
    got = nnr.decode(data)
    edges = [0, *splits, values.shape[axis]]
    assert list(got) == [f"t{k}" for k in range(len(splits) + 1)]
    for x, (low, high) in enumerate(pairwise(edges)):
        piece = got[f"t{x}"]
        assert piece.shape == tuple(high - low if k == axis else n for k, n in enumerate(values.shape))
        for index in np.ndindex(*piece.shape):
            source = list(index)
            source[axis] += low
            assert piece[index] == values[tuple(source)]
    with nnr.open(data) as file:
        for name, piece in got.tensors.items():
            assert file.info[name].shape == piece.shape
            np.testing.assert_array_equal(file[name], piece)
    assert list(nnr.decode(data, raw=True)) == ["t0"]
    np.testing.assert_array_equal(nnr.decode(data, raw=True)["t0"], values)


SHIFTS = [[[(2, 2)], []], [[], [(1, 1)]], [[(2, 1), (1, 1)], [(2, 2), (2, 2)]], [[(0, 0)], [(2, 0)]]]


@pytest.mark.parametrize("shifts", SHIFTS)
def test_split_and_shift(shifts: list[list[tuple[int, int]]]) -> None:
    values = np.arange(4 * 5 * 6).reshape(4, 5, 6)
    got = nnr.decode(split(values, [2], 1, shifts))
    for x, piece in enumerate([values[:, :2], values[:, 2:]]):
        for index, value in shifts[x]:
            piece = swapped_left(piece, index, value)  # noqa: PLW2901  # one swap after another
        np.testing.assert_array_equal(got[f"t{x}"], piece)
        assert got[f"t{x}"].flags.c_contiguous


@pytest.mark.parametrize("shifts", SHIFTS)
def test_shapes_after_a_shift_are_known_before_decoding(shifts: list[list[tuple[int, int]]]) -> None:
    """TensorInfo.shape is the shape after decoding."""
    data = split(np.arange(4 * 5 * 6).reshape(4, 5, 6), [2], 1, shifts)
    with nnr.open(data) as file:
        assert {name: file.info[name].shape for name in file} == {name: file[name].shape for name in file}


def test_split_after_the_first_dimension_moved() -> None:
    values = np.arange(24).reshape(2, 3, 4)
    header = ndu(["a", "b"], [2, 3, 4], kind=NNR_PT_INT, first_tensor_dimension_shift=2, **mapping([1], 2))
    data = Bitstream().str_().mps().ndu(header, values).data
    got = nnr.decode(data)
    np.testing.assert_array_equal(got["a"], np.moveaxis(values, 0, 2)[:, :, :1])
    np.testing.assert_array_equal(got["b"], np.moveaxis(values, 0, 2)[:, :, 1:])
    assert nnr.open(data).info["b"].shape == (3, 4, 1)


@pytest.mark.parametrize("kind", ["float", "raw", "profile 0"])
def test_split_of_other_payloads(kind: str) -> None:
    values = np.arange(6).reshape(2, 3)
    stream = Bitstream().str_(0 if kind == "profile 0" else 1).mps()
    payload_type = {"kind": NNR_PT_RAW_FLOAT} if kind == "raw" else {}
    header = ndu(["a", "b"], [2, 3], **payload_type, **mapping([2], 1))
    data = (stream.raw(header, values) if kind == "raw" else stream.ndu(header, values)).data
    got = nnr.decode(data)
    assert (got["a"].tolist(), got["b"].tolist()) == ([[0, 1], [3, 4]], [[2], [5]])


@pytest.mark.parametrize(
    ("splits", "axis"), [([0], 0), ([4], 0), ([5], 0), ([2, 2], 1), ([3, 1], 1), ([1], 3), ([1], 255)]
)
def test_a_split_that_does_not_fit_is_refused(splits: list[int], axis: int) -> None:
    values = np.arange(4 * 5 * 6).reshape(4, 5, 6)
    data = split(values, splits, axis)
    with pytest.raises(nnr.ElementError, match="unit 2"):
        nnr.decode(data)
    try:
        file = nnr.open(data)
    except nnr.ElementError:
        return
    with pytest.raises(nnr.ElementError):
        file["t0"]


@pytest.mark.parametrize("shift", [(3, 1), (0, 1), (1, 2), (2, 3), (1 << 20, 0), (2, 1 << 20)])
def test_a_shift_that_does_not_fit_is_refused(shift: tuple[int, int]) -> None:
    data = split(np.arange(4 * 5 * 6).reshape(4, 5, 6), [2], 1, [[], [shift]])
    with pytest.raises(nnr.ElementError, match=r"unit 2.* cannot be shifted left"):
        nnr.decode(data)


def test_several_tensors_without_a_mapping_are_refused() -> None:
    """With input_parameters_present_flag 0 there are no split indices, so two names share one piece."""
    known = {"a": [2, 3]}
    header = ndu(["a", "b"], None, kind=NNR_PT_INT, unary=None, input_parameters_present_flag=0)
    del header.tensor_dimensions_flag
    data = Bitstream(known).str_().mps().ndu(header, np.arange(6)).data
    with pytest.raises(nnr.ElementError, match="2 topology elements are listed for a tensor of 1"):
        nnr.decode(data, topology_dimensions=known)
