"""From tensors of units to tensors of the model, as side information says (docs/reference/side-information.md)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ..constants import NNR_PT_INT, NNR_PT_RAW_FLOAT
from ..dtypes import STORED_TYPES
from ..errors import BitstreamError, ElementError, LimitError, locate
from ..limits import Budget, Limits
from ..model import Array
from ..rules import Requirement
from ..sideinfo.codes import join, join_patterns
from ..sideinfo.narrow import float32_of
from ..sideinfo.record import DisplacementCode, RawCode, SideInfo, TensorRecord
from ..tensor.quant import cast_floats
from ..tensor.reduction import from_displacement
from .info import TensorInfo
from .task import TERM_OVERHEAD

#: Key and value of the metadata of updates whose integers are differences of the patterns of floats, where the tensor
#: that they are added to is one of floats.
UPDATE, BITS = "nnr_codec.update", "bits"

#: What floats may be decoded to.
DTYPES = ("source", "float16", "float32")

Named = tuple[str, Array]


class Restoration:
    """What a record makes of the tensors of units; never changed, so that several threads may use it.

    Parameters
    ----------
    side : SideInfo
    dtype : str
        What floats become; ``source``: what they were.
    limits : Limits
    label : str
        Of the record's unit.

    Attributes
    ----------
    owners : dict of str to str
        The tensors of units that do not have the name of their tensor, by the ids of these units.

    Raises LimitError when the record has tensors that are not expected.
    """

    def __init__(self, side: SideInfo, dtype: str, limits: Limits, label: str = "") -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}, not one of {', '.join(DTYPES)}")
        self.side, self.dtype, self.label, self._limits = side, dtype, label, limits
        self.owners = {unit: name for name, record in side.tensors.items() for unit in record.units}
        self.ties: dict[str, list[str]] = {}
        for name, record in side.tensors.items():
            if record.same_as:
                self.ties.setdefault(record.same_as, []).append(name)
        for name, record in side.tensors.items():
            if record.index is None or record.same_as:
                limits.check_expected(name)
            else:
                self._check_expected(name, record.shape or (), record.type)

    @property
    def changes(self) -> bool:
        """Whether anything is ever made of tensors."""
        return bool(self.side.tensors) or self.dtype != "source"

    def decoded(self, type_: str) -> str:
        """The type that a tensor of this one decodes to."""
        return type_ if self.dtype == "source" or STORED_TYPES[type_].kind != "f" else self.dtype

    def parts(self, name: str) -> tuple[str, ...]:
        """The tensors of units that a tensor of the model is made of; none for an empty one."""
        record = self.side.tensors.get(name)
        if record is None:
            return (name,)
        if record.same_as:
            return self.parts(record.same_as)
        if record.index is not None:
            return ()
        own = name if record.unit is None else record.unit
        return (own,) if record.bits is None else (own, record.bits)

    # ------------------------------------------------------------------------------------------ from headers
    def check(self, info: TensorInfo) -> None:
        """Check the tensor of a unit, before it is decoded.

        Raises ElementError when it is not what the record says, LimitError when it is not expected.
        """
        if not self.side.tensors and self._limits.expected is None:
            return
        name = self.owners.get(info.name, info.name)
        record = self.side.tensors.get(name)
        if record is None:
            self._check_expected(name, info.shape, info.type)
        elif record.index is not None:
            why = f"tied to {record.same_as!r}" if record.same_as else "empty"
            raise ElementError(
                f"{name!r} has a unit, and is {why} by the side information", rule=Requirement.SIDE_INFORMATION
            )
        elif info.name == (parts := self.parts(name))[0]:
            _check_unit(record, info)
            self._check_expected(name, _shape(record, info), record.type)
        elif info.name not in parts:
            raise ElementError(
                f"{name!r} has a unit, and is made of {record.unit!r} by the side information",
                rule=Requirement.SIDE_INFORMATION,
            )
        elif (info.payload_type, info.type, len(info.shape)) != (NNR_PT_RAW_FLOAT, "float32", 1):
            raise ElementError(
                f"{info.name!r}, the bits of {name!r}, are not float32 words of NNR_PT_RAW_FLOAT",
                rule=Requirement.SIDE_INFORMATION,
            )

    def _check_expected(self, name: str, shape: tuple[int, ...], type_: str) -> None:
        for one in (name, *self.ties.get(name, ())):
            is_bits = self.side.metadata.get(UPDATE) == BITS
            self._limits.check_expected(one, shape, self.decoded(type_), is_bits=is_bits)

    def there(self, coded: Collection[str]) -> set[str]:
        """The tensors of the model that are complete with these of units."""
        lone = {name for name in coded if name not in self.side.tensors and name not in self.owners}
        return lone | {name for name in self.side.tensors if all(part in coded for part in self.parts(name))}

    def infos(self, coded: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """Facts about the tensors of the model that are complete, in its order."""
        if not self.changes:
            return dict(coded)
        there = self.there(coded)
        units = deque(name for name in dict.fromkeys(self.owners.get(name, name) for name in coded) if name in there)
        order: list[str] = []
        for index, name in _placed(self.side.tensors, there):
            while units and len(order) < index:
                order.append(units.popleft())
            order.append(name)
        return {name: self._info(name, coded) for name in (*order, *units)}

    def _info(self, name: str, coded: Mapping[str, TensorInfo]) -> TensorInfo:
        record = self.side.tensors.get(name)
        if record is None:
            info, type_ = coded[name], self.decoded(coded[name].type)
            return info if type_ == info.type else info._replace(type=type_)
        if record.same_as:
            target = self._info(record.same_as, coded)
            return target._replace(name=name, payload_type=None, tools=(), nbytes=0, code="", same_as=target.name)
        if record.index is not None:
            return TensorInfo(name, record.shape or (), self.decoded(record.type), None, (), 0)
        info = coded[self.parts(name)[0]]
        return info._replace(
            name=name,
            type=self.decoded(record.type),
            shape=_shape(record, info),
            first_tensor_dimension_shift=0 if record.shape is not None else info.first_tensor_dimension_shift,
            nbytes=sum(coded[part].nbytes for part in self.parts(name)),
            code=record.code.KIND if record.code else "",
        )


def _shape(record: TensorRecord, info: TensorInfo) -> tuple[int, ...]:
    """The tensor's, whose own unit is that of ``info``."""
    return info.shape if record.shape is None else record.shape


def _placed(tensors: Mapping[str, TensorRecord], names: Iterable[str]) -> list[tuple[int, str]]:
    """Those of the names that have no units, with their places, in order."""
    records = ((name, tensors[name]) for name in names if name in tensors)
    return sorted((record.index, name) for name, record in records if record.index is not None)


def _check_unit(record: TensorRecord, info: TensorInfo) -> None:
    """Check a tensor's own unit; ElementError when it is not what the record says."""
    count, is_float = prod(_shape(record, info)), STORED_TYPES[info.type].kind == "f"
    if isinstance(record.code, RawCode):
        count, wanted = -(-count * record.stored.itemsize // 4), "float32 words of NNR_PT_RAW_FLOAT"
        fits = info.payload_type == NNR_PT_RAW_FLOAT and info.type == "float32"
    elif isinstance(record.code, DisplacementCode):
        wanted, fits = "floats with rows", is_float and bool(_shape(record, info))
    elif record.code:
        wanted, fits = "int32 of NNR_PT_INT", info.payload_type == NNR_PT_INT and info.type == "int32"
    else:
        wanted, fits = f"what {record.type} is cast from", is_float == (record.stored.kind == "f")
    if not fits or info.parameters != count:
        raise ElementError(
            f"the unit of {info.name!r} has {info.parameters:,} {info.type}; side information wants {count:,} {wanted}",
            rule=Requirement.SIDE_INFORMATION,
        )


class Restorer:
    """Takes the tensors of units in order, and gives those of the model as soon as they can be told.

    Parameters
    ----------
    restoration : Restoration
    budget : Budget
        Charged for each tensor that is made, before it is.
    names : collection of str, optional
        Which tensors are wanted; all by default.
    """

    def __init__(self, restoration: Restoration, budget: Budget, names: Collection[str] | None = None) -> None:
        self._restoration, self._budget = restoration, budget
        self._tensors, self._names = restoration.side.tensors, names
        wanted = set(self._tensors if names is None else names)
        records = filter(None, map(self._tensors.get, wanted))
        self._targets = Counter(record.same_as for record in records if record.same_as)
        self._placed = deque(_placed(self._tensors, wanted | self._targets.keys()))
        self._kept: dict[str, Array] = {}  # to which others are tied
        self._tied: dict[str, list[str]] = {}  # whose place has come, and whose target has not
        self._half: dict[str, Array] = {}  # own units and units of bits that wait for each other
        self._count = 0

    def _wants(self, name: str) -> bool:
        return self._names is None or name in self._names

    def take(self, name: str, tensor: Array, label: str) -> list[Named]:
        """The tensors of the model that are complete with one of a unit, whose label is given.

        Raises
        ------
        ElementError
            Units do not fit the record, or each other.
        LimitError
            A tensor is larger than the limits permit.
        MissingDependencyError
            A type needs ``ml_dtypes``, which is not installed.
        """
        owner = self._restoration.owners.get(name, name)
        if not self._wants(owner) and owner not in self._targets:
            return []
        record, bits = self._tensors.get(owner), None
        if record and record.bits is not None:
            if owner not in self._half:
                self._half[owner] = tensor
                return []
            bits = self._half.pop(owner)
            tensor, bits = (bits, tensor) if name == record.bits else (tensor, bits)
        try:
            out = [*self._due(), *self._given(owner, self._restored(record, tensor, bits)), *self._due()]
        except BitstreamError as error:
            locate(error, label)
            raise
        except MemoryError:
            raise LimitError("there is not enough memory for the tensor", unit=label) from None
        return out

    def finish(self) -> list[Named]:
        """What is left after the last unit: tensors without units whose place has not come."""
        try:
            return list(self._due(all_=True))
        except LimitError as error:
            locate(error, self._restoration.label)
            raise

    def _restored(self, record: TensorRecord | None, unit: Array, bits: Array | None) -> Array:
        dtype = self._restoration.dtype
        if record is None and (dtype == "source" or unit.dtype.kind != "f" or unit.dtype == dtype):
            return unit
        of_type = record.type if record else unit.dtype.name
        to_type = self._restoration.decoded(of_type)
        shape = unit.shape if record is None or record.shape is None else record.shape
        self._charge(shape, of_type, to_type)
        if not unit.size:  # of some rows there may be none
            return np.empty(shape, STORED_TYPES[to_type].dtype)
        if record and isinstance(record.code, DisplacementCode):
            unit, record = self._from_displacement(unit, shape, record.code.corner), replace(record, code=None)
        if record and to_type == of_type:
            return join(record, unit, bits, shape)
        floats: Any = _floats(record, unit, bits, shape) if record else unit
        return cast_floats(floats.reshape(shape), STORED_TYPES[to_type].dtype)

    def _from_displacement(self, unit: Any, shape: tuple[int, ...], corner: int) -> Array:
        """The tensor that a unit holds the displacement of."""
        rows, size = shape[0], self._budget.tensor(shape, 8, "tensor made of its displacement")
        self._budget.charge("max_decomp_elements", size + rows * TERM_OVERHEAD, "additions to displacements")
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is refused
            found = from_displacement(unit.reshape(rows, -1), corner)
        if not np.isfinite(found).all():
            raise ElementError(
                "a value that side information makes of a displacement is not finite", rule=Requirement.SIDE_INFORMATION
            )
        return found.reshape(shape)

    def _charge(self, shape: tuple[int, ...], *types: str) -> None:
        size = max(STORED_TYPES[name].itemsize for name in types)
        if 0 in shape and prod(extent for extent in shape if extent) * size > Limits.NONE:
            raise LimitError(f"an empty tensor of shape {shape} is more than numpy can say")
        self._budget.tensor(shape, size, "restored tensor")

    # ------------------------------------------------------------------------------------------ order
    def _given(self, name: str, tensor: Array) -> Iterator[Named]:
        """A tensor, and those tied to it whose place has come."""
        if self._targets[name]:
            self._kept[name] = tensor
        if self._wants(name):
            self._count += 1
            yield name, tensor
        for alias in self._tied.pop(name, ()):
            yield from self._alias(alias, tensor)

    def _alias(self, name: str, tensor: Array) -> Iterator[Named]:
        self._budget.tensor(tensor.shape, tensor.itemsize, "tied tensor")
        target = self._tensors[name].same_as
        self._targets[target] -= 1
        if not self._targets[target]:
            del self._kept[target]
        yield name, tensor

    def _due(self, all_: bool = False) -> Iterator[Named]:
        """The tensors without units whose place is next, or all of them."""
        while self._placed and (all_ or self._placed[0][0] <= self._count):
            name = self._placed.popleft()[1]
            record = self._tensors[name]
            if not record.same_as:
                yield from self._given(name, self._empty(record))
                continue
            self._count += 1
            if record.same_as in self._kept:
                yield from self._alias(name, self._kept[record.same_as])
            else:
                self._tied.setdefault(record.same_as, []).append(name)

    def _empty(self, record: TensorRecord) -> Array:
        to_type, shape = self._restoration.decoded(record.type), record.shape or ()
        try:
            self._charge(shape, record.type, to_type)
        except LimitError as error:
            locate(error, self._restoration.label)
            raise
        return np.empty(shape, STORED_TYPES[to_type].dtype)


def _floats(record: TensorRecord, unit: Array, bits: Array | None, shape: tuple[int, ...]) -> Array:
    """A tensor of floats in a type of numpy's that holds them; without ``ml_dtypes``.

    Without a code nothing is rounded to the tensor's type on the way.
    """
    stored = record.stored
    if record.code is None:
        return unit
    patterns = join_patterns(record, unit, bits, shape)
    return patterns.view(stored.dtype) if stored.is_numpys else float32_of(stored, patterns)
