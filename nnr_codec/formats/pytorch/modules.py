"""Conversion of PyTorch modules to models, and loading of model tensors into modules.

>>> model = from_module(network, example_inputs)                                        # doctest: +SKIP
>>> data = nnr_codec.encode(model, fold_batchnorm=True)                                 # doctest: +SKIP
>>> load_state(network, nnr_codec.decode(data))                                         # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import STORED_TYPES
from ...errors import FormatError
from ...limits import Budget, Limits
from ...model import Array, Model, Topology
from .. import announce, lacks_type, listed, require
from . import description
from .batch_norms import find_blocks
from .items import TYPES, array_of, tensor_of
from .pickles import Leaf
from .structure import Found, View, walk


def from_module(module: Any, example_inputs: Any = None) -> Model:
    """Return the state of a module, with the blocks of its layers.

    Tensors in main memory are not copied: the model changes with the module. The topology describes the blocks: weights
    and biases of convolutions, transposed convolutions and linear layers, with the batch normalization of their outputs
    if these have no other use, for all combinations of optional arguments. Blocks are found if ``torch.fx`` can trace
    the module. Otherwise only consecutive layers of a ``Sequential`` are used, if the module consists of such sequences
    or ``example_inputs`` show that they are called as a whole. For ``BatchNorm1d``, ``example_inputs`` are needed to
    prove that its inputs are matrices.

    Parameters
    ----------
    module : torch.nn.Module
        The module; switched to ``eval()`` during the analysis and then restored.
    example_inputs : Tensor or tuple of Tensor, optional
        Inputs for a call of the module.

    Returns
    -------
    Model
        Tensors by the names of ``state_dict()``; shared tensors are tied.

    Raises
    ------
    FormatError
        The state has unsupported contents, such as a quantized tensor or a tensor on the meta device.
    MissingDependencyError
        PyTorch is not installed.
    """
    torch: Any = require("torch", "torch", "a PyTorch module")
    found = walk(module.state_dict(), Budget(Limits.unlimited()), partial(_read, torch))
    tensors = _arrays(found)
    inputs = () if example_inputs is None else example_inputs
    inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    tied = {*found.aliases, *found.aliases.values(), *found.apart}
    blocks = find_blocks(
        torch, module, inputs, {name: array.shape for name, array in tensors.items() if name not in tied}
    )
    topology = Topology("pytorch", description.to_bytes(found.tree, blocks))
    return Model(tensors, topology, format="pytorch", aliases=found.aliases)


def from_state_dict(state: Mapping[str, Any]) -> Model:
    """Return a ``state_dict()``, or a checkpoint with nested containers, as a model.

    Tensors in main memory are not copied.

    Raises
    ------
    FormatError
        A value is not supported, such as a quantized tensor or an object of another class.
    MissingDependencyError
        PyTorch is not installed.
    """
    torch: Any = require("torch", "torch", "a PyTorch state_dict")
    found = walk(dict(state), Budget(Limits.unlimited()), partial(_read, torch))
    topology = Topology("pytorch", description.to_bytes(found.tree))
    return Model(_arrays(found), topology, format="pytorch", aliases=found.aliases)


def to_state_dict(model: Model) -> dict[str, Any]:
    """Return the tensors of a model as PyTorch tensors by name, tied ones as one object, for ``load_state_dict``.

    Raises
    ------
    FormatError
        PyTorch has no type for a tensor.
    MissingDependencyError
        PyTorch is not installed.
    """
    require("torch", "torch", "conversion to PyTorch tensors")
    made: dict[str, Any] = {}  # by the name of the tensor that others are tied to
    for name in model:
        own = model.aliases.get(name, name)
        if own in made:
            continue
        made[own] = tensor_of(model[name], f"tensor {name[:80]!a}").clone()
    return {name: made[model.aliases.get(name, name)] for name in model}


def _arrays(found: Found) -> dict[str, Array]:
    """Return the tensors of a module or state_dict as arrays by name."""
    return {name: array_of(value, found.views[name].stored, name) for name, value in found.tensors.items()}


def _read(torch: Any, value: Any, what: str) -> View | Leaf | None:
    """Return the view or leaf of a tensor, torch.Size, torch.dtype or torch.device for :func:`.structure.walk`."""
    if type(value) is torch.Size:
        return Leaf("size", list(value))
    if type(value) is torch.dtype:
        return Leaf("dtype", str(value).removeprefix("torch."))
    if type(value) is torch.device:
        return Leaf("device", str(value))
    if not isinstance(value, torch.Tensor):
        return None
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise FormatError(f"{what} is a {type(value).__qualname__}; only tensors and parameters are supported")
    if value.is_meta:
        raise FormatError(f"{what} is on device meta and has no items")
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        kind = "nested" if value.is_nested else "quantized" if value.is_quantized else "sparse"
        raise FormatError(f"{what} is a {kind} tensor; only dense tensors are supported; call to_dense() first")
    type_ = str(value.dtype).removeprefix("torch.")
    if type_ not in TYPES or value.is_neg() or value.is_conj():
        raise FormatError(f"{what} has dtype {value.dtype}, which is not supported")
    storage = value.untyped_storage()
    return View.of(
        (str(value.device), storage.data_ptr()),
        STORED_TYPES[type_],
        tuple(value.shape),
        tuple(value.stride()),
        value.requires_grad,
        isinstance(value, torch.nn.Parameter),
        offset=value.storage_offset(),
        size=storage.nbytes(),
        what=what,
    )


def load_state(module: Any, model: Model | Mapping[str, Array], *, strict: bool = True) -> None:
    """Copy tensors into the parameters and buffers of a module, which keep their types, devices and ties.

    Parameters
    ----------
    module : torch.nn.Module
    model : Model or mapping of str to ndarray
        Tensors by the names of ``state_dict()``.
    strict : bool
        Require all tensors of the module and no others.

    Raises
    ------
    FormatError
        Names, shapes or kinds of types do not match the module, which is then unchanged.
    MissingDependencyError
        PyTorch is not installed.
    """
    torch: Any = require("torch", "torch", "a PyTorch module")
    model = model if isinstance(model, Model) else Model(model)
    state = state_of(torch, module)
    missing, strangers = (
        [name for name in state if name not in model.tensors],
        [name for name in model if name not in state],
    )
    if strict:
        check_names(missing, strangers)
    names = [name for name in state if name in model.tensors]
    announce(model, names)
    # All are checked before one is copied; each lazy tensor is decoded once. Arrays may be views of the module.
    with torch.no_grad():
        new = {name: fitted(name, np.asarray(model.tensors[name]), state[name]).clone() for name in names}
        for name, tensor in new.items():
            state[name].copy_(tensor)


def state_of(torch: Any, module: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a module by the names of ``state_dict()``."""
    return {name: value for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}


def check_names(missing: Sequence[str], strangers: Sequence[str]) -> None:
    """Raise FormatError for tensors that the model or the module lacks."""
    if missing or strangers:
        what = [
            f"{text}: {listed(names, 3)}" for text, names in (("missing", missing), ("unknown", strangers)) if names
        ]
        raise FormatError(f"the tensors do not match the module; {'; '.join(what)}")


def check_fit(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], target: Any) -> None:
    """Raise FormatError if a tensor of this type and shape cannot be copied into ``target``."""
    what, needed = f"tensor {name[:80]!a}", tuple(target.shape)
    if dtype.name not in TYPES:
        raise lacks_type(what, dtype, "pytorch")
    if [extent for extent in shape if extent != 1] != [extent for extent in needed if extent != 1]:
        raise FormatError(f"{what} has shape {shape}; the module has {needed}")
    if target.is_meta:
        raise FormatError(f"{what} of the module is on device meta and has no items")
    if (STORED_TYPES[dtype.name].kind == "f") != target.is_floating_point():
        raise FormatError(f"{what} has dtype {dtype}; the module has {target.dtype}")


def fitted(name: str, array: Array, target: Any) -> Any:
    """Return an array as a tensor with the type and shape of another one. Raise FormatError if that is impossible."""
    check_fit(name, array.dtype, array.shape, target)
    what = f"tensor {name[:80]!a}"
    found = tensor_of(array.reshape(target.shape), what).to(target.dtype)
    if not target.is_floating_point() and not np.array_equal(found.numpy(), array.reshape(target.shape)):
        raise FormatError(f"{what} has values that {target.dtype}, the dtype in the module, cannot represent")
    return found
