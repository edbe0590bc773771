"""Shapes and blocks that a topology declares (7.3.5, 8.2.1, errata N5).

NNEF labels that differ only in case are equal (NNEF 1.0, 4.1.3). Clause numbers refer to ISO/IEC 15938-17:2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, prod

from ..bitstream.payload import SCANNED, PayloadPart
from ..constants import NNR_CPT_BI, NNR_CPT_BN, NNR_CPT_LS
from ..dtypes import STORED_TYPES
from ..errors import FormatError
from ..model import Block, Wiring
from ..rules import Requirement
from ..syntax.structures import NnrCompressedDataUnitHeader

Shape = tuple[int, ...]

#: Maximum number of names in a message.
_LISTED = 3


@dataclass(frozen=True)
class Recreated:
    """Tensor without a unit that is filled with ``value``, from a folded batch normalization (8.2.1)."""

    name: str
    shape: Shape
    value: float


@dataclass(frozen=True)
class Outputs:
    """Changes to the decoded tensors of a block that the topology requires.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        Declared shapes of one-dimensional tensors for which they differ, with the same number of parameters.
    scale : bool
        True if RecLS is a tensor of the model that the network applies; the decoder then does not apply it.
    recreated : tuple of Recreated
    """

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    scale: bool = False
    recreated: tuple[Recreated, ...] = ()

    def shape(self, name: str, coded: Shape) -> Shape:
        """Return the declared shape of a tensor that was coded with another shape."""
        return self.shapes.get(name, coded)


#: Outputs without any changes.
PLAIN = Outputs()


class TopologyInfo:
    """Shapes, types and blocks that a topology declares, by label; immutable."""

    def __init__(self, wiring: Wiring) -> None:
        self.names = list(wiring.shapes)
        self._ignores_case = wiring.ignores_case
        self._shapes = {self.known(name): shape for name, shape in wiring.shapes.items()}
        self._kinds = {self.known(name): kinds for name, kinds in wiring.kinds.items()}
        self._places = {self.known(name): place for name, place in wiring.places.items()}
        self._wiring = wiring

    @cached_property
    def _folds(self) -> dict[tuple[str, ...], Block]:
        """Blocks with batch normalization, by weight, scale and offset; found when a bitstream has such a block."""
        return {
            self._key(block.weight, block.gamma, block.beta): block
            for block in self._wiring.blocks
            if block.mean and block.var and block.epsilon is not None and isfinite(block.epsilon)
        }

    def shape(self, name: str) -> Shape | None:
        """Return the declared shape of a tensor; None if the topology has no such tensor."""
        return self._shapes.get(self.known(name))

    def declaration(self, name: str) -> str:
        """Return the declared shape of a tensor with its file and line, for messages."""
        place = self._places.get(self.known(name))
        return f"declared as {self.shape(name)}{f' in {place}' if place else ''}"

    def known(self, name: str) -> str:
        """Return the key of a tensor name; NNEF ignores case."""
        return name.casefold() if self._ignores_case else name

    def _key(self, *names: str | None) -> tuple[str, ...]:
        return tuple(self.known(name or "") for name in names)

    def outputs(
        self, header: NnrCompressedDataUnitHeader, parts: Sequence[PayloadPart], pruned: Mapping[str, Sequence[int]]
    ) -> Outputs | None:
        """Return the changes to the tensors of an NNR_PT_BLOCK, or None if there are none.

        ``pruned`` dimensions replace declared dimensions.
        """
        named = {part.role: part.name for part in parts}
        vectors = {part.name: part.dims for part in parts if part.role not in SCANNED}
        is_output = self.shape(named.get("ls", "")) is not None
        recreated = tuple(
            Recreated(name, self._fitting(name, vectors[named["ls"]], pruned), value)
            for name, value in (self._folded(header, named) if is_output else {}).items()
        )
        shapes = {name: shape for name, dims in vectors.items() if (shape := self._fitting(name, dims, pruned)) != dims}
        return Outputs(shapes, is_output, recreated) if shapes or is_output else None

    def _folded(self, header: NnrCompressedDataUnitHeader, named: Mapping[str, str]) -> dict[str, float]:
        """Return values by name for recreating a folded batch normalization; empty if the block has none (8.2.1)."""
        types = header.compressed_parameter_types & (NNR_CPT_LS | NNR_CPT_BI | NNR_CPT_BN)
        # An update of alpha and delta applies to gamma and beta; it does not contain mean and variance.
        if types != NNR_CPT_LS | NNR_CPT_BI or header.parent_node_id_present_flag:
            return {}
        block = self._folds.get(self._key(named.get("weight") or named.get("g"), named["ls"], named["bias"]))
        if block is None or block.epsilon is None:
            return {}
        values = {block.mean: 0.0, block.var: 1 - block.epsilon, block.bias: 0.0}
        return {name: value for name, value in values.items() if name}

    def _fitting(self, name: str, dims: Shape, pruned: Mapping[str, Sequence[int]]) -> Shape:
        """Return the shape of a one-dimensional tensor, to which a topology may add extents of 1, as in [1, C]."""
        shape = pruned.get(name) or self.shape(name)
        if shape is None or prod(shape) != dims[0] or sum(extent != 1 for extent in shape) > 1:
            return dims
        return tuple(shape)

    def check_fit(self, tensors: Mapping[str, tuple[Shape, str]]) -> None:
        """Raise FormatError unless tensors have the shapes and types of the topology; some may be missing."""
        wrong: dict[str, list[str]] = {
            "are not among its variables": [],
            "have different shapes": [],
            "have different types": [],
        }
        strangers, shapes, types = wrong.values()
        first = ""
        for name, (shape, type_) in tensors.items():
            declared = self.shape(name)
            if declared is None:
                strangers.append(repr(name))
            elif _extents(declared) != _extents(shape):
                shapes.append(f"{name!r} is {shape}, {self.declaration(name)}")
            elif STORED_TYPES[type_].kind not in self._kinds.get(self.known(name), STORED_TYPES[type_].kind):
                types.append(f"{name!r} is {type_}")
            else:
                continue
            first = first or name
        found = [
            f"{len(names):,} of {len(tensors):,} tensors {what}: {_list(names)}"
            for what, names in wrong.items()
            if names
        ]
        if found:
            raise FormatError(
                f"the given topology does not match the bitstream: {'; '.join(found)}",
                rule=Requirement.TOPOLOGY_FIT,
                tensor=first,
                hint="use the topology of the encoded model",
            )


def _extents(shape: Sequence[int]) -> list[int]:
    """Return the extents other than 1: a bias may be declared as [1, C]."""
    return [extent for extent in shape if extent != 1]


def _list(what: Sequence[str]) -> str:
    more = f" and {len(what) - _LISTED} more" if len(what) > _LISTED else ""
    return f"{', '.join(what[:_LISTED])}{more}"
