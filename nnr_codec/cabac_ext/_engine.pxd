# cython: language_level=3
"""Arithmetic coding engines (ISO/IEC 15938-17:2024, 10.3): decoder, encoder, estimator of costs, and tracer."""

from libc.stdint cimport UINT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport realloc

cdef extern from "_tables.h" nogil:
    const int16_t NNR_TRANSITION[32]
    const uint8_t NNR_RLPS[256]
    const int16_t NNR_CTX_PARAMETERS[9][4]
    const uint8_t NNR_STATE[8][2]
    const int32_t NNR_COST[64][2]
    int nnr_clz32(uint32_t x)
    uint64_t nnr_be64(const uint8_t *p)

cdef extern from "_levels.h" nogil:
    ctypedef uint16_t NnrNext[2]
    const NnrNext NNR_NEXT0[4][256]
    const NnrNext NNR_NEXT1[3][4096]

    ctypedef struct Context "NnrContext":
        const NnrNext *next0
        const NnrNext *next1
        uint16_t q0
        uint16_t q1
        uint8_t shift0
        uint8_t shift1

    ctypedef struct Decoder "NnrDecoder":
        const uint8_t *start
        const uint8_t *pos
        const uint8_t *end
        uint64_t value
        uint32_t range
        int bits
        int64_t overrun
        int invalid

    ctypedef struct Encoder "NnrEncoder":
        uint8_t *out
        size_t n
        size_t capacity
        uint64_t low
        uint32_t range
        int held
        int failed

    ctypedef struct Run "NnrRun":
        int32_t *levels
        int64_t n
        Context *sig
        Context *sign
        Context *greater_x
        Context *greater_x2
        const int32_t *co_loc
        const uint8_t *any_sig
        int64_t limit[2]
        int unary_length
        int dq
        int state_id
        int prev
        int out_of_range

    void nnr_prepare()
    void nnr_decode_run(Decoder *d, Run *r)
    void nnr_encode_run(Encoder *e, Run *r)
    void nnr_put_bytes(Encoder *e)
    void nnr_append(Encoder *e, Encoder *other)

cdef extern from "_estimate.h" nogil:
    ctypedef struct NnrSets:
        uint64_t cost[9]
    void nnr_init_steps()
    int nnr_sampled(int64_t piece, int64_t stride)
    void nnr_init_sets(NnrSets *s)
    void nnr_run_sets(NnrSets *s, const uint8_t *bins, const uint8_t *end)
    void nnr_run_set(NnrSets *s, int k, const uint8_t *bins, const uint8_t *end)
    int nnr_state_after(const int32_t *levels, int64_t n, int state)
    ctypedef struct NnrWish:
        int context
        int place
        uint8_t id
        uint64_t gain
    void nnr_grant(const int *contexts, int n, uint8_t *ids, const NnrWish *wishes, int m)
    uint64_t nnr_flags_cost(const int *flags, int n, const uint8_t *ids, uint64_t most)
    enum:
        NNR_BUCKETS
    void nnr_count_magnitudes(const int32_t *levels, int64_t n, uint64_t *counts)
    void nnr_bounds(const int32_t *levels, int64_t n, int32_t *low, int32_t *high)
    void nnr_zero_rows(const int32_t *levels, int64_t height, int64_t width, uint8_t *rows)
    int nnr_largest(const uint8_t *numbers, int64_t n)
    int nnr_has_zero_rows(const int32_t *levels, int64_t height, int64_t width)
    void nnr_magnitudes_cost(const uint64_t *sums, int last, uint64_t *costs)

ctypedef struct Estimator:
    Context *base    # the context table, to find a context's number
    NnrSets *sets    # one for each context
    uint8_t **ends   # end of the bins of each context that are not counted yet
    uint8_t *bins    # `room` bins for each context
    int contexts
    int64_t room, held
    int open         # count with all sets, because the ids are not chosen yet
    int64_t stride   # one of so many pieces is sampled
    int64_t piece
    int64_t taken    # sampled levels
    int64_t passed   # skipped levels
    uint64_t bypass  # bypass bins
    int *flags       # contexts with a shift_idx(), in coding order
    int flag_count

ctypedef struct Tracer:
    Decoder d
    Context *base
    int32_t *rows    # six numbers for each bin: context, bin, IvlCurrRange, IvlOffset, pStateIdx0, pStateIdx1
    int64_t n
    int64_t capacity
    int failed


cdef inline void init_context(Context *c, int set_id) noexcept nogil:
    """Initialize a context with a parameter set: 10.3.2.2, and 10.3.2.3 with set 0."""
    c.shift0 = <uint8_t>NNR_CTX_PARAMETERS[set_id][0]
    c.shift1 = <uint8_t>NNR_CTX_PARAMETERS[set_id][1]
    c.next0 = NNR_NEXT0[c.shift0]
    c.next1 = NNR_NEXT1[c.shift1 - 4]
    c.q0 = 2 * (NNR_CTX_PARAMETERS[set_id][2] + 128)
    c.q1 = NNR_CTX_PARAMETERS[set_id][3] + 2048


cdef inline int16_t state0(const Context *c) noexcept nogil:
    """Return pStateIdx0."""
    return <int16_t>((c.q0 >> 1) - 128)


cdef inline int16_t state1(const Context *c) noexcept nogil:
    """Return pStateIdx1."""
    return <int16_t>(c.q1 - 2048)


cdef inline void update(int16_t *p0, int16_t *p1, int shift0, int shift1, int b) noexcept nogil:
    """State transition (10.3.4.3.2.2). p0 stays within 8 bits and p1 within 12, so all indices are in the table."""
    if b:
        p0[0] += NNR_TRANSITION[16 + (p0[0] >> 3)] >> (4 + shift0)
        p1[0] += NNR_TRANSITION[16 + (p1[0] >> 7)] >> shift1
    else:
        p0[0] -= NNR_TRANSITION[16 + (-p0[0] >> 3)] >> (4 + shift0)
        p1[0] -= NNR_TRANSITION[16 + (-p1[0] >> 7)] >> shift1


cdef inline void follow(Context *c, int b) noexcept nogil:
    """Update the states of a context after a bin."""
    cdef int16_t p0 = state0(c), p1 = state1(c)
    update(&p0, &p1, c.shift0, c.shift1, b)
    c.q0 = 2 * (p0 + 128)
    c.q1 = p1 + 2048


cdef inline uint32_t rlps(uint32_t range_, int s) noexcept nogil:
    """Return ivlLpsRange. The shift precedes the absolute value (errata B4)."""
    cdef int k = s >> 7
    return NNR_RLPS[(range_ & 0xe0) + (-k if k < 0 else k)]


# ---------------------------------------------------------------------------------------------------- decoder
cdef inline void refill(Decoder *d) noexcept nogil:
    """Extend the look-ahead to at least 48 bits. Past the end it reads zeros, and counts their bytes in `overrun`."""
    cdef int k
    if d.end - d.pos >= 8 and d.bits >= 0:
        k = (55 - d.bits) >> 3
        d.value = (d.value << (8 * k)) | (nnr_be64(d.pos) >> (64 - 8 * k))
        d.pos += k
        d.bits += 8 * k
        return
    while d.bits <= 47:
        d.value <<= 8
        if d.pos < d.end:
            d.value |= d.pos[0]
            d.pos += 1
        else:
            d.overrun += 1
        d.bits += 8


cdef inline void init_decoder(Decoder *d, const uint8_t *data, size_t n) noexcept nogil:
    """Initialize the arithmetic decoder (10.3.2.4)."""
    d.start = d.pos = data
    d.end = data + n
    d.value = 0
    d.range = 510
    d.bits = -9
    d.overrun = 0
    refill(d)
    d.invalid = (d.value >> d.bits) >= 510


cdef inline void seek(Decoder *d, int64_t bit, uint32_t ivl_offset) noexcept nogil:
    """Move to an entry point with this IvlOffset (errata G4). `bit`, the next bit to read, is not past the end."""
    cdef int k = -bit & 7
    d.pos = d.start + (bit >> 3)
    d.value = ivl_offset
    d.range = 256
    d.bits = k
    d.overrun = 0
    if k:
        d.value = (d.value << k) | (d.pos[0] & ((1 << k) - 1))
        d.pos += 1


cdef inline int64_t consumed(const Decoder *d) noexcept nogil:
    """Return the number of bits read, including the 9 bits of IvlOffset."""
    return 8 * ((d.pos - d.start) + d.overrun) - d.bits


cdef inline uint32_t offset(const Decoder *d) noexcept nogil:
    """Return IvlOffset."""
    return <uint32_t>(d.value >> d.bits)


cdef inline int decode_decision(Decoder *d, Context *c) noexcept nogil:
    """DecodeDecision (10.3.4.3.2)."""
    cdef int s = 16 * state0(c) + state1(c)
    cdef int b = s >= 0
    cdef uint32_t lps = rlps(d.range, s)
    cdef uint64_t scaled
    cdef int k
    if d.bits < 8:
        refill(d)
    d.range -= lps
    scaled = <uint64_t>d.range << d.bits
    if d.value < scaled:
        k = d.range < 256
        d.range <<= k
    else:
        b ^= 1
        d.value -= scaled
        k = nnr_clz32(lps) - 23
        d.range = lps << k
    d.bits -= k
    follow(c, b)
    return b


cdef inline int decode_bypass(Decoder *d) noexcept nogil:
    """DecodeBypass (10.3.4.3.4)."""
    cdef uint64_t scaled
    if d.bits < 8:
        refill(d)
    d.bits -= 1
    scaled = <uint64_t>d.range << d.bits
    if d.value < scaled:
        return 0
    d.value -= scaled
    return 1


cdef inline int decode_terminate(Decoder *d) noexcept nogil:
    """DecodeTerminate (10.3.4.3.5)."""
    if d.bits < 8:
        refill(d)
    d.range -= 2
    if d.value >= <uint64_t>d.range << d.bits:
        return 1
    if d.range < 256:
        d.range <<= 1
        d.bits -= 1
    return 0


# ---------------------------------------------------------------------------------------------------- encoder
cdef inline void init_encoder(Encoder *e) noexcept nogil:
    e.out = NULL
    e.n = e.capacity = 0
    e.low = 0
    e.range = 510
    e.held = 9
    e.failed = 0


cdef inline int64_t written(const Encoder *e) noexcept nogil:
    """Return the number of bits of the interval's base, including the 9 of the register.

    A decoder at the same position returns the same number from `consumed`.
    """
    return 8 * <int64_t>e.n + e.held


cdef inline void shift_out(Encoder *e, int k) noexcept nogil:
    e.low <<= k
    e.held += k
    if e.held > 54:
        nnr_put_bytes(e)


cdef inline void encode_decision(Encoder *e, Context *c, int b) noexcept nogil:
    """Inverse of DecodeDecision."""
    cdef int s = 16 * state0(c) + state1(c)
    cdef uint32_t lps = rlps(e.range, s)
    cdef int k
    e.range -= lps
    if b == (s >= 0):
        k = e.range < 256
        e.range <<= k
    else:
        e.low += e.range
        k = nnr_clz32(lps) - 23
        e.range = lps << k
    shift_out(e, k)
    follow(c, b)


cdef inline void encode_bypass(Encoder *e, int b) noexcept nogil:
    """Inverse of DecodeBypass."""
    e.low <<= 1
    if b:
        e.low += e.range
    e.held += 1
    if e.held > 54:
        nnr_put_bytes(e)


cdef inline void encode_terminate(Encoder *e) noexcept nogil:
    """Code the terminating bin 1, the stop bit, and zeros up to the byte boundary (10.2.1.2, errata B8)."""
    e.low += e.range - 2
    e.low |= 1      # the stop bit is the lowest bit of the register, which is the last bit that a decoder reads
    nnr_put_bytes(e)
    shift_out(e, 16 + (-e.held & 7))
    nnr_put_bytes(e)
