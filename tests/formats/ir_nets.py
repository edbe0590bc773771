"""Small executable OpenVINO IRs: layers with ports and edges, and the file of their constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nnr_codec import formats
from nnr_codec.model import Array, Model

from .irs import put

#: The element types of arrays.
TYPES = {"float32": "f32", "float16": "f16", "int64": "i64"}


@dataclass
class Net:
    """Builder of a network with one input ``x``; layers are identified by numbers."""

    input: Sequence[int] = (2, 3, 6, 6)
    layers: list[str] = field(default_factory=list)
    edges: list[str] = field(default_factory=list)
    dims: list[Sequence[int]] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))

    def __post_init__(self) -> None:
        self.op("Parameter", [], self.input, shape=",".join(map(str, self.input)), element_type="f32")

    def op(self, type: str, inputs: Sequence[int], dims: Sequence[int], version: str = "opset1", **data: str) -> int:
        """Add a layer with one output of these dimensions; return its number."""
        number = len(self.layers)
        ports = "".join(_port(k, self.dims[source], self.types[source]) for k, source in enumerate(inputs))
        self.types.append(data.get("element_type", data.get("destination_type", "f32")))
        attributes = "".join(f' {name}="{value}"' for name, value in data.items())
        result = type == "Result"
        output = "" if result else f"<output>{_port(len(inputs), dims, self.types[-1])}</output>"
        self.layers.append(
            f'<layer id="{number}" name="{data.get("name", "l")}{number}" type="{type}" version="{version}">'
            f"<data{attributes}/><input>{ports}</input>{output}</layer>"
        )
        for k, source in enumerate(inputs):
            port = self.layers[source].count("<port") - 1
            self.edges.append(f'<edge from-layer="{source}" from-port="{port}" to-layer="{number}" to-port="{k}"/>')
        self.dims.append(dims)
        return number

    def constant(self, array: Array) -> int:
        """Add a constant with these items."""
        offset = len(self.data)
        self.data += array.tobytes()
        type_, shape = TYPES[array.dtype.name], ",".join(map(str, array.shape))
        where = {"offset": str(offset), "size": str(array.nbytes)}
        return self.op("Const", [], array.shape, element_type=type_, shape=shape, **where)

    def weight(self, *shape: int, low: float = -1.0, dtype: str = "float32") -> int:
        """Add a constant of random floats."""
        return self.constant(self.random.uniform(low, 1, shape).astype(dtype))

    def half(self, *shape: int) -> int:
        """Add a constant of float16, converted to float32."""
        return self.op("Convert", [self.weight(*shape, dtype="float16")], shape, destination_type="f32")

    def conv(self, source: int, weight: int, type: str = "Convolution") -> int:
        """Add a convolution that keeps height and width."""
        batch, _, *places = self.dims[source]
        shape = self.dims[weight]
        channels = {"Convolution": shape[0], "ConvolutionBackpropData": shape[1]}.get(type, shape[0] * shape[1])
        pads = ",".join(str(extent // 2) for extent in shape[-2:])
        window = {"strides": "1,1", "dilations": "1,1", "pads_begin": pads, "pads_end": pads, "auto_pad": "explicit"}
        return self.op(type, [source, weight], (batch, channels, *places), **window)

    def add(self, source: int, other: int, type: str = "Add") -> int:
        return self.op(type, [source, other], self.dims[source], auto_broadcast="numpy")

    def norm(self, source: int, version: str = "opset5", epsilon: str = "0.001") -> int:
        """Add a batch normalization: gamma, beta, mean and variance."""
        vectors = [self.weight(self.dims[source][1], low=0.1) for _ in range(4)]
        inputs = [*vectors[:2], source, *vectors[2:]] if version == "opset1" else [source, *vectors]
        return self.op("BatchNormInference", inputs, self.dims[source], version, epsilon=epsilon)

    def matmul(self, source: int, weight: int, *, transposed: bool = True) -> int:
        columns = self.dims[weight][0 if transposed else 1]
        flags = {"transpose_a": "false", "transpose_b": str(transposed).lower()}
        return self.op("MatMul", [source, weight], (*self.dims[source][:-1], columns), **flags)

    def xml(self, *results: int) -> bytes:
        """Return the XML with these outputs."""
        for result in results:
            self.op("Result", [result], ())
        head = '<?xml version="1.0"?>\n<net name="n" version="11">\n<layers>\n'
        body = f"{chr(10).join(self.layers)}\n</layers>\n<edges>\n{chr(10).join(self.edges)}\n</edges>\n</net>\n"
        return (head + body).encode()

    def put(self, folder: Path, *results: int) -> Path:
        """Write both files; return the path of the XML."""
        return put(folder, self.xml(*results), bytes(self.data))

    def model(self, folder: Path, *results: int) -> Model:
        return formats.load(self.put(folder, *results))


def _port(number: int, dims: Sequence[int], type: str) -> str:
    precision = {"f32": "FP32", "f16": "FP16", "i64": "I64"}[type]
    extents = "".join(f"<dim>{extent}</dim>" for extent in dims)
    return f'<port id="{number}" precision="{precision}">{extents}</port>'
