# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Uniform and dependent scalar quantization, statistics of values. Signatures and documentation: quantizer.pyi."""

from cpython.buffer cimport PyBUF_STRIDED_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from libc.math cimport INFINITY as inf, NAN, fabs, frexp, isfinite, ldexp, rint, signbit
from libc.stdint cimport UINT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from ..cancellation import check_cancelled

ctypedef fused real:
    float
    double

ctypedef fused wide_t:
    uint32_t
    uint64_t


# Place of a hash table: items of one line with the same pattern.
cdef struct Place:
    uint64_t pattern
    uint32_t line
    uint32_t count  # 0 marks a free place

cdef extern from "_scan.h" nogil:
    ctypedef struct NnrScan:
        int64_t height
        int64_t width
        int64_t block
    int64_t nnr_run(NnrScan *s, int64_t most, int64_t *at)

cdef extern from "_trellis.h" nogil:
    enum:
        NNR_BLOCK
        NNR_FIRST_BLOCK
        NNR_GROUPS
    const double NNR_MAX_RATE
    ctypedef struct NnrTrellis:
        const float *x32
        const double *x64
        const float *weights
        const uint8_t *groups
        int32_t *levels
        double scale
        int dq
        int plain
        int unary_length
        int64_t rate
    ctypedef struct NnrWindow:
        pass
    int nnr_has_avx2()
    void nnr_begin(NnrTrellis *t)
    void nnr_open(NnrTrellis *t, NnrWindow *w, NnrScan scan)
    void nnr_next(NnrTrellis *t, NnrWindow *w, int n, int last, int passes)

cdef extern from "_values.h" nogil:
    int nnr_extent32(const float *x, int64_t n, double *low, double *high)
    int nnr_extent64(const double *x, int64_t n, double *low, double *high)
    float nnr_least32(const float *x, int64_t n, int64_t *nonzero)
    double nnr_least64(const double *x, int64_t n, int64_t *nonzero)
    ctypedef struct NnrBinary:
        int lowest
        int highest
        double largest
    int nnr_binary32(const float *x, int64_t n, int bits, NnrBinary *found)
    int nnr_binary64(const double *x, int64_t n, int bits, NnrBinary *found)
    void nnr_uniform32(const float *x, int64_t n, double scale, int32_t *levels)
    void nnr_uniform64(const double *x, int64_t n, double scale, int32_t *levels)
    double nnr_power32(const float *x, int64_t n)
    double nnr_power64(const double *x, int64_t n)
    int nnr_add(uint64_t *seen, int bits, uint64_t pattern)
    uint64_t nnr_pattern(double v)
    int nnr_is_whole(double v)
    ctypedef struct NnrLoss:
        double signal
        double noise
        int64_t nonzero
        int64_t zeroed
    void nnr_loss32(const float *x, const float *y, int64_t n, NnrLoss *loss)
    void nnr_loss64(const double *x, const double *y, int64_t n, NnrLoss *loss)
    int nnr_resolve(const int32_t *levels, int32_t *out, int64_t n, int state)

cdef int64_t STEP = 1 << 20  # parameters between two checks for pending signals and cancellation


cdef NnrScan scan_of(block_scan, int64_t n) except *:
    """Return the first position of a scan of n parameters."""
    cdef NnrScan scan
    memset(&scan, 0, sizeof(scan))
    scan.height, scan.width, scan.block = 1, n, n
    if block_scan:
        scan.width, scan.block = block_scan
        if scan.width < 1 or scan.block < 1 or n % scan.width:
            raise ValueError(f"a block scan of {block_scan} does not fit {n} parameters")
        scan.height = n // scan.width
    return scan


def trellis(const real[::1] x not None, double step, int32_t[::1] levels not None, *, int dq_flag, double rate,
            int cabac_unary_length_minus1=10, const float[::1] weights=None, const uint8_t[::1] groups=None,
            int passes=1, bint plain=False, block_scan=None):
    cdef int64_t n = x.shape[0], done = 0, m, until
    cdef NnrScan scan = scan_of(block_scan, n)
    cdef NnrTrellis *t
    cdef NnrWindow *w = NULL
    cdef int64_t i
    cdef uint8_t largest = 0
    if levels.shape[0] != n or (weights is not None and weights.shape[0] != n):
        raise ValueError("x, levels and weights differ in length")
    if groups is not None:
        if groups.shape[0] != n:
            raise ValueError("x and groups differ in length")
        with nogil:
            for i in range(n):
                largest = max(largest, groups[i])
        if largest >= NNR_GROUPS:
            raise ValueError(f"a group of {largest}")
    if not 0 < step < inf or not 1 / step < inf:
        raise ValueError(f"a step of {step}")
    if not 0 <= rate <= NNR_MAX_RATE:
        raise ValueError(f"a rate of {rate}")
    if not 0 <= cabac_unary_length_minus1 <= 255 or not 1 <= passes <= 100:
        raise ValueError("cabac_unary_length_minus1 or passes out of range")
    if not n:
        return
    t = <NnrTrellis *>malloc(sizeof(NnrTrellis))
    if t == NULL:
        raise MemoryError
    t.x32 = NULL
    t.x64 = NULL
    t.weights = NULL
    if real is float:
        t.x32 = &x[0]
    else:
        t.x64 = &x[0]
    if weights is not None:
        t.weights = &weights[0]
    t.groups = NULL
    if groups is not None:
        t.groups = &groups[0]
    t.levels = &levels[0]
    t.scale = 1 / step
    t.dq = dq_flag
    t.plain = plain or not nnr_has_avx2()
    t.unary_length = cabac_unary_length_minus1 + 1
    t.rate = <int64_t>rint(rate * (1 << 22))
    try:
        if block_scan:
            w = <NnrWindow *>malloc(sizeof(NnrWindow))
            if w == NULL:
                raise MemoryError
            nnr_open(t, w, scan)
        nnr_begin(t)
        while done < n:
            until = min(n, done + STEP)
            with nogil:
                while done < until:
                    m = min(n - done, NNR_BLOCK if done else NNR_FIRST_BLOCK)
                    nnr_next(t, w, <int>m, done + m == n, passes if done else passes + 2)
                    done += m
            if done < n:
                PyErr_CheckSignals()
                check_cancelled()
    finally:
        free(t)
        free(w)


def uniform(const real[::1] x not None, double step, int32_t[::1] levels not None):
    cdef int64_t n = x.shape[0]
    cdef double scale = 1 / step
    if levels.shape[0] != n:
        raise ValueError("levels and x differ in length")
    if n:
        with nogil:
            if real is float:
                nnr_uniform32(&x[0], n, scale, &levels[0])
            else:
                nnr_uniform64(&x[0], n, scale, &levels[0])


def survey(const real[::1] x not None):
    cdef int64_t n = x.shape[0], nonzero
    cdef double low, high, total, smallest
    cdef int finite
    if not n:
        raise ValueError("no values have no bounds")
    with nogil:
        if real is float:
            finite = nnr_extent32(&x[0], n, &low, &high)
            total = nnr_power32(&x[0], n)
            smallest = nnr_least32(&x[0], n, &nonzero)
        else:
            finite = nnr_extent64(&x[0], n, &low, &high)
            total = nnr_power64(&x[0], n)
            smallest = nnr_least64(&x[0], n, &nonzero)
    if not finite:
        low = high = NAN
    return low, high, total, nonzero, smallest


def grid(const real[::1] x not None, int bits):
    cdef int64_t i, n = x.shape[0]
    cdef uint64_t odd = 0, a, b
    cdef NnrBinary binary = NnrBinary(1 << 16, -(1 << 16), 0)
    cdef int found = 1
    if not n:
        return binary.lowest, 0, 0.0
    with nogil:
        if real is float:
            found = nnr_binary32(&x[0], n, bits, &binary)
        else:
            found = nnr_binary64(&x[0], n, bits, &binary)
        if found and binary.largest:
            for i in range(n):
                a = <uint64_t>ldexp(fabs(<double>x[i]), -binary.lowest)
                if odd:
                    a %= odd
                while a:
                    b = odd % a
                    odd = a
                    a = b
                if odd == 1:
                    break
    return (binary.lowest, odd, binary.largest) if found else None


def power(const real[::1] x not None):
    cdef int64_t n = x.shape[0]
    cdef double total = 0
    if n:
        with nogil:
            if real is float:
                total = nnr_power32(&x[0], n)
            else:
                total = nnr_power64(&x[0], n)
    return total


def glance(const real[:] x not None, double inverse):
    cdef int64_t i, n = x.shape[0], distinct = 0
    cdef int whole = 1, bits = 1
    cdef uint64_t *seen
    while (<int64_t>1 << bits) < 2 * n:
        bits += 1
    seen = <uint64_t *>calloc(<size_t>1 << bits, sizeof(uint64_t))
    if seen == NULL:
        raise MemoryError
    with nogil:
        for i in range(n):
            distinct += nnr_add(seen, bits, nnr_pattern(x[i]))
            whole &= nnr_is_whole(x[i] * inverse)
    free(seen)
    return distinct, bool(whole)


def count_distinct(const wide_t[:] items not None):
    cdef int64_t i, n = items.shape[0], found = 0
    cdef int bits = 1, ones = 0  # all bits set: nnr_add has no place for this item
    cdef uint64_t item
    cdef uint64_t *seen
    while (<int64_t>1 << bits) < 2 * n:
        bits += 1
    seen = <uint64_t *>calloc(<size_t>1 << bits, sizeof(uint64_t))
    if seen == NULL:
        raise MemoryError
    with nogil:
        for i in range(n):
            item = items[i]
            if item == UINT64_MAX:
                ones = 1
            else:
                found += nnr_add(seen, bits, item)
    free(seen)
    return found + ones


def collisions(lines not None, uint64_t sign):
    cdef Py_buffer view  # a typed memoryview for each item size would take longer than the work
    cdef int64_t line, i, own, kept = 0, pairs = 0, equal = 0
    cdef uint64_t pattern, place, most
    cdef int bits = 1
    cdef const char *item
    cdef Place *places
    PyObject_GetBuffer(lines, &view, PyBUF_STRIDED_RO)
    try:
        if view.ndim != 2 or view.itemsize not in (1, 2, 4, 8) or view.shape[0] * view.shape[1] > <int64_t>1 << 31:
            raise ValueError("lines is not a two-dimensional array of patterns")
        while (<int64_t>1 << bits) < 2 * view.shape[0] * view.shape[1]:
            bits += 1
        places, most = <Place *>calloc(<size_t>1 << bits, sizeof(Place)), (<uint64_t>1 << bits) - 1
        if places == NULL:
            raise MemoryError
        with nogil:
            for line in range(view.shape[0]):
                own = 0
                for i in range(view.shape[1]):
                    item = <const char *>view.buf + line * view.strides[0] + i * view.strides[1]
                    if view.itemsize == 4:
                        pattern = (<const uint32_t *>item)[0]
                    elif view.itemsize == 8:
                        pattern = (<const uint64_t *>item)[0]
                    elif view.itemsize == 2:
                        pattern = (<const uint16_t *>item)[0]
                    else:
                        pattern = (<const uint8_t *>item)[0]
                    if pattern == 0 or pattern == sign:
                        continue
                    place = (pattern ^ <uint64_t>line * <uint64_t>0xbf58476d1ce4e5b9) * <uint64_t>0x9e3779b97f4a7c15
                    place >>= 64 - bits
                    while places[place].count and (places[place].pattern != pattern or places[place].line != line):
                        place = (place + 1) & most
                    places[place].pattern, places[place].line = pattern, <uint32_t>line
                    equal += places[place].count
                    places[place].count += 1
                    own += 1
                kept += own
                pairs += own * (own - 1) // 2
        free(places)
    finally:
        PyBuffer_Release(&view)
    return kept, pairs, equal


def loss(const real[::1] x not None, const real[::1] y not None):
    cdef int64_t n = x.shape[0]
    cdef NnrLoss found = NnrLoss(0, 0, 0, 0)
    if y.shape[0] != n:
        raise ValueError("x and y differ in length")
    if n:
        with nogil:
            if real is float:
                nnr_loss32(&x[0], &y[0], n, &found)
            else:
                nnr_loss64(&x[0], &y[0], n, &found)
    return found.signal, found.noise, found.nonzero, found.zeroed


def loss_of_levels(const float[::1] x not None, const int32_t[::1] levels not None, float step, bint dq_flag,
                   block_scan=None):
    cdef int64_t n = x.shape[0], done = 0, at, i, k, m, part
    cdef NnrScan scan = scan_of(block_scan, n)
    cdef NnrLoss found = NnrLoss(0, 0, 0, 0)
    cdef int state = 0
    cdef int32_t quant_param[1024]
    cdef float values[1024]
    cdef const float *before
    cdef float y[1024]
    if levels.shape[0] != n:
        raise ValueError("x and levels differ in length")
    with nogil:
        while done < n:
            m, k, before = min(n - done, 1024), 0, values
            while k < m:
                part = nnr_run(&scan, m - k, &at)
                if dq_flag:
                    state = nnr_resolve(&levels[at], quant_param + k, part, state)
                else:
                    memcpy(quant_param + k, &levels[at], part * sizeof(int32_t))
                if part == m:
                    before = &x[at]
                else:
                    memcpy(values + k, &x[at], part * sizeof(float))
                k += part
            for i in range(m):
                y[i] = <float>quant_param[i] * step
            nnr_loss32(before, y, m, &found)
            done += m
    return found.signal, found.noise, found.nonzero, found.zeroed


def resolve(const int32_t[::1] levels not None, int32_t[::1] out not None, int state=0, block_scan=None):
    cdef int64_t n = levels.shape[0], at, m
    cdef NnrScan scan = scan_of(block_scan, n)
    if out.shape[0] != n:
        raise ValueError("levels and out differ in length")
    with nogil:
        while n:
            m = nnr_run(&scan, n, &at)
            state = nnr_resolve(&levels[at], &out[at], m, state)
            n -= m
    return state


def divisors(const double[:, ::1] magnitudes not None, const double[:, ::1] error not None,
             const int64_t[::1] columns not None, double most, double[::1] out not None):
    cdef int64_t i, n = magnitudes.shape[0], width = magnitudes.shape[1]
    if error.shape[0] != n or error.shape[1] != width or out.shape[0] != n:
        raise ValueError("magnitudes, error and out differ in shape")
    for i in range(columns.shape[0]):
        if not 0 <= columns[i] < width:
            raise ValueError(f"there is no column {columns[i]}")
    with nogil:
        for i in range(n):
            out[i] = divisor(&magnitudes[i, 0], &error[i, 0], width, columns, most)


def narrowed(const double[:, ::1] magnitudes not None, const double[:, ::1] least not None,
             const double[:, ::1] error not None, double[::1] estimates not None, const double[::1] mosts not None):
    cdef int64_t i, j, k, n = magnitudes.shape[0], width = magnitudes.shape[1]
    cdef double low, high, estimate, times
    if (least.shape[0] != n or least.shape[1] != width or error.shape[0] != n or error.shape[1] != width
            or estimates.shape[0] != n):
        raise ValueError("magnitudes, least, error and estimates differ in shape")
    with nogil:
        for i in range(n):
            low, high, estimate = 0, inf, estimates[i]
            for k in range(mosts.shape[0]):
                for j in range(width):
                    times = rint(magnitudes[i, j] / estimate)
                    if times > mosts[k]:
                        break
                    if times > 0:
                        low = max(low, least[i, j] / times)
                        high = min(high, (magnitudes[i, j] + error[i, j]) / times)
                estimate = min(max(estimate, low), high)
            estimates[i] = (low + high) / 2


cdef double divisor(const double *values, const double *errors, int64_t width, const int64_t[::1] columns,
                    double most) noexcept nogil:
    cdef int64_t first = 0, k
    cdef double found, unsure, value, off, times, rest, blur, after, less
    while first < width - 1 and values[first] == 0:
        first += 1
    found, unsure = values[first], errors[first]
    for k in range(columns.shape[0]):
        if not found > 0:
            return 0
        value, off = values[columns[k]], errors[columns[k]]
        times = rint(value / found)
        rest, blur = fabs(value - times * found), off + times * unsure
        while rest > 2 * blur:  # Euclid's algorithm, until rounding errors explain the remainder
            times = rint(found / rest)
            after, less = fabs(found - times * rest), unsure + times * blur
            found, unsure, rest, blur = rest, blur, after, less
        if value > 0 and (found < 4 * (off + value / found * unsure) or value > most * found):
            return 0
        times = rint(value / found)
        if times != 0:
            found, unsure = value / times, off / times
    return found
