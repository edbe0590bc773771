"""Syntax of tensors (ISO/IEC 15938-17:2024, 10.2), written once for all coders.

`Coder` is a fused type: the compiler creates a copy of each function for the decoder, the encoder, the estimator and
the tracer. Functions have the value to code as a parameter, which decoders ignore, and return the value in the
bitstream.
"""

ctypedef fused Coder:
    Decoder
    Encoder
    Estimator
    Tracer

# Index of the first context of each syntax element in the context table (Table 29, errata C1).
cdef enum:
    SIG_FLAG = 0
    SIGN_FLAG = 48
    ABS_LEVEL_GREATER_X2 = 53
    ROW_SKIP_LIST = 85
    SHIFT_IDX = 86
    ABS_LEVEL_GREATER_X = 87

cdef enum:
    PIECE = 4096              # parameters between two checks for overrun
    SAMPLE_PIECE = 2048       # consecutive levels that the estimator samples or skips

cdef enum:
    OK = 0
    OVERRUN = 1
    INVALID_OFFSET = 2
    LEVEL_RANGE = 3
    NO_MEMORY = 4
    CABAC_OFFSET = 5          # this and the following: the header contradicts an entry point of the payload
    DQ_STATE = 6
    BIT_OFFSET = 7

ctypedef struct EntryPoint:
    int32_t cabac_offset      # IvlOffset
    int32_t dq_state          # stateId
    int64_t bits              # since the previous entry point or the first level: BitOffsetList
    int64_t total             # since the first level; -1 if impossible

ctypedef struct Tensor:
    # values from headers
    int64_t height            # tensor2DHeight
    int64_t width             # tensor2DWidth
    int64_t block             # edge length of blocks; 0 without a block scan
    int has_flags             # hist_dep_sig_prob_enabled_flag and row_skip_enabled_flag can be present (errata A6)
    int hist_flag_present
    int dq
    int temporal
    int unary_length
    int first_edition
    int limited               # a codebook limits the levels
    int empty                 # the codebook has one entry: no levels are coded
    int64_t max_positive      # if limited: the largest level
    int64_t max_negative      # if limited: the largest magnitude of a negative level
    const EntryPoint *listed  # the header's description of the entry points, or NULL
    # values from the payload
    int hist
    int row_skip
    uint8_t *row_skip_list    # height flags
    uint8_t *ids              # shift parameter ids, by context number
    int32_t *levels           # row-major, from parameter `first` on
    int64_t first
    const int32_t *co_loc     # coLocParam, or NULL
    const uint8_t *any_sig    # AnySigBeforeFlag, or NULL
    # current position
    Context *contexts
    EntryPoint *entry_points  # entry points that a decoder has found, or NULL
    EntryPoint met            # the last one of them
    int64_t done              # number of coded parameters
    int64_t block_row, column, row
    int64_t entry_bits
    int state_id
    int prev                  # sign of the preceding level: 0 zero, 1 negative, 2 positive (errata A3)
    int error


# ---------------------------------------------------------------------------------------------------- bins
cdef inline void trace(Tracer *c, int context, int b, Context *x) noexcept nogil:
    cdef int32_t *row
    if c.n == c.capacity:
        row = <int32_t *>realloc(c.rows, 6 * sizeof(int32_t) * (2 * c.capacity + 1024))
        if row == NULL:
            c.failed = 1
            return
        c.rows = row
        c.capacity = 2 * c.capacity + 1024
    row = c.rows + 6 * c.n
    row[0] = context
    row[1] = b
    row[2] = <int32_t>c.d.range
    row[3] = <int32_t>offset(&c.d)
    row[4] = state0(x) if x != NULL else 0
    row[5] = state1(x) if x != NULL else 0
    c.n += 1


cdef void count_bins(Estimator *c, Tensor *t) noexcept nogil:
    """Add the costs of the held bins, and drop the bins. A context has at most one bin for each level of a piece."""
    cdef int i
    cdef uint8_t *bins
    for i in range(c.contexts):
        bins = c.bins + c.room * i
        if c.ends[i] != bins:
            if c.open:
                nnr_run_sets(c.sets + i, bins, c.ends[i])
            else:
                nnr_run_set(c.sets + i, t.ids[i] if i != ROW_SKIP_LIST and i != SHIFT_IDX else 0, bins, c.ends[i])
            c.ends[i] = bins
    c.held = 0


cdef inline int ae(Coder *c, Context *x, int b) noexcept nogil:
    """Code ae(v): one context-coded bin."""
    if Coder is Decoder:
        return decode_decision(c, x)
    elif Coder is Tracer:
        b = decode_decision(&c.d, x)
        trace(c, <int>(x - c.base), b, x)
        return b
    elif Coder is Encoder:
        encode_decision(c, x, b)
        return b
    else:
        c.ends[x - c.base][0] = b
        c.ends[x - c.base] += 1
        return b


cdef inline uint32_t uae(Coder *c, int n, uint32_t v) noexcept nogil:
    """Code uae(n): n bypass bins, most significant bit first."""
    cdef uint32_t r = 0
    cdef int i, b
    if Coder is Decoder:
        for i in range(n):
            r = (r << 1) | decode_bypass(c)
        return r
    elif Coder is Tracer:
        for i in range(n):
            b = decode_bypass(&c.d)
            trace(c, -1, b, NULL)
            r = (r << 1) | b
        return r
    elif Coder is Encoder:
        for i in range(n - 1, -1, -1):
            encode_bypass(c, (v >> i) & 1)
        return v
    else:
        c.bypass += n
        return v


# ---------------------------------------------------------------------------------------------------- levels
cdef inline int64_t int_param(Coder *c, Tensor *t, int sig, int sign_context, int32_t co_loc, int64_t v) noexcept nogil:
    """int_param() (10.2.1.5, errata D1). Returns the level; the decoder checks its range afterwards."""
    cdef Context *x = t.contexts
    cdef int64_t a = -v if v < 0 else v
    cdef int64_t level = 1, limit = <int64_t>1 << 40
    cdef int sign, more, j = 0, context
    if not ae(c, x + SIG_FLAG + sig, a != 0):
        return 0
    if t.limited and (t.max_positive == 0 or t.max_negative == 0):
        sign = t.max_positive == 0
    else:
        sign = ae(c, x + SIGN_FLAG + sign_context, v < 0)
    if t.limited:
        limit = t.max_negative if sign else t.max_positive
    if limit > 1:
        while True:
            if co_loc == 0:
                context = 2 * j + sign
            else:  # errata A5
                context = 2 * t.unary_length + 2 * j + (co_loc < j and co_loc > -j)
            more = ae(c, x + ABS_LEVEL_GREATER_X + context, a > level)
            level += more
            j += 1
            if not more or j == t.unary_length or level >= limit:
                break
        if more and level < limit:
            j = 0
            while True:
                more = ae(c, x + ABS_LEVEL_GREATER_X2 + j, a - level >= <int64_t>1 << j)
                if not more:
                    break
                level += <int64_t>1 << j
                j += 1
                if j == 31 or limit < level + (<int64_t>1 << j):
                    break
            level += uae(c, j, <uint32_t>(a - level))  # abs_remainder
    return -level if sign else level


cdef inline void skip_levels(Tensor *t, int64_t n) noexcept nogil:
    """Advance the state for n parameters of a skipped row, each with parity 0 (errata D6). The period is 1, 2 or 4."""
    cdef int64_t i
    if t.dq:
        for i in range(n & 3):
            t.state_id = NNR_STATE[t.state_id][0]


cdef inline void code_run_by_bins(Coder *c, Tensor *t, int64_t start, int64_t n) noexcept nogil:
    """Code a run as code_run does, bin by bin."""
    cdef int64_t i, level
    cdef int32_t co_loc = 0
    cdef int sig, sign_context, state_id = t.state_id, prev = t.prev
    cdef int plain = t.co_loc == NULL and not t.hist
    cdef int32_t *x = t.levels + (start - t.first)
    for i in range(n):
        sig = 3 * state_id + prev
        sign_context = prev
        if not plain:
            if t.co_loc != NULL:
                co_loc = t.co_loc[start + i]
                if co_loc != 0:
                    sig = 24 + 2 * state_id + (co_loc > 1 or co_loc < -1)  # errata A4
                    sign_context = 3 + (co_loc > 0)
            if t.hist and t.any_sig != NULL and t.any_sig[start + i]:
                sig = 40 + state_id
        level = int_param(c, t, sig, sign_context, co_loc, x[i])
        prev = 0 if level == 0 else (1 if level < 0 else 2)
        if t.dq:
            sig = state_id
            state_id = NNR_STATE[state_id][level & 1]
            if Coder is Tracer:
                level = 2 * level - (0 if level == 0 else ((sig & 1) if level > 0 else -(sig & 1)))
        if Coder is Tracer:
            x[i] = <int32_t>level
            if x[i] != level:
                x[i] = 0
                t.error = LEVEL_RANGE
    t.state_id = state_id
    t.prev = prev


cdef inline void begin_run(const Tensor *t, int64_t start, int64_t n, Run *r) noexcept nogil:
    """Fill the parameters of the decoder and the encoder in _levels.h."""
    r.levels = t.levels + (start - t.first)
    r.n = n
    r.sig = t.contexts + SIG_FLAG
    r.sign = t.contexts + SIGN_FLAG
    r.greater_x = t.contexts + ABS_LEVEL_GREATER_X
    r.greater_x2 = t.contexts + ABS_LEVEL_GREATER_X2
    r.co_loc = t.co_loc + start if t.co_loc != NULL else NULL
    r.any_sig = t.any_sig + start if t.hist and t.any_sig != NULL else NULL
    r.limit[0] = t.max_positive if t.limited else <int64_t>1 << 40
    r.limit[1] = t.max_negative if t.limited else <int64_t>1 << 40
    r.unary_length = t.unary_length
    r.dq = t.dq
    r.state_id = t.state_id
    r.prev = t.prev
    r.out_of_range = 0


cdef inline void end_run(Tensor *t, const Run *r) noexcept nogil:
    t.state_id = r.state_id
    t.prev = r.prev
    if r.out_of_range:
        t.error = LEVEL_RANGE


cdef inline void code_run(Coder *c, Tensor *t, int64_t start, int64_t n) noexcept nogil:
    """Code a run: n levels that are consecutive in coding order and in memory."""
    cdef Run r
    if Coder is Decoder:
        begin_run(t, start, n, &r)
        nnr_decode_run(c, &r)
        end_run(t, &r)
    elif Coder is Encoder:
        begin_run(t, start, n, &r)
        nnr_encode_run(c, &r)
        end_run(t, &r)
    else:
        code_run_by_bins(c, t, start, n)


cdef inline int check(Coder *c, Tensor *t) noexcept nogil:
    """Return the error code of the coding so far."""
    if Coder is Decoder:
        if 8 * (c.end - c.start) < consumed(c):
            t.error = OVERRUN
        elif c.invalid:
            t.error = INVALID_OFFSET
    elif Coder is Tracer:
        if 8 * (c.d.end - c.d.start) < consumed(&c.d):
            t.error = OVERRUN
        elif c.d.invalid:
            t.error = INVALID_OFFSET
        elif c.failed:
            t.error = NO_MEMORY
    elif Coder is Encoder:
        if c.failed:
            t.error = NO_MEMORY
    return t.error


cdef inline void clear(Coder *c, Tensor *t, int64_t start, int64_t n) noexcept nogil:
    """Set levels that are not coded to 0."""
    if Coder is Decoder or Coder is Tracer:
        memset(t.levels + (start - t.first), 0, n * sizeof(int32_t))


cdef inline void pass_over(Tensor *t, int64_t start, int64_t n) noexcept nogil:
    """Skip levels that the estimator does not sample."""
    cdef int32_t last = t.levels[start + n - 1]
    if t.dq:
        t.state_id = nnr_state_after(t.levels + start, n, t.state_id)
    t.prev = 0 if last == 0 else (1 if last < 0 else 2)


cdef inline void code_piecewise(Coder *c, Tensor *t, int64_t start, int64_t n) noexcept nogil:
    """Code a run in pieces: the decoder detects a malformed payload early, the estimator samples a large tensor."""
    cdef int64_t m
    if t.empty:
        clear(c, t, start, n)
        check(c, t)
        return
    while n > 0 and not t.error:
        m = min(n, SAMPLE_PIECE if Coder is Estimator else PIECE)
        if Coder is Estimator:
            if not nnr_sampled(c.piece, c.stride):
                pass_over(t, start, m)
                c.passed += m
            else:
                if c.held + m > c.room:
                    count_bins(c, t)
                code_run(c, t, start, m)
                c.held += m
                c.taken += m
            c.piece += 1
        else:
            code_run(c, t, start, m)
            check(c, t)
        start += m
        n -= m


cdef inline void init_prob_est_param(Coder *c, Tensor *t) noexcept nogil:
    """Initialize the contexts of levels by their shift parameter ids (10.3.2.2)."""
    cdef int i
    if Coder is Estimator:
        count_bins(c, t)
    for i in range(ABS_LEVEL_GREATER_X + 4 * t.unary_length):
        if Coder is Estimator:
            nnr_init_sets(c.sets + i)
        elif i != ROW_SKIP_LIST and i != SHIFT_IDX:
            init_context(t.contexts + i, t.ids[i])
    t.prev = 0


cdef inline int compare(Tensor *t) noexcept nogil:
    """Compare the header's description of the last entry point with the payload (6.4.3.7, errata G4)."""
    cdef const EntryPoint *listed = t.listed + (t.block_row - 1)
    if listed.cabac_offset != t.met.cabac_offset:
        return CABAC_OFFSET
    if t.dq and listed.dq_state != t.met.dq_state:
        return DQ_STATE
    return BIT_OFFSET if listed.bits != t.met.bits else OK


cdef inline void begin_block_row(Coder *c, Tensor *t) noexcept nogil:
    """Begin a row of blocks with its entry point (10.2.1.4, errata A7, G3, K4).

    The first row has no entry point, but IvlCurrRange is set to 256 there too.
    """
    if t.height > t.block or t.first_edition:
        if Coder is Decoder:
            c.range = 256
            c.invalid |= offset(c) >= 256
        elif Coder is Tracer:
            c.d.range = 256
            c.d.invalid |= offset(&c.d) >= 256
        elif Coder is Encoder:
            c.range = 256
    check(c, t)
    if t.block_row > 0:
        init_prob_est_param(c, t)
    if Coder is Decoder:
        if t.block_row > 0:
            t.met.cabac_offset = <int32_t>offset(c)
            t.met.dq_state = t.state_id
            t.met.bits = consumed(c) - t.entry_bits
            if t.entry_points != NULL:
                t.entry_points[t.block_row - 1] = t.met
            if t.listed != NULL and not t.error:
                t.error = compare(t)
        t.entry_bits = consumed(c)


cdef inline void code_rows(Coder *c, Tensor *t, int64_t budget) noexcept nogil:
    """quant_tensor() (10.2.1.4): code `budget` more levels, in a block scan rounded up to a whole row of a block.

    Order of levels: rows from top to bottom; in a block scan, blocks from left to right and from top to bottom, and rows
    within each block (IndexToXY, 4.12). The entry point that follows a row of blocks is coded with this row.
    """
    cdef int64_t start, n
    if t.block == 0 and not t.row_skip:  # all rows form one run
        code_piecewise(c, t, t.done, budget)
        t.done += budget
        return
    while budget > 0 and not t.error:
        n = t.width - t.column
        start = t.row * t.width + t.column
        n = min(n, t.block) if t.block else min(n, budget)
        if t.row_skip and t.row_skip_list[t.row]:
            clear(c, t, start, n)
            skip_levels(t, n)
        else:
            code_piecewise(c, t, start, n)
        budget -= n
        t.done += n
        if not t.block:
            t.column += n
            if t.column == t.width:
                t.row += 1
                t.column = 0
            continue
        t.row += 1
        if t.row == t.height or t.row == (t.block_row + 1) * t.block:
            t.column += t.block
            if t.column < t.width:
                t.row = t.block_row * t.block
            else:
                t.block_row += 1
                t.column = 0
                if t.row < t.height and not t.error:
                    begin_block_row(c, t)


# ---------------------------------------------------------------------------------------------------- side information
cdef inline void shift_idx(Coder *c, Tensor *t, int i, int present) noexcept nogil:
    """shift_idx() (10.2.1.7)."""
    cdef int shift_idx_minus_1_present_flag
    if not present:
        t.ids[i] = 0
    elif Coder is Estimator:  # the ids are chosen later
        c.flags[c.flag_count] = i
        c.flag_count += 1
    else:
        shift_idx_minus_1_present_flag = ae(c, t.contexts + SHIFT_IDX, t.ids[i] != 0)
        if shift_idx_minus_1_present_flag:
            t.ids[i] = 1 + uae(c, 3, t.ids[i] - 1)
        else:
            t.ids[i] = 0


cdef inline void shift_parameter_ids(Coder *c, Tensor *t) noexcept nogil:
    """shift_parameter_ids() (10.2.1.6, errata C3, C4, K1)."""
    cdef int i, n = t.unary_length, signs = 1
    cdef int64_t max_abs = <int64_t>1 << 40
    if t.limited:
        max_abs = max(t.max_positive, t.max_negative)
        signs = t.max_positive > 0 and t.max_negative > 0
    for i in range(24 if t.dq else 3):
        shift_idx(c, t, SIG_FLAG + i, not t.empty)
    if t.temporal:
        for i in range(24, 40 if t.dq else 26):
            shift_idx(c, t, SIG_FLAG + i, not t.empty)
    if t.hist:
        for i in range(40, 48 if t.dq else 41):
            shift_idx(c, t, SIG_FLAG + i, not t.empty)
    for i in range(5 if t.temporal else 3):
        shift_idx(c, t, SIGN_FLAG + i, signs)
    for i in range(2 * n):
        shift_idx(c, t, ABS_LEVEL_GREATER_X + i, i < 2 * max_abs)
    if t.temporal:
        for i in range(2 * n, 4 * n):
            shift_idx(c, t, ABS_LEVEL_GREATER_X + i, i < 2 * (max_abs - 1) + 2 * n)
    for i in range(32 if t.first_edition else 31):
        shift_idx(c, t, ABS_LEVEL_GREATER_X2 + i, n - 1 + (<int64_t>2 << i) - 1 < max_abs)


cdef inline void code_head(Coder *c, Tensor *t) noexcept nogil:
    """Code the elements before the levels, in the order of errata A1. All contexts are initialized (errata A2)."""
    cdef int64_t k
    init_context(t.contexts + ROW_SKIP_LIST, 0)  # the other contexts are not used before init_prob_est_param
    init_context(t.contexts + SHIFT_IDX, 0)
    if t.has_flags:
        if t.hist_flag_present:
            t.hist = uae(c, 1, t.hist)
        t.row_skip = uae(c, 1, t.row_skip)
        if t.row_skip:
            for k in range(t.height):
                t.row_skip_list[k] = ae(c, t.contexts + ROW_SKIP_LIST, t.row_skip_list[k])
                if k % PIECE == 0:
                    if Coder is Estimator:
                        count_bins(c, t)
                    if check(c, t):
                        return
    shift_parameter_ids(c, t)
    check(c, t)
    init_prob_est_param(c, t)
    if t.block:
        begin_block_row(c, t)
