"""Methods of compression: functions of the tensors of a network and a setting that return a size and restored tensors.

Matrices are tensors with at least two dimensions; their first dimension has the output channels. In files of integers,
other tensors are float32, and each output channel has a scale of 16 bits. Weights are quantized; activations are not.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import nnr_codec as nnr
from nnr_codec.integrations.torch import sensitivity
from nnr_codec.integrations.training import Masks

from ..compare import Codec
from .data import Array
from .networks import Network

Tensors = Mapping[str, Array]
#: Size in bytes and restored tensors.
Coded = tuple[int, Tensors]

#: Names of the methods, in the order of measurement.
METHODS = (
    "NNR, default",
    "NNR",
    "NNR, with data",
    "NNR, fine-tuned",
    "NNCodec, default",
    "NNCodec",
    "NNCodec, RDO",
    "bfloat16",
    "integers",
    "GPTQ",
    "GGUF",
)

#: Factors of the largest magnitude of a channel that are tried as the range of its integers.
RANGES = np.linspace(1, 0.4, 25, dtype=np.float32)
#: Part of the mean of the diagonal that is added to the diagonal of second moments, as in GPTQ.
DAMPING = 0.01
#: Quality after fine-tuning, and steps of the optimizer between two updates of masks.
TUNED_QUALITY, GROWTH = 30, 16


@dataclass(frozen=True)
class Curve:
    """Method with a parameter.

    Parameters
    ----------
    name : str
        Name in tables and charts.
    code : callable
        Function of a parameter that returns size and restored tensors.
    grid : tuple of float
        Parameters from large to small files; the last ones are skipped once the network is too inaccurate.
    middle : callable or None
        Function of two neighbouring parameters that returns one in between, or one of the two; None without refinement.
    label : str
        Format of a parameter.
    """

    name: str
    code: Callable[[Any], Coded]
    grid: tuple[Any, ...]
    middle: Callable[[Any, Any], Any] | None = None
    label: str = "{}"


@dataclass
class Coders:
    """All methods for one network."""

    network: Network
    peer: Codec | None

    def curves(self) -> Iterator[Curve]:
        """Yield the methods; NNCodec only if its interpreter is known."""
        yield Curve("NNR, default", lambda _: self._ours(), ("default",))
        yield Curve("NNR", lambda quality: self._ours(quality=quality), tuple(range(50, 4, -5)), _half, "quality {:g}")
        ratios = tuple(round(0.32 * 0.7**k, 4) for k in range(10))
        yield Curve("NNR, with data", self._with_data, ratios, _proportional, "ratio {:.4g}")
        if self.network.tune:
            yield Curve("NNR, fine-tuned", self._fine_tuned, (0.5, 0.7, 0.8, 0.9), None, "{:.0%} zeros")
        if self.peer:
            yield Curve("NNCodec, default", partial(self._theirs, 0), (-32,), None, "qp {}")
            qps = tuple(range(-40, 1, 4))
            yield Curve("NNCodec", partial(self._theirs, 0), qps, _whole, "qp {}")
            yield Curve("NNCodec, RDO", partial(self._theirs, 1), qps, _whole, "qp {}")
        yield Curve("bfloat16", lambda _: self._bfloat16(), ("zstd -19",))
        yield Curve("integers", self._integers, (8, 7, 6, 5, 4, 3), None, "{} bits")
        yield Curve("GPTQ", self._gptq, (8, 7, 6, 5, 4, 3), None, "{} bits")
        yield Curve("GGUF", self._gguf, ("Q8_0", "Q4_0"))

    @cached_property
    def known(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Sensitivities and second moments of the calibration samples.

        All rows of an embedding get the mean, because words that do not occur in the samples would have no cost.
        """
        costs, moments = sensitivity(self.network.module, self.network.calibration)
        for name in costs:
            if name.endswith("embeddings.weight"):
                costs[name] = np.full_like(costs[name], costs[name].mean())
        return costs, moments

    def _ours(self, **options: Any) -> Coded:
        data = nnr.encode(self.network.tensors, **options)
        return len(data), nnr.decode(data).tensors

    def _with_data(self, ratio: float) -> Coded:
        costs, moments = self.known
        return self._ours(target_ratio=ratio, sensitivity=costs, hessians=moments)

    def _fine_tuned(self, ratio: float) -> Coded:
        """Encode after fine-tuning in which a growing share of the parameters becomes 0."""
        assert self.network.tune
        module, steps = copy.deepcopy(self.network.module), count()
        masks = Masks(module)

        def after(progress: float) -> None:
            if next(steps) % GROWTH == 0:
                masks.grow(ratio, 2 * progress)
            masks.project()

        self.network.tune(module, after=after)
        tensors = {name: module.state_dict()[name].numpy() for name in self.network.tensors}
        data = nnr.encode(tensors, quality=TUNED_QUALITY)
        return len(data), nnr.decode(data).tensors

    def _theirs(self, lambda_scale: int, qp: int) -> Coded:
        assert self.peer
        options = {"qp": qp, "fine_qp": -75, "dq": True, "choice": True, "unary": 10, "lambda_scale": lambda_scale}
        with tempfile.TemporaryDirectory() as folder:
            source, stream, decoded = (Path(folder, name) for name in ("tensors.npz", "theirs.nnr", "decoded.npz"))
            np.savez(source, **self.network.tensors)  # type: ignore[arg-type]  # the stub takes the names for its own options
            self.peer.ask(do="encode", tensors=source, to=stream, options=options)
            self.peer.ask(do="decode", to=decoded, **{"from": stream})
            with np.load(decoded) as file:
                return stream.stat().st_size, dict(file)

    def _bfloat16(self) -> Coded:
        import ml_dtypes

        values = {name: value.astype(ml_dtypes.bfloat16) for name, value in self.network.tensors.items()}
        return compressed(values), {name: value.astype(np.float32) for name, value in values.items()}

    def _integers(self, bits: int, moments: Mapping[str, Array] | None = None) -> Coded:
        most = 2 ** (bits - 1) - 1
        unpacked: dict[str, Array] = {}
        packed: dict[str, Array] = {}
        restored: dict[str, Array] = {}
        for name, value in self.network.tensors.items():
            if value.ndim < 2:
                unpacked[name] = packed[name] = restored[name] = value
                continue
            rows = value.reshape(len(value), -1)
            scales = channel_scales(rows, most)
            moment = (moments or {}).get(name)
            levels = nearest(rows, scales, most) if moment is None else compensated(rows, scales, most, moment)
            restored[name] = (levels * scales).astype(np.float32).reshape(value.shape)
            unpacked[name] = levels.astype(np.int8)
            binary = np.unpackbits((levels + most).astype(np.uint8)[..., None], axis=-1)[..., 8 - bits :]
            packed[name] = np.packbits(binary)
            unpacked[f"{name}.scale"] = packed[f"{name}.scale"] = scales.astype(np.float16)
        return min(compressed(unpacked), compressed(packed)), restored

    def _gptq(self, bits: int) -> Coded:
        return self._integers(bits, self.inputs)

    @cached_property
    def inputs(self) -> dict[str, Array]:
        """Second moments of the inputs of layers in the calibration samples."""
        return input_moments(self.network.module, self.network.calibration)

    def _gguf(self, kind: str) -> Coded:
        import gguf

        number = gguf.GGMLQuantizationType[kind]
        restored = dict(self.network.tensors)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.gguf")
            writer = gguf.GGUFWriter(path, "network")
            for name, value in self.network.tensors.items():
                if value.ndim < 2:
                    writer.add_tensor(name, value)
                elif value.size % 32:  # blocks have 32 values
                    writer.add_tensor(name, value.astype(np.float16))
                    restored[name] = value.astype(np.float16).astype(np.float32)
                else:
                    blocks = gguf.quants.quantize(value.reshape(-1, 32), number)
                    writer.add_tensor(name, blocks, raw_dtype=number)
                    restored[name] = gguf.quants.dequantize(blocks, number).reshape(value.shape)
            for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
                step()
            writer.close()
            return path.stat().st_size, restored


def compressed(tensors: Tensors) -> int:
    """Return the size of a file of safetensors, compressed with zstd -19."""
    import zstandard

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        nnr.save(nnr.Model(dict(tensors)), path)
        return len(zstandard.ZstdCompressor(level=19).compress(path.read_bytes()))


def channel_scales(rows: Array, most: int) -> Array:
    """Return the scale of each row, shape (n, 1): the one of `RANGES` with the least squared error."""
    largest = np.maximum(np.abs(rows).max(1, keepdims=True), 1e-6) / most
    best = np.full(largest.shape, np.inf)
    scales = largest
    for factor in RANGES:
        tried = (largest * factor).astype(np.float16).astype(np.float32)
        tried = np.where(tried > 0, tried, largest)
        errors = ((nearest(rows, tried, most) * tried - rows) ** 2).sum(1, keepdims=True)
        scales, best = np.where(errors < best, tried, scales), np.minimum(errors, best)
    return scales


def nearest(rows: Array, scales: Array, most: int) -> Array:
    """Return the nearest integers."""
    return np.clip(np.rint(rows / scales), -most, most)


def input_moments(module: nn.Module, batches: Iterable[Any]) -> dict[str, Array]:
    """Return sums of products of the inputs of linear layers and convolutions with one group, by name of the weight."""
    totals: dict[str, Array] = {}

    def record(name: str, layer: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        x = inputs[0]
        if isinstance(layer, nn.Conv2d):
            unfold = nn.Unfold(layer.kernel_size, layer.dilation, layer.padding, layer.stride)
            x = unfold(x).transpose(1, 2)
        rows = x.reshape(-1, x.shape[-1]).double()
        totals[name] = totals.get(name, 0) + (rows.T @ rows).numpy()

    hooks = [
        layer.register_forward_pre_hook(partial(record, f"{name}.weight"))
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1)
    ]
    with torch.inference_mode():
        for batch in batches:
            module(**batch) if isinstance(batch, Mapping) else module(batch)
    for hook in hooks:
        hook.remove()
    return totals


def compensated(rows: Array, scales: Array, most: int, moment: Array) -> Array:
    """Return the integers of GPTQ (Frantar et al. 2023): later columns of a row compensate for errors of earlier ones.

    Columns are in descending order of the diagonal of the second moments.
    """
    order = np.argsort(-np.diag(moment), kind="stable")
    h = moment[np.ix_(order, order)].astype(np.float64)
    h[np.diag_indices_from(h)] += DAMPING * max(float(np.diag(h).mean()), 1e-30)
    factor = np.linalg.cholesky(np.linalg.inv(h)).T
    w, scale = rows[:, order].astype(np.float64), scales[:, 0].astype(np.float64)
    levels = np.empty_like(w)
    for k in range(w.shape[1]):
        levels[:, k] = np.clip(np.rint(w[:, k] / scale), -most, most)
        error = (w[:, k] - levels[:, k] * scale) / factor[k, k]
        w[:, k + 1 :] -= np.outer(error, factor[k, k + 1 :])
    found = np.empty_like(levels)
    found[:, order] = levels
    return found


def _half(one: float, other: float) -> float:
    return (one + other) / 2


def _proportional(one: float, other: float) -> float:
    return float(f"{(one * other) ** 0.5:.4g}")


def _whole(one: int, other: int) -> int:
    return (one + other) // 2
