"""Small executable ONNX networks, and the networks after the removal of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.model import Array, Channels, Model, Slice

from . import onnx_files as made

Floats = npt.NDArray[np.float32]


def declared(name: str, shape: Sequence[int | str]) -> bytes:
    """Return a ValueInfoProto of floats."""
    dims = b"".join(made.field(1, made.field(1 if isinstance(extent, int) else 2, extent)) for extent in shape)
    return made.field(1, name) + made.field(2, made.field(1, made.field(1, 1) + made.field(2, dims)))


@dataclass
class Net:
    """Builder of a network: tensors of random values, nodes, and the shapes of input ``x`` and output ``y``."""

    input: Sequence[int | str] = (2, 3, 6, 6)
    output: Sequence[int | str] = (2, 3, "h", "w")
    opset: int = 17
    ir_version: int = 8
    nodes: list[bytes] = field(default_factory=list)
    tensors: dict[str, Array] = field(default_factory=dict)
    more: bytes = b""
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def weight(self, name: str, *shape: int, low: float = -1.0) -> str:
        """Add a tensor of the model."""
        self.tensors[name] = self.random.uniform(low, 1, shape).astype(np.float32)
        return name

    def integers(self, name: str, *values: int) -> str:
        """Add a constant of integers, which stays in the graph."""
        self.tensors[name] = np.array(values, np.int64)
        return name

    def op(self, operation: str, inputs: str, output: str, **attributes: Any) -> Net:
        """Add a node whose inputs are separated by spaces; ``-`` is an omitted input."""
        names = ["" if name == "-" else name for name in inputs.split()]
        typed = {name: made.attribute("", value)[2:] + _type(value) for name, value in attributes.items()}
        self.nodes.append(made.node(operation, names, output.split(), **typed))
        return self

    def constant(self, name: str, value: object) -> Net:
        """Add a Constant node of floats, which stays in the graph if it is small."""
        return self.op("Constant", "", name, value=made.field(5, made.tensor("", np.array(value, np.float32))))

    def conv(self, source: str, output: str, weight: str, *shape: int, **attributes: Any) -> Net:
        """Add a convolution with ``weight``.w and ``weight``.b that keeps height and width."""
        given = {"pads": [extent // 2 for extent in shape[2:]] * 2, **attributes}
        self.weight(f"{weight}.w", *shape)
        self.weight(f"{weight}.b", shape[0])
        return self.op("Conv", f"{source} {weight}.w {weight}.b", output, **given)

    def norm(self, source: str, output: str, name: str, count: int) -> Net:
        """Add a batch normalization."""
        parts = [self.weight(f"{name}.{part}", count, low=0.1) for part in ("gamma", "beta", "mean", "var")]
        return self.op("BatchNormalization", " ".join([source, *parts]), output)

    def data(self) -> bytes:
        """Return the model as a file."""
        field = made.field
        parts = [field(1, node) for node in self.nodes] + [field(2, "g")]
        parts += [field(5, made.tensor(name, array)) for name, array in self.tensors.items()]
        parts += [field(11, declared("x", self.input)), field(12, declared("y", self.output)), self.more]
        body = b"".join(parts)
        return field(1, self.ir_version) + field(7, body) + field(8, field(2, self.opset))

    def model(self) -> Model:
        return formats.load(self.data(), format="onnx")

    def channels(self) -> set[str]:
        """Return the removable channels; see :func:`told`."""
        topology = self.model().topology
        assert topology is not None
        return told(formats.channels(topology))


def _type(value: object) -> bytes:
    """Return the type of an attribute; for bytes it follows from their first field."""
    codes = {4: 3, 5: 4, 6: 5, 8: 7}  # a string, a tensor, a graph, integers
    by_field = codes[value[0] >> 3] if isinstance(value, bytes) else 7
    return made.field(20, 2 if isinstance(value, int) else 1 if isinstance(value, float) else by_field)


def told(channels: Sequence[Channels]) -> set[str]:
    """Return a text per group: size, and tensors with axis, offset, outer, inner unless 0, 1, 1; producers first."""
    return {f"{group.size}: " + " ".join(sorted(map(_told, group.parts))) for group in channels}


def _told(part: Slice) -> str:
    place = (part.offset, part.outer, part.inner)
    return f"{part.tensor}@{part.axis}{'' if part.makes else '-'}{'' if place == (0, 1, 1) else list(place)}"


def removals(
    channels: Sequence[Channels], random: np.random.Generator, share: float
) -> dict[tuple[str, int], set[int]]:
    """Return indices by tensor and axis that remove about a share of each group, but never all."""
    found: dict[tuple[str, int], set[int]] = {}
    for group in channels:
        count = min(max(round(group.size * share), 1), group.size - 1)
        for channel in random.permutation(group.size)[:count].tolist():
            for part in group.parts:
                starts = [part.offset + (o * group.size + channel) * part.inner for o in range(part.outer)]
                indices = {start + i for start in starts for i in range(part.inner)}
                found.setdefault((part.tensor, part.axis), set()).update(indices)
    return found


def without(model: Model, removed: dict[tuple[str, int], set[int]]) -> Model:
    """Return a model of smaller tensors."""
    tensors = {name: np.asarray(model[name]) for name in model}
    for (name, axis), indices in removed.items():
        tensors[name] = np.delete(tensors[name], sorted(indices), axis)
    return Model(tensors, model.topology, pruned=sorted({name for name, _ in removed}))


def masked(model: Model, removed: dict[tuple[str, int], set[int]]) -> Model:
    """Return the model with zeros in place of the removed channels."""
    tensors = {name: np.array(model[name]) for name in model}
    for (name, axis), indices in removed.items():
        np.moveaxis(tensors[name], axis, 0)[sorted(indices)] = 0
    return Model(tensors, model.topology)


def outputs(path: Path, x: Floats) -> list[Floats]:
    """Return the outputs of a valid model in onnxruntime."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    onnx.checker.check_model(str(path), full_check=True)
    onnx.shape_inference.infer_shapes(onnx.load(path), check_type=True, strict_mode=True, data_prop=True)
    runtime.set_default_logger_severity(3)
    options: Any = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found: list[Floats] = session.run(None, {session.get_inputs()[0].name: x})
    return found


def check_removal(model: Model, folder: Path, x: Floats, *, seed: int = 1, share: float = 0.4) -> int:
    """Check that a model without channels equals one with zeros; return the number of removable channels."""
    assert model.topology is not None
    channels = formats.channels(model.topology)
    removed = removals(channels, np.random.default_rng(seed), share)
    nnr.save(masked(model, removed), folder / "masked.onnx", overwrite=True)
    nnr.save(without(model, removed), folder / "pruned.onnx", overwrite=True)
    loaded = nnr.load(folder / "pruned.onnx")
    assert {name: loaded[name].shape for name in loaded} == {
        name: array.shape for name, array in without(model, removed).tensors.items()
    }
    wanted, found = outputs(folder / "masked.onnx", x), outputs(folder / "pruned.onnx", x)
    for one, other in zip(wanted, found, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(one).max(initial=0))))
    return sum(group.size for group in channels)
