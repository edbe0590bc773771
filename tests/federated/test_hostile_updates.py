"""Damaged and random updates: an NnrError or matching tensors; an error leaves the state unchanged."""

from __future__ import annotations

import contextlib
import tempfile
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_RAW_FLOAT, NnrUnitType
from nnr_codec.model import Array

from ..builder import Bitstream, update_ndu
from ..hostile import STRICT
from ..shared import examples
from ..soon import soon
from .support import content, described

pytestmark = pytest.mark.medium

LIKE = {"w": np.zeros((6, 8), "f4"), "b": np.zeros(7, "f4"), "n": np.zeros((3, 2), "i4")}


class Attack(NamedTuple):
    """Valid bitstream with its state, and others to mix it with."""

    good: bytes
    state: nnr.UpdateState
    others: tuple[bytes, ...]


OPTIONS: tuple[dict[str, Any], ...] = (
    {"temporal_context_modeling": True, "hist_dep_sig_prob": True},
    {"nnr_pre": True, "dependent_quantization": False},
    {"parent": "sha256"},
    {"parent": "sha512", "row_skipping": True},
    {"parent": "external", "max_unit_size": 31},
    {"indexed_references": True, "deflate_topology": True},
)


@cache
def rounds(kind: int) -> Attack:
    """Return the third of three bitstreams; one tensor of the second is whole, unless the third has residuals."""
    encoder, decoder = nnr.UpdateEncoder(base_model_id="m", **OPTIONS[kind]), nnr.UpdateDecoder(like=LIKE)
    rng = np.random.default_rng(kind)
    sent: list[bytes] = []
    for k in range(3):
        update = {
            "w": (rng.normal(0, 0.1, (6, 8)) * (rng.random((6, 8)) < 0.5)).astype("f4"),
            "b": rng.normal(0, 0.1, 7).astype("f4"),
            "n": rng.integers(-9, 9, (3, 2)).astype("i4"),
        }
        whole = {"b": update.pop("b")} if k == 1 and not OPTIONS[kind].get("nnr_pre") else {}
        sent.append(encoder.encode(update, whole=whole))
        if k < 2:
            decoder.decode(sent[-1])
    return Attack(sent[2], decoder.state, (sent[0], sent[1], rounds(kind - 1).good if kind else sent[0]))


@cache
def models(kind: int) -> tuple[dict[str, Array], Attack]:
    """Return a base, and a bitstream that changes it to another model."""
    rng = np.random.default_rng(100 + kind)
    base = {
        "w": rng.normal(0, 0.1, (6, 8)).astype("f4"),
        "h": rng.normal(0, 0.1, (5, 4)).astype("f2"),
        "d": rng.normal(0, 0.1, 5),
        "mask": rng.random((3, 4)) < 0.5,
        "steps": np.asarray(2**40, "i8"),
        "same": np.ones(3, "f4"),
        "reshaped": np.zeros((2, 3), "f4"),
    }
    new = {name: np.asarray(array + array.dtype.type(1)) for name, array in base.items() if array.dtype != bool}
    new |= {"mask": ~base["mask"], "same": base["same"], "reshaped": np.ones((3, 3), "f4"), "fresh": np.ones(4, "f8")}
    data = nnr.encode_update(base, new, lossless=bool(kind))
    other = nnr.encode_update(new | {"w": new["w"] * 2}, new | {"w": new["w"] + 1})
    return base, Attack(data, nnr.UpdateState(), (other, rounds(0).good))


# ------------------------------------------------------------------------------------------------ damage
def pieces(data: bytes) -> list[bytes]:
    """Return the units of a bitstream, as bytes."""
    return [bytes(unit.data) for unit in nnr.units(data)]


@st.composite
def damaged(draw: st.DrawFn, attack: Attack) -> bytes:
    """Draw changes of units (omitted, repeated, exchanged, of other bitstreams), then of bytes."""
    units = pieces(attack.good)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(units) - 1)) if units else 0
        kind = draw(st.sampled_from(["drop", "double", "swap", "foreign"]))
        if kind == "drop":
            del units[at : at + 1]
        elif kind == "double":
            units[at:at] = units[at : at + 1]
        elif kind == "swap" and units:
            other = draw(st.integers(0, len(units) - 1))
            units[at], units[other] = units[other], units[at]
        elif kind == "foreign":
            units[at:at] = [draw(st.sampled_from(pieces(draw(st.sampled_from(attack.others)))))]
    stream = bytearray(b"".join(units))
    for _ in range(draw(st.integers(0, 3))):
        at, length = draw(st.integers(0, len(stream))), draw(st.integers(0, 6))
        kind = draw(st.sampled_from(["flip", "flip", "flip", "overwrite", "remove", "insert", "cut"]))
        if kind == "flip" and at < len(stream):
            stream[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "overwrite":
            stream[at : at + length] = draw(st.binary(min_size=length, max_size=length))
        elif kind == "remove":
            del stream[at : at + length]
        elif kind == "insert":
            stream[at:at] = draw(st.binary(max_size=6))
        elif kind == "cut":
            del stream[at:]
    return bytes(stream)


def decoded_or_refused(decoder: nnr.UpdateDecoder, data: bytes) -> nnr.Update | None:
    """Return the result or the error, and check that an error changes nothing."""
    state, known = decoder.state, content(decoder.state)
    try:
        update, _ = soon(lambda: decoder.decode(data), 2)
    except nnr.NnrError as error:
        assert str(error)
        assert decoder.state is state
        update = None
    assert content(state) == known
    return update


@settings(max_examples=examples(400), deadline=None)
@given(st.data(), st.integers(0, len(OPTIONS) - 1))
def test_damaged_rounds(data: st.DataObject, kind: int) -> None:
    """A decoder with a schema returns only matching tensors; a valid bitstream still decodes after all errors."""
    attack = rounds(kind)
    decoder = nnr.UpdateDecoder(limits=STRICT, like=LIKE, state=attack.state.fork())
    update = decoded_or_refused(decoder, data.draw(damaged(attack)))
    if update is None:
        assert described(decoder.decode(attack.good)) == described(LIKE)
        return
    fits(update)


def fits(update: nnr.Update) -> None:
    """Check that the tensors are the whole model, or a part of it if the bitstream is no longer an update."""
    assert update.whole <= set(LIKE)
    assert described(update).items() <= described(LIKE).items()
    assert set(update) in (set(LIKE), update.whole)


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.integers(0, len(OPTIONS) - 1))
def test_damaged_rounds_of_any_model(data: st.DataObject, kind: int) -> None:
    """Without a schema, every accepted state can be continued, saved and loaded."""
    attack = rounds(kind)
    decoder = nnr.UpdateDecoder(limits=STRICT, state=attack.state.fork())
    for _ in range(2):
        if decoded_or_refused(decoder, data.draw(damaged(attack))) is not None:
            with tempfile.TemporaryDirectory() as folder:
                decoder.state.save(Path(folder) / "state")
                loaded = nnr.UpdateState.load(Path(folder) / "state", limits=STRICT)
            assert content(loaded) == content(decoder.state)


@settings(max_examples=examples(400), deadline=None)
@given(st.data(), st.integers(0, 1), st.booleans())
def test_damaged_updates_of_a_model(data: st.DataObject, kind: int, check: bool) -> None:
    """Application to the base gives an error, or the base's tensors with their types, and possibly more."""
    base, attack = models(kind)
    before = {name: array.tobytes() for name, array in base.items()}
    with contextlib.suppress(nnr.NnrError):
        got = nnr.apply_update(base, data.draw(damaged(attack)), limits=STRICT, check=check)
        assert set(base) <= set(got)
        assert all(isinstance(array, np.ndarray) for array in got.values())
    assert {name: array.tobytes() for name, array in base.items()} == before


@pytest.mark.parametrize("kind", range(len(OPTIONS)))
def test_every_byte(kind: int) -> None:
    """One bit of each byte is changed, and every prefix is tested."""
    attack = rounds(kind)
    for at in range(len(attack.good)):
        flipped = bytearray(attack.good)
        flipped[at] ^= 1 << (at % 8)
        for damaged_one in (bytes(flipped), attack.good[:at]):
            decoder = nnr.UpdateDecoder(limits=STRICT, like=LIKE, state=attack.state.fork())
            if (update := decoded_or_refused(decoder, damaged_one)) is not None:
                fits(update)


# ------------------------------------------------------------------------------------------------ lies
def start(pre: int = 0) -> Bitstream:
    return Bitstream().str_().mps(parent=1, pre=pre)


def refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    """Check that the call raises this error, and requests little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(error, match=message):
            call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000, f"{peak:,} bytes"


@pytest.mark.parametrize("kind", [NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_RAW_FLOAT])
def test_four_tebibytes(kind: int) -> None:
    """A declaration costs nothing, with or without a schema or base."""
    header = update_ndu("w", [1 << 20, 1 << 20], 1, kind=kind)
    stream = start().ndu(header, payload=bytes(40)).data
    base = {"w": np.zeros((6, 8), "f4")}
    nnr.apply_update(base, nnr.encode_update(base, base))  # memory of first imports does not count
    for limits in (None, STRICT, nnr.Limits()):
        like = nnr.UpdateDecoder(limits=limits, like=LIKE)
        refused(lambda: like.decode(stream), nnr.LimitError, "'w'")  # noqa: B023
        alone = nnr.UpdateDecoder(limits=limits)
        refused(lambda: alone.decode(stream), nnr.LimitError, "max_tensor")  # noqa: B023
        assert like.state.nbytes == alone.state.nbytes == nnr.UpdateState().nbytes
        for check in (True, False):
            refused(
                lambda: nnr.apply_update(base, stream, limits=limits, check=check),  # noqa: B023
                nnr.NnrError,
                ".",
            )


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (update_ndu("w", [8, 6], 1), "'w'"),
        (update_ndu("w", [48], 1), "'w'"),
        (update_ndu("w", [6, 8], 1, kind=NNR_PT_INT), "'w'"),
        (update_ndu("n", [3, 2], 1), "'n'"),
        (update_ndu("v", [6, 8], 1), "'v'"),
        (update_ndu("v", [6, 8], 0), "'v'"),
    ],
)
def test_a_schema_is_kept(header: Any, message: str) -> None:
    """Names, shapes and kinds are checked before anything is decoded: the payload is invalid."""
    decoder = nnr.UpdateDecoder(like=LIKE)
    decoder.decode(start().ndu(update_ndu("w", [6, 8], 1, parameter=9), np.ones((6, 8))).data)
    state, known = decoder.state, content(decoder.state)
    with pytest.raises(nnr.LimitError, match=message):
        decoder.decode(start().ndu(header, payload=b"").data)
    assert decoder.state is state
    assert content(state) == known


def test_a_schema_that_a_later_unit_breaks() -> None:
    """The units before it leave nothing."""
    decoder = nnr.UpdateDecoder(like=LIKE)
    state, known = decoder.state, content(decoder.state)
    stream = start().ndu(update_ndu("w", [6, 8], 1), np.ones((6, 8)))
    stream.ndu(update_ndu("b", [8], 1, parameter=1), np.ones(8))
    with pytest.raises(nnr.LimitError, match="'b'"):
        decoder.decode(stream.data)
    assert decoder.state is state
    assert content(state) == known


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_difference_that_is_not_finite_is_not_added(value: float) -> None:
    """NNR_PT_RAW_FLOAT can represent such values."""
    header = update_ndu("w", [2, 2], 1, kind=NNR_PT_RAW_FLOAT, parent_node_id_type=3)
    del header.parent_device_id
    stream = start().raw(header, [1, value, 0, 0]).data
    base = {"w": np.ones((2, 2), "f4")}
    with pytest.raises(nnr.NnrError):
        nnr.apply_update(base, stream, check=False)
    assert (base["w"] == 1).all()


def test_a_replayed_bitstream() -> None:
    """It is always rejected, by its number."""
    attack = rounds(0)
    decoder = nnr.UpdateDecoder(like=LIKE, state=attack.state.fork())
    decoder.decode(attack.good)
    known = content(decoder.state)
    for data in (*attack.others[:2], attack.good, attack.good):
        with pytest.raises(nnr.MissingReferenceError, match="repeated"):
            decoder.decode(data)
        assert content(decoder.state) == known


def test_many_devices_are_bounded() -> None:
    """Each sender is new: the least recently active ones are removed, one by one."""
    limits = nnr.Limits(max_history_bytes=20_000)
    decoder = nnr.UpdateDecoder(limits=limits, like=LIKE)

    def send(device: int, depth: int) -> None:
        decoder.decode(start().ndu(update_ndu("w", [6, 8], depth, device=device), np.ones((6, 8), "i4")).data)

    for device in range(100):
        send(device, 1)
        assert decoder.state.nbytes <= limits.max_history_bytes
        if device % 5 == 4:
            send(0, 2 + device // 5)  # never silent for long
    kept = decoder.state.device_ids
    assert kept == [*sorted(set(kept) - {0}), 0]
    assert 0 in kept
    assert 5 < len(kept) < 50
    with pytest.raises(nnr.MissingReferenceError, match="device_id 1,"):
        send(1, 2)


def test_units_are_what_they_seem() -> None:
    """The units have the tools that the attacks address."""
    found: set[str] = set()
    for kind in range(len(OPTIONS)):
        found |= {f"{tool.element}={tool.value}" for tool in nnr.requirements(rounds(kind).good)}
    assert {f"parent_node_id_type={k}" for k in range(1, 4)} <= found
    assert {"temporal_context_modeling_flag=1", "hist_dep_sig_prob_enabled_flag=1", "nnr_pre_flag=1"} <= found
    assert any(unit.header.partial_data_counter_present_flag for unit in nnr.units(rounds(4).good))
    assert all(unit.header.nnr_unit_type != NnrUnitType.NNR_AGG for unit in nnr.units(rounds(0).good))
