"""Models and checkpoints of TensorFlow through the codec, run and read by TensorFlow before and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.dtypes import STORED_TYPES
from nnr_codec.formats.tensorflow import writing
from nnr_codec.formats.tensorflow.bundle import TYPES
from nnr_codec.model import Array, Model

from ..arrays import from_patterns, specials
from ..shared import needs_shared
from .support import assert_same, tree

tf: Any = pytest.importorskip("tensorflow", reason="the package tensorflow is not installed")

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

DATA = Path(__file__).resolve().parents[1] / "data" / "keras"
SAVED = DATA / "scaled.savedmodel"
EXACT = nnr.EncoderConfig(exact=True)


def there_and_back(path: Path, folder: Path, config: nnr.EncoderConfig = EXACT) -> Path:
    """Return a model file after the codec, of the same kind."""
    folder.mkdir(exist_ok=True)
    nnr.encode_file(path, folder / "model.nnr", config)
    target = folder / ("m.index" if path.suffix == ".index" else "m.savedmodel")
    nnr.decode_file(folder / "model.nnr", target)
    return target


def served(path: Path, inputs: Any) -> Any:
    """Return the outputs of the model of a folder."""
    model = tf.saved_model.load(str(path))  # whose variables live as long as the model
    return np.asarray(model.serve(inputs))


def test_a_module(tmp_path: Path) -> None:
    again = there_and_back(SAVED, tmp_path / "exact")
    assert tree(again) == tree(SAVED)
    x = np.random.default_rng(0).random((5, 4), np.float32)
    one, other = (tf.saved_model.load(str(path)) for path in (SAVED, again))
    np.testing.assert_array_equal(one(x), other(x))
    assert Path(other.words.asset_path.numpy().decode()).read_bytes() == "ein\nWört\n".encode()


@needs_shared
def test_the_digits_network(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    from .test_keras_models import digits, digits_inputs

    images, labels, expected = digits_inputs()
    path = tmp_path / "digits"
    digits().export(path, verbose=False)
    before = served(path, images)
    assert np.abs(before - expected).max() < 1e-5
    assert formats.load(path).aliases  # the variables occur twice

    exact = there_and_back(path, tmp_path / "exact")
    assert tree(exact) == tree(path)  # whatever TensorFlow wrote
    np.testing.assert_array_equal(served(exact, images), before)

    lossy = there_and_back(path, tmp_path / "lossy", nnr.EncoderConfig())
    after = served(lossy, images)
    same = float(np.mean(after.argmax(1) == before.argmax(1)))
    snr = 10 * np.log10(np.square(before).sum() / np.square(after - before).sum())
    assert same >= 0.99
    accuracy = [float(np.mean(found.argmax(1) == labels)) for found in (before, after)]
    assert abs(accuracy[1] - accuracy[0]) <= 0.005
    size = sum(map(len, tree(path).values()))
    for folder in ("exact", "lossy"):
        nbytes = (tmp_path / folder / "model.nnr").stat().st_size
        record_property(f"figure: digits SavedModel, {folder}", f"{nbytes:,} of {size:,} bytes")
    record_property(
        "figure: digits SavedModel, default", f"{100 * same:.1f} % same, accuracy {accuracy[1]:.4f}, {snr:.1f} dB"
    )


def variables() -> dict[str, Array]:
    """Return variables of every supported type, with extreme values."""
    found: dict[str, Array] = {}
    for name in sorted({*TYPES.values()} - {"bool"}):
        stored = STORED_TYPES[name]
        found[name] = from_patterns(specials(stored), stored).reshape(1, -1)
    found["bool"] = np.array([[True, False]])
    return found | {"scalar": np.array(2.5), "empty": np.zeros((0, 3), np.float32)}


def test_checkpoints(tmp_path: Path) -> None:
    """Checkpoints of TensorFlow, with one or several data files, are read, and TensorFlow reads the written ones."""
    found = variables()
    own = {f"v_{name}": tf.Variable(array) for name, array in found.items()}
    own["texts"] = tf.Variable([[b"a\xff", b""]])
    checkpoint = tf.train.Checkpoint(**own)
    checkpoint.write(str(tmp_path / "a"))
    model = formats.load(tmp_path / "a.index")
    assert_same(
        {name: model[f"v_{name}/.ATTRIBUTES/VARIABLE_VALUE"] for name in found}, {name: found[name] for name in found}
    )
    assert len(model) == len(found)
    strings = writing.strings_from_metadata(model.metadata)
    again = there_and_back(tmp_path / "a.index", tmp_path / "one")
    checkpoint.read(str(again)[:-6]).assert_consumed()
    prefixes = []
    for number, name in enumerate([*model, *strings]):
        prefixes.append(str(tmp_path / f"part{number}"))
        value = (
            tf.constant(model[name])
            if name in model.tensors
            else tf.reshape(tf.constant(strings[name][1]), strings[name][0])
        )
        tf.raw_ops.SaveV2(prefix=prefixes[-1], tensor_names=[name], shape_and_slices=[""], tensors=[value])
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=str(tmp_path / "parts"))
    assert len(list(tmp_path.glob("parts.data-*"))) == len(prefixes)
    for written in (again, tmp_path / "parts.index"):
        other = formats.load(written)
        assert_same({name: other[name] for name in model}, model.tensors)
        assert other.metadata == model.metadata
        reader = tf.train.load_checkpoint(str(written)[:-6])
        for name in model:
            assert reader.get_tensor(name).tobytes() == model[name].tobytes()


def test_tensors_of_other_formats(tmp_path: Path) -> None:
    tensors: dict[str, Array] = {"a/b": np.ones((2, 3), ">f4"), "ü": np.arange(3, dtype=np.uint16)}
    tensors["half"] = np.ones(2, ml_dtypes.bfloat16)
    with pytest.warns(formats.FormatWarning, match="left out: metadata"):
        formats.save(Model(tensors, metadata={"by": "me"}), tmp_path / "m.index")
    loaded = formats.load(tmp_path / "m.index")
    assert_same({name: loaded[name] for name in tensors}, tensors | {"a/b": np.ones((2, 3), np.float32)})
    reader = tf.train.load_checkpoint(str(tmp_path / "m"))
    assert reader.get_tensor("a/b").tolist() == [[1, 1, 1]] * 2
