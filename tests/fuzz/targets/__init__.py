"""Targets for a fuzzer: each module has a ``target(data)``, which raises for findings, and ``seeds()``.

``python -m tests.fuzz.atheris_run`` runs them under atheris; ``test_targets.py`` without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, cast


class Target(Protocol):
    """Module of a target."""

    def target(self, data: bytes) -> None:
        """Read an input; any outcome except a result or an NnrError is a finding."""

    def seeds(self) -> Iterable[bytes]:
        """Return initial inputs."""


#: The modules.
NAMES = (
    *("bitstream", "agreement", "headers", "payload", "record", "reply", "state", "command"),
    *("topology", "labels", "archive", "dat"),
    *("gguf", "keras", "numpy_files", "onnx", "openvino", "openvx", "pytorch", "safetensors", "skriptnd", "tensorflow"),
    "tflite",
)


def load(name: str) -> Target:
    """Return the module of this name."""
    return cast(Target, import_module(f"{__name__}.{name}"))
