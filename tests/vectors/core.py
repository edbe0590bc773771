"""nnr_codec/conformance/core.zip: vectors for ``nnr_codec.selftest``, from each group, with all coding tools."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

from .case import Case
from .cases import CASES

FILE = Path(__file__).resolve().parents[2] / "nnr_codec" / "conformance" / "core.zip"

#: Ids without the prefix ``NNR-``.
IDS = (
    # raw floats, an aggregate, a reference list, annotated bits, an arithmetic code string in parts, masks
    "SYN-003",
    "SYN-006",
    "SYN-008",
    "SYN-015",
    "SYN-018",
    "SYN-034",
    # remainders of every length, shift parameter ids of each context with states, skipped rows
    "CAB-006",
    "CAB-010",
    "CAB-014",
    # steps, dependent quantization, a codebook
    "QNT-003",
    "QNT-012",
    "QNT-017",
    "QNT-023",
    # types, entry points with states, a shift of dimensions, tensors that share a unit
    "TEN-007",
    "TEN-014",
    "TEN-030",
    "TEN-033",
    # all parts of a block, with and without decomposition
    "BLK-007",
    "BLK-011",
    # temporal and history contexts, residuals, a parent by hash
    "UPD-005",
    "UPD-008",
    "UPD-012",
    # a graph in the bitstream, and folded batch normalization
    "NEF-003",
    "NEF-014",
    # bfloat16, 64-bit integers
    "SID-005",
    "SID-029",
    # a topology of another format, the tools of 3GPP
    "TPL-005",
    "3GP-012",
    # written like the first edition's software
    "ACC-003",
    # structure, references, numbers, payloads, side information
    "NEG-009",
    "NEG-028",
    "NEG-060",
    "NEG-090",
    "NEG-104",
    "NEG-128",
    "SID-255",
)


def cases() -> list[Case]:
    """Return the cases, sorted by id."""
    return [CASES[f"NNR-{name}"] for name in sorted(IDS)]


def archive(files: Callable[[Case], dict[str, bytes]]) -> bytes:
    """Return a reproducible zip archive of the ``files`` of each case."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as packed:
        for case in cases():
            for name, data in sorted(files(case).items()):
                info = zipfile.ZipInfo(f"{case.folder}/{name}", (1980, 1, 1, 0, 0, 0))
                info.create_system, info.external_attr = 3, 0o644 << 16
                packed.writestr(info, data)
    return buffer.getvalue()
