/* Optimized decoder and encoder of levels (ISO/IEC 15938-17:2024, 10.2.1.5).

   `_syntax.pxi` and `_engine.pxd` code the same bins one by one, for the tracer; tests/cabac compares both. The
   optimizations are:
   - IvlOffset stays at the top of a 64-bit window, which is refilled by whole bytes.
   - The states of both estimators are stored without sign. Tables give the next states, and the 8 values of ivlLpsRange
     for a state.
   - A bin that controls the program flow is decoded with the branch that depends on it. The sign is unpredictable and
     is decoded without a branch.
   - One division decodes all bypass bins of a level.
   - In a run of zeros, leaps code 8 levels at once. Tables have the states and IvlCurrRange after 8 more probable bins
     of one ivlLpsRange. All 8 bins are more probable ones if IvlOffset is below the last, smallest interval. */
#ifndef NNR_LEVELS_H
#define NNR_LEVELS_H

#include <stddef.h>
#include <stdlib.h>

#include "_dispatch.h"
#include "_tables.h"

#if defined(__GNUC__) || defined(__clang__)
#define NNR_LIKELY(x) __builtin_expect(!!(x), 1)
#define NNR_UNLIKELY(x) __builtin_expect(!!(x), 0)
/* Hides a value from the optimizer, which would turn a mask of 0 or all ones back into a branch. */
#define NNR_OPAQUE(x) __asm__("" : "+r"(x))
#define NNR_APART static __attribute__((noinline))
#else
#define NNR_LIKELY(x) (x)
#define NNR_UNLIKELY(x) (x)
#define NNR_OPAQUE(x) ((void)0)
#define NNR_APART static __declspec(noinline)
#endif

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
#define NNR_X86_64
#endif

/* ------------------------------------------------------------------------------------------------ structures */
typedef uint16_t NnrNext[2]; /* the state after a bin 0 and a bin 1 */

typedef struct {
    const NnrNext *next0; /* transitions for the context's shift parameters */
    const NnrNext *next1;
    uint16_t q0; /* fast estimator: 2 * (pStateIdx0 + 128), with pStateIdx0 in 8 bits */
    uint16_t q1; /* slow estimator: pStateIdx1 + 2048, with pStateIdx1 in 12 bits */
    uint8_t shift0;
    uint8_t shift1;
} NnrContext;

typedef struct {
    const uint8_t *start;
    const uint8_t *pos;
    const uint8_t *end;
    uint64_t value;  /* IvlOffset, followed by `bits` bits of look-ahead */
    uint32_t range;  /* IvlCurrRange */
    int bits;
    int64_t overrun; /* bytes read past the end */
    int invalid;     /* 1 after an IvlOffset that no encoder produces (10.3.2.4, errata A7) */
} NnrDecoder;

typedef struct {
    uint8_t *out;
    size_t n;
    size_t capacity;
    uint64_t low; /* base of the interval; the lowest 9 bits are the register */
    uint32_t range;
    int held;     /* bits of `low` that are not in `out` yet; bit `held` is a carry */
    int failed;   /* out of memory */
} NnrEncoder;

/* A run: levels that are consecutive in coding order and in memory, and the state of coding. */
typedef struct {
    int32_t *levels;
    int64_t n;
    NnrContext *sig;  /* first context of each syntax element */
    NnrContext *sign;
    NnrContext *greater_x;
    NnrContext *greater_x2;
    const int32_t *co_loc;   /* coLocParam, or NULL */
    const uint8_t *any_sig;  /* AnySigBeforeFlag if contexts depend on it, or NULL */
    int64_t limit[2];        /* largest magnitude of positive and of negative levels */
    int unary_length;
    int dq;
    int state_id;
    int prev;
    int out_of_range;        /* 1 after a level that exceeds 32 bits */
} NnrRun;

/* ------------------------------------------------------------------------------------------------ tables */
static NnrNext NNR_NEXT0[4][256];
static NnrNext NNR_NEXT1[3][4096];
static uint64_t NNR_LPS_ROWS[64]; /* ivlLpsRange for the 8 ranges, by (16 * pStateIdx0 + pStateIdx1 + 4096) >> 7 */
static uint16_t NNR_LEAP0[4][256]; /* q0 after a leap, by shift0 and q0 / 2 */
static uint16_t NNR_LEAP1[3][4096]; /* q1 after a leap, by shift1 - 4 and q1 */
static uint16_t NNR_LEAP_RANGES[32][256]; /* IvlCurrRange after a leap; from bit 9 on, how often it has been doubled */
static uint64_t NNR_RECIPROCALS[256]; /* 2^40 / IvlCurrRange, rounded up: quotients of numbers below 2^31 are exact */

/* Return the entry of transitionTable for a state (10.3.4.3.2.2). Division by 2^bits rounds down, also below 0. */
static int nnr_step(int p, int bits)
{
    return NNR_TRANSITION[16 + (p >= 0 ? p >> bits : -((-p + (1 << bits) - 1) >> bits))];
}

/* Return 16 * pStateIdx0 + pStateIdx1 + 4096. Bit 12 is the more probable bin. */
NNR_INLINE uint32_t nnr_sum(uint32_t q0, uint32_t q1) { return 8 * q0 + q1; }

NNR_INLINE uint32_t nnr_lps(uint32_t range, uint64_t row) { return (uint32_t)(row >> ((range >> 2) & 0x38)) & 0xff; }

/* Bins 0 that a leap codes at once; at most 8, so that the doublings of IvlCurrRange fit the window and `low`. */
#define NNR_LEAP 8

/* Fill the tables. Call it before all other functions of this file. */
static void nnr_prepare(void)
{
    int shift, p, row, k, i;
    for (p = -127; p < 128; p++)
        for (shift = 0; shift < 4; shift++) {
            NNR_NEXT0[shift][p + 128][0] = (uint16_t)(2 * (p + 128 - (nnr_step(-p, 3) >> (4 + shift))));
            NNR_NEXT0[shift][p + 128][1] = (uint16_t)(2 * (p + 128 + (nnr_step(p, 3) >> (4 + shift))));
        }
    for (p = -2047; p < 2048; p++)
        for (shift = 4; shift < 7; shift++) {
            NNR_NEXT1[shift - 4][p + 2048][0] = (uint16_t)(p + 2048 - (nnr_step(-p, 7) >> shift));
            NNR_NEXT1[shift - 4][p + 2048][1] = (uint16_t)(p + 2048 + (nnr_step(p, 7) >> shift));
        }
    for (k = 0; k < 256; k++)
        for (shift = 0; shift < 4; shift++) {
            for (p = 2 * k, i = 0; i < NNR_LEAP; i++)
                p = NNR_NEXT0[shift][p >> 1][0];
            NNR_LEAP0[shift][k] = (uint16_t)p;
        }
    for (k = 0; k < 4096; k++)
        for (shift = 0; shift < 3; shift++) {
            for (p = k, i = 0; i < NNR_LEAP; i++)
                p = NNR_NEXT1[shift][p][0];
            NNR_LEAP1[shift][k] = (uint16_t)p;
        }
    for (k = 0; k < 256; k++)
        NNR_RECIPROCALS[k] = ((uint64_t)1 << 40) / (256 + k) + 1;
    for (row = 1; row < 64; row++)
        for (k = 0; k < 8; k++)
            NNR_LPS_ROWS[row] |= (uint64_t)NNR_RLPS[32 * k + (row < 32 ? 32 - row : row - 32)] << (8 * k);
    for (row = 1; row < 32; row++)
        for (k = 0; k < 256; k++) {
            for (p = 256 + k, shift = i = 0; i < NNR_LEAP; i++) {
                p -= (int)nnr_lps((uint32_t)p, NNR_LPS_ROWS[row]);
                shift += p < 256;
                p <<= p < 256;
            }
            NNR_LEAP_RANGES[row][k] = (uint16_t)(p | shift << 9);
        }
}

/* ------------------------------------------------------------------------------------------------ decoding */
/* State of an NnrDecoder within a run. */
typedef struct {
    uint64_t window;  /* IvlOffset in the highest 9 bits, then the following bits */
    uint32_t range;
    int valid;        /* valid bits of the window; lower bits are either 0 or already equal to the bits that follow */
    const uint8_t *data;
    int64_t pos;      /* first byte that is not completely in the valid bits; past the end, bytes are 0 */
    int64_t size;
} NnrWindow;

NNR_APART uint64_t nnr_tail(const uint8_t *data, int64_t pos, int64_t size)
{
    uint64_t x = 0;
    int k;
    for (k = 0; k < 8; k++)
        x = (x << 8) | (pos + k < size ? data[pos + k] : 0);
    return x;
}

/* Refill the window to at least 56 valid bits. */
NNR_INLINE void nnr_refill(NnrWindow *w)
{
    uint64_t next = NNR_LIKELY(w->size - w->pos >= 8) ? nnr_be64(w->data + w->pos) : nnr_tail(w->data, w->pos, w->size);
    w->window |= next >> w->valid;
    w->pos += (63 - w->valid) >> 3;
    w->valid |= 56;
}

NNR_INLINE NnrWindow nnr_open(const NnrDecoder *d)
{
    NnrWindow w;
    w.valid = d->bits + 9;
    w.window = d->value << (64 - w.valid);
    w.range = d->range;
    w.data = d->start;
    w.pos = d->pos - d->start + d->overrun;
    w.size = d->end - d->start;
    return w;
}

NNR_INLINE void nnr_close(const NnrWindow *w, NnrDecoder *d)
{
    d->bits = w->valid - 9;
    d->value = w->window >> (64 - w->valid);
    d->range = w->range;
    d->pos = d->start + (w->pos < w->size ? w->pos : w->size);
    d->overrun = w->pos < w->size ? 0 : w->pos - w->size;
}

/* The next bin of a context, with all table entries that do not depend on the interval. */
typedef struct {
    NnrContext *context;
    uint32_t q0, q1, sum;
    uint64_t row;
} NnrBin;

NNR_INLINE void nnr_look(NnrBin *x)
{
    x->sum = nnr_sum(x->q0, x->q1);
    x->row = NNR_LPS_ROWS[x->sum >> 7];
}

NNR_INLINE NnrBin nnr_bin(NnrContext *c)
{
    NnrBin x;
    x.context = c;
    x.q0 = c->q0;
    x.q1 = c->q1;
    nnr_look(&x);
    return x;
}

NNR_INLINE void nnr_follow(NnrBin *x, int b)
{
    x->context->q0 = (uint16_t)(x->q0 = x->context->next0[x->q0 >> 1][b]);
    x->context->q1 = (uint16_t)(x->q1 = x->context->next1[x->q1][b]);
}

/* Renormalize after the more probable bin, when the range is at least 128: if it is below 256, double the range and `x`,
   and add `step` (1 or -1) to `bits`. Compilers would use a branch, which the processor often mispredicts. */
NNR_INLINE void nnr_double(uint32_t *range, uint64_t *x, int *bits, const int step)
{
#if defined(NNR_X86_64)
    uint32_t range2 = *range + *range;
    uint64_t x2 = *x + *x;
    if (step < 0)
        __asm__("cmpl $256, %0\n\tcmovb %3, %0\n\tcmovb %4, %1\n\tsbbl $0, %2"
                : "+&r"(*range), "+&r"(*x), "+&r"(*bits)
                : "r"(range2), "r"(x2)
                : "cc");
    else
        __asm__("cmpl $256, %0\n\tcmovb %3, %0\n\tcmovb %4, %1\n\tadcl $0, %2"
                : "+&r"(*range), "+&r"(*x), "+&r"(*bits)
                : "r"(range2), "r"(x2)
                : "cc");
#else
    int k = (*range >> 8) ^ 1;
    *range <<= k;
    *x <<= k;
    *bits += step * k;
#endif
}

NNR_INLINE void nnr_more_probable(NnrWindow *w, uint32_t range)
{
    nnr_double(&range, &w->window, &w->valid, -1);
    w->range = range;
}

NNR_INLINE void nnr_less_probable(NnrWindow *w, uint64_t scaled, uint32_t lps)
{
    int k = nnr_clz32(lps) - 23;
    w->range = lps << k;
    w->window = (w->window - scaled) << k;
    w->valid -= k;
}

/* Decode a bin on which the caller branches. Consumes at most 7 bits; at least 9 + 7 bits must be valid. */
NNR_INLINE int nnr_decode(NnrWindow *w, NnrBin *x)
{
    uint32_t lps = nnr_lps(w->range, x->row), range = w->range - lps;
    uint64_t scaled = (uint64_t)range << 55;
    if (x->sum & 4096) {
        if (NNR_LIKELY(w->window < scaled)) {
            nnr_more_probable(w, range);
            nnr_follow(x, 1);
            return 1;
        }
        nnr_less_probable(w, scaled, lps);
        nnr_follow(x, 0);
        return 0;
    }
    if (NNR_LIKELY(w->window < scaled)) {
        nnr_more_probable(w, range);
        nnr_follow(x, 0);
        return 0;
    }
    nnr_less_probable(w, scaled, lps);
    nnr_follow(x, 1);
    return 1;
}

/* Decode an unpredictable bin, without a branch. */
NNR_INLINE int nnr_decode_even(NnrWindow *w, NnrBin *x)
{
    uint32_t lps = nnr_lps(w->range, x->row), range = w->range - lps;
    uint64_t scaled = (uint64_t)range << 55, mask = (uint64_t)0 - (w->window >= scaled);
    uint32_t k = (range >> 8) ^ 1, kl = nnr_clz32(lps) - 23;
    int b;
    range <<= k;
    lps <<= kl;
    NNR_OPAQUE(mask);
    w->window -= scaled & mask;
    w->range = range ^ ((range ^ lps) & (uint32_t)mask);
    b = (int)(((x->sum >> 12) ^ mask) & 1);
    k ^= (k ^ kl) & (uint32_t)mask;
    w->window <<= k;
    w->valid -= k;
    nnr_follow(x, b);
    return b;
}

/* Find the state of a context after a leap; return 0 if its bins do not have the same row of ivlLpsRange. The sum
   decreases with each bin 0, so comparing the first and the last row is enough. */
NNR_INLINE int nnr_foresee(const NnrBin *x, NnrBin *after)
{
    after->context = x->context;
    after->q0 = NNR_LEAP0[x->context->shift0][x->q0 >> 1];
    after->q1 = NNR_LEAP1[x->context->shift1 - 4][x->q1];
    nnr_look(after);
    return !(x->sum & 4096) && after->row == x->row;
}

/* Decode zeros of one context by leaps, at most n; return their number. */
NNR_INLINE int64_t nnr_decode_zeros(NnrWindow *w, NnrBin *x, int32_t *levels, int64_t n)
{
    int64_t i = 0;
    int k;
    NnrBin after;
    while (n - i >= NNR_LEAP && nnr_foresee(x, &after)) {
        uint32_t leap = NNR_LEAP_RANGES[x->sum >> 7][w->range - 256];
        if (w->window >= (uint64_t)(leap & 511) << (55 - (leap >> 9)))
            break;
        w->range = leap & 511;
        w->window <<= leap >> 9;
        w->valid -= (int)(leap >> 9);
        for (k = 0; k < NNR_LEAP; k++)
            levels[i + k] = 0;
        i += NNR_LEAP;
        *x = after;
        if (w->valid < 37)
            nnr_refill(w);
    }
    x->context->q0 = (uint16_t)x->q0;
    x->context->q1 = (uint16_t)x->q1;
    return i;
}

/* Decode n bypass bins, 1 to 31, at once. Each bin halves the interval, so the number is the quotient of IvlOffset and
   the range. */
NNR_INLINE uint32_t nnr_decode_bypass(NnrWindow *w, int n)
{
    uint64_t top;
    uint32_t v;
    if (w->valid < 9 + 31)
        nnr_refill(w);
    top = w->window >> (55 - n);
    v = (uint32_t)(NNR_LIKELY(n < 23) ? top * NNR_RECIPROCALS[w->range - 256] >> 40 : top / w->range);
    w->window = (w->window << n) - (((uint64_t)v * w->range) << 55);
    w->valid -= n;
    return v;
}

/* Decode the rest of a level from bin j of abs_level_greater_x2 on, and abs_remainder. */
NNR_INLINE uint64_t nnr_decode_escape(NnrWindow *w, NnrContext *c, uint64_t level, uint64_t limit, int j)
{
    do {
        NnrBin x = nnr_bin(c + j);
        if (w->valid < 16)
            nnr_refill(w);
        if (!nnr_decode(w, &x))
            break;
        level += (uint64_t)1 << j;
        j++;
    } while (j < 31 && limit >= level + ((uint64_t)1 << j));
    return j ? level + nnr_decode_bypass(w, j) : level;
}

/* Store a level of any magnitude; record if it exceeds 32 bits. */
NNR_INLINE void nnr_store(NnrRun *r, int64_t i, uint64_t level, int negative)
{
    int64_t value = negative ? -(int64_t)level : (int64_t)level;
    r->levels[i] = (int32_t)value;
    if (NNR_UNLIKELY(r->levels[i] != value)) {
        r->levels[i] = 0;
        r->out_of_range = 1;
    }
}

/* Return the magnitude of QuantParam: resolve dependent quantization (10.2.1.4). */
NNR_INLINE uint64_t nnr_resolve(uint64_t level, int state_id, const int dq)
{
    return dq ? 2 * level - (uint64_t)(state_id & 1) : level;
}

/* Decode levels without references. The table entries for the next sig_flag are loaded before the current level ends:
   its last bin is unpredictable, and later loads would have to wait for it. */
NNR_INLINE void nnr_decode_plain(NnrDecoder *d, NnrRun *r, const int dq)
{
    NnrWindow w = nnr_open(d);
    int state_id = dq ? r->state_id : 0, prev = r->prev, s;
    int32_t *const levels = r->levels;
    NnrContext *const sigs = r->sig, *const signs = r->sign, *const greater_x = r->greater_x;
    int64_t i, n = r->n, most[2];
    const int both = r->limit[0] && r->limit[1], only = r->limit[1] != 0;
    NnrBin sig = nnr_bin(sigs + 3 * state_id + prev);
    for (s = 0; s < 2; s++)
        most[s] = r->limit[s] - 1 < r->unary_length ? r->limit[s] - 1 : r->unary_length;
    for (i = 0; i < n; i++) {
        NnrBin sign, x, y, next[2];
        NnrContext *c;
        uint64_t level, mask;
        int64_t j, end;
        int negative, zeros;
        if (w.valid < 37)
            nnr_refill(&w);
        zeros = 0;
        while (!nnr_decode(&w, &sig)) {
            levels[i++] = 0;
            prev = 0;
            if (dq)
                state_id = NNR_STATE[state_id][0];
            c = sigs + 3 * state_id;
            if (w.valid < 37)
                nnr_refill(&w);
            if (sig.context != c) {
                sig = nnr_bin(c);
            } else {
                nnr_look(&sig);
                if (++zeros == NNR_LEAP) {
                    zeros = 0;
                    i += nnr_decode_zeros(&w, &sig, levels + i, n - i);
                }
            }
            if (i == n)
                goto done;
        }
        sign = nnr_bin(signs + prev);
        x = nnr_bin(greater_x);
        y = nnr_bin(greater_x + 1);
        negative = NNR_LIKELY(both) ? nnr_decode_even(&w, &sign) : only;
        mask = (uint64_t)0 - (uint64_t)negative;
        NNR_OPAQUE(mask);
        x.row ^= (x.row ^ y.row) & mask;
        x.sum ^= (x.sum ^ y.sum) & (uint32_t)mask;
        x.context = c = greater_x + negative;
        x.q0 = c->q0;
        x.q1 = c->q1;
        prev = 2 - negative;
        end = most[negative];
        next[0] = nnr_bin(sigs + 3 * (dq ? NNR_STATE[state_id][0] : 0) + prev);
        if (dq)
            next[1] = nnr_bin(sigs + 3 * NNR_STATE[state_id][1] + prev);
        for (j = 0; j < end;) { /* in pairs: the position in the pair is the parity of the level */
            if (!nnr_decode(&w, &x)) {
                sig = next[dq];
                goto ended;
            }
            if (++j == end)
                break;
            x = nnr_bin(c += 2);
            if (!nnr_decode(&w, &x)) {
                sig = next[0];
                goto ended;
            }
            x = nnr_bin(c += 2);
            j++;
            if (w.valid < 23)
                nnr_refill(&w);
        }
        level = 1 + (uint64_t)j;
        if (NNR_LIKELY(j == r->unary_length && (int64_t)level < r->limit[negative])) {
            if (w.valid < 16)
                nnr_refill(&w);
            level = nnr_decode_escape(&w, r->greater_x2, level, (uint64_t)r->limit[negative], 0);
        }
        sig = next[dq & (int)level & 1];
        nnr_store(r, i, nnr_resolve(level, state_id, dq), negative);
        if (dq)
            state_id = NNR_STATE[state_id][level & 1];
        continue;
    ended:
        level = nnr_resolve(1 + (uint64_t)j, state_id, dq);
        levels[i] = ((int32_t)level ^ -negative) + negative;
        if (dq)
            state_id = NNR_STATE[state_id][(j + 1) & 1];
    }
done:
    r->state_id = dq ? state_id : r->state_id;
    r->prev = prev;
    nnr_close(&w, d);
}

/* Decode any levels. */
NNR_INLINE void nnr_decode_referring(NnrDecoder *d, NnrRun *r, const int dq)
{
    NnrWindow w = nnr_open(d);
    int state_id = dq ? r->state_id : 0, prev = r->prev, s;
    int64_t i, n = r->n, most[2];
    for (s = 0; s < 2; s++)
        most[s] = r->limit[s] - 1 < r->unary_length ? r->limit[s] - 1 : r->unary_length;
    for (i = 0; i < n; i++) {
        int32_t co_loc = r->co_loc ? r->co_loc[i] : 0;
        NnrBin x;
        uint64_t level;
        int j, negative;
        if (r->any_sig && r->any_sig[i])
            x = nnr_bin(r->sig + 40 + state_id);
        else if (co_loc)
            x = nnr_bin(r->sig + 24 + 2 * state_id + (co_loc > 1 || co_loc < -1));
        else
            x = nnr_bin(r->sig + 3 * state_id + prev);
        if (w.valid < 32)
            nnr_refill(&w);
        if (!nnr_decode(&w, &x)) {
            r->levels[i] = 0;
            prev = 0;
            if (dq)
                state_id = NNR_STATE[state_id][0];
            continue;
        }
        x = nnr_bin(r->sign + (co_loc ? 3 + (co_loc > 0) : prev));
        negative = r->limit[0] && r->limit[1] ? nnr_decode_even(&w, &x) : r->limit[1] != 0;
        for (j = 0; j < most[negative]; j++) {
            if (co_loc)
                x = nnr_bin(r->greater_x + 2 * (r->unary_length + j) + (co_loc < j && co_loc > -j));
            else
                x = nnr_bin(r->greater_x + 2 * j + negative);
            if (w.valid < 16)
                nnr_refill(&w);
            if (!nnr_decode(&w, &x))
                break;
        }
        level = 1 + (uint64_t)j;
        if (j == r->unary_length && (int64_t)level < r->limit[negative])
            level = nnr_decode_escape(&w, r->greater_x2, level, (uint64_t)r->limit[negative], 0);
        nnr_store(r, i, nnr_resolve(level, state_id, dq), negative);
        prev = 2 - negative;
        if (dq)
            state_id = NNR_STATE[state_id][level & 1];
    }
    r->state_id = dq ? state_id : r->state_id;
    r->prev = prev;
    nnr_close(&w, d);
}

#define NNR_DECODER(name, kind, dq) \
    NNR_APART void name(NnrDecoder *d, NnrRun *r) { kind(d, r, dq); }
NNR_DECODER(nnr_decode_plain_0, nnr_decode_plain, 0)
NNR_DECODER(nnr_decode_plain_1, nnr_decode_plain, 1)
NNR_DECODER(nnr_decode_referring_0, nnr_decode_referring, 0)
NNR_DECODER(nnr_decode_referring_1, nnr_decode_referring, 1)

static void nnr_decode_run(NnrDecoder *d, NnrRun *r)
{
    if (r->co_loc || r->any_sig)
        (r->dq ? nnr_decode_referring_1 : nnr_decode_referring_0)(d, r);
    else
        (r->dq ? nnr_decode_plain_1 : nnr_decode_plain_0)(d, r);
}

/* ------------------------------------------------------------------------------------------------ encoding */
/* Propagate the carry, and move whole bytes of `low` to `out`; the register stays in `low`. */
NNR_APART void nnr_put_bytes(NnrEncoder *e)
{
    uint8_t *grown, *p;
    if (e->capacity - e->n < 16) {
        grown = (uint8_t *)realloc(e->out, 2 * e->capacity + 4096);
        if (grown == NULL) {
            e->failed = 1;
            e->low = 0;
            e->held = 9;
            return;
        }
        e->out = grown;
        e->capacity = 2 * e->capacity + 4096;
    }
    if (e->low >> e->held) {
        e->low ^= (uint64_t)1 << e->held;
        for (p = e->out + e->n - 1; *p == 255; p--)
            *p = 0;
        *p += 1;
    }
    while (e->held >= 17) {
        e->held -= 8;
        e->out[e->n++] = (uint8_t)(e->low >> e->held);
        e->low &= ((uint64_t)1 << e->held) - 1;
    }
}

/* Append the bits of another encoder, which began with low 0, range 256 and 8 held bits. The base of the interval is a
   sum, so the result equals the bits of a single encoder. */
static void nnr_append(NnrEncoder *e, NnrEncoder *other)
{
    size_t i;
    int rest;
    nnr_put_bytes(other);
    if (other->failed)
        e->failed = 1;
    for (i = 0; i < other->n; i++) {
        e->low += other->out[i];
        e->low <<= 8;
        e->held += 8;
        if (e->held > 54)
            nnr_put_bytes(e);
    }
    rest = other->held - 8;
    e->low = (e->low << rest) + other->low;
    e->held += rest;
    e->range = other->range;
    if (e->held > 54)
        nnr_put_bytes(e);
}

/* The fields of an NnrEncoder that change with every bin. */
typedef struct {
    uint64_t low;
    uint32_t range;
    int held;
} NnrInterval;

NNR_INLINE void nnr_flush(NnrEncoder *e, NnrInterval *v)
{
    e->low = v->low;
    e->held = v->held;
    nnr_put_bytes(e);
    v->low = e->low;
    v->held = e->held;
}

/* Encode a bin that the caller knows from a branch. */
NNR_INLINE void nnr_encode(NnrEncoder *e, NnrInterval *v, NnrContext *c, const int b)
{
    NnrBin x = nnr_bin(c);
    uint32_t lps = nnr_lps(v->range, x.row), range = v->range - lps;
    if (NNR_LIKELY((int)(x.sum >> 12) == b)) {
        nnr_double(&range, &v->low, &v->held, 1);
        v->range = range;
    } else {
        int k = nnr_clz32(lps) - 23;
        v->low = (v->low + range) << k;
        v->range = lps << k;
        v->held += k;
    }
    nnr_follow(&x, b);
    if (v->held > 54)
        nnr_flush(e, v);
}

/* Encode an unpredictable bin, without a branch. */
NNR_INLINE void nnr_encode_even(NnrEncoder *e, NnrInterval *v, NnrContext *c, int b)
{
    NnrBin x = nnr_bin(c);
    uint32_t lps = nnr_lps(v->range, x.row), range = v->range - lps;
    uint64_t mask = (uint64_t)0 - ((x.sum >> 12) ^ (uint32_t)b);
    int k;
    NNR_OPAQUE(mask);
    v->low += range & mask;
    range ^= (range ^ lps) & (uint32_t)mask;
    k = nnr_clz32(range) - 23;
    v->range = range << k;
    v->low <<= k;
    v->held += k;
    nnr_follow(&x, b);
    if (v->held > 54)
        nnr_flush(e, v);
}

/* Encode abs_level_greater_x2 and abs_remainder. `rest` is the magnitude minus the unary part. */
NNR_INLINE void nnr_encode_escape(NnrEncoder *e, NnrInterval *v, NnrContext *c, uint64_t rest, uint64_t limit)
{
    int j = 0;
    do {
        if (rest < (uint64_t)1 << j) {
            nnr_encode(e, v, c + j, 0);
            break;
        }
        nnr_encode(e, v, c + j, 1);
        rest -= (uint64_t)1 << j;
        limit -= (uint64_t)1 << j;
        j++;
    } while (j < 31 && limit >= (uint64_t)1 << j);
    if (v->held + j > 54)
        nnr_flush(e, v);
    v->low = (v->low << j) + rest * v->range;
    v->held += j;
}

/* Encode zeros of one context by leaps, at most n; return their number. */
NNR_INLINE int64_t nnr_encode_zeros(NnrEncoder *e, NnrInterval *v, NnrContext *c, const int32_t *levels, int64_t n)
{
    NnrBin x = nnr_bin(c), after;
    int64_t i = 0;
    int32_t any;
    int k;
    while (n - i >= NNR_LEAP && nnr_foresee(&x, &after)) {
        uint32_t leap = NNR_LEAP_RANGES[x.sum >> 7][v->range - 256];
        for (any = 0, k = 0; k < NNR_LEAP; k++)
            any |= levels[i + k];
        if (any)
            break;
        v->range = leap & 511;
        v->low <<= leap >> 9;
        v->held += (int)(leap >> 9);
        if (v->held > 54)
            nnr_flush(e, v);
        i += NNR_LEAP;
        x = after;
    }
    c->q0 = (uint16_t)x.q0;
    c->q1 = (uint16_t)x.q1;
    return i;
}

NNR_INLINE void nnr_encode_levels(NnrEncoder *e, NnrRun *r, const int dq, const int refers)
{
    NnrInterval v;
    const int32_t *const levels = r->levels;
    NnrContext *const sigs = r->sig, *const signs = r->sign, *const greater_x = r->greater_x;
    const int both = r->limit[0] && r->limit[1];
    int state_id = dq ? r->state_id : 0, prev = r->prev, zeros = 0, s;
    int64_t i, n = r->n, most[2];
    v.low = e->low;
    v.range = e->range;
    v.held = e->held;
    for (s = 0; s < 2; s++)
        most[s] = r->limit[s] - 1 < r->unary_length ? r->limit[s] - 1 : r->unary_length;
    for (i = 0; i < n; i++) {
        int32_t level = levels[i], co_loc = refers && r->co_loc ? r->co_loc[i] : 0;
        NnrContext *sig = sigs + 3 * state_id + prev, *c;
        int negative = level < 0;
        int64_t a = negative ? -(int64_t)level : level, j, end;
        if (refers) {
            if (co_loc)
                sig = sigs + 24 + 2 * state_id + (co_loc > 1 || co_loc < -1);
            if (r->any_sig && r->any_sig[i])
                sig = sigs + 40 + state_id;
        }
        if (dq) {
            if (NNR_UNLIKELY(level == 1 << 30 && !(state_id & 1)))
                r->out_of_range = 1; /* twice the level is 2**31 */
            state_id = NNR_STATE[state_id][level & 1];
        }
        if (!level) {
            nnr_encode(e, &v, sig, 0);
            zeros = !refers && sig == sigs + 3 * state_id ? zeros + 1 : 0;
            prev = 0;
            if (zeros == NNR_LEAP) {
                zeros = 0;
                i += nnr_encode_zeros(e, &v, sig, levels + i + 1, n - i - 1);
            }
            continue;
        }
        zeros = 0;
        nnr_encode(e, &v, sig, 1);
        if (NNR_LIKELY(both))
            nnr_encode_even(e, &v, signs + (refers && co_loc ? 3 + (co_loc > 0) : prev), negative);
        prev = 2 - negative;
        end = a - 1 < most[negative] ? a - 1 : most[negative];
        if (refers && co_loc) {
            c = greater_x + 2 * r->unary_length;
            for (j = 0; j < end; j++)
                nnr_encode(e, &v, c + 2 * j + (co_loc < j && co_loc > -j), 1);
            if (j < most[negative])
                nnr_encode(e, &v, c + 2 * j + (co_loc < j && co_loc > -j), 0);
        } else {
            c = greater_x + negative;
            for (j = 0; j < end; j++, c += 2)
                nnr_encode(e, &v, c, 1);
            if (j < most[negative])
                nnr_encode(e, &v, c, 0);
        }
        if (j == r->unary_length && j + 1 < r->limit[negative])
            nnr_encode_escape(e, &v, r->greater_x2, (uint64_t)(a - 1 - j), (uint64_t)(r->limit[negative] - 1 - j));
    }
    r->state_id = dq ? state_id : r->state_id;
    r->prev = prev;
    e->low = v.low;
    e->range = v.range;
    e->held = v.held;
}

#define NNR_ENCODER(name, dq, refers) \
    NNR_APART void name(NnrEncoder *e, NnrRun *r) { nnr_encode_levels(e, r, dq, refers); }
NNR_ENCODER(nnr_encode_plain_0, 0, 0)
NNR_ENCODER(nnr_encode_plain_1, 1, 0)
NNR_ENCODER(nnr_encode_referring_0, 0, 1)
NNR_ENCODER(nnr_encode_referring_1, 1, 1)

static void nnr_encode_run(NnrEncoder *e, NnrRun *r)
{
    if (r->co_loc || r->any_sig)
        (r->dq ? nnr_encode_referring_1 : nnr_encode_referring_0)(e, r);
    else
        (r->dq ? nnr_encode_plain_1 : nnr_encode_plain_0)(e, r);
}

#endif
