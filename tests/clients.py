"""Clients that run NNEF models: Khronos' interpreter (``nnef``) and Sonos' inference engine (``tract``).

Each run is a separate process: ``nnef.Session`` terminates the interpreter for files that it rejects, and neither
library guarantees to release its memory. Models have one input, a float32 ``external`` of fixed shape; the inputs are
divided into portions of its batch size.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from nnr_codec.runtime import run_folder

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float32]


class ClientError(Exception):
    """Error of a client that rejected the model, was killed or timed out; the message ends with its output."""


def input_shape(model: Path) -> tuple[int, ...]:
    """Return the shape of the only ``external`` of the NNEF folder `model`."""
    found = re.findall(r"=\s*external(?:<\w+>)?\(\s*shape\s*=\s*\[([\d,\s]*)\]", (model / "graph.nnef").read_text())
    if len(found) != 1:
        raise ClientError(f"{model}: {len(found)} inputs of fixed shape, not one")
    return tuple(int(extent) for extent in found[0].split(","))


class TractClient:
    """The inference engine ``tract`` (PyPI); it optimizes the graph first and needs 20 ms for one SqueezeNet image."""

    package: ClassVar[str] = "tract"

    @classmethod
    def installed(cls) -> bool:
        return importlib.util.find_spec(cls.package) is not None

    def run(self, model_dir: Path, inputs: Floats) -> list[Array]:
        """Return the outputs of the graph, in its order, for `inputs` of shape [n, ...] and an input of [b, ...].

        n is a multiple of b; the outputs of the portions are joined along axis 0.
        """
        return list(run_folder(model_dir, {"input": inputs}).values())


class NnefClient(TractClient):
    """Khronos' reference interpreter, from PyPI's ``nnef``: exact and slow (1.5 s for one SqueezeNet image)."""

    package = "nnef"

    def run(self, model_dir: Path, inputs: Floats) -> list[Array]:
        """Run the model like `TractClient.run`; raise ClientError if the client fails."""
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "inputs.npy"), Path(folder, "outputs.npz")
            np.save(source, np.ascontiguousarray(inputs, np.float32))
            # -P: the tests folder must not shadow installed packages in the worker.
            command = [sys.executable, "-P", __file__, str(model_dir), str(source), str(target)]
            try:
                done = subprocess.run(
                    command, check=False, capture_output=True, text=True, errors="replace", timeout=600
                )
            except subprocess.TimeoutExpired as error:
                raise ClientError(f"{self.package} took too long for {model_dir}") from error
            if done.returncode != 0:
                raise ClientError(f"{self.package} ended with {done.returncode} on {model_dir}: {done.stderr[-2000:]}")
            with np.load(target) as outputs:
                return [outputs[name] for name in outputs.files]


def work(model: Path, source: Path, target: Path) -> None:
    """Run `model` on all inputs in `source`, and write the outputs to `target`; this is the worker."""
    import nnef

    inputs = np.load(source)
    batch = input_shape(model)[0]
    if len(inputs) % batch:
        raise ClientError(f"{len(inputs)} inputs do not fill portions of {batch}")
    # The interpreter has no kernel for batch_normalization, so it is lowered to arithmetic.
    session = nnef.Session(str(model), lowered=["batch_normalization"])
    portions = [session(inputs[start : start + batch]) for start in range(0, len(inputs), batch)]
    np.savez(target, *(np.concatenate(output) for output in zip(*portions, strict=True)))


if __name__ == "__main__":
    work(*(Path(argument) for argument in sys.argv[1:4]))
