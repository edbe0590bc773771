"""Masks and dictionaries of NNR_TPL_PRUN (6.4.4.5, 8.3.3, errata N1)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitarray import bitarray
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.bitstream.units import Unit, write_units
from nnr_codec.constants import NNR_PT_RAW_FLOAT, NNR_TPL, NNR_TPL_PRUN
from nnr_codec.decoder.pruning import Pruning, PruningWarning
from nnr_codec.syntax import Session
from nnr_codec.syntax.structures import (
    BitMask,
    NnrPruningTopologyContainer,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
    NnrUnitSize,
)

from ..builder import Bitstream, ndu

Tensors = list[tuple[str, tuple[int, ...], int]]

AB: Tensors = [("a", (2, 3), 0), ("bias", (2,), 0), ("b", (2, 2), 0)]


def masks(prune: str = "", sparse: str = "", *, row_major: int = 1) -> NnrPruningTopologyContainer:
    """Return a container with masks of these bits; blanks are ignored."""
    t = NnrPruningTopologyContainer(nnr_rep_type=0, order_flag=row_major)
    if prune:
        t.prune_flag, t.prune_mask = 1, BitMask(bit_mask_value=bitarray(prune.replace(" ", "")))
    if sparse:
        t.sparse_flag, t.sparse_mask = 1, BitMask(bit_mask_value=bitarray(sparse.replace(" ", "")))
    return t


def dictionary(**dims: Sequence[int]) -> NnrPruningTopologyContainer:
    """Return a container with new dimensions by name."""
    return NnrPruningTopologyContainer(
        nnr_rep_type=1,
        prune_flag=1,
        count_ids=len(dims),
        element_id=list(dims),
        count_dims=[len(extents) for extents in dims.values()],
        dim=[list(extents) for extents in dims.values()],
    )


def planned(*containers: NnrPruningTopologyContainer, tensors: Tensors = AB) -> Pruning:
    """Return the pruning information of these containers, which causes no warning."""
    pruning = Pruning()
    for container in containers:
        pruning.add(container, Session())
    pruning.plan(tensors)
    assert not pruning.ignored
    return pruning


def ones(pruning: Pruning, name: str, shape: Sequence[int]) -> list[Any]:
    """Return the pruned tensor of a tensor of ones."""
    values: list[Any] = pruning.apply(name, np.ones(shape, np.float32)).astype(int).tolist()
    return values


# ------------------------------------------------------------------------------------------------ masks
@pytest.mark.parametrize("kind", ["prune", "sparse"])
def test_a_bit_for_each_parameter_runs_over_the_tensors_of_two_dimensions(kind: str) -> None:
    pruning = planned(masks(**{kind: "110 011  10 00"}))
    assert pruning.has_masks
    assert ones(pruning, "a", (2, 3)) == [[1, 1, 0], [0, 1, 1]]
    assert ones(pruning, "b", (2, 2)) == [[1, 0], [0, 0]]
    assert ones(pruning, "bias", (2,)) == [1, 1]


def test_column_major_is_by_tensor() -> None:
    pruning = planned(masks(sparse="11 00 10  10 11", row_major=0))
    assert ones(pruning, "a", (2, 3)) == [[1, 0, 1], [1, 0, 0]]
    assert ones(pruning, "b", (2, 2)) == [[1, 1], [0, 1]]


@pytest.mark.parametrize("row_major", [0, 1])
def test_a_bit_for_each_output_channel(row_major: int) -> None:
    pruning = planned(masks("10 01", row_major=row_major))
    assert ones(pruning, "a", (2, 3)) == [[1, 1, 1], [0, 0, 0]]
    assert ones(pruning, "b", (2, 2)) == [[0, 0], [1, 1]]


def test_a_sparse_mask_has_no_bits_for_channels() -> None:
    pruning = Pruning()
    pruning.add(masks(sparse="1001"), Session())
    pruning.plan(AB)
    assert re.search(r"a sparse_mask of 4 bits, .* 10 parameters and 4 output channels", pruning.ignored)
    assert ones(pruning, "a", (2, 3)) == [[1, 1, 1], [1, 1, 1]]


def test_where_parameters_are_as_many_as_channels_both_mean_the_same() -> None:
    for row_major in (0, 1):
        pruning = planned(masks("10 1", row_major=row_major), tensors=[("a", (2, 1), 0), ("b", (1, 1, 1), 0)])
        assert ones(pruning, "a", (2, 1)) == [[1], [0]]
        assert ones(pruning, "b", (1, 1, 1)) == [[[1]]]


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("row_major", [0, 1])
def test_masks_have_the_coded_dimensions(shift: int, row_major: int) -> None:
    coded = (4, 2, 3)
    decoded = np.moveaxis(np.ones(coded), 0, shift)
    rng = np.random.default_rng(shift)
    bits = rng.integers(0, 2, 24)
    element = planned(masks(sparse="".join(map(str, bits)), row_major=row_major), tensors=[("w", decoded.shape, shift)])
    want = np.moveaxis(bits.reshape(coded, order="C" if row_major else "F"), 0, shift)
    np.testing.assert_array_equal(element.apply("w", decoded.copy()), want)
    channel = planned(masks("0110"), tensors=[("w", decoded.shape, shift)])
    rows = np.moveaxis(np.ones(coded) * np.array([0, 1, 1, 0])[:, None, None], 0, shift)
    np.testing.assert_array_equal(channel.apply("w", decoded.copy()), rows)


def test_each_of_several_masks_counts() -> None:
    pruning = planned(
        masks("11 10", "111 111 10 11"), masks(sparse="011 111 11 11"), masks(sparse="11 11 10 11 11", row_major=0)
    )
    assert ones(pruning, "a", (2, 3)) == [[0, 1, 1], [1, 1, 0]]
    assert ones(pruning, "b", (2, 2)) == [[1, 0], [0, 0]]


def test_masks_that_repeat_are_kept_once() -> None:
    """Otherwise containers of a few bytes could make a decoder process a large tensor repeatedly."""
    pruning = Pruning()
    for k in range(1000):
        pruning.add(masks("01" if k % 2 else "10"), Session())
    assert len(pruning._masks) == 1
    pruning.plan([("w", (2, 3), 0)])
    assert ones(pruning, "w", (2, 3)) == [[0, 0, 0], [0, 0, 0]]


def test_the_unit_keeps_its_bits() -> None:
    container = masks("10 01")
    planned(container, masks("00 00"))
    assert container.prune_mask.bit_mask_value == bitarray("1001")


@pytest.mark.parametrize("little", [False, True])
def test_bits_count_from_the_first(little: bool) -> None:
    container = masks("1000 0000 0001")
    bits = container.prune_mask.bit_mask_value
    container.prune_mask.bit_mask_value = bitarray(bits, endian="little" if little else "big")
    pruning = planned(container, tensors=[("w", (12, 1), 0)])
    assert ones(pruning, "w", (12, 1)) == [[1], *[[0]] * 10, [1]]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8"])
def test_every_type_becomes_zero(dtype: str) -> None:
    array = np.full((2, 3), -7, dtype)
    if dtype[0] == "f":
        array[0] = [np.nan, np.inf, -np.inf]
    pruned = planned(masks(sparse="000 110"), tensors=[("w", (2, 3), 0)]).apply("w", array)
    assert pruned is array
    assert pruned.tolist() == [[0, 0, 0], [-7, -7, 0]]
    assert not np.signbit(pruned[0]).any()


def test_a_read_only_array_is_copied_when_something_becomes_zero() -> None:
    array = np.ones((2, 2))
    array.setflags(write=False)
    assert planned(masks("11"), tensors=[("w", (2, 2), 0)]).apply("w", array) is array
    pruned = planned(masks("10"), tensors=[("w", (2, 2), 0)]).apply("w", array)
    assert (pruned.tolist(), array.tolist()) == ([[1, 1], [0, 0]], [[1, 1], [1, 1]])


@pytest.mark.parametrize("bits", ["1", "1" * 3, "1" * 5, "1" * 9, "1" * 11, "1" * 12])
def test_a_mask_of_another_length_is_reported_and_not_applied(bits: str) -> None:
    pruning = Pruning()
    pruning.add(masks(bits.replace("1", "0"), "0" * 10), Session())
    pruning.plan(AB)
    assert f"a prune_mask of {len(bits)} bits, because" in pruning.ignored
    assert ones(pruning, "a", (2, 3)) == [[0, 0, 0], [0, 0, 0]]  # by the matching mask


def test_many_masks_of_other_lengths_are_one_warning() -> None:
    pruning = Pruning()
    for n in range(20, 30):
        pruning.add(masks("1" * n), Session())
    pruning.plan(AB)
    assert "a prune_mask of 20 bits and 9 more" in pruning.ignored


def test_nothing_is_known_nothing_is_done() -> None:
    pruning = planned()
    assert not pruning.has_masks
    assert ones(pruning, "a", (2, 3)) == [[1, 1, 1], [1, 1, 1]]
    assert not planned(NnrPruningTopologyContainer(nnr_rep_type=0)).has_masks


shapes = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=5)


@given(shapes, st.data())
def test_any_masks(shapes: list[list[int]], data: st.DataObject) -> None:
    """The result is compared with the definition, parameter by parameter."""
    tensors = [(f"t{k}", tuple(shape), data.draw(st.integers(0, len(shape) - 1))) for k, shape in enumerate(shapes)]
    matrices = [(name, shape, shift) for name, shape, shift in tensors if len(shape) > 1]
    rows = sum(shape[shift] for _, shape, shift in matrices)
    parameters = sum(prod(shape) for _, shape, _ in matrices)
    if not matrices:
        return
    row_major = data.draw(st.integers(0, 1))
    sparse = data.draw(st.lists(st.integers(0, 1), min_size=parameters, max_size=parameters))
    channel = data.draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows))
    container = masks("".join(map(str, channel)), "".join(map(str, sparse)), row_major=row_major)
    pruning = planned(container, tensors=tensors)
    bits, bands = iter(sparse), iter(channel)
    for name, shape, shift in tensors:
        got = np.moveaxis(pruning.apply(name, np.ones(shape)), shift, 0)
        want = np.ones(got.shape)
        if len(shape) > 1:
            for index in counted(got.shape, row_major):
                want[index] = next(bits)
            for k in range(got.shape[0]):
                want[k] *= next(bands)
        np.testing.assert_array_equal(got, want)


def counted(shape: Sequence[int], row_major: int) -> Iterator[tuple[int, ...]]:
    """Return all indices; the last (or first) one changes fastest."""
    if row_major:
        yield from np.ndindex(*shape)
    else:
        yield from (index[::-1] for index in np.ndindex(*shape[::-1]))


# ------------------------------------------------------------------------------------------------ dictionaries
def test_a_dictionary_gives_dimensions_by_name() -> None:
    pruning = planned(dictionary(a=[2, 3]), dictionary(b=[2, 2], bias=[2]))
    assert pruning.dimensions == {"a": [2, 3], "b": [2, 2], "bias": [2]}
    assert not pruning.has_masks


def test_a_dictionary_gives_dimensions_by_index() -> None:
    container = dictionary(x=[5, 6])
    container.element_id, container.element_id_index = [], [1]
    pruning = Pruning()
    pruning.add(container, Session(reference_list=["a", "b"]))
    assert pruning.dimensions == {"b": [5, 6]}
    container.element_id_index = [2]
    with pytest.raises(nnr.MissingReferenceError, match=r"element_id_index 2 .* of 2"):
        pruning.add(container, Session(reference_list=["a", "b"]))


@pytest.mark.parametrize("dims", [[3, 2], [2, 3, 1], [6], [1, 2, 3]])
def test_units_have_the_dimensions_of_the_dictionary(dims: list[int]) -> None:
    pruning = Pruning()
    pruning.add(dictionary(a=dims), Session())
    with pytest.raises(nnr.ElementError, match=r"tensor_dimensions of 'a' are \[2, 3\], but"):
        pruning.plan(AB)


def test_dimensions_precede_the_shift() -> None:
    assert planned(dictionary(w=[4, 2, 3]), tensors=[("w", (2, 3, 4), 2)]).dimensions == {"w": [4, 2, 3]}


def test_elements_that_the_bitstream_does_not_have_do_not_matter() -> None:
    planned(dictionary(elsewhere=[7, 7]))


def test_the_same_element_twice_has_the_same_dimensions() -> None:
    twice = dictionary(a=[2, 3])
    twice.count_ids, twice.element_id, twice.count_dims, twice.dim = 2, ["a", "a"], [2, 2], [[2, 3], [2, 3]]
    assert planned(twice).dimensions == {"a": [2, 3]}
    twice.dim = [[2, 3], [3, 2]]
    with pytest.raises(nnr.ElementError, match="cannot have the new dimensions"):
        Pruning().add(twice, Session())


@pytest.mark.parametrize("dim", [[], [[]], [[2, 0]], [[0]]])
def test_no_dimensions_and_extents_of_0_are_refused(dim: list[list[int]]) -> None:
    container = dictionary(a=[2])
    container.count_dims, container.dim = [len(dim[0]) if dim else 0], dim
    with pytest.raises(nnr.ElementError, match="cannot have the new dimensions"):
        Pruning().add(container, Session())


@pytest.mark.parametrize(
    ("container", "match"),
    [
        (dictionary(), "count_ids is 0"),
        (NnrPruningTopologyContainer(nnr_rep_type=2), "nnr_rep_type 2 is reserved"),
        (NnrPruningTopologyContainer(nnr_rep_type=3, prune_flag=1), "nnr_rep_type 3 is reserved"),
        (
            NnrPruningTopologyContainer(nnr_rep_type=0, prune_flag=1, prune_mask=BitMask(bit_mask_value=bitarray())),
            "count_bits of prune_mask is 0",
        ),
    ],
)
def test_what_shall_not_be_is_refused(container: NnrPruningTopologyContainer, match: str) -> None:
    with pytest.raises(nnr.ElementError, match=match):
        Pruning().add(container, Session())


def test_dictionaries_are_not_copied_for_each_unit() -> None:
    """Otherwise a million small units would take hours; writing copies once and keeps the caller's session."""
    header = NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_PRUN))
    session = Session()
    known = session.pruned_dimensions
    for name in "ab":
        session.activate(header, NnrTopologyUnitPayload(pruning=dictionary(**{name: [2]})))
    assert session.pruned_dimensions is known == {"a": [2], "b": [2]}
    unit = Unit(NnrUnitSize(nnr_unit_size=0), header, NnrTopologyUnitPayload(pruning=dictionary(c=[3])))
    write_units([unit], session)
    assert "c" not in known


# ------------------------------------------------------------------------------------------------ warnings
def unfitting(payload: bytes | None = None) -> bytes:
    """Return a bitstream of two matrices, the second with any payload, and a mask with a wrong number of bits."""
    detail = NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_PRUN)
    pruning = NnrTopologyUnitPayload(pruning=masks("1" * 9))
    stream = Bitstream().str_().mps().unit(NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=detail), pruning)
    stream.raw(ndu("a", [2, 3], kind=NNR_PT_RAW_FLOAT), [1.0] * 6)
    header = ndu("b", [2, 3], kind=NNR_PT_RAW_FLOAT)
    return (stream.raw(header, [1.0] * 6) if payload is None else stream.ndu(header, payload=payload)).data


def streamed(data: bytes) -> dict[str, Any]:
    """Return the tensors of a StreamDecoder."""
    decoder = nnr.StreamDecoder()
    return dict([*decoder.feed(data[:40]), *decoder.feed(data[40:]), *decoder.finish()])


def each(data: bytes) -> dict[str, Any]:
    """Return the tensors of an open file, one after another."""
    file = nnr.open(data)
    return {name: file[name] for name in file}


def each_in_rows(data: bytes) -> dict[str, Any]:
    """Return the tensors of an open file by rows."""
    file = nnr.open(data)
    return {name: np.concatenate([file.rows(name, 0, 1), file.rows(name, 1, 2)]) for name in file}


def written(data: bytes) -> dict[str, Any]:
    """Return the tensors of the file that decode_file writes into the current folder."""
    nnr.decode_file(data, "model.npz", overwrite=True)
    return dict(nnr.load("model.npz").tensors)


EVERY_WAY: dict[str, Callable[[bytes], Any]] = {
    "decode": nnr.decode,
    "decode in threads": lambda data: nnr.decode(data, jobs=2),
    "open": each,
    "rows": each_in_rows,
    "StreamDecoder": streamed,
    "UpdateDecoder": lambda data: nnr.UpdateDecoder().decode(data),
    "decode_file": written,
}


@pytest.mark.parametrize("way", EVERY_WAY)
def test_every_way_of_decoding_issues_the_same_warning_once(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tensors = EVERY_WAY[way](unfitting())
    assert [(warning.category, str(warning.message)) for warning in caught] == [
        (
            PruningWarning,
            "pruning information is not applied: a prune_mask of 9 bits, because the tensors of two or more dimensions "
            "have 12 parameters and 4 output channels (6.4.4.5)",
        )
    ]
    assert {name: tensors[name].sum() for name in tensors} == {"a": 6, "b": 6}


@pytest.mark.parametrize(
    "read",
    [lambda data: nnr.open(data).info, lambda data: nnr.decode(data, raw=True), nnr.inspect, nnr.verify],
    ids=["open", "raw", "inspect", "verify"],
)
def test_what_applies_no_masks_issues_no_warning(read: Callable[[bytes], object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(unfitting())


@pytest.mark.parametrize("way", ["decode", "decode in threads", "StreamDecoder", "UpdateDecoder", "decode_file"])
def test_a_damaged_payload_is_an_error_and_no_warning(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    damaged = unfitting(b"\0" * 25)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(nnr.BitstreamError):
            EVERY_WAY[way](damaged)
    assert not caught


def test_a_warning_that_is_raised_loses_no_tensor_of_an_open_file() -> None:
    file = nnr.open(unfitting())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PruningWarning):
            file["a"]
        assert (file["a"].sum(), file.decode()["b"].sum()) == (6, 6)


def test_a_warning_that_is_raised_loses_no_tensor_of_a_stream() -> None:
    decoder = nnr.StreamDecoder()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decoder.feed(unfitting()) == []
        with pytest.raises(PruningWarning):
            decoder.finish()
        assert [name for name, _ in decoder.finish()] == ["a", "b"]
        with pytest.raises(ValueError, match="has ended"):
            decoder.finish()


def test_a_warning_that_is_raised_leaves_a_stream_open_for_the_next_bitstream() -> None:
    decoder, data = nnr.StreamDecoder(), unfitting()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PruningWarning):
            decoder.feed(data + data[:5])
        assert [name for name, _ in decoder.feed(data[5:])] == ["a", "b"]


def test_a_warning_that_is_raised_leaves_the_state_of_an_update_decoder_replaced() -> None:
    decoder = nnr.UpdateDecoder()
    before = decoder.state
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PruningWarning):
            decoder.decode(unfitting())
    assert decoder.state is not before


@pytest.mark.parametrize("resume", [False, True])
def test_a_warning_that_is_raised_leaves_the_decoded_file(tmp_path: Path, resume: bool) -> None:
    target = tmp_path / "model.npz"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PruningWarning):
            nnr.decode_file(unfitting(), target, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]
    assert sorted(nnr.load(target)) == ["a", "b"]
