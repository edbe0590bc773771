"""Pruning information, NNR_TPL_PRUN: zero masks and new dimensions (6.4.4.5, 8.3.3).

The standard is incomplete here (errata N1). This implementation uses these rules:

- 1 means preserved, 0 means zero.
- The bits of a mask cover all tensors of the bitstream with two or more dimensions, in the order of their units. The
  order within a tensor is as coded, before first_tensor_dimension_shift moves the output channels. Tensors that share a
  unit count separately, each with its shape after the split.
- A sparse_mask has a bit for each parameter. A prune_mask has a bit for each parameter or for each output channel, an
  index of the first coded dimension. The number of bits decides; if both match, both have the same meaning.
- order_flag is the parameter order in a tensor: 1 if the last dimension varies fastest, 0 if the first dimension does.
- A mask with any other number of bits is ignored, with a PruningWarning.
- With several masks, a parameter is zero unless all of them preserve it.
- A dictionary supplies the tensor_dimensions that units omit and takes precedence over a topology; dimensions in units
  must be equal.

Clause numbers refer to ISO/IEC 15938-17:2024.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from math import prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from bitarray import bitarray

from ..constants import NNR_TPL_DICT
from ..errors import ElementError
from ..rules import Requirement
from ..syntax import Session
from ..syntax.structures import NnrPruningTopologyContainer

A = TypeVar("A", bound=np.generic)


class PruningWarning(UserWarning):
    """Mask that does not match the tensors of its bitstream and is ignored."""


class Pruning:
    """Pruning information of one bitstream; after :meth:`plan`, several threads may call :meth:`apply`.

    Attributes
    ----------
    dimensions : dict of str to list of int
        New tensor_dimensions by tensor name, from dictionaries.
    ignored : str
        Message about masks that match no tensors, set by :meth:`plan`; empty if all masks are applied.
    """

    def __init__(self) -> None:
        self.dimensions: dict[str, list[int]] = {}
        self.ignored = ""
        self._has_warned = False
        self._masks: dict[tuple[str, int, int], bitarray] = {}  # by element, order_flag and number of bits
        self._fitting: dict[str, bitarray] = {}  # by numpy's order name, or "channels"
        self._places: dict[str, tuple[int, int, int]] = {}  # first bit for parameters and for channels, and the shift

    @property
    def has_masks(self) -> bool:
        """True if tensors of two or more dimensions are final only after all tensors are known."""
        return bool(self._masks)

    def add(self, container: NnrPruningTopologyContainer, session: Session) -> None:
        """Add a container; ``session`` is the state before its unit.

        Raises ElementError for reserved or invalid values, MissingReferenceError for an index outside the reference
        list.
        """
        if container.nnr_rep_type > NNR_TPL_DICT:
            raise ElementError(
                f"nnr_rep_type {container.nnr_rep_type} is reserved (Table 13)", rule=Requirement.REPRESENTATION_TYPE
            )
        if container.prune_flag and container.nnr_rep_type == NNR_TPL_DICT:
            new = session.new_dimensions(container)
            if not new:
                raise ElementError(
                    "count_ids is 0, but must be greater", clause="6.4.4.5", rule=Requirement.PRUNE_COUNTS
                )
            self.dimensions |= new
        for element in ("prune_mask", "sparse_mask"):
            if element in container:
                bits: bitarray = getattr(container, element).bit_mask_value
                if not bits:
                    raise ElementError(
                        f"count_bits of {element} is 0, but must be greater",
                        clause="6.4.4.5",
                        rule=Requirement.PRUNE_COUNTS,
                    )
                self._add_mask((element, container.order_flag, len(bits)), bits)

    def _add_mask(self, key: tuple[str, int, int], bits: bitarray) -> None:
        if key in self._masks:
            self._masks[key] &= bits
        else:
            self._masks[key] = bitarray(bits, endian="big")

    def check(self, name: str, shape: Sequence[int], shift: int) -> list[int]:
        """Return the coded dimensions of a tensor; parameters as for :meth:`plan`.

        Raises ElementError if a dictionary has other dimensions.
        """
        coded = [*shape[shift : shift + 1], *shape[:shift], *shape[shift + 1 :]]
        new = self.dimensions.get(name, coded)
        if coded != new:
            raise ElementError(
                f"tensor_dimensions of {name!r} are {coded}, but {new} after pruning",
                clause="6.4.4.5",
                rule=Requirement.PRUNE_DIMENSIONS,
            )
        return coded

    def plan(self, tensors: Iterable[tuple[str, Sequence[int], int]]) -> None:
        """Assign mask bits to tensors, once the tensors of the bitstream are known; set :attr:`ignored`.

        Parameters
        ----------
        tensors : iterable of (str, sequence of int, int)
            Name, decoded shape and first_tensor_dimension_shift (0 for tensors that share a unit) of all tensors, in
            bitstream order.

        Raises
        ------
        ElementError
            A dictionary has other dimensions.
        """
        if not self._masks and not self.dimensions:
            return
        parameters = channels = 0
        for name, shape, shift in tensors:
            coded = self.check(name, shape, shift)
            if len(coded) > 1:
                self._places[name] = parameters, channels, shift
                parameters += prod(coded)
                channels += coded[0]
        ignored = []
        for (element, order_flag, count), bits in self._masks.items():
            if count == parameters:
                self._keep("C" if order_flag else "F", bits)
            elif count == channels and element == "prune_mask":
                self._keep("channels", bits)
            else:
                ignored.append(f"a {element} of {count:,} bits")
        if ignored:
            more = f" and {len(ignored) - 1} more" if len(ignored) > 1 else ""
            self.ignored = (
                f"pruning information is not applied: {ignored[0]}{more}, because the tensors of two or more "
                f"dimensions have {parameters:,} parameters and {channels:,} output channels (6.4.4.5)"
            )

    def warn(self) -> None:
        """Issue a PruningWarning for :attr:`ignored` masks, once; call it when the decoded result is complete.

        If a filter turns the warning into an exception, the caller can request the result again.
        """
        if self.ignored and not self._has_warned:
            self._has_warned = True
            warnings.warn(self.ignored, PruningWarning, stacklevel=3)

    def _keep(self, kind: str, bits: bitarray) -> None:
        self._fitting[kind] = self._fitting[kind] & bits if kind in self._fitting else bits

    def apply(self, name: str, tensor: npt.NDArray[A]) -> npt.NDArray[A]:
        """Zero the parameters of a decoded tensor that masks do not preserve: in place, or in a copy if it is
        read-only."""
        if not self._fitting or name not in self._places:
            return tensor
        parameter, channel, shift = self._places[name]
        for kind, mask in self._fitting.items():
            first, count = (channel, tensor.shape[shift]) if kind == "channels" else (parameter, tensor.size)
            removed = ~mask[first : first + count]
            if not removed.any():
                continue
            if not tensor.flags.writeable:
                tensor = tensor.copy()
            coded = np.moveaxis(tensor, shift, 0)  # a view
            where = np.unpackbits(np.frombuffer(removed.tobytes(), np.uint8), count=count).view(np.bool_)
            if kind == "channels":
                coded[where] = 0
            else:
                coded[where.reshape(coded.shape, order="C" if kind == "C" else "F")] = 0
        return tensor
