# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Levels for tensors: uniform and dependent scalar quantization. Signatures and documentation: quantizer.pyi."""

from cpython.exc cimport PyErr_CheckSignals
from libc.math cimport fabs, floor, rint
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

ctypedef fused real:
    float
    double

cdef extern from "_tables.h" nogil:
    const uint8_t NNR_STATE[8][2]

cdef int64_t STEP = 1 << 20  # parameters between two looks at pending signals

# The state before each state, by the parity of the level in between: the inverse of StateTransTab.
cdef int[8][2] BEFORE
cdef int _s, _p
for _s in range(8):
    for _p in range(2):
        BEFORE[NNR_STATE[_s][_p]][_p] = _s


cdef inline double nearest(double q, int quantizer, int parity) noexcept nogil:
    """The reconstruction index nearest to q >= 0 that the quantizer (stateId & 1) gives a level of this parity."""
    cdef double k
    if quantizer == 0:
        return 4 * rint(q * 0.25) if parity == 0 else 4 * floor(q * 0.25) + 2
    if parity == 1:
        k = 4 * rint((q - 1) * 0.25) + 1
        return k if k > 0 else 1
    return 0 if q < 1.5 else 4 * rint((q + 1) * 0.25) - 1


cdef void forward(const real *x, int64_t n, double scale, double *cost, uint8_t *decisions) noexcept nogil:
    """Viterbi: for each state the cheaper of its two ways in, one bit each; costs are squared errors."""
    cdef int64_t i
    cdef int s, p, quantizer
    cdef double q, d, least
    cdef double[4] error
    cdef double[8] after
    cdef double even, odd
    cdef int chosen
    for i in range(n):
        q = fabs(<double>x[i]) * scale
        for quantizer in range(2):
            for p in range(2):
                d = q - nearest(q, quantizer, p)
                # A zero stays a zero, which only parity 0 has: pruned weights stay pruned.
                error[2 * quantizer + p] = 1e30 if q == 0 and p else d * d
        chosen = 0
        for s in range(8):
            even = cost[BEFORE[s][0]] + error[2 * (BEFORE[s][0] & 1)]
            odd = cost[BEFORE[s][1]] + error[2 * (BEFORE[s][1] & 1) + 1]
            if odd < even:
                chosen |= 1 << s
                after[s] = odd
            else:
                after[s] = even
        decisions[i] = chosen
        least = after[0]
        for s in range(1, 8):
            if after[s] < least:
                least = after[s]
        for s in range(8):
            cost[s] = after[s] - least


cdef int backward(const real *x, int64_t n, double scale, int s, const uint8_t *decisions,
                  int32_t *levels) noexcept nogil:
    """Follow the decisions back from state s; returns the state at the start."""
    cdef int64_t i
    cdef int p
    cdef double k
    for i in range(n - 1, -1, -1):
        p = (decisions[i] >> s) & 1
        s = BEFORE[s][p]
        k = nearest(fabs(<double>x[i]) * scale, s & 1, p)
        if s & 1:
            k += k > 0
        k *= 0.5
        levels[i] = <int32_t>(-k if x[i] < 0 else k)
    return s


def dependent(const real[::1] x not None, double step, int32_t[::1] levels not None):
    cdef int64_t n = x.shape[0], done = 0, m, i
    cdef int s, best = 0
    cdef double[8] cost
    cdef double scale = 1 / step
    cdef uint8_t *decisions
    if levels.shape[0] != n:
        raise ValueError("levels and x differ in length")
    decisions = <uint8_t *>malloc(n + 1)
    if decisions == NULL:
        raise MemoryError
    cost[0] = 0
    for s in range(1, 8):
        cost[s] = 1e300  # coding starts in state 0
    try:
        while done < n:
            m = min(n - done, STEP)
            with nogil:
                forward(&x[done], m, scale, cost, decisions + done)
            done += m
            PyErr_CheckSignals()
        for s in range(1, 8):
            if cost[s] < cost[best]:
                best = s
        if n:
            with nogil:
                backward(&x[0], n, scale, best, decisions, &levels[0])
    finally:
        free(decisions)


def uniform(const real[::1] x not None, double step, int32_t[::1] levels not None):
    cdef int64_t i, n = x.shape[0]
    cdef double scale = 1 / step
    if levels.shape[0] != n:
        raise ValueError("levels and x differ in length")
    with nogil:
        for i in range(n):
            levels[i] = <int32_t>rint(x[i] * scale)
