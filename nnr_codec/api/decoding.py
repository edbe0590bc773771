"""From bitstreams to models."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypedDict, Unpack, cast, overload

from .. import formats
from ..config import check_options
from ..decoder.index import NnrFile
from ..formats import TopologySource
from ..limits import Limits
from ..model import Model
from .files import checkpoint_for

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..bitstream.source import Bitstream
    from .arguments import Target


class DecodeOptions(TypedDict, total=False):
    """Keyword options of :func:`decode` except ``framework``, as a test checks."""

    limits: Limits | None
    topology_dimensions: Mapping[str, Sequence[int]] | None
    raw: bool
    allow_missing: bool
    jobs: int
    executor: Executor | None
    dtype: str
    topology: TopologySource | None


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
) -> Model | dict[str, Any]:
    """Decode an NNR bitstream.

    Parameters
    ----------
    data : bytes-like, path or binary file
        A whole bitstream of either profile.
    framework : {"np", "pt"}
        ``"np"``: return a Model of numpy arrays. ``"pt"``: return a dict of PyTorch tensors by name, for
        ``load_state_dict``; tied tensors are one object.
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
    Model or dict of str to torch.Tensor
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

    Warns
    -----
    PruningWarning
        Masks of pruning information fit no tensors, and are not applied. All ways of decoding issue it once for each
        bitstream, when the result is complete; ``raw`` tensors are without masks in any case.
    """
    if framework not in ("np", "pt"):
        raise ValueError(f"framework is 'np' or 'pt', not {framework!r}")
    file = open(data, limits=limits, topology_dimensions=topology_dimensions, dtype=dtype, topology=topology)
    model = file.decode(raw=raw, allow_missing=allow_missing, jobs=jobs, executor=executor)
    if framework == "np":
        return model
    from ..formats.pytorch.modules import to_state_dict

    return to_state_dict(model)


class OpenOptions(TypedDict, total=False):
    """Keyword options of :func:`open`, as a test checks."""

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
    progress: Callable[[str], None] | None = None,
    names: Iterable[str] | None = None,
    allow_missing: bool = False,
    jobs: int = 1,
    executor: Executor | None = None,
    resume: bool = False,
    **options: Unpack[OpenOptions],
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
        As for :func:`encode_file`: store decoded tensors until the model is complete.
    **options
        Those of :func:`open`, unless ``data`` is open.

    Raises what :func:`decode` and :func:`save` raise. Warns as :func:`decode` does, when the file is there.
    """
    check_options(decode_file, options, OpenOptions.__annotations__)
    with ExitStack() as stack:
        if not isinstance(data, NnrFile):
            data = stack.enter_context(open(data, **options))
        elif options:
            raise TypeError(f"the bitstream is open already, and {', '.join(options)} cannot change that")
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
        if isinstance(target, (str, os.PathLike)):
            formats.save(model, target, format=format, overwrite=overwrite)
        else:
            whole = stack.enter_context(tempfile.TemporaryFile())
            formats.save(model, cast(BinaryIO, whole), format=format)
            whole.seek(0)
            shutil.copyfileobj(whole, target)
    data.warn()


def open(  # as in gzip.open
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    dtype: str = "source",
    topology: TopologySource | None = None,
) -> NnrFile:
    """Open a bitstream as a mapping that decodes a tensor when it is asked for.

    Parameters and errors are those of :func:`decode`. Of a file that can be sought only headers are read, and the units
    of the tensors that are asked for; TruncatedError where somebody has cut it short meanwhile.
    """
    return NnrFile(data, limits, topology_dimensions, dtype=dtype, topology=topology)
