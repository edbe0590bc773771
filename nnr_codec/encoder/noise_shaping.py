"""Noise shaping: quantization errors of convolutions that change outputs little, without calibration data.

The error of an output is e H e^T, with the errors e of a row of weights and the second moments H of its inputs. Inputs
of convolutions have typical second moments: neighbouring positions of a channel are correlated, and after activations
such as ReLU the mean is positive. With these expected moments, later weights compensate for the errors of earlier
weights (:mod:`nnr_codec.cabac_ext.surgeon`). The squared error of the weights grows by about 1 dB, and the error of the
outputs falls by several dB (docs/explanation/encoder.md). tests/encoder/test_noise_shaping.py checks it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import fsum, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import surgeon
from .facts import TensorFacts
from .plan import Quantized, TensorPlan
from .sensitivity import DAMPING, Floats, Importance

#: Correlation of two positions of a channel at the squared distance d: 1 / (1 + FALL * d).
FALL = 1.0
#: Product of the means of two channels, relative to the variance of a channel.
MEAN = 0.5
#: Largest extent of a kernel, and largest number of its positions; larger extents are probably channels.
EXTENT, POSITIONS = 11, 125
#: Rank of extents that are probably not those of a kernel.
UNUSUAL = 3
#: Least and greatest number of weights that compensate for each other, except that a kernel is never divided.
FEWEST, MOST = 8, 64


class ExpectedInputs(Importance):
    """Expected second moments of the inputs of a weight, for groups of its input channels."""

    def mean(self) -> float:
        """Return 1: the same cost as without importance."""
        return 1.0

    def weights(self) -> None:
        """Return None: all squared errors cost the same."""

    def improve(self, x: surgeon.Real, step: float, levels: npt.NDArray[np.int32], **options: Any) -> None:
        """Replace levels; see :meth:`Importance.improve`."""
        order, kernel, channels = layout(self.dims)
        some = together(kernel, channels)
        unit = row_unit = None
        row_pivots, run, stride = np.ones(1), 1, 1
        if order == "HWIO":  # a column has the weights of an output
            pivots = np.ones(x.size // (prod(kernel) * channels))
            row_unit, row_pivots = _factor(kernel, some, is_channel_last=True)
            run, stride = some, channels
        elif order == "OHWI":  # a row has the channels of a position; the moments are about a product of two matrices
            some = together((1,), channels)
            unit, pivots = _factor((1,), some)
            row_unit, row_pivots = _factor(kernel, 1)
            stride = channels // some
        else:
            unit, pivots = _factor(kernel, some)
        shape = (x.size // len(pivots), len(pivots))
        row = np.arange(shape[0])
        weights = row_pivots[row // stride % (len(row_pivots) // run) * run + row % run]
        rows, levels = x.reshape(shape), levels.reshape(shape)
        surgeon.surgeon(rows, step, levels, unit, pivots, weights, row_unit=row_unit, run=run, stride=stride, **options)


def shaped(facts: TensorFacts, plan: TensorPlan) -> TensorPlan:
    """Return a plan whose quantization uses expected second moments, if they apply to the tensor.

    They apply to rate-distortion optimized quantization of weights of convolutions, unless the caller gives costs of
    errors or disables the option. Tensors without negative values are not weights.
    """
    coding, options = plan.coding, facts.options
    if not isinstance(coding, Quantized) or not (coding.quantizer.rate and options.noise_shaping):
        return plan
    if coding.codebook or not facts.effort.shaping or facts.context.is_update or facts.bounds[0] >= 0:
        return plan
    if len(facts.dims) < 3 or (facts.importance and facts.importance.tells):
        return plan
    _, kernel, channels = layout(facts.dims)
    if prod(kernel) * together(kernel, channels) < FEWEST:
        return plan
    return replace(plan, coding=replace(coding, importance=ExpectedInputs(facts.name, facts.dims)))


def layout(dims: tuple[int, ...]) -> tuple[str, tuple[int, ...], int]:
    """Return the order of dimensions, the extents of the kernel, and the number of input channels of an output.

    PyTorch and ONNX have output and input channels before the kernel (OIHW), Keras and Flax after it (HWIO), TFLite and
    MLX around it (OHWI). The order with the most usual kernel is assumed. Without one, all dimensions after the first
    are channels.
    """
    ranks = {"OIHW": _rank(dims[2:]), "HWIO": _rank(dims[:-2]), "OHWI": _rank(dims[1:-1])}
    order = min(ranks, key=lambda order: ranks[order])
    if ranks[order] < UNUSUAL and order == "HWIO":
        return "HWIO", dims[:-2], dims[-2] if dims[-1] > 1 else 1
    if ranks[order] < UNUSUAL and order == "OHWI" and prod(dims[1:-1]) > 1:
        return ("OHWI", dims[1:-1], dims[-1]) if dims[0] > 1 else ("HWIO", dims[1:-1], 1)
    kernel = dims[2:] if _is_small(dims[2:]) else (1,) * len(dims[2:])
    return "OIHW", kernel, prod(dims[1:]) // prod(kernel)


def _is_small(kernel: tuple[int, ...]) -> bool:
    return max(kernel) <= EXTENT and prod(kernel) <= POSITIONS


def _rank(kernel: tuple[int, ...]) -> int:
    """Return 0 for the most usual extents of a kernel: odd and equal; then odd ones, then equal ones."""
    is_odd, are_equal = all(extent % 2 for extent in kernel), len(set(kernel)) == 1
    if not _is_small(kernel) or not (is_odd or (are_equal and len(kernel) > 1)):
        return UNUSUAL
    return (0 if are_equal else 1) if is_odd else 2


def together(kernel: tuple[int, ...], channels: int) -> int:
    """Return the number of channels whose weights compensate for each other."""
    most = max(MOST // prod(kernel), 1)
    return max(count for count in range(1, most + 1) if channels % count == 0)


@lru_cache(maxsize=64)
def _factor(
    kernel: tuple[int, ...], channels: int, is_channel_last: bool = False
) -> tuple[npt.NDArray[np.float32], Floats]:
    """Return the factor of the expected second moments of channels, with pivots of 1 on average."""
    positions = np.stack(np.unravel_index(np.arange(prod(kernel)), kernel), axis=1)
    distances = ((positions[:, None] - positions) ** 2).sum(axis=2)
    parts = np.eye(channels), 1 / (1 + FALL * distances)
    moments = np.kron(*(parts[::-1] if is_channel_last else parts)) + MEAN
    unit, pivots = surgeon.factorize(moments, DAMPING)
    return unit, pivots / (fsum(pivots) / len(pivots))
