"""Every available NNEF model that other software can run has the same outputs after the codec.

Each model is converted losslessly: folder -> bitstream -> .tar -> bitstream -> .tgz -> bitstream -> folder. It is run
in every container that the engine reads, and once more after coding at the default step sizes.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.formats import FormatWarning

from . import engines
from .engines import Array, Job, Result
from .formats.support import SYNTHETIC
from .shared import SHARED, needs_shared

pytestmark = [pytest.mark.medium, pytest.mark.clients]

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits.nnef"
LARGE = ("resnet56_cifar10", "squeezenet1_0_deepcompression")
HARNESS = "sonos_tract/harness"

#: Rejected models: data that is missing or contradicts the graph, a path outside the folder.
REFUSED = {"dtype_conflict", "missing_dat", "shape_conflict", "traversal"}
#: Models with models inside, or with files that a bitstream cannot contain.
INCOMPLETE = {"submodel"}
#: Models that an engine cannot run. Khronos' parser also rejects extensions of vendors.
FAILING = {
    "tract": {
        "causal-conv1d-update",  # an operation of a later version
        "compositional",  # expressions as shapes
        "copy-requant",  # quantized inputs, as the next five
        "digits_int8.tflite",
        "digits_int8_perchannel.tflite",
        "nnet2",
        "softmax-quant/expected",
        "softmax-quant/model",
        "missing_dat",
        "quantized",  # no addition of quantized numbers
        "shape_conflict",
        "simple-grouped-query-att-f32",  # its attention does not support the shapes, as in the next one
        "simple-mask-f32",
        "traversal",
        "update_rnn",  # no operation `update`
    },
    "nnef": {"dtype_conflict", "missing_dat", "shape_conflict", "softmax-quant/model", "traversal"},
    "nnef_tools": {
        "compositional",  # no fragments
        "digits_int8_perchannel.tflite",  # gives biases a second dimension
        "missing_dat",
        "shape_conflict",
        "softmax-quant/model",
        "traversal",
    },
}
#: Quantized data, which Khronos' interpreter reads as floats, beyond their end.
MISREAD = {"digits_int8.tflite", "digits_int8_perchannel.tflite", "quantized"}
#: Number of models that run before the codec, and therefore after it, and of all models.
COUNTS = {
    ("own", "tract"): (10, 17),
    ("own", "nnef"): (12, 17),
    ("own", "nnef_tools"): (12, 17),
    ("shared", "tract"): (36, 46),
    ("shared", "nnef"): (8, 46),
    ("shared", "nnef_tools"): (9, 46),
    ("large", "tract"): (2, 2),
    ("large", "nnef"): (2, 2),
    ("large", "nnef_tools"): (2, 2),
}


@dataclass(frozen=True)
class Source:
    """A model, and the file with its inputs, if any."""

    path: Path
    inputs: Path | None = None


def local() -> dict[str, Source]:
    """Return the models of this project, by name."""
    return {"example": Source(EXAMPLE)} | {
        path.parent.name: Source(path.parent) for path in sorted(SYNTHETIC.rglob("graph.nnef"))
    }


def shared() -> dict[str, Source]:
    """Return real models of moderate size, and small ones of every kind, by name."""
    assert SHARED
    found = {}
    for path in sorted((SHARED / "models").glob("*.nnef")):
        name = path.name.removesuffix(".nnef")
        inputs = path.with_name(f"{name.removesuffix('.nnef_tools')}.io.npz")
        if name not in LARGE:
            found[name] = Source(path, inputs)
    harness = SHARED / "nnef_corpus" / HARNESS
    for path in sorted([*harness.rglob("graph.nnef"), *harness.rglob("*.tgz"), *harness.rglob("*.tar")]):
        folder, model = path.parent, path.parent if path.name == "graph.nnef" else path
        name = path.name.partition(".")[0] if path.suffix == ".tar" else folder.name
        name = f"{folder.parent.name}/{name}" if folder.parent.name == "softmax-quant" else name
        inputs = folder / "io.npz"
        assert name not in found
        found[name] = Source(model, inputs if inputs.exists() else None)
    return found


def large() -> dict[str, Source]:
    """Return real models that take some seconds."""
    assert SHARED
    folder = SHARED / "models"
    return {name: Source(folder / f"{name}.nnef", folder / f"{name}.io.npz") for name in LARGE}


@dataclass(frozen=True)
class Stages:
    """The same models before and after the codec: in each container, and coded with default options."""

    sources: dict[str, Source]
    folder: Path
    refused: dict[str, str]

    def path(self, name: str, stage: str) -> Path:
        """Return the path of a model: the original (``source``), ``tar``, ``tgz``, ``nnef`` or ``default.nnef``."""
        return self.sources[name].path if stage == "source" else self.folder / f"{name.replace('/', ' ')}.{stage}"

    def run(self, engine: str, names: Iterable[str], *stages: str) -> list[dict[str, Result]]:
        """Return the outputs of each stage, by name."""
        runs = [(name, stage) for stage in stages for name in names]
        jobs = [
            Job(self.path(name, stage), self.sources[name].inputs, self.path(name, f"{engine} {stage}.npz"))
            for name, stage in runs
        ]
        found: dict[str, dict[str, Result]] = {stage: {} for stage in stages}
        for (name, stage), result in zip(runs, engines.run(engine, jobs), strict=True):
            found[stage][name] = result
        return list(found.values())


def through(sources: dict[str, Source], folder: Path) -> Stages:
    """Encode and decode models."""
    stages = Stages(sources, folder, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        for name, source in sources.items():
            bitstreams = []
            before = source.path
            try:
                for stage in ("tar", "tgz", "nnef"):
                    bitstreams.append(nnr.encode(nnr.load(before), exact=True))
                    before = stages.path(name, stage)
                    nnr.save(nnr.decode(bitstreams[-1]), before)
            except nnr.FormatError as error:
                stages.refused[name] = str(error)
                continue
            assert bitstreams[0] == bitstreams[1] == bitstreams[2], name
            nnr.save(nnr.decode(nnr.encode(nnr.load(before))), stages.path(name, "default.nnef"))
    return stages


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Stages]:
    """Return the models of a key of `KINDS`, encoded and decoded on first use."""
    return functools.cache(lambda kind: through(KINDS[kind](), tmp_path_factory.mktemp(kind)))


KINDS = {"own": local, "shared": shared, "large": large}
EVERY_KIND = pytest.mark.parametrize(
    "kind",
    [
        "own",
        pytest.param("shared", marks=[needs_shared, pytest.mark.slow]),
        pytest.param("large", marks=[needs_shared, pytest.mark.slow]),
    ],
)
EVERY_ENGINE = pytest.mark.parametrize(
    "engine", ["tract", "nnef", pytest.param("nnef_tools", marks=[pytest.mark.slow, pytest.mark.torch])]
)
CONTAINERS = {"tract": ["tar", "tgz", "nnef"], "nnef": ["nnef"], "nnef_tools": ["nnef"]}


@EVERY_KIND
def test_only_what_must_be_is_refused(kind: str, stages: Callable[[str], Stages]) -> None:
    models = stages(kind)
    assert set(models.refused) == REFUSED & set(models.sources)


@EVERY_KIND
@EVERY_ENGINE
def test_outputs(kind: str, engine: str, stages: Callable[[str], Stages]) -> None:
    engines.needs(engine)
    models = stages(kind)
    names = [
        name
        for name, source in models.sources.items()
        if engine == "tract" or (source.path.is_dir() and not (engine == "nnef" and name in MISREAD))
    ]
    (before,) = models.run(engine, names, "source")
    for name, result in before.items():
        assert not result.error or name in FAILING[engine] or "Parse error" in result.error, (name, result.error)
        assert result.error or name not in FAILING[engine], f"{engine} has learned to run {name}"

    names = [name for name in names if not before[name].error and name not in REFUSED | INCOMPLETE]
    stages_after = [*CONTAINERS[engine], "default.nnef"]
    for stage, results in zip(stages_after, models.run(engine, names, *stages_after), strict=True):
        for name, after in results.items():
            assert not after.error, (name, stage, after.error)
            for one, other in zip(before[name].outputs, after.outputs, strict=True):
                assert (one.dtype, one.shape) == (other.dtype, other.shape), (name, stage)
                if stage != "default.nnef":
                    assert one.tobytes() == other.tobytes(), (name, stage)
                else:
                    assert similarity(one, other) >= 0.999, (name, stage)
    assert (len(names), len(models.sources)) == COUNTS[kind, engine]


def similarity(one: Array, other: Array) -> float:
    """Return the cosine of the angle between two outputs; 1 if they are equal."""
    if np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
        return 1.0
    a, b = (array.astype(np.float64).reshape(-1) for array in (one, other))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.slow
@needs_shared
@pytest.mark.torch
def test_quantized_tensors(stages: Callable[[str], Stages]) -> None:
    """``graph.quant`` gives the same values as before, also with scales per channel, and they are the network's values.

    The interpreter cannot run the model with scales per channel, because it converts biases to matrices.
    """
    engines.needs("nnef_tools")
    models = stages("shared")
    trained = {array.shape: array for array in nnr.load(models.sources["digits_f32.tflite"].path).tensors.values()}
    names = ["digits_int8.tflite", "digits_int8_perchannel.tflite"]
    before, *after = models.run("nnef_tools tensors", names, "source", "nnef", "default.nnef")
    for name in names:
        assert len(before[name].outputs) == 6, before[name].error
        for stage in after:
            for one, other in zip(before[name].outputs, stage[name].outputs, strict=True):
                assert (one.shape, one.tobytes()) == (other.shape, other.tobytes())
        weights = [array for array in before[name].outputs if array.shape in trained and array.shape[0] > 1]
        assert len(weights) == 3
        assert min(similarity(array, trained[array.shape]) for array in weights) > 0.99


@pytest.mark.slow
@needs_shared
@pytest.mark.torch
def test_quantized_network(stages: Callable[[str], Stages]) -> None:
    """The interpreter has the decisions of TensorFlow Lite, which wrong integers or scales would change."""
    engines.needs("nnef_tools")
    models = stages("shared")
    name = "digits_int8.tflite"
    (results,) = models.run("nnef_tools", [name], "nnef")
    (outputs,) = results[name].outputs
    file = models.sources[name].inputs
    assert file
    with np.load(file) as expected:
        decisions = expected["y"][: len(outputs)].argmax(axis=1)
    assert np.array_equal(outputs.argmax(axis=1), decisions)
