"""What a fuzzer calls: each module has a ``target(data)``, which lets out what should not be, and ``seeds()``.

``python -m tests.fuzz.atheris_run`` runs them under atheris; ``test_targets.py`` without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, cast


class Target(Protocol):
    """A module."""

    def target(self, data: bytes) -> None:
        """Read an input; anything but a result or an NnrError is a finding."""

    def seeds(self) -> Iterable[bytes]:
        """Inputs to start from."""


#: The modules.
NAMES = (
    *("bitstream", "agreement", "headers", "payload", "record", "reply", "state", "command"),
    *("topology", "labels", "archive", "dat"),
    *("gguf", "keras", "numpy_files", "onnx", "openvino", "openvx", "pytorch", "safetensors", "skriptnd", "tensorflow"),
)


def load(name: str) -> Target:
    """The module of this name."""
    return cast(Target, import_module(f"{__name__}.{name}"))
