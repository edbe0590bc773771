/* Statistics of values before and after quantization. */
#ifndef NNR_VALUES_H
#define NNR_VALUES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_dispatch.h"

/* Values compared in parallel, for vector instructions, and values between two sums of counts or squares. */
#define NNR_LANES 32
#define NNR_PORTION (1 << 18)

/* Write the smallest and the largest of n > 0 values; return 1 if all are finite. */
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

/* Return the smallest nonzero magnitude of n values, infinity if there is none; write the number of nonzero values.
   NaN is nonzero and has no magnitude. Bit patterns of magnitudes are compared, minus 1, so that 0 becomes the largest. */
#define NNR_LEAST(name, real, word, infinite) \
    static real name(const real *x, int64_t n, int64_t *nonzero) \
    { \
        const word sign = (word)1 << (8 * sizeof(word) - 1); \
        word least = infinite - 1; \
        int64_t start, i; \
        real found; \
        *nonzero = n; \
        for (start = 0; start < n; start = i) { \
            int64_t stop = start + NNR_PORTION < n ? start + NNR_PORTION : n; \
            word zeros = 0; \
            for (i = start; i < stop; i++) { \
                word magnitude; \
                memcpy(&magnitude, x + i, sizeof magnitude); \
                magnitude = (magnitude & ~sign) - 1; \
                zeros += magnitude > sign; \
                least = magnitude < least ? magnitude : least; \
            } \
            *nonzero -= (int64_t)zeros; \
        } \
        least++; \
        memcpy(&found, &least, sizeof found); \
        return found; \
    }
NNR_LEAST(nnr_least32, float, uint32_t, UINT32_C(0x7f800000))
NNR_LEAST(nnr_least64, double, uint64_t, UINT64_C(0x7ff0000000000000))

/* Return the bit pattern of a double. */
static inline uint64_t nnr_pattern(double v)
{
    uint64_t pattern;
    memcpy(&pattern, &v, 8);
    return pattern;
}

/* An integer sum has up to NNR_PORTION squares of at most 2^40 each, which fits 63 bits. */
#define NNR_SQUARE_BITS 40
/* Adding this to a double below 2^51 rounds it to an integer, ties to even, in the low bits of the sum. */
#define NNR_ROUND 6755399441055744.0

/* Return the sum of squares of n > 0 values. Each square is rounded to 2^-40 of the largest square of its portion, so
   that the sum does not depend on the order of additions. Portions with a value that is not finite are ignored. */
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

/* Exponents of the multiples of a power of two that all values are. */
typedef struct {
    int lowest;     /* exponent of the lowest bit of all values */
    int highest;    /* smallest exponent whose power of two exceeds all magnitudes */
    double largest; /* largest magnitude */
} NnrBinary;

/* Values between two checks of the exponents. */
#define NNR_BLOCK_OF_BITS (1 << 14)

/* Return 1 if values are finite, not -0.0, and have at most `bits` bits from the highest to the lowest one of all. The
   bits of mantissas are collected for each exponent, in two tables: accesses to the same entry would wait. */
#define NNR_BINARY(name, real, word, mantissa_bits, exponents) \
    static int name(const real *x, int64_t n, int bits, NnrBinary *found) \
    { \
        const word hidden = (word)1 << mantissa_bits, sign = (word)1 << (8 * sizeof(word) - 1); \
        const int bias = exponents / 2 - 1 + mantissa_bits; \
        word seen[2][exponents] = {{0}}, largest = 0; \
        int64_t start, i; \
        int e, negative_zero = 0; \
        for (start = 0; start < n; start = i) { \
            int64_t stop = start + NNR_BLOCK_OF_BITS < n ? start + NNR_BLOCK_OF_BITS : n; \
            found->lowest = 1 << 16; \
            found->highest = -(1 << 16); \
            for (i = start; i < stop; i++) { \
                word p, magnitude; \
                memcpy(&p, x + i, sizeof p); \
                negative_zero |= p == sign; \
                magnitude = p & ~sign; \
                largest = magnitude > largest ? magnitude : largest; \
                seen[i & 1][magnitude >> mantissa_bits] |= magnitude; \
            } \
            if (negative_zero || largest >> mantissa_bits == exponents - 1) \
                return 0; \
            for (e = 0; e <= (int)(largest >> mantissa_bits); e++) { \
                word all = seen[0][e] | seen[1][e]; \
                int low = (e ? e : 1) - bias; \
                if (!all) \
                    continue; \
                all = e ? (all & (hidden - 1)) | hidden : all; \
                for (; !(all & 1); all >>= 1) \
                    low++; \
                found->lowest = low < found->lowest ? low : found->lowest; \
            } \
            if (largest) { \
                real value; \
                memcpy(&value, &largest, sizeof value); \
                found->largest = value; \
                frexp(found->largest, &found->highest); \
                if (found->highest - found->lowest > bits) \
                    return 0; \
            } \
        } \
        return 1; \
    }
NNR_BINARY(nnr_binary32, float, uint32_t, 23, 256)
NNR_BINARY(nnr_binary64, double, uint64_t, 52, 2048)

/* Add a pattern to a hash set of 2^bits places, at least one of them free; return 1 if the pattern is new. */
static inline int nnr_add(uint64_t *seen, int bits, uint64_t pattern)
{
    uint64_t place = pattern * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bits);
    pattern = ~pattern; /* 0 marks a free place; only a NaN has all bits set */
    while (seen[place] && seen[place] != pattern)
        place = (place + 1) & (((uint64_t)1 << bits) - 1);
    if (seen[place])
        return 0;
    seen[place] = pattern;
    return 1;
}

static inline int nnr_is_whole(double v) { return v - v == 0 && rint(v) == v; }

/* Write the nearest integers of n values times `scale`, ties to even; they fit 32 bits. */
#define NNR_UNIFORM(name, real) \
    static void name(const real *x, int64_t n, double scale, int32_t *levels) \
    { \
        int64_t i; \
        for (i = 0; i < n; i++) \
            levels[i] = (int32_t)(nnr_pattern(x[i] * scale + NNR_ROUND) - nnr_pattern(NNR_ROUND)); \
    }
NNR_UNIFORM(nnr_uniform32, float)
NNR_UNIFORM(nnr_uniform64, double)

/* Number of parallel sums, and number of values in each part; a part is a multiple of NNR_SUMS. */
#define NNR_SUMS 16
#define NNR_PART 1024

typedef struct {
    double signal, noise;
    int64_t nonzero, zeroed;
} NnrLoss;

/* Add the loss of n values x that decode to y. Each sum has every NNR_SUMS-th value, so that results are identical with
   and without vector instructions. */
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

/* Write QuantParam of n levels with dependent quantization: twice the level, minus its sign in odd states (10.2.1.5).
   ``out`` may be ``levels``.

   StateTransTab is linear over GF(2). Let s[i] be the lowest bit of stateId at level i, and p[i] the parity of level
   i. Then s[i] = s[i - 1] + s[i - 2] + s[i - 3] + p[i - 2] = s[i - 4] + p[i - 2] + p[i - 3]. The bits of ``state`` are
   s[-1], s[0] and s[1]; the bits of the result are s[n - 1], s[n] and s[n + 1]. */
static int nnr_resolve(const int32_t *levels, int32_t *out, int64_t n, int state)
{
    int32_t odd[NNR_PART + 2]; /* s[i] in the lowest bit */
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
