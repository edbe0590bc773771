"""Target: payloads of clause 10 under any headers, for which kernel and plain implementation must agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from random import Random

from nnr_codec.errors import PayloadError
from nnr_codec.syntax.deepcabac import QuantTensor, QuantTensorSyntax

from ...cabac.pairs import Decoded, assert_same, kernel_decode, kernel_encode, kernel_trace, level_range, oracle_decode

UNARY = (0, 1, 9, 20)
#: Number of bytes that select the headers.
HEAD = 7


def syntax(head: bytes) -> QuantTensorSyntax:
    """Return random headers."""
    a, b, c, d, e, f, g = head
    dims = (1 + a % 17, 1 + b % 5, 1 + b // 5 % 2)[: 1 + c % 3]
    size = prod(dims)
    profile, parent = c >> 2 & 1, c >> 3 & 1
    temporal = parent & c >> 4
    random = Random(g)
    return QuantTensorSyntax(
        dims,
        dq_flag=c >> 5 & 1,
        general_profile_idc=profile,
        cabac_unary_length_minus1=UNARY[c >> 6],
        scan_order=d % 5,
        codebook=(1 + e % 40, f % (1 + e % 40)) if d & 128 else None,
        parent_node_id_present_flag=parent,
        temporal_context_modeling_flag=temporal,
        co_loc=[random.choice((0, 0, 1, -2, 2**31 - 1, -(2**31))) for _ in range(size)] if temporal else None,
        any_sig_before=[random.getrandbits(1) for _ in range(size)] if parent and d & 64 else None,
        qp_bits=(0, 6, 8, 13)[d >> 4 & 3],
        first_edition=not profile and bool(d & 8),
    )


def target(data: bytes) -> None:
    """Decode a payload with headers from the first bytes."""
    if len(data) < HEAD:
        return
    s, payload = syntax(data[:HEAD]), data[HEAD:]
    expected, refused = _read(oracle_decode, payload, s)
    found, why = _read(kernel_decode, payload, s)
    assert (found is None) == (expected is None), (refused, why)
    traced, _ = _read(kernel_trace, payload, s)
    if expected:
        for each in (found, traced):
            assert each
            assert_same(each, expected)


def _read(
    decode: Callable[[bytes, Sequence[QuantTensorSyntax]], Decoded], payload: bytes, s: QuantTensorSyntax
) -> tuple[Decoded | None, str]:
    try:
        return decode(payload, [s]), ""
    except PayloadError as error:
        assert decode is oracle_decode or 0 <= error.bit <= 8 * len(payload), str(error)
        return None, str(error)


def seeds() -> Iterable[bytes]:
    """Return payloads of small levels under many headers."""
    for k in range(120):
        random = Random(k)
        head = random.randbytes(HEAD)
        s = syntax(head)
        low, high = level_range(s)
        width = random.choice((3, 3, 3, 1 << 31))
        size = s.tensor_2d_height * s.tensor_2d_width
        levels = [random.choice((0, random.randint(max(low, -width), min(high, width)))) for _ in range(size)]
        yield head + kernel_encode((s, QuantTensor(levels)))
