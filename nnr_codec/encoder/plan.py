"""Plan of one tensor: changes before coding, quantizer, coding, and the tools that code levels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import ClassVar

from ..constants import NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_RAW_FLOAT, DecompressedDataFormat, PayloadType
from ..model import Array
from ..sideinfo.record import Code, RawCode, TensorRecord
from ..syntax.structures import IntegerCodebook
from .sensitivity import Importance

#: Names of tools that the encoder chooses if no option does.
TOOLS = ("scan_order", "row_skipping", "cabac_unary_length_minus1", "choose_shift_parameters")
#: Default of cabac_unary_length_minus1 for matrices.
DEFAULT_UNARY = 10


@dataclass(frozen=True)
class Tools:
    """Tools that code levels; the fields equal the fields of :class:`TensorOptions`, but all have values.

    ``open`` has the names of tools that may be replaced when the levels are known. With ``thorough``, this choice uses
    all levels instead of a sample.
    """

    scan_order: int = 0
    row_skipping: bool = False
    cabac_unary_length_minus1: int = DEFAULT_UNARY
    choose_shift_parameters: bool = True
    open: frozenset[str] = frozenset()
    thorough: bool = False


# ------------------------------------------------------------------------------------------------ quantizers
@dataclass(slots=True)  # not frozen: construction, once for each tensor, would take four times as long
class Uniform:
    """Uniform quantization: levels are multiples of a step size.

    Parameters
    ----------
    qp : int
        qp as coded, including QuantizationParameter.
    step : float
        stepSize.
    rate : float
        Value of a bit in squared step sizes; 0 minimizes the error.
    passes : int
        Number of searches of each block of parameters for the lowest error and rate.
    """

    dq_flag: ClassVar[int] = 0

    qp: int
    step: float
    rate: float = 0.0
    passes: int = 1


@dataclass(slots=True)
class Dependent(Uniform):
    """Dependent quantization (10.2.1.5).

    ``nearest`` chooses the nearest value in each state instead of searching the lowest total error: no error exceeds
    the step size.
    """

    dq_flag: ClassVar[int] = 1

    nearest: bool = False


@dataclass(slots=True)
class FixedPoint:
    """Numbers of a fixed-point format: multiples of 2**-fraction, with factors from ``least`` to ``most``.

    ``saturated`` is the number of out-of-range values and the one with the largest magnitude; None without such values.
    """

    dq_flag: ClassVar[int] = 0
    rate: ClassVar[float] = 0.0

    qp: int
    step: float
    fraction: int
    least: int
    most: int
    saturated: tuple[int, float] | None = None


@dataclass(slots=True)
class Borders:
    """Entries of a codebook with borders between them, in step sizes. A value at a border gets the next entry."""

    dq_flag: ClassVar[int] = 0
    rate: ClassVar[float] = 0.0

    qp: int
    step: float
    borders: tuple[float, ...]


Quantizer = Uniform | FixedPoint | Borders


# ------------------------------------------------------------------------------------------------ codings
class _Unquantized:
    """Base class of codings without a step size."""

    __slots__ = ()
    quantizer: ClassVar[Uniform] = Uniform(0, 0.0)
    codebook: ClassVar[None] = None
    importance: ClassVar[None] = None


@dataclass(slots=True)
class Raw(_Unquantized):
    """Floats as float32 (7.3.4)."""

    payload_type: ClassVar[PayloadType] = NNR_PT_RAW_FLOAT


@dataclass(slots=True)
class Integers(_Unquantized):
    """Integers as levels (7.3.2)."""

    payload_type: ClassVar[PayloadType] = NNR_PT_INT


@dataclass(slots=True)
class Exact(_Unquantized):
    """Levels or float32 words from which a side-information code restores all bits."""

    code: Code

    @property
    def payload_type(self) -> PayloadType:
        """Payload type of the unit: words for RawCode, levels for other codes."""
        return NNR_PT_RAW_FLOAT if isinstance(self.code, RawCode) else NNR_PT_INT


@dataclass(slots=True)
class Quantized:
    """Levels or codebook entries, times a step size (7.3.3, 7.3.6).

    ``importance`` is the cost of errors, if it differs between parameters.
    """

    payload_type: ClassVar[PayloadType] = NNR_PT_FLOAT

    quantizer: Quantizer
    codebook: IntegerCodebook | None = None
    importance: Importance | None = None


Coding = Raw | Integers | Exact | Quantized


@dataclass(slots=True)
class SourceTensor:
    """Changes to a tensor before it is coded.

    Parameters
    ----------
    nbytes : int
        Bytes of the unchanged tensor.
    shift : int
        first_tensor_dimension_shift: dimension of the tensor that is coded first.
    divisor : ndarray or None
        Divisor of each index of that dimension, shape (dims[0],).
    values : ndarray or None
        Coded instead of the tensor, with its shape and type.
    """

    nbytes: int = 0
    shift: int = 0
    divisor: Array | None = field(default=None, compare=False)
    values: Array | None = field(default=None, compare=False)


@dataclass(slots=True)
class TensorPlan:
    """Decisions about one tensor.

    Parameters
    ----------
    name : str
    dims : tuple of int
        Coded dimensions; a scalar is coded as one parameter (errata I8), an empty tensor is not coded.
    data_format : DecompressedDataFormat
    coding : Raw, Integers, Exact or Quantized
    tools : Tools
    source : SourceTensor
    record : TensorRecord or None
        Side information, if the unit does not define the tensor completely.
    """

    name: str
    dims: tuple[int, ...]
    data_format: DecompressedDataFormat
    coding: Coding
    tools: Tools
    source: SourceTensor
    record: TensorRecord | None = None

    @property
    def payload_type(self) -> PayloadType:
        """nnr_compressed_data_unit_payload_type of a separate unit."""
        return self.coding.payload_type

    @property
    def qp(self) -> int:
        """Quantization parameter; 0 without quantization, like step, rate and dq_flag."""
        return self.coding.quantizer.qp

    @property
    def step(self) -> float:
        """stepSize."""
        return self.coding.quantizer.step

    @property
    def rate(self) -> float:
        """Cost of a bit in squared step sizes."""
        return self.coding.quantizer.rate

    @property
    def dq_flag(self) -> int:
        """1 for dependent quantization."""
        return self.coding.quantizer.dq_flag

    @property
    def codebook(self) -> IntegerCodebook | None:
        """Codebook, or None."""
        return self.coding.codebook

    @property
    def importance(self) -> Importance | None:
        """Cost of errors, or None if it is uniform."""
        return self.coding.importance

    @property
    def code(self) -> Code | None:
        """Code of side information, or None."""
        return self.record.code if self.record else None

    @property
    def parameters(self) -> int:
        """Number of parameters of the tensor; a unit without copied items, or with packed bytes, has fewer numbers."""
        return prod(self.dims if self.record is None or self.record.shape is None else self.record.shape)

    @property
    def unit_id(self) -> str:
        """Topology element id of a separate unit."""
        return (self.record.unit if self.record else None) or self.name

    @property
    def has_unit(self) -> bool:
        """False if the record alone defines the tensor."""
        return not self.record or self.record.index is None


def as_uniform(plan: TensorPlan) -> TensorPlan:
    """Return the plan with uniform instead of dependent quantization."""
    coding = plan.coding
    if not isinstance(coding, Quantized) or not isinstance(coding.quantizer, Dependent):
        return plan
    one = coding.quantizer
    return replace(plan, coding=replace(coding, quantizer=Uniform(one.qp, one.step, one.rate, one.passes)))
