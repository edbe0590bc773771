"""Bitstreams in S3, from a server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr

pytestmark = pytest.mark.heavy

RNG = np.random.default_rng(5)
TENSORS = {f"w{k}": RNG.integers(-9, 9, (60, 60)).astype("i4") for k in range(100)}


@pytest.fixture(scope="module")
def calls() -> Iterator[list[tuple[str, str]]]:
    """Start a server with a bucket; yield the list of methods and ranges of its requests."""
    from werkzeug.wrappers import Request

    pytest.importorskip("moto.server")
    from moto.moto_server import threaded_moto_server as server

    s3fs = pytest.importorskip("s3fs")
    found: list[tuple[str, str]] = []
    threaded = server.ThreadedMotoServer("127.0.0.1", 0)

    def logged(app: Any) -> Any:
        def call(environ: dict[str, Any], start: Any) -> Any:
            request = Request(environ)
            found.append((request.method, request.headers.get("Range", "")))
            return app(environ, start)

        return call

    with pytest.MonkeyPatch.context() as patch:
        application = server.DomainDispatcherApplication
        patch.setattr(
            server, "DomainDispatcherApplication", lambda *args, **kwargs: logged(application(*args, **kwargs))
        )
        threaded.start()
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "testing"),
            ("AWS_SECRET_ACCESS_KEY", "testing"),
            ("AWS_ENDPOINT_URL", "http://{}:{}".format(*threaded.get_host_and_port())),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            patch.setenv(name, value)
        system = s3fs.S3FileSystem()
        system.mkdir("models")
        system.pipe("models/plain.nnr", nnr.encode(TENSORS))
        system.pipe("models/indexed.nnr", nnr.encode(TENSORS, index=True))
        try:
            yield found
        finally:
            threaded.stop()


def test_a_list_and_a_tensor_take_few_requests(calls: list[tuple[str, str]]) -> None:
    calls.clear()
    with nnr.open("s3://models/indexed.nnr") as file:
        assert list(file) == list(TENSORS)
        assert len(calls) <= 3, calls
        calls.clear()
        assert np.array_equal(file["w97"], TENSORS["w97"])
        assert [method for method, _ in calls] == ["GET"]
        first, last = map(int, calls[0][1].removeprefix("bytes=").split("-"))
        assert last + 1 - first <= 1.01 * file.info["w97"].nbytes


def test_a_whole_file(calls: list[tuple[str, str]]) -> None:
    for name in ("plain", "indexed"):
        calls.clear()
        decoded = nnr.decode(f"s3://models/{name}.nnr")
        assert all(np.array_equal(decoded[key], TENSORS[key]) for key in TENSORS)
        assert len(calls) <= 8, calls


def test_a_changed_object_is_an_error(calls: list[tuple[str, str]]) -> None:
    import s3fs

    system = s3fs.S3FileSystem()
    system.pipe("models/changing.nnr", nnr.encode(TENSORS, index=True))
    with nnr.open("s3://models/changing.nnr") as file:
        system.pipe("models/changing.nnr", nnr.encode(TENSORS, index=True, effort=1) + b"\0")
        with pytest.raises(OSError, match="the file changed on the server while it was read"):
            file["w97"]


def test_missing_objects_are_errors_without_credentials(calls: list[tuple[str, str]]) -> None:
    for url in ("s3://models/missing.nnr", "s3://user:secret@models/missing.nnr", "s3://nobucket/missing.nnr"):
        with pytest.raises(OSError, match="missing") as error:
            nnr.open(url)
        assert "secret" not in str(error.value)
