"""NNR-QNT: step sizes, parameter sets, codebooks, dependent quantization."""

from __future__ import annotations

import numpy as np

from nnr_codec.constants import NNR_PT_RAW_FLOAT, NNR_QCB

from ..builder import codebook, ndu
from .arithmetic import chosen, dependent, floats, look_up
from .bits import f4
from .case import Content, valid
from .stream import Stream, side

for d in range(8):

    @valid(
        f"NNR-QNT-{1 + d:03}",
        f"QpDensity {d}: minimum, maximum and other values of qp_value",
        "7.3.6 9.2.1 10.2.1.3",
        f"NNR_PT_FLOAT mps_qp_density={d}",
    )
    def density(d: int = d) -> Content:
        s, values = Stream().start(density=d), {}
        for k, qp in enumerate((-(2 ** (5 + d)), 2 ** (5 + d) - 1, -1, 1, 2**d - 1)):
            levels = chosen([5], 3, d + k + 1)
            levels[0] = 3
            s.ndu(ndu(f"qp{k}", [5]), levels, qp=qp)
            values[f"qp{k}"] = floats(levels, qp, d)
        return s.gives(values)


@valid(
    "NNR-QNT-009", "mps_quantization_parameter is added to each qp_value", "6.4.4.3 7.3.6", "mps_quantization_parameter"
)
def base() -> Content:
    s = Stream().start(parameter=-300)
    s.ndu(ndu("a", [3]), [1, -2, 3], qp=127).ndu(ndu("b", [3]), [4, 5, -6], qp=-128)
    return s.gives({"a": floats([1, -2, 3], -173), "b": floats([4, 5, -6], -428)})


@valid(
    "NNR-QNT-010", "the smallest and largest step size of float32", "7.3.3 7.3.6", "mps_quantization_parameter extremes"
)
def float32_extremes() -> Content:
    s = Stream().start(parameter=-504)
    s.ndu(ndu("least", [3]), [1, -1, 5], qp=0)  # 2^-126
    s.lps(2, 500).ndu(ndu("greatest", [2]), [1, -1], qp=11)  # 7 * 2^125
    return s.gives({"least": floats([1, -1, 5], -504), "greatest": floats([1, -1], 511)})


@valid(
    "NNR-QNT-011",
    "the smallest and largest step size of float64",
    "7.2 7.3.6",
    "nnr_decompressed_data_format=9 extremes",
)
def float64_extremes() -> Content:
    s = Stream().start(parameter=-4088)
    s.ndu(ndu("least", [3], data_format=9), [1, -1, 2**31 - 1], qp=0)  # 2^-1022
    s.lps(2, 4088).ndu(ndu("greatest", [2], data_format=9), [1, -1], qp=7)  # 7 * 2^1021
    least = floats([1, -1, 2**31 - 1], -4088, dtype="<f8")
    return s.gives({"least": least, "greatest": floats([1, -1], 4095, dtype="<f8")})


@valid(
    "NNR-QNT-012",
    "the smallest and largest step size of float16",
    "7.2 7.3.6",
    "nnr_decompressed_data_format=8 extremes",
)
def float16_extremes() -> Content:
    s = Stream().start()
    s.ndu(ndu("least", [3], data_format=8), [1, -1, 2047], qp=-56)  # 2^-14
    s.ndu(ndu("greatest", [2], data_format=8), [1, -1], qp=63)  # 7 * 2^13
    s.ndu(ndu("largest", [2], data_format=8), [2047, -2047], qp=20)  # the largest number of the type, 2047 * 2^5
    return s.gives(
        {
            "least": floats([1, -1, 2047], -56, dtype="<f2"),
            "greatest": floats([1, -1], 63, dtype="<f2"),
            "largest": floats([2047, -2047], 20, dtype="<f2"),
        }
    )


@valid(
    "NNR-QNT-013",
    "successive layer parameter sets replace QpDensity and QuantizationParameter",
    "6.2.3 6.4.4.4",
    "NNR_LPS",
)
def layers() -> Content:
    s = Stream().start(parameter=8)
    s.ndu(ndu("model", [2]), [1, -3], qp=1)
    s.lps(5, -64).ndu(ndu("layer1", [2]), [1, -3], qp=1).ndu(ndu("layer1b", [2]), [2, 5], qp=-1)
    s.lps(0, 3).ndu(ndu("layer2", [2]), [1, -3], qp=1)
    return s.gives(
        {
            "model": floats([1, -3], 9),
            "layer1": floats([1, -3], -63, 5),
            "layer1b": floats([2, 5], -65, 5),
            "layer2": floats([1, -3], 4, 0),
        }
    )


@valid("NNR-QNT-014", "the scope of a layer parameter set ends with its aggregate", "6.2.3 6.4.4.4", "NNR_LPS NNR_AGG")
def layer_in_aggregate() -> Content:
    s = Stream().start(density=1, parameter=2)
    s.lps(3, -8).ndu(ndu("in", [2]), [1, -3], qp=1).aggregate(2)
    s.ndu(ndu("after", [2]), [1, -3], qp=1)
    return s.gives({"in": floats([1, -3], -7, 3), "after": floats([1, -3], 3, 1)})


# The header of an aggregate depends on the layer parameter set before it (lps_unification_flag, 6.3.3.8).
@valid("NNR-QNT-036", "a layer parameter set stays active in an aggregate", "6.2.3 6.3.3.8 6.4.4.4", "NNR_LPS NNR_AGG")
def layer_around_aggregate() -> Content:
    s = Stream().start(density=1, parameter=2)
    s.lps(3, -8).ndu(ndu("a", [2]), [1, -3], qp=1).ndu(ndu("b", [2]), [2, 5]).aggregate(3)
    s.ndu(ndu("after", [2]), [1, -3], qp=1)
    same = floats([1, -3], -7, 3)
    return s.gives({"a": same, "b": floats([2, 5], -8, 3), "after": same})


@valid(
    "NNR-QNT-015",
    "only quantization method NNR_QCB, in a model and a layer parameter set",
    "6.3.4.3 6.4.4.3",
    "NNR_QCB",
)
def codebook_method() -> Content:
    s = Stream().start(density=4, parameter=-16, methods=NNR_QCB)
    s.ndu(ndu("w", [3], codebook_present_flag=1, codebook=codebook([-8, 0, 8], 1)), [-1, 0, 1], qp=2)
    s.lps(1, 0, methods=NNR_QCB).ndu(ndu("v", [2]), [7, -7], qp=2)
    return s.gives({"w": floats([-8, 0, 8], -14, 4), "v": floats([7, -7], 2, 1)})


@valid(
    "NNR-QNT-016",
    "no quantization method, and no tensor with a qp_value",
    "6.3.4.3",
    "mps_quantization_method_flags=0",
)
def no_method() -> Content:
    s = Stream().start(methods=0)
    s.raw(ndu("w", [2], kind=NNR_PT_RAW_FLOAT), [1, 2]).ndu(ndu("n", [2], kind=0), [3, 4])
    return s.gives({"w": f4(1, 2), "n": np.array([3, 4], np.int32)})


@valid("NNR-QNT-017", "dependent quantization of floats", "9.2.3 10.2.1.4", "NNR_PT_FLOAT dq_flag")
def dq() -> Content:
    levels = chosen([8, 9], 4)
    s = Stream().start()
    s.ndu(ndu("w", [8, 9], dq_flag=1), levels, qp=-21)
    return s.gives({"w": floats(dependent(levels), -21)})


def _book(
    entries: list[int], zero: int, levels: list[int], *, profile: int = 1, egk: int = 0, unary: int = 9, dq: int = 0
) -> Content:
    s = Stream().start(profile)
    header = ndu(
        "w", [len(levels)], unary=unary, codebook_present_flag=1, codebook=codebook(entries, zero, egk), dq_flag=dq
    )
    s.ndu(header, levels, qp=-8)
    return s.gives(
        {"w": floats(look_up(dependent([[level] for level in levels])[:, 0] if dq else levels, entries, zero), -8)}
    )


NINE = [-90, -40, -9, -4, 0, 5, 11, 50, 100]

for number, (profile, title, entries, zero, levels) in enumerate(
    [
        (1, "one entry, no coded levels", [7], 0, [0, 0, 0]),
        (0, "one entry, coded levels", [7], 0, [0, 0, 0]),
        (1, "two entries, no negative levels", [3, 9], 0, [0, 1, 1, 0, 1]),
        (1, "two entries, no positive levels", [-3, 9], 1, [0, -1, -1, 0]),
        (0, "two entries", [-3, 9], 1, [0, -1, -1, 0]),
        (1, "nine entries around zero", NINE, 4, [*range(-4, 5), 0, 0]),
        (0, "nine entries around zero", NINE, 4, [*range(-4, 5), 0, 0]),
        (1, "nine entries, zero is the first", NINE, 0, [*range(9), 0]),
        (1, "nine entries, zero is the last", NINE, 8, [*range(-8, 1), 0]),
        (1, "nine entries, more on one side", NINE, 2, [*range(-2, 7), 0]),
    ],
    18,
):

    @valid(
        f"NNR-QNT-{number:03}",
        f"codebook in profile {profile}: {title}",
        "6.3.3.7 7.3.6 10.2.1.5 10.2.1.6",
        f"codebook_size={len(entries)} CbZeroOffset={zero} profile_{profile}",
    )
    def book(
        profile: int = profile, entries: list[int] = entries, zero: int = zero, levels: list[int] = levels
    ) -> Content:
        return _book(entries, zero, levels, profile=profile)


@valid(
    "NNR-QNT-028",
    "levels above the unary part, up to both ends of the codebook",
    "10.2.1.5 10.2.1.6",
    "codebook_size=61",
)
def large_book() -> Content:
    entries = [3 * k - 60 for k in range(61)]
    return _book(entries, 20, [*range(-20, 41)], unary=1)


@valid(
    "NNR-QNT-029", "Exp-Golomb order 15, entries at both ends of the 32-bit range", "6.3.3.7 6.1.3", "codebook_egk=15"
)
def extreme_entries() -> Content:
    entries = [-(2**31), -(2**24), 0, 2**24, 2**30, 2**31 - 2**8]
    return _book(entries, 2, [-2, -1, 0, 1, 2, 3], egk=15)


@valid(
    "NNR-QNT-030",
    "codebook with dependent quantization: the index depends on level and state",
    "7.3.6 10.2.1.4",
    "codebook dq_flag profile_0",
)
def book_dq() -> Content:
    return _book(NINE, 4, [1, 1, -1, 2, -1, 0, 1, -2], profile=0, dq=1)


@valid(
    "NNR-QNT-031",
    "a small codebook limits the number of shift parameter ids",
    "10.2.1.6",
    "codebook_size=5 shift_parameter_ids",
)
def book_ids() -> Content:
    entries, levels = [-20, -10, 0, 30, 90], chosen([6, 6], 2)
    s = Stream().start()
    header = ndu("w", [6, 6], unary=5, codebook_present_flag=1, codebook=codebook(entries, 2))
    ids = side(6, sig={0: 1, 1: 2, 2: 3}, sign={0: 4, 2: 5}, gtx={0: 6, 1: 7, 2: 8, 3: 1})
    s.ndu(header, levels, sides=[ids], qp=3)
    return s.gives({"w": floats(look_up(levels, entries, 2), 3)})
