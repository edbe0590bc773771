"""Restoration of model tensors from unit tensors with side information (docs/reference/side-information.md)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..constants import NNR_PT_INT, NNR_PT_RAW_FLOAT
from ..dtypes import STORED_TYPES
from ..errors import BitstreamError, ElementError, LimitError, locate
from ..limits import Budget, Limits
from ..model import Array
from ..rules import Requirement
from ..sideinfo.codes import cast_stored, join, join_patterns
from ..sideinfo.narrow import float32_of
from ..sideinfo.record import DisplacementCode, RawCode, SideInfo, TensorRecord
from ..tensor.quant import cast_floats
from ..tensor.reduction import from_displacement
from .info import TensorInfo
from .task import TERM_OVERHEAD, Cast

#: Metadata key and value of updates in which integers added to a float tensor are differences of bit patterns.
UPDATE, BITS = "nnr_codec.update", "bits"

#: Values of the option ``dtype``.
DTYPES = ("source", "float32", "float16", "bfloat16")

Named = tuple[str, Array]


class Restoration:
    """Mapping from unit tensors to model tensors, from a record; immutable, so that several threads may use it.

    Parameters
    ----------
    side : SideInfo
    dtype : str
        Type of decoded floats; ``source``: the original type.
    limits : Limits
    label : str
        Label of the record's unit.

    Attributes
    ----------
    owners : dict of str to str
        Tensor names by unit id, for units whose id differs from the tensor name.

    Raises LimitError if the record has unexpected tensors.
    """

    def __init__(self, side: SideInfo, dtype: str, limits: Limits, label: str = "") -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
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
        """True if any tensor may change."""
        return bool(self.side.tensors) or self.dtype != "source"

    def decoded(self, type_: str) -> str:
        """Return the decoded type of a tensor with this original type."""
        return type_ if self.dtype == "source" or STORED_TYPES[type_].kind != "f" else self.dtype

    def cast(self, info: TensorInfo) -> tuple[Cast | None, np.dtype[Any] | None]:
        """Return function and dtype to cast a unit tensor while it is decoded.

        Both are None unless restoring the model tensor requires only this cast, to a narrower type.
        """
        record = self.side.tensors.get(self.owners.get(info.name, info.name))
        if STORED_TYPES[info.type].kind != "f" or (record and (record.code or record.repeats)):
            return None, None
        of_type = record.type if record else info.type
        to = STORED_TYPES[self.decoded(of_type)]
        if to.itemsize >= STORED_TYPES[info.type].itemsize:
            return None, None
        if record and to.name == of_type:
            return partial(cast_stored, stored=to, dtype=to.dtype), to.dtype
        return partial(cast_floats, dtype=to.dtype), to.dtype

    def parts(self, name: str) -> tuple[str, ...]:
        """Return the names of the unit tensors of a model tensor; none for an empty tensor."""
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
        """Check the tensor of a unit before it is decoded.

        Raises ElementError if it contradicts the record, LimitError if it is not expected.
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
                f"{name!r} has a unit, but side information states that it is {why}", rule=Requirement.SIDE_INFORMATION
            )
        elif info.name == (parts := self.parts(name))[0]:
            _check_unit(record, info)
            self._check_expected(name, _shape(record, info), record.type)
        elif info.name not in parts:
            raise ElementError(
                f"{name!r} has a unit, but side information derives it from {record.unit!r}",
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
        """Return the names of model tensors that are complete with these unit tensors."""
        lone = {name for name in coded if name not in self.side.tensors and name not in self.owners}
        return lone | {name for name in self.side.tensors if all(part in coded for part in self.parts(name))}

    def infos(self, coded: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """Return information on the complete model tensors, in model order."""
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
    """Return the shape of the tensor whose unit is ``info``."""
    return info.shape if record.shape is None else record.shape


def _placed(tensors: Mapping[str, TensorRecord], names: Iterable[str]) -> list[tuple[int, str]]:
    """Return the tensors without units among the names, with their positions, in order."""
    records = ((name, tensors[name]) for name in names if name in tensors)
    return sorted((record.index, name) for name, record in records if record.index is not None)


def _check_unit(record: TensorRecord, info: TensorInfo) -> None:
    """Check the unit of a tensor. Raise ElementError if it contradicts the record."""
    count, is_float = prod(_shape(record, info)), STORED_TYPES[info.type].kind == "f"
    if record.repeats is not None:
        count -= record.repeats.copied
    if isinstance(record.code, RawCode):
        count, wanted = -(-count * record.stored.itemsize // 4), "float32 words of NNR_PT_RAW_FLOAT"
        fits = info.payload_type == NNR_PT_RAW_FLOAT and info.type == "float32"
    elif isinstance(record.code, DisplacementCode):
        wanted, fits = "floats with rows", is_float and bool(_shape(record, info))
    elif record.code:
        wanted, fits = "int32 of NNR_PT_INT", info.payload_type == NNR_PT_INT and info.type == "int32"
    else:
        floats = record.stored.kind == "f"
        wanted, fits = "of float type" if floats else "of integer type", is_float == floats
    if not fits or info.parameters != count:
        raise ElementError(
            f"the unit of {info.name!r} has {info.parameters:,} {info.type}; "
            f"side information requires {count:,} {wanted}",
            rule=Requirement.SIDE_INFORMATION,
        )


class Restorer:
    """Restorer of model tensors: takes unit tensors in order and returns model tensors as soon as they are complete.

    Parameters
    ----------
    restoration : Restoration
    budget : Budget
        Charged before each tensor is created.
    names : collection of str, optional
        Tensors to restore; default: all.
    """

    def __init__(self, restoration: Restoration, budget: Budget, names: Collection[str] | None = None) -> None:
        self._restoration, self._budget = restoration, budget
        self._tensors, self._names = restoration.side.tensors, names
        wanted = set(self._tensors if names is None else names)
        records = filter(None, map(self._tensors.get, wanted))
        self._targets = Counter(record.same_as for record in records if record.same_as)
        self._placed = deque(_placed(self._tensors, wanted | self._targets.keys()))
        self._kept: dict[str, Array] = {}  # targets of tied tensors
        self._tied: dict[str, list[str]] = {}  # tied tensors that precede their target
        self._half: dict[str, Array] = {}  # units of values and of bits that wait for each other
        self._count = 0

    def _wants(self, name: str) -> bool:
        return self._names is None or name in self._names

    def take(self, name: str, tensor: Array, label: str) -> list[Named]:
        """Return the model tensors that a unit tensor completes; ``label`` is the label of the unit.

        Raises
        ------
        ElementError
            Units contradict the record or each other.
        LimitError
            A tensor exceeds the limits.
        MissingDependencyError
            A type requires ``ml_dtypes``, which is not installed.
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
            raise LimitError("not enough memory for the tensor", unit=label) from None
        return out

    def finish(self) -> list[Named]:
        """Return the remaining tensors after the last unit: tensors without units."""
        try:
            return list(self._due(all_=True))
        except LimitError as error:
            locate(error, self._restoration.label)
            raise

    def _restored(self, record: TensorRecord | None, unit: Array, bits: Array | None) -> Array:
        dtype = self._restoration.dtype
        if record is None and (dtype in ("source", unit.dtype.name) or unit.dtype.kind != "f"):
            return unit
        of_type = record.type if record else unit.dtype.name
        to_type = self._restoration.decoded(of_type)
        shape = unit.shape if record is None or record.shape is None else record.shape
        self._charge(shape, of_type, to_type)
        if not unit.size:  # a range of rows may be empty
            return np.empty(shape, STORED_TYPES[to_type].dtype)
        if record and record.repeats is not None:
            self._budget.charge("max_decomp_elements", len(record.repeats.length) * TERM_OVERHEAD, "copies of items")
        if record and isinstance(record.code, DisplacementCode):
            unit, record = self._from_displacement(unit, shape, record.code.corner), replace(record, code=None)
        if record and to_type == of_type:
            return join(record, unit, bits, shape)
        floats: npt.NDArray[Any] = _floats(record, unit, bits, shape) if record else unit
        if floats.dtype.name == to_type:  # already while it was decoded
            return floats.reshape(shape)
        return cast_floats(floats.reshape(shape), STORED_TYPES[to_type].dtype)

    def _from_displacement(self, unit: Any, shape: tuple[int, ...], corner: int) -> Array:
        """Return the tensor for a displacement in a unit."""
        rows, size = shape[0], self._budget.tensor(shape, 8, "tensor computed from its displacement")
        self._budget.charge("max_decomp_elements", size + rows * TERM_OVERHEAD, "additions to displacements")
        with np.errstate(over="ignore", invalid="ignore"):  # overflow is rejected below
            found = from_displacement(unit.reshape(rows, -1), corner)
        if not np.isfinite(found).all():
            raise ElementError(
                "a value derived from a displacement by side information is not finite",
                rule=Requirement.SIDE_INFORMATION,
            )
        return found.reshape(shape)

    def _charge(self, shape: tuple[int, ...], *types: str) -> None:
        size = max(STORED_TYPES[name].itemsize for name in types)
        if 0 in shape and prod(extent for extent in shape if extent) * size > Limits.NONE:
            raise LimitError(f"the shape {shape} of an empty tensor exceeds the limit of numpy")
        self._budget.tensor(shape, size, "restored tensor")

    # ------------------------------------------------------------------------------------------ order
    def _given(self, name: str, tensor: Array) -> Iterator[Named]:
        """Yield a tensor, and the waiting tensors tied to it."""
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
        """Yield the tensors without units that are next in order, or all of them."""
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
    """Return a float tensor in a numpy type that represents it exactly, without ``ml_dtypes``.

    Without a code, values are not rounded to the tensor's type here.
    """
    stored = record.stored
    if record.code is None:
        return unit
    patterns = join_patterns(record, unit, bits, shape)
    return patterns.view(stored.dtype) if stored.is_numpys else float32_of(stored, patterns)
