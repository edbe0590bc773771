/* What is asked of values before they are quantized. */
#ifndef NNR_VALUES_H
#define NNR_VALUES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_dispatch.h"

/* Values that are compared at a time. */
#define NNR_LANES 32

/* The least and the greatest of n > 0 values; whether all are finite. */
#define NNR_EXTENT(name, real) \
    static int name(const real *x, int64_t n, double *low, double *high) \
    { \
        real least[NNR_LANES], most[NNR_LANES], zero[NNR_LANES]; \
        int64_t i = 0; \
        int k; \
        for (k = 0; k < NNR_LANES; k++) { \
            least[k] = most[k] = x[0]; \
            zero[k] = 0; \
        } \
        for (; i + NNR_LANES <= n; i += NNR_LANES) \
            for (k = 0; k < NNR_LANES; k++) { \
                real v = x[i + k]; \
                least[k] = v < least[k] ? v : least[k]; \
                most[k] = v > most[k] ? v : most[k]; \
                zero[k] += v - v; \
            } \
        for (; i < n; i++) { \
            least[0] = x[i] < least[0] ? x[i] : least[0]; \
            most[0] = x[i] > most[0] ? x[i] : most[0]; \
            zero[0] += x[i] - x[i]; \
        } \
        for (k = 1; k < NNR_LANES; k++) { \
            least[0] = least[k] < least[0] ? least[k] : least[0]; \
            most[0] = most[k] > most[0] ? most[k] : most[0]; \
            zero[0] += zero[k]; \
        } \
        *low = least[0]; \
        *high = most[0]; \
        return zero[0] == 0; \
    }
NNR_EXTENT(nnr_extent32, float)
NNR_EXTENT(nnr_extent64, double)

/* The bits of a number as a double. */
static inline uint64_t nnr_pattern(double v)
{
    uint64_t pattern;
    memcpy(&pattern, &v, 8);
    return pattern;
}

/* Squares that one integer sum holds: up to 2^18 of at most 2^40 each. */
#define NNR_PORTION (1 << 18)
#define NNR_SQUARE_BITS 40
/* Adding this to a double below 2^51 rounds it to an integer, ties to even, in the low bits of the sum. */
#define NNR_ROUND 6755399441055744.0

/* The sum of the squares of n > 0 finite values, each rounded to 2^-40 of the largest square of its portion. */
#define NNR_POWER(name, real, extent) \
    static double name(const real *x, int64_t n) \
    { \
        double total = 0, low, high; \
        int64_t start, i; \
        for (start = 0; start < n; start += NNR_PORTION) { \
            int64_t stop = start + NNR_PORTION < n ? start + NNR_PORTION : n, sum = 0; \
            int exponent; \
            double scale; \
            if (!extent(x + start, stop - start, &low, &high) || (low == 0 && high == 0)) \
                continue; \
            frexp(-low > high ? -low : high, &exponent); \
            scale = ldexp(1, NNR_SQUARE_BITS / 2 - exponent); \
            for (i = start; i < stop; i++) { \
                double scaled = x[i] * scale; \
                sum += (int64_t)(nnr_pattern(scaled * scaled + NNR_ROUND) - nnr_pattern(NNR_ROUND)); \
            } \
            total += ldexp((double)sum, 2 * exponent - NNR_SQUARE_BITS); \
        } \
        return total; \
    }
NNR_POWER(nnr_power32, float, nnr_extent32)
NNR_POWER(nnr_power64, double, nnr_extent64)

/* Add a pattern to the set of those that were seen, of 2^bits places, one of them free; whether it is new. */
static inline int nnr_add(uint64_t *seen, int bits, uint64_t pattern)
{
    uint64_t place = pattern * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bits);
    pattern = ~pattern; /* 0 is a free place, and no finite number has all bits set */
    while (seen[place] && seen[place] != pattern)
        place = (place + 1) & (((uint64_t)1 << bits) - 1);
    if (seen[place])
        return 0;
    seen[place] = pattern;
    return 1;
}

static inline int nnr_is_whole(double v) { return v - v == 0 && rint(v) == v; }

/* Sums that are made side by side, and values that are looked at before they are added; a multiple of NNR_SUMS. */
#define NNR_SUMS 16
#define NNR_PART 1024

typedef struct {
    double signal, noise;
    int64_t nonzero, zeroed;
} NnrLoss;

/* Add to a loss that of n values x, which decode to y. The same with and without vector instructions: each sum is of
   every NNR_SUMS-th value. */
#define NNR_LOSS(name, real) \
    NNR_INLINE void name(const real *x, const real *y, int64_t n, NnrLoss *loss) \
    { \
        double signal[NNR_SUMS] = {0}, noise[NNR_SUMS] = {0}; \
        real values[NNR_PART], errors[NNR_PART]; \
        int64_t start; \
        int i, k; \
        for (start = 0; start < n; start += NNR_PART) { \
            int m = n - start < NNR_PART ? (int)(n - start) : NNR_PART; \
            int32_t nonzero = 0, zeroed = 0; \
            for (i = 0; i < m; i++) { \
                real before = x[start + i], after = y[start + i], error = before - after; \
                values[i] = before; \
                errors[i] = error; \
                nonzero += before != 0; \
                zeroed += (before != 0) & (after == 0); \
            } \
            loss->nonzero += nonzero; \
            loss->zeroed += zeroed; \
            for (; m % NNR_SUMS; m++) \
                values[m] = errors[m] = 0; \
            for (i = 0; i < m; i += NNR_SUMS) \
                for (k = 0; k < NNR_SUMS; k++) \
                    signal[k] += (double)values[i + k] * values[i + k]; \
            for (i = 0; i < m; i += NNR_SUMS) \
                for (k = 0; k < NNR_SUMS; k++) \
                    noise[k] += (double)errors[i + k] * errors[i + k]; \
        } \
        for (k = 0; k < NNR_SUMS; k++) { \
            loss->signal += signal[k]; \
            loss->noise += noise[k]; \
        } \
    }
NNR_LOSS(nnr_loss32_plain, float)
NNR_LOSS(nnr_loss64, double)

#if NNR_HAVE_AVX2
NNR_AVX2 static void nnr_loss32_avx2(const float *x, const float *y, int64_t n, NnrLoss *loss)
{
    nnr_loss32_plain(x, y, n, loss);
}
#endif

static void nnr_loss32(const float *x, const float *y, int64_t n, NnrLoss *loss)
{
#if NNR_HAVE_AVX2
    if (nnr_has_avx2()) {
        nnr_loss32_avx2(x, y, n, loss);
        return;
    }
#endif
    nnr_loss32_plain(x, y, n, loss);
}

/* QuantParam of n levels with dependent quantization: twice the level, less its sign in odd states (10.2.1.5).
   ``out`` may be ``levels``.

   stateTransTab is linear over GF(2). Whether a state is odd, s[i], follows from the parities p of levels:
   s[i] = s[i - 1] + s[i - 2] + s[i - 3] + p[i - 2], which is s[i - 4] + p[i - 2] + p[i - 3]. The bits of ``state`` are
   s[-1], s[0] and s[1], those of the result s[n - 1], s[n] and s[n + 1]. */
static int nnr_resolve(const int32_t *levels, int32_t *out, int64_t n, int state)
{
    int32_t odd[NNR_PART + 2]; /* in its lowest bit */
    for (; n > 0; n -= NNR_PART, levels += NNR_PART, out += NNR_PART) {
        int i, m = n < NNR_PART ? (int)n : NNR_PART;
        odd[0] = state >> 1;
        odd[1] = state >> 2;
        odd[2] = state ^ odd[0] ^ odd[1] ^ levels[0];
        if (m > 1)
            odd[3] = odd[0] ^ odd[1] ^ odd[2] ^ levels[1];
        for (i = 4; i < m + 2; i++)
            odd[i] = levels[i - 2] ^ levels[i - 3];
        for (i = 4; i < m + 2; i++)
            odd[i] ^= odd[i - 4];
        state = (odd[m - 1] & 1) | (odd[m] & 1) << 1 | (odd[m + 1] & 1) << 2;
        for (i = 0; i < m; i++)
            out[i] = 2 * levels[i] - (((levels[i] > 0) - (levels[i] < 0)) & -(odd[i] & 1));
    }
    return state;
}

#endif
