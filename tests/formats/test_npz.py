"""Tests of NumPy archives."""

from __future__ import annotations

import contextlib
import io
import re
import struct
import tracemalloc
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import hypothesis.extra.numpy as hnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError, NnrError
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Model, Topology

from ..shared import SHARED, examples, needs_shared
from .support import assert_same


def encoded(tensors: Mapping[str, Array]) -> bytes:
    file = io.BytesIO()
    formats.save(Model(tensors), file)
    return file.getvalue()


def load(data: bytes, limits: Limits | None = None) -> Mapping[str, Array]:
    return formats.load(io.BytesIO(data), format="npz", limits=limits).tensors


def npy(array: Array, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def archive(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as target:
        for name, data in members.items():
            target.writestr(name, data)
    return file.getvalue()


def headed(header: str) -> bytes:
    data = header.encode("latin-1")
    return archive({"a.npy": b"\x93NUMPY\1\0" + struct.pack("<H", len(data)) + data + bytes(8)})


_KINDS = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "c8", "c16"]
_DTYPES = st.sampled_from([np.dtype("b1"), *(np.dtype(order + kind) for order in "<>" for kind in _KINDS)])
_NAMES = st.sampled_from(["file", "a/b", "", "x.npy", "../x", "/x", "allow_pickle", "a\\b"]) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=10
)
_TENSORS = st.dictionaries(
    _NAMES, _DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))), max_size=4
)


@settings(deadline=None)
@given(_TENSORS, st.booleans())
def test_any_arrays_survive(tensors: dict[str, Array], transpose: bool) -> None:
    tensors = {name: array.T if transpose else array for name, array in tensors.items()}
    data = encoded(tensors)
    native = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in tensors.items()}
    result = load(data)
    assert_same(result, native)
    assert all(array.dtype.isnative for array in result.values())
    assert encoded(tensors) == data
    with np.load(io.BytesIO(data)) as read:
        assert read.files == list(tensors)
        for name, array in tensors.items():
            if name.removesuffix(".npy") == name:
                assert read[name].dtype == array.dtype
                assert read[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_of_numpy_are_read(save: object, tmp_path: Path) -> None:
    assert callable(save)
    tensors: dict[str, Any] = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b/c": np.asfortranarray(np.arange(12, dtype=">i2").reshape(3, 4)),
        "d": np.array(True),
        "e": np.zeros((0, 3), np.uint64),
        "f": np.array([np.nan, -0.0, np.inf], np.float16),
    }
    save(tmp_path / "x.npz", **tensors)
    result = formats.load(tmp_path / "x.npz").tensors
    assert_same(result, {name: array.astype(array.dtype.newbyteorder("=")) for name, array in tensors.items()})
    save(tmp_path / "y.npz", np.ones(2), np.zeros(3))
    assert list(formats.load(tmp_path / "y.npz")) == ["arr_0", "arr_1"]


@needs_shared
@pytest.mark.parametrize("path", sorted(SHARED.glob("models/*.npz")) if SHARED else [], ids=lambda path: path.name)
def test_real_archives(path: Path) -> None:
    with np.load(path) as expected:
        assert_same(formats.load(path).tensors, dict(expected))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions_of_the_header(version: tuple[int, int]) -> None:
    array = np.arange(3, dtype=np.int64)
    assert_same(load(archive({"a.npy": npy(array, version)})), {"a": array})


def test_headers_of_other_writers() -> None:
    for header in (
        "{'shape': (1,), 'fortran_order': False, 'descr': '<f8'}",
        '{"descr": "<f8", "fortran_order": False, "shape": (1,), }\n',
        "{ 'descr':'<f8','fortran_order':True,'shape':(1 , )}   \n",
        "{'descr': 'f8', 'fortran_order': False, 'shape': ()}",
    ):
        assert load(headed(header))["a"].sum() == 0


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "is not supported; only numbers and booleans are"),
        ("{'descr': 'O', 'fortran_order': False, 'shape': (1,)}", "is not supported; only numbers and booleans are"),
        ("{'descr': '<U2', 'fortran_order': False, 'shape': (1,)}", "is not supported; only numbers and booleans are"),
        (
            "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (1,)}",
            "is not supported; only numbers and booleans are",
        ),
        (
            "{'descr': '(2,)f4', 'fortran_order': False, 'shape': (1,)}",
            "is not supported; only numbers and booleans are",
        ),
        ("{'descr': '|V8', 'fortran_order': False, 'shape': (1,)}", "is not supported; only numbers and booleans are"),
        ("{'descr': '<c32', 'fortran_order': False, 'shape': (0,)}", "no dtype|bytes; header"),
        ("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,)}", "does not describe a plain array"),
        ("{'descr': '<f8', 'fortran_order': 0, 'shape': (1,)}", "does not describe a plain array"),
        ("{'descr': '<f8', 'fortran_order': False}", "does not describe a plain array"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), 'x': True}", "does not describe a plain array"),
        ("{'descr': '<f8', 'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", "does not describe a plain array"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}", "does not describe a plain array"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (1 1,)}", "extent"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "9" * 30 + ",)}", "extent"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}", "header and items require"),
        ("__import__('os').abort()", "does not describe a plain array"),
        ("{" * 60_000, "does not describe a plain array"),
        ("-" * 60_000, "does not describe a plain array"),
        ("{" + "'a':" * 10_000 + "}", "does not describe a plain array"),
        ("", "does not describe a plain array"),
    ],
)
def test_hostile_headers(header: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        load(headed(header))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"not a \.npy file"),
        (b"\x93NUMPY\4\0", r"not a \.npy file"),
        (b"\x93NUMPY\2\0" + struct.pack("<I", 1 << 17), "the header has 131,072 bytes"),
        (npy(np.zeros(2))[:-1], "header and items require"),
        (npy(np.zeros(2)) + b"x", "header and items require"),
    ],
)
def test_malformed_members(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        load(archive({"a.npy": data}))


def test_objects_are_never_unpickled() -> None:
    file = io.BytesIO()
    np.savez(file, a=np.array([object], dtype=object))
    with pytest.raises(FormatError, match="is not supported; only numbers and booleans are"):
        load(file.getvalue())
    for array in (np.array([object]), np.array(["a"]), np.zeros(1, "f4,f4"), np.zeros(1, "M8[s]")):
        with pytest.raises(FormatError, match="npz does not support dtype "):
            encoded({"a": array})


@pytest.mark.parametrize("name", ["a\0b", "\udcff", "x" * 66_000])
def test_names_that_no_archive_holds(name: str) -> None:
    with pytest.raises(FormatError, match=r"th(is|e) name"):
        encoded({name: np.zeros(1)})


def test_names_are_unique() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as target:
        target.writestr("a.npy", npy(np.zeros(1)))
        with pytest.warns(UserWarning, match="Duplicate"):
            target.writestr("a.npy", npy(np.zeros(1)))
    with pytest.raises(FormatError, match="the archive contains array 'a' twice"):
        load(file.getvalue())


def test_other_members_are_named() -> None:
    with pytest.warns(formats.FormatWarning, match="left out: 'README'") as caught:
        assert list(load(archive({"README": b"x", "a.npy": npy(np.zeros(1))}))) == ["a"]
    assert len(caught) == 1


def test_topology_is_lost_with_a_warning() -> None:
    with pytest.warns(formats.FormatWarning, match="cannot store the topology") as caught:
        formats.save(Model({}, Topology("nnef", b"")), io.BytesIO(), format="npz")
    assert caught[0].filename == __file__
    with pytest.warns(formats.FormatWarning, match=r"an npz archive cannot store the metadata$"):
        formats.save(Model({}, metadata={"a": "b"}), io.BytesIO(), format="npz")


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
def test_types_that_numpy_does_not_have(name: str) -> None:
    """NumPy's own writer would write bytes without a type."""
    way = "; save it as .safetensors or convert it to float32 (--dtype, dtype=)" if "float" in name else ""
    with pytest.raises(FormatError, match=re.escape(f"tensor 'w': npz does not support dtype {name}{way}") + "$"):
        formats.save(Model({"w": np.ones(3, getattr(ml_dtypes, name))}), io.BytesIO(), format="npz")


def test_sizes_are_not_trusted() -> None:
    bomb = archive({"a.npy": npy(np.zeros(1 << 20))}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 20_000
    tracemalloc.start()
    try:
        for limits in (
            Limits(max_tensor_bytes=1 << 20),
            Limits(max_total_bytes=1 << 20),
            Limits(max_archive_bytes=1 << 20),
        ):
            with pytest.raises(LimitError):
                load(bomb, limits)
        # A stored member whose header declares more than the archive contains.
        promise = npy(np.zeros(1)).replace(b"(1,)", b"(9" + b"9" * 8 + b",)")[:128]
        with pytest.raises(FormatError, match="header and items require"):
            load(archive({"a.npy": promise}))
        lying = archive({"a.npy": promise})
        size = struct.pack("<I", len(promise))
        start = lying.index(b"PK\1\2")
        with pytest.raises(FormatError):
            load(lying[:start] + lying[start:].replace(size, struct.pack("<I", 0x7FFFFFFF)))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_checksum_is_compared() -> None:
    data = bytearray(encoded({"a": np.full(3, 1.5)}))
    data[data.index(np.float64(1.5).tobytes())] ^= 1
    with pytest.raises(FormatError, match="CRC"):
        load(bytes(data))


def test_limits_of_names() -> None:
    data = encoded({name: np.zeros(1) for name in ("a", "b", "long name")})
    for limits in (Limits(max_names=2), Limits(max_name_bytes=8), Limits(max_dims=0)):
        with pytest.raises(LimitError):
            load(data, limits)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions(compression: int) -> None:
    with pytest.raises(FormatError, match="only deflate"):
        load(archive({"a.npy": npy(np.zeros(1))}, compression))


def test_encrypted_members() -> None:
    data = bytearray(encoded({"a": np.zeros(1)}))
    for start in (data.index(b"PK\3\4") + 6, data.index(b"PK\1\2") + 8):
        data[start] |= 1
    with pytest.raises(FormatError, match=r"encrypted|password"):
        load(bytes(data))


def test_every_truncation_is_refused() -> None:
    data = encoded({"a": np.zeros(3, np.float32), "b": np.zeros(3, np.int8)})
    for size in range(len(data)):
        with pytest.raises(FormatError):
            load(data[:size])


@pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")
@settings(deadline=None, max_examples=examples(300))
@given(st.data())
def test_damaged_archives_give_a_model_or_an_error(draw: st.DataObject) -> None:
    tensors: dict[str, Any] = {"a": np.arange(3, dtype=np.float32), "b": np.zeros((2, 2), np.int8)}
    file = io.BytesIO()
    draw.draw(st.sampled_from([np.savez, np.savez_compressed]))(file, **tensors)
    data = bytearray(file.getvalue())
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(NnrError):
        load(bytes(data), Limits.strict())
        formats.load(io.BytesIO(data), limits=Limits.strict())


@pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")
@settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_files_are_read_as_streams_are(draw: st.DataObject, tmp_path: Path) -> None:
    """Uncompressed members of files are read without zipfile, with the same arrays or errors."""

    def read(source: Path | io.BytesIO) -> dict[str, tuple[str, tuple[int, ...], bytes]] | None:
        with contextlib.suppress(NnrError):
            tensors = formats.load(source, format="npz").tensors
            return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in tensors.items()}
        return None

    tensors: dict[str, Any] = {"ä": np.arange(3, dtype=">f4"), "b": np.asfortranarray(np.ones((2, 2), np.int8))}
    file = io.BytesIO()
    np.savez(file, **tensors, c=np.zeros(0))
    data = bytearray(file.getvalue())
    headers = [match.start() for match in re.finditer(b"PK\1\2|PK\3\4|.NUMPY", data)]
    near = st.builds(lambda header, more: header + more, st.sampled_from(headers), st.integers(0, 50))
    for _ in range(draw.draw(st.integers(0, 3))):
        data[draw.draw(near | st.integers(0, len(data) - 1)) % len(data)] = draw.draw(st.integers(0, 255))
    path = tmp_path / "m.npz"
    path.write_bytes(data)
    assert read(path) == read(io.BytesIO(data))


def test_stream_need_not_seek() -> None:
    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            chunk = bytes(cast(memoryview, data))
            self.data += chunk
            return len(chunk)

    pipe = Pipe()
    tensors: dict[str, Array] = {"a": np.arange(100_000, dtype=np.float32), "b": np.zeros(2, np.int8)}
    with io.BufferedWriter(pipe) as file:
        formats.save(Model(tensors), file)
        file.flush()
        assert_same(load(bytes(pipe.data)), tensors)
