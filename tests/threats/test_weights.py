"""T36, T37, T40: weight files that refer to other files or declare more than their content."""

from __future__ import annotations

import io
import json
import os
import struct
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats.safetensors import shards
from nnr_codec.limits import Limits
from nnr_codec.model import Model, Topology

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
    with pytest.raises(FormatError, match="which does not contain it"):
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
    """A record of kilobytes declares thousands of them."""
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


def test_keys_are_limited(tmp_path: Path) -> None:
    """They are limited before they are read."""
    (tmp_path / "x").write_bytes(file_of([], keys=[key("x", 8, struct.pack("<Q", 10 << 20) + bytes(10 << 20))]))
    with memory() as found, pytest.raises(LimitError, match="max_topology_bytes"):
        formats.load(tmp_path / "x", limits=Limits(max_topology_bytes=500))
    assert found.peak < 5 << 20


def test_arrays_in_arrays() -> None:
    with pytest.raises(FormatError, match="nested deeper than 4"):
        formats.load(file_of([], keys=[key("x", 9, array_of(9, 1, b"") * 5000 + array_of(0, 0, b""))]))


def test_numbers_are_not_kept_beyond_the_room() -> None:
    """As Python objects, they would take eight times as much memory."""
    data = file_of([], keys=[key("x", 9, array_of(0, 10 << 20, bytes(10 << 20)))])
    model = formats.load(data)
    with pytest.warns(formats.FormatWarning, match="skipped the values of these keys: 'x'"), memory() as found:
        formats.dequantized(model)
    assert found.peak < 30 << 20


def test_tensors_do_not_overlap() -> None:
    with pytest.raises(FormatError, match="overlap"):
        formats.load(file_of([info("w", [2], I8, 0), info("v", [2], I8, 0)], bytes(40)))


def test_tensors_are_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(file_of([info("w", [1 << 30], I8, 0)], bytes(40)))
    with pytest.raises(FormatError, match="are required"):
        formats.load(tmp_path / "x")


def test_bytes_between_tensors_are_limited(tmp_path: Path) -> None:
    """They become the topology, which is in memory."""
    with open(tmp_path / "x", "wb") as file:
        file.write(file_of([info("w", [2], I8, 1 << 30)]))
        file.truncate((1 << 30) + 1000)
    with pytest.raises(LimitError, match="bytes that are not tensor data: 1,073,742,822 is more than max_topology"):
        formats.load(tmp_path / "x")


def test_fields_of_blocks_are_limited() -> None:
    """A byte of Q2_K has four levels, which are bytes in memory."""
    data = file_of([info("w", [256, 100], 10, 0)], bytes(8400))
    formats.load(data, limits=Limits(max_tensor_bytes=25_600, max_total_bytes=29_200))
    for limit in ({"max_tensor_bytes": 25_599}, {"max_total_bytes": 29_199}, {"max_names": 5}):
        with pytest.raises(LimitError, match=next(iter(limit))):
            formats.load(data, limits=Limits(**limit))


def test_shapes_of_empty_weights() -> None:
    """They are too large for float32, but not for int8."""
    with pytest.raises(FormatError, match="exceeds the largest possible array"):
        formats.load(file_of([info("w", [1 << 61, 0], 2, 0)]))


def test_names_of_fields_are_limited() -> None:
    data = file_of([info("w" * 20, [32], 2, 0)], bytes(18))
    with pytest.raises(LimitError, match="bytes of the name of a field: 27 is more than max_name_bytes=26"):
        formats.load(data, limits=Limits(max_name_bytes=26))


def test_separators_of_many_names() -> None:
    """Each of thousands of tensors has a name with more marks than the one before."""
    infos = [info("w" + "#" * k, [0, 32], 2, 0) for k in range(2000)]
    start = time.process_time()
    assert len(formats.load(file_of(infos))) == 4000
    assert time.process_time() - start < 5


@pytest.mark.parametrize("change", [-1, 1])
def test_integers_fit_their_blocks(change: int) -> None:
    """Otherwise they would change adjacent fields."""
    model = formats.load(file_of([info("w", [32], 2, 0)], bytes(range(18))))
    levels = np.full(32, {-1: -9, 1: 8}[change], np.int8)
    with pytest.raises(FormatError, match="'w#levels' has integers outside -8 to 7, the range of Q4_0"):
        formats.save(replace(model, tensors={**model.tensors, "w#levels": levels}), io.BytesIO(), format="gguf")


def test_topologies_of_a_bitstream() -> None:
    """Tensors that it lists are written only if the model has them with these shapes."""
    head = file_of([info("w", [1 << 20, 1 << 10], I8, 0)])
    model = Model({"w": np.zeros(2, np.int8)}, Topology("", head))
    with pytest.raises(FormatError, match=r"'w' is int8 \[2\]; the GGUF file says int8 \[1024, 1048576\]"):
        formats.save(model, io.BytesIO(), format="gguf")
    with pytest.raises(FormatError, match="the model has no tensor 'w'"):
        formats.save(Model({}, Topology("", head)), io.BytesIO(), format="gguf")
    overlapping = file_of([info("w", [2], I8, 0), info("v", [2], I8, 0)])
    with pytest.raises(FormatError, match="overlap"):
        formats.save(Model({}, Topology("", overlapping)), io.BytesIO(), format="gguf")


def test_arrays_are_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(headed("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000,)}"))
    with pytest.raises(FormatError, match="header and items require"):
        formats.load(tmp_path / "x")


def test_shapes_of_empty_arrays() -> None:
    with pytest.raises(FormatError, match="exceeds the largest possible array"):
        formats.load(headed(f"{{'descr': '<f8', 'fortran_order': False, 'shape': (0, {1 << 61})}}", b""))
