"""Side information in lists and trees of units."""

from __future__ import annotations

import json
import zlib

import pytest

from nnr_codec.bitstream.summary import summarise
from nnr_codec.bitstream.tree import SIDE_BYTES, trees
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.constants import NNR_DFL

from ..builder import Bitstream

RECORD = b'{"nnr_codec":1,"tensors":{"w":{"type":"float16"}}}'


def unit(data: bytes, *, deflated: bool = False, storage: int = 128) -> bytes:
    """Return a bitstream whose last unit contains ``data``."""
    text = zlib.compress(data) if deflated else data
    return Bitstream().str_().mps().topology(text, storage=storage, compression=NNR_DFL if deflated else 0).data


def shown(data: bytes) -> tuple[str, str, str]:
    """Return the line of the last unit, and the meanings of its format and its data."""
    *_, line = summarise(data)
    *_, tree = trees(UnitReader(data))
    storage, text = tree.find(["topology_storage_format", "topology_data"])
    assert sum(node.bits for node in tree.walk() if not node.children) == tree.bits
    assert json.loads(json.dumps(tree.to_dict()))
    return line.detail, storage.meaning, text.meaning


@pytest.mark.parametrize("deflated", [False, True])
def test_the_record_can_be_read(deflated: bool) -> None:
    detail, storage, text = shown(unit(RECORD, deflated=deflated))
    assert detail == "side information" + ", deflated" * deflated
    assert (storage, text) == ("side information (docs/reference/side-information.md)", RECORD.decode())


@pytest.mark.parametrize("deflated", [False, True])
def test_only_so_much_of_it(deflated: bool) -> None:
    for size, more in ((SIDE_BYTES, ""), (SIDE_BYTES + 1, "..."), (1 << 22, "...")):
        long = b'{"nnr_codec":' + b"\xff" * (size - 13)
        text = shown(unit(long, deflated=deflated))[2]
        assert text == '{"nnr_codec":' + "\ufffd" * (SIDE_BYTES - 13) + more


def test_deflated_data_that_breaks_off() -> None:
    data = zlib.compress(RECORD)[:-12]
    s = Bitstream().str_().mps().topology(data, storage=128, compression=NNR_DFL)
    detail, _, text = shown(s.data)
    assert detail == "side information, deflated"
    assert RECORD.decode().startswith(text) and text.startswith('{"nnr_codec":1')


@pytest.mark.parametrize(
    ("data", "storage", "compression"),
    [(RECORD, 129, 0), (RECORD, 200, 0), (RECORD[1:], 128, 0), (b"", 128, 0), (RECORD, 128, 1), (RECORD, 128, 2)],
)
def test_foreign_side_information(data: bytes, storage: int, compression: int) -> None:
    s = Bitstream().str_().mps().topology(data, storage=storage, compression=compression)
    detail, meaning, text = shown(s.data)
    assert detail.startswith(f"format {storage}")
    assert "side" not in meaning + text
