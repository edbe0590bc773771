"""The library's functions: the only place that joins formats, encoder and decoder."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from . import __version__, formats
from .bitstream.performance import Performance, PerformanceMaps
from .bitstream.summary import UnitInfo, summarise
from .bitstream.units import Unit, UnitReader
from .bitstream.units import write_units as write
from .compare import compare_models
from .config import EncoderConfig
from .decoder import stream, update
from .decoder.index import NnrFile
from .decoder.wiring import header_session
from .encoder import estimate as estimation
from .encoder import tune as tuning
from .encoder.encode import Progress, TensorReport, encode_units
from .encoder.prepare import Prepared, prepare, prepared_of
from .encoder.reduce.amounts import open_amounts, with_amounts
from .encoder.reduce.tool import Reduced
from .encoder.schedule import Pool, Reader
from .errors import FormatError
from .files import output_file
from .limits import Limits
from .model import Array, Model, Topology, Wiring
from .parts import Parts, parts_of
from .reduction import Step
from .report.encoded import EncodeReport, Notes, Witness
from .report.reduced import Reduction, StepReport, step_report
from .syntax import Session

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from .bitstream.nodes import UnitNode
    from .bitstream.source import Bitstream
    from .conformance.report import Report
    from .decoder.state import UpdateState
    from .decoder.tools import Tool
    from .difference import BitstreamDifference
    from .encoder.tune import Tuning
    from .formats.nnef.rules import ModelReport

    Target = str | os.PathLike[str] | BinaryIO
    Given = Topology | Model | str | os.PathLike[str]
    Source = Target | bytes | bytearray | memoryview


def load(source: Source, *, format: str | None = None, limits: Limits | None = None, strict: bool = False) -> Model:
    """Read a model file; see :func:`nnr_codec.formats.load`."""
    return formats.load(source, format=format, limits=limits, strict=strict)


def save(
    model: Model | Mapping[str, Array], target: Target, *, format: str | None = None, overwrite: bool = False
) -> None:
    """Write a model file, whole or not at all; see :func:`nnr_codec.formats.save`."""
    formats.save(formats.as_model(model), target, format=format, overwrite=overwrite)


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
        Threads to use; of an executor, how many workers it has, where these are not as many as this machine has
        processors. The result is the same for any number.
    executor : concurrent.futures.Executor, optional
        Used in the place of threads of our own: of threads, of processes, of other machines (docs/executors.md). Of
        models in files its workers get paths, and read the tensors themselves. The call must not come from one of its
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
    WorkerError
        The executor has lost the work on a tensor, or a worker does not find the model's file.
    """
    loaded = formats.as_model(model)
    settings = _settled(loaded, _config(config, options))
    return b"".join(encode_units(_prepared(loaded, settings), settings, jobs=jobs, executor=executor))


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
    resume: bool = False,
    **options: Any,
) -> EncodeReport:
    """Encode a model into a file, unit by unit; the file appears whole or not at all.

    Only some tensors at a time are in memory, if they are in a file.

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
    resume : bool
        Keep finished units in a folder, ``target`` with ``.parts`` appended, until the file is there. After an
        interruption the same call goes on from them; other tensors or options find nothing of theirs. The result is
        the same. ``target`` has to be a path; FileExistsError for a folder of that name that is another one's.
    """
    started = time.perf_counter()
    loaded = formats.as_model(source)
    settings = _settled(loaded, _config(config, options))
    report = EncodeReport(source=_file_name(source), config=settings, version=__version__)
    prepared = _prepared(loaded, settings, report.steps)

    notes = Notes(prepared, report)

    def note(tensor: TensorReport) -> None:
        taken = notes.take(tensor)
        if progress and taken:
            progress(taken)

    def write(file: BinaryIO, parts: Parts | None) -> None:
        nonlocal started
        witness = Witness(prepared, report) if statistics else None
        for unit in encode_units(
            prepared, settings, note, jobs=jobs, executor=executor, statistics=statistics, parts=parts
        ):
            report.nbytes += len(unit)
            file.write(unit)
            if witness:
                witness.take(unit)
        if witness:
            witness.finish()
            started += witness.seconds

    with _parts(target, resume) as parts:
        if isinstance(target, (str, os.PathLike)):
            with output_file(target, overwrite=overwrite) as file:
                write(file, parts)
        else:
            write(target, parts)
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
    loaded = formats.as_model(model)
    settings = _settled(loaded, _config(config, options))
    report = EncodeReport(source=_file_name(model), config=settings)
    prepared = _prepared(loaded, settings, report.steps)
    with Pool(jobs, executor) as pool:
        report.nbytes, tensors = estimation.estimate(prepared, settings, Reader(prepared.model), pool)
    notes = Notes(prepared, report)
    for plan, size in tensors:
        report.nbytes += size
        notes.take(TensorReport(plan.name, prod(plan.dims), plan.source_bytes, size))
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
    loaded = formats.as_model(model)
    settings = _settled(loaded, _config(config, options))
    prepared = _prepared(loaded, settings)

    def coded(settings: EncoderConfig) -> tuning.Coded:
        units: dict[str, int] = {}

        def note(tensor: TensorReport) -> None:
            units[tensor.name] = tensor.unit_bytes

        data = b"".join(encode_units(prepared, settings, note))
        return decode(data, topology=loaded.topology), len(data), units

    return tuning.tune(loaded, prepared.model, evaluate, coded, settings, tolerance, budget, prepared.restored)


def folded(model: Model | Mapping[str, Array] | Source, config: EncoderConfig | None = None, **options: Any) -> Model:
    """The model that a bitstream of these options restores, but for quantization.

    It is ``model`` unless ``reduce``, ``fold_batchnorm`` or ``local_scaling`` change tensors. The latter two leave the
    outputs of the network what they are, up to rounding. Parameters and errors are those of :func:`encode`.
    """
    loaded = formats.as_model(model)
    return _prepared(loaded, _settled(loaded, _config(config, options))).restored


def reduce(
    model: Model | Mapping[str, Array] | Source,
    steps: str | Iterable[Step | str],
    config: EncoderConfig | None = None,
    **options: Any,
) -> Reduction:
    """Apply steps of parameter reduction to a model, without coding it (ISO/IEC 15938-17:2024, clause 8).

    Parameters
    ----------
    model : Model, mapping of str to ndarray, path or binary file
    steps : str or sequence of Step
        Such as ``"sparsify(ratio=0.6), fold"``; docs/reduction.md has all tools and their options.
    config, **options
        As for :func:`encode`: rules keep tensors out, estimated sizes follow the rest.

    Returns
    -------
    Reduction
        The reduced model, and what each step did to size and error.

    Raises
    ------
    EncodeError
        A step or one of its options does not exist, or there is nothing that it could do.
    """
    loaded = formats.as_model(model)
    settings = _settled(loaded, replace(_config(config, options), reduce=steps))
    found: list[StepReport] = []
    prepared = _prepared(loaded, settings, found)
    return Reduction(prepared.restored, tuple(found))


def measure(
    model: Model | Mapping[str, Array] | Source,
    evaluate: Callable[[Model], float | tuple[float, Sequence[float | None]]],
    maps: Mapping[str, Sequence[float] | None],
    *,
    metric: str | None = None,
    config: EncoderConfig | None = None,
    jobs: int = 1,
    **options: Any,
) -> Performance:
    """Performance maps of a bitstream, by measurement (6.4.4.3): its decoded model is reduced further, and evaluated.

    With the same options, and ``performance`` set to what this returns, :func:`encode` gives a bitstream that has these
    maps, and decodes to the model that they tell of.

    Parameters
    ----------
    model : Model, mapping of str to ndarray, path or binary file
    evaluate : callable
        From a Model to its accuracy, or to that and a sequence of the accuracies of its classes, in the order of the
        network's outputs, None for those of which the map is to say nothing. It is called once for each point, and
        with ``target_size`` or ``target_ratio`` once more.
    maps : mapping of str to sequence of float, or None
        Which maps, and their points, 254 at most: thresholds of ``"sparsification"``, ratios of ``"pruning"``,
        thresholds of ``"unification"`` (in blocks of 2x2x2), mean square errors of ``"decomposition"``. None: some that
        suit the weights.
    metric : str, optional
        performance_metric_type, such as ``"top-1"``; the maps are marked as being in it.
    config, jobs, **options
        As for :func:`encode`; of ``performance``, what else it tells is kept.

    Returns
    -------
    Performance
        All numbers are those of float32, as they will be read.

    Raises
    ------
    EncodeError
        There is no such map, a point is none or cannot be applied to the model, or ``evaluate`` gives no finite number.
    """
    loaded, asked = formats.as_model(model), _config(config, options)
    known = asked.performance if isinstance(asked.performance, Performance) else Performance()
    if metric is not None:
        known = replace(known, performance_metric_type=metric, metric_type_performance_map_valid_flag=True)

    def coded(settings: EncoderConfig) -> Model:
        settled = _settled(loaded, settings)
        data = b"".join(encode_units(_prepared(loaded, settled), settled, jobs=jobs))
        apart = loaded.topology if settled.topology == "external" else None
        return decode(data, topology=apart, allow_missing=True, jobs=jobs)

    def told(found: PerformanceMaps) -> Performance:
        tables = {kind: getattr(found, kind) for kind in maps}
        return replace(known, maps=replace(known.maps, **tables))

    from .encoder import measure as measuring  # which nothing else needs

    kinds = measuring.checked(maps)
    decoded = coded(replace(asked, performance=known))
    points = measuring.filled(decoded, kinds)
    if asked.target_size is not None or asked.target_ratio is not None:  # maps leave less for the tensors
        blank = measuring.blank(decoded, points, evaluate(decoded))
        decoded = coded(replace(asked, performance=told(blank)))

    def reduced(step: Step) -> Prepared:
        return _prepared(decoded, EncoderConfig(reduce=(step,)))

    return told(measuring.measured(decoded, points, reduced, evaluate))


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
    topology: Given | None = None,
) -> Model:
    """Decode an NNR bitstream.

    Parameters
    ----------
    data : bytes-like, path or binary file
        A whole bitstream of either profile.
    limits : Limits, optional
        What it may cost; ``Limits.strict()`` for input from strangers.
    topology_dimensions : mapping of str to sequence of int, optional
        Dimensions of tensors whose units leave them out (tensor_dimensions_flag 0); those of others come from the
        topology.
    raw : bool
        Give the Rec* tensors of clause 7.3 as coded: no product of decomposed tensors, no local scaling, no splitting
        of units with several tensors, no side information.
    allow_missing : bool
        Whether tensors may be missing that the topology or the reference list names; an update may always lack some.
    jobs : int
        As for :func:`encode`.
    executor : concurrent.futures.Executor, optional
        Likewise; of a bitstream by its path, workers read units themselves.
    dtype : str
        ``"float32"`` or ``"float16"``: give floats of all types as this one; ElementError for a finite value that it
        cannot hold. ``"source"``: tensors are of the types that they had.
    topology : Topology, Model or path, optional
        Takes the place of the one that the bitstream carries, if it does: a graph, or a model of which nothing but its
        topology is looked at.

    Returns
    -------
    Model
        Tensors by topology element id, in bitstream order; the topology, if there is one. Where side information says
        no more, types are those of Table 15. Tensors of one dimension that belong to a weight have the shape that the
        topology declares. Local scaling is multiplied into the weight unless the network does so itself; a batch
        normalization that was folded has its own variables again (8.2.1).

    Raises
    ------
    FormatError
        The topology given is none, or its variables are not the tensors of the bitstream.
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
    WorkerError
        The executor has lost the work on a tensor, or a worker does not find the bitstream's file.
    """
    file = open(data, limits=limits, topology_dimensions=topology_dimensions, dtype=dtype, topology=topology)
    return file.decode(raw=raw, allow_missing=allow_missing, jobs=jobs, executor=executor)


def decode_file(
    data: Bitstream | NnrFile,
    target: Target,
    *,
    format: str | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] | None = None,
    names: Iterable[str] | None = None,
    allow_missing: bool = False,
    jobs: int = 1,
    executor: Executor | None = None,
    resume: bool = False,
    **options: Any,
) -> None:
    """Decode an NNR bitstream into a model file, tensor by tensor; the file appears whole or not at all.

    Only some tensors at a time are in memory. What cannot be written so is found out when its turn comes.

    Parameters
    ----------
    data : bytes-like, path, binary file or NnrFile
        A whole bitstream, or one that :func:`open` has opened.
    target : path or binary file
    format, overwrite
        As for :func:`save`.
    progress : callable, optional
        Told each name, when its tensor is decoded.
    names : iterable of str, optional
        Which tensors; by default all.
    allow_missing, jobs, executor
        As for :func:`decode`.
    resume : bool
        As for :func:`encode_file`: keep decoded tensors until the model is there.
    **options
        Those of :func:`open`, unless ``data`` is open.

    Raises what :func:`decode` and :func:`save` raise.
    """
    with ExitStack() as stack:
        if not isinstance(data, NnrFile):
            # A mapped file would count as memory of the process.
            if isinstance(data, (str, os.PathLike)):
                data = stack.enter_context(Path(data).open("rb"))
            data = stack.enter_context(open(data, **options))
        elif options:
            raise TypeError(f"the bitstream is open already, and {', '.join(options)} cannot change that")
        parts = stack.enter_context(_parts(target, resume))
        model = stack.enter_context(
            data.deferred(progress, names=names, allow_missing=allow_missing, jobs=jobs, executor=executor, parts=parts)
        )
        if isinstance(target, (str, os.PathLike)):
            formats.save(model, target, format=format, overwrite=overwrite)
            return
        whole = stack.enter_context(tempfile.TemporaryFile())
        formats.save(model, cast(BinaryIO, whole), format=format)
        whole.seek(0)
        shutil.copyfileobj(whole, target)


def open(  # as in gzip.open
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    dtype: str = "source",
    topology: Given | None = None,
) -> NnrFile:
    """Open a bitstream as a mapping that decodes a tensor when it is asked for.

    Parameters and errors are those of :func:`decode`. A path is mapped into memory, and the file must not be cut
    short meanwhile; of a seekable file only headers are read, and the units of the tensors that are asked for.
    """
    given = formats.topology_of(topology, limits=limits)
    return NnrFile(data, limits, topology_dimensions, formats.wiring, dtype=dtype, topology=given)


class StreamDecoder(stream.StreamDecoder):
    __doc__ = stream.StreamDecoder.__doc__

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        topology_dimensions: Mapping[str, Sequence[int]] | None = None,
        allow_missing: bool = False,
        dtype: str = "source",
        topology: Given | None = None,
    ) -> None:
        super().__init__(
            limits=limits,
            topology_dimensions=topology_dimensions,
            allow_missing=allow_missing,
            wire=formats.wiring,
            dtype=dtype,
            topology=formats.topology_of(topology, limits=limits),
        )


class UpdateDecoder(update.UpdateDecoder):
    __doc__ = update.UpdateDecoder.__doc__

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        like: Mapping[str, Any] | None = None,
        state: UpdateState | None = None,
        topology_dimensions: Mapping[str, Sequence[int]] | None = None,
        dtype: str = "source",
        topology: Given | None = None,
    ) -> None:
        super().__init__(
            limits=limits,
            like=like,
            state=state,
            topology_dimensions=topology_dimensions,
            wire=formats.wiring,
            dtype=dtype,
            topology=formats.topology_of(topology, limits=limits),
        )


def units(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: Given | None = None,
) -> Iterator[Unit]:
    """The units of a bitstream in order, headers and parameter sets as structures, payloads as bytes.

    They may be changed, and written by :func:`write_units`.
    """
    return iter(UnitReader(data, limits, _session(topology_dimensions, topology, limits)))


def write_units(
    units: Iterable[Unit],
    *,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: Given | None = None,
) -> bytes:
    """The bitstream of units; see :func:`nnr_codec.bitstream.units.write_units`."""
    return write(units, _session(topology_dimensions, topology, None))


def inspect(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: Given | None = None,
) -> list[UnitInfo]:
    """Facts about each unit of a bitstream, from headers alone."""
    return list(summarise(data, limits, _session(topology_dimensions, topology, limits)))


def tree(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: Given | None = None,
    inferred: bool = False,
    payloads: bool = False,
) -> list[UnitNode]:
    """The syntax elements of a bitstream, a tree for each unit; the units of an aggregate are in its tree.

    Parameters
    ----------
    data, limits, topology_dimensions, topology
        As for :func:`decode`.
    inferred : bool
        Add elements that are not present and have an inferred value.
    payloads : bool
        Add what precedes the levels in payloads.

    Raises
    ------
    BitstreamError, MissingReferenceError
        The bitstream is malformed; :func:`~nnr_codec.bitstream.tree.trees` gives what can be read of it.
    """
    from .decoder import tools

    return tools.tree(
        data,
        limits=limits,
        topology_dimensions=topology_dimensions,
        inferred=inferred,
        payloads=payloads,
        wire=formats.wiring,
        topology=formats.topology_of(topology, limits=limits),
    )


def requirements(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: Given | None = None,
) -> list[Tool]:
    """The tools that a decoder needs for a bitstream; parameters and errors are those of :func:`tree`.

    Of payloads only what precedes the levels is decoded, and in a block the levels before it.
    """
    from .decoder import tools

    given = formats.topology_of(topology, limits=limits)
    return tools.requirements(
        data, limits=limits, topology_dimensions=topology_dimensions, wire=formats.wiring, topology=given
    )


def diff(
    a: Bitstream,
    b: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: Given | None = None,
) -> BitstreamDifference | None:
    """The first difference of two bitstreams: syntax element, or payload, and the first value that comes out otherwise.

    nnr_unit_size follows from what a unit holds; it is no difference as long as something else is.

    Parameters and errors are those of :func:`decode`, except that tensors which cannot be decoded are told in ``note``.

    Returns
    -------
    BitstreamDifference or None
        None when the bitstreams are the same.
    """
    from .difference import diff as compare

    given = formats.topology_of(topology, limits=limits)
    return compare(a, b, limits=limits, topology_dimensions=topology_dimensions, wire=formats.wiring, topology=given)


def verify(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    inputs: Iterable[Bitstream] = (),
    topology: Given | None = None,
) -> Report:
    """Check a bitstream against every rule of the standard that a program can check, and report all violations.

    See :func:`nnr_codec.conformance.verify.verify`; an NNEF topology, in the bitstream or given, is read as well.
    """
    from .conformance.verify import verify as check

    given = formats.topology_of(topology, limits=limits)
    return check(data, limits=limits, topology_dimensions=topology_dimensions, inputs=inputs, topology=given)


def verify_model(source: Source, *, limits: Limits | None = None) -> ModelReport:
    """Check an NNEF model against the rules of NNEF 1.0.3, chapter 6, and report all that is wrong.

    Parameters
    ----------
    source : path, bytes-like or binary file
        A directory, a tar, a gzipped tar, or the text of a graph, of which alone no tensor files are asked for.
    limits : Limits, optional
        What the model may cost.

    Returns
    -------
    ModelReport
        Shapes are not propagated through operations.

    Raises
    ------
    FormatError
        It is no NNEF model, or its container is malformed.
    LimitError
        It asks for more than the limits permit.
    OSError
        It cannot be read.
    """
    from .formats.nnef import recognise
    from .formats.nnef.validate import validate

    with formats.opened(source, limits or Limits()) as file:
        if not recognise(file) and not (isinstance(file, Path) and file.is_dir()):
            raise FormatError("not an NNEF model")
        return validate(file, limits)


def _session(
    topology_dimensions: Mapping[str, Sequence[int]] | None, topology: Given | None, limits: Limits | None
) -> Session:
    """What the first unit sees."""
    return header_session(topology_dimensions, formats.wiring, limits, formats.topology_of(topology, limits=limits))


def _parts(target: Target, resume: bool) -> AbstractContextManager[Parts | None]:
    """What is kept of the work on a target, if anything is to be; ValueError for a target without a name."""
    if not resume:
        return nullcontext()
    if not isinstance(target, (str, os.PathLike)):
        raise ValueError("resume needs a path as the target, beside which parts are kept")
    return parts_of(target, __version__)


def _config(config: EncoderConfig | None, options: Mapping[str, Any]) -> EncoderConfig:
    return replace(config, **options) if config else EncoderConfig(**options)


def _settled(model: Model, config: EncoderConfig) -> EncoderConfig:
    """The options with all amounts of steps of reduction: those that a target decides on give the best SNR."""
    if not open_amounts(config):
        return config

    def snr(tried: EncoderConfig) -> float:
        prepared = _prepared(model, tried)
        data = b"".join(encode_units(prepared, tried))
        found = decode(data, topology=model.topology, allow_missing=True)
        if prepared.pruning:
            found = replace(found, tensors=prepared.pruning.widened(found.tensors))
        return compare_models(model, found).snr

    return with_amounts(config, snr)


def _prepared(model: Model, config: EncoderConfig, reports: list[StepReport] | None = None) -> Prepared:
    """The model as it is coded; FormatError for the text of a graph without the tensors of its variables.

    What steps of ``config.reduce`` do goes into ``reports``, if there are any.
    """
    if model.topology and not model.tensors and (wanted := len(formats.wiring(model.topology).shapes)):
        raise FormatError(f"the model is a graph alone, and its {wanted} variables have no tensor files")
    known = formats.wiring(model.topology) if model.topology and (model.blocks or config.has_blocks) else Wiring()
    if model.topology and any(step.tool == "prune" for step in config.steps):
        smaller = {name: formats.described(model, name)[1] for name in model.pruned if name in model.tensors}
        known = replace(known, channels=formats.channels(model.topology, smaller))
    plain = replace(config, target_size=None, target_ratio=None)

    def note(step: Step, before: Reduced, after: Reduced) -> None:
        if reports is not None and len(reports) < len(config.reduction):
            prepared = prepared_of(after)
            with Pool(1) as pool:
                overhead, sizes = estimation.estimate(prepared, plain, Reader(prepared.model), pool)
            reports.append(step_report(step, before, after, overhead + sum(size for _, size in sizes)))

    return prepare(model, config, known, note)


def _file_name(source: Model | Mapping[str, Array] | Source) -> str:
    return os.path.basename(os.path.normpath(source)) if isinstance(source, (str, os.PathLike)) else ""
