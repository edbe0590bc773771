"""Codec ``nnr`` of numcodecs, for arrays of zarr format 2, and the coding of chunks for both formats.

>>> zarr.create_array(store, data=array, zarr_format=2, compressors=Nnr(max_error=1e-3))  # doctest: +SKIP

A chunk is a bitstream of one tensor with an empty name, or the name ``>`` if numcodecs has to restore big-endian bytes.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Unpack

import numpy as np

from .. import decode, encode
from ..config import TENSOR_GOALS, EncoderConfig, RuleOptions, check_options
from ..dtypes import STORED_TYPES, stored_type
from ..errors import EncodeError, FormatError, MissingDependencyError
from ..limits import Limits
from ..model import Array, Model

try:
    from numcodecs.abc import Codec
    from numcodecs.compat import ensure_bytes, ensure_contiguous_ndarray, ensure_ndarray_like, ndarray_copy
except ImportError:
    raise MissingDependencyError("the package numcodecs is required; pip install 'nnr_codec[zarr]'") from None

#: Names of the tensor of a chunk: in native byte order, which decoders choose, or restored as big-endian.
NATIVE, BIG = "", ">"
#: Options that lossless coding rejects.
LOSSY = (*TENSOR_GOALS, "exact", "dependent_quantization", "rate", "codebook")
#: Maximum size in bytes of the tensors of a bitstream if the size of the chunk is unknown; other codecs have 2 GiB too.
MAX_BYTES = (1 << 31) - 1


class ChunkOptions(RuleOptions, total=False):
    """Options of both codecs: tensor options and the effort of :class:`nnr_codec.EncoderConfig`."""

    effort: int


class Nnr(Codec):  # type: ignore[misc]  # numcodecs is not type-checked
    """Codec of numcodecs, lossless unless a goal is given.

    Parameters
    ----------
    **options
        ``effort``, and all fields of a :class:`nnr_codec.Rule`. Floats are quantized if there is a goal (``quality``,
        ``snr``, ``max_error`` or ``qp``); integers, booleans and dates are always lossless.

    Raises EncodeError for invalid values, TypeError for unknown options.
    """

    codec_id = "nnr"

    def __init__(self, **options: Unpack[ChunkOptions]) -> None:
        self._encoder = ChunkEncoder(type(self), options)
        self._options = dict(options)

    def get_config(self) -> dict[str, Any]:
        """Return the options and the id of the codec."""
        return {"id": self.codec_id, **self._options}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._options.items())})"

    def encode(self, buf: Any) -> bytes:
        """Return the bitstream of a contiguous array or buffer.

        Raises EncodeError for types other than booleans, integers, floats, dates and durations.
        """
        array = ensure_contiguous_ndarray(buf, flatten=False)
        if not array.flags.c_contiguous:  # numcodecs restores the memory, and zarr the shape
            array = array.T
        return self._encoder.encode(array, BIG if array.dtype.str[0] == ">" else NATIVE)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return the array of a bitstream, or copy it to ``out``, which must have its size.

        Raises BitstreamError for an invalid bitstream, FormatError for one that this codec has not written.
        """
        nbytes = None if out is None else ensure_ndarray_like(out).nbytes
        size = MAX_BYTES if nbytes is None else _needed(nbytes, nbytes)
        model = decode(ensure_bytes(buf), limits=_limits(size))
        array = _only_tensor(model, NATIVE, BIG)
        array = array.astype(array.dtype.newbyteorder(">" if BIG in model else "<"), copy=False)
        if nbytes not in (None, array.nbytes):
            raise FormatError(f"the chunk has {array.nbytes:,} bytes; out has {nbytes:,}")
        return ndarray_copy(array, out)


class ChunkEncoder:
    """Encoder of chunks, lossless without a goal and without ``exact=False``.

    Parameters
    ----------
    codec : type
        Class whose name appears in errors.
    options : ChunkOptions

    Raises EncodeError for invalid values, TypeError for unknown options.
    """

    def __init__(self, codec: type[Any], options: ChunkOptions) -> None:
        check_options(codec, options, ChunkOptions.__annotations__)
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        has_goal = any(goal in given for goal in TENSOR_GOALS)
        plain = {"exact": None if has_goal else True, "fine_vectors": False, "noise_shaping": False}
        self._floats = EncoderConfig(**{**plain, **given})
        self._lossless = EncoderConfig(**{name: given[name] for name in given if name not in LOSSY} | {"exact": True})

    def encode(self, array: Array, name: str = NATIVE) -> bytes:
        """Return the bitstream of an array of any byte order; dates and durations are coded as int64.

        Anything but finite floats is coded losslessly.
        """
        check_type(array.dtype)
        if array.dtype.kind in "mM":
            array = array.astype(array.dtype.newbyteorder("="), copy=False).view(np.int64)
        is_finite = STORED_TYPES[array.dtype.name].kind == "f" and np.isfinite(array).all()
        return encode({name: array}, self._floats if is_finite else self._lossless)


def check_type(dtype: np.dtype[Any]) -> None:
    """Raise EncodeError unless arrays of this type can be coded."""
    if stored_type(dtype) is None and dtype.kind not in "mM":
        raise EncodeError(f"the codec nnr does not support type {dtype}; it codes booleans, integers, floats and dates")


def decode_chunk(data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return the array of a bitstream in native byte order; its shape and type are checked before it is allocated.

    Raises BitstreamError for an invalid bitstream or another shape or type, FormatError for one without the tensor.
    """
    native, count = dtype.newbyteorder("="), prod(shape)
    coded = np.dtype(np.int64) if dtype.kind in "mM" else native
    limits = replace(_limits(_needed(count, count * dtype.itemsize)), expected={NATIVE: (shape, coded)})
    return _only_tensor(decode(data, limits=limits), NATIVE).view(native)


def _needed(elements: int, nbytes: int) -> int:
    """Return the bytes of the tensors of a chunk: the chunk, and integers and packed bits from which it is restored."""
    return 2 * nbytes + 8 * elements + 1024


def _limits(size: int) -> Limits:
    """Return limits for a bitstream whose tensors have at most this size in bytes."""
    return replace(
        Limits.strict(),
        max_unit_bytes=Limits.max_unit_bytes,
        max_tensor_elements=size,
        max_tensor_bytes=size,
        max_total_bytes=size,
        max_codebook=Limits.max_codebook,
    )


def _only_tensor(model: Model, *names: str) -> Array:
    """Return the only tensor of a chunk, which has one of these names."""
    if len(model) != 1 or next(iter(model)) not in names:
        found = ", ".join(map(repr, model)) or "none"
        raise FormatError(f"a chunk has one tensor without a name; the bitstream has {found}")
    return model[next(iter(model))]
