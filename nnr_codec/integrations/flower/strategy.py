"""Server strategy of the Flower integration, a wrapper of another strategy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np

from ... import decode, encode
from ...config import EncoderConfig
from ...decoder.restore import UPDATE
from ...decoder.update_sequence import UpdateDecoder
from ...errors import FormatError
from ...limits import Limits
from ...model import Array
from ..rounds import (
    Base,
    Bases,
    Dropped,
    Floats,
    Reader,
    RoundStatistics,
    Tensors,
    as_type,
    decode_reply,
    differ,
    limits_for,
    lineage_of,
    minus,
    one_line,
    plus,
    reader,
)
from .records import (
    KEY,
    VERSION,
    app,
    attribute,
    check_metrics,
    coded_record,
    common_form,
    digest_of,
    form_of,
    log,
    mapped,
    payload_of,
    plain_record,
    refuse_masks,
    stranger_reader,
    stranger_tensors,
    strategies,
    tensors_of,
    weight_of,
)

#: Number of rounds for which a model is kept for late replies.
MOST_ROUNDS = 4
#: Bytes of tensors summed at a time. The headers of replies are read again for each portion.
PORTION = 1 << 24


@dataclass
class _Sent:
    """Sent model.

    Parameters
    ----------
    source, record, wire : ArrayRecord
        Record of the strategy, record as decoded by clients, and record in messages.
    base : Base
    lost : mapping of str to ndarray
        Coding error of each tensor.
    """

    source: Any
    record: Any
    wire: Any
    base: Base
    lost: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size of the sent record in bytes."""
        return sum(len(array.data) for array in self.wire.values())


@dataclass
class _Sender:
    """Client whose updates refer to earlier updates."""

    device_id: int
    decoder: UpdateDecoder | None = None

    @property
    def token(self) -> str:
        """Token that the next update must have; empty if unknown."""
        last = self.decoder.state.lineages.get(self.device_id) if self.decoder else None
        return last.token if last else ""

    @property
    def nbytes(self) -> int:
        """Memory of the state in bytes."""
        return self.decoder.state.nbytes if self.decoder else 0


@dataclass
class _Taken:
    """Checked reply.

    Parameters
    ----------
    reply : Message
    records : dict of str to ArrayRecord
        Decoded records, unless tensors are summed one by one.
    readers : list of tuple of Base and callable
        With streaming, functions that return a reader of tensors by name.
    raw, wire : int
        Sizes in bytes as in RoundStatistics.
    """

    reply: Any
    records: dict[str, Any] = field(default_factory=dict)
    readers: list[tuple[Base, Callable[[], Reader]]] = field(default_factory=list)
    raw: int = 0
    wire: int = 0


class NNRStrategy(strategies.Strategy):  # type: ignore[misc]
    """Wrapper of a strategy that sends models as bitstreams and receives updates of :class:`NNRMod`.

    The inner strategy, which may be a wrapper too, receives plain arrays with the names, order and types of the initial
    arrays. Malformed replies, and updates of models that were not sent to their client, are dropped and logged.

    Parameters
    ----------
    strategy : Strategy
    downlink : str, EncoderConfig or None
        Coding of models: the name of a preset, such as ``"lossless"``, or options. The server adds the coding error of
        a model after the round, so that errors do not accumulate. None: models are sent as plain arrays, which clients
        without the mod can read.
    stateful : bool
        Code updates with earlier updates of the same client as references, as long as server and client agree on them.
        This takes about 10 bytes for each parameter and client, at most ``max_history_bytes`` in total. Messages must
        have one ArrayRecord.
    streaming : bool
        Sum the differences tensor by tensor while everything else stays compressed: memory does not depend on the
        number of clients. Only for the mean of :class:`~flwr.serverapp.strategy.FedAvg`, and not with ``stateful``.
    limits : Limits, optional
        Limits for decoding a reply; default: :meth:`Limits.strict` adapted to the model.
    jobs : int
        Number of threads for coding.

    Attributes
    ----------
    strategy : Strategy
    statistics : dict of int to RoundStatistics
        Statistics by round.

    Raises
    ------
    ValueError
        ``streaming`` requires an inner strategy that aggregates like FedAvg.
    UnsupportedError
        The inner strategy uses secure aggregation.
    """

    def __init__(
        self,
        strategy: Any,
        *,
        downlink: str | EncoderConfig | None = "fine",
        stateful: bool = False,
        streaming: bool = False,
        limits: Limits | None = None,
        jobs: int = 1,
    ) -> None:
        if streaming and getattr(type(strategy), "aggregate_train", None) is not strategies.FedAvg.aggregate_train:
            raise ValueError(
                f"streaming=True computes the mean of FedAvg, which {type(strategy).__name__} does not use; "
                "use streaming=False"
            )
        if streaming and stateful:
            raise ValueError("streaming=True and stateful=True cannot be combined; choose one")
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self.strategy = strategy
        self.statistics: dict[int, RoundStatistics] = {}
        self._downlink = EncoderConfig.preset(downlink) if isinstance(downlink, str) else downlink
        self._stateful, self._streaming = stateful, streaming
        self._limits, self._jobs = limits, jobs
        self._dtypes: dict[str, Any] = {}  # types of the initial arrays
        self._bases = Bases(MOST_ROUNDS)
        self._sent: dict[int, _Sent] = {}  # by the ids of the ArrayRecords
        self._model: _Sent | None = None  # model in training
        self._senders: dict[int, _Sender] = {}  # least recently used first
        self._usual: dict[bool, Any] = {}  # form of replies, in training and in evaluation

    def __repr__(self) -> str:
        return f"NNRStrategy({self.strategy!r})"

    def summary(self) -> None:
        """Log the coding of messages, and the summary of the inner strategy."""
        models = "plain arrays" if self._downlink is None else "NNR"
        options = "".join(f", {name}" for name in ("stateful", "streaming") if getattr(self, f"_{name}"))
        log.info("\t├──> NNR: models as %s, updates as NNR%s", models, options)
        self.strategy.summary()

    # ------------------------------------------------------------------------------------------ downlink
    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        """Return the messages of the inner strategy, with each model coded once."""
        self._bases.trim(server_round)
        self._model = self._opened(server_round, arrays)
        messages = [*self.strategy.configure_train(server_round, self._model.record, config, grid)]
        for message in messages:
            self._encode(message, server_round, train=True)
        return messages

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        """Return the messages of the inner strategy, with each model coded once."""
        sent = self._opened(server_round, arrays)
        messages = [*self.strategy.configure_evaluate(server_round, sent.record, config, grid)]
        for message in messages:
            self._encode(message, server_round, train=False)
        return messages

    def _statistics(self, server_round: int) -> RoundStatistics:
        return self.statistics.setdefault(server_round, RoundStatistics())

    def _opened(self, server_round: int, arrays: Any) -> _Sent:
        """Return the model of a phase; reuse its coding if it is the model of the previous phase."""
        known = self._sent.get(id(arrays))
        self._sent = {id(record): known for record in (known.source, known.record)} if known else {}
        return self._send(arrays, server_round)

    def _send(self, record: Any, server_round: int) -> _Sent:
        """Return an ArrayRecord for messages; code it unless it is already coded."""
        if sent := self._sent.get(id(record)):
            return sent
        started = time.perf_counter()
        exact = self._restored(record)
        if self._downlink is None:
            plain = plain_record(exact)
            sent = _Sent(record, plain, plain, Base(digest_of(plain), exact))
        else:
            payload = encode(exact, self._downlink, jobs=self._jobs)
            found = decode(payload, limits=Limits.unlimited(), jobs=self._jobs).tensors
            seen = {name: np.asarray(found[name]) for name in exact}
            lost = {name: minus(exact[name], seen[name]) for name in exact if differ(exact[name], seen[name])}
            base = Base(sha256(payload).hexdigest(), seen)
            sent = _Sent(record, plain_record(seen), coded_record(payload), base, lost)
        self._sent |= {id(record): sent, id(sent.record): sent}
        self._statistics(server_round).encode_seconds += time.perf_counter() - started
        return sent

    def _encode(self, message: Any, server_round: int, *, train: bool) -> None:
        """Code the models in a message, and add the instructions for the client."""
        content, client, statistics = message.content, message.metadata.dst_node_id, self._statistics(server_round)
        refuse_masks(content)
        models = {name: self._send(record, server_round) for name, record in content.array_records.items()}
        if not models:
            return
        instructions: dict[str, Any] = {"version": VERSION}
        if train:
            instructions |= {"records": [*models], "bases": [sent.base.key for sent in models.values()]}
            for sent in models.values():
                self._bases.expect(sent.base, client, server_round)
            if self._stateful:
                if len(models) > 1:
                    raise ValueError(f"stateful=True requires one ArrayRecord in a message, got {len(models)}")
                sender = self._senders.setdefault(client, _Sender(len(self._senders)))
                instructions |= {"device_id": sender.device_id, "token": sender.token}
        for sent in models.values():
            statistics.downlink_raw += sent.base.nbytes
            statistics.downlink_wire += sent.nbytes
        content = mapped(content, {name: sent.wire for name, sent in models.items()})
        content[KEY] = app.ConfigRecord(instructions)
        message.content = content

    def _restored(self, record: Any) -> dict[str, Array]:
        """Return the tensors of an ArrayRecord in the types of the initial arrays."""
        tensors = tensors_of(record)
        if not self._dtypes:
            self._dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
        return {name: as_type(tensor, self._dtypes.get(name, tensor.dtype)) for name, tensor in tensors.items()}

    # ------------------------------------------------------------------------------------------ uplink
    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
        """Aggregate the valid replies with the inner strategy, in the types of the initial arrays."""
        statistics, started = self._statistics(server_round), time.perf_counter()
        failed: list[Any] = []
        taken: list[_Taken] = []
        for reply in replies:
            if reply.has_error():
                failed.append(reply)
                self._bases.failed(reply.metadata.src_node_id)
            elif (found := self._checked(reply, statistics)) is not None:
                taken.append(found)
        alike = {id(reply) for reply in self._alike([item.reply for item in taken], statistics, train=True)}
        taken = [item for item in taken if id(item.reply) in alike]
        for item in taken:
            statistics.replies += 1
            statistics.uplink_raw += item.raw
            statistics.uplink_wire += item.wire
        statistics.decode_seconds += time.perf_counter() - started
        if self._streaming:
            return self._mean(taken, failed, statistics)
        for item in taken:
            item.reply.content = mapped(item.reply.content, item.records)
        arrays, metrics = self.strategy.aggregate_train(server_round, [*(item.reply for item in taken), *failed])
        if arrays is None:
            return None, metrics
        lost = self._model.lost if self._model else {}
        tensors = {
            name: plus(tensor, lost[name]) if name in lost else tensor
            for name, tensor in self._restored(arrays).items()
        }
        return plain_record(tensors), metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> Any:
        """Aggregate, with the inner strategy, the replies whose metrics can be averaged."""
        replies = [*replies]
        sound = self._alike(
            [reply for reply in replies if not reply.has_error()], self._statistics(server_round), train=False
        )
        failed = [reply for reply in replies if reply.has_error()]
        return self.strategy.aggregate_evaluate(server_round, [*sound, *failed])

    def _drop(self, reply: Any, reason: str, statistics: RoundStatistics) -> None:
        node = reply.metadata.src_node_id
        statistics.dropped.append(Dropped(node, reason))
        log.warning("NNR: the reply of node %d is dropped: %s", node, reason)

    def _checked(self, reply: Any, statistics: RoundStatistics) -> _Taken | None:
        """Return a checked reply with its decoded content; None if it is dropped."""
        try:
            return self._taken(reply)
        except Exception as error:  # an error of one client must not end the round
            self._drop(reply, one_line(error), statistics)
            return None

    def _taken(self, reply: Any) -> _Taken:
        """Return a reply with its decoded content."""
        client, due = reply.metadata.src_node_id, self._bases.due(reply.metadata.src_node_id)
        taken, bases = _Taken(reply), list[Base]()
        records = reply.content.array_records
        if due and not records:
            raise FormatError("the reply has no ArrayRecord")
        if self._streaming and len(records) > 1:
            raise FormatError(f"the reply must have one ArrayRecord, got {len(records)}")
        for name, record in records.items():
            payload = payload_of(record)
            if payload is not None:
                base, tensors, read = self._decoded(payload, client)
            elif due:
                base = next((base for base in due if base.tensors.keys() == record.keys()), due[0])
                tensors = stranger_tensors(record, base.tensors)
                read = partial(stranger_reader, record, base.tensors)
            else:
                raise FormatError("no model was sent to this client, or it already replied")
            if bases.count(base) == base.waiting[client]:
                raise FormatError(f"ArrayRecord {name[:64]!r} is a second update of the same model")
            bases.append(base)
            taken.raw += base.nbytes
            taken.wire += sum(len(array.data) for array in record.values())
            if self._streaming:
                taken.readers.append((base, read))
            else:
                taken.records[name] = plain_record(tensors)
        for base in bases:
            base.answered(client)
        return taken

    def _decoded(self, payload: bytes, client: int) -> tuple[Base, Tensors, Callable[[], Reader]]:
        """Return the base of a client's bitstream, the updated model, and a function that creates a reader of single
        tensors."""
        limits = self._limits or limits_for(base.tensors for base in self._bases.due(client))
        lineage = lineage_of(payload, limits)
        base = self._bases.find(lineage.base, client)
        sender = self._senders.get(client) if self._stateful else None
        if lineage.device_id != (sender.device_id if sender else 0):
            raise FormatError(f"device_id {lineage.device_id} of the reply belongs to another client")
        decoder = sender.decoder if sender and lineage.token else None
        if decoder is None:
            decoder = UpdateDecoder(limits=limits, like=base.tensors)
        tensors, update = decode_reply(payload, base.tensors, decoder)
        if self._streaming and UPDATE in update.metadata:
            raise FormatError("the differences of the reply are bit patterns, which have no mean")
        if sender:
            sender.decoder = decoder
            self._senders[client] = self._senders.pop(client)
            self._evict(sender)
        return base, tensors, partial(reader, payload, base.tensors, limits, update.whole)

    def _evict(self, latest: _Sender) -> None:
        """Discard the state of clients until the remaining state fits the limit.

        The least recently used clients are removed first; clients that must continue their updates are kept.
        """
        idle = [sender for client, sender in self._senders.items() if not self._bases.due(client)]
        total = sum(sender.nbytes for sender in self._senders.values())
        for sender in (*idle, latest):
            if total > (self._limits or Limits()).max_history_bytes:
                total -= sender.nbytes
                sender.decoder = None

    def _alike(self, replies: list[Any], statistics: RoundStatistics, *, train: bool) -> list[Any]:
        """Return the replies whose metrics can be averaged together; drop the others."""
        weighted_by, sound = attribute(self.strategy, "weighted_by_key"), []
        if weighted_by is None:
            return replies
        for reply in replies:
            try:
                weight_of(reply.content, weighted_by)
                check_metrics(reply.content)
            except FormatError as error:
                self._drop(reply, one_line(error), statistics)
            else:
                sound.append(reply)
        usual = self._usual.get(train)
        usual = self._usual[train] = common_form([form_of(reply.content) for reply in sound], usual)
        alike = []
        for reply in sound:
            if form_of(reply.content) == usual:
                alike.append(reply)
            else:
                self._drop(reply, "its records or metrics differ from the other replies", statistics)
        if alike and not any(weight_of(reply.content, weighted_by) for reply in alike):
            for reply in alike:
                self._drop(reply, f"no reply has a positive {weighted_by}", statistics)
            return []
        return alike

    # ------------------------------------------------------------------------------------------ streaming
    def _mean(self, taken: list[_Taken], failed: list[Any], statistics: RoundStatistics) -> tuple[Any, Any]:
        """Return the model plus the weighted mean of all updates, and the aggregated metrics of the inner strategy."""
        log.info("aggregate_train: Received %s results and %s failures", len(taken), len(failed))
        for reply in failed:
            log.info("\t> Received error in reply from node %d: %s", reply.metadata.src_node_id, reply.error.reason)
        if not taken or self._model is None:
            return None, None
        started, weighted_by = time.perf_counter(), self.strategy.weighted_by_key
        taken = sorted(taken, key=lambda item: item.reply.metadata.src_node_id)  # sums of floats depend on the order
        weights = [weight_of(item.reply.content, weighted_by) for item in taken]
        total = sum(weights)
        arrays = app.ArrayRecord()
        for exact in self._portions(self._model.source):
            means = {name: np.zeros(tensor.shape) for name, tensor in exact.items()}
            for item, weight in zip(taken, weights, strict=True):
                for base, opened in item.readers:
                    read = opened()
                    for name in means:
                        means[name] += weight / total * minus(read(name), base.tensors[name])
            for name, tensor in exact.items():
                arrays[name] = app.Array(plus(tensor, means[name]))
        statistics.decode_seconds += time.perf_counter() - started
        metrics = self.strategy.train_metrics_aggr_fn([item.reply.content for item in taken], weighted_by)
        return arrays, metrics

    def _portions(self, record: Any) -> Iterator[dict[str, Array]]:
        """Yield tensors of the model in portions: one tensor, or as many as fit in PORTION bytes."""
        portion: dict[str, Array] = {}
        for name, array in record.items():
            if portion and sum(tensor.nbytes for tensor in portion.values()) + len(array.data) > PORTION:
                yield portion
                portion = {}
            tensor = array.numpy()
            portion[name] = as_type(tensor, self._dtypes.get(name, tensor.dtype))
        yield portion
