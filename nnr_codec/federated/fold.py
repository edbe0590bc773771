"""Batch normalizations folded on both sides of an update, so that mean and variance cost nothing (8.2.1)."""

from __future__ import annotations

from dataclasses import replace

from .. import formats
from ..config import EncoderConfig
from ..encoder.reduce import prepare
from ..model import Model, Wiring


def fold(model: Model) -> Model:
    """The model with its batch normalizations folded: gamma is alpha, beta is delta, mean 0, variance 1 - epsilon.

    The network is the same, up to rounding. What is folded stays as it is.

    Parameters
    ----------
    model : Model
        Its blocks, or its topology, tell of batch normalizations and their epsilon.

    Returns
    -------
    Model
        Tensors have the types and shapes that they had.

    Raises
    ------
    EncodeError
        There is no batch normalization to fold, or one has values for which there is no such thing.
    """
    wiring = formats.wiring(model.topology) if model.topology else Wiring()
    wiring = replace(wiring, blocks=(*model.blocks, *wiring.blocks))
    return prepare(model, EncoderConfig(fold_batchnorm=True), wiring).restored
