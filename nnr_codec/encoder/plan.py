"""Plan of one tensor: changes before it is coded, its quantizer and coding, and the tools that code levels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..constants import NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_RAW_FLOAT, DecompressedDataFormat, PayloadType
from ..model import Array
from ..sideinfo.record import Code, RawCode, TensorRecord
from ..syntax.structures import IntegerCodebook
from .sensitivity import Importance

#: Names of the tools that options may leave open.
TOOLS = ("scan_order", "row_skipping", "cabac_unary_length_minus1", "choose_shift_parameters")
#: Default of cabac_unary_length_minus1 for matrices.
DEFAULT_UNARY = 10


@dataclass(frozen=True)
class Tools:
    """The tools that code levels; fields are those of :class:`TensorOptions`, without any left open.

    ``open`` are the names of those that may be replaced once the levels are known; ``thorough`` is whether all levels
    are looked at for that.
    """

    scan_order: int = 0
    row_skipping: bool = False
    cabac_unary_length_minus1: int = DEFAULT_UNARY
    choose_shift_parameters: bool = True
    open: frozenset[str] = frozenset()
    thorough: bool = False


# ------------------------------------------------------------------------------------------------ quantizers
@dataclass(slots=True)  # unfrozen: frozen ones take four times as long to make, and there is one for each tensor
class Uniform:
    """Uniform quantization: levels are multiples of a step.

    Parameters
    ----------
    qp : int
        As coded, QuantizationParameter included.
    step : float
        stepSize.
    rate : float
        Squared steps that a bit is worth; 0 for the least error.
    passes : int
        Number of searches of each block of parameters for the least error and rate.
    """

    dq_flag: ClassVar[int] = 0

    qp: int
    step: float
    rate: float = 0.0
    passes: int = 1


@dataclass(slots=True)
class Dependent(Uniform):
    """Dependent quantization (10.2.1.5).

    ``nearest`` takes the nearest value of each state, instead of a search for the least error of all: no error exceeds
    the step.
    """

    dq_flag: ClassVar[int] = 1

    nearest: bool = False


@dataclass(slots=True)
class FixedPoint:
    """Numbers of a fixed-point format: multiples of 2**-fraction, from ``least`` to ``most`` of it.

    ``saturated`` is the number of values beyond the format, and the largest of them; None for none.
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
    """Entries of a codebook with borders between them, in steps: a value at a border has the next entry."""

    dq_flag: ClassVar[int] = 0
    rate: ClassVar[float] = 0.0

    qp: int
    step: float
    borders: tuple[float, ...]


Quantizer = Uniform | FixedPoint | Borders


# ------------------------------------------------------------------------------------------------ codings
class _Unquantized:
    """Codings without a step."""

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
    """Levels, or float32 words, from which a code of side information restores every bit."""

    code: Code

    @property
    def payload_type(self) -> PayloadType:
        """RawCode stores words, other codes levels."""
        return NNR_PT_RAW_FLOAT if isinstance(self.code, RawCode) else NNR_PT_INT


@dataclass(slots=True)
class Quantized:
    """Levels times a step, or the entries of a codebook times a step (7.3.3, 7.3.6).

    ``importance`` is the cost of errors where they do not cost the same.
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
        first_tensor_dimension_shift: the dimension of the tensor that is coded first.
    divisor : ndarray or None
        Divides each index of that dimension, shape (dims[0],).
    values : ndarray or None
        Coded instead of the tensor, with its shape and type.
    """

    nbytes: int = 0
    shift: int = 0
    divisor: Array | None = field(default=None, compare=False)
    values: Array | None = field(default=None, compare=False)


@dataclass(slots=True)
class TensorPlan:
    """The decisions about one tensor.

    Parameters
    ----------
    name : str
    dims : tuple of int
        As coded; a scalar is coded as one parameter (errata I8), an empty tensor not at all.
    data_format : DecompressedDataFormat
    coding : Raw, Integers, Exact or Quantized
    tools : Tools
    source : SourceTensor
    record : TensorRecord or None
        Side information, where the unit alone does not define the tensor.
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
        """nnr_compressed_data_unit_payload_type of a unit of its own."""
        return self.coding.payload_type

    @property
    def qp(self) -> int:
        """0 when nothing is quantized; likewise step, rate and dq_flag."""
        return self.coding.quantizer.qp

    @property
    def step(self) -> float:
        """stepSize."""
        return self.coding.quantizer.step

    @property
    def rate(self) -> float:
        """Squared steps that a bit is worth."""
        return self.coding.quantizer.rate

    @property
    def dq_flag(self) -> int:
        """1 for dependent quantization."""
        return self.coding.quantizer.dq_flag

    @property
    def codebook(self) -> IntegerCodebook | None:
        """The codebook, if there is one."""
        return self.coding.codebook

    @property
    def importance(self) -> Importance | None:
        """The cost of errors, where they do not cost the same."""
        return self.coding.importance

    @property
    def code(self) -> Code | None:
        """The code of side information, if there is one."""
        return self.record.code if self.record else None

    @property
    def unit_id(self) -> str:
        """The topology element id of its own unit."""
        return (self.record.unit if self.record else None) or self.name

    @property
    def has_unit(self) -> bool:
        """False if the record alone defines the tensor."""
        return not self.record or self.record.index is None


def as_uniform(plan: TensorPlan) -> TensorPlan:
    """Return a plan with the levels of uniform quantization where those of dependent quantization were planned."""
    coding = plan.coding
    if not isinstance(coding, Quantized) or not isinstance(coding.quantizer, Dependent):
        return plan
    one = coding.quantizer
    return replace(plan, coding=replace(coding, quantizer=Uniform(one.qp, one.step, one.rate, one.passes)))
