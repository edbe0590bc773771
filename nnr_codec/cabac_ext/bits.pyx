# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Bit patterns to levels and packed fields, and back. Signatures and documentation: bits.pyi."""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT32_MAX, INT32_MIN, UINT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

from ..errors import ElementError
from ..rules import Requirement
from ..cancellation import check_cancelled

ctypedef fused unsigned_t:
    uint8_t
    uint16_t
    uint32_t
    uint64_t

ctypedef fused float_t:
    uint16_t
    uint32_t

ctypedef fused narrow_t:
    uint8_t
    uint16_t

cdef int64_t STEP = 1 << 20  # elements between two checks for pending signals and cancellation

cdef extern from "_fields.h" nogil:
    ctypedef struct NnrStream:
        uint8_t *at
        uint8_t *end
        uint64_t pending
        int count
        int over
    ctypedef struct NnrFloats:
        int sign
        int shift
        int zeros
        uint64_t pivot
        int holes
        int signs
    uint64_t nnr_ones(int width)
    void nnr_put(NnrStream *s, uint64_t field, int width)
    uint64_t nnr_take(NnrStream *s, int width)
    int nnr_split8(const uint8_t *patterns, int32_t *levels, int64_t n, NnrFloats f, NnrStream *s)
    int nnr_split16(const uint16_t *patterns, int32_t *levels, int64_t n, NnrFloats f, NnrStream *s)
    int nnr_split32(const uint32_t *patterns, int32_t *levels, int64_t n, NnrFloats f, NnrStream *s)
    int nnr_split64(const uint64_t *patterns, int32_t *levels, int64_t n, NnrFloats f, NnrStream *s)
    int nnr_join8(const int32_t *levels, uint8_t *patterns, int64_t n, NnrFloats f, NnrStream *s)
    int nnr_join16(const int32_t *levels, uint16_t *patterns, int64_t n, NnrFloats f, NnrStream *s)
    int nnr_join32(const int32_t *levels, uint32_t *patterns, int64_t n, NnrFloats f, NnrStream *s)
    int nnr_join64(const int32_t *levels, uint64_t *patterns, int64_t n, NnrFloats f, NnrStream *s)
    void nnr_split_low8(const uint8_t *patterns, const int32_t *levels, int64_t n, int holes, int zeros, NnrStream *s)
    void nnr_split_low16(const uint16_t *patterns, const int32_t *levels, int64_t n, int holes, int zeros, NnrStream *s)
    void nnr_split_low32(const uint32_t *patterns, const int32_t *levels, int64_t n, int holes, int zeros, NnrStream *s)
    void nnr_split_low64(const uint64_t *patterns, const int32_t *levels, int64_t n, int holes, int zeros, NnrStream *s)
    void nnr_join_low8(const int32_t *levels, uint8_t *patterns, int64_t n, int holes, int zeros, NnrStream *s)
    void nnr_join_low16(const int32_t *levels, uint16_t *patterns, int64_t n, int holes, int zeros, NnrStream *s)
    void nnr_join_low32(const int32_t *levels, uint32_t *patterns, int64_t n, int holes, int zeros, NnrStream *s)
    void nnr_join_low64(const int32_t *levels, uint64_t *patterns, int64_t n, int holes, int zeros, NnrStream *s)

cdef extern from "_tables.h" nogil:
    int32_t nnr_log2(uint64_t v)

cdef extern from "_dispatch.h" nogil:
    void NNR_PREFETCH(const void *address)

# Level and field of the smallest and the largest integer of the type.
cdef struct Bounds:
    int64_t first, last
    uint64_t first_field, last_field


cdef NnrStream opened(const uint8_t[::1] stream) noexcept:
    cdef NnrStream s
    s.at = s.end = NULL
    if stream.shape[0]:
        s.at = <uint8_t *>&stream[0]
        s.end = s.at + stream.shape[0]
    s.pending = s.count = s.over = 0
    return s


cdef written(NnrStream *s):
    if s.count:
        nnr_put(s, 0, 8 - s.count)
    if s.over or s.at != s.end:
        raise ValueError("fields and stream differ in length")


cdef read(NnrStream *s):
    cdef int rest = s.at[0] >> s.count if s.count else 0
    if s.over or s.at + (s.count > 0) != s.end:
        raise ValueError("fields and stream differ in length")
    if rest:
        raise ElementError("the bits after the last field are not 0", rule=Requirement.SIDE_INFORMATION)


cdef same_length(int64_t patterns, int64_t levels):
    if patterns != levels:
        raise ValueError("patterns and levels differ in length")


cdef int64_t row_length(int64_t levels, int64_t rows) except -1:
    if rows < 1 or levels % rows:
        raise ValueError(f"{levels} levels cannot be divided into {rows} rows")
    return levels // rows


cdef NnrFloats floats_of(int bits, int shift, uint64_t pivot, int holes, bint unsigned, int zeros) except *:
    cdef NnrFloats f
    if not 0 <= zeros <= shift < bits or not 0 <= holes <= 2 or pivot > nnr_ones(bits - 1) >> shift:
        raise ValueError(f"invalid bits: {bits}, shift {shift}, zeros {zeros}, pivot {pivot}, holes {holes}")
    f.sign, f.shift, f.zeros, f.pivot, f.holes, f.signs = bits - 1, shift, zeros, pivot, holes, not unsigned
    return f


# ------------------------------------------------------------------------------------------------ floats
def split_floats(const unsigned_t[::1] patterns not None, int32_t[::1] levels not None, uint8_t[::1] stream not None,
                 *, int shift, uint64_t pivot, int holes, bint unsigned, int zeros):
    cdef NnrFloats f = floats_of(8 * sizeof(unsigned_t), shift, pivot, holes, unsigned, zeros)
    cdef NnrStream s = opened(stream)
    cdef int64_t done, m, n = levels.shape[0]
    cdef int wrong
    same_length(patterns.shape[0], n)
    for done in range(0, n, STEP):
        m = min(n - done, STEP)
        with nogil:
            if unsigned_t is uint8_t:
                wrong = nnr_split8(&patterns[done], &levels[done], m, f, &s)
            elif unsigned_t is uint16_t:
                wrong = nnr_split16(&patterns[done], &levels[done], m, f, &s)
            elif unsigned_t is uint32_t:
                wrong = nnr_split32(&patterns[done], &levels[done], m, f, &s)
            else:
                wrong = nnr_split64(&patterns[done], &levels[done], m, f, &s)
        if wrong:
            raise ValueError("a sign bit is set, or a level exceeds 32 bits")
        PyErr_CheckSignals()
        check_cancelled()
    written(&s)


def join_floats(const int32_t[::1] levels not None, const uint8_t[::1] stream not None,
                unsigned_t[::1] patterns not None, *, int shift, uint64_t pivot, int holes, bint unsigned, int zeros):
    cdef NnrFloats f = floats_of(8 * sizeof(unsigned_t), shift, pivot, holes, unsigned, zeros)
    cdef NnrStream s = opened(stream)
    cdef int64_t done, m, n = levels.shape[0]
    cdef int wrong
    same_length(patterns.shape[0], n)
    for done in range(0, n, STEP):
        m = min(n - done, STEP)
        with nogil:
            if unsigned_t is uint8_t:
                wrong = nnr_join8(&levels[done], &patterns[done], m, f, &s)
            elif unsigned_t is uint16_t:
                wrong = nnr_join16(&levels[done], &patterns[done], m, f, &s)
            elif unsigned_t is uint32_t:
                wrong = nnr_join32(&levels[done], &patterns[done], m, f, &s)
            else:
                wrong = nnr_join64(&levels[done], &patterns[done], m, f, &s)
        if wrong:
            raise ElementError("a level is outside the exponents of the type", rule=Requirement.SIDE_INFORMATION)
        PyErr_CheckSignals()
        check_cancelled()
    read(&s)


# ------------------------------------------------------------------------------------------------ low bits of floats
cdef bint _split_low(const unsigned_t *patterns, const int32_t *levels, const uint8_t *zero_rows, int64_t rows,
                     int64_t length, int holes, int zeros, NnrStream *s) noexcept nogil:
    cdef int64_t i, row
    cdef unsigned_t lost = 0
    for row in range(rows):
        if zero_rows[row]:
            for i in range(length):
                lost |= patterns[i]
        elif unsigned_t is uint8_t:
            nnr_split_low8(patterns, levels, length, holes, zeros, s)
        elif unsigned_t is uint16_t:
            nnr_split_low16(patterns, levels, length, holes, zeros, s)
        elif unsigned_t is uint32_t:
            nnr_split_low32(patterns, levels, length, holes, zeros, s)
        else:
            nnr_split_low64(patterns, levels, length, holes, zeros, s)
        patterns += length
        levels += length
    return (lost & nnr_ones(zeros)) != 0


cdef void _join_low(const int32_t *levels, const uint8_t *zero_rows, int64_t rows, int64_t length, int holes, int zeros,
                    NnrStream *s, unsigned_t *patterns) noexcept nogil:
    cdef int64_t row
    for row in range(rows):
        if zero_rows[row]:
            pass
        elif unsigned_t is uint8_t:
            nnr_join_low8(levels, patterns, length, holes, zeros, s)
        elif unsigned_t is uint16_t:
            nnr_join_low16(levels, patterns, length, holes, zeros, s)
        elif unsigned_t is uint32_t:
            nnr_join_low32(levels, patterns, length, holes, zeros, s)
        else:
            nnr_join_low64(levels, patterns, length, holes, zeros, s)
        patterns += length
        levels += length


def split_low(const unsigned_t[::1] patterns not None, const int32_t[::1] levels not None,
              const uint8_t[::1] zero_rows not None, uint8_t[::1] stream not None, *, int holes, int zeros):
    cdef NnrStream s = opened(stream)
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
    cdef NnrStream s = opened(stream)
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
                          int low, NnrStream *stream) noexcept nogil:
    cdef NnrStream s = stream[0]
    cdef int64_t i
    cdef uint64_t value, d, level
    for i in range(n):
        value = <unsigned_t>(patterns[i] - least)
        d = value - origin
        level = d >> low if low < 64 else 0
        if value < origin:
            level |= ~(UINT64_MAX >> low) if low < 64 else UINT64_MAX
        levels[i] = <int32_t>level
        nnr_put(&s, d & nnr_ones(low), low)
    stream[0] = s


cdef int _join_integers(const int32_t *levels, unsigned_t *patterns, int64_t n, uint64_t least, uint64_t origin,
                        int low, Bounds b, NnrStream *stream) noexcept nogil:
    cdef NnrStream s = stream[0]
    cdef int64_t i, level
    cdef uint64_t field
    for i in range(n):
        level = levels[i]
        field = nnr_take(&s, low)
        if level < b.first or level > b.last or (level == b.first and field < b.first_field) or (
                level == b.last and field > b.last_field):
            return 1
        patterns[i] = <unsigned_t>(least + origin + (<uint64_t>level << low if low < 64 else 0) + field)
    stream[0] = s
    return 0


def split_integers(const unsigned_t[::1] patterns not None, int32_t[::1] levels not None, uint8_t[::1] stream not None,
                   *, uint64_t least, uint64_t origin, int low):
    cdef NnrStream s = opened(stream)
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
    cdef NnrStream s = opened(stream)
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


# ------------------------------------------------------------------------------------------------ all patterns
def count_patterns(const unsigned_t[::1] patterns not None, int shift, int64_t[:, ::1] counts not None):
    cdef int64_t i, done, stop, n = patterns.shape[0]
    cdef int64_t *a
    cdef int64_t *b
    cdef int bits = 8 * sizeof(unsigned_t)
    if (not 0 <= shift < bits or bits - shift > 32 or counts.shape[1] != <int64_t>1 << (bits - shift)
            or not counts.shape[0]):
        raise ValueError("counts do not have one column for each number")
    a, b = &counts[0, 0], &counts[counts.shape[0] - 1, 0]
    for done in range(0, n, STEP):
        stop = min(n, done + STEP)
        with nogil:
            for i in range(done, stop - 1, 2):
                a[patterns[i] >> shift] += 1
                b[patterns[i + 1] >> shift] += 1
            if stop & 1:
                a[patterns[stop - 1] >> shift] += 1
        PyErr_CheckSignals()
        check_cancelled()


def look_up(const narrow_t[::1] patterns not None, const int32_t[::1] table not None, int32_t[::1] levels not None):
    cdef int64_t i, n = levels.shape[0]
    cdef int32_t least = INT32_MAX
    same_length(patterns.shape[0], n)
    if table.shape[0] != <int64_t>1 << (8 * sizeof(narrow_t)):
        raise ValueError("the table does not have one entry for each pattern")
    with nogil:
        for i in range(n):
            levels[i] = table[patterns[i]]
            least = min(least, levels[i])
    if least == INT32_MIN:
        raise ValueError("a value is not in the palette")


# ------------------------------------------------------------------------------------------------ differences
cdef inline float_t ranked(float_t pattern) noexcept nogil:
    """Return the position of a float in the order of all patterns, and vice versa: -0.0 is next to 0.0."""
    cdef int sign = 8 * sizeof(float_t) - 1
    return pattern ^ <float_t>((pattern >> sign) * ((<uint32_t>1 << sign) - 1))


cdef inline int32_t steps(float_t before, float_t after) noexcept nogil:
    cdef float_t found = ranked(after) - ranked(before)
    if float_t is uint16_t:
        return <int16_t>found
    else:
        return <int32_t>found


cdef enum:
    AHEAD = 48    # differences ahead of the next one of a key that are fetched to the cache

# Sorting works on two halves side by side, each with its own places: the next place in one half need not wait for the
# other half.
ctypedef int64_t[2][256] Places


cdef inline int64_t key_of(float_t pattern, int low, uint32_t mask) noexcept nogil:
    return (pattern >> low) & mask


cdef void find_places(const float_t *patterns, int64_t n, int low, uint32_t mask, Places places) noexcept nogil:
    """Find the place of the first item of each key and half in sorted order."""
    cdef int64_t half = n // 2, total = 0, i, count
    cdef int j
    memset(places, 0, sizeof(Places))
    for i in range(half):
        places[0][key_of(patterns[i], low, mask)] += 1
        places[1][key_of(patterns[half + i], low, mask)] += 1
    if n % 2:
        places[1][key_of(patterns[n - 1], low, mask)] += 1
    for i in range(mask + 1):
        for j in range(2):
            count, places[j][i] = places[j][i], total
            total += count


cdef inline int64_t next_place(float_t pattern, int low, uint32_t mask, int64_t *places) noexcept nogil:
    cdef int64_t *place = places + key_of(pattern, low, mask)
    place[0] += 1
    return place[0] - 1


cdef check_key(int bits, int low, int width):
    if not (0 <= width <= 8 and 0 <= low < bits - width):
        raise ValueError(f"invalid key: {width} bits from bit {low} of {bits}")


cdef inline void put_change(float_t before, float_t after, int32_t *differences, int64_t place) noexcept nogil:
    if before != after:
        differences[place] = steps(before, after)


cdef void sort_changes(const float_t *before, const float_t *after, int64_t n, int low, uint32_t mask,
                       int32_t *differences) noexcept nogil:
    cdef int64_t half = n // 2, i
    cdef Places places
    find_places(before, n, low, mask, places)
    memset(differences, 0, n * sizeof(int32_t))
    for i in range(half):
        put_change(before[i], after[i], differences, next_place(before[i], low, mask, places[0]))
        put_change(before[half + i], after[half + i], differences, next_place(before[half + i], low, mask, places[1]))
    if n % 2:
        put_change(before[n - 1], after[n - 1], differences, next_place(before[n - 1], low, mask, places[1]))


def equal(const uint8_t[::1] one not None, const uint8_t[::1] other not None):
    cdef bint found = one.shape[0] == other.shape[0]
    if found and one.shape[0]:
        with nogil:
            found = memcmp(&one[0], &other[0], one.shape[0]) == 0
    return found


def subtract_patterns(const float_t[::1] before not None, const float_t[::1] after not None,
                      int32_t[::1] differences not None, *, int low, int width):
    cdef int64_t i, n = before.shape[0]
    same_length(after.shape[0], n)
    same_length(differences.shape[0], n)
    check_key(8 * sizeof(float_t), low, width)
    with nogil:
        if not width or not n:
            for i in range(n):
                differences[i] = steps(before[i], after[i])
        else:
            sort_changes(&before[0], &after[0], n, low, (<uint32_t>1 << width) - 1, &differences[0])


cdef inline float_t moved(float_t pattern, int32_t step) noexcept nogil:
    return ranked(<float_t>(ranked(pattern) + <float_t>step))


cdef inline float_t added(float_t pattern, const int32_t *difference) noexcept nogil:
    NNR_PREFETCH(difference + AHEAD)
    return moved(pattern, difference[0]) if difference[0] else pattern


cdef void add_sorted(const float_t *before, const int32_t *differences, int64_t n, int low, uint32_t mask,
                     float_t *after) noexcept nogil:
    cdef int64_t half = n // 2, i
    cdef Places places
    find_places(before, n, low, mask, places)
    for i in range(half):
        after[i] = added(before[i], differences + next_place(before[i], low, mask, places[0]))
        after[half + i] = added(before[half + i], differences + next_place(before[half + i], low, mask, places[1]))
    if n % 2:
        after[n - 1] = added(before[n - 1], differences + next_place(before[n - 1], low, mask, places[1]))


def add_patterns(const float_t[::1] before not None, const int32_t[::1] differences not None,
                 float_t[::1] after not None, *, int low, int width):
    cdef int64_t i, n = before.shape[0]
    same_length(after.shape[0], n)
    same_length(differences.shape[0], n)
    check_key(8 * sizeof(float_t), low, width)
    with nogil:
        if not width or not n:
            for i in range(n):
                after[i] = moved(before[i], differences[i])
        else:
            add_sorted(&before[0], &differences[0], n, low, (<uint32_t>1 << width) - 1, &after[0])


# Differences in a portion, whose cost is estimated together.
cdef enum:
    PORTION = 256
    BIT = 1 << 15  # unit of nnr_log2

cdef struct Portion:
    int64_t size, changes, steps


cdef int64_t[257] N_LOG2  # n * log2(n), for n up to PORTION
N_LOG2[0] = 0
for _n in range(1, PORTION + 1):
    N_LOG2[_n] = _n * nnr_log2(_n)


cdef inline int64_t n_log2(int64_t n) noexcept nogil:
    return n * nnr_log2(n) if n else 0


cdef inline int64_t cost_of(Portion *p) noexcept nogil:
    """Return the cost of a portion, and begin another one."""
    cdef int64_t cost = 0
    if p.changes:
        cost = N_LOG2[p.size] - N_LOG2[p.size - p.changes] - 2 * N_LOG2[p.changes]
        cost += p.changes * (nnr_log2(p.steps) + BIT)
    p.size = p.changes = p.steps = 0
    return cost


cdef inline int64_t add_to(Portion *p, int32_t step) noexcept nogil:
    p.size += 1
    p.changes += step != 0
    p.steps += -<int64_t>step if step < 0 else step
    return cost_of(p) if p.size == PORTION else 0


def costs_of_change(const float_t[::1] before not None, const float_t[::1] after not None, *, int low, int width):
    cdef int64_t i, start = 0, in_order = 0, by_key = 0, whole = 0, used = 0, n = before.shape[0]
    cdef int64_t stride = 7 if n > 1 << 16 else 1
    cdef uint32_t mask = (<uint32_t>1 << width) - 1, mask_of_sign = 2 * mask + 1
    cdef int32_t step
    cdef Portion portion
    cdef Portion[256] groups
    cdef int64_t[512] counts
    same_length(after.shape[0], n)
    check_key(8 * sizeof(float_t), low, width)
    memset(&portion, 0, sizeof(portion))
    memset(groups, 0, sizeof(groups))
    memset(counts, 0, sizeof(counts))
    with nogil:
        while start < n:
            for i in range(start, min(start + PORTION, n)):
                step = steps(before[i], after[i]) if before[i] != after[i] else 0
                in_order += add_to(&portion, step)
                by_key += add_to(&groups[(before[i] >> low) & mask], step)
                counts[(after[i] >> low) & mask_of_sign] += 1
            start += stride * PORTION
        in_order += cost_of(&portion)
        for i in range(mask + 1):
            by_key += cost_of(&groups[i])
        for i in range(mask_of_sign + 1):
            used += counts[i]
            whole -= n_log2(counts[i])
        whole += n_log2(used) + used * low * BIT
    return in_order, by_key, whole
