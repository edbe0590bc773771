"""Parameter reduction while a module of PyTorch is trained (ISO/IEC 15938-17:2024, 5.2, clause 8).

All of it goes into a training loop of your own: a term of the loss, what happens after each step of the optimizer, or
layers whose weights are made of others, until they are coded. What is a mask, a projection or a rank is decided by the
steps that the encoder has as well (docs/reduction.md).

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

#: What names of state_dict() have in the place of a weight that is made of other tensors.
_ORIGINAL = "parametrizations"


def compressibility_loss(weights: Any, gamma: float = 0.0, *, together: bool = True) -> Any:
    """The compressibility loss (8.3.1) of weights: ``|w|_1 / |w|_2 + gamma * |w|_2**2 / |w|_1``.

    The first term makes few weights large and many small, whatever their scale; the second one keeps them small. After
    C. Aytekin, F. Cricri and E. Aksu, "Compressibility loss for neural network weights" (2019).

    Parameters
    ----------
    weights : torch.nn.Module, Tensor or iterable of Tensor
        Of a module, the floating-point parameters with at least two extents above 1: of weights that are made of
        others, as by :class:`LowRank`, these others.
    gamma : float
        0 or more.
    together : bool
        All of them are one vector; False: the mean of what each one gives.

    Returns
    -------
    Tensor
        A scalar, of float32 at least; 0 for what is 0. Multiply it by something like 1e-3 .. 1e-1, and add it to the
        loss.

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
    tensors = [value.float() if value.element_size() < 4 else value for value in tensors]  # which holds their squares
    if not tensors or not gamma >= 0:
        raise ValueError("there are no weights, or gamma is negative")
    sums = torch.stack([value.abs().sum() for value in tensors])
    squares = torch.stack([value.square().sum() for value in tensors])
    if together:
        sums, squares = sums.sum()[None], squares.sum()[None]
    some = squares > 0
    if not some.any():
        return sums.sum()  # which is 0, and has a gradient
    sums, squares = sums[some], squares[some]
    return (sums / squares.sqrt() + gamma * squares / sums).sum() / len(some)


# ------------------------------------------------------------------------------------------------ after each step
class Projection:
    """Keeps a module, while it is trained, what steps of parameter reduction make of it.

    >>> with Projection(module, "unify(ratio=0.5)").after(optimizer): ...                 # doctest: +SKIP

    Parameters
    ----------
    module : torch.nn.Module
    steps : str or sequence of Step
        Which leave names and shapes of tensors as they are: ``sparsify``, ``unify``, ``lowrank``.

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
        """Replace parameters by what the steps make of them; EncodeError where there is nothing that they could do."""
        torch: Any = require("torch", "torch", "training")
        found = self._reduced(self.steps).restored.tensors
        with torch.no_grad():
            for name, value in self.module.named_parameters():
                value.copy_(torch.from_numpy(np.array(found[name])))

    @contextmanager
    def after(self, optimizer: Any) -> Iterator[None]:
        """While this lasts, every ``optimizer.step()`` is followed by a projection; there is one before the first."""
        self.project()
        handle = optimizer.register_step_post_hook(lambda *_: self.project())
        try:
            yield
        finally:
            handle.remove()

    def _reduced(self, steps: Sequence[Step]) -> Prepared:
        return _reduced({name: _array(value) for name, value in self.module.named_parameters()}, steps, self._wiring)


class Masks(Projection):
    """Keeps zeros of a module 0 while it is trained, and adds more of them.

    :meth:`sparsify` and :meth:`grow` change parameters, and so come before the forward pass.

    Parameters
    ----------
    module : torch.nn.Module
    **options
        Those of ``sparsify`` but its amount: ``method``, ``block``, ``superblock``, ``scope``, ``tensors``...

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
            raise EncodeError(f"masks are given no {amounts[0]} at first: sparsify(ratio), or grow(ratio, progress)")
        tool_of(Step("sparsify", ratio=0.0, **options))
        self._options = options
        self._masks: dict[str, Any] = {}
        self._ratio = 0.0

    @property
    def masks(self) -> dict[str, Any]:
        """What is not 0, by names of parameters: tensors of their shapes."""
        return dict(self._masks)

    def sparsify(self, ratio: float) -> None:
        """Make so many of the parameters of all matrices 0 that ``ratio`` of them are, and keep them so.

        Raises EncodeError as ``sparsify`` does.
        """
        torch: Any = require("torch", "torch", "training")
        self.project()
        found = self._reduced([Step("sparsify", ratio=ratio, **self._options)])
        for name in found.matrices(str(self._options.get("tensors", "*"))):
            self._masks[name] = torch.from_numpy(found.array(name) != 0)
        self._ratio = ratio
        self.project()

    def grow(self, ratio: float, progress: float) -> None:
        """Have a part of ``ratio`` zeros that is ``1 - (1 - progress)**3``, if there are not as many yet.

        ``progress`` is what part of the gradual sparsification is done; 1 and more is all of it. After M. Zhu and
        S. Gupta, "To prune, or not to prune" (2017).
        """
        wanted = ratio * (1 - (1 - min(max(progress, 0.0), 1.0)) ** 3)
        if wanted > self._ratio:
            self.sparsify(wanted)

    def project(self) -> None:
        """Make what is masked 0."""
        torch: Any = require("torch", "torch", "training")
        with torch.no_grad():
            for name, value in self.module.named_parameters():
                if name in self._masks:
                    self._masks[name] = self._masks[name].to(value.device)
                    value.masked_fill_(~self._masks[name], 0)


# ------------------------------------------------------------------------------------------------ weights of others
class _Made:
    """A module some of whose weights are made of other tensors, which are trained in their place.

    ``blocks`` say which ones, in the names that they have when they are coded; ``members``, which of their tensors has
    what stands behind the weight's name in ``state_dict()``.
    """

    def __init__(self, module: Any, members: Mapping[str, str]) -> None:
        require("torch", "torch", "training")
        self.module = module
        self.blocks: list[Block] = []
        self._members = members

    def model(self) -> Model:
        """The module's state as it is now, for :func:`nnr_codec.encode`: what weights are made of, in their places."""
        by_weight = {block.weight: block for block in self.blocks}
        tensors: dict[str, Array] = {}
        for key, value in self.module.state_dict().items():
            layer, made, rest = key.rpartition(f"{_ORIGINAL}.")
            name = layer + rest.partition(".")[0]
            member = self._members.get(rest.partition(".")[2]) if made and name in by_weight else None
            tensors[getattr(by_weight[name], member) if member else key] = _array(value)
        return Model(tensors, blocks=list(self.blocks))

    def finish(self) -> None:
        """Let the weights be what they are made of: the module has the parameters again that it had."""
        torch: Any = require("torch", "torch", "training")
        for block in self.blocks:
            path, _, weight = block.weight.rpartition(".")
            torch.nn.utils.parametrize.remove_parametrizations(self.module.get_submodule(path), weight)
        self.blocks = []


class LocalScaling(_Made):
    """Local scaling adaptation (8.3.9): weights are quantized and stay so; scales of their outputs are trained.

    A scale is at first that of the least squared error. After P. Haase and others, "Encoder optimizations for the NNR
    standard on neural network compression" (2021).

    >>> scaling = LocalScaling(module, qp=-8)                                             # doctest: +SKIP
    >>> train(module, optimizer=Adam(scaling.scales))                                     # doctest: +SKIP
    >>> data = nnr_codec.encode(scaling.model(), scaling.config)                          # doctest: +SKIP

    Parameters
    ----------
    module : torch.nn.Module
        The weights of its ``Linear`` and convolutional layers are those that are scaled; they need no gradient then.
    config : EncoderConfig, optional
    tensors : str
        Patterns of names of weights, separated by ``|``.
    **options
        As for :func:`nnr_codec.encode`: how weights are quantized.

    Attributes
    ----------
    config : EncoderConfig
        Which codes :meth:`model` with the levels that the weights have.
    scales : list of torch.nn.Parameter

    Raises
    ------
    MissingDependencyError
        PyTorch is not installed.
    EncodeError
        There is no such layer, a weight cannot be quantized as asked, or ``config`` has steps of reduction.
    """

    def __init__(
        self, module: Any, config: EncoderConfig | None = None, *, tensors: str = "*", **options: Unpack[EncoderOptions]
    ) -> None:
        super().__init__(module, {"original": "weight", "0.scale": "scale"})
        torch: Any = require("torch", "torch", "training")
        layers = _layers(torch, module, tensors)
        if not layers:
            raise EncodeError(f"there is no layer with a weight to scale among {tensors!r}")
        self.blocks = [Block(name, scale=f"{name}_scaling", axis=_axis(torch, layer)) for name, layer in layers.items()]
        config = configured(LocalScaling, config, options)
        if config.steps:
            raise EncodeError("steps of reduction come before scales: do them, and train these without")
        if kept := [name for name in layers if config.for_tensor(name).exact]:
            raise EncodeError(f"tensor {kept[0]!r} is to be exact, but its levels are to have scales", tensor=kept[0])
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
        """The whole state, with scales of ones."""
        tensors = {name: _array(value) for name, value in self.module.state_dict().items()}
        for block in self.blocks:
            weight = tensors[block.weight]
            tensors[f"{block.weight}_scaling"] = np.ones(weight.shape[block.axis], weight.dtype)
        return Model(tensors, blocks=list(self.blocks))

    def model(self) -> Model:
        """The module's state as it is now, for :func:`nnr_codec.encode`: levels and scales in the place of weights."""
        model = super().model()
        return replace(model, tensors={**model.tensors, **self._levels})  # which bfloat16 would have rounded

    def finish(self) -> None:
        """Let the weights be what they are made of: the module has the parameters again that it had."""
        names = [block.weight for block in self.blocks]
        super().finish()
        for name in names:
            self.module.get_parameter(name).requires_grad_(self._trained[name])
        self._levels = {}


class LowRank(_Made):
    """Weights that are products of two matrices G and H (8.3.7), which are trained in their place.

    >>> parts = LowRank(module, error=0.3)                                                # doctest: +SKIP
    >>> train(module, optimizer=Adam(module.parameters()))        # made after this       # doctest: +SKIP
    >>> data = nnr_codec.encode(parts.model())                                            # doctest: +SKIP

    Parameters
    ----------
    module : torch.nn.Module
        The weights of its ``Linear`` and convolutional layers are those that may become products.
    **options
        Those of ``lowrank`` but ``displacement``: ``error``, ``rank``, ``ratio``, ``tensors``...; they decide on the
        ranks.

    Attributes
    ----------
    ranks : dict of str to int
        By names of weights; those that would have no fewer parameters stay what they are.

    Raises
    ------
    MissingDependencyError
        PyTorch is not installed.
    EncodeError
        ``lowrank`` cannot be done as asked.
    """

    def __init__(self, module: Any, **options: str | int | float | bool) -> None:
        super().__init__(module, {"original0": "g", "original1": "h"})
        torch: Any = require("torch", "torch", "training")
        step = Step("lowrank", **options)
        tool: Any = tool_of(step)
        if tool.displacement:
            raise EncodeError("a displacement is not trained")
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
    """What makes weights of other tensors: modules of PyTorch, which is imported only now."""
    torch: Any = require("torch", "torch", "training")

    class Modules:
        """Those that there are."""

        class Scaled(torch.nn.Module):  # type: ignore[misc]
            """A weight times a number for each index of a dimension."""

            def __init__(self, scale: Any, axis: int) -> None:
                super().__init__()
                self.scale, self.axis = torch.nn.Parameter(scale), axis

            def forward(self, weight: Any) -> Any:
                shape = [1] * weight.ndim
                shape[self.axis] = -1
                return weight * self.scale.reshape(shape)

        class Product(torch.nn.Module):  # type: ignore[misc]
            """The product of two matrices in some shape."""

            def __init__(self, rank: int, shape: tuple[int, ...]) -> None:
                super().__init__()
                self.rank, self.shape = rank, shape

            def forward(self, g: Any, h: Any) -> Any:
                return (g @ h).reshape(self.shape)

            def right_inverse(self, weight: Any) -> Any:
                matrix = weight.detach().flatten(1).cpu().double()  # which not every device has
                u, s, v = torch.linalg.svd(matrix, full_matrices=False)
                roots = s[: self.rank].sqrt()
                return (u[:, : self.rank] * roots).to(weight), (roots[:, None] * v[: self.rank]).to(weight)

    return Modules


# ------------------------------------------------------------------------------------------------ tensors and arrays
def _reduced(arrays: Mapping[str, Array], steps: Sequence[Step], wiring: Wiring) -> Prepared:
    """Arrays after some steps."""
    model = Model(dict(arrays))
    prepared = Prepared(model, model, wiring)
    for _, after in apply(prepared, steps):
        prepared = after
    return prepared


def _quantized(model: Model, config: EncoderConfig) -> tuple[dict[str, Array], EncoderConfig]:
    """Weights of blocks as levels times steps, and options with which the same levels are made of these."""
    config = with_density(config)  # which goals lead to anyway
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
                f"tensor {block.weight!r} is not quantized, but its levels are to have scales", tensor=block.weight
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
    """The scales of least squared error, shape (n,); 1 where there is none."""
    rows, levels = (value.transpose(0, axis).flatten(1).cpu().double() for value in (weight, level))
    squares, products = (levels * levels).sum(1), (rows * levels).sum(1)
    found = (products / squares).where((squares > 0) & (products > 0), 1.0)
    return found.to(weight)


def _wiring_of(module: Any) -> Wiring:
    """Which dimension of each weight is that of its outputs."""
    torch: Any = require("torch", "torch", "training")
    layers = _layers(torch, module)
    return Wiring(blocks=tuple(Block(name, axis=_axis(torch, layer)) for name, layer in layers.items()))


def _layers(torch: Any, module: Any, tensors: str = "*") -> dict[str, Any]:
    """Linear and convolutional layers by the names of their weights, which no two of them share."""
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
        if id(value) in seen:  # of which a change would be one of the other as well
            found.pop(name, None)
            found.pop(seen[id(value)], None)
        seen[id(value)] = name
    return found


def _axis(torch: Any, layer: Any) -> int:
    return 1 if getattr(layer, "transposed", False) else 0


def _is_matrix(value: Any) -> bool:
    return bool(value.is_floating_point()) and sum(extent > 1 for extent in value.shape) > 1


def _array(value: Any) -> Array:
    """A copy of a tensor; of bfloat16, as float32."""
    value = value.detach().cpu()
    if str(value.dtype) == "torch.bfloat16":
        value = value.float()
    found: npt.NDArray[Any] = np.array(value.numpy())
    return found
