"""Scores of classes that a network computes from samples, for :func:`nnr_codec.tune_drop`.

>>> outputs = onnx_scores("model.onnx", {"input": images})                                  # doctest: +SKIP
>>> nnr_codec.tune_drop("model.onnx", outputs, target_drop=0.5)                             # doctest: +SKIP
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import formats
from ..errors import EncodeError
from ..formats import require
from ..model import Model
from .onnx import Network, Numbers, as_encode_error
from .torch import load_state

#: Samples in a batch of a PyTorch module.
BATCH = 32


def onnx_scores(path: str | os.PathLike[str], samples: Mapping[str, Numbers]) -> Callable[[Model], Numbers]:
    """Return a function from a model to its output, computed by onnxruntime.

    Parameters
    ----------
    path : path
        The .onnx file from which the models are made.
    samples : mapping of str to ndarray
        As for :func:`nnr_codec.integrations.onnx.sensitivity`.

    Raises
    ------
    EncodeError
        As ``sensitivity``, or if the model does not have one output of floating-point type.
    FormatError, MissingDependencyError, OSError
        As ``sensitivity``.
    """
    network = Network(path)
    batches = network.batches(samples)
    if len(network.outputs) != 1:
        raise EncodeError(f"the model must have one output, the scores of classes; it has {network.outputs}")
    runtime: Any = require("onnxruntime", "onnx", "outputs of ONNX models")

    def scores(model: Model) -> Numbers:
        file = io.BytesIO()
        formats.save(model, file, format="onnx")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        with as_encode_error("run"):
            session = runtime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
            return np.concatenate([session.run(network.outputs, batch)[0] for batch in batches])

    return scores


def module_scores(module: Any, samples: Mapping[str, Numbers]) -> Callable[[Model], Numbers]:
    """Return a function from a model to the output of a PyTorch module with its tensors.

    Parameters
    ----------
    module : torch.nn.Module
        It is evaluated in ``eval()`` mode, and keeps this mode and the last tensors.
    samples : mapping of str to ndarray
        Arrays by name of the argument, with samples along the first dimension. The name does not matter for one array.

    Raises
    ------
    MissingDependencyError
        PyTorch is not installed.
    """
    torch: Any = require("torch", "torch", "outputs of PyTorch modules")
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in samples.items()}

    def scores(model: Model) -> Numbers:
        load_state(module, model)
        module.eval()
        found = []
        with torch.inference_mode():
            for start in range(0, len(next(iter(tensors.values()))), BATCH):
                batch = {name: value[start : start + BATCH] for name, value in tensors.items()}
                output = module(*batch.values()) if len(batch) == 1 else module(**batch)
                if not isinstance(output, torch.Tensor):
                    raise EncodeError(f"the module must return one tensor of scores, got {type(output).__name__}")
                found.append(output.float().cpu().numpy())
        return np.concatenate(found)

    return scores
