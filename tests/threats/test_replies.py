"""T43: replies of untrusted clients in federated learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.integrations.rounds import Base, Bases, decode_reply, encode_reply, limits_for, lineage_of

from .support import good

BASE: dict[str, Any] = {"w": np.full((4, 5), 0.5, np.float32), "n": np.arange(4, dtype=np.int32)}
LIMITS = limits_for([BASE])
#: The difference to the base.
FAIR: dict[str, Any] = {"w": np.full((4, 5), 0.25, np.float32), "n": np.ones(4, np.int32)}


def reply(tensors: dict[str, Any], **options: Any) -> bytes:
    """Return an unchecked update."""
    return nnr.UpdateEncoder(parent="external", base_model_id="key", **options).encode(tensors)


def taken(payload: bytes) -> dict[str, Any]:
    """Return the server's result for a reply."""
    return decode_reply(payload, BASE, nnr.UpdateDecoder(like=BASE, limits=LIMITS))[0]


def test_a_fair_reply() -> None:
    found = taken(reply(FAIR))
    np.testing.assert_allclose(found["w"], BASE["w"] + FAIR["w"], atol=0.05)
    assert found["n"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_t43_values_that_are_not_finite(value: float) -> None:
    """A mean would propagate them."""
    whole = {"w": np.full((4, 5), value, np.float32)}
    payload = nnr.UpdateEncoder(parent="external", base_model_id="key").encode({"n": FAIR["n"]}, whole=whole)
    with pytest.raises(nnr.FormatError, match="'w' has values that are not finite"):
        taken(payload)
    with pytest.raises(nnr.EncodeError, match="not finite"):
        encode_reply(BASE, BASE | whole, nnr.UpdateEncoder())


def test_sums_that_are_not_finite() -> None:
    """Each summand is finite."""
    large = {"w": np.full((4, 5), 3e38, np.float32)}
    payload = nnr.UpdateEncoder(parent="external", base_model_id="key").encode(large)
    base = BASE | large
    with pytest.raises(nnr.FormatError, match="'w': the sum of base and difference exceeds the range of float32"):
        decode_reply(payload, base, nnr.UpdateDecoder(like=base, limits=LIMITS))


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({"x": FAIR["w"]}, "'x' is not one of the 2 expected tensors"),
        (FAIR | {"W": FAIR["w"]}, "'W' is not one of the 2"),
        ({"w": FAIR["w"].reshape(5, 4)}, r"'w' is float32 \(5, 4\)"),
        ({"w": np.ones((4, 5, 1), np.float32)}, r"\(4, 5, 1\)"),
        ({"w": np.ones((4, 5), np.int32)}, "'w' is int32"),
        ({"n": np.ones(4, np.float32)}, "'n' is float32"),
        ({"n": np.ones(1 << 20, np.int32)}, "'n'"),
    ],
)
def test_other_tensors(tensors: dict[str, Any], match: str) -> None:
    with pytest.raises(nnr.LimitError, match=match):
        taken(reply(tensors))


def test_t43_tensors_in_the_place_of_others() -> None:
    """A whole tensor has another type of the same kind."""
    whole = {"w": np.zeros((4, 5), np.float64)}
    payload = nnr.UpdateEncoder(parent="external", base_model_id="key").encode({"n": FAIR["n"]}, whole=whole)
    with pytest.raises(nnr.LimitError, match="'w' is float64"):
        taken(payload)


@pytest.mark.parametrize("payload", [good(), nnr.encode_update(BASE, BASE | {"n": FAIR["n"]})])
def test_t43_replies_to_nothing(payload: bytes) -> None:
    with pytest.raises(nnr.FormatError, match="base_model_id of the update does not name the model of a round"):
        lineage_of(payload, LIMITS)


def test_t43_replies_that_are_repeated() -> None:
    """A reply is repeated, or belongs to another model or an earlier round."""
    bases, sent = Bases(2), Base("key", BASE)
    bases.expect(sent, 1, 1)
    bases.expect(sent, 2, 1)
    key = lineage_of(reply(FAIR), LIMITS).base
    bases.find(key, 1).answered(1)
    for sender in (1, 3):
        with pytest.raises(nnr.MissingReferenceError, match="already replied"):
            bases.find(key, sender)
    assert bases.find(key, 2) is sent
    bases.trim(3)
    with pytest.raises(nnr.MissingReferenceError, match="expired"):
        bases.find(key, 2)


def test_a_message_of_a_stream_that_is_repeated() -> None:
    """It continues another state than the current one."""
    encoder, decoder = nnr.UpdateEncoder(base_model_id="key"), nnr.UpdateDecoder(like=BASE, limits=LIMITS)
    messages = [encoder.encode(FAIR) for _ in range(2)]
    for message in messages:
        decode_reply(message, BASE, decoder)
    before = decoder.state.nbytes
    with pytest.raises(nnr.MissingReferenceError):
        decode_reply(messages[1], BASE, decoder)
    assert decoder.state.nbytes == before


def test_what_a_reply_may_cost() -> None:
    """The limit follows from the model, however small it is."""
    tiny = limits_for([{"w": np.zeros(1, np.float32)}])
    assert tiny.max_tensor_elements == 1
    assert tiny.max_total_bytes < 1 << 17
    assert tiny.max_unit_bytes < 1 << 17
