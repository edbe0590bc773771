/* Lanes in 512-bit registers: one instruction for 16 lanes. */
#ifndef NNR_LANES_AVX512_H
#define NNR_LANES_AVX512_H

#include "_lanes.h"

#if NNR_HAVE_AVX2 /* the compiler and the processor's family */
#define NNR_AVX512_TARGET target("avx512f,avx512bw,avx512cd,avx512vl,avx512dq,avx512vbmi,popcnt")
#define NNR_AVX512 static inline __attribute__((always_inline, NNR_AVX512_TARGET))

static int nnr_has_lanes_avx512(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("popcnt");
}

typedef struct {
    __m512i window, range, valid, context, entry, state, sign, left, pos, base, dq, unary, safe;
    __m512i lps[4], transition, states, swap; /* tables */
#define NNR_DECLARE(name, value) __m512i name;
    NNR_LANE_CONSTANTS(NNR_DECLARE) NNR_DECLARE(four, 4) NNR_DECLARE(range128, 128) NNR_DECLARE(low_byte, 255)
    NNR_DECLARE(bias, 23)
    __mmask16 sig, sign_flag, x, x2;
} NnrVectors512;

#define NNR_ALL _mm512_set1_epi32
#define NNR_AND_OR 0xea /* of ternarylogic: a & b | c */

/* Return ivlLpsRange for the lanes `m`, 0 for others. */
NNR_AVX512 __m512i nnr_lps_512(const NnrVectors512 *v, __mmask16 m, __m512i state)
{
    const __m512i index = _mm512_ternarylogic_epi32(v->range, v->bits, state, NNR_AND_OR);
    const __mmask64 odd = _mm512_test_epi8_mask(v->range, v->negative);
    const __mmask16 upper = _mm512_test_epi32_mask(v->range, v->range128);
    __m512i low = _mm512_permutexvar_epi8(index, v->lps[0]), high = _mm512_permutexvar_epi8(index, v->lps[2]);
    low = _mm512_mask_permutexvar_epi8(low, odd, index, v->lps[1]);
    high = _mm512_mask_permutexvar_epi8(high, odd, index, v->lps[3]);
    return _mm512_maskz_and_epi32(m, _mm512_mask_mov_epi32(low, upper, high), v->low_byte);
}

/* Complete levels in the lanes `done`: log the values, count, and return the lanes that have levels left. */
NNR_AVX512 __mmask16 nnr_complete_512(NnrVectors512 *v, __mmask16 done, __mmask16 nonzero, __m512i level,
                                      __m512i sign, int32_t *row)
{
    __m512i value = _mm512_sllv_epi32(level, v->dq);
    value = _mm512_mask_sub_epi32(value, _mm512_mask_test_epi32_mask(nonzero, v->state, v->two), value, v->one);
    value = _mm512_mask_sub_epi32(value, _mm512_mask_test_epi32_mask(nonzero, sign, v->negative),
                                  _mm512_setzero_si512(), value);
    _mm512_store_si512(row, _mm512_mask_mov_epi32(v->none, done, value));
    v->left = _mm512_mask_sub_epi32(v->left, done, v->left, v->one);
    return _mm512_mask_test_epi32_mask(done, v->left, v->left);
}

/* Decode a bin in each lane that has one. The entry of the next context is loaded before the current one is stored, so
   that no load waits for a store: if both are the same context, its states are taken from the register. */
NNR_AVX512 void nnr_bin_512(NnrVectors512 *v, uint32_t *contexts, int32_t *row)
{
    const __m512i was = v->context, c = v->entry;
    const __mmask16 sig = v->sig, sign_flag = v->sign_flag, x = v->x, x2 = v->x2, xs = _kor_mask16(x, x2);
    const __mmask16 m = _kor_mask16(_kor_mask16(sig, sign_flag), xs);
    /* the next context after a bin 0 and a bin 1 */
    const __m512i level = _mm512_maskz_and_epi32(x, was, v->level_bits);
    const __mmask16 full = _mm512_mask_cmpeq_epi32_mask(x, level, v->unary), to_x2 = _kor_mask16(full, x2);
    const __m512i state = _mm512_permutexvar_epi32(
        _mm512_ternarylogic_epi32(was, v->dq, v->state, NNR_AND_OR), v->states);
    const __m512i prev = _mm512_maskz_ternarylogic_epi32(x, was, v->negative, v->after, NNR_AND_OR);
    __m512i next0 = _mm512_ternarylogic_epi32(v->base, state, prev, 0xfe);
    __m512i next1 = _mm512_add_epi32(was, v->one);
    __m512i sum, lps, range, scaled, count, shift, t;
    __mmask16 less, b, more, done;
    next0 = _mm512_mask_or_epi32(next0, sign_flag, v->base, v->x_positive);
    next0 = _mm512_mask_mov_epi32(next0, x2, was);
    next1 = _mm512_mask_or_epi32(next1, sig, was, v->signs);
    next1 = _mm512_mask_or_epi32(next1, sign_flag, v->base, v->x_negative);
    next1 = _mm512_mask_or_epi32(next1, full, v->base, v->x2_first);
    /* the bin; the upper half of the sum is 8 * (16 * pStateIdx0 + pStateIdx1), plus at most 5 */
    sum = _mm512_add_epi32(c, _mm512_slli_epi32(c, 16));
    lps = nnr_lps_512(v, m, _mm512_abs_epi32(_mm512_srai_epi32(sum, 26)));
    range = _mm512_sub_epi32(v->range, lps);
    scaled = _mm512_slli_epi32(range, 23);
    less = _mm512_mask_cmpge_epu32_mask(m, v->window, scaled);
    b = _kxnor_mask16(less, _mm512_movepi32_mask(sum));
    v->context = _mm512_mask_mov_epi32(was, m, _mm512_mask_mov_epi32(next0, b, next1));
    v->entry = _mm512_i32gather_epi32(v->context, contexts, 4);
    v->window = _mm512_mask_sub_epi32(v->window, less, v->window, scaled);
    range = _mm512_mask_mov_epi32(range, less, lps);
    count = _mm512_sub_epi32(_mm512_lzcnt_epi32(range), v->bias);
    v->range = _mm512_sllv_epi32(range, count);
    v->window = _mm512_sllv_epi32(v->window, count);
    v->valid = _mm512_sub_epi32(v->valid, count);
    /* the states of the context after the bin */
    shift = _mm512_ternarylogic_epi32(c, v->shifts, v->four, NNR_AND_OR);
    t = _mm512_mask_mov_epi32(_mm512_sub_epi16(v->sevens, c), b, c);
    t = _mm512_permutexvar_epi16(_mm512_srai_epi16(t, 10), v->transition);
    t = _mm512_and_si512(_mm512_srlv_epi16(t, shift), v->deltas);
    t = _mm512_mask_mov_epi32(_mm512_sub_epi16(c, t), b, _mm512_add_epi16(c, t));
    _mm512_mask_i32scatter_epi32(contexts, m, was, t, 4);
    v->entry = _mm512_mask_mov_epi32(v->entry, _mm512_mask_cmpeq_epi32_mask(m, v->context, was), t);
    /* the meaning of the bin, and the next syntax element */
    done = _kandn_mask16(b, _kor_mask16(sig, x));
    more = _kand_mask16(xs, b);
    v->sign = _mm512_mask_mov_epi32(v->sign, x, was);
    v->sign_flag = _kand_mask16(sig, b);
    v->x2 = _kand_mask16(more, to_x2);
    v->x = _kor_mask16(sign_flag, _kandn_mask16(to_x2, more));
    v->sig = nnr_complete_512(v, done, x, level, was, row);
    v->state = _mm512_mask_mov_epi32(v->state, done, state);
}

/* The state of lanes after abs_remainder */
typedef struct {
    __m512i window, valid, context, entry, state;
    __mmask16 sig;
} NnrRemainder512;

/* Decode abs_remainder, all bins at once, in the lanes m. Each bin halves the interval, so the number is the quotient
   of IvlOffset and the range. The lanes take part in steps again after `nnr_resume_512`. */
NNR_AVX512 void nnr_remainder_512(NnrVectors512 *v, __mmask16 m, uint32_t *contexts, int32_t *row, NnrRemainder512 *r)
{
    const __m512i j = _mm512_and_si512(v->context, v->signs);
    const __m512i top = _mm512_srlv_epi32(v->window, _mm512_sub_epi32(v->bias, j));
    const __m512i q = _mm512_cvttps_epi32(_mm512_div_round_ps(_mm512_cvtepi32_ps(top), _mm512_cvtepi32_ps(v->range),
                                                              _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
    const __m512i level = _mm512_add_epi32(_mm512_add_epi32(q, v->unary), _mm512_sllv_epi32(v->one, j));
    const __m512i prev = _mm512_ternarylogic_epi32(v->sign, v->negative, v->after, NNR_AND_OR);
    r->window = _mm512_sllv_epi32(v->window, j);
    r->window = _mm512_sub_epi32(r->window, _mm512_slli_epi32(_mm512_mullo_epi32(q, v->range), 23));
    r->valid = _mm512_sub_epi32(v->valid, j);
    r->state = _mm512_permutexvar_epi32(_mm512_ternarylogic_epi32(level, v->dq, v->state, NNR_AND_OR), v->states);
    r->context = _mm512_mask_mov_epi32(v->context, m, _mm512_ternarylogic_epi32(v->base, r->state, prev, 0xfe));
    r->entry = _mm512_i32gather_epi32(r->context, contexts, 4);
    r->sig = nnr_complete_512(v, m, m, level, v->sign, row);
}

NNR_AVX512 void nnr_resume_512(NnrVectors512 *v, __mmask16 m, const NnrRemainder512 *r)
{
    v->window = _mm512_mask_mov_epi32(v->window, m, r->window);
    v->valid = _mm512_mask_mov_epi32(v->valid, m, r->valid);
    v->context = _mm512_mask_mov_epi32(v->context, m, r->context);
    v->entry = _mm512_mask_mov_epi32(v->entry, m, r->entry);
    v->state = _mm512_mask_mov_epi32(v->state, m, r->state);
    v->sig |= r->sig;
}

/* Refill the windows to at least 25 valid bits, enough for two bins or a remainder. */
NNR_AVX512 void nnr_refill_512(NnrVectors512 *v, const void *feed)
{
    const __m512i bytes = _mm512_shuffle_epi8(_mm512_i32gather_epi32(v->pos, feed, 1), v->swap);
    const __m512i n = _mm512_srli_epi32(_mm512_sub_epi32(v->bits, v->valid), 3);
    v->window = _mm512_or_si512(v->window, _mm512_srlv_epi32(bytes, v->valid));
    v->valid = _mm512_add_epi32(v->valid, _mm512_slli_epi32(n, 3));
    v->pos = _mm512_add_epi32(v->pos, n);
}

/* Append the levels of 16 rows to the levels of their lanes. */
static __attribute__((noinline, NNR_AVX512_TARGET)) void nnr_drain_512(NnrLanes *lanes, int32_t (*rows)[16], int n)
{
    const __m512i none = NNR_ALL(INT32_MIN);
    __m512i a[16], b[16];
    int i;
    for (; n < 16; n++)
        _mm512_store_si512(rows[n], none);
    for (i = 0; i < 16; i++)
        a[i] = _mm512_load_si512(rows[i]);
    for (i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (i = 0; i < 4; i++) {
        b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    }
    for (i = 0; i < 8; i++) {
        a[i] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88);
        a[i + 8] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd);
    }
    for (i = 0; i < 16; i++) {
        const __mmask16 m = _mm512_cmpneq_epi32_mask(a[i], none);
        _mm512_storeu_si512(lanes->held[i] + lanes->place[i], _mm512_maskz_compress_epi32(m, a[i]));
        lanes->place[i] += (uint32_t)__builtin_popcount(m);
    }
}

/* Decode bins until a lane waits for an event, or for a number of steps. Return the lanes that wait. */
static __attribute__((noinline, NNR_AVX512_TARGET)) uint32_t nnr_run_lanes_avx512(NnrLanes *lanes, int64_t steps)
{
    __attribute__((aligned(64))) int32_t rows[16][16];
    uint16_t transition[32];
    uint32_t states[16];
    uint8_t swap[64];
    NnrVectors512 v;
    NnrRemainder512 r;
    const __mmask16 active = (__mmask16)lanes->active;
    __mmask16 events, waiting, ready;
    int64_t done = 0;
    int i, row = 0;
    for (i = 0; i < 32; i++)
        transition[i] = (uint16_t)(NNR_TRANSITION[(i + 16) & 31] << 3);
    for (i = 0; i < 16; i++)
        states[i] = 2u * NNR_STATE[i >> 1][i & 1];
    for (i = 0; i < 64; i++)
        swap[i] = (uint8_t)(i ^ 3);
    for (i = 0; i < 4; i++)
        v.lps[i] = _mm512_loadu_si512(NNR_RLPS + 64 * i);
    v.transition = _mm512_loadu_si512(transition);
    v.states = _mm512_loadu_si512(states);
    v.swap = _mm512_loadu_si512(swap);
#define NNR_HIDDEN(name, value) \
    v.name = NNR_ALL(value); \
    __asm__("" : "+v"(v.name));
    NNR_LANE_CONSTANTS(NNR_HIDDEN) NNR_HIDDEN(four, 4) NNR_HIDDEN(range128, 128) NNR_HIDDEN(low_byte, 255)
    NNR_HIDDEN(bias, 23)
#define NNR_LOAD(field) v.field = _mm512_loadu_si512(lanes->field);
#define NNR_STORE(field) _mm512_storeu_si512(lanes->field, v.field);
    NNR_LANE_FIELDS(NNR_LOAD) NNR_LOAD(base) NNR_LOAD(dq) NNR_LOAD(unary) NNR_LOAD(safe)
    v.sig = (__mmask16)lanes->sig & _mm512_test_epi32_mask(v.left, v.left);
    v.sign_flag = (__mmask16)lanes->sign_flag;
    v.x = (__mmask16)lanes->x;
    v.x2 = (__mmask16)lanes->x2;
    v.entry = _mm512_i32gather_epi32(v.context, lanes->contexts, 4);
    for (;;) {
        const __m512i place = _mm512_and_si512(v.context, v.low_byte);
        waiting = active & (__mmask16)~(v.sig | v.sign_flag | v.x | v.x2);
        ready = waiting & _mm512_test_epi32_mask(v.left, v.left);
        events = waiting & ~ready;
        events |= active & _mm512_cmpgt_epi32_mask(v.pos, v.safe);
        events |= _mm512_mask_cmpge_epu32_mask(v.x2, place, NNR_ALL(NNR_X2 + NNR_LONG));
        if (events || done >= steps)
            break;
        nnr_refill_512(&v, lanes->feed);
        if (ready)
            nnr_remainder_512(&v, ready, lanes->contexts, rows[row++], &r);
        nnr_bin_512(&v, lanes->contexts, rows[row]);
        nnr_bin_512(&v, lanes->contexts, rows[row + 1]);
        if (ready)
            nnr_resume_512(&v, ready, &r);
        row += 2;
        done += 2;
        if (row > 13) {
            nnr_drain_512(lanes, rows, row);
            row = 0;
        }
    }
    nnr_drain_512(lanes, rows, row);
    NNR_LANE_FIELDS(NNR_STORE)
    lanes->sign_flag = v.sign_flag;
    lanes->x = v.x;
    lanes->x2 = v.x2;
    lanes->sig = active & (__mmask16)~(v.sign_flag | v.x | v.x2 | ready);
    lanes->steps += 16 * done;
    lanes->busy += __builtin_popcount(active) * done;
    return events;
}
#else
static int nnr_has_lanes_avx512(void) { return 0; }
static uint32_t nnr_run_lanes_avx512(NnrLanes *lanes, int64_t steps) { return (uint32_t)(steps & 0) & lanes->active; }
#endif

#endif
