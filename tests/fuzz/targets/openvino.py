"""Target: OpenVINO IRs, which are an XML and a file of constants."""

from __future__ import annotations

from collections.abc import Iterable

import nnr_codec as nnr

from ...formats.ir_operations import CASES, network
from ...formats.irs import BITS, around, const, ir
from .support import LIMITS, folder, harmless, joined, parted, read


def target(data: bytes) -> None:
    """Read and check both files."""
    xml, weights = parted(data, 2)
    with folder({"m.xml": xml, "m.bin": weights}) as path:
        read(path / "m.xml", "openvino")
        with harmless():
            nnr.verify_model(path / "m.xml", limits=LIMITS)


def seeds() -> Iterable[bytes]:
    """Return layers of each type, bodies in layers, and operations of opset1."""
    for kind, bits in BITS.items():
        size = (6 * bits + 7) // 8
        yield joined(ir(const("w", 0, size, kind, (2, 3)), const("e", size, 4, "i32")), bytes(size + 4))
    bodies = ("then_body", [const("w", 0, 8, "f32", (2,))]), ("else_body", [const("w", 8, 8, "f32", (2,))])
    yield joined(ir(around("if", *bodies), version=10), bytes(range(16)))
    for case in CASES:
        net = network(case)
        yield joined(net.xml(), bytes(net.data))
