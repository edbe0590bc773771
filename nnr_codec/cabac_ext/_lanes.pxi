"""Decoding of several tensors or parts of tensors side by side, see `_lanes.h`. Documentation: kernel.pyi."""

cdef extern from "_lanes.h" nogil:
    enum:
        NNR_LANE_COUNT
        NNR_HELD
        NNR_MOST_UNARY
        NNR_EVENT_LEVELS
        NNR_EVENT_FAILED
    ctypedef struct NnrLanes:
        uint32_t active
        uint32_t place[16]
        int32_t held[16][1040]
        int64_t steps
        int64_t busy
    uint16_t nnr_to_bfloat16(float value)
    uint16_t nnr_to_float16(float value)
    void nnr_init_lanes(NnrLanes *lanes)
    void nnr_lane_begin(NnrLanes *lanes, int i, const Decoder *d, Run *r)
    void nnr_lane_hold(NnrLanes *lanes, int i, int64_t n)
    int nnr_lane_is_between(const NnrLanes *lanes, int i)
    void nnr_lane_end(NnrLanes *lanes, int i, Decoder *d, Run *r)
    int nnr_lane_event(NnrLanes *lanes, int i, Decoder *d, Run *r)

cdef extern from "_lanes_avx512.h" nogil:
    int nnr_has_lanes_avx512()
    uint32_t nnr_run_lanes_avx512(NnrLanes *lanes, int64_t steps)

cdef extern from "_lanes_avx2.h" nogil:
    int nnr_has_lanes_avx2()
    void nnr_prepare_lanes_avx2()
    uint32_t nnr_run_lanes_avx2(NnrLanes *lanes, int64_t steps)

nnr_prepare_lanes_avx2()

cdef enum:
    SLICE = 1 << 16    # steps between two checks for pending signals and cancellation

cdef enum:
    INT32 = 0
    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3

# Types of output by the kind and size of their dtype.
cdef dict OUTPUTS = {("i", 4): INT32, ("f", 4): FLOAT32, ("f", 2): FLOAT16, ("V", 2): BFLOAT16}

cdef enum:
    WAITING = 0
    DONE = 1
    FAILED = 2

# Levels to decode in a lane, from the position of a reader on.
ctypedef struct Strip:
    Decoder *c
    Tensor *t
    int64_t stop              # position in coding order of the end, as Tensor.done
    char *out                 # output, of items of the type `to`
    int to, itemsize
    float step
    Run run                   # the levels up to the next discontinuity; `n` of them are not delivered yet
    int64_t n                 # levels of the whole run
    int64_t first             # position of the first level
    int64_t column, row, x    # of the next level, in a block scan: its block, and the place in the block
    int status


cdef inline void put(Strip *s, const int32_t *levels, int64_t at, int64_t n) noexcept nogil:
    cdef int64_t i
    cdef char *out = s.out + at * s.itemsize
    if s.to == INT32:
        memcpy(out, levels, n * sizeof(int32_t))
    elif s.to == FLOAT32:
        for i in range(n):
            (<float *>out)[i] = <float>levels[i] * s.step
    elif s.to == FLOAT16:
        for i in range(n):
            (<uint16_t *>out)[i] = nnr_to_float16(<float>levels[i] * s.step)
    else:
        for i in range(n):
            (<uint16_t *>out)[i] = nnr_to_bfloat16(<float>levels[i] * s.step)


cdef inline int64_t place(const Strip *s) noexcept nogil:
    """Return the place of the next level of a block scan in the output."""
    return (s.t.row + s.row) * s.t.width + s.column + s.x - s.first


cdef void deliver(Strip *s, const int32_t *levels, int64_t n) noexcept nogil:
    """Move the next n levels of the run to the output."""
    cdef Tensor *t = s.t
    cdef int64_t m, width
    if not t.block:
        put(s, levels, t.done - s.first + s.n - s.run.n, n)
    s.run.n -= n
    while t.block and n > 0:
        width = min(t.block, t.width - s.column)
        m = min(n, width - s.x)
        put(s, levels, place(s), m)
        levels += m
        n -= m
        s.x += m
        if s.x == width:
            s.x = 0
            next_row(s, width)


cdef inline void next_row(Strip *s, int64_t width) noexcept nogil:
    """Continue with the next row of a block of this width."""
    s.row += 1
    if s.row == min(s.t.block, s.t.height - s.t.row):
        s.row = 0
        s.column += width


cdef int next_run(Strip *s) noexcept nogil:
    """Begin the next run; return 0 if there is none."""
    cdef Tensor *t = s.t
    cdef int64_t n, height, width, rows
    while True:
        if s.column == t.width:  # the end of a row of blocks
            s.column = 0
            t.row = min(t.row + t.block, t.height)
            t.block_row += 1
            if t.row < t.height and not t.error:
                begin_block_row(s.c, t)
        n = s.stop - t.done
        if check(s.c, t) or n == 0:
            s.status = FAILED if t.error else DONE
            return 0
        height = min(t.block, t.height - t.row) if t.block else t.height - t.row
        if not t.row_skip:
            n = height * t.width if t.block else n
            break
        width = min(t.block, t.width - s.column) if t.block else t.width
        rows = 0
        while s.row + rows < height and not t.row_skip_list[t.row + s.row + rows]:
            rows += 1
        if rows:
            n = rows * width
            break
        memset(s.out + place(s) * s.itemsize, 0, width * s.itemsize)
        skip_levels(t, width)
        t.done += width
        if t.block:
            next_row(s, width)
        else:
            t.row += 1
    begin_run(t, t.first, n, &s.run)
    s.n = n
    return 1


cdef int end_of_run(Strip *s) noexcept nogil:
    """End a run that is delivered, and begin the next one; return 0 if there is none."""
    cdef Tensor *t = s.t
    end_run(t, &s.run)
    t.done += s.n
    if t.row_skip and not t.block:
        t.row += s.n // t.width
    return next_run(s)


cdef void finish_strip(Strip *s, int32_t *held, int64_t *budget) noexcept nogil:
    """Continue with scalar code until the strip or the budget of levels ends."""
    cdef Run r
    while not s.status and budget[0] > 0:
        r = s.run
        r.levels = held
        r.n = min(s.run.n, NNR_HELD)
        budget[0] -= r.n
        nnr_decode_run(s.c, &r)
        s.run.state_id, s.run.prev, s.run.out_of_range = r.state_id, r.prev, r.out_of_range
        deliver(s, held, r.n)
        if s.run.n == 0:
            end_of_run(s)
        elif check(s.c, s.t):
            s.status = FAILED


cdef class LaneJob:
    cdef readonly LevelReader reader
    cdef readonly int64_t size
    cdef object out
    cdef Strip strip

    def __cinit__(self, LevelReader reader not None, out not None, float step=0):
        cdef Tensor *t = &reader.job.t
        cdef int64_t n = out.size
        cdef Py_buffer buffer
        cdef Strip *s = &self.strip
        if n < 1 or t.done + n > t.height * t.width or t.error:
            raise ValueError(f"{n} levels cannot be read here")
        self.reader, self.out, self.size = reader, out, n
        dtype = out.dtype
        s.to = OUTPUTS.get((dtype.kind, dtype.itemsize), -1)
        if s.to < 0 or (s.to == INT32) != (step == 0):
            raise ValueError(f"levels cannot be read to {dtype} with a step of {step}")
        PyObject_GetBuffer(out.view("u1"), &buffer, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
        s.out, s.itemsize = <char *>buffer.buf, dtype.itemsize
        PyBuffer_Release(&buffer)
        s.c, s.t, s.step, s.first, s.stop = &reader.decoder.c, t, step, t.done, t.done + n
        if s.stop < t.height * t.width and (not t.block or s.stop % (t.block * t.width)):
            raise ValueError(f"{n} levels do not end with a row of blocks")

    @property
    def done(self):
        return self.strip.status == DONE


def fits_lanes(LevelReader reader not None):
    cdef Tensor *t = &reader.job.t
    return not (t.limited or t.empty or t.co_loc != NULL or t.hist and t.any_sig != NULL
                or t.unary_length > NNR_MOST_UNARY or t.error or t.done and not t.block)


def lane_engines():
    return ["avx512"] * bool(nnr_has_lanes_avx512()) + ["avx2"] * bool(nnr_has_lanes_avx2())


# Number of lanes with work below which scalar code is faster than an engine.
cdef dict FEW = {"avx512": 4, "avx2": 8}


cdef class Lanes:
    """Lanes and their queue. A job is in a lane, or is finished by scalar code when there are few others."""
    cdef NnrLanes *lanes
    cdef Strip **queue
    cdef Strip *strips[16]  # strips of the jobs that have begun
    cdef int64_t count, next
    cdef int few
    cdef uint32_t (*run_engine)(NnrLanes *lanes, int64_t steps) noexcept nogil

    def __cinit__(self, list jobs not None, int few, str engine not None):
        cdef LaneJob job
        self.count, self.few = len(jobs), few
        self.run_engine = nnr_run_lanes_avx512 if engine == "avx512" else nnr_run_lanes_avx2
        self.lanes = <NnrLanes *>calloc(1, sizeof(NnrLanes))
        self.queue = <Strip **>malloc((self.count + 1) * sizeof(Strip *))
        if self.lanes == NULL or self.queue == NULL:
            raise MemoryError
        nnr_init_lanes(self.lanes)
        for k in range(self.count):
            job = jobs[k]
            self.queue[k] = &job.strip

    def __dealloc__(self):
        free(self.lanes)
        free(self.queue)

    cdef void take(self, int i) noexcept nogil:
        """Begin with the next job in lane i, if there is one."""
        cdef Strip *s
        self.strips[i] = NULL
        while self.next < self.count and self.strips[i] == NULL:
            s = self.queue[self.next]
            self.next += 1
            if next_run(s):
                self.strips[i] = s
                nnr_lane_begin(self.lanes, i, s.c, &s.run)

    cdef void flush(self, int i) noexcept nogil:
        deliver(self.strips[i], self.lanes.held[i], self.lanes.place[i])

    cdef void handle(self, uint32_t events) noexcept nogil:
        """Serve the lanes that wait."""
        cdef Strip *s
        cdef int i, event
        for i in range(NNR_LANE_COUNT):
            if not events >> i & 1:
                continue
            s = self.strips[i]
            event = nnr_lane_event(self.lanes, i, s.c, &s.run)
            if event == NNR_EVENT_FAILED:
                s.status = FAILED
                nnr_lane_end(self.lanes, i, s.c, &s.run)
            elif event == NNR_EVENT_LEVELS:
                self.flush(i)
                if s.run.n:
                    nnr_lane_hold(self.lanes, i, s.run.n)
                    continue
                nnr_lane_end(self.lanes, i, s.c, &s.run)
                if end_of_run(s):
                    nnr_lane_begin(self.lanes, i, s.c, &s.run)
            if s.status:
                self.take(i)

    cdef void finish(self, int64_t *budget) noexcept nogil:
        """Continue with scalar code."""
        cdef int i
        self.handle(self.run_engine(self.lanes, 2))
        for i in range(NNR_LANE_COUNT):
            if self.strips[i] == NULL:
                continue
            if self.lanes.active >> i & 1:
                if not nnr_lane_is_between(self.lanes, i):
                    continue
                self.flush(i)
                nnr_lane_end(self.lanes, i, self.strips[i].c, &self.strips[i].run)
            finish_strip(self.strips[i], self.lanes.held[i], budget)
            if self.strips[i].status:
                self.strips[i] = NULL

    cdef int decode(self) noexcept nogil:
        """Decode for some milliseconds; return 0 at the end."""
        cdef int64_t budget = SLICE, before
        cdef int i, n
        while budget > 0:
            n = 0
            for i in range(NNR_LANE_COUNT):
                if self.strips[i] == NULL:
                    self.take(i)
                n += self.strips[i] != NULL
            if n == 0:
                return 0
            if n < self.few:
                self.finish(&budget)
            else:
                before = self.lanes.steps
                self.handle(self.run_engine(self.lanes, budget))
                budget -= (self.lanes.steps - before) // NNR_LANE_COUNT + 1
        return 1


def decode_lanes(jobs not None, few=None, engine=None):
    engines = lane_engines()
    if engine is None and engines:
        engine = engines[0]
    if engine not in engines:
        raise ValueError(f"engine {engine!r} cannot run on this processor; its engines are {engines}")
    cdef Lanes lanes = Lanes(jobs, FEW[engine] if few is None else few, engine)
    cdef int more = 1
    while more:
        with nogil:
            more = lanes.decode()
        PyErr_CheckSignals()
        check_cancelled()
    return lanes.lanes.busy, lanes.lanes.steps
