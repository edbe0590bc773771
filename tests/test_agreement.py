"""Real models before and after the codec, in other inference engines: equal decisions from a fraction of the bytes."""

from __future__ import annotations

import runpy
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nnr_codec as nnr

from .clients import NnefClient, TractClient, input_shape
from .shared import SHARED, needs_shared

pytestmark = [pytest.mark.slow, pytest.mark.clients]

Floats = npt.NDArray[np.float32]

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "digits"
MODELS = (SHARED or Path()) / "models"


@dataclass(frozen=True)
class Case:
    """A model and the expected results.

    Parameters
    ----------
    path : Path
        NNEF folder, float32 tensors.
    size : float
        Maximum size of the whole bitstream, in percent of the tensors' bytes.
    top_1 : float
        Minimum share of inputs, in percent, for which the largest output stays the same.
    labelled : tuple of (Path, str, str) or None
        An npz file with images and labels, and the names of both; accuracy may change by half a point.
    """

    path: Path
    size: float = 25.0
    top_1: float = 0.0
    labelled: tuple[Path, str, str] | None = None


DIGITS = (MODELS / "digits_test.npz", "x", "y")
EXAMPLE_CASE = Case(EXAMPLE / "digits.nnef", size=30, labelled=(EXAMPLE / "test.npz", "images", "labels"))
SQUEEZENET = Case(MODELS / "squeezenet1_0_deepcompression.nnef", size=12)
SHARED_CASES = [
    Case(MODELS / "digits_cnn.nnef", size=30, labelled=DIGITS),
    Case(MODELS / "digits_cnn.nnef_tools.nnef", size=30, labelled=DIGITS),
    Case(MODELS / "digits_f32.tflite.nnef", size=30, labelled=DIGITS),
    Case(MODELS / "resnet20_cifar10.nnef", top_1=98),
    Case(MODELS / "resnet56_cifar10.nnef", top_1=98),
    SQUEEZENET,
]


def parameters(cases: list[Case]) -> list[object]:
    """Return the cases as pytest parameters."""
    return [
        pytest.param(case, id=case.path.name, marks=[] if case.path.is_relative_to(EXAMPLE) else needs_shared)
        for case in cases
    ]


EVERY_MODEL = parameters([EXAMPLE_CASE, *SHARED_CASES])


def pictures(shape: tuple[int, ...], count: int = 256) -> Floats:
    """Return seeded images that spread over many classes: noise of four grain sizes, mixed at random strengths.

    Parameters
    ----------
    shape : tuple of int
        [1, channels, side, side] of the model's input. It determines the range of values: 0..1 for digits, a standard
        deviation of about 1 for the others, as in the reference inputs of the models.

    Returns
    -------
    ndarray of float32, shape [count, channels, side, side]
    """
    rng = np.random.default_rng(15938)
    _, channels, side, _ = shape
    out = np.zeros((count, channels, side, side), np.float32)
    for grain in (1, side // 8, side // 2, side):
        cells = -(-side // grain)
        noise = rng.standard_normal((count, channels, cells, cells), dtype=np.float32)
        noise = np.kron(noise, np.ones((grain, grain), np.float32))[:, :, :side, :side]
        out += noise * rng.random((count, 1, 1, 1), dtype=np.float32)
    if side == 8:
        return np.asarray(1 / (1 + np.exp(-2 * out)), np.float32)
    return out


def scores(path: Path, images: Floats) -> Floats:
    """Return the first output of the NNEF folder `path` for each image in tract, one row each."""
    return np.asarray(TractClient().run(path, images)[0], np.float32).reshape(len(images), -1)


def measure(path: Path, decoded: Path | None = None, **options: Any) -> dict[str, float]:
    """Encode and decode the NNEF folder `path`, and compare both models in tract.

    Parameters
    ----------
    path : Path
        NNEF folder with float32 tensors and one image input.
    decoded : Path, optional
        Path of the decoded NNEF folder; default: a temporary folder.
    **options
        Fields of EncoderConfig; default: the default preset.

    Returns
    -------
    dict of str to float
        ``parameters``, ``float_bytes`` (tensors as float32), ``nnr_bytes`` (whole bitstream), ``size`` (percent),
        ``encode_seconds``, ``decode_seconds``; over 256 `pictures`: ``cosine`` (mean similarity of the outputs),
        ``top_1`` (percent of equal decisions), ``snr`` (dB, outputs over their error; infinite if equal).
    """
    if decoded is None:
        with tempfile.TemporaryDirectory() as folder:
            return measure(path, Path(folder, "decoded.nnef"), **options)
    model = nnr.load(path)
    sizes = [np.asarray(model[name]).size for name in model]
    start = time.perf_counter()
    data = nnr.encode(model, **options)
    encoded_at = time.perf_counter()
    restored = nnr.decode(data)
    decoded_at = time.perf_counter()
    nnr.save(restored, decoded)

    images = pictures(input_shape(path))
    before, after = scores(path, images), scores(decoded, images)
    norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    error = float(np.square(before - after, dtype=np.float64).sum())
    power = float(np.square(before, dtype=np.float64).sum())
    return {
        "parameters": sum(sizes),
        "float_bytes": 4 * sum(sizes),
        "nnr_bytes": len(data),
        "size": 100 * len(data) / (4 * sum(sizes)),
        "encode_seconds": encoded_at - start,
        "decode_seconds": decoded_at - encoded_at,
        "cosine": float(np.mean((before * after).sum(axis=1) / norms)),
        "top_1": 100 * float(np.mean(before.argmax(axis=1) == after.argmax(axis=1))),
        "snr": 10 * float(np.log10(power / error)) if error else float("inf"),
    }


@dataclass(frozen=True)
class Compressed:
    """A case after the codec: the decoded folder and the result of `measure`."""

    case: Case
    decoded: Path
    figures: dict[str, float]


@pytest.fixture(scope="module")
def compressed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compressed:
    case: Case = request.param
    if not TractClient.installed():
        pytest.skip("tract is not installed")
    if not case.path.is_dir():
        pytest.skip(f"{case.path} does not exist")
    decoded = tmp_path_factory.mktemp("decoded") / case.path.name
    return Compressed(case, decoded, measure(case.path, decoded))


@pytest.mark.parametrize("compressed", EVERY_MODEL, indirect=True)
def test_size_and_outputs(compressed: Compressed, record_property: Callable[[str, object], None]) -> None:
    case, figures = compressed.case, compressed.figures
    for name, value in figures.items():
        record_property(name, value)
    print(f"{case.path.name}: {', '.join(f'{name} {value:.6g}' for name, value in figures.items())}")
    assert figures["cosine"] >= 0.999
    assert figures["size"] <= case.size
    assert figures["top_1"] >= case.top_1


@pytest.mark.parametrize("compressed", EVERY_MODEL, indirect=True)
def test_decoded_folder_means_the_same_to_both_clients(compressed: Compressed) -> None:
    if not NnefClient.installed():
        pytest.skip("nnef is not installed")
    images = pictures(input_shape(compressed.case.path), 4)
    khronos = NnefClient().run(compressed.decoded, images)[0].reshape(len(images), -1)
    np.testing.assert_allclose(scores(compressed.decoded, images), khronos, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "compressed", parameters([case for case in (EXAMPLE_CASE, *SHARED_CASES) if case.labelled]), indirect=True
)
def test_accuracy(compressed: Compressed, record_property: Callable[[str, object], None]) -> None:
    assert compressed.case.labelled
    file, images_name, labels_name = compressed.case.labelled
    with np.load(file) as test:
        images, labels = test[images_name], test[labels_name]
    before, after = (
        100 * float(np.mean(scores(path, images).argmax(axis=1) == labels))
        for path in (compressed.case.path, compressed.decoded)
    )
    record_property("accuracy_before", before)
    record_property("accuracy_after", after)
    print(f"{compressed.case.path.name}: accuracy {before:.2f} % before, {after:.2f} % after")
    assert abs(after - before) <= 0.5


@pytest.mark.parametrize("compressed", parameters([SQUEEZENET]), indirect=True)
def test_top_five_on_a_photo(compressed: Compressed) -> None:
    with np.load(MODELS / "squeezenet1_0_deepcompression.hopper.npz") as photo:
        image = photo["x"]
    before, after = (
        scores(path, image)[0].argsort()[::-1][:5].tolist() for path in (compressed.case.path, compressed.decoded)
    )
    assert after == before


def test_evaluate_computes_the_graph_of_the_example() -> None:
    """The example's forward pass agrees with an inference engine, so the printed accuracy is the model's."""
    if not TractClient.installed():
        pytest.skip("tract is not installed")
    evaluate = runpy.run_path(str(EXAMPLE / "evaluate.py"))
    folder = EXAMPLE / "digits.nnef"
    images = pictures((1, 1, 8, 8))
    np.testing.assert_allclose(
        evaluate["logits"](images, evaluate["read_weights"](folder)), scores(folder, images), rtol=1e-4, atol=1e-4
    )
    assert evaluate["accuracies"](folder)[0] >= 0.98
