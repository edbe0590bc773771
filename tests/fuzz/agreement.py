"""All ways of decoding agree on an input: they return the same model bit for bit, or all of them reject it.

These are compared:

- `decode` of bytes, of a seekable file, and, for some inputs, of a path, in two threads and by `NnrFile.deferred`: the
  same model, the same error with the same message, the same warnings;
- `open`: it raises the error of `decode`, or ``file[name]`` and the joined rows equal the tensors of `decode`;
- `NnrFile.decode` with a state, bitstream by bitstream, `StreamDecoder` in chunks of any size, `UpdateDecoder`;
- `verify`: no finding prevents decoding of a bitstream that decodes, and a rejected one has a violation.

Only these differences are legitimate:

- `open` decodes nothing. Only `decode` rejects damaged or missing tensors, exceeded totals and topology mismatches: an
  affected tensor has the same error, and other tensors are readable. `open` warns with the first tensor, if any.
- `rows` starts at entry points, so it may report a different error if a tensor has several.
- `decode` has no state. It accepts an update that names another bitstream or payload; readers with a state reject it.
- `decode` accepts one bitstream. If others follow, `StreamDecoder` is compared with each of them, one after another.
  After others, an input that does not begin with an NNR_STR is a part of the bitstream before.
- `StreamDecoder` yields each tensor when it is complete, and not in the order of the model.
- `UpdateDecoder` adds zeros for omitted tensors; these are not compared.
- Readers that read all headers first find another error than readers that decode in order. Therefore only the existence
  of an error is compared with `StreamDecoder`.
- `verify` reports masks that are not applied, for which decoders warn. It may report missing tensors as a warning.
- Decoders accept an update whose base_model_id starts a new sequence. `verify` may report it as out of order.
"""

from __future__ import annotations

import copy
import io
import random
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

import nnr_codec as nnr
from nnr_codec.conformance.report import ReportBuilder
from nnr_codec.conformance.verify import unit_type
from nnr_codec.constants import NNR_STR
from nnr_codec.decoder.pruning import PruningWarning
from nnr_codec.errors import (
    FormatError,
    IncompleteError,
    LimitError,
    MissingReferenceError,
    NnrError,
)
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Model, Topology

from .seeds import Seed

#: The strict limits with smaller tensors, so that the results of all ways fit into 64 MiB.
LIMITS = replace(
    Limits.strict(),
    max_tensor_elements=1 << 18,
    max_tensor_bytes=1 << 20,
    max_total_bytes=4 << 20,
)

#: Inverse shares of inputs that threads decode, also from a path, and of inputs that arrive byte by byte.
THREADS, BYTES = 64, 32

_LACKS_TOPOLOGY = "it has no NNR_TPL"

#: A tensor: name, type, shape and bytes.
Named = tuple[str, str, tuple[int, ...], bytes]


def named(tensors: Mapping[str, Array]) -> tuple[Named, ...]:
    """Return the compared properties of each tensor."""
    return tuple((name, tensor.dtype.name, tensor.shape, tensor.tobytes()) for name, tensor in tensors.items())


def facts(model: Model) -> tuple[object, ...]:
    """Return the compared properties of a model."""
    rest = model.metadata, list(model.pruned), model.format, model.aliases, model.topology
    return named(model.tensors), *rest


@dataclass(frozen=True)
class Outcome:
    """Result or error of one way of decoding, and its warnings."""

    result: Any = None
    error: NnrError | None = None
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, call: Callable[[], Any]) -> Outcome:
        """Call a way; other exceptions and other warnings are findings."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("error")
            warnings.simplefilter("always", PruningWarning)
            try:
                result, error = call(), None
            except NnrError as refusal:
                result, error = None, refusal
        return cls(result, error, tuple(str(warning.message) for warning in caught))

    @property
    def refusal(self) -> tuple[str, str] | None:
        """Class and message of the error."""
        return self.error and (type(self.error).__name__, str(self.error))

    def __str__(self) -> str:
        """Return one line of text."""
        return f"{self.refusal or 'a result'}{', and warnings' if self.warnings else ''}"


def same(what: str, one: Outcome, other: Outcome) -> None:
    """Check that two ways have the same result or the same error, and the same warnings."""
    assert one.refusal == other.refusal, f"{what}: {one}, {other}"
    assert one.result == other.result, f"{what}: other results"
    assert one.warnings == other.warnings, f"{what}: other warnings {one.warnings} {other.warnings}"


def alike(what: str, one: Outcome, other: Outcome) -> None:
    """Check that two ways are the same, except that errors may differ."""
    assert (one.error is None) == (other.error is None), f"{what}: {one}, {other}"
    if not one.error:
        same(what, one, other)


# ------------------------------------------------------------------------------------------------ the ways
def agree(data: bytes, seed: Seed, rnd: random.Random) -> object:
    """Decode an input in all ways, and compare; raise the error of `decode` if all reject it."""
    options = seed.options | {"limits": LIMITS}
    decoded = Outcome.of(lambda: facts(nnr.decode(data, **options)))
    same("of a file", decoded, Outcome.of(lambda: facts(nnr.decode(io.BytesIO(data), **options))))
    if not rnd.randrange(THREADS):
        same("in threads", decoded, Outcome.of(lambda: facts(nnr.decode(data, jobs=2, **options))))
        same("of a path", decoded, Outcome.of(lambda: _of_a_path(data, options)))
        alike("deferred", decoded, Outcome.of(lambda: _deferred(data, options)))
    _open(data, options, decoded, rnd)
    _with_state(data, seed, options, decoded, rnd)
    if decoded.error:
        raise decoded.error
    return decoded.result


def _of_a_path(data: bytes, options: dict[str, Any]) -> object:
    with tempfile.TemporaryDirectory(prefix="nnr-fuzz-") as folder:
        path = Path(folder, "m.nnr")
        path.write_bytes(data)
        return facts(nnr.decode(path, **options))


def _deferred(data: bytes, options: dict[str, Any]) -> object:
    with nnr.open(data, **options) as file:
        with file.deferred() as model:
            found = facts(model)
        file.warn()
    return found


def _open(data: bytes, options: dict[str, Any], decoded: Outcome, rnd: random.Random) -> None:
    """Compare single tensors, and rows of them, with `decode`."""
    opened = Outcome.of(lambda: nnr.open(data, **options))
    if opened.error:
        same("open", opened, replace(decoded, warnings=()))
        return
    file = opened.result
    names = Outcome.of(lambda: list(file))
    if names.error:
        same("names", names, decoded)
        return
    each: list[Outcome] = [Outcome.of(lambda name=name: named({name: file[name]})) for name in file]  # type: ignore[misc]
    told = tuple(message for one in each for message in one.warnings)
    for name, whole in zip(file, each, strict=True):
        if file.info[name].shape:
            rows = Outcome.of(lambda name=name: named({name: _rows(file, name, rnd)}))  # type: ignore[misc]
            alike(f"rows of {name!r}", replace(whole, warnings=()), replace(rows, warnings=()))
    if decoded.error is None:
        joined = tuple(tensor for one in each for tensor in one.result or (one.refusal,))
        assert joined == decoded.result[0], "open: other tensors"
        assert told == decoded.warnings or not names.result, f"open: warnings {told}"
    elif not _of_the_whole(decoded.error):
        assert decoded.refusal in [one.refusal for one in each], f"open: no tensor has the error {decoded}"


def _of_the_whole(error: NnrError) -> bool:
    """Return whether an error concerns the whole bitstream: missing tensors, topology mismatch, exceeded total."""
    return isinstance(error, (FormatError, IncompleteError, LimitError)) or _LACKS_TOPOLOGY in str(error)


def _rows(file: nnr.NnrFile, name: str, rnd: random.Random) -> Array:
    """Return a tensor joined from its rows."""
    info = file.info[name]
    count = info.shape[info.first_tensor_dimension_shift]
    cut = rnd.randint(0, count)
    parts = [file.rows(name, 0, cut), file.rows(name, cut, count)]
    assert [part.shape[info.first_tensor_dimension_shift] for part in parts] == [cut, count - cut]
    joined: Array = np.concatenate(parts, axis=info.first_tensor_dimension_shift)
    return joined


# ------------------------------------------------------------------------------------------------ with state
class Sequence:
    """Sequence of bitstreams, decoded with a state.

    Attributes
    ----------
    outcomes : list of Outcome
        Outcome of each bitstream; nothing is decoded after an error.
    is_clean : bool
        Whether `verify` finds no violation in any of them.
    """

    def __init__(self, seed: Seed, options: dict[str, Any]) -> None:
        self.outcomes: list[Outcome] = []
        self._options, self._state = options, nnr.UpdateState(keep_digests=True)
        self._context: Topology | None = None
        self._updates = nnr.UpdateDecoder(**options)
        for data in seed.before:
            self.decode(data)
        ends = range(len(seed.before))
        self.is_clean = not any(
            nnr.verify(seed.before[end], **options, inputs=seed.before[:end]).violations for end in ends
        )

    def copy(self) -> Sequence:
        """Return another sequence that continues from here."""
        other = copy.copy(self)
        other.outcomes, other._updates = [*self.outcomes], copy.copy(self._updates)
        return other

    def decode(self, data: bytes) -> Outcome:
        """Decode the next bitstream, and compare UpdateDecoder."""
        state, options, context = self._state.fork(), self._options, None

        def decode() -> object:
            nonlocal context
            file = nnr.NnrFile(
                data,
                options["limits"],
                options.get("topology_dimensions"),
                topology=options.get("topology"),
                before=self._context,
            )
            found = facts(file.decode(state=state))
            context = file.context
            return found

        expected = Outcome.of(decode)
        self.outcomes.append(expected)
        _update(data, self._updates, expected)
        if not expected.error:
            self._state, self._context = state, context
        return expected

    def expected(self) -> Outcome:
        """Return the expected outcome of a stream of all bitstreams."""
        error = self.outcomes[-1].error
        messages = tuple(message for one in self.outcomes for message in one.warnings)
        if error:
            return Outcome(None, error, messages)
        return Outcome(by_name(tensor for one in self.outcomes for tensor in one.result[0]), None, messages)


#: Bitstreams before a seed, by its name.
_SEQUENCES: dict[str, Sequence] = {}


def _before(seed: Seed, options: dict[str, Any]) -> Sequence:
    if seed.name not in _SEQUENCES:
        _SEQUENCES[seed.name] = Sequence(seed, options)
    return _SEQUENCES[seed.name].copy()


def _with_state(data: bytes, seed: Seed, options: dict[str, Any], decoded: Outcome, rnd: random.Random) -> None:
    """Compare the ways with a state, and `verify`."""
    sequence = _before(seed, options)
    parts = list(_bitstreams(data, options)) if "a second NNR_STR" in str(decoded.error) else [data]
    for part in parts:
        if sequence.decode(part).error:
            break
    last = sequence.outcomes[-1]
    if not seed.before and len(parts) == 1 and not _is_follower(data, last.error, options):
        same("with a state", last, decoded)
    _verify(data, seed, options, last if len(parts) == 1 else decoded, sequence.is_clean)
    if seed.before and unit_type(memoryview(data)) != NNR_STR:
        return  # in a stream it belongs to the bitstream before
    whole, expected = b"".join((*seed.before, data)), sequence.expected()
    for size in (rnd.randint(1, len(whole) or 1), *((1, len(whole)) if not rnd.randrange(BYTES) else ())):
        found = Outcome.of(lambda: _stream(whole, size, options))  # noqa: B023
        alike(f"StreamDecoder by {size} bytes", expected, found)


def _is_follower(data: bytes, error: NnrError | None, options: dict[str, Any]) -> bool:
    """Return whether a bitstream is rejected because it refers to another bitstream or to its payload."""
    return isinstance(error, MissingReferenceError) and (
        "parent_node_payload" in str(error) or nnr.open(data, **options).lineage is not None
    )


def _bitstreams(data: bytes, options: dict[str, Any]) -> Iterator[bytes]:
    """Return the bitstreams of an input, as far as units are readable; at least one."""
    trailing = options | {"limits": replace(LIMITS, allow_trailing=True)}
    while True:
        stop = None
        with suppress(NnrError):
            stop = nnr.open(data, **trailing)._parser.stop
        yield data[:stop]
        if stop is None:
            return
        data = data[stop:]


def _update(data: bytes, decoder: nnr.UpdateDecoder, expected: Outcome) -> None:
    """Compare the update decoder with the outcome of a bitstream in its state."""
    state = decoder.state
    got = Outcome.of(lambda: decoder.decode(data))
    if got.error:
        assert decoder.state is state, "UpdateDecoder: another state after an error"
    alike("UpdateDecoder", replace(expected, result=None), replace(got, result=None))
    if not got.error:
        update = got.result
        tensors = {name: update[name] for name in update if name not in update.left_out}
        assert named(tensors) == expected.result[0], "UpdateDecoder: other tensors"
        assert (update.metadata, update.topology) == (expected.result[1], expected.result[5]), "UpdateDecoder: texts"


def _stream(data: bytes, size: int, options: dict[str, Any]) -> object:
    decoder, found = nnr.StreamDecoder(**options), list[Named]()
    for start in range(0, len(data), max(1, size)):
        for name, tensor in decoder.feed(data[start : start + size]):
            found += named({name: tensor})
    for name, tensor in decoder.finish():
        found += named({name: tensor})
    return by_name(found)


def by_name(tensors: Iterable[Named]) -> tuple[Named, ...]:
    """Return tensors of successive bitstreams in an order that does not depend on their arrival."""
    return tuple(sorted(tensors, key=itemgetter(0)))


# ------------------------------------------------------------------------------------------------ verify
@contextmanager
def refusals() -> Iterator[list[NnrError]]:
    """Collect the decoding errors that `verify` records while the block runs."""
    found, refuse = list[NnrError](), ReportBuilder.refuse

    def recorded(self: ReportBuilder, error: NnrError, *rest: Any, **options: Any) -> None:
        found.append(error)
        refuse(self, error, *rest, **options)

    ReportBuilder.refuse = recorded  # type: ignore[method-assign]
    try:
        yield found
    finally:
        ReportBuilder.refuse = refuse  # type: ignore[method-assign]


def _is_restart(data: bytes, error: NnrError, options: dict[str, Any]) -> bool:
    """Return whether an update is rejected as out of order although its base_model_id starts a new sequence."""
    if not isinstance(error, MissingReferenceError):
        return False
    lineage = nnr.open(data, **options).lineage
    return lineage is not None and not lineage.token


def _verify(data: bytes, seed: Seed, options: dict[str, Any], outcome: Outcome, is_clean: bool) -> None:
    """Compare the findings of `verify` with the outcome of decoding in the same state."""
    with refusals() as found:
        report = nnr.verify(data, **options, inputs=seed.before)
    if outcome.error is None:
        found = [
            error for error in found if str(error) not in outcome.warnings and not _is_restart(data, error, options)
        ]
        assert not (found and is_clean), f"verify: {type(found[0]).__name__} {found[0]} of what decodes"
    elif not isinstance(outcome.error, MissingReferenceError):
        is_lacking = (isinstance(outcome.error, IncompleteError) or _LACKS_TOPOLOGY in str(outcome.error)) and (
            report.warnings
        )
        assert report.violations or is_lacking, f"verify: no violation of what is refused: {outcome}"
