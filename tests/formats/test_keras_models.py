"""Models of Keras through the codec, run by Keras before and after."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError

from ..shared import SHARED, needs_shared
from .support import assert_same

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow", reason="the package tensorflow is not installed")
keras: Any = pytest.importorskip("keras", reason="the package keras is not installed")

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file:UserWarning"),
]

MODELS = (SHARED or Path()) / "models"
DATA = Path(__file__).resolve().parents[1] / "data" / "keras"

EXACT = nnr.EncoderConfig(exact=True)

Floats = npt.NDArray[np.float32]


def digits() -> Any:
    """Return the digits network in Keras, with the weights of the shared one."""
    layers, weights = keras.layers, nnr.load(MODELS / "digits_cnn.safetensors")
    image = keras.Input((8, 8, 1))
    x = image
    for number in (1, 2):
        x = layers.Conv2D(16 * number, 3, padding="same", name=f"conv{number}")(x)
        x = layers.BatchNormalization(epsilon=1e-5, name=f"bn{number}")(x)
        x = layers.MaxPool2D()(layers.ReLU()(x))
    x = layers.Flatten()(layers.Permute((3, 1, 2))(x))
    x = layers.Dense(64, activation="relu", name="fc1")(x)
    model = keras.Model(image, layers.Dense(10, activation="softmax", name="fc2")(x), name="digits")
    for number in (1, 2):
        own = [weights[f"conv{number}.weight"].transpose(2, 3, 1, 0), weights[f"conv{number}.bias"]]
        model.get_layer(f"conv{number}").set_weights(own)
        own = [weights[f"bn{number}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")]
        model.get_layer(f"bn{number}").set_weights(own)
        model.get_layer(f"fc{number}").set_weights([weights[f"fc{number}.weight"].T, weights[f"fc{number}.bias"]])
    return model


def digits_inputs() -> tuple[Floats, npt.NDArray[np.int64], Floats]:
    """Return images, labels, and the outputs of the shared network."""
    with np.load(MODELS / "digits_test.npz") as data:
        return data["x"].transpose(0, 2, 3, 1), data["y"], data["p"]


def rich() -> Any:
    """Return a model with an embedding, recurrence, a nested model, a shared layer, 16-bit types and training state."""
    layers = keras.layers
    keras.utils.set_random_seed(8)
    words = keras.Input((6,), dtype="int32")
    table = layers.Embedding(20, 8, name="table")(words)
    shared = layers.Dense(8, name="shared")
    x = layers.Bidirectional(layers.LSTM(5), name="both")(shared(shared(table)))
    nested = keras.Sequential([keras.Input((10,)), layers.BatchNormalization(), layers.Dense(4, "relu")], name="nested")
    x = layers.GaussianNoise(0.1, seed=3)(nested(x))
    x = layers.Dense(4, dtype="bfloat16", name="half")(x)
    x = layers.Dense(3, dtype="float16", name="other_half")(x)
    model = keras.Model(words, layers.Activation("softmax", dtype="float32")(x))
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy())
    rng = np.random.default_rng(8)
    model.fit(rng.integers(0, 20, (32, 6)), rng.integers(0, 3, 32), verbose=0)
    return model


def outputs(model: Any, inputs: Any) -> Floats:
    return np.asarray(model.predict(inputs, verbose=0), np.float32)


def there_and_back(path: Path, folder: Path, **options: Any) -> Path:
    """Return a model file after the codec, with the same name."""
    folder.mkdir(exist_ok=True)
    nnr.encode_file(path, folder / "model.nnr", **options)
    nnr.decode_file(folder / "model.nnr", folder / path.name)
    return folder / path.name


@needs_shared
@pytest.mark.parametrize("name", ["digits.keras", "digits.h5"])
def test_the_digits_network(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    images, labels, expected = digits_inputs()
    path = tmp_path / name
    digits().save(path)
    before = outputs(keras.saving.load_model(path), images)
    assert np.abs(before - expected).max() < 1e-5  # it is the network of the other formats

    exact = there_and_back(path, tmp_path / "exact", config=EXACT)
    np.testing.assert_array_equal(outputs(keras.saving.load_model(exact), images), before)

    lossy = there_and_back(path, tmp_path / "lossy", config=nnr.EncoderConfig())
    after = outputs(keras.saving.load_model(lossy), images)
    same = float(np.mean(after.argmax(1) == before.argmax(1)))
    accuracy = [float(np.mean(found.argmax(1) == labels)) for found in (before, after)]
    snr = 10 * np.log10(np.square(before).sum() / np.square(after - before).sum())
    assert same >= 0.99
    assert abs(accuracy[1] - accuracy[0]) <= 0.005
    for folder in ("exact", "lossy"):
        size = (tmp_path / folder / "model.nnr").stat().st_size
        record_property(f"figure: {name}, {folder}", f"{size:,} of {path.stat().st_size:,} bytes")
    record_property(f"figure: {name}, default", f"{100 * same:.1f} % same, accuracy {accuracy[1]:.4f}, {snr:.1f} dB")


@pytest.mark.parametrize("name", ["rich.keras", "rich.weights.h5"])
def test_every_layer_and_state(name: str, tmp_path: Path) -> None:
    model, inputs = rich(), np.random.default_rng(1).integers(0, 20, (16, 6))
    path = tmp_path / name
    is_whole = name == "rich.keras"
    (model.save if is_whole else model.save_weights)(path)
    exact = there_and_back(path, tmp_path / "exact", config=EXACT)
    if is_whole:
        again = keras.saving.load_model(exact)
        assert again.optimizer.iterations == model.optimizer.iterations
    else:
        again = rich()
        for variable in again.variables:
            variable.assign(variable * 0)
        again.load_weights(exact)
    np.testing.assert_array_equal(outputs(again, inputs), outputs(model, inputs))
    pairs = zip(
        [*model.variables, *model.optimizer.variables], [*again.variables, *again.optimizer.variables], strict=True
    )
    for one, other in pairs:
        if "seed_generator" in one.path:
            continue  # Keras itself does not save the state of a layer within another one
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), one.path
    assert formats.load(exact).metadata == formats.load(path).metadata
    assert_same(formats.load(exact).tensors, formats.load(path).tensors)


def test_the_committed_files_load(tmp_path: Path) -> None:
    """Keras reads the files that tests without Keras read and write."""
    image = np.random.default_rng(2).random((3, 4, 4, 1), np.float32)
    expected = outputs(keras.saving.load_model(DATA / "tiny.keras"), image)
    for name in ("tiny.keras", "tiny.h5"):
        again = keras.saving.load_model(there_and_back(DATA / name, tmp_path / name[5:], config=EXACT))
        np.testing.assert_array_equal(outputs(again, image), expected)
        before = keras.saving.load_model(DATA / name)
        for one, other in zip(before.optimizer.variables, again.optimizer.variables, strict=True):
            np.testing.assert_array_equal(one, other)
    with pytest.warns(formats.FormatWarning, match="left out: the topology"):
        formats.save(formats.load(DATA / "tiny.keras"), tmp_path / "alone.weights.h5")
    for weights in (
        there_and_back(DATA / "tiny.weights.h5", tmp_path / "w", config=EXACT),
        tmp_path / "alone.weights.h5",
    ):
        model = keras.saving.load_model(DATA / "tiny.keras")
        for variable in model.variables:
            variable.assign(variable * 0)
        model.load_weights(weights)
        np.testing.assert_array_equal(outputs(model, image), expected)
    text = keras.saving.load_model(there_and_back(DATA / "text.keras", tmp_path / "text", config=EXACT))
    words = tf.constant([["drei", "acht"], ["fünf", "zwei"]])
    before = keras.saving.load_model(DATA / "text.keras")
    np.testing.assert_array_equal(text.predict(words, verbose=0), before.predict(words, verbose=0))
    assert text.layers[0].get_vocabulary() == before.layers[0].get_vocabulary()


def test_a_folder_of_keras(tmp_path: Path) -> None:
    model, image = keras.saving.load_model(DATA / "tiny.keras"), np.ones((1, 4, 4, 1), np.float32)
    model.save(tmp_path / "folder", zipped=False)
    nnr.encode_file(tmp_path / "folder", tmp_path / "m.nnr", EXACT)
    nnr.decode_file(tmp_path / "m.nnr", tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(outputs(again, image), outputs(model, image))


def test_old_weights_alone(tmp_path: Path) -> None:
    """A weights file of Keras 2 has the content of the group model_weights of an .h5 file."""
    import h5py

    with h5py.File(DATA / "tiny.h5") as source, h5py.File(tmp_path / "weights.h5", "w") as target:
        for name, value in source["model_weights"].attrs.items():
            target.attrs[name] = value
        for name in source["model_weights"]:
            source.copy(source["model_weights"][name], target, name)
    model, image = keras.saving.load_model(DATA / "tiny.keras"), np.ones((1, 4, 4, 1), np.float32)
    expected = outputs(model, image)
    again = there_and_back(tmp_path / "weights.h5", tmp_path / "again", config=EXACT)
    for variable in model.variables:
        variable.assign(variable * 0)
    model.load_weights(again)
    np.testing.assert_array_equal(outputs(model, image), expected)


def test_a_lambda_is_text(tmp_path: Path) -> None:
    """The code of a Lambda layer is kept as text and never executed."""
    marker = tmp_path / "ran"
    name = str(marker)
    code = keras.layers.Lambda(lambda x: (open(name, "w").close(), x)[1])
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), code]).save(tmp_path / "m.keras")
    marker.unlink(missing_ok=True)
    again = there_and_back(tmp_path / "m.keras", tmp_path / "again", config=EXACT)
    assert not marker.exists()
    assert formats.load(again).topology == formats.load(tmp_path / "m.keras").topology
    with pytest.raises(ValueError, match="Lambda"):
        keras.saving.load_model(again)


def test_what_keras_cannot_hold() -> None:
    with pytest.raises(FormatError, match=r"requires the config\.json"):
        nnr.save(nnr.Model({"w": np.ones(2)}), "never.keras")
