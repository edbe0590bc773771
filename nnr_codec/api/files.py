"""Model files, and checkpoints beside output files."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from .. import __version__, formats
from ..limits import Limits
from ..model import Array, Model
from ..parallel.checkpoint import Checkpoint, checkpoint_of

if TYPE_CHECKING:
    from .arguments import ModelSource, Source, Target


def load(
    source: Source,
    *,
    format: str | None = None,
    limits: Limits | None = None,
    strict: bool = False,
    attach: Collection[str] | None = (),
) -> Model:
    """Read a model file or folder; see :func:`nnr_codec.formats.load`."""
    return formats.load(source, format=format, limits=limits, strict=strict, attach=attach)


def save(
    model: Model | Mapping[str, Array], target: Target, *, format: str | None = None, overwrite: bool = False
) -> None:
    """Write a model file, complete or not at all; see :func:`nnr_codec.formats.save`.

    ``model`` is a Model, or a mapping of str to ndarray or torch.Tensor.
    """
    formats.save(formats.as_model(model), target, format=format, overwrite=overwrite)


def dequantized(model: ModelSource) -> Model:
    """Return a model with floats in place of the parts of quantized tensors, for lossy encoding or other software.

    In a GGUF model, ``w#levels``, ``w#d`` and so on become the float32 tensor ``w``, and the keys of the file become
    metadata; the topology is left out. Weights are computed on access. In a TensorFlow Lite model, integers with scales
    become float32 weights, and the topology is left out. Items of types 0x10 and 0x11 in NNEF tensor files become
    numbers. Other models are returned unchanged.

    ``model`` is a Model, or another argument of :func:`encode`, whose errors are raised. A FormatWarning lists keys
    whose values are not Unicode text, or too large for metadata.
    """
    return formats.dequantized(formats.as_model(model))


def checkpoint_for(target: Target, resume: bool) -> AbstractContextManager[Checkpoint | None]:
    """Return a context manager for the checkpoint of a target, or for None without ``resume``.

    Raises ValueError if the target is not a path.
    """
    if not resume:
        return nullcontext()
    if not isinstance(target, (str, os.PathLike)):
        raise ValueError("resume requires a path as the target, because the checkpoint is stored beside it")
    return checkpoint_of(target, __version__)


def file_name(source: ModelSource) -> str:
    """Return the base name of a model's file; empty if the model has no file."""
    return os.path.basename(os.path.normpath(source)) if isinstance(source, (str, os.PathLike)) else ""
