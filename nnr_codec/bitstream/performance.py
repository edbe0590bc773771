"""Performance statements of parameter sets: four performance maps, the base model, a validation result.

Maps are plain objects that convert from and to the structures of 6.3.4.3 without loss: ``Map.of(structure)`` and
``map.structure()``. Accuracies are rounded to float32 only when they are written. Clause numbers refer to ISO/IEC
15938-17:2024.

>>> row = SparsificationRow(0.5, 0.25, 0.75, class_bitmask=0b101, class_accuracies=(1.0, 0.5))
>>> row.by_class(3)
{0: 1.0, 2: 0.5}
>>> SparsificationMap.of(SparsificationMap((row,)).structure()).rows == (row,)
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from ..errors import ElementError, WriteError
from ..rules import Requirement
from ..syntax import Session, Structure
from ..syntax.structures import (
    DecompositionPerformanceMap,
    NnrLayerParameterSetUnitPayload,
    NnrModelParameterSetUnitPayload,
    PruningPerformanceMap,
    SparsificationPerformanceMap,
    UnificationPerformanceMap,
)

Numbers = tuple[float, ...]
Dimensions = tuple[int, ...] | None


def _coded(element: str, *, count: str = "", surplus: int = 0) -> dict[str, Any]:
    """Describe the syntax element of a row field; ``count`` is the element with its number of entries plus
    ``surplus``."""
    return {"element": element, "count": count, "surplus": surplus}


class _ClassMask:
    """Row whose accuracies belong to the classes in a bit mask."""

    class_bitmask: int
    class_accuracies: Numbers

    def by_class(self, classes: int) -> dict[int, float]:
        """Return the accuracies by class index. Raise ElementError if the mask does not match them or ``classes``.

        The most significant bit stands for the first of the network's ``classes``. Their number is a parameter because
        the bitstream does not contain it and codes the mask without leading zeros.
        """
        marked = [k for k in range(classes) if self.class_bitmask >> (classes - 1 - k) & 1]
        if self.class_bitmask >> classes or len(marked) != len(self.class_accuracies):
            raise ElementError(
                f"class bit mask {self.class_bitmask:#b} does not mark {len(self.class_accuracies)} of {classes} "
                "classes",
                clause="6.4.4.3",
            )
        return dict(zip(marked, self.class_accuracies, strict=True))


@dataclass(frozen=True)
class SparsificationRow(_ClassMask):
    """Share of nonzero weights, and accuracies, with a sparsification threshold."""

    threshold: float = field(metadata=_coded("sparsification_threshold"))
    non_zero_ratio: float = field(metadata=_coded("non_zero_ratio"))
    nn_accuracy: float = field(metadata=_coded("spm_nn_accuracy"))
    class_bitmask: int = field(default=0, metadata=_coded("spm_class_bitmask"))
    class_accuracies: Numbers = field(default=(), metadata=_coded("spm_nn_class_accuracy", count="spm_count_classes"))


@dataclass(frozen=True)
class PruningRow(_ClassMask):
    """Accuracies with a pruning ratio."""

    pruning_ratio: float = field(metadata=_coded("pruning_ratio"))
    nn_accuracy: float = field(metadata=_coded("ppm_nn_accuracy"))
    class_bitmask: int = field(default=0, metadata=_coded("ppm_class_bitmask"))
    class_accuracies: Numbers = field(default=(), metadata=_coded("ppm_nn_class_accuracy", count="ppm_count_classes"))


@dataclass(frozen=True)
class UnificationRow(_ClassMask):
    """Accuracies with weights unified in blocks; dimensions are None if their count is 0 (errata I16)."""

    threshold: float = field(metadata=_coded("unification_threshold"))
    nn_accuracy: float = field(metadata=_coded("upm_nn_accuracy"))
    reshaped_tensor_dimensions: Dimensions = field(
        default=(), metadata=_coded("reshaped_tensor_dimensions", count="count_resaped_tensor_dimension", surplus=1)
    )
    super_block_dimensions: Dimensions = field(
        default=(), metadata=_coded("super_block_dimensions", count="count_super_block_dimension", surplus=1)
    )
    block_dimensions: Dimensions = field(
        default=(), metadata=_coded("block_dimensions", count="count_block_dimension", surplus=1)
    )
    class_bitmask: int = field(default=0, metadata=_coded("upm_class_bitmask"))
    class_accuracies: Numbers = field(default=(), metadata=_coded("upm_nn_class_accuracy", count="upm_count_classes"))


@dataclass(frozen=True)
class DecompositionRow:
    """Share of remaining parameters, and accuracies, at a mean square error of decomposed tensors."""

    mse_threshold: float = field(metadata=_coded("mse_threshold"))
    nn_accuracy: float = field(metadata=_coded("dpm_nn_accuracy"))
    nn_reduction_ratio: float = field(metadata=_coded("nn_reduction_ratio"))
    class_accuracies: Numbers = field(default=(), metadata=_coded("dpm_nn_class_accuracy", count="dpm_count_classes"))


@dataclass(frozen=True)
class _Map:
    """Table of rows; the count in its structure is one higher than the number of rows (errata I16)."""

    rows: tuple[Any, ...] = ()

    _row: ClassVar[type[Any]]
    _structure: ClassVar[type[Structure]]
    _count: ClassVar[str]

    @classmethod
    def of(cls, structure: Structure) -> Self:
        """Return the map of a structure. Raise ElementError if its count is 0 (6.4.4.3) or does not match its lists."""
        count = getattr(structure, cls._count)
        if count < 1:
            raise ElementError(f"{cls._count} is 0, but must be greater", clause="6.4.4.3", rule=Requirement.MAP_COUNTS)
        columns = {member.name: _column(structure, member, count - 1) for member in fields(cls._row)}
        return cls(tuple(cls._row(**{name: column[k] for name, column in columns.items()}) for k in range(count - 1)))

    def structure(self) -> Structure:
        """Return the structure that carries the map."""
        elements: dict[str, Any] = {}
        for member in fields(self._row):
            about, values = member.metadata, [getattr(row, member.name) for row in self.rows]
            if about["count"]:
                elements[about["count"]] = [0 if value is None else len(value) + about["surplus"] for value in values]
                values = [list(value or ()) for value in values]
                while values and not values[-1]:  # a reader drops trailing empty lists
                    values.pop()
            elements[about["element"]] = values
        present = {name: values for name, values in elements.items() if values}
        return self._structure(**{self._count: len(self.rows) + 1}, **present)


def _column(structure: Structure, member: Field[Any], rows: int) -> list[Any]:
    """Return the values of one field in all rows."""
    name, about = member.metadata["element"], member.metadata
    values = list(getattr(structure, name))
    if not about["count"]:
        counts, sizes = [0] * rows, [0] * len(values)
    else:
        counts = list(getattr(structure, about["count"]))
        values += [[]] * (len(counts) - len(values))
        sizes = [len(value) for value in values]
    wanted = [max(count - about["surplus"], 0) for count in counts]
    if len(wanted) != rows or sizes != wanted:
        has: int | list[int]
        required: int | list[int]
        has, required = (len(wanted), rows) if len(wanted) != rows else (len(sizes), len(wanted))
        if has == required:
            has, required = sizes, wanted
        raise ElementError(
            f"{name} has {has} entries in {structure.table_name}(); {required} are required", clause="6.3.4.3"
        )
    if not about["count"]:
        return values
    return [tuple(value) if count >= about["surplus"] else None for count, value in zip(counts, values, strict=True)]


@dataclass(frozen=True)
class SparsificationMap(_Map):
    """sparsification_performance_map(), 6.4.4.3."""

    rows: tuple[SparsificationRow, ...] = ()
    _row, _structure, _count = SparsificationRow, SparsificationPerformanceMap, "spm_count_thresholds"


@dataclass(frozen=True)
class PruningMap(_Map):
    """pruning_performance_map(), 6.4.4.3."""

    rows: tuple[PruningRow, ...] = ()
    _row, _structure, _count = PruningRow, PruningPerformanceMap, "ppm_count_pruning_ratios"


@dataclass(frozen=True)
class UnificationMap(_Map):
    """unification_performance_map(), 6.4.4.3."""

    rows: tuple[UnificationRow, ...] = ()
    _row, _structure, _count = UnificationRow, UnificationPerformanceMap, "upm_count_thresholds"


@dataclass(frozen=True)
class DecompositionMap(_Map):
    """decomposition_performance_map(), 6.4.4.3."""

    rows: tuple[DecompositionRow, ...] = ()
    _row, _structure, _count = DecompositionRow, DecompositionPerformanceMap, "dpm_count_thresholds"


@dataclass(frozen=True)
class PerformanceMaps:
    """Performance maps of one parameter set; None for an absent map."""

    sparsification: SparsificationMap | None = None
    pruning: PruningMap | None = None
    unification: UnificationMap | None = None
    decomposition: DecompositionMap | None = None

    @classmethod
    def of(cls, payload: NnrModelParameterSetUnitPayload | NnrLayerParameterSetUnitPayload | None) -> PerformanceMaps:
        """Return the maps of a model or layer parameter set, no maps for None.

        Raises ElementError for an invalid map.
        """
        tables: dict[str, Any] = {
            name: kind.of(getattr(payload, name)) for name, kind in MAPS.items() if payload and name in payload
        }
        return cls(**tables)

    def noting(self, kind: str) -> PerformanceMaps:
        """Return a copy in which an applied kind of reduction has a map, without rows if it had none."""
        applied: dict[str, Any] = {kind: getattr(self, kind) or MAPS[kind]()}
        return replace(self, **applied)

    def elements(self, prefix: str) -> dict[str, Any]:
        """Return the syntax elements, including flags, for a parameter set; ``prefix`` is ``mps`` or ``lps``.

        Raises WriteError for a decomposition map in a layer parameter set, whose syntax has none.
        """
        if self.decomposition and prefix == "lps":
            raise WriteError("a layer parameter set has no decomposition performance map (6.3.4.4)")
        elements: dict[str, Any] = {}
        for name in MAPS:
            if (table := getattr(self, name)) is not None:
                flag = f"{name}_performance_map" if name == "decomposition" else name
                elements |= {f"{prefix}_{flag}_flag": 1, name: table.structure()}
        return elements


#: Map classes by kind.
MAPS: dict[str, type[_Map]] = {
    "sparsification": SparsificationMap,
    "pruning": PruningMap,
    "unification": UnificationMap,
    "decomposition": DecompositionMap,
}


def maps_for(session: Session, *, layer: bool = False) -> PerformanceMaps:
    """Return the maps that apply at the current unit, 6.4.4.4.

    Parameters
    ----------
    session : Session
    layer : bool
        True: for an operation on one layer, return the maps of its active layer parameter set. False: for an operation
        on the whole model, return the maps of the model parameter set, even if layers have their own.
    """
    return PerformanceMaps.of(session.lps if layer else session.mps)


@dataclass(frozen=True)
class Performance:
    """Performance statements of the model parameter set about the whole model, 6.4.4.3.

    Parameters
    ----------
    base_model_id : str or None
        Base model of the bitstream, in an application-defined form.
    performance_metric_type : str or None
        Metric of ``validation_set_performance`` (Annex F).
    metric_type_performance_map_valid_flag : bool
        Whether the performance maps use the same metric.
    validation_set_performance : float or None
        Performance of the model on a validation set.
    maps : PerformanceMaps
        Maps for operations on the whole model.
    layers : mapping of str to PerformanceMaps
        Maps for operations on the tensors of a part or layer, by its name (options ``parts`` and
        ``layer_parameter_sets``). They are written into its layer parameter set (6.4.4.4). For a bitstream,
        :meth:`NnrFile.performance_of` returns them, and this field is empty.
    """

    base_model_id: str | None = None
    performance_metric_type: str | None = None
    metric_type_performance_map_valid_flag: bool = False
    validation_set_performance: float | None = None
    maps: PerformanceMaps = PerformanceMaps()
    layers: Mapping[str, PerformanceMaps] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, payload: NnrModelParameterSetUnitPayload | None) -> Performance:
        """Return the statements of a model parameter set, empty for None. Raise ElementError for an invalid map."""
        if payload is None:
            return cls()
        optional = ("base_model_id", "performance_metric_type", "validation_set_performance")
        return cls(
            **{name: getattr(payload, name) for name in optional if name in payload},
            metric_type_performance_map_valid_flag=bool(payload.metric_type_performance_map_valid_flag),
            maps=PerformanceMaps.of(payload),
        )

    def elements(self) -> dict[str, Any]:
        """Return the syntax elements of a model parameter set, including flags; all but ``maps`` require profile 1.

        Raises WriteError for a metric without a result or map, or a result without its metric (6.3.4.3).
        """
        measured = self.validation_set_performance is not None
        valid = self.metric_type_performance_map_valid_flag
        if (self.performance_metric_type is not None) != (measured or valid):
            raise WriteError(
                "performance_metric_type requires validation_set_performance or "
                "metric_type_performance_map_valid_flag (6.3.4.3)"
            )
        elements = self.maps.elements("mps")
        if self.base_model_id is not None:
            elements |= {"base_model_id_present_flag": 1, "base_model_id": self.base_model_id}
        if self.performance_metric_type is not None:
            elements["performance_metric_type"] = self.performance_metric_type
        if valid:
            elements["metric_type_performance_map_valid_flag"] = 1
        if measured:
            elements["validation_set_performance_present_flag"] = 1
            elements["validation_set_performance"] = self.validation_set_performance
        return elements
