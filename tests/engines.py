"""Runs of many NNEF models, with any number and types of inputs, in other software, in a separate process.

The memory of that process is limited. If a model kills it, the model has failed, and the other jobs run in a new
process.
"""

from __future__ import annotations

import importlib.util
import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

#: Limit of the process's address space, part of which PyTorch needs at once.
_MEMORY = 12 << 30
_SYMBOL = 4
_PORTIONS = 32


class Job(NamedTuple):
    """Run of a model.

    Parameters
    ----------
    model : Path
        NNEF folder; for tract also an archive.
    inputs : Path or None
        An npz file with the inputs by name, or with one array, ``x``, for several runs of a graph with one input;
        missing inputs are seeded numbers of the right shapes and types.
    outputs : Path
        The npz file to write: the outputs in the order of the graph.
    """

    model: Path
    inputs: Path | None
    outputs: Path


class Result(NamedTuple):
    """The outputs in the order of the graph, or none and the reason."""

    outputs: list[Array]
    error: str = ""


def run(engine: str, jobs: Sequence[Job]) -> list[Result]:
    """Return the result of every job. The engine is a key of `ENGINES`."""
    results: list[Result] = []
    while len(results) < len(jobs):
        todo = jobs[len(results) :]
        lines = json.dumps([[str(path) if path else None for path in job] for job in todo])
        # -P: the tests folder must not shadow installed packages in the worker.
        command = [sys.executable, "-P", __file__, engine]
        done = subprocess.run(command, check=False, input=lines, capture_output=True, text=True, timeout=600)
        errors = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('"')]
        for job, error in zip(todo, errors, strict=False):
            results.append(Result([], error) if error else Result(_read(job.outputs)))
        if len(errors) < len(todo):
            results.append(Result([], f"{engine} exited with code {done.returncode}: {done.stderr[-500:]}"))
    return results


def _read(path: Path) -> list[Array]:
    with np.load(path) as outputs:
        return [outputs[name] for name in outputs.files]


def needs(engine: str) -> None:
    """Skip the test if a requirement of the engine is not installed."""
    import pytest

    package = engine.partition(" ")[0]
    if package == "nnef_tools":
        pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} (extra 'clients') is not installed")


class Loaded(NamedTuple):
    """Model that an engine has read: name, shape and type of each input, and a function that runs it."""

    inputs: list[tuple[str, list[int], np.dtype[Any]]]
    run: Callable[[list[Array]], Sequence[Array]]


def _tract(model: Path) -> Loaded:
    import tract

    context = tract.nnef().with_tract_extra().with_onnx().with_pulse().with_tract_transformers()
    graph = context.with_extended_identifier_syntax().load(model)
    inputs = []
    for index in range(graph.input_count()):
        fact = graph.input_fact(index)
        # A symbolic dimension has any extent, equal in all places.
        shape = [int(text) if (text := str(extent)).isdecimal() else _SYMBOL for extent in fact.dims()]
        kind = fact.datum_type()
        dtype = np.dtype(np.bool_ if kind == tract.DatumType.BOOL else f"{'uif'[(kind >> 4) - 1]}{kind & 15}")
        inputs.append((graph.input_name(index), shape, dtype))
    runnable = graph.into_runnable()
    return Loaded(inputs, lambda arrays: [output.to_numpy() for output in runnable.run(arrays)])


_TYPES = {"scalar": np.dtype(np.float32), "integer": np.dtype(np.int32), "logical": np.dtype(np.bool_)}


def _lowered(model: Path) -> list[str]:
    """Return the operations that Khronos' parser must expand, because its interpreter has no kernel for them."""
    return ["batch_normalization", *re.findall(r"\bfragment\s+(\w+)", (model / "graph.nnef").read_text("utf-8"))]


def _khronos_inputs(model: Path) -> list[tuple[str, list[int], np.dtype[Any]]]:
    import nnef

    graph = nnef.parse_file(str(model / "graph.nnef"), lowered=_lowered(model))
    nnef.infer_shapes(graph)
    return [(name, graph.tensors[name].shape, _TYPES[graph.tensors[name].dtype]) for name in graph.inputs]


def _nnef(model: Path) -> Loaded:
    import nnef

    inputs = _khronos_inputs(model)
    session = nnef.Session(str(model), lowered=_lowered(model))
    return Loaded(inputs, lambda arrays: session(*arrays))


def _with_newshape(reshape: Callable[..., Array]) -> Callable[..., Array]:
    """Return the function ``reshape`` of numpy before 2.4, whose second parameter nnef_tools calls ``newshape``."""

    def old(array: Array, *arguments: Any, newshape: Any = None, **options: Any) -> Array:
        return reshape(array, *(arguments if newshape is None else (newshape,)), **options)

    return old


def _nnef_tools(model: Path) -> Loaded:
    """Load a model in the interpreter on PyTorch, which applies ``graph.quant``."""
    from nnef_tools.interpreter.pytorch import Interpreter

    interpreter = Interpreter(str(model))
    return Loaded(_khronos_inputs(model), lambda arrays: list(interpreter(arrays).values()))


def _tensors(model: Path) -> Loaded:
    """Load only the variables, dequantized by the interpreter on PyTorch; nothing is run."""
    from nnef_tools.interpreter.pytorch import NNEFModule

    parameters = dict(NNEFModule(str(model)).named_parameters())
    return Loaded([], lambda _: [parameters[name].detach().numpy() for name in sorted(parameters)])


#: Functions that load a model, by name.
ENGINES: dict[str, Callable[[Path], Loaded]] = {
    "tract": _tract,
    "nnef": _nnef,
    "nnef_tools": _nnef_tools,
    "nnef_tools tensors": _tensors,
}


def _outputs(loaded: Loaded, known: dict[str, Array]) -> list[Array]:
    """Run a model with the known inputs, repeatedly if a single input has several batches, else with random inputs."""
    if len(loaded.inputs) == 1 and "x" in known:
        ((_, shape, dtype),) = loaded.inputs
        images = known["x"][:_PORTIONS].astype(dtype)
        runs = [loaded.run([portion]) for portion in np.split(images, len(images) // shape[0])]
        return [np.concatenate(arrays) for arrays in zip(*runs, strict=True)]
    rng = np.random.default_rng(15938)
    arrays: list[Array] = []
    for name, shape, dtype in loaded.inputs:
        numbers = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        arrays.append(np.ascontiguousarray(known.get(name, numbers), dtype))
    return list(loaded.run(arrays))


def main() -> None:
    """Run jobs from standard input; print a line for each, with the error or empty. This is the worker."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    numpy: Any = np
    numpy.reshape = _with_newshape(np.reshape)
    load = ENGINES[sys.argv[1]]
    for model, inputs, outputs in json.load(sys.stdin):
        try:
            known: dict[str, Array] = {}
            if inputs:
                with np.load(inputs) as file:
                    known.update(file)
            np.savez(outputs, *_outputs(load(Path(model)), known))
            error = ""
        except Exception as exception:
            error = f"{type(exception).__name__}: {exception}".partition("Stack backtrace:")[0].strip()
        print(f"\n{json.dumps(error)}", flush=True)


if __name__ == "__main__":
    main()
