# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: freethreading_compatible=True
"""Bits of byte strings. Signatures and documentation: bit_buffers.pyi."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.number cimport PyNumber_Index
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcmp

from ..limits import Limits

cdef enum:
    MOST = 56  # bits: so many fit 8 bytes from any first bit


@cython.final
cdef class StringPattern:
    cdef readonly bytes before, after
    cdef readonly object value

    def __init__(self, bytes before not None, bytes after not None, value):
        self.before, self.after, self.value = before, after, value


@cython.no_gc  # the collector would clear `data` while the buffer is held; no member can be part of a cycle
cdef class BitSource:
    cdef Py_buffer buffer
    cdef const uint8_t *first
    cdef public int64_t pos
    cdef int64_t _end
    cdef readonly object data, limits

    def __cinit__(self, data, pos=0, limits=None):
        self.data = data if type(data) is memoryview else memoryview(data)
        self.limits = Limits() if limits is None else limits
        PyObject_GetBuffer(data, &self.buffer, PyBUF_SIMPLE)
        self.first = <const uint8_t *>self.buffer.buf
        self.pos, self._end = pos, 8 * self.buffer.len

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)

    @property
    def end(self):
        return self._end

    @end.setter
    def end(self, int64_t end):
        if not 0 <= end <= 8 * self.buffer.len:
            raise ValueError(f"there are {8 * self.buffer.len} bits, not {end}")
        self._end = end

    cdef uint64_t _bits(self, int64_t pos, int n) noexcept:
        cdef uint64_t word = 0
        cdef int64_t byte
        for byte in range(pos >> 3, (pos + n + 7) >> 3):
            word = word << 8 | self.first[byte]
        return word >> (-(pos + n) & 7) & ((<uint64_t>1 << n) - 1)

    def take_u(self, int64_t n):
        if not 0 <= n <= MOST or n > self._end - self.pos:
            raise ValueError
        self.pos += n
        return self._bits(self.pos - n, <int>n)

    def take_i(self, int64_t n):
        if not 1 <= n <= MOST or n > self._end - self.pos:
            raise ValueError
        self.pos += n
        cdef int64_t value = self._bits(self.pos - n, <int>n)
        return value - (<int64_t>1 << n) if value >> (n - 1) else value

    cdef int64_t _ue(self, int64_t k, int64_t most) except -1:
        cdef int64_t zeros = 0, size
        while zeros + k <= most and self.pos + zeros < self._end and not (
            self.first[(self.pos + zeros) >> 3] >> (~(self.pos + zeros) & 7) & 1
        ):
            zeros += 1
        size = zeros + 1 + k
        if zeros + k > most or size > MOST or zeros + size > self._end - self.pos:
            raise ValueError
        self.pos += zeros + size
        # `size` includes the one bit that ends the prefix.
        return self._bits(self.pos - size, <int>size) - (<int64_t>1 << k)

    def take_ue(self, int64_t k, int64_t most):
        return self._ue(k, most)

    def take_ie(self, int64_t k, int64_t most):
        cdef int64_t value = self._ue(k, most)
        return (value + 1) >> 1 if value & 1 else -(value >> 1)

    def take_st(self, int64_t longest):
        cdef int64_t start = self.pos >> 3, room = min((self._end >> 3) - start - 1, longest) + 1
        cdef const uint8_t *zero
        if self.pos & 7 or room < 1:
            raise ValueError
        zero = <const uint8_t *>memchr(self.first + start, 0, room)
        if zero == NULL:
            raise ValueError
        value = PyUnicode_DecodeUTF8(<const char *>self.first + start, zero - self.first - start, NULL)
        self.pos = 8 * (zero - self.first + 1)
        return value

    def take_pattern(self, list patterns, int64_t longest):
        cdef int64_t start = self.pos >> 3, room = (self._end >> 3) - start, text, after, zero = -1, last = -1
        cdef const uint8_t *first = self.first + start
        cdef const uint8_t *found
        cdef StringPattern pattern
        if self.pos & 7:
            return None
        for pattern in patterns:
            text, after = PyBytes_GET_SIZE(pattern.before), PyBytes_GET_SIZE(pattern.after)
            if text + 1 + after > room or memcmp(first, PyBytes_AS_STRING(pattern.before), text):
                continue
            if text != last:
                last = text
                found = <const uint8_t *>memchr(first + text, 0, min(room - text - 1, longest) + 1)
                zero = room if found == NULL else found - first
            if zero + 1 + after <= room and not memcmp(first + zero + 1, PyBytes_AS_STRING(pattern.after), after):
                try:
                    value = PyUnicode_DecodeUTF8(<const char *>first + text, zero - text, NULL)
                except UnicodeDecodeError:
                    return None
                self.pos += 8 * (zero + 1 + after)
                return pattern, value
        return None


cdef class BitSink:
    cdef bytearray out
    cdef uint64_t word
    cdef int bits  # used bits of `word`; below 8 between calls

    def __cinit__(self):
        self.out = bytearray()

    @property
    def pos(self):
        return 8 * len(self.out) + self.bits

    def state(self):
        return len(self.out), self.word, self.bits

    def restore(self, state):
        size, self.word, self.bits = state
        del self.out[size:]

    cdef int _put(self, uint64_t value, int n) except -1:
        self.word = self.word << n | value
        self.bits += n
        while self.bits >= 8:
            self.bits -= 8
            self.out.append(<uint8_t>(self.word >> self.bits))
        self.word &= (1 << self.bits) - 1
        return 0

    cdef int _u(self, int64_t n, value) except -1:
        """Write a Python integer."""
        cdef int overflow = 0
        cdef int64_t small
        cdef int at = n & 7
        if 0 <= n <= MOST:
            small = PyLong_AsLongLongAndOverflow(value, &overflow)
            if overflow or small < 0 or small >> n:
                raise ValueError(f"{value} does not fit in u({n})")
            return self._put(small, <int>n)
        if value >> n:
            raise ValueError(f"{value} does not fit in u({n})")
        for byte in value.to_bytes((n + 7) >> 3, "big"):
            self._put(byte, at or 8)
            at = 8
        return 0

    def u(self, int64_t n, value):
        self._u(n, PyNumber_Index(value))

    def i(self, int64_t n, value):
        value = PyNumber_Index(value)
        end = <object>1 << (n - 1)
        if not -end <= value < end:
            raise ValueError(f"{value} does not fit in i({n})")
        self._u(n, value + 2 * end if value < 0 else value)

    def ue(self, int64_t k, value):
        cdef int64_t suffix
        value = PyNumber_Index(value)
        if value < 0:
            raise ValueError(f"{value} is negative, ue({k}) is unsigned")
        value += <object>1 << k
        suffix = value.bit_length()
        self._u(2 * suffix - 1 - k, value)

    def extend(self, data):
        if self.bits:
            raise ValueError("bytes must begin at a byte boundary")
        self.out += data

    def getvalue(self):
        cdef bytes whole = bytes(self.out)
        return whole + bytes([self.word << (8 - self.bits)]) if self.bits else whole
