/* Lanes in 256-bit registers. The steps are the same as in `_lanes_avx512.h`, in two halves of 8 lanes. Masks are
   vectors, contexts are stored one by one, and ivlLpsRange is gathered from a table. */
#ifndef NNR_LANES_AVX2_H
#define NNR_LANES_AVX2_H

#include "_lanes.h"

/* ivlLpsRange in words; for each set of 8 items, the numbers of its members, one in each byte */
static int32_t NNR_LPS_WORDS[256];
static uint64_t NNR_MEMBERS[256];

/* Fill the tables. Call it before all other functions of this file. */
static void nnr_prepare_lanes_avx2(void)
{
    int i, k, n;
    for (i = 0; i < 256; i++) {
        NNR_LPS_WORDS[i] = NNR_RLPS[i];
        NNR_MEMBERS[i] = 0;
        for (k = n = 0; k < 8; k++)
            if (i >> k & 1)
                NNR_MEMBERS[i] |= (uint64_t)k << (8 * n++);
    }
}

#if NNR_HAVE_AVX2
#define NNR_AVX2_TARGET target("avx2,popcnt")
#define NNR_AVX2_INLINE static inline __attribute__((always_inline, NNR_AVX2_TARGET))

static int nnr_has_lanes_avx2(void) { return nnr_has_avx2() && __builtin_cpu_supports("popcnt"); }

typedef struct {
    __m256i window, range, valid, context, entry, state, sign, left, pos, base, dq, unary, safe, active;
    __m256i sig, sign_flag, x, x2;
    __m256i x_positive, x_negative, x2_first; /* the first contexts */
} NnrVectors256;

typedef struct {
    __m256i states, steep, flat, factors, swap; /* tables of 16 bytes, twice */
#define NNR_DECLARE8(name, value) __m256i name;
    NNR_LANE_CONSTANTS(NNR_DECLARE8) NNR_DECLARE8(ranges, 0xe0) NNR_DECLARE8(exponent, 127 + 8)
    NNR_DECLARE8(odd_bytes, (int)0x80008000) NNR_DECLARE8(flip, 0x00800080) NNR_DECLARE8(upper, (int)0x80048000)
    NNR_DECLARE8(sides, NNR_AFTER + NNR_NEGATIVE)
} NnrTables256;

#define NNR_ALL8 _mm256_set1_epi32

NNR_AVX2_INLINE __m256i nnr_select(__m256i mask, __m256i a, __m256i b) { return _mm256_blendv_epi8(b, a, mask); }
NNR_AVX2_INLINE __m256i nnr_or3(__m256i a, __m256i b, __m256i c)
{
    return _mm256_or_si256(a, _mm256_or_si256(b, c));
}

/* Complete levels in the lanes `done`: log the values, count, and return the lanes that have levels left. */
NNR_AVX2_INLINE __m256i nnr_complete_256(NnrVectors256 *v, const NnrTables256 *k, __m256i done, __m256i level,
                                         __m256i sign, int32_t *row)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i value = _mm256_sllv_epi32(level, v->dq);
    const __m256i odd = _mm256_andnot_si256(_mm256_cmpeq_epi32(level, zero), _mm256_and_si256(v->state, k->two));
    value = _mm256_sub_epi32(value, _mm256_srli_epi32(odd, 1));
    value = _mm256_sign_epi32(value, _mm256_or_si256(_mm256_slli_epi32(sign, 25), k->one)); /* bit 6 is the sign */
    _mm256_store_si256((__m256i *)row, nnr_select(done, value, k->none));
    v->left = _mm256_add_epi32(v->left, done);
    return _mm256_andnot_si256(_mm256_cmpeq_epi32(v->left, zero), done);
}

/* Decode a bin in each lane that has one. */
NNR_AVX2_INLINE void nnr_bin_256(NnrVectors256 *v, const NnrTables256 *k, uint32_t *contexts, int32_t *row)
{
    const __m256i was = v->context, c = v->entry, x = v->x, x2 = v->x2, sig = v->sig, sign_flag = v->sign_flag;
    const __m256i single = nnr_or3(sig, sign_flag, x), m = _mm256_or_si256(single, x2);
    /* the next context after a bin 0 and a bin 1 */
    const __m256i level = _mm256_and_si256(_mm256_and_si256(was, k->level_bits), x);
    const __m256i full = _mm256_cmpeq_epi32(level, v->unary), to_x2 = _mm256_or_si256(full, x2);
    const __m256i state = _mm256_shuffle_epi8(k->states, _mm256_or_si256(_mm256_and_si256(was, v->dq), v->state));
    const __m256i prev = _mm256_and_si256(_mm256_or_si256(was, k->after), _mm256_and_si256(x, k->sides));
    __m256i next0 = nnr_or3(v->base, state, prev);
    __m256i next1 = _mm256_or_si256(_mm256_add_epi32(was, k->one), _mm256_and_si256(sig, k->signs));
    __m256i sum, lps, range, scaled, less, zero, one, count, t, index, more, done;
    __attribute__((aligned(32))) uint32_t places[8], entries[8];
    int i;
    next0 = nnr_select(sign_flag, v->x_positive, next0);
    next1 = nnr_select(sign_flag, v->x_negative, next1);
    next1 = nnr_select(full, v->x2_first, next1);
    /* the bin */
    sum = _mm256_add_epi32(c, _mm256_slli_epi32(c, 16));
    index = _mm256_abs_epi32(_mm256_srai_epi32(sum, 26));
    index = _mm256_or_si256(index, _mm256_and_si256(v->range, k->ranges));
    lps = _mm256_and_si256(_mm256_i32gather_epi32(NNR_LPS_WORDS, index, 4), m);
    range = _mm256_sub_epi32(v->range, lps);
    scaled = _mm256_slli_epi32(range, 23);
    less = _mm256_and_si256(_mm256_cmpeq_epi32(_mm256_max_epu32(v->window, scaled), v->window), m);
    zero = _mm256_xor_si256(less, _mm256_srai_epi32(sum, 31));
    one = _mm256_andnot_si256(zero, m);
    v->context = nnr_select(_mm256_or_si256(single, one), nnr_select(zero, next0, next1), was);
    v->entry = _mm256_i32gather_epi32((const int *)contexts, v->context, 4);
    v->window = _mm256_sub_epi32(v->window, _mm256_and_si256(scaled, less));
    range = nnr_select(less, lps, range);
    count = _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(range)), 23); /* exponent: 127 + 8 - count */
    count = _mm256_sub_epi32(k->exponent, count);
    v->range = _mm256_sllv_epi32(range, count);
    v->window = _mm256_sllv_epi32(v->window, count);
    v->valid = _mm256_sub_epi32(v->valid, count);
    /* the states of the context after the bin; transitionTable is 16 times a byte */
    t = _mm256_srai_epi16(nnr_select(zero, _mm256_sub_epi16(k->sevens, c), c), 10);
    t = _mm256_or_si256(t, k->odd_bytes);
    t = _mm256_or_si256(_mm256_shuffle_epi8(k->flat, t),
                        _mm256_shuffle_epi8(k->steep, _mm256_xor_si256(t, k->flip)));
    index = _mm256_or_si256(_mm256_and_si256(c, k->shifts), k->upper);
    t = _mm256_mullo_epi16(t, _mm256_shuffle_epi8(k->factors, index));
    t = _mm256_and_si256(t, _mm256_and_si256(m, k->deltas));
    t = _mm256_add_epi16(c, _mm256_sub_epi16(_mm256_xor_si256(t, zero), zero));
    _mm256_store_si256((__m256i *)places, was);
    _mm256_store_si256((__m256i *)entries, t);
    __asm__("" : "+m"(places), "+m"(entries)); /* extraction from vectors would be slower */
    for (i = 0; i < 8; i++)
        contexts[places[i]] = entries[i];
    v->entry = nnr_select(_mm256_cmpeq_epi32(v->context, was), t, v->entry);
    /* the meaning of the bin, and the next syntax element */
    done = _mm256_and_si256(_mm256_or_si256(sig, x), zero);
    more = _mm256_and_si256(_mm256_or_si256(x, x2), one);
    v->sign = nnr_select(x, was, v->sign);
    v->sign_flag = _mm256_and_si256(sig, one);
    v->x2 = _mm256_and_si256(more, to_x2);
    v->x = _mm256_or_si256(sign_flag, _mm256_andnot_si256(to_x2, more));
    v->sig = nnr_complete_256(v, k, done, level, was, row);
    v->state = nnr_select(done, state, v->state);
}

/* Decode abs_remainder, all bins at once, in the lanes m. */
NNR_AVX2_INLINE void nnr_remainder_256(NnrVectors256 *v, __m256i m, const NnrTables256 *k, uint32_t *contexts,
                                       int32_t *row)
{
    const __m256i j = _mm256_and_si256(_mm256_and_si256(v->context, k->signs), m);
    const __m256i top = _mm256_srlv_epi32(v->window, _mm256_sub_epi32(NNR_ALL8(23), j));
    const __m256 ratio = _mm256_div_ps(_mm256_cvtepi32_ps(top), _mm256_cvtepi32_ps(v->range));
    __m256i q = _mm256_cvttps_epi32(ratio), level, state, prev;
    /* The ratio may be rounded up to an integer. */
    q = _mm256_add_epi32(q, _mm256_cmpgt_epi32(_mm256_mullo_epi32(q, v->range), top));
    q = _mm256_and_si256(q, m);
    level = _mm256_add_epi32(_mm256_add_epi32(q, v->unary), _mm256_sllv_epi32(k->one, j));
    v->window = _mm256_sllv_epi32(v->window, j);
    v->window = _mm256_sub_epi32(v->window, _mm256_slli_epi32(_mm256_mullo_epi32(q, v->range), 23));
    v->valid = _mm256_sub_epi32(v->valid, j);
    state = _mm256_and_si256(_mm256_and_si256(level, v->dq), k->one);
    state = _mm256_shuffle_epi8(k->states, _mm256_or_si256(state, v->state));
    v->sig = _mm256_or_si256(v->sig, nnr_complete_256(v, k, m, level, v->sign, row));
    v->state = nnr_select(m, state, v->state);
    prev = _mm256_or_si256(_mm256_and_si256(v->sign, k->negative), k->after);
    v->context = nnr_select(m, nnr_or3(v->base, state, prev), v->context);
    v->entry = _mm256_i32gather_epi32((const int *)contexts, v->context, 4);
}

/* Refill the windows to at least 25 valid bits. */
NNR_AVX2_INLINE void nnr_refill_256(NnrVectors256 *v, const NnrTables256 *k, const void *feed)
{
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_i32gather_epi32((const int *)feed, v->pos, 1), k->swap);
    const __m256i n = _mm256_srli_epi32(_mm256_sub_epi32(k->bits, v->valid), 3);
    v->window = _mm256_or_si256(v->window, _mm256_srlv_epi32(bytes, v->valid));
    v->valid = _mm256_add_epi32(v->valid, _mm256_slli_epi32(n, 3));
    v->pos = _mm256_add_epi32(v->pos, n);
}

/* Append the levels of 8 rows to the levels of their lanes, the first of which is `first`. */
NNR_AVX2_INLINE void nnr_drain_256(NnrLanes *lanes, int first, int32_t (*rows)[16], int n)
{
    const __m256i none = NNR_ALL8(INT32_MIN);
    __m256i a[8], b[8];
    int i;
    for (i = 0; i < 8; i++)
        a[i] = i < n ? _mm256_load_si256((const __m256i *)(rows[i] + first)) : none;
    for (i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (i = 0; i < 8; i += 4) {
        a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (i = 0; i < 4; i++) {
        b[i] = _mm256_permute2x128_si256(a[i], a[i + 4], 0x20);
        b[i + 4] = _mm256_permute2x128_si256(a[i], a[i + 4], 0x31);
    }
    for (i = 0; i < 8; i++) {
        const int m = ~_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(b[i], none))) & 255;
        const __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)&NNR_MEMBERS[m]));
        uint32_t *const place = &lanes->place[first + i];
        _mm256_storeu_si256((__m256i *)(lanes->held[first + i] + *place), _mm256_permutevar8x32_epi32(b[i], order));
        *place += (uint32_t)__builtin_popcount((unsigned)m);
    }
}

NNR_AVX2_INLINE __m256i nnr_mask_256(uint32_t lanes, int first)
{
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(NNR_ALL8((int)(lanes >> first)), bits), bits);
}

NNR_AVX2_INLINE uint32_t nnr_bits_256(__m256i mask, int first)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(mask)) << first;
}

/* Decode bins until a lane waits for an event, or for a number of steps. Return the lanes that wait. */
static __attribute__((noinline, NNR_AVX2_TARGET)) uint32_t nnr_run_lanes_avx2(NnrLanes *lanes, int64_t steps)
{
    __attribute__((aligned(32))) int32_t rows[8][16];
    uint8_t tables[5][32];
    NnrVectors256 v[2], *h;
    NnrTables256 k;
    uint32_t events, ready;
    int64_t done = 0;
    int i, row = 0, first;
    for (i = 0; i < 32; i++) {
        tables[0][i] = (uint8_t)(2 * NNR_STATE[i >> 1 & 7][i & 1]);
        tables[1][i] = (uint8_t)(NNR_TRANSITION[i & 15] / 16);
        tables[2][i] = (uint8_t)(NNR_TRANSITION[16 + (i & 15)] / 16);
        tables[4][i] = (uint8_t)((i ^ 3) & 15);
        tables[3][i] = (uint8_t)(i & 4 ? 128 >> (i & 3) : 8 >> (i & 3));
    }
    k.states = _mm256_loadu_si256((const __m256i *)tables[0]);
    k.steep = _mm256_loadu_si256((const __m256i *)tables[1]);
    k.flat = _mm256_loadu_si256((const __m256i *)tables[2]);
    k.factors = _mm256_loadu_si256((const __m256i *)tables[3]);
    k.swap = _mm256_loadu_si256((const __m256i *)tables[4]);
#define NNR_HIDDEN8(name, value) \
    k.name = NNR_ALL8(value); \
    __asm__("" : "+x"(k.name));
    NNR_LANE_CONSTANTS(NNR_HIDDEN8) NNR_HIDDEN8(ranges, 0xe0) NNR_HIDDEN8(exponent, 127 + 8)
    NNR_HIDDEN8(odd_bytes, (int)0x80008000) NNR_HIDDEN8(flip, 0x00800080) NNR_HIDDEN8(upper, (int)0x80048000)
    NNR_HIDDEN8(sides, NNR_AFTER + NNR_NEGATIVE)
#define NNR_LOAD8(field) h->field = _mm256_loadu_si256((const __m256i *)(lanes->field + first));
#define NNR_STORE8(field) _mm256_storeu_si256((__m256i *)(lanes->field + first), h->field);
    for (first = 0; first < 16; first += 8) {
        h = v + first / 8;
        NNR_LANE_FIELDS(NNR_LOAD8) NNR_LOAD8(base) NNR_LOAD8(dq) NNR_LOAD8(unary) NNR_LOAD8(safe)
        h->active = nnr_mask_256(lanes->active, first);
        h->sig = nnr_mask_256(lanes->sig, first);
        h->sig = _mm256_andnot_si256(_mm256_cmpeq_epi32(h->left, _mm256_setzero_si256()), h->sig);
        h->x_positive = _mm256_or_si256(h->base, NNR_ALL8(NNR_X + 1));
        h->x_negative = _mm256_or_si256(h->base, NNR_ALL8(NNR_X + NNR_NEGATIVE + 1));
        h->x2_first = _mm256_or_si256(h->base, NNR_ALL8(NNR_X2));
        h->sign_flag = nnr_mask_256(lanes->sign_flag, first);
        h->x = nnr_mask_256(lanes->x, first);
        h->x2 = nnr_mask_256(lanes->x2, first);
        h->entry = _mm256_i32gather_epi32((const int *)lanes->contexts, h->context, 4);
    }
    for (;;) {
        events = ready = 0;
        for (first = 0; first < 16; first += 8) {
            const __m256i zero = _mm256_setzero_si256();
            __m256i waiting, ended, place;
            h = v + first / 8;
            waiting = _mm256_andnot_si256(_mm256_or_si256(nnr_or3(h->sig, h->sign_flag, h->x), h->x2), h->active);
            ended = _mm256_cmpeq_epi32(h->left, zero);
            ready |= nnr_bits_256(_mm256_andnot_si256(ended, waiting), first);
            place = _mm256_and_si256(h->context, NNR_ALL8(NNR_LANE_CONTEXTS - 1));
            place = _mm256_and_si256(_mm256_cmpgt_epi32(place, NNR_ALL8(NNR_X2 + NNR_LONG - 1)), h->x2);
            place = _mm256_or_si256(place, _mm256_and_si256(_mm256_cmpgt_epi32(h->pos, h->safe), h->active));
            events |= nnr_bits_256(_mm256_or_si256(place, _mm256_and_si256(waiting, ended)), first);
        }
        if (events || done >= steps)
            break;
        for (i = 0; i < 2; i++)
            nnr_refill_256(v + i, &k, lanes->feed);
        if (__builtin_expect(ready, 0)) {
            for (i = 0; i < 2; i++)
                nnr_remainder_256(v + i, nnr_mask_256(ready, 8 * i), &k, lanes->contexts, rows[row] + 8 * i);
            row++;
        } else {
            for (i = 0; i < 2; i++) {
                nnr_bin_256(v, &k, lanes->contexts, rows[row]);
                nnr_bin_256(v + 1, &k, lanes->contexts, rows[row] + 8);
                row++;
            }
            done += 2;
        }
        if (row > 6) {
            for (first = 0; first < 16; first += 8)
                nnr_drain_256(lanes, first, rows, row);
            row = 0;
        }
    }
    for (first = 0; first < 16; first += 8) {
        h = v + first / 8;
        nnr_drain_256(lanes, first, rows, row);
        NNR_LANE_FIELDS(NNR_STORE8)
    }
    lanes->sign_flag = nnr_bits_256(v[0].sign_flag, 0) | nnr_bits_256(v[1].sign_flag, 8);
    lanes->x = nnr_bits_256(v[0].x, 0) | nnr_bits_256(v[1].x, 8);
    lanes->x2 = nnr_bits_256(v[0].x2, 0) | nnr_bits_256(v[1].x2, 8);
    lanes->sig = lanes->active & ~(lanes->sign_flag | lanes->x | lanes->x2 | ready);
    lanes->steps += 16 * done;
    lanes->busy += __builtin_popcount(lanes->active) * done;
    return events;
}
#else
static int nnr_has_lanes_avx2(void) { return 0; }
static uint32_t nnr_run_lanes_avx2(NnrLanes *lanes, int64_t steps) { return (uint32_t)(steps & 0) & lanes->active; }
#endif

#endif
