"""NNR-NEG-032 to 049: damaged topology data, updates without their parents."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from nnr_codec.constants import NNR_DFL, NNR_PT_INT

from ..builder import update_ndu
from .arithmetic import assemble
from .bits import MPS_HEAD, STR1
from .case import Content, Tensor, invalid
from .negative_units import RAW, bad
from .stream import Stream

# ------------------------------------------------------------------------------------------------ topology
TOPOLOGY = assemble(*STR1, "0x0006 nnr_unit_size 6", *MPS_HEAD, "0x8000", "0x80")


def topology(data: bytes, compression: int = 0, kind: str = "topology") -> bytes:
    """Return a bitstream with a topology or quantization unit of these bytes, and a tensor."""
    s = Stream()
    s.session.general_profile_idc = 1
    getattr(s, kind)(data, compression=compression)
    return TOPOLOGY + s.data + RAW


TEXT = b"version 1.0; graph net(i) -> (o) {}\0"
WHOLE = zlib.compress(TEXT, 0)  # one stored block
DAMAGED = bytearray(WHOLE)
DAMAGED[10] ^= 1  # wrong checksum


def bomb(length: int) -> bytes:
    """Return a zlib stream of ``length`` bytes 'A': fixed codes, one literal and copies of 258 bytes."""
    bits = "1" + "10" + "01110001"  # final block, fixed codes (least significant bit first), literal 'A' (0x41)
    copies, rest = divmod(length - 1, 258)
    bits += "1100010100000" * copies + "01110001" * rest + "0000000"
    bits += "0" * (-len(bits) % 8)
    body = bytes(int(bits[k : k + 8][::-1], 2) for k in range(0, len(bits), 8))
    return b"\x78\x01" + body + zlib.adler32(b"A" * length).to_bytes(4, "big")


for number, (title, rule, data, compression) in enumerate(
    [
        ("a topology without its terminating zero", "nnef-string", TEXT[:-1], 0),
        ("a topology with a zero inside", "nnef-string", b"a\0" + TEXT, 0),
        ("a topology with reserved compression format 2", "compression-format", TEXT, 2),
        ("deflated data with a wrong checksum", "deflate", bytes(DAMAGED), NNR_DFL),
        ("truncated deflated data", "deflate", WHOLE[:-6], NNR_DFL),
        ("bytes after deflated data", "deflate", WHOLE + b"\0", NNR_DFL),
        ("a topology with compression format NNR_DFL that is not deflated", "deflate", TEXT, NNR_DFL),
        ("256 KiB deflated to 1.6 KB, with max_topology_bytes 65536", "limits", bomb(1 << 18), NNR_DFL),
        (
            "deflated quantization data without its terminating zero",
            "nnef-quantization-string",
            zlib.compress(TEXT[:-1], 0),
            NNR_DFL,
        ),
    ],
    32,
):
    bad(
        f"NNR-NEG-{number:03}",
        title,
        "6.4.3.5 A.4",
        "LimitError" if rule == "limits" else "ElementError",
        2,
        topology(data, compression, "quantization" if "quantization" in rule else "topology"),
        features="topology_data",
        requirements=rule,
        limits={"max_topology_bytes": 65536} if rule == "limits" else {},
    )


# ------------------------------------------------------------------------------------------------ updates
def update(
    *depths: int, dims: tuple[tuple[int, ...], ...] = ((2, 3), (2, 3)), temporal: int = 0, device: int = 0
) -> list[Content]:
    """Return bitstreams of updates with these depths, of which the last is invalid."""
    made = []
    for k, depth in enumerate(depths):
        shape = dims[k]
        levels = [j % 3 for j in range(shape[0] * shape[1])]
        s = Stream().start(parent=int(depth > 0))
        header = update_ndu("w", shape, depth, kind=NNR_PT_INT, device=device * k)
        header.temporal_context_modeling_flag = temporal if depth else 0
        s.ndu(header, levels)
        last = k == len(depths) - 1
        made.append(s.refused() if last else s.gives({"w": _array(levels, shape)}))
    return made


def _array(levels: list[int], shape: tuple[int, ...]) -> Tensor:
    return np.array(levels, np.int32).reshape(shape)


def bad_updates(id_: str, title: str, *depths: int, requirements: str, **options: Any) -> None:
    """Register updates of which the last has no parent."""

    clauses, error = "6.4.3.7 10.3.4.2.2", "MissingReferenceError"

    @invalid(id_, title, clauses, "put_node_depth", error, 2, requirements=requirements)
    def make() -> list[Content]:
        return update(*depths, **options)


bad_updates("NNR-NEG-041", "the second update without the first", 2, requirements="required-information")
bad_updates("NNR-NEG-042", "the third update after the first", 1, 3, temporal=1, requirements="parent-depth")
bad_updates(
    "NNR-NEG-043", "the second update with a different device_id", 1, 2, device=1, requirements="required-information"
)
bad_updates(
    "NNR-NEG-044",
    "temporal contexts after an update with a different shape",
    1,
    2,
    dims=((2, 3), (3, 2)),
    temporal=1,
    requirements="update-shape",
)
