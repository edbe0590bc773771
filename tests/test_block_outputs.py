"""Networks have the same outputs if blocks are coded as such, normalizations are folded, or channels are pruned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nnr_codec as nnr

from . import engines
from .builder import Bitstream
from .engines import Job
from .shared import SHARED, needs_shared
from .vectors.pruning import container
from .vectors.pruning import pruned as pruning_unit

pytestmark = [pytest.mark.medium, pytest.mark.clients]

Floats = npt.NDArray[np.float64]

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits.nnef"
MODELS = (SHARED or Path()) / "models"

#: At fine step sizes, the rounding of float32 is significant.
STEPS: dict[str, dict[str, Any]] = {"fine": {"qp": -72}, "default": {}}
TOOLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "block": {"block": True},
    "folded": {"fold_batchnorm": True},
    "scaled": {"local_scaling": True},
    "folded and scaled": {"fold_batchnorm": True, "local_scaling": True},
    "apart": {"fold_batchnorm": True, "topology": "external"},
}
EVERY_MODEL = pytest.mark.parametrize(
    ("source", "has_norms"),
    [
        (EXAMPLE, True),
        pytest.param(MODELS / "digits_cnn.nnef", True, marks=needs_shared),
        pytest.param(MODELS / "digits_cnn.nnef_tools.nnef", False, marks=needs_shared),
        pytest.param(MODELS / "digits_f32.tflite.nnef", False, marks=needs_shared),
        pytest.param(MODELS / "resnet20_cifar10.nnef", True, marks=[needs_shared, pytest.mark.slow]),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)


def outputs(folders: Sequence[Path], scratch: Path) -> Iterator[list[Floats]]:
    """Return, for each engine, the first output of each folder for the same inputs."""
    for engine in ("tract", "nnef"):
        engines.needs(engine)
        results = engines.run(engine, [Job(folder, None, scratch / f"{k}.npz") for k, folder in enumerate(folders)])
        assert [result.error for result in results] == [""] * len(folders)
        yield [result.outputs[0].astype(np.float64) for result in results]


@pytest.mark.slow
@EVERY_MODEL
def test_outputs_with_tools_of_blocks(source: Path, has_norms: bool, tmp_path: Path) -> None:
    """At fine step sizes all outputs are equal except for rounding; at the default step sizes they are close."""
    folders = {"source": source}
    for name, options in TOOLS.items():
        if options.get("fold_batchnorm") and not has_norms:
            with pytest.raises(nnr.EncodeError, match="no batch normalization"):
                nnr.encode(nnr.load(source), **options)
            continue
        for steps, more in STEPS.items():
            bitstream = nnr.encode(nnr.load(source), **options, **more)
            topology = nnr.load(source).topology if options.get("topology") else None
            folders[f"{name}, {steps}"] = tmp_path / f"{name}, {steps}"
            nnr.save(nnr.decode(bitstream, topology=topology), folders[f"{name}, {steps}"], format="nnef")
    for expected, *found in outputs(list(folders.values()), tmp_path):
        for name, values in zip(list(folders)[1:], found, strict=True):
            error = np.abs(values - expected).max() / np.abs(expected).max()
            assert error < (1e-4 if name.endswith("fine") else 0.03), name


def test_outputs_of_a_pruned_graph(tmp_path: Path) -> None:
    """Every other unit of a layer is removed; the outputs are the same as with zeros in their place."""
    model = nnr.load(EXAMPLE)
    kept = slice(0, None, 2)
    tensors = dict(model.tensors)
    less = {
        "fc1/weight": tensors["fc1/weight"][kept],
        "fc1/bias": tensors["fc1/bias"][:, kept],
        "fc2/weight": tensors["fc2/weight"][:, kept],
    }
    for name in ("fc1/weight", "fc1/bias"):
        tensors[name] = tensors[name].copy()
        tensors[name].reshape(64, -1)[1::2] = 0
    nnr.save(replace(model, tensors=tensors), tmp_path / "zeros.nnef")

    bitstream = nnr.encode(replace(model, tensors=tensors | less), exact=True)
    start = next(unit.offset for unit in nnr.units(bitstream) if unit.type_name == "NNR_NDU")
    unit = Bitstream()
    pruning_unit(unit, container(dims={name: array.shape for name, array in less.items()}))
    nnr.save(nnr.decode(bitstream[:start] + unit.data + bitstream[start:]), tmp_path / "pruned.nnef")

    text = (tmp_path / "pruned.nnef" / "graph.nnef").read_text()
    edited = (EXAMPLE / "graph.nnef").read_text()
    for before, after in (("[64, 768]", "[32, 768]"), ("[1, 64]", "[1, 32]"), ("[10, 64]", "[10, 32]")):
        edited = edited.replace(before, after)
    assert text == edited
    for expected, found in outputs([tmp_path / "zeros.nnef", tmp_path / "pruned.nnef"], tmp_path):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
