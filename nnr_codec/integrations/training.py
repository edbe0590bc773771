"""Parameter reduction during training of a PyTorch module (ISO/IEC 15938-17:2024, 5.2, clause 8).

These helpers extend your own training loop: a term of the loss, an action after each optimizer step, or layers whose
weights are computed from other parameters until they are coded. Masks, projections and ranks are computed by the
reduction steps of the encoder (docs/guides/reduction.md).

>>> masks = Masks(module, tensors="*.weight")                                             # doctest: +SKIP
>>> with masks.after(optimizer):                                                          # doctest: +SKIP
...     for step, (x, y) in enumerate(loader):
...         masks.grow(0.8, step / 200)                   # more and more zeros, 80 % after 200 steps
...         loss = cross_entropy(module(x), y) + 0.01 * compressibility_loss(module)
...         optimizer.zero_grad(); loss.backward(); optimizer.step()
>>> scaling = LocalScaling(module, quality=12)            # weights are quantized; train their scales, and vectors
>>> nnr_codec.encode(scaling.model(), scaling.config)                                     # doctest: +SKIP
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ..api.decoding import decode
from ..api.encoding import encode_file
from ..config import EncoderConfig, EncoderOptions, configured
from ..encoder.goals import with_density
from ..encoder.prepared import Prepared, matches
from ..encoder.reduce import apply, tool_of
from ..encoder.scale_fitting import scale_options
from ..errors import EncodeError
from ..formats import require
from ..model import Array, Block, Model, Wiring
from ..reduction_steps import Step, steps_of

__all__ = ["LocalScaling", "LowRank", "Masks", "Projection", "compressibility_loss"]

Steps = str | Iterable[Step | str]

#: Part of state_dict() names of a weight with parametrizations.
_ORIGINAL = "parametrizations"


def compressibility_loss(weights: Any, gamma: float = 0.0, *, together: bool = True) -> Any:
    """Return the compressibility loss (8.3.1) of weights: ``|w|_1 / |w|_2 + gamma * |w|_2**2 / |w|_1``.

    The first term favours few large and many small weights, at any scale; the second term keeps weights small.
    After C. Aytekin, F. Cricri and E. Aksu, "Compressibility loss for neural network weights" (2019).

    Parameters
    ----------
    weights : torch.nn.Module, Tensor or iterable of Tensor
        For a module, its floating-point parameters with at least two extents above 1; for parametrized weights, such
        as weights of :class:`LowRank`, the underlying parameters.
    gamma : float
        Weight of the second term, 0 or more.
    together : bool
        Treat all weights as one vector; False: average the losses of the tensors.

    Returns
    -------
    Tensor
        A scalar of at least float32; 0 for all-zero weights. Multiply it by a factor such as 1e-3 to 1e-1 and add it to
        the loss.

    Raises
    ------
    MissingDependencyError
        PyTorch is not installed.
    ValueError
        There are no weights, or gamma is negative.
    """
    torch: Any = require("torch", "torch", "training")
    if isinstance(weights, torch.nn.Module):
        weights = [value for value in weights.parameters() if _is_matrix(value)]
    tensors = [weights] if isinstance(weights, torch.Tensor) else list(weights)
    tensors = [value.float() if value.element_size() < 4 else value for value in tensors]  # their squares fit float32
    if not tensors or not gamma >= 0:
        raise ValueError(f"weights must not be empty and gamma must be at least 0, got {len(tensors)} tensors, {gamma}")
    sums = torch.stack([value.abs().sum() for value in tensors])
    squares = torch.stack([value.square().sum() for value in tensors])
    if together:
        sums, squares = sums.sum()[None], squares.sum()[None]
    some = squares > 0
    if not some.any():
        return sums.sum()  # zero, with a gradient
    sums, squares = sums[some], squares[some]
    return (sums / squares.sqrt() + gamma * squares / sums).sum() / len(some)


# ------------------------------------------------------------------------------------------------ after each step
class Projection:
    """Projection of the parameters of a module by steps of parameter reduction during training.

    >>> with Projection(module, "unify(ratio=0.5)").after(optimizer): ...                 # doctest: +SKIP

    Parameters
    ----------
    module : torch.nn.Module
    steps : str or sequence of Step
        Steps that keep names and shapes of tensors: ``sparsify``, ``unify``, ``lowrank``.

    Raises
    ------
    MissingDependencyError
        PyTorch is not installed.
    EncodeError
        A step or one of its options does not exist.
    """

    def __init__(self, module: Any, steps: Steps) -> None:
        self.module, self.steps = module, steps_of(steps)
        self._wiring = _wiring_of(module)
        for step in self.steps:
            tool_of(step)

    def project(self) -> None:
        """Apply the steps to the parameters. Raise EncodeError if a step has no effect."""
        torch: Any = require("torch", "torch", "training")
        found = self._reduced(self.steps).restored.tensors
        with torch.no_grad():
            for name, value in self.module.named_parameters():
                value.copy_(torch.from_numpy(np.array(found[name])))

    @contextmanager
    def after(self, optimizer: Any) -> Iterator[None]:
        """Project before the first and after every ``optimizer.step()`` within the block."""
        self.project()
        handle = optimizer.register_step_post_hook(lambda *_: self.project())
        try:
            yield
        finally:
            handle.remove()

    def _reduced(self, steps: Sequence[Step]) -> Prepared:
        return _reduced({name: _array(value) for name, value in self.module.named_parameters()}, steps, self._wiring)


class Masks(Projection):
    """Growing masks that keep parameters of a module at zero during training.

    :meth:`sparsify` and :meth:`grow` change parameters and must be called before the forward pass.

    Parameters
    ----------
    module : torch.nn.Module
    **options
        Options of ``sparsify`` other than its amount: ``method``, ``block``, ``superblock``, ``scope``, ``tensors``...

    Raises
    ------
    MissingDependencyError
        PyTorch is not installed.
    EncodeError
        An option does not exist, or is an amount.
    """

    def __init__(self, module: Any, **options: str | int | float | bool) -> None:
        super().__init__(module, ())
        if amounts := [name for name in ("ratio", "threshold") if name in options]:
            raise EncodeError(
                f"the step has {amounts[0]}, but masks are added later; omit it and call sparsify(ratio) or "
                "grow(ratio, progress)"
            )
        tool_of(Step("sparsify", ratio=0.0, **options))
        self._options = options
        self._masks: dict[str, Any] = {}
        self._ratio = 0.0

    @property
    def masks(self) -> dict[str, Any]:
        """Masks of nonzero parameters, by parameter name, in the shapes of the parameters."""
        return dict(self._masks)

    def sparsify(self, ratio: float) -> None:
        """Set parameters of all matrices to 0 until their share is ``ratio``, and keep them at 0.

        Raises the errors of ``sparsify``.
        """
        torch: Any = require("torch", "torch", "training")
        self.project()
        found = self._reduced([Step("sparsify", ratio=ratio, **self._options)])
        for name in found.matrices(str(self._options.get("tensors", "*"))):
            self._masks[name] = torch.from_numpy(found.array(name) != 0)
        self._ratio = ratio
        self.project()

    def grow(self, ratio: float, progress: float) -> None:
        """Increase the share of zeros to ``ratio * (1 - (1 - progress)**3)``, unless it is already higher.

        ``progress`` is the completed share of gradual sparsification, 0..1; larger values count as 1. After M. Zhu and
        S. Gupta, "To prune, or not to prune" (2017).
        """
        wanted = ratio * (1 - (1 - min(max(progress, 0.0), 1.0)) ** 3)
        if wanted > self._ratio:
            self.sparsify(wanted)

    def project(self) -> None:
        """Set masked parameters to 0."""
        torch: Any = require("torch", "torch", "training")
        with torch.no_grad():
            for name, value in self.module.named_parameters():
                if name in self._masks:
                    self._masks[name] = self._masks[name].to(value.device)
                    value.masked_fill_(~self._masks[name], 0)


# ------------------------------------------------------------------------------------------------ computed weights
class _Made:
    """Module with weights that are computed from other, trained parameters.

    ``blocks`` lists these weights with their names in the coded model; ``members`` maps the suffix after the weight's
    name in ``state_dict()`` to the tensor of the block.
    """

    def __init__(self, module: Any, members: Mapping[str, str]) -> None:
        require("torch", "torch", "training")
        self.module = module
        self.blocks: list[Block] = []
        self._members = members

    def model(self) -> Model:
        """Return the current state of the module for :func:`nnr_codec.encode`, with the underlying parameters of
        weights."""
        by_weight = {block.weight: block for block in self.blocks}
        tensors: dict[str, Array] = {}
        for key, value in self.module.state_dict().items():
            layer, made, rest = key.rpartition(f"{_ORIGINAL}.")
            name = layer + rest.partition(".")[0]
            member = self._members.get(rest.partition(".")[2]) if made and name in by_weight else None
            tensors[getattr(by_weight[name], member) if member else key] = _array(value)
        return Model(tensors, blocks=list(self.blocks))

    def finish(self) -> None:
        """Replace the parametrizations by their weights: the module has its original parameters again."""
        torch: Any = require("torch", "torch", "training")
        for block in self.blocks:
            path, _, weight = block.weight.rpartition(".")
            torch.nn.utils.parametrize.remove_parametrizations(self.module.get_submodule(path), weight)
        self.blocks = []


class LocalScaling(_Made):
    """Local scaling adaptation (8.3.9): weights are quantized and fixed; scales of their outputs are trained.

    The initial scales minimize the squared error. After P. Haase and others, "Encoder optimizations for the NNR
    standard on neural network compression" (2021).

    >>> scaling = LocalScaling(module, qp=-8)                                             # doctest: +SKIP
    >>> train(module, optimizer=Adam(scaling.scales))                                     # doctest: +SKIP
    >>> data = nnr_codec.encode(scaling.model(), scaling.config)                          # doctest: +SKIP

    Parameters
    ----------
    module : torch.nn.Module
        A module; the weights of its ``Linear`` and convolutional layers are scaled and no longer need gradients.
    config : EncoderConfig, optional
    tensors : str
        Glob patterns of weight names, separated by ``|``.
    **options
        Quantization options, as for :func:`nnr_codec.encode`.

    Attributes
    ----------
    config : EncoderConfig
        Options that code :meth:`model` with the current levels.
    scales : list of torch.nn.Parameter

    Raises
    ------
    MissingDependencyError
        PyTorch is not installed.
    EncodeError
        There is no such layer, a weight cannot be quantized with these options, or ``config`` has steps of reduction.
    """

    def __init__(
        self, module: Any, config: EncoderConfig | None = None, *, tensors: str = "*", **options: Unpack[EncoderOptions]
    ) -> None:
        super().__init__(module, {"original": "weight", "0.scale": "scale"})
        torch: Any = require("torch", "torch", "training")
        layers = _layers(torch, module, tensors)
        if not layers:
            raise EncodeError(f"no layer that matches {tensors!r} has a weight to scale")
        self.blocks = [Block(name, scale=f"{name}_scaling", axis=_axis(torch, layer)) for name, layer in layers.items()]
        config = configured(LocalScaling, config, options)
        if config.steps:
            raise EncodeError("LocalScaling does not accept reduce; apply the reduction steps to the module first")
        if kept := [name for name in layers if config.for_tensor(name).exact]:
            raise EncodeError(
                f"tensor {kept[0]!r} is exact, but scales require quantization; use exact=False", tensor=kept[0]
            )
        self._levels, self.config = _quantized(self._unscaled(layers), config)
        self._trained = {name: layer.weight.requires_grad for name, layer in layers.items()}
        self.scales: list[Any] = []
        for block in self.blocks:
            layer = layers[block.weight]
            weight, level = layer.weight.detach(), torch.from_numpy(self._levels[block.weight]).to(layer.weight)
            scale = _modules().Scaled(_least(weight, level, block.axis), block.axis)
            layer.weight.requires_grad_(False)
            torch.nn.utils.parametrize.register_parametrization(layer, "weight", scale)
            with torch.no_grad():
                layer.parametrizations.weight.original.copy_(level)
            self.scales.append(scale.scale)

    def _unscaled(self, layers: Mapping[str, Any]) -> Model:
        """Return the complete state with scales of 1."""
        tensors = {name: _array(value) for name, value in self.module.state_dict().items()}
        for block in self.blocks:
            weight = tensors[block.weight]
            tensors[f"{block.weight}_scaling"] = np.ones(weight.shape[block.axis], weight.dtype)
        return Model(tensors, blocks=list(self.blocks))

    def model(self) -> Model:
        """Return the current state of the module for :func:`nnr_codec.encode`, with levels and scales for weights."""
        model = super().model()
        return replace(model, tensors={**model.tensors, **self._levels})  # exact levels, which bfloat16 would round

    def finish(self) -> None:
        """Replace the parametrizations by their weights: the module has its original parameters again."""
        names = [block.weight for block in self.blocks]
        super().finish()
        for name in names:
            self.module.get_parameter(name).requires_grad_(self._trained[name])
        self._levels = {}


class LowRank(_Made):
    """Weights replaced by products of two matrices G and H (8.3.7); G and H are trained.

    >>> parts = LowRank(module, error=0.3)                                                # doctest: +SKIP
    >>> train(module, optimizer=Adam(module.parameters()))        # create it after this       # doctest: +SKIP
    >>> data = nnr_codec.encode(parts.model())                                            # doctest: +SKIP

    Parameters
    ----------
    module : torch.nn.Module
        A module; weights of its ``Linear`` and convolutional layers may become products.
    **options
        Options of ``lowrank`` other than ``displacement``: ``error``, ``rank``, ``ratio``, ``tensors``...; they
        determine the ranks.

    Attributes
    ----------
    ranks : dict of str to int
        Ranks by weight name; weights are unchanged if a product would not be smaller.

    Raises
    ------
    MissingDependencyError
        PyTorch is not installed.
    EncodeError
        ``lowrank`` fails with these options.
    """

    def __init__(self, module: Any, **options: str | int | float | bool) -> None:
        super().__init__(module, {"original0": "g", "original1": "h"})
        torch: Any = require("torch", "torch", "training")
        step = Step("lowrank", **options)
        tool: Any = tool_of(step)
        if tool.displacement:
            raise EncodeError("a displacement cannot be trained")
        layers = _layers(torch, module)
        weights = {name: _array(layer.weight) for name, layer in layers.items()}
        model = _reduced(weights, [step], Wiring()).model
        self.ranks: dict[str, int] = {}
        for block in model.blocks:
            if block.g is not None:
                layer, rank = layers[block.weight], int(model.tensors[block.g].shape[1])
                product = _modules().Product(rank, tuple(layer.weight.shape))
                torch.nn.utils.parametrize.register_parametrization(layer, "weight", product)
                self.ranks[block.weight] = rank
                self.blocks.append(replace(block, shape=product.shape))


@cache
def _modules() -> Any:
    """Return parametrization modules; defined in a function because PyTorch is imported on use."""
    torch: Any = require("torch", "torch", "training")

    class Modules:
        """Namespace of the modules."""

        class Scaled(torch.nn.Module):  # type: ignore[misc]
            """Weight times one number for each index of a dimension."""

            def __init__(self, scale: Any, axis: int) -> None:
                super().__init__()
                self.scale, self.axis = torch.nn.Parameter(scale), axis

            def forward(self, weight: Any) -> Any:
                shape = [1] * weight.ndim
                shape[self.axis] = -1
                return weight * self.scale.reshape(shape)

        class Product(torch.nn.Module):  # type: ignore[misc]
            """Product of two matrices, reshaped."""

            def __init__(self, rank: int, shape: tuple[int, ...]) -> None:
                super().__init__()
                self.rank, self.shape = rank, shape

            def forward(self, g: Any, h: Any) -> Any:
                return (g @ h).reshape(self.shape)

            def right_inverse(self, weight: Any) -> Any:
                matrix = weight.detach().flatten(1).cpu().double()  # not every device supports float64
                u, s, v = torch.linalg.svd(matrix, full_matrices=False)
                roots = s[: self.rank].sqrt()
                return (u[:, : self.rank] * roots).to(weight), (roots[:, None] * v[: self.rank]).to(weight)

    return Modules


# ------------------------------------------------------------------------------------------------ tensors and arrays
def _reduced(arrays: Mapping[str, Array], steps: Sequence[Step], wiring: Wiring) -> Prepared:
    """Apply steps of parameter reduction to arrays."""
    model = Model(dict(arrays))
    prepared = Prepared(model, model, wiring)
    for _, after in apply(prepared, steps):
        prepared = after
    return prepared


def _quantized(model: Model, config: EncoderConfig) -> tuple[dict[str, Array], EncoderConfig]:
    """Return the weights of blocks as levels times step sizes, and options that reproduce the same levels from them."""
    config = with_density(config)  # goals imply this density
    scale = {**scale_options(config.qp_density), "exact": False}
    config = config.overridden({block.scale: scale for block in model.blocks if block.scale is not None})
    file = io.BytesIO()
    report = encode_file(model, file, config, statistics=True)
    raw = decode(file.getvalue(), raw=True).tensors
    same: dict[str, dict[str, Any]] = {}
    for block in model.blocks:
        known = report.tensors[block.weight].statistics
        if known is None or not known.step:
            raise EncodeError(
                f"tensor {block.weight!r} is not quantized, but scales require quantization", tensor=block.weight
            )
        same[block.weight] = {
            "qp": known.qp,
            "fine_vectors": False,
            "rate": 0,
            "dependent_quantization": bool(known.dq_flag),
        }
    plain: dict[str, Any] = dict.fromkeys(("target_size", "target_ratio", "sensitivity", "hessians"))
    weights = {block.weight: np.array(raw[block.weight]) for block in model.blocks}
    return weights, replace(config.overridden(same), **plain)


def _least(weight: Any, level: Any, axis: int) -> Any:
    """Return the scales of least squared error, shape (n,); 1 where no positive scale exists."""
    rows, levels = (value.transpose(0, axis).flatten(1).cpu().double() for value in (weight, level))
    squares, products = (levels * levels).sum(1), (rows * levels).sum(1)
    found = (products / squares).where((squares > 0) & (products > 0), 1.0)
    return found.to(weight)


def _wiring_of(module: Any) -> Wiring:
    """Return a wiring that has a block for each weight, with its output dimension."""
    torch: Any = require("torch", "torch", "training")
    layers = _layers(torch, module)
    return Wiring(blocks=tuple(Block(name, axis=_axis(torch, layer)) for name, layer in layers.items()))


def _layers(torch: Any, module: Any, tensors: str = "*") -> dict[str, Any]:
    """Return linear and convolutional layers by weight name, without shared weights."""
    kinds = tuple(
        getattr(torch.nn, kind)
        for kind in ("Linear", *(f"Conv{transposed}{n}d" for transposed in ("", "Transpose") for n in (1, 2, 3)))
    )
    found, seen = {}, dict[int, str]()
    for path, layer in module.named_modules():
        if not isinstance(layer, kinds) or "weight" not in layer._parameters:
            continue
        name = f"{path}.weight" if path else "weight"
        grouped = getattr(layer, "transposed", False) and layer.groups > 1
        if matches(name, tensors) and not grouped and layer.weight.is_floating_point():
            found[name] = layer
    for name, value in module.named_parameters(remove_duplicate=False):
        if id(value) in seen:  # a change would affect both weights
            found.pop(name, None)
            found.pop(seen[id(value)], None)
        seen[id(value)] = name
    return found


def _axis(torch: Any, layer: Any) -> int:
    return 1 if getattr(layer, "transposed", False) else 0


def _is_matrix(value: Any) -> bool:
    return bool(value.is_floating_point()) and sum(extent > 1 for extent in value.shape) > 1


def _array(value: Any) -> Array:
    """Return a copy of a tensor as an array; bfloat16 becomes float32."""
    value = value.detach().cpu()
    if str(value.dtype) == "torch.bfloat16":
        value = value.float()
    found: npt.NDArray[Any] = np.array(value.numpy())
    return found
