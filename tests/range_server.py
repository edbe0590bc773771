"""HTTP server of files in memory: range requests, redirections, and faults on request."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


@dataclass
class RangeServer:
    """State of a server: its files by name, and what was requested.

    ``sent`` counts the bytes of responses with their headers. ``fault`` is called with the number of the request and
    the handler, and answers it if it returns True.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    etag: str = '"1"'
    requests: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    sent: int = 0
    fault: Callable[[int, Any], bool] = lambda number, handler: False
    url: str = ""

    def reset(self) -> None:
        """Forget the requests so far."""
        self.requests.clear()
        self.headers.clear()
        self.sent = 0


class _Handler(BaseHTTPRequestHandler):
    state: ClassVar[RangeServer]

    def do_GET(self) -> None:
        state = self.state
        state.requests.append(self.headers.get("Range", ""))
        state.headers.append(dict(self.headers))
        if state.fault(len(state.requests) - 1, self):
            return
        data = state.files.get(self.path.partition("?")[0].strip("/"))
        if data is None:
            self.reply(404, b"")
            return
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not match or not state.ranges:
            self.reply(200, data)
            return
        start, stop = int(match[1]), min(int(match[2]) + 1, len(data))
        if start >= len(data):
            self.reply(416, b"")
            return
        self.reply(206, data[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None, length: int | None = None) -> None:
        """Send a response; ``length`` is a false Content-Length."""
        self.send_response(status)
        declared = {"Content-Length": str(len(body) if length is None else length), "ETag": self.state.etag}
        for name, value in (declared | (headers or {})).items():
            self.send_header(name, value)
        self.state.sent += sum(map(len, self._headers_buffer)) + 2 + len(body)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[RangeServer]:
    """Yield a server on this machine, which runs in a thread."""
    state = RangeServer(dict(files))
    handler = type("Handler", (_Handler,), {"state": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
