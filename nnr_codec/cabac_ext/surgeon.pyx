# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Data-aware quantization: later weights compensate for the errors of earlier ones. Documentation: surgeon.pyi.

Sums have a fixed order, and use IEEE arithmetic without libm. All machines therefore choose equal levels.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.math cimport INFINITY as inf, fabs, floor, rint
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from ..cancellation import check_cancelled

ctypedef fused real:
    float
    double

cdef extern from "_tables.h" nogil:
    const uint8_t NNR_STATE[8][2]
    int32_t nnr_log2(uint64_t v)

cdef enum:
    PANEL = 32          # columns that are eliminated together
    STEP = 1 << 22      # elements of the matrix between two checks for pending signals and cancellation
    SEGMENT = 64        # columns for which each path has its own targets
    BLOCK = 4096        # parameters between two estimates of the rates; a longer row is one block
    UNARY = 256         # maximum number of contexts of abs_level_greater_x for each sign
    DIRECT = 512        # magnitudes below this have their cost in a table

cdef double NEVER = 1e300  # cost of an impossible path
cdef double WORST = 1e280  # largest cost of level 0, so that a path exists for any input, even NaN

# Inverse of StateTransTab: the preceding state, by the state and the parity of the level between them.
cdef int[8][2] BEFORE
cdef int _s, _p
for _s in range(8):
    for _p in range(2):
        BEFORE[NNR_STATE[_s][_p]][_p] = _s


# ------------------------------------------------------------------------------------------------------ factorization
cdef inline void eliminate(double *row, const double *u, double c, int64_t n) noexcept nogil:
    """Subtract c * u from row."""
    cdef int64_t k
    for k in range(n):
        row[k] -= c * u[k]


cdef int64_t factor_panel(double *a, int64_t n, int64_t first, int64_t end, double *u, double *pivots,
                          double least) noexcept nogil:
    """Factorize columns first..end - 1, the last one first; write column j of the factor to row j - first of u.

    Returns the column whose pivot is not above `least`, or -1 if there is none.
    """
    cdef int64_t i, j, k
    cdef double d
    cdef double *column
    for j in range(end - 1, first - 1, -1):
        column = u + (j - first) * n
        for i in range(j + 1):
            column[i] = a[i * n + j]
        for k in range(end - 1, j, -1):
            eliminate(column, u + (k - first) * n, pivots[k] * u[(k - first) * n + j], j + 1)
        d = column[j]
        if not d > least:
            return j
        pivots[j] = d
        for i in range(j):
            column[i] /= d
        column[j] = 1
    return -1


def factorize(const double[:, ::1] matrix not None, double damping):
    import numpy

    cdef int64_t n = matrix.shape[0], first, end, start, i, j, failed = -1
    cdef double trace = 0, least
    if matrix.shape[1] != n or n == 0:
        raise ValueError("the matrix is not square")
    unit, pivots = numpy.zeros((n, n), numpy.float32), numpy.empty(n)
    work, panel = numpy.array(matrix), numpy.empty((PANEL, n))
    cdef double[:, ::1] a = work, u = panel
    cdef double[::1] d = pivots
    cdef float[:, ::1] out = unit
    for i in range(n):
        trace += a[i, i]
    least = 1e-12 * trace / n
    for i in range(n):
        a[i, i] += damping * (trace / n)
    end = n
    while end > 0 and failed < 0:
        first = max(0, end - PANEL)
        with nogil:
            failed = factor_panel(&a[0, 0], n, first, end, &u[0, 0], &d[0], least)
            if failed < 0:
                for j in range(first, end):
                    for i in range(j):
                        out[i, j] = <float>u[j - first, i]
        for start in range(0, first if failed < 0 else 0, STEP // n + 1):
            with nogil:
                for i in range(start, min(first, start + STEP // n + 1)):
                    for j in range(end - 1, first - 1, -1):
                        eliminate(&a[i, i], &u[j - first, i], d[j] * u[j - first, i], first - i)
            PyErr_CheckSignals()
            check_cancelled()
        end = first
    if failed >= 0:
        raise ValueError(f"not positive definite at column {failed}")
    return unit, pivots


# ------------------------------------------------------------------------------------------------------ rates
ctypedef struct Rates:
    int dq
    int unary                              # cabac_unary_length_minus1 + 1
    double rate                            # cost of a bit
    int64_t[24][2] sig_count               # number of bins by context and value
    int64_t[3][2] sign_count
    int64_t[2 * UNARY][2] greater_count
    int64_t[32][2] exponent_count
    double[24][2] sig
    double[3][2] sign
    double[2][DIRECT] size                 # cost of a magnitude, by sign
    double[2] beyond                       # cost of the unary part of magnitudes that exceed it
    double[32][2] exponent


cdef inline double bits(int64_t count, int64_t total) noexcept nogil:
    """Return log2(total / count)."""
    return (nnr_log2(total) - nnr_log2(count)) / 32768.0


cdef inline void cost_of(int64_t[2] *counts, double[2] *costs, int n, double rate) noexcept nogil:
    cdef int i, b
    for i in range(n):
        for b in range(2):
            costs[i][b] = rate * bits(2 * counts[i][b] + 1, 2 * (counts[i][0] + counts[i][1]) + 2)


cdef double escape(Rates *r, int64_t a) noexcept nogil:
    """Return the cost of the Exp-Golomb part of a magnitude that exceeds the unary part."""
    cdef int64_t rest = a - r.unary - 1
    cdef int j = 0
    cdef double total = 0
    while j < 31 and rest >= <int64_t>1 << j:
        total += r.exponent[j][1]
        rest -= <int64_t>1 << j
        j += 1
    if j < 31:
        total += r.exponent[j][0]
    return total + j * r.rate


cdef inline double size_cost(Rates *r, int64_t a, int sign) noexcept nogil:
    return r.size[sign][a] if a < DIRECT else r.beyond[sign] + escape(r, a)


cdef void set_rates(Rates *r) noexcept nogil:
    """Compute the costs of all bins from their counts."""
    cdef int sign, j
    cdef int64_t a
    cdef double total
    cdef double[2 * UNARY][2] greater
    cost_of(r.sig_count, r.sig, 24, r.rate)
    cost_of(r.sign_count, r.sign, 3, r.rate)
    cost_of(r.greater_count, greater, 2 * r.unary, r.rate)
    cost_of(r.exponent_count, r.exponent, 32, r.rate)
    for sign in range(2):
        total = 0
        for j in range(r.unary):
            if j + 1 < DIRECT:
                r.size[sign][j + 1] = total + greater[2 * j + sign][0]
            total += greater[2 * j + sign][1]
        r.beyond[sign] = total
        for a in range(r.unary + 1, DIRECT):
            r.size[sign][a] = total + escape(r, a)


cdef void count_bins(Rates *r, const int32_t *levels, int64_t n, int *state, int *prev) noexcept nogil:
    """Count the bins of levels in coding order (10.2.1.5), and update the state."""
    cdef int64_t i, a, rest
    cdef int j, sign
    for i in range(n):
        a = levels[i]
        sign = a < 0
        a = -a if sign else a
        r.sig_count[3 * state[0] + prev[0]][a != 0] += 1
        if a:
            r.sign_count[prev[0]][sign] += 1
            for j in range(r.unary):
                r.greater_count[2 * j + sign][a > j + 1] += 1
                if a <= j + 1:
                    break
            if a > r.unary:
                rest = a - r.unary - 1
                j = 0
                while j < 31 and rest >= <int64_t>1 << j:
                    r.exponent_count[j][1] += 1
                    rest -= <int64_t>1 << j
                    j += 1
                if j < 31:
                    r.exponent_count[j][0] += 1
        prev[0] = 0 if a == 0 else 2 - sign
        if r.dq:
            state[0] = NNR_STATE[state[0]][a & 1]


cdef void fade(int64_t[2] *counts, int n, int64_t into, int64_t of) noexcept nogil:
    """Scale counts by into / of."""
    cdef int i, b
    for i in range(n):
        for b in range(2):
            counts[i][b] = counts[i][b] * into // of


cdef void forget(Rates *r, int64_t into, int64_t of) noexcept nogil:
    if into < of:
        fade(r.sig_count, 24, into, of)
        fade(r.sign_count, 3, into, of)
        fade(r.greater_count, 2 * r.unary, into, of)
        fade(r.exponent_count, 32, into, of)


# ------------------------------------------------------------------------------------------------------ search
ctypedef struct Survivor:
    double cost
    int prev                 # preceding level: 0 zero, 1 negative, 2 positive
    const float *aim         # targets of the rest of the row, in steps

ctypedef struct Choice:
    double cost
    int32_t level
    double value             # decoded value of the level, in steps


cdef inline double nearest(double q, int quantizer, int parity) noexcept nogil:
    """Return the multiple nearest to q >= 0 for which the quantizer (stateId & 1) has a level of this parity."""
    cdef double k
    if quantizer == 0:
        return 4 * rint(q * 0.25) if parity == 0 else 4 * floor(q * 0.25) + 2
    if parity == 1:
        k = 4 * rint((q - 1) * 0.25) + 1
        return k if k > 0 else 1
    return 0 if q < 1.5 else 4 * rint((q + 1) * 0.25) - 1


cdef inline void consider(Choice *best, Rates *r, const double *sig, int prev, double aim, double k, int32_t level,
                          double weight) noexcept nogil:
    """Replace `best` by magnitude k, with a level without sign, if it is cheaper."""
    cdef int sign = aim < 0
    cdef double value = -k if sign else k
    cdef double cost = weight * (aim - value) * (aim - value)
    if level == 0:
        cost += sig[0]
    else:
        cost += sig[1] + r.sign[prev][sign] + size_cost(r, level, sign)
    if cost < best.cost:
        best.cost = cost
        best.value = value
        best.level = -level if sign else level


cdef inline double number(float aim) noexcept nogil:
    """Return the target, or 0 if it is NaN or too large for a level."""
    return aim if fabs(aim) < 1e30 else 0


cdef inline double weigh(double pivot, double weight) noexcept nogil:
    """Return the cost of a squared error: not negative and never NaN, so that costs can be compared."""
    return pivot * weight if pivot * weight > 0 else 0


cdef inline void shift(float *after, const float *before, float error, const float *unit, int64_t n) noexcept nogil:
    """Write before + error * unit to after. Both may be the same array."""
    cdef int64_t j
    for j in range(n):
        after[j] = before[j] + error * unit[j]


cdef inline int32_t level_of(double k, int quantizer) noexcept nogil:
    return <int32_t>((k + 1) * 0.5 if quantizer and k > 0 else k * 0.5)


cdef int64_t settle(const uint8_t *odd, const float *errors, const Survivor *survivors, int64_t first, int64_t end,
                    float *common, float *own, int64_t n) noexcept nogil:
    """Trace the paths of all survivors back over columns first..end - 1 of a row, and write their errors.

    Errors of the part that all paths share are written to common[i], errors of the rest to own[s * n + i]. Returns the
    first column that is not shared.
    """
    cdef int64_t i, parted = first
    cdef int s, alive = -1, agreed
    cdef int[8] state
    for s in range(8):
        state[s] = s
        if survivors[s].cost < NEVER:
            alive = s
    for i in range(end - 1, first - 1, -1):
        agreed = 1
        for s in range(8):
            if survivors[s].cost < NEVER:
                agreed &= state[s] == state[alive]
        if agreed:
            parted = i + 1
            break
        for s in range(8):
            if survivors[s].cost < NEVER:
                own[s * n + i] = errors[8 * i + state[s]]
                state[s] = BEFORE[state[s]][(odd[i] >> state[s]) & 1]
    s = state[alive]
    for i in range(parted - 1, first - 1, -1):
        common[i] = errors[8 * i + s]
        s = BEFORE[s][(odd[i] >> s) & 1]
    return parted


cdef void search_dependent(const float *x, const uint8_t *zero, int64_t rows, int64_t n, const float *unit,
                           const double *pivots, const double *weights, double bound, Rates *r, int *state, int *prev,
                           float *room, int32_t *tried, uint8_t *odd, int32_t *levels) noexcept nogil:
    """Search the rows of a block with dependent quantization.

    Each of the 8 states keeps its cheapest path, with the path's targets for the rest of the row. After each column, only
    the targets in the current segment are updated. The targets of the next segment are computed at its beginning: once
    for the part that all paths share, then for each path. Errors are added in the order of columns, so that the result
    does not depend on the length of segments.
    """
    cdef Survivor[8] old, new
    cdef Choice[8][2] choices
    cdef Survivor *o
    cdef Choice *c
    cdef float *aims = room
    cdef float *base = aims + 16 * SEGMENT
    cdef float *common = base + n
    cdef float *errors = common + n
    cdef float *own = errors + 8 * n
    cdef int64_t row, i, j, t = 0, first, end = 0, done = 0
    cdef int s, p, parity, side = 0, best
    cdef double q, k, aim, weight, least
    for s in range(8):
        old[s].cost = NEVER
    old[state[0]].cost = 0
    old[state[0]].prev = prev[0]
    for row in range(rows):
        for i in range(n):
            base[i] = x[row * n + i]
        end = done = 0
        for i in range(n):
            if i == end:
                first, end = end, min(n, end + SEGMENT)
                j = done
                if unit != NULL:
                    done = settle(odd + row * n, errors, old, done, first, common, own, n)
                for j in range(j, done):
                    shift(base + first, base + first, common[j], unit + j * n + first, n - first)
                for s in range(8):
                    old[s].aim = aims + (8 * side + s) * SEGMENT
                    if old[s].cost < NEVER:
                        for j in range(end - first):
                            (aims + (8 * side + s) * SEGMENT)[j] = base[first + j]
                        for j in range(done, first if unit != NULL else done):
                            shift(aims + (8 * side + s) * SEGMENT, old[s].aim, own[s * n + j], unit + j * n + first,
                                  end - first)
                side = 1 - side
            weight = weigh(pivots[i], weights[row])
            for s in range(8):
                o = &old[s]
                choices[s][0] = Choice(NEVER, 0, 0)
                choices[s][1] = choices[s][0]
                if o.cost >= NEVER:
                    continue
                choices[s][0].cost = WORST
                aim = number(o.aim[0])
                if zero[t]:  # pruned weights remain 0
                    consider(&choices[s][0], r, r.sig[3 * s + o.prev], o.prev, aim, 0, 0, weight)
                    continue
                q = min(fabs(aim), bound)
                for parity in range(2):
                    k = nearest(q, s & 1, parity)
                    consider(&choices[s][parity], r, r.sig[3 * s + o.prev], o.prev, aim, k, level_of(k, s & 1), weight)
                    if parity == 0 and k > 0:
                        consider(&choices[s][0], r, r.sig[3 * s + o.prev], o.prev, aim, 0, 0, weight)
            odd[t] = 0
            least = NEVER
            for s in range(8):
                p = BEFORE[s][0]
                c = &choices[p][0]
                parity = 0
                if old[BEFORE[s][1]].cost + choices[BEFORE[s][1]][1].cost < old[p].cost + c.cost:
                    parity = 1
                    p = BEFORE[s][1]
                    c = &choices[p][1]
                new[s].cost = NEVER if c.cost >= NEVER else old[p].cost + c.cost
                if c.cost >= NEVER:
                    continue
                least = min(least, new[s].cost)
                odd[t] |= parity << s
                tried[8 * t + s] = c.level
                errors[8 * i + s] = <float>(x[t] - c.value)
                new[s].prev = 0 if c.level == 0 else (1 if c.level < 0 else 2)
                new[s].aim = old[p].aim + 1
                if unit != NULL:
                    new[s].aim = aims + (8 * side + s) * SEGMENT
                    shift(aims + (8 * side + s) * SEGMENT, old[p].aim + 1, errors[8 * i + s], unit + i * n + i + 1,
                          end - i - 1)
            for s in range(8):
                old[s] = new[s]
                if old[s].cost < NEVER:
                    old[s].cost -= least
            side = 1 - side
            t += 1
    best = 0
    for s in range(1, 8):
        if old[s].cost < old[best].cost:
            best = s
    state[0], prev[0] = best, old[best].prev
    for t in range(rows * n - 1, -1, -1):
        levels[t] = tried[8 * t + best]
        best = BEFORE[best][(odd[t] >> best) & 1]


cdef void search_uniform(const float *x, const uint8_t *zero, int64_t rows, int64_t n, const float *unit,
                         const double *pivots, const double *weights, double bound, Rates *r, int *prev,
                         float *aims, int32_t *levels) noexcept nogil:
    """Search the rows of a block with uniform quantization: choose the cheapest level for each weight in order."""
    cdef int64_t row, i, j, t = 0
    cdef double q, k, aim, weight
    cdef float error
    cdef Choice c
    for row in range(rows):
        for i in range(n):
            aims[i] = x[row * n + i]
        for i in range(n):
            aim = number(aims[i])
            weight = weigh(pivots[i], weights[row])
            c = Choice(NEVER, 0, 0)
            consider(&c, r, r.sig[prev[0]], prev[0], aim, 0, 0, weight)
            if not zero[t]:
                q = min(fabs(aim), bound)
                k = floor(q)
                if k > 0:
                    consider(&c, r, r.sig[prev[0]], prev[0], aim, k, <int32_t>k, weight)
                if k + 1 <= bound:
                    consider(&c, r, r.sig[prev[0]], prev[0], aim, k + 1, <int32_t>k + 1, weight)
            levels[t] = c.level
            prev[0] = 0 if c.level == 0 else (1 if c.level < 0 else 2)
            error = <float>(x[t] - c.value)
            if unit != NULL:
                shift(aims + i + 1, aims + i + 1, error, unit + i * n + i + 1, n - i - 1)
            t += 1


cdef void compensate(float *aims, const float *missed, const float *unit, int64_t row, int64_t size, int64_t run,
                     int64_t stride, int64_t n) noexcept nogil:
    """Add the errors of earlier rows of the same group to the targets of a row."""
    cdef int64_t part = row % (size // run * stride) // stride
    cdef int64_t first = row - part * stride - row % run, own = part * run + row % run, j
    for j in range(own):
        shift(aims, aims, unit[j * size + own], missed + (first + j // run * stride + j % run) * n, n)


cdef void measure(float *missed, const int32_t *levels, int64_t n, int dq, int state) noexcept nogil:
    """Subtract the decoded values of a row from its values, in steps."""
    cdef int64_t i
    cdef int32_t level
    for i in range(n):
        level = levels[i]
        if dq:
            missed[i] -= <float>(2.0 * level - (state & 1) * ((level > 0) - (level < 0)))
            state = NNR_STATE[state][level & 1]
        else:
            missed[i] -= <float>level


def surgeon(const real[:, ::1] x not None, double step, int32_t[:, ::1] levels not None,
            const float[:, ::1] unit, const double[::1] pivots not None,
            const double[::1] weights not None, *, int dq_flag, double rate, int cabac_unary_length_minus1,
            const float[:, ::1] row_unit, int64_t run, int64_t stride):
    cdef int64_t height = x.shape[0], n = x.shape[1], row = 0, rows, i, k, m, per, some, size = 0
    cdef int state = 0, prev = 0, first_state, before_state, before_prev, linked = row_unit is not None
    cdef double bound = 0, largest = 0
    cdef Rates *r
    cdef float *steps
    cdef float *missed
    cdef float *room
    cdef int32_t *tried
    cdef uint8_t *odd
    cdef uint8_t *zero
    cdef const float *factor = NULL
    if levels.shape[0] != height or levels.shape[1] != n or weights.shape[0] != height:
        raise ValueError("x, levels and weights differ in shape")
    if pivots.shape[0] != n or (unit is not None and (unit.shape[0] != n or unit.shape[1] != n)):
        raise ValueError("the factor does not fit the columns")
    if linked:
        size = row_unit.shape[0]
        run = run or size
        stride = stride or size
        if (row_unit.shape[1] != size or run < 1 or stride < 1 or size < run or size % run or stride % run
                or height % (size // run * stride)):
            raise ValueError("the factor does not fit the rows")
    if not 0 <= cabac_unary_length_minus1 < UNARY:
        raise ValueError(f"cabac_unary_length_minus1 must be 0 to 255, got {cabac_unary_length_minus1}")
    if not 0 <= rate < inf:
        raise ValueError(f"rate must be finite and at least 0, got {rate}")
    if height == 0 or n == 0:
        return
    if unit is not None:
        factor = &unit[0, 0]
    per = max(1, BLOCK // n)
    m = min(per, height) * n
    r = <Rates *>malloc(sizeof(Rates))
    steps = <float *>malloc(m * sizeof(float))
    missed = <float *>malloc((height * n if linked else 1) * sizeof(float))
    room = <float *>malloc((18 * n + 16 * SEGMENT if dq_flag else n) * sizeof(float))
    tried = <int32_t *>malloc(8 * m * sizeof(int32_t))
    odd = <uint8_t *>malloc(m)
    zero = <uint8_t *>malloc(m)
    try:
        if (r == NULL or steps == NULL or missed == NULL or room == NULL or tried == NULL or odd == NULL
                or zero == NULL):
            raise MemoryError
        with nogil:
            memset(r, 0, sizeof(Rates))
            r.dq = dq_flag != 0
            r.unary = cabac_unary_length_minus1 + 1
            r.rate = rate
            count_bins(r, &levels[0, 0], height * n, &state, &prev)
            forget(r, BLOCK, height * n)
            for row in range(height):
                for i in range(n):
                    largest = max(largest, fabs(<double>x[row, i]))
        if not largest / step < 1 << 30:
            raise ValueError("x is too large for the step")
        bound = rint(largest / step)
        state = prev = 0
        row = 0
        while row < height:
            rows = min(per, height - row)
            with nogil:
                set_rates(r)
                for i in range(rows * n):
                    steps[i] = <float>((&x[row, 0])[i] / step)
                    zero[i] = (&x[row, 0])[i] == 0
                before_state, before_prev = state, prev
                some = 1 if linked else rows
                k = row
                while k < row + rows:
                    i = (k - row) * n
                    if linked:
                        memcpy(missed + k * n, steps + i, n * sizeof(float))
                        compensate(steps + i, missed, &row_unit[0, 0], k, size, run, stride, n)
                    first_state = state
                    if dq_flag:
                        search_dependent(steps + i, zero + i, some, n, factor, &pivots[0], &weights[k], bound, r,
                                         &state, &prev, room, tried, odd, &levels[k, 0])
                    else:
                        search_uniform(steps + i, zero + i, some, n, factor, &pivots[0], &weights[k], bound, r,
                                       &prev, room, &levels[k, 0])
                    if linked:
                        measure(missed + k * n, &levels[k, 0], n, r.dq, first_state)
                    k += some
                forget(r, 1, 2)
                count_bins(r, &levels[row, 0], rows * n, &before_state, &before_prev)
            row += rows
            PyErr_CheckSignals()
            check_cancelled()
    finally:
        free(r)
        free(steps)
        free(missed)
        free(room)
        free(tried)
        free(odd)
        free(zero)
