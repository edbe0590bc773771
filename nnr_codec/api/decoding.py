"""Decoding of bitstreams to models."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypedDict, Unpack, cast, overload

from .. import formats
from ..config import check_options
from ..decoder.index import NnrFile
from ..formats import TopologySource
from ..formats.diagnosis import diagnosed
from ..limits import Limits
from ..model import Model, Progress
from .files import checkpoint_for

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..bitstream.source import Bitstream
    from .arguments import Target


class DecodeOptions(TypedDict, total=False):
    """Keyword options of :func:`decode` except ``framework``; a test compares them with its signature."""

    limits: Limits | None
    topology_dimensions: Mapping[str, Sequence[int]] | None
    raw: bool
    allow_missing: bool
    jobs: int
    executor: Executor | None
    dtype: str
    topology: TopologySource | None
    out: Mapping[str, Any] | None


@overload
def decode(data: Bitstream, *, framework: Literal["np"] = "np", **options: Unpack[DecodeOptions]) -> Model: ...


@overload
def decode(data: Bitstream, *, framework: Literal["pt"], **options: Unpack[DecodeOptions]) -> dict[str, Any]: ...


def decode(
    data: Bitstream,
    *,
    framework: Literal["np", "pt"] = "np",
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    raw: bool = False,
    allow_missing: bool = False,
    jobs: int = 1,
    executor: Executor | None = None,
    dtype: str = "source",
    topology: TopologySource | None = None,
    out: Mapping[str, Any] | None = None,
) -> Model | dict[str, Any]:
    """Decode an NNR bitstream.

    Parameters
    ----------
    data : bytes-like, path, URL or binary file
        A complete bitstream of either profile. A URL is a str ``scheme://...``; other schemes than http and https
        require fsspec (extra ``remote``, docs/guides/remote.md).
    framework : {"np", "pt"}
        ``"np"``: return a Model of numpy arrays. ``"pt"``: return a dict of PyTorch tensors by name, for
        ``load_state_dict``; tied tensors are one object.
    limits : Limits, optional
        Resource limits; ``Limits.strict()`` for untrusted input.
    topology_dimensions : mapping of str to sequence of int, optional
        Dimensions of tensors whose units omit them (tensor_dimensions_flag 0); others come from the topology.
    raw : bool
        Return the Rec* tensors of clause 7.3 as coded: without multiplying decomposed tensors, applying local scaling,
        splitting units with several tensors or using side information.
    allow_missing : bool
        Accept a bitstream without some tensors of the topology or reference list; updates may always omit tensors.
    jobs : int
        As for :func:`encode`.
    executor : concurrent.futures.Executor, optional
        As for :func:`encode`; for a bitstream given by path, workers read the units themselves.
    dtype : str
        ``"float32"``, ``"float16"`` or ``"bfloat16"`` (requires ``ml_dtypes``): round all floats to this type, ties to
        even. A finite value that becomes infinite raises ElementError. ``"source"``: restore the original types.
    topology : Topology, Model, path or binary file, optional
        Replaces the topology of the bitstream, if any: a graph, or a model from which only the topology is used.
    out : mapping of str to ndarray or object with a buffer, optional
        Memory for some tensors, by name: writable, aligned, C-contiguous, disjoint, with the shape of the tensor and
        the type that it has without ``out``. A Model contains these arrays, PyTorch tensors are copies. A tensor tied
        to one of them, but not in ``out``, is the same array. If decoding fails, the contents of all arrays in ``out``
        are undefined. Cannot be combined with ``raw``.

    Returns
    -------
    Model or dict of str to torch.Tensor
        Tensors by topology element id, in bitstream order, and the topology, if there is one. Without side information,
        dtypes follow Table 15. One-dimensional tensors of a block have the shape that the topology declares.
        Local scaling is multiplied into the weight unless the network applies it; the variables of a folded batch
        normalization are restored (8.2.1).

    Raises
    ------
    ValueError, TypeError
        An argument is invalid; nothing is written to ``out``.
    FormatError
        The given topology is invalid, or its variables do not match the tensors of the bitstream.
    BitstreamError
        The bitstream is malformed (TruncatedError, ElementError, PayloadError), lacks tensors (IncompleteError) or
        exceeds the limits (LimitError); the error names the unit, syntax element and bit.
    MissingReferenceError
        The bitstream refers to something outside it, such as an earlier update: see UpdateDecoder.
    UnsupportedError
        The profile or the version of the side information is not defined.
    MissingDependencyError
        A dtype requires ``ml_dtypes``, which is not installed (extra ``types``).
    WorkerError
        The executor lost the work on a tensor, or a worker cannot find the bitstream's file.

    Warns
    -----
    PruningWarning
        Masks of pruning information match no tensors and are ignored. All decoding functions issue it once for each
        bitstream, when the result is complete. Masks are never applied to ``raw`` tensors.
    """
    if framework not in ("np", "pt"):
        raise ValueError(f"framework must be 'np' or 'pt', got {framework!r}")
    file = open(data, limits=limits, topology_dimensions=topology_dimensions, dtype=dtype, topology=topology)
    model = file.decode(raw=raw, allow_missing=allow_missing, jobs=jobs, executor=executor, out=out)
    if framework == "np":
        model.attachments = dict(model.attachments)  # which were read on access
        return model
    from ..formats.pytorch.modules import to_state_dict

    return to_state_dict(formats.dequantized(model))


class OpenOptions(TypedDict, total=False):
    """Keyword options of :func:`open`; a test compares them with its signature."""

    limits: Limits | None
    topology_dimensions: Mapping[str, Sequence[int]] | None
    dtype: str
    topology: TopologySource | None


def decode_file(
    data: Bitstream | NnrFile,
    target: Target,
    *,
    format: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    names: Iterable[str] | None = None,
    allow_missing: bool = False,
    jobs: int = 1,
    executor: Executor | None = None,
    resume: bool = False,
    **options: Unpack[OpenOptions],
) -> None:
    """Decode an NNR bitstream into a model file, tensor by tensor; the file appears complete or not at all.

    Only a few tensors are in memory at a time. A tensor that the format cannot represent raises an error when it is
    reached.

    Raises the errors of :func:`decode` and :func:`save`. Warns like :func:`decode`, after the file is written.

    Parameters
    ----------
    data : bytes-like, path, URL, binary file or NnrFile
        A complete bitstream, or one opened by :func:`open`.
    target : path or binary file
    format, overwrite
        As for :func:`save`.
    progress : callable, optional
        Called as ``progress(name, done, total)`` after each tensor.
    names : iterable of str, optional
        Tensors to decode; default: all.
    allow_missing, jobs, executor
        As for :func:`decode`.
    resume : bool, default False
        As for :func:`encode_file`: store decoded tensors in a checkpoint until the model is complete.
    **options
        Options of :func:`open`, unless ``data`` is an open file.
    """
    check_options(decode_file, options, OpenOptions.__annotations__)
    with ExitStack() as stack:
        if not isinstance(data, NnrFile):
            data = stack.enter_context(open(data, **options))
        elif options:
            raise TypeError(f"the bitstream is already open, so {', '.join(options)} cannot be set")
        checkpoint = stack.enter_context(checkpoint_for(target, resume))
        model = stack.enter_context(
            data.deferred(
                progress,
                names=names,
                allow_missing=allow_missing,
                jobs=jobs,
                executor=executor,
                checkpoint=checkpoint,
            )
        )
        if model.topology is None and formats.quantized(whole := replace(model, topology=data.topology)):
            model = formats.dequantized(whole)  # some of its tensors
        if isinstance(target, (str, os.PathLike)):
            formats.save(model, target, format=format, overwrite=overwrite)
        else:
            spool = stack.enter_context(tempfile.TemporaryFile())
            formats.save(model, cast(BinaryIO, spool), format=format)
            spool.seek(0)
            shutil.copyfileobj(spool, target)
    data.warn()


def open(  # as in gzip.open
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    dtype: str = "source",
    topology: TopologySource | None = None,
) -> NnrFile:
    """Open a bitstream as a mapping that decodes each tensor on access.

    Takes the parameters and raises the errors of :func:`decode`. Only headers and the units of requested tensors are
    read from a seekable file or a URL (docs/guides/remote.md). Access raises TruncatedError if the file was shortened
    after opening, and OSError if the file at the URL changed.
    """
    with diagnosed(data, "use nnr encode to compress it"):
        return NnrFile(data, limits, topology_dimensions, dtype=dtype, topology=topology)
