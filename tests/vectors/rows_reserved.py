"""NNR-ACC-211 on: reserved and unspecified values that a decoder may ignore (docs/reference/coverage.md)."""

from __future__ import annotations

from nnr_codec.constants import NNR_PT_RAW_FLOAT, NNR_TPL_ONNX
from nnr_codec.syntax.structures import PruningPerformanceMap, UnificationPerformanceMap

from ..builder import aggregate, ndu
from .arithmetic import floats
from .bits import f4
from .case import Content, acceptable
from .negative_units import HEAD, raw_named
from .pruning import container, pruned
from .stream import Stream

#: Bytes of an aggregate before its first unit: size, type, aggregate type, flag and reserved bits, count, bit depths.
FIRST = 2 + 1 + 1 + 1 + 2 + 2


def changed(unit: bytes, at: int, bits: int) -> bytes:
    """Return a unit with these bits set in one of its bytes."""
    out = bytearray(unit)
    out[at] |= bits
    return bytes(out)


@acceptable(
    "NNR-ACC-211",
    "nonzero reserved bits in an aggregate and its entries",
    "6.1.4 6.3.3.8",
    "NNR_AGG nnr_reserved_zero_7bits nnr_reserved_zero_3bits",
    requirements="reserved-zero",
)
def aggregate_bits() -> Content:
    unit = changed(aggregate([raw_named("a"), raw_named("b")]), 4, 0x7F)
    return Content(HEAD + changed(unit, FIRST - 1, 0x05), {"a": f4(1), "b": f4(1)})


@acceptable(
    "NNR-ACC-212",
    "nonzero reserved bits in the entries of an aggregate with unified tensors",
    "6.1.4 6.3.3.8",
    "NNR_AGG nnr_reserved_zero_2bits mps_unification_flag",
    requirements="reserved-zero",
)
def unified_aggregate_bits() -> Content:
    s = Stream()
    s.str_()
    s.parameters(mps_unification_flag=1, unification=UnificationPerformanceMap(upm_count_thresholds=1))
    for name in "ab":
        s.raw(ndu(name, [1], kind=NNR_PT_RAW_FLOAT), [1])
    s.aggregate(2)
    s.add(changed(s.units.pop(), FIRST - 1, 0x03))
    return s.gives({"a": f4(1), "b": f4(1)})


@acceptable(
    "NNR-ACC-213",
    "nonzero reserved bits in pruning information",
    "6.1.4 6.3.4.5",
    "NNR_TPL_PRUN nnr_reserved_zero_3bits",
    requirements="reserved-zero",
)
def pruning_bits() -> Content:
    s = Stream().start(methods=0)
    t = container(sparse=[1, 0])
    t.nnr_reserved_zero_3bits = 5
    pruned(s, t)
    s.raw(ndu("w", [2, 1], kind=NNR_PT_RAW_FLOAT), [1, 0])
    return s.gives({"w": f4(1, 0).reshape(2, 1)})


@acceptable(
    "NNR-ACC-214",
    "pruning and unification performance maps with counts of 0",
    "6.4.4.3",
    "ppm_count_pruning_ratios=0 upm_count_thresholds=0",
    requirements="map-counts",
)
def empty_maps() -> Content:
    s = Stream()
    s.str_()
    s.parameters(
        mps_pruning_flag=1,
        pruning=PruningPerformanceMap(ppm_count_pruning_ratios=0),
        mps_unification_flag=1,
        unification=UnificationPerformanceMap(upm_count_thresholds=0),
    )
    s.ndu(ndu("w", [2]), [1, -3])
    return s.gives({"w": floats([1, -3])})


@acceptable(
    "NNR-ACC-215",
    "a unification performance map with extents of 0, which have no meaning",
    "6.3.4.3",
    "reshaped_tensor_dimensions=0 super_block_dimensions=0 block_dimensions=0",
)
def no_extents() -> Content:
    unification = UnificationPerformanceMap(
        upm_count_thresholds=2,
        count_resaped_tensor_dimension=[2],
        reshaped_tensor_dimensions=[[0]],
        count_super_block_dimension=[2],
        super_block_dimensions=[[0]],
        count_block_dimension=[2],
        block_dimensions=[[0]],
        unification_threshold=[0.5],
        upm_nn_accuracy=[0.5],
        upm_count_classes=[0],
        upm_class_bitmask=[0],
    )
    s = Stream()
    s.str_()
    s.parameters(mps_unification_flag=1, unification=unification)
    s.ndu(ndu("w", [2]), [1, -3])
    return s.gives({"w": floats([1, -3])})


@acceptable(
    "NNR-ACC-216",
    "topologies with reserved storage formats 7 and 127",
    "6.4.3.5",
    "NNR_TPL_RSVD",
    requirements="topology-format",
)
def reserved_topologies() -> Content:
    s = Stream()
    s.str_()
    s.parameters(topology_carriage_flag=1).topology(b"x", storage=7).topology(b"y", storage=127)
    s.ndu(ndu("w", [2]), [1, -3])
    return s.gives({"w": floats([1, -3])})


@acceptable(
    "NNR-ACC-217",
    "quantization information with reserved storage formats 5 and 127",
    "6.4.3.6",
    "NNR_QNT_RSVD",
    requirements="quantization-format",
)
def reserved_quantization() -> Content:
    s = Stream().start()
    s.quantization(b"x", storage=5).quantization(b"y", storage=127).ndu(ndu("w", [2]), [1, -3])
    return s.gives({"w": floats([1, -3])})


@acceptable("NNR-ACC-218", "quantization information with an unspecified storage format", "6.4.3.6", "NNR_QNT_UNSP")
def unspecified_quantization() -> Content:
    s = Stream().start()
    s.quantization(b"x", storage=128).quantization(b"y", storage=255).ndu(ndu("w", [2]), [1, -3])
    return s.gives({"w": floats([1, -3])})


@acceptable("NNR-ACC-219", "an aggregate with an unspecified type", "6.4.3.8", "NNR_AGG nnr_aggregate_unit_type=128")
def unspecified_aggregate() -> Content:
    return Content(HEAD + aggregate([raw_named("a"), raw_named("b")], kind=128), {"a": f4(1), "b": f4(1)})


@acceptable(
    "NNR-ACC-220",
    "reserved bits in the quantization methods of the model and of a layer",
    "6.4.4.3 6.4.4.4",
    "mps_quantization_method_flags=5 lps_quantization_method_flags=5",
    requirements="quantization-methods",
)
def reserved_methods() -> Content:
    s = Stream().start(methods=5, parameter=4)
    s.ndu(ndu("v", [2]), [2, 0]).lps(2, -8, methods=5).ndu(ndu("w", [2]), [1, -3])
    return s.gives({"v": floats([2, 0], 4), "w": floats([1, -3], -8)})


@acceptable(
    "NNR-ACC-221",
    "quantization information after the tensors",
    "6.2.3",
    "NNR_QNT",
    requirements="quantization-first",
)
def late_quantization() -> Content:
    s = Stream().start()
    s.ndu(ndu("w", [2]), [1, -3]).quantization(b"x", storage=0)
    return s.gives({"w": floats([1, -3])})


@acceptable("NNR-ACC-222", "an ONNX topology after the tensors", "6.2.3", "NNR_TPL_ONNX", requirements="topology-first")
def late_topology() -> Content:
    s = Stream()
    s.str_()
    s.parameters(topology_carriage_flag=1).ndu(ndu("w", [2]), [1, -3]).topology(b"model", storage=NNR_TPL_ONNX)
    return s.gives({"w": floats([1, -3])}, topology=b"model", topology_format="onnx")
