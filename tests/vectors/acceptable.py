"""NNR-ACC: bitstreams that a decoder may reject or decode to the given tensors."""

from __future__ import annotations

import numpy as np

from nnr_codec.constants import NNR_NDU, NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.syntax.structures import NnrUnitHeader

from ..builder import aggregate, ndu, update_ndu
from .arithmetic import chosen, dependent, floats
from .bits import f4
from .case import Content, acceptable
from .negative_units import HEAD, RAW, raw_named
from .stream import Stream, side


@acceptable("NNR-ACC-001", "units of reserved types are ignored", "6.4.3.1", "NNR_RSVD", requirements="unit-type")
def reserved_types() -> Content:
    return Content(HEAD + b"\x00\x06\x1e\xff\x00\xff" + RAW + b"\x00\x03\x7e", {"w": f4(1, 2)})


# Unspecified types are outside the standard; using them does not violate it.
@acceptable(
    "NNR-ACC-002", "units of unspecified types are ignored, in an aggregate as well", "6.4.3.1", "NNR_UNSP NNR_AGG"
)
def unspecified_types() -> Content:
    inside = aggregate([raw_named("a"), b"\x00\x04\xfe\x55", raw_named("b")])
    return Content(HEAD + b"\x00\x03\x82" + inside, {"a": f4(1), "b": f4(1)})


# This project's reading of profile 0: errata K1.
@acceptable(
    "NNR-ACC-003",
    "written like the first edition's software: 32 shift parameter ids of abs_level_greater_x2",
    "10.2.1.6",
    "profile_0 first_edition",
)
def first_edition() -> Content:
    levels = chosen([5, 6], 40)
    s = Stream(first_edition=True).start(0)
    ids = side(sig={0: 1, 1: 2, 2: 3}, sign={0: 4}, gtx={0: 5}, gtx2={0: 8, 31: 7})
    s.ndu(ndu("w", [5, 6]), levels, qp=-9, sides=[ids]).ndu(ndu("v", [5, 6], dq_flag=1), levels, qp=3)
    return s.gives({"w": floats(levels, -9), "v": floats(dependent(levels), 3)})


# This project's reading of profile 0: errata K4.
@acceptable(
    "NNR-ACC-004",
    "written like the first edition's software: IvlCurrRange 256 before a single block row",
    "10.2.1.4",
    "profile_0 first_edition scan_order=4",
)
def first_edition_scan() -> Content:
    levels = chosen([20, 12], 6)
    s = Stream(first_edition=True).start(0)
    s.ndu(ndu("w", [20, 12], scan_order=4), levels)
    return s.gives({"w": floats(levels)})


@acceptable(
    "NNR-ACC-005",
    "nonzero reserved bits are ignored",
    "6.3.3.4 6.3.4.3 6.3.4.4",
    "nnr_reserved_zero",
    requirements="reserved-zero",
)
def reserved_bits() -> Content:
    s = Stream()
    s.str_()
    s.parameters(nnr_reserved_zero_1bit=1, nnr_reserved_zero_2bits=3)
    s.lps(3, -8)
    unit = bytearray(s.units.pop())
    unit[3] |= 0x7F  # nnr_reserved_zero_7_bits
    unit[4] |= 0x81  # nnr_reserved_zero_1_bit, nnr_reserved_zero_1bit
    s.add(bytes(unit)).ndu(ndu("w", [2]), [3, -4])
    return s.gives({"w": floats([3, -4], -8, 3)})


# The standard is ambiguous about these entry points (errata G2).
@acceptable(
    "NNR-ACC-006",
    "block scan of a single column: entry points are present but unused",
    "6.4.3.7 10.2.1.4",
    "scan_order=1 tensor2DWidth=1",
)
def column() -> Content:
    levels = chosen([20, 1], 5)
    s = Stream().start()
    s.ndu(ndu("w", [20, 1], scan_order=1, dq_flag=1), levels)
    return s.gives({"w": floats(dependent(levels))})


@acceptable(
    "NNR-ACC-008",
    "residuals of updates with dependent quantization",
    "6.4.4.3 9.2.4",
    "nnr_pre_flag dq_flag",
    requirements="residual-quantization",
)
def pre_dq() -> list[Content]:
    made, value = [], np.zeros([3, 4], np.float32)
    for depth in (1, 2):
        levels = chosen([3, 4], 3, depth)
        s = Stream()
        s.str_()
        more = {"nnr_pre_flag": 1, "base_model_id_present_flag": 1, "base_model_id": "m"} if depth == 2 else {}
        s.parameters(mps_parent_signalling_enabled_flag=1, **more)
        s.ndu(update_ndu("w", [3, 4], depth, dq_flag=1), levels)
        value = value + floats(dependent(levels))
        made.append(s.gives({"w": value}))
    return made


@acceptable(
    "NNR-ACC-009",
    "residuals without a base_model_id",
    "6.4.4.3",
    "nnr_pre_flag base_model_id_present_flag=0",
    requirements="base-model-id",
)
def pre_without_base() -> list[Content]:
    made = []
    for depth, pre in ((1, 0), (2, 1)):
        s = Stream().start(parent=1, pre=pre)
        s.ndu(update_ndu("w", [2], depth, kind=NNR_PT_INT), [depth, -5])
        made.append(s.gives({"w": np.array([1, -5] if depth == 1 else [3, -10], np.int32)}))
    return made


@acceptable(
    "NNR-ACC-010",
    "a topology after the tensors",
    "6.2.3 A.4",
    "NNR_TPL_NNEF",
    requirements="nnef-graph nnef-topology-first",
)
def late_topology() -> Content:
    s = Stream().start()
    s.raw(ndu("w", [1], kind=NNR_PT_RAW_FLOAT), [1]).topology(b"graph\0")
    return s.gives({"w": f4(1)}, topology=b"graph")


@acceptable(
    "NNR-ACC-011",
    "products that are not exact in float32 are rounded to nearest",
    "7.3.3",
    "NNR_PT_FLOAT rounding",
    requirements="float-exact",
)
def rounded() -> Content:
    s = Stream().start()
    s.ndu(ndu("w", [4]), [2**24 + 1, 2**24 + 3, -(2**24) - 1, 2**23 + 1], qp=1)  # times 1.25
    want = [float(np.float32(level)) * 1.25 for level in (2**24, 2**24 + 4, -(2**24), 2**23 + 1)]
    return s.gives({"w": np.array(want, "<f4")})


# An LPS without a method keeps the methods of the MPS.
@acceptable(
    "NNR-ACC-012",
    "layer parameter set without quantization methods in a model with one",
    "6.4.4.4",
    "NNR_LPS lps_quantization_method_flags=0",
)
def lps_without_method() -> Content:
    s = Stream().start(parameter=4)
    s.lps(methods=0).ndu(ndu("w", [2]), [1, -3])
    return s.gives({"w": floats([1, -3], 4)})


@acceptable(
    "NNR-ACC-013",
    "the payload of the parent has a different SHA-256",
    "6.4.3.7",
    "ICNN_NDU_PL_SHA256",
    requirements="parent-hash",
)
def other_hash() -> list[Content]:
    s = Stream().start()
    s.ndu(update_ndu("w", [3], 0, kind=NNR_PT_INT), [1, 2, 3])
    u = Stream().start(parent=1)
    header = update_ndu("w", [3], 1, kind=NNR_PT_INT, parent_node_id_type=1, parent_node_payload_sha256=2**256 - 1)
    del header.parent_device_id
    u.ndu(header, [0, 0, 1])
    return [s.gives({"w": np.array([1, 2, 3], np.int32)}), u.gives({"w": np.array([0, 0, 1], np.int32)})]


@acceptable(
    "NNR-ACC-014",
    "whole tensors whose flags or counter indicate parts",
    "6.4.3.1",
    "independently_decodable_flag",
    requirements="partial-flags",
)
def flags_of_parts() -> Content:
    s = Stream().start(methods=0)
    for name, flags in (
        ("a", {"independently_decodable_flag": 0}),
        ("b", {"independently_decodable_flag": 0, "partial_data_counter_present_flag": 1, "partial_data_counter": 0}),
        ("c", {"independently_decodable_flag": 1, "partial_data_counter_present_flag": 1, "partial_data_counter": 1}),
    ):
        header = ndu(name, [1], kind=NNR_PT_RAW_FLOAT)
        s.unit(NnrUnitHeader(nnr_unit_type=NNR_NDU, detail=header, **flags), b"\0\0\x80\x3f")
    return s.gives({"a": f4(1), "b": f4(1), "c": f4(1)})


@acceptable(
    "NNR-ACC-036",
    "independently decodable tensors with part counters, which are undefined in this case",
    "6.4.3.1",
    "independently_decodable_flag partial_data_counter NNR_PT_INT",
)
def undefined_counters() -> Content:
    s = Stream().start(methods=0)
    for name, counter in (("a", 0), ("b", 1), ("c", 3), ("d", 255)):
        header = ndu(name, [2], kind=NNR_PT_INT)
        unit = NnrUnitHeader(
            nnr_unit_type=NNR_NDU, partial_data_counter_present_flag=1, partial_data_counter=counter, detail=header
        )
        s.unit(unit, s.payload(header, [[counter, -1]]))
    return s.gives({name: np.array([k, -1], np.int32) for name, k in (("a", 0), ("b", 1), ("c", 3), ("d", 255))})


@acceptable(
    "NNR-ACC-015",
    "an aggregate with a reserved type",
    "6.4.3.8",
    "NNR_AGG nnr_aggregate_unit_type=2",
    requirements="aggregate-type",
)
def reserved_aggregate() -> Content:
    inside = aggregate([raw_named("a"), raw_named("b")], kind=2)
    return Content(HEAD + inside, {"a": f4(1), "b": f4(1)})
