"""Encoding of models to bitstreams."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, BinaryIO, Unpack

from .. import __version__, formats
from ..config import EncoderConfig, EncoderOptions, configured
from ..encoder.encode import encode_units
from ..encoder.tensor_report import TensorReport
from .preparation import prepared_model, with_all_amounts

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..model import Progress
    from ..parallel.checkpoint import Checkpoint
    from ..report.encoded import EncodeReport
    from .arguments import ModelSource, Target


def encode(
    model: ModelSource,
    config: EncoderConfig | None = None,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    **options: Unpack[EncoderOptions],
) -> bytes:
    """Encode a model into an NNR bitstream.

    Parameters
    ----------
    model : Model, mapping of str to ndarray or torch.Tensor, torch.nn.Module, path, bytes-like or binary file
        Tensors of any shape and any type of :data:`nnr_codec.dtypes.STORED_TYPES`, including types of
        ``ml_dtypes`` (bfloat16, float8, int4). Properties that NNR cannot represent, such as a shape without elements,
        are stored in a side-information record (docs/reference/side-information.md), unless ``side_info`` is False.
    config : EncoderConfig, optional
        Default: the preset ``"default"``.
    jobs : int, default 1
        Without an executor: number of threads. With an executor: its number of workers, where 1 means the number of
        processors of this machine. The result does not depend on it.
    executor : concurrent.futures.Executor, optional
        Used instead of threads: an executor with threads, processes or other machines (docs/guides/executors.md). For
        models in files, workers get paths and read the tensors themselves. The call must not come from one of its
        workers, which would deadlock.
    **options
        Fields of EncoderConfig that replace the fields of ``config`` or of the preset named by ``preset``:
        ``exact=True`` encodes losslessly.

    Returns
    -------
    bytes
        The bitstream. It is the same for the same input and options, on every machine with the same deflate results.

    Raises
    ------
    EncodeError
        A tensor cannot be coded with these options; the message names it.
    FormatError, LimitError, OSError
        As for :func:`load`, for a model file.
    TypeError
        An option is unknown, or both ``config`` and ``preset`` are given.
    ValueError
        ``jobs`` is less than 1.
    WorkerError
        The executor lost the work on a tensor, or a worker cannot find the model's file.

    Warns
    -----
    EncodeWarning
        An option has no effect on the model or on some of its blocks, a rule matches no tensor, or a lossless bitstream
        takes fewer bytes.
    LossWarning
        Matrices are coded with a large error.
    SaturationWarning
        Values are out of the range of ``fixed_point``.
    """
    loaded = formats.as_model(model)
    settings = with_all_amounts(loaded, configured(encode, config, options))
    prepared = prepared_model(loaded, settings)
    return b"".join(encode_units(prepared, settings, jobs=jobs, executor=executor, asked=settings))


def encode_file(
    source: ModelSource,
    target: Target,
    config: EncoderConfig | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
    statistics: bool = False,
    resume: bool = False,
    **options: Unpack[EncoderOptions],
) -> EncodeReport:
    """Encode a model into a file, unit by unit; the file appears complete or not at all.

    For a model in a file, only a few tensors are in memory at a time.

    Parameters
    ----------
    source, config, jobs, executor, options
        As ``model`` and the other parameters of :func:`encode`.
    target : path or binary file
    overwrite : bool, default False
        Replace an existing file; otherwise raise FileExistsError.
    progress : callable, optional
        Called as ``progress(name, done, total)`` after each tensor, in the calling thread.
    statistics : bool, default False
        Decode the output and measure the data for ``to_json``, ``to_html`` and ``save`` of the report.
    resume : bool, default False
        Store finished units in a checkpoint, the folder ``target`` with ``.parts`` appended, until the file is
        complete. After an interruption the same call resumes: it plans all tensors again, and codes the missing units.
        The result is the same. ``target`` must be a path, otherwise ValueError is raised.

    Returns
    -------
    EncodeReport
        Sizes in bytes and errors of the tensors.

    Raises
    ------
    FileExistsError
        The target exists and ``overwrite`` is False, or the folder of the checkpoint is not a checkpoint of this
        version.
    NnrError
        As :func:`encode`, and warns like it.
    """
    # Not at the top: `encode` does not wait for reports and files.
    from ..files import output_file
    from ..report.encoded import EncodeReport, Notes, Witness
    from .files import checkpoint_for, file_name

    started = time.perf_counter()
    loaded = formats.as_model(source)
    settings = with_all_amounts(loaded, configured(encode_file, config, options))
    report = EncodeReport(source=file_name(source), config=settings, version=__version__)
    prepared = prepared_model(loaded, settings, report.steps)

    notes = Notes(prepared, report)

    def note(tensor: TensorReport) -> None:
        if notes.take(tensor) and progress:
            progress(tensor.name, len(report.tensors), len(prepared.restored.tensors))

    def write(file: BinaryIO, checkpoint: Checkpoint | None) -> None:
        nonlocal started
        witness = Witness(prepared, report) if statistics else None
        for unit in encode_units(
            prepared,
            settings,
            note,
            jobs=jobs,
            executor=executor,
            statistics=statistics,
            checkpoint=checkpoint,
            asked=settings,
        ):
            report.nbytes += len(unit)
            file.write(unit)
            if witness:
                witness.take(unit)
        if witness:
            witness.finish()
            started += witness.seconds

    with checkpoint_for(target, resume) as checkpoint:
        if isinstance(target, (str, os.PathLike)):
            with output_file(target, overwrite=overwrite) as file:
                write(file, checkpoint)
        else:
            write(target, checkpoint)
    report.seconds = time.perf_counter() - started
    return report
