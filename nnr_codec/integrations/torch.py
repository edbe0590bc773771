"""Conversion of PyTorch modules, and the cost of errors in their parameters, measured with sample inputs.

>>> sensitivities, hessians = sensitivity(module, loader)                               # doctest: +SKIP
>>> nnr_codec.encode(tensors, target_ratio=0.1, sensitivity=sensitivities, hessians=hessians)       # doctest: +SKIP

For ``nnr encode --sensitivity known.npz``: ``np.savez("known.npz", **sensitivities, **{f"hessian:{name}": moments for
name, moments in hessians.items()})``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats import require
from ..formats.pytorch import from_module, load_state

__all__ = ["from_module", "load_state", "sensitivity"]

Sensitivities = dict[str, npt.NDArray[np.float32]]
Hessians = dict[str, npt.NDArray[np.float64]]


def sensitivity(
    model: Any, loader: Iterable[Any], loss: Callable[[Any, Any], Any] | None = None
) -> tuple[Sensitivities, Hessians]:
    """Measure the options ``sensitivity`` and ``hessians`` of :class:`nnr_codec.EncoderConfig`.

    Parameters
    ----------
    model : torch.nn.Module
        The module; it is evaluated in ``eval()`` mode, then its mode is restored.
    loader : iterable
        Batches: a tensor; a tuple or list whose first item is the input; or a mapping of keyword arguments.
    loss : callable, optional
        Function of outputs and batch that returns a scalar. The squares of its gradient are summed over batches:
        batches of one sample give the diagonal of the Fisher matrix. Default: the effect of squared parameter errors on
        the outputs, from random projections, with batches of any size.

    Returns
    -------
    sensitivities : dict of str to ndarray of float32
        Cost of each parameter, with the names and shapes of ``state_dict()``; means over the batches.
    hessians : dict of str to ndarray of float64
        Second moments of the inputs of ``Linear`` and ``Conv2d`` (with one group), viewed as matrices.

    Raises
    ------
    MissingDependencyError
        PyTorch is not installed.
    ValueError
        There are no batches, or the outputs are not one float tensor and ``loss`` is missing.
    """
    torch: Any = require("torch", "torch", "measurement of error costs")
    parameters = {name: value for name, value in model.named_parameters() if value.is_floating_point()}
    squares = {name: torch.zeros_like(value, dtype=torch.float64, device="cpu") for name, value in parameters.items()}
    moments = _Moments(torch)
    generator = torch.Generator().manual_seed(0)
    batches = 0
    with _prepared(model, parameters), moments.watching(model), torch.enable_grad():
        for batch in loader:
            outputs = _outputs(model, batch)
            if loss is not None:
                value = loss(outputs, batch)
            else:
                if not isinstance(outputs, torch.Tensor) or not outputs.is_floating_point():
                    raise ValueError("outputs must be one tensor of floats; otherwise pass loss")
                value = (outputs * torch.randn(outputs.shape, generator=generator).to(outputs)).sum()
            gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
            for name, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    squares[name] += gradient.detach().to("cpu", torch.float64) ** 2
            batches += 1
    if not batches:
        raise ValueError("the loader yields no batches")
    return {name: (total / batches).to(torch.float32).numpy() for name, total in squares.items()}, moments.found()


def _outputs(model: Any, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, (tuple, list)) else batch)


@contextmanager
def _prepared(model: Any, parameters: Mapping[str, Any]) -> Iterator[None]:
    """Put the module in evaluation mode, with gradients for all parameters; restore it afterwards."""
    training = {module: module.training for module in model.modules()}
    wanted = {name: value.requires_grad for name, value in parameters.items()}
    try:
        model.eval()
        for value in parameters.values():
            value.requires_grad_(True)
        yield
    finally:
        for module, was in training.items():
            module.training = was
        for name, value in parameters.items():
            value.requires_grad_(wanted[name])


class _Moments:
    """Second moments of the inputs of the layers of a module."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.sums: dict[str, Any] = {}
        self.counts: dict[str, int] = {}

    @contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Record each input within the block."""
        nn, handles = self.torch.nn, []
        weights = {id(value): name for name, value in model.named_parameters()}  # tied weights share a name
        try:
            for layer in model.modules():
                if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1):
                    name = weights.get(id(layer.weight))
                    if name is not None:
                        handles.append(layer.register_forward_pre_hook(self._hook(name)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str) -> Callable[[Any, tuple[Any, ...]], None]:
        def hook(layer: Any, inputs: tuple[Any, ...]) -> None:
            with self.torch.no_grad():
                rows = self._rows(layer, inputs[0].detach()).to("cpu", self.torch.float64)
                self.sums[name] = self.sums.get(name, 0) + rows.T @ rows
                self.counts[name] = self.counts.get(name, 0) + len(rows)

        return hook

    def _rows(self, layer: Any, x: Any) -> Any:
        """Return the vectors that are multiplied by a weight, viewed as a matrix."""
        if isinstance(layer, self.torch.nn.Linear):
            return x.reshape(-1, x.shape[-1])
        functional = self.torch.nn.functional
        x = x if x.ndim == 4 else x[None]
        sides: list[int] = []
        for k in (1, 0):  # padding starts with the last dimension
            if layer.padding == "same":
                total = layer.dilation[k] * (layer.kernel_size[k] - 1)
                sides += [total // 2, total - total // 2]
            else:
                sides += [0, 0] if layer.padding == "valid" else [layer.padding[k]] * 2
        x = functional.pad(x, sides, mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)
        columns = functional.unfold(x, layer.kernel_size, layer.dilation, 0, layer.stride)
        return columns.transpose(1, 2).reshape(-1, columns.shape[1])

    def found(self) -> Hessians:
        """Return the moments by weight name."""
        return {name: (total / self.counts[name]).numpy() for name, total in self.sums.items()}
