"""Checksum of checkpoints: CRC-32C (RFC 3720, B.4), computed for many parts of the data in parallel."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
#: Size of a part in bytes; shorter data is processed byte by byte.
_PART = 1024
#: Bytes processed at a time, to limit memory.
_AT_ONCE = 16 << 20
_MASK = 0xA282EAD8

_Words = npt.NDArray[np.uint32]


def crc32c(data: bytes | memoryview, before: int = 0) -> int:
    """Return the checksum of bytes, continuing from the checksum ``before``."""
    state, items = before ^ _ONES, np.frombuffer(data, np.uint8)
    whole = items.size - items.size % _PART if items.size > 4 * _PART else 0
    for start in range(0, whole, _AT_ONCE):
        for part in _parts(items[start : min(start + _AT_ONCE, whole)]).tolist():
            state = _moved(state) ^ part
    table = _table().tolist()
    for byte in items[whole:].tolist():
        state = table[(state ^ byte) & 0xFF] ^ state >> 8
    return state ^ _ONES


def masked(crc: int) -> int:
    """Return a checksum in its stored form."""
    return ((crc >> 15 | crc << 17) + _MASK) & _ONES


def _parts(items: npt.NDArray[np.uint8]) -> _Words:
    """Return the state after each part alone, starting from 0, two bytes of each part at a time."""
    columns, pairs = np.ascontiguousarray(items.view("<u2").reshape(-1, _PART // 2).T), _pairs()
    states: _Words = np.zeros(columns.shape[1], np.uint32)
    for column in columns:
        states = pairs[(states ^ column) & np.uint32(0xFFFF)] ^ states >> np.uint32(16)
    return states


def _moved(state: int) -> int:
    """Advance a state by a part of zeros, which is linear: the contributions of the four state bytes are combined."""
    one, two, three, four = _moves()
    return one[state & 0xFF] ^ two[state >> 8 & 0xFF] ^ three[state >> 16 & 0xFF] ^ four[state >> 24]


@cache
def _table() -> _Words:
    table: _Words = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> np.uint32(1) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return table


def _stepped(states: _Words) -> _Words:
    """Advance states by a zero byte."""
    stepped: _Words = _table()[states & np.uint32(0xFF)] ^ states >> np.uint32(8)
    return stepped


@cache
def _pairs() -> _Words:
    return _stepped(_stepped(np.arange(1 << 16, dtype=np.uint32)))


@cache
def _moves() -> list[list[int]]:
    states: _Words = (np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], np.uint32)).reshape(-1)
    for _ in range(_PART):
        states = _stepped(states)
    moves: list[list[int]] = states.reshape(4, 256).tolist()
    return moves
