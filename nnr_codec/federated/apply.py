"""Application of an update to its base model, which the update identifies by a digest."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO, overload

import numpy as np

from .. import formats
from ..conformance.digest import TensorDigest, model_digest
from ..decoder.index import NnrFile
from ..decoder.restore import BITS, UPDATE
from ..decoder.state import UpdateState
from ..decoder.update_sequence import Update
from ..dtypes import bit_patterns, stored_type
from ..errors import EncodeError, FormatError, MissingReferenceError
from ..limits import Limits
from ..model import Array, Model, Progress, Topology
from .difference import Kind, add, fits
from .folding import fold

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..bitstream.source import Bitstream

    Source = str | os.PathLike[str] | BinaryIO | bytes | bytearray | memoryview

#: Form of the results of :func:`identity`.
_IDENTITY = re.compile("sha256:[0-9a-f]{64}")


def identity(model: Model | Mapping[str, Array] | Source) -> str:
    """Return the identity of a model: the digest of names, dtypes, shapes and bits of its tensors.

    Parameters
    ----------
    model : Model, mapping of str to ndarray, path, bytes-like or binary file

    Returns
    -------
    str
        ``sha256:`` and the 64 hexadecimal digits of ``nnr verify --digest``; base_model_id of updates (6.4.4.3).

    Raises
    ------
    FormatError
        A tensor has an unsupported dtype, or the file is malformed.
    """
    entries = []
    for name, tensor in formats.as_model(model).tensors.items():
        try:
            entries.append(TensorDigest.of(name, np.asarray(tensor)))
        except FormatError as error:
            error.within(f"tensor {name!r}", tensor=name)
            raise
    return f"sha256:{model_digest(entries)}"


@overload
def apply_update(
    base: Model | Source,
    data: Bitstream | NnrFile | Mapping[str, Array],
    *,
    limits: Limits | None = None,
    check: bool = True,
    progress: Progress | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
) -> Model: ...
@overload
def apply_update(
    base: Mapping[str, Array],
    data: Bitstream | NnrFile | Mapping[str, Array],
    *,
    limits: Limits | None = None,
    check: bool = True,
    progress: Progress | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
) -> dict[str, Array]: ...
def apply_update(
    base: Model | Mapping[str, Array] | Source,
    data: Bitstream | NnrFile | Mapping[str, Array],
    *,
    limits: Limits | None = None,
    check: bool = True,
    progress: Progress | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
) -> Model | dict[str, Array]:
    """Apply an update to its base model.

    Sums are computed in float32 (float64 for float64) and rounded to the dtypes of the base; integers wrap. If the
    update was made for folded batch normalizations (8.2.1), according to its base_model_id, the base is folded first.

    Parameters
    ----------
    base : Model, mapping of str to ndarray, path, bytes-like or binary file
        The base model. It is not changed.
    data : bytes-like, path or binary file; NnrFile; Update; or mapping of str to ndarray
        The bitstream of an update that needs no earlier update, or the result of UpdateDecoder; a mapping contains
        differences.
    limits : Limits, optional
        Limits for the bitstream. Differences must have the shapes of the base tensors in any case.
    check : bool
        Require that ``base`` has the identity that the update names. Base names of other software, in another form, are
        not checked. False: use the base as it is, without folding.
    progress : callable, optional
        Called as ``progress(name, done, total)`` after each tensor of a bitstream.
    jobs, executor
        As for :func:`nnr_codec.decode`.

    Returns
    -------
    Model or dict of str to ndarray
        A dict for a mapping of tensors, and a Model for a checkpoint with other values. Tensors are in the order of the
        base, followed by new tensors; unchanged tensors are the objects of the base. Topology and metadata come from
        the update if it has them, else from the base.

    Raises
    ------
    MissingReferenceError
        The update belongs to another base, or continues an earlier update.
    FormatError
        The data is not an update, or a difference does not match its tensor in the base; the message names the tensor.
    BitstreamError
        The bitstream is malformed or exceeds the limits.
    """
    model = formats.as_model(base)
    as_dict = isinstance(base, Mapping) and base.keys() == model.tensors.keys()
    if isinstance(data, Mapping) and not isinstance(data, NnrFile):
        change = _Change(dict(data))
        if isinstance(data, Update):
            change = _Change(dict(data), data.whole, data.base_model_id, data.metadata, data.topology, data.by_exponent)
        model = _checked(model, change.base_model_id, check)
    else:
        file = data
        if not isinstance(file, NnrFile):
            file = NnrFile(file, limits, before=model.topology)
        if not file.is_update:
            raise FormatError("the bitstream is a whole model, not an update", hint="use nnr decode")
        model = _checked(model, file.performance.base_model_id, check)
        whole = file.whole
        for name, info in file.info.items():  # before any allocation
            if name not in whole:
                _check_shape(name, info.shape, model)
        content = file.decode(progress, state=UpdateState(), allow_missing=True, jobs=jobs, executor=executor)
        tensors, ordered = dict(content.tensors), file.side.by_exponent
        change = _Change(tensors, whole, None, content.metadata, content.topology, ordered)
        del content  # releases each difference after it is added
    tensors = _sums(model, change)
    if as_dict:
        return tensors
    return replace(
        model,
        tensors=tensors,
        topology=change.topology or model.topology,
        metadata={**model.metadata, **{key: value for key, value in change.metadata.items() if key != UPDATE}},
        aliases=_ties(model, tensors),
    )


@dataclass(frozen=True)
class _Change:
    """Contents of an update, independent of their source; see Update."""

    tensors: dict[str, Array]
    whole: frozenset[str] = frozenset()
    base_model_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    topology: Topology | None = None
    by_exponent: frozenset[str] = frozenset()


def _checked(base: Model, wanted: str | None, check: bool) -> Model:
    """Return the base of an update, folded if the update names the folded model."""
    if not check or wanted is None or not _IDENTITY.fullmatch(wanted):
        return base
    found = identity(base)
    if found == wanted:
        return base
    try:
        folded = fold(base)
    except EncodeError:  # nothing to fold
        folded = base
    if folded is not base and identity(folded) == wanted:
        return folded
    raise MissingReferenceError(
        f"the update is for the model {wanted}, but the given model is {found}; use the base model of the update"
    )


def _check_shape(name: str, shape: tuple[int, ...], base: Model) -> None:
    """Raise FormatError unless a tensor of the base may have a difference of this shape."""
    if name not in base.tensors:
        raise FormatError(f"the update has a difference of tensor {name!r}, which the base model lacks", tensor=name)
    _, known = formats.described(base, name)
    if not fits(shape, known):
        raise FormatError(f"the update has a difference of shape {shape} for tensor {name!r} of shape {known}")


def _sums(base: Model, change: _Change) -> dict[str, Array]:
    """Return all tensors with the update applied; removes the tensors from the update."""
    bits = change.metadata.get(UPDATE) == BITS
    for name in change.tensors:
        if name not in change.whole:
            _check_shape(name, np.shape(change.tensors[name]), base)
    tensors: dict[str, Array] = {}
    for name in [*base.tensors, *(name for name in change.tensors if name not in base.tensors)]:
        if name not in change.tensors:
            tensors[name] = base.tensors[name]
            continue
        array = np.asarray(change.tensors.pop(name))
        ordered = name in change.by_exponent
        tensors[name] = array if name in change.whole else _sum(name, base.tensors[name], array, bits, ordered)
    return tensors


def _sum(name: str, base: Array, array: Array, bits: bool, by_exponent: bool) -> Array:
    """Return one tensor with its difference applied; ``bits``: the update has differences of bit patterns."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        if not array.any():
            return base
    before = np.asarray(base)
    try:
        kind: Kind = "bits" if bits and _are_bits(before, array) else "difference"
        return add(before, array, kind, by_exponent=by_exponent)
    except FormatError as error:
        error.within(f"tensor {name!r}", tensor=name)
        raise


def _are_bits(base: Array, array: Array) -> bool:
    """Return whether a difference in an update consists of bit patterns: integers in place of floats."""
    kinds = [stored.kind if (stored := stored_type(one.dtype)) else "" for one in (base, array)]
    return kinds in (["f", "i"], ["f", "u"])


def _ties(base: Model, tensors: Mapping[str, Array]) -> dict[str, str]:
    """Return the ties of the base that still hold for these tensors."""
    return {name: target for name, target in base.aliases.items() if _alike(tensors.get(name), tensors.get(target))}


def _alike(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None or one.dtype.name != other.dtype.name or one.shape != other.shape:
        return False
    return one is other or np.array_equal(bit_patterns(one), bit_patterns(other))
