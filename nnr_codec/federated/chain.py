"""Sequences of updates: application in order, and merging into one update."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, BinaryIO, Unpack, cast

from .. import formats
from ..bitstream.performance import Performance
from ..bitstream.source import open_source
from ..bitstream.units import UnitReader
from ..config import MODEL_GOALS, EncoderConfig, EncoderOptions, configured
from ..constants import NNR_MPS
from ..decoder.lineage import Lineage
from ..decoder.update_sequence import UpdateDecoder
from ..errors import EncodeError, MissingReferenceError, NnrError
from ..limits import Limits
from ..model import Array, Model, Progress
from ..syntax.structures import NnrModelParameterSetUnitPayload
from .apply import apply_update, identity
from .folding import fold
from .update import encode_update

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..bitstream.source import Bitstream

    Source = str | os.PathLike[str] | BinaryIO | bytes | bytearray | memoryview

#: Prefix of identities, and number of their characters in messages.
DIGEST = "sha256:"
_SHOWN = len(DIGEST) + 12


def chain_updates(
    base: Model | Mapping[str, Array] | Source, updates: Iterable[Bitstream], *, limits: Limits | None = None
) -> Model | dict[str, Array]:
    """Apply updates in order.

    Parameters
    ----------
    base : Model, mapping of str to ndarray, path, bytes-like or binary file
    updates : iterable of bytes-like, path or binary file
        Results of :func:`nnr_codec.encode_update`: the first update for ``base``, each further update for the model
        after the previous update.
    limits : Limits, optional
        Limits for each update.

    Returns
    -------
    Model or dict of str to ndarray
        The last model, as returned by :func:`nnr_codec.apply_update`; ``base`` if there are no updates.

    Raises
    ------
    MissingReferenceError
        An update does not belong to the current model; the message names its predecessor if possible.
    BitstreamError, FormatError
        As for :func:`nnr_codec.apply_update`.
    """
    model = before = _loaded(base, limits)
    for model in links(before, updates, limits=limits):  # noqa: B007  # the last one is returned
        pass
    return model


def squash_updates(
    base: Model | Mapping[str, Array] | Source,
    updates: Iterable[Bitstream],
    config: EncoderConfig | None = None,
    *,
    limits: Limits | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
    **options: Unpack[EncoderOptions],
) -> bytes:
    """Encode one update that replaces several consecutive updates.

    The result is the same model, bit for bit, so that later updates still apply, unless ``config`` or an option has a
    goal (qp, quality, snr, max_error, target_size or target_ratio) or ``exact=False``.

    Parameters
    ----------
    base, updates, limits
        As for :func:`chain_updates`.
    config, jobs, executor, options
        As for :func:`nnr_codec.encode_update`.

    Raises the errors of both functions.
    """
    before = _loaded(base, limits)
    after = chain_updates(before, updates, limits=limits)
    settings = configured(squash_updates, config, options)
    if settings.exact is False or any(getattr(settings, goal) is not None for goal in MODEL_GOALS):
        settings = configured(squash_updates, config, options, "update")
    else:
        settings = replace(settings, exact=True)
    return encode_update(before, after, settings, jobs=jobs, executor=executor)


def links(
    base: Model | Mapping[str, Array],
    updates: Iterable[Bitstream],
    *,
    names: Sequence[str] = (),
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Iterator[Model | dict[str, Array]]:
    """Yield the model after each update.

    Parameters
    ----------
    base, updates, limits
        As for :func:`chain_updates`.
    names : sequence of str
        Names of the base and of each update in errors.
    progress : callable, optional
        As for :func:`apply_update`; the count begins anew with each update.

    Raises the errors of :func:`chain_updates`.
    """
    if isinstance(updates, (str, os.PathLike, bytes, bytearray, memoryview)):
        raise TypeError("updates must be a list of bitstreams, got a single one")
    limits, updates = limits or Limits(), list(updates)
    names = names or ["the base", *map(_name, updates, count(1))]
    contents = [_content(update, limits) for update in updates]
    model, decoder = base, UpdateDecoder(limits=limits)
    found = ""  # identity of the base, computed on demand
    for k, content in enumerate(contents):
        try:
            lineage = Lineage.parse(base_of(content, limits))
            if lineage and lineage.base.startswith(DIGEST) and lineage.base != (found := found or identity(base)):
                raise MissingReferenceError(
                    f"the update is for the model {lineage.base}; {names[0]} is {found}; use the model that it updates"
                )
            change = decoder.decode(content, progress) if lineage else content
            model = apply_update(model, change, limits=limits, progress=progress)
        except MissingReferenceError as error:
            if (message := _astray(k, base, model, contents, names, limits)) is None:
                error.add_note(names[k + 1])
                raise
            raise MissingReferenceError(message) from None
        except NnrError as error:
            error.add_note(names[k + 1])
            raise
        yield model


def _astray(
    k: int,
    base: Model | Mapping[str, Array],
    model: Model | Mapping[str, Array],
    contents: Sequence[memoryview],
    names: Sequence[str],
    limits: Limits,
) -> str | None:
    """Explain that update ``k`` belongs to another model, and name its predecessor; None if the reason is unknown."""
    wanted, found = base_of(contents[k], limits), identity(model)
    if not wanted.startswith(DIGEST) or Lineage.parse(wanted) or wanted == found:
        return None
    before = f"the model after {names[k]}" if k else names[0]
    message = f"{names[k + 1]} is an update of {_short(wanted)}, {before} is {_short(found)}"
    if len(contents) == 1:
        return f"{message}; use the model that it updates, or add the updates in between"
    leader = _leader(wanted, base, contents, names, limits)
    return f"{message}; " + (f"it follows {leader}" if leader else "none of the other updates produces that model")


def _leader(
    wanted: str,
    base: Model | Mapping[str, Array],
    contents: Sequence[memoryview],
    names: Sequence[str],
    limits: Limits,
) -> str | None:
    """Return the name of the base or update that yields the requested model, trying all applicable sequences."""
    bases = [base_of(content, limits) for content in contents]
    known: set[str] = set()
    waiting: list[tuple[str, Model | Mapping[str, Array]]] = [(names[0], base)]
    while waiting:
        name, model = waiting.pop()
        digests = set(_identities(model)) - known
        if wanted in digests:
            return name
        known |= digests
        for k, content in enumerate(contents):
            if bases[k] in digests:
                with suppress(NnrError):
                    waiting.append((names[k + 1], apply_update(model, content, limits=limits)))
    return None


def _identities(model: Model | Mapping[str, Array]) -> Iterator[str]:
    """Yield the identity of a model, and of the model with folded batch normalizations."""
    yield identity(model)
    with suppress(EncodeError):
        yield identity(fold(model if isinstance(model, Model) else Model(model)))


def base_of(data: Bitstream, limits: Limits | None = None) -> str:
    """Return base_model_id of a bitstream (6.4.4.3); empty if it has none."""
    for unit in UnitReader(data, limits):
        if unit.header.nnr_unit_type == NNR_MPS:
            return Performance.of(cast(NnrModelParameterSetUnitPayload, unit.structure)).base_model_id or ""
    return ""


def _content(update: Bitstream, limits: Limits) -> memoryview:
    source = open_source(update, limits)
    return source.view(0, source.size)


def _name(update: Bitstream, number: int) -> str:
    return os.fspath(update) if isinstance(update, (str, os.PathLike)) else f"update {number}"


def _short(digest: str) -> str:
    return f"{digest[:_SHOWN]}..."


def _loaded(model: Model | Mapping[str, Array] | Source, limits: Limits | None) -> Model | dict[str, Array]:
    if isinstance(model, Model):
        return model
    return dict(model) if isinstance(model, Mapping) else formats.load(model, limits=limits)
