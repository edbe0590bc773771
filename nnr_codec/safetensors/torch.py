"""Functions of ``safetensors.torch`` for bitstreams.

>>> save_file({"w": torch.zeros((2, 3))}, "model.nnr", metadata={"epoch": "3"})          # doctest: +SKIP
>>> load_file("model.nnr", device="cpu")["w"]                                           # doctest: +SKIP
>>> save_model(network, "network.nnr", quality=40)                                      # doctest: +SKIP
>>> load_model(network, "network.nnr")                                                  # doctest: +SKIP
"""

from __future__ import annotations

import os
from typing import Any, Unpack

from ..api.encoding import encode, encode_file
from ..config import EncoderOptions, lossless_by_default
from ..formats import listed, require
from ..formats.pytorch.items import named_array
from ..model import Model
from ..torch import Match, sharing
from . import _model, _open, safe_open

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def save(tensors: dict[str, Any], metadata: dict[str, str] | None = None, **options: Unpack[EncoderOptions]) -> bytes:
    """Return the bitstream that :func:`save_file` writes."""
    return encode(_of_tensors(tensors, metadata), lossless_by_default(save, options))


def save_file(
    tensors: dict[str, Any],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    **options: Unpack[EncoderOptions],
) -> None:
    """Write tensors and metadata to a file as a bitstream, complete or not at all; an existing file is replaced.

    Parameters
    ----------
    tensors : dict of str to torch.Tensor
        Dense, contiguous tensors that do not share memory, on any device.
    filename : path
    metadata : dict of str to str, optional
    **options
        Fields of :class:`nnr_codec.EncoderConfig`. Lossless unless there is a ``preset``, or an option that cannot be
        combined with ``exact=True``, such as ``quality=40``.

    Raises
    ------
    ValueError
        A value is not a dense, contiguous tensor of a supported type.
    RuntimeError
        Tensors share memory.
    TypeError
        A name or metadata is not a string, or an option is unknown.
    EncodeError
        An option is invalid.
    """
    encode_file(_of_tensors(tensors, metadata), filename, lossless_by_default(save_file, options), overwrite=True)


def load(data: bytes) -> dict[str, Any]:
    """Decode a bitstream in memory to tensors by name, on the CPU."""
    with safe_open(memoryview(data), "pt") as file:
        return file.get_tensors()


def load_file(filename: str | os.PathLike[str], device: Any = "cpu", *, backend: str = "mmap") -> dict[str, Any]:
    """Decode a file to tensors by name; see :class:`nnr_codec.safetensors.safe_open`."""
    with safe_open(filename, "pt", device, backend=backend) as file:
        return file.get_tensors()


def save_model(
    model: Any,
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
    **options: Unpack[EncoderOptions],
) -> None:
    """Write the state of a module; of tensors that share memory, such as tied weights, only one is written.

    The metadata then map the name of each other tensor to the name of the written one, as in the library.

    Parameters
    ----------
    model : torch.nn.Module
    filename, metadata, options
        As for :func:`save_file`.
    force_contiguous : bool
        Write copies of tensors that are not contiguous, instead of raising ValueError.

    Raises
    ------
    RuntimeError
        None of the tensors that share memory covers all of it.
    ValueError, TypeError, EncodeError
        As for :func:`save_file`.
    """
    state = dict(model.state_dict())
    _check(state)
    ties: dict[str, str] = {}
    for kept, *others in sharing(state):
        if others and state[kept].nbytes < state[kept].untyped_storage().nbytes():
            raise RuntimeError(f"{listed([kept, *others])} share memory, but none of them covers all of it")
        ties |= dict.fromkeys(others, kept)
        for name in others:
            del state[name]
    if force_contiguous:
        state = {name: value.contiguous() for name, value in state.items()}
    save_file(state, filename, ties | (metadata or {}), **options)


def load_model(
    model: Any,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: Any = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[list[str], list[str]]:
    """Decode a file into the parameters and buffers of a module, one tensor at a time.

    Parameters
    ----------
    model : torch.nn.Module
    filename : path
    strict : bool
        Require all tensors of the module and no others. Tensors that share memory need one name in the file.
    device, backend
        Without effect: each tensor of the module keeps its device.

    Returns
    -------
    missing, unexpected : list of str
        Names in the module that were not loaded, and names in the file that were not used.

    Raises
    ------
    RuntimeError
        Names differ although ``strict`` is set; the module is unchanged.
    SafetensorError, OSError
        As for :func:`nnr_codec.torch.load_into`.
    """
    with _open(filename) as file:
        match = Match(model, file.info)
        missing, unexpected = match.missing, match.unexpected
        if strict and (missing or unexpected):
            message = f"Error(s) in loading state_dict for {type(model).__name__}:"
            for text, names in (("Missing", missing), ("Unexpected", unexpected)):
                if names:
                    message += f"\n    {text} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in sorted(names))
            raise RuntimeError(message)
        match.load(file)
    return missing, unexpected


def _check(tensors: dict[str, Any]) -> None:
    """Raise ValueError for anything but dense tensors, with the messages of the library."""
    torch: Any = require("torch", "torch", "a PyTorch tensor")
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
    if sparse := [name for name, tensor in tensors.items() if tensor.layout != torch.strided]:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not support. You can make it"
            " a dense tensor before saving with `.to_dense()` but be aware this might make a much larger file than"
            " needed."
        )


def _of_tensors(tensors: dict[str, Any], metadata: dict[str, str] | None) -> Model:
    """Return the model of tensors. Raise ValueError or RuntimeError if they cannot be saved."""
    _check(tensors)
    if shared := [group for group in sharing(tensors) if len(group) > 1]:
        raise RuntimeError(f"tensors share memory: {listed(shared[0])}; use save_model")
    arrays = {}
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"tensor {name!r} is not contiguous; call contiguous(), or use save_model(..., force_contiguous=True)"
            )
        arrays[name] = named_array(name, tensor)
    return _model(arrays, metadata)
