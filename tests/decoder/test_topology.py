"""Dimensions, shapes and blocks that decoders take from an NNEF graph, in the bitstream or supplied (7.3.5, 8.2.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.constants import (
    NNR_AGG_SLF,
    NNR_CPT_BI,
    NNR_CPT_BN,
    NNR_CPT_DC,
    NNR_CPT_LS,
    NNR_PT_BLOCK,
    NNR_PT_INT,
    NNR_TPL,
    NNR_TPL_PRUN,
)
from nnr_codec.decoder.index import NnrFile
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Wiring
from nnr_codec.sideinfo.record import STORAGE_FORMAT, SideInfo, TensorRecord
from nnr_codec.syntax.structures import NnrTopologyUnitHeader, NnrTopologyUnitPayload, NnrUnitHeader

from ..builder import Bitstream, ndu, update_ndu
from .support import refused
from .test_pruning import dictionary, masks

FOLDED = NNR_CPT_LS | NNR_CPT_BI
DIMS = [3, 2, 1, 2]
WEIGHT = np.arange(-6, 6).reshape(DIMS)
SCALE, BIAS = [2, -3, 4], [5, 6, -7]
EPSILON = 0.25


def graph(shapes: Mapping[str, tuple[int, ...]], kind: str = "scalar") -> bytes:
    """Return a graph of variables alone."""
    lines = "".join(
        f"v{k} = variable<{kind}>(shape = {list(shape)}, label = '{label}');\n"
        for k, (label, shape) in enumerate(shapes.items())
    )
    return f"version 1.0;\ngraph g(x) -> (y)\n{{\nx = external(shape = [1]);\n{lines}y = copy(x);\n}}\n".encode()


def network(epsilon: float = EPSILON, bias: str = "bias", outputs: int = 3) -> bytes:
    """Return a convolution and its batch normalization."""
    names = ("mean", "var", "beta", "gamma", *([bias] if bias else []))
    vectors = "".join(f"{name} = variable(shape = [1, {outputs}], label = 'bn/{name}');\n" for name in names)
    return (
        "version 1.0;\ngraph g(x) -> (y)\n{\nx = external(shape = [1, 2, 4, 4]);\n"
        f"w = variable(shape = {[outputs, *DIMS[1:]]}, label = 'w');\n{vectors}"
        f"c = conv(x, w{f', {bias}' if bias else ''});\n"
        f"y = batch_normalization(c, mean, var, beta, gamma, epsilon = {epsilon});\n}}\n"
    ).encode()


def start(text: bytes | None = None, known: Mapping[str, Any] | None = None, **parameters: int) -> Bitstream:
    """Return NNR_STR, NNR_MPS and a graph; ``known`` are dimensions that units omit."""
    stream = Bitstream(known or {}).str_().mps(**parameters)
    return stream if text is None else stream.topology(text + b"\0")


def folded(
    stream: Bitstream, names: tuple[str, ...] = ("w", "bn/gamma", "bn/beta"), types: int = FOLDED, **elements: Any
) -> Bitstream:
    """Return a block of w with local scaling and bias."""
    header = ndu(names, DIMS, kind=NNR_PT_BLOCK, compressed_parameter_types=types, **elements)
    return stream.ndu(header, SCALE, BIAS, WEIGHT)


def by_stream(data: bytes, step: int = 5, **options: Any) -> dict[str, Array]:
    """Return the tensors that a StreamDecoder decodes from small chunks."""
    decoder, found = nnr.StreamDecoder(**options), list[tuple[str, Array]]()
    for k in range(0, len(data), step):
        found += decoder.feed(data[k : k + step])
    return dict(found + decoder.finish())


def by_name(data: bytes, **options: Any) -> dict[str, Array]:
    with nnr.open(data, **options) as file:
        return {name: file[name] for name in file}


def one_by_one(data: bytes, **options: Any) -> dict[str, Array]:
    with nnr.open(data, **options) as file:
        return {name: file.decode(names=[name]).tensors[name] for name in file}


def by_rows(data: bytes, **options: Any) -> dict[str, Array]:
    with nnr.open(data, **options) as file:
        rows = {}
        for name, info in file.info.items():
            axis = info.first_tensor_dimension_shift
            pieces = [file.rows(name, k, k + 1) for k in range(info.shape[axis])]
            rows[name] = np.concatenate(pieces, axis)
        return rows


READERS: dict[str, Callable[..., Mapping[str, Array]]] = {
    "decode": lambda data, **options: nnr.decode(data, **options).tensors,
    "threads": lambda data, **options: nnr.decode(data, jobs=2, **options).tensors,
    "stream": by_stream,
    "name": by_name,
    "one": one_by_one,
    "rows": by_rows,
    "update": lambda data, **options: nnr.UpdateDecoder(**options).decode(data),
}
readers = pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())


def same(got: Mapping[str, Array], expected: Mapping[str, Any]) -> None:
    """Check names in order, shapes, types and values; lists are float32."""
    assert list(got) == list(expected)
    for name, values in expected.items():
        wanted = values if isinstance(values, np.ndarray) else np.array(values, np.float32)
        assert (got[name].dtype, got[name].shape) == (wanted.dtype, wanted.shape), name
        np.testing.assert_array_equal(got[name], wanted, err_msg=name)


# ------------------------------------------------------------------------------------------------ dimensions
VALUES = np.arange(6, dtype=np.int32).reshape(2, 3)


def apart(text: bytes | None, name: str = "w", dims: tuple[int, ...] = (2, 3), **elements: Any) -> Bitstream:
    """Return a tensor whose header omits its dimensions."""
    return start(text, {name: dims}).ndu(ndu(name, None, kind=NNR_PT_INT, **elements), VALUES)


@readers
@pytest.mark.parametrize("name", ["w", "W"])
def test_dimensions_of_the_graph(read: Callable[..., Mapping[str, Array]], name: str) -> None:
    """Labels are compared without case."""
    text = graph({"w": (2, 3)})
    same(read(apart(text, name).data), {name: VALUES})
    same(read(apart(None, name).data, topology=nnr.Topology("nnef", text)), {name: VALUES})
    with pytest.raises(nnr.MissingReferenceError, match="nor in a topology"):
        read(apart(None, name).data)


@pytest.mark.parametrize("given", [False, True])
def test_dimensions_for_readers_of_headers(given: bool) -> None:
    topology = nnr.Topology("nnef", graph({"w": (2, 3)}))
    data = apart(None if given else topology.data).data
    options: dict[str, Any] = {"topology": topology} if given else {}
    assert nnr.inspect(data, **options)[-1].shape == (2, 3)
    assert nnr.write_units(nnr.units(data, **options), **options) == data
    assert nnr.tree(data, payloads=True, **options)[-1].names == ["w"]
    assert "tensor_dimensions_flag" in [tool.element for tool in nnr.requirements(data, **options)]
    assert nnr.diff(data, data, **options) is None
    found = nnr.diff(data, data[:-1] + bytes([data[-1] ^ 64]), **options)
    assert found is not None
    report = nnr.verify(data, **options)
    assert [tensor.shape for tensor in report.tensors] == [(2, 3)]


def test_priority_of_dimensions() -> None:
    """The priority is header, pruning, dimensions of the caller, topology."""
    text = graph({"w": (3, 2)})
    assert nnr.decode(apart(text).data, topology_dimensions={"w": [2, 3]})["w"].shape == (2, 3)
    data = start(text).ndu(ndu("w", [6], kind=NNR_PT_INT), VALUES).data
    assert nnr.decode(data)["w"].shape == (6,)
    detail = NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_PRUN)
    stream = start(text, {"w": (2, 3)})
    stream.unit(
        NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=detail), NnrTopologyUnitPayload(pruning=dictionary(w=[2, 3]))
    )
    stream.ndu(ndu("w", None, kind=NNR_PT_INT), VALUES)
    assert nnr.decode(stream.data)["w"].shape == (2, 3)


def test_a_topology_given_stands_in_the_place_of_the_one_carried() -> None:
    given = nnr.Topology("nnef", graph({"w": (2, 3)}), b'"v0": x();\n')
    data = apart(graph({"w": (3, 2), "v": (1,)})).data
    model = nnr.decode(data, topology=given)
    same(model.tensors, {"w": VALUES})
    assert model.topology == given
    assert nnr.inspect(data, topology=given)[-1].shape == (2, 3)
    assert nnr.inspect(data)[-1].shape == (3, 2)


def test_a_graph_may_be_given_and_its_quantization_carried() -> None:
    given, quant = nnr.Topology("nnef", graph({"w": (2, 3)})), b'"v0": x();\n'
    for stream in (start().quantization(quant + b"\0"), start(b"version 1.0;").quantization(quant + b"\0")):
        stream.ndu(ndu("w", [2, 3], kind=NNR_PT_INT), VALUES)
        assert nnr.decode(stream.data, topology=given).topology == replace(given, quantization=quant)
        own = replace(given, quantization=b"# mine\n")
        assert nnr.decode(stream.data, topology=own).topology == own


@pytest.mark.parametrize(("shift", "shape"), [(0, (2, 3, 4)), (1, (3, 2, 4)), (2, (3, 4, 2))])
def test_the_graph_declares_what_comes_out(shift: int, shape: tuple[int, ...]) -> None:
    """tensor_dimensions are the dimensions before first_tensor_dimension_shift."""
    values = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    stream = start(graph({"w": shape}), {"w": (2, 3, 4)})
    header = ndu("w", None, kind=NNR_PT_INT, first_tensor_dimension_shift=shift)
    for read in (nnr.decode, nnr.open):
        same({"w": read(stream.ndu(header, values).data)["w"]}, {"w": np.moveaxis(values, 0, shift)})
        stream = start(graph({"w": shape}), {"w": (2, 3, 4)})


@pytest.mark.parametrize("text", [b"", b"version", b"version 1.0; graph", graph({"v": (2, 3)})])
def test_a_graph_without_the_shape(text: bytes) -> None:
    refused(apart(text).data, nnr.MissingReferenceError, "dimensions of 'w'")
    with pytest.raises(nnr.MissingReferenceError, match="dimensions of 'w'"):
        nnr.inspect(apart(text).data)


def test_a_later_graph_has_no_effect() -> None:
    text = graph({"w": (2, 3)})
    refused(apart(None).topology(text + b"\0").data, nnr.MissingReferenceError, "dimensions of 'w'")


def test_the_topology_of_one_bitstream_is_not_that_of_the_next() -> None:
    decoder = nnr.StreamDecoder()
    decoder.feed(apart(graph({"w": (2, 3)})).data)
    with pytest.raises(nnr.MissingReferenceError, match="dimensions of 'w'"):
        decoder.feed(apart(None).data)
    with pytest.raises(nnr.MissingReferenceError, match="dimensions of 'w'"):
        nnr.inspect(apart(graph({"w": (2, 3)})).data + apart(None).data, limits=Limits(allow_trailing=True))


def test_a_graph_is_read_once_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[nnr.Topology] = []
    read = formats.wiring

    def wiring(topology: nnr.Topology) -> Wiring:
        calls.append(topology)
        return read(topology)

    monkeypatch.setattr(formats, "wiring", wiring)

    text = graph({"w": (2, 3)})
    stream = start(text).ndu(ndu("w", [2, 3], kind=NNR_PT_INT), VALUES)
    with NnrFile(stream.data) as file:
        assert file["w"].shape == (2, 3) and len(file.decode(names=["w"])) == 1
        assert not calls
        file.decode()
        file.decode()
    assert len(calls) == 1
    with NnrFile(apart(text).data) as file:
        assert len(calls) == 2
        file.decode()
    assert len(calls) == 2
    assert not read(nnr.Topology("onnx", text)).shapes


# ------------------------------------------------------------------------------------------------ declared shapes
VECTORS = ("beta", "gamma", "mean", "var", "bias")


def normalized(shapes: Mapping[str, tuple[int, ...]]) -> Bitstream:
    """Return a block with batch normalization and bias, with distinct numbers."""
    header = ndu(
        ["w", "beta", "gamma", "mean", "var", "bias"],
        DIMS,
        kind=NNR_PT_BLOCK,
        compressed_parameter_types=NNR_CPT_BN | NNR_CPT_BI,
    )
    levels = [np.arange(3) + 10 * k for k in range(5)]
    return start(graph({"w": tuple(DIMS)} | dict(shapes))).ndu(header, *levels, WEIGHT)


@readers
@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1), (1, 1, 3, 1)])
def test_declared_shapes(read: Callable[..., Mapping[str, Array]], shape: tuple[int, ...]) -> None:
    data = normalized(dict.fromkeys(VECTORS, shape)).data
    values = {name: (np.arange(3) + 10 * k) for k, name in enumerate(("bias", "beta", "gamma", "mean", "var"))}
    expected = {"w": WEIGHT.astype("f4")} | {name: v.astype("f4").reshape(shape) for name, v in values.items()}
    same(read(data), expected)
    assert {name: info.shape for name, info in nnr.open(data).info.items()} == {
        name: array.shape for name, array in expected.items()
    }


@pytest.mark.parametrize("shape", [(1,), (4,), (1, 4), (3, 3), (2, 2), (1 << 31,)])
def test_shapes_that_do_not_fit_are_not_taken(shape: tuple[int, ...]) -> None:
    got = nnr.decode(normalized(dict.fromkeys(VECTORS, shape)).data)
    assert {got[name].shape for name in VECTORS} == {(3,)}


def test_one_channel() -> None:
    for text, shape in ((graph({"w": (1, 2), "b": (1, 1)}), (1, 1)), (graph({"w": (1, 2)}), (1,))):
        header = ndu(["w", "b"], [1, 2], kind=NNR_PT_BLOCK, compressed_parameter_types=NNR_CPT_BI)
        data = start(text).ndu(header, [7], [[1, 2]]).data
        same(nnr.decode(data).tensors, {"w": [[1, 2]], "b": np.full(shape, 7, "f4")})


def test_only_tensors_of_blocks_take_declared_shapes() -> None:
    data = start(graph({"b": (1, 3)})).ndu(ndu("b", [3]), [1, 2, 3]).data
    assert nnr.decode(data)["b"].shape == (3,)


def test_a_decomposed_block_without_vectors() -> None:
    header = ndu(
        ["w", "h"],
        [4, 4],
        kind=NNR_PT_BLOCK,
        compressed_parameter_types=NNR_CPT_DC,
        decomposition_rank=1,
        g_number_of_rows=4,
    )
    data = start(graph({"w": (4, 4)})).ndu(header, np.arange(4), np.ones(4)).data
    same(nnr.decode(data).tensors, {"w": np.repeat(np.arange(4), 4).reshape(4, 4).tolist()})


def pruned(stream: Bitstream, container: Any) -> Bitstream:
    detail = NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_PRUN)
    return stream.unit(NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=detail), NnrTopologyUnitPayload(pruning=container))


def test_masks_run_over_tensors_as_they_are_coded() -> None:
    """A bias has one dimension, whatever the graph adds to it."""
    stream = folded(pruned(start(network()), masks(sparse="000000111111")))
    expected = np.where(np.arange(12).reshape(DIMS) < 6, 0, WEIGHT)
    got = nnr.decode(stream.data)
    same({"w": got["w"]}, {"w": expected.tolist()})
    assert got["bn/gamma"].tolist() == [SCALE]
    same(by_stream(stream.data), got.tensors)


@pytest.mark.parametrize("shape", [[3], [1, 3]])
def test_dimensions_after_pruning_take_the_place_of_declared_ones(shape: list[int]) -> None:
    names = dict.fromkeys(("bn/mean", "bn/var", "bn/beta", "bn/gamma", "bn/bias"), shape)
    stream = folded(pruned(start(network(outputs=5)), dictionary(w=DIMS, **names)))
    model = nnr.decode(stream.data)
    assert {model[name].shape for name in names} == {tuple(shape)}
    assert set(model.pruned) == {"w", *names}


# ------------------------------------------------------------------------------------------------ local scaling
def test_scaling_that_the_graph_knows_is_not_multiplied() -> None:
    names = ("w", "s", "b")
    rec = np.asarray(WEIGHT, "f4")
    scaled = rec * np.array(SCALE, "f4").reshape(3, 1, 1, 1)
    for text, expected in (
        (graph({"w": tuple(DIMS), "b": (1, 3)}), {"w": scaled, "b": [BIAS]}),
        (graph({"w": tuple(DIMS), "b": (1, 3), "S": (1, 3)}), {"w": rec, "s": [SCALE], "b": [BIAS]}),
        (None, {"w": scaled, "b": BIAS}),
    ):
        data = folded(start(text), names).data
        same(nnr.decode(data).tensors, expected)
        same(by_stream(data), expected)
        assert list(nnr.open(data).info) == list(expected)
        raw = nnr.decode(data, raw=True).tensors
        same(raw, {"s": SCALE, "b": BIAS, "w": rec})


def test_scaling_of_a_product() -> None:
    header = ndu(
        ["w", "h", "s"],
        [4, 4],
        kind=NNR_PT_BLOCK,
        compressed_parameter_types=NNR_CPT_DC | NNR_CPT_LS,
        decomposition_rank=1,
        g_number_of_rows=4,
        first_tensor_dimension_shift=1,
    )
    data = start(graph({"w": (4, 4), "s": (4,)})).ndu(header, [1, 2, 3, 4], np.arange(4), np.ones(4)).data
    same(nnr.decode(data).tensors, {"w": np.tile(np.arange(4), (4, 1)).tolist(), "s": [1, 2, 3, 4]})


# ------------------------------------------------------------------------------------------------ folding
def expected(dtype: str = "f4", epsilon: float = EPSILON) -> dict[str, Any]:
    """Return the tensors that decoding :func:`folded` gives."""
    return {
        "w": WEIGHT.astype(dtype),
        "bn/gamma": np.array([SCALE], dtype),
        "bn/beta": np.array([BIAS], dtype),
        "bn/mean": np.zeros((1, 3), dtype),
        "bn/var": np.full((1, 3), 1 - epsilon, dtype),
        "bn/bias": np.zeros((1, 3), dtype),
    }


@readers
@pytest.mark.parametrize(("data_format", "dtype"), [(None, "f4"), (8, "f2"), (9, "f8")])
def test_a_folded_batch_normalization(
    read: Callable[..., Mapping[str, Array]], data_format: int | None, dtype: str
) -> None:
    data = folded(start(network(1e-3)), data_format=data_format).data
    same(read(data), expected(dtype, 1e-3))


def test_processes() -> None:
    """Processes receive only the required information of a graph, not its parser."""
    outputs = 3000  # otherwise nothing is submitted
    text = network(outputs=outputs)
    wiring = formats.wiring(nnr.Topology("nnef", text))
    header = ndu(["w", "bn/gamma", "bn/beta"], [outputs, 2, 1, 2], kind=NNR_PT_BLOCK, compressed_parameter_types=FOLDED)
    data = start(text).ndu(header, *(np.ones(size) for size in (outputs, outputs, 4 * outputs))).data
    with ProcessPoolExecutor(1) as executor, NnrFile(data) as file:
        got = file.decode(executor=executor)
    assert {name: array.shape for name, array in got.tensors.items()} == wiring.shapes
    assert (got["bn/var"] == 1 - EPSILON).all()


def test_with_another_type() -> None:
    same(nnr.decode(folded(start(network())).data, dtype="float16").tensors, expected("f2"))


def test_facts_about_a_folded_batch_normalization() -> None:
    with nnr.open(folded(start(network())).data) as file:
        infos = file.info
        assert {name: (info.shape, info.type) for name, info in infos.items()} == {
            name: (array.shape, "float32") for name, array in expected().items()
        }
        for name in ("bn/mean", "bn/var", "bn/bias"):
            assert (infos[name].payload_type, infos[name].tools, infos[name].nbytes) == (None, (), 0)
        assert infos["bn/gamma"].payload_type == NNR_PT_BLOCK
        assert file.performance_of("bn/mean") == file.performance_of("w")
        assert list(file.decode(names=["bn/var", "w"])) == ["w", "bn/var"]
        same(file.decode(raw=True).tensors, {"bn/gamma": SCALE, "bn/beta": BIAS, "w": WEIGHT.tolist()})
        with pytest.raises(IndexError):
            file.rows("bn/mean", 0, 2)


def test_without_bias_none_is_recreated() -> None:
    wanted = expected()
    del wanted["bn/bias"]
    same(nnr.decode(folded(start(network(bias=""))).data).tensors, wanted)


def test_a_graph_that_is_given_unfolds_as_one_that_is_carried() -> None:
    data = folded(start()).data
    same(nnr.decode(data, topology=nnr.Topology("nnef", network())).tensors, expected())
    names = ["w", "bn/beta"]
    assert list(nnr.decode(data)) == names
    report = nnr.verify(data, topology=nnr.Topology("nnef", network()))
    assert [tensor.name for tensor in report.tensors] == list(expected())


def test_a_topology_may_be_given_as_a_path(tmp_path: Path) -> None:
    data, graph_file = folded(start()).data, tmp_path / "graph.nnef"
    graph_file.write_bytes(network())
    with NnrFile(data, topology=graph_file) as file:
        same(file.decode().tensors, expected())
    found = nnr.diff(data, folded(start(), data_format=0).data, topology=graph_file)
    assert found is not None


def test_labels_of_other_case_unfold_as_well() -> None:
    got = nnr.decode(folded(start(network()), ("W", "BN/gamma", "bn/BETA")).data)
    assert list(got) == ["W", "BN/gamma", "bn/BETA", "bn/mean", "bn/var", "bn/bias"]


def test_labels_of_other_case_are_saved(tmp_path: Path) -> None:
    """They have the spelling of the graph."""
    nnr.decode_file(folded(start(network()), ("W", "BN/gamma", "bn/BETA")).data, tmp_path / "x.tar")
    got = nnr.load(tmp_path / "x.tar")
    same({name: got[name] for name in expected()}, expected())


BLOCK = nnr.Block("w", bias="bn/bias", beta="bn/beta", gamma="bn/gamma", mean="bn/mean", var="bn/var", epsilon=EPSILON)


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": None},
        {"epsilon": float("inf")},
        {"epsilon": float("nan")},
        {"mean": None},
        {"var": None},
        {"gamma": "bn/beta"},
        {"beta": "b"},
        {"weight": "v"},
    ],
    ids=str,
)
def test_unknown_tensors_are_not_recreated(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """LS is gamma, and mean and variance are unknown."""
    wiring = Wiring(formats.wiring(nnr.Topology("nnef", network())).shapes, (replace(BLOCK, **changes),))
    monkeypatch.setattr(formats, "wiring", lambda _: wiring)
    with NnrFile(folded(start(network())).data) as file:
        same({name: file[name] for name in file}, {"w": WEIGHT.tolist(), "bn/gamma": [SCALE], "bn/beta": [BIAS]})
        with pytest.raises(nnr.IncompleteError, match="3 of 6 tensors; 'bn/mean', 'bn/var', 'bn/bias' missing"):
            file.decode()


def test_an_epsilon_that_no_type_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    wiring = Wiring(formats.wiring(nnr.Topology("nnef", network())).shapes, (replace(BLOCK, epsilon=1e300),))
    monkeypatch.setattr(formats, "wiring", lambda _: wiring)
    with (
        NnrFile(folded(start(network())).data) as file,
        pytest.raises(nnr.ElementError, match="exceeds the range of float32"),
    ):
        file.decode()


def test_a_batch_normalization_that_is_coded_is_not_recreated() -> None:
    header = ndu(
        ["w", "bn/beta", "bn/gamma", "bn/mean", "bn/var", "bn/bias"],
        DIMS,
        kind=NNR_PT_BLOCK,
        compressed_parameter_types=NNR_CPT_BN | NNR_CPT_BI,
    )
    data = start(network()).ndu(header, BIAS, [1, 1, 1], [2, 2, 2], [3, 3, 3], [4, 4, 4], WEIGHT).data
    got = nnr.decode(data)
    assert (got["bn/var"].tolist(), got["bn/mean"].tolist(), got["bn/bias"].tolist()) == ([[4] * 3], [[3] * 3], [BIAS])


def test_recreated_tensors_may_be_unexpected() -> None:
    shapes = {name: (array.shape, "float32") for name, array in expected().items()}
    data = folded(start(network())).data
    same(nnr.decode(data, limits=Limits(expected=shapes)).tensors, expected())
    del shapes["bn/var"]
    refused(data, nnr.LimitError, "'bn/var' is not one of the 5 expected tensors", limits=Limits(expected=shapes))


def test_side_information_about_recreated_tensors() -> None:
    """It may give types and shapes, as for any tensor, which override the graph."""
    record = SideInfo({"bn/mean": TensorRecord("bfloat16"), "bn/beta": TensorRecord("float32", shape=(3,))})
    wanted = expected()
    wanted["bn/mean"] = wanted["bn/mean"].astype(ml_dtypes.bfloat16)
    wanted["bn/beta"] = wanted["bn/beta"].reshape(3)
    data = folded(start(network()).topology(record.to_bytes() + b"\0", storage=STORAGE_FORMAT)).data
    same(nnr.decode(data).tensors, wanted)
    same(by_name(data), wanted)
    assert nnr.open(data).info["bn/mean"].type == "bfloat16"


def test_a_tensor_that_is_tied_cannot_be_recreated() -> None:
    record = SideInfo({"bn/mean": TensorRecord(same_as="bn/beta", index=1)})
    data = folded(start(network()).topology(record.to_bytes() + b"\0", storage=STORAGE_FORMAT)).data
    refused(data, nnr.ElementError, "'bn/mean' has a unit, but side information states that it is tied to 'bn/beta'")


@pytest.mark.parametrize("index", [0, 3, 6])
def test_a_tensor_may_be_tied_to_one_that_is_recreated(index: int) -> None:
    record = SideInfo({"tail": TensorRecord(same_as="bn/mean", index=index)})
    data = folded(start(network()).topology(record.to_bytes() + b"\0", storage=STORAGE_FORMAT)).data
    wanted = [*expected().items()]
    wanted.insert(index, ("tail", expected()["bn/mean"]))
    for name, read in READERS.items():
        got = read(data)
        # A stream cannot yield it before its target.
        same({key: got[key] for key, _ in wanted} if name == "stream" else got, dict(wanted))
    assert nnr.open(data).info["tail"].same_as == "bn/mean"
    with nnr.open(data).deferred() as model:
        same({key: model[key] for key in model}, dict(wanted))
        assert model.aliases == {"tail": "bn/mean"}


# ------------------------------------------------------------------------------------------------ updates
def base_and_update(text: bytes | None) -> tuple[bytes, bytes]:
    """Return a folded base model, and an update of it."""
    base = start(text, parent=1)
    one = update_ndu("w", DIMS, 0)
    two = update_ndu("w", DIMS, 1)
    for header in (one, two):
        header.nnr_compressed_data_unit_payload_type = NNR_PT_BLOCK
        header.nnr_multiple_topology_elements_present_flag = 1
        header.topology_elem_id_list = ["w", "bn/gamma", "bn/beta"]
        header.compressed_parameter_types = FOLDED
        del header.topology_elem_id
    base.ndu(one, SCALE, BIAS, WEIGHT)
    update = start(None, parent=1).ndu(two, [1, 0, -1], [2, 0, -2], np.ones(DIMS))
    return base.data, update.data


def streamed(messages: tuple[bytes, ...], **options: Any) -> Iterator[dict[str, Array]]:
    decoder = nnr.StreamDecoder(**options)
    yield from (dict(decoder.feed(data)) for data in messages)


def updated(messages: tuple[bytes, ...], **options: Any) -> Iterator[dict[str, Array]]:
    decoder = nnr.UpdateDecoder(**options)
    for data in messages:
        update = decoder.decode(data)
        yield {name: tensor for name, tensor in update.items() if name not in update.left_out}


@pytest.mark.parametrize("read", [streamed, updated])
def test_updates_are_not_unfolded(read: Callable[..., Iterator[dict[str, Array]]]) -> None:
    """They are differences of gamma and beta (8.2.1), and belong to the topology of the base model."""
    difference = {"w": np.ones(DIMS).tolist(), "bn/gamma": [[1, 0, -1]], "bn/beta": [[2, 0, -2]]}
    base, update = read(base_and_update(network()))
    same(base, expected())
    same(update, difference)
    base, update = read(base_and_update(None), topology=nnr.Topology("nnef", network()))
    same(base, expected())
    same(update, difference)
    base, update = read(base_and_update(None))  # it is unknown that gamma is a variable
    assert list(base) == list(update) == ["w", "bn/beta"]


# ------------------------------------------------------------------------------------------------ contradictions
PLAIN = start().ndu(ndu("w", [2, 3], kind=NNR_PT_INT), VALUES).ndu(ndu("b", [3]), [1, 2, 3]).data


def given(shapes: Mapping[str, tuple[int, ...]], kind: str = "scalar") -> nnr.Topology:
    return nnr.Topology("nnef", graph(shapes, kind))


def whole(data: bytes, **options: Any) -> None:
    nnr.decode(data, **options)


@pytest.mark.parametrize("read", [whole, by_stream, partial(by_stream, step=10_000)], ids=["whole", "chunks", "one"])
def test_a_topology_that_does_not_fit(read: Callable[..., Any]) -> None:
    read(PLAIN, topology=given({"w": (2, 3), "B": (1, 3)}))
    for topology, tensor, message in (
        (
            given({"w": (2, 3), "b": (4,)}),
            "b",
            r"1 of 2 tensors have different shapes: 'b' is \(3,\), declared as \(4,\) in graph\.nnef:6;",
        ),
        (given({"w": (3, 2), "b": (1, 4)}), "w", r"2 of 2 tensors have different shapes: 'w' is .*, 'b' is"),
        (given({"x": (2, 3)}), "w", "2 of 2 tensors are not among its variables: 'w', 'b';"),
        (
            given({"x": (2, 3), "w": (5,)}),
            "w",
            "are not among its variables: 'b'; 1 of 2 tensors have different shapes: 'w'",
        ),
        (given({"w": (2, 3), "b": (3,)}, "integer"), "b", "1 of 2 tensors have different types: 'b' is float32;"),
    ):
        match = f"the given topology does not match the bitstream: .*{message}"
        with pytest.raises(nnr.FormatError, match=match) as caught:
            read(PLAIN, topology=topology)
        assert caught.value.tensor == tensor
    with pytest.raises(nnr.IncompleteError, match="2 of 6 tensors; 'c0', 'c1', 'c2' and 1 more missing"):
        read(PLAIN, topology=given({"w": (2, 3), "b": (3,)} | {f"c{k}": (1,) for k in range(4)}))


def test_many_names_are_counted() -> None:
    stream = start()
    for k in range(9):
        stream.ndu(ndu(f"w{k}", [1]), [k])
    with pytest.raises(
        nnr.FormatError, match=r"9 of 9 tensors are not among its variables: 'w0', 'w1', 'w2' and 6 more;"
    ):
        nnr.decode(stream.data, topology=given({"x": (1,)}))


def test_a_topology_that_is_carried_may_fit_badly() -> None:
    """Decoding permits it; saving the model checks it."""
    data = start(graph({"w": (7,)})).ndu(ndu("w", [2, 3], kind=NNR_PT_INT), VALUES).data
    assert nnr.decode(data)["w"].shape == (2, 3)


def test_parts_and_raw_tensors_need_not_fit() -> None:
    topology = given({"x": (2, 3)})
    with nnr.open(PLAIN, topology=topology) as file:
        assert file["w"].shape == (2, 3)
        assert len(file.decode(names=["w"])) == 1
        assert len(file.decode(raw=True, allow_missing=True)) == 2


def test_pruned_tensors_need_not_fit() -> None:
    stream = pruned(start(), dictionary(w=[2, 3])).ndu(ndu("w", [2, 3], kind=NNR_PT_INT), VALUES)
    assert nnr.decode(stream.data, topology=given({"w": (5, 3)})).pruned == ["w"]


# ------------------------------------------------------------------------------------------------ accepted arguments
def test_what_may_be_given(tmp_path: Path) -> None:
    topology = given({"w": (2, 3), "b": (1, 3)})
    model = nnr.decode(PLAIN, topology=topology)
    assert model.topology == topology
    model.topology = replace(topology, quantization=b'"v0": zero_point_linear_quantize(zero_point = 0);\n')
    (tmp_path / "alone").mkdir()
    text = tmp_path / "alone" / "graph.nnef"
    text.write_bytes(topology.data)
    for path in (tmp_path / "folder.nnef", tmp_path / "model.tgz"):
        nnr.save(model, path)
        assert nnr.decode(PLAIN, topology=path).topology == model.topology
        assert nnr.decode(PLAIN, topology=str(path)).topology == model.topology
    assert nnr.decode(PLAIN, topology=text).topology == topology
    assert nnr.decode(PLAIN, topology=model).topology == model.topology
    assert nnr.decode(PLAIN, topology=nnr.Topology("", b"anything")).topology == nnr.Topology("", b"anything")


def test_invalid_topologies(tmp_path: Path) -> None:
    nnr.save({"w": VALUES}, tmp_path / "m.npz")
    with pytest.raises(nnr.FormatError, match=r"m\.npz has no topology; give a graph\.nnef"):
        nnr.decode(PLAIN, topology=tmp_path / "m.npz")
    with pytest.raises(nnr.FormatError, match="the model has no topology"):
        nnr.open(PLAIN, topology=nnr.Model({}))
    with pytest.raises(nnr.FormatError, match=r"graph\.nnef:1"):
        nnr.StreamDecoder(topology=nnr.Topology("nnef", b"version 1.0; graph"))
    with pytest.raises(FileNotFoundError):
        nnr.verify(PLAIN, topology=tmp_path / "nothing")
    (tmp_path / "graph.nnef").write_bytes(b"version 1.0; graph g(")
    with pytest.raises(nnr.FormatError):
        nnr.inspect(PLAIN, topology=tmp_path / "graph.nnef")


def test_a_graph_outside_of_it_does_not_make_an_aggregate_self_contained() -> None:
    broken = []
    for known in ({}, {"w": [2, 3]}):
        stream = start(graph({"w": (2, 3), "v": (2, 3)}), known)
        stream.ndu(ndu("w", None if known else [2, 3], kind=NNR_PT_INT), VALUES)
        stream.ndu(ndu("v", [2, 3], kind=NNR_PT_INT), VALUES)
        data = stream.aggregate(3, kind=NNR_AGG_SLF).data
        assert len(nnr.decode(data)) == 2
        broken.append([violation.message for violation in nnr.verify(data).violations])
    assert broken[0] == []
    assert len(broken[1]) == 1
    assert "the dimensions of 'w' are neither in the bitstream" in broken[1][0]
