"""Cost of errors in the weights of an ONNX model, measured with sample inputs in onnxruntime.

>>> samples = {"input": images}                                                         # doctest: +SKIP
>>> sensitivities, hessians = sensitivity("model.onnx", samples)                        # doctest: +SKIP
>>> nnr_codec.encode("model.onnx", target_ratio=0.1, sensitivity=sensitivities, hessians=hessians)   # doctest: +SKIP
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from .. import formats
from ..errors import EncodeError
from ..formats import require
from ..model import Progress
from .second_moments import LARGEST, Hessians, SecondMoments, Sensitivities

Numbers = npt.NDArray[Any]

#: Samples in a batch if the model does not fix their number.
BATCH = 32
#: Added errors relative to the root mean square of a weight: far above rounding errors of float32, and small enough for
#: outputs to change linearly.
NOISE = 2.0**-7
#: Samples with which errors are added to each weight; a few suffice for one number.
NOISY = 64
#: Positions of a convolution whose inputs are used for each sample, because neighbouring inputs are similar.
POSITIONS = 256


def sensitivity(
    model: str | os.PathLike[str], samples: Mapping[str, Numbers], *, progress: Progress | None = None
) -> tuple[Sensitivities, Hessians]:
    """Measure the options ``sensitivity`` and ``hessians`` of :class:`nnr_codec.EncoderConfig`.

    Random errors are added to one weight at a time. The mean squared change of the outputs, relative to their mean
    square and to the squared errors, is the cost of the weight. The first 64 samples are used for it, and all samples
    for second moments.

    Parameters
    ----------
    model : path
        A .onnx file of less than 2 GB, with its external data.
    samples : mapping of str to ndarray
        Arrays by name of the inputs, with samples along the first dimension. The name does not matter if the model has
        one input.
    progress : callable, optional
        Called as ``progress(name, done, total)`` after each batch.

    Returns
    -------
    sensitivities : dict of str to ndarray of float32
        Cost of the floating-point initializers that affect the outputs: a number.
    hessians : dict of str to pair of ndarray of float64, or None
        Second moments of the inputs of ``Conv`` (with one group), ``Gemm`` and ``MatMul``: ``(None, moments)`` for
        weights that are stored as outputs x inputs, ``(moments, None)`` for inputs x outputs. Weights with more than
        8,192 inputs are omitted.

    Raises
    ------
    EncodeError
        The samples do not fit the inputs, or onnxruntime cannot run the model.
    FormatError
        The model is malformed.
    MissingDependencyError
        onnx or onnxruntime is not installed.
    OSError
        The file cannot be read.
    """
    network = Network(model)
    errors = {name: _noise(name, array) for name, array in network.weights.items()}
    errors = {name: noise for name, noise in errors.items() if noise.any()}
    changes, moments = dict.fromkeys(errors, 0.0), dict[str, SecondMoments]()
    batches = network.batches(samples)
    for number, batch in enumerate(batches):
        outputs = network.run(batch)
        for use in network.uses:
            vectors = use.vectors(batch[use.input] if use.input in batch else outputs[use.input])
            count = len(vectors) if len(vectors) % network.batch else network.batch
            moments.setdefault(use.weight, SecondMoments()).add(vectors.reshape(count, -1, vectors.shape[-1]))
        for name, noise in errors.items() if number * network.batch < NOISY else ():
            changed = network.run(batch | {name: network.weights[name] + noise}, network.outputs)
            changes[name] += sum(_change(outputs[output], changed[output]) for output in network.outputs)
        if progress:
            progress(f"batch {number + 1}", number + 1, len(batches))
    found: Sensitivities = {}
    for name, change in changes.items():
        if not np.isfinite(change):
            raise EncodeError(f"the outputs of the model are not finite; tensor {name!r} has no cost", tensor=name)
        if change:
            found[name] = np.array(change / (_mean_square(errors[name]) * errors[name].size), np.float32)
    first = {use.weight: use.inputs_first for use in network.uses}
    return found, {name: (one.mean(), None) if first[name] else (None, one.mean()) for name, one in moments.items()}


class _Use(NamedTuple):
    """Use of a weight in a node.

    Parameters
    ----------
    weight, input : str
        Names of the weight and of the value that it is multiplied with.
    vectors : callable
        Function from the value to the vectors of inputs, shape (vectors, inputs).
    inputs_first : bool
        Whether the weight is stored as inputs x outputs.
    """

    weight: str
    input: str
    vectors: Callable[[Numbers], Numbers]
    inputs_first: bool


class Network:
    """ONNX model in a session of onnxruntime in which weights can be replaced.

    Attributes
    ----------
    weights : dict of str to ndarray
        Floating-point initializers that are tensors of the model.
    batch : int
        Number of samples in a batch.
    outputs : list of str
        Outputs of floating-point type.
    uses : list of _Use
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        onnx: Any = require("onnx", "onnx", "calibration of ONNX models")
        runtime: Any = require("onnxruntime", "onnx", "calibration of ONNX models")
        tensors = formats.load(path, format="onnx").tensors
        model = onnx.load(os.fspath(path))
        graph, self._types = model.graph, onnx.helper.tensor_dtype_to_np_dtype
        initializers = {one.name: one for one in graph.initializer}
        self._inputs = [one for one in graph.input if one.name not in initializers]
        sizes = {one.type.tensor_type.shape.dim[0].dim_value for one in self._inputs if one.type.tensor_type.shape.dim}
        self._is_fixed, self.batch = any(sizes), max(sizes, default=0) or BATCH
        self.outputs = [one.name for one in graph.output if self._type(one).kind == "f"]
        self.weights = {
            name: np.asarray(tensors[name])
            for name in initializers
            if name in tensors and tensors[name].dtype.name in ("float16", "float32", "float64")
        }
        uses = [use for node in graph.node for use in _uses(onnx, node, self.weights) if use.input not in initializers]
        kinds = {(use.weight, use.inputs_first) for use in uses}
        self.uses = [use for use in uses if (use.weight, not use.inputs_first) not in kinds]
        known = {one.name for one in (*graph.input, *graph.output)}
        watched = dict.fromkeys(use.input for use in self.uses if use.input not in known)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in watched)
        for name in self.weights.keys() - known:
            one = initializers[name]
            graph.input.append(onnx.helper.make_tensor_value_info(name, one.data_type, one.dims))
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        with as_encode_error("load"):
            self._session = runtime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )

    def run(self, inputs: Mapping[str, Numbers], outputs: list[str] | None = None) -> dict[str, Numbers]:
        """Return values by name: all outputs and inputs of weights, or the outputs with these names."""
        names = outputs or [one.name for one in self._session.get_outputs()]
        with as_encode_error("run"):
            return dict(zip(names, self._session.run(names, dict(inputs)), strict=True))

    def batches(self, samples: Mapping[str, Numbers]) -> list[dict[str, Numbers]]:
        """Return samples in batches, in the types of the inputs."""
        names = [one.name for one in self._inputs]
        if len(names) == len(samples) == 1:
            samples = dict(zip(names, samples.values(), strict=True))
        if samples.keys() != set(names):
            raise EncodeError(f"the samples have arrays {sorted(samples)}, but the model has inputs {names}")
        counts = {len(array) if array.ndim else 0 for array in samples.values()}
        if len(counts) != 1 or counts == {0}:
            raise EncodeError(f"the first dimensions of the samples must be equal and not 0, got {sorted(counts)}")
        given = {one.name: self._cast(one, samples[one.name]) for one in self._inputs}
        count, size = counts.pop(), self.batch
        if self._is_fixed and count % size:
            raise EncodeError(f"the model requires batches of {size}; {count} samples are not a multiple of it")
        return [{name: array[k : k + size] for name, array in given.items()} for k in range(0, count, size)]

    def _cast(self, value: Any, array: Numbers) -> Numbers:
        wanted = self._type(value)
        if not np.can_cast(array.dtype, wanted, "same_kind"):
            raise EncodeError(f"input {value.name!r} has type {wanted.name}, but the samples have {array.dtype.name}")
        return np.ascontiguousarray(array, wanted)

    def _type(self, value: Any) -> np.dtype[Any]:
        found: np.dtype[Any] = np.dtype(self._types(value.type.tensor_type.elem_type))
        return found


def _uses(onnx: Any, node: Any, weights: Mapping[str, Numbers]) -> Iterator[_Use]:
    """Yield the use of a weight in a node, if it is multiplied with an input."""
    if len(node.input) < 2 or node.input[1] not in weights or node.domain not in ("", "ai.onnx"):
        return
    value, name = node.input[:2]
    shape = weights[name].shape
    options = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    if node.op_type == "Conv" and options.get("group", 1) == 1:
        if np.prod(shape[1:]) <= LARGEST:
            yield _Use(name, value, lambda x: _patches(x, shape[2:], options), inputs_first=False)
    elif node.op_type in ("Gemm", "MatMul") and len(shape) == 2 and not options.get("transA", 0):
        inputs_first = not options.get("transB", 0)
        if shape[0 if inputs_first else 1] <= LARGEST:
            yield _Use(name, value, lambda x: x.reshape(-1, x.shape[-1]), inputs_first)


def _patches(x: Numbers, kernel: tuple[int, ...], options: Mapping[str, Any]) -> Numbers:
    """Return the inputs of up to POSITIONS outputs of a convolution, shape (positions, channels * kernel)."""
    ranks = range(len(kernel))
    strides, dilations = (options.get(name) or [1] * len(kernel) for name in ("strides", "dilations"))
    extents = [dilations[k] * (kernel[k] - 1) + 1 for k in ranks]
    pads, mode = options.get("pads") or [0] * 2 * len(kernel), options.get("auto_pad", b"NOTSET")
    sides = [(pads[k], pads[k + len(kernel)]) for k in ranks]
    if mode.startswith(b"SAME"):
        outputs = [-(-x.shape[2 + k] // strides[k]) for k in ranks]
        totals = [max((outputs[k] - 1) * strides[k] + extents[k] - x.shape[2 + k], 0) for k in ranks]
        sides = [(total // 2, total - total // 2) for total in totals]
        sides = sides if mode == b"SAME_UPPER" else [(after, before) for before, after in sides]
    padded = np.pad(x, [(0, 0), (0, 0), *sides])
    windows = sliding_window_view(padded, extents, axis=tuple(range(2, x.ndim)))
    steps: Any = (slice(None), slice(None), *(slice(None, None, step) for step in (*strides, *dilations)))
    windows = np.moveaxis(windows[steps], 1, 1 + len(kernel))
    positions = windows.shape[1 : 1 + len(kernel)]
    total = int(np.prod(positions))
    places = np.linspace(0, total - 1, min(total, POSITIONS)).astype(np.intp)
    index: Any = (slice(None), *np.unravel_index(places, positions))
    chosen: Numbers = windows[index]
    return chosen.reshape(-1, int(np.prod(chosen.shape[2:])))


def _noise(name: str, array: Numbers) -> Numbers:
    """Return errors with random signs, and magnitudes that keep the signs of all parameters, such as variances."""
    signs = np.random.default_rng(zlib.crc32(name.encode())).integers(0, 2, array.shape, np.int8) * 2 - 1
    magnitudes = np.minimum(NOISE * _mean_square(array) ** 0.5, np.abs(array.astype(np.float64)) / 2)
    return np.asarray(signs * magnitudes, array.dtype)


def _change(before: Numbers, after: Numbers) -> float:
    """Return the mean squared change relative to the mean square."""
    scale = _mean_square(before)
    return _mean_square(after.astype(np.float64) - before) / scale if scale else 0.0


def _mean_square(array: Numbers) -> float:
    return float(np.mean(array.astype(np.float64) ** 2)) if array.size else 0.0


@contextmanager
def as_encode_error(what: str) -> Iterator[None]:
    """Convert errors of onnxruntime, which have no common class."""
    try:
        yield
    except Exception as error:  # of onnxruntime
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise EncodeError(f"onnxruntime cannot {what} the model: {text}") from None
