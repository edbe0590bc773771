"""Random models and updates that are coded losslessly, and their values in decoders without side information."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

import nnr_codec as nnr
from nnr_codec.constants import NnrUnitType
from nnr_codec.dtypes import STORED_TYPES
from nnr_codec.model import Array

from .arrays import KINDS, from_patterns, made, patterns

Numbers = npt.NDArray[np.object_]

#: Names that may equal the id of another tensor's unit, and names beyond ASCII.
NAMES = ("w", "w#levels", "w#raw", "w##levels", "w#bits", "w#delta", "größe/重み", "fc.weight", "#", "a b")
#: From a single number to sizes at which every code is the smallest for some content.
SHAPES = ((), (3, 0), (1,), (9, 4), (300,), (12, 8, 3), (48, 64), (2000,), (40, 6, 3, 3), (3, 700))


def model(seed: int) -> nnr.Model:
    """Draw one to five tensors of any type and content; some of them are tied."""
    rng = np.random.default_rng([1, seed])
    tensors: dict[str, Array] = {}
    for name in _names(rng):
        tied = tensors and rng.random() < 0.1
        tensors[name] = tensors[str(rng.choice(list(tensors)))] if tied else _tensor(rng)
    return nnr.Model(tensors, metadata={"step": "9"} if seed % 4 == 0 else {})


def update(seed: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Draw a base and a new model, with tensors that are new, replaced, unchanged, or changed in some bits."""
    rng = np.random.default_rng([2, seed])
    base: dict[str, Array] = {}
    new: dict[str, Array] = {}
    for name in _names(rng):
        new[name] = _tensor(rng)
        match rng.integers(5):
            case 0:
                pass
            case 1:
                base[name] = _tensor(rng)
            case 2:
                base[name] = new[name]
            case 3:
                base[name] = _changed(new[name], 3, rng)
            case _:
                base[name] = _changed(new[name], 2**20, rng)
    return base, new


def _names(rng: np.random.Generator) -> list[str]:
    return [str(name) for name in rng.permutation(NAMES)[: rng.integers(1, 6)]]


def _tensor(rng: np.random.Generator) -> Array:
    """Draw a tensor of any stored type."""
    kind, type_name = str(rng.choice(list(KINDS))), str(rng.choice(list(STORED_TYPES)))
    return made(kind, SHAPES[rng.integers(len(SHAPES))], type_name, int(rng.integers(2**31)))


def _changed(array: Array, most: int, rng: np.random.Generator) -> Array:
    """Return a copy in which some bit patterns are larger or smaller by up to ``most``."""
    steps = np.where(rng.random(array.shape) < 0.3, rng.integers(-most, most + 1, array.shape), 0)
    return from_patterns(patterns(array).astype("u8") + steps.astype("u8"), STORED_TYPES[array.dtype.name])


# ------------------------------------------------------------------------------------------------ expected values
def numbers(array: Array) -> Numbers:
    """Return the values as Python numbers, which are comparable across types; None for not-a-number."""
    with np.errstate(invalid="ignore"):  # of a signaling not-a-number
        type_ = "f8" if "float" in array.dtype.name else "u8" if array.dtype.name == "uint64" else "i8"
        values = array.astype(type_)
        return np.asarray(np.where(values == values, values.astype(object), None))


def all_numbers(tensors: Mapping[str, Array]) -> dict[str, Numbers]:
    """Return the numbers of each tensor."""
    return {name: numbers(tensor) for name, tensor in tensors.items()}


def numbers_of_update(base: Mapping[str, Array], new: Mapping[str, Array], data: bytes) -> dict[str, Numbers]:
    """Return the expected value of each unit by tensor name: a difference if the tensor has a parent."""
    found = {}
    for unit in nnr.units(data):
        if unit.header.nnr_unit_type == NnrUnitType.NNR_NDU and (name := unit.ndu.topology_elem_id) in new:
            found[name] = numbers(new[name])
            if unit.ndu.parent_node_id_present_flag:
                found[name] = np.asarray(found[name] - numbers(base[name]))
    return found


def wrong(decoded: Mapping[str, Array], want: Mapping[str, Numbers]) -> list[str]:
    """Return the tensors whose shapes or numbers differ; shape (1,) stands for ()."""
    return [
        name
        for name in decoded.keys() & want.keys()
        if decoded[name].shape != (want[name].shape or (1,))
        or not np.array_equal(numbers(decoded[name]), want[name].reshape(decoded[name].shape))
    ]
