"""The interface of the library ``safetensors`` for bitstreams: a program changes only its imports.

>>> from nnr_codec.safetensors import safe_open
>>> from nnr_codec.safetensors.numpy import load_file, save_file

:mod:`.numpy` and :mod:`.torch` have the functions of the library's modules of the same names. Files are NNR bitstreams,
lossless unless an encoder option permits errors. Opening a file reads names, shapes and types; tensors are decoded on
request.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from ..decoder.index import NnrFile
from ..errors import FormatError
from ..errors import NnrError as SafetensorError
from ..formats.diagnosis import check_bitstream, diagnosed
from ..formats.safetensors.header import CODES
from ..model import Array, Model

if TYPE_CHECKING:
    from ..bitstream.source import Bitstream

__all__ = ["SafetensorError", "safe_open"]

_HINT = "load it with the library safetensors, or compress it with nnr encode --lossless"
_NUMPY, _TORCH = ("np", "numpy"), ("pt", "torch", "pytorch")


class safe_open:  # noqa: N801  # the name in the library
    """Bitstream whose tensors are decoded on request; a context manager that closes it.

    Parameters
    ----------
    filename : path, bytes-like or binary file
    framework : str
        ``"np"`` or ``"numpy"`` for arrays; ``"pt"``, ``"torch"`` or ``"pytorch"`` for PyTorch tensors.
    device : torch.device, str or int
        Device of PyTorch tensors.
    backend : str
        ``"mmap"`` or ``"pread"``, without effect: only the units of requested tensors are read in any case.

    Raises
    ------
    SafetensorError
        The file is not a bitstream, or an argument is invalid. This is another name of :class:`nnr_codec.NnrError`.
    OSError
        The file cannot be read.
    """

    def __init__(self, filename: Bitstream, framework: str, device: Any = "cpu", *, backend: str = "mmap") -> None:
        if framework not in (*_NUMPY, *_TORCH):
            raise SafetensorError(f"framework {framework!r} is not supported; use 'np' or 'pt'", option="framework")
        if backend not in ("mmap", "pread"):
            raise SafetensorError(f"backend {backend!r} is not supported; use 'mmap' or 'pread'", option="backend")
        self._convert: Callable[[str, Array], Any] = _unchanged
        if framework in _TORCH:
            from ..torch import converter

            self._convert = converter(device)
        elif str(device) != "cpu":
            raise SafetensorError(f"device {device!r} is not supported for numpy; use 'cpu'", option="device")
        self._opened: NnrFile | None = _open(filename)

    @property
    def _file(self) -> NnrFile:
        if self._opened is None:
            raise SafetensorError("the file is closed")
        return self._opened

    def keys(self) -> list[str]:
        """Return the names of the tensors in alphabetical order."""
        return sorted(self._file)

    def offset_keys(self) -> list[str]:
        """Return the names of the tensors in the order of the file."""
        return list(self._file)

    def metadata(self) -> dict[str, str] | None:
        """Return the metadata; None without metadata."""
        return dict(self._file.side.metadata) or None

    def get_tensor(self, name: str) -> Any:
        """Decode a tensor."""
        return self._convert(name, self._of(name)[name])

    def get_tensors(self) -> dict[str, Any]:
        """Decode all tensors, one after another."""
        with self._file.deferred() as model:
            tensors = {name: self._convert(name, model[name]) for name in model}
        self._file.warn()
        return tensors

    def get_slice(self, name: str) -> TensorSlice:
        """Return an object that decodes parts of a tensor."""
        return TensorSlice(self._of(name), name, self._convert)

    def _of(self, name: str) -> NnrFile:
        """Return the file; raise SafetensorError if it has no such tensor."""
        if name not in self._file:
            raise SafetensorError(f"the file has no tensor {name!r}")
        return self._file

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()
        self._opened = None


class TensorSlice:
    """Tensor of a file, decoded by indexing: ``f.get_slice("w")[:, 2:8]``.

    The first access decodes the tensor, which the object keeps for further accesses. If the tensor has a scan order, an
    index of its rows decodes only the blocks of these rows, on each access.
    """

    def __init__(self, file: NnrFile, name: str, convert: Callable[[str, Array], Any]) -> None:
        self._file, self._name, self._convert = file, name, convert
        self._info = file.info[name]
        self._whole: Array | None = None

    def get_shape(self) -> list[int]:
        """Return the shape."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """Return the type as safetensors files name it, such as ``F32``."""
        return CODES.get(self._info.type, self._info.type)

    def __getitem__(self, given: Any) -> Any:
        """Return a copy of a part of the tensor.

        ``given`` is an integer, a slice with a positive step, an ellipsis, or a tuple of these. Raises SafetensorError
        for other types, and for integers and slices that exceed the shape.
        """
        chosen = _checked(given, self.get_shape())
        part = self._rows(chosen)
        if part is None:
            if self._whole is None:
                self._whole = self._file[self._name]
            part = self._whole[chosen]
        return self._convert(self._name, np.array(part))

    def _rows(self, chosen: tuple[slice | int, ...]) -> Array | None:
        """Return the part if it needs some rows only, and these can be decoded alone."""
        shape, axis = self._info.shape, self._info.first_tensor_dimension_shift
        if (
            self._whole is not None
            or axis
            or not chosen
            or not any(tool.startswith("scan") for tool in self._info.tools)
        ):
            return None
        first = chosen[0]
        rows = range(shape[0])[first] if isinstance(first, slice) else range(first % shape[0], first % shape[0] + 1)
        if not 0 < len(rows) < shape[0]:
            return None
        part = self._file.rows(self._name, rows.start, rows[-1] + 1)
        return part[(slice(None, None, rows.step) if isinstance(first, slice) else 0, *chosen[1:])]


def _checked(given: Any, shape: list[int]) -> tuple[slice | int, ...]:
    """Return an index with an item for each dimension. Messages have the library's text."""
    if isinstance(given, list):
        if given:
            raise SafetensorError("Non empty lists are not implemented")
        given = slice(0, 0)
    items = given if isinstance(given, tuple) else (given,)
    where = f"Error during slicing [{', '.join(map(_shown, items))}] with shape {shape}: "
    before = next((k for k, item in enumerate(items) if item is Ellipsis), len(items))
    after = items[before + 1 :]
    if before + len(after) > len(shape):
        raise SafetensorError(f"{where}more slicing indexes than dimensions in tensor")
    filler = [slice(None)] * (len(shape) - before - len(after))
    found: list[slice | int] = []
    for axis, (item, size) in enumerate(zip((*items[:before], *filler, *after), shape, strict=True)):
        if isinstance(item, slice):
            start, stop, step = (None if each is None else index(each) for each in (item.start, item.stop, item.step))
            if step is not None and step < 1:
                raise SafetensorError(f"Slice step must be a positive integer, got {step}")
            last = max(start or 0, (stop or 0) - 1)
            is_inside = max(start or 0, stop or 0) <= size
            found.append(slice(start, stop, step))
        elif hasattr(item, "__index__"):
            last = index(item)
            is_inside = last < size
            if last < -size:
                raise SafetensorError(f"Invalid index {last} for dimension {axis} of size {size}")
            found.append(last)
        else:
            raise SafetensorError(f"Unsupported slice index at position {axis}: expected slice, int, or ellipsis")
        if not is_inside:
            raise SafetensorError(f"{where}index {last} out of bounds for tensor dimension #{axis} of size {size}")
    return tuple(found)


def _shown(item: object) -> str:
    """Return an item of an index as it is written."""
    if not isinstance(item, slice):
        return "..." if item is Ellipsis else str(item)
    parts = [item.start, item.stop] if item.step is None else [item.start, item.stop, item.step]
    return ":".join("" if part is None else str(part) for part in parts)


def _unchanged(_: str, array: Array) -> Array:
    return array


def _open(source: Bitstream) -> NnrFile:
    """Open a bitstream; raise FormatError with a hint for another file, such as a safetensors file."""
    try:
        with diagnosed(source, _HINT):
            return NnrFile(source)
    except SafetensorError:
        if isinstance(source, memoryview):
            try:
                check_bitstream(io.BytesIO(source), _HINT)
            except FormatError as mistake:
                raise mistake from None
        raise


def _model(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None) -> Model:
    """Return the model of a file, in alphabetical order: equal contents give equal files."""
    for text in (*tensors, *(part for item in (metadata or {}).items() for part in item)):
        if not isinstance(text, str):
            raise TypeError(f"names and metadata must be str, got {text!r}")
    return Model(dict(sorted(tensors.items())), metadata=dict(metadata or {}), format="safetensors")
