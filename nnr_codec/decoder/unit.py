"""Decoding of the payload of one compressed data unit, as a whole or in pieces for several threads.

Clause numbers refer to ISO/IEC 15938-17:2024.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..bitstream.payload import Levels, PayloadPart, code_qp_value, entry_points, tensor_syntax
from ..cabac_ext.kernel import (
    LaneJob,
    LevelReader,
    PayloadDecoder,
    TensorSyntax,
    decode_lanes,
    fits_lanes,
    lane_engines,
)
from ..constants import NNR_PT_RAW_FLOAT
from ..errors import BitstreamError, LimitError, MissingReferenceError, PayloadError, locate
from ..rules import Requirement
from ..tensor.quant import cast_floats
from ..tensor.shape import dimension_shift
from .reconstruct import Rec
from .state import Arrays
from .task import Dequantizer, NduTask

#: Minimum number of parameters decoded and scaled at a time: the levels fit the processor's cache until they are
#: scaled, and take a few milliseconds. Segments, and therefore errors, do not depend on the number of threads.
SEGMENT = 1 << 16
#: Minimum number of parameters between two entry points that are decoded in one lane.
LANE_SEGMENT = 1 << 14
#: Engines of lanes, fastest first. Without any, scalar code decodes all levels.
LANES = lane_engines()
#: Number of jobs for lanes that take as long together as one of them, and for which lanes are worth their overhead.
TOGETHER = {"avx512": 7, "avx2": 10}[LANES[0]] if LANES else 0
#: Levels for each bit of the payload from which scalar code is faster than lanes: it decodes runs of zeros in leaps.
SPARSE = 5

Piece = Callable[[], None]


class located:  # noqa: N801  # a context manager
    """Context manager that adds the unit to errors and makes bit positions in the payload relative to the unit."""

    __slots__ = ("_task",)

    def __init__(self, task: NduTask) -> None:
        self._task = task

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """See :func:`complete`."""
        if error is not None:
            complete(error, self._task)


def complete(error: BaseException, task: NduTask) -> None:
    """Add the unit to an error, see :class:`located`; raise LimitError for a MemoryError."""
    if isinstance(error, (BitstreamError, MissingReferenceError)):
        locate(error, task.label)
        if isinstance(error, PayloadError) and error.bit >= 0:
            error.bit += 8 * task.unit.payload_offset
    elif isinstance(error, MemoryError):
        raise LimitError("not enough memory for the tensor", unit=task.label) from None


def segments(rows: range, syntax: TensorSyntax, least: int) -> range:
    """Return the first row of each segment of at least ``least`` parameters, which ends with a row of blocks."""
    together = max(syntax.size // syntax.dims[0] * syntax.rows_together, 1)
    return rows[:: -(-least // together) * syntax.rows_together]


def _shifted(dims: Sequence[int], shift: int) -> list[int]:
    """Return the dimensions after DimensionShift()."""
    return [*dims[1 : shift + 1], *dims[:1], *dims[shift + 1 :]]


class _InLanes(NamedTuple):
    """Part of a payload that is decoded in lanes: its number, and its output, levels or values."""

    k: int
    qp_value: int
    out: npt.NDArray[Any]
    jobs: list[LaneJob]

    @property
    def are_done(self) -> bool:
        """True if all levels are decoded, and no cast value is out of range."""
        if not all(job.done for job in self.jobs):
            return False
        if self.out.itemsize == 4:
            return True
        flat = self.out.reshape(-1)
        return not any(np.isinf(flat[k : k + SEGMENT]).any() for k in range(0, flat.size, SEGMENT))


class _Target:
    """Part of a payload while it is decoded.

    Parameters
    ----------
    task, part, syntax
        Information from headers.
    qp_value : int
    reader : LevelReader
        Reader before the first level.
    shift : int
        first_tensor_dimension_shift if it is undone here, otherwise 0.
    keep_levels : bool
    rows : range
        Rows to decode: all, or complete rows of blocks.
    """

    def __init__(
        self,
        task: NduTask,
        part: PayloadPart,
        syntax: TensorSyntax,
        qp_value: int,
        reader: LevelReader,
        shift: int,
        keep_levels: bool,
        rows: range,
    ) -> None:
        self.reader, self.shift, self.first = reader, shift, rows.start
        self._dims, self._part = part.dims[1:], part
        self._dequantize = task.dequantizer(part, qp_value)
        self.segments = segments(rows, syntax, SEGMENT)
        self._stop = rows.stop
        self.values: npt.NDArray[Any] | None = None
        if len(self.segments) > 1 or task.out is not None:
            self.values = task.result(_shifted([len(rows), *self._dims], shift))
        self.levels = np.empty((len(rows), *self._dims), np.int32) if keep_levels else None
        self._is_direct = task.has_levels and not shift and not keep_levels
        self._failures: dict[int, BitstreamError] = {}

    def buffer(self) -> Levels:
        """Return memory for the levels of a segment, reusable for several segments."""
        return np.empty((min(self.segments.step, self._stop - self.first), *self._dims), np.int32)

    def segment(self, row: int, reader: LevelReader, buffer: Levels) -> None:
        """Decode the segment that begins with ``row``, the position of the reader.

        A level that cannot be scaled is reported only after the payload was found valid (:meth:`rec`).
        """
        start, stop = row - self.first, min(row + self.segments.step, self._stop) - self.first
        if self._is_direct and self.values is not None:
            reader.read(self.values[start:stop].reshape(-1))
            return
        levels = buffer[: stop - start] if self.levels is None else self.levels[start:stop]
        reader.read(levels.reshape(-1))
        try:
            if self.values is None:
                self.values = dimension_shift(self._dequantize(levels, None), self.shift)
            else:
                self._dequantize(levels, np.moveaxis(self.values, self.shift, 0)[start:stop])
        except BitstreamError as error:
            self._failures[row] = error

    def rec(self) -> Rec:
        """Return the tensor after all segments are decoded, or raise the first error."""
        if self._failures:
            raise self._failures[min(self._failures)]
        assert self.values is not None
        return Rec(self._part.name, self._part.role, self.values, self.levels)


class UnitDecoder:
    """Decoder of one payload: call all :meth:`pieces`, then :meth:`recs`.

    Parameters
    ----------
    task : NduTask
    first_edition : bool
        Read profile 0 as written by the software of the first edition (errata K1, K4).
    co_loc, any_sig : tuple of ndarray
        coLocParam and AnySigBeforeFlag of each part, or empty.
    keep_levels : bool
        Whether to keep the integers in addition to the values.

    Raises MissingReferenceError if the shapes of a reference and its part differ.
    """

    def __init__(
        self,
        task: NduTask,
        *,
        first_edition: bool,
        co_loc: Arrays = (),
        any_sig: Arrays = (),
        keep_levels: bool = True,
    ) -> None:
        self._task, self._first_edition, self._keep_levels = task, first_edition, keep_levels
        self._co_loc, self._any_sig = co_loc, any_sig
        for arrays in (co_loc, any_sig):
            if arrays and [array.shape for array in arrays] != [part.dims for part in task.parts]:
                raise MissingReferenceError(
                    f"the updates before {task.names[0]!r} do not have its shape {task.parts[-1].dims}",
                    clause="10.3.4.2.2",
                    rule=Requirement.UPDATE_SHAPE,
                )
        self._found: list[Rec | BitstreamError | _Target] = []
        self._in_lanes: _InLanes | None = None

    def lane_jobs(self) -> list[LaneJob]:
        """Begin to decode, and return the levels of the largest part as jobs for lanes, if they suit lanes.

        When the jobs have been decoded, :meth:`run` continues. It decodes everything again if a job has failed.
        """
        task = self._task
        if task.header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT or self._co_loc or self._any_sig:
            return []
        try:
            self._begin()
            k = max(range(len(task.parts)), key=lambda k: self._syntaxes[k].size)
            if self._syntaxes[k].size > SPARSE * 8 * len(task.payload):
                return []
            for before in range(k):
                self._whole(before)
            self._in_lanes = self._lanes(k, range(task.parts[k].dims[0]))
        except (BitstreamError, MemoryError):  # `run` raises it again, in the right order among other errors
            return []
        return self._in_lanes.jobs if self._in_lanes else []

    def _lanes(self, k: int, rows: range) -> _InLanes | None:
        """Return the jobs of some rows of part k, and their output; None if they do not suit lanes."""
        task, part, syntax = self._task, self._task.parts[k], self._syntaxes[k]
        qp_value = code_qp_value(self._decoder, task.header, task.session)
        reader = self._decoder.head(syntax)
        if not fits_lanes(reader):
            return None
        has_kernel = task.cast_dtype is None or task.cast_dtype.itemsize == 2  # not for types of 8 bits
        step = task.plain_step(part, qp_value) if has_kernel and not self._keep_levels else 0.0
        dims = (len(rows), *part.dims[1:])
        out: npt.NDArray[Any]
        if step and not self._shift:
            out = task.result(dims)
        elif not self._shift and task.out is not None and task.out.size == 4 * prod(dims):
            out = task.out.view(np.int32).reshape(dims)
        else:
            out = np.empty(dims, np.float32 if step else np.int32)
        if not (self._has_lists and syntax.entry_points):
            return _InLanes(k, qp_value, out, [LaneJob(reader, out, step)])
        starts = segments(rows, syntax, LANE_SEGMENT)
        readers = [reader.fork(row) if row else reader for row in starts]
        jobs = [
            LaneJob(one, out[row - rows.start : row - rows.start + starts.step], step)
            for one, row in zip(readers, starts, strict=True)
        ]
        return _InLanes(k, qp_value, out, jobs)

    def leave_lanes(self) -> None:
        """Discard the jobs in lanes; :meth:`pieces` and :meth:`run` then decode the levels."""
        self._in_lanes = None

    @property
    def in_lanes(self) -> bool:
        """True if the unit has jobs whose levels :meth:`run` has not taken over yet."""
        return self._in_lanes is not None

    def pieces(self) -> list[Piece]:
        """Return calls that decode the payload, in any order and in any thread.

        The first failing call raises the same error as :meth:`run`. There is one call unless a part is
        large and has entry points; the elements before its levels are then decoded here.
        """
        large = [k for k, part in enumerate(self._task.parts) if prod(part.dims) >= 2 * SEGMENT]
        if large and self._has_lists:
            try:
                self._begin()
                large = [k for k in large if self._syntaxes[k].entry_points]
                if large:
                    for k in range(large[0]):
                        self._whole(k)
                    target = self._head(large[0])
                    return [partial(self._segment, large[0], target, row) for row in target.segments]
            except (BitstreamError, MemoryError):  # `run` raises it again, in the right order among other errors
                pass
        return [self.run]

    def run(self) -> None:
        """Decode the whole payload."""
        with located(self._task):
            self._all()

    def recs(self) -> list[Rec]:
        """Return the Rec* tensors in coding order (7.3.2 to 7.3.5).

        DimensionShift() is applied, except to the weight of a block and to G and H, which are incomplete.
        """
        with located(self._task):
            return self._recs()

    def at_once(self) -> list[Rec]:
        """Call :meth:`run` and :meth:`recs`, without adding the unit to errors."""
        self._all()
        return self._recs()

    def rows(self, start: int, stop: int) -> npt.NDArray[Any] | None:
        """Return rows of the only tensor of a payload without decoding most other rows; None if all must be decoded.

        Only the entry points around the selected rows of blocks are checked.
        """
        task, part = self._task, self._task.parts[0]
        if task.role != "weight":
            return None
        shift = task.header.first_tensor_dimension_shift
        if start == stop:
            return np.empty([*part.dims[1 : shift + 1], 0, *part.dims[shift + 1 :]], task.dtype)
        if not self._has_lists:
            return None
        with located(task):
            self._begin()
            together = self._syntaxes[0].rows_together
            rows = range(start // together * together, min(-(-stop // together) * together, part.dims[0]))
            if len(rows) == part.dims[0] or not self._syntaxes[0].entry_points:
                return None
            some = np.arange(start, stop) - rows.start
            if (values := self._rows_in_lanes(rows)) is not None:
                return np.take(values, some, axis=shift)
            target = self._head(0, rows)
            reader, buffer = target.reader.fork(rows.start) if rows.start else target.reader, target.buffer()
            for row in target.segments:
                target.segment(row, reader, buffer)
            if rows.stop == part.dims[0]:
                reader.decoder.terminate()
            return np.take(target.rec().values, some, axis=shift)

    def _rows_in_lanes(self, rows: range) -> npt.NDArray[Any] | None:
        """Return rows of the only tensor; None if they are not many, or must be decoded by scalar code."""
        part = self._task.parts[0]
        if not LANES or prod(part.dims) // part.dims[0] * len(rows) < TOGETHER * LANE_SEGMENT:
            return None
        try:
            lanes = self._lanes(0, rows)
            if lanes:
                decode_lanes(lanes.jobs)
                if lanes.are_done:
                    found = self._from_lanes(lanes)
                    if rows.stop == part.dims[0]:
                        self._decoder.terminate()
                    if isinstance(found, Rec):
                        return found.values
        except BitstreamError:  # scalar code raises it again
            pass
        self._begin()
        return None

    # ------------------------------------------------------------------------------------------ steps
    @property
    def _has_lists(self) -> bool:
        """True if there are lists of entry points with an effect."""
        header = self._task.header
        is_raw = header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT
        return bool(header.scan_order and header.cabac_offset_list) and not is_raw

    def _all(self) -> None:
        task = self._task
        if task.header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT:
            self._raw_float()
            return
        begin = self._continue()
        if not begin:
            self._begin()
        for k in range(begin, len(task.parts)):
            self._whole(k)
        self._decoder.terminate()

    def _continue(self) -> int:
        """Take over the part that was decoded in lanes; return the number of complete parts."""
        lanes, self._in_lanes = self._in_lanes, None
        if not lanes or not lanes.are_done:
            return 0
        self._found.append(self._from_lanes(lanes))
        return lanes.k + 1

    def _from_lanes(self, lanes: _InLanes) -> Rec | BitstreamError:
        self._decoder = lanes.jobs[-1].reader.decoder
        part, out = self._task.parts[lanes.k], lanes.out
        if out.dtype == np.int32:
            return self._rec(part, out, self._task.dequantizer(part, lanes.qp_value))
        return Rec(part.name, part.role, self._converted(out, self._task.put) if self._shift else out)

    def _recs(self) -> list[Rec]:
        recs = []
        for found in self._found:
            if isinstance(found, BitstreamError):
                raise found
            recs.append(found.rec() if isinstance(found, _Target) else found)
        return recs

    def _raw_float(self) -> None:
        task, payload = self._task, self._task.payload
        if len(payload) != 4 * prod(task.dims):
            raise PayloadError(
                f"{len(payload)} bytes of raw_float32_parameter do not match the dimensions {task.dims}",
                clause="6.3.4.7",
                rule=Requirement.RAW_SIZE,
            )
        floats: npt.NDArray[Any] = np.frombuffer(payload, "<f4").reshape(task.dims)
        part = task.parts[0]
        values = self._converted(floats, lambda part, out: task.put(cast_floats(part, task.dtype), out))
        self._found = [Rec(part.name, part.role, values)]

    def _begin(self) -> None:
        task = self._task
        lists, offsets = entry_points(task.header, task.parts)
        self._syntaxes: list[TensorSyntax] = []
        for k, part in enumerate(task.parts):
            syntax = tensor_syntax(
                task.header,
                task.session,
                part,
                first_edition=self._first_edition,
                entry_points=lists,
                entry_point_offset=offsets[k],
                co_loc=self._co_loc[k] if self._co_loc else None,
                any_sig=self._any_sig[k] if self._any_sig else None,
            )
            self._syntaxes.append(syntax)
        self._decoder = PayloadDecoder(task.payload, first_edition=self._first_edition)
        self._found = []

    def _head(self, k: int, rows: range | None = None) -> _Target:
        """Decode the elements before the levels of part k."""
        task, part, syntax = self._task, self._task.parts[k], self._syntaxes[k]
        qp_value = code_qp_value(self._decoder, task.header, task.session)
        reader = self._decoder.head(syntax)
        everything = range(part.dims[0])
        target = _Target(task, part, syntax, qp_value, reader, self._shift, self._keep_levels, rows or everything)
        self._found.append(target)
        return target

    @property
    def _shift(self) -> int:
        """The first_tensor_dimension_shift to undo here."""
        shift = self._task.header.first_tensor_dimension_shift
        return shift if shift and self._task.role == "weight" else 0

    def _small(self, k: int) -> Rec | BitstreamError:
        """Decode part k, which has at most one segment; see _Target.segment."""
        task, part = self._task, self._task.parts[k]
        qp_value = code_qp_value(self._decoder, task.header, task.session)
        if not (self._keep_levels or task.cast) and (step := task.plain_step(part, qp_value)):
            floats = np.empty(part.dims, np.float32) if self._shift else task.result(part.dims)
            self._decoder.scaled(self._syntaxes[k], step, floats)
            return Rec(part.name, part.role, dimension_shift(floats, self._shift))
        dequantize = task.dequantizer(part, qp_value)
        reader, levels = self._decoder.head(self._syntaxes[k]), np.empty(part.dims, np.int32)
        reader.read(levels.reshape(-1))
        return self._rec(part, levels, dequantize)

    def _rec(self, part: PayloadPart, levels: Levels, dequantize: Dequantizer) -> Rec | BitstreamError:
        """Return a part, or the error of a level that cannot be scaled."""
        try:
            values = self._converted(levels, dequantize)
        except BitstreamError as error:
            return error
        return Rec(part.name, part.role, values, levels if self._keep_levels else None)

    def _converted(self, source: npt.NDArray[Any], convert: Dequantizer) -> npt.NDArray[Any]:
        """Return parameters made from levels or floats: in segments if the task has memory or a type for them."""
        task, shift = self._task, self._shift
        if task.out is None and not task.cast:
            return dimension_shift(convert(source, None), shift)
        values = task.result(_shifted(source.shape, shift))
        if shift:
            target, size = np.moveaxis(values, shift, 0), -(-SEGMENT // (source.size // len(source)))
        else:  # `source` may be the memory of `values`
            source, target, size = source.reshape(-1), values.reshape(-1), SEGMENT
        for start in range(0, len(source), size):
            convert(source[start : start + size], target[start : start + size])
        return values

    def _whole(self, k: int) -> None:
        if self._syntaxes[k].size <= SEGMENT:
            self._found.append(self._small(k))
            return
        target = self._head(k)
        buffer = target.buffer()
        for row in target.segments:
            target.segment(row, target.reader, buffer)

    def _segment(self, k: int, target: _Target, row: int) -> None:
        """Decode one segment of part k; the last one also decodes the following parts."""
        with located(self._task):
            reader = target.reader.fork(row) if row else target.reader
            target.segment(row, reader, target.buffer())
            if row == target.segments[-1]:
                self._decoder = reader.decoder
                for following in range(k + 1, len(self._task.parts)):
                    self._whole(following)
                self._decoder.terminate()
