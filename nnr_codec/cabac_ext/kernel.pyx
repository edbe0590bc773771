# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Coders of DeepCABAC payloads, clause 10 of ISO/IEC 15938-17:2024. Signatures and documentation: kernel.pyi."""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from ._engine cimport *

import numpy as np

from ..errors import ElementError, EncodeError, PayloadError
from ..rules import Requirement
from ..cancellation import check_cancelled

include "_syntax.pxi"

nnr_prepare()

cdef int64_t STEP = 1 << 20  # parameters between two checks for pending signals and cancellation
cdef int64_t GROUP = 1 << 17  # parameters in each task of PayloadEncoder: fewer would not be worth a task
cdef int64_t MOST = (1 << 56) - 1  # largest number of parameters of a tensor

#: Message, rule and clause of each error code.
ERRORS = {
    OVERRUN: ("the payload ends before its last parameter", Requirement.PAYLOAD_COMPLETE, "10.2"),
    INVALID_OFFSET: ("IvlOffset has a value that no encoder produces", Requirement.INTERVAL_OFFSET, "10.3"),
    LEVEL_RANGE: ("a level exceeds 32 bits", Requirement.INTEGER_RANGE, "7.3.2"),
    NO_MEMORY: ("out of memory", None, ""),
}


cdef malformed(int error, int64_t bit):
    """Return the exception for an error code of a decoder."""
    message, rule, clause = ERRORS[error]
    return PayloadError(message, rule=rule, clause=clause, bit=bit)


cdef not_coded(int error):
    """Return the exception for an error code of an encoder."""
    message, _, clause = ERRORS[error]
    return MemoryError(message) if error == NO_MEMORY else EncodeError(message, clause=clause)


cdef class TensorSyntax:
    cdef Tensor t
    cdef EntryPoint *listed
    cdef readonly tuple dims
    cdef readonly int64_t entry_point_offset
    cdef object co_loc, any_sig

    def __init__(self, dims, *, general_profile_idc=1, dq_flag=0, cabac_unary_length_minus1=9, scan_order=0,
                 codebook=None, parent_node_id_present_flag=0, temporal_context_modeling_flag=0,
                 first_edition=False, co_loc=None, any_sig=None, entry_point_list=None, entry_point_offset=0):
        cdef Tensor *t = &self.t
        cdef int64_t n = 1, size, zero
        dims = tuple([int(extent) for extent in dims])
        for extent in dims:
            n = n * extent if 0 < extent <= MOST // n else 0
            if not n:
                break
        if not dims or not n:
            raise ValueError(f"a tensor with dimensions {dims} cannot be coded")
        if not 0 <= cabac_unary_length_minus1 <= 255 or not 0 <= scan_order <= 4:
            raise ValueError("cabac_unary_length_minus1 or scan_order is out of range")
        if first_edition and general_profile_idc != 0:
            raise ValueError("the first edition has profile 0 only")
        self.dims = dims
        t.height = dims[0]
        t.width = n // t.height
        # A single row or column has the same order without blocks, and its entry points are ignored (errata G2).
        t.block = 4 << scan_order if scan_order and t.width > 1 and t.height > 1 else 0
        t.dq = bool(dq_flag)
        t.temporal = bool(temporal_context_modeling_flag)
        t.unary_length = cabac_unary_length_minus1 + 1
        t.first_edition = bool(first_edition)
        if codebook is not None and general_profile_idc == 1:
            size, zero = codebook
            if not 0 <= zero < size:
                raise ValueError(f"CbZeroOffset {zero} is not an entry of a codebook of {size}")
            t.limited = 1
            t.empty = size == 1
            t.max_positive = size - 1 - zero
            t.max_negative = zero
        t.has_flags = general_profile_idc == 1 and t.width > 1 and t.height > 1 and not t.empty
        t.hist_flag_present = bool(parent_node_id_present_flag)
        for reference in (co_loc, any_sig):
            if reference is not None and reference.size != n:
                raise ValueError("a reference has another number of parameters than the tensor")
        if co_loc is not None and co_loc.dtype != np.int32:
            raise ValueError("co_loc is not of type int32")
        if co_loc is not None and t.temporal:
            self.co_loc = np.ascontiguousarray(co_loc).reshape(-1)
        if any_sig is not None:
            self.any_sig = np.ascontiguousarray(any_sig != 0).reshape(-1).view(np.uint8)
        if entry_point_list is not None and self.entry_points:
            self._list(np.ascontiguousarray(entry_point_list, np.int64), entry_point_offset)

    cdef _list(self, const int64_t[:, ::1] given, int64_t offset):
        """Copy the header's description of this tensor's entry points."""
        cdef int64_t i, total = 0, n = self.entry_points
        cdef EntryPoint *p
        if given.shape[1] != 3 or not 0 <= offset <= given.shape[0] - n:
            raise ValueError(f"entry_point_list must have 3 columns, and {n} rows from {offset} on")
        self.listed = <EntryPoint *>malloc(n * sizeof(EntryPoint))
        if self.listed == NULL:
            raise MemoryError
        self.entry_point_offset = offset
        for i in range(n):
            p = self.listed + i
            if not 0 <= given[offset + i, 0] < 256 or not 0 <= given[offset + i, 1] < 8:
                raise ValueError("an IvlOffset or stateId is out of range")
            p.cabac_offset = <int32_t>given[offset + i, 0]
            p.dq_state = <int32_t>given[offset + i, 1]
            p.bits = given[offset + i, 2]
            # No payload has 2**40 bits, and the sum of two smaller numbers does not overflow.
            total = total + p.bits if 0 <= total < 1 << 40 and 0 <= p.bits < 1 << 40 else -1
            p.total = total
        self.t.listed = self.listed

    def __dealloc__(self):
        free(self.listed)

    def with_unary_length(self, int cabac_unary_length_minus1):
        cdef TensorSyntax other = TensorSyntax.__new__(TensorSyntax)
        if not 0 <= cabac_unary_length_minus1 <= 255:
            raise ValueError(f"cabac_unary_length_minus1 must be 0 to 255, got {cabac_unary_length_minus1}")
        other.t = self.t
        other.t.unary_length = cabac_unary_length_minus1 + 1
        other.t.listed = NULL
        other.dims, other.co_loc, other.any_sig = self.dims, self.co_loc, self.any_sig
        return other

    @property
    def rows_together(self):
        return self.t.block or 1

    @property
    def block_scan(self):
        return (self.t.width, self.t.block) if self.t.block else None

    @property
    def size(self):
        return self.t.height * self.t.width

    @property
    def can_skip_rows(self):
        return bool(self.t.has_flags)

    @property
    def entry_points(self):
        return (self.t.height + self.t.block - 1) // self.t.block - 1 if self.t.block else 0


cdef class Job:
    """Owner of a Tensor's memory."""
    cdef Tensor t
    cdef TensorSyntax syntax
    cdef int32_t[::1] levels
    cdef const int32_t[::1] co_loc
    cdef const uint8_t[::1] any_sig
    cdef Job head  # owner of the flags and ids, if not this one
    cdef void *memory

    def __cinit__(self, TensorSyntax syntax, levels=None, Job head=None):
        cdef int64_t entry_points = syntax.entry_points
        self.t = syntax.t
        self.syntax = syntax
        if levels is not None:
            self.levels = levels.reshape(-1)
            self.t.levels = &self.levels[0]
        if syntax.co_loc is not None:
            self.co_loc = syntax.co_loc
            self.t.co_loc = &self.co_loc[0]
        if syntax.any_sig is not None:
            self.any_sig = syntax.any_sig
            self.t.any_sig = &self.any_sig[0]
        self.t.contexts = <Context *>malloc(self.contexts() * sizeof(Context))
        if self.t.contexts == NULL:
            raise MemoryError
        if head is not None:  # flags and ids do not change once they are decoded; several threads may read them
            self.head = head
            self.t.row_skip_list, self.t.ids = head.t.row_skip_list, head.t.ids
            self.t.row_skip, self.t.hist = head.t.row_skip, head.t.hist
            return
        self.memory = calloc(entry_points * sizeof(EntryPoint) + self.contexts() + self.flags(), 1)
        if self.memory == NULL:
            raise MemoryError
        self.t.entry_points = <EntryPoint *>self.memory
        self.t.ids = <uint8_t *>(self.t.entry_points + entry_points)
        self.t.row_skip_list = self.t.ids + self.contexts()

    def __dealloc__(self):
        free(self.t.contexts)
        free(self.memory)

    cdef int64_t contexts(self) noexcept:
        return ABS_LEVEL_GREATER_X + 4 * self.t.unary_length

    cdef int64_t flags(self) noexcept:
        return self.t.height if self.t.has_flags else 0

    cdef ids(self):
        """Return the shift parameter ids as an array."""
        return array_of(self.t.ids, self.contexts())

    cdef set_side(self, side):
        """Set the flags and ids to code from a TensorSide."""
        cdef const uint8_t[::1] given
        if side is None:
            return
        self.t.hist = bool(side.hist_dep_sig_prob_enabled_flag)
        self.t.row_skip = bool(side.row_skip_enabled_flag)
        if self.t.hist and not (self.t.has_flags and self.t.hist_flag_present):
            raise EncodeError("hist_dep_sig_prob_enabled_flag has no place in this tensor (10.2.1.4)")
        ids = side.shift_parameter_ids
        if ids is not None:
            # Conversion to uint8 must not turn an invalid number into one of 0..8; here it becomes 9 or 255.
            given = np.ascontiguousarray(ids if ids.dtype == np.uint8 else ids.clip(-1, 9), np.uint8).reshape(-1)
            if ids.shape != (self.contexts(),) or nnr_largest(&given[0], given.shape[0]) > 8:
                raise EncodeError(f"shift parameter ids are not {self.contexts()} numbers of 0..8 (10.2.1.6)")
            memcpy(self.t.ids, &given[0], self.contexts())
        if self.t.row_skip:
            if not self.t.has_flags:
                raise EncodeError(f"rows of a tensor of shape {self.syntax.dims} cannot be skipped (10.2.1.4)")
            nnr_zero_rows(self.t.levels, self.t.height, self.t.width, self.t.row_skip_list)

    cdef side(self):
        cdef int64_t entry_points = 0 if self.t.entry_points == NULL else self.syntax.entry_points
        return TensorSide(
            hist_dep_sig_prob_enabled_flag=self.t.hist,
            row_skip_enabled_flag=self.t.row_skip,
            shift_parameter_ids=self.ids(),
            row_skip_list=array_of(self.t.row_skip_list, self.flags()) if self.t.row_skip else None,
            entry_points=[(self.t.entry_points[i].cabac_offset, self.t.entry_points[i].dq_state,
                           self.t.entry_points[i].bits) for i in range(entry_points)],
        )


cdef array_of(const uint8_t *numbers, int64_t n):
    """Return a copy of n bytes."""
    array = np.empty(n, np.uint8)
    cdef uint8_t[::1] out = array
    memcpy(&out[0], numbers, n)
    return array


class TensorSide:
    def __init__(self, *, hist_dep_sig_prob_enabled_flag=0, row_skip_enabled_flag=0, shift_parameter_ids=None,
                 row_skip_list=None, entry_points=()):
        self.hist_dep_sig_prob_enabled_flag = hist_dep_sig_prob_enabled_flag
        self.row_skip_enabled_flag = row_skip_enabled_flag
        self.shift_parameter_ids = shift_parameter_ids
        self.row_skip_list = row_skip_list
        self.entry_points = entry_points


cdef run_rows(Coder *c, Tensor *t, int64_t stop):
    """Code until `stop` levels are coded; check for pending signals (Ctrl-C) and cancellation in between."""
    while t.done < stop and not t.error:
        with nogil:
            code_rows(c, t, min(STEP, stop - t.done))
        if t.done < t.height * t.width:
            PyErr_CheckSignals()
            check_cancelled()


cdef run(Coder *c, Tensor *t):
    """Code a whole tensor."""
    with nogil:
        code_head(c, t)
    run_rows(c, t, t.height * t.width)


cdef class PayloadDecoder:
    cdef Decoder c
    cdef const uint8_t[::1] data
    cdef readonly bint first_edition

    def __init__(self, data, *, first_edition=False):
        if not len(data):
            raise malformed(OVERRUN, 0)
        self.data = data
        self.first_edition = first_edition
        init_decoder(&self.c, &self.data[0], self.data.shape[0])
        self._check(INVALID_OFFSET if self.c.invalid else OK)

    cdef _check(self, int error):
        if error:
            raise malformed(error, min(self.bit, 8 * self.data.shape[0]))

    @property
    def bit(self):
        return consumed(&self.c)

    def quant_param(self, int bits, int qp_value=0):
        cdef uint32_t v = uae(&self.c, bits, 0)
        self._check(OVERRUN if consumed(&self.c) > 8 * self.data.shape[0] else OK)
        return <int>v - (1 << bits) if v >> (bits - 1) else <int>v

    def head(self, TensorSyntax syntax not None):
        cdef Job job = Job(syntax)
        with nogil:
            code_head(&self.c, &job.t)
        self._check(job.t.error)
        return LevelReader(self, job, consumed(&self.c))

    def scaled(self, TensorSyntax syntax not None, float step, out not None):
        cdef Job job = Job(syntax)
        cdef Tensor *t = &job.t
        cdef int64_t i, n = t.height * t.width
        cdef Py_buffer target
        cdef float *values
        PyObject_GetBuffer(out, &target, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
        try:
            if target.len != n * <int64_t>sizeof(float):
                raise ValueError(f"out has not the bytes of {n} values")
            t.levels = <int32_t *>malloc(n * sizeof(int32_t))
            if t.levels == NULL:
                raise MemoryError
            values = <float *>target.buf
            with nogil:
                code_head(&self.c, t)
            run_rows(&self.c, t, n)
            self._check_levels(job)
            with nogil:
                for i in range(n):
                    values[i] = <float>t.levels[i] * step
        finally:
            free(t.levels)
            PyBuffer_Release(&target)

    cdef _check_levels(self, Job job):
        if job.t.error >= CABAC_OFFSET:
            raise contradiction(&job.t, job.syntax.entry_point_offset)
        self._check(job.t.error)

    def quant_tensor(self, TensorSyntax syntax not None, levels=None, side=None):
        cdef LevelReader reader = self.head(syntax)
        levels = np.empty(syntax.size, np.int32)
        reader.read(levels)
        return levels.reshape(syntax.dims), reader.side()

    def terminate(self):
        cdef int64_t end
        if not decode_terminate(&self.c):
            bit = min(self.bit, 8 * self.data.shape[0])
            raise PayloadError("terminating_one_bit is 0", clause="10.2.1.2", rule=Requirement.TERMINATING_BIT, bit=bit)
        end = consumed(&self.c)
        if end > 8 * self.data.shape[0]:
            self._check(OVERRUN)
        if not self.data[(end - 1) >> 3] >> (-end & 7) & 1:
            message = "the last bit read into IvlOffset is 0, not 1"
            raise PayloadError(message, clause="10.3.4.3.5", rule=Requirement.TERMINATING_BIT, bit=end - 1)
        if end & 7 and self.data[end >> 3] & (0xff >> (end & 7)):
            raise PayloadError("nesting_zero_bit is 1", clause="10.2.1.2", rule=Requirement.NESTING_ZERO_BIT, bit=end)
        if (end + 7) >> 3 != self.data.shape[0]:
            rest = self.data.shape[0] - ((end + 7) >> 3)
            raise PayloadError(f"{rest} bytes follow the end of the payload", rule=Requirement.UNIT_SIZE, bit=end)


cdef class LevelReader:
    cdef readonly PayloadDecoder decoder
    cdef Job job
    cdef int64_t base  # bits before the first level

    def __cinit__(self, PayloadDecoder decoder not None, Job job not None, int64_t base):
        self.decoder, self.job, self.base = decoder, job, base

    def side(self):
        return self.job.side()

    def read(self, int32_t[::1] levels not None):
        cdef Tensor *t = &self.job.t
        cdef int64_t n = levels.shape[0], stop = t.done + n
        if n < 1 or stop > t.height * t.width or t.error:
            raise ValueError(f"{n} levels cannot be read here")
        if t.block and stop % (t.block * t.width) and stop < t.height * t.width:
            raise ValueError(f"{n} levels do not end with a row of blocks")
        t.levels, t.first = &levels[0], t.done
        run_rows(&self.decoder.c, t, stop)
        self.decoder._check_levels(self.job)

    def fork(self, int64_t row):
        cdef Tensor *t = &self.job.t  # another thread may be reading; the fields used here do not change
        cdef LevelReader reader
        cdef PayloadDecoder decoder = PayloadDecoder.__new__(PayloadDecoder)
        cdef EntryPoint listed
        if t.listed == NULL or row % t.block or not 0 < row < t.height:
            raise ValueError(f"row {row} has no entry point in a list")
        listed = t.listed[row // t.block - 1]
        if not 0 <= listed.total <= 8 * self.decoder.data.shape[0] - self.base:
            path = list_element(BIT_OFFSET, self.job.syntax.entry_point_offset + row // t.block - 1)
            message = "the entry point lies outside the payload"
            raise ElementError(message, clause="6.4.3.7", rule=Requirement.ENTRY_POINTS, path=path)
        decoder.data, decoder.first_edition = self.decoder.data, self.decoder.first_edition
        decoder.c.start, decoder.c.end = self.decoder.c.start, self.decoder.c.end
        seek(&decoder.c, self.base + listed.total, listed.cabac_offset)
        reader = LevelReader(decoder, Job(self.job.syntax, None, self.job), self.base)
        t = &reader.job.t
        t.row = row
        t.done = row * t.width
        t.block_row = row // t.block
        t.state_id = listed.dq_state if t.dq else 0
        t.entry_bits = consumed(&decoder.c)
        with nogil:
            init_prob_est_param(&decoder.c, t)
        return reader


include "_lanes.pxi"


cdef list_element(int error, int64_t j):
    """Return the path of the syntax element that describes entry point j."""
    name = {CABAC_OFFSET: "cabac_offset_list", DQ_STATE: "dq_state_list"}.get(error)
    delta = f"bit_offset_delta2[{j - 1}]" if j else "bit_offset_delta1"
    return "nnr_compressed_data_unit_header." + (f"{name}[{j}]" if name else delta)


cdef contradiction(Tensor *t, int64_t entry_point_offset):
    """Return the exception for an entry point whose description in the header contradicts the payload."""
    cdef EntryPoint listed = t.listed[t.block_row - 1]
    cdef int64_t j = entry_point_offset + t.block_row - 1
    if t.error == CABAC_OFFSET:
        what = f"IvlOffset is {listed.cabac_offset} here, {t.met.cabac_offset}"
    elif t.error == DQ_STATE:
        what = f"stateId is {listed.dq_state} here, {t.met.dq_state}"
    else:
        what = f"BitOffsetList[{j}] is {listed.bits} here, {t.met.bits}"
    path = list_element(t.error, j)
    message = f"{what} at the entry point in the payload"
    return ElementError(message, clause="6.4.3.7", rule=Requirement.ENTRY_POINTS, path=path)


cdef class PayloadTracer:
    cdef Tracer c
    cdef const uint8_t[::1] data
    cdef readonly bint first_edition

    def __init__(self, data, *, first_edition=False):
        if not len(data):
            raise malformed(OVERRUN, 0)
        self.data = data
        self.first_edition = first_edition
        init_decoder(&self.c.d, &self.data[0], self.data.shape[0])

    def __dealloc__(self):
        free(self.c.rows)

    def quant_param(self, int bits, int qp_value=0):
        cdef uint32_t v = uae(&self.c, bits, 0)
        return <int>v - (1 << bits) if v >> (bits - 1) else <int>v

    def quant_tensor(self, TensorSyntax syntax not None, levels=None, side=None):
        cdef Job job = Job(syntax, np.zeros(syntax.dims, np.int32))
        self.c.base = job.t.contexts
        run(&self.c, &job.t)
        if job.t.error:
            raise malformed(job.t.error, self._bit())
        return np.asarray(job.levels).reshape(syntax.dims), job.side()

    def terminate(self):
        cdef int b = decode_terminate(&self.c.d)
        trace(&self.c, -2, b, NULL)
        if not b:
            bit = self._bit()
            raise PayloadError("terminating_one_bit is 0", clause="10.2.1.2", rule=Requirement.TERMINATING_BIT, bit=bit)

    cdef int64_t _bit(self):
        return min(consumed(&self.c.d), <int64_t>(8 * self.data.shape[0]))

    def bins(self):
        if not self.c.n:
            return np.empty((0, 6), np.int32)
        return np.array(<int32_t[:self.c.n, :6]>self.c.rows)


cdef class BlockRow:
    """A row of blocks, coded as if it were the first bits of a payload; `nnr_append` joins the rows."""
    cdef Encoder c
    cdef int error

    def __dealloc__(self):
        free(self.c.out)


cdef class BlockRows:
    """Callable that codes group number i: `step` rows of blocks. Groups can be coded in any order and any thread."""
    cdef Job head
    cdef int64_t count, step
    cdef int32_t[::1] states  # stateId at the beginning of each row of blocks

    def __cinit__(self, Job head not None):
        cdef Tensor *t = &head.t
        cdef int64_t k, x, y
        cdef int state_id = 0
        self.head = head
        self.count = head.syntax.entry_points + 1
        self.step = GROUP // (t.block * t.width) + 1
        self.states = np.zeros(self.count, np.int32)
        with nogil:
            for k in range(self.count if t.dq else 0):
                self.states[k] = state_id
                x = 0
                while x < t.width:
                    for y in range(k * t.block, min((k + 1) * t.block, t.height)):
                        state_id = nnr_state_after(t.levels + y * t.width + x, min(t.block, t.width - x), state_id)
                    x += t.block

    def __call__(self, int64_t group):
        return [self.row(k) for k in range(group * self.step, min((group + 1) * self.step, self.count))]

    cdef BlockRow row(self, int64_t k):
        cdef Job job = Job(self.head.syntax, None, self.head)
        cdef BlockRow out = BlockRow.__new__(BlockRow)
        cdef Tensor *t = &job.t
        init_encoder(&out.c)
        out.c.range = 256
        out.c.held = 8
        t.levels = self.head.t.levels
        t.block_row, t.row, t.done = k, k * t.block, k * t.block * t.width
        t.state_id = self.states[k]
        with nogil:
            init_prob_est_param(&out.c, t)
            code_rows(&out.c, t, min(t.block, t.height - t.row) * t.width)
        PyErr_CheckSignals()
        out.error = t.error
        return out


cdef class PayloadEncoder:
    cdef Encoder c
    cdef object run_rows
    cdef list met  # for each entry point: number of bits before it, register, stateId, and bits of the row of blocks
    cdef bint terminated

    def __cinit__(self, *, run=map):
        init_encoder(&self.c)
        self.run_rows, self.met = run, []

    def __dealloc__(self):
        free(self.c.out)

    def quant_param(self, int bits, int qp_value):
        if not -(1 << (bits - 1)) <= qp_value < 1 << (bits - 1):
            raise EncodeError(f"qp_value {qp_value} does not fit in iae({bits}) (10.2.1.3)")
        uae(&self.c, bits, <uint32_t>qp_value & ((1 << bits) - 1))
        return qp_value

    def quant_tensor(self, TensorSyntax syntax not None, levels, side=None):
        cdef Job job = Job(syntax, check_levels(syntax, levels))
        job.set_side(side)
        with nogil:
            code_head(&self.c, &job.t)
        if syntax.entry_points and self.run_rows is not map:
            self._append_rows(&job.t, BlockRows(job))
        else:
            self._code_rows(&job.t)
        if job.t.error:
            raise not_coded(job.t.error)
        return levels, side or job.side()

    cdef _code_rows(self, Tensor *t):
        """Code the levels of a tensor, one row of blocks after the other."""
        cdef int64_t begin, size = t.height * t.width, step = t.block * t.width if t.block else size
        while t.done < size and not t.error:
            begin = written(&self.c)
            run_rows(&self.c, t, min(t.done + step, size))
            if t.done < size:
                self._meet(t.state_id, begin)

    cdef _append_rows(self, Tensor *t, BlockRows rows):
        """Code the levels of a tensor with entry points: code its rows of blocks separately and append them."""
        cdef int64_t k = 0, begin = 0
        cdef BlockRow row
        for group in self.run_rows(rows, range((rows.count + rows.step - 1) // rows.step)):
            check_cancelled()
            for row in group:
                if k:
                    self._meet(rows.states[k], begin)
                begin = written(&self.c)
                nnr_append(&self.c, &row.c)
                t.error = t.error or row.error
                k += 1
        if self.c.failed:
            t.error = NO_MEMORY

    cdef _meet(self, int state_id, int64_t begin):
        """Note an entry point; the previous row of blocks begins with bit `begin`."""
        self.met.append((written(&self.c), self.c.low & 511, state_id, written(&self.c) - begin))

    def entry_points(self):
        cdef int64_t end, i
        cdef uint32_t bits
        points = []
        if not self.terminated:
            raise ValueError("entry points are known when the payload is terminated")
        for end, register, state_id, length in self.met:
            bits = 0
            for i in range(end - 9, end):
                bits = 2 * bits | (self.c.out[i >> 3] >> (7 - (i & 7)) & 1)
            points.append((<int>((bits - <uint32_t>register) & 511), state_id, length))
        return points

    def terminate(self):
        nnr_put_bytes(&self.c)
        encode_terminate(&self.c)
        self.terminated = True
        if self.c.failed:
            raise not_coded(NO_MEMORY)

    def getvalue(self):
        return self.c.out[:self.c.n]


cdef bounds(levels):
    """Return the smallest and the largest integer of an array that is not empty."""
    cdef const int32_t[::1] x
    cdef int32_t low, high
    if levels.dtype != np.int32 or not levels.flags.c_contiguous:
        return int(levels.min()), int(levels.max())
    x = levels.reshape(-1)
    with nogil:
        nnr_bounds(&x[0], x.shape[0], &low, &high)
    return low, high


cdef check_levels(TensorSyntax syntax, levels):
    """Return the levels as int32 in C order; raise EncodeError if the syntax cannot represent them."""
    cdef int64_t high = 0x7fffffff, low = -0x80000000
    levels = np.asarray(levels)
    if levels.dtype.kind not in "iub":
        raise EncodeError(f"levels of type {levels.dtype} are not integers")
    if levels.size != syntax.size:
        raise EncodeError(f"{levels.size} levels are given for a tensor of shape {syntax.dims}")
    if syntax.t.dq:
        high, low = 1 << 30, -(1 << 30)
    if syntax.t.limited:
        high, low = min(high, syntax.t.max_positive), max(low, -syntax.t.max_negative)
    if syntax.t.dq or syntax.t.limited or levels.dtype != np.int32:
        least, most = bounds(levels)
        if most > high or least < low:
            raise EncodeError(f"levels from {least} to {most}: allowed here are {low} to {high} (10.2.1.5)")
    levels = np.ascontiguousarray(levels, np.int32)
    if not levels.flags.writeable:  # Job has a writable view for all coders, although only decoders write to it
        levels = levels.copy()
    return levels


include "_estimate.pxi"


def scale(const int32_t[::1] levels not None, float step, float[::1] out not None):
    cdef int64_t i, n = levels.shape[0]
    if out.shape[0] != n:
        raise ValueError("out and levels differ in length")
    with nogil:
        for i in range(n):
            out[i] = <float>levels[i] * step
