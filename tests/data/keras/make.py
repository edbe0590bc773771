"""Generator of the files beside this one, in an environment with TensorFlow and Keras: ``python make.py``."""

from __future__ import annotations

import shutil
from pathlib import Path

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf
from keras import layers

HERE = Path(__file__).parent


def model() -> keras.Model:
    """Return a model with most features of Keras files: batch normalization, a shared layer, a nested model, state."""
    keras.utils.set_random_seed(5)
    image = keras.Input((4, 4, 1), name="image")
    x = layers.Conv2D(2, 3, name="conv")(image)
    x = layers.BatchNormalization(name="bn")(x)
    shared = layers.Conv2D(2, 1, name="shared")
    x = shared(shared(x))
    nested = keras.Sequential([keras.Input((2, 2, 2)), layers.Flatten(), layers.Dense(3, name="inner")], name="nested")
    x = layers.Dropout(0.1, seed=3, name="drop")(nested(x))
    found = keras.Model(image, layers.Dense(2, name="head")(x), name="tiny")
    found.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.MeanSquaredError())
    rng = np.random.default_rng(5)
    found.fit(rng.random((8, 4, 4, 1)), rng.random((8, 2)), verbose=0)
    return found


class Scaled(tf.Module):
    """SavedModel with variables, a file, and a function."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(np.arange(12, dtype=np.float32).reshape(3, 4) / 7)
        self.b = tf.Variable(np.array([1, -2, 3], ml_dtypes.bfloat16), trainable=False)
        self.words = tf.saved_model.Asset(str(HERE / "words.txt"))

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, self.w, transpose_b=True) + tf.cast(self.b, tf.float32)


def main() -> None:
    """Write all files."""
    found = model()
    found.save(HERE / "tiny.keras")
    found.save(HERE / "tiny.h5")
    found.save_weights(HERE / "tiny.weights.h5")
    words = layers.StringLookup(name="words")
    words.adapt(["zwei", "drei", "fünf", "drei"])
    half = layers.Embedding(5, 3, dtype="bfloat16", name="half")
    text = keras.Sequential([keras.Input((2,), dtype="string"), words, half], name="text")
    text.save(HERE / "text.keras")
    (HERE / "words.txt").write_bytes("ein\nWört\n".encode())
    shutil.rmtree(HERE / "scaled.savedmodel", ignore_errors=True)
    tf.saved_model.save(Scaled(), str(HERE / "scaled.savedmodel"))
    (HERE / "words.txt").unlink()
    variables = {"a": tf.Variable(np.float32(1.5)), "s": tf.Variable([b"x\xff", b""])}
    variables |= {"n": tf.Variable(np.arange(6, dtype=np.int16).reshape(2, 3)), "z": tf.Variable(np.zeros((0, 2)))}
    tf.train.Checkpoint(**variables).write(str(HERE / "plain"))


if __name__ == "__main__":
    main()
