"""Protocol buffers, as far as tables of checkpoints have them."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import FormatError

_VARINT, _I64, _LENGTH, _I32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1


def varint(data: bytes, at: int, what: str) -> tuple[int, int]:
    """An unsigned number of at most 64 bits, and where it ends."""
    value = 0
    for place in range(10):
        if at + place >= len(data):
            break
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & _MASK, at + place + 1
    raise FormatError(f"{what}: a number is cut off or too large")


class Fields:
    """The fields of a message; the last value of each counts, 0 or nothing where there is none."""

    def __init__(self, data: bytes, what: str) -> None:
        self._what = what
        self._found: dict[int, list[int | bytes]] = {}
        for number, value in _fields(data, what):
            self._found.setdefault(number, []).append(value)

    def has(self, number: int) -> bool:
        """Whether a field is there."""
        return number in self._found

    def number(self, number: int) -> int:
        """A number; FormatError when it is something else."""
        value = self._found.get(number, [0])[-1]
        if not isinstance(value, int):
            raise FormatError(f"{self._what}: field {number} is no number")
        return value

    def all(self, number: int) -> list[bytes]:
        """Messages."""
        values = [value for value in self._found.get(number, ()) if isinstance(value, bytes)]
        if len(values) != len(self._found.get(number, ())):
            raise FormatError(f"{self._what}: field {number} is no message")
        return values

    def message(self, number: int) -> Fields:
        """A message, empty if it is not there."""
        return Fields((self.all(number) or [b""])[-1], self._what)


def _fields(data: bytes, what: str) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = varint(data, at, what)
        kind = tag & 7
        if kind == _VARINT:
            value, at = varint(data, at, what)
            yield tag >> 3, value
            continue
        if kind == _LENGTH:
            size, at = varint(data, at, what)
        elif kind in (_I32, _I64):
            size = 4 if kind == _I32 else 8
        else:
            raise FormatError(f"{what}: damaged")
        part = data[at : at + size]
        if len(part) != size:
            raise FormatError(f"{what}: cut off")
        at += size
        yield tag >> 3, part if kind == _LENGTH else int.from_bytes(part, "little")


def number(value: int) -> bytes:
    """A varint."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def field(number_: int, value: int | bytes) -> bytes:
    """A field with a number or a message."""
    if isinstance(value, int):
        return number(number_ << 3 | _VARINT) + number(value)
    return number(number_ << 3 | _LENGTH) + number(len(value)) + value


def field32(number_: int, value: int) -> bytes:
    """A field with a number of 32 bits."""
    return number(number_ << 3 | _I32) + value.to_bytes(4, "little")
