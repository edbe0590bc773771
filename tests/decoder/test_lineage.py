"""The text that states which bitstream of a sender an update follows."""

from __future__ import annotations

import copy
import pickle
from base64 import b64encode
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnr_codec.decoder.lineage import Lineage, Position
from nnr_codec.errors import MissingReferenceError

TOKEN = "abcdefghijklmno_"


@pytest.mark.parametrize("base", ["", "sha256:00", "a#1.2.", "two\nlines", "é"])
@pytest.mark.parametrize("token", ["", TOKEN])
def test_written_texts_are_parsed(base: str, token: str) -> None:
    lineage = Lineage(base, 3, 12, token)
    assert str(lineage) == f"{base}#3.12.{token}"
    assert Lineage.parse(str(lineage)) == lineage


@given(st.text())
def test_any_text_is_parsed_or_opaque(text: str) -> None:
    found = Lineage.parse(text)
    assert found is None or str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "base",
        "base#1",
        "base#1.2",
        "#1.0.",  # numbers begin at 1
        "#01.1.",
        "#1.01.",
        "#-1.1.",
        "#1.1.abc",
        f"#1.1.{TOKEN}x",
        f"#1.1.{TOKEN[:-1]}+",
        f"#1.1.{TOKEN}\n",
        "#١.1.",
        f"#{'9' * 19}.1.",
    ],
)
def test_other_text_is_opaque(text: str) -> None:
    assert Lineage.parse(text) is None


def test_a_token_is_a_digest_of_the_token_and_the_bitstream_before() -> None:
    first, data = Lineage("", 0, 1, ""), bytes(range(256))
    assert first.follow(data) == b64encode(sha256(data).digest(), b"-_")[:16].decode() == "QK_y6dLYki5Hr9Rk"
    second = Lineage("other", 0, 2, first.follow(data))
    expected = sha256(second.token.encode() + b"data").digest()
    assert second.follow(memoryview(b"data")) == b64encode(expected, b"-_")[:16].decode()


def test_it_is_what_its_bitstream_makes_it() -> None:
    lineage = Lineage("base", 1, 2, TOKEN)
    assert pickle.loads(pickle.dumps(lineage)) == copy.deepcopy(lineage) == lineage


@pytest.mark.parametrize(
    ("known", "number", "token"),
    [
        ({}, 1, ""),
        ({}, 7, ""),  # a sender that restarts, or started before this receiver
        ({0: Position(9, TOKEN)}, 7, ""),  # of another sender
        ({1: Position(6, TOKEN)}, 7, TOKEN),
        ({1: Position(6, TOKEN)}, 7, ""),
        ({1: Position(6, TOKEN)}, 9, ""),
    ],
)
def test_what_follows(known: dict[int, Position], number: int, token: str) -> None:
    Lineage("", 1, number, token).check(known)


@pytest.mark.parametrize("known", [{}, {0: Position(6, TOKEN)}])
def test_a_sender_of_which_nothing_is_known(known: dict[int, Position]) -> None:
    with pytest.raises(MissingReferenceError, match=f"continues number 6, identified by {TOKEN}, .*none was decoded"):
        Lineage("", 1, 7, TOKEN).check(known)


@pytest.mark.parametrize(
    ("number", "token", "message"),
    [
        (6, TOKEN, "bitstream 6 of device_id 1 is repeated or out of order: number 6 was decoded"),
        (6, "", "repeated or out of order"),
        (5, "x" * 16, "repeated or out of order"),
        (8, TOKEN, f"continues number 7, identified by {TOKEN}, which is not known: .* one is 6"),
        (7, "x" * 16, f"continues number 6, identified by {'x' * 16}, .* the last decoded one is 6"),
    ],
)
def test_what_does_not_follow(number: int, token: str, message: str) -> None:
    with pytest.raises(MissingReferenceError, match=message):
        Lineage("", 1, number, token).check({1: Position(6, TOKEN)})
