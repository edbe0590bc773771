"""The library's functions: the only place that joins formats, encoder and decoder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO

from . import __version__, formats
from .bitstream.summary import UnitInfo, summarise
from .bitstream.units import Unit, UnitReader
from .bitstream.units import write_units as write
from .config import EncoderConfig
from .decoder import stream
from .decoder.index import NnrFile
from .encoder import estimate as estimation
from .encoder import tune as tuning
from .encoder.encode import Progress, TensorReport, encode_units
from .encoder.schedule import Pool, Reader
from .files import output_file
from .limits import Limits
from .model import Array, Model
from .report.encoded import EncodeReport, Witness
from .syntax import Session

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from .bitstream.source import Bitstream
    from .conformance.report import Report
    from .encoder.tune import Tuning

    Target = str | os.PathLike[str] | BinaryIO
    Source = Target | bytes | bytearray | memoryview


def load(source: Source, *, format: str | None = None, limits: Limits | None = None) -> Model:
    """Read a model file; see :func:`nnr_codec.formats.load`."""
    return formats.load(source, format=format, limits=limits)


def save(
    model: Model | Mapping[str, Array], target: Target, *, format: str | None = None, overwrite: bool = False
) -> None:
    """Write a model file, whole or not at all; see :func:`nnr_codec.formats.save`."""
    formats.save(_as_model(model), target, format=format, overwrite=overwrite)


def encode(
    model: Model | Mapping[str, Array] | Source,
    config: EncoderConfig | None = None,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    **options: Any,
) -> bytes:
    """Encode a model into an NNR bitstream.

    Parameters
    ----------
    model : Model, mapping of str to ndarray, path or binary file
        Tensors of any type of :data:`nnr_codec.dtypes.STORED_TYPES`, those of ``ml_dtypes`` (bfloat16, float8, int4)
        among them, and of any shape. What NNR cannot express, such as a shape without elements, stands in a
        side-information record (docs/side-information.md), unless ``side_info`` is False.
    config : EncoderConfig, optional
    jobs : int
        Threads to use. The result is the same for any number.
    executor : concurrent.futures.Executor, optional
        Used in the place of threads of our own; of threads or of processes. The call must not come from one of its
        workers, which would wait for itself.
    **options
        Fields of EncoderConfig, replacing those of ``config``: ``exact=True`` keeps every bit.

    Returns
    -------
    bytes
        The same for the same input and options, on every machine that deflates the topology alike.

    Raises
    ------
    EncodeError
        A tensor cannot be coded as asked; the message names it.
    FormatError
        The model file is malformed.
    """
    return b"".join(encode_units(_as_model(model), _config(config, options), jobs=jobs, executor=executor))


def encode_file(
    source: Model | Mapping[str, Array] | Source,
    target: Target,
    config: EncoderConfig | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
    statistics: bool = False,
    **options: Any,
) -> EncodeReport:
    """Encode a model into a file, unit by unit; the file appears whole or not at all.

    Parameters
    ----------
    source, config, jobs, executor, options
        As for :func:`encode`.
    target : path or binary file
    overwrite : bool
        Replace an existing file; otherwise it raises FileExistsError.
    progress : callable, optional
        Called with a TensorReport after each tensor.
    statistics : bool
        Decode what is written, and measure what ``to_json``, ``to_html`` and ``save`` of the report need.
    """
    started = time.perf_counter()
    settings = _config(config, options)
    report = EncodeReport(source=_file_name(source), config=settings, version=__version__)

    def note(tensor: TensorReport) -> None:
        report.tensors[tensor.name] = tensor
        report.source_bytes += tensor.source_bytes
        report.parameters += tensor.parameters
        if progress:
            progress(tensor)

    def write(file: BinaryIO) -> None:
        nonlocal started
        model = _as_model(source)
        witness = Witness(model, report) if statistics else None
        for unit in encode_units(model, settings, note, jobs=jobs, executor=executor, statistics=statistics):
            report.nbytes += len(unit)
            file.write(unit)
            if witness:
                witness.take(unit)
        if witness:
            witness.finish()
            started += witness.seconds

    if isinstance(target, (str, os.PathLike)):
        with output_file(target, overwrite=overwrite) as file:
            write(file)
    else:
        write(target)
    report.seconds = time.perf_counter() - started
    return report


def estimate(
    model: Model | Mapping[str, Array] | Source,
    config: EncoderConfig | None = None,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    **options: Any,
) -> EncodeReport:
    """What :func:`encode_file` would report, without coding: sizes are estimated, those of large tensors by excerpts.

    Parameters and errors are those of :func:`encode`; a target is met by what is estimated.
    """
    started = time.perf_counter()
    settings = _config(config, options)
    report = EncodeReport(source=_file_name(model), config=settings)
    loaded = _as_model(model)
    with Pool(jobs, executor) as pool:
        report.nbytes, tensors = estimation.estimate(loaded, settings, Reader(loaded), pool)
    for plan, size in tensors:
        tensor = TensorReport(plan.name, prod(plan.dims), plan.source_bytes, size)
        report.tensors[plan.name] = tensor
        report.nbytes += size
        report.source_bytes += tensor.source_bytes
        report.parameters += tensor.parameters
    report.seconds = time.perf_counter() - started
    return report


def tune(
    model: Model | Mapping[str, Array] | Source,
    evaluate: Callable[[Model], float],
    *,
    tolerance: float,
    config: EncoderConfig | None = None,
    budget: int = 40,
    **options: Any,
) -> Tuning:
    """Find the coarsest steps at which a score of the decoded model holds, tensor by tensor.

    All tensors are made coarser together, then groups of them, those first that take most bytes.

    Parameters
    ----------
    model : Model, mapping of str to ndarray, path or binary file
    evaluate : callable
        From a Model with decoded tensors to a number, of which more is better, such as an accuracy.
    tolerance : float
        By how much the score may be less than that of ``model``.
    config, **options
        As for :func:`encode`: where the search begins. Rules may keep tensors exact, which then stay so.
    budget : int
        Calls of ``evaluate`` at most, that of ``model`` included; each comes after an encoding and a decoding.

    Returns
    -------
    Tuning
        The options that give the smallest bitstream whose score held, and what that takes.

    Raises
    ------
    EncodeError
        No steps hold the score, or the options have a target.
    """
    loaded = _as_model(model)

    def coded(settings: EncoderConfig) -> tuning.Coded:
        units: dict[str, int] = {}

        def note(tensor: TensorReport) -> None:
            units[tensor.name] = tensor.unit_bytes

        data = b"".join(encode_units(loaded, settings, note))
        return decode(data), len(data), units

    return tuning.tune(loaded, evaluate, coded, _config(config, options), tolerance, budget)


def decode(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    raw: bool = False,
    allow_missing: bool = False,
    jobs: int = 1,
    executor: Executor | None = None,
    dtype: str = "source",
) -> Model:
    """Decode an NNR bitstream.

    Parameters
    ----------
    data : bytes-like, path or binary file
        A whole bitstream of either profile.
    limits : Limits, optional
        What it may cost; ``Limits.strict()`` for input from strangers.
    topology_dimensions : mapping of str to sequence of int, optional
        Dimensions of tensors whose units leave them out (tensor_dimensions_flag 0).
    raw : bool
        Give the Rec* tensors of clause 7.3 as coded: no product of decomposed tensors, no local scaling, no splitting
        of units with several tensors, no side information.
    allow_missing : bool
        Whether tensors may be missing that the topology or the reference list names; an update may always lack some.
    jobs : int
        Threads to use. The result is the same for any number.
    executor : concurrent.futures.Executor, optional
        Used in the place of threads of our own; of threads or of processes. The call must not come from one of its
        workers, which would wait for itself.
    dtype : str
        ``"float32"`` or ``"float16"``: give floats of all types as this one; ElementError for a finite value that it
        cannot hold. ``"source"``: tensors are of the types that they had.

    Returns
    -------
    Model
        Tensors by topology element id, in bitstream order; the topology, if there is one. Where side information says
        no more, types are those of Table 15.

    Raises
    ------
    BitstreamError
        The bitstream is malformed (TruncatedError, ElementError, PayloadError), lacks tensors (IncompleteError) or asks
        for more than the limits permit (LimitError); the error says in which unit, which syntax element and at which
        bit.
    MissingReferenceError
        It refers to something that it does not carry, such as an earlier update: see UpdateDecoder.
    UnsupportedError
        A profile or version of the side information that is not defined.
    MissingDependencyError
        A type that numpy does not have, and ``ml_dtypes`` is not installed (extra ``types``).
    """
    file = open(data, limits=limits, topology_dimensions=topology_dimensions, dtype=dtype)
    return file.decode(raw=raw, allow_missing=allow_missing, jobs=jobs, executor=executor)


def open(  # as in gzip.open
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    dtype: str = "source",
) -> NnrFile:
    """Open a bitstream as a mapping that decodes a tensor when it is asked for.

    Parameters and errors are those of :func:`decode`. A path is mapped into memory, and the file must not be cut
    short meanwhile; of a seekable file only headers are read, and the units of the tensors that are asked for.
    """
    return NnrFile(data, limits, topology_dimensions, formats.tensor_names, dtype=dtype)


class StreamDecoder(stream.StreamDecoder):
    __doc__ = stream.StreamDecoder.__doc__

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        topology_dimensions: Mapping[str, Sequence[int]] | None = None,
        allow_missing: bool = False,
        dtype: str = "source",
    ) -> None:
        super().__init__(
            limits=limits,
            topology_dimensions=topology_dimensions,
            allow_missing=allow_missing,
            named=formats.tensor_names,
            dtype=dtype,
        )


def units(
    data: Bitstream, *, limits: Limits | None = None, topology_dimensions: Mapping[str, Sequence[int]] | None = None
) -> Iterator[Unit]:
    """The units of a bitstream in order, headers and parameter sets as structures, payloads as bytes.

    They may be changed, and written by :func:`write_units`.
    """
    return iter(UnitReader(data, limits, Session(topology_dimensions or {})))


def write_units(units: Iterable[Unit], *, topology_dimensions: Mapping[str, Sequence[int]] | None = None) -> bytes:
    """The bitstream of units; see :func:`nnr_codec.bitstream.units.write_units`."""
    return write(units, Session(topology_dimensions or {}))


def inspect(
    data: Bitstream, *, limits: Limits | None = None, topology_dimensions: Mapping[str, Sequence[int]] | None = None
) -> list[UnitInfo]:
    """Facts about each unit of a bitstream, from headers alone."""
    return list(summarise(data, limits, Session(topology_dimensions or {})))


def verify(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    inputs: Iterable[Bitstream] = (),
) -> Report:
    """Check a bitstream against every rule of the standard that a program can check, and report all violations.

    See :func:`nnr_codec.conformance.verify.verify`; an NNEF topology in the bitstream is read as well.
    """
    from .conformance.verify import verify as check
    from .formats.nnef import variable_labels

    return check(
        data,
        limits=limits,
        topology_dimensions=topology_dimensions,
        inputs=inputs,
        labels=lambda topology: variable_labels(topology.data),
    )


def _config(config: EncoderConfig | None, options: Mapping[str, Any]) -> EncoderConfig:
    return replace(config, **options) if config else EncoderConfig(**options)


def _file_name(source: Model | Mapping[str, Array] | Source) -> str:
    return os.path.basename(os.path.normpath(source)) if isinstance(source, (str, os.PathLike)) else ""


def _as_model(model: Model | Mapping[str, Array] | Source) -> Model:
    if isinstance(model, Model):
        return model
    return Model(model) if isinstance(model, Mapping) else formats.load(model)
