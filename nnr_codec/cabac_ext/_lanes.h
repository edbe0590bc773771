/* Levels of several tensors, decoded side by side: each of 16 lanes of 512-bit registers has an arithmetic decoder of its
   own. docs/explanation/lanes.md explains the design.

   A step decodes one bin in each lane, whatever syntax element it belongs to. The values and states are those of
   `_levels.h`, which is the reference. Lanes have no contexts that refer to other tensors, and no limits of codebooks. */
#ifndef NNR_LANES_H
#define NNR_LANES_H

#include <string.h>

#include "_levels.h"

#define NNR_LANE_COUNT 16
#define NNR_HELD 1024 /* levels that a lane holds until they are delivered */
#define NNR_TAIL 64   /* bytes of a copy of the last bytes of a payload, followed by zeros */
#define NNR_MOST_UNARY 32
#define NNR_LONG 15 /* abs_level_greater_x2 bins of an escape that are decoded in lanes; one more in every other step */

/* Numbers of the first contexts of syntax elements, as in _syntax.pxi */
#define NNR_SIGN_FLAG 48
#define NNR_GREATER_X2 53
#define NNR_GREATER_X 87
#define NNR_CONTEXTS (NNR_GREATER_X + 2 * NNR_MOST_UNARY)

/* Events for which a lane waits */
#define NNR_EVENT_LEVELS 1 /* held levels can be delivered */
#define NNR_EVENT_FAILED 2 /* the payload has ended */

typedef struct {
    uint32_t window[16]; /* IvlOffset in the highest 9 bits, then the following bits */
    uint32_t range[16];
    uint32_t valid[16]; /* valid bits of the window */
    uint32_t context[16]; /* place of the next context */
    uint32_t level[16]; /* the level so far */
    uint32_t j[16]; /* number of the abs_level_greater_x2 bin, or of bins of abs_remainder that are left */
    uint32_t negative[16];
    uint32_t state[16]; /* stateId */
    uint32_t prev[16];
    uint32_t place[16]; /* of the next level in `held` */
    uint32_t left[16]; /* levels before NNR_EVENT_LEVELS */
    uint32_t base[16]; /* place of the lane's contexts */
    uint32_t dq[16];
    uint32_t full[16]; /* level after a full unary part */
    const uint8_t *pos[16];
    const uint8_t *safe[16]; /* largest position from which 4 bytes can be read */
    int64_t tail[16]; /* position in the payload of the first byte in `tails`, or -1 */
    uint32_t active, sig, sign, x, x2, bypass; /* lanes, and the syntax element of their next bin */
    uint32_t contexts[16 * NNR_CONTEXTS]; /* pStateIdx0, 4 + shift0, pStateIdx1, shift1 in 8, 8, 12 and 4 bits */
    int32_t held[16 * NNR_HELD];
    uint8_t tails[16][NNR_TAIL];
    int64_t steps, busy; /* lanes of all steps, and those among them that were active */
} NnrLanes;

/* Return the bit pattern of a finite float rounded to bfloat16, ties to even; infinity for overflow. */
static inline uint16_t nnr_to_bfloat16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + (bits >> 16 & 1) + 0x7FFF) >> 16);
}

/* The same for float16. */
static inline uint16_t nnr_to_float16(float value)
{
    uint32_t bits, sign, small;
    float sum;
    memcpy(&bits, &value, 4);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    memcpy(&sum, &bits, 4);
    sum += 0.5f; /* its last place is that of subnormal numbers of float16 */
    memcpy(&small, &sum, 4);
    small -= 0x3F000000;
    /* The bias of the exponent is 112 less; from 65520 on, values round to infinity. */
    bits = bits >= 0x477FF000 ? 0x7C00 : (bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13;
    return (uint16_t)(sign | (value < 0x1p-14f && value > -0x1p-14f ? small : bits));
}

/* ------------------------------------------------------------------------------------------------ vector code */
#if NNR_HAVE_AVX2 /* the compiler and the processor's family; see nnr_has_lanes */
#define NNR_LANES_TARGET target("avx512f,avx512bw,avx512cd,avx512vl,avx512dq,avx512vbmi")
#define NNR_LANES_INLINE static inline __attribute__((always_inline, NNR_LANES_TARGET))

static int nnr_has_lanes(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}

typedef struct {
    __m512i window, range, valid, context, level, j, negative, state, prev, place, left, base, dq, full;
    __m512i pos[2], safe[2];
    __mmask16 active, dependent, sig, sign, x, x2, bypass;
} NnrVectors;

typedef struct {
    __m512i lps[4], transition, shifts, states, swap;
} NnrLaneTables;

#define NNR_ALL _mm512_set1_epi32

/* Decode a bin in each lane that has levels left. The next context follows from the bin and from values that are
   computed while the context is loaded: this chain from context to context limits the speed. */
NNR_LANES_INLINE void nnr_lanes_bin(NnrVectors *v, const NnrLaneTables *k, NnrLanes *lanes)
{
    const __m512i one = NNR_ALL(1), two = NNR_ALL(2), zero = _mm512_setzero_si512();
    const __mmask16 m = _mm512_mask_test_epi32_mask(v->active, v->left, v->left);
    const __m512i was = v->context;
    __m512i c = _mm512_mask_i32gather_epi32(zero, m, was, lanes->contexts, 4);
    /* if the bin ends a level: stateId after a bin 0, and after a bin 1 of abs_remainder */
    const __m512i from = _mm512_add_epi32(_mm512_add_epi32(v->state, v->state), _mm512_and_si512(v->level, one));
    const __m512i state0 = _mm512_maskz_permutexvar_epi32(v->dependent, from, k->states);
    const __m512i state1 = _mm512_maskz_permutexvar_epi32(v->dependent, _mm512_xor_si512(from, one), k->states);
    const __m512i sign = _mm512_sub_epi32(two, v->negative);
    const __mmask16 begun = _mm512_test_epi32_mask(v->level, v->level), more = _mm512_test_epi32_mask(v->j, v->j);
    const __mmask16 fills = _mm512_mask_cmpeq_epi32_mask(v->x, _mm512_add_epi32(v->level, one), v->full);
    const __mmask16 last = _mm512_mask_cmpeq_epi32_mask(v->bypass, v->j, one);
    __m512i next0 = _mm512_add_epi32(_mm512_add_epi32(state0, state0), _mm512_add_epi32(state0, v->base));
    __m512i next1 = _mm512_add_epi32(_mm512_add_epi32(state1, state1), _mm512_add_epi32(state1, v->base));
    __m512i p, shift, sum, index, lps, range, scaled, count, flip, t, value;
    __mmask16 less, b, to_sign, x_one, x2_one, done, nonzero;
    next0 = _mm512_mask_add_epi32(next0, begun, next0, sign);
    next0 = _mm512_mask_add_epi32(next0, v->sign, v->base, NNR_ALL(NNR_GREATER_X));
    next1 = _mm512_add_epi32(next1, sign);
    next1 = _mm512_mask_add_epi32(next1, v->sig, _mm512_add_epi32(v->base, v->prev), NNR_ALL(NNR_SIGN_FLAG));
    next1 = _mm512_mask_add_epi32(next1, v->sign, v->base, NNR_ALL(NNR_GREATER_X + 1));
    next1 = _mm512_mask_add_epi32(next1, v->x, v->context, two);
    next1 = _mm512_mask_add_epi32(next1, fills, v->base, NNR_ALL(NNR_GREATER_X2));
    next1 = _mm512_mask_add_epi32(next1, v->x2, v->context, one);
    /* the bin */
    p = _mm512_and_si512(c, NNR_ALL((int)0xfff0ff00));
    shift = _mm512_and_si512(c, NNR_ALL(0x000f000f));
    sum = _mm512_madd_epi16(p, _mm512_set1_epi16(1)); /* 16 * (16 * pStateIdx0 + pStateIdx1) */
    index = _mm512_or_si512(_mm512_and_si512(v->range, NNR_ALL(0xe0)), _mm512_abs_epi32(_mm512_srai_epi32(sum, 11)));
    lps = _mm512_mask_mov_epi32(_mm512_permutex2var_epi8(k->lps[0], index, k->lps[1]),
                                _mm512_test_epi32_mask(v->range, NNR_ALL(0x80)),
                                _mm512_permutex2var_epi8(k->lps[2], index, k->lps[3]));
    lps = _mm512_and_si512(lps, NNR_ALL(0xff));
    range = _mm512_sub_epi32(v->range, lps);
    scaled = _mm512_slli_epi32(range, 23);
    scaled = _mm512_mask_slli_epi32(scaled, v->bypass, v->range, 22);
    less = _mm512_cmpge_epu32_mask(v->window, scaled);
    b = (__mmask16)(less ^ (~_mm512_movepi32_mask(sum) & ~v->bypass));
    v->context = _mm512_mask_mov_epi32(v->context, m, _mm512_mask_mov_epi32(next0, b, next1));
    less &= m;
    v->window = _mm512_mask_sub_epi32(v->window, less, v->window, scaled);
    range = _mm512_mask_mov_epi32(range, less, lps);
    count = _mm512_sub_epi32(_mm512_lzcnt_epi32(range), NNR_ALL(23));
    count = _mm512_mask_mov_epi32(count, v->bypass, one);
    v->range = _mm512_mask_sllv_epi32(v->range, (__mmask16)(m & ~v->bypass), range, count);
    v->window = _mm512_mask_sllv_epi32(v->window, m, v->window, count);
    v->valid = _mm512_mask_sub_epi32(v->valid, m, v->valid, count);
    /* the states of the context after the bin */
    flip = _mm512_movm_epi32((__mmask16)~b);
    t = _mm512_srai_epi16(_mm512_sub_epi16(_mm512_xor_si512(p, flip), flip), 11);
    t = _mm512_sllv_epi16(_mm512_srlv_epi16(_mm512_permutexvar_epi16(t, k->transition), shift), k->shifts);
    t = _mm512_sub_epi16(_mm512_xor_si512(t, flip), flip);
    c = _mm512_or_si512(_mm512_add_epi16(p, t), shift);
    _mm512_mask_i32scatter_epi32(lanes->contexts, (__mmask16)(m & ~v->bypass), was, c, 4);
    /* the meaning of the bin, and the next syntax element */
    to_sign = v->sig & b & m;
    x_one = v->x & b;
    x2_one = v->x2 & b;
    done = (__mmask16)((((v->sig & m) | v->x | (v->x2 & ~more)) & ~b) | last);
    v->negative = _mm512_mask_mov_epi32(v->negative, v->sign, _mm512_maskz_mov_epi32(b, one));
    v->level = _mm512_mask_add_epi32(v->level, (__mmask16)(x_one | to_sign), v->level, one);
    v->j = _mm512_mask_sub_epi32(v->j, v->bypass, v->j, one);
    t = _mm512_sllv_epi32(one, v->j);
    v->level = _mm512_mask_add_epi32(v->level, (__mmask16)(x2_one | (v->bypass & b)), v->level, t);
    v->j = _mm512_mask_add_epi32(v->j, x2_one, v->j, one);
    v->j = _mm512_maskz_mov_epi32((__mmask16)~(done | (fills & b)), v->j);
    t = _mm512_mask_mov_epi32(state0, v->bypass & b, state1);
    v->bypass = (__mmask16)((v->bypass & ~last) | (v->x2 & ~b & more));
    v->x2 = (__mmask16)((fills & b) | x2_one);
    v->x = (__mmask16)(v->sign | (x_one & ~fills));
    v->sign = to_sign;
    v->sig = (__mmask16)(done | (v->sig & ~m));
    /* levels that are complete */
    nonzero = _mm512_test_epi32_mask(v->level, v->level);
    value = _mm512_sllv_epi32(v->level, v->dq);
    value = _mm512_mask_sub_epi32(value, nonzero, value, _mm512_and_si512(v->state, one));
    value = _mm512_mask_sub_epi32(value, _mm512_test_epi32_mask(v->negative, v->negative), zero, value);
    _mm512_mask_i32scatter_epi32(lanes->held, done, v->place, value, 4);
    v->place = _mm512_mask_add_epi32(v->place, done, v->place, one);
    v->left = _mm512_mask_sub_epi32(v->left, done, v->left, one);
    v->state = _mm512_mask_mov_epi32(v->state, done, t);
    v->prev = _mm512_mask_mov_epi32(v->prev, done, _mm512_maskz_sub_epi32(nonzero, two, v->negative));
    v->level = _mm512_maskz_mov_epi32((__mmask16)~done, v->level);
}

/* Refill the windows to at least 25 valid bits, enough for two bins. */
NNR_LANES_INLINE void nnr_lanes_refill(NnrVectors *v, const NnrLaneTables *k)
{
    const __m256i none = _mm256_setzero_si256();
    __m256i low = _mm512_mask_i64gather_epi32(none, (__mmask8)v->active, v->pos[0], NULL, 1);
    __m256i high = _mm512_mask_i64gather_epi32(none, (__mmask8)(v->active >> 8), v->pos[1], NULL, 1);
    __m512i bytes = _mm512_shuffle_epi8(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), k->swap), n;
    v->window = _mm512_or_si512(v->window, _mm512_srlv_epi32(bytes, v->valid));
    n = _mm512_srli_epi32(_mm512_sub_epi32(NNR_ALL(32), v->valid), 3);
    v->valid = _mm512_add_epi32(v->valid, _mm512_slli_epi32(n, 3));
    v->pos[0] = _mm512_add_epi64(v->pos[0], _mm512_cvtepu32_epi64(_mm512_castsi512_si256(n)));
    v->pos[1] = _mm512_add_epi64(v->pos[1], _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(n, 1)));
}

NNR_LANES_INLINE __mmask16 nnr_lanes_events(const NnrVectors *v)
{
    __mmask16 m = _mm512_testn_epi32_mask(v->left, v->left);
    m |= (__mmask16)_mm512_cmpgt_epu64_mask(v->pos[0], v->safe[0]);
    m |= (__mmask16)(_mm512_cmpgt_epu64_mask(v->pos[1], v->safe[1]) << 8);
    m |= _mm512_mask_cmpge_epu32_mask(v->x2, v->j, NNR_ALL(NNR_LONG));
    return m & v->active;
}

/* Decode bins until a lane waits for an event, or for a number of steps. Return the lanes that wait. */
static __attribute__((noinline, NNR_LANES_TARGET)) uint32_t nnr_lanes_run(NnrLanes *lanes, int64_t steps)
{
    static const uint8_t *const lps = NNR_RLPS;
    uint16_t transition[32], shifts[32];
    uint32_t states[16], events;
    uint8_t swap[64];
    NnrLaneTables k;
    NnrVectors v;
    int64_t done = 0;
    int i;
    for (i = 0; i < 32; i++) {
        transition[i] = (uint16_t)NNR_TRANSITION[(i + 16) & 31];
        shifts[i] = i & 1 ? 4 : 8;
    }
    for (i = 0; i < 16; i++)
        states[i] = NNR_STATE[i >> 1][i & 1];
    for (i = 0; i < 64; i++)
        swap[i] = (uint8_t)(i ^ 3);
    for (i = 0; i < 4; i++)
        k.lps[i] = _mm512_loadu_si512(lps + 64 * i);
    k.transition = _mm512_loadu_si512(transition);
    k.shifts = _mm512_loadu_si512(shifts);
    k.states = _mm512_loadu_si512(states);
    k.swap = _mm512_loadu_si512(swap);
#define NNR_FIELDS(move) \
    move(window) move(range) move(valid) move(context) move(level) move(j) move(negative) move(state) move(prev) \
        move(place) move(left)
#define NNR_LOAD(field) v.field = _mm512_loadu_si512(lanes->field);
#define NNR_STORE(field) _mm512_storeu_si512(lanes->field, v.field);
    NNR_FIELDS(NNR_LOAD) NNR_LOAD(base) NNR_LOAD(dq) NNR_LOAD(full)
    for (i = 0; i < 2; i++) {
        v.pos[i] = _mm512_loadu_si512(lanes->pos + 8 * i);
        v.safe[i] = _mm512_loadu_si512(lanes->safe + 8 * i);
    }
    v.active = (__mmask16)lanes->active;
    v.dependent = _mm512_test_epi32_mask(v.dq, v.dq);
    v.sig = (__mmask16)lanes->sig;
    v.sign = (__mmask16)lanes->sign;
    v.x = (__mmask16)lanes->x;
    v.x2 = (__mmask16)lanes->x2;
    v.bypass = (__mmask16)lanes->bypass;
    while (!(events = nnr_lanes_events(&v)) && done < steps) {
        nnr_lanes_refill(&v, &k);
        nnr_lanes_bin(&v, &k, lanes);
        nnr_lanes_bin(&v, &k, lanes);
        done += 2;
    }
    NNR_FIELDS(NNR_STORE)
    for (i = 0; i < 2; i++)
        _mm512_storeu_si512(lanes->pos + 8 * i, v.pos[i]);
    lanes->sig = v.sig;
    lanes->sign = v.sign;
    lanes->x = v.x;
    lanes->x2 = v.x2;
    lanes->bypass = v.bypass;
    lanes->steps += 16 * done;
    lanes->busy += __builtin_popcount(lanes->active) * done;
    return events;
}
#else
static int nnr_has_lanes(void) { return 0; }
static uint32_t nnr_lanes_run(NnrLanes *lanes, int64_t steps) { return (uint32_t)(steps & 0) & lanes->active; }
#endif

/* ------------------------------------------------------------------------------------------------ single lanes */
static uint32_t nnr_pack(const NnrContext *c)
{
    const uint32_t p0 = (uint32_t)((c->q0 >> 1) - 128) & 0xff, p1 = (uint32_t)(c->q1 - 2048);
    return p0 << 8 | (4u + c->shift0) | p1 << 20 | (uint32_t)c->shift1 << 16;
}

static void nnr_unpack(NnrContext *c, uint32_t packed)
{
    c->q0 = (uint16_t)(2 * ((int8_t)(packed >> 8) + 128));
    c->q1 = (uint16_t)(((int32_t)packed >> 20) + 2048);
}

/* Return the number of the next context that lanes use. The others, of long escapes, remain in the run's contexts. */
static int nnr_next_context(int k) { return k == NNR_GREATER_X2 + NNR_LONG ? NNR_GREATER_X : k + 1; }

/* Move the position in the payload from a decoder to a lane. */
static void nnr_lane_enter(NnrLanes *lanes, int i, const NnrDecoder *d)
{
    int valid = d->bits + 9, back = valid > 32 ? (valid - 25) >> 3 : 0;
    int64_t pos = d->pos - d->start + d->overrun - back, rest = d->end - d->start - pos;
    valid -= 8 * back;
    lanes->window[i] = (uint32_t)(d->value >> (8 * back) << (32 - valid));
    lanes->valid[i] = (uint32_t)valid;
    lanes->range[i] = d->range;
    lanes->pos[i] = d->start + pos;
    lanes->safe[i] = d->end - 4;
    lanes->tail[i] = -1;
    if (rest < 4) {
        lanes->tail[i] = pos;
        memset(lanes->tails[i], 0, NNR_TAIL);
        if (rest > 0)
            memcpy(lanes->tails[i], d->end - rest, (size_t)rest);
        lanes->pos[i] = lanes->tails[i];
        lanes->safe[i] = lanes->tails[i] + NNR_TAIL - 8 + (rest < 0 ? rest : 0);
    }
}

/* The inverse of nnr_lane_enter. */
static void nnr_lane_leave(const NnrLanes *lanes, int i, NnrDecoder *d)
{
    int64_t pos = lanes->tail[i] < 0 ? lanes->pos[i] - d->start : lanes->tail[i] + (lanes->pos[i] - lanes->tails[i]);
    int64_t size = d->end - d->start;
    d->bits = (int)lanes->valid[i] - 9;
    d->value = lanes->window[i] >> (32 - lanes->valid[i]);
    d->range = lanes->range[i];
    d->pos = d->start + (pos < size ? pos : size);
    d->overrun = pos < size ? 0 : pos - size;
}

/* Hold up to NNR_HELD of the following levels of a run. */
static void nnr_lane_hold(NnrLanes *lanes, int i, int64_t n)
{
    lanes->place[i] = (uint32_t)i * NNR_HELD;
    lanes->left[i] = (uint32_t)(n < NNR_HELD ? n : NNR_HELD);
}

/* Begin with the levels of a run, whose contexts are one array. */
static void nnr_lane_begin(NnrLanes *lanes, int i, const NnrDecoder *d, const NnrRun *r)
{
    const uint32_t bit = 1u << i;
    int k;
    nnr_lane_enter(lanes, i, d);
    nnr_lane_hold(lanes, i, r->n);
    lanes->state[i] = r->dq ? (uint32_t)r->state_id : 0;
    lanes->prev[i] = (uint32_t)r->prev;
    lanes->dq[i] = (uint32_t)r->dq;
    lanes->base[i] = (uint32_t)i * NNR_CONTEXTS;
    lanes->context[i] = lanes->base[i] + 3 * lanes->state[i] + lanes->prev[i];
    lanes->full[i] = (uint32_t)r->unary_length + 1;
    lanes->level[i] = lanes->j[i] = lanes->negative[i] = 0;
    for (k = 0; k < NNR_GREATER_X + 2 * r->unary_length; k = nnr_next_context(k))
        lanes->contexts[lanes->base[i] + (uint32_t)k] = nnr_pack(r->sig + k);
    lanes->active |= bit;
    lanes->sig |= bit;
    lanes->sign &= ~bit;
    lanes->x &= ~bit;
    lanes->x2 &= ~bit;
    lanes->bypass &= ~bit;
}

/* Return whether a lane is between two levels. */
static int nnr_lane_is_between(const NnrLanes *lanes, int i) { return lanes->sig >> i & 1; }

/* End between two levels: move all states to the decoder and the run. */
static void nnr_lane_end(NnrLanes *lanes, int i, NnrDecoder *d, NnrRun *r)
{
    int k;
    nnr_lane_leave(lanes, i, d);
    r->state_id = r->dq ? (int)lanes->state[i] : r->state_id;
    r->prev = (int)lanes->prev[i];
    for (k = 0; k < NNR_GREATER_X + 2 * r->unary_length; k = nnr_next_context(k))
        nnr_unpack(r->sig + k, lanes->contexts[lanes->base[i] + (uint32_t)k]);
    lanes->active &= ~(1u << i);
}

/* Decode the rest of a level with a long escape. */
static void nnr_lane_escape(NnrLanes *lanes, int i, NnrDecoder *d, NnrRun *r)
{
    const uint32_t bit = 1u << i;
    const int negative = (int)lanes->negative[i], state = (int)lanes->state[i];
    uint32_t *const shared = lanes->contexts + lanes->base[i] + NNR_GREATER_X2 + NNR_LONG;
    NnrWindow w;
    uint64_t level;
    nnr_unpack(r->greater_x2 + NNR_LONG, *shared);
    nnr_lane_leave(lanes, i, d);
    w = nnr_open(d);
    level = nnr_decode_escape(&w, r->greater_x2, lanes->level[i], (uint64_t)1 << 40, (int)lanes->j[i]);
    nnr_close(&w, d);
    nnr_lane_enter(lanes, i, d);
    *shared = nnr_pack(r->greater_x2 + NNR_LONG);
    r->levels = lanes->held;
    nnr_store(r, lanes->place[i]++, nnr_resolve(level, state, r->dq), negative);
    lanes->left[i]--;
    if (r->dq)
        lanes->state[i] = NNR_STATE[state][level & 1];
    lanes->prev[i] = (uint32_t)(2 - negative);
    lanes->context[i] = lanes->base[i] + 3 * lanes->state[i] + lanes->prev[i];
    lanes->level[i] = lanes->j[i] = 0;
    lanes->x2 &= ~bit;
    lanes->sig |= bit;
}

/* Serve a lane that waits; return NNR_EVENT_LEVELS or NNR_EVENT_FAILED if the caller has to do something. */
static int nnr_lane_event(NnrLanes *lanes, int i, NnrDecoder *d, NnrRun *r)
{
    if (lanes->x2 >> i & 1 && lanes->j[i] >= NNR_LONG)
        nnr_lane_escape(lanes, i, d, r);
    if (lanes->pos[i] > lanes->safe[i]) {
        if (lanes->tail[i] >= 0)
            return NNR_EVENT_FAILED;
        nnr_lane_leave(lanes, i, d);
        nnr_lane_enter(lanes, i, d);
    }
    return lanes->left[i] ? 0 : NNR_EVENT_LEVELS;
}

#endif
