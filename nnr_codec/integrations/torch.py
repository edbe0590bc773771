"""Conversion of PyTorch modules, and the cost of errors in their parameters, measured with sample inputs.

>>> sensitivities, hessians = sensitivity(module, loader)                               # doctest: +SKIP
>>> nnr_codec.encode(tensors, target_ratio=0.1, sensitivity=sensitivities, hessians=hessians)       # doctest: +SKIP

For ``nnr encode --sensitivity known.npz``: ``np.savez("known.npz", **archive(sensitivities, hessians))``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..formats import require
from ..formats.pytorch import from_module, load_state
from .second_moments import LARGEST, Hessians, SecondMoments, Sensitivities, archive

__all__ = ["archive", "from_module", "load_state", "sensitivity"]


def sensitivity(
    model: Any, loader: Iterable[Any], loss: Callable[[Any, Any], Any] | None = None
) -> tuple[Sensitivities, Hessians]:
    """Measure the options ``sensitivity`` and ``hessians`` of :class:`nnr_codec.EncoderConfig`.

    Parameters
    ----------
    model : torch.nn.Module
        The module; it is evaluated in ``eval()`` mode, then its mode is restored.
    loader : iterable
        Batches: a tensor; a tuple or list whose first item is the input; or a mapping of keyword arguments. Each batch
        gives one gradient; many small batches, such as 64 batches of 4 samples, give better second moments than few
        large ones.
    loss : callable, optional
        Function of outputs and batch that returns a scalar. The squares of its gradient are summed over batches:
        batches of one sample give the diagonal of the Fisher matrix. Default: the effect of squared parameter errors on
        the outputs, from random projections, with batches of any size.

    Returns
    -------
    sensitivities : dict of str to ndarray of float32
        Cost of each parameter, with the names and shapes of ``state_dict()``; means over the batches.
    hessians : dict of str to pair of ndarray of float64, or None
        Second moments of the columns and of the rows of the gradients: matrices of shape (rows, rows) and (columns,
        columns) for each parameter with at least two dimensions, viewed as a matrix of ``dims[0]`` rows. None for more
        than 8,192 rows or columns.

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
    moments: dict[str, tuple[SecondMoments, SecondMoments]] = {}
    generator = torch.Generator().manual_seed(0)
    batches = 0
    with _prepared(model, parameters), torch.enable_grad():
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
                if gradient is None:
                    continue
                wide = gradient.detach().to("cpu", torch.float64)
                squares[name] += wide**2
                if wide.ndim > 1:
                    matrix = wide.reshape(len(wide), -1).numpy()
                    sides = moments.setdefault(name, (SecondMoments(), SecondMoments()))
                    for side, vectors in zip(sides, (matrix.T, matrix), strict=True):
                        side.add([vectors] if vectors.shape[1] <= LARGEST else [])
            batches += 1
    if not batches:
        raise ValueError("the loader yields no batches")
    found = {name: (total / batches).to(torch.float32).numpy() for name, total in squares.items()}
    return found, {name: (rows.mean(), columns.mean()) for name, (rows, columns) in moments.items()}


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
