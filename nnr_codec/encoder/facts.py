"""Facts about one tensor, on which its plan depends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import quantizer
from ..config import EncoderConfig, TensorOptions
from ..constants import DecompressedDataFormat
from ..dtypes import StoredType, bit_patterns, stored_type
from ..errors import EncodeError
from ..limits import Limits
from ..model import Array
from ..sideinfo.codes import kept_items
from ..sideinfo.narrow import as_floats, float32_of
from ..sideinfo.record import Code, RawCode, Repeats, TensorRecord
from ..tensor.quant import DTYPES
from .distinct_values import Distinct, count_patterns, distinct
from .effort import EFFORTS, Effort
from .plan import DEFAULT_UNARY, TOOLS, Coding, Exact, SourceTensor, TensorPlan, Tools
from .repeats import kept_dims
from .sensitivity import Importance, importance

F = DecompressedDataFormat

#: Smallest format for each integer type; NNR has only signed integers (Table 15).
INTEGER_FORMATS: dict[str, DecompressedDataFormat] = {
    "bool": F.TENSOR_INT2,
    "int2": F.TENSOR_INT2,
    "uint2": F.TENSOR_INT3,
    "int4": F.TENSOR_INT4,
    "uint4": F.TENSOR_INT8,
    "int8": F.TENSOR_INT8,
    "uint8": F.TENSOR_INT16,
    "int16": F.TENSOR_INT16,
    "uint16": F.TENSOR_INT32,
    "int32": F.TENSOR_INT32,
    "uint32": F.TENSOR_INT64,
    "int64": F.TENSOR_INT64,
    "uint64": F.TENSOR_INT64,
}
#: Formats of integer types that numpy lacks.
NARROW_FORMATS = {F.TENSOR_INT2: "int2", F.TENSOR_INT4: "int4"}
#: Floats that are not listed are coded as float32.
FLOAT_FORMATS: dict[str, DecompressedDataFormat] = {
    "float16": F.TENSOR_FLOAT16,
    "float32": F.TENSOR_FLOAT32,
    "float64": F.TENSOR_FLOAT64,
}

DEFAULT_LIMITS = Limits()
#: Smallest number of parameters of a tensor with entry points for fast decoding, and of its rows of blocks.
FAST_SIZE, FAST_ROW = 1 << 16, 1 << 14
_TOOLS_OF = attrgetter(*TOOLS)


@dataclass(frozen=True, slots=True)
class TensorContext:
    """Constraints on one tensor from the rest of the bitstream.

    Parameters
    ----------
    index : int
        Index of the tensor in the model; the record of an empty tensor needs it.
    taken : frozenset of str
        Ids that :meth:`TensorFacts.part_id` must not return.
    room : int
        Maximum bytes of the record for this tensor.
    is_update : bool
        The array is a difference; its unit must define it completely.
    is_bits : bool
        The array is a difference of bit patterns.
    out_of_reach : bool
        QuantizationParameter is chosen for other tensors, and leaves no step size for this one.
    by_exponent : bool
        The difference of bit patterns is sorted by the exponents of the base.
    """

    index: int = 0
    taken: frozenset[str] = frozenset()
    room: int = 0
    is_update: bool = False
    is_bits: bool = False
    out_of_reach: bool = False
    by_exponent: bool = False


#: Context without constraints.
ALONE = TensorContext()


@dataclass(eq=False)
class TensorFacts:
    """Facts about one tensor. Facts that require a pass over the values are computed on first use, and cached.

    Parameters
    ----------
    name : str
    array : ndarray
        In native byte order and C order.
    stored : StoredType
    options : TensorOptions
        Options of the tensor. The encoder chooses the coding tools whose options are None.
    config : EncoderConfig
    context : TensorContext
    importance : Importance or None
        Cost of errors, if given by the caller.
    """

    name: str
    array: Array
    stored: StoredType
    options: TensorOptions
    config: EncoderConfig
    context: TensorContext = ALONE
    importance: Importance | None = None

    @property
    def dims(self) -> tuple[int, ...]:
        """Shape as coded."""
        return self.array.shape or (1,)

    @cached_property
    def is_fine(self) -> bool:
        """True if quantization uses the fine step sizes of vectors."""
        vector = len([extent for extent in self.dims if extent > 1]) < 2
        return vector and self.options.exact is None and self.options.fine_vectors

    def with_options(self, options: Mapping[str, Any]) -> TensorFacts:
        """Return the facts about the same tensor with other options."""
        return replace(self, options=self.options.replaced(options))

    @property
    def effort(self) -> Effort:
        """Encoder choices at the configured effort."""
        return EFFORTS[self.config.effort]

    @property
    def tools(self) -> Tools:
        """Coding tools from the options, with defaults for options that are None."""
        return _tools(self.config.effort, self.is_fine, *_TOOLS_OF(self.options))

    @cached_property
    def patterns(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Bit patterns of the items as unsigned integers, shape (n,)."""
        return self.array.reshape(-1).view(self.stored.pattern)

    @cached_property
    def pattern_counts(self) -> npt.NDArray[np.int64] | None:
        """Count of each bit pattern of items of at most 16 bits, shape (2**bits,); None for wider items."""
        return count_patterns(self.patterns) if self.patterns.itemsize <= 2 else None

    @cached_property
    def distinct(self) -> Distinct | None:
        """Distinct items; None if they are too many."""
        return distinct(self.patterns, self.stored, DEFAULT_LIMITS.max_codebook, counts=self.pattern_counts)

    @cached_property
    def bounds(self) -> tuple[Any, Any]:
        """Smallest and largest value as Python numbers; at least one is not finite if any value is not."""
        if self.stored.kind != "f":
            return int(self.array.min()), int(self.array.max())
        return self._survey[:2]

    @property
    def energy(self) -> tuple[float, int]:
        """Sum of squares of finite floats (equal on all machines), and number of nonzero values."""
        return self._survey[2:4]

    @property
    def smallest(self) -> float:
        """Smallest nonzero magnitude of floats; infinity if there is none."""
        return self._survey[4]

    @cached_property
    def _survey(self) -> tuple[float, float, float, int, float]:
        floats = self.floats.reshape(-1)
        wide: quantizer.Real = floats if floats.itemsize > 2 else floats.astype(np.float32)
        return quantizer.survey(wide)

    @property
    def floats(self) -> npt.NDArray[np.floating[Any]]:
        """Values in a numpy float type."""
        array: npt.NDArray[Any] = self.array
        return array if self.stored.name in FLOAT_FORMATS else self._widened

    @cached_property
    def _widened(self) -> npt.NDArray[np.float32]:
        return float32_of(self.stored, self.patterns).reshape(self.array.shape)

    @cached_property
    def value_set(self) -> npt.NDArray[np.floating[Any]]:
        """Flat values in a numpy float type, without repetition if items have at most 16 bits."""
        counts = self.pattern_counts
        if counts is None:
            return self.floats.reshape(-1)
        patterns = (self.distinct.patterns if self.distinct else counts.nonzero()[0]).astype(self.stored.pattern)
        return as_floats(self.stored, patterns.view(self.stored.dtype))

    @property
    def data_format(self) -> DecompressedDataFormat:
        """Format nearest to the type: of 32 bits in profile 0 (7.2), float32 for fixed-point numbers."""
        if self.stored.kind == "f":
            wide = self.config.profile == 0 or self.config.fixed_point is not None
            return F.TENSOR_FLOAT32 if wide else FLOAT_FORMATS.get(self.stored.name, F.TENSOR_FLOAT32)
        return F.TENSOR_INT32 if self.config.profile == 0 else INTEGER_FORMATS[self.stored.name]

    def plan(self, coding: Coding, data_format: DecompressedDataFormat | None = None) -> TensorPlan:
        """Return a plan without a code. It has a record if the unit alone would decode to another type or shape.

        Without side information, int2 and int4 decode to int8.
        """
        if data_format is None:
            data_format = self.data_format
        record, is_narrow = None, NARROW_FORMATS.get(data_format) == self.stored.name and not self.config.side_info
        if (DTYPES[data_format] != self.stored.dtype and not is_narrow) or not self.array.ndim:
            record = TensorRecord(self.stored.name, None if self.array.ndim else ())
        return TensorPlan(
            self.name, self.dims, data_format, coding, self.tools, SourceTensor(self.array.nbytes), record
        )

    def part_id(self, part: str) -> str:
        """Return the id of a unit with a part of the tensor, ``NAME#part``; with more ``#`` if that id is used.

        A name that is too long for the suffix is shortened.
        """
        hashes = "#"
        while True:
            suffix = hashes + part
            found = self.name.encode()[: DEFAULT_LIMITS.max_name_bytes - len(suffix)].decode(errors="ignore") + suffix
            if found not in self.context.taken:
                return found
            hashes += "#"

    def kept(self, repeats: Repeats) -> TensorFacts:
        """Return the facts about the items of the tensor that are not copies of others."""
        items = kept_items(repeats, self.stored, bit_patterns(self.array), self.array.shape).view(self.array.dtype)
        array = items.reshape(kept_dims(repeats, self.array.shape))
        return replace(self, array=array, options=_in_order(self.options, array.shape))

    def coded(self, code: Code, unary: int | None = None) -> TensorPlan:
        """Return a plan with a code. Its unit has levels of the tensor's shape, or float32 words for RawCode.

        ``unary`` replaces the cabac_unary_length_minus1 of the options if it suits the levels better.
        """
        raw = isinstance(code, RawCode)
        options = self.tools
        if unary is not None:
            left = options.open - {"cabac_unary_length_minus1"}
            options = replace(options, cabac_unary_length_minus1=unary, open=left)
        shape = self.array.shape if raw or not self.array.ndim else None
        return TensorPlan(
            self.name,
            (-(-self.array.nbytes // 4),) if raw else self.dims,
            F.TENSOR_FLOAT32 if raw else F.TENSOR_INT32,
            Exact(code),
            options,
            SourceTensor(self.array.nbytes),
            TensorRecord(self.stored.name, shape, code),
        )


def tensor_facts(
    name: str, array: Array, config: EncoderConfig, context: TensorContext = ALONE, axis: int = 0
) -> TensorFacts:
    """Return the facts about a tensor, with its dimension ``axis`` moved to the front.

    Raises EncodeError for dimensions or a type that cannot be coded.
    """
    if array.ndim > DEFAULT_LIMITS.max_dims:
        raise EncodeError(
            f"tensor {name!r} has {array.ndim} dimensions, which exceeds the default limits of decoders", tensor=name
        )
    stored = stored_type(array.dtype)
    if stored is None:
        raise EncodeError(f"tensor {name!r} has type {array.dtype}, which is not supported", tensor=name)
    options = config.for_tensor(name)
    known = importance(name, array.shape, config) if config.sensitivity or config.hessians else None
    if axis:
        if axis >= array.ndim:
            raise EncodeError(f"the block of {name!r} has axis {axis}, but the tensor has {array.ndim} dimensions")
        array, known = native(np.moveaxis(array, axis, 0)), known.turned(axis) if known else None
    if options.fast_decode and options.scan_order is None:
        options = replace(options, scan_order=fast_scan_order(array.shape))
    options = _in_order(options, array.shape or (1,))
    return TensorFacts(name, array, stored, options, config, context, known)


def _in_order(options: TensorOptions, dims: tuple[int, ...]) -> TensorOptions:
    """Return options without a block scan for dimensions whose order it does not change (errata G2)."""
    if options.scan_order and (dims[0] == 1 or prod(dims[1:]) == 1):
        return replace(options, scan_order=0)
    return options


def fast_scan_order(dims: Sequence[int]) -> int | None:
    """Return the scan order for fast decoding, or None for a tensor that is too small.

    Blocks of 64 are halved, down to 8, while there are fewer than 16 rows of blocks and a smaller row of blocks keeps
    2 * FAST_ROW parameters.
    """
    size, order = prod(dims), 4
    width = prod(dims[1:])
    if size < FAST_SIZE or 64 * width < FAST_ROW:
        return None
    while order > 1 and dims[0] < 16 * (4 << order) and width * (2 << order) >= 2 * FAST_ROW:
        order -= 1
    return order if 4 << order < dims[0] else None


@lru_cache(maxsize=256)
def _tools(level: int, is_fine: bool, *options: Any) -> Tools:
    effort = EFFORTS[level]
    given = {tool: option for tool, option in zip(TOOLS, options, strict=True) if option is not None}
    free = {"row_skipping": effort.rows, "cabac_unary_length_minus1": effort.unary, "scan_order": effort.scans}
    left = {tool for tool, is_free in free.items() if is_free}
    default = {"cabac_unary_length_minus1": 0 if is_fine else DEFAULT_UNARY}  # vectors have few and large levels
    return Tools(
        **{"choose_shift_parameters": effort.shift_parameters, **default, **given},
        open=frozenset(left - given.keys()),
        thorough=effort.scans,
    )


def native(array: Array) -> Array:
    """Return the items in native byte order, C order and aligned; without a copy if they already are."""
    if array.dtype.isnative and array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def check_name(name: str) -> None:
    """Raise EncodeError for a name that the syntax cannot represent, or that exceeds the default limits of decoders."""
    if not isinstance(name, str):
        raise EncodeError(f"tensor name {name!r} must be a string")
    if "\0" in name:
        raise EncodeError(f"tensor name {name!r} must not contain a zero character (6.1.3)", tensor=name)
    try:
        fits = fits_name(name)
    except UnicodeEncodeError:
        raise EncodeError(f"tensor name {name!r} must be valid Unicode", tensor=name) from None
    if not fits:
        raise EncodeError(
            f"tensor name {name[:40]!r}... exceeds the default limits of decoders; shorten it", tensor=name
        )


def fits_name(name: str) -> bool:
    """Return whether decoders with default limits accept an id of this length."""
    return len(name.encode()) <= DEFAULT_LIMITS.max_name_bytes
