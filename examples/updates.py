"""Send only the changes of a model after further training: ``python examples/updates.py``.

A sender has three versions of the network of ``examples/digits``; a receiver has the first one and gets two updates.
Random changes stand in for training. Requires only nnr_codec.
"""

from pathlib import Path

import numpy as np

import nnr_codec as nnr

rng = np.random.default_rng(1)


def train(model: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights of which a tenth changed by about 1 % of the standard deviation of their tensor."""
    trained = {}
    for name, value in model.items():
        change = rng.normal(0, 0.01 * value.std(), value.shape) * (rng.random(value.shape) < 0.1)
        trained[name] = (value + change).astype(value.dtype)
    return trained


digits = nnr.load(Path(__file__).parent / "digits" / "digits.nnef")
first = {name: np.array(value) for name, value in digits.tensors.items()}
second = train(first)
third = train(second)

# Each update starts from the model that the receiver has, so errors do not add up.
update_1 = nnr.encode_update(first, second)
received_1 = nnr.apply_update(first, update_1)
update_2 = nnr.encode_update(received_1, third)
received_2 = nnr.apply_update(received_1, update_2)
assert nnr.identity(received_2) == nnr.identity(nnr.chain_updates(first, [update_1, update_2]))

print(f"version 1 as float32: {sum(value.nbytes for value in first.values()):>7,} bytes")
print(f"version 1 as NNR:     {len(nnr.encode(first)):>7,} bytes")
for number, update, sent, received in ((2, update_1, second, received_1), (3, update_2, third, received_2)):
    snr = nnr.compare_models(sent, received).snr
    print(f"update to version {number}:  {len(update):>7,} bytes; the received model has {snr:.0f} dB of SNR")

try:
    nnr.apply_update(first, update_2)
except nnr.MissingReferenceError as error:
    print(f"update to version 3, applied to version 1: {type(error).__name__}")
