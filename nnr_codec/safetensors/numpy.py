"""Functions of ``safetensors.numpy`` for bitstreams.

>>> save_file({"w": np.zeros((2, 3))}, "model.nnr", metadata={"epoch": "3"})             # doctest: +SKIP
>>> load_file("model.nnr")["w"]                                                         # doctest: +SKIP
"""

from __future__ import annotations

import os
from typing import Unpack

import numpy as np

from ..api.encoding import encode, encode_file
from ..config import EncoderOptions, lossless_by_default
from ..model import Array, Model
from . import _model, safe_open

__all__ = ["load", "load_file", "save", "save_file"]


def save(
    tensor_dict: dict[str, Array], metadata: dict[str, str] | None = None, **options: Unpack[EncoderOptions]
) -> bytes:
    """Return the bitstream that :func:`save_file` writes."""
    return encode(_of_arrays(tensor_dict, metadata), lossless_by_default(save, options))


def save_file(
    tensor_dict: dict[str, Array],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    **options: Unpack[EncoderOptions],
) -> None:
    """Write arrays and metadata to a file as a bitstream, complete or not at all; an existing file is replaced.

    Parameters
    ----------
    tensor_dict : dict of str to ndarray
    filename : path
    metadata : dict of str to str, optional
    **options
        Fields of :class:`nnr_codec.EncoderConfig`. Lossless unless there is a ``preset``, or an option that cannot be
        combined with ``exact=True``, such as ``quality=40``.

    Raises
    ------
    TypeError
        A value is not an array, a name or metadata is not a string, or an option is unknown.
    EncodeError
        An option is invalid, or a type of items is not supported.
    """
    encode_file(_of_arrays(tensor_dict, metadata), filename, lossless_by_default(save_file, options), overwrite=True)


def load(data: bytes) -> dict[str, Array]:
    """Decode a bitstream in memory to arrays by name."""
    with safe_open(memoryview(data), "np") as file:
        return file.get_tensors()


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Array]:
    """Decode a file to arrays by name; see :class:`nnr_codec.safetensors.safe_open`."""
    with safe_open(filename, "np", backend=backend) as file:
        return file.get_tensors()


def _of_arrays(tensors: dict[str, Array], metadata: dict[str, str] | None) -> Model:
    if not isinstance(tensors, dict):
        raise TypeError(f"expected a dict of arrays, got {type(tensors).__name__}")
    for name, value in tensors.items():
        if not isinstance(value, np.ndarray):
            raise TypeError(f"tensor {name!r} must be a numpy array, got {type(value).__name__}")
    return _model(tensors, metadata)
