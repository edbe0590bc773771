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
#: Least and greatest number of weights that compensate for each other, except that a kernel is never divided.
FEWEST, MOST = 8, 64


class ExpectedInputs(Importance):
    """Expected second moments of the inputs of a weight, for consecutive parts of its rows."""

    def mean(self) -> float:
        """Return 1: the same cost as without importance."""
        return 1.0

    def weights(self) -> None:
        """Return None: all squared errors cost the same."""

    def improve(self, x: surgeon.Real, step: float, levels: npt.NDArray[np.int32], **options: Any) -> None:
        """Replace levels; see :meth:`Importance.improve`."""
        unit, pivots = _factor(*part(self.dims))
        shape = (x.size // len(pivots), len(pivots))
        rows, levels = x.reshape(shape), levels.reshape(shape)
        surgeon.surgeon(rows, step, levels, unit, pivots, np.ones(shape[0]), row_unit=None, **options)


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
    kernel, channels = part(facts.dims)
    if prod(kernel) * channels < FEWEST:
        return plan
    return replace(plan, coding=replace(coding, importance=ExpectedInputs(facts.name, facts.dims)))


def part(dims: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the extents of the kernel, and the number of channels that compensate for each other."""
    kernel = dims[2:] if max(dims[2:]) <= EXTENT and prod(dims[2:]) <= POSITIONS else (1,) * len(dims[2:])
    channels = prod(dims[1:]) // prod(kernel)
    most = max(MOST // prod(kernel), 1)
    return kernel, max(count for count in range(1, most + 1) if channels % count == 0)


@lru_cache(maxsize=64)
def _factor(kernel: tuple[int, ...], channels: int) -> tuple[npt.NDArray[np.float32], Floats]:
    """Return the factor of the expected second moments of channels, with pivots of 1 on average."""
    positions = np.stack(np.unravel_index(np.arange(prod(kernel)), kernel), axis=1)
    distances = ((positions[:, None] - positions) ** 2).sum(axis=2)
    moments = np.kron(np.eye(channels), 1 / (1 + FALL * distances)) + MEAN
    unit, pivots = surgeon.factorize(moments, DAMPING)
    return unit, pivots / (fsum(pivots) / len(pivots))
