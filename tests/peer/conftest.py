"""One NNCodec process for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from nnr_cli import contenders

import nnr_codec as nnr
from nnr_codec.model import Array


class PeerError(Exception):
    """Error of NNCodec, or the end of its process."""


class Peer:
    """NNCodec in a separate process, which restarts after it has ended.

    Parameters
    ----------
    python : str
        Interpreter with nncodec 2.1.3.
    """

    def __init__(self, python: str) -> None:
        self._python, self._stack = python, ExitStack()
        self._process: contenders.Peer | None = None

    def encode(self, tensors: dict[str, Array], **options: Any) -> bytes:
        """Return the bitstream."""
        with self._asked() as codec:
            return codec.encode(tensors, options)[0]

    def update(self, *differences: dict[str, Array], history: bool = False, **options: Any) -> list[bytes]:
        """Return bitstreams of several rounds of updates; ``history=True`` for history-dependent significance."""
        with self._asked() as codec:
            codec.ask("begin", history=history)
            return [codec.encode(tensors, options)[0] for tensors in differences]

    def decode(self, *data: bytes, history: bool = False) -> list[dict[str, Array]]:
        """Return the tensors of each round, without zero tensors; ``history=True`` if the bitstreams use history."""
        with self._asked() as codec:
            if history or len(data) > 1:
                codec.ask("begin", history=history)
            return [codec.decode(one)[0] for one in data]

    @contextmanager
    def _asked(self) -> Iterator[contenders.Peer]:
        """Yield the process without state; raise PeerError if it raises an error or ends."""
        if self._process is None:
            self._process = self._stack.enter_context(contenders.peer(self._python))
        assert self._process
        try:
            self._process.ask("end")
            yield self._process
        except nnr.MissingDependencyError as error:
            self.close()
            raise PeerError(str(error)) from None
        except contenders.PeerError as error:
            raise PeerError(str(error)) from None

    def close(self) -> None:
        """End the process."""
        self._process = None
        self._stack.close()


@pytest.fixture(scope="session")
def peer() -> Iterator[Peer]:
    """Return NNCodec; skip the test if it is not installed."""
    python = os.environ.get("NNR_PEER", "")
    if not python or not Path(python).is_file():
        pytest.skip("NNR_PEER does not name a python with nncodec 2.1.3")
    peer = Peer(python)
    yield peer
    peer.close()


def assert_same_tensors(got: dict[str, Array], want: dict[str, Array]) -> None:
    """Assert equal names, shapes and values; the message has the first difference."""
    assert sorted(got) == sorted(want)
    for name, values in want.items():
        assert got[name].shape == values.shape, name
        wrong = (got[name] != values) & ~((got[name] != got[name]) & (values != values))
        assert not wrong.any(), f"{name}: {int(wrong.sum())} of {values.size} values differ"
