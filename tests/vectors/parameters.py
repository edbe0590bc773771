"""NNR-SYN-027 on: optional parts of parameter sets, performance maps and their scope, aggregates (6.2.3, 6.4.3.8)."""

from __future__ import annotations

from nnr_codec.bitstream.performance import (
    DecompositionMap,
    DecompositionRow,
    Performance,
    PerformanceMaps,
    PruningMap,
    PruningRow,
    SparsificationMap,
    SparsificationRow,
    UnificationMap,
    UnificationRow,
)
from nnr_codec.constants import NNR_AGG_SLF, NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.syntax.structures import DecompositionPerformanceMap, SparsificationPerformanceMap

from ..builder import aggregate, ndu
from .arithmetic import chosen, floats
from .bits import f4
from .case import Content, acceptable, valid
from .stream import Stream

#: Rows with and without accuracies of classes; masks of one byte and of three.
SPARSIFICATION = SparsificationMap(
    (SparsificationRow(0.5, 0.25, 0.75, 0b1001, (0.5, 1.0)), SparsificationRow(0.125, 0.5, 0.625))
)
PRUNING = PruningMap((PruningRow(0.5, 0.75, 1 << 20, (0.25,)), PruningRow(0.25, 0.875, 3, (0.5, 0.75))))
UNIFICATION = UnificationMap(
    (
        UnificationRow(0.5, 1.0, (64, 9, 300), (64, 64, 9), (2, 2, 2), 0b11, (0.5, 0.25)),
        UnificationRow(0.25, 0.5, (), (), ()),
        UnificationRow(0.125, 0.5, None, None, None),
    )
)
DECOMPOSITION = DecompositionMap(
    (DecompositionRow(0.5, 0.75, 0.25, (0.5, 0.25) * 150), DecompositionRow(1.0, 0.5, 0.125))
)


def model(performance: Performance) -> Stream:
    """Return a stream with NNR_STR and NNR_MPS."""
    s = Stream()
    s.str_()
    return s.parameters(**performance.elements())


W = [1, -2, 3]


# ------------------------------------------------------------------------------------------------ parameter sets
@valid(
    "NNR-SYN-027",
    "performance maps of the model and of layers",
    "6.3.4.3 6.3.4.4 6.4.4.3 6.4.4.4",
    "performance_maps NNR_LPS",
)
def maps_of_layers() -> Content:
    s = model(Performance(maps=PerformanceMaps(SPARSIFICATION, PRUNING, UNIFICATION, DECOMPOSITION)))
    s.ndu(ndu("model", [3]), W, qp=1)
    s.lps(3, -8, **PerformanceMaps(SPARSIFICATION, PRUNING).elements("lps")).ndu(ndu("one", [3]), W)
    s.lps(methods=0, **PerformanceMaps(unification=UNIFICATION).elements("lps")).ndu(ndu("two", [3]), W)
    s.lps(1, 4).ndu(ndu("three", [3]), W)
    return s.gives({"model": floats(W, 1), "one": floats(W, -8, 3), "two": floats(W), "three": floats(W, 4, 1)})


for number, (title, features, performance) in enumerate(
    [
        (
            "a base_model_id, and performance maps without rows that use performance_metric_type",
            "base_model_id metric_type_performance_map_valid_flag performance_maps",
            Performance(
                "größe/重み",
                "top-5",
                True,
                maps=PerformanceMaps(SparsificationMap(), PruningMap(), UnificationMap(), DecompositionMap()),
            ),
        ),
        (
            "a validation result with its metric",
            "validation_set_performance performance_metric_type",
            Performance(performance_metric_type="F1", validation_set_performance=0.625),
        ),
        (
            "all optional parts of the model parameter set",
            "base_model_id validation_set_performance performance_metric_type performance_maps",
            Performance("", "", True, -1.5, PerformanceMaps(decomposition=DECOMPOSITION)),
        ),
    ],
    28,
):

    @valid(f"NNR-SYN-{number:03}", title, "6.3.4.3 6.4.4.3", features)
    def optional_parts(performance: Performance = performance) -> Content:
        s = model(performance)
        s.ndu(ndu("w", [3]), W, qp=5)
        return s.gives({"w": floats(W, 5)})


#: The maximum number of rows, and a mask of 32 classes.
LONGEST = PerformanceMaps(
    SparsificationMap(tuple(SparsificationRow(k / 256, 1 - k / 256, 0.5) for k in range(254))),
    PruningMap((PruningRow(0.0, 0.5, (1 << 32) - 1, (0.5,) * 31 + (1.0,)), PruningRow(0.25, 0.25, 1 << 31, (0.125,)))),
    UnificationMap((UnificationRow(0.5, 1.0, (), (64, 64), (2, 2, 2)),)),
)


@valid(
    "NNR-SYN-057",
    "performance maps with 254 rows, with a mask of 32 classes, and with two-dimensional superblocks",
    "6.3.4.3 6.4.4.3",
    "performance_maps spm_count_thresholds=255 ppm_class_bitmask",
)
def longest_maps() -> Content:
    s = model(Performance(maps=LONGEST))
    s.ndu(ndu("w", [3]), W, qp=5)
    return s.gives({"w": floats(W, 5)})


@acceptable(
    "NNR-ACC-017",
    "performance maps with 0 thresholds",
    "6.4.4.3",
    "spm_count_thresholds=0 dpm_count_thresholds=0",
    requirements="map-counts",
)
def no_thresholds() -> Content:
    s = Stream()
    s.str_()
    s.parameters(
        mps_sparsification_flag=1,
        sparsification=SparsificationPerformanceMap(spm_count_thresholds=0),
        mps_decomposition_performance_map_flag=1,
        decomposition=DecompositionPerformanceMap(dpm_count_thresholds=0),
    )
    s.ndu(ndu("w", [3]), W, qp=5)
    return s.gives({"w": floats(W, 5)})


# ------------------------------------------------------------------------------------------------ scope
@valid(
    "NNR-QNT-032",
    "a nested aggregate with a layer parameter set: after it, the model parameter set applies",
    "6.2.3 6.4.4.4",
    "NNR_LPS NNR_AGG nested",
)
def nested_layers() -> Content:
    s = Stream().start(density=1, parameter=2)
    s.lps(3, -8).ndu(ndu("outer", [3]), W)
    s.lps(0, 5).ndu(ndu("inner", [3]), W).aggregate(4)
    s.ndu(ndu("after", [3]), W).aggregate(2).ndu(ndu("model", [3]), W)
    return s.gives(
        {"outer": floats(W, -8, 3), "inner": floats(W, 5, 0), "after": floats(W, 2, 1), "model": floats(W, 2, 1)}
    )


# The standard does not state whether an LPS applies inside a later aggregate (6.2.3).
@acceptable(
    "NNR-ACC-018",
    "a layer parameter set before an aggregate applies in the aggregate and after it",
    "6.2.3 6.4.4.4",
    "NNR_LPS NNR_AGG",
)
def layer_around() -> Content:
    s = Stream().start(density=1, parameter=2)
    s.lps(3, -8).ndu(ndu("a", [3]), W).ndu(ndu("b", [3]), W).aggregate(3)
    s.ndu(ndu("c", [3]), W)
    return s.gives({name: floats(W, -8, 3) for name in "abc"})


# ------------------------------------------------------------------------------------------------ aggregates
@valid(
    "NNR-SYN-031",
    "entry points of aggregates in an aggregate are relative to the aggregate that lists them",
    "6.3.3.8 6.4.3.8",
    "NNR_AGG entry_points_present_flag nested",
)
def nested_entry_points() -> Content:
    s, values = Stream().start(), {}
    for k, name in enumerate("abcdef"):
        values[name] = chosen([2, 3], 4, k + 1)
        s.ndu(ndu(name, [2, 3], kind=NNR_PT_INT), values[name])
    inner = [aggregate(s.units[k : k + 2], entry_points=True) for k in (2, 4)]
    s.units[2:] = [aggregate([*inner, *s.units[6:]], entry_points=True)]
    return s.gives(values)


@valid(
    "NNR-SYN-032",
    "self-contained aggregates with their own reference lists and parameter sets",
    "6.2.3 6.4.3.4 6.4.3.8",
    "NNR_AGG_SLF NNR_LPS lps_self_contained_flag=1 NNR_TPL_REFLIST",
)
def self_contained() -> Content:
    s = Stream().start(indexed=1)
    for names, parameter in ((("a", "b"), 4), (("c", "d"), -4)):
        first = len(s.units)
        s.lps(2, parameter, alone=1).reference_list(*names).ndu(ndu(1, [3]), W).ndu(ndu(0, [3]), W, qp=1)
        s.aggregate(first, kind=NNR_AGG_SLF, entry_points=True)
    return s.gives({"b": floats(W, 4), "a": floats(W, 5), "d": floats(W, -4), "c": floats(W, -3)})


@valid(
    "NNR-SYN-059",
    "self-contained aggregates in a self-contained aggregate, each with entry points, a parameter set and maps",
    "6.2.3 6.3.3.8 6.3.4.4 6.4.3.8",
    "NNR_AGG_SLF entry_points_present_flag nested NNR_LPS lps_self_contained_flag=1 performance_maps",
)
def nested_self_contained() -> Content:
    s, values = Stream().start(density=1, parameter=2), {}
    s.lps(3, -8, alone=1, **PerformanceMaps(SPARSIFICATION, PRUNING).elements("lps"))
    for part, density, parameter, maps in (
        ("one", 2, 4, PerformanceMaps(unification=UNIFICATION)),
        ("two", 0, 5, PerformanceMaps(SPARSIFICATION)),
    ):
        first = len(s.units)
        s.lps(density, parameter, alone=1, **maps.elements("lps"))
        for qp, name in enumerate((f"{part}/a", f"{part}/b")):
            levels = chosen([3, 4], 5, parameter + qp)
            values[name] = floats(levels, parameter + qp, density)
            s.ndu(ndu(name, [3, 4]), levels, qp=qp)
        s.aggregate(first, kind=NNR_AGG_SLF, entry_points=True)
    s.aggregate(2, kind=NNR_AGG_SLF, entry_points=True).ndu(ndu("rest", [3]), W)
    return s.gives({**values, "rest": floats(W, 2, 1)})


@valid(
    "NNR-SYN-033",
    "quant_bitdepth and ctu_scan_order of models and layers with unified weights",
    "6.3.3.8 6.4.3.8",
    "quant_bitdepth ctu_scan_order mps_unification_flag lps_unification_flag",
)
def unified() -> Content:
    maps = PerformanceMaps(unification=UNIFICATION)
    s = Stream().start()
    s.lps(methods=0, **maps.elements("lps"))
    s.ndu(ndu("a", [3]), W).ndu(ndu("b", [3]), W).aggregate(3, quant_bitdepth=[3, 31], ctu_scan_order=[1, 0])
    s.lps(methods=0)
    s.ndu(ndu("c", [3]), W).ndu(ndu("d", [3]), W).aggregate(5, quant_bitdepth=[1, 2])
    return s.gives({name: floats(W) for name in "abcd"})


@valid(
    "NNR-SYN-043",
    "ctu_scan_order of a model with unified weights",
    "6.3.3.8 6.4.3.8",
    "ctu_scan_order mps_unification_flag",
)
def unified_model() -> Content:
    s = model(Performance(maps=PerformanceMaps(unification=UNIFICATION)))
    s.ndu(ndu("a", [3]), W).ndu(ndu("b", [3]), W).aggregate(2, ctu_scan_order=[1, 1], kind=NNR_AGG_SLF)
    return s.gives({"a": floats(W), "b": floats(W)})


# ------------------------------------------------------------------------------------------------ units
@acceptable(
    "NNR-ACC-019",
    "a unit of each reserved and unspecified type, with short and long nnr_unit_size",
    "6.3.2 6.4.3.1",
    "NNR_RSVD NNR_UNSP nnr_unit_size_flag",
    requirements="unit-type",
)
def other_types() -> Content:
    s = Stream().start(methods=0)
    for kind in range(7, 64):
        size = b"\x80\x00\x00\x06" if kind % 2 else b"\x00\x04"
        s.add(size + bytes([kind << 2 | 2, kind]))
    s.raw(ndu("w", [2], kind=NNR_PT_RAW_FLOAT), [1, 2])
    return s.gives({"w": f4(1, 2)})


@valid("NNR-SYN-044", "a tensor in two parts, one of which is empty", "6.4.3.1 7.3.4", "partial_data_counter=2")
def two_parts() -> Content:
    header = ndu("w", [2], kind=NNR_PT_RAW_FLOAT)
    s = Stream().start(methods=0)
    s.part(header, 2, f4(1, 2).tobytes()).part(header, 1, b"")
    return s.gives({"w": f4(1, 2)})


@valid("NNR-SYN-045", "an arithmetic code string in 255 parts", "6.4.3.1 7.3.3", "partial_data_counter=255")
def many_parts() -> Content:
    levels = chosen([20, 30], 20)
    s = Stream().start()
    s.ndu(ndu("w", [20, 30]), levels, qp=-7, pieces=255).ndu(ndu("after", [3]), W)
    return s.gives({"w": floats(levels, -7), "after": floats(W)})
