"""Sample inputs of a network: options of commands, costs of errors, and outputs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import output, params

if TYPE_CHECKING:
    import nnr_codec as nnr
    from nnr_codec.model import Progress

F = TypeVar("F", bound=Callable[..., None])

#: Samples in a batch of a PyTorch module; each batch gives one gradient.
BATCH = 4


def options(help: str, *, required: bool = False) -> Callable[[F], F]:
    """Return a decorator that adds ``--data`` and ``--module``; ``help`` is added to the help of ``--data``."""

    def add(command: F) -> F:
        command = click.option(
            "--module",
            metavar="MODULE:FUNCTION",
            help="Function or class of a Python module in the current folder that returns the torch.nn.Module to which "
            "the weights in MODEL belong. Without it, MODEL is an ONNX file.",
        )(command)
        return click.option(
            "--data",
            required=required,
            type=params.FileName(),
            metavar="FILE.npz",
            help="Sample inputs: an array for each input of the network, with samples along the first dimension"
            f"{help}.",
        )(command)

    return add


@dataclass(frozen=True)
class Samples:
    """Sample inputs of the network in a file.

    Parameters
    ----------
    inputs : mapping of str to ndarray
        Arrays with samples along the first dimension.
    model : str
        Name of the file.
    module : str or None
        Place of the PyTorch module; None for an ONNX file.
    limits : Limits
    labels : ndarray or None
        Classes of the samples.
    """

    inputs: Mapping[str, Any]
    model: str
    module: str | None
    limits: nnr.Limits
    labels: Any = None

    @classmethod
    def read(
        cls,
        data: str,
        model: str,
        module: str | None,
        limits: nnr.Limits,
        *,
        first: int | None = None,
        labels: str | None = None,
    ) -> Samples:
        """Read the ``first`` samples (None: all) of an archive; ``labels`` is the name of an array."""
        import nnr_codec as nnr

        inputs = nnr.load(data, format="npz", limits=limits).tensors
        counts = {name: len(array) if array.ndim else 0 for name, array in inputs.items()}
        if len({*counts.values()}) != 1 or 0 in counts.values():
            raise nnr.EncodeError(f"{data} must have arrays with the same number of samples, got {counts}")
        inputs = {name: array[:first] for name, array in inputs.items()}
        if labels is not None and labels not in inputs:
            raise nnr.EncodeError(f"{data} has no array {labels!r} for --labels; it has {', '.join(map(repr, inputs))}")
        classes = inputs.pop(labels) if labels is not None else None
        if not inputs:
            raise nnr.EncodeError(f"{data} has no array for an input of the network")
        return cls(inputs, model, module, limits, classes)

    def divided(self) -> tuple[Samples, Samples]:
        """Return every fourth sample, and the others."""
        import numpy as np

        import nnr_codec as nnr

        if len(self) < 2:
            raise nnr.EncodeError("--target-drop requires more than one sample")
        is_fourth = np.arange(len(self)) % 4 == 0
        return self._only(is_fourth), self._only(~is_fourth)

    def _only(self, which: Any) -> Samples:
        inputs = {name: array[which] for name, array in self.inputs.items()}
        return replace(self, inputs=inputs, labels=None if self.labels is None else self.labels[which])

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def costs(self, progress: Progress | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return sensitivities and second moments by name."""
        import nnr_codec as nnr
        from nnr_codec.integrations import onnx

        if not self.module:
            try:
                return onnx.sensitivity(self.model, self.inputs, progress=progress)
            except nnr.FormatError as error:
                error.add_note("without --module, MODEL must be an ONNX file")
                raise
        from nnr_codec import formats
        from nnr_codec.integrations import torch as integration

        network = self._network(self.module)
        torch = formats.require("torch", "torch", "a PyTorch module")
        integration.load_state(network, output.model(self.model, limits=self.limits))
        with self._running():
            tensors = {key: torch.from_numpy(array) for key, array in self.inputs.items()}
            starts = range(0, len(self), BATCH)
            batches = ({key: array[start : start + BATCH] for key, array in tensors.items()} for start in starts)
            loader = (next(iter(batch.values())) if len(batch) == 1 else batch for batch in batches)
            return integration.sensitivity(network, loader)

    def scores(self) -> Callable[[nnr.Model], Any]:
        """Return a function from a model to the outputs of the network."""
        from nnr_codec.integrations import class_scores

        if not self.module:
            return class_scores.onnx_scores(self.model, self.inputs)
        computed = class_scores.module_scores(self._network(self.module), self.inputs)

        def scores(model: nnr.Model) -> Any:
            with self._running():
                return computed(model)

        return scores

    def _network(self, place: str) -> Any:
        """Return the network that ``MODULE:FUNCTION`` returns."""
        name, colon, function = place.partition(":")
        if not (name and colon and function):
            raise click.UsageError(f"--module {place!r} is not of the form MODULE:FUNCTION, such as network:Net")
        if (folder := os.getcwd()) not in sys.path:
            sys.path.insert(0, folder)
        try:
            return getattr(import_module(name), function)()
        except (ImportError, AttributeError) as error:
            raise click.UsageError(f"--module {place!r}: {error}") from None

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Convert errors of the network."""
        import nnr_codec as nnr

        try:
            yield
        except nnr.NnrError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            text = str(error).splitlines()[0]
            raise nnr.EncodeError(f"the module {self.module} cannot run on the samples: {text}") from None
