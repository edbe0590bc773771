/* Streams of bit fields, and the split of floats into levels and fields (docs/reference/side-information.md).

   Floats are processed NNR_CHUNK at a time: one loop, which compilers vectorize, computes levels and fields, and
   another one packs the fields. Fields of at most NNR_WIDE bits are packed and unpacked with 8-byte accesses while the
   stream has 8 more bytes. tests/sideinfo/test_bits.py compares the streams with their definition. */
#ifndef NNR_FIELDS_H
#define NNR_FIELDS_H

#include <stdint.h>
#include <string.h>

#include "_dispatch.h"

/* Numbers processed at a time: their fields fit the first-level cache. */
#define NNR_CHUNK 1024
/* Fields up to this width, after up to 7 other bits, fit 64 bits. */
#define NNR_WIDE 56

typedef struct {
    uint8_t *at;
    uint8_t *end;
    uint64_t pending; /* written: the bits of an incomplete byte, with zeros above them */
    int count;        /* written: number of these bits; read: number of bits of *at already used; below 8 */
    int over;         /* 1 if fields need more bytes than the stream has */
} NnrStream;

static inline uint64_t nnr_ones(int width) { return width ? UINT64_MAX >> (64 - width) : 0; }

/* Return the number in 8 bytes, or convert a number to its 8 bytes. */
static inline uint64_t nnr_le64(uint64_t x)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    return x;
}

/* ------------------------------------------------------------------------------------------------ single fields */
/* Write the pending bits to a stream that has 8 more bytes; keep the bits of an incomplete byte. */
NNR_INLINE void nnr_flush(NnrStream *s)
{
    uint64_t x = nnr_le64(s->pending);
    memcpy(s->at, &x, 8);
    s->at += s->count >> 3;
    s->pending >>= s->count & 56;
    s->count &= 7;
}

static inline void nnr_put(NnrStream *s, uint64_t field, int width)
{
    if (width > NNR_WIDE) {
        nnr_put(s, field & 0xffffffff, 32);
        field >>= 32;
        width -= 32;
    }
    s->pending |= field << s->count;
    s->count += width;
    if (s->end - s->at >= 8) {
        nnr_flush(s);
        return;
    }
    for (; s->count >= 8; s->count -= 8) {
        if (s->at == s->end) {
            s->over = 1;
            s->count = 0;
            return;
        }
        *s->at++ = (uint8_t)s->pending;
        s->pending >>= 8;
    }
}

static inline uint64_t nnr_take(NnrStream *s, int width)
{
    uint64_t field = 0;
    int done = 0;
    if (width > NNR_WIDE) {
        field = nnr_take(s, 32);
        return field | nnr_take(s, width - 32) << 32;
    }
    if (s->end - s->at >= 8) {
        memcpy(&field, s->at, 8);
        field = nnr_le64(field) >> s->count & nnr_ones(width);
        s->count += width;
        s->at += s->count >> 3;
        s->count &= 7;
        return field;
    }
    if (8 * (s->end - s->at) < s->count + width) {
        s->over = 1;
        return 0;
    }
    while (done < width) {
        field |= (uint64_t)(*s->at >> s->count) << done;
        done += 8 - s->count;
        s->count = 0;
        s->at++;
    }
    if (done > width) {
        s->count = 8 - (done - width);
        s->at--;
    }
    return field & nnr_ones(width);
}

/* ------------------------------------------------------------------------------------------------ many fields */
/* Pack n fields, `together` at a time, which have at most NNR_WIDE bits. The compiler unrolls the inner loop. */
#define NNR_PACK(name, word) \
    NNR_INLINE void name##_groups(NnrStream *stream, const word *fields, int n, const int width, const int together) \
    { \
        NnrStream s = *stream; \
        int i = 0, k; \
        for (; i + together <= n && s.end - s.at >= 8; i += together) { \
            uint64_t group = 0; \
            for (k = 0; k < together; k++) \
                group |= (uint64_t)fields[i + k] << (k * width); \
            s.pending |= group << s.count; \
            s.count += together * width; \
            nnr_flush(&s); \
        } \
        for (; i < n; i++) \
            nnr_put(&s, fields[i], width); \
        *stream = s; \
    } \
    static void name(NnrStream *s, const word *fields, int n, int width) \
    { \
        if (width == 7) \
            name##_groups(s, fields, n, 7, 8); \
        else if (width == 23) \
            name##_groups(s, fields, n, 23, 2); \
        else if (width <= NNR_WIDE / 4) \
            name##_groups(s, fields, n, width, 4); \
        else if (width <= NNR_WIDE / 2) \
            name##_groups(s, fields, n, width, 2); \
        else if (width <= NNR_WIDE) \
            name##_groups(s, fields, n, width, 1); \
        else \
            for (; n > 0; n--) \
                nnr_put(s, *fields++, width); \
    }
NNR_PACK(nnr_pack32, uint32_t)
NNR_PACK(nnr_pack64, uint64_t)

#define NNR_UNPACK(name, word) \
    /* Unpack n fields, a multiple of 8, which begin at a byte; the compiler unrolls the inner loop. */ \
    NNR_INLINE void name##_groups(const uint8_t *at, word *fields, int64_t n, const int width) \
    { \
        int64_t i; \
        int k; \
        for (i = 0; i < n; i += 8, at += width) \
            for (k = 0; k < 8; k++) { \
                uint64_t x; \
                memcpy(&x, at + (k * width >> 3), 8); \
                fields[i + k] = (word)(nnr_le64(x) >> (k * width & 7) & nnr_ones(width)); \
            } \
    } \
    static void name(NnrStream *s, word *fields, int n, int width) \
    { \
        int64_t bit = s->count, most = 0, i; \
        if (width && width <= NNR_WIDE && s->end - s->at >= 8) \
            most = (8 * (s->end - s->at - 8) + 7 - bit) / width + 1; /* the last of them begins in the last 8 bytes */ \
        most = most < n ? most : n; \
        i = bit == 0 && (width == 7 || width == 23) ? most & ~(int64_t)7 : 0; \
        if (width == 7) \
            name##_groups(s->at, fields, i, 7); \
        else if (width == 23) \
            name##_groups(s->at, fields, i, 23); \
        bit += i * width; \
        for (; i < most; i++) { \
            uint64_t x; \
            memcpy(&x, s->at + (bit >> 3), 8); \
            fields[i] = (word)(nnr_le64(x) >> (bit & 7) & nnr_ones(width)); \
            bit += width; \
        } \
        s->at += bit >> 3; \
        s->count = bit & 7; \
        for (; i < n; i++) \
            fields[i] = (word)nnr_take(s, width); \
    }
NNR_UNPACK(nnr_unpack32, uint32_t)
NNR_UNPACK(nnr_unpack64, uint64_t)

/* ------------------------------------------------------------------------------------------------ floats */
/* Positions of level, field and sign in patterns of floats. */
typedef struct {
    int sign;  /* the bit of the sign */
    int shift; /* the lowest bit of the level */
    int zeros; /* the lowest bit of the field */
    uint64_t pivot;
    int holes; /* levels from 0 on that are reserved for +0.0 and -0.0 */
    int signs; /* fields have a sign bit */
} NnrFloats;

/* Split n patterns; return 1 if a sign bit is set that has no place, or a level exceeds 32 bits. A pivot of at most 31
   bits minus a number of at most 31 bits is in range, so only the 64-bit variant checks the difference. */
#define NNR_SPLIT(name, pattern, word, pack) \
    static int name(const pattern *patterns, int32_t *levels, int64_t n, NnrFloats f, NnrStream *s) \
    { \
        const word magnitude = (word)nnr_ones(f.sign), mantissa = (word)nnr_ones(f.shift - f.zeros); \
        const word pivot = (word)f.pivot, bias = (word)1 << 31, other = f.holes == 2 ? magnitude + 1 : 0; \
        const int place = f.shift - f.zeros, width = place + f.signs, top = 8 * (int)sizeof(word) - 1; \
        word fields[NNR_CHUNK], signs = 0, wide = 0; \
        for (; n > 0; n -= NNR_CHUNK, patterns += NNR_CHUNK, levels += NNR_CHUNK) { \
            int i, m = n < NNR_CHUNK ? (int)n : NNR_CHUNK, kept = m; \
            for (i = 0; f.holes && i < m; i++) \
                kept -= (patterns[i] == 0) | (patterns[i] == other); \
            if (kept == m) { \
                for (i = 0; i < m; i++) { \
                    word p = patterns[i], first = pivot - ((p & magnitude) >> f.shift); \
                    word level = first + ((word)f.holes & ((first >> top) - 1)); \
                    wide |= (level + bias) >> 16 >> 16 | (~first & level) >> top; \
                    signs |= p; \
                    levels[i] = (int32_t)level; \
                    fields[i] = (p >> f.zeros & mantissa) | p >> f.sign << place; \
                } \
            } else { \
                for (i = kept = 0; i < m; i++) { /* without branches, which would be unpredictable */ \
                    word p = patterns[i], first = pivot - ((p & magnitude) >> f.shift), negative = first >> top; \
                    word level = first + ((word)f.holes & (negative - 1)); \
                    word keep = (word)0 - (word)((p != 0) & (p != other)); \
                    wide |= keep & ((level + bias) >> 16 >> 16 | (~first & level) >> top); \
                    signs |= keep & p; \
                    levels[i] = (int32_t)((keep & level) | (~keep & p >> f.sign)); \
                    fields[kept] = (p >> f.zeros & mantissa) | p >> f.sign << place; \
                    kept += keep & 1; \
                } \
            } \
            if (wide || (signs > magnitude && !f.signs)) \
                return 1; \
            pack(s, fields, kept, width); \
        } \
        return 0; \
    }
NNR_SPLIT(nnr_split8, uint8_t, uint32_t, nnr_pack32)
NNR_SPLIT(nnr_split16, uint16_t, uint32_t, nnr_pack32)
NNR_SPLIT(nnr_split32, uint32_t, uint32_t, nnr_pack32)
NNR_SPLIT(nnr_split64, uint64_t, uint64_t, nnr_pack64)

/* Join n levels and their fields; `patterns` may be `levels`. Return 1 if a level is outside the exponents. */
#define NNR_JOIN(name, pattern, word, unpack) \
    static int name(const int32_t *levels, pattern *patterns, int64_t n, NnrFloats f, NnrStream *s) \
    { \
        const word largest = (word)(nnr_ones(f.sign) >> f.shift), mantissa = (word)nnr_ones(f.shift - f.zeros); \
        const word pivot = (word)f.pivot; \
        const int place = f.shift - f.zeros, width = place + f.signs; \
        word fields[NNR_CHUNK], items[NNR_CHUNK], wrong = 0; \
        for (; n > 0; n -= NNR_CHUNK, patterns += NNR_CHUNK, levels += NNR_CHUNK) { \
            int i, k = 0, m = n < NNR_CHUNK ? (int)n : NNR_CHUNK, kept = m; \
            for (i = 0; i < m; i++) \
                kept -= (uint32_t)levels[i] < (uint32_t)f.holes; \
            unpack(s, fields, kept, width); \
            if (kept == m) { \
                for (i = 0; i < m; i++) { \
                    word top = pivot - (word)levels[i] + (levels[i] < 0 ? 0 : (word)f.holes), field = fields[i]; \
                    wrong |= top > largest; \
                    items[i] = field >> place << f.sign | top << f.shift | (field & mantissa) << f.zeros; \
                } \
            } else { \
                for (i = 0; i < m; i++) { \
                    word keep = (word)0 - (word)((uint32_t)levels[i] >= (uint32_t)f.holes), level = (word)levels[i]; \
                    word top = pivot - level + (levels[i] < 0 ? 0 : (word)f.holes), field = fields[k]; \
                    wrong |= keep & (word)(top > largest); \
                    field = field >> place << f.sign | top << f.shift | (field & mantissa) << f.zeros; \
                    items[i] = (keep & field) | (~keep & level << f.sign); \
                    k += keep & 1; \
                } \
            } \
            if (wrong) \
                return 1; \
            for (i = 0; i < m; i++) \
                patterns[i] = (pattern)items[i]; \
        } \
        return 0; \
    }
NNR_JOIN(nnr_join8, uint8_t, uint32_t, nnr_unpack32)
NNR_JOIN(nnr_join16, uint16_t, uint32_t, nnr_unpack32)
NNR_JOIN(nnr_join32, uint32_t, uint32_t, nnr_unpack32)
NNR_JOIN(nnr_join64, uint64_t, uint64_t, nnr_unpack64)

/* Write the `zeros` lowest bits of n patterns as fields, except for holes. */
#define NNR_SPLIT_LOW(name, pattern, word, pack) \
    static void name(const pattern *patterns, const int32_t *levels, int64_t n, int holes, int zeros, NnrStream *s) \
    { \
        const word mask = (word)nnr_ones(zeros); \
        word fields[NNR_CHUNK]; \
        for (; n > 0; n -= NNR_CHUNK, patterns += NNR_CHUNK, levels += NNR_CHUNK) { \
            int i, kept = 0, m = n < NNR_CHUNK ? (int)n : NNR_CHUNK; \
            for (i = 0; i < m; i++) { \
                fields[kept] = patterns[i] & mask; \
                kept += (uint32_t)levels[i] >= (uint32_t)holes; \
            } \
            pack(s, fields, kept, zeros); \
        } \
    }
NNR_SPLIT_LOW(nnr_split_low8, uint8_t, uint32_t, nnr_pack32)
NNR_SPLIT_LOW(nnr_split_low16, uint16_t, uint32_t, nnr_pack32)
NNR_SPLIT_LOW(nnr_split_low32, uint32_t, uint32_t, nnr_pack32)
NNR_SPLIT_LOW(nnr_split_low64, uint64_t, uint64_t, nnr_pack64)

/* Add fields to the `zeros` lowest bits of n patterns, except for holes. */
#define NNR_JOIN_LOW(name, pattern, word, unpack) \
    static void name(const int32_t *levels, pattern *patterns, int64_t n, int holes, int zeros, NnrStream *s) \
    { \
        word fields[NNR_CHUNK]; \
        for (; n > 0; n -= NNR_CHUNK, patterns += NNR_CHUNK, levels += NNR_CHUNK) { \
            int i, k = 0, kept = 0, m = n < NNR_CHUNK ? (int)n : NNR_CHUNK; \
            for (i = 0; i < m; i++) \
                kept += (uint32_t)levels[i] >= (uint32_t)holes; \
            unpack(s, fields, kept, zeros); \
            for (i = 0; i < m; i++) \
                if ((uint32_t)levels[i] >= (uint32_t)holes) \
                    patterns[i] |= (pattern)fields[k++]; \
        } \
    }
NNR_JOIN_LOW(nnr_join_low8, uint8_t, uint32_t, nnr_unpack32)
NNR_JOIN_LOW(nnr_join_low16, uint16_t, uint32_t, nnr_unpack32)
NNR_JOIN_LOW(nnr_join_low32, uint32_t, uint32_t, nnr_unpack32)
NNR_JOIN_LOW(nnr_join_low64, uint64_t, uint64_t, nnr_unpack64)

#endif
