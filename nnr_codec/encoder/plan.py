"""What to do with each tensor: the payload type, the format and the step that its type and the options ask for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import frexp, log2
from typing import Any

import numpy as np

from ..config import EncoderConfig, TensorOptions
from ..constants import NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_RAW_FLOAT, DecompressedDataFormat, PayloadType
from ..errors import EncodeError
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
        Completed: qp and dependent_quantization as they will be coded.
    step : float
        stepSize; 0 when nothing is quantized.
    raw_if_smaller : bool
        Keep the tensor exactly when its coded payload is not smaller.
    """

    name: str
    dims: tuple[int, ...]
    payload_type: PayloadType
    data_format: DecompressedDataFormat
    options: TensorOptions
    step: float = 0.0
    raw_if_smaller: bool = False


def plan_tensor(name: str, array: Array, config: EncoderConfig) -> TensorPlan:
    """Decide how ``array`` is coded; EncodeError names the tensor when it cannot be coded as asked."""
    options = config.for_tensor(name)
    if "\0" in name:
        raise EncodeError(f"tensor {name!r}: a name cannot hold a zero character (6.1.3)")
    if array.size == 0:
        raise EncodeError(f"tensor {name!r} is empty, which NNR cannot express")
    dims = array.shape or (1,)
    data_format = (INTEGER_FORMATS | FLOAT_FORMATS).get(array.dtype.name)
    if data_format is None:
        raise EncodeError(f"tensor {name!r} has type {array.dtype}, which NNR cannot express (Table 15)")
    options = replace(options, scan_order=options.scan_order if _is_matrix(dims) else 0)
    if not data_format.is_float:
        return _integer_plan(name, array, dims, data_format, options, config)
    if options.exact is None and sum(extent > 1 for extent in dims) < 2:
        return _fine_plan(name, array, dims, data_format, options, config)
    if options.exact:
        return _exact_plan(name, array, dims, data_format, options, config)
    return _lossy_plan(name, array, dims, data_format, options, config)


def _is_matrix(dims: tuple[int, ...]) -> bool:
    return len(dims) > 1 and dims[0] > 1 and any(extent > 1 for extent in dims[1:])


def _bounds(array: Array) -> tuple[Any, Any]:
    return array.min(), array.max()


def _integer_plan(
    name: str,
    array: Array,
    dims: tuple[int, ...],
    data_format: DecompressedDataFormat,
    options: TensorOptions,
    config: EncoderConfig,
) -> TensorPlan:
    low, high = (int(bound) for bound in _bounds(array))
    if low < -(1 << 31) or high >= 1 << 31:
        raise EncodeError(
            f"tensor {name!r} has integers of more than 32 bits ({low}..{high}), which are not coded (7.3.2)"
        )
    return TensorPlan(name, dims, NNR_PT_INT, F.TENSOR_INT32 if config.profile == 0 else data_format, options)


def _exact_plan(
    name: str,
    array: Array,
    dims: tuple[int, ...],
    data_format: DecompressedDataFormat,
    options: TensorOptions,
    config: EncoderConfig,
) -> TensorPlan:
    if data_format is F.TENSOR_FLOAT64:
        finite = np.abs(array[np.isfinite(array)])
        if finite.size and float(finite.max()) > float(np.finfo(np.float32).max):
            raise EncodeError(f"tensor {name!r} has values beyond float32, the type of raw parameters (7.3.4)")
    return TensorPlan(name, dims, NNR_PT_RAW_FLOAT, F.TENSOR_FLOAT32 if config.profile == 0 else data_format, options)


def _fine_plan(
    name: str,
    array: Array,
    dims: tuple[int, ...],
    data_format: DecompressedDataFormat,
    options: TensorOptions,
    config: EncoderConfig,
) -> TensorPlan:
    """Uniform quantization at a power of two: at most 2**-19, and at most 2**-16 of the largest value.

    Values that this does not suit (float16, not finite, all tiny) are kept exactly.
    """
    low, high = (float(bound) for bound in _bounds(array))
    largest = max(high, -low)
    if data_format is F.TENSOR_FLOAT16 or not 0 < largest < 2.0**11:
        return _exact_plan(name, array, dims, data_format, options, config)
    exponent = min(FINE_EXPONENT, frexp(largest)[1] - 1 + FINE_RELATIVE_EXPONENT)
    if exponent < -32:
        return _exact_plan(name, array, dims, data_format, options, config)
    options = replace(options, qp=exponent << config.qp_density, dependent_quantization=False)
    plan = _lossy_plan(name, array, dims, data_format, options, config)
    return replace(plan, raw_if_smaller=True)


def _lossy_plan(
    name: str,
    array: Array,
    dims: tuple[int, ...],
    data_format: DecompressedDataFormat,
    options: TensorOptions,
    config: EncoderConfig,
) -> TensorPlan:
    """A step at which every decoded value is exact in the tensor's type, as 7.3.3 asks.

    level * mul has to fit the significand. Where it would not, the step is made a power of two and quantization
    uniform: then a value too large for the significand is itself a multiple of the step, and is coded as it is.
    """
    low, high = (float(bound) for bound in _bounds(array))
    if not (np.isfinite(low) and np.isfinite(high)):
        raise EncodeError(
            f"tensor {name!r} has not-a-number or infinite values; keep it exactly with a rule 'exact=true'"
        )
    out = F.TENSOR_FLOAT32 if config.profile == 0 else data_format
    info = np.finfo(DTYPES[out])
    unit = 1 << config.qp_density
    step = step_size(options.qp, config.qp_density)
    largest = max(high, -low)
    if (largest / step + 2) * (unit + options.qp % unit) >= 2.0 ** (info.nmant + 1):
        options = replace(options, qp=options.qp - options.qp % unit, dependent_quantization=False)
        step = step_size(options.qp, config.qp_density)
    if step < float(info.tiny):
        options = replace(options, qp=round(log2(float(info.tiny))) * unit)
        step = step_size(options.qp, config.qp_density)
    if largest / step >= (1 << 30) - 2:
        raise EncodeError(
            f"tensor {name!r} reaches {largest:g}, more than 2**30 steps of {step:g}: choose a larger qp or exact=true"
        )
    return TensorPlan(name, dims, NNR_PT_FLOAT, out, options, step)
