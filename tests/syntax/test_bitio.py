"""The data types of 6.1.3, bit by bit."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
from bitarray import bitarray
from hypothesis import example, given
from hypothesis import strategies as some

from nnr_codec.errors import ElementError, LimitError, TruncatedError
from nnr_codec.limits import Limits
from nnr_codec.syntax import BitCounter, BitReader, BitWriter


def packed(bits: str) -> bytes:
    """Return the bytes of a bit string, padded with zeros."""
    return bitarray(bits.replace(" ", "")).tobytes()


def written(kind: str, n: int, value: Any) -> str:
    """Return one value as written, as a bit string."""
    writer = BitWriter()
    getattr(writer, kind)(n, value)
    bits = bitarray()
    bits.frombytes(writer.getvalue())
    return bits[: writer.pos].to01()


# ue(k) and ie(k) by the pseudo code of 6.1.3: ones inverted, groups of 2^k, 2^(k+1), ... values
GOLDEN = [
    ("u", 1, "1", 1),
    ("u", 3, "110", 6),
    ("u", 15, "000 0000 0000 1010", 10),
    ("u", 0, "", 0),
    ("u", 34, "10" + 31 * "0" + "1", (1 << 33) + 1),
    ("u", 256, "1" + 255 * "0", 1 << 255),
    ("i", 4, "0111", 7),
    ("i", 4, "1000", -8),
    ("i", 4, "1111", -1),
    ("i", 13, "1 0000 0000 0000", -4096),
    ("i", 13, "0 1111 1111 1111", 4095),
    ("ue", 0, "1", 0),
    ("ue", 0, "010", 1),
    ("ue", 0, "011", 2),
    ("ue", 0, "00100", 3),
    ("ue", 0, "00111", 6),
    ("ue", 0, "0001000", 7),
    ("ue", 1, "10", 0),
    ("ue", 1, "11", 1),
    ("ue", 1, "0100", 2),
    ("ue", 1, "0111", 5),
    ("ue", 1, "001000", 6),
    ("ue", 7, "1 0000000", 0),
    ("ue", 7, "1 1111111", 127),
    ("ue", 7, "01 00000000", 128),
    ("ue", 7, "01 11111111", 383),
    ("ue", 7, "001 000000000", 384),
    ("ue", 11, "1 00000000000", 0),
    ("ie", 0, "1", 0),
    ("ie", 0, "010", 1),
    ("ie", 0, "011", -1),
    ("ie", 0, "00100", 2),
    ("ie", 0, "00101", -2),
    ("ie", 2, "100", 0),
    ("ie", 2, "101", 1),
    ("ie", 2, "110", -1),
    ("ie", 2, "111", 2),
    ("ie", 2, "01000", -2),
    ("ie", 7, "1 0000001", 1),
    ("ie", 7, "1 0000010", -1),
    ("flt", 32, "00000000 00000000 10000000 00111111", 1.0),
    ("flt", 32, "00000000 00000000 00100000 11000000", -2.5),
    ("flt", 64, 48 * "0" + "11110000 00111111", 1.0),
    ("st", 0, "01100001 11000011 10100100 00000000", "aä"),
    ("st", 0, "00000000", ""),
    ("bs", 0, "00000000 11111111", b"\x00\xff"),
    ("bs", 0, "", b""),
    ("bits", 5, "10110", bitarray("10110")),
    ("bits", 0, "", bitarray()),
]
golden = pytest.mark.parametrize(("kind", "n", "bits", "value"), GOLDEN)


@golden
def test_golden(kind: str, n: int, bits: str, value: Any) -> None:
    """Values are written, read and counted."""
    assert written(kind, n, value) == bits.replace(" ", "")
    reader = BitReader(packed(bits))
    assert getattr(reader, kind)(n) == value
    assert reader.pos == len(bits.replace(" ", ""))
    counter = BitCounter(7)
    getattr(counter, kind)(n, value)
    assert counter.pos == 7 + len(bits.replace(" ", ""))


@golden
def test_any_bit_position(kind: str, n: int, bits: str, value: Any) -> None:
    """Only strings require byte alignment; flt does not (errata I4)."""
    for shift in range(8):
        data = packed("1" * shift + bits + "1" * 9)
        reader = BitReader(data, pos=shift)
        if shift and kind in ("st", "bs"):
            with pytest.raises(ElementError, match="inside a byte") as caught:
                getattr(reader, kind)(n)
            assert caught.value.bit == reader.pos == shift
        elif kind != "bs":  # which reads all remaining data
            assert getattr(reader, kind)(n) == value, shift
            assert reader.pos == shift + len(bits.replace(" ", ""))


# every kind with its values, for properties
def values(kind: str, n: int) -> some.SearchStrategy[Any]:
    """Draw values of a descriptor."""
    match kind:
        case "u":
            return some.integers(0, (1 << n) - 1)
        case "i":
            return some.integers(-(1 << (n - 1)), (1 << (n - 1)) - 1)
        case "ue":
            return some.integers(0, (1 << 32) - 1)
        case "ie":
            return some.integers(-(1 << 31) + 1, 1 << 31)
        case "flt":
            return some.floats(width=32 if n == 32 else 64, allow_nan=False)
        case "bits":
            return some.text("01", min_size=n, max_size=n).map(bitarray)
    raise AssertionError(kind)


@some.composite
def fields(draw: Callable[..., Any]) -> tuple[str, int, Any]:
    """Draw a descriptor without alignment, and a value."""
    kind = draw(some.sampled_from(["u", "i", "ue", "ie", "flt", "bits"]))
    if kind == "flt":
        n = draw(some.sampled_from([32, 64]))
    else:
        n = draw(some.integers(1 if kind == "i" else 0, 15 if kind in ("ue", "ie") else 130))
    return kind, n, draw(values(kind, n))


@given(
    some.lists(fields(), max_size=12), some.text(some.characters(exclude_characters="\0", codec="utf-8"), max_size=9)
)
@example([("u", 64, (1 << 64) - 1), ("u", 63, 0), ("u", 1, 1)], "")
@example([("bits", 130, bitarray(130 * "1"))], "ä")
def test_round_trip(sequence: list[tuple[str, int, Any]], text: str) -> None:
    writer, counter = BitWriter(), BitCounter()
    for kind, n, value in sequence:
        getattr(writer, kind)(n, value)
        getattr(counter, kind)(n, value)
        assert counter.pos == writer.pos
    end = writer.pos
    for io in (writer, counter):
        io.u(-end % 8, 0)
        io.st(0, text)
        io.bs(0, b"rest")
    assert counter.pos == writer.pos == 8 * len(writer.getvalue())

    reader = BitReader(writer.getvalue())
    for kind, n, value in sequence:
        assert getattr(reader, kind)(n) == value
    assert reader.pos == end
    assert reader.u(-end % 8) == 0
    assert reader.st() == text
    assert reader.bs() == b"rest"
    assert reader.pos == reader.end


def exp_golomb(reader: BitReader, k: int) -> int:
    """Return the result of the pseudocode of 6.1.3."""
    x, bit = 0, 1
    while bit:
        bit = 1 - reader.u(1)
        x += bit << k
        k += 1
    k -= 1
    if k > 0:
        x += reader.u(k)
    return x


@given(some.binary(min_size=9, max_size=9), some.integers(0, 15), some.integers(0, 7))
def test_exp_golomb_is_the_pseudo_code(data: bytes, k: int, pos: int) -> None:
    literal, reader, signed = (BitReader(data, pos, Limits(max_eg_bits=16 + k)) for _ in range(3))
    try:
        value = exp_golomb(literal, k)
    except TruncatedError:
        value, literal.pos = -1, 1000  # a long one
    if literal.pos - pos > 2 * 16 + 1 + k:
        with pytest.raises(LimitError, match="max_eg_bits"):
            reader.ue(k)
    else:
        assert reader.ue(k) == value
        assert reader.pos == literal.pos
        assert signed.ie(k) == (((value + 1) >> 1) if value & 1 else -(value >> 1))


# ------------------------------------------------------------------------------------------------ truncation, limits
@golden
def test_truncated_at_every_bit(kind: str, n: int, bits: str, value: Any) -> None:
    """Missing data at the end is always reported, and the position stays."""
    length = len(bits.replace(" ", ""))
    if kind == "bs":
        return  # cannot be too short
    step = 8 if kind == "st" else 1
    for missing in range(step, length + 1, step):
        # the remaining bits are at the end of the last byte
        have = bits.replace(" ", "")[: length - missing]
        pos = -len(have) % 8
        reader = BitReader(packed("1" * pos + have), pos)
        with pytest.raises(TruncatedError) as caught:
            getattr(reader, kind)(n)
        assert reader.pos == caught.value.bit == pos


@pytest.mark.parametrize("kind", ["ue", "ie"])
@pytest.mark.parametrize("k", [0, 1, 7, 15])
def test_longest_exp_golomb_code(kind: str, k: int) -> None:
    limits = Limits(max_eg_bits=20)
    longest = "0" * (20 - k) + "1" + "1" * 20
    value = getattr(BitReader(packed(longest), limits=limits), kind)(k)
    assert abs(value) > 1 << 18
    too_long = BitReader(packed("1110" + longest), pos=3, limits=limits)
    with pytest.raises(LimitError, match="max_eg_bits=20") as caught:
        getattr(too_long, kind)(k)
    assert too_long.pos == caught.value.bit == 3


def test_zeros_without_end_are_refused_at_once() -> None:
    reader = BitReader(bytes(1 << 20))
    with pytest.raises(LimitError, match="max_eg_bits"):
        reader.ue(0)


def test_string_that_is_not_utf8() -> None:
    reader = BitReader(b"x\xc3\x28\0", pos=8)
    with pytest.raises(ElementError, match="not UTF-8") as caught:
        reader.st()
    assert caught.value.bit == reader.pos == 8


@pytest.mark.parametrize("bad", [b"\xed\xa0\x80\0", b"\xc0\x80\0", b"\xf4\x90\x80\x80\0"])
def test_surrogates_and_overlong_forms_are_not_utf8(bad: bytes) -> None:
    with pytest.raises(ElementError, match="not UTF-8"):
        BitReader(bad).st()


def test_string_without_end() -> None:
    with pytest.raises(TruncatedError, match="no terminating zero"):
        BitReader(b"abc").st()
    with pytest.raises(TruncatedError):
        BitReader(b"").st()


def test_longest_string() -> None:
    limits = Limits(max_name_bytes=3)
    assert BitReader(b"abc\0", limits=limits).st() == "abc"
    for data in (b"abcd\0", b"abcdefgh"):
        reader = BitReader(data, limits=limits)
        with pytest.raises(LimitError, match="max_name_bytes=3") as caught:
            reader.st()
        assert caught.value.bit == reader.pos == 0


def test_unlimited_strings() -> None:
    assert BitReader(b"abc\0d", limits=Limits.unlimited()).st() == "abc"


def test_run_is_not_allocated_before_it_is_there() -> None:
    with pytest.raises(TruncatedError):
        BitReader(b"\xff").bits(1 << 60)
    with pytest.raises(TruncatedError):
        BitReader(b"\xff").u(1 << 60)


def test_any_buffer_can_be_read() -> None:
    for data in (b"\x12\x34", bytearray(b"\x12\x34"), memoryview(b"\x00\x12\x34")[1:]):
        assert BitReader(data).u(16) == 0x1234


# ------------------------------------------------------------------------------------------------ writing
@pytest.mark.parametrize(
    ("kind", "n", "value"),
    [
        ("u", 3, 8),
        ("u", 3, -1),
        ("u", 0, 1),
        ("u", -1, 0),
        ("u", -64, 1),
        ("i", 3, 4),
        ("i", 3, -5),
        ("ue", 1, -1),
        ("flt", 32, 1e39),
        ("flt", 32, "1"),
        ("st", 0, "a\0b"),
        ("st", 0, "\ud800"),
        ("bits", 2, bitarray("101")),
        ("bits", 2, bitarray("1")),
    ],
)
def test_out_of_range(kind: str, n: int, value: Any) -> None:
    writer = BitWriter()
    writer.u(8, 0xAB)
    with pytest.raises(
        ValueError, match=r"does not fit|negative|zero character|surrogates|expected . bits|expected .. bits"
    ):
        getattr(writer, kind)(n, value)
    assert writer.getvalue() == b"\xab"


@pytest.mark.parametrize("kind", ["u", "i", "ue", "ie"])
def test_only_integers_are_integers(kind: str) -> None:
    with pytest.raises(TypeError):
        getattr(BitWriter(), kind)(8, 1.0)
    assert written(kind, 8, True) == written(kind, 8, 1)


def test_strings_and_bytes_begin_at_a_byte() -> None:
    writer = BitWriter()
    writer.u(1, 1)
    for kind, value in (("st", "a"), ("bs", b"a")):
        with pytest.raises(ValueError, match="byte boundary"):
            getattr(writer, kind)(0, value)
    assert writer.pos == 1


@pytest.mark.parametrize("value", [math.inf, -math.inf, -0.0, 5e-324, 2**-149, 3.4028234663852886e38])
def test_extreme_floats(value: float) -> None:
    for n in (32, 64):
        if n == 64 or value == struct.unpack("<f", struct.pack("<f", value))[0]:
            again = BitReader(packed(written("flt", n, value))).flt(n)
            assert again == value
            assert math.copysign(1, again) == math.copysign(1, value)


def test_quiet_nan_keeps_its_bits() -> None:
    data = bytes.fromhex("efbecaff")
    writer = BitWriter()
    writer.flt(32, BitReader(data).flt(32))
    assert writer.getvalue() == data


@pytest.mark.parametrize(("n", "data"), [(32, "0100807f"), (32, "ffffbfff"), (64, "010000000000f0ff")])
def test_signalling_nan_keeps_its_bits(n: int, data: str) -> None:
    """Conversion from float32 to a Python float would make it a quiet one."""
    writer = BitWriter()
    value = BitReader(bytes.fromhex(data)).flt(n)
    assert math.isnan(value)
    writer.flt(n, value)
    assert writer.getvalue() == bytes.fromhex(data)


def test_nans_that_were_read_are_equal_when_their_bits_are() -> None:
    """Otherwise structures with not-a-numbers would differ from themselves after a round trip."""
    one, same, other = (BitReader(bytes.fromhex(data)).flt(32) for data in ("0100807f", "0100807f", "0200807f"))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != float("-nan")


def test_padding_is_zero() -> None:
    writer = BitWriter()
    assert writer.getvalue() == b""
    writer.u(3, 0b111)
    assert writer.getvalue() == b"\xe0"
    assert writer.pos == 3
    writer.u(6, 0b111111)
    assert writer.getvalue() == b"\xff\x80"
