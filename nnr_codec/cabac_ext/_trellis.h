/* Search for the levels with the lowest distortion + rate.

   This is a Viterbi search over the 8 states of dependent quantization (10.2.1.4) or, with uniform quantization, over the
   states "last level is zero" and "last level is not zero". Each value has a few candidate levels. For each state, the
   search keeps the cheapest path to it, called the survivor. Costs are integers, so that plain and vector code choose
   equal levels on all machines; tests/cabac compares them.

   Values are processed in blocks. The cost of a bin is estimated from the counts of earlier blocks. Contexts of sig_flag
   and sign_flag depend on the preceding level (10.3.4.2.2), which each survivor stores; in groups other than 0, the
   context of sig_flag does not. The last NNR_DELAY values of a block are decided with the next block. */
#ifndef NNR_TRELLIS_H
#define NNR_TRELLIS_H

#include <stdint.h>
#include <string.h>

#include "_dispatch.h"
#include "_scan.h"
#include "_tables.h"

enum {
    NNR_BLOCK = 8192,
    NNR_FIRST_BLOCK = 2048,
    NNR_DELAY = 512,
    NNR_ROOM = NNR_BLOCK + NNR_DELAY,
    NNR_CHUNK = 512,
    NNR_MAGNITUDES = 512, /* larger magnitudes have the same cost in bits as this one */
    NNR_GROUPS = 3,       /* groups of values with different contexts of sig_flag */
};

/* Costs are in 2^-14 of a squared step. A branch costs less than 2 NNR_CAP. Eight branches and NNR_SPREAD are below
   NNR_NEVER, and their sum with NNR_NEVER is below 2^31. An impossible state costs NNR_DEAD, which no possible path
   reaches. */
#define NNR_UNIT 16384
#define NNR_CAP (1 << 25)
#define NNR_SPREAD (1 << 27)
#define NNR_DEAD (1 << 29)
#define NNR_NEVER (1 << 30)
#define NNR_MAX_WEIGHT 512.0f
#define NNR_MAX_RATE 16.0
#define NNR_MAX_INDEX 1073741824.0

/* Inverse of StateTransTab: the preceding state, by the parity of the level and the state after it. */
static const uint8_t NNR_BEFORE[2][8] = {{0, 2, 4, 6, 7, 5, 3, 1}, {4, 6, 0, 2, 3, 1, 7, 5}};

enum { NNR_NEGATIVE = 1, NNR_ABOVE = 2, NNR_NEAR_ZERO = 4, NNR_IS_ZERO = 8 };

typedef struct {
    /* indices: group, preceding level (0 zero, 1 negative, 2 positive), state */
    int32_t zero[NNR_GROUPS][3][8];       /* sig_flag 0 */
    int32_t nonzero[NNR_GROUPS][3][2][8]; /* sig_flag 1 and sign_flag; third index: sign */
    int32_t magnitude[2][NNR_MAGNITUDES + 2]; /* the other bins, by sign and magnitude */
} NnrRates;

typedef struct {
    uint32_t kind[NNR_GROUPS][8][3][3]; /* indices: group, state, preceding level, level (as above) */
    uint32_t magnitude[2][NNR_MAGNITUDES + 1];
} NnrCounts;

typedef struct {
    int32_t even[2], odd[2]; /* cost of the best nonzero level of this parity, by quantizer (stateId & 1) */
} NnrBranch;

typedef struct {
    int32_t cost[8];
    int alive;   /* bit mask of possible states */
    int nonzero; /* bit mask of states whose last level is not zero */
    int sign;    /* sign of the last value: 1 negative, 2 positive */
} NnrFront;

typedef struct {
    /* input and output, from the first value in the buffers on */
    const float *x32;
    const double *x64;
    const float *weights;
    const uint8_t *groups; /* group of each value, below NNR_GROUPS; NULL: all 0 */
    int32_t *levels;
    double scale;
    int dq, plain, unary_length;
    int64_t rate; /* cost of a bit in 2^-8 units; 0: minimize distortion only */
    /* position of the search */
    int pending; /* values in the buffers that are searched but not decided */
    int prev;    /* level before the first of them: 0 zero, 1 negative, 2 positive */
    NnrFront front;
    NnrRates rates;
    NnrCounts counts;
    /* for each value in the buffers: candidate levels, and decisions in bit 4 s for state s */
    int32_t lower[NNR_ROOM];
    uint8_t flags[NNR_ROOM];
    uint32_t odd[NNR_ROOM];     /* the path into the state has an odd level */
    uint32_t nonzero[NNR_ROOM]; /* the best even level on a path out of the state is not zero */
    uint8_t path[NNR_ROOM];     /* the decided path: state, parity, and bit 4 if the best even level is not zero */
    NnrBranch branch[NNR_CHUNK];
    int32_t zero[NNR_CHUNK];
} NnrTrellis;

/* Row-major arrays of a block scan, and copies in coding order of the values in the buffers, which are searched. */
typedef struct {
    const float *x32, *weights;
    const double *x64;
    const uint8_t *groups;
    int32_t *levels;
    NnrScan ahead, behind; /* positions of the search, and of the decided levels */
    float values32[NNR_ROOM], some_weights[NNR_ROOM];
    double values64[NNR_ROOM];
    uint8_t some_groups[NNR_ROOM];
    int32_t some_levels[NNR_ROOM];
} NnrWindow;

/* Return the group of value i of the buffers. */
NNR_INLINE int nnr_group(const NnrTrellis *t, int i) { return t->groups ? t->groups[i] : 0; }

/* ------------------------------------------------------------------------------------------------ rates */
/* Estimate the cost of a bin 0 and a bin 1 in 2^-15 bit from counts n0 and n1; limited to the range of NNR_COST. */
static void nnr_bits(uint64_t n0, uint64_t n1, int32_t *bits0, int32_t *bits1)
{
    int32_t all = nnr_log2(n0 + n1), b0 = all - nnr_log2(n0), b1 = all - nnr_log2(n1);
    *bits0 = b0 < NNR_COST[0][0] ? NNR_COST[0][0] : b0 > NNR_COST[0][1] ? NNR_COST[0][1] : b0;
    *bits1 = b1 < NNR_COST[0][0] ? NNR_COST[0][0] : b1 > NNR_COST[0][1] ? NNR_COST[0][1] : b1;
}

static int32_t nnr_cost(const NnrTrellis *t, int64_t bits)
{
    int64_t c = (bits * t->rate) >> 23;
    return c > NNR_CAP / 2 ? NNR_CAP / 2 : (int32_t)c;
}

/* Compute the costs of all bins from the counts. */
static void nnr_rates(NnrTrellis *t)
{
    int s, prev, sign, i, j, p, g, end, states = t->dq ? 8 : 1, groups = t->groups ? NNR_GROUPS : 1;
    uint64_t n, n0, n1, a, more, above = 0, signs[3][2];
    int64_t total[2];
    int32_t b0, b1, sign_bits[3][2];
    for (prev = 0; prev < 3; prev++) {
        signs[prev][0] = signs[prev][1] = 2;
        for (g = 0; g < groups; g++)
            for (s = 0; s < states; s++) {
                const uint32_t *k = t->counts.kind[g][s][prev];
                signs[prev][0] += k[2];
                signs[prev][1] += k[1];
            }
        nnr_bits(signs[prev][0], signs[prev][1], &sign_bits[prev][0], &sign_bits[prev][1]);
    }
    for (g = 0; g < groups; g++) {
        uint64_t own[8][3][2] = {{{0}}}, near_[2][3][2] = {{{0}}};
        for (s = 0; s < states; s++)
            for (prev = 0; prev < 3; prev++)
                for (p = g ? 0 : prev; p < (g ? 3 : prev + 1); p++) { /* groups 1 and 2 do not depend on prev */
                    const uint32_t *k = t->counts.kind[g][s][p];
                    own[s][prev][0] += k[0];
                    own[s][prev][1] += (uint64_t)k[1] + k[2];
                }
        for (s = 0; s < states; s++)
            for (prev = 0; prev < 3; prev++)
                for (i = 0; i < 2; i++)
                    near_[s & 1][prev][i] += own[s][prev][i];
        for (prev = 0; prev < 3; prev++)
            for (s = 0; s < states; s++) {
                /* Prior of weight 8: the counts of all states with the same quantizer. */
                a = near_[s & 1][prev][0] + near_[s & 1][prev][1] + 2;
                n0 = 256 * own[s][prev][0] + 256 * 8 * (near_[s & 1][prev][0] + 1) / a + 1;
                n1 = 256 * own[s][prev][1] + 256 * 8 * (near_[s & 1][prev][1] + 1) / a + 1;
                nnr_bits(n0, n1, &b0, &b1);
                t->rates.zero[g][prev][s] = nnr_cost(t, b0);
                for (sign = 0; sign < 2; sign++)
                    t->rates.nonzero[g][prev][sign][s] = nnr_cost(t, b1 + sign_bits[prev][sign]);
            }
    }
    for (sign = 0; sign < 2; sign++) {
        const uint32_t *h = t->counts.magnitude[sign];
        int32_t *cost = t->rates.magnitude[sign];
        more = total[sign] = 0;
        for (j = 1; j <= NNR_MAGNITUDES; j++)
            more += h[j];
        cost[0] = NNR_NEVER;
        for (j = 1; j <= t->unary_length; j++) { /* abs_level_greater_x: 1 if the magnitude exceeds j */
            more -= h[j];
            nnr_bits(h[j] + 1, more + 1, &b0, &b1);
            cost[j] = nnr_cost(t, total[sign] + b0);
            total[sign] += b1;
        }
        above += more;
    }
    for (j = t->unary_length + 1, i = 0; j <= NNR_MAGNITUDES; j = end, i++) { /* i bits of abs_remainder; both signs */
        end = j + (1 << i) <= NNR_MAGNITUDES + 1 ? j + (1 << i) : NNR_MAGNITUDES + 1;
        for (n = 0, s = j; s < end; s++)
            n += (uint64_t)t->counts.magnitude[0][s] + t->counts.magnitude[1][s];
        above -= n;
        nnr_bits(n + 1, above + 1, &b0, &b1);
        for (sign = 0; sign < 2; sign++) {
            int32_t c = nnr_cost(t, total[sign] + b0 + ((int64_t)i << 15));
            for (s = j; s < end; s++)
                t->rates.magnitude[sign][s] = c;
            total[sign] += b1;
        }
    }
    for (sign = 0; sign < 2; sign++)
        t->rates.magnitude[sign][NNR_MAGNITUDES + 1] = t->rates.magnitude[sign][NNR_MAGNITUDES];
}

/* Reduce the weight of older counts. */
static void nnr_fade(NnrCounts *c, int shift)
{
    uint32_t *n = &c->kind[0][0][0][0];
    size_t i;
    for (i = 0; i < sizeof *c / sizeof *n; i++)
        n[i] -= n[i] >> shift;
}

/* ------------------------------------------------------------------------------------------------ candidates */
/* Return the cost of a squared error of one step; weights are limited to 0 to NNR_MAX_WEIGHT. */
NNR_INLINE float nnr_weight(const float *weights, int i)
{
    float w = !weights ? 1 : weights[i] > 0 ? weights[i] : 0;
    return NNR_UNIT * (w < NNR_MAX_WEIGHT ? w : NNR_MAX_WEIGHT);
}

NNR_INLINE int32_t nnr_round(float v) { return (int32_t)(0.5f + v); }

/* Find the two nearest values of each quantizer for |x| = q steps, and their costs. The even quantizer has 2 lower and
   2 lower + 2, with levels lower and lower + 1. The odd quantizer has 2 upper - 1 (0 instead of -1) and 2 upper + 1, with
   levels upper and upper + 1. */
NNR_INLINE void nnr_candidate(NnrTrellis *t, double x, float w, int i, int at, int rated)
{
    double q = (x < 0 ? -x : x) * t->scale;
    int32_t lower, upper, m, u, a, b, c, d, e, z0, negative = x < 0, never = x == 0 ? NNR_NEVER : 0, near_zero;
    NnrBranch *branch = t->branch + i;
    float f, g, z;
    q = q < NNR_MAX_INDEX ? q : NNR_MAX_INDEX;
    lower = (int32_t)(q * 0.5);
    upper = (int32_t)(q * 0.5 + 0.5);
    f = (float)(q - 2 * (double)lower);
    g = (float)(q + 1 - 2 * (double)upper);
    near_zero = lower == 0 && f < 1.5f;
    m = lower < NNR_MAGNITUDES ? lower : NNR_MAGNITUDES;
    u = upper < NNR_MAGNITUDES ? upper : NNR_MAGNITUDES;
    a = nnr_round(w * (f * f));
    b = nnr_round(w * ((2 - f) * (2 - f)));
    c = nnr_round(w * (g * g));
    d = nnr_round(w * ((2 - g) * (2 - g)));
    z = 2 * (float)m + f;
    z = w * (z * z);
    z0 = z < (float)NNR_CAP && lower < NNR_MAGNITUDES ? nnr_round(z) : NNR_CAP;
    if (rated) {
        const int32_t *cost = t->rates.magnitude[negative];
        a += cost[m];
        b += cost[m + 1];
        c += cost[u];
        d += cost[u + 1];
    } else if (near_zero) { /* below 1.5 steps, 0 is nearer than 3; it replaces -1 */
        c = upper & 1 ? c : z0;
        d = upper & 1 ? z0 : d;
    }
    e = (a ^ b) & -(lower & 1);
    branch->even[0] = a ^ e;
    branch->odd[0] = (b ^ e) | never;
    e = (c ^ d) & -(upper & 1);
    branch->even[1] = c ^ e;
    branch->odd[1] = (d ^ e) | never;
    t->zero[i] = z0;
    t->lower[at] = lower;
    t->flags[at] = (uint8_t)(negative * NNR_NEGATIVE | (upper != lower) * NNR_ABOVE | near_zero * NNR_NEAR_ZERO
                             | (never != 0) * NNR_IS_ZERO);
}

/* Find the candidates of values i to n - 1, counted from value `at` of the buffers. */
NNR_INLINE void nnr_candidates_plain(NnrTrellis *t, int i, int at, int n, int rated)
{
    const float *weights = t->weights ? t->weights + at : (const float *)0;
    if (t->x32)
        for (; i < n; i++)
            nnr_candidate(t, t->x32[at + i], nnr_weight(weights, i), i, at + i, rated);
    else
        for (; i < n; i++)
            nnr_candidate(t, t->x64[at + i], nnr_weight(weights, i), i, at + i, rated);
}

#if NNR_HAVE_AVX2
NNR_AVX2 NNR_INLINE void nnr_neighbours_avx2(__m256d q, __m128i *lower, __m128i *upper, __m128 *f, __m128 *g)
{
    const __m256d half = _mm256_set1_pd(0.5), one = _mm256_set1_pd(1);
    __m256d k;
    q = _mm256_min_pd(q, _mm256_set1_pd(NNR_MAX_INDEX));
    k = _mm256_mul_pd(q, half);
    *lower = _mm256_cvttpd_epi32(k);
    *upper = _mm256_cvttpd_epi32(_mm256_add_pd(k, half));
    k = _mm256_cvtepi32_pd(*lower);
    *f = _mm256_cvtpd_ps(_mm256_sub_pd(q, _mm256_add_pd(k, k)));
    k = _mm256_cvtepi32_pd(*upper);
    *g = _mm256_cvtpd_ps(_mm256_sub_pd(_mm256_add_pd(q, one), _mm256_add_pd(k, k)));
}

NNR_AVX2 NNR_INLINE __m256i nnr_round_avx2(__m256 w, __m256 f)
{
    return _mm256_cvttps_epi32(_mm256_add_ps(_mm256_set1_ps(0.5f), _mm256_mul_ps(w, _mm256_mul_ps(f, f))));
}

/* Apply nnr_candidate() to eight values at a time; plain code handles the remaining values. */
NNR_AVX2 NNR_INLINE void nnr_candidates_avx2(NnrTrellis *t, int at, int n, int rated)
{
    const __m256d scale = _mm256_set1_pd(t->scale), sign64 = _mm256_set1_pd(-0.0);
    const __m256 two = _mm256_set1_ps(2), cap = _mm256_set1_ps((float)NNR_CAP);
    const __m256i largest = _mm256_set1_epi32(NNR_MAGNITUDES), one = _mm256_set1_epi32(1), none = _mm256_setzero_si256();
    int i;
    for (i = 0; i + 8 <= n; i += 8) {
        __m256i lower, upper, negative, is_zero, never, near_zero, m, u, a, b, c, d, e, z0, flags;
        __m256 w = _mm256_set1_ps(NNR_UNIT), f, g, z;
        __m256d x0, x1;
        __m128i l0, l1, u0, u1;
        __m128 f0, f1, g0, g1;
        if (t->x32) {
            __m256 x = _mm256_loadu_ps(t->x32 + at + i);
            x0 = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
            x1 = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
            negative = _mm256_castps_si256(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ));
            is_zero = _mm256_castps_si256(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_EQ_OQ));
        } else {
            const __m256i halves = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
            __m256i p, r;
            x0 = _mm256_loadu_pd(t->x64 + at + i);
            x1 = _mm256_loadu_pd(t->x64 + at + i + 4);
            p = _mm256_castpd_si256(_mm256_cmp_pd(x0, _mm256_setzero_pd(), _CMP_LT_OQ));
            r = _mm256_castpd_si256(_mm256_cmp_pd(x1, _mm256_setzero_pd(), _CMP_LT_OQ));
            negative = _mm256_blend_epi32(_mm256_permutevar8x32_epi32(p, halves),
                                          _mm256_permutevar8x32_epi32(r, halves), 0xf0);
            p = _mm256_castpd_si256(_mm256_cmp_pd(x0, _mm256_setzero_pd(), _CMP_EQ_OQ));
            r = _mm256_castpd_si256(_mm256_cmp_pd(x1, _mm256_setzero_pd(), _CMP_EQ_OQ));
            is_zero = _mm256_blend_epi32(_mm256_permutevar8x32_epi32(p, halves),
                                         _mm256_permutevar8x32_epi32(r, halves), 0xf0);
        }
        if (t->weights) {
            __m256 v = _mm256_max_ps(_mm256_loadu_ps(t->weights + at + i), _mm256_setzero_ps());
            w = _mm256_mul_ps(w, _mm256_min_ps(v, _mm256_set1_ps(NNR_MAX_WEIGHT)));
        }
        nnr_neighbours_avx2(_mm256_mul_pd(_mm256_andnot_pd(sign64, x0), scale), &l0, &u0, &f0, &g0);
        nnr_neighbours_avx2(_mm256_mul_pd(_mm256_andnot_pd(sign64, x1), scale), &l1, &u1, &f1, &g1);
        lower = _mm256_set_m128i(l1, l0);
        upper = _mm256_set_m128i(u1, u0);
        f = _mm256_set_m128(f1, f0);
        g = _mm256_set_m128(g1, g0);
        near_zero = _mm256_and_si256(_mm256_cmpeq_epi32(lower, none),
                                     _mm256_castps_si256(_mm256_cmp_ps(f, _mm256_set1_ps(1.5f), _CMP_LT_OQ)));
        m = _mm256_min_epi32(lower, largest);
        u = _mm256_min_epi32(upper, largest);
        a = nnr_round_avx2(w, f);
        b = nnr_round_avx2(w, _mm256_sub_ps(two, f));
        c = nnr_round_avx2(w, g);
        d = nnr_round_avx2(w, _mm256_sub_ps(two, g));
        z = _mm256_add_ps(_mm256_mul_ps(two, _mm256_cvtepi32_ps(m)), f);
        z = _mm256_min_ps(_mm256_mul_ps(w, _mm256_mul_ps(z, z)), cap);
        z0 = _mm256_cvttps_epi32(_mm256_add_ps(_mm256_set1_ps(0.5f), z));
        z0 = _mm256_blendv_epi8(_mm256_set1_epi32(NNR_CAP), z0, _mm256_cmpgt_epi32(largest, lower));
        if (rated) {
            const int *cost = t->rates.magnitude[0];
            e = _mm256_and_si256(negative, _mm256_set1_epi32(NNR_MAGNITUDES + 2));
            m = _mm256_add_epi32(m, e);
            u = _mm256_add_epi32(u, e);
            a = _mm256_add_epi32(a, _mm256_i32gather_epi32(cost, m, 4));
            b = _mm256_add_epi32(b, _mm256_i32gather_epi32(cost + 1, m, 4));
            c = _mm256_add_epi32(c, _mm256_i32gather_epi32(cost, u, 4));
            d = _mm256_add_epi32(d, _mm256_i32gather_epi32(cost + 1, u, 4));
        } else {
            e = _mm256_cmpeq_epi32(_mm256_and_si256(upper, one), one);
            c = _mm256_blendv_epi8(c, z0, _mm256_andnot_si256(e, near_zero));
            d = _mm256_blendv_epi8(d, z0, _mm256_and_si256(e, near_zero));
        }
        never = _mm256_and_si256(is_zero, _mm256_set1_epi32(NNR_NEVER));
        e = _mm256_and_si256(_mm256_xor_si256(a, b), _mm256_sub_epi32(none, _mm256_and_si256(lower, one)));
        a = _mm256_xor_si256(a, e);
        b = _mm256_or_si256(_mm256_xor_si256(b, e), never);
        e = _mm256_and_si256(_mm256_xor_si256(c, d), _mm256_sub_epi32(none, _mm256_and_si256(upper, one)));
        c = _mm256_xor_si256(c, e);
        d = _mm256_or_si256(_mm256_xor_si256(d, e), never);
        e = _mm256_unpacklo_epi32(a, c); /* four numbers for each value */
        a = _mm256_unpackhi_epi32(a, c);
        c = _mm256_unpacklo_epi32(b, d);
        b = _mm256_unpackhi_epi32(b, d);
        d = _mm256_unpacklo_epi64(e, c);
        e = _mm256_unpackhi_epi64(e, c);
        c = _mm256_unpacklo_epi64(a, b);
        a = _mm256_unpackhi_epi64(a, b);
        _mm256_storeu_si256((__m256i *)(t->branch + i), _mm256_permute2x128_si256(d, e, 0x20));
        _mm256_storeu_si256((__m256i *)(t->branch + i + 2), _mm256_permute2x128_si256(c, a, 0x20));
        _mm256_storeu_si256((__m256i *)(t->branch + i + 4), _mm256_permute2x128_si256(d, e, 0x31));
        _mm256_storeu_si256((__m256i *)(t->branch + i + 6), _mm256_permute2x128_si256(c, a, 0x31));
        _mm256_storeu_si256((__m256i *)(t->zero + i), z0);
        _mm256_storeu_si256((__m256i *)(t->lower + at + i), lower);
        flags = _mm256_and_si256(negative, _mm256_set1_epi32(NNR_NEGATIVE));
        flags = _mm256_or_si256(flags, _mm256_andnot_si256(_mm256_cmpeq_epi32(lower, upper),
                                                           _mm256_set1_epi32(NNR_ABOVE)));
        flags = _mm256_or_si256(flags, _mm256_and_si256(near_zero, _mm256_set1_epi32(NNR_NEAR_ZERO)));
        flags = _mm256_or_si256(flags, _mm256_and_si256(is_zero, _mm256_set1_epi32(NNR_IS_ZERO)));
        l0 = _mm_packs_epi32(_mm256_castsi256_si128(flags), _mm256_extracti128_si256(flags, 1));
        _mm_storel_epi64((__m128i *)(t->flags + at + i), _mm_packus_epi16(l0, l0));
    }
    nnr_candidates_plain(t, i, at, n, rated);
}
#endif

/* ------------------------------------------------------------------------------------------------ forward */
/* Subtract the smallest cost from all costs, and limit the differences, which long runs of zeros would increase. */
NNR_INLINE void nnr_renorm(NnrFront *f)
{
    int32_t least = f->cost[0];
    int s;
    for (s = 1; s < 8; s++)
        least = f->cost[s] < least ? f->cost[s] : least;
    for (s = 0; s < 8; s++) {
        f->cost[s] -= least;
        f->cost[s] = f->cost[s] < NNR_SPREAD ? f->cost[s] : NNR_SPREAD;
    }
}

/* Advance by one value: for each state, choose the cheaper of the two paths into it. */
NNR_INLINE void nnr_step(NnrTrellis *t, NnrFront *f, int i, int at, int rated)
{
    const NnrBranch *branch = t->branch + i;
    int negative = t->flags[at] & NNR_NEGATIVE, s, nonzero = 0, g = nnr_group(t, at);
    uint32_t choice = 0, more = 0;
    int32_t even[8], odd[8];
    for (s = 0; s < 8; s++) {
        int32_t sign = f->cost[s], zero;
        if (rated) {
            int prev = f->nonzero >> s & 1 ? f->sign : 0;
            zero = f->cost[s] + t->rates.zero[g][prev][s] + t->zero[i];
            sign += t->rates.nonzero[g][prev][negative][s];
            even[s] = sign + branch->even[s & 1];
            more |= (uint32_t)(even[s] < zero) << 4 * s;
            even[s] = even[s] < zero ? even[s] : zero;
        } else
            even[s] = sign + branch->even[s & 1];
        odd[s] = sign + branch->odd[s & 1];
    }
    for (s = 0; s < 8; s++) {
        int e = NNR_BEFORE[0][s], o = NNR_BEFORE[1][s], c = odd[o] < even[e];
        choice |= (uint32_t)c << 4 * s;
        nonzero |= (c | (more >> 4 * e & 1)) << s;
        f->cost[s] = c ? odd[o] : even[e];
    }
    f->nonzero = nonzero;
    f->sign = negative ? 1 : 2;
    t->odd[at] = choice;
    t->nonzero[at] = more;
}

/* Advance until every state is possible; return the number of values. */
static int nnr_careful(NnrTrellis *t, NnrFront *f, int at, int n, int rated)
{
    int i, s, alive;
    for (i = 0; i < n && f->alive != 255; i++) {
        int never = t->flags[at + i] & NNR_IS_ZERO;
        nnr_step(t, f, i, at + i, rated);
        nnr_renorm(f);
        alive = 0;
        for (s = 0; s < 8; s++)
            alive |= ((f->alive >> NNR_BEFORE[0][s] | (never ? 0 : f->alive >> NNR_BEFORE[1][s])) & 1) << s;
        f->alive = alive;
        for (s = 0; s < 8; s++)
            if (!(alive >> s & 1))
                f->cost[s] = NNR_DEAD;
    }
    return i;
}

NNR_INLINE void nnr_forward_plain(NnrTrellis *t, NnrFront *f, int i, int at, int n, int rated)
{
    for (; i < n; i++) {
        nnr_step(t, f, i, at + i, rated);
        if (i % 8 == 7)
            nnr_renorm(f);
    }
}

#if NNR_HAVE_AVX2
NNR_AVX2 NNR_INLINE void nnr_forward_avx2(NnrTrellis *t, NnrFront *f, int i, int at, int n, int rated, int grouped)
{
    const __m256i into_even = _mm256_setr_epi32(0, 2, 4, 6, 7, 5, 3, 1);
    const __m256i into_odd = _mm256_setr_epi32(4, 6, 0, 2, 3, 1, 7, 5);
    const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i spread = _mm256_set1_epi32(NNR_SPREAD);
    const __m256i zero_after_zero = _mm256_loadu_si256((const __m256i *)t->rates.zero[0][0]);
    __m256i cost = _mm256_loadu_si256((const __m256i *)f->cost);
    __m256i nonzero = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(f->nonzero), lanes), lanes);
    int sign = f->sign;
    for (; i < n; i++) {
        int negative = t->flags[at + i] & NNR_NEGATIVE, g = grouped ? nnr_group(t, at + i) : 0;
        __m256i even = _mm256_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)t->branch[i].even));
        __m256i odd = _mm256_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)t->branch[i].odd));
        __m256i more, choice;
        if (rated) {
            __m256i zero = _mm256_blendv_epi8(
                grouped ? _mm256_loadu_si256((const __m256i *)t->rates.zero[g][0]) : zero_after_zero,
                _mm256_loadu_si256((const __m256i *)t->rates.zero[g][sign]), nonzero);
            __m256i flags = _mm256_blendv_epi8(
                _mm256_loadu_si256((const __m256i *)t->rates.nonzero[g][0][negative]),
                _mm256_loadu_si256((const __m256i *)t->rates.nonzero[g][sign][negative]), nonzero);
            zero = _mm256_add_epi32(_mm256_add_epi32(zero, _mm256_set1_epi32(t->zero[i])), cost);
            even = _mm256_add_epi32(_mm256_add_epi32(flags, even), cost);
            odd = _mm256_add_epi32(_mm256_add_epi32(flags, odd), cost);
            more = _mm256_cmpgt_epi32(zero, even);
            even = _mm256_min_epi32(zero, even);
            t->nonzero[at + i] = (uint32_t)_mm256_movemask_epi8(more);
            more = _mm256_permutevar8x32_epi32(more, into_even);
        } else {
            even = _mm256_add_epi32(even, cost);
            odd = _mm256_add_epi32(odd, cost);
        }
        even = _mm256_permutevar8x32_epi32(even, into_even);
        odd = _mm256_permutevar8x32_epi32(odd, into_odd);
        choice = _mm256_cmpgt_epi32(even, odd);
        cost = _mm256_min_epi32(even, odd);
        t->odd[at + i] = (uint32_t)_mm256_movemask_epi8(choice);
        if (rated)
            nonzero = _mm256_or_si256(choice, more);
        sign = 2 - negative;
        if (i % 8 == 7) {
            __m256i least = _mm256_min_epi32(cost, _mm256_permute2x128_si256(cost, cost, 1));
            least = _mm256_min_epi32(least, _mm256_shuffle_epi32(least, 0x4e));
            least = _mm256_min_epi32(least, _mm256_shuffle_epi32(least, 0xb1));
            cost = _mm256_min_epi32(_mm256_sub_epi32(cost, least), spread);
        }
    }
    _mm256_storeu_si256((__m256i *)f->cost, cost);
    f->nonzero = _mm256_movemask_ps(_mm256_castsi256_ps(nonzero));
    f->sign = sign;
}
#endif

/* Search n values, from value `at` of the buffers. */
NNR_INLINE void nnr_search_plain(NnrTrellis *t, int at, int n, int rated)
{
    int i, m;
    for (; n > 0; at += m, n -= m) {
        m = n < NNR_CHUNK ? n : NNR_CHUNK;
        nnr_candidates_plain(t, 0, at, m, rated);
        i = nnr_careful(t, &t->front, at, m, rated);
        nnr_forward_plain(t, &t->front, i, at, m, rated);
    }
}

#if NNR_HAVE_AVX2
NNR_AVX2 NNR_INLINE void nnr_search_avx2(NnrTrellis *t, int at, int n, int rated, int grouped)
{
    int i, m;
    for (; n > 0; at += m, n -= m) {
        m = n < NNR_CHUNK ? n : NNR_CHUNK;
        nnr_candidates_avx2(t, at, m, rated);
        i = nnr_careful(t, &t->front, at, m, rated);
        nnr_forward_avx2(t, &t->front, i, at, m, rated, grouped);
    }
}

NNR_AVX2 static void nnr_search_avx2_grouped(NnrTrellis *t, int at, int n) { nnr_search_avx2(t, at, n, 1, 1); }
NNR_AVX2 static void nnr_search_avx2_rated(NnrTrellis *t, int at, int n) { nnr_search_avx2(t, at, n, 1, 0); }
NNR_AVX2 static void nnr_search_avx2_exact(NnrTrellis *t, int at, int n) { nnr_search_avx2(t, at, n, 0, 0); }
#endif

static void nnr_search_plain_rated(NnrTrellis *t, int at, int n) { nnr_search_plain(t, at, n, 1); }
static void nnr_search_plain_exact(NnrTrellis *t, int at, int n) { nnr_search_plain(t, at, n, 0); }

/* ------------------------------------------------------------------------------------------------ uniform */
/* Find the cheaper of the two levels next to |x| = q steps, 0 excluded. */
NNR_INLINE void nnr_candidate_uniform(NnrTrellis *t, double x, float w, int i, int at)
{
    double q = (x < 0 ? -x : x) * t->scale;
    int32_t lower, m, a, b, negative = x < 0;
    const int32_t *cost = t->rates.magnitude[negative];
    float f, z;
    q = q < NNR_MAX_INDEX ? q : NNR_MAX_INDEX;
    lower = (int32_t)q;
    m = lower < NNR_MAGNITUDES ? lower : NNR_MAGNITUDES;
    f = (float)(q - lower);
    a = nnr_round(w * (f * f)) + cost[m];
    b = nnr_round(w * ((1 - f) * (1 - f))) + cost[m + 1];
    z = (float)m + f;
    z = w * (z * z);
    t->zero[i] = z < (float)NNR_CAP && lower < NNR_MAGNITUDES ? nnr_round(z) : NNR_CAP;
    t->branch[i].odd[0] = x == 0 ? NNR_NEVER : b < a ? b : a;
    t->lower[at] = lower + (b < a);
    t->flags[at] = (uint8_t)negative;
}

NNR_INLINE void nnr_candidates_uniform(NnrTrellis *t, int at, int n)
{
    const float *weights = t->weights ? t->weights + at : (const float *)0;
    int i;
    if (t->x32)
        for (i = 0; i < n; i++)
            nnr_candidate_uniform(t, t->x32[at + i], nnr_weight(weights, i), i, at + i);
    else
        for (i = 0; i < n; i++)
            nnr_candidate_uniform(t, t->x64[at + i], nnr_weight(weights, i), i, at + i);
}

/* Advance by n values. cost[0] is the cost of the survivor whose last level is zero, cost[1] of the other survivor. */
NNR_INLINE void nnr_forward_uniform(NnrTrellis *t, NnrFront *f, int at, int n)
{
    const NnrRates *r = &t->rates;
    int i;
    for (i = 0; i < n; i++) {
        int negative = t->flags[at + i], z, v, g = nnr_group(t, at + i);
        int32_t a = f->cost[0] + r->zero[g][0][0], b = f->cost[1] + r->zero[g][f->sign][0];
        int32_t c = f->cost[0] + r->nonzero[g][0][negative][0], d = f->cost[1] + r->nonzero[g][f->sign][negative][0];
        z = b < a;
        v = d < c;
        a = (z ? b : a) + t->zero[i];
        c = (v ? d : c) + t->branch[i].odd[0];
        t->odd[at + i] = (uint32_t)(z | v << 4);
        b = a < c ? a : c;
        f->cost[0] = a - b < NNR_DEAD ? a - b : NNR_DEAD;
        f->cost[1] = c - b < NNR_DEAD ? c - b : NNR_DEAD;
        f->sign = negative ? 1 : 2;
    }
}

static void nnr_search_uniform(NnrTrellis *t, int at, int n)
{
    int m;
    for (; n > 0; at += m, n -= m) {
        m = n < NNR_CHUNK ? n : NNR_CHUNK;
        nnr_candidates_uniform(t, at, m);
        nnr_forward_uniform(t, &t->front, at, m);
    }
}

/* ------------------------------------------------------------------------------------------------ backward */
/* Return 4 times the state before value i of the buffers; s4 is 4 times the state after it. */
NNR_INLINE int nnr_before(const NnrTrellis *t, int s4, int i, int dq)
{
    /* Bits 4 s + 2 to 4 s + 4 are the state that precedes state s if the level is odd; 32 bits higher: if even. */
    const uint64_t table = UINT64_C(0x4d5d90815c4c8190);
    int even = (int)(~((uint64_t)t->odd[i] << 5) >> s4) & 32;
    return dq ? (int)(table >> (s4 | even)) & 28 : 4 - (even >> 3);
}

/* Trace the survivor of state s back over the first n values of the buffers, and write its path. */
NNR_INLINE void nnr_trace(NnrTrellis *t, int s, int n, int dq, int rated)
{
    int i, s4 = 4 * s, p, after = 0;
    for (i = n - 1; i >= 0; i--) {
        p = t->odd[i] >> s4 & 1;
        after = s4 >> 2;
        s4 = nnr_before(t, s4, i, dq);
        if (!dq)
            t->path[i] = (uint8_t)(after << 4);
        else
            t->path[i] = (uint8_t)(s4 >> 2 | p << 3 | (rated ? t->nonzero[i] >> s4 & 1 : 1) << 4);
    }
}

/* Write the levels of the first n values of the buffers, by their decided path. */
NNR_INLINE void nnr_levels(NnrTrellis *t, int n, int dq, int rated)
{
    int32_t *levels = t->levels;
    const int32_t *lower = t->lower;
    const uint8_t *path = t->path, *flags = t->flags;
    int i;
    for (i = 0; i < n; i++) {
        int32_t level = lower[i], w = path[i], f = flags[i], keep = w >> 4 & 1, negative = -(f & NNR_NEGATIVE);
        if (dq) {
            int32_t p = w >> 3 & 1, near_zero = f >> 2 & 1;
            level += w & f >> 1 & 1;
            level += (level ^ p) & 1;
            keep = p | (rated ? keep : !(w & near_zero));
        }
        level &= -keep;
        levels[i] = (level ^ negative) - negative;
    }
}

static void nnr_count(NnrTrellis *t, int n)
{
    const int32_t *levels = t->levels;
    int i, prev = t->prev;
    for (i = 0; i < n; i++) {
        int32_t level = levels[i], negative = level < 0, size = negative ? -level : level;
        int what = (level != 0) * 2 - negative;
        t->counts.kind[nnr_group(t, i)][t->path[i] & 7][prev][what]++;
        t->counts.magnitude[negative][size < NNR_MAGNITUDES ? size : NNR_MAGNITUDES]++;
        prev = what;
    }
}

/* ------------------------------------------------------------------------------------------------ blocks */
static void nnr_search(NnrTrellis *t, int at, int n)
{
    if (!t->dq)
        nnr_search_uniform(t, at, n);
#if NNR_HAVE_AVX2
    else if (!t->plain && !t->rate)
        nnr_search_avx2_exact(t, at, n);
    else if (!t->plain)
        t->groups ? nnr_search_avx2_grouped(t, at, n) : nnr_search_avx2_rated(t, at, n);
#endif
    else
        t->rate ? nnr_search_plain_rated(t, at, n) : nnr_search_plain_exact(t, at, n);
}

static int nnr_best(const NnrTrellis *t)
{
    int s, best = 0;
    for (s = 1; s < (t->dq ? 8 : 2); s++)
        if (t->front.cost[s] < t->front.cost[best])
            best = s;
    return best;
}

NNR_INLINE void nnr_decide_as(NnrTrellis *t, int n, int dq, int rated)
{
    nnr_trace(t, nnr_best(t), n, dq, rated);
    nnr_levels(t, n, dq, rated);
}

static void nnr_decide(NnrTrellis *t, int n)
{
    if (!t->dq)
        nnr_decide_as(t, n, 0, 1);
    else if (t->rate)
        nnr_decide_as(t, n, 1, 1);
    else
        nnr_decide_as(t, n, 1, 0);
}

/* Fix the levels of the first `done` of n values in the buffers, and drop survivors with other levels. */
static void nnr_commit(NnrTrellis *t, int n, int done)
{
    int s, i, states = t->dq ? 8 : 2, best = nnr_best(t), apart = 1, through[8];
    for (s = 0; s < states; s++)
        through[s] = 4 * s;
    for (i = n - 1; i >= done && apart; i--)
        for (apart = s = 0; s < states; s++) {
            through[s] = nnr_before(t, through[s], i, t->dq);
            apart |= through[s] != through[0];
        }
    for (s = 0; s < states; s++)
        if (through[s] != through[best]) {
            t->front.alive &= ~(1 << s);
            t->front.cost[s] = NNR_DEAD;
        }
    if (done) {
        int32_t level = t->levels[done - 1];
        t->prev = level == 0 ? 0 : level < 0 ? 1 : 2;
    }
    t->pending = n - done;
    memmove(t->lower, t->lower + done, sizeof *t->lower * (size_t)t->pending);
    memmove(t->flags, t->flags + done, sizeof *t->flags * (size_t)t->pending);
    memmove(t->odd, t->odd + done, sizeof *t->odd * (size_t)t->pending);
    memmove(t->nonzero, t->nonzero + done, sizeof *t->nonzero * (size_t)t->pending);
}

static void nnr_begin(NnrTrellis *t)
{
    int s;
    t->pending = t->prev = 0;
    for (s = 0; s < 8; s++)
        t->front.cost[s] = s ? NNR_DEAD : 0; /* coding starts in state 0 with a preceding level of 0 */
    t->front.alive = 1;
    t->front.nonzero = 0;
    t->front.sign = 2;
    memset(&t->counts, 0, sizeof t->counts);
    memset(&t->rates, 0, sizeof t->rates);
    t->rates.magnitude[0][0] = t->rates.magnitude[1][0] = NNR_NEVER;
}

/* Search n more values `passes` times. Each pass after the first one uses the rates of the previous pass. Return the
   number of levels that are decided. */
static int nnr_block(NnrTrellis *t, int n, int last, int passes)
{
    int total = t->pending + n, done = last ? total : total > NNR_DELAY ? total - NNR_DELAY : 0;
    NnrFront front = t->front;
    NnrCounts counts = t->counts;
    while (passes--) {
        t->front = front;
        t->counts = counts;
        nnr_search(t, t->pending, n);
        nnr_decide(t, total);
        if (last && !passes)
            return total;
        if (!t->rate)
            break;
        nnr_count(t, done);
        nnr_rates(t);
    }
    if (t->rate)
        nnr_fade(&t->counts, 1);
    if (!last)
        nnr_commit(t, total, done);
    return done;
}

/* Search the arrays of `t` by a window. */
static void nnr_open(NnrTrellis *t, NnrWindow *w, NnrScan scan)
{
    w->x32 = t->x32;
    w->x64 = t->x64;
    w->weights = t->weights;
    w->groups = t->groups;
    w->levels = t->levels;
    w->ahead = w->behind = scan;
    t->x32 = t->x32 ? w->values32 : NULL;
    t->x64 = t->x64 ? w->values64 : NULL;
    t->weights = t->weights ? w->some_weights : NULL;
    t->groups = t->groups ? w->some_groups : NULL;
    t->levels = w->some_levels;
}

/* Search the next n values; `w` is NULL without a block scan. */
static void nnr_next(NnrTrellis *t, NnrWindow *w, int n, int last, int passes)
{
    int at = t->pending, done;
    if (!w) {
        done = nnr_block(t, n, last, passes);
        t->x32 = t->x32 ? t->x32 + done : NULL;
        t->x64 = t->x64 ? t->x64 + done : NULL;
        t->weights = t->weights ? t->weights + done : NULL;
        t->groups = t->groups ? t->groups + done : NULL;
        t->levels += done;
        return;
    }
    if (w->weights)
        nnr_gather(w->ahead, w->weights, w->some_weights + at, n, sizeof *w->weights);
    if (w->groups)
        nnr_gather(w->ahead, w->groups, w->some_groups + at, n, 1);
    w->ahead = w->x32 ? nnr_gather(w->ahead, w->x32, w->values32 + at, n, sizeof *w->x32)
                      : nnr_gather(w->ahead, w->x64, w->values64 + at, n, sizeof *w->x64);
    done = nnr_block(t, n, last, passes);
    w->behind = nnr_scatter(w->behind, w->some_levels, w->levels, done);
    memmove(w->some_groups, w->some_groups + done, (size_t)(at + n - done));
}
#endif
