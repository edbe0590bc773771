/* Estimation of coded sizes, and other sums over many levels.

   A context can start with any of the nine parameter sets of 10.3.2.2. The cost of its bins under each set is the sum of
   NNR_COST over the states that the set leads to. nnr_grant() then chooses sets whose savings exceed the bits that
   signal them. Costs are integers in 2^-15 bit, so that all machines choose alike. tests/cabac compares the costs with
   the sizes of encoded payloads. */
#ifndef NNR_ESTIMATE_H
#define NNR_ESTIMATE_H

#include "_levels.h"

/* Added to pStateIdx0 and pStateIdx1 to make them indices. */
#define NNR_FAST_BIAS 128
#define NNR_SLOW_BIAS 2048

/* Cost of a bin, and transitions after it. */
typedef struct {
    uint32_t cost[64];      /* by the sum of both states, as in NNR_COST */
    uint8_t fast[4][256];   /* next pStateIdx0, by shiftIdx0 */
    uint16_t slow[3][4096]; /* next pStateIdx1, by shiftIdx1 - 4 */
} NnrStep;

/* Indexed by the bin. */
static NnrStep NNR_STEP[2];

/* Fill NNR_STEP; call nnr_prepare() first. */
static void nnr_init_steps(void)
{
    int b, shift, k;
    for (b = 0; b < 2; b++) {
        for (k = 0; k < 64; k++)
            NNR_STEP[b].cost[k] = (uint32_t)NNR_COST[k][b];
        for (shift = 0; shift < 4; shift++)
            for (k = 0; k < 256; k++)
                NNR_STEP[b].fast[shift][k] = (uint8_t)(NNR_NEXT0[shift][k][b] >> 1);
        for (shift = 0; shift < 3; shift++)
            for (k = 0; k < 4096; k++)
                NNR_STEP[b].slow[shift][k] = NNR_NEXT1[shift][k][b];
    }
}

/* Cost and states of a context for each of the nine parameter sets. */
typedef struct {
    uint64_t cost[9]; /* 2^-15 bit */
    uint16_t fast[9];
    uint16_t slow[9];
} NnrSets;

/* Return 1 if a piece is sampled: one piece of each group of `stride` pieces, at a pseudo-random place. */
static inline int nnr_sampled(int64_t piece, int64_t stride)
{
    uint64_t group = (uint64_t)(piece / stride);
    return piece % stride == (int64_t)((group * 0x9e3779b97f4a7c15u >> 32) % (uint64_t)stride);
}

static inline void nnr_init_sets(NnrSets *s)
{
    int k;
    for (k = 0; k < 9; k++) {
        s->fast[k] = (uint16_t)(NNR_CTX_PARAMETERS[k][2] + NNR_FAST_BIAS);
        s->slow[k] = (uint16_t)(NNR_CTX_PARAMETERS[k][3] + NNR_SLOW_BIAS);
    }
}

/* Cost of the bin that `step` describes, in states f and s. */
#define NNR_COST_OF(f, s) step->cost[(16 * (f) + (s)) >> 7]

/* Add the cost of bins for three sets with the same shiftIdx1. The cost of up to 2^14 bins fits 32 bits. */
static inline void nnr_run_three(NnrSets *s, const uint8_t *bins, const uint8_t *end,
                                 int i, int j, int k, int fi, int fj, int fk, int slow)
{
    uint32_t a = s->fast[i], b = s->fast[j], c = s->fast[k], x = s->slow[i], y = s->slow[j], z = s->slow[k];
    uint32_t cost_i = 0, cost_j = 0, cost_k = 0;
    for (; bins < end; bins++) {
        const NnrStep *step = NNR_STEP + *bins;
        cost_i += NNR_COST_OF(a, x);
        cost_j += NNR_COST_OF(b, y);
        cost_k += NNR_COST_OF(c, z);
        a = step->fast[fi][a];
        b = step->fast[fj][b];
        c = step->fast[fk][c];
        x = step->slow[slow][x];
        y = step->slow[slow][y];
        z = step->slow[slow][z];
    }
    s->fast[i] = (uint16_t)a, s->fast[j] = (uint16_t)b, s->fast[k] = (uint16_t)c;
    s->slow[i] = (uint16_t)x, s->slow[j] = (uint16_t)y, s->slow[k] = (uint16_t)z;
    s->cost[i] += cost_i, s->cost[j] += cost_j, s->cost[k] += cost_k;
}

/* Add the cost of up to 2^14 bins for each set. */
static void nnr_run_sets(NnrSets *s, const uint8_t *bins, const uint8_t *end)
{
    nnr_run_three(s, bins, end, 0, 1, 2, 1, 1, 1, 0);
    nnr_run_three(s, bins, end, 3, 7, 8, 0, 3, 3, 1);
    nnr_run_three(s, bins, end, 4, 5, 6, 2, 2, 2, 2);
}

/* Add the cost of up to 2^14 bins for set k only. */
static void nnr_run_set(NnrSets *s, int k, const uint8_t *bins, const uint8_t *end)
{
    int fast = NNR_CTX_PARAMETERS[k][0], slow = NNR_CTX_PARAMETERS[k][1] - 4;
    uint32_t a = s->fast[k], x = s->slow[k], cost = 0;
    for (; bins < end; bins++) {
        const NnrStep *step = NNR_STEP + *bins;
        cost += NNR_COST_OF(a, x);
        a = step->fast[fast][a];
        x = step->slow[slow][x];
    }
    s->fast[k] = (uint16_t)a;
    s->slow[k] = (uint16_t)x;
    s->cost[k] += cost;
}

/* Cost so far of shift_idx() elements, and the state of their context. */
typedef struct {
    uint64_t cost;
    uint32_t fast, slow;
} NnrFlags;

/* Add the cost of shift_idx() for contexts in coding order (10.2.1.7). Stops when the cost reaches `most`. */
static inline void nnr_run_flags(NnrFlags *f, const int *contexts, const int *end, const uint8_t *ids, uint64_t most)
{
    uint32_t a = f->fast, x = f->slow;
    uint64_t cost = f->cost;
    for (; contexts < end && cost < most; contexts++) {
        const NnrStep *step = NNR_STEP + (ids[*contexts] != 0);
        cost += NNR_COST_OF(a, x) + ((uint64_t)(ids[*contexts] != 0) * 3 << 15);
        a = step->fast[1][a];
        x = step->slow[0][x];
    }
    f->cost = cost, f->fast = a, f->slow = x;
}

/* Return the cost of shift_idx() for n contexts, or some number of at least `most`. */
static uint64_t nnr_flags_cost(const int *contexts, int n, const uint8_t *ids, uint64_t most)
{
    NnrFlags all = {0, NNR_FAST_BIAS, NNR_SLOW_BIAS};
    nnr_run_flags(&all, contexts, contexts + n, ids, most);
    return all.cost;
}

/* A candidate: an id that saves `gain` in the bins of its context. `place` is the index of its shift_idx(). */
typedef struct {
    int context;
    int place;
    uint8_t id;
    uint64_t gain;
} NnrWish;

#define NNR_ALL_WAYS 5

/* Choose the candidates (ordered by `place`) with the lowest total cost, and write their ids. Up to NNR_ALL_WAYS
   candidates: exhaustive search. More: start with all or none, and change single choices as long as the cost falls. */
static void nnr_grant(const int *contexts, int n, uint8_t *ids, const NnrWish *wishes, int m)
{
    uint64_t least = UINT64_MAX, lost = 0, cost; /* lost: sum of the gains of rejected candidates */
    int i, changed = 1, way, best = 0;
    if (m <= NNR_ALL_WAYS) {
        for (way = 0; way < 1 << m; way++) {
            cost = 0;
            for (i = 0; i < m; i++) {
                ids[wishes[i].context] = way >> i & 1 ? wishes[i].id : 0;
                cost += way >> i & 1 ? 0 : wishes[i].gain;
            }
            if (cost >= least)
                continue;
            cost += nnr_flags_cost(contexts, n, ids, least - cost);
            if (cost < least) {
                least = cost;
                best = way;
            }
        }
        for (i = 0; i < m; i++)
            ids[wishes[i].context] = best >> i & 1 ? wishes[i].id : 0;
        return;
    }
    for (i = 0; i < m; i++) {
        ids[wishes[i].context] = 0;
        lost += wishes[i].gain;
    }
    least = lost + nnr_flags_cost(contexts, n, ids, UINT64_MAX);
    for (i = 0; i < m; i++)
        ids[wishes[i].context] = wishes[i].id;
    cost = nnr_flags_cost(contexts, n, ids, UINT64_MAX);
    if (least < cost)
        for (i = 0; i < m; i++)
            ids[wishes[i].context] = 0;
    lost = least < cost ? lost : 0;
    least = least < cost ? least : cost;
    while (changed) { /* terminates, because `least` falls with each change */
        NnrFlags up_to = {0, NNR_FAST_BIAS, NNR_SLOW_BIAS}, whole;
        const int *at = contexts;
        changed = 0;
        for (i = 0; i < m; i++) {
            uint8_t *id = ids + wishes[i].context, before = *id;
            uint64_t then = lost + (before ? wishes[i].gain : 0 - wishes[i].gain);
            nnr_run_flags(&up_to, at, contexts + wishes[i].place, ids, UINT64_MAX);
            at = contexts + wishes[i].place;
            whole = up_to;
            whole.cost += then;
            *id = before ? 0 : wishes[i].id;
            nnr_run_flags(&whole, at, contexts + n, ids, least);
            if (whole.cost < least) {
                lost = then;
                least = whole.cost;
                changed = 1;
            } else {
                *id = before;
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------ magnitudes */
/* Histogram of magnitudes: a bucket for each magnitude below 256, then 16 buckets for each power of two. */
#define NNR_BUCKETS (256 + 16 * 24)

static inline int nnr_magnitude_bucket(uint32_t magnitude)
{
    int exponent;
    if (magnitude < 256)
        return (int)magnitude;
    exponent = 31 - nnr_clz32(magnitude);
    return 256 + 16 * (exponent - 8) + (int)((magnitude >> (exponent - 4)) & 15);
}

static void nnr_count_magnitudes(const int32_t *levels, int64_t n, uint64_t *counts)
{
    int64_t i;
    for (i = 0; i < n; i++)
        counts[nnr_magnitude_bucket(levels[i] < 0 ? 0u - (uint32_t)levels[i] : (uint32_t)levels[i])]++;
}

/* Return the number of magnitudes of at least `least`. sums[i] is the number in buckets from i on; the number is
   interpolated linearly within a bucket. */
static inline uint64_t nnr_at_least(const uint64_t *sums, uint64_t least)
{
    int bucket, exponent;
    uint64_t width, inside;
    if (least >= (uint64_t)1 << 32)
        return 0;
    bucket = nnr_magnitude_bucket((uint32_t)least);
    if (bucket < 256)
        return sums[bucket];
    exponent = 31 - nnr_clz32((uint32_t)least);
    width = (uint64_t)1 << (exponent - 4);
    inside = least & (width - 1);
    return sums[bucket] - (uint64_t)((double)(sums[bucket] - sums[bucket + 1]) * ((double)inside / (double)width));
}

/* Return n * log2(n) in 2^-15 bit, n > 0. */
static uint64_t nnr_n_log2(uint64_t n) { return n * (uint64_t)nnr_log2(n); }

/* Return the cost of n bins, n1 of them ones: their entropy, and the overhead of adaptive states. */
static uint64_t nnr_bins_cost(uint64_t n, uint64_t n1)
{
    uint64_t cost;
    if (n == 0)
        return 0;
    cost = nnr_n_log2(n);
    if (n1)
        cost -= nnr_n_log2(n1);
    if (n > n1)
        cost -= nnr_n_log2(n - n1);
    return cost + n * 197; /* overhead of 0.006 bit for each bin */
}

/* Estimate the cost of abs_level_greater_x, abs_level_greater_x2 and abs_remainder for each cabac_unary_length_minus1
   from 0 to `last`, from the sums of the histogram. */
static void nnr_magnitudes_cost(const uint64_t *sums, int last, uint64_t *costs)
{
    uint64_t unary = 0, above, least, more;
    int u, j;
    for (u = 0; u <= last; u++) {
        above = nnr_at_least(sums, (uint64_t)u + 2);
        unary += nnr_bins_cost(sums[u + 1], above) + (2 << 10);
        costs[u] = unary;
        least = (uint64_t)u + 2;
        for (j = 0; above && j < 31; j++) {
            more = nnr_at_least(sums, least + ((uint64_t)1 << j));
            costs[u] += nnr_bins_cost(above, more) + ((above - more) * (uint64_t)j << 15);
            above = more;
            least += (uint64_t)1 << j;
        }
    }
}

/* ------------------------------------------------------------------------------------------------ bounds, rows, states */
static void nnr_bounds(const int32_t *levels, int64_t n, int32_t *low, int32_t *high)
{
    int32_t least = levels[0], most = levels[0];
    int64_t i;
    for (i = 1; i < n; i++) {
        least = levels[i] < least ? levels[i] : least;
        most = levels[i] > most ? levels[i] : most;
    }
    *low = least;
    *high = most;
}

static inline int nnr_is_zero(const int32_t *levels, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++)
        if (levels[i])
            return 0;
    return 1;
}

/* Write row_skip_list: 1 for each row whose levels are all 0. */
static void nnr_zero_rows(const int32_t *levels, int64_t height, int64_t width, uint8_t *rows)
{
    int64_t i;
    for (i = 0; i < height; i++)
        rows[i] = (uint8_t)nnr_is_zero(levels + i * width, width);
}

static int nnr_largest(const uint8_t *numbers, int64_t n)
{
    int64_t i;
    int largest = 0;
    for (i = 0; i < n; i++)
        largest = numbers[i] > largest ? numbers[i] : largest;
    return largest;
}

static int nnr_has_zero_rows(const int32_t *levels, int64_t height, int64_t width)
{
    int64_t i;
    for (i = 0; i < height; i++)
        if (nnr_is_zero(levels + i * width, width))
            return 1;
    return 0;
}

/* Return stateId after n levels. The state is linear over GF(2) in the parities of the levels, and has a period of 4
   if all parities are 0. Therefore parities of levels that are 4 apart can be added. */
static int nnr_state_after(const int32_t *levels, int64_t n, int state)
{
    uint32_t folded[16] = {0};
    int64_t i = 0;
    int k;
    for (; i + 16 <= n; i += 16)
        for (k = 0; k < 16; k++)
            folded[k] ^= (uint32_t)levels[i + k];
    for (k = 0; k < 4; k++)
        state = NNR_STATE[state][(folded[k] ^ folded[k + 4] ^ folded[k + 8] ^ folded[k + 12]) & 1];
    for (; i < n; i++)
        state = NNR_STATE[state][levels[i] & 1];
    return state;
}

#endif
