"""T51: bitstreams at HTTP URLs: requests and bytes, faults of servers, and credentials."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream import remote

from ..range_server import RangeServer, serving

RNG = np.random.default_rng(17)


def model(count: int, side: int) -> dict[str, np.ndarray]:
    return {f"layers.{k}.weight": RNG.integers(-9, 9, (side, side)).astype("i4") for k in range(count)}


TENSORS = model(200, 24)
PLAIN, INDEXED = nnr.encode(TENSORS), nnr.encode(TENSORS, index=True)
LARGE = model(4, 700)  # about 220 kB each
LARGE_INDEXED = nnr.encode(LARGE, index=True)
FILES = {"plain.nnr": PLAIN, "indexed.nnr": INDEXED, "large.nnr": LARGE_INDEXED, "text": b"no bitstream" * 9}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    monkeypatch.setattr(remote, "DELAYS", (0.01, 0.01, 0.01))
    with serving(FILES) as state:
        yield state


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use blocks that are small relative to the files of these tests."""
    for name, size in (("FIRST", 512), ("LEAST", 256), ("MOST", 1 << 14), ("SKIP", 2048), ("PIECE", 1 << 15)):
        monkeypatch.setattr(remote, name, size)


# ---------------------------------------------------------------------------------------------------------- requests
@pytest.mark.parametrize("first", [512, 4096, 1 << 16])
def test_an_index_lists_in_three_requests_and_decodes_a_tensor_in_one(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(remote, "FIRST", first)
    topology = nnr.Topology("onnx", bytes(RNG.integers(0, 256, 3000, np.uint8)))
    server.files["graph.nnr"] = nnr.encode(nnr.Model(LARGE, topology), index=True, deflate_topology=False)
    for name, tensor in (("large.nnr", "layers.2.weight"), ("graph.nnr", "layers.3.weight")):
        with nnr.open(f"{server.url}/{name}") as file:
            assert list(file) == list(LARGE)
            assert len(server.requests) <= 3
            server.reset()
            assert np.array_equal(file[tensor], LARGE[tensor])
            assert len(server.requests) == 1
            assert server.sent <= 1.01 * file.info[tensor].nbytes
        server.reset()


def test_small_tensors_without_an_index_are_listed_in_few_requests(server: RangeServer) -> None:
    with nnr.open(f"{server.url}/plain.nnr") as file:
        assert list(file) == list(TENSORS)
        assert len(server.requests) <= 4


def test_large_payloads_are_skipped_without_an_index(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    server.files["m.nnr"] = nnr.encode(LARGE)
    with nnr.open(f"{server.url}/m.nnr") as file:
        assert list(file) == list(LARGE)
    assert server.sent < 0.02 * len(server.files["m.nnr"])


@pytest.mark.parametrize("name", ["plain.nnr", "indexed.nnr"])
@pytest.mark.parametrize("small", [False, True])
def test_a_whole_file_is_read_once_in_large_pieces(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, name: str, small: bool
) -> None:
    if small:
        shrink(monkeypatch)
    decoded = nnr.decode(f"{server.url}/{name}", jobs=3)
    assert all(np.array_equal(decoded[key], TENSORS[key]) for key in TENSORS)
    assert len(server.requests) < 50
    assert server.sent < 1.15 * len(FILES[name])


def test_a_file_larger_than_the_cache_is_decoded(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    monkeypatch.setattr(remote, "CACHE", 4096)
    for name in ("plain.nnr", "indexed.nnr"):
        decoded = nnr.decode(f"{server.url}/{name}")
        assert all(np.array_equal(decoded[key], TENSORS[key]) for key in TENSORS)


def test_selected_neighbours_share_a_request(server: RangeServer) -> None:
    with nnr.open(f"{server.url}/large.nnr") as file:
        server.reset()
        file.decode(names=["layers.1.weight", "layers.2.weight"])
        assert len(server.requests) == 1


def test_an_open_file_is_pickled_as_its_url(server: RangeServer) -> None:
    with nnr.open(f"{server.url}/indexed.nnr") as file, pickle.loads(pickle.dumps(file)) as copy:
        assert np.array_equal(copy["layers.7.weight"], TENSORS["layers.7.weight"])


@pytest.mark.medium
def test_processes_decode_a_remote_file(server: RangeServer) -> None:
    with ProcessPoolExecutor(1) as pool:
        decoded = nnr.decode(f"{server.url}/indexed.nnr", executor=pool)
    assert all(np.array_equal(decoded[key], TENSORS[key]) for key in TENSORS)


# ------------------------------------------------------------------------------------------------------------ faults
def test_failed_requests_are_repeated_up_to_a_limit(server: RangeServer) -> None:
    def sometimes(number: int, handler: Any) -> bool:
        if number % 4 == 0:
            handler.reply(503, b"")
        elif number % 4 == 1:
            handler.reply(206, b"short", {"Content-Range": "bytes 0-65535/99999999"}, length=65536)
            handler.close_connection = True
        elif number % 4 == 2:
            handler.connection.close()
        return number % 4 < 3

    server.fault = sometimes
    assert len(nnr.open(f"{server.url}/indexed.nnr")) == 200
    assert len(server.requests) == 4
    server.reset()
    server.fault = lambda number, handler: handler.reply(503, b"") or True
    with pytest.raises(OSError, match="503 Service Unavailable"):
        nnr.open(f"{server.url}/indexed.nnr")
    assert len(server.requests) == 4


@pytest.mark.parametrize(("status", "kind"), [(404, FileNotFoundError), (403, PermissionError), (400, OSError)])
def test_a_refusal_is_not_repeated(server: RangeServer, status: int, kind: type[OSError]) -> None:
    server.fault = lambda number, handler: handler.reply(status, b"") or True
    with pytest.raises(kind, match=f"the server replied {status}"):
        nnr.open(f"{server.url}/indexed.nnr")
    assert len(server.requests) == 1


def test_a_changed_file_is_an_error(server: RangeServer) -> None:
    def etag() -> None:
        server.etag = '"2"'

    def size() -> None:
        server.files["large.nnr"] += b"\0"

    def ranges() -> None:
        server.ranges = False

    for change in (etag, size, ranges):
        with nnr.open(f"{server.url}/large.nnr") as file:
            change()
            with pytest.raises(OSError, match="the file changed on the server while it was read"):
                file["layers.3.weight"]
        server.files["large.nnr"], server.etag = LARGE_INDEXED, '"1"'


def test_other_bytes_than_the_index_lists_are_an_error(server: RangeServer) -> None:
    """Also if the server does not announce the change."""
    with nnr.open(f"{server.url}/large.nnr") as file:
        server.files["large.nnr"] = LARGE_INDEXED.replace(b"layers.3", b"layers.x")
        with pytest.raises(nnr.ElementError, match="the index contradicts the header of the unit at byte") as error:
            file["layers.3.weight"]
        assert error.value.rule is nnr.Requirement.INDEX


@pytest.mark.parametrize("name", ["plain.nnr", "large.nnr"])
def test_a_truncated_file_is_an_error(server: RangeServer, name: str) -> None:
    server.files[name] = FILES[name][:-100]
    with pytest.raises(nnr.TruncatedError, match="remain"):
        nnr.open(f"{server.url}/{name}")


def test_a_server_without_ranges_is_read_up_to_a_limit(server: RangeServer) -> None:
    server.ranges = False
    assert len(nnr.open(f"{server.url}/indexed.nnr")) == 200
    assert len(server.requests) == 1
    with pytest.raises(nnr.LimitError, match="whose server does not support ranges"):
        nnr.open(f"{server.url}/indexed.nnr", limits=nnr.Limits(max_total_bytes=1000))
    server.fault = lambda number, handler: handler.reply(200, b"short", length=5000) or True
    with pytest.raises(OSError, match="reading failed: IncompleteRead"):
        nnr.open(f"{server.url}/indexed.nnr")


@pytest.mark.parametrize(
    "reply", ["bytes 5-100/1000", "bytes 0-70000/100000", "bytes 0-99/*", "bytes 9-3/1000", "bytes 0-100/50", ""]
)
def test_a_range_that_was_not_requested_is_an_error(server: RangeServer, reply: str) -> None:
    server.fault = lambda number, handler: handler.reply(206, bytes(100), {"Content-Range": reply}) or True
    with pytest.raises(OSError, match="a range that was not requested"):
        nnr.open(f"{server.url}/indexed.nnr")


def test_a_server_may_send_less_than_requested(server: RangeServer) -> None:
    def short(number: int, handler: Any) -> bool:
        start, last = map(int, handler.headers["Range"][6:].split("-"))
        data = FILES["plain.nnr"]
        part = data[start : min(last + 1, start + 10_000)]
        handler.reply(206, part, {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(data)}"})
        return True

    server.fault = short
    decoded = nnr.decode(f"{server.url}/plain.nnr")
    assert all(np.array_equal(decoded[key], TENSORS[key]) for key in TENSORS)


def test_redirections_lead_to_http_only(server: RangeServer) -> None:
    places = {"here": f"{server.url}/indexed.nnr", "there": "file:///etc/passwd", "ftp": "ftp://127.0.0.1/m.nnr"}

    def redirect(number: int, handler: Any) -> bool:
        place = places.get(handler.path[1:])
        if place:
            handler.reply(302, b"", {"Location": place})
        return place is not None

    server.fault = redirect
    assert len(nnr.open(f"{server.url}/here")) == 200
    for name in ("there", "ftp"):
        with pytest.raises(OSError, match=r"[Rr]edirect"):
            nnr.open(f"{server.url}/{name}")


# ------------------------------------------------------------------------------------------- names and credentials
def test_credentials_are_sent_but_not_shown(server: RangeServer) -> None:
    url = server.url.replace("//", "//user:p%40ss@")
    with nnr.open(f"{url}/indexed.nnr?signature=abc#part") as file:
        assert server.headers[0]["Authorization"] == "Basic dXNlcjpwQHNz"
        assert "user" not in repr(file) and "abc" not in repr(file)
    with pytest.raises(FileNotFoundError) as error:
        nnr.open(f"{url}/missing.nnr?signature=abc")
    assert "user" not in str(error.value) and "abc" not in str(error.value) and "missing.nnr" in str(error.value)
    assert error.value.__cause__ is None and error.value.__suppress_context__


def test_credentials_are_not_sent_to_the_target_of_a_redirection(server: RangeServer) -> None:
    def redirect(number: int, handler: Any) -> bool:
        if handler.path == "/here":
            handler.reply(302, b"", {"Location": f"{server.url}/indexed.nnr"})
        return bool(handler.path == "/here")

    server.fault = redirect
    nnr.open(server.url.replace("//", "//user:pass@") + "/here")
    assert ["Authorization" in headers for headers in server.headers] == [True, False]


@pytest.mark.parametrize("url", ["http://", "http://[::1/x", "http://127.0.0.1:port/x", "http://a b/x", "http://\n/x"])
def test_an_invalid_url_is_an_error(url: str) -> None:
    with pytest.raises(OSError, match=r"the URL is invalid|reading failed"):
        nnr.open(url)


def test_only_names_with_a_scheme_are_urls(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "http:").mkdir()
    (tmp_path / "http:" / "x.nnr").write_bytes(PLAIN)
    assert len(nnr.open("./http://x.nnr")) == 200
    assert len(nnr.open("http:/x.nnr")) == 200


def test_other_files_than_bitstreams_are_errors(server: RangeServer) -> None:
    with pytest.raises(nnr.BitstreamError, match="not an NNR bitstream"):
        nnr.open(f"{server.url}/text")


def test_verify_and_units_read_a_url(server: RangeServer) -> None:
    assert not nnr.verify(f"{server.url}/indexed.nnr").violations
    assert len(list(nnr.units(f"{server.url}/indexed.nnr"))) == 203
    with pytest.raises(nnr.LimitError, match="bytes of the file"):
        nnr.verify(f"{server.url}/indexed.nnr", limits=nnr.Limits(max_total_bytes=10))


# ------------------------------------------------------------------------------------------------------------ fsspec
@pytest.mark.clients
def test_file_systems_of_fsspec(server: RangeServer) -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe("/m.nnr", INDEXED)
    decoded = nnr.decode("memory://m.nnr")
    assert all(np.array_equal(decoded[key], TENSORS[key]) for key in TENSORS)
    with nnr.open("memory://m.nnr") as file:
        system.pipe("/m.nnr", PLAIN[:1000])
        with pytest.raises(OSError, match="the file changed on the server"):
            file["layers.199.weight"]
    system.pipe("/empty.nnr", b"")
    with pytest.raises(nnr.BitstreamError):
        nnr.open("memory://empty.nnr")


@pytest.mark.clients
def test_mistakes_in_urls_of_fsspec() -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        nnr.open("memory://missing.nnr")
    with pytest.raises(OSError, match="no file system is known for nothing://"):
        nnr.open("nothing://x")
    with pytest.raises(OSError, match="Install s3fs"):
        nnr.open("s3://user:secret@bucket/x.nnr")


def test_fsspec_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(nnr.MissingDependencyError, match=r"s3:// requires the package fsspec.*nnr_codec\[remote\]"):
        nnr.open("s3://bucket/x.nnr")


# ------------------------------------------------------------------------------------------------------------- index
@pytest.mark.parametrize(
    "options",
    [
        {"parts": "layers"},
        {"layer_parameter_sets": True, "parts": {}},
        {"max_unit_size": 3000},
        {"indexed_references": True},
        {"exact": True},
        {"codebook": 16},
        {"parts": {"layers.1*": "a/b", "*": "c"}, "fast_decode": True},
        {"profile": 0},
    ],
)
def test_an_index_has_what_the_units_have(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    shrink(monkeypatch)
    tensors = {name: RNG.normal(0, 1, (20, 30)).astype("f4") for name in list(TENSORS)[:30]}
    plain, indexed = nnr.encode(tensors, **options), nnr.encode(tensors, index=True, **options)
    server.files["m.nnr"] = indexed
    assert not nnr.verify(indexed).violations
    with nnr.open(plain) as one, nnr.open(f"{server.url}/m.nnr") as other:
        assert one.info == other.info and not other.ignored
        assert len(server.requests) <= 3
        assert all(np.array_equal(one[name], other[name]) for name in one)
    with nnr.open(indexed) as local:
        assert local.info == other.info


def test_an_index_of_an_update(server: RangeServer) -> None:
    after = {name: tensor + 1 for name, tensor in TENSORS.items()}
    server.files["m.nnr"] = nnr.encode_update(TENSORS, after, index=True)
    with nnr.open(f"{server.url}/m.nnr") as file:
        assert file.is_update and len(file) == 200


def test_the_size_of_an_index_counts_for_goals() -> None:
    tensors = {name: RNG.normal(0, 1, (20, 30)).astype("f4") for name in list(TENSORS)[:30]}
    assert len(nnr.encode(tensors, target_size=9000, index=True)) <= 9000


def test_an_index_is_a_flag() -> None:
    for wrong in (None, 1, "yes"):
        with pytest.raises(nnr.EncodeError, match="index must be true or false"):
            nnr.encode(LARGE, index=wrong)


def test_chunks_are_compared_with_the_index() -> None:
    def stream(data: bytes) -> int:
        decoder = nnr.StreamDecoder()
        count = 0
        for start in range(0, len(data), 7000):
            count += len(list(decoder.feed(data[start : start + 7000])))
        decoder.finish()
        return count

    assert stream(INDEXED) == 200
    with pytest.raises(nnr.ElementError, match="the index contradicts the header of the unit"):
        stream(INDEXED.replace(b"layers.77.", b"layers.xx."))


def test_other_bitstreams_may_follow() -> None:
    limits = nnr.Limits(allow_trailing=True)
    assert len(nnr.open(INDEXED + PLAIN, limits=limits)) == 200
    assert len(nnr.open(INDEXED + LARGE_INDEXED, limits=limits)) == 200
    assert not nnr.verify(INDEXED + LARGE_INDEXED, limits=limits).violations
