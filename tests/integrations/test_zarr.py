"""The codec ``nnr`` of zarr 3 and of numcodecs, found by its entry points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.model import Array

from ..cli.support import weights

pytestmark = [
    pytest.mark.medium,
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]
zarr: Any = pytest.importorskip("zarr", reason="the package zarr (extra 'zarr') is not installed")
numcodecs: Any = pytest.importorskip("numcodecs")

#: A smooth field, and the same with missing values.
FIELD = np.cumsum(np.random.default_rng(1).standard_normal((50, 44)), axis=0)
MISSING = FIELD.astype(np.float32)
MISSING[:25] = MISSING[30, 3] = np.nan  # two whole chunks and a part of one of the other two
ARRAYS: dict[str, Array] = {
    **{kind: FIELD.astype(kind) for kind in ("f2", "f4", ">f4", "f8", "i1", "u1", ">i2", "i4", "?")},
    "i8": (FIELD * 2.0**40).astype(np.int64),
    "u8": np.full((50, 44), (1 << 64) - 1, np.uint64),
    "M8": FIELD.astype("M8[s]"),
    ">m8": FIELD.astype(">m8[ns]"),
    "missing": MISSING,
    "no dimensions": np.array(2.5),
    "empty": np.zeros((0, 5), np.float32),
    "vector": FIELD.ravel(),
    "weights": weights(2, (64, 64)),
}


def stored(path: Path, array: Array, zarr_format: int = 3, shards: Any = None, order: str = "C", **options: Any) -> Any:
    """Return an array written to a folder with the codec, opened from its metadata alone."""
    both: Any = {"shape": array.shape, "dtype": array.dtype, "zarr_format": zarr_format, "fill_value": 0}
    both["chunks"] = tuple(max(1, min(extent, 25)) for extent in array.shape)
    if zarr_format == 3:
        serializer = {"name": "nnr", "configuration": options}
        found = zarr.create_array(path, serializer=serializer, compressors=None, shards=shards, **both)
    else:
        found = zarr.create_array(path, compressors={"id": "nnr", **options}, filters=None, order=order, **both)
    found[...] = array
    return zarr.open_array(path, mode="r")


def files(path: Path) -> dict[str, bytes]:
    """Return the files of a folder."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_every_type_comes_back_bit_by_bit(tmp_path: Path, zarr_format: int) -> None:
    for key, array in ARRAYS.items():
        found = stored(tmp_path / key, array, zarr_format)[...]
        if zarr_format == 3:  # which has no byte order
            array = array.astype(array.dtype.newbyteorder("="))  # noqa: PLW2901
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes()), key


def test_sharded_arrays_and_arrays_in_column_major_order(tmp_path: Path) -> None:
    sharded = stored(tmp_path / "sharded", MISSING, shards=(50, 50))
    np.testing.assert_array_equal(sharded[...], MISSING)
    np.testing.assert_array_equal(sharded[30:40, 3], MISSING[30:40, 3])
    np.testing.assert_array_equal(stored(tmp_path / "columns", FIELD, 2, order="F")[...], FIELD)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_lossy_chunks_meet_the_maximum_error_and_keep_missing_values(tmp_path: Path, zarr_format: int) -> None:
    for kind in ("f4", "f8"):
        found = stored(tmp_path / kind, MISSING.astype(kind), zarr_format, max_error=0.01)[...]
        np.testing.assert_array_equal(np.isnan(found), np.isnan(MISSING))
        assert 0 < np.nanmax(abs(found - MISSING)) <= 0.01


def test_lossy_options_leave_integers_alone_and_apply_to_vectors(tmp_path: Path) -> None:
    for k, key in enumerate(("i4", "M8")):
        np.testing.assert_array_equal(stored(tmp_path / str(k), ARRAYS[key], quality=20, rate=1)[...], ARRAYS[key])
    found = stored(tmp_path / "vector", ARRAYS["vector"], quality=40)[...]
    snr = 10 * np.log10(np.sum(FIELD**2) / np.sum((found - FIELD.ravel()) ** 2))
    assert 38 < snr < 45


def test_the_same_array_makes_the_same_files(tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("four", 4)):
        with zarr.config.set({"threading.max_workers": workers}):
            stored(tmp_path / name, FIELD, quality=40)
    assert files(tmp_path / "one") == files(tmp_path / "four")


BAD = [
    pytest.param({"quality": 200}, nnr.EncodeError, "quality 200 is outside 0..100", id="range"),
    pytest.param({"qualty": 40}, TypeError, "unexpected option 'qualty'; did you mean 'quality'", id="name"),
    pytest.param({"exact": True, "quality": 40}, nnr.EncodeError, "quality has no effect; omit it", id="combination"),
    pytest.param({"max_error": "1e-3"}, nnr.EncodeError, "max_error must be a finite number, got '1e-3'", id="type"),
]


@pytest.mark.parametrize(("options", "error", "match"), BAD)
def test_bad_options_are_rejected_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    for zarr_format in (2, 3):
        with pytest.raises(error, match=match):
            stored(tmp_path / "new", FIELD, zarr_format, **options)
    assert not files(tmp_path)


@pytest.mark.parametrize(("options", "error", "match"), BAD)
def test_bad_options_of_a_stored_array_are_rejected_when_it_is_opened(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    stored(tmp_path, FIELD, quality=40)
    metadata = json.loads((tmp_path / "zarr.json").read_text())
    assert metadata["codecs"] == [{"name": "nnr", "configuration": {"quality": 40}}]
    metadata["codecs"][0]["configuration"] = options
    (tmp_path / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(error, match=match):
        zarr.open_array(tmp_path)


@pytest.mark.parametrize("dtype", [[("a", "f4"), ("b", "i4")], "c8", "U5"], ids=str)
def test_other_types_are_rejected_before_anything_is_written(tmp_path: Path, dtype: Any) -> None:
    array = np.zeros(4, dtype)
    for shards in (None, (4,)):
        with pytest.raises(nnr.EncodeError, match="the codec nnr does not support type"):
            zarr.create_array(tmp_path, data=array, chunks=(2,), shards=shards, serializer={"name": "nnr"})
    assert not files(tmp_path)
    with pytest.raises(nnr.EncodeError, match="the codec nnr does not support type"):
        numcodecs.get_codec({"id": "nnr"}).encode(array)


def test_a_foreign_chunk_in_a_store_is_rejected(tmp_path: Path) -> None:
    for zarr_format, chunk in ((2, "0.0"), (3, "c/0/0")):
        folder = tmp_path / str(zarr_format)
        array = stored(folder, FIELD, zarr_format)
        assert (folder / chunk).exists()
        (folder / chunk).write_bytes(nnr.encode({"": np.zeros((25, 26))}, exact=True))
        with pytest.raises(ValueError, match=r"expected float64 \(25, 25\)" if zarr_format == 3 else "reshape"):
            array[...]
        (folder / chunk).write_bytes(b"not a bitstream")
        with pytest.raises(nnr.NnrError):
            array[...]


def test_chunks_are_not_shaped_like_weights_of_convolutions() -> None:
    chunk = np.random.default_rng(2).normal(size=(8, 4, 5, 5)).astype("f4")
    plain, shaped = (nnr.decode(nnr.encode({"w": chunk}, quality=30, noise_shaping=on))["w"] for on in (False, True))
    codec = numcodecs.get_codec({"id": "nnr", "quality": 30})
    np.testing.assert_array_equal(codec.decode(codec.encode(chunk)), plain)
    assert not np.array_equal(plain, shaped)


def test_numcodecs_alone() -> None:
    codec = numcodecs.get_codec({"id": "nnr", "quality": 50})
    assert codec.get_config() == {"id": "nnr", "quality": 50}
    assert repr(codec) == "Nnr(quality=50)" and codec == numcodecs.get_codec(codec.get_config())
    codec = numcodecs.get_codec({"id": "nnr", "exact": None, "quality": None})  # null in JSON
    for array in (ARRAYS["f4"], ARRAYS[">f4"], ARRAYS["f4"].astype(ml_dtypes.bfloat16), np.asfortranarray(FIELD)):
        data = codec.encode(array)
        assert codec.decode(data).tobytes() == array.tobytes("A")
        out = np.empty_like(array)
        codec.decode(data, out=out)
        assert out.tobytes("A") == array.tobytes("A")
    assert bytes(codec.decode(codec.encode(b"bytes"))) == b"bytes"
    with pytest.raises(ValueError, match="contiguous"):
        codec.encode(FIELD[:, ::2])
