"""T36, T37, T40: files of weights alone, which name other files or say more than they have."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats.safetensors import shards
from nnr_codec.limits import Limits
from nnr_codec.model import Model

from ..formats.test_gguf import I8, array_of, file_of, info, key
from ..formats.test_npy import headed
from ..formats.test_shards import INDEX, ONE, TENSORS, TWO, checkpoint, elsewhere
from .support import memory


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800"])
def test_shards_are_plain_names(name: str, tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m")
    index.write_text(elsewhere(name))
    with pytest.raises(FormatError, match="not a plain file name"):
        formats.load(index)


@pytest.mark.parametrize("target", ["../out.safetensors", "/dev/null", ".."])
def test_links_do_not_lead_out(target: str, tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m")
    (index.parent / TWO).rename(tmp_path / "out.safetensors")
    (index.parent / TWO).symlink_to(target)
    with pytest.raises(FormatError, match="is a symbolic link that leaves the model's folder"):
        formats.load(index)


def test_a_tensor_is_in_its_shard(tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m")
    index.write_text(elsewhere(ONE))
    with pytest.raises(FormatError, match="the index says"):
        formats.load(index)


def test_no_tensor_is_missing(tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m")
    index.write_text(elsewhere(ONE, "new"))
    with pytest.raises(FormatError, match="although the index says so"):
        formats.load(index)


def test_shards_count_together(tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m")
    size = max(path.stat().st_size for path in index.parent.iterdir())
    with pytest.raises(LimitError, match="max_archive_bytes"):
        formats.load(index, limits=Limits(max_archive_bytes=size))


@pytest.mark.parametrize("name", ["../x.safetensors", "C:x.safetensors", "aux.safetensors", "x"])
def test_names_from_a_bitstream(name: str, tmp_path: Path) -> None:
    record = json.dumps({"runs": [3, 0, 4, 1], "names": ["a.safetensors", name]})
    with pytest.raises(FormatError, match="file names that are not portable"):
        formats.save(Model(TENSORS, metadata={shards.KEY: record}), tmp_path / INDEX)


def test_another_model_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious.safetensors").write_bytes(b"precious")
    record = json.dumps({"runs": [3, 0, 4, 1], "names": ["a.safetensors", "precious.safetensors"]})
    formats.save(Model(TENSORS, metadata={shards.KEY: record}), tmp_path / INDEX, overwrite=True)
    assert (tmp_path / "precious.safetensors").read_bytes() == b"precious"
    assert sorted(os.listdir(tmp_path)) == [ONE, TWO, INDEX, "precious.safetensors"]


def test_no_shards_without_tensors(tmp_path: Path) -> None:
    """Thousands of them, in a record of kilobytes."""
    runs = [7, 0] + [each for k in range(1, 1000) for each in (0, k)]
    with pytest.raises(FormatError, match="does not describe shards"):
        formats.save(Model(TENSORS, metadata={shards.KEY: json.dumps({"runs": runs})}), tmp_path / INDEX)


# ------------------------------------------------------------------------------------------------ GGUF, NumPy
def test_strings_end_with_the_file() -> None:
    with pytest.raises(FormatError, match="the file ends"):
        formats.load(file_of([], keys=[key("x", 8, struct.pack("<Q", 1 << 20) + b"x")]))


def test_counts_of_strings() -> None:
    with pytest.raises(FormatError, match="288,230,376,151,711,744 bytes should follow"):
        formats.load(file_of([], keys=[key("x", 9, array_of(8, 1 << 55, b"\0" * 800))]))


def test_keys_are_limited() -> None:
    with pytest.raises(LimitError, match="max_topology_bytes"):
        formats.load(
            file_of([], keys=[key("x", 8, struct.pack("<Q", 900) + b"x" * 900)]), limits=Limits(max_topology_bytes=500)
        )


def test_arrays_in_arrays() -> None:
    with pytest.raises(FormatError, match="nested deeper than 4"):
        formats.load(file_of([], keys=[key("x", 9, array_of(9, 1, b"") * 5000 + array_of(0, 0, b""))]))


def test_numbers_are_not_kept_beyond_the_room() -> None:
    """As Python's, they would take eight times as much."""
    data = file_of([], keys=[key("x", 9, array_of(0, 1 << 20, bytes(1 << 20)))])
    with pytest.warns(formats.FormatWarning, match="skipped the values of these keys: 'x'"), memory() as found:
        formats.load(data, limits=Limits(max_side_info_bytes=1 << 16))
    assert found.peak < 4 << 20


def test_tensors_do_not_overlap() -> None:
    with pytest.raises(FormatError, match="overlap"):
        formats.load(file_of([info("w", [2], I8, 0), info("v", [2], I8, 0)], bytes(40)))


def test_tensors_are_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(file_of([info("w", [1 << 30], I8, 0)], bytes(40)))
    with pytest.raises(FormatError, match="are required"):
        formats.load(tmp_path / "x")


def test_arrays_are_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(headed("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000,)}"))
    with pytest.raises(FormatError, match="header and items require"):
        formats.load(tmp_path / "x")


def test_shapes_of_empty_arrays() -> None:
    with pytest.raises(FormatError, match="exceeds the largest possible array"):
        formats.load(headed(f"{{'descr': '<f8', 'fortran_order': False, 'shape': (0, {1 << 61})}}", b""))
