"""Bitstreams with side information: texts, levels and words, from bit patterns and integers.

The module follows docs/reference/side-information.md and shares no code with the codec. The record is an extension:
``raw`` has the tensors of the units, which other decoders return.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from nnr_codec.constants import NNR_DFL, NNR_PT_INT, NNR_PT_RAW_FLOAT

from ..builder import Ints, ndu
from .bits import f4
from .case import Content, Maker, Tensor, invalid, valid
from .stream import Stream
from .topologies import stored

EXTENSION = "side-information"
#: Rules that bitstreams with these errors break; other errors break the rule of side information.
RULES = {"LimitError": "limits", "IncompleteError": "complete"}

#: Bits of exponent and mantissa.
FLOATS = {
    "float8_e3m4": (3, 4),
    "float8_e4m3": (4, 3),
    "float8_e5m2": (5, 2),
    "float16": (5, 10),
    "bfloat16": (8, 7),
    "float32": (8, 23),
    "float64": (11, 52),
}


# ------------------------------------------------------------------------------------------------ arithmetic
def dtype_of(name: str) -> np.dtype[Any]:
    """Return the numpy or ml_dtypes dtype of this name."""
    return np.dtype(getattr(ml_dtypes, name, name))


def patterned(name: str, patterns: Any) -> Tensor:
    """Return an array of these bit patterns."""
    dtype = dtype_of(name)
    array = np.array(patterns, f"u{dtype.itemsize}")
    return array.view(dtype).reshape(array.shape)


def nearest(name: str, value: Fraction) -> int:
    """Return the bit pattern of the nearest number of a type, ties to even; overflow does not occur."""
    exponent, mantissa = FLOATS[name]
    bias, size = 2 ** (exponent - 1) - 1, abs(value)
    power = 1 - bias
    while size >= Fraction(2) ** (power + 1):
        power += 1
    fraction = round(size / Fraction(2) ** (power - mantissa))
    return (value < 0) << (exponent + mantissa) | ((power + bias - 1) << mantissa) + fraction


def packed(*streams: Sequence[tuple[int, int]]) -> bytes:
    """Pack fields of (value, bits) into 4-byte words, lowest bits first; each stream starts at a whole byte."""
    out = b""
    for stream in streams:
        number, position = 0, 0
        for value, bits in stream:
            number |= value << position
            position += bits
        out += number.to_bytes((position + 7) // 8, "little")
    return out + bytes(-len(out) % 4 if out else 4)


def float_code(
    name: str,
    patterns: Any,
    pivot: int,
    mantissa: int,
    *,
    holes: int = 0,
    unsigned: bool = False,
    zeros: int = 0,
    rows: Sequence[int] = (),
) -> tuple[Ints, bytes]:
    """Return levels and words; ``rows`` are the rows whose ``zeros`` low bits are 0, empty for all rows."""
    exponent, all_bits = FLOATS[name]
    array = np.array(patterns, object)
    levels, upper, lower = [], [], []
    for index, pattern in np.ndenumerate(array):
        sign, magnitude = divmod(pattern, 1 << (exponent + all_bits))
        if magnitude == 0 and sign < holes:
            levels.append(sign)
            continue
        top, below = divmod(magnitude, 1 << (all_bits - mantissa))
        distance = pivot - top
        levels.append(distance + holes if distance >= 0 else distance)
        high, low = divmod(below, 1 << zeros)
        width = all_bits - mantissa - zeros
        upper.append((high, width) if unsigned else (sign << width | high, width + 1))
        if rows and index[0] not in rows:
            lower.append((low, zeros))
        elif low:
            raise ValueError(f"{pattern:#x} has other low bits")
    return np.array(levels, np.int32).reshape(array.shape), packed(upper, lower)


def text64(data: bytes, size: int = 1) -> str:
    """Return base64 of items of ``size`` bytes: the first bytes of all items, then the second bytes, and so on."""
    return base64.b64encode(b"".join(data[k::size] for k in range(size))).decode()


def scale(*values: float) -> str:
    """Return float32 numbers in the encoding of the record."""
    return text64(f4(*values).tobytes(), 4)


def little(values: Sequence[int], size: int) -> bytes:
    """Return integers or bit patterns as ``size`` bytes each."""
    return b"".join((value % (1 << 8 * size)).to_bytes(size, "little") for value in values)


# ------------------------------------------------------------------------------------------------ bitstreams
def text(tensors: Any, **more: Any) -> bytes:
    """Return the text of a record."""
    fields = {"nnr_codec": 1, **({"tensors": tensors} if tensors else {}), **more}
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


class Recorded(Stream):
    """Builder of a bitstream with a record, which keeps the tensors of its units."""

    def __init__(self) -> None:
        super().__init__()
        self.coded: dict[str, Tensor] = {}

    def record(self, data: bytes, *, storage: int = 128, deflated: bool = False) -> Recorded:
        """Add NNR_TPL with a record."""
        self.topology(
            stored(data) if deflated else data + b"\0", storage=storage, compression=NNR_DFL if deflated else 0
        )
        return self

    def levels(self, name: str, values: Any, data_format: int | None = None, dtype: str = "<i4") -> Recorded:
        """Add NNR_NDU with integers."""
        array = np.array(values, dtype)
        self.ndu(ndu(name, array.shape, kind=NNR_PT_INT, data_format=data_format), array.astype(np.int32))
        self.coded[name] = array
        return self

    def words(self, name: str, data: bytes, shape: Sequence[int] | None = None) -> Recorded:
        """Add NNR_NDU with float32 of any bytes."""
        array = np.frombuffer(data, "<f4")
        array = array.reshape(array.shape if shape is None else tuple(shape))
        self.raw(ndu(name, array.shape, kind=NNR_PT_RAW_FLOAT), array)
        self.coded[name] = array
        return self

    def plain(self, *names: str) -> Recorded:
        """Add a tensor of two float32 for each name."""
        for name in names:
            self.words(name, f4(1, -2).tobytes())
        return self

    def means(self, tensors: dict[str, Tensor]) -> Content:
        """Return the bitstream with the tensors of the model."""
        return self.gives(tensors, raw=self.coded)

    def refused_here(self) -> Content:
        """Return the bitstream, which is invalid for decoders that support the record."""
        return Content(self.data, None, self.coded, quant_params=self.quant_params)


def recorded(
    tensors: Any = None, *, profile: int = 1, parameters: Any = None, deflated: bool = False, **more: Any
) -> Recorded:
    """Return a bitstream that starts with a record of these tensors; ``parameters`` are passed to `Bitstream.mps`."""
    s = Recorded()
    s.start(profile, **(parameters or {}))
    return s.record(text(tensors, **more), deflated=deflated)


def entry(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    """Return the entry of a tensor with a code."""
    around = {key: fields.pop(key) for key in ("shape", "index", "repeats") if key in fields}
    return {"type": name, "code": {"kind": kind, **fields}, **around}


def case(id_: str, title: str, features: str, **fields: Any) -> Callable[[Maker], Maker]:
    """Register a bitstream with a record."""
    return valid(id_, title, "6.4.3.5", features, extension=EXTENSION, **fields)


def refused(
    number: int,
    title: str,
    features: str,
    error: str,
    unit: int | None,
    make: Callable[[], Recorded],
    *,
    more: str = "",
    **fields: Any,
) -> None:
    """Register a bitstream that is invalid because of its record; ``more`` are other broken rules."""
    rules = f"{RULES.get(error, 'side-information')} {more}"
    options = {"requirements": rules, "extension": EXTENSION, **fields}

    @invalid(f"NNR-SID-{number:03}", title, "6.4.3.5", features, error, unit, **options)
    def content() -> Content:
        return make().refused_here()
