"""One NNCodec process for all tests of this folder."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nnr_codec.model import Array

from ..shared import SHARED
from .worker import packed, unpacked


class PeerError(Exception):
    """NNCodec raised something, or its process ended."""


class Peer:
    """NNCodec in a process of its own.

    Parameters
    ----------
    python : str
        A python with nncodec 2.1.3.
    tool : Path
        nncodec_peer.py, which loads it without torch.
    """

    def __init__(self, python: str, tool: Path) -> None:
        self.command = [python, str(Path(__file__).with_name("worker.py")), str(tool)]
        self.process: subprocess.Popen[bytes] | None = None

    def encode(self, tensors: dict[str, Array], **options: Any) -> bytes:
        """Its bitstream."""
        data: bytes = self._ask("encode", packed(tensors), options)
        return data

    def update(self, *differences: dict[str, Array], **options: Any) -> list[bytes]:
        """Its bitstreams of several rounds of updates; ``history=True`` for history-dependent significance."""
        data: list[bytes] = self._ask("update", [packed(tensors) for tensors in differences], options)
        return data

    def decode(self, *data: bytes, **options: Any) -> list[dict[str, Array]]:
        """Its tensors of each of several rounds, those that are zero missing; ``history=True`` where they have it."""
        return [unpacked(tensors) for tensors in self._ask("decode", list(data), options)]

    def _ask(self, verb: str, argument: Any, options: dict[str, Any]) -> Any:
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        assert self.process.stdin
        assert self.process.stdout
        content = pickle.dumps((verb, argument, options), protocol=4)
        try:
            self.process.stdin.write(len(content).to_bytes(8, "big") + content)
            self.process.stdin.flush()
            header = self.process.stdout.read(8)
            reply = self.process.stdout.read(int.from_bytes(header, "big"))
        except OSError:
            header = reply = b""
        if len(header) < 8 or not reply:
            self.close()
            raise PeerError(f"the peer's process ended during {verb}")
        good, result = pickle.loads(reply)
        if not good:
            raise PeerError(result)
        return result

    def close(self) -> None:
        """End the process."""
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None


@pytest.fixture(scope="session")
def peer() -> Iterator[Peer]:
    """NNCodec; skips where it is not installed."""
    python = os.environ.get("NNR_PEER", "")
    tool = SHARED / "tools" / "nncodec_peer.py" if SHARED else None
    if not python or not Path(python).is_file():
        pytest.skip("NNR_PEER does not name a python with nncodec 2.1.3")
    if tool is None or not tool.is_file():
        pytest.skip("nncodec_peer.py is not there (set NNR_SHARED)")
    peer = Peer(python, tool)
    yield peer
    peer.close()


def assert_same_tensors(got: dict[str, Array], want: dict[str, Array]) -> None:
    """Equal names, shapes and values; the first difference is told."""
    assert sorted(got) == sorted(want)
    for name, values in want.items():
        assert got[name].shape == values.shape, name
        wrong = (got[name] != values) & ~((got[name] != got[name]) & (values != values))
        assert not wrong.any(), f"{name}: {int(wrong.sum())} of {values.size} values differ"
