/* Levels of several tensors, decoded side by side: each of 16 lanes of vector registers has an arithmetic decoder.
   docs/explanation/lanes.md explains the design.

   This file has the format of lanes and the functions for single lanes; `_lanes_avx512.h` and `_lanes_avx2.h` have the
   steps. A step decodes one bin in each lane, whatever syntax element it belongs to. Values and states are equal to
   `_levels.h`, which is the reference. Lanes have no contexts of other tensors and no limits of codebooks. */
#ifndef NNR_LANES_H
#define NNR_LANES_H

#include <string.h>

#include "_levels.h"

#define NNR_LANE_COUNT 16
#define NNR_HELD 1024 /* levels that a lane holds until they are delivered */
#define NNR_FEED 1024 /* bytes of the payload that are copied for a lane at a time */
#define NNR_ZEROS 56  /* bytes that may be read past the end of a payload */
#define NNR_MOST_UNARY 32
#define NNR_LONG 15 /* abs_level_greater_x2 bins of an escape that are decoded in lanes; one more in every other step */

/* Place of a context within the contexts of its lane:

   sig_flag    2 * stateId, plus 0, NNR_AFTER or NNR_AFTER + NNR_NEGATIVE after a level that is 0, positive or negative
   sign_flag   as sig_flag, with all of the lowest 4 bits set
   greater_x2  NNR_X2 + j
   greater_x   NNR_X plus the level that a bin 0 completes, plus NNR_NEGATIVE for negative levels */
#define NNR_LANE_CONTEXTS 256
#define NNR_AFTER 16
#define NNR_NEGATIVE 64
#define NNR_SIGNS 15
#define NNR_X2 32
#define NNR_X 128
#define NNR_LEVEL_BITS 63

/* Constants in vectors: a name, and the value of each 32 bits. The engines hide the values from the compiler, which
   would broadcast them before each use; loads are faster. `none` is in place of a level that is not complete. */
#define NNR_LANE_CONSTANTS(set) \
    set(one, 1) set(two, 2) set(bits, 32) set(none, INT32_MIN) set(signs, NNR_SIGNS) set(x2_first, NNR_X2) \
        set(x_positive, NNR_X + 1) set(x_negative, NNR_X + NNR_NEGATIVE + 1) set(after, NNR_AFTER) \
        set(negative, NNR_NEGATIVE) set(level_bits, NNR_LEVEL_BITS) set(sevens, 0x00070007) \
        set(shifts, 0x00030003) set(deltas, (int)0xff80fff8)

/* Events for which a lane waits */
#define NNR_EVENT_LEVELS 1 /* held levels can be delivered */
#define NNR_EVENT_FAILED 2 /* the payload has ended */

typedef struct {
    uint32_t window[16]; /* IvlOffset in the highest 9 bits, then the following bits */
    uint32_t range[16];
    uint32_t valid[16];   /* valid bits of the window */
    uint32_t context[16]; /* place of the next context */
    uint32_t state[16];   /* 2 * stateId */
    uint32_t sign[16];    /* last context of abs_level_greater_x, which has the sign */
    uint32_t left[16];    /* levels before NNR_EVENT_LEVELS */
    uint32_t base[16];    /* place of the lane's contexts */
    uint32_t dq[16];
    uint32_t unary[16];   /* length of the unary part */
    int32_t pos[16];      /* place of the next byte in `feed` */
    int32_t safe[16];     /* largest place from which 4 bytes can be read */
    int64_t fed[16];      /* position in the payload of the first byte of the lane's feed */
    uint32_t active;      /* lanes, one bit for each */
    uint32_t last;        /* lanes with the end of the payload in their feed */
    uint32_t sig, sign_flag, x, x2; /* lanes by the syntax element of the next bin; in others it is abs_remainder */
    uint32_t place[16];             /* of the next level in `held` */
    uint32_t contexts[16 * NNR_LANE_CONTEXTS]; /* pStateIdx0, shift0, pStateIdx1, shift1 - 4 in 9, 7, 13 and 3 bits */
    int32_t held[16][NNR_HELD + 16];           /* whole vectors are stored, of which the first levels are valid */
    uint8_t feed[16][NNR_FEED];                /* a part of the payload; its end is followed by zeros */
    int64_t steps, busy; /* lanes of all steps, and the active ones among them */
} NnrLanes;

/* The fields that steps change, all of the same type */
#define NNR_LANE_FIELDS(move) \
    move(window) move(range) move(valid) move(context) move(state) move(sign) move(left) move(pos)

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
    sum += 0.5f; /* its last place is the last place of subnormal numbers of float16 */
    memcpy(&small, &sum, 4);
    small -= 0x3F000000;
    /* The bias of the exponent is 112 less; from 65520 on, values round to infinity. */
    bits = bits >= 0x477FF000 ? 0x7C00 : (bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13;
    return (uint16_t)(sign | (value < 0x1p-14f && value > -0x1p-14f ? small : bits));
}

/* ------------------------------------------------------------------------------------------------ single lanes */
static uint32_t nnr_pack(const NnrContext *c)
{
    const uint32_t p0 = (uint32_t)((c->q0 >> 1) - 128), p1 = (uint32_t)(c->q1 - 2048);
    return p0 << 23 | (uint32_t)c->shift0 << 16 | (p1 << 3 & 0xfff8) | (c->shift1 - 4u);
}

static void nnr_unpack(NnrContext *c, uint32_t packed)
{
    c->q0 = (uint16_t)(2 * (((int32_t)packed >> 23) + 128));
    c->q1 = (uint16_t)(((int16_t)packed >> 3) + 2048);
}

/* Return the place of the context of the next sig_flag. `prev` is 1 after a negative, 2 after a positive level. */
static uint32_t nnr_lane_sig(const NnrLanes *lanes, int i, uint32_t prev)
{
    return lanes->base[i] + lanes->state[i] + (prev ? NNR_AFTER + (prev & 1) * NNR_NEGATIVE : 0);
}

/* Copy the contexts of a run to a lane or back. Those of long escapes remain in the run, except the first. */
static void nnr_lane_contexts(NnrLanes *lanes, int i, NnrRun *r, int back)
{
    static const uint8_t prevs[3] = {0, NNR_AFTER + NNR_NEGATIVE, NNR_AFTER};
    uint32_t *const contexts = lanes->contexts + lanes->base[i];
    int k, j;
#define NNR_COPY(lane, run) \
    do { \
        if (back) \
            nnr_unpack(run, contexts[lane]); \
        else \
            contexts[lane] = nnr_pack(run); \
    } while (0)
    for (k = 0; k < 3; k++) {
        for (j = 0; j < 8; j++)
            NNR_COPY(prevs[k] + 2 * j, r->sig + 3 * j + k);
        NNR_COPY(prevs[k] + NNR_SIGNS, r->sign + k);
    }
    for (k = 0; k <= NNR_LONG; k++)
        NNR_COPY(NNR_X2 + k, r->greater_x2 + k);
    for (k = 0; k < 2 * r->unary_length; k++)
        NNR_COPY(NNR_X + (k & 1) * NNR_NEGATIVE + (k >> 1) + 1, r->greater_x + k);
}

/* Move the position in the payload from a decoder to a lane. */
static void nnr_lane_enter(NnrLanes *lanes, int i, const NnrDecoder *d)
{
    int valid = d->bits + 9, back = valid > 32 ? (valid - 25) >> 3 : 0;
    int64_t pos = d->pos - d->start + d->overrun - back, rest = d->end - d->start - pos;
    const int64_t n = rest < 0 ? 0 : rest < NNR_FEED ? rest : NNR_FEED;
    const int last = rest <= NNR_FEED - NNR_ZEROS;
    valid -= 8 * back;
    lanes->window[i] = (uint32_t)(d->value >> (8 * back) << (32 - valid));
    lanes->valid[i] = (uint32_t)valid;
    lanes->range[i] = d->range;
    if (n)
        memcpy(lanes->feed[i], d->end - rest, (size_t)n);
    memset(lanes->feed[i] + n, 0, (size_t)(NNR_FEED - n));
    lanes->fed[i] = pos;
    lanes->pos[i] = i * NNR_FEED;
    lanes->safe[i] = i * NNR_FEED - 4 + (last ? rest < -NNR_ZEROS ? 0 : (int)rest + NNR_ZEROS : NNR_FEED);
    lanes->last = (lanes->last & ~(1u << i)) | (uint32_t)last << i;
}

/* The inverse of nnr_lane_enter. */
static void nnr_lane_leave(const NnrLanes *lanes, int i, NnrDecoder *d)
{
    int64_t pos = lanes->fed[i] + lanes->pos[i] - i * NNR_FEED, size = d->end - d->start;
    d->bits = (int)lanes->valid[i] - 9;
    d->value = lanes->window[i] >> (32 - lanes->valid[i]);
    d->range = lanes->range[i];
    d->pos = d->start + (pos < size ? pos : size);
    d->overrun = pos < size ? 0 : pos - size;
}

/* Initialize lanes that are zero. Idle lanes take part in steps with a bin that changes nothing. */
static void nnr_init_lanes(NnrLanes *lanes)
{
    int i;
    for (i = 0; i < NNR_LANE_COUNT; i++) {
        lanes->range[i] = 256;
        lanes->base[i] = lanes->context[i] = (uint32_t)i * NNR_LANE_CONTEXTS;
        lanes->pos[i] = i * NNR_FEED;
    }
}

/* Hold up to NNR_HELD of the following levels of a run. */
static void nnr_lane_hold(NnrLanes *lanes, int i, int64_t n)
{
    lanes->place[i] = 0;
    lanes->left[i] = (uint32_t)(n < NNR_HELD ? n : NNR_HELD);
}

/* Begin with the levels of a run, whose contexts are one array. */
static void nnr_lane_begin(NnrLanes *lanes, int i, const NnrDecoder *d, NnrRun *r)
{
    const uint32_t bit = 1u << i;
    nnr_lane_enter(lanes, i, d);
    nnr_lane_hold(lanes, i, r->n);
    lanes->dq[i] = (uint32_t)r->dq;
    lanes->unary[i] = (uint32_t)r->unary_length;
    lanes->state[i] = r->dq ? 2 * (uint32_t)r->state_id : 0;
    lanes->context[i] = nnr_lane_sig(lanes, i, (uint32_t)r->prev);
    nnr_lane_contexts(lanes, i, r, 0);
    lanes->active |= bit;
    lanes->sig |= bit;
}

/* Return whether a lane is between two levels. */
static int nnr_lane_is_between(const NnrLanes *lanes, int i) { return lanes->sig >> i & 1; }

/* End between two levels, or after an error: move all states to the decoder and the run. */
static void nnr_lane_end(NnrLanes *lanes, int i, NnrDecoder *d, NnrRun *r)
{
    const uint32_t place = lanes->context[i] - lanes->base[i], bit = 1u << i;
    nnr_lane_leave(lanes, i, d);
    r->state_id = r->dq ? (int)lanes->state[i] / 2 : r->state_id;
    r->prev = place & NNR_NEGATIVE ? 1 : place & NNR_AFTER ? 2 : 0;
    nnr_lane_contexts(lanes, i, r, 1);
    lanes->pos[i] = i * NNR_FEED;
    lanes->active &= ~bit;
    lanes->sig &= ~bit;
    lanes->sign_flag &= ~bit;
    lanes->x &= ~bit;
    lanes->x2 &= ~bit;
}

/* Decode the rest of a level with a long escape. */
static void nnr_lane_escape(NnrLanes *lanes, int i, NnrDecoder *d, NnrRun *r)
{
    const uint32_t bit = 1u << i, j = (lanes->context[i] - lanes->base[i]) - NNR_X2;
    const int negative = (lanes->sign[i] & NNR_NEGATIVE) != 0, state = (int)lanes->state[i] / 2;
    uint32_t *const shared = lanes->contexts + lanes->base[i] + NNR_X2 + NNR_LONG;
    NnrWindow w;
    uint64_t level = lanes->unary[i] + ((uint64_t)1 << j);
    nnr_unpack(r->greater_x2 + NNR_LONG, *shared);
    nnr_lane_leave(lanes, i, d);
    w = nnr_open(d);
    level = nnr_decode_escape(&w, r->greater_x2, level, (uint64_t)1 << 40, (int)j);
    nnr_close(&w, d);
    nnr_lane_enter(lanes, i, d);
    *shared = nnr_pack(r->greater_x2 + NNR_LONG);
    r->levels = lanes->held[i];
    nnr_store(r, lanes->place[i]++, nnr_resolve(level, state, r->dq), negative);
    lanes->left[i]--;
    if (r->dq)
        lanes->state[i] = 2u * NNR_STATE[state][level & 1];
    lanes->context[i] = nnr_lane_sig(lanes, i, 2u - (uint32_t)negative);
    lanes->x2 &= ~bit;
    lanes->sig |= bit;
}

/* Serve a lane that waits; return NNR_EVENT_LEVELS or NNR_EVENT_FAILED if the caller has to do something. */
static int nnr_lane_event(NnrLanes *lanes, int i, NnrDecoder *d, NnrRun *r)
{
    if (lanes->x2 >> i & 1 && lanes->context[i] >= lanes->base[i] + NNR_X2 + NNR_LONG)
        nnr_lane_escape(lanes, i, d, r);
    if (lanes->pos[i] > lanes->safe[i]) {
        if (lanes->last >> i & 1)
            return NNR_EVENT_FAILED;
        nnr_lane_leave(lanes, i, d);
        nnr_lane_enter(lanes, i, d);
    }
    return lanes->left[i] ? 0 : NNR_EVENT_LEVELS;
}

#endif
