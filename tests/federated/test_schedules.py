"""Random schedules of loss, repetition, reordering and sampling: both states agree, or the error names what is missing.

An independent model of the decoder's state, computed from headers alone, predicts which bitstreams it must accept.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import tempfile
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.constants import ICNN_NDU_ID, NnrUnitType

from ..shared import examples
from .support import content, described, packed

pytestmark = pytest.mark.medium

LIKE = {
    "w": np.zeros((4, 6), "f4"),
    "u": np.zeros((3, 2, 2), "f4"),
    "b": np.zeros(5, "f4"),
    "n": np.zeros((2, 2), "i4"),
}
DEVICES = 3

Key = tuple[int, int]


def nodes(state: nnr.UpdateState) -> dict[Key, tuple[Any, ...]]:
    """Return the nodes of a state."""
    return {
        (device, parameter): packed(node)
        for device, sender in state.senders.items()
        for parameter, node in sender.nodes.items()
        if device is not None and isinstance(parameter, int)
    }


# ------------------------------------------------------------------------------------------------ the oracle
@dataclass
class Unit:
    """Information in the header of a compressed data unit."""

    key: Key
    depth: int
    is_update: bool
    parent: int | None
    digest: int  # of the parent, as an integer; 0: none is named
    hashes: frozenset[int]  # of the payload


@dataclass
class Account:
    """Predicted state of a decoder, from the headers of accepted bitstreams."""

    lineages: dict[int, tuple[int, str]] = field(default_factory=dict)  # number, and the token of the next one
    units: dict[Key, Unit] = field(default_factory=dict)

    def forget(self, device: int) -> None:
        self.lineages.pop(device, None)
        self.units = {key: unit for key, unit in self.units.items() if key[0] != device}

    def refusal(self, data: bytes) -> str:
        """Return a regular expression that the error message must match; empty if the bitstream is valid."""
        device, number, token = lineage(data)
        last = self.lineages.get(device)
        who = rf"bitstream {number} of device_id {device}\b"
        if last and number <= last[0]:
            return rf"{who}.*repeated or out of order.*\b{last[0]}\b"
        if token and last != (number - 1, token):
            return rf"{who}.*\bnumber {number - 1}\b.*{re.escape(token)}"
        for unit in units(data):
            own = self.units.get(unit.key)
            if own and own.is_update and not token:  # it no longer counts
                own = None
            if not unit.is_update:
                continue
            what = rf"device_id {unit.key[0]}.*parameter_id {unit.key[1]}\b"
            if own and unit.depth <= own.depth and max(unit.depth, own.depth) > 1:
                return what
            if unit.parent == ICNN_NDU_ID and unit.depth > 1 and not (own and own.depth == unit.depth - 1):
                return rf"{what}.*\b{unit.depth - 1}\b"
            if unit.digest and unit.digest not in (own.hashes if own else ()):
                return "parent_node_payload_sha"
        return ""

    def take(self, data: bytes) -> None:
        device, number, token = lineage(data)
        follows = hashlib.sha256(token.encode() + data).digest()
        self.lineages[device] = (number, urlsafe_b64encode(follows)[:16].decode())
        if not token:  # nothing before it counts
            self.units = {key: unit for key, unit in self.units.items() if key[0] != device or not unit.is_update}
        self.units |= {unit.key: unit for unit in units(data)}


def lineage(data: bytes) -> tuple[int, int, str]:
    """Return device_id, number and token of a bitstream."""
    (mps,) = (unit.structure for unit in nnr.units(data) if unit.header.nnr_unit_type == NnrUnitType.NNR_MPS)
    text = mps.base_model_id.rpartition("#")[2]  # type: ignore[union-attr]
    device, number, token = text.split(".")
    return int(device), int(number), token


def units(data: bytes) -> list[Unit]:
    """Return the compressed data units."""
    found = []
    for unit in nnr.units(data):
        if unit.header.nnr_unit_type != NnrUnitType.NNR_NDU:
            continue
        header, payload = unit.ndu, bytes(unit.payload)  # type: ignore[arg-type]
        if not header.node_id_present_flag:  # its state is lost
            continue
        is_update = bool(header.parent_node_id_present_flag)
        digest = 0
        for element in ("parent_node_payload_sha256", "parent_node_payload_sha512"):
            digest |= getattr(header, element) if is_update and element in header else 0
        hashes = frozenset(int.from_bytes(make(payload).digest(), "big") for make in (hashlib.sha256, hashlib.sha512))
        key = (header.device_id, header.parameter_id)
        parent = header.parent_node_id_type if is_update else None
        found.append(Unit(key, header.put_node_depth, is_update, parent, digest, hashes))
    return found


# ------------------------------------------------------------------------------------------------ a sender
@dataclass
class Message:
    """Bitstream, with the state of its sender when it was made."""

    data: bytes
    decoded: nnr.Update
    state: nnr.UpdateState
    since: frozenset[Key]  # parameters that were sent since the last independent bitstream


class Client:
    """Device that may lose its state."""

    def __init__(self, device: int, options: dict[str, Any], seed: int) -> None:
        self.device, self.options = device, options
        self.rng = np.random.default_rng([seed, device])
        self.encoder = nnr.UpdateEncoder(device_id=device, **options)
        self.since: frozenset[Key] = frozenset()
        self.last = {name: np.zeros(like.shape) for name, like in LIKE.items()}

    def train(self) -> Message:
        """Return the next bitstream; about a third of the tensors do not change, and some are sent whole."""
        differences, whole = {}, {}
        for name, like in LIKE.items():
            spread = 9.0 if like.dtype.kind == "i" else 0.05
            fresh = self.rng.normal(0, spread, like.shape) * (self.rng.random(like.shape) < 0.5)
            self.last[name] = 0.7 * self.last[name] + fresh
            chance = self.rng.random()
            if chance < 0.12:
                whole[name] = self.last[name].astype(like.dtype)
            else:
                differences[name] = (self.last[name] * (chance > 0.35)).astype(like.dtype)
        data = self.encoder.encode(differences, whole=whole)
        if not lineage(data)[2]:
            self.since = frozenset()
        self.since |= {unit.key for unit in units(data)}
        return Message(data, self.encoder.decoded, self.encoder.state.fork(), self.since)

    def reset(self) -> None:
        self.encoder.reset()

    def restart(self) -> None:
        """Discard the whole state, including the number of bitstreams."""
        self.encoder = nnr.UpdateEncoder(device_id=self.device, **self.options)

    def move(self) -> None:
        """Continue in another process."""
        self.encoder = pickle.loads(pickle.dumps(self.encoder))


# ------------------------------------------------------------------------------------------------ a schedule
FATES = st.sampled_from(["arrives"] * 7 + ["lost", "late", "twice"])
ROUND = st.tuples(st.just("round"), st.dictionaries(st.integers(0, DEVICES - 1), FATES, min_size=1))
EVENTS = st.one_of(
    ROUND,
    ROUND,
    ROUND,
    ROUND,
    st.tuples(st.sampled_from(["late", "again"]), st.integers(0, 99)),
    st.tuples(st.sampled_from(["evict", "restart", "move", "reset", "foreign"]), st.integers(0, DEVICES - 1)),
    st.tuples(st.just("save"), st.just(0)),
)
OPTIONS = st.fixed_dictionaries(
    {
        "parent": st.sampled_from(["node", "node", "node", "sha256", "sha512", "external"]),
        "temporal_context_modeling": st.sampled_from([None, True]),
        "hist_dep_sig_prob": st.sampled_from([None, True]),
        "base_model_id": st.sampled_from(["", "m#0.1."]),
        "error_feedback": st.booleans(),
    }
)
LEVELS = st.sampled_from(
    [
        {},
        {"dependent_quantization": True, "nnr_pre": False},
        {"dependent_quantization": False, "nnr_pre": True},
        {"dependent_quantization": False},
    ]
)


class World:
    """Clients, and a server with one decoder for all of them."""

    def __init__(self, options: dict[str, Any], asks: bool, with_like: bool, seed: int) -> None:
        self.asks, self.like = asks, LIKE if with_like else None
        self.clients = [Client(device, options, seed) for device in range(DEVICES)]
        self.strangers = [Client(device, options, seed + 1) for device in range(DEVICES)]
        self.decoder = nnr.UpdateDecoder(like=self.like)
        self.account = Account()
        self.late: list[tuple[Client, Message]] = []
        self.past: list[tuple[Client, Message]] = []
        self.forgotten: set[int] = set()

    def play(self, event: str, argument: Any) -> None:
        if event == "round":
            for device, fate in sorted(argument.items()):
                self.send(self.clients[device], fate)
        elif event == "foreign":
            self.send(self.strangers[argument], "arrives")
        elif event == "late" and self.late:
            self.deliver(*self.late.pop(argument % len(self.late)))
        elif event == "again" and self.past:
            self.deliver(*self.past[argument % len(self.past)])
        elif event == "save":
            self.save()
        elif event == "evict":
            self.decoder.reset(argument)
            self.account.forget(argument)
            assert argument not in self.decoder.state.device_ids
        elif event in ("restart", "move", "reset"):
            getattr(self.clients[argument], event)()

    def save(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state"
            self.decoder.state.save(path)
            state = nnr.UpdateState.load(path)
        assert content(state) == content(self.decoder.state)
        self.decoder = nnr.UpdateDecoder(like=self.like, state=state)

    def send(self, client: Client, fate: str) -> None:
        message = client.train()
        self.past.append((client, message))
        if fate == "late":
            self.late.append((client, message))
        for _ in range({"arrives": 1, "twice": 2}.get(fate, 0)):
            self.deliver(client, message)

    def deliver(self, client: Client, message: Message) -> None:
        """Decode it, and check the predicted result."""
        wanted = self.account.refusal(message.data)
        before, known = self.decoder.state, content(self.decoder.state)
        if wanted:
            with pytest.raises(nnr.MissingReferenceError) as raised:
                self.decoder.decode(message.data)
            assert re.search(wanted, str(raised.value), re.DOTALL), (wanted, str(raised.value))
            assert self.decoder.state is before
            assert content(before) == known
            if self.asks:
                client.reset()
            return
        update = self.decoder.decode(message.data)
        assert content(before) == known
        self.account.take(message.data)
        self.agree(update, message)

    def agree(self, update: nnr.Update, message: Message) -> None:
        device = lineage(message.data)[0]
        assert update.whole == message.decoded.whole
        assert update.base_model_id == message.decoded.base_model_id
        for name in update.keys() | message.decoded.keys():
            got, want = update.get(name), message.decoded.get(name)
            one = got if got is not None else want
            assert one is not None
            zeros = np.zeros_like(one)
            np.testing.assert_array_equal(zeros if got is None else got, zeros if want is None else want, name)
        if self.like:
            assert described(update) == described(self.like)
        ours, theirs = nodes(self.decoder.state), nodes(message.state)
        assert {key: ours.get(key) for key in message.since} == {key: theirs.get(key) for key in message.since}
        assert message.since <= {key for key in ours if key[0] == device}
        assert self.decoder.state.lineages[device] == message.state.lineages[device]
        assert tuple(self.decoder.state.lineages[device]) == self.account.lineages[device]


@settings(max_examples=examples(100), deadline=None)
@given(
    options=st.builds(dict.__or__, OPTIONS, LEVELS),
    asks=st.booleans(),
    with_like=st.booleans(),
    seed=st.integers(0, 2**16),
    events=st.lists(EVENTS, min_size=6, max_size=24),
)
def test_both_states_agree_or_the_error_names_what_is_missing(
    options: dict[str, Any], asks: bool, with_like: bool, seed: int, events: list[tuple[str, Any]]
) -> None:
    world = World(options, asks, with_like, seed)
    for event, argument in events:
        world.play(event, argument)


@pytest.mark.parametrize("parent", ["node", "sha256", "external"])
@pytest.mark.parametrize("whole", range(5))
@pytest.mark.parametrize("received", range(6))
def test_a_reset_is_understood_after_any_loss(received: int, whole: int, parent: str) -> None:
    """The first few of five bitstreams arrive, one of which has a whole tensor; bitstreams after the reset decode."""
    encoder, decoder = nnr.UpdateEncoder(parent=parent), nnr.UpdateDecoder()
    rng = np.random.default_rng(received)

    def send(is_whole: bool = False) -> tuple[bytes, nnr.Update]:
        w = rng.normal(0, 0.1, (5, 6)).astype("f4")
        data = encoder.encode({} if is_whole else {"w": w}, whole={"w": w} if is_whole else {})
        return data, encoder.decoded

    for k in range(5):
        data, _ = send(k == whole)
        if k < received:
            decoder.decode(data)
    if received < 5 and parent != "external":
        before, known = decoder.state, content(decoder.state)
        with pytest.raises(nnr.MissingReferenceError, match="bitstream 6 of device_id 0"):
            decoder.decode(send()[0])
        assert decoder.state is before
        assert content(before) == known
    encoder.reset()
    for _ in range(3):
        data, decoded = send()
        np.testing.assert_array_equal(decoder.decode(data)["w"], decoded["w"])
        assert nodes(decoder.state) == nodes(encoder.state)


@pytest.mark.parametrize("parent", ["node", "sha256", "sha512", "external"])
def test_updates_of_a_base_model_that_was_sent(parent: str) -> None:
    """Hashes name the payloads of the base; a decoder without them, or with other ones, reports it."""
    rng = np.random.default_rng(9)

    def model(scale: float) -> dict[str, np.ndarray]:
        return {name: (rng.normal(0, scale, like.shape)).astype(like.dtype) for name, like in LIKE.items()}

    base, other = (nnr.encode(model(9)) for _ in range(2))
    encoder, decoder = nnr.UpdateEncoder(parent=parent), nnr.UpdateDecoder(like=LIKE)
    assert described(encoder.adopt(base)) == described(decoder.decode(base)) == described(LIKE)
    streams = [encoder.encode(model(0.1) | {"n": np.ones((2, 2), "i4")}) for _ in range(3)]
    for data in streams:
        got = decoder.decode(data)
        assert described(got) == described(LIKE)
        np.testing.assert_array_equal(got["n"], 1)
        if parent.startswith("sha"):
            assert all(unit.digest for unit in units(data))
    for name in encoder.decoded:
        np.testing.assert_array_equal(got[name], encoder.decoded[name])
    for known in ([], [other]):
        decoder = nnr.UpdateDecoder(like=LIKE)
        for data in known:
            decoder.decode(data)
        before = content(decoder.state)
        if parent.startswith("sha"):
            with pytest.raises(nnr.MissingReferenceError, match=f"parent_node_payload_{parent}"):
                decoder.decode(streams[0])
            assert content(decoder.state) == before
        else:
            decoder.decode(streams[0])


@pytest.mark.parametrize("parent", ["node", "sha256", "sha512", "external"])
def test_a_reset_names_no_tensor_that_was_sent_whole(parent: str) -> None:
    """The bitstream with this tensor may be lost."""
    encoder, decoder = nnr.UpdateEncoder(parent=parent), nnr.UpdateDecoder()
    ones = np.ones((3, 4), "f4")
    decoder.decode(encoder.encode({"v": ones}))
    encoder.encode({"v": ones}, whole={"w": ones})
    encoder.reset()
    for update in ({"v": ones}, {"w": ones}, {"v": ones, "w": ones}):
        got = decoder.decode(encoder.encode(update))
        for name in update:
            np.testing.assert_array_equal(got[name], encoder.decoded[name])


@pytest.mark.parametrize("before", range(1, 4))
def test_a_sender_that_was_restarted(before: int) -> None:
    """The sender has lost its updates, but the receiver has them: after a reset they do not count."""
    rng = np.random.default_rng(before)
    lost, encoder = nnr.UpdateEncoder(), nnr.UpdateEncoder(hist_dep_sig_prob=True)
    decoder, stream = nnr.UpdateDecoder(), nnr.StreamDecoder(allow_missing=True)

    def update(*names: str) -> dict[str, np.ndarray]:
        return {name: (rng.normal(0, 0.1, (5, 6)) * (rng.random((5, 6)) < 0.4)).astype("f4") for name in names}

    for _ in range(before):
        data = lost.encode(update("v", "w"))
        decoder.decode(data)
        stream.feed(data)
    for number in range(1, before + 1):
        with pytest.raises(nnr.MissingReferenceError, match=f"bitstream {number} of device_id 0 is repeated"):
            decoder.decode(encoder.encode(update("v")))
    encoder.reset()
    for names in (["v"], ["v", "w"], ["w"], ["v", "w"]):
        data = encoder.encode(update(*names))
        got = decoder.decode(data)
        for name in names:
            np.testing.assert_array_equal(got[name], encoder.decoded[name])
        assert nodes(decoder.state) == nodes(encoder.state)
        stream.feed(data)
    stream.finish()
    assert nodes(stream.state) == nodes(encoder.state)
