# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Bit patterns to levels and packed fields, and back. Signatures and documentation: bits.pyi."""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT32_MAX, INT32_MIN, UINT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ..errors import ElementError
from ..rules import Requirement
from ..cancellation import check_cancelled

ctypedef fused unsigned_t:
    uint8_t
    uint16_t
    uint32_t
    uint64_t

cdef int64_t STEP = 1 << 20  # elements between two checks for pending signals and cancellation

cdef struct Stream:
    uint8_t *at
    uint8_t *end
    uint64_t pending  # bits not written yet, or read and not used yet; zeros above them
    int count  # number of pending bits, below 64
    bint over  # fields need more bytes than the stream has

# Positions of level, field and sign in patterns of floats.
cdef struct Fields:
    int sign  # the bit of the sign
    int shift  # the lowest bit of the level
    int zeros  # the lowest bit of the field
    uint64_t pivot
    int holes  # levels from 0 on that are reserved for +0.0 and -0.0
    bint signs  # fields have a sign bit

# Level and field of the smallest and the largest integer of the type.
cdef struct Bounds:
    int64_t first, last
    uint64_t first_field, last_field


cdef inline uint64_t ones(int width) noexcept nogil:
    return UINT64_MAX >> (64 - width) if width else 0


cdef inline void store(uint8_t *at, uint64_t word) noexcept nogil:
    at[0], at[1], at[2], at[3] = <uint8_t>word, <uint8_t>(word >> 8), <uint8_t>(word >> 16), <uint8_t>(word >> 24)
    at[4], at[5], at[6], at[7] = (
        <uint8_t>(word >> 32), <uint8_t>(word >> 40), <uint8_t>(word >> 48), <uint8_t>(word >> 56)
    )


cdef inline uint64_t load(const uint8_t *at) noexcept nogil:
    return (<uint64_t>at[0] | <uint64_t>at[1] << 8 | <uint64_t>at[2] << 16 | <uint64_t>at[3] << 24
            | <uint64_t>at[4] << 32 | <uint64_t>at[5] << 40 | <uint64_t>at[6] << 48 | <uint64_t>at[7] << 56)


cdef inline void put(Stream *s, uint64_t field, int width) noexcept nogil:
    cdef uint64_t word = s.pending | field << s.count
    s.count += width
    if s.count < 64:
        s.pending = word
        return
    s.count -= 64
    s.pending = field >> (width - s.count) if s.count else 0
    if s.end - s.at < 8:
        s.over = True
        return
    store(s.at, word)
    s.at += 8


cdef inline uint64_t take(Stream *s, int width) noexcept nogil:
    cdef uint64_t field = s.pending, word = 0
    cdef int bits = 64, more = width - s.count
    if more <= 0:
        s.pending = field >> width
        s.count = -more
        return field & ones(width)
    if s.end - s.at >= 8:
        word = load(s.at)
        s.at += 8
    else:
        bits = 8 * <int>(s.end - s.at)
        while s.at < s.end:
            s.end -= 1
            word = word << 8 | s.end[0]
        if bits < more:
            s.over = True
            bits = more
    field = (field | word << s.count) & ones(width)
    s.pending = word >> more if more < 64 else 0
    s.count = bits - more
    return field


cdef Stream opened(const uint8_t[::1] stream) noexcept:
    cdef Stream s
    s.at = s.end = NULL
    if stream.shape[0]:
        s.at = <uint8_t *>&stream[0]
        s.end = s.at + stream.shape[0]
    s.pending = s.count = s.over = 0
    return s


cdef written(Stream *s):
    while s.count > 0 and s.at < s.end:
        s.at[0] = <uint8_t>s.pending
        s.at += 1
        s.pending >>= 8
        s.count -= 8
    if s.over or s.count > 0 or s.at != s.end:
        raise ValueError("fields and stream differ in length")


cdef read(Stream *s):
    if s.over or s.count >= 8 or s.at != s.end:
        raise ValueError("fields and stream differ in length")
    if s.pending:
        raise ElementError("the bits after the last field are not 0", rule=Requirement.SIDE_INFORMATION)


cdef same_length(int64_t patterns, int64_t levels):
    if patterns != levels:
        raise ValueError("patterns and levels differ in length")


cdef int64_t row_length(int64_t levels, int64_t rows) except -1:
    if rows < 1 or levels % rows:
        raise ValueError("the levels do not make so many rows")
    return levels // rows


cdef Fields fields_of(int bits, int shift, uint64_t pivot, int holes, bint unsigned, int zeros) except *:
    cdef Fields f
    if not 0 <= zeros <= shift < bits or not 0 <= holes <= 2:
        raise ValueError("the patterns have no such bits")
    f.sign, f.shift, f.zeros, f.pivot, f.holes, f.signs = bits - 1, shift, zeros, pivot, holes, not unsigned
    return f


# ------------------------------------------------------------------------------------------------ floats
cdef int _split_floats(const unsigned_t *patterns, int32_t *levels, int64_t n, Fields f, Stream *stream) noexcept nogil:
    cdef Stream s = stream[0]  # a local copy stays in registers: writes through byte pointers may alias *stream
    cdef int64_t i, d
    cdef uint64_t p, field, signs = 0
    cdef uint64_t magnitude = ones(f.sign), mantissa = ones(f.shift - f.zeros)
    cdef int place = f.shift - f.zeros, width = place + f.signs
    for i in range(n):
        p = patterns[i]
        if f.holes and (p == 0 or (f.holes == 2 and p == magnitude + 1)):
            levels[i] = p != 0
            continue
        d = <int64_t>(f.pivot - ((p & magnitude) >> f.shift))
        if d >= 0:
            d += f.holes
        if d < INT32_MIN or d > INT32_MAX:
            return 1
        signs |= p
        levels[i] = <int32_t>d
        field = (p >> f.zeros) & mantissa
        if f.signs:
            field |= p >> f.sign << place
        put(&s, field, width)
    stream[0] = s
    return signs > magnitude and not f.signs


cdef int _join_floats(const int32_t *levels, unsigned_t *patterns, int64_t n, Fields f, Stream *stream) noexcept nogil:
    cdef Stream s = stream[0]  # a local copy stays in registers: writes to `patterns` may alias *stream
    cdef int64_t i, d
    cdef uint64_t top, field
    cdef uint64_t largest = ones(f.sign) >> f.shift, mantissa = ones(f.shift - f.zeros)
    cdef int place = f.shift - f.zeros, width = place + f.signs
    for i in range(n):
        d = levels[i]
        if d >= 0:
            if d < f.holes:
                patterns[i] = <unsigned_t>(<uint64_t>d << f.sign)
                continue
            d -= f.holes
        top = f.pivot - <uint64_t>d
        if top > largest:
            return 1
        field = take(&s, width)
        patterns[i] = <unsigned_t>(field >> place << f.sign | top << f.shift | (field & mantissa) << f.zeros)
    stream[0] = s
    return 0


def split_floats(const unsigned_t[::1] patterns not None, int32_t[::1] levels not None, uint8_t[::1] stream not None,
                 *, int shift, uint64_t pivot, int holes, bint unsigned, int zeros):
    cdef Fields f = fields_of(8 * sizeof(unsigned_t), shift, pivot, holes, unsigned, zeros)
    cdef Stream s = opened(stream)
    cdef int64_t done, m, n = levels.shape[0]
    cdef int wrong
    same_length(patterns.shape[0], n)
    for done in range(0, n, STEP):
        m = min(n - done, STEP)
        with nogil:
            wrong = _split_floats(&patterns[done], &levels[done], m, f, &s)
        if wrong:
            raise ValueError("a sign bit is set, or a level exceeds 32 bits")
        PyErr_CheckSignals()
        check_cancelled()
    written(&s)


def join_floats(const int32_t[::1] levels not None, const uint8_t[::1] stream not None,
                unsigned_t[::1] patterns not None, *, int shift, uint64_t pivot, int holes, bint unsigned, int zeros):
    cdef Fields f = fields_of(8 * sizeof(unsigned_t), shift, pivot, holes, unsigned, zeros)
    cdef Stream s = opened(stream)
    cdef int64_t done, m, n = levels.shape[0]
    cdef int wrong
    same_length(patterns.shape[0], n)
    for done in range(0, n, STEP):
        m = min(n - done, STEP)
        with nogil:
            wrong = _join_floats(&levels[done], &patterns[done], m, f, &s)
        if wrong:
            raise ElementError("a level is outside the exponents of the type", rule=Requirement.SIDE_INFORMATION)
        PyErr_CheckSignals()
        check_cancelled()
    read(&s)


# ------------------------------------------------------------------------------------------------ low bits of floats
cdef bint _split_low(const unsigned_t *patterns, const int32_t *levels, const uint8_t *zero_rows, int64_t rows,
                     int64_t length, int holes, int zeros, Stream *stream) noexcept nogil:
    cdef Stream s = stream[0]
    cdef int64_t i, row
    cdef uint64_t mask = ones(zeros), lost = 0
    for row in range(rows):
        for i in range(row * length, row * length + length):
            if zero_rows[row]:
                lost |= patterns[i] & mask
            elif levels[i] < 0 or levels[i] >= holes:
                put(&s, patterns[i] & mask, zeros)
    stream[0] = s
    return lost != 0


cdef void _join_low(const int32_t *levels, const uint8_t *zero_rows, int64_t rows, int64_t length, int holes, int zeros,
                    Stream *stream, unsigned_t *patterns) noexcept nogil:
    cdef Stream s = stream[0]
    cdef int64_t i, row
    for row in range(rows):
        if not zero_rows[row]:
            for i in range(row * length, row * length + length):
                if levels[i] < 0 or levels[i] >= holes:
                    patterns[i] |= <unsigned_t>take(&s, zeros)
    stream[0] = s


def split_low(const unsigned_t[::1] patterns not None, const int32_t[::1] levels not None,
              const uint8_t[::1] zero_rows not None, uint8_t[::1] stream not None, *, int holes, int zeros):
    cdef Stream s = opened(stream)
    cdef int64_t rows = zero_rows.shape[0], n = levels.shape[0], length = row_length(n, rows)
    cdef bint lost
    same_length(patterns.shape[0], n)
    if not 0 <= zeros <= 64:
        raise ValueError("zeros is 0 to 64")
    with nogil:
        lost = n and _split_low(&patterns[0], &levels[0], &zero_rows[0], rows, length, holes, zeros, &s)
    if lost:
        raise ValueError("a low bit of the mantissa is set")
    written(&s)


def join_low(const int32_t[::1] levels not None, const uint8_t[::1] zero_rows not None,
             const uint8_t[::1] stream not None, unsigned_t[::1] patterns not None, *, int holes, int zeros):
    cdef Stream s = opened(stream)
    cdef int64_t rows = zero_rows.shape[0], n = levels.shape[0], length = row_length(n, rows)
    same_length(patterns.shape[0], n)
    if not 0 <= zeros <= 64:
        raise ValueError("zeros is 0 to 64")
    if n:
        with nogil:
            _join_low(&levels[0], &zero_rows[0], rows, length, holes, zeros, &s, &patterns[0])
    read(&s)


def count_kept(const unsigned_t[::1] items not None, const uint8_t[::1] zero_rows not None, unsigned_t mask):
    cdef int64_t i, row, rows = zero_rows.shape[0], width = row_length(items.shape[0], rows), kept = 0
    with nogil:
        for row in range(rows):
            if not zero_rows[row]:
                for i in range(row * width, row * width + width):
                    kept += (items[i] & mask) != 0
    return kept


# ------------------------------------------------------------------------------------------------ integers
cdef void _split_integers(const unsigned_t *patterns, int32_t *levels, int64_t n, uint64_t least, uint64_t origin,
                          int low, Stream *stream) noexcept nogil:
    cdef Stream s = stream[0]
    cdef int64_t i
    cdef uint64_t value, d, level
    for i in range(n):
        value = <unsigned_t>(patterns[i] - least)
        d = value - origin
        level = d >> low if low < 64 else 0
        if value < origin:
            level |= ~(UINT64_MAX >> low) if low < 64 else UINT64_MAX
        levels[i] = <int32_t>level
        put(&s, d & ones(low), low)
    stream[0] = s


cdef int _join_integers(const int32_t *levels, unsigned_t *patterns, int64_t n, uint64_t least, uint64_t origin,
                        int low, Bounds b, Stream *stream) noexcept nogil:
    cdef Stream s = stream[0]
    cdef int64_t i, level
    cdef uint64_t field
    for i in range(n):
        level = levels[i]
        field = take(&s, low)
        if level < b.first or level > b.last or (level == b.first and field < b.first_field) or (
                level == b.last and field > b.last_field):
            return 1
        patterns[i] = <unsigned_t>(least + origin + (<uint64_t>level << low if low < 64 else 0) + field)
    stream[0] = s
    return 0


def split_integers(const unsigned_t[::1] patterns not None, int32_t[::1] levels not None, uint8_t[::1] stream not None,
                   *, uint64_t least, uint64_t origin, int low):
    cdef Stream s = opened(stream)
    cdef int64_t done, m, n = levels.shape[0]
    same_length(patterns.shape[0], n)
    if not 0 <= low <= 64:
        raise ValueError("low is 0 to 64")
    for done in range(0, n, STEP):
        m = min(n - done, STEP)
        with nogil:
            _split_integers(&patterns[done], &levels[done], m, least, origin, low, &s)
        PyErr_CheckSignals()
        check_cancelled()
    written(&s)


def join_integers(const int32_t[::1] levels not None, const uint8_t[::1] stream not None,
                  unsigned_t[::1] patterns not None, *, uint64_t least, uint64_t origin, int low, first, last):
    cdef Stream s = opened(stream)
    cdef int64_t done, m, n = levels.shape[0]
    cdef Bounds b
    cdef int wrong
    same_length(patterns.shape[0], n)
    if not 0 <= low <= 64:
        raise ValueError("low is 0 to 64")
    (b.first, b.first_field), (b.last, b.last_field) = first, last
    for done in range(0, n, STEP):
        m = min(n - done, STEP)
        with nogil:
            wrong = _join_integers(&levels[done], &patterns[done], m, least, origin, low, b, &s)
        if wrong:
            raise ElementError("a value is outside the type", rule=Requirement.SIDE_INFORMATION)
        PyErr_CheckSignals()
        check_cancelled()
    read(&s)
