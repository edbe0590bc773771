"""Round trip of a sharded checkpoint of 600 MB, in less memory than its size."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.formats.safetensors import mapped

from .test_memory import COMMAND, peak

pytestmark = pytest.mark.slow

Record = Callable[[str, object], None]

CHECKPOINT = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "checkpoint.py"))
INDEX, write = CHECKPOINT["INDEX"], CHECKPOINT["write"]
SIZE = 600 * 10**6  # bytes
ENCODE = "import sys, nnr_codec as n; n.encode_file(sys.argv[1], sys.argv[2], effort=1, jobs=2)"
ENCODE_EXACTLY = "import sys, nnr_codec as n; n.encode_file(sys.argv[1], sys.argv[2], exact=True, effort=1, jobs=2)"


def test_memory_for_a_large_checkpoint(tmp_path: Path, record_property: Record) -> None:
    source, bitstream, target = tmp_path / "source", tmp_path / "m.nnr", tmp_path / "target"
    total = write(source, SIZE)
    encoding = peak(ENCODE, source, bitstream)
    decoding = peak(COMMAND, "decode", bitstream, "-q", "-o", target, "--to", "safetensors", "-j", 2)
    record_property("figure: MB of memory to encode a checkpoint of 600 MB", round(encoding))
    record_property("figure: MB of memory to decode it", round(decoding))
    before, after = (json.loads((folder / INDEX).read_text()) for folder in (source, target))
    assert before == after
    assert sorted(path.name for path in source.iterdir()) == sorted(path.name for path in target.iterdir())
    old, new = mapped(source), mapped(target)
    assert sum(tensor.nbytes for tensor in new.tensors.values()) == total
    for name in list(old)[::9]:
        assert np.sqrt(np.mean((new[name] - old[name]) ** 2)) < 2.0**-10
    del old, new
    shutil.rmtree(source)
    shutil.rmtree(target)
    assert max(encoding, decoding) < 400


def test_every_byte_of_a_checkpoint(tmp_path: Path) -> None:
    """The test uses a fifth of the size, in bfloat16."""
    source, target = tmp_path / "source", tmp_path / "target"
    write(source, SIZE // 5, shards=3, code="BF16")
    assert peak(ENCODE_EXACTLY, source, tmp_path / "m.nnr") < 400
    nnr.decode_file(tmp_path / "m.nnr", target, format="safetensors", jobs=2)
    for path in source.iterdir():
        assert path.read_bytes() == (target / path.name).read_bytes()
