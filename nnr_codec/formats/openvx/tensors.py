"""Tensors in the form of the extension: types, order of dimensions, files.

File names consist of the position of the tensor in the model and the portable characters of its name:
``03-fc1_weight.q78``. They are therefore unique without regard to case, are not device names, and stay in the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ...dtypes import stored_type
from ...errors import FormatError
from ...model import Array, Model
from .. import described

if TYPE_CHECKING:
    from .network import Network

#: Q7.8: fraction bits, named fixed_point_position in vxCreateTensor; minimum and maximum level.
POSITION, LEAST, MOST = 8, -(1 << 15), (1 << 15) - 1
#: Maximum number of characters of a tensor name in a file name; number of items converted at a time.
NAME_LENGTH, CHUNK = 48, 1 << 18

_OTHERS = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class VxType:
    """Type of the extension (1.6).

    Parameters
    ----------
    name : str
        Name of the macro.
    position : int
        Value of fixed_point_position.
    bytes : int
        Size of an item in bytes.
    suffix : str
        File extension.
    """

    name: str
    position: int
    bytes: int
    suffix: str


Q78 = VxType("VX_TYPE_INT16", POSITION, 2, ".q78")
_INTEGERS = {"int8": VxType("VX_TYPE_INT8", 0, 1, ".s8"), "uint8": VxType("VX_TYPE_UINT8", 0, 1, ".u8")}


@dataclass(frozen=True)
class VxTensor:
    """Arguments of vxCreateTensor.

    Parameters
    ----------
    name : str
        Name in the model.
    type : VxType
    dims : tuple of int
        Dimensions in the order of OpenVX, the fastest one first.
    file : str
        File name in the folder; empty for a tensor without a file.
    turned : bool
        True if the file has the first two dimensions of the array exchanged, and the items reversed along the others.
    """

    name: str
    type: VxType
    dims: tuple[int, ...]
    file: str = ""
    turned: bool = False

    @property
    def nbytes(self) -> int:
        """Size of all items in bytes."""
        return int(np.prod(self.dims, dtype=object)) * self.type.bytes

    def created(self) -> dict[str, Any]:
        """Return the arguments of vxCreateTensor by name."""
        return {
            "data_type": self.type.name,
            "fixed_point_position": self.type.position,
            "number_of_dims": len(self.dims),
            "dims": list(self.dims),
        }


def type_of(dtype: np.dtype[Any]) -> VxType | None:
    """Return the type for a dtype; None if there is none. Floats get Q7.8, which may not represent their values."""
    stored = stored_type(dtype)
    if stored is None:
        return None
    return Q78 if stored.kind == "f" else _INTEGERS.get(stored.name)


def describe(model: Model, network: Network) -> list[VxTensor]:
    """Return the tensors of a model as its layers need them. Raise FormatError for a tensor that cannot be written."""
    names = [name for name in model if name not in network.folded]
    digits, found = len(str(max(len(names) + len(network.derived) - 1, 0))), []
    for place, name in enumerate(names):
        dtype, shape = described(model, name)
        type_ = type_of(dtype)
        if type_ is None:
            raise FormatError(
                f"tensor {name!r}: OpenVX does not support {dtype}; supported types are Q7.8, int8 and uint8",
                tensor=name,
            )
        if 0 in shape:
            raise FormatError(
                f"tensor {name!r} of shape {shape} has no elements, which vxCreateTensor rejects", tensor=name
            )
        dims = network.dims.get(name) or tuple(reversed(shape)) or (1,)
        found.append(VxTensor(name, type_, dims, _file(place, digits, name, type_), name in network.turned))
    for place, (name, array) in enumerate(network.derived.items(), len(names)):
        found.append(VxTensor(name, Q78, tuple(reversed(array.shape)), _file(place, digits, name, Q78)))
    return found


def _file(place: int, digits: int, name: str, type_: VxType) -> str:
    """Return the file name of a tensor."""
    return f"{place:0{digits}}-{_OTHERS.sub('_', name)[:NAME_LENGTH]}{type_.suffix}"


def write_tensor(file: BinaryIO, array: Array, tensor: VxTensor) -> None:
    """Write the items, little-endian. Raise FormatError for a float that is not exactly Q7.8."""
    if tensor.turned:
        array = np.ascontiguousarray(np.flip(array.swapaxes(0, 1), tuple(range(2, array.ndim))))
    for part in _parts(array):
        if tensor.type is Q78:
            file.write(_levels(part, tensor.name).astype("<i2").data)
        else:
            file.write(np.ascontiguousarray(part).view(np.uint8).data)


def _levels(values: npt.NDArray[Any], name: str) -> npt.NDArray[np.float64]:
    with np.errstate(over="ignore"):
        levels: npt.NDArray[np.float64] = np.ldexp(values.astype(np.float64), POSITION)
    exact = (levels == np.rint(levels)) & (levels >= LEAST) & (levels <= MOST)
    if not exact.all():
        wrong = values[~exact][0]
        raise FormatError(
            f"tensor {name!r} has values that Q7.8 cannot represent, such as {float(wrong):g}; encode the model with"
            " --fixed-point q7.8 (fixed_point='q7.8'), and decode folded batch normalizations with their NNEF graph",
            tensor=name,
        )
    return levels


def _parts(array: Array) -> Iterator[npt.NDArray[Any]]:
    """Yield one-dimensional parts in row-major order."""
    flat = array.reshape(-1)
    for start in range(0, array.size, CHUNK):
        yield flat[start : start + CHUNK]
