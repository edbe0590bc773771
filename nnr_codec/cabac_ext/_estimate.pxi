"""Estimated sizes of coded levels, and the choice of shift parameter ids. Part of kernel.pyx."""

cdef enum:
    SAMPLE = 1 << 15   # default number of sampled levels of a large tensor, approximately

cdef uint64_t BIT = 1 << 15  # cost of one bit
cdef uint64_t SURE = 16 * BIT  # an id never costs more; larger gains are accepted without a search

nnr_init_steps()


cdef class Counter:
    """Owner of an Estimator's memory, for one tensor."""
    cdef Estimator c
    cdef Job job

    def __cinit__(self, Job job not None, int open_, int64_t sample):
        cdef Tensor *t = &job.t
        cdef int64_t size = t.height * t.width
        cdef int i
        self.job = job
        self.c.contexts = ABS_LEVEL_GREATER_X + 4 * t.unary_length
        self.c.base = t.contexts
        self.c.open = open_
        self.c.stride = max(1, (size + sample - 1) // sample)
        self.c.room = min(size, PIECE)
        self.c.sets = <NnrSets *>calloc(self.c.contexts, sizeof(NnrSets))
        self.c.ends = <uint8_t **>malloc(self.c.contexts * sizeof(uint8_t *))
        self.c.bins = <uint8_t *>malloc(self.c.contexts * self.c.room)
        self.c.flags = <int *>malloc(self.c.contexts * sizeof(int))
        if self.c.sets == NULL or self.c.ends == NULL or self.c.bins == NULL or self.c.flags == NULL:
            raise MemoryError
        for i in range(self.c.contexts):
            self.c.ends[i] = self.c.bins + self.c.room * i
        nnr_init_sets(self.c.sets + ROW_SKIP_LIST)  # init_prob_est_param initializes the others

    def __dealloc__(self):
        free(self.c.sets)
        free(self.c.ends)
        free(self.c.bins)
        free(self.c.flags)

    cdef count(self):
        """Count the bins of the sampled levels."""
        run(&self.c, &self.job.t)
        if self.job.t.error:
            raise not_coded(self.job.t.error)
        with nogil:
            count_bins(&self.c, &self.job.t)

    cdef double scale(self):
        """Return the ratio of all levels to sampled levels."""
        return (<double>(self.c.taken + self.c.passed)) / (<double>self.c.taken) if self.c.taken else 1.0

    cdef uint64_t cost(self):
        """Return the cost with the ids of the job, in 2**-15 bit."""
        cdef uint64_t levels = self.c.bypass * BIT, flags = self.c.sets[ROW_SKIP_LIST].cost[0]
        cdef int i
        for i in range(self.c.contexts):
            if i != ROW_SKIP_LIST and i != SHIFT_IDX:
                levels += self.c.sets[i].cost[self.job.t.ids[i]]
        if self.c.passed:
            levels = <uint64_t>(<double>levels * self.scale())
        return levels + flags + nnr_flags_cost(self.c.flags, self.c.flag_count, self.job.t.ids, UINT64_MAX)

    cdef choose(self):
        """Set the ids of the job: for each context the best id, if it saves more than the element that signals it."""
        cdef double scale = self.scale()
        cdef int i, k, place, best, wishes = 0
        cdef uint64_t gain
        cdef const uint64_t *costs
        cdef uint8_t *ids = self.job.t.ids
        cdef NnrWish *wish = <NnrWish *>malloc(self.c.contexts * sizeof(NnrWish))
        if wish == NULL:
            raise MemoryError
        memset(ids, 0, self.c.contexts)
        for place in range(self.c.flag_count):
            i, best = self.c.flags[place], 0
            costs = self.c.sets[i].cost
            for k in range(1, 9):
                if costs[k] < costs[best]:
                    best = k
            gain = <uint64_t>(<double>(costs[0] - costs[best]) * scale)
            if gain > SURE:
                ids[i] = best
            elif gain > 3 * BIT:  # uae(3) alone costs 3 bits
                wish[wishes] = NnrWish(i, place, best, gain)
                wishes += 1
        nnr_grant(self.c.flags, self.c.flag_count, ids, wish, wishes)
        free(wish)


cdef class PayloadEstimator:
    cdef uint64_t cost

    @property
    def bits(self):
        return self.cost / 32768.0

    def quant_param(self, int bits, int qp_value):
        self.cost += bits * BIT
        return qp_value

    def quant_tensor(self, TensorSyntax syntax not None, levels, side=None):
        cdef Job job = Job(syntax, check_levels(syntax, levels))
        cdef Counter counter
        job.set_side(side)
        counter = Counter(job, False, syntax.size)
        counter.count()
        self.cost += counter.cost()
        return levels, job.side()

    def terminate(self):
        self.cost += 9 * BIT


def measure(TensorSyntax syntax not None, levels, side=None, *, bint choose=True, int64_t sample=SAMPLE):
    cdef Job job = Job(syntax, check_levels(syntax, levels))
    cdef Counter counter
    if sample < 1:
        raise ValueError(f"a sample of {sample} levels")
    job.set_side(side)
    counter = Counter(job, choose, sample)
    counter.count()
    if choose:
        counter.choose()
    return job.ids(), counter.cost() / 32768.0


def choose_shift_parameter_ids(TensorSyntax syntax not None, levels, side=None, *, int64_t sample=SAMPLE):
    return measure(syntax, levels, side, sample=sample)[0]


def magnitude_bits(levels, int last, *, int64_t sample=SAMPLE):
    cdef const int32_t[::1] x = levels.reshape(-1)
    cdef int64_t n = x.shape[0], start = 0, stride
    cdef uint64_t counts[NNR_BUCKETS + 1]
    cdef uint64_t costs[256]
    cdef int i
    if sample < 1 or not 0 <= last < 256:
        raise ValueError(f"a sample of {sample} levels, or a last cabac_unary_length_minus1 of {last}")
    stride = max(1, (n + sample - 1) // sample)
    with nogil:
        memset(counts, 0, sizeof(counts))
        while start < n:
            if nnr_sampled(start // SAMPLE_PIECE, stride):
                nnr_count_magnitudes(&x[start], min(n - start, SAMPLE_PIECE), counts)
            start += SAMPLE_PIECE
        for i in range(NNR_BUCKETS - 1, -1, -1):
            counts[i] += counts[i + 1]
        nnr_magnitudes_cost(counts, last, costs)
    return [cost * (<double>n) / counts[0] / 32768.0 for cost in costs[:last + 1]]


def has_zero_rows(levels):
    cdef int64_t height = levels.shape[0], width = levels.size // height
    cdef const int32_t[::1] x = levels.reshape(-1)
    cdef int found
    with nogil:
        found = nnr_has_zero_rows(&x[0], height, width)
    return bool(found)
