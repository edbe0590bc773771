"""Limits on the resources that a bitstream or model file may use, and the budget that is charged before each use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar

from .errors import FormatError, LimitError


@dataclass(frozen=True)
class Limits:
    """Upper bounds on allocations and loops caused by untrusted input.

    Sizes are in bytes; all other limits are counts. The presets are :meth:`strict`, ``Limits()`` and :meth:`unlimited`.

    Parameters
    ----------
    max_unit_bytes, max_units, max_agg_depth : int
        Size of one unit; number of units of a bitstream; nesting depth of aggregates.
    max_eg_bits, max_name_bytes, max_names : int
        Bits of an Exp-Golomb code after its prefix; bytes of a string; total entries of all lists in headers.
    max_dims, max_tensor_elements, max_tensor_bytes, max_total_bytes : int
        Number of dimensions, elements and bytes of one tensor; total size of all tensors of a bitstream or model.
    max_topology_bytes, max_codebook : int
        Inflated topology and quantization data, and files in a compressed archive other than tensors that inflate to
        more than 32 times the archive; entries of a codebook.
    max_side_info_bytes : int
        Size of the inflated side-information record.
    max_attachment_bytes, max_attachments : int
        Total size of the inflated attachments; their number.
    max_pending_bytes, max_history_bytes : int
        Parts of tensors that wait for the remaining parts; contents of an UpdateState.
    max_decomp_elements : int
        Total multiplications for decomposed tensors, additions for displacements in side information, and 2048 for each
        run of copied items.
    max_archive_bytes : int
        Total size of all members of a model archive.
    allow_trailing : bool
        Whether another bitstream may follow; it is ignored.
    expected : mapping of str to ndarray, or to (shape, dtype)
        The only tensors that a bitstream may contain, with their shapes and dtypes. This is the strongest limit if they
        are known, as for an update of a known model. The tensors of the model can be passed directly.
    expected_kinds : bool
        Whether the bitstream has updates of the expected tensors. Both dtypes must then be floats, or neither of them,
        and a tensor of one element matches a scalar.
    """

    max_unit_bytes: int = (1 << 31) - 1
    max_units: int = 1_000_000
    max_agg_depth: int = 4
    max_eg_bits: int = 32
    max_name_bytes: int = 4096
    max_names: int = 10_000_000
    max_dims: int = 32
    max_tensor_elements: int = 1 << 31
    max_tensor_bytes: int = 8 << 30
    max_total_bytes: int = 32 << 30
    max_topology_bytes: int = 64 << 20
    max_codebook: int = 65_536
    max_side_info_bytes: int = 16 << 20
    max_attachment_bytes: int = 256 << 20
    max_attachments: int = 1000
    max_pending_bytes: int = 2 << 30
    max_history_bytes: int = 1 << 30
    max_decomp_elements: int = 1 << 31
    max_archive_bytes: int = 64 << 30
    allow_trailing: bool = False
    expected: Mapping[str, Any] | None = None
    expected_kinds: bool = False

    #: Larger than any allocation.
    NONE: ClassVar[int] = (1 << 63) - 1

    def __post_init__(self) -> None:
        if self.max_dims > 32:
            raise ValueError("max_dims must be at most 32, the limit of numpy")
        if self.expected is not None:
            schema = {name: _schema(tensor) for name, tensor in self.expected.items()}
            object.__setattr__(self, "expected", MappingProxyType(schema))

    def __reduce__(self) -> tuple[Any, ...]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return _limits, (values | {"expected": None if self.expected is None else dict(self.expected)},)

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the numeric limits."""
        return [limit.name for limit in fields(cls) if limit.type == "int"]

    @classmethod
    def strict(cls) -> Limits:
        """Return limits for untrusted input: a few seconds of work and a few hundred megabytes at most."""
        return cls(
            max_unit_bytes=64 << 20,
            max_units=10_000,
            max_names=100_000,
            max_tensor_elements=16 << 20,
            max_tensor_bytes=64 << 20,
            max_total_bytes=256 << 20,
            max_topology_bytes=1 << 17,
            max_codebook=4096,
            max_side_info_bytes=1 << 20,
            max_attachment_bytes=32 << 20,
            max_attachments=100,
            max_pending_bytes=64 << 20,
            max_history_bytes=64 << 20,
            max_decomp_elements=256 << 20,
            max_archive_bytes=256 << 20,
        )

    @classmethod
    def unlimited(cls) -> Limits:
        """Return limits for trusted input, bounded only by the machine and the code."""
        n = cls.NONE
        return cls(
            max_units=n,
            max_agg_depth=64,
            max_name_bytes=n,
            max_names=n,
            max_tensor_elements=1 << 55,
            max_tensor_bytes=n,
            max_total_bytes=n,
            max_topology_bytes=n,
            max_codebook=n,
            max_side_info_bytes=n,
            max_attachment_bytes=n,
            max_attachments=n,
            max_pending_bytes=n,
            max_history_bytes=n,
            max_decomp_elements=n,
            max_archive_bytes=n,
        )

    def check(self, name: str, value: int, what: str, unit: str = "") -> None:
        """Raise LimitError if ``value`` (of ``what``, in a unit) exceeds the limit called ``name``."""
        limit: int = getattr(self, name)
        if value > limit:
            raise LimitError(
                f"{what}: {value:,} is more than {name}={limit:,}",
                option=name,
                hint="raise the limit if the source is trusted",
                unit=unit,
            )

    def check_expected(
        self, name: str, shape: tuple[int, ...] | None = None, dtype: str = "", *, is_bits: bool = False
    ) -> None:
        """Raise LimitError if ``expected`` has no such tensor; without a shape, only the name is checked.

        ``is_bits``: the integers are differences of bit patterns of floats.
        """
        if self.expected is None:
            return
        if name not in self.expected:
            raise LimitError(f"tensor {name!r} is not one of the {len(self.expected)} expected tensors", tensor=name)
        if shape is not None and not self._fits(self.expected[name], shape, dtype, is_bits):
            wanted, kind = self.expected[name]
            raise LimitError(f"tensor {name!r} is {dtype} {shape}; expected {kind} {wanted}", tensor=name)

    def _fits(self, wanted: tuple[tuple[int, ...], str], shape: tuple[int, ...], dtype: str, is_bits: bool) -> bool:
        if not self.expected_kinds:
            return wanted == (shape, dtype)
        from .dtypes import STORED_TYPES

        is_float, wants_float = (STORED_TYPES[name].kind == "f" for name in (dtype, wanted[1]))
        same_kind = is_float == wants_float or (is_bits and wants_float)
        return same_kind and (shape or (1,)) == (wanted[0] or (1,))


def _limits(values: dict[str, Any]) -> Limits:
    """Return limits from pickled values."""
    return Limits(**values)


def _schema(tensor: Any) -> tuple[tuple[int, ...], str]:
    """Return the shape and the numpy name of the dtype, which may belong to another framework."""
    import numpy as np

    from .dtypes import STORED_TYPES

    shape, dtype = (tensor.shape, tensor.dtype) if hasattr(tensor, "shape") else tensor
    name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype)).rpartition(".")[2]
    name = name if name in STORED_TYPES else np.dtype(name).name
    if name not in STORED_TYPES:
        raise ValueError(f"tensors of type {name} are not supported, so they cannot be expected")
    return tuple(int(extent) for extent in shape), name


class Budget:
    """Resources used so far, checked against :class:`Limits`; one for each bitstream or model that is read."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.spent: dict[str, int] = {}

    def charge(self, name: str, amount: int, what: str) -> None:
        """Add ``amount`` to the use of limit ``name``; raise LimitError before the limit is exceeded."""
        total = self.spent.get(name, 0) + amount
        if total > getattr(self.limits, name):
            self.limits.check(name, total, what)
        self.spent[name] = total

    def tensor(self, shape: tuple[int, ...], itemsize: int, what: str) -> int:
        """Charge a tensor before it is allocated; return its number of elements.

        Raises FormatError for an empty tensor whose other extents are too large for an array, LimitError for exceeded
        limits.
        """
        limits, elements = self.limits, prod(shape)
        if not elements and prod(filter(None, shape)) * itemsize > limits.NONE:  # numpy treats an extent of 0 as 1 here
            raise FormatError(f"shape {shape} exceeds the largest possible array", where=what)
        if len(shape) > limits.max_dims:  # checked inline: this runs for every tensor
            self.limits.check("max_dims", len(shape), f"{what}: number of dimensions")
        if elements > limits.max_tensor_elements:
            self.limits.check("max_tensor_elements", elements, f"{what}: number of elements")
        if elements * itemsize > limits.max_tensor_bytes:
            self.limits.check("max_tensor_bytes", elements * itemsize, f"{what}: bytes of the tensor")
        self.charge("max_total_bytes", elements * itemsize, f"{what}: bytes of all tensors")
        return elements
