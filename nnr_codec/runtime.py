"""Execution of models in an installed inference engine: ``tract``, for NNEF.

The engine runs in its own process, so that a crash does not affect the caller.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import formats
from .errors import FormatError, MissingDependencyError, UnsupportedError
from .model import Array, Model
from .subprocess_command import module_command


def run_model(model: Model, inputs: Mapping[str, Array], *, timeout: float = 600.0) -> dict[str, Array]:
    """Run a model and return its outputs.

    Parameters
    ----------
    model : Model
        A model with an NNEF topology.
    inputs : mapping of str to ndarray
        Arrays by the names of the graph's inputs, or one array for the only input. The first dimension must be a
        multiple of the first dimension in the graph, which runs once for each part.
    timeout : float
        Time limit in seconds.

    Returns
    -------
    dict of str to ndarray
        Arrays by the names of the graph's outputs; results of several runs are concatenated along the first dimension.

    Raises
    ------
    MissingDependencyError
        The engine is not installed.
    UnsupportedError
        The topology is not in NNEF format.
    FormatError
        The inputs do not match the graph, or the engine cannot run it.
    """
    if model.topology is None or model.topology.format != "nnef":
        raise UnsupportedError("only models with an NNEF topology can be run")
    with tempfile.TemporaryDirectory(prefix="nnr-run-") as scratch:
        folder = Path(scratch, "model.nnef")
        formats.save(model, folder, format="nnef")
        return run_folder(folder, inputs, timeout=timeout)


def run_folder(
    folder: str | os.PathLike[str], inputs: Mapping[str, Array], *, timeout: float = 600.0
) -> dict[str, Array]:
    """Run the model in an NNEF folder and return its outputs; see :func:`run_model`."""
    if importlib.util.find_spec("tract") is None:
        raise MissingDependencyError("running NNEF models requires the package tract; pip install tract")
    with tempfile.TemporaryDirectory(prefix="nnr-run-") as scratch:
        source, target = os.path.join(scratch, "inputs.npz"), os.path.join(scratch, "outputs.npz")
        formats.save(Model(inputs), source)
        try:
            done = subprocess.run(
                module_command(__name__, os.fspath(folder), source, target),
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise FormatError(f"tract took more than {timeout:g} s to run the model") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise FormatError(said[-1] if said else f"tract exited with code {done.returncode}")
        return dict(formats.load(target, format="npz").tensors)


def main() -> None:
    """Run the folder argv[1] with the inputs in argv[2], and write the outputs to argv[3]."""
    tract: Any = importlib.import_module("tract")
    folder, source, target = sys.argv[1:4]
    try:
        text = Path(folder, "graph.nnef").read_text("utf-8")
        outputs = _run(tract.nnef().load(folder), dict(formats.load(source).tensors), _results(text))
    except tract.TractError as error:
        cause = str(error).partition("Stack backtrace:")[0]
        sys.exit(f"tract cannot run the model: {' '.join(cause.split())}")
    except (FormatError, OSError) as error:
        sys.exit(" ".join(str(error).split()))
    formats.save(Model(outputs), target)


def _results(graph: str) -> list[str]:
    """Return the names of the results of an NNEF graph, which the engine discards."""
    found = re.search(r"^\s*graph\s[^(]*\([^)]*\)\s*->\s*\(([^)]*)\)", graph, re.MULTILINE)
    return [name.strip() for name in found[1].split(",")] if found else []


def _run(model: Any, given: dict[str, Array], results: list[str]) -> dict[str, Array]:
    names = [model.input_name(i) for i in range(model.input_count())]
    if len(names) == len(given) == 1:
        given = dict(zip(names, given.values(), strict=True))
    if not given.keys() >= {*names}:
        raise FormatError(f"the graph requires the inputs {', '.join(names)}, got {', '.join(given)}")
    extents = [[int(str(extent)) for extent in model.input_fact(i).dims()] for i in range(len(names))]
    portions = [_portions(name, given[name], dims) for name, dims in zip(names, extents, strict=True)]
    counts = [len(arrays) for arrays in portions]
    if len(set(counts)) > 1:
        raise FormatError(f"the inputs must have the same number of batches, got {', '.join(map(str, counts))}")
    outputs = [model.output_name(i) for i in range(model.output_count())]
    outputs = results if len(results) == len(outputs) else outputs
    state = model.into_runnable().spawn_state()
    runs = [[tensor.to_numpy() for tensor in state.run(list(arrays))] for arrays in zip(*portions, strict=True)]
    return {
        name: np.concatenate([np.atleast_1d(array) for array in arrays])
        for name, arrays in zip(outputs, zip(*runs, strict=True), strict=True)
    }


def _portions(name: str, array: Array, dims: list[int]) -> list[Array]:
    """Return the batches of an input, one for each run; floats become float32, as in the graph."""
    if array.dtype.kind == "f":
        array = array.astype(np.float32, copy=False)
    if (
        array.ndim != len(dims)
        or not dims
        or array.shape[1:] != tuple(dims[1:])
        or not len(array)
        or len(array) % dims[0]
    ):
        raise FormatError(f"input {name!a} has shape {array.shape}; the graph requires {tuple(dims)}")
    return [np.ascontiguousarray(part) for part in np.split(array, len(array) // dims[0])]
