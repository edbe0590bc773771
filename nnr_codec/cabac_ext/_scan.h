/* Coding order of the parameters of a tensor (IndexToXY, 4.12). Parameters that are consecutive in coding order and in
   memory form a run: in a block scan, a row of a block. */
#ifndef NNR_SCAN_H
#define NNR_SCAN_H

#include <stdint.h>
#include <string.h>

typedef struct {
    int64_t height, width, block; /* of the matrix; edge of blocks. Without a block scan: one row, one block */
    int64_t top, left;            /* of the current block */
    int64_t row, column;          /* of the next parameter */
} NnrScan;

/* Pass over the next run, or over its first `most` parameters. Write the index of the first one to `at`, and return
   their number. */
static inline int64_t nnr_run(NnrScan *s, int64_t most, int64_t *at)
{
    int64_t right = s->block < s->width - s->left ? s->left + s->block : s->width;
    int64_t bottom = s->block < s->height - s->top ? s->top + s->block : s->height;
    int64_t n = right - s->column < most ? right - s->column : most;
    *at = s->row * s->width + s->column;
    s->column += n;
    if (s->column < right)
        return n;
    s->row += 1;
    if (s->row == bottom && right == s->width) {
        s->top = bottom;
        s->left = 0;
    } else if (s->row == bottom) {
        s->row = s->top;
        s->left = right;
    }
    s->column = s->left;
    return n;
}

/* Copy the next n items of a row-major array to consecutive places; return the position behind them. */
static inline NnrScan nnr_gather(NnrScan s, const void *array, void *out, int64_t n, int64_t size)
{
    int64_t at, m;
    for (; n; n -= m, out = (char *)out + m * size) {
        m = nnr_run(&s, n, &at);
        memcpy(out, (const char *)array + at * size, (size_t)(m * size));
    }
    return s;
}

/* Copy n levels to their places in a row-major array; return the position behind them. */
static inline NnrScan nnr_scatter(NnrScan s, const int32_t *levels, int32_t *array, int64_t n)
{
    int64_t at, m;
    for (; n; n -= m, levels += m) {
        m = nnr_run(&s, n, &at);
        memcpy(array + at, levels, (size_t)m * sizeof *levels);
    }
    return s;
}
#endif
