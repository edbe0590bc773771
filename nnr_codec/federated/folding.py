"""Folding of batch normalizations on both sides of an update, so that mean and variance need no bits (8.2.1)."""

from __future__ import annotations

from dataclasses import replace

from .. import formats
from ..config import EncoderConfig
from ..encoder.reduce import prepare
from ..model import Model, Wiring


def fold(model: Model) -> Model:
    """Return the model with folded batch normalizations: gamma becomes alpha, beta delta, mean 0, variance 1 - epsilon.

    The outputs of the network stay the same, up to rounding. Folding is idempotent.

    Parameters
    ----------
    model : Model
        A model whose blocks or topology define batch normalizations and their epsilon.

    Returns
    -------
    Model
        The model; tensors keep their types and shapes.

    Raises
    ------
    EncodeError
        There is no batch normalization, or one has values that cannot be folded.
    """
    wiring = formats.wiring(model.topology) if model.topology else Wiring()
    wiring = replace(wiring, blocks=(*model.blocks, *wiring.blocks))
    return prepare(model, EncoderConfig(fold_batchnorm=True), wiring).restored
