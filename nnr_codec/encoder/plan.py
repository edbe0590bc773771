"""What to do with each tensor: the payload type, the format and the step that its type and the options ask for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import frexp, prod
from typing import Any

import numpy as np

from ..config import EncoderConfig, TensorOptions
from ..constants import NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_RAW_FLOAT, DecompressedDataFormat, PayloadType
from ..errors import EncodeError
from ..limits import Limits
from ..model import Array
from ..tensor.quant import DTYPES, step_size

F = DecompressedDataFormat

#: The smallest format that holds every value of an integer type; NNR has signed integers only (Table 15).
INTEGER_FORMATS: dict[str, DecompressedDataFormat] = {
    "bool": F.TENSOR_INT2,
    "int8": F.TENSOR_INT8,
    "uint8": F.TENSOR_INT16,
    "int16": F.TENSOR_INT16,
    "uint16": F.TENSOR_INT32,
    "int32": F.TENSOR_INT32,
    "uint32": F.TENSOR_INT64,
    "int64": F.TENSOR_INT64,
    "uint64": F.TENSOR_INT64,
}
FLOAT_FORMATS: dict[str, DecompressedDataFormat] = {
    "float16": F.TENSOR_FLOAT16,
    "float32": F.TENSOR_FLOAT32,
    "float64": F.TENSOR_FLOAT64,
}

READABLE = Limits()

#: Steps of tensors with fewer than two extents above 1: 2**-19, or 2**-16 of the largest value where that is finer.
FINE_EXPONENT, FINE_RELATIVE_EXPONENT = -19, -16


@dataclass(frozen=True)
class TensorPlan:
    """The decisions about one tensor.

    Parameters
    ----------
    name : str
    dims : tuple of int
        As coded; a scalar is coded as one parameter (errata I8).
    payload_type : PayloadType
    data_format : DecompressedDataFormat
    options : TensorOptions
    qp : int
        As it will be coded.
    dq_flag : int
    step : float
        stepSize; 0 when nothing is quantized.
    nearest : bool
        Dependent quantization takes the nearest value that its state has, instead of a search for the least error of
        all: no error exceeds the step.
    """

    name: str
    dims: tuple[int, ...]
    payload_type: PayloadType
    data_format: DecompressedDataFormat
    options: TensorOptions
    qp: int = 0
    dq_flag: int = 0
    step: float = 0.0
    nearest: bool = False


def plan_tensor(name: str, array: Array, config: EncoderConfig) -> TensorPlan:
    """Decide how ``array`` is coded; EncodeError names the tensor when it cannot be coded as asked."""
    check_name(name)
    if array.ndim > READABLE.max_dims:
        raise EncodeError(f"tensor {name!r} has {array.ndim} dimensions, more than decoders read with default limits")
    if array.size == 0:
        raise EncodeError(f"tensor {name!r} is empty, which NNR cannot express")
    data_format = (INTEGER_FORMATS | FLOAT_FORMATS).get(array.dtype.name)
    if data_format is None:
        raise EncodeError(f"tensor {name!r} has type {array.dtype}, which NNR cannot express (Table 15)")
    dims = array.shape or (1,)
    options = config.for_tensor(name)
    if dims[0] == 1 or prod(dims[1:]) == 1:
        options = replace(options, scan_order=0)  # errata G2: no other order, and no entry points that agree
    planner = _Planner(name, array, dims, data_format, options, config)
    if not data_format.is_float:
        return planner.integer()
    if options.exact is None and sum(extent > 1 for extent in dims) < 2:
        return planner.fine()
    if options.exact:
        return planner.exact()
    return planner.lossy(options.step_qp(config.qp_density), options.dependent_quantization)


@dataclass(frozen=True)
class _Planner:
    """The facts about one tensor, and one method for each way to code it."""

    name: str
    array: Array
    dims: tuple[int, ...]
    data_format: DecompressedDataFormat
    options: TensorOptions
    config: EncoderConfig

    @property
    def bounds(self) -> tuple[Any, Any]:
        """Least and largest value."""
        return self.array.min(), self.array.max()

    def _plan(self, payload_type: PayloadType, base: DecompressedDataFormat) -> TensorPlan:
        """A plan in the tensor's own format; in profile 0, which has no other, in the 32-bit format ``base``."""
        data_format = base if self.config.profile == 0 else self.data_format
        return TensorPlan(self.name, self.dims, payload_type, data_format, self.options)

    def integer(self) -> TensorPlan:
        """The values as levels."""
        low, high = (int(bound) for bound in self.bounds)
        if low < -(1 << 31) or high >= 1 << 31:
            raise EncodeError(
                f"tensor {self.name!r} has integers outside of int32 ({low}..{high}), which are not coded (7.3.2)"
            )
        return self._plan(NNR_PT_INT, F.TENSOR_INT32)

    def raw(self) -> TensorPlan:
        """The values as float32, which only float64 needs to be rounded to."""
        if self.data_format is F.TENSOR_FLOAT64:
            finite = np.abs(self.array[np.isfinite(self.array)])
            if finite.size and not _in_float32(float(finite.max())):
                raise EncodeError(
                    f"tensor {self.name!r} has values outside the range of float32, the type of raw parameters (7.3.4)"
                )
        return self._plan(NNR_PT_RAW_FLOAT, F.TENSOR_FLOAT32)

    def exact(self) -> TensorPlan:
        """The values bit for bit."""
        plan = self.raw()
        if self.data_format is F.TENSOR_FLOAT64:
            rounded = self.array.astype(np.float32)
            if not np.array_equal(rounded, self.array, equal_nan=True):
                raise EncodeError(
                    f"tensor {self.name!r} has float64 values that float32, the type of raw parameters, "
                    "does not hold (7.3.4)"
                )
        return plan

    def fine(self) -> TensorPlan:
        """Uniform quantization at a power of two: at most 2**-19, and at most 2**-16 of the largest value.

        Values that this does not suit (float16, large, tiny, not finite) are kept as float32. Nothing else is, though
        it were smaller, because NNCodec 2.1.3 cannot read a unit that follows one of NNR_PT_RAW_FLOAT.
        """
        low, high = (float(bound) for bound in self.bounds)
        largest = max(high, -low)
        if largest == 0:
            return self.lossy(FINE_EXPONENT << self.config.qp_density, dependent=False)
        if self.data_format is F.TENSOR_FLOAT16 or not largest < 2.0**11:
            return self.raw()
        exponent = min(FINE_EXPONENT, frexp(largest)[1] - 1 + FINE_RELATIVE_EXPONENT)
        if exponent < -32:
            return self.raw()
        return self.lossy(exponent << self.config.qp_density, dependent=False)

    def lossy(self, qp: int, dependent: bool) -> TensorPlan:
        """A step at which every decoded value is exact in the tensor's type, as 7.3.3 asks.

        level * mul has to fit the significand. Where it would not, the step is made a power of two and quantization
        uniform: then a value too large for the significand is itself a multiple of the step, and is coded as it is.
        """
        low, high = (float(bound) for bound in self.bounds)
        if not (np.isfinite(low) and np.isfinite(high)):
            raise EncodeError(
                f"tensor {self.name!r} has not-a-number or infinite values; a rule with exact=true keeps them"
            )
        plan = self._plan(NNR_PT_FLOAT, F.TENSOR_FLOAT32)
        info = np.finfo(DTYPES[plan.data_format])
        density = self.config.qp_density
        largest = max(high, -low)
        if not _is_exact(largest, qp, density, info):
            qp, dependent = qp - qp % (1 << density), False
        if step_size(qp, density) < float(info.tiny):
            qp = int(info.minexp) << density
        step = step_size(qp, density)
        if largest / step >= (1 << 30) - 2:
            raise EncodeError(
                f"tensor {self.name!r} reaches {largest:g}, more than 2**30 steps of {step:g}: "
                "choose a larger qp or exact=true"
            )
        return replace(plan, qp=qp, dq_flag=int(dependent), step=step)


def check_name(name: str) -> None:
    """Raise EncodeError for a name that the syntax has no place for, or decoders with default limits refuse."""
    if not isinstance(name, str):
        raise EncodeError(f"tensor {name!r}: a name is a string")
    if "\0" in name:
        raise EncodeError(f"tensor {name!r}: a name cannot hold a zero character (6.1.3)")
    if len(name.encode(errors="replace")) > READABLE.max_name_bytes:
        raise EncodeError(f"tensor {name[:40]!r}...: decoders with default limits refuse a name of this length")


def made_dependent(plan: TensorPlan, array: Array, qp_density: int) -> TensorPlan | None:
    """The plan of a uniformly quantized tensor for a unit of dq_flag 1: half the step, so that no error grows.

    Each state of dependent quantization has every other multiple of the step. None where they would not be exact.
    """
    qp = plan.qp - (1 << qp_density)
    step = step_size(qp, qp_density)
    largest = float(np.abs(array).max())
    info = np.finfo(DTYPES[plan.data_format])
    legal = qp >= -(1 << (5 + qp_density)) and step >= float(info.tiny) and largest / step < (1 << 30) - 2
    if not legal or not _is_exact(largest, qp, qp_density, info):
        return None
    return replace(plan, qp=qp, step=step, dq_flag=1, nearest=True)


def _is_exact(largest: float, qp: int, qp_density: int, info: np.finfo[Any]) -> bool:
    """Whether each level up to the largest value, times mul, fits the significand (7.3.3, 7.3.6)."""
    mul = (1 << qp_density) + qp % (1 << qp_density)
    odd = mul // (mul & -mul)
    return (largest / step_size(qp, qp_density) + 2) * odd < 2.0 ** (info.nmant + 1)


def _in_float32(largest: float) -> bool:
    """Whether float32 has a normal number near the largest value, or that is 0."""
    info = np.finfo(np.float32)
    return largest == 0 or float(info.tiny) <= largest <= float(info.max)
